// The loss of a matrix factorisation, Σ (target − u · v)² + λ (|u|² + |v|²), its gradients, and its predictions u · v.
//
// An invalid row number makes the loss, or its prediction, NaN, because a kernel cannot raise an error.

// Results of the first kernel, for each example.
struct Example {
    double error;    // target − u · v
    double squares;  // |u|² + |v|²
    int64 row[2];    // of the users and of the items; −1 if the number is invalid
};

__device__ inline Index named_row(real number, Index rows) {
    if (!(number >= 0 && number < (real)rows)) return -1;  // also rejects NaN
    Index row = (Index)number;  // < rows, even if the conversion of rows rounds up: there is no real between the two
    return (real)row == number ? row : -1;
}

// One block per example. Targets are float or double, independent of `real`.
KERNEL factorisation_examples(const real *x, const void *targets, const int64 *state, const real *users,
                              const real *items, Example *examples, Size rows, Size columns, Size latents,
                              int is_double) {
    SHARED(double, shared);
    Index n = blockIdx.x;
    if (n >= state[EXAMPLES]) return;
    Index row = named_row(x[2 * n], rows), column = named_row(x[2 * n + 1], columns);
    double product = 0, squares = 0;
    if (row >= 0 && column >= 0) {
        for (Index k = threadIdx.x; k < latents; k += blockDim.x) {
            double u = users[row * latents + k], v = items[column * latents + k];
            product += u * v;
            squares += u * u + v * v;
        }
    } else {
        product = nan("");
    }
    product = reduce(product, shared);
    squares = reduce(squares, shared);
    if (threadIdx.x == 0) {
        double target = is_double ? ((const double *)targets)[n] : (double)((const float *)targets)[n];
        examples[n].error = target - product;
        examples[n].squares = squares;
        examples[n].row[0] = row;
        examples[n].row[1] = column;
    }
}

// A single block.
KERNEL factorisation_loss(const Example *examples, const int64 *state, double regularisation, real *result) {
    SHARED(double, shared);
    double sum = 0, squares = 0;
    for (Index n = threadIdx.x; n < state[EXAMPLES]; n += blockDim.x) {
        sum += examples[n].error * examples[n].error;
        squares += examples[n].squares;
    }
    sum = reduce(sum, shared);
    squares = reduce(squares, shared);
    if (threadIdx.x == 0) *result = (real)(sum + regularisation * squares);
}

KERNEL factorisation_zero(real *users, Size in_users, real *items, Size in_items) {
    EACH(i, in_users) users[i] = 0;
    EACH(i, in_items) items[i] = 0;
}

// Two blocks per example, for its user and for its item. The first example of a row adds up the gradients of all
// examples of this row, in order: du = Σ 2 (λ u − e v), dv = Σ 2 (λ v − e u).
KERNEL factorisation_backward(const Example *examples, const int64 *state, const real *users, const real *items,
                              real *users_gradient, real *items_gradient, Size latents, double regularisation) {
    SHARED(int, shared);
    Index n = blockIdx.x / 2, end = state[EXAMPLES];
    int own = blockIdx.x % 2, other = 1 - own;
    if (n >= end) return;
    Index row = examples[n].row[own];
    if (row < 0) return;
    int earlier = 0;
    for (Index m = threadIdx.x; m < n; m += blockDim.x) earlier |= examples[m].row[own] == row;
    if (reduce(earlier, shared) > 0) return;
    const real *table = own == 0 ? users : items, *others = own == 0 ? items : users;
    real *gradient = own == 0 ? users_gradient : items_gradient;
    for (Index k = threadIdx.x; k < latents; k += blockDim.x) {
        double decay = regularisation * table[row * latents + k], sum = 0;
        for (Index m = n; m < end; ++m) {
            if (examples[m].row[own] != row) continue;
            Index partner = examples[m].row[other];
            double factor = partner < 0 ? 0.0 : (double)others[partner * latents + k];
            sum += 2 * (decay - examples[m].error * factor);  // NaN if the error is NaN
        }
        gradient[row * latents + k] = (real)sum;
    }
}

// One block per example. 0 for the padding of a batch.
KERNEL factorisation_prediction(const real *x, const int64 *state, const real *users, const real *items, real *y,
                                Size rows, Size columns, Size latents) {
    SHARED(double, shared);
    Index n = blockIdx.x;
    if (n >= state[EXAMPLES]) {
        if (threadIdx.x == 0) y[n] = 0;
        return;
    }
    Index row = named_row(x[2 * n], rows), column = named_row(x[2 * n + 1], columns);
    double product = 0;
    if (row >= 0 && column >= 0) {
        for (Index k = threadIdx.x; k < latents; k += blockDim.x) {
            product += (double)users[row * latents + k] * items[column * latents + k];
        }
    } else {
        product = nan("");
    }
    product = reduce(product, shared);
    if (threadIdx.x == 0) y[n] = (real)product;
}
