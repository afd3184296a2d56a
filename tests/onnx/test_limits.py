"""Models that would take much more memory or time than they have bytes are refused before they do."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import pytest

from crossbow import DataError, GraphError
from crossbow.onnx import load, loading
from tests.onnx.models import draw, model, node
from tests.onnx.test_loading import convolutional


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_huge_images_are_read_in_no_time(op_type: str) -> None:
    start = time.thread_time()
    load(model([node(op_type, "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], ["N", 3, 2**31 - 1, 2**31 - 1]))
    assert time.thread_time() - start < 10


def test_a_constant_along_a_huge_image() -> None:
    with pytest.raises(GraphError, match="expected a constant of at most 268,435,456 elements"):
        load(model([node("Add", "x k", "y")], ["N", 3, 2**31 - 1, 4], k=draw(3, 1, 4)))


@pytest.mark.parametrize("place", [b"conv", b"flatten", b"softmax", b"w1"])
def test_names_that_are_not_utf8(tmp_path: Path, place: bytes) -> None:
    content = convolutional().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(content.replace(place, place[:-1] + b"\xff"))
    with pytest.raises(DataError, match=r"model\.onnx: expected names in UTF-8\. Received: b'.*xff'$"):
        load(path)


def test_files_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(convolutional(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    entries = proto.graph.initializer[0].external_data
    for entry in [entry for entry in entries if entry.key == "length"]:
        entries.remove(entry)  # to the end of the file
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with (tmp_path / "m.data").open("r+b") as file:
        file.truncate(50 << 30)
    with pytest.raises(DataError, match=r"m\.onnx: expected 288 B for 'w'\. Received: a file with 53\.6 GB"):
        load(tmp_path / "m.onnx")
    monkeypatch.setattr(loading, "LARGEST_FILE", 100)
    with pytest.raises(DataError, match=r"of at most 100 B, the limit of the format\. Received: "):
        load(tmp_path / "m.onnx")
