"""oneDNN's kernels against the reference library."""

from crossbow.kernels.cpu.onednn.shared_library import why_unusable

REASON = why_unusable()
