// Conversions between 16-bit and 32-bit numbers: of tensors, of weights that kernels read, and of gradients that they
// write. A 16-bit gradient is multiplied by a loss scale, so that small values do not become zero.

// A learner's loss scale (crossbow/kernels/cuda/mixed.py). All members are floats.
enum { SCALE = 0, OVERFLOWN = 1, STEADY = 2, OVERFLOWS = 3 };

// y ← x or, if scaled, y ← factor · x. The tensors have the same order in memory.
KERNEL narrow(const real *x, stored *y, Size n, const float *scaling) {
    real factor = scaling ? scaling[SCALE] : (real)1;
    transform(n, y, [=](Index, real value) { return value * factor; }, x);
}

KERNEL widen(const stored *x, real *y, Size n, const float *scaling) {
    real factor = scaling ? 1 / scaling[SCALE] : (real)1;
    transform(n, y, [=](Index, real value) { return value * factor; }, x);
}

// The start of a task: its weights and its loss scale (may be null). The scale is halved after a gradient that overflowed
// 16 bits, and doubled after `steady` tasks without an overflow.
KERNEL narrow_weights(
    const real *weights, stored *narrowed, Size n, float *scaling, float steady, float smallest, float largest
) {
    transform(n, narrowed, [](Index, real weight) { return weight; }, weights);
    if (scaling && blockIdx.x == 0 && threadIdx.x == 0) {
        if (scaling[OVERFLOWN]) {
            if (scaling[SCALE] > smallest) scaling[SCALE] /= 2;
            scaling[STEADY] = 0;
            scaling[OVERFLOWS] += 1;
        } else if (++scaling[STEADY] >= steady) {
            if (scaling[SCALE] < largest) scaling[SCALE] *= 2;
            scaling[STEADY] = 0;
        }
        scaling[OVERFLOWN] = 0;
    }
}

// The gradient of a run: in 16 bits; in place and scaled; or in place.
enum { NARROW = 0, SCALED = 1, READY = 2 };

struct Run {
    int64 start, stop, kind;
};

// The end of a task: remove the scale from its gradient. One block per run. Records whether a number is not finite.
KERNEL widen_gradient(const stored *narrowed, real *gradient, const Run *runs, float *scaling) {
    Run run = runs[blockIdx.x];
    real factor = scaling && run.kind != READY ? 1 / scaling[SCALE] : (real)1;
    bool finite = true;
    for (Index i = run.start + threadIdx.x; i < run.stop; i += blockDim.x) {
        real value = factor * (run.kind == NARROW ? (real)narrowed[i] : gradient[i]);
        finite = finite && isfinite(value);
        gradient[i] = value;
    }
    if (scaling && !finite) scaling[OVERFLOWN] = 1;  // all threads write the same value
}

// After an overflow, the gradient becomes zero, unless the scale cannot decrease any further.
KERNEL discard_overflown(real *gradient, Size n, const float *scaling, float smallest) {
    if (!scaling[OVERFLOWN] || scaling[SCALE] <= smallest) return;
    transform(n, gradient, [](Index) { return (real)0; });
}
