"""Layout of a model's vector: the location of each variable or statistic. Weights, gradients and velocities share
it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import PlainStorage, Storage, Variable
from crossbow.ops.kernel import VariableSpec
from crossbow.tracebacks import users_error
from crossbow.types import Array, ConfigurationError, DataError, Shape

CACHE_LINE, SMALL_PAGE, SHIFT = 64, 4096, 512
"""Sizes in bytes."""
SEGMENT_ALIGNMENT = 16
"""Alignment in elements. In float32, every variable starts on a cache line."""


def share_of(elements: int, index: int, count: int) -> slice:
    """The range of part `index` of a vector in `count` parts of almost equal sizes, which begin at multiples of
    `SEGMENT_ALIGNMENT`.

    >>> [share_of(70, index, 2) for index in range(2)]
    [slice(0, 32, None), slice(32, 70, None)]
    """
    start, stop = (elements // SEGMENT_ALIGNMENT * i // count * SEGMENT_ALIGNMENT for i in (index, index + 1))
    return slice(start, elements if index + 1 == count else stop)


@dataclass(frozen=True)
class Segment:
    """A variable's location in the vector."""

    name: str
    """Operator and variable, as "conv1.weights"."""
    spec: VariableSpec
    storage: Storage
    offset: int
    """Offset in elements."""

    @property
    def place(self) -> slice:
        return slice(self.offset, self.offset + self.storage.elements)

    def flat(self, vector: Array) -> Array:
        return vector[self.place]

    def view(self, vector: Array) -> Array:
        """The array for kernels: of the logical shape if the storage is plain, else the flat storage."""
        flat = self.flat(vector)
        return flat.reshape(self.spec.shape) if isinstance(self.storage, PlainStorage) else flat


@dataclass(frozen=True)
class ModelLayout:
    """All variables of a model in one vector, by (operator's id, variable's name), in the order of the graph."""

    segments: Mapping[tuple[int, str], Segment]
    dtype: np.dtype[np.generic]

    @functools.cached_property
    def elements(self) -> int:
        """Length of the vector, including padding."""
        ends = [segment.offset + segment.storage.elements for segment in self.segments.values()]
        return -(-max(ends, default=0) // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT

    @functools.cached_property
    def parameters(self) -> int:
        """Number of trainable values."""
        return sum(int(np.prod(segment.spec.shape)) for segment in self.segments.values())

    @property
    def learning_rates(self) -> tuple[tuple[slice, float], ...]:
        """Ranges that cover the vector, including padding, and the learning rate multiplier of each."""
        runs: list[tuple[slice, float]] = []
        for segment in self:
            multiplier = segment.spec.learning_rate_multiplier
            if not runs or multiplier != runs[-1][1]:
                runs[-1:] = [(slice(run.start, segment.offset), other) for run, other in runs[-1:]]
                runs.append((slice(segment.offset, self.elements), multiplier))
        return tuple(runs)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments.values())

    def variable(self, operator: int, name: str) -> Variable:
        segment = self.segments[operator, name]
        return Variable(segment.spec.shape, self.dtype, segment.storage)

    def new_vector(self) -> Array:
        """A zeroed vector, aligned to a cache line."""
        return self.new_vectors(1)[0]

    def new_vectors(
        self, count: int, zeros: Callable[[int], Array] = aligned_zeros, part: slice | None = None
    ) -> list[Array]:
        """Zeroed vectors, contiguous in memory to fill large pages. zeros: function that allocates zeroed bytes. part:
        the range of the model's vector that they cover; None means the whole vector."""
        elements = self.elements if part is None else part.stop - part.start
        nbytes = elements * self.dtype.itemsize
        distance = -(-nbytes // CACHE_LINE) * CACHE_LINE
        if distance % SMALL_PAGE < SHIFT:  # elements with equal indices, used together, would conflict in the cache
            distance += SHIFT
        memory = zeros(count * distance)
        return [memory[start : start + nbytes].view(self.dtype) for start in range(0, count * distance, distance)]

    def initialise(self, vector: Array, seed: int) -> None:
        """Draw the initial values. Each variable has its own generator, so that a new variable does not affect others.

        Raises ConfigurationError if the values do not fit the variable, are not finite, or are less than its minimum.
        """
        for index, segment in enumerate(self):
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, index])))
            try:
                plain = segment.spec.initial_values(generator)
            except ValueError as error:
                raise ConfigurationError(f"{segment.name}: {error}") from users_error(error)
            value = _converted(plain, self.dtype)
            if _first_bad(value, segment.spec) is not None:
                least = segment.spec.minimum
                bound = f", ≥ {least:g}" if least > -math.inf else ""
                expected = f"expected initial values that are finite{bound}, and that {self.dtype} can hold"
                raise ConfigurationError(f"{segment.name}: {expected}. Received: those of {segment.spec.initialiser!r}")
            segment.storage.pack(value, segment.flat(vector))

    def export(self, vector: Array) -> dict[str, Array]:
        """A copy of the variables by name, in logical shape and order."""
        return {self.segments[key].name: value for key, value in self.unpack(vector).items()}

    def unpack(self, vector: Array) -> dict[tuple[int, str], Array]:
        """A copy of the variables by (operator's id, variable's name), in logical shape and order."""
        variables = {}
        for key, segment in self.segments.items():
            plain = np.empty(segment.spec.shape, self.dtype)
            segment.storage.unpack(segment.flat(vector), plain)
            variables[key] = plain
        return variables

    def pack(self, values: Mapping[tuple[int, str], Array], vector: Array) -> None:
        """Write variables by (operator's id, variable's name) to the vector, in the layout of each."""
        for key, segment in self.segments.items():
            segment.storage.pack(_converted(values[key], self.dtype), segment.flat(vector))

    def plain(self, names: Collection[str]) -> ModelLayout:
        """A layout of the same variables in which those of these names are stored plain."""
        variables = {
            key: (each.name, each.spec, PlainStorage(each.spec.shape) if each.name in names else each.storage)
            for key, each in self.segments.items()
        }
        return lay_out(variables, self.dtype)

    def load(self, variables: Mapping[str, Array], vector: Array, source: str) -> None:
        """Write variables by name to the vector. Raises DataError, and writes nothing, if they do not fit."""
        load_vectors(variables, [(self, vector)], source)


