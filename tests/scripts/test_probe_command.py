"""The command `crossbow probe`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossbow.cli import main
from crossbow.cluster.host_files import read_data_sharding, read_groups
from crossbow.cluster.mpirun import MpiLaunch
from crossbow.scripts import probe_command
from tests.cluster.test_mpi import NEEDS_MPI, environment, mpirun

MODEL = ["models.logistic_regression", "--dataset", "synthetic", "--training-examples", "64", "--kernels", "reference"]


def test_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--seconds", "0.05", "-o", str(tmp_path), *MODEL]) == 0
    assert re.search(r"^rank 0 on \S+: [\d,]+ examples/s\nwritten: ", capsys.readouterr().out)
    assert read_data_sharding(tmp_path / "data_sharding") == [(0.0, 1.0)]
    (rank,) = json.loads((tmp_path / "speeds.json").read_text("utf-8"))["ranks"]
    assert rank["examples_per_second"] > 0


def test_what_is_wrong_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "models.nothing"]) == 2
    expected = "crossbow: error: expected a module with a model script, as models.resnet. Received: 'models.nothing'"
    assert capsys.readouterr().err.startswith(expected)


def test_an_option_after_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["probe", "models.lenet", "-n", "1"])
    expected = "unrecognized arguments: -n 1. Options of crossbow probe precede MODEL. Received after it: -n\n"
    assert capsys.readouterr().err.endswith(expected)


def test_a_model_or_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--network"]) == 0
    assert capsys.readouterr().out == "one rank: there is no network to measure\n"
    assert main(["probe"]) == 2
    assert "expected a module with a model script, or --network. Received: neither" in capsys.readouterr().err


def test_hosts_start_ranks_with_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(probe_command, "launch_on_mpi", lambda *what: launched.extend(what) or 5)
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 slots=2\nnode2\n")
    assert main(["probe", "--hosts", str(hosts), "-n", "3", "-o", str(tmp_path), *MODEL]) == 5
    program, launch = launched
    names = ("--names", "node1,node1,node2")
    assert program.arguments == ("probe", "--seconds", "2.0", "-o", str(tmp_path), *names, *MODEL)
    assert launch == MpiLaunch(ranks=3, hosts=hosts)
    assert main(["probe", "--hosts", str(hosts), "-n", "3", "-o", str(tmp_path), "-m", *MODEL]) == 5  # as for `launch`
    assert launched[2:] == [program, launch]


@NEEDS_MPI
@pytest.mark.slow
def test_the_network_between_ranks() -> None:
    done = mpirun(3, "-m", "crossbow", "probe", "--network")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"latency [\d,]+ µs, bandwidth [\d,]+ MB/s$", done.stdout, re.MULTILINE)) == 3


@NEEDS_MPI
@pytest.mark.slow
def test_ranks_of_mpi(tmp_path: Path) -> None:
    done = mpirun(3, "-m", "crossbow", "probe", "--seconds", "0.3", "-o", str(tmp_path), *MODEL)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^rank \d on \S+: [\d,]+ examples/s$", done.stdout, re.MULTILINE)) == 3
    assert (
        len(
            re.findall(
                r"^rank \d \(\S+\) and rank \d \(\S+\): latency [\d,]+ µs, bandwidth [\d,]+ MB/s$",
                done.stdout,
                re.MULTILINE,
            )
        )
        == 3
    )
    (group,) = read_groups(tmp_path / "groups")  # of one host
    assert len(group) == 3
    assert len(read_data_sharding(tmp_path / "data_sharding")) == 3


@NEEDS_MPI
@pytest.mark.slow
def test_groups_have_the_names_of_the_file(tmp_path: Path) -> None:
    """`crossbow launch --groups` compares them with the same file. localhost is not what the machine calls itself."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    command = [
        sys.executable,
        "-m",
        "crossbow",
        "probe",
        "--hosts",
        str(hosts),
        "--seconds",
        "0.3",
        "-o",
        str(tmp_path),
    ]
    done = subprocess.run([*command, *MODEL], capture_output=True, text=True, env=environment(), timeout=200)
    assert done.returncode == 0, done.stderr
    assert read_groups(tmp_path / "groups") == [("localhost", "localhost")]
