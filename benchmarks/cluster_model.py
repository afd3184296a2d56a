"""A model of training on 2 to 4,096 hosts: the share of the time in which hosts compute, by network and rule.

    python -m benchmarks.cluster_model --directory docs/cluster-model

It measures nothing. `crossbow.synch.exchange_cost` computes the duration of an exchange in the cheapest order. The last
picture is of simulated learners (`crossbow.synch.simulate`). docs/cluster-model.md explains the model and shows the
results; with `--task-seconds`, `--bytes`, `--latency` and `--bandwidth` the table is for these numbers.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossbow.console import run_command
from crossbow.files import write_whole
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.solver import SolverConf
from crossbow.synch import SMA, BarrierRule, DiLoCo, ModelAveraging, Trajectory, TwoLevel, exchange_cost, simulate
from crossbow.synch.cost import ORDERS
from crossbow.types import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOSTS = tuple(2**n for n in range(1, 13))
"""Numbers of hosts, from 2 to 4,096."""
SIMULATED_HOSTS, LEARNERS, EXCHANGE = 16, 2, 10.0
"""Simulated hosts, learners of each, and the duration of an exchange in tasks."""
SIMULATED_TIME, SIZE = 6000.0, 50
"""Duration of the simulation in tasks, and elements of its vectors."""


class Work(NamedTuple):
    """The work of a host: the duration of a task in seconds, and the bytes that an exchange sums."""

    name: str
    seconds: float
    bytes: int


class Network(NamedTuple):
    """A network between hosts: latency in seconds, and bandwidth in bytes/s."""

    name: str
    latency: float
    bandwidth: float


class Scheme(NamedTuple):
    """A schedule of the exchanges between hosts."""

    name: str
    rule: BarrierRule | TwoLevel
    overlaps: bool
    """Whether the exchange takes place during the last task before it is needed."""


WORKS = (
    Work("LeNet, batch 32", 2 * 32 / 16_408, 4 * 431_080),
    Work("ResNet-32, batch 16", 2 * 16 / 813, 4 * 466_906),
    Work("a GPU's: 100 MB, 0.1 s", 0.1, 100_000_000),
)
"""Compared workloads. The first two are from measured rates of two learners on two cores (docs/performance.md); the
third is assumed."""
NETWORKS = (
    Network("10 Gbit/s, 50 µs", 50e-6, 1.25e9),
    Network("1 Gbit/s, 0.5 ms", 500e-6, 1.25e8),
    Network("100 Mbit/s, 30 ms", 30e-3, 1.25e7),
)
SCHEMES = (
    Scheme("SMA, every tick", SMA(), overlaps=True),
    Scheme("two levels, τ = 64", TwoLevel(SMA(), ModelAveraging(tau=64)), overlaps=False),
    Scheme("DiLoCo, τ = 500", DiLoCo(tau=500), overlaps=False),
)


def exchange_seconds(hosts: int, work: Work, network: Network) -> tuple[float, str]:
    """Duration of an exchange in the cheapest order, and this order."""
    costs = {order: exchange_cost(hosts, work.bytes, network.latency, network.bandwidth, order) for order in ORDERS}
    order = min(costs, key=lambda each: costs[each].seconds)
    return costs[order].seconds, order


def tick_seconds(scheme: Scheme, task: float, exchange: float) -> float:
    """Duration of a tick: τ tasks and an exchange, which the last task may hide."""
    last = max(task, exchange) if scheme.overlaps else task + exchange
    return (scheme.rule.tau - 1) * task + last


def efficiency(scheme: Scheme, work: Work, network: Network, hosts: int) -> float:
    """The share of the time in which hosts compute."""
    exchange, _ = exchange_seconds(hosts, work, network)
    return scheme.rule.tau * work.seconds / tick_seconds(scheme, work.seconds, exchange)


def most_hosts(scheme: Scheme, work: Work, network: Network, least: float) -> int:
    """The largest of HOSTS at which hosts compute at least this share of the time; 1 if there is none."""
    return max((hosts for hosts in HOSTS if efficiency(scheme, work, network, hosts) >= least), default=1)


def table(works: Sequence[Work] = WORKS, networks: Sequence[Network] = NETWORKS) -> str:
    """A table in Markdown with the largest number of hosts to which each scheme scales."""
    columns = ("work of a host", "network", "exchange of 64 hosts", "scheme", "≥ 90 %", "≥ 50 %", "at 4,096 hosts")
    lines = [_row(columns), "|---|---|---:|---|---:|---:|---:|"]
    for work in works:
        for network in networks:
            seconds, order = exchange_seconds(64, work, network)
            for scheme in SCHEMES:
                hosts = [most_hosts(scheme, work, network, least) for least in (0.9, 0.5)]
                counts = ["none" if most == 1 else f"{most:,}" for most in hosts]
                at_most = f"{efficiency(scheme, work, network, HOSTS[-1]):.1%}"
                exchange = f"{seconds * 1000:,.0f} ms, {order}"
                lines.append(_row((work.name, network.name, exchange, scheme.name, *counts, at_most)))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def pull(weights: Any, learner: int, task: int) -> Any:
    """The gradient of a quadratic with its minimum at 0, and curvatures from 0.05 to 1, with noise."""
    return np.linspace(0.05, 1, SIZE) * weights + np.random.default_rng([learner, task]).standard_normal(SIZE)


def simulated(rule: BarrierRule | TwoLevel, duration: float) -> Trajectory:
    """Learners of equal speed on a noisy quadratic. An exchange takes as long as EXCHANGE tasks, half of it for each
    way; under two levels only between hosts."""
    ticks, learners = int(duration // (rule.tau + EXCHANGE)), SIMULATED_HOSTS * LEARNERS
    return simulate(
        rule, initial=np.full(SIZE, 10.0), gradient=pull, learners=learners, speeds=[1.0] * learners,
        hosts=[LEARNERS] * SIMULATED_HOSTS if isinstance(rule, TwoLevel) else None,
        events=ticks * rule.tau * learners, latency=EXCHANGE / 2, solver=SolverConf(learning_rate=0.02),
    )  # fmt: skip


def _figure(columns: int, rows: int, title: str) -> Figure:
    try:
        # pyplot would open windows, so the figure is created without it.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("the pictures need matplotlib: pip install 'crossbow[zoo]'") from error
    figure = Figure(figsize=(4 * columns, 3.2 * rows + 0.5), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    return figure


def _hosts_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(HOSTS[::2] + HOSTS[-1:], [str(hosts) for hosts in HOSTS[::2] + HOSTS[-1:]], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("hosts")


def efficiency_picture() -> Figure:
    """A panel for each work and network, with a line for each scheme."""
    figure = _figure(len(NETWORKS), len(WORKS), "Model: share of the time in which hosts compute")
    for row, work in enumerate(WORKS):
        for column, network in enumerate(NETWORKS):
            axes = figure.add_subplot(len(WORKS), len(NETWORKS), row * len(NETWORKS) + column + 1)
            for scheme in SCHEMES:
                shares = [100 * efficiency(scheme, work, network, hosts) for hosts in HOSTS]
                axes.plot(HOSTS, shares, label=scheme.name, marker="o", markersize=3)
            axes.set_title(f"{work.name}; {network.name}", fontsize=9)
            _hosts_axis(axes)
            axes.set_ylim(0, 105)
            axes.axhline(50, color="grey", linewidth=0.8, linestyle="--")
            axes.grid(alpha=0.3)
            axes.set_ylabel("%" if column == 0 else "")
    figure.axes[0].legend(fontsize=8, loc="lower left")
    return figure


def exchange_picture() -> Figure:
    """Duration of an exchange: a panel for each network, with a line for each order, for 1.7 MB and for 100 MB."""
    figure = _figure(len(NETWORKS), 1, "Model: seconds of an exchange, of 1.7 MB (solid) and of 100 MB (dashed)")
    for column, network in enumerate(NETWORKS):
        axes = figure.add_subplot(1, len(NETWORKS), column + 1)
        for work, style in ((WORKS[0], "-"), (WORKS[2], "--")):
            for colour, order in enumerate(ORDERS):
                seconds = [exchange_cost(h, work.bytes, network.latency, network.bandwidth, order)[2] for h in HOSTS]
                label = order if style == "-" else None
                axes.plot(HOSTS, seconds, style, label=label, color=f"C{colour}")
        axes.set_title(network.name, fontsize=9)
        _hosts_axis(axes)
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.set_ylabel("seconds" if column == 0 else "")
    figure.axes[0].legend(fontsize=8)
    return figure


def progress_picture() -> Figure:
    """Distance of z from the minimum over time, for simulated learners."""
    title = f"Simulated: {SIMULATED_HOSTS} hosts of {LEARNERS}, a noisy quadratic; an exchange takes {EXCHANGE:g} tasks"
    figure = _figure(2, 1, title)
    axes = figure.add_subplot(1, 1, 1)
    for scheme in SCHEMES:
        made = simulated(scheme.rule, SIMULATED_TIME)
        distances = np.linalg.norm(made.base, axis=1)
        axes.plot(made.merge_times, distances, label=scheme.name, marker="o" if len(distances) < 100 else None)
    axes.set_yscale("log")
    axes.set_xlabel("time, in tasks")
    axes.set_ylabel("‖z − minimum‖")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


PICTURES = {"efficiency.png": efficiency_picture, "exchange.png": exchange_picture, "progress.png": progress_picture}


def write_pictures(directory: Path) -> None:
    """Draw all pictures. Raises DataError, if matplotlib is not installed or a file cannot be written."""
    for name, draw in PICTURES.items():
        content = io.BytesIO()
        draw().savefig(content, format="png")
        write_whole(directory / name, content.getvalue())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_model", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--directory", type=expanded_path, metavar="DIR", help="where to write the pictures")
    add("--task-seconds", type=number(0, above=True), metavar="S", help="duration of a task")
    add("--bytes", type=integer(1), metavar="B", help="size of the weights")
    add("--latency", type=number(0), metavar="S", help="of the network, in seconds")
    add("--bandwidth", type=number(0, above=True), metavar="W", help="of the network, in bytes/s")
    options = parser.parse_args(arguments)
    own = (options.task_seconds, options.bytes, options.latency, options.bandwidth)
    if any(value is not None for value in own) and any(value is None for value in own):
        parser.error("--task-seconds, --bytes, --latency and --bandwidth are given together, or not at all")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.bytes is None:
        print(table())
    else:
        work = Work(f"{options.bytes:,} bytes, {options.task_seconds:g} s", options.task_seconds, options.bytes)
        network = Network(f"{options.bandwidth:g} bytes/s, {options.latency:g} s", options.latency, options.bandwidth)
        print(table([work], [network]))
    if options.directory is not None:
        write_pictures(options.directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.cluster_model", main))
