"""Two rules at once: one within each host, and one between the hosts."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.conf import parameters, refuse
from crossbow.solver import SolverConf
from crossbow.synch.averaging import ModelAveraging
from crossbow.synch.rule import BarrierRule
from crossbow.synch.sma import SMA

RESTING = SolverConf(momentum=0.0, weight_decay=0.0)
"""The solver of the rule between hosts. It makes no steps: the local step of a host is one of its ticks."""


@parameters
class TwoLevel:
    """A rule within each host, and a rule between the hosts, for hosts whose exchange is expensive. In training, every
    rank is a host.

    Every host h has a base model z_h, which its learners compute by the rule `within`. To the rule `between`, a host is
    a learner with the weights z_h, and a tick of the host is one of its τ local steps. When that rule changes z_h, the
    host moves as a whole: z_h, its previous value, and the replicas of its learners move by the same vector, and
    velocities stay. So the differences between learners, which `within` needs, are kept::

        every tick of a host:        z_h and its w_i by `within`
        every τ_between such ticks:  z and z_h' by `between`, from all z_h;   w_i ← w_i + z_h' − z_h

    A task of the host counts once, for `within.tau`; a tick of z is k · τ_within · τ_between tasks of k learners. With
    one host, or hosts with the same batches, the rule between them changes nothing if it is `ModelAveraging`. z is
    tested and saved, at the end of its ticks.

    within: a rule with a barrier. between: a rule with a barrier whose learners send weights. Where the learning rate
    steps down, a host's learners restart from z_h. A schedule by merges counts ticks of the hosts.

    Raises ConfigurationError.

    >>> TwoLevel(within=SMA(), between=ModelAveraging(tau=64)).tau
    64
    """

    within: BarrierRule = SMA()
    between: BarrierRule = ModelAveraging(tau=64)

    def __post_init__(self) -> None:
        for name in ("within", "between"):
            rule = getattr(self, name)
            if not isinstance(rule, BarrierRule):
                raise refuse(self, name, rule, "a rule with a barrier, as SMA()")
        if self.between.sends_gradient:
            raise refuse(self, "between", self.between, "a rule whose learners send weights, as ModelAveraging(tau=64)")

    def settled(self, speeds: Sequence[float], hosts: int) -> tuple[BarrierRule, BarrierRule]:
        """The rules for the learners of one host, of these speeds, and for this many hosts. Raises
        ConfigurationError."""
        self.within.check_learners(len(speeds))
        self.between.check_learners(hosts)
        return self.within, self.between

    @property
    def tau(self) -> int:
        """A learner's tasks in a tick of z."""
        return self.within.tau * self.between.tau

    def tasks_per_merge(self, learners: int) -> int:
        """Number of tasks, of all learners, per merge within the hosts."""
        return self.within.tasks_per_merge(learners)
