"""The solver's step as an update of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from crossbow.solver.adaptation import STEP, Adaptation, StepCount
from crossbow.solver.configuration import SolverConf
from crossbow.solver.schedule import Pace
from crossbow.solver.update import Update


def solver_step(
    solver: SolverConf,
    pace: Pace,
    *,
    weights: str = "weights",
    gradient: str = "gradient",
    state: str = "",
    pull: float = 0.0,
    towards: str = "base",
    into: str | None = None,
) -> Update:
    """The update w ← w + s − pull · (w − towards), where s is the solver's step. `SolverConf` has the formulas of all
    methods.

    state: prefix of the names of the solver's vectors, `velocity` and `second_moment`, and of its counter `step_count`.
    into: the vector that receives the new weights; None overwrites the old weights.

    The vectors depend only on `solver`. The coefficients also depend on the learning rate and, if the solver has
    momentum, on the momentum of `pace`.
    """
    attraction = {towards: pull} if pull else {}
    if solver.method == "sgd":
        return _descent(solver, pace, weights, gradient, f"{state}velocity", 1 - pull, attraction, into or weights)
    decay = pace.rate * solver.weight_decay if solver.method == "adamw" else 0.0
    terms = _sum({weights: 1 - pull - decay}, {STEP: -pace.rate}, attraction)
    depends_on = {"rate", "momentum"} if solver.momentum else {"rate"}
    adaptation = _adaptation(solver, pace, weights, gradient, state)
    return Update(((into or weights, terms),), depends_on=frozenset(depends_on), adaptation=adaptation)


def _descent(
    solver: SolverConf,
    pace: Pace,
    weights: str,
    gradient: str,
    velocity: str,
    kept: float,
    attraction: Mapping[str, float],
    into: str,
) -> Update:
    """The update of sgd.

    The velocity contains the learning rate, as in Caffe and the original. Nesterov's step, in Caffe
    (1 + momentum) · v − momentum · v_old, is expressed with d, because v_old has already been overwritten.
    """
    sign = f"sign of {weights}"
    signs = ((sign, weights),) if solver.regularisation == "l1" else ()
    descent = {gradient: -pace.rate}
    if solver.weight_decay:
        descent[sign if signs else weights] = -pace.rate * solver.weight_decay
    if not solver.momentum:
        return Update(((into, _sum({weights: kept}, descent, attraction)),), signs, frozenset({"rate"}))
    moving = {velocity: pace.momentum, **descent}
    step = moving if solver.momentum_method == "nesterov" else {velocity: 1.0}
    steps = (velocity, moving), (into, _sum({weights: kept}, step, attraction))
    return Update(steps, signs, frozenset({"rate", "momentum"}))


def _adaptation(solver: SolverConf, pace: Pace, weights: str, gradient: str, state: str) -> Adaptation:
    """The adaptive step of a method, in units of the learning rate."""
    descent = {gradient: 1.0}
    if solver.weight_decay and solver.method != "adamw":
        descent[weights] = solver.weight_decay
    second_moment, velocity, epsilon = f"{state}second_moment", f"{state}velocity", solver.epsilon
    if solver.method == "adagrad":
        return Adaptation(descent, second_moment, 1.0, 1.0, epsilon)
    if solver.method == "rmsprop":
        adaptation = Adaptation(descent, second_moment, solver.rho, 1 - solver.rho, epsilon)
        return (
            replace(adaptation, velocity=velocity, keep=pace.momentum, of_steps=True) if solver.momentum else adaptation
        )
    beta1, beta2 = solver.beta1, solver.beta2
    return Adaptation(
        descent,
        second_moment,
        beta2,
        1 - beta2,
        epsilon,
        velocity,
        keep=beta1,
        part=1 - beta1,
        count=StepCount(f"{state}step_count", beta1, beta2),
    )


def _sum(*parts: Mapping[str, float]) -> dict[str, float]:
    """The sum of combinations, with terms in order of their first occurrence."""
    terms: dict[str, float] = {}
    for part in parts:
        for name, coefficient in part.items():
            terms[name] = terms.get(name, 0.0) + coefficient
    return terms
