"""Which kernel answers a request."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import PlainStorage, PreparedKernel, Variable
from crossbow.kernels.registry import Registry, Rooms, UnsupportedError
from crossbow.kernels.requests import InnerProductBackwardWeights, InnerProductForward, ProductForward, Request
from crossbow.types import ConfigurationError, Tensor
from tests.kernels.storages import Reversed

FLOAT32 = np.dtype(np.float32)


def tensor(*shape: int) -> Tensor:
    return Tensor(shape, FLOAT32)


def product(inputs: int = 2, size: int = 3) -> ProductForward:
    return ProductForward((tensor(2, size),) * inputs, tensor(2, size))


def room(name: str, *kernels: str, takes_empty: bool = True) -> Registry:
    """Kernels by what they do: "refuse", "skip" (their condition does not hold), else answer by that name."""
    registry = Registry(name, takes_empty=takes_empty)
    for kernel in kernels:

        def prepare(request: Request, kernel: str = kernel) -> PreparedKernel:
            if kernel == "refuse":
                raise UnsupportedError(f"{name} cannot")
            return request.prepared(kernel, lambda buffers: ())

        registry.kernel(ProductForward, lambda _, kernel=kernel: kernel != "skip")(prepare)  # type: ignore[misc]
    return registry


def test_the_first_whose_condition_holds_in_the_order_of_rooms_and_registration() -> None:
    rooms = Rooms("Test", room("one", "skip"), room("two", "skip", "second", "third"), room("three", "fourth"))
    assert rooms.prepare(product()).name == "product_forward second"


def test_after_a_refusal_comes_the_next_and_its_name_tells_the_first_reason() -> None:
    rooms = Rooms("Test", room("one", "refuse"), room("two", "skip", "refuse", "last"))
    assert rooms.prepare(product()).name == "product_forward last (fallback: one cannot)"


def test_a_condition_may_refuse_too() -> None:
    def refuse(_: Request) -> bool:
        raise UnsupportedError("no answer")

    registry = room("one", "next")
    asked = Registry("zero")
    asked.kernel(ProductForward, refuse)(lambda request: request.prepared("never", lambda buffers: ()))
    assert Rooms("Test", asked, registry).prepare(product()).name == "product_forward next (fallback: no answer)"


def test_rooms_that_want_elements_are_passed_by_with_a_reason() -> None:
    rooms = Rooms("Test", room("one", "fast", takes_empty=False), room("two", "plain"))
    assert rooms.prepare(product()).name == "product_forward fast"
    assert rooms.prepare(product(size=0)).name == (
        "product_forward plain (fallback: no elements in a tensor of shape (2, 0))"
    )
    third = Rooms("Test", room("one", "refuse"), room("two", "fast", takes_empty=False), room("three", "plain"))
    assert third.prepare(product(size=0)).name == "product_forward plain (fallback: one cannot)"
    without = Rooms("Test", Registry("one", takes_empty=False), room("two", "plain"))
    assert without.prepare(product(size=0)).name == "product_forward plain"


def test_nothing_left_is_an_error_that_says_why() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Test: expected .* kernel \(one cannot\)\. Received: ProductForward"
    ):
        Rooms("Test", room("one", "refuse")).prepare(product())


def test_kernels_that_know_plain_variables_only_get_copies() -> None:
    registry = Registry("plain", plain_variables=True)

    @registry.kernel(InnerProductForward)
    def forward(request: InnerProductForward) -> PreparedKernel:
        def bind(buffers):  # type: ignore[no-untyped-def]
            return (lambda: np.copyto(buffers["output"], buffers["input0"] @ buffers["weights"].T),)

        return request.prepared("numpy", bind)

    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    storage = Reversed(weights.shape)
    flat, y = aligned_zeros(24).view(np.float32), np.zeros((1, 2), np.float32)
    storage.pack(weights, flat)
    x = np.array([[1, 10, 100]], np.float32)
    request = InnerProductForward(tensor(1, 3), Variable((2, 3), FLOAT32, storage), None, tensor(1, 2))
    for call in Rooms("Test", registry).prepare(request).bind({"input0": x, "weights": flat, "output": y}):
        call()
    np.testing.assert_array_equal(y, x @ weights.T)


def test_gradients_of_plain_variables_are_copied_back() -> None:
    """That of the bias has no storage of its own, and lies where it is."""
    registry = Registry("plain", plain_variables=True)

    @registry.kernel(InnerProductBackwardWeights)
    def backward(request: InnerProductBackwardWeights) -> PreparedKernel:
        def bind(buffers):  # type: ignore[no-untyped-def]
            assert buffers["weights_gradient"].shape == (2, 3)

            def call() -> None:
                np.copyto(buffers["weights_gradient"], buffers["output_gradient"].T @ buffers["input0"])
                np.copyto(buffers["bias_gradient"], buffers["output_gradient"].sum(axis=0))

            return (call,)

        return request.prepared("numpy", bind)

    x, dy = np.array([[1, 10, 100]], np.float32), np.array([[1, 2]], np.float32)
    storage = Reversed((2, 3))
    weights, bias = Variable((2, 3), FLOAT32, storage), Variable((2,), FLOAT32, PlainStorage((2,)))
    request = InnerProductBackwardWeights(tensor(1, 3), tensor(1, 2), weights, bias)
    flat, sums = np.zeros(6, np.float32), np.zeros(2, np.float32)
    buffers = {"input0": x, "output_gradient": dy, "weights_gradient": flat, "bias_gradient": sums}
    calls = Rooms("Test", registry).prepare(request).bind(buffers)
    for call in calls:
        call()
    assert len(calls) == 3
    assert flat.tolist() == [200, 20, 2, 100, 10, 1]
    assert sums.tolist() == [1, 2]
    plain = Variable((2, 3), FLOAT32, PlainStorage((2, 3)))
    alone = Rooms("Test", registry).prepare(InnerProductBackwardWeights(tensor(1, 3), tensor(1, 2), plain, bias))
    assert len(alone.bind({**buffers, "weights_gradient": flat.reshape(2, 3)})) == 1
