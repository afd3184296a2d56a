"""A class for every pixel, from the data set to the test's result."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import Dataflow, Dataset, GraphError, Record, SolverConf, SubGraph
from crossbow.ops import Accuracy, Conv, InnerProduct, Noop, ReLU, SoftMax, SoftMaxLoss
from tests.combinations import in_turn
from tests.support import KERNELS, Array, chain, context, pictures, training, with_metrics

IGNORED = 255


def marked(examples: int = 24, check: int = 10) -> Dataset:
    """Noise of two channels: the class of a pixel is the brighter one's number, or 2 where both are dark. The first
    column is ignored."""
    images = np.random.default_rng(0).random((examples + check, 2, 4, 5)).astype(np.float32)
    labels = np.where(images.max(axis=1) < 0.4, 2, images.argmax(axis=1))
    labels[:, :, 0] = IGNORED
    both = [(images[part], labels[part]) for part in (slice(examples), slice(examples, None))]
    return Dataset(both[0], both[1], ignored_label=IGNORED)


def network(normalisation: str, ignored_label: int | None = IGNORED) -> Dataflow:
    head, _, _, softmax, _ = chain(
        Conv(number_of_outputs=8, kernel_size=1),
        ReLU(),
        Conv(number_of_outputs=3, kernel_size=1),
        SoftMax(),
        SoftMaxLoss(normalisation=normalisation, ignored_label=ignored_label),
    )
    softmax.connect_to(*chain(Accuracy(ignored_label=ignored_label)))
    return Dataflow(SubGraph(head))


def by_hand(p: Array, labels: Array, normalisation: str) -> tuple[float, float]:
    """Loss and accuracy of a whole set."""
    counted = labels != IGNORED
    own = np.take_along_axis(p, np.where(counted, labels, 0)[:, None], axis=1)[:, 0][counted]
    divisor = {"batch": len(p), "full": labels.size, "valid": counted.sum(), "none": 1}[normalisation]
    return float(-np.log(own).sum() / divisor), float((p.argmax(axis=1) == labels)[counted].mean())


@in_turn
@KERNELS
@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
def test_the_result_of_a_test_is_that_of_the_whole_set(normalisation: str, kernels: str) -> None:
    """Batches of 4, so that the last one of 10 is half padding."""
    data = marked()
    rate = 0.02 if normalisation in ("batch", "none") else 0.5
    solver = SolverConf(learning_rate=rate / 4 if normalisation == "none" else rate)
    assert data.check is not None
    with context(network(normalisation), data=data, kernels=kernels, solver=solver, check_batch_size=4) as run:
        before = run.test()
        run.train(40)
        result = run.test()
        loss, accuracy = by_hand(run.predict(data.check.images), data.check.labels, normalisation)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    assert result.accuracy == pytest.approx(accuracy, abs=1e-6)
    assert result.examples == 10
    assert result.loss < 0.7 * before.loss
    assert accuracy > 0.7


@KERNELS
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
def test_all_metrics_are_those_of_the_whole_set(kernels: str, devices: str) -> None:
    """Batches of 4, so that the last one of 10 is half padding."""
    data = pictures(classes=5)
    assert data.check is not None
    flow = with_metrics(training(InnerProduct(number_of_outputs=5)), 1, 3, 2, 4)
    with context(flow, data=data, kernels=kernels, check_batch_size=4, devices=devices) as run:
        history = run.train_and_test(1)
        result = run.test()
        ranked = np.argsort(-run.predict(data.check.images), axis=1, kind="stable")
    found = ranked == data.check.labels[:, None]
    assert result.accuracy == pytest.approx(found[:, :1].any(axis=1).mean())
    assert list(result.metrics) == ["top3", "top2", "top4"]
    for name, value in result.metrics.items():
        assert value == pytest.approx(found[:, : int(name[3:])].any(axis=1).mean())
    assert 0 < result.metrics["top2"] < result.metrics["top4"] <= 1
    assert history.records[-1].test == result
    assert Record.of_numbers(history.records[-1].numbers()).test == result


def test_faults_are_told_before_anything_runs() -> None:
    with pytest.raises(GraphError, match=r"class labels of shape \(4, 4, 5\), from 0 to 2. Received: classes of shape"):
        context(network("full", ignored_label=None), data=marked())
    rows = chain(Noop(), SoftMax(axis=-1), SoftMaxLoss(ignored_label=IGNORED))[0]
    with pytest.raises(GraphError, match=r"probabilities of a SoftMax over axis 1\. Received: axis=-1"):
        context(Dataflow(SubGraph(rows)), data=marked())
