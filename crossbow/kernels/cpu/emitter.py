"""Emits LLVM instructions on vectors, for passes whose loops the compiler does not vectorise well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from crossbow.kernels.cpu.simd import processor

_declare: Callable[[Any, Any, str], Any] = cgutils.get_or_insert_function


class Emitter:
    """Emits instructions on vectors of `lanes` numbers, or on single numbers (lanes = 1).

    Addresses are 64-bit integers. Memory need only be aligned to its elements.
    """

    word, lane = ir.IntType(64), ir.IntType(32)
    single, double = ir.FloatType(), ir.DoubleType()

    def __init__(self, builder: Any, lanes: int, count: Any | None = None) -> None:
        """count: the number of lanes, from the first one on, that `load` and `store` access, as an LLVM integer; None
        means all."""
        self.builder, self.lanes = builder, lanes
        self.mask: Any = None
        if count is not None:
            self.mask = builder.icmp_signed("<", self.indices, self.splat(builder.trunc(count, self.lane)))

    def vector(self, element: Any) -> Any:
        """The type of a vector with elements of this type."""
        return element if self.lanes == 1 else ir.VectorType(element, self.lanes)

    @property
    def indices(self) -> Any:
        """The vector of lane numbers."""
        return ir.Constant(self.vector(self.lane), list(range(self.lanes)))

    def constant(self, value: float, element: Any = single) -> Any:
        """A vector of equal constants."""
        return ir.Constant(self.vector(element), value if self.lanes == 1 else [value] * self.lanes)

    def splat(self, value: Any) -> Any:
        """A vector of copies of a number."""
        if self.lanes == 1:
            return value
        undefined = ir.Constant(self.vector(value.type), ir.Undefined)
        first = self.builder.insert_element(undefined, value, self.lane(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.vector(self.lane), None))

    def load(self, address: Any, element: Any = single) -> Any:
        """The vector at an address; lanes that the mask excludes are 0."""
        kind = self.vector(element)
        pointer, size = self.builder.inttoptr(address, kind.as_pointer()), _size(element)
        if self.mask is None:
            return self.builder.load(pointer, align=size)
        arguments = [pointer, self.lane(size), self.mask, ir.Constant(kind, None)]
        return self._call("masked.load", kind, element, arguments, memory=True)

    def store(self, value: Any, address: Any, *, past_cache: bool = False) -> None:
        """Write a vector. past_cache: write directly to memory; the address must then be a multiple of the vector's
        size."""
        element = value.type if self.lanes == 1 else value.type.element
        pointer, size = self.builder.inttoptr(address, value.type.as_pointer()), _size(element)
        if self.mask is not None:
            arguments = [value, pointer, self.lane(size), self.mask]
            self._call("masked.store", ir.VoidType(), element, arguments, memory=True)
            return
        stored = self.builder.store(value, pointer, align=size)
        if past_cache and self.lanes > 1:
            stored.align = size * self.lanes
            stored.set_metadata("nontemporal", self.builder.module.add_metadata([self.lane(1)]))

    def element(self, base: Any, index: int, element: Any = single) -> Any:
        """A single number of an array."""
        pointer = self.builder.inttoptr(base, element.as_pointer())
        return self.builder.load(self.builder.gep(pointer, [self.word(index)]))

    def widened(self, value: Any) -> Any:
        """The value in double precision."""
        return self.builder.fpext(value, self.vector(self.double))

    def floored(self, value: Any, floor: Any) -> Any:
        """max(value, floor), in which NaN stays NaN."""
        return self.builder.select(self.builder.fcmp_ordered("<", value, floor), floor, value)

    def fused(self, left: Any, right: Any, total: Any) -> Any:
        """left · right + total, rounded once if the processor can."""
        if not processor.VECTORS.fused:  # otherwise LLVM would call a function for every number
            return self.builder.fadd(self.builder.fmul(left, right), total)
        return self._call("fma", total.type, self.single, [left, right, total])

    def _call(self, name: str, result: Any, element: Any, arguments: Sequence[Any], memory: bool = False) -> Any:
        letter = "i" if isinstance(element, ir.IntType) else "f"
        suffix = f"v{self.lanes}{letter}{8 * _size(element)}"
        signature = ir.FunctionType(result, [argument.type for argument in arguments])
        full = f"llvm.{name}.{suffix}.p0{suffix}" if memory else f"llvm.{name}.{suffix}"
        return self.builder.call(_declare(self.builder.module, signature, full), arguments)


def _size(element: Any) -> int:
    """Size of a number in bytes."""
    if isinstance(element, ir.IntType):
        return int(element.width) // 8
    return 8 if isinstance(element, ir.DoubleType) else 4
