"""Running statistics: what learners observe, what the base model makes of it, and who uses it.

The BatchNorm stands first in the network, so that what it observes is known from the order of the examples alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from crossbow import (
    SMA,
    SSGD,
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    Operator,
    Phase,
    SolverConf,
    SubGraph,
    TrainingUnit,
)
from crossbow.conf import configuration
from crossbow.data.order import TrainingOrder
from crossbow.kernels.interface import State
from crossbow.ops import BatchNorm, Conv, ElementWiseOp, InnerProduct, Noop, Pool, ReLU, SoftMax, SoftMaxLoss
from crossbow.ops.initialiser import Constant
from crossbow.ops.kernel import VariableSpec
from crossbow.synch import ModelAveraging
from crossbow.testing import FakeCollective
from crossbow.types import Aborted, DataError, GraphError, NonFiniteLossError, Shape, TaskError
from tests.combinations import one_in, pairwise
from tests.runtime.test_determinism import RULES, disturbed
from tests.support import (
    FAST,
    KERNELS,
    Probe,
    Trap,
    blobs,
    chain,
    context,
    dawdle,
    pictures,
    raising,
    same_weights,
    training,
)

Array = NDArray[Any]
Statistics = dict[str, Array]
TASKS = TrainingUnit.TASKS
FEATURES = 40
DATA = blobs(examples=30, check=7, features=FEATURES)
FRACTION = 0.6
DEVICES = pytest.mark.parametrize(
    ("devices", "learners"),
    [
        ("cpu", 1),
        ("cpu", 2),
        ("cpu", 3),
        ("cpu:0/2,cpu:1/2", 1),
        ("cpu:0/2,cpu:1/2", 2),
        ("cpu:0/3,cpu:1/3,cpu:2/3", 2),
    ],
)


def norm(statistics: str = "fixed") -> BatchNorm:
    return BatchNorm(moving_average_fraction=FRACTION if statistics == "fixed" else 0.9, statistics=statistics)


def normalised(statistics: str = "fixed", *more: Any, **options: Any) -> ExecutionContext:
    """A BatchNorm of the batch and an inner product, in float64 where the kernels have it."""
    precision = "float32" if options.get("kernels") in ("onednn", "compiled") else "float64"
    network = training(norm(statistics), *more, InnerProduct(number_of_outputs=3))
    return context(network, data=DATA, **{"precision": precision, **options})


class Observers:
    """The statistics of k learners and of the base model, by the definition."""

    def __init__(self, learners: int, statistics: str, tau: int, *, after: bool) -> None:
        """after: the base model's are those after the tick's last tasks, not before."""
        start = {"running_mean": np.zeros(FEATURES), "running_variance": np.ones(FEATURES)}
        if statistics == "cma":
            start["count"] = np.zeros(1)
        self.z, self.w = start, [start] * learners
        self.tau, self.after, self.task = tau, after, 0
        self.order = TrainingOrder(len(DATA.train), 4, 0)

    def tick(self) -> None:
        for step in range(self.tau):
            before = self.w
            self.w = [self.observe(statistics) for statistics in before]
            if step == self.tau - 1:
                sent = self.w if self.after else before
                self.z = {name: np.mean([each[name] for each in sent], axis=0) for name in self.z}

    def restart(self) -> None:
        self.w = [self.z] * len(self.w)

    def observe(self, known: Statistics) -> Statistics:
        """What a learner with these statistics has after the next task."""
        indices = np.empty(4, np.intp)
        self.order.indices(self.task, indices)
        self.task += 1
        x = DATA.train.images[indices].astype(np.float64)
        new = {"running_mean": x.mean(0), "running_variance": x.var(0, ddof=1)}
        share = 1 - FRACTION if "count" not in known else 1 / (1 + known["count"])
        found = {name: (1 - share) * known[name] + share * value for name, value in new.items()}
        return {**found, "count": known["count"] + 1} if "count" in known else found


def base_statistics(running: ExecutionContext, node: str = "BatchNorm0") -> Statistics:
    names = [segment.name for segment in running.engine.program.statistics]
    variables = running.variables
    return {name.removeprefix(f"{node}."): variables[name] for name in names if name.startswith(f"{node}.")}


def assert_equal(received: Statistics, expected: Statistics, kernels: str = "reference") -> None:
    assert received.keys() == expected.keys()
    tolerance = 1e-5 if kernels != "reference" else 1e-12
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_learners(running: ExecutionContext, expected: Iterable[Statistics], kernels: str = "reference") -> None:
    """The learners' statistics at a tick's end."""
    engine = running.engine
    for member, statistics in zip(engine.members, expected, strict=True):
        vector = member.replica.statistics[engine.tick % 2]
        found = engine.program.statistics.export(vector)
        assert_equal({name.removeprefix("BatchNorm0."): value for name, value in found.items()}, statistics, kernels)


# The merge.


@one_in(4)
@pairwise
@KERNELS
@DEVICES
@pytest.mark.parametrize("statistics", ["fixed", "cma"])
@pytest.mark.parametrize(
    "rule",
    [SMA(), SMA(alpha=0.1), SMA(alpha=0.05, tau=3), SMA(tau=2, base_momentum=0.4), SSGD(), ModelAveraging(tau=2)],
    ids=str,
)
def test_the_base_models_are_the_mean_of_the_learners(
    rule: Any, statistics: str, devices: str, learners: int, kernels: str
) -> None:
    """Of those before the last task where weights are sent, of those after it where gradients or new weights are."""
    k = learners * (devices.count(",") + 1)
    expected = Observers(k, statistics, rule.tau, after=rule.sends != "weights")
    with normalised(statistics, rule=rule, devices=devices, learners=learners, kernels=kernels) as running:
        assert_equal(base_statistics(running), expected.z, kernels)
        for ticks in (1, 1, 5):
            running.train(ticks * k * rule.tau, TASKS)
            for _ in range(ticks):
                expected.tick()
            assert_equal(base_statistics(running), expected.z, kernels)
            assert_learners(running, expected.w, kernels)
        first, *others = running.engine.parts.bases
        for other in others:
            assert first.statistics[1].tobytes() == other.statistics[1].tobytes()


@pytest.mark.slow
@one_in(6)
@pairwise
@KERNELS
@pytest.mark.parametrize(("devices", "learners"), [("cpu", 3), ("cpu:0/2,cpu:1/2", 1), ("cpu:0/2,cpu:1/2", 2)])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_same_seed_same_statistics(rule: Any, devices: str, learners: int, kernels: str) -> None:
    """Bit for bit, whatever the timing."""

    def variables(most: float) -> Statistics:
        layers = [InnerProduct(number_of_outputs=8), BatchNorm(), Probe(action=dawdle(most)), ReLU()]
        network = training(*layers, InnerProduct(number_of_outputs=3))
        with context(network, data=DATA, rule=rule, devices=devices, learners=learners, kernels=kernels) as running:
            running.train(24, TASKS)
            return running.variables

    with disturbed("everywhere"):
        again = variables(0.003)
    assert same_weights(again, variables(0.0))


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize("rule", [SMA(tau=2), SSGD()], ids=str)
@pytest.mark.parametrize("statistics", ["fixed", "cma"])
def test_a_step_on_the_fast_kernels_is_one_native_list(statistics: str, rule: Any, kernels: str) -> None:
    layers = [Conv(number_of_outputs=4, kernel_size=3), BatchNorm(statistics=statistics), ReLU(), Pool(kernel_size=2)]
    network = training(*layers, BatchNorm(), InnerProduct(number_of_outputs=3))
    with context(network, data=pictures(), rule=rule, kernels=kernels) as running:
        for member in running.engine.members:
            for (purpose, _), task in member.learner.tasks.items():
                assert task.calls.native_calls == len(task.calls.calls), purpose


# Restarts.


@one_in(2)
@pairwise
@DEVICES
@pytest.mark.parametrize("statistics", ["fixed", "cma"])
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), SSGD()], ids=str)
def test_a_drop_of_the_learning_rate_gives_the_learners_the_base_models(
    rule: Any, statistics: str, devices: str, learners: int
) -> None:
    k = learners * (devices.count(",") + 1)
    per_tick = k * rule.tau
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.5, step_size=3 * per_tick)
    expected = Observers(k, statistics, rule.tau, after=isinstance(rule, SSGD))
    with normalised(statistics, rule=rule, devices=devices, learners=learners, solver=solver) as running:
        running.train(8 * per_tick, TASKS)
        for tick in range(8):
            if tick in (3, 6):
                expected.restart()
            expected.tick()
        assert_equal(base_statistics(running), expected.z)
        assert_learners(running, expected.w)


@pytest.mark.slow
@one_in(3)
@pairwise
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3), SSGD()], ids=str)
def test_after_a_failure_they_are_those_of_the_last_whole_tick(rule: Any, where: str, devices: str) -> None:
    for call in range(4, 8):
        trap = Trap(raising(ArithmeticError()), where=where, learner=0, call=call)
        with normalised("fixed", Probe(action=trap), rule=rule, devices=devices) as running:
            with pytest.raises(TaskError):
                running.train(1000)
            expected = Observers(running.engine.parts.setting.learners, "fixed", rule.tau, after=isinstance(rule, SSGD))
            assert running.engine.tick >= 4 // rule.tau
            for _ in range(running.engine.tick):
                expected.tick()
            expected.restart()
            assert_equal(base_statistics(running), expected.z)
            assert_learners(running, expected.w)
            running.train(3 * running.engine.clock.tasks_per_tick, TASKS)
            for _ in range(3):
                expected.tick()
            assert_equal(base_statistics(running), expected.z)
            assert_learners(running, expected.w)


@pytest.mark.parametrize("call", [6, 7])
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_a_collective_that_fails(rule: Any, call: int) -> None:
    """Every tick has two sums between the devices, of what is sent and of the statistics."""
    expected = Observers(4, "fixed", 1, after=isinstance(rule, SSGD))
    failed: list[int] = []

    def inject(number: int, vectors: Any) -> None:
        if number == call and not failed:
            failed.append(number)
            vectors[0][:] = 1e6
            raise ArithmeticError

    collective = FakeCollective(2, inject=inject)
    with normalised(rule=rule, devices="cpu:0/2,cpu:1/2", collective=collective) as running:
        with pytest.raises(TaskError):
            running.train(1000)
        assert running.engine.tick == 3
        for _ in range(3):
            expected.tick()
        expected.restart()
        assert_equal(base_statistics(running), expected.z)
        assert_learners(running, expected.w)
        running.train(8, TASKS)
        expected.tick()
        expected.tick()
        assert_equal(base_statistics(running), expected.z)
        sizes = (running.engine.program.model.elements, running.engine.program.statistics.elements)
        assert set(collective.calls) == {(size, size) for size in sizes}


class NotANumber(Probe):
    """The identity, but NaN where the action raises ArithmeticError."""

    def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
        try:
            return super().forward(xp, inputs, variables)
        except ArithmeticError:
            return inputs[0] * np.nan


@pairwise
@KERNELS
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), SSGD()], ids=str)
def test_those_of_a_batch_that_is_not_a_number_are_forgotten(rule: Any, devices: str, kernels: str) -> None:
    broken = NotANumber(action=Trap(raising(ArithmeticError()), learner=1, call=5))
    network = training(broken, BatchNorm(), InnerProduct(number_of_outputs=3))
    with context(network, data=DATA, rule=rule, devices=devices, kernels=kernels) as running:
        with pytest.raises(NonFiniteLossError):
            running.train(100)
        assert all(np.isfinite(value).all() for value in running.variables.values())
        running.train(2)
        assert running.test().examples == 7


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("learner", [0, 1])
def test_a_step_back_finds_them_whole(learner: int, devices: str) -> None:
    """Here the gradient that is none gets into z before the loss is seen, and others may have begun the tick behind."""
    for call in range(4, 10):
        broken = NotANumber(action=Trap(raising(ArithmeticError()), learner=learner, call=call))
        learners = 2 // (devices.count(",") + 1)
        with normalised("fixed", broken, rule=SSGD(), devices=devices, learners=learners) as running:
            with pytest.raises(NonFiniteLossError):
                running.train(100)
            assert running.engine.tick == call
            expected = Observers(2, "fixed", 1, after=True)
            for _ in range(call):
                expected.tick()
            assert_equal(base_statistics(running), expected.z)
            assert_learners(running, [expected.z] * 2)


@KERNELS
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_learners_of_several_devices_write_nothing_over_the_base_models(rule: Any, kernels: str) -> None:
    """Whatever a learner does before its tick is merged: a failure elsewhere may need both of z's buffers."""
    with normalised(rule=rule, devices="cpu:0/2,cpu:1/2", learners=1, kernels=kernels, sum_order="tree") as running:
        running.train(6, TASKS)
        parts, tick = running.engine.parts, running.engine.tick
        before = [vector.tobytes() for base in parts.bases for vector in (*base.statistics, *base.buffers)]
        parts.flags.ready[:] = tick
        parts.flags.abort[0] = 1
        for member in running.engine.members:
            member.learner.state[State.TICK] = tick
            bound = member.learner.tasks["synchronise", tick % 2]
            with pytest.raises(Aborted):
                member.learner.stream.call(bound.calls.run)
        assert parts.flags.contributed.tolist() == [tick, tick]
        assert [vector.tobytes() for base in parts.bases for vector in (*base.statistics, *base.buffers)] == before


