"""The package onnx is an extra."""

from __future__ import annotations

import pytest

from tests.test_public import python


def test_without_the_package_one_sentence_names_the_extra() -> None:
    code = """
import sys
sys.modules["onnx"] = None
try:
    import crossbow.onnx
except ModuleNotFoundError as error:
    print(error)
import crossbow
print(hasattr(crossbow, "onnx"))
"""
    expected = "crossbow.onnx needs the package onnx: pip install 'crossbow[onnx]'"
    assert python(code).splitlines() == [expected, "False"]


@pytest.mark.slow
def test_the_package_keeps_its_name() -> None:
    code = "import crossbow.onnx, onnx; print(onnx.__name__, crossbow.onnx.__name__, crossbow.onnx.load.__module__)"
    assert python(code) == "onnx crossbow.onnx crossbow.onnx.loading"
