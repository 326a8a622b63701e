"""The ledger of claims: complete, exact, and every check it names is there and can fail."""

import ast
import functools
import itertools
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import claims
import negate_claims
import pytest
import torch
from built import ROOT, SITE, executed, need_site
from ledger_of_claims import (
    KINDS,
    STATUSES,
    assertions,
    code_of,
    find_section,
    line_of_test,
    read_claims,
    read_paper,
    rows_of,
    section_assertions,
    section_of,
    sections_of,
)
from torch import nn

from transformer import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    embedded_corpus,
    greedy_decode,
    linearize,
    load_toy_translator,
    read_trees,
)

CLAIMS, PAPER = read_claims(ROOT), read_paper(ROOT)
QUOTES, TABLES = PAPER
BY_ID = {claim["id"]: claim for claim in CLAIMS}
FIELDS = {"id", "quote", "words", "cells", "claim", "kind", "status", "where", "asserts", "reason"}
# Sections of the paper that claim nothing themselves.
SILENT = {"5": "It has one sentence, that training follows."}

each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=BY_ID)


# ---------------------------------------------------------------------------------------------------------- complete


@each_claim
def test_a_claim_has_what_its_status_needs(claim: dict) -> None:
    assert set(claim) <= FIELDS
    assert claim["status"] in STATUSES and claim["kind"] in KINDS
    assert claim["claim"].endswith(".") and re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", claim["id"])
    assert ("quote" in claim and "words" in claim) != ("cells" in claim)
    where, reason = claim.get("where", ""), claim.get("reason", "")
    if claim["status"] == "checked here":
        assert where.startswith("notebooks/") and not reason
    elif claim["status"] == "checked by a test":
        assert where.startswith("tests/") and not reason
    else:
        assert len(reason) > 20 and reason.endswith(".")
    if claim["status"] == "reproduced in part":
        assert where
    assert ("asserts" in claim) == where.startswith("notebooks/")


def test_there_are_enough_claims_and_few_are_values() -> None:
    kinds = Counter(claim["kind"] for claim in CLAIMS)
    assert len(CLAIMS) == len(BY_ID) >= 80
    assert kinds["configuration value"] <= len(CLAIMS) / 3


def test_every_section_claims_something() -> None:
    sections = {quote["section"] for quote in QUOTES.values()} | {str(table["section"]) for table in TABLES.values()}
    assert sections - SILENT.keys() == {section_of(claim, PAPER) for claim in CLAIMS}


def test_every_equation_is_in_the_ledger() -> None:
    equations = {name for name, quote in QUOTES.items() if quote["kind"] == "equation"}
    assert len(equations) == 5
    assert equations <= {claim.get("quote") for claim in CLAIMS}


def test_every_row_of_every_table_is_in_the_ledger() -> None:
    named = {
        (cell["table"], i)
        for claim in CLAIMS
        for cell in claim.get("cells", ())
        for i, row in enumerate(rows_of(TABLES[cell["table"]]))
        if cell["row"].items() <= row.items()
    }
    assert named == {(name, i) for name, table in TABLES.items() for i, _ in enumerate(rows_of(table))}


# ------------------------------------------------------------------------------------------------------------- exact


def plain(text: str) -> str:
    return " ".join(text.split())


def test_words_are_the_papers() -> None:
    wrong = []
    for claim in CLAIMS:
        if "quote" in claim:
            quote = QUOTES[claim["quote"]]
            texts = [plain(quote["text"]), plain(quote.get("text_nocite", quote["text"]))]
            if not any(claim["words"] in text for text in texts):
                wrong.append(f"{claim['id']}: {claim['quote']} has no {claim['words']!r}")
    assert not wrong, "\n".join(wrong)


def test_cells_are_the_papers() -> None:
    wrong = []
    for claim in CLAIMS:
        for cell in claim.get("cells", ()):
            rows = [row for row in rows_of(TABLES[cell["table"]]) if cell["row"].items() <= row.items()]
            if len(rows) != 1 or not cell["values"].items() <= rows[0].items():
                wrong.append(f"{claim['id']}: {cell}")
    assert not wrong, "\n".join(wrong)


# --------------------------------------------------------------------------------------------------- checks are there


