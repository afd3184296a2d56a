"""Two-dimensional max pooling and its gradient: passes over vectors of channels, which are contiguous.

oneDNN's primitives ignore NaN and minus infinity. Kept for the gradient is the number of the position in the window,
u · kw + v, of each output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import NativeFunction, float32_at, inlined, instruction, native_pass, prepared_pass
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.cpu.passes.windows import WINDOWS, slides, windows
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Phase, Tensor

LANES = 16
"""Channels of a vector."""
WRITTEN_OUT = 9
"""Maximum number of positions of a window whose size is compiled into the pass."""


class _Form(NamedTuple):
    """The parameters for which a pass is compiled."""

    kept: int
    """Size in bytes of a kept position number: 0, 1 or 4."""
    masked: bool
    """Whether there are fewer channels than lanes."""
    rows: int
    """Size of the window; 0 if it is large."""
    columns: int
    disjoint: bool
    """In gradients, whether no element is in two windows."""

    @property
    def code(self) -> int:
        """The form as a number, which is a literal in compiled functions. Its digits are the fields."""
        return int("".join(str(int(field)) for field in self))

    @staticmethod
    def of(code: int) -> _Form:
        kept, masked, rows, columns, disjoint = map(int, f"{code:05}")
        return _Form(kept, bool(masked), rows, columns, bool(disjoint))


@PASSES.kernel(PoolingForward, lambda request: slides(request.x, request.geometry, "max"))
def forward(request: PoolingForward) -> PreparedKernel:
    x, y, geometry, phase = request.x, request.y, request.geometry, request.phase
    form = _form(x, geometry, phase)
    places: dict[str, Any] = {"x": "input0", "y": "output", "kept": "kept" if form.kept else None}
    return prepared_pass(
        request,
        _maxima(form._replace(disjoint=False)),
        nbytes_kept=form.kept * y.elements,
        **places,
        windows=windows(x, y, geometry),
    )


@PASSES.kernel(PoolingBackward, lambda request: slides(request.dx, request.geometry, "max"))
def backward(request: PoolingBackward) -> PreparedKernel:
    dy, dx, geometry = request.dy, request.dx, request.geometry
    covered = geometry.kernel == geometry.extent == geometry.stride and all(
        windows * step - before >= size
        for size, windows, step, (before, _) in zip(
            dx.shape[2:], dy.shape[2:], geometry.stride, geometry.padding, strict=True
        )
    )
    return prepared_pass(
        request,
        _gradient(_form(dx, geometry, Phase.TRAIN)),
        dy="output_gradient",
        kept="kept",
        dx="input_gradient",
        windows=windows(dx, dy, geometry),
        covered=int(covered),
    )


def _form(x: Tensor, geometry: PoolingGeometry, phase: Phase) -> _Form:
    rows, columns = geometry.kernel
    kept = 0 if phase is Phase.CHECK else 1 if rows * columns <= 2**8 else 4
    disjoint = all(extent <= step for extent, step in zip(geometry.extent, geometry.stride, strict=True))
    written = (rows, columns) if rows * columns <= WRITTEN_OUT else (0, 0)
    return _Form(kept, x.shape[1] < LANES, *written, disjoint)


# Instructions on vectors of channels

_register: Callable[[Any, Any], Any] = cgutils.alloca_once_value


class _Windows(Emitter):
    """Emits instructions on vectors of LANES channels, or on the first `count` of them."""

    def __init__(self, builder: Any, kept: int, count: Any | None) -> None:
        super().__init__(builder, LANES, count)
        self.number = ir.IntType(8 * kept or 32)

    def load_numbers(self, place: Any) -> Any:
        """Load position numbers."""
        return self.builder.zext(self.load(place, self.number), self.vector(self.lane))

    def store_numbers(self, value: Any, place: Any) -> None:
        self.store(self.builder.trunc(value, self.vector(self.number)), place)

    def whole(self, form: _Form, start: Any, row: Any, column: Any) -> Iterator[tuple[Any, Any]]:
        """All positions of a window of the form's size, unrolled: their numbers and addresses."""
        builder = self.builder
        for u in range(form.rows):
            line = builder.add(start, builder.mul(row, self.word(u)))
            for v in range(form.columns):
                number = ir.Constant(self.vector(self.lane), [u * form.columns + v] * LANES)
                yield number, builder.add(line, builder.mul(column, self.word(v)))

    def part(self, window: Any) -> Iterator[tuple[Any, Any]]:
        """The positions of a part of a window, in loops. window: the values of `_PART`."""
        builder, (rows, columns, number, width, start, row, column) = self.builder, window
        with cgutils.for_range(builder, rows) as outer:
            first = builder.add(number, builder.mul(outer.index, width))
            line = builder.add(start, builder.mul(outer.index, row))
            with cgutils.for_range(builder, columns) as inner:
                position = self.splat(builder.trunc(builder.add(first, inner.index), self.lane))
                yield position, builder.add(line, builder.mul(inner.index, column))


