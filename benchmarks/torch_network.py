"""Crossbow's networks as PyTorch modules, layer by layer, so that both systems compute the same.

The module has a layer for each operator of a dataflow, in the same order and with the same names. Activations and sums
work in place where autograd allows it, as in fast code that is written by hand. Softmax and loss are left to PyTorch's
cross entropy. Scaling of pixels is omitted, because PyTorch's batches are prepared in advance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crossbow import Dataflow
from crossbow.dataflow.graph import BATCH, Graph, Vertex, build, consumers, loss_weights
from crossbow.dataflow.graph import losses as losses_of
from crossbow.dataflow.validate import infer_shapes
from crossbow.ops import (
    GELU,
    LRN,
    Accuracy,
    BatchNorm,
    Concat,
    Conv,
    DataTransform,
    Dropout,
    ElementWiseOp,
    Embedding,
    EuclideanLoss,
    Flatten,
    InnerProduct,
    LayerNorm,
    Pool,
    ReLU,
    Reshape,
    Scale,
    SelfAttention,
    SoftMax,
    SoftMaxLoss,
    Transpose,
)
from crossbow.types import Shape

LEFT_OUT = (DataTransform, SoftMax, Accuracy)
"""Operators without a layer: they pass on their first input."""
OVERWRITABLE = (Conv, BatchNorm, InnerProduct, ElementWiseOp)
"""Operators that do not need their output for their gradient."""

Layer = Callable[..., Any]
Lap = Callable[[str, Any], None]


class NoEquivalentError(ValueError):
    """An operator has no equivalent in PyTorch. The message names it."""


def torch_network(dataflow: Dataflow, image_shape: Shape, lap: Lap | None = None) -> Any:
    """A module that maps images (N, *image_shape) to a list of the losses' inputs, the main loss first.

    `weights` has the weights of the losses.

    lap  called with the name and the output of each layer once it is computed, before another layer overwrites it.

    Raises NoEquivalentError.
    """
    import torch
    from torch import nn

    graph = build(dataflow.subgraph.nodes)
    layers = _layers(graph, infer_shapes(graph, (1, *image_shape)), image_shape)
    losses = sorted(losses_of(graph), key=_is_auxiliary)
    results = [vertex.inputs[0] for vertex in losses]

    class Network(nn.Module):
        """Layers that are called in the order of the graph."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = loss_weights(losses)
            self.layers = nn.ModuleDict({vertex.name.replace(".", "-"): layer for vertex, layer in layers})
            self.steps = list(zip((vertex for vertex, _ in layers), self.layers.values(), strict=True))
            self.last_use = _last_uses(graph, results)

        def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
            values: dict[int, torch.Tensor] = {BATCH: images}
            for vertex, layer in self.steps:
                y = values[vertex.order] = layer(*(values[source] for source in vertex.inputs))
                if lap is not None:
                    lap(vertex.name, y)
                for source in self.last_use.get(vertex.order, ()):
                    del values[source]
            return [values[order] for order in results]

    return Network()


def _is_auxiliary(vertex: Vertex) -> bool:
    return vertex.forward is not None and vertex.forward.is_auxiliary


def _last_uses(graph: Graph, results: Sequence[int]) -> Mapping[int, list[int]]:
    """For each vertex, the vertices whose outputs it is the last to read. Autograd keeps the tensors that gradients
    need."""
    last: dict[int, int] = {}
    for vertex in graph:
        if isinstance(vertex.kernel, SoftMaxLoss | EuclideanLoss):
            continue
        for source in vertex.inputs:
            if source != BATCH:
                last[source] = vertex.order
    uses: dict[int, list[int]] = {}
    for source, user in last.items():
        if source not in results:
            uses.setdefault(user, []).append(source)
    return uses


def _layers(graph: Graph, shapes: Sequence[Shape], image_shape: Shape) -> list[tuple[Vertex, Any]]:
    """A layer for each vertex, except losses."""
    users = consumers(graph)
    made = []
    for vertex in graph:
        kernel = vertex.kernel
        if isinstance(kernel, SoftMaxLoss | EuclideanLoss):
            continue
        x = (1, *image_shape) if vertex.inputs[0] == BATCH else shapes[vertex.inputs[0]]
        source = None if vertex.inputs[0] == BATCH else graph[vertex.inputs[0]]
        free = source is not None and isinstance(source.kernel, OVERWRITABLE) and len(users[source.order]) == 1
        made.append((vertex, _layer(vertex, x, in_place=free)))
    return made


