"""A small data set in batch-aligned files, made by hand, byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from crossbow.data import Dataset
from crossbow.data.batch_writer import DEFAULT_PARTITION, BatchFileWriter
from crossbow.data.batch_writer import Source as Written
from crossbow.data.encoding import EncodedExamples, Encoding

TEXT = """\
# Metadata file
#
examples     : {0}/train.examples
labels       : {0}/train.labels
partitions   : 2
elements     : 6
batch size   : 2
example shape: [1, 2]
label shape  : [1]
example type : float
label type   : int
example pad  : 4080
label pad    : 4088
fill         : 1
# EOF
"""
"""Five examples, two a batch, two batches a file: the last batch is filled with the first example."""


def float_batch(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers).ljust(4096, b"\0")


def label_batch(*labels: int) -> bytes:
    return struct.pack(f"<{len(labels)}i", *labels).ljust(4096, b"\0")


FILES = {
    "train.examples.1": float_batch(0, 0.5, 1, 1.5) + float_batch(2, 2.5, 3, 3.5),
    "train.examples.2": float_batch(4, 4.5, 0, 0.5),
    "train.labels.1": label_batch(10, 11) + label_batch(12, 13),
    "train.labels.2": label_batch(14, 10),
}


def write_source(
    directory: Path, name: str, source: Written, batch_size: int, partition_size: int = DEFAULT_PARTITION
) -> Path:
    """Write one data set. Returns the path of its metadata."""
    (path,) = BatchFileWriter(directory, {name: source}, batch_size, partition_size).write()
    return path


def small(count: int = 5) -> Dataset:
    numbers = np.arange(2 * count, dtype=np.float32).reshape(count, 2) / 2
    return Dataset((numbers, np.arange(10, 10 + count)))


class Source(EncodedExamples):
    """The examples made by hand, of shape (1, 2)."""

    def __init__(self, count: int = 5) -> None:
        super().__init__(small(count).train, Encoding("train"))
        self.example_shape = (1, 2)

    def slice(self, start: int, stop: int) -> Any:
        examples, labels = super().slice(start, stop)
        return examples.reshape(-1, 1, 2), labels


def write_files(directory: Path) -> Path:
    """Write the data set. Returns the path of its metadata."""
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    (directory / "train.metadata").write_text(TEXT.format(directory))
    return directory / "train.metadata"
