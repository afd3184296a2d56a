"""Launches a program with mpirun and, on request, restarts it from its checkpoint after a loss."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from crossbow.cluster.banners import WithoutBanners
from crossbow.cluster.failure import TERMINATED
from crossbow.cluster.host_files import read_hosts
from crossbow.cluster.program import BEGUN_AGAIN, RankProgram, begun_again
from crossbow.cluster.signals import handled
from crossbow.console import WRONG, say
from crossbow.interruption import INTERRUPTED
from crossbow.types import ConfigurationError

KILLED, MOST_KILLED = 128, 128 + 64
"""If a signal has ended a rank, the exit status of mpirun is above the first number, and at most the second. Errors of
mpirun itself, such as a host that it cannot reach, have a higher status."""
LOOK = 0.5
"""Seconds between two checks whether mpirun has ended."""
SSH_OPTIONS, REMOTE_SHELL = "PRTE_MCA_plm_ssh_args", "PRTE_MCA_plm_ssh_agent"
"""Environment variables of Open MPI's mpirun: options of the remote shell, and its name, if it is not ssh."""
SECONDS_TO_CONNECT = 30
"""Time for a connection of ssh to a host."""
SECONDS_TO_PRINT = 1.0
"""Time to read the last output of mpirun when it has ended."""
SET_DEATH_SIGNAL = 1
"""The option PR_SET_PDEATHSIG of prctl."""


@dataclass(frozen=True)
class MpiLaunch:
    """The hosts and the number of ranks of a program."""

    ranks: int | None = None
    """Number of ranks; None: the number that follows from `hosts` and `per_host`, or one."""
    per_host: int | None = None
    """Ranks per host; None: its number of slots."""
    hosts: Path | None = None
    """File with one host per line, as "node1 slots=2"."""
    restarts: int = 0
    """Maximum number of restarts of the program after the loss of a rank, each from the newest checkpoint if there is
    one."""

    def check(self) -> None:
        """Raise ConfigurationError or DataError for settings that mpirun would reject."""
        if self.hosts is None:
            return
        hosts = read_hosts(self.hosts)
        if self.per_host is not None and self.ranks is not None and self.ranks > self.per_host * len(hosts):
            raise ConfigurationError(
                f"{self.hosts}: expected hosts for {self.ranks} ranks, with --per-host {self.per_host}. Received: "
                f"{len(hosts)}"
            )

    def command(self, mpirun: str, program: RankProgram) -> list[str]:
        """The command that runs a program."""
        hosts = [] if self.hosts is None else ["--hostfile", str(self.hosts)]
        number = self.ranks or ((self.per_host or 1) if self.hosts is None else None)
        ranks = [] if number is None else ["-n", str(number)]
        mapping = [] if self.per_host is None else ["--map-by", f"ppr:{self.per_host}:node"]
        variables = ["-x", f"{BEGUN_AGAIN}=1"] if program.begun_again else []
        options = [*hosts, *ranks, *mapping, *variables, "--oversubscribe", "--bind-to", "none"]
        return [mpirun, *options, *program.command()]


def launch_on_mpi(program: RankProgram, launch: MpiLaunch) -> int:
    """Run a program with mpirun, and return its exit status. Raises ConfigurationError if there is no mpirun, or there
    are too few hosts for the ranks, and DataError for an invalid file of hosts."""
    launch.check()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    mpirun = shutil.which("mpirun", path=path)
    if mpirun is None:
        raise ConfigurationError("--engine mpi needs the command mpirun: pip install 'crossbow[mpi]'. Received: none")
    for restarts_left in range(launch.restarts, -1, -1):
        status, signalled = _run(launch.command(mpirun, program))
        lost = KILLED < status <= MOST_KILLED and status not in (INTERRUPTED, TERMINATED)
        if not lost or signalled or not restarts_left:
            return status
        program = begun_again(program)
    raise AssertionError


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of mpirun, whose ssh has no time limit for a connection by default.

    >>> _environment({})
    {'PRTE_MCA_plm_ssh_args': '-o ConnectTimeout=30'}
    >>> _environment({REMOTE_SHELL: "rsh"})
    {'PRTE_MCA_plm_ssh_agent': 'rsh'}
    """
    limit = {} if REMOTE_SHELL in given else {SSH_OPTIONS: f"-o ConnectTimeout={SECONDS_TO_CONNECT}"}
    return {**limit, **given}


def _pass_on(stream: BinaryIO, banners: WithoutBanners) -> None:
    """Copy a stream of mpirun, without banners."""
    with stream:
        while content := os.read(stream.fileno(), 1 << 16):
            banners.feed(content)
        banners.end()


def _write(descriptor: int, content: bytes) -> None:
    """Write, and ignore errors of writing."""
    with contextlib.suppress(OSError):
        while content:
            content = content[os.write(descriptor, content) :]


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process, and return its exit status. Each wait has a limit, because Python handles a signal
    that arrives immediately before a wait only after it."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK)


def _run(command: list[str]) -> tuple[int, bool]:
    """Run a command. It gets SIGTERM when this process dies. The first signal ends training after its tick, with a
    checkpoint: it is sent as SIGUSR1, which mpirun passes on; for other signals, mpirun would kill the ranks. A second
    signal kills them.

    Returns the exit status, and whether there was a signal.
    """
    received: list[int] = []
    passed_on = 0
    process: subprocess.Popen[bytes] | None = None
    library = ctypes.CDLL(None) if sys.platform == "linux" else None

    def before() -> None:
        if library is not None:
            library.prctl(SET_DEATH_SIGNAL, signal.SIGTERM)

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        pass_on()

    def pass_on() -> None:
        nonlocal passed_on
        while process is not None and passed_on < len(received):
            passed_on += 1
            process.send_signal(received[passed_on - 1] if passed_on > 1 else signal.SIGUSR1)

    with handled(receive):
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, start_new_session=True, preexec_fn=before, stdout=pipe, stderr=pipe, env=_environment(os.environ)
        )
        pass_on()  # signals that arrived before the process existed
        # mpirun prints its banner about a host that it cannot reach to standard output.
        output, errors = (WithoutBanners(partial(_write, descriptor), say, received) for descriptor in (1, 2))
        readers = [
            threading.Thread(target=_pass_on, args=each, daemon=True)
            for each in ((process.stdout, output), (process.stderr, errors))
        ]
        for reader in readers:
            reader.start()
        status = _end_of(process)
        for reader in readers:
            reader.join(SECONDS_TO_PRINT)  # children of mpirun may outlive it, and keep its streams open
    if status and received:
        return KILLED + received[0], True
    if status > MOST_KILLED and not errors.saw_ranks_end:
        if not output.saw_unreachable:
            say(f"error: mpirun has failed with exit status {status}; its own messages are above")
        return WRONG, bool(received)
    return KILLED - status if status < 0 else status, bool(received)
