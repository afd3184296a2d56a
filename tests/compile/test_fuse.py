"""Operators that another's kernel does as well: which they are, and that the numbers stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Phase, SubGraph
from crossbow.compile import Program
from crossbow.compile.fuse import pooled_gradients, relu_fusions
from crossbow.conf import configuration
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph, build
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.native import NativeCall
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    BatchNormTraining,
    ConvolutionForward,
    InnerProductForward,
    RequestType,
    WeightedSum,
)
from crossbow.ops import (
    BatchNorm,
    BatchNormGradient,
    Concat,
    Conv,
    ConvGradient,
    ElementWiseOp,
    EuclideanLoss,
    EuclideanLossGradient,
    Flatten,
    Gaussian,
    GradientDescentOptimiser,
    Noop,
    Pool,
    PoolGradient,
    ReLU,
    ReLUGradient,
    SoftMax,
    SoftMaxLoss,
)
from tests.combinations import in_turn
from tests.compile.checker import check_memory
from tests.compile.execution import Execution, Numbers, compile_network, draw, draw_labels, run_without_sharing
from tests.dataflow.networks import Square, chain, convolution, inner_product, node
from tests.support import FAST, NEEDS_ONEDNN

EVERYTHING = (BatchNormTraining, ConvolutionForward, InnerProductForward, WeightedSum)
IMAGES = (4, 3, 9, 9)


def relu(name: str = "relu", **options: Any) -> DataflowNode:
    return node(name, ReLU(**options))


def norm(name: str = "norm", **options: Any) -> DataflowNode:
    names = ("weight_initialiser", "bias_initialiser") if options.get("bias", True) else ("weight_initialiser",)
    return node(name, BatchNorm(**dict.fromkeys(names, Gaussian(std=0.5)), **options))


def biggest(name: str = "max", kernel_size: int = 3, stride: int = 2, padding: int = 0) -> DataflowNode:
    return node(name, Pool(kernel_size=kernel_size, stride=stride, padding=padding))


def classifier() -> Sequence[DataflowNode]:
    return inner_product("ip", 3, std=0.1), node("softmax", SoftMax()), node("loss", SoftMaxLoss())


def graph_of(head: DataflowNode, phase: Phase = Phase.TRAIN) -> Graph:
    return Dataflow(SubGraph(head)).set_phase(phase).graph


def taken_in(
    head: DataflowNode, fusible: Sequence[RequestType] = EVERYTHING, phase: Phase = Phase.TRAIN
) -> dict[str, str]:
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
        (ConvolutionForward, lambda: convolution("before", 3, 3)),
        (InnerProductForward, lambda: inner_product("before", 3)),
        (BatchNormTraining, lambda: norm("before")),
        (BatchNormTraining, lambda: norm("before", bias=False, statistics="cma")),
        (WeightedSum, lambda: node("before", ElementWiseOp())),
        (WeightedSum, lambda: node("before", ElementWiseOp(coefficients=(2.0,)))),
    ],
)
def test_these_take_the_relu_behind_them_in(
    request_: RequestType, before: Callable[[], DataflowNode], phase: Phase
) -> None:
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
    from crossbow.kernels.cpu.library import Cpu

    library: KernelLibrary = Cpu()
    return library


def unfused() -> KernelLibrary:
    library = fast()
    library.fused_relu = frozenset()
    return library


def executed(
    head: DataflowNode | Graph,
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


NORMS = ("relu1", "relu2", "relu4")
NETWORKS: list[tuple[Callable[[], DataflowNode], tuple[int, ...], int, tuple[str, ...]]] = [
    (plain, (4, 6), 3, ()),
    (convolutional, IMAGES, 4, ("relu2",)),
    (residual, IMAGES, 4, NORMS),
    (lambda: residual(bias=False, statistics="cma"), IMAGES, 4, NORMS),
    (lambda: residual(moving_average_fraction=0.0), IMAGES, 4, NORMS),
]
"""The network, its batch, how many ReLUs are taken in, and those whose gradient is elsewhere: in that of a norm, or on
the other side of a pooling."""


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "elsewhere"), NETWORKS)
def test_fused_training_gives_the_numbers_of_the_specification(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, elsewhere: tuple[str, ...]
) -> None:
    made, loss = executed(network(), batch, fast())
    reference, expected = executed(network(), batch, Reference(np.float64))
    assert sum("gradient" not in name for name in elided(made.program)) == relus
    assert {name for name in elided(made.program) if name.startswith("relu")} - {f"relu{n}" for n in range(5)} == {
        f"{name}.gradient" for name in elsewhere
    }
    assert not any("gradient" not in name for name in elided(reference.program))
    assert loss == pytest.approx(expected, rel=1e-5)
    compare(outputs(made), outputs(reference), 2e-5)
    gradients = reference.backward()
    compare(made.backward(), gradients, 2e-4)
    compare(statistics(made), statistics(reference), 1e-5)
    assert all(np.abs(gradient).max() > 1e-3 for name, gradient in gradients.items() if "weights" in name)


@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "elsewhere"), NETWORKS)
def test_fusing_changes_no_bit(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, elsewhere: tuple[str, ...]
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
@pytest.mark.parametrize(("network", "batch", "relus", "elsewhere"), NETWORKS)
def test_fused_checking_gives_the_numbers_of_the_specification(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, elsewhere: tuple[str, ...]
) -> None:
    made, loss = executed(network(), batch, fast(), phase=Phase.CHECK)
    reference, expected = executed(network(), batch, Reference(np.float64), phase=Phase.CHECK)
    assert len(elided(made.program)) == relus
    assert loss == pytest.approx(expected, rel=1e-5)
    compare(outputs(made), outputs(reference), 2e-5)


@NEEDS_ONEDNN
@pytest.mark.parametrize("kernels", [FAST])
@pytest.mark.parametrize(("network", "batch", "relus", "elsewhere"), NETWORKS)
def test_fused_programs_are_native(
    kernels: str, network: Callable[[], DataflowNode], batch: tuple[int, ...], relus: int, elsewhere: tuple[str, ...]
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


@pytest.mark.parametrize("kernels", [FAST])
def test_a_relu_at_the_end_is_there_when_the_task_has_ended(kernels: str) -> None:
    conv, end = convolution("conv", 3, 3), relu("end")
    chain(conv, relu("tanh", mode="tanh"), *classifier())
    chain(conv.next[0], node("loose", ElementWiseOp(coefficients=(-0.5,))), end)
    made, _ = executed(conv, IMAGES, fast())
    assert elided(made.program) == {"end": "in that of 'loose'"}
    before = made.output("end").copy()
    expected = outputs(executed(conv, IMAGES, unfused())[0])["end"]
    assert (before > 0).any()
    made.backward()
    np.testing.assert_array_equal(made.output("end"), before)
    np.testing.assert_array_equal(before, expected)


@pytest.mark.parametrize("kernels", [FAST])
def test_a_relu_that_is_the_prediction(kernels: str) -> None:
    head, classes = convolution("conv", 3, 3), inner_product("ip", 5)
    loss = node("loss", EuclideanLoss())
    chain(head, classes, relu("prediction"), loss)
    prediction = derive_prediction(build(SubGraph(head).nodes))
    assert prediction[-1].name == "prediction"
    results = []
    for library in (fast(), unfused()):
        made, _ = executed(prediction, IMAGES, library, phase=Phase.CHECK)
        results.append(made.output("prediction").copy())
        assert ("prediction" in elided(made.program)) == (library.fused_relu != frozenset())
    np.testing.assert_array_equal(*results)
    assert (results[0] > 0).any()


@pytest.mark.parametrize("kernels", [FAST])
def test_a_description_says_who_does_it(kernels: str) -> None:
    made, _ = executed(convolutional(), IMAGES, fast())
    rows = {row.split()[1]: row for row in made.program.describe().splitlines()[:-1]}
    assert "(in that of 'groups')" in rows["relu3"]
    assert "convolution_forward relu" in rows["groups"]
    assert "activation_backward" in made.program.describe()


@pytest.mark.parametrize("kernels", [FAST])
def test_nothing_is_taken_in_where_numbers_are_checked(kernels: str) -> None:
    """The library's ReLU makes 0 of NaN: taken in, it would hide what the operator before it has computed."""
    head = convolutional()
    program = compile_network(head, IMAGES, dtype=np.float32, library=fast(), check_numerics=True)
    assert [name for name in elided(program) if "gradient" not in name] == []


