"""Calls of a task on a GPU, by network: Crossbow's own kernels, and functions of cuDNN and cuBLAS.

    python -m benchmarks.gpu_calls

The command needs no GPU: the engine binds its tasks on the fake GPU of the tests, which records calls. Nothing is
computed. A function of cuDNN or cuBLAS counts as one call, although it may launch several kernels.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.networks import NETWORKS, Network
from crossbow import SMA, Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.console import run_command
from crossbow.runtime.cuda.stream import WaitFor

GOALS = {"lenet-original": 24, "lenet-caffe": 24, "resnet-32": 170, "resnet-50": 300}
"""Maximum number of calls of a task."""
DEFAULT = {"lenet-original": 16, "lenet-caffe": 16, "resnet-32": 64, "resnet-50": 16}
"""The networks that are counted, with their batches."""
HOST_CALLS = ("memcpyAsync", "streamWaitEvent", "eventRecord", "graphLaunch", "eventSynchronize")
"""Functions of the CUDA runtime that take the host's time, besides `launchKernel`."""
MOST_HOST_CALLS = 6
"""The goal for the host's calls of a task of LeNet under SMA."""
HOST_LEARNERS = (1, 2, 4)
"""Numbers of learners for which the host's calls are counted."""
KINDS = {
    "cudnnConvolution": "convolution",
    "cublas": "matrix product",
    "batch_norm": "batch normalisation",
    "series": "several in one",
    "weighted_sum": "sum",
    "activation": "activation",
    "pooling": "pooling",
}
"""Groups of calls, by the beginning of their names."""


@dataclass(frozen=True)
class Calls:
    """The calls of a learner's task under SMA."""

    task: Counter[str]
    """The forward and backward passes and the storing of results, by name."""
    step: int
    """The step of the solver."""
    merge: int
    """The merge into the base model."""

    @property
    def groups(self) -> dict[str, int]:
        """The number of calls of each group of `KINDS`, the largest first."""
        found: Counter[str] = Counter()
        for name, count in self.task.items():
            found[next((kind for start, kind in KINDS.items() if name.startswith(start)), "other")] += count
        return dict(found.most_common())


@contextmanager
def _training(
    network: Network, batch: int, batches: int, precision: str, learners: int
) -> Iterator[tuple[Any, ExecutionContext]]:
    """The fake GPU, and learners under SMA on it. Kernels are neither compiled nor run."""
    from tests.kernels.cuda.fake import fake_cuda

    images = np.zeros((batches * batch, *network.image_shape), np.uint8)
    labels = np.arange(batches * batch, dtype=np.int32) % 10
    with fake_cuda() as cuda:
        cuda.compile = lambda source, options: lambda name: 1  # type: ignore[method-assign]
        with ExecutionContext(
            [network.build(), None],
            monitors=(),
            data=Dataset((images, labels), number_of_classes=10),
            model=ModelConf(batch_size=batch, rule=SMA()),
            solver=SolverConf(learning_rate=0.01, momentum=0.9),
            system=SystemConf(devices="cuda:0", learners_per_device=learners, precision=precision),
        ) as context:
            yield cuda, context


def count_calls(network: Network, batch: int, *, precision: str = "float32") -> Calls:
    """Bind the tasks of two learners on the fake GPU, and count the calls of one. (With a single learner, the merge and
    the step are part of the task.)"""
    with _training(network, batch, 4, precision, 2) as (_, context):
        engine: Any = context.engine
        learner, synchroniser = engine.coordination.learners[0], engine.coordination.synchroniser
        calls = [step.call for step in learner.tasks["synchronise", 0, 0].compute.calls]
        wait = next(number for number, call in enumerate(calls) if isinstance(call, WaitFor))
        merge = synchroniser.devices[0].merge[0]
        return Calls(Counter(map(_name, calls[:wait])), len(calls) - wait - 1, len(merge.calls))


def count_host_calls(network: Network, batch: int, tasks: int = 20, learners: int = 1) -> dict[str, float]:
    """Number of calls of each CUDA function that the host makes for a task, once all graphs are captured: the
    difference between a long and a short run, divided by the number of tasks."""
    tasks *= learners
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        return call

    with _training(network, batch, 4 * tasks, "float32", learners) as (cuda, context):
        for name in HOST_CALLS:
            setattr(cuda.runtime, name, counted(name, getattr(cuda.runtime, name)))
        cuda.driver.launchKernel = counted("launchKernel", lambda *_: None)
        context.train(tasks, TrainingUnit.TASKS)
        runs = []
        for length in (tasks // 2, tasks // 2 + tasks):
            counts.clear()
            context.train(length, TrainingUnit.TASKS)
            runs.append(Counter(counts))
    return {name: (runs[1][name] - runs[0][name]) / tasks for name in runs[1]}


def _name(call: Any) -> str:
    return str(call.function if hasattr(call, "function") and isinstance(call.function, str) else call.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_calls", description="Calls of a task on a GPU.")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(DEFAULT), metavar="NAME")
    parser.add_argument("--batch", type=int, help="instead of each network's own")
    parser.add_argument("--precision", choices=("float32", "float64", "tf32", "bfloat16", "float16"), default="float32")
    options = parser.parse_args(arguments)
    print(
        "| network | batch | calls of a task | goal | step | merge | of the task |\n|---|---|---:|---:|---:|---:|---|"
    )
    for name in options.networks:
        batch = options.batch or DEFAULT.get(name, 16)
        calls = count_calls(NETWORKS[name], batch, precision=options.precision)
        groups = ", ".join(f"{count} {kind}" for kind, count in calls.groups.items())
        counts = f"{calls.task.total()} | {GOALS.get(name, '–')} | {calls.step} | {calls.merge}"
        print(f"| {name} | {batch} | {counts} | {groups} |", flush=True)
    network, batch = NETWORKS["lenet-original"], DEFAULT["lenet-original"]
    print("\n| LeNet, SMA: learners | the host's CUDA calls for a task | of these |\n|---:|---:|---|")
    for learners in HOST_LEARNERS:
        found = count_host_calls(network, batch, learners=learners)
        listed = ", ".join(f"{count:g} {name}" for name, count in found.items() if count)
        print(f"| {learners} | {sum(found.values()):g} | {listed} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.gpu_calls", main))
