"""Learners without a barrier on CPUs: the learners' threads compute the exchanges immediately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Arriving, Bind, Combination, Leaving
from crossbow.runtime.coefficients import About, Formula, Formulas
from crossbow.runtime.cpu.coefficients import HostNumbers
from crossbow.runtime.cpu.learner import CpuLearner
from crossbow.runtime.cpu.memory import CpuLearnerMemory
from crossbow.runtime.cpu.stream import CpuStream
from crossbow.runtime.cpu.work import BoundTask, bound_task, task_list
from crossbow.runtime.task import PARITIES, Finished, Report, TaskKey
from crossbow.solver import Pace
from crossbow.types import Array


class CpuCombination(Generic[About]):
    """An update, bound to vectors in the host's memory. It runs under the exchange's lock, or on one thread only."""

    def __init__(self, formula: Formula[About], bind: Bind) -> None:
        self._formula, self._numbers = formula, HostNumbers(formula.length)
        self._calls = task_list(bind(formula.over(self._numbers.array)))
        self._seen: tuple[Any, About] | None = None

    def run(self, pace: Pace, about: About) -> None:
        """Run the update on the calling thread."""
        seen = self._formula.key(pace), about
        if seen != self._seen:
            self._numbers.array[:] = self._formula.evaluate(pace, about)
            self._seen = seen
        self._calls.run()


class CpuMeeting:
    """The learners' threads, which run all updates themselves."""

    def combination(self, formula: Formula[About], bind: Bind) -> Combination[About]:
        """Bind an update to vectors."""
        return CpuCombination(formula, bind)

    def exchange(self, learner: int | None, arrive: Callable[[], list[int]]) -> list[int]:
        """Run the work immediately."""
        return arrive()

    def leaving(self, vector: Array, learner: int, *, changes: bool = False) -> Leaving:
        """Return the vector itself or, if it changes, a copy."""
        return Leaving(vector.copy() if changes else vector)

    def arriving(self, vector: Array) -> Arriving:
        """Return the vector itself."""
        return Arriving(vector)

    def settle(self, work: Callable[[], None]) -> None:
        """Run the work immediately: no task is running."""
        work()


def exchanging_learner(
    assembly: Assembly, formulas: Formulas, number: int, stream: CpuStream, report: Report, finished: Finished
) -> CpuLearner:
    """Return a learner whose task ends with its own step."""
    setting, arithmetic = assembly.setting, assembly.arithmetic
    base, replica, memory = assembly.bases[0], assembly.replicas[number], CpuLearnerMemory(assembly)
    numbers = HostNumbers(formulas.length)
    weights = base.buffers[0] if replica.weights is None else replica.weights
    bound = memory.of(assembly.training, weights, replica.gradient, replica.statistics)
    parts = assembly.program.bind(bound, in_blocks=setting.in_blocks)
    update = formulas.over(numbers.array)["step"]
    step = arithmetic.step(parts.blocks, update, replica.vectors(), clipped=setting.clips_own)
    task = bound_task(assembly.training, bound, [*parts.forward, *parts.backward, *step])
    tasks: dict[TaskKey, BoundTask] = {("train", parity): task for parity in PARITIES}
    if assembly.check is not None:
        bound = memory.of(assembly.check, base.buffers[0], replica.gradient, base.statistics)
        check = bound_task(assembly.check, bound, assembly.check.program.bind(bound).forward)
        tasks.update({("check", parity): check for parity in PARITIES})
    state, flags, recorder = memory.state, assembly.flags, setting.recorder
    return CpuLearner(number, stream, tasks, numbers, state, flags, report, finished, recorder=recorder)