Layouts = tuple[ModelLayout, ModelLayout]
"""The layouts of the variables and of the running statistics."""


def lay_out(
    variables: Mapping[tuple[int, str], tuple[str, VariableSpec, Storage]], dtype: np.dtype[np.generic]
) -> ModelLayout:
    """Place variables, each with its name, specification and storage, one after another in a vector."""
    segments: dict[tuple[int, str], Segment] = {}
    offset = 0
    for key, (name, spec, storage) in variables.items():
        segments[key] = Segment(name, spec, storage, offset)
        offset += -(-storage.elements // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
    return ModelLayout(segments, dtype)


MOST_DIFFERENCES = 20
"""Maximum number of differences to list if a file does not fit a model."""


def check_names(received: Mapping[str, Shape], layouts: Sequence[ModelLayout], source: str) -> None:
    """Raises DataError unless the names and shapes are those of all layouts together."""
    expected = {segment.name: segment.spec.shape for layout in layouts for segment in layout}
    names = [name for name in sorted(expected.keys() | received.keys()) if expected.get(name) != received.get(name)]
    if names:
        differences = [
            f"{name}: expected {expected.get(name, 'no such variable')}. Received: {received.get(name, 'nothing')}"
            for name in names[:MOST_DIFFERENCES]
        ]
        if len(names) > MOST_DIFFERENCES:
            differences.append(f"and {len(names) - MOST_DIFFERENCES:,} more")
        raise DataError(f"{source} does not fit the model: " + "; ".join(differences))


def load_vectors(variables: Mapping[str, Array], vectors: Sequence[tuple[ModelLayout, Array]], source: str) -> None:
    """Write variables by name to the vectors that contain them.

    Raises DataError, and writes nothing, if the names are not those of all layouts together, if a shape or type does
    not fit, or if a number is not finite or less than its variable's minimum.
    """
    check_names({name: value.shape for name, value in variables.items()}, [layout for layout, _ in vectors], source)
    packing: list[tuple[Segment, Array, Array]] = []
    for layout, vector in vectors:
        for segment in layout:
            given = variables[segment.name]
            where = f"{source} does not fit the model: {segment.name}"
            if given.dtype.kind != "f":
                raise DataError(f"{where}: expected floating point. Received: {given.dtype}")
            value = _converted(given, layout.dtype)
            if (place := _first_bad(value, segment.spec)) is not None:
                least = segment.spec.minimum
                bound = f"numbers ≥ {least:g}" if np.isfinite(value.flat[place]) else "finite numbers"
                bad = given.reshape(-1)[place]
                raise DataError(f"{where}: expected {bound} that {layout.dtype} can hold. Received: {bad:g}")
            packing.append((segment, value, vector))
    for segment, value, vector in packing:
        segment.storage.pack(value, segment.flat(vector))


def _first_bad(value: NDArray[Any], spec: VariableSpec) -> int | None:
    """Index of the first element that is not finite, or less than the variable's minimum."""
    bad = ~np.isfinite(value) | (value < spec.minimum)
    return int(np.argmax(bad)) if bad.any() else None


def _converted(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """The array in this type, contiguous. Numbers out of its range become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=dtype)
