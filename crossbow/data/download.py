"""Downloads to the user's cache directory, with verified hashes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from crossbow.data.progress import ProgressBars
from crossbow.types import DataError, bytes_text

SECONDS_TO_CONNECT = 5.0
"""Time limit for a mirror's first answer."""

LARGEST_FILE = 1 << 30
"""Maximum size of a downloaded file in bytes."""

SECONDS_TO_READ = 30.0
"""Time limit for a stalled download."""


def download(title: str, folder: str, files: Mapping[str, str], mirrors: Sequence[str], otherwise: str) -> list[Path]:
    """The paths of a data set's files (sha256 by name) in the cache. Missing or damaged files are downloaded from the
    first mirror that works.

    Raises DataError, a sentence that ends with the advice `otherwise`.
    """
    try:
        import pooch
    except ImportError as error:
        raise DataError(f"downloading {title} needs pooch: pip install 'crossbow[zoo]', or {otherwise}") from error
    cache = Path(pooch.os_cache("crossbow")) / folder
    with ProgressBars() as progress, _quiet(pooch.get_logger()):
        paths = []
        for name, sha256 in files.items():
            path, reasons, failure = _retrieve(pooch, mirrors, name, sha256, cache, progress)
            if path is None:
                raise DataError(f"{title} could not be downloaded ({'; '.join(reasons)}): {otherwise}") from failure
            paths.append(path)
        return paths


def _retrieve(
    pooch: ModuleType, mirrors: Sequence[str], name: str, sha256: str, cache: Path, progress: ProgressBars
) -> tuple[Path | None, list[str], Exception | None]:
    """The path of the file; or, if every mirror failed, the reasons and the last exception."""

    def fetch(url: str, path: str, unused: object) -> None:
        # pooch calls this only if the file is not in the cache. `path` is a temporary file in the same directory, which
        # is renamed once its hash is verified, and removed otherwise.
        _check_reachable(url)
        _fetch(url, Path(path), progress.begin(name))

    reasons: list[str] = []
    failure: Exception | None = None
    for mirror in mirrors:
        try:
            return Path(pooch.retrieve(mirror + name, sha256, fname=name, path=cache, downloader=fetch)), [], None
        except (OSError, ValueError) as error:  # no network (requests' errors are OSErrors), no space, a wrong hash
            failure = error
            reasons.append(f"{mirror.split('/')[2]}: {_first_line(error)}")
    return None, reasons, failure


def _fetch(url: str, path: Path, show: Callable[[int, int], None]) -> None:
    """Download a URL to a file. pooch's own downloader would not close its connection on failure."""
    import requests

    timeout = (SECONDS_TO_CONNECT, SECONDS_TO_READ)
    with requests.get(url, stream=True, timeout=timeout) as response, path.open("wb") as file:
        response.raise_for_status()
        total = int(response.headers.get("content-length", 0))
        for chunk in response.iter_content(1 << 16):
            file.write(chunk)
            if file.tell() > LARGEST_FILE:
                raise ValueError(f"more than {bytes_text(LARGEST_FILE)}")
            show(file.tell(), total)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if len(line) <= 160 else line[:157] + "…"


def _check_reachable(url: str) -> None:
    """Raises ConnectionError unless the server answers within SECONDS_TO_CONNECT.

    The timeout of a connection excludes the name lookup, and applies to each address of a server separately: behind a
    firewall that drops packets, that would take minutes. So a thread sends a request, and is abandoned if necessary.
    """
    import requests

    failures: list[Exception] = []

    def ask() -> None:
        try:
            requests.head(url, timeout=SECONDS_TO_CONNECT, allow_redirects=False).close()
        except (requests.RequestException, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=ask, name="crossbow-mirror", daemon=True)
    thread.start()
    thread.join(SECONDS_TO_CONNECT)
    if thread.is_alive():
        raise ConnectionError(f"no answer within {SECONDS_TO_CONNECT:g} s")
    if failures:
        raise ConnectionError("not reachable") from failures[0]


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Suppress pooch's messages, which would break the progress bar."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
