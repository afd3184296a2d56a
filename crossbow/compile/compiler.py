"""Compilation of a graph: kernels are prepared, lifetimes determined, and memory planned. The result is a program."""

from __future__ import annotations

from collections import ChainMap, Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossbow.compile.draft import Draft, DraftStep, Value, place, resolve
from crossbow.compile.fuse import masked_terms, pooled_gradients, relu_fusions, sum_fusions, takes_gradient
from crossbow.compile.model import ModelLayout
from crossbow.compile.precision import narrow_vertices
from crossbow.compile.program import NamedPlace, Place, Program, Step, VectorPlace, WholeVector
from crossbow.compile.remembering import Remembering
from crossbow.compile.variables import Variables
from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers
from crossbow.dataflow.validate import infer_shapes, input_shapes, statistics_of, variables_of
from crossbow.host_memory import physical_memory
from crossbow.kernels.interface import PlainStorage, PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import CheckFinite, LoadBatch, PoolingBackward, WeightedSum
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.types import GraphError, LabelRange, Phase, Shape, Tensor, bytes_text


@dataclass(frozen=True)
class BatchSource:
    """Source of a program's batches: the ring's slots, and the conversion of pixels to numbers."""

    images: Tensor
    """(S, N, …), plain, uint8 or floating point."""
    labels: Tensor
    """(S, N, …)."""
    scale: float = 1.0


def compile_graph(
    graph: Graph,
    source: BatchSource,
    library: KernelLibrary,
    dtype: np.dtype[np.generic],
    *,
    phase: Phase,
    labels: LabelRange | None = None,
    model: ModelLayout | None = None,
    statistics: ModelLayout | None = None,
    seed: int = 0,
    check_numerics: bool = False,
) -> Program:
    """Compile a graph for the batch size of `source`.

    Without `model`, the kernels choose the layout of the variables; a graph that shares the variables (check,
    prediction) is given the layouts of the first. check_numerics: check everything that kernels write for NaN and
    infinity. Raises GraphError with all faults of the graph.
    """
    return _Compiler(graph, source, library, dtype, phase, labels, model, statistics, seed, check_numerics).run()


