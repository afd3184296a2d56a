"""Layers: weighted layers, normalisation, pooling, concatenation and others."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.arithmetic import Term, affine, negated, together
from crossbow.onnx.reading.node import Border, Node, Numbers, Refused
from crossbow.onnx.reading.table import reads, reads_group
from crossbow.ops import (
    LRN,
    BatchNorm,
    Classify,
    Concat,
    Constant,
    Conv,
    Dropout,
    ElementWiseOp,
    Flatten,
    InnerProduct,
    LogSoftMax,
    MatMul,
    Noop,
    Pool,
    SoftMax,
    Values,
)
from crossbow.ops.window import Padding, Sizes
from crossbow.types import Phase, Shape

WINDOW = "auto_pad dilations kernel_shape pads strides"

# Weighted operators


@reads("Conv", versions=(1, 11, 22), attributes=f"{WINDOW} group", constants=(1, 2))
def conv(node: Node) -> NetworkStep:
    """A Conv. Zeros from a preceding Pad are added to the operator's own padding."""
    x, weights = node.step(), node.weights(1)
    kernel = weights.shape[2:]
    if node.integers("kernel_shape", kernel) != kernel:
        raise Refused(
            f"expected kernel_shape to be that of the weights, {kernel}. Received: {node.integers('kernel_shape')}"
        )
    window = _Window(node, x.shape[2:], kernel, node.border)
    return node.apply(
        Conv(
            number_of_outputs=len(weights),
            kernel_size=one_or_all(kernel),
            stride=one_or_all(window.stride),
            padding=window.padding,
            dilation=one_or_all(window.dilation),
            groups=node.integer("group", 1),
            bias=node.given(2),
            weight_initialiser=Values(weights),
            bias_initialiser=Values(node.weights(2)) if node.given(2) else Constant(),
        ),
        x,
    )


@reads("Gemm", versions=(6, 7, 9, 11, 13), attributes="alpha beta broadcast transA transB", variables=(1, 2))
def gemm(node: Node) -> NetworkStep:
    """alpha · a · b + beta · c. If b is constant, this is an InnerProduct whose variables include the factors, and
    whose bias is c if c is constant; otherwise it is a MatMul, followed by a sum."""
    x, last = node.step(), not node.given(2)
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    part = "" if last else "product"
    if not node.is_constant(1):
        kernel = MatMul(transpose_a=node.integer("transA", 0) == 1, transpose_b=node.integer("transB", 0) == 1)
        product = node.apply(kernel, x, node.step(1), part=part if alpha == 1 else "matmul")
        if alpha != 1 and (last or node.is_constant(2)):
            product, alpha = node.apply(ElementWiseOp(coefficients=(alpha,)), product, part=part), 1.0
    else:
        if node.integer("transA", 0):
            raise Refused("attribute transA=1: expected the examples along the first dimension of the input")
        if len(x.shape) != 2:
            raise Refused(f"expected an input of two dimensions. Received: {len(x.shape)}")
        weights = _multiplied(node.weights(1) if node.integer("transB", 0) else node.weights(1).T, alpha)
        if last or node.is_constant(2):
            bias = None if last else _multiplied(_vector(node.weights(2), len(weights)), beta)
            return inner_product(node, x, weights, bias)
        product, alpha = inner_product(node, x, weights, None, part), 1.0
    if last:
        return product
    if node.is_constant(2):
        return affine(node, product, None, Term.of(node, 2, product).times(beta))
    return node.apply(ElementWiseOp(coefficients=(alpha, beta)), *together(node, [product, node.step(2)]))


@reads("MatMul", versions=(1, 9, 13))
def matmul(node: Node) -> NetworkStep:
    """x · W: an InnerProduct, with the constant of a following Add as its bias; a MatMul if W is not constant."""
    if not node.is_constant(1):
        return node.apply(MatMul(), node.step(0), node.step(1))
    x, weights = node.step(), node.weights(1)
    if weights.ndim != 2 or len(x.shape) < 2:
        raise Refused(f"expected a matrix, and weights of two dimensions. Received: {x.shape} and {weights.shape}")
    bias = None
    follower = node.follower("Add")
    constant = None if follower is None else follower.constant_index()
    if follower is not None and constant is not None:
        with contextlib.suppress(Refused):  # the fault is reported when the follower itself is read
            array = follower.weights(constant)
            if array.shape[-1:] == (array.size,) == weights.shape[1:]:
                bias = array.reshape(-1)
                node.absorb(follower)
    return inner_product(node, x, weights.T, bias)


