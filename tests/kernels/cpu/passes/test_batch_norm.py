"""Batch normalisation with the ReLU behind it in the same kernels, and the pass over the running statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormSetting, BatchNormTraining
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.running import FLOAT32, ONEDNN, REFERENCE, Numbers, draw, execute, memory, tensor

SHAPES: list[Shape] = [
    (9, 5),
    (16, 33),
    (4, 3, 7),
    (3, 5, 4, 6),
    (2, 16, 5, 5),
    (2, 33, 4, 3),
    (5, 1, 3, 3),
    (2, 4, 2, 3, 2),
    (2, 3, 2, 2, 3, 2),
]
SETTINGS = [
    BatchNormSetting(1e-5, 0.9, bias=True),
    BatchNormSetting(0.1, 0.9, bias=False),
    BatchNormSetting(1e-3, None, bias=True),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def vectors(channels: int, setting: BatchNormSetting) -> dict[str, Numbers]:
    """Variables and statistics, of both signs where they may be."""
    values = {name: draw((channels,), seed) for seed, name in enumerate((*setting.parameters, *setting.observed), 20)}
    values["running_variance"] = np.abs(values["running_variance"]) + np.float32(0.5)
    if "count" in values:
        values["count"] = np.full(1, 3, np.float32)
    return values


def execute_all(
    library: Any,
    x: Tensor,
    setting: BatchNormSetting,
    *,
    dx: bool = True,
    given: Numbers | None = None,
    gradient: Numbers | None = None,
    broken: tuple[str, float] | None = None,
) -> dict[str, Numbers]:
    """Training, the gradient and inference on one input: everything that they write.

    given: the input. broken: a parameter, and what its first channel has.
    """
    given = draw(x.shape) if given is None else given
    gradient = draw(x.shape, 1) if gradient is None else gradient
    native, channels = library is ONEDNN, x.shape[1]
    values = {name: value.astype(x.dtype) for name, value in vectors(channels, setting).items()}
    if broken is not None:
        values[broken[0]][0] = broken[1]
    buffers = {"input0": memory(x, given), "output_gradient": memory(x, gradient), **values}
    for name in setting.parameters:
        buffers[f"{name}_gradient"] = np.full(channels, np.nan, x.dtype)
    for name in setting.observed:
        buffers[f"{name}_next"] = np.full_like(values[name], np.nan)
    buffers["output"], buffers["input_gradient"] = memory(x), memory(x)
    training = library.prepare(BatchNormTraining(x, x, setting))
    buffers["kept"] = aligned_zeros(training.kept)
    execute(training, buffers, native=native)
    execute(library.prepare(BatchNormBackward(x, x, x if dx else None, setting)), buffers, native=native)
    written = {role: value.copy() for role, value in buffers.items() if role.endswith(("_gradient", "_next", "output"))}
    buffers["output"][...] = np.nan
    execute(library.prepare(BatchNormInference(x, x, setting)), buffers, native=native)
    for role, value in values.items():
        np.testing.assert_array_equal(buffers[role], value, err_msg=role)
    return {**written, "tested": buffers["output"]}


def exact(x: Tensor) -> Tensor:
    return Tensor(x.shape, np.dtype(np.float64))


def assert_close(received: dict[str, Numbers], expected: dict[str, Numbers]) -> None:
    assert received.keys() == expected.keys()
    for role, value in expected.items():
        scale = max(1.0, float(np.nanmax(np.abs(value), initial=0)))
        np.testing.assert_allclose(received[role], value, rtol=0, atol=5e-6 * scale, err_msg=role)


@every_setting
@every_shape
def test_with_the_relu_behind(shape: Shape, setting: BatchNormSetting) -> None:
    x, setting = tensor(shape), replace(setting, relu=True)
    received, expected = execute_all(ONEDNN, x, setting), execute_all(REFERENCE, exact(x), setting)
    assert_close(received, expected)
    for role in ("output", "tested"):
        assert received[role].min() == 0  # some were negative
        assert received[role].max() > 0


@every_setting
@every_shape
def test_the_reference_with_the_relu_behind_is_a_relu_behind(shape: Shape, setting: BatchNormSetting) -> None:
    x = exact(tensor(shape))
    plain, fused = execute_all(REFERENCE, x, setting), execute_all(REFERENCE, x, replace(setting, relu=True))
    for role in ("output", "tested"):
        np.testing.assert_array_equal(fused[role], np.maximum(plain[role], 0))
    behind = np.where(fused["output"] > 0, draw(shape, 1), 0)
    expected = execute_all(REFERENCE, x, setting, gradient=behind)
    for role in ("input_gradient", *(f"{name}_gradient" for name in setting.parameters)):
        np.testing.assert_allclose(fused[role], expected[role], rtol=1e-12, atol=1e-12, err_msg=role)
    for name in setting.observed:
        np.testing.assert_array_equal(fused[f"{name}_next"], plain[f"{name}_next"])


@pytest.mark.parametrize("shape", [(64, 32), (4, 20, 5, 6)], ids=str)
def test_channels_with_means_far_apart(shape: Shape) -> None:
    x, setting = tensor(shape), SETTINGS[0]
    means = 1e6 * np.arange(shape[1], dtype=np.float32).reshape(-1, *[1] * (len(shape) - 2))
    given = draw(shape) + means
    received = execute_all(ONEDNN, x, setting, given=given)["running_variance_next"]
    expected = execute_all(REFERENCE, exact(x), setting, given=given)["running_variance_next"]
    np.testing.assert_allclose(received, expected, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("broken", ["weights", "bias", "output_gradient"])
@pytest.mark.parametrize("library", [ONEDNN, REFERENCE], ids=["onednn", "reference"])
@pytest.mark.parametrize("shape", [(3, 20, 4, 6), (9, 5), (4, 3, 70)], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_passes_the_relu_as_it_passes_one_of_its_own(
    shape: Shape, library: Any, broken: str, value: float
) -> None:
    x, setting, gradient = tensor(shape), SETTINGS[0], draw(shape, 1)
    if broken == "output_gradient":
        flat = np.argmin(execute_all(library, x, setting)["output"])
        gradient.reshape(-1)[flat] = value
    options: dict[str, Any] = {"broken": None if broken == "output_gradient" else (broken, value)}
    plain = execute_all(library, x, setting, gradient=gradient, **options)
    of_relu = gradient * np.where(plain["output"] <= 0, 0, 1).astype(np.float32)
    expected = execute_all(library, x, setting, gradient=of_relu, **options)
    received = execute_all(library, x, replace(setting, relu=True), gradient=gradient, **options)
    assert not all(np.isfinite(each).all() for each in received.values())
    assert np.array_equal(expected.pop("output_gradient"), of_relu, equal_nan=True)  # an input
    for role, each in expected.items():
        after = np.maximum(each, 0) if role in ("output", "tested") else each
        np.testing.assert_array_equal(received[role], after, err_msg=role)


@every_setting
@every_shape
@pytest.mark.parametrize("relu", [False, True])
def test_where_nothing_upstream_trains(shape: Shape, setting: BatchNormSetting, relu: bool) -> None:
    """The gradient of the input is then neither asked for nor written, and the others are what they are with it."""
    x, setting = tensor(shape), replace(setting, relu=relu)
    with_it, without = execute_all(ONEDNN, x, setting), execute_all(ONEDNN, x, setting, dx=False)
    assert np.isnan(without.pop("input_gradient")).all()
    for role, value in without.items():
        np.testing.assert_array_equal(value, with_it[role], err_msg=role)


@every_setting
@pytest.mark.parametrize("relu", [False, True])
def test_images_whose_channels_are_not_last(setting: BatchNormSetting, relu: bool) -> None:
    """No network has them, but the kernels accept them."""
    x, setting = Tensor((3, 20, 4, 6), FLOAT32, Layout.PLAIN), replace(setting, relu=relu)
    assert_close(execute_all(ONEDNN, x, setting), execute_all(REFERENCE, exact(x), setting))


@every_setting
@pytest.mark.parametrize("library", [ONEDNN, REFERENCE], ids=["onednn", "reference"])
def test_statistics_may_be_updated_where_they_lie(library: Any, setting: BatchNormSetting) -> None:
    """As in a learner's local tasks."""
    shape, native = (3, 20, 4, 6), library is ONEDNN
    x = tensor(shape) if native else exact(tensor(shape))
    results = []
    for shared in (False, True):
        buffers = {"input0": memory(x, draw(shape)), "output": memory(x)}
        buffers |= {name: value.astype(x.dtype) for name, value in vectors(20, setting).items()}
        for name in setting.observed:
            buffers[f"{name}_next"] = buffers[name] if shared else np.full_like(buffers[name], np.nan)
        training = library.prepare(BatchNormTraining(x, x, setting))
        buffers["kept"] = aligned_zeros(training.kept)
        execute(training, buffers, native=native)
        results.append({name: buffers[f"{name}_next"] for name in setting.observed})
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value)


