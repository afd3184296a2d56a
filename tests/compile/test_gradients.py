"""Gradients of whole networks, through the compiled program: against float64 finite differences, against sums worked
out by hand, and against PyTorch with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from crossbow import DataflowNode, Phase
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.native import NativeCall
from crossbow.kernels.random import keep_mask
from crossbow.kernels.reference import Reference
from crossbow.ops import LRN, Concat, ElementWiseOp, EuclideanLoss, Gaussian, ReLU, Scale, SoftMax, SoftMaxLoss
from tests.combinations import one_in
from tests.compile.execution import Execution, Numbers, compile_network, draw, draw_labels, numerical_gradients
from tests.compile.random_graphs import BATCH, CLASSES, networks
from tests.dataflow.networks import PenalisedLoss, Square, branched, chain, convolution, inner_product, node, perceptron
from tests.support import FAST


def execution(
    head: DataflowNode, images: Numbers, labels: Numbers, *, dtype: Any = np.float64, task: int = 0, **options: Any
) -> Execution:
    """The training program of a network, with initial weights and a batch loaded."""
    classes = labels.dtype.kind == "i"
    program = compile_network(head, images.shape, labels.shape, classes=classes, dtype=dtype, **options)
    made = Execution(program)
    program.model.initialise(made.weights, 3)
    made.load(images, labels, task=task)
    return made


def check_gradients(made: Execution, tolerance: float = 1e-7) -> None:
    """All gradients against central differences. The loss itself must not depend on what ran before."""
    loss = made.forward()
    gradients = made.backward()
    expected = numerical_gradients(made)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        scale = max(1e-3, np.abs(expected[name]).max())
        np.testing.assert_allclose(gradient, expected[name], atol=tolerance * scale, rtol=0, err_msg=name)
    assert made.forward() == loss


# Finite differences.


def pyramid() -> DataflowNode:
    """Two inputs of one sum, of which one is the other's source; a SoftMax in the middle."""
    ip1, attention, total = inner_product("ip1", 4), node("attention", SoftMax()), node("sum", ElementWiseOp())
    chain(ip1, attention, inner_product("ip2", 4, bias=False), total)
    chain(attention, total)
    chain(total, inner_product("ip3", 3), node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    return ip1


def two_paths_to_the_loss() -> DataflowNode:
    """A SoftMax with another differentiable consumer; both are inputs of the loss."""
    ip, softmax, loss = inner_product("ip1"), node("softmax", SoftMax()), node("loss", PenalisedLoss())
    chain(ip, softmax, loss)
    chain(softmax, inner_product("ip2"), loss)
    return ip


def shared() -> DataflowNode:
    """One operator three times, in a chain and in a branch."""
    ip, total = inner_product("ip", 5), node("sum", ElementWiseOp(coefficients=(1.0, -0.5)))
    again, third = ip.shallow_copy(), ip.shallow_copy()
    chain(ip, node("tanh", ReLU(mode="tanh")), again, total)
    chain(ip, third, total)
    chain(total, node("sigmoid", ReLU(mode="sigmoid")), inner_product("ip2", 3), node("softmax", SoftMax()))
    total.next[0].next[0].next[0].connect_to(node("loss", SoftMaxLoss()))
    return ip


def repeated() -> DataflowNode:
    """One node as several inputs of a product, a sum, a maximum and a Concat."""
    ip, tanh = inner_product("ip1", 4), node("tanh", ReLU(mode="tanh"))
    square, double = node("square", ElementWiseOp(type="product")), node("double", ElementWiseOp())
    largest, joined = node("largest", ElementWiseOp(type="max")), node("joined", Concat())
    chain(ip, tanh, square, double, largest, joined)
    chain(tanh, square)
    chain(square, double)
    chain(tanh, largest, joined)
    chain(double, largest)
    chain(tanh, joined)
    chain(joined, inner_product("ip2", 3), *classifier())
    return ip


def joined() -> DataflowNode:
    """Two convolutions side by side, of different sizes, then everything per channel, for (N, 2, 6, 6)."""
    head = node("head", ReLU(mode="sigmoid"))
    wide, narrow = convolution("wide", 3, 3, padding=1), convolution("narrow", 2, 1)
    concat, product = node("concat", Concat()), node("product", ElementWiseOp(type="product"))
    gaussian = Gaussian(std=1.0)
    scale = node("scale", Scale(bias=True, weight_initialiser=gaussian, bias_initialiser=gaussian))
    chain(head, wide, concat, node("across", LRN(size=3)), scale, product)
    chain(head, narrow, concat)
    chain(concat, node("within", LRN(region="within_channel", size=3, beta=0.5)), product)
    chain(product, inner_product("ip", 3), *classifier())
    return head


def several_losses() -> DataflowNode:
    """Three losses of different kinds and weights, which branch off at different depths; one passes by a SoftMax."""
    head, relu = inner_product("ip1", 5), node("relu", ReLU())
    chain(head, relu, inner_product("ip2", 3), node("softmax", SoftMax()), node("loss", SoftMaxLoss(weight=2.0)))
    auxiliary = SoftMaxLoss(weight=0.3, auxiliary=True, normalisation="none")
    chain(relu, inner_product("ip3", 3), node("softmax3", SoftMax()), node("loss3", auxiliary))
    chain(head, inner_product("ip4", 3), node("softmax4", SoftMax()), node("loss4", SoftMaxLoss(auxiliary=True)))
    return head


def outside() -> DataflowNode:
    return chain(inner_product("ip1", 4), node("square", Square()), inner_product("ip2", 3), *classifier())


def classifier() -> tuple[DataflowNode, DataflowNode]:
    return node("softmax", SoftMax()), node("loss", SoftMaxLoss())


@one_in(4)
@pytest.mark.parametrize(
    ("network", "batch"),
    [
        (perceptron, (4, 5)),
        (pyramid, (4, 5)),
        (two_paths_to_the_loss, (4, 5)),
        (shared, (4, 5)),
        (outside, (4, 5)),
        (branched, (2, 2, 6, 6)),
        (repeated, (4, 5)),
        (joined, (2, 2, 6, 6)),
        (several_losses, (4, 5)),
    ],
)
def test_gradients_of_a_network_are_those_of_finite_differences(
    network: Callable[[], DataflowNode], batch: tuple[int, ...]
) -> None:
    check_gradients(execution(network(), draw(*batch), draw_labels(batch[0], 3), task=5))


def test_a_short_batch_has_the_gradients_of_its_examples_alone() -> None:
    images, labels = draw(4, 5), draw_labels(4, 3)
    short, alone = execution(perceptron(), images, labels), execution(perceptron(), images[:3], labels[:3])
    short.load(images, labels, examples=3)
    assert short.forward() == pytest.approx(alone.forward(), rel=1e-12)
    for (name, gradient), expected in zip(short.backward().items(), alone.backward().values(), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, err_msg=name)


def test_a_second_task_starts_afresh() -> None:
    """Gradients are written, not added to those of the task before; dropout draws again, and the same for one task."""
    images, labels = draw(2, 2, 6, 6), draw_labels(2, 3)
    made = execution(branched(), images, labels, task=1)
    first = made.forward(), made.backward()
    made.load(draw(2, 2, 6, 6, seed=9), labels[::-1], task=2)
    other = made.forward(), made.backward()
    made.load(images, labels, task=1)
    again = made.forward(), made.backward()
    assert first[0] == again[0] != other[0]
    for name in first[1]:
        np.testing.assert_array_equal(first[1][name], again[1][name])
        assert not np.array_equal(first[1][name], other[1][name])


@pytest.mark.slow
@settings(max_examples=25)
@given(networks(most=7))
def test_gradients_of_random_networks(head: DataflowNode) -> None:
    """Along a random direction; where a kink is near, two step widths disagree and the case is left out."""
    made = execution(head, draw(*BATCH), draw_labels(BATCH[0], CLASSES))
    assume(made.forward() < 20)  # else probabilities are so small that the loss is cut off, or rounding too coarse
    made.backward()
    model = made.program.model
    direction, gradient, start = model.new_vector(), np.nan_to_num(made.gradient), made.weights.copy()
    for segment in model:
        segment.flat(direction)[...] = draw(segment.storage.elements, seed=segment.offset)
    slopes = []
    for step in (1e-5, 1e-6):
        losses = []
        for sign in (1, -1):
            made.weights[...] = start + sign * step * direction
            losses.append(made.forward())
        slopes.append((losses[0] - losses[1]) / (2 * step))
    scale = max(1.0, abs(slopes[0]))
    assume(abs(slopes[0] - slopes[1]) < 1e-6 * scale)
    assert gradient @ direction == pytest.approx(slopes[0], abs=1e-6 * scale)


# Shared operators.


def test_the_gradients_of_a_shared_operator_are_added() -> None:
    """y = W tanh(W x): dL/dW is the sum over both places, worked out by hand."""
    ip = inner_product("ip", 3, bias=False)
    head = chain(ip, node("tanh", ReLU(mode="tanh")), ip.shallow_copy(), node("loss", EuclideanLoss()))
    x, target = draw(4, 3), draw(4, 3, seed=1)
    made = execution(head, x, target)
    made.forward()
    (gradient,) = made.backward().values()
    (w,) = made.program.model.export(made.weights).values()
    hidden = np.tanh(x @ w.T)
    error = (hidden @ w.T - target) / 4
    last = error.T @ hidden
    first = ((error @ w) * (1 - hidden**2)).T @ x
    np.testing.assert_allclose(gradient, last + first, rtol=1e-12)
    assert np.abs(first).max() > 1e-3  # both places matter
    assert np.abs(last).max() > 1e-3


def test_the_gradient_of_a_shared_operator_is_the_sum_of_two_with_the_same_weights() -> None:
    """Two operators of equal weights in its places have two gradients, and theirs is the sum."""
    images, labels = draw(2, 2, 6, 6), draw_labels(2, 3)

    def network(first: DataflowNode, second: DataflowNode) -> DataflowNode:
        return chain(first, node("tanh", ReLU(mode="tanh")), second, inner_product("ip", 3), *classifier())

    conv = convolution("conv", 2, 3, padding=1)
    one = execution(network(conv, conv.shallow_copy()), images, labels)
    two = execution(network(convolution("a", 2, 3, padding=1), convolution("b", 2, 3, padding=1)), images, labels)
    variables = one.program.model.export(one.weights)
    for kind in ("weights", "bias"):
        variables[f"a.{kind}"] = variables[f"b.{kind}"] = variables.pop(f"conv.{kind}")
    two.program.model.load(variables, two.weights, "the test")
    assert one.forward() == two.forward()
    sums, parts = one.backward(), two.backward()
    for kind in ("weights", "bias"):
        np.testing.assert_allclose(sums[f"conv.{kind}"], parts[f"a.{kind}"] + parts[f"b.{kind}"], rtol=1e-12)
    np.testing.assert_array_equal(sums["ip.weights"], parts["ip.weights"])


# The fast kernels, through the same program.


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(
    ("network", "batch"),
    [
        (perceptron, (4, 5)),
        (shared, (4, 5)),
        (branched, (2, 2, 6, 6)),
        (outside, (4, 5)),
        (repeated, (4, 5)),
        (joined, (2, 2, 6, 6)),
    ],
)
def test_fast_kernels_have_the_same_gradients(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...]
) -> None:
    from crossbow.kernels.cpu.library import Cpu

    images, labels = draw(*batch).astype(np.float32), draw_labels(batch[0], 3)
    results = []
    libraries: list[KernelLibrary] = [Reference(np.float32), Cpu()]
    variables = None
    for library in libraries:
        made = execution(network(), images, labels, dtype=np.float32, task=5, library=library)
        variables = variables or made.program.model.export(made.weights)
        made.program.model.load(variables, made.weights, "the test")
        results.append((made.forward(), made.backward()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    for name, gradient in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], gradient, atol=1e-5 * np.abs(gradient).max(), err_msg=name)


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch"), [(repeated, (4, 5)), (joined, (2, 2, 6, 6))])
def test_no_python_runs_in_a_task(kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...]) -> None:
    from crossbow.kernels.cpu.library import Cpu

    images, labels = draw(*batch).astype(np.float32), draw_labels(batch[0], 3)
    made = execution(network(), images, labels, dtype=np.float32, library=Cpu())
    for step in (*made.forward_steps, *made.backward_steps):
        assert isinstance(step.call, NativeCall), step.operator


