from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError, ExecutionContext, ModelConf, Operator, Sequential, SolverConf
from crossbow.dataflow.freezing import freeze
from crossbow.ops import BatchNorm, Conv, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from tests.support import pictures
from tests.testing.user_operators import Shift


def network() -> Sequential:
    return Sequential(
        Conv(4, 3), BatchNorm(), ReLU(), Conv(4, 1, bias=False), InnerProduct(3), SoftMax(), SoftMaxLoss()
    )


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (["conv*"], {"conv1.weights", "conv1.bias", "conv2.weights"}),
        (["*.bias"], {"conv1.bias", "batchnorm1.bias", "innerproduct1.bias"}),
        (["conv2", "batchnorm1.weights"], {"conv2.weights", "batchnorm1.weights"}),
        ([], set()),
    ],
)
def test_training_keeps_frozen_variables_and_changes_the_others(patterns: list[str], frozen: set[str]) -> None:
    model, solver = ModelConf(batch_size=8), SolverConf(learning_rate=0.1)
    own = network()
    assert own.freeze(*patterns) is own
    with ExecutionContext(own, data=pictures(examples=24), model=model, solver=solver, monitors=()) as context:
        before = context.variables
        context.train(2)
        after = context.variables
    trained = {name for name in before if "running" not in name}
    assert {name for name in trained if np.array_equal(before[name], after[name])} == frozen
    assert all(not np.array_equal(before[name], after[name]) for name in before.keys() - trained)


@pytest.mark.parametrize("pattern", ["pool*", "conv3", "conv2.bias", "batchnorm1.running_mean", "relu1"])
def test_a_pattern_that_matches_no_variable_is_rejected_and_nothing_is_frozen(pattern: str) -> None:
    own = network()
    expected = r"freeze: expected patterns of operators with variables \(conv1, batchnorm1, conv2, innerproduct1\)"
    with pytest.raises(ConfigurationError, match=rf"{expected} .*\. Received: '.*', which matches none"):
        own.freeze("conv1", pattern)
    assert own.head.operator.kernel == Conv(4, 3)


def test_an_operator_that_cannot_be_frozen_is_rejected() -> None:
    operators = [Operator("conv", Conv(4, 3)), Operator("own", Shift())]
    with pytest.raises(
        ConfigurationError, match=r"expected an operator with fields as 'weight_.*'\. Received: 'own' \("
    ):
        freeze(operators, ["*"])
    freeze(operators, ["conv"])
    assert operators[0].kernel == Conv(4, 3, weight_learning_rate_multiplier=0, bias_learning_rate_multiplier=0)


def test_patterns_are_texts() -> None:
    with pytest.raises(ConfigurationError, match=r"freeze: expected patterns of names, as 'conv\*'\. Received: 3"):
        freeze([], [3])  # type: ignore[list-item]
