"""Prediction: a check dataflow without labels, with separate variables, for any number of images.

Images are computed in parts of `PARTS` images, with one program for each size. The division depends only on the number
of images, so equal calls have equal bits, on every stream.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from crossbow.compile import BatchSource, Memory, ModelLayout, Program, check_memory
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph
from crossbow.dataflow.validate import infer_shapes
from crossbow.kernels.interface import State
from crossbow.kernels.requests import ConvolutionForward
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.backend import Backend, batch_source
from crossbow.runtime.building import compile_prediction
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.flow import task_error
from crossbow.runtime.folding import Folding
from crossbow.runtime.memory import assign, new_state, on_host
from crossbow.runtime.replica import narrow_vectors
from crossbow.types import Array, GraphError, Shape, TaskError

if TYPE_CHECKING:
    from crossbow.kernels.cpu.shared_parts import Helper, Job, JobPlan, Programs

PARTS = (64, 16, 8, 4, 2, 1)
"""Numbers of images for which programs are compiled."""
LARGE = 250_000_000
"""Minimum number of products for which a part of one image is computed by all cores of the device: about 5 ms of
work."""
DIVISIONS = 100
"""Maximum number of divisions that a stream caches."""
LAYOUT_OF = 16
"""Maximum size of the part whose program chooses the layout of the variables, which all programs share."""


def most_at_once(check_batch_size: int | None) -> int:
    """Maximum number of images that a context predicts at once: a smaller test batch saves memory."""
    return PARTS[0] if check_batch_size is None else min(PARTS[0], check_batch_size)


def divide(images: int, most: int = PARTS[0]) -> list[slice]:
    """The parts of a number of images, each of at most `most`. Two or more images make at least two parts, so that two
    streams share the work.

    >>> [part.stop - part.start for part in divide(40)], [part.stop for part in divide(1)]
    ([16, 16, 8], [1])
    """
    parts: list[slice] = []
    start = 0
    for size in PARTS:
        while images - start >= size and size <= most and (size == 1 or 2 * size <= images):
            parts.append(slice(start, start + size))
            start += size
    return parts


class ImageKind(NamedTuple):
    """The type of images that a network accepts."""

    shape: Shape
    """Shape of one image."""
    dtype: np.dtype[np.generic]
    scale: float
    """Factor by which images are multiplied, as 1/255 for pixels."""
    most: int = PARTS[0]
    """Maximum number of images to compute at once."""

    def source(self, images: int) -> tuple[Array, Array, BatchSource]:
        """A slot for images, a slot for their labels, which are not used, and the description of both."""
        slot: Array = np.zeros((1, images, *self.shape), self.dtype)
        labels: Array = np.zeros((1, images), np.int32)
        return slot, labels, batch_source(slot, labels, self.scale)


class PredictionModel:
    """The programs of a network, compiled when they are needed, and its variables. Several streams may use it."""

    def __init__(
        self, graph: Graph, images: ImageKind, system: SystemConf, backend: Backend, *, folds: bool = True
    ) -> None:
        """Variables are 0. folds: whether convolutions include the normalisations after them; then the variables cannot
        be initialised. Raises GraphError or ConfigurationError."""
        self._wide: Backend | None = None
        graph = derive_prediction(graph)
        # The check of every operator's numbers reports the user's operators.
        folds = folds and not system.check_numerics and ConvolutionForward in backend.library.fused_bias
        self._folding = Folding(graph) if folds else None
        self._graph = graph if self._folding is None else self._folding.graph
        self._system, self.images, self.backend = system, images, backend
        self._programs: dict[int, Program] = {}
        self._compiling = threading.Lock()
        self._first = max(size for size in PARTS if size <= min(LAYOUT_OF, images.most))
        self.first = first = self.program(self._first)
        self._check_output(first)
        self._layouts = first.layouts
        weights = sum(layout.elements * layout.dtype.itemsize for layout in self._layouts)
        check_memory({"weights": weights, "intermediate results": first.plan.arena})
        zeros = backend.zeros(0)
        vectors = [layout.new_vectors(1, zeros)[0] for layout in self._layouts]
        self.vectors: dict[str, Array] = dict(zip(("weights", "statistics"), vectors, strict=True))
        if _products(first) >= LARGE:
            self._wide = backend.all_cores()

    def backend_of(self, images: int, own: Backend) -> Backend:
        """The backend that computes a part of this size for a stream with the backend `own`."""
        return own if images > 1 or self._wide is None else self._wide

    def program(self, images: int) -> Program:
        """The program for a part of this size."""
        with self._compiling:
            if images not in self._programs:
                _, _, source = self.images.source(images)
                first, backend = self._programs.get(self._first), self.backend_of(images, self.backend)
                self._programs[images] = compile_prediction(self._graph, source, self._system, backend, first)
            return self._programs[images]

    def parts(self, images: int) -> list[slice]:
        """The parts in which this number of images is computed."""
        return divide(images, self.images.most)

    def result(self, images: int) -> Array:
        """An array for the output of this number of images."""
        tensor = self.first.outputs[len(self.first.graph) - 1].tensor
        return np.empty((images, *tensor.shape[1:]), tensor.dtype)

    def _check_output(self, program: Program) -> None:
        """Raises GraphError unless the output has one row for each image."""
        shape = program.outputs[len(program.graph) - 1].tensor.shape
        if shape[:1] != program.batch[:1]:
            expected = f"expected a prediction of shape (N, …) for N={program.batch[0]} images"
            raise GraphError([f"node {program.graph[-1].name!r}: {expected}. Received: {shape}"])

    def initialise(self, seed: int) -> None:
        """Give the variables their initial values. Raises ConfigurationError."""
        assert self._folding is None
        self._assign(lambda layout, vector: layout.initialise(vector, seed))

    def set(self, values: Mapping[tuple[int, str], Array]) -> None:
        """Set the variables by (operator's id, name). No prediction may be running."""
        if self._folding is not None:
            values = self._folding.values(values, self.first.model.dtype)
        self._assign(lambda layout, vector: layout.pack(values, vector))

    def load(self, values: Mapping[tuple[int, str], Array], source: str) -> None:
        """Set the variables to values from a file. Raises DataError if they do not fit."""
        if self._folding is not None:
            dtype = self.first.model.dtype
            self._folding.check(values, source, (1, *self.images.shape), dtype)
            values = self._folding.values(values, dtype)
        found = {key: values[key] for layout in self._layouts for key in layout.segments if key in values}

        def load(layout: ModelLayout, vector: Array) -> None:
            segments = layout.segments
            layout.load({segments[key].name: value for key, value in found.items() if key in segments}, vector, source)

        self._assign(load)

    def _assign(self, fill: Callable[[ModelLayout, Array], None]) -> None:
        for layout, vector in zip(self._layouts, self.vectors.values(), strict=True):
            values = layout.new_vector()
            fill(layout, values)
            assign(vector, values)
        self.backend.synchronise()


def _products(program: Program) -> int:
    """Number of products of inputs and weights in a part, for one image."""
    batch = program.batch
    shapes = infer_shapes(program.graph, batch)
    weights = {
        operator: math.prod(segment.spec.shape[1:])
        for (operator, name), segment in program.model.segments.items()
        if name == "weights"
    }
    counts = (math.prod(shapes[v.order]) * weights.get(id(v.operator), 0) for v in program.graph)
    return sum(counts) // batch[0]


class Division(NamedTuple):
    """The way in which threads compute a number of images: they take the parts one after the other."""

    plan: JobPlan
    programs: Programs
    """The stream's programs."""
    single: Job | None
    """With a single part, its job, which uses the part's own memory."""
    helpers: int
    """Maximum number of further threads that can help. With one part, one thread can help if some of its calls are
    independent."""


class StreamPrediction:
    """The predictions of a model on the first stream of a backend. Only one thread at a time may use it."""

    def __init__(self, model: PredictionModel, backend: Backend) -> None:
        self._model, self._backend = model, backend
        narrow = narrow_vectors(model.first, backend.library.mixed, backend.zeros(0))
        self._vectors = {**narrow, **model.vectors}
        self._parts: dict[int, _Part] = {}
        self._programs: Programs | None = None
        self._divisions: dict[int, Division | None] = {}
        self._helper: Helper | None = None
        """The stream's thread, for jobs of other threads."""

    def __call__(self, images: Array) -> Array:
        """The output for images (N, …). A task is a part of the images, counted from 0. Raises TaskError."""
        result, division = self._model.result(len(images)), self.division(len(images))
        if division is not None:
            self.share(division, images, result)
            return result
        for task, part in enumerate(self._model.parts(len(images))):
            self.compute(images[part], result[part], task)
        return result

    def division(self, images: int) -> Division | None:
        """The division of this number of images; None if threads cannot share the parts, because the work is not
        native, or each part uses several threads."""
        if images not in self._divisions:
            if len(self._divisions) == DIVISIONS:
                self._divisions.clear()
            self._divisions[images] = self._divide(images)
        return self._divisions[images]

    def share(self, division: Division, images: Array, out: Array, helpers: Sequence[StreamPrediction] = ()) -> None:
        """Compute the output on the calling thread and on the threads of the helpers, which are unused streams of the
        same model. Raises TaskError."""
        others = [stream._as_helper(len(images)) for stream in helpers]
        plan, single = division.plan, division.single
        if single is not None:
            part, job = self._parts[len(images)], single.again()
            part.images[...] = images
        else:
            job = plan.job(np.ascontiguousarray(images, self._model.images.dtype), out)
        failure = job.run(division.programs, others)
        if failure is not None:
            worker = next(stream for stream in (self, *helpers) if stream._programs is failure.worker)
            worker._parts[plan.parts[failure.part].items].fail(failure.part, failure.call, failure.status)
        if single is not None:
            out[...] = part.output()

    def _divide(self, images: int) -> Division | None:
        parts = self._model.parts(images)
        sizes = {part.stop - part.start for part in parts}
        if not parts or any(self._part(size).table is None for size in sizes):
            return None
        from crossbow.kernels.cpu.shared_parts import JobPart, JobPlan, Programs

        programs = self._programs = self._programs or Programs(len(PARTS))
        for size in sizes:
            part = self._part(size)
            assert part.table is not None
            programs.set(PARTS.index(size), part.table, part.slot, part.output())
        listed = [JobPart(part.start, part.stop - part.start, PARTS.index(part.stop - part.start)) for part in parts]
        kind = self._model.images
        plan = JobPlan(listed, math.prod(kind.shape) * kind.dtype.itemsize, self._model.result(1).nbytes)
        if len(parts) > 1:
            return Division(plan, programs, None, len(parts) - 1)
        only = self._part(images)
        assert only.table is not None
        return Division(plan, programs, plan.job(only.slot, only.output()), int(only.table.has_together))

    def _as_helper(self, images: int) -> Helper:
        """The stream's thread, for jobs of this number of images."""
        division = self.division(images)
        assert division is not None
        if self._helper is None:
            from crossbow.kernels.cpu.shared_parts import Helper

            self._helper = Helper(division.programs, self._backend.begin)
        return self._helper

    def compute(self, images: Array, out: Array, task: int) -> None:
        """Compute the output of a part, on the calling thread if possible."""
        part = self._part(len(images))
        part.fill(images)
        call = part.backend.call_here if part.is_native else part.backend.call
        call(functools.partial(part.run, task))
        out[...] = part.output()

    def begin(self, images: Array, out: Array, task: int) -> Callable[[], None]:
        """Begin to compute the output of a part. Returns a function that waits for it, and must be called."""
        part = self._part(len(images))
        part.fill(images)
        wait = part.backend.begin(functools.partial(part.run, task))

        def finish() -> None:
            wait()
            out[...] = part.output()

        return finish

    def _part(self, images: int) -> _Part:
        if images not in self._parts:
            program = self._model.program(images)
            backend = self._model.backend_of(images, self._backend)
            self._parts[images] = _Part(backend, program, self._model.images.source(images), self._vectors)
        return self._parts[images]


class _Part:
    """A program that is bound to its own memory."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        batch: tuple[Array, Array, BatchSource],
        vectors: Mapping[str, Array],
    ) -> None:
        self.backend = backend
        zeros, state = backend.zeros(0), new_state()
        slots, labels, _ = batch
        state[State.EXAMPLES] = slots.shape[1]
        named = {
            name: zeros(max(values.nbytes, 1))[: values.nbytes].view(values.dtype).reshape(values.shape)
            for name, values in (("state", state), ("slots", slots), ("slot_labels", labels))
        }
        self.slot = named["slots"]
        self.images = self.slot[0]
        assign(named["state"], state)
        backend.synchronise()
        arena = zeros(max(program.plan.arena, 1))
        memory = Memory(arena, program.model, dict(vectors), named, program.statistics)
        steps = backend.call(lambda: program.bind(memory).forward)
        self._calls = TaskList([step.call for step in steps], [step.operator for step in steps])
        self.is_native = self._calls.native_calls == len(self._calls.calls)
        """Whether it runs without Python code."""
        self._output = program.output(len(program.graph) - 1, memory)
        contiguous = isinstance(self._output, np.ndarray) and self._output.flags.c_contiguous
        self.table = self._calls.table if contiguous and backend.threads[0] == 1 else None
        """The table of calls, if several threads can share such parts; otherwise None."""

    def fill(self, images: Array) -> None:
        """Copy the images to the memory that kernels read."""
        assign(self.slot, images[None])
        self.backend.synchronise()

    def run(self, task: int) -> None:
        """Compute the output. Called on the stream. Raises TaskError."""
        try:
            self._calls.run()
        except Exception as error:
            raise self._error(error, task) from error

    def fail(self, task: int, call: int, status: int) -> NoReturn:
        """Raise the TaskError for a call in the table that failed on another thread."""
        try:
            self._calls.fail(call, status)
        except Exception as error:
            raise self._error(error, task) from error

    def _error(self, error: Exception, task: int) -> TaskError:
        return task_error(error, task, self._calls.failed or "task", "while predicting")

    def output(self) -> Array:
        return on_host(self._output)
