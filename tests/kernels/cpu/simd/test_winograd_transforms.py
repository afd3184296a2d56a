"""Winograd's transforms: their matrices, and the compiled passes against these in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import native_pass
from crossbow.kernels.cpu.simd.tile import LANES
from crossbow.kernels.cpu.simd.winograd_transforms import (
    BOUND_TRANSFORM,
    INPUT,
    INPUT_GRADIENT,
    OUTPUT,
    OUTPUT_GRADIENT,
    WEIGHTS,
    WEIGHTS_GRADIENT,
    bound_transform,
    matrices,
    run_transform,
    transpose_square,
)
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import Numbers, draw

TILES = [(2, 3), (4, 3), (2, 5)]


@pytest.mark.parametrize(("outputs", "kernel"), [(2, 3), (4, 3), (2, 5)])
def test_the_matrices_compute_a_convolution(outputs: int, kernel: int) -> None:
    """y = Aᵀ [(G w Gᵀ) ⊙ (Bᵀ x B)] A, in fractions, so that nothing is rounded."""
    a, g, b = (np.array(matrices(outputs, kernel)[name], object) for name in "AGB")
    generator, size = np.random.default_rng(0), outputs + kernel - 1
    x, w = (generator.integers(-9, 10, (count, count)).astype(object) for count in (size, kernel))
    y = a.T @ ((g @ w @ g.T) * (b.T @ x @ b)) @ a
    around = range(outputs)
    assert y.tolist() == [[(x[i : i + kernel, j : j + kernel] * w).sum() for j in around] for i in around]


def test_the_matrices_are_the_known_ones() -> None:
    """Of F(2×2, 3×3), as Lavin and Gray give them, up to the signs of two points."""
    found = matrices(2, 3)
    assert [list(map(float, row)) for row in found["G"]] == [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    assert [list(map(int, row)) for row in zip(*found["A"], strict=True)] == [[1, 1, 1, 0], [0, 1, -1, 1]]


@pytest.mark.parametrize(("outputs", "kernel", "least", "most"), [(2, 3, 0.3, 1), (4, 3, 2, 6), (2, 5, 1.5, 6)])
def test_rounding_beside_a_sum_of_products(outputs: int, kernel: int, least: float, most: float) -> None:
    """Root mean squares over 200 tiles of 64 channels, everything in float32, one product after the other."""
    a, g, b = (np.array(matrices(outputs, kernel)[name], np.float32) for name in "AGB")
    x, w = draw((64, 200, *b.shape)), draw((64, kernel, kernel), 1)
    points = np.zeros((200, *b.shape), np.float32)
    windows = np.zeros((200, outputs, outputs), np.float32)
    exact = np.zeros(windows.shape)
    for image, weights in zip(x, w, strict=True):
        points += (g @ weights @ g.T) * (b.T @ image @ b)
        for i, j in np.ndindex(weights.shape):
            product = image[:, i : i + outputs, j : j + outputs].astype(np.float64) * weights[i, j]
            windows += image[:, i : i + outputs, j : j + outputs] * weights[i, j]
            exact += product
    ratio = (a.T @ points @ a - exact).std() / (windows - exact).std()
    assert least < ratio < most


@native_pass(Arguments(transform=BOUND_TRANSFORM, source=Address, target=Address))
def run(block: Any) -> int:
    run_transform(block.transform, block.source, block.target)
    return 0


def transformed(which: int, tile: tuple[int, int], source: Numbers, target: Numbers, **more: Any) -> None:
    """Run a transform on arrays (tiles, rows, columns, elements) of float32."""
    distances = {
        f"{end}_{name}": step
        for end, array in (("source", source), ("target", target))
        for name, step in zip(("tile", "row", "column"), array.strides, strict=False)
    }
    sizes = {"tiles": source.shape[0], "elements": source.shape[3]}
    bound = bound_transform(which, *tile, **distances, **sizes, **more)
    run.call("transform", transform=bound, source=source, target=target)()


def factor(which: int, tile: tuple[int, int]) -> Numbers:
    """What a transform multiplies by from the left, as the module's docstring has it."""
    a, g, b = (np.array(matrices(*tile)[name], np.float64) for name in "AGB")
    known = {INPUT: b.T, WEIGHTS: g, OUTPUT: a.T, INPUT_GRADIENT: b, WEIGHTS_GRADIENT: g.T, OUTPUT_GRADIENT: a}
    return known[which]


@pairwise
@pytest.mark.parametrize("which", [INPUT, WEIGHTS, OUTPUT, INPUT_GRADIENT, WEIGHTS_GRADIENT, OUTPUT_GRADIENT])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("elements", [LANES, LANES + 1, 3 * LANES - 1])
def test_a_transform_multiplies_from_both_sides(which: int, tile: tuple[int, int], elements: int) -> None:
    """The last vector overlaps the one before: what is added must not be added twice. Memory around stays as it is."""
    matrix = factor(which, tile)
    rows, columns = matrix.shape
    source = draw((3, columns, columns, elements))
    room = draw((3, rows + 1, rows + 2, elements + 3), 1)
    before, target = room.copy(), room[:, :rows, :rows, :elements]
    shift, floor = draw((elements,), 2), 0.25
    transformed(which, tile, source, target, **({"shift": shift, "floor": floor} if which == OUTPUT else {}))
    exact = np.einsum("ij,tjke,lk->tile", matrix, source.astype(np.float64), matrix)
    if which == OUTPUT:
        exact = np.maximum(exact + shift, floor)
    if which == INPUT_GRADIENT:
        exact += before[:, :rows, :rows, :elements]
    np.testing.assert_allclose(target, exact, rtol=0, atol=2e-6 * max(1, np.abs(exact).max()))
    for part in (np.s_[:, rows:], np.s_[:, :, rows:], np.s_[..., elements:]):
        np.testing.assert_array_equal(room[part], before[part])


def test_nan_stays_nan() -> None:
    source, target, shift = draw((1, 4, 4, LANES)), np.zeros((1, 2, 2, LANES), np.float32), np.zeros(LANES, np.float32)
    source[0, 1, 1, 3] = np.nan
    transformed(OUTPUT, (2, 3), source, target, shift=shift, floor=0.0)
    assert np.isnan(target[..., 3]).all()
    assert not np.isnan(np.delete(target, 3, axis=-1)).any()


@native_pass(Arguments(source=Address, source_row=int, target=Address, target_row=int))
def transpose(block: Any) -> int:
    transpose_square(block.source, block.source_row, block.target, block.target_row)
    return 0


def test_a_square_is_transposed() -> None:
    source, target = draw((LANES, LANES + 3)), np.full((LANES, LANES + 5), np.nan, np.float32)
    rows = {"source_row": source.strides[0], "target_row": target.strides[0]}
    transpose.call("transpose", source=source, target=target, **rows)()
    np.testing.assert_array_equal(target[:, :LANES], source[:, :LANES].T)
    assert np.isnan(target[:, LANES:]).all()
