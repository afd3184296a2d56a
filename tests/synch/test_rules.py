"""The rules as configurations: names, parameters, what is refused."""

from __future__ import annotations

import dataclasses
import doctest
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from crossbow.solver import Pace, Update
from crossbow.synch import (
    EASGD,
    RULES,
    SSP,
    AsynchronousSGD,
    BarrierRule,
    Default,
    FreeRule,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PeerRule,
    PolyakRuppert,
    Rule,
    RuleSequence,
    SynchronousEASGD,
    WeedOut,
    gossip,
    grouping,
    rule_class,
    simulator,
)
from crossbow.synch.grouping import ALIKE
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


def test_rules_by_their_name_on_the_command_line() -> None:
    assert {
        "sma": SMA,
        "synchronous-easgd": SynchronousEASGD,
        "ssgd": SSGD,
        "model-averaging": ModelAveraging,
        "polyak-ruppert": PolyakRuppert,
        "default": Default,
        "hogwild": Hogwild,
        "async": AsynchronousSGD,
        "ssp": SSP,
        "partially-synchronous": PartiallySynchronous,
        "weed-out": WeedOut,
        "easgd": EASGD,
        "gossip": Gossip,
        "grouping": Grouping,
    } == RULES
    assert all(rule_class(name) is rule and rule.name == name for name, rule in RULES.items())
    assert all(issubclass(rule, BarrierRule | FreeRule | PeerRule) for rule in RULES.values())


def test_long_names() -> None:
    assert (rule_class("asynchronous-sgd"), rule_class("s-sgd")) == (AsynchronousSGD, SSGD)


@pytest.mark.parametrize("name", ["SMA", "downpour", "", None, 3, ["sma"]])
def test_an_unknown_rule_is_answered_with_the_known_ones(name: object) -> None:
    known = re.escape(", ".join(RULES))
    with pytest.raises(ConfigurationError, match=rf"rule must be one of {known}\. Received: "):
        rule_class(name)  # type: ignore[arg-type]


def test_defaults() -> None:
    assert SMA() == SMA(alpha=None, tau=1, base_momentum=0.0)
    assert SSGD() == SSGD(tau=1)
    assert AsynchronousSGD() == AsynchronousSGD(weight=1.0, sends="delta", tau=1)
    assert EASGD() == EASGD(alpha=0.5, tau=1)
    assert PolyakRuppert() == PolyakRuppert(alpha=0)
    assert all(rule() == dataclasses.replace(rule()) for rule in RULES.values())  # type: ignore[type-var]


NAN, INFINITY = float("nan"), float("inf")
NO_INTEGERS = (1.5, True, None, "2")
WEIGHTS = (0, -1, 2, NAN, None, True, "none", "1/0", "2")
BAD: dict[str, tuple[type, str, tuple[object, ...], str]] = {
    "alpha": (SMA, "alpha", (0, -0.5, 1.5, NAN, INFINITY, "0.5", True), "a finite number > 0 and ≤ 1 or None"),
    "alpha of easgd": (EASGD, "alpha", (0, 1.5, None, NAN), "a finite number > 0 and ≤ 1"),
    "alpha of synchronous": (SynchronousEASGD, "alpha", (0, 1.5), "a finite number > 0 and ≤ 1 or None"),
    "alpha of polyak": (PolyakRuppert, "alpha", (-0.1, 1.5, None), "a finite number ≥ 0 and ≤ 1"),
    "alpha_steps": (
        SMA,
        "alpha_steps",
        (0.5, None, "1:0.5", (1, 0.5), ((1,),), ((0, 0.5),), ((2, 0.5), (1, 0.5)), ((1, 0.5), (1, 0.25)), ((1, 0.0),)),
        r"pairs of a time > 0 and an alpha in \(0, 1\], the times ascending, as \(\(30, 0.1\), \(60, 0.05\)\)",
    ),
    "alpha_steps of polyak": (
        PolyakRuppert,
        "alpha_steps",
        (((1, -0.1),), ((1, 1.1),), ((1, NAN),), ((NAN, 0.5),)),
        r"pairs of a time > 0 and an alpha in \[0, 1\], the times ascending, as .*",
    ),
    "tau": (SMA, "tau", (0, -1, *NO_INTEGERS), "an integer ≥ 1"),
    "mu": (SMA, "base_momentum", (-0.1, 1, 1.5, NAN, None, "0.9", True), "a finite number ≥ 0 and < 1"),
    "tau of ssgd": (SSGD, "tau", (0, 2, None, True, 1.0), "1: gradients are merged at every step"),
    "tau of averaging": (ModelAveraging, "tau", (0, *NO_INTEGERS), "an integer ≥ 1"),
    "tau of hogwild": (Hogwild, "tau", (0, 2), "1: z is stepped at every task"),
    "tau of ssp": (SSP, "tau", (0, 2), "1: a gradient is sent at every step"),
    "weight": (AsynchronousSGD, "weight", WEIGHTS, r"a number in \(0, 1\], as 0.25 or '1/4', or '1/staleness'"),
    "weight of ssp": (SSP, "weight", WEIGHTS, r"a number in \(0, 1\], as 0.25 or '1/4', or '1/staleness'"),
    "sends": (AsynchronousSGD, "sends", ("weights", None, ""), "one of 'delta', 'gradient'"),
    "bound": (SSP, "bound", (-1, *NO_INTEGERS), "an integer ≥ 0"),
    "max_advance": (PartiallySynchronous, "max_advance", (0, *NO_INTEGERS), "an integer ≥ 1"),
    "window": (WeedOut, "window", (0, *NO_INTEGERS), "an integer ≥ 1"),
    "probability": (Gossip, "probability", (-0.1, 1.1, None, NAN), "a finite number ≥ 0 and ≤ 1"),
    "groups": (
        Grouping,
        "groups",
        (0, 1.5, "auto", (), ((),), ((0, 2),), ((0,), (0, 1)), (0, 1), ((1,),)),
        "lists of learners from 0 on, each in one, as .*, an integer ≥ 1, or None",
    ),
}


