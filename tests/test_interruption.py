"""Ctrl-C while a command still imports its modules."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import crossbow
import models
from crossbow import interruption

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent to processes as POSIX has it")

SLOW = """
import os, time
try:
    os.write(1, b"importing\\n")
    time.sleep(60)
except BaseException as error:  # as some packages do
    raise ImportError("broken") from error
"""
SLOW_TO_READ = """
import os, time
from importlib.machinery import SourceFileLoader
get_code = SourceFileLoader.get_code

def get_code_slowly(loader, name):
    if name in ("models.lenet", "crossbow.__main__"):
        os.write(1, b"importing\\n")
        time.sleep(60)
    return get_code(loader, name)

SourceFileLoader.get_code = get_code_slowly
"""
SCRIPT = "import sys\nfrom crossbow.cli import main\nsys.exit(main())\n"


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A directory with packages that take long to import: the largest, and one that a network's script imports."""
    for package in ("numpy", "matplotlib"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(SLOW)
    (tmp_path / "crossbow").write_text(SCRIPT)
    (tmp_path / "own.py").write_text("import crossbow\n")
    return tmp_path


def interrupted(directory: Path, *arguments: str) -> tuple[int, str]:
    """Status, and what was said, of a command that got Ctrl-C while it imported a module."""
    paths = os.pathsep.join([str(directory), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize("arguments", [["-m", "models.lenet"], ["-m", "crossbow", "info"], ["crossbow", "info"]])
def test_a_command_ends_with_one_line(arguments: list[str], slow: Path) -> None:
    if arguments[0] == "crossbow":
        arguments = [str(slow / "crossbow"), *arguments[1:]]
    name = "crossbow" if arguments[0] != "-m" else f"python -m {arguments[1]}"
    assert interrupted(slow, *arguments) == (130, f"{name}: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["models.lenet", "crossbow"])
def test_a_command_whose_module_is_being_read_does_too(module: str, tmp_path: Path) -> None:
    """Its package has been imported then, and nothing else is."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_READ)
    assert interrupted(tmp_path, "-m", module) == (130, f"python -m {module}: interrupted\n")


def test_somebody_elses_program_gets_its_exception(slow: Path) -> None:
    status, said = interrupted(slow, str(slow / "own.py"))
    assert status != 130
    assert said.rstrip().endswith("ImportError: broken")


def test_ctrl_c_is_an_exception_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the imports are done, and where none is going on."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "models.lenet"])
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interruption.end_quietly_while_importing()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interruption.package_is_imported()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
        interruption.end_quietly_while_importing()
        interruption.restore()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_scripts_import_more_than_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "models.lenet"])
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        importlib.reload(models)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        importlib.reload(crossbow)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "models may be another's"
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_may_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "models.lenet"])
    before, errors = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        try:
            interruption.end_quietly_while_importing()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-m", "models.lenet"], "python -m models.lenet"),
        (["python", "-X", "utf8", "-m", "crossbow", "info"], "python -m crossbow"),
        (["python", "-m", "pytest", "tests"], None),
        (["python", "script.py"], None),
        (["python", "-m"], None),
    ],
)
def test_which_commands_are_this_projects(
    command: list[str], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", command)
    monkeypatch.setattr(sys, "argv", ["-m"])
    assert interruption.command_name() == name
    monkeypatch.setattr(sys, "argv", ["/usr/bin/crossbow", "info"])
    assert interruption.command_name() == (name or (None if "-m" in command[:-1] else "crossbow"))
