"""Options of an example script, and the configurations that they make."""

import argparse

from crossbow import SolverConf
from crossbow.scripts.parser import Configurations, Defaults, configurations, new_parser

DEFAULTS = Defaults(epochs={"digits": 7, "mnist": 3}, batch_size=9, solver=SolverConf(learning_rate=0.25, momentum=0.5))


PICTURES = Defaults(
    epochs={"cifar10": 7, "mnist": 5, "synthetic": 2}, batch_size=9, solver=SolverConf(learning_rate=0.25)
)


def parser() -> argparse.ArgumentParser:
    return new_parser("example", "Trains an example.", DEFAULTS)[0]


def confs(arguments: str = "", defaults: Defaults = DEFAULTS) -> Configurations:
    made = new_parser("example", "Trains an example.", defaults)[0]
    return configurations(made.parse_args(arguments.split()), defaults)
