"""`crossbow timeline`, and the option --profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossbow import Timeline, cli
from models import lenet

SHORT = [
    "--dataset",
    "synthetic",
    "--training-examples",
    "64",
    "--test-examples",
    "8",
    "--epochs",
    "1",
    "--learners",
    "1",
]


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    arguments = [*SHORT, "--batch-size", "4", "--profile", "8", "--output-directory", str(path)]
    assert lenet.SCRIPT.main(arguments) == 0
    return path


@pytest.mark.slow
def test_where_the_time_went(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["timeline", str(run_directory)]) == 0
    output = capsys.readouterr().out
    assert " tasks in " in output
    assert "largest loss: " in output
    assert "conv1.gradient" in output
    assert "(in that of 'conv1')" in output


@pytest.mark.slow
def test_a_file_as_json(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_directory / "trace.json.gz"
    assert cli.main(["timeline", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    made = Timeline.load(file)
    assert 8 <= found["tasks"] == made.tasks <= 16
    assert found["learners"] == {"learner 0": made.shares("learner 0")}
    assert [each["name"] for each in found["operators"]] == [each.name for each in made.operators()]
    assert [each["share"] for each in found["losses"]] == [each.share for each in made.losses()]


@pytest.mark.slow
def test_a_script_prints_the_slowest_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An older timeline does not outlive a run without one."""
    arguments = [*SHORT, "--output-directory", str(tmp_path)]
    assert lenet.SCRIPT.main([*arguments, "--profile"]) == 0
    output = capsys.readouterr().out
    assert f"timeline {tmp_path}/trace.json.gz, for ui.perfetto.dev" in output
    assert "largest loss: " in output
    assert lenet.SCRIPT.main([*arguments, "--overwrite"]) == 0
    assert "largest loss" not in capsys.readouterr().out
    assert cli.main(["timeline", str(tmp_path)]) == 2
    assert "expected the directory of a run with --profile" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "x", "-3"])
def test_wrong_numbers_of_tasks(value: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        lenet.SCRIPT.main([*SHORT, f"--profile={value}", "--output-directory", str(tmp_path)])
