"""Translation of Crossbow's operators to ONNX, with one function for each operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from crossbow.kernels.requests import PoolingGeometry
from crossbow.onnx.writing.table import writes
from crossbow.onnx.writing.written_operator import WrittenOperator
from crossbow.ops import (
    GELU,
    LRN,
    BatchNorm,
    Broadcast,
    ChannelShuffle,
    Classify,
    Concat,
    Conv,
    ElementWiseOp,
    Flatten,
    HardSwish,
    InnerProduct,
    LayerNorm,
    LogSoftMax,
    MatMul,
    Noop,
    Pad,
    Pool,
    PReLU,
    ReLU,
    Reshape,
    Scale,
    SiLU,
    Slice,
    SoftMax,
    Transpose,
    TransposedConv,
    Upsample,
)
from crossbow.ops.pool import pooled_size
from crossbow.ops.window import per_axis
from crossbow.types import Shape


@writes(Conv)
def conv(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Conv)
    g = kernel.geometry(operator.shapes[0])
    inputs = [operator.inputs[0], operator.variable("weights"), *([operator.variable("bias")] if kernel.bias else [])]
    operator.add(
        "Conv",
        *inputs,
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=pads(g.padding),
        dilations=g.dilation,
        group=g.groups,
    )


@writes(TransposedConv)
def transposed_conv(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, TransposedConv)
    g = kernel.geometry(operator.shapes[0])
    inputs = [operator.inputs[0], operator.variable("weights"), *([operator.variable("bias")] if kernel.bias else [])]
    operator.add(
        "ConvTranspose",
        *inputs,
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=pads(g.padding),
        output_padding=per_axis(kernel.output_padding, len(g.kernel)),
        dilations=g.dilation,
        group=g.groups,
    )


@writes(Upsample)
def upsample(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Upsample)
    place = "align_corners" if kernel.align_corners else "half_pixel" if kernel.method == "linear" else "asymmetric"
    settings = {"mode": kernel.method, "coordinate_transformation_mode": place}
    if kernel.method == "nearest":
        settings["nearest_mode"] = "floor"
    rank = len(operator.shape)
    if kernel.size is None and not kernel.align_corners:
        assert kernel.scale is not None
        scale = kernel.scale if isinstance(kernel.scale, tuple | list) else (kernel.scale,) * (rank - 2)
        # Scales are float32, so 15 · 4.2 is below 63. onnxruntime rounds the product, too; shape inference does not.
        for dtype in (np.float32, np.float64):
            products = np.asarray(operator.shapes[0][2:], dtype) * np.asarray(scale, np.float32)
            if tuple(np.floor(products)) != operator.shape[2:]:
                operator.fault(f"ONNX computes sizes other than {operator.shape[2:]} here; give size instead of scale")
                return
        operator.add("Resize", operator.inputs[0], "", operator.constant("scales", [1, 1, *scale]), **settings)
        return
    sizes = operator.constant("sizes", operator.shape[2:], np.int64)
    operator.add("Resize", operator.inputs[0], "", "", sizes, axes=list(range(2, rank)), **settings)


@writes(InnerProduct)
def inner_product(operator: WrittenOperator) -> None:
    """Write Gemm, after a Flatten if the input has more than two dimensions; for another axis, MatMul and Add."""
    kernel = operator.kernel
    assert isinstance(kernel, InnerProduct)
    (x,), (shape,) = operator.inputs, operator.shapes
    axis = kernel.axis % len(shape)
    if axis == 1:
        if len(shape) > 2:
            x = operator.add("Flatten", x, part="flatten", axis=1)
        bias = [operator.variable("bias")] if kernel.bias else []
        operator.add("Gemm", x, operator.variable("weights"), *bias, transB=1)
        return
    target = operator.constant("shape", [0] * axis + [-1], np.int64)
    x = operator.add("Reshape", x, target, part="reshape")
    weights = operator.variable("weights", transposed=True)
    if kernel.bias:
        product = operator.add("MatMul", x, weights, part="product")
        operator.add("Add", product, operator.variable("bias"))
    else:
        operator.add("MatMul", x, weights)


@writes(MatMul)
def matmul(operator: WrittenOperator) -> None:
    """Write MatMul, after a Transpose of each transposed factor."""
    kernel = operator.kernel
    assert isinstance(kernel, MatMul)
    factors = []
    for name, x, shape, turned in zip(
        "ab", operator.inputs, operator.shapes, (kernel.transpose_a, kernel.transpose_b), strict=True
    ):
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        factors.append(operator.add("Transpose", x, part=f"transposed_{name}", perm=order) if turned else x)
    operator.add("MatMul", *factors)


@writes(BatchNorm)
def batch_norm(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, BatchNorm)
    operator.add(
        "BatchNormalization",
        operator.inputs[0],
        operator.variable("weights"),
        operator.variable("bias") if kernel.bias else operator.filler("bias", operator.shape[1]),
        operator.variable("running_mean"),
        operator.variable("running_variance"),
        epsilon=float(kernel.epsilon),
        momentum=float(kernel.moving_average_fraction),
    )


@writes(LayerNorm)
def layer_norm(operator: WrittenOperator) -> None:
    """Write LayerNormalization, which normalises the last axes; for other axes, between two Transposes."""
    kernel, (x,), rank = operator.kernel, operator.inputs, len(operator.shape)
    assert isinstance(kernel, LayerNorm)
    own = range(kernel.first_axis(operator.shape), kernel.first_axis(operator.shape) + kernel.number_of_axes)
    order = [*(axis for axis in range(rank) if axis not in own), *own]
    moves = order != list(range(rank))
    inputs = [operator.variable("weights"), *([operator.variable("bias")] if kernel.bias else [])]
    if moves:
        x = operator.add("Transpose", x, part="turned", perm=order)
    numbers: dict[str, Any] = {"axis": -kernel.number_of_axes, "epsilon": float(kernel.epsilon)}
    y = operator.add("LayerNormalization", x, *inputs, part="normalised" if moves else "", **numbers)
    if moves:
        operator.add("Transpose", y, perm=[order.index(axis) for axis in range(rank)])


@writes(Pool)
def pool(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Pool)
    if kernel.method not in ("max", "average"):
        operator.fault(f"ONNX has no {kernel.method} pooling")
        return
    if kernel.global_pooling:
        operator.add("GlobalMaxPool" if kernel.method == "max" else "GlobalAveragePool", operator.inputs[0])
        return
    g = kernel.geometry(operator.shapes[0])
    found = _pooling_windows(operator.shapes[0][2:], operator.shape[2:], g, kernel.rounding == "ceil")
    if found is None:
        operator.fault(f"ONNX counts windows other than {operator.shape[2:]} here; make stride at most kernel_size")
        return
    padding, up = found
    counting: dict[str, Any] = {"count_include_pad": int(kernel.count_padding)} if kernel.method == "average" else {}
    operator.add(
        "MaxPool" if kernel.method == "max" else "AveragePool",
        operator.inputs[0],
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
    """The padding and the rounding (up or down) with which ONNX has the same number of windows as Crossbow.

    When rounding up, Crossbow omits a last window that would begin after the input, and ONNX did not always do so. The
    padding that remains after the windows is then omitted, so that rounding has no effect; if there is not enough
    padding, sizes are rounded down. None if some sizes would have to be rounded up and others down.
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
def relu(operator: WrittenOperator) -> None:
    kernel, (x,) = operator.kernel, operator.inputs
    assert isinstance(kernel, ReLU)
    if kernel.mode == "clipped":
        assert kernel.ceiling is not None
        operator.add("Clip", x, operator.constant("min", 0.0), operator.constant("max", kernel.ceiling))
    elif kernel.mode == "relu" and kernel.negative_slope:
        operator.add("LeakyRelu", x, alpha=float(kernel.negative_slope))
    else:
        operator.add({"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}[kernel.mode], x)


@writes(GELU)
def gelu(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, GELU)
    operator.add("Gelu", operator.inputs[0], approximate=kernel.approximate)


@writes(SiLU)
def silu(operator: WrittenOperator) -> None:
    """Write Sigmoid and Mul, because ONNX has Swish only since opset 24."""
    (x,) = operator.inputs
    operator.add("Mul", x, operator.add("Sigmoid", x, part="gate"))


@writes(HardSwish)
def hard_swish(operator: WrittenOperator) -> None:
    operator.add("HardSwish", operator.inputs[0])


@writes(SoftMax)
def softmax(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, SoftMax)
    operator.add("Softmax", operator.inputs[0], axis=kernel.axis)


@writes(LogSoftMax)
def log_softmax(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, LogSoftMax)
    operator.add("LogSoftmax", operator.inputs[0], axis=kernel.axis)


@writes(LRN)
def lrn(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, LRN)
    if kernel.region == "within_channel":
        _response(operator, operator.inputs[0])
        return
    if kernel.longer_side == "before" and kernel.size % 2 == 0:
        _leading_response(operator)
        return
    factors: dict[str, Any] = {"alpha": float(kernel.alpha), "beta": float(kernel.beta), "bias": float(kernel.kappa)}
    operator.add("LRN", operator.inputs[0], size=kernel.size, **factors)


def _leading_response(operator: WrittenOperator) -> None:
    """Write an LRN as PyTorch's exporter does: the mean over neighbouring channels is a pooling along an added axis."""
    rank = len(operator.shape)
    if rank > 4:
        operator.fault(f"ONNX's average pooling has at most three axes; expected (N, C, H, W). Received: {rank} axes")
        return
    _response(operator, operator.inputs[0], operator.constant("axis", [1], np.int64))


def _response(operator: WrittenOperator, x: str, new_axis: str | None = None) -> None:
    """Write x / (κ + α · (the mean of the squares of neighbours))^β. The neighbours are in the same channel or, with a
    new axis before the channels, at the same position in neighbouring channels."""
    kernel, rank = operator.kernel, len(operator.shape)
    assert isinstance(kernel, LRN)
    geometry = kernel.geometry
    pooled = 1 if new_axis is not None else len(geometry.axes)
    rest = rank - 2 if new_axis is not None else 0
    y = operator.add("Mul", x, x, part="squares")
    if new_axis is not None:
        y = operator.add("Unsqueeze", y, new_axis, part="unsqueezed")
    window = (*[kernel.size] * pooled, *[1] * rest)
    border = pads([*[(geometry.before, geometry.after)] * pooled, *[(0, 0)] * rest])
    y = operator.add("AveragePool", y, part="mean", kernel_shape=window, pads=border, count_include_pad=1)
    if new_axis is not None:
        y = operator.add("Squeeze", y, new_axis, part="squeezed")
    for op_type, name in (("Mul", "alpha"), ("Add", "kappa"), ("Pow", "beta")):
        y = operator.add(op_type, y, operator.constant(name, float(getattr(kernel, name))), part=op_type.lower())
    operator.add("Div", x, y)


@writes(PReLU)
def parametric_relu(operator: WrittenOperator) -> None:
    assert isinstance(operator.kernel, PReLU)
    operator.add("PRelu", operator.inputs[0], operator.variable("weights", trailing=len(operator.shape) - 2))


@writes(Scale)
def scale(operator: WrittenOperator) -> None:
    """Write Mul, and Add for a bias. The variables get trailing dimensions of size 1 after their axes."""
    kernel, (x,), rank = operator.kernel, operator.inputs, len(operator.shape)
    assert isinstance(kernel, Scale)
    trailing = rank - kernel.first_axis(operator.shape) - kernel.number_of_axes
    if not kernel.bias:
        operator.add("Mul", x, operator.variable("weights", trailing=trailing))
        return
    product = operator.add("Mul", x, operator.variable("weights", trailing=trailing), part="product")
    operator.add("Add", product, operator.variable("bias", trailing=trailing))


@writes(ElementWiseOp)
def element_wise(operator: WrittenOperator) -> None:
    """Write Sum, after a Mul for every coefficient unless all are 1; Max; or a chain of Muls."""
    kernel, inputs = operator.kernel, operator.inputs
    assert isinstance(kernel, ElementWiseOp)
    if kernel.type == "max":
        operator.add("Max", *inputs)
    elif kernel.type == "product":
        _product(operator)
    elif set(kernel.factors(len(inputs))) == {1.0}:
        operator.add("Sum", *inputs)
    else:
        factors = enumerate(zip(inputs, kernel.factors(len(inputs)), strict=True))
        terms = [
            operator.add("Mul", x, operator.constant(f"coefficient{i}", factor), part=f"term{i}")
            for i, (x, factor) in factors
        ]
        operator.add("Sum", *terms)


def _product(operator: WrittenOperator) -> None:
    *factors, last = operator.inputs
    if not factors:
        operator.add("Max", last)
        return
    product = factors[0]
    for number, factor in enumerate(factors[1:]):
        product = operator.add("Mul", product, factor, part=f"product{number}")
    operator.add("Mul", product, last)


@writes(Concat)
def concat(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Concat)
    operator.add("Concat", *operator.inputs, axis=kernel.axis)


@writes(Flatten)
def flatten(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Flatten)
    operator.add("Flatten", operator.inputs[0], axis=kernel.axis)


@writes(Reshape)
def reshape(operator: WrittenOperator) -> None:
    operator.add("Reshape", operator.inputs[0], operator.constant("shape", (0, *operator.shape[1:]), np.int64))


@writes(Transpose)
def transpose(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Transpose)
    operator.add("Transpose", operator.inputs[0], perm=kernel.order)


@writes(ChannelShuffle)
def channel_shuffle(operator: WrittenOperator) -> None:
    """Write Reshape, Transpose, Reshape."""
    kernel, (x,), (shape,) = operator.kernel, operator.inputs, operator.shapes
    assert isinstance(kernel, ChannelShuffle)
    (_, *sizes), order = kernel.order(shape)
    x = operator.add("Reshape", x, operator.constant("apart", (0, *sizes), np.int64), part="groups")
    x = operator.add("Transpose", x, part="exchanged", perm=order)
    operator.add("Reshape", x, operator.constant("shape", (0, *shape[1:]), np.int64))


@writes(Slice)
def slice_(operator: WrittenOperator) -> None:
    kernel, (x,) = operator.kernel, operator.inputs
    assert isinstance(kernel, Slice)
    axis, places = kernel.places(operator.shapes[0])
    numbers = {"start": places.start, "stop": places[-1] + 1, "axis": axis, "step": places.step}
    operator.add("Slice", x, *(operator.constant(name, [value], np.int64) for name, value in numbers.items()))


@writes(Pad)
def pad(operator: WrittenOperator) -> None:
    kernel, (x,) = operator.kernel, operator.inputs
    assert isinstance(kernel, Pad)
    border = operator.constant("pads", pads([(0, 0), *kernel.padding]), np.int64)
    operator.add("Pad", x, border, operator.constant("value", float(kernel.value)))


@writes(Classify)
def classify(operator: WrittenOperator) -> None:
    """Write ArgMax and Cast: ArgMax returns integers, and Crossbow's operator numbers of the network's type."""
    kernel, (x,) = operator.kernel, operator.inputs
    assert isinstance(kernel, Classify)
    indices = operator.add(
        "ArgMax",
        x,
        part="indices",
        axis=kernel.axis,
        keepdims=int(kernel.keep_axis),
        select_last_index=int(kernel.ties == "last"),
    )
    operator.add("Cast", indices, to=onnx.TensorProto.FLOAT)


@writes(Broadcast)
def broadcast(operator: WrittenOperator) -> None:
    kernel = operator.kernel
    assert isinstance(kernel, Broadcast)
    operator.add("Expand", operator.inputs[0], operator.constant("shape", (1, *kernel.shape), np.int64))


@writes(Noop)
def noop(operator: WrittenOperator) -> None:
    operator.add("Identity", operator.inputs[0])


def pads(padding: Sequence[tuple[int, int]]) -> list[int]:
    """Padding in ONNX's format: the padding before every dimension, then the padding after every dimension."""
    return [before for before, _ in padding] + [after for _, after in padding]