@each_claim
def test_its_check_is_there(claim: dict) -> None:
    where = claim.get("where", "")
    if where.startswith("tests/"):
        assert line_of_test(ROOT, where)
    elif where:
        path, section = find_section(ROOT, where)
        found = section_assertions(path, section)
        assert any(text.startswith(plain(claim["asserts"])) for text in found), f"below that heading stand: {found}"


def test_headings_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "a.py").write_text(
        "# %% [markdown]\n# # A `b` $x$\n#\n# ## One\n# ### Check\n\n# %%\nassert 1\n\n# %% [markdown]\n# ## Two\n\n"
        "# %%\nx = 1\n\n# %% [markdown]\n# ### Check\n\n# %%\nf.assert_close(\n    x,\n    1,\n)\n",
        encoding="utf-8",
    )
    path = tmp_path / "notebooks" / "a.py"
    assert [section.anchor for section in sections_of(path)] == ["a-b-", "one", "check", "two", "check-1"]
    spans = [(section.first, section.last) for section in sections_of(path)]
    assert spans == [(0, 3), (0, 1), (0, 1), (1, 3), (2, 3)]
    assert sections_of(path)[3].titles == ("A `b` $x$", "Two")
    _, section = find_section(tmp_path, "notebooks/a.py > Two > Check")
    assert section_assertions(path, section) == ["f.assert_close( x, 1, )"]
    for where in ("notebooks/a.py > Check", "notebooks/a.py > Three", "notebooks/b.py > One"):
        with pytest.raises(LookupError, match=re.escape(where)):
            find_section(tmp_path, where)
    with pytest.raises(LookupError, match="has no function test_nothing"):
        line_of_test(ROOT, "tests/test_claims.py::test_nothing")
    with pytest.raises(LookupError, match=r"there is no tests/nothing.py"):
        line_of_test(ROOT, "tests/nothing.py::test_nothing")
    assert list(assertions("if x:\n    assert y == 1, 'why'\nz.assert_(1)")) == ["assert y == 1, 'why'", "z.assert_(1)"]


# -------------------------------------------------------------------------------------------------------- negated


def test_ten_negations_can_be_applied(tmp_path: Path) -> None:
    assert len(negate_claims.NEGATIONS) >= 10
    for name, negation in negate_claims.NEGATIONS.items():
        assert BY_ID[name]["status"] in ("checked here", "checked by a test"), name
        path = tmp_path / negation.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / negation.file).read_bytes())
        before = negate_claims.apply(negation, tmp_path)
        assert path.read_text(encoding="utf-8") != before
        with pytest.raises(ValueError, match="must stand there once"):
            negate_claims.apply(negation, tmp_path)


