"""Two-dimensional max pooling and its gradient: passes over vectors of channels, which lie side by side.

They are as fast as oneDNN's, which overlooks NaN and minus infinity. What is kept for the gradient is the number of the
position in the window, u · kw + v, that each output came from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from crossbow.kernels.compiled import NativeFunction, float32_at, inlined, instruction, int64_at, native, prepared_pass
from crossbow.kernels.interface import PoolingGeometry, PreparedKernel
from crossbow.kernels.onednn.windows import window_slots
from crossbow.types import Phase, Tensor

LANES = 16
"""Channels of a vector."""
NOTHING, BYTES, WORDS = 0, 1, 4
"""What is kept of a position: nothing, or so many bytes."""
_register: Callable[[Any, Any], Any] = cgutils.alloca_once_value
_declare: Callable[[Any, Any, str], Any] = cgutils.get_or_insert_function


def forward(x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase) -> PreparedKernel:
    """input0 → output (and kept, when training)."""
    reads, slots = ("input0",), window_slots(x, y, geometry)
    if phase is Phase.CHECK:
        return prepared_pass("pooling_forward max", _forward(NOTHING, _masked(x)), reads, ("output",), *slots)
    size = _size(geometry)
    writes, kept = ("output", "kept"), size * y.elements
    return prepared_pass("pooling_forward max", _forward(size, _masked(x)), reads, writes, *slots, kept=kept)


def backward(dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
    """output_gradient, kept → input_gradient."""
    function, reads = _backward(_size(geometry), _masked(dx)), ("output_gradient", "kept")
    return prepared_pass("pooling_backward max", function, reads, ("input_gradient",), *window_slots(dx, dy, geometry))


def _size(geometry: PoolingGeometry) -> int:
    """Bytes that the number of a position takes."""
    rows, columns = geometry.kernel
    return BYTES if rows * columns <= 2**8 else WORDS


def _masked(x: Tensor) -> bool:
    """Whether there are fewer channels than a vector has."""
    return x.shape[1] < LANES


class _Window:
    """Writes instructions on vectors of channels, perhaps the first `count` lanes of them only."""

    word, lane = ir.IntType(64), ir.IntType(32)

    def __init__(self, builder: Any, size: int, count: Any | None) -> None:
        self.builder, self.size, self.mask = builder, size, None
        if count is not None:
            self.mask = builder.icmp_signed("<", self.lanes(), self.splat(builder.trunc(count, self.lane)))

    def vector(self, element: Any) -> Any:
        return ir.VectorType(element, LANES)

    def lanes(self) -> Any:
        return ir.Constant(self.vector(self.lane), list(range(LANES)))

    def splat(self, value: Any) -> Any:
        undefined = ir.Constant(self.vector(value.type), ir.Undefined)
        first = self.builder.insert_element(undefined, value, self.lane(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.vector(self.lane), None))

    def load(self, place: Any, element: Any) -> Any:
        kind = self.vector(element)
        pointer = self.builder.inttoptr(place, kind.as_pointer())
        alignment = self._bytes(element)
        if self.mask is None:
            return self.builder.load(pointer, align=alignment)
        kinds = [pointer.type, self.lane, self.mask.type, kind]
        function = self._intrinsic("load", ir.FunctionType(kind, kinds), element)
        return self.builder.call(function, [pointer, self.lane(alignment), self.mask, ir.Constant(kind, None)])

    def store(self, value: Any, place: Any) -> None:
        element = value.type.element
        pointer = self.builder.inttoptr(place, value.type.as_pointer())
        alignment = self._bytes(element)
        if self.mask is None:
            self.builder.store(value, pointer, align=alignment)
            return
        kinds = [value.type, pointer.type, self.lane, self.mask.type]
        function = self._intrinsic("store", ir.FunctionType(ir.VoidType(), kinds), element)
        self.builder.call(function, [value, pointer, self.lane(alignment), self.mask])

    def _bytes(self, element: Any) -> int:
        return 4 if isinstance(element, ir.FloatType) else element.width // 8

    def _intrinsic(self, what: str, signature: Any, element: Any) -> Any:
        name = f"v{LANES}{'f' if isinstance(element, ir.FloatType) else 'i'}{8 * self._bytes(element)}"
        return _declare(self.builder.module, signature, f"llvm.masked.{what}.{name}.p0{name}")

    def positions(self, rows: Any, columns: Any, number: Any, width: Any, start: Any, row: Any, column: Any) -> Any:
        """Every position of a window that lies on the image: its number and where it lies. number: of the first one;
        width: of a row of the kernel; start: the first one's place; row, column: bytes between neighbours."""
        builder = self.builder
        with cgutils.for_range(builder, rows) as outer:
            first = builder.add(number, builder.mul(outer.index, width))
            line = builder.add(start, builder.mul(outer.index, row))
            with cgutils.for_range(builder, columns) as inner:
                place = builder.add(line, builder.mul(inner.index, column))
                yield self.splat(builder.trunc(builder.add(first, inner.index), self.lane)), place

    @property
    def kept(self) -> Any:
        """The type of a kept number."""
        return ir.IntType(8 * self.size)


