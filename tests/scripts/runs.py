"""Model scripts as a user starts them: in a process of their own, with pipes or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
SECONDS = 120.0
"""How long a short run may take on a busy machine, compiling included."""


FILES = {
    "run.json",
    "log.jsonl",
    "learning_curves.png",
    "model.safetensors",
    "best.safetensors",
    "checkpoints",
    ".lock",
    "progress.json",
    "summary.json",
}
"""What a run leaves."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and what it left."""

    status: int
    stdout: str
    stderr: str
    directory: Path

    @property
    def epoch_lines(self) -> list[str]:
        return [line for line in self.stdout.splitlines() if line.startswith("epoch ")]

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log's records; every line is whole. How learners compared depends on timing, and is left out."""
        text = (self.directory / "log.jsonl").read_text("utf-8")
        assert not text or text.endswith("\n")
        return [row for row in map(json.loads, text.splitlines()) if not {"decision", "run"} & row.keys()]

    def check_picture(self) -> None:
        """It is a whole PNG, and nothing half-written lies beside it."""
        picture = (self.directory / "learning_curves.png").read_bytes()
        assert picture.startswith(PNG)
        assert picture.endswith(b"IEND\xaeB`\x82")
        assert {path.name for path in self.directory.iterdir()} <= FILES


def command(model: str, directory: Path, options: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", f"models.{model}", "--output-directory", str(directory), *map(str, options)]


def run(model: str, directory: Path, *options: object, seconds: float = SECONDS) -> Outcome:
    """Run a script to its end, its output in pipes."""
    done = subprocess.run(
        command(model, directory, options), cwd=ROOT, capture_output=True, encoding="utf-8", timeout=seconds
    )
    return Outcome(done.returncode, done.stdout, done.stderr, directory)


def run_and_interrupt(model: str, directory: Path, *options: object, after: int) -> Outcome:
    """Run a script, and send it Ctrl-C's signal after so many lines of an epoch."""
    process = subprocess.Popen(
        command(model, directory, options), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    lines = []
    with process:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch ") and sum(text.startswith("epoch ") for text in lines) == after:
                process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        stderr = process.stderr.read()
        status = process.wait(SECONDS)
    return Outcome(status, "".join(lines), stderr, directory)


def run_on_a_terminal(model: str, directory: Path, *options: object) -> Outcome:
    """Run a script on a terminal of 100 columns; what it shows, control sequences included, is stdout."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        arguments = command(model, directory, options)
        os.execve(arguments[0], arguments, {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"})
    shown = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    return Outcome(os.waitstatus_to_exitcode(status), shown.decode(), "", directory)


def without_control_sequences(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def peak_megabytes(stdout: str) -> float:
    """What the closing summary says of memory."""
    found = re.search(r"peak memory ([\d,]+) MB", stdout)
    assert found is not None
    return float(found[1].replace(",", ""))
