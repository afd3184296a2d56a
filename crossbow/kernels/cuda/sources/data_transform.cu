// Windows of padded images: y = (x − mean) · scale, where the padding consists of pixels that are 0.

struct Window {
    Size padding;
    Size tops, lefts;                          // number of possible positions of a window
    Size mirror;                               // whether half of the windows are mirrored
    Size mean_channel, mean_row, mean_column;  // strides of the mean
    Size parts;                                // blocks that share an image
};

// A block's share of the window of image n that begins at (top, left) of the padded image.
__device__ inline void window_of(
    const real *x, real *y, const real *mean, const real *scale, const real *border, const Four &in, const Four &out,
    const Window &window, Index n, Index part, Index top, Index left, bool mirrored
) {
    const Index channels = out.size[1], height = out.size[2], width = out.size[3], size = channels * height * width;
    const bool channels_last = out.stride[1] == 1;
    x += n * in.stride[0];
    y += n * out.stride[0];
    for (Index i = part * blockDim.x + threadIdx.x; i < size; i += window.parts * blockDim.x) {
        Index rest = i, channel = 0;
        if (channels_last) {
            channel = rest % channels;
            rest /= channels;
        }
        Index column = rest % width;
        rest /= width;
        Index row = rest;
        if (!channels_last) {
            row = rest % height;
            channel = rest / height;
        }
        Index from_row = top + row - window.padding;
        Index from_column = left + (mirrored ? width - 1 - column : column) - window.padding;
        real value = border[channel];
        if (from_row >= 0 && from_row < in.size[2] && from_column >= 0 && from_column < in.size[3]) {
            real pixel = x[channel * in.stride[1] + from_row * in.stride[2] + from_column * in.stride[3]];
            Index at = channel * window.mean_channel + from_row * window.mean_row + from_column * window.mean_column;
            value = (pixel - mean[at]) * scale[channel];
        }
        y[channel * out.stride[1] + row * out.stride[2] + column * out.stride[3]] = value;
    }
}

// A uniformly distributed integer below `count`.
__device__ inline Index below(uint32 word, Index count) { return (Index)((uint64)word * (uint64)count >> 32); }

// Windows chosen by the random words of each image's (epoch, index). A block processes one image.
KERNEL random_windows(
    const real *x, real *y, const real *mean, const real *scale, const real *border, Four in, Four out, Window window,
    const int64 *state, const int64 *positions, uint32 key, uint32 seed_low, uint32 seed_high
) {
    Index n = blockIdx.x / window.parts, part = blockIdx.x % window.parts;
    const int64 *position = positions + 2 * (state[SLOT] * out.size[0] + n);
    int64 epoch = position[0], index = position[1];
    Words words = philox((uint32)index, key, (uint32)epoch, (uint32)(index >> 32), seed_low, seed_high);
    Index top = below(words.word[0], window.tops), left = below(words.word[1], window.lefts);
    bool mirrored = window.mirror && below(words.word[2], 2);
    window_of(x, y, mean, scale, border, in, out, window, n, part, top, left, mirrored);
}

// Central windows.
KERNEL middle_windows(
    const real *x, real *y, const real *mean, const real *scale, const real *border, Four in, Four out, Window window,
    Size top, Size left
) {
    Index n = blockIdx.x / window.parts, part = blockIdx.x % window.parts;
    window_of(x, y, mean, scale, border, in, out, window, n, part, top, left, false);
}
