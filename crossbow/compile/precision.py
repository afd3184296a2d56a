"""Which operators compute with tensors of 16 bits, where the library has such kernels: decided from the graph alone.

Every operator says by itself which tensors it computes with (`Kernel.precision`). Where two operators that do not agree
are neighbours, a kernel between them converts.
"""

from __future__ import annotations

from crossbow.dataflow.graph import BATCH, Graph
from crossbow.ops.kernel import Kernel, Precision


def narrow_vertices(graph: Graph) -> frozenset[int]:
    """The positions of the operators whose tensors are of 16 bits. A gradient's are those of its peer."""
    found: set[int] = set()
    for vertex in graph:
        narrow = False
        if vertex.peer is not None:
            narrow = vertex.peer in found
        elif isinstance(vertex.kernel, Kernel):
            follows = vertex.kernel.precision is Precision.FOLLOWING and bool(vertex.inputs)
            narrow = vertex.kernel.precision is Precision.NARROW or (
                follows and all(source != BATCH and source in found for source in vertex.inputs)
            )
        if narrow:
            found.add(vertex.order)
    return frozenset(found)
