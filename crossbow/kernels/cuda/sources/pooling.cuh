
// Pooling over up to three spatial axes, and its gradients.
//
// In memory order, a tensor is outer × axis 0 × axis 1 × axis 2 × inner. For images in logical order, the outer axis is
// examples × channels and the inner one has size 1; channels-last, they are examples and channels. Adjacent threads
// process adjacent elements in this order: of the output in the forward pass, and of the input in the backward pass,
// where a thread gathers from all windows that cover its element. A thread processes TOGETHER elements, for which it
// computes positions once: adjacent ones along the inner axis, which it reads and writes as a pack, if the size of the
// inner axis and the arrays' addresses allow it; otherwise those of adjacent outer indices. A call has fewer than 2^30
// elements, so indices have 32 bits; a multiplication divides them.

enum { TOGETHER = PACK < 4 ? 4 : PACK };

// A divisor. The multiplier is ⌈2^shift / value⌉, with the shift 31 + ⌈log2 value⌉, which is exact for
// 0 ≤ n < 2^31.
struct Divisor {
    int64 multiplier, shift;
};

__device__ inline int quotient(const Divisor &d, int n) {
    return (int)((uint64)(uint32)n * (uint32)d.multiplier >> d.shift);
}

struct Axis {
    int64 size, windows, kernel, stride, before, dilation;
    int64 low, high;  // average: positions in [low, high) count in the divisor
    Divisor by_size, by_windows, by_kernel, by_stride, by_dilation;
};

struct Pooling {
    int64 outer, inner;
    int64 adjacent;  // whether the elements of a thread are
    int64 runs;      // on the inner axis: of one element or, if adjacent, of TOGETHER
    int64 first;   // outer indices of earlier calls
    int64 window;  // elements of a window
    Divisor by_runs;
    Axis axis[3];
};

// Numbers of elements of one outer index.
__device__ inline int inputs_of(const Pooling &p) {
    return (int)p.axis[0].size * (int)p.axis[1].size * (int)p.axis[2].size * (int)p.inner;
}
__device__ inline int outputs_of(const Pooling &p) {
    return (int)p.axis[0].windows * (int)p.axis[1].windows * (int)p.axis[2].windows * (int)p.inner;
}

// A thread's position: the first of its `many` elements.
struct Spot {
    int outer, many, inner, at[3];
};

// The run of a thread, and its outer indices.
__device__ inline int inner_index(const Pooling &p, Spot &s, int i) {
    int q = quotient(p.by_runs, i);
    s.inner = (i - q * (int)p.runs) * (p.adjacent ? TOGETHER : 1);
    return q;
}
__device__ inline void outer_indices(const Pooling &p, Spot &s, int q, int together) {
    s.outer = p.adjacent ? q : q * together;
    s.many = p.adjacent ? TOGETHER : (int)p.outer - s.outer;
}

__device__ inline Spot output_spot(const Pooling &p, int i, int together = TOGETHER) {
    Spot s;
    int q = inner_index(p, s, i);
    for (int a = 2; a >= 0; --a) {
        i = q;
        q = quotient(p.axis[a].by_windows, i);
        s.at[a] = i - q * (int)p.axis[a].windows;
    }
    outer_indices(p, s, q, together);
    return s;
}

__device__ inline Spot input_spot(const Pooling &p, int i) {
    Spot s;
    int q = inner_index(p, s, i);
    for (int a = 2; a >= 0; --a) {
        i = q;
        q = quotient(p.axis[a].by_size, i);
        s.at[a] = i - q * (int)p.axis[a].size;
    }
    outer_indices(p, s, q, TOGETHER);
    return s;
}

__device__ inline int spots(const Pooling &p, int per_outer) {
    if (p.adjacent) return (int)p.outer * (per_outer / TOGETHER);
    return ((int)p.outer + TOGETHER - 1) / TOGETHER * per_outer;
}

#define EACH_SPOT(i, per_outer, p)                                                        \
    for (int i = blockIdx.x * blockDim.x + threadIdx.x, n_ = spots(p, per_outer); i < n_; \
         i += gridDim.x * blockDim.x)

