"""Side-by-side comparisons with PyTorch, printed as ratios."""
