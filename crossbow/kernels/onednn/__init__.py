"""The fast CPU kernels: oneDNN through a thin binding, and compiled passes around it.

Importing this package loads nothing; `crossbow.kernels.onednn.binding.why_unusable` says whether it can be used.
"""
