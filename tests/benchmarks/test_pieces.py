from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

from tests.kernels.cpu import REASON

ROOT = Path(__file__).parents[2]


def run(threads: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.pieces", "--rounds", "1", "--seconds", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=f"oneDNN is not usable here: {REASON}")
@pytest.mark.skipif(sys.platform != "linux", reason="pages are Linux's")
@pytest.mark.skipif(not llvmlite.binding.get_host_cpu_features().get("avx512f"), reason="the kernels want AVX-512")
def test_every_piece_is_measured() -> None:
    done = run(1)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert sum("→" in row for row in rows) == 3 * 10
    assert sum("step over" in row for row in rows) == 2


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=f"oneDNN is not usable here: {REASON}")
def test_with_several_threads_nothing_is_measured() -> None:
    done = run(2)
    assert done.returncode == 2
    assert "set OMP_NUM_THREADS=1" in done.stderr
