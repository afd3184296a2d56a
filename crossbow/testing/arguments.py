"""Validation of arguments of the test tools. Each error states what was expected and what was received."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from crossbow.dataflow import answers
from crossbow.dataflow.answers import ask
from crossbow.kernels import why_not_compiled
from crossbow.kernels.cuda.launch import NARROW
from crossbow.kernels.library import KernelLibrary
from crossbow.ops.kernel import Kernel, Precision, VariableSpec
from crossbow.tracebacks import users_error
from crossbow.types import ConfigurationError, LabelRange, Phase, Shape

Numbers = NDArray[Any]


def name_of(kernel: Kernel) -> str:
    """The name of the operator in messages."""
    return type(kernel).__name__


def refuse_argument(kernel: Kernel, what: str, expected: str, received: str) -> ConfigurationError:
    """The error for an invalid argument."""
    return ConfigurationError(f"{name_of(kernel)}: {what}: expected {expected}. Received: {received}")


def check_kernel(kernel: Kernel) -> None:
    """Raise ConfigurationError unless the value is an operator, for example if it is a class instead of an
    instance."""
    if not isinstance(kernel, Kernel):
        raise ConfigurationError(f"kernel: expected an operator's configuration, as ReLU(). Received: {kernel!r}")


def check_array(kernel: Kernel, what: str, value: ArrayLike, shape: Shape | None, dtype: np.dtype[Any]) -> Numbers:
    """The value as a row-major array of numbers with this type and shape, without NaN."""
    array: Numbers = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise refuse_argument(kernel, what, "an array of numbers", f"type {array.dtype}")
    if shape is not None and array.shape != shape:
        raise refuse_argument(kernel, what, f"shape {shape}", f"{array.shape}")
    if np.isnan(array).any():
        raise refuse_argument(kernel, what, "numbers", f"{np.count_nonzero(np.isnan(array))} NaN of {array.size}")
    return np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)


def check_inputs(
    kernel: Kernel, inputs: Sequence[ArrayLike], dtype: np.dtype[Any]
) -> tuple[list[Numbers], Numbers | None]:
    """The inputs as arrays of this type, and the labels as int32 if they are integers that may be classes, otherwise as
    `dtype`. Classes are (N,), or (N, …) for a first input of shape (N, classes, …)."""
    if not isinstance(inputs, list | tuple):
        raise refuse_argument(kernel, "inputs", "a list of arrays", type(inputs).__name__)
    edges = len(inputs) - kernel.takes_labels
    wanted = kernel.number_of_inputs
    if edges != wanted if wanted is not None else edges < 1:
        number = "at least 1" if wanted is None else str(wanted)
        expected = f"{number} (and the labels, last)" if kernel.takes_labels else number
        raise refuse_argument(kernel, "number of inputs", expected, str(len(inputs)))
    arrays = [check_array(kernel, f"input {i}", x, None, dtype) for i, x in enumerate(inputs[:edges])]
    if not kernel.takes_labels:
        return arrays, None
    labels = np.asarray(inputs[-1])
    x = arrays[0].shape
    classes = labels.dtype.kind in "iu" and (labels.ndim == 1 or labels.shape == x[:1] + x[2:])
    return arrays, check_array(kernel, "labels", labels, None, np.dtype(np.int32) if classes else dtype)


def infer(
    kernel: Kernel, shapes: Sequence[Shape], labels: Numbers | None, phase: Phase
) -> tuple[Shape, tuple[VariableSpec, ...], tuple[VariableSpec, ...]]:
    """Output shape, variables and running statistics. The operator's errors are prefixed with its name."""
    try:
        inputs = tuple(shapes)
        output, variables = answers.output_shape(kernel, inputs), answers.variables(kernel, inputs)
        if labels is not None:
            ask(kernel, "check_labels", label_range(labels), *shapes)
        if phase is Phase.TRAIN:
            ask(kernel, "check_training", *shapes)
        return output, variables, answers.running_statistics(kernel, inputs)
    except ValueError as error:
        raise ConfigurationError(f"{name_of(kernel)}: {error}") from users_error(error)


