"""Benchmarks, most of them comparisons with PyTorch, printed as ratios."""

from crossbow.console import open_standard_streams

open_standard_streams()  # a terminal without "×" must not lose an hour of measurements
