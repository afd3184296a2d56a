"""A node: an operator at a place in a network."""

from __future__ import annotations

from crossbow.dataflow.operator import Operator


class DataflowNode:
    """An operator at a place in a network. The order of connections is the order of the node's inputs."""

    def __init__(self, operator: Operator) -> None:
        if not isinstance(operator, Operator):
            raise TypeError(f"a node holds an Operator. Received: {operator!r}")
        self.operator = operator
        self.next: list[DataflowNode] = []
        self.previous: list[DataflowNode] = []

    def connect_to(self, node: DataflowNode) -> DataflowNode:
        """Make this node's output an input of `node`, and return `node`, so that calls can be chained."""
        if not isinstance(node, DataflowNode):
            raise TypeError(f"node {self.operator.name!r} connects to a DataflowNode. Received: {node!r}")
        self.next.append(node)
        node.previous.append(self)
        return node

    def shallow_copy(self) -> DataflowNode:
        """A new, unconnected node with the same operator, and so with the same variables."""
        return DataflowNode(self.operator)

    def __repr__(self) -> str:
        return f"DataflowNode({self.operator.name!r})"
