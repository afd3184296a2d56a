"""Passes over memory, compiled by numba."""
