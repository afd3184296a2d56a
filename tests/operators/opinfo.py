"""PyTorch's own samples of its operators (OpInfo), as operators of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossbow.ops import (
    GELU,
    LRN,
    BatchNorm,
    Broadcast,
    Classify,
    Concat,
    Conv,
    ElementWiseOp,
    EuclideanLoss,
    Flatten,
    HardSwish,
    InnerProduct,
    Kernel,
    LayerNorm,
    MatMul,
    Pool,
    PReLU,
    ReLU,
    SigmoidLoss,
    SiLU,
    SoftMax,
    TransposedConv,
    Upsample,
)

Tensor = Any


@dataclass(frozen=True)
class Ours:
    """An operator with its inputs and variables; `scale` times its output is what PyTorch's function returns."""

    kernel: Kernel
    inputs: list[Tensor]
    variables: dict[str, Tensor] = field(default_factory=dict)
    label: Tensor | None = None
    scale: float = 1.0


Translation = Callable[..., Ours | None]
"""Of the arguments of PyTorch's function; None where we have nothing that computes it."""


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * axes if len(values) == 1 else values


def conv(axes: int) -> Translation:
    def translate(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Ours | None:
        if x.ndim != axes + 2 or 0 in x.shape:
            return None
        kernel_size, dilation = tuple(weight.shape[2:]), per_axis(dilation, axes)
        if padding == "same":
            totals = [d * (k - 1) for d, k in zip(dilation, kernel_size, strict=True)]
            pads = tuple((total // 2, total - total // 2) for total in totals)
        else:
            pads = tuple((p, p) for p in per_axis(0 if padding == "valid" else padding, axes))
        kernel = Conv(
            number_of_outputs=weight.shape[0],
            kernel_size=kernel_size,
            stride=per_axis(stride, axes),
            padding=pads,
            dilation=dilation,
            groups=groups,
            bias=bias is not None,
        )
        return Ours(kernel, [x], {"weights": weight} | ({} if bias is None else {"bias": bias}))

    return translate


def transposed_conv(axes: int) -> Translation:
    def translate(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Ours | None:
        if x.ndim != axes + 2 or 0 in x.shape:
            return None
        strides, added = per_axis(stride, axes), per_axis(output_padding, axes)
        if any(size >= s for size, s in zip(added, strides, strict=True)):
            return None
        kernel = TransposedConv(
            weight.shape[1] * groups,
            tuple(weight.shape[2:]),
            stride=strides,
            padding=per_axis(padding, axes),
            output_padding=added,
            dilation=per_axis(dilation, axes),
            groups=groups,
            bias=bias is not None,
        )
        return Ours(kernel, [x], {"weights": weight} | ({} if bias is None else {"bias": bias}))

    return translate


def interpolate(x: Tensor, *sizes: Any, **options: Any) -> Ours | None:
    """size, scale_factor, mode, align_corners, in this order if they have no names."""
    names = ("size", "scale_factor", "mode", "align_corners")
    given = {"mode": "nearest"} | dict(zip(names, sizes, strict=False)) | options
    linear = given["mode"] in ("linear", "bilinear", "trilinear")
    if (not linear and given["mode"] != "nearest") or given.get("recompute_scale_factor") or given.get("antialias"):
        return None
    if 0 in x.shape or not 3 <= x.ndim <= 5:
        return None
    corners = linear and bool(given.get("align_corners"))
    size, scale = given.get("size"), given.get("scale_factor")
    size = tuple(size) if isinstance(size, list | tuple) else size
    scale = tuple(scale) if isinstance(scale, list | tuple) else scale
    return Ours(Upsample(scale, size=size, method="linear" if linear else "nearest", align_corners=corners), [x])


def max_pool(axes: int) -> Translation:
    def translate(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Ours | None:
        return pool("max", x, axes, kernel_size, stride, padding, dilation, ceil_mode)

    return translate


def average_pool(axes: int) -> Translation:
    def translate(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Ours | None:
        if divisor_override is not None:
            return None
        return pool("average", x, axes, kernel_size, stride, padding, 1, ceil_mode, count_padding=count_include_pad)

    return translate


def pool(
    method: str,
    x: Tensor,
    axes: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    **more: Any,
) -> Ours | None:
    if x.ndim != axes + 2 or 0 in x.shape:
        return None
    kernel = Pool(
        method=method,
        kernel_size=per_axis(kernel_size, axes),
        stride=per_axis(stride or kernel_size, axes),
        padding=tuple((p, p) for p in per_axis(padding, axes)),
        dilation=per_axis(dilation, axes),
        rounding="ceil" if ceil_mode else "floor",
        **more,
    )
    return Ours(kernel, [x])


def adaptive(method: str, axes: int) -> Translation:
    def translate(x: Tensor, output_size: Any, return_indices: bool = False) -> Ours | None:
        if x.ndim != axes + 2 or set(per_axis(output_size, axes)) != {1}:
            return None
        return Ours(Pool(method=method, global_pooling=True), [x])

    return translate


def relu(x: Tensor, inplace: bool = False) -> Ours:
    return Ours(ReLU(), [x])


def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Ours | None:
    return Ours(ReLU(negative_slope=negative_slope), [x]) if negative_slope >= 0 else None


def prelu(x: Tensor, weight: Tensor) -> Ours | None:
    """Slopes that are a number have no axis in PyTorch."""
    return Ours(PReLU(), [x], {"weights": weight}) if x.ndim > 1 and weight.shape == x.shape[1:2] else None


def relu6(x: Tensor, inplace: bool = False) -> Ours:
    return Ours(ReLU(mode="clipped", ceiling=6.0), [x])


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Ours | None:
    return Ours(ReLU(mode="clipped", ceiling=max_val), [x]) if min_val == 0 < max_val else None


def mode(name: str) -> Translation:
    return lambda x: Ours(ReLU(mode=name), [x])


def gelu(x: Tensor, approximate: str = "none") -> Ours:
    return Ours(GELU(approximate=approximate), [x])


def silu(x: Tensor, inplace: bool = False) -> Ours:
    return Ours(SiLU(), [x])


def hard_swish(x: Tensor, inplace: bool = False) -> Ours:
    return Ours(HardSwish(), [x])


def softmax(x: Tensor, dim: int, dtype: Any = None) -> Ours | None:
    return Ours(SoftMax(axis=dim), [x]) if x.ndim > 1 and dim % x.ndim > 0 else None


def element_wise(type: str, sign: int = 1) -> Translation:
    def translate(x: Tensor, y: Tensor, alpha: float = 1) -> Ours | None:
        if getattr(y, "shape", None) != x.shape:
            return None
        coefficients = (1.0, float(sign * alpha)) if type == "sum" else None
        return Ours(ElementWiseOp(type=type, coefficients=coefficients), [x, y])

    return translate


def concat(tensors: list[Tensor], dim: int = 0) -> Ours | None:
    same = len({x.ndim for x in tensors}) == 1 and tensors[0].ndim > 0
    return Ours(Concat(axis=dim), list(tensors)) if same else None


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Ours | None:
    return Ours(Flatten(), [x]) if start_dim == 1 and end_dim in (-1, x.ndim - 1) and x.ndim > 1 else None


def expand(x: Tensor, sizes: Any) -> Ours | None:
    if x.ndim != len(sizes) or x.ndim < 2 or sizes[0] not in (-1, x.shape[0]):
        return None
    shape = tuple(n if size == -1 else size for n, size in zip(x.shape, sizes, strict=True))
    return Ours(Broadcast(shape=shape[1:]), [x])


def matmul(a: Tensor, b: Tensor) -> Ours | None:
    return Ours(MatMul(), [a, b]) if 0 not in (*a.shape, *b.shape) else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Ours | None:
    if x.ndim < 2 or weight.ndim != 2:
        return None
    kernel = InnerProduct(number_of_outputs=weight.shape[0], axis=-1, bias=bias is not None)
    return Ours(kernel, [x], {"weights": weight} | ({} if bias is None else {"bias": bias}))


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Ours | None:
    if not training or weight is None or bias is None or x.ndim < 2 or math.prod(x.shape) <= x.shape[1]:
        return None
    return Ours(BatchNorm(epsilon=eps), [x], {"weights": weight, "bias": bias})


def layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Ours | None:
    if weight is None or x.ndim <= len(shape) or 0 in x.shape:
        return None
    kernel = LayerNorm(axis=-len(shape), number_of_axes=len(shape), bias=bias is not None, epsilon=eps)
    return Ours(kernel, [x], {"weights": weight} | ({} if bias is None else {"bias": bias}))


def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Ours | None:
    return Ours(LRN(size=size, alpha=alpha, beta=beta, kappa=k), [x]) if size % 2 and x.ndim > 2 else None


def mse_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Ours | None:
    if reduction == "none" or x.ndim == 0 or x.shape != y.shape:
        return None
    examples = 2.0 * len(x)
    return Ours(EuclideanLoss(), [x], label=y, scale=examples / (x.numel() if reduction == "mean" else 1))


def binary_cross_entropy_with_logits(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Ours | None:
    if reduction == "none" or weight is not None or pos_weight is not None or x.ndim == 0 or x.shape != y.shape:
        return None
    return Ours(SigmoidLoss(normalisation={"mean": "full", "sum": "none"}[reduction]), [x], label=y)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Ours | None:
    if dim is None or x.ndim < 2 or dim % x.ndim == 0:
        return None
    return Ours(Classify(axis=dim, keep_axis=keepdim), [x])


TRANSLATIONS: Mapping[str, tuple[Translation, int]] = {
    "add": (element_wise("sum"), 2),
    "argmax": (argmax, 3),
    "bmm": (matmul, 1),
    "cat": (concat, 5),
    "expand": (expand, 3),
    "flatten": (flatten, 1),
    "matmul": (matmul, 8),
    "maximum": (element_wise("max"), 2),
    "mm": (matmul, 1),
    "mul": (element_wise("product"), 2),
    "nn.functional.adaptive_avg_pool2d": (adaptive("average", 2), 0),
    "nn.functional.avg_pool1d": (average_pool(1), 2),
    "nn.functional.avg_pool2d": (average_pool(2), 2),
    "nn.functional.avg_pool3d": (average_pool(3), 3),
    "nn.functional.batch_norm": (batch_norm, 4),
    "nn.functional.conv1d": (conv(1), 5),
    "nn.functional.conv2d": (conv(2), 15),
    "nn.functional.conv3d": (conv(3), 10),
    "nn.functional.conv_transpose1d": (transposed_conv(1), 3),
    "nn.functional.conv_transpose2d": (transposed_conv(2), 3),
    "nn.functional.conv_transpose3d": (transposed_conv(3), 3),
    "nn.functional.gelu": (gelu, 2),
    "nn.functional.hardswish": (hard_swish, 1),
    "nn.functional.hardtanh": (hardtanh, 0),
    "nn.functional.layer_norm": (layer_norm, 1),
    "nn.functional.interpolate": (interpolate, 3),
    "nn.functional.leaky_relu": (leaky_relu, 6),
    "nn.functional.linear": (linear, 8),
    "nn.functional.local_response_norm": (local_response_norm, 1),
    "nn.functional.max_pool1d": (max_pool(1), 60),
    "nn.functional.max_pool2d": (max_pool(2), 60),
    "nn.functional.max_pool3d": (max_pool(3), 60),
    "nn.functional.binary_cross_entropy_with_logits": (binary_cross_entropy_with_logits, 2),
    "nn.functional.mse_loss": (mse_loss, 3),
    "nn.functional.prelu": (prelu, 3),
    "nn.functional.relu": (relu, 3),
    "nn.functional.relu6": (relu6, 3),
    "nn.functional.silu": (silu, 1),
    "sigmoid": (mode("sigmoid"), 1),
    "softmax": (softmax, 3),
    "sub": (element_wise("sum", -1), 2),
    "tanh": (mode("tanh"), 1),
}
"""By the name of PyTorch's operator: its translation, and how many of its samples are compared at least."""