def inner_product(
    node: Node, x: NetworkStep, weights: Numbers, bias: Numbers | None, part: str = "", axis: int = -1
) -> NetworkStep:
    """An InnerProduct, over the last dimension unless an axis is given."""
    kernel = InnerProduct(
        number_of_outputs=len(weights),
        axis=axis % len(x.shape),
        bias=bias is not None,
        weight_initialiser=Values(np.ascontiguousarray(weights)),
        bias_initialiser=Constant() if bias is None else Values(bias),
    )
    return node.apply(kernel, x, part=part)


@reads_group("MatMul")
def transposed_matmul(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for transposed factors: a Transpose of one or both factors, then MatMul."""
    *turns, product = nodes
    turned = {turn.proto.output[0]: turn.step() for turn in turns}
    factors = [turned.get(name) or product.step(index) for index, name in enumerate(product.proto.input)]
    kernel = MatMul(
        transpose_a=product.proto.input[0] in turned,
        transpose_b=product.proto.input[1] in turned,
    )
    return product.apply(kernel, *factors)


@reads_group("InnerProduct")
def flattened_inner_product(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for an InnerProduct: Flatten and Gemm; or, for another axis, Reshape, MatMul and
    optionally Add."""
    first, product = nodes[0], nodes[1]
    weights = product.weights(1)
    if first.proto.op_type == "Flatten":
        axis, weights, bias = 1, weights, product.weights(2) if product.given(2) else None
    else:
        shape = first.constant(1)
        assert shape is not None
        axis, weights = len(shape) - 1, weights.T
        bias = nodes[2].weights(1) if len(nodes) > 2 else None
    return inner_product(product, first.step(), weights, bias, axis=axis)


@reads(
    "BatchNormalization",
    versions=(6, 7, 9, 14, 15),
    attributes="epsilon momentum spatial is_test training_mode",
    constants=(1, 2, 3, 4),
)
def batch_normalisation(node: Node) -> NetworkStep:
    """A BatchNorm. Factors and summands that are not parameters, such as those of PyTorch's BatchNorm with
    affine=False, are not trained."""
    if not node.integer("spatial", 1):
        raise Refused("attribute spatial=0: expected one mean and variance for each channel")
    if node.version >= 14:
        training = node.integer("training_mode", 0) == 1
    else:
        outputs = [name for name in node.proto.output if name]
        training = len(outputs) > 1 or (node.version < 7 and not node.integer("is_test", 0))
    factor, summand = (0.0 if is_fixed(node, index) else 1.0 for index in (1, 2))
    variance = node.weights(4)
    if (variance < 0).any():
        raise Refused(f"expected a running variance ≥ 0 ({node.proto.input[4]!r}). Received: {variance.min():g}")
    kernel = BatchNorm(
        epsilon=node.number("epsilon", 1e-5),
        moving_average_fraction=node.number("momentum", 0.9),
        bias=not node.is_filler(2),
        weight_learning_rate_multiplier=factor,
        bias_learning_rate_multiplier=1.0 if node.is_filler(2) else summand,
        weight_initialiser=Values(node.weights(1)),
        mean_initialiser=Values(node.weights(3)),
        variance_initialiser=Values(variance),
        bias_initialiser=Constant() if node.is_filler(2) else Values(node.weights(2)),
    )
    return node.apply(kernel, node.step(), phase=Phase.TRAIN if training else Phase.CHECK)


def is_fixed(node: Node, index: int) -> bool:
    """Whether a factor or summand of a normalisation is not a parameter.

    PyTorch's newer exporter creates initializers of ones and zeros, named "val_0" and the like, or reuses another
    initializer with the same numbers; it also stores the exported call as text.
    """
    numbers = node.weights(index)
    made = re.fullmatch(r"val_\d+", node.proto.input[index]) and (numbers == (1 if index == 1 else 0)).all()
    texts = [entry.value for entry in node.proto.metadata_props if entry.key == "pkg.torch.onnx.fx_node"]
    return node.is_literal(index) or bool(made) or any(", None, None, " in text for text in texts)


# Windows


@reads("MaxPool", versions=(1, 8, 10, 11, 12, 22), attributes=f"{WINDOW} ceil_mode storage_order")
def max_pool(node: Node) -> NetworkStep:
    return _pool(node, "max", True)


@reads("AveragePool", versions=(1, 7, 10, 11, 19, 22), attributes=f"{WINDOW} ceil_mode count_include_pad")
def average_pool(node: Node) -> NetworkStep:
    return _pool(node, "average", node.integer("count_include_pad", 0) == 1)


def _pool(node: Node, method: str, count_padding: bool) -> NetworkStep:
    x, kernel = node.step(), node.integers("kernel_shape")
    if kernel is None or len(kernel) != len(x.shape) - 2:
        raise Refused(f"expected a kernel_shape for {len(x.shape) - 2} dimensions. Received: {kernel}")
    window = _Window(node, x.shape[2:], kernel)
    return node.apply(
        Pool(
            method=method,
            kernel_size=one_or_all(kernel),
            stride=one_or_all(window.stride),
            padding=window.padding,
            rounding="ceil" if node.integer("ceil_mode", 0) else "floor",
            dilation=one_or_all(window.dilation),
            count_padding=count_padding,
        ),
        x,
    )


@reads("GlobalMaxPool", versions=(1, 22))
def global_max_pool(node: Node) -> NetworkStep:
    return node.apply(Pool(method="max", global_pooling=True), node.step())


@reads("GlobalAveragePool", versions=(1, 22))
def global_average_pool(node: Node) -> NetworkStep:
    return node.apply(Pool(method="average", global_pooling=True), node.step())


class _Window:
    """Stride, padding and dilation of a node's windows over the given number of spatial dimensions."""

    def __init__(self, node: Node, sizes: Shape, kernel: Shape, border: Border | None = None) -> None:
        """border: padding from a preceding Pad, to be included."""
        ones = (1,) * len(kernel)
        self.stride = node.integers("strides", ones) or ones
        self.dilation = node.integers("dilations", ones) or ones
        if not len(sizes) == len(self.stride) == len(self.dilation) == len(kernel):
            raise Refused(
                f"expected kernel, strides and dilations for {len(sizes)} dimensions. "
                f"Received: {kernel}, {self.stride}, {self.dilation}"
            )
        outer = border or ((0, 0),) * len(sizes)
        padded = tuple(size + sum(pair) for size, pair in zip(sizes, outer, strict=True))
        inner = self._pairs(node, padded, kernel)
        self.padding = paddings([(a + c, b + d) for (a, b), (c, d) in zip(inner, outer, strict=True)])

    def _pairs(self, node: Node, sizes: Shape, kernel: Shape) -> list[tuple[int, int]]:
        mode = node.text("auto_pad", "NOTSET")
        if mode in ("NOTSET", ""):
            pads = node.integers("pads") or (0,) * (2 * len(kernel))
            if len(pads) != 2 * len(kernel) or min(pads) < 0:
                raise Refused(f"expected pads ≥ 0, two for each of {len(kernel)} dimensions. Received: {pads}")
            return list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
        if mode == "VALID":
            return [(0, 0)] * len(kernel)
        if mode not in ("SAME_UPPER", "SAME_LOWER"):
            raise Refused(f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER. Received: {mode}")
        pairs = []
        for size, k, s, d in zip(sizes, kernel, self.stride, self.dilation, strict=True):
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if mode == "SAME_UPPER" else (more, less))
        return pairs


def one_or_all(sizes: Sequence[int]) -> Sizes:
    """A single number if there are two equal sizes, as is usual for images; else all sizes."""
    return sizes[0] if len(sizes) == 2 and len(set(sizes)) == 1 else tuple(sizes)


def paddings(pairs: Sequence[tuple[int, int]]) -> Padding:
    """Padding before and after, in the shortest form."""
    if all(before == after for before, after in pairs):
        return one_or_all([before for before, _ in pairs])
    return tuple(pairs)


# Others


@reads("Softmax", versions=(1, 11, 13), attributes="axis")
def softmax(node: Node) -> NetworkStep:
    """Before version 13, the sum is over all dimensions from the axis on."""
    x = node.step()
    return node.apply(SoftMax(axis=_class_axis(node, x)), x)


@reads("LogSoftmax", versions=(1, 11, 13), attributes="axis")
def log_softmax(node: Node) -> NetworkStep:
    """Before version 13, the sum is over all dimensions from the axis on."""
    x = node.step()
    return node.apply(LogSoftMax(axis=_class_axis(node, x)), x)


def _class_axis(node: Node, x: NetworkStep) -> int:
    axis = place(node, len(x.shape), -1 if node.version >= 13 else 1)
    if node.version < 13 and any(size != 1 for size in x.shape[axis + 1 :]):
        raise Refused(f"axis={axis} of version {node.version} sums over all dimensions from it on. Received: {x.shape}")
    return axis


@reads("Dropout", versions=(6, 7, 10, 12, 13, 22), attributes="ratio seed is_test", constants=(1, 2))
def dropout(node: Node) -> NetworkStep:
    ratio = node.single(1, 0.5) if node.version >= 12 else node.number("ratio", 0.5)
    flag = node.constant(2)
    training = flag is not None and bool(flag)
    if node.version < 7:
        training = not node.integer("is_test", 0)
    return node.apply(Dropout(ratio=ratio), node.step(), phase=Phase.TRAIN if training else Phase.CHECK)


@reads("Concat", versions=(4, 11, 13), attributes="axis")
def concat(node: Node) -> NetworkStep:
    steps = [node.step(index) for index in range(node.inputs)]
    return node.apply(Concat(axis=place(node, len(steps[0].shape), 1)), *steps)


@reads("Flatten", versions=(1, 9, 11, 13, 21, 23, 24, 25), attributes="axis")
def flatten(node: Node) -> NetworkStep:
    return node.apply(Flatten(axis=node.integer("axis", 1)), node.step())


@reads("ArgMax", versions=(1, 11, 12, 13), attributes="axis keepdims select_last_index")
def arg_max(node: Node) -> NetworkStep:
    return _classify(node, node.step())


@reads("ArgMin", versions=(1, 11, 12, 13), attributes="axis keepdims select_last_index")
def arg_min(node: Node) -> NetworkStep:
    """arg min x as arg max −x."""
    return _classify(node, negated(node, node.step(), "negated"))


def _classify(node: Node, x: NetworkStep) -> NetworkStep:
    kernel = Classify(
        axis=place(node, len(x.shape), 0),
        ties="last" if node.integer("select_last_index", 0) else "first",
        keep_axis=node.integer("keepdims", 1) == 1,
    )
    return node.apply(kernel, x)


@reads_group("Classify")
def classify(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for a Classify: ArgMax and a Cast of the indices."""
    return arg_max(nodes[0])


@reads("Identity", versions=(1, 13, 14, 16, 19, 21, 23, 24, 25))
def identity(node: Node) -> NetworkStep:
    return node.apply(Noop(), node.step())


@reads("LRN", versions=(1, 13), attributes="alpha beta bias size")
def lrn(node: Node) -> NetworkStep:
    kernel = LRN(
        size=node.integer("size", 0),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
        kappa=node.number("bias", 1.0),
    )
    return node.apply(kernel, node.step())


def place(node: Node, rank: int, default: int) -> int:
    """The attribute axis as a non-negative index."""
    axis = node.integer("axis", default)
    if not -rank <= axis < rank:
        raise Refused(f"expected an axis of {rank} dimensions. Received: axis={axis}")
    return axis % rank


def _multiplied(array: Numbers, factor: float) -> Numbers:
    return array if factor == 1 else array * array.dtype.type(factor)


def _vector(array: Numbers, size: int) -> Numbers:
    """A bias whose shape broadcasts to the rows of a matrix, as a vector."""
    if array.ndim > 2 or array.size not in (1, size) or (array.ndim == 2 and array.shape[0] != 1):
        raise Refused(f"expected a bias of {size} values, the same for every example. Received: {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (size,)))
