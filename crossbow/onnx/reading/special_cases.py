"""ONNX operators that Crossbow has no counterpart of, read where they amount to one that it has, or to nothing."""

from __future__ import annotations

import math

import numpy as np

from crossbow.onnx.network import Step
from crossbow.onnx.reading.layers import one_or_all
from crossbow.onnx.reading.node import Node, Refused
from crossbow.onnx.reading.table import reads
from crossbow.ops import Broadcast, Flatten, Pool, ReLU
from crossbow.types import Shape


@reads("Reshape", versions=(5, 13, 14, 19, 21, 23, 24, 25), attributes="allowzero", constants=(1,), is_form=True)
def reshape(node: Node) -> Step:
    x, target = node.step(), node.constant(1, varying=True)
    assert target is not None
    sizes = [int(size) for size in target]
    if not node.integer("allowzero", 0):
        sizes = [x.shape[i] if size == 0 and i < len(x.shape) else size for i, size in enumerate(sizes)]
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(x.shape) // rest if rest else 0
    return reshaped(node, x, tuple(sizes))


@reads("Squeeze", versions=(1, 11, 13, 21, 23, 24, 25), attributes="axes", constants=(1,), is_form=True)
def squeeze(node: Node) -> Step:
    x = node.step()
    axes = _axes(node, 1, len(x.shape))
    if axes is None:
        axes = {axis for axis, size in enumerate(x.shape) if size == 1}
    return reshaped(node, x, tuple(size for axis, size in enumerate(x.shape) if axis not in axes))


@reads("Unsqueeze", versions=(1, 11, 13, 21, 23, 24, 25), attributes="axes", constants=(1,), is_form=True)
def unsqueeze(node: Node) -> Step:
    x = node.step()
    given = node.integers("axes") if node.version < 13 else node.constant(1)
    axes = [] if given is None else [int(axis) % (len(x.shape) + len(given)) for axis in given]
    sizes = list(x.shape)
    for axis in sorted(axes):
        sizes.insert(axis, 1)
    return reshaped(node, x, tuple(sizes))


@reads("Transpose", versions=(1, 13, 21, 23, 24, 25), attributes="perm", is_form=True)
def transpose(node: Node) -> Step:
    """Where only dimensions of size 1 change places, the order of the elements is the same."""
    x = node.step()
    order = node.integers("perm", tuple(range(len(x.shape)))[::-1])
    assert order is not None
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved != sorted(moved) or order[:1] != (0,):
        raise Refused(f"expected an order that moves nothing but dimensions of size 1. Received: {order} of {x.shape}")
    return reshaped(node, x, tuple(x.shape[axis] for axis in order))


@reads("Cast", versions=(6, 9, 13, 19, 21, 23, 24, 25, 28), attributes="to saturate round_mode", is_form=True)
def cast(node: Node) -> Step:
    """From one floating-point type to another: the network computes in one of its own."""
    if node.integer("to", 1) not in (1, 11):
        raise Refused(f"expected a cast to float or double. Received: to={node.integer('to', 1)}")
    return node.step()


@reads("Expand", versions=(8, 13), constants=(1,), is_form=True)
def expand(node: Node) -> Step:
    """Where every example is repeated in the same way."""
    x, target = node.step(), node.constant(1, varying=True)
    assert target is not None
    try:
        shape = np.broadcast_shapes(x.shape, tuple(map(int, target)))
    except ValueError:
        shape = ()
    if shape == x.shape and not node.is_marked:
        return x
    if len(shape) != len(x.shape) or shape[0] != x.shape[0]:
        raise Refused(f"expected examples of {x.shape} to be repeated, not their number. Received: {tuple(target)}")
    return node.apply(Broadcast(shape=shape[1:]), x)


@reads("Clip", versions=(6, 11, 12, 13), attributes="min max", constants=(1, 2), is_form=True)
def clip(node: Node) -> Step:
    """Where the lower end is 0, an activation function."""
    if node.version < 11:
        low, high = node.number("min", -math.inf), node.number("max", math.inf)
    else:
        low, high = node.single(1, -math.inf), node.single(2, math.inf)
    limit = float(np.finfo(np.float32).max)
    low, high = (-math.inf if low <= -limit else low), (math.inf if high >= limit else high)
    if low == -math.inf and high == math.inf:
        return node.step()
    if low != 0:
        raise Refused(f"expected min=0, as in min(max(x, 0), max). Received: min={low:g}")
    return node.apply(ReLU() if high == math.inf else ReLU(mode="clipped", ceiling=high), node.step())


