"""Adaptive steps that the tests of all libraries run."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.requests import AdaptiveStep
from crossbow.solver.adaptation import STEP, AdaptationForm
from crossbow.solver.update import Assignment
from tests.kernels.reference.running import Numbers, draw

PLAIN = AdaptationForm(("g",), "s")
MOMENT = AdaptationForm(("g", "w"), "s", "v")
OF_STEPS = AdaptationForm(("g0", "g1", "w"), "s", "v", of_steps=True)
ALONE, PULLED = Assignment("w", ("w", STEP)), Assignment("w", ("w", STEP, "z"))
INTO = Assignment("z", ("w", STEP))
FORMS = [
    (PLAIN, ALONE),
    (MOMENT, PULLED),
    (OF_STEPS, ALONE),
    (MOMENT, INTO),
    (PLAIN, Assignment("w", (STEP, "w", STEP))),
]
"""Adagrad or RMSprop, Adam under SMA, RMSprop with momentum for a group, Adam for z, and the step as a term twice."""
CORRECTION = np.array([1.25, 1.5])


def request(form: AdaptationForm, assignment: Assignment, dtype: Any) -> AdaptiveStep:
    return AdaptiveStep(form, assignment, np.dtype(dtype))


def vectors_of(request: AdaptiveStep, length: int, seed: int = 0) -> dict[str, Numbers]:
    """Random vectors; the second moments are positive."""
    names = sorted({*request.vectors, *request.writes})
    made = {name: draw(length, dtype=request.dtype, seed=seed + 100 * i) for i, name in enumerate(names)}
    made["s"] = np.abs(made["s"])
    return made


def coefficients_of(request: AdaptiveStep) -> Numbers:
    """decay, gain, epsilon, keep and part lie between the coefficients of two combinations."""
    descent = [1.0, 0.01, 0.5][: len(request.adaptation.descent)]
    return np.array([*descent, 0.99, 0.01, 1e-3, 0.9, 0.1, *[0.875, -0.1, 0.125][: len(request.assignment.terms)]])
