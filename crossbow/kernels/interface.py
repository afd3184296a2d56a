"""The interface of kernels: buffers, variables and their storage, prepared kernels and their calls.

A *prepared kernel* has made all decisions that can be made at compile time: descriptors, algorithm, workspace, and the
memory layout of variables. `bind` gives it buffers by *role* (`kernels/requests`) and returns *calls* without
arguments. A task is a flat list of such calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from crossbow.types import Array, CrossbowError, Shape

Buffers = Mapping[str, Array]
"""Arrays by role. Activations have their logical shape (a strided view if the layout is channels-last). Variables have
their logical shape if they are stored plain; otherwise they are the flat storage. `workspace` and `kept` are 1-D uint8,
64-byte aligned; `labels` is int32 (N, …) for classes, else floating point; `state` is the task state. `slot_positions`,
int64 (slots, N, 2), has (epoch, index in the data set) of every example of a training batch in slot state[SLOT]."""


class State:
    """Indices in a learner's task state: an int64 array that kernels read, rewritten before every task.

    It contains all values that change from task to task, so that bound calls (and captured graphs) never change.
    """

    TASK = 0
    """Number of the task, from 0: the position of the dropout generator."""
    SLOT = 1
    """Slot of the batch ring that contains the batch."""
    EXAMPLES = 2
    """Number of real examples in the batch; the rest is padding, which loss and accuracy ignore."""
    TICK = 3
    """Number of the clock tick, from 0, which `wait` and `signal` count."""
    TURN = 4
    """On GPUs: row of the learner's results for the task's loss and accuracy."""
    WAITED = 5
    """Nanoseconds since the start in which `wait` waited for other learners."""
    AVERAGED = 6
    """Nanoseconds since the start between a `wait` that precedes an average, and the next `signal`."""
    SINCE = 7
    """Time in nanoseconds of a monotonic clock at which the learner began to wait (> 0) or to average (negated, < 0); 0
    while it does neither."""
    SIZE = 8


def too_late(flags: Array, state: Array, seconds: float) -> CrossbowError:
    """The error for a wait that has reached its time limit. flags: a flag for each learner."""
    missing = ", ".join(str(learner) for learner in np.flatnonzero(flags < state[State.TICK]))
    return CrossbowError(f"waited {seconds:g} s for other learners" + (f": {missing}" if missing else ""))


class Call(Protocol):
    """One bound kernel: a call without arguments."""

    def __call__(self) -> None: ...


class Storage(Protocol):
    """Layout of a variable in the flat vector of a replica. Element-wise arithmetic does not depend on it."""

    @property
    def elements(self) -> int:
        """Number of elements in the flat vector, including padding (which stays zero)."""

    def pack(self, plain: Array, flat: Array) -> None:
        """Write the logical array `plain` to the 1-D `flat`."""

    def unpack(self, flat: Array, plain: Array) -> None:
        """Write the 1-D `flat` to the logical array `plain`."""

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
    """A variable for kernels: logical shape, type, and the storage once it is chosen.

    A forward kernel that receives `storage=None` may choose one, and declares it in `PreparedKernel.storages`; the
    kernels prepared after it (gradients, the check dataflow) receive the choice.
    """

    shape: Shape
    dtype: np.dtype[np.generic]
    storage: Storage | None = None


@dataclass(frozen=True)
class GradientBlock:
    """A part of a weight gradient that fits into the cache, to be used before the next one is computed."""

    calls: Sequence[Call]
    """Calls that write the part to `gradient`."""
    place: slice
    """The elements of the variable's flat storage that the part covers."""
    gradient: Array
    """The part until the next block's calls: 1-D, in the kernel's workspace."""


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel with all decisions made, which is not bound to buffers yet."""

    name: str
    """Name in `describe()`: the request and the implementation, as "convolution_forward jit:avx512_core"."""
    reads: tuple[str, ...]
    """Roles that are read; they determine the lifetime of buffers."""
    writes: tuple[str, ...]
    """Roles that are written."""
    bind: Callable[[Buffers], Sequence[Call]]
    """Function from the buffers of all roles (and `workspace`, `kept`) to calls."""
    workspace: int = 0
    """Bytes of scratch memory, used only during the call."""
    kept: int = 0
    """Bytes of opaque memory that a forward kernel writes for its gradient kernel (role `kept`)."""
    in_place: tuple[str, str] | None = None
    """(read role, written role) that may share memory."""
    alias: tuple[str, str] | None = None
    """(read role, written role) whose buffers have the same bytes afterwards: if they share memory, there is nothing to
    do."""
    storages: Mapping[str, Storage] = field(default_factory=dict)
    """The storage chosen for each variable, by name."""
    blocks: Callable[[Buffers], Sequence[GradientBlock]] | None = None
    """Alternative to `bind` for a large weight gradient: the gradient of `weights` in parts, for an optimiser that
    updates each part at once and never reads the whole. The first block's calls also write the other gradients."""

    def renamed(self, roles: Mapping[str, str]) -> PreparedKernel:
        """The kernel with renamed roles. The mapping is from old to new roles; roles without an entry stay the same."""

        def own(buffers: Buffers) -> Buffers:
            named = {role: buffers[roles.get(role, role)] for role in (*self.reads, *self.writes)}
            return {role: buffers[role] for role in ("workspace", "kept") if role in buffers} | named

        def rename(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(roles.get(name, name) for name in names)

        blocks = self.blocks
        return replace(
            self,
            reads=rename(self.reads),
            writes=rename(self.writes),
            bind=lambda buffers: self.bind(own(buffers)),
            in_place=None if self.in_place is None else (rename(self.in_place[:1])[0], rename(self.in_place[1:])[0]),
            alias=None if self.alias is None else (rename(self.alias[:1])[0], rename(self.alias[1:])[0]),
            blocks=None if blocks is None else lambda buffers: blocks(own(buffers)),
        )
