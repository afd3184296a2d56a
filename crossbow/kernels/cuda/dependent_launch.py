"""Programmatic dependent launch: a kernel is launched before the previous one of its stream has ended.

Its blocks take the places of blocks that have ended, and wait there for the others, so the time between two kernels is
hidden (CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization"). GPUs support it from compute
capability 9.0 on. Only Crossbow's own kernels are launched in this way: each begins with the wait (`with_waits`).

It is off unless the environment variable CROSSBOW_DEPENDENT_LAUNCH is 1, because it has not been measured yet.
"""

from __future__ import annotations

import ctypes
import os
import re

from crossbow.kernels.cuda.api import api, remember
from crossbow.types import ConfigurationError

SWITCH = "CROSSBOW_DEPENDENT_LAUNCH"
CAPABILITY = 9
"""Major compute capability from which GPUs support it."""
PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
BEGIN = re.compile(r"(KERNEL\s+(?:__launch_bounds__\(\d+\)\s+)?\w+\s*\([^)]*\)\s*\{)")
WAIT = " WAIT_FOR_EARLIER_KERNELS();"
"""Defined in sources/common.cuh."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h, whose value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class LaunchConfiguration(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("number_of_attributes", ctypes.c_uint),
    )


_ATTRIBUTE = LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)


def is_on() -> bool:
    """Whether the current device uses dependent launches. Raises ConfigurationError if the switch is neither 0 nor
    1."""
    switch = os.environ.get(SWITCH, "0")
    if switch not in ("0", "1"):
        raise ConfigurationError(f"{SWITCH}: expected 0 or 1. Received: {switch!r}")
    return switch == "1" and remember("supports dependent launch", _is_supported)


def _is_supported() -> bool:
    runtime = api().runtime
    return int(runtime.getDeviceProperties(runtime.getDevice())["major"]) >= CAPABILITY


def with_waits(source: str) -> str:
    """The source, with kernels that first wait for the earlier kernels of their stream.

    >>> with_waits("KERNEL add(real *y) { *y += 1; }")
    'KERNEL add(real *y) { WAIT_FOR_EARLIER_KERNELS(); *y += 1; }'
    """
    return BEGIN.sub(rf"\1{WAIT}", source)


def launch(function: int, blocks: int, threads: int, shared: int, stream: int, parameters: int) -> None:
    """Launch a kernel that begins with the wait. parameters: as in `Launch`."""
    shape = blocks, 1, 1, threads, 1, 1, shared
    configuration = LaunchConfiguration(*shape, stream, ctypes.pointer(_ATTRIBUTE), 1)
    status = api().cuda.cuLaunchKernelEx(
        ctypes.byref(configuration), ctypes.c_void_p(function), ctypes.c_void_p(parameters), None
    )
    if status:
        raise RuntimeError(f"cuLaunchKernelEx returned {status}")
