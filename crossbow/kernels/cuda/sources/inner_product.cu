// Kernels around matrix products, for row-major matrices: small products, sums and repetitions.

// y = a b (+ the bias of each column, unless null), then optionally max(y, 0). Factors are given by the steps of their rows
// and columns in memory. For small products: the sums are in double precision.
KERNEL small_product(const stored *a, const stored *b, const stored *bias, stored *y, int rows, int columns, int inner,
                     int a_row, int a_column, int b_row, int b_column, int relu) {
    EACH(i, rows * columns) {
        int row = (int)i / columns, column = (int)i % columns;
        const stored *left = a + row * a_row, *right = b + column * b_column;
        double sum = 0;
        for (int k = 0; k < inner; ++k) sum += (double)(real)left[k * a_column] * (real)right[k * b_row];
        real value = (real)sum;
        if (bias) value += bias[column];
        y[i] = relu && value < 0 ? (real)0 : value;  // NaN stays NaN
    }
}

// y[o][c] = Σ_r x[o][r][c]. A block processes `width` columns at once, a power of two; its threads with the same column
// share the rows. Their sums are added pairwise.
KERNEL sum_rows(const stored *x, stored *y, Size outer, Size rows, Size columns, int width) {
    SHARED(double, sums);
    Index groups = (columns + width - 1) / width;
    int lanes = blockDim.x / width, lane = threadIdx.x / width;
    for (Index group = blockIdx.x; group < outer * groups; group += gridDim.x) {
        Index o = group / groups, c = group % groups * width + threadIdx.x % width;
        double sum = 0;
        if (c < columns) {
            const stored *column = x + o * rows * columns + c;
            for (Index r = lane; r < rows; r += lanes) sum += column[r * columns];
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = lanes / 2; half > 0; half /= 2) {
            if (lane < half) sums[threadIdx.x] += sums[threadIdx.x + half * width];
            __syncthreads();
        }
        if (lane == 0 && c < columns) y[o * columns + c] = (real)sums[threadIdx.x];
        __syncthreads();  // before the next use of `sums`
    }
}

// y[o][r][i] = x[o][i], for every r < times. n: elements of y.
KERNEL repeat(const stored *x, stored *y, Size n, Size times, Size inner) {
    EACH(i, n) {
        y[i] = x[i / (times * inner) * inner + i % inner];
    }
}
