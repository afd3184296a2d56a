"""Networks whose operators follow each other: nodes are created, named and connected in one call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from crossbow.conf import shown
from crossbow.dataflow.node import Connectable, DataflowNode
from crossbow.dataflow.operator import Operator
from crossbow.dataflow.subgraph import SubGraph, reachable_nodes
from crossbow.ops.kernel import Kernel
from crossbow.tracebacks import without_own_frames
from crossbow.types import GraphError

Part = Kernel | tuple[str, Kernel] | Operator | Connectable
"""A part of a network: a kernel, such as Conv(16, 3), a name with a kernel, such as ("stem", Conv(16, 3)), an operator,
a node or a subgraph."""


@without_own_frames
def chain(*parts: Part | list[Connectable]) -> DataflowNode:
    """Connect parts of a network, each to the next one, and return the last node.

    A part is a kernel, such as Conv(16, 3), a name with a kernel, such as ("stem", Conv(16, 3)), an `Operator`, a node
    or a subgraph. The first part may also be a list of nodes or subgraphs, whose outputs are the inputs of the second
    part in this order.

    Operators without a name are numbered by type: conv1, relu1, conv2, … If an operator of an earlier part, or one that
    is connected with it, already has a number, the next free number replaces it. Each kernel gets its own variables;
    all nodes of one `Operator` share its variables. Raises GraphError if a part is none of these, or occurs twice.

    >>> from crossbow.ops import Conv, ElementWiseOp, ReLU
    >>> stem = chain(Conv(16, 3, padding=1), ReLU())
    >>> branch = chain(stem, Conv(16, 3, padding=1))
    >>> chain([stem, branch], ElementWiseOp("sum"), ReLU())
    DataflowNode('relu2')
    """
    return _connected(parts)[-1].last


class Sequential(SubGraph):
    """A network, or a part of one, whose operators follow each other; see `chain` for the possible parts.

    It can be used like a node: `connect_to` adds an edge from its last node or to its first node. `nodes` are all nodes
    that are reachable from the first one, including those that were connected later. `tail` is the last node of the
    last part.

    Raises GraphError like `chain` and `SubGraph`.

    >>> from crossbow.ops import Conv, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss
    >>> body = Sequential(Conv(16, 3), ReLU(), Pool(), Conv(32, 3), ReLU())
    >>> network = Sequential(body, ("classes", InnerProduct(10)), SoftMax(), SoftMaxLoss())
    >>> print(*(node.operator.name for node in network.nodes))
    conv1 relu1 pool1 conv2 relu2 classes softmax1 softmaxloss1
    """

    @without_own_frames
    def __init__(self, *parts: Part) -> None:
        connected = _connected(parts)
        self._tail = connected[-1].last
        super().__init__(connected[0].first)

    @property
    def nodes(self) -> tuple[DataflowNode, ...]:
        """All nodes that are reachable from the head now, in topological order."""
        return reachable_nodes(self.head)

    @property
    def tail(self) -> DataflowNode:
        """The last node of the last part."""
        return self._tail

    def __repr__(self) -> str:
        return f"Sequential({', '.join(node.operator.name for node in self.nodes)})"


def _connected(parts: Sequence[object]) -> list[Connectable]:
    """The parts as nodes and subgraphs, with names, each connected to the next one."""
    if not parts:
        raise GraphError(["expected at least one operator, as Conv(16, 3). Received: none"])
    sources: list[Connectable] = []
    if isinstance(parts[0], list):
        given, parts = parts[0], parts[1:]
        sources = [each for each in given if isinstance(each, Connectable)]
        if not parts or not sources or len(sources) < len(given):
            received = f"{shown(given)}, and {len(parts)} parts after it"
            raise GraphError([f"expected a list of nodes, and then an operator that reads them. Received: {received}"])
    found = [_part(each) for each in parts]
    twice = [part.last.operator.name for place, part in enumerate(found) if any(part is each for each in found[:place])]
    if twice:
        raise GraphError([f"expected every node once; `shallow_copy` shares variables. Received: {twice[0]!r} twice"])
    _number([*sources, *found])
    for source in sources:
        source.connect_to(found[0])
    for before, after in itertools.pairwise(found):
        before.connect_to(after)
    return found


def _is_named(part: object) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)


def _part(given: object) -> Connectable:
    """A part as a node or subgraph. Raises GraphError."""
    if isinstance(given, Connectable):
        return given
    if isinstance(given, Operator):
        return DataflowNode(given)
    if isinstance(given, Kernel):
        operator = Operator(type(given).__name__.lower(), given)
        operator.numbered = True  # it gets its number when all parts are known
        return DataflowNode(operator)
    if _is_named(given) and isinstance(given[1], Kernel):  # type: ignore[index]
        return DataflowNode(Operator(*given))  # type: ignore[misc]
    hint = f". Did you mean {given.__name__}()?" if isinstance(given, type) and issubclass(given, Kernel) else ""
    expected = "expected operators as Conv(16, 3) or ('name', Conv(16, 3)), nodes or subgraphs"
    raise GraphError([f"{expected}. Received: {shown(given)}{hint}"])


def _number(parts: Sequence[Connectable]) -> None:
    """Give each operator with a generated name the lowest free number, in the order of the parts. An operator that has
    a number keeps it, unless an earlier part has the same number."""
    operators: dict[int, Operator] = {}
    for part in parts:
        operators.update((id(node.operator), node.operator) for node in _component(part.first))
    taken = {operator.name for operator in operators.values() if not operator.numbered}
    following: dict[str, int] = {}
    for operator in operators.values():
        if operator.numbered:
            kind = type(operator.kernel).__name__.lower()
            number = following.get(kind, 1)
            if operator.name in taken or operator.name == kind:
                while f"{kind}{number}" in taken:
                    number += 1
                operator.name = f"{kind}{number}"
            following[kind] = number
            taken.add(operator.name)


def _component(start: DataflowNode) -> list[DataflowNode]:
    """All nodes that are connected with a node, directly or indirectly, in the order of a search along the edges."""
    found, pending = {id(start): start}, [start]
    while pending:
        node = pending.pop()
        for other in (*reversed(node.next), *reversed(node.previous)):
            if id(other) not in found:
                found[id(other)] = other
                pending.append(other)
    return list(found.values())
