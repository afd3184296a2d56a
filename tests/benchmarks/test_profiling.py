"""What a timeline costs, with short turns."""

from __future__ import annotations

import pytest

from benchmarks import profiling
from benchmarks.profiling import main, rates


@pytest.mark.slow
def test_both_train_in_every_turn() -> None:
    recorded, plain = rates("lenet-original", batch=8, seconds=0.05, rounds=2)
    assert len(recorded) == len(plain) == 2
    assert min(*recorded, *plain) > 0


@pytest.mark.parametrize(("slower", "status"), [(0.94, 1), (0.96, 0)])
def test_the_target(
    slower: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiling, "rates", lambda *arguments: ([100 * slower] * 3, [100.0] * 3))
    assert main(["--networks", "lenet-original"]) == status
    assert f"{slower:.3f}" in capsys.readouterr().out
