"""MNIST: 60,000 + 10,000 handwritten digits, 28×28 (LeCun, Cortes, Burges)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from crossbow.data.dataset import Dataset
from crossbow.data.idx import read_idx
from crossbow.types import Array, DataError

FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""Names and sha256 of the original files."""

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Where the files are; the next one is tried when one fails."""

SECONDS_TO_CONNECT = 5.0
"""How long a mirror may take to answer at all."""

SECONDS_TO_READ = 30.0
"""How long a download may stand still."""


def mnist(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """MNIST: images uint8 (N, 1, 28, 28), pixels in [0, 1] when batched; 60,000 to train with, 10,000 to check with.

    With a directory, its four IDX files are read (`train-images-idx3-ubyte`, gzipped or not, with or without `.gz`;
    `train-images.idx3-ubyte` is understood too). Without, they are downloaded once into the user's cache folder, and
    their hashes checked.

    Raises DataError where a file is missing or damaged, or cannot be downloaded.
    """
    paths = _download() if directory is None else [_find(Path(directory), name) for name in FILES]
    x_train, y_train, x_check, y_check = (_read(path, images="images" in path.name) for path in paths)
    for images, labels, path in ((x_train, y_train, paths[1]), (x_check, y_check, paths[3])):
        if len(images) != len(labels):
            raise DataError(f"{path}: expected {len(images)} labels, one for each image. Received: {len(labels)}")
    return Dataset((x_train[:, None], y_train), (x_check[:, None], y_check), number_of_classes=10)


def _read(path: Path, *, images: bool) -> Array:
    array = read_idx(path)
    dimensions = 3 if images else 1
    if array.dtype != np.uint8 or array.ndim != dimensions or array.size == 0:
        kind = "images (N, 28, 28)" if images else "labels (N,)"
        raise DataError(f"{path}: expected {kind}, uint8. Received: shape {array.shape}, {array.dtype}")
    return array


def _find(directory: Path, name: str) -> Path:
    """The file in the directory, in any of its usual spellings."""
    plain = name.removesuffix(".gz")
    dotted = plain.replace("-idx", ".idx")
    spellings = (plain, name, dotted, dotted + ".gz")
    for spelling in spellings:
        if (directory / spelling).is_file():
            return directory / spelling
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory with MNIST's four IDX files. Received: no such directory")
    raise DataError(f"{directory}: expected MNIST's file {' or '.join(spellings)}. Received: none of them is there")


def _download() -> list[Path]:
    """The four files in the cache; those that are not there, or are damaged, come from a mirror."""
    try:
        import pooch
    except ImportError as error:
        raise DataError(
            "downloading MNIST needs pooch: pip install 'crossbow[zoo]' (or --data-directory with its four files)"
        ) from error
    cache = Path(pooch.os_cache("crossbow")) / "mnist"
    with _Progress() as progress, _quiet(pooch.get_logger()):
        return [_retrieve(pooch, name, sha256, cache, progress) for name, sha256 in FILES.items()]


def _retrieve(pooch: ModuleType, name: str, sha256: str, cache: Path, progress: _Progress) -> Path:
    def download(url: str, path: str, unused: object) -> None:
        # Called by pooch only when the file is not in the cache. `path` is a temporary file beside it, which takes the
        # file's name once its hash is right, and is removed otherwise.
        _check_reachable(url)
        _fetch(url, Path(path), progress.begin(name))

    reasons: list[str] = []
    failure: Exception | None = None
    for mirror in MIRRORS:
        try:
            return Path(pooch.retrieve(mirror + name, sha256, fname=name, path=cache, downloader=download))
        except (OSError, ValueError) as error:  # no network (requests' errors are OSErrors), no space, a wrong hash
            failure = error
            reasons.append(f"{mirror.split('/')[2]}: {_first_line(error)}")
    raise DataError(
        f"MNIST could not be downloaded ({'; '.join(reasons)}): train on the bundled digits with --dataset digits, "
        "or name a directory that holds MNIST's four files with --data-directory"
    ) from failure


def _fetch(url: str, path: Path, show: Callable[[int, int], None]) -> None:
    """Write what is at the address into the file. (pooch's own downloader leaves its connection open on failure.)"""
    import requests

    timeout = (SECONDS_TO_CONNECT, SECONDS_TO_READ)
    with requests.get(url, stream=True, timeout=timeout) as response, path.open("wb") as file:
        response.raise_for_status()
        total = int(response.headers.get("content-length", 0))
        for chunk in response.iter_content(1 << 16):
            file.write(chunk)
            show(file.tell(), total)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if len(line) <= 160 else line[:157] + "…"


def _check_reachable(url: str) -> None:
    """Raise ConnectionError unless something answers at this address within SECONDS_TO_CONNECT.

    The time limit of a connection does not cover looking up the name, and counts for each of a server's addresses
    anew: behind a firewall that drops packets that would be minutes. So a thread asks, and is left behind if need be.
    """
    import requests

    failures: list[Exception] = []

    def ask() -> None:
        try:
            requests.head(url, timeout=SECONDS_TO_CONNECT, allow_redirects=False).close()
        except (requests.RequestException, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=ask, name="crossbow-mirror", daemon=True)
    thread.start()
    thread.join(SECONDS_TO_CONNECT)
    if thread.is_alive():
        raise ConnectionError(f"no answer within {SECONDS_TO_CONNECT:g} s")
    if failures:
        raise ConnectionError("not reachable") from failures[0]


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Without pooch's own lines, which would tear the progress bar."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Progress:
    """Bars of the downloads, on standard error; nothing is drawn before one begins."""

    def __init__(self) -> None:
        self._bars: Any = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, name: str) -> Callable[[int, int], None]:
        """A new bar; returns what moves it to (bytes done, bytes in all)."""
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._bars.start()
        row = self._bars.add_task(name, total=None)
        return lambda done, total: self._bars.update(row, completed=done, total=total or None)
