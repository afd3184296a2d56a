"""Programs run in this process: modules and scripts, and their exit statuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crossbow.cluster.program import CANNOT_JOIN, LEFT, SIGNALLED, RankProgram, run_program


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    ("code", "status"),
    [("", 0), ("raise SystemExit", 0), ("raise SystemExit(5)", 5), ("raise KeyboardInterrupt", 130)],
)
def test_a_script_has_an_exit_status(tmp_path: Path, code: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    assert run_program(RankProgram(str(script), (), is_module=False)) == status


def test_a_script_gets_its_arguments_and_finds_its_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbour_of_script.py").write_text("NAME = 'here'")
    script = tmp_path / "script.py"
    script.write_text("import sys, neighbour_of_script\nprint(sys.argv, neighbour_of_script.NAME, __name__)")
    assert run_program(RankProgram(str(script), ("--a", "b"), is_module=False)) == 0
    assert capsys.readouterr().out == f"{[str(script), '--a', 'b']} here __main__\n"


def test_a_module_is_the_main_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_of_program.py").write_text("print(__name__, __spec__.name)")
    monkeypatch.syspath_prepend(tmp_path)
    assert run_program(RankProgram("module_of_program", ())) == 0
    assert capsys.readouterr().out == "__main__ module_of_program\n"


def test_a_traceback_and_a_text_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, called = tmp_path / "script.py", []
    script.write_text("raise ValueError('on purpose')")
    assert run_program(RankProgram(str(script), (), is_module=False), lambda: called.append(1)) == 1
    first, where, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: on purpose")
    assert where == f'  File "{script}", line 1, in <module>'  # as Python prints it
    script.write_text("raise SystemExit('no data')")
    assert run_program(RankProgram(str(script), (), is_module=False), lambda: called.append(1)) == 1
    assert (capsys.readouterr().err, called) == ("no data\n", [1, 1])


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("sys.exit(5)", 5),
        ("sys.exit(-1)", 255),
        ("sys.exit(256)", 0),
        ("sys.exit(None)", 0),
        ("sys.exit(True)", 1),
        ("sys.exit(Left().code)", 5),
        ("sys.exit(Terminated(15).code)", 143),
        ("raise Left", LEFT),
        ("raise NotJoined", CANNOT_JOIN),
        ("raise Terminated(15)", SIGNALLED),
    ],
)
def test_the_exit_status_of_a_program_is_its_own(ends: str, status: int, tmp_path: Path) -> None:
    """Also if it is that with which a rank leaves, or ends because of a signal."""
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nfrom crossbow.cluster.members import Left, NotJoined, Terminated\n{ends}")
    assert run_program(RankProgram(str(script), (), is_module=False)) == status


def test_its_command_and_that_which_resumes_it() -> None:
    program = RankProgram("models.lenet", ("--epochs", "2", "--overwrite"))
    assert program.command() == [sys.executable, "-m", "models.lenet", "--epochs", "2", "--overwrite"]
    resumed = program.resumed()
    assert resumed == resumed.resumed() == RankProgram("models.lenet", ("--epochs", "2", "--resume"), begun_again=True)
    assert RankProgram("a.py", (), is_module=False).command() == [sys.executable, "a.py"]


def test_the_failure_of_another_rank_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("from crossbow.cluster.members import RankFailedError\nraise RankFailedError('rank 1 has ended')")
    assert run_program(RankProgram(str(script), (), is_module=False)) == 1
    assert capsys.readouterr().err == "error: rank 1 has ended\n"
