"""The learners' meeting place, without learners: who may be in it together, and what a turn of a rule begins with."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from crossbow.runtime.exchange import BaseExchange
from crossbow.solver import Pace
from crossbow.synch import EASGD, AsynchronousSGD, Gossip, Hogwild, Rule, WeedOut
from tests.support import context

SECONDS = 10.0
PACE = Pace(0.1, 0.0)


class Merging:
    """A combination that stays in its run until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def run(self, pace: Pace, about: Any) -> None:
        self.begun.set()
        assert self.go.wait(SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "together"),
    [(AsynchronousSGD(), False), (EASGD(), False), (Gossip(probability=1), False), (Hogwild(), True)],
    ids=str,
)
def test_one_learner_merges_at_a_time_unless_the_rule_has_no_lock(rule: Rule, together: bool) -> None:
    """The fifth of a second is what a missing lock is given to be seen in."""
    with context(rule=rule, learners=2) as running:
        exchange: Any = running.engine.coordination.exchange
        merges = [Merging(), Merging()]
        if isinstance(exchange, BaseExchange):
            exchange.server._merges = [[merging] for merging in merges]
        else:
            exchange._send = {(0, 1): merges[0], (1, 0): merges[1]}
        threads = [threading.Thread(target=exchange.finished, args=(learner, PACE)) for learner in (0, 1)]
        threads[0].start()
        assert merges[0].begun.wait(SECONDS)
        threads[1].start()
        assert merges[1].begun.wait(SECONDS if together else 0.2) == together
        for merging, thread in zip(merges, threads, strict=True):
            merging.go.set()
            thread.join(SECONDS)
        assert merges[1].begun.is_set()
        assert exchange.merges == 2


def test_a_turn_begins_as_if_nobody_had_finished_before() -> None:
    """Learner 1 would be late, and its contribution dropped: the last two to finish were learner 0."""
    with context(rule=WeedOut(), learners=2) as running:
        coordination = running.engine.coordination
        exchange = coordination.exchange
        for _ in range(2):
            exchange.finished(0, PACE)
        coordination.begin(5)
        exchange.restart()
        exchange.finished(1, PACE)
        assert exchange.merges == 3


@pytest.mark.parametrize("rule", [EASGD(tau=3), Gossip(tau=3)], ids=str)
def test_a_state_is_gone_on_from(rule: Rule) -> None:
    """Learner 1 has made the first of its three steps."""
    with context(rule=rule, learners=2) as running:
        exchange: Any = running.engine.coordination.exchange
        exchange.free.clear()
        exchange.finished(1, PACE)
        state = json.loads(json.dumps(exchange.state()))
        assert (state["steps"], state["free"]) == ([0, 1], [1])
        exchange.finished(1, PACE)
        exchange.restart()
        exchange.restore(state)
        assert list(exchange.free) == [1]
        before = exchange.merges
        exchange.finished(1, PACE)
        assert exchange.merges == before
        exchange.finished(1, PACE)
        assert exchange.merges == before + 1
