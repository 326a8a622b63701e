"""Whatever stands in a block quote is the paper's, word for word, and says where it comes from."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from built import NOTEBOOKS, PROSE, ROOT, cells, without_fences
from ledger_of_claims import rows_of

PAPER = ROOT / "book" / "paper"
QUOTES = yaml.safe_load((PAPER / "quotes.yml").read_text(encoding="utf-8"))["quotes"]
TABLES = yaml.safe_load((PAPER / "tables.yml").read_text(encoding="utf-8"))
SECTIONS = {quote["section"] for quote in QUOTES}
EQUATIONS = {1: "3.2.1", 2: "3.3", 3: "5.3"}
TABLE = r"^.*Table (\d) of the paper.*\n+((?:\|.*(?:\n|$))+)"
# Quotations that follow each other in the paper without a gap: one block may run from the first into the next.
RUNS = {
    "3": [(1, 2)],
    "3.1": [(1, 4), (5, 8)],
    "3.2": [(1, 2)],
    "3.2.1": [(1, 3), (6, 7)],
    "3.2.2": [(1, 3), (5, 7)],
    "3.2.3": [(3, 5)],
    "3.3": [(3, 4)],
    "3.4": [(1, 4)],
    "3.5": [(1, 2), (5, 6), (7, 8)],
    "5.1": [(1, 3)],
    "5.2": [(1, 3)],
    "5.4": [(2, 3)],
    "6.1": [(5, 6)],
}


class Quote(NamedTuple):
    """A block quote of the book."""

    file: str
    pieces: list[str]  # its paragraphs and displayed equations
    attribution: str


def squeeze(text: str) -> str:
    """Text as it is compared: no white space, no alignment marks, straight quotation marks."""
    text = re.sub(r"\\(begin|end)\{(aligned|align\*?|split|gathered)\}", "", text)
    text = re.sub(r"\\tag\{\d\}|\\\\|&|\\(quad|,|;)(?![a-z])", "", text)
    return re.sub(r"\s+", "", text.translate(str.maketrans("“”‘’\u00a0", "\"\"'' ")))


def readings(quote: dict[str, str]) -> list[str]:
    """A quotation of the paper with and without its reference numbers, ready to compare."""
    texts = [quote["text"], quote.get("text_nocite", quote["text"])]
    return [squeeze(text) for text in texts] + [squeeze(re.sub(r"\s*\[\d+(, ?\d+)*\]", "", text)) for text in texts]


@cache
def block_quotes(path: Path) -> list[Quote]:
    """Every block quote of a notebook or of a page of prose."""
    found = []
    for source in cells(path, "markdown"):
        for block in re.findall(r"(?:^[ ]{0,3}>.*\n?)+", without_fences(source), flags=re.MULTILINE):
            text = re.sub(r"^[ ]{0,3}> ?", "", block, flags=re.MULTILINE).strip()
            body, _, last = text.rpartition("\n")
            attribution = last.strip() if last.strip().startswith("—") else ""
            if not attribution:
                body = text
            pieces = [piece.strip() for piece in re.split(r"\$\$|\n\s*\n", body)]
            found.append(Quote(path.name, [piece for piece in pieces if piece], attribution))
    return found


def sections_named(attribution: str) -> set[str]:
    """The sections an attribution names: ``— Section 3.2.1``, ``— Equation (1)``, ``— Footnote 4, Section 3.2.1`` …"""
    words = attribution.lstrip("— ").removeprefix("Attention Is All You Need, ")
    found = set(re.findall(r"(?:Sections?|§§?|and|,)\s*(\d(?:\.\d)*)\b", words))
    found |= {name for name in ("Abstract", "Attention Visualizations") if name in words}
    if not found:
        found |= {EQUATIONS[int(number)] for number in re.findall(r"Equation \(?([123])\)?", words)}
    return found


def passages() -> list[tuple[str, list[str]]]:
    """Section and readings of every quotation and of every run of them."""
    found = [(quote["section"], readings(quote)) for quote in QUOTES]
    by_id = {quote["id"]: quote for quote in QUOTES}
    for section, runs in RUNS.items():
        for first, last in runs:
            texts = [readings(by_id[f"s{section}-q{number}"]) for number in range(first, last + 1)]
            found.append((section, ["".join(parts) for parts in zip(*texts, strict=True)]))
    return found


PASSAGES = passages()
READINGS = [(quote, readings(quote)) for quote in QUOTES]
BOOK = [quote for path in [*NOTEBOOKS, *PROSE] for quote in block_quotes(path)]


@cache
def origin(piece: str) -> set[str]:
    """The sections of the paper that have these words."""
    words = squeeze(piece)
    return {section for section, texts in PASSAGES if any(words in text for text in texts)}


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PROSE], ids=lambda path: path.name)
def test_block_quotes_are_the_papers_words(path: Path) -> None:
    wrong = []
    for quote in block_quotes(path):
        sections = sections_named(quote.attribution)
        if not sections <= SECTIONS or not sections:
            wrong.append(f"no section of the paper in the last line {quote.attribution!r} of: {quote.pieces[:1]}")
            continue
        for piece in quote.pieces:
            if len(squeeze(piece)) < 12 or not origin(piece) & sections:
                elsewhere = sorted(origin(piece))
                hint = f"it stands in Section {elsewhere[0]}" if elsewhere else "see book/paper/quotes.yml"
                wrong.append(f"not in {sorted(sections)} ({hint}): {piece}")
    assert not wrong, f"{path.name}:\n" + "\n".join(wrong)


@cache
def quotes_by_file() -> dict[str, list[str]]:
    """The ids of the quotations, or parts of them, that each notebook and page uses."""
    used: dict[str, list[str]] = {}
    for quote in BOOK:
        words = [squeeze(piece) for piece in quote.pieces]
        for entry, texts in READINGS:
            if any(word in text or text in word for word in words for text in texts):
                used.setdefault(quote.file, []).append(entry["id"])
    return used


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_every_section_has_its_quote(section: str) -> None:
    entries = {entry["id"] for entry in QUOTES if entry["section"] == section}
    files = [file for file, used in quotes_by_file().items() if entries & set(used)]
    assert files, f"nothing is quoted from {section}: {sorted(entries)}"


def test_the_chapters_named_after_a_section_quote_it() -> None:
    used = quotes_by_file()
    sections = {entry["id"]: entry["section"] for entry in QUOTES}
    quoted: dict[str, set[str]] = {}
    for path in NOTEBOOKS:
        title = cells(path, "markdown")[0].splitlines()[0].removeprefix("# ")
        section = title if title in ("Abstract", "Attention Visualizations") else title.split(" ")[0]
        if section in SECTIONS:
            quoted.setdefault(section, set()).update(sections[entry] for entry in used.get(path.name, []))
    assert set(quoted) == SECTIONS - {"5", "6", "3.2"}, "sections without a chapter of their own"
    assert not [section for section, found in quoted.items() if section not in found]


@pytest.mark.parametrize("number", EQUATIONS)
def test_every_equation_has_its_quote(number: int) -> None:
    (equation,) = [quote for quote in QUOTES if quote.get("note", "").startswith(f"Equation ({number})")]
    quoted = [squeeze(piece) for quote in BOOK for piece in quote.pieces]
    assert squeeze(equation["text"]) in quoted, f"Equation ({number}) is not quoted whole anywhere"


def numbers(text: str) -> set[float]:
    """Every number in a text, as a value."""
    return {float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", text)}


def numbers_of_rows(table: dict) -> list[set[float]]:
    """The numbers of each row of a table of the paper."""
    found = []
    for row in rows_of(table):
        values = [value for key, value in row.items() if key != "ref"]
        text = " ".join(str(value).replace("100K", "100000").replace("300K", "300000") for value in values)
        found.append(numbers(text))
    return found


@cache
def copied_tables() -> list[tuple[str, int, str]]:
    """Each Markdown table that says it is the paper's: file, number, rows."""
    found = []
    for path in [*NOTEBOOKS, *PROSE]:
        for source in cells(path, "markdown"):
            for number, table in re.findall(TABLE, source, flags=re.MULTILINE):
                found.append((path.name, int(number), table))
    return found


