from __future__ import annotations

import numpy as np
import pytest

from crossbow import (
    ConfigurationError,
    Dataflow,
    ExecutionContext,
    GraphError,
    ModelConf,
    Operator,
    Sequential,
    SolverConf,
    SystemConf,
)
from crossbow.dataflow.freezing import frozen_operators
from crossbow.dataflow.graph import build
from crossbow.ops import BatchNorm, Conv, InnerProduct, InnerProductGradient, Kernel, ReLU, SoftMax, SoftMaxLoss
from crossbow.synch import EASGD, SMA, SSGD, AsynchronousSGD, DiLoCo, ModelAveraging, PolyakRuppert, Rule, TwoLevel
from crossbow.types import Shape
from tests.combinations import pairwise
from tests.dataflow.networks import wiring
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
    own = network().freeze(*patterns)
    with ExecutionContext(own, data=pictures(examples=24), model=model, solver=solver, monitors=()) as context:
        before = context.variables
        context.train(2)
        after = context.variables
    trained = {name for name in before if "running" not in name}
    assert {name for name in trained if np.array_equal(before[name], after[name])} == frozen
    assert all(not np.array_equal(before[name], after[name]) for name in before.keys() - trained)


@pairwise
@pytest.mark.parametrize("devices", [("cpu",), ("cpu:0/2", "cpu:1/2")])
@pytest.mark.parametrize(
    "rule",
    [
        SMA(),
        ModelAveraging(tau=2),
        PolyakRuppert(),
        DiLoCo(tau=2),
        EASGD(alpha=0.3),
        TwoLevel(SMA(), ModelAveraging(tau=2)),
        SSGD(),
        AsynchronousSGD(),
    ],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize(
    "solver",
    [
        SolverConf(learning_rate=0.05, momentum=0.9, weight_decay=1e-3),
        SolverConf(method="adam", learning_rate=0.01, clip_gradient_norm=1.0),
    ],
    ids=["momentum", "adam, clipped"],
)
def test_averages_of_learners_leave_frozen_variables_as_they_are(
    rule: Rule, devices: tuple[str, ...], solver: SolverConf
) -> None:
    """A mean of three equal values may differ from them, because 1/3 is rounded."""
    model = ModelConf(batch_size=8, rule=rule, local_variables=("*norm*",) if isinstance(rule, SMA) else ())
    checks = solver.method == "adam"
    system = SystemConf(learners_per_device=3, devices=devices, threads_per_learner=1, check_numerics=checks)
    own, data = network().freeze("conv2", "batchnorm1.weights"), pictures(examples=144)
    with ExecutionContext(own, data=data, model=model, solver=solver, system=system, monitors=()) as context:
        before = context.variables
        context.train(12)
        after = context.variables
    same = {name for name, value in before.items() if np.array_equal(value, after[name])}
    assert same == {"conv2.weights", "batchnorm1.weights"}


@pytest.mark.parametrize("pattern", ["pool*", "conv3", "conv2.bias", "batchnorm1.running_mean", "relu1"])
def test_a_pattern_that_matches_no_variable_is_rejected(pattern: str) -> None:
    own = network()
    expected = r"freeze: expected patterns of operators with variables \(conv1, batchnorm1, conv2, innerproduct1\)"
    with pytest.raises(ConfigurationError, match=rf"{expected} .*\. Received: '.*', which matches none"):
        own.freeze("conv1", pattern)


def test_the_original_is_not_frozen_and_shared_operators_stay_shared() -> None:
    shared = Operator("shared", InnerProduct(4))
    own = Sequential(Conv(4, 3), InnerProduct(4), shared, shared)
    frozen = own.freeze("conv1", "shared")
    assert own.head.operator.kernel == Conv(4, 3)
    assert shared.kernel == InnerProduct(4)
    assert frozen.nodes[2].operator is frozen.nodes[3].operator
    assert frozen.tail.operator.kernel.is_frozen  # type: ignore[union-attr]
    assert wiring(build(frozen.nodes[:3])) == wiring(build(own.nodes[:3]))


def test_gradients_that_the_user_connects_belong_to_the_copies() -> None:
    first = Operator("ip", InnerProduct(4))
    gradient = Operator("ipGradient", InnerProductGradient()).set_peer(first)
    copies = frozen_operators([first, gradient], ["ip"])
    assert copies[id(gradient)].peer is copies[id(first)]
    assert gradient.peer is first


def test_an_operator_that_cannot_be_frozen_is_rejected() -> None:
    operators = [Operator("conv", Conv(4, 3)), Operator("own", Shift())]
    with pytest.raises(
        ConfigurationError, match=r"expected an operator with fields as 'weight_.*'\. Received: 'own' \("
    ):
        frozen_operators(operators, ["*"])
    copy = frozen_operators(operators, ["conv"])[id(operators[0])]
    assert copy.kernel == Conv(4, 3, weight_learning_rate_multiplier=0, bias_learning_rate_multiplier=0)


class Unchanged(Kernel):
    """y = x. It is no dataclass."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


def test_an_operator_without_fields_is_left_as_it_is() -> None:
    operators = [Operator("conv", Conv(4, 3)), Operator("own", Unchanged())]
    assert frozen_operators(operators, ["conv"])[id(operators[1])].kernel is operators[1].kernel


def test_patterns_are_texts() -> None:
    with pytest.raises(ConfigurationError, match=r"freeze: expected patterns of names, as 'conv\*'\. Received: 3"):
        frozen_operators([], [3])  # type: ignore[list-item]


def test_no_gradients_are_computed_where_all_variables_are_frozen() -> None:
    """Neither for frozen operators whose inputs need none, nor before them."""
    own = network().freeze("conv*", "batchnorm1")
    names = [vertex.name for vertex in Dataflow(own).graph]
    assert [name for name in names if "gradient" in name] == ["softmaxloss1.gradient", "innerproduct1.gradient"]


def test_the_gradient_passes_a_frozen_operator() -> None:
    own = network().freeze("batchnorm1", "conv2")
    names = [vertex.name for vertex in Dataflow(own).graph]
    assert {"conv2.gradient", "batchnorm1.gradient", "conv1.gradient"} < set(names)


def test_all_frozen_is_nothing_to_train() -> None:
    with pytest.raises(GraphError, match=r"nothing to train: no operator upstream of the loss 'softmaxloss1' has var"):
        Dataflow(network().freeze("*")).graph  # noqa: B018
