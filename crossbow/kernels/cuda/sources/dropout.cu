// Dropout, forward and backward: y = x · mask / (1 − ratio), with the mask of crossbow/kernels/random.py.

enum { WORDS = 4 };  // words of a block, each of which decides about one element

__device__ inline Words block_of(Index block, const int64 *state, uint32 key, uint32 seed_low, uint32 seed_high) {
    int64 task = state[TASK];
    return philox((uint32)block, key, (uint32)task, (uint32)(task >> 32), seed_low, seed_high);
}

// An element uses the word of its logical index. Images (…, positions, channels) lie channels-last; others have one
// channel, and adjacent elements use the words of one block.
KERNEL drop(
    const stored *x, const int64 *state, stored *y, Size n, uint32 least, real scale, uint32 key, uint32 seed_low,
    uint32 seed_high, Size channels, Size positions
) {
    EACH_PACK(at, n) {
        Pack<stored, PACK> pack = load(x, at, n);
        Words words = {};
        for (int k = 0; k < PACK; ++k) {
            Index logical = at + k;
            if (channels > 1) {
                Index pixel = logical / channels, channel = logical - pixel * channels, image = pixel / positions;
                logical = (image * channels + channel) * positions + pixel - image * positions;
            }
            if (channels > 1 || k % WORDS == 0) words = block_of(logical / WORDS, state, key, seed_low, seed_high);
            int which = (int)(logical % WORDS);
            uint32 word = which == 0 ? words.word[0] : which == 1 ? words.word[1] : which == 2 ? words.word[2] : words.word[3];
            pack.value[k] = pack.value[k] * (word >= least ? scale : (real)0);
        }
        store(y, at, n, pack);
    }
}
