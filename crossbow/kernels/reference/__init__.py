"""The reference kernels in plain NumPy. They are complete, and the specification of all other libraries."""

from crossbow.kernels.reference.library import Reference

__all__ = ["Reference"]
