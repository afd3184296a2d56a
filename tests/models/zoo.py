"""What can be known of a model without running it, and how it trains on a few small images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from crossbow import Dataflow, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.data import synthetic
from crossbow.dataflow.derive import derive_check
from crossbow.dataflow.graph import build
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.ops import Kernel
from crossbow.scripts.model_script import ModelScript
from crossbow.types import Phase, Shape
from tests.support import NEEDS_ONEDNN

NEEDS_FAST = NEEDS_ONEDNN


def kernels(dataflow: Dataflow) -> dict[str, Kernel]:
    """The operators that the builder placed, in order, by name."""
    found = {node.operator.name: node.operator.kernel for node in dataflow.subgraph.nodes}
    assert len(found) == len(dataflow.subgraph.nodes), "two operators have one name"
    return found  # type: ignore[return-value]


def shapes(dataflow: Dataflow, batch: Shape) -> dict[str, Shape]:
    """The output of every node, gradients included, by name."""
    graph = dataflow.graph
    return {
        vertex.name: shape for vertex, shape in zip(graph, infer_shapes(graph, batch, phase=Phase.TRAIN), strict=True)
    }


def parameters(dataflow: Dataflow, batch: Shape) -> int:
    graph = dataflow.graph
    specs = variables_of(graph, batch, infer_shapes(graph, batch))
    return sum(math.prod(spec.shape) for variables in specs.values() for spec in variables)


def check_kernels(dataflow: Dataflow) -> list[Kernel]:
    """The operators of the derived check dataflow."""
    return [vertex.kernel for vertex in derive_check(build(dataflow.subgraph.nodes))]  # type: ignore[misc]


def check_learning(dataflow: Dataflow, image: Shape, *, learning_rate: float, epochs: int) -> None:
    """Training on a few images of two classes lowers the loss: at least once in the last three epochs, as a few tasks
    with Dropout go up and down."""
    data = synthetic(image, 2, training=16, check=8)
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=8),
        solver=SolverConf(learning_rate=learning_rate, momentum=0.9),
        system=SystemConf(learners_per_device=2, threads_per_learner=1),
    ) as context:
        records = context.train(epochs).records
    assert min(record.loss for record in records[-3:]) < 0.7 * records[0].loss


def python_calls(dataflow: Dataflow, image: Shape) -> list[str]:
    """What of a learner's tasks does not run as one native call on the fast kernels: nothing, it is hoped."""
    with ExecutionContext(
        [dataflow, None],
        data=synthetic(image, 2, training=16, check=8),
        model=ModelConf(batch_size=8),
        solver=SolverConf(momentum=0.9, weight_decay=1e-4),
        system=SystemConf(learners_per_device=2, threads_per_learner=1, kernels="onednn"),
    ) as context:
        tasks = context.engine.members[0].learner.tasks
        assert tasks
        return [
            f"{purpose}: {task.calls.native_calls} of {len(task.calls.calls)} calls are native"
            for (purpose, _), task in tasks.items()
            if task.calls.native_calls < len(task.calls.calls)
        ]


def help_of(script: ModelScript, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What `--help` prints, in one line."""
    with pytest.raises(SystemExit) as end:
        script.main([*arguments, "--help"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())
