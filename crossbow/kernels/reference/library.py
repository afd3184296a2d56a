"""The reference library: what each request of the kernel interface is in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from crossbow.kernels.interface import (
    Assignment,
    BatchNormSetting,
    ConvolutionGeometry,
    PoolingGeometry,
    PreparedKernel,
    Variable,
)
from crossbow.kernels.reference import (
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
)
from crossbow.kernels.reference.prepare import prepare
from crossbow.kernels.reference.vector import prepare_linear_combination
from crossbow.types import ConfigurationError, Layout, Phase, Shape, Tensor


class Reference:
    """NumPy kernels in one floating-point type: the specification of every other library.

    Everything is plain: activations and variables lie in logical order, although the kernels accept arrays of any
    strides. Each kernel is a function whose parameters are named as the buffers' roles.
    """

    name: str = "reference"

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        kind: np.dtype[np.generic] = np.dtype(dtype)
        if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ConfigurationError(f"Reference: dtype must be float32 or float64. Received: {kind}")
        self.dtypes: tuple[np.dtype[np.generic], ...] = (kind,)
        self.fused_relu: tuple[str, ...] = ()

    def layout(self, shape: Shape) -> Layout:
        return Layout.PLAIN

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
        reads = ("input0", "weights") if bias is None else ("input0", "weights", "bias")
        return prepare("convolution_forward", convolution.forward, reads, ("output",), relu=relu, geometry=geometry)

    def convolution_backward_data(
        self, dy: Tensor, weights: Variable, dx: Tensor, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        reads = ("output_gradient", "weights")
        function = convolution.backward_data
        return prepare("convolution_backward_data", function, reads, ("input_gradient",), geometry=geometry)

    def convolution_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        reads, function = ("input0", "output_gradient"), convolution.backward_weights
        return prepare("convolution_backward_weights", function, reads, _gradients(bias), geometry=geometry)

    def inner_product_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, *, relu: bool = False
    ) -> PreparedKernel:
        reads = ("input0", "weights") if bias is None else ("input0", "weights", "bias")
        return prepare("inner_product_forward", inner_product.forward, reads, ("output",), relu=relu)

    def inner_product_backward_data(self, dy: Tensor, weights: Variable, dx: Tensor) -> PreparedKernel:
        reads, writes = ("output_gradient", "weights"), ("input_gradient",)
        return prepare("inner_product_backward_data", inner_product.backward_data, reads, writes)

    def inner_product_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None
    ) -> PreparedKernel:
        reads, function = ("input0", "output_gradient"), inner_product.backward_weights
        return prepare("inner_product_backward_weights", function, reads, _gradients(bias))

    def batch_norm_training(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        reads = ("input0", *setting.parameters, *setting.observed)
        writes = ("output", "kept", *(f"{name}_next" for name in setting.observed))
        kept = 2 * x.shape[1] * x.dtype.itemsize
        name = "batch_norm_training"
        return prepare(name, batch_norm.training, reads, writes, kept=kept, relu=setting.relu, setting=setting)

    def batch_norm_inference(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        reads = ("input0", *setting.parameters, "running_mean", "running_variance")
        name, relu = "batch_norm_inference", setting.relu
        return prepare(name, batch_norm.inference, reads, ("output",), relu=relu, setting=setting)

    def batch_norm_backward(self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting) -> PreparedKernel:
        # Behind a ReLU the bias is needed to tell where that was flat.
        parameters = setting.parameters if setting.relu else ("weights",)
        reads = ("input0", "output_gradient", *parameters, "kept")
        writes = [f"{name}_gradient" for name in setting.parameters]
        if dx is not None:
            writes.append("input_gradient")
        return prepare("batch_norm_backward", batch_norm.backward, reads, tuple(writes), setting=setting)

    # Operators without variables.

    def pooling_forward(self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase) -> PreparedKernel:
        name, reads = f"pooling_forward {geometry.method}", ("input0",)
        if geometry.method == "average":
            return prepare(name, pooling.forward_average, reads, ("output",), geometry=geometry)
        if phase is Phase.CHECK:
            return prepare(name, pooling.forward_max, reads, ("output",), geometry=geometry)
        kept = y.elements * pooling.KEPT_TYPE.itemsize
        return prepare(name, pooling.forward_max, reads, ("output", "kept"), kept=kept, geometry=geometry)

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        name, writes = f"pooling_backward {geometry.method}", ("input_gradient",)
        if geometry.method == "average":
            return prepare(name, pooling.backward_average, ("output_gradient",), writes, geometry=geometry)
        return prepare(name, pooling.backward_max, ("output_gradient", "kept"), writes, geometry=geometry)

    def activation_forward(
        self, x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        return prepare(
            f"activation_forward {mode}",
            activation.forward,
            ("input0",),
            ("output",),
            in_place=("input0", "output"),
            mode=mode,
            negative_slope=negative_slope,
            ceiling=ceiling,
        )

    def activation_backward(
        self, y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        return prepare(
            f"activation_backward {mode}",
            activation.backward,
            ("output", "output_gradient"),
            ("input_gradient",),
            in_place=("output_gradient", "input_gradient"),
            mode=mode,
            negative_slope=negative_slope,
            ceiling=ceiling,
        )

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        in_place = ("input0", "output")
        return prepare("softmax_forward", softmax.forward, ("input0",), ("output",), in_place=in_place, axis=axis)

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        reads, in_place = ("output", "output_gradient"), ("output_gradient", "input_gradient")
        return prepare("softmax_backward", softmax.backward, reads, ("input_gradient",), in_place=in_place, axis=axis)

    def dropout_forward(self, x: Tensor, y: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        return prepare(
            "dropout_forward",
            dropout.forward,
            ("input0", "state"),
            ("output",),
            in_place=("input0", "output"),
            ratio=ratio,
            seed=seed,
            key=key,
        )

    def dropout_backward(self, dy: Tensor, dx: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        return prepare(
            "dropout_backward",
            dropout.backward,
            ("output_gradient", "state"),
            ("input_gradient",),
            in_place=("output_gradient", "input_gradient"),
            ratio=ratio,
            seed=seed,
            key=key,
        )

    def weighted_sum(
        self, xs: Sequence[Tensor], y: Tensor, coefficients: Sequence[float], *, relu: bool = False
    ) -> PreparedKernel:
        reads, factors = tuple(f"input{index}" for index in range(len(xs))), tuple(map(float, coefficients))
        return prepare(
            "weighted_sum",
            element_wise.weighted_sum,
            reads,
            ("output",),
            in_place=("input0", "output"),
            relu=relu,
            coefficients=factors,
        )

    def scale(self, dy: Tensor, dx: Tensor, coefficient: float) -> PreparedKernel:
        reads, writes = ("output_gradient",), ("input_gradient",)
        roles, factor = ("output_gradient", "input_gradient"), float(coefficient)
        kernel = prepare("scale", element_wise.scale, reads, writes, in_place=roles, coefficient=factor)
        return replace(kernel, alias=roles if factor == 1 else None)

    # Losses and measures.

    def softmax_loss_forward(
        self, p: Tensor, labels: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        return prepare(
            "softmax_loss_forward",
            loss.softmax_loss_forward,
            _LOSS_READS,
            ("output",),
            ignored_label=ignored_label,
            normalisation=normalisation,
        )

    def softmax_loss_backward(
        self, p: Tensor, labels: Tensor, dx: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        return prepare(
            "softmax_loss_backward",
            loss.softmax_loss_backward,
            _LOSS_READS,
            ("input_gradient",),
            ignored_label=ignored_label,
            normalisation=normalisation,
        )

    def euclidean_loss_forward(self, x: Tensor, labels: Tensor) -> PreparedKernel:
        return prepare("euclidean_loss_forward", loss.euclidean_loss_forward, _LOSS_READS, ("output",))

    def euclidean_loss_backward(self, x: Tensor, labels: Tensor, dx: Tensor) -> PreparedKernel:
        return prepare("euclidean_loss_backward", loss.euclidean_loss_backward, _LOSS_READS, ("input_gradient",))

    def accuracy(self, p: Tensor, labels: Tensor, top_k: int, ignored_label: int | None) -> PreparedKernel:
        return prepare("accuracy", loss.accuracy, _LOSS_READS, ("output",), top_k=top_k, ignored_label=ignored_label)

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        reads = ("slots", "slot_labels", "state")
        return prepare("load_batch", engine.load_batch, reads, ("input", "labels"), scale=float(scale))

    def linear_combination(self, assignments: Sequence[Assignment], dtype: np.dtype[np.generic]) -> PreparedKernel:
        return prepare_linear_combination(assignments, dtype)

    def wait(self) -> PreparedKernel:
        return prepare("wait", engine.wait, ("flags", "abort", "state"), ())

    def signal(self) -> PreparedKernel:
        return prepare("signal", engine.signal, ("state",), ("flag",))


_LOSS_READS = ("input0", "labels", "state")


def _gradients(bias: Variable | None) -> tuple[str, ...]:
    return ("weights_gradient",) if bias is None else ("weights_gradient", "bias_gradient")
