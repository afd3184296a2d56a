"""cuDNN and cuBLAS are found with cuda-pathfinder, in NVIDIA's packages, or by their plain names, in this order."""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from crossbow.kernels.cuda import shared_library
from crossbow.kernels.cuda.shared_library import CUBLAS, CUDNN, find
from crossbow.types import ConfigurationError

INSTALLED = {"nvidia-cudnn-cu13": ["libcudnn.so.9", "notes.txt"], "nvidia-cublas": ["libcublas.so.13"]}


@pytest.fixture
def loadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names and paths that the system's loader takes; at first none."""
    known: set[str] = set()

    def load(path: str) -> Any:
        if path not in known:
            raise OSError(f"{path}: cannot open shared object file")
        return SimpleNamespace(path=path)

    monkeypatch.setattr(shared_library, "ctypes", SimpleNamespace(CDLL=load))
    return known


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The packages that are installed, and their files; at first none."""
    installed: dict[str, list[str]] = {}

    def files(package: str) -> list[Any]:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return [SimpleNamespace(name=n, locate=lambda n=n: Path("/packages", n)) for n in installed[package]]

    monkeypatch.setattr(importlib.metadata, "files", files)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1.2.3")
    return installed


def pathfinder(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Any] | None) -> None:
    """Let cuda-pathfinder load like this; None: it is not installed."""
    module: Any = ModuleType("cuda.pathfinder")
    module.load_nvidia_dynamic_lib = load
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", module if load else None)


def unknown(name: str) -> Any:
    raise KeyError(f"unknown library {name}")  # versions that do not know one raise this or that


def found(name: str) -> Any:
    return SimpleNamespace(abs_path=f"/found/{name}.so")


def test_pathfinder_comes_first(
    monkeypatch: pytest.MonkeyPatch, loadable: set[str], packages: dict[str, list[str]]
) -> None:
    pathfinder(monkeypatch, found)
    packages.update(INSTALLED)
    loadable.update({"/found/cudnn.so", "/packages/libcudnn.so.9", "libcudnn.so.9"})
    library = find(CUDNN)
    assert (library.path, library.by) == ("/found/cudnn.so", "cuda-pathfinder 1.2.3")
    assert str(library) == "/found/cudnn.so (found by cuda-pathfinder 1.2.3)"


@pytest.mark.parametrize("load", [None, unknown, found], ids=["absent", "unknown", "a file that does not load"])
def test_then_the_files_of_packages(
    load: Any, monkeypatch: pytest.MonkeyPatch, loadable: set[str], packages: dict[str, list[str]]
) -> None:
    pathfinder(monkeypatch, load)
    packages.update(INSTALLED)
    packages["nvidia-cublas"] = [*INSTALLED["nvidia-cublas"], "libcublasLt.so.13"]
    loadable.update({f"/packages/{name}" for names in packages.values() for name in names})
    assert (find(CUDNN).path, find(CUDNN).by) == ("/packages/libcudnn.so.9", "the package nvidia-cudnn-cu13")
    assert (find(CUBLAS).path, find(CUBLAS).by) == ("/packages/libcublas.so.13", "the package nvidia-cublas")


def test_what_a_library_needs_is_loaded_before_it(
    monkeypatch: pytest.MonkeyPatch, packages: dict[str, list[str]]
) -> None:
    pathfinder(monkeypatch, None)
    packages["nvidia-cublas"] = ["libcublas.so.13", "libcublasLt.so.13"]
    loaded: list[str] = []
    monkeypatch.setattr(shared_library, "ctypes", SimpleNamespace(CDLL=loaded.append))
    find(CUBLAS)
    assert loaded == ["/packages/libcublasLt.so.13", "/packages/libcublas.so.13"]


@pytest.mark.parametrize("name", ["libcublas.so.13", "libcublas.so.12"])
def test_then_the_plain_names(
    name: str, monkeypatch: pytest.MonkeyPatch, loadable: set[str], packages: dict[str, list[str]]
) -> None:
    pathfinder(monkeypatch, unknown)
    loadable.add(name)
    assert (find(CUBLAS).path, find(CUBLAS).by) == (name, "the system's loader")


def test_where_there_is_none_every_way_says_why(
    monkeypatch: pytest.MonkeyPatch, loadable: set[str], packages: dict[str, list[str]]
) -> None:
    pathfinder(monkeypatch, unknown)
    with pytest.raises(ConfigurationError) as raised:
        find(CUDNN)
    assert str(raised.value) == (
        "expected cuDNN for devices 'cuda:i': pip install 'crossbow[cuda13]' (or 'crossbow[cuda12]'). Received: none "
        "(cuda-pathfinder: 'unknown library cudnn'; packages: no libcudnn.so.9 in nvidia-cudnn-cu13 or "
        "nvidia-cudnn-cu12; the system's loader: libcudnn.so.9: cannot open shared object file)"
    )


@pytest.mark.parametrize("library", [CUDNN, CUBLAS], ids=lambda library: library.name)
@pytest.mark.parametrize("way", [shared_library._by_pathfinder, shared_library._in_packages])
def test_the_real_ones_are_found_either_way(library: Any, way: Any) -> None:
    """Where they are installed."""
    try:
        importlib.metadata.version(library.packages[0])
        importlib.metadata.version("cuda-pathfinder")
    except importlib.metadata.PackageNotFoundError as error:
        pytest.skip(f"{error} is not installed")
    received = way(library)
    assert isinstance(received.library, ctypes.CDLL)
    assert Path(received.path).is_file()
