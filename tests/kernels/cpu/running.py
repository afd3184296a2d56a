"""The same request to the reference library and to oneDNN, on the same numbers. Skips where oneDNN is not usable."""

from __future__ import annotations

import pytest

from tests.kernels.cpu import REASON
from tests.kernels.cpu.buffers import (
    FLOAT32,
    REFERENCE,
    SHAPES,
    SINGLE,
    Numbers,
    both,
    close,
    draw,
    execute,
    memory,
    state,
    stored,
    tensor,
    unstored,
    with_storage,
)

if REASON is not None:
    pytest.skip(f"oneDNN is not usable here: {REASON}", allow_module_level=True)

from crossbow.kernels.cpu.library import Cpu

__all__ = [
    "FLOAT32",
    "ONEDNN",
    "REFERENCE",
    "SHAPES",
    "SINGLE",
    "Numbers",
    "both",
    "close",
    "draw",
    "execute",
    "memory",
    "state",
    "stored",
    "tensor",
    "unstored",
    "with_storage",
]

ONEDNN = Cpu()
