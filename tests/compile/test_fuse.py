"""Operators that another's kernel does as well: which they are, and that the numbers stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Phase, SubGraph
from crossbow.compile import Program
from crossbow.compile.fuse import REQUESTS, relu_fusions
from crossbow.conf import configuration
from crossbow.dataflow.graph import Graph
from crossbow.kernels.interface import KernelLibrary
from crossbow.kernels.native import NativeCall
from crossbow.kernels.reference import Reference
from crossbow.ops import (
    BatchNorm,
    BatchNormGradient,
    Concat,
    Conv,
    ConvGradient,
    ElementWiseOp,
    EuclideanLoss,
    EuclideanLossGradient,
    Gaussian,
    GradientDescentOptimiser,
    Noop,
    Pool,
    ReLU,
    ReLUGradient,
    SoftMax,
    SoftMaxLoss,
)
from tests.compile.checker import check_memory
from tests.compile.execution import Execution, Numbers, compile_network, draw, draw_labels, run_without_sharing
from tests.dataflow.networks import Square, chain, convolution, inner_product, node
from tests.support import FAST

EVERYTHING = tuple(REQUESTS.values())
IMAGES = (4, 3, 9, 9)


def relu(name: str = "relu", **options: Any) -> DataflowNode:
    return node(name, ReLU(**options))


def norm(name: str = "norm", **options: Any) -> DataflowNode:
    gaussian = Gaussian(std=0.5)
    return node(name, BatchNorm(weight_initialiser=gaussian, bias_initialiser=gaussian, **options))


def biggest(name: str = "max", kernel_size: int = 3, stride: int = 2, padding: int = 0) -> DataflowNode:
    return node(name, Pool(kernel_size=kernel_size, stride=stride, padding=padding))


def classifier() -> Sequence[DataflowNode]:
    return inner_product("ip", 3, std=0.1), node("softmax", SoftMax()), node("loss", SoftMaxLoss())


def graph_of(head: DataflowNode, phase: Phase = Phase.TRAIN) -> Graph:
    return Dataflow(SubGraph(head)).set_phase(phase).graph


def taken_in(head: DataflowNode, fusible: Sequence[str] = EVERYTHING, phase: Phase = Phase.TRAIN) -> dict[str, str]:
    """The names of the ReLUs that are taken in, and by whom."""
    graph = graph_of(head, phase)
    return {graph[relu].name: graph[source].name for relu, source in relu_fusions(graph, fusible).items()}


def elided(program: Program) -> dict[str, str]:
    return {step.operator: step.kernel.name for step in program.steps if step.elided}


# Which.


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    ("request_", "before"),
    [
        ("convolution", lambda: convolution("before", 3, 3)),
        ("inner_product", lambda: inner_product("before", 3)),
        ("batch_norm", lambda: norm("before")),
        ("batch_norm", lambda: norm("before", bias=False, statistics="cma")),
        ("weighted_sum", lambda: node("before", ElementWiseOp())),
        ("weighted_sum", lambda: node("before", ElementWiseOp(coefficients=(2.0,)))),
    ],
)
def test_these_take_the_relu_behind_them_in(request_: str, before: Callable[[], DataflowNode], phase: Phase) -> None:
    def network() -> DataflowNode:
        return chain(convolution("conv", 3, 3), before(), relu(), *classifier())

    assert taken_in(network(), EVERYTHING, phase) == {"relu": "before"}
    assert taken_in(network(), [request_], phase) == {"relu": "before"}
    assert taken_in(network(), [other for other in EVERYTHING if other != request_], phase) == {}
    assert taken_in(network(), (), phase) == {}


@configuration
class OtherReLU(ReLU):
    """max(x, 0)², say: what a derived class computes is its own affair."""


@configuration
class OtherConv(Conv):
    """What a derived class asks its library for is its own affair too."""


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    "behind",
    [
        *(lambda mode=mode: [convolution("conv", 3, 3), relu(mode=mode)] for mode in ("sigmoid", "tanh", "clipped")),
        lambda: [convolution("conv", 3, 3), relu(negative_slope=0.1)],
        lambda: [convolution("conv", 3, 3), node("relu", OtherReLU())],
        lambda: [node("conv", OtherConv(number_of_outputs=3)), relu()],
        lambda: [convolution("conv", 3, 3), biggest(), relu()],
        lambda: [convolution("conv", 3, 3), relu(mode="tanh"), relu()],
        lambda: [convolution("conv", 3, 3), node("product", ElementWiseOp(type="product")), relu()],
        lambda: [convolution("conv", 3, 3), node("largest", ElementWiseOp(type="max")), relu()],
        lambda: [convolution("conv", 3, 3), node("concat", Concat()), relu()],
        lambda: [convolution("conv", 3, 3), node("noop", Noop()), relu()],
        lambda: [relu()],  # of the batch
    ],
)
def test_these_do_not(behind: Callable[[], list[DataflowNode]], phase: Phase) -> None:
    assert taken_in(chain(*behind(), *classifier()), EVERYTHING, phase) == {}


@pytest.mark.parametrize("before", [lambda: convolution("before", 3, 1), lambda: norm("before")])
def test_the_relu_is_the_only_reader(before: Callable[[], DataflowNode]) -> None:
    source, total = before(), node("sum", ElementWiseOp())
    chain(source, relu(), total)
    chain(source, total, *classifier())
    assert taken_in(source) == {}
    source, total = before(), node("sum", ElementWiseOp())
    chain(source, relu("one"), total)
    chain(source, relu("other"), total, *classifier())
    assert taken_in(source) == {}


@pytest.mark.parametrize("before", [lambda: convolution("before", 3, 1), lambda: norm("before")])
def test_many_may_read_the_relu_and_a_loss_too(before: Callable[[], DataflowNode]) -> None:
    source, ahead, total, loss = before(), relu(), node("sum", ElementWiseOp()), node("loss", EuclideanLoss())
    chain(source, ahead, node("square", Square()), total)
    chain(ahead, total)
    chain(ahead, loss)
    assert taken_in(source) == {"relu": "before"}


def test_shared_operators_are_taken_by_place() -> None:
    """The convolution stands before a ReLU, and again before a tanh; the ReLU stands behind both operators."""
    conv, first = convolution("conv", 3, 1), relu()
    head = chain(
        conv, first, conv.shallow_copy(), relu("tanh", mode="tanh"), norm(), first.shallow_copy(), *classifier()
    )
    graph = graph_of(head)
    assert relu_fusions(graph, EVERYTHING) == {1: 0, 5: 4}
    assert [graph[order].name for order in (0, 1, 4, 5)] == ["conv", "relu", "norm", "relu"]


# Gradients that are wired by hand.


def wired(*forward: DataflowNode, gradients: Sequence[DataflowNode]) -> DataflowNode:
    """A chain of forward operators with a loss, and one of gradients behind it, the optimiser at the end."""
    loss = node("loss", EuclideanLoss())
    return chain(
        *forward,
        loss,
        node("loss.gradient", EuclideanLossGradient(), loss),
        *gradients,
        node("end", GradientDescentOptimiser()),
    )


def test_gradients_that_are_wired_as_they_would_be_derived() -> None:
    for before, kind in ((convolution("before", 3, 1), ConvGradient()), (norm("before"), BatchNormGradient())):
        ahead = relu()
        gradients = [node("relu.gradient", ReLUGradient(), ahead), node("before.gradient", kind, before)]
        assert taken_in(wired(before, ahead, gradients=gradients)) == {"relu": "before"}


def test_a_norm_whose_gradient_passes_by_that_of_the_relu() -> None:
    before, ahead = norm("before"), relu()
    assert taken_in(wired(before, ahead, gradients=[node("g", BatchNormGradient(), before)])) == {}
    conv, ahead = convolution("before", 3, 1), relu()  # a convolution's own gradient knows of no ReLU
    assert taken_in(wired(conv, ahead, gradients=[node("g", ConvGradient(), conv)])) == {"relu": "before"}


def test_a_norm_whose_relu_has_a_gradient_for_others() -> None:
    first, before, ahead = convolution("conv", 3, 1), norm("before"), relu()
    passed = node("relu.gradient", ReLUGradient(), ahead)
    head = wired(first, before, ahead, gradients=[passed, node("norm.gradient", BatchNormGradient(), before)])
    chain(passed, node("conv.gradient", ConvGradient(), first), node("also", GradientDescentOptimiser()))
    assert taken_in(head) == {}


# What a program does.


def fast() -> KernelLibrary:
    from crossbow.kernels.onednn.library import OneDNN

    library: KernelLibrary = OneDNN()
    return library


def unfused() -> KernelLibrary:
    library = fast()
    library.fused_relu = ()
    return library


def executed(
    head: DataflowNode,
    batch: tuple[int, ...],
    library: KernelLibrary,
    *,
    phase: Phase = Phase.TRAIN,
    labels: Numbers | None = None,
    classes: int = 3,
    **options: Any,
) -> tuple[Execution, float]:
    """A program of the network, after its forward part on numbers that depend on shapes only."""
    (dtype,) = library.dtypes
    values = draw_labels(batch[0], classes) if labels is None else labels
    program = compile_network(
        head,
        batch,
        values.shape,
        phase=phase,
        dtype=dtype,
        library=library,
        classes=values.dtype.kind == "i",
        **options,
    )
    check_memory(program)
    made = Execution(program)
    shapes = {segment.name: segment.spec.shape for segment in program.model}
    start = {name: draw(*shape, seed=7) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    program.model.load(start, made.weights, "the test")
    for segment in program.statistics:  # not those of no training at all
        segment.flat(made.statistics)[...] = 1 + np.abs(draw(segment.storage.elements, seed=8))
    made.load(draw(*batch), values, task=2)
    return made, made.forward()


def statistics(made: Execution) -> dict[str, Numbers]:
    return made.program.statistics.export(made.observed)


def plain() -> DataflowNode:
    """ReLUs behind an inner product, a sum of two, and a sum of five."""
    ip, total, many = inner_product("ip1", 20), node("total", ElementWiseOp()), node("many", ElementWiseOp())
    chain(ip, relu("relu1"), inner_product("ip2", 20), total)
    chain(ip.next[0], total, relu("relu2"), many)
    for number in range(4):
        chain(total.next[0], inner_product(f"branch{number}", 20), many)
    chain(many, relu("relu3"), *classifier())
    return ip


def convolutional() -> DataflowNode:
    """Several kinds of convolutions, an overlapping pooling, and an inner product over images."""
    return chain(
        convolution("few", 20, 3, padding=1),
        relu("relu1"),
        convolution("many", 32, 3),
        relu("relu2"),
        biggest(),
        node(
            "groups",
            Conv(number_of_outputs=32, kernel_size=3, padding=1, groups=32, weight_initialiser=Gaussian(std=0.5)),
        ),
        relu("relu3"),
        inner_product("ip1", 16, std=0.1),
        relu("relu4"),
        *classifier(),
    )


def residual(**options: Any) -> DataflowNode:
    """A block of a residual network: norms, a sum with what came before, ReLUs that two read; then a pooling."""
    head, total = convolution("conv1", 16, 3, padding=1), node("sum", ElementWiseOp(coefficients=(1.0, -0.5)))
    chain(
        head, norm("norm1", **options), relu("relu1"), convolution("conv2", 16, 3, padding=1), norm("norm2", **options)
    )
    first, second = head.next[0].next[0], head.next[0].next[0].next[0].next[0]
    chain(second, relu("relu2"), convolution("conv3", 16, 1), norm("norm3", **options), total)
    chain(first, total, relu("relu3"), norm("norm4", **options), relu("relu4"), biggest(), *classifier())
    return head


NETWORKS: list[tuple[Callable[[], DataflowNode], tuple[int, ...], int, int]] = [
    (plain, (4, 6), 3, 0),
    (convolutional, IMAGES, 4, 1),
    (residual, IMAGES, 4, 0),
    (lambda: residual(bias=False, statistics="cma"), IMAGES, 4, 0),
    (lambda: residual(moving_average_fraction=0.0), IMAGES, 4, 0),
]
"""The network, its batch, how many ReLUs are taken in, and how many gradients of ReLUs pass a pooling."""


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "pooled"), NETWORKS)
def test_fused_training_gives_the_numbers_of_the_specification(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, pooled: int
) -> None:
    made, loss = executed(network(), batch, fast())
    reference, expected = executed(network(), batch, Reference(np.float64))
    assert sum("gradient" not in name for name in elided(made.program)) == relus
    assert not any("gradient" not in name for name in elided(reference.program))
    assert loss == pytest.approx(expected, rel=1e-5)
    compare(outputs(made), outputs(reference), 2e-5)
    gradients = reference.backward()
    compare(made.backward(), gradients, 2e-4)
    compare(statistics(made), statistics(reference), 1e-5)
    assert all(np.abs(gradient).max() > 1e-3 for name, gradient in gradients.items() if "weights" in name)


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "pooled"), NETWORKS)
def test_fusing_changes_no_bit(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, pooled: int
) -> None:
    """The same products in the same order, and then a maximum: in another kernel, or in this one."""
    for phase in Phase:
        made, loss = executed(network(), batch, fast(), phase=phase)
        apart, expected = executed(network(), batch, unfused(), phase=phase)
        assert sum("gradient" not in name for name in elided(made.program)) == relus
        assert not any("gradient" not in name for name in elided(apart.program))
        assert loss == expected
        alone, together = outputs(apart), outputs(made)
        assert len(alone) - len(together) == relus
        for name, value in together.items():
            np.testing.assert_array_equal(value, alone[name], err_msg=name)
        if phase is Phase.TRAIN:
            compare(statistics(made), statistics(apart), 0)
            compare(made.backward(), apart.backward(), 0)


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "pooled"), NETWORKS)
def test_fused_checking_gives_the_numbers_of_the_specification(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, pooled: int
) -> None:
    made, loss = executed(network(), batch, fast(), phase=Phase.CHECK)
    reference, expected = executed(network(), batch, Reference(np.float64), phase=Phase.CHECK)
    assert len(elided(made.program)) == relus
    assert loss == pytest.approx(expected, rel=1e-5)
    compare(outputs(made), outputs(reference), 2e-5)


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "pooled"), NETWORKS)
def test_fused_programs_are_native(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, pooled: int
) -> None:
    made, _ = executed(network(), batch, fast())
    for step in (*made.forward_steps, *made.backward_steps):
        assert isinstance(step.call, NativeCall), step.operator
    names = [step.operator for step in (*made.forward_steps, *made.backward_steps)]
    assert not [name for name in names if name.startswith("relu") and "gradient" not in name]


def outputs(made: Execution) -> dict[str, Numbers]:
    """The output of every forward vertex, each in memory of its own; that of one that took a ReLU in is the ReLU's."""
    found = run_without_sharing(made)[0]
    by_order = {vertex.order: vertex.name for vertex in made.program.graph}
    for vertex in made.program.graph:
        if isinstance(vertex.kernel, ReLU) and vertex.name not in found:
            found[vertex.name] = found.pop(by_order[vertex.inputs[0]])
    return found


def compare(actual: dict[str, Numbers], expected: dict[str, Numbers], tolerance: float) -> None:
    """Relative to the largest element; the bias before a norm has no gradient, but for rounding."""
    for name, value in actual.items():
        scale = max(1e-2, np.abs(expected[name]).max())
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=tolerance * scale, err_msg=name)
