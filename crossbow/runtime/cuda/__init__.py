"""The runtime for NVIDIA GPUs: CUDA streams, learners whose tasks are CUDA graphs, and their ticks."""
