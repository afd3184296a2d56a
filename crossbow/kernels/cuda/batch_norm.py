"""Batch normalisation, with the ReLU after it in the same passes: kernels of our own.

The forward pass keeps the batch's mean and the inverse of its standard deviation for the gradient. A ReLU's gradient
needs nothing else: it follows from the normalised value, which is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.channels import Channels
from crossbow.kernels.cuda.launch import computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import BatchNormBackward, BatchNormInference, BatchNormSetting, BatchNormTraining
from crossbow.types import Array


@CUDA.kernel(BatchNormTraining)
def training(request: BatchNormTraining) -> PreparedKernel:
    x, setting = request.x, request.setting
    channels = Channels(x, 1, x.shape[1:2])
    fraction = np.float64(0 if setting.fraction is None else 1 - setting.fraction)

    def bind(buffers: Buffers) -> Sequence[Call]:
        b, sums, counted = buffers, buffers["workspace"], setting.fraction is None
        count, count_next = (b["count"], b["count_next"]) if counted else (None, None)
        running = b["running_mean"], b["running_variance"], count, b["running_mean_next"], b["running_variance_next"]
        numbers = np.float64(setting.epsilon), fraction
        parameters = b["weights"], _bias(b, setting), b["kept"], count
        return (
            channels.each("batch_norm_statistics", b["input0"], sums, sums=True),
            channels.total("batch_norm_observe", b["input0"], sums, b["kept"], *running, more=numbers),
            channels.each(
                "batch_norm_normalise", b["input0"], *parameters, b["output"], count_next, more=(_relu(setting),)
            ),
        )

    kept = 2 * x.shape[1] * computed_in(x.dtype).itemsize
    return request.prepared("cuda", bind, workspace=channels.workspace, kept=kept)


@CUDA.kernel(BatchNormInference)
def inference(request: BatchNormInference) -> PreparedKernel:
    x, setting = request.x, request.setting
    channels = Channels(x, 1, x.shape[1:2])
    numbers = computed_in(x.dtype).type(setting.epsilon), _relu(setting)

    def bind(buffers: Buffers) -> Sequence[Call]:
        running = buffers["running_mean"], buffers["running_variance"]
        arrays = buffers["input0"], buffers["weights"], _bias(buffers, setting), *running, buffers["output"]
        return (channels.each("batch_norm_inference", *arrays, more=numbers),)

    return request.prepared("cuda", bind, in_place=False)


@CUDA.kernel(BatchNormBackward)
def backward(request: BatchNormBackward) -> PreparedKernel:
    x, dx, setting = request.x, request.dx, request.setting
    channels = Channels(x, 1, x.shape[1:2])

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums, bias, relu = buffers["workspace"], _bias(buffers, setting) if setting.relu else None, (_relu(setting),)
        given = buffers["input0"], buffers["output_gradient"], buffers["weights"], bias, buffers["kept"], sums
        gradients = buffers["weights_gradient"], buffers["bias_gradient"] if setting.bias else None
        calls: list[Call] = [
            channels.each("batch_norm_products", *given, more=relu, sums=True),
            channels.total("channel_gradients", sums, *gradients),
        ]
        if dx is not None:
            calls.append(channels.each("batch_norm_backward", *given, buffers["input_gradient"], more=relu))
        return calls

    return request.prepared("cuda", bind, workspace=channels.workspace)


def _bias(buffers: Buffers, setting: BatchNormSetting) -> Array | None:
    return buffers["bias"] if setting.bias else None


def _relu(setting: BatchNormSetting) -> np.int32:
    return np.int32(setting.relu)
