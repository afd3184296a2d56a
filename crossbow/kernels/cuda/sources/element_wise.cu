// Element-wise operations on up to eight tensors; unused ones are null. With more tensors, the next call continues with
// the result of the previous one as its first tensor.

KERNEL weighted_sum(const stored *x0, const stored *x1, const stored *x2, const stored *x3, const stored *x4, const stored *x5,
                    const stored *x6, const stored *x7, real c0, real c1, real c2, real c3, real c4, real c5, real c6,
                    real c7, stored *y, Size n, int relu) {
    auto sum_of = [=](Index, real v0, real v1, real v2, real v3, real v4, real v5, real v6, real v7) {
        real sum = c0 * v0;
        if (x1) sum += c1 * v1;
        if (x2) sum += c2 * v2;
        if (x3) sum += c3 * v3;
        if (x4) sum += c4 * v4;
        if (x5) sum += c5 * v5;
        if (x6) sum += c6 * v6;
        if (x7) sum += c7 * v7;
        return relu && sum < 0 ? (real)0 : sum;  // NaN stays NaN
    };
    transform(n, y, sum_of, x0, x1, x2, x3, x4, x5, x6, x7);
}

KERNEL product(const stored *x0, const stored *x1, const stored *x2, const stored *x3, const stored *x4, const stored *x5,
               const stored *x6, const stored *x7, stored *y, Size n) {
    auto product_of = [=](Index, real v0, real v1, real v2, real v3, real v4, real v5, real v6, real v7) {
        real product = v0;
        if (x1) product *= v1;
        if (x2) product *= v2;
        if (x3) product *= v3;
        if (x4) product *= v4;
        if (x5) product *= v5;
        if (x6) product *= v6;
        if (x7) product *= v7;
        return product;
    };
    transform(n, y, product_of, x0, x1, x2, x3, x4, x5, x6, x7);
}

// Update the largest values and their indices by an input (may be null). NaN is larger than all numbers; among equal values
// the first one wins.
__device__ inline void compare(const stored *x, int number, Index at, Index n, Pack<stored, PACK> &largest,
                               Pack<uint8, PACK> &first) {
    if (!x) return;
    Pack<stored, PACK> own = load(x, at, n);
    for (int k = 0; k < PACK; ++k) {
        real value = own.value[k], best = largest.value[k];
        if (value > best || (isnan(value) && !isnan(best))) {
            largest.value[k] = own.value[k];
            first.value[k] = (uint8)number;
        }
    }
}

// x1 is input `number`, and the others follow. Unless `number` is 1, x0 is the largest of the previous inputs, and
// `kept` has its index. Without `kept`, only the largest value is computed.
KERNEL maximum(const stored *x0, const stored *x1, const stored *x2, const stored *x3, const stored *x4, const stored *x5,
               const stored *x6, const stored *x7, stored *y, uint8 *kept, Size n, int number) {
    EACH_PACK(at, n) {
        Pack<stored, PACK> largest = load(x0, at, n);
        Pack<uint8, PACK> first = {};
        if (kept && number > 1) first = load(kept, at, n);
        compare(x1, number, at, n, largest, first);
        compare(x2, number + 1, at, n, largest, first);
        compare(x3, number + 2, at, n, largest, first);
        compare(x4, number + 3, at, n, largest, first);
        compare(x5, number + 4, at, n, largest, first);
        compare(x6, number + 5, at, n, largest, first);
        compare(x7, number + 6, at, n, largest, first);
        store(y, at, n, largest);
        if (kept) store(kept, at, n, first);
    }
}

KERNEL maximum_backward(const stored *dy, const uint8 *kept, stored *dx, Size n, int number) {
    transform(n, dx, [=](Index, real gradient, uint8 first) { return first == number ? gradient : (real)0; }, dy, kept);
}
