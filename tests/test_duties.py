"""What rank 0 has in a context, and a rank that takes its place. Whole runs are in tests/test_elastic_contexts.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import Checkpoints, History, Monitor
from crossbow.cluster.failure import LOST
from crossbow.duties import Duties
from crossbow.runtime.checkpointing import CheckpointWriter
from crossbow.timeline.recorder import Recorder

ENGINE: Any = SimpleNamespace(tasks=7)


class Noting(Monitor):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def take_over(self, history: History) -> None:
        self.heard.append(history)

    def close(self) -> None:
        self.heard.append("close")


def ranks(*, first: bool, mark: str = "") -> Any:
    """A rank to which rank 0 tells the mark."""
    return SimpleNamespace(is_first=first, own="rank 1 (node)", agree=lambda own: own() if first else mark)


def duties(of: Any, *monitors: Monitor, directory: Path | None = None) -> Duties:
    writer = None
    if directory is not None:
        writer = partial(CheckpointWriter, Checkpoints(directory), lambda path, model: path.write_bytes(b""))
    return Duties(of, monitors, writer, {}, Recorder())


def test_other_ranks_use_the_monitors_for_all_ranks_only() -> None:
    own, for_all = Noting(), Noting()
    for_all.on_all_ranks = True
    first, other = (duties(ranks(first=first), own, for_all) for first in (True, False))
    assert first.monitors == (own, for_all)
    assert other.monitors == (for_all,)
    for each in (first, other):
        each.begin(ENGINE)
        each.add(added := Noting())
        assert each.keeper is None
        assert (added in each.monitors) == each.leads
    other.close()
    assert (own.heard, for_all.heard) == ([], ["close"])


@pytest.mark.parametrize("begun", [True, False])
def test_a_rank_that_becomes_rank_0_takes_over(begun: bool, tmp_path: Path) -> None:
    """It goes on in the directory of the same run, once."""
    first = duties(ranks(first=True), directory=tmp_path)
    first.begin(ENGINE)
    assert first.keeper is not None
    mark, monitor = first.keeper.mark, Noting()
    later = ranks(first=False, mark=mark)
    second, history = duties(later, monitor, directory=tmp_path), History()
    second.begin(ENGINE)
    second.go_on(ENGINE, history, begun=begun)
    assert (second.keeper, second.monitors) == (None, ())
    first.close()
    later.is_first = True
    second.go_on(ENGINE, history, begun=begun)
    keeper = second.keeper
    assert keeper is not None
    assert (keeper.mark, keeper._owned) == (mark, begun)
    second.go_on(another := SimpleNamespace(tasks=9), history, begun=begun)  # type: ignore[arg-type]
    assert second.keeper is keeper
    assert keeper._engine is another
    assert monitor.heard == [history]
    second.close()
    assert monitor.heard == [history, "close"]


def test_the_best_model_so_far_is_read(tmp_path: Path) -> None:
    """If it is damaged, the next record counts as the first best one."""
    from safetensors.numpy import save_file

    first = duties(ranks(first=True), directory=tmp_path)
    first.begin(ENGINE)
    assert first.keeper is not None
    mark = first.keeper.mark
    first.close()
    for damaged in (False, True):
        save_file({"a.weights": np.ones(2)}, tmp_path / "best.safetensors")
        if damaged:
            (tmp_path / "best.safetensors").write_bytes(b"half")
        later = ranks(first=False, mark=mark)
        second = duties(later, directory=tmp_path)
        second.begin(ENGINE)
        later.is_first = True
        second.go_on(ENGINE, History(), begun=True)
        assert second.keeper is not None
        assert list(second.keeper._best) == ([] if damaged else ["a.weights"])
        second.close()


def test_a_rank_that_cannot_take_over_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its directory is that of another run."""
    first = duties(ranks(first=True), directory=tmp_path)
    first.begin(ENGINE)
    first.close()
    later = ranks(first=False, mark="another")
    second = duties(later, directory=tmp_path)
    second.begin(ENGINE)
    later.is_first = True
    with pytest.raises(SystemExit) as ended:
        second.go_on(ENGINE, History(), begun=True)
    assert ended.value.code == LOST
    assert "error: rank 1 (node) cannot take the place of rank 0: " in capsys.readouterr().err
