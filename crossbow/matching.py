"""Variables of another model that fit a model, as for fine-tuning: what fits is taken, what does not is listed."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossbow.types import Array, ConfigurationError, DataError, Shape


@dataclass(frozen=True)
class Untaken:
    """A variable that was not taken from a file."""

    name: str
    model: Shape | None
    """Its shape in the model; None if the model has no such variable."""
    file: Shape | None
    """Its shape in the file; None if the file has no such variable."""
    excluded: str = ""
    """The pattern that excluded it; empty if it does not fit."""

    def __str__(self) -> str:
        shapes = [f"{what} {'has none' if shape is None else shape}" for what, shape in self._shapes]
        return f"{self.name}: {', '.join(shapes)}" + (f" (excluded by {self.excluded!r})" if self.excluded else "")

    @property
    def _shapes(self) -> tuple[tuple[str, Shape | None], ...]:
        return ("the model", self.model), ("the file", self.file)


@dataclass(frozen=True)
class Matching:
    """What a model took from a file."""

    taken: tuple[str, ...]
    """Names of variables and running statistics."""
    untaken: tuple[Untaken, ...]
    """All others, of the model and of the file."""


def match(
    model: Mapping[str, Array], file: Mapping[str, Array], exclude: Sequence[str], source: str
) -> tuple[Matching, dict[str, Array]]:
    """The model's variables with those of a file in their place that have the same name and shape.

    exclude: patterns of names that are not taken, as "ip*". source: the name of the file. Raises ConfigurationError for
    a pattern that matches no variable, and DataError if nothing fits.
    """
    names = [*model, *(name for name in file if name not in model)]
    for pattern in exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ConfigurationError(
                f"exclude: expected patterns of {', '.join(model)}. Received: {pattern!r}, which matches none"
            )
    untaken = []
    values = dict(model)
    for name in names:
        excluded = next((pattern for pattern in exclude if fnmatch.fnmatchcase(name, pattern)), "")
        here, there = model.get(name), file.get(name)
        if here is not None and there is not None and here.shape == there.shape and not excluded:
            values[name] = there
            continue
        mine, other = (None if array is None else array.shape for array in (here, there))
        untaken.append(Untaken(name, mine, other, excluded))
    left_out = {each.name for each in untaken}
    taken = tuple(name for name in model if name not in left_out)
    if not taken:
        first = f"; first {untaken[0]}" if untaken else ""
        raise DataError(f"{source}: expected variables that the model has. Received: none that fits{first}")
    return Matching(taken, tuple(untaken)), values
