"""The contestants of `benchmarks.input`: Crossbow's loader with its threads, PyTorch's DataLoader with processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.machine import busy_seconds, process_seconds
from benchmarks.torchvision_import import import_torchvision
from crossbow.data.examples import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import TrainingOrder

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels, as in torchvision's reference scripts."""
PRESET, FASTEST = "PIL, float, normalised", "tensors, uint8"


@dataclass(frozen=True)
class Turn:
    """The measurements of one contestant's turn."""

    images: int
    seconds: float
    cpu_seconds: float
    others: float = 0.0
    """CPU time of other programs."""

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def cost(self) -> float:
        """CPU time per image in seconds."""
        return self.cpu_seconds / self.images


class Runner(Protocol):
    """A contestant."""

    def run(self, seconds: float) -> Turn:
        """Prepare batches for at least this time."""

    def close(self) -> None: ...


class CrossbowRunner:
    """A loader with its threads, which live until `close`."""

    def __init__(self, examples: Examples, batch: int, threads: int) -> None:
        self._batch = batch
        self._loader = Loader(examples, TrainingOrder(len(examples), batch, seed=0), 2 * threads, threads=threads)
        self._loader.start()
        self._rest()

    def run(self, seconds: float) -> Turn:
        self._take(2 * self._loader.slots)  # the batches loaded during other contestants' turns, and as many again
        busy, used, began, images = busy_seconds(), time.process_time(), time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            self._take(1)
            images += self._batch
        own = time.process_time() - used
        turn = Turn(images, passed, own, _others(busy, own))
        self._rest()
        return turn

    def close(self) -> None:
        self._loader.stop()

    def _take(self, batches: int) -> None:
        for slot, _, _ in self._loader.batches(batches):
            self._loader.release(slot)

    def _rest(self) -> None:
        """Wait until the threads have filled all slots."""
        used = -1.0
        while (now := time.process_time()) > used + 0.01:
            used = now
            time.sleep(0.1)


class TorchRunner:
    """torchvision's ImageFolder in a DataLoader whose worker processes live until `close`."""

    def __init__(self, directory: Path, batch: int, workers: int, form: str, size: int) -> None:
        import torch
        from torch.utils.data import DataLoader, RandomSampler

        examples = import_torchvision("datasets").ImageFolder(directory, _transforms(form, size))
        endless = RandomSampler(examples, replacement=True, num_samples=2**40)
        self._batch, self._ahead = batch, 2 * workers
        before = set(multiprocessing.active_children())
        loader: Any = DataLoader(examples, batch, sampler=endless, num_workers=workers, prefetch_factor=2)
        self._batches: Iterator[Any] | None = iter(loader)
        self._workers = [child for child in multiprocessing.active_children() if child not in before]
        images, _ = next(self._batches)
        expected = torch.uint8 if form == FASTEST else torch.float32
        if images.dtype != expected or images.shape != (batch, 3, size, size):
            raise ValueError(f"expected {expected} (B, 3, {size}, {size}). Received: {images.dtype} {images.shape}")
        self._rest()

    def run(self, seconds: float) -> Turn:
        assert self._batches is not None
        for _ in range(2 * self._ahead):  # the batches prepared during other contestants' turns, and as many again
            next(self._batches)
        busy, used, began, images = busy_seconds(), self._cpu_seconds(), time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            next(self._batches)
            images += self._batch
        own = self._cpu_seconds() - used
        turn = Turn(images, passed, own, _others(busy, own))
        self._rest()
        return turn

    def close(self) -> None:
        self._batches = None  # ends the workers

    def _cpu_seconds(self) -> float:
        """CPU time of this process and of the workers, in seconds."""
        return time.process_time() + sum(process_seconds(child.pid) for child in self._workers if child.pid)

    def _rest(self) -> None:
        """Wait until the workers have filled their queues."""
        used = -1.0
        while (now := sum(process_seconds(child.pid) for child in self._workers if child.pid)) > used:
            used = now
            time.sleep(0.2)


def _others(busy: float | None, own: float) -> float:
    """CPU time of other programs since the moment when `busy_seconds()` returned `busy`; 0 if it is unknown."""
    now = busy_seconds()
    return 0.0 if busy is None or now is None else max(now - busy - own, 0.0)


def _transforms(form: str, size: int) -> Any:
    """The training transforms of torchvision's reference scripts, or the fastest form of them."""
    import torch

    v2 = import_torchvision("transforms.v2")
    crop = v2.RandomResizedCrop(size, antialias=True)
    if form == FASTEST:
        return v2.Compose([v2.PILToTensor(), crop, v2.RandomHorizontalFlip()])
    to_float = v2.ToDtype(torch.float32, scale=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor(), to_float, v2.Normalize(MEAN, DEVIATION)])
