"""The size of the processor's vectors, and of a tile that fits in its registers."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import llvmlite.binding
import numba


@dataclass(frozen=True)
class Vectors:
    """Vectors of float32, and the largest tile of sums that fits in the registers together with its operands."""

    lanes: int
    """Number of elements of a vector."""
    rows: int
    """Number of rows of a tile."""
    columns: int
    """Number of vectors in a row of a tile."""
    fused: bool
    """Whether one instruction computes a product and a sum."""


def _features() -> set[str]:
    """The processor's features that compiled code may use."""
    named: str | None = numba.config.CPU_FEATURES  # type: ignore[attr-defined]
    if named:
        return {feature[1:] for feature in named.split(",") if feature.startswith("+")}
    return {name for name, present in llvmlite.binding.get_host_cpu_features().items() if present}


def _vectors() -> Vectors:
    features = _features()
    if "avx512f" in features:
        return Vectors(lanes=16, rows=8, columns=3, fused=True)
    if "avx2" in features:
        return Vectors(lanes=8, rows=6, columns=2, fused="fma" in features)
    if platform.machine() in ("arm64", "aarch64"):
        return Vectors(lanes=4, rows=8, columns=3, fused=True)
    return Vectors(lanes=4, rows=6, columns=2, fused="fma" in features)


VECTORS = _vectors()
MEASURED_LANES = 8, 16
"""Numbers of lanes for which our own convolutions were compared with oneDNN's. With others, oneDNN's are preferred."""


def measured() -> bool:
    return VECTORS.lanes in MEASURED_LANES
