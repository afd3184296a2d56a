"""`ModelConf` and `SystemConf`: every field refuses bad values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, ModelConf, SolverConf, SystemConf
from tests.configurations import (
    NAN,
    NO_INTEGERS,
    BadValues,
    check_array,
    check_bad_value,
    check_complete,
    check_good,
    declared,
    each_field,
    each_value,
)

BAD: list[BadValues] = [
    (ModelConf, "batch_size", "an integer ≥ 1", (0, -1, None, *NO_INTEGERS), {}),
    (
        ModelConf,
        "rule",
        "a rule of crossbow.synch, as SMA(alpha=0.5), or None",
        ("sma", 0.5, SMA, SolverConf()),
        {},
    ),
    (ModelConf, "wpc", "an integer ≥ 1 or None", (0, -2, *NO_INTEGERS), {}),
    (ModelConf, "skip", "a finite number ≥ 0 and < 1", (-0.1, 1, "0.5", None, NAN), {}),
    (ModelConf, "restart", "True or False", (None, 1, "no"), {}),
    (ModelConf, "local_variables", "a tuple of names or patterns, as ('*norm*',)", ("bn*", (1,), ("",), None, 3), {}),
    (ModelConf, "slack", "an integer ≥ 0 or None", (-1, *NO_INTEGERS), {}),
    (ModelConf, "test_interval", "an integer ≥ 1", (0, None, *NO_INTEGERS), {}),
    (ModelConf, "test_interval_unit", "a TrainingUnit", ("epochs", None, 1), {}),
    (ModelConf, "check_batch_size", "an integer ≥ 1 or None", (0, -1, *NO_INTEGERS), {}),
    (
        SystemConf,
        "devices",
        "'cpu', 'cpu:i/n', 'cuda', 'cuda:i', or several separated by commas",
        ("", "cpu,", ",cpu", [], (), None, 0, ["cpu", ""], ["cpu", 1], " ", "cpu, ,cpu"),
        {},
    ),
    (SystemConf, "learners_per_device", "an integer ≥ 1 or 'auto'", (0, -1, None, "AUTO", 2.0, True, "2"), {}),
    (SystemConf, "threads_per_learner", "an integer ≥ 1 or None", (0, -1, *NO_INTEGERS), {}),
    (SystemConf, "kernels", "one of 'auto', 'reference', 'compiled', 'onednn'", ("oneDNN", "cuda", None, ""), {}),
    (
        SystemConf,
        "precision",
        "one of 'float32', 'tf32', 'bfloat16', 'float16', 'float64'",
        ("half", "double", 32, None, np.float32),
        {},
    ),
    (SystemConf, "seed", "an integer ≥ 0", (-1, None, *NO_INTEGERS), {}),
    (SystemConf, "loader_threads", "an integer ≥ 1 and ≤ 256", (0, -1, 257, None, *NO_INTEGERS), {}),
    (SystemConf, "servers", "an integer ≥ 1", (0, -1, None, *NO_INTEGERS), {}),
    (SystemConf, "shared_memory", "True or False", (1, None, "no"), {}),
    (SystemConf, "sum_order", "one of 'auto', 'chain', 'tree'", ("ring", None, 1), {}),
    (SystemConf, "order", "one of 'examples', 'files'", ("file", None, 1), {}),
    (SystemConf, "files_together", "an integer ≥ 1 or None", (0, -1, *NO_INTEGERS), {"order": "files"}),
    (SystemConf, "files_together", "None, except with order='files'", (4,), {}),
    (SystemConf, "on_bad_record", "one of 'error', 'skip'", ("ignore", None, True), {}),
    (SystemConf, "graphs", "True or False", (1, None, "yes"), {}),
    (SystemConf, "winograd", "True or False", (1, None, "no"), {}),
    (SystemConf, "deterministic", "True or False", (1, None, "yes"), {}),
    (SystemConf, "check_numerics", "True or False", (1, None, "yes"), {}),
    (SystemConf, "nvtx", "True or False", (1, None, "yes"), {}),
]


@each_value(BAD)
def test_a_bad_value_names_field_value_and_what_is_allowed(
    conf: type, field: str, allowed: str, value: object, others: dict[str, object]
) -> None:
    check_bad_value(conf, field, allowed, value, others)


@each_field(BAD)
def test_an_array_is_refused_by_its_shape(conf: type, field: str) -> None:
    check_array(conf, field)


@pytest.mark.parametrize("conf", [ModelConf, SystemConf])
def test_the_table_is_complete(conf: type) -> None:
    check_complete(conf, BAD)


def test_defaults() -> None:
    assert (ModelConf().rule, ModelConf().wpc, ModelConf().slack) == (None, None, None)
    assert (SystemConf().devices, SystemConf().learners_per_device) == (("cpu",), "auto")
    assert (SystemConf().kernels, SystemConf().precision, SystemConf().seed) == ("auto", "float32", 0)


@pytest.mark.parametrize(
    ("conf", "values"),
    [
        (ModelConf, {"batch_size": np.int32(7), "rule": SMA(), "wpc": 4}),
        (SystemConf, {"seed": 2**70, "threads_per_learner": 3}),
    ],
)
def test_good_values_are_taken(conf: Any, values: dict[str, Any]) -> None:
    check_good(conf, values)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("cpu", ("cpu",)),
        ("cpu:0/2,cpu:1/2", ("cpu:0/2", "cpu:1/2")),
        (" cpu:0/2 , cpu:1/2 ", ("cpu:0/2", "cpu:1/2")),
        (["cpu:0/2", "cpu:1/2"], ("cpu:0/2", "cpu:1/2")),
        (("cpu",), ("cpu",)),
    ],
)
def test_devices_are_a_list_or_separated_by_commas(devices: Any, expected: tuple[str, ...]) -> None:
    assert SystemConf(devices=devices).devices == expected


@pytest.mark.parametrize(
    ("precision", "dtype", "narrow"),
    [
        ("float32", "float32", None),
        ("float64", "float64", None),
        ("tf32", "float32", None),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "float32", "float16"),
    ],
)
def test_the_types_of_a_precision(precision: str, dtype: str, narrow: str | None) -> None:
    system = SystemConf(precision=precision, devices="cpu" if precision in ("float32", "float64") else "cuda:0")
    assert (system.dtype.name, system.narrow) == (dtype, narrow)


DECLARED = """\
ModelConf.batch_size=32 --batch-size (32)
    an integer ≥ 1
