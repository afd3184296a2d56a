"""Networks whose tensors are more than rows of features: attention, and a class for every pixel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from crossbow import DataflowNode
from crossbow.kernels.native import NativeCall
from crossbow.ops import Accuracy, Classify, Flatten, Gaussian, InnerProduct, MatMul, Noop, ReLU, SoftMax, SoftMaxLoss
from tests.compile.execution import Numbers, draw
from tests.compile.test_gradients import check_gradients, execution
from tests.dataflow.networks import chain, convolution, node
from tests.support import FAST, NEEDS_ONEDNN

Network = tuple[DataflowNode, Numbers, Numbers]
"""The head, a batch and its labels."""


def rows(name: str, outputs: int, axis: int, *, bias: bool = True) -> DataflowNode:
    names = ("weight_initialiser", "bias_initialiser") if bias else ("weight_initialiser",)
    configuration = {**dict.fromkeys(names, Gaussian(std=0.5)), "bias": bias}
    return node(name, InnerProduct(number_of_outputs=outputs, axis=axis, **configuration))  # type: ignore[arg-type]


def attention() -> Network:
    """Rows that look at each other: softmax(q kᵀ) v."""
    head = node("head", Noop())
    scores, values = node("scores", MatMul(transpose_b=True)), node("mixed", MatMul())
    chain(head, rows("q", 3, 2), scores, node("attention", SoftMax(axis=-1)), values)
    chain(head, rows("k", 3, -1, bias=False), scores)  # a bias would change nothing
    chain(head, rows("v", 2, 2), values)
    chain(values, node("flat", Flatten()), rows("ip", 3, 1), node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    return head, draw(4, 5, 6), np.array([0, 2, 1, 2], np.int32)


def channel_products() -> Network:
    """Four dimensions, which lie channels last: products of the images of a channel."""
    first, product = convolution("conv", 3, 3, padding=1), node("product", MatMul(transpose_a=True))
    end = rows("ip", 3, 1)
    chain(first, product)
    chain(first, node("again", Noop()), product)
    chain(product, rows("columns", 4, 3), node("relu", ReLU()), rows("images", 3, 2), node("flat", Flatten()), end)
    chain(end, node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    return first, 0.4 * draw(2, 2, 4, 5), np.array([0, 2], np.int32)


def pixels() -> Network:
    """A class for every pixel, some of them ignored."""
    head, softmax = convolution("conv", 4, 3, padding=1), node("softmax", SoftMax(axis=-3))
    chain(
        head,
        rows("across", 5, 3, bias=False),
        softmax,
        node("loss", SoftMaxLoss(ignored_label=9, normalisation="valid")),
    )
    chain(softmax, node("accuracy", Accuracy(top_k=2, ignored_label=9)))
    chain(softmax, node("classes", Classify()))
    labels = np.random.default_rng(0).integers(0, 4, (3, 3, 5)).astype(np.int32)
    labels[labels == 3] = 9
    return head, draw(3, 2, 3, 4), labels


NETWORKS = pytest.mark.parametrize("network", [attention, channel_products, pixels])


@NETWORKS
def test_gradients_are_those_of_finite_differences(network: Callable[[], Network]) -> None:
    check_gradients(execution(*network()))


@NEEDS_ONEDNN
@pytest.mark.parametrize("kernels", [FAST])
@NETWORKS
def test_fast_kernels_agree_and_leave_no_work_to_python(network: Callable[[], Network], kernels: str) -> None:
    from crossbow.kernels.cpu.library import Cpu

    made = execution(*network())
    head, images, labels = network()
    fast = execution(head, images.astype(np.float32), labels, dtype=np.float32, library=Cpu())
    fast.program.model.load(made.program.model.export(made.weights), fast.weights, "reference")
    np.testing.assert_allclose(fast.forward(), made.forward(), rtol=1e-5)
    received, expected = fast.backward(), made.backward()
    for name, gradient in expected.items():
        np.testing.assert_allclose(received[name], gradient, atol=2e-5 * np.abs(gradient).max(), err_msg=name)
    for step in (*fast.forward_steps, *fast.backward_steps):
        assert isinstance(step.call, NativeCall), step.operator


@pytest.mark.parametrize("kernels", ["reference", FAST])
def test_padding_of_a_batch_of_maps_takes_no_part(kernels: str) -> None:
    from crossbow.kernels import select_library

    head, images, labels = pixels()
    library, _ = select_library(kernels, np.dtype(np.float32))
    results = []
    for examples in (2, 3):
        made = execution(head, images.astype(np.float32), labels, dtype=np.float32, library=library)
        made.load(images, labels, examples=examples)
        loss, measure = made.forward(), made.measure()
        p = made.output("softmax")[:examples].copy()
        np.testing.assert_array_equal(made.output("classes")[:examples], p.argmax(axis=1))
        results.append((loss, made.backward()["conv.weights"]))
        real = labels[:examples]
        counted = real != 9
        own = np.take_along_axis(p, np.where(counted, real, 0)[:, None], axis=1)[:, 0]
        assert loss == pytest.approx(-np.log(own[counted]).mean(), rel=1e-5)
        assert measure == pytest.approx(((p > own[:, None]).sum(axis=1) < 2)[counted].mean(), rel=1e-6)
    assert results[0][0] != results[1][0]
    assert np.abs(results[0][1] - results[1][1]).max() > 0
