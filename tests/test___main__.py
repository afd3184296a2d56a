"""`python -m crossbow` is the command `crossbow`."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

import crossbow
from crossbow import cli


@pytest.mark.parametrize("status", [0, 2])
def test_the_command_gets_the_arguments_and_gives_the_status(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def main() -> int:
        given.append(sys.argv[1:])
        return status

    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(sys, "argv", ["crossbow", "info", "--verbose"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("crossbow", run_name="__main__")
    assert ended.value.code == status
    assert given == [["info", "--verbose"]]


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-m", "crossbow", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert crossbow.__version__ in done.stdout
