"""Two-dimensional max pooling and its gradient: passes over vectors of channels, which lie side by side.

oneDNN's primitives overlook NaN and minus infinity. What is kept for the gradient is the number of the position in the
window, u · kw + v, that each output came from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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
"""Elements of a window up to which a pass is compiled for its size."""


class _Form(NamedTuple):
    """What a pass is compiled for."""

    kept: int
    """Bytes of the number of a position: 0, 1 or 4."""
    masked: bool
    """Whether there are fewer channels than a vector has."""
    rows: int
    """Of a window; 0 where it is large."""
    columns: int
    disjoint: bool
    """Gradients: whether no element is in two windows."""


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


# Instructions on vectors of channels.

_register: Callable[[Any, Any], Any] = cgutils.alloca_once_value


class _Windows(Emitter):
    """Emits instructions on vectors of LANES channels, or on the first `count` of them."""

    def __init__(self, builder: Any, kept: int, count: Any | None) -> None:
        super().__init__(builder, LANES, count)
        self.number = ir.IntType(8 * kept or 32)

    def load_numbers(self, place: Any) -> Any:
        """Numbers of positions."""
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
"""The part of a window that lies on the image: its rows and columns, the number of its first position, the columns of
the window, where the first position lies, and the bytes between rows and between columns."""


@functools.cache
def _largest_whole(form: _Form) -> Any:
    """The largest of a window and the number of its position, unless there is NaN: whether there is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, row, column, y, kept, count = arguments
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

    def largest_whole(typing: Any, start: Any, row: Any, column: Any, y: Any, kept: Any, count: Any) -> Any:
        return types.int64(*[types.int64] * 6), generate

    return instruction(largest_whole)


@functools.cache
def _largest_part(form: _Form) -> Any:
    """The largest of a part of a window, where NaN is larger than everything, and the last one than all."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *window, y, kept, count = arguments
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
        return context.get_dummy_value()

    def largest_part(
        typing: Any, rows: Any, columns: Any, number: Any, width: Any, start: Any, row: Any, column: Any,
        y: Any, kept: Any, count: Any,
    ) -> Any:  # fmt: skip
        return types.void(*_PART, *[types.int64] * 3), generate

    return instruction(largest_part)


def _shares(vectors: _Windows, form: _Form, dy: Any, kept: Any, skipped: Any) -> Callable[[Any], Any]:
    """What of dy belongs to the position of a number. skipped: the first lanes, which have been there before."""
    builder, gradient, picked = vectors.builder, vectors.load(dy), vectors.load_numbers(kept)
    zero = ir.Constant(gradient.type, None)
    if not form.masked:
        new = builder.icmp_signed(">=", vectors.indices, vectors.splat(builder.trunc(skipped, vectors.lane)))
        gradient = gradient if form.disjoint else builder.select(new, gradient, zero)
    return lambda number: builder.select(builder.icmp_signed("==", picked, number), gradient, zero)


@functools.cache
def _scatter_whole(form: _Form) -> Any:
    """dy to the positions of a window: written, where windows are disjoint, else added. last: the number of channels
    where there are few, else of those that have been there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, row, column, dy, kept, last = arguments
        vectors = _Windows(builder, form.kept, last if form.masked else None)
        share = _shares(vectors, form, dy, kept, last)
        for number, place in vectors.whole(form, start, row, column):
            value = share(number)
            vectors.store(value if form.disjoint else builder.fadd(vectors.load(place), value), place)
        return context.get_dummy_value()

    def scatter_whole(typing: Any, start: Any, row: Any, column: Any, dy: Any, kept: Any, last: Any) -> Any:
        return types.void(*[types.int64] * 6), generate

    return instruction(scatter_whole)


@functools.cache
def _scatter_part(form: _Form) -> Any:
    """The same for a part of a window."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *window, dy, kept, last = arguments
        vectors = _Windows(builder, form.kept, last if form.masked else None)
        share = _shares(vectors, form, dy, kept, last)
        for number, place in vectors.part(window):
            value = share(number)
            vectors.store(value if form.disjoint else builder.fadd(vectors.load(place), value), place)
        return context.get_dummy_value()

    def scatter_part(
        typing: Any, rows: Any, columns: Any, number: Any, width: Any, start: Any, row: Any, column: Any,
        dy: Any, kept: Any, last: Any,
    ) -> Any:  # fmt: skip
        return types.void(*_PART, *[types.int64] * 3), generate

    return instruction(scatter_part)


# Passes.

MAXIMA = Arguments(x=Address, y=Address, kept=Address, windows=WINDOWS)
MAXIMA_GRADIENT = Arguments(dy=Address, kept=Address, dx=Address, windows=WINDOWS, covered=int)
"""covered: whether disjoint windows cover the image, so that it need not be cleared."""


@inlined
def _inside(start: int, size: int, kernel: int, dilation: int) -> tuple[int, int]:
    """The first position of a window on one axis that lies on the image, and how many do."""
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
    whole, part = _largest_whole(form), _largest_part(form)
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
                        # The last vector begins inside the one before where they do not fit.
                        c = start if few else min(start, channels - LANES)
                        general = 1
                        if rows != 0 and high == rows and wide == columns:
                            general = whole(x + 4 * c, row, column, y + 4 * c, kept + size * c, channels)
                        if general != 0:
                            part(
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
    whole, part = _scatter_whole(form), _scatter_part(form)
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
                            whole(dx + 4 * c, row, column, dy + 4 * c, kept + size * c, last)
                        else:
                            part(
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
