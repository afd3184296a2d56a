"""A node: an operator at a place in a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from crossbow.dataflow.operator import Operator

C = TypeVar("C", bound="Connectable")


class Connectable(ABC):
    """A part of a network that has one first and one last node: a node or a subgraph."""

    @property
    @abstractmethod
    def first(self) -> DataflowNode:
        """The node that reads the input of the part."""

    @property
    @abstractmethod
    def last(self) -> DataflowNode:
        """The node whose output is the output of the part."""

    def connect_to(self, part: C) -> C:
        """Make this part's output an input of `part`, and return `part`, so that calls can be chained."""
        if not isinstance(part, Connectable):
            name = self.last.operator.name
            raise TypeError(f"node {name!r} connects to a DataflowNode or a SubGraph. Received: {part!r}")
        source, target = self.last, part.first
        source.next.append(target)
        target.previous.append(source)
        return part


class DataflowNode(Connectable):
    """An operator at a place in a network. The order of connections is the order of the node's inputs."""

    def __init__(self, operator: Operator) -> None:
        if not isinstance(operator, Operator):
            raise TypeError(f"a node holds an Operator. Received: {operator!r}")
        self.operator = operator
        self.next: list[DataflowNode] = []
        self.previous: list[DataflowNode] = []

    @property
    def first(self) -> DataflowNode:
        return self

    @property
    def last(self) -> DataflowNode:
        return self

    def shallow_copy(self) -> DataflowNode:
        """A new, unconnected node with the same operator, and therefore the same variables."""
        return DataflowNode(self.operator)

    def __repr__(self) -> str:
        return f"DataflowNode({self.operator.name!r})"
