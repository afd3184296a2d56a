"""Weight gradients in blocks, each used at once, against the whole gradient followed by the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    ModelConf,
    Operator,
    SolverConf,
    SubGraph,
    SystemConf,
    TrainingUnit,
)
from crossbow.compile.program import Program
from crossbow.kernels import why_not_onednn
from crossbow.ops import InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.runtime.arithmetic import overlapping, without
from tests.combinations import one_in
from tests.support import same_weights

pytestmark = pytest.mark.skipif(why_not_onednn() is not None, reason=f"no fast kernels: {why_not_onednn()}")

WIDE = 768
"""768 × 768 weights are more than a megabyte: the kernels offer their gradient in blocks."""


PLAIN = SolverConf(learning_rate=0.01, momentum=0.9, weight_decay=0.001)
LOOKING_AHEAD = dataclasses.replace(PLAIN, momentum_method="nesterov", regularisation="l1")
ADAM = SolverConf(method="adam", weight_decay=0.001, epsilon=0.01)


def network(multiplier: float = 1.0) -> Dataflow:
    head = DataflowNode(Operator("first", InnerProduct(number_of_outputs=WIDE)))
    node = head.connect_to(DataflowNode(Operator("relu", ReLU())))
    second = InnerProduct(number_of_outputs=WIDE, weight_learning_rate_multiplier=multiplier)
    node = node.connect_to(DataflowNode(Operator("second", second)))
    node = node.connect_to(DataflowNode(Operator("third", InnerProduct(number_of_outputs=4))))
    node.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(
        DataflowNode(Operator("loss", SoftMaxLoss()))
    )
    return Dataflow(SubGraph(head))


def with_a_shared_operator() -> Dataflow:
    """Its second layer stands twice."""
    shared = Operator("shared", InnerProduct(number_of_outputs=WIDE))
    nodes = [DataflowNode(Operator("first", InnerProduct(number_of_outputs=WIDE)))]
    for node in (
        DataflowNode(shared),
        DataflowNode(Operator("relu", ReLU())),
        DataflowNode(shared),
        DataflowNode(Operator("last", InnerProduct(number_of_outputs=4))),
        DataflowNode(Operator("softmax", SoftMax())),
        DataflowNode(Operator("loss", SoftMaxLoss())),
    ):
        nodes.append(nodes[-1].connect_to(node))
    return Dataflow(SubGraph(nodes[0]))


def trained(
    rule: SMA,
    solver: SolverConf,
    multiplier: float,
    *,
    in_blocks: bool,
    monkeypatch: pytest.MonkeyPatch,
    expected: bool | None = None,
    build: Callable[[float], Dataflow] = network,
) -> dict[str, Any]:
    """The variables after some ticks. expected: whether there are blocks, where that is not what is allowed."""
    whole = Program.bind
    found = []

    def bind(self: Program, *given: Any, in_blocks: bool = False, allowed: bool = in_blocks, **how: Any) -> Any:
        parts = whole(self, *given, in_blocks=in_blocks and allowed, **how)
        found.extend(parts.blocks)
        return parts

    generator = np.random.default_rng(0)
    data = Dataset((generator.normal(size=(64, WIDE)).astype(np.float32), generator.integers(0, 4, 64)))
    with monkeypatch.context() as patch:
        patch.setattr(Program, "bind", bind)
        with ExecutionContext(
            [build(multiplier)],
            data=data,
            model=ModelConf(batch_size=8, rule=rule),
            solver=solver,
            system=SystemConf(learners_per_device=2),
        ) as context:
            context.train(24, TrainingUnit.TASKS)
            assert bool(found) == (in_blocks if expected is None else expected)
            return context.variables


@pytest.mark.slow
@one_in(5)
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3)], ids=str)
@pytest.mark.parametrize("solver", [PLAIN, LOOKING_AHEAD, ADAM], ids=["plain", "nesterov-l1", "adam"])
@pytest.mark.parametrize("multiplier", [1.0, 0.25])
def test_blocks_give_the_weights_that_the_whole_gradient_gives(
    rule: SMA, solver: SolverConf, multiplier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = trained(rule, solver, multiplier, in_blocks=True, monkeypatch=monkeypatch)
    whole = trained(rule, solver, multiplier, in_blocks=False, monkeypatch=monkeypatch)
    for name, value in whole.items():
        np.testing.assert_allclose(blocks[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_gradient_that_is_a_sum_is_there_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a shared operator's; that of the layer before it comes in blocks."""

    def build(multiplier: float) -> Dataflow:
        return with_a_shared_operator()

    blocks = trained(SMA(), PLAIN, 1.0, in_blocks=True, monkeypatch=monkeypatch, build=build)
    whole = trained(SMA(), PLAIN, 1.0, in_blocks=False, monkeypatch=monkeypatch, build=build)
    for name, value in whole.items():
        np.testing.assert_allclose(blocks[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_gradient_that_is_clipped_is_there_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm has to be known before the first block is used."""
    clipping = dataclasses.replace(PLAIN, clip_gradient_norm=1e9)
    clipped = trained(SMA(), clipping, 1.0, in_blocks=True, monkeypatch=monkeypatch, expected=False)
    whole = trained(SMA(), PLAIN, 1.0, in_blocks=False, monkeypatch=monkeypatch)
    assert same_weights(clipped, whole)


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ([], [slice(0, 10)]),
        ([slice(0, 10)], []),
        ([slice(0, 4)], [slice(4, 10)]),
        ([slice(4, 10)], [slice(0, 4)]),
        ([slice(3, 5)], [slice(0, 3), slice(5, 10)]),
        ([slice(10, 12)], [slice(0, 10)]),
        ([slice(1, 3), slice(3, 4), slice(6, 10)], [slice(0, 1), slice(4, 6)]),
    ],
)
def test_a_range_without_some_parts(parts: list[slice], left: list[slice]) -> None:
    assert without(slice(0, 10), parts) == left


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (slice(0, 20), [slice(0, 4), slice(4, 8), slice(10, 12)]),
        (slice(3, 5), [slice(0, 4), slice(4, 8)]),
        (slice(4, 8), [slice(4, 8)]),
        (slice(8, 10), []),
        (slice(11, 12), [slice(10, 12)]),
    ],
)
def test_the_ranges_that_overlap_a_place(place: slice, found: list[slice]) -> None:
    """One that is empty does not."""
    ranges = [slice(0, 4), slice(4, 4), slice(4, 8), slice(10, 12)]
    assert overlapping(ranges, place, lambda each: each) == found
