"""Strides of tensors, also viewed with other sizes, and sizes in memory order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossbow.types import Layout, Shape, Tensor


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Distance in memory between neighbours along each logical axis, in elements.

    >>> import numpy as np
    >>> strides(Tensor((2, 3, 4, 5), np.dtype(np.float32), Layout.CHANNELS_LAST))
    (60, 1, 15, 3)
    """
    if tensor.layout is Layout.CHANNELS_LAST:
        _, c, h, w = tensor.shape
        return c * h * w, 1, w * c, c
    return tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))


def strides_as(tensor: Tensor, sizes: Shape) -> tuple[int, ...]:
    """The strides of a tensor viewed as an array of `sizes`, with one or more neighbouring sizes for each axis.

    >>> import numpy as np
    >>> strides_as(Tensor((2, 6, 4, 5), np.dtype(np.float32), Layout.CHANNELS_LAST), (2, 3, 2, 4, 5))
    (120, 2, 1, 30, 6)
    """
    if 0 in tensor.shape and 0 in sizes:
        return tuple([1] * len(sizes))  # an empty tensor: strides do not matter
    found: list[int] = []
    for size, step in zip(tensor.shape, strides(tensor), strict=True):
        begin, product = len(found), 1
        while product != size:
            if len(found) == len(sizes) or product > size or product == 0:
                raise ValueError(f"expected sizes that the axes of {tensor.shape} consist of. Received: {sizes}")
            product *= sizes[len(found)]
            found.append(step)
        for axis in range(len(found) - 2, begin - 1, -1):
            found[axis] = found[axis + 1] * sizes[axis + 1]
    if any(size != 1 for size in sizes[len(found) :]):
        raise ValueError(f"expected sizes that the axes of {tensor.shape} consist of. Received: {sizes}")
    return (*found, *[1] * (len(sizes) - len(found)))


def transposed_strides(x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> tuple[Shape, Shape, Shape]:
    """For y = x, viewed as `sizes`, with its axes in `order`: the sizes in that order, and the strides of x and y."""
    turned = tuple(sizes[axis] for axis in order)
    from_x = strides_as(x, sizes)
    return turned, tuple(from_x[axis] for axis in order), strides_as(y, turned)


def moves_nothing(x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> bool:
    """Whether a transpose from x to y leaves every element at the same location."""
    turned, from_x, to_y = transposed_strides(x, y, sizes, order)
    return all(a == b for size, a, b in zip(turned, from_x, to_y, strict=True) if size != 1)


def axes_in_memory(tensor: Tensor) -> tuple[int, ...]:
    """An activation's axes in the order in which they lie in memory, the outermost first."""
    return (0, 2, 3, 1) if tensor.layout is Layout.CHANNELS_LAST else tuple(range(len(tensor.shape)))


def channels_of(tensor: Tensor) -> tuple[int, int, int]:
    """Sizes of a tensor (N, C, …) in memory order: the axes outside the channels, the channels, the axes inside them.

    >>> import numpy as np
    >>> channels_of(Tensor((2, 3, 4, 5), np.dtype(np.float32)))
    (2, 3, 20)
    """
    examples, channels, *places = tensor.shape
    if tensor.layout is Layout.CHANNELS_LAST:
        return examples * math.prod(places), channels, 1
    return examples, channels, math.prod(places)
