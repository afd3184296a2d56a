#include "channels.cuh"

// Batch normalisation: in one kernel if a block takes all values of its channels, otherwise in two. The ReLU after it and
// the sum with another tensor (`addend`, may be null) before that are part of the same passes.

// The mean is subtracted first, before anything is rounded, because of cancellation.
struct Normalisation {
    real mean, scale, offset;
    __device__ inline real operator()(real x) const { return (x - mean) * scale + offset; }
};

__device__ inline Normalisation normalisation(const Walk &w, const real *weights, const real *bias, real mean,
                                              real inverse) {
    return {mean, weights[w.number] * inverse, bias ? bias[w.number] : (real)0};
}

__device__ inline void normalise(const Walk &w, const stored *x, const stored *addend, stored *y, const Normalisation &n,
                                 int relu) {
    map(
        w, [&](Index at) { return Pair{x[at], addend ? (real)addend[at] : (real)0}; },
        [&](Index at, Pair pair) {
            real value = n(pair.x);
            if (addend) value += pair.dy;
            y[at] = relu && value < 0 ? (real)0 : value;  // NaN stays NaN
        });
}

// Σ (x − origin) and Σ (x − origin)² over a thread's elements. The origin is the channel's first value, to avoid
// cancellation. A chunk's squares are relative to its own mean, so that the type of x is accurate enough.
__device__ inline Sums deviations(Walk w, const stored *x) {
    Sums own = {0, 0};
    double origin = w.valid ? (real)x[w.first] : (real)0;
    while (w.left >= CHUNK) {
        real v[CHUNK];
        for (int k = 0; k < CHUNK; ++k) v[k] = x[w.next()];
        real first = v[0], sum = 0, squares = 0;
        for (int k = 0; k < CHUNK; ++k) sum += v[k] -= first;
        real mean = sum / CHUNK;
        for (int k = 0; k < CHUNK; ++k) squares += (v[k] - mean) * (v[k] - mean);
        double distance = (double)first - origin;
        own.first += CHUNK * distance + sum;
        distance += mean;
        own.second += CHUNK * distance * distance + squares;
    }
    while (w.left > 0) {
        double distance = x[w.next()] - origin;
        own.first += distance;
        own.second += distance * distance;
    }
    return own;
}

// The running statistics before and after a task. With `count`, the number of earlier tasks, they are means over all
// tasks; otherwise `fraction` is the weight of the new values.
struct Running {
    const real *mean, *variance, *count;
    real *mean_next, *variance_next;
    double epsilon, fraction;
};

// The mean and the inverse standard deviation of a channel. One thread also stores them, and the running statistics.
__device__ inline Normalisation observe(const Channels &g, const Walk &w, Sums totals, const stored *x,
                                        const real *weights, const real *bias, real *kept, const Running &running) {
    double origin = (real)x[w.first], n = (double)g.values, mean = origin + totals.first / n;
    double variance = (totals.second - totals.first * totals.first / n) / n;
    if (variance < 0) variance = 0;
    real rounded = (real)mean, inverse = (real)(1 / sqrt(variance + running.epsilon));
    if (writes_variables(g, w)) {
        Index c = w.number;
        kept[c] = rounded;
        kept[g.count + c] = inverse;
        double fraction = running.count ? 1 / (1 + (double)running.count[0]) : running.fraction;
        double unbiased = g.values > 1 ? variance * (n / (n - 1)) : variance;
        running.mean_next[c] = (real)((1 - fraction) * running.mean[c] + fraction * mean);
        running.variance_next[c] = (real)((1 - fraction) * running.variance[c] + fraction * unbiased);
    }
    return normalisation(w, weights, bias, rounded, inverse);
}

#ifndef WIDE  // tensors with positions of 64 bits are too large for these

// One block for all values of a channel.
KERNEL __launch_bounds__(1024) batch_norm_training(
    const stored *x, const stored *addend, const real *weights, const real *bias, const real *running_mean,
    const real *running_variance, real *running_mean_next, real *running_variance_next, real *kept, stored *y, Channels g,
    double epsilon, double fraction, int relu
) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    Sums totals = reduce_lanes(deviations(w, x), shared, (unsigned)g.width);
    if (!w.valid) return;
    Running running = {running_mean, running_variance, 0, running_mean_next, running_variance_next, epsilon, fraction};
    normalise(w, x, addend, y, observe(g, w, totals, x, weights, bias, kept, running), relu);
}