@KERNELS
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_statistics_that_overflow_are_refused(rule: Any, kernels: str) -> None:
    """The loss does not show it: what is divided by an infinite deviation is 0."""
    images = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    images[17, 2] = 1e25
    data = Dataset((images, np.arange(24) % 3), number_of_classes=3)
    network = training(BatchNorm(), InnerProduct(number_of_outputs=3))
    with (
        context(network, data=data, rule=rule, kernels=kernels) as running,
        np.errstate(over="ignore"),
        pytest.raises(NonFiniteLossError, match="base model has values that are not finite"),
    ):
        running.train(2)


# Saving and loading.


@pairwise
@KERNELS
@pytest.mark.parametrize("ticks", [0, 1, 2])
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_what_was_saved_is_loaded(rule: Any, ticks: int, kernels: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    with normalised("cma", rule=rule, kernels=kernels) as first:
        first.train(3)
        saved, tested = first.variables, first.test()
        assert {"BatchNorm0.running_mean", "BatchNorm0.running_variance", "BatchNorm0.count"} < saved.keys()
        first.save(path)
    with normalised("cma", rule=rule, kernels=kernels, seed=1, devices="cpu:0/2,cpu:1/2") as second:
        for _ in range(ticks):
            second.train(4, TASKS)
        assert not same_weights(second.variables, saved)
        second.load(path)
        assert same_weights(second.variables, saved)
        assert second.test() == tested
        assert_learners(second, [base_statistics(second)] * 4, kernels)
        for base in second.engine.parts.bases:
            assert base.statistics[0].tobytes() == base.statistics[1].tobytes()


@pytest.mark.parametrize("missing", ["running_mean", "count"])
def test_a_file_without_statistics_is_refused(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    with normalised("cma") as running:
        running.train(1)
        variables = running.variables
        shape = variables.pop(f"BatchNorm0.{missing}").shape
        safetensors.numpy.save_file(variables, path)
        before = running.variables
        with pytest.raises(DataError) as caught:
            running.load(path)
        assert f"BatchNorm0.{missing}: expected {shape}. Received: nothing" in str(caught.value)
        assert same_weights(running.variables, before)


# Testing and predicting.


def by_hand(running: ExecutionContext, images: Array) -> Array:
    """The probabilities, from the base model's variables and statistics."""
    v = running.variables
    x = images.reshape(len(images), -1)
    deviation = np.sqrt(v["BatchNorm0.running_variance"] + 1e-5)
    x = (x - v["BatchNorm0.running_mean"]) / deviation * v["BatchNorm0.weights"] + v["BatchNorm0.bias"]
    scores = x @ v["InnerProduct1.weights"].T + v["InnerProduct1.bias"]
    exponentials: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


@KERNELS
@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_testing_and_predicting_use_the_base_models(rule: Any, kernels: str) -> None:
    assert DATA.check is not None
    images, labels = DATA.check.images, DATA.check.labels
    with normalised(rule=rule, kernels=kernels, check_batch_size=3) as running:
        for tasks in (2, 2, 14):  # both parities
            running.train(tasks, TASKS)
            probabilities = by_hand(running, images)
            result = running.test()
            assert result.loss == pytest.approx(-np.log(probabilities[np.arange(7), labels]).mean(), rel=1e-4)
            assert result.accuracy == pytest.approx((probabilities.argmax(1) == labels).mean())
            np.testing.assert_allclose(running.predict(images), probabilities, rtol=1e-3, atol=1e-5)


@pairwise
@KERNELS
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3), SSGD()], ids=str)
def test_testing_and_predicting_leave_no_trace(rule: Any, devices: str, kernels: str) -> None:
    models = []
    for look in (False, True):
        with normalised(rule=rule, kernels=kernels, devices=devices) as running:
            for _ in range(3):
                running.train(running.engine.clock.tasks_per_tick, TASKS)
                before = running.variables
                if look:
                    running.test()
                    running.predict(DATA.train.images)
                assert same_weights(running.variables, before)
            models.append(running.variables)
    assert same_weights(*models)


