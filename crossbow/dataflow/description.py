"""Dataflows as JSON: operators, their configurations and their connections, without code.

An operator is described by the name of its class and the fields of its configuration. A class is found by its name
among the classes of `crossbow.ops` and those that the caller passes, so a description contains no code to run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from crossbow import ops
from crossbow.conf import shown
from crossbow.dataflow.dataflow import Dataflow
from crossbow.dataflow.node import DataflowNode
from crossbow.dataflow.operator import Operator
from crossbow.dataflow.subgraph import SubGraph
from crossbow.ops.initialiser import Initialiser
from crossbow.ops.kernel import Gradient, Kernel
from crossbow.types import Array, ConfigurationError, CrossbowError, DataError, GraphError, Phase

Json = Any
"""A value that `json.dumps` accepts, with finite numbers only."""
DESCRIBED = (Kernel, Gradient, Initialiser)
"""The base classes of described objects."""
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Floating-point numbers that JSON does not have, by their names in a description."""


def _built_in() -> dict[str, type]:
    classes = [getattr(ops, name) for name in ops.__all__]
    return {each.__name__: each for each in classes if isinstance(each, type) and issubclass(each, DESCRIBED)}


BUILT_IN = _built_in()
"""The classes of `crossbow.ops` by name."""


class NotDescribedError(CrossbowError):
    """A dataflow contains an object that has no description, such as a function in a field of a user's operator."""


def describe_dataflows(dataflows: Sequence[Dataflow]) -> tuple[Json, dict[str, Array]]:
    """Dataflows as JSON, and the arrays of their configurations by name.

    Operators that several nodes share are shared in the description, too. Raises NotDescribedError.
    """
    writer = _Writer()
    graphs = [writer.graph(dataflow) for dataflow in dataflows]
    return {"operators": writer.operators, "graphs": graphs}, writer.arrays


