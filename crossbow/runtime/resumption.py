"""Comparison of a run with the run that it resumes: settings that must be equal, and settings that may differ."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossbow.conf import plain
from crossbow.data.fingerprint import fingerprint
from crossbow.dataflow.graph import BATCH, Graph
from crossbow.ops.initialiser import Initialiser
from crossbow.runtime.arguments import Setup
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.recorded import differences, recorded
from crossbow.solver import SolverConf
from crossbow.types import DataError

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""An object's address, which may be part of its representation."""
FIXED = {"model": ("batch_size",), "system": ("seed", "order", "files_together")}
"""Settings that determine the examples of a batch."""
LATER = {"SoftMaxLoss": ("label_smoothing", "class_weights")}
"""Fields that were added to operators after the first checkpoints were written. They are described only if they are
set, so that these checkpoints can be resumed."""


@dataclasses.dataclass(frozen=True)
class Resumption:
    """The result of resuming training."""

    path: Path
    """File of the checkpoint."""
    tasks: int
    """Number of tasks before it."""
    changes: tuple[str, ...]
    """Settings that differ from those of the checkpoint, as "learning_rate: 0.1 → 0.01"."""
    exact: bool
    """Whether training continues exactly as without the interruption. Otherwise, because rule, learners or kernels
    differ, all learners begin at the base model: their own weights and velocities, and the rule's state, were
    dropped."""
    damaged: tuple[str, ...] = ()
    """Sentences about newer checkpoints that are damaged."""

    def __str__(self) -> str:
        lines = [*self.damaged, f"resumed from {self.path}, after {self.tasks:,} tasks", *self.changes]
        if not self.exact:
            lines.append(
                "all learners begin at the base model: their own weights and velocities, and the state of the rule, "
                "were dropped, because they do not fit these settings"
            )
        return "\n".join(lines)


def describe_run(setup: Setup) -> dict[str, Any]:
    """The description of a run for its checkpoints, and for the comparison of ranks, as JSON values."""
    confs = {name: recorded(getattr(setup, name)) for name in ("model", "solver", "system")}
    return {"network": describe_network(setup.graph), "data": fingerprint(setup.data), **confs}


def describe_network(graph: Graph) -> list[str]:
    """The operators of a graph with their settings and inputs, one per line. Initialisers are left out."""
    lines = []
    for vertex in graph:
        if vertex.forward is None:
            continue
        sources = ["batch" if source == BATCH else graph[source].name for source in vertex.inputs]
        lines.append(f"{vertex.name}: {_describe(vertex.forward)} of {', '.join(sources)}")
    return lines


def _describe(kernel: object) -> str:
    name = type(kernel).__name__
    if not dataclasses.is_dataclass(kernel):
        return name
    later = LATER.get(name, ())
    fields = [each for each in dataclasses.fields(kernel) if each.name not in later or getattr(kernel, each.name)]
    values = {field.name: plain(getattr(kernel, field.name)) for field in fields}
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if not isinstance(value, Initialiser))
    return f"{name}({_ADDRESS.sub('', shown)})"


DIGESTS = {
    "training_digest": "images or labels of the training examples differ",
    "check_digest": "images or labels of the check examples differ",
    "training_files": "names or sizes of the files of training examples differ",
    "check_files": "names or sizes of the files of check examples differ",
}
LATER_DIGESTS = ("training_files", "check_files")
"""Digests that not all records have: they are compared if both do."""


def check_same_run(before: Mapping[str, Any], now: Mapping[str, Any], source: str) -> None:
    """Raise DataError, with both values, if the network, the data, or the examples of a batch differ."""
    where = f"{source} cannot be resumed with"
    old, new = before["network"], now["network"]
    if old != new:
        pairs = zip([*old, *["nothing"] * len(new)], [*new, *["nothing"] * len(old)], strict=False)
        first = next(f"expected {a}. Received: {b}" for a, b in pairs if a != b)
        raise DataError(f"{where} another network: {first}")
    shared = before["data"].keys() & now["data"].keys()
    records = [
        {name: value for name, value in record["data"].items() if name not in LATER_DIGESTS or name in shared}
        for record in (before, now)
    ]
    for difference in differences(*records):
        what = DIGESTS.get(difference.partition(":")[0], difference)
        raise DataError(f"{where} another data set: {what}")
    for conf, names in FIXED.items():
        for name in names:
            if before[conf].get(name) != now[conf].get(name):
                expected, received = before[conf].get(name), now[conf].get(name)
                raise DataError(f"{where} another {name}: expected {expected}. Received: {received}")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The settings that differ. Settings that an older version did not have count as equal to their defaults."""
    for name, kind in (("model", ModelConf), ("solver", SolverConf), ("system", SystemConf)):
        defaults = recorded(kind())
        lacking = {field: value for field, value in defaults.items() if field in now[name]}
        yield from differences({**lacking, **before[name]}, now[name])
