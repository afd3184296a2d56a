// Layer normalisation. A line is a group of numbers that are normalised together; a block processes one line after the
// other. `lines` are the axes of the lines, `own` those along a line; number c of a line has the variable c.
//
// Sums are in double, always in the same order. Variables are of type `real`, independent of the tensors' type.

struct Statistics {
    double mean, inverse;  // the inverse is that of the standard deviation
};

// Returned to all threads of a block, which must all call it. The mean is subtracted before squares are added up.
__device__ inline Statistics reduce_statistics(const stored *x, const Four &own, double epsilon, double *shared) {
    Index length = elements(own);
    double sum = 0, squares = 0;
    for (Index c = threadIdx.x; c < length; c += blockDim.x) sum += (real)x[place(own, c)];
    double mean = reduce(sum, shared) / (double)length;
    for (Index c = threadIdx.x; c < length; c += blockDim.x) {
        double distance = (real)x[place(own, c)] - mean;
        squares += distance * distance;
    }
    return {mean, 1 / sqrt(reduce(squares, shared) / (double)length + epsilon)};
}

// The bias may be null. y may be x.
KERNEL layer_norm_forward(const stored *x, const real *weights, const real *bias, stored *y, Four lines, Four own,
                          Size count, double epsilon) {
    SHARED(double, shared);
    Index length = elements(own);
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
        Index start = place(lines, i);
        Statistics s = reduce_statistics(x + start, own, epsilon, shared);
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            Index at = start + place(own, c);
            real normalised = (real)(((real)x[at] - s.mean) * s.inverse);
            y[at] = bias ? normalised * weights[c] + bias[c] : normalised * weights[c];
        }
    }
}

KERNEL layer_norm_statistics(const stored *x, Statistics *statistics, Four lines, Four own, Size count,
                             double epsilon) {
    SHARED(double, shared);
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
        Statistics s = reduce_statistics(x + place(lines, i), own, epsilon, shared);
        if (threadIdx.x == 0) statistics[i] = s;
    }
}

// Σ dy · x̂ and Σ dy over every part of the lines, for each variable; parts × 2 × length sums.
KERNEL layer_norm_products(const stored *x, const stored *dy, const Statistics *statistics, double *sums, Four lines,
                           Four own, Size count, Size length, Size parts) {
    EACH(i, length * parts) {
        Index part = i / length, c = i - part * length, lines_of_part = (count + parts - 1) / parts, along = place(own, c);
        Index begin = part * lines_of_part, end = begin + lines_of_part < count ? begin + lines_of_part : (Index)count;
        double product = 0, sum = 0;
        for (Index j = begin; j < end; ++j) {
            Index at = place(lines, j) + along;
            double gradient = (real)dy[at];
            product += gradient * (((real)x[at] - statistics[j].mean) * statistics[j].inverse);
            sum += gradient;
        }
        sums[2 * part * length + c] = product;
        sums[(2 * part + 1) * length + c] = sum;
    }
}

// The gradient of the bias may be null.
KERNEL layer_norm_totals(const double *sums, real *weights_gradient, real *bias_gradient, Size length, Size parts) {
    EACH(c, length) {
        double product = 0, sum = 0;
        for (Index part = 0; part < parts; ++part) {
            product += sums[2 * part * length + c];
            sum += sums[(2 * part + 1) * length + c];
        }
        weights_gradient[c] = (real)product;
        if (bias_gradient) bias_gradient[c] = (real)sum;
    }
}

// dx may be dy.
KERNEL layer_norm_backward(const stored *x, const stored *dy, const real *weights, const Statistics *statistics,
                           stored *dx, Four lines, Four own, Size count, double epsilon) {
    SHARED(double, shared);
    Index length = elements(own);
    for (Index i = blockIdx.x; i < count; i += gridDim.x) {
        Index start = place(lines, i);
        Statistics s = statistics[i];
        double sum = 0, product = 0;
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            Index at = start + place(own, c);
            double gradient = (double)(real)dy[at] * weights[c];
            sum += gradient;
            product += gradient * (((real)x[at] - s.mean) * s.inverse);
        }
        double common = reduce(sum, shared) / (double)length, slope = reduce(product, shared) / (double)length;
        for (Index c = threadIdx.x; c < length; c += blockDim.x) {
            Index at = start + place(own, c);
            double gradient = (double)(real)dy[at] * weights[c], normalised = ((real)x[at] - s.mean) * s.inverse;
            dx[at] = (real)((gradient - common - normalised * slope) * s.inverse);
        }
    }
}
