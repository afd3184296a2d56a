"""Constant folding has limits, and so has the expansion of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from crossbow import GraphError
from crossbow.onnx import load
from tests.onnx.models import draw, model, node, same

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
