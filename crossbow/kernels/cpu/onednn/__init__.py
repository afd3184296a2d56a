"""oneDNN's primitives through a thin binding."""
