// Activation functions, and their derivatives from their outputs. Modes as in activation.py.

enum { RELU = 0, CLIPPED = 1, TANH = 2, SIGMOID = 3 };

KERNEL activation_forward(const stored *x, stored *y, Size n, int mode, real slope, real ceiling) {
    auto activate = [=](Index, real v) {
        if (mode == RELU) return v < 0 ? v * slope : v;  // NaN stays NaN
        if (mode == CLIPPED) return v < 0 ? (real)0 : v > ceiling ? ceiling : v;
        if (mode == TANH) return tanh(v);
        real small = exp(-fabs(v));  // cannot overflow
        return (v < 0 ? small : (real)1) / (1 + small);
    };
    transform(n, y, activate, x);
}

KERNEL activation_backward(const stored *y, const stored *dy, stored *dx, Size n, int mode, real slope, real ceiling) {
    stored largest;
    largest = ceiling;  // as given by the configuration
    auto derivative = [=](real v) {
        if (mode == RELU) return v <= 0 ? slope : (real)1;
        if (mode == CLIPPED) return v > 0 && v < (real)largest ? (real)1 : (real)0;
        if (mode == TANH) return 1 - v * v;
        return v * (1 - v);
    };
    transform(n, dx, [=](Index, real v, real gradient) { return gradient * derivative(v); }, y, dy);
}
