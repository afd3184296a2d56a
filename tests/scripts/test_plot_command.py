"""`crossbow plot`, in this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crossbow import cli
from tests.scripts.run_files import record, write_run
from tests.scripts.runs import PNG


def test_runs_in_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "first" / "run", [record(1, 0.5), record(2, 0.8)])
    second = write_run(tmp_path / "second", [record(1, None)])
    same = write_run(tmp_path / "same" / "run", [record(1, 0.5)])
    path = tmp_path / "curves.svg"
    assert cli.main(["plot", *map(str, (first, second, same)), "--x", "seconds", "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    texts = {comment.strip() for comment in re.findall("<!--(.*?)-->", path.read_text())}
    assert {str(first), str(same), "second", "seconds of training"} <= texts, "equal names are told apart"
    assert cli.main(["plot", str(first), "--x", "images", "-o", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_the_other_runs_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, empty = write_run(tmp_path / "run", [record(1, 0.5)]), write_run(tmp_path / "empty", [])
    path = tmp_path / "curves.svg"
    assert cli.main(["plot", str(empty), str(run), str(tmp_path / "none"), "-o", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == f"{path}\n"
    assert [line.split(": ")[2] for line in printed.err.splitlines()] == [str(empty), str(tmp_path / "none")]
    assert path.exists()


def test_what_cannot_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [record(1, 0.5)], header={"batch_size": None})
    empty = write_run(tmp_path / "empty", [])
    for options, message in (
        ([run, "-o", tmp_path / "curves.gif"], r"ends with \.png or \.svg"),
        ([run, "--x", "images"], r"--x images needs the batch size"),
        ([empty], r"expected a run with records\. Received: one without, so far"),
        ([run, run], r"expected every run once"),
        ([tmp_path / "none"], r"Received: nothing of that name"),
    ):
        assert cli.main(["plot", *map(str, options)]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error)
        assert len(error.splitlines()) == 1
