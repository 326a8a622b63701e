"""The paper against itself, and common misreadings: every number is computed, cited or the paper's; sources exist."""

import ast
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from built import NOTEBOOKS, ROOT, python_blocks, without_fences
from test_numbers import ALLOWED, KNOWN, backed, claims, values
from test_quotes import QUOTES, SECTIONS, squeeze

from transformer import Transformer, TransformerConfig, count_parameters

BOOK = ROOT / "book"
PAGES = [BOOK / "against_itself.md", BOOK / "misreadings.md"]
TABLES = yaml.safe_load((BOOK / "paper" / "tables.yml").read_text(encoding="utf-8"))
BIBLIOGRAPHY = (BOOK / "references.bib").read_text(encoding="utf-8")
FIRST, LAST = "3d9c62f2aca9492db5c22676416974005b9dcbae", "bafdc1b67730430d38d6ab802cbd51f9d053ba2e"
EXPECTED = re.compile(r"[-−]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]?\d+)?|True|False")
# Words in quotation marks that are not the paper's, each with the source that the page names beside them.
OTHERS_WORDS = {
    "the published version of the transformer": "tensor2tensor, common_hparams.py",
    "for harder-to-learn models": "tensor2tensor, common_hparams.py",
    "slightly differs from the published paper": "tensor2tensor, common_attention.py",
    "lazy": "TensorFlow's LazyAdamOptimizer",
    "target space": "tensor2tensor, transformer.py",
    "An extra input": "a heading of the page",
    "cross-entropy": "said not to occur in the paper",
    "el al.": "Table 4, printed twice",
}
# Slips and figure labels that the collected quotations do not hold, with their place in the paper.
PAPERS_WORDS = {"Shifted right": "Figure 1", "BerkleyParser corpora from with": "Section 6.3"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def flat(value: Any) -> list[float]:
    """Every number in a value, however nested."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in flat(part)]
    return [float(value)]


def agrees(value: float, shown: str) -> bool:
    """Whether the number on the page is the value, rounded to the digits shown."""
    if shown in ("True", "False"):
        return value == (shown == "True")
    mantissa, _, exponent = shown.replace(",", "").partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(value - float(f"{mantissa}e{exponent or 0}")) <= half * (1 + 1e-6)


def disagreements(code: list[str]) -> tuple[int, list[str]]:
    """Run blocks of code; how many lines say what they give, and those that say something else."""
    names: dict[str, Any] = {}
    checked, wrong = 0, []
    for block in code:
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            source = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            if not isinstance(statement, ast.Expr):
                exec(source, names)
                continue
            expression, _, said = source.rpartition("  # ")
            given, shown = flat(eval(expression, names)), EXPECTED.findall(said)
            checked += 1
            if len(given) != len(shown) or not all(map(agrees, given, shown)):
                wrong.append(f"{expression} is {given}, the page says {said}")
    return checked, wrong


class Row(NamedTuple):
    """A row of the page's table of parameters."""

    name: str
    printed: int
    shown: list[str]
    counts: list[int]
    config: TransformerConfig


@functools.cache
def parameter_rows() -> list[Row]:
    """The table of parameters, with our own counts at both sizes of the vocabulary."""
    text, found = PAGES[0].read_text(encoding="utf-8"), []
    cells = r"^\| (\S+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| (?:`(.*?)`)? ?\|$"
    for name, printed, few, many, changes in re.findall(cells, text, flags=re.MULTILINE):
        configs = [eval(f"TransformerConfig.base({size}, {changes})") for size in (37_000, 40_960)]
        with torch.device("meta"):
            counts = [count_parameters(Transformer(config)) for config in configs]
        found.append(Row(name.strip("()"), int(printed), [few, many], counts, configs[1]))
    return found


def attention_biases(config: TransformerConfig) -> int:
    """Parameters in the biases of all attention projections, three attentions a pair of layers."""
    d_k, d_v = (size or config.d_model // config.n_heads for size in (config.d_k, config.d_v))
    return 3 * config.n_layers * (config.n_heads * (2 * d_k + d_v) + config.d_model)


@each_page
def test_the_lines_of_code_give_what_they_say(page: Path) -> None:
    checked, wrong = disagreements(python_blocks(page))
    assert checked >= 10 and not wrong, "\n".join(wrong)


def test_a_wrong_number_is_noticed() -> None:
    assert disagreements(["x = 2\n", "x * 1.51  # 3.0\n"]) == (1, [])
    for wrong in ("x * 1.51  # 3.1", "x < 1  # True", "x, x  # 2", "63_082_496  # 63,082,495", "6.99e-4  # 6.98e-4"):
        assert len(disagreements(["x = 2\n", wrong + "\n"])[1]) == 1, wrong


@each_page
def test_numbers_in_the_prose_are_in_the_code_the_papers_or_cited(page: Path) -> None:
    known = KNOWN | values("\n".join(python_blocks(page)))
    known |= {float(count) for row in parameter_rows() for count in row.counts}
    loose = sorted(n for n in claims(page) - set(ALLOWED.get(page.name, {})) if not backed(n, known))
    assert not loose, f"{page.name}: nothing gives {', '.join(loose)}"


def test_the_parameter_table_is_the_papers_and_our_count() -> None:
    printed = [(row["row"], row["params_millions"]) for row in TABLES["table3"]["rows"] if "params_millions" in row]
    rows = parameter_rows()
    assert [(row.name, row.printed) for row in rows] == printed and len(rows) == 11
    for row in rows:
        assert row.shown == [f"{count / 1e6:.1f}" for count in row.counts], row
    met = [[row.name for row in rows if round(row.counts[column] / 1e6) == row.printed] for column in (0, 1)]
    assert met == [[], [row.name for row in rows if row.name != "big"]]
    for row in rows:  # the authors' table of 32 rows changes nothing
        assert round((row.counts[1] + 32 * row.config.d_model) / 1e6) == round(row.counts[1] / 1e6)
    changed = [
        row for row in rows if round((row.counts[1] - attention_biases(row.config)) / 1e6) != round(row.counts[1] / 1e6)
    ]
    assert [row.config.d_ff for row in changed] == [1024]
    assert rows[-1].config == TransformerConfig.big(40_960, dropout=0.1)


@each_page
def test_what_stands_in_quotation_marks_is_the_papers_or_named(page: Path) -> None:
    text = re.sub(r"^#+ .*$|`[^`\n]*`", "", without_fences(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    paper = [squeeze(re.sub(r"\s*\[\d+(, ?\d+)*\]", "", quote["text"])) for quote in QUOTES]
    known = OTHERS_WORDS.keys() | PAPERS_WORDS.keys()
    quoted = [" ".join(words.split()) for words in re.findall(r'"([^"]+)"', text)]
    assert text.count('"') % 2 == 0 and len(quoted) >= 10
    strange = [
        words
        for words in quoted
        if words not in known and not any(squeeze(words.removeprefix("[...] ")) in passage for passage in paper)
    ]
    assert not strange, f"{page.name} puts words into the paper's mouth: {strange}"


def test_the_word_cross_entropy_is_not_in_the_quotations() -> None:
    assert not any("cross-entropy" in quote["text"].lower() or "padding" in quote["text"].lower() for quote in QUOTES)


@each_page
def test_sections_tables_and_figures_exist(page: Path) -> None:
    text = without_fences(page.read_text(encoding="utf-8"))
    text = re.sub(r"^#+ .*$|\[[^\]]*\]\([^)]*\)", "", text, flags=re.MULTILINE)  # links lead to our own sections
    named = re.findall(r"Sections? (\d(?:\.\d)*)(?:(?: and |, )(\d(?:\.\d)+))?", text)
    sections = {number for pair in named for number in pair if number}
    assert len(sections) >= 8 and sections <= SECTIONS | {"2", "5", "6", "7"}, sections - SECTIONS
    assert set(re.findall(r"Tables? (\d)", text)) <= {"1", "2", "3", "4"}
    assert set(re.findall(r"Figures? (\d)", text)) <= {"1", "2", "3", "4", "5"}
    assert set(re.findall(r"rows? \(([A-Z])\)", text)) <= {row["row"] for row in TABLES["table3"]["rows"]}


def test_every_misreading_names_the_papers_own_place() -> None:
    parts = re.split(r"^### ", PAGES[1].read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    place = r"Sections? \d|Table \d|Figures? \d|title page|does not describe|not in the text|in the paper"
    silent = [
        part.splitlines()[0] for part in parts if not re.search(place, part.partition("\n")[2]) and "GPT" not in part
    ]
    assert len(parts) >= 25 and not silent, silent


@pytest.mark.parametrize("page", [*PAGES, ROOT / "notebooks" / "07_conclusion.py"], ids=lambda page: page.name)
def test_sources_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(((?:\.\./)?[\w./]+\.(?:md|py))\)", text):
        assert (page.parent / name).resolve() in {*NOTEBOOKS, *BOOK.glob("*.md")}, f"{page.name} links to {name}"
    for key in re.findall(r"\{cite:[pt]\}`([\w,]+)`", text):
        assert all(f"{{{one}," in BIBLIOGRAPHY for one in key.split(",")), key
    for number in re.findall(r"arxiv\.org/abs/(\d{4}\.\d{5})", text):
        assert number in BIBLIOGRAPHY, f"arXiv:{number} is not in the bibliography"
    labels = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, flags=re.MULTILINE))
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    assert used == set(labels), f"defined or used, but not both: {used ^ set(labels)}"
    for address in re.findall(r"https://github\.com/[^\s)\]]+", text):
        owner, name, *rest = address.removeprefix("https://github.com/").rstrip(".").split("/")
        assert f"{owner}/{name}" in {
            "tensorflow/tensor2tensor",
            "facebookresearch/fairseq",
            "mjpost/sacrebleu",
            "dmlc/gluon-nlp",
        }
        assert not rest or rest[0] in {"blob", "tree", "issues", "commit"}, address
        if name == "tensor2tensor" and rest and rest[0] in {"blob", "tree"}:
            assert rest[1] in {FIRST, LAST}, f"{address} is not of a revision that the page names"
