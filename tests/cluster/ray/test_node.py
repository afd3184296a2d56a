"""A node ends with its command or with its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crossbow.cluster.ray.node import command_of

PROGRAM = """
import os, sys
from crossbow.cluster.ray import node
node.command_of = lambda *given: [sys.executable, "-c", {code!r}, *given]
sys.exit(node.main(["a:1", "r"]))
"""
WAITS = """
import os, sys, time
print(os.getpid(), os.environ["RAY_AUTH_TOKEN"], *sys.argv[1:], flush=True)
time.sleep(600)
"""


def begin(code: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", PROGRAM.format(code=code)]
    process = subprocess.Popen(line, stdin=pipe, stderr=pipe, text=True)
    assert process.stdin is not None
    process.stdin.write("secret\n")
    process.stdin.flush()
    return process


def test_the_command_has_address_and_resource_and_not_the_token() -> None:
    command = command_of("a:1", "crossbow-host-0", "/place")
    assert command[:3] == [sys.executable, "-m", "ray.scripts.scripts"]
    assert "--block" in command
    assert "--address=a:1" in command
    assert "--temp-dir=/place" in command
    assert '--resources={"crossbow-host-0": 1}' in command


@pytest.mark.slow
@pytest.mark.parametrize("by_signal", [False, True])
def test_it_ends_its_command(by_signal: bool) -> None:
    with begin(WAITS) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        number, *given = process.stderr.readline().split()
        assert given[:3] == ["secret", "a:1", "r"]
        assert Path(given[3]).is_dir()
        if by_signal:
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.wait(60) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
        assert not Path(given[3]).exists()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs /proc")
def test_its_command_does_not_outlive_it_if_it_is_killed() -> None:
    with begin(WAITS) as process:
        assert process.stderr is not None
        number = int(process.stderr.readline().split()[0])
        reader = threading.Thread(target=process.stderr.read)  # to its end: the command has it open, too
        reader.start()
        process.kill()
        reader.join(60)
        lives = reader.is_alive()
        if lives:
            os.kill(number, signal.SIGKILL)
            reader.join()
        assert not lives


@pytest.mark.slow
def test_it_ends_with_its_command() -> None:
    with begin("raise SystemExit(7)") as process:
        assert process.wait(60) == 7
