"""CIFAR-10 in all its forms, made by the tests with few images, and damaged. No test leaves this machine."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import importlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import Dataset, cifar10
from crossbow.types import DataError
from tests.data.server import Server, dead_url

module = importlib.import_module("crossbow.data.cifar")
REAL = Path(__file__).parents[3] / "shared" / "data" / "cifar10-jpeg.npz"
COUNT = 20
"""Images in each of the six files."""
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGES", COUNT)


def images_of(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Of all six files, in order."""
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (6, COUNT, 3, 32, 32), np.uint8), random.integers(0, 10, (6, COUNT), np.uint8)


def binaries(seed: int = 0) -> dict[str, bytes]:
    images, labels = images_of(seed)
    return {
        f"{name}.bin": np.concatenate([labels[i][:, None], images[i].reshape(COUNT, -1)], axis=1).tobytes()
        for i, name in enumerate(NAMES)
    }


def pickles(write: Callable[[np.ndarray, list[int]], bytes], seed: int = 0) -> dict[str, bytes]:
    images, labels = images_of(seed)
    return {name: write(images[i].reshape(COUNT, -1), labels[i].tolist()) for i, name in enumerate(NAMES)}


def python_2(data: np.ndarray, labels: list[int]) -> bytes:
    """As the original files are: protocol 2 of Python 2, whose texts are bytes; opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
        + b"(K\x01" + b"M" + struct.pack("<H", len(data)) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        + b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
    )  # fmt: skip
    return b"\x80\x02}(" + text(b"labels") + b"](" + numbers + b"e" + text(b"data") + array + b"u."


def python_3(protocol: int, keys: type = bytes) -> Callable[[np.ndarray, list[int]], bytes]:
    names = ("data", "labels") if keys is str else (b"data", b"labels")
    return lambda data, labels: pickle.dumps(dict(zip(names, (data, labels), strict=True)), protocol)


def jpeg_arrays(train: int = 9, test: int = 4, size: tuple[int, int] = (32, 32)) -> dict[str, np.ndarray]:
    """As an .npz holds them: a smooth picture for each label."""
    simplejpeg = pytest.importorskip("simplejpeg")
    arrays, random = {}, np.random.default_rng(5)
    for phase, count in (("train", train), ("test", test)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        files = []
        for label in labels:
            corners = random.integers(0, 256, (2, 2, 3)).astype(np.uint8)
            pixels = corners.repeat(size[0] // 2, 0).repeat(size[1] // 2, 1)
            files.append(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 90 - int(label), "RGB"))
        arrays[f"{phase}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{phase}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{phase}_labels"] = labels
    return arrays


def write(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def archive(
    path: Path, folder: str, files: dict[str, bytes], backwards: bool = False, folders: Sequence[str] = ()
) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name in (folder, *folders):
            directory = tarfile.TarInfo(name)
            directory.type = tarfile.DIRTYPE
            tar.addfile(directory)
        for name in sorted([*files, "readme.html"], reverse=backwards):
            content = files.get(name, b"<html>")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def check(data: Dataset, seed: int = 0) -> None:
    """It holds these images, in the order of the files."""
    images, labels = images_of(seed)
    np.testing.assert_array_equal(data.train.images, images[:5].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(data.train.labels, labels[:5].reshape(-1))
    assert data.check is not None
    np.testing.assert_array_equal(data.check.images, images[5])
    np.testing.assert_array_equal(data.check.labels, labels[5])
    assert data.train.images.dtype == np.uint8
    assert data.number_of_classes == 10
    assert data.class_names is not None
    assert data.class_names[3] == "cat"


# What is found.


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_the_binaries(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, binaries())
    check(cifar10(tmp_path))


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-py"])
@pytest.mark.parametrize(
    "form",
    [python_2, *(python_3(protocol) for protocol in range(6)), python_3(4, str)],
    ids=["python 2", *(f"protocol {number}" for number in range(6)), "names are texts"],
)
def test_the_python_files(tmp_path: Path, form: Callable[..., bytes], folder: str) -> None:
    write(tmp_path / folder, pickles(form))
    check(cifar10(str(tmp_path)))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_the_archives(tmp_path: Path, form: str, itself: bool, backwards: bool) -> None:
    files, folder = (binaries(), "bin") if form == "binary" else (pickles(python_2), "py")
    path = archive(tmp_path / f"cifar-10-{form}.tar.gz", f"cifar-10-batches-{folder}", files, backwards)
    check(cifar10(path if itself else tmp_path))


def test_a_folder_of_a_files_name_in_an_archive(tmp_path: Path) -> None:
    files = binaries()
    path = archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files, folders=list(files))
    check(cifar10(path))


@pytest.mark.parametrize("name", ["cifar10.npz", "cifar10-jpeg.npz", "cifar-10.npz"])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_jpeg_files(tmp_path: Path, save: Callable[..., None], itself: bool, name: str) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    arrays = jpeg_arrays()
    save(tmp_path / name, **arrays)
    data = cifar10(tmp_path / name if itself else tmp_path)
    assert data.check is not None
    for phase, examples in (("train", data.train), ("test", data.check)):
        starts = arrays[f"{phase}_offsets"]
        for n, image in enumerate(examples.images):
            file = arrays[f"{phase}_jpeg"][starts[n] : starts[n + 1]].tobytes()
            np.testing.assert_array_equal(image.transpose(1, 2, 0), simplejpeg.decode_jpeg(file))
        np.testing.assert_array_equal(examples.labels, arrays[f"{phase}_labels"])


def test_which_of_several_is_read(tmp_path: Path) -> None:
    """The documented order; what comes later is not even looked at."""
    np.savez(tmp_path / "cifar10-b.npz", **jpeg_arrays(train=3))
    np.savez(tmp_path / "cifar10-a.npz", **jpeg_arrays(train=2))
    np.savez(tmp_path / "a.npz", nothing=np.zeros(3))
    assert len(cifar10(tmp_path).train) == 2
    archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", pickles(python_2, 1))
    check(cifar10(tmp_path), 1)
    write(tmp_path / "cifar-10-batches-py", pickles(python_2, 2))
    check(cifar10(tmp_path), 2)
    write(tmp_path, pickles(python_2, 3))
    check(cifar10(tmp_path), 3)
    archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", binaries(4))
    check(cifar10(tmp_path), 4)
    write(tmp_path / "cifar-10-batches-bin", binaries(5))
    check(cifar10(tmp_path), 5)
    write(tmp_path, binaries(6))
    check(cifar10(tmp_path), 6)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason=f"the real images are not beside the repository: {REAL}")
def test_the_real_images() -> None:
    data = cifar10(REAL.parent)
    assert data.train.images.shape == (50_000, 3, 32, 32)
    assert data.check is not None
    assert data.check.images.shape == (10_000, 3, 32, 32)
    np.testing.assert_array_equal(np.bincount(data.train.labels), [5000] * 10)
    np.testing.assert_array_equal(np.bincount(data.check.labels), [1000] * 10)
    # The means of red, green and blue that everybody subtracts; JPEG changes pixels a little.
    np.testing.assert_allclose(data.train.images.mean((0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=2e-4)


# What is refused: one sentence that names the file.


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        cifar10(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), "expected", ". Received: ", *parts):
        assert part in message, message


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such directory")
    write(tmp_path, {"data_batch_6.bin": b"", "other.npz": b""})
    refused(tmp_path, "data_batch_1.bin", "cifar-10-python.tar.gz", "none of them is there")


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_missing_file(tmp_path: Path, form: str, packed: bool) -> None:
    files = binaries() if form == "binary" else pickles(python_2)
    suffix = ".bin" if form == "binary" else ""
    del files[f"data_batch_3{suffix}"], files[f"test_batch{suffix}"]
    where = archive(tmp_path / f"cifar-10-{form}.tar.gz", "x", files) if packed else write(tmp_path, files)
    refused(where, f"all but data_batch_3{suffix}, test_batch{suffix}")


@pytest.mark.parametrize("length", [0, 3073, 3073 * COUNT - 1, 3073 * COUNT + 1, 3073 * (COUNT + 1)])
def test_a_binary_of_another_size(tmp_path: Path, length: int) -> None:
    files = binaries()
    files["data_batch_2.bin"] = (files["data_batch_2.bin"] * 2)[:length]
    refused(write(tmp_path, files), "data_batch_2.bin: expected 61,460 bytes", f"Received: {length:,}")


def test_labels_out_of_range(tmp_path: Path) -> None:
    files = binaries()
    damaged = bytearray(files["test_batch.bin"])
    damaged[3073 * 7] = 10
    files["test_batch.bin"] = bytes(damaged)
    refused(write(tmp_path / "a", files), "test_batch.bin: expected labels from 0 to 9. Received: 10 (image 7)")
    for label in (-1, 10, 255):
        images, labels = images_of()
        listed = labels[2].tolist()
        listed[4] = label
        files = {**pickles(python_2), "data_batch_3": python_3(4)(images[2].reshape(COUNT, -1), listed)}
        refused(write(tmp_path / "b", files), f"data_batch_3: expected labels from 0 to 9. Received: {label} (image 4)")
    arrays = jpeg_arrays()
    arrays["test_labels"][3] = 77
    np.savez(tmp_path / "cifar10.npz", **arrays)
    refused(tmp_path / "cifar10.npz", "test_labels: expected labels from 0 to 9. Received: 77 (image 3)")


@pytest.mark.parametrize("length", [0, 1, 100, 1000, -1])
def test_a_truncated_pickle(tmp_path: Path, length: int) -> None:
    files = pickles(python_2)
    files["data_batch_1"] = files["data_batch_1"][:length]
    refused(write(tmp_path, files), "data_batch_1: expected an intact pickle")


DATA = np.zeros((COUNT, 3072), np.uint8)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1, 2], "expected `data` of shape (20, 3072), uint8. Received: NoneType"),
        ({b"labels": [0] * COUNT}, "Received: NoneType"),
        ({b"data": DATA[:, :-1], b"labels": [0] * COUNT}, "Received: shape (20, 3071), uint8"),
        ({b"data": DATA.astype(np.int8), b"labels": [0] * COUNT}, "Received: shape (20, 3072), int8"),
        ({b"data": DATA}, "expected 20 labels, one for each image, integers. Received: NoneType"),
        ({b"data": DATA, b"labels": np.zeros(20)}, "Received: shape (20,), float64"),
        ({b"data": DATA, b"labels": [2**70] * 20}, "Received: shape (20,), object"),
        ({b"data": DATA, b"labels": [0] * 19}, "Received: shape (19,), int64"),
        ({b"data": DATA, b"labels": [0.5] * 20}, "Received: list"),
        ({b"data": DATA, b"labels": ["cat"] * 20}, "Received: list"),
        ({b"data": DATA, b"labels": [[0], [1, 2]]}, "Received: list"),
        ({b"data": DATA, b"labels": [0, [1, 2]]}, "Received: list"),
        ({b"data": DATA.astype(object), b"labels": [0] * COUNT}, "Received: an array of objects"),
        ({b"data": np.array(["a"]), b"labels": [0] * COUNT}, "Received: an array of type <U1"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_pickle_of_something_else(tmp_path: Path, protocol: int, held: Any, message: str) -> None:
    files = {**pickles(python_2), "data_batch_1": pickle.dumps(held, protocol)}
    refused(write(tmp_path, files), "data_batch_1: ", message)


class Attack:
    """What unpickling it would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_runs_nothing(tmp_path: Path, protocol: int, wrapped: bool) -> None:
    attack = Attack(tmp_path / "attacked")
    content = pickle.dumps({b"data": np.array([attack], object) if wrapped else attack}, protocol)
    refused(
        write(tmp_path / "a", {"test_batch": content}), "test_batch: expected a pickle of arrays, lists and numbers"
    )
    assert not (tmp_path / "attacked").exists()
    pickle.loads(content)
    assert (tmp_path / "attacked").exists(), "it is an attack"


