// Local response normalisation, y = x · s^−β with s = κ + share · Σ x² over a window on one or two axes, and its
// gradient.
//
// In memory order, a tensor is outer × rows × columns × inner. Windows extend over rows and columns: those of an image,
// or the channels and 1. Adjacent threads process adjacent elements in this order.

struct Response {
    Size outer, rows, columns, inner;
    Size before[2], after[2];  // extent of a window, on rows and columns
};

struct Constants {
    real kappa, share, beta;
};

// s^−β, without a logarithm for the usual exponents.
__device__ inline real power(real s, real beta) {
    if (beta == (real)0.75) {
        real root = 1 / sqrt(s);
        return root * sqrt(root);
    }
    if (beta == (real)0.5) return 1 / sqrt(s);
    return beta == 1 ? 1 / s : pow(s, -beta);
}

// An element's position in memory, and its window: the surrounding rows and columns inside the tensor.
struct Window {
    Index at, row[2], column[2];  // from the first to the last
    Index from;                   // position of (row[0], column[0])

    __device__ inline Window(const Response &r, Index i, const Size *before, const Size *after) : at(i) {
        Index rest = i / r.inner, line = rest / r.columns;
        Index x = rest - line * r.columns, y = line % r.rows;
        bound(row, y, r.rows, before[0], after[0]);
        bound(column, x, r.columns, before[1], after[1]);
        from = i - ((y - row[0]) * r.columns + (x - column[0])) * r.inner;
    }

    __device__ static inline void bound(Index *range, Index place, Index size, Index before, Index after) {
        range[0] = place > before ? place - before : 0;
        range[1] = size - 1 - place > after ? place + after : size - 1;
    }

    // Σ value(place), row by row.
    template <class Value> __device__ inline real sum(const Response &r, Value value) const {
        real total = 0;
        Index line = from;
        for (Index v = row[0]; v <= row[1]; ++v, line += r.columns * r.inner) {
            real part = 0;
            Index place = line;
            for (Index w = column[0]; w <= column[1]; ++w, place += r.inner) part += value(place);
            total += part;
        }
        return total;
    }
};

__device__ inline real strength(const real *x, const Response &r, const Constants &k, Index i) {
    Window window(r, i, r.before, r.after);
    return k.kappa + k.share * window.sum(r, [&](Index at) { return x[at] * x[at]; });
}

__device__ inline Index elements_of(const Response &r) {
    return r.outer * r.rows * r.columns * r.inner;
}

__device__ inline void forward(const real *x, real *y, const Response &r, const Constants &k) {
    EACH(i, elements_of(r)) y[i] = x[i] * power(strength(x, r, k, i), k.beta);
}

// An element's contribution to the gradients of all elements of its window: dy · x · s^(−β−1).
__device__ inline void hand_on(const real *x, const real *dy, real *felt, const Response &r, const Constants &k) {
    EACH(i, elements_of(r)) {
        real s = strength(x, r, k, i);
        felt[i] = dy[i] * power(s, k.beta) * x[i] / s;
    }
}

// dx may be dy.
__device__ inline void backward(const real *x, const real *dy, const real *felt, real *dx, const Response &r,
                                const Constants &k) {
    EACH(i, elements_of(r)) {
        real direct = dy[i] * power(strength(x, r, k, i), k.beta);
        // The elements whose windows contain this one.
        Window window(r, i, r.after, r.before);
        dx[i] = direct - 2 * k.share * k.beta * x[i] * window.sum(r, [&](Index at) { return felt[at]; });
    }
}

KERNEL lrn_forward(const real *x, real *y, Response r, real kappa, real share, real beta) {
    forward(x, y, r, {kappa, share, beta});
}

KERNEL lrn_hand_on(const real *x, const real *dy, real *felt, Response r, real kappa, real share, real beta) {
    hand_on(x, dy, felt, r, {kappa, share, beta});
}

KERNEL lrn_backward(const real *x, const real *dy, const real *felt, real *dx, Response r, real kappa, real share,
                    real beta) {
    backward(x, dy, felt, dx, r, {kappa, share, beta});
}
