#include "pooling.cuh"

// Average.

// Number of a window's positions that count, on an axis.
__device__ inline int counted(const Axis &a, int window) {
    int start = window * (int)a.stride - (int)a.before, ahead = (int)a.low - start, room = (int)a.high - start;
    if (room <= 0) return 0;
    int from = ahead <= 0 ? 0 : quotient(a.by_dilation, ahead + (int)a.dilation - 1);
    int to = quotient(a.by_dilation, room + (int)a.dilation - 1);
    if (to > (int)a.kernel) to = (int)a.kernel;
    return to > from ? to - from : 0;
}

// The divisor of a window's sum.
__device__ inline real counted(const Pooling &p, const int *window) {
    real count = (real)counted(p.axis[2], window[2]) * (real)counted(p.axis[1], window[1]);
    return p.axis[0].kernel == 1 ? count : count * (real)counted(p.axis[0], window[0]);
}

// The type of a window's sum: its own type for known, small sizes.
template <int K> struct Total {
    typedef real type;
};
template <> struct Total<0> {
    typedef double type;
};

template <int K1, int K2, bool ADJACENT>
__device__ inline void average_forward(const stored *x, stored *y, const Pooling &p) {
    EACH_SPOT(i, outputs_of(p), p) {
        Spot spot = output_spot(p, i);
        typename Total<K1>::type sum[TOGETHER] = {};
        over_window<K1, K2, ADJACENT>(x, p, spot, (real)0, [&](int, bool, const real *values) {
            for (int k = 0; k < TOGETHER; ++k) sum[k] += values[k];
        });
        real count = counted(p, spot.at);
        real mean[TOGETHER];
        for (int k = 0; k < TOGETHER; ++k) mean[k] = (real)sum[k] / count;
        scatter<ADJACENT>(y, spot, output_place(p, spot), outputs_of(p), mean);
    }
}

KERNEL pooling_average(const stored *x, stored *y, Pooling p) { CHOOSE(average_forward, p, x, y, p); }

// Large windows: one block per output.
KERNEL pooling_average_large(const stored *x, stored *y, Pooling p) {
    SHARED(double, shared);
    int outputs = (int)p.outer * outputs_of(p);
    for (int i = blockIdx.x; i < outputs; i += gridDim.x) {
        Spot spot = output_spot(p, i, 1);
        double sum = 0;
        real value;
        for (int position = threadIdx.x; position < (int)p.window; position += blockDim.x) {
            if (element_at(x, p, spot, position, value)) sum += value;
        }
        sum = reduce(sum, shared);
        if (threadIdx.x == 0) y[i] = (real)sum / counted(p, spot.at);
    }
}

// The whole input is one window: y[o][c] = Σ_r x[o][r][c] / rows. A block takes `width` outputs, a power of two, and its
// threads with the same output share the rows. Adjacent threads have adjacent outputs, or the rows of one output if
// there is one column.
KERNEL pooling_average_whole(const stored *x, stored *y, Size outputs, Size rows, Size columns, Size width) {
    SHARED(double, shared);
    int lanes = blockDim.x / (int)width, own = threadIdx.x % (int)width, lane = threadIdx.x / (int)width;
    if (columns == 1) {
        own = threadIdx.x / lanes;
        lane = threadIdx.x % lanes;
    }
    for (Index first = blockIdx.x * width; first < outputs; first += gridDim.x * width) {
        Index i = first + own, o = i / columns;
        double sum = 0;
        if (i < outputs) {
            const stored *column = x + o * rows * columns + (i - o * columns);
            for (Index r = lane; r < rows; r += lanes) sum += column[r * columns];
        }
        shared[lane * (int)width + own] = sum;
        __syncthreads();
        for (int half = lanes / 2; half > 0; half /= 2) {
            if (lane < half) shared[lane * (int)width + own] += shared[(lane + half) * (int)width + own];
            __syncthreads();
        }
        if (lane == 0 && i < outputs) y[i] = (real)shared[own] / (real)rows;
        __syncthreads();  // before the next use of `shared`
    }
}

template <bool ADJACENT>
__device__ inline void average_backward(const stored *dy, stored *dx, const Pooling &p) {
    EACH_SPOT(i, inputs_of(p), p) {
        Spot spot = input_spot(p, i);
        real sum[TOGETHER] = {};
        over_windows(p, spot, [&](int output, int, const int *window) {
            real share = 1 / counted(p, window);
            Pack<stored, TOGETHER> gradient = gather<ADJACENT>(dy, spot, output, outputs_of(p));
            for (int k = 0; k < TOGETHER; ++k) sum[k] += gradient.value[k] * share;
        });
        scatter<ADJACENT>(dx, spot, input_place(p, spot), inputs_of(p), sum);
    }
}

KERNEL pooling_average_backward(const stored *dy, stored *dx, Pooling p) {
    if (p.adjacent) {
        average_backward<true>(dy, dx, p);
    } else {
        average_backward<false>(dy, dx, p);
    }
}
