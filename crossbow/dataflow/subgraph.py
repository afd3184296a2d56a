"""A subgraph: all nodes that are reachable from a head node, in topological order."""

from __future__ import annotations

from crossbow.dataflow.node import DataflowNode
from crossbow.tracebacks import without_own_frames
from crossbow.types import GraphError


class SubGraph:
    """The nodes that are reachable from `head`, which reads the batch. `nodes` is in topological order.

    Raises GraphError if there is a cycle, or if a node has an input from outside.
    """

    @without_own_frames
    def __init__(self, head: DataflowNode) -> None:
        if not isinstance(head, DataflowNode):
            raise TypeError(f"a SubGraph starts at a DataflowNode. Received: {head!r}")
        self.head = head
        self.nodes = _topological_order(head)
        inside = set(map(id, self.nodes))
        faults = [
            f"node {node.operator.name!r}: input {source.operator.name!r} cannot be reached from the head "
            f"{head.operator.name!r}; connect it, or start the SubGraph where both meet"
            for node in self.nodes
            for source in node.previous
            if id(source) not in inside
        ]
        if faults:
            raise GraphError(faults)

    @property
    def tail(self) -> DataflowNode:
        """The last node in topological order."""
        return self.nodes[-1]


def _topological_order(head: DataflowNode) -> tuple[DataflowNode, ...]:
    """Reverse post-order of a depth-first search, iterative because networks are deep. Branches keep their order."""
    finished: list[DataflowNode] = []
    done: set[int] = set()
    path: list[DataflowNode] = [head]
    on_path = {id(head)}
    pending = [list(head.next)]
    while path:
        if pending[-1]:
            node = pending[-1].pop()
            if id(node) in on_path:
                names = [step.operator.name for step in path]
                start = next(i for i, step in enumerate(path) if step is node)
                cycle = " → ".join([*names[start:], names[start]])
                raise GraphError([f"the graph must have no cycle. Received: {cycle}"])
            elif id(node) not in done:
                path.append(node)
                on_path.add(id(node))
                pending.append(list(node.next))
        else:
            node = path.pop()
            pending.pop()
            on_path.discard(id(node))
            done.add(id(node))
            finished.append(node)
    return tuple(reversed(finished))
