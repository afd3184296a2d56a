"""How the runtime is put together: parts are composed, and each looks after its own attributes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import crossbow.runtime
from crossbow.runtime.engine import Engine

ROOT = Path(crossbow.runtime.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in FILES}
NOT_PARENTS = {"Protocol", "Generic", "ABC", "NamedTuple"}


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for name, tree in TREES.items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kind))


def targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns to."""
    found = getattr(node, "targets", None) or [getattr(node, "target", None)]
    for target in found:
        for each in ast.walk(target) if target is not None else ():
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                yield each


def test_devices_have_the_same_files() -> None:
    cpu, cuda = ({file.name for file in (ROOT / device).glob("*.py")} for device in ("cpu", "cuda"))
    assert cpu == cuda
    assert len(cpu) > 5


def test_a_class_has_one_parent_at_the_most() -> None:
    for name, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        bases = [ast.unparse(base).split("[")[0] for base in node.bases]
        assert len([base for base in bases if base not in NOT_PARENTS]) <= 1, (name, node.name, bases)


@pytest.mark.slow
def test_an_object_assigns_to_its_own_attributes_only() -> None:
    for kind in (ast.Assign, ast.AugAssign, ast.AnnAssign):
        for name, node in nodes(kind):
            for target in targets(node):
                of = ast.unparse(target.value)
                assert of == "self" or of.startswith("weakref.finalize("), (name, ast.unparse(node))  # as that is used
    assert [ast.unparse(target) for target in targets(ast.parse("a, self.b.c = 1, 2").body[0])] == ["self.b.c"]


@pytest.mark.parametrize("word", ["type: ignore", "__getattr__", "setattr("])
def test_types_say_what_there_is(word: str) -> None:
    assert [file.name for file in FILES if word in file.read_text()] == []


def test_no_class_is_defined_twice() -> None:
    names = [node.name for _, node in nodes(ast.ClassDef) if isinstance(node, ast.ClassDef)]
    assert sorted(names) == sorted(set(names))


def test_the_engine_is_small() -> None:
    assert len(inspect.getsource(Engine).splitlines()) < 200


def test_only_the_devices_packages_know_their_device() -> None:
    """Besides `building`, which chooses between them, and what says which devices there are."""
    knowing = set()
    for name, tree in TREES.items():
        if "/" not in name:
            imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            if any(module.startswith(("crossbow.runtime.cpu", "crossbow.runtime.cuda")) for module in imported):
                knowing.add(name)
    assert knowing == {"building.py"}


@pytest.mark.slow
def test_no_thread_keeps_a_process_alive() -> None:
    package, found = ROOT.parent, 0
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread":
                found += 1
                assert "daemon=True" in [ast.unparse(keyword) for keyword in node.keywords], (file, node.lineno)
    assert found > 5
