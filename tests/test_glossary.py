"""One word for one concept: public names of classes and the terms of docs/glossary.md."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

import crossbow.synch
from crossbow import Phase
from crossbow.synch import SMA, RulePhase, RuleSequence

ROOT = Path(__file__).parent.parent
PENDING = {"Record"}
"""Names that are defined twice: both `crossbow.Record`, of training, and `crossbow.data.Record`, of a file, are
public."""


@functools.cache
def public_classes() -> dict[str, list[str]]:
    """The files that define each public class of the package, at any level."""
    files = defaultdict(list)
    for path in sorted((ROOT / "crossbow").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(ROOT)))
    return files


@pytest.mark.slow
def test_no_public_class_name_is_defined_twice() -> None:
    repeated = {name: files for name, files in public_classes().items() if len(files) > 1}
    unexpected = {name: files for name, files in repeated.items() if name not in PENDING}
    assert not unexpected
    assert not PENDING - set(repeated), "no longer repeated: remove them from PENDING"


@pytest.mark.slow
def test_classes_of_the_glossary_exist() -> None:
    rows = [line.split("|") for line in (ROOT / "docs/glossary.md").read_text("utf-8").splitlines() if line[:2] == "| "]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[3])}
    assert named
    assert not named - set(public_classes())


def test_terms_of_the_glossary_are_unique() -> None:
    rows = [line.split("|") for line in (ROOT / "docs/glossary.md").read_text("utf-8").splitlines() if line[:2] == "| "]
    terms = [term.strip() for row in rows for term in row[1].split(",") if term.strip() not in ("term", "z")]
    assert sorted(set(terms)) == sorted(terms)


def test_a_sequence_has_rule_phases_which_keep_their_former_name() -> None:
    assert isinstance(RuleSequence(((SMA(), 3),)).phases[0], RulePhase)
    assert crossbow.synch.Phase is RulePhase
    assert RulePhase is not Phase  # type: ignore[comparison-overlap]
