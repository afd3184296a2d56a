"""`crossbow report`: one well-formed file that refers to no other."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from crossbow import cli
from crossbow.png import png
from crossbow.runtime.results import LearnerRecord
from tests.scripts.run_files import record, write_run
from tests.timeline.test_timeline import two_learners

HTML = "{http://www.w3.org/1999/xhtml}"
PICTURE = base64.b64encode(png(np.zeros((1, 8, 8), np.uint8))).decode()
SUMMARY = {
    "operators": [{"name": "conv<1>", "type": "Conv", "output": "4×20×24×24", "parameters": 52_000}],
    "classes": ["cat & dog", "bird"],
    "confusion": [[3, 1], [0, 4]],
    "worst": [{"index": 7, "label": 0, "predicted": 1, "outputs": [0.125, 0.875], "png": PICTURE}],
}


def written(run: Path, output: Path) -> ElementTree.Element:
    assert cli.main(["report", str(run), "-o", str(output)]) == 0
    return ElementTree.fromstring(output.read_text(encoding="utf-8"))


def texts(root: ElementTree.Element, tag: str) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(HTML + tag)]


def test_a_timeline(run: Path, tmp_path: Path) -> None:
    two_learners().save(run / "trace.json.gz")
    root = written(run, tmp_path / "report.html")
    assert "Timeline of 2 tasks" in texts(root, "h2")
    assert "Largest loss: learner 0 waits 30 % of its time for learner 1." in texts(root, "p")
    assert root.find(".//{http://www.w3.org/2000/svg}svg") is not None


def test_a_damaged_timeline_is_left_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "trace.json.gz").write_bytes(b"no trace")
    root = written(run, tmp_path / "report.html")
    assert "no timeline: " in capsys.readouterr().out
    assert "Settings" in texts(root, "h2")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    learner = LearnerRecord(0, 0.75, 0.1, 0.05, 0.1, 1234.5, 0.00123)
    records = [record(1, 0.5), replace(record(2, 0.75), learners=(learner,))]
    return write_run(tmp_path / "a <run> & more", records, {"rule": "sma <1>"})


def test_everything_that_is_known(run: Path, tmp_path: Path) -> None:
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    root = written(run, tmp_path / "report.html")
    assert texts(root, "h1") == ["a <run> & more"]
    assert texts(root, "h2") == [
        "Settings",
        "Learners in epoch 2",
        "Operators",
        "Confusion matrix of the test set",
        "Worst test examples",
    ]
    cells = texts(root, "td")
    for text in ("75.00%", "sma <1>", "1.23e-03", "conv<1>", "52,000"):
        assert text in cells
    assert texts(root, "figcaption") == ["7: cat & dog (0.12), predicted bird (0.88)"]
    sources = [image.attrib["src"] for image in root.iter(HTML + "img")]
    assert [source.partition(",")[0] for source in sources] == [
        "data:image/svg+xml;base64",
        "data:image/png;base64",
    ]
    ElementTree.fromstring(base64.b64decode(sources[0].partition(",")[2]))


def test_it_refers_to_no_other_file(run: Path, tmp_path: Path) -> None:
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    root = written(run, tmp_path / "report.html")
    assert {element.tag.removeprefix(HTML) for element in root.iter()}.isdisjoint(
        {"script", "link", "iframe", "object"}
    )
    for element in root.iter():
        for name, value in element.attrib.items():
            assert name not in ("href", "srcset")
            assert name != "src" or value.startswith("data:")
    assert not re.search(r"url\(|@import", (tmp_path / "report.html").read_text(encoding="utf-8"))


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    root = written(write_run(tmp_path / "run", []), tmp_path / "report.html")
    assert texts(root, "p") == ["Nothing was recorded."]
    assert texts(root, "h2") == ["Settings"]


def test_damaged_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("{", "[]"):
        (run / "summary.json").write_text(text)
        assert cli.main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 2
        assert "summary.json: expected a summary of a run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_in_a_browser(run: Path, tmp_path: Path) -> None:
    """The browser lays out all sections one below the other, and draws curves, tables, bars and pictures."""
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    two_learners().save(run / "trace.json.gz")
    written(run, tmp_path / "report.html")
    script = (
        "<script>addEventListener('load', () => {document.title = JSON.stringify(["
        "...document.querySelectorAll('h2, table, img, svg')].map(e => {let b = e.getBoundingClientRect();"
        "return [e.tagName.toLowerCase(), b.top, b.width, b.height, e.tagName != 'IMG' || e.naturalWidth > 0]}))})"
        "</script>"
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    (tmp_path / "measured.html").write_text(page.replace("</body>", f"{script}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=2000", "--dump-dom", (tmp_path / "measured.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None
    places = json.loads(html.unescape(found[1]))
    headings = [top for kind, top, *_ in places if kind == "h2"]
    assert len(headings) == 6
    assert headings == sorted(headings)
    assert all(width > 0 and height > 0 and shown for _, _, width, height, shown in places)
    assert {kind for kind, *_ in places} == {"h2", "table", "img", "svg"}