def _layer(vertex: Vertex, x: Shape, *, in_place: bool) -> Any:
    """The layer of one operator with a first input of this shape. in_place: whether it may overwrite that."""
    from torch import nn

    kernel = vertex.kernel
    if isinstance(kernel, LEFT_OUT):
        return nn.Identity()
    if isinstance(kernel, Conv):
        g, outputs = kernel.geometry(x), kernel.number_of_outputs
        padding = _same_on_both_sides(vertex, g.padding)
        return nn.Conv2d(x[1], outputs, g.kernel, g.stride, padding, g.dilation, g.groups, bias=kernel.bias)  # type: ignore[arg-type]
    if isinstance(kernel, Pool):
        return _pool(vertex, kernel, x)
    if isinstance(kernel, InnerProduct) and kernel.axis == 1:
        features = 1
        for size in x[1:]:
            features *= size
        linear = nn.Linear(features, kernel.number_of_outputs, bias=kernel.bias)
        return linear if len(x) == 2 else nn.Sequential(nn.Flatten(), linear)
    if isinstance(kernel, BatchNorm) and kernel.statistics == "fixed" and kernel.bias:
        norm = nn.BatchNorm2d if len(x) == 4 else nn.BatchNorm1d
        return norm(x[1], eps=kernel.epsilon, momentum=1 - kernel.moving_average_fraction)
    if isinstance(kernel, ReLU) and kernel.negative_slope == 0:
        plain = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}
        if kernel.mode in plain:
            return nn.ReLU(inplace=in_place) if kernel.mode == "relu" else plain[kernel.mode]()
        return nn.Hardtanh(0.0, kernel.ceiling or 0.0, inplace=in_place)
    if isinstance(kernel, Dropout):
        return nn.Dropout(kernel.ratio)
    if isinstance(kernel, LRN) and kernel.region == "across_channels":
        return nn.LocalResponseNorm(kernel.size, kernel.alpha, kernel.beta, kernel.kappa)
    if isinstance(kernel, Flatten) and kernel.axis == 1:
        return nn.Flatten()
    if isinstance(kernel, Concat) and kernel.axis == 1:
        return _function(lambda *inputs: _torch().cat(inputs, 1))
    if isinstance(kernel, ElementWiseOp) and kernel.type == "sum":
        return _sum(kernel, in_place=in_place)
    layer = _sequence_layer(kernel, x)
    if layer is not None:
        return layer
    raise NoEquivalentError(f"{vertex.name} ({type(kernel).__name__}): expected an operator with a PyTorch equivalent")


def _sequence_layer(kernel: Any, x: Shape) -> Any:
    """The layer of an operator of transformers; None for others."""
    from torch import nn

    if isinstance(kernel, Embedding):
        return nn.Embedding(kernel.number_of_rows, kernel.number_of_outputs)
    if isinstance(kernel, InnerProduct) and kernel.axis in (-1, len(x) - 1):
        return nn.Linear(x[-1], kernel.number_of_outputs, bias=kernel.bias)
    if isinstance(kernel, LayerNorm) and kernel.first_axis(x) == len(x) - 1:
        return nn.LayerNorm(x[-1], eps=kernel.epsilon, bias=kernel.bias)
    if isinstance(kernel, GELU):
        return nn.GELU(kernel.approximate)
    if isinstance(kernel, SelfAttention):
        return _function(functools.partial(_attention, heads=kernel.heads, causal=kernel.causal))
    if isinstance(kernel, Scale) and kernel.bias and kernel.weight_learning_rate_multiplier == 0:
        return _positions(x[1:])
    if isinstance(kernel, Transpose):
        return _function(lambda y: y.permute(0, *kernel.order[1:]))
    if isinstance(kernel, Reshape):
        return _function(lambda y: y.reshape(len(y), *kernel.shape))
    return None


def _attention(x: Any, *, heads: int, causal: bool) -> Any:
    """Queries, keys and values side by side, (N, T, 3 · D), to (N, T, D)."""
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in x.chunk(3, 2))
    y = _torch().nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return y.transpose(1, 2).flatten(2)


def _positions(shape: Shape) -> Any:
    """A layer that adds a trained vector to each position. Its factors, like those of `Scale`, are 1 and not used."""
    import torch
    from torch import nn

    class Positions(nn.Module):
        """Trained vectors (T, D)."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape), requires_grad=False)
            self.bias = nn.Parameter(torch.zeros(shape))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.bias

    return Positions()


def _torch() -> Any:
    import torch

    return torch


def _pool(vertex: Vertex, kernel: Pool, x: Shape) -> Any:
    from torch import nn

    if kernel.global_pooling and kernel.method == "average":
        return nn.AdaptiveAvgPool2d(1)
    g = kernel.geometry(x)
    padding, ceil = _same_on_both_sides(vertex, g.padding), kernel.rounding == "ceil"
    if set(g.kernel) == {1} and not any(padding):
        down, across = g.stride
        return _function(lambda images: images[:, :, ::down, ::across])
    if kernel.method == "max":
        return nn.MaxPool2d(g.kernel, g.stride, padding, g.dilation, ceil_mode=ceil)
    if kernel.method == "average" and set(g.dilation) == {1}:
        return nn.AvgPool2d(g.kernel, g.stride, padding, ceil_mode=ceil, count_include_pad=kernel.count_padding)  # type: ignore[arg-type]
    raise NoEquivalentError(f"{vertex.name}: expected max or average pooling. Received: {kernel.method}")


def _sum(kernel: ElementWiseOp, *, in_place: bool) -> Any:
    """The sum of all inputs; zeros for one with the coefficient 0, as in a shortcut without parameters."""
    coefficients = kernel.coefficients
    if coefficients == (0.0,):
        return _function(lambda x: _torch().zeros_like(x))
    if coefficients is not None and set(coefficients) != {1.0}:
        raise NoEquivalentError(f"expected a sum with coefficients of 1. Received: {coefficients}")

    def add(total: Any, *others: Any) -> Any:
        for x in others:
            total = total.add_(x) if in_place else total + x
        return total

    return _function(add)


def _function(function: Layer) -> Any:
    """A layer without parameters."""
    from torch import nn

    class Function(nn.Module):
        """Calls a function."""

        def forward(self, *inputs: Any) -> Any:
            return function(*inputs)

    return Function()


def _same_on_both_sides(vertex: Vertex, padding: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    if any(before != after for before, after in padding):
        raise NoEquivalentError(f"{vertex.name}: expected the same padding on both sides. Received: {padding}")
    return tuple(before for before, _ in padding)