def test_the_sums_of_a_large_channel() -> None:
    """Half a million values a channel, far from 0."""
    x = tensor((8, 3, 256, 256))
    values = draw(x.shape) + np.float32(50)
    setting = BatchNormSetting(1e-5, 0.0, bias=False)
    buffers = {"input0": memory(x, values), "output": memory(x), "weights": np.ones(3, np.float32)}
    for name in setting.observed:
        buffers |= {name: np.zeros(3, np.float32), f"{name}_next": np.zeros(3, np.float32)}
    training = ONEDNN.prepare(BatchNormTraining(x, x, setting))
    buffers["kept"] = aligned_zeros(training.kept)
    execute(training, buffers)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(buffers["running_mean_next"], wide.mean(axis=(0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(buffers["running_variance_next"], wide.var(axis=(0, 2, 3), ddof=1), rtol=1e-3)


@pytest.mark.parametrize(
    "x",
    [tensor((9, 5)), tensor((3, 20, 4, 6)), tensor((4, 3, 70)), Tensor((3, 20, 4, 6), FLOAT32, Layout.PLAIN)],
    ids=str,
)
def test_channels_that_are_far_from_each_other(x: Tensor) -> None:
    """Deviations are from a number of the same channel: from another's, float64 would lose half of its digits."""
    channels = x.shape[1]
    far = np.where(np.arange(channels) % 2, 1e7, -1e7) * np.arange(channels)
    values = (draw(x.shape) * 100 + far.reshape(1, channels, *(1,) * len(x.shape[2:]))).astype(np.float32)
    setting = BatchNormSetting(1e-5, 0.0, bias=False)
    buffers = {"input0": memory(x, values), "output": memory(x), "weights": np.ones(channels, np.float32)}
    for name in setting.observed:
        buffers |= {name: np.zeros(channels, np.float32), f"{name}_next": np.zeros(channels, np.float32)}
    training = ONEDNN.prepare(BatchNormTraining(x, x, setting))
    buffers["kept"] = aligned_zeros(training.kept)
    execute(training, buffers)
    wide, axes = values.astype(np.float64), (0, *range(2, len(x.shape)))
    np.testing.assert_allclose(buffers["running_mean_next"], wide.mean(axes), rtol=1e-6)
    np.testing.assert_allclose(buffers["running_variance_next"], wide.var(axes, ddof=1), rtol=1e-5)
