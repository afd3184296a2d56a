"""Pages of the site whose text lies outside `docs`: the README, the guide for contributors, and the examples.

They are used in place. Links between them and the pages in `docs` are those of the repository, and are translated.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "handbook.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the site, by the file of the repository that has their text."""
LINK = re.compile(r"(?<=\]\()(?!#)(?![a-z]+:)([^)#\s]+)")
"""The path of a link to another file of the repository."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the examples."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for example in sorted((ROOT / "examples").glob("[!_]*.py")):
        files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate the links of a page."""
    sources = {name: source for source, name in PAGES.items()}
    return translated(markdown, page.file.src_uri, sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def translated(markdown: str, page: str, source: str) -> str:
    """The text of a page with links of the site.

    page, source: the paths of the page in the site, and of its text in the repository."""

    def of_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        target = PAGES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    return LINK.sub(of_site, markdown)
