from __future__ import annotations

import math

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, SystemConf
from crossbow.kernels import why_not_compiled
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss, SoftMaxLossGradient, Values
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, LabelRange
from tests.support import KERNELS, training

P = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.25, 0.25, 0.5]])
LABELS = np.array([0, 0, 2], np.int32)


def test_what_it_is() -> None:
    assert SoftMaxLoss.is_loss
    assert SoftMaxLoss.takes_labels
    assert SoftMaxLoss.gradient_past is SoftMax
    assert SoftMaxLoss().gradient() == SoftMaxLossGradient()
    assert SoftMaxLoss().output_shape((8, 10)) == (1,)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match=r"of shape \(N, classes\) or \(N, classes, …\). Received: \(8,\)"):
        SoftMaxLoss().output_shape((8,))
    assert SoftMaxLoss().output_shape((8, 10, 4, 5)) == (1,)


MAP = np.array([[[0.5, 0.25], [0.5, 0.75]], [[0.125, 1.0], [0.875, 0.0]]])
"""Two examples, two classes, two places."""
MAP_LABELS = np.array([[0, 1], [9, 0]], np.int32)
DEVICES = pytest.mark.parametrize(
    "device",
    [
        "reference",
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(
                why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}"
            ),
        ),
    ],
)


@DEVICES
@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 1, 2, 1)])
@pytest.mark.parametrize(
    ("normalisation", "divisor", "of_one_example"), [("batch", 2, 1), ("full", 4, 2), ("valid", 3, 2), ("none", 1, 1)]
)
def test_maps_of_labels(
    normalisation: str, divisor: int, of_one_example: int, shape: tuple[int, ...], device: str
) -> None:
    """Three labels that count, of four, in two examples; then the first example only, with two of two."""
    loss = SoftMaxLoss(ignored_label=9, normalisation=normalisation)
    inputs = [MAP.reshape(shape), MAP_LABELS.reshape(shape[:1] + shape[2:])]
    run = run_operator(loss, inputs, device=device)
    total = -math.log(0.5) - math.log(0.75) - math.log(1.0)
    assert run.outputs[0].item() == pytest.approx(total / divisor)
    expected = np.array([[[-0.5, 0.25], [0.5, -0.25]], [[0, 0], [0, 0]]]) / divisor
    np.testing.assert_allclose(run.input_gradients[0].reshape(2, 2, 2), expected, rtol=1e-6)
    padded = run_operator(loss, inputs, device=device, examples=1)
    assert padded.outputs[0].item() == pytest.approx(total / of_one_example)
    np.testing.assert_allclose(padded.input_gradients[0] * of_one_example, run.input_gradients[0] * divisor, rtol=1e-6)


@pytest.mark.parametrize(("normalisation", "count"), [("batch", 2.0), ("full", 4.0), ("valid", 3.0), ("none", 1.0)])
def test_what_a_batch_of_maps_counts(normalisation: str, count: float) -> None:
    assert SoftMaxLoss(ignored_label=9, normalisation=normalisation).counts(MAP_LABELS) == count


def test_one_label_an_example_where_the_map_has_one_place() -> None:
    p = P.reshape(3, 3, 1, 1)
    SoftMaxLoss().check_labels(LabelRange((3,), True, 0, 2), p.shape)
    runs = [run_operator(SoftMaxLoss(), [p, labels]) for labels in (LABELS, LABELS.reshape(3, 1, 1))]
    assert runs[0].outputs[0] == runs[1].outputs[0] == run_operator(SoftMaxLoss(), [P, LABELS]).outputs[0]


