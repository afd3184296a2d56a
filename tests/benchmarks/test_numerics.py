"""The benchmark of rounding errors: its walk through a graph, its measures, and its report."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.numerics import Deviation, Row, Sample, deviations_text, error, samples, table, table_text
from crossbow.kernels.cpu.simd import processor
from crossbow.ops import BatchNorm, Conv, InnerProduct, Pool
from tests.support import WHY_NOT_FAST, pictures, training

pytestmark = pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")


def test_errors_are_relative_to_the_largest_magnitude() -> None:
    assert error(np.float32([1.0, -3.5]), np.array([1.0, -4.0])) == 0.125
    assert error(np.float32([0.5]), np.array([0.0])) == 0.5


@pytest.mark.slow
def test_operators_get_what_a_task_gives_them() -> None:
    network = training(
        Conv(number_of_outputs=4, kernel_size=3, bias=False),  # before a BatchNorm its gradient is 0
        BatchNorm(),
        Pool(method="average", kernel_size=6),
        InnerProduct(number_of_outputs=3),
    )
    found = samples("small", network, pictures(), batch=8, tasks=2)
    assert [type(sample.kernel) for sample in found] == [InnerProduct, Pool, BatchNorm, Conv]
    last, pool, norm, conv = found
    assert conv.inputs[0].shape == (8, 1, 8, 8)
    assert conv.output_gradient.shape == norm.inputs[0].shape == (8, 4, 6, 6)
    # What a cross-entropy hands back sums up to nothing, and an average shares it out.
    np.testing.assert_allclose(last.output_gradient.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(norm.output_gradient.sum(axis=(2, 3)), pool.output_gradient[..., 0, 0], atol=1e-12)
    rows = {(row.operator, row.result): row.errors for row in table(found, torch=False)}
    assert rows["BatchNorm", "running variance"].keys() == {"fast", "fast, no Winograd", "reference"}
    for errors in rows.values():
        assert all(0 <= value < 3e-6 for values in errors.values() for value in values)
    assert max(value for errors in rows.values() for values in errors.values() for value in values) > 0


@pytest.mark.slow
def test_convolutions_differ_by_winograds_filtering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "measured", lambda: True)  # with shorter vectors, oneDNN's convolutions come first
    generator = np.random.default_rng(0)
    x, dy, w = (generator.standard_normal(s) for s in ((4, 32, 24, 24), (4, 32, 24, 24), (32, 32, 3, 3)))
    kernel = Conv(number_of_outputs=32, kernel_size=3, padding=1, bias=False)
    from crossbow.kernels.cpu.onednn import shared_library

    before = shared_library.omp_get_max_threads()
    shared_library.omp_set_num_threads(1)
    try:
        (row, *_) = table([Sample("one", kernel, (x,), dy, {"weights": w})], torch=False)
    finally:
        shared_library.omp_set_num_threads(before)
    assert row.result == "output"
    assert max(row.errors["fast, no Winograd"]) < 1e-6 < max(row.errors["fast"]) < 1e-5


def test_the_report() -> None:
    text = table_text([Row("LeNet", "Conv", "output", {"fast": (1e-6, 3e-6, 2e-6), "PyTorch": ()})])
    assert "2.0e-06 (3.0e-06)" in text
    steps = deviations_text([Deviation(seed, "fast", 1e-5, 1e-7 * (seed + 1)) for seed in range(2)])
    assert "seed 1" in steps
    assert "2.0e-07 (1.0e-05)" in steps
