"""Sums that are part of a normalisation's kernel, or of the gradient of a convolution's input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from crossbow import DataflowNode, Phase
from crossbow.compile import Program
from crossbow.compile.fuse import masked_terms, relu_fusions, sum_fusions
from crossbow.dataflow.graph import Graph
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import BatchNormTraining, ConvolutionBackwardData, RequestType, WeightedSum
from crossbow.ops import ElementWiseOp, Pool
from models.resnet import resnet
from tests.combinations import one_in
from tests.compile.execution import compile_network
from tests.compile.test_fuse import classifier, compare, elided, executed, graph_of, norm, relu
from tests.dataflow.networks import convolution, node

IMAGES = (4, 3, 9, 9)
SUMS = (BatchNormTraining, ConvolutionBackwardData)


class Fusing(Reference):
    """The specification, with sums and ReLUs in the kernels before them."""

    fused_relu = frozenset((BatchNormTraining, WeightedSum))
    fused_sum = frozenset(SUMS)


def joined(*terms: DataflowNode, name: str = "sum", **options: object) -> DataflowNode:
    total = node(name, ElementWiseOp(**options))  # type: ignore[arg-type]
    for term in terms:
        term.connect_to(total)
    return total


def unit(*, projection: bool = False, after: bool = True, **options: object) -> DataflowNode:
    """A residual unit between a convolution and a classifier. after: whether a ReLU follows the sum."""
    head = convolution("conv0", 4, 3, padding=1)
    x = _after(head, relu("relu0"))
    shortcut = _after(_after(x, convolution("conv2", 4, 1)), norm("norm2")) if projection else x
    residual = _after(_after(x, convolution("conv1", 4, 3, padding=1)), norm("norm1"))
    total = joined(residual, shortcut, **options)
    last = _after(total, relu("relu1")) if after else total
    for following in classifier():
        last = _after(last, following)
    return head


def _after(x: DataflowNode, following: DataflowNode) -> DataflowNode:
    x.connect_to(following)
    return following


def fused(graph: Graph, fusible: tuple[RequestType, ...] = SUMS, narrow: tuple[int, ...] = ()) -> dict[str, str]:
    """The names of the fused sums, and of the operators that include them."""
    found = sum_fusions(graph, fusible, relu_fusions(graph, (BatchNormTraining, WeightedSum)), narrow)
    return {graph[total].name: graph[producer].name for total, producer in found.items()}


def test_the_later_term_of_a_sum_includes_it_and_a_convolution_adds_gradients() -> None:
    assert fused(graph_of(unit())) == {"sum": "norm1", "relu0.gradient_sum": "conv1.gradient"}
    assert fused(graph_of(unit()), (BatchNormTraining,)) == {"sum": "norm1"}
    assert fused(graph_of(unit()), (ConvolutionBackwardData,)) == {"relu0.gradient_sum": "conv1.gradient"}
    both = fused(graph_of(unit(projection=True)))
    assert set(both) == {"sum", "relu0.gradient_sum"}
    for phase in (Phase.CHECK, Phase.TRAIN):
        assert "sum" in fused(graph_of(unit(after=False), phase))


def test_the_gradient_of_the_other_term_is_written_by_the_normalisation() -> None:
    graph = graph_of(unit())
    relus = relu_fusions(graph, (BatchNormTraining, WeightedSum))
    masked = masked_terms(graph, sum_fusions(graph, SUMS, relus, ()), relus)
    assert {graph[norm].name: graph[term].name for norm, term in masked.items()} == {"norm1": "sum.gradient1"}
    graph = graph_of(unit(after=False))
    assert masked_terms(graph, sum_fusions(graph, SUMS, {}, ()), {}) == {}


def read_twice() -> DataflowNode:
    """The normalisation's output is also pooled."""
    head = convolution("conv0", 4, 3, padding=1)
    first = _after(head, norm("norm0"))
    second = _after(_after(first, convolution("conv1", 4, 3, padding=1)), norm("norm1"))
    other = _after(second, node("pool", Pool(method="max", kernel_size=3, stride=1, padding=1)))
    last = joined(joined(second, first), other, name="total")
    for following in classifier():
        last = _after(last, following)
    return head


