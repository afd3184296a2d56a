"""Activations, softmax and local responses of one of the CPU library's rooms against the reference library."""

from __future__ import annotations

import numpy as np

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cpu.library import Cpu
from crossbow.kernels.requests import (
    ActivationBackward,
    ActivationForward,
    GatedActivationBackward,
    GatedActivationForward,
    LRNBackward,
    LRNForward,
    Request,
    ResponseGeometry,
    SoftmaxBackward,
    SoftmaxForward,
)
from crossbow.types import Layout, Phase, Shape, Tensor
from tests.kernels.cpu.buffers import FLOAT32, SINGLE, Numbers, both, close, draw, execute, memory, tensor

CEILING = 0.8


def activate(library: Cpu, shape: Shape, mode: str, slope: float, *, by: str) -> None:
    """The function, which passes NaN on, and its derivative from the output."""
    t, x = tensor(shape), 2 * draw(shape)
    x.flat[0] = np.nan
    request = ActivationForward(t, t, mode, slope, CEILING)
    with np.errstate(invalid="ignore"):
        actual, expected = both(library, request, {"input0": t, "output": t}, {"input0": x}, by=by)
    np.testing.assert_allclose(actual["output"], expected["output"], rtol=0, atol=2e-6)
    differentiate(library, shape, mode, slope, by=by)


def differentiate(library: Cpu, shape: Shape, mode: str, slope: float, *, by: str) -> None:
    """The derivative, also at the kinks."""
    t, y = tensor(shape), 2 * draw(shape)
    if mode in ("sigmoid", "tanh"):
        y = np.tanh(y)
    y.flat[::3] = 0
    y.flat[1::5] = CEILING
    values = {"output": y, "output_gradient": draw(shape, 1)}
    request = ActivationBackward(t, t, t, mode, slope, CEILING)
    actual, expected = both(library, request, dict.fromkeys([*values, "input_gradient"], t), values, by=by)
    close(actual["input_gradient"], expected["input_gradient"])


def gate_activation(library: Cpu, shape: Shape, gate: str, *, by: str) -> None:
    """An activation with a gate, which passes NaN on, and its derivative, also at HardSwish's kinks."""
    t, x = tensor(shape), 2 * draw(shape)
    x.flat[1::5], x.flat[2::5] = 3, -3
    x.flat[0] = np.nan
    values = {"input0": x, "output_gradient": draw(shape, 1)}
    requests = {"output": GatedActivationForward(t, t, gate), "input_gradient": GatedActivationBackward(t, t, t, gate)}
    for role, request in requests.items():
        tensors = dict.fromkeys([*request.reads, role], t)
        given = {name: values[name] for name in request.reads}
        with np.errstate(invalid="ignore"):
            actual, expected = both(library, request, tensors, given, by=by)
        np.testing.assert_allclose(actual[role], expected[role], rtol=0, atol=3e-6)
        assert np.isnan(actual[role].flat[0])


def normalise(library: Cpu, shape: Shape, axis: int, *, by: str) -> None:
    """Softmax and its gradient. Without the subtraction of the maximum the exponential would overflow."""
    t, x = tensor(shape), 5 * draw(shape)
    x[..., 0] += 200
    actual, expected = both(library, SoftmaxForward(t, t, axis), {"input0": t, "output": t}, {"input0": x}, by=by)
    close(actual["output"], expected["output"])
    values = {"output": expected["output"], "output_gradient": draw(shape, 1)}
    tensors = dict.fromkeys([*values, "input_gradient"], t)
    actual, expected = both(library, SoftmaxBackward(t, t, t, axis), tensors, values, by=by)
    close(actual["input_gradient"], expected["input_gradient"])


def normalise_non_finite(request: Request, library: Cpu, *, by: str) -> Numbers:
    """NaN and infinity make their whole row NaN; −∞ is an ordinary number, whose exponential is 0."""
    t, x = tensor((6, 37)), draw((6, 37))
    x[0, 5], x[1, 0], x[2, 36] = np.nan, np.inf, -np.inf
    x[3] = -np.inf
    with np.errstate(invalid="ignore"):
        actual, expected = both(library, request, {"input0": t, "output": t}, {"input0": x}, by=by)
    np.testing.assert_array_equal(np.isnan(actual["output"]), np.isnan(expected["output"]))
    assert np.isnan(actual["output"]).all(axis=1).tolist() == [True, True, False, True, False, False]
    np.testing.assert_allclose(actual["output"], expected["output"], rtol=2e-6, atol=2e-6)
    return actual["output"]


def respond(library: Cpu, shape: Shape, geometry: ResponseGeometry, layout: Layout, *, by: str) -> None:
    """A response normalisation and its gradient, with the forward kernel's `kept`."""
    x = Tensor(shape, FLOAT32, layout)
    values = {"input0": draw(shape), "output_gradient": draw(shape, 1)}
    results = []
    for each in (library, SINGLE):
        buffers = {role: memory(x, value) for role, value in values.items()}
        buffers |= {"output": memory(x), "input_gradient": memory(x)}
        forward, backward = (
            each.prepare(LRNForward(x, x, geometry, Phase.TRAIN)),
            each.prepare(LRNBackward(x, x, x, geometry)),
        )
        buffers["kept"] = aligned_zeros(forward.kept)
        for kernel in (forward, backward):
            assert each is SINGLE or by in kernel.name
            execute(kernel, buffers, native=each is library)
        results.append(buffers)
        if backward.in_place is not None:
            shared = memory(x, values["output_gradient"])
            execute(backward, {**buffers, "output_gradient": shared, "input_gradient": shared}, native=each is library)
            np.testing.assert_array_equal(shared, buffers["input_gradient"])
    for role in ("output", "input_gradient"):
        close(results[0][role], results[1][role])
