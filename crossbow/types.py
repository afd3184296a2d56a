"""Types that all layers share: phases, units, shapes, tensors, layouts, and the errors for users."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
"""Sizes of a tensor in logical order: (N, C, H, W), (N, features), or () for a scalar."""

Array = NDArray[np.generic]
"""A NumPy array of any element type."""

LARGEST_EXACT = 2**24
"""Largest integer up to which float32 represents all integers exactly."""


class Phase(enum.Enum):
    """Purpose of a dataflow: training, or testing and prediction (CHECK)."""

    TRAIN = "train"
    """Training: losses, gradients, and operators such as dropout are active."""
    CHECK = "check"
    """Testing and prediction."""


class TrainingUnit(enum.Enum):
    """The unit of a training length: passes over the training set, or batches."""

    EPOCHS = "epochs"
    """Passes over the training set."""
    TASKS = "tasks"
    """Batches, of all learners together."""


class DurationUnit(enum.Enum):
    """The unit of a time limit; the value is its length in seconds."""

    SECONDS = 1.0
    """One second."""
    MINUTES = 60.0
    """Sixty seconds."""
    HOURS = 3600.0
    """3,600 seconds."""


class Layout(enum.Enum):
    """The order of a tensor's elements in memory. Their logical order is always (N, C, H, W)."""

    PLAIN = "plain"
    """Row-major in logical order."""
    CHANNELS_LAST = "channels_last"
    """N, H, W, C in memory, for tensors of four dimensions only."""


@dataclass(frozen=True)
class Tensor:
    """Description of a buffer's contents: logical shape, element type and order in memory."""

    shape: Shape
    dtype: np.dtype[np.generic]
    layout: Layout = Layout.PLAIN

    def __post_init__(self) -> None:
        if self.layout is Layout.CHANNELS_LAST and len(self.shape) != 4:
            raise ValueError(f"a channels-last tensor has four dimensions. Received: shape={self.shape}")

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    @property
    def in_logical_order(self) -> bool:
        """Whether the elements are in row-major order of the logical shape, for either layout."""
        return self.layout is Layout.PLAIN or self.shape[1] == 1 or self.shape[2] * self.shape[3] == 1

    def same_order(self, other: Tensor) -> bool:
        """Whether elements with the same logical position have the same position in memory."""
        if (self.shape, self.layout) == (other.shape, other.layout):
            return True
        return self.in_logical_order and other.in_logical_order

    def view(self, memory: Array) -> Array:
        """The tensor as an array of its logical shape over `memory` (at least `nbytes` bytes, 1-D uint8)."""
        flat = memory[: self.nbytes].view(self.dtype)
        if self.layout is Layout.PLAIN:
            return flat.reshape(self.shape)
        n, c, h, w = self.shape
        return flat.reshape(n, h, w, c).transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class LabelRange:
    """Type and range of a data set's labels: classes (int32) or values (floating point), of shape (N, …)."""

    shape: Shape
    """Shape of one batch."""
    classes: bool
    minimum: float
    maximum: float

    def __str__(self) -> str:
        kind = "classes" if self.classes else "values"
        return f"{kind} of shape {self.shape} in [{self.minimum:g}, {self.maximum:g}]"


def address(array: Array) -> int:
    """The address of an array's first element, in the memory of the host or of a GPU."""
    interface = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    return int(interface["data"][0])


def bytes_text(nbytes: int) -> str:
    """A number of bytes as text.

    >>> bytes_text(512), bytes_text(25_340_000_000), bytes_text(10**22)
    ('512 B', '25.3 GB', '10,000.0 EB')
    """
    power = min((len(str(nbytes)) - 1) // 3, len(_BYTES) - 1)
    tenths = nbytes * 10 // 1000**power
    return f"{tenths // 10:,}{f'.{tenths % 10}' if power else ''} {_BYTES[power]}"


_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


class Aborted(Exception):  # noqa: N818 - an order to stop, not an error
    """A wait ended early, because a learner failed, or because the object that waits was stopped."""


class CrossbowError(Exception):
    """Base class of all errors that Crossbow raises deliberately."""


class ConfigurationError(CrossbowError, ValueError):
    """A configuration has an unknown name or an invalid value."""


class GraphError(CrossbowError, ValueError):
    """A graph is invalid. The attribute `faults` is a tuple of all its faults, one sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        heading = "" if count == 1 else f"{count} faults in the graph:\n"
        super().__init__(heading + "\n".join(self.faults))


class DataError(CrossbowError, ValueError):
    """A data set or a file cannot be used."""


class ExampleError(DataError):
    """An operator cannot use an example of a batch. The attribute `example` is its number in the batch."""

    def __init__(self, message: str, example: int) -> None:
        super().__init__(message)
        self.example = example


class NonFiniteLossError(CrossbowError, ArithmeticError):
    """The loss became NaN or infinite."""


class NonFiniteError(CrossbowError, ArithmeticError):
    """An operator or the solver computed NaN or infinity (detected with `SystemConf(check_numerics=True)`)."""


class MonitorError(CrossbowError, RuntimeError):
    """A monitor failed, which ended the training. The original exception, with its traceback, is `__cause__`."""


class TaskError(CrossbowError, RuntimeError):
    """A task failed. The original exception, with its traceback, is `__cause__`. The attributes `task` and `operator`
    are the number of the task and the name of the operator that failed."""

    def __init__(self, message: str, *, task: int, operator: str) -> None:
        super().__init__(message)
        self.task = task
        self.operator = operator
