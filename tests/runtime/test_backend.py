"""Both kinds of devices have the interface of backends, and of the learners that they make."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from crossbow import SystemConf
from crossbow.runtime.backend import Backend, Combination, Learner, Meeting, batch_source
from crossbow.runtime.cpu.backend import CpuBackend
from crossbow.runtime.cpu.exchange import CpuCombination, CpuMeeting
from crossbow.runtime.cpu.learner import CpuLearner
from crossbow.runtime.cuda.backend import CudaBackend
from crossbow.runtime.cuda.exchange import CudaCombination, CudaMeeting
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.synchroniser import CudaSynchroniser
from crossbow.runtime.memory import assign, on_host
from crossbow.types import Tensor
from tests.kernels.cuda.fake import fake_cuda

IMPLEMENTED: list[tuple[type, type]] = [
    (Backend, CpuBackend),
    (Backend, CudaBackend),
    (Learner, CpuLearner),
    (Learner, CudaLearner),
    (Learner, CudaSynchroniser),
    (Meeting, CpuMeeting),
    (Meeting, CudaMeeting),
    (Combination, CpuCombination),
    (Combination, CudaCombination),
]


@pytest.mark.parametrize(("protocol", "kind"), IMPLEMENTED)
def test_methods_have_the_parameters_of_the_interface(protocol: type, kind: type) -> None:
    for name, member in vars(protocol).items():
        if not name.startswith("_") and inspect.isfunction(member):
            wanted, found = inspect.signature(member), inspect.signature(getattr(kind, name))
            assert list(found.parameters.values())[1:] or not list(wanted.parameters)[1:], name
            assert list(found.parameters) == list(wanted.parameters), name


@pytest.fixture(params=["cpu", "cuda:0"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Open, with three learners on one device."""
    on_cpu = request.param == "cpu"
    options: dict[str, Any] = {"kernels": "reference", "threads_per_learner": 1} if on_cpu else {}
    system = SystemConf(devices=request.param, learners_per_device=3, **options)
    with nullcontext() if on_cpu else fake_cuda():
        made: Backend = CpuBackend(system) if on_cpu else CudaBackend(system)
        made.open()
        yield made
        made.close(60)


def test_learners_and_their_threads(backend: Any) -> None:
    assert [device.name for device in backend.devices] in (["cpu"], ["cuda:0"])
    assert list(backend.device_of) == [0, 0, 0]
    assert list(backend.threads) == ([1] if isinstance(backend, CpuBackend) else [0])
    assert backend.call(lambda: 5) == 5


def test_memory_can_be_assigned_and_read(backend: Any) -> None:
    zeros = backend.zeros(0)(48).view(np.float32)
    assert not on_host(zeros).any()
    assign(zeros, np.arange(12, dtype=np.float32))
    backend.synchronise()
    np.testing.assert_array_equal(on_host(zeros), np.arange(12, dtype=np.float32))


def test_numbers_for_kernels(backend: Any) -> None:
    numbers = np.array([1.5, 2.5])
    made = numbers if backend.to_device is None else backend.call(lambda: backend.to_device(numbers))
    np.testing.assert_array_equal(on_host(made), numbers)


def test_errors_of_work_are_the_callers(backend: Any) -> None:
    def fail() -> None:
        raise KeyError("what")

    with pytest.raises(KeyError, match="what"):
        backend.call(fail)
    assert backend.call(lambda: 5) == 5


def test_a_ring_for_the_compiler() -> None:
    source = batch_source(np.zeros((3, 4, 1, 5, 5), np.uint8), np.zeros((3, 4), np.int32), 1 / 255)
    assert source.images == Tensor((3, 4, 1, 5, 5), np.dtype(np.uint8))
    assert source.labels == Tensor((3, 4), np.dtype(np.int32))
    assert source.scale == 1 / 255
