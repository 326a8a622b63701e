"""Read the ledger of claims, and find the sections and tests that its entries name.

The page of the ledger, its tests and `negate_claims.py` use this.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jupytext
import yaml

STATUSES = ("checked here", "checked by a test", "reproduced in part", "not checkable here")
KINDS = ("configuration value", "mathematics", "behaviour", "result", "comparison", "history")


class Section(NamedTuple):
    """A heading of a notebook and the code below it, up to the next heading of the same or a higher level."""

    titles: tuple[str, ...]  # the headings above it, and its own, as they stand in the source
    anchor: str  # the fragment of a link to it
    first: int  # its code cells, by their number in the notebook, the first included
    last: int  # and the last excluded


class Paper(NamedTuple):
    """The paper as data."""

    quotes: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, Any]]


def read_claims(root: Path) -> list[dict[str, Any]]:
    """Give the entries of the ledger, in its order."""
    text = (root / "book" / "paper" / "claims.yml").read_text(encoding="utf-8")
    return list(yaml.safe_load(text)["claims"])


def read_paper(root: Path) -> Paper:
    """Give the quotations by their ids, and the tables by their names."""
    texts = [(root / "book" / "paper" / name).read_text(encoding="utf-8") for name in ("quotes.yml", "tables.yml")]
    quotes, tables = map(yaml.safe_load, texts)
    return Paper({quote["id"]: quote for quote in quotes["quotes"]}, tables)


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the rows of a table of the paper, those of its groups too."""
    return [*table.get("rows", ()), *(row for group in table.get("groups", ()) for row in group["rows"])]


def section_of(claim: dict[str, Any], paper: Paper) -> str:
    """Give the section of the paper that makes the claim."""
    if "quote" in claim:
        return str(paper.quotes[claim["quote"]]["section"])
    return str(paper.tables[claim["cells"][0]["table"]]["section"])


def cells_of(path: Path) -> list[tuple[str, str]]:
    """Give kind and source of every cell of a notebook."""
    return _cells(path.read_text(encoding="utf-8"))


@functools.cache
def _cells(text: str) -> list[tuple[str, str]]:
    notebook = jupytext.reads(text, fmt="py:percent")
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def code_of(path: Path) -> list[str]:
    """Give the source of every code cell of a notebook."""
    return [source for kind, source in cells_of(path) if kind == "code"]


def _anchor(title: str, taken: set[str]) -> str:
    plain = re.sub(r"\$[^$]+\$|[*`]", "", title).lower().replace(" ", "-")
    anchor, number = re.sub(r"[^\w-]", "", plain), 1
    while anchor in taken:
        anchor, number = f"{anchor}-{number}", number + 1
    taken.add(anchor)
    return anchor


def sections_of(path: Path) -> list[Section]:
    """Give every section of a notebook."""
    headings: list[tuple[int, str, int]] = []  # level, title, number of code cells before it
    n_code = 0
    for kind, source in cells_of(path):
        if kind == "code":
            n_code += 1
        elif kind == "markdown":
            prose = re.sub(r"^```.*?^```", "", source, flags=re.MULTILINE | re.DOTALL)
            headings += [(len(m[1]), m[2], n_code) for m in re.finditer(r"^(#+) (.+?)\s*$", prose, re.MULTILINE)]
    found: list[Section] = []
    taken: set[str] = set()
    above: list[tuple[int, str]] = []
    for i, (level, title, first) in enumerate(headings):
        above = [*(pair for pair in above if pair[0] < level), (level, title)]
        last = next((start for other, _, start in headings[i + 1 :] if other <= level), n_code)
        found.append(Section(tuple(name for _, name in above), _anchor(title, taken), first, last))
    return found


def find_section(root: Path, where: str) -> tuple[Path, Section]:
    """Find what `notebooks/FILE > heading > heading below it` names.

    Raises:
        LookupError: There is no such notebook, or not exactly one such section in it.
    """
    name, *titles = where.split(" > ")
    path = root / name
    if not path.is_file():
        raise LookupError(f"{where}: there is no {name}.")
    *parents, title = titles
    found = [
        section for section in sections_of(path) if section.titles[-1] == title and set(parents) <= set(section.titles)
    ]
    if len(found) != 1:
        raise LookupError(f"{where}: {len(found)} such headings in {name}; there must be one.")
    return path, found[0]


def assertions(code: str) -> Iterator[str]:
    """Give the source of every assertion in a cell: `assert` statements, and calls of `assert_…` functions."""
    for node in ast.walk(ast.parse(code)):
        name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if isinstance(node, ast.Assert) or name.startswith("assert_"):
            yield ast.get_source_segment(code, node) or ""


def section_assertions(path: Path, section: Section) -> list[str]:
    """Give the source of every assertion in a section, without its line breaks."""
    code = code_of(path)[section.first : section.last]
    return [" ".join(text.split()) for source in code for text in assertions(source)]


def line_of_test(root: Path, where: str) -> int:
    """Find the line of `tests/FILE::test`.

    Raises:
        LookupError: There is no such file, or no such test in it.
    """
    name, _, test = where.partition("::")
    path = root / name
    if not path.is_file():
        raise LookupError(f"{where}: there is no {name}.")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == test:
            return node.lineno
    raise LookupError(f"{where}: {name} has no function {test}.")
