"""Waiting for other learners, and signalling one's own progress to them."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    TICK,
    call_address,
    int64_at,
    load_acquire,
    native,
    native_pass,
    pause,
    store_release,
)
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Call, PreparedKernel
from crossbow.kernels.native import ABORTED, NativeCall
from crossbow.kernels.requests import Signal, Wait
from crossbow.types import Array, address

SPINS, YIELDS, SLEEP_MICROSECONDS = 200, 2000, 50
"""A wait spins for some microseconds, then yields its core for about a millisecond, then sleeps between checks. A sleep
lasts at least twice as long as requested, and learners wait for each other at every tick."""


WAIT = Arguments(
    flags=Address, count=int, stride=int, abort=Address, state=Address, sched_yield=Address, usleep=Address
)
"""stride: bytes between flags."""


@native_pass(WAIT)
def wait_for_flags(block: Any) -> int:
    target = int64_at(block.state)[TICK]
    rounds = 0
    for index in range(block.count):
        while load_acquire(block.flags + index * block.stride) < target:
            if load_acquire(block.abort) != 0:
                return ABORTED
            rounds += 1
            if rounds <= SPINS:
                pause()
            elif rounds <= SPINS + YIELDS:
                call_address(block.sched_yield, 0, 0, 0, 0)
            else:
                call_address(block.usleep, SLEEP_MICROSECONDS, 0, 0, 0)
    return 0


@native
def signal_flag(state: int, flag: int, _2: int, _3: int) -> int:
    store_release(np.int64(flag), int64_at(state)[TICK])
    return 0


@functools.cache
def _resting_functions() -> tuple[int, int]:
    """Functions that yield the core to other threads, and that sleep for some microseconds."""
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
        sched_yield, usleep = _resting_functions()
        call = wait_for_flags.call(
            "wait",
            flags=flags,
            count=flags.size,
            stride=flags.strides[0],
            abort=abort,
            state=state,
            sched_yield=sched_yield,
            usleep=usleep,
        )
        return (call,)

    return request.prepared("numba", bind)


@PASSES.kernel(Signal)
def signal(request: Signal) -> PreparedKernel:
    signal_flag.address  # noqa: B018

    def bind(buffers: Mapping[str, Array]) -> Sequence[Call]:
        state, flag = buffers["state"], buffers["flag"]
        return (NativeCall("signal", signal_flag.address, (address(state), address(flag)), (state, flag)),)

    return request.prepared("numba", bind)
