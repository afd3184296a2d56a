"""Kills the processes of a cluster on this machine if their launcher is killed.

    python crossbow/cluster/ray/guard.py MARK

The launcher starts this program, and ends it by a byte on standard input. If standard input ends without one, the
launcher was killed, and all processes with this mark in their environment are killed, too. Ray's processes end with
their launcher anyway, but some of them only after a minute.

The program imports the standard library only, so that it starts within milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "CROSSBOW_LAUNCHER"
"""The environment variable that contains the mark."""
KEEPS_ENVIRONMENT = "SPT_NOENV"
"""The variable that keeps Ray's processes from overwriting their environment in memory when they change their title."""
SECONDS_TO_END = 10.0
"""Maximum wait for the end of killed processes."""


@contextlib.contextmanager
def guarded() -> Iterator[dict[str, str]]:
    """If this process is killed within the context, kill the processes that have these variables in their environment.
    On systems without /proc, which Linux has, there are no variables and nothing is killed."""
    if not Path("/proc/self/environ").exists():
        yield {}
        return
    mark, pipe, nowhere = uuid.uuid4().hex, subprocess.PIPE, subprocess.DEVNULL
    command = [sys.executable, "-I", "-S", __file__, mark]
    # The guard itself has no mark, so that the guard of an outer launcher does not kill it.
    unmarked = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with subprocess.Popen(
        command, stdin=pipe, stdout=nowhere, stderr=nowhere, bufsize=0, cwd="/", env=unmarked, start_new_session=True
    ) as guard:
        try:
            yield {VARIABLE: mark, KEEPS_ENVIRONMENT: "1"}
        finally:
            assert guard.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the guard itself was killed
                guard.stdin.write(b".")


def marked(mark: str) -> list[int]:
    """The processes with this mark that have not ended."""
    entry, found = f"{VARIABLE}={mark}".encode(), []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended, or belongs to another user
            if entry in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


def kill(mark: str) -> None:
    """Kill the processes with this mark, and those that they start meanwhile."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (processes := marked(mark)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    if not os.read(sys.stdin.fileno(), 1):
        kill(sys.argv[1])
