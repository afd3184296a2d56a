
// Batch normalisation. The ReLU after it and the sum with another tensor (`addend`, may be null) before that are part of
// the same passes.

// For each of a thread's channels. The mean is subtracted first, before anything is rounded, because of cancellation.
struct Normalisation {
    real mean[CHANNELS], scale[CHANNELS], offset[CHANNELS];

    __device__ inline void set(int c, const Walk &w, const real *weights, const real *bias, real its_mean, real inverse) {
        mean[c] = its_mean;
        scale[c] = weights[w.number + c] * inverse;
        offset[c] = bias ? bias[w.number + c] : (real)0;
    }

    // x: element k of a run.
    __device__ inline real operator()(int k, real x) const {
        return (x - mean[k % CHANNELS]) * scale[k % CHANNELS] + offset[k % CHANNELS];
    }
};

__device__ inline void normalise(const Walk &w, const stored *x, const stored *addend, stored *y, const Normalisation &n,
                                 int relu) {
    map(
        w, [&](Index at) { return Pair{read(x, at), read(addend, at)}; },
        [&](Index at, const Pair &pair) {
            Run run;
            for (int k = 0; k < RUN; ++k) {
                real value = n(k, pair.x.value[k]);
                if (addend) value += pair.dy.value[k];
                run.value[k] = relu && value < 0 ? (real)0 : value;  // NaN stays NaN
            }
            write(y, at, run);
        });
}

