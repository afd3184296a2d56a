"""The tick of a GPU's learners, in whatever order streams run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    Profile,
    TrainingUnit,
)
from crossbow.runtime.cuda.work import Work
from crossbow.synch import ModelAveraging, PolyakRuppert
from crossbow.types import NonFiniteLossError
from tests.combinations import one_in
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda.test_training import TICKS, assert_same, context, train
from tests.support import engine_of
from tests.timeline.test_timeline import check_nesting


@pytest.mark.slow
@one_in(3)
@pytest.mark.parametrize(
    "rule",
    [
        SMA(tau=2),
        SSGD(),
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in (SMA(), ModelAveraging(), PolyakRuppert(alpha=0.2))),
    ],
    ids=str,
)
def test_graphs_and_the_order_of_streams_change_no_bit(rule: Any) -> None:
    runs = [
        train("cuda:0", rule=rule, seed=seed, system={"graphs": graphs}) for seed in (0, 1) for graphs in (True, False)
    ]
    for other in runs[1:]:
        for name, value in runs[0].items():
            np.testing.assert_array_equal(other[name], value)


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize(
    ("rule", "tasks", "end", "after"),
    [
        (SMA(), {"synchronise"}, ["wait merged", "optimiser"], None),
        (SMA(tau=2), {"synchronise", "local"}, ["wait merged", "optimiser"], None),
        (SSGD(), {"synchronise"}, [], []),
        (ModelAveraging(), {"synchronise"}, ["optimiser"], ["reply"]),
    ],
)
def test_a_learner_has_the_steps_of_its_rule(
    rule: Any, tasks: set[str], end: list[str], after: list[str] | None
) -> None:
    """Of both parities; and tasks for both input buffers. end: of a synchronising task, besides the backward pass.
    after: what follows the merge, unless it is in the task."""
    with fake_cuda(), context("cuda:0", rule=rule) as running:
        learner: Any = engine_of(running).coordination.learners[0]
        purposes = {*tasks, "check"}
        assert set(learner.tasks) == {(p, parity, buffer) for p in purposes for parity in (0, 1) for buffer in (0, 1)}
        assert {parity: operators(step) for parity, step in learner.steps.items()} == (
            {} if after is None else {0: after, 1: after}
        )
        found = operators(learner.tasks["synchronise", 0, 0].compute)
        assert [name for name in found if name in ("wait merged", "optimiser")] == end
        assert found[len(found) - len(end) :] == end
        if "local" in tasks:
            assert "optimiser" in operators(learner.tasks["local", 1, 0].compute)


def operators(work: Work) -> list[str]:
    return [step.operator for step in work.steps]


ALONE: dict[str, dict[str, Any]] = {
    "SMA": {"rule": SMA(base_momentum=0.5)},
    "SMA, every second task": {"rule": SMA(tau=2)},
    "S-SGD, clipped": {"rule": SSGD(), "clip_gradient_norm": 0.1},
    "model averaging": {"rule": ModelAveraging()},
    "a rate that changes every task": {"policy": "inv", "gamma": 0.1, "power": 0.7},
}


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("name", ALONE)
def test_a_learner_alone_has_the_weights_of_the_cpu(name: str) -> None:
    options = {"learners": 1, "tasks": TICKS, **ALONE[name]}
    assert_same(train("cuda:0", **options), train("cpu", **options))


@pytest.mark.slow
@one_in(2)
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), SSGD(), ModelAveraging()], ids=str)
def test_a_learner_alone_merges_in_its_task(rule: Any) -> None:
    """All of a task is one graph, and no stream waits for another. The numbers of coefficients are copied once."""
    with fake_cuda() as cuda, context("cuda:0", rule=rule, learners=1) as running:
        running.train(TICKS, TrainingUnit.TASKS)
        coordination: Any = engine_of(running).coordination
        (learner,) = coordination.learners
        assert coordination.synchroniser.devices == []
        assert learner.steps == {}
        assert "average" in operators(learner.tasks["synchronise", 0, 0].compute)
        counts = cuda.runtime.counts
        before = dict(counts)
        running.train(TICKS, TrainingUnit.TASKS)
        made = {name: counts[name] - before.get(name, 0) for name in counts if counts[name] != before.get(name, 0)}
        assert made["graphLaunch"] == made["memcpyAsync"]
        assert "linear_combination" not in made


@pytest.mark.slow
def test_a_learner_alone_restarts_from_z_after_a_failure() -> None:
    with fake_cuda(), context("cuda:0", learners=1, learning_rate=1e30) as running:
        with pytest.raises(NonFiniteLossError):
            running.train(12, TrainingUnit.TASKS)
        assert all(np.isfinite(value).all() for value in running.variables.values())


@pytest.mark.slow
def test_a_run_of_a_learner_alone_is_recorded(tmp_path: Path) -> None:
    """Its tasks contain the merge, so there is no synchroniser's track."""
    profile = Profile(tmp_path / "trace.json.gz", tasks=6, warm_up=6)
    with fake_cuda(), context("cuda:0", learners=1, profile=profile) as running:
        running.train(2 * TICKS, TrainingUnit.TASKS)
        made, variables = running.timeline, running.variables
    assert made is not None
    check_nesting(made)
    assert not [span.track for span in made.spans if span.track.startswith("synchroniser")]
    assert {"average", "optimiser"} <= {span.name for span in made.spans if span.track == "learner 0"}
    assert_same(variables, train("cuda:0", learners=1), 0)


@pytest.mark.slow
def test_learners_that_compute_with_z_read_the_buffer_of_the_tick() -> None:
    """S-SGD: what odd ticks read is the second buffer."""
    assert_same(train("cuda:0", rule=SSGD(), tasks=6), train("cpu", rule=SSGD(), tasks=6))
