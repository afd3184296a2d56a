
// Operators with variables for each channel: batch normalisation and learned scales. (A channel is a set of elements
// that share a variable; it may also be a column of an image.)
//
// Every pass over a tensor divides it in the same way. A block processes one part of the values of `width` adjacent
// channels. Its thread t processes channel t mod width, with a constant stride between values. So a thread reads its
// variables once, finds its next element without a division, and adjacent threads read adjacent memory: `width` is 1
// if the values of a channel are adjacent.
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

// Elements that a thread loads before it uses the first one: 8, or 4 in double precision, which takes twice the registers.
enum { CHUNK = 32 / sizeof(real) };

// The elements of a thread.
struct Walk {
    bool valid;       // whether the thread has a channel
    Index channel;    // its index in memory order,
    Index number;     // and in the variables
    Index part;       // number of the block's part
    Index first;      // position of the channel's first value
    Index at, left;   // position of the next element, and number of remaining elements
    Index index, inner, index_step, step, wrap;

    __device__ inline Index next() {
        Index here = at;
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
    Index tiles = (g.count + g.width - 1) / g.width, lanes = (Index)blockDim.x / g.width;
    Index lane = (Index)threadIdx.x / g.width, block = (Index)blockIdx.x;
    Walk w;
    w.part = block / tiles;
    w.channel = (block - w.part * tiles) * g.width + (Index)threadIdx.x % g.width;
    w.valid = w.channel < g.count;
    Index major = w.channel / g.minor, minor = w.channel - major * g.minor;
    w.number = major * g.number[0] + minor * g.number[1];
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

// store(place, load(place)) for each of a thread's elements. Inputs and outputs may share memory.
template <class Load, class Store> __device__ inline void map(Walk w, Load load, Store store) {
    Index at[CHUNK];
    decltype(load((Index)0)) loaded[CHUNK];
    while (w.left >= CHUNK) {
        for (int k = 0; k < CHUNK; ++k) loaded[k] = load(at[k] = w.next());
        for (int k = 0; k < CHUNK; ++k) store(at[k], loaded[k]);
    }
    while (w.left > 0) {
        Index here = w.next();
        store(here, load(here));
    }
}

struct Sums {
    double first, second;

    __device__ inline Sums &operator+=(const Sums &other) {
        first += other.first;
        second += other.second;
        return *this;
    }
};

// For each thread, the sums over all threads with the same number modulo `width`.
__device__ inline Sums reduce_lanes(Sums own, Sums *shared, unsigned width) {
    shared[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half >= width; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    Sums sums = shared[threadIdx.x % width];
    __syncthreads();
    return sums;
}

// The first stage: store a part's sums for each of the block's channels.
__device__ inline void reduce_part(const Channels &g, const Walk &w, Sums own, double *sums, Sums *shared) {
    own = reduce_lanes(own, shared, (unsigned)g.width);
    if (w.valid && (Index)threadIdx.x < g.width) {
        double *part = sums + 2 * ((int64)w.part * g.count + w.channel);
        part[0] = own.first;
        part[1] = own.second;
    }
}

// The second stage: for each thread, the totals of its channel. Every block computes those of its own channels.
__device__ inline Sums reduce_parts(const Channels &g, const Walk &w, const double *sums, Sums *shared) {
    Sums own = {0, 0};
    if (w.valid) {
        for (Index part = (Index)threadIdx.x / g.width; part < g.parts; part += (Index)blockDim.x / g.width) {
            const double *at = sums + 2 * ((int64)part * g.count + w.channel);
            own += Sums{at[0], at[1]};
        }
    }
    return reduce_lanes(own, shared, (unsigned)g.width);
}

// Whether the thread is the one of all blocks that writes its channel's variables.
__device__ inline bool writes_variables(const Channels &g, const Walk &w) {
    return w.valid && w.part == 0 && (Index)threadIdx.x < g.width;
}

struct Pair {
    real x, dy;
};

// Σ dy and Σ dy · x over a thread's elements, where load(place) returns dy and x, and store(place, …) gets them.
template <class Load, class Store> __device__ inline Sums products(Walk w, Load load, Store store) {
    Sums sums = {0, 0};
    Index at[CHUNK];
    while (w.left >= CHUNK) {  // few enough for a sum in their own type
        Pair pair[CHUNK];
        for (int k = 0; k < CHUNK; ++k) pair[k] = load(at[k] = w.next());
        real sum = 0, product = 0;
        for (int k = 0; k < CHUNK; ++k) {
            store(at[k], pair[k]);
            sum += pair[k].dy;
            product += pair[k].dy * pair[k].x;
        }
        sums.first += sum;
        sums.second += product;
    }
    while (w.left > 0) {
        Index here = w.next();
        Pair pair = load(here);
        store(here, pair);
        sums.first += pair.dy;
        sums.second += (double)pair.dy * pair.x;
    }
    return sums;
}

__device__ inline void store_gradients(const Channels &g, const Walk &w, Sums totals, real *weights_gradient,
                                       real *bias_gradient) {
    if (!writes_variables(g, w)) return;
    weights_gradient[w.number] = (real)totals.second;
    if (bias_gradient) bias_gradient[w.number] = (real)totals.first;
}
