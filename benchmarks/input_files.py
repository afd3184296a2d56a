"""The image files of `benchmarks.input`: folders of classes and a record file with the same JPEG files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from crossbow.data import Record, decode_image, write_records
from crossbow.files import file_error
from crossbow.types import DataError

HEIGHT, WIDTH = 321, 481
CLASSES = 10
QUALITY = 95
"""JPEG quality of the generated files, which have about 75 KB each, as photographs of this size do."""


def photographs(directory: Path) -> list[bytes]:
    """The contents of the JPEG files in a directory and its subdirectories. Raises DataError if there are none, or if
    one of them cannot be read or decoded."""
    found = [
        path for path in sorted(directory.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg") and path.is_file()
    ]
    if not found:
        raise DataError(f"{directory}: expected a directory with JPEG files. Received: none")
    return [_photograph(path) for path in found]


def _photograph(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        decode_image(content)
    except OSError as error:
        raise file_error(error, path, "a readable JPEG file") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return content


def made_photographs(count: int) -> list[bytes]:
    """JPEG files of random images that, like photographs, have details of all sizes."""
    import simplejpeg

    random = np.random.default_rng(0)
    return [simplejpeg.encode_jpeg(_clouds(random), QUALITY, colorsubsampling="420") for _ in range(count)]


def _clouds(random: np.random.Generator) -> np.ndarray:
    """A random image: the sum of noise in cells of several sizes, with amplitudes in proportion to the cell size."""
    total = np.full((HEIGHT, WIDTH, 3), 128.0)
    for cell in (128, 64, 32, 16, 8, 4, 2, 1):
        rows, columns = np.arange(HEIGHT) // cell, np.arange(WIDTH) // cell
        noise = random.standard_normal((rows[-1] + 1, columns[-1] + 1, 3))
        total += 5 * cell**0.5 * noise[rows[:, None], columns[None, :]]
    return total.clip(0, 255).astype(np.uint8)


def write_folders(contents: list[bytes], directory: Path) -> Path:
    """Write the files to a folder for each of `CLASSES` classes."""
    for number, content in enumerate(contents):
        folder = directory / f"class {number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06}.jpg").write_bytes(content)
    return directory


def write_record_file(contents: list[bytes], path: Path) -> Path:
    """Write the files to a record file, without bounding boxes."""
    boxes = np.zeros((0, 4), np.float32)

    def record(number: int, content: bytes) -> Record:
        _, height, width = decode_image(content).shape
        return Record(number % CLASSES, boxes, height, width, content)

    write_records(path, (record(number, content) for number, content in enumerate(contents)))
    return path


def resident_bytes() -> int | None:
    """Resident memory of this process in bytes; None if unknown."""
    path = Path("/proc/self/statm")
    return int(path.read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.is_file() else None
