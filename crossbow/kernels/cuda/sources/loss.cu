// Losses and metrics of the real examples of a batch: the first state[EXAMPLES]; the others are padding.
//
// A label out of range, which earlier checks exclude, makes a loss, gradient or metric NaN: a kernel cannot raise an
// error, and must not read memory outside the classes.

// Class values (N, classes, …) and their strides; `places` labels for each example.
struct Rows {
    Size classes, places, next_class, next_place;
    int64 ignored;  // a label; if none is ignored, a number that no label has
};

// The divisor of a sum: a count, at least 1, times a constant.
struct Normaliser {
    Size kind, places, factor;
};

enum { ONE = 0, BATCH = 1, FULL = 2, VALID = 3, WEIGHT = 4 };  // as in loss.py

// counted: the number of labels that are not ignored or, by WEIGHT, the sum of their class weights.
__device__ inline double normaliser(const Normaliser &by, Index examples, double counted) {
    if (by.kind == WEIGHT) return (counted > 0 ? counted : 1) * by.factor;
    double count = by.kind == BATCH ? examples : by.kind == FULL ? examples * by.places : by.kind == VALID ? counted : 1;
    return (count > 1 ? count : 1) * by.factor;
}

__device__ inline Index row_of(const Rows &rows, Index i) {
    return i / rows.places * rows.classes * rows.places + i % rows.places * rows.next_place;
}

// The class c of element i, and its label's number `at` within the example.
__device__ inline void class_and_place(const Rows &rows, Index i, Index &c, Index &at) {
    Index rest = i % (rows.classes * rows.places);
    c = rows.next_place == 1 ? rest / rows.places : rest % rows.classes;
    at = rows.next_place == 1 ? rest % rows.places : rest / rows.classes;
}

// The end of a summing kernel: adds up the sums and counts of a block's threads. A single block writes the result,
// several blocks write their shares for `total`. All threads must call it.
__device__ inline void reduce_and_end(
    double sum, double count, const Normaliser &by, Index examples, double *shares, real *result, double *shared) {
    sum = reduce(sum, shared);
    count = reduce(count, shared);
    if (threadIdx.x > 0) return;
    if (gridDim.x == 1) {
        *result = (real)(sum / normaliser(by, examples, count));
    } else {
        shares[2 * blockIdx.x] = sum;
        shares[2 * blockIdx.x + 1] = count;
    }
}

// A single block: the result from the blocks' shares.
KERNEL total(double *shares, Size n, const int64 *state, Normaliser by, real *result) {
    SHARED(double, shared);
    double sum = 0, count = 0;
    for (Index i = threadIdx.x; i < n; i += blockDim.x) {
        sum += shares[2 * i];
        count += shares[2 * i + 1];
    }
    reduce_and_end(sum, count, by, state[EXAMPLES], shares, result, shared);
}

// Σ −log max(p[label], tiny).
KERNEL softmax_loss(const real *p, const int *labels, const int64 *state, Rows rows, real tiny, double *shares,
                    Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double sum = 0, count = 0;
    EACH(i, examples * rows.places) {
        Index label = labels[i];
        if (label == rows.ignored) continue;
        bool good = label >= 0 && label < rows.classes;
        real value = good ? p[row_of(rows, i) + label * rows.next_class] : (real)nan("");
        sum -= log((double)(value < tiny ? tiny : value));  // NaN stays NaN
        count += 1;
    }
    reduce_and_end(sum, count, by, examples, shares, result, shared);
}

// Σ −log p[label], where p is the softmax of x: log Σ exp x − x[label]. The sum over x is computed only if the rounded
// p is so small that it has lost digits, or is 0.
KERNEL softmax_loss_of_logits(const real *x, const real *p, const int *labels, const int64 *state, Rows rows,
                              double *shares, Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double sum = 0, count = 0;
    EACH(i, examples * rows.places) {
        Index label = labels[i];
        if (label == rows.ignored) continue;
        bool good = label >= 0 && label < rows.classes;
        Index row = row_of(rows, i);
        double value = good ? (double)p[row + label * rows.next_class] : nan("");
        if (value < 1e-30) {
            double largest = x[row], total = 0;
            for (Index c = 1; c < rows.classes; ++c) {
                double other = x[row + c * rows.next_class];
                if (other > largest) largest = other;
            }
            for (Index c = 0; c < rows.classes; ++c) total += exp((double)x[row + c * rows.next_class] - largest);
            sum += log(total) + (largest - x[row + label * rows.next_class]);
        } else {
            sum -= log(value);  // NaN stays NaN
        }
        count += 1;
    }
    reduce_and_end(sum, count, by, examples, shares, result, shared);
}

