"""Coefficients: evaluated where the pace has changed that they depend on, one array for all learners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.kernels.reference.library import Reference
from crossbow.runtime.arithmetic import Ranges, VectorArithmetic
from crossbow.runtime.coefficients import ANY, Formula, Formulas, tick_formulas
from crossbow.solver import Pace, Update
from crossbow.solver.update import CONSTANT, total
from crossbow.synch import BarrierRule, ModelAveraging, PolyakRuppert

MEAN = total("sent", [0.5, 0.5])


def updates_at(
    rule: BarrierRule, solver: SolverConf, pace: Pace, learners: int, mean: Mapping[str, float]
) -> list[Update]:
    """What a tick's formulas say, in their order."""
    merge = rule.merge(solver, pace, learners)
    return [
        rule.local_step(solver, pace, learners, synchronises=False),
        rule.local_step(solver, pace, learners, synchronises=True),
        merge.expand("mean", mean) if mean else merge,
        rule.reply(solver, pace, learners),
    ]


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2, base_momentum=0.5), SSGD(), PolyakRuppert(alpha=0.5)], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mean", [{}, MEAN], ids=["several devices", "one device"])
def test_coefficients_follow_the_pace(rule: BarrierRule, momentum: float, mean: Mapping[str, float]) -> None:
    solver = SolverConf(momentum=momentum, weight_decay=0.1)
    formulas = tick_formulas(rule, solver, 2, mean=mean)
    numbers = np.zeros(formulas.length)
    bound = formulas.over(numbers)
    for pace in (Pace(0.5, 0.75), Pace(0.5, 0.75), Pace(0.25, 0.75), Pace(0.25, 0.5, tick=3)):
        numbers[:] = formulas.at(pace)
        for name, update in zip(
            ("local", "step", "merge", "reply"), updates_at(rule, solver, pace, 2, mean), strict=True
        ):
            assert bound[name].numbers[1.0].tolist() == update.coefficients
            assert bound[name].update.assignments == update.assignments


@pytest.mark.parametrize("learners", [1, 2, 8])
@pytest.mark.parametrize("alpha", [None, 0.125, 0.1])
def test_coefficients_follow_the_steps_of_alpha(alpha: float | None, learners: int) -> None:
    """z and replicas alike, wherever α begins."""
    for rule in (SMA(alpha=alpha, alpha_steps=((2, 0.05),)), PolyakRuppert(alpha=alpha or 0, alpha_steps=((2, 0.05),))):
        formulas = tick_formulas(rule, SolverConf(), learners)
        for time in (0, 2):
            pace = Pace(0.5, 0.0, time, time)
            expected = [c for update in updates_at(rule, SolverConf(), pace, learners, {}) for c in update.coefficients]
            assert formulas.at(pace).tolist() == expected


def test_an_array_that_was_given_is_never_written_again() -> None:
    """Learners may be ticks behind."""
    formulas = tick_formulas(SMA(), SolverConf(momentum=0.9), 2)
    first = formulas.at(Pace(0.5, 0.9))
    kept = first.copy()
    assert formulas.at(Pace(0.5, 0.9)) is first
    assert formulas.at(Pace(0.5, 0.9, tick=7, time=7.0)) is first  # on which nothing depends
    second = formulas.at(Pace(0.25, 0.9))
    assert second is not first
    np.testing.assert_array_equal(first, kept)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1.0


def test_rules_are_asked_again_only_where_the_pace_has_changed_that_they_depend_on() -> None:
    asked: list[Pace] = []

    def at(pace: Pace, about: None) -> Update:
        asked.append(pace)
        return Update((("w", {"w": pace.momentum}),), depends_on=frozenset({"momentum"}))

    formulas = Formulas({"step": Formula(at, None)})
    asked.clear()
    for momentum in (0.75, 0.75, 0.75, 0.25):
        for rate in (0.1, 0.2):
            formulas.at(Pace(rate, momentum, tick=3))
    assert [pace.momentum for pace in asked] == [0.75, 0.25]


def test_coefficients_that_have_come_back_to_what_they_were_are_the_same_array() -> None:
    formulas = tick_formulas(SMA(alpha=0.25, alpha_steps=((5, 0.125),)), SolverConf(), 2)
    first = formulas.at(Pace(0.1, 0.0, time=1.0))
    assert formulas.at(Pace(0.1, 0.0, time=4.0)) is first
    assert formulas.at(Pace(0.1, 0.0, time=5.0)) is not first


