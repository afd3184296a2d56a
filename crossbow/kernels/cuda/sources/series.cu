// Small kernels in one: series.py appends their sources, each in a namespace, and a kernel that calls them in turn.

#define PART __device__ inline void
