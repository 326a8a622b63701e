"""Keep the addresses of the book: tests/permalinks.txt lists every page and every place in it that others may link to.

    python book/tools/permalinks.py        add what the built site has and the list has not

A test fails if a listed address is gone. A page that moves leaves its old name in `book_moved` (_config.yml), a heading
that changes leaves its old id as a target in front of it: `(old-id)=`.
"""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE, LIST = ROOT / "_build/html", ROOT / "tests/permalinks.txt"
PLACE = re.compile(r'<(?:section|span|dt|dl|figure)\b[^>]*?\sid="([^"]+)"')
COUNTED = re.compile(r"(id|chart-|cite)\d+")  # numbers that change with the page


def permalinks(site: Path) -> set[str]:
    """The addresses that the built site has: pages, and `page#id` for headings, targets and the module's names."""
    found = set()
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        start = text.find('<article class="bd-article"')
        name = path.relative_to(site).as_posix()
        if start >= 0 and name != "404.html":
            ids = PLACE.findall(text, start, text.index("</article>", start))
            found |= {name} | {f"{name}#{place}" for place in ids if not COUNTED.fullmatch(place)}
    return found


def listed() -> set[str]:
    """The addresses in the list, those on moved pages left out."""
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    lines = LIST.read_text(encoding="utf-8").split() if LIST.exists() else []
    return {line for line in lines if line.partition("#")[0] not in settings["book_moved"]}


def main() -> None:
    """Add the new addresses to the list; say which ones are gone."""
    here, before = permalinks(SITE), listed()
    if not here:
        sys.exit("There is no built book in _build/html: run make book first.")
    old = set(LIST.read_text(encoding="utf-8").split()) if LIST.exists() else set()
    LIST.write_text("".join(f"{line}\n" for line in sorted(old | here)), encoding="utf-8")
    print(f"{len(here - old)} addresses added to {LIST.relative_to(ROOT)}")
    for line in sorted(before - here):
        print(f"gone: {line}")


if __name__ == "__main__":
    main()
