"""The contract of rules: updates keep their form, and declare what they depend on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from crossbow.solver import Pace, Update
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    BarrierRule,
    Default,
    DiLoCo,
    FreeRule,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PeerRule,
    PolyakRuppert,
    Rule,
    SynchronousEASGD,
    WeedOut,
)
from crossbow.synch.rule import Arrival

BARRIER: list[BarrierRule] = [
    SMA(),
    SMA(base_momentum=0.5),
    SMA(tau=3),
    SMA(alpha_steps=((5, 0.1),)),
    SynchronousEASGD(),
    SSGD(),
    ModelAveraging(tau=2),
    PolyakRuppert(),
    PolyakRuppert(alpha=0.5),
    PolyakRuppert(alpha_steps=((5, 0.1),)),
    DiLoCo(),
    DiLoCo(outer_learning_rate=1, outer_momentum=0),
]


FREE: list[FreeRule] = [
    Default(),
    Hogwild(),
    AsynchronousSGD(),
    AsynchronousSGD(weight="1/staleness", sends="gradient"),
    SSP(bound=2, weight=0.5),
    PartiallySynchronous(max_advance=3),
    WeedOut(window=4),
    EASGD(tau=3),
    Grouping(),
]


SOLVERS = [
    SolverConf(),
    SolverConf(momentum=0.9),
    SolverConf(weight_decay=0.1),
    SolverConf(momentum=0.9, momentum_method="nesterov", weight_decay=0.1),
    SolverConf(weight_decay=0.1, regularisation="l1"),
    SolverConf(momentum=0.9, momentum_method="nesterov", weight_decay=0.1, regularisation="l1"),
]


PACES = (Pace(0.1, 0.9), Pace(0.0, 0.9, 1, 0.125), Pace(3.0, 0.0, 7, 0.25))


def forms(made: list[Update]) -> int:
    return len({(update.assignments, update.signs) for update in made})


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rule", BARRIER, ids=str)
def test_updates_keep_their_form_whatever_the_pace(rule: BarrierRule, solver: SolverConf) -> None:
    """Kernels are prepared once and only their numbers change."""
    for learners in (1, 2, 5):
        for last in (True, False):
            assert forms([rule.local_step(solver, pace, learners, synchronises=last) for pace in PACES]) == 1
        assert forms([rule.merge(solver, pace, learners) for pace in PACES]) == 1
        assert forms([rule.reply(solver, pace, learners) for pace in PACES]) == 1


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rule", FREE, ids=str)
def test_updates_without_a_barrier_keep_their_form(rule: FreeRule, solver: SolverConf) -> None:
    arrivals = [Arrival(0, 3), Arrival(2, 3, staleness=7), Arrival(1, 3, 2, 2, (1, 1, 1))]
    assert forms([rule.local_step(solver, pace) for pace in PACES]) == 1
    assert forms([rule.merge(solver, pace, arrival) for pace in PACES for arrival in arrivals]) == 1
    assert forms([rule.reply(solver, pace) for pace in PACES]) == 1


def assert_declared(at: Callable[[Pace], Update]) -> None:
    """The coefficients change with the fields that are declared, and with no other."""
    base, declared = Pace(0.1, 0.9, 1, 1.0), at(Pace(0.1, 0.9, 1, 1.0)).depends_on
    for field, values in {"rate": (0.2, 3.0), "momentum": (0.5, 0.0), "tick": (0, 7), "time": (0.0, 5.0)}.items():
        changed = any(at(base._replace(**{field: v})).coefficients != at(base).coefficients for v in values)
        assert changed == (field in declared), (field, declared)


STEPPED: list[Rule] = [
    SMA(alpha_steps=((3, 0.125),)),
    PolyakRuppert(alpha=0.5, alpha_steps=((3, 0.125),)),
    EASGD(alpha_steps=((3, 0.125),)),
]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rule", [*BARRIER, *FREE, *STEPPED, Gossip()], ids=str)
def test_updates_declare_what_their_coefficients_depend_on(rule: Rule, solver: SolverConf) -> None:
    """Else they would not be evaluated again, or every time."""
    if isinstance(rule, BarrierRule):
        assert_declared(lambda pace: rule.local_step(solver, pace, 2, synchronises=True))
        assert_declared(lambda pace: rule.local_step(solver, pace, 2, synchronises=False))
        assert_declared(lambda pace: rule.merge(solver, pace, 2))
        assert_declared(lambda pace: rule.reply(solver, pace, 2))
    elif isinstance(rule, FreeRule):
        assert_declared(lambda pace: rule.local_step(solver, pace))
        assert_declared(lambda pace: rule.merge(solver, pace, Arrival(1, 2)))
        assert_declared(lambda pace: rule.reply(solver, pace))
    elif isinstance(rule, PeerRule):
        assert_declared(lambda pace: rule.local_step(solver, pace))
        assert_declared(lambda pace: rule.mix(0.25, 0.5))


def test_which_vectors_there_must_be() -> None:
    def vectors(rule: Rule, momentum: float = 0.9) -> set[str]:
        return set(rule.vectors(SolverConf(momentum=momentum), PACES[0]))

    own = {"weights", "gradient", "velocity"}
    assert vectors(AsynchronousSGD()) == {*own, "taken", "base"}
    assert vectors(SSP()) == {"weights", "gradient", "base", "base_velocity"}
    assert vectors(Hogwild()) == {"gradient", "velocity", "base"}
    assert vectors(EASGD(), 0) == {"weights", "gradient", "base"}
    assert vectors(Gossip()) == {*own, "received"}


def test_tasks_per_merge() -> None:
    """With a barrier, all learners contribute to one merge; otherwise, each has its own."""
    assert SMA(tau=3).tasks_per_merge(4) == 12
    assert EASGD(tau=3).tasks_per_merge(4) == 3


def test_a_rule_that_allows_any_number_of_learners_is_settled_as_it_is() -> None:
    rule = SSGD()
    assert rule.settled([1.0, 9.0]) is rule.fitted(2) is rule
    with pytest.raises(ConfigurationError, match="alpha must be <"):
        SMA(alpha=0.9).settled([1.0, 1.0])


def test_what_is_sent() -> None:
    assert (SSGD().sends_gradient, SSGD().sent_vector) == (True, "gradient")
    assert (SMA().sends_gradient, SMA().sent_vector) == (False, "weights")
    assert (ModelAveraging().sends_gradient, ModelAveraging().sent_vector) == (False, "weights")


def test_learners_that_send_gradients_do_not_step() -> None:
    for rule in (SSP(), Hogwild(), Grouping()):
        assert rule.local_step(SolverConf(), PACES[0]).steps == ()
    assert EASGD().local_step(SolverConf(), PACES[0]).steps != ()


def test_without_a_condition_a_learner_contributes_alone_and_continues() -> None:
    rule = EASGD()
    assert rule.contributors(2, 4) == (2,)
    assert rule.may_start([9, 0, 0, 0], {0}, 0)
    assert rule.omega(Arrival(0, 4, staleness=9)) == 1
    assert rule.remembers(4) == 0
