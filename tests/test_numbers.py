"""A number in the prose is printed or used by a cell, or is the paper's; nobody has to believe it."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from built import NOTEBOOKS, PROSE, ROOT, cells, executed, printed, python_blocks, without_fences

# Numbers that no cell computes, each with its reason.
ALLOWED: dict[str, dict[str, str]] = {
    "against_itself.md": {
        "317": "an issue's number",
        "3,817,425": "updates of a checkpoint that its authors released, issue 317 of tensor2tensor",
        "27.52": "its score, issue 317",
        "29.02": "its score, issue 317",
        "27.09": "gluon-nlp, filtered test set",
        "27.05": "gluon-nlp, full test set",
    },
    "how_to_read.md": {"3.11": "the oldest supported version of Python"},
    "05_3_optimizer.py": {"0.997": "β₂ in a later version of tensor2tensor, from its source"},
}
NUMBER = re.compile(r"(?<![\w.^])\d(?:[\d_]|[,\u202f](?=\d{3}))*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w]*\.\d)")
NAMED = r"Sections?|Chapters?|Appendix|Tables?|Figures?|Equations?|Eq\.|Footnotes?"
TEN = re.compile(r"\s*(?:\\cdot|\\times|·|×)\s*10\^?\{?([-−⁻]?[\d⁰¹²³⁴⁵⁶⁷⁸⁹]+)\}?")
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")


def prose(markdown: str) -> str:
    """The words we answer for: no quotations, code, addresses, and no numbers that are names."""
    text = without_fences(markdown)
    text = re.sub(r"^[ ]{0,3}>.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"``.+?``|`[^`\n]+`", "", text)
    text = re.sub(r"\]\([^)\s]*\)|https?://\S+|<[^>\n]*>", "]", text)
    text = re.sub(r"\{,\}", ",", text)  # 37{,}000 in mathematics
    text = re.sub(r"(?i)\barxiv:?\s*\d{4}\.\d{4,5}(v\d+)?|\b\d{4}\.\d{5}(v\d+)?\b", "", text)
    text = re.sub(rf"(?:{NAMED}|§+)\s*\(?[\dA-Z][\d.]*\)?", "", text)
    text = TEN.sub(lambda match: "e" + match[1].translate(SUPERSCRIPTS), text)
    return re.sub(r"\b\d+(?:\.\d+){2,}\b", "", text)  # 3.2.1, 0.1.0


def digits(number: str) -> int:
    """How many significant digits a number shows."""
    mantissa = re.sub(r"[,_\u202f]", "", number).split("e")[0]
    shown = mantissa.replace(".", "").lstrip("0")
    return len(shown if "." in mantissa else shown.rstrip("0"))


def is_year(number: str) -> bool:
    return re.fullmatch(r"(19|20)\d\d", number) is not None


def claims(path: Path) -> set[str]:
    """The numbers of three and more significant digits in a page's prose."""
    found = {match for source in cells(path, "markdown") for match in NUMBER.findall(prose(source))}
    return {number for number in found if digits(number) >= 3 and not is_year(number)}


def values(text: str) -> set[float]:
    """Every number in a piece of code, output or data."""
    plain = re.sub(r"(?<=\d)[_,](?=\d{3})", "", text)
    return {float(found) for found in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", plain)}


def backed(number: str, known: Iterable[float]) -> bool:
    """Whether the number is one of the known, or one of them rounded, as a percentage, in thousands or in millions."""
    plain = re.sub(r"[,_\u202f]", "", number)
    mantissa, _, exponent = plain.partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    value = float(plain)
    scales = (1, 100, 1e-3, 1e-6)
    return any(abs(found * scale - value) <= half * (1 + 1e-6) for found in known for scale in scales)


# Not claims.yml, whose words are ours and must be backed themselves.
FACTS = [ROOT / "book" / "paper" / name for name in ("quotes.yml", "tables.yml", "facts.yml")]
FACTS += (ROOT / "book" / "results").glob("*.json")
KNOWN = values("\n".join(path.read_text(encoding="utf-8") for path in FACTS))


def evidence(path: Path) -> set[float]:
    """Every number in a notebook's code and its output; a page of prose may cite all of them and its own code."""
    names = [path] if path.suffix == ".py" else NOTEBOOKS
    texts = [source for name in names for source in cells(name, "code")]
    texts += [text for name in names for text in printed(executed(name.stem))]
    if path.suffix == ".md":
        texts += python_blocks(path)
    return KNOWN | values("\n".join(texts))


@pytest.mark.book
@pytest.mark.parametrize("path", [*NOTEBOOKS, *PROSE], ids=lambda path: path.name)
def test_numbers_in_prose_are_computed_or_the_papers(path: Path) -> None:
    candidates = claims(path) - set(ALLOWED.get(path.name, {}))
    known = evidence(path) if candidates else set()
    loose = sorted(number for number in candidates if not backed(number, known))
    assert not loose, f"{path.name}: no cell, output or table of the paper has {', '.join(loose)}"


def test_the_allow_list_is_not_longer_than_needed() -> None:
    pages = {path.name: path for path in [*NOTEBOOKS, *PROSE]}
    stale = {name: sorted(listed.keys() - claims(pages[name])) for name, listed in ALLOWED.items()}
    assert not any(stale.values()), f"no longer in the prose: {stale}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Base has 63,082,496 parameters and 8 heads.", ["63,082,496"]),
        ("See Section 3.2.1 of arXiv:1706.03762v7, 2017, and Table 3.", []),
        ("The rate is $1.747\\times 10^{-7}$, then 0.010.", ["1.747e-7"]),
        ("> 12.345 is quoted\n\nand `0.123` is code, 37,000 is round.", []),
        ("between 0.4011 and 96.5 %", ["0.4011", "96.5"]),
    ],
)
def test_claims_are_found(text: str, expected: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert claims(page) == set(expected)


def test_backing() -> None:
    assert backed("0.394", {0.3935}) and backed("97.1", {0.971}) and backed("63.1", {63_082_496.0})
    assert not backed("0.395", {0.3935}) and not backed("63.2", {63_082_496.0})
    assert json.dumps(sorted(values("a = 37_000; b = 1.5e-3"))) == "[0.0015, 37000.0]"
