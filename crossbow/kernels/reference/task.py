"""Kernels of a task outside its operators: load the batch, check numbers, wait for learners and signal them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State, too_late
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import CheckFinite, LoadBatch, Signal, Wait
from crossbow.types import Aborted, Array, NonFiniteError

POLL_SECONDS = 50e-6


@computes(LoadBatch)
def load_batch(
    *, slots: NDArray[Any], slot_labels: NDArray[Any], state: Array, input: Floats, labels: NDArray[Any], scale: float
) -> None:
    """input ← scale · slot, labels ← its labels. The slot is converted first, for the input's precision."""
    slot = int(state[State.SLOT])
    np.multiply(slots[slot], input.dtype.type(scale), out=input, dtype=input.dtype, casting="unsafe")
    np.copyto(labels, slot_labels[slot], casting="same_kind")


@computes(CheckFinite)
def check_finite(*, value: Floats, what: str) -> None:
    """Raises NonFiniteError if there is NaN or infinity."""
    finite = np.isfinite(value)
    if not finite.all():
        first = np.unravel_index(int(np.argmin(finite)), value.shape)
        nans, place = int(np.isnan(value).sum()), ", ".join(str(int(index)) for index in first)
        infinite = int((~finite).sum()) - nans
        raise NonFiniteError(
            f"expected finite numbers in the {what}. Received: {nans} NaN and {infinite} infinite of {value.size}, the "
            f"first at ({place})"
        )


@computes(Wait)
def wait(*, flags: NDArray[np.int64], abort: NDArray[np.int64], state: Array, averages: bool, seconds: float) -> None:
    """Return once every flag ≥ state[TICK], regardless of `abort`: a merge that all learners may begin is completed."""
    began = state[State.SINCE] = time.monotonic_ns()
    while not (flags >= int(state[State.TICK])).all():
        if abort[0] != 0:
            raise Aborted("another learner failed")
        if time.monotonic_ns() - began > seconds * 1e9:
            raise too_late(flags, state, seconds)
        time.sleep(POLL_SECONDS)
    now = time.monotonic_ns()
    state[State.WAITED] += now - began
    state[State.SINCE] = -now if averages else 0


@computes(Signal)
def signal(*, state: Array, flag: NDArray[np.int64]) -> None:
    """flag ← state[TICK]."""
    flag[0] = state[State.TICK]
    if state[State.SINCE] < 0:
        state[State.AVERAGED] += time.monotonic_ns() + state[State.SINCE]
        state[State.SINCE] = 0
