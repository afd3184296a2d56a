"""Runs an ONNX case on our operators, through the translation that `crossbow.onnx.load` uses.

What `load` does besides, this does not: it does not ask for a single input, one output and one row for each example.
Inputs that our operators have as variables are given as initializers. Integers run in float64, which holds them, and
are converted back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crossbow.onnx.loading import read
from crossbow.onnx.network import Network, Step
from crossbow.onnx.reading.table import TRANSLATIONS, Translation
from crossbow.ops import Dropout
from crossbow.testing import OperatorRun, run_operator
from crossbow.types import GraphError, Phase
from tests.onnx import losses
from tests.onnx.cases import OnnxCase

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
    return not is_ours(case) and (known or losses.is_loss(case))


def run(case: OnnxCase, inputs: Sequence[Any], device: str = "reference") -> dict[str, Any]:
    """The outputs by name. Raises GraphError where the case is refused."""
    if any(isinstance(value, list) for value in inputs):
        return _run_each(case, inputs, device)
    network, activations = translate(case, inputs)
    return _outputs(case.model, network, evaluate(network, activations, device))


def translate(case: OnnxCase, inputs: Sequence[Any]) -> tuple[Network, dict[str, Array]]:
    """The network, and its inputs by name. Raises GraphError.

    What our operators have as variables is given as initializers. Where that is refused, fewer inputs are, and at last
    none: a matrix of weights is an input of MatMul as well, and a constant as large as the batch only that.
    """
    if losses.is_loss(case):
        return losses.translate(case, inputs)
    refused: list[GraphError] = []
    for first in (0, 2, None):
        model, activations = _prepare(case, inputs, first)
        try:
            return read(model), activations
        except GraphError as error:
            refused.append(error)
    raise refused[0]


def _prepare(case: OnnxCase, inputs: Sequence[Any], first: int | None) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model, with the first output of each node only and initializers for the variables, those from place `first`
    on; None: it loses the initializers that it has."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    names = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    free = [entry.name for entry in graph.input if entry.name not in names]
    values = dict(zip(free, inputs, strict=False))
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
    outputs = {
        name for node in graph.node for name in (node.output if node.op_type not in SECONDARY else node.output[:1])
    }
    for output in [output for output in graph.output if output.name not in outputs]:
        graph.output.remove(output)
    return model, values


def _named(case: OnnxCase, places: Callable[[Translation], set[int]]) -> set[str]:
    """The inputs of the nodes at these places."""
    return {
        name
        for node in case.model.graph.node
        if node.op_type in TRANSLATIONS
        for index, name in enumerate(node.input)
        if name and index in places(TRANSLATIONS[node.op_type])
    }


def evaluate(network: Network, inputs: Mapping[str, Array], device: str) -> dict[Step, OperatorRun | Array]:
    """What every step computes: float64 on the reference kernels, float32 on the fast ones."""
    dtype = np.float64 if device == "reference" else np.float32
    results: dict[Step, OperatorRun | Array] = {step: _floating(inputs[name]) for name, step in network.inputs.items()}
    for step in network.steps:
        assert step.kernel is not None
        arrays = [_output(results[before]) for before in step.inputs]
        if step.kernel.takes_labels:
            arrays[-1] = arrays[-1].astype(np.int64)
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
        alone = OnnxCase(case.suite, case.name, model, [])
        results.append(next(iter(run(alone, [value], device).values())))
    return {case.model.graph.output[0].name: results}


# Outputs


def _outputs(model: onnx.ModelProto, network: Network, results: Mapping[Step, OperatorRun | Array]) -> dict[str, Any]:
    found = {}
    wanted = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for index, name in enumerate(node.output):
            if name not in wanted:
                continue
            step = network.outputs[node.output[0]]
            if index == 0:
                found[name] = _output(results[step]).reshape(() if step.kernel and step.kernel.is_loss else step.shape)
            else:
                found[name] = SECONDARY[node.op_type](step, results, index)
    return found


def _dropout_mask(step: Step, results: Mapping[Step, OperatorRun | Array], index: int) -> Array:
    """Our operator has no such output; where the input is not 0, the output tells."""
    x = _output(results[step.inputs[0]])
    if step.phase is Phase.CHECK:
        return np.ones(x.shape, bool)
    assert x.all()
    return _output(results[step]) != 0


def _running_statistics(step: Step, results: Mapping[Step, OperatorRun | Array], index: int) -> Array:
    """ONNX observes the biased variance, we the unbiased one, as PyTorch and cuDNN do: from ours to theirs."""
    run, x = results[step], _output(results[step.inputs[0]])
    assert isinstance(run, OperatorRun)
    if index == 1:
        return run.statistics["running_mean"]
    kernel: Any = step.kernel
    kept = kernel.moving_average_fraction * kernel.variance_initialiser.array.astype(np.float64)
    m = x.size / x.shape[1]
    return kept + (run.statistics["running_variance"] - kept) * (m - 1) / m


def _log_probabilities(step: Step, results: Mapping[Step, OperatorRun | Array], index: int) -> Array:
    """Our loss has no such output; the softmax before it has the probabilities."""
    return np.log(_output(results[step.inputs[0]]))


SECONDARY: Mapping[str, Callable[[Step, Mapping[Step, OperatorRun | Array], int], Array]] = {
    "Dropout": _dropout_mask,
    "BatchNormalization": _running_statistics,
    "SoftmaxCrossEntropyLoss": _log_probabilities,
}
"""How other outputs than the first are had, which `load` refuses where a model uses them."""


# Comparison


def assert_same(received: Any, expected: Any, tolerance: float) -> None:
    """Equal to this part of the value; integers exactly, reduced to their type as ONNX's arithmetic is."""
    if isinstance(expected, list):
        assert len(received) == len(expected)
        for mine, theirs in zip(received, expected, strict=True):
            assert_same(mine, theirs, tolerance)
        return
    expected = np.asarray(expected)
    assert received.shape == expected.shape
    if expected.dtype.kind in "iub":
        whole = np.asarray(received, np.float64).astype(np.int64).astype(expected.dtype)
        np.testing.assert_array_equal(whole, expected)
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
