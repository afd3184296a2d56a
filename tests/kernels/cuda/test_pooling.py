"""What the table has no rows for: ties, NaN, large windows, large batches, and the choices of stochastic pooling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda import pooling
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import State
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import ConfigurationError, Layout, Phase, Shape, Tensor
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Numbers, run
from tests.kernels.reference.running import draw
from tests.kernels.reference.test_pooling import cases

SEED, KEY, TASK = 2**33 + 1, 3, 2**32 + 5
layouts = pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)


def pool(
    x: Numbers,
    windows: Shape,
    g: PoolingGeometry,
    layout: Layout = Layout.PLAIN,
    dtype: Any = np.float32,
    *,
    reference: bool = False,
) -> dict[str, Numbers]:
    """Output and gradient when training, and the output when checking."""
    tensors = {
        "input0": Tensor(x.shape, np.dtype(dtype), layout),
        "output": Tensor((*x.shape[:2], *windows), np.dtype(dtype), layout),
    }
    tensors |= {"input_gradient": tensors["input0"], "output_gradient": tensors["output"]}
    state = np.zeros(State.SIZE, np.int64)
    state[State.TASK] = TASK
    values = {"input0": x, "state": state, "output_gradient": draw(*x.shape[:2], *windows, dtype=dtype, seed=1)}

    def forward(phase: Phase) -> dict[str, Numbers]:
        return run(
            lambda library, t: library.prepare(PoolingForward(t["input0"], t["output"], g, phase, SEED, KEY)),
            tensors,
            values,
            reference=reference,
        )

    trained = forward(Phase.TRAIN)
    gradient = run(
        lambda library, t: library.prepare(PoolingBackward(t["output"], t["input0"], g)),
        tensors,
        {**values, **trained},
        reference=reference,
    )
    return {**gradient, "trained": trained["output"], "checked": forward(Phase.CHECK)["output"]}


def compare(x: Numbers, windows: Shape, g: PoolingGeometry, layout: Layout = Layout.PLAIN, **more: Any) -> None:
    received, expected = pool(x, windows, g, layout, **more), pool(x, windows, g, reference=True)
    for role, value in expected.items():
        np.testing.assert_allclose(received[role], value, rtol=2e-6, atol=2e-5, err_msg=role)
    if g.method == "stochastic":
        np.testing.assert_array_equal(received["trained"], expected["trained"])


@layouts
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1), (17, 16)])
def test_the_gradient_of_a_relu_before_a_maximum(layout: Layout, dtype: Any, kernel: int, stride: int) -> None:
    """The gradient of a maximum that is not positive is 0, but NaN stays NaN."""
    g = PoolingGeometry((kernel, kernel), (stride, stride), method="max")
    x = Tensor((3, 5, 33, 33), np.dtype(dtype), layout)
    windows = (33 - kernel) // stride + 1
    y = Tensor((3, 5, windows, windows), np.dtype(dtype), layout)
    tensors = {"input0": x, "output": y, "output_gradient": y, "input_gradient": x}
    values: dict[str, Any] = {"input0": np.maximum(draw(*x.shape, dtype=dtype) - 2.5, 0)}
    values["output_gradient"] = draw(*y.shape, dtype=dtype, seed=1)
    values["output_gradient"][0, 0, 0, 0] = np.nan
    results = []
    for reference in (False, True):
        forward = run(
            lambda library, t: library.prepare(PoolingForward(t["input0"], t["output"], g, Phase.TRAIN, SEED, KEY)),
            tensors,
            values,
            reference=reference,
        )
        assert 0 < (forward["output"] > 0).mean() < 1
        results.append(
            run(
                lambda library, t: library.prepare(PoolingBackward(t["output"], t["input0"], g, relu=True)),
                tensors,
                {**values, **forward},
                reference=reference,
            )["input_gradient"]
        )
    np.testing.assert_allclose(*results, rtol=2e-6, atol=2e-6)
    assert np.isnan(results[0]).any()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    layout=st.sampled_from(Layout),
    channels=st.sampled_from([5, 8]),
    ties=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_against_the_reference(
    case: tuple[Shape, Shape, PoolingGeometry], layout: Layout, channels: int, ties: bool, dtype: Any
) -> None:
    """Eight channels side by side are whole packs."""
    sizes, windows, geometry = case
    assume(layout is Layout.PLAIN or len(sizes) == 2)
    x = draw(3, channels, *sizes, dtype=np.float32)
    compare(np.round(x) if ties else x, windows, geometry, layout, dtype=dtype)


@pytest.mark.parametrize("method", ["max", "average"])
@pytest.mark.parametrize("sizes", [(3, 1), (3, 3)])
def test_a_dilated_window_as_large_as_the_image(sizes: Shape, method: str) -> None:
    """It has the elements 0 and 2 of an axis of three, and its last one overhangs."""
    g = PoolingGeometry(sizes, (3, 3), dilation=(2, 2), method=method, count_padding=False)
    for layout in Layout:
        compare(draw(3, 5, *sizes, dtype=np.float32), (1, 1), g, layout)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(case=cases(), layout=st.sampled_from(Layout), channels=st.sampled_from([5, 8]))
def test_stochastic_pooling_picks_what_the_reference_picks(
    case: tuple[Shape, Shape, PoolingGeometry], layout: Layout, channels: int
) -> None:
    sizes, windows, geometry = case
    assume(layout is Layout.PLAIN or len(sizes) == 2)
    compare(draw(3, channels, *sizes, dtype=np.float32), windows, replace(geometry, method="stochastic"), layout)


@pytest.mark.slow
@one_in(2)
@layouts
@pytest.mark.parametrize("method", ["max", "average", "stochastic"])
def test_large_windows_on_which_blocks_work_together(method: str, layout: Layout) -> None:
    for shape, kernel in (((5, 3, 67, 65), (67, 65)), ((2, 3, 20, 19), (17, 16)), ((5, 2, 20, 19), (20, 19))):
        windows = tuple(size - k + 1 for size, k in zip(shape[2:], kernel, strict=True))
        x = np.round(draw(*shape, dtype=np.float32))  # many equal maxima
        compare(x, windows, PoolingGeometry(kernel, method=method), layout)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [(3, 70, 7, 7), (2, 3, 8, 8), (5, 64, 1, 1), (2, 33, 40, 41), (300, 2, 2, 3)])
def test_the_average_of_whole_images(shape: Shape, layout: Layout) -> None:
    """Blocks for every image and group of channels, whose threads share the rows."""
    n, channels, *image = shape
    geometry = PoolingGeometry(tuple(image), method="average")
    compare(draw(*shape, dtype=np.float32), (1, 1), geometry, layout)
    x, y = (Tensor(s, np.dtype(np.float32), layout) for s in (shape, (n, channels, 1, 1)))
    with fake_cuda():
        arrays = {role: t.view(aligned_zeros(t.nbytes)) for role, t in (("input0", x), ("output", y))}
        (call,) = Cuda(np.float32).prepare(PoolingForward(x, y, geometry, Phase.CHECK)).bind(arrays)
    assert call.name == "pooling_average_whole"  # type: ignore[attr-defined]
    assert call.blocks >= -(-n * channels // 32)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_sum_over_whole_images_is_float64() -> None:
    shape = (1, 1, 1500, 1500)
    x = np.full(shape, 0.1, np.float32)
    mean = pool(x, (1, 1), PoolingGeometry(shape[2:], method="average"), Layout.PLAIN)["checked"]
    assert mean == np.float32(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 20], ids=["of a thread", "of a block"])
def test_large_windows_with_padding_and_dilation(size: int) -> None:
    g = PoolingGeometry((size, size), (3, 2), ((3, 2), (1, 3)), (2, 1))
    x = np.round(draw(2, 3, 2 * size + 5, size + 9, dtype=np.float32))
    for method, count_padding in (("max", True), ("average", True), ("average", False)):
        windows = ((2 * size + 10 - 2 * size + 1) // 3 + 1, (size + 13 - size) // 2 + 1)
        compare(x, windows, replace(g, method=method, count_padding=count_padding))


@layouts
@pytest.mark.parametrize("size", [2, 3, 4, 20])
def test_nan_and_infinity_as_the_reference_has_them(size: int, layout: Layout) -> None:
    x = draw(3, 2, 2 * size, 2 * size, dtype=np.float32)
    x[0, 0, size:, size:] = -np.inf
    x[0, 1, 1, 0] = x[0, 1, 1, 1] = x[1, 0, 0, 0] = np.nan  # of several the last one
    x[2, 1, 0, 1] = np.inf
    for method in ("max", "stochastic"):
        g = PoolingGeometry((size, size), (size, size), method=method)
        received = pool(x, (2, 2), g, layout)
        with np.errstate(invalid="ignore"):
            expected = pool(x, (2, 2), g, reference=True)
        for role in ("trained", "input_gradient") if method == "stochastic" else expected:
            np.testing.assert_array_equal(received[role], expected[role].astype(np.float32), err_msg=role)


@layouts
@pytest.mark.parametrize("method", ["max", "average", "stochastic"])
def test_a_large_batch_takes_several_calls(method: str, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    x, g = draw(5, 3, 6, 7, dtype=np.float32), PoolingGeometry((3, 3), (2, 2), ((1, 0), (1, 1)), method=method)
    whole = pool(x, (3, 4), g, layout)
    monkeypatch.setattr(pooling, "MOST_ELEMENTS", 2 * 3 * 6 * 7 + 1)
    tensors = Tensor(x.shape, x.dtype, layout), Tensor((5, 3, 3, 4), x.dtype, layout)
    assert len(pooling._Windows(*tensors, g).calls(lambda part: part)) == 3  # type: ignore[arg-type, return-value]
    parts = pool(x, (3, 4), g, layout)
    for role, value in whole.items():
        np.testing.assert_array_equal(parts[role], value, err_msg=role)
    monkeypatch.setattr(pooling, "MOST_ELEMENTS", 3 * 6 * 7)
    with pytest.raises(ConfigurationError, match="fewer than 2³⁰ elements"):
        pool(x, (3, 4), g, layout)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_division_by_multiplication(value: int, number: int) -> None:
    multiplier, shift = pooling._divisor(value)
    assert multiplier < 2**32
    for n in (number, number // value * value, max(0, number // value * value - 1), 2**31 - 1):
        assert n * multiplier >> shift == n // value


def test_what_is_kept() -> None:
    x, y = (Tensor((2, 3, 64, 64), np.dtype(np.float32)), Tensor((2, 3, 32, 32), np.dtype(np.float32)))
    small, large = PoolingGeometry((2, 2), (2, 2)), PoolingGeometry((17, 17), (2, 2), ((8, 7), (8, 7)))
    assert pooling.forward(PoolingForward(x, y, small, Phase.TRAIN)).kept == y.elements
    assert pooling.forward(PoolingForward(x, y, large, Phase.TRAIN)).kept == 4 * y.elements
    for g in (small, replace(small, method="stochastic"), replace(small, method="average")):
        assert pooling.forward(PoolingForward(x, y, g, Phase.CHECK)).kept == 0
        assert pooling.forward(PoolingForward(x, y, g, Phase.CHECK)).reads == ("input0",)


def test_what_is_refused() -> None:
    x, y = Tensor((2, 3, 4, 4), np.dtype(np.float32)), Tensor((2, 3, 2, 2), np.dtype(np.float32), Layout.CHANNELS_LAST)
    with pytest.raises(ConfigurationError, match="one layout"):
        pooling.backward(PoolingBackward(y, x, PoolingGeometry((2, 2), (2, 2))))
    x = Tensor((2, 3, 2, 2, 2, 2), np.dtype(np.float32))
    with pytest.raises(ConfigurationError, match="at most 3 spatial axes"):
        pooling.backward(PoolingBackward(x, x, PoolingGeometry((1, 1, 1, 1))))
