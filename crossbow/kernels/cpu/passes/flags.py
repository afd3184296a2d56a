"""Waiting for other learners, and telling them how far one is."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from crossbow.kernels.compiled import TICK, call_address, int64_at, load_acquire, native, pause, store_release
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Call, PreparedKernel
from crossbow.kernels.native import ABORTED, NativeCall
from crossbow.kernels.requests import Signal, Wait
from crossbow.types import Array, address

SPINS, YIELDS, SLEEP_MICROSECONDS = 200, 2000, 50
"""A wait spins some microseconds, then offers its core for about a millisecond, then sleeps between looks. A sleep
lasts at least twice as long as it says, and learners wait for each other at every tick."""


@native
def wait_for_flags(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: flags, their number, bytes between them, abort, state, sched_yield, usleep."""
    block = int64_at(arguments)
    target = int64_at(block[4])[TICK]
    rounds = 0
    for index in range(block[1]):
        while load_acquire(block[0] + index * block[2]) < target:
            if load_acquire(block[3]) != 0:
                return ABORTED
            rounds += 1
            if rounds <= SPINS:
                pause()
            elif rounds <= SPINS + YIELDS:
                call_address(block[5], 0, 0, 0, 0)
            else:
                call_address(block[6], SLEEP_MICROSECONDS, 0, 0, 0)
    return 0


@native
def signal_flag(state: int, flag: int, _2: int, _3: int) -> int:
    store_release(np.int64(flag), int64_at(state)[TICK])
    return 0


@functools.cache
def _resting_functions() -> tuple[int, int]:
    """Those that offer the core to others, and that sleep for some microseconds."""
    if sys.platform == "win32":
        rest = ctypes.windll.kernel32.SwitchToThread
        functions = (rest, rest)
    else:
        libc = ctypes.CDLL(None)
        functions = (libc.sched_yield, libc.usleep)
    first, second = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    assert first is not None
    assert second is not None
    return first, second


@PASSES.kernel(Wait)
def wait(request: Wait) -> PreparedKernel:
    wait_for_flags.address  # noqa: B018

    def bind(buffers: Mapping[str, Array]) -> Sequence[Call]:
        flags, abort, state = (buffers[role] for role in request.reads)
        slots = (address(flags), flags.size, flags.strides[0], address(abort), address(state))
        references = (flags, abort, state)
        return (wait_for_flags.call("wait", *slots, *_resting_functions(), references=references),)

    return request.prepared("numba", bind)


@PASSES.kernel(Signal)
def signal(request: Signal) -> PreparedKernel:
    signal_flag.address  # noqa: B018

    def bind(buffers: Mapping[str, Array]) -> Sequence[Call]:
        state, flag = buffers["state"], buffers["flag"]
        return (NativeCall("signal", signal_flag.address, (address(state), address(flag)), (state, flag)),)

    return request.prepared("numba", bind)
