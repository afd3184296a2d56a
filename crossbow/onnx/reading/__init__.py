"""From ONNX to our operators."""