// Label smoothing and class weights: the target of class c is weights[c] · ((1 − smoothing) · [c = label] + smoothing /
// classes).
__device__ inline double target_of(const double *weights, double smoothing, Index classes, Index c, Index label) {
    return weights[c] * (smoothing / classes + (c == label ? 1 - smoothing : 0));
}

// Σ target[c] · −log p[c]: from logits, log Σ exp x − x[c]; from probabilities (logits is 0), −log max(p[c], tiny). Counts
// the labels' class weights.
KERNEL loss_with_targets(const real *values, const int *labels, const int64 *state, Rows rows, const double *weights,
                         double smoothing, int logits, real tiny, double *shares, Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double sum = 0, count = 0;
    EACH(i, examples * rows.places) {
        Index label = labels[i];
        if (label == rows.ignored) continue;
        if (label < 0 || label >= rows.classes) {
            sum = nan("");
            continue;
        }
        const real *row = values + row_of(rows, i);
        double largest = row[0], total = 0;
        if (logits) {
            for (Index c = 1; c < rows.classes; ++c) {
                double other = row[c * rows.next_class];
                if (other > largest) largest = other;
            }
            for (Index c = 0; c < rows.classes; ++c) total += exp((double)row[c * rows.next_class] - largest);
            total = log(total);
        }
        for (Index c = 0; c < rows.classes; ++c) {
            double part = target_of(weights, smoothing, rows.classes, c, label);
            real value = row[c * rows.next_class];
            if (part == 0) continue;  // an infinite loss, too
            sum += part * (logits ? total + (largest - value) : -log((double)(value < tiny ? tiny : value)));
        }
        count += weights[label];
    }
    reduce_and_end(sum, count, by, examples, shares, result, shared);
}

