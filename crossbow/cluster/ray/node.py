"""A node of a Ray cluster, for as long as the standard input of this process is open.

    python -m crossbow.cluster.ray.node ADDRESS RESOURCE

The launcher starts this program on another machine, with ssh for example. The first line of standard input is the
cluster's token, so that no list of processes shows it. Standard input ends with the launcher or with the connection
to it, and then Ray's processes on this machine end, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from crossbow.cluster.ray.environment import environment_with
from crossbow.cluster.ray.guard import guarded
from crossbow.cluster.ray.scratch import scratch_directory

SECONDS_TO_END = 10.0
"""Time for Ray to end its processes before they are killed."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end the node. Windows has no SIGHUP."""


def command_of(address: str, resource: str, directory: str) -> list[str]:
    """The command of a node. address: HOST:PORT of the head. resource: a resource that only this node has. directory:
    directory for its sockets and logs; two nodes of one machine that start at the same time must not share it."""
    options = {"address": address, "resources": json.dumps({resource: 1}), "temp-dir": directory, "log-color": "false"}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    return [*start, *(f"--{name}={value}" for name, value in options.items())]


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command until it ends or standard input does. Returns its exit status, or 0 in the second case. On Linux,
    if this process is killed, the command and the processes that it has started are killed, too."""
    over = threading.Event()
    for number in SIGNALS:  # before the process starts, so that a signal cannot orphan it
        signal.signal(number, lambda *_: over.set())
    with (
        guarded() as variables,
        subprocess.Popen(
            command,
            env={**environment, **variables},  # not an outer launcher's mark: it ends this process
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        ) as process,
    ):

        def await_input() -> None:
            while os.read(sys.stdin.fileno(), 4096):
                pass
            over.set()

        def await_end() -> None:
            process.wait()
            over.set()

        for wait in (await_input, await_end):
            threading.Thread(target=wait, daemon=True).start()
        over.wait()
        status = process.poll()
        _end(process)
        return 0 if status is None else status


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and the processes that it has started."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_END)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    address, resource = arguments
    token = sys.stdin.readline().strip()
    with scratch_directory("crossbow-ray-node-") as directory:
        return run(command_of(address, resource, directory), {**os.environ, **environment_with(token)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
