"""The compiled layer normalisation against the reference: on contiguous and on other lines, with several threads."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, close, draw, tensor

LINES = [((3, 10), 1, 1), ((5, 2, 33), 2, 1), ((5, 33, 2), 1, 1), ((2, 20, 3, 5), 1, 1), ((2, 4, 3, 5), 2, 2)]
LARGE = ((64, 17, 130), 2, 1)
"""Several threads share it."""


@pytest.mark.parametrize(("shape", "axis", "number"), [*LINES, LARGE])
@pytest.mark.parametrize("bias", [True, False])
def test_it_agrees_with_the_reference(shape: Shape, axis: int, number: int, bias: bool) -> None:
    t, own = tensor(shape), shape[axis : axis + number]
    v, w = Variable(own, FLOAT32), Tensor(own, FLOAT32)
    values = {"input0": draw(shape), "output_gradient": draw(shape, 1), "weights": draw(own, 2), "bias": draw(own, 3)}
    tensors = dict.fromkeys(("input0", "output", "output_gradient", "input_gradient"), t)
    tensors |= dict.fromkeys(("weights", "bias", "weights_gradient", "bias_gradient"), w)
    forward = LayerNormForward(t, v, v if bias else None, t, axis, 1e-3)
    for dx in (t, None):
        for request in (forward, LayerNormBackward(t, t, v, v if bias else None, dx, axis, 1e-3)):
            kinds = {role: tensors[role] for role in request.roles}
            given = {role: values[role] for role in request.reads}
            actual, expected = both(COMPILED, request, kinds, given, by="numba")
            for role in request.writes:
                close(actual[role], expected[role])


def test_lines_that_are_not_evenly_spaced_are_left_to_the_reference() -> None:
    t, v = Tensor((2, 3, 4, 5), FLOAT32, Layout.CHANNELS_LAST), Variable((3, 4), FLOAT32)
    assert COMPILED.prepare(LayerNormForward(t, v, None, t, 1, 1e-3)).name.endswith("reference")
    plain = Tensor((2, 3, 4, 5), FLOAT32, Layout.PLAIN)
    assert COMPILED.prepare(LayerNormForward(plain, v, None, plain, 1, 1e-3)).name.endswith("numba")
    assert COMPILED.prepare(LayerNormForward(plain, v, None, t, 1, 1e-3)).name.endswith("reference")


def test_not_a_number_stays_in_its_line() -> None:
    t, v, x = tensor((3, 10)), Variable((10,), FLOAT32), draw((3, 10))
    x[1, 4] = np.nan
    values = {"input0": x, "weights": draw((10,), 1)}
    tensors = {"input0": t, "output": t, "weights": Tensor((10,), FLOAT32)}
    actual, _ = both(COMPILED, LayerNormForward(t, v, None, t, 1, 1e-3), tensors, values, by="numba")
    assert np.isnan(actual["output"]).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(actual["output"]).any(axis=1).tolist() == [False, True, False]