class _Compiler:
    def __init__(
        self,
        graph: Graph,
        source: BatchSource,
        library: KernelLibrary,
        dtype: np.dtype[np.generic],
        phase: Phase,
        labels: LabelRange | None,
        model: ModelLayout | None,
        statistics: ModelLayout | None,
        seed: int,
        check_numerics: bool,
    ) -> None:
        self.graph, self.source, self.library, self.dtype = graph, source, Remembering(library), dtype
        self.mixed = library.mixed
        self.narrow = narrow_vertices(graph) if library.mixed is not None else frozenset()
        self.phase, self.seed, self.check_numerics = phase, seed, check_numerics
        self.batch: Shape = source.images.shape[1:]
        self.shapes = infer_shapes(graph, self.batch, labels, phase)
        self._check_indices()
        self.consumers = consumers(graph)
        self.draft = Draft()
        narrow = dtype if self.mixed is None else self.mixed.dtype
        self.variables = Variables(graph, variables_of(graph, self.batch, self.shapes), dtype, narrow, model)
        self.statistics = Variables(graph, statistics_of(graph, self.batch, self.shapes), dtype, dtype, statistics)
        self._check_sizes()
        if faults := self.variables.faults | self.statistics.faults:
            raise GraphError(list(faults))
        self.observed: set[int] = set()
        """Operators whose statistics an earlier step has updated."""
        self.written_gradients: set[tuple[int, str]] = set()
        self.gradients: set[Value] = set()
        """Values that are gradients of the loss."""
        self.outputs: dict[int, Value] = {}
        """Outputs that are read after the task has ended, by position."""
        # Numeric checks disable fusion: a ReLU may turn NaN into 0 before it is detected.
        self.fusions = relu_fusions(graph, () if check_numerics else library.fused_relu)
        self.fused = {producer: relu for relu, producer in self.fusions.items()}
        """Position of the ReLU after an operator that is fused with it."""
        self.sums = sum_fusions(graph, () if check_numerics else library.fused_sum, self.fusions, self.narrow)
        self.summed = {producer: total for total, producer in self.sums.items()}
        """Position of the sum after an operator that is fused with it."""
        self.masked = masked_terms(graph, self.sums, self.fusions)
        """Position of the gradient of the sum's other term, for a normalisation with a fused sum and ReLU."""
        self.pooled = pooled_gradients(graph, self.fusions, self.sums)
        self.pooled_relus = frozenset(self.pooled.values())
        self.nodes_of = Counter(id(vertex.operator) for vertex in graph)
        """Number of nodes of an operator, by its id."""
        self.inputs: dict[int, tuple[Tensor, ...]] = {}
        self.found: dict[int, dict[str, Any]] = defaultdict(dict)
        """Contents of `Site.found`, by position."""
        self.roles: dict[int, dict[str, Value | Place]] = {}
        """Roles of forward operators by position, cached because each gradient with respect to an input needs them."""
        self.backward_part: set[int] = set()
        """Gradient operators, and vertices that depend on them (sums of gradients)."""

    def run(self) -> Program:
        self._load_batch()
        for vertex in self.graph:
            if isinstance(vertex.kernel, Gradient):
                self._gradient(vertex, vertex.kernel)
            elif not vertex.kernel.is_step:
                self._forward(vertex, vertex.kernel)
        model, statistics = self.variables.layout(), self.statistics.layout()
        self._narrow_weights()
        self._widen_gradient(model)
        # Execution order. Gradients that the user connects may precede a forward operator that does not need them.
        # Weight gradients in blocks, each of which is used at once, come last, when the weights are no longer read.
        self.draft.steps.sort(key=lambda step: (step.backward, step.kernel.blocks is not None))
        places, plan = place(self.draft)
        steps = tuple(
            Step(
                step.operator,
                step.kernel,
                {r: resolve(v, places) for r, v in step.roles.items()},
                step.backward,
                step.elided,
            )
            for step in self.draft.steps
        )
        outputs = {v.order: places["output", v.order] for v in self.graph if ("output", v.order) in places}
        outputs.update({order: places[value] for order, value in self.outputs.items()})
        return Program(self.graph, self.batch, model, statistics, steps, plan, outputs)

    def _check_indices(self) -> None:
        """Raises GraphError if an operator reads its indices from pixels, which are scaled to [0, 1]."""
        if self.source.images.dtype != np.uint8 or self.source.scale == 1:
            return
        faults = [
            f"node {vertex.name!r} ({type(vertex.kernel).__name__}): expected indices of a type that is not scaled to "
            "[0, 1]: convert the examples with .astype(np.int32). Received: uint8"
            for vertex in self.graph
            if vertex.forward is not None and vertex.forward.takes_indices and BATCH in vertex.inputs
        ]
        if faults:
            raise GraphError(faults)

    def _check_sizes(self) -> None:
        """Raises GraphError for tensors that are larger than the machine's memory, before kernels are prepared."""
        memory, faults = physical_memory(), []
        for vertex in self.graph:
            if vertex.forward is None:
                continue
            specs = (*self.variables.specs(vertex), *self.statistics.specs(vertex))
            shapes = {"an output": self.shapes[vertex.order], **{repr(spec.name): spec.shape for spec in specs}}
            for name, shape in shapes.items():
                if (nbytes := Tensor(shape, self.dtype).nbytes) > memory:
                    who = f"node {vertex.name!r} ({type(vertex.kernel).__name__})"
                    expected = f"expected tensors that fit into {bytes_text(memory)} of memory"
                    faults.append(f"{who}: {expected}. Received: {name} of shape {shape}, {bytes_text(nbytes)}")
                    break
        if faults:
            raise GraphError(faults)

    # Steps

    def _tensor(self, shape: Shape, dtype: np.dtype[np.generic]) -> Tensor:
        return Tensor(shape, dtype, self.library.layout(shape))

    def _dtype(self, vertex: Vertex) -> np.dtype[np.generic]:
        """Type of the tensors of an operator, or of a gradient operator's peer."""
        return self.mixed.dtype if self.mixed is not None and vertex.order in self.narrow else self.dtype

    def _value(self, source: int) -> Value:
        return "batch" if source == BATCH else ("output", source)

    def _converted(self, value: Value, dtype: np.dtype[np.generic]) -> Value:
        """A tensor in the type that an operator reads, converted if necessary."""
        tensor = self.draft.tensors[value]
        if self.mixed is None or tensor.dtype == dtype or not {tensor.dtype, dtype} <= {self.dtype, self.mixed.dtype}:
            return value
        converted = ("converted", value)
        if converted not in self.draft.tensors:
            self.draft.tensors[converted] = replace(tensor, dtype=dtype)
            gradient = value in self.gradients
            kernel = self.mixed.convert(tensor, self.draft.tensors[converted], gradient=gradient)
            self._append("precision", kernel, {"input0": value, "output": converted}, backward=gradient)
        return converted

    def _site(self, vertex: Vertex, needs_input_gradient: bool = True) -> Site:
        dtype = self._dtype(vertex)
        if vertex.order not in self.inputs:
            shapes = input_shapes(vertex, self.batch, self.shapes)
            self.inputs[vertex.order] = tuple(self._tensor(shape, dtype) for shape in shapes)
        return Site(
            library=self.library,
            phase=self.phase,
            inputs=self.inputs[vertex.order],
            output=self._tensor(self.shapes[vertex.order], dtype),
            labels=self.draft.tensors["labels"],
            variables={
                spec.name: self.variables[id(vertex.operator), spec.name] for spec in self.variables.specs(vertex)
            },
            seed=self.seed,
            key=vertex.order,
            needs_input_gradient=needs_input_gradient,
            logits=None if (logits := self._logits(vertex)) is None else self.draft.tensors[logits],
            fused_relu=self.summed.get(vertex.order, vertex.order) in self.fused,
            fused_sum=vertex.order in self.summed,
            found=self.found[vertex.order],
        )

    def _logits(self, vertex: Vertex) -> Value | None:
        """The input of the operator that a loss's gradient bypasses, if there is one."""
        kernel, source = vertex.kernel, vertex.inputs[0] if vertex.inputs else BATCH
        past = kernel.gradient_past if isinstance(kernel, Kernel) else None
        if past is None or source == BATCH or not isinstance(self.graph[source].kernel, past):
            return None
        return self._value(self.graph[source].inputs[0])

    def _output(self, order: int) -> Value:
        """The value that an operator writes: its own output, or that of the last operator that is fused with it."""
        order = self.summed.get(order, order)
        return ("output", self.fused.get(order, order))

    def _addend(self, order: int) -> dict[str, Value | Place]:
        """The role of the other term of the sum that is fused with an operator, if there is one."""
        if order not in self.summed:
            return {}
        (other,) = (source for source in self.graph[self.summed[order]].inputs if source != order)
        return {"addend": self._value(other)}

    def _load_batch(self) -> None:
        slots, slot_labels = self.source.images, self.source.labels
        readers = {self._dtype(vertex) for vertex in self.graph if BATCH in vertex.inputs and vertex.peer is None}
        batch = self._tensor(self.batch, readers.pop() if len(readers) == 1 else self.dtype)
        labels = Tensor(slot_labels.shape[1:], slot_labels.dtype)
        self.draft.tensors.update({"batch": batch, "labels": labels})
        kernel = self.library.prepare(LoadBatch(slots, batch, slot_labels, labels, self.source.scale))
        roles: dict[str, Value | Place] = {"input": "batch", "labels": "labels"}
        self._append("batch", kernel, roles, backward=False)

    def _forward(self, vertex: Vertex, kernel: Kernel) -> None:
        if self.backward_part.intersection(vertex.inputs):
            self.backward_part.add(vertex.order)
        output = self._output(vertex.order)
        self.draft.tensors[output] = self._tensor(self.shapes[vertex.order], self._dtype(vertex))
        if vertex.order in self.backward_part:
            self.gradients.add(output)
        doer = self.fusions.get(vertex.order, self.sums.get(vertex.order))
        if doer is not None:
            self._elide(vertex, self.graph[self.sums.get(doer, doer)])
            self._keep(vertex, kernel)
            return
        kernels = kernel.prepare(self._site(vertex))
        self.variables.settle(vertex, kernels)
        roles = {**self._peer_roles(vertex), **self._statistics_roles(vertex)}
        for prepared in kernels:
            if "kept" in prepared.writes:
                self.draft.tensors["kept", vertex.order] = Tensor((prepared.kept,), np.dtype(np.uint8))
            self._append(vertex.name, prepared, roles, self._dtype(vertex), backward=vertex.order in self.backward_part)
        self._keep(vertex, kernel)

    def _keep(self, vertex: Vertex, kernel: Kernel) -> None:
        """Preserve an output until the end of the task, if it is read after the task."""
        if kernel.is_loss or kernel.is_measure or not self.consumers[vertex.order]:
            read = self.outputs[vertex.order] = self._converted(("output", vertex.order), self.dtype)
            self.draft.pinned.add(read)

    def _peer_roles(self, vertex: Vertex) -> dict[str, Value | Place]:
        if vertex.order not in self.roles:
            self.roles[vertex.order] = self._new_peer_roles(vertex)
        return self.roles[vertex.order]

    def _new_peer_roles(self, vertex: Vertex) -> dict[str, Value | Place]:
        roles: dict[str, Value | Place] = {f"input{i}": self._value(source) for i, source in enumerate(vertex.inputs)}
        roles["output"] = self._output(vertex.order)
        roles.update(self._addend(vertex.order))
        roles["labels"] = "labels"
        if (logits := self._logits(vertex)) is not None:
            roles["logits"] = logits
        roles["kept"] = ("kept", vertex.order)
        roles.update({spec.name: self._variable("weights", vertex, spec) for spec in self.variables.specs(vertex)})
        return roles

    def _statistics_roles(self, vertex: Vertex) -> dict[str, Value | Place]:
        """The roles of an operator's statistics. A statistic is read as it was before the task, unless another node of
        the same operator has updated it."""
        present = "statistics_next" if id(vertex.operator) in self.observed else "statistics"
        roles: dict[str, Value | Place] = {}
        for spec in self.statistics.specs(vertex):
            roles[spec.name] = self._vector(present, vertex, spec)
            roles[f"{spec.name}_next"] = self._vector("statistics_next", vertex, spec)
        if self.phase is Phase.TRAIN:
            self.observed.add(id(vertex.operator))
        return roles

    def _variable(self, vector: str, vertex: Vertex, spec: VariableSpec, flat: bool = False) -> VectorPlace:
        """A variable's location in the vector that its operator's kernels read or write."""
        wide = self.variables[id(vertex.operator), spec.name].dtype == self.dtype
        return self._vector(vector if wide else f"narrow_{vector}", vertex, spec, flat)

    def _vector(self, vector: str, vertex: Vertex, spec: VariableSpec, flat: bool = False) -> VectorPlace:
        return VectorPlace(vector, id(vertex.operator), spec.name, f"{vertex.name}.{spec.name}", flat)

    def _gradient(self, vertex: Vertex, gradient: Gradient) -> None:
        assert vertex.peer is not None
        self.backward_part.add(vertex.order)
        peer = self.graph[vertex.peer]
        assert peer.forward is not None
        needed = any(not _is_step(user) for user in self.consumers[vertex.order])
        specs = self.variables.specs(peer)
        roles: ChainMap[str, Value | Place] = ChainMap({}, self._peer_roles(peer))
        roles["output_gradient"] = self._value(vertex.inputs[0])
        if needed:
            target = roles["input_gradient"] = self._output(vertex.order)
            self.draft.tensors[target] = self._tensor(self.shapes[vertex.order], self._dtype(vertex))
            self.gradients.add(target)
            roles.update(self._addend(vertex.order))
        producer = self.graph[self.fusions[peer.order]] if peer.order in self.fusions else None
        if vertex.order in self.pooled_relus:
            self._elide_gradient(vertex, self.graph[vertex.inputs[0]])
            return
        if producer is not None and takes_gradient(producer):
            self._elide_gradient(vertex, producer)
            return
        if producer is not None and producer.order in self.sums:
            self._elide_gradient(vertex, self.graph[self.sums[producer.order]])
            return
        if vertex.order in self.masked.values():
            self._elide(vertex, self.graph[self.sums[peer.order]])
            return
        if peer.order in self.masked:
            roles["addend_gradient"] = ("output", self.masked[peer.order])
        masks = vertex.order in self.pooled and self._pooling_masks(self.graph[self.pooled[vertex.order]])
        if vertex.order in self.pooled and not masks:
            roles["output_gradient"] = self._pooled_relu(vertex, peer, self.graph[self.pooled[vertex.order]])
        additions = []
        for spec in specs if gradient.input == 0 else ():
            key = (id(peer.operator), spec.name)
            if key in self.written_gradients:  # the gradients of a shared operator's nodes are added up
                extra = ("extra gradient", vertex.order, spec.name)
                storage = self.variables[key].storage
                assert storage is not None
                shape = spec.shape if isinstance(storage, PlainStorage) else (storage.elements,)
                self.draft.tensors[extra] = Tensor(shape, self.variables[key].dtype)
                roles[f"{spec.name}_gradient"] = extra
                additions.append((self._variable("gradient", peer, spec, flat=True), extra))
            else:
                roles[f"{spec.name}_gradient"] = self._variable("gradient", peer, spec)
                self.written_gradients.add(key)
        shared = self.nodes_of[id(peer.operator)] > 1
        site = self._site(peer, needed)
        site = replace(
            site, fused_relu=site.fused_relu or masks, fused_sum=site.fused_sum or vertex.order in self.summed
        )
        for kernel in gradient.prepare(peer.forward, site) if needed or specs else ():
            # The gradients of a shared operator are added up, so each must be complete.
            kernel = replace(kernel, blocks=None) if shared else kernel
            self._append(vertex.name, kernel, roles, self._dtype(vertex), backward=True)
        for total, extra in additions:
            self._accumulate(vertex.name, total, extra)

    def _elide_gradient(self, vertex: Vertex, doer: Vertex) -> None:
        """Omit a gradient operator that another kernel includes: its output is its input."""
        self.draft.aliases["output", vertex.order] = self._converted(self._value(vertex.inputs[0]), self._dtype(vertex))
        self._elide(vertex, doer)

    def _pooling_masks(self, relu_gradient: Vertex) -> bool:
        """Whether the kernel of a pooling's gradient includes that of the preceding activation."""
        assert relu_gradient.peer is not None
        activation = self.graph[relu_gradient.peer].forward
        return PoolingBackward in self.library.fused_relu and activation is not None and activation.is_relu

    def _pooled_relu(self, vertex: Vertex, pool: Vertex, relu_gradient: Vertex) -> Value:
        """The gradient of a max pooling's output times the derivative of the preceding ReLU; see `pooled_gradients`."""
        assert relu_gradient.peer is not None
        assert isinstance(relu_gradient.kernel, Gradient)
        relu, site, masked = self.graph[relu_gradient.peer], self._site(pool), ("masked", vertex.order)
        assert relu.forward is not None
        self.draft.tensors[masked] = site.output
        self.gradients.add(masked)
        roles: dict[str, Value | Place] = {
            "output": ("output", pool.order),
            "output_gradient": self._value(vertex.inputs[0]),
            "input_gradient": masked,
        }
        for kernel in relu_gradient.kernel.prepare(relu.forward, replace(site, inputs=(site.output,))):
            self._append(relu_gradient.name, kernel, roles, self._dtype(pool), backward=True)
        return masked

    def _accumulate(self, name: str, total: Place, extra: Value) -> None:
        gradient = self.draft.tensors[extra]
        flat = Tensor((gradient.elements,), gradient.dtype)
        adding = self.library.prepare(WeightedSum((flat, flat), flat, (1.0, 1.0)))
        # The extra gradient has the variable's shape.
        kernel = replace(adding, bind=lambda buffers: adding.bind({r: a.reshape(-1) for r, a in buffers.items()}))
        self._append(name, kernel, {"input0": total, "input1": extra, "output": total}, backward=True)

    # 16-bit vectors, if there are 16-bit variables

    def _narrow_weights(self) -> None:
        """Prepend a step that computes the 16-bit weights for the task's kernels, and the task's loss scale."""
        if self.mixed is None or not self.narrow:
            return
        kernel = self.mixed.narrow_weights(training=self.phase is Phase.TRAIN)
        roles = {name: WholeVector(name) for name in ("weights", "narrow_weights")}
        steps, self.draft.steps = self.draft.steps, []
        self._append("precision", kernel, roles, backward=False)
        self.draft.steps += steps

    def _widen_gradient(self, model: ModelLayout) -> None:
        """Append a step that converts the gradient of the task's kernels for the solver."""
        if self.mixed is None or not self.written_gradients:
            return
        parts: list[tuple[slice, str]] = []
        computed = {id(vertex.operator): self._dtype(vertex) for vertex in self.graph}
        for key, segment in model.segments.items():
            if key in self.written_gradients:
                wide = "scaled" if computed[key[0]] == self.mixed.dtype else "ready"
                kind = "narrow" if self.variables[key].dtype == self.mixed.dtype else wide
                parts.append((slice(segment.offset, segment.offset + segment.storage.elements), kind))
        if not self.mixed.scales:
            parts = [(part, kind) for part, kind in parts if kind == "narrow"]
        if not parts or not self.narrow:
            return
        kernel = self.mixed.widen_gradient(parts)
        roles = {name: WholeVector(name) for name in ("narrow_gradient", "gradient")}
        self._append("precision", kernel, roles, backward=True)

    def _append(
        self,
        name: str,
        kernel: PreparedKernel,
        place_of: Mapping[str, Value | Place],
        dtype: np.dtype[np.generic] | None = None,
        *,
        backward: bool,
    ) -> None:
        """Append a step with its kernel's roles and their locations. dtype: type of the tensors read, if it matters."""
        known = {role: place_of[role] for role in (*kernel.reads, *kernel.writes) if role in place_of}
        if dtype is not None:
            known.update({role: self._readable(known[role], dtype) for role in kernel.reads if role in known})
        roles: dict[str, Value | Place] = {}
        elided = False
        if kernel.alias is not None:
            source, target = (known[role] for role in kernel.alias)
            elided = not isinstance(source, Place) and not isinstance(target, Place)
            if elided:
                self.draft.aliases[target] = source
        for role in dict.fromkeys((*kernel.reads, *kernel.writes)):
            if role in _RUNTIME_ROLES:
                roles[role] = _RUNTIME_ROLES[role]
            elif role != "workspace":
                roles[role] = known[role]
        if kernel.workspace:
            workspace = ("workspace", len(self.draft.steps))
            self.draft.tensors[workspace] = Tensor((kernel.workspace,), np.dtype(np.uint8))
            roles["workspace"] = workspace
        if self.check_numerics:
            kernel = replace(kernel, blocks=None)
        self.draft.steps.append(DraftStep(name, kernel, roles, backward, elided))
        # Scaled gradients may overflow, until non-finite ones are set to zero.
        overflows = self.mixed is not None and self.mixed.scales and backward and kernel.writes != ("gradient",)
        if self.check_numerics and not elided and not overflows:
            for role in kernel.writes:
                if role != "kept":
                    check = self.library.prepare(CheckFinite(role.replace("_", " ")))
                    self.draft.steps.append(DraftStep(name, check, {"value": roles[role]}, backward))

    def _readable(self, value: Value | Place, dtype: np.dtype[np.generic]) -> Value | Place:
        """A value in the type that a kernel reads. The location of a variable determines its type by itself."""
        known = not isinstance(value, Place) and value in self.draft.tensors
        return self._converted(value, dtype) if known else value

    def _elide(self, vertex: Vertex, producer: Vertex) -> None:
        """Append a step without work, because another operator's kernel includes it."""
        nothing = PreparedKernel(f"in that of {producer.name!r}", (), (), lambda buffers: ())
        self.draft.steps.append(DraftStep(vertex.name, nothing, {}, vertex.order in self.backward_part, True))


def _is_step(vertex: Vertex) -> bool:
    return vertex.forward is not None and vertex.forward.is_step


_RUNTIME_ROLES: Mapping[str, Place] = {
    **{role: NamedPlace(role) for role in ("state", "slots", "slot_labels", "slot_positions")},
    "scaling": WholeVector("scaling"),
}
