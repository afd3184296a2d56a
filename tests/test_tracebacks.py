"""Tracebacks show the frames of users alone."""

from __future__ import annotations

import traceback

import pytest

from crossbow import GraphError
from crossbow.tracebacks import raised_together, users_error, users_frames, without_own_frames

OF_THE_PACKAGE = {"__name__": "crossbow.imagined"}


def raised(code: str, **names: object) -> BaseException:
    """What code of the package raises."""
    try:
        exec(code, {**OF_THE_PACKAGE, **names})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def own_code() -> None:
    raise KeyError("mine")


def names_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_frames_of_the_package_are_left_out() -> None:
    error = raised("work()", work=own_code)
    assert names_of(error) == ["raised", "<module>", "own_code"]
    assert names_of(error.with_traceback(users_frames(error.__traceback__))) == ["raised", "own_code"]
    assert users_frames(None) is None


def test_the_users_error_is_the_error_or_its_cause() -> None:
    cause = raised("raise ValueError('of the package')").with_traceback(None)
    assert users_error(cause) is None
    error = RuntimeError("made by the package")
    error.__cause__ = raised("work()", work=own_code)
    found = users_error(error)
    assert found is error.__cause__
    assert names_of(found) == ["raised", "own_code"]


def test_several_errors_are_raised_together() -> None:
    first, second = ValueError("a"), KeyError("b")
    assert raised_together([]) is None
    assert raised_together([first]) is first
    group = raised_together([first, second])
    assert isinstance(group, BaseExceptionGroup)
    assert group.exceptions == (first, second)


@pytest.mark.parametrize(("kind", "kept"), [(GraphError, False), (ZeroDivisionError, True)])
def test_errors_of_graphs_come_without_the_packages_frames(kind: type[Exception], kept: bool) -> None:
    """Those of other kinds come with all."""
    names = {**OF_THE_PACKAGE, "kind": kind}
    exec("def fail(): raise kind(['no luck'])", names)
    with pytest.raises(kind, match="no luck") as caught:
        without_own_frames(names["fail"])()  # type: ignore[arg-type]
    assert ("fail" in names_of(caught.value)) == kept
