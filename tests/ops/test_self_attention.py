from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.ops import SelfAttention
from crossbow.testing import check_gradients, run_operator


@pytest.mark.parametrize("causal", [False, True])
def test_equal_queries_give_means_of_values(causal: bool) -> None:
    """With keys of 0 all positions weigh the same; with `causal`, only those up to the query's."""
    values = np.array([[2.0, 0], [4, 6], [9, 3]])
    x = np.concatenate([np.ones((3, 2)), np.zeros((3, 2)), values], axis=1)[None]
    expected = np.cumsum(values, axis=0) / [[1], [2], [3]] if causal else np.tile(values.mean(axis=0), (3, 1))
    received = run_operator(SelfAttention(1, causal=causal), [x]).outputs[0]
    np.testing.assert_allclose(received[0], expected, rtol=1e-6)


def test_heads_are_independent() -> None:
    """Two heads are two attentions of one head, on their parts of q, k and v."""
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 2, 4))
    both = run_operator(SelfAttention(2), [x.reshape(2, 5, 24)]).outputs[0].reshape(2, 5, 2, 4)
    for head in range(2):
        alone = run_operator(SelfAttention(1), [x[..., head, :].reshape(2, 5, 12)]).outputs[0]
        np.testing.assert_allclose(both[:, :, head], alone, rtol=1e-5)


def test_later_positions_do_not_change_earlier_ones() -> None:
    x = np.random.default_rng(0).standard_normal((1, 6, 12))
    before = run_operator(SelfAttention(2, causal=True), [x]).outputs[0]
    x[:, 4:] += 1
    after = run_operator(SelfAttention(2, causal=True), [x]).outputs[0]
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).max() > 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal: bool) -> None:
    check_gradients(SelfAttention(2, causal=causal), [(2, 4, 12)])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 10), (2, 3, 9), (2, 3, 0), (2, 3, 4, 12)], ids=str)
def test_wrong_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, T, 3 · D\), with D a multiple of heads=2"):
        SelfAttention(2).output_shape(shape)


def test_wrong_settings() -> None:
    with pytest.raises(ConfigurationError, match="heads must be"):
        SelfAttention(0)
    with pytest.raises(ConfigurationError, match="causal must be"):
        SelfAttention(1, causal="yes")  # type: ignore[arg-type]


def test_multiply_adds() -> None:
    assert SelfAttention(2).multiply_adds((3, 5, 12)) == 3 * 2 * 5 * 5 * 4
