"""The solver's step as an update of vectors."""

from __future__ import annotations

from crossbow.conf import SolverConf
from crossbow.solver.update import Update


def solver_step(
    solver: SolverConf,
    rate: float,
    *,
    weights: str = "weights",
    gradient: str = "gradient",
    velocity: str = "velocity",
    pull: float = 0.0,
    towards: str = "base",
    into: str | None = None,
) -> Update:
    """w ← w + v − pull · (w − towards), where v ← momentum · v − γ (g + weight_decay · w).

    into: the vector that the new weights are written to; None writes them over the old.

    The velocity contains the learning rate, as in Caffe and the original. Without momentum there is no velocity:
    v = −γ (g + weight_decay · w) enters w at once, in one pass.
    """
    decay = rate * solver.weight_decay
    attraction = {towards: pull} if pull else {}
    into = into or weights
    if not solver.momentum:
        return Update(((into, {weights: 1 - pull - decay, gradient: -rate, **attraction}),))
    step = {velocity: solver.momentum, gradient: -rate}
    if solver.weight_decay:
        step[weights] = -decay
    return Update(((velocity, step), (into, {weights: 1 - pull, velocity: 1.0, **attraction})))