# The gradient behind a max pooling.


def behind(*, mode: str = "relu", negative_slope: float = 0.0, pool: DataflowNode | None = None) -> DataflowNode:
    """conv → ReLU → pooling → classifier."""
    function = relu(mode=mode, negative_slope=negative_slope)
    return chain(convolution("conv", 5, 3, padding=1), function, pool or biggest(), *classifier())


def swapped(head: DataflowNode, fusions: dict[int, int] | None = None) -> dict[str, str]:
    graph = graph_of(head)
    return {graph[pool].name: graph[relu].name for pool, relu in pooled_gradients(graph, fusions or {}).items()}


def test_the_gradient_of_a_max_pooling_and_of_the_activation_before_it() -> None:
    both = {"max.gradient": "relu.gradient"}
    assert swapped(behind()) == swapped(behind(mode="tanh")) == swapped(behind(negative_slope=0.1)) == both
    for kernel in (Pool(method="average"), Pool(method="stochastic"), Noop()):
        assert swapped(behind(pool=node("max", kernel))) == {}
    assert swapped(chain(convolution("conv", 3, 3), node("relu", OtherReLU()), biggest(), *classifier())) == {}
    assert swapped(chain(relu(), biggest(), convolution("conv", 3, 3), *classifier())) == {}  # they have no gradient


