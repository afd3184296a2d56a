"""The directory of a script's run: the names of its files, and `run.json`, which describes the run."""

from __future__ import annotations

import argparse
import datetime
import enum
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crossbow
from crossbow.files import check_regular, file_error, make_directory, write_whole
from crossbow.runtime.checkpoint import checkpoint_files
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.runtime.directory_lock import check_unused, is_in_use
from crossbow.types import ConfigurationError, DataError

VERSION = 1
"""Version of `run.json`. Directories of newer versions are refused."""
PACKAGES = ("numpy", "numba", "llvmlite", "safetensors", "onednn", "cupy-cuda13x", "cupy-cuda12x")
"""Packages whose versions may change the results of a run."""
NOT_SETTINGS = ("resume", "overwrite", "output_directory", "quiet", "profile", "cluster")
"""Options that are not settings of the training."""


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run. Only one process at a time may use it."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def picture(self) -> Path:
        return self.path / "learning_curves.png"

    @property
    def timeline(self) -> Path:
        return self.path / "trace.json.gz"

    @property
    def bad_records(self) -> Path:
        return self.path / "bad_records.jsonl"

    @property
    def description(self) -> Path:
        return self.path / "run.json"

    @property
    def model(self) -> Path:
        return Checkpoints(self.path).model_path

    @property
    def best(self) -> Path:
        return Checkpoints(self.path).best_path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def prepare(self) -> None:
        """Create the directory. Raises DataError if it cannot be used."""
        make_directory(self.path)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise DataError(f"{self.path}: expected a directory to write to. Received: one without permission to write")
        for file in (self.log, self.picture):
            check_regular(file)
        if self.log.exists() and not os.access(self.log, os.W_OK):  # other files are replaced, writable or not
            raise DataError(f"{self.log}: expected a file to write. Received: one without permission to write")

    def check_new(self) -> None:
        """Raise ConfigurationError if the directory has a run, or other files that a run would replace, and DataError
        if a process is using it."""
        check_unused(self.path)
        checkpoints = checkpoint_files(self.checkpoints)
        if not (self.description.exists() or checkpoints):
            self._check_free()
            return
        state = "a run"
        if self.description.exists():
            found = self.read()
            state = f"a run that {STATES.get(self.state(found), 'has begun')} ({found.get('started', '')})"
        go_on = f"continue it with `crossbow resume {self.path}`, " if checkpoints else ""
        raise ConfigurationError(
            f"{self.path}: expected a directory without a run. Received: {state}; {go_on}replace it with --overwrite, "
            "or use another --output-directory"
        )

    def _check_free(self) -> None:
        """Raise ConfigurationError if the directory has a log or models, which a run would replace."""
        found = [path.name for path in (self.log, self.model, self.best) if path.is_file()]
        if found:
            raise ConfigurationError(
                f"{self.path}: expected a directory without files that a run replaces. Received: one with "
                f"{' and '.join(found)}; replace them with --overwrite, or use another --output-directory"
            )

    def write(self, description: Mapping[str, Any]) -> None:
        """Write `run.json`. Raises DataError."""
        write_whole(self.description, (json.dumps(description, indent=2, default=str) + "\n").encode())

    def read(self) -> dict[str, Any]:
        """The contents of `run.json`. Raises DataError if it is missing, damaged, or of a newer version."""
        try:
            found = json.loads(self.description.read_text(encoding="utf-8"))
        except OSError as error:
            raise file_error(error, self.description, "the directory of a run, which has run.json") from error
        except ValueError as error:
            raise DataError(
                f"{self.description}: expected the description of a run (JSON). Received: {error}"
            ) from error
        if not isinstance(found, dict) or not isinstance(found.get("version"), int):
            raise DataError(f"{self.description}: expected the description of a run. Received: other JSON")
        check_version(self.description, found["version"])
        return found

    def state(self, description: Mapping[str, Any]) -> str:
        """The state of the run: "running", "finished", "interrupted" or "failed". A run that is described as running
        is "interrupted" if no process uses its directory."""
        state = str(description.get("state"))
        return "interrupted" if state == "running" and not is_in_use(self.path) else state


def check_version(path: Path, version: Any) -> None:
    """Raise DataError if a `run.json` is of a newer version."""
    if isinstance(version, int) and version > VERSION:
        raise DataError(f"{path}: expected a run of version {VERSION} or older. Received: {version}; update Crossbow")


STATES = {
    "running": "is running",
    "finished": "has finished",
    "interrupted": "was interrupted",
    "failed": "has failed",
}


def now() -> str:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The values of the options that were given or have a default, as JSON values."""
    found = {name: _json(value) for name, value in vars(options).items() if name not in NOT_SETTINGS}
    return {name: value for name, value in found.items() if value is not None}


def _json(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [_json(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def machine() -> dict[str, Any]:
    """Description of the machine and the system on which a run trains."""
    return {
        "name": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of this package, and of the packages that results depend on."""
    found = {"crossbow": crossbow.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the working tree that this package is in; None without one."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(crossbow.__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def module_of(function: Any) -> str:
    """The module of a script's function, or its file if the script was run as a file."""
    name: str = function.__module__
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else str(Path(getattr(main, "__file__", "")).absolute())


def repeated(arguments: Sequence[str], options: argparse.Namespace) -> list[str]:
    """The arguments that start the same run from another directory."""
    given = [argument for argument in arguments if argument not in ("--overwrite", "--resume")]
    if options.data_directory is not None:
        given += ["--data-directory", str(Path(options.data_directory).absolute())]
    return given