# Operators that several nodes share.


def shared(statistics: str) -> tuple[Dataflow, Dataflow]:
    """One BatchNorm for x and for 3x: the training dataflow, and a check dataflow with the same operators."""
    ends = [
        Operator("bn", norm(statistics)),
        Operator("sum", ElementWiseOp()),
        Operator("ip", InnerProduct(number_of_outputs=3)),
        Operator("softmax", SoftMax()),
        Operator("loss", SoftMaxLoss()),
    ]
    flows = []
    for phase in (Phase.TRAIN, Phase.CHECK):
        head = DataflowNode(Operator("x", Noop()))
        triple = DataflowNode(Operator("triple", ElementWiseOp(coefficients=(3.0,))))
        first, total, *rest = (DataflowNode(operator) for operator in ends)
        head.connect_to(first).connect_to(total)
        head.connect_to(triple).connect_to(first.shallow_copy()).connect_to(total)
        node = total
        for following in rest:
            node = node.connect_to(following)
        flows.append(Dataflow(SubGraph(head)).set_phase(phase))
    return flows[0], flows[1]


class Twice(Observers):
    """Observes x, then 3x, in every task."""

    def observe(self, known: Statistics) -> Statistics:
        task = self.task
        first = super().observe(known)
        self.task = task
        new = super().observe({**first, "running_mean": np.zeros(FEATURES), "running_variance": np.zeros(FEATURES)})
        share = 1 - FRACTION if "count" not in known else 1 / (1 + first["count"])
        for name, factor in (("running_mean", 3), ("running_variance", 9)):
            new[name] = (1 - share) * first[name] + factor * new[name]
        return new


