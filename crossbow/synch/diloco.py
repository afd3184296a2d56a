"""DiLoCo: many local steps, and a separate optimiser for the base model."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import parameters, setting
from crossbow.domains import Integer, Number
from crossbow.solver import Pace, SolverConf, Update
from crossbow.solver.update import CONSTANT
from crossbow.synch.averaging import Average


@parameters
class DiLoCo(Average):
    """Distributed low-communication training (Douillard et al., *DiLoCo*, arXiv:2311.08105, 2023, Algorithm 1)::

        τ times: w_i ← w_i + v_i;   Δ = (1/k) Σ (z − w_i)
        u ← μ u + Δ;   z ← z − η (Δ + μ u);   w_i ← z

    Δ is the outer gradient, and z follows it with Nesterov momentum, as in PyTorch's `SGD(nesterov=True)`. The inner
    optimiser is the solver, AdamW in the paper; each learner keeps its own velocity and second moment. η:
    outer_learning_rate, > 0. μ: outer_momentum, in [0, 1). τ: local steps per tick, ≥ 1; the paper uses 500, and
    compares 50 to 2,000.

    If all Δ were equal, z would move by η / (1 − μ) times Δ in a tick: 7 times with the defaults, which are the
    paper's. With η = 1 and μ = 0, the rule is `ModelAveraging`. A restart sets u to 0, too.

    Use it if an exchange is expensive, as between hosts: z moves on in the direction of earlier ticks, so fewer
    exchanges suffice than with `ModelAveraging`.

    See also: `ModelAveraging`, `SMA`.
    """

    name: ClassVar[str] = "diloco"

    tau: int = setting(Integer(at_least=1), default=50)
    outer_learning_rate: float = setting(Number(above=0), default=0.7)
    """Learning rate of the base model."""
    outer_momentum: float = setting(Number(at_least=0, below=1), default=0.9)
    """Nesterov momentum of the base model."""

    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        rate, momentum = self.outer_learning_rate, self.outer_momentum
        # With η = 1 the coefficient of z is 0; then z is not read.
        terms = {"base": 1 - rate, "mean": rate} if rate != 1 else {"mean": 1.0}
        if not momentum:
            return Update((("base_next", terms),), depends_on=CONSTANT)
        velocity = {"base_velocity": momentum, "base": 1.0, "mean": -1.0}
        terms["base_velocity"] = -rate * momentum
        return Update((("base_velocity", velocity), ("base_next", terms)), depends_on=CONSTANT)
