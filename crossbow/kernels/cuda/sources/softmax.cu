// Softmax, its logarithm, and their gradients, along lines. Many or short lines have a thread each, others a block each.

// NaN need not be the largest: exp(NaN − largest) makes the sum NaN, and so the whole line.

KERNEL softmax_forward(const real *x, real *y, Four from, Four to, int axis, Size lines) {
    Index length = from.size[axis], step = from.stride[axis], step_to = to.stride[axis];
    EACH(i, lines) {
        const real *row = x + line(from, axis, i);
        real *out = y + line(to, axis, i);
        real largest = row[0];
        for (Index c = 1; c < length; ++c) {
            real v = row[c * step];
            largest = v > largest ? v : largest;
        }
        double sum = 0;
        for (Index c = 0; c < length; ++c) sum += exp(row[c * step] - largest);
        real divisor = (real)sum;
        for (Index c = 0; c < length; ++c) out[c * step_to] = exp(row[c * step] - largest) / divisor;
    }
}

KERNEL softmax_forward_rows(const real *x, real *y, Four from, Four to, int axis, Size lines) {
    SHARED(double, shared);
    Index length = from.size[axis], step = from.stride[axis], step_to = to.stride[axis];
    for (Index i = blockIdx.x; i < lines; i += gridDim.x) {
        const real *row = x + line(from, axis, i);
        real *out = y + line(to, axis, i);
        real largest = row[0];
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            real v = row[c * step];
            largest = v > largest ? v : largest;
        }
        largest = (real)reduce_largest<double>(largest, shared);
        double sum = 0;
        for (Index c = threadIdx.x; c < length; c += blockDim.x) sum += exp(row[c * step] - largest);
        real divisor = (real)reduce(sum, shared);
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            out[c * step_to] = exp(row[c * step] - largest) / divisor;
        }
    }
}

KERNEL softmax_backward(const real *y, const real *dy, real *dx, Four t, int axis, Size lines) {
    Index length = t.size[axis], step = t.stride[axis];
    EACH(i, lines) {
        Index start = line(t, axis, i);
        double sum = 0;
        for (Index c = 0; c < length; ++c) sum += (double)y[start + c * step] * dy[start + c * step];
        real mean = (real)sum;
        for (Index c = 0; c < length; ++c) {
            Index at = start + c * step;
            dx[at] = (dy[at] - mean) * y[at];
        }
    }
}

KERNEL softmax_backward_rows(const real *y, const real *dy, real *dx, Four t, int axis, Size lines) {
    SHARED(double, shared);
    Index length = t.size[axis], step = t.stride[axis];
    for (Index i = blockIdx.x; i < lines; i += gridDim.x) {
        Index start = line(t, axis, i);
        double sum = 0;
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            sum += (double)y[start + c * step] * dy[start + c * step];
        }
        real mean = (real)reduce(sum, shared);
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            Index at = start + c * step;
            dx[at] = (dy[at] - mean) * y[at];
        }
    }
}

// x − max x − log Σ exp(x − max x).
KERNEL log_softmax_forward(const real *x, real *y, Four from, Four to, int axis, Size lines) {
    Index length = from.size[axis], step = from.stride[axis], step_to = to.stride[axis];
    EACH(i, lines) {
        const real *row = x + line(from, axis, i);
        real *out = y + line(to, axis, i);
        real largest = row[0];
        for (Index c = 1; c < length; ++c) {
            real v = row[c * step];
            largest = v > largest ? v : largest;
        }
        double sum = 0;
        for (Index c = 0; c < length; ++c) sum += exp(row[c * step] - largest);
        real whole = (real)log(sum);
        for (Index c = 0; c < length; ++c) out[c * step_to] = row[c * step] - largest - whole;
    }
}

KERNEL log_softmax_forward_rows(const real *x, real *y, Four from, Four to, int axis, Size lines) {
    SHARED(double, shared);
    Index length = from.size[axis], step = from.stride[axis], step_to = to.stride[axis];
    for (Index i = blockIdx.x; i < lines; i += gridDim.x) {
        const real *row = x + line(from, axis, i);
        real *out = y + line(to, axis, i);
        real largest = row[0];
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            real v = row[c * step];
            largest = v > largest ? v : largest;
        }
        largest = (real)reduce_largest<double>(largest, shared);
        double sum = 0;
        for (Index c = threadIdx.x; c < length; c += blockDim.x) sum += exp(row[c * step] - largest);
        real whole = (real)log(reduce(sum, shared));
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            out[c * step_to] = row[c * step] - largest - whole;
        }
    }
}

// dx = dy − exp(y) · Σ dy.
KERNEL log_softmax_backward(const real *y, const real *dy, real *dx, Four t, int axis, Size lines) {
    Index length = t.size[axis], step = t.stride[axis];
    EACH(i, lines) {
        Index start = line(t, axis, i);
        double sum = 0;
        for (Index c = 0; c < length; ++c) sum += (double)dy[start + c * step];
        real total = (real)sum;
        for (Index c = 0; c < length; ++c) {
            Index at = start + c * step;
            dx[at] = dy[at] - exp(y[at]) * total;
        }
    }
}

KERNEL log_softmax_backward_rows(const real *y, const real *dy, real *dx, Four t, int axis, Size lines) {
    SHARED(double, shared);
    Index length = t.size[axis], step = t.stride[axis];
    for (Index i = blockIdx.x; i < lines; i += gridDim.x) {
        Index start = line(t, axis, i);
        double sum = 0;
        for (Index c = threadIdx.x; c < length; c += blockDim.x) sum += (double)dy[start + c * step];
        real total = (real)reduce(sum, shared);
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            Index at = start + c * step;
            dx[at] = dy[at] - exp(y[at]) * total;
        }
    }
}
