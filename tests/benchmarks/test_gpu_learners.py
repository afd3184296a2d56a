from __future__ import annotations

import importlib.util
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu_learners, gpu_occupancy, gpu_runner, gpu_torch_runner
from benchmarks.contest import ContestError
from benchmarks.gpu_host import Host, HostTime, Ready, Refused, start_process
from benchmarks.gpu_learners import PRECISIONS, Benchmark, Case, Entry, cases, entries, main, share
from benchmarks.gpu_networks import CASES, GPU_NETWORKS, GpuNetwork
from benchmarks.gpu_occupancy import Occupancy, Sample, driver_version, parse
from benchmarks.gpu_report import (
    CROSSBOW,
    ONE,
    PYTORCH,
    TORCH_EAGER,
    TORCH_GRAPHS,
    Observation,
    Outcome,
    content,
    crossbow,
    report,
    streamed,
    table,
    verdicts,
    vmapped,
)
from benchmarks.gpu_runner import CrossbowGpuRunner, LaunchClock
from benchmarks.gpu_torch_runner import TorchGpuRunner, _AtOnce, _Replicas, _Single
from benchmarks.networks import Network, torch_resnet50
from crossbow import Dataflow, Sequential
from crossbow.dataflow.validate import infer_shapes, variables_of
from crossbow.ops import BatchNorm, Conv, InnerProduct, Pool, ReLU
from models.layers import classifier
from tests.kernels.cuda.fake import FakeCuda, fake_cuda

TORCH = importlib.util.find_spec("torch") is not None or "CROSSBOW_REQUIRE_TORCH" in os.environ
needs_torch = pytest.mark.skipif(not TORCH, reason="PyTorch is not installed")


def small() -> Dataflow:
    layers = [
        ("conv", Conv(number_of_outputs=4, kernel_size=3)),
        ("norm", BatchNorm()),
        ("relu", ReLU()),
        ("pool", Pool(method="max", kernel_size=2, stride=2)),
        ("ip", InnerProduct(number_of_outputs=10)),
    ]
    network = Sequential(*layers)
    return classifier(network.head, network.tail)


def torch_small() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
    )


SMALL = GpuNetwork(Network(418, (1, 8, 8), 64, small, torch_small, (), {}), 8, {2: (2.0, 1.5)})


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPU_NETWORKS, "small", SMALL)
    monkeypatch.setattr(gpu_occupancy, "COMMAND", "no-nvidia-smi")
    monkeypatch.setattr(gpu_torch_runner, "TRIAL_STEPS", 1)
    monkeypatch.setattr(gpu_torch_runner, "WARM_STEPS", 1)
    gpu_runner._dataset.cache_clear()


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda() as fake:
        runtime: Any = fake.runtime
        runtime.deviceGetPCIBusId = lambda device: "0000:3B:00.0"
        runtime.runtimeGetVersion, runtime.driverGetVersion = lambda: 13020, lambda: 13030
        yield fake


class OnCpu(TorchGpuRunner):
    """PyTorch without a GPU: what needs one fails."""

    def __init__(self, **arguments: Any) -> None:
        import torch

        torch.set_num_threads(1)
        super().__init__(**arguments, where="cpu")

    @staticmethod
    def about(device: int) -> dict[str, str]:
        return {"PyTorch": "on the CPU"}


class Here:
    """A host in this process, where the GPU is the fake."""

    def __init__(self, name: str, kind: Any, device: int) -> None:
        self.host = Host(kind, device)

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        return getattr(self.host, method)(*arguments)

    def close(self) -> None:
        self.host.close()


# The whole


OPTIONS = ["--networks", "small", "--batches", "2", "--rounds", "2", "--seconds", "0.01", "--learners", "2"]


