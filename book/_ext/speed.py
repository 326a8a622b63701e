"""Fill the page on speed from the recorded benchmarks, so that its numbers are those of the record.

In the page's source:

    <!-- benchmarks: training step -->     a table of those whose name begins so
    <!-- shares -->                        a table of where the time goes
    <!-- machine -->                       when, on what and by which command they were made
    ((training step, small; torch))        how many times faster ours is than this contestant
    ((memory: training step, small; torch))  our memory as a share of this contestant's
"""

import json
import re
from pathlib import Path
from typing import Any

PAGE = "book/how_fast"
RESULTS = Path("book/results/benchmarks.json")
COLUMNS = ("Work", "Who", "Tokens per second", "Ours is faster by", "Memory, MiB", "Same output")


def fill(text: str, record: dict[str, Any]) -> str:
    """The page with the record's numbers.

    Args:
        text: The source of the page.
        record: Content of book/results/benchmarks.json.

    Returns:
        The source with tables and numbers.

    Raises:
        KeyError: It asks for a benchmark or a contestant that is not recorded.
    """
    runs = {name: run["result"] for name, run in record["runs"].items()}
    text = re.sub("<!-- benchmarks: (.+?) -->", lambda found: table(runs, found[1]), text)
    text = text.replace("<!-- shares -->", shares(runs)).replace("<!-- machine -->", made(record))
    return re.sub(r"\(\((memory: )?([^;()]+); ([^()]+)\)\)", lambda found: number(runs, *found.groups()), text)


def number(runs: dict[str, Any], memory: str | None, name: str, who: str) -> str:
    """A ratio, as it stands in a sentence."""
    if memory:
        alone = runs[name]["alone"]
        return f"{alone['ours']['peak_mib'] / alone[who]['peak_mib']:.2f}"
    return f"{runs[name]['ratios'][who]['ratio']:.2f}"


def table(runs: dict[str, Any], beginning: str) -> str:
    """A table of the benchmarks whose name begins so, a line for each contestant."""
    lines = []
    for name, result in runs.items():
        if not name.startswith(beginning):
            continue
        alone = result.get("alone", {})
        first = name
        for who in result.get("seconds", alone):
            speed = result.get("tokens_per_second", {}).get(who)
            ratio = result.get("ratios", {}).get(who) if speed else None  # a command is no slower way to do another
            same = result.get("same_as_ours", {}).get(who)
            named = f"`{who}`" if "--" in who else who  # in text, typography would make a dash of it
            cells = [first, named, f"{speed:,}" if speed else f"{seconds(result, who):.2f} s"]
            cells.append(
                "" if ratio is None else f"{ratio['ratio']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
            )
            cells.append(f"{max(0, alone[who]['peak_mib']):,.0f}" if who in alone else "")
            cells.append("" if same is None else f"{same:.1%}")
            lines.append(cells)
            first = ""
    if not lines:
        raise KeyError(f"no benchmark whose name begins with {beginning!r} is recorded")
    shown = [i for i in range(len(COLUMNS)) if any(cells[i] for cells in lines)]
    head = [*COLUMNS[:2], COLUMNS[2] if any(" s" not in cells[2] for cells in lines) else "Time", *COLUMNS[3:]]
    rows = [head, ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2), *lines]
    return "\n".join("| " + " | ".join(cells[i] for i in shown) + " |" for cells in rows)


def seconds(result: dict[str, Any], who: str) -> float:
    """Of all items at their fastest, or of the one time that there is."""
    return result["seconds"][who] if "seconds" in result else result["alone"][who]["seconds"]


def shares(runs: dict[str, Any]) -> str:
    """A table of where our time goes: a column for each kind of operation."""
    found = {name.removeprefix("where, "): result for name, result in runs.items() if "shares" in result}
    kinds = sorted({kind for result in found.values() for kind in result["shares"]} - {"other"})
    kinds = sorted(kinds, key=lambda kind: -max(result["shares"].get(kind, 0) for result in found.values()))
    rows = [["Work", *kinds, "other", "calls"], ["---"] + ["---:"] * (len(kinds) + 2)]
    for name, result in found.items():
        rows.append(
            [name, *(f"{result['shares'].get(kind, 0):.0%}" for kind in [*kinds, "other"]), f"{result['calls']:,}"]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def made(record: dict[str, Any]) -> str:
    """What made the record."""
    machine = record["machine"]
    about = ", ".join(f"{key} {value}" for key, value in machine.items() if key not in ("cpu", "threads"))
    minutes = sum(run["cpu_seconds"] for run in record["runs"].values()) / 60
    return (
        f"Recorded on {record['date']} with `{record['command']}` at commit `{record['commit'][:10]}`, on an "
        f"{machine['cpu']} ({about}), two threads, in {minutes:.0f} minutes of processor time."
    )


def read(app, docname, source):
    """Fill the page when Sphinx reads it."""
    if docname == PAGE:
        path = Path(app.srcdir) / RESULTS
        app.env.note_dependency(str(path))
        source[0] = fill(source[0], json.loads(path.read_text(encoding="utf-8")))


def setup(app):
    """Connect to Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
