"""Reading of an ONNX graph: constants are folded, shapes tracked, nodes translated, and all faults collected."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference

from crossbow.onnx.network import ANY_BATCH, MARK, Network, NetworkStep, needed
from crossbow.onnx.reading.folding import check_functions, evaluate
from crossbow.onnx.reading.node import LARGEST_CONSTANT, Border, ConstantTensor, Node, Numbers, Refused
from crossbow.onnx.reading.table import GROUPS, TRANSLATIONS, Read, Translation
from crossbow.onnx.training_settings import Settings, read_settings
from crossbow.types import GraphError, Shape

FIRST_OPSET = 6
"""Oldest supported version of the ONNX operators."""
LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})
"""Unsupported loss operators: the user appends a loss, and the data set has the labels."""


class Reader:
    """Reads a graph in one pass."""

    def __init__(self, model: onnx.ModelProto, input_shape: Shape | None = None) -> None:
        if model.functions:
            check_functions(model)
            model = onnx.inliner.inline_local_functions(model)
        self.model, self.graph = model, model.graph
        self.faults: list[str] = []
        self.opset = self._opset()
        self.constants = self._initializers()
        self.values: dict[str, NetworkStep] = {}
        self.steps: list[NetworkStep] = []
        self.absorbed: dict[int, str] = {}
        """For each absorbed node, the output that replaces its own, because the translation of another node includes
        it."""
        self.folded: set[str] = set()
        """First outputs of the nodes that have been evaluated, or that caused a fault."""
        self.borders: dict[str, Border] = {}
        """Zeros to add around the input of a Conv in addition to the Conv's own padding, by the name of the input."""
        self.is_from_save = model.producer_name == MARK
        self.settings = self._settings()
        self.nodes = self._live_nodes()
        self.inputs = self._inputs(input_shape)
        self.uses = Counter(name for node in self.nodes for name in _reads(node))
        self.uses.update(output.name for output in self.graph.output)
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in _reads(node):
                self._readers.setdefault(name, []).append(node)
        self._taken = {node.name for node in self.graph.node}
        self._given_names: dict[int, str] = {}
        self._numbers: dict[str, Iterator[int]] = {}
        self._inferred: dict[str, Shape] | None = None
        self._room = LARGEST_CONSTANT

    def run(self) -> Network:
        """Read the graph. Raises GraphError with all faults."""
        self._check_names()
        if not self.faults:
            for node in self.nodes:
                if self._is_constant(node) and node.op_type != "If":
                    self._fold(node)
            for group in self._groups():
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

    # Inputs, initializers and settings

    def _opset(self) -> int:
        found = {entry.domain or "ai.onnx": entry.version for entry in self.model.opset_import}
        version = int(found.get("ai.onnx", 0))
        latest = onnx.defs.onnx_opset_version()
        if not FIRST_OPSET <= version <= latest:
            self.faults.append(f"expected ONNX operators of opset {FIRST_OPSET} to {latest}. Received: opset {version}")
        return version

    def _initializers(self) -> dict[str, ConstantTensor]:
        for sparse in self.graph.sparse_initializer:
            self.faults.append(f"initializer {sparse.values.name!r}: expected a dense tensor. Received: a sparse one")
        entries = (*self.graph.input, *self.graph.value_info)
        kept = {entry.name for entry in entries if any(map(_is_buffer, entry.metadata_props))}
        return {
            t.name: ConstantTensor(onnx.numpy_helper.to_array(t), literal=t.name in kept)
            for t in self.graph.initializer
        }

    def _settings(self) -> Mapping[str, Settings]:
        try:
            return read_settings(self.model) if self.is_from_save else {}
        except ValueError as error:
            self.faults.append(str(error))
            return {}

    def _live_nodes(self) -> list[onnx.NodeProto]:
        """The nodes on which the outputs depend."""
        wanted = {output.name for output in self.graph.output}
        live = []
        for node in reversed(self.graph.node):
            if wanted.intersection(node.output):
                live.append(node)
                wanted.update(_reads(node))
        return live[::-1]

    def _inputs(self, given: Shape | None) -> dict[str, NetworkStep]:
        found = {}
        for entry in self.graph.input:
            if entry.name in self.constants:
                continue
            sizes = _sizes(entry)
            if sizes is None:
                self.faults.append(f"input {entry.name!r}: expected a tensor. Received: {_kind(entry)}")
                continue
            if sizes and given is not None:
                if len(given) != len(sizes) - 1:
                    self.faults.append(
                        f"input {entry.name!r}: expected an input_shape of {len(sizes) - 1} sizes, as in "
                        f"{_text(entry)} without the batch. Received: {given}"
                    )
                    continue
                if any(size not in (None, asked) for size, asked in zip(sizes[1:], given, strict=True)):
                    self.faults.append(
                        f"input {entry.name!r}: expected an input_shape with the sizes that the model fixes, as in "
                        f"{_text(entry)} without the batch. Received: {given}"
                    )
                    continue
                sizes = [sizes[0], *given]
            if unknown := [place for place, size in enumerate(sizes) if size is None and place > 0]:
                self.faults.append(
                    f"input {entry.name!r}: expected fixed sizes after the batch; pass input_shape=(C, H, W), "
                    f"without the batch. Received: {_text(entry)}, open at {', '.join(map(str, unknown))}"
                )
            shape = tuple(ANY_BATCH if size is None else size for size in sizes)
            self.values[entry.name] = found[entry.name] = NetworkStep(entry.name, shape)
        return found

    def _check_names(self) -> None:
        """Check that everything that a node reads is defined before it."""
        given = {*self.constants, *(entry.name for entry in self.graph.input)}
        given.update(sparse.values.name for sparse in self.graph.sparse_initializer)  # these have been reported
        for node in self.nodes:
            for name in _reads(node):
                if name and name not in given:
                    where = f"node {self._name(node)!r} ({node.op_type})"
                    self.faults.append(
                        f"{where}: expected {name!r} to be an input, an initializer or an output of an earlier node. "
                        f"Received: an undefined name"
                    )
            given.update(node.output)

    # Nodes

    def _groups(self) -> list[list[onnx.NodeProto]]:
        """Groups of nodes: all nodes that `save` wrote for one operator form a group, and any other node is a group by
        itself."""
        groups: dict[object, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            mark = self._mark(node)
            groups.setdefault(id(node) if mark is None else mark[0], []).append(node)
        return list(groups.values())

    def _mark(self, node: onnx.NodeProto) -> tuple[str, str, str] | None:
        """Position, class and name of the operator for which `save` wrote the node."""
        parts = node.doc_string.split(" ", 3)
        if not self.is_from_save or len(parts) != 4 or parts[0] != MARK:
            return None
        return parts[1], parts[2], parts[3]

    def _read(self, group: list[onnx.NodeProto]) -> None:
        mark = self._mark(group[0])
        read, least = GROUPS.get("" if mark is None else mark[1], (None, 0))
        outside = _activations(group, self.constants)
        if read is None or len(group) < least or any(name not in self.values for name in outside):
            for proto in group:
                self._read_node(proto)
            return
        nodes = [self._node(proto) for proto in group]
        self._translate(nodes[-1], lambda: read(nodes))

    def _read_node(self, proto: onnx.NodeProto) -> None:
        if id(proto) in self.absorbed:
            done = self.absorbed[id(proto)]
            if done in self.values:
                self.values[proto.output[0]] = self.values[done]
            return
        if proto.op_type == "Shape" and proto.input[0] in self.values:
            array = _shape_operator(proto, self.values[proto.input[0]].shape)
            self.constants[proto.output[0]] = ConstantTensor(array, varies=True)
            return
        if proto.op_type == "If" and proto.input[0] in self.constants:
            self._read_branch(proto)
            return
        if self._is_constant(proto):
            if proto.output[0] not in self.folded:
                self._fold(proto)
            return
        node = self._node(proto)
        translation = self._check(node)
        if translation is None or any(name and not self._known(name) for name in proto.input):
            self._guess(proto)
            return
        self._translate(node, lambda: translation.read(node))

    def _read_branch(self, proto: onnx.NodeProto) -> None:
        """Read the active branch of an If whose condition is constant, for example because it depends on a shape."""
        taken = bool(self.constants[proto.input[0]].array.reshape(-1)[0])
        name = "then_branch" if taken else "else_branch"
        (branch,) = (attribute.g for attribute in proto.attribute if attribute.name == name)
        self.constants.update({t.name: ConstantTensor(onnx.numpy_helper.to_array(t)) for t in branch.initializer})
        for node in branch.node:
            self._read_node(node)
        for outer, inner in zip(proto.output, branch.output, strict=True):
            if inner.name in self.constants:
                self.constants[outer] = self.constants[inner.name]
            elif inner.name in self.values:
                self.values[outer] = self.values[inner.name]

    def _translate(self, node: Node, read: Callable[[], Read]) -> None:
        try:
            result = read()
            steps = [result] if isinstance(result, NetworkStep) else result
            self.values.update(zip(node.proto.output, steps, strict=False))
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
        if mark is not None:
            node.is_marked, node.settings = True, self.settings.get(mark[0], {})
        return node

    def _name(self, proto: onnx.NodeProto) -> str:
        """The node's name; if it has none, its type and a number."""
        if proto.name:
            return proto.name
        if id(proto) not in self._given_names:
            numbers = self._numbers.setdefault(proto.op_type, itertools.count(1))
            names = (f"{proto.op_type}{number}" for number in numbers)
            self._given_names[id(proto)] = next(name for name in names if name not in self._taken)
            self._taken.add(self._given_names[id(proto)])
        return self._given_names[id(proto)]

    def _check(self, node: Node) -> Translation | None:
        """The node's translation, or None after reporting all faults that do not depend on its inputs."""
        proto = node.proto
        translation = TRANSLATIONS.get(proto.op_type) if proto.domain in ("", "ai.onnx") else None
        if translation is None and proto.op_type in LOSSES:
            self.fault(node, "expected the network without its loss; append one, as SoftMaxLoss, after loading")
            return None
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
        for output in () if translation.several_outputs else proto.output[1:]:
            if output and self.uses[output]:
                self.fault(node, f"expected only the first output to be used. Received: a use of {output!r}")
        for index in translation.constants:
            if node.given(index) and proto.input[index] in self.values:
                self.fault(
                    node, f"expected input {index} ({proto.input[index]!r}) to be a constant. Received: an activation"
                )
        return translation if len(self.faults) == count else None

    def fault(self, node: Node, text: str) -> None:
        text = text.replace(str(ANY_BATCH), "N")
        self.faults.append(f"node {node.name!r} ({node.proto.op_type}): {text}")

    def _known(self, name: str) -> bool:
        return name in self.values or name in self.constants

    def sole_consumer(self, node: Node, op_type: str) -> Node | None:
        output = node.proto.output[0]
        found = self._readers.get(output, [])
        if self.uses[output] != 1 or len(found) != 1 or self._mark(node.proto) is not None:
            return None
        if found[0].op_type != op_type or found[0].domain not in ("", "ai.onnx"):
            return None
        return self._node(found[0])

    def follower(self, node: Node, op_type: str) -> Node | None:
        follower = self.sole_consumer(node, op_type)
        count = len(self.faults)
        if follower is not None and self._check(follower) is None:
            del self.faults[count:]  # its faults are reported when the follower itself is read
            return None
        return follower

    # Constants

    def _is_constant(self, proto: onnx.NodeProto) -> bool:
        return all(not name or name in self.constants for name in proto.input)

    def _fold(self, proto: onnx.NodeProto) -> None:
        """Evaluate a node whose inputs are constants."""
        self.folded.add(proto.output[0])
        name = f"node {proto.name or proto.output[0]!r} ({proto.op_type})"
        given = {name: self.constants[name] for name in proto.input if name}
        if proto.op_type.startswith("Random") or proto.op_type in ("Multinomial", "Bernoulli", "If", "Loop", "Scan"):
            self.faults.append(f"{name}: Crossbow has no operator {proto.op_type}")
            return
        try:
            arrays = evaluate(proto, self.model, {name: constant.array for name, constant in given.items()}, self._room)
            self._room -= sum(np.asarray(array).size for array in arrays)
        except Exception as error:  # ONNX's evaluator may raise any type
            self.faults.append(f"{name}: expected a constant that can be evaluated. Received: {error}")
            return
        varies = any(constant.varies for constant in given.values())
        literal = all(constant.literal for constant in given.values())
        for output, array in zip(proto.output, arrays, strict=False):
            if output:
                self.constants[output] = ConstantTensor(np.asarray(array), varies, literal)

    def _guess(self, proto: onnx.NodeProto) -> None:
        """Give the outputs of a faulty node the shapes that ONNX infers, so that later nodes are checked, too."""
        if self._inferred is None:
            self._inferred = self._infer()
        for output in proto.output:
            if output and output in self._inferred and not self._known(output):
                self.values[output] = NetworkStep(output, self._inferred[output])

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
        except Exception:  # the graph has further errors, in addition to those reported
            return {}
        entries = [*inferred.graph.value_info, *inferred.graph.output]
        sizes = {entry.name: _sizes(entry) for entry in entries}
        return {
            name: tuple(size for size in found if size is not None)
            for name, found in sizes.items()
            if found is not None and None not in found
        }


def _reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node reads: its inputs, and names from outside that its subgraphs use."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {name for inner in graph.node for name in inner.output}
            own.update(tensor.name for tensor in graph.initializer)
            own.update(entry.name for entry in graph.input)
            found = [name for inner in graph.node for name in _reads(inner)]
            found += [entry.name for entry in graph.output]
            names += [name for name in found if name and name not in own]
    return names


def _is_buffer(entry: onnx.StringStringEntryProto) -> bool:
    """Whether a metadata entry of PyTorch's exporter marks a tensor as a buffer, which is not a parameter."""
    return entry.key == "pkg.torch.export.graph_signature.InputSpec.kind" and entry.value == "BUFFER"


def _activations(group: Sequence[onnx.NodeProto], constants: Mapping[str, ConstantTensor]) -> set[str]:
    """The names of activations that a group of nodes reads from outside."""
    inside = {output for node in group for output in node.output}
    return {name for node in group for name in node.input if name and name not in constants and name not in inside}


def _shape_operator(proto: onnx.NodeProto, shape: Shape) -> Numbers:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    return np.array(shape[slice(attributes.get("start", 0), attributes.get("end"))], np.int64)


def _sizes(entry: onnx.ValueInfoProto) -> list[int | None] | None:
    """The sizes of a tensor, with None for open ones; None if it is not a tensor of known rank."""
    if not entry.type.HasField("tensor_type") or not entry.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in entry.type.tensor_type.shape.dim]


def _kind(entry: onnx.ValueInfoProto) -> str:
    return "one of unknown rank" if entry.type.HasField("tensor_type") else str(entry.type.WhichOneof("value"))


def _text(entry: onnx.ValueInfoProto) -> str:
    dimensions = entry.type.tensor_type.shape.dim
    return f"({', '.join(str(d.dim_value) if d.HasField('dim_value') else d.dim_param or '?' for d in dimensions)})"
