"""Models that would take much more memory or time than they have bytes are refused before they do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from crossbow import DataError, GraphError
from crossbow.onnx import load, loading
from tests.onnx.models import draw, model, node, same
from tests.onnx.test_load import convolutional

HUGE = 10**12
TOO_LARGE = "expected a constant that can be evaluated. Received: one that is too large"


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


BOMBS = {
    "Range": ([node("Range", "a b c", "k")], {"a": np.array(0), "b": np.array(HUGE), "c": np.array(1)}),
    "Expand": ([node("Expand", "v s", "k")], {"v": draw(1), "s": numbers(10**5, 10**5)}),
    "a shape that is computed": (
        [node("Concat", "s s", "t", axis=0), node("Expand", "v t", "k")],
        {"v": draw(1), "s": numbers(10**4, 10**4)},
    ),
    "Tile": ([node("Tile", "v s", "k")], {"v": draw(4), "s": numbers(HUGE)}),
    "Pad": ([node("Pad", "v s", "k")], {"v": draw(4), "s": numbers(HUGE, HUGE)}),
    "ConstantOfShape": ([node("ConstantOfShape", "s", "k")], {"s": numbers(10**6, 10**6)}),
    "an outer product": ([node("Mul", "v w", "k")], {"v": draw(1 << 15, 1), "w": draw(1, 1 << 15)}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_constants_that_are_too_large(name: str) -> None:
    nodes, given = BOMBS[name]
    with pytest.raises(GraphError, match=TOO_LARGE):
        load(model([*nodes, node("Add", "x k", "y")], ["N", 4], **given))


def test_many_constants_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.onnx.reading.graph.LARGEST_CONSTANT", 1000)
    nodes = [node("ConstantOfShape", "s", f"k{number}") for number in range(3)]
    added = [node("Add", f"{'xabc'[number]} k{number}", "abc"[number]) for number in range(3)]
    for size, fits in ((320, True), (340, False)):
        proto = model([*nodes, *added], ["N", size], output="c", s=numbers(size))
        if fits:
            same(proto, draw(3, size))
        else:
            with pytest.raises(GraphError, match=f"'k2' .*{TOO_LARGE}, with less than 320 elements left"):
                load(proto)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_huge_images_are_read_in_no_time(op_type: str) -> None:
    start = time.thread_time()
    load(model([node(op_type, "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], ["N", 3, 2**31 - 1, 2**31 - 1]))
    assert time.thread_time() - start < 10


def test_a_constant_along_a_huge_image() -> None:
    with pytest.raises(GraphError, match="expected a constant of at most 268,435,456 elements"):
        load(model([node("Add", "x k", "y")], ["N", 3, 2**31 - 1, 4], k=draw(3, 1, 4)))


def with_functions(count: int) -> onnx.ModelProto:
    """Every function calls the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    proto = model([helper.make_node("F0", ["x"], ["y"], domain="f")], ["N", 4])
    proto.opset_import.append(opsets[1])
    for number in range(count):
        called = {"op_type": f"F{number + 1}", "domain": "f"} if number < count - 1 else {"op_type": "Relu"}
        body = [helper.make_node(inputs=["x"], outputs=["a"], **called)]
        body += [helper.make_node(inputs=["a"], outputs=["y"], **called)]
        proto.functions.append(helper.make_function("f", f"F{number}", ["x"], ["y"], body, opsets))
    return proto


def test_functions_that_call_functions() -> None:
    same(with_functions(4), draw(3, 4))
    with pytest.raises(GraphError, match=r"at most 1,000,000 nodes\. Received: 2,199,023,255,551 nodes"):
        load(with_functions(40))
    proto = with_functions(3)
    proto.functions[2].node[0].CopyFrom(helper.make_node("F0", ["x"], ["a"], domain="f"))
    with pytest.raises(GraphError, match="do not call themselves"):
        load(proto)


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


def test_a_branch_that_is_known_is_read() -> None:
    """PyTorch writes one where it squeezes a dimension."""
    info = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    branches = {
        "then_branch": helper.make_graph([node("Relu", "r", "out", "taken")], "then", [], [info]),
        "else_branch": helper.make_graph([node("Tanh", "r", "out", "other")], "else", [], [info]),
    }
    for size, kind in ((1, "taken"), (3, "other")):
        nodes = [
            node("Neg", "x", "r", "negative"),
            node("Shape", "x", "s", start=1, end=2),
            node("Equal", "s one", "c"),
            helper.make_node("If", ["c"], ["y"], **branches),
        ]
        network = same(model(nodes, ["N", size], one=numbers(1)), draw(4, size))
        assert [each.operator.name for each in network.nodes] == ["negative", kind]
