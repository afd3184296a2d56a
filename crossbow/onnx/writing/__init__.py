"""Translation of Crossbow's operators to ONNX."""
