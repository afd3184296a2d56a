"""The command `crossbow launch`: it runs a program on several ranks, which Ray or MPI connects."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from crossbow.cluster.host_files import learners_of_groups, read_groups, read_hosts, sharding_of, sharding_text
from crossbow.cluster.mpirun import MpiLaunch, launch_on_mpi
from crossbow.cluster.program import RankProgram
from crossbow.cluster.ray.hosts import AGENT
from crossbow.cluster.ray.launching import RayLaunch, launch_on_ray
from crossbow.scripts.command_parser import OuterCommand
from crossbow.scripts.values import expanded_path, expanded_sharding, integer
from crossbow.synch.grouping import groups_text
from crossbow.types import ConfigurationError

OF_RAY = ("address", "resources", "min_ranks", "agent")
"""Options that do not apply to MPI."""


def add_launch_command(commands: Any) -> None:
    """Add `launch` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "launch",
        help="run a program on several ranks, which Ray or MPI connects",
        usage="%(prog)s [options] (-m MODULE | SCRIPT) [arguments]",
        description="Runs a module or a script on several ranks that train together. On Ray, training goes on when a "
        "rank is lost, and nodes that join the cluster get ranks.",
        epilog="Exit status: that of the program; 2 if an option is wrong or Ray's cluster cannot be reached; 3 after "
        "a loss of ranks that ends training.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--engine", choices=("ray", "mpi"), default="ray", help="what connects the ranks (default: %(default)s)"
    )
    parser.add_argument(
        "-n",
        "--ranks",
        type=integer(1),
        metavar="N",
        help="number of ranks (default: one per host; ray: also of new hosts)",
    )
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
        help="ray: with fewer ranks, training waits 60 s for nodes that join, and then ends with a checkpoint and exit "
        "status 3 (default: 1)",
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
        "--groups",
        type=expanded_path,
        metavar="FILE",
        help="file with the hosts of a group in each line, for --rule grouping; needs --hosts, and --learners of the "
        "program",
    )
    parser.add_argument(
        "--data-sharding",
        type=expanded_sharding,
        metavar="stride|FILE",
        help="as the option of the program, which gets the contents of the FILE: it need not be on the hosts",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        default=None,
        help="run no program, but try the network between each pair of ranks",
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


def launch_as_outer() -> OuterCommand:
    """`crossbow launch`, as the command that has left arguments to a program."""
    parser = argparse.ArgumentParser(prog="crossbow")
    commands = parser.add_subparsers()
    add_launch_command(commands)
    return OuterCommand.of(commands.choices["launch"], "-m or the script")


def _launch(options: argparse.Namespace) -> int:
    if options.check:
        _refuse_with_check(options)
    program = _check_program() if options.check else _with_files(_program(options), options)
    for name in OF_RAY:
        if options.engine == "mpi" and getattr(options, name) is not None:
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


def _refuse_with_check(options: argparse.Namespace) -> None:
    """Raise ConfigurationError for options of a program, which have no effect with --check."""
    given = {
        "-m": options.module,
        "a script": options.script,
        "--groups": options.groups,
        "--data-sharding": options.data_sharding,
        "--restarts": options.restarts,
    }
    if idle := [name for name, value in given.items() if value]:
        raise ConfigurationError(f"--check runs no program, so it cannot be combined with {idle[0]}")


def _program(options: argparse.Namespace) -> RankProgram:
    """The program of the command line. Raises ConfigurationError if there is none."""
    given = options.module or options.script
    if not given:
        raise ConfigurationError("expected a program: -m MODULE or a script. Received: none")
    name, *arguments = given
    if options.module is None and not Path(name).is_file():
        raise ConfigurationError(f"expected a script, or -m MODULE. Received: {name}, which is not a file")
    if options.module is not None and not _is_module(name):
        raise ConfigurationError(f"expected a module. Received: {name}, which Python does not find")
    return RankProgram(name, tuple(arguments), is_module=bool(options.module))


def _is_module(name: str) -> bool:
    """Whether Python finds a module, or a package with `__main__`, in its path or, as by `python -m`, in the working
    directory."""
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:  # a package
            spec = importlib.util.find_spec(f"{name}.__main__")
        return spec is not None
    except (ImportError, ValueError):  # its package is missing, or the name is invalid
        return False
    finally:
        sys.path[:] = path


def _check_program() -> RankProgram:
    return RankProgram("crossbow", ("probe", "--network"))


def _with_files(program: RankProgram, options: argparse.Namespace) -> RankProgram:
    """The program with the options that follow from --groups and --data-sharding. Raises ConfigurationError, and
    DataError for a file with faults."""
    more: list[str] = []
    if options.groups is not None:
        more += ["--groups", _groups(program, options)]
        more += [] if _value_of("--rule", program) else ["--rule", "grouping"]
    if options.data_sharding is not None:
        sharding = sharding_of(options.data_sharding)  # passed as text, because the file may be on this machine only
        more += ["--data-sharding", sharding if isinstance(sharding, str) else sharding_text(sharding)]
    return dataclasses.replace(program, arguments=(*program.arguments, *more))


def _groups(program: RankProgram, options: argparse.Namespace) -> str:
    """The value of a program's option --groups: the learners of each group."""
    learners = _value_of("--learners", program)
    if options.hosts is None or not learners.isdecimal():
        raise ConfigurationError("--groups needs --hosts FILE, and --learners N among the arguments of the program")
    hosts = [each.name for each in read_hosts(options.hosts) for _ in range(options.per_host or each.slots)]
    if options.ranks is not None and options.ranks > len(hosts):
        raise ConfigurationError(
            f"{options.hosts}: expected slots for {options.ranks} ranks, with --groups. Received: {len(hosts)}"
        )
    ranks = hosts[: options.ranks]
    return groups_text(learners_of_groups(read_groups(options.groups), ranks, int(learners), options.groups))


def _value_of(option: str, program: RankProgram) -> str:
    """The value of an option among a program's arguments; empty if it is missing.

    >>> program = RankProgram("a.py", ("--rule", "ssp", "--learners=2"))
    >>> _value_of("--rule", program), _value_of("--learners", program), _value_of("--seed", program)
    ('ssp', '2', '')
    """
    given = program.arguments
    for number, each in enumerate(given):
        name, equals, value = each.partition("=")
        if name == option:
            return value if equals else "".join(given[number + 1 : number + 2])
    return ""


def _resources(text: str) -> dict[str, float]:
    """The resources that a text lists.

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
