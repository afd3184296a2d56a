"""Settings of a run: the configurations, and the values that follow from them for its learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from crossbow.cluster.placement import Placement
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.shared_memory import SharedMemory
from crossbow.compile import share_of
from crossbow.data import Dataset
from crossbow.data.bad_examples import BadExamples
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.solver import SolverConf
from crossbow.synch import BarrierRule, FreeRule, Rule, TwoLevel
from crossbow.timeline.recorder import Recorder
from crossbow.types import Phase

RANKS_IN_A_CHAIN = 16
"""Maximum number of ranks that add up in a chain by default."""
CHECK_BATCH_SIZE = 64
"""Default number of examples in a test batch, at which kernels are near their highest speed."""


@dataclass(frozen=True)
class RunSetting:
    """The configurations of a run, resolved for its learners."""

    data: Dataset
    model: ModelConf
    solver: SolverConf
    system: SystemConf
    given_rule: Rule | TwoLevel
    rule: Rule
    """The given rule, resolved for these learners; with two levels, the rule within a host."""
    learners: int
    """Number of learners on all devices of all ranks."""
    devices: int
    """Number of devices of this rank."""
    clock: WorkClock
    bad: Mapping[Phase, BadExamples]
    """The bad examples of each phase; empty if they are errors."""
    ranks: Ranks
    placement: Placement
    """The place of this rank's learners among all learners."""
    between: BarrierRule | None = None
    """With two levels, the rule between the hosts, which are the ranks."""
    recorder: Recorder = field(default_factory=Recorder)
    """Records the run's timeline, if requested."""
    shared: SharedMemory | None = None
    """Memory that all ranks share, if they do: their learners combine vectors in it, like those of one process."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.system.dtype

    @property
    def barrier(self) -> bool:
        return isinstance(self.rule, BarrierRule)

    @property
    def barrier_rule(self) -> BarrierRule:
        """The rule, if it has a barrier."""
        assert isinstance(self.rule, BarrierRule)
        return self.rule

    @property
    def tick_ranks(self) -> Ranks:
        """The ranks whose learners a tick combines: all or, with two levels, this one alone."""
        return self.ranks if self.between is None else self.ranks.alone()

    @property
    def tick_learners(self) -> int:
        """Number of learners that a tick combines."""
        return self.learners if self.between is None else self.placement.own

    @property
    def servers(self) -> int:
        """Number of servers: the first ranks, which have z in parts; 0 if no rank serves others."""
        return min(self.system.servers, self.ranks.size) if isinstance(self.rule, FreeRule) else 0

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return self.ranks.rank < self.servers

    def parts(self, elements: int) -> list[slice]:
        """Each server's range of z, which has `elements` elements."""
        return [share_of(elements, server, self.servers) for server in range(self.servers)]

    @property
    def mirrored(self) -> int:
        """Number of other ranks' learners whose vectors this rank stores, because it is a server."""
        return self.learners - self.placement.own if self.serves else 0

    @property
    def base_models(self) -> int:
        """Number of base models: one per device; without a barrier, one for all devices, which share their memory."""
        return self.devices if self.barrier else 1

    @property
    def adds_parts(self) -> bool:
        """Whether a synchroniser computes the mean of all learners, as a sum over devices, or over ranks that do not
        share memory."""
        return self.barrier and (self.base_models > 1 or (self.tick_ranks.several and self.shared is None))

    @property
    def sums_through_host(self) -> bool:
        """Whether vectors of GPUs are added up in the hosts' memory at the end of a tick: NCCL's communicators do not
        outlive the loss of a rank."""
        return self.adds_parts and self.tick_ranks.several and self.ranks.elastic

    @property
    def chained(self) -> bool:
        """Whether CPUs add up all contributions in the learners' order, independent of their devices and ranks."""
        return self.shared is not None or adds_in_chain(self.system, self.ranks.size)

    @property
    def mean_first(self) -> bool:
        """Whether the merge of a single device first rounds the learners' mean, as that of several devices does. If the
        merge is only the mean, this makes no difference."""
        if not self.barrier or self.adds_parts or not self.chained or self.tick_learners == 1:
            return False
        merge = self.barrier_rule.merge(self.solver, ANY, self.tick_learners)
        return any("mean" in terms and len(terms) > 1 for _, terms in merge.steps)

    @property
    def clips_own(self) -> bool:
        """Whether each learner clips its own gradient by its norm."""
        return self.solver.clip_gradient_norm is not None and not self.rule.sends_gradient

    @property
    def clips_mean(self) -> bool:
        """Whether the mean of the sent gradients is clipped by its norm."""
        return self.solver.clip_gradient_norm is not None and self.rule.sends_gradient

    @property
    def in_blocks(self) -> bool:
        """Whether weight gradients may be used block by block, without being stored as a whole."""
        return not self.rule.sends_gradient and self.solver.clip_gradient_norm is None

    def check_batch_size(self, examples: int) -> int:
        """Examples in a test batch."""
        return min(self.model.check_batch_size or max(self.model.batch_size, CHECK_BATCH_SIZE), examples)


def adds_in_chain(system: SystemConf, ranks: int) -> bool:
    """Whether this number of ranks adds up vectors in a chain, in the order of the learners; otherwise in a tree."""
    if any(name.startswith("cuda") for name in system.devices):
        return False
    return system.sum_order == "chain" or (system.sum_order == "auto" and ranks <= RANKS_IN_A_CHAIN)