@pytest.mark.parametrize("shape", [(8,), (8, 3), (8, 3, 4, 1), (8, 4, 3)])
def test_labels_of_another_shape_than_the_map(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected class labels of shape \(8, 3, 4\), from 0 to 9. Received: classes"):
        SoftMaxLoss().check_labels(LabelRange(shape, True, 0, 9), (8, 10, 3, 4))


@pytest.mark.parametrize("axis", [1, 2, -1, -2])
def test_the_softmax_before_a_map_is_over_axis_1(axis: int) -> None:
    if axis in (1, -2):
        SoftMaxLoss().check_producer(SoftMax(axis=axis), (8, 10, 3))
    else:
        with pytest.raises(ValueError, match=f"probabilities of a SoftMax over axis 1. Received: axis={axis}"):
            SoftMaxLoss().check_producer(SoftMax(axis=axis), (8, 10, 3))


def test_numbers_by_hand() -> None:
    run = run_operator(SoftMaxLoss(), [P, LABELS], dtype=np.float64)
    # −log ½ = log 2, −log ⅛ = 3 log 2, −log ½ = log 2
    np.testing.assert_allclose(run.outputs[0], [5 * math.log(2) / 3], rtol=1e-15)
    expected = np.array([[-0.5, 0.25, 0.25], [-0.875, 0.75, 0.125], [0.25, 0.25, -0.5]]) / 3
    np.testing.assert_allclose(run.input_gradients[0], expected, rtol=1e-15)


@pytest.mark.parametrize(("normalisation", "divisor"), [("batch", 3), ("full", 3), ("valid", 2), ("none", 1)])
def test_normalisation_with_an_ignored_label(normalisation: str, divisor: int) -> None:
    loss = SoftMaxLoss(ignored_label=2, normalisation=normalisation)
    run = run_operator(loss, [P, LABELS], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [4 * math.log(2) / divisor], rtol=1e-15)
    expected = np.array([[-0.5, 0.25, 0.25], [-0.875, 0.75, 0.125], [0, 0, 0]]) / divisor
    np.testing.assert_allclose(run.input_gradients[0], expected, rtol=1e-15)


def test_an_ignored_label_need_not_be_a_class_and_may_be_all_there_is() -> None:
    labels = np.array([255, -1, -1], np.int32)
    run = run_operator(SoftMaxLoss(ignored_label=-1), [P, np.array([-1, 1, -1], np.int32)], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [-math.log(0.75) / 3], rtol=1e-15)
    labels[0] = -1
    run = run_operator(SoftMaxLoss(ignored_label=-1, normalisation="valid"), [P, labels])
    assert run.outputs[0].item() == 0
    assert not run.input_gradients[0].any()


@pytest.mark.parametrize("normalisation", ["batch", "valid"])
def test_padding_does_not_count(normalisation: str) -> None:
    loss = SoftMaxLoss(normalisation=normalisation)
    padded = run_operator(loss, [P, LABELS], examples=2, dtype=np.float64)
    short = run_operator(loss, [P[:2], LABELS[:2]], dtype=np.float64)
    np.testing.assert_array_equal(padded.outputs[0], short.outputs[0])
    np.testing.assert_array_equal(padded.input_gradients[0][:2], short.input_gradients[0])
    assert not padded.input_gradients[0][2:].any()


def test_a_probability_of_zero_costs_much_but_not_infinitely_much() -> None:
    run = run_operator(SoftMaxLoss(), [np.array([[1.0, 0.0]]), np.array([1], np.int32)])
    assert run.outputs[0].item() == pytest.approx(-math.log(np.finfo(np.float32).tiny))
    np.testing.assert_array_equal(run.input_gradients[0], [[1, -1]])


@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
@pytest.mark.parametrize("ignored_label", [None, 2])
def test_gradients_with_respect_to_the_logits(normalisation: str, ignored_label: int | None) -> None:
    labels = np.array([0, 2, 3, 2, 1], np.int32)
    loss = SoftMaxLoss(normalisation=normalisation, ignored_label=ignored_label)
    check_gradients(loss, [(5, 4), (5,)], labels=labels)


@pytest.mark.parametrize(
    ("labels", "ignored_label", "good"),
    [
        (LabelRange((8,), True, 0, 9), None, True),
        (LabelRange((8,), True, 0, 10), None, False),
        (LabelRange((8,), True, -1, 9), None, False),
        (LabelRange((8,), True, -1, 9), -1, True),
        (LabelRange((8,), True, 0, 255), 255, True),
        (LabelRange((8,), True, -1, 9), 255, False),
        (LabelRange((8, 1), True, 0, 9), None, False),
        (LabelRange((8,), False, 0, 9), None, False),
    ],
)
def test_labels(labels: LabelRange, ignored_label: int | None, good: bool) -> None:
    loss = SoftMaxLoss(ignored_label=ignored_label)
    if good:
        loss.check_labels(labels, (8, 10))
    else:
        with pytest.raises(ValueError, match=r"expected class labels of shape \(8,\), from 0 to 9.*Received: "):
            loss.check_labels(labels, (8, 10))


def test_bad_configurations() -> None:
    with pytest.raises(ConfigurationError, match="normalisation must be one of 'batch', 'full', 'valid', 'none'"):
        SoftMaxLoss(normalisation="mean")
    with pytest.raises(ConfigurationError, match="ignored_label must be an integer or None"):
        SoftMaxLoss(ignored_label=1.5)  # type: ignore[arg-type]


# Behind a SoftMax, in a dataflow: from the logits.


def context_of(logits: list[list[float]], labels: list[int], kernels: str, **system: object) -> ExecutionContext:
    """One whose first loss is that of these logits: the identity of them."""
    values = np.array(logits, np.float32)
    data = Dataset((values, np.array(labels)), (values, np.array(labels)), number_of_classes=values.shape[1])
    identity = InnerProduct(
        number_of_outputs=values.shape[1], weight_initialiser=Values(np.eye(values.shape[1], dtype=np.float32))
    )
    settings = SystemConf(kernels=kernels, learners_per_device=1, threads_per_learner=1, **system)  # type: ignore[arg-type]
    return ExecutionContext([training(identity)], data=data, model=ModelConf(batch_size=len(labels)), system=settings)


LOGITS = [([[0.0, 200.0]], [0], 200.0), ([[0.0, 200.0]], [1], 0.0), ([[0.0, 90.0, 90.0]], [0], 90 + np.log(2))]


@KERNELS
@pytest.mark.parametrize(("logits", "labels", "expected"), LOGITS)
def test_losses_are_right_where_probabilities_are_not(
    kernels: str, logits: list[list[float]], labels: list[int], expected: float
) -> None:
    with context_of(logits, labels, kernels) as context:
        assert "softmax_loss_forward of logits" in context.describe()
        assert context.test().loss == pytest.approx(expected, rel=1e-6, abs=1e-30)


@KERNELS
def test_small_losses_keep_their_digits(kernels: str) -> None:
    """A probability of almost 1 is rounded to it; what is missing is the loss."""
    with context_of([[0.0, 25.0]], [1], kernels) as context:
        assert context.test().loss == pytest.approx(np.log1p(np.exp(-25.0)), rel=1e-6)


@KERNELS
def test_infinite_logits_give_no_finite_loss(kernels: str) -> None:
    data = np.array([[0.0, 3e38]], np.float32)
    with context_of(data.tolist(), [0], kernels) as context:
        assert context.test().loss == pytest.approx(3e38, rel=1e-6)
