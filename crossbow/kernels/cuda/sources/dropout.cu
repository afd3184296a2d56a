// Dropout, forward and backward: y = x · mask / (1 − ratio), with the mask of crossbow/kernels/random.py.

struct alignas(4 * sizeof(stored)) Quad {
    stored value[4];
};

__device__ inline Words block_of(int64 block, const int64 *state, uint32 key, uint32 seed_low, uint32 seed_high) {
    int64 task = state[TASK];
    return philox((uint32)block, key, (uint32)task, (uint32)(task >> 32), seed_low, seed_high);
}

// Logical order: a thread processes the four elements of a block of random words.
KERNEL drop(
    const stored *x, const int64 *state, stored *y, int64 n, uint32 least, real scale, uint32 key, uint32 seed_low,
    uint32 seed_high
) {
    const bool aligned = ((uint64)x | (uint64)y) % sizeof(Quad) == 0;
    EACH(block, (n + 3) / 4) {
        Words words = block_of(block, state, key, seed_low, seed_high);
        int64 start = 4 * block;
        if (aligned && start + 4 <= n) {
            Quad quad = ((const Quad *)x)[block];
            for (int i = 0; i < 4; ++i) quad.value[i] = quad.value[i] * (words.word[i] >= least ? scale : (real)0);
            ((Quad *)y)[block] = quad;
        } else {
            for (int i = 0; i < 4 && start + i < n; ++i) {
                y[start + i] = x[start + i] * (words.word[i] >= least ? scale : (real)0);
            }
        }
    }
}

// A thread for each element, which uses the random word of its logical index. Images (…, positions, channels) lie
// channels-last; others have one channel.
KERNEL drop_each(
    const stored *x, const int64 *state, stored *y, int64 n, uint32 least, real scale, uint32 key, uint32 seed_low,
    uint32 seed_high, int64 channels, int64 positions
) {
    EACH(i, n) {
        int64 pixel = i / channels, channel = i % channels;
        int64 logical = (pixel / positions * channels + channel) * positions + pixel % positions;
        Words words = block_of(logical / 4, state, key, seed_low, seed_high);
        uint32 which = (uint32)logical % 4;
        uint32 word = which == 0 ? words.word[0] : which == 1 ? words.word[1] : which == 2 ? words.word[2] : words.word[3];
        y[i] = x[i] * (word >= least ? scale : (real)0);
    }
}
