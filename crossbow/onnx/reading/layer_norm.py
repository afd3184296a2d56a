"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.layers import is_fixed
from crossbow.onnx.reading.node import Node, Refused
from crossbow.onnx.reading.table import reads, reads_group
from crossbow.ops import Constant, LayerNorm, Values


@reads("LayerNormalization", versions=(17,), attributes="axis epsilon stash_type", variables=(1, 2), is_form=True)
def layer_normalisation(node: Node) -> NetworkStep:
    """A LayerNorm. stash_type, the type of the mean and the deviation, has no effect: Crossbow sums in float64."""
    x = node.step()
    number = -node.integer("axis", -1)
    return _layer_norm(node, node, x, number if number > 0 else number + len(x.shape), None)


@reads_group("LayerNorm")
def turned_layer_norm(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for a LayerNorm over other axes than the last ones: Transpose, LayerNormalization,
    Transpose."""
    first, node, last = nodes
    x, number = first.step(), -node.integer("axis", -1)
    return _layer_norm(node, last, x, number, (first.integers("perm") or ())[len(x.shape) - number])


def _layer_norm(node: Node, last: Node, x: NetworkStep, number: int, axis: int | None) -> NetworkStep:
    """The normalisation of `number` axes from `axis` on (None: the last ones)."""
    first = len(x.shape) - number if axis is None else axis
    shape = x.shape[first : first + number]
    if first < 1:
        raise Refused(f"expected a normalisation within examples. Received: all axes of {x.shape}")
    bias = node.given(2)
    kernel = LayerNorm(
        axis=-number if axis is None else axis,
        number_of_axes=number,
        epsilon=node.number("epsilon", 1e-5),
        bias=bias,
        weight_learning_rate_multiplier=0.0 if is_fixed(node, 1) else 1.0,
        bias_learning_rate_multiplier=0.0 if bias and is_fixed(node, 2) else 1.0,
        weight_initialiser=Values(np.broadcast_to(node.weights(1), shape)),
        bias_initialiser=Values(np.broadcast_to(node.weights(2), shape)) if bias else Constant(),
    )
    return last.apply(kernel, x)
