"""Configurations as JSON values, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from crossbow import DataError, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.runtime.recorded import differences, rebuilt, recorded
from crossbow.synch import RULES, SMA, SSGD, SSP, DiLoCo, Grouping, ModelAveraging, Rule, RuleSequence, TwoLevel

SEQUENCE = RuleSequence(((SMA(alpha=0.25), 10), (SSP(bound=3, weight=0.1), 2)))


@pytest.mark.parametrize(
    "conf",
    [
        ModelConf(batch_size=3, test_interval=7, test_interval_unit=TrainingUnit.TASKS, local_variables=("*norm*",)),
        ModelConf(rule=SEQUENCE, wpc=4),
        ModelConf(rule=TwoLevel(SMA(tau=2), DiLoCo(tau=5))),
        ModelConf(rule=RuleSequence(((TwoLevel(SSGD()), 5), (TwoLevel(), 2)))),
        ModelConf(rule=Grouping(groups=((0, 2), (1,)))),
        SolverConf(learning_rate=0.1 + 0.2, policy="multistep", step_values=(3, 5), gamma=0.3),
        SystemConf(devices="cpu:0/2,cpu:1/2", learners_per_device=3, order="files", files_together=2),
        *(ModelConf(rule=rule()) for rule in RULES.values()),
    ],
    ids=str,
)
def test_a_round_trip(conf: Any) -> None:
    assert rebuilt(type(conf), json.loads(json.dumps(recorded(conf)))) == conf


def test_a_rule_of_ones_own_must_be_given_again() -> None:
    record = recorded(ModelConf(rule=SMA()))
    record["rule"]["rule"] = "mine"
    with pytest.raises(DataError, match=r"expected one of the rules sma.*Received: mine"):
        rebuilt(ModelConf, record)


class Mine(Rule):
    """A rule of one's own, which need not be a dataclass."""

    name = "mine"

    def updates(self, *arguments: Any) -> Any: ...


@dataclass
class SimpleRule:
    rule: Rule


@dataclass
class Plain:
    """Fields without a domain."""

    sizes: tuple[tuple[int, ...], ...] = ()


def test_lists_are_tuples_as_they_were() -> None:
    conf = Plain(((1, 2), (3,)))
    assert rebuilt(Plain, json.loads(json.dumps(recorded(conf)))) == conf


def test_a_rule_without_parameters_is_its_name() -> None:
    assert recorded(SimpleRule(Mine())) == {"rule": {"rule": "mine"}}


def test_a_value_that_is_not_accepted() -> None:
    with pytest.raises(DataError, match=r"record of a SolverConf of this version.*learning_rate"):
        rebuilt(SolverConf, {**recorded(SolverConf()), "learning_rate": -1})


def test_differences_show_both_values() -> None:
    before, now = ModelConf(rule=SMA(), batch_size=4), ModelConf(rule=SSGD(), batch_size=4, skip=0.0)
    assert list(differences(recorded(before), recorded(now))) == [
        "rule: sma(alpha=None, tau=1, base_momentum=0.0, alpha_steps=[]) → ssgd(tau=1)"
    ]
    changed = SolverConf(learning_rate=0.01)
    assert list(differences(recorded(SolverConf(learning_rate=0.1)), recorded(changed))) == [
        "learning_rate: 0.1 → 0.01"
    ]
    assert list(differences({}, {"epochs": 3})) == ["epochs: None → 3"]


def test_differences_of_two_levels() -> None:
    before, now = (recorded(ModelConf(rule=TwoLevel(SSGD(), ModelAveraging(tau=tau)))) for tau in (2, 3))
    expected = "rule: ssgd(tau=1) within ranks, model-averaging(tau={}) between them"
    assert list(differences(before, now)) == [f"{expected.format(2)} → {expected.format(3).removeprefix('rule: ')}"]
