"""Reading an ONNX graph: constants folded, shapes tracked, every node translated, every fault collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.reference
import onnx.shape_inference
from numpy.typing import NDArray

from crossbow.onnx.network import Network, Step, needed
from crossbow.ops import Kernel, Values
from crossbow.types import GraphError, Phase, Shape

Numbers = NDArray[Any]

ANY_BATCH = 1_000_003
"""Stands for a batch size that the model leaves open: a large prime, so that a number that depends on it shows."""
FIRST_OPSET = 6
"""The oldest version of the ONNX operators that is read."""
FOLDED_ELEMENTS = 1 << 28
"""The largest constant that is computed while reading."""
MARK = "crossbow"
"""Begins the doc_string of every node that `save` writes: "crossbow <place> <class> <operator's name>"."""


class Refused(Exception):  # noqa: N818 - not an error of its own: the reader makes a fault of it
    """What a node asks for that Crossbow does not have; the message ends the sentence "node 'x' (Op): …"."""


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the input."""

    array: Numbers
    varies: bool = False
    """Whether it was computed from the shape of an activation, which depends on the size of the batch."""


@dataclass(frozen=True)
class Translation:
    """How nodes of one ONNX operator are read."""

    read: Callable[[Node], Step]
    versions: tuple[int, ...]
    """Versions of the operator (opsets that changed it) that `read` knows."""
    attributes: frozenset[str]
    constants: tuple[int, ...]
    """Inputs that must be constants, as weights."""
    is_form: bool
    """Whether Crossbow has no such operator: it is read only where it amounts to one that it has, as a Reshape that
    flattens."""


TRANSLATIONS: dict[str, Translation] = {}
GROUPS: dict[str, Callable[[Sequence[Node]], Step]] = {}
"""By our operator's class: how several nodes that `save` wrote for one operator are read."""


def reads(
    op_type: str,
    *,
    versions: tuple[int, ...],
    attributes: str = "",
    constants: tuple[int, ...] = (),
    is_form: bool = False,
) -> Callable[[Callable[[Node], Step]], Callable[[Node], Step]]:
    """Enter a function into the table of translations."""

    def enter(function: Callable[[Node], Step]) -> Callable[[Node], Step]:
        TRANSLATIONS[op_type] = Translation(function, versions, frozenset(attributes.split()), constants, is_form)
        return function

    return enter


def reads_group(name: str) -> Callable[[Callable[[Sequence[Node]], Step]], Callable[[Sequence[Node]], Step]]:
    """Enter a function into the table of groups."""

    def enter(function: Callable[[Sequence[Node]], Step]) -> Callable[[Sequence[Node]], Step]:
        GROUPS[name] = function
        return function

    return enter