@pytest.mark.parametrize("call", ["numpy.core.multiarray\nfromstring", "builtins\neval", "numpy\nload", "os\nsystem"])
def test_functions_that_a_pickle_may_not_name(tmp_path: Path, call: str) -> None:
    content = f"c{call}\n(S'1'\ntR.".encode()
    refused(write(tmp_path, {"test_batch": content}), f"one that calls {call.replace(chr(10), '.')}")


@pytest.mark.parametrize(
    "damage", ["truncated", "a bit", "a bit of a padded one", "plain", "empty", "tar in nothing", "no name of ours"]
)
def test_a_damaged_archive(tmp_path: Path, damage: str) -> None:
    path = archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", binaries())
    content = path.read_bytes()
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage.startswith("a bit"):
        if "padded" in damage:  # the reader of archives does not look that far
            content = gzip.compress(gzip.decompress(content) + bytes(3 << 20), 1)
        content = content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]  # of the checksum
    elif damage == "plain":
        content = gzip.decompress(content)
    elif damage == "empty":
        content = b""
    elif damage == "tar in nothing":
        content = gzip.compress(b"no archive" * 1000)
    else:
        content = archive(tmp_path / "other", "x", {"a": b"1"}).read_bytes()
    path.write_bytes(content)
    expected = (
        "expected an archive with data_batch_1.bin" if damage == "no name of ours" else "expected an intact .tar.gz"
    )
    refused(path, expected)


