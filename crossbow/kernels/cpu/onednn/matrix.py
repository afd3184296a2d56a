"""The library's matrix product as a native call, for parts of matrices, which its inner product does not support."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from crossbow.kernels.compiled import instruction, int64_at, native
from crossbow.kernels.cpu.onednn.binding import function_address
from crossbow.kernels.native import NativeCall


@dataclass(frozen=True)
class Matrix:
    """A row-major float32 matrix in memory, or its transpose."""

    address: int
    row: int
    """Number of elements between the starts of two rows in memory."""
    transposed: bool = False


@instruction
def _dnnl_sgemm(
    typing_context: Any,
    function: Any,
    transposed_a: Any,
    transposed_b: Any,
    m: Any,
    n: Any,
    k: Any,
    a: Any,
    row_a: Any,
    b: Any,
    row_b: Any,
    c: Any,
    row_c: Any,
) -> Any:
    """`dnnl_sgemm` with α = 1 and β = 0."""
    arguments = 12

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word, character, single = ir.IntType(64), ir.IntType(8), ir.FloatType()
        kinds = [character] * 2 + [word] * 3 + [single] + [word] * 4 + [single] + [word] * 2
        pointer = builder.inttoptr(values[0], ir.FunctionType(ir.IntType(32), kinds).as_pointer())
        letters = [
            builder.select(builder.icmp_signed("!=", value, word(0)), character(ord("T")), character(ord("N")))
            for value in values[1:3]
        ]
        return builder.call(pointer, [*letters, *values[3:6], single(1), *values[6:10], single(0), *values[10:]])

    return types.int32(*[types.int64] * arguments), generate


@native
def multiply(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dnnl_sgemm, whether a and b are transposed, m, n, k, a, its row, b, its row, c, its row."""
    x = int64_at(arguments)
    status: int = _dnnl_sgemm(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11])
    return status


@functools.cache
def _sgemm() -> int:
    return function_address("dnnl_sgemm")


def product_call(
    name: str, sizes: tuple[int, int, int], a: Matrix, b: Matrix, c: Matrix, references: Sequence[object]
) -> NativeCall:
    """c (m × n) ← a (m × k) · b (k × n), sizes = (m, n, k)."""
    slots = (_sgemm(), int(a.transposed), int(b.transposed), *sizes, a.address, a.row, b.address, b.row)
    return multiply.call(name, *slots, c.address, c.row, references=references)
