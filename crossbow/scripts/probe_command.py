"""The command `crossbow probe`: it measures the speed of ranks and the network between them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from crossbow.cluster.host_files import name_of_rank, read_hosts
from crossbow.cluster.launch import is_rank, launch_of
from crossbow.cluster.mpirun import MpiLaunch, launch_on_mpi
from crossbow.cluster.probe import LinkSpeed, RankSpeed, measure_links, write_probe
from crossbow.cluster.process import join
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.device import parse_devices
from crossbow.scripts.between_ranks import pace_of_rank
from crossbow.scripts.command_parser import OuterCommand, arguments_of
from crossbow.scripts.data_sources import SYNTHETIC
from crossbow.scripts.graph_command import script_of
from crossbow.scripts.model_script import ModelScript
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.types import ConfigurationError


def add_probe_command(commands: Any) -> None:
    """Add `probe` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "probe",
        help="measure how fast ranks train a model, and the network between them",
        usage="%(prog)s [--hosts FILE] [-n N] [--seconds S] [-o DIR] MODEL [options of the model's script]\n"
        "       %(prog)s [--hosts FILE] [-n N] --network",
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
    parser.add_argument(
        "--hosts",
        type=expanded_path,
        metavar="FILE",
        help="start ranks with MPI on the hosts of a file, one in each line",
    )
    parser.add_argument(
        "-n", "--ranks", type=integer(1), metavar="N", help="number of ranks to start with MPI (default: one per slot)"
    )
    parser.add_argument("--names", type=lambda text: text.split(","), help=argparse.SUPPRESS)  # hosts of the ranks
    parser.add_argument("--network", action="store_true", help="measure only the network, and write no files")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="the same as MODEL, as for crossbow launch")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a module with a training script, as models.lenet")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="options", help="of the model's script, as --batch-size 32"
    )
    parser.set_defaults(run=lambda options: _probe(options, OuterCommand.of(parser, "MODEL")))


def _probe(options: argparse.Namespace, command: OuterCommand) -> int:
    if options.module:
        options.model, *options.rest = options.module
    if bool(options.model) == options.network:
        raise ConfigurationError(f"expected a module with a model script, or --network. Received: {_given(options)}")
    if (options.hosts is not None or options.ranks is not None) and not is_rank(os.environ):
        return launch_on_mpi(_program(options), MpiLaunch(options.ranks, hosts=options.hosts))
    ranks = join()
    if options.network:
        links = measure_links(ranks)
        if not links:
            print("one rank: there is no network to measure")
        _print_links(ranks, links)
        return 0
    script = script_of(options.model)
    with arguments_of(command):
        own = _speed(script, options.rest, options.seconds, ranks)
    values = ranks.gather([_host(options, ranks), own])
    speeds = [RankSpeed(rank, host, speed) for rank, (host, speed) in enumerate(values)]
    links = measure_links(ranks)
    if not ranks.is_first:
        return 0
    for each in speeds:
        print(f"rank {each.rank} on {each.host}: {each.examples_per_second:,.0f} examples/s")
    _print_links(ranks, links)
    paths = write_probe(options.output_directory, speeds, links)
    print(f"written: {', '.join(map(str, paths))}")
    return 0


def _host(options: argparse.Namespace, ranks: Ranks) -> str:
    """The name of this rank's host. If there is a file of hosts, it is the name in the file, which `crossbow launch`
    also uses."""
    if options.names is None:
        return ranks.own.host
    return name_of_rank(options.names, launch_of(os.environ).local_rank, ranks.own.host)


def _given(options: argparse.Namespace) -> str:
    return "both" if options.network else "neither"


def _program(options: argparse.Namespace) -> RankProgram:
    """The program that each rank runs: this command."""
    measured = ("--network",) if options.network else (options.model, *options.rest)
    names = (
        [] if options.hosts is None else [each.name for each in read_hosts(options.hosts) for _ in range(each.slots)]
    )
    own = ("-o", str(options.output_directory.absolute()), *(["--names", ",".join(names)] if names else []))
    return RankProgram("crossbow", ("probe", "--seconds", str(options.seconds), *own, *measured))


def _print_links(ranks: Ranks, links: list[LinkSpeed]) -> None:
    if not ranks.is_first:
        return
    for link in links:
        first, second = (ranks.view.ranks[number] for number in link.ranks)
        latency, bandwidth = f"{link.latency * 1e6:,.0f} µs", f"{link.bandwidth / 1e6:,.0f} MB/s"
        print(f"{first} and {second}: latency {latency}, bandwidth {bandwidth}")


def _speed(script: ModelScript, arguments: list[str], seconds: float, ranks: Ranks) -> float:
    """The speed at which this rank trains a script's model."""
    options, confs, dataflow = script.network(arguments)
    parse_devices(confs.system.devices)
    make = script.synthetic if options.dataset == SYNTHETIC else None
    data = confs.data.load() if make is None else make(options, confs.data)
    return pace_of_rank(confs, dataflow, data, seconds, ranks).examples_per_second
