"""The solver's step as an update of vectors."""

from __future__ import annotations

from collections.abc import Mapping

from crossbow.solver.configuration import SolverConf
from crossbow.solver.schedule import Pace
from crossbow.solver.update import Update


def solver_step(
    solver: SolverConf,
    pace: Pace,
    *,
    weights: str = "weights",
    gradient: str = "gradient",
    velocity: str = "velocity",
    pull: float = 0.0,
    towards: str = "base",
    into: str | None = None,
) -> Update:
    """w ← w + s − pull · (w − towards), where the step s follows d, the gradient with regularisation::

        d = g + weight_decay · w  (l2)   or   g + weight_decay · sign(w)  (l1)
        v ← momentum · v − γ d
        s = v  (polyak)   or   momentum · v − γ d  (nesterov)   or   −γ d  (without momentum: no velocity is kept)

    into: the vector that receives the new weights; None overwrites the old weights.

    The velocity contains the learning rate, as in Caffe and the original. Nesterov's step, in Caffe
    (1 + momentum) · v − momentum · v_old, is expressed with d, because v_old is already overwritten. The vectors depend
    only on `solver`, the coefficients also on the rate and, if there is any, the momentum of `pace`.
    """
    into = into or weights
    sign = f"sign of {weights}"
    signs = ((sign, weights),) if solver.regularisation == "l1" else ()
    descent = {gradient: -pace.rate}
    if solver.weight_decay:
        descent[sign if signs else weights] = -pace.rate * solver.weight_decay
    kept = {weights: 1 - pull}
    attraction = {towards: pull} if pull else {}
    if not solver.momentum:
        return Update(((into, _sum(kept, descent, attraction)),), signs, frozenset({"rate"}))
    moving = {velocity: pace.momentum, **descent}
    step = moving if solver.momentum_method == "nesterov" else {velocity: 1.0}
    steps = (velocity, moving), (into, _sum(kept, step, attraction))
    return Update(steps, signs, frozenset({"rate", "momentum"}))


def _sum(*parts: Mapping[str, float]) -> dict[str, float]:
    """The sum of combinations, with terms in order of their first occurrence."""
    terms: dict[str, float] = {}
    for part in parts:
        for name, coefficient in part.items():
            terms[name] = terms.get(name, 0.0) + coefficient
    return terms
