// Linear combinations of vectors, their norm, and adaptive steps. vector.py and adaptive.py append the kernels that they
// generate for given assignments.

typedef Pack<real, 1> One;
typedef Pack<real, PACK> Many;

// Rounded after every product and every sum, as in the reference. Otherwise the compiler would fuse some of them, and
// others in another kernel.
#ifdef __CUDA_ARCH__
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double plus(double a, double b) { return __dadd_rn(a, b); }
#else
inline real times(real a, real b) { return a * b; }
inline real plus(real a, real b) { return a + b; }
#endif

__device__ inline real sign(real v) { return v > 0 ? (real)1 : v < 0 ? (real)-1 : v; }

// A single block: the sum of n numbers.
KERNEL add_up(const double *numbers, Size n, double *sum) {
    SHARED(double, shared);
    double total = 0;
    for (Index i = threadIdx.x; i < n; i += blockDim.x) total += numbers[i];
    total = reduce(total, shared);
    if (threadIdx.x == 0) *sum = total;
}

// A single thread: multiply the coefficients whose bit in `marks` is set by min(1, limit / √Σ squares).
KERNEL clip_coefficients(
    const double *squares, Size parties, double limit, const double *coefficients, double *clipped, Size n, uint64 marks
) {
    double square = 0;
    for (Index i = 0; i < parties; ++i) square += squares[i];
    double norm = sqrt(square);
    double factor = norm <= limit ? 1 : limit / norm;  // keeps NaN
    for (Index i = 0; i < n; ++i) clipped[i] = marks >> i & 1 ? coefficients[i] * factor : coefficients[i];
}
