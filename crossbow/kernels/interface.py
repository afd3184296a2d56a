"""What kernels are given and what they give: buffers, variables and their storage, prepared kernels and their calls.

A *prepared kernel* has settled everything that can be settled at compile time: descriptors, algorithm, workspace, how
variables lie in memory. `bind` gives it buffers by *role* (`kernels/requests`) and returns *calls* without arguments.
A task is a flat list of such calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from crossbow.types import Array, Shape

Buffers = Mapping[str, Array]
"""Role to array. Activations have their logical shape (a strided view where the layout is channels-last);
variables have their logical shape when stored plain, else they are the flat storage; `workspace` and `kept` are
1-D uint8, 64-byte aligned; `labels` is int32 (N, …) for classes, else floating point; `state` is the task state.
`slot_positions`, int64 (slots, N, 2), holds (epoch, index in the data set) of every example of a training batch in slot
state[SLOT]."""


class State:
    """Positions in a learner's task state: an int64 array that kernels read, rewritten before every task.

    Whatever changes from task to task lives here, so that bound calls (and captured graphs) never change.
    """

    TASK = 0
    """Number of the task, from 0: the position of the dropout generator."""
    SLOT = 1
    """Which slot of the batch ring holds the batch."""
    EXAMPLES = 2
    """Number of real examples in the batch; the rest is padding, which loss and accuracy leave out."""
    TICK = 3
    """Number of the clock tick, from 0: what `wait` and `signal` count."""
    TURN = 4
    """On GPUs: which row of the learner's results the task's loss and accuracy go to."""
    SIZE = 8


class Call(Protocol):
    """One bound kernel: a call without arguments."""

    def __call__(self) -> None: ...


class Storage(Protocol):
    """How a variable lies in the flat vector of a replica. Element-wise arithmetic is indifferent to it."""

    @property
    def elements(self) -> int:
        """Number of elements in the flat vector, padding included (padding stays zero)."""

    def pack(self, plain: Array, flat: Array) -> None:
        """Write the logical array `plain` into the 1-D `flat`."""

    def unpack(self, flat: Array, plain: Array) -> None:
        """Write the 1-D `flat` into the logical array `plain`."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class PlainStorage:
    """Row-major in logical order."""

    shape: Shape

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def pack(self, plain: Array, flat: Array) -> None:
        flat[...] = plain.ravel()

    def unpack(self, flat: Array, plain: Array) -> None:
        plain[...] = flat.reshape(self.shape)

    def __str__(self) -> str:
        return "plain"


@dataclass(frozen=True)
class Variable:
    """A variable as kernels see it: its logical shape and type, and its storage once that is decided.

    A forward kernel that receives `storage=None` may choose one and says so in `PreparedKernel.storages`;
    the kernels prepared after it (gradients, the check dataflow) receive the choice.
    """

    shape: Shape
    dtype: np.dtype[np.generic]
    storage: Storage | None = None


@dataclass(frozen=True)
class GradientBlock:
    """A part of a weight gradient that fits the cache, to be used before the next one is computed."""

    calls: Sequence[Call]
    """They write the part to `gradient`."""
    place: slice
    """Which elements of the variable's flat storage these are."""
    gradient: Array
    """Where the part lies until the next block's calls: 1-D, in the kernel's workspace."""


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel with every decision taken, waiting for buffers."""

    name: str
    """What `describe()` prints: the request and the implementation, as "convolution_forward jit:avx512_core"."""
    reads: tuple[str, ...]
    """Roles that are read; they bound the lifetime of buffers."""
    writes: tuple[str, ...]
    """Roles that are written."""
    bind: Callable[[Buffers], Sequence[Call]]
    """Buffers of all roles read and written (and `workspace`, `kept`) to calls."""
    workspace: int = 0
    """Bytes of scratch memory, used only during the call."""
    kept: int = 0
    """Bytes of opaque memory that a forward kernel writes for its gradient kernel (role `kept`)."""
    in_place: tuple[str, str] | None = None
    """(read role, written role) that may be the same memory."""
    alias: tuple[str, str] | None = None
    """(read role, written role) that hold the same bytes afterwards: as one memory, there is nothing to do."""
    storages: Mapping[str, Storage] = field(default_factory=dict)
    """The storage chosen for each variable by name."""
    blocks: Callable[[Buffers], Sequence[GradientBlock]] | None = None
    """Instead of `bind`, where a weight gradient is large: the gradient of `weights` in parts, for an optimiser that
    updates each part at once and never reads the whole. The first block's calls write the other gradients."""
