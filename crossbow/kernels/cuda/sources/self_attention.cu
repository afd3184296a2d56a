// Multi-head attention of a sequence to itself. x has the queries, keys and values of a position side by side, `width`
// numbers each, and a head has width / heads of them. A block computes one row after the other: number
// (n · heads + h) · length + t is the row of position t. Sums are in double, always in the same order.

struct Row {
    Index t, head;    // the position, and the number of the head among those of all examples
    Index x, y;       // where the head's first position begins in x and y
};

__device__ inline Row row_at(Index i, Index heads, Index length, Index width) {
    Index head = i / length, n = head / heads, first = head % heads * (width / heads);
    return {i % length, head, n * length * 3 * width + first, n * length * width + first};
}

KERNEL attention_forward(const real *x, real *probabilities, real *y, Size count, Size heads, Size length,
                         Size width, int causal) {
    SHARED(double, shared);
    Index depth = width / heads, step = 3 * width;
    double scale = 1 / sqrt((double)depth);
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
        Row r = row_at(i, heads, length, width);
        const real *q = x + r.x + r.t * step, *k = x + r.x + width, *v = x + r.x + 2 * width;
        real *p = probabilities + i * length;
        Index end = causal ? r.t + 1 : length;
        double largest = -1e308, sum = 0;
        for (Index s = threadIdx.x; s < end; s += blockDim.x) {
            double score = 0;
            for (Index c = 0; c < depth; ++c) score += (double)q[c] * k[s * step + c];
            p[s] = (real)(score * scale);
            if (p[s] > largest) largest = p[s];
        }
        largest = reduce_largest(largest, shared);
        for (Index s = threadIdx.x; s < length; s += blockDim.x) {
            p[s] = s < end ? (real)exp(p[s] - largest) : (real)0;
            sum += p[s];
        }
        sum = reduce(sum, shared);
        for (Index s = threadIdx.x; s < length; s += blockDim.x) p[s] = (real)(p[s] / sum);
        __syncthreads();
        for (Index c = threadIdx.x; c < depth; c += blockDim.x) {
            double value = 0;
            for (Index s = 0; s < length; ++s) value += (double)p[s] * v[s * step + c];
            y[r.y + r.t * width + c] = (real)value;
        }
        __syncthreads();
    }
}

// ds = p · (dp − Σ p · dp) / √depth with dp = dy vᵀ, and dq = ds k.
KERNEL attention_scores_gradient(const real *x, const real *dy, const real *probabilities, real *gradients, real *dx,
                                 Size count, Size heads, Size length, Size width, int causal) {
    SHARED(double, shared);
    Index depth = width / heads, step = 3 * width;
    double scale = 1 / sqrt((double)depth);
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
        Row r = row_at(i, heads, length, width);
        const real *k = x + r.x + width, *v = x + r.x + 2 * width, *g = dy + r.y + r.t * width;
        const real *p = probabilities + i * length;
        real *ds = gradients + i * length;
        double common = 0;
        for (Index s = threadIdx.x; s < length; s += blockDim.x) {
            double value = 0;
            for (Index c = 0; c < depth; ++c) value += (double)g[c] * v[s * step + c];
            ds[s] = (real)value;
            common += p[s] * value;
        }
        common = reduce(common, shared);
        for (Index s = threadIdx.x; s < length; s += blockDim.x) ds[s] = (real)(p[s] * (ds[s] - common) * scale);
        __syncthreads();
        for (Index c = threadIdx.x; c < depth; c += blockDim.x) {
            double value = 0;
            for (Index s = 0; s < length; ++s) value += (double)ds[s] * k[s * step + c];
            dx[r.x + r.t * step + c] = (real)value;
        }
        __syncthreads();
    }
}

// dk = dsᵀ q and dv = pᵀ dy; row t is that of a key.
KERNEL attention_keys_gradient(const real *x, const real *dy, const real *probabilities, const real *gradients,
                               real *dx, Size count, Size heads, Size length, Size width, int causal) {
    Index depth = width / heads, step = 3 * width;
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
        Row r = row_at(i, heads, length, width);
        const real *p = probabilities + r.head * length * length + r.t, *ds = gradients + r.head * length * length + r.t;
        for (Index c = threadIdx.x; c < depth; c += blockDim.x) {
            double key = 0, value = 0;
            for (Index t = 0; t < length; ++t) {
                key += (double)ds[t * length] * x[r.x + t * step + c];
                value += (double)p[t * length] * dy[r.y + t * width + c];
            }
            dx[r.x + r.t * step + width + c] = (real)key;
            dx[r.x + r.t * step + 2 * width + c] = (real)value;
        }
    }
}
