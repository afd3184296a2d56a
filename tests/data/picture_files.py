"""Small image files, in folders and in record files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import Record, write_records
from crossbow.data.batch_metadata import Metadata, write_metadata

NO_BOXES = np.zeros((0, 4), np.float32)


def picture(number: int, height: int = 30, width: int = 40, **options: Any) -> bytes:
    """A file with smooth random colours; a JPEG file by default."""
    image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
    cells = np.random.default_rng(number).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    out = io.BytesIO()
    image.fromarray(cells).resize((width, height), image.Resampling.BICUBIC).save(out, **{"format": "JPEG", **options})
    return out.getvalue()


def write_folder(directory: Path, files: dict[str, bytes]) -> Path:
    """Write files by their path in the directory."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def record(number: int, label: int = 0, boxes: np.ndarray = NO_BOXES, content: bytes | None = None) -> Record:
    return Record(label, boxes, 30, 40, picture(number) if content is None else content)


def write_record_set(directory: Path, name: str, files: Sequence[Sequence[Record]]) -> Path:
    """Write record files NAME.records.N and NAME.metadata. Returns the path of the latter."""
    directory.mkdir(parents=True, exist_ok=True)
    prefix, count = f"{name}.records", sum(map(len, files))
    for number, records in enumerate(files, start=1):
        write_records(directory / f"{prefix}.{number}", records)
    path = directory / f"{name}.metadata"
    write_metadata(path, Metadata(prefix, prefix, len(files), count, 1, (3, 224, 224), (1,), "float", "int"))
    return path
