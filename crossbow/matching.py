"""Selection of the variables of another model that fit a model, for example for fine-tuning. The variables that fit are
taken, and all others are listed."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossbow.compile import ModelLayout
from crossbow.compile.model import check_names
from crossbow.conf import shown
from crossbow.model_file import read_variables
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
    """The pattern that excluded it; empty if none did."""
    selected: bool = True
    """Whether it is one of the requested variables."""

    def __str__(self) -> str:
        shapes = [f"{what} {'has none' if shape is None else shape}" for what, shape in self._shapes]
        why = f" (excluded by {self.excluded!r})" if self.excluded else "" if self.selected else " (not asked for)"
        return f"{self.name}: {', '.join(shapes)}{why}"

    @property
    def _shapes(self) -> tuple[tuple[str, Shape | None], ...]:
        return ("the model", self.model), ("the file", self.file)


@dataclass(frozen=True)
class Matching:
    """The variables that a model took from a file, and all others. `str` returns a line for each variable that was not
    taken."""

    taken: tuple[str, ...]
    """Names of the variables and running statistics that were taken."""
    untaken: tuple[Untaken, ...]
    """All other variables of the model and of the file."""

    def __str__(self) -> str:
        return "\n".join([f"{len(self.taken):,} variables taken", *(f"not {each}" for each in self.untaken)])


@dataclass(frozen=True)
class VariableSelection:
    """The requested variables of a file, by patterns of their names.

    Raises ConfigurationError if `only` or `exclude` is not a list of patterns.
    """

    only: Sequence[str] = ("*",)
    """Patterns of the requested names, such as "conv*"."""
    exclude: Sequence[str] = ()
    """Patterns of the names to exclude."""

    def __post_init__(self) -> None:
        for name, patterns in (("only", self.only), ("exclude", self.exclude)):
            if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
                raise ConfigurationError(f"{name} must be a list of patterns, as ['ip*']. Received: {shown(patterns)}")

    def __contains__(self, name: str) -> bool:
        return _first(self.only, name) is not None and _first(self.exclude, name) is None

    def check(self, names: Sequence[str]) -> None:
        """Raise ConfigurationError for a pattern that matches none of these names."""
        for what, patterns in (("only", self.only), ("exclude", self.exclude)):
            for pattern in patterns:
                if pattern != "*" and not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                    expected = f"{what}: expected patterns of {', '.join(names)}"
                    raise ConfigurationError(f"{expected}. Received: {pattern!r}, which matches none")


def match(
    model: Mapping[str, Array], file: Mapping[str, Array], selection: VariableSelection, source: str
) -> tuple[Matching, dict[str, Array]]:
    """The model's variables, in which the selected variables of a file with the same name and shape replace the model's
    own. Also returns the names of the variables that were taken, and all others.

    source: the name of the file. Raises ConfigurationError for a pattern that matches no variable, and DataError if no
    variable fits.
    """
    names = [*model, *(name for name in file if name not in model)]
    selection.check(names)
    untaken = []
    values = dict(model)
    for name in names:
        here, there = model.get(name), file.get(name)
        if here is not None and there is not None and here.shape == there.shape and name in selection:
            values[name] = there
            continue
        mine, other = (None if array is None else array.shape for array in (here, there))
        excluded, selected = _first(selection.exclude, name) or "", _first(selection.only, name) is not None
        untaken.append(Untaken(name, mine, other, excluded, selected))
    left_out = {each.name for each in untaken}
    taken = tuple(name for name in model if name not in left_out)
    if not taken:
        first = f"; first {untaken[0]}" if untaken else ""
        raise DataError(f"{source}: expected variables that the model has. Received: none that fits{first}")
    return Matching(taken, tuple(untaken)), values


def read_matching(
    path: Path,
    model: Mapping[str, Array],
    layouts: Sequence[ModelLayout],
    selection: VariableSelection,
    *,
    strict: bool,
) -> tuple[Matching, dict[str, Array]]:
    """`match` with the variables of a file.

    layouts: the layouts of the model's variables and statistics. strict: whether all requested variables must fit,
    which is checked before any is read. Raises the errors of `match`, and DataError if the file cannot be read, or if a
    variable does not fit.
    """

    def check(shapes: Mapping[str, Shape]) -> None:
        if strict:
            own = {segment.name: segment.spec.shape for layout in layouts for segment in layout}
            chosen = {name: shape for name, shape in shapes.items() if name in selection}
            others = {name: shape for name, shape in own.items() if name not in selection}
            check_names({**others, **chosen}, layouts, str(path))

    return match(model, read_variables(path, check), selection, str(path))


def _first(patterns: Sequence[str], name: str) -> str | None:
    """The first pattern that matches a name; None if none does."""
    return next((pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), None)
