"""Samples that PyTorch's developers test its operators with (OpInfo): our operators compute the same.

PyTorch makes the samples, so they contain what nobody here has thought of. A sample that we have no operator for, or
that is refused in a sentence, is left out; how many are compared at least is part of the table.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.testing import run_operator
from crossbow.types import CrossbowError
from tests.operators.opinfo import TRANSLATIONS, Ours
from tests.operators.test_table import tensors
from tests.support import WHY_NOT_FAST

MISSING = [name for name in ("torch", "expecttest") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)}, only for comparisons, not installed"),
]
Array = NDArray[Any]

MOST = 100
"""Samples of an operator, evenly from all: max pooling has 1,440."""
ROUNDING = 2.0**-23
"""Relative to the largest magnitude: less than this PyTorch's error may be by chance."""


@pytest.fixture(scope="module")
def database() -> dict[str, list[Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, list[Any]] = {}
    for entry in op_db:
        found.setdefault(entry.name, []).append(entry)
    return found


def samples(entries: Sequence[Any]) -> Iterator[tuple[Any, Any, Ours]]:
    """PyTorch's function, the sample, and our operator."""
    import torch

    torch.manual_seed(0)
    for entry in entries:
        every = list(entry.sample_inputs("cpu", torch.float64, requires_grad=False))
        for sample in every[:: -(-len(every) // MOST)]:
            arguments = (sample.input, *sample.args)
            try:
                ours = TRANSLATIONS[entry.name][0](*arguments, **sample.kwargs)
            except CrossbowError:  # refused where it is made
                continue
            if ours is not None:
                yield entry.op, sample, ours


def theirs(function: Any, sample: Any, ours: Ours, dtype: Any, shape: Any, gradient: Array) -> dict[str, Array]:
    """PyTorch's output and gradients, named as ours."""
    import torch

    leaves = [*ours.inputs, *ours.variables.values()]
    new = {id(leaf): leaf.detach().to(dtype).requires_grad_() for leaf in leaves}

    def changed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(changed(each) for each in value)
        if id(value) in new:
            return new[id(value)]
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    kwargs = {name: value for name, value in sample.kwargs.items() if name not in ("dtype", "return_indices")}
    output = function(changed(sample.input), *changed(tuple(sample.args)), **kwargs)
    result = {"output": output.detach().double().numpy().reshape(shape) / ours.scale}
    if output.requires_grad:
        dy = torch.tensor(gradient, dtype=dtype).reshape(output.shape) / ours.scale
        found = torch.autograd.grad(output, [new[id(leaf)] for leaf in leaves], dy)
        names = [f"gradient of input {i}" for i in range(len(ours.inputs))]
        names += [f"gradient of {name}" for name in ours.variables]
        result |= {name: value.double().numpy() for name, value in zip(names, found, strict=True)}
    return result


def compare(function: Any, sample: Any, ours: Ours, device: str) -> bool:
    """Whether it was compared: False where it is refused in a sentence."""
    import torch

    inputs = [x.numpy() for x in ours.inputs] + ([] if ours.label is None else [ours.label.numpy()])
    if device == "cpu":  # numbers that both types hold
        for x in (*ours.inputs, *ours.variables.values(), *([] if ours.label is None else [ours.label])):
            x.copy_(x.float().double())
    variables = {name: value.numpy() for name, value in ours.variables.items()}
    shape = ours.kernel.output_shape(*(x.shape for x in inputs[: len(ours.inputs)]))
    is_loss = ours.kernel.is_loss
    gradient = np.ones(shape) if is_loss else np.random.default_rng(0).integers(-8, 9, shape) / 4.0
    options: dict[str, Any] = {"variables": variables, "device": device}
    if not is_loss and ours.kernel.gradient() is not None:
        options["output_gradient"] = gradient
    try:
        run = run_operator(ours.kernel, inputs, dtype=np.float32 if device == "cpu" else np.float64, **options)
    except CrossbowError:
        return False
    received = {name: value for name, value in tensors(run).items() if name not in run.statistics}
    expected = theirs(function, sample, ours, torch.float64, shape, gradient)
    single = theirs(function, sample, ours, torch.float32, shape, gradient) if device == "cpu" else expected
    for name in received.keys() & expected.keys():
        assert received[name].shape == expected[name].shape, name
        scale = float(np.abs(expected[name]).max(initial=0.0))
        error = float(np.abs(received[name] - expected[name]).max(initial=0.0))
        reached = float(np.abs(single[name] - expected[name]).max(initial=0.0))
        bound = 4 * max(reached, ROUNDING * scale) if device == "cpu" else 1e-12 * max(scale, 1.0)
        assert error <= bound, f"{name}: error {error:.3g}, PyTorch's {reached:.3g}, largest {scale:.3g}, {ours.kernel}"
    return True


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", TRANSLATIONS)
def test_samples(name: str, device: str, database: dict[str, list[Any]]) -> None:
    if device == "cpu" and WHY_NOT_FAST is not None:
        pytest.skip(f"no fast kernels: {WHY_NOT_FAST}")
    compared = sum(compare(*sample, device) for sample in samples(database[name]))
    assert compared >= TRANSLATIONS[name][1]
