"""Ranges for NVIDIA's profilers."""

from __future__ import annotations

import pytest

from crossbow import ConfigurationError, ExecutionContext, SystemConf, TrainingUnit
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda.test_training import context
from tests.support import blobs, perceptron


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [True, False])
def test_tasks_and_operators_are_ranges(graphs: bool) -> None:
    with fake_cuda() as cuda, context("cuda:0", system={"nvtx": True, "graphs": graphs}) as running:
        running.train(8, TrainingUnit.TASKS)
        first = len(cuda.nvtx.names)
        running.train(4, TrainingUnit.TASKS)
        later = cuda.nvtx.names[first:]
    assert cuda.nvtx.depth == 0
    tasks = sorted(name for depth, name in later if depth == 0)
    assert tasks == [
        "end of tick 4", "end of tick 5",
        "learner 0, task 10", "learner 0, task 8", "learner 1, task 11", "learner 1, task 9",
    ]  # fmt: skip
    operators = {name for depth, names in later if depth == 1 for name in names.split(", ")}
    if graphs:
        assert operators <= {"average", "optimiser", "statistics"}  # works of one or two kernels
    else:
        assert {"batch", "average", "optimiser"} <= operators


@pytest.mark.slow
def test_without_the_option_nothing_is_named() -> None:
    with fake_cuda() as cuda, context("cuda:0") as running:
        running.train(4, TrainingUnit.TASKS)
    assert cuda.nvtx.names == []


def test_a_cpu_has_no_ranges() -> None:
    with pytest.raises(ConfigurationError, match="nvtx must be False on the CPU"):
        ExecutionContext([perceptron(), None], data=blobs(), system=SystemConf(nvtx=True))
