"""Equal requests are answered by one kernel, within a program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from crossbow.compile.remembering import Remembering
from crossbow.dataflow import DataflowNode, Operator
from crossbow.kernels.reference.library import Reference
from crossbow.kernels.requests import ActivationForward, WeightedSum
from crossbow.ops import Dropout, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.types import Tensor
from tests.compile.execution import compile_network

X, Y = (Tensor(shape, np.dtype(np.float32)) for shape in ((4, 5), (4, 6)))


def test_equal_requests_are_answered_by_one_kernel() -> None:
    library = Remembering(Reference(np.dtype(np.float32)))
    first = library.prepare(ActivationForward(X, X, "relu", 0.0, 0.0))
    again = library.prepare(ActivationForward(Tensor((4, 5), np.dtype(np.float32)), X, "relu", 0.0, 0.0))
    assert again is first


@pytest.mark.parametrize("arguments", [(Y, Y, "relu", 0.0, 0.0), (X, X, "tanh", 0.0, 0.0), (X, X, "relu", 0.5, 0.0)])
def test_other_requests_are_answered_by_others(arguments: tuple[object, ...]) -> None:
    library = Remembering(Reference(np.dtype(np.float32)))
    first = library.prepare(ActivationForward(X, X, "relu", 0.0, 0.0))
    assert library.prepare(ActivationForward(*arguments)) is not first  # type: ignore[arg-type]


def test_settings_count() -> None:
    library = Remembering(Reference(np.dtype(np.float32)))
    plain, relu = (library.prepare(WeightedSum((X, X), X, (1.0, 1.0), relu=relu)) for relu in (False, True))
    assert plain is not relu


def test_a_list_is_taken_too() -> None:
    library = Remembering(Reference(np.dtype(np.float32)))
    assert (
        library.prepare(WeightedSum([X, X], X, [1.0, 1.0])).name
        == library.prepare(WeightedSum((X, X), X, (1.0, 1.0))).name
    )


def test_what_is_no_request_is_the_library_s_own() -> None:
    reference = Reference(np.dtype(np.float32))
    library = Remembering(reference)
    assert (library.name, library.fused_relu, library.mixed) == (reference.name, reference.fused_relu, reference.mixed)
    assert library.layout((1, 2, 3, 4)) is reference.layout((1, 2, 3, 4))


def test_layers_that_are_alike_share_their_kernels_and_dropouts_do_not() -> None:
    kernels = [
        ("ip1", InnerProduct(number_of_outputs=5)), ("drop1", Dropout(ratio=0.5)), ("relu1", ReLU()),
        ("ip2", InnerProduct(number_of_outputs=5)), ("drop2", Dropout(ratio=0.5)), ("relu2", ReLU()),
        ("softmax", SoftMax()), ("loss", SoftMaxLoss()),
    ]  # fmt: skip
    nodes = [DataflowNode(Operator(name, kernel)) for name, kernel in kernels]
    for node, following in itertools.pairwise(nodes):
        node.connect_to(following)
    program, another = (compile_network(nodes[0], (4, 5)) for _ in range(2))
    kernel_of = {step.operator: step.kernel for step in program.steps}
    assert kernel_of["ip1"] is kernel_of["ip2"]
    assert kernel_of["relu1"] is kernel_of["relu2"]
    assert kernel_of["drop1"] is not kernel_of["drop2"]  # their random numbers differ
    others = {step.operator: step.kernel for step in another.steps}
    assert others["ip1"] is not kernel_of["ip1"]  # which may be for another number of threads
