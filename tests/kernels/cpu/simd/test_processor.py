"""Tiles fit the registers of the processor."""

from __future__ import annotations

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