_PART = [types.int64] * 7
"""The part of a window on the image: its rows and columns, the number of its first position, the columns of the window,
the address of the first position, and the bytes between rows and between columns."""


def _whole(result: Any, emit: Callable[..., Any]) -> Any:
    """The instruction for whole windows of a form, given by its code. emit: (builder, form, arguments)."""

    @instruction
    def whole(
        typing: Any, form: Any, start: Any, row: Any, column: Any, values: Any, kept: Any, last: Any
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return emit(builder, _Form.of(form.literal_value), *arguments[1:]) or context.get_dummy_value()

        return (result(form, *[types.int64] * 6), generate) if isinstance(form, types.IntegerLiteral) else None

    return whole


def _part(emit: Callable[..., Any]) -> Any:
    """The instruction for parts of windows."""

    @instruction
    def part(
        typing: Any, form: Any, rows: Any, columns: Any, number: Any, width: Any, start: Any, row: Any, column: Any,
        values: Any, kept: Any, last: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit(builder, _Form.of(form.literal_value), arguments[1:8], *arguments[8:])
            return context.get_dummy_value()

        known = isinstance(form, types.IntegerLiteral)
        return (types.void(form, *_PART, *[types.int64] * 3), generate) if known else None

    return part


def _emit_largest(builder: Any, form: _Form, start: Any, row: Any, column: Any, y: Any, kept: Any, count: Any) -> Any:
    vectors = _Windows(builder, form.kept, count if form.masked else None)
    if not form.rows:
        return vectors.word(1)
    values = [(number, vectors.load(place)) for number, place in vectors.whole(form, start, row, column)]
    first, largest = values[0]
    for number, value in values[1:]:
        larger = builder.fcmp_ordered(">", value, largest)
        largest = builder.select(larger, value, largest)
        first = builder.select(larger, number, first)
    vectors.store(largest, y)
    if form.kept:
        vectors.store_numbers(first, kept)
    pairs = [(values[at][1], values[min(at + 1, len(values) - 1)][1]) for at in range(0, len(values), 2)]
    unordered = [builder.fcmp_unordered("uno", one, other) for one, other in pairs]
    return builder.zext(builder.bitcast(functools.reduce(builder.or_, unordered), ir.IntType(LANES)), vectors.word)


def _emit_largest_part(builder: Any, form: _Form, window: Sequence[Any], y: Any, kept: Any, count: Any) -> None:
    vectors = _Windows(builder, form.kept, count if form.masked else None)
    largest = _register(builder, vectors.load(window[4]))
    first = _register(builder, vectors.splat(builder.trunc(window[2], vectors.lane)))
    for number, place in vectors.part(window):
        old, new = builder.load(largest), vectors.load(place)
        larger = builder.or_(builder.fcmp_ordered(">", new, old), builder.fcmp_unordered("uno", new, new))
        builder.store(builder.select(larger, new, old), largest)
        builder.store(builder.select(larger, number, builder.load(first)), first)
    vectors.store(builder.load(largest), y)
    if form.kept:
        vectors.store_numbers(builder.load(first), kept)


def _emit_scatter(builder: Any, form: _Form, start: Any, row: Any, column: Any, dy: Any, kept: Any, last: Any) -> None:
    vectors = _Windows(builder, form.kept, last if form.masked else None)
    _add_shares(vectors, form, vectors.whole(form, start, row, column), dy, kept, last)


def _emit_scatter_part(builder: Any, form: _Form, window: Sequence[Any], dy: Any, kept: Any, last: Any) -> None:
    vectors = _Windows(builder, form.kept, last if form.masked else None)
    _add_shares(vectors, form, vectors.part(window), dy, kept, last)


def _add_shares(
    vectors: _Windows, form: _Form, positions: Iterator[tuple[Any, Any]], dy: Any, kept: Any, last: Any
) -> None:
    """Scatter dy to the positions: dy at the position whose number was kept, else 0."""
    builder, gradient, picked = vectors.builder, vectors.load(dy), vectors.load_numbers(kept)
    zero = ir.Constant(gradient.type, None)
    if not form.masked:
        new = builder.icmp_signed(">=", vectors.indices, vectors.splat(builder.trunc(last, vectors.lane)))
        gradient = gradient if form.disjoint else builder.select(new, gradient, zero)
    for number, place in positions:
        value = builder.select(builder.icmp_signed("==", picked, number), gradient, zero)
        vectors.store(value if form.disjoint else builder.fadd(vectors.load(place), value), place)


_largest_whole = _whole(types.int64, _emit_largest)
"""Write the largest value of a window and the number of its position, unless the window contains NaN. Returns whether
it does. last: the number of channels, if there are few."""
_largest_part = _part(_emit_largest_part)
"""The largest value of a part of a window. NaN is larger than every number, and the last NaN is the largest."""
_scatter_whole = _whole(types.void, _emit_scatter)
"""Scatter dy to the positions of a window. It is written if windows are disjoint, otherwise added. last: the number of
channels if there are few, otherwise the number of lanes that the previous vector has already scattered."""
_scatter_part = _part(_emit_scatter_part)


# Passes

MAXIMA = Arguments(x=Address, y=Address, kept=Address, windows=WINDOWS)
MAXIMA_GRADIENT = Arguments(dy=Address, kept=Address, dx=Address, windows=WINDOWS, covered=int)
"""covered: whether disjoint windows cover the image, so that it need not be cleared."""


@inlined
def _inside(start: int, size: int, kernel: int, dilation: int) -> tuple[int, int]:
    """The first position of a window on one axis that is on the image, and the number of such positions."""
    if start >= 0 and start + (kernel - 1) * dilation < size:
        return 0, kernel
    first = max(0, -(start // dilation))
    return first, min(kernel, (size - start + dilation - 1) // dilation) - first


@inlined
def _clear(place: int, count: int) -> None:
    numbers = float32_at(place)
    for index in range(count):
        numbers[index] = np.float32(0)


@functools.cache
def _maxima(form: _Form) -> NativeFunction:
    """The compiled pass of a form."""
    code = form.code  # an integer, because numba's cache compares closures by value
    size, few, rows, columns = form.kept, form.masked, form.rows, form.columns

    def maxima(block: Any) -> int:
        w = block.windows
        channels, row, column = w.channels, 4 * w.row_dilation * w.x.h, 4 * w.column_dilation * w.x.w
        for n in range(w.images):
            for i in range(w.rows):
                top = i * w.row_stride - w.top
                u, high = _inside(top, w.height, w.kernel_rows, w.row_dilation)
                for j in range(w.columns):
                    left = j * w.column_stride - w.left
                    v, wide = _inside(left, w.width, w.kernel_columns, w.column_dilation)
                    x = block.x + 4 * (
                        n * w.x.n + (top + u * w.row_dilation) * w.x.h + (left + v * w.column_dilation) * w.x.w
                    )
                    element, number = n * w.y.n + i * w.y.h + j * w.y.w, u * w.kernel_columns + v
                    y, kept = block.y + 4 * element, block.kept + size * element
                    for start in range(0, channels, LANES):
                        # The last vector overlaps the previous one unless the number of channels is a multiple of
                        # LANES.
                        c = start if few else min(start, channels - LANES)
                        general = 1
                        if rows != 0 and high == rows and wide == columns:
                            general = _largest_whole(code, x + 4 * c, row, column, y + 4 * c, kept + size * c, channels)
                        if general != 0:
                            _largest_part(
                                code,
                                high,
                                wide,
                                number,
                                w.kernel_columns,
                                x + 4 * c,
                                row,
                                column,
                                y + 4 * c,
                                kept + size * c,
                                channels,
                            )
        return 0

    maxima.__name__ = "maxima_" + "_".join(str(int(each)) for each in form)
    return native_pass(MAXIMA)(maxima)


@functools.cache
def _gradient(form: _Form) -> NativeFunction:
    """The compiled pass of a form."""
    code = form.code
    size, few, rows, columns, disjoint = form

    def maxima_gradient(block: Any) -> int:
        w = block.windows
        channels, row, column = w.channels, 4 * w.row_dilation * w.x.h, 4 * w.column_dilation * w.x.w
        for n in range(w.images):
            if not disjoint or block.covered == 0:
                _clear(block.dx + 4 * n * w.x.n, w.x.n)
            for i in range(w.rows):
                top = i * w.row_stride - w.top
                u, high = _inside(top, w.height, w.kernel_rows, w.row_dilation)
                for j in range(w.columns):
                    left = j * w.column_stride - w.left
                    v, wide = _inside(left, w.width, w.kernel_columns, w.column_dilation)
                    dx = block.dx + 4 * (
                        n * w.x.n + (top + u * w.row_dilation) * w.x.h + (left + v * w.column_dilation) * w.x.w
                    )
                    element, number = n * w.y.n + i * w.y.h + j * w.y.w, u * w.kernel_columns + v
                    dy, kept = block.dy + 4 * element, block.kept + size * element
                    for start in range(0, channels, LANES):
                        c = start if few else min(start, channels - LANES)
                        last = channels if few else start - c
                        if rows != 0 and high == rows and wide == columns:
                            _scatter_whole(code, dx + 4 * c, row, column, dy + 4 * c, kept + size * c, last)
                        else:
                            _scatter_part(
                                code,
                                high,
                                wide,
                                number,
                                w.kernel_columns,
                                dx + 4 * c,
                                row,
                                column,
                                dy + 4 * c,
                                kept + size * c,
                                last,
                            )
        return 0

    maxima_gradient.__name__ = "maxima_gradient_" + "_".join(str(int(each)) for each in form)
    return native_pass(MAXIMA_GRADIENT)(maxima_gradient)