// Σ (x − origin) and Σ (x − origin)² over a thread's runs. The origin is the channel's first value, to avoid
// cancellation. A chunk's squares are relative to its own mean, so that the type of x is accurate enough.
__device__ inline Sums deviations(Walk w, const stored *x) {
    const int OF_A_CHANNEL = CHUNK / CHANNELS;
    Sums own = {};
    Run origin = {};
    if (w.valid) {
        for (int c = 0; c < CHANNELS; ++c) origin.value[c] = x[w.first * RUN + c];
    }
    while (w.left >= RUNS) {
        Run v[RUNS];
        for (int r = 0; r < RUNS; ++r) v[r] = read(x, w.next());
        real first[CHANNELS], sum[CHANNELS] = {}, squares[CHANNELS] = {};
        for (int c = 0; c < CHANNELS; ++c) first[c] = v[0].value[c];
        for (int r = 0; r < RUNS; ++r) {
            for (int k = 0; k < RUN; ++k) sum[k % CHANNELS] += v[r].value[k] -= first[k % CHANNELS];
        }
        for (int r = 0; r < RUNS; ++r) {
            for (int k = 0; k < RUN; ++k) {
                real distance = v[r].value[k] - sum[k % CHANNELS] / OF_A_CHANNEL;
                squares[k % CHANNELS] += distance * distance;
            }
        }
        for (int c = 0; c < CHANNELS; ++c) {
            double distance = (double)first[c] - origin.value[c], whole = OF_A_CHANNEL * distance + sum[c];
            distance += sum[c] / OF_A_CHANNEL;
            own.of[c] += Sum{whole, OF_A_CHANNEL * distance * distance + squares[c]};
        }
    }
    while (w.left > 0) {
        Run run = read(x, w.next());
        for (int k = 0; k < RUN; ++k) {
            double distance = (double)run.value[k] - origin.value[k % CHANNELS];
            own.of[k % CHANNELS] += Sum{distance, distance * distance};
        }
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

// The mean and the inverse standard deviation of each channel. One thread also stores them, and the running statistics.
__device__ inline Normalisation observe(const Channels &g, const Walk &w, const Sums &totals, const stored *x,
                                        const real *weights, const real *bias, real *kept, const Running &running) {
    Normalisation normalisation;
    for (int c = 0; c < CHANNELS; ++c) {
        Sum total = totals.of[c];
        double origin = (real)x[w.first * RUN + c], n = (double)g.values * VALUES, mean = origin + total.first / n;
        double variance = (total.second - total.first * total.first / n) / n;
        if (variance < 0) variance = 0;
        real rounded = (real)mean, inverse = (real)(1 / sqrt(variance + running.epsilon));
        if (writes_variables(g, w)) {
            Index i = w.number + c;
            kept[i] = rounded;
            kept[g.count * CHANNELS + i] = inverse;
            double fraction = running.count ? 1 / (1 + (double)running.count[0]) : running.fraction;
            double unbiased = n > 1 ? variance * (n / (n - 1)) : variance;
            running.mean_next[i] = (real)((1 - fraction) * running.mean[i] + fraction * mean);
            running.variance_next[i] = (real)((1 - fraction) * running.variance[i] + fraction * unbiased);
        }
        normalisation.set(c, w, weights, bias, rounded, inverse);
    }
    return normalisation;
}

// The gradient of the normalised value: dy times the derivative of the ReLU, as activation_backward computes it.
enum { LINEAR = 0, OF_NORMALISED = 1, OF_OUTPUT = 2 };  // of nothing, of the normalised value, or of y (with a sum)

struct Gradient {
    const stored *x, *y, *dy;
    Normalisation n;
    int relu;

    __device__ inline Pair operator()(Index at) const {
        Pair pair = {read(x, at), read(dy, at)};
        Run output = {};
        if (relu == OF_OUTPUT) output = read(y, at);
        for (int k = 0; k < RUN; ++k) {
            if (relu == OF_NORMALISED) pair.dy.value[k] *= n(k, pair.x.value[k]) <= 0 ? (real)0 : (real)1;
            if (relu == OF_OUTPUT) pair.dy.value[k] *= output.value[k] <= 0 ? (real)0 : (real)1;
        }
        return pair;
    }
};

// kept: the mean of every channel, and then the inverse of its standard deviation.
__device__ inline real inverse_of(const Channels &g, const Walk &w, const real *kept, int c) {
    return kept[g.count * CHANNELS + w.number + c];
}

__device__ inline Gradient gradient_of(const Channels &g, const Walk &w, const stored *x, const stored *y,
                                       const stored *dy, const real *weights, const real *bias, const real *kept,
                                       int relu) {
    Gradient gradient = {x, y, dy, {}, relu};
    for (int c = 0; c < CHANNELS; ++c) {
        gradient.n.set(c, w, weights, bias, kept[w.number + c], inverse_of(g, w, kept, c));
    }
    return gradient;
}

// Σ gradient and Σ gradient · x̂ over a thread's runs. Stores the gradient of the addend, unless it is null.
__device__ inline Sums gradient_sums(const Channels &g, const Walk &w, const Gradient &gradient, const real *kept,
                                     stored *addend_gradient) {
    Sums own = products(
        w,
        [&](Index at) {
            Pair pair = gradient(at);
            for (int k = 0; k < RUN; ++k) pair.x.value[k] -= gradient.n.mean[k % CHANNELS];
            return pair;
        },
        [&](Index at, const Pair &pair) {
            if (addend_gradient) write(addend_gradient, at, pair.dy);
        });
    for (int c = 0; c < CHANNELS; ++c) own.of[c].second *= inverse_of(g, w, kept, c);
    return own;
}

// The gradient of x. It may share the memory of dy.
__device__ inline void store_input_gradient(const Channels &g, const Walk &w, const Gradient &gradient,
                                            const Sums &totals, const real *kept, stored *dx) {
    const Normalisation &n = gradient.n;
    real common[CHANNELS], slope[CHANNELS];
    for (int c = 0; c < CHANNELS; ++c) {
        double values = (double)g.values * VALUES;
        common[c] = (real)(totals.of[c].first / values);
        slope[c] = (real)(totals.of[c].second / values * inverse_of(g, w, kept, c));
    }
    map(w, gradient, [&](Index at, Pair pair) {
        for (int k = 0; k < RUN; ++k) {
            int c = k % CHANNELS;
            pair.dy.value[k] = (pair.dy.value[k] - common[c] - (pair.x.value[k] - n.mean[c]) * slope[c]) * n.scale[c];
        }
        write(dx, at, pair.dy);
    });
}
