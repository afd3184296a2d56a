"""Linear combinations of vectors, and their norm: kernels generated for given assignments.

A kernel reads every vector once and writes every target once, even if the assignments share vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import BLOCK, PACK, CudaKernel, Launch
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.reference.vector import check_coefficients, check_lengths
from crossbow.kernels.requests import ClipCoefficients, LinearCombination, SquaredNorm
from crossbow.solver.update import Assignment
from crossbow.types import Array, address

MOST_PACKED = 32
"""Maximum number of vectors whose packs a thread keeps in registers."""
NORM_BLOCKS = 1024
"""Number of blocks that add up shares of the squares; another block adds up the shares."""
MARKS = 64
"""Maximum number of coefficients that one call clips."""


@CUDA.kernel(LinearCombination)
def linear_combination(request: LinearCombination) -> PreparedKernel:
    assignments, dtype, signs = request.assignments, request.dtype, request.signs
    sources = dict(signs)

    def bind(buffers: Buffers) -> Sequence[Call]:
        vectors, coefficients = (
            {name: buffers[name] for name in (*request.writes, *request.vectors)},
            buffers["coefficients"],
        )
        length, first = check_lengths(vectors), first_names(vectors)
        check_coefficients(coefficients, sum(len(assignment.terms) for assignment in assignments))
        wanted = [Assignment(first[a.target], tuple(first.get(t, t) for t in a.terms)) for a in assignments]
        named = {sign: first[vector] for sign, vector in sources.items() if vector in first}
        names = combined_vectors(wanted, named)
        text = combination_source(wanted, named)
        kernel = CudaKernel("vector", "linear_combination", dtype, text)
        return (launch(kernel, [vectors[name] for name in names], length, coefficients),)

    return request.prepared("cuda", bind)


def launch(kernel: CudaKernel, arrays: Sequence[Array], length: int, *numbers: Array) -> Launch:
    """The call of a kernel of `kernel_source`. numbers: its coefficients and, if it has one, its correction."""
    itemsize = kernel.dtype.itemsize
    head, body = packed_part([address(array) for array in arrays], length, itemsize)
    threads = max(body // (PACK // itemsize), length - body)
    return kernel.each(threads, *numbers, np.int64(length), np.int64(head), np.int64(body), *arrays)


def packed_part(addresses: Sequence[int], length: int, itemsize: int) -> tuple[int, int]:
    """(first element, number of elements) of the range that consists of whole packs in all vectors.

    >>> packed_part([4096, 8192], 10, 4), packed_part([4100, 8196], 10, 4), packed_part([4096, 8196], 10, 4)
    ((0, 8), (3, 4), (10, 0))
    """
    offsets = {place % PACK for place in addresses}
    if len(offsets) > 1 or len(addresses) > MOST_PACKED:
        return length, 0
    head = min(-offsets.pop() % PACK // itemsize, length)
    width = PACK // itemsize
    return head, (length - head) // width * width


def combined_vectors(assignments: Sequence[Assignment], signs: Mapping[str, str]) -> tuple[str, ...]:
    """The vectors that the kernel of `combination_source` receives, in order."""
    names = (signs.get(name, name) for a in assignments for name in (a.target, *a.terms))
    return tuple(dict.fromkeys(names))


def combination_source(assignments: Sequence[Assignment], signs: Mapping[str, str]) -> str:
    """The source of a kernel for assignments. signs: for each sign, the vector whose elements' signs before the call it
    stands for.

    >>> print(combination_source([Assignment("w", ("w", "g"))], {}))
    <BLANKLINE>
    template <class T> __device__ inline void combine(Index i, real c0, real c1, T *v0, const T *v1) {
        T x0 = v0[i];
        T x1 = v1[i];
        for (int w = 0; w < T::WIDTH; ++w) {
            x0.value[w] = plus(times(c0, x0.value[w]), times(c1, x1.value[w]));
        }
        v0[i] = x0;
    }
    <BLANKLINE>
    // The elements from `head` on are taken in packs, `body` of them; the others one by one.
    KERNEL linear_combination(
        const double *coefficients, Size n, Size head, Size body, real *v0, const real *v1
    ) {
        const real c0 = (real)coefficients[0];
        const real c1 = (real)coefficients[1];
        EACH(i, body / Many::WIDTH) combine(i, c0, c1, (Many *)(v0 + head), (const Many *)(v1 + head));
        EACH(i, n - body) combine(i < head ? i : i + body, c0, c1, (One *)v0, (const One *)v1);
    }
    <BLANKLINE>
    """
    used = tuple(dict.fromkeys(term for a in assignments for term in a.terms if term in signs))
    vectors = combined_vectors(assignments, signs)
    values = value_of(vectors) | {sign: f"s{index}" for index, sign in enumerate(used)}
    steps = [f"const real s{index} = sign({values[signs[sign]]});" for index, sign in enumerate(used)]
    factors: list[str] = []
    for a in assignments:
        own = [f"c{len(factors) + index}" for index in range(len(a.terms))]
        steps.append(f"{values[a.target]} = {sum_of_products(own, [values[term] for term in a.terms])};")
        factors += own
    read = _read_before_written(assignments, signs)
    return kernel_source("linear_combination", vectors, read, {a.target for a in assignments}, factors, steps)


def value_of(vectors: Sequence[str]) -> dict[str, str]:
    """The expressions for an element of each vector, in the steps of `kernel_source`."""
    return {name: f"x{index}.value[w]" for index, name in enumerate(vectors)}


def kernel_source(
    name: str,
    vectors: Sequence[str],
    read: Collection[str],
    written: Collection[str],
    factors: Sequence[str],
    steps: Sequence[str],
    correction: Sequence[str] = (),
) -> str:
    """The source of an element-wise kernel on vectors.

    read, written: the vectors that are read and written in memory. factors: names of the coefficients. steps:
    statements for one element. correction: names of further numbers, which the kernel receives as an array of doubles.
    """
    number = {vector: index for index, vector in enumerate(vectors)}
    reads, writes = {number[each] for each in read}, [number[each] for each in vectors if each in written]

    def pointers(kind: str, form: str) -> str:
        """The vectors as parameters or arguments. `form` may contain the number and the type."""
        types = {index: kind if index in writes else f"const {kind}" for index in number.values()}
        return ", ".join(form.format(index=index, type=types[index]) for index in number.values())

    arrays = {"coefficients": factors, **({"correction": correction} if correction else {})}
    scalars = [each for names in arrays.values() for each in names]
    listed = "".join(f"{each}, " for each in scalars)
    parameters = "".join(f"real {each}, " for each in scalars) + pointers("T", "{type} *v{index}")
    doubles = "".join(f"const double *{array}, " for array in arrays)
    lines = [
        f"template <class T> __device__ inline void combine(Index i, {parameters}) {{",
        *(f"    T x{index} = {f'v{index}[i]' if index in reads else '{}'};" for index in number.values()),
        "    for (int w = 0; w < T::WIDTH; ++w) {",
        *(f"        {step}" for step in steps),
        "    }",
        *(f"    v{index}[i] = x{index};" for index in writes),
        "}",
        "",
        "// The elements from `head` on are taken in packs, `body` of them; the others one by one.",
        f"KERNEL {name}(",
        f"    {doubles}Size n, Size head, Size body, {pointers('real', '{type} *v{index}')}",
        ") {",
        *(
            f"    const real {each} = (real){array}[{i}];"
            for array, names in arrays.items()
            for i, each in enumerate(names)
        ),
        f"    EACH(i, body / Many::WIDTH) combine(i, {listed}{pointers('Many', '({type} *)(v{index} + head)')});",
        f"    EACH(i, n - body) combine(i < head ? i : i + body, {listed}{pointers('One', '({type} *)v{index}')});",
        "}",
    ]
    return "\n".join(["", *lines, ""])


@CUDA.kernel(SquaredNorm)
def squared_norm(request: SquaredNorm) -> PreparedKernel:
    terms, dtype = request.terms, request.dtype

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays, coefficients = [buffers[term] for term in terms], buffers["coefficients"]
        length = check_lengths({f"term {index}": array for index, array in enumerate(arrays)})
        check_coefficients(coefficients, len(terms))
        blocks = min(max(1, -(-length // BLOCK)), NORM_BLOCKS)
        partial, shared = api().zeros(8 * blocks).view(np.float64), 8 * BLOCK
        adding = CudaKernel("vector", "add_squares", dtype, norm_source(len(terms)))
        finishing = CudaKernel("vector", "add_up", dtype)
        return (
            adding.blocks(blocks, coefficients, np.int64(length), partial, *arrays, shared=shared),
            finishing.blocks(1, partial, np.int64(blocks), buffers["square"], shared=shared),
        )

    return request.prepared("cuda", bind)


def norm_source(terms: int) -> str:
    """The source of a kernel that adds up the squares of a sum of `terms` terms in double precision. Each block adds up
    a share."""
    vectors = ", ".join(f"const real *v{index}" for index in range(terms))
    total = sum_of_products([f"c{index}" for index in range(terms)], [f"v{index}[i]" for index in range(terms)])
    lines = [
        f"KERNEL add_squares(const double *coefficients, Size n, double *partial, {vectors}) {{",
        "    SHARED(double, shared);",
        *(f"    const real c{index} = (real)coefficients[{index}];" for index in range(terms)),
        "    double square = 0;",
        "    EACH(i, n) {",
        f"        const double total = {total};",
        "        square += total * total;",
        "    }",
        "    square = reduce(square, shared);",
        "    if (threadIdx.x == 0) partial[blockIdx.x] = square;",
        "}",
    ]
    return "\n".join(["", *lines, ""])


@CUDA.kernel(ClipCoefficients)
def clip_coefficients(request: ClipCoefficients) -> PreparedKernel:
    limit, clipped = request.limit, request.clipped
    kernel = CudaKernel("vector", "clip_coefficients", np.dtype(np.float32))  # all its numbers are doubles

    def bind(buffers: Buffers) -> Sequence[Call]:
        squares, coefficients, target = (buffers[role] for role in request.roles)
        for array in (coefficients, target):
            check_coefficients(array, len(clipped))
        constants, calls = (squares, np.int64(squares.size), np.float64(limit)), []
        for start in range(0, len(clipped), MARKS):
            part = slice(start, start + MARKS)
            marks = np.uint64(sum(1 << index for index, marked in enumerate(clipped[part]) if marked))
            count = np.int64(len(clipped[part]))
            calls.append(kernel.blocks(1, *constants, coefficients[part], target[part], count, marks, threads=1))
        return calls

    return request.prepared("cuda", bind)


def first_names(vectors: Mapping[str, Array]) -> dict[str, str]:
    """For each vector, the first name of a vector with the same memory: a kernel must not keep two copies of the same
    memory."""
    names: dict[int, str] = {}
    return {name: names.setdefault(address(vector), name) for name, vector in vectors.items()}


def _read_before_written(assignments: Sequence[Assignment], signs: Mapping[str, str]) -> set[str]:
    """The vectors whose values before the call are read."""
    read, written = {signs[t] for a in assignments for t in a.terms if t in signs}, set[str]()
    for assignment in assignments:
        read |= set(assignment.terms) - written - signs.keys()
        written.add(assignment.target)
    return read


def sum_of_products(factors: Sequence[str], values: Sequence[str]) -> str:
    """The sum of one or more products from left to right, as an expression."""
    total = ""
    for factor, value in zip(factors, values, strict=True):
        product = f"times({factor}, {value})"
        total = f"plus({total}, {product})" if total else product
    return total
