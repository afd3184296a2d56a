"""Execution of one operator, forward and backward, on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from crossbow.conf import plain
from crossbow.ops.kernel import Kernel
from crossbow.testing.arguments import (
    Numbers,
    check_array,
    check_inputs,
    check_kernel,
    gpu_settings,
    library_of,
    number_type,
    refuse_argument,
)
from crossbow.testing.bench import Bench
from crossbow.testing.bench_device import bench_device
from crossbow.tracebacks import without_own_frames
from crossbow.types import Phase


@dataclass(frozen=True)
class OperatorRun:
    """Results of an operator: arrays in logical order (NCHW, OIHW), row-major, owned by the caller."""

    outputs: list[Numbers]
    """The output, in a list of one array, for symmetry with the inputs."""
    input_gradients: list[Numbers]
    """Gradients of the inputs without the labels; zeros for an input without a gradient. Empty if no input has one."""
    variables: dict[str, Numbers]
    """Variables by name, as given or initialised."""
    variable_gradients: dict[str, Numbers]
    """Gradients of the variables by name; empty if `input_gradients` is empty."""
    statistics: dict[str, Numbers] = field(default_factory=dict)
    """Running statistics by name: in training, after the task; else, as given or initialised."""


@without_own_frames
def run_operator(
    kernel: Kernel,
    inputs: Sequence[ArrayLike],
    *,
    output_gradient: ArrayLike | None = None,
    variables: Mapping[str, ArrayLike] | None = None,
    statistics: Mapping[str, ArrayLike] | None = None,
    phase: Phase = Phase.TRAIN,
    device: str = "reference",
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    task: int = 0,
    positions: ArrayLike | None = None,
    examples: int | None = None,
    in_place: bool = False,
    channels_last: bool | None = None,
    tf32: bool = False,
    deterministic: bool = True,
    winograd: bool = True,
) -> OperatorRun:
    """Run an operator forward and, in training, backward.

    The kernels are prepared and bound as by the compiler. Outputs and gradients are first filled with a NaN, and every
    buffer lies between guards. This detects a kernel that leaves elements unwritten, writes outside its buffers or
    changes its inputs.

    Args:
        inputs: the operator's inputs; if it takes labels, they come last. Integer labels are classes, of shape (N,), or
            (N, …) for a first input (N, classes, …).
        output_gradient: array of the output's shape; None stands for ones. It must be None for a loss.
        variables: values by name; all others are drawn by the operator's initialisers.
        statistics: running statistics by name; all others have their initial values.
        device: "reference" (NumPy), "cpu" (the fast kernels) or "cuda:i" (an NVIDIA GPU).
        dtype: float32 or float64; on a GPU also "float16" or "bfloat16", for operators that support 16-bit tensors.
            The results are then float32.
        seed: seed of the initialisers and of the operator's own random numbers (dropout).
        task: number of the task, on which random numbers also depend.
        positions: (N, 2) integers: the epoch of each example and its index in the data set, on which the random numbers
            of a `DataTransform` depend; None stands for epoch 0 and the indices from task · N on.
        examples: number of real examples in the batch (for losses and metrics); None stands for all.
        in_place: whether input and output share memory if the kernels allow it.
        channels_last: whether images are channels-last on a GPU; None uses the engine's choice.
        tf32: whether a GPU may round factors to TF32 in convolutions and matrix products.
        deterministic: whether a GPU selects convolution algorithms in a fixed order instead of choosing the fastest.
        winograd: whether the fast CPU kernels may use Winograd convolutions.

    Raises:
        ConfigurationError: an argument is invalid; the message says what was expected and what was received.
        AssertionError: a kernel violated its contract (unwritten elements, or writes outside its outputs).

    The gradient of `SoftMaxLoss` is with respect to the logits, the input of the preceding SoftMax:

    >>> import numpy as np
    >>> from crossbow.ops import SoftMaxLoss
    >>> run = run_operator(SoftMaxLoss(), [np.array([[0.25, 0.75]]), np.array([1])])
    >>> run.input_gradients[0].tolist()
    [[0.25, -0.25]]
    """
    check_kernel(kernel)
    seed, task, examples, in_place, channels_last, tf32 = plain((seed, task, examples, in_place, channels_last, tf32))
    number = number_type(kernel, dtype)
    arrays, labels = check_inputs(kernel, inputs, number)
    if not isinstance(phase, Phase):
        raise refuse_argument(kernel, "phase", "Phase.TRAIN or Phase.CHECK", repr(phase))
    batch = arrays[0].shape[0] if arrays[0].ndim else 1
    if examples is not None and not 0 <= examples <= batch:
        raise refuse_argument(kernel, "examples", f"a number from 0 to {batch}, the batch", repr(examples))
    shapes, settings = [x.shape for x in arrays], gpu_settings(channels_last, tf32, deterministic)
    library = library_of(device, number, winograd=winograd, **settings)
    made = bench_device(device, tf32=tf32)
    bench = Bench(kernel, library, number, shapes, labels, phase=phase, seed=seed, in_place=in_place, device=made)
    values = bench.initial_variables(variables or {})
    running = bench.initial_statistics(statistics or {})
    places = None
    if positions is not None:
        places = check_array(kernel, "positions", positions, (batch, 2), np.dtype(np.int64))
    bench.load(arrays, values, task, batch if examples is None else examples, running, places)
    gradient = None
    if output_gradient is not None:
        if kernel.is_loss:
            raise refuse_argument(kernel, "output_gradient", "None for a loss", "an array")
        gradient = check_array(kernel, "output_gradient", output_gradient, bench.site.output.shape, number)
    output = bench.forward()
    input_gradients, variable_gradients = bench.backward(gradient)
    observed = bench.observed() if phase is Phase.TRAIN else running
    return OperatorRun([output], input_gradients, values, variable_gradients, observed)
