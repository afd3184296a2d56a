// The index of the largest value along lines. Many or short lines have a thread each, others a block each.

// Whether v at index c replaces the largest value so far. NaN is larger than all numbers; among equal values the first
// one wins, and among NaN the last one.
__device__ inline bool wins(real v, Index c, real best, Index index, int last) {
    bool is_nan = v != v, best_is_nan = best != best;
    if (is_nan != best_is_nan) return is_nan;
    if (v > best) return true;
    if (v < best) return false;
    return last ? c > index : c < index;
}

KERNEL classify(const real *x, real *y, Four from, Four to, int axis, Size lines, int last) {
    Index length = from.size[axis], step = from.stride[axis];
    EACH(i, lines) {
        const real *row = x + line(from, axis, i);
        real best = row[0];
        Index index = 0;
        for (Index c = 1; c < length; ++c) {
            real v = row[c * step];
            if (wins(v, c, best, index, last)) {
                best = v;
                index = c;
            }
        }
        y[place(to, i)] = (real)index;
    }
}

// A line has at least as many elements as its block has threads.
KERNEL classify_rows(const real *x, real *y, Four from, Four to, int axis, Size lines, int last) {
    SHARED(int64, indices);
    real *values = (real *)(indices + blockDim.x);
    Index length = from.size[axis], step = from.stride[axis];
    unsigned self = threadIdx.x;
    for (Index i = blockIdx.x; i < lines; i += gridDim.x) {
        const real *row = x + line(from, axis, i);
        real best = row[self * step];
        Index index = self;
        for (Index c = (Index)self + blockDim.x; c < length; c += blockDim.x) {
            real v = row[c * step];
            if (wins(v, c, best, index, last)) {
                best = v;
                index = c;
            }
        }
        values[self] = best;
        indices[self] = index;
        __syncthreads();
        for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
            if (self < half && wins(values[self + half], indices[self + half], values[self], indices[self], last)) {
                values[self] = values[self + half];
                indices[self] = indices[self + half];
            }
            __syncthreads();
        }
        if (self == 0) y[place(to, i)] = (real)indices[0];
        __syncthreads();  // before shared memory is used again
    }
}
