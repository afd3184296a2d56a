"""Commands whose output nobody reads, or reads in another encoding: they end in order, and never in a traceback."""

from __future__ import annotations

import doctest
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from crossbow import console
from crossbow.console import (
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    PLAIN,
    WRONG,
    open_standard_streams,
    printable,
    run_command,
)
from crossbow.types import ConfigurationError, DataError, NonFiniteError, NonFiniteLossError, TaskError

ROOT = Path(__file__).parents[1]
POSIX = pytest.mark.skipif(os.name != "posix", reason="descriptors are closed by a POSIX shell")
FULL = Path("/dev/full")


def test_doctests() -> None:
    assert doctest.testmod(console).failed == 0


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("utf-8", "2 × 3 ≥ τ, …"), ("cp1252", "2 × 3 >= tau, …"), ("ascii", "2 x 3 >= tau, ...")],
)
def test_characters_that_an_encoding_lacks_are_written_otherwise(encoding: str, text: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    assert printable("2 × 3 ≥ τ, …", stream) == text
    assert printable("語\udcff", stream) == ("語?" if encoding == "utf-8" else "??")
    assert printable("2 × 3 ≥ τ", io.StringIO()) == "2 × 3 ≥ τ"


def test_plain_characters_are_plain() -> None:
    assert "".join(PLAIN.values()).isascii()


def test_streams_that_are_there_take_every_character(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = io.TextIOWrapper(io.BytesIO(), "ascii"), io.StringIO()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    open_standard_streams()
    assert (sys.stdout, sys.stderr) == streams
    print("3 × τ", flush=True)
    assert streams[0].buffer.getvalue() == b"3 x tau\n"  # type: ignore[attr-defined]


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


def caused(error: TaskError, cause: Exception) -> TaskError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("work", "status", "said"),
    [
        (lambda: 0, 0, ""),
        (lambda: 7, 7, ""),
        (raising(KeyboardInterrupt()), INTERRUPTED, "name: interrupted\n"),
        (raising(ConfigurationError("expected")), WRONG, "name: error: expected\n"),
        (raising(NonFiniteLossError("nan")), FAILED, "name: error: nan\n"),
        (raising(FileNotFoundError(2, "No such file", "here")), WRONG, "name: error: here: No such file\n"),
        (raising(OSError(5, "I/O")), WRONG, "name: error: a file or a system call: I/O\n"),
        (
            raising(caused(TaskError("task 1", task=1, operator="a"), NonFiniteError("inf"))),
            FAILED,
            "name: error: task 1\n",
        ),
        (
            raising(caused(TaskError("task 1", task=1, operator="a"), DataError("6000"))),
            WRONG,
            "name: error: task 1\n",
        ),
    ],
)
def test_how_a_command_ends(
    work: Callable[[], int], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("name", work) == status
    assert capsys.readouterr().err == said


class Full(io.StringIO):
    """A stream to which nothing can be written."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_an_error_that_cannot_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    assert run_command("name", raising(ConfigurationError("expected"))) == WRONG


def test_help_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse ends with SystemExit, and Python would fail to flush only at exit."""
    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(console, "_silence_stdout", lambda: None)
    assert run_command("name", raising(SystemExit(0))) == WRONG
    assert capsys.readouterr().err == "name: error: standard output: No space left on device\n"


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            sys.stderr.write(warnings.formatwarning("slow", RuntimeWarning, "file.py", 5))
        return 0

    assert run_command("name", work) == 0
    assert capsys.readouterr().err == "name: warning: slow\n"
    assert "file.py" in warnings.formatwarning("slow", RuntimeWarning, "file.py", 5)


# As a shell starts them

TRAIN = f"{sys.executable} -m models.logistic_regression --epochs 1 --learners 1 --kernels reference"
INFO = f"{sys.executable} -m crossbow info"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """What a command ends with in a shell, which hands its status on."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
@POSIX
def test_a_run_whose_output_is_not_utf_8(tmp_path: Path) -> None:
    done = shell(f"{TRAIN} --output-directory {tmp_path}", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert "test images 1x28x28\n" in text
    assert "epoch 1/1" in text


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (f"{TRAIN} >&-", 0, b""),
        pytest.param(f"{TRAIN} --alpha 7 2>&-", WRONG, b"", marks=pytest.mark.slow),
        pytest.param(f"{INFO} >&-", 0, b"", marks=pytest.mark.slow),
        (f"{INFO} | true", PIPE_CLOSED, b""),
        pytest.param(
            f"{INFO} > /dev/full",
            WRONG,
            b"crossbow: error: standard output: No space left on device\n",
            marks=pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full"),
        ),
    ],
)
def test_streams_that_are_closed(command: str, status: int, said: bytes, tmp_path: Path) -> None:
    if command.startswith(TRAIN):
        command = command.replace(TRAIN, f"{TRAIN} --output-directory {tmp_path}")
    done = shell(command)
    assert (done.returncode, done.stderr, done.stdout) == (status, said, b"")
    if status == 0 and command.startswith(TRAIN):
        assert (tmp_path / "log.jsonl").read_text().count("\n") == 2, "what is printed gets into no file"


NUMBERS = """
import sys
from pathlib import Path
from crossbow.console import open_standard_streams

open_standard_streams()
with open(sys.argv[1], "w") as file:
    file.write(str(file.fileno() > 2))
"""


@pytest.mark.slow
@POSIX
def test_a_file_does_not_get_the_number_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    """What a library prints would get into it."""
    (tmp_path / "script.py").write_text(NUMBERS)
    shell(f"{sys.executable} {tmp_path}/script.py {tmp_path}/file >&- 2>&- <&-", PYTHONPATH=str(ROOT))
    assert (tmp_path / "file").read_text() == "True"
