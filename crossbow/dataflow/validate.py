"""Validation of a whole graph before it runs. The result is the shape of every output, or all faults at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from crossbow.conf import is_integer
from crossbow.dataflow import answers
from crossbow.dataflow.answers import ask
from crossbow.dataflow.graph import BATCH, Graph, Vertex, consumers, loss_weights, losses, main_losses
from crossbow.ops import GradientDescentOptimiser, TotalLoss
from crossbow.ops.kernel import Gradient, Kernel, VariableSpec
from crossbow.tracebacks import raised_together, users_error
from crossbow.types import GraphError, LabelRange, Phase, Shape

SIZES_END = 2**31
"""Upper bound of sizes, because kernel libraries count windows, steps and dimensions in 32 bits."""


def infer_shapes(
    graph: Graph, batch: Shape, labels: LabelRange | None = None, phase: Phase = Phase.CHECK
) -> tuple[Shape, ...]:
    """The output shape of every vertex, for a batch of shape (N, …).

    Labels are checked only if `labels` is given. Raises GraphError with all faults: wrong numbers of inputs, shapes
    that do not fit, sizes that exceed the libraries' limits, labels that do not fit, no loss or several, and incomplete
    gradients that the user connected.
    """
    check = _Validation(graph, batch, labels, phase)
    check.run()
    if check.faults:
        raise GraphError(check.faults) from raised_together(check.causes)
    return tuple(shape for shape in check.shapes if shape is not None)


def variables_of(graph: Graph, batch: Shape, shapes: tuple[Shape, ...]) -> dict[int, tuple[VariableSpec, ...]]:
    """Variables of every forward vertex that has some, by position. Vertices with a shared operator repeat them."""
    found = {}
    for vertex in graph:
        if vertex.forward is not None:
            specs = answers.variables(vertex.forward, input_shapes(vertex, batch, shapes))
            if specs:
                found[vertex.order] = specs
    return found


def statistics_of(graph: Graph, batch: Shape, shapes: tuple[Shape, ...]) -> dict[int, tuple[VariableSpec, ...]]:
    """Statistics of every forward vertex that has some, by position."""
    found = {}
    for vertex in graph:
        if vertex.forward is not None:
            specs = answers.running_statistics(vertex.forward, input_shapes(vertex, batch, shapes))
            if specs:
                found[vertex.order] = specs
    return found


def input_shapes(vertex: Vertex, batch: Shape, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    return tuple(batch if source == BATCH else shapes[source] for source in vertex.inputs)


def _huge_fields(kernel: Kernel) -> list[str]:
    """Integers of a configuration that exceed a library's limit, such as "padding=3000000000".

    Operators in array-module code are exempt, because their integers may have other meanings, such as seeds.
    """
    if type(kernel).prepare is Kernel.prepare or not dataclasses.is_dataclass(kernel):
        return []
    values = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel) if "float" not in str(f.type)}
    return [f"{name}={value}" for name, value in values.items() if max(_integers(value), default=0) >= SIZES_END]


def _integers(value: object) -> Iterator[int]:
    """The integers in a field: one, or several in tuples."""
    if is_integer(value):
        yield value  # type: ignore[misc]
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _integers(each)


def _check_code(kernel: Kernel) -> None:
    """Raises ValueError if the operator does not define its computation."""
    if type(kernel).prepare is Kernel.prepare and type(kernel).forward is Kernel.forward:
        raise ValueError("expected an operator with `forward`, or with `prepare`. Received: one with neither")


def _check_prediction(specs: Sequence[VariableSpec], loss: Kernel | Gradient, inputs: tuple[Shape, ...]) -> None:
    """Raises ValueError unless the variables of a prediction are variables of its loss."""
    assert isinstance(loss, Kernel)
    of_loss = (*answers.variables(loss, inputs), *answers.running_statistics(loss, inputs))
    known = {spec.name: spec.shape for spec in of_loss}
    wrong = {spec.name: spec.shape for spec in specs if known.get(spec.name) != spec.shape}
    if wrong:
        raise ValueError(f"expected a prediction with variables of {type(loss).__name__}, {known}. Received: {wrong}")


class _Validation:
    def __init__(self, graph: Graph, batch: Shape, labels: LabelRange | None, phase: Phase) -> None:
        self.graph, self.batch, self.labels, self.phase = graph, batch, labels, phase
        self.shapes: list[Shape | None] = []
        self.faults: list[str] = []
        self.causes: list[BaseException] = []
        """Exceptions of users' own operators that caused faults."""
        self.specs: dict[int, tuple[VariableSpec, ...]] = {}
        self.first_specs: dict[int, tuple[VariableSpec, ...]] = {}
        """Variables of every operator (by its id), at its first node."""

    def fault(self, vertex: Vertex, text: str) -> None:
        self.faults.append(f"node {vertex.name!r} ({type(vertex.kernel).__name__}): {text}")

    def run(self) -> None:
        for vertex in self.graph:
            inputs = [self.batch if source == BATCH else self.shapes[source] for source in vertex.inputs]
            known = [shape for shape in inputs if shape is not None]
            if isinstance(vertex.kernel, Gradient):
                self.shapes.append(self._gradient(vertex))
            elif len(known) < len(inputs):
                self.shapes.append(None)  # the fault of its input has been reported
            else:
                self.shapes.append(self._forward(vertex, vertex.kernel, tuple(known)))
        self._whole_graph()

    def _forward(self, vertex: Vertex, kernel: Kernel, inputs: tuple[Shape, ...]) -> Shape | None:
        wanted = kernel.number_of_inputs
        if wanted is not None and len(inputs) != wanted:
            self.fault(vertex, f"expected {wanted} input{'s' * (wanted != 1)}. Received: {len(inputs)}")
            return None
        past, source = kernel.gradient_past, vertex.inputs[0]
        producer = None if source == BATCH else self.graph[source].kernel
        if past is not None and not isinstance(producer, past):
            received = "the batch" if source == BATCH else f"{self.graph[source].name!r} ({type(producer).__name__})"
            self.fault(vertex, f"expected the output of a {past.__name__} as input. Received: {received}")
        if kernel.reads_batch and source != BATCH:
            self.fault(
                vertex,
                "expected the batch as input: it is the first operator of a graph. "
                f"Received: {self.graph[source].name!r} ({type(producer).__name__})",
            )
        if huge := _huge_fields(kernel):
            self.fault(vertex, f"expected integers below 2**31. Received: {', '.join(huge)}")
            return None
        try:
            shape = answers.output_shape(kernel, inputs)
            if past is not None and isinstance(producer, past):
                ask(kernel, "check_producer", producer, *inputs)
            specs = answers.variables(kernel, inputs)
            statistics = answers.running_statistics(kernel, inputs)  # their initialisers may not fit
            if vertex.predicts:
                _check_prediction((*specs, *statistics), vertex.operator.kernel, inputs)
            if self.phase is Phase.TRAIN:
                ask(kernel, "check_training", *inputs)
            if self.labels is not None:  # the graph will run; without labels, it is only described
                _check_code(kernel)
                if kernel.takes_labels:
                    ask(kernel, "check_labels", self.labels, *inputs)
        except ValueError as error:
            self.fault(vertex, str(error))
            if (cause := users_error(error)) is not None:
                self.causes.append(cause)
            return None
        if (kernel.is_loss or kernel.is_measure) and shape != (1,):
            what = "a loss" if kernel.is_loss else "a metric"
            self.fault(vertex, f"expected output_shape to return (1,), because it is {what}. Received: {shape}")
            return None
        shapes = {"an output": shape, **{repr(spec.name): spec.shape for spec in (*specs, *statistics)}}
        if huge := [f"{name} of shape {sizes}" for name, sizes in shapes.items() if max(sizes, default=0) >= SIZES_END]:
            self.fault(vertex, f"expected dimensions below 2**31. Received: {', '.join(huge)}")
            return None
        earlier = self.first_specs.setdefault(id(vertex.operator), specs)
        if [s.shape for s in earlier] != [s.shape for s in specs]:
            self.fault(
                vertex,
                f"expected inputs for which the shared operator has the same variables at every node: "
                f"{[s.shape for s in earlier]}. Received: {[s.shape for s in specs]}",
            )
        self.specs[vertex.order] = specs
        return shape

    def _gradient(self, vertex: Vertex) -> Shape | None:
        kernel = vertex.kernel
        assert isinstance(kernel, Gradient)
        if len(vertex.inputs) != 1:
            self.fault(
                vertex,
                f"a gradient operator has one input; sum several with ElementWiseOp(type='sum'). "
                f"Received: {len(vertex.inputs)}",
            )
        if vertex.peer is None:
            self.fault(
                vertex, "expected a peer that occurs once in this graph. Call set_peer with the forward operator"
            )
            return None
        peer = self.graph[vertex.peer]
        if peer.order > vertex.order:
            self.fault(
                vertex, f"expected a position after its peer {peer.name!r}. Connect a gradient or the loss to it"
            )
            return None
        if kernel.input >= len(peer.inputs):
            self.fault(vertex, f"its peer has {len(peer.inputs)} inputs. Received: input={kernel.input}")
            return None
        source = peer.inputs[kernel.input]
        expected, incoming = self.shapes[peer.order], vertex.inputs[0]
        received = None if incoming == BATCH else self.shapes[incoming]
        if expected is not None and received is not None and expected != received:
            self.fault(vertex, f"expected a gradient of the shape of {peer.name!r}, {expected}. Received: {received}")
        return self.batch if source == BATCH else self.shapes[source]

    def _whole_graph(self) -> None:
        main = main_losses(self.graph)
        if len(main) > 1:
            names = ", ".join(repr(vertex.name) for vertex in main)
            self.faults.append(f"expected at most one loss that is not auxiliary. Received: {names}")
        if self.phase is Phase.TRAIN:
            self._weights()
            self._training(main)

    def _weights(self) -> None:
        """Report losses with weights in a graph whose gradients the user has connected: weights are applied only where
        gradients are derived."""
        found = losses(self.graph)
        weights = loss_weights(found)
        summed = any(isinstance(vertex.kernel, TotalLoss) for vertex in self.graph)
        if not summed and (len(main_losses(self.graph)) < len(found) or any(weight != 1 for weight in weights)):
            names = ", ".join(f"{v.name!r} of weight {w:g}" for v, w in zip(found, weights, strict=True))
            expected = "expected one loss, of weight 1, in a graph with gradient operators that the user connects"
            self.faults.append(f"{expected}. Received: {names}")

    def _training(self, found: list[Vertex]) -> None:
        if not found:
            self.faults.append("a training dataflow has exactly one loss, as SoftMaxLoss. Received: none")
        optimisers = [v for v in self.graph if isinstance(v.kernel, GradientDescentOptimiser)]
        if len(optimisers) != 1:
            self.faults.append(
                "expected one GradientDescentOptimiser after the gradient operators that the user connects. "
                f"Received: {len(optimisers)}"
            )
        differentiated = {v.peer for v in self.graph if isinstance(v.kernel, Gradient) and v.kernel.input == 0}
        users = consumers(self.graph)
        for order, specs in self.specs.items():
            frozen = all(spec.learning_rate_multiplier == 0 for spec in specs)
            if not frozen and order not in differentiated and users[order]:
                self.fault(
                    self.graph[order],
                    "it has variables but no gradient operator. Connect it to the loss; or, if you connect gradients "
                    "yourself, add one with set_peer",
                )
        for vertex in self.graph:
            source = vertex.inputs[0]
            if isinstance(vertex.kernel, Gradient) and vertex.peer is not None and source != BATCH:
                feeding = self.graph[source]
                loss = None if feeding.peer is None else self.graph[feeding.peer].forward
                if loss is not None and loss.gradient_past is not None:
                    peer = self.graph[vertex.peer]
                    if isinstance(peer.kernel, loss.gradient_past):
                        assert feeding.peer is not None
                        last = self.graph[self.graph[feeding.peer].inputs[0]]
                        if last is not peer and isinstance(last.kernel, loss.gradient_past):
                            self.fault(
                                peer,
                                f"one {type(peer.kernel).__name__} too many before the {type(loss).__name__}: expected "
                                f"the scores as input of {last.name!r}. Received: probabilities; leave one out",
                            )
                            continue
                        self.fault(
                            vertex,
                            f"the gradient of {type(loss).__name__} is already with respect to the input of "
                            f"{peer.name!r}; connect it to the gradient of the preceding operator",
                        )
