"""Worked examples."""