@pytest.mark.parametrize(
    ("rule", "name", "value", "allowed"),
    [(rule, name, value, allowed) for rule, name, values, allowed in BAD.values() for value in values],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(
    rule: type, name: str, value: object, allowed: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"{rule.__name__}: {name} must be {allowed}\. Received: ") as error:
        rule(**{name: value})
    assert str(error.value).endswith(f"Received: {name}={value!r}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SMA(alhpa=1), "SMA has no 'alhpa'. Did you mean 'alpha'? Known names: alpha, tau, base_momentum, "),
        (lambda: SSP(staleness=1), "SSP has no 'staleness'. Known names: bound, weight, tau. Received: staleness=1"),
        (lambda: SSGD(1, 2), "SSGD takes at most tau by position. Received: (1, 2)"),
        (lambda: SSP(1, 1, 1, 2), "SSP takes at most bound, weight, tau by position. Received: (1, 1, 1, 2)"),
        (lambda: SMA(0.1, alpha=0.2), "SMA received alpha twice, by position and by name"),
        (RuleSequence, "RuleSequence needs phases"),
    ],
)
def test_an_unknown_parameter_is_answered_with_the_known_ones(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make()


def test_a_gradient_is_sent_at_every_step() -> None:
    with pytest.raises(ConfigurationError, match="tau must be 1: a gradient is sent at every step"):
        AsynchronousSGD(sends="gradient", tau=2)
    assert AsynchronousSGD(sends="delta", tau=2).tau == 2


@pytest.mark.parametrize("values", [{"alpha": 1}, {"alpha": 0.001}, {"tau": 100}, {"base_momentum": 0.99}])
def test_good_values_are_taken(values: dict[str, float]) -> None:
    ((name, value),) = values.items()
    assert getattr(SMA(**values), name) == value  # type: ignore[arg-type]


def test_rules_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SMA().alpha = 0.5  # type: ignore[misc]


# Strengths, and weights of contributions.


def test_alpha_is_1_by_k_but_a_half_for_one_learner() -> None:
    """With α = 1 one learner would not converge."""
    pace = Pace(0.1, 0.9)
    assert [SMA().strength(pace, k) for k in (1, 2, 4, 8)] == [0.5, 0.5, 0.25, 0.125]
    assert [SMA(alpha=0.3).strength(pace, k) for k in (1, 4)] == [0.3, 0.3]


@pytest.mark.parametrize("rule", [SMA, SynchronousEASGD, PolyakRuppert, EASGD])
def test_alpha_goes_by_steps_in_the_schedules_time(rule: Any) -> None:
    stepped = rule(alpha=0.5, alpha_steps=((1.5, 0.25), (4, 0.125)))
    times = (0, 1, 1.5, 2, 3.9, 4, 1000)
    found = [stepped.strength(Pace(0.1, 0.9, time=time), 2) for time in times]
    assert found == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]
    assert rule(alpha=0.5).strength(Pace(0.1, 0.9, time=1000), 2) == 0.5


def test_polyak_ruppert_may_stop_pulling() -> None:
    stepped = PolyakRuppert(alpha=0.5, alpha_steps=((3, 0.0),))
    assert [stepped.strength(Pace(0.1, 0.9, time=time), 2) for time in (2, 3)] == [0.5, 0.0]


def test_alpha_does_not_depend_on_a_variables_learning_rate() -> None:
    rule = SMA(alpha=0.5, alpha_steps=((1, 0.25),))
    pace = Pace(0.5, 0.75, 3, 2.0)
    assert pace.times(2.0) == pace._replace(rate=1.0)
    assert rule.strength(pace.times(2.0), 2) == 0.25


