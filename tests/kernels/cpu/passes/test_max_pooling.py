"""The forms for which passes of max pooling are compiled; what they compute is tested in `test_pooling.py`."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed", allow_module_level=True)

from crossbow.kernels.cpu.passes import max_pooling


def test_a_form_is_known_from_its_code() -> None:
    forms = [
        max_pooling._Form(*fields)
        for fields in itertools.product((0, 1, 4), (False, True), (0, 1, 3, 9), (0, 1, 3), (False, True))
    ]
    assert [max_pooling._Form.of(form.code) for form in forms] == forms
    assert len({form.code for form in forms}) == len(forms)


def test_passes_contain_nothing_that_differs_between_processes() -> None:
    """numba's cache compares the variables of a closure; one with an instruction would never be found again."""
    form = max_pooling._Form(1, False, 2, 2, True)
    for made in (max_pooling._maxima(form), max_pooling._gradient(form)):
        cells = made._function.__closure__
        assert cells
        assert all(isinstance(cell.cell_contents, int) for cell in cells)
