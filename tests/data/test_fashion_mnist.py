"""Fashion-MNIST: MNIST's format under another name. What is common is tested with MNIST."""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path

import pytest

from crossbow.data import fashion_mnist
from crossbow.types import DataError
from tests.data.server import Server
from tests.data.test_mnist import small_files, write

module = importlib.import_module("crossbow.data.mnist")


def test_from_a_directory(tmp_path: Path) -> None:
    data = fashion_mnist(write(tmp_path, small_files()))
    assert data.check is not None
    assert (len(data.train), len(data.check)) == (12, 5)
    assert data.image_shape == (1, 28, 28)
    assert data.number_of_classes == 10
    assert data.class_names is not None
    assert data.class_names[9] == "ankle boot"


def test_messages_have_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected Fashion-MNIST's file train-images"):
        fashion_mnist(tmp_path)
    with pytest.raises(DataError, match=r"expected a directory with Fashion-MNIST's four IDX files"):
        fashion_mnist(tmp_path / "nowhere")
    with pytest.raises(TypeError, match=r"^fashion_mnist: expected a path"):
        fashion_mnist(5)  # type: ignore[arg-type]


def test_downloads_into_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    files = small_files()
    server = Server(write(tmp_path / "served", files))
    monkeypatch.setattr(module, "FASHION_MIRRORS", (server.url,))
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in module.FASHION_FILES}
    monkeypatch.setattr(module, "FASHION_FILES", hashes)
    try:
        assert len(fashion_mnist().train) == 12
        assert sorted(os.listdir(tmp_path / "cache" / "crossbow" / "fashion-mnist")) == sorted(hashes)
        monkeypatch.setattr(module, "FASHION_FILES", dict.fromkeys(hashes, "0" * 64))
        with pytest.raises(DataError, match=r"Fashion-MNIST could not be downloaded .*that holds Fashion-MNIST's four"):
            fashion_mnist()
    finally:
        server.close()


def test_its_hashes_are_not_those_of_mnist() -> None:
    assert list(module.FASHION_FILES) == list(module.FILES)
    assert not {*module.FASHION_FILES.values()} & {*module.FILES.values()}
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in module.FASHION_FILES.values())
