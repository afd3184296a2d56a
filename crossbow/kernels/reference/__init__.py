"""The reference kernels: NumPy, complete and plain. They are the specification of every other library."""

from crossbow.kernels.reference.library import Reference

__all__ = ["Reference"]
