"""What stands behind an option: text to values, and refusing options that do nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crossbow.files import check_regular, checked_path, file_error
from crossbow.synch.grouping import groups_text
from crossbow.types import ConfigurationError, DataError


def integer(minimum: int) -> Callable[[str], int]:
    """An integer ≥ minimum."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected an integer ≥ {minimum}. Received: {text!r}")
        return value

    return convert


def number(minimum: float = -math.inf, maximum: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """A finite number in the range; the configurations check what belongs to them."""
    bounds = [] if minimum == -math.inf else [f"{'>' if above else '≥'} {minimum:g}"]
    bounds += [] if maximum == math.inf else [f"≤ {maximum:g}"]
    expected = " ".join(["a number", " and ".join(bounds)]).strip()

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        good = math.isfinite(value) and (value > minimum if above else value >= minimum) and value <= maximum
        if not good:
            raise argparse.ArgumentTypeError(f"expected {expected}. Received: {text!r}")
        return value

    return convert


def integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected integers, separated by commas. Received: {text!r}") from None


def expanded_path(text: str) -> Path:
    """A path, with `~` expanded also where the shell does not, as in --option=~/name."""
    try:
        return checked_path("this option", text)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def file_to_write(text: str) -> Path:
    """The path of a regular file, which may not be there yet: known before hours of work are to be written to it."""
    name = expanded_path(text)
    try:
        check_regular(name)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(file_error(error, name, "the name of a file to write"))) from None
    return name


def those_given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the options that were given: the others keep the configuration's default."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def option_text(name: str, value: Any) -> str:
    """An option as it is typed.

    >>> option_text("step_values", (3, 5)), option_text("momentum", 0.0), option_text("super_convergence", True)
    ('--step-values 3,5', '--momentum 0', '--super-convergence')
    """
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {value_text(name, value)}"


def value_text(name: str, value: Any) -> str:
    """What is typed behind an option.

    >>> value_text("alpha_steps", ((30.0, 0.1), (1234567.0, 0.05))), value_text("groups", ((0, 1), (2,)))
    ('30:0.1,1234567:0.05', '0,1/2')
    """
    if not isinstance(value, tuple):
        return str(value).removesuffix(".0")
    if name == "groups":
        return groups_text(value)
    if name == "alpha_steps":
        return ",".join(":".join(value_text("", number) for number in step) for step in value)
    return ",".join(map(str, value))


def refuse_others(given: Mapping[str, Any], where: str, hint: str = "") -> None:
    """Raise ConfigurationError for an option that was given where it is not used: "with …" or "without …"."""
    for name, value in given.items():
        received = option_text(name, value)
        raise ConfigurationError(
            f"{received.split()[0]} does nothing {where}. Received: {received}{hint and f'. {hint}'}"
        )
