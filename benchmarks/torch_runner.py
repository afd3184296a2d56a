"""The same networks in PyTorch's fastest configuration on a CPU: prepared batches, channels-last, foreach SGD, and no
averaging."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np

from benchmarks.networks import CLASSES, LEARNING_RATE, MOMENTUM
from benchmarks.zoo_networks import network_named
from crossbow.data import Dataset
from crossbow.host_memory import peak_memory

BATCHES, BYTES = 32, 64e6
"""Maximum number of batches that are prepared in advance, and used in turn, and their maximum size."""


class TorchRunner:
    """Trains `models` models at once, each in its own thread and with `threads` threads."""

    def __init__(self, network: str, batch: int, models: int, threads: int) -> None:
        import torch

        self.threads = threads
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.trainings = [_Training(network, batch) for _ in range(models)]

    def run(self, begin: float, end: float) -> float:
        if len(self.trainings) == 1:
            return self.trainings[0].run(begin, end)
        import torch

        rates: list[float] = []

        def train(training: _Training) -> None:
            torch.set_num_threads(self.threads)  # applies to the calling thread
            rates.append(training.run(begin, end))

        threads = [threading.Thread(target=train, args=(training,)) for training in self.trainings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(rates) < len(threads):
            raise RuntimeError("a training thread failed: its traceback was printed above")
        return sum(rates)

    def peak_memory(self) -> int | None:
        """Peak resident memory of this process in bytes; None if unknown."""
        return peak_memory()

    def close(self) -> None:
        """There is nothing to release."""


class _Training:
    """One model with its optimiser and its batches."""

    def __init__(self, name: str, batch: int) -> None:
        import torch

        self.batch = batch
        network = network_named(name)
        images = len(network.image_shape) == 3
        order = torch.channels_last if images else torch.contiguous_format
        self.model = network.torch().to(memory_format=order)
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        if parameters != network.parameters:
            raise ValueError(f"expected a network of {network.parameters:,} parameters. Received: {parameters:,}")
        shape = (batch, *network.image_shape)
        count = max(2, min(BATCHES, int(BYTES / (4 * math.prod(shape)))))
        if network.data is None:
            self.images = [torch.rand(shape).contiguous(memory_format=order) for _ in range(count)]
            self.labels = [torch.randint(0, CLASSES, (batch,)) for _ in range(count)]
        else:
            self.images, self.labels = _sequences(network.data(), batch, count)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, foreach=True)

    def run(self, begin: float, end: float) -> float:
        number = 0
        while time.monotonic() < begin:
            self.step(number)
            number += 1
        start, first = time.monotonic(), number
        while (now := time.monotonic()) < end or number == first:
            self.step(number)
            number += 1
        return (number - first) * self.batch / (now - start)

    def step(self, number: int) -> None:
        self.backward(number)
        self.optimiser.step()

    def backward(self, number: int) -> None:
        """Compute the gradient of a batch."""
        from torch.nn.functional import cross_entropy

        index = number % len(self.images)
        outputs, labels = self.model(self.images[index]), self.labels[index]
        if labels.dim() == 2:  # a class for each position; the outputs are (N, classes, positions)
            (logits,) = outputs
            loss: Any = cross_entropy(logits.transpose(1, 2).flatten(0, 1), labels.flatten())
        elif isinstance(outputs, list):  # the outputs of `torch_network`
            weighted = zip(self.model.weights, outputs, strict=True)
            loss = sum(weight * cross_entropy(logits, labels) for weight, logits in weighted)
        else:
            loss = cross_entropy(outputs, labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()


def _sequences(data: Dataset, batch: int, count: int) -> tuple[list[Any], list[Any]]:
    """Batches of sequences of indices, with their labels."""
    import torch

    parts = []
    for array in (data.train.images, data.train.labels):
        tensor = torch.from_numpy(np.asarray(array[: batch * count]).astype(np.int64))
        parts.append(list(tensor.split(batch)))
    return parts[0], parts[1]
