"""For Python processes that benchmarks start: with this folder on its path, Python begins on the fake GPU, and the
benchmarks have small networks, data sets and settings. `CROSSBOW_TEST_TROUBLE` says what goes wrong, and where:
"operators-float32 hangs, weights crashes"."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

from benchmarks import gpu_check, gpu_parts, machine
from benchmarks.gpu_check import PARTS
from benchmarks.gpu_networks import GPU_NETWORKS, GpuNetwork
from benchmarks.gpu_parts import Settings
from benchmarks.gpu_rows import Row, Rows
from benchmarks.networks import Network
from crossbow import Dataflow
from crossbow.ops import Conv, InnerProduct, ReLU
from tests.kernels.cuda.fake import fake_cuda
from tests.support import pictures, training

HOLD: list[Any] = []
"""What has to live as long as the process."""


def network(*_: Any, **__: Any) -> Dataflow:
    return training(Conv(number_of_outputs=2, kernel_size=3), ReLU(), InnerProduct(number_of_outputs=3))


def ten_classes() -> Dataflow:
    return training(Conv(number_of_outputs=2, kernel_size=3), ReLU(), InnerProduct(number_of_outputs=10))


def hangs(settings: Settings, clock: Any, rows: Rows) -> None:
    rows.add(Row("before it hangs", "Conv", 0.25, 1.0))
    time.sleep(3600)


def crashes(settings: Settings, clock: Any, rows: Rows) -> None:
    rows.add(Row("before it crashes", "Conv", 0.5, 1.0))
    os.abort()


def runs_out(settings: Settings, clock: Any, rows: Rows) -> None:
    while True:
        rows.add(Row(f"row {len(rows.rows)}", "Conv", 0.125, 1.0))
        clock.check(len(rows.rows), 10**6)
        time.sleep(0.1)


def install() -> None:
    cuda = fake_cuda()
    HOLD.append(cuda)
    runtime: Any = cuda.__enter__().runtime
    runtime.deviceGetPCIBusId = lambda device: "0000:3B:00.0"
    runtime.runtimeGetVersion, runtime.driverGetVersion = lambda: 13020, lambda: 13030
    for name in ("lenet", "resnet"):
        setattr(gpu_parts, name, network)
    for name in ("digits", "synthetic"):
        setattr(gpu_parts, name, lambda *_, **__: pictures())
    tiny = Settings(every=97, tasks=4, leak_tasks=8, learners=2, batch_size=2, lenet_epochs=1, resnet_epochs=1)
    gpu_check.settings_of = lambda options: tiny
    small = Network(0, (1, 4, 4), 64, ten_classes, lambda: None, (), {})
    for name in GPU_NETWORKS:
        GPU_NETWORKS[name] = GpuNetwork(small, 64, GPU_NETWORKS[name].targets)
    gpu_check.STARTING = 10.0
    if "benchmarks.gpu_learners" in sys.orig_argv:
        sys.argv += ["--rounds", "3", "--seconds", "0.05"]
    machine.has_torch = lambda: False
    for trouble in filter(None, os.environ.get("CROSSBOW_TEST_TROUBLE", "").split(", ")):
        part, _, what = trouble.partition(" ")
        run = {"hangs": hangs, "crashes": crashes, "runs_out": runs_out}[what]
        PARTS[part] = replace(PARTS[part], run=run, seconds=5.0)


install()
