"""The mean by mass of simulated vectors, compared with a plain sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.synch.simulated_mean import BLOCK, MeanByMass


def plain_sum(terms: dict[int, Any]) -> Any:
    """One by one, in order."""
    return sum((terms[term] for term in sorted(terms)), np.zeros(len(next(iter(terms.values())))))


@pytest.mark.slow
@pytest.mark.parametrize("elements", [1, 2, 5])
@pytest.mark.parametrize("first", [2, 40, BLOCK, 300])
def test_a_mean_is_the_sum_of_its_terms(first: int, elements: int) -> None:
    """Whatever is set, added and removed. It has the bits of a sum one by one while its terms are in one block."""
    drawn = np.random.default_rng([first, elements])
    mean = MeanByMass(first, elements)
    terms = {term: np.zeros(elements) for term in range(first)}
    for turn in range(400):
        mass, vector = float(drawn.random()), drawn.standard_normal(elements)
        added = [term for term in terms if term >= first]
        if turn % 4 == 0:
            term = mean.add(mass, vector)
            assert term not in terms
            terms[term] = mass * vector
        elif turn % 8 == 1 and added:
            term = added[int(drawn.integers(len(added)))]
            mean.remove(term)
            del terms[term]
        elif turn % 7 == 3:
            term = int(drawn.integers(first))
            mean.reset(term)
            terms[term] = np.zeros(elements)
        else:
            term = int(drawn.integers(first))
            mean.set(term, mass, vector)
            terms[term] = mass * vector
        expected = plain_sum(terms)
        if max(terms) < min(BLOCK, 2 * first):
            np.testing.assert_array_equal(mean.value(), expected)
        else:
            np.testing.assert_allclose(mean.value(), expected, rtol=0, atol=1e-12)
    mean.clear()
    assert mean.value().tolist() == [0] * elements
    assert mean.add(0.5, np.ones(elements)) == first
    assert mean.value().tolist() == [0.5] * elements


def test_a_term_that_is_not_finite_leaves_no_trace() -> None:
    mean = MeanByMass(2, 1)
    mean.set(0, 1.0, np.array([2.0]))
    mean.set(1, 0.0, np.array([np.nan]))
    assert np.isnan(mean.value()[0])
    mean.reset(1)
    term = mean.add(1.0, np.array([np.nan]))
    mean.remove(term)
    assert mean.value().tolist() == [2]
