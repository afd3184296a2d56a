// Small kernels in one: series.py appends their sources, each in a namespace, and a kernel that calls one after the
// other.

#define PART __device__ inline void
