"""The list of all models that `crossbow models` prints."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Iterator, Sequence

import models
from crossbow.scripts import ModelDescription, ModelScript


def scripts() -> Iterator[ModelScript]:
    """The scripts of the package, by name."""
    for module in pkgutil.iter_modules(models.__path__):
        script = getattr(importlib.import_module(f"models.{module.name}"), "SCRIPT", None)
        if isinstance(script, ModelScript):
            yield script


def descriptions() -> list[ModelDescription]:
    """All models that the scripts list."""
    return [script.describe(options.split()) for script in scripts() for options in script.variants]


def as_table(found: Sequence[ModelDescription]) -> str:
    """One line for each model."""
    rows = [("name", "parameters", "input", "paper", "command")]
    for model in found:
        shape = "×".join(map(str, model.input_shape))
        rows.append((model.name, f"{model.parameters:,}", shape, model.paper, model.command))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        name, parameters, *rest = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append("  ".join([name, parameters.strip().rjust(widths[1]), *rest]).rstrip())
    return "\n".join(lines)


def as_json(found: Sequence[ModelDescription]) -> str:
    """A list of objects with the fields of `ModelDescription`."""
    return json.dumps([dataclasses.asdict(model) for model in found], indent=2, ensure_ascii=False)