# PyTorch.


def test_the_branched_network_agrees_with_pytorch() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    images, labels, task = draw(2, 2, 6, 6), draw_labels(2, 3), 11
    made = execution(branched(), images, labels, task=task, seed=4)
    loss, gradients = made.forward(), made.backward()
    variables = made.program.model.export(made.weights)
    w = {name: torch.tensor(value, requires_grad=True) for name, value in variables.items()}
    key = next(vertex.order for vertex in made.program.graph if vertex.name == "dropout")
    mask = torch.tensor(keep_mask(2 * 3 * 36, 0.4, 4, key, task).reshape(2, 3, 6, 6) / 0.6)
    tanh = torch.tanh(functional.conv2d(torch.tensor(images), w["conv1.weights"], w["conv1.bias"], padding=1))
    left = functional.leaky_relu(functional.conv2d(tanh, w["conv2.weights"], w["conv2.bias"], padding=1), 0.1)
    middle = functional.max_pool2d(functional.conv2d(tanh, w["conv3.weights"], w["conv3.bias"]), 3, 1, 1)
    right = functional.avg_pool2d(tanh, 3, 1, 1)
    total = (left + 0.5 * middle - 2 * right) * mask
    logits = functional.linear(total.reshape(2, -1), w["ip.weights"], w["ip.bias"])
    expected = functional.cross_entropy(logits, torch.tensor(labels, dtype=torch.int64))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert made.measure() == (logits.argmax(1).numpy() == labels).mean()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, w[name].grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_checking_computes_the_loss_without_dropout() -> None:
    torch = pytest.importorskip("torch")
    head, images, labels = branched(), draw(2, 2, 6, 6), draw_labels(2, 3)
    trained = execution(head, images, labels)
    program = compile_network(head, images.shape, phase=Phase.CHECK, model=trained.program.model)
    made = Execution(program, weights=trained.weights)
    made.load(images, labels)
    loss = made.forward()
    assert made.backward_steps == []
    log_softmax = torch.log(torch.tensor(made.output("softmax").copy()))
    expected = torch.nn.functional.nll_loss(log_softmax, torch.tensor(labels, dtype=torch.int64))
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert loss != pytest.approx(trained.forward(), rel=1e-3)  # which has dropout
