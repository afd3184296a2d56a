#include "pooling.cuh"

// Stochastic: the element at which the running sum of max(x, 0) reaches r times the total. Sums are in double, row by
// row, as in the reference.

// The random word of an output, by its logical index.
__device__ inline uint32 word_of(const Pooling &p, const Spot &s, int k, uint32 key, uint64 seed, uint64 task) {
    int64 number = (p.first + s.outer + (p.adjacent ? 0 : k)) * p.inner + s.inner + (p.adjacent ? k : 0);
    for (int a = 0; a < 3; ++a) number = number * p.axis[a].windows + s.at[a];
    uint32 task_high = (uint32)(task >> 32), seed_high = (uint32)(seed >> 32);
    Words words = philox((uint32)(number / 4), key, (uint32)task, task_high, (uint32)seed, seed_high);
    int word = (int)(number % 4);
    return word == 0 ? words.word[0] : word == 1 ? words.word[1] : word == 2 ? words.word[2] : words.word[3];
}

template <int K1, int K2, bool ADJACENT>
__device__ inline void stochastic_forward(const stored *x, const int64 *state, stored *y, uint8 *kept, const Pooling &p,
                                          uint32 key, uint64 seed) {
    EACH_SPOT(i, outputs_of(p), p) {
        Spot spot = output_spot(p, i);
        double bound[TOGETHER] = {}, before[TOGETHER] = {};
        over_window<K1, K2, ADJACENT>(x, p, spot, (real)0, [&](int, bool, const real *values) {
            for (int k = 0; k < TOGETHER; ++k) {
                if (!(values[k] <= 0)) bound[k] += values[k];  // NaN too
            }
        });
        for (int k = 0; k < TOGETHER; ++k) {
            bound[k] *= word_of(p, spot, k, key, seed, (uint64)state[TASK]) / 4294967296.0;
        }
        int picked[TOGETHER];
        real result[TOGETHER] = {};
        for (int k = 0; k < TOGETHER; ++k) picked[k] = -1;
        over_window<K1, K2, ADJACENT>(x, p, spot, (real)0, [&](int position, bool inside, const real *values) {
            for (int k = 0; k < TOGETHER; ++k) {
                real value = values[k];
                if (inside && (picked[k] < 0 || (value > 0 && before[k] <= bound[k]) || value != value)) {
                    picked[k] = position;
                    result[k] = value;
                }
                if (!(value <= 0)) before[k] += value;
            }
        });
        int place = output_place(p, spot);
        scatter<ADJACENT>(y, spot, place, outputs_of(p), result);
        keep<ADJACENT>(kept, p, spot, place, picked);
    }
}

KERNEL pooling_stochastic(const stored *x, const int64 *state, stored *y, uint8 *kept, Pooling p, uint32 key, uint64 seed) {
    CHOOSE(stochastic_forward, p, x, state, y, kept, p, key, seed);
}

// The expectation of stochastic pooling: Σ w² / Σ w with w = max(x, 0), or the first element if no w is positive.
template <int K1, int K2, bool ADJACENT>
__device__ inline void expected_forward(const stored *x, stored *y, const Pooling &p) {
    EACH_SPOT(i, outputs_of(p), p) {
        Spot spot = output_spot(p, i);
        double total[TOGETHER] = {}, squares[TOGETHER] = {};
        bool any = false;
        real first[TOGETHER] = {};
        over_window<K1, K2, ADJACENT>(x, p, spot, (real)0, [&](int, bool inside, const real *values) {
            for (int k = 0; k < TOGETHER; ++k) {
                if (inside && !any) first[k] = values[k];
                if (!(values[k] <= 0)) {
                    total[k] += values[k];
                    squares[k] += (double)values[k] * values[k];
                }
            }
            any = any || inside;
        });
        real result[TOGETHER];
        for (int k = 0; k < TOGETHER; ++k) result[k] = total[k] != 0 ? (real)(squares[k] / total[k]) : first[k];
        scatter<ADJACENT>(y, spot, output_place(p, spot), outputs_of(p), result);
    }
}

KERNEL pooling_expected(const stored *x, stored *y, Pooling p) { CHOOSE(expected_forward, p, x, y, p); }