@reads(
    "ReduceMean",
    versions=(1, 11, 13, 18),
    attributes="axes keepdims noop_with_empty_axes",
    constants=(1,),
    is_form=True,
)
def reduce_mean(node: Node) -> Step:
    """Over spatial dimensions, it is an average pooling."""
    return _reduced(node, "average")


@reads(
    "ReduceMax",
    versions=(1, 11, 12, 13, 18, 20),
    attributes="axes keepdims noop_with_empty_axes",
    constants=(1,),
    is_form=True,
)
def reduce_max(node: Node) -> Step:
    """Over spatial dimensions, it is a maximum pooling."""
    return _reduced(node, "max")


def _reduced(node: Node, method: str) -> Step:
    x = node.step()
    axes, spatial = _axes(node, 1 if node.version >= 18 else None, len(x.shape)), range(2, len(x.shape))
    if not axes or not axes <= set(spatial):
        which = sorted(axes) if axes else "all"
        raise Refused(f"expected dimensions behind the channels to be reduced. Received: {which} of {x.shape}")
    pooling = Pool(method=method, global_pooling=True)
    if axes != set(spatial):
        window = one_or_all([x.shape[axis] if axis in axes else 1 for axis in spatial])
        pooling = Pool(method=method, kernel_size=window, stride=window)
    if node.integer("keepdims", 1):
        return node.apply(pooling, x)
    if axes != set(spatial):
        raise Refused(
            f"expected keepdims=1 where places are left. Received: keepdims=0, and {sorted(axes)} of {x.shape}"
        )
    return node.apply(Flatten(), node.apply(pooling, x, part=method))


@reads(
    "Pad",
    versions=(2, 11, 13, 18, 19, 21, 23, 24, 25),
    attributes="mode pads value",
    constants=(1, 2, 3),
    is_form=True,
)
def pad(node: Node) -> Step:
    """Zeros around an image that only a Conv reads are padding of its own."""
    x, mode = node.step(), node.text("mode", "constant")
    border = _border(node, len(x.shape))
    if not any(map(any, border)):
        return x
    value = node.number("value", 0.0) if node.version < 11 else node.single(2, 0.0)
    convolution = node.behind("Conv")
    if mode != "constant" or value or convolution is None or any(map(any, border[:2])) or min(map(min, border)) < 0:
        what = f"{mode} {value:g}" if mode == "constant" else mode
        raise Refused(
            "expected zeros around each channel, for one Conv that alone reads them, as its padding. "
            f"Received: {what}, {border}" + (", and no such Conv" if convolution is None else "")
        )
    node.leave(border[2:])
    return x


def _border(node: Node, rank: int) -> list[tuple[int, int]]:
    """What is put before and behind, for each dimension."""
    given = node.integers("pads") if node.version < 11 else node.constant(1)
    numbers = [] if given is None else [int(number) for number in given]
    chosen = node.constant(3)
    axes = range(rank) if chosen is None else [int(axis) % rank for axis in chosen]
    border = [(0, 0)] * rank
    half = len(numbers) // 2
    for axis, before, behind in zip(axes, numbers[:half], numbers[half:], strict=True):
        border[axis] = before, behind
    return border


def reshaped(node: Node, x: Step, shape: Shape) -> Step:
    """The step itself where the shape is the same, else a Flatten. Raises Refused where it is neither."""
    if shape == x.shape:
        return x
    if len(shape) == 2 and shape[0] == x.shape[0] and math.prod(shape) == math.prod(x.shape):
        return node.apply(Flatten(), x)
    row = math.prod(x.shape[1:])
    raise Refused(f"expected {x.shape} to stay, or to become a row for each example, (N, {row}). Received: {shape}")


def _axes(node: Node, index: int | None, rank: int) -> set[int] | None:
    """The axes, an attribute once and an input (at `index`) now; None where they are not given."""
    given = node.integers("axes")
    if given is None and index is not None and node.given(index):
        array = node.constant(index)
        given = None if array is None else tuple(map(int, array))
    return None if given is None else {axis % rank for axis in given}
