from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import pytest

from crossbow import SystemConf
from crossbow.runtime import device
from crossbow.runtime.device import CpuDevice, CudaDevice, available_cores, cpu_devices, parse_devices, thread_cores
from crossbow.types import ConfigurationError


@pytest.mark.parametrize(
    ("names", "cores", "expected"),
    [
        (["cpu"], range(4), [(0, 1, 2, 3)]),
        (["cpu"], [3, 7], [(3, 7)]),
        (["cpu:0/2", "cpu:1/2"], range(4), [(0, 1), (2, 3)]),
        (["cpu:1/2", "cpu:0/2"], range(4), [(2, 3), (0, 1)]),
        (["cpu:0/2", "cpu:1/2"], range(5), [(0, 1), (2, 3, 4)]),
        (["cpu:0/3", "cpu:1/3", "cpu:2/3"], range(8), [(0, 1), (2, 3, 4), (5, 6, 7)]),
        (["cpu:1/3"], range(3), [(1,)]),
        (["cpu:0/2", "cpu:2/4"], range(4), [(0, 1), (2,)]),  # slices of different sizes that do not overlap
        # More slices than cores share them, so that the path of several devices runs everywhere.
        (["cpu:0/2", "cpu:1/2"], [5], [(5,), (5,)]),
        (["cpu:0/4", "cpu:1/4", "cpu:2/4", "cpu:3/4"], [0, 1], [(0,), (1,), (0,), (1,)]),
    ],
)
def test_slices(names: Sequence[str], cores: Sequence[int], expected: list[tuple[int, ...]]) -> None:
    devices = cpu_devices(names, cores)
    assert [device.cores for device in devices] == expected
    assert [device.name for device in devices] == list(names)


@pytest.mark.parametrize("count", range(1, 9))
def test_slices_cover_all_cores_once(count: int) -> None:
    devices = cpu_devices([f"cpu:{index}/{count}" for index in range(count)], range(8))
    assert sorted(core for device in devices for core in device.cores) == list(range(8))


@pytest.mark.parametrize(
    "name",
    ["", "gpu", "cuda:", "cuda:-1", "cuda:0/2", "cuda0", "cpu:2/2", "cpu:0/0", "cpu:-1/2", "cpu:1", "cpu:0/2/2", "CPU"],
)
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"a device is 'cpu', 'cpu:i/n'.*Received: {name!r}"):
        parse_devices([name])


@pytest.mark.parametrize(
    "names",
    [
        ["cpu", "cpu"],
        ["cpu", "cpu:0/2"],
        ["cpu:0/2", "cpu:0/2"],
        ["cpu:0/2", "cpu:00/2"],
        ["cpu:0/2", "cpu:1/3"],
        ["cpu:0/2", "cpu:0/4"],
    ],
)
def test_sharing_cores_is_refused(names: Sequence[str]) -> None:
    with pytest.raises(ConfigurationError, match=f"must not share cores.*Received: {','.join(names)} on 4 cores"):
        cpu_devices(names, range(4))


def test_gpus() -> None:
    assert parse_devices(["cuda:1", "cuda"]) == (CudaDevice("cuda:1", 1), CudaDevice("cuda:0", 0))


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["cuda:0", "cuda:00"], "each GPU may be named once"), (["cpu", "cuda:0"], "devices must all be of one kind")],
)
def test_gpus_that_cannot_be_used_together(names: Sequence[str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{expected}.*Received: {','.join(names)}"):
        parse_devices(names)


def test_the_process_may_use_its_cores() -> None:
    assert cpu_devices(["cpu"])[0].cores == available_cores()
    if hasattr(os, "sched_getaffinity"):
        assert set(available_cores()) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("bound", "rank", "ranks", "expected"),
    [
        (range(6), 0, 1, (0, 1, 2, 3, 4, 5)),
        (range(6), 0, 2, (0, 1, 2)),
        (range(6), 1, 2, (3, 4, 5)),
        ([4, 1], 1, 2, (1, 4)),  # bound by who started it
        (range(5), 1, 2, (0, 1, 2, 3, 4)),
        (None, 1, 3, (2, 3)),  # a system that binds no process
    ],
)
def test_ranks_of_a_host_share_the_cores_that_they_are_not_bound_to(
    bound: Iterable[int] | None, rank: int, ranks: int, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    if bound is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(bound), raising=False)
    monkeypatch.setattr(device, "launch_of", lambda environment: SimpleNamespace(local_rank=rank, local_size=ranks))
    assert available_cores() == expected


@pytest.mark.parametrize(
    ("bound", "name", "ranks", "expected"),
    [
        (range(4), "cpu", 2, (2, 3)),  # two cores of its own
        (range(4), "cpu", 4, (0, 1, 2, 3)),
        (range(4), "cpu", 5, (0, 1, 2, 3)),  # more ranks than cores
        (range(4), "cpu:0/1", 4, (1,)),
        (range(4), "cpu:1/2", 2, (3,)),
        ([2], "cpu", 4, (2,)),  # bound by who started it
    ],
)
def test_a_rank_with_one_core_may_run_on_all(
    bound: Iterable[int], name: str, ranks: int, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(bound), raising=False)
    monkeypatch.setattr(device, "launch_of", lambda environment: SimpleNamespace(local_rank=1, local_size=ranks))
    (found,) = cpu_devices([name])
    assert thread_cores(found) == expected


@pytest.mark.parametrize(("wanted", "cores", "expected"), [("auto", 4, 4), (3, 4, 3), (5, 2, 5)])
def test_number_of_learners(wanted: int | str, cores: int, expected: int) -> None:
    assert CpuDevice("cpu", tuple(range(cores))).learners(wanted) == expected


@pytest.mark.parametrize(
    ("cores", "learners", "wanted", "expected"),
    [(4, 2, None, 2), (5, 2, None, 2), (2, 4, None, 1), (4, 2, 3, 3), (1, 1, None, 1)],
)
def test_threads_of_a_learner(cores: int, learners: int, wanted: int | None, expected: int) -> None:
    assert CpuDevice("cpu", tuple(range(cores))).threads(learners, wanted) == expected


@pytest.mark.parametrize(("cores", "wanted"), [(1, 2), (4, 5), (4, 10**9)])
def test_more_threads_than_cores_are_refused(cores: int, wanted: int) -> None:
    expected = f"must be at most the number of cores of 'cpu', {cores}. Received: threads_per_learner={wanted}"
    with pytest.raises(ConfigurationError, match=expected):
        CpuDevice("cpu", tuple(range(cores))).threads(1, wanted)


@pytest.mark.parametrize("devices", ["cpu:0/2,cpu:1/2", "cpu:0/2, cpu:1/2", ["cpu:0/2", "cpu:1/2"]])
def test_devices_as_a_user_gives_them(devices: str | list[str]) -> None:
    assert SystemConf(devices=devices).devices == ("cpu:0/2", "cpu:1/2")