def test_what_steps_of_alpha_come_to_is_limited_by_the_number_of_learners() -> None:
    with pytest.raises(ConfigurationError, match=r"SMA: alpha_steps must be < 2/\(k \+ 1\) = 0.5 with k = 3 learners"):
        SMA(alpha=0.25, alpha_steps=((1, 0.125), (2, 0.5))).check_learners(3)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(1, [1, 1]), (0.25, [0.25, 0.25]), ("1/4", [0.25, 0.25]), ("1/staleness", [1, 0.2]), ("staleness", [1, 0.2])],
)
@pytest.mark.parametrize("rule", [AsynchronousSGD, SSP])
def test_asynchronous_weights(rule: Any, weight: Any, expected: list[float]) -> None:
    assert [rule(weight=weight).omega(Arrival(0, 3, staleness=y)) for y in (1, 5)] == expected


def test_a_group_of_n_weighs_one_nth_and_less_where_it_is_stale() -> None:
    assert [Grouping().omega(Arrival(0, 9, n, y)) for n, y in ((1, 1), (4, 1), (4, 2))] == [1, 0.25, 0.125]


def test_weed_out_looks_at_the_last_finishers() -> None:
    """Two learners, N = 3: until three have finished all are merged; then those among the last three."""
    omega = WeedOut(window=3).omega
    assert omega(Arrival(0, 2)) == omega(Arrival(0, 2, finishers=(1, 1))) == 1
    assert omega(Arrival(0, 2, finishers=(1, 1, 1))) == 0
    assert omega(Arrival(0, 2, finishers=(0, 1, 1))) == 1
    assert [WeedOut(window=3).remembers(k) for k in (1, 3, 5)] == [3, 3, 5]


# What depends on the number of learners.


@pytest.mark.parametrize("learners", [1, 2, 3, 4, 8, 100])
def test_every_rule_allows_any_number_of_learners_by_default(learners: int) -> None:
    for rule in RULES.values():
        rule().check_learners(learners)
        assert rule().settled([1.0] * learners).name == rule.name
    SMA(alpha=1 / max(learners, 2)).check_learners(learners)


@pytest.mark.parametrize("rule", [SMA, SynchronousEASGD])
@pytest.mark.parametrize(("alpha", "learners"), [(1, 1), (0.7, 2), (2 / 3, 2), (0.5, 3), (0.1, 19)])
def test_a_strength_that_swings_is_refused(rule: Any, alpha: float, learners: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{rule.__name__}: alpha must be < 2/\(k \+ 1\) = .* with k = {learners} learners"
    ):
        rule(alpha=alpha).check_learners(learners)


def test_groups() -> None:
    assert Grouping([[1, 0], [2]]).groups == ((1, 0), (2,))  # type: ignore[arg-type]
    assert Grouping(2).settled([1.0] * 5).groups == ((0, 1), (2, 3, 4))
    assert Grouping().settled([1.0] * 3).groups == ((0, 1, 2),)
    assert Grouping().settled([1.0, 3.0, 1.1, 9.0, 3.3]).groups == ((3,), (1, 4), (0, 2))
    assert Grouping().settled([ALIKE, 1.0]).groups == ((0, 1),)
    assert Grouping().settled([1.01 * ALIKE, 1.0]).groups == ((0,), (1,))
    with pytest.raises(ConfigurationError, match="groups of 4 learners together"):
        Grouping(((0, 1), (2,))).settled([1.0] * 4)
    with pytest.raises(ConfigurationError, match="at most the number of learners, 2"):
        Grouping(3).settled([1.0] * 2)


def test_in_a_barrier_all_wait_though_the_drift_has_become_small() -> None:
    """m = 2: learner 0 was two ahead of learner 2 and waits, so learner 2 waits as well, and then learner 1."""
    rule = PartiallySynchronous(max_advance=2)
    assert not any(rule.may_start([2, 1, 1], {0, 2}, learner) for learner in (0, 2))
    assert all(rule.may_start([2, 2, 1], {0, 1, 2}, learner) for learner in (0, 1, 2))


@pytest.mark.parametrize("probability", [0.0, 0.2, 1.0])
def test_gossip_goes_to_all_others_alike(probability: float) -> None:
    rule, draws = Gossip(probability), 4000
    peers = [rule.peer(1, 4, clock, seed=5) for clock in range(draws)]
    assert peers == [rule.peer(1, 4, clock, seed=5) for clock in range(draws)]
    assert probability in (0, 1) or peers != [rule.peer(2, 4, clock, seed=5) for clock in range(draws)]
    counts = [peers.count(peer) / draws for peer in (0, 1, 2, 3)]
    assert counts[1] == 0
    assert [counts[i] for i in (0, 2, 3)] == pytest.approx([probability / 3] * 3, abs=0.03)
    assert rule.peer(0, 1, 0, seed=0) is None


# Updates.

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


@pytest.mark.parametrize("module", [gossip, grouping, simulator])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
