// Numbers of 16 bits beside those of 32: tensors that go from one to the other, weights that kernels read, and gradients
// that they write. A gradient of 16 bits is that of the loss times a scale, so that small ones do not become zero.

// What a learner's scale is (crossbow/kernels/cuda/mixed.py). Every number is a float.
enum { SCALE = 0, OVERFLOWN = 1, STEADY = 2, OVERFLOWS = 3 };

// y ← x, and y ← factor · x where that is scaled. The tensors lie in the same order.
KERNEL narrow(const real *x, stored *y, int64 n, const float *scaling) {
    real factor = scaling ? scaling[SCALE] : (real)1;
    EACH(i, n) y[i] = x[i] * factor;
}

KERNEL widen(const stored *x, real *y, int64 n, const float *scaling) {
    real factor = scaling ? 1 / scaling[SCALE] : (real)1;
    EACH(i, n) y[i] = x[i] * factor;
}

// A task begins: its weights, and its scale (or null). After a gradient that was too large for 16 bits the scale becomes
// half of what it was; after `steady` tasks without, twice.
KERNEL narrow_weights(
    const real *weights, stored *narrowed, int64 n, float *scaling, float steady, float smallest, float largest
) {
    EACH(i, n) narrowed[i] = weights[i];
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

// Where a run's gradient is: among those of 16 bits; in its place, but scaled; or in its place.
enum { NARROW = 0, SCALED = 1, READY = 2 };

struct Run {
    int64 start, stop, kind;
};

// A task ends: its gradient, without the scale. A block takes a run. Whether a number is not finite is kept.
KERNEL widen_gradient(const stored *narrowed, real *gradient, const Run *runs, float *scaling) {
    Run run = runs[blockIdx.x];
    real factor = scaling && run.kind != READY ? 1 / scaling[SCALE] : (real)1;
    bool finite = true;
    for (int64 i = run.start + threadIdx.x; i < run.stop; i += blockDim.x) {
        real value = factor * (run.kind == NARROW ? (real)narrowed[i] : gradient[i]);
        finite = finite && isfinite(value);
        gradient[i] = value;
    }
    if (scaling && !finite) scaling[OVERFLOWN] = 1;  // whoever writes it, writes the same
}

// After an overflow the gradient counts as zero, unless the scale cannot become smaller.
KERNEL discard_overflown(real *gradient, int64 n, const float *scaling, float smallest) {
    if (!scaling[OVERFLOWN] || scaling[SCALE] <= smallest) return;
    EACH(i, n) gradient[i] = 0;
}
