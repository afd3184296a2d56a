// Activation functions, and their derivatives from their outputs. Modes as in activation.py.

enum { RELU = 0, CLIPPED = 1, TANH = 2, SIGMOID = 3 };

KERNEL activation_forward(const stored *x, stored *y, int64 n, int mode, real slope, real ceiling) {
    EACH(i, n) {
        real v = x[i], r;
        if (mode == RELU) {
            r = v < 0 ? v * slope : v;  // NaN stays NaN
        } else if (mode == CLIPPED) {
            r = v < 0 ? (real)0 : v > ceiling ? ceiling : v;
        } else if (mode == TANH) {
            r = tanh(v);
        } else {
            real small = exp(-fabs(v));  // cannot overflow
            r = (v < 0 ? small : (real)1) / (1 + small);
        }
        y[i] = r;
    }
}

KERNEL activation_backward(const stored *y, const stored *dy, stored *dx, int64 n, int mode, real slope, real ceiling) {
    stored largest;
    largest = ceiling;  // as the configuration gives it
    EACH(i, n) {
        real v = y[i], derivative;
        if (mode == RELU) {
            derivative = v <= 0 ? slope : (real)1;
        } else if (mode == CLIPPED) {
            derivative = v > 0 && v < (real)largest ? (real)1 : (real)0;
        } else if (mode == TANH) {
            derivative = 1 - v * v;
        } else {
            derivative = v * (1 - v);
        }
        dx[i] = dy[i] * derivative;
    }
}
