"""A subgraph: all nodes that are reachable from a head node, in topological order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from crossbow.dataflow.freezing import frozen_operators
from crossbow.dataflow.graph import unique_names
from crossbow.dataflow.node import Connectable, DataflowNode
from crossbow.tracebacks import without_own_frames
from crossbow.types import GraphError


class SubGraph(Connectable):
    """The nodes that are reachable from `head`, which reads the batch. `nodes` is in topological order.

    Raises GraphError if there is a cycle, or if a node has an input from outside.
    """

    @without_own_frames
    def __init__(self, head: DataflowNode) -> None:
        if not isinstance(head, DataflowNode):
            raise TypeError(f"a SubGraph starts at a DataflowNode. Received: {head!r}")
        self.head = head
        self._nodes = reachable_nodes(head)

    @property
    def nodes(self) -> tuple[DataflowNode, ...]:
        """All nodes, in topological order."""
        return self._nodes

    @property
    def tail(self) -> DataflowNode:
        """The last node in topological order."""
        return self.nodes[-1]

    @property
    def first(self) -> DataflowNode:
        return self.head

    @property
    def last(self) -> DataflowNode:
        return self.tail

    @without_own_frames
    def until(self, name: str) -> SubGraph:
        """A copy of the part that computes the output of one node, such as the features of an imported network.

        name: name of the node, as `describe` shows it; this node is the last one of the copy. The copy has its own
        nodes, so the original network does not change. Both have the same operators, and therefore the same initial
        values and, in one graph, the same variables. Raises GraphError if there is no such node.

        >>> from crossbow import Sequential
        >>> from crossbow.ops import Conv, InnerProduct, Pool, ReLU
        >>> network = Sequential(Conv(16, 3), ReLU(), Pool(), InnerProduct(10))
        >>> [node.operator.name for node in network.until("pool1").nodes]
        ['conv1', 'relu1', 'pool1']
        """
        nodes = self.nodes
        names = unique_names([node.operator for node in nodes])
        found = [node for node in nodes if names[id(node.operator)] == name]
        if len(found) != 1:
            received = f"{name!r}, an operator of {len(found)} nodes" if found else f"{name!r}{_similar(name, names)}"
            raise GraphError([f"until: expected the name of one node. Received: {received}"])
        needed = {id(found[0])}
        for node in reversed(nodes):
            if id(node) in needed:
                needed.update(map(id, node.previous))
        return self._copied({id(node): node.shallow_copy() for node in nodes if id(node) in needed})

    def _copied(self, copies: Mapping[int, DataflowNode]) -> SubGraph:
        """Connect copies in the same way as their originals. copies: each copy by the id of its original."""
        for node in self.nodes:
            if id(node) in copies:
                copies[id(node)].previous = [copies[id(source)] for source in node.previous]
                copies[id(node)].next = [copies[id(target)] for target in node.next if id(target) in copies]
        return SubGraph(copies[id(self.head)])

    @without_own_frames
    def freeze(self, *patterns: str) -> SubGraph:
        """A copy in which training does not change the variables whose names match a pattern.

        patterns: patterns of the names of operators, such as "conv*", or of single variables, such as "*.bias". The
        running statistics of a normalisation are still updated. Gradients that only frozen operators need are not
        computed. Under `Gossip`, the last digits of frozen variables may change.

        Raises ConfigurationError for a pattern that matches no variable, and for an operator with variables that has no
        learning rate multipliers.

        >>> from crossbow import Sequential
        >>> from crossbow.ops import Conv, InnerProduct, ReLU
        >>> network = Sequential(Conv(16, 3), ReLU(), InnerProduct(10))
        >>> network.freeze("conv*").head.operator.kernel.weight_learning_rate_multiplier
        0.0
        """
        nodes = self.nodes
        operators = frozen_operators([node.operator for node in nodes], patterns)
        return self._copied({id(node): DataflowNode(operators[id(node.operator)]) for node in nodes})


def _similar(name: str, names: dict[int, str]) -> str:
    """A hint for a name that does not exist."""
    close = difflib.get_close_matches(str(name), names.values())
    return f". Did you mean {close[0]!r}?" if close else f". Names: {', '.join(names.values())}"


def reachable_nodes(head: DataflowNode) -> tuple[DataflowNode, ...]:
    """The nodes that are reachable from the head, in topological order.

    Raises GraphError if there is a cycle, or if a node has an input from outside.
    """
    nodes = _topological_order(head)
    inside = set(map(id, nodes))
    faults = [
        f"node {node.operator.name!r}: input {source.operator.name!r} cannot be reached from the head "
        f"{head.operator.name!r}; connect it, or start the SubGraph where both meet"
        for node in nodes
        for source in node.previous
        if id(source) not in inside
    ]
    if faults:
        raise GraphError(faults)
    return nodes


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
