"""The emitter of vector instructions, by passes that it writes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed", allow_module_level=True)

from llvmlite import ir
from numba import types

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import NativeFunction, instruction, native_pass
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.cpu.simd import processor

LANES = 8
NAN = np.float32(np.nan)


def emitted(write: Callable[[Emitter, Any, Any], None], lanes: int = LANES, masked: bool = False) -> NativeFunction:
    """The pass of the instructions that `write` emits from the addresses x and y. masked: for `count` lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, count = arguments
        write(Emitter(builder, lanes, count if masked else None), x, y)
        return context.get_dummy_value()

    @instruction
    def vectors(typing_context: Any, x: Any, y: Any, count: Any) -> Any:
        return types.void(*[types.int64] * 3), generate

    def emitted_pass(block: Any) -> int:
        vectors(block.x, block.y, block.count)
        return 0

    emitted_pass.__name__ = f"{write.__name__}_{lanes}_{masked}"
    return native_pass(Arguments(x=Address, y=Address, count=int))(emitted_pass)


def run(function: NativeFunction, x: Any, y: Any, count: int = 0) -> Any:
    function.call("emitted", x=x, y=y, count=count)()
    return y.tolist()


def copy(code: Emitter, x: Any, y: Any) -> None:
    code.store(code.load(x), y)


def test_a_mask_limits_what_is_read_and_written() -> None:
    function = emitted(copy, masked=True)
    for count in (0, 1, 5, LANES):
        y = np.zeros(LANES, np.float32)
        x = np.arange(1, 1 + LANES, dtype=np.float32)
        assert run(function, x, y, count) == [*x[:count].tolist(), *[0] * (LANES - count)]


def add_indices(code: Emitter, x: Any, y: Any) -> None:
    """y = x + the number of the lane."""
    code.store(code.builder.add(code.load(x, code.lane), code.indices), y)


def test_integers_have_masks_too() -> None:
    y = np.zeros(LANES, np.int32)
    assert run(emitted(add_indices, masked=True), np.full(LANES, 5, np.int32), y, 3) == [5, 6, 7, 0, 0, 0, 0, 0]


def floored_product(code: Emitter, x: Any, y: Any) -> None:
    """y = max(x₀ · y, 2)."""
    product = code.builder.fmul(code.splat(code.element(x, 0)), code.load(y))
    code.store(code.floored(product, code.constant(2.0)), y)


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_arithmetic_on_vectors_and_single_numbers(lanes: int) -> None:
    y = np.array([1, -1, NAN, 0.5] * 4, np.float32)
    before = y.copy()
    run(emitted(floored_product, lanes), np.array([3], np.float32), y)
    np.testing.assert_array_equal(y[:lanes], np.array([3, 2, NAN, 2] * 4, np.float32)[:lanes])
    np.testing.assert_array_equal(y[lanes:], before[lanes:])


def widened_sum(code: Emitter, x: Any, y: Any) -> None:
    """y += x, in double precision."""
    code.store(code.builder.fadd(code.load(y, code.double), code.widened(code.load(x))), y)


def test_sums_in_double_precision() -> None:
    x, y = np.full(LANES, 2**-30, np.float32), np.ones(LANES)
    assert run(emitted(widened_sum), x, y) == [1 + 2**-30] * LANES


def fused_product(code: Emitter, x: Any, y: Any) -> None:
    """y += x²."""
    value = code.load(x)
    code.store(code.fused(value, value, code.load(y)), y)


def test_a_fused_product_is_rounded_once() -> None:
    x = np.full(LANES, 1 + 2**-12, np.float32)
    y = -(x * x)
    exact = np.float64(x) ** 2 + y
    assert (exact != 0).all()
    assert run(emitted(fused_product), x, y) == (exact if processor.VECTORS.fused else 0 * exact).tolist()


@pytest.mark.parametrize(
    ("element", "size"), [(ir.FloatType(), 4), (ir.DoubleType(), 8), (ir.IntType(32), 4), (ir.IntType(64), 8)], ids=str
)
def test_vectors_are_aligned_as_their_numbers(element: Any, size: int) -> None:
    """A larger alignment would be a promise that arrays do not keep."""
    builder = ir.IRBuilder(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f").append_basic_block())
    code = Emitter(builder, LANES)
    code.store(code.load(code.word(64), element), code.word(128))
    assert [line.rpartition("align ")[2] for line in str(builder.block).splitlines() if "align" in line] == [
        str(size)
    ] * 2
