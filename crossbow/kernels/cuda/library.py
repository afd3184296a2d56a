"""The library of NVIDIA's GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from crossbow.kernels.cuda import (
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
    loss,
    lrn,
    matmul,
    part,
    pooling,
    scaling,
    softmax,
    transpose,
    vector,
)
from crossbow.kernels.cuda.launch import REALS
from crossbow.kernels.cuda.mixed import Mixed, narrow_type
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
from crossbow.solver.update import Assignment
from crossbow.types import ConfigurationError, Layout, Phase, Shape, Tensor


class Cuda:
    """Kernels for NVIDIA GPUs, in one floating-point type: cuDNN's, cuBLAS's, and our own where those have none.

    `narrow`: the name of a type of 16 bits, float16 or bfloat16, of which tensors may consist beside float32's. Images
    lie channels-last where `channels_last` says so, which None does where factors may be of 16 bits or rounded to TF32:
    the tensor cores' kernels want it. Calls go to the stream that the calling thread has set (`launch.on`), and return
    before the GPU is done. Matrix products round as the handle's math mode says.
    """

    name: str = "cuda"

    def __init__(
        self,
        dtype: DTypeLike = np.float32,
        *,
        channels_last: bool | None = None,
        deterministic: bool = False,
        tf32: bool = False,
        narrow: str | None = None,
    ) -> None:
        kind: np.dtype[np.generic] = np.dtype(dtype)
        if kind.name not in REALS:
            raise ConfigurationError(f"Cuda: dtype must be {' or '.join(REALS)}. Received: {kind}")
        self.dtypes: tuple[np.dtype[np.generic], ...] = (kind,)
        self.fused_relu: tuple[str, ...] = ("convolution", "inner_product", "batch_norm", "weighted_sum")
        self.mixed = None if narrow is None else Mixed(narrow_type(narrow))
        tensor_cores = tf32 or narrow is not None
        self.channels_last = tensor_cores if channels_last is None else channels_last
        self.arithmetic = convolution.Arithmetic(deterministic, tf32)

    def layout(self, shape: Shape) -> Layout:
        return Layout.CHANNELS_LAST if self.channels_last and len(shape) == 4 else Layout.PLAIN

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
        return convolution.forward(x, weights, bias, y, geometry, relu, self.arithmetic)

    def convolution_backward_data(
        self, dy: Tensor, weights: Variable, dx: Tensor, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        return convolution.backward_data(dy, weights, dx, geometry, self.arithmetic)

    def convolution_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        return convolution.backward_weights(x, dy, weights, bias, geometry, self.arithmetic)

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
        return batch_norm.training(x, y, setting)

    def batch_norm_inference(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        return batch_norm.inference(x, y, setting)

    def batch_norm_backward(
        self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting
    ) -> PreparedKernel:
        return batch_norm.backward(x, dy, dx, setting)

    def scaling_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, axis: int
    ) -> PreparedKernel:
        return scaling.forward(x, weights, bias, y, axis)

    def scaling_backward(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, dx: Tensor | None, axis: int
    ) -> PreparedKernel:
        return scaling.backward(x, dy, weights, bias, dx, axis)

    # Operators without variables.

    def pooling_forward(
        self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase, seed: int = 0, key: int = 0
    ) -> PreparedKernel:
        return pooling.forward(x, y, geometry, phase, seed, key)

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        return pooling.backward(dy, dx, geometry)

    def activation_forward(
        self, x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        return activation.forward(x, y, mode, negative_slope, ceiling)

    def activation_backward(
        self, y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        return activation.backward(y, dy, dx, mode, negative_slope, ceiling)

    def lrn_forward(self, x: Tensor, y: Tensor, geometry: ResponseGeometry, phase: Phase) -> PreparedKernel:
        return lrn.forward(x, y, geometry, phase)

    def lrn_backward(self, x: Tensor, dy: Tensor, dx: Tensor, geometry: ResponseGeometry) -> PreparedKernel:
        return lrn.backward(x, dy, dx, geometry)

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        return softmax.forward(x, y, axis)

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        return softmax.backward(y, dy, dx, axis)

    def log_softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        return softmax.log_forward(x, y, axis)

    def log_softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        return softmax.log_backward(y, dy, dx, axis)

    def dropout_forward(self, x: Tensor, y: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        return dropout.forward(x, y, ratio, seed, key)

    def dropout_backward(self, dy: Tensor, dx: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        return dropout.backward(dy, dx, ratio, seed, key)

    def weighted_sum(
        self, xs: Sequence[Tensor], y: Tensor, coefficients: Sequence[float], *, relu: bool = False
    ) -> PreparedKernel:
        return element_wise.weighted_sum(xs, y, coefficients, relu)

    def scale(self, dy: Tensor, dx: Tensor, coefficient: float) -> PreparedKernel:
        return element_wise.scale(dy, dx, coefficient)

    def product_forward(self, xs: Sequence[Tensor], y: Tensor) -> PreparedKernel:
        return element_wise.product_forward(xs, y)

    def product_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        return element_wise.product_backward(xs, dy, index)

    def maximum_forward(self, xs: Sequence[Tensor], y: Tensor, phase: Phase) -> PreparedKernel:
        return element_wise.maximum_forward(xs, y, phase)

    def maximum_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        return element_wise.maximum_backward(xs, dy, index)

    def concat_forward(self, xs: Sequence[Tensor], y: Tensor, axis: int) -> PreparedKernel:
        return concat.forward(xs, y, axis)

    def concat_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int) -> PreparedKernel:
        return concat.backward(dy, dx, axis, start)

    def copy_forward(self, x: Tensor, y: Tensor) -> PreparedKernel:
        return copy.forward(x, y)

    def copy_backward(self, dy: Tensor, dx: Tensor) -> PreparedKernel:
        return copy.backward(dy, dx)

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
        return matmul.forward(a, b, y, geometry)

    def matmul_backward(
        self, dy: Tensor, a: Tensor, b: Tensor, number: int, geometry: MatrixProductGeometry
    ) -> PreparedKernel:
        return matmul.backward(dy, a, b, number, geometry)

    def classify(self, x: Tensor, y: Tensor, axis: int, ties: str = "first") -> PreparedKernel:
        return classify.forward(x, y, axis, ties)

    def data_transform(
        self, x: Tensor, y: Tensor, transform: ImageTransform, seed: int | None, key: int
    ) -> PreparedKernel:
        return data_transform.transform(x, y, transform, seed, key)

    # Losses and measures.

    def softmax_loss_forward(
        self,
        p: Tensor,
        labels: Tensor,
        ignored_label: int | None,
        normalisation: str,
        logits: Tensor | None = None,
    ) -> PreparedKernel:
        return loss.softmax_loss_forward(p, labels, ignored_label, normalisation, logits)

    def softmax_loss_backward(
        self, p: Tensor, labels: Tensor, dx: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        return loss.softmax_loss_backward(p, labels, dx, ignored_label, normalisation)

    def euclidean_loss_forward(self, x: Tensor, labels: Tensor) -> PreparedKernel:
        return loss.euclidean_loss_forward(x, labels)

    def euclidean_loss_backward(self, x: Tensor, labels: Tensor, dx: Tensor) -> PreparedKernel:
        return loss.euclidean_loss_backward(x, labels, dx)

    def accuracy(self, p: Tensor, labels: Tensor, top_k: int, ignored_label: int | None) -> PreparedKernel:
        return loss.accuracy(p, labels, top_k, ignored_label)

    def factorisation_forward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        return factorisation.forward(x, labels, users, items, regularisation)

    def factorisation_backward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        return factorisation.backward(x, labels, users, items, regularisation)

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        return engine.load_batch(slots, x, slot_labels, labels, scale)

    def check_finite(self, what: str) -> PreparedKernel:
        return engine.check_finite(what)

    def linear_combination(
        self,
        assignments: Sequence[Assignment],
        dtype: np.dtype[np.generic],
        signs: Sequence[tuple[str, str]] = (),
    ) -> PreparedKernel:
        return vector.linear_combination(assignments, dtype, signs)

    def squared_norm(self, terms: Sequence[str], dtype: np.dtype[np.generic]) -> PreparedKernel:
        return vector.squared_norm(terms, dtype)

    def clip_coefficients(self, limit: float, clipped: Sequence[bool]) -> PreparedKernel:
        return vector.clip_coefficients(limit, clipped)
