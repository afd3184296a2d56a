"""Predictor: a network that predicts, without a loss, a data set or training."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from crossbow.conf import is_integer, shown
from crossbow.data.dataset import checked_images, checked_like
from crossbow.data.examples import Examples, predict_examples
from crossbow.data.pictures import read_pictures
from crossbow.dataflow import SubGraph
from crossbow.dataflow.derive import derive_check, derive_prediction
from crossbow.dataflow.graph import Graph, build
from crossbow.model_file import ModelFile, ModelSettings, read_model
from crossbow.ops import SoftMax
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.device import available_cores
from crossbow.runtime.predicting import NetworkPrediction
from crossbow.runtime.prediction import ImageKind, most_at_once
from crossbow.tracebacks import without_own_frames
from crossbow.types import Array, ConfigurationError, CrossbowError, DataError, GraphError, Shape


@dataclass(frozen=True)
class _Saved:
    """The settings and variables of a model from a file."""

    settings: ModelSettings
    variables: Mapping[tuple[int, str], Array]
    """Variables by the id of the operator and their name in the operator."""
    source: str


class Predictor:
    """Predicts with a trained model from a file, or with a network whose variables have values::

        with Predictor.load("output/lenet") as predictor:
            probabilities = predictor(images)
            print(predictor.top(images[0], 3))

        with Predictor(crossbow.onnx.load("model.onnx")) as predictor:
            probabilities = predictor(images)

    The variables of a network have their initial values; random initial values depend on `SystemConf.seed`. A network
    needs neither a loss (an existing one is omitted) nor variables.

    Several threads may use a predictor at once; threads with images of different shapes or types wait for each other.
    It uses all cores of the first of the system's devices. Use it as a context manager, or `close` it, because it owns
    threads. In a forked process, a predictor that has predicted raises CrossbowError.
    """

    @without_own_frames
    def __init__(self, network: SubGraph, *, batch_size: int = 64, system: SystemConf | None = None) -> None:
        """batch_size: maximum number of images that a thread computes at once."""
        if not isinstance(network, SubGraph):
            raise TypeError(f"Predictor: expected a SubGraph. Received: {shown(network)}")
        if not is_integer(batch_size) or batch_size < 1:
            raise ConfigurationError(f"Predictor: batch_size must be an integer ≥ 1. Received: {shown(batch_size)}")
        if system is not None and not isinstance(system, SystemConf):
            raise ConfigurationError(f"Predictor: system must be a SystemConf. Received: {shown(system)}")
        self._begin(derive_check(build(network.nodes)), int(batch_size), system or SystemConf(), None)

    @classmethod
    @without_own_frames
    def load(
        cls, path: str | os.PathLike[str], device: str = "cpu", *, operators: Iterable[type[Any]] = ()
    ) -> Predictor:
        """A predictor with a model that `ExecutionContext.save` wrote, or that is in the directory of a run: the best
        model or, if there is none, the last one.

        Its output equals that of the context's `predict`, bit for bit, on the same machine and device.

        device: "cpu", a part of its cores, such as "cpu:0/2", or a GPU, such as "cuda:0". operators: the classes of the
        graph that are not Crossbow's, for example [MyOperator]; no code is read from the file.

        Raises DataError if the file is missing, damaged, of a newer version, or without a graph, or if a class is not
        known; and ConfigurationError if the device is not available.
        """
        if not isinstance(device, str):
            raise ConfigurationError(
                f"Predictor: device must be a str, as 'cpu' or 'cuda:0'. Received: {shown(device)}"
            )
        file = read_model(path)
        training, check = file.dataflows(operators)
        graph = derive_check(build((check or training).subgraph.nodes))
        saved = _Saved(file.settings, file.by_operator(training), str(file.path))
        predictor = cls.__new__(cls)
        predictor._begin(graph, most_at_once(file.settings.check_batch_size), _system(file, device), saved)
        predictor._take(predictor._kind(file.settings.image_shape, file.settings.image_dtype))
        predictor._give_back()
        return predictor

    def _begin(self, graph: Graph, batch_size: int, system: SystemConf, saved: _Saved | None) -> None:
        self._graph, self._batch_size, self._system, self._saved = graph, batch_size, system, saved
        self._prediction: NetworkPrediction | None = None
        self._made_for: ImageKind | None = None
        self._turn, self._changed, self._users = threading.Lock(), threading.Condition(), 0
        self._process = 0
        """Id of the process that owns the threads of the prediction."""
        self._closed = False

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a Predictor owns threads, so it can be neither copied nor sent to another process. Create another one "
            "from the same file or network"
        )

    @property
    def settings(self) -> ModelSettings | None:
        """The settings of a model from a file, including its images and classes; None for a network that is not from a
        file."""
        return None if self._saved is None else self._saved.settings

    @without_own_frames
    def predict(self, images: Array | Examples) -> Array:
        """The network's output for images (N, C, H, W) or (N, features), or (N, H, W, C) for a channels-last network.
        They may also be the examples of a data set, such as `data.check`, which are read piece by piece.

        A model from a file takes images of the shape and the type of its training images. Other networks take images of
        any shape that fits: uint8 images are multiplied by 1/255, like a `Dataset`'s; floating-point images are used as
        they are. The network is then compiled on the first call, and again when the shape or type of the images
        changes.

        Raises DataError if the arguments are not images or do not fit, GraphError if the network does not accept them,
        and TaskError if an operator fails; a task is then a part of the images.
        """
        if self._closed:
            raise CrossbowError("the predictor is closed")
        self._check_process()
        return predict_examples(images, self._predict)

    __call__ = predict

    def _predict(self, images: Array) -> Array:
        given = self._checked(images)
        prediction = self._take(self._kind(given.shape[1:], given.dtype))
        try:
            return prediction(given)
        finally:
            self._give_back()

    def read_images(self, *paths: str | os.PathLike[str]) -> Array:
        """The images of files, as `predict` takes them: (N, C, H, W), all in memory.

        A path is an image file, a folder with image files, or an .npy file. Images of another size than the model's
        are resized like the check examples of `image_folder`. Only a model from a file knows its images.

        Raises DataError if a file cannot be read or does not fit, and CrossbowError if the network is not from a file.
        """
        if self.settings is None:
            raise CrossbowError("read_images: expected a model from a file, Predictor.load(path). Received: a network")
        found = read_pictures(paths, self.settings.image_shape, self.settings.image_dtype)
        images = [picture.image for picture in found]
        if not images:
            raise DataError("read_images: expected the paths of images. Received: none")
        return np.stack(images)

    def top(self, image: Array | str | os.PathLike[str], number: int = 5) -> list[tuple[str | int, float]]:
        """The most probable classes of an image, the most probable one first, as pairs of a class and its probability.
        A class is given by its name, or by its number if names are not known.

        image: an array (C, H, W) or (features,), or the path of an image file (`read_images`). number: number of
        classes to return, ≥ 1; at most all are returned.

        Raises ConfigurationError for another number, CrossbowError if the network does not end with SoftMax, DataError
        if a file does not have exactly one image, and the errors of `predict` and `read_images`.
        """
        if not is_integer(number) or number < 1:
            raise ConfigurationError(f"top: number must be an integer ≥ 1. Received: number={shown(number)}")
        images = self.read_images(image) if isinstance(image, str | os.PathLike) else np.asarray(image)[None]
        if len(images) != 1:
            raise DataError(f"{image}: expected one image. Received: {len(images):,}")
        return self.ranked(self.predict(images), number)[0]

    def ranked(self, probabilities: Array, number: int) -> list[list[tuple[str | int, float]]]:
        """The classes, as returned by `top`, of each row of a prediction (N, classes). Raises CrossbowError if the
        network does not end with SoftMax."""
        last = derive_prediction(self._graph)[-1]
        if not isinstance(last.kernel, SoftMax) or probabilities.ndim != 2:
            received = f"{type(last.kernel).__name__}, of shape {probabilities.shape}"
            raise CrossbowError(
                f"top: expected a network that ends with SoftMax, of (N, classes). Received: {received}"
            )
        names = None if self.settings is None else self.settings.class_names
        order = np.argsort(-probabilities.astype(np.float64), axis=1, kind="stable")[:, :number]
        return [
            [(names[at] if names is not None and at < len(names) else int(at), float(row[at])) for at in indices]
            for row, indices in zip(probabilities, order, strict=True)
        ]

    @property
    def gives_probabilities(self) -> bool:
        """Whether the output consists of probabilities, because the network ends with SoftMax."""
        return isinstance(self.prediction_graph[-1].kernel, SoftMax)

    @property
    def prediction_graph(self) -> Graph:
        """The graph that the predictor computes, without loss and metrics."""
        return derive_prediction(self._graph)

    @property
    def operator_variables(self) -> Mapping[tuple[int, str], Array] | None:
        """The variables of a model from a file, by the operator's id and their name in the operator; None for a network
        that is not from a file."""
        return None if self._saved is None else self._saved.variables

    def close(self) -> None:
        """End all threads."""
        if self._is_forked:
            self._closed = True
            return
        with self._changed:
            self._closed = True
            self._release()

    def _checked(self, images: Array) -> Array:
        """The images in the form that the network computes with. Raises DataError."""
        if self._saved is not None:
            settings = self._saved.settings
            given = checked_like(images, settings.image_shape, settings.image_dtype, self._system.dtype)
            return given.astype(settings.image_dtype, copy=False)
        return checked_images("images", images, channels_last=True, sequences=True)

    def _kind(self, shape: Shape, dtype: np.dtype[np.generic]) -> ImageKind:
        scale = 1 / 255 if dtype == np.uint8 else 1.0
        return ImageKind(shape, dtype, scale if self._saved is None else self._saved.settings.scale, self._batch_size)

    def _take(self, kind: ImageKind) -> NetworkPrediction:
        """The compiled prediction for images of this kind, which must be given back after use. A prediction for another
        kind is closed when no thread uses it any more."""
        with self._turn, self._changed:  # a waiting thread keeps its turn, so that no other thread overtakes it
            self._changed.wait_for(lambda: not self._users or kind == self._made_for)
            if self._closed:
                raise CrossbowError("the predictor is closed")
            if self._prediction is None or kind != self._made_for:
                self._release()
                self._prediction = self._compiled(kind)
                self._made_for, self._process = kind, os.getpid()
            self._users += 1
            return self._prediction

    def _give_back(self) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify()

    def _compiled(self, kind: ImageKind) -> NetworkPrediction:
        variables = None if self._saved is None else (self._saved.variables, self._saved.source)
        try:
            return NetworkPrediction(self._graph, kind, self._system, variables)
        except GraphError as error:
            shape = ", ".join(map(str, ("N", *kind.shape)))
            error.add_note(f"the images were given as ({shape}). A single image needs a first axis: image[None]")
            raise

    @property
    def _is_forked(self) -> bool:
        """Whether another process owns the threads of the prediction. This process would wait for them forever."""
        return self._prediction is not None and os.getpid() != self._process

    def _check_process(self) -> None:
        """Raise CrossbowError in a forked process."""
        if self._is_forked:
            raise CrossbowError(
                f"the predictor belongs to process {self._process}; a forked process, as this one ({os.getpid()}), "
                "does not have its threads. Make a predictor in every process"
            )

    def _release(self) -> None:
        if self._prediction is not None and not self._is_forked:
            self._prediction.close()
        self._prediction = None


def _system(file: ModelFile, device: str) -> SystemConf:
    """The system configuration of a model's context, with this device. A precision of GPUs becomes float32 on a CPU."""
    settings = file.settings
    on_gpu = device.startswith("cuda")
    return SystemConf(
        devices=device,
        kernels="auto" if on_gpu else settings.kernels,
        precision=settings.precision if on_gpu or settings.precision == "float64" else "float32",
        winograd=settings.winograd,
        threads_per_learner=None if on_gpu else _threads(settings.threads_per_learner),
    )


def _threads(wanted: int | None) -> int | None:
    """Number of threads of a stream: as many as a learner of the context had, but at most one per core."""
    return wanted if wanted is None else min(wanted, len(available_cores()))
