"""The command `crossbow launch`: a program on several ranks, which Ray or MPI connects."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from crossbow.cluster.mpirun import MpiLaunch, launch_on_mpi
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ray.hosts import AGENT
from crossbow.cluster.ray.launching import RayLaunch, launch_on_ray
from crossbow.scripts.values import expanded_path, integer
from crossbow.types import ConfigurationError

OF_RAY = ("address", "resources", "min_ranks", "agent")
OF_MPI: tuple[str, ...] = ()
"""Options of one engine only."""


def add_launch_command(commands: Any) -> None:
    """Add `launch` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "launch",
        help="run a program on several ranks, which Ray or MPI connects",
        usage="%(prog)s [options] (-m MODULE | SCRIPT) [arguments]",
        description="Runs a module or a script on several ranks that train together. On Ray, training goes on when a "
        "rank is lost, unless it is rank 0.",
        epilog="Exit status: that of the program; 2 if an option is wrong or the cluster cannot be reached; 3 after "
        "the loss of rank 0 or of too many ranks.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--engine", choices=("ray", "mpi"), default="ray", help="what connects the ranks (default: %(default)s)"
    )
    parser.add_argument("-n", "--ranks", type=integer(1), metavar="N", help="number of ranks (default: one per host)")
    parser.add_argument(
        "--per-host", type=integer(1), metavar="N", help="ranks of each host (default: its slots, or one)"
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="ray: auto, or HOST:PORT of the cluster's head (default: RAY_ADDRESS, or a cluster on this machine)",
    )
    parser.add_argument(
        "--resources", type=_resources, metavar="NAME=N,…", help="ray: resources that each rank claims, as CPU=8,fast=1"
    )
    parser.add_argument(
        "--min-ranks",
        type=integer(1),
        metavar="N",
        help="ray: with fewer ranks, training ends with a checkpoint and exit status 3 (default: 1)",
    )
    parser.add_argument(
        "--hosts",
        type=expanded_path,
        metavar="FILE",
        help="file with a host in each line, as node1 slots=2; ray: a cluster is started on these hosts, and ended",
    )
    parser.add_argument(
        "--agent",
        type=shlex.split,
        metavar="CMD",
        help="ray: with --hosts, called as CMD HOST COMMAND… to start a command on a host (default: ssh)",
    )
    parser.add_argument(
        "--restarts",
        type=integer(0),
        default=0,
        metavar="N",
        help="how often the program begins again, with --resume, after a loss that ended it (default: %(default)s)",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="module to run, and its arguments")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script to run, and its arguments")
    parser.set_defaults(run=_launch)


def _launch(options: argparse.Namespace) -> int:
    program = _program(options)
    for name in OF_MPI if options.engine == "ray" else OF_RAY:
        if getattr(options, name) is not None:
            raise ConfigurationError(f"--{name.replace('_', '-')} does not apply to --engine {options.engine}")
    if options.engine == "mpi":
        return launch_on_mpi(program, MpiLaunch(options.ranks, options.per_host, options.hosts, options.restarts))
    if options.hosts is not None and options.address is not None:
        raise ConfigurationError("--hosts starts a cluster, and --address connects to another. Received: both")
    if options.agent is not None and (options.hosts is None or not options.agent):
        raise ConfigurationError("--agent needs a command, and --hosts FILE")
    return launch_on_ray(
        program,
        RayLaunch(
            options.address,
            options.ranks,
            options.per_host,
            options.resources or {},
            options.min_ranks or 1,
            options.restarts,
            options.hosts,
            tuple(options.agent or AGENT),
        ),
    )


def _program(options: argparse.Namespace) -> RankProgram:
    """The program of the command line. Raises ConfigurationError if there is none."""
    given = options.module or options.script
    if not given:
        raise ConfigurationError("expected a program: -m MODULE or a script. Received: none")
    name, *arguments = given
    return RankProgram(name, tuple(arguments), is_module=bool(options.module))


def _resources(text: str) -> dict[str, float]:
    """The resources in a text.

    >>> _resources("CPU=8,fast=0.5")
    {'CPU': 8.0, 'fast': 0.5}
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < float("inf"):
            raise argparse.ArgumentTypeError(f"expected NAME=N,… with numbers > 0. Received: {text!r}")
    return found
