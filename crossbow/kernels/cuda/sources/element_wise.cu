// Element-wise operations on up to eight tensors, unused ones null. With more tensors, the next call continues with the
// result of the previous one as its first tensor.

KERNEL weighted_sum(const stored *x0, const stored *x1, const stored *x2, const stored *x3, const stored *x4, const stored *x5,
                    const stored *x6, const stored *x7, real c0, real c1, real c2, real c3, real c4, real c5, real c6,
                    real c7, stored *y, int64 n, int relu) {
    EACH(i, n) {
        real sum = c0 * x0[i];
        if (x1) sum += c1 * x1[i];
        if (x2) sum += c2 * x2[i];
        if (x3) sum += c3 * x3[i];
        if (x4) sum += c4 * x4[i];
        if (x5) sum += c5 * x5[i];
        if (x6) sum += c6 * x6[i];
        if (x7) sum += c7 * x7[i];
        y[i] = relu && sum < 0 ? (real)0 : sum;  // NaN stays NaN
    }
}

KERNEL product(const stored *x0, const stored *x1, const stored *x2, const stored *x3, const stored *x4, const stored *x5,
               const stored *x6, const stored *x7, stored *y, int64 n) {
    EACH(i, n) {
        real product = x0[i];
        if (x1) product *= x1[i];
        if (x2) product *= x2[i];
        if (x3) product *= x3[i];
        if (x4) product *= x4[i];
        if (x5) product *= x5[i];
        if (x6) product *= x6[i];
        if (x7) product *= x7[i];
        y[i] = product;
    }
}

// Update the largest value and its index. NaN is larger than all numbers; among equal values the first one wins.
__device__ inline void compare(real x, int number, real &largest, int &first) {
    if (x > largest || (isnan(x) && !isnan(largest))) {
        largest = x;
        first = number;
    }
}

// x1 is input `number`, and the others follow. Unless `number` is 1, x0 is the largest of the previous inputs, and
// `kept` has its index. Without `kept`, only the largest value is computed.
KERNEL maximum(const stored *x0, const stored *x1, const stored *x2, const stored *x3, const stored *x4, const stored *x5,
               const stored *x6, const stored *x7, stored *y, uint8 *kept, int64 n, int number) {
    EACH(i, n) {
        real largest = x0[i];
        int first = kept && number > 1 ? kept[i] : 0;
        if (x1) compare(x1[i], number, largest, first);
        if (x2) compare(x2[i], number + 1, largest, first);
        if (x3) compare(x3[i], number + 2, largest, first);
        if (x4) compare(x4[i], number + 3, largest, first);
        if (x5) compare(x5[i], number + 4, largest, first);
        if (x6) compare(x6[i], number + 5, largest, first);
        if (x7) compare(x7[i], number + 6, largest, first);
        y[i] = largest;
        if (kept) kept[i] = (uint8)first;
    }
}

KERNEL maximum_backward(const stored *dy, const uint8 *kept, stored *dx, int64 n, int number) {
    EACH(i, n) dx[i] = kept[i] == number ? dy[i] : (real)0;
}
