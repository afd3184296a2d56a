"""Each module of the package has its tests at the mirrored path: `data/ring.py` in `tests/data/test_ring.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "crossbow"
MODULES = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


def mirrored(module: str) -> Path:
    path = Path(module)
    return TESTS / path.parent / f"test_{path.name}"


def without_tests(modules: Sequence[str]) -> list[str]:
    paths = [mirrored(module) for module in modules]
    return [
        module
        for module, path in zip(modules, paths, strict=True)
        if not path.exists() or "\ndef test_" not in path.read_text(encoding="utf-8")
    ]


def test_every_module_has_its_tests() -> None:
    assert without_tests(MODULES) == []


def test_a_module_without_tests_would_be_noticed() -> None:
    assert len(MODULES) > 200
    assert without_tests(["data/ring.py", "kernels/unheard_of.py"]) == ["kernels/unheard_of.py"]
