"""What a run is asked to do: configurations, and what follows from them for its learners."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossbow.data import Dataset
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.solver import SolverConf
from crossbow.synch import BarrierRule, Rule

CHECK_BATCH_SIZE = 64
"""Examples in a test batch, unless set: where the kernels are near their best speed."""


@dataclass(frozen=True)
class RunSetting:
    """What the user asked for, as it is with these learners."""

    data: Dataset
    model: ModelConf
    solver: SolverConf
    system: SystemConf
    given_rule: Rule
    rule: Rule
    """The rule that was given, settled for these learners."""
    learners: int
    """Of all devices."""
    devices: int
    clock: WorkClock

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.system.dtype

    @property
    def barrier(self) -> bool:
        return isinstance(self.rule, BarrierRule)

    @property
    def barrier_rule(self) -> BarrierRule:
        """The rule, where it has a barrier."""
        assert isinstance(self.rule, BarrierRule)
        return self.rule

    @property
    def base_models(self) -> int:
        """One on each device; without a barrier one for all, which share their memory."""
        return self.devices if self.barrier else 1

    @property
    def clips_own(self) -> bool:
        """Whether each learner clips its own gradient by its norm."""
        return self.solver.clip_gradient_norm is not None and not self.rule.sends_gradient

    @property
    def clips_mean(self) -> bool:
        """Whether the mean of the gradients that are sent is clipped by its norm."""
        return self.solver.clip_gradient_norm is not None and self.rule.sends_gradient

    @property
    def in_blocks(self) -> bool:
        """Whether weight gradients may be used block by block, and never be there as a whole."""
        return not self.rule.sends_gradient and self.solver.clip_gradient_norm is None

    def check_batch_size(self, examples: int) -> int:
        """Examples in a test batch."""
        return min(self.model.check_batch_size or max(self.model.batch_size, CHECK_BATCH_SIZE), examples)
