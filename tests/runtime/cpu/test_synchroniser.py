"""The end of a tick between devices: sums are added up, and each device merges the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf, TrainingUnit
from crossbow.ops import BatchNorm, InnerProduct
from crossbow.synch import HostCollective
from crossbow.testing import FakeCollective
from tests.support import context, engine_of, training

DEVICES = "cpu:0/2,cpu:1/2"


class Noting(HostCollective):
    """Adds up, and notes the sizes of what it adds."""

    def __init__(self) -> None:
        super().__init__(2)
        self.sizes: list[list[int]] = []

    def all_reduce(self, vectors: Any) -> None:
        self.sizes.append([vector.size for vector in vectors])
        super().all_reduce(vectors)


def network() -> Any:
    return training(InnerProduct(number_of_outputs=4), BatchNorm())


@pytest.mark.parametrize("rule", [SMA(), SSGD()], ids=str)
def test_weights_and_statistics_are_added_up_once_a_tick(rule: Any) -> None:
    collective = Noting()
    with context(network(), devices=DEVICES, learners=1, rule=rule, collective=collective) as running:
        running.train(6, TrainingUnit.TASKS)
        engine = engine_of(running)
        program = engine.program
        expected = [[program.model.elements] * 2, [program.statistics.elements] * 2]
        assert collective.sizes == expected * engine.tick


def test_without_statistics_only_weights_are_added_up() -> None:
    collective = Noting()
    with context(devices=DEVICES, learners=1, collective=collective) as running:
        running.train(4, TrainingUnit.TASKS)
        assert len(collective.sizes) == engine_of(running).tick


@pytest.mark.parametrize("rule", [SMA(base_momentum=0.5), SSGD()], ids=str)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_all_devices_have_the_same_base_model(rule: Any, clip: float | None) -> None:
    solver = SolverConf(learning_rate=0.1, momentum=0.9, clip_gradient_norm=clip)
    with context(network(), devices=DEVICES, learners=2, rule=rule, solver=solver) as running:
        running.train(12, TrainingUnit.TASKS)
        engine = engine_of(running)
        first, second = engine.parts.bases
        np.testing.assert_array_equal(first.current(engine.tick), second.current(engine.tick))
        parity = engine.tick % 2
        np.testing.assert_array_equal(first.statistics[parity], second.statistics[parity])
        if first.velocity is not None:
            assert second.velocity is not None
            np.testing.assert_array_equal(first.velocity, second.velocity)


def test_its_number_follows_those_of_the_learners() -> None:
    """So that a failure between the devices is told apart from one of a learner."""
    with context(devices=DEVICES, learners=2, collective=FakeCollective(2)) as running:
        synchroniser: Any = engine_of(running).coordination.synchroniser
        assert synchroniser.number == 4
        assert set(synchroniser.tasks) == {("synchronise", 0), ("synchronise", 1)}
