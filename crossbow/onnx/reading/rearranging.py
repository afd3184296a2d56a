"""Operators that move, select or pad the elements of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.node import Node, Refused
from crossbow.onnx.reading.table import reads, reads_group
from crossbow.ops import ChannelShuffle, Flatten, Pad, Reshape, Slice, Transpose
from crossbow.types import Shape


@reads("Reshape", versions=(5, 13, 14, 19, 21, 23, 24, 25), attributes="allowzero", constants=(1,), is_form=True)
def reshape(node: Node) -> NetworkStep:
    x, target = node.step(), node.constant(1, varying=True)
    assert target is not None
    sizes = [int(size) for size in target.reshape(-1)]
    if not node.integer("allowzero", 0):
        sizes = [x.shape[i] if size == 0 and i < len(x.shape) else size for i, size in enumerate(sizes)]
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(x.shape) // rest if rest else 0
    return reshaped(node, x, tuple(sizes))


@reads("Squeeze", versions=(1, 11, 13, 21, 23, 24, 25), attributes="axes", constants=(1,), is_form=True)
def squeeze(node: Node) -> NetworkStep:
    x = node.step()
    axes = axes_of(node, 1, len(x.shape))
    if axes is None:
        axes = {axis for axis, size in enumerate(x.shape) if size == 1}
    return reshaped(node, x, tuple(size for axis, size in enumerate(x.shape) if axis not in axes))


@reads("Unsqueeze", versions=(1, 11, 13, 21, 23, 24, 25), attributes="axes", constants=(1,), is_form=True)
def unsqueeze(node: Node) -> NetworkStep:
    x = node.step()
    given = node.integers("axes") if node.version < 13 else node.constant(1)
    axes = [] if given is None else [int(axis) % (len(x.shape) + len(given)) for axis in given]
    sizes = list(x.shape)
    for axis in sorted(axes):
        sizes.insert(axis, 1)
    return reshaped(node, x, tuple(sizes))


def reshaped(node: Node, x: NetworkStep, shape: Shape) -> NetworkStep:
    """The step itself if the shape is the same, else a Flatten or a Reshape. Raises Refused if examples would not stay
    separate."""
    if node.is_marked:
        return node.apply(Reshape(shape=shape[1:]), x)
    while isinstance(x.kernel, Reshape):  # intermediate shapes have no effect
        (x,) = x.inputs
    if shape == x.shape:
        return x
    if shape[:1] != x.shape[:1] or math.prod(shape) != math.prod(x.shape):
        row = math.prod(x.shape[1:])
        expected = f"expected {x.shape} to keep its first dimension, and {row} elements for each example"
        raise Refused(f"{expected}. Received: {shape}")
    if (source := _shuffled(x, shape)) is not None:
        (_, groups, *_) = x.inputs[0].shape
        return node.apply(ChannelShuffle(groups=groups), source)
    return node.apply(Flatten() if len(shape) == 2 else Reshape(shape=shape[1:]), x)


def _shuffled(x: NetworkStep, shape: Shape) -> NetworkStep | None:
    """The source of a channel shuffle: x is (N, C/g, g, …), made from (N, g, C/g, …), and becomes (N, C, …)."""
    rank = len(shape) + 1
    if not isinstance(x.kernel, Transpose) or x.kernel.order != (0, 2, 1, *range(3, rank)):
        return None
    (apart,) = x.inputs
    if not isinstance(apart.kernel, Reshape) or len(apart.shape) != rank:
        return None
    (source,) = apart.inputs
    return source if source.shape == shape and apart.shape[3:] == shape[2:] else None


@reads_group("ChannelShuffle")
def channel_shuffle(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for a ChannelShuffle: Reshape, Transpose, Reshape."""
    sizes = nodes[0].constant(1)
    assert sizes is not None
    return nodes[-1].apply(ChannelShuffle(groups=int(sizes[1])), nodes[0].step())


@reads("Transpose", versions=(1, 13, 21, 23, 24, 25), attributes="perm", is_form=True)
def transpose(node: Node) -> NetworkStep:
    x = node.step()
    order = node.integers("perm", tuple(range(len(x.shape)))[::-1])
    assert order is not None
    if sorted(order) != list(range(len(x.shape))):
        raise Refused(f"expected each of the {len(x.shape)} dimensions once. Received: {order}")
    if order[:1] != (0,):
        raise Refused(f"expected an order that begins with 0, the examples. Received: {order} of {x.shape}")
    if node.is_marked:
        return node.apply(Transpose(order=order), x)
    while isinstance(x.kernel, Transpose):
        order = tuple(x.kernel.order[axis] for axis in order)
        (x,) = x.inputs
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved == sorted(moved):  # only dimensions of size 1 move
        return reshaped(node, x, tuple(x.shape[axis] for axis in order))
    return node.apply(Transpose(order=order), x)


# Parts


