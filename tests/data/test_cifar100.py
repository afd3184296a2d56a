"""CIFAR-100 in its forms, made by the tests with few images. What is common with CIFAR-10 is tested there."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import Dataset, cifar100
from crossbow.types import DataError
from tests.data.server import Server
from tests.data.test_cifar import COUNT, archive, write

module = importlib.import_module("crossbow.data.cifar")
SIZES = {"train": 5 * COUNT, "test": COUNT}


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGES", COUNT)


def content(phase: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, fine and coarse labels."""
    random, count = np.random.default_rng(len(phase)), SIZES[phase]
    fine = random.integers(0, 100, count).astype(np.uint8)
    return random.integers(0, 256, (count, 3, 32, 32), np.uint8), fine, fine // 5


def binaries() -> dict[str, bytes]:
    """Each image is a coarse label, a fine label, and 3,072 bytes of pixels."""
    files = {}
    for phase in SIZES:
        images, fine, coarse = content(phase)
        pairs = zip(images, fine, coarse, strict=True)
        files[f"{phase}.bin"] = b"".join(bytes([c, f]) + image.tobytes() for image, f, c in pairs)
    return files


def pickles(keys: type = bytes) -> dict[str, bytes]:
    files = {}
    for phase, count in SIZES.items():
        images, fine, coarse = content(phase)
        held = {
            "filenames": ["a.png"] * count,
            "batch_label": "training batch 1 of 1",
            "fine_labels": fine.tolist(),
            "coarse_labels": coarse.tolist(),
            "data": images.reshape(count, -1),
        }
        files[phase] = pickle.dumps({name if keys is str else name.encode(): value for name, value in held.items()}, 2)
    return files


def check(data: Dataset, labels: str = "fine") -> None:
    assert data.check is not None
    for phase, examples in (("train", data.train), ("test", data.check)):
        images, fine, coarse = content(phase)
        np.testing.assert_array_equal(examples.images, images)
        np.testing.assert_array_equal(examples.labels, fine if labels == "fine" else coarse)
    assert data.number_of_classes == (100 if labels == "fine" else 20)
    assert data.class_names is not None
    assert len(data.class_names) == data.number_of_classes
    assert data.train.images.dtype == np.uint8


@pytest.mark.parametrize("labels", ["fine", "coarse"])
@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("place", ["", "folder", "archive", "archive itself"])
def test_every_form(tmp_path: Path, form: str, labels: str, place: str) -> None:
    files = binaries() if form == "binary" else pickles()
    folder = f"cifar-100-{form}"
    path = tmp_path
    if place.startswith("archive"):
        made = archive(tmp_path / f"{folder}.tar.gz", folder, files, backwards=True)
        path = made if place == "archive itself" else tmp_path
    else:
        write(tmp_path / (folder if place else ""), files)
    check(cifar100(path, labels), labels)


def test_the_fine_labels_are_the_default_and_names_may_be_texts(tmp_path: Path) -> None:
    check(cifar100(write(tmp_path, pickles(str))))


def test_labels_that_there_are_not(tmp_path: Path) -> None:
    for labels in ("both", ["fine"], None):
        with pytest.raises(DataError) as caught:
            cifar100(tmp_path, labels)  # type: ignore[arg-type]
        assert str(caught.value) == f"labels: expected coarse or fine. Received: {labels!r}"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are those of POSIX")
def test_what_is_neither_a_file_nor_a_directory_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: expected a directory with CIFAR-100's files\. Received: a pipe$"):
        cifar100(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"nowhere: expected a directory.*Received: no such directory$"):
        cifar100(tmp_path / "nowhere")


def changed(files: dict[str, bytes], name: str, place: int, value: int) -> dict[str, bytes]:
    data = bytearray(files[name])
    data[place] = value
    return {**files, name: bytes(data)}


def repickled(change: Callable[[dict[bytes, Any]], object]) -> dict[str, bytes]:
    held = pickle.loads(pickles()["test"])
    change(held)
    return {**pickles(), "test": pickle.dumps(held, 2)}


DAMAGED = {
    "a coarse label": (changed(binaries(), "train.bin", 3074 * 2, 20), "train.bin: expected labels from 0 to 19"),
    "a fine label": (changed(binaries(), "test.bin", 1, 100), "test.bin: expected labels from 0 to 99"),
    "a truncated file": ({**binaries(), "test.bin": binaries()["test.bin"][:-1]}, "3,074 for each of 20 images"),
    "swapped files": (dict(zip(binaries(), reversed(binaries().values()), strict=True)), "for each of 100 images"),
    "the binaries of CIFAR-10": (
        {name: content.replace(content[:1], b"", 1) for name, content in binaries().items()},
        "train.bin: expected 307,400 bytes",
    ),
    "a missing file": ({"train.bin": binaries()["train.bin"]}, "expected train.bin … test.bin. Received: all but test"),
    "a pickle without labels": (repickled(lambda held: held.pop(b"fine_labels")), "test: expected 20 labels"),
    "a pickle with a wrong label": (repickled(lambda held: held[b"fine_labels"].append(1)), "test: expected 20 labels"),
    "a pickle of text": ({**pickles(), "train": pickle.dumps("text")}, "train: expected `data` of shape (100, 3072)"),
    "nothing": ({}, "CIFAR-100's train.bin …, train …, cifar-100-binary.tar.gz or cifar-100-python.tar.gz. Received"),
}


@pytest.mark.parametrize(("files", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write(tmp_path, files)
    with pytest.raises(DataError) as caught:
        cifar100(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_foreign_archives_and_files(tmp_path: Path) -> None:
    path = archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", {"data_batch_1.bin": b""})
    with pytest.raises(DataError, match=r"expected an archive with train\.bin or train\. Received: none"):
        cifar100(path)
    np.savez(tmp_path / "cifar10.npz", train_jpeg=np.zeros(3))
    for received in (tmp_path / "cifar10.npz", tmp_path):
        with pytest.raises(DataError, match="expected "):
            cifar100(received)


# Downloading


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (name,) = module.FILES_100
    path = archive(tmp_path / "served" / name, "cifar-100-binary", binaries())
    made = Server(path.parent)
    monkeypatch.setattr(module, "MIRRORS", (made.url,))
    monkeypatch.setattr(module, "FILES_100", {name: hashlib.sha256(path.read_bytes()).hexdigest()})
    yield made
    made.close()


def test_downloads_once(tmp_path: Path, server: Server) -> None:
    check(cifar100())
    server.requests.clear()
    check(cifar100(labels="coarse"), "coarse")
    assert server.requests == []
    assert os.listdir(tmp_path / "cache" / "crossbow" / "cifar-100") == list(module.FILES_100)


def test_a_wrong_hash(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_100", dict.fromkeys(module.FILES_100, "0" * 64))
    with pytest.raises(DataError, match=r"CIFAR-100 could not be downloaded .*SHA256.*that holds CIFAR-100's files"):
        cifar100()


def test_the_documented_hash_is_one_of_sha256() -> None:
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in module.FILES_100.values())
