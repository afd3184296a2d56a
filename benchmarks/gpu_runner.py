"""Crossbow's contestants on a GPU: the engine as in normal use, with optional timing of the host's calls."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from typing import Any

from benchmarks import gpu_convolutions
from benchmarks.crossbow_runner import CrossbowRunner
from benchmarks.gpu_host import HostTime
from benchmarks.gpu_networks import GPU_NETWORKS
from benchmarks.networks import LEARNING_RATE, MOMENTUM, dataset
from crossbow import SMA, Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.types import ConfigurationError

WARM_TICKS = 4
"""Number of ticks after which everything has been called and captured once, for both parities of a tick."""


class CrossbowGpuRunner(CrossbowRunner):
    """Trains with SMA through the public ExecutionContext: loader, scheduler, tasks, averaging, results."""

    def __init__(
        self, network: str, batch: int, learners: int, graphs: bool, precision: str = "float32", device: int = 0
    ) -> None:
        self.batch, self.learners = batch, learners
        self.context = ExecutionContext(
            [GPU_NETWORKS[network].network.build(), None],
            monitors=(),
            data=_dataset(network),
            model=ModelConf(batch_size=batch, rule=SMA()),
            solver=SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
            system=SystemConf(
                devices=f"cuda:{device}", learners_per_device=learners, graphs=graphs, precision=precision
            ),
        )
        self._tasks = 0

    def warm_up(self) -> float:
        """Run until everything is captured. Returns the duration of a tick in seconds."""
        for _ in range(2):
            began = time.monotonic()
            self._tasks = self.context.train(WARM_TICKS * self.learners, TrainingUnit.TASKS).records[-1].tasks
        return (time.monotonic() - began) / WARM_TICKS

    def observe(self, end: float) -> HostTime:
        """Train until `end`, and time the host's calls."""
        with LaunchClock(self.context.engine) as clock:
            self._train(end)
        return clock.result()

    @staticmethod
    def about(device: int) -> dict[str, str]:
        """GPU and versions. Raises an exception whose message says what is missing."""
        runtime = api().runtime
        count = runtime.getDeviceCount()
        if device >= count:
            raise ConfigurationError(f"expected a GPU that is there, 0 to {count - 1}. Received: --device {device}")
        with on(Stream(device, 0)):
            name = runtime.getDeviceProperties(device)["name"].decode()
            _, total = runtime.memGetInfo()
            return {
                "GPU": f"{name}, {total / 2**30:.0f} GiB",
                "bus": runtime.deviceGetPCIBusId(device),
                "libraries": f"CUDA {_version(runtime.runtimeGetVersion())} (the driver: up to "
                f"{_version(runtime.driverGetVersion())}), cuDNN {api().cudnn.cudnnGetVersion()}",
            }

    @staticmethod
    def convolutions() -> list[dict[str, Any]]:
        """Algorithms that were selected in this process."""
        return gpu_convolutions.convolutions()

    @staticmethod
    def free_memory(device: int) -> int | None:
        """Free bytes of the GPU after cached memory is released."""
        cupy = sys.modules.get("cupy")
        with on(Stream(device, 0)):
            if cupy is not None:
                cupy.get_default_pinned_memory_pool().free_all_blocks()
            return api().free_memory()


def _version(number: int) -> str:
    """A CUDA version as text.

    >>> _version(13020)
    '13.2'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def _dataset(network: str) -> Dataset:
    """The same arrays for all runners of a network."""
    return dataset(GPU_NETWORKS[network].network)


class LaunchClock:
    """A context manager that measures the host's time in the calls that submit tasks.

    The clock itself takes about half a microsecond per call, which is not subtracted.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._submits: list[list[int]] = []
        self._steps: list[list[int]] = []
        self._launches: list[list[int]] = []
        self._ticks: list[int] = []
        self._undo: list[tuple[Any, str]] = []

    def __enter__(self) -> LaunchClock:
        for member in self._engine.members:
            learner: Any = member.learner
            submits, steps, launches = [], [], []  # type: ignore[var-annotated]
            self._install(learner, "submit", submits)
            self._install(learner, "go_on", steps)
            for task in learner.tasks.values():
                self._install(task.compute, "run", launches)
            for work in learner.steps.values():
                self._install(work, "run", launches)
            self._submits.append(submits)
            self._steps.append(steps)
            self._launches.append(launches)
        self._install(self._engine.coordination.synchroniser, "submit", self._ticks)
        return self

    def __exit__(self, *_: object) -> None:
        for target, name in self._undo:
            delattr(target, name)

    def result(self) -> HostTime:
        """The host's time of the tasks since the clock was entered. Every task synchronises, and is submitted in two
        parts: one before the end of its tick, and one with it. Each part has a launch, or only the second one has. A
        single learner has no second part."""
        tasks, launches = [], []
        for submits, steps, runs in zip(self._submits, self._steps, self._launches, strict=True):
            tasks += [a + b for a, b in zip(submits, steps, strict=True)] if steps else submits
            launches += (
                [a + b for a, b in zip(runs[::2], runs[1::2], strict=True)] if len(runs) > len(submits) else runs
            )
        in_ticks = sum(map(sum, self._steps))
        return HostTime(
            statistics.median(tasks) / 1e3,
            statistics.median(launches) / 1e3,
            (sum(self._ticks) - in_ticks) / len(self._ticks) / 1e3,
        )

    def _install(self, target: Any, name: str, into: list[int]) -> None:
        """Put a clock around a method of an object."""
        call, clock = getattr(target, name), time.perf_counter_ns

        def timed(*arguments: Any, **options: Any) -> Any:
            began = clock()
            try:
                return call(*arguments, **options)
            finally:
                into.append(clock() - began)

        setattr(target, name, timed)
        self._undo.append((target, name))