@pytest.mark.parametrize("length", [0, 10, 1000, -1, -100])
def test_a_truncated_npz(tmp_path: Path, length: int) -> None:
    np.savez(tmp_path / "cifar10.npz", **jpeg_arrays())
    content = (tmp_path / "cifar10.npz").read_bytes()
    (tmp_path / "cifar10.npz").write_bytes(content[:length])
    refused(tmp_path / "cifar10.npz", "expected an intact .npz")


def test_an_npz_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "cifar10.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    refused(path, "expected an intact .npz")
    path.write_bytes(pickle.dumps(Attack(tmp_path / "attacked")))
    refused(path, "expected an intact .npz")
    np.savez(path, train_jpeg=np.array([Attack(tmp_path / "attacked")], object))
    refused(path, "expected an intact .npz")
    assert not (tmp_path / "attacked").exists()


def test_what_is_no_path() -> None:
    for path in (5, b"cifar"):
        with pytest.raises(TypeError, match=r"^cifar10: expected a path, as a str or a pathlib\.Path\. Received: "):
            cifar10(path)  # type: ignore[arg-type]


LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
"""Where the headers of a file in a zip archive begin."""


@pytest.mark.parametrize(
    ("local", "central", "value"),
    [(8, 10, 99), (6, 8, 1), (6, 8, 1 << 5), (4, 6, 99)],
    ids=["compression", "encrypted", "patched", "version"],
)
def test_an_npz_whose_headers_are_damaged(tmp_path: Path, local: int, central: int, value: int) -> None:
    path = tmp_path / "cifar10.npz"
    np.savez(path, **jpeg_arrays())
    content = bytearray(path.read_bytes())
    for begin, place in ((LOCAL, local), (CENTRAL, central)):
        at = content.index(begin) + place
        content[at : at + 2] = value.to_bytes(2, "little")
    path.write_bytes(content)
    refused(path, "expected an intact .npz")


