// Enough of CUDA C++ to run a kernel on a processor: block after block, and in a block thread after thread. Where threads
// meet (`__syncthreads`), each has a stack of its own, and they take turns.

#ifdef __clang__
#undef _FORTIFY_SOURCE  // which takes a jump to another stack for a mistake
#include <setjmp.h>
#endif
#include <ucontext.h>

// C's headers and the compiler's own functions: a kernel is compiled in a third of the time that C++'s headers take.
#include <float.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define SHARED(type, name) type *name = (type *)emulated::shared

#define OF_BOTH_TYPES(name) \
    static inline float name(float x) { return __builtin_##name##f(x); } \
    static inline double name(double x) { return __builtin_##name(x); }
OF_BOTH_TYPES(erfc)
OF_BOTH_TYPES(exp)
OF_BOTH_TYPES(fabs)
OF_BOTH_TYPES(log)
OF_BOTH_TYPES(log1p)
OF_BOTH_TYPES(sqrt)
OF_BOTH_TYPES(tanh)
static inline float pow(float x, float y) { return __builtin_powf(x, y); }
static inline double pow(double x, double y) { return __builtin_pow(x, y); }
static inline double nan(const char *) { return __builtin_nan(""); }
template <class T> static inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> static inline bool isnan(T x) { return __builtin_isnan(x); }

struct Dim {
    unsigned x = 0, y = 0, z = 0;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

namespace emulated {

// The compiler's own type rounds as the GPU's instructions do.
static inline float from_float16(unsigned short bits) {
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    return (float)x;
}

static inline unsigned short to_float16(float x) {
    _Float16 rounded = (_Float16)x;
    unsigned short bits;
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

static unsigned char *shared = nullptr;
static unsigned running;
static void (*function)(void **);
static void **arguments;
constexpr size_t STACK = (1 << 16) + 5 * 64;  // no power of two, or all stacks' ends were in the same lines of the cache

// Where to go on. GCC's own jumps keep three addresses and no register: a launch may go from one thread to another 100,000
// times. Clang has them on some processors only.
#ifdef __clang__
typedef jmp_buf Place;
#define HERE(place) _setjmp(place)
#define GO_ON(place) _longjmp(place, 1)
#define APART __attribute__((noinline))
#else
typedef void *Place[5];
#define HERE(place) __builtin_setjmp(place)
#define GO_ON(place) __builtin_longjmp(place, 1)
#define APART __attribute__((noipa))  // nothing is known of the registers that it leaves alone: others run meanwhile
#endif

// A thread of a block: it waits for the next block, or the next launch, where it has ended. Contexts of POSIX begin it;
// later switches are jumps, which need no call of the system.
struct Thread {
    Place place;
    bool ended;
};
static Thread *thread_states;
static unsigned begun;
static char *stacks;  // of which most is never touched
static Place scheduler;

// A function that may go on where another one said must not be the same one.
APART static void to_scheduler() { GO_ON(scheduler); }
APART static void to_thread(unsigned t) { GO_ON(thread_states[t].place); }

APART static void meet() {
    if (!HERE(thread_states[running].place)) to_scheduler();
}

static void thread() {
    for (;;) {
        meet();
        function(arguments);
        thread_states[running].ended = true;
    }
}

APART static void begin(unsigned t) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + t * STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, thread, 0);
    running = t;
    if (!HERE(scheduler)) setcontext(&context);
}

APART static void go_on(unsigned t) {
    running = threadIdx.x = t;
    if (!HERE(scheduler)) to_thread(t);
}

// Those of a launch before wait where they ended, but not if their stacks move.
static void begin_threads(unsigned threads) {
    if (begun >= threads) return;
    free(stacks);
    free(thread_states);
    stacks = (char *)malloc(threads * STACK);
    thread_states = (Thread *)calloc(threads, sizeof(Thread));
    begun = threads;
    for (unsigned t = 0; t < threads; ++t) begin(t);
}

static void block_of_meeting_threads() {
    for (unsigned t = 0; t < blockDim.x; ++t) thread_states[t].ended = false;
    for (bool more = true; more;) {
        more = false;
        for (unsigned t = 0; t < blockDim.x; ++t) {
            if (!thread_states[t].ended) {
                go_on(t);
                more = more || !thread_states[t].ended;
            }
        }
    }
}

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct PlacesOf : PlacesOf<N - 1, N - 1, I...> {};
template <size_t... I> struct PlacesOf<0, I...> { typedef Places<I...> type; };

template <class... A, size_t... I> void call(void (*f)(A...), void **p, Places<I...>) { f(*(A *)p[I]...); }

template <auto F, class... A> void unpack_of(void (*)(A...), void **p) {
    call(F, p, typename PlacesOf<sizeof...(A)>::type());
}

template <auto F> void unpack(void **p) { unpack_of<F>(F, p); }

template <class... A> void sizes_of(void (*)(A...), size_t *sizes) { ((*sizes++ = sizeof(A)), ...); }

constexpr size_t GUARD = 1 << 15;

// Whether a thread has written behind the shared memory.
static bool run(void (*f)(void **), void **p, unsigned blocks, unsigned threads, unsigned bytes, bool meeting) {
    unsigned char *memory = (unsigned char *)malloc(bytes + 64 + GUARD);
    memset(memory, 0xCD, bytes + 64 + GUARD);  // shared memory begins with anything
    shared = (unsigned char *)(((uintptr_t)memory + 63) / 64 * 64);
    function = f;
    arguments = p;
    gridDim.x = blocks;
    blockDim.x = threads;
    if (meeting) begin_threads(threads);
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        if (meeting) {
            block_of_meeting_threads();
        } else {
            for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) f(p);
        }
    }
    bool beyond = false;
    for (size_t i = 0; i < GUARD; ++i) beyond = beyond || shared[bytes + i] != 0xCD;
    free(memory);
    return beyond;
}

}  // namespace emulated

static inline void __syncthreads() { emulated::meet(); }