// The elements of a thread, of which the first is at `place`. Those of adjacent outer indices have this distance.
template <bool ADJACENT, class T>
__device__ inline Pack<T, TOGETHER> gather(const T *x, const Spot &s, int place, int distance) {
    if constexpr (ADJACENT) {
        return *(const Pack<T, TOGETHER> *)(x + place);
    } else {
        Pack<T, TOGETHER> pack = {};
        for (int k = 0; k < TOGETHER; ++k) {
            if (k < s.many) pack.value[k] = x[place + k * distance];
        }
        return pack;
    }
}

template <bool ADJACENT, class T, class V>
__device__ inline void scatter(T *y, const Spot &s, int place, int distance, const V *values) {
    Pack<T, TOGETHER> pack;
    for (int k = 0; k < TOGETHER; ++k) pack.value[k] = (V)values[k];
    if constexpr (ADJACENT) {
        *(Pack<T, TOGETHER> *)(y + place) = pack;
    } else {
        for (int k = 0; k < TOGETHER; ++k) {
            if (k < s.many) y[place + k * distance] = pack.value[k];
        }
    }
}

// Memory positions of an input's and of an output's element, for the first outer index.
__device__ inline int input_place(const Pooling &p, const Spot &s) {
    int line = (s.outer * (int)p.axis[0].size + s.at[0]) * (int)p.axis[1].size + s.at[1];
    return (line * (int)p.axis[2].size + s.at[2]) * (int)p.inner + s.inner;
}
__device__ inline int output_place(const Pooling &p, const Spot &s) {
    int line = (s.outer * (int)p.axis[0].windows + s.at[0]) * (int)p.axis[1].windows + s.at[1];
    return (line * (int)p.axis[2].windows + s.at[2]) * (int)p.inner + s.inner;
}

// Visit every position of a window, row by row: visit(number of the position, whether it is inside the input, the
// elements, or `beyond`). K1 and K2 are the window's sizes on the last two axes, or 0 if unknown.
template <int K1, int K2, bool ADJACENT, class Visit>
__device__ inline void over_window(const stored *x, const Pooling &p, const Spot &s, real beyond, Visit visit) {
    const Axis &a0 = p.axis[0], &a1 = p.axis[1], &a2 = p.axis[2];
    const int rows = K1 ? K1 : (int)a1.kernel, columns = K2 ? K2 : (int)a2.kernel, distance = inputs_of(p);
    int start0 = s.at[0] * (int)a0.stride - (int)a0.before;
    int start1 = s.at[1] * (int)a1.stride - (int)a1.before;
    int start2 = s.at[2] * (int)a2.stride - (int)a2.before;
    for (int u = 0; u < (int)a0.kernel; ++u) {
        int plane = start0 + u * (int)a0.dilation;
        bool on_plane = plane >= 0 && plane < (int)a0.size;
        for (int v = 0; v < rows; ++v) {
            int row = start1 + v * (int)a1.dilation;
            bool on_row = on_plane && row >= 0 && row < (int)a1.size;
            int line = ((s.outer * (int)a0.size + plane) * (int)a1.size + row) * (int)a2.size;
            for (int w = 0; w < columns; ++w) {
                int column = start2 + w * (int)a2.dilation;
                bool inside = on_row && column >= 0 && column < (int)a2.size;
                int place = (line + column) * (int)p.inner + s.inner;
                real values[TOGETHER];
                Pack<stored, TOGETHER> pack;
                if (inside) pack = gather<ADJACENT>(x, s, place, distance);
                for (int k = 0; k < TOGETHER; ++k) values[k] = inside ? (real)pack.value[k] : beyond;
                visit((u * rows + v) * columns + w, inside, values);
            }
        }
    }
}

