"""Sums of many numbers, on one thread and on two: as exact as the reference kernels' however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.requests import PoolingForward, PoolingGeometry
from crossbow.ops import BatchNorm, Conv, InnerProduct, Pool
from crossbow.testing import run_operator
from crossbow.types import Phase, Shape
from tests.kernels.cpu.running import ONEDNN, Numbers, tensor

from crossbow.kernels.cpu.onednn import shared_library  # isort: skip - after the module that skips where it is not usable

EXACT = 4e-7
"""Largest error, relative to the largest result. PyTorch's float32 has 1e-8 to 3e-7 with these cases."""


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = shared_library.omp_get_max_threads()
    shared_library.omp_set_num_threads(request.param)
    yield request.param
    shared_library.omp_set_num_threads(before)


def error(received: Numbers, exact: Numbers) -> float:
    return float(np.max(np.abs(received - exact)) / np.max(np.abs(exact)))


def draw(shape: Shape, mean: float = 0, seed: int = 0) -> Numbers:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(shape, np.float32) + np.float32(mean)).astype(np.float32)


def over_channels(x: Numbers) -> dict[str, Any]:
    return {"axis": (0, *range(2, x.ndim)), "keepdims": True}


# The last ones: sorted, so that no block's mean is near the first number; one far number first; no vector is full.
NORMS: list[tuple[str, Shape, float]] = [
    ("many", (16, 16, 16, 16), 0),
    ("a stem", (4, 32, 56, 56), 0),
    ("photographs", (4, 3, 224, 224), 0),
    ("far from zero", (8, 1, 512, 512), 100),
    ("very far from zero", (32, 1, 64, 64), 1e4),
    ("one plane", (1, 1, 1024, 1024), 0),
    ("rows", (20_000, 24), 3),
    ("sequences", (16, 20, 700), 5),
    ("sorted", (8, 3, 64, 64), 0),
    ("outlier", (8, 3, 64, 64), 0),
    ("odd", (9, 33, 17, 13), 2),
    ("few", (3, 5, 2, 3), 2),
    ("wide", (40, 1100), 1),
]


@pytest.mark.parametrize(("name", "shape", "mean"), NORMS, ids=[name for name, *_ in NORMS])
def test_batch_norm(name: str, shape: Shape, mean: float) -> None:
    x, dy = draw(shape, mean), draw(shape, seed=1)
    if name == "sorted":
        x = np.sort(x.reshape(-1)).reshape(shape)
    elif name == "outlier":
        x[0, :, 0, 0] = 300
    weights, bias = draw(shape[1:2], 1, seed=2), draw(shape[1:2], seed=3)
    run = run_operator(
        BatchNorm(moving_average_fraction=0.0),
        [x],
        output_gradient=dy,
        variables={"weights": weights, "bias": bias},
        device="cpu",
    )
    wide, channels = x.astype(np.float64), over_channels(x)
    count = x.size // shape[1]
    average, variance = wide.mean(**channels), wide.var(**channels)
    # What cancels in a mean near 0 is as large as the deviations.
    scale = max(np.abs(average).max(), np.sqrt(variance).max() / 50)
    np.testing.assert_allclose(run.statistics["running_mean"], average.reshape(-1), rtol=0, atol=EXACT * scale)
    unbiased = (variance * (count / (count - 1))).reshape(-1)
    np.testing.assert_allclose(run.statistics["running_variance"], unbiased, rtol=EXACT)
    # The mean is rounded to float32 before it is subtracted, as in the reference: that is what is left of |x| / σ.
    inverse = 1 / np.sqrt(variance + 1e-5)
    rounded = average.astype(np.float32).astype(np.float64)
    normalised = (wide - rounded) * inverse
    factors = weights.reshape(average.shape).astype(np.float64)
    assert error(run.outputs[0], normalised * factors + bias.reshape(average.shape)) < EXACT
    total, along = dy.sum(dtype=np.float64, **channels), (dy * normalised).sum(**channels)
    assert error(run.variable_gradients["bias"], total.reshape(-1)) < EXACT
    assert error(run.variable_gradients["weights"], along.reshape(-1)) < EXACT
    gradient = (dy - total / count - normalised * along / count) * factors * inverse
    assert error(run.input_gradients[0], gradient) < EXACT


BIASES: list[tuple[str, Any, Shape, Shape]] = [
    ("convolution", Conv(number_of_outputs=4, kernel_size=1), (1, 2, 1024, 1024), (1, 4, 1024, 1024)),
    ("winograd", Conv(number_of_outputs=32, kernel_size=3, padding=1), (8, 16, 48, 48), (8, 32, 48, 48)),
    ("narrow", Conv(number_of_outputs=20, kernel_size=5), (16, 1, 44, 44), (16, 20, 40, 40)),
    ("inner product", InnerProduct(number_of_outputs=3), (65_536, 8), (65_536, 3)),
    ("few rows", InnerProduct(number_of_outputs=10), (8, 20), (8, 10)),
]


@pytest.mark.parametrize("kernel", BIASES, ids=[name for name, *_ in BIASES])
def test_gradients_of_biases(kernel: tuple[str, Any, Shape, Shape]) -> None:
    _, operator, shape, output = kernel
    dy = draw(output, seed=1)
    run = run_operator(operator, [draw(shape)], output_gradient=dy, device="cpu")
    exact = dy.sum(dtype=np.float64, **over_channels(dy)).reshape(-1)
    assert error(run.variable_gradients["bias"], exact) < EXACT


@pytest.mark.parametrize("shape", [(2, 2, 1024, 1024), (32, 64, 8, 8), (3, 33, 50, 41), (5, 7, 1, 9)], ids=str)
def test_averages_of_whole_images(shape: Shape) -> None:
    x = draw(shape, 1)
    run = run_operator(Pool(method="average", kernel_size=shape[2:]), [x], device="cpu")
    assert error(run.outputs[0], x.mean(axis=(2, 3), dtype=np.float64, keepdims=True)) < EXACT


def test_only_averages_of_whole_images_are_sums_of_our_own() -> None:
    x, y = tensor((2, 3, 8, 8)), tensor((2, 3, 1, 1))
    whole = PoolingGeometry((8, 8), method="average")
    assert "of whole images" in ONEDNN.prepare(PoolingForward(x, y, whole, Phase.TRAIN)).name
    for other in (
        PoolingGeometry((8, 8), method="max"),
        PoolingGeometry((4, 4), dilation=(2, 2), padding=((0, 1), (0, 1)), method="average"),
        PoolingGeometry((10, 10), padding=((1, 1), (1, 1)), method="average"),
    ):
        assert "of whole images" not in ONEDNN.prepare(PoolingForward(x, y, other, Phase.TRAIN)).name