def test_tables_copied_from_the_paper_have_its_numbers() -> None:
    wrong = []
    for file, number, table in copied_tables():
        rows = numbers_of_rows(TABLES[f"table{number}"])
        for line in table.splitlines()[2:]:
            text = line.replace("100K", "100000").replace("300K", "300000").replace("×10^", "e")
            if not any(numbers(text) <= row for row in rows):
                wrong.append(f"{file}: no row of Table {number} has all of {line}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("number", range(1, 5))
def test_every_table_has_its_copy(number: int) -> None:
    rows = numbers_of_rows(TABLES[f"table{number}"])
    copied = [line for _, copied, table in copied_tables() if copied == number for line in table.splitlines()[2:]]
    assert len(copied) >= len(rows), f"Table {number} is nowhere whole: {len(copied)} of {len(rows)} rows"


def test_the_comparison_notices_a_changed_word() -> None:
    assert origin("the weight assigned to each value is computed by a compatibility function") == {"3.2"}
    assert not origin("the weight assigned to every value is computed by a compatibility function")
    assert origin("steps or 12 hours. For our big models") == {"5.2"}
    assert sections_named("— Equation (1), Section 3.2.1") == {"3.2.1"} == sections_named("— Equation (1)")
    assert sections_named("— Abstract") == {"Abstract"} and not sections_named("— somebody")
