from __future__ import annotations

import math

import numpy as np
import pytest

from crossbow import Dataflow, Dataset, ExecutionContext, ModelConf, SubGraph, SystemConf
from crossbow.kernels import why_not_compiled
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss, SoftMaxLossGradient, Values
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, LabelRange
from tests.support import KERNELS, chain, training

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


# Label smoothing and class weights.


@DEVICES
def test_smoothed_labels_by_hand(device: str) -> None:
    """ε = ½ and two classes: the target of the label is ½ + ¼, that of the other class ¼."""
    run = run_operator(SoftMaxLoss(label_smoothing=0.5), [np.array([[0.25, 0.75]]), np.array([1])], device=device)
    assert run.outputs[0].item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    np.testing.assert_allclose(run.input_gradients[0], [[0.25 - 0.25, 0.75 - 0.75]], atol=1e-7)


@DEVICES
@pytest.mark.parametrize(("normalisation", "divisor"), [("batch", 3), ("full", 3), ("valid", 2.5), ("none", 1)])
def test_weighted_classes_by_hand(normalisation: str, divisor: float, device: str) -> None:
    """The labels 0, 0 and 2 weigh ½, ½ and 1½; with "valid" that is the divisor."""
    loss = SoftMaxLoss(class_weights=(0.5, 7, 1.5), normalisation=normalisation)
    run = run_operator(loss, [P, LABELS], device=device)
    # −½ log ½ − ½ log ⅛ − 1½ log ½ = (½ + 1½ + 1½) log 2
    assert run.outputs[0].item() == pytest.approx(3.5 * math.log(2) / divisor)
    rows = np.array([[-0.5, 0.25, 0.25], [-0.875, 0.75, 0.125], [0.25, 0.25, -0.5]])
    expected = rows * [[0.5], [0.5], [1.5]] / divisor
    np.testing.assert_allclose(run.input_gradients[0], expected, rtol=1e-6)


@DEVICES
def test_labels_without_weight_count_as_nothing(device: str) -> None:
    loss = SoftMaxLoss(class_weights=(0, 1, 0), normalisation="valid")
    run = run_operator(loss, [P, LABELS], device=device)
    assert run.outputs[0].item() == 0
    assert not run.input_gradients[0].any()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weights", [None, (0.5, 2.0, 0.0, 1.25)])
@pytest.mark.parametrize("ignored_label", [None, 2])
def test_valid_is_the_mean_of_pytorch(
    label_smoothing: float, class_weights: tuple[float, ...] | None, ignored_label: int | None
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    generator = np.random.default_rng(0)
    logits, labels = torch.tensor(generator.standard_normal((9, 4)), requires_grad=True), generator.integers(0, 4, 9)
    oracle = torch.nn.CrossEntropyLoss(
        weight=None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64),
        label_smoothing=label_smoothing,
        **({} if ignored_label is None else {"ignore_index": ignored_label}),
    )
    expected = oracle(logits, torch.tensor(labels))
    expected.backward()
    loss = SoftMaxLoss(
        label_smoothing=label_smoothing,
        class_weights=class_weights,
        ignored_label=ignored_label,
        normalisation="valid",
    )
    p = torch.softmax(logits, 1).detach().numpy()
    run = run_operator(loss, [p, labels.astype(np.int32)], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [expected.item()], rtol=1e-12)
    np.testing.assert_allclose(run.input_gradients[0], logits.grad.numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
@pytest.mark.parametrize("ignored_label", [None, 2])
def test_gradients_of_smoothed_and_weighted_labels(normalisation: str, ignored_label: int | None) -> None:
    labels = np.array([0, 2, 3, 2, 1], np.int32)
    loss = SoftMaxLoss(
        normalisation=normalisation,
        ignored_label=ignored_label,
        label_smoothing=0.25,
        class_weights=(0.5, 2.0, 0.25, 1.0),
    )
    check_gradients(loss, [(5, 4), (5,)], labels=labels)


def test_what_a_batch_of_weighted_labels_counts() -> None:
    weights = (0.5, 1.0, 4.0)
    assert SoftMaxLoss(class_weights=weights, normalisation="valid").counts(LABELS) == 5.0
    assert SoftMaxLoss(class_weights=weights, normalisation="valid", ignored_label=0).counts(LABELS) == 4.0
    assert SoftMaxLoss(class_weights=weights).counts(LABELS) == 3.0
    assert SoftMaxLoss(label_smoothing=0.5, normalisation="valid").counts(LABELS) == 3.0


def test_weights_may_be_an_array_or_a_list() -> None:
    expected = SoftMaxLoss(class_weights=(1.0, 2.0))
    assert SoftMaxLoss(class_weights=[1, 2]) == SoftMaxLoss(class_weights=np.array([1, 2])) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "weights", [(), (0, 0), (-1, 2), (np.nan, 1), ("1", 2), 2.0, {0: 1.0}, np.ones((2, 2))], ids=str
)
def test_bad_weights(weights: object) -> None:
    with pytest.raises(ConfigurationError, match="class_weights must be a weight ≥ 0 for each class, in order and not"):
        SoftMaxLoss(class_weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("smoothing", [-0.1, 1, "0.1", None])
def test_bad_smoothing(smoothing: object) -> None:
    with pytest.raises(ConfigurationError, match="label_smoothing must be a finite number ≥ 0 and < 1"):
        SoftMaxLoss(label_smoothing=smoothing)  # type: ignore[arg-type]


def test_there_is_a_weight_for_each_class() -> None:
    with pytest.raises(ValueError, match=r"expected as many classes as class_weights, 3\. Received: 10"):
        SoftMaxLoss(class_weights=(1, 2, 3)).output_shape((8, 10))


@KERNELS
def test_a_weighted_loss_in_training(kernels: str) -> None:
    """From the logits 0 and 200, of which the label has the smaller: 0.875 · 200 · ½, and 0.125 · 0 · 3."""
    loss = SoftMaxLoss(label_smoothing=0.25, class_weights=(0.5, 3))
    with context_of([[0.0, 200.0]], [0], kernels, loss=loss) as context:
        assert "softmax_loss_forward of logits and targets" in context.describe()
        assert context.test().loss == pytest.approx(0.875 * 200 * 0.5, rel=1e-6)


# Behind a SoftMax, in a dataflow: from the logits.


def context_of(
    logits: list[list[float]], labels: list[int], kernels: str, loss: SoftMaxLoss | None = None, **system: object
) -> ExecutionContext:
    """One whose first loss is that of these logits: the identity of them."""
    values = np.array(logits, np.float32)
    data = Dataset((values, np.array(labels)), (values, np.array(labels)), number_of_classes=values.shape[1])
    identity = InnerProduct(
        number_of_outputs=values.shape[1], weight_initialiser=Values(np.eye(values.shape[1], dtype=np.float32))
    )
    settings = SystemConf(kernels=kernels, learners_per_device=1, threads_per_learner=1, **system)  # type: ignore[arg-type]
    network = training(identity) if loss is None else Dataflow(SubGraph(chain(identity, SoftMax(), loss)[0]))
    return ExecutionContext([network], data=data, model=ModelConf(batch_size=len(labels)), system=settings)


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