@reads("Slice", versions=(1, 10, 11, 13), attributes="starts ends axes", constants=(1, 2, 3, 4), is_form=True)
def slice_(node: Node) -> NetworkStep:
    """One Slice for each axis along which elements are omitted."""
    x = node.step()
    by: Sequence[int] | None = None
    starts, ends, given = (node.integers(name) for name in ("starts", "ends", "axes"))
    if node.version >= 10:
        starts, ends, given, by = (_numbers(node, index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise Refused("expected starts and ends. Received: none")
    axes = range(len(starts)) if given is None else [axis % len(x.shape) for axis in given]
    strides = [1] * len(starts) if by is None else by
    parts = []
    for axis, start, end, step in zip(axes, starts, ends, strides, strict=True):
        if step < 1:
            raise Refused(f"expected steps ≥ 1. Received: {step}")
        places = range(x.shape[axis])[start:end:step]
        if len(places) != x.shape[axis] or node.is_marked:
            parts.append((axis, places))
    if any(axis == 0 for axis, _ in parts):
        raise Refused(f"expected all examples to be selected. Received: some, of {x.shape}")
    for number, (axis, places) in enumerate(parts):
        if not places:
            raise Refused(f"expected at least one element along axis {axis}. Received: none, of {x.shape}")
        kernel = Slice(axis=axis, start=places.start, stop=places[-1] + 1, step=places.step)
        x = node.apply(kernel, x, part="" if number == len(parts) - 1 else f"axis{axis}")
    return x


def _numbers(node: Node, index: int) -> tuple[int, ...] | None:
    array = node.constant(index, varying=True)
    return None if array is None else tuple(int(number) for number in array.reshape(-1))


@reads(
    "Split",
    versions=(2, 11, 13, 18),
    attributes="axis split num_outputs",
    constants=(1,),
    is_form=True,
    several_outputs=True,
)
def split(node: Node) -> list[NetworkStep]:
    """One Slice for each output."""
    x, count = node.step(), len(node.proto.output)
    axis = node.integer("axis", 0)
    if not -len(x.shape) <= axis < len(x.shape) or axis % len(x.shape) == 0:
        raise Refused(f"expected an axis of {x.shape} other than 0, the examples. Received: axis={axis}")
    axis %= len(x.shape)
    size = x.shape[axis]
    given = node.integers("split") if node.version < 13 else _numbers(node, 1)
    share = -(-size // count)
    sizes = [min(share, size - i * share) for i in range(count)] if given is None else list(given)
    if len(sizes) != count or sum(sizes) != size or min(sizes) < 1:
        raise Refused(f"expected {count} sizes ≥ 1 with the sum {size}. Received: {sizes}")
    steps, start = [], 0
    for number, length in enumerate(sizes):
        kernel = Slice(axis=axis, start=start, stop=start + length)
        steps.append(node.apply(kernel, x, part=f"output{number}") if length != size else x)
        start += length
    return steps


@reads(
    "Pad", versions=(2, 11, 13, 18, 19, 21, 23, 24, 25), attributes="mode pads value", constants=(1, 2, 3), is_form=True
)
def pad(node: Node) -> NetworkStep:
    """A Pad. If only a Conv reads the padded image and the values are zeros, they become the Conv's padding."""
    x, mode = node.step(), node.text("mode", "constant")
    border = _border(node, len(x.shape))
    value = node.number("value", 0.0) if node.version < 11 else node.single(2, 0.0)
    if not any(map(any, border)) and not node.is_marked:
        return x
    if mode != "constant" or any(border[0]) or min(map(min, border)) < 0:
        raise Refused(
            "expected a border of one value, of 0 or more elements, around each example. "
            f"Received: mode={mode}, {', '.join(map(str, border))}"
        )
    if not value and not any(border[1]) and node.sole_consumer("Conv") is not None:
        node.leave(border[2:])
        return x
    return node.apply(Pad(padding=tuple(border[1:]), value=value), x)


def _border(node: Node, rank: int) -> list[tuple[int, int]]:
    """Padding (before, after) for each dimension."""
    given = node.integers("pads") if node.version < 11 else _numbers(node, 1)
    numbers = [] if given is None else list(given)
    chosen = node.constant(3)
    axes = range(rank) if chosen is None else [int(axis) % rank for axis in chosen]
    border = [(0, 0)] * rank
    half = len(numbers) // 2
    for axis, before, after in zip(axes, numbers[:half], numbers[half:], strict=True):
        border[axis] = before, after
    return border


def axes_of(node: Node, index: int | None, rank: int) -> set[int] | None:
    """The axes of a node: an attribute in old versions, an input (at `index`) in new ones; None if they are missing."""
    given = node.integers("axes")
    if given is None and index is not None and node.given(index):
        array = node.constant(index)
        given = None if array is None else tuple(map(int, array))
    return None if given is None else {axis % rank for axis in given}
