"""Theano-MPI's configuration files: assignments as in a shell script."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from crossbow.files import checked_path, file_error
from crossbow.types import DataError

REQUIRED = ("RULE", "MODELFILE", "MODELCLASS", "DEVICES")
OPTIONAL = ("BSP_SYNC_TYPE", "BSP_EXCH_STRATEGY")
ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class ForeignConfig:
    """The training of foreign models that a file describes."""

    rule: str
    """Theano-MPI's rule: BSP, EASGD or GOSGD."""
    modelfile: str
    """The module that defines the model, such as "models.cifar10"."""
    modelclass: str
    devices: tuple[str, ...]
    """Devices, such as "cuda0", or with their host, such as "node0:cuda0"."""
    sync_type: str | None = None
    exch_strategy: str | None = None


def read_config(path: str | os.PathLike[str]) -> ForeignConfig:
    """The training that a file describes by RULE, MODELFILE, MODELCLASS, DEVICES and, optionally, BSP_SYNC_TYPE and
    BSP_EXCH_STRATEGY. The file is only read, not executed, so values must be literal.

    Raises DataError, with file and line, for a line that is not such an assignment, and if a value is missing or given
    twice.
    """
    file = Path(checked_path("config", path))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise file_error(error, file, "a text file with assignments, as RULE=BSP") from error
    values: dict[str, list[str]] = {}
    for number, statement in _statements(text):
        where = f"{file}, line {number}"
        if _is_open(statement):
            raise DataError(f"{where}: expected a list that ends with a parenthesis. Received: {statement!r}")
        match = ASSIGNMENT.fullmatch(statement)
        known = (*REQUIRED, *OPTIONAL)
        if match is None or match[1] not in known:
            expected = f"an assignment to one of {', '.join(known)}"
            raise DataError(f"{where}: expected {expected}. Received: {statement!r}")
        name, words = match[1], _words(match[2], where)
        if name in values:
            raise DataError(f"{where}: expected one value of {name}. Received: another")
        if len(words) != 1 and not (name == "DEVICES" and match[2].startswith("(")):
            raise DataError(f"{where}: expected one word as {name}. Received: {match[2]!r}")
        values[name] = words
    for name in REQUIRED:
        if name not in values:
            raise DataError(f"{file}: expected a value of {name}. Received: none")
    devices = devices_of(values["DEVICES"])
    if not devices:
        raise DataError(f"{file}: expected devices, as DEVICES=cuda0,cuda1. Received: none")
    rule, modelfile, modelclass = (values[name][0] for name in REQUIRED[:3])
    sync_type, exch_strategy = (values[name][0] if name in values else None for name in OPTIONAL)
    return ForeignConfig(rule, modelfile, modelclass, devices, sync_type, exch_strategy)


def devices_of(words: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The devices of words such as "cuda0,cuda1", or "node0:cuda0,cuda1" for those of a host.

    >>> devices_of(["node0:cuda0", "node1:cuda0,cuda1"]), devices_of(["cpu,cpu"])
    (('node0:cuda0', 'node1:cuda0', 'node1:cuda1'), ('cpu', 'cpu'))
    """
    devices = []
    for word in words:
        host, colon, names = word.rpartition(":")
        devices += [f"{host}{colon}{name.strip()}" for name in names.split(",") if name.strip()]
    return tuple(devices)


def _statements(text: str) -> list[tuple[int, str]]:
    """The statements of a file and the numbers of their first lines. A list in parentheses may have several lines."""
    found: list[tuple[int, str]] = []
    open_list = False
    for number, line in enumerate(text.splitlines(), 1):
        statement = re.sub(r"(^|\s)#.*", "", line).strip()
        if not statement:
            continue
        if open_list:
            first, before = found[-1]
            found[-1] = first, f"{before} {statement}"
        else:
            found.append((number, statement))
        open_list = _is_open(found[-1][1])
    return found


def _is_open(statement: str) -> bool:
    """Whether a statement contains a list that has not been closed."""
    return "=(" in statement and not statement.endswith(")")


def _words(value: str, where: str) -> list[str]:
    """The words of a value: a single word, or the words of a list in parentheses. Raises DataError for expansions."""
    inner = value[1:-1] if value.startswith("(") and value.endswith(")") else value
    try:
        words = shlex.split(inner)
    except ValueError as error:  # a quotation without an end
        raise DataError(f"{where}: expected a value. Received: {value!r} ({error})") from error
    if any(each in inner for each in "$`"):
        raise DataError(f"{where}: expected a literal value, because the file is not executed. Received: {value!r}")
    return words
