// Biases along the channels, and their gradients.

// y (…, channels, inner) ← y + the bias of its channel (unless null), then optionally max(y, 0).
KERNEL add_bias(stored *y, const stored *bias, Size n, Size channels, Size inner, int relu) {
    auto add = [=](Index i, real v) {
        if (bias) v += bias[i / inner % channels];
        return relu && v < 0 ? (real)0 : v;  // NaN stays NaN
    };
    transform(n, y, add, y);
}

// The sums of dy (outer, channels, inner) over all axes but the channels. A block adds up one of `parts` parts of
// `width` adjacent channels; if there are several parts, their sums go to `partial` (parts, channels).
KERNEL sum_channels(const stored *dy, stored *sums, double *partial, Size outer, Size channels, Size inner, Size parts,
                    Size width) {
    SHARED(double, shared);
    Index part = blockIdx.x % parts, lanes = blockDim.x / width;
    Index channel = blockIdx.x / parts * width + threadIdx.x % width;
    double sum = 0;
    if (channel < channels) {
        for (Index i = part * lanes + threadIdx.x / width; i < outer * inner; i += parts * lanes) {
            Index row = i / inner;
            sum += dy[(row * channels + channel) * inner + i - row * inner];
        }
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (Index half = (Index)blockDim.x / 2; half >= width; half /= 2) {
        if ((Index)threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if ((Index)threadIdx.x < width && channel < channels) {
        if (parts > 1) {
            partial[part * channels + channel] = shared[threadIdx.x];
        } else {
            sums[channel] = (real)shared[threadIdx.x];
        }
    }
}

KERNEL add_parts(const double *partial, stored *sums, Size channels, Size parts) {
    EACH(channel, channels) {
        double sum = 0;
        for (Index part = 0; part < parts; ++part) sum += partial[part * channels + channel];
        sums[channel] = (real)sum;
    }
}
