"""The reference library: what each request of the kernel interface is in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

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
from crossbow.kernels.reference import (
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
    part,
    pooling,
    scaling,
    softmax,
    transpose,
    vector,
)
from crossbow.kernels.reference.prepare import prepare
from crossbow.kernels.strides import moves_nothing
from crossbow.solver.update import Assignment
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
        self.mixed = None

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

    def batch_norm_backward(
        self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting
    ) -> PreparedKernel:
        # Behind a ReLU the bias is needed to tell where that was flat.
        parameters = setting.parameters if setting.relu else ("weights",)
        reads = ("input0", "output_gradient", *parameters, "kept")
        writes = [f"{name}_gradient" for name in setting.parameters]
        if dx is not None:
            writes.append("input_gradient")
        return prepare("batch_norm_backward", batch_norm.backward, reads, tuple(writes), setting=setting)

    def scaling_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, axis: int
    ) -> PreparedKernel:
        reads = ("input0", "weights") if bias is None else ("input0", "weights", "bias")
        in_place = ("input0", "output")
        return prepare("scaling_forward", scaling.forward, reads, ("output",), in_place=in_place, axis=axis)

    def scaling_backward(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, dx: Tensor | None, axis: int
    ) -> PreparedKernel:
        reads, writes, function = ("input0", "output_gradient", "weights"), _gradients(bias), scaling.backward
        if dx is None:
            return prepare("scaling_backward", function, reads, writes, axis=axis)
        writes, in_place = (*writes, "input_gradient"), ("output_gradient", "input_gradient")
        return prepare("scaling_backward", function, reads, writes, in_place=in_place, axis=axis)

    # Operators without variables.

    def pooling_forward(
        self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase, seed: int = 0, key: int = 0
    ) -> PreparedKernel:
        name, x_alone, stochastic = f"pooling_forward {geometry.method}", ("input0",), geometry.method == "stochastic"
        if geometry.method == "average":
            return prepare(name, pooling.forward_average, x_alone, ("output",), geometry=geometry)
        if phase is Phase.CHECK:
            function = pooling.forward_expected if stochastic else pooling.forward_max
            return prepare(name, function, x_alone, ("output",), geometry=geometry)
        writes, kept = ("output", "kept"), y.elements * pooling.KEPT_TYPE.itemsize
        if not stochastic:
            return prepare(name, pooling.forward_max, x_alone, writes, kept=kept, geometry=geometry)
        reads, picking = ("input0", "state"), pooling.forward_stochastic
        return prepare(name, picking, reads, writes, kept=kept, geometry=geometry, seed=seed, key=key)

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        name, writes = f"pooling_backward {geometry.method}", ("input_gradient",)
        if geometry.method == "average":
            return prepare(name, pooling.backward_average, ("output_gradient",), writes, geometry=geometry)
        return prepare(name, pooling.backward_picked, ("output_gradient", "kept"), writes, geometry=geometry)

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

    def lrn_forward(self, x: Tensor, y: Tensor, geometry: ResponseGeometry, phase: Phase) -> PreparedKernel:
        return prepare("lrn_forward", lrn.forward, ("input0",), ("output",), geometry=geometry)

    def lrn_backward(self, x: Tensor, dy: Tensor, dx: Tensor, geometry: ResponseGeometry) -> PreparedKernel:
        reads, in_place = ("input0", "output_gradient"), ("output_gradient", "input_gradient")
        writes = ("input_gradient",)
        return prepare("lrn_backward", lrn.backward, reads, writes, in_place=in_place, geometry=geometry)

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        in_place = ("input0", "output")
        return prepare("softmax_forward", softmax.forward, ("input0",), ("output",), in_place=in_place, axis=axis)

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        reads, in_place = ("output", "output_gradient"), ("output_gradient", "input_gradient")
        return prepare("softmax_backward", softmax.backward, reads, ("input_gradient",), in_place=in_place, axis=axis)

    def log_softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        roles, function = ("input0", "output"), log_softmax.forward
        return prepare("log_softmax_forward", function, roles[:1], roles[1:], in_place=roles, axis=axis)

    def log_softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        reads, in_place = ("output", "output_gradient"), ("output_gradient", "input_gradient")
        function, writes = log_softmax.backward, ("input_gradient",)
        return prepare("log_softmax_backward", function, reads, writes, in_place=in_place, axis=axis)

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

    def product_forward(self, xs: Sequence[Tensor], y: Tensor) -> PreparedKernel:
        in_place = ("input0", "output")
        return prepare("product_forward", element_wise.product_forward, _inputs(xs), ("output",), in_place=in_place)

    def product_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        reads = ("output_gradient", *(role for number, role in enumerate(_inputs(xs)) if number != index))
        function, in_place = element_wise.product_backward, ("output_gradient", "input_gradient")
        return prepare("product_backward", function, reads, ("input_gradient",), in_place=in_place)

    def maximum_forward(self, xs: Sequence[Tensor], y: Tensor, phase: Phase) -> PreparedKernel:
        reads, function, in_place = _inputs(xs), element_wise.maximum_forward, ("input0", "output")
        if phase is Phase.CHECK:
            return prepare("maximum_forward", function, reads, ("output",), in_place=in_place)
        writes = ("output", "kept")
        return prepare("maximum_forward", function, reads, writes, in_place=in_place, kept=y.elements)

    def maximum_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        reads, writes = ("output_gradient", "kept"), ("input_gradient",)
        function, in_place = element_wise.maximum_backward, ("output_gradient", "input_gradient")
        return prepare("maximum_backward", function, reads, writes, in_place=in_place, index=index)

    def concat_forward(self, xs: Sequence[Tensor], y: Tensor, axis: int) -> PreparedKernel:
        return prepare("concat_forward", concat.forward, _inputs(xs), ("output",), axis=axis)

    def concat_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int) -> PreparedKernel:
        reads, writes = ("output_gradient",), ("input_gradient",)
        return prepare("concat_backward", concat.backward, reads, writes, axis=axis, start=start)

    def copy_forward(self, x: Tensor, y: Tensor) -> PreparedKernel:
        roles = ("input0", "output") if x.same_order(y) else None
        kernel = prepare("copy_forward", copy.forward, ("input0",), ("output",), in_place=roles)
        return replace(kernel, alias=roles)

    def copy_backward(self, dy: Tensor, dx: Tensor) -> PreparedKernel:
        reads, writes = ("output_gradient",), ("input_gradient",)
        roles = ("output_gradient", "input_gradient") if dy.same_order(dx) else None
        return replace(prepare("copy_backward", copy.backward, reads, writes, in_place=roles), alias=roles)

    def transpose_forward(self, x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
        roles = ("input0", "output")
        same = roles if moves_nothing(x, y, sizes, order) else None
        function, axes = transpose.forward, tuple(order)
        kernel = prepare("transpose_forward", function, roles[:1], roles[1:], in_place=same, sizes=sizes, order=axes)
        return replace(kernel, alias=same)

    def transpose_backward(self, dy: Tensor, dx: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
        roles = ("output_gradient", "input_gradient")
        same = roles if moves_nothing(dx, dy, sizes, order) else None
        function, axes = transpose.backward, tuple(order)
        kernel = prepare("transpose_backward", function, roles[:1], roles[1:], in_place=same, sizes=sizes, order=axes)
        return replace(kernel, alias=same)

    def slice_forward(self, x: Tensor, y: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
        place = part.sliced(axis, start, step, y.shape[axis])
        return prepare("slice_forward", part.taken, ("input0",), ("output",), place=place)

    def slice_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
        place, reads, writes = part.sliced(axis, start, step, dy.shape[axis]), ("output_gradient",), ("input_gradient",)
        return prepare("slice_backward", part.put_back, reads, writes, place=place)

    def pad_forward(self, x: Tensor, y: Tensor, before: Sequence[int], value: float) -> PreparedKernel:
        place = part.inside(before, x.shape)
        return prepare("pad_forward", part.put, ("input0",), ("output",), place=place, value=value)

    def pad_backward(self, dy: Tensor, dx: Tensor, before: Sequence[int]) -> PreparedKernel:
        place, reads, writes = part.inside(before, dx.shape), ("output_gradient",), ("input_gradient",)
        return prepare("pad_backward", part.taken_back, reads, writes, place=place)

    def matmul_forward(self, a: Tensor, b: Tensor, y: Tensor, geometry: MatrixProductGeometry) -> PreparedKernel:
        return prepare("matmul_forward", matmul.forward, ("input0", "input1"), ("output",), geometry=geometry)

    def matmul_backward(
        self, dy: Tensor, a: Tensor, b: Tensor, number: int, geometry: MatrixProductGeometry
    ) -> PreparedKernel:
        reads = ("output_gradient", f"input{1 - number}")
        function = matmul.backward_first if number == 0 else matmul.backward_second
        return prepare("matmul_backward", function, reads, ("input_gradient",), geometry=geometry)

    def classify(self, x: Tensor, y: Tensor, axis: int, ties: str = "first") -> PreparedKernel:
        return prepare("classify", classify.forward, ("input0",), ("output",), axis=axis, ties=ties)

    def data_transform(
        self, x: Tensor, y: Tensor, transform: ImageTransform, seed: int | None, key: int
    ) -> PreparedKernel:
        if seed is None:
            return prepare("data_transform", data_transform.centred, ("input0",), ("output",), transform=transform)
        reads, function = ("input0", "state", "slot_positions"), data_transform.at_random
        return prepare("data_transform", function, reads, ("output",), transform=transform, seed=seed, key=key)

    # Losses and measures.

    def softmax_loss_forward(
        self,
        p: Tensor,
        labels: Tensor,
        ignored_label: int | None,
        normalisation: str,
        logits: Tensor | None = None,
    ) -> PreparedKernel:
        function: Callable[..., None] = loss.softmax_loss_forward
        name, values = "softmax_loss_forward", "input0"
        if logits is not None:
            name, function, values = f"{name} of logits", loss.softmax_loss_of_logits, "logits"
        reads = (values, *_LOSS_READS[1:])
        return prepare(name, function, reads, ("output",), ignored_label=ignored_label, normalisation=normalisation)

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

    def factorisation_forward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        reads, function = (*_LOSS_READS, "users", "items"), factorisation.forward
        return prepare("factorisation_forward", function, reads, ("output",), regularisation=regularisation)

    def factorisation_backward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        reads, writes = (*_LOSS_READS, "users", "items"), ("users_gradient", "items_gradient")
        function = factorisation.backward
        return prepare("factorisation_backward", function, reads, writes, regularisation=regularisation)

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        reads = ("slots", "slot_labels", "state")
        return prepare("load_batch", engine.load_batch, reads, ("input", "labels"), scale=float(scale))

    def check_finite(self, what: str) -> PreparedKernel:
        return prepare("check_finite", engine.check_finite, ("value",), (), what=what)

    def linear_combination(
        self,
        assignments: Sequence[Assignment],
        dtype: np.dtype[np.generic],
        signs: Sequence[tuple[str, str]] = (),
    ) -> PreparedKernel:
        return vector.prepare_linear_combination(assignments, dtype, signs)

    def squared_norm(self, terms: Sequence[str], dtype: np.dtype[np.generic]) -> PreparedKernel:
        return vector.prepare_squared_norm(terms, dtype)

    def clip_coefficients(self, limit: float, clipped: Sequence[bool]) -> PreparedKernel:
        return vector.prepare_clip_coefficients(limit, clipped)

    def wait(self) -> PreparedKernel:
        return prepare("wait", engine.wait, ("flags", "abort", "state"), ())

    def signal(self) -> PreparedKernel:
        return prepare("signal", engine.signal, ("state",), ("flag",))


_LOSS_READS = ("input0", "labels", "state")


def _inputs(xs: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(f"input{number}" for number in range(len(xs)))


def _gradients(bias: Variable | None) -> tuple[str, ...]:
    return ("weights_gradient",) if bias is None else ("weights_gradient", "bias_gradient")
