"""Files that would take much more memory than they have bytes are refused before they do, in a process that may have
little."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from crossbow import DataError
from crossbow.data import cifar, cifar10
from crossbow.data.cifar import MOST_MEMBERS
from tests.data.test_pickles import shared_lists

ROOM = 200 << 20
"""Bytes that reading may take besides what Python and NumPy have."""
CHILD = """
import json, resource, sys
from crossbow import DataError
from crossbow.data import cifar10
from crossbow.data.idx import read_idx
from crossbow.data.pickles import read_pickle
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {room},) * 2)
answers = {{}}
for path in sys.argv[1:]:
    try:
        if path.endswith("pickle"):
            read_pickle(open(path, "rb").read(), path)
        else:
            (read_idx if path.endswith("idx") else cifar10)(path)
        answers[path] = ""
    except DataError as error:
        answers[path] = str(error)
print(json.dumps(answers))
"""


def idx(shape: tuple[int, ...]) -> bytes:
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], zeros: int = 0) -> None:
    """A .tar.gz, whose last member is followed by so many zeros."""
    with gzip.open(path, "wb", 1) as file:
        for info, content in members:
            file.write(info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
        for _ in range(zeros >> 20):
            file.write(bytes(1 << 20))


def member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def npz(path: Path, **headers: str) -> None:
    """An .npz of arrays that have headers alone, with a megabyte of zeros behind."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, header in headers.items():
            text = header.encode() + b"\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(1 << 20))


def huge_jpeg(path: Path) -> None:
    """An .npz of one image whose header says 65500×65500."""
    simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg, of the extra zoo, is not installed")
    small = bytearray(simplejpeg.encode_jpeg(np.zeros((32, 32, 3), np.uint8)))
    place = small.index(b"\xff\xc0") + 5
    small[place : place + 4] = struct.pack(">HH", 65500, 65500)
    arrays = {"jpeg": np.frombuffer(bytes(small), np.uint8), "offsets": np.array([0, len(small)])}
    arrays["labels"] = np.zeros(1, np.int64)
    np.savez(path, **{f"{phase}_{name}": array for phase in ("train", "test") for name, array in arrays.items()})


def many_images(path: Path) -> None:
    parts = {"offsets": np.r_[np.zeros(300_000, np.int64), 1], "jpeg": np.zeros(1, np.uint8)}
    parts["labels"] = np.zeros(300_000, np.int64)
    np.savez_compressed(
        path, **{f"{phase}_{name}": array for phase in ("train", "test") for name, array in parts.items()}
    )


ANSWERS = {
    "a gzip of 250 MB.idx": "expected 784016 bytes for shape (1000, 28, 28)",
    "a header that says gigabytes.idx": "at most 1.0 GB",
    "a header that says a gigabyte.idx": "a truncated file",
    "a gzip whose header says a gigabyte.idx": "a truncated file",
    "a file of a tar.tar.gz": "data_batch_1.bin: expected at most 67.1 MB",
    "many files in a tar.tar.gz": "expected an archive of at most 1,000 files",
    "an array.npz": "expected an intact .npz of arrays. Received: one of shape (8000000000,), uint8, in 1.0 MB",
    "an element.npz": "expected an intact .npz of arrays",
    "many images.npz": "expected at most 200,000 images. Received: 300,000",
    "a jpeg.npz": "image 0: expected 32×32 pixels. Received: 65500×65500",
    "shared lists.pickle": "",  # they are read, as one list in many places
    "places.pickle": "a value stored at index 1073741823",
    "places in text.pickle": "a value stored at index 1000000000",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said of the files, by their names."""
    folder = tmp_path_factory.mktemp("files")
    with gzip.open(folder / "a gzip of 250 MB.idx", "wb", 1) as file:
        file.write(idx((1000, 28, 28)))
        for _ in range(250):
            file.write(bytes(1 << 20))
    (folder / "a header that says gigabytes.idx").write_bytes(idx((60000, 2**20)))
    (folder / "a header that says a gigabyte.idx").write_bytes(idx((1000, 10**6)))
    (folder / "a gzip whose header says a gigabyte.idx").write_bytes(gzip.compress(idx((1000, 10**6))))
    tar(folder / "a file of a tar.tar.gz", (member("cifar/data_batch_1.bin", 5 << 30), b""), zeros=70 << 20)
    tar(folder / "many files in a tar.tar.gz", *[(member(f"cifar/{n}", 0), b"") for n in range(MOST_MEMBERS + 1)])
    npz(folder / "an array.npz", train_jpeg="{'descr': '|u1', 'fortran_order': False, 'shape': (8000000000,)}")
    npz(folder / "an element.npz", train_jpeg="{'descr': '|V2000000000', 'fortran_order': False, 'shape': (1,)}")
    assert (folder / "an array.npz").stat().st_size < 7000
    many_images(folder / "many images.npz")
    huge_jpeg(folder / "a jpeg.npz")
    (folder / "shared lists.pickle").write_bytes(shared_lists(9))
    assert (folder / "shared lists.pickle").stat().st_size < 400
    (folder / "places.pickle").write_bytes(b"\x80\x02]r\xff\xff\xff\x3f.")
    (folder / "places in text.pickle").write_bytes(b"\x80\x02]p1000000000\n.")
    command = [sys.executable, "-c", CHILD.format(room=ROOM), *map(str, sorted(folder.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {Path(path).name: answer for path, answer in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_a_file_that_asks_for_much(name: str, answers: dict[str, str]) -> None:
    assert answers.keys() == ANSWERS.keys()
    assert "\n" not in answers[name]
    assert ANSWERS[name] in answers[name]
    assert bool(ANSWERS[name]) == bool(answers[name])


def test_an_archive_that_is_too_large_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "LARGEST_ARCHIVE", 10 << 20)
    tar(tmp_path / "c.tar.gz", (member("cifar/other", 5 << 30), b""), zeros=20 << 20)
    with pytest.raises(DataError, match=r"expected at most 10\.4 MB, unpacked\. Received: more than that"):
        cifar10(tmp_path / "c.tar.gz")
