"""The fast CPU library: oneDNN's primitives, and compiled passes where it has none. Float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels import compiled
from crossbow.kernels.interface import (
    Assignment,
    BatchNormSetting,
    ConvolutionGeometry,
    PoolingGeometry,
    PreparedKernel,
    Variable,
)
from crossbow.kernels.onednn import (
    activation,
    batch_norm,
    convolution,
    dropout,
    element_wise,
    engine,
    inner_product,
    loss,
    pooling,
    softmax,
    vector,
)
from crossbow.kernels.reference.library import Reference
from crossbow.types import Layout, Phase, Shape, Tensor

FLOAT32 = np.dtype(np.float32)


class OneDNN(Reference):
    """oneDNN's kernels; what it does not accelerate is inherited from the reference library and runs in NumPy."""

    name: str = "onednn"

    def __init__(self) -> None:
        super().__init__(np.float32)
        self.fused_relu = ("convolution", "inner_product", "batch_norm", "weighted_sum")

    def layout(self, shape: Shape) -> Layout:
        return Layout.CHANNELS_LAST if len(shape) == 4 else Layout.PLAIN

    # Weighted operators.

    def convolution_forward(
        self,
        x: Tensor,
        weights: Variable,
        bias: Variable | None,
        y: Tensor,
        geometry: ConvolutionGeometry,
        *,
        relu: bool = False,
    ) -> PreparedKernel:
        return convolution.forward(x, weights, bias, y, geometry, relu)

    def convolution_backward_data(
        self, dy: Tensor, weights: Variable, dx: Tensor, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        return convolution.backward_data(dy, weights, dx, geometry)

    def convolution_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        return convolution.backward_weights(x, dy, weights, bias, geometry)

    def inner_product_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, *, relu: bool = False
    ) -> PreparedKernel:
        return inner_product.forward(x, weights, bias, y, relu)

    def inner_product_backward_data(self, dy: Tensor, weights: Variable, dx: Tensor) -> PreparedKernel:
        return inner_product.backward_data(dy, weights, dx)

    def inner_product_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None
    ) -> PreparedKernel:
        return inner_product.backward_weights(x, dy, weights, bias)

    def batch_norm_training(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        return batch_norm.training(x, setting)

    def batch_norm_inference(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        return batch_norm.inference(x, setting)

    def batch_norm_backward(self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting) -> PreparedKernel:
        return batch_norm.backward(x, dx, setting)

    # Operators without variables.

    def pooling_forward(self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase) -> PreparedKernel:
        return pooling.forward(x, y, geometry, phase)

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        return pooling.backward(dy, dx, geometry)

    def activation_forward(
        self, x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        if not activation.accepts(x, y, mode, negative_slope):
            return super().activation_forward(x, y, mode, negative_slope, ceiling)
        return activation.forward(x, y, mode, negative_slope, ceiling)

    def activation_backward(
        self, y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        if not activation.accepts(dx, y, mode, negative_slope):
            return super().activation_backward(y, dy, dx, mode, negative_slope, ceiling)
        return activation.backward(y, dy, dx, mode, negative_slope, ceiling)

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        return softmax.forward(x, y, axis)

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        return softmax.backward(y, dy, dx, axis)

    def dropout_forward(self, x: Tensor, y: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        if not _alike(x, y):
            return super().dropout_forward(x, y, ratio, seed, key)
        return dropout.forward(x, ratio, seed, key)

    def dropout_backward(self, dy: Tensor, dx: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        if not _alike(dy, dx):
            return super().dropout_backward(dy, dx, ratio, seed, key)
        return dropout.backward(dy, ratio, seed, key)

    def weighted_sum(
        self, xs: Sequence[Tensor], y: Tensor, coefficients: Sequence[float], *, relu: bool = False
    ) -> PreparedKernel:
        if not _alike(*xs, y):
            return super().weighted_sum(xs, y, coefficients, relu=relu)
        return element_wise.weighted_sum(coefficients, relu)

    def scale(self, dy: Tensor, dx: Tensor, coefficient: float) -> PreparedKernel:
        if not _alike(dy, dx):
            return super().scale(dy, dx, coefficient)
        return element_wise.scale(coefficient)

    # Losses and measures.

    def softmax_loss_forward(
        self, p: Tensor, labels: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        if not _rows_of_classes(p, labels):
            return super().softmax_loss_forward(p, labels, ignored_label, normalisation)
        return loss.softmax_loss_forward(p, ignored_label, normalisation)

    def softmax_loss_backward(
        self, p: Tensor, labels: Tensor, dx: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        if not _rows_of_classes(p, labels) or not _plain(dx):
            return super().softmax_loss_backward(p, labels, dx, ignored_label, normalisation)
        return loss.softmax_loss_backward(p, ignored_label, normalisation)

    def euclidean_loss_forward(self, x: Tensor, labels: Tensor) -> PreparedKernel:
        if not _plain(x, labels) or labels.dtype != FLOAT32:
            return super().euclidean_loss_forward(x, labels)
        return loss.euclidean_loss_forward(x)

    def euclidean_loss_backward(self, x: Tensor, labels: Tensor, dx: Tensor) -> PreparedKernel:
        if not _plain(x, labels, dx) or labels.dtype != FLOAT32:
            return super().euclidean_loss_backward(x, labels, dx)
        return loss.euclidean_loss_backward(x)

    def accuracy(self, p: Tensor, labels: Tensor, top_k: int, ignored_label: int | None) -> PreparedKernel:
        if not _rows_of_classes(p, labels):
            return super().accuracy(p, labels, top_k, ignored_label)
        return loss.accuracy(p, top_k, ignored_label)

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        if not engine.accepts(slots, x, slot_labels, labels):
            return super().load_batch(slots, x, slot_labels, labels, scale)
        return engine.load_batch(slots, x, labels, scale)

    def linear_combination(self, assignments: Sequence[Assignment], dtype: np.dtype[np.generic]) -> PreparedKernel:
        if dtype != FLOAT32:
            return super().linear_combination(assignments, dtype)
        return vector.linear_combination(assignments)

    def wait(self) -> PreparedKernel:
        return compiled.wait()

    def signal(self) -> PreparedKernel:
        return compiled.signal()


def _plain(*tensors: Tensor) -> bool:
    return all(tensor.layout is Layout.PLAIN for tensor in tensors)


def _alike(*tensors: Tensor) -> bool:
    """Whether equal places in memory hold equal indices."""
    return len({(tensor.shape, tensor.layout) for tensor in tensors}) == 1


def _rows_of_classes(p: Tensor, labels: Tensor) -> bool:
    return len(p.shape) == 2 and labels.dtype == np.int32
