from __future__ import annotations

import re

import pytest

from crossbow import Operator
from crossbow.ops import (
    Accuracy,
    Conv,
    ConvGradient,
    ElementWiseOp,
    ElementWiseOpGradient,
    GradientDescentOptimiser,
    InnerProduct,
    InnerProductGradient,
    ReLU,
    ReLUGradient,
)
from crossbow.types import DataError


def test_it_has_a_name_and_a_kernel() -> None:
    kernel = Conv(number_of_outputs=2)
    operator = Operator("conv1", kernel)
    assert (operator.name, operator.kernel, operator.peer, operator.is_gradient) == ("conv1", kernel, None, False)


def test_without_a_name_it_is_numbered() -> None:
    first, second = Operator(ReLU()), Operator(ReLU())
    numbers = [int(re.fullmatch(r"Op-(\d+)", operator.name)[1]) for operator in (first, second)]  # type: ignore[index]
    assert numbers[1] == numbers[0] + 1


@pytest.mark.parametrize("name", ["", 3, None])
def test_the_name_is_a_string_that_says_something(name: object) -> None:
    with pytest.raises(TypeError, match="an operator's name must be a non-empty string"):
        Operator(name, ReLU())  # type: ignore[arg-type]


def test_a_name_that_no_file_can_hold() -> None:
    with pytest.raises(DataError, match=r"must be a text in UTF-8\. Received: '\\udc80'"):
        Operator("\udc80", ReLU())


@pytest.mark.parametrize("kernel", [ReLU, "relu", 7])
def test_the_kernel_is_an_instance(kernel: object) -> None:
    with pytest.raises(TypeError, match=r"operator 'x': expected a kernel, as Conv\(number_of_outputs=32\)\. Received"):
        Operator("x", kernel)  # type: ignore[arg-type]


def test_set_peer_returns_the_operator() -> None:
    peer, gradient = Operator("conv", Conv(number_of_outputs=2)), Operator("gradient", ConvGradient())
    assert gradient.set_peer(peer) is gradient
    assert gradient.peer is peer
    assert gradient.is_gradient


def test_the_peer_may_have_several_inputs() -> None:
    peer = Operator("sum", ElementWiseOp())
    assert Operator("gradient", ElementWiseOpGradient(input=3)).set_peer(peer).peer is peer


IP = Operator("ip", InnerProduct(number_of_outputs=2))


@pytest.mark.parametrize(
    ("operator", "peer", "message"),
    [
        (Operator("relu", ReLU()), IP, r"operator 'relu': only a gradient operator has a peer\. Received: ReLU\("),
        (
            Operator("g", ReLUGradient()),
            IP,
            r"operator 'g': the gradient of 'ip' \(InnerProduct\) is InnerProductGradient\. Received: ReLUGradient",
        ),
        (
            Operator("g", ReLUGradient()),
            Operator("accuracy", Accuracy()),
            r"operator 'g': the gradient of 'accuracy' \(Accuracy\) is none\. Received: ReLUGradient",
        ),
        (
            Operator("g", ReLUGradient()),
            Operator("end", GradientDescentOptimiser()),
            r"the gradient of 'end' \(GradientDescentOptimiser\) is none",
        ),
        (
            Operator("g", InnerProductGradient()),
            Operator("other", InnerProductGradient()),
            r"operator 'g': the peer must be a forward operator\. Received: Operator\('other'",
        ),
        (Operator("g", ReLUGradient()), ReLU(), r"operator 'g': the peer must be a forward operator\. Received: ReLU"),
    ],
)
def test_a_wrong_peer_is_refused(operator: Operator, peer: Operator, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        operator.set_peer(peer)
    assert operator.peer is None
