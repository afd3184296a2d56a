"""Files: what is a path, what is written whole, and what an error says. Saving a model and others use it."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from crossbow.files import (
    SPARE_FILES,
    check_readable,
    checked_path,
    file_error,
    file_to_fill,
    kind_of_file,
    make_directory,
    make_room_for_files,
    reason,
    write_whole,
)
from crossbow.types import DataError
from tests.combinations import one_in

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="permissions, links, pipes and locks are those of POSIX")


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"model"


@pytest.mark.parametrize("path", ["a/b", Path("a/b"), PurePosixPath("a/b")], ids=repr)
def test_a_path(path: Any) -> None:
    assert checked_path("save", path) == Path("a/b")


@pytest.mark.parametrize("path", [None, 5, b"a", BytesPath()], ids=lambda path: type(path).__name__)
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(TypeError, match=r"^save: expected a path, as a str or a pathlib\.Path\. Received: "):
        checked_path("save", path)


def test_an_empty_path_is_not_the_current_directory() -> None:
    with pytest.raises(DataError, match=r"^save: expected a path\. Received: an empty text$"):
        checked_path("save", "")


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


@pytest.mark.parametrize("name", [".", "/"])
def test_a_directory_is_not_written_over(name: str) -> None:
    with pytest.raises(DataError, match=r"expected the name of a file to write\. Received: a directory$"):
        write_whole(name, b"")


@POSIX
@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a socket", "a device"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    special_file(kind, tmp_path / "special")
    (tmp_path / "link").symlink_to("special")
    for name in ("special", "link"):
        assert kind_of_file(tmp_path / name) == kind
        with pytest.raises(DataError) as caught:
            check_readable(tmp_path / name, "a good file")
        assert str(caught.value) == f"{tmp_path / name}: expected a good file. Received: {kind}"


def test_missing_files_are_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "nowhere", tmp_path / "file" / "below", tmp_path / "null\0"):
        assert kind_of_file(path) is None
        check_readable(path, "a good file")
    assert kind_of_file(tmp_path / "file") == "a file"
    check_readable(tmp_path / "file", "a good file")


# How many are open

LIMITS = """
import json, os, resource, sys
from crossbow.files import make_room_for_files
soft, hard, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
print(json.dumps([*make_room_for_files(count), *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


@pytest.mark.slow
@one_in(3)
@POSIX
@pytest.mark.parametrize(
    ("soft", "count", "raised"), [(100, 20, 100), (100, 100, 200), (100, 500, 300), (40, 20, 0), (300, 500, 300)]
)
def test_the_limit_of_open_files_is_raised_if_more_are_needed(soft: int, count: int, raised: int) -> None:
    """Up to the hard limit of 300. `raised` 0: to what is needed, which is more than `count` more than before."""
    command = [sys.executable, "-c", LIMITS, str(soft), "300", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    needed, limit, *limits = json.loads(done.stdout)
    assert 10 + 3 + count + SPARE_FILES <= needed <= 10 + 10 + count + SPARE_FILES
    assert limits == [limit, 300]
    assert limit == (raised or needed)


@POSIX
def test_a_limit_that_cannot_be_raised_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    def refuse(*arguments: Any) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    needed, limit = make_room_for_files(1000)
    assert needed > 1000
    assert limit == 64


# What is written, where


def test_the_home_directory_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_whole("~/deep/model", b"data")
    assert (tmp_path / "deep" / "model").read_bytes() == b"data"
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    with pytest.raises(DataError, match=r"^writing a file: expected a path whose home directory exists"):
        write_whole("~nobody-has-this-name/model", b"")


def special_file(kind: str, path: Path) -> None:
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)  # a path may be longer than a socket's address
    elif kind == "a device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        path.mkdir()


@POSIX
@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a socket", "a device"])
def test_only_regular_files_are_written(
    kind: str, by_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    special, link = tmp_path / "special", tmp_path / "link"
    special_file(kind, special)
    link.symlink_to(special)
    before, path = special.lstat(), link if by_link else special
    with pytest.raises(DataError) as caught:
        write_whole(path, b"data")
    assert str(caught.value) == f"{path}: expected the name of a file to write. Received: {kind}"
    assert os.path.samestat(special.lstat(), before)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, special]


@POSIX
@pytest.mark.parametrize("exists", [False, True])
def test_a_link_stays_one(exists: bool, tmp_path: Path) -> None:
    target, link, second = tmp_path / "deep" / "target", tmp_path / "link", tmp_path / "second"
    if exists:
        write_whole(target, b"older")
    link.symlink_to("deep/target")
    second.symlink_to("link")
    write_whole(second, b"data")
    assert second.is_symlink()
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == b"data"
    assert list(target.parent.iterdir()) == [target]


@POSIX
def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(DataError, match=r"link: expected to write this file\. Received: Too many levels of symbolic"):
        write_whole(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_permissions_stay(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    path.chmod(mode)
    write_whole(path, b"data")
    assert path.read_bytes() == b"data"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@POSIX
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_of_a_new_file_are_the_users_choice(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", b"data")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    os.chown(path, 12345, 23456)
    write_whole(path, b"data")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


# What killed writers leave

WRITER = """
import os, sys, time
from crossbow.files import write_whole

def wait(descriptor):  # the data are written, and the file has not got its name yet
    print("writing", flush=True)
    time.sleep(600)

os.fsync = wait
write_whole(sys.argv[1], b"data")
"""


@pytest.mark.slow
@POSIX
def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """While it lives it is left alone, though the name of its file is as hidden as that of one who is dead."""
    path, other = tmp_path / "file", tmp_path / ".0123456789abcdef.part"
    other.write_bytes(b"somebody else's")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    with writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            (partial,) = set(tmp_path.iterdir()) - {other}
            assert partial.name.endswith(".partial")
            write_whole(tmp_path / "meanwhile", b"data")
            assert set(tmp_path.iterdir()) == {other, partial, tmp_path / "meanwhile"}
        finally:
            writer.send_signal(signal.SIGKILL)
    write_whole(path, b"data")
    assert set(tmp_path.iterdir()) == {other, path, tmp_path / "meanwhile"}


@POSIX
def test_what_is_called_like_an_abandoned_file_and_is_none_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / ".0000000000000000.partial").symlink_to("file")
    os.mkfifo(tmp_path / ".0000000000000001.partial")
    (tmp_path / ".0000000000000002.partial").mkdir()
    before = set(tmp_path.iterdir())
    write_whole(tmp_path / "file", b"other")
    assert set(tmp_path.iterdir()) == before


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, received in ((tmp_path / "file", "a file"), (tmp_path / "file" / "below", "Not a directory")):
        with pytest.raises(DataError, match=rf"^{path}: expected a directory to write to\. Received: {received}$"):
            make_directory(path)


# Files that are filled by a block


def test_a_file_has_its_name_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with file_to_fill(path) as file:
        file.write(b"data")
        assert not path.exists()
    assert path.read_bytes() == b"data"
    with pytest.raises(UnicodeEncodeError), file_to_fill(path) as file:
        file.write("é".encode("ascii"))
    assert path.read_bytes() == b"data"
    assert list(tmp_path.iterdir()) == [path]


def test_whose_error_it_is(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    message = r"/file: expected to write this file\. Received: No space left on device$"
    with pytest.raises(DataError, match=message), file_to_fill(tmp_path / "file"):
        raise full
    for error in (OSError(2, "No such file", "another"), ValueError("of the block"), DataError("of the block")):
        with pytest.raises(type(error)) as caught, file_to_fill(tmp_path / "file"):
            raise error
        assert caught.value is error
    assert list(tmp_path.iterdir()) == []
