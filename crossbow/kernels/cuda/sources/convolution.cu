// Copies of tensors with padding, around cuDNN's convolutions.

// Offset of a tensor in another one, on each axis.
struct Shift {
    Size by[4];
};

// y ← x with a border of zeros or, with negative shifts, x without its border; or (add) y plus that. Fastest if the axes
// are in the order of y's elements in memory.
KERNEL move(const stored *x, Four from, stored *y, Four to, Shift shift, int add) {
    EACH(i, elements(to)) {
        Index rest = i, source = 0, target = 0;
        bool inside = true;
        for (int axis = 3; axis >= 0; --axis) {
            Index at = rest % to.size[axis], there = at - shift.by[axis];
            rest /= to.size[axis];
            target += at * to.stride[axis];
            source += there * from.stride[axis];
            inside = inside && there >= 0 && there < from.size[axis];
        }
        real value = inside ? (real)x[source] : (real)0;
        y[target] = add ? y[target] + value : value;
    }
}
