"""Cross-entropy with label smoothing and class weights on the CUDA library, emulated, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import SoftmaxLossBackward, SoftmaxLossForward, Targets
from crossbow.types import Layout, Shape
from tests.combinations import one_in, pairwise
from tests.kernels.cuda.running import Prepare, Tensors, agree, run
from tests.kernels.cuda.test_loss import NORMALISATIONS, PLAIN, classification, dtypes, shapes, tolerance


def targets_of(kind: str, classes: int) -> Targets:
    weights = tuple(np.random.default_rng(2).integers(0, 5, classes) / 4 + 0.125)
    return Targets(0.0 if kind == "weighted" else 0.125, None if kind == "smoothed" else weights)


def forward(ignored: int | None, normalisation: str, targets: Targets, *, of_logits: bool = False) -> Prepare:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        p, labels = tensors["input0"], tensors["labels"]
        logits = tensors["logits"] if of_logits else None
        return library.prepare(SoftmaxLossForward(p, labels, ignored, normalisation, logits, targets))

    return prepare


def backward(ignored: int | None, normalisation: str, targets: Targets) -> Prepare:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        p, labels, dx = tensors["input0"], tensors["labels"], tensors["input_gradient"]
        return library.prepare(SoftmaxLossBackward(p, labels, dx, ignored, normalisation, targets))

    return prepare


@pytest.mark.slow
@one_in(2)
@pairwise
@shapes
@dtypes
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("missing", [0, 1, None])
@pytest.mark.parametrize("kind", ["smoothed", "weighted", "both"])
def test_loss_and_gradient(
    shape: Shape, layout: Layout, dtype: type, ignored: int | None, missing: int | None, kind: str
) -> None:
    examples = 0 if missing is None else shape[0] - missing
    tensors, values = classification(shape, layout, dtype, examples, ignored)
    tensors["logits"], values["logits"] = tensors["input0"], np.log(values["input0"])
    targets = targets_of(kind, shape[1])
    for normalisation in NORMALISATIONS:
        for of_logits in (False, True):
            kernel = forward(ignored, normalisation, targets, of_logits=of_logits)
            agree(kernel, tensors, values, 3 * tolerance(dtype))
        agree(backward(ignored, normalisation, targets), tensors, values, tolerance(dtype))


def test_a_label_out_of_range_makes_loss_and_gradient_nan() -> None:
    tensors, values = classification((4, 3), PLAIN, np.float32, 4, None)
    values["labels"][2] = 3
    for normalisation in ("batch", "valid"):
        for make, role in ((forward, "output"), (backward, "input_gradient")):
            received = run(make(None, normalisation, Targets(0.1)), tensors, values)[role]
            assert np.isnan(received if role == "output" else received[2]).all()
