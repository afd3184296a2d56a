"""Distance between two cores: the time in which a flag travels from one to the other.

Learners exchange weights through the caches. The cores of a virtual machine may move from one chip to another while it
runs: then the same two cores share a cache in one minute and none in the next, and exchanges take several times as
long.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import load_acquire, native_pass, pause, store_release
from crossbow.kernels.native import NativeCall
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.device import available_cores
from crossbow.types import Array

TURNS = 20_000
"""Number of round trips of the flag, some milliseconds."""
APART = 64
"""Elements between the two flags, so that they do not share a cache line or a prefetched pair of lines."""


@native_pass(Arguments(own=Address, other=Address, turns=int))
def bounce(block: Any) -> int:
    """Set this thread's flag to the number of each turn, and wait until the other thread's flag has the same number."""
    for turn in range(1, block.turns + 1):
        store_release(block.own, turn)
        while load_acquire(block.other) < turn:
            pause()
    return 0


def handover() -> float | None:
    """Time in seconds in which a flag travels from one core to another; None with a single core."""
    cores = available_cores()[:2]
    if len(cores) < 2 or not hasattr(os, "sched_setaffinity"):
        return None
    flags: Array = np.zeros(2 * APART, np.int64)
    calls = [_call(flags[side * APART :], flags[(1 - side) * APART :]) for side in range(2)]
    seconds: list[float] = []

    def play(core: int, call: NativeCall) -> None:
        os.sched_setaffinity(0, {core})  # 0 is this thread
        bouncing, began = TaskList([call], [call.name]), time.perf_counter()
        bouncing.run()
        seconds.append((time.perf_counter() - began) / (2 * TURNS))

    players = [threading.Thread(target=play, args=pair) for pair in zip(cores, calls, strict=True)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    return min(seconds)


def _call(own: Array, other: Array) -> NativeCall:
    return bounce.call("bounce", own=own, other=other, turns=TURNS)
