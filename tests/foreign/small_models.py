"""Small foreign models in NumPy, and the network that they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataflow, Dataset, Sequential
from crossbow.data.order import TrainingOrder
from crossbow.foreign import IterationRecorder
from crossbow.ops import InnerProduct
from models.layers import classifier

FEATURES, CLASSES, BATCH, SEED = 6, 3, 4, 5
Floats = NDArray[np.float64]


def small_set() -> Dataset:
    """24 training and 16 check examples."""
    generator = np.random.default_rng(1)
    x = generator.standard_normal((40, FEATURES))
    y = np.argmax(x @ generator.standard_normal((FEATURES, CLASSES)), axis=1)
    return Dataset((x[:24], y[:24]), (x[24:], y[24:]), number_of_classes=CLASSES)


def native_network() -> Dataflow:
    """Softmax regression."""
    network = Sequential(("ip", InnerProduct(CLASSES)))
    return classifier(network.head, network.tail)


class SmallData:
    """The batches of the native network's tasks, of which each learner takes its own."""

    def __init__(self, rank: int, size: int) -> None:
        data = small_set()
        assert data.check is not None
        self.train = np.asarray(data.train.images), np.asarray(data.train.labels)  # type: ignore[attr-defined]
        self.check = np.asarray(data.check.images), np.asarray(data.check.labels)  # type: ignore[attr-defined]
        self.rank, self.size = rank, size
        self.n_batch_train = 24 // BATCH // size
        self.n_batch_val = 16 // BATCH // size
        self.order = TrainingOrder(24, BATCH, SEED)
        self.position = self.tested = 0

    def next_train(self) -> tuple[Any, Any]:
        chosen = np.empty(BATCH, np.intp)
        self.order.indices(self.position * self.size + self.rank, chosen)
        self.position += 1
        return self.train[0][chosen], self.train[1][chosen]

    def next_val(self) -> tuple[Any, Any]:
        first = (self.tested * self.size + self.rank) * BATCH
        self.tested += 1
        return self.check[0][first : first + BATCH], self.check[1][first : first + BATCH]


class Regression:
    """Softmax regression by SGD with momentum. It follows the contract of `ModelClass`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        generator = np.random.default_rng(3 + config["rank"])
        self.params = [0.1 * generator.standard_normal((CLASSES, FEATURES)), np.zeros(CLASSES)]
        self.vels = [np.zeros_like(each) for each in self.params]
        self.data = SmallData(config["rank"], config["size"])
        self.epoch, self.n_epochs, self.n_subb = 0, 2, 1
        self.rate, self.momentum = config.get("rate", 0.2), config.get("momentum", 0.9)
        self.events: list[Any] = []

    def compile_iter_fns(self, sync_type: str) -> None:
        self.events.append(sync_type)

    def train_iter(self, count: int, recorder: IterationRecorder) -> None:
        self.events.append(count)
        for parameter, velocity, gradient in zip(self.params, self.vels, self._gradients(recorder), strict=True):
            velocity[...] = self.momentum * velocity - self.rate * gradient
            parameter += velocity

    def val_iter(self, count: int, recorder: IterationRecorder) -> str | None:
        cost, error, _, _ = self._forward(*self.data.next_val())
        recorder.val_error(count, cost, error, 0.0)
        return "stop" if self.config.get("stops") else None

    def reset_iter(self, mode: str) -> None:
        self.events.append(mode)
        if mode == "val":
            self.data.tested = 0

    def adjust_hyperp(self, epoch: int) -> None:
        self.events.append(f"adjust {epoch}")

    def cleanup(self) -> None:
        self.events.append("cleanup")

    def _forward(self, x: Floats, y: Any) -> tuple[float, float, Floats, Floats]:
        scores = x @ self.params[0].T + self.params[1]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        slope = p.copy()
        slope[rows, y] -= 1
        cost = float(-np.log(p[rows, y]).mean())
        return cost, float((p.argmax(axis=1) != y).mean()), slope / len(y), x

    def _gradients(self, recorder: IterationRecorder) -> list[Floats]:
        cost, error, slope, x = self._forward(*self.data.next_train())
        recorder.train_error(0, cost, error)
        return [slope.T @ x, slope.sum(axis=0)]


class GradientRegression(Regression):
    """The same, which also computes gradients alone."""

    def gradients(self, count: int, recorder: IterationRecorder) -> list[Floats]:
        return self._gradients(recorder)
