"""Kernels for NVIDIA GPUs: cuDNN and cuBLAS on CuPy's memory and streams, and kernels of our own (`sources/*.cu`)."""
