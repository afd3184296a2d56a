"""The processes of a launcher end with it if it is killed, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from crossbow.cluster.ray.guard import VARIABLE, guarded, kill, marked
from tests.support import until

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs /proc")
LAUNCHER = """
import os, subprocess, sys
from crossbow.cluster.ray.guard import VARIABLE, guarded
with guarded() as variables:
    for _ in range(2):
        environment = {**os.environ, **variables}
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, env=environment)
    print(variables[VARIABLE], flush=True)
    sys.stdin.readline()
print("over", flush=True)
sys.stdin.readline()
"""


def begin() -> tuple[subprocess.Popen[str], str]:
    """A launcher whose two processes run, and its mark."""
    pipe = subprocess.PIPE
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=pipe, stdout=pipe, text=True)
    assert launcher.stdout is not None
    mark = launcher.stdout.readline().strip()
    until(lambda: len(marked(mark)) == 2)
    return launcher, mark


@pytest.mark.slow
def test_processes_of_a_killed_launcher_are_killed() -> None:
    launcher, mark = begin()
    with launcher:
        launcher.kill()
    until(lambda: not marked(mark))


@pytest.mark.slow
def test_processes_of_a_launcher_that_ends_go_on() -> None:
    launcher, mark = begin()
    with launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        launcher.stdin.write("\n")
        launcher.stdin.flush()
        assert launcher.stdout.readline() == "over\n"  # the guard has ended
        assert len(marked(mark)) == 2
        kill(mark)
        assert not marked(mark)
        launcher.kill()


def test_a_guard_that_was_killed_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """By SIGTERM to all processes of a job, for example."""
    monkeypatch.setenv(VARIABLE, "of an outer launcher")
    started: list[subprocess.Popen[bytes]] = []

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Remembered)
    with guarded() as variables:
        (guard,) = started
        assert marked("of an outer launcher") == marked(variables[VARIABLE]) == []
        guard.kill()
        guard.wait()


def test_processes_with_other_marks_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, VARIABLE: "one"}) as process:
        until(lambda: marked("one") == [process.pid])
        kill("o")
        assert process.poll() is None
        kill("one")
        assert process.wait(60) == -signal.SIGKILL
