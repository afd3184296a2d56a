"""Files: what is a path, what is written whole, and what an error says. Saving a model and others use it."""

from __future__ import annotations

import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from crossbow.files import checked_path, file_error, make_directory, reason, write_whole
from crossbow.types import DataError


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"model"


@pytest.mark.parametrize("path", ["a/b", Path("a/b"), PurePosixPath("a/b")], ids=repr)
def test_a_path(path: Any) -> None:
    assert checked_path("save", path) == Path("a/b")


@pytest.mark.parametrize("path", [None, 5, b"a", BytesPath()], ids=repr)
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(TypeError, match=r"^save: expected a path, as a str or a pathlib\.Path\. Received: "):
        checked_path("save", path)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "/a/b"), "No space left on device"),
        (OSError("by hand"), "by hand"),
        (ValueError("two\nlines"), "two lines"),
        (zlib.error(), "error"),
    ],
    ids=repr,
)
def test_what_an_error_says_is_on_one_line(error: Exception, text: str) -> None:
    assert reason(error) == text


def test_an_error_names_the_file_that_the_system_names() -> None:
    error = file_error(PermissionError(13, "Permission denied", "/a/b"), Path("/a"), "a readable file")
    assert str(error) == "/a/b: expected a readable file. Received: Permission denied"
    error = file_error(OSError(5, "Input/output error"), Path("/a"), "a readable file")
    assert str(error) == "/a: expected a readable file. Received: Input/output error"


def test_directories_are_made_and_files_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    for data in (b"first", b"second"):
        write_whole(path, data)
        assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "", "/"])
def test_a_directory_is_not_written_over(name: str) -> None:
    with pytest.raises(DataError, match=r"expected the name of a file to write\. Received: a directory$"):
        write_whole(name, b"")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, received in ((tmp_path / "file", "a file"), (tmp_path / "file" / "below", "Not a directory")):
        with pytest.raises(DataError, match=rf"^{path}: expected a directory to write to\. Received: {received}$"):
            make_directory(path)
