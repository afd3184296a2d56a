"""This process as a rank."""

from __future__ import annotations

import atexit
import os
import socket
import threading

from crossbow.cluster.failure import end_all, end_all_on_exception, end_with_others
from crossbow.cluster.fault import check_fixed
from crossbow.cluster.launch import launch_of
from crossbow.cluster.members import Rank, View
from crossbow.cluster.mpi import MpiTransport
from crossbow.cluster.ranks import Ranks

_lock = threading.Lock()
_joined: list[Ranks] = []


def join() -> Ranks:
    """The ranks of this run. A process that mpirun or srun has started as one of several joins the others on the first
    call; a process that `crossbow launch` has started on Ray has joined them already; any other process is rank 0 of 1.
    Raises ConfigurationError if mpi4py is missing, and for faults that are impossible with MPI."""
    with _lock:
        if not _joined:
            launch = launch_of(os.environ)
            if launch.size == 1:
                _joined.append(Ranks(View(0, (Rank(0, socket.gethostname()),))))
            else:
                transport = MpiTransport(launch)
                ranks = Ranks(transport.view, transport.rank, transport)
                _joined.append(ranks)
                end_all_on_exception(ranks)
                atexit.register(_end, ranks, transport)
                check_fixed(os.environ)
        return _joined[0]


def is_first() -> bool:
    """Whether this process is rank 0, or will be when it joins the others."""
    return _joined[0].is_first if _joined else launch_of(os.environ).rank == 0


def connected(ranks: Ranks) -> None:
    """Make `join` return these ranks, which the caller has connected."""
    with _lock:
        _joined[:] = [ranks]


def _end(ranks: Ranks, transport: MpiTransport) -> None:
    end_with_others(ranks)
    transport.close()


def leave(status: int) -> int:
    """Return the exit status of a command. If it is not 0, and this process has joined others, all ranks end with this
    status."""
    if status and _joined and _joined[0].several:
        end_all(_joined[0].transport, status)
    return status
