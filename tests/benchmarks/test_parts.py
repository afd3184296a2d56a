"""Parts of a benchmark: their output, and their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts import run_part


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `part`, which runs its first argument."""
    (tmp_path / "part.py").write_text("import os, sys\nexec(sys.argv[1])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_the_output_is_passed_on_or_returned(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_part("part", "a", ["print(2, *sys.argv[2:])", "x"]) == ""
    assert capfd.readouterr().out == "2 x\n"
    assert run_part("part", "a", ["print(3)"], captured=True) == "3\n"
    assert capfd.readouterr().out == ""


def test_a_failure_keeps_its_status_and_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_part("part", "a", ["sys.stderr.write('why'); sys.exit(2)"])
    assert ended.value.code == 2
    assert capfd.readouterr().err == "why"


def test_a_part_that_is_killed_is_named() -> None:
    with pytest.raises(SystemExit, match=r"^python -m part: error: LeNet: ended by signal 9$"):
        run_part("part", "LeNet", ["os.kill(os.getpid(), 9)"])
