"""A loss of numbers that are none is none: otherwise a run that diverged would look healthy."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels import why_not_onednn
from crossbow.ops import LRN, Concat, ElementWiseOp, EuclideanLoss, Kernel, LogSoftMax, Scale, SoftMax, SoftMaxLoss
from crossbow.testing.arguments import Numbers, library_of
from crossbow.testing.bench import Bench
from crossbow.types import Phase, Shape

fast = pytest.mark.skipif(why_not_onednn() is not None, reason=f"no oneDNN: {why_not_onednn()}")
FLOAT32 = np.dtype(np.float32)


def forward(kernel: Kernel, x: Numbers, labels: Numbers | None, device: str) -> Numbers:
    """As `run_operator`, which refuses such an input."""
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [x.shape], labels)
    bench.load([x], {}, task=0, examples=len(x))
    return bench.forward()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize(
    ("kernel", "labels"),
    [
        (SoftMaxLoss(), np.array([0, 1], np.int32)),
        (EuclideanLoss(), np.zeros((2, 2), np.float32)),
        (SoftMax(), None),
        (LogSoftMax(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_losses_pass_it_on(kernel: Kernel, labels: Numbers | None, device: str) -> None:
    x = np.array([[0.5, 0.5], [np.nan, np.nan]], np.float32)
    output = forward(kernel, x, labels, device)
    assert np.isnan(output[-1]).all()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("shape", [(2, 40), (2, 3, 4, 5)])
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("kernel", [*(ElementWiseOp(type=t) for t in ("sum", "product", "max")), Concat()], ids=str)
@pytest.mark.parametrize("phase", Phase)
def test_one_among_several_inputs_is_in_the_output(
    kernel: Kernel, position: int, shape: Shape, phase: Phase, device: str
) -> None:
    inputs = [np.ones(shape, np.float32) for _ in range(3)]
    inputs[position][0, 1] = np.nan
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [shape] * 3, None, phase=phase)
    bench.load(inputs, {}, task=0, examples=2)
    output = bench.forward()
    place = position * shape[1] + 1 if isinstance(kernel, Concat) else 1
    assert np.isnan(output[0, place]).all()
    output[0, place] = 0
    assert not np.isnan(output).any()
    if phase is Phase.TRAIN:
        gradients, _ = bench.backward(np.ones(bench.site.output.shape, np.float32))
        passed_on = any(np.isnan(gradient).any() for gradient in gradients)
        assert passed_on == (kernel == ElementWiseOp(type="product"))


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("first", [True, False])
def test_the_gradient_of_a_largest_that_is_none_goes_to_the_first_such(first: bool, device: str) -> None:
    inputs = [np.full((1, 1), value, np.float32) for value in (1, np.nan if first else 2, np.nan)]
    bench = Bench(ElementWiseOp(type="max"), library_of(device, FLOAT32), FLOAT32, [(1, 1)] * 3, None)
    bench.load(inputs, {}, task=0, examples=1)
    assert np.isnan(bench.forward()).all()
    assert bench.backward(np.ones((1, 1), np.float32))[0] == ([0, 1, 0] if first else [0, 0, 1])


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", [LRN(), LRN(beta=0.5), LRN(region="within_channel"), Scale(bias=True)], ids=str)
def test_one_in_an_image_reaches_the_output_and_no_other_example(kernel: Kernel, value: float, device: str) -> None:
    x = np.ones((2, 16, 8, 8), np.float32)
    x[0, 3, 2, 2] = value
    bench = Bench(kernel, library_of(device, FLOAT32), FLOAT32, [x.shape], None)
    bench.load([x], bench.initial_variables({}), task=0, examples=2)
    with np.errstate(invalid="ignore"):
        output = bench.forward()
    assert not np.isfinite(output[0, 3, 2, 2])
    assert np.isfinite(output[1]).all()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_a_probability_of_zero_costs_a_finite_amount(device: str) -> None:
    loss = forward(SoftMaxLoss(), np.array([[1.0, 0.0]], np.float32), np.array([1], np.int32), device)
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), rel=1e-5)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_large_scores_do_not_overflow(device: str) -> None:
    output = forward(SoftMax(), np.array([[1e4, -1e4, 1e4, 0]], np.float32), None, device)
    np.testing.assert_allclose(output, [[0.5, 0, 0.5, 0]])
