
// Operators with variables for each channel: batch normalisation and learned scales. (A channel is a set of elements
// that share a variable; it may also be a column of an image.)
//
// Every pass over a tensor divides it in the same way. A block processes one part of the values of `width` adjacent
// channels. Its thread t processes channel t mod width, with a constant stride between values. So a thread reads its
// variables once, finds its next element without a division, and adjacent threads read adjacent memory: `width` is 1
// if the values of a channel are adjacent.
//
// A thread reads and writes runs of adjacent elements, up to 16 bytes at once: VALUES values of its channel, or a value of
// each of CHANNELS adjacent channels. Both are constants (channels.py), at least one of which is 1. All of the above counts
// runs instead of values or channels.
//
// Sums over the values have two stages: over each part (`sums`: parts × channels × 2), then over the parts, always in
// the same order. Blocks that need the totals each compute them. If a block processes all values of its channels, one
// kernel does everything.
//
// Variables and statistics are of type `real`, independent of the tensors' type.

struct Channels {
    Size count, values;        // channels, and values of each channel
    Size width, parts, part;   // channels of a block, number of parts, values of a part
    Size minor;                // channel i is (i / minor, i mod minor)
    Size stride[2];            // strides of these two indices in memory,
    Size number[2];            // and in the variables
    Size inner;                // value i is (i / inner, i mod inner)
    Size value_stride[2];
};

enum { RUN = VALUES * CHANNELS };

// Number of elements that a thread loads before it uses the first one: 8, or 4 in double precision, which needs twice
// the registers.
enum { CHUNK = 32 / sizeof(real), RUNS = CHUNK / RUN };

// The runs of a thread.
struct Walk {
    bool valid;       // whether the thread has a channel
    Index channel;    // its index in memory order,
    Index number;     // and in the variables: of the first one, if there are several
    Index part;       // number of the block's part
    Index first;      // position of the channel's first value
    Index at, left;   // position of the next run, and number of remaining runs
    Index index, inner, index_step, step, wrap;

    // The position of the next run's first element.
    __device__ inline Index next() {
        Index here = at;
        at += step;
        index += index_step;
        if (index >= inner) {
            index -= inner;
            at += wrap;
        }
        --left;
        return here * RUN;
    }
};

__device__ inline Walk walk(const Channels &g) {
    Index tiles = (g.count + g.width - 1) / g.width, lanes = (Index)blockDim.x / g.width;
    Index lane = (Index)threadIdx.x / g.width, block = (Index)blockIdx.x;
    Walk w;
    w.part = block / tiles;
    w.channel = (block - w.part * tiles) * g.width + (Index)threadIdx.x % g.width;
    w.valid = w.channel < g.count;
    Index major = w.channel / g.minor, minor = w.channel - major * g.minor;
    w.number = (major * g.number[0] + minor * g.number[1]) * CHANNELS;
    w.first = major * g.stride[0] + minor * g.stride[1];
    Index begin = w.part * g.part, end = begin + g.part < g.values ? begin + g.part : g.values;
    Index value = begin + lane, outer = value / g.inner, outer_step = lanes / g.inner;
    w.left = w.valid && value < end ? (end - value + lanes - 1) / lanes : 0;
    w.inner = g.inner;
    w.index = value - outer * g.inner;
    w.index_step = lanes - outer_step * g.inner;
    w.at = w.first + outer * g.value_stride[0] + w.index * g.value_stride[1];
    w.step = outer_step * g.value_stride[0] + w.index_step * g.value_stride[1];
    w.wrap = g.value_stride[0] - g.inner * g.value_stride[1];
    return w;
}

// The numbers of a run.
struct Run {
    real value[RUN];
};

// 0 if x is null.
__device__ inline Run read(const stored *x, Index at) {
    Run run = {};
    if (x) {
        Pack<stored, RUN> pack = *(const Pack<stored, RUN> *)(x + at);
        for (int k = 0; k < RUN; ++k) run.value[k] = pack.value[k];
    }
    return run;
}

__device__ inline void write(stored *y, Index at, const Run &run) {
    Pack<stored, RUN> pack;
    for (int k = 0; k < RUN; ++k) pack.value[k] = run.value[k];
    *(Pack<stored, RUN> *)(y + at) = pack;
}

