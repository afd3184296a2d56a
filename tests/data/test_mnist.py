"""MNIST from a directory, from a (local) server, and without a network. No test leaves this machine."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import fashion_mnist, mnist
from crossbow.types import DataError
from tests.data.server import Server, dead_url
from tests.support import SECONDS, within

module = importlib.import_module("crossbow.data.mnist")
REAL = Path(__file__).parents[3] / "shared" / "data" / "mnist"
NAMES = list(module.FILES)


def small_files(train: int = 12, check: int = 5) -> dict[str, bytes]:
    """Four small files of the right form, gzipped, by name."""
    files, random = {}, np.random.default_rng(0)
    for prefix, count in (("train", train), ("t10k", check)):
        pixels = random.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        images = struct.pack(">HBB3I", 0, 8, 3, *pixels.shape) + pixels.tobytes()
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(i % 10 for i in range(count))
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(images, mtime=0)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(labels, mtime=0)
    return files


def write(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


# From a directory.


@pytest.mark.skipif(
    not REAL.is_dir(), reason="the real MNIST files are not beside the repository (../shared/data/mnist)"
)
def test_the_real_files() -> None:
    data = mnist(REAL)
    assert data.check is not None
    assert data.train.images.shape == (60000, 1, 28, 28)
    assert data.check.images.shape == (10000, 1, 28, 28)
    assert data.train.images.dtype == np.uint8
    assert data.scale == 1 / 255
    assert data.number_of_classes == 10
    assert data.class_names == tuple("0123456789")
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.check.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert data.train.images.mean() * data.scale == pytest.approx(0.1307, abs=1e-4)
    assert np.bincount(data.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize("spelling", ["{}.gz", "{}", "dotted", "dotted.gz"])
def test_every_spelling_of_the_names(tmp_path: Path, spelling: str) -> None:
    files = {}
    for name, content in small_files().items():
        plain = name.removesuffix(".gz")
        other = spelling.format(plain).replace("dotted", plain.replace("-idx", ".idx"))
        files[other] = content if other.endswith(".gz") else gzip.decompress(content)
    data = mnist(write(tmp_path, files))
    assert len(data.train) == 12
    assert data.check is not None
    assert len(data.check) == 5
    assert data.image_shape == (1, 28, 28)
    assert data.number_of_classes == 10


def test_a_missing_directory_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.*Received: no such directory"):
        mnist(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"file: expected a directory with MNIST's.*Received: a file$"):
        mnist(tmp_path / "file")
    files = small_files()
    del files[NAMES[3]]
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte or .*Received: none of them"):
        mnist(write(tmp_path, files))


def test_what_is_no_path() -> None:
    for path in (5, b"mnist", ("a", "b")):
        with pytest.raises(TypeError, match=r"^mnist: expected a path, as a str or a pathlib\.Path\. Received: "):
            mnist(path)  # type: ignore[arg-type]


def test_a_directory_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)  # root may read everything
    with pytest.raises(DataError, match=r"idx3-ubyte: expected a readable directory\. Received: Permission denied$"):
        mnist(tmp_path)


def test_files_of_another_form_are_named(tmp_path: Path) -> None:
    files = small_files()
    swapped = {**files, NAMES[0]: files[NAMES[1]]}
    with pytest.raises(DataError, match=r"train-images.*expected images \(N, 28, 28\).*shape \(12,\)"):
        mnist(write(tmp_path / "swapped", swapped))
    with pytest.raises(DataError, match=r"train-labels.*expected labels \(N,\), uint8.*shape \(12, 28, 28\)"):
        mnist(write(tmp_path / "images", {**files, NAMES[1]: files[NAMES[0]]}))
    with pytest.raises(DataError, match=r"t10k-images.*expected images \(N, 28, 28\).*shape \(0, 28, 28\)"):
        mnist(write(tmp_path / "none", {**files, **small_files(check=0)}))
    wide = struct.pack(">HBBI", 0, 0x0B, 1, 12) + bytes(24)
    with pytest.raises(DataError, match=r"train-labels.*expected labels \(N,\), uint8.*shape \(12,\), int16"):
        mnist(write(tmp_path / "wide", {**files, NAMES[1]: wide}))
    mixed = {**files, NAMES[3]: files[NAMES[1]]}
    with pytest.raises(DataError, match=r"t10k-labels.*expected 5 labels.*Received: 12"):
        mnist(write(tmp_path / "mixed", mixed))
    truncated = {**files, NAMES[2]: files[NAMES[2]][:-20]}
    with pytest.raises(DataError, match=r"t10k-images.*intact gzip"):
        mnist(write(tmp_path / "truncated", truncated))
    labels = struct.pack(">HBBI", 0, 8, 1, 12) + bytes(range(12))
    with pytest.raises(
        DataError, match=r"train-labels-idx1-ubyte\.gz: expected 0 ≤ label < 10\. Received: 11 for image 11$"
    ):
        mnist(write(tmp_path / "labels", {**files, NAMES[1]: labels}))


def test_swapped_training_and_check_files_are_refused(tmp_path: Path) -> None:
    swapped = {
        name.replace("train", "?").replace("t10k", "train").replace("?", "t10k"): content
        for name, content in small_files().items()
    }
    for load in (mnist, fashion_mnist):
        with pytest.raises(
            DataError,
            match=r"train-images-idx3-ubyte\.gz: expected at least as many training images as check images, 12\. "
            r"Received: 5, as if the files named train and t10k were swapped$",
        ):
            load(write(tmp_path / "swapped", swapped))
        assert len(load(write(tmp_path / "equal", small_files(5, 5))).train) == 5


# From a server on this machine.

pooch_is_here = pytest.mark.skipif(importlib.util.find_spec("pooch") is None, reason="pooch is not installed ([zoo])")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, in a temporary place; proxies are off."""
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "crossbow" / "mnist"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    files = small_files()
    made = Server(write(tmp_path / "served", files))
    monkeypatch.setattr(module, "MIRRORS", (made.url,))
    monkeypatch.setattr(module, "FILES", {name: hashlib.sha256(files[name]).hexdigest() for name in NAMES})
    yield made
    made.close()


@pooch_is_here
def test_downloads_once(cache: Path, server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    first = mnist()
    assert sorted(os.listdir(cache)) == sorted(NAMES)
    assert sum(request.startswith("GET") for request in server.requests) == 4
    progress = capfd.readouterr()
    assert progress.out == ""
    assert all(name in progress.err for name in NAMES)
    server.requests.clear()
    again = mnist()
    assert server.requests == []
    np.testing.assert_array_equal(first.train.images, again.train.images)
    assert capfd.readouterr() == ("", "")


# Without a network.


def check_sentence(error: DataError) -> None:
    message = str(error)
    assert "--dataset digits" in message
    assert "--data-directory" in message
    assert "\n" not in message
    assert ". " not in message


@pooch_is_here
def test_nobody_listens(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIRRORS", (dead_url(), dead_url()))
    monkeypatch.setattr("crossbow.data.download.SECONDS_TO_CONNECT", 2 * SECONDS)
    with pytest.raises(DataError) as caught:
        within(SECONDS, mnist)
    check_sentence(caught.value)
    assert not cache.exists() or os.listdir(cache) == []


def test_the_documented_hashes_are_those_of_sha256() -> None:
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in module.FILES.values())
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in module.MIRRORS)
