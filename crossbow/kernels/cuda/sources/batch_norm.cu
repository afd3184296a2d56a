#include "channels.cuh"
#include "batch_norm.cuh"

// Batch normalisation in two kernels for each direction, which divide channels among blocks.

// The first of two kernels. count (may be null) is copied, because count_next may share its memory.
KERNEL batch_norm_statistics(const stored *x, const real *count, double *sums, real *counted, Channels g) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    if (count && blockIdx.x == 0 && threadIdx.x == 0) counted[0] = count[0];
    reduce_part(g, w, deviations(w, x), sums, shared);
}

KERNEL batch_norm_normalise(
    const stored *x, const stored *addend, const real *weights, const real *bias, const double *sums, const real *counted,
    const real *running_mean, const real *running_variance, real *running_mean_next, real *running_variance_next,
    real *count_next, real *kept, stored *y, Channels g, double epsilon, double fraction, int relu
) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    if (counted && blockIdx.x == 0 && threadIdx.x == 0) count_next[0] = counted[0] + 1;
    Sums totals = reduce_parts(g, w, sums, shared);
    if (!w.valid) return;
    Running running = {running_mean,          running_variance, counted, running_mean_next,
                       running_variance_next, epsilon,          fraction};
    normalise(w, x, addend, y, observe(g, w, totals, x, weights, bias, kept, running), relu);
}

KERNEL batch_norm_inference(const stored *x, const stored *addend, const real *weights, const real *bias,
                            const real *running_mean, const real *running_variance, stored *y, Channels g, real epsilon,
                            int relu) {
    Walk w = walk(g);
    if (!w.valid) return;
    Normalisation normalisation;
    for (int c = 0; c < CHANNELS; ++c) {
        real inverse = 1 / sqrt(running_variance[w.number + c] + epsilon);
        normalisation.set(c, w, weights, bias, running_mean[w.number + c], inverse);
    }
    normalise(w, x, addend, y, normalisation, relu);
}

// The first of two kernels. The gradient of the addend (may be null) may be stored over dy.
KERNEL batch_norm_products(const stored *x, const stored *y, const stored *dy, const real *weights, const real *bias,
                           const real *kept, double *sums, stored *addend_gradient, Channels g, int relu) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    Sums own = {};
    if (w.valid) {
        Gradient gradient = gradient_of(g, w, x, y, dy, weights, bias, kept, relu);
        own = gradient_sums(g, w, gradient, kept, addend_gradient);
    }
    reduce_part(g, w, own, sums, shared);
}

// With an addend, dy is its gradient, and `relu` is LINEAR.
KERNEL batch_norm_backward(const stored *x, const stored *dy, const real *weights, const real *bias, const real *kept,
                           const double *sums, real *weights_gradient, real *bias_gradient, stored *dx, Channels g,
                           int relu) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    Sums totals = reduce_parts(g, w, sums, shared);
    store_gradients(g, w, totals, weights_gradient, bias_gradient);
    if (!w.valid || !dx) return;
    Gradient gradient = gradient_of(g, w, x, 0, dy, weights, bias, kept, relu);
    store_input_gradient(g, w, gradient, totals, kept, dx);
}
