"""Compiled cross-entropy with label smoothing and class weights against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import State
from crossbow.kernels.native import NativeError
from crossbow.kernels.requests import SoftmaxLossBackward, SoftmaxLossForward, Targets
from crossbow.types import Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, both, close, execute, tensor
from tests.kernels.cpu.passes.test_loss import INT32, ONE, ROWS, given

WEIGHTS = (0.5, 2.0, 0.0, 1.0, 0.25, 3.0, 1.5)
TARGETS = [Targets(0.1), Targets(0.0, WEIGHTS), Targets(0.3, WEIGHTS)]


@pairwise
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("examples", [5, 3, 1, 0])
@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("normalisation", ["batch", "full", "valid", "none"])
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("targets", TARGETS, ids=str)
def test_loss_and_gradient(
    shape: Shape, examples: int, ignored: int | None, normalisation: str, from_logits: bool, targets: Targets
) -> None:
    values, t = given(shape, examples), tensor(shape)
    labels = Tensor(values["labels"].shape, INT32)
    logits = t if from_logits else None
    forward = SoftmaxLossForward(t, labels, ignored, normalisation, logits, targets)
    used = {role: t for role in forward.reads if role in ("logits", "input0")}
    actual, expected = both(COMPILED, forward, {**used, "output": ONE}, values, by="numba")
    close(actual["output"], expected["output"], 30)
    backward = SoftmaxLossBackward(t, labels, t, ignored, normalisation, targets)
    actual, expected = both(COMPILED, backward, {"input0": t, "input_gradient": t}, values, by="numba")
    np.testing.assert_allclose(actual["input_gradient"], expected["input_gradient"], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("from_logits", [False, True])
def test_nan_reaches_the_loss(from_logits: bool) -> None:
    values, t, labels = given((5, 7), 5), tensor((5, 7)), Tensor((5,), INT32)
    for role in ("logits", "input0"):
        values[role][3] = np.nan
    request = SoftmaxLossForward(t, labels, None, "batch", t if from_logits else None, Targets(0.1))
    output = np.zeros(1, np.float32)
    execute(COMPILED.prepare(request), {**values, "output": output})
    assert np.isnan(output[0])


@pytest.mark.parametrize("forward", [False, True])
def test_a_label_out_of_range_is_an_error(forward: bool) -> None:
    values, t, labels = given((5, 7), 5), tensor((5, 7)), Tensor((5,), INT32)
    values["labels"][3] = 7
    targets = Targets(0.1)
    request = (
        SoftmaxLossForward(t, labels, None, "batch", None, targets)
        if forward
        else SoftmaxLossBackward(t, labels, t, None, "batch", targets)
    )
    buffers = {**values, "output": np.zeros(1, np.float32), "input_gradient": np.zeros((5, 7), np.float32)}
    with pytest.raises(NativeError, match="a label is not one of the classes"):
        execute(COMPILED.prepare(request), buffers)
    values["state"][State.EXAMPLES] = 3  # the label is padding
    execute(COMPILED.prepare(request), buffers)
