"""Files of checkpoints: safetensors with a JSON state and a checksum, in a directory.

A file is written under another name, flushed to the disk and renamed, so that a file with a checkpoint's name is
complete. Its checksum is SHA-256 of the whole file, with zeros in the checksum's place: a change of any byte is found.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from crossbow.files import file_to_fill, reason
from crossbow.types import Array, DataError

VERSION = 1
"""Version of the format. Files of newer versions are rejected."""
NO_CHECKSUM = "0" * 64
_CHECKSUM = re.compile(rb'\\"checksum\\":\\"([0-9a-f]{64})\\"')
"""The checksum in a header, where the description is a JSON text in a JSON text."""
_NAME = re.compile(r"\d{10}\.safetensors")
_TYPES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32"}
"""Names of the types in the format, by NumPy's."""
LARGEST_HEADER = 64 << 20
"""Maximum size of the header of a checkpoint, in bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file."""

    tensors: Mapping[str, Array]
    state: dict[str, Any]
    """The state, as JSON values."""


def checkpoint_path(directory: Path, tasks: int) -> Path:
    """The file of the checkpoint after this number of tasks."""
    return directory / f"{tasks:010d}.safetensors"


def checkpoint_files(directory: Path) -> list[Path]:
    """The files of a directory's checkpoints, newest first; none if there is no directory."""
    try:
        return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_checkpoint(path: Path, tensors: Mapping[str, Array], state: str) -> None:
    """Write a checkpoint atomically. state: JSON text. Raises DataError if it cannot be written; an older file is
    kept."""
    described = {"version": VERSION, "checksum": NO_CHECKSUM, "state": state}
    # One entry, because safetensors writes several in random order, and equal states should give equal files.
    metadata = {"crossbow checkpoint": json.dumps(described, separators=(",", ":"))}
    header, arrays = _header(tensors, metadata)
    digest = hashlib.sha256()
    with file_to_fill(path) as file:
        for part in (header, *arrays):
            digest.update(part)
            file.write(part)
        file.seek(_find_checksum(header))
        file.write(digest.hexdigest().encode())


def _header(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> tuple[bytes, list[Any]]:
    """The beginning of a file in the format safetensors, and the arrays that follow it, which are not copied."""
    described: dict[str, Any] = {"__metadata__": metadata}
    arrays: list[Any] = []
    end = 0
    # The format requires arrays without gaps, and a header that is padded with spaces to a multiple of 8 bytes.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begin, end = end, end + tensor.nbytes
        offsets = [begin, end]
        described[name] = {"dtype": _TYPES[tensor.dtype.str], "shape": tensor.shape, "data_offsets": offsets}
        if tensor.nbytes:
            arrays.append(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, arrays


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises DataError if the file is damaged, foreign, or of a newer version."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check(path, data)
        with safetensors.safe_open(path, framework="np") as opened:
            state = json.loads(json.loads(opened.metadata()["crossbow checkpoint"])["state"])
            return Checkpoint({name: opened.get_tensor(name) for name in opened.keys()}, state)  # noqa: SIM118 - no dict
    except DataError:
        raise
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, OSError) as error:
        raise DataError(f"{path}: expected a checkpoint. Received: {reason(error)}") from error


def _check(path: Path, data: mmap.mmap) -> None:
    length = int.from_bytes(data[:8], "little")
    if length > min(LARGEST_HEADER, len(data) - 8):
        received = f"a header of {length:,} bytes in a file of {len(data):,} bytes"
        raise DataError(f"{path}: expected a checkpoint (safetensors). Received: {received}")
    described = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get("crossbow checkpoint")
    if described is None:
        raise DataError(f"{path}: expected a checkpoint. Received: safetensors of something else")
    described = json.loads(described)
    if described["version"] != VERSION:
        expected = f"expected a checkpoint of version {VERSION}"
        raise DataError(f"{path}: {expected}. Received: version {described['version']}; update Crossbow")
    place = _find_checksum(data[: 8 + length])
    digest = hashlib.sha256(data[:place])
    digest.update(NO_CHECKSUM.encode())
    digest.update(memoryview(data)[place + 64 :])
    if digest.hexdigest() != described["checksum"]:
        raise DataError(f"{path}: expected a checkpoint as it was written. Received: a damaged one (checksum)")


def _find_checksum(data: bytes) -> int:
    """The offset of the checksum in a file, or in its header. Text within the state cannot be mistaken for it, because
    its quotation marks are escaped once more."""
    found = _CHECKSUM.search(data, 0, 8 + int.from_bytes(data[:8], "little"))
    if found is None:
        raise ValueError("a file without a checksum")
    return found.start(1)