ModelConf.wpc=None --wpc (k · τ)
    an integer ≥ 1 or None
ModelConf.slack=None --slack (as many as the rule allows)
    an integer ≥ 0 or None
ModelConf.local_variables=() --local-variables (none)
    a tuple of names or patterns, as ('*norm*',)
ModelConf.skip=0.0 --skip (0)
    a finite number ≥ 0 and < 1
ModelConf.restart=True --restart (on)
    True or False
ModelConf.test_interval=1 --test-interval (1)
    an integer ≥ 1
ModelConf.test_interval_unit=<TrainingUnit.EPOCHS: 'epochs'> --test-interval-unit (epochs)
    a TrainingUnit
ModelConf.check_batch_size=None --check-batch-size (the larger of the batch size and 64)
    an integer ≥ 1 or None
SystemConf.devices='cpu' --devices (cpu)
    'cpu', 'cpu:i/n', 'cuda', 'cuda:i', or several separated by commas
SystemConf.learners_per_device='auto' --learners (auto)
    an integer ≥ 1 or 'auto'
SystemConf.threads_per_learner=None --threads-per-learner (their cores, shared among their learners)
    an integer ≥ 1 or None
SystemConf.kernels='auto' --kernels (auto)
    one of 'auto', 'reference', 'compiled', 'onednn'
SystemConf.precision='float32' --precision (float32)
    one of 'float32', 'tf32', 'bfloat16', 'float16', 'float64'
SystemConf.winograd=True --winograd (on)
    True or False
SystemConf.deterministic=False --deterministic (off)
    True or False
SystemConf.seed=0 --seed (0)
    an integer ≥ 0
SystemConf.sum_order='auto' --sum-order (auto)
    one of 'auto', 'chain', 'tree'
SystemConf.shared_memory=True --shared-memory (on)
    True or False
SystemConf.servers=1 --servers (1)
    an integer ≥ 1
SystemConf.loader_threads=1 --loader-threads (1)
    an integer ≥ 1 and ≤ 256
SystemConf.order='examples' --order (examples)
    one of 'examples', 'files'
SystemConf.files_together=None --files-together (8, with order files)
    an integer ≥ 1 or None
SystemConf.on_bad_record='error' --on-bad-record (error)
    one of 'error', 'skip'
SystemConf.graphs=True --graphs (on)
    True or False
SystemConf.nvtx=False --nvtx (off)
    True or False
SystemConf.check_numerics=False --check-numerics (off)
    True or False
"""


def test_names_and_defaults_of_options() -> None:
    """Commands that users have written rely on them."""
    assert declared(ModelConf, SystemConf) == DECLARED
