// Kernels of a task outside its operators: load the batch, store results in the host's memory, and find numbers that
// are not finite.

// Load x, in its memory order, from the slot's (images, channels, positions), and labels as 32-bit words.
template <class T>
__device__ inline void load_slot(
    const T *slots, const uint32 *slot_labels, const int64 *state, stored *x, uint32 *labels, Index n, Index channels,
    Index positions, Index words, real scale
) {
    slots += state[SLOT] * n;
    slot_labels += state[SLOT] * words;
    if (channels == 1) {
        transform(n, x, [=](Index, real value) { return value * scale; }, slots);
    } else {
        EACH(i, n) {
            Index pixel = i / channels, channel = i - pixel * channels, image = pixel / positions;
            x[i] = (real)slots[(image * channels + channel) * positions + pixel - image * positions] * scale;
        }
    }
    EACH(i, words) labels[i] = slot_labels[i];
}

KERNEL load_bytes(
    const uint8 *slots, const uint32 *slot_labels, const int64 *state, stored *x, uint32 *labels, Size n, Size channels,
    Size positions, Size words, real scale
) {
    load_slot(slots, slot_labels, state, x, labels, n, channels, positions, words, scale);
}

KERNEL load_floats(
    const float *slots, const uint32 *slot_labels, const int64 *state, stored *x, uint32 *labels, Size n, Size channels,
    Size positions, Size words, real scale
) {
    load_slot(slots, slot_labels, state, x, labels, n, channels, positions, words, scale);
}

KERNEL load_doubles(
    const double *slots, const uint32 *slot_labels, const int64 *state, stored *x, uint32 *labels, Size n, Size channels,
    Size positions, Size words, real scale
) {
    load_slot(slots, slot_labels, state, x, labels, n, channels, positions, words, scale);
}

// Store a task's loss and accuracy, if any, in row state[TURN] of the host's memory (turns, 2).
KERNEL store_results(const real *loss, const real *accuracy, const int64 *state, double *results) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        double *row = results + 2 * state[TURN];
        if (loss) row[0] = *loss;
        if (accuracy) row[1] = *accuracy;
    }
}

// For each block: numbers of NaN and of infinite elements, and the first one in logical order (n if there is none).
KERNEL find_not_finite(const stored *x, Four shape, Size n, int64 *found) {
    SHARED(int64, shared);
    int64 nans = 0, infinite = 0, first = n;
    EACH(i, n) {
        real value = x[place(shape, i)];
        if (!isfinite(value)) {
            if (isnan(value)) {
                ++nans;
            } else {
                ++infinite;
            }
            first = i < first ? i : first;
        }
    }
    nans = reduce(nans, shared);
    infinite = reduce(infinite, shared);
    shared[threadIdx.x] = first;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned t = 1; t < blockDim.x; ++t) first = shared[t] < first ? shared[t] : first;
        found[3 * blockIdx.x] = nans;
        found[3 * blockIdx.x + 1] = infinite;
        found[3 * blockIdx.x + 2] = first;
    }
}
