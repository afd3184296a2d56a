"""Launches before the previous kernel has ended: the driver's structures, waits in every kernel, and the switch."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from crossbow.kernels.cuda import dependent_launch
from crossbow.kernels.cuda.api import api, replaced
from crossbow.kernels.cuda.dependent_launch import SWITCH, LaunchAttribute, LaunchConfiguration
from crossbow.kernels.cuda.launch import OPTIONS, CudaKernel, options_for
from crossbow.types import ConfigurationError
from tests.combinations import one_in
from tests.kernels.cuda.emulator import SIGNATURE
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.test_sources import FILES, GENERATED, compile_source, needs_nvrtc

FLOAT32 = np.dtype(np.float32)
COPY = CudaKernel("copy", "copy", FLOAT32)


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda() as fake:
        yield fake


def copy(length: int = 1000) -> None:
    x, y = (api().zeros(4 * length).view(np.float32) for _ in range(2))
    COPY.each(length, x, y, np.int64(length), pointwise=True)()


def test_structures_are_those_of_the_driver() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    theirs = driver.CUlaunchConfig()
    fields = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes")
    for number, name in enumerate(fields, start=1):
        setattr(theirs, name, number)
    theirs.hStream = 99
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    theirs.attrs = [attribute]
    theirs.numAttrs = 1
    ours = LaunchConfiguration.from_address(int(theirs.getPtr()))
    assert [getattr(ours, name) for name, _ in LaunchConfiguration._fields_[:7]] == list(range(1, 8))
    assert (ours.stream, ours.number_of_attributes) == (99, 1)
    read = ours.attributes[0]
    assert (read.id, read.value) == (dependent_launch.PROGRAMMATIC_STREAM_SERIALIZATION, 1)
    assert ctypes.sizeof(LaunchAttribute) == 72


def test_it_is_off_by_default(cuda: FakeCuda) -> None:
    copy()
    assert [call.name for call in cuda.calls] == ["copy"]


def test_the_switch_turns_it_on(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    copy()
    assert [call.name for call in cuda.calls] == ["copy", "copy (dependent)"]


def test_older_gpus_do_not_support_it(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(cuda.runtime, "getDeviceProperties", lambda device: {"name": b"older", "major": 8})
    copy()
    assert [call.name for call in cuda.calls] == ["copy"]


def test_a_wrong_switch_is_named(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "yes")
    with pytest.raises(ConfigurationError, match=f"{SWITCH}: expected 0 or 1. Received: 'yes'"):
        copy()


def test_a_launch_that_fails_is_an_error() -> None:
    library = SimpleNamespace(cuLaunchKernelEx=lambda *_: 719)
    with replaced(cast(Any, SimpleNamespace(cuda=library))), pytest.raises(RuntimeError, match="returned 719"):
        dependent_launch.launch(1, 1, 1, 0, 0, 0)


@pytest.mark.slow
@one_in(3)
@needs_nvrtc
@pytest.mark.parametrize("name", ["activation", "batch_norm", "end of a classifier"])
def test_every_kernel_begins_with_the_wait(name: str) -> None:
    source = dependent_launch.with_waits({**FILES, **GENERATED}[name])
    options = (*OPTIONS, *options_for(FLOAT32))
    error, log, ptx = compile_source(source, (*options, "-arch=compute_90"))
    assert (error, log.strip()) == ("", "")
    kernels = re.split(r"\.entry ", ptx)[1:]
    assert len(kernels) == len(SIGNATURE.findall(source))
    for kernel in kernels:
        wait = kernel.index("griddepcontrol.wait")
        assert not re.search(r"\b(?:ld|st)\.(?:global|shared)|bar\.sync", kernel[:wait])
    assert "griddepcontrol" not in compile_source(source, (*options, "-arch=compute_80"))[2]
