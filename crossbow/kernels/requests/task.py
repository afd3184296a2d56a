"""Requests of a task outside its operators: load the batch, check numbers, wait for learners and signal them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crossbow.kernels.requests.request import Request
from crossbow.types import Tensor


@dataclass(frozen=True)
class LoadBatch(Request):
    """input, labels = slot state[SLOT], converted, with images multiplied by `scale`.

    slots: (S, N, C, H, W) or (S, N, features), plain, uint8 or floating point; slot_labels: (S, …).
    """

    slots: Tensor
    x: Tensor
    slot_labels: Tensor
    labels: Tensor
    scale: float

    reads, writes = ("slots", "slot_labels", "state"), ("input", "labels")


@dataclass(frozen=True)
class CheckFinite(Request):
    """Writes nothing. The call raises NonFiniteError, which names `what`, if a number is NaN or infinite."""

    what: str

    reads, writes = ("value",), ()


@dataclass(frozen=True)
class Wait(Request):
    """The call returns once every flag ≥ state[TICK]; before that, it raises `Aborted` if abort[0] ≠ 0. Only libraries
    whose calls run on the host's threads have such kernels.

    flags: 1-D int64; abort: int64 of shape (1,). The time waited is added to state[WAITED].
    """

    averages: bool = False
    """Whether the kernels up to the next `Signal` compute averages."""
    seconds: float = math.inf
    """Maximum duration of the wait, after which it raises CrossbowError."""

    reads, writes = ("flags", "abort", "state"), ()


@dataclass(frozen=True)
class Signal(Request):
    """flag (int64 of shape (1,)) = state[TICK], after everything before it in the list. On the host only. Ends an
    average, whose time is added to state[AVERAGED]."""

    reads, writes = ("state",), ("flag",)
