"""The storages of variables, which the first kernels choose, and variables of the training dataflow in other graphs."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import Dataflow, GraphError, Phase, SubGraph
from crossbow.compile.model import ModelLayout
from crossbow.compile.variables import Variables
from crossbow.dataflow.graph import Graph
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.kernels.interface import PlainStorage, PreparedKernel, Storage
from crossbow.ops import EuclideanLoss, ReLU, SoftMax, SoftMaxLoss
from tests.compile.execution import compile_network
from tests.compile.test_precision import Wide
from tests.dataflow.networks import chain, inner_product, node, perceptron
from tests.kernels.storages import Reversed

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
BATCH = (4, 3)


def shared() -> Graph:
    """One operator in two places, and one of another class."""
    ip = inner_product()
    chain(
        ip,
        node("relu", ReLU()),
        ip.shallow_copy(),
        node("wide", Wide(number_of_outputs=2)),
        node("loss", EuclideanLoss()),
    )
    return Dataflow(SubGraph(ip)).graph


def variables(graph: Graph, given: ModelLayout | None = None) -> Variables:
    return Variables(graph, variables_of(graph, BATCH, infer_shapes(graph, BATCH)), FLOAT32, FLOAT16, given)


def kernel(**storages: Storage) -> PreparedKernel:
    return PreparedKernel("chooses", (), (), lambda buffers: (), storages=storages)


def test_the_first_kernels_that_read_a_variable_choose_its_storage() -> None:
    graph = shared()
    found, weights, bias = variables(graph), (id(graph[0].operator), "weights"), (id(graph[0].operator), "bias")
    assert found[weights].storage is found[bias].storage is None
    found.settle(graph[0], [kernel(), kernel(weights=Reversed((3, 3)))])
    assert (found[weights].storage, found[bias].storage) == (Reversed((3, 3)), PlainStorage((3,)))
    found.settle(graph[2], [kernel(weights=PlainStorage((3, 3)), bias=Reversed((3,)))])
    assert (found[weights].storage, found[bias].storage) == (Reversed((3, 3)), PlainStorage((3,)))


def test_the_layout_has_every_variable_once_with_its_storage() -> None:
    graph = shared()
    found = variables(graph)
    found.settle(graph[0], [kernel(weights=Reversed((3, 3)))])
    layout = found.layout()
    storages = {segment.name: type(segment.storage) for segment in layout}
    assert storages.pop("ip.weights") is Reversed
    assert storages == dict.fromkeys(("ip.bias", "wide.weights", "wide.bias"), PlainStorage)
    assert layout.dtype == FLOAT32
    again = variables(graph, layout)
    assert not again.faults
    assert again.layout() is layout
    assert again[id(graph[2].operator), "weights"].storage == Reversed((3, 3))


def test_kernels_read_variables_of_16_bits_if_the_operator_has_such() -> None:
    graph = shared()
    for given in (None, variables(graph).layout()):
        found = variables(graph, given)
        assert [found[id(graph[order].operator), "bias"].dtype for order in (0, 3)] == [FLOAT16, FLOAT32]


def test_an_operator_that_was_not_trained_cannot_be_checked() -> None:
    training = compile_network(perceptron(), (4, 5))
    other = chain(inner_product("mine", 3), node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    with pytest.raises(GraphError) as error:
        compile_network(other, (4, 5), phase=Phase.CHECK, model=training.model)
    assert set(error.value.faults) == {
        "node 'mine' (InnerProduct): expected an operator of the training dataflow (connect a shallow_copy() of its "
        "node). Received: one with variables of its own"
    }


def test_a_trained_operator_must_see_inputs_of_the_same_kind() -> None:
    """Otherwise a kernel would read variables of another shape than they have."""
    ip = inner_product()
    training = compile_network(chain(ip, node("softmax", SoftMax()), node("loss", SoftMaxLoss())), (4, 5))
    with pytest.raises(GraphError) as error:
        compile_network(ip.shallow_copy(), (4, 7), phase=Phase.CHECK, model=training.model)
    assert error.value.faults == (
        "node 'ip' (InnerProduct): expected an input with which 'weights' has the shape of the training dataflow, "
        "(3, 5). Received: (3, 7)",
    )


def test_a_vertex_without_variables_may_be_new_in_the_check_graph() -> None:
    ip = inner_product()
    training = compile_network(chain(ip, node("softmax", SoftMax()), node("loss", SoftMaxLoss())), (4, 5))
    copy = ip.shallow_copy()
    chain(copy, node("relu", ReLU()), node("softmax", SoftMax()), node("loss", SoftMaxLoss()))
    program = compile_network(copy, (4, 5), phase=Phase.CHECK, model=training.model)
    assert [vertex.name for vertex in program.graph] == ["ip", "relu", "softmax", "loss", "accuracy"]
