"""What holds for every request: its contract is declared once, and every library answers it."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import crossbow.kernels.requests
from crossbow.kernels.cpu.library import Cpu
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import PlainStorage, PreparedKernel, Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    BatchNormBackward,
    BatchNormSetting,
    CopyForward,
    InnerProductForward,
    LRNForward,
    Request,
    ScaledGradient,
    Signal,
    Wait,
    WeightedSum,
)
from crossbow.types import ConfigurationError, Layout, Tensor

REQUESTS = [
    found
    for name in crossbow.kernels.requests.__all__
    if inspect.isclass(found := getattr(crossbow.kernels.requests, name))
    and issubclass(found, Request)
    and found is not Request
]
HOST_ONLY = {Wait, Signal}
FLOAT32 = np.dtype(np.float32)
X = Tensor((2, 3), FLOAT32)


def rooms(library: Reference | Cpu | Cuda) -> set[type[Request]]:
    return {request for request in REQUESTS for registry in library.rooms.registries if registry.candidates(request)}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_is_a_frozen_dataclass_with_the_contract(request_: type[Request]) -> None:
    assert request_.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(isinstance(field.type, str) for field in dataclasses.fields(request_))  # type: ignore[arg-type]
    for contract in ("reads", "writes"):
        assert vars(request_).get(contract) is not None, f"{request_.__name__} does not declare what it {contract}"


def test_every_library_answers_every_request() -> None:
    everything = set(REQUESTS)
    assert len(everything) > 50
    assert everything - rooms(Reference()) == set()
    assert everything - rooms(Cpu()) == set()
    assert everything - rooms(Cuda()) == HOST_ONLY


def test_names_are_those_of_the_classes_in_words() -> None:
    assert (InnerProductForward.name, LRNForward.name) == ("inner_product_forward", "lrn_forward")
    assert len({request.name for request in REQUESTS}) == len(REQUESTS)


def test_roles_follow_from_the_setting() -> None:
    weights = Variable((4, 3), FLOAT32)
    assert InnerProductForward(X, weights, None, X).reads == ("input0", "weights")
    assert InnerProductForward(X, weights, weights, X).reads == ("input0", "weights", "bias")
    setting = BatchNormSetting(1e-5, 0.9, bias=True)
    assert BatchNormBackward(X, X, None, setting).writes == ("weights_gradient", "bias_gradient")
    assert BatchNormBackward(X, X, None, setting).in_place is None
    assert BatchNormBackward(X, X, X, setting).writes[-1] == "input_gradient"
    assert ScaledGradient(X, X, 1.0).alias == ("output_gradient", "input_gradient")
    assert ScaledGradient(X, X, 2.0).alias is None
    image = Tensor((2, 3, 4, 5), FLOAT32, Layout.CHANNELS_LAST)
    assert CopyForward(image, Tensor((2, 60), FLOAT32)).alias is None
    assert CopyForward(image, image).alias == CopyForward(image, image).in_place == ("input0", "output")


def test_lists_become_tuples_so_that_equal_requests_are_equal() -> None:
    made = WeightedSum([X, X], X, [1.0, 2.0])  # type: ignore[arg-type]
    assert made == WeightedSum((X, X), X, (1.0, 2.0))
    assert hash(made) == hash(WeightedSum((X, X), X, (1.0, 2.0)))


def test_a_kernel_says_where_it_differs_from_the_contract() -> None:
    def prepared(**settings: object) -> PreparedKernel:
        return WeightedSum((X,), X, (1.0,), relu=True).prepared("by hand", lambda buffers: (), **settings)  # type: ignore[arg-type]

    usual = prepared()
    assert (usual.name, usual.reads, usual.writes) == ("weighted_sum relu by hand", ("input0",), ("output",))
    assert usual.in_place == ("input0", "output")
    assert (usual.workspace, usual.kept, usual.storages, usual.alias) == (0, 0, {}, None)
    storages = {"weights": PlainStorage((2, 3))}
    other = prepared(
        in_place=False, more_reads=("state",), more_writes=("kept",), workspace=64, kept=8, storages=storages
    )
    assert (other.in_place, other.reads, other.writes) == (None, ("input0", "state"), ("output", "kept"))
    assert (other.workspace, other.kept, other.storages) == (64, 8, storages)
    assert ScaledGradient(X, X, 1.0).prepared("by hand", lambda buffers: ()).alias is not None


def test_a_request_without_a_kernel_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Cuda: expected a request for which there is a kernel\. Received: Wa"
    ):
        Cuda().prepare(Wait())
