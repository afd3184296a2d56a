"""A task on a CPU: its calls in order, and where loss and accuracy are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.compile import BoundStep
from crossbow.compile.program import Parts, Program
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.runtime.cpu.memory import CpuLearnerMemory
from crossbow.runtime.cpu.work import bound_task, task_list
from tests.support import context, engine_of, training


def test_calls_are_made_in_order() -> None:
    done: list[int] = []
    calls = task_list([BoundStep(f"operator{i}", lambda i=i: done.append(i)) for i in range(4)])  # type: ignore[misc]
    calls.run()
    assert done == [0, 1, 2, 3]
    assert list(calls.names) == [f"operator{i}" for i in range(4)]
    assert calls.failed is None


def test_the_operator_that_fails_is_named_and_what_follows_is_left_out() -> None:
    done: list[str] = []

    def fail() -> None:
        raise KeyError("what")

    calls = task_list(
        [
            BoundStep("first", lambda: done.append("first")),
            BoundStep("broken", fail),
            BoundStep("last", lambda: done.append("last")),
        ]
    )
    with pytest.raises(KeyError):
        calls.run()
    assert (calls.failed, done) == ("broken", ["first"])


def test_loss_and_accuracy_are_where_the_program_writes_them() -> None:
    with context() as running:
        parts: Any = engine_of(running).parts
        for pipeline, measured in ((parts.training, False), (parts.check, True)):
            memory = CpuLearnerMemory(parts)
            replica = parts.replicas[0]
            bound = memory.of(pipeline, replica.weights, replica.gradient, replica.statistics)
            task = bound_task(pipeline, bound, [])
            assert task.loss is not None
            assert task.loss.shape == (1,)
            assert np.shares_memory(task.loss, memory.arena)
            assert (task.accuracy is not None) == measured
            assert task.release == pipeline.loader.release


def test_the_tasks_of_both_parities_share_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under SMA a learner without running statistics trains on the same buffers in both."""
    made: list[Parts] = []
    bind = Program.bind

    def observed(self: Program, *given: Any, **how: Any) -> Parts:
        made.append(bind(self, *given, **how))
        return made[-1]

    monkeypatch.setattr(Program, "bind", observed)
    with context(learners=1):
        first, second = (parts for parts in made if parts.backward)
    pairs = [*zip(first.forward, second.forward, strict=True), *zip(first.backward, second.backward, strict=True)]
    assert pairs
    assert all(one is other for one, other in pairs)


def test_a_task_runs_forward_and_backward() -> None:
    """The gradient of the bias of a last layer is the mean of p − y."""
    network = training(InnerProduct(number_of_outputs=3))
    assert [type(node.operator.kernel) for node in network.subgraph.nodes][1:] == [SoftMax, SoftMaxLoss]
    with context(network, learners=1) as running:
        engine = engine_of(running)
        running.train(1)
        gradient = engine.parts.replicas[0].gradient
        assert np.isfinite(gradient).all()
        assert gradient.any()
