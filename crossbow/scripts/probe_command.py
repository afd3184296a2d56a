"""`crossbow probe`: how fast ranks train, and the network between them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from crossbow.cluster.probe import RankSpeed, measure_links, write_probe
from crossbow.cluster.process import join
from crossbow.cluster.ranks import Ranks
from crossbow.dataflow import Dataflow
from crossbow.runtime.device import parse_devices
from crossbow.runtime.engine import Engine
from crossbow.runtime.run import Limits, TrainingRun
from crossbow.scripts.data_sources import SYNTHETIC
from crossbow.scripts.graph_command import script_of
from crossbow.scripts.model_script import ModelScript
from crossbow.scripts.values import expanded_path, number
from crossbow.types import Phase

WARM_UP = 0.25
"""Seconds of training that do not count, as a share of those that do."""


def add_probe_command(commands: Any) -> None:
    """Add `probe` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "probe",
        help="measure how fast ranks train a model, and the network between them",
        usage="mpirun -n N crossbow probe [--seconds S] [-o DIR] MODEL [options of the model's script]",
        description="Measures how fast each rank trains alone, all at the same time, and latency and bandwidth of each "
        "pair of ranks. Writes groups of hosts, data_sharding with shares by speed, and speeds.json.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--seconds",
        type=number(0, 3600, above=True),
        default=2.0,
        metavar="S",
        help="of training (default: %(default)g)",
    )
    parser.add_argument(
        "-o",
        "--output-directory",
        type=expanded_path,
        default=Path("probe"),
        metavar="DIR",
        help="directory of the files, which are replaced (default: %(default)s)",
    )
    parser.add_argument("model", metavar="MODEL", help="a module with a training script, as models.lenet")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="options", help="of the model's script, as --batch-size 32"
    )
    parser.set_defaults(run=_probe)


def _probe(options: argparse.Namespace) -> None:
    ranks, script = join(), script_of(options.model)
    own = examples_per_second(script, options.rest, options.seconds, ranks)
    values = ranks.gather([ranks.own.host, own])
    speeds = [RankSpeed(rank, host, speed) for rank, (host, speed) in enumerate(values)]
    links = measure_links(ranks)
    if not ranks.is_first:
        return
    for each in speeds:
        print(f"rank {each.rank} on {each.host}: {each.examples_per_second:,.0f} examples/s")
    for link in links:
        first, second = link.ranks
        latency, bandwidth = f"{link.latency * 1e6:,.0f} µs", f"{link.bandwidth / 1e6:,.0f} MB/s"
        print(f"ranks {first} and {second}: latency {latency}, bandwidth {bandwidth}")
    paths = write_probe(options.output_directory, speeds, links)
    print(f"written: {', '.join(map(str, paths))}")


def examples_per_second(script: ModelScript, arguments: list[str], seconds: float, ranks: Ranks) -> float:
    """How fast this rank trains a script's model without the others, which measure at the same time."""
    options, confs, dataflow = script.network(arguments)
    parse_devices(confs.system.devices)
    make = script.synthetic if options.dataset == SYNTHETIC else None
    data = confs.data.load() if make is None else make(options, confs.data)
    check = Dataflow(dataflow.subgraph).set_phase(Phase.CHECK)
    alone = ranks.alone()
    engine = Engine(dataflow.graph, check.graph, data, confs.model, confs.solver, confs.system, ranks=alone)
    try:
        ranks.gather(None)  # all begin together
        for limit in (WARM_UP * seconds, seconds):
            before, began = engine.tasks, time.perf_counter()
            TrainingRun(engine, confs.model, Limits(seconds=limit), (), test=False, ranks=alone).run()
            measured = (engine.tasks - before) * confs.model.batch_size / (time.perf_counter() - began)
        return measured
    finally:
        engine.close()
