"""`crossbow launch --engine mpi`: the command, and what follows from its exit status."""

from __future__ import annotations

import doctest
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crossbow import ConfigurationError, DataError
from crossbow.cluster import mpirun
from crossbow.cluster.mpirun import MpiLaunch, launch_on_mpi
from crossbow.cluster.program import RankProgram
from tests.cluster.test_banners import KILLED, LOST, NOT_REACHED, OTHER, STATUS, UNREACHABLE
from tests.combinations import one_in
from tests.support import until

PROGRAM = RankProgram("models.lenet", ("--epochs", "2"))


def test_the_command() -> None:
    common = ["--oversubscribe", "--bind-to", "none", *PROGRAM.command()]
    assert MpiLaunch().command("mpirun", PROGRAM) == ["mpirun", "-n", "1", *common]
    assert MpiLaunch(per_host=2).command("mpirun", PROGRAM)[1:5] == ["-n", "2", "--map-by", "ppr:2:node"]
    again = MpiLaunch().command("mpirun", PROGRAM.resumed())
    assert again[3:5] == ["-x", "CROSSBOW_BEGUN_AGAIN=1"]
    assert again[-1] == "--resume"
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


@one_in(3)
@pytest.mark.parametrize(
    ("statuses", "status", "runs"),
    [([0], 0, 1), ([1], 1, 1), ([143], 143, 1), ([250], 2, 1), ([137, 0], 0, 2), ([137, 139, 137], 137, 3)],
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
    assert "CROSSBOW_BEGUN_AGAIN" not in os.environ  # later runs of this process are not begun again


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_ends_training_at_a_tick(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    """mpirun passes SIGUSR1 on to the ranks, and kills them for the others: a script in its place. Its banner about the
    end of a rank says nothing new."""
    ready, log, fake = tmp_path / "ready", tmp_path / "log", tmp_path / "mpirun"
    fake.write_text(
        f"#!{sys.executable}\nimport os, signal, sys, time\nfrom pathlib import Path\nlog = Path({str(log)!r})\n"
        "def note(text):\n    with log.open('a') as file: file.write(text)\n"
        f"def tell(): print({STATUS!r}, file=sys.stderr, flush=True)\n"
        "def end(*_):\n    tell()\n    note('again\\n')\n    os._exit(1)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: note('usr1\\n'))\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, end)\n"
        f"Path({str(ready)!r}).touch()\n"
        "while log.read_text().count('\\n') < 2: time.sleep(0.05)\n"
        "tell()\n"
        "raise SystemExit(1)\n"
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
    # Not again, although SIGUSR1 looks like the end of a rank.
    assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2, restarts=1)) == 128 + number
    sender.join()
    assert log.read_text().splitlines() == ["usr1", "usr1" if number == signal.SIGUSR1 else "again"]
    assert capfd.readouterr().err.strip() == ""


def fake(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script of bash take the place of mpirun."""
    path = directory / "mpirun"
    path.write_text(f"#!/bin/bash\n{script}")
    path.chmod(0o755)
    monkeypatch.setattr(mpirun.shutil, "which", lambda name, path: str(directory / "mpirun"))


def test_its_errors_are_passed_on_without_banners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also an unfinished line at the end."""
    (tmp_path / "errors").write_text(f"one\n{KILLED}{OTHER}last")
    fake(tmp_path, monkeypatch, f"cat {tmp_path}/errors >&2; echo out; exit 137")
    assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2)) == 137
    out, err = capfd.readouterr()
    assert out == "out\n"
    assert err == f"one\n{LOST}\n{OTHER}last"


@pytest.mark.parametrize(
    ("output", "errors", "status", "said"),
    [
        ("", "ssh: no such host\n", 2, "error: mpirun has failed with exit status 255; its own messages are above\n"),
        ("", OTHER, 2, "error: mpirun has failed with exit status 255; its own messages are above\n"),
        ("", STATUS.replace("2\n", "255\n"), 255, "rank 1 has ended with exit status 255\n"),
        (UNREACHABLE, "ssh: refused\n", 2, f"{NOT_REACHED}\n"),
    ],
)
def test_an_error_of_its_own_is_called_so(
    output: str, errors: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "output").write_text(output)
    (tmp_path / "errors").write_text(errors)
    fake(tmp_path, monkeypatch, f"cat {tmp_path}/errors >&2; cat {tmp_path}/output; exit 255")
    assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2)) == status
    printed = capfd.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("mpirun") == said.count("mpirun")


def test_doctests() -> None:
    assert doctest.testmod(mpirun).failed == 0


@pytest.mark.slow
def test_what_it_leaves_behind_does_not_keep_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has its standard error still open, as a master of ssh."""
    fake(tmp_path, monkeypatch, f"sleep 100 & echo $! > {tmp_path}/left; exit 3")
    began = time.monotonic()
    try:
        assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2)) == 3
        assert time.monotonic() - began < 50
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, whose writers get an error")
def test_a_standard_error_that_cannot_be_written_changes_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "echo error >&2; exit 7")
    kept = os.dup(2)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(full, 2)
        assert launch_on_mpi(PROGRAM, MpiLaunch(ranks=2)) == 7
    finally:
        os.dup2(kept, 2)
        os.close(full)
        os.close(kept)


def test_no_wait_for_its_end_is_without_limit() -> None:
    """A signal that arrives immediately before a wait is handled after it."""
    limits: list[float | None] = []

    class Waits(subprocess.Popen[bytes]):
        def __init__(self) -> None:
            pass

        def __del__(self) -> None:
            pass

        def wait(self, timeout: float | None = None) -> int:
            limits.append(timeout)
            if len(limits) < 3:
                raise subprocess.TimeoutExpired("mpirun", 0.0)
            return 7

    assert mpirun._end_of(Waits()) == 7
    assert limits == [mpirun.LOOK] * 3
