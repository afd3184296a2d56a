#include "channels.cuh"

// Learned scales.

// Scales, and offsets (may be null). y may be x.
KERNEL scaling_forward(const stored *x, const real *weights, const real *bias, stored *y, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    real factor = weights[w.number], offset = bias ? bias[w.number] : (real)0;
    map(
        w, [&](Index at) { return (real)x[at]; },
        [&](Index at, real value) { y[at] = bias ? factor * value + offset : factor * value; });
}

// Σ dy · x and Σ dy of every part.
KERNEL scaling_products(const stored *x, const stored *dy, double *sums, Channels g) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    Sums own = products(w, [&](Index at) { return Pair{x[at], dy[at]}; }, [](Index, Pair) {});
    reduce_part(g, w, own, sums, shared);
}

// The gradients of the variables (bias may be null) from the sums of all parts.
KERNEL scaling_gradients(const double *sums, real *weights_gradient, real *bias_gradient, Channels g) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    store_gradients(g, w, reduce_parts(g, w, sums, shared), weights_gradient, bias_gradient);
}
