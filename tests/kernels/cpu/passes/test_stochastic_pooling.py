"""Compiled stochastic pooling: the choices of the reference, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.requests import PoolingBackward, PoolingForward
from crossbow.types import Phase
from tests.kernels.cpu.buffers import COMPILED, REFERENCE, close, draw, execute, memory, state, tensor
from tests.kernels.cpu.passes.test_pooling import ANY, drawn_pool


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_stochastic_pooling_picks_what_the_reference_picks(data: st.DataObject) -> None:
    """Output, kept and gradient, bit for bit."""
    pool, shape = drawn_pool(data, ANY)
    x, y_shape, g = draw(shape), pool.output_shape(shape), replace(pool.geometry(shape), method="stochastic")
    tx, ty, results = tensor(shape), tensor(y_shape), []
    for library in (REFERENCE, COMPILED):
        forward = library.prepare(PoolingForward(tx, ty, g, Phase.TRAIN, seed=2**33 + 1, key=3))
        buffers = {
            "input0": memory(tx, x),
            "output_gradient": memory(ty, draw(y_shape, 1)),
            "state": state(TASK=2**32 + 5),
        }
        buffers |= {"output": memory(ty), "input_gradient": memory(tx), "kept": aligned_zeros(forward.kept)}
        for kernel in (forward, library.prepare(PoolingBackward(ty, tx, g))):
            execute(kernel, buffers, native=library is COMPILED)
        check = library.prepare(PoolingForward(tx, ty, g, Phase.CHECK))
        buffers["mean"] = memory(ty)
        execute(check, {**buffers, "output": buffers["mean"]}, native=library is COMPILED)
        results.append(buffers)
    reference, fast = results
    np.testing.assert_array_equal(fast["kept"], reference["kept"])
    np.testing.assert_array_equal(fast["output"], reference["output"])
    close(fast["input_gradient"], reference["input_gradient"], g.kernel[0] * g.kernel[1])
    close(fast["mean"], reference["mean"])
