"""Docstrings of the package as Markdown, and signatures of its configurations, for the API reference.

The docstrings are written to be read in a terminal. Here examples become blocks of code, descriptions of parameters
become lists, names of public classes and functions become links, and characters that Markdown would interpret are
escaped.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import griffe

from crossbow.conf import field_docstrings

REFERENCE = Path(__file__).parents[1] / "reference"
CODE = re.compile(r"(`+[^`]+`+)")
ROW = re.compile(r"(?:`?(?P<name>[a-z]\w*(?:, [a-z]\w*)*)`?: |(?P<entry>\w+(?:, \w+)*) {2,})(?P<text>\S.*)")
"""A line that begins the description of a parameter, as "name: text" or, in columns, "name   text"."""


class Docstrings(griffe.Extension):
    """Translates docstrings, and completes configurations."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **more: Any) -> None:
        """Translate the docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **more: Any) -> None:
        """Complete a class that `configuration` or `parameters` of `crossbow.conf` completes: with its constructor, and
        with the descriptions of its fields as those of parameters. Other members of an operator are for the compiler,
        and are left out."""
        names = {str(decorator.value) for decorator in cls.decorators}
        if not names & {"configuration", "parameters"} or cls.docstring is None:
            return
        module, _, name = cls.path.rpartition(".")
        made = getattr(importlib.import_module(module), name)
        texts = field_docstrings(made)
        for field in dataclasses.fields(made):
            if field.name in cls.members:
                cls.del_member(field.name)
        cls.docstring.value += section([(field.name, texts.get(field.name, "")) for field in dataclasses.fields(made)])
        if module.startswith("crossbow.ops.") and "kernel" not in module and "initialiser" not in module:
            for member in list(cls.members):
                cls.del_member(member)
        cls.set_member("__init__", constructor(cls, made))


def section(descriptions: Sequence[tuple[str, str]]) -> str:
    """The section of a docstring that describes parameters."""
    described = [(name, markdown(text).replace("\n", "\n        ")) for name, text in descriptions if text]
    return "".join(["\n\nArgs:\n" if described else "", *(f"    {name}: {text}\n" for name, text in described)])


def constructor(cls: griffe.Class, made: type) -> griffe.Function:
    """The constructor of a configuration, whose fields are its parameters."""
    found = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    fields = [field for field in dataclasses.fields(made) if field.init]
    for field in sorted(fields, key=lambda field: bool(field.kw_only)):
        kinds = griffe.ParameterKind
        kind = kinds.keyword_only if field.kw_only else kinds.positional_or_keyword
        found.append(griffe.Parameter(field.name, annotation=str(field.type), kind=kind, default=default(field)))
    return griffe.Function("__init__", parameters=griffe.Parameters(*found), parent=cls)


def default(field: dataclasses.Field[Any]) -> str | None:
    """The default of a field, as it may be written in a program; None if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.default_factory.__name__}()"
    value = field.default
    if value is dataclasses.MISSING:
        return None
    if isinstance(value, enum.Enum):
        return str(value)
    if dataclasses.is_dataclass(value):
        chosen = [each for each in dataclasses.fields(value) if getattr(value, each.name) != each.default]
        return f"{type(value).__name__}({', '.join(f'{each.name}={getattr(value, each.name)!r}' for each in chosen)})"
    return repr(value)


@functools.cache
def public_names() -> dict[str, str]:
    """The paths of all names in the reference, by their last part; those that two paths share are left out."""
    pages = "\n".join(page.read_text("utf-8") for page in REFERENCE.glob("*.md"))
    paths = re.findall(r"^::: (\S+)", pages, re.MULTILINE)
    names = [path.rpartition(".")[2] for path in paths]
    return {name: path for name, path in zip(names, paths, strict=True) if names.count(name) == 1}


def markdown(docstring: str) -> str:
    """The Markdown of a docstring."""
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", docstring.strip("\n"))))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return "\n".join(["```pycon", *lines, "```"])
    if lines[0].startswith("    "):
        return text  # a block of code, or part of a list
    if rows := _rows(lines):
        return "\n".join(f"* `{name}`: {_text(meaning)}" for name, meaning in rows)
    return _text(re.sub(r"::$", ":", text))


def _rows(lines: list[str]) -> list[tuple[str, str]]:
    """The names and descriptions of a paragraph that is a table, or that describes several parameters; else empty."""
    borders = [number for number, line in enumerate(lines) if re.fullmatch(r"=+( =+)+", line)]
    if borders:
        lines = lines[borders[-2] + 1 : borders[-1]]
    found: list[tuple[str, str]] = []
    columns = False
    for line in lines:
        if row := ROW.fullmatch(line):
            found.append((row["name"] or row["entry"], row["text"]))
            columns = columns or row["entry"] is not None
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            return []
    return found if columns or len(found) > 1 else []


def _text(text: str) -> str:
    parts = CODE.split(text)
    return "".join(_linked(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _linked(code: str) -> str:
    """A name in backquotes, with a link to its entry if it has one."""
    path = public_names().get(code.strip("`"))
    return code if path is None else f"[{code}][{path}]"


def _escaped(text: str) -> str:
    """Text whose characters Markdown does not interpret. A star that begins a line is an item of a list."""
    text = re.sub(r"(?<!^)(?<!\n)\*", r"\\*", text)
    return re.sub(r"(?<!\w)_|_(?!\w)|<(?=[a-zA-Z/])", r"\\\g<0>", text)
