"""`crossbow compare`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossbow import cli
from tests.scripts.run_files import record, write_run


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    fast = [record(1, 0.5, seconds=1), record(2, 0.95, seconds=1)]
    slow = [record(1, 0.85), record(2, None), record(3, 0.875)]
    settings = [{"rule": "sma", "tau": 1, "seed": 0}, {"rule": "easgd", "seed": 0, "devices": ["cpu"]}]
    return [
        str(write_run(tmp_path / name, records, description={"settings": each}))
        for name, records, each in zip(("fast", "slow"), (fast, slow), settings, strict=True)
    ]


def test_the_table(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *runs, "--target", "0.9"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "                     fast    slow",
        "rule                 sma     easgd",
        "tau                  1       –",
        'devices              –       ["cpu"]',
        "epochs trained       2       3",
        "seconds of training  2.0     6.0",
        "images/s             40      20",
        "best test accuracy   95.00%  87.50%",
        "at epoch             2       3",
        "epochs to 0.9        2       –",
        "seconds to 0.9       2.0     –",
    ]


def test_as_json(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *runs, "--json", "--target", "0.86"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fast"]["settings"] == {"rule": "sma", "tau": 1, "devices": None}
    assert found["slow"]["results"] == {
        "epochs trained": 3.0,
        "seconds of training": 6.0,
        "images/s": 20.0,
        "best test accuracy": 0.875,
        "at epoch": 3.0,
        "epochs to 0.86": 3.0,
        "seconds to 0.86": 6.0,
    }


def test_a_run_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(write_run(tmp_path / "run", []))]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == ["epochs trained       –", "seconds of training  –"]


def test_defaults_are_settings_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that only one of the runs was given; the rule's settings are by their own names."""
    rule = {"rule": "sma", "alpha": None, "tau": 1}
    described = [
        {
            "settings": {"rule": "sma", **given},
            "configuration": {"model": {"rule": rule}, "solver": {"learning_rate": given.get("learning_rate", 0.02)}},
        }
        for given in ({}, {"learning_rate": 0.05})
    ]
    runs = [str(write_run(tmp_path / name, [], description=each)) for name, each in zip("ab", described, strict=True)]
    assert cli.main(["compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["settings"] for run in found.values()] == [{"learning_rate": 0.02}, {"learning_rate": 0.05}]
