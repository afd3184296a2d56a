"""Access to a device's arrays from the host. No running task may use them."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.interface import State
from crossbow.types import Array


def on_host(array: Any) -> Array:
    """The array itself if it is in the host's memory, otherwise a copy."""
    copy: Array = array if isinstance(array, np.ndarray) else array.get()
    return copy


def assign(target: Any, value: Any) -> None:
    """Assign a value, an array of any device or a number, to the target."""
    if isinstance(target, np.ndarray):
        target[...] = value if np.isscalar(value) else on_host(value)
    else:
        values = np.full(target.shape, value) if np.isscalar(value) else on_host(value)
        target.set(np.ascontiguousarray(values, target.dtype))


def new_state() -> Array:
    """The state of a learner's task (`State`), in the host's memory."""
    return np.zeros(State.SIZE, np.int64)
