"""The proof by killing, with few kills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import kills
from benchmarks.kills import INTERVAL, SEQUENCE, Killed, learners_of, main, rule_of, table
from crossbow.synch import RULES, BarrierRule, RuleSequence


def test_every_rule_can_be_killed() -> None:
    for name in [*RULES, SEQUENCE]:
        rule = rule_of(name)
        assert learners_of(rule) == (2 if isinstance(rule, BarrierRule | RuleSequence) else 1)


def test_the_table_adds_up() -> None:
    found = [Killed("sma", 2, 1, [5, 30], 1, 1), Killed("ssgd", 1, 0, [7], 2, 1)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(found).splitlines()]
    assert rows[2:] == [
        ["sma", "2", "1", "30", "1 of 1"],
        ["ssgd", "1", "0", "7", "1 of 2"],
        ["all", "3", "1", "30", "2 of 3"],
    ]


def test_a_run_that_ends_otherwise_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "results", lambda *arguments: iter([Killed("sma", 1, 0, [3], 1, 0)]))
    assert main(["--rule", "sma"]) == 1
    monkeypatch.setattr(kills, "results", lambda *arguments: iter([Killed("sma", 1, 0, [3], 1, 1)]))
    assert main(["--rule", "sma"]) == 0


def test_unknown_rules(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rule", "sma,none"])
    assert "expected all, or names among sma" in capsys.readouterr().err


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    assert main(["--kills", "20", "--rule", "sma,ssgd,easgd,sequence", "--json", str(tmp_path / "kills.json")]) == 0
    found = json.loads((tmp_path / "kills.json").read_text())
    assert sum(each["kills"] for each in found) == 20
    assert sum(each["inside"] for each in found) >= 5
    assert all(0 <= lost <= INTERVAL for each in found for lost in each["lost"])
    assert max(lost for each in found for lost in each["lost"]) > 0
