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

// Trained slopes of a rectifier. At NaN, all results are NaN.

KERNEL slope_forward(const stored *x, const real *weights, stored *y, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    real slope = weights[w.number];
    map(w, [&](Index at) { return (real)x[at]; }, [&](Index at, real value) { y[at] = value > 0 ? value : slope * value; });
}

// Σ dy · min(x, 0) and Σ dy of every part.
KERNEL slope_products(const stored *x, const stored *dy, double *sums, Channels g) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    auto load = [&](Index at) {
        real value = x[at];
        return Pair{value > 0 ? (real)0 : value, dy[at]};
    };
    reduce_part(g, w, products(w, load, [](Index, Pair) {}), sums, shared);
}

KERNEL slope_backward(const stored *x, const stored *dy, const real *weights, stored *dx, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    real slope = weights[w.number];
    map(
        w, [&](Index at) { return Pair{x[at], dy[at]}; },
        [&](Index at, Pair pair) { dx[at] = pair.x > 0 ? pair.dy : slope * pair.dy; });
}
