"""Two MPI ranks with one learner each, compared with one process with two learners, and with PyTorch's
DistributedDataParallel on gloo with two processes.

All run on one machine, with one thread each, and exchange the model in every tick or step. The contestants of a round
run one after the other, each in fresh processes; ratios are of the same round. PyTorch is left out if it is not there.

    python -m benchmarks.cluster  # LeNet, batches of 8 and 32, and ResNet-32, batches of 16
    python -m benchmarks.cluster --network lenet-original --batch 8 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.crossbow_runner import CrossbowRunner
from benchmarks.machine import describe_machine, has_torch
from benchmarks.torch_runner import TorchRunner

CASES = (("lenet-original", 8), ("lenet-original", 32), ("resnet-32", 16))
LIMIT = 600
"""Seconds after which a contestant is given up."""
WARMING, STEPS = 2.0, 10
"""Seconds of training before the measurement; with PyTorch, in pieces of this many steps."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.contestant:
        WORKERS[options.contestant](options)
        return
    cases = [(options.network, options.batch)] if options.network else CASES
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    for network, batch in cases:
        rates = [_round(network, batch, options.seconds) for _ in range(options.rounds)]
        print(f"\n{network}, batch {batch}: images/s of {options.rounds} rounds, and ratios of each round")
        for name in rates[0]:
            print(f"  {name:16} {', '.join(f'{each[name]:,.0f}' for each in rates)}")
        for name in list(rates[0])[1:]:
            ratios = [each["2 ranks"] / each[name] for each in rates]
            print(f"  2 ranks / {name}: median {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--network", help="network of benchmarks.zoo_networks (default: lenet-original and resnet-32)")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of a measurement")
    parser.add_argument("--contestant", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _round(network: str, batch: int, seconds: float) -> dict[str, float]:
    """Images/s of each contestant."""
    given = ["--network", network, "--batch", str(batch), "--seconds", str(seconds)]
    worker = [sys.executable, "-m", "benchmarks.cluster", *given, "--contestant"]
    mpirun = str(Path(sys.executable).parent / "mpirun")
    ranks = [mpirun if Path(mpirun).exists() else "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    found = {"2 ranks": _rate([[*ranks, *worker, "ranks"]]), "1 process": _rate([[*worker, "process"]])}
    if has_torch():
        with tempfile.TemporaryDirectory() as directory:
            store = str(Path(directory) / "store")
            found["DDP on gloo"] = _rate([[*worker, "ddp", "--rank", str(r), "--store", store] for r in (0, 1)])
    return found


def _rate(commands: Sequence[Sequence[str]]) -> float:
    """Run commands at the same time. Returns the images/s that the first one prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for command in commands]
    printed = [process.communicate(timeout=LIMIT)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a contestant failed: {' '.join(commands[0])}")
    return float(printed[0].split()[-1])


def _crossbow(options: argparse.Namespace, learners: int) -> None:
    from crossbow import cluster

    runner = CrossbowRunner(options.network, options.batch, learners, 1, "auto")
    begin = time.monotonic() + WARMING
    rate = runner.run(begin, begin + options.seconds)
    runner.close()
    if cluster.rank == 0:
        print(rate)


def _ddp(options: argparse.Namespace) -> None:
    """Train one of two processes whose gradients are averaged."""
    import torch
    import torch.distributed as distributed
    from torch.nn.parallel import DistributedDataParallel

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[options.rank % len(os.sched_getaffinity(0))]})
    distributed.init_process_group("gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=2)
    (training,) = TorchRunner(options.network, options.batch, 1, 1).trainings
    training.model = DistributedDataParallel(training.model)
    rate, seconds = 0.0, 0.0
    while seconds < WARMING:
        taken = torch.tensor([_seconds(training, STEPS)])
        distributed.broadcast(taken, 0)  # so that both do the same number of steps
        rate, seconds = STEPS / taken.item(), seconds + taken.item()
    count = max(1, round(rate * options.seconds))
    taken_by_all = _seconds(training, count)
    distributed.destroy_process_group()
    if options.rank == 0:
        print(2 * count * options.batch / taken_by_all)


def _seconds(training: Any, steps: int) -> float:
    """Duration of this many steps."""
    began = time.monotonic()
    for number in range(steps):
        training.step(number)
    return time.monotonic() - began


WORKERS: dict[str, Callable[[argparse.Namespace], None]] = {
    "ranks": lambda options: _crossbow(options, 1),
    "process": lambda options: _crossbow(options, 2),
    "ddp": _ddp,
}

if __name__ == "__main__":
    main()
