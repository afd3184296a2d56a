"""A small data set of images, stored in several ways, and what training on one results in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from crossbow import Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.data.encoding import Encoding, encode
from crossbow.data.examples import Examples, Selection
from crossbow.types import Array
from models.logistic_regression import logistic_regression

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 1, 6, 6)).astype(np.uint8)
LABELS = (PIXELS.mean(axis=(1, 2, 3)) > 127).astype(np.int64)
FLOATS = PIXELS.astype(np.float32) / 256


class Pairs:
    """A sequence that counts what is read, and in which threads."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels
        self.read: list[int] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.read.append(index)
        self.threads.add(threading.current_thread().name)
        return self.images[index], self.labels[index]


def files(directory: Path, batch_size: int = 5) -> tuple[Path, Path]:
    data = Dataset((PIXELS, LABELS), (PIXELS[:9], LABELS[:9]))
    train, check = encode(data, Encoding("small"), directory, batch_size, partition_size=8192)
    return train, check


def train(data: Dataset) -> tuple[dict[str, bytes], Any, np.ndarray]:
    """Weights, test result and predictions."""
    with ExecutionContext(
        [logistic_regression(number_of_outputs=2), None],
        data=data,
        model=ModelConf(batch_size=4),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(devices="cpu", learners_per_device=2, threads_per_learner=1),
    ) as context:
        context.train(3)
        weights = {name: values.tobytes() for name, values in context.variables.items()}
        return weights, context.test(), context.predict(FLOATS if data.scale == 1 else PIXELS)


def assert_same(first: Dataset, second: Dataset) -> None:
    (weights, result, prediction), (others, other, another) = train(first), train(second)
    assert weights == others
    assert (result.loss, result.accuracy, result.examples) == (other.loss, other.accuracy, other.examples)
    np.testing.assert_array_equal(prediction, another)


GOOD = (np.zeros((1, 6, 6), np.uint8), 0)


def read(examples: Examples) -> Array:
    """All images (N, …), in epoch 0 with seed 0."""
    images = np.zeros((len(examples), *examples.image_shape), examples.image_dtype)
    examples.write_images(Selection.of(np.arange(len(examples))), images)
    return images
