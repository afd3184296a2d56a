"""The fast CPU library: oneDNN's primitives, and compiled passes where it has none. Float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels import compiled
from crossbow.kernels.interface import (
    BatchNormSetting,
    ConvolutionGeometry,
    ImageTransform,
    MatrixProductGeometry,
    PoolingGeometry,
    PreparedKernel,
    ResponseGeometry,
    Variable,
)
from crossbow.kernels.onednn import (
    activation,
    batch_norm,
    classify,
    concat,
    convolution,
    copy,
    data_transform,
    dropout,
    element_wise,
    engine,
    factorisation,
    inner_product,
    log_softmax,
    loss,
    lrn,
    matmul,
    max_pooling,
    part,
    pooling,
    scaling,
    softmax,
    stochastic_pooling,
    transpose,
    vector,
)
from crossbow.kernels.onednn.fallback import with_fallbacks
from crossbow.kernels.reference.library import Reference
from crossbow.solver.update import Assignment
from crossbow.types import Layout, Phase, Shape, Tensor

FLOAT32 = np.dtype(np.float32)


@with_fallbacks
class OneDNN(Reference):
    """oneDNN's kernels; what it does not accelerate is inherited from the reference library and runs in NumPy.

    So does what oneDNN refuses: the kernel's name then says that it is a fallback, and why.
    """

    name: str = "onednn"

    def __init__(self, *, winograd: bool = True) -> None:
        """winograd: whether convolutions may be computed by Winograd's filtering, which rounds more."""
        super().__init__(np.float32)
        self.own_convolutions = convolution.OWN if winograd else convolution.EXACT
        self.fused_relu = ("convolution", "inner_product", "batch_norm", "weighted_sum")
        self.mixed = None

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
        if not _images(x):
            return super().convolution_forward(x, weights, bias, y, geometry, relu=relu)
        return convolution.forward(x, weights, bias, y, geometry, relu, self.own_convolutions)

    def convolution_backward_data(
        self, dy: Tensor, weights: Variable, dx: Tensor, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        if not _images(dx):
            return super().convolution_backward_data(dy, weights, dx, geometry)
        return convolution.backward_data(dy, weights, dx, geometry, self.own_convolutions)

    def convolution_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        if not _images(x):
            return super().convolution_backward_weights(x, dy, weights, bias, geometry)
        return convolution.backward_weights(x, dy, weights, bias, geometry, self.own_convolutions)

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

    def batch_norm_backward(
        self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting
    ) -> PreparedKernel:
        return batch_norm.backward(x, dx, setting)

    def scaling_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, axis: int
    ) -> PreparedKernel:
        if not _alike(x, y):
            return super().scaling_forward(x, weights, bias, y, axis)
        return scaling.forward(x, weights, bias, axis)

    def scaling_backward(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, dx: Tensor | None, axis: int
    ) -> PreparedKernel:
        if not _alike(x, dy, dx or x):
            return super().scaling_backward(x, dy, weights, bias, dx, axis)
        return scaling.backward(x, weights, bias, dx, axis)

    # Operators without variables.

    def pooling_forward(
        self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase, seed: int = 0, key: int = 0
    ) -> PreparedKernel:
        if not _images(x):
            return super().pooling_forward(x, y, geometry, phase, seed, key)
        if geometry.method == "stochastic":
            return stochastic_pooling.forward(x, y, geometry, phase, seed, key)
        if geometry.method == "max":
            return max_pooling.forward(x, y, geometry, phase)
        return pooling.forward(x, y, geometry)

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        if not _images(dx):
            return super().pooling_backward(dy, dx, geometry)
        if geometry.method == "stochastic":
            return stochastic_pooling.backward(dy, dx, geometry)
        if geometry.method == "max":
            return max_pooling.backward(dy, dx, geometry)
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

    def lrn_forward(self, x: Tensor, y: Tensor, geometry: ResponseGeometry, phase: Phase) -> PreparedKernel:
        if not _alike(x, y):
            return super().lrn_forward(x, y, geometry, phase)
        return lrn.forward(x, geometry, phase)

    def lrn_backward(self, x: Tensor, dy: Tensor, dx: Tensor, geometry: ResponseGeometry) -> PreparedKernel:
        if not _alike(x, dy, dx):
            return super().lrn_backward(x, dy, dx, geometry)
        return lrn.backward(x, geometry)

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        return softmax.forward(x, y, axis)

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        return softmax.backward(y, dy, dx, axis)

    def log_softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        if not _alike(x, y):
            return super().log_softmax_forward(x, y, axis)
        return log_softmax.forward(x, axis)

    def log_softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        if not _alike(y, dy, dx):
            return super().log_softmax_backward(y, dy, dx, axis)
        return log_softmax.backward(y, axis)

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

    def product_forward(self, xs: Sequence[Tensor], y: Tensor) -> PreparedKernel:
        if not _alike(*xs, y):
            return super().product_forward(xs, y)
        return element_wise.product_forward(xs)

    def product_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        if not _alike(*xs, dy):
            return super().product_backward(xs, dy, index)
        return element_wise.product_backward(xs, index)

    def maximum_forward(self, xs: Sequence[Tensor], y: Tensor, phase: Phase) -> PreparedKernel:
        if not _alike(*xs, y):
            return super().maximum_forward(xs, y, phase)
        return element_wise.maximum_forward(xs, phase)

    def maximum_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        if not _alike(*xs, dy):
            return super().maximum_backward(xs, dy, index)
        return element_wise.maximum_backward(xs, index)

    def concat_forward(self, xs: Sequence[Tensor], y: Tensor, axis: int) -> PreparedKernel:
        if not _one_layout(*xs, y):
            return super().concat_forward(xs, y, axis)
        return concat.forward(xs, y, axis)

    def concat_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int) -> PreparedKernel:
        if not _one_layout(dy, dx):
            return super().concat_backward(dy, dx, axis, start)
        return concat.backward(dy, dx, axis, start)

    def copy_forward(self, x: Tensor, y: Tensor) -> PreparedKernel:
        return copy.forward(x, y) if copy.accepts(x, y) else super().copy_forward(x, y)

    def copy_backward(self, dy: Tensor, dx: Tensor) -> PreparedKernel:
        return copy.backward(dy, dx) if copy.accepts(dy, dx) else super().copy_backward(dy, dx)

    def transpose_forward(self, x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
        return transpose.forward(x, y, sizes, order)

    def transpose_backward(self, dy: Tensor, dx: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
        return transpose.backward(dy, dx, sizes, order)

    def slice_forward(self, x: Tensor, y: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
        return part.slice_forward(x, y, axis, start, step)

    def slice_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
        return part.slice_backward(dy, dx, axis, start, step)

    def pad_forward(self, x: Tensor, y: Tensor, before: Sequence[int], value: float) -> PreparedKernel:
        return part.pad_forward(x, y, before, value)

    def pad_backward(self, dy: Tensor, dx: Tensor, before: Sequence[int]) -> PreparedKernel:
        return part.pad_backward(dy, dx, before)

    def matmul_forward(self, a: Tensor, b: Tensor, y: Tensor, geometry: MatrixProductGeometry) -> PreparedKernel:
        if not matmul.accepts(geometry):
            return super().matmul_forward(a, b, y, geometry)
        return matmul.forward(a, b, y, geometry)

    def matmul_backward(
        self, dy: Tensor, a: Tensor, b: Tensor, number: int, geometry: MatrixProductGeometry
    ) -> PreparedKernel:
        if not matmul.accepts(geometry):
            return super().matmul_backward(dy, a, b, number, geometry)
        return matmul.backward(dy, a, b, number, geometry)

    def classify(self, x: Tensor, y: Tensor, axis: int, ties: str = "first") -> PreparedKernel:
        if ties == "first" and classify.accepts(x, y, axis):
            return classify.forward(x, axis)
        return super().classify(x, y, axis, ties)

    def data_transform(
        self, x: Tensor, y: Tensor, transform: ImageTransform, seed: int | None, key: int
    ) -> PreparedKernel:
        if not data_transform.accepts(x, y):
            return super().data_transform(x, y, transform, seed, key)
        if seed is None:
            return data_transform.centred(x, y, transform)
        return data_transform.at_random(x, y, transform, seed, key)

    # Losses and measures.

    def softmax_loss_forward(
        self,
        p: Tensor,
        labels: Tensor,
        ignored_label: int | None,
        normalisation: str,
        logits: Tensor | None = None,
    ) -> PreparedKernel:
        if not loss.accepts(p, labels):
            return super().softmax_loss_forward(p, labels, ignored_label, normalisation, logits)
        return loss.softmax_loss_forward(p, ignored_label, normalisation, logits)

    def softmax_loss_backward(
        self, p: Tensor, labels: Tensor, dx: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        if not loss.accepts(p, labels) or not _alike(p, dx):
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
        if not loss.accepts(p, labels):
            return super().accuracy(p, labels, top_k, ignored_label)
        return loss.accuracy(p, top_k, ignored_label)

    def factorisation_forward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        if labels.dtype != FLOAT32:
            return super().factorisation_forward(x, labels, users, items, regularisation)
        return factorisation.forward(users, items, regularisation)

    def factorisation_backward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        if labels.dtype != FLOAT32:
            return super().factorisation_backward(x, labels, users, items, regularisation)
        return factorisation.backward(users, items, regularisation)

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        if not engine.accepts(slots, x, slot_labels, labels):
            return super().load_batch(slots, x, slot_labels, labels, scale)
        return engine.load_batch(slots, x, labels, scale)

    def linear_combination(
        self,
        assignments: Sequence[Assignment],
        dtype: np.dtype[np.generic],
        signs: Sequence[tuple[str, str]] = (),
    ) -> PreparedKernel:
        if dtype != FLOAT32:
            return super().linear_combination(assignments, dtype, signs)
        return vector.linear_combination(assignments, signs)

    def squared_norm(self, terms: Sequence[str], dtype: np.dtype[np.generic]) -> PreparedKernel:
        return super().squared_norm(terms, dtype) if dtype != FLOAT32 else vector.squared_norm(terms)

    def clip_coefficients(self, limit: float, clipped: Sequence[bool]) -> PreparedKernel:
        return vector.clip_coefficients(limit, clipped)

    def wait(self) -> PreparedKernel:
        return compiled.wait()

    def signal(self) -> PreparedKernel:
        return compiled.signal()


def _images(tensor: Tensor) -> bool:
    """Whether there are two spatial axes: with one or three, windows slide in NumPy."""
    return len(tensor.shape) == 4


def _plain(*tensors: Tensor) -> bool:
    return all(tensor.layout is Layout.PLAIN for tensor in tensors)


def _alike(*tensors: Tensor) -> bool:
    """Whether equal places in memory hold equal indices."""
    return len({(tensor.shape, tensor.layout) for tensor in tensors}) == 1


def _one_layout(*tensors: Tensor) -> bool:
    return len({tensor.layout for tensor in tensors}) == 1
