"""The fast CPU kernels: our own convolutions (`simd/`), oneDNN's (`onednn/`), and compiled passes (`passes/`).

Importing this package loads nothing.
"""
