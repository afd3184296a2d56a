"""The assembly of a run without a barrier on a GPU: learners on its streams, which meet in an exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossbow.kernels.cuda.launch import on
from crossbow.runtime.assembly import CLOSE_SECONDS, Member
from crossbow.runtime.coefficients import paced_update
from crossbow.runtime.cuda.assembly import PARITIES, CudaAssembly
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.exchange import CudaSite
from crossbow.runtime.cuda.learner import CudaLearner, Task, TaskKey
from crossbow.runtime.free_assembly import FreeAssembly, LocalStep
from crossbow.runtime.replica import Replica
from crossbow.runtime.tick import Averaging
from crossbow.solver import Pace
from crossbow.synch import Collective, FreeRule, PeerRule


class CudaFreeAssembly(FreeAssembly, CudaAssembly):
    """Learners of one GPU. Work is submitted from the thread that trains, and from those of the learners."""

    times_tasks = False  # learners of one GPU are equally fast
    _learners: Sequence[CudaLearner] = ()

    def _new_site(self) -> CudaSite:
        in_turn = not isinstance(self.rule, FreeRule) or self.rule.locks
        return CudaSite(self._compute, self.flags.abort, self._submitting, in_turn=in_turn)

    def _build_members(
        self, averaging: Averaging, replicas: Sequence[Replica], collective: Collective | None
    ) -> tuple[list[Member], None]:
        with on(self._compute[0].place):
            members, _ = super()._build_members(averaging, replicas, collective)
        self.streams = self._learners = [member.learner for member in members]  # type: ignore[misc]
        return members, None

    def _free_member(self, number: int, averaging: Averaging, rule: FreeRule | PeerRule, replica: Replica) -> Member:
        stream, base = self._compute[number], self.bases[0]
        arena = self.zeros(0)(max(self._arena, 1))
        with on(stream.place):
            narrow = self.narrow_vectors(0)
            step = paced_update(lambda pace: rule.local_step(self.solver, pace), averaging.multipliers)
            # A task begins when the one before it is done: its numbers have been copied.
            numbers = DeviceNumbers(LocalStep(step), (step,), stages=1)
            learner = FreeCudaLearner(number, stream, self._copies[number], numbers, self.flags.abort, self._submitting)
            weights = base.buffers[0] if replica.weights is None else replica.weights
            vectors = {**narrow, **self._vectors(weights, replica.gradient, *replica.statistics)}
            training = [self._input(self.loader, learner.results) for _ in PARITIES]
            tasks: dict[TaskKey, Task] = {
                ("train", 0, buffer): self._task(self.program, arena, vectors, place)
                for buffer, place in enumerate(training)
            }
            learner.tasks = tasks | self._check_tasks(learner, base, replica, arena, narrow)
            learner.steps = {("train", 0): self._work(averaging.step((), numbers.updates[0], replica.vectors()))}
            learner.finished = self.exchange.finished
        return Member(learner, 0, replica, arena, training[0].arrays["state"])

    def close(self) -> None:
        """Give back streams and graphs."""
        for learner in self._learners:  # whose threads submit work, for which closing keeps them from the lock
            learner.end_watching(CLOSE_SECONDS)
        super().close()


class FreeCudaLearner(CudaLearner):
    """A learner that meets the others when it has finished a task."""

    finished: Callable[[int, Pace], None]

    def _end(self, purpose: str, pace: Pace) -> None:
        if purpose == "train":
            self.finished(self.number, pace)
