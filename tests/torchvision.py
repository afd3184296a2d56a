"""torchvision's networks, to compare with."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

MISSING = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
NEEDS_TORCHVISION = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed, of torch and torchvision: {', '.join(MISSING)}"
)


def torchvision_models() -> Any:
    """The architectures. torchvision's compiled operators need CUDA's libraries, even to be imported, where it was
    built for GPUs: those that it looks for then are declared instead. No classifier uses them."""
    import torch

    try:
        import torchvision
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision.models