// store(position, load(position)) for each of a thread's runs. Inputs and outputs may share memory.
template <class Load, class Store> __device__ inline void map(Walk w, Load load, Store store) {
    Index at[RUNS];
    decltype(load((Index)0)) loaded[RUNS];
    while (w.left >= RUNS) {
        for (int r = 0; r < RUNS; ++r) loaded[r] = load(at[r] = w.next());
        for (int r = 0; r < RUNS; ++r) store(at[r], loaded[r]);
    }
    while (w.left > 0) {
        Index here = w.next();
        store(here, load(here));
    }
}

struct Sum {
    double first, second;

    __device__ inline Sum &operator+=(const Sum &other) {
        first += other.first;
        second += other.second;
        return *this;
    }
};

// For each of a thread's channels.
struct Sums {
    Sum of[CHANNELS];
};

// For each thread, the sums over all threads with the same number modulo `width`.
__device__ inline Sums reduce_lanes(const Sums &own, Sum *shared, unsigned width) {
    Sums sums;
    for (int c = 0; c < CHANNELS; ++c) {
        shared[threadIdx.x] = own.of[c];
        __syncthreads();
        for (unsigned half = blockDim.x / 2; half >= width; half /= 2) {
            if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
            __syncthreads();
        }
        sums.of[c] = shared[threadIdx.x % width];
        __syncthreads();
    }
    return sums;
}

// The position of a part's sums for a channel.
__device__ inline int64 place_of(const Channels &g, Index part, const Walk &w) {
    return 2 * CHANNELS * ((int64)part * g.count + w.channel);
}

// The first stage: store a part's sums for each of the block's channels.
__device__ inline void reduce_part(const Channels &g, const Walk &w, const Sums &own, double *sums, Sum *shared) {
    Sums totals = reduce_lanes(own, shared, (unsigned)g.width);
    if (w.valid && (Index)threadIdx.x < g.width) {
        double *part = sums + place_of(g, w.part, w);
        for (int c = 0; c < CHANNELS; ++c) {
            part[2 * c] = totals.of[c].first;
            part[2 * c + 1] = totals.of[c].second;
        }
    }
}

// The second stage: for each thread, the totals of its channels. Every block computes those of its own channels.
__device__ inline Sums reduce_parts(const Channels &g, const Walk &w, const double *sums, Sum *shared) {
    Sums own = {};
    if (w.valid) {
        for (Index part = (Index)threadIdx.x / g.width; part < g.parts; part += (Index)blockDim.x / g.width) {
            const double *at = sums + place_of(g, part, w);
            for (int c = 0; c < CHANNELS; ++c) own.of[c] += Sum{at[2 * c], at[2 * c + 1]};
        }
    }
    return reduce_lanes(own, shared, (unsigned)g.width);
}

// Whether this thread, alone of all blocks' threads, writes its channels' variables.
__device__ inline bool writes_variables(const Channels &g, const Walk &w) {
    return w.valid && w.part == 0 && (Index)threadIdx.x < g.width;
}

struct Pair {
    Run x, dy;
};

// Σ dy and Σ dy · x over a thread's runs, where load(position) returns dy and x, and store(position, …) gets them.
template <class Load, class Store> __device__ inline Sums products(Walk w, Load load, Store store) {
    Sums sums = {};
    Index at[RUNS];
    while (w.left >= RUNS) {  // few enough for a sum in their own type
        Pair pair[RUNS];
        for (int r = 0; r < RUNS; ++r) pair[r] = load(at[r] = w.next());
        real sum[CHANNELS] = {}, product[CHANNELS] = {};
        for (int r = 0; r < RUNS; ++r) {
            store(at[r], pair[r]);
            for (int k = 0; k < RUN; ++k) {
                sum[k % CHANNELS] += pair[r].dy.value[k];
                product[k % CHANNELS] += pair[r].dy.value[k] * pair[r].x.value[k];
            }
        }
        for (int c = 0; c < CHANNELS; ++c) sums.of[c] += Sum{sum[c], product[c]};
    }
    while (w.left > 0) {
        Index here = w.next();
        Pair pair = load(here);
        store(here, pair);
        for (int k = 0; k < RUN; ++k) {
            sums.of[k % CHANNELS] += Sum{pair.dy.value[k], (double)pair.dy.value[k] * pair.x.value[k]};
        }
    }
    return sums;
}

__device__ inline void store_gradients(const Channels &g, const Walk &w, const Sums &totals, real *weights_gradient,
                                       real *bias_gradient) {
    if (!writes_variables(g, w)) return;
    for (int c = 0; c < CHANNELS; ++c) {
        weights_gradient[w.number + c] = (real)totals.of[c].second;
        if (bias_gradient) bias_gradient[w.number + c] = (real)totals.of[c].first;
    }
}
