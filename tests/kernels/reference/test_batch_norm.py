"""Batch normalisation and its gradient against formulas in float64, with running statistics worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormSetting, BatchNormTraining
from crossbow.types import Shape
from tests.kernels.reference.running import DTYPES, Numbers, draw, nan, run, tensor

SHAPES: list[Shape] = [(7, 3), (4, 3, 5), (2, 3, 4, 5), (1, 3)]


def train(x: Numbers, setting: BatchNormSetting, **given: Numbers) -> dict[str, Numbers]:
    """All buffers after the kernel has run on x."""
    dtype, channels = x.dtype, x.shape[1]
    ones = np.ones(channels, dtype)
    buffers = {"weights": ones, "bias": 0 * ones, "running_mean": 0 * ones, "running_variance": ones, **given}
    t = tensor(x.shape, dtype)
    kernel = Reference(dtype).prepare(BatchNormTraining(t, t, setting))
    buffers |= {role: nan((1 if "count" in role else channels,), dtype) for role in kernel.writes if "next" in role}
    buffers |= {"input0": x, "output": nan(x.shape, dtype), "kept": np.zeros(kernel.kept, np.uint8)}
    run(kernel, **buffers)
    return buffers


def whitened(x: Numbers, epsilon: float) -> Numbers:
    """Channel by channel, from sums of powers."""
    result = np.empty(x.shape)
    for channel in range(x.shape[1]):
        values = x[:, channel].astype(np.float64)
        mean = values.sum() / values.size
        variance = ((values - mean) ** 2).sum() / values.size
        result[:, channel] = (values - mean) * (variance + epsilon) ** -0.5
    return result


def along(vector: Numbers, x: Numbers) -> Numbers:
    return vector.reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_training_normalises_by_the_batch(shape: Shape, bias: bool, dtype: Any) -> None:
    x, weights, offset = draw(*shape, dtype=dtype), draw(3, dtype=dtype, seed=1), draw(3, dtype=dtype, seed=2)
    done = train(x, BatchNormSetting(0.1, 0.9, bias), weights=weights, bias=offset)
    expected = whitened(x, 0.1) * along(weights, x) + (along(offset, x) if bias else 0)
    tolerance = 1e-13 if dtype is np.float64 else 2e-6
    np.testing.assert_allclose(done["output"], expected, rtol=tolerance, atol=tolerance)


def test_running_statistics_by_hand() -> None:
    """Means 2 and 5; unbiased variances 2 and 8; a quarter of each is new."""
    x = np.array([[1.0, 3], [3, 7]])
    statistics = {"running_mean": np.array([10.0, 20]), "running_variance": np.array([4.0, 0])}
    done = train(x, BatchNormSetting(1e-5, 0.75, bias=True), **statistics)
    np.testing.assert_allclose(done["running_mean_next"], [8, 16.25])
    np.testing.assert_allclose(done["running_variance_next"], [3.5, 2])
    done = train(x, BatchNormSetting(1e-5, None, bias=True), **statistics, count=np.array([3.0]))
    np.testing.assert_allclose(done["running_mean_next"], [8, 16.25])  # the fourth of four
    assert done["count_next"] == 4
    single = train(x[:1], BatchNormSetting(1e-5, 0.0, bias=True), **statistics)
    np.testing.assert_array_equal(single["running_variance_next"], [0, 0])  # of one value: nothing is divided by 0


def test_statistics_of_a_large_mean_are_exact() -> None:
    x = (1e4 + draw(64, 2, 32, 32)).astype(np.float32)
    done = train(x, BatchNormSetting(1e-5, 0.0, bias=True))
    values = x.astype(np.float64).transpose(1, 0, 2, 3).reshape(2, -1)
    np.testing.assert_allclose(done["running_mean_next"], values.mean(axis=1), rtol=1e-7)
    np.testing.assert_allclose(done["running_variance_next"], values.var(axis=1, ddof=1), rtol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_inference_uses_the_running_statistics(bias: bool) -> None:
    x, setting = draw(2, 3, 4, 5), BatchNormSetting(0.1, 0.9, bias)
    vectors = {name: draw(3, seed=seed) for seed, name in enumerate(("weights", "bias", "running_mean"), 1)}
    vectors["running_variance"] = np.array([0.4, 3.9, 15.9])
    t, y = tensor(x.shape), nan(x.shape)
    run(Reference(np.float64).prepare(BatchNormInference(t, t, setting)), input0=x, output=y, **vectors)
    deviation = np.sqrt([0.5, 4, 16])
    scale, mean, offset = (
        along(v, x) for v in (vectors["weights"] / deviation, vectors["running_mean"], vectors["bias"])
    )
    np.testing.assert_allclose(y, scale * x - scale * mean + (offset if bias else 0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_differences(bias: bool, relu: bool) -> None:
    """Of Σ y · dy, in every element of x and every variable."""
    setting, x, dy = BatchNormSetting(0.1, 0.9, bias, relu), draw(3, 2, 4), draw(3, 2, 4, seed=3)
    given = {"weights": draw(2, seed=1), "bias": draw(2, seed=2)}
    t, done = tensor(x.shape), train(x, setting, **given)
    own = {f"{name}_gradient": nan((2,)) for name in setting.parameters}
    kernel = Reference(np.float64).prepare(BatchNormBackward(t, t, t, setting))
    run(kernel, **given, input0=x, output_gradient=dy, kept=done["kept"], input_gradient=(dx := nan(x.shape)), **own)

    def difference(name: str, place: tuple[int, ...]) -> float:
        results = []
        for step in (-1e-6, 1e-6):
            moved = {"input0": x.copy(), **{each: value.copy() for each, value in given.items()}}
            moved[name][place] += step
            results.append((train(moved.pop("input0"), setting, **moved)["output"] * dy).sum())
        return float(results[1] - results[0]) / 2e-6

    expected = [difference("input0", place) for place in np.ndindex(*x.shape)]
    np.testing.assert_allclose(dx.reshape(-1), expected, rtol=0, atol=1e-7)
    for name in setting.parameters:
        expected = [difference(name, (channel,)) for channel in range(2)]
        np.testing.assert_allclose(own[f"{name}_gradient"], expected, rtol=0, atol=1e-7)
