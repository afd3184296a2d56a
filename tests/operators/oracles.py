"""What the operators are in PyTorch, written out one by one: a second opinion from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from crossbow.kernels.random import image_words, keep_mask, random_words
from crossbow.kernels.requests import WindowGeometry
from crossbow.ops import (
    GELU,
    LRN,
    Accuracy,
    BatchNorm,
    Broadcast,
    ChannelShuffle,
    Classify,
    Concat,
    Conv,
    DataTransform,
    Dropout,
    ElementWiseOp,
    Embedding,
    EuclideanLoss,
    Flatten,
    HardSwish,
    InnerProduct,
    Kernel,
    LayerNorm,
    LogSoftMax,
    MatFact,
    MatFactPrediction,
    MatMul,
    Noop,
    Pad,
    Pool,
    PReLU,
    ReLU,
    Reshape,
    Scale,
    SelfAttention,
    SigmoidLoss,
    SiLU,
    Slice,
    SoftMax,
    SoftMaxLoss,
    Transpose,
    TransposedConv,
    Upsample,
    Values,
)
from crossbow.types import Shape

Tensors = Sequence[torch.Tensor]
Oracle = Callable[[Any, Tensors, Mapping[str, torch.Tensor]], torch.Tensor]
"""(operator, inputs with the labels last, variables) to the output."""


def conv(kernel: Conv, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    g = kernel.geometry(tuple(x.shape))
    weights, bias = variables["weights"], variables.get("bias")
    padded = F.pad(x, [width for pair in reversed(g.padding) for width in pair])
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(g.kernel)]
    return function(padded, weights, bias, g.stride, 0, g.dilation, g.groups)


def transposed_conv(kernel: TransposedConv, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """PyTorch cuts the same off both sides: the whole output, extended, from which the padding is cut."""
    (x,) = inputs
    g = kernel.geometry(tuple(x.shape))
    function = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(g.kernel)]
    whole = function(x, variables["weights"], None, g.stride, 0, 0, g.groups, g.dilation)
    size = kernel.output_shape(tuple(x.shape))[2:]
    more = [(-before, before + n - full) for (before, _), n, full in zip(g.padding, size, whole.shape[2:], strict=True)]
    y = F.pad(whole, [width for pair in reversed(more) for width in pair])
    bias = variables.get("bias")
    return y if bias is None else y + bias.reshape(-1, *[1] * len(g.kernel))


def prelu(kernel: PReLU, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.prelu(inputs[0], variables["weights"])


def upsample(kernel: Upsample, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    axes = x.dim() - 2
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[axes] if kernel.method == "linear" else "nearest"
    corners = kernel.align_corners if kernel.method == "linear" else None
    scale = tuple(map(float, kernel.scale)) if isinstance(kernel.scale, tuple) else kernel.scale
    return F.interpolate(x, kernel.size, scale, mode, corners)


def pool(kernel: Pool, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """PyTorch's own function where it has one, else windows cut out one by one."""
    (x,) = inputs
    g, axes = kernel.geometry(tuple(x.shape)), x.dim() - 2
    ceil, padding = kernel.rounding == "ceil", [before for before, _ in g.padding]
    theirs = all(before == after <= k // 2 for (before, after), k in zip(g.padding, g.kernel, strict=True))
    if kernel.method == "max" and theirs:
        function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[axes]
        return function(x, g.kernel, g.stride, padding, g.dilation, ceil)
    large = all(size >= k for size, k in zip(x.shape[2:], g.kernel, strict=True))  # of three axes it refuses others
    if kernel.method == "average" and theirs and large and set(g.dilation) == {1}:
        average = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[axes]
        return average(x, g.kernel, g.stride, padding, ceil, kernel.count_padding)
    windows = kernel.output_shape(tuple(x.shape))[2:]
    elements, inside, counted = (_windows(tensor, windows, g) for tensor in _on_padding(x, g))
    if kernel.method == "average":
        return elements.sum(-1) / (counted if kernel.count_padding else inside).sum(-1)
    if kernel.method == "max":
        picked = _first(elements == elements.masked_fill(inside == 0, -torch.inf).amax(-1, keepdim=True), inside)
    else:
        # The numbers are ours: PyTorch's generator is another, and it has no such pooling.
        words = random_words(int(np.prod(elements.shape[:-1])), seed=0, key=0, task=0).reshape(elements.shape[:-1])
        sums = elements.clamp(min=0).cumsum(-1)
        picked = _first(sums > (sums[..., -1] * torch.from_numpy(words / 2.0**32))[..., None], inside)
    return elements.gather(-1, picked[..., None])[..., 0]


def _on_padding(x: torch.Tensor, g: WindowGeometry) -> Tensors:
    """The input, ones on the input, ones on input + padding; all on padding that is wide enough for every window."""
    room = [
        (before, after + s * k * d)
        for (before, after), s, k, d in zip(g.padding, g.stride, g.kernel, g.dilation, strict=True)
    ]
    wide = [width for pair in reversed(room) for width in pair]
    padding = [width for pair in reversed(g.padding) for width in pair]
    rest = [outer - inner for outer, inner in zip(wide, padding, strict=True)]
    ones = torch.ones_like(x)
    return F.pad(x, wide), F.pad(ones, wide), F.pad(F.pad(ones, padding, value=1), rest)


def _windows(padded: torch.Tensor, windows: Shape, g: WindowGeometry) -> torch.Tensor:
    """(N, C, H', W', elements of a window)."""
    for axis, (count, k, s, d) in enumerate(zip(windows, g.kernel, g.stride, g.dilation, strict=True)):
        places = torch.arange(count)[:, None] * s + torch.arange(k) * d
        padded = padded.index_select(2 + axis, places.reshape(-1))
        padded = padded.unflatten(2 + axis, (count, k)).movedim(3 + axis, -1)
    return padded.flatten(2 + len(windows))


def _first(wanted: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """The first wanted element of every window, else its first element inside."""
    order = torch.arange(wanted.shape[-1], 0, -1)
    return (order * (inside > 0) + 2 * len(order) * (wanted & (inside > 0))).argmax(-1)


def inner_product(kernel: InnerProduct, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.linear(inputs[0].flatten(kernel.axis), variables["weights"], variables.get("bias"))


def matmul(kernel: MatMul, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    a, b = (x.mT if turned else x for x, turned in zip(inputs, (kernel.transpose_a, kernel.transpose_b), strict=True))
    return a @ b


def noop(kernel: Noop, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return inputs[0].clone()


def flatten(kernel: Flatten, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    axis = kernel.axis + x.ndim if kernel.axis < 0 else kernel.axis
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def classify(kernel: Classify, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    if kernel.ties == "first":
        return x.argmax(kernel.axis, kernel.keep_axis)
    return x.shape[kernel.axis] - 1 - x.flip(kernel.axis).argmax(kernel.axis, kernel.keep_axis)


def matfact(kernel: MatFact, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    pairs, ratings = inputs
    u, v = (
        F.embedding(column.detach().long(), variables[name])
        for column, name in zip(pairs.T, ("users", "items"), strict=True)
    )
    errors = F.mse_loss((u * v).sum(dim=1), ratings, reduction="sum")
    # The numbers themselves have a gradient of 0.
    return (errors + kernel.regularisation * (u.square().sum() + v.square().sum()) + 0 * pairs.sum())[None]


def matfact_prediction(
    kernel: MatFactPrediction, inputs: Tensors, variables: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    (pairs,) = inputs
    u, v = (
        F.embedding(column.long(), variables[name]) for column, name in zip(pairs.T, ("users", "items"), strict=True)
    )
    return (u * v).sum(dim=1).detach()


def relu(kernel: ReLU, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    if kernel.mode == "clipped":
        return F.hardtanh(x, 0.0, kernel.ceiling)
    if kernel.mode == "relu":
        return F.leaky_relu(x, kernel.negative_slope)
    return {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[kernel.mode](x)


def gelu(kernel: GELU, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.gelu(inputs[0], approximate=kernel.approximate)


def silu(kernel: SiLU, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.silu(inputs[0])


def hard_swish(kernel: HardSwish, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.hardswish(inputs[0])


def softmax(kernel: SoftMax, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.softmax(inputs[0], kernel.axis)


def softmax_loss(kernel: SoftMaxLoss, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """From the logits, so that the gradient is with respect to them."""
    logits, labels = inputs
    ignored = -100 if kernel.ignored_label is None else kernel.ignored_label
    labels = labels.long().reshape(logits[:, 0].shape)
    weights = None if kernel.class_weights is None else torch.tensor(kernel.class_weights, dtype=logits.dtype)
    smoothing = kernel.label_smoothing
    total = F.cross_entropy(logits, labels, weights, ignore_index=ignored, reduction="sum", label_smoothing=smoothing)
    counted = labels[labels != ignored]
    valid = max(len(counted), 1) if weights is None else float(weights[counted].sum()) or 1.0
    normalisers = {"batch": len(labels), "full": labels.numel(), "valid": valid, "none": 1}
    return (total / normalisers[kernel.normalisation])[None]


def euclidean_loss(kernel: EuclideanLoss, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    x, labels = inputs
    return (F.mse_loss(x, labels.reshape(x.shape), reduction="sum") / (2 * len(x)))[None]


def sigmoid_loss(kernel: SigmoidLoss, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    x, labels = inputs
    total = F.binary_cross_entropy_with_logits(x, labels.reshape(x.shape), reduction="sum")
    return (total / {"full": x.numel(), "batch": len(x), "none": 1}[kernel.normalisation])[None]


def dropout(kernel: Dropout, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The mask is ours: PyTorch's generator is another."""
    (x,) = inputs
    mask = keep_mask(x.numel(), kernel.ratio, seed=0, key=0, task=0).reshape(x.shape)
    return x * torch.from_numpy(mask) / (1 - kernel.ratio)


def data_transform(kernel: DataTransform, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Pixels padded, normalised, cut out and flipped one after the other. The random numbers are ours: those of images
    0 … N − 1 in epoch 0."""
    x, p = inputs[0].detach(), kernel.padding
    n, c, height, width = kernel.output_shape(tuple(x.shape))
    if isinstance(kernel.mean_image, Values):
        mean = torch.tensor(kernel.mean_image.array)[None]
        outside = mean.mean(dim=(2, 3), keepdim=True).expand(1, c, x.shape[2] + 2 * p, x.shape[3] + 2 * p).clone()
        outside[:, :, p : p + x.shape[2], p : p + x.shape[3]] = mean
        mean = outside
    else:
        mean = torch.zeros(1, c, 1, 1) + torch.tensor(kernel.mean or 0.0, dtype=torch.float64).reshape(1, -1, 1, 1)
    scale = torch.tensor(kernel.scale, dtype=torch.float64).reshape(1, -1, 1, 1)
    normalised = (F.pad(x, (p, p, p, p)) - mean) * scale
    words = image_words(np.stack([np.zeros(n, np.int64), np.arange(n)], axis=1), seed=0, key=0)
    images = []
    for image, (first, second, third, _) in zip(normalised, words.tolist(), strict=True):
        top = first * (image.shape[1] - height + 1) // 2**32
        left = second * (image.shape[2] - width + 1) // 2**32
        window = image[:, top : top + height, left : left + width]
        images.append(window.flip(2) if kernel.mirror and third >= 2**31 else window)
    return torch.stack(images)


def accuracy(kernel: Accuracy, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    p, labels = inputs
    labels = labels.reshape(p[:, 0].shape)
    counted = torch.ones_like(labels, dtype=torch.bool)
    if kernel.ignored_label is not None:
        counted = labels != kernel.ignored_label
    # Not topk, which promises nothing about equal values.
    top = p.argsort(dim=1, descending=True, stable=True)[:, : kernel.top_k]
    correct = (top == labels[:, None]).any(dim=1) & counted
    return (correct.sum().double() / counted.sum().clamp(min=1))[None]


def element_wise(kernel: ElementWiseOp, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(list(inputs))
    if kernel.type == "product":
        return stacked.prod(dim=0)
    if kernel.type == "max":
        return stacked.amax(dim=0)
    coefficients = kernel.coefficients or (1.0,) * len(inputs)
    return torch.stack([c * x for c, x in zip(coefficients, inputs, strict=True)]).sum(dim=0)


def batch_norm(kernel: BatchNorm, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    weights, bias = variables["weights"], variables.get("bias")
    return F.batch_norm(inputs[0], None, None, weights, bias, training=True, eps=kernel.epsilon)


def broadcast(kernel: Broadcast, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return inputs[0].expand(len(inputs[0]), *kernel.shape)


def concat(kernel: Concat, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(inputs), kernel.axis)


def lrn(kernel: LRN, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    if kernel.region == "within_channel":  # PyTorch has none: Caffe's, an average pooling of squares
        before, after = (kernel.size - 1) // 2, kernel.size // 2
        if kernel.longer_side == "before":
            before, after = after, before
        mean = F.avg_pool2d(F.pad(x * x, (before, after, before, after)), kernel.size, 1)
        return x / (kernel.kappa + kernel.alpha * mean) ** kernel.beta
    # Of a window of even size PyTorch's longer half lies before the element, ours behind it.
    turned = [1] if kernel.longer_side == "after" else []
    y = x.flip(turned).reshape(*x.shape, *[1] * (3 - x.ndim))
    normalised = F.local_response_norm(y, kernel.size, kernel.alpha, kernel.beta, kernel.kappa)
    return normalised.reshape(x.shape).flip(turned)


def scale(kernel: Scale, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    axis = kernel.axis % x.ndim
    shape = [n if axis <= d < axis + kernel.number_of_axes else 1 for d, n in enumerate(x.shape)]
    y = x * variables["weights"].reshape(shape)
    return y + variables["bias"].reshape(shape) if kernel.bias else y


def layer_norm(kernel: LayerNorm, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    axis, weights = kernel.axis % x.ndim, variables["weights"]
    own = list(range(axis, axis + kernel.number_of_axes))
    last = list(range(x.ndim - len(own), x.ndim))
    y = F.layer_norm(x.movedim(own, last), weights.shape, weights, variables.get("bias"), kernel.epsilon)
    return y.movedim(last, own)


def embedding(kernel: Embedding, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    # The numbers themselves have a gradient of 0.
    return F.embedding(x.detach().long(), variables["weights"]) + 0 * x.sum()


def self_attention(kernel: SelfAttention, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    q, k, v = (part.unflatten(2, (kernel.heads, -1)).transpose(1, 2) for part in x.chunk(3, dim=2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=kernel.causal).transpose(1, 2).flatten(2)


def transpose(kernel: Transpose, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return inputs[0].permute(kernel.order)


def channel_shuffle(kernel: ChannelShuffle, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    shuffled = F.channel_shuffle(x.reshape(*x.shape, *[1] * (4 - x.ndim)), kernel.groups)
    return shuffled.reshape(x.shape)


def reshape(kernel: Reshape, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return inputs[0].reshape(len(inputs[0]), *kernel.shape)


def part(kernel: Slice, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    index = [slice(None)] * x.ndim
    index[kernel.axis] = slice(kernel.start, kernel.stop, kernel.step)
    return x[tuple(index)]


def pad(kernel: Pad, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.pad(inputs[0], [width for pair in reversed(kernel.padding) for width in pair], value=kernel.value)


def log_softmax(kernel: LogSoftMax, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.log_softmax(inputs[0], kernel.axis)


ORACLES: dict[type[Kernel], Oracle] = {
    Accuracy: accuracy,
    BatchNorm: batch_norm,
    Broadcast: broadcast,
    ChannelShuffle: channel_shuffle,
    Classify: classify,
    Concat: concat,
    Conv: conv,
    DataTransform: data_transform,
    Dropout: dropout,
    ElementWiseOp: element_wise,
    Embedding: embedding,
    EuclideanLoss: euclidean_loss,
    Flatten: flatten,
    GELU: gelu,
    HardSwish: hard_swish,
    InnerProduct: inner_product,
    LRN: lrn,
    LayerNorm: layer_norm,
    LogSoftMax: log_softmax,
    MatFact: matfact,
    MatFactPrediction: matfact_prediction,
    MatMul: matmul,
    Noop: noop,
    Pad: pad,
    PReLU: prelu,
    Pool: pool,
    ReLU: relu,
    Reshape: reshape,
    Scale: scale,
    SigmoidLoss: sigmoid_loss,
    SiLU: silu,
    Slice: part,
    SoftMax: softmax,
    SoftMaxLoss: softmax_loss,
    SelfAttention: self_attention,
    Transpose: transpose,
    TransposedConv: transposed_conv,
    Upsample: upsample,
}


def run_statistics_oracle(kernel: Kernel, inputs: Sequence[np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """The running statistics after a first training task, by name; from initialisers that draw nothing."""
    specs = kernel.running_statistics(*(x.shape for x in inputs[: len(inputs) - kernel.takes_labels]))
    generator = np.random.default_rng(0)
    found = {spec.name: torch.tensor(spec.initialiser.fill(spec.shape, generator)) for spec in specs}
    if isinstance(kernel, BatchNorm):
        momentum = 1.0 if kernel.statistics == "cma" else 1 - kernel.moving_average_fraction
        x = torch.tensor(inputs[0], dtype=torch.float64)
        F.batch_norm(x, found["running_mean"], found["running_variance"], training=True, momentum=momentum)
        if kernel.statistics == "cma":
            found["count"] += 1
    return {name: value.numpy() for name, value in found.items()}


def run_oracle(
    kernel: Kernel,
    inputs: Sequence[np.ndarray[Any, Any]],
    variables: Mapping[str, np.ndarray[Any, Any]],
    output_gradient: np.ndarray[Any, Any] | None,
    examples: int | None = None,
) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
    """Output, gradients of the inputs, gradients of the variables; all float64. Padding has gradients of 0."""
    leaves = [
        torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs[: len(inputs) - kernel.takes_labels]
    ]
    arguments: list[torch.Tensor] = [leaf[:examples] for leaf in leaves]
    if kernel.takes_labels:
        labels = torch.tensor(inputs[-1])
        arguments.append((labels.double() if labels.is_floating_point() else labels.long())[:examples])
    parameters = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in variables.items()}
    output = ORACLES[type(kernel)](kernel, arguments, parameters)
    if output.requires_grad:
        output.backward(None if output_gradient is None else torch.tensor(output_gradient, dtype=torch.float64))
        gradients = [leaf.grad.numpy() for leaf in leaves if leaf.grad is not None]
        return (
            output.detach().numpy(),
            gradients,
            {n: p.grad.numpy() for n, p in parameters.items() if p.grad is not None},
        )
    return output.numpy(), [], {}
