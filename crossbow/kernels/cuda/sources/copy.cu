// Copies of tensors from one order in memory to another.

enum { AXES = 8 };

// Axes in the order in which they lie in the target; those that are not needed come first, with size 1.
struct Move {
    int64 size[AXES];
    int64 from[AXES];
    int64 to[AXES];
};

KERNEL move(const stored *x, stored *y, int64 x_start, int64 y_start, Move move, int64 n) {
    // Divisions take the time: there is none for the outermost axis and for those that are not needed.
    int outermost = 0;
    while (outermost < AXES - 1 && move.size[outermost] == 1) ++outermost;
    EACH(i, n) {
        int64 rest = i, from = x_start, to = y_start;
        for (int axis = AXES - 1; axis >= outermost; --axis) {
            int64 next = axis > outermost ? rest / move.size[axis] : 0, index = rest - next * move.size[axis];
            from += index * move.from[axis];
            to += index * move.to[axis];
            rest = next;
        }
        y[to] = x[from];
    }
}

// One value everywhere, before a part is put in its place.
KERNEL fill(stored *y, real value, int64 n) {
    EACH(i, n) y[i] = value;
}

enum { TILE = 32 };  // a side of the square that a block turns over in shared memory, so that it reads and writes rows

// (batch, rows, columns) to (batch, columns, rows).
KERNEL transpose(const stored *x, stored *y, int64 batch, int64 rows, int64 columns) {
    SHARED(stored, tile);  // its rows have TILE + 1 elements: those of a column then lie in different banks
    int64 down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
    int from_thread = threadIdx.x / TILE, in_row = threadIdx.x % TILE, step = blockDim.x / TILE;
    for (int64 t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
        int64 row = t / across % down * TILE, column = t % across * TILE;
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

// By the logical number of an element, where neither the shape nor the order in memory is the same.
KERNEL reorder(const stored *x, stored *y, Four from, Four to, int64 n) {
    EACH(i, n) y[place(to, i)] = x[place(from, i)];
}
