"""The CUDA library's registry that is searched after cuDNN's (`convolution.py`)."""

from crossbow.kernels.registry import Registry

CUDA = Registry("cuda")
"""Our own kernels, and cuBLAS's."""
