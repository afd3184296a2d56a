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
    pytest.mark.skipif(bool(MISSING), reason=f"not installed, of torch and expecttest: {', '.join(MISSING)}"),
]
Array = NDArray[Any]

MOST = 100
"""Samples of an operator, evenly from all: max pooling has 1,440."""


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

    kwargs = {name: changed(value) for name, value in sample.kwargs.items() if name not in ("dtype", "return_indices")}
    output = function(changed(sample.input), *changed(tuple(sample.args)), **kwargs)
    result = {"output": output.detach().double().numpy().reshape(shape) / ours.scale}
    if output.requires_grad:
        dy = torch.tensor(gradient, dtype=dtype).reshape(output.shape) / ours.scale
        found = torch.autograd.grad(output, [new[id(leaf)] for leaf in leaves], dy)
        names = [f"gradient of input {i}" for i in range(len(ours.inputs))]
        names += [f"gradient of {name}" for name in ours.variables]
        result |= {name: value.double().numpy() for name, value in zip(names, found, strict=True)}
    return result


Errors = dict[str, tuple[float, float]]
"""By tensor: ours and PyTorch's, relative to the largest magnitude of what float64 computes."""


def errors(function: Any, sample: Any, ours: Ours, device: str) -> Errors | None:
    """None where the sample is refused."""
    import torch

    labels = [] if ours.label is None else [ours.label]
    if device == "cpu":  # numbers that both types hold
        for x in (*ours.inputs, *ours.variables.values(), *labels):
            x.copy_(x.float().double())
    inputs = [x.numpy() for x in (*ours.inputs, *labels)]
    shape = ours.kernel.output_shape(*(tuple(x.shape) for x in ours.inputs))
    gradient = np.ones(shape)
    options: dict[str, Any] = {"variables": {name: value.numpy() for name, value in ours.variables.items()}}
    if not ours.kernel.is_loss and ours.kernel.gradient() is not None:
        gradient = options["output_gradient"] = np.random.default_rng(0).integers(-8, 9, shape) / 4.0
    try:
        run = run_operator(ours.kernel, inputs, dtype=TYPES[device], device=device, **options)
    except CrossbowError:
        return None
    expected = theirs(function, sample, ours, torch.float64, shape, gradient)
    single = theirs(function, sample, ours, torch.float32, shape, gradient)
    found = {}
    for name in tensors(run).keys() & expected.keys():
        received, exact = tensors(run)[name], expected[name]
        assert received.shape == exact.shape, name
        scale = max(float(np.abs(exact).max(initial=0.0)), 1e-30)
        found[name] = tuple(float(np.abs(each - exact).max(initial=0.0)) / scale for each in (received, single[name]))
    return found  # type: ignore[return-value]


CANCELLED = 1e-5
"""PyTorch's error where large numbers cancel out, as in the normalisation of two values: it says nothing of others."""
TYPES = {"reference": np.float64, "cpu": np.float32}


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", TRANSLATIONS)
def test_samples(name: str, device: str, database: dict[str, list[Any]]) -> None:
    if device == "cpu" and WHY_NOT_FAST is not None:
        pytest.skip(f"no fast kernels: {WHY_NOT_FAST}")
    found = [each for sample in samples(database[name]) if (each := errors(*sample, device)) is not None]
    assert len(found) >= TRANSLATIONS[name][1]
    for tensor in {tensor for each in found for tensor in each}:
        pairs = [each[tensor] for each in found if tensor in each]
        usual = max([0.0, *(pytorchs for _, pytorchs in pairs if pytorchs < CANCELLED)])
        for ours, pytorchs in pairs:
            bound = 4 * max(pytorchs, usual)
            if device == "reference":
                bound = max(1e-12, bound * np.finfo(np.float64).eps / np.finfo(np.float32).eps)
            assert ours <= bound, f"{tensor}: {ours:.3g} of the largest magnitude, PyTorch {pytorchs:.3g}"
