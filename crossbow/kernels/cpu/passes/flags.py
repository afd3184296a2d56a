"""Waits for other learners, and signals to them."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossbow.clock import clock_gettime
from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    TICK,
    call_address,
    int64_at,
    load_acquire,
    nanoseconds,
    native,
    native_pass,
    pause,
    store_release,
)
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Call, PreparedKernel, State, too_late
from crossbow.kernels.native import ABORTED, LATE, NativeCall
from crossbow.kernels.requests import Signal, Wait
from crossbow.types import Array, address

SPINS, YIELDS, SLEEP_MICROSECONDS = 200, 2000, 50
"""A wait spins for some microseconds, then yields its core for about a millisecond, then sleeps between checks. A sleep
lasts at least twice as long as requested, and learners wait for each other at every tick."""
LONGEST_SLEEP_MICROSECONDS, SLEEPS_IN_A_WAIT = 5000, 16
"""A long wait sleeps longer, up to a fraction of the time that it has slept. So a wait for another machine keeps no
core busy, and ends only a few per cent later."""

WAITED, AVERAGED, SINCE = State.WAITED, State.AVERAGED, State.SINCE

WAIT = Arguments(
    flags=Address,
    count=int,
    stride=int,
    abort=Address,
    state=Address,
    averages=int,
    microseconds=int,
    sched_yield=Address,
    usleep=Address,
    clock_gettime=Address,
    timespec=Address,
)
"""stride: bytes between flags. averages: 1 if an average follows, else 0. microseconds: maximum total sleep; 0:
unlimited. timespec: memory for the clock's time."""


@native_pass(WAIT)
def wait_for_flags(block: Any) -> int:
    state = int64_at(block.state)
    target = state[TICK]
    rounds = 0
    began = np.int64(0)
    slept = 0
    for index in range(block.count):
        while load_acquire(block.flags + index * block.stride) < target:
            if load_acquire(block.abort) != 0:
                return ABORTED
            if rounds == 0:
                began = nanoseconds(block.clock_gettime, block.timespec)
                state[SINCE] = began
            rounds += 1
            if rounds <= SPINS:
                pause()
            elif rounds <= SPINS + YIELDS:
                call_address(block.sched_yield, 0, 0, 0, 0)
            else:
                if 0 < block.microseconds < slept:
                    return LATE
                sleep = min(max(SLEEP_MICROSECONDS, slept // SLEEPS_IN_A_WAIT), LONGEST_SLEEP_MICROSECONDS)
                call_address(block.usleep, sleep, 0, 0, 0)
                slept += sleep
    if rounds > 0 or block.averages != 0:
        now = nanoseconds(block.clock_gettime, block.timespec)
        if rounds > 0:
            state[WAITED] += now - began
        state[SINCE] = -now if block.averages != 0 else np.int64(0)
    return 0


@native
def signal_flag(state_address: int, flag: int, clock_gettime: int, timespec: int) -> int:
    state = int64_at(state_address)
    store_release(np.int64(flag), state[TICK])
    if state[SINCE] < 0:
        state[AVERAGED] += nanoseconds(np.int64(clock_gettime), np.int64(timespec)) + state[SINCE]
        state[SINCE] = 0
    return 0


@functools.cache
def resting_functions() -> tuple[int, int]:
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

        def explain() -> None:
            raise too_late(flags, state, request.seconds)

        sched_yield, usleep = resting_functions()
        call = wait_for_flags.call(
            "wait",
            flags=flags,
            count=flags.size,
            stride=flags.strides[0],
            abort=abort,
            state=state,
            averages=int(request.averages),
            microseconds=0 if math.isinf(request.seconds) else int(request.seconds * 1e6),
            sched_yield=sched_yield,
            usleep=usleep,
            clock_gettime=clock_gettime(),
            timespec=np.zeros(2, np.int64),
        )
        return (replace(call, explain=explain),)

    return request.prepared("numba", bind)


@PASSES.kernel(Signal)
def signal(request: Signal) -> PreparedKernel:
    signal_flag.address  # noqa: B018

    def bind(buffers: Mapping[str, Array]) -> Sequence[Call]:
        state, flag = buffers["state"], buffers["flag"]
        timespec = np.zeros(2, np.int64)
        arguments = (address(state), address(flag), clock_gettime(), address(timespec))
        return (NativeCall("signal", signal_flag.address, arguments, (state, flag, timespec)),)

    return request.prepared("numba", bind)
