"""Models in and out."""
