"""The server of z, without learners: servers of parts do together what one server of all does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crossbow import SolverConf
from crossbow.compile import share_of
from crossbow.runtime.participants import Participants
from crossbow.runtime.server import Server
from crossbow.solver import Pace
from crossbow.synch import EASGD, AsynchronousSGD, FreeRule, Grouping, Hogwild, PartiallySynchronous
from tests.support import context, perceptron

SOLVER = SolverConf(learning_rate=0.1, momentum=0.5, weight_decay=0.1)
ORDER = [0, 2, 1, 1, 0, 2, 2]


def vectors_of(participants: Participants) -> list[Any]:
    replicas = [vector for replica in participants.replicas for vector in replica.vectors().values()]
    return [*participants.base.vectors(0).values(), *replicas]


def after(participants: Participants, servers: list[Server], rest: int | None = None) -> tuple[list[Any], list[Any]]:
    """All vectors, and the learners that went on, after arrivals in this order."""
    generator, going = np.random.default_rng(1), []
    for vector in vectors_of(participants):
        vector[...] = generator.uniform(0.5, 1, vector.shape) if vector.dtype == np.float32 else 0
    for server in servers:
        server.progress.restart()
        server.begin(3)
        going.append([server.arrive(learner, Pace(0.1, 0.5, 2, 7.0)) for learner in ORDER])
        if rest is not None:
            going[-1].append(server.rest(rest))
    return [vector.copy() for vector in vectors_of(participants)], going


@pytest.mark.parametrize(
    ("rule", "solver", "skip"),
    [
        (AsynchronousSGD(weight="1/staleness"), SOLVER, 0.0),
        (AsynchronousSGD(), SOLVER, 0.5),
        (AsynchronousSGD(sends="gradient"), SOLVER, 0.0),
        (AsynchronousSGD(sends="gradient"), replace(SOLVER, momentum=0), 0.5),
        (EASGD(), SOLVER, 0.0),
        (Grouping(2), SOLVER, 0.0),
        (Hogwild(), SOLVER, 0.0),
    ],
    ids=str,
)
def test_servers_of_parts_do_what_one_server_does(rule: FreeRule, solver: SolverConf, skip: float) -> None:
    """The bounds of the parts lie within variables, of which some are left out."""
    with context(perceptron(), rule=rule, solver=solver, learners=3) as running:
        engine: Any = running.engine
        participants: Participants = engine.coordination.exchange._participants
        elements, variables = participants.base.buffers[0].size, engine.parts.variables()
        assert elements // 16 > 3

        def servers(count: int) -> list[Server]:
            parts = [share_of(elements, server, count) for server in range(count)]
            each = [replace(participants, part=part) for part in parts]
            settled = engine.coordination.rule
            return [Server(of_part, settled, solver, variables, skip=skip) for of_part in each]

        whole, going = after(participants, servers(1))
        for count in (2, 3):
            vectors, others = after(participants, servers(count))
            assert others == going * count
            for vector, expected in zip(vectors, whole, strict=True):
                np.testing.assert_array_equal(vector, expected)


def test_a_learner_without_a_task_holds_up_no_other() -> None:
    with context(perceptron(), rule=PartiallySynchronous(), learners=3) as running:
        engine: Any = running.engine
        participants: Participants = engine.coordination.exchange._participants
        server = Server(participants, PartiallySynchronous(), SOLVER)
        assert server.arrive(0, Pace(0.1, 0.0)) == []
        assert server.arrive(2, Pace(0.1, 0.0)) == []
        assert server.rest(1) == [0, 2]
