from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.interface import PlainStorage, Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.types import Shape
from tests.kernels.cpu.buffers import output_shape
from tests.kernels.cpu.running import (
    FLOAT32,
    ONEDNN,
    REFERENCE,
    close,
    draw,
    execute,
    memory,
    stored,
    tensor,
    unstored,
    with_storage,
)


def compare(shape: Shape, outputs: int, g: ConvolutionGeometry, *, with_bias: bool, plain: bool = False) -> list[str]:
    """Forward and both gradients; the names of the kernels."""
    y_shape = output_shape(shape, outputs, g)
    x, w, dy, b = draw(shape), draw((outputs, shape[1] // g.groups, *g.kernel)), draw(y_shape, 1), draw((outputs,))
    expected = {"output": np.zeros(y_shape), "input_gradient": np.zeros(shape)}
    expected |= {"weights_gradient": np.zeros(w.shape), "bias_gradient": np.zeros(outputs)}
    numbers = {"input0": x, "weights": w, "output_gradient": dy, "bias": b}
    numbers = {role: value.astype(np.float64) for role, value in numbers.items()}
    tx, ty = tensor(shape), tensor(y_shape)
    weights, bias = Variable(w.shape, FLOAT32), Variable(b.shape, FLOAT32) if with_bias else None
    for kernel in (
        REFERENCE.prepare(ConvolutionForward(tx, weights, bias, ty, g)),
        REFERENCE.prepare(ConvolutionBackwardData(ty, weights, tx, g)),
        REFERENCE.prepare(ConvolutionBackwardWeights(tx, ty, weights, bias, g)),
    ):
        execute(kernel, {**numbers, **expected}, native=False)

    forward = ONEDNN.prepare(ConvolutionForward(tx, weights, bias, ty, g))
    if not plain:
        weights = with_storage(weights, forward)
        again = ONEDNN.prepare(ConvolutionForward(tx, weights, bias, ty, g))
        assert not again.storages
    else:
        weights = Variable(w.shape, FLOAT32, PlainStorage(w.shape))
        forward = again = ONEDNN.prepare(ConvolutionForward(tx, weights, bias, ty, g))
    data = ONEDNN.prepare(ConvolutionBackwardData(ty, weights, tx, g))
    gradient = ONEDNN.prepare(ConvolutionBackwardWeights(tx, ty, weights, bias, g))
    flat = stored(w, weights.storage)
    buffers = {"input0": memory(tx, x), "weights": flat, "bias": b, "output_gradient": memory(ty, dy)}
    buffers |= {"weights_gradient": np.full_like(flat, np.nan), "bias_gradient": np.full_like(b, np.nan)}
    for kernel in (forward, again, data, gradient):
        buffers |= {role: memory(t) for role, t in (("output", ty), ("input_gradient", tx)) if role in kernel.writes}
        execute(kernel, buffers)
        if "output" in kernel.writes:
            close(buffers["output"], expected["output"], w[0].size)
    close(buffers["input_gradient"], expected["input_gradient"], w.size // w.shape[1])
    actual = unstored(buffers["weights_gradient"], weights.storage, w.shape)
    close(actual, expected["weights_gradient"], y_shape[0] * y_shape[2] * y_shape[3])
    if with_bias:
        close(buffers["bias_gradient"], expected["bias_gradient"], y_shape[0] * y_shape[2] * y_shape[3])
    return [forward.name, data.name, gradient.name]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_shapes(data: st.DataObject) -> None:
    size = st.integers(1, 3)
    groups = data.draw(st.sampled_from([1, 1, 1, 2, 3]), "groups")
    channels, outputs = (groups * data.draw(st.sampled_from([1, 2, 3, 5, 8, 16, 20]), name) for name in "co")
    g = ConvolutionGeometry(
        kernel=(data.draw(size), data.draw(size)),
        stride=(data.draw(size), data.draw(size)),
        padding=data.draw(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2)),
        dilation=(data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))),
        groups=groups,
    )
    height, width = (data.draw(st.integers(extent, extent + 6)) for extent in g.extent)
    batch = data.draw(st.integers(1, 4), "batch")
    compare((batch, channels, height, width), outputs, g, with_bias=data.draw(st.booleans()))


LENET = [
    ((1, 28, 28), 32),
    ((32, 12, 12), 64),
    ((1, 28, 28), 20),
    ((20, 12, 12), 50),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 4, 8, 16, 32, 64])
@pytest.mark.parametrize(("shape", "outputs"), LENET)
def test_lenet_takes_the_fast_implementations(
    shape: Shape, outputs: int, batch: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossbow.kernels.cpu.onednn.shared_library.omp_get_max_threads", lambda: threads)
    g = ConvolutionGeometry((5, 5))
    x, y = tensor((batch, *shape)), tensor(output_shape((batch, *shape), outputs, g))
    weights, bias = Variable((outputs, shape[0], 5, 5), FLOAT32), Variable((outputs,), FLOAT32)
    forward = ONEDNN.prepare(ConvolutionForward(x, weights, bias, y, g))
    weights = with_storage(weights, forward)
    kernels = [forward, ONEDNN.prepare(ConvolutionBackwardWeights(x, y, weights, bias, g))]
    if shape[0] > 1:
        kernels.append(ONEDNN.prepare(ConvolutionBackwardData(y, weights, x, g)))
    for kernel in kernels:
        assert "ref:" not in kernel.name
        assert "gemm" not in kernel.name
        assert any(name in kernel.name for name in ("jit:", "brg", "narrow", "winograd"))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [8, 20, 32, 64])
def test_depthwise_takes_the_fast_implementations(channels: int, stride: int) -> None:
    g = ConvolutionGeometry((3, 3), (stride, stride), ((1, 1), (1, 1)), groups=channels)
    names = compare((2, channels, 9, 8), channels, g, with_bias=True)
    assert all("dw" in name for name in names), names


def test_depthwise_data_gradient_is_not_padded_to_blocks() -> None:
    g = ConvolutionGeometry((5, 5), padding=((2, 2), (2, 2)), groups=32)
    _, data, _ = compare((2, 32, 9, 8), 32, g, with_bias=False)
    assert "dw" in data


@pytest.mark.parametrize("axes", [1, 3])
def test_other_numbers_of_axes_run_in_numpy(axes: int) -> None:
    g = ConvolutionGeometry((3,) * axes)
    x, y = tensor((2, 3, *[5] * axes)), tensor((2, 4, *[3] * axes))
    weights = Variable((4, 3, *g.kernel), FLOAT32)
    forward = ONEDNN.prepare(ConvolutionForward(x, weights, None, y, g))
    assert not forward.storages
    for kernel in (
        forward,
        ONEDNN.prepare(ConvolutionBackwardData(y, weights, x, g)),
        ONEDNN.prepare(ConvolutionBackwardWeights(x, y, weights, None, g)),
    ):
        assert kernel.name.endswith("reference")


@pytest.mark.parametrize(("shape", "outputs"), LENET)
def test_lenet_layers(shape: Shape, outputs: int) -> None:
    compare((2, *shape), outputs, ConvolutionGeometry((5, 5)), with_bias=True)


@pytest.mark.parametrize("groups", [1, 2])
def test_plain_weights(groups: int) -> None:
    compare((2, 4, 6, 5), 6, ConvolutionGeometry((3, 3), groups=groups), with_bias=True, plain=True)
