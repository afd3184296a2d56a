"""Prediction without training: a network and its variables, on separate streams."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from crossbow.dataflow.graph import Graph
from crossbow.runtime.backend import Backend
from crossbow.runtime.building import CLOSE_SECONDS, new_backend
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.device import CpuDevice, parse_devices
from crossbow.runtime.prediction import ImageKind, PredictionModel, StreamPrediction
from crossbow.types import Array, CrossbowError

Saved = tuple[Mapping[tuple[int, str], Array], str]
"""Variables by the operator's id and their name in the operator, and the name of their file."""
Begun = deque[tuple[StreamPrediction, Callable[[], None]]]
"""Parts that are being computed: the stream, and the function that waits for it."""


class NetworkPrediction:
    """The prediction of a graph for images of one kind. Several threads may use it at once.

    A CPU has a stream for every `SystemConf.threads_per_learner` cores. The streams share the variables, and compute
    the parts of the images. A GPU has one stream.
    """

    def __init__(self, graph: Graph, images: ImageKind, system: SystemConf, variables: Saved | None = None) -> None:
        """variables: saved variables; by default, their initial values. Raises GraphError, ConfigurationError or
        DataError, after ending all threads."""
        self._backends: list[Backend] = []
        self._idle: queue.SimpleQueue[StreamPrediction | None] = queue.SimpleQueue()
        """Streams that are not in use; None after `close`."""
        one = replace(system, devices=system.devices[:1], learners_per_device=1)
        try:
            for _ in range(_streams(one)):
                self._backends.append(new_backend(None, one))
                self._backends[-1].open()
            self._model = model = PredictionModel(graph, images, one, self._backends[0], folds=variables is not None)
            if variables is None:
                model.initialise(system.seed)
            else:
                model.load(*variables)
            for backend in self._backends:
                self._idle.put(StreamPrediction(model, backend))
        except BaseException:
            self._close_backends()
            raise

    def __call__(self, images: Array) -> Array:
        """The output for (N, …) images. Raises TaskError, and CrossbowError after `close`."""
        result = self._model.result(len(images))
        own, more = self._free_stream(), []
        try:
            division = own.division(len(images))
            if division is not None:
                more = self._more_streams(division.helpers)
                own.share(division, images, result, more)
                return result
        finally:
            for stream in (own, *more):
                self._idle.put(stream)
        self._hand_out(images, result, self._model.parts(len(images)))
        return result

    def _more_streams(self, most: int) -> list[StreamPrediction]:
        """Currently unused streams, at most this number."""
        found: list[StreamPrediction] = []
        while len(found) < most and not self._idle.empty():
            try:
                stream = self._idle.get(block=False)
            except queue.Empty:  # another thread has taken it
                break
            if stream is None:  # closed
                self._idle.put(None)
                break
            found.append(stream)
        return found

    def _hand_out(self, images: Array, result: Array, parts: Sequence[slice]) -> None:
        """Compute parts that contain Python code, or that use several threads, each on a free stream."""
        begun: Begun = deque()
        try:
            for task, part in enumerate(parts):
                stream = self._free_stream(begun)
                try:
                    if task < len(parts) - 1:
                        begun.append((stream, stream.begin(images[part], result[part], task)))
                        continue
                    stream.compute(images[part], result[part], task)
                except BaseException:
                    self._idle.put(stream)
                    raise
                self._idle.put(stream)
        finally:
            while begun:
                self._finish(begun)

    def _free_stream(self, begun: Begun | None = None) -> StreamPrediction:
        """A free stream. Parts that this call has begun are finished before it waits for other calls, so that calls
        never wait for each other."""
        while True:
            try:
                stream = self._idle.get(block=not begun)
            except queue.Empty:
                assert begun
                self._finish(begun)
                continue
            if stream is None:
                self._idle.put(None)
                raise CrossbowError("the predictor is closed")
            return stream

    def _finish(self, begun: Begun) -> None:
        """Wait for the oldest part that was begun."""
        stream, finish = begun.popleft()
        try:
            finish()
        finally:
            self._idle.put(stream)

    def close(self) -> None:
        """End all threads, each after its current part."""
        for _ in self._backends:
            try:
                self._idle.get(timeout=CLOSE_SECONDS)
            except queue.Empty:
                break
        self._idle.put(None)
        self._close_backends()

    def _close_backends(self) -> None:
        for backend in self._backends:
            backend.close(CLOSE_SECONDS)


def _streams(system: SystemConf) -> int:
    """Number of streams on the system's first device."""
    (device,) = parse_devices(system.devices)
    if not isinstance(device, CpuDevice):
        return 1
    return len(device.cores) // device.threads(1, system.threads_per_learner)
