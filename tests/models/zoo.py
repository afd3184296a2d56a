"""What can be known of a model without running it, and how it trains on a few small images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from crossbow import Dataflow, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.data import synthetic
from crossbow.dataflow.derive import derive_check
from crossbow.dataflow.graph import build
from crossbow.dataflow.validate import infer_shapes
from crossbow.onnx import save
from crossbow.ops import Kernel
from crossbow.scripts.model_script import ModelScript
from crossbow.types import Phase, Shape
from tests.onnx.models import run_onnx


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
    return dataflow.parameters(batch)


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


def check_descent(
    dataflow: Dataflow, image: Shape, *, learning_rate: float, tasks: int, fraction: float = 0.8, batch: int = 8
) -> None:
    """Tasks on one and the same batch, of two classes, lower the loss to this fraction or less. Without dropout."""
    with ExecutionContext(
        [dataflow, None],
        data=synthetic(image, 2, training=batch, check=batch),
        model=ModelConf(batch_size=batch),
        solver=SolverConf(learning_rate=learning_rate, momentum=0.9),
        system=SystemConf(learners_per_device=1, threads_per_learner=1),
    ) as context:
        losses = [context.train(1, TrainingUnit.TASKS).loss for _ in range(tasks)]
    assert losses[-1] < fraction * losses[0], losses


def check_export(
    dataflow: Dataflow, image: Shape, directory: Path, *, batch: int = 4, tasks: int = 2, learning_rate: float = 0.001
) -> None:
    """After a few tasks, onnxruntime predicts the same with the saved model, and tells the images apart."""
    data = synthetic(image, 2, training=2 * batch, check=batch)
    assert data.check is not None
    images = np.asarray(data.check.images)
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=batch),
        solver=SolverConf(learning_rate=learning_rate, momentum=0.9),
        system=SystemConf(learners_per_device=1, threads_per_learner=1),
    ) as context:
        history = context.train(tasks, TrainingUnit.TASKS)
        predicted = context.predict(images)
        save(context, directory / "network.onnx")
    assert math.isfinite(history.loss)
    proto = onnx.load(directory / "network.onnx")
    received = run_onnx(proto, input=images.astype(np.float32) / np.float32(255))
    assert np.ptp(predicted, axis=0).max() > 1e-6
    np.testing.assert_allclose(received, predicted, rtol=1e-3, atol=1e-5)


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