// Sum of the class weights of the labels that are not ignored, for each block.
KERNEL sum_weights(const int *labels, const int64 *state, Rows rows, const double *weights, double *sums) {
    SHARED(double, shared);
    double sum = 0;
    EACH(i, state[EXAMPLES] * rows.places) {
        Index label = labels[i];
        if (label != rows.ignored) sum += label >= 0 && label < rows.classes ? weights[label] : nan("");
    }
    sum = reduce(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// dx = (p · Σ target − target) / normaliser. sums: the results of sum_weights, at most one for each thread of a block.
KERNEL backward_with_targets(const real *p, const int *labels, const int64 *state, real *dx, Size n, Rows rows,
                             const double *weights, double smoothing, double sum_of_weights, Normaliser by,
                             const double *sums, int number_of_sums) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double counted = 0;
    if (sums) counted = reduce((int)threadIdx.x < number_of_sums ? sums[threadIdx.x] : 0, shared);
    double divisor = normaliser(by, examples, counted);
    EACH(i, n) {
        Index example = i / (rows.classes * rows.places), c, at;
        class_and_place(rows, i, c, at);
        double gradient = 0;
        if (example < examples) {
            Index label = labels[example * rows.places + at];
            if (label != rows.ignored && (label < 0 || label >= rows.classes)) {
                gradient = nan("");
            } else if (label != rows.ignored) {
                double whole = (1 - smoothing) * weights[label] + smoothing / rows.classes * sum_of_weights;
                gradient = (p[i] * whole - target_of(weights, smoothing, rows.classes, c, label)) / divisor;
            }
        }
        dx[i] = (real)gradient;
    }
}

// Number of labels that are not ignored, for each block.
KERNEL count_labels(const int *labels, const int64 *state, Rows rows, int64 *counts) {
    SHARED(int64, shared);
    int64 count = 0;
    EACH(i, state[EXAMPLES] * rows.places) count += labels[i] != rows.ignored;
    count = reduce(count, shared);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// dx = (p − y) / normaliser. counts: the results of count_labels, at most one for each thread of a block.
KERNEL softmax_loss_backward(const real *p, const int *labels, const int64 *state, real *dx, Size n, Rows rows,
                             Normaliser by, const int64 *counts, int number_of_counts) {
    SHARED(int64, shared);
    Index examples = (Index)state[EXAMPLES];
    int64 valid = 0;
    if (counts) valid = reduce((int)threadIdx.x < number_of_counts ? counts[threadIdx.x] : 0, shared);
    real divisor = (real)normaliser(by, examples, valid);
    EACH(i, n) {
        Index example = i / (rows.classes * rows.places), c, at;
        class_and_place(rows, i, c, at);
        real gradient = 0;
        if (example < examples) {
            Index label = labels[example * rows.places + at];
            if (label != rows.ignored) {
                gradient = (p[i] - (c == label ? (real)1 : (real)0)) / divisor;
                if (label < 0 || label >= rows.classes) gradient = (real)nan("");
            }
        }
        dx[i] = gradient;
    }
}

// Whether class c ranks before the label, given the label's value. NaN ranks before all numbers.
__device__ inline bool before(real value, Index c, real own, Index label) {
    return !(value <= own) || (value == own && c < label);
}

// Number of labels before which fewer than top_k classes rank: one thread per label.
KERNEL accuracy(const real *p, const int *labels, const int64 *state, Rows rows, Size top_k, double *shares,
                Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double right = 0, count = 0;
    EACH(i, examples * rows.places) {
        Index label = labels[i];
        if (label == rows.ignored) continue;
        count += 1;
        if (label < 0 || label >= rows.classes) {
            right = nan("");
            continue;
        }
        const real *row = p + row_of(rows, i);
        real own = row[label * rows.next_class];
        Index earlier = 0;
        for (Index c = 0; c < rows.classes; ++c) earlier += before(row[c * rows.next_class], c, own, label);
        right += own == own && earlier < top_k;
    }
    reduce_and_end(right, count, by, examples, shares, result, shared);
}

// The same, with one block per label.
KERNEL accuracy_rows(const real *p, const int *labels, const int64 *state, Rows rows, Size top_k, double *shares,
                     Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double right = 0, count = 0;
    for (Index i = blockIdx.x; i < examples * rows.places; i += gridDim.x) {
        Index label = labels[i];
        if (label == rows.ignored) continue;
        bool good = label >= 0 && label < rows.classes;
        const real *row = p + row_of(rows, i);
        real own = good ? row[label * rows.next_class] : (real)0;
        double earlier = 0;
        for (Index c = threadIdx.x; c < rows.classes; c += blockDim.x) {
            earlier += before(row[c * rows.next_class], c, own, label);
        }
        earlier = reduce(earlier, shared);
        if (threadIdx.x == 0) {
            count += 1;
            right += !good ? nan("") : own == own && earlier < top_k ? 1.0 : 0.0;
        }
    }
    reduce_and_end(right, count, by, examples, shares, result, shared);
}

// Targets are float or double, independent of `real`.
__device__ inline double target(const void *targets, int is_double, Index i) {
    return is_double ? ((const double *)targets)[i] : (double)((const float *)targets)[i];
}

// Σ (x − target)². x and the targets are in logical order, with `size` elements per example.
KERNEL euclidean_loss(const real *x, const void *targets, const int64 *state, Four t, Size size, int is_double,
                      double *shares, Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double sum = 0;
    EACH(i, examples * size) {
        double difference = (double)x[place(t, i)] - target(targets, is_double, i);
        sum += difference * difference;
    }
    reduce_and_end(sum, 0, by, examples, shares, result, shared);
}

KERNEL euclidean_loss_backward(const real *x, const void *targets, const int64 *state, real *dx, Four t, Four to,
                               Size size, int is_double) {
    Index examples = (Index)state[EXAMPLES];
    double divisor = examples > 1 ? (double)examples : 1.0;
    EACH(i, elements(t)) {
        double difference = 0;
        if (i < examples * size) difference = ((double)x[place(t, i)] - target(targets, is_double, i)) / divisor;
        dx[place(to, i)] = (real)difference;
    }
}

// Σ (max(x, 0) − target · x + log(1 + exp(−|x|))). x and the targets are in logical order, as in euclidean_loss.
KERNEL sigmoid_loss(const real *x, const void *targets, const int64 *state, Four t, Size size, int is_double,
                    double *shares, Normaliser by, real *result) {
    SHARED(double, shared);
    Index examples = (Index)state[EXAMPLES];
    double sum = 0;
    EACH(i, examples * size) {
        double value = x[place(t, i)];
        sum += (value < 0 ? 0 : value) - target(targets, is_double, i) * value + log1p(exp(-fabs(value)));
    }
    reduce_and_end(sum, 0, by, examples, shares, result, shared);
}

KERNEL sigmoid_loss_backward(const real *x, const void *targets, const int64 *state, real *dx, Four t, Four to,
                             Size size, int is_double, Normaliser by) {
    Index examples = (Index)state[EXAMPLES];
    double divisor = normaliser(by, examples, 0);
    EACH(i, elements(t)) {
        double gradient = 0;
        if (i < examples * size) {
            double value = x[place(t, i)], power = exp(-fabs(value));
            gradient = ((value < 0 ? power : 1) / (1 + power) - target(targets, is_double, i)) / divisor;
        }
        dx[place(to, i)] = (real)gradient;
    }
}