// Visit every window that covers an element of the input: visit(memory position of its output, for the first outer
// index; number of the element's position in the window; the window's index on each axis).
template <class Visit> __device__ inline void over_windows(const Pooling &p, const Spot &s, Visit visit) {
    int first[3], last[3], from[3];
    for (int a = 0; a < 3; ++a) {
        const Axis &axis = p.axis[a];
        from[a] = s.at[a] + (int)axis.before;  // distance from the start of window 0
        int beyond = from[a] - (int)(axis.kernel - 1) * (int)axis.dilation;
        first[a] = beyond <= 0 ? 0 : quotient(axis.by_stride, beyond + (int)axis.stride - 1);
        last[a] = quotient(axis.by_stride, from[a]);
        if (last[a] > (int)axis.windows - 1) last[a] = (int)axis.windows - 1;
    }
    Spot window = s;
    int position[3] = {0, 0, 0};
    auto covers = [&](int a) {  // whether the window covers the element on this axis
        const Axis &axis = p.axis[a];
        int distance = from[a] - window.at[a] * (int)axis.stride;
        position[a] = axis.dilation == 1 ? distance : quotient(axis.by_dilation, distance);
        return axis.dilation == 1 || position[a] * (int)axis.dilation == distance;
    };
    for (window.at[0] = first[0]; window.at[0] <= last[0]; ++window.at[0]) {
        if (!covers(0)) continue;
        for (window.at[1] = first[1]; window.at[1] <= last[1]; ++window.at[1]) {
            if (!covers(1)) continue;
            for (window.at[2] = first[2]; window.at[2] <= last[2]; ++window.at[2]) {
                if (!covers(2)) continue;
                int number = (position[0] * (int)p.axis[1].kernel + position[1]) * (int)p.axis[2].kernel + position[2];
                visit(output_place(p, window), number, window.at);
            }
        }
    }
}

// The numbers of the positions that outputs came from, in a byte if the window has at most 256 positions.
template <bool ADJACENT>
__device__ inline void keep(uint8 *kept, const Pooling &p, const Spot &s, int place, const int *positions) {
    if (p.window <= 256) {
        scatter<ADJACENT>(kept, s, place, outputs_of(p), positions);
    } else {
        scatter<ADJACENT>((int *)kept, s, place, outputs_of(p), positions);
    }
}
template <bool ADJACENT>
__device__ inline Pack<int, TOGETHER> kept_at(const uint8 *kept, const Pooling &p, const Spot &s, int place) {
    if (p.window > 256) return gather<ADJACENT>((const int *)kept, s, place, outputs_of(p));
    Pack<uint8, TOGETHER> bytes = gather<ADJACENT>(kept, s, place, outputs_of(p));
    Pack<int, TOGETHER> positions;
    for (int k = 0; k < TOGETHER; ++k) positions.value[k] = bytes.value[k];
    return positions;
}

// Whether a position of a window is inside the input, and its element, for the first outer index.
__device__ inline bool element_at(const stored *x, const Pooling &p, Spot s, int position, real &value) {
    for (int a = 2; a >= 0; --a) {
        const Axis &axis = p.axis[a];
        int rest = quotient(axis.by_kernel, position);
        int step = (position - rest * (int)axis.kernel) * (int)axis.dilation;
        s.at[a] = s.at[a] * (int)axis.stride - (int)axis.before + step;
        if (s.at[a] < 0 || s.at[a] >= axis.size) return false;
        position = rest;
    }
    value = x[input_place(p, s)];
    return true;
}

// For the usual windows, the compiler knows all loads of a thread and issues them together.
#define CHOOSE_WINDOW(function, adjacent, p, ...)                                           \
    do {                                                                                    \
        if ((p).window == 4 && (p).axis[1].kernel == 2 && (p).axis[2].kernel == 2) {        \
            function<2, 2, adjacent>(__VA_ARGS__);                                          \
        } else if ((p).window == 9 && (p).axis[1].kernel == 3 && (p).axis[2].kernel == 3) { \
            function<3, 3, adjacent>(__VA_ARGS__);                                          \
        } else {                                                                            \
            function<0, 0, adjacent>(__VA_ARGS__);                                          \
        }                                                                                   \
    } while (false)
#define CHOOSE(function, p, ...)                            \
    do {                                                    \
        if ((p).adjacent) {                                 \
            CHOOSE_WINDOW(function, true, p, __VA_ARGS__);  \
        } else {                                            \
            CHOOSE_WINDOW(function, false, p, __VA_ARGS__); \
        }                                                   \
    } while (false)
