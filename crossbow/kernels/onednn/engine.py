"""The engine's own kernels: batches in, waits and signals."""
