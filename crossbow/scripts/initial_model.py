"""Options for a saved model with which training begins."""

from __future__ import annotations

import argparse
import hashlib

from crossbow import ExecutionContext
from crossbow.model_file import model_path
from crossbow.scripts.values import expanded_path
from crossbow.types import ConfigurationError, DataError


def add_initial_model(group: argparse._ArgumentGroup) -> None:
    """Add --initial-model and --except."""
    group.add_argument(
        "--initial-model",
        type=expanded_path,
        metavar="FILE",
        help="begin with the variables of a saved model, or of the best model of a run's directory: those of the same "
        "name and shape; the others are listed (default: random initial values)",
    )
    group.add_argument(
        "--except",
        dest="excluded",
        action="append",
        metavar="PATTERN",
        help="names of variables that --initial-model does not set, as 'ip*'; may be repeated (default: none)",
    )


def check_initial_model(options: argparse.Namespace) -> None:
    """Raises ConfigurationError for --except without --initial-model."""
    if options.excluded and options.initial_model is None:
        raise ConfigurationError(
            f"--except does nothing without --initial-model. Received: --except {options.excluded[0]}"
        )


def digest_of_initial_model(options: argparse.Namespace) -> str | None:
    """The beginning of the file's SHA-256; None without the option. It is "unreadable" if the file cannot be read, in
    which case `load_initial_model` reports the reason."""
    if options.initial_model is None:
        return None
    try:
        return hashlib.sha256(model_path(options.initial_model).read_bytes()).hexdigest()[:16]
    except (DataError, OSError):
        return "unreadable"


def load_initial_model(context: ExecutionContext, options: argparse.Namespace) -> list[str]:
    """Load the variables of the initial model that fit. Returns the lines to print: the number of loaded variables, and
    the variables that were not loaded. Raises DataError if the file cannot be read or nothing fits, and
    ConfigurationError for a pattern that matches nothing."""
    if options.initial_model is None:
        return []
    matching = context.load(options.initial_model, strict=False, exclude=options.excluded or ())
    count, total = len(matching.taken), len(context.variables)
    lines = [f"initial  {count:,} of {total:,} variables from {options.initial_model}"]
    return lines + [f"         not {untaken}" for untaken in matching.untaken]
