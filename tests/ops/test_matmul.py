from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels import why_not_compiled
from crossbow.ops import MatMul, MatMulGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")


@pytest.mark.parametrize(
    ("a", "b", "turned", "expected"),
    [
        ((3, 4), (4, 5), (False, False), (3, 5)),
        ((4, 3), (4, 5), (True, False), (3, 5)),
        ((3, 4), (5, 4), (False, True), (3, 5)),
        ((4, 3), (5, 4), (True, True), (3, 5)),
        ((8, 3, 4), (4, 5), (False, False), (8, 3, 5)),
        ((3, 4), (8, 4, 5), (False, False), (8, 3, 5)),
        ((8, 1, 3, 4), (2, 4, 5), (False, False), (8, 2, 3, 5)),
        ((4,), (4,), (False, False), ()),
        ((4,), (8, 4, 5), (False, False), (8, 5)),
        ((8, 3, 4), (4,), (False, False), (8, 3)),
    ],
)
def test_shapes(a: Any, b: Any, turned: tuple[bool, bool], expected: tuple[int, ...]) -> None:
    assert MatMul(transpose_a=turned[0], transpose_b=turned[1]).output_shape(a, b) == expected


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3, 4), (5, 4), r"as many columns of a as rows of b, not 4 and 5\. Received: \(3, 4\) and \(5, 4\)"),
        ((4,), (5,), "not 4 and 5"),
        ((2, 3, 4), (3, 4, 5), r"equal dimensions, or 1, before those of the matrices\. Received: \(2, 3, 4\)"),
        ((), (3, 4), r"at least one dimension\. Received: \(\) and \(3, 4\)"),
        ((3, 4), (), r"at least one dimension\. Received: \(3, 4\) and \(\)"),
    ],
)
def test_shapes_that_cannot_be_multiplied(a: Any, b: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MatMul().output_shape(a, b)


def test_a_vector_is_not_transposed() -> None:
    with pytest.raises(ValueError, match=r"at least two dimensions with transpose_b=True\. Received: .* and \(4,\)"):
        MatMul(transpose_b=True).output_shape((3, 4), (4,))
    with pytest.raises(ConfigurationError, match="transpose_a must be True or False"):
        MatMul(transpose_a=1)  # type: ignore[arg-type]


def test_multiplications() -> None:
    assert MatMul().multiply_adds((8, 3, 4), (4, 5)) == 8 * 3 * 5 * 4
    assert MatMul(transpose_a=True).multiply_adds((4, 3), (2, 4, 5)) == 2 * 3 * 5 * 4
    assert MatMul().multiply_adds((4,), (4,)) == 4


def test_numbers_by_hand() -> None:
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    run = run_operator(MatMul(), [a, b], output_gradient=np.array([[1.0], [10.0]]))
    np.testing.assert_array_equal(run.outputs[0], [[17], [39]])
    np.testing.assert_array_equal(run.input_gradients[0], [[5, 6], [50, 60]])
    np.testing.assert_array_equal(run.input_gradients[1], [[31], [42]])


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
def test_the_gradient_of_a_repeated_input_is_the_sum_of_its_uses(device: str) -> None:
    """a is used for both examples, b in both channels."""
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 2, 3, 4), (3, 1, 4, 2)))
    dy = generator.integers(-3, 4, (3, 2, 3, 2)).astype(np.float32)
    run = run_operator(MatMul(), [a, b], output_gradient=dy, device=device)
    da = sum(dy[n] @ b[n].swapaxes(-1, -2) for n in range(3))
    db = sum(a[:, c].swapaxes(-1, -2) @ dy[:, c] for c in range(2))
    np.testing.assert_array_equal(run.input_gradients[0][0], da)
    np.testing.assert_array_equal(run.input_gradients[1][:, 0], db)


def test_gradients() -> None:
    assert MatMul().gradient(1) == MatMulGradient(input=1)
    check_gradients(MatMul(transpose_a=True, transpose_b=True), [(2, 4, 3), (5, 4)])
