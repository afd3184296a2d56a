"""Both kinds of coordination have the interface that scheduler, flow and recovery use."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from crossbow import SMA
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.free import FreeCoordination
from crossbow.runtime.tick import TickCoordination
from crossbow.solver import Pace
from crossbow.synch import AsynchronousSGD, Rule
from tests.support import context, engine_of

METHODS = {name: method for name, method in vars(Coordination).items() if inspect.isfunction(method) and name[0] != "_"}
BOTH = pytest.mark.parametrize("rule", [SMA(), AsynchronousSGD()], ids=["a tick", "an exchange"])


@pytest.mark.parametrize("kind", [TickCoordination, FreeCoordination])
@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_parameters_of_the_interface(name: str, kind: type) -> None:
    wanted, found = inspect.signature(METHODS[name]), inspect.signature(getattr(kind, name))
    assert list(found.parameters) == list(wanted.parameters)


@BOTH
def test_what_is_known_before_the_first_task(rule: Rule) -> None:
    with context(rule=rule, learners=2) as running:
        coordination: Any = engine_of(running).coordination
        assert coordination.in_order == isinstance(rule, SMA)
        assert [learner.number for learner in coordination.learners] == [0, 1]
        assert set(coordination.learners) <= set(coordination.members())
        assert coordination.merges(0) == 0


@BOTH
def test_coefficients_are_one_array_as_long_as_nothing_changes(rule: Rule) -> None:
    """Learners compare arrays by identity, so an array is never overwritten."""
    with context(rule=rule) as running:
        coordination: Any = engine_of(running).coordination
        first = coordination.coefficients(Pace(0.1, 0.9))
        values = first.copy()
        assert coordination.coefficients(Pace(0.1, 0.9)) is first
        second = coordination.coefficients(Pace(0.2, 0.9))
        assert second is not first
        np.testing.assert_array_equal(first, values)
        assert (second != values).any()


@BOTH
def test_nothing_changes_where_nothing_is_measured(rule: Rule) -> None:
    with context(rule=rule) as running:
        coordination = engine_of(running).coordination
        assert coordination.adapt(Pace(0.1, 0.9), lambda: pytest.fail("nothing is to be waited for")) is None
