"""Fill the page of the ledger: how many claims have which status, and a table of all of them."""

import re
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

from ledger_of_claims import STATUSES, find_section, line_of_test, read_claims, read_paper, section_of

SUMMARY, LEDGER = "<!-- summary -->", "<!-- ledger -->"
MEANING = {
    "checked here": "a cell of a chapter asserts it, and fails if it is false of our code or our measurement",
    "checked by a test": "a test of the repository does",
    "reproduced in part": "we checked less than the paper says, or found it only partly so; the entry says what",
    "not checkable here": "the entry says why",
}
COLUMNS = {
    "ppl_dev": "perplexity", "bleu_dev": "BLEU", "bleu_en_de": "BLEU EN-DE", "bleu_en_fr": "BLEU EN-FR",
    "flops_en_de": "FLOPs EN-DE", "flops_en_fr": "FLOPs EN-FR", "flops_both": "FLOPs", "wsj23_f1": "F1",
    "params_millions": "parameters in millions", "complexity_per_layer": "complexity per layer",
    "sequential_operations": "sequential operations", "maximum_path_length": "maximum path length",
    "d_model": "$d_{\\text{model}}$", "d_ff": "$d_{ff}$", "d_k": "$d_k$", "h": "$h$", "N": "$N$",
    "P_drop": "$P_{drop}$", "eps_ls": "$\\epsilon_{ls}$",
}  # fmt: skip


def value(name: str, number: object) -> str:
    """A cell of a table of the paper, as it prints it."""
    if name.startswith("flops"):
        mantissa, _, exponent = f"{number:.1e}".partition("e")
        return f"${mantissa} \\cdot 10^{{{int(exponent)}}}$"
    if name == "ppl_dev":
        return f"{number:.2f}"
    return f"${number}$" if str(number).startswith("O(") else str(number)


def told(cell: dict) -> str:
    """A reference to a row of a table, and its values."""
    names = [
        f"({v})" if k == "row" and len(str(v)) == 1 else str(v) for k, v in cell["row"].items() if k not in COLUMNS
    ]
    names += [f"{COLUMNS[k]} = {v}" for k, v in cell["row"].items() if k in COLUMNS]
    values = ", ".join(f"{COLUMNS[k]} {value(k, v)}" for k, v in cell["values"].items())
    return f"{', '.join(names)}: {values}"


def words(claim: dict, paper) -> str:
    """The paper's words, or the cells of its tables."""
    if "cells" in claim:
        number = claim["cells"][0]["table"].removeprefix("table")
        return f"[Table {number}: {'; '.join(map(told, claim['cells']))}]{{.paper-words}}"
    text = claim["words"]
    if paper.quotes[claim["quote"]]["kind"] == "equation":
        return f"[${text.replace('&', '')}$]{{.paper-words}}"
    return f"[“{text}”]{{.paper-words}}"


def label(status: str) -> str:
    """A status, with the class that its look hangs on."""
    return f"[{status}]{{.status .{status.replace(' ', '-')}}}"


def check(claim: dict, root: Path, address: str) -> list[str]:
    """Where the claim is checked, and what is missing, as paragraphs."""
    found, where = [], claim.get("where", "")
    if where.startswith("notebooks/"):
        path, section = find_section(root, where)
        found.append(
            f"[{section.titles[0]}: {section.titles[-1]}](../{path.relative_to(root).as_posix()}#{section.anchor})"
        )
        found.append(f"``{claim['asserts']}``" if "`" in claim["asserts"] else f"`{claim['asserts']}`")
    elif where:
        file, _, name = where.partition("::")
        link = f"{address}/{file}#L{line_of_test(root, where)}" if address else ""
        shown = f"`{file}`, `{name}`"
        found.append(f"[{shown}]({link})" if link else shown)
    if "reason" in claim:
        found.append(claim["reason"])
    return found


def row(claim: dict, root: Path, paper, address: str) -> str:
    """One entry, as a row of a list table."""
    section = section_of(claim, paper).replace("Attention Visualizations", "Appendix")
    cells = [
        [f"[{section}]{{#claim-{claim['id'].replace('.', '-')}}}"],
        [claim["claim"], words(claim, paper), f"[{claim['kind']}]{{.kind}}"],
        [label(claim["status"])],
        check(claim, root, address),
    ]
    lines = []
    for column, paragraphs in enumerate(cells):
        text = "\n\n    ".join(paragraphs)
        lines.append(f"{'* - ' if column == 0 else '  - '}{text}")
    return "\n".join(lines)


def fill(app, docname, source):
    if LEDGER not in source[0]:
        return
    root = Path(app.srcdir)
    claims, paper = read_claims(root), read_paper(root)
    for name in ("claims.yml", "quotes.yml", "tables.yml"):
        app.env.note_dependency(str(root / "book" / "paper" / name))
    for file in {re.split(" > |::", claim["where"])[0] for claim in claims if "where" in claim}:
        app.env.note_dependency(str(root / file))
    known = app.config.book_repository
    address = f"https://github.com/{known}/blob/{app.config.book_branch}" if known else ""

    counts = Counter(claim["status"] for claim in claims)
    lines = [f"| {label(name)} | {counts[name]} | {MEANING[name]} |" for name in STATUSES]
    values = sum(claim["kind"] == "configuration value" for claim in claims)
    summary = "\n".join(["| Status | Claims | It means |", "|---|---|---|", *lines])
    summary += f"\n\nThere are {len(claims)} claims. {values} of them are values of the configuration."
    header = "* - Section\n  - Claim\n  - Status\n  - Check"
    rows = "\n".join([header, *(row(claim, root, paper, address) for claim in claims)])
    table = f"````{{list-table}}\n:class: claims\n:header-rows: 1\n:widths: 13 37 22 28\n\n{rows}\n````"
    source[0] = source[0].replace(SUMMARY, summary).replace(LEDGER, table)


def files(app, pagename, templatename, context, doctree):
    if re.search(r'<table class="[^"]*\bclaims\b', context.get("body", "")):
        app.add_css_file("claims.css")
        app.add_js_file("claims.js", loading_method="defer")


def setup(app):
    app.connect("source-read", fill)
    app.connect("html-page-context", files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
