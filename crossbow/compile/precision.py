"""Selection of operators that compute with 16-bit tensors, if the library supports them, from the graph alone.

Every operator declares the precision of its tensors (`Kernel.precision`). Between neighbours with different precisions,
a kernel converts.
"""

from __future__ import annotations

from crossbow.dataflow.graph import BATCH, Graph
from crossbow.ops.kernel import Kernel, Precision


def narrow_vertices(graph: Graph) -> frozenset[int]:
    """Positions of the operators with 16-bit tensors. A gradient operator is like its peer."""
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
