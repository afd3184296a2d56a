"""Matrix products and their gradients against sums over indices, with stacks that are broadcast and transposes."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.types import Shape
from tests.kernels.reference.running import Numbers, draw, nan, run, tensor

LIBRARY = Reference(np.float64)
CASES: list[tuple[Shape, Shape, str]] = [
    ((3, 4), (4, 5), "ik,kj->ij"),
    ((2, 3, 4), (2, 4, 5), "aik,akj->aij"),
    ((2, 3, 4), (1, 4, 5), "aik,bkj->aij"),
    ((1, 3, 4), (2, 4, 5), "bik,akj->aij"),
    ((2, 1, 3, 4), (1, 6, 4, 5), "abik,cdkj->adij"),
    ((1, 1), (1, 1), "ik,kj->ij"),
    ((3, 0), (0, 5), "ik,kj->ij"),
]


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("a", "b", "sums"), CASES)
def test_products_and_gradients(a: Shape, b: Shape, sums: str, transposed: tuple[bool, bool]) -> None:
    factors, dy = [draw(*a), draw(*b, seed=1)], draw(*np.einsum(sums, np.ones(a), np.ones(b)).shape, seed=2)
    given = [x.swapaxes(-1, -2).copy() if turned else x for x, turned in zip(factors, transposed, strict=True)]
    geometry = MatrixProductGeometry((given[0].shape, given[1].shape), transposed)
    ta, tb, ty, y = tensor(given[0].shape), tensor(given[1].shape), tensor(dy.shape), nan(dy.shape)
    run(LIBRARY.prepare(MatmulForward(ta, tb, ty, geometry)), input0=given[0], input1=given[1], output=y)
    np.testing.assert_allclose(y, np.einsum(sums, *factors), rtol=0, atol=1e-13)
    for number, x in enumerate(given):
        dx = nan(x.shape)
        kernel = LIBRARY.prepare(MatmulBackward(ty, ta, tb, number, geometry))
        run(kernel, **{f"input{1 - number}": given[1 - number]}, output_gradient=dy, input_gradient=dx)
        # y is linear in each factor, so dx · d = y(d) · dy for any d.
        for seed in range(3):
            moved: list[Numbers] = list(factors)
            moved[number] = draw(*factors[number].shape, seed=3 + seed)
            own = dx.swapaxes(-1, -2) if transposed[number] else dx
            assert (own * moved[number]).sum() == pytest.approx((np.einsum(sums, *moved) * dy).sum(), abs=1e-12)


def test_inputs_of_other_shapes_are_seen_as_those_of_the_geometry() -> None:
    """Vectors as rows and columns: (4,) · (4,) is (1, 4) · (4, 1)."""
    geometry, y = MatrixProductGeometry(((1, 4), (4, 1))), nan(())
    t = tensor((4,))
    run(LIBRARY.prepare(MatmulForward(t, t, tensor(()), geometry)), input0=np.arange(4.0), input1=np.ones(4), output=y)
    assert y == 6
    dx, request = nan((4,)), MatmulBackward(tensor(()), t, t, 1, geometry)
    run(LIBRARY.prepare(request), input0=np.arange(4.0), output_gradient=np.array(2.0), input_gradient=dx)
    assert dx.tolist() == [0, 2, 4, 6]
