from __future__ import annotations

import builtins
import os
import re
from pathlib import Path
from typing import Any

import pytest

from crossbow import DataError, Record, TestResult
from crossbow.scripts.curves import AXES, Curves, curves_picture, picture_format, write_learning_curves
from tests.scripts.runs import PNG


def record(epoch: float, *, loss: float = 1.0, accuracy: float | None = None, tested: bool = True) -> Record:
    test = TestResult(loss=loss / 2, accuracy=0.5, examples=10) if tested else None
    return Record(epoch, int(epoch * 10), epoch, loss, accuracy, 100.0, 0.1, test)


@pytest.mark.slow
@pytest.mark.parametrize(
    "records",
    [
        [record(1), record(2), record(2.5, tested=False)],
        [record(0.5, tested=False)],
        [record(1, loss=0.0)],  # a logarithmic axis has no zero
        [record(number, accuracy=0.9) for number in range(1, 100)],
    ],
    ids=["usual", "no test", "no loss", "many"],
)
def test_a_whole_png(records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    path.write_text("an older picture")
    write_learning_curves(records, path, "title")
    data = path.read_bytes()
    assert data.startswith(PNG)
    assert data.endswith(b"IEND\xaeB`\x82")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the middle leaves the older picture, and nothing beside it."""
    path = tmp_path / "curves.png"
    path.write_text("an older picture")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match=r"curves\.png: expected to write this file\. Received: No space left"):
        write_learning_curves([record(1)], path, "title")
    assert path.read_text() == "an older picture"
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imports(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DataError, match=r"needs matplotlib: pip install 'crossbow\[zoo\]'"):
        write_learning_curves([record(1)], tmp_path / "curves.png", "title")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("x", "last"), [("epochs", 3.0), ("seconds", 3.0), ("images", 240.0)])
def test_several_runs_on_an_axis(x: str, last: float) -> None:
    records = [record(number) for number in range(1, 4)]
    assert Curves(records, batch_size=8).place(records[-1], x) == last
    runs = {"first": Curves(records, batch_size=8), "second <&>": Curves(records[:1], batch_size=8)}
    texts = " ".join(
        comment.strip() for comment in re.findall("<!--(.*?)-->", curves_picture(runs, "", x, "svg").decode())
    )
    for expected in ("first", "second &lt;&amp;&gt;", "accuracy", "loss", AXES[x], "training", "test"):
        assert expected in texts


def test_the_ending_is_the_format() -> None:
    assert [picture_format(Path(name)) for name in ("a.png", "b.SVG")] == ["png", "svg"]
    with pytest.raises(DataError, match=r"ends with \.png or \.svg\. Received: 'curves\.gif'"):
        picture_format(Path("out/curves.gif"))
