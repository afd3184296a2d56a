"""What the operators are in PyTorch, written out one by one: a second opinion from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from crossbow.conf import pair
from crossbow.kernels.random import keep_mask
from crossbow.ops import (
    Accuracy,
    Conv,
    Dropout,
    ElementWiseOp,
    EuclideanLoss,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    SoftMax,
    SoftMaxLoss,
)

Tensors = Sequence[torch.Tensor]
Oracle = Callable[[Any, Tensors, Mapping[str, torch.Tensor]], torch.Tensor]
"""(operator, inputs with the labels last, variables) to the output."""


def conv(kernel: Conv, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    g = kernel.geometry
    weights, bias = variables["weights"], variables.get("bias")
    return F.conv2d(inputs[0], weights, bias, g.stride, g.padding, g.dilation, g.groups)


def pool(kernel: Pool, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    if kernel.global_pooling:
        return F.adaptive_max_pool2d(x, 1) if kernel.method == "max" else F.adaptive_avg_pool2d(x, 1)
    size, stride, padding = (pair(kernel, name, 0) for name in ("kernel_size", "stride", "padding"))
    ceil = kernel.rounding == "ceil"
    if kernel.method == "average":
        return F.avg_pool2d(x, size, stride, padding, ceil, kernel.count_padding)
    return F.max_pool2d(x, size, stride, padding, ceil_mode=ceil)


def inner_product(kernel: InnerProduct, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.linear(inputs[0].flatten(1), variables["weights"], variables.get("bias"))


def relu(kernel: ReLU, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (x,) = inputs
    if kernel.mode == "clipped":
        return F.hardtanh(x, 0.0, kernel.ceiling)
    if kernel.mode == "relu":
        return F.leaky_relu(x, kernel.negative_slope)
    return {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[kernel.mode](x)


def softmax(kernel: SoftMax, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.softmax(inputs[0], kernel.axis)


def softmax_loss(kernel: SoftMaxLoss, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """From the logits, so that the gradient is with respect to them."""
    logits, labels = inputs
    ignored = -100 if kernel.ignored_label is None else kernel.ignored_label
    total = F.cross_entropy(logits, labels.long(), ignore_index=ignored, reduction="sum")
    valid = max(int((labels != ignored).sum()), 1)
    return (total / {"batch": len(labels), "full": len(labels), "valid": valid, "none": 1}[kernel.normalisation])[None]


def euclidean_loss(kernel: EuclideanLoss, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    x, labels = inputs
    return (F.mse_loss(x, labels.reshape(x.shape), reduction="sum") / (2 * len(x)))[None]


def dropout(kernel: Dropout, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The mask is ours: PyTorch's generator is another."""
    (x,) = inputs
    mask = keep_mask(x.numel(), kernel.ratio, seed=0, key=0, task=0).reshape(x.shape)
    return x * torch.from_numpy(mask) / (1 - kernel.ratio)


def accuracy(kernel: Accuracy, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    p, labels = inputs
    counted = torch.ones_like(labels, dtype=torch.bool)
    if kernel.ignored_label is not None:
        counted = labels != kernel.ignored_label
    top = p.topk(kernel.top_k, dim=1).indices
    correct = (top == labels[:, None]).any(dim=1) & counted
    return (correct.sum().double() / counted.sum().clamp(min=1))[None]


def element_wise(kernel: ElementWiseOp, inputs: Tensors, variables: Mapping[str, torch.Tensor]) -> torch.Tensor:
    coefficients = kernel.coefficients or (1.0,) * len(inputs)
    return torch.stack([c * x for c, x in zip(coefficients, inputs, strict=True)]).sum(dim=0)


ORACLES: dict[type[Kernel], Oracle] = {
    Accuracy: accuracy,
    Conv: conv,
    Dropout: dropout,
    ElementWiseOp: element_wise,
    EuclideanLoss: euclidean_loss,
    InnerProduct: inner_product,
    Pool: pool,
    ReLU: relu,
    SoftMax: softmax,
    SoftMaxLoss: softmax_loss,
}


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
