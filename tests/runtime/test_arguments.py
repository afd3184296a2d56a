"""What a context makes of what it is given; tests/test_context.py has the errors."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError, Dataflow, GraphError, Phase, Sequential, SolverConf
from crossbow.dataflow.graph import build
from crossbow.ops import InnerProduct, MatFact, SoftMax, SoftMaxLoss
from crossbow.runtime.arguments import checked_monitors, own_solver, replaced_variables, two_dataflows
from tests.support import blobs, context, perceptron, with_metrics


def network() -> Sequential:
    return Sequential(InnerProduct(3), SoftMax(), SoftMaxLoss())


def test_a_network_stands_for_its_training_dataflow() -> None:
    own = network()
    for given in (own, [own], [own, None]):
        training, check = two_dataflows(given)
        assert (training.subgraph, training.phase, check) == (own, Phase.TRAIN, None)


def test_a_second_network_is_for_testing() -> None:
    training, check = two_dataflows([Dataflow(network()), network()])
    assert training.phase is Phase.TRAIN
    assert check is not None
    assert check.phase is Phase.CHECK


def test_no_monitors_are_none() -> None:
    assert checked_monitors(None) == checked_monitors(()) == ()
    with pytest.raises(ConfigurationError, match="monitors must be a list"):
        checked_monitors(3)


def test_an_operator_may_have_its_own_solver() -> None:
    assert own_solver(build(network().nodes)) is None
    factors = Sequential(MatFact(rows=3, columns=4, latents=2, learning_rate=0.5))
    assert own_solver(build(factors.nodes)) == SolverConf(learning_rate=0.5)


def test_given_variables_replace_those_of_their_names() -> None:
    own = {"a": np.zeros(2), "b": np.zeros(2)}
    replaced = replaced_variables(own, {"b": [1, 2]})
    assert replaced["a"] is own["a"]
    assert replaced["b"].dtype == np.float64
    assert replaced["b"].tolist() == [1.0, 2.0]


def test_beside_an_operator_with_its_own_solver_no_other_is_trained() -> None:
    both = Sequential(InnerProduct(2), MatFact(rows=3, columns=4, latents=2, learning_rate=0.5))
    with pytest.raises(GraphError, match=r"\(MatFact\): expected no other operator with variables.*'innerproduct1'"):
        own_solver(build(both.nodes))


@pytest.mark.parametrize("name", ["loss", "accuracy", "examples"])
def test_a_metric_that_a_test_s_own_number_would_hide_is_refused(name: str) -> None:
    """In records, "test_accuracy" is the accuracy of the main loss's input."""
    dataflow = with_metrics(perceptron(), 1, 2)
    renamed = next(node.operator for node in dataflow.subgraph.nodes if node.operator.name == "top2")
    renamed.name = name
    expected = (
        r"^ExecutionContext: expected metrics with other names than a test's own numbers, loss, accuracy, examples\. "
        rf"Received: the operator '{name}' \(Accuracy\); rename it$"
    )
    with pytest.raises(ConfigurationError, match=expected):
        context(dataflow)
    context(dataflow, data=blobs(check=0)).close()  # without tests, nothing is hidden


def test_the_accuracy_itself_may_be_named_accuracy() -> None:
    dataflow = with_metrics(perceptron(), 1, 2)
    next(node.operator for node in dataflow.subgraph.nodes if node.operator.name == "top1").name = "accuracy"
    with context(dataflow) as running:
        result = running.test()
    assert list(result.metrics) == ["top2"]
