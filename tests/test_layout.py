"""Each module of the package has its tests at the mirrored path: `crossbow/data/ring.py` in `tests/data/test_ring.py`.

What is tested through something else is listed here, with where and why.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "crossbow"

ROWS = ("operators/test_table.py", "operators/test_random_operators.py")

ELSEWHERE: dict[str, tuple[str, ...]] = {
    # Kernels are requested by operators: every row of the operator table is compared between the libraries. Files of
    # `tests/kernels/` are for what an operator does not show, and some of them for several kernels together.
    "kernels/reference/*": (*ROWS, "kernels/reference/test_library.py"),
    "kernels/cpu/*": (*ROWS, "kernels/cpu/passes/test_combinations.py", "kernels/cpu/passes/test_other_kernels.py"),
    "kernels/cpu/onednn/*": (*ROWS, "kernels/cpu/onednn/test_fallback.py"),
    "kernels/cpu/passes/*": (
        *ROWS,
        "kernels/cpu/passes/test_combinations.py",
        "kernels/cpu/passes/test_other_kernels.py",
    ),
    "kernels/cpu/simd/*": ("kernels/cpu/simd/test_narrow.py", "kernels/cpu/simd/test_winograd.py"),
    "kernels/cuda/*": ("kernels/cuda/test_table.py", "kernels/cuda/test_fake.py", "kernels/cuda/test_sources.py"),
    "kernels/requests/*": ("kernels/requests/test_request.py", *ROWS),
    "kernels/compiled.py": ("kernels/test_native.py",),
    "kernels/interface.py": ("kernels/reference/test_library.py",),
    "kernels/library.py": ("kernels/test_registry.py",),
    "kernels/task_list.py": ("kernels/test_native.py", "kernels/cpu/onednn/test_learners.py"),
    "kernels/strides.py": ("kernels/cuda/test_four.py", "kernels/cuda/test_cudnn.py"),
    "compile/draft.py": ("compile/test_program.py", "compile/test_arena.py"),
    "compile/precision.py": ("runtime/cuda/test_precision.py",),
}
"""Modules without a file of their own, or patterns of such, and the files that test them."""

MODULES = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


def mirrored(module: str) -> Path:
    path = Path(module)
    return TESTS / path.parent / f"test_{path.name}"


ALONE = [module for module in MODULES if not mirrored(module).exists()]


def test_every_module_has_its_tests() -> None:
    assert [module for module in ALONE if not any(fnmatch(module, pattern) for pattern in ELSEWHERE)] == []


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_an_exception_is_one(pattern: str) -> None:
    """Of a module that there is, without a file of its own, and with others that there are, and hold tests."""
    assert any(fnmatch(module, pattern) for module in ALONE)
    for name in ELSEWHERE[pattern]:
        assert "\ndef test_" in (TESTS / name).read_text(encoding="utf-8"), name


def test_a_module_without_tests_would_be_noticed() -> None:
    assert len(MODULES) > 200
    assert mirrored("data/ring.py").exists()
    assert "kernels/reference/part.py" in ALONE
    assert not any(fnmatch("runtime/unheard_of.py", pattern) for pattern in ELSEWHERE)
