"""Predictor: a network that predicts, without a loss, a data set or training."""

from __future__ import annotations

import os
import threading
from types import TracebackType

import numpy as np

from crossbow.conf import is_integer, shown
from crossbow.data.dataset import checked_images
from crossbow.dataflow import SubGraph
from crossbow.dataflow.derive import derive_check
from crossbow.dataflow.graph import build
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.predicting import NetworkPrediction
from crossbow.runtime.prediction import ImageKind
from crossbow.tracebacks import without_own_frames
from crossbow.types import Array, ConfigurationError, CrossbowError, DataError


class Predictor:
    """Predicts with a network whose variables have values, as one that was read by `crossbow.onnx.load`::

        with Predictor(crossbow.onnx.load("model.onnx")) as predictor:
            probabilities = predictor.predict(images)

    Variables have their initial values; random initial values depend on `SystemConf.seed`. The network needs neither
    a loss (an existing one is omitted) nor variables. To train a network, use an `ExecutionContext`, whose own
    `predict` uses the trained model.

    The predictor uses all cores of the first of the system's devices. Use it as a context manager, or `close` it,
    because it owns a thread. In a forked process a predictor that has predicted raises CrossbowError.
    """

    @without_own_frames
    def __init__(self, network: SubGraph, *, batch_size: int = 64, system: SystemConf | None = None) -> None:
        """batch_size: maximum number of images to compute at once."""
        if not isinstance(network, SubGraph):
            raise TypeError(f"Predictor: expected a SubGraph. Received: {shown(network)}")
        if not is_integer(batch_size) or batch_size < 1:
            raise ConfigurationError(f"Predictor: batch_size must be an integer ≥ 1. Received: {shown(batch_size)}")
        if system is not None and not isinstance(system, SystemConf):
            raise ConfigurationError(f"Predictor: system must be a SystemConf. Received: {shown(system)}")
        self._graph = derive_check(build(network.nodes))
        self._batch_size = int(batch_size)
        self._system = system or SystemConf()
        self._prediction: NetworkPrediction | None = None
        self._made_for: ImageKind | None = None
        self._compiling = threading.Lock()
        self._process = 0
        """The process that owns the prediction's thread."""
        self._closed = False

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @without_own_frames
    def predict(self, images: Array) -> Array:
        """The network's output for images (N, C, H, W) or (N, features), or (N, H, W, C) for a channels-last network.

        uint8 images are multiplied by 1/255, like a `Dataset`'s; floating-point images are used as they are. The
        network is compiled on the first call, and again when the shape or type of the images changes or when a call
        has more images than before.

        Raises DataError if they are not images, GraphError if the network does not accept them, and TaskError if an
        operator fails; a task is then one batch of the images.
        """
        if self._closed:
            raise CrossbowError("the predictor is closed")
        self._check_process()
        given = checked_images("images", images, channels_last=True)
        if np.ndim(images) == 3:  # (N, channels, length) would be computed as (N, 1, height, width)
            raise DataError(
                "images: expected (N, C, H, W) or (N, features); add the channel of grayscale images explicitly: "
                f"images[:, None]. Received: shape {np.shape(images)}"
            )
        scale = 1 / 255 if given.dtype == np.uint8 else 1.0
        kind = ImageKind(given.shape[1:], given.dtype, scale, self._batch_size)
        with self._compiling:
            if self._prediction is None or kind != self._made_for:
                self._release()
                self._prediction = NetworkPrediction(self._graph, kind, self._system)
                self._made_for, self._process = kind, os.getpid()
            prediction = self._prediction
        return prediction(given)

    def close(self) -> None:
        """End all threads."""
        self._closed = True
        self._release()

    @property
    def _is_forked(self) -> bool:
        """Whether another process owns the prediction's thread; this one would wait for it forever."""
        return self._prediction is not None and os.getpid() != self._process

    def _check_process(self) -> None:
        """Raise CrossbowError in a forked process."""
        if self._is_forked:
            raise CrossbowError(
                f"the predictor belongs to process {self._process}; a forked process, as this one ({os.getpid()}), "
                "does not have its thread. Make a predictor in every process"
            )

    def _release(self) -> None:
        if self._prediction is not None and not self._is_forked:
            self._prediction.close()
        self._prediction = None
