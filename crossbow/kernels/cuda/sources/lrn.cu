// Local response normalisation, y = x · s^−β with s = κ + share · Σ x² over a window on one or two axes, and its
// gradient.
//
// In memory order, a tensor is outer × rows × columns × inner. Windows extend over rows and columns: those of an image,
// or the channels and 1. Adjacent threads process adjacent elements in this order.

struct Response {
    int64 outer, rows, columns, inner;
    int64 before[2], after[2];  // extent of a window, on rows and columns
    int64 narrow;               // whether indices fit into 32 bits
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
template <class I> struct Window {
    I at, row[2], column[2];  // from the first to the last
    I from;                   // position of (row[0], column[0])

    __device__ inline Window(const Response &r, I i, const int64 *before, const int64 *after) : at(i) {
        I rest = i / (I)r.inner, line = rest / (I)r.columns;
        I x = rest - line * (I)r.columns, y = line % (I)r.rows;
        bound(row, y, (I)r.rows, (I)before[0], (I)after[0]);
        bound(column, x, (I)r.columns, (I)before[1], (I)after[1]);
        from = i - ((y - row[0]) * (I)r.columns + (x - column[0])) * (I)r.inner;
    }

    __device__ static inline void bound(I *range, I place, I size, I before, I after) {
        range[0] = place > before ? place - before : 0;
        range[1] = size - 1 - place > after ? place + after : size - 1;
    }

    // Σ value(place), row by row.
    template <class Value> __device__ inline real sum(const Response &r, Value value) const {
        real total = 0;
        I line = from;
        for (I v = row[0]; v <= row[1]; ++v, line += (I)r.columns * (I)r.inner) {
            real part = 0;
            I place = line;
            for (I w = column[0]; w <= column[1]; ++w, place += (I)r.inner) part += value(place);
            total += part;
        }
        return total;
    }
};

template <class I> __device__ inline real strength(const real *x, const Response &r, const Constants &k, I i) {
    Window<I> window(r, i, r.before, r.after);
    return k.kappa + k.share * window.sum(r, [&](I at) { return x[at] * x[at]; });
}

template <class I> __device__ inline I elements_of(const Response &r) {
    return (I)(r.outer * r.rows * r.columns * r.inner);
}

template <class I>
__device__ inline void forward(const real *x, real *y, const Response &r, const Constants &k) {
    EACH(i, elements_of<int64>(r)) { y[i] = x[i] * power(strength(x, r, k, (I)i), k.beta); }
}

// An element's contribution to the gradients of all elements of its window: dy · x · s^(−β−1).
template <class I>
__device__ inline void hand_on(const real *x, const real *dy, real *felt, const Response &r, const Constants &k) {
    EACH(i, elements_of<int64>(r)) {
        real s = strength(x, r, k, (I)i);
        felt[i] = dy[i] * power(s, k.beta) * x[i] / s;
    }
}

// dx may be dy.
template <class I>
__device__ inline void backward(const real *x, const real *dy, const real *felt, real *dx, const Response &r,
                                const Constants &k) {
    EACH(i, elements_of<int64>(r)) {
        real direct = dy[i] * power(strength(x, r, k, (I)i), k.beta);
        // The elements whose windows contain this one.
        Window<I> window(r, (I)i, r.after, r.before);
        dx[i] = direct - 2 * k.share * k.beta * x[i] * window.sum(r, [&](I at) { return felt[at]; });
    }
}

KERNEL lrn_forward(const real *x, real *y, Response r, real kappa, real share, real beta) {
    if (r.narrow) {
        forward<int>(x, y, r, {kappa, share, beta});
    } else {
        forward<int64>(x, y, r, {kappa, share, beta});
    }
}

KERNEL lrn_hand_on(const real *x, const real *dy, real *felt, Response r, real kappa, real share, real beta) {
    if (r.narrow) {
        hand_on<int>(x, dy, felt, r, {kappa, share, beta});
    } else {
        hand_on<int64>(x, dy, felt, r, {kappa, share, beta});
    }
}

KERNEL lrn_backward(const real *x, const real *dy, const real *felt, real *dx, Response r, real kappa, real share,
                    real beta) {
    if (r.narrow) {
        backward<int>(x, dy, felt, dx, r, {kappa, share, beta});
    } else {
        backward<int64>(x, dy, felt, dx, r, {kappa, share, beta});
    }
}
