#include "pooling.cuh"

// Max. Among equal values the first one wins, and NaN is larger than all numbers.

__device__ inline real lowest() { return -(real)1 / (real)0; }

template <int K1, int K2, bool ADJACENT>
__device__ inline void max_forward(const stored *x, stored *y, uint8 *kept, const Pooling &p) {
    EACH_SPOT(i, outputs_of(p), p) {
        Spot spot = output_spot(p, i);
        real largest[TOGETHER];
        int first[TOGETHER];
        for (int k = 0; k < TOGETHER; ++k) {
            largest[k] = lowest();
            first[k] = -1;
        }
        over_window<K1, K2, ADJACENT>(x, p, spot, lowest(), [&](int position, bool inside, const real *values) {
            for (int k = 0; k < TOGETHER; ++k) {
                if (values[k] > largest[k] || values[k] != values[k] || (inside && first[k] < 0)) {
                    largest[k] = values[k];
                    first[k] = position;
                }
            }
        });
        int place = output_place(p, spot);
        scatter<ADJACENT>(y, spot, place, outputs_of(p), largest);
        if (kept) keep<ADJACENT>(kept, p, spot, place, first);
    }
}

// kept may be null.
KERNEL pooling_max(const stored *x, stored *y, uint8 *kept, Pooling p) { CHOOSE(max_forward, p, x, y, kept, p); }

struct Largest {
    real value;
    int position;
};

// The larger of the largest elements of two parts of a window, in any order.
__device__ inline Largest larger(Largest a, Largest b) {
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) return a_nan && b_nan ? (a.position > b.position ? a : b) : a_nan ? a : b;  // the last NaN
    if (a.value == b.value) return a.position < b.position ? a : b;
    return a.value > b.value ? a : b;
}

// Large windows: one block per output.
KERNEL pooling_max_large(const stored *x, stored *y, uint8 *kept, Pooling p) {
    SHARED(Largest, shared);
    int outputs = (int)p.outer * outputs_of(p);
    for (int i = blockIdx.x; i < outputs; i += gridDim.x) {
        Spot spot = output_spot(p, i, 1);
        Largest largest = {lowest(), 0x7fffffff};  // in a window of −∞, the first position inside the input
        real value;
        for (int position = threadIdx.x; position < (int)p.window; position += blockDim.x) {
            if (element_at(x, p, spot, position, value)) largest = larger(largest, {value, position});
        }
        shared[threadIdx.x] = largest;
        __syncthreads();
        for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) shared[threadIdx.x] = larger(shared[threadIdx.x], shared[threadIdx.x + half]);
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            y[i] = shared[0].value;
            if (kept && p.window <= 256) kept[i] = (uint8)shared[0].position;
            if (kept && p.window > 256) ((int *)kept)[i] = shared[0].position;
        }
        __syncthreads();  // before the next use of `shared`
    }
}

// The gradient of max and stochastic pooling, from the position of each output.
// y: with a ReLU before the pooling, whose derivative follows from it; otherwise null.
template <bool ADJACENT>
__device__ inline void picked_backward(const stored *dy, const uint8 *kept, const stored *y, stored *dx,
                                       const Pooling &p) {
    EACH_SPOT(i, inputs_of(p), p) {
        Spot spot = input_spot(p, i);
        real sum[TOGETHER] = {};
        over_windows(p, spot, [&](int output, int position, const int *) {
            Pack<int, TOGETHER> picked = kept_at<ADJACENT>(kept, p, spot, output);
            Pack<stored, TOGETHER> gradient = gather<ADJACENT>(dy, spot, output, outputs_of(p)), result = {};
            if (y) result = gather<ADJACENT>(y, spot, output, outputs_of(p));
            for (int k = 0; k < TOGETHER; ++k) {
                if (picked.value[k] != position) continue;
                sum[k] += (real)gradient.value[k] * (y && (real)result.value[k] <= 0 ? (real)0 : (real)1);
            }
        });
        scatter<ADJACENT>(dx, spot, input_place(p, spot), inputs_of(p), sum);
    }
}

KERNEL pooling_picked_backward(const stored *dy, const uint8 *kept, const stored *y, stored *dx, Pooling p) {
    if (p.adjacent) {
        picked_backward<true>(dy, kept, y, dx, p);
    } else {
        picked_backward<false>(dy, kept, y, dx, p);
    }
}
