"""Speed of prediction: `Predictor` compared with onnxruntime and PyTorch, on two threads.

    python -m benchmarks.inference

The networks are LeNet, ResNet-32 and ResNet-50, for float32 images of MNIST, CIFAR and ImageNet. Crossbow predicts with
a saved model, onnxruntime with the same model as `crossbow.onnx.save` writes it, PyTorch with the same network, in
channels-last order and in inference mode. Each is called repeatedly with one batch, in a separate process. The
processes take turns, and ratios are computed round by round. onnxruntime and PyTorch are omitted if they are not
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import crossbow.onnx
from benchmarks.contest import Contest, Contestant
from benchmarks.machine import describe_machine
from benchmarks.networks import NETWORKS, torch_resnet
from benchmarks.output import write_json
from benchmarks.report import markdown, paired, spread
from benchmarks.torchvision_import import import_torchvision
from crossbow import Dataflow, Dataset, ExecutionContext, ModelConf, Predictor, SystemConf
from crossbow.console import run_command
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.types import Shape
from models.lenet import lenet
from models.resnet import resnet

THREADS = 2
CROSSBOW, ONNXRUNTIME, PYTORCH = "Crossbow", "onnxruntime", "PyTorch"
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
TARGET, TARGET_OF_ONE, FROM = 1.0, 0.7, 8
"""Targets of the ratio to the faster of the other two: from a batch of `FROM` images on, and for one image."""


@dataclass(frozen=True)
class Network:
    """A measured network."""

    image_shape: Shape
    build: Callable[[], Dataflow]
    torch: Callable[[], Any]
    """The same network as a PyTorch module."""


def _torch_resnet_50() -> Any:
    return import_torchvision("models").resnet50(weights=None)


MEASURED = {
    "lenet": Network((1, 28, 28), lenet, NETWORKS["lenet-original"].torch),
    "resnet-32": Network((3, 32, 32), lambda: resnet(32), lambda: torch_resnet(32, projection=False)),
    "resnet-50": Network((3, 224, 224), lambda: resnet(50, bottleneck_stride="3x3"), _torch_resnet_50),
}


class Runner:
    """Calls a function with one batch, again and again."""

    def __init__(self, image_shape: Shape) -> None:
        self.image_shape = image_shape
        self.images = np.zeros((1, *image_shape), np.float32)

    def use(self, batch: int) -> None:
        """Predict batches of this size from now on."""
        self.images = np.random.default_rng(batch).random((batch, *self.image_shape), np.float32)

    def predict(self) -> None:
        """Predict the batch."""
        raise NotImplementedError

    def run(self, begin: float, end: float) -> float:
        while time.monotonic() < begin:
            self.predict()
        start, calls = time.monotonic(), 0
        while (now := time.monotonic()) < end or not calls:
            self.predict()
            calls += 1
        return calls * len(self.images) / (now - start) if calls > 1 else len(self.images) / (time.monotonic() - start)

    def close(self) -> None:
        """There is nothing to release."""


class CrossbowRunner(Runner):
    """A `Predictor`."""

    def __init__(self, image_shape: Shape, model: str) -> None:
        super().__init__(image_shape)
        self.predictor = Predictor.load(model)

    def predict(self) -> None:
        self.predictor(self.images)

    def close(self) -> None:
        self.predictor.close()


class OnnxRunner(Runner):
    """A session of onnxruntime on the CPU."""

    def __init__(self, image_shape: Shape, model: str) -> None:
        super().__init__(image_shape)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def predict(self) -> None:
        self.session.run(None, {self.name: self.images})


class TorchRunner(Runner):
    """A module in inference mode."""

    def __init__(self, image_shape: Shape, network: str) -> None:
        super().__init__(image_shape)
        import torch

        torch.set_num_threads(THREADS)
        self.module = MEASURED[network].torch().eval().to(memory_format=torch.channels_last)

    def predict(self) -> None:
        import torch

        with torch.inference_mode():
            images = torch.from_numpy(self.images).contiguous(memory_format=torch.channels_last)
            torch.softmax(self.module(images), 1).numpy()


def save_models(name: str, directory: Path) -> tuple[Path, Path]:
    """The files of a network with its initial weights: for Crossbow and for onnxruntime."""
    network = MEASURED[name]
    ours, theirs = directory / f"{name}.safetensors", directory / f"{name}.onnx"
    images, labels = np.zeros((1, *network.image_shape), np.float32), np.zeros(1, np.int32)
    with ExecutionContext(
        [network.build(), None],
        monitors=(),
        data=Dataset((images, labels), number_of_classes=1000 if name == "resnet-50" else 10),
        model=ModelConf(batch_size=1),
        system=SystemConf(learners_per_device=1, threads_per_learner=1),
    ) as context:
        context.save(ours)
        crossbow.onnx.save(context, theirs)
    return ours, theirs


def contestants(name: str, directory: Path) -> list[Contestant]:
    """The contestants whose packages are installed."""
    shape = MEASURED[name].image_shape
    ours, theirs = map(str, save_models(name, directory))
    found = [Contestant(CROSSBOW, CrossbowRunner, {"image_shape": shape, "model": ours})]
    if importlib.util.find_spec("onnxruntime") is not None:
        found.append(Contestant(ONNXRUNTIME, OnnxRunner, {"image_shape": shape, "model": theirs}))
    if importlib.util.find_spec("torch") is not None:
        found.append(Contestant(PYTORCH, TorchRunner, {"image_shape": shape, "network": name}))
    return found


def target(batch: int) -> float | None:
    """The target of the ratio at this batch size, if there is one."""
    return TARGET if batch >= FROM else TARGET_OF_ONE if batch == 1 else None


def row(name: str, batch: int, rates: dict[str, list[float]]) -> list[str]:
    """A row of the table: medians, and the ratio to the faster of the others."""
    others = [other for other in (ONNXRUNTIME, PYTORCH) if other in rates]
    cells = [name, str(batch), *(f"{statistics.median(rates[each]):,.0f}" for each in (CROSSBOW, *others))]
    if others:
        best = max(others, key=lambda other: statistics.median(rates[other]))
        ratio, wanted = spread(paired(rates[CROSSBOW], rates[best])), target(batch)
        verdict = "" if wanted is None else " met" if ratio.median >= wanted else f" MISSED {wanted}"
        cells.append(f"{ratio.text('.2f')}{verdict}")
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=tuple(MEASURED), default=list(MEASURED))
    parser.add_argument("--batches", nargs="+", type=integer(1), default=list(BATCHES))
    parser.add_argument("--rounds", type=integer(1), default=5, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=number(0, above=True), default=1.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--patience", type=number(0), default=0.0, help="seconds to wait for a quiet machine in all")
    parser.add_argument("--json", type=expanded_path, metavar="FILE", help="write the measurements to FILE")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    print("\n".join(f"{name:10} {text}" for name, text in machine.items()), flush=True)
    rows: list[list[str]] = []
    measured = []
    others: list[str] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as directory:
            found = contestants(name, Path(directory))
            with Contest(found, options.patience) as contest:
                others = [each.name for each in found[1:]]
                for batch in options.batches:
                    for team in contest.teams.values():
                        team.ask("use", batch)
                    rates = contest.rounds(options.rounds, options.seconds / 2, options.seconds)
                    measured.append({"network": name, "batch": batch, "rates": rates, "others": contest.others})
                    rows.append(row(name, batch, rates))
                    print(" ".join(rows[-1]), flush=True)
    ratio = ["ratio to the faster"] if others else []
    print(markdown(["network", "batch", CROSSBOW, *others, *ratio], rows))
    if options.json is not None:
        write_json(options.json, {"machine": machine, "measured": measured})
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.inference", main))
