"""A node's attributes and inputs, as its translation sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from crossbow.onnx.network import FILLER, NetworkStep
from crossbow.onnx.reading.node import Border, ConstantTensor, Node, Refused, shortest
from crossbow.ops import Conv, InnerProduct, ReLU, SoftMax
from crossbow.types import Phase
from tests.onnx import models


class Values:
    """The part of a graph that nodes read and change: the activation "x", the constants "c" and "size"."""

    def __init__(self) -> None:
        self.constants = {
            "c": ConstantTensor(np.array([0.1, 2.0], np.float32), literal=True),
            "size": ConstantTensor(np.array([5]), varies=True),
            f"b{FILLER}": ConstantTensor(np.zeros(2, np.float32)),
        }
        self.x = NetworkStep("x", (7, 4))
        self.values = {"x": self.x}
        self.steps: list[NetworkStep] = []
        self.absorbed: dict[int, str] = {}
        self.borders: dict[str, Border] = {}
        self.is_from_save = True

    def sole_consumer(self, node: Node, op_type: str) -> Node | None:
        return node if op_type == "Sole" else None

    def follower(self, node: Node, op_type: str) -> Node | None:
        return node if op_type == "Follower" else None


def node(inputs: str = "x", output: str = "y", **attributes: Any) -> Node:
    return Node(Values(), models.node("Op", inputs, output, **attributes), "it", 13)


def test_attributes_and_their_defaults() -> None:
    it = node(i=3, f=0.1, s="text", many=[1, 2])
    assert it.has("i")
    assert not it.has("j")
    assert (it.integer("i", 5), it.integer("j", 5)) == (3, 5)
    assert (it.number("f", 0.5), it.number("g", 0.3)) == (0.1, 0.3)  # stored as 0.100000001…
    assert (it.text("s", "other"), it.text("t", "other")) == ("text", "other")
    assert (it.integers("many"), it.integers("none"), it.integers("none", [4])) == ((1, 2), None, (4,))


def test_optional_inputs() -> None:
    it = node("x - c - -")
    assert it.inputs == 3
    assert [it.given(index) for index in range(7)] == [True, False, True, False, False, False, False]
    assert it.constant(1) is None
    assert it.constant(9) is None
    assert it.single(1, 0.25) == 0.25
    assert it.single(2, 0.25) == 0.1
    assert [it.is_constant(index) for index in range(3)] == [False, False, True]


def test_constants_and_activations() -> None:
    it = node(f"x c size b{FILLER}")
    assert it.step() is it.reader.values["x"]
    np.testing.assert_array_equal(it.weights(1), np.array([0.1, 2], np.float32))
    assert (it.is_literal(1), it.is_literal(2)) == (True, False)
    assert (it.is_filler(1), it.is_filler(3)) == (False, True)
    assert it.constant(2, varying=True) == [5]
    for call, message in (
        (lambda: it.step(1), r"input 1 to depend on the network's input\. Received: a constant"),
        (lambda: it.constant(0), r"input 0 \('x'\) to be a constant\. Received: the output of a node"),
        (lambda: it.constant(2), r"input 2 \('size'\) not to depend on the batch size"),
        (lambda: it.weights(4), r"expected input 4\. Received: none"),
    ):
        with pytest.raises(Refused, match=message):
            call()
    it.reader.is_from_save = False
    assert not it.is_filler(3)


@pytest.mark.parametrize(("inputs", "index"), [("x c", 1), ("c x", 0), ("x x", None)])
def test_the_constant_of_two_inputs(inputs: str, index: int | None) -> None:
    assert node(inputs).constant_index() == index


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(2, np.float16), "expected weights in float32 or float64. Received: float16"),
        (np.ones(2, int), "expected weights in float32 or float64. Received: int64"),
        (np.array([1, np.nan]), r"expected finite weights\. Received: non-finite values in input 1 \('w'\)"),
    ],
)
def test_weights_that_cannot_be_trained(array: np.ndarray, message: str) -> None:
    it = node("x w")
    it.reader.constants["w"] = ConstantTensor(array)
    with pytest.raises(Refused, match=message):
        it.weights(1)


def test_a_step_has_the_nodes_name_and_settings() -> None:
    """Its parts have neither."""
    it = node()
    it.is_marked, it.settings = True, {"weight_learning_rate_multiplier": 0.5}
    part = it.apply(ReLU(), it.step(), part="first")
    last = it.apply(InnerProduct(number_of_outputs=3), part, phase=Phase.TRAIN)
    assert it.reader.steps == [part, last]
    assert (part.name, part.shape, part.inputs, part.phase) == ("it.first", (7, 4), (it.step(),), Phase.CHECK)
    assert (last.name, last.shape, last.inputs, last.phase) == ("it", (7, 3), (part,), Phase.TRAIN)
    assert last.kernel == InnerProduct(number_of_outputs=3, weight_learning_rate_multiplier=0.5)
    assert part.kernel == ReLU()
    assert last.shared


@pytest.mark.parametrize("kernel", [SoftMax(axis=5), Conv(number_of_outputs=2, kernel_size=3)])
def test_an_operator_that_does_not_fit_adds_no_step(kernel: Any) -> None:
    it = node()
    with pytest.raises(ValueError, match="expected"):
        it.apply(kernel, it.step())
    assert it.reader.steps == []


def test_what_a_node_leaves_to_others() -> None:
    it = node()
    assert it.border is None
    it.leave(((1, 2), (0, 0)))
    assert it.reader.borders == {"y": ((1, 2), (0, 0))}
    it.reader.borders["x"] = ((3, 3),)
    assert it.border == ((3, 3),)
    assert (it.sole_consumer("Sole"), it.follower("Follower")) == (it, it)
    assert (it.sole_consumer("Follower"), it.follower("Sole")) == (None, None)
    other = node("y", "z")
    it.absorb(other)
    assert it.reader.absorbed == {id(other.proto): "y"}


@pytest.mark.parametrize("value", [0.1, 1e-5, 3.0, 1 / 3, 1e30, -2.5e-7])
def test_the_shortest_number_of_the_same_value(value: float) -> None:
    single = float(onnx.helper.make_attribute("a", value).f)
    assert np.float32(shortest(single)) == np.float32(value)
    assert len(repr(shortest(single))) <= len(repr(single))
    assert shortest(np.float32(np.inf)) == np.inf
