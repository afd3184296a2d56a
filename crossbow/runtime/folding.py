"""Normalisations as part of the convolutions before them, for predictions: there, statistics and variables are fixed.

A normalisation multiplies every channel by γ / √(σ² + ε), and adds an offset. A convolution with weights that are
multiplied by this factor, and with a bias, has the same output up to rounding, in one pass instead of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crossbow.compile.model import ModelLayout, Segment
from crossbow.dataflow.derive import bypass
from crossbow.dataflow.graph import Graph, Vertex, consumers
from crossbow.dataflow.operator import Operator
from crossbow.dataflow.validate import infer_shapes, statistics_of, variables_of
from crossbow.kernels.interface import PlainStorage
from crossbow.ops import BatchNorm, Conv
from crossbow.types import Array, Shape

Values = Mapping[tuple[int, str], Array]
"""Variables and statistics, by the operator's id and their name."""


@dataclass(frozen=True)
class _Pair:
    """A convolution and the normalisation after it, and the convolution that takes the place of both."""

    convolution: Vertex
    normalisation: Vertex
    both: Operator


class Folding:
    """A graph for prediction without the normalisations that convolutions include, and the values of its variables."""

    def __init__(self, graph: Graph) -> None:
        """graph: of `derive_prediction`."""
        self._original = graph
        self._pairs = tuple(_pairs(graph))
        both = {pair.convolution.order: pair.both for pair in self._pairs}
        left_out = {pair.normalisation.order for pair in self._pairs}
        replaced = tuple(replace(vertex, operator=both.get(vertex.order, vertex.operator)) for vertex in graph)
        self.graph = bypass(replaced, left_out)

    def values(self, original: Values) -> dict[tuple[int, str], Array]:
        """The values of the graph's variables, from those of the original graph. Computed in double precision."""
        values = dict(original)
        for pair in self._pairs:
            convolution, normalisation = id(pair.convolution.operator), id(pair.normalisation.operator)

            def of_norm(name: str, norm: int = normalisation) -> NDArray[np.float64]:
                return np.asarray(original[norm, name], np.float64)

            kernel = pair.normalisation.kernel
            assert isinstance(kernel, BatchNorm)
            weights = np.asarray(original[convolution, "weights"], np.float64)
            factor = of_norm("weights") / np.sqrt(of_norm("running_variance") + kernel.epsilon)
            offset = -factor * of_norm("running_mean")
            if kernel.bias:
                offset += of_norm("bias")
            if (convolution, "bias") in original:
                offset += factor * np.asarray(original[convolution, "bias"], np.float64)
            values[id(pair.both), "weights"] = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
            values[id(pair.both), "bias"] = offset
        return values

    def check(self, values: Values, source: str, batch: Shape, dtype: np.dtype[np.generic]) -> None:
        """Raise DataError if values from a file do not fit the operators that are folded."""
        shapes = infer_shapes(self._original, batch)
        specs, statistics = (of(self._original, batch, shapes) for of in (variables_of, statistics_of))
        segments: dict[tuple[int, str], Segment] = {}
        offset = 0
        for vertex in (vertex for pair in self._pairs for vertex in (pair.convolution, pair.normalisation)):
            for spec in (*specs.get(vertex.order, ()), *statistics.get(vertex.order, ())):
                storage = PlainStorage(spec.shape)
                name = f"{vertex.name}.{spec.name}"
                segments[id(vertex.operator), spec.name] = Segment(name, spec, storage, offset)
                offset += storage.elements
        layout = ModelLayout(segments, dtype)
        given = {segment.name: values[key] for key, segment in segments.items() if key in values}
        layout.load(given, layout.new_vector(), source)


def _pairs(graph: Graph) -> list[_Pair]:
    """Convolutions whose only reader is a normalisation. Operators of several nodes, which share variables, are left
    as they are."""
    users, nodes = consumers(graph), Counter(id(vertex.operator) for vertex in graph)
    found = []
    for vertex in graph:
        readers, kernel = users[vertex.order], vertex.kernel
        if type(kernel) is not Conv or len(readers) != 1 or type(readers[0].kernel) is not BatchNorm:
            continue
        if nodes[id(vertex.operator)] == nodes[id(readers[0].operator)] == 1:
            found.append(_Pair(vertex, readers[0], Operator(vertex.operator.name, replace(kernel, bias=True))))
    return found
