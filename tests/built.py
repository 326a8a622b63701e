"""What the tests of the book share: the built site, the executed notebooks, and the words of the sources."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import jupytext
import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
EXECUTED = ROOT / "_build" / "executed"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
PROSE = sorted((ROOT / "book").glob("*.md"))


def need_site() -> Path:
    """The built site, or a failure that says how to get it."""
    if not (SITE / "book" / "index.html").is_file():
        pytest.fail("There is no built site in _build/html: run `make book` first.", pytrace=False)
    return SITE


def pages() -> list[str]:
    """Every page of the site but those that only lead to another; one made-up name if there is no site: tests fail."""
    found = [path for path in SITE.rglob("*.html") if "_static" not in path.parts]
    found = [path for path in found if 'http-equiv="Refresh"' not in path.read_text(encoding="utf-8")[:1000]]
    return sorted(path.relative_to(SITE).as_posix() for path in found) or ["(no site)"]


@cache
def address() -> str:
    """The address of the published site, or an empty string: as the build finds it."""
    import repository
    import sharing

    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    return sharing.address(settings["book_site_url"], repository.find(settings["book_repository"], ROOT))


def base() -> str:
    """The path where the published site begins: "/NAME/" or "/"."""
    return urlsplit(address()).path or "/"


def cells(path: Path, kind: str) -> list[str]:
    """The cells of one kind in a notebook's source; a page of prose is one Markdown cell."""
    if path.suffix == ".md":
        return [path.read_text(encoding="utf-8")] if kind == "markdown" else []
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def without_fences(markdown: str) -> str:
    """Markdown less its fenced code."""
    return re.sub(r"^(```+|~~~+|:::+).*?^\1\s*?$", "", markdown, flags=re.MULTILINE | re.DOTALL)


def python_blocks(page: Path) -> list[str]:
    """The Python in a page of prose, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def table_rows(markdown: str) -> list[dict[str, str]]:
    """Every row of every table of a page, by the heads of its columns."""
    found: list[dict[str, str]] = []
    head: list[str] | None = None
    for line in markdown.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if head is None:
            head = row
        elif not set(line) <= set("|- "):
            assert len(row) == len(head), line
            found.append(dict(zip(head, row, strict=True)))
    return found


def executed(name: str) -> nbformat.NotebookNode:
    """A notebook as the build ran it, with its outputs."""
    path = EXECUTED / f"{name}.ipynb"
    if not path.is_file():
        pytest.fail(f"No outputs of {name} in _build/executed: run `make book` first.", pytrace=False)
    return nbformat.read(path, as_version=4)


def seconds() -> dict[str, float]:
    """How long the build's run of each notebook took."""
    path = EXECUTED / "seconds.json"
    if not path.is_file():
        pytest.fail("No running times in _build/executed: run `make book` first.", pytrace=False)
    return json.loads(path.read_text(encoding="utf-8"))


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell printed or returned, as text; charts and pictures left out."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            parts = []
            for output in cell.outputs:
                if output.output_type == "stream":  # which may come in several pieces
                    parts.append(output.text)
                elif "data" in output and not any(kind in output.data for kind in ("text/html", "image/png")):
                    parts.append(output.data.get("text/plain", "") + "\n")
            found.append(re.sub(r"0x[0-9a-f]{6,}", "0x…", "".join(parts)))
    return found
