"""Linear combinations, norms and clipping on the CUDA library, with a GPU that is none, beside the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.launch import BLOCK
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.vector import MOST_PACKED, NORM_BLOCKS, packed_part
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import ClipCoefficients, LinearCombination, SquaredNorm
from crossbow.solver.update import Assignment
from tests.combinations import covering
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.reference.running import DTYPES, Numbers, draw, run

# The step of SMA: velocity, weights with the correction, and nothing in between.
SMA = (Assignment("v", ("v", "g", "w")), Assignment("w", ("w", "v", "z")))
GUARD = 8
"""Elements beside a vector that nobody may touch."""


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


class Vectors:
    """The same random vectors twice: for the reference, and for what is tested, there between guards."""

    def __init__(self, names: Sequence[str], length: int, dtype: Any, offsets: Sequence[int], seed: int = 0) -> None:
        self.expected = {name: draw(length, dtype=dtype, seed=seed + 100 * i) for i, name in enumerate(names)}
        self._memory = {name: np.full(length + 3 * GUARD, np.nan, dtype) for name in names}
        self.received = {}
        for name, offset in zip(names, offsets, strict=True):
            aligned = -self._memory[name].ctypes.data % 16 // self._memory[name].itemsize
            start = GUARD + aligned + offset
            self.received[name] = self._memory[name][start : start + length]
            self.received[name][...] = self.expected[name]

    def check(self) -> None:
        """To the bit, and nothing beside the vectors."""
        for name, value in self.expected.items():
            np.testing.assert_array_equal(self.received[name], value, err_msg=name)
            assert np.isnan(self._memory[name]).sum() == 3 * GUARD, name


def check_combination(
    assignments: Sequence[Assignment], vectors: Vectors, dtype: Any, signs: Sequence[tuple[str, str]] = ()
) -> PreparedKernel:
    coefficients = draw(sum(len(a.terms) for a in assignments), seed=7)
    kernels = [library.prepare(LinearCombination(assignments, np.dtype(dtype), signs)) for library in libraries(dtype)]
    for kernel, arrays in zip(kernels, (vectors.expected, vectors.received), strict=True):
        run(kernel, **arrays, coefficients=coefficients)
    vectors.check()
    assert (set(kernels[1].reads), set(kernels[1].writes)) == (set(kernels[0].reads), set(kernels[0].writes))
    return kernels[1]


def libraries(dtype: Any) -> tuple[Reference, Cuda]:
    return Reference(dtype), Cuda(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 3, 4, 7, 1000, 5003])
@pytest.mark.parametrize("offsets", [(0, 0, 0, 0), (1, 1, 1, 1), (3, 3, 3, 3), (0, 1, 2, 3)], ids=str)
def test_to_the_bit(length: int, offsets: tuple[int, ...], dtype: Any) -> None:
    """Aligned, all out of line by as much, and each by another number of elements."""
    check_combination(SMA, Vectors("vgwz", length, dtype, offsets), dtype)


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 12))])
def test_random_assignments(seed: int) -> None:
    generator = np.random.default_rng(seed)
    names, dtype = "abcdef"[: generator.integers(1, 7)], DTYPES[seed % 2]
    signs = [(f"sign of {name}", name) for name in names if generator.random() < 0.3]
    known = [*names, *(sign for sign, _ in signs)]
    assignments = [
        Assignment(
            str(generator.choice(list(names))), tuple(map(str, generator.choice(known, generator.integers(1, 7))))
        )
        for _ in range(generator.integers(1, 6))
    ]
    offsets = generator.integers(0, 5, len(names)) if seed % 3 else np.full(len(names), seed % 4)
    check_combination(assignments, Vectors(names, int(generator.integers(1, 300)), dtype, offsets, seed), dtype, signs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_of_a_vector_is_that_before_the_call(dtype: Any) -> None:
    vectors = Vectors("wv", 50, dtype, (0, 0))
    for arrays in (vectors.expected, vectors.received):
        arrays["w"][::3], arrays["w"][1::3] = 0, -arrays["w"][1::3]
    assignments = (Assignment("w", ("w", "s")), Assignment("v", ("s", "w", "s")))
    check_combination(assignments, vectors, dtype, [("s", "w"), ("unused", "v")])


def test_not_a_number_stays() -> None:
    x, y = np.array([np.nan, np.inf, -0.0, 1], np.float32), np.zeros(4, np.float32)
    kernel = Cuda().prepare(LinearCombination([Assignment("y", ("x", "s"))], np.dtype(np.float32), [("s", "x")]))
    run(kernel, x=x, y=y, coefficients=np.array([2.0, 3.0]))
    np.testing.assert_array_equal(y, [np.nan, np.inf, 0, 5])


def test_more_vectors_than_are_kept_as_packs() -> None:
    names = [f"x{i}" for i in range(MOST_PACKED + 2)]
    check_combination([Assignment("x0", tuple(names))], Vectors(names, 70, np.float32, [0] * len(names)), np.float32)


def test_names_of_the_same_memory() -> None:
    """A later assignment sees what an earlier one wrote, by whatever name."""
    x, y = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    assignments = [Assignment("old", ("y",)), Assignment("y", ("new",))]
    run(Cuda("float64").prepare(LinearCombination(assignments, np.dtype(np.float64))), old=x, new=x, y=y,
        coefficients=np.array([2.0, 3.0]))  # fmt: skip
    np.testing.assert_array_equal(x, [20, 40])
    np.testing.assert_array_equal(y, [60, 120])


def test_one_call_that_reads_its_coefficients_each_time(fake: FakeCuda) -> None:
    x, y, coefficients = draw(1 << 12), np.zeros(1 << 12), np.array([2.0])
    kernel = Cuda("float64").prepare(LinearCombination([Assignment("y", ("x",))], np.dtype(np.float64)))
    (call,) = kernel.bind({"x": x, "y": y, "coefficients": coefficients})
    call()
    np.testing.assert_array_equal(y, 2 * x)
    coefficients[0] = 3
    call()
    np.testing.assert_array_equal(y, 3 * x)
    assert [recorded.name for recorded in fake.calls] == ["linear_combination"] * 2
    assert fake.calls[0].arguments[:2] == (8, 256)  # two elements for each thread


def test_packed_part() -> None:
    assert packed_part([64, 128], 100, 8) == (0, 100)
    assert packed_part([64, 128], 101, 8) == (0, 100)
    assert packed_part([72, 136], 101, 8) == (1, 100)
    assert packed_part([76], 2, 4) == (1, 0)
    assert packed_part([76], 0, 4) == (0, 0)
    assert packed_part([64] * MOST_PACKED, 100, 8) == (0, 100)
    assert packed_part([64] * (MOST_PACKED + 1), 100, 8) == (100, 0)


def test_vectors_and_coefficients_that_do_not_fit() -> None:
    kernel = Cuda("float64").prepare(LinearCombination([Assignment("y", ("x",))], np.dtype(np.float64)))
    with pytest.raises(ValueError, match=r"vectors of one length. Received: \{'y': \(3,\), 'x': \(2,\)\}"):
        kernel.bind({"x": np.zeros(2), "y": np.zeros(3), "coefficients": np.zeros(1)})
    with pytest.raises(ValueError, match=r"expected 1 float64 coefficients, one for each term\. Received: float64 of"):
        kernel.bind({"x": np.zeros(2), "y": np.zeros(2), "coefficients": np.zeros(2)})


# Norms.


NORMS = covering([("x",), ("x", "total"), ("x", "x", "total")], [0, 1, 255, 5003], DTYPES)


@pytest.mark.parametrize(
    ("terms", "length", "dtype"), [*NORMS, (("x",), NORM_BLOCKS * BLOCK + 77, np.float32)], ids=str
)
def test_the_squared_norm_of_a_combination(terms: tuple[str, ...], length: int, dtype: Any) -> None:
    vectors = {"x": draw(length + 1, dtype=dtype)[1:], "total": draw(length, dtype=dtype, seed=1)}
    coefficients, squares = np.array([0.5, 0.25, -2.0])[: len(terms)], []
    for library in libraries(dtype):
        kernel, square = library.prepare(SquaredNorm(terms, np.dtype(dtype))), np.full(1, np.nan)
        run(kernel, **vectors, coefficients=coefficients, square=square)
        squares.append(square)
    np.testing.assert_allclose(squares[1], squares[0], rtol=1e-13)


def test_squares_are_added_up_in_double_precision() -> None:
    """In single precision 2^24 + 1 is 2^24, and (10^30)² is infinite."""
    square, one = np.zeros(1), np.ones(1)
    kernel = Cuda().prepare(SquaredNorm(("x",), np.dtype(np.float32)))
    run(kernel, x=np.array([4096, 1], np.float32), coefficients=one, square=square)
    assert square == 2**24 + 1
    run(kernel, x=np.array([1e30], np.float32), coefficients=one, square=square)
    assert square == pytest.approx(1e60)


@pytest.mark.parametrize(
    ("squares", "factor"),
    [([9.0, 16.0], 0.5), ([6.25], 1.0), ([6.0], 1.0), ([0.0, 0.0], 1.0), ([np.inf], 0.0), ([1.0, np.nan], np.nan)],
)
@pytest.mark.parametrize("count", [3, 64, 130])
def test_coefficients_are_clipped_by_the_norm(squares: list[float], factor: float, count: int) -> None:
    """The limit is 2.5: a norm of √(9 + 16) = 5 halves them; what is not a number is not hidden."""
    marks = [index % 3 != 1 for index in range(count)]
    coefficients, clipped = draw(count), np.full(count, np.nan)
    buffers: dict[str, Numbers] = {"squares": np.array(squares), "coefficients": coefficients}
    run(Cuda().prepare(ClipCoefficients(2.5, marks)), **buffers, clipped_coefficients=clipped)
    np.testing.assert_array_equal(clipped, coefficients * np.where(marks, factor, 1.0))
