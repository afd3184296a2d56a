"""Adaptive steps of vectors: kernels generated for given terms, which read and write every vector once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import CudaKernel
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.cuda.vector import first_names, kernel_source, launch, sum_of_products, value_of
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.reference.vector import check_coefficients, check_lengths
from crossbow.kernels.requests import AdaptiveStep, CountStep
from crossbow.solver.adaptation import NUMBERS, STEP, AdaptationForm
from crossbow.solver.update import Assignment


@CUDA.kernel(AdaptiveStep)
def adaptive_step(request: AdaptiveStep) -> PreparedKernel:
    dtype = request.dtype

    def bind(buffers: Buffers) -> Sequence[Call]:
        vectors = {name: buffers[name] for name in dict.fromkeys((*request.writes, *request.vectors))}
        length, first = check_lengths(vectors), first_names(vectors)
        check_coefficients(buffers["coefficients"], request.numbers)
        form, assignment = _renamed(request, first)
        text = step_source(form, assignment)
        kernel = CudaKernel("vector", "adaptive_step", dtype, text)
        arrays = [vectors[name] for name in stepped_vectors(form, assignment)]
        return (launch(kernel, arrays, length, buffers["coefficients"], buffers["correction"]),)

    return request.prepared("cuda", bind)


def _renamed(request: AdaptiveStep, first: dict[str, str]) -> tuple[AdaptationForm, Assignment]:
    """The request with the first name of each vector's memory; see `first_names`."""
    form, assignment = request.adaptation, request.assignment
    descent, terms = (tuple(first.get(term, term) for term in each) for each in (form.descent, assignment.terms))
    velocity = None if form.velocity is None else first[form.velocity]
    renamed = AdaptationForm(descent, first[form.second_moment], velocity, form.of_steps)
    return renamed, Assignment(first[assignment.target], terms)


def stepped_vectors(form: AdaptationForm, assignment: Assignment) -> tuple[str, ...]:
    """The vectors that the kernel of `step_source` receives, in order."""
    state = [form.second_moment] if form.velocity is None else [form.second_moment, form.velocity]
    names = (assignment.target, *state, *form.descent, *assignment.terms)
    return tuple(name for name in dict.fromkeys(names) if name != STEP)


def step_source(form: AdaptationForm, assignment: Assignment) -> str:
    """The source of a kernel for an adaptive step.

    >>> print(step_source(AdaptationForm(("g",), "s"), Assignment("w", ("w", STEP))))
    <BLANKLINE>
    template <class T> __device__ inline void combine(Index i, real c0, real decay, real gain, real epsilon, \
real keep, real part, real c1, real c2, real first, real second, T *v0, T *v1, const T *v2) {
        T x0 = v0[i];
        T x1 = v1[i];
        T x2 = v2[i];
        for (int w = 0; w < T::WIDTH; ++w) {
            real step = times(c0, x2.value[w]);
            x1.value[w] = plus(times(decay, x1.value[w]), times(gain, times(step, step)));
            step = times(first, step) / plus(times(second, sqrt(x1.value[w])), epsilon);
            x0.value[w] = plus(times(c1, x0.value[w]), times(c2, step));
        }
        v0[i] = x0;
        v1[i] = x1;
    }
    <BLANKLINE>
    // The elements from `head` on are taken in packs, `body` of them; the others one by one.
    KERNEL adaptive_step(
        const double *coefficients, const double *correction, Size n, Size head, Size body, \
real *v0, real *v1, const real *v2
    ) {
        const real c0 = (real)coefficients[0];
        const real decay = (real)coefficients[1];
        const real gain = (real)coefficients[2];
        const real epsilon = (real)coefficients[3];
        const real keep = (real)coefficients[4];
        const real part = (real)coefficients[5];
        const real c1 = (real)coefficients[6];
        const real c2 = (real)coefficients[7];
        const real first = (real)correction[0];
        const real second = (real)correction[1];
        EACH(i, body / Many::WIDTH) combine(i, c0, decay, gain, epsilon, keep, part, c1, c2, first, second, \
(Many *)(v0 + head), (Many *)(v1 + head), (const Many *)(v2 + head));
        EACH(i, n - body) combine(i < head ? i : i + body, c0, decay, gain, epsilon, keep, part, c1, c2, first, \
second, (One *)v0, (One *)v1, (const One *)v2);
    }
    <BLANKLINE>
    """
    vectors = stepped_vectors(form, assignment)
    value, count = value_of(vectors) | {STEP: "step"}, len(form.descent)
    before = [f"c{index}" for index in range(count)]
    after = [f"c{count + index}" for index in range(len(assignment.terms))]
    squares, velocity = value[form.second_moment], None if form.velocity is None else value[form.velocity]
    moving = [] if velocity is None else [f"step = {velocity} = plus(times(keep, {velocity}), times(part, step));"]
    scaling = f"step = times(first, step) / plus(times(second, sqrt({squares})), epsilon);"
    steps = [
        f"real step = {sum_of_products(before, [value[term] for term in form.descent])};",
        f"{squares} = plus(times(decay, {squares}), times(gain, times(step, step)));",
        *([scaling, *moving] if form.of_steps else [*moving, scaling]),
        f"{value[assignment.target]} = {sum_of_products(after, [value[term] for term in assignment.terms])};",
    ]
    state = {form.second_moment} if form.velocity is None else {form.second_moment, form.velocity}
    read = {name for name in (*form.descent, *assignment.terms) if name != STEP} | state
    written = state | {assignment.target}
    factors = [*before, *NUMBERS, *after]
    return kernel_source("adaptive_step", vectors, read, written, factors, steps, ("first", "second"))


@CUDA.kernel(CountStep)
def count_step(request: CountStep) -> PreparedKernel:
    kernel = CudaKernel("step_count", "count_step", np.dtype(np.float32))  # all its numbers are doubles

    def bind(buffers: Buffers) -> Sequence[Call]:
        betas = np.float64(request.beta1), np.float64(request.beta2)
        return (kernel.blocks(1, buffers["step_count"], buffers["correction"], *betas, threads=1),)

    return request.prepared("cuda", bind)
