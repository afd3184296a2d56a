"""What requests for the arithmetic of vectors declare."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.requests import AdaptiveStep, ClipCoefficients, CountStep, LinearCombination, SquaredNorm
from crossbow.solver.adaptation import STEP, AdaptationForm
from crossbow.solver.update import Assignment

FLOAT32 = np.dtype(np.float32)


def test_a_combination_reads_every_vector_once() -> None:
    """A target is also read where a later assignment uses it; a sign stands for its vector."""
    assignments = (Assignment("v", ("v", "g", "sign")), Assignment("w", ("w", "v", "v")))
    request = LinearCombination(assignments, FLOAT32, (("sign", "w"),))
    assert request.vectors == ("v", "g", "w")
    assert request.reads == ("v", "g", "w", "coefficients")
    assert request.writes == ("v", "w")


def test_a_target_that_is_no_term_is_not_read() -> None:
    request = LinearCombination((Assignment("z", ("a", "b")), Assignment("z", ("z",))), FLOAT32)
    assert LinearCombination((Assignment("z", ("a", "b")),), FLOAT32).vectors == ("a", "b")
    assert (request.vectors, request.writes) == (("a", "b", "z"), ("z",))


def test_assignments_are_tuples_so_that_equal_requests_share_a_kernel() -> None:
    listed = LinearCombination([Assignment("w", ("w", "g"))], FLOAT32, [("s", "w")])  # type: ignore[arg-type]
    assert listed == LinearCombination((Assignment("w", ("w", "g")),), FLOAT32, (("s", "w"),))
    assert len({listed, LinearCombination((Assignment("w", ("w", "g")),), FLOAT32)}) == 2


def test_roles_of_a_norm_and_of_a_clip() -> None:
    assert SquaredNorm(("g", "w", "g"), FLOAT32).reads == ("g", "w", "coefficients")
    assert SquaredNorm(("g",), FLOAT32).writes == ("square",)
    clip = ClipCoefficients(1.0, (True, False))
    assert (clip.reads, clip.writes) == (("squares", "coefficients"), ("clipped_coefficients",))


def test_an_adaptive_step_reads_and_writes_its_state() -> None:
    """The step itself is no vector."""
    form = AdaptationForm(("g", "w"), "s", "v")
    request = AdaptiveStep(form, Assignment("w", ("w", STEP, "z")), FLOAT32)
    assert request.reads == ("g", "w", "s", "v", "z", "coefficients", "correction")
    assert request.writes == ("s", "v", "w")
    assert request.numbers == 2 + 5 + 3
    into = AdaptiveStep(AdaptationForm(("g",), "s"), Assignment("next", ("w", STEP)), FLOAT32)
    assert (into.vectors, into.writes) == (("g", "s", "w"), ("s", "next"))


def test_roles_of_a_count() -> None:
    request = CountStep(0.9, 0.999)
    assert (request.reads, request.writes) == (("step_count",), ("step_count", "correction"))