def label_range(labels: Numbers) -> LabelRange:
    """Type and range of labels. Labels of type int32 are classes."""
    lowest, highest = (float(labels.min()), float(labels.max())) if labels.size else (0.0, 0.0)
    return LabelRange(labels.shape, labels.dtype == np.int32, lowest, highest)


def number_type(kernel: Kernel, dtype: DTypeLike) -> np.dtype[Any]:
    """The type of an operator's tensors. Raises ConfigurationError if the operator does not support it."""
    if isinstance(dtype, str) and dtype in NARROW:
        from crossbow.kernels.cuda.mixed import narrow_type

        dtype = narrow_type(dtype)
    number: np.dtype[Any] = np.dtype(dtype)
    if number.name in NARROW and kernel.precision is Precision.WIDE:
        raise ConfigurationError(f"{name_of(kernel)}: expected a type of at least 32 bits. Received: dtype={number}")
    return number


_gpus: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Number of GPUs by the libraries in use, cached because the query takes longer than a small operator."""
DEVICES = "'reference', 'cpu' or 'cuda:i'"


def library_of(
    device: str,
    dtype: np.dtype[Any],
    *,
    channels_last: bool | None = None,
    tf32: bool = False,
    deterministic: bool = True,
    winograd: bool = True,
) -> KernelLibrary:
    """The kernel library of a device. channels_last, tf32, deterministic: settings of a GPU, as in `Cuda`; winograd: a
    setting of the fast CPU kernels."""
    on_gpu = is_gpu(device)
    narrow = dtype.name in NARROW
    if dtype not in (np.float32, np.float64) and not (narrow and on_gpu):
        also = f", or on GPUs {' or '.join(NARROW)}" if narrow else ""
        raise ConfigurationError(f"dtype: expected float32 or float64{also}. Received: {dtype} on {device!r}")
    if on_gpu:
        gpu_number(device)
        from crossbow.kernels.cuda.library import Cuda

        setting: dict[str, Any] = {"channels_last": channels_last, "tf32": tf32, "deterministic": deterministic}
        return Cuda(np.float32, narrow=dtype.name, **setting) if narrow else Cuda(dtype, **setting)
    if given := gpu_settings(channels_last, tf32, deterministic):
        what = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ConfigurationError(
            f"channels_last, tf32 and deterministic are settings of GPUs. Received: {what}, device={device!r}"
        )
    if device == "reference":
        from crossbow.kernels.reference.library import Reference

        return Reference(dtype)
    if problem := why_not_compiled():
        raise ConfigurationError(
            f"device: expected 'reference', because the fast CPU kernels do not run here: {problem}"
        )
    from crossbow.kernels.cpu.library import Cpu

    library: KernelLibrary = Cpu(winograd=winograd)
    if dtype not in library.dtypes:
        known = ", ".join(map(str, library.dtypes))
        raise ConfigurationError(f"dtype: expected {known} on device 'cpu'. Received: {dtype}")
    return library


def is_gpu(device: str) -> bool:
    """Whether a device is a GPU. Raises ConfigurationError for an invalid name."""
    if device in ("reference", "cpu"):
        return False
    if not isinstance(device, str) or not re.fullmatch(r"cuda:\d+", device):
        raise ConfigurationError(f"device: expected {DEVICES}. Received: {device!r}")
    return True


def gpu_number(device: str) -> int:
    """The number of "cuda:i". Raises ConfigurationError if there is no such GPU."""
    from crossbow.kernels.cuda.api import api, gpus

    if api() not in _gpus:
        _gpus[api()] = len(gpus())
    there, number = _gpus[api()], int(device.removeprefix("cuda:"))
    if number >= there:
        raise ConfigurationError(f"device: expected an available GPU, cuda:0 to cuda:{there - 1}. Received: {device!r}")
    return number


def gpu_settings(channels_last: bool | None, tf32: bool = False, deterministic: bool = True) -> dict[str, Any]:
    """The non-default settings of `library_of`."""
    known = {"channels_last": channels_last, "tf32": tf32 or None, "deterministic": None if deterministic else False}
    return {name: value for name, value in known.items() if value is not None}
