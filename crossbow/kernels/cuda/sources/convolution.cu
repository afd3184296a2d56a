// Kernels around cuDNN's convolutions: biases, their gradients, and copies of tensors with padding.

// Offset of a tensor in another one, on each axis.
struct Shift {
    int64 by[4];
};

// y ← x with a border of zeros or, with negative shifts, x without its border; or (add) y plus that. Fastest if the axes
// are in the order of y's elements in memory.
KERNEL move(const stored *x, Four from, stored *y, Four to, Shift shift, int add) {
    EACH(i, elements(to)) {
        int64 rest = i, source = 0, target = 0;
        bool inside = true;
        for (int axis = 3; axis >= 0; --axis) {
            int64 at = rest % to.size[axis], there = at - shift.by[axis];
            rest /= to.size[axis];
            target += at * to.stride[axis];
            source += there * from.stride[axis];
            inside = inside && there >= 0 && there < from.size[axis];
        }
        real value = inside ? (real)x[source] : (real)0;
        y[target] = add ? y[target] + value : value;
    }
}

// a / b and a % b, faster if both are small: a GPU divides 64-bit numbers in software.
__device__ inline int64 divide(int64 a, int64 b, int64 &rest) {
    if ((uint64)(a | b) >> 32 == 0) {
        rest = (uint32)a % (uint32)b;
        return (uint32)a / (uint32)b;
    }
    rest = a % b;
    return a / b;
}

// y (…, channels, inner) ← y + the bias of its channel (unless null), then optionally max(y, 0).
KERNEL add_bias(stored *y, const stored *bias, int64 n, int64 channels, int64 inner, int relu) {
    EACH(i, n) {
        real v = y[i];
        if (bias) {
            int64 rest, channel;
            divide(divide(i, inner, rest), channels, channel);
            v += bias[channel];
        }
        y[i] = relu && v < 0 ? (real)0 : v;  // NaN stays NaN
    }
}

// The sums of dy (outer, channels, inner) over all axes but the channels. A block adds up one of `parts` parts of
// `width` adjacent channels; if there are several parts, their sums go to `partial` (parts, channels).
KERNEL sum_channels(const stored *dy, stored *sums, double *partial, int64 outer, int64 channels, int64 inner, int64 parts,
                    int64 width) {
    SHARED(double, shared);
    int64 part = blockIdx.x % parts, lanes = blockDim.x / width;
    int64 channel = blockIdx.x / parts * width + threadIdx.x % width;
    double sum = 0;
    if (channel < channels) {
        for (int64 i = part * lanes + threadIdx.x / width; i < outer * inner; i += parts * lanes) {
            int64 at;
            int64 row = divide(i, inner, at);
            sum += dy[(row * channels + channel) * inner + at];
        }
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half >= width; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x < width && channel < channels) {
        if (parts > 1) {
            partial[part * channels + channel] = shared[threadIdx.x];
        } else {
            sums[channel] = (real)shared[threadIdx.x];
        }
    }
}

KERNEL add_parts(const double *partial, stored *sums, int64 channels, int64 parts) {
    EACH(channel, channels) {
        double sum = 0;
        for (int64 part = 0; part < parts; ++part) sum += partial[part * channels + channel];
        sums[channel] = (real)sum;
    }
}
