"""The hand-worked trajectories, by the rules' own updates and by the real engine."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import (
    Constant,
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    ModelConf,
    Operator,
    SubGraph,
    SystemConf,
    TrainingUnit,
)
from crossbow.data.order import TrainingOrder
from crossbow.ops import EuclideanLoss, InnerProduct
from crossbow.synch import simulate
from tests.support import FAST
from tests.synch.simulation import Simulation
from tests.synch.trajectories import ALL, EXAMPLES, RATE, START, State, Trajectory, gradient

every_trajectory = pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])


@every_trajectory
def test_the_rules_own_updates_follow_the_hand(case: Trajectory) -> None:
    for order in ([0, 1], [1, 0]):
        made = simulate(
            case.rule,
            initial=[START],
            gradient=lambda weights, learner, task: [gradient(learner, weights[0])],
            learners=2,
            events=order * case.rule.tau * len(case.states),
            solver=case.solver,
        )
        replicas = made.replicas[2 * case.rule.tau - 1 :: 2 * case.rule.tau, :, 0]
        assert [(tuple(w), z) for w, z in zip(replicas.tolist(), made.base[:, 0], strict=True)] == list(case.states)


@pytest.mark.parametrize("case", [case for case in ALL if case.rule.sends != "new weights"], ids=lambda case: case.name)
def test_two_implementations_of_the_contract_agree(case: Trajectory) -> None:
    """The other one knows rules without a reply only."""
    simulation = Simulation(case.rule, case.solver, 2, np.array([START]))
    for expected in case.states:
        simulation.tick(lambda learner, weights: np.array([gradient(learner, weights[0])]), RATE)
        weights = tuple(float(vector[0]) for vector in simulation.weights)
        assert (weights, float(simulation.base[0])) == expected


def seed_with_the_examples_in_order(epochs: int) -> int:
    """A seed whose first epochs all show example 0 before example 1: task n of learner n mod 2 has example n mod 2."""
    for seed in range(10_000):
        order, out = TrainingOrder(2, 1, seed), np.empty(1, np.intp)
        if all(order.indices(task, out) == 1 and out[0] == task % 2 for task in range(2 * epochs)):
            return seed
    raise AssertionError("no such seed")


def one_weight() -> Dataflow:
    ip = InnerProduct(number_of_outputs=1, bias=False, weight_initialiser=Constant(START))
    head = DataflowNode(Operator("ip", ip))
    head.connect_to(DataflowNode(Operator("loss", EuclideanLoss())))
    return Dataflow(SubGraph(head))


def state_of(context: ExecutionContext) -> State:
    """Replicas and base model of a context at rest."""
    z = float(context.variables["ip.weights"][0, 0])
    replicas = [member.replica.weights for member in context.engine.members]
    return tuple(z if weights is None else float(weights[0]) for weights in replicas), z


@every_trajectory
@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize(
    ("kernels", "precision"),
    [("reference", "float64"), ("reference", "float32"), pytest.param(*FAST.values, "float32", marks=FAST.marks)],
)
def test_the_engine_follows_the_hand(case: Trajectory, devices: str, kernels: str, precision: str) -> None:
    """Exactly: every number of the trajectories is a binary fraction of few digits."""
    tasks = 2 * case.rule.tau
    x = np.array([[x] for x, _ in EXAMPLES], precision)
    y = np.array([target for _, target in EXAMPLES], precision)
    with ExecutionContext(
        [one_weight(), None],
        data=Dataset((x, y)),
        model=ModelConf(batch_size=1, rule=case.rule),
        solver=case.solver,
        system=SystemConf(
            devices=devices,
            learners_per_device=2 if devices == "cpu" else 1,
            threads_per_learner=1,
            kernels=kernels,
            precision=precision,
            seed=seed_with_the_examples_in_order(case.rule.tau * len(case.states)),
        ),
    ) as context:
        assert state_of(context) == ((START, START), START)
        for expected in case.states:
            context.train(tasks, TrainingUnit.TASKS)
            assert state_of(context) == expected


@every_trajectory
def test_ticks_in_one_call_are_the_same_as_one_by_one(case: Trajectory) -> None:
    x, y = np.array([[1.0], [2.0]]), np.array([0.0, 2.0])
    ticks = len(case.states)
    with ExecutionContext(
        [one_weight(), None],
        data=Dataset((x, y)),
        model=ModelConf(batch_size=1, rule=case.rule),
        solver=case.solver,
        system=SystemConf(
            learners_per_device=2,
            kernels="reference",
            precision="float64",
            seed=seed_with_the_examples_in_order(case.rule.tau * ticks),
        ),
    ) as context:
        history = context.train(2 * case.rule.tau * ticks, TrainingUnit.TASKS)
        assert state_of(context) == case.states[-1]
        assert history.records[-1].tasks == 2 * case.rule.tau * ticks
