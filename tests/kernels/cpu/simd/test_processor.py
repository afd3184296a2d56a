"""Tiles fit the registers of the processor; kernels of vectors of other widths give the numbers of the reference."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crossbow.kernels.cpu.simd import processor


@pytest.mark.parametrize(
    ("features", "machine", "lanes", "registers", "fused"),
    [
        ("+avx512f,+avx2,+fma", "x86_64", 16, 32, True),
        ("+avx2,+fma,-avx512f", "x86_64", 8, 16, True),
        ("+avx2,-fma", "AMD64", 8, 16, False),
        ("+neon", "arm64", 4, 32, True),
        ("+neon", "aarch64", 4, 32, True),
        ("+sse2", "x86_64", 4, 16, False),
    ],
)
def test_vectors(
    features: str, machine: str, lanes: int, registers: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.CPU_FEATURES", features)
    monkeypatch.setattr("platform.machine", lambda: machine)
    vectors = processor._vectors()
    assert (vectors.lanes, vectors.fused) == (lanes, fused)
    # Sums, a row of the right factor, and an element of the left one.
    assert vectors.rows * vectors.columns + vectors.columns + 1 <= registers


ROOT = Path(__file__).parents[4]
WIDTHS = {8: ("haswell", "+avx,+avx2,+fma"), 4: ("x86-64", "+sse2")}
"""Lanes, and a processor with such vectors: without AVX-512, and without AVX and fused products."""
CHILD = """
import sys
import pytest
from crossbow.kernels.cpu.simd import processor
assert processor.VECTORS.lanes == int(sys.argv[1]), processor.VECTORS
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
"""


def passed(lanes: int, *arguments: str) -> int:
    """The number of tests that pass in a process whose code is compiled for such a processor; none may fail."""
    name, features = WIDTHS[lanes]
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "NUMBA_CPU"))}
    variables |= {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-c", CHILD, str(lanes), *arguments]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    count = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert count is not None, done.stdout
    return int(count[1])


FILES = [
    str(Path(__file__).with_name(f"test_{name}.py"))
    for name in ("tile", "inner_product", "narrow", "pointwise", "winograd", "winograd_tiles", "winograd_transforms")
]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the widths are those of x86 processors")
@pytest.mark.slow
@pytest.mark.parametrize("lanes", WIDTHS)
def test_all_that_holds_for_kernels_holds_for_narrower_vectors(lanes: int) -> None:
    """Also for passes whose vectors have 16 numbers on any processor, of which LLVM makes several narrower ones."""
    if lanes >= processor.VECTORS.lanes:
        pytest.skip("vectors of this width are this processor's own")
    passes = [str(Path(__file__).parent.with_name("passes") / f"test_{name}.py") for name in ("rows", "vector")]
    assert passed(lanes, *FILES, *passes, "-m", "") > 300
