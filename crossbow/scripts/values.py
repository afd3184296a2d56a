"""Values of options outside the configurations: integers, numbers and paths."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from crossbow.cluster.host_files import is_sharding
from crossbow.files import check_regular, checked_path, file_error
from crossbow.types import DataError


def meant(received: str, known: Iterable[object], cutoff: float = 0.6) -> str:
    """The end of a message that suggests the most similar of the known values; "" if none is similar. cutoff: minimum
    similarity, from 0 to 1.

    >>> meant("epoch", ("epochs", "seconds")), meant("x", ("epochs", "seconds"))
    ('. Did you mean epochs?', '')
    """
    close = difflib.get_close_matches(received, list(map(str, known)), cutoff=cutoff)
    return f". Did you mean {close[0]}?" if close else ""


def integer(minimum: int) -> Callable[[str], int]:
    """A function that reads an integer ≥ minimum."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected an integer ≥ {minimum}. Received: {text!r}")
        return value

    return convert


def add_sizes(group: argparse._ArgumentGroup, *sizes: tuple[str, int, str]) -> None:
    """Add options whose values are integers ≥ 1. sizes: (name without dashes, default, meaning) of each option."""
    for name, default, what in sizes:
        group.add_argument(
            f"--{name}", type=integer(1), metavar="N", default=default, help=f"{what} (default: {default:,})"
        )


def number(
    minimum: float = -math.inf, maximum: float = math.inf, *, above: bool = False, below: bool = False
) -> Callable[[str], float]:
    """A function that reads a finite number in the range. above: whether `minimum` itself is excluded; below: whether
    `maximum` is."""
    bounds = [] if minimum == -math.inf else [f"{'>' if above else '≥'} {minimum:g}"]
    bounds += [] if maximum == math.inf else [f"{'<' if below else '≤'} {maximum:g}"]
    expected = " ".join(["a number", " and ".join(bounds)]).strip()

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        in_range = (value > minimum if above else value >= minimum) and (value < maximum if below else value <= maximum)
        good = math.isfinite(value) and in_range
        if not good:
            raise argparse.ArgumentTypeError(f"expected {expected}. Received: {text!r}")
        return value

    return convert


def expanded_path(text: str) -> Path:
    """A path. `~` is expanded even where the shell does not expand it, such as in --option=~/name."""
    try:
        return checked_path("this option", text)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("this option: ")) from None


def expanded_sharding(text: str) -> str:
    """The division of the examples among ranks: "stride", the parts of all ranks, or the name of a file with ~
    expanded."""
    return text if is_sharding(text) else str(expanded_path(text))


def file_to_write(text: str) -> Path:
    """The path of a regular file to write. It is checked before hours of work, and the file need not exist."""
    name = expanded_path(text)
    try:
        check_regular(name)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(file_error(error, name, "the name of a file to write"))) from None
    return name
