"""What the table has no rows for: the ReLU behind in the same kernels, channels in several parts, what is in place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda import batch_norm, channels, launch
from crossbow.kernels.cuda.channels import Channels
from crossbow.kernels.cuda.launch import computed_in
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormSetting, BatchNormTraining
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.combinations import in_turn
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Numbers
from tests.kernels.cuda.test_channels import of_runs
from tests.kernels.reference.running import draw

PLAIN, CHANNELS_LAST = Layout.PLAIN, Layout.CHANNELS_LAST
SHAPES: list[tuple[Shape, Layout]] = [
    ((9, 5), PLAIN),
    ((300, 33), PLAIN),
    ((4, 3, 7), PLAIN),
    ((3, 5, 4, 6), PLAIN),
    ((3, 5, 4, 6), CHANNELS_LAST),
    ((2, 33, 4, 3), CHANNELS_LAST),
    ((2, 300, 1, 2), PLAIN),
    ((5, 1, 3, 3), CHANNELS_LAST),
    ((2, 3, 2, 2, 3, 2), PLAIN),
    ((8, 3, 40, 40), PLAIN),  # several parts of a channel
    ((8, 3, 40, 40), CHANNELS_LAST),
    ((5000, 7), PLAIN),
]
SETTINGS = [
    BatchNormSetting(1e-5, 0.9, bias=True),
    BatchNormSetting(0.1, 0.9, bias=False),
    BatchNormSetting(1e-3, None, bias=True),
]
in_one_kernel = pytest.mark.parametrize("most", [channels.MOST_OF_A_BLOCK, 0], ids=["one kernel", "two kernels"])
"""How many elements a block may have: all, or none."""
every_shape = pytest.mark.parametrize(("shape", "layout"), SHAPES, ids=lambda value: str(value))
every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def execute(kernel: PreparedKernel, buffers: dict[str, Numbers]) -> None:
    workspace = np.full(kernel.workspace, 0xFF, np.uint8)
    for call in kernel.bind({**buffers, "workspace": workspace}):
        call()


def execute_all(
    x: Tensor,
    setting: BatchNormSetting,
    *,
    reference: bool = False,
    dx: bool = True,
    shared: bool = False,
    offset: float = 0,
    gradient: Numbers | None = None,
    broken: tuple[str, float] | None = None,
    rounded: Any = np.float32,
) -> dict[str, Numbers]:
    """Training, the gradient and inference on one input: everything that they write.

    shared: the statistics are updated where they lie, and the gradient of the input, or of the sum's other term, is
    where the output's gradient was.
    broken: a parameter, and what its first channel has. rounded: the type that tensors of the reference are rounded to.
    """
    if reference:
        x = Tensor(x.shape, np.dtype(np.float64))
    real = computed_in(x.dtype)
    library: Any = Reference(x.dtype) if reference else Cuda(real)
    count = x.shape[1]

    def memory(values: Any = np.nan) -> Numbers:
        array = x.view(aligned_zeros(x.nbytes))
        array[...] = np.asarray(values).astype(rounded)
        return array

    names = (*setting.parameters, *setting.observed)
    vectors = {name: draw(count, dtype=np.float32, seed=seed).astype(real) for seed, name in enumerate(names, 20)}
    vectors["running_variance"] = np.abs(vectors["running_variance"]) + np.asarray(0.5, real)
    if "count" in vectors:
        vectors["count"] = np.full(1, 3, real)
    if broken is not None:
        vectors[broken[0]][0] = broken[1]
    inputs = draw(*x.shape, dtype=np.float32) + np.float32(offset)
    buffers = {"input0": memory(inputs), "output": memory(), **{n: v.copy() for n, v in vectors.items()}}
    buffers["output_gradient"] = memory(draw(*x.shape, dtype=np.float32, seed=1) if gradient is None else gradient)
    buffers["addend"] = memory(draw(*x.shape, dtype=np.float32, seed=2))
    place = "addend_gradient" if setting.masks_sum else "input_gradient"
    for role in ("input_gradient", "addend_gradient"):
        buffers[role] = buffers["output_gradient"] if shared and role == place else memory()
    for name in setting.parameters:
        buffers[f"{name}_gradient"] = np.full(count, np.nan, real)
    for name in setting.observed:
        buffers[f"{name}_next"] = buffers[name] if shared else np.full_like(vectors[name], np.nan)
    training = library.prepare(BatchNormTraining(x, x, setting))
    buffers["kept"] = np.full(training.kept, 0xFF, np.uint8)
    execute(training, buffers)
    execute(library.prepare(BatchNormBackward(x, x, x if dx else None, setting)), buffers)
    written = {
        role: value.copy()
        for role, value in buffers.items()
        if role.endswith(("_gradient", "_next", "output")) and role != "output_gradient"
    }
    if not shared:
        for role, value in vectors.items():
            np.testing.assert_array_equal(buffers[role], value, err_msg=role)
    buffers |= vectors
    execute(library.prepare(BatchNormInference(x, x, setting)), buffers)
    return {**written, "tested": buffers["output"]}


def received_from(x: Tensor, setting: BatchNormSetting, **options: Any) -> dict[str, Numbers]:
    with fake_cuda():
        return execute_all(x, setting, **options)


def assert_close(received: dict[str, Numbers], expected: dict[str, Numbers], tolerance: float = 5e-6) -> None:
    assert received.keys() == expected.keys()
    for role, value in expected.items():
        scale = max(1.0, float(np.nanmax(np.abs(value), initial=0)))
        np.testing.assert_allclose(received[role], value, rtol=0, atol=tolerance * scale, err_msg=role)


@in_turn
@every_setting
@every_shape
@in_one_kernel
@pytest.mark.parametrize("after", ["", "relu", "sum", "sum, relu"])
def test_agrees_with_the_reference(
    shape: Shape, layout: Layout, setting: BatchNormSetting, most: int, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_norm, "MOST_OF_A_BLOCK", most)
    x = Tensor(shape, np.dtype(np.float32), layout)
    setting = replace(setting, relu="relu" in after, sum="sum" in after)
    received = received_from(x, setting)
    assert_close(received, execute_all(x, setting, reference=True))
    assert np.isnan(received["addend_gradient"]).all() == (after != "sum, relu")
    if "relu" in after:
        assert received["output"].min() == received["tested"].min() == 0  # some were negative


@in_turn
@every_shape
@in_one_kernel
@pytest.mark.parametrize("sum", [False, True])
def test_in_double_precision(
    shape: Shape, layout: Layout, most: int, sum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_norm, "MOST_OF_A_BLOCK", most)
    x, setting = Tensor(shape, np.dtype(np.float64), layout), replace(SETTINGS[0], relu=True, sum=sum)
    assert_close(received_from(x, setting), execute_all(x, setting, reference=True), 1e-13)


@in_turn
@every_shape
@in_one_kernel
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_tensors_of_16_bits(
    shape: Shape, layout: Layout, most: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same rounded numbers, each result is rounded once."""
    monkeypatch.setattr(batch_norm, "MOST_OF_A_BLOCK", most)
    x, setting = Tensor(shape, np.dtype(kind), layout), replace(SETTINGS[0], relu=True, sum=True)
    received = received_from(x, setting)
    expected = execute_all(x, setting, reference=True, rounded=kind)
    bits = 2 ** -float(ml_dtypes.finfo(kind).nmant)
    for role, value in expected.items():
        scale = max(1.0, float(np.abs(value).max()))
        narrow = received[role].dtype == kind
        difference = np.abs(received[role].astype(np.float64) - value)
        # A value at the kink of the ReLU may be on its other side.
        assert np.quantile(difference, 0.95) <= (2 * bits if narrow else 1e-5) * scale, role


