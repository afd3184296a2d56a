"""Two ranks with one learner each, which MPI or Ray connects, compared with one process with two learners, with two
processes of one learner that exchange nothing, and with PyTorch in two processes: DistributedDataParallel on gloo, and
a parameter server on Ray.

All run on one machine, with one thread each. The ranks on Ray average as those of model scripts do by default; all
others that exchange the model do so in every tick or step. The contestants of a round run one after the other, each in
fresh processes; ratios are of the same round. Contestants whose packages are missing are left out.

    python -m benchmarks.cluster  # LeNet, batches of 8 and 32, and ResNet-32, batches of 16
    python -m benchmarks.cluster --network lenet-original --batch 8 --rounds 5
    python -m benchmarks.cluster --idle  # the share of a core of a rank that waits for another one
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
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
from benchmarks.networks import CLASSES, LEARNING_RATE, MOMENTUM, dataset
from benchmarks.parameter_server import parameter_server_rate
from benchmarks.torch_runner import TorchRunner
from benchmarks.zoo_networks import network_named
from crossbow import ModelConf, SolverConf, SystemConf
from crossbow.cluster.process import join
from crossbow.scripts.between_ranks import chosen_between
from crossbow.scripts.data_sources import DataSource
from crossbow.scripts.parser import Configurations
from crossbow.synch import Rule, TwoLevel

CASES = (("lenet-original", 8), ("lenet-original", 32), ("resnet-32", 16))
RANKS = ("2 MPI ranks", "2 Ray ranks")
LIMIT = 600
"""Seconds after which a contestant is abandoned."""
WARMING, STEPS = 2.0, 10
"""Seconds of training before the measurement; with PyTorch, in pieces of this many steps."""
SECONDS_LATE, LATE_TASKS = 0.5, 20
"""Duration of the other rank's tasks while a rank waits, and number of tasks of both."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.contestant:
        WORKERS[options.contestant](options)
        return
    if options.idle:
        shares = [
            _result([_on_ranks(_worker("lenet-original", 8, options.seconds, "idle"))]) for _ in range(options.rounds)
        ]
        print(f"a rank that waits: {', '.join(f'{share:.1%}' for share in shares)} of a core")
        return
    cases = [(options.network, options.batch)] if options.network else CASES
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    for network, batch in cases:
        rates = [_round(network, batch, options.seconds) for _ in range(options.rounds)]
        print(f"\n{network}, batch {batch}: images/s of {options.rounds} rounds, and ratios of each round")
        for name in rates[0]:
            print(f"  {name:20} {', '.join(f'{each[name]:,.0f}' for each in rates)}")
        for ranks, name in itertools.product(RANKS, rates[0]):
            if ranks in rates[0] and name not in RANKS:
                ratios = [each[ranks] / each[name] for each in rates]
                print(
                    f"  {ranks} / {name}: median {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
                )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--network", help="network of benchmarks.zoo_networks (default: lenet-original and resnet-32)")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of a measurement")
    parser.add_argument("--idle", action="store_true", help="measure a rank that waits for another one instead")
    parser.add_argument("--contestant", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _round(network: str, batch: int, seconds: float) -> dict[str, float]:
    """Images/s of each contestant."""

    def worker(contestant: str) -> list[str]:
        return _worker(network, batch, seconds, contestant)

    found = {
        "2 MPI ranks": _result([_on_ranks(worker("ranks"))]),
        "1 process": _result([worker("process")]),
        "2 processes": _result([worker("ranks"), worker("ranks")]),
    }
    if has_ray():
        found["2 Ray ranks"] = _result([_on_ray(worker("hosts"))])
    if has_ray() and has_torch():
        found["parameter server"] = _result([worker("server")])
    if has_torch():
        with tempfile.TemporaryDirectory() as directory:
            store = str(Path(directory) / "store")
            found["DDP on gloo"] = _result([[*worker("ddp"), "--rank", str(r), "--store", store] for r in (0, 1)])
    return found


def _worker(network: str, batch: int, seconds: float, contestant: str) -> list[str]:
    """The command of a contestant."""
    given = ["--network", network, "--batch", str(batch), "--seconds", str(seconds), "--contestant", contestant]
    return [sys.executable, "-m", "benchmarks.cluster", *given]


def _on_ranks(command: Sequence[str]) -> list[str]:
    """The command that runs the given command on two ranks."""
    mpirun = Path(sys.executable).parent / "mpirun"
    launcher = str(mpirun) if mpirun.exists() else "mpirun"
    return [launcher, "--oversubscribe", "--bind-to", "none", "-n", "2", *command]


def _on_ray(command: Sequence[str]) -> list[str]:
    """The command that runs the given Python command on two ranks that Ray connects."""
    return [sys.executable, "-m", "crossbow", "launch", "-n", "2", *command[1:]]


def has_ray() -> bool:
    """Whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def _result(commands: Sequence[Sequence[str]]) -> float:
    """Run commands at the same time. Returns the sum of the numbers that they write to files, because mpirun may add to
    the standard output. Of several ranks, only the first one writes a number."""
    with tempfile.TemporaryDirectory() as directory:
        results, errors = [Path(directory) / f"result{n}" for n in range(len(commands))], Path(directory) / "errors"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with errors.open("wb") as file:
            processes = [
                subprocess.Popen(
                    [*command, "--result", str(result)], stdout=subprocess.DEVNULL, stderr=file, env=environment
                )
                for command, result in zip(commands, results, strict=True)
            ]
            try:
                _await(processes)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        if any(process.returncode for process in processes) or not results[0].exists():
            print(errors.read_text(errors="replace"), file=sys.stderr)
            raise SystemExit(f"error: a contestant failed: {' '.join(commands[0])}")
        return sum(float(result.read_text()) for result in results if result.exists())


def _await(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended, one has failed, or the limit is reached."""
    deadline = time.monotonic() + LIMIT
    while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
        if time.monotonic() > deadline:
            raise SystemExit(f"error: a contestant did not end within {LIMIT} s: {processes[0].args}")
        time.sleep(0.1)


def _crossbow(options: argparse.Namespace, learners: int, rule: Rule | TwoLevel | None = None) -> None:
    from crossbow import cluster

    runner = CrossbowRunner(options.network, options.batch, learners, 1, "auto", rule=rule)
    begin = time.monotonic() + WARMING
    rate = runner.run(begin, begin + options.seconds)
    runner.close()
    if cluster.rank == 0:
        options.result.write_text(str(rate))


def _hosts(options: argparse.Namespace) -> None:
    """Train on a rank that averages with the others in the same way as the ranks of a model script on Ray."""
    network = network_named(options.network)
    confs = Configurations(
        DataSource("synthetic", None, network.image_shape, CLASSES, network.examples, 1),
        ModelConf(batch_size=options.batch),
        SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
        SystemConf(learners_per_device=1, threads_per_learner=1),
    )
    model, text = chosen_between(join(), confs, network.build(), dataset(network))
    print(text, file=sys.stderr)
    _crossbow(options, 1, model.rule)


def _server(options: argparse.Namespace) -> None:
    options.result.write_text(str(parameter_server_rate(options.network, options.batch, WARMING, options.seconds)))


def _idle(options: argparse.Namespace) -> None:
    """Train on two ranks, the second of which is late with every batch. The first one's share of a core includes its
    tasks, which take some milliseconds."""
    from crossbow import TrainingUnit, cluster

    runner = CrossbowRunner(options.network, options.batch, 1, 1, "auto")
    write = runner.context.data.train.write_images

    def write_late(*given: Any) -> None:
        time.sleep(SECONDS_LATE)
        write(*given)

    runner.context.train(10, TrainingUnit.TASKS)
    if cluster.rank == 1:
        object.__setattr__(runner.context.data.train, "write_images", write_late)
    began, used = time.perf_counter(), time.process_time()
    runner.context.train(LATE_TASKS, TrainingUnit.TASKS)
    share = (time.process_time() - used) / (time.perf_counter() - began)
    runner.close()
    if cluster.rank == 0:
        options.result.write_text(str(share))


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
    if options.rank == 0:
        options.result.write_text(str(2 * count * options.batch / taken_by_all))
    distributed.barrier()
    os._exit(0)  # threads of gloo that are still there would end the process with an error


def _seconds(training: Any, steps: int) -> float:
    """Duration of this many steps."""
    began = time.monotonic()
    for number in range(steps):
        training.step(number)
    return time.monotonic() - began


WORKERS: dict[str, Callable[[argparse.Namespace], None]] = {
    "ranks": lambda options: _crossbow(options, 1),
    "process": lambda options: _crossbow(options, 2),
    "hosts": _hosts,
    "ddp": _ddp,
    "server": _server,
    "idle": _idle,
}

if __name__ == "__main__":
    main()