@pytest.mark.slow
@needs_torch
def test_the_benchmark_runs(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gpu_learners.KINDS, PYTORCH, OnCpu)
    monkeypatch.setattr(gpu_learners, "WARM_UP", 0.0)
    path = tmp_path / "measured.json"
    assert main([*OPTIONS, "--replicas", "3", "--json", str(path)], Here) == 0
    printed = capsys.readouterr()
    assert "- GPU: no GPU, 80 GiB" in printed.out
    assert "- precision: float32, without TF32, in Crossbow and in PyTorch" in printed.out
    assert "PyTorch was left out" not in printed.out
    measured = json.loads(path.read_text())
    assert {"commit", "date", "libraries", "PyTorch", "driver", "settings"} <= measured["machine"].keys()
    outcome, others = measured["outcomes"]
    with_graphs = {ONE, crossbow(2, True)}
    without = {ONE, crossbow(1, False), crossbow(2, False), TORCH_EAGER, vmapped(3, False)}
    failed = {TORCH_GRAPHS, streamed(2)}, {TORCH_GRAPHS, vmapped(3, True)}  # there is no GPU
    for case, rates, missing in zip((outcome, others), (with_graphs, without), failed, strict=True):
        assert set(case["rates"]) == rates
        assert all(len(found) == 2 and min(found) > 0 for found in case["rates"].values())
        assert set(case["failed"]) == set(case["traces"]) == missing
        assert all("Traceback" in trace for trace in case["traces"].values())
        assert {one["request"] for one in case["convolutions"]} == {"Forward", "BackwardFilter"}
        for name, seen in case["seen"].items():
            assert seen["busy"] is None
            assert seen["host"]["task"] > 0
            if name.startswith(CROSSBOW):
                assert 0 < seen["host"]["launch"] < seen["host"]["task"]
                assert seen["host"]["tick"] > 0
    assert len(measured["targets"]) == 3
    assert measured["targets"][1] == f"not measured: small, batch 2: × {TORCH_GRAPHS} (target 1.5)"
    assert measured["targets"][0].startswith(("met", "MISSED"))
    assert measured["left out"] == []
    assert f"- {measured['targets'][0]}" in printed.out


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cuda(0) as fake:

        def none() -> int:
            raise RuntimeError("no driver")

        fake.runtime.getDeviceCount = none  # type: ignore[method-assign]
        assert main(OPTIONS, Here) == 2
    expected = "expected an NVIDIA GPU that Crossbow can use. Received: RuntimeError: no driver"
    assert expected in capsys.readouterr().err


