"""Translation of ONNX operators to Crossbow's."""
