"""torchvision without its compiled operators."""

from __future__ import annotations

import importlib
from typing import Any

_DECLARED: list[Any] = []
"""Keeps the declarations alive."""


def import_torchvision(module: str) -> Any:
    """The module `torchvision.MODULE`.

    A torchvision that was built for GPUs cannot load its operators without CUDA's libraries, and then fails to import
    because two operators do not exist. They are declared here. Transforms and classifiers do not use them.
    """
    import torch

    name = f"torchvision.{module}"
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
        return importlib.import_module(name)