def not_last() -> DataflowNode:
    """The later term is a pooling."""
    head = convolution("conv0", 4, 3, padding=1)
    first = _after(head, norm("norm0"))
    pooled = _after(_after(head, relu("relu0")), node("pool", Pool(method="max", kernel_size=3, stride=1, padding=1)))
    last = joined(first, pooled)
    for following in classifier():
        last = _after(last, following)
    return head


@pytest.mark.parametrize("network", [read_twice, not_last])
def test_these_sums_stay_apart(network: Callable[[], DataflowNode]) -> None:
    assert "sum" not in fused(graph_of(network()))


def test_sums_of_one_or_three_terms_stay_apart() -> None:
    for terms in (1, 3):
        head = convolution("conv0", 4, 3, padding=1)
        last = _after(head, norm("norm1"))
        total = joined(*[last] * (terms > 1), *[head] * (terms - 1), *[last] * (terms == 1))
        for following in classifier():
            total = _after(total, following)
        assert fused(graph_of(head), (BatchNormTraining,)) == {}


def test_sums_with_coefficients_and_of_two_types_stay_apart() -> None:
    assert "sum" not in fused(graph_of(unit(coefficients=(1.0, 2.0))))
    assert fused(graph_of(unit(coefficients=(1.0, 1.0))))["sum"] == "norm1"
    graph = graph_of(unit())
    for name in ("norm1", "sum", "relu0"):
        narrow = next(vertex.order for vertex in graph if vertex.name == name)
        assert "sum" not in fused(graph, narrow=(narrow,))


def test_a_term_that_is_not_trained_stays_apart_where_a_relu_follows() -> None:
    """Its gradient is not needed, so the normalisation's kernel would have nowhere to write it."""
    head = node("pool", Pool(method="max", kernel_size=3, stride=1, padding=1))
    total = joined(_after(_after(head, convolution("conv", 3, 1)), norm("norm1")), head)
    last = _after(total, relu("relu1"))
    for following in classifier():
        last = _after(last, following)
    assert fused(graph_of(head)) == {}


NETWORKS: dict[str, tuple[Callable[[], DataflowNode], int]] = {
    "identity": (unit, 2),
    "projection": (lambda: unit(projection=True), 2),
    "no ReLU": (lambda: unit(after=False), 2),
    "read twice": (read_twice, 1),
    "resnet": (lambda: resnet(20, shortcut="projection").subgraph.nodes[0], 9 + 9),
    "resnet with identity": (lambda: resnet(20).subgraph.nodes[0], 7 + 9),
    "resnet version 2": (lambda: resnet(20, version=2).subgraph.nodes[0], 3),
}


@one_in(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if "with" in n else ()) for n in NETWORKS])
def test_fusing_sums_changes_no_bit(name: str) -> None:
    network, sums = NETWORKS[name]
    for phase in (Phase.TRAIN, Phase.CHECK):
        made, loss = executed(network(), IMAGES, Fusing(np.float64), phase=phase)
        apart, expected = executed(network(), IMAGES, Reference(np.float64), phase=phase)
        assert loss == expected
        if phase is Phase.TRAIN:
            assert len(sums_of(made.program)) == sums
            compare(made.backward(), apart.backward(), 0)
            np.testing.assert_array_equal(made.observed, apart.observed)


def sums_of(program: Program) -> list[str]:
    """The sums that other kernels include."""
    return [name for name in elided(program) if name.endswith("sum")]


def test_a_residual_needs_no_memory_for_the_sum_of_its_gradients() -> None:
    """The convolution adds to the gradient of the sum, where that is."""
    program = compile_network(unit(), IMAGES, library=Fusing(np.float64))
    steps = {step.operator: step for step in program.steps if not step.elided}
    masked, total = steps["norm1.gradient"].places, steps["conv1.gradient"].places
    assert str(masked["addend_gradient"]) == str(total["addend"])
    assert str(total["addend"]) == str(total["input_gradient"])
    assert "convolution_backward_data sum reference" in program.describe()
    assert "batch_norm_training sum relu reference" in program.describe()


def test_sums_stay_apart_where_numbers_are_checked() -> None:
    program = compile_network(unit(), IMAGES, library=Fusing(np.float64), check_numerics=True)
    assert sums_of(program) == []
