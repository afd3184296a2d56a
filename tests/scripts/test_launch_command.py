"""`crossbow launch`, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crossbow.cli import main
from crossbow.cluster.mpirun import MpiLaunch
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ray.launching import RayLaunch
from crossbow.scripts import launch_command


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What was launched, in a directory with two scripts; the exit status is 7."""
    found: list[Any] = []
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "train.py"):
        (tmp_path / name).touch()

    def launch(*what: Any) -> int:
        found.extend(what)
        return 7

    monkeypatch.setattr(launch_command, "launch_on_ray", launch)
    monkeypatch.setattr(launch_command, "launch_on_mpi", launch)
    return found


def test_a_module_on_ray(launched: list[Any]) -> None:
    line = (
        "launch --address a:1 -n 4 --per-host 2 --resources CPU=8,fast=0.5 --min-ranks 2 --restarts 3 -m models.lenet"
    )
    assert main([*line.split(), "--epochs", "2", "-n", "5"]) == 7
    assert launched == [
        RankProgram("models.lenet", ("--epochs", "2", "-n", "5")),
        RayLaunch("a:1", 4, 2, {"CPU": 8.0, "fast": 0.5}, 2, 3),
    ]


def test_a_module_may_be_in_this_directory(launched: list[Any]) -> None:
    assert main(["launch", "-m", "train"]) == 7
    assert launched[0] == RankProgram("train", ())


def test_a_script_on_hosts_of_ray(launched: list[Any]) -> None:
    assert main(["launch", "--hosts", "file", "--agent", "rsh -l 'a b'", "train.py"]) == 7
    assert launched[1] == RayLaunch(hosts=Path("file"), agent=("rsh", "-l", "a b"))


def test_a_script_on_mpi(launched: list[Any]) -> None:
    assert main(["launch", "--engine", "mpi", "--hosts", "file", "--restarts", "1", "train.py", "--seed", "2"]) == 7
    assert launched == [
        RankProgram("train.py", ("--seed", "2"), is_module=False),
        MpiLaunch(None, None, Path("file"), 1),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "expected a program: -m MODULE or a script. Received: none"),
        ("--engine mpi --min-ranks 2 a.py", "--min-ranks does not apply to --engine mpi"),
        ("--engine mpi --agent rsh a.py", "--agent does not apply to --engine mpi"),
        ("--agent rsh a.py", "--agent needs a command, and --hosts FILE"),
        ("b.py --seed 1", "expected a script, or -m MODULE. Received: b.py, which is not a file"),
        ("-m a.b", "expected a module. Received: a.b, which Python does not find"),
        ("-m models.lenett", "expected a module. Received: models.lenett, which Python does not find"),
        ("-m models", "expected a module. Received: models, which Python does not find"),  # it has no __main__
        ("--check a.py", "--check runs no program, so it cannot be combined with a script"),
        ("--check -m models.lenet", "--check runs no program, so it cannot be combined with -m"),
        (
            "--check --data-sharding f",
            "--check runs no program, so it cannot be combined with --data-sharding",
        ),
        (
            "--hosts file --address auto a.py",
            "--hosts starts a cluster, and --address connects to another. Received: both",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    launched: list[Any], capsys: pytest.CaptureFixture[str], line: str, expected: str
) -> None:
    assert main(["launch", *line.split()]) == 2
    assert capsys.readouterr().err == f"crossbow: error: {expected}\n"
    assert launched == []


@pytest.mark.parametrize("text", ["CPU", "CPU=0", "=2", "CPU=nan", "CPU=2,"])
def test_resources_are_numbers(launched: list[Any], capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--resources", text, "a.py"])
    assert "expected NAME=N,… with numbers > 0" in capsys.readouterr().err


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files in the formats of MXNet-G."""
    texts = {"hosts": "a slots=2\nb\n", "groups": "b\na a\n", "sharding": "0 0.5\n0.5 1\n", "gap": "0 0.5\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


def test_groups_and_shares_become_options_of_the_program(launched: list[Any], files: dict[str, str]) -> None:
    given = ["--engine", "mpi", "--hosts", files["hosts"], "--groups", files["groups"]]
    assert main(["launch", *given, "-m", "models.lenet", "--learners", "2"]) == 7
    assert launched[0].arguments == ("--learners", "2", "--groups", "4,5/0,1,2,3", "--rule", "grouping")
    launched.clear()
    assert main(["launch", "-n", "2", "--data-sharding", files["sharding"], "-m", "models.lenet"]) == 7
    assert launched[0].arguments == ("--data-sharding", "0.0:0.5,0.5:1.0")  # the file may be on this machine only
    launched.clear()
    assert main(["launch", "-n", "2", "--data-sharding", "stride", "-m", "models.lenet"]) == 7
    assert launched[0].arguments == ("--data-sharding", "stride")


def test_faults_of_groups_and_shares_are_one_sentence(
    launched: list[Any], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    mpi = ["launch", "--engine", "mpi", "--hosts", files["hosts"], "--groups"]
    assert main([*mpi, files["groups"], "a.py"]) == 2
    assert "--groups needs --hosts FILE, and --learners N among" in capsys.readouterr().err
    assert main([*mpi, files["hosts"], "a.py", "--learners", "1"]) == 2
    assert "expected the hosts of a group. Received: 'slots=2'" in capsys.readouterr().err
    assert main([*mpi, files["groups"], "-n", "4", "a.py", "--learners", "1"]) == 2
    assert "expected slots for 4 ranks, with --groups. Received: 3" in capsys.readouterr().err
    assert main(["launch", "--data-sharding", files["gap"], "a.py"]) == 2
    assert "expected parts that adjoin, from 0 to 1. Received: a gap at 0.5" in capsys.readouterr().err
    assert launched == []


@pytest.mark.parametrize(("engine", "launch"), [("mpi", MpiLaunch(ranks=3)), ("ray", RayLaunch(ranks=3))])
def test_a_check_runs_no_program(launched: list[Any], engine: str, launch: MpiLaunch | RayLaunch) -> None:
    assert main(["launch", "--engine", engine, "-n", "3", "--check"]) == 7
    assert launched == [RankProgram("crossbow", ("probe", "--network")), launch]
