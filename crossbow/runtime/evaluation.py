"""Use of a base model: tests on the check set, and predictions."""

from __future__ import annotations

from crossbow.clock import now
from crossbow.dataflow.graph import main_losses, other_measures, reported_measure
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend
from crossbow.runtime.flow import Flow
from crossbow.runtime.memory import on_host
from crossbow.runtime.prediction import ImageKind, PredictionModel, StreamPrediction, most_at_once
from crossbow.runtime.results import SetMean, TestResult
from crossbow.runtime.scheduler import Scheduler
from crossbow.runtime.task import Completed
from crossbow.runtime.usage import Usage
from crossbow.timeline.recorder import SCHEDULER
from crossbow.types import Array, CrossbowError, Phase


class Evaluation:
    """Tests and predicts with the learners' streams."""

    def __init__(self, assembly: Assembly, backend: Backend, scheduler: Scheduler, flow: Flow, usage: Usage) -> None:
        self._assembly, self._backend = assembly, backend
        self._scheduler, self._flow, self._usage = scheduler, flow, usage
        self._model: PredictionModel | None = None
        self._prediction: StreamPrediction | None = None
        """Created on first use."""
        self._values_of = -1
        """The value of `Usage.base_changes` when the prediction's variables were set."""

    def test(self) -> TestResult:
        """Test the base model on the check set, whose batches are distributed to all learners. Raises CrossbowError if
        there is no check set."""
        parts = self._assembly
        check, order, examples = parts.check, parts.check_order, parts.setting.data.check
        if check is None or order is None or examples is None:
            raise CrossbowError("there is no check set: give Dataset((x_train, y_train), (x_check, y_check))")
        labels, graph, bad = examples.labels, check.program.graph, parts.setting.bad.get(Phase.CHECK)
        loss, accuracy = SetMean(next(iter(main_losses(graph)), None)), SetMean(reported_measure(graph))
        others = {vertex.name: SetMean(vertex) for vertex in other_measures(graph)}

        def good(of: slice) -> Array:
            """The labels of examples that are not bad."""
            return labels[of][~bad.mask[of]] if bad else labels[of]

        results: list[Completed] = []
        begin, recorder = now(), parts.setting.recorder
        with self._usage.busy("testing", check.loader):
            if parts.outer is not None and parts.outer.copies:
                parts.outer.update_copies()
                self._backend.synchronise()
            check.loader.start(0)
            with self._flow.handing_on("testing", 0, results.append):
                self._scheduler.test(order.tasks, check.loader)
        if bad is not None:
            bad.share(parts.setting.ranks)  # before results count, because bad examples do not
        for result in results:
            start = result.task * order.batch_size
            of_batch = good(slice(start, start + order.batch_size))
            loss.add(result.loss, of_batch)
            accuracy.add(result.accuracy, of_batch)
            for other, metric in zip(others.values(), result.metrics, strict=True):
                other.add(metric, of_batch)
        if recorder.on:
            recorder.event(SCHEDULER, "test", begin)
        counted = good(slice(None))
        value = loss.value(counted)
        return TestResult(
            float("nan") if value is None else value,
            accuracy.value(counted),
            len(counted),
            {name: other.value(counted) or 0.0 for name, other in others.items()},
        )

    def predict(self, images: Array, base: tuple[Array, Array]) -> Array:
        """The output of a base model for (N, …) images. base: z and its statistics."""
        parts, setting = self._assembly, self._assembly.setting
        if self._model is None or self._prediction is None:
            data = setting.data
            most = most_at_once(setting.model.check_batch_size)
            kind = ImageKind(data.train.image_shape, data.train.image_dtype, data.scale, most)
            self._model = PredictionModel(parts.check_graph, kind, setting.system, self._backend)
            self._prediction = StreamPrediction(self._model, self._backend)
        if self._values_of != self._usage.base_changes:
            layouts = parts.program.layouts
            values = [layout.unpack(on_host(vector)) for layout, vector in zip(layouts, base, strict=True)]
            self._model.set({**values[0], **values[1]})
            self._values_of = self._usage.base_changes
        return self._prediction(images)