def read_dataflows(
    description: Json, arrays: Mapping[str, Array], operators: Iterable[type[Any]] = ()
) -> list[Dataflow]:
    """The dataflows of a description. operators: classes of the user's own operators, gradients and initialisers.

    Raises DataError if the description is invalid, or names a class that is not known.
    """
    reader = _Reader(arrays, _own_classes(operators))
    try:
        made = reader.operators(description["operators"])
        if not description["graphs"]:
            raise DataError("expected the description of a graph. Received: none")
        return [reader.graph(graph, made) for graph in description["graphs"]]
    except (ConfigurationError, GraphError) as error:
        raise DataError(f"expected the description of a graph. Received: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        received = f"{type(error).__name__}: {error}"
        raise DataError(f"expected the description of a graph. Received: a damaged one ({received})") from error


def _own_classes(operators: Iterable[type[Any]]) -> dict[str, type]:
    own: dict[str, type] = {}
    for each in operators:
        if not isinstance(each, type) or not issubclass(each, DESCRIBED):
            expected = "operators: expected classes of operators, as [MyOperator]"
            raise ConfigurationError(f"{expected}. Received: {shown(each)}")
        if own.setdefault(each.__name__, each) is not each:
            raise ConfigurationError(f"operators: expected one class of each name. Received: two {each.__name__!r}")
    return own


class _Writer:
    def __init__(self) -> None:
        self.operators: list[Json] = []
        self.arrays: dict[str, Array] = {}
        self._positions: dict[int, int] = {}
        self._names: dict[Hashable, str] = {}

    def graph(self, dataflow: Dataflow) -> Json:
        nodes = dataflow.subgraph.nodes
        place = {id(node): order for order, node in enumerate(nodes)}
        return {
            "phase": dataflow.phase.value,
            "nodes": [
                {
                    "operator": self.operator(node.operator),
                    "inputs": [place[id(source)] for source in node.previous],
                    "consumers": [place[id(target)] for target in node.next],  # their order determines the nodes' order
                }
                for node in nodes
            ],
        }

    def operator(self, operator: Operator) -> int:
        """Position of the operator in the list. A new operator is added to it."""
        if id(operator) not in self._positions:
            described = {"name": operator.name, **self._configuration(operator.kernel, f"operator {operator.name!r}")}
            if operator.peer is not None:
                described["peer"] = self.operator(operator.peer)
            self._positions[id(operator)] = len(self.operators)
            self.operators.append(described)
        return self._positions[id(operator)]

    def _configuration(self, value: object, where: str) -> dict[str, Json]:
        kind = type(value)
        if not dataclasses.is_dataclass(kind) and kind.__init__ is not object.__init__:
            raise NotDescribedError(f"{where}: expected a class that is a @configuration. Received: {kind.__name__}")
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        values = {
            field.name: self._value(getattr(value, field.name), f"{where}, field {field.name!r} of {kind.__name__}")
            for field in fields
            if field.init
        }
        own = {} if BUILT_IN.get(kind.__name__) is kind else {"own": True}
        return {"class": kind.__name__, **own, "fields": values}

    def _value(self, value: Any, where: str) -> Json:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": str(value)}
        if type(value) is tuple:
            return [self._value(each, where) for each in value]
        if type(value) is list:
            return {"list": [self._value(each, where) for each in value]}
        if type(value) is dict:
            pairs = [[self._value(key, where), self._value(each, where)] for key, each in value.items()]
            return {"dict": pairs}
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            return {"array": self._array(value)}
        if isinstance(value, DESCRIBED):
            return self._configuration(value, where)
        raise NotDescribedError(
            f"{where}: expected a number, a text, an array or a list of such. Received: {shown(value)}"
        )

    def _array(self, array: Array) -> str:
        """Name of the array. Equal arrays are stored once."""
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._names:
            self._names[key] = str(len(self.arrays))
            self.arrays[self._names[key]] = np.ascontiguousarray(array).reshape(array.shape)
        return self._names[key]


class _Reader:
    def __init__(self, arrays: Mapping[str, Array], own: Mapping[str, type]) -> None:
        self._arrays, self._own = arrays, own

    def operators(self, described: Sequence[Json]) -> list[Operator]:
        made: list[Operator] = []
        for each in described:
            kernel = self._configuration(each, f"operator {each['name']!r}")
            if not isinstance(kernel, Kernel | Gradient):
                raise DataError(f"operator {each['name']!r}: expected an operator. Received: {each['class']!r}")
            operator = Operator(each["name"], kernel)
            if (peer := each.get("peer")) is not None:
                operator.set_peer(made[_position(peer, len(made))])
            made.append(operator)
        return made

    def graph(self, described: Json, operators: Sequence[Operator]) -> Dataflow:
        given = described["nodes"]
        nodes = [DataflowNode(operators[_position(each["operator"], len(operators))]) for each in given]
        for node, each in zip(nodes, given, strict=True):
            node.previous = [nodes[_position(source, len(nodes))] for source in each["inputs"]]
            node.next = [nodes[_position(target, len(nodes))] for target in each["consumers"]]
        inputs = Counter((source, target) for target, each in enumerate(given) for source in each["inputs"])
        consumers = Counter((source, target) for source, each in enumerate(given) for target in each["consumers"])
        if inputs != consumers:
            raise DataError("expected the description of a graph. Received: inputs that are not those of the consumers")
        subgraph = SubGraph(nodes[0])
        if subgraph.nodes != tuple(nodes):
            raise DataError("expected the description of a graph, with nodes in order. Received: another order")
        return Dataflow(subgraph).set_phase(Phase(described["phase"]))

    def _configuration(self, described: Json, where: str) -> Any:
        name, own = described["class"], described.get("own", False)
        found = self._own.get(name) if own else BUILT_IN.get(name)
        if found is None and own:
            raise DataError(
                f"{where}: expected the class {name}, which is not one of Crossbow's: pass operators=[{name}]. "
                f"Received: {', '.join(self._own) or 'none'}"
            )
        if found is None:
            raise DataError(f"{where}: expected an operator of crossbow.ops. Received: {name!r}")
        fields = {field: self._value(value) for field, value in described["fields"].items()}
        if found is ops.DataTransform and isinstance(fields.get("mean_image"), str):
            raise DataError(f"{where}: expected a mean image as an array. Received: the name of a file")
        return found(**fields)

    def _value(self, value: Json) -> Any:
        if isinstance(value, list):
            return tuple(map(self._value, value))
        if not isinstance(value, dict):
            return value
        if "class" in value:
            return self._configuration(value, f"a field of type {value['class']}")
        ((kind, content),) = value.items()
        if kind == "list":
            return list(map(self._value, content))
        if kind == "dict":
            return {self._value(key): self._value(each) for key, each in content}
        return NUMBERS[content] if kind == "number" else self._arrays[content]


def _position(value: Json, count: int) -> int:
    """The value as a position in a list of this length. Raises ValueError if it is none, also for negative numbers,
    which would count from the end."""
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"position {value!r} of {count}")
    return value
