"""Test accuracy by epoch: ResNet-20 on CIFAR-10 with Crossbow's SMA and with PyTorch's SGD, with the same settings.

    python -m benchmarks.accuracy --data-directory DIR

Network (option A), initial weights, data, augmentation (crops after padding by 4 pixels, mirroring), batch, learning
rate, momentum and weight decay are the same. Crossbow trains k learners with this batch each and averages their models;
PyTorch trains one model. The order of the images and the crops also differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.networks import torch_resnet
from benchmarks.report import markdown
from crossbow import Dataset, ExecutionContext, ModelConf, Monitor, Record, SolverConf, SystemConf
from crossbow.data import cifar10
from crossbow.ops import DataTransform
from crossbow.scripts.values import expanded_path
from models.resnet import resnet

DEPTH = 20
PADDING = 4
MEAN, SCALE = (0.4914, 0.4822, 0.4465), 2.0
"""Mean to subtract from each channel of images in [0, 1], and factor of the difference."""

Images = NDArray[np.uint8]


class _Epochs(Monitor):
    """Records accuracy and seconds of training at the end of every epoch."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []

    def record(self, record: Record) -> None:
        assert record.test is not None
        assert record.test.accuracy is not None
        self.rows.append((record.test.accuracy, record.time))
        print(f"Crossbow: epoch {record.epoch:g}, {record.test.accuracy:.2%}, {record.time:.0f} s", flush=True)


def train_crossbow(
    data: Dataset, options: argparse.Namespace
) -> tuple[list[tuple[float, float]], dict[str, NDArray[Any]]]:
    """(accuracy, seconds) by epoch, and the initial variables."""
    transform = DataTransform(crop_size=32, padding=PADDING, mirror=True, mean=MEAN, scale=SCALE)
    epochs = _Epochs()
    with ExecutionContext(
        [resnet(DEPTH, transform=transform), None],
        data=data,
        model=ModelConf(batch_size=options.batch_size),
        solver=SolverConf(learning_rate=options.learning_rate, momentum=0.9, weight_decay=1e-4),
        system=SystemConf(
            learners_per_device=options.learners, threads_per_learner=options.threads_per_learner, seed=options.seed
        ),
        monitors=[epochs],
    ) as context:
        initial = {name: value.copy() for name, value in context.variables.items()}
        context.train_and_test(options.epochs)
    return epochs.rows, initial


class TorchTraining:
    """One model, all threads, channels-last."""

    def __init__(self, data: Dataset, options: argparse.Namespace, initial: dict[str, NDArray[Any]]) -> None:
        import torch

        self.data, self.options = data, options
        self.generator = np.random.default_rng(options.seed)
        self.model = torch_resnet(DEPTH, projection=False).to(memory_format=torch.channels_last)
        values = [value for name, value in initial.items() if "running" not in name]
        parameters = list(self.model.parameters())
        if [tuple(p.shape) for p in parameters] != [value.shape for value in values]:
            raise ValueError("expected the variables of Crossbow's network in the order of PyTorch's")
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(torch.from_numpy(value))
        self.optimiser = torch.optim.SGD(
            parameters, lr=options.learning_rate, momentum=0.9, weight_decay=1e-4, foreach=True
        )

    def run(self) -> list[tuple[float, float]]:
        """(accuracy, seconds) by epoch."""
        rows, seconds = [], 0.0
        for epoch in range(self.options.epochs):
            began = time.perf_counter()
            self._epoch()
            seconds += time.perf_counter() - began
            rows.append((self._accuracy(), seconds))
            print(f"PyTorch: epoch {epoch + 1}, {rows[-1][0]:.2%}, {seconds:.0f} s", flush=True)
        return rows

    def _epoch(self) -> None:
        import torch
        from torch.nn.functional import cross_entropy

        self.model.train()
        images, labels = self.data.train.images, self.data.train.labels
        order = self.generator.permutation(len(images))
        batch = self.options.batch_size
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            loss = cross_entropy(
                self.model(self._tensor(self._augment(images[chosen]))), torch.from_numpy(labels[chosen]).long()
            )
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()

    def _augment(self, images: Images) -> Images:
        padded = np.pad(images, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        offsets = self.generator.integers(0, 2 * PADDING + 1, (len(images), 2))
        mirrored = self.generator.random(len(images)) < 0.5
        made = [image[:, y : y + 32, x : x + 32] for image, (y, x) in zip(padded, offsets, strict=True)]
        return np.stack([image[..., ::-1] if flip else image for image, flip in zip(made, mirrored, strict=True)])

    def _tensor(self, images: Images) -> Any:
        import torch

        scaled = (images.astype(np.float32) / 255 - np.array(MEAN, np.float32)[:, None, None]) * np.float32(SCALE)
        return torch.from_numpy(scaled).contiguous(memory_format=torch.channels_last)

    def _accuracy(self) -> float:
        import torch

        assert self.data.check is not None
        self.model.eval()
        images, labels = self.data.check.images, self.data.check.labels
        right = 0
        with torch.no_grad():
            for start in range(0, len(images), 500):
                part = slice(start, start + 500)
                right += int((self.model(self._tensor(images[part])).argmax(1).numpy() == labels[part]).sum())
        return right / len(images)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-directory", type=expanded_path, help="where CIFAR-10 lies (default: it is downloaded)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--threads-per-learner", type=int, help="(default: the cores are shared among the learners)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    data = cifar10(options.data_directory)
    ours, initial = train_crossbow(data, options)
    theirs = TorchTraining(data, options, initial).run()
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()))
    rows = [
        [str(epoch), "", f"{a:.2%}", f"{s:,.0f} s", f"{b:.2%}", f"{t:,.0f} s"]
        for epoch, ((a, s), (b, t)) in enumerate(zip(ours, theirs, strict=True), 1)
    ]
    print(markdown(["epoch", "", f"Crossbow, SMA, {options.learners} learners", "after", "PyTorch", "after"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
