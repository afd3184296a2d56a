// Activation functions that multiply their input by a gate, and their derivatives from their inputs. Gates as in
// gated_activation.py.

enum { GELU = 0, GELU_TANH = 1, SILU = 2, HARD_SWISH = 3 };

// A gate's value and its derivative.
struct Gate {
    real value, slope;
};

__device__ inline Gate sigmoid(real x) {
    real small = exp(-fabs(x)), sum = 1 + small;  // cannot overflow
    return {(x < 0 ? small : (real)1) / sum, small / (sum * sum)};
}

__device__ inline Gate gate(real x, int kind) {
    if (kind == SILU) return sigmoid(x);
    if (kind == HARD_SWISH) {
        real line = (x + 3) / 6;
        return {line < 0 ? (real)0 : line > 1 ? (real)1 : line, (real)1 / 6};  // slope: between the kinks
    }
    real near = x < -100 ? (real)-100 : x > 100 ? (real)100 : x;  // powers of x cannot overflow; NaN stays NaN
    if (kind == GELU) {
        return {(real)0.5 * erfc(-near * (real)0.70710678118654752), (real)0.39894228040143268 * exp(-near * near / 2)};
    }
    real factor = (real)1.5957691216057308, cubic = (real)0.044715;  // √(8/π)
    Gate outer = sigmoid(factor * (near + cubic * near * near * near));
    return {outer.value, outer.slope * factor * (1 + 3 * cubic * near * near)};
}

KERNEL gated_activation_forward(const stored *x, stored *y, Size n, int kind) {
    transform(n, y, [=](Index, real v) { return v * gate(v, kind).value; }, x);
}

KERNEL gated_activation_backward(const stored *x, const stored *dy, stored *dx, Size n, int kind) {
    auto derivative = [=](real v) {
        if (kind == HARD_SWISH && fabs(v) >= 3) return v > 0 ? (real)1 : (real)0;  // also where v is infinite
        Gate g = gate(v, kind);
        return g.value + v * g.slope;
    };
    transform(n, dx, [=](Index, real v, real gradient) { return gradient * derivative(v); }, x, dy);
}
