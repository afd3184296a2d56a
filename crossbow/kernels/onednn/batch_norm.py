"""Batch normalisation: oneDNN's primitives, with the ReLU behind in the same passes, and a pass over the statistics.

What is kept for the gradient: the batch's mean and variance, and, behind a ReLU, a bit for each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from crossbow.kernels.compiled import float32_at, float64_at, int64_at, native
from crossbow.kernels.interface import BatchNormSetting, Buffers, Call, PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, elements, engine, nbytes, plain
from crossbow.kernels.onednn.primitive import ALIGNMENT, Place, Steps
from crossbow.types import Tensor, address


class _BatchNorm:
    """What the kernels of one batch normalisation have in common."""

    def __init__(self, x: Tensor, setting: BatchNormSetting) -> None:
        self.setting = setting
        self.x, self.channels = activation(_known(x)), plain(x.shape[1:2])
        self.values = elements(x.shape) // x.shape[1]
        self.parameters: dict[int, tuple[dnnl.Handle, Place]] = {dnnl.ARG_SCALE: (self.channels, "weights")}
        self.flags = dnnl.USE_SCALE | (dnnl.FUSE_NORM_RELU if setting.relu else 0)
        if setting.bias:
            self.parameters[dnnl.ARG_SHIFT] = (self.channels, "bias")
            self.flags |= dnnl.USE_SHIFT
        vector = -(-4 * x.shape[1] // ALIGNMENT) * ALIGNMENT
        self.variance, self.mask = vector, 2 * vector
        """Where they are kept, in bytes; the mean comes first."""
        self.training = self.forward(dnnl.FORWARD_TRAINING, self.flags)
        self.kept = self.mask
        self.statistics: dict[int, tuple[dnnl.Handle, Place]] = {
            dnnl.ARG_MEAN: (self.channels, "kept"),
            dnnl.ARG_VARIANCE: (self.channels, ("kept", self.variance)),
        }
        if setting.relu:
            workspace = dnnl.dnnl_primitive_desc_query_md(self.training, dnnl.QUERY_WORKSPACE_MD)
            assert workspace is not None
            self.statistics[dnnl.ARG_WORKSPACE] = (workspace, ("kept", self.mask))
            self.kept += nbytes(workspace)

    def forward(self, propagation: int, flags: int) -> dnnl.Handle:
        return dnnl.dnnl_batch_normalization_forward_primitive_desc_create(
            engine(), propagation, self.x, self.x, self.setting.epsilon, flags, attributes()
        )


def _known(x: Tensor) -> Tensor:
    """Of more than five dimensions the library writes beside its memory, without a word: what is behind the channels is
    one to it."""
    return x if len(x.shape) <= 5 else Tensor((*x.shape[:2], math.prod(x.shape[2:])), x.dtype)


def training(x: Tensor, setting: BatchNormSetting) -> PreparedKernel:
    """input0, weights[, bias], running_mean, running_variance[, count] → output, kept, `…_next` of each statistic."""
    norm = _BatchNorm(x, setting)
    steps = Steps(f"batch_norm_training{' relu' if setting.relu else ''}")
    operands = {dnnl.ARG_SRC: (norm.x, "input0"), dnnl.ARG_DST: (norm.x, "output")}
    steps.add("batch_norm", norm.training, {**operands, **norm.parameters, **norm.statistics})
    following = tuple(f"{name}_next" for name in setting.observed)
    kernel = steps.prepared(
        ("input0", *setting.parameters, *setting.observed), ("output", "kept", *following), kept=norm.kept
    )
    observe.address  # noqa: B018 - compile while preparing
    factor = -1.0 if setting.fraction is None else 1 - setting.fraction
    count = setting.fraction is None

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = [buffers[role] for role in (*setting.observed, *following)]
        running = [address(array) for array in arrays]
        mean, variance, number = running[: len(running) // 2] + ([] if count else [0])
        mean_next, variance_next, number_next = running[len(running) // 2 :] + ([] if count else [0])
        kept = address(buffers["kept"])
        slots = (kept, kept + norm.variance, mean, variance, number, mean_next, variance_next, number_next)
        observing = observe.call(
            "running statistics", *slots, x.shape[1], norm.values, factor, references=(buffers["kept"], *arrays)
        )
        return [*kernel.bind(buffers), observing]

    return replace(kernel, bind=bind)


def inference(x: Tensor, setting: BatchNormSetting) -> PreparedKernel:
    """input0, weights[, bias], running_mean, running_variance → output."""
    norm = _BatchNorm(x, setting)
    steps = Steps(f"batch_norm_inference{' relu' if setting.relu else ''}")
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (norm.x, "input0"),
        dnnl.ARG_DST: (norm.x, "output"),
        dnnl.ARG_MEAN: (norm.channels, "running_mean"),
        dnnl.ARG_VARIANCE: (norm.channels, "running_variance"),
    }
    descriptor = norm.forward(dnnl.FORWARD_INFERENCE, norm.flags | dnnl.USE_GLOBAL_STATS)
    steps.add("batch_norm", descriptor, {**operands, **norm.parameters})
    return steps.prepared(("input0", *setting.parameters, "running_mean", "running_variance"), ("output",))


def backward(x: Tensor, dx: Tensor | None, setting: BatchNormSetting) -> PreparedKernel:
    """input0, output_gradient, weights, kept → weights_gradient[, bias_gradient][, input_gradient]; may be in place."""
    norm = _BatchNorm(x, setting)
    steps = Steps(f"batch_norm_backward{' relu' if setting.relu else ''}")
    descriptor = dnnl.dnnl_batch_normalization_backward_primitive_desc_create(
        engine(), dnnl.BACKWARD, norm.x, norm.x, norm.x, setting.epsilon, norm.flags, norm.training, attributes()
    )
    # The library has no gradient of the parameters alone: where nothing upstream trains, dx is thrown away.
    place: Place = "input_gradient" if dx is not None else steps.reserve(x.nbytes)
    operands: dict[int, tuple[dnnl.Handle, Place]] = {
        dnnl.ARG_SRC: (norm.x, "input0"),
        dnnl.ARG_DIFF_DST: (norm.x, "output_gradient"),
        dnnl.ARG_DIFF_SRC: (norm.x, place),
        dnnl.ARG_SCALE: (norm.channels, "weights"),
        dnnl.ARG_DIFF_SCALE: (norm.channels, "weights_gradient"),
    }
    if setting.bias:
        operands[dnnl.ARG_DIFF_SHIFT] = (norm.channels, "bias_gradient")
    steps.add("batch_norm", descriptor, {**operands, **norm.statistics})
    writes = [f"{name}_gradient" for name in setting.parameters]
    in_place = None
    if dx is not None:
        writes.append("input_gradient")
        in_place = ("output_gradient", "input_gradient")
    return steps.prepared(("input0", "output_gradient", "weights", "kept"), writes, in_place=in_place)


@native
def observe(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: the batch's mean, variance; running mean, variance, count, and where the next ones go (count 0: there is
    none); channels, values in a channel, what is taken of the new ones (with a count: the mean of all tasks)."""
    block = int64_at(arguments)
    factor, values = float64_at(arguments)[10], block[9]
    if block[4] != 0:
        tasks = float32_at(block[4])[0]
        factor = 1.0 / (1.0 + tasks)
        float32_at(block[7])[0] = tasks + 1
    unbiased = values / max(values - 1, 1)
    mean, variance = float32_at(block[0]), float32_at(block[1])
    running_mean, running_variance = float32_at(block[2]), float32_at(block[3])
    mean_next, variance_next = float32_at(block[5]), float32_at(block[6])
    for channel in range(block[8]):
        mean_next[channel] = (1 - factor) * running_mean[channel] + factor * mean[channel]
        variance_next[channel] = (1 - factor) * running_variance[channel] + factor * unbiased * variance[channel]
    return 0
