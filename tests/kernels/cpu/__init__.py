"""oneDNN's kernels against the reference library."""

from crossbow.kernels.cpu.onednn.binding import why_unusable

REASON = why_unusable()
