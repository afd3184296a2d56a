"""Devices: all cores of the processor, or a slice of them; or a GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from crossbow.cluster.launch import launch_of
from crossbow.types import ConfigurationError


@dataclass(frozen=True)
class CpuDevice:
    """Some of the machine's cores."""

    name: str
    cores: tuple[int, ...]

    def learners(self, wanted: int | str) -> int:
        """The requested number of learners or, for "auto", one per core."""
        return len(self.cores) if wanted == "auto" else int(wanted)

    def threads(self, learners: int, wanted: int | None) -> int:
        """The requested number of threads of each learner or, by default, its share of the cores, at least one.

        Raises ConfigurationError for more threads than cores, which would only wait for each other.
        """
        if wanted is None:
            return max(1, len(self.cores) // learners)
        if wanted > len(self.cores):
            raise ConfigurationError(
                f"SystemConf: threads_per_learner must be at most the number of cores of {self.name!r}, "
                f"{len(self.cores)}. Received: threads_per_learner={wanted}"
            )
        return wanted


_ALLOWED = "a device is 'cpu', 'cpu:i/n' with 0 ≤ i < n, 'cuda' or 'cuda:i'"
LEARNERS_OF_A_GPU = 4
"""Default number of learners on a GPU."""


@dataclass(frozen=True)
class CudaDevice:
    """An NVIDIA GPU."""

    name: str
    number: int
    """Number of the GPU in CUDA's order."""

    def learners(self, wanted: int | str) -> int:
        """The requested number of learners or, for "auto", a few. (The best number depends on the network and the
        batch.)"""
        return LEARNERS_OF_A_GPU if wanted == "auto" else int(wanted)


Device = CpuDevice | CudaDevice


def available_cores() -> tuple[int, ...]:
    """The cores this process may use: its share of all cores, if it is one of several ranks on a host that are not
    bound to cores."""
    cores = _process_cores()
    launch = launch_of(os.environ)
    if launch.local_size == 1 or len(cores) < (os.cpu_count() or 1):
        return cores
    return _part(cores, launch.local_rank, launch.local_size)


def _process_cores() -> tuple[int, ...]:
    """The cores to which the system has bound this process."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def thread_cores(device: CpuDevice) -> tuple[int, ...]:
    """The cores on which the threads of a device's learners may run: the cores of the device.

    A rank whose share of a host is one core may also use the other cores. Otherwise its learner would wait for its core
    while a thread that reads data or exchanges vectors has it, even if another core is idle.
    """
    return _process_cores() if device.name == "cpu" and len(device.cores) == 1 else device.cores


def cores_text(cores: Sequence[int]) -> str:
    """Core numbers as text.

    >>> cores_text((0, 1, 2, 5)), cores_text((3,))
    ('cores 0–2, 5', 'core 3')
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"core{'' if len(cores) == 1 else 's'} {', '.join(parts)}"


def parse_devices(names: Sequence[str]) -> tuple[Device, ...]:
    """The devices of these names: all CPU devices, or all GPUs.

    Raises ConfigurationError for unknown names, shared cores, GPUs named twice, and a mixture of both kinds.
    """
    on_gpu = [name.startswith("cuda") for name in names]
    if not any(on_gpu):
        return cpu_devices(names)
    if not all(on_gpu):
        raise ConfigurationError(
            f"devices must all be of one kind, as 'cpu' or 'cuda:0,cuda:1'. Received: {','.join(names)}"
        )
    return cuda_devices(names)


def cuda_devices(names: Sequence[str], own: int = 0) -> tuple[CudaDevice, ...]:
    """The devices of "cuda:i" names, or of "cuda", which is the GPU with the number `own`."""
    devices = []
    for name in names:
        match = re.fullmatch(r"cuda(?::(\d+))?", name)
        if match is None:
            raise ConfigurationError(f"{_ALLOWED}. Received: {name!r}")
        number = own if match[1] is None else int(match[1])
        devices.append(CudaDevice(f"cuda:{number}", number))
    if len({device.number for device in devices}) < len(devices):
        raise ConfigurationError(f"each GPU may be named once, as cuda:0,cuda:1. Received: {','.join(names)}")
    return tuple(devices)


def cpu_devices(names: Sequence[str], cores: Sequence[int] | None = None) -> tuple[CpuDevice, ...]:
    """The devices of "cpu" or "cpu:i/n" names. Raises ConfigurationError for unknown names and shared cores.

    cores: the cores to divide, by default those that this process may use. If there are fewer cores than slices, the
    slices share them, so that code for several devices runs on every machine.
    """
    cores = available_cores() if cores is None else tuple(cores)
    devices = tuple(_parse(name, cores) for name in names)
    if len(devices) > 1 and all("/" in device.name for device in devices):
        slices = {device.name for device in devices}
        counts = {device.name.split("/")[1] for device in devices}
        if len(slices) == len(devices) and len(counts) == 1:
            return devices
    used: set[int] = set()
    for device in devices:
        if used & set(device.cores):
            raise ConfigurationError(
                f"devices must not share cores, as cpu:0/2,cpu:1/2. Received: {','.join(names)} on {len(cores)} cores"
            )
        used |= set(device.cores)
    return devices


def _parse(name: str, cores: Sequence[int]) -> CpuDevice:
    if name == "cpu":
        return CpuDevice(name, tuple(cores))
    match = re.fullmatch(r"cpu:(\d+)/(\d+)", name)
    if match is None or not int(match[1]) < int(match[2]):
        raise ConfigurationError(f"{_ALLOWED}. Received: {name!r}")
    index, count = int(match[1]), int(match[2])
    name = f"cpu:{index}/{count}"  # "cpu:00/2" is the same device
    return CpuDevice(name, _part(cores, index, count))


def _part(cores: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    """One of `count` parts of the cores; a single core if there are fewer cores than parts."""
    if count > len(cores):
        return (cores[index % len(cores)],)
    return tuple(cores[index * len(cores) // count : (index + 1) * len(cores) // count])