class Node:
    """An ONNX node as its translation sees it."""

    def __init__(self, reader: Reader, proto: onnx.NodeProto, name: str, version: int) -> None:
        self.reader, self.proto, self.name, self.version = reader, proto, name, version
        self.shared = False
        self._attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}

    # Attributes

    def has(self, attribute: str) -> bool:
        return attribute in self._attributes

    def integer(self, name: str, default: int) -> int:
        return int(self._attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute; ONNX stores single precision, and 0.1 comes back as the shortest number that gives it."""
        return shortest(self._attributes.get(name, default))

    def text(self, name: str, default: str) -> str:
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        value = self._attributes.get(name, default)
        return None if value is None else tuple(map(int, value))

    # Inputs

    @property
    def inputs(self) -> int:
        """How many there are; optional ones at the end may be missing."""
        names = list(self.proto.input)
        while names and not names[-1]:
            names.pop()
        return len(names)

    def given(self, index: int) -> bool:
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def is_constant(self, index: int) -> bool:
        return self.given(index) and self.proto.input[index] in self.reader.constants

    def step(self, index: int = 0) -> Step:
        """The step that computes an input. Raises Refused for a constant."""
        if self.is_constant(index):
            raise Refused(f"expected input {index} to depend on the network's input. Received: a constant")
        return self.reader.values[self.proto.input[index]]

    def constant(self, index: int, *, varying: bool = False) -> Numbers | None:
        """The value of an input, None where it is not given. Raises Refused where it depends on the network's input."""
        if not self.given(index):
            return None
        name = self.proto.input[index]
        if name not in self.reader.constants:
            raise Refused(f"expected input {index} ({name!r}) to be a constant. Received: the output of a node")
        constant = self.reader.constants[name]
        if constant.varies and not varying:
            raise Refused(f"expected input {index} ({name!r}) not to depend on the batch size. Received: that it does")
        return constant.array

    def weights(self, index: int) -> Numbers:
        """An input that becomes a variable."""
        array = self.constant(index)
        if array is None:
            raise Refused(f"expected input {index}. Received: none")
        if array.dtype.kind != "f" or array.dtype.itemsize < 4:
            raise Refused(f"expected weights in float32 or float64. Received: {array.dtype}")
        if not np.isfinite(array).all():
            raise Refused(f"expected finite weights. Received: some that are not, in input {index}")
        return array

    def single(self, index: int, default: float) -> float:
        """An input of one element, as a number."""
        array = self.constant(index)
        return default if array is None else shortest(array.reshape(-1)[0])

    # Results

    def apply(self, kernel: Kernel, *inputs: Step, part: str = "", phase: Phase = Phase.CHECK) -> Step:
        """The step of an operator. Raises ValueError where the shapes do not fit.

        `part` tells the steps of one node apart; the last one has none.
        """
        shapes = [step.shape for step in inputs]
        shape = kernel.output_shape(*shapes)
        kernel.variables(*shapes)
        kernel.running_statistics(*shapes)
        name = f"{self.name}.{part}" if part else self.name
        made = Step(name, shape, kernel, inputs, phase, self.shared)
        self.reader.steps.append(made)
        return made

    def follower(self, op_type: str) -> Node | None:
        """The node behind this one, if it is of this type and nothing else reads the output."""
        return self.reader.follower(self, op_type)

    def absorb(self, follower: Node) -> None:
        """Take the following node's work too: what this translation returns is its output."""
        self.reader.absorbed[id(follower.proto)] = self.proto.output[0]


def shortest(value: Any) -> float:
    """The number with the fewest digits that is the same in single precision.

    >>> shortest(np.float32(0.1)), shortest(0.9999999747378752e-5)
    (0.1, 1e-05)
    """
    single = np.float32(value)
    return float(str(single)) if np.isfinite(single) else float(single)


class Reader:
    """One pass over the graph."""

    def __init__(self, model: onnx.ModelProto, input_shape: Shape | None = None) -> None:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        self.model, self.graph = model, model.graph
        self.faults: list[str] = []
        self.opset = self._opset()
        self.constants = self._initializers()
        self.values: dict[str, Step] = {}
        self.steps: list[Step] = []
        self.absorbed: dict[int, str] = {}
        """By node: the output that stands for its own, because another node's translation has done its work."""
        self.own = model.producer_name == MARK
        self.nodes = self._live_nodes()
        self.inputs = self._inputs(input_shape)
        self.uses = Counter(name for node in self.nodes for name in node.input)
        self.uses.update(output.name for output in self.graph.output)
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._taken = {node.name for node in self.graph.node}
        self._inferred: dict[str, Shape] | None = None

    def run(self) -> Network:
        """Raises GraphError with every fault."""
        if not self.faults:
            pending = self._groups()
            for group in pending:
                self._read(group)
        outputs = {}
        for output in self.graph.output:
            if output.name in self.constants or not (self.faults or output.name in self.values):
                self.faults.append(f"output {output.name!r}: expected it to depend on the input. Received: a constant")
            elif output.name in self.values:
                outputs[output.name] = self.values[output.name]
        if self.faults:
            raise GraphError(self.faults)
        return Network(self.inputs, needed(list(outputs.values()), self.steps), outputs)

    # What stands before the nodes

    def _opset(self) -> int:
        found = {entry.domain or "ai.onnx": entry.version for entry in self.model.opset_import}
        version = found.get("ai.onnx", 0)
        latest = onnx.defs.onnx_opset_version()
        if not FIRST_OPSET <= version <= latest:
            self.faults.append(f"expected ONNX operators of opset {FIRST_OPSET} to {latest}. Received: opset {version}")
        return version

    def _initializers(self) -> dict[str, Constant]:
        for sparse in self.graph.sparse_initializer:
            self.faults.append(f"initializer {sparse.values.name!r}: expected a dense tensor. Received: a sparse one")
        return {t.name: Constant(onnx.numpy_helper.to_array(t)) for t in self.graph.initializer}

    def _live_nodes(self) -> list[onnx.NodeProto]:
        """The nodes on which the outputs depend."""
        wanted = {output.name for output in self.graph.output}
        live = []
        for node in reversed(self.graph.node):
            if wanted.intersection(node.output):
                live.append(node)
                wanted.update(node.input)
        return live[::-1]

    def _inputs(self, given: Shape | None) -> dict[str, Step]:
        found = {}
        for entry in self.graph.input:
            if entry.name in self.constants:
                continue
            sizes = _sizes(entry)
            if sizes is None:
                self.faults.append(f"input {entry.name!r}: expected a tensor. Received: {_kind(entry)}")
                continue
            if sizes and given is not None and len(given) == len(sizes) - 1:
                sizes = [sizes[0], *given]
            if unknown := [place for place, size in enumerate(sizes) if size is None and place > 0]:
                self.faults.append(
                    f"input {entry.name!r}: expected fixed sizes behind the batch's; give input_shape=(C, H, W), "
                    f"without the batch. Received: {_text(entry)}, open at {', '.join(map(str, unknown))}"
                )
            shape = tuple(ANY_BATCH if size is None else size for size in sizes)
            self.values[entry.name] = found[entry.name] = Step(entry.name, shape)
        return found

    # Nodes

    def _groups(self) -> list[list[onnx.NodeProto]]:
        """The nodes; those that `save` wrote for one operator together."""
        groups: dict[object, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            mark = self._mark(node)
            groups.setdefault(id(node) if mark is None else mark[0], []).append(node)
        return list(groups.values())

    def _mark(self, node: onnx.NodeProto) -> tuple[str, str, str] | None:
        """Place, class and name of the operator for which `save` wrote the node."""
        parts = node.doc_string.split(" ", 3)
        if not self.own or len(parts) != 4 or parts[0] != MARK:
            return None
        return parts[1], parts[2], parts[3]

    def _read(self, group: list[onnx.NodeProto]) -> None:
        if len(group) == 1:
            self._read_node(group[0])
            return
        mark = self._mark(group[0])
        assert mark is not None
        nodes = [self._node(proto) for proto in group]
        if mark[1] not in GROUPS or any(name not in self.values for name in _activations(group, self.constants)):
            for proto in group:
                self._read_node(proto)
            return
        self._translate(nodes[-1], lambda: GROUPS[mark[1]](nodes))

    def _read_node(self, proto: onnx.NodeProto) -> None:
        if id(proto) in self.absorbed:
            done = self.absorbed[id(proto)]
            if done in self.values:
                self.values[proto.output[0]] = self.values[done]
            return
        if proto.op_type == "Shape" and proto.input[0] in self.values:
            array = _shape_operator(proto, self.values[proto.input[0]].shape)
            self.constants[proto.output[0]] = Constant(array, varies=True)
            return
        if all(not name or name in self.constants for name in proto.input):
            self._fold(proto)
            return
        node = self._node(proto)
        translation = self._check(node)
        if translation is None or any(name and not self._known(name) for name in proto.input):
            self._guess(proto)
            return
        self._translate(node, lambda: translation.read(node))

    def _translate(self, node: Node, read: Callable[[], Step]) -> None:
        try:
            self.values[node.proto.output[0]] = read()
        except (Refused, ValueError) as error:
            self.fault(node, str(error))
            self._guess(node.proto)

    def _node(self, proto: onnx.NodeProto) -> Node:
        mark = self._mark(proto)
        name = self._name(proto) if mark is None else mark[2]
        version = 0
        if proto.domain in ("", "ai.onnx") and onnx.defs.has(proto.op_type, self.opset):
            version = onnx.defs.get_schema(proto.op_type, self.opset).since_version
        node = Node(self, proto, name, version)
        node.shared = mark is not None
        return node

    def _name(self, proto: onnx.NodeProto) -> str:
        """The node's name; without one, its type and a number."""
        if proto.name:
            return proto.name
        number = 1
        while f"{proto.op_type}{number}" in self._taken:
            number += 1
        proto.name = f"{proto.op_type}{number}"
        self._taken.add(proto.name)
        return proto.name

    def _check(self, node: Node) -> Translation | None:
        """The node's translation, or None with a fault for everything that is wrong whatever its inputs are."""
        proto = node.proto
        translation = TRANSLATIONS.get(proto.op_type) if proto.domain in ("", "ai.onnx") else None
        if translation is None:
            where = f" of {proto.domain}" if proto.domain not in ("", "ai.onnx") else ""
            self.fault(node, f"Crossbow has no operator {proto.op_type}{where}")
            return None
        count = len(self.faults)
        if node.version not in translation.versions:
            known = ", ".join(map(str, translation.versions))
            self.fault(node, f"expected version {known} of the operator. Received: version {node.version}")
        for attribute in proto.attribute:
            if attribute.name not in translation.attributes:
                self.fault(node, f"attribute {attribute.name!r} is not known")
        for output in proto.output[1:]:
            if output and self.uses[output]:
                self.fault(node, f"expected only the first output to be used. Received: a use of {output!r} too")
        for index in translation.constants:
            if node.given(index) and proto.input[index] in self.values:
                self.fault(node, f"expected input {index} ({proto.input[index]!r}) to be a constant. Received: an activation")
        return translation if len(self.faults) == count else None

    def fault(self, node: Node, text: str) -> None:
        self.faults.append(f"node {node.name!r} ({node.proto.op_type}): {text}")

    def _known(self, name: str) -> bool:
        return name in self.values or name in self.constants

    def follower(self, node: Node, op_type: str) -> Node | None:
        output = node.proto.output[0]
        found = self._readers.get(output, [])
        if self.uses[output] != 1 or len(found) != 1 or self._mark(node.proto) is not None:
            return None
        if found[0].op_type != op_type or found[0].domain not in ("", "ai.onnx"):
            return None
        follower = self._node(found[0])
        count = len(self.faults)
        if self._check(follower) is None:
            del self.faults[count:]  # they are found again when its turn comes
            return None
        return follower

    # Constants

    def _fold(self, proto: onnx.NodeProto) -> None:
        """Compute a node whose inputs are constants."""
        name = f"node {proto.name or proto.output[0]!r} ({proto.op_type})"
        given = {name: self.constants[name] for name in proto.input if name}
        if proto.op_type.startswith("Random") or proto.op_type in ("Multinomial", "Bernoulli", "If", "Loop", "Scan"):
            self.faults.append(f"{name}: Crossbow has no operator {proto.op_type}")
            return
        try:
            if proto.op_type == "ConstantOfShape" and np.prod(given[proto.input[0]].array) > FOLDED_ELEMENTS:
                raise ValueError(f"a constant of more than {FOLDED_ELEMENTS:,} elements")
            arrays = _evaluate(proto, self.model, {name: constant.array for name, constant in given.items()})
        except Exception as error:  # whatever the evaluator of the package raises
            self.faults.append(f"{name}: expected a constant that can be computed. Received: {error}")
            return
        varies = any(constant.varies for constant in given.values())
        for output, array in zip(proto.output, arrays, strict=False):
            if output:
                self.constants[output] = Constant(np.asarray(array), varies)

    def _guess(self, proto: onnx.NodeProto) -> None:
        """Give the outputs of a node at fault the shapes that the package infers, so that the nodes behind it are
        checked too."""
        if self._inferred is None:
            self._inferred = self._infer()
        for output in proto.output:
            if output and output in self._inferred and not self._known(output):
                self.values[output] = Step(output, self._inferred[output])

    def _infer(self) -> dict[str, Shape]:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for entry in model.graph.input:
            if entry.name in self.inputs:
                entry.type.tensor_type.shape.ClearField("dim")
                for size in self.inputs[entry.name].shape:
                    entry.type.tensor_type.shape.dim.add().dim_value = size
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # a graph that is wrong beyond what is reported already
            return {}
        entries = [*inferred.graph.value_info, *inferred.graph.output]
        sizes = {entry.name: _sizes(entry) for entry in entries}
        return {
            name: tuple(size for size in found if size is not None)
            for name, found in sizes.items()
            if found is not None and None not in found
        }


def _activations(group: Sequence[onnx.NodeProto], constants: Mapping[str, Constant]) -> set[str]:
    """What a group of nodes reads from outside."""
    inside = {output for node in group for output in node.output}
    return {name for node in group for name in node.input if name and name not in constants and name not in inside}


def _evaluate(proto: onnx.NodeProto, model: onnx.ModelProto, given: Mapping[str, Numbers]) -> Sequence[Any]:
    inputs = [onnx.ValueInfoProto(name=name) for name in given]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "constant", inputs, outputs)
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import)
    results: Sequence[Any] = onnx.reference.ReferenceEvaluator(alone).run(None, dict(given))
    return results


def _shape_operator(proto: onnx.NodeProto, shape: Shape) -> Numbers:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    return np.array(shape[slice(attributes.get("start", 0), attributes.get("end", None))], np.int64)


def _sizes(entry: onnx.ValueInfoProto) -> list[int | None] | None:
    """The sizes of a tensor, None for one that is open; None for what is no tensor of known rank."""
    if not entry.type.HasField("tensor_type") or not entry.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in entry.type.tensor_type.shape.dim]


def _kind(entry: onnx.ValueInfoProto) -> str:
    return "one of unknown rank" if entry.type.HasField("tensor_type") else str(entry.type.WhichOneof("value"))


def _text(entry: onnx.ValueInfoProto) -> str:
    sizes = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in entry.type.tensor_type.shape.dim]
    return f"({', '.join(sizes)})"
