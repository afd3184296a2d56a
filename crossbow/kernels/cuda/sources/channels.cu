#include "channels.cuh"

// Learned scales.

// Scales, and offsets (may be null). y may be x.
KERNEL scaling_forward(const stored *x, const real *weights, const real *bias, stored *y, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    real factor[CHANNELS], offset[CHANNELS];
    for (int c = 0; c < CHANNELS; ++c) {
        factor[c] = weights[w.number + c];
        offset[c] = bias ? bias[w.number + c] : (real)0;
    }
    map(
        w, [&](Index at) { return read(x, at); },
        [&](Index at, Run run) {
            for (int k = 0; k < RUN; ++k) {
                real product = factor[k % CHANNELS] * run.value[k];
                run.value[k] = bias ? product + offset[k % CHANNELS] : product;
            }
            write(y, at, run);
        });
}

// Σ dy · x and Σ dy of every part.
KERNEL scaling_products(const stored *x, const stored *dy, double *sums, Channels g) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    Sums own = products(w, [&](Index at) { return Pair{read(x, at), read(dy, at)}; }, [](Index, const Pair &) {});
    reduce_part(g, w, own, sums, shared);
}

// The gradients of the variables (bias may be null) from the sums of all parts.
KERNEL scaling_gradients(const double *sums, real *weights_gradient, real *bias_gradient, Channels g) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    store_gradients(g, w, reduce_parts(g, w, sums, shared), weights_gradient, bias_gradient);
}

// Trained slopes of a rectifier. At NaN, all results are NaN.

struct Slopes {
    real of[CHANNELS];
};

__device__ inline Slopes slopes_of(const real *weights, const Walk &w) {
    Slopes slopes;
    for (int c = 0; c < CHANNELS; ++c) slopes.of[c] = weights[w.number + c];
    return slopes;
}

KERNEL slope_forward(const stored *x, const real *weights, stored *y, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    Slopes slopes = slopes_of(weights, w);
    map(
        w, [&](Index at) { return read(x, at); },
        [&](Index at, Run run) {
            for (int k = 0; k < RUN; ++k) run.value[k] *= run.value[k] > 0 ? (real)1 : slopes.of[k % CHANNELS];
            write(y, at, run);
        });
}

// Σ dy · min(x, 0) and Σ dy of every part.
KERNEL slope_products(const stored *x, const stored *dy, double *sums, Channels g) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    auto load = [&](Index at) {
        Pair pair = {read(x, at), read(dy, at)};
        for (int k = 0; k < RUN; ++k) pair.x.value[k] = pair.x.value[k] > 0 ? (real)0 : pair.x.value[k];
        return pair;
    };
    reduce_part(g, w, products(w, load, [](Index, const Pair &) {}), sums, shared);
}

KERNEL slope_backward(const stored *x, const stored *dy, const real *weights, stored *dx, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    Slopes slopes = slopes_of(weights, w);
    map(
        w, [&](Index at) { return Pair{read(x, at), read(dy, at)}; },
        [&](Index at, Pair pair) {
            for (int k = 0; k < RUN; ++k) pair.dy.value[k] *= pair.x.value[k] > 0 ? (real)1 : slopes.of[k % CHANNELS];
            write(dx, at, pair.dy);
        });
}
