"""The rules as configurations: names, parameters, what is refused."""

from __future__ import annotations

import dataclasses
import doctest
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from crossbow import SMA, SSGD, ConfigurationError
from crossbow.synch import (
    EASGD,
    RULES,
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
    RuleSequence,
    SynchronousEASGD,
    WeedOut,
    gossip,
    grouping,
    rule_class,
    simulator,
)
from tests.configurations import declared


def test_rules_by_their_name_on_the_command_line() -> None:
    assert {
        "sma": SMA,
        "synchronous-easgd": SynchronousEASGD,
        "ssgd": SSGD,
        "model-averaging": ModelAveraging,
        "polyak-ruppert": PolyakRuppert,
        "diloco": DiLoCo,
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
    assert DiLoCo() == DiLoCo(tau=50, outer_learning_rate=0.7, outer_momentum=0.9)
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
    "tau of diloco": (DiLoCo, "tau", (0, *NO_INTEGERS), "an integer ≥ 1"),
    "outer_learning_rate": (DiLoCo, "outer_learning_rate", (0, -0.7, NAN, INFINITY, None, True), "a finite number > 0"),
    "outer_momentum": (DiLoCo, "outer_momentum", (-0.1, 1, NAN, None, True), "a finite number ≥ 0 and < 1"),
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
        (0, 1.5, "auto", (), ((),), ((0,), ()), ((0, 2),), ((0,), (0, 1)), (0, 1), ((1,),), ((0, 1.0),), ((False, 1),)),
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


@pytest.mark.parametrize("values", [{"alpha": 1}, {"alpha": 0.001}, {"tau": 100}, {"base_momentum": 0.99}])
def test_good_values_are_taken(values: dict[str, float]) -> None:
    ((name, value),) = values.items()
    assert getattr(SMA(**values), name) == value  # type: ignore[arg-type]


def test_rules_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SMA().alpha = 0.5  # type: ignore[misc]


# What depends on the number of learners.


@pytest.mark.parametrize("learners", [1, 2, 3, 4, 8, 100])
def test_every_rule_allows_any_number_of_learners_by_default(learners: int) -> None:
    for rule in RULES.values():
        rule().check_learners(learners)
        assert rule().settled([1.0] * learners).name == rule.name
    SMA(alpha=1 / max(learners, 2)).check_learners(learners)


@pytest.mark.parametrize("module", [gossip, grouping, simulator])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


DECLARED = """\
SMA.alpha=None --alpha (1/k with k learners, 1/2 with one)
    a finite number > 0 and ≤ 1 or None
SMA.tau=1 --tau (1)
    an integer ≥ 1
SMA.base_momentum=0.0 --base-momentum (0)
    a finite number ≥ 0 and < 1
SMA.alpha_steps=() --alpha-steps (none)
    pairs of a time > 0 and an alpha in (0, 1], the times ascending, as ((30, 0.1), (60, 0.05))
SynchronousEASGD.alpha=None --alpha (1/k with k learners, 1/2 with one)
    a finite number > 0 and ≤ 1 or None
SynchronousEASGD.tau=1 --tau (1)
    an integer ≥ 1
SynchronousEASGD.alpha_steps=() --alpha-steps (none)
    pairs of a time > 0 and an alpha in (0, 1], the times ascending, as ((30, 0.1), (60, 0.05))
ModelAveraging.tau=1 --tau (1)
    an integer ≥ 1
PolyakRuppert.alpha=0.0 --alpha (0, none)
    a finite number ≥ 0 and ≤ 1
PolyakRuppert.tau=1 --tau (1)
    an integer ≥ 1
PolyakRuppert.alpha_steps=() --alpha-steps (none)
    pairs of a time > 0 and an alpha in [0, 1], the times ascending, as ((30, 0.1), (60, 0.05))
DiLoCo.tau=50 --tau (50)
    an integer ≥ 1
DiLoCo.outer_learning_rate=0.7 --outer-learning-rate (0.7)
    a finite number > 0
DiLoCo.outer_momentum=0.9 --outer-momentum (0.9)
    a finite number ≥ 0 and < 1
Default.tau=1 --tau (1)
    an integer ≥ 1
AsynchronousSGD.weight=1.0 --weight (1)
    a number in (0, 1], as 0.25 or '1/4', or '1/staleness'
AsynchronousSGD.sends='delta' --sends (delta)
    one of 'delta', 'gradient'
AsynchronousSGD.tau=1 --tau (1)
    an integer ≥ 1
SSP.bound=0 --bound (0)
    an integer ≥ 0
SSP.weight=1.0 --weight (1)
    a number in (0, 1], as 0.25 or '1/4', or '1/staleness'
PartiallySynchronous.max_advance=1 --max-advance (1)
    an integer ≥ 1
PartiallySynchronous.tau=1 --tau (1)
    an integer ≥ 1
WeedOut.window=1 --window (the number of learners)
    an integer ≥ 1
WeedOut.tau=1 --tau (1)
    an integer ≥ 1
EASGD.alpha=0.5 --alpha (0.5)
    a finite number > 0 and ≤ 1
EASGD.tau=1 --tau (1)
    an integer ≥ 1
EASGD.alpha_steps=() --alpha-steps (none)
    pairs of a time > 0 and an alpha in (0, 1], the times ascending, as ((30, 0.1), (60, 0.05))
Gossip.probability=0.01 --probability (0.01)
    a finite number ≥ 0 and ≤ 1
Gossip.tau=1 --tau (1)
    an integer ≥ 1
Grouping.groups=None --groups (by speed)
    lists of learners from 0 on, each in one, as ((0, 1), (2,)), an integer ≥ 1, or None
"""


def test_names_and_defaults_of_options() -> None:
    """Commands that users have written rely on them."""
    assert declared(*RULES.values()) == DECLARED
