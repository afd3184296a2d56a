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

// Positions in tensors: 32 bits, which GPUs divide and multiply faster, unless a tensor is larger (launch.py).
#ifdef WIDE
typedef int64 Index;
#else
typedef int Index;
#endif

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

// The block's dynamic shared memory, as an array.
#ifndef SHARED
#define SHARED(type, name)                           \
    extern __shared__ __align__(16) uint8 shared_[]; \
    type *name = (type *)shared_
#endif

// For every i < n, distributed over the threads with a stride.
#define EACH(i, n) \
    for (int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x; i < (n); i += (int64)gridDim.x * blockDim.x)

// Four logical axes with their strides. Arrays with more axes join contiguous ones, and arrays with fewer axes add axes
// of size 1.
struct Four {
    int64 size[4];
    int64 stride[4];
};

__device__ inline int64 elements(const Four &t) { return t.size[0] * t.size[1] * t.size[2] * t.size[3]; }

// Memory position of the element with logical index i (the last axis varies fastest).
__device__ inline int64 place(const Four &t, int64 i) {
    int64 d = i % t.size[3];
    i /= t.size[3];
    int64 c = i % t.size[2];
    i /= t.size[2];
    int64 b = i % t.size[1];
    return i / t.size[1] * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
}

// Memory position of the start of line i along `axis`, counted over the other three axes (the last varies fastest).
__device__ inline int64 line(const Four &t, int axis, int64 i) {
    int64 at = 0;
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

// The largest value of a block's threads, to all of them. NaN may lose.
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

