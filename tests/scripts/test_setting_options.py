"""A field that is declared with `setting` is an option: nothing else has to be written for it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from crossbow import ConfigurationError, SolverConf
from crossbow.conf import FieldSetting, configuration, field_docstrings, parameters, setting, settings
from crossbow.domains import Choice, Flag, Integer, Number
from crossbow.scripts import Defaults
from crossbow.scripts.parser import Configurations, configurations, new_parser
from crossbow.scripts.rule_options import rule_text
from crossbow.synch import RULES, Gossip, Rule


@configuration
class Annealing(SolverConf):
    """A solver with more settings."""

    temperature: float = setting(Number(above=0, at_most=100), default=20.0)
    """Temperature at the start, in
    per cent (100 %).

    What this paragraph says is not in the help."""
    cooling: str = setting(Choice(("fast", "slow")), default="slow")
    """Speed of `temperature`."""
    reheat: bool = setting(Flag(), default=True)
    """Whether to start again."""
    hidden: int = 3
    """No setting, so no option."""


@parameters
class Whisper(Gossip):
    """A rule with one more setting."""

    name: ClassVar[str] = "whisper"

    range: int | None = setting(Integer(at_least=2, optional=True), default=None, meaning="all learners")
    """Learners that hear it."""


def parser(solver: SolverConf) -> tuple[argparse.ArgumentParser, Defaults]:
    defaults = Defaults(epochs={"digits": 7}, batch_size=9, solver=solver)
    return new_parser("example", "Trains an example.", defaults)[0], defaults


def confs(arguments: str, solver: SolverConf) -> Configurations:
    made, defaults = parser(solver)
    return configurations(made.parse_args(arguments.split()), defaults)


def help_text(solver: SolverConf) -> str:
    return " ".join(parser(solver)[0].format_help().split())


def test_a_new_setting_of_the_solver_is_an_option() -> None:
    text = help_text(Annealing(learning_rate=0.5, temperature=30))
    assert "--temperature X temperature at the start, in per cent (100 %), > 0 and ≤ 100 (default: 30)" in text
    assert "--cooling {fast,slow} speed of --temperature (default: slow)" in text
    assert "--reheat, --no-reheat whether to start again (default: on)" in text
    assert "not in the help" not in text
    assert "--hidden" not in text
    default = Annealing(learning_rate=0.5, temperature=30, hidden=4)
    assert confs("", default).solver == default
    given = confs("--temperature 5 --cooling fast --no-reheat --momentum 0.5", default).solver
    assert given == Annealing(learning_rate=0.5, temperature=5, cooling="fast", reheat=False, momentum=0.5, hidden=4)
    with pytest.raises(ConfigurationError, match="Annealing: temperature must be a finite number > 0 and ≤ 100"):
        confs("--temperature 101", default)


def test_a_new_setting_of_a_rule_is_an_option(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert "--range" not in help_text(SolverConf())
    monkeypatch.setitem(RULES, "whisper", Whisper)
    text = help_text(SolverConf())
    assert "--range N whisper: learners that hear it, ≥ 2 (default: all learners)" in text
    assert "--probability X gossip, whisper: probability of sending to another learner" in text
    rule = confs("--rule whisper --range 3 --probability 0.5", SolverConf()).model.rule
    assert rule == Whisper(range=3, probability=0.5)
    assert isinstance(rule, Rule)
    assert rule_text(rule, 4) == "whisper, probability 0.5, tau 1, range 3"
    assert rule_text(Whisper(), 4) == "whisper, probability 0.01, tau 1, range all learners"
    with pytest.raises(ConfigurationError, match=r"--range does nothing with --rule gossip\. Received: --range 3"):
        confs("--rule gossip --range 3", SolverConf())
    with pytest.raises(SystemExit):
        confs("--rule whisper --range 1", SolverConf())
    assert "argument --range: expected an integer ≥ 2. Received: '1'" in capsys.readouterr().err


def test_a_setting_is_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"Whisper: range must be an integer ≥ 2 or None\. Received: range=1"):
        Whisper(range=1)
    with pytest.raises(ConfigurationError, match="Annealing: cooling must be one of 'fast', 'slow'"):
        Annealing(cooling="medium")


def test_settings_are_listed_with_their_texts() -> None:
    known = settings(Annealing)
    assert list(known)[: len(settings(SolverConf))] == list(settings(SolverConf))
    assert known["policy"].option == "learning-rate-policy"
    assert known["cooling"] == FieldSetting(
        name="cooling",
        domain=Choice(("fast", "slow")),
        default="slow",
        option="cooling",
        meaning="slow",
        text="Speed of `temperature`.",
    )
    assert known["reheat"].typed(False) == "--no-reheat"
    assert known["temperature"].typed(5.0) == "--temperature 5"


def test_every_setting_has_a_text() -> None:
    kinds = (SolverConf, *RULES.values())
    without = [f"{kind.__name__}.{name}" for kind in kinds for name, found in settings(kind).items() if not found.text]
    assert without == []


def test_docstrings_of_a_class_without_source() -> None:
    """Typed into an interpreter."""
    names: dict[str, Any] = {"dataclass": dataclass}
    exec('@dataclass\nclass Typed:\n    number: int = 3\n    """A number."""\n', names)
    assert field_docstrings(names["Typed"]) == {}