def test_a_norm_does_without() -> None:
    head = chain(norm(), relu(), biggest(), *classifier())
    graph = graph_of(head)
    assert pooled_gradients(graph, relu_fusions(graph, EVERYTHING)) == {}
    assert swapped(head) == {"max.gradient": "relu.gradient"}


def test_an_activation_that_others_read_has_no_gradient_of_the_pooling_alone() -> None:
    conv, ahead, total = convolution("conv", 3, 3), relu(), node("sum", ElementWiseOp())
    chain(conv, ahead, biggest("max", 3, 1, 1), total)
    chain(ahead, total, *classifier())
    assert swapped(conv) == {}


def test_hand_wired_gradients_of_a_pooling_for_two() -> None:
    conv, ahead, pool = convolution("conv", 3, 1), relu(), biggest()
    pooled = node("max.gradient", PoolGradient(), pool)
    through = node("relu.gradient", ReLUGradient(), ahead)
    head = wired(conv, ahead, pool, gradients=[pooled, through, node("g", ConvGradient(), conv)])
    assert swapped(head) == {"max.gradient": "relu.gradient"}
    chain(pooled, node("also", GradientDescentOptimiser()))
    assert swapped(head) == {}


@in_turn
@pytest.mark.parametrize("kernels", ["reference", FAST])
@pytest.mark.parametrize("window", [(2, 2, 0), (2, 3, 0), (3, 2, 0), (3, 1, 1), (3, 2, 2), (9, 1, 0)])
@pytest.mark.parametrize(
    "options",
    [{}, {"negative_slope": 0.25}, {"mode": "sigmoid"}, {"mode": "tanh"}, {"mode": "clipped"}],
    ids=["relu", "leaky", "sigmoid", "tanh", "clipped"],
)
def test_the_derivative_of_the_pooled_values_is_that_of_their_sources(
    options: dict[str, Any], window: tuple[int, int, int], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fast() if kernels != "reference" else Reference(np.float64)

    def network() -> DataflowNode:
        return behind(pool=biggest("max", *window), **options)

    made, loss = executed(network(), IMAGES, library)
    backward = [step.operator for step in made.program.steps if step.backward and not step.elided]
    assert backward.index("relu.gradient") < backward.index("max.gradient")
    assert elided(made.program)["relu.gradient"] == "in that of 'max.gradient'"
    monkeypatch.setattr("crossbow.compile.compiler.pooled_gradients", lambda graph, fusions, sums: {})
    apart, expected = executed(network(), IMAGES, library)
    assert "relu.gradient" not in elided(apart.program)
    assert loss == expected
    overlapping = window[1] < window[0]
    gradients = apart.backward()
    compare(made.backward(), gradients, (1e-12 if kernels == "reference" else 1e-5) if overlapping else 0)
    assert np.abs(gradients["conv.weights"]).max() > 1e-3


def test_the_activation_need_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    head = behind(mode="tanh")
    program = compile_network(head, IMAGES)
    monkeypatch.setattr("crossbow.compile.compiler.pooled_gradients", lambda graph, fusions, sums: {})
    apart = compile_network(head, IMAGES)
    output = 4 * 5 * 9 * 9 * 8
    assert apart.plan.lower_bound - program.plan.lower_bound >= output


def test_hand_wired_gradients_of_a_pooling() -> None:
    """In the order that they are given, and computed in the other."""
    conv, ahead, pool = convolution("conv", 3, 1), relu(mode="tanh"), biggest()
    passing = node("relu.gradient", ReLUGradient(), ahead)
    gradients = [node("max.gradient", PoolGradient(), pool), passing, node("g", ConvGradient(), conv)]
    labels = draw(4, 3, 4, 4, seed=1)
    made, _ = executed(wired(conv, ahead, pool, gradients=gradients), IMAGES, Reference(np.float64), labels=labels)
    assert elided(made.program) == {"relu.gradient": "in that of 'max.gradient'"}
    derived = chain(convolution("conv", 3, 1), relu(mode="tanh"), biggest(), node("loss", EuclideanLoss()))
    compare(made.backward(), executed(derived, IMAGES, Reference(np.float64), labels=labels)[0].backward(), 0)


# Outputs that are their inputs.

BOTH = pytest.mark.parametrize("kernels", ["reference", FAST])


def library_of(kernels: str) -> KernelLibrary:
    return fast() if kernels != "reference" else Reference(np.float64)


def check_alone(made: Execution) -> None:
    """The gradients are those of the same calls on memory that nobody shares."""
    made.forward()
    gradients = made.backward()
    alone = run_without_sharing(made)[1]
    for segment in made.program.model:
        values = np.empty(segment.spec.shape, made.program.model.dtype)
        segment.storage.unpack(alone[segment.name].reshape(-1), values)
        np.testing.assert_array_equal(gradients[segment.name], values, err_msg=segment.name)


@BOTH
def test_the_gradient_of_a_sum_is_that_of_its_terms(kernels: str) -> None:
    head, total = inner_product("ip1", 5), node("sum", ElementWiseOp(coefficients=(1.0, 1.0, 2.0)))
    for number, mode in enumerate(("tanh", "sigmoid", "clipped")):
        chain(head, relu(f"relu{number}", mode=mode), total)
    chain(total, *classifier())
    made, _ = executed(head, (4, 6), library_of(kernels))
    assert set(elided(made.program)) == {"sum.gradient0", "sum.gradient1"}
    places = [made.program.outputs[v.order].offset for v in made.program.graph if v.name.startswith("sum.gradient")]
    assert places[0] == places[1] != places[2]
    check_alone(made)


@BOTH
def test_a_chain_of_names_for_one_value(kernels: str) -> None:
    """Three names, read under each of them, and what reads it might write over it."""
    head, ahead, total = inner_product("ip1", 5), relu("tanh", mode="tanh"), node("sum", ElementWiseOp())
    names = [node(f"noop{number}", Noop()) for number in range(3)]
    chain(head, ahead, *names, total)
    chain(names[0], relu("relu0", negative_slope=0.5), total)
    chain(names[1], relu("relu1", mode="sigmoid"), total)
    chain(ahead, relu("relu2", mode="clipped"), total)
    chain(total, *classifier())
    made, loss = executed(head, (4, 6), library_of(kernels))
    assert {"noop0", "noop1", "noop2"} <= set(elided(made.program))
    offsets = {made.program.outputs[v.order].offset for v in made.program.graph if v.name.startswith(("noop0", "tanh"))}
    assert made.program.outputs[1].offset in offsets
    reference, expected = executed(head, (4, 6), Reference(np.float64))
    assert loss == pytest.approx(expected, rel=1e-5)
    compare(made.backward(), reference.backward(), 1e-5)
    check_alone(made)


@BOTH
@pytest.mark.parametrize("name_first", [True, False])
def test_a_value_and_its_other_name_in_one_sum(name_first: bool, kernels: str) -> None:
    """½ x + 2 x: in place on x, the second term would be that of ½ x, whatever it is called."""
    head, again, total = (
        inner_product("ip1", 5),
        node("again", Noop()),
        node("sum", ElementWiseOp(coefficients=(0.5, 2.0))),
    )
    chain(head, again)
    for source in (again, head) if name_first else (head, again):
        chain(source, total)
    chain(total, *classifier())
    made, _ = executed(head, (4, 6), library_of(kernels), phase=Phase.CHECK)
    assert elided(made.program).keys() == {"again"}
    weights = made.program.model.export(made.weights)
    x = draw(4, 6) @ weights["ip1.weights"].T + weights["ip1.bias"]
    np.testing.assert_allclose(outputs(made)["sum"], 2.5 * x, rtol=1e-5, atol=1e-6)
    p = np.exp(2.5 * x @ weights["ip.weights"].T + weights["ip.bias"])
    p /= p.sum(axis=1, keepdims=True)
    assert made.forward() == pytest.approx(-np.log(p[np.arange(4), draw_labels(4, 3)]).mean(), rel=1e-5)


@BOTH
def test_a_name_for_the_batch(kernels: str) -> None:
    """A gradient needs the batch under its other name, behind a ReLU that may be in place."""
    head, total = node("noop", Noop()), node("sum", ElementWiseOp())
    chain(head, relu("relu", mode="tanh"), inner_product("ip1", 5), total)
    chain(head, inner_product("ip2", 5), total, *classifier())
    made, _ = executed(head, (4, 6), library_of(kernels))
    assert "noop" in elided(made.program)
    batch = made.program.steps[0].places["input"]
    assert made.program.outputs[0] == batch
    check_alone(made)
    made.forward()
    np.testing.assert_array_equal(made.output("noop"), draw(4, 6).astype(made.images.dtype))


@BOTH
@pytest.mark.parametrize("loose_first", [True, False])
def test_a_name_for_what_is_read_when_the_task_has_ended(loose_first: bool, kernels: str) -> None:
    head, loose, ahead = inner_product("ip1", 5), node("loose", Noop()), relu(mode="tanh")
    for other in (loose, ahead) if loose_first else (ahead, loose):
        chain(head, other)
    chain(ahead, *classifier())
    made, _ = executed(head, (4, 6), library_of(kernels))
    assert "loose" in elided(made.program)
    weights = made.program.model.export(made.weights)
    expected = draw(4, 6) @ weights["ip1.weights"].T + weights["ip1.bias"]
    made.backward()
    np.testing.assert_allclose(made.output("loose"), expected, rtol=1e-5, atol=1e-6)


@BOTH
def test_a_loss_under_another_name(kernels: str) -> None:
    """Two names of the probabilities: one for the loss, one for nobody."""
    head = inner_product("ip1", 3)
    softmax, again = node("softmax", SoftMax()), node("again", Noop())
    chain(head, softmax, node("loss", SoftMaxLoss()))
    chain(softmax, again)
    made, _ = executed(head, (4, 6), library_of(kernels))
    before = made.output("again").copy()
    np.testing.assert_allclose(before.sum(axis=1), 1, rtol=1e-6)
    check_alone(made)
    np.testing.assert_array_equal(made.output("again"), before)


@BOTH
@pytest.mark.parametrize(("size", "same"), [(9, True), (3, False)])
def test_images_as_a_matrix(size: int, same: bool, kernels: str) -> None:
    """In one place where their order is that of the matrix: behind a global pooling, or where all order is logical."""
    pool = node("pool", Pool(method="average", kernel_size=size, stride=size))
    head = chain(convolution("conv", 5, 3, padding=1), pool, node("flatten", Flatten()), *classifier())
    made, loss = executed(head, IMAGES, library_of(kernels))
    expected = {"flatten", "flatten.gradient"} if same or kernels == "reference" else set()
    assert set(elided(made.program)) == expected
    reference, value = executed(head, IMAGES, Reference(np.float64))
    assert loss == pytest.approx(value, rel=1e-5)
    compare(made.backward(), reference.backward(), 1e-5)
    check_alone(made)


@BOTH
def test_names_between_a_pooling_and_what_is_before_it(kernels: str) -> None:
    """Noops around the activation and the pooling: their gradients are elsewhere, yet every number is right."""
    head = chain(
        convolution("conv", 5, 3, padding=1),
        node("noop1", Noop()),
        relu(mode="sigmoid"),
        biggest(),
        node("noop2", Noop()),
        relu("relu2"),
        *classifier(),
    )
    made, loss = executed(head, IMAGES, library_of(kernels))
    assert {"noop1", "noop2", "relu.gradient"} <= set(elided(made.program))
    reference, value = executed(head, IMAGES, Reference(np.float64))
    assert loss == pytest.approx(value, rel=1e-5)
    compare(made.backward(), reference.backward(), 1e-5)
    check_alone(made)
