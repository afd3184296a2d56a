"""`crossbow launch --engine mpi`: the command, and what follows from its exit status."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from crossbow import ConfigurationError, DataError
from crossbow.cluster import mpirun
from crossbow.cluster.mpirun import MpiLaunch, launch_on_mpi
from crossbow.cluster.program import RankProgram
from tests.support import until

PROGRAM = RankProgram("models.lenet", ("--epochs", "2"))


def test_the_command() -> None:
    common = ["--oversubscribe", "--bind-to", "none", *PROGRAM.command()]
    assert MpiLaunch().command("mpirun", PROGRAM) == ["mpirun", "-n", "1", *common]
    assert MpiLaunch(ranks=4, per_host=2, hosts=Path("hosts")).command("mpirun", PROGRAM) == [
        "mpirun", "--hostfile", "hosts", "-n", "4", "--map-by", "ppr:2:node", *common
    ]  # fmt: skip
    assert MpiLaunch(hosts=Path("hosts")).command("mpirun", PROGRAM) == ["mpirun", "--hostfile", "hosts", *common]


def test_without_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun.shutil, "which", lambda name, path: None)
    with pytest.raises(ConfigurationError, match=r"needs the command mpirun: pip install 'crossbow\[mpi\]'"):
        launch_on_mpi(PROGRAM, MpiLaunch())


def test_faults_of_a_file_of_hosts(tmp_path: Path) -> None:
    """mpirun would print pages, or nothing."""
    hosts = tmp_path / "hosts"
    with pytest.raises(DataError, match="hosts: expected a text file with hosts"):
        launch_on_mpi(PROGRAM, MpiLaunch(hosts=hosts))
    hosts.write_text("node1\nnode2 slots=x\n")
    with pytest.raises(
        DataError, match=r"hosts, line 2: expected a host, as node1 or node1 slots=2\. Received: 'node2 "
    ):
        launch_on_mpi(PROGRAM, MpiLaunch(hosts=hosts))
    hosts.write_text("node1\nnode2\n")
    with pytest.raises(ConfigurationError, match=r"expected hosts for 5 ranks, with --per-host 2\. Received: 2$"):
        launch_on_mpi(PROGRAM, MpiLaunch(5, 2, hosts))


@pytest.mark.parametrize(
    ("statuses", "status", "runs"),
    [([0], 0, 1), ([1], 1, 1), ([143], 143, 1), ([250], 250, 1), ([137, 0], 0, 2), ([137, 139, 137], 137, 3)],
)
def test_a_lost_rank_begins_again_from_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: list[int], status: int, runs: int
) -> None:
    """A script in place of mpirun ends with one status after the other."""
    left, log, fake = tmp_path / "left", tmp_path / "log", tmp_path / "mpirun"
    left.write_text(" ".join(map(str, statuses)))
    fake.write_text(
        f"#!{sys.executable}\nimport os, sys\nfrom pathlib import Path\nleft = Path({str(left)!r})\n"
        "first, *rest = left.read_text().split()\nleft.write_text(' '.join(rest))\n"
        f"with open({str(log)!r}, 'a') as file: print(sys.argv[-1], os.environ.get('CROSSBOW_FAULT'), file=file)\n"
        "sys.exit(int(first))\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(mpirun.shutil, "which", lambda name, path: str(fake))
    monkeypatch.setenv("CROSSBOW_FAULT", "kill:1@2")
    assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2, restarts=2)) == status
    assert log.read_text().splitlines() == ["2 kill:1@2", *["--resume None"] * (runs - 1)]
    assert ("CROSSBOW_FAULT" in os.environ) == (runs == 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_ends_training_at_a_tick(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    """mpirun passes SIGUSR1 on to the ranks, and kills them for the others: a script in its place."""
    ready, log, fake = tmp_path / "ready", tmp_path / "log", tmp_path / "mpirun"
    fake.write_text(
        f"#!/bin/bash\ntrap 'echo usr1 >> {log}' USR1\ntrap 'echo again >> {log}; exit 1' INT TERM\n"
        f"touch {ready}\nwhile [ $(wc -l < {log}) -lt 2 ]; do sleep 0.05; done\nexit 1\n"
    )
    fake.chmod(0o755)
    log.touch()
    monkeypatch.setattr(mpirun.shutil, "which", lambda name, path: str(fake))

    def send() -> None:
        until(ready.exists)
        os.kill(os.getpid(), number)
        until(lambda: log.read_text() == "usr1\n")
        os.kill(os.getpid(), number)  # once more

    sender = threading.Thread(target=send)
    sender.start()
    assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2)) == 128 + number
    sender.join()
    assert log.read_text().splitlines() == ["usr1", "usr1" if number == signal.SIGUSR1 else "again"]
