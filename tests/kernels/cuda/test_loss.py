"""Losses and measures: sums in shares, labels of other kinds, and what must not come but might.

Two changes to loss.cu make no difference: `right` and `count` may be float, as no thread counts to 2²⁴; and the divisor
of the gradient of `euclidean_loss` may be 0 without examples, since then nothing is divided by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.cuda.loss import MOST_SHARES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    SigmoidLossBackward,
    SigmoidLossForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
)
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Numbers, Prepare, Tensors, agree, run
from tests.kernels.reference.running import state

PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST
SHAPES: list[tuple[Shape, Layout]] = [
    ((1100, 3), PLAIN),  # two shares
    ((3, 4, 21, 20), PLAIN),
    ((3, 4, 21, 20), LAST),
    ((9, 200), PLAIN),  # a block for each label
    ((2, 100, 3, 2), LAST),
    ((3, 100, 2, 2), PLAIN),
    ((6, 1, 2, 2), LAST),
    ((4, 5, 1, 1), LAST),
]
shapes = pytest.mark.parametrize(("shape", "layout"), SHAPES)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
NORMALISATIONS = ("batch", "full", "valid", "none")


def tolerance(dtype: type) -> float:
    return 1e-6 if dtype is np.float32 else 1e-13


def classification(
    shape: Shape, layout: Layout, dtype: type, examples: int, ignored: int | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    generator = np.random.default_rng(0)
    p = generator.integers(1, 9, shape).astype(dtype) / 8  # many are equal
    labels = generator.integers(0, shape[1], (shape[0], *shape[2:])).astype(np.int32)
    if ignored is not None:
        labels[generator.random(labels.shape) < 0.3] = ignored
    image, number = Tensor(shape, np.dtype(dtype), layout), Tensor((1,), np.dtype(dtype))
    tensors = {
        "input0": image,
        "output": number,
        "input_gradient": image,
        "labels": Tensor(labels.shape, np.dtype(np.int32)),
    }
    return tensors, {"input0": p, "labels": labels, "state": state(EXAMPLES=examples)}


def loss_forward(ignored: int | None, normalisation: str) -> Prepare:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(SoftmaxLossForward(tensors["input0"], tensors["labels"], ignored, normalisation))

    return prepare


def loss_backward(ignored: int | None, normalisation: str) -> Prepare:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        p, dx = tensors["input0"], tensors["input_gradient"]
        return library.prepare(SoftmaxLossBackward(p, tensors["labels"], dx, ignored, normalisation))

    return prepare


def measure(top_k: int, ignored: int | None) -> Prepare:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(LabelAccuracy(tensors["input0"], tensors["labels"], top_k, ignored))

    return prepare


@pytest.mark.slow
@pairwise
@shapes
@dtypes
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("missing", [0, 1, None])
def test_softmax_loss(shape: Shape, layout: Layout, dtype: type, ignored: int | None, missing: int | None) -> None:
    examples = 0 if missing is None else shape[0] - missing
    given = classification(shape, layout, dtype, examples, ignored)
    for normalisation in NORMALISATIONS:
        agree(loss_forward(ignored, normalisation), *given, tolerance(dtype))
        agree(loss_backward(ignored, normalisation), *given, tolerance(dtype))


def loss_of_logits(ignored: int | None, normalisation: str) -> Prepare:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        p, logits = tensors["input0"], tensors["logits"]
        return library.prepare(SoftmaxLossForward(p, tensors["labels"], ignored, normalisation, logits))

    return prepare


@pytest.mark.slow
@shapes
@dtypes
def test_softmax_loss_of_logits(shape: Shape, layout: Layout, dtype: type) -> None:
    """Also where the probability of a label is rounded to 0, or has lost digits."""
    tensors, values = classification(shape, layout, dtype, shape[0], 1)
    for spread in (1, 30, 1000):
        x = (spread * np.random.default_rng(1).standard_normal(shape)).astype(dtype)
        p = np.exp(x - x.max(axis=1, keepdims=True))
        values |= {"logits": x, "input0": p / p.sum(axis=1, keepdims=True)}
        for normalisation in ("batch", "valid"):
            kernel = loss_of_logits(1, normalisation)
            agree(kernel, {**tensors, "logits": tensors["input0"]}, values, 2e-6 if dtype is np.float32 else 1e-13)


@pairwise
@shapes
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("missing", [0, 1, None])
def test_accuracy(shape: Shape, layout: Layout, ignored: int | None, missing: int | None) -> None:
    examples = 0 if missing is None else shape[0] - missing
    tensors, values = classification(shape, layout, np.float32, examples, ignored)
    values["input0"].reshape(-1)[::7] = np.nan
    for top_k in (1, 2, shape[1], shape[1] + 5):
        agree(measure(top_k, ignored), tensors, values, 1e-6)


@pytest.mark.parametrize("classes", [4, 100])
@pytest.mark.parametrize("label", [-3, 10**9])
def test_a_label_that_is_no_class_shows(classes: int, label: int) -> None:
    tensors, values = classification((3, classes), PLAIN, np.float32, 2, None)
    values["labels"][1] = label
    assert np.isnan(run(loss_forward(None, "batch"), tensors, values)["output"][0])
    assert np.isnan(run(measure(1, None), tensors, values)["output"][0])
    gradient = run(loss_backward(None, "batch"), tensors, values)["input_gradient"]
    assert np.isnan(gradient).all(axis=1).tolist() == [False, True, False]
    values["state"] = state(EXAMPLES=1)  # padding may hold anything
    assert np.isfinite(run(loss_forward(None, "batch"), tensors, values)["output"][0])
    agree(loss_backward(None, "batch"), tensors, values, 1e-6)


@dtypes
def test_a_probability_of_zero_costs_much_but_not_infinitely_much(dtype: type) -> None:
    tensors, values = classification((2, 3), PLAIN, dtype, 1, None)
    values["input0"][...] = 0
    loss = run(loss_forward(None, "batch"), tensors, values)["output"]
    np.testing.assert_allclose(loss, -np.log(float(np.finfo(dtype).tiny)), rtol=1e-6)


def test_a_probability_that_is_not_a_number_reaches_the_loss() -> None:
    tensors, values = classification((2, 3), PLAIN, np.float32, 2, None)
    values["input0"][...] = np.nan
    assert np.isnan(agree(loss_forward(None, "batch"), tensors, values)["output"][0])


def test_large_label_maps_are_added_up_by_many_blocks() -> None:
    tensors, values = classification((2, 3, 70, 60), PLAIN, np.float32, 1, None)
    with fake_cuda() as fake:
        assert loss_forward(None, "full")(Cuda(), tensors).workspace == 16 * 9
        larger = {**tensors, "labels": Tensor((8, 2000, 2000), np.dtype(np.int32))}
        assert loss_forward(None, "full")(Cuda(), larger).workspace == 16 * MOST_SHARES
        assert not fake.calls
    agree(loss_forward(None, "full"), tensors, values, 1e-6)  # some blocks have nothing to add


def squares(shape: Shape, layout: Layout, dtype: type, target: Any, examples: int) -> tuple[dict[str, Tensor], Any]:
    generator = np.random.default_rng(0)
    image, number = Tensor(shape, np.dtype(dtype), layout), Tensor((1,), np.dtype(dtype))
    values: dict[str, Numbers] = {
        "input0": generator.standard_normal(shape).astype(dtype),
        "labels": generator.standard_normal(shape).astype(target),
        "state": state(EXAMPLES=examples),
    }
    labels = Tensor(shape, np.dtype(target))
    return {"input0": image, "output": number, "input_gradient": image, "labels": labels}, values


@dtypes
@pytest.mark.parametrize("target", [np.float32, np.float64])
@pytest.mark.parametrize("examples", [0, 2, 4])
@pytest.mark.parametrize(
    ("shape", "layout"), [((4, 3), PLAIN), ((4,), PLAIN), ((4, 5, 20, 30), LAST), ((4, 2, 1, 3, 500), PLAIN)]
)
def test_euclidean_loss(shape: Shape, layout: Layout, dtype: type, target: type, examples: int) -> None:
    """Targets lie in logical order, and may be more precise than the rest."""

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(EuclideanLossForward(tensors["input0"], tensors["labels"]))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(EuclideanLossBackward(tensors["input0"], tensors["labels"], tensors["input_gradient"]))

    given = squares(shape, layout, dtype, target, examples)
    exact = 1e-6 if np.float32 in (dtype, target) else 1e-13
    agree(forward, *given, exact)
    agree(backward, *given, exact)


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("examples", [0, 2, 4])
@pytest.mark.parametrize(("shape", "layout"), [((4, 3), PLAIN), ((4,), PLAIN), ((4, 5, 20, 30), LAST)])
def test_sigmoid_loss(shape: Shape, layout: Layout, dtype: type, examples: int) -> None:
    for normalisation in ("full", "batch", "none"):

        def forward(library: KernelLibrary, tensors: Tensors, by: str = normalisation) -> PreparedKernel:
            return library.prepare(SigmoidLossForward(tensors["input0"], tensors["labels"], by))

        def backward(library: KernelLibrary, tensors: Tensors, by: str = normalisation) -> PreparedKernel:
            x, labels, dx = (tensors[role] for role in ("input0", "labels", "input_gradient"))
            return library.prepare(SigmoidLossBackward(x, labels, dx, by))

        tensors, values = squares(shape, layout, dtype, dtype, examples)
        values |= {"input0": 20 * values["input0"], "labels": np.abs(values["labels"]) % 1}
        agree(forward, tensors, values, 2 * tolerance(dtype))
        agree(backward, tensors, values, 2 * tolerance(dtype))


def test_targets_of_half_precision_are_refused() -> None:
    x = Tensor((4, 3), np.dtype(np.float32))
    with pytest.raises(ConfigurationError, match="float32 or float64"):
        Cuda().prepare(EuclideanLossForward(x, Tensor((4, 3), np.dtype(np.float16))))
