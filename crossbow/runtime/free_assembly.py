"""The assembly of a run without a barrier: learners that meet in an exchange. On the processor's cores here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from crossbow.kernels.interface import Aborted
from crossbow.runtime.assembly import Assembly, Member
from crossbow.runtime.coefficients import PacedUpdate, paced_update
from crossbow.runtime.cpu_assembly import CpuAssembly, bound
from crossbow.runtime.exchange import BaseExchange, Exchange, PeerExchange, Site
from crossbow.runtime.learner import BoundTask, Learner, TaskKey
from crossbow.runtime.replica import Replica
from crossbow.runtime.tick import Averaging, new_state
from crossbow.solver import Pace
from crossbow.synch import Collective, FreeRule, Grouping, PeerRule
from crossbow.synch.grouping import Groups
from crossbow.types import ConfigurationError, aligned_zeros


class FreeAssembly(Assembly):
    """Learners of all devices around one base model, in the memory that they share."""

    runs_ahead = True
    times_tasks: bool
    """Whether reports say how long the learner's task took."""
    exchange: Exchange

    @abstractmethod
    def _new_site(self) -> Site:
        """Where the learners meet."""

    @abstractmethod
    def _free_member(self, number: int, averaging: Averaging, rule: FreeRule | PeerRule, replica: Replica) -> Member:
        """A learner, which tells the exchange what it has finished."""

    def _build_members(
        self, averaging: Averaging, replicas: Sequence[Replica], collective: Collective | None
    ) -> tuple[list[Member], None]:
        if collective is not None:
            raise ConfigurationError("collective must be None under a rule without a barrier. Received: one")
        rule, base, site = self.rule, self.bases[0], self._new_site()
        if isinstance(rule, FreeRule):
            skip, seed = self.model_conf.skip, self.system.seed
            places = [slice(each.offset, each.offset + each.storage.elements) for each in self.program.model]
            self.exchange = BaseExchange(averaging, rule, base, replicas, site, skip, places, seed)
        else:
            assert isinstance(rule, PeerRule)
            self.exchange = PeerExchange(averaging, rule, base, replicas, site, self.system.seed)
        return [self._free_member(number, averaging, rule, replica) for number, replica in enumerate(replicas)], None

    @property
    def groups_by_speed(self) -> bool:
        """Whether learners are grouped by how fast they are."""
        automatic = isinstance(self.given_rule, Grouping) and self.given_rule.groups is None
        return self.times_tasks and automatic and self.learners > 1

    def regroup(self, speeds: Sequence[float], pace: Pace) -> Groups:
        """Go on with the groups of learners of these speeds, which are returned. Nothing may be running."""
        rule = self.given_rule.settled(speeds)
        assert isinstance(rule, Grouping)
        assert isinstance(rule.groups, tuple)
        assert isinstance(self.exchange, BaseExchange)
        self.exchange.follow(rule, pace)
        self.rule = rule
        return rule.groups


class CpuFreeAssembly(FreeAssembly, CpuAssembly):
    """On the processor's cores."""

    times_tasks = True

    def _new_site(self) -> Site:
        return Site()

    def _free_member(self, number: int, averaging: Averaging, rule: FreeRule | PeerRule, replica: Replica) -> Member:
        base, state, arena = self.bases[0], new_state(), aligned_zeros(self._arena)
        step = paced_update(lambda pace: rule.local_step(self.solver, pace), averaging.multipliers)
        weights, observed = base.buffers[0] if replica.weights is None else replica.weights, replica.statistics
        memory = self._memory(self.loader, arena, state, weights, replica.gradient, observed)
        parts = self.program.bind(memory, in_blocks=averaging.in_blocks)
        steps = [*parts.forward, *parts.backward, *averaging.step(parts.blocks, step, replica.vectors())]
        tasks: dict[TaskKey, BoundTask] = {("train", 0): bound(self.program, memory, steps)}
        if self.check_program is not None and self.check_loader is not None:
            memory = self._memory(self.check_loader, arena, state, base.buffers[0], replica.gradient, base.statistics)
            check = bound(self.check_program, memory, self.check_program.bind(memory).forward)
            tasks.update({("check", parity): check for parity in range(2)})
        learner = FreeLearner(number, self._cpu_streams[number], tasks, LocalStep(step), state, self.flags.abort)
        learner.finished = self.exchange.finished
        return Member(learner, self.device_of[number], replica, arena, state)


class LocalStep:
    """The numbers of a learner's own step."""

    def __init__(self, step: PacedUpdate) -> None:
        self._step, self._changes = step, step.changes
        self._pace: Pace | None = None

    def set(self, pace: Pace) -> None:
        if self._changes and pace != self._pace:
            self._step.set(pace)
            self._pace = pace


class FreeLearner(Learner):
    """A learner that meets the others when it has finished a task."""

    finished: Callable[[int, Pace], None]

    def _end(self, key: TaskKey, pace: Pace) -> None:
        if key[0] == "train":
            if self._abort[0]:
                raise Aborted  # another has failed: z stays as it is
            self.finished(self.number, pace)
