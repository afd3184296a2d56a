#include "channels.cuh"
#include "batch_norm.cuh"

// Batch normalisation in one kernel for each direction, in which a block processes all values of its channels.

// A block takes all values of `width` channels.
KERNEL __launch_bounds__(1024) batch_norm_training(
    const stored *x, const stored *addend, const real *weights, const real *bias, const real *running_mean,
    const real *running_variance, real *running_mean_next, real *running_variance_next, real *kept, stored *y, Channels g,
    double epsilon, double fraction, int relu
) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    Sums totals = reduce_lanes(deviations(w, x), shared, (unsigned)g.width);
    if (!w.valid) return;
    Running running = {running_mean, running_variance, 0, running_mean_next, running_variance_next, epsilon, fraction};
    normalise(w, x, addend, y, observe(g, w, totals, x, weights, bias, kept, running), relu);
}

// A block takes all values of `width` channels. The gradient of the addend (may be null) is stored first, also over dy, and then
// takes its place.
KERNEL __launch_bounds__(1024) batch_norm_gradient(
    const stored *x, const stored *y, const stored *dy, const real *weights, const real *bias, const real *kept,
    real *weights_gradient, real *bias_gradient, stored *addend_gradient, stored *dx, Channels g, int relu
) {
    SHARED(Sum, shared);
    Walk w = walk(g);
    Gradient gradient = {};
    Sums own = {};
    if (w.valid) {
        gradient = gradient_of(g, w, x, y, dy, weights, bias, kept, relu);
        own = gradient_sums(g, w, gradient, kept, addend_gradient);
    }
    Sums totals = reduce_lanes(own, shared, (unsigned)g.width);
    store_gradients(g, w, totals, weights_gradient, bias_gradient);
    if (!w.valid || !dx) return;
    if (addend_gradient) {
        gradient.dy = addend_gradient;
        gradient.relu = LINEAR;
    }
    store_input_gradient(g, w, gradient, totals, kept, dx);
}
