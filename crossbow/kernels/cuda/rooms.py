"""The room of the CUDA library that is asked after cuDNN's (`convolution.py`)."""

from crossbow.kernels.registry import Registry

CUDA = Registry("cuda")
"""Kernels of our own, and cuBLAS's."""
