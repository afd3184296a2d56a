"""Windows that slide over the spatial axes: fields that Conv and Pool share.

`kernel_size`, `stride` and `dilation` are an integer, or a tuple of integers, one per spatial axis. `padding` is an
integer, one integer per axis, or one pair (before, after) per axis. A tuple determines the number of axes; if all sizes
are integers, the input determines it.
"""

from __future__ import annotations

from typing import Protocol

from crossbow.conf import is_integer, refuse
from crossbow.types import Shape

Sizes = int | tuple[int, ...]
Padding = int | tuple[int, ...] | tuple[tuple[int, int], ...]

MAXIMUM_AXES = 3


class Windowed(Protocol):
    """An operator with windows."""

    @property
    def kernel_size(self) -> Sizes: ...
    @property
    def stride(self) -> Sizes: ...
    @property
    def padding(self) -> Padding: ...
    @property
    def dilation(self) -> Sizes: ...


def check_windows(owner: Windowed) -> None:
    """Raise ConfigurationError unless the four fields are well formed and agree on the number of axes."""
    several = f"one per spatial axis (1 to {MAXIMUM_AXES})"
    for name, value in (("kernel_size", owner.kernel_size), ("stride", owner.stride), ("dilation", owner.dilation)):
        if not are_sizes(value, 1):
            raise refuse(owner, name, value, f"an integer ≥ 1 or a tuple of such, {several}")
    if not are_sizes(owner.padding, 0) and not _are_pairs(owner.padding):
        allowed = f"an integer ≥ 0 or a tuple of such or of pairs (before, after) of such, {several}"
        raise refuse(owner, "padding", owner.padding, allowed)
    given = _tuples(owner)
    for field, sizes in given[1:]:
        other, expected = given[0]
        if len(sizes) != len(expected):
            raise refuse(owner, field, sizes, f"an integer or as long as {other}={expected!r}")


def spatial_axes(owner: Windowed, x: Shape) -> int:
    """Number of spatial axes of an input. Raises ValueError if it is not 1 to 3, or not that of the fields."""
    axes = len(x) - 2
    if not 1 <= axes <= MAXIMUM_AXES:
        raise ValueError(f"expected an input of shape (N, C, W), (N, C, H, W) or (N, C, D, H, W). Received: {x}")
    for name, value in _tuples(owner):
        if axes != len(value):
            raise ValueError(f"expected an input with {len(value)} spatial axes, for {name}={value!r}. Received: {x}")
    return axes


def per_axis(value: Sizes, axes: int) -> tuple[int, ...]:
    """One size per axis.

    >>> per_axis(3, 2), per_axis((1, 2, 3), 3)
    ((3, 3), (1, 2, 3))
    """
    return tuple(map(int, value if isinstance(value, tuple | list) else (value,) * axes))


def padding_per_axis(value: Padding, axes: int) -> tuple[tuple[int, int], ...]:
    """One pair (before, after) per axis.

    >>> padding_per_axis((1, 2), 2), padding_per_axis(((1, 2), (0, 1)), 2)
    (((1, 1), (2, 2)), ((1, 2), (0, 1)))
    """
    each = value if isinstance(value, tuple | list) else (value,) * axes
    pairs = (p if isinstance(p, tuple | list) else (p, p) for p in each)
    return tuple((int(before), int(after)) for before, after in pairs)


def are_sizes(value: object, minimum: int) -> bool:
    """Whether the value is an integer ≥ minimum, or a tuple of 1 to 3 of such."""
    values = value if isinstance(value, tuple | list) else (value,)
    return 1 <= len(values) <= MAXIMUM_AXES and all(is_integer(v) and v >= minimum for v in values)


def is_pair(value: object) -> bool:
    """Whether the value is a pair of integers ≥ 0."""
    return isinstance(value, tuple | list) and len(value) == 2 and are_sizes(value, 0)


def times(sizes: Shape) -> str:
    """Sizes as text.

    >>> times((4, 9))
    '4×9'
    """
    return "×".join(map(str, sizes))


def _tuples(owner: Windowed) -> list[tuple[str, tuple[object, ...]]]:
    """The fields that determine the number of axes."""
    fields = {
        "kernel_size": owner.kernel_size,
        "stride": owner.stride,
        "padding": owner.padding,
        "dilation": owner.dilation,
    }
    return [(name, value) for name, value in fields.items() if isinstance(value, tuple | list)]


def _are_pairs(value: object) -> bool:
    return isinstance(value, tuple | list) and 1 <= len(value) <= MAXIMUM_AXES and all(map(is_pair, value))
