"""Batch normalisation, with the sum and the ReLU after it in the same passes, by our own kernels.

If a block can process all values of its channels, one kernel computes the statistics and normalises, and one kernel
computes all gradients. Otherwise there are two kernels each: the first adds up parts of the channels, and every block
of the second adds up the parts of its own channels.

The forward pass keeps the batch's mean and the inverse of its standard deviation for the gradient. The gradient of a
ReLU needs nothing else, because the normalised value is computed again; after a sum, it needs the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.channels import MOST_OF_A_BLOCK, Channels
from crossbow.kernels.cuda.launch import Launch, computed_in, is_wide
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormSetting, BatchNormTraining
from crossbow.types import Array, Tensor

LINEAR, OF_NORMALISED, OF_OUTPUT = np.int32(0), np.int32(1), np.int32(2)
"""The argument of a ReLU's derivative, as in sources/batch_norm.cuh."""
ALIGNMENT = 8
"""Size in bytes of the copy of the count, which is stored before the sums, which are doubles."""


@CUDA.kernel(BatchNormTraining)
def training(request: BatchNormTraining) -> PreparedKernel:
    x, setting = request.x, request.setting
    fraction = np.float64(0 if setting.fraction is None else 1 - setting.fraction)
    numbers = np.float64(setting.epsilon), fraction, np.int32(setting.relu)
    # The count must not be updated before all blocks have read it, which takes a second kernel.
    whole = None if setting.fraction is None else _whole(x)
    channels = whole or Channels(x, 1, x.shape[1:2])

    def bind(buffers: Buffers) -> Sequence[Call]:
        given = buffers["input0"], _optional(buffers, "addend", setting.sum), *_parameters(buffers, setting)
        running = [buffers[f"running_{name}"] for name in ("mean", "variance", "mean_next", "variance_next")]
        written = buffers["kept"], buffers["output"]
        if whole is not None:
            return (_call_whole(whole, "batch_norm_training", *given, *running, *written, more=numbers),)
        counts = setting.fraction is None
        count, count_next = _optional(buffers, "count", counts), _optional(buffers, "count_next", counts)
        counted, sums = buffers["workspace"][:ALIGNMENT], buffers["workspace"][ALIGNMENT:]
        arguments = *given, sums, counted if counts else None, *running, count_next, *written
        return (
            _call(channels, "batch_norm_statistics", buffers["input0"], count, sums, counted, sums=True),
            _call(channels, "batch_norm_normalise", *arguments, more=numbers, sums=True),
        )

    kept = 2 * x.shape[1] * computed_in(x.dtype).itemsize
    workspace = 0 if whole is not None else ALIGNMENT + channels.workspace
    return request.prepared("cuda", bind, workspace=workspace, kept=kept)


@CUDA.kernel(BatchNormInference)
def inference(request: BatchNormInference) -> PreparedKernel:
    x, setting = request.x, request.setting
    channels = Channels(x, 1, x.shape[1:2])
    numbers = computed_in(x.dtype).type(setting.epsilon), np.int32(setting.relu)

    def bind(buffers: Buffers) -> Sequence[Call]:
        given = buffers["input0"], _optional(buffers, "addend", setting.sum), *_parameters(buffers, setting)
        running = buffers["running_mean"], buffers["running_variance"]
        return (_call(channels, "batch_norm_inference", *given, *running, buffers["output"], more=numbers),)

    return request.prepared("cuda", bind, in_place=False)


@CUDA.kernel(BatchNormBackward)
def backward(request: BatchNormBackward) -> PreparedKernel:
    x, dx, setting = request.x, request.dx, request.setting
    whole, after_sum = _whole(x), setting.masks_sum
    channels = whole or Channels(x, 1, x.shape[1:2])
    relu = OF_OUTPUT if after_sum else OF_NORMALISED if setting.relu else LINEAR

    def bind(buffers: Buffers) -> Sequence[Call]:
        x, dy, y = buffers["input0"], buffers["output_gradient"], _optional(buffers, "output", after_sum)
        bias = _optional(buffers, "bias", setting.bias and relu == OF_NORMALISED)
        parameters = buffers["weights"], bias, buffers["kept"]
        gradients = buffers["weights_gradient"], _optional(buffers, "bias_gradient", setting.bias)
        masked, target = (
            _optional(buffers, "addend_gradient", after_sum),
            _optional(buffers, "input_gradient", dx is not None),
        )
        if whole is not None:
            arguments = x, y, dy, *parameters, *gradients, masked, target
            return (_call_whole(whole, "batch_norm_gradient", *arguments, more=(relu,)),)
        sums = buffers["workspace"]
        given, left = (dy, relu) if masked is None else (masked, LINEAR)
        return (
            _call(channels, "batch_norm_products", x, y, dy, *parameters, sums, masked, more=(relu,), sums=True),
            _call(
                channels,
                "batch_norm_backward",
                x,
                given,
                *parameters,
                sums,
                *gradients,
                target,
                more=(left,),
                sums=True,
            ),
        )

    return request.prepared("cuda", bind, workspace=0 if whole is not None else channels.workspace)


def _whole(x: Tensor) -> Channels | None:
    """The division of a tensor in which a block processes all values of its channels; None if there are too many
    values."""
    channels = Channels(x, 1, x.shape[1:2], whole=True)
    return channels if channels.elements_of_whole <= MOST_OF_A_BLOCK and not is_wide(x.elements) else None


def _call(
    channels: Channels, name: str, *arguments: Array | None, more: tuple[np.generic, ...] = (), sums: bool = False
) -> Launch:
    return channels.each("batch_norm", name, *arguments, more=more, sums=sums)


def _call_whole(channels: Channels, name: str, *arguments: Array | None, more: tuple[np.generic, ...]) -> Launch:
    return channels.each("batch_norm_whole", name, *arguments, more=more, sums=True)


def _optional(buffers: Buffers, role: str, there: bool) -> Array | None:
    return buffers[role] if there else None


def _parameters(buffers: Buffers, setting: BatchNormSetting) -> tuple[Array, Array | None]:
    return buffers["weights"], _optional(buffers, "bias", setting.bias)
