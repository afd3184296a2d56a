"""The documentation site: its pages, what the reference contains, and how docstrings become Markdown."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from crossbow.ops import ArrayGradient, Gradient

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FROM_OUTSIDE = {"handbook.md", "contributing.md"}
"""Pages whose text is not in `docs`."""
PUBLIC = ("crossbow", "crossbow.ops", "crossbow.data", "crossbow.synch", "crossbow.monitors", "crossbow.testing")
PUBLIC += ("crossbow.dataflow", "crossbow.onnx")
OLD_NAMES = {"crossbow.synch.Phase"}
"""Public names of which the reference has a newer one."""


def pages(entry: Any) -> Iterator[str]:
    """The pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(part)


def test_the_navigation_has_every_page_once() -> None:
    yaml = pytest.importorskip("yaml")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    found = sorted(pages(settings["nav"]))
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert found == sorted(written | FROM_OUTSIDE)


def documented() -> list[str]:
    texts = [path.read_text("utf-8") for path in sorted((DOCS / "reference").glob("*.md"))]
    return [path for text in texts for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]


def thing(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_reference_has_every_public_name_once() -> None:
    entries = documented()
    things = [id(thing(path)) for path in entries]
    assert len(set(entries)) == len(entries)
    assert len(set(things)) == len(things)
    pytest.importorskip("onnx")
    public = {f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__}
    missing = [path for path in public if id(thing(path)) not in things and not is_gradient_of_an_operator(thing(path))]
    assert sorted(set(missing) - OLD_NAMES) == ["crossbow.__version__"]


def is_gradient_of_an_operator(found: object) -> bool:
    """Which the graph contains, and no program names."""
    return inspect.isclass(found) and issubclass(found, Gradient) and found not in (Gradient, ArrayGradient)


def plugin(name: str) -> ModuleType:
    pytest.importorskip("griffe" if name == "docstrings" else "mkdocs")
    specification = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "plugins" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("Names, as *norm*, of w_i.", r"Names, as \*norm\*, of w_i."),
        ("A `name * x` of _private.", r"A `name * x` of \_private."),
        ("Uses `Conv`.", "Uses [`Conv`][crossbow.ops.Conv]."),
        ("Text.\n\n>>> 1 + 1\n2", "Text.\n\n```pycon\n>>> 1 + 1\n2\n```"),
        ("As::\n\n    z = w", "As:\n\n    z = w"),
        ("fixed  one\nstep   another\n       line", "* `fixed`: one\n* `step`: another line"),
        ("==== ====\nfixed  one\nstep   two\n==== ====", "* `fixed`: one\n* `step`: two"),
        ("===== ====\nmode   y\n===== ====\nfixed  x * 2\n===== ====", r"* `fixed`: x \* 2"),
        ("a, b: one\nand more\n`c`: two", "* `a, b`: one and more\n* `c`: two"),
        ("first: one", "first: one"),
        ("* one\n* two", "* one\n* two"),
        ("as <b> and 1 < 2", r"as \<b> and 1 < 2"),
    ],
)
def test_a_docstring_as_markdown(docstring: str, markdown: str) -> None:
    assert plugin("docstrings").markdown(docstring) == markdown


@pytest.mark.parametrize(
    ("text", "page", "source", "expected"),
    [
        ("[a](docs/rules.md#x)", "handbook.md", "README.md", "[a](rules.md#x)"),
        ("[a](examples/custom_operator.py)", "handbook.md", "README.md", "[a](examples/custom_operator.py)"),
        ("[a](../../README.md)", "tutorials/b.md", "docs/tutorials/b.md", "[a](../handbook.md)"),
        ("[a](first.md)", "tutorials/b.md", "docs/tutorials/b.md", "[a](first.md)"),
        ("![a](../cluster-model/b.png)", "reference/b.md", "docs/reference/b.md", "![a](../cluster-model/b.png)"),
        ("[a](#here) [b](https://b.org/c)", "b.md", "docs/b.md", "[a](#here) [b](https://b.org/c)"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(text: str, page: str, source: str, expected: str) -> None:
    assert plugin("pages").translated(text, page, source) == expected