@pytest.mark.slow
def test_negated_claims_are_noticed(capfd: pytest.CaptureFixture) -> None:
    """Two of the ten, one with a test and one with a notebook; the script alone does them all."""
    assert negate_claims.main(["5.3-adam", "3.3-equation-2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 4 and all(re.search(r" passes  fails +\S", line) for line in lines[1:3])


def test_an_unknown_claim_is_told(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        negate_claims.main(["9.9-nothing"])
    assert "no negation of 9.9-nothing" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- on the page


LEDGER_OF_FOUR = r"""
claims:
- {id: 3.2-heads, quote: s3.2.2-q4, words: 'a &= b', claim: First., kind: mathematics, status: checked here,
   where: notebooks/a.py > One > Check, asserts: assert x}
- {id: 5.2-costs, cells: [{table: table2, row: {model: ConvS2S}, values: {bleu_en_de: 25.16, flops_both: 9.6e+18}}],
   claim: Second., kind: result, status: reproduced in part, where: 'tests/test_a.py::test_b', reason: Why.}
- {id: 6.2-rows, cells: [{table: table3, row: {row: A, h: 4}, values: {ppl_dev: 5.0}}, {table: table3, row: {row: big},
   values: {N: 6}}], claim: Third., kind: configuration value, status: checked here,
   where: notebooks/a.py > One > Check, asserts: assert x == `y` + 1}
- {id: 4-path, quote: abs-q2, words: based solely, claim: Fourth., kind: history,
   status: not checkable here, reason: So.}
"""


def test_entries_become_rows_with_links_and_a_count_of_each_status(tmp_path: Path) -> None:
    paper = tmp_path / "book" / "paper"
    paper.mkdir(parents=True)
    for name in ("quotes.yml", "tables.yml"):
        (paper / name).write_bytes((ROOT / "book" / "paper" / name).read_bytes())
    (paper / "claims.yml").write_text(LEDGER_OF_FOUR, encoding="utf-8")
    (tmp_path / "notebooks").mkdir()
    headings = "# %% [markdown]\n# # A\n# ## One\n# ```text\n# ### Check\n# ```\n# ### Check\n\n# %%\nassert x\n"
    (tmp_path / "notebooks" / "a.py").write_text(headings, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("\n\ndef test_b():\n    assert True\n", encoding="utf-8")

    def filled(repository: str) -> tuple[str, set[str]]:
        used: set[str] = set()
        app = SimpleNamespace(
            srcdir=str(tmp_path),
            env=SimpleNamespace(note_dependency=lambda path: used.add(Path(path).relative_to(tmp_path).as_posix())),
            config=SimpleNamespace(book_repository=repository, book_branch="main"),
        )
        pages = [f"{claims.SUMMARY} between {claims.LEDGER}"]
        claims.fill(app, "page", pages)
        return pages[0], used

    page, used = filled("me/book")
    assert used == {*(f"book/paper/{name}.yml" for name in ("claims", "quotes", "tables")),
                    "notebooks/a.py", "tests/test_a.py"}  # fmt: skip
    summary, _, table = page.partition(" between ")
    assert re.findall(r"^\| \[(.+)\]\{\.status \.(.+)\} \| (\d) \|", summary, re.MULTILINE) == [
        (name, name.replace(" ", "-"), str(number)) for name, number in zip(STATUSES, (2, 0, 1, 1), strict=True)
    ]
    assert summary.endswith("There are 4 claims. 1 of them are values of the configuration.")
    rows = [[" ".join(cell.split()) for cell in row.split("\n  - ")] for row in table.rstrip("`\n").split("\n* - ")[1:]]
    notebook = "[A: Check](../notebooks/a.py#check)"
    assert rows == [
        ["Section", "Claim", "Status", "Check"],
        [
            "[3.2.2]{#claim-3-2-heads}",
            "First. [$a = b$]{.paper-words} [mathematics]{.kind}",
            "[checked here]{.status .checked-here}",
            f"{notebook} `assert x`",
        ],
        [
            "[6.1]{#claim-5-2-costs}",
            "Second. [Table 2: ConvS2S: BLEU EN-DE 25.16, FLOPs $9.6 \\cdot 10^{18}$]{.paper-words} [result]{.kind}",
            "[reproduced in part]{.status .reproduced-in-part}",
            "[`tests/test_a.py`, `test_b`](https://github.com/me/book/blob/main/tests/test_a.py#L3) Why.",
        ],
        [
            "[6.2]{#claim-6-2-rows}",
            "Third. [Table 3: (A), $h$ = 4: perplexity 5.00; big: $N$ 6]{.paper-words} [configuration value]{.kind}",
            "[checked here]{.status .checked-here}",
            f"{notebook} ``assert x == `y` + 1``",
        ],
        [
            "[Abstract]{#claim-4-path}",
            "Fourth. [“based solely”]{.paper-words} [history]{.kind}",
            "[not checkable here]{.status .not-checkable-here}",
            "So.",
        ],
    ]
    assert "https:" not in filled("")[0], "without a repository there is nothing to link to"


def test_a_page_that_is_not_the_ledger_stays_as_it_is() -> None:
    pages = [claims.SUMMARY]
    claims.fill(None, "page", pages)
    assert pages == [claims.SUMMARY]


@pytest.mark.book
def test_the_page_has_every_claim_and_its_links_lead_somewhere() -> None:
    from bs4 import BeautifulSoup

    @functools.cache
    def page(name: str) -> BeautifulSoup:
        return BeautifulSoup((need_site() / name).read_text(encoding="utf-8"), "html.parser")

    soup = page("book/claims.html")
    rows = soup.select("table.claims tbody tr")
    assert [row.select_one(".status").get_text() for row in rows] == [claim["status"] for claim in CLAIMS]
    counts = Counter(claim["status"] for claim in CLAIMS)
    summary = {row.select_one(".status").get_text(): int(row.select("td")[1].get_text())
               for row in soup.select("table:not(.claims) tbody tr")}  # fmt: skip
    assert summary == counts
    for row, claim in zip(rows, CLAIMS, strict=True):
        assert row.select_one(f"#claim-{claim['id'].replace('.', '-')}"), claim["id"]
        if claim.get("where", "").startswith("notebooks/"):
            name, _, anchor = row.select("td")[3].a["href"].removeprefix("../").partition("#")
            goal = page(name).find(id=anchor)
            assert goal, f"{claim['id']}: {name} has no #{anchor}"
            heading = goal.find(re.compile("h[1-6]")) if goal.name == "section" else goal
            wanted = re.sub(r"\W|\$[^$]*\$", "", find_section(ROOT, claim["where"])[1].titles[-1])
            assert re.sub(r"\W|\\\(.*?\\\)", "", heading.get_text()).startswith(wanted), claim["id"]
    assert (SITE / "_static" / "claims.js").is_file() and soup.select("script[src*='claims.js']")


@pytest.mark.book
@pytest.mark.browser
@pytest.mark.slow
def test_the_filter_filters_and_without_scripts_everything_shows() -> None:
    from test_pages import chromium

    address = (need_site() / "book" / "claims.html").as_uri()
    counts = Counter(claim["status"] for claim in CLAIMS)
    with chromium() as browser:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(address, wait_until="domcontentloaded")
        assert page.locator("table.claims tbody tr:visible").count() == len(CLAIMS)
        assert page.locator(".claims-filter").count() == 0

        page = browser.new_page(viewport={"width": 360, "height": 780})
        page.goto(address, wait_until="domcontentloaded")
        rows, told = page.get_by_role("table").last.locator("tbody tr:visible"), page.get_by_role("status")
        assert told.inner_text() == f"{len(CLAIMS)} of {len(CLAIMS)} claims"
        page.get_by_label("Status").focus()
        page.keyboard.type("repro")  # as a keyboard chooses from a list
        assert told.inner_text().startswith(f"{counts['reproduced in part']} of ")
        assert rows.count() == counts["reproduced in part"]
        page.get_by_label("Section").select_option("3.5")
        page.get_by_label("Text").fill("GEOMETRIC")
        assert rows.count() == 0
        page.get_by_label("Status").select_option("all")
        assert rows.count() == 1 and "geometric progression" in rows.inner_text()


@pytest.mark.book
def test_numbers_in_the_ledger_are_computed_or_the_papers() -> None:
    import test_numbers

    texts = [f"{claim['claim']} {claim.get('reason', '')}" for claim in CLAIMS]
    known = set(test_numbers.KNOWN)
    for path in sorted(
        {find_section(ROOT, c["where"])[0] for c in CLAIMS if c.get("where", "").startswith("notebooks")}
    ):
        known |= test_numbers.values("\n".join([*code_of(path), *test_numbers.printed(executed(path.stem))]))
    found = {n for text in texts for n in test_numbers.NUMBER.findall(test_numbers.prose(text))}
    found = {n for n in found if test_numbers.digits(n) >= 3 and not test_numbers.is_year(n)}
    assert not [n for n in sorted(found) if not test_numbers.backed(n, known)]


# ------------------------------------------------------------------------------- claims that no chapter has a check for


def test_nothing_but_attention_joins_positions() -> None:
    """With every attention's output taken away, a changed token changes the vector of its own position and no other."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=50, dropout=0.0)).eval()
    src, tgt = torch.randint(3, 50, (1, 6)), torch.randint(3, 50, (1, 6))
    other_src, other_tgt = src.clone(), tgt.clone()
    other_src[0, 2], other_tgt[0, 2] = 50 - src[0, 2] % 7 - 1, 50 - tgt[0, 2] % 7 - 1
    assert (other_src != src).sum() == (other_tgt != tgt).sum() == 1

    @torch.no_grad()
    def moved() -> list[list[bool]]:
        memory, other = model.encode(src), model.encode(other_src)
        hidden = [model.decode(target, memory) for target in (tgt, other_tgt)]
        crossed = [model.decode(tgt, given) for given in (memory, other)]
        pairs = ((memory, other), hidden, crossed)
        return [(a - b).abs().amax(dim=-1)[0].gt(1e-6).tolist() for a, b in pairs]

    alone, everywhere, nowhere = [i == 2 for i in range(6)], [True] * 6, [False] * 6
    assert moved() == [everywhere, [i >= 2 for i in range(6)], everywhere]
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.zeros_(module.w_o.weight)
    assert moved() == [alone, alone, nowhere]


def test_sentences_are_shorter_than_vectors_are_wide() -> None:
    translator = load_toy_translator()
    pairs = [pair for split in ("train", "long") for pair in itertools.islice(embedded_corpus(split), 1000)]
    lengths = [len(translator.tokenizer.encode(text)) for pair in pairs for text in (pair.source, pair.target)]
    assert 10 < sum(lengths) / len(lengths) < max(lengths) < translator.model.config.d_model


def test_a_tree_in_writing_is_longer_than_its_sentence() -> None:
    (tree,) = read_trees(
        [
            "(S (NP (DT The) (JJ old) (NN dog)) (VP (VBD saw) (NP (DT a) (NN cat))"
            " (PP (IN in) (NP (DT the) (NN house)))) (. .))"
        ]
    )
    assert len(linearize(tree)) > 2 * len(tree.words())


def test_generation_runs_the_decoder_once_for_each_token() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab_size=50, dropout=0.0)).eval()
    read: list[int] = []
    model.decoder.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0].shape[1]))
    (written,) = greedy_decode(model, torch.tensor([[7, 8, 9, 2]]), max_new_tokens=12)
    assert len(written) > 1 and read == [1] * min(len(written) + 1, 12)  # the end is a token, too


def test_the_recorded_parser_searches_as_the_papers() -> None:
    program = ast.parse((ROOT / "book/experiments/parsing.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in program.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(assigned["SETTINGS"])["beam"] == {"beam_size": 21, "alpha": 0.3}
    (names,) = [names for names in assigned if "EXTRA" in names]
    numbers = dict(zip(re.findall(r"\w+", names), ast.literal_eval(assigned[names]), strict=True))
    assert numbers["EXTRA"] == 300


def scores(column: str) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """A column of Table 2: of single models, of ensembles, and of this paper."""
    groups = [{row["model"]: row.get(column, row.get("flops_both")) for row in group["rows"]}
              for group in TABLES["table2"]["groups"]]  # fmt: skip
    singles, ensembles, ours = ({name: number for name, number in group.items() if number} for group in groups)
    return singles, ensembles, ours


BASE, BIG = "Transformer (base model)", "Transformer (big)"


def test_the_scores_of_table_2_compare_as_the_text_says() -> None:
    singles, ensembles, ours = scores("bleu_en_de")
    best = max((singles | ensembles).values())
    assert ours[BIG] - best > 2.0 and round(ours[BIG] - best, 2) == 2.04  # including ensembles
    assert ours[BASE] > best
    singles, ensembles, ours = scores("bleu_en_fr")
    assert min(ours[BIG], 41.0) > max(singles.values()) and 41.0 < max(ensembles.values()) < ours[BIG]
    assert ours[BASE] < min((singles | ensembles).values())  # which the text does not say


def test_the_costs_of_table_2_compare_as_the_text_says() -> None:
    singles, ensembles, ours = scores("flops_en_de")
    assert ours[BASE] < min((singles | ensembles).values()) / 2
    assert ours[BIG] == singles["GNMT + RL"]  # no fraction of it
    singles, ensembles, ours = scores("flops_en_fr")
    best = max(scores("bleu_en_fr")[0].items(), key=lambda pair: pair[1])[0]
    assert best == "MoE" and ours[BIG] < singles[best] / 4
    assert 1 / 60 < ours[BIG] / max(ensembles.values()) < 1 / 50 < 1 / 5 < ours[BIG] / min(singles.values()) < 1 / 4


def test_the_scores_of_table_4_compare_as_the_text_says() -> None:
    rows = TABLES["table4"]["rows"]
    ours = {row["training"]: row["wsj23_f1"] for row in rows if row["parser"].startswith("Transformer")}
    better = [(row["parser"], row["training"]) for row in rows if row["wsj23_f1"] > max(ours.values())]
    assert better == [("Luong et al. (2015)", "multi-task"), ("Dyer et al. (2016)", "generative")]
    (berkeley,) = [row["wsj23_f1"] for row in rows if row["parser"] == "Petrov et al. (2006)"]
    assert ours["WSJ only, discriminative"] > berkeley
