"""From our operators to ONNX ones: one small function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from crossbow.kernels.interface import PoolingGeometry
from crossbow.onnx.writing.place import Place
from crossbow.onnx.writing.table import writes
from crossbow.ops import (
    LRN,
    BatchNorm,
    Broadcast,
    Classify,
    Concat,
    Conv,
    ElementWiseOp,
    Flatten,
    InnerProduct,
    MatMul,
    Noop,
    Pool,
    ReLU,
    Scale,
    SoftMax,
)
from crossbow.ops.pool import pooled_size
from crossbow.types import Shape


@writes(Conv)
def conv(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, Conv)
    g = kernel.geometry(place.shapes[0])
    inputs = [place.inputs[0], place.variable("weights"), *([place.variable("bias")] if kernel.bias else [])]
    place.add(
        "Conv",
        *inputs,
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=pads(g.padding),
        dilations=g.dilation,
        group=g.groups,
    )


@writes(InnerProduct)
def inner_product(place: Place) -> None:
    """Gemm; behind a Flatten where the input has more than two dimensions; MatMul and Add for another axis."""
    kernel = place.kernel
    assert isinstance(kernel, InnerProduct)
    (x,), (shape,) = place.inputs, place.shapes
    axis = kernel.axis % len(shape)
    if axis == 1:
        if len(shape) > 2:
            x = place.add("Flatten", x, part="flatten", axis=1)
        bias = [place.variable("bias")] if kernel.bias else []
        place.add("Gemm", x, place.variable("weights"), *bias, transB=1)
        return
    target = place.constant("shape", [0] * axis + [-1], np.int64)
    x = place.add("Reshape", x, target, part="reshape")
    weights = place.variable("weights", transposed=True)
    if kernel.bias:
        product = place.add("MatMul", x, weights, part="product")
        place.add("Add", product, place.variable("bias"))
    else:
        place.add("MatMul", x, weights)


@writes(MatMul)
def matmul(place: Place) -> None:
    """MatMul; behind a Transpose of what is transposed."""
    kernel = place.kernel
    assert isinstance(kernel, MatMul)
    factors = []
    for name, x, shape, turned in zip(
        "ab", place.inputs, place.shapes, (kernel.transpose_a, kernel.transpose_b), strict=True
    ):
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        factors.append(place.add("Transpose", x, part=f"transposed_{name}", perm=order) if turned else x)
    place.add("MatMul", *factors)


@writes(BatchNorm)
def batch_norm(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, BatchNorm)
    place.add(
        "BatchNormalization",
        place.inputs[0],
        place.variable("weights"),
        place.variable("bias") if kernel.bias else place.filler("bias", place.shape[1]),
        place.variable("running_mean"),
        place.variable("running_variance"),
        epsilon=float(kernel.epsilon),
        momentum=float(kernel.moving_average_fraction),
    )


@writes(Pool)
def pool(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, Pool)
    if kernel.method not in ("max", "average"):
        place.fault(f"ONNX has no {kernel.method} pooling")
        return
    if kernel.global_pooling:
        place.add("GlobalMaxPool" if kernel.method == "max" else "GlobalAveragePool", place.inputs[0])
        return
    g = kernel.geometry(place.shapes[0])
    found = _pooling_windows(place.shapes[0][2:], place.shape[2:], g, kernel.rounding == "ceil")
    if found is None:
        place.fault(f"ONNX counts other windows than {place.shape[2:]} here; make stride at most kernel_size")
        return
    padding, up = found
    counting: dict[str, Any] = {"count_include_pad": int(kernel.count_padding)} if kernel.method == "average" else {}
    place.add(
        "MaxPool" if kernel.method == "max" else "AveragePool",
        place.inputs[0],
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=pads(padding),
        dilations=g.dilation,
        ceil_mode=int(up),
        **counting,
    )


def _pooling_windows(
    sizes: Shape, windows: Shape, g: PoolingGeometry, up: bool
) -> tuple[Sequence[tuple[int, int]], bool] | None:
    """The padding, and whether sizes are rounded up, with which ONNX counts the windows as we do.

    Rounding up, we leave out a last window that would begin behind the input, and ONNX did not always. What is left of
    the padding behind the windows is left out then, so that nothing is rounded; where there is none, sizes are rounded
    down. None: some sizes would have to be rounded up, and others down.
    """
    rests = [
        (size + before + after - extent) % stride
        if up and count == (size + before + after - extent) // stride + 1
        else 0
        for size, count, extent, stride, (before, after) in zip(
            sizes, windows, g.extent, g.stride, g.padding, strict=True
        )
    ]
    trimmed = [(before, after - rest) for (before, after), rest in zip(g.padding, rests, strict=True)]
    if all(after >= 0 for _, after in trimmed):
        return trimmed, up
    down = [pooled_size(*axis, "floor") for axis in zip(sizes, g.extent, g.stride, g.padding, strict=True)]
    return (g.padding, False) if tuple(down) == windows else None


@writes(ReLU)
def relu(place: Place) -> None:
    kernel, (x,) = place.kernel, place.inputs
    assert isinstance(kernel, ReLU)
    if kernel.mode == "clipped":
        place.add("Clip", x, place.constant("min", 0.0), place.constant("max", kernel.ceiling))
    elif kernel.mode == "relu" and kernel.negative_slope:
        place.add("LeakyRelu", x, alpha=float(kernel.negative_slope))
    else:
        place.add({"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}[kernel.mode], x)


@writes(SoftMax)
def softmax(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, SoftMax)
    place.add("Softmax", place.inputs[0], axis=kernel.axis)


@writes(LRN)
def lrn(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, LRN)
    if kernel.region != "across_channels":
        place.fault(f"ONNX has no LRN with region={kernel.region!r}")
        return
    factors: dict[str, Any] = {"alpha": float(kernel.alpha), "beta": float(kernel.beta), "bias": float(kernel.kappa)}
    place.add("LRN", place.inputs[0], size=kernel.size, **factors)


@writes(Scale)
def scale(place: Place) -> None:
    """Mul, and Add for a bias; the variables lie along their axes, behind which they have ones."""
    kernel, (x,), rank = place.kernel, place.inputs, len(place.shape)
    assert isinstance(kernel, Scale)
    behind = rank - kernel.first_axis(place.shape) - kernel.number_of_axes
    if not kernel.bias:
        place.add("Mul", x, place.variable("weights", trailing=behind))
        return
    product = place.add("Mul", x, place.variable("weights", trailing=behind), part="product")
    place.add("Add", product, place.variable("bias", trailing=behind))


@writes(ElementWiseOp)
def element_wise(place: Place) -> None:
    """Sum, behind a Mul for every coefficient where one is not 1; Max; Mul after Mul."""
    kernel, inputs = place.kernel, place.inputs
    assert isinstance(kernel, ElementWiseOp)
    if kernel.type == "max":
        place.add("Max", *inputs)
    elif kernel.type == "product":
        _product(place)
    elif set(kernel.factors(len(inputs))) == {1.0}:
        place.add("Sum", *inputs)
    else:
        factors = enumerate(zip(inputs, kernel.factors(len(inputs)), strict=True))
        terms = [
            place.add("Mul", x, place.constant(f"coefficient{i}", factor), part=f"term{i}")
            for i, (x, factor) in factors
        ]
        place.add("Sum", *terms)


def _product(place: Place) -> None:
    *factors, last = place.inputs
    if not factors:
        place.add("Max", last)
        return
    product = factors[0]
    for number, factor in enumerate(factors[1:]):
        product = place.add("Mul", product, factor, part=f"product{number}")
    place.add("Mul", product, last)


@writes(Concat)
def concat(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, Concat)
    place.add("Concat", *place.inputs, axis=kernel.axis)


@writes(Flatten)
def flatten(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, Flatten)
    place.add("Flatten", place.inputs[0], axis=kernel.axis)


@writes(Classify)
def classify(place: Place) -> None:
    """ArgMax gives integers, our operator numbers of the network's type."""
    kernel, (x,) = place.kernel, place.inputs
    assert isinstance(kernel, Classify)
    indices = place.add(
        "ArgMax",
        x,
        part="indices",
        axis=kernel.axis,
        keepdims=int(kernel.keep_axis),
        select_last_index=int(kernel.ties == "last"),
    )
    place.add("Cast", indices, to=onnx.TensorProto.FLOAT)


@writes(Broadcast)
def broadcast(place: Place) -> None:
    kernel = place.kernel
    assert isinstance(kernel, Broadcast)
    place.add("Expand", place.inputs[0], place.constant("shape", (1, *kernel.shape), np.int64))


@writes(Noop)
def noop(place: Place) -> None:
    place.add("Identity", place.inputs[0])


def pads(padding: Sequence[tuple[int, int]]) -> list[int]:
    """Padding as ONNX has it: before, of every dimension, and then behind."""
    return [before for before, _ in padding] + [behind for _, behind in padding]
