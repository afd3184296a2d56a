"""Examples in memory maps of NumPy, which are never read whole."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.examples import ArrayExamples, BadExample, Examples, Indices, Selection
from crossbow.types import Array


def is_memory_map(array: NDArray[Any]) -> bool:
    """Whether the elements are in a memory map, as after `np.load(path, mmap_mode="r")`.

    >>> is_memory_map(np.zeros(4))
    False
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, mmap.mmap)


def type_of_mapped(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The type in which a network gets numbers of a memory map: as an array's, but without looking at the numbers; None
    for integers that float32 may not represent.

    >>> [str(type_of_mapped(np.dtype(name))) for name in ("u1", "<i2", ">f4", "f2", "i8")]
    ['uint8', 'float32', 'float32', 'float32', 'None']
    """
    if dtype == np.uint8:
        return dtype
    if dtype.kind == "f":
        return np.dtype(np.float32 if dtype.itemsize < 4 else dtype.newbyteorder("="))
    return np.dtype(np.float32) if dtype.itemsize < 4 else None


class MappedExamples(ArrayExamples):
    """Examples whose images are in a memory map. They are read, converted and checked when they are needed.

    A floating-point number that is not finite makes a bad example.
    """

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        dtype = type_of_mapped(self.images.dtype)
        assert dtype is not None
        return dtype

    def source(self, index: int) -> str:
        base: Any = self.images
        while isinstance(base, np.ndarray) and not getattr(base, "filename", None):
            base = base.base
        return f"{getattr(base, 'filename', 'memory map')}: example {index}"

    def write_images(self, selection: Selection, images: Array) -> None:
        if self.images.dtype == images.dtype and self.images.flags.c_contiguous:
            super().write_images(selection, images)
        else:  # `take` would copy the whole map
            images[...] = self.images[selection.indices]
        if images.dtype.kind == "f" and images.size and not (-np.inf < images.min() and images.max() < np.inf):
            flat = images.reshape(len(images), -1)
            position = int(np.argmin(np.isfinite(flat).all(axis=1)))
            value = flat[position][~np.isfinite(flat[position])][0]
            index = int(selection.indices[position])
            raise BadExample(index, self.source(index), f"expected finite numbers. Received: {value}")

    def part(self, selected: slice | Indices) -> Examples:
        """The examples with these indices, which are read when they are needed."""
        return Examples.part(self, selected)
