// What stands around cuDNN's convolutions: biases and their gradients, and tensors moved to where it takes them.

// How far a tensor lies inside another, along each axis.
struct Shift {
    int64 by[4];
};

// y ← x inside a border of zeros or, with negative shifts, what of x is inside its border. The axes are best ordered as
// y's elements lie.
KERNEL move(const stored *x, Four from, stored *y, Four to, Shift shift) {
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
        y[target] = inside ? x[source] : (real)0;
    }
}

// a / b and a % b, faster where both are small: a GPU divides 64-bit numbers by long routines.
__device__ inline int64 divide(int64 a, int64 b, int64 &rest) {
    if ((uint64)(a | b) >> 32 == 0) {
        rest = (uint32)a % (uint32)b;
        return (uint32)a / (uint32)b;
    }
    rest = a % b;
    return a / b;
}

// y (…, channels, inner) ← y + the bias of its channel (none where null), and then perhaps max(y, 0).
KERNEL add_bias(stored *y, const stored *bias, int64 n, int64 channels, int64 inner, int relu) {
    EACH(i, n) {
        real v = y[i];
        if (bias) {
            int64 rest, channel;
            divide(divide(i, inner, rest), channels, channel);
            v += bias[channel];
        }
        y[i] = relu && v < 0 ? (real)0 : v;  // NaN stays what it is
    }
}

// The sums of dy (outer, channels, inner) over all but the channels. A block has `width` channels side by side, and of
// their elements one of `parts` parts; where there are several, their sums go to `partial` (parts, channels).
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
