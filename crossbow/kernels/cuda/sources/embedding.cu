// Rows of a table that indices choose, and the gradient of the table.
//
// The row of an invalid index is NaN, because a kernel cannot raise an error; it adds nothing to the gradient.

__device__ inline int64 row_of(real number, int64 rows) {
    if (!(number >= 0 && number < (real)rows)) return -1;  // also rejects NaN
    int64 row = (int64)number;
    return (real)row == number ? row : -1;
}

// 0 for the padding of a batch.
KERNEL embedding_forward(const real *x, const int64 *state, const real *weights, real *y, int64 count, int64 length,
                         int64 rows, int64 columns) {
    int64 real_places = state[EXAMPLES] * length;
    EACH(i, count) {
        int64 place = i / columns;
        if (place >= real_places) {
            y[i] = 0;
            continue;
        }
        int64 row = row_of(x[place], rows);
        y[i] = row < 0 ? (real)nan("") : weights[row * columns + i % columns];
    }
}

KERNEL embedding_zero(real *gradient, int64 count) {
    EACH(i, count) gradient[i] = 0;
}

// A block for each index. The block of the first index of a row adds up the gradients of all indices of this row, in
// order.
KERNEL embedding_backward(const real *x, const int64 *state, const real *dy, real *gradient, int64 length, int64 rows,
                          int64 columns) {
    SHARED(int, shared);
    int64 n = blockIdx.x, end = state[EXAMPLES] * length;
    if (n >= end) return;
    int64 row = row_of(x[n], rows);
    if (row < 0) return;
    int earlier = 0;
    for (int64 m = threadIdx.x; m < n; m += blockDim.x) earlier |= x[m] == x[n];
    if (reduce(earlier, shared) > 0) return;
    for (int64 c = threadIdx.x; c < columns; c += blockDim.x) {
        double sum = 0;
        for (int64 m = n; m < end; ++m) {
            if (x[m] == x[n]) sum += dy[m * columns + c];
        }
        gradient[row * columns + c] = (real)sum;
    }
}
