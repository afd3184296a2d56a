"""What checkpoints cost, with short turns."""

from __future__ import annotations

import pytest

from benchmarks import checkpoints
from benchmarks.checkpoints import main, rates


@pytest.mark.slow
def test_both_train_in_every_turn() -> None:
    with_them, without = rates("lenet-original", batch=8, interval=0.02, seconds=0.05, rounds=2)
    assert len(with_them) == len(without) == 2
    assert min(*with_them, *without) > 0


@pytest.mark.parametrize(("slower", "status"), [(0.97, 1), (0.99, 0)])
def test_the_target(
    slower: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoints, "rates", lambda *arguments: ([100 * slower] * 3, [100.0] * 3))
    assert main(["--networks", "lenet-original"]) == status
    assert f"{slower:.3f}" in capsys.readouterr().out
