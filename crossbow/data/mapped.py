"""Examples in memory maps of NumPy, which are never read whole."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.examples import BadExample, Examples, Indices, Selection
from crossbow.types import Array, DataError, Shape

EXACT = "integers that float32 holds exactly (as all up to 2**24)"
LARGEST = np.finfo(np.float32).max


def memory_map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The memory map of a file that has the elements of an array, as after `np.load(path, mmap_mode="r")`; None if they
    are in other memory.

    >>> memory_map_of(np.zeros(4))
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap):
        return None
    try:
        base.size()
    except OSError:  # anonymous memory, which has no file
        return None
    return base


@dataclass(eq=False)
class MappedExamples(Examples):
    """Examples whose images (N, …), of any numeric type, are in a memory map. They are read, converted and checked when
    they are needed: uint8 stays uint8, float64 stays float64, and other numbers become float32.

    An image is a bad example if a number of it is not finite, or if float32 cannot hold it: an integer must not be
    rounded. Labels (N, …) are in memory.
    """

    images: NDArray[Any]
    labels: Array

    @property
    def image_shape(self) -> Shape:
        return self.images.shape[1:]

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        kept = self.images.dtype == np.uint8 or (self.images.dtype.kind == "f" and self.images.dtype.itemsize == 8)
        return self.images.dtype.newbyteorder("=") if kept else np.dtype(np.float32)

    def source(self, index: int) -> str:
        return f"{self._file()}: example {index}"

    def stored_images(self, indices: Indices) -> Array:
        self._check_length()
        found: Array = self.images[indices]
        return found

    def write_images(self, selection: Selection, images: Array) -> None:
        self._check_length()
        flags = self.images.flags
        if self.images.dtype == images.dtype and flags.c_contiguous and flags.aligned:
            self.images.take(selection.indices, axis=0, out=images, mode="clip")  # see `Examples.write`
            numbers: NDArray[Any] = images
        else:  # `take` would copy the whole map
            numbers = self.images[selection.indices]
            with np.errstate(over="ignore"):  # which `_check` finds
                images[...] = numbers
        self._check(selection.indices, numbers, images)

    def _check(self, indices: Indices, numbers: NDArray[Any], images: NDArray[Any]) -> None:
        """Raise BadExample for the first image that cannot be used. numbers: the images as they are stored."""
        if not images.size or numbers.dtype == np.uint8:
            return
        if numbers.dtype.kind == "f":
            if images.min() >= -LARGEST and images.max() <= LARGEST:
                return
            good, expected = np.abs(images) <= LARGEST, "finite numbers that float32 can hold"
        else:
            good, expected = images == numbers, EXACT
        if not good.all():
            position = int(np.argmin(good.reshape(len(good), -1).all(axis=1)))
            index, value = int(indices[position]), numbers[position][~good[position]][0]
            raise BadExample(index, self.source(index), f"expected {expected}. Received: {value}")

    def _check_length(self) -> None:
        """Raise DataError if the file has become shorter. The system kills a process that reads beyond its end."""
        mapped = memory_map_of(self.images)
        assert mapped is not None
        if (size := mapped.size()) < len(mapped):
            raise DataError(
                f"{self._file()}: expected a file that does not change while it is used, of at least {len(mapped):,} "
                f"bytes. Received: {size:,} bytes"
            )

    def _file(self) -> str:
        base: Any = self.images
        while isinstance(base, np.ndarray) and not getattr(base, "filename", None):
            base = base.base
        return str(getattr(base, "filename", "memory map"))
