"""Side-by-side comparisons with PyTorch, printed as ratios."""

from crossbow.console import open_standard_streams

open_standard_streams()  # what took an hour to measure is not lost for want of a "×" in the terminal's encoding
