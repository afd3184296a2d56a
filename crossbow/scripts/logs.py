"""The formats in which a script logs its records, such as `--log csv,tensorboard`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from crossbow import CsvMonitor, Monitor, TensorBoardMonitor, WandbMonitor
from crossbow.scripts.values import meant

FORMATS = ("jsonl", "csv", "tensorboard", "wandb")
"""Names of the formats. The first one is always written, because other commands read it."""


def add_log(group: argparse._ArgumentGroup) -> None:
    """Add the option --log."""
    group.add_argument(
        "--log",
        type=_formats,
        metavar="FORMAT,…",
        default=FORMATS[:1],
        help="formats of the log in the output directory: jsonl, always written to log.jsonl; csv: log.csv; "
        "tensorboard: event files; wandb: Weights & Biases, offline with WANDB_MODE=offline (default: jsonl)",
    )


def log_monitors(formats: Sequence[str], directory: Path, name: str, *, resume: bool = False) -> list[Monitor]:
    """The monitors of all formats except jsonl. name: name of the run in Weights & Biases. resume: whether training
    continues the run of an earlier process.

    Raises ConfigurationError for a format whose package is not installed.
    """
    monitors: list[Monitor] = []
    if "csv" in formats:
        monitors.append(CsvMonitor(directory / "log.csv", resume=resume))
    if "tensorboard" in formats:
        monitors.append(TensorBoardMonitor(directory / "tensorboard"))
    if "wandb" in formats:
        monitors.append(WandbMonitor(name=name, directory=directory))
    return monitors


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in FORMATS:
            hint = meant(name, FORMATS)
            raise argparse.ArgumentTypeError(f"expected formats among {','.join(FORMATS)}. Received: {name!r}{hint}")
    return names
