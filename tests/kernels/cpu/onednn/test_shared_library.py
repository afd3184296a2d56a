"""Whether oneDNN can be used, and the sentence that says why not."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any

import pytest

from crossbow.kernels.cpu.onednn import shared_library


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(shared_library.HIDING, raising=False)
    shared_library.why_unusable.cache_clear()
    yield
    shared_library.why_unusable.cache_clear()


def raising(error: Exception) -> Any:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("name", "replacement", "expected"),
    [
        ("platform.system", lambda: "Darwin", r"for Linux on x86_64 only, and this is Darwin on "),
        ("platform.machine", lambda: "aarch64", r"and this is \w+ on aarch64$"),
        ("numba_is_installed", lambda: False, r"^the package numba, .* is not installed$"),
        ("openmp", raising(OSError("not found")), r"libgomp\.so\.1 \(package libgomp1\), .* is missing$"),
        (
            "library",
            raising(importlib.metadata.PackageNotFoundError()),
            r"^the package onednn-cpu-gomp is not installed$",
        ),
        ("library", raising(OSError("damaged")), r"^oneDNN's library cannot be loaded: damaged$"),
        ("version", lambda: (2, 7, 1), r"^oneDNN 3 is needed, and onednn-cpu-gomp contains 2\.7\.1$"),
    ],
)
def test_reasons(name: str, replacement: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"crossbow.kernels.cpu.onednn.shared_library.{name}", replacement)
    if name != "platform.system":
        monkeypatch.setattr(shared_library.platform, "system", lambda: "Linux")
    if name not in ("platform.system", "platform.machine"):
        monkeypatch.setattr(shared_library.platform, "machine", lambda: "x86_64")
        if name in ("library", "version"):
            monkeypatch.setattr(shared_library, "openmp", lambda: None)
        if name == "version":
            monkeypatch.setattr(shared_library, "library", lambda: None)
    reason = shared_library.why_unusable()
    assert reason is not None
    assert re.search(expected, reason)


def test_it_can_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_library.HIDING, "1")
    assert shared_library.why_unusable() == "the environment variable CROSSBOW_WITHOUT_ONEDNN is 1"


@pytest.mark.parametrize("files", [None, [], ["onednn/libdnnl.so", "onednn/license.txt"]])
def test_a_package_without_the_library(files: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = None if files is None else [importlib.metadata.PackagePath(name) for name in files]
    monkeypatch.setattr(importlib.metadata, "files", lambda package: made)
    with pytest.raises(OSError, match=r"^the package onednn-cpu-gomp does not contain libdnnl\.so\.3$"):
        shared_library._library_file()
