"""Crossbow's contestants: the engine as in normal use, and the same bound task lists in a bare loop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from benchmarks.anatomy import Row, profile
from benchmarks.networks import CLASSES, LEARNING_RATE, MOMENTUM, dataset
from benchmarks.zoo_networks import network_named
from crossbow import SMA, DurationUnit, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.host_memory import aligned_zeros, peak_memory
from crossbow.kernels.interface import State
from crossbow.runtime.engine import Member
from crossbow.runtime.summary import MemorySummary
from crossbow.solver import Pace
from crossbow.synch import Rule, TwoLevel

SHORTEST = 1e-3
"""Minimum duration of a training call in seconds."""


class CrossbowRunner:
    """Trains through the public ExecutionContext: loader, scheduler, tasks, averaging, results."""

    def __init__(
        self,
        network: str,
        batch: int,
        learners: int,
        threads: int,
        kernels: str,
        tau: int = 1,
        rule: Rule | TwoLevel | None = None,
    ) -> None:
        """rule: the synchronisation rule; None is SMA with `tau`."""
        self.batch = batch
        known = network_named(network)
        self.context = ExecutionContext(
            [known.build(), None],
            monitors=(),
            data=dataset(known) if known.data is None else known.data(),
            model=ModelConf(batch_size=batch, rule=rule or SMA(tau=tau)),
            solver=SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
            system=SystemConf(learners_per_device=learners, threads_per_learner=threads, kernels=kernels),
        )
        self._tasks = 0

    def run(self, begin: float, end: float) -> float:
        self._train(begin)
        start = time.monotonic()
        tasks = self._train(end)
        return tasks * self.batch / (time.monotonic() - start)

    def _train(self, end: float) -> int:
        """Train until `end`, for at least one tick. Returns the number of tasks."""
        before = self._tasks
        while self._tasks == before:
            seconds = max(end - time.monotonic(), SHORTEST)
            records = self.context.train_for_duration(seconds, DurationUnit.SECONDS).records
            self._tasks = records[-1].tasks if records else before
        return self._tasks - before

    def memory(self) -> MemorySummary:
        """Memory of a learner in bytes."""
        return self.context.summary().memory

    def peak_memory(self) -> int | None:
        """Peak resident memory of this process in bytes; None if unknown."""
        return peak_memory()

    def copy_rate(self, seconds: float) -> float:
        """Bytes per second, read and written, that one thread copies while all learners' threads do. Each copies
        between vectors, one after the other, of the same total size as those of the run (weights, velocities, and two
        of z)."""
        summary = self.context.summary()
        learners = summary.learners
        vectors = -(-(2 * learners + 2) // learners)
        with ThreadPoolExecutor(learners) as pool:
            rates = pool.map(partial(_copy_rate, summary.elements, vectors), [seconds] * learners)
        return sum(rates) / learners

    def library(self) -> str:
        """The name of the kernel library in use."""
        return self.context.summary().library

    def anatomy(self, seconds: float) -> list[Row]:
        """Profile of a task."""
        engine: Any = self.context.engine
        profile(engine, lambda: self._train(time.monotonic() + seconds / 4))  # the lists of timed calls are made
        return profile(engine, lambda: self._train(time.monotonic() + seconds))

    def close(self) -> None:
        self.context.close()


class BareRunner(CrossbowRunner):
    """The engine's bound task lists, called in a loop on the engine's streams, without loader, scheduler and results.

    The difference in speed from the engine is the cost of Python code, and of the processor time that the loader and
    the scheduler take from the learners' cores.
    """

    def __init__(self, network: str, batch: int, learners: int, threads: int, kernels: str) -> None:
        super().__init__(network, batch, learners, threads, kernels)
        engine: Any = self.context.engine
        loader, generator = engine.loader, np.random.default_rng(0)
        values = 256 if loader.images.dtype == np.uint8 else CLASSES  # pixels, or indices of the first characters
        loader.images[...] = generator.integers(0, values, loader.images.shape)
        loader.labels[...] = generator.integers(0, CLASSES, loader.labels.shape)
        self._error: BaseException | None = None
        self._ticks = 1
        self._seconds = self._run_ticks(1)

    def run(self, begin: float, end: float) -> float:
        for seconds in (begin - time.monotonic(), end - begin):
            # The speed of the last run determines how many ticks fit.
            self._ticks = max(1, round(seconds / self._seconds * self._ticks))
            self._seconds = self._run_ticks(self._ticks)
        return self._ticks * self.context.summary().learners * self.batch / self._seconds

    def _run_ticks(self, ticks: int) -> float:
        """Run every learner's task `ticks` times. Returns the time in seconds."""
        engine: Any = self.context.engine
        first = engine.tick
        engine.position.go_to(first + ticks)
        ended, members = [threading.Event() for _ in engine.members], engine.members
        start = time.monotonic()
        for member, event in zip(members, ended, strict=True):
            member.learner.stream.submit(lambda m=member, e=event: self._loop(m, first, ticks, e))  # type: ignore[misc]
        for event in ended:
            event.wait()
        if self._error is not None:
            raise self._error
        return time.monotonic() - start

    def _loop(self, member: Member, first: int, ticks: int, ended: threading.Event) -> None:
        engine: Any = self.context.engine
        learner: Any = member.learner
        state, slots = learner.state, engine.loader.slots
        learners = self.context.summary().learners
        lists = [learner.tasks["synchronise", parity].calls for parity in (0, 1)]
        learner._numbers.set(engine.coordination.coefficients(Pace(LEARNING_RATE, MOMENTUM)))
        state[State.EXAMPLES] = self.batch
        try:
            for tick in range(first, first + ticks):
                task = tick * learners + learner.number
                state[State.TASK], state[State.TICK], state[State.SLOT] = task, tick, task % slots
                lists[tick % 2].run()
        except BaseException as error:
            engine.parts.flags.raise_abort()
            self._error = self._error or error
        finally:
            ended.set()


def _copy_rate(elements: int, count: int, seconds: float) -> float:
    vectors = aligned_zeros(4 * elements * count).view(np.float32).reshape(count, elements)
    vectors[:] = 1  # allocates its pages
    copies, begin = 0, time.monotonic()
    while (elapsed := time.monotonic() - begin) < seconds:
        np.copyto(vectors[(copies + 1) % count], vectors[copies % count])
        copies += 1
    return 2 * 4 * elements * copies / elapsed