#endif

// The first of two kernels. count (may be null) is copied, because count_next may share its memory.
KERNEL batch_norm_statistics(const stored *x, const real *count, double *sums, real *counted, Channels g) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    if (count && blockIdx.x == 0 && threadIdx.x == 0) counted[0] = count[0];
    reduce_part(g, w, deviations(w, x), sums, shared);
}

KERNEL batch_norm_normalise(
    const stored *x, const stored *addend, const real *weights, const real *bias, const double *sums, const real *counted,
    const real *running_mean, const real *running_variance, real *running_mean_next, real *running_variance_next,
    real *count_next, real *kept, stored *y, Channels g, double epsilon, double fraction, int relu
) {
    SHARED(Sums, shared);
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
    real inverse = 1 / sqrt(running_variance[w.number] + epsilon);
    normalise(w, x, addend, y, normalisation(w, weights, bias, running_mean[w.number], inverse), relu);
}

// The gradient of the normalised value: dy times the derivative of the ReLU, as activation_backward computes it.
enum { LINEAR = 0, OF_NORMALISED = 1, OF_OUTPUT = 2 };  // of nothing, of the normalised value, or of y (with a sum)

struct Gradient {
    const stored *x, *y, *dy;
    Normalisation n;
    int relu;

    __device__ inline Pair operator()(Index at) const {
        real value = x[at], gradient = dy[at];
        if (relu == OF_NORMALISED) gradient *= n(value) <= 0 ? (real)0 : (real)1;
        if (relu == OF_OUTPUT) gradient *= (real)y[at] <= 0 ? (real)0 : (real)1;
        return {value, gradient};
    }
};

__device__ inline Gradient gradient_of(const Channels &g, const Walk &w, const stored *x, const stored *y,
                                       const stored *dy, const real *weights, const real *bias, const real *kept,
                                       int relu) {
    return {x, y, dy, normalisation(w, weights, bias, kept[w.number], kept[g.count + w.number]), relu};
}

// Σ gradient and Σ gradient · x̂ over a thread's elements. Stores the gradient of the addend, unless it is null.
__device__ inline Sums gradient_sums(const Channels &g, const Walk &w, const Gradient &gradient, const real *kept,
                                     stored *addend_gradient) {
    Sums own = products(
        w,
        [&](Index at) {
            Pair pair = gradient(at);
            return Pair{pair.x - gradient.n.mean, pair.dy};
        },
        [&](Index at, Pair pair) {
            if (addend_gradient) addend_gradient[at] = pair.dy;
        });
    own.second *= kept[g.count + w.number];
    return own;
}

// The gradient of x. It may share the memory of dy.
__device__ inline void store_input_gradient(const Channels &g, const Walk &w, const Gradient &gradient, Sums totals,
                                            const real *kept, stored *dx) {
    double n = (double)g.values;
    real common = (real)(totals.first / n), slope = (real)(totals.second / n * kept[g.count + w.number]);
    map(
        w, gradient,
        [&](Index at, Pair pair) { dx[at] = (pair.dy - common - (pair.x - gradient.n.mean) * slope) * gradient.n.scale; });
}

#ifndef WIDE

// One block for all values of a channel. The gradient of the addend (may be null) is stored first, also over dy, and then
// takes its place.
KERNEL __launch_bounds__(1024) batch_norm_gradient(
    const stored *x, const stored *y, const stored *dy, const real *weights, const real *bias, const real *kept,
    real *weights_gradient, real *bias_gradient, stored *addend_gradient, stored *dx, Channels g, int relu
) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    Gradient gradient = {};
    Sums own = {0, 0};
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

#endif

// The first of two kernels. The gradient of the addend (may be null) may be stored over dy.
KERNEL batch_norm_products(const stored *x, const stored *y, const stored *dy, const real *weights, const real *bias,
                           const real *kept, double *sums, stored *addend_gradient, Channels g, int relu) {
    SHARED(Sums, shared);
    Walk w = walk(g);
    Sums own = {0, 0};
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
    SHARED(Sums, shared);
    Walk w = walk(g);
    Sums totals = reduce_parts(g, w, sums, shared);
    store_gradients(g, w, totals, weights_gradient, bias_gradient);
    if (!w.valid || !dx) return;
    Gradient gradient = gradient_of(g, w, x, 0, dy, weights, bias, kept, relu);
    store_input_gradient(g, w, gradient, totals, kept, dx);
}
