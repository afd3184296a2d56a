"""Freezing of variables by name: their learning rate multipliers become 0."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from crossbow.dataflow.graph import trains, unique_names
from crossbow.dataflow.operator import Operator
from crossbow.ops.kernel import Kernel
from crossbow.types import ConfigurationError

SUFFIX = "_learning_rate_multiplier"
"""Ending of the names of fields that multiply the learning rate of a variable."""


def frozen_operators(operators: Sequence[Operator], patterns: Sequence[str]) -> dict[int, Operator]:
    """Copies of operators by the ids of the originals, in which the learning rate multipliers of the variables that
    match a pattern are 0.

    Raises ConfigurationError for a pattern that matches no variable, and for an operator with variables that has no
    learning rate multipliers.
    """
    names = unique_names(operators)
    fields = {id(each): _multipliers(each.kernel) for each in operators}
    frozen: dict[int, set[str]] = {each: set() for each in names}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigurationError(f"freeze: expected patterns of names, as 'conv*'. Received: {pattern!r}")
        found = False
        for each in operators:
            name, whole = names[id(each)], fnmatch.fnmatchcase(names[id(each)], pattern)
            if whole and not fields[id(each)] and isinstance(each.kernel, Kernel) and trains(each.kernel):
                expected = f"expected an operator with fields as 'weight{SUFFIX}'"
                received = f"{name!r} ({type(each.kernel).__name__}), which has none"
                raise ConfigurationError(f"freeze: {expected}. Received: {received}")
            for variable, field in fields[id(each)].items():
                if whole or fnmatch.fnmatchcase(f"{name}.{variable}", pattern):
                    frozen[id(each)].add(field)
                    found = True
        if not found:
            known = ", ".join(dict.fromkeys(names[id(each)] for each in operators if fields[id(each)])) or "none"
            expected = f"freeze: expected patterns of operators with variables ({known}) or of variables, as '*.bias'"
            raise ConfigurationError(f"{expected}. Received: {pattern!r}, which matches none")
    return _copies(operators, frozen)


def _copies(operators: Sequence[Operator], zeros: Mapping[int, Iterable[str]]) -> dict[int, Operator]:
    """Copies of operators, by the ids of the originals. zeros: the fields of each operator that become 0."""
    copies: dict[int, Operator] = {}
    for each in operators:
        if id(each) not in copies:
            fields = dict.fromkeys(zeros[id(each)], 0.0)
            kernel = dataclasses.replace(each.kernel, **fields) if fields else each.kernel  # type: ignore[type-var]
            copies[id(each)] = copy.copy(each)
            copies[id(each)].kernel = kernel
    for made in copies.values():
        if made.peer is not None:
            made.peer = copies.get(id(made.peer), made.peer)
    return copies


def _multipliers(kernel: object) -> dict[str, str]:
    """The fields that multiply the learning rates of an operator's variables, by the names of the variables."""
    if not dataclasses.is_dataclass(kernel):
        return {}
    fields = [field.name for field in dataclasses.fields(kernel) if field.name.endswith(SUFFIX)]
    if not getattr(kernel, "bias", True):
        fields = [field for field in fields if field != f"bias{SUFFIX}"]
    parts = {field: field.removesuffix(SUFFIX) for field in fields}
    return {"weights" if part == "weight" else part: field for field, part in parts.items()}
