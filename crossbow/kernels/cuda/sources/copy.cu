// Copies of tensors between orders in memory.

enum { AXES = 8 };

// Axes in the target's memory order; unused axes come first, with size 1.
struct Move {
    Size size[AXES];
    Size from[AXES];
    Size to[AXES];
};

KERNEL move(const stored *x, stored *y, Size x_start, Size y_start, Move move, Size n) {
    // Divisions dominate the time, so the outermost axis and unused axes have none.
    int outermost = 0;
    while (outermost < AXES - 1 && move.size[outermost] == 1) ++outermost;
    EACH(i, n) {
        Index rest = i, from = x_start, to = y_start;
        for (int axis = AXES - 1; axis >= outermost; --axis) {
            Index next = axis > outermost ? rest / move.size[axis] : 0, index = rest - next * move.size[axis];
            from += index * move.from[axis];
            to += index * move.to[axis];
            rest = next;
        }
        y[to] = x[from];
    }
}

// A copy in the same order.
KERNEL copy(const stored *x, stored *y, Size n) {
    transform(n, y, [](Index, real value) { return value; }, x);
}

// Fill with one value, before a part is copied into place.
KERNEL fill(stored *y, real value, Size n) {
    transform(n, y, [=](Index) { return value; });
}

enum { TILE = 32 };  // side of the square that a block transposes in shared memory, so that it reads and writes rows

// (batch, rows, columns) to (batch, columns, rows).
KERNEL transpose(const stored *x, stored *y, Size batch, Size rows, Size columns) {
    SHARED(stored, tile);  // rows of TILE + 1 elements, so that the elements of a column are in different banks
    Index down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
    int from_thread = threadIdx.x / TILE, in_row = threadIdx.x % TILE, step = blockDim.x / TILE;
    for (Index t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
        Index row = t / across % down * TILE, column = t % across * TILE;
        const stored *matrix = x + t / across / down * rows * columns;
        stored *turned = y + (matrix - x);
        for (int r = from_thread; r < TILE; r += step) {
            if (row + r < rows && column + in_row < columns) {
                tile[r * (TILE + 1) + in_row] = matrix[(row + r) * columns + column + in_row];
            }
        }
        __syncthreads();
        for (int c = from_thread; c < TILE; c += step) {
            if (column + c < columns && row + in_row < rows) {
                turned[(column + c) * rows + row + in_row] = tile[in_row * (TILE + 1) + c];
            }
        }
        __syncthreads();
    }
}

// Copy by logical index, if neither the shape nor the order in memory is the same.
KERNEL reorder(const stored *x, stored *y, Four from, Four to, Size n) {
    EACH(i, n) y[place(to, i)] = x[place(from, i)];
}
