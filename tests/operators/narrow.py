"""Rows of the operator table with tensors of 16 bits: on numbers that these hold, so that only results are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda.mixed import narrow_type
from crossbow.ops.kernel import Precision
from crossbow.testing import run_operator
from tests.operators.table import CASES, Case
from tests.operators.test_table import float32_variables, gradient_for, tensors

Numbers = NDArray[Any]
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that rounding changes a number by, in proportion."""
ROUNDINGS = 4
"""Of a result: its own, and those of what was kept for a gradient."""
NARROW_CASES = [case for case in CASES if case.kernel.precision is not Precision.WIDE]


def tolerance(case: Case, name: str) -> float:
    return ROUNDINGS * UNITS[name] + case.tolerance


def compare(case: Case, name: str, **options: Any) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """What a GPU computes with tensors of this type, and what the reference does in float64. options: the GPU's."""
    gradient, variables = gradient_for(case), float32_variables(case)
    if case.kernel.narrow_variables:
        variables = {key: rounded(value, name) for key, value in variables.items()}
    inputs = [rounded(np.asarray(x), name) for x in case.inputs()]
    common: dict[str, Any] = {"examples": case.examples, "variables": variables}
    common["output_gradient"] = None if gradient is None else rounded(gradient, name)
    exact = run_operator(case.kernel, inputs, dtype=np.float64, **common)
    return tensors(run_operator(case.kernel, inputs, dtype=name, **common, **options)), tensors(exact)


def rounded(values: Numbers, name: str) -> Numbers:
    """The nearest numbers of 16 bits, as float64. Integers are labels, and stay."""
    return values if values.dtype.kind in "iu" else values.astype(narrow_type(name)).astype(np.float64)
