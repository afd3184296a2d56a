// The count of adaptive steps.

// A single thread: count a step, and compute the correction of the moments' bias by the count.
KERNEL count_step(double *count, double *correction, double beta1, double beta2) {
    double steps = *count += 1;
    correction[0] = 1 / (1 - pow(beta1, steps));
    correction[1] = 1 / sqrt(1 - pow(beta2, steps));
}
