"""Runs an ONNX case on our operators, through the translation that `crossbow.onnx.load` uses.

What `load` does besides, this does not: it does not ask for a single input, one output, one row for each example,
testing mode, and inputs in single or double precision. Inputs that our operators have as variables are given as
initializers.

Whole numbers and half precision become float64, and `conversion` names the cases where that is so, which are counted
beside those that pass. It is a fair test of an operator's arithmetic, though not of a type that `load` refuses: float64
holds every one of these numbers (that is asserted), sums, products and maxima of whole ones are exact in it up to 2⁵³,
and a result must be the expected number itself. Where ONNX's type wraps around, it is not: nothing here imitates that.
Results for half precision are rounded to it once. A list of tensors is run tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crossbow.onnx.loading import read
from crossbow.onnx.network import Network, NetworkStep
from crossbow.onnx.reading.table import TRANSLATIONS, Translation
from crossbow.ops import Dropout
from crossbow.testing import OperatorRun, run_operator
from crossbow.types import GraphError, Phase
from tests.onnx.cases import OnnxCase
from tests.onnx.exclusions import FIRST_OUTPUT

Array = NDArray[Any]

FOLDED = frozenset({"Constant"})
"""Operators whose nodes are computed while reading."""


def is_ours(case: OnnxCase) -> bool:
    """Whether Crossbow has all operators of the case."""
    own = {name for name, entry in TRANSLATIONS.items() if not entry.is_form}
    return bool(case.operators & own) and case.operators <= own | FOLDED


def is_form(case: OnnxCase) -> bool:
    """Whether it has them all if some amount to one that it has."""
    known = bool(case.operators - FOLDED) and case.operators <= TRANSLATIONS.keys() | FOLDED
    return known and not is_ours(case)


def conversion(case: OnnxCase) -> str | None:
    """What becomes of inputs of a type that `load` refuses; None where there are none, but constants."""
    inputs = case.data[0][0]
    if any(isinstance(value, list) for value in inputs):
        return "tensor by tensor of a list"
    constants = _named(case, lambda entry: set(entry.constants))
    free = [entry.name for entry in case.model.graph.input if entry.name not in constants]
    dtypes = {np.asarray(v).dtype for name, v in zip(_free(case.model), inputs, strict=False) if name in free}
    others = {_kind(dtype) for dtype in dtypes - {np.dtype(np.float32), np.dtype(np.float64)}}
    return f"with {' and '.join(sorted(others))} as float64" if others else None


def _kind(dtype: np.dtype[Any]) -> str:
    return "whole numbers" if dtype.kind in "iu" else "half precision" if dtype == np.float16 else str(dtype)


def run(case: OnnxCase, inputs: Sequence[Any], device: str = "reference") -> dict[str, Any]:
    """The outputs by name. Raises GraphError where the case is refused."""
    if any(isinstance(value, list) for value in inputs):
        return _run_each(case, inputs, device)
    network, activations = translate(case, inputs)
    results = evaluate(network, activations, device)
    return {name: _output(results[step]).reshape(step.shape) for name, step in network.outputs.items()}


def translate(case: OnnxCase, inputs: Sequence[Any]) -> tuple[Network, dict[str, Array]]:
    """The network, and its inputs by name. Raises GraphError.

    What our operators have as variables is given as initializers. Where that is refused, fewer inputs are, and at last
    none: a matrix of weights is an input of MatMul as well, and a constant as large as the batch only that.
    """
    refused: list[GraphError] = []
    for first in (0, 2, None):
        model, activations = _prepare(case, inputs, first)
        try:
            return read(model), activations
        except GraphError as error:
            refused.append(error)
    raise refused[0]


def _prepare(case: OnnxCase, inputs: Sequence[Any], first: int | None) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with initializers for the variables, those from place `first` on; None: it loses the initializers that
    it has."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    names = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    values = dict(zip(_free(model), inputs, strict=False))
    if first is None:
        movable = _named(case, lambda entry: set(range(8)) - set(entry.constants))
        for entry in [entry for entry in graph.initializer if entry.name in movable]:
            values[entry.name] = names[entry.name]
            graph.initializer.remove(entry)
        constants = _named(case, lambda entry: set(entry.constants))
    else:
        constants = _named(case, lambda entry: {*entry.constants, *(i for i in entry.variables if i >= first)})
    for name in constants & values.keys():
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values.pop(name)), name))
    if case.name in FIRST_OUTPUT:
        del graph.output[1:]
    return model, values


def _free(model: onnx.ModelProto) -> list[str]:
    """The inputs without an initializer."""
    given = {entry.name for entry in model.graph.initializer}
    return [entry.name for entry in model.graph.input if entry.name not in given]


def _named(case: OnnxCase, places: Callable[[Translation], set[int]]) -> set[str]:
    """The inputs of the nodes at these places."""
    return {
        name
        for node in case.model.graph.node
        if node.op_type in TRANSLATIONS
        for index, name in enumerate(node.input)
        if name and index in places(TRANSLATIONS[node.op_type])
    }


def evaluate(network: Network, inputs: Mapping[str, Array], device: str) -> dict[NetworkStep, OperatorRun | Array]:
    """What every step computes: float64 on the reference kernels, float32 on the fast ones."""
    dtype = np.float64 if device == "reference" else np.float32
    results: dict[NetworkStep, OperatorRun | Array] = {
        step: _floating(inputs[name]) for name, step in network.inputs.items()
    }
    for step in network.steps:
        assert step.kernel is not None
        arrays = [_output(results[before]) for before in step.inputs]
        results[step] = run_operator(step.kernel, arrays, phase=step.phase, device=device, dtype=dtype)
    return results


def _output(result: OperatorRun | Array) -> Array:
    return result.outputs[0] if isinstance(result, OperatorRun) else result


def _floating(array: Array) -> Array:
    values = np.asarray(array)
    numbers = values.astype(np.float64)
    assert values.dtype.kind not in "iu" or (numbers.astype(values.dtype) == values).all(), (
        "float64 does not hold these"
    )
    return numbers


def _run_each(case: OnnxCase, inputs: Sequence[Any], device: str) -> dict[str, Any]:
    """A sequence of tensors, one after the other."""
    (values,) = inputs
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    results = []
    for value in values:
        entry = onnx.helper.make_tensor_value_info(model.graph.input[0].name, onnx.TensorProto.FLOAT, value.shape)
        model.graph.input[0].CopyFrom(entry)
        alone = OnnxCase(case.suite, case.name, model, list)
        results.append(next(iter(run(alone, [value], device).values())))
    return {case.model.graph.output[0].name: results}


# Comparison


def assert_same(received: Any, expected: Any, tolerance: float) -> None:
    """Equal to this part of the value; whole numbers exactly."""
    if isinstance(expected, list):
        assert len(received) == len(expected)
        for mine, theirs in zip(received, expected, strict=True):
            assert_same(mine, theirs, tolerance)
        return
    expected = np.asarray(expected)
    assert received.shape == expected.shape
    if expected.dtype.kind in "iu":
        np.testing.assert_array_equal(received, _floating(expected))
    elif expected.dtype == np.float16:
        np.testing.assert_array_equal(received.astype(np.float16), expected)
    else:
        np.testing.assert_allclose(received, expected, rtol=tolerance, atol=tolerance / 10)


def is_random(network: Network) -> bool:
    """Whether the outputs hang on a mask that every implementation draws for itself."""
    return any(
        step.phase is Phase.TRAIN and isinstance(step.kernel, Dropout) and step.kernel.ratio > 0
        for step in network.steps
    )
