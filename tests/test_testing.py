"""The operator-testing kit finds what it is there to find."""

from __future__ import annotations

import doctest
import functools
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import crossbow.testing
import crossbow.testing.gradients
import crossbow.testing.operator
from crossbow.ops import (
    Constant,
)
from crossbow.testing import check_gradients

ON_THE_FAKE = """
import sys, pytest
from tests.kernels.cuda.fake import fake_cuda
with fake_cuda():
    sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_rows_of_the_table_run_on_the_gpu_that_is_named() -> None:
    rows = ["tests/operators/test_table.py", "-k", "gpu and Conv and 2x4x6x6"]
    command = [sys.executable, "-c", ON_THE_FAKE, "-q", "-p", "no:cacheprovider", *rows, "--device"]
    run = functools.partial(subprocess.run, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120)
    done = run([*command, "cuda:0"])
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
    assert " passed" in done.stdout
    done = run([*command, "cuda:7"])
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--device: device: expected an available GPU, cuda:0 to cuda:0. Received: 'cuda:7'" in done.stderr


# Documentation


@pytest.mark.parametrize("module", [crossbow.testing, crossbow.testing.gradients, crossbow.testing.operator])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_worked_example_outside_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[1] / "examples" / "custom_operator.py"
    swish = runpy.run_path(str(path))["Swish"]
    assert check_gradients(swish(), [(3, 5)]) < 1e-8
    assert check_gradients(swish(beta_initialiser=Constant(2.0)), [(2, 3, 4, 5)]) < 1e-8
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "worst relative error" in printed
    assert "y = [[-0.119  0.     0.881]]" in printed
