// Rows of a table selected by indices, and the gradient of the table.
//
// The row of an invalid index is NaN, because a kernel cannot raise an error; it adds nothing to the gradient.

__device__ inline Index row_of(real number, Index rows) {
    if (!(number >= 0 && number < (real)rows)) return -1;  // also rejects NaN
    Index row = (Index)number;
    return (real)row == number ? row : -1;
}

// 0 for the padding of a batch.
KERNEL embedding_forward(const real *x, const int64 *state, const real *weights, real *y, Size count, Size length,
                         Size rows, Size columns) {
    Index real_places = state[EXAMPLES] * length;
    EACH(i, count) {
        Index place = i / columns;
        if (place >= real_places) {
            y[i] = 0;
            continue;
        }
        Index row = row_of(x[place], rows);
        y[i] = row < 0 ? (real)nan("") : weights[row * columns + i % columns];
    }
}

KERNEL embedding_zero(real *gradient, Size count) {
    EACH(i, count) gradient[i] = 0;
}

// A block for each index. The block of the first index of a row adds up the gradients of all indices of this row, in
// order.
KERNEL embedding_backward(const real *x, const int64 *state, const real *dy, real *gradient, Size length, Size rows,
                          Size columns) {
    SHARED(int, shared);
    Index n = blockIdx.x, end = state[EXAMPLES] * length;
    if (n >= end) return;
    Index row = row_of(x[n], rows);
    if (row < 0) return;
    int earlier = 0;
    for (Index m = threadIdx.x; m < n; m += blockDim.x) earlier |= x[m] == x[n];
    if (reduce(earlier, shared) > 0) return;
    for (Index c = threadIdx.x; c < columns; c += blockDim.x) {
        double sum = 0;
        for (Index m = n; m < end; ++m) {
            if (x[m] == x[n]) sum += dy[m * columns + c];
        }
        gradient[row * columns + c] = (real)sum;
    }
}
