// Operators with variables for each channel: batch normalisation and learned scales. (A channel is a set of elements
// that share a variable; it may also be a column of an image.)
//
// Every pass over a tensor divides it in the same way. A block processes one part of the values of `width` adjacent
// channels. Its thread t processes channel t mod width, with a constant stride between values. So a thread reads its
// variables once, finds its next element without a division, and adjacent threads read adjacent memory: `width` is 1
// if the values of a channel are adjacent, and at least 32 if the channels are.
//
// Sums over the values have two stages: for each part (`sums`: parts × 2 × channels), then over the parts, always in
// the same order.
//
// Variables and statistics are of type `real`, independent of the tensors' type.

struct Channels {
    int64 count, values;        // channels, and values of each channel
    int64 width, parts, part;   // channels of a block, number of parts, values of a part
    int64 minor;                // channel i is (i / minor, i mod minor)
    int64 stride[2];            // strides of these two indices in memory,
    int64 number[2];            // and in the variables
    int64 inner;                // value i is (i / inner, i mod inner)
    int64 value_stride[2];
};

enum { CHUNK = 8 };  // elements that a thread loads before it uses the first one

// The elements of a thread.
struct Walk {
    bool valid;        // whether the thread has a channel
    int64 channel;     // its index in memory order,
    int64 number;      // and in the variables
    int64 first;       // position of the channel's first value
    int64 at, left;    // position of the next element, and number of remaining elements
    int64 index, inner, index_step, step, wrap;

    __device__ inline int64 next() {
        int64 here = at;
        at += step;
        index += index_step;
        if (index >= inner) {
            index -= inner;
            at += wrap;
        }
        --left;
        return here;
    }
};

__device__ inline Walk walk(const Channels &g) {
    unsigned width = (unsigned)g.width, tiles = (unsigned)((g.count + g.width - 1) / g.width);
    unsigned lanes = blockDim.x / width, lane = threadIdx.x / width, part = blockIdx.x / tiles;
    Walk w;
    w.channel = (int64)(blockIdx.x % tiles) * width + threadIdx.x % width;
    w.valid = w.channel < g.count;
    int64 major = w.channel / g.minor, minor = w.channel - major * g.minor;
    w.number = major * g.number[0] + minor * g.number[1];
    w.first = major * g.stride[0] + minor * g.stride[1];
    int64 begin = part * g.part, end = begin + g.part < g.values ? begin + g.part : g.values;
    int64 value = begin + lane, outer = value / g.inner, outer_step = lanes / g.inner;
    w.left = w.valid && value < end ? (end - value + lanes - 1) / lanes : 0;
    w.inner = g.inner;
    w.index = value - outer * g.inner;
    w.index_step = lanes - outer_step * g.inner;
    w.at = w.first + outer * g.value_stride[0] + w.index * g.value_stride[1];
    w.step = outer_step * g.value_stride[0] + w.index_step * g.value_stride[1];
    w.wrap = g.value_stride[0] - g.inner * g.value_stride[1];
    return w;
}

// store(place, load(place)) for each of a thread's elements. Inputs and outputs may share memory.
template <class Load, class Store> __device__ inline void map(Walk w, Load load, Store store) {
    int64 at[CHUNK];
    decltype(load((int64)0)) loaded[CHUNK];
    while (w.left >= CHUNK) {
        for (int k = 0; k < CHUNK; ++k) loaded[k] = load(at[k] = w.next());
        for (int k = 0; k < CHUNK; ++k) store(at[k], loaded[k]);
    }
    while (w.left > 0) {
        int64 here = w.next();
        store(here, load(here));
    }
}

// For each thread, the sum of the values of all threads with the same number modulo `width`.
__device__ inline double reduce_lanes(double value, double *shared, unsigned width) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half >= width; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    double sum = shared[threadIdx.x % width];
    __syncthreads();
    return sum;
}

struct Sums {
    double first, second;
};

// Store a part's two sums for each of the block's channels, for the second stage.
__device__ inline void reduce_part(const Channels &g, const Walk &w, Sums own, double *sums, double *shared) {
    own.first = reduce_lanes(own.first, shared, (unsigned)g.width);
    own.second = reduce_lanes(own.second, shared, (unsigned)g.width);
    if (w.valid && threadIdx.x < g.width) {
        int64 tiles = (g.count + g.width - 1) / g.width;
        double *part = sums + blockIdx.x / tiles * 2 * g.count;
        part[w.channel] = own.first;
        part[g.count + w.channel] = own.second;
    }
}