def test_a_gpu_that_is_not_there(cuda: FakeCuda, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "--device", "1"], Here) == 2
    assert "expected a GPU that is there, 0 to 0. Received: --device 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--batches", "0"], ["--budget", "nan"], ["--device", "-1"], ["--networks", "vgg"]]
)
def test_bad_options(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert options[0] in capsys.readouterr().err


# What is measured


def test_the_cases_are_in_order_of_importance() -> None:
    assert CASES[:3] == (("resnet-32", 16), ("resnet-32", 32), ("resnet-32", 64))
    assert {network for network, _ in CASES} == {"resnet-32", "lenet", "resnet-50"}
    assert len(set(CASES)) == len(CASES)
    for network in ("resnet-32", "lenet", "resnet-50"):
        assert all(1 <= case.batch <= 256 for case in cases([network], None))
    assert cases(["lenet", "resnet-50"], [3]) == [Case("lenet", 3), Case("resnet-50", 3)]
    assert cases(["resnet-32", "lenet"], [8, 16, 32]) == [
        *(Case("resnet-32", 16), Case("resnet-32", 32)),
        *(Case("resnet-32", 16, others=True), Case("resnet-32", 32, others=True)),
        *(Case("resnet-32", 8), Case("lenet", 8), Case("lenet", 16), Case("lenet", 32)),
    ]
    # 3 + 3 + 1 parts of 70 s, the first of a case with targets
    rest = [Case("resnet-32", 64), Case("resnet-32", 64, others=True)]
    assert share(Case("resnet-32", 16), rest, 70.0) == pytest.approx(30.0)


def test_the_contestants_of_a_case() -> None:
    found = entries(Case("resnet-32", 16), [2, 8], 4, "float32", torch=True)
    assert [entry.name for entry in found] == [
        *(ONE, TORCH_GRAPHS, crossbow(2, True), crossbow(8, True), streamed(2), streamed(8)),
    ]
    assert [entry.images for entry in found] == [16, 16, 32, 128, 32, 128]
    assert [entry.learners for entry in found] == [1, 0, 2, 8, 0, 0]
    assert all(entry.essential for entry in found)
    assert [entry.arguments.get("streams") for entry in found] == [None, None, None, None, 2, 8]
    assert {entry.arguments["precision"] for entry in found} == {"float32"}
    later = entries(Case("resnet-32", 16, others=True), [2, 8], 4, "float32", torch=True)
    assert [entry.name for entry in later] == [
        *(ONE, TORCH_GRAPHS, TORCH_EAGER, crossbow(1, False), vmapped(4, False), vmapped(4, True)),
        *(crossbow(2, False), crossbow(8, False)),
    ]
    assert [entry.essential for entry in later] == [True, True, *[False] * 6]
    few = entries(Case("lenet", 4), [1, 2], 4, "float32", torch=False)
    assert [entry.name for entry in few] == [ONE, crossbow(2, True), crossbow(1, False)]
    assert [entry.essential for entry in few] == [True, False, False]


class Scripted:
    """A place whose answers are known, and which fails as it is told."""

    made: int = 0

    def __init__(self, name: str, kind: Any, device: int) -> None:
        Scripted.made += 1
        self.closed, self.calls = False, [("made", name)]

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        name = arguments[0] if arguments else ""
        self.calls.append((method, name))
        if method == "add":
            return Refused("out of memory", "Traceback") if name == "large" else Ready(0.001, 1 << 20)
        if name == "broken" and method == "run":
            raise ContestError("Crossbow: its process ended without an answer")
        return {"run": 5.0, "observe": HostTime(7.0), "clear": None, "about": {}, "convolutions": []}[method]

    def close(self) -> None:
        self.closed = True


SMALL_CASE = Case("small", 2)


def _entry(name: str, images: int = 1, *, essential: bool = True) -> Entry:
    return Entry(name, CROSSBOW, {}, images, essential=essential)


def test_turns_rotate_and_what_fails_is_left_out() -> None:
    Scripted.made = 0
    benchmark = Benchmark(Scripted, 0, None)
    of = [_entry("a"), _entry("large"), _entry("b"), _entry("many", 9)]
    outcome = benchmark.measure(SMALL_CASE, of, 3, 0.001, time.monotonic() + 60)
    assert outcome.rates == {"a": [5.0] * 3, "b": [5.0] * 3}
    assert outcome.failed == {"large": "out of memory", "many": "9 images at a time, more than 8"}
    assert outcome.seen["b"] == Observation(HostTime(7.0), None, 1 << 20)
    place: Any = benchmark._places[CROSSBOW]
    runs = [name for method, name in place.calls if method == "run"]
    assert runs == ["a", "b", "b", "a", "a", "b"]
    outcome = benchmark.measure(SMALL_CASE, [_entry("broken"), _entry("c")], 1, 0.001, time.monotonic() + 60)
    assert outcome.rates == {}
    assert outcome.failed == {
        "broken": "Crossbow: its process ended without an answer",
        "c": "its process had failed before",
    }
    assert place.closed
    outcome = benchmark.measure(SMALL_CASE, [_entry("c")], 1, 0.001, time.monotonic() + 60)
    assert outcome.rates == {"c": [5.0]}
    assert Scripted.made == 2


def test_where_time_is_short_there_are_fewer_contestants_and_rounds() -> None:
    benchmark = Benchmark(Scripted, 0, None)
    of = [_entry("a"), _entry("b"), _entry("c", essential=False)]
    outcome = benchmark.measure(SMALL_CASE, of, 9, 0.001, time.monotonic() - 60)
    assert outcome.rates == {"a": [5.0] * 2, "b": [5.0] * 2}
    assert outcome.failed == {"c": "no time was left for it"}


class Clock:
    """A clock that stands still, but for what is added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(gpu_learners, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=time.sleep))


def test_building_what_is_essential_is_not_taken_off_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Cold(Scripted):
        def call(self, timeout: float, method: str, *arguments: Any) -> Any:
            clock.now += {"add": 50.0, "run": 1.0}.get(method, 0.0)
            return super().call(timeout, method, *arguments)

    of = [_entry("a"), _entry("b"), _entry("c", essential=False)]
    outcome = Benchmark(Cold, 0, None).measure(SMALL_CASE, of, 7, 0.001, clock.now + 90, clock.now + 900)
    # 100 s of building are added to the 90; of these c took 50, which leaves enough for 7 rounds
    assert {name: len(rates) for name, rates in outcome.rates.items()} == {"a": 7, "b": 7, "c": 7}
    outcome = Benchmark(Cold, 0, None).measure(SMALL_CASE, of, 7, 0.001, clock.now + 90, clock.now + 106)
    assert {name: len(rates) for name, rates in outcome.rates.items()} == {"a": 2, "b": 2, "c": 2}
    outcome = Benchmark(Cold, 0, None).measure(SMALL_CASE, of, 7, 0.001, clock.now + 90, clock.now + 40)
    assert outcome.failed == dict.fromkeys("bc", "no time was left for it")


def test_every_round_is_told() -> None:
    seen: list[int] = []
    Benchmark(Scripted, 0, None).measure(
        SMALL_CASE,
        [_entry("a")],
        3,
        0.001,
        time.monotonic() + 60,
        progress=lambda outcome: seen.append(len(outcome.rates["a"])),
    )
    assert seen == [1, 2, 3]


def test_what_does_not_fit_into_the_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=time.sleep)
    monkeypatch.setattr(gpu_learners, "time", clock)

    class Slow(Scripted):
        def call(self, timeout: float, method: str, *arguments: Any) -> Any:
            passed[0] += 800.0 if method == "observe" else 0.0
            return super().call(timeout, method, *arguments)

    path = tmp_path / "measured.json"
    options = ["--batches", "2", "4", "--learners", "1", "--no-torch", "--budget", "800", "--json", str(path)]
    assert main([*OPTIONS, *options], Slow) == 0
    assert (
        "Left out for want of time (--budget): small, batch 2, other contestants; small, batch 4."
        in capsys.readouterr().out
    )
    measured = json.loads(path.read_text())
    assert measured["left out"] == ["small, batch 2, other contestants", "small, batch 4"]
    assert [(outcome["network"], outcome["batch"]) for outcome in measured["outcomes"]] == [("small", 2)]


class OnlyAbout(Scripted):
    """Of which PyTorch's says truly what it is."""

    def __init__(self, name: str, kind: Any, device: int) -> None:
        super().__init__(name, kind, device)
        self.host = Host(kind, device) if name == PYTORCH else None

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        if method == "about" and self.host is not None:
            return self.host.about()
        return super().call(timeout, method, *arguments)


@pytest.mark.parametrize(
    ("options", "installed", "reason"),
    [
        (["--no-torch"], True, "--no-torch was given"),
        ([], False, "it is not installed here"),
        pytest.param([], True, "RuntimeError: expected a PyTorch with CUDA", marks=needs_torch),
    ],
)
def test_without_pytorch(
    options: list[str],
    installed: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "CUDA" in reason:
        import torch

        if torch.version.cuda is not None:
            pytest.skip("PyTorch has CUDA here")
    monkeypatch.setattr(gpu_learners, "has_torch", lambda: installed)
    assert main([*OPTIONS, *options, "--rounds", "1", "--learners", "1"], OnlyAbout) == 0
    printed = capsys.readouterr().out
    assert f"PyTorch was left out: {reason}" in printed
    assert "- precision: float32, without TF32, in Crossbow\n" in printed
    assert f"not measured: small, batch 2: × {TORCH_GRAPHS} (target 1.5)" in printed


# The runners


@pytest.mark.slow
def test_crossbows_runner(cuda: FakeCuda) -> None:
    host = Host(CrossbowGpuRunner)
    arguments = {"network": "small", "batch": 2, "learners": 2, "graphs": True, "precision": "float32"}
    assert isinstance(host.add("two", arguments), Ready)
    before = dict(cuda.runtime.counts)
    assert host.run("two", 0.0, 0.02) > 0  # type: ignore[operator]
    done = {name: count - before.get(name, 0) for name, count in cuda.runtime.counts.items()}
    # A tick has two tasks and two steps; the first one after a start may have the steps in the tasks' graphs. A merge
    # has few kernels, without a graph.
    assert done["graphLaunch"] >= 2
    assert done["graphLaunch"] % 2 == 0
    assert {(one["request"], one["input"][0], one["deterministic"]) for one in host.convolutions()} == {
        (request, 2, False) for request in ("Forward", "BackwardFilter")
    }
    host_time = host.observe("two", 0.02)
    assert isinstance(host_time, HostTime)
    runner: Any = host._runners["two"]
    learner = runner.context.engine.members[0].learner
    assert not {"submit", "step"} & vars(learner).keys()  # the clocks are gone
    refused = host.add("bad", {**arguments, "precision": "int8"})
    assert isinstance(refused, Refused)
    assert "precision" in refused.reason
    assert host.clear() is None
    assert isinstance(host.run("two", 0.0, 0.01), Refused)


def test_the_clocks_numbers() -> None:
    clock = LaunchClock(None)
    clock._submits = [[10_000, 12_000], [20_000, 14_000]]
    clock._steps = [[1_000, 2_000], [3_000, 2_000]]
    clock._launches = [[4_000, 500, 5_000, 500], [6_000, 500, 7_000, 500]]
    clock._ticks = [7_000, 8_000]
    # tasks 11, 14, 23, 16; launches 4.5, 5.5, 6.5, 7.5; ticks: 15 less 8 of steps, over two
    assert clock.result() == HostTime(15.0, 6.0, 3.5)


def test_the_clocks_numbers_of_one_learner() -> None:
    """Its tasks are one launch each, and have no step of their own."""
    clock = LaunchClock(None)
    clock._submits, clock._steps, clock._launches = [[10_000, 12_000, 14_000]], [[]], [[4_000, 5_000, 7_000]]
    clock._ticks = [1_000, 2_000, 3_000]
    assert clock.result() == HostTime(12.0, 5.0, 2.0)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("models", [{}, {"replicas": 2}, {"streams": 2}], ids=["one", "replicas", "streams"])
@pytest.mark.parametrize("network", ["small", "lenet", "resnet-32"])
def test_pytorch_trains(network: str, models: dict[str, int]) -> None:
    runner = OnCpu(network=network, batch=2, **models)
    assert runner.images == 2 * max(models.values(), default=1)
    assert runner.warm_up() > 0
    now = time.monotonic()
    assert runner.run(now, now + 0.01) > 0
    assert runner.observe(time.monotonic()).task > 0
    runner.close()


@pytest.mark.slow
@needs_torch
def test_models_on_streams_are_trained_as_each_would_be_alone() -> None:
    """Each on its stream, and with batches of its own, in whichever memory format is faster."""
    import copy

    import torch

    runner = OnCpu(network="small", batch=4, streams=2)
    runner.warm_up()
    training: Any = runner._training
    assert isinstance(training, _AtOnce)
    entered: list[int] = []

    @contextmanager
    def on_stream(number: int) -> Iterator[None]:
        entered.append(number)
        yield

    training.trainings = [(one, partial(on_stream, n)) for n, (one, _) in enumerate(training.trainings)]
    alone = [copy.deepcopy(one) for one, _ in training.trainings]
    images, labels = runner._batches[0]
    assert len(images) == len(labels) == 2
    assert images[0].is_contiguous(memory_format=torch.channels_last) or not runner.channels_last
    training.step(images, labels)
    assert entered == [0, 1]
    for number, one in enumerate(alone):
        before = [parameter.clone() for parameter in one.model.parameters()]
        one.step(images[number], labels[number])
        assert any(not torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))
        for expected, received in zip(
            one.model.parameters(), training.trainings[number][0].model.parameters(), strict=True
        ):
            torch.testing.assert_close(received, expected)


@pytest.mark.slow
@needs_torch
def test_replicas_are_trained_as_each_would_be_alone() -> None:
    import copy

    import torch

    torch.manual_seed(0)
    models = [torch_small() for _ in range(2)]
    alone = [_Single(copy.deepcopy(model), nullcontext) for model in models]
    together = _Replicas(models, nullcontext)
    for _ in range(3):
        images, labels = torch.rand(2, 4, 1, 8, 8), torch.randint(0, 10, (2, 4))
        together.step(images, labels)
        for number, single in enumerate(alone):
            single.step(images[number], labels[number])
    for number, single in enumerate(alone):
        for name, expected in single.model.named_parameters():
            torch.testing.assert_close(together.parameters[name][number], expected.detach())
        for name, expected in single.model.named_buffers():
            torch.testing.assert_close(together.buffers[name][number], expected)


@needs_torch
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_precision_of_pytorch(precision: str) -> None:
    import torch

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    try:
        TorchGpuRunner("small", 2, precision=precision, where="cpu")
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is (precision != "float32")
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before


@pytest.mark.slow
@needs_torch
def test_resnet_50_is_the_same_in_pytorch() -> None:
    import torch

    graph, batch = GPU_NETWORKS["resnet-50"].network.build().graph, (1, 3, 224, 224)
    shapes = infer_shapes(graph, batch)
    found = [spec.shape for specs in variables_of(graph, batch, shapes).values() for spec in specs]
    model = torch_resnet50()
    # Those of an inner product are a matrix in both; a normalisation has two vectors in both.
    assert sorted(map(math.prod, found)) == sorted(parameter.numel() for parameter in model.parameters())
    assert sum(map(math.prod, found)) == GPU_NETWORKS["resnet-50"].network.parameters
    strided = {m.kernel_size for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.stride == (2, 2)}
    assert strided == {(7, 7), (1, 1)}
    with torch.no_grad():
        sizes = [x.shape for x in _through(model.eval(), torch.zeros(1, 3, 64, 64))]
    assert [tuple(size[1:]) for size in (sizes[3], *sizes[-4:])] == [
        *((64, 16, 16), (2048, 2, 2), (2048, 1, 1), (2048,), (1000,)),
    ]


def _through(model: Any, x: Any) -> Iterator[Any]:
    for layer in model:
        x = layer(x)
        yield x


# Processes


class Steady:
    """A kind of runners that do nothing, at a known rate."""

    def __init__(self, rate: float, device: int) -> None:
        self.rate = rate

    def warm_up(self) -> float:
        return 0.5

    def run(self, begin: float, end: float) -> float:
        if self.rate < 0:
            raise ValueError("no luck\nat all")
        if self.rate > 100:
            os._exit(1)
        return self.rate

    def observe(self, end: float) -> HostTime:
        return HostTime(self.rate)

    def close(self) -> None: ...

    @staticmethod
    def about(device: int) -> dict[str, str]:
        return {"device": str(device)}

    @staticmethod
    def free_memory(device: int) -> int | None:
        return None


@pytest.mark.slow
def test_a_host_in_a_process() -> None:
    place = start_process("steady", Steady, 3)
    try:
        assert place.call(60.0, "about") == {"device": "3"}
        for name, rate in (("good", 5.0), ("bad", -1.0), ("dead", 101.0)):
            assert place.call(60.0, "add", name, {"rate": rate}) == Ready(0.5, None)
        assert place.call(60.0, "run", "good", 0.0, 0.01) == 5.0
        refused = place.call(60.0, "run", "bad", 0.0, 0.01)
        assert refused.reason == "ValueError: no luck"
        assert "Traceback" in refused.trace
        assert place.call(60.0, "observe", "good", 0.01) == HostTime(5.0)
        with pytest.raises(ContestError, match="its process ended"):
            place.call(60.0, "run", "dead", 0.0, 0.01)
    finally:
        place.close()


# How busy the GPU is


def test_lines_of_nvidia_smi() -> None:
    assert parse(" 87, 1024\n", 2.0) == Sample(2.0, 0.87, 1 << 30)
    assert parse("[N/A], 1024\n", 2.0) is None
    assert parse("No devices were found\n", 2.0) is None


def test_samples_of_a_stretch() -> None:
    occupancy = Occupancy("0000:3B:00.0")
    occupancy._samples = [Sample(moment, busy, 0) for moment, busy in ((0.1, 0.0), (0.4, 0.5), (0.9, 1.0), (1.1, 0.0))]
    assert occupancy.busy(0.0, 1.0) == pytest.approx(0.75)  # the first looks back to before it
    assert occupancy.busy(5.0, 6.0) is None


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for nvidia-smi is a shell script")
def test_nvidia_smi_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    script.write_text('#!/bin/sh\ncase "$1" in *driver*) echo 580.1; exit;; esac\necho "42, 10"\nexec sleep 60\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(gpu_occupancy, "COMMAND", str(script))
    begin = time.monotonic()
    with Occupancy("0000:3B:00.0") as occupancy:
        (sample,) = occupancy.between(begin, time.monotonic())
    assert (sample.busy, sample.memory) == (0.42, 10 << 20)
    assert driver_version("0000:3B:00.0") == "580.1"


def test_without_nvidia_smi() -> None:
    with Occupancy("0000:3B:00.0") as occupancy:
        assert occupancy.busy(0.0, math.inf) is None
    assert driver_version("0000:3B:00.0") == "unknown"


# The report


@pytest.fixture
def outcome() -> Outcome:
    two, four = crossbow(2, True), crossbow(4, True)
    return Outcome(
        "resnet-32",
        16,
        rates={
            ONE: [100.0, 110.0, 100.0],
            two: [190.0, 220.0, 210.0],
            four: [150.0, 330.0, 180.0],
            crossbow(4, False): [400.0, 400.0, 400.0],
            TORCH_GRAPHS: [100.0, 200.0, 150.0],
            streamed(2): [95.0, 220.0, 105.0],
            streamed(4): [90.0, 90.0, 90.0],
        },
        learners={ONE: 1, two: 2, four: 4},
        seen={
            ONE: Observation(HostTime(9.0, 5.0, 2.0), 0.5, 300 << 20),
            two: Observation(HostTime(19.94, 12.0, 3.0), 0.98, 500 << 20),
            TORCH_GRAPHS: Observation(HostTime(30.0)),
        },
        failed={crossbow(8, True): "out of memory"},
    )


def test_the_best_number_of_learners_is_one_with_graphs(outcome: Outcome) -> None:
    assert outcome.best == crossbow(2, True)  # 210 beside 180; without graphs does not count
    assert Outcome("lenet", 4).best is None


def test_targets(outcome: Outcome) -> None:
    # by round 1.9, 2.0, 2.1 × one learner, and 1.9, 1.1, 1.4 × PyTorch
    assert verdicts([outcome]) == [
        f"met: resnet-32, batch 16: 2 learners: 2.00 (1.90–2.10) × {ONE} (target 2.0)",
        f"MISSED: resnet-32, batch 16: 2 learners: 1.40 (1.10–1.90) × {TORCH_GRAPHS} (target 1.5)",
        f"beside: resnet-32, batch 16: 2 learners: 2.00 (1.00–2.00) × {streamed(2)} (no target)",
        "met: resnet-32, batch 16: 2 learners: 19.9 µs of the host's time to submit a task (target < 20)",
    ]
    slow = replace(outcome, batch=8, seen={crossbow(2, True): Observation(HostTime(20.0))})
    assert verdicts([slow])[1:] == [
        "MISSED: resnet-32, batch 8: 2 learners: 20.0 µs of the host's time to submit a task (target < 20)"
    ]
    assert verdicts([replace(outcome, others=True)]) == []
    assert verdicts([Outcome("resnet-32", 16)]) == [
        f"not measured: resnet-32, batch 16: × {ONE} (target 2.0)",
        f"not measured: resnet-32, batch 16: × {TORCH_GRAPHS} (target 1.5)",
    ]


def test_the_table(outcome: Outcome) -> None:
    lines = table(outcome).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = {row[0]: row[1:] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}
    assert cells[crossbow(2, True)] == [
        *("← best", "210 (190–220)", "2.00 (1.90–2.10)", "1.40 (1.10–1.90)", "98%", "500 MiB", "19.9", "12.0", "3.0"),
    ]
    assert cells[TORCH_GRAPHS][1:] == [
        *("150 (100–200)", "1.50 (1.00–1.82)", "1.00 (1.00–1.00)", "–", "–", "30.0", "–", "–")
    ]
    assert cells[crossbow(4, False)][4:] == ["–"] * 5
    text = report(outcome)
    assert f"- {crossbow(8, True)}: not measured: out of memory" in text
    assert "- MISSED: " in text


def test_json(outcome: Outcome) -> None:
    written = json.loads(json.dumps(content({"GPU": "none"}, [outcome], ["lenet, batch 1"])))
    assert written["machine"] == {"GPU": "none"}
    assert written["left out"] == ["lenet, batch 1"]
    assert written["outcomes"][0]["seen"][ONE] == {
        "host": {"task": 9.0, "launch": 5.0, "tick": 2.0},
        "busy": 0.5,
        "memory": 300 << 20,
    }
    assert written["targets"] == verdicts([outcome])
