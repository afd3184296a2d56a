"""Kernels for NVIDIA GPUs: cuDNN and cuBLAS on CuPy's memory and streams, and our own kernels (`sources/*.cu`)."""
