"""Runs tests with one source file changed in memory, each time in a fork of this process.

It has imported what takes long to import, and nothing of the package, so that a fork imports the changed file.

Reads requests from standard input, a line of JSON each, and answers with exit status and seconds of processor time.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import os
import resource
import signal
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import Any

PRELOADED = "pytest", "hypothesis", "numpy", "numba", "llvmlite.ir", "torch", "onnx", "rich", "ml_dtypes", "safetensors"
IMPORTED = "-Wignore:Module already imported so cannot be rewritten"


class Progress:
    """Writes down which test is running, for when it never ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)


class Only:
    """Leaves out all other tests."""

    def __init__(self, tests: list[str]) -> None:
        self._tests = frozenset(tests)

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        others = [item for item in items if item.nodeid not in self._tests]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.nodeid in self._tests]


def change(path: Path, content: bytes) -> None:
    """From now on, in this process, the file has this content: to those who import it, and to those who read it."""
    load, read = importlib.machinery.SourceFileLoader.get_code, Path.read_bytes

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if Path(loader.path) == path:
            return loader.source_to_code(content, loader.path)
        return load(loader, name)

    def read_bytes(file: Path) -> bytes:
        return content if file == path else read(file)

    def read_text(file: Path, encoding: str | None = None, errors: str | None = None) -> str:
        return read_bytes(file).decode(encoding or "utf-8", errors or "strict")

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    Path.read_bytes, Path.read_text = read_bytes, read_text  # type: ignore[method-assign, assignment]
    with contextlib.suppress(ImportError):
        _change_stamp(path, content)


def _change_stamp(path: Path, content: bytes) -> None:
    """numba keeps compiled code by time and size of the file on disk, which stay the same."""
    locator: Any = importlib.import_module("numba.core.caching")._SourceFileBackedLocatorMixin
    stamp = locator.get_source_stamp

    def get_source_stamp(self: Any) -> Any:
        return (stamp(self), zlib.crc32(content)) if Path(self._py_file) == path else stamp(self)

    locator.get_source_stamp = get_source_stamp


def run(request: dict[str, Any]) -> int:
    """pytest's exit status, with the file changed where one is named. In a process of its own, which ends with it."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(request["seconds"])), most))
    if request["path"]:
        change(Path(request["path"]).absolute(), request["content"].encode())
    plugins: list[Any] = [Progress(Path(request["progress"])), *([Only(request["only"])] if request["only"] else [])]
    return int(importlib.import_module("pytest").main([IMPORTED, *request["arguments"]], plugins=plugins))


def main() -> None:
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = run(json.loads(line))
            finally:
                os._exit(status)
        _, status, used = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # programs that a test has begun
        print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]), flush=True)


if __name__ == "__main__":
    main()
