"""A learner's programs share one arena, and each reads its own batches."""

from __future__ import annotations

from typing import Any

from crossbow.ops import BatchNorm, InnerProduct
from crossbow.runtime.cpu.memory import CpuLearnerMemory
from tests.support import context, engine_of, training


def test_the_memory_of_a_program() -> None:
    with context(training(InnerProduct(number_of_outputs=3), BatchNorm())) as running:
        parts: Any = engine_of(running).parts
        replica, base = parts.replicas[0], parts.bases[0]
        memory = CpuLearnerMemory(parts)
        trained = memory.of(parts.training, replica.weights, replica.gradient, replica.statistics)
        checked = memory.of(parts.check, base.buffers[1], replica.gradient, base.statistics)
        assert trained.arena is checked.arena is memory.arena
        assert memory.arena.nbytes >= max(parts.program.plan.arena, parts.check.program.plan.arena)
        for found, pipeline, weights, statistics in (
            (trained, parts.training, replica.weights, replica.statistics),
            (checked, parts.check, base.buffers[1], base.statistics),
        ):
            assert found.vectors["weights"] is weights
            assert found.vectors["gradient"] is replica.gradient
            assert found.vectors["statistics"] is statistics[0]
            assert found.vectors["statistics_next"] is statistics[1]
            assert found.named["state"] is memory.state
            assert found.named["slots"] is pipeline.loader.images
            assert found.named["slot_labels"] is pipeline.loader.labels
            assert found.named["slot_positions"] is pipeline.loader.positions


def test_learners_do_not_share_their_memory() -> None:
    with context() as running:
        parts = engine_of(running).parts
        first, second = CpuLearnerMemory(parts), CpuLearnerMemory(parts)
        assert first.arena is not second.arena
        assert first.state is not second.state
        assert not first.arena.any()
