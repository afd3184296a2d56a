"""From our operators to ONNX."""