def test_the_sum_of_a_single_device_is_part_of_its_merge() -> None:
    merge = tick_formulas(SMA(alpha=0.25), SolverConf(), 2, mean=MEAN).over(np.zeros(99))["merge"].update
    assert merge.steps == (("base_next", {"base": 0.5, "sent0": 0.25, "sent1": 0.25}),)
    merge = tick_formulas(SMA(alpha=0.25), SolverConf(), 2).over(np.zeros(99))["merge"].update
    assert merge.steps == (("base_next", {"base": 0.5, "mean": 0.5}),)


def test_variables_with_another_rate_are_combined_apart() -> None:
    """Three ranges, two rates; the merge of SMA, which has no rate, stays whole."""
    runs = ((slice(0, 32), 1.0), (slice(32, 48), 2.0), (slice(48, 64), 1.0))
    ranges = Ranges(runs)
    assert ranges.multipliers == (1.0, 2.0)
    solver = SolverConf(momentum=0.5)
    formulas = tick_formulas(SMA(), solver, 2, ranges.multipliers, MEAN)
    numbers = np.zeros(formulas.length)
    numbers[:] = formulas.at(Pace(0.25, 0.5))
    bound = formulas.over(numbers)
    step = bound["step"]
    assert set(step.numbers) == {1.0, 2.0}
    assert set(bound["merge"].numbers) == {1.0}
    for multiplier, rate in ((1.0, 0.25), (2.0, 0.5)):
        expected = SMA().local_step(solver, Pace(rate, 0.5), 2, synchronises=True)
        assert step.numbers[multiplier].tolist() == expected.coefficients
    dtype = np.dtype(np.float64)
    arithmetic = VectorArithmetic(Reference(dtype), dtype, ranges)  # type: ignore[arg-type]

    def calls(place: slice) -> int:
        vectors = {name: np.zeros(64)[place] for name in step.update.vectors}
        return len(arithmetic.adjust("step", step, vectors, place))

    assert [calls(slice(*ends)) for ends in ((0, 64), (16, 40), (32, 48), (48, 48))] == [3, 2, 1, 0]


def test_the_vectors_of_an_update_do_not_depend_on_the_pace() -> None:
    solver = SolverConf(momentum=0.9, weight_decay=0.1)
    made = tick_formulas(SSGD(), solver, 2).over(np.zeros(99))["merge"].update
    for pace in (Pace(0.0, 0.0), ANY):
        assert made.assignments == SSGD().merge(solver, pace, 2).assignments


@pytest.mark.parametrize("rule", [SMA(), ModelAveraging(tau=2)], ids=str)
def test_what_learners_keep_takes_the_local_step_and_the_plain_mean(rule: BarrierRule) -> None:
    solver, pace = SolverConf(momentum=0.5), Pace(0.25, 0.5)
    formulas = tick_formulas(rule, solver, 2, (1.0, 2.0), MEAN, keeps=True)
    numbers = np.zeros(formulas.length)
    numbers[:] = formulas.at(pace)
    bound = formulas.over(numbers)
    step, merge, reply = bound["step"].alone, bound["merge"].alone, bound["reply"].alone
    assert step is not None
    assert merge is not None
    assert reply is not None
    for multiplier in (1.0, 2.0):
        local = rule.local_step(solver, pace.times(multiplier), 2, synchronises=False)
        assert step.numbers[multiplier].tolist() == local.coefficients
    assert merge.update.steps == (("base_next", MEAN),)
    assert merge.numbers[1.0].tolist() == [0.5, 0.5]
    assert reply.update.steps == ()
    assert merge.update.depends_on == CONSTANT


@pytest.mark.parametrize(
    ("own", "kept", "expected"),
    [
        (CONSTANT, None, set()),
        (CONSTANT, {"rate"}, {"rate"}),
        ({"rate"}, {"momentum"}, {"rate", "momentum"}),
        ({"rate"}, CONSTANT, {"rate"}),
    ],
)
def test_coefficients_depend_on_what_those_of_kept_variables_do(
    own: Iterable[str], kept: Iterable[str] | None, expected: set[str]
) -> None:
    def formula(fields: Iterable[str], alone: Formula[None] | None = None) -> Formula[None]:
        return Formula(lambda pace, _: Update((("base", MEAN),), depends_on=frozenset(fields)), None, alone=alone)

    made = formula(own, None if kept is None else formula(kept))
    assert made.depends_on == expected
    assert made.length == 2 + (kept is not None) * 2
    assert (made.key(Pace(0.5, 0.0)) == made.key(ANY)) == (not expected)
