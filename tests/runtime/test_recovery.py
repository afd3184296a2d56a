"""Restarts of learners from the base model, after a failure too."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import SMA, SSGD, SolverConf, TrainingUnit
from tests.runtime.test_engine import logistic


@pytest.mark.parametrize("devices", ["cpu", "cpu:0/2,cpu:1/2"])
@pytest.mark.parametrize("rule", [SMA(base_momentum=0.5), SSGD()], ids=["sma", "ssgd"])
def test_a_restart_sets_replicas_to_z_and_velocities_to_zero(
    rule: Any, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = SolverConf(learning_rate=0.1, policy="step", gamma=0.1, step_size=12, momentum=0.9)
    seen = []
    with logistic(rule=rule, devices=devices, solver=solver) as running:
        engine, parts = running.engine, running.engine.parts
        restart = engine.recovery.restart

        def check() -> None:
            z = parts.bases[0].current(engine.tick).copy()
            restart()
            seen.append(engine.tick)
            assert z.any()
            for base in parts.bases:
                assert all((buffer == z).all() for buffer in base.buffers)
                assert base.velocity is None or not base.velocity.any()
            for member in running.engine.members:
                assert member.replica.weights is None or (member.replica.weights == z).all()
                assert member.replica.velocity is None or not member.replica.velocity.any()

        monkeypatch.setattr(engine.recovery, "restart", check)
        k = len(running.engine.members)
        running.train(40, TrainingUnit.TASKS)
        assert seen == [-(-drop // k) for drop in (12, 24, 36)]