// The second stage: a block processes `width` channels (any number), its thread t channel t mod width. `channel`: that
// of the thread, or the number of channels if it has none; `first`: whether it is the channel's first thread.
struct Totals {
    int64 channel;
    bool first;
    Sums sums;
};

__device__ inline Totals reduce_parts(const Channels &g, const double *sums, unsigned width, double *shared) {
    Totals t = {(int64)blockIdx.x * width + threadIdx.x % width, threadIdx.x < width, {0, 0}};
    if (t.channel >= g.count) {
        t.channel = g.count;
        t.first = false;
    } else {
        for (int64 part = threadIdx.x / width; part < g.parts; part += blockDim.x / width) {
            t.sums.first += sums[part * 2 * g.count + t.channel];
            t.sums.second += sums[(part * 2 + 1) * g.count + t.channel];
        }
    }
    t.sums.first = reduce_lanes(t.sums.first, shared, width);
    t.sums.second = reduce_lanes(t.sums.second, shared, width);
    return t;
}

__device__ inline int64 number_of(const Channels &g, int64 channel) {
    int64 major = channel / g.minor;
    return major * g.number[0] + (channel - major * g.minor) * g.number[1];
}

struct Pair {
    real x, dy;
};

// Σ dy and Σ dy · x over a thread's elements, where load(place) returns dy and x.
template <class Load> __device__ inline Sums products(Walk w, Load load) {
    Sums sums = {0, 0};
    while (w.left >= CHUNK) {  // few enough for a sum in their own type
        Pair pair[CHUNK];
        for (int k = 0; k < CHUNK; ++k) pair[k] = load(w.next());
        real sum = 0, product = 0;
        for (int k = 0; k < CHUNK; ++k) {
            sum += pair[k].dy;
            product += pair[k].dy * pair[k].x;
        }
        sums.first += sum;
        sums.second += product;
    }
    while (w.left > 0) {
        Pair pair = load(w.next());
        sums.first += pair.dy;
        sums.second += (double)pair.dy * pair.x;
    }
    return sums;
}

// Batch normalisation.

// The normalised element. The mean is subtracted first, before anything is rounded, because of cancellation.
struct Normalisation {
    real mean, scale, offset;
    __device__ inline real operator()(real x) const { return (x - mean) * scale + offset; }
};

__device__ inline Normalisation normalisation(const Walk &w, const real *weights, const real *bias, real mean,
                                              real inverse) {
    return {mean, weights[w.number] * inverse, bias ? bias[w.number] : (real)0};
}

__device__ inline void normalise(const Walk &w, const stored *x, stored *y, const Normalisation &n, int relu) {
    map(
        w, [&](int64 at) { return x[at]; },
        [&](int64 at, real value) {
            real normalised = n(value);
            y[at] = relu && normalised < 0 ? (real)0 : normalised;  // NaN stays NaN
        });
}

// Σ (x − origin) and Σ (x − origin)² of every part. The origin is the channel's first value, to avoid cancellation. A
// chunk's squares are relative to its own mean, so that the type of x is accurate enough.
KERNEL batch_norm_statistics(const stored *x, double *sums, Channels g) {
    SHARED(double, shared);
    Walk w = walk(g);
    Sums own = {0, 0};
    double origin = w.valid ? x[w.first] : (real)0;
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
    reduce_part(g, w, own, sums, shared);
}

// The mean and the inverse standard deviation of every channel, and the running statistics. With `count`, the number of
// earlier tasks, these are means over all tasks; otherwise `fraction` is the weight of the new values.
KERNEL batch_norm_observe(const stored *x, const double *sums, real *kept, const real *running_mean,
                          const real *running_variance, const real *count, real *running_mean_next,
                          real *running_variance_next, Channels g, int width, double epsilon, double fraction) {
    SHARED(double, shared);
    Totals t = reduce_parts(g, sums, (unsigned)width, shared);
    if (!t.first) return;
    int64 major = t.channel / g.minor, c = number_of(g, t.channel);
    double origin = x[major * g.stride[0] + (t.channel - major * g.minor) * g.stride[1]];
    double n = (double)g.values, mean = origin + t.sums.first / n;
    double variance = (t.sums.second - t.sums.first * t.sums.first / n) / n;
    if (variance < 0) variance = 0;
    kept[c] = (real)mean;
    kept[g.count + c] = (real)(1 / sqrt(variance + epsilon));
    if (count) fraction = 1 / (1 + (double)count[0]);
    double unbiased = g.values > 1 ? variance * (n / (n - 1)) : variance;
    running_mean_next[c] = (real)((1 - fraction) * running_mean[c] + fraction * mean);
    running_variance_next[c] = (real)((1 - fraction) * running_variance[c] + fraction * unbiased);
}

