"""Ranks that MPI connects (mpi4py)."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import threading
from collections.abc import MutableMapping
from typing import Any

import numpy as np

from crossbow.cluster.launch import RankLaunch
from crossbow.cluster.members import Changes, Rank, View
from crossbow.cluster.ranks import SECONDS_TO_START
from crossbow.cluster.transport import Pending
from crossbow.console import WRONG, say
from crossbow.extras import optional_module
from crossbow.types import Array, ConfigurationError

BLOCK = 1 << 18
"""Bytes that travel together along a chain."""


class MpiTransport:
    """Implements `Transport`.

    Calls never block in MPI: a blocking call would keep a core busy that a learner needs. A lock admits one thread at a
    time, so that any MPI library can be used.
    """

    elastic = False

    def __init__(self, launch: RankLaunch) -> None:
        """Initialise MPI. Raises ConfigurationError if mpi4py is missing or belongs to another MPI library than the
        command that started the process."""
        self._mpi = mpi = _load(launch)
        world = mpi.COMM_WORLD
        if world.size != launch.size:
            raise ConfigurationError(
                f"expected an MPI library that finds the {launch.size} processes that were started. Received: "
                f"{mpi.Get_library_version().splitlines()[0]}, which finds {world.size}; use its own mpirun"
            )
        self._lock = threading.Lock()
        self.forget()
        self._sent: list[tuple[Any, bytes]] = []
        """Messages on their way, whose memory must not be freed."""
        self._transfers: set[MpiTransfer] = set()
        """Transfers that have not ended. MPI may still write to their arrays when no thread waits for them any more, as
        after a failure."""
        hosts = world.allgather(mpi.Get_processor_name())
        self.rank: int = world.rank
        self.view = View(0, tuple(Rank(number, host) for number, host in enumerate(hosts)))

    def block(self, nbytes: int) -> int:
        return BLOCK

    def changed(self) -> bool:
        """False: a lost rank ends the job."""
        return False

    def regroup(self) -> Changes:
        return Changes()

    def forget(self) -> None:
        with self._lock:
            world = self._mpi.COMM_WORLD
            # The previous communicators are not freed, because messages in them may never be received.
            self._messages, self._sums = world.Dup(), world.Dup()

    def send(self, message: bytes, rank: int, channel: int) -> None:
        with self._lock:
            self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
            request = self._messages.Isend([message, self._mpi.BYTE], dest=rank, tag=channel)
            self._sent.append((request, message))

    def receive(self, channel: int, rank: int | None = None) -> tuple[int, bytes] | None:
        with self._lock:
            status = self._mpi.Status()
            source = self._mpi.ANY_SOURCE if rank is None else rank
            found = self._messages.Improbe(source=source, tag=channel, status=status)
            if found is None:
                return None
            message = bytearray(status.Get_count(self._mpi.BYTE))
            found.Recv([message, self._mpi.BYTE])
            return status.Get_source(), bytes(message)

    def send_array(self, array: Array, rank: int, channel: int) -> Pending:
        with self._lock:
            return self._pending(self._messages.Isend(_bytes(array), dest=rank, tag=channel), array)

    def receive_array(self, array: Array, rank: int, channel: int) -> Pending:
        with self._lock:
            return self._pending(self._messages.Irecv(_bytes(array), source=rank, tag=channel), array)

    def sum_array(self, array: Array) -> Pending:
        with self._lock:
            return self._pending(self._sums.Iallreduce(self._mpi.IN_PLACE, array), array)

    def abort(self, status: int) -> None:
        self._mpi.COMM_WORLD.Abort(status)

    def close(self) -> None:
        """End MPI. All ranks must call this; no thread may use the transport any more."""
        self._mpi.Finalize()

    def _pending(self, request: Any, array: Array) -> MpiTransfer:
        transfer = MpiTransfer(request, array, self._lock, self._transfers)
        self._transfers.add(transfer)
        return transfer


class MpiTransfer:
    """Implements `Pending`."""

    def __init__(self, request: Any, array: Array, lock: threading.Lock, others: set[MpiTransfer]) -> None:
        """others: the transfers that have not ended; this one removes itself when it ends."""
        self._request, self._array, self._lock, self._others = request, array, lock, others
        self._done = False

    def done(self) -> bool:
        if not self._done:
            with self._lock:
                self._done = bool(self._request.Test())
                if self._done:
                    self._others.discard(self)
        return self._done


def _bytes(array: Array) -> Array:
    """The array's bytes. As bytes, any type can be sent, also float16."""
    return array.view(np.uint8)


def _load(launch: RankLaunch) -> Any:
    """The module `mpi4py.MPI`, with MPI initialised."""
    settings = optional_module("mpi4py", f"a process that is one of {launch.size} ranks", "mpi")
    settings.rc.initialize = settings.rc.finalize = False
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ConfigurationError(
            f"mpi4py needs an MPI library: pip install 'crossbow[mpi]'. Received: {str(error).splitlines()[0]}"
        ) from error
    if not mpi.Is_initialized():
        _initialise(mpi, launch)
    return mpi


def _initialise(mpi: Any, launch: RankLaunch) -> None:
    """Initialise MPI. All ranks wait for each other; after `SECONDS_TO_START`, the process ends."""

    def give_up() -> None:
        say(
            f"error: rank {launch.rank} ({socket.gethostname()}) waited {SECONDS_TO_START:g} s for the other "
            f"{launch.size - 1} of {launch.size} ranks to connect"
        )
        os._exit(WRONG)

    limit = threading.Timer(SECONDS_TO_START, give_up)
    limit.daemon = True
    limit.start()
    _do_without_munge(os.environ)
    # mpi4py's own function would not let the timer's thread run.
    ctypes.CDLL(mpi.__file__).MPI_Init_thread(
        None, None, ctypes.c_int(mpi.THREAD_MULTIPLE), ctypes.byref(ctypes.c_int())
    )
    limit.cancel()


def _do_without_munge(environment: MutableMapping[str, str]) -> None:
    """Let the operating system alone confirm who connects to srun, if srun accepts that. The Open MPI of the wheels
    knows nothing of Munge, which srun names first, and each process would print banners about it.

    >>> environment = {"PMIX_SECURITY_MODE": "munge,native"}
    >>> _do_without_munge(environment)
    >>> environment
    {'PMIX_SECURITY_MODE': 'native'}
    """
    variable = "PMIX_SECURITY_MODE"
    if "native" in environment.get(variable, "").split(","):
        environment[variable] = "native"
