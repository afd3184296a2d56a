"""The library's matrix product as a native call, for parts of matrices, which the library's inner product does not
support."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import instruction, native_pass
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
def dnnl_sgemm(
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


PRODUCT = Arguments(
    function=Address,
    a=Address,
    a_row=int,
    a_transposed=int,
    b=Address,
    b_row=int,
    b_transposed=int,
    c=Address,
    c_row=int,
    m=int,
    n=int,
    k=int,
)
"""function: `dnnl_sgemm`. The operands are described as `Matrix`; c is (m, n)."""


@native_pass(PRODUCT)
def multiply(block: Any) -> int:
    status: int = dnnl_sgemm(
        block.function,
        block.a_transposed,
        block.b_transposed,
        block.m,
        block.n,
        block.k,
        block.a,
        block.a_row,
        block.b,
        block.b_row,
        block.c,
        block.c_row,
    )
    return status


@functools.cache
def sgemm_address() -> int:
    """The address of `dnnl_sgemm`."""
    return function_address("dnnl_sgemm")


def product_call(
    name: str, sizes: tuple[int, int, int], a: Matrix, b: Matrix, c: Matrix, references: Sequence[object]
) -> NativeCall:
    """c (m × n) ← a (m × k) · b (k × n), sizes = (m, n, k)."""
    m, n, k = sizes
    return multiply.call(
        name,
        function=sgemm_address(),
        a=a.address,
        a_row=a.row,
        a_transposed=int(a.transposed),
        b=b.address,
        b_row=b.row,
        b_transposed=int(b.transposed),
        c=c.address,
        c_row=c.row,
        m=m,
        n=n,
        k=k,
        references=references,
    )
