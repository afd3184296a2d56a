"""Export and import of embedding and self-attention. Each becomes several standard operators, which are read as a
group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.layers import is_fixed
from crossbow.onnx.reading.node import Node
from crossbow.onnx.reading.table import reads_group
from crossbow.onnx.writing.table import writes
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import Embedding, SelfAttention, Values


@writes(Embedding)
def embedding(operator: WrittenOperator) -> None:
    """Write an Embedding as Cast and Gather."""
    indices = operator.add("Cast", operator.inputs[0], part="indices", to=7)  # int64
    operator.add("Gather", operator.variable("weights"), indices, axis=0)


@reads_group("Embedding")
def read_embedding(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `embedding` writes."""
    first, last = nodes
    weights = last.weights(0)
    kernel = Embedding(
        *weights.shape,
        weight_initialiser=Values(weights),
        weight_learning_rate_multiplier=0.0 if is_fixed(last, 0) else 1.0,
    )
    return last.apply(kernel, first.step())


@writes(SelfAttention)
def self_attention(operator: WrittenOperator) -> None:
    """Write a SelfAttention: Slice, Reshape and Transpose for each of queries, keys and values; MatMul, Mul, Add of the
    mask if it is causal, Softmax and MatMul; Transpose and Reshape."""
    kernel, (x,), (_, length, width) = operator.kernel, operator.inputs, operator.shape
    assert isinstance(kernel, SelfAttention)
    heads, depth = kernel.heads, width // kernel.heads
    divided = operator.constant("heads", [0, length, heads, depth], np.int64)
    axis = operator.constant("axis", [2], np.int64)
    parts = []
    for number, (name, order) in enumerate((("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))):
        bounds = [
            operator.constant(f"{name}.{end}", [(number + more) * width], np.int64)
            for more, end in enumerate(("start", "end"))
        ]
        y = operator.add("Slice", x, *bounds, axis, part=f"{name}.part")
        y = operator.add("Reshape", y, divided, part=f"{name}.heads")
        parts.append(operator.add("Transpose", y, part=name, perm=order))
    q, k, v = parts
    scores = operator.add("MatMul", q, k, part="products")
    scores = operator.add("Mul", scores, operator.constant("scale", 1 / math.sqrt(depth)), part="scores")
    if kernel.causal:
        lowest = np.finfo(np.float32).min
        mask = operator.constant("mask", np.where(np.tri(length, dtype=bool), np.float32(0), lowest))
        scores = operator.add("Add", scores, mask, part="masked")
    p = operator.add("Softmax", scores, part="probabilities", axis=-1)
    y = operator.add("Transpose", operator.add("MatMul", p, v, part="means"), part="joined", perm=[0, 2, 1, 3])
    operator.add("Reshape", y, operator.constant("shape", [0, length, width], np.int64))


@reads_group("SelfAttention", least=15)
def read_self_attention(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `self_attention` writes."""
    sizes = nodes[1].constant(1)
    assert sizes is not None
    causal = any(node.proto.op_type == "Add" for node in nodes)
    return nodes[-1].apply(SelfAttention(int(sizes[2]), causal=causal), nodes[0].step())
