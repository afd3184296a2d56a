"""ONNX operators without a counterpart in Crossbow, read only if they equal another operator or do nothing."""

from __future__ import annotations

import math

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.layers import one_or_all
from crossbow.onnx.reading.node import Node, Refused
from crossbow.onnx.reading.rearranging import axes_of
from crossbow.onnx.reading.table import reads
from crossbow.ops import Broadcast, Flatten, Pool, ReLU


@reads("Cast", versions=(6, 9, 13, 19, 21, 23, 24, 25, 28), attributes="to saturate round_mode", is_form=True)
def cast(node: Node) -> NetworkStep:
    """A no-op, for a cast between floating-point types: the network computes in its own type."""
    if node.integer("to", 1) not in (1, 11):
        raise Refused(f"expected a cast to float or double. Received: to={node.integer('to', 1)}")
    return node.step()


@reads("Expand", versions=(8, 13), constants=(1,), is_form=True)
def expand(node: Node) -> NetworkStep:
    """A Broadcast, if every example is repeated in the same way."""
    x, target = node.step(), node.constant(1, varying=True)
    assert target is not None
    try:
        shape = np.broadcast_shapes(x.shape, tuple(map(int, target)))
    except ValueError:
        shape = ()
    if shape == x.shape and not node.is_marked:
        return x
    if len(shape) != len(x.shape) or shape[0] != x.shape[0]:
        raise Refused(
            f"expected an expansion within examples of {x.shape}, not of their number. Received: {tuple(target)}"
        )
    return node.apply(Broadcast(shape=shape[1:]), x)


@reads("Clip", versions=(6, 11, 12, 13), attributes="min max", constants=(1, 2), is_form=True)
def clip(node: Node) -> NetworkStep:
    """An activation function, if the lower bound is 0."""
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
def reduce_mean(node: Node) -> NetworkStep:
    """An average pooling, if the reduction is over spatial dimensions."""
    return _reduced(node, "average")


@reads(
    "ReduceMax",
    versions=(1, 11, 12, 13, 18, 20),
    attributes="axes keepdims noop_with_empty_axes",
    constants=(1,),
    is_form=True,
)
def reduce_max(node: Node) -> NetworkStep:
    """A maximum pooling, if the reduction is over spatial dimensions."""
    return _reduced(node, "max")


def _reduced(node: Node, method: str) -> NetworkStep:
    x = node.step()
    axes, spatial = axes_of(node, 1 if node.version >= 18 else None, len(x.shape)), range(2, len(x.shape))
    if not axes or not axes <= set(spatial):
        which = sorted(axes) if axes else "all"
        raise Refused(f"expected a reduction of dimensions after the channels. Received: {which} of {x.shape}")
    pooling = Pool(method=method, global_pooling=True)
    if axes != set(spatial):
        window = one_or_all([x.shape[axis] if axis in axes else 1 for axis in spatial])
        pooling = Pool(method=method, kernel_size=window, stride=window)
    if node.integer("keepdims", 1):
        return node.apply(pooling, x)
    if axes != set(spatial):
        raise Refused(
            f"expected keepdims=1 if spatial dimensions are left. Received: keepdims=0, and {sorted(axes)} of {x.shape}"
        )
    return node.apply(Flatten(), node.apply(pooling, x, part=method))
