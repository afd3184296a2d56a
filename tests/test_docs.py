"""Every Python example of the README and the docs runs, tutorials print what they show, and links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
EXAMPLES = [
    pytest.param(match[1], id=f"{document.name}-{number}")
    for document in DOCUMENTS
    for number, match in enumerate(re.finditer(r"```python\n(.*?)```", document.read_text("utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace("/tmp/", f"{tmp_path}/"), "example", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("document", [*DOCUMENTS, *TUTORIALS, *REFERENCE], ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


# Tutorials

MARKS = {"importing-from-pytorch.md": [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]}
"""Marks of single tutorials. PyTorch warns of its older exporter, which keeps normalisations apart."""


def steps(tutorial: Path) -> Iterator[tuple[str, str | None]]:
    """The blocks of Python of a tutorial, each with the output that is shown below it."""
    blocks = re.finditer(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", tutorial.read_text("utf-8"), re.DOTALL)
    return ((block[1], block[2]) for block in blocks)


def pattern(output: str) -> list[str]:
    """The lines of an output without what depends on the machine: numbers, and the widths of columns."""
    lines = (re.sub(r"-?\d[\d.,]*", "0", line).strip() for line in output.strip().split("\n"))
    return [re.sub(r"-{3,}", "---", re.sub(r"\s+", " ", line)) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tutorial",
    [pytest.param(path, id=path.stem, marks=MARKS.get(path.name, [])) for path in TUTORIALS if path.stem != "index"],
)
def test_tutorial_prints_what_it_shows(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks run one after the other, as a reader would copy them."""
    if "import torch\n" in tutorial.read_text("utf-8"):
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    found = list(steps(tutorial))
    assert len(found) > 3
    for code, shown in found:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code.replace("/tmp/", f"{tmp_path}/"), tutorial.name, "exec"), names)
        if shown is not None:
            assert pattern(printed.getvalue().replace(f"{tmp_path}/", "/tmp/")) == pattern(shown), code


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_names_that_a_tutorial_imports_exist(tutorial: Path) -> None:
    trees = (ast.parse(code) for code, _ in steps(tutorial))
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    wanted = [(node.module, each.name) for node in imports for each in node.names if "crossbow" in str(node.module)]
    assert wanted or tutorial.stem == "index"
    assert [name for module, name in wanted if not hasattr(importlib.import_module(str(module)), name)] == []


def test_another_output_would_be_noticed() -> None:
    assert pattern("accuracy\n  0.98  12 ms\n") == pattern("accuracy\n-0.1 1,234.5 ms")
    assert pattern("accuracy") != pattern("count")
    assert pattern("loss 0.5") != pattern("loss nan")
