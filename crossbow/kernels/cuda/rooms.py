"""The CUDA library's registry that is searched after the one of cuDNN (`convolution.py`)."""

from crossbow.kernels.registry import Registry

CUDA = Registry("cuda")
"""Our own kernels, and cuBLAS's."""