// The two counts may share memory: it is incremented here, after the last read.
KERNEL batch_norm_normalise(const stored *x, const real *weights, const real *bias, const real *kept, const real *count,
                            stored *y, real *count_next, Channels g, int relu) {
    if (count && blockIdx.x == 0 && threadIdx.x == 0) count_next[0] = count[0] + 1;
    Walk w = walk(g);
    if (!w.valid) return;
    normalise(w, x, y, normalisation(w, weights, bias, kept[w.number], kept[g.count + w.number]), relu);
}

KERNEL batch_norm_inference(const stored *x, const real *weights, const real *bias, const real *running_mean,
                            const real *running_variance, stored *y, Channels g, real epsilon, int relu) {
    Walk w = walk(g);
    if (!w.valid) return;
    real inverse = 1 / sqrt(running_variance[w.number] + epsilon);
    normalise(w, x, y, normalisation(w, weights, bias, running_mean[w.number], inverse), relu);
}

// The gradient of a normalised value followed by a ReLU, as activation_backward computes it.
__device__ inline real before_relu(real normalised, real dy) { return dy * (normalised <= 0 ? (real)0 : (real)1); }

// Σ dy and Σ dy · x̂ of every part. relu: dy is first multiplied by the derivative of a ReLU of the normalised value.
KERNEL batch_norm_products(const stored *x, const stored *dy, const real *weights, const real *bias, const real *kept,
                           double *sums, Channels g, int relu) {
    SHARED(double, shared);
    Walk w = walk(g);
    Sums own = {0, 0};
    if (w.valid) {
        real mean = kept[w.number], inverse = kept[g.count + w.number];
        if (relu) {
            Normalisation n = normalisation(w, weights, bias, mean, inverse);
            own = products(w, [&](int64 at) { return Pair{x[at] - mean, before_relu(n(x[at]), dy[at])}; });
        } else {
            own = products(w, [&](int64 at) { return Pair{x[at] - mean, dy[at]}; });
        }
        own.second *= inverse;
    }
    reduce_part(g, w, own, sums, shared);
}

// sums: the totals. dx may be dy.
KERNEL batch_norm_backward(const stored *x, const stored *dy, const real *weights, const real *bias, const real *kept,
                           const double *sums, stored *dx, Channels g, int relu) {
    Walk w = walk(g);
    if (!w.valid) return;
    real mean = kept[w.number], inverse = kept[g.count + w.number];
    Normalisation n = normalisation(w, weights, bias, mean, inverse);
    real common = (real)(sums[w.channel] / (double)g.values);
    real slope = (real)(sums[g.count + w.channel] / (double)g.values * inverse);
    map(
        w, [&](int64 at) { return Pair{x[at], dy[at]}; },
        [&](int64 at, Pair pair) {
            real gradient = relu ? before_relu(n(pair.x), pair.dy) : pair.dy;
            dx[at] = (gradient - common - (pair.x - mean) * slope) * n.scale;
        });
}

// Batch normalisation and scales.

// The totals of all parts: the gradients of the variables (bias may be null), also written to the first part.
KERNEL channel_gradients(double *sums, real *weights_gradient, real *bias_gradient, Channels g, int width) {
    SHARED(double, shared);
    Totals t = reduce_parts(g, sums, (unsigned)width, shared);
    if (!t.first) return;
    int64 number = number_of(g, t.channel);
    weights_gradient[number] = (real)t.sums.second;
    if (bias_gradient) bias_gradient[number] = (real)t.sums.first;
    sums[t.channel] = t.sums.first;
    sums[g.count + t.channel] = t.sums.second;
}

// Scales, and offsets (may be null). y may be x.

KERNEL scaling_forward(const stored *x, const real *weights, const real *bias, stored *y, Channels g) {
    Walk w = walk(g);
    if (!w.valid) return;
    real factor = weights[w.number], offset = bias ? bias[w.number] : (real)0;
    map(
        w, [&](int64 at) { return x[at]; },
        [&](int64 at, real value) { y[at] = bias ? factor * value + offset : factor * value; });
}

KERNEL scaling_products(const stored *x, const stored *dy, double *sums, Channels g) {
    SHARED(double, shared);
    Walk w = walk(g);
    reduce_part(g, w, products(w, [&](int64 at) { return Pair{x[at], dy[at]}; }), sums, shared);
}