_WINDOW = [types.int64] * 7
"""Rows, columns, number of the first position, width of the kernel, place of the first, bytes between neighbours."""


def _pointed(size: Any, masked: Any) -> bool:
    return isinstance(size, types.IntegerLiteral) and isinstance(masked, types.IntegerLiteral)


@instruction
def _largest(
    typing_context: Any, size: Any, masked: Any, rows: Any, columns: Any, number: Any, width: Any, start: Any, row: Any,
    column: Any, y: Any, kept: Any, count: Any,
) -> Any:  # fmt: skip
    """The largest of a window, of `count` channels where masked, and the number of its position."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        window = _Window(builder, size.literal_value, arguments[11] if masked.literal_value else None)
        single = ir.FloatType()
        number, start = arguments[4], arguments[6]
        largest = _register(builder, window.load(start, single))
        first = _register(builder, window.splat(builder.trunc(number, window.lane)))
        for position, place in window.positions(*arguments[2:9]):
            old, new = builder.load(largest), window.load(place, single)
            # NaN is larger than everything, and nothing is larger than NaN but the next one.
            larger = builder.or_(builder.fcmp_ordered(">", new, old), builder.fcmp_unordered("uno", new, new))
            builder.store(builder.select(larger, new, old), largest)
            builder.store(builder.select(larger, position, builder.load(first)), first)
        window.store(builder.load(largest), arguments[9])
        if size.literal_value == BYTES:
            window.store(builder.trunc(builder.load(first), window.vector(window.kept)), arguments[10])
        elif size.literal_value == WORDS:
            window.store(builder.load(first), arguments[10])
        return context.get_dummy_value()

    return (types.void(size, masked, *_WINDOW, *[types.int64] * 3), generate) if _pointed(size, masked) else None


@instruction
def _scatter(
    typing_context: Any, size: Any, masked: Any, rows: Any, columns: Any, number: Any, width: Any, start: Any, row: Any,
    column: Any, dy: Any, kept: Any, count: Any,
) -> Any:  # fmt: skip
    """Add dy to the positions that are kept. count: the channels, where masked; else the first that is new."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        masks = bool(masked.literal_value)
        window = _Window(builder, size.literal_value, arguments[11] if masks else None)
        single = ir.FloatType()
        gradient, picked = window.load(arguments[9], single), window.load(arguments[10], window.kept)
        if size.literal_value == BYTES:
            picked = builder.zext(picked, window.vector(window.lane))
        zero = ir.Constant(gradient.type, None)
        if not masks:
            skipped = window.splat(builder.trunc(arguments[11], window.lane))
            gradient = builder.select(builder.icmp_signed(">=", window.lanes(), skipped), gradient, zero)
        for position, place in window.positions(*arguments[2:9]):
            mine = builder.select(builder.icmp_signed("==", picked, position), gradient, zero)
            window.store(builder.fadd(window.load(place, single), mine), place)
        return context.get_dummy_value()

    return (types.void(size, masked, *_WINDOW, *[types.int64] * 3), generate) if _pointed(size, masked) else None


