// Common definitions, prepended to all kernels. REAL is the type of numbers, float or double. STORED is the element type
// of tensors in kernels that support 16 bits: float16, bfloat16 or, by default, REAL.
//
// Kernels are written so that they can also be compiled as C++ and run on a processor, for tests: one-dimensional blocks
// and grids, no atomics and no warp functions (sums are always added in the same order), shared memory only through SHARED.

typedef REAL real;
typedef long long int64;
typedef unsigned long long uint64;
typedef unsigned int uint32;
typedef unsigned char uint8;

// Positions in arrays: 32 bits, which GPUs divide and multiply faster, unless an array is larger (launch.py).
#ifdef WIDE
typedef int64 Index;
#else
typedef int Index;
#endif

// A number of elements, or a distance between them, as the host passes it: with 64 bits. It is read as an Index.
struct Size {
    int64 value;

    __device__ inline operator Index() const { return (Index)value; }
};

// 16-bit numbers, for storage only: arithmetic is in float, and assignments round to nearest.

// The upper half of a float.
struct bfloat16 {
    unsigned short bits;

    __device__ operator float() const { return __uint_as_float((uint32)bits << 16); }

    __device__ bfloat16 &operator=(float x) {
        uint32 word = __float_as_uint(x);
        // Add half of the last place, or one less if that place is even. This could turn NaN into infinity.
        bits = (unsigned short)((x != x ? word | 0x400000 : word + 0x7FFF + (word >> 16 & 1)) >> 16);
        return *this;
    }
};

// IEEE 754's binary16.
struct float16 {
    unsigned short bits;

    __device__ operator float() const {
#ifdef __CUDA_ARCH__
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
#else
        return emulated::from_float16(bits);
#endif
    }

    __device__ float16 &operator=(float x) {
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        bits = emulated::to_float16(x);
#endif
        return *this;
    }
};

#ifdef STORED
typedef STORED stored;
#else
typedef real stored;
#endif

#define KERNEL extern "C" __global__ void

// The beginning of kernels that are launched before the earlier kernels of their stream have ended
// (dependent_launch.py). The next kernel may be launched, too, and memory is not accessed before the earlier kernels
// are done.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define WAIT_FOR_EARLIER_KERNELS()                        \
    asm volatile("griddepcontrol.launch_dependents;");    \
    asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define WAIT_FOR_EARLIER_KERNELS()
#endif

// The block's dynamic shared memory, as an array.
#ifndef SHARED
#define SHARED(type, name)                           \
    extern __shared__ __align__(16) uint8 shared_[]; \
    type *name = (type *)shared_
#endif

// For every i < n, distributed over the threads with a stride.
#define EACH(i, n) \
    for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < (Index)(n); i += gridDim.x * (Index)blockDim.x)

// Adjacent elements of an array, which are read and written together, up to 16 bytes at once.
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
    enum { WIDTH = N };
    T value[N];
};

// Number of elements that a thread of a pointwise kernel takes (launch.py), for any alignment of arrays: series.py
// joins such kernels, and each thread must have the same elements in all of them.
enum { PACK = 16 / sizeof(stored) };

// For the first of every PACK elements of n, distributed over the threads with a stride.
#define EACH_PACK(at, n)                                                                    \
    for (Index at = PACK * (blockIdx.x * (Index)blockDim.x + threadIdx.x); at < (Index)(n); \
         at += PACK * (gridDim.x * (Index)blockDim.x))

// Whether the elements at this position of n are a whole pack, at an address for its type.
template <class T> __device__ inline bool is_pack(const T *x, Index at, Index n) {
    return n - at >= PACK && (uint64)x % alignof(Pack<T, PACK>) == 0;
}

// Elements from position `at` of n on. Missing elements are 0, and all are if x is null.
template <class T> __device__ inline Pack<T, PACK> load(const T *x, Index at, Index n) {
    if (x && is_pack(x, at, n)) return *(const Pack<T, PACK> *)(x + at);
    Pack<T, PACK> pack = {};
    for (int k = 0; k < PACK; ++k) {
        if (x && k < n - at) pack.value[k] = x[at + k];
    }
    return pack;
}

template <class T> __device__ inline void store(T *y, Index at, Index n, const Pack<T, PACK> &pack) {
    if (is_pack(y, at, n)) {
        *(Pack<T, PACK> *)(y + at) = pack;
        return;
    }
    for (int k = 0; k < PACK; ++k) {
        if (k < n - at) y[at + k] = pack.value[k];
    }
}

template <class Y, class Function, class... X>
__device__ inline void transform_pack(Index at, Index n, Y *y, Function function, const Pack<X, PACK> &...x) {
    Pack<Y, PACK> result;
    for (int k = 0; k < PACK; ++k) result.value[k] = function(at + k, x.value[k]...);
    store(y, at, n, result);
}

// y[i] = function(i, x[i], …) for every i < n, where a null x has zeros. y may be an x. The function is also called with
// zeros for positions from n on, up to a whole pack.
template <class Y, class Function, class... X>
__device__ inline void transform(Index n, Y *y, Function function, const X *...x) {
    EACH_PACK(at, n) transform_pack(at, n, y, function, load(x, at, n)...);
}

// Four logical axes with their strides. Arrays with more axes join contiguous ones, and arrays with fewer axes add axes
// of size 1.
struct Four {
    Size size[4];
    Size stride[4];
};

__device__ inline Index elements(const Four &t) { return t.size[0] * t.size[1] * t.size[2] * t.size[3]; }

// Memory position of the element with logical index i (the last axis varies fastest).
__device__ inline Index place(const Four &t, Index i) {
    Index d = i % t.size[3];
    i /= t.size[3];
    Index c = i % t.size[2];
    i /= t.size[2];
    Index b = i % t.size[1];
    return i / t.size[1] * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
}

// Memory position of the start of line i along `axis`, counted over the other three axes (the last varies fastest).
__device__ inline Index line(const Four &t, int axis, Index i) {
    Index at = 0;
    for (int other = 3; other >= 0; --other) {
        if (other != axis) {
            at += i % t.size[other] * t.stride[other];
            i /= t.size[other];
        }
    }
    return at;
}

// The sum of the values of a block's threads (a power of two, at most 1024), added pairwise and always in the same
// order. Returned to all threads, which must all call it.
template <class T> __device__ inline T reduce(T value, T *shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    T sum = shared[0];
    __syncthreads();  // before the next use of `shared`
    return sum;
}

// The largest value of a block's threads, returned to all of them. NaN may be ignored.
template <class T> __device__ inline T reduce_largest(T value, T *shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x]) {
            shared[threadIdx.x] = shared[threadIdx.x + half];
        }
        __syncthreads();
    }
    T largest = shared[0];
    __syncthreads();
    return largest;
}

// Philox4x32-10: the words of crossbow/kernels/random.py.
struct Words {
    uint32 word[4];
};

__device__ inline Words philox(uint32 c0, uint32 c1, uint32 c2, uint32 c3, uint32 k0, uint32 k1) {
    for (int round = 0; round < 10; ++round) {
        uint64 p0 = (uint64)c0 * 0xD2511F53u, p1 = (uint64)c2 * 0xCD9E8D57u;
        uint32 n0 = (uint32)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32)p1;
        c3 = (uint32)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Positions in the task state (crossbow/kernels/interface.py).
enum { TASK = 0, SLOT = 1, EXAMPLES = 2, TICK = 3, TURN = 4 };

