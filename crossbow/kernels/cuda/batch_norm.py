"""Batch normalisation, with the ReLU behind in the same passes: kernels of our own.

What is kept for the gradient: the batch's mean, and the inverse of its standard deviation. A ReLU's gradient needs
nothing else, as it is told from the normalised value, computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.channels import Channels
from crossbow.kernels.cuda.launch import computed_in
from crossbow.kernels.interface import BatchNormSetting, Buffers, Call, PreparedKernel
from crossbow.types import Array, Tensor


def training(x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
    """input0, weights[, bias], running_mean, running_variance[, count] → output, kept, `…_next` of each statistic."""
    channels = Channels(x, 1, x.shape[1:2])
    fraction = np.float64(0 if setting.fraction is None else 1 - setting.fraction)
    reads = ("input0", *setting.parameters, *setting.observed)
    writes = ("output", "kept", *(f"{name}_next" for name in setting.observed))

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

    kept, name = 2 * x.shape[1] * computed_in(x.dtype).itemsize, _name("batch_norm_training", setting)
    return PreparedKernel(name, reads, writes, bind, workspace=channels.workspace, kept=kept)


def inference(x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
    """input0, weights[, bias], running_mean, running_variance → output."""
    channels, reads = Channels(x, 1, x.shape[1:2]), ("input0", *setting.parameters, "running_mean", "running_variance")
    numbers = computed_in(x.dtype).type(setting.epsilon), _relu(setting)

    def bind(buffers: Buffers) -> Sequence[Call]:
        running = buffers["running_mean"], buffers["running_variance"]
        arrays = buffers["input0"], buffers["weights"], _bias(buffers, setting), *running, buffers["output"]
        return (channels.each("batch_norm_inference", *arrays, more=numbers),)

    return PreparedKernel(_name("batch_norm_inference", setting), reads, ("output",), bind)


def backward(x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting) -> PreparedKernel:
    """input0, output_gradient, weights[, bias], kept → weights_gradient[, bias_gradient][, input_gradient]; may be in
    place on output_gradient."""
    channels = Channels(x, 1, x.shape[1:2])
    # Behind a ReLU the bias is needed to tell where that was flat.
    parameters = setting.parameters if setting.relu else ("weights",)
    reads, writes = (
        ("input0", "output_gradient", *parameters, "kept"),
        [f"{name}_gradient" for name in setting.parameters],
    )
    if dx is not None:
        writes.append("input_gradient")

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

    return PreparedKernel(
        _name("batch_norm_backward", setting),
        reads,
        tuple(writes),
        bind,
        workspace=channels.workspace,
        in_place=None if dx is None else ("output_gradient", "input_gradient"),
    )


def _bias(buffers: Buffers, setting: BatchNormSetting) -> Array | None:
    return buffers["bias"] if setting.bias else None


def _relu(setting: BatchNormSetting) -> np.int32:
    return np.int32(setting.relu)


def _name(request: str, setting: BatchNormSetting) -> str:
    return f"{request}{' relu' if setting.relu else ''} cuda"
