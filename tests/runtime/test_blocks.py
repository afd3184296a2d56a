"""Weight gradients in blocks, each used at once, against the whole gradient followed by the step."""

from __future__ import annotations

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
from crossbow.runtime.tick import _without

pytestmark = pytest.mark.skipif(why_not_onednn() is not None, reason=f"no fast kernels: {why_not_onednn()}")

WIDE = 768
"""768 × 768 weights are more than a megabyte: the kernels offer their gradient in blocks."""


def network() -> Dataflow:
    head = DataflowNode(Operator("first", InnerProduct(number_of_outputs=WIDE)))
    node = head.connect_to(DataflowNode(Operator("relu", ReLU())))
    node = node.connect_to(DataflowNode(Operator("second", InnerProduct(number_of_outputs=WIDE))))
    node = node.connect_to(DataflowNode(Operator("third", InnerProduct(number_of_outputs=4))))
    node.connect_to(DataflowNode(Operator("softmax", SoftMax()))).connect_to(
        DataflowNode(Operator("loss", SoftMaxLoss()))
    )
    return Dataflow(SubGraph(head))


def trained(rule: SMA, *, in_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    whole = Program.bind
    found = []

    def bind(self: Program, memory: Any, *, in_blocks: bool = False, allowed: bool = in_blocks) -> Any:
        parts = whole(self, memory, in_blocks=in_blocks and allowed)
        found.extend(parts.blocks)
        return parts

    generator = np.random.default_rng(0)
    data = Dataset((generator.normal(size=(64, WIDE)).astype(np.float32), generator.integers(0, 4, 64)))
    with monkeypatch.context() as patch:
        patch.setattr(Program, "bind", bind)
        with ExecutionContext(
            [network()],
            data=data,
            model=ModelConf(batch_size=8, rule=rule),
            solver=SolverConf(learning_rate=0.01, momentum=0.9, weight_decay=0.001),
            system=SystemConf(learners_per_device=2),
        ) as context:
            context.train(24, TrainingUnit.TASKS)
            assert bool(found) == in_blocks
            return context.variables


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3)], ids=str)
def test_blocks_give_the_weights_that_the_whole_gradient_gives(rule: SMA, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = trained(rule, in_blocks=True, monkeypatch=monkeypatch)
    whole = trained(rule, in_blocks=False, monkeypatch=monkeypatch)
    for name, value in whole.items():
        np.testing.assert_allclose(blocks[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("part", "left"),
    [
        (slice(0, 10), []),
        (slice(0, 4), [slice(4, 10)]),
        (slice(4, 10), [slice(0, 4)]),
        (slice(3, 5), [slice(0, 3), slice(5, 10)]),
        (slice(10, 12), [slice(0, 10)]),
    ],
)
def test_a_range_without_a_part(part: slice, left: list[slice]) -> None:
    assert _without(slice(0, 10), part) == left
