"""The command `crossbow foreign`: training of other frameworks' models from a configuration file of Theano-MPI."""

from __future__ import annotations

import argparse
import os
import sys

from crossbow.foreign.config_file import read_config
from crossbow.foreign.theano_mpi import new_training
from crossbow.scripts.values import expanded_path


def add_foreign_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `foreign` to the commands of `crossbow`."""
    parser = commands.add_parser(
        "foreign",
        help="train models of another framework, by a configuration file of Theano-MPI",
        description="Trains models that follow Theano-MPI's contract, see docs/foreign-models.md. The module of the "
        "model is searched for in the current directory, too.",
    )
    parser.add_argument(
        "--config",
        type=expanded_path,
        metavar="FILE",
        required=True,
        help="RULE, MODELFILE, MODELCLASS, DEVICES and, for BSP, BSP_SYNC_TYPE and BSP_EXCH_STRATEGY",
    )
    parser.add_argument(
        "--save", type=expanded_path, metavar="FILE", help="write the trained parameters (safetensors; default: none)"
    )
    parser.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> None:
    config = read_config(options.config)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    new_training(config).wait(options.save)