@inlined
def _span(start: int, size: int, kernel: int, dilation: int) -> tuple[int, int]:
    """The first position of a window on one axis that lies on the image, and the first behind those that do."""
    return max(0, -(start // dilation)), min(kernel, (size - start + dilation - 1) // dilation)


@inlined
def _clear(place: int, count: int) -> None:
    numbers = float32_at(place)
    for index in range(count):
        numbers[index] = np.float32(0)


@functools.cache
def _forward(size: int, masked: bool) -> NativeFunction:
    """The compiled pass that keeps so much of a position."""
    by_mask = int(masked)

    def maxima(arguments: int, _1: int, _2: int, _3: int) -> int:
        """Block: x, y[, kept], then as `window_slots`."""
        a = int64_at(arguments)
        b = int64_at(arguments + (8 if size else 0))  # the sizes begin at 2
        channels = b[11]
        last = max(channels - LANES, 0)
        for n in range(b[10]):
            for i in range(b[14]):
                top = i * b[18] - b[20]
                u, u_end = _span(top, b[12], b[16], b[24])
                for j in range(b[15]):
                    left = j * b[19] - b[21]
                    v, v_end = _span(left, b[13], b[17], b[25])
                    x = a[0] + 4 * (n * b[2] + (top + u * b[24]) * b[4] + (left + v * b[25]) * b[5])
                    element = n * b[6] + i * b[8] + j * b[9]
                    for start in range(0, channels, LANES):
                        c = min(start, last)  # the last vector begins inside the one before where they do not fit
                        kept = a[2] + size * (element + c) if size else 0
                        _largest(
                            size, by_mask, u_end - u, v_end - v, u * b[17] + v, b[17], x + 4 * c, 4 * b[24] * b[4],
                            4 * b[25] * b[5], a[1] + 4 * (element + c), kept, channels,
                        )  # fmt: skip
        return 0

    maxima.__name__ = f"maxima_{size}_{by_mask}"
    return native(maxima)


@functools.cache
def _backward(size: int, masked: bool) -> NativeFunction:
    by_mask = int(masked)

    def maxima_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
        """Block: dy, kept, dx, then as `window_slots` of dx and dy."""
        a, b = int64_at(arguments), int64_at(arguments + 8)  # the sizes begin at 2
        channels = b[11]
        last = max(channels - LANES, 0)
        for n in range(b[10]):
            _clear(a[2] + 4 * n * b[2], b[2])
            for i in range(b[14]):
                top = i * b[18] - b[20]
                u, u_end = _span(top, b[12], b[16], b[24])
                for j in range(b[15]):
                    left = j * b[19] - b[21]
                    v, v_end = _span(left, b[13], b[17], b[25])
                    dx = a[2] + 4 * (n * b[2] + (top + u * b[24]) * b[4] + (left + v * b[25]) * b[5])
                    element = n * b[6] + i * b[8] + j * b[9]
                    for start in range(0, channels, LANES):
                        c = min(start, last)
                        _scatter(
                            size, by_mask, u_end - u, v_end - v, u * b[17] + v, b[17], dx + 4 * c, 4 * b[24] * b[4],
                            4 * b[25] * b[5], a[0] + 4 * (element + c), a[1] + size * (element + c),
                            channels if by_mask else start - c,
                        )  # fmt: skip
        return 0

    maxima_gradient.__name__ = f"maxima_gradient_{size}_{by_mask}"
    return native(maxima_gradient)
