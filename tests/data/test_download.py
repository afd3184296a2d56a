"""Files are downloaded once, verified, and never left half-written. No test leaves this machine."""

from __future__ import annotations

import builtins
import hashlib
import http.server
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crossbow.data import download as module
from crossbow.data.download import _first_line, download
from crossbow.types import DataError
from tests.data.server import Server, dead_url
from tests.support import SECONDS, within

CONTENTS = {"first.gz": b"the first file" * 100, "second": b"another", "third": bytes(70_000)}
FILES = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
ADVICE = "use --dataset digits"

pooch = pytest.importorskip("pooch", reason="pooch, of the extra zoo, is not installed")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, in a temporary place; proxies are off."""
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "crossbow" / "three"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    served = tmp_path / "served"
    served.mkdir()
    for name, content in CONTENTS.items():
        (served / name).write_bytes(content)
    made = Server(served)
    yield made
    made.close()


def fetch(mirrors: Sequence[str], files: Mapping[str, str] = FILES) -> list[Path]:
    return download("Three", "three", files, mirrors, ADVICE)


def refused(mirrors: Sequence[str], reason: str, files: Mapping[str, str] = FILES) -> None:
    """The error is one sentence with the reason and the advice."""
    with pytest.raises(DataError, match=rf"^Three could not be downloaded \(.*{reason}.*\): {ADVICE}$") as caught:
        within(SECONDS, lambda: fetch(mirrors, files))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_files_are_downloaded_once(cache: Path, server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    paths = fetch([server.url])
    assert paths == [cache / name for name in FILES]
    assert {path.name: path.read_bytes() for path in paths} == CONTENTS
    assert sum(request.startswith("GET") for request in server.requests) == 3
    progress = capfd.readouterr()
    assert progress.out == ""
    assert all(name in progress.err for name in FILES)
    server.requests.clear()
    assert fetch([server.url]) == paths
    assert server.requests == []
    assert capfd.readouterr() == ("", "")


def test_a_damaged_file_in_the_cache_is_downloaded_again(cache: Path, server: Server) -> None:
    fetch([server.url])
    (cache / "second").write_bytes(b"half")
    server.requests.clear()
    assert fetch([server.url])[1].read_bytes() == CONTENTS["second"]
    assert [request for request in server.requests if "GET" in request] == ["GET /second"]


def test_the_second_mirror_is_tried(cache: Path, server: Server) -> None:
    assert len(fetch([dead_url(), server.url])) == 3


def test_mirrors_are_tried_for_each_file(cache: Path, server: Server, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "served" / "third").rename(other / "third")
    second = Server(other)
    try:
        assert [path.read_bytes() for path in fetch([second.url, server.url])] == list(CONTENTS.values())
    finally:
        second.close()


def test_another_file_under_the_name_is_refused_and_not_kept(cache: Path, server: Server) -> None:
    refused([server.url], r"127.0.0.1:\d+: SHA256 hash", FILES | {"third": "0" * 64})
    assert sorted(os.listdir(cache)) == ["first.gz", "second"]


def test_a_server_without_the_files(cache: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "served" / "first.gz").unlink()
    refused([server.url], "404")
    assert os.listdir(cache) == []


def test_all_mirrors_are_named(cache: Path) -> None:
    first, second = dead_url(), dead_url()
    refused([first, second], f"{first.split('/')[2]}: not reachable; {second.split('/')[2]}: not reachable")


def test_a_connection_that_breaks_leaves_no_half_written_file(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(handler: http.server.SimpleHTTPRequestHandler, source: Any, target: Any) -> None:
        target.write(source.read(100))
        target.flush()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "copyfile", half)
    refused([server.url], "")
    assert os.listdir(cache) == []


def test_a_file_that_is_too_large_is_not_kept(cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_FILE", 65_000)
    refused([server.url], "more than 65.0 kB")
    assert sorted(os.listdir(cache)) == ["first.gz", "second"]


def test_a_name_that_is_unknown(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    refused(["https://one.example/", "https://two.example/"], r"one\.example: .*two\.example: ")


def test_a_network_without_answers_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    quiet = threading.Event()

    def head(*args: Any, **options: Any) -> None:  # as looking up the name may do
        quiet.wait(2 * SECONDS)
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr(module, "SECONDS_TO_CONNECT", 0.1)
    refused(["https://one.example/"], "no answer within 0.1 s")
    quiet.set()
    assert os.listdir(cache) == []


def test_a_cache_that_cannot_be_written(cache: Path, server: Server) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    refused([server.url], "")


def test_the_level_of_the_log_is_restored(cache: Path, server: Server) -> None:
    before = pooch.get_logger().level
    fetch([server.url])
    assert pooch.get_logger().level == before != logging.WARNING


def test_without_pooch_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pooch(name: str, *rest: Any, **options: Any) -> Any:
        if name == "pooch":
            raise ModuleNotFoundError("No module named 'pooch'")
        return real(name, *rest, **options)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", no_pooch)
    with pytest.raises(
        DataError, match=rf"^downloading Three needs pooch: pip install 'crossbow\[zoo\]', or {ADVICE}$"
    ):
        fetch([])


@pytest.mark.parametrize(
    ("text", "line"),
    [("", "ValueError"), ("no\nanswer", "no"), (160 * "a", 160 * "a"), (161 * "a", 157 * "a" + "…")],
    ids=["nothing", "two lines", "160 characters", "161 characters"],
)
def test_the_reason_of_a_mirror_is_one_line(text: str, line: str) -> None:
    assert _first_line(ValueError(text)) == line