@pytest.mark.parametrize("layout", Layout)
def test_positions_of_64_bits_change_no_bit(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    x, setting = Tensor((3, 5, 4, 6), np.dtype(np.float32), layout), replace(SETTINGS[0], relu=True, sum=True)
    monkeypatch.setattr(batch_norm, "MOST_OF_A_BLOCK", 0)
    narrow = received_from(x, setting)
    monkeypatch.undo()
    monkeypatch.setattr(launch, "LEAST_WIDE", 1)  # such tensors have two kernels
    for role, value in received_from(x, setting).items():
        np.testing.assert_array_equal(value, narrow[role], err_msg=role)


@pytest.mark.parametrize(
    ("shape", "layout", "fraction", "calls"),
    [
        ((64, 16, 32, 32), PLAIN, 0.9, (1, 1)),
        ((65, 16, 32, 32), PLAIN, 0.9, (2, 2)),
        ((8, 16, 32, 32), CHANNELS_LAST, 0.9, (1, 1)),
        ((9, 16, 32, 32), CHANNELS_LAST, 0.9, (2, 2)),
        ((8, 16, 32, 32), PLAIN, None, (2, 1)),  # the count is read by all blocks before it is updated
    ],
)
def test_one_kernel_each_way_while_a_block_can_take_a_channel(
    shape: Shape, layout: Layout, fraction: float | None, calls: tuple[int, int]
) -> None:
    x, setting = Tensor(shape, np.dtype(np.float32), layout), BatchNormSetting(1e-5, fraction, bias=True)
    with fake_cuda() as cuda:
        cuda.compile = lambda source, options: lambda name: 1  # type: ignore[method-assign]
        buffers: Any = defaultdict(lambda: np.zeros(16, np.uint8))
        kernels = [
            Cuda(np.float32).prepare(r) for r in (BatchNormTraining(x, x, setting), BatchNormBackward(x, x, x, setting))
        ]
        assert tuple(len(kernel.bind(buffers)) for kernel in kernels) == calls


@pytest.mark.parametrize(("shape", "layout"), [((16, 64), PLAIN), ((4, 64, 2, 2), CHANNELS_LAST)])
def test_sums_may_have_as_many_bytes_as_a_tensor_has_elements(shape: Shape, layout: Layout) -> None:
    """They begin after the copy of the count, between two packs."""
    x, setting = Tensor(shape, np.dtype(np.float32), layout), BatchNormSetting(1e-5, None, bias=True)
    received_from(x, setting)


@in_turn
@every_setting
@every_shape
@in_one_kernel
@pytest.mark.parametrize("after", ["", "relu", "sum, relu"])
def test_in_place(
    shape: Shape, layout: Layout, setting: BatchNormSetting, most: int, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statistics too, as in a learner's local tasks."""
    monkeypatch.setattr(batch_norm, "MOST_OF_A_BLOCK", most)
    x = Tensor(shape, np.dtype(np.float32), layout)
    setting = replace(setting, relu="relu" in after, sum="sum" in after)
    apart, shared = received_from(x, setting), received_from(x, setting, shared=True)
    assert apart.keys() == shared.keys()
    if "sum" not in after:
        apart.pop("addend_gradient")
    for role, value in apart.items():
        np.testing.assert_array_equal(shared[role], value, err_msg=role)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("broken", ["weights", "bias", "output_gradient"])
@pytest.mark.parametrize("layout", Layout)
def test_what_is_not_finite_passes_the_relu_as_it_passes_one_of_its_own(
    layout: Layout, broken: str, value: float
) -> None:
    x, setting = Tensor((3, 20, 4, 6), np.dtype(np.float32), layout), SETTINGS[0]
    gradient = draw(*x.shape, dtype=np.float32, seed=1)
    if broken == "output_gradient":
        flat = np.argmin(received_from(x, setting)["output"])
        gradient.reshape(-1)[flat] = value
    options: dict[str, Any] = {"broken": None if broken == "output_gradient" else (broken, value)}
    plain = received_from(x, setting, gradient=gradient, **options)
    with np.errstate(invalid="ignore"):
        of_relu = gradient * np.where(plain["output"] <= 0, 0, 1).astype(np.float32)
    expected = received_from(x, setting, gradient=of_relu, **options)
    received = received_from(x, replace(setting, relu=True), gradient=gradient, **options)
    assert not all(np.isfinite(each).all() for each in received.values())
    for role, each in expected.items():
        after = np.maximum(each, 0) if role in ("output", "tested") else each
        np.testing.assert_array_equal(received[role], after, err_msg=role)


@every_setting
@every_shape
def test_where_nothing_upstream_trains(shape: Shape, layout: Layout, setting: BatchNormSetting) -> None:
    x, setting = Tensor(shape, np.dtype(np.float32), layout), replace(setting, relu=True)
    with_it, without = received_from(x, setting), received_from(x, setting, dx=False)
    assert np.isnan(without.pop("input_gradient")).all()
    for role, value in without.items():
        np.testing.assert_array_equal(value, with_it[role], err_msg=role)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("offset", [100.0, -1000.0])
def test_inputs_far_from_zero_in_several_parts(layout: Layout, offset: float) -> None:
    x, setting = Tensor((8, 3, 40, 40), np.dtype(np.float32), layout), BatchNormSetting(1e-5, 0.0, bias=False)
    received, expected = (
        received_from(x, setting, offset=offset),
        execute_all(x, setting, reference=True, offset=offset),
    )
    variance = expected["running_variance_next"]
    np.testing.assert_allclose(received["running_variance_next"], variance, rtol=1e-6)
    np.testing.assert_allclose(received["running_mean_next"], expected["running_mean_next"], rtol=1e-7)
    for role in ("output", "input_gradient"):  # as exact as a mean in single precision
        np.testing.assert_allclose(received[role], expected[role], rtol=0, atol=abs(offset) * 2e-7, err_msg=role)


def test_one_value_far_from_the_others() -> None:
    """Even where the first value, from which the others are counted, is that one."""
    for place in (0, 70):
        values = draw(600, 2, dtype=np.float32)
        values[place, 0] = 1e4
        x, setting = Tensor(values.shape, np.dtype(np.float32)), BatchNormSetting(1e-5, 0.0, bias=False)
        buffers = {"input0": values, "output": np.full_like(values, np.nan), "weights": np.ones(2, np.float32)}
        for name in setting.observed:
            buffers |= {name: np.zeros(2, np.float32), f"{name}_next": np.zeros(2, np.float32)}
        with fake_cuda():
            training = Cuda(np.float32).prepare(BatchNormTraining(x, x, setting))
            buffers["kept"] = np.zeros(training.kept, np.uint8)
            execute(training, buffers)
        wide = values.astype(np.float64)
        np.testing.assert_allclose(buffers["running_mean_next"], wide.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(buffers["running_variance_next"], wide.var(axis=0, ddof=1), rtol=1e-6)


def test_powers_of_two() -> None:
    assert [launch.power_of_two(value) for value in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_blocks_have_every_value_once(data: st.DataObject) -> None:
    """The division among blocks, as `walk` of sources/channels.cu follows it."""
    dimensions = data.draw(st.integers(2, 5))
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 4, 5, 12])) for _ in range(dimensions))
    layout = data.draw(st.sampled_from(Layout)) if dimensions == 4 else Layout.PLAIN
    axis = data.draw(st.integers(1, dimensions - 1))
    variable = shape[axis : axis + data.draw(st.integers(1, dimensions - axis))]
    x, grid = Tensor(shape, np.dtype(np.float32), layout), channels.GRID
    try:
        channels.GRID = data.draw(st.sampled_from([1, 16, grid]))
        division = Channels(x, axis, variable, whole=data.draw(st.booleans()))
    finally:
        channels.GRID = grid
    count, values, width, parts, part, *_ = division._structure.values.tolist()
    assert count * division.channels == np.prod(variable)
    assert count * values * division.channels * division.values == x.elements
    assert 0 <= parts * part - values < part
    assert part % (division.threads // width) == 0
    places, numbers = of_runs(division)
    lie = np.empty(x.elements, np.int64)
    lie[places] = numbers
    assert len(np.unique(places)) == x.elements
    own = np.arange(np.prod(variable)).reshape([*variable, *[1] * (dimensions - axis - len(variable))])
    memory = np.broadcast_to(own, shape)
    if layout is Layout.CHANNELS_LAST:
        memory = memory.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(lie, memory.ravel())


def test_variables_by_example_and_place_are_refused_where_channels_lie_last() -> None:
    x = Tensor((2, 3, 4, 5), np.dtype(np.float32), Layout.CHANNELS_LAST)
    assert Channels(Tensor(x.shape, x.dtype), 0, x.shape).count == 120
    with pytest.raises(ConfigurationError, match=r"at most two runs of axes in memory. Received: axis=0"):
        Channels(x, 0, x.shape)


def test_a_tensor_with_wide_positions_is_not_reduced_by_blocks_alone() -> None:
    """One whose positions need 64 bits has several blocks for a channel."""
    small, large = ((8, launch.LEAST_WIDE // 8 - less) for less in (1, 0))
    assert batch_norm._whole(Tensor(small, np.dtype(np.float32))) is not None
    assert batch_norm._whole(Tensor(large, np.dtype(np.float32))) is None