def test_the_largest_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, arrays = tmp_path / "cifar10.npz", jpeg_arrays()
    np.savez(path, **arrays)
    size = sum(array.nbytes for array in arrays.values())
    monkeypatch.setattr("crossbow.data.cifar.LARGEST_ARCHIVE", size)
    assert len(cifar10(path).train) == len(arrays["train_offsets"]) - 1
    monkeypatch.setattr("crossbow.data.cifar.LARGEST_ARCHIVE", size - 1)
    refused(path, "expected an intact .npz")


@pytest.mark.parametrize("folder", ["", "archive"])
def test_the_largest_file(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = binaries()
    path = archive(tmp_path / "cifar-10-binary.tar.gz", folder, files) if folder else write(tmp_path, files)
    size = max(map(len, files.values()))
    monkeypatch.setattr("crossbow.data.cifar.LARGEST_FILE", size)
    check(cifar10(path))
    monkeypatch.setattr("crossbow.data.cifar.LARGEST_FILE", size - 1)
    refused(path, "expected at most", "Received: more than that")


def test_an_archive_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six, a text and a folder."""
    path = archive(tmp_path / "cifar-10-binary.tar.gz", "folder", binaries())
    monkeypatch.setattr("crossbow.data.cifar.MOST_MEMBERS", 8)
    check(cifar10(path))
    monkeypatch.setattr("crossbow.data.cifar.MOST_MEMBERS", 7)
    refused(path, "an archive of at most 7 files. Received: more")


@pytest.mark.parametrize(("train", "test"), [(1, 1), (0, 4), (9, 0)])
def test_an_npz_has_at_least_one_image_of_each_phase(tmp_path: Path, train: int, test: int) -> None:
    path = tmp_path / "cifar10.npz"
    np.savez(path, **jpeg_arrays(train, test))
    if train and test:
        data = cifar10(path)
        assert (len(data.train), 0 if data.check is None else len(data.check)) == (1, 1)
    else:
        refused(path, f"expected {'test' if train else 'train'}_offsets, with one integer more than there are images")


@pytest.mark.parametrize("shape", ["(9" + "9" * 15 + ",)", "((", "(1,", "{[}", "(-1,)", "'"])
def test_an_npz_of_arrays_whose_headers_are_damaged(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "cifar10.npz"
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_jpeg.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    refused(path, "expected an intact .npz")


def cut(arrays: dict[str, np.ndarray]) -> None:
    arrays["train_jpeg"] = arrays["train_jpeg"][:-1]


def swap(arrays: dict[str, np.ndarray]) -> None:
    arrays["train_offsets"][[1, 2]] = arrays["train_offsets"][[2, 1]]


def tear(arrays: dict[str, np.ndarray]) -> None:
    """The second half of one file is missing."""
    middle = arrays["train_offsets"][2:4].sum() // 2
    arrays["train_jpeg"] = np.delete(arrays["train_jpeg"], slice(middle, arrays["train_offsets"][3]))
    arrays["train_offsets"][3:] -= arrays["train_offsets"][3] - middle


def scribble(arrays: dict[str, np.ndarray]) -> None:
    arrays["test_jpeg"] = arrays["test_jpeg"].copy()
    arrays["test_jpeg"][arrays["test_offsets"][1] :][:20] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("test_offsets"), "Received: all but test_offsets"),
        (lambda arrays: arrays.update(train_labels=arrays["train_labels"][:-1]), "expected 9 labels"),
        (lambda arrays: arrays.update(train_labels=arrays["train_labels"] * 0.5), "Received: shape (9,), float64"),
        (lambda arrays: arrays.update(test_jpeg=arrays["test_jpeg"].astype(np.int16)), "shape (", ),
        (lambda arrays: arrays.update(train_offsets=arrays["train_offsets"][:1]), "expected train_offsets"),
        (lambda arrays: arrays.update(train_offsets=arrays["train_offsets"] + 0.5), "expected train_offsets"),
        (lambda arrays: arrays.update(train_offsets=arrays["train_offsets"][1:]), "to rise from 0 to"),
        (lambda arrays: arrays.update(train_offsets=arrays["train_offsets"][:, None]), "expected train_offsets, with"),
        (lambda arrays: arrays.update(test_jpeg=arrays["test_jpeg"][:, None]), "expected test_jpeg, all files"),
        (cut, "expected train_offsets to rise from 0 to"),
        (swap, "expected train_offsets to rise from 0 to"),
        (tear, "train_jpeg: image 2: expected an intact JPEG file"),
        (scribble, "test_jpeg: image 1: expected an image file"),
    ],
)  # fmt: skip
def test_an_npz_that_does_not_fit(tmp_path: Path, change: Callable[..., Any], message: str) -> None:
    arrays = jpeg_arrays()
    change(arrays)
    np.savez(tmp_path / "cifar10.npz", **arrays)
    refused(tmp_path / "cifar10.npz", message)


def test_jpeg_files_of_another_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", **jpeg_arrays(size=(32, 30)))
    refused(tmp_path / "cifar10.npz", "train_jpeg: image 0: expected 32×32 pixels. Received: 32×30")


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").mkdir()
    refused(tmp_path, "none of them is there")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    write(tmp_path, binaries())
    (tmp_path / "data_batch_4.bin").chmod(0)
    refused(tmp_path, "data_batch_4.bin: expected a readable file", "Permission denied")


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if the package were not installed."""

    def importing(name: str, *rest: Any, **options: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {package!r}")
        return real(name, *rest, **options)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", importing)


def test_without_a_decoder_one_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "cifar10.npz", **jpeg_arrays())
    monkeypatch.setattr("crossbow.data.images._package", lambda name: None)
    with pytest.raises(DataError, match=r"cifar10.npz.*needs Pillow: pip install 'crossbow\[zoo\]'"):
        cifar10(tmp_path)


# Downloading.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "crossbow" / "cifar-10"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (name,) = module.FILES
    path = archive(tmp_path / "served" / name, "cifar-10-batches-bin", binaries())
    made = Server(path.parent)
    monkeypatch.setattr(module, "MIRRORS", (made.url,))
    monkeypatch.setattr(module, "FILES", {name: hashlib.sha256(path.read_bytes()).hexdigest()})
    yield made
    made.close()


def test_downloads_once(cache: Path, server: Server) -> None:
    check(cifar10())
    assert os.listdir(cache) == list(module.FILES)
    server.requests.clear()
    check(cifar10())
    assert server.requests == []


def test_another_file_under_the_name_is_refused_and_not_kept(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES", dict.fromkeys(module.FILES, "0" * 64))
    with pytest.raises(DataError, match=r"CIFAR-10 could not be downloaded \(127.0.0.1:\d+: SHA256 hash"):
        cifar10()
    assert os.listdir(cache) == []


def check_sentence(error: DataError) -> None:
    message = str(error)
    assert "CIFAR-10" in message
    assert "--dataset synthetic" in message
    assert "--data-directory" in message
    assert "\n" not in message


def test_nobody_listens(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIRRORS", (dead_url(),))
    with pytest.raises(DataError, match="not reachable") as caught:
        cifar10()
    check_sentence(caught.value)


def test_without_pooch_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pooch")
    with pytest.raises(DataError, match=r"pip install 'crossbow\[zoo\]'") as caught:
        cifar10()
    check_sentence(caught.value)


def test_where_it_comes_from() -> None:
    assert module.MIRRORS == ("https://www.cs.toronto.edu/~kriz/",)
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in module.FILES.values())
