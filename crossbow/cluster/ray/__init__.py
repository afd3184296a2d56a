"""Ranks that Ray connects: actors on the nodes of a cluster."""
