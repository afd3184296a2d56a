"""Convolutions and matrix products of our own, in vectors of the width that the processor has."""