@pairwise
@KERNELS
@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("statistics", ["fixed", "cma"])
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3), SSGD()], ids=str)
def test_nodes_that_share_an_operator_observe_one_after_the_other(
    rule: Any, statistics: str, learners: int, kernels: str
) -> None:
    train, check = shared(statistics)
    expected = Twice(learners, statistics, rule.tau, after=isinstance(rule, SSGD))
    precision = "float32" if kernels != "reference" else "float64"
    options: dict[str, Any] = {"data": DATA, "rule": rule, "learners": learners, "kernels": kernels}
    with context(train, check=check, precision=precision, **options) as running:
        running.train(5 * learners * rule.tau, TASKS)
        for _ in range(5):
            expected.tick()
        assert_equal(base_statistics(running, "bn"), expected.z, kernels)
        own, variables = running.test(), running.variables
    with context(shared(statistics)[0], precision=precision, **options) as derived:
        derived.train(5 * learners * rule.tau, TASKS)
        assert same_weights(derived.variables, variables)
        assert derived.test() == own


def test_a_check_dataflow_with_statistics_of_its_own_is_refused() -> None:
    nodes = chain(BatchNorm(), InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    other = DataflowNode(Operator("other", BatchNorm()))
    node = other
    for trained in nodes[1:]:
        node = node.connect_to(trained.shallow_copy())
    with pytest.raises(
        GraphError, match=r"node 'other' \(BatchNorm\): expected an operator of the training dataflow"
    ) as e:
        context(Dataflow(SubGraph(nodes[0])), data=DATA, check=Dataflow(SubGraph(other)).set_phase(Phase.CHECK))
    assert len(e.value.faults) == 1


@configuration
class Observer(Noop):
    """An operator that has statistics, but no variables."""

    def running_statistics(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("seen", inputs[0][1:], Constant(0.0)),)


def test_statistics_without_variables_must_be_the_training_dataflows_too() -> None:
    nodes = chain(Noop(), InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    other = DataflowNode(Operator("observer", Observer()))
    node = other
    for trained in nodes[1:]:
        node = node.connect_to(trained.shallow_copy())
    with pytest.raises(
        GraphError, match=r"node 'observer' \(Observer\): expected an operator of the training dataflow"
    ):
        context(Dataflow(SubGraph(nodes[0])), data=DATA, check=Dataflow(SubGraph(other)).set_phase(Phase.CHECK))
