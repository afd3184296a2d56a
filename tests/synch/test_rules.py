"""The rules as configurations: names, parameters, what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from crossbow.solver import Pace
from crossbow.synch import RULES, Rule, rule_class


def test_rules_by_their_name_on_the_command_line() -> None:
    assert RULES == {"sma": SMA, "ssgd": SSGD}
    assert all(rule_class(name) is rule and rule.name == name for name, rule in RULES.items())
    assert all(issubclass(rule, Rule) for rule in RULES.values())


@pytest.mark.parametrize("name", ["SMA", "easgd", "", None, 3, ["sma"]])
def test_an_unknown_rule_is_answered_with_the_known_ones(name: object) -> None:
    with pytest.raises(ConfigurationError, match=r"rule must be one of sma, ssgd\. Received: "):
        rule_class(name)  # type: ignore[arg-type]


def test_defaults() -> None:
    assert SMA() == SMA(alpha=None, tau=1, base_momentum=0.0)
    assert SSGD() == SSGD(tau=1)


NAN, INFINITY = float("nan"), float("inf")
BAD: dict[str, tuple[type, str, tuple[object, ...], str]] = {
    "alpha": (SMA, "alpha", (0, -0.5, 1.5, NAN, INFINITY, "0.5", True), r"a number in \(0, 1\] or None \(1/k\)"),
    "tau": (SMA, "tau", (0, -1, 1.5, True, None, "2"), "an integer ≥ 1"),
    "mu": (SMA, "base_momentum", (-0.1, 1, 1.5, NAN, None, "0.9", True), r"a number in \[0, 1\)"),
    "tau of ssgd": (SSGD, "tau", (0, 2, None, True, 1.0), "1: gradients are merged at every step"),
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


@pytest.mark.parametrize("values", [{"alpha": 1}, {"alpha": 0.001}, {"tau": 100}, {"base_momentum": 0.99}])
def test_good_values_are_taken(values: dict[str, float]) -> None:
    ((name, value),) = values.items()
    assert getattr(SMA(**values), name) == value  # type: ignore[arg-type]


def test_rules_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SMA().alpha = 0.5  # type: ignore[misc]


def test_weights_of_contributions() -> None:
    """SMA: α, by default 1/k, but ½ for one learner (α = 1 with one learner would not converge). S-SGD: 1/k."""
    assert [SMA().weight(k) for k in (1, 2, 4, 8)] == [0.5, 0.5, 0.25, 0.125]
    assert [SMA(alpha=0.3).weight(k) for k in (1, 4)] == [0.3, 0.3]
    assert [SSGD().weight(k) for k in (1, 2, 8)] == [1, 0.5, 0.125]


@pytest.mark.parametrize("learners", [1, 2, 3, 4, 8, 100])
def test_the_default_strength_is_always_allowed(learners: int) -> None:
    SMA().check_learners(learners)
    SMA(alpha=1 / max(learners, 2)).check_learners(learners)
    SSGD().check_learners(learners)


@pytest.mark.parametrize(("alpha", "learners"), [(1, 1), (0.7, 2), (2 / 3, 2), (0.5, 3), (0.1, 19)])
def test_a_strength_that_swings_is_refused(alpha: float, learners: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"SMA: alpha must be < 2/\(k \+ 1\) = .* with k = {learners} learners"
    ):
        SMA(alpha=alpha).check_learners(learners)


SOLVERS = [
    SolverConf(),
    SolverConf(momentum=0.9),
    SolverConf(weight_decay=0.1),
    SolverConf(momentum=0.9, momentum_method="nesterov", weight_decay=0.1),
    SolverConf(weight_decay=0.1, regularisation="l1"),
    SolverConf(momentum=0.9, momentum_method="nesterov", weight_decay=0.1, regularisation="l1"),
]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rule", [SMA(), SMA(base_momentum=0.5), SMA(tau=3), SSGD()])
def test_updates_keep_their_shape_whatever_the_pace(rule: Rule, solver: SolverConf) -> None:
    """Kernels are prepared once and only their numbers change."""
    for learners in (1, 2, 5):
        for make in (
            lambda pace, k=learners: rule.local_step(solver, pace, k, synchronises=True),
            lambda pace, k=learners: rule.local_step(solver, pace, k, synchronises=False),
            lambda pace, k=learners: rule.merge(solver, pace, k),
        ):
            paces = (Pace(0.1, 0.9), Pace(0.0, 0.9), Pace(3.0, 0.0))
            assert len({(made.assignments, made.signs) for made in map(make, paces)}) == 1
