"""ONNX: `load` converts a model to a SubGraph with its weights, `save` writes a context's base model.

Needs the package onnx: `pip install 'crossbow[onnx]'`.
"""

try:
    import onnx as _onnx  # noqa: F401 - the package; this one is crossbow.onnx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "crossbow.onnx needs the package onnx: pip install 'crossbow[onnx]'", name=error.name
    ) from error

from crossbow.onnx.loading import load
from crossbow.onnx.saving import save

__all__ = ["load", "save"]
