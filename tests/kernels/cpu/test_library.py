"""Which kernels the CPU library takes, with oneDNN and without."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from crossbow import ConfigurationError, SystemConf, TrainingUnit
from crossbow.kernels import select_library
from crossbow.kernels.cpu.library import Cpu
from crossbow.kernels.cpu.rooms import WINOGRAD
from crossbow.ops import BatchNorm, Conv, InnerProduct, Pool, ReLU
from tests.kernels.cpu import REASON
from tests.support import context, pictures, training

NETWORK = (
    Conv(number_of_outputs=20, kernel_size=3, padding=1), BatchNorm(), ReLU(), Pool(),
    Conv(number_of_outputs=32, kernel_size=3), Pool(method="average"), ReLU(), InnerProduct(number_of_outputs=3),
)  # fmt: skip


def test_networks_train_without_onednn_in_compiled_kernels_alone() -> None:
    with context(training(*NETWORK), data=pictures(), kernels="compiled", learners=2, threads=1) as running:
        running.train(6, TrainingUnit.TASKS)
        text = running.describe()
        assert all(np.isfinite(value).all() for value in running.variables.values())
    assert "fallback" not in text
    assert not [name for name in ("jit", "brg", "reference", "gemm") if name in text]


def test_names_of_libraries() -> None:
    assert select_library("compiled")[0].name == "compiled"
    for kernels in ("auto", "compiled"):
        for winograd in (True, False):
            library, _ = select_library(kernels, winograd=winograd)
            assert isinstance(library, Cpu)
            assert (WINOGRAD in library.rooms.registries) == winograd
    assert select_library("auto", np.dtype(np.float64))[0].name == "reference"
    assert SystemConf(kernels="compiled").kernels == "compiled"
    if REASON is None:
        assert select_library("auto")[0].name == select_library("onednn")[0].name == "onednn"


@pytest.mark.parametrize(
    ("installed", "precision", "reason"),
    [
        (True, "float64", "the compiled kernels compute in float32, and precision is float64"),
        (False, "float32", "the package numba, which compiles kernels, is not installed"),
        (False, "float64", "the package numba, which compiles kernels, is not installed"),
    ],
)
def test_the_first_reason_why_compiled_kernels_are_not_possible(
    installed: bool, precision: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossbow.kernels.cpu.onednn.shared_library.numba_is_installed", lambda: installed)
    with pytest.raises(ConfigurationError, match=rf"kernels='compiled' is not possible here: {reason}\."):
        select_library("compiled", np.dtype(precision))


HIDDEN = """
from crossbow.kernels import select_library, why_not_onednn
from crossbow.types import ConfigurationError
assert select_library("auto")[0].name == "compiled", select_library("auto")[0].name
try:
    select_library("onednn")
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=f"no oneDNN: {REASON}")
def test_onednn_can_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSBOW_WITHOUT_ONEDNN", "1")
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True)
    assert "kernels='onednn' is not possible here: the environment variable CROSSBOW_WITHOUT_ONEDNN is 1" in done.stdout
