// Interpolation along one axis of a tensor in memory order: outer × size × inner becomes outer × target × inner.

struct Along {
    Size size, target, inner, linear;
};

// The source of position i of the output: `lower` and the position after it, with the factors 1 − part and part.
struct Source {
    Index lower;
    double part;
};

__device__ inline Source source_of(const Along &a, double ratio, double offset, Index i) {
    double position = ratio * (double)i + offset;
    if (!(position > 0)) position = 0;
    Index lower = (Index)position;
    if (lower > a.size - 1) lower = a.size - 1;
    return {lower, a.linear && lower < a.size - 1 ? position - (double)lower : 0};
}

KERNEL interpolate(const stored *x, stored *y, Size n, Along a, double ratio, double offset) {
    EACH(i, n) {
        Index rest = i / a.inner, k = i - rest * a.inner, outer = rest / a.target;
        Source from = source_of(a, ratio, offset, rest - outer * a.target);
        const stored *first = x + (outer * a.size + from.lower) * a.inner + k;
        real part = (real)from.part, value = *first;
        if (part != 0) value = (1 - part) * value + part * (real)first[a.inner];
        y[i] = value;
    }
}

// dx, gathered from all positions of dy that were taken from an element or the one before it. These are adjacent.
KERNEL interpolate_backward(const stored *dy, stored *dx, Size n, Along a, double ratio, double offset) {
    EACH(i, n) {
        Index rest = i / a.inner, k = i - rest * a.inner, outer = rest / a.size, at = rest - outer * a.size;
        Index begin = 0, end = a.target;
        if (ratio > 0) {  // with a margin of one, because divisions round
            double low = ((double)(at - 1) - offset) / ratio - 1, high = ((double)(at + 1) - offset) / ratio + 2;
            if (at > 0 && low > 0) begin = (Index)low;
            if (at < a.size - 1 && high < (double)end) end = high > 0 ? (Index)high : 0;
        }
        double sum = 0;
        const stored *row = dy + outer * a.target * a.inner + k;
        for (Index j = begin; j < end; ++j) {
            Source from = source_of(a, ratio, offset, j);
            double value = row[j * a.inner];
            if (from.lower == at) {
                sum += from.part != 0 ? (1 - from.part) * value : value;
            } else if (from.lower == at - 1 && from.part != 0) {
                sum += from.part * value;
            }
        }
        dx[i] = (real)sum;
    }
}
