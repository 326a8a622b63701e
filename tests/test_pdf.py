"""Paper: the PDF of the book, and what a single page looks like when it is printed."""

import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pdf
import pytest
import yaml
from built import NOTEBOOKS, ROOT, cells, need_site

CHAPTERS = ["book/index", "book/notation", "notebooks/03_3_feed_forward_networks", "book/claims", "book/misreadings"]
HIDDEN = "# Exercise 1: twelve networks"  # a solution, folded on the page

# What is wider than the paper, drawings that hide what leaves them aside.
WIDE = """() => [...document.querySelectorAll("main *, article *")]
  .filter((element) => !element.closest("svg svg, svg > *, mjx-container > *"))
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => `${element.tagName}.${element.className}: ${element.textContent.trim().slice(0, 60)}`)"""

# Links to places that are not there, and ids that are there twice.
LOST = """() => {
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const links = [...document.querySelectorAll("a[href^='#']:not(.vega-actions *)")];
  const [known, twice] = [new Set(), []];
  for (const id of ids) (known.has(id) ? twice.push(id) : known.add(id));
  return [...twice, ...links.map((link) => decodeURIComponent(link.hash.slice(1))).filter((goal) => !known.has(goal))];
}"""


class Pdf:
    """Just enough of a reader for what Chromium writes: plain objects, compressed streams, two-byte glyphs."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        found = re.finditer(rb"\n(\d+) 0 obj\n(.*?)\nendobj", self.data, re.DOTALL)
        self.objects = {int(match[1]): match[2] for match in found}
        self.pages = [body for body in self.objects.values() if re.search(rb"/Type /Page\b", body)]
        self.names: dict[int, dict[str, str]] = {}

    def stream(self, number: int) -> str:
        body = self.objects[number]
        raw = body[body.index(b"stream\n") + 7 : body.rindex(b"\nendstream")]
        return (zlib.decompress(raw) if b"/FlateDecode" in body else raw).decode("latin-1")

    def letters(self, font: int) -> dict[str, str]:
        """What each glyph of a font reads as."""
        if font not in self.names:
            found = {}
            link = re.search(rb"/ToUnicode (\d+)", self.objects[font])
            table = self.stream(int(link[1])) if link else ""
            for first, last, text in re.findall(r"<(\w{4})> <(\w{4})> <(\w+)>", table):
                for step in range(int(last, 16) - int(first, 16) + 1):
                    found[f"{int(first, 16) + step:04X}"] = chr(int(text, 16) + step)
            singles = re.sub(r"<\w{4}> <\w{4}> <\w+>", "", table)
            for glyph, text in re.findall(r"<(\w{4})> <(\w+)>", singles):
                found.setdefault(glyph, bytes.fromhex(text).decode("utf-16-be"))
            self.names[font] = found
        return self.names[font]

    def text(self) -> str:
        """All text, without spaces: where they are is told by positions."""
        parts: list[str] = []
        for body in self.pages:
            font = 0
            content = self.stream(int(re.search(rb"/Contents (\d+)", body)[1]))
            for name, glyphs in re.findall(r"/F(\d+) [\d.]+ Tf|<([0-9A-F]+)> Tj", content):
                font = int(name or font)
                parts += [self.letters(font).get(glyphs[i : i + 4], "") for i in range(0, len(glyphs), 4)]
        return "".join(unicodedata.normalize("NFKC", "".join(parts)).split())

    def outline(self) -> list[str]:
        found = []
        for body in self.objects.values():
            match = re.match(rb"<</Title (?:\((.*?)\)|<(\w+)>)\n/Dest ", body, re.DOTALL)
            if match:
                plain = re.sub(rb"\\(.)", rb"\1", match[1] or b"").decode()
                found.append(bytes.fromhex(match[2].decode()).decode("utf-16") if match[2] else plain)
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from test_pages import chromium

    need_site()
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def printed(browser, tmp_path_factory: pytest.TempPathFactory) -> Pdf:
    path = tmp_path_factory.mktemp("pdf") / "book.pdf"
    page = browser.new_page()
    pdf.assemble(page, need_site(), pdf.only(CHAPTERS, pdf.parts(ROOT)))
    assert page.evaluate(WIDE) == []
    assert page.evaluate(LOST) == []
    pdf.save(page, path)
    page.close()
    return Pdf(path)


def squeezed(text: str) -> str:
    return "".join(text.split())


def in_browser(test: Callable) -> Callable:
    return pytest.mark.book(pytest.mark.browser(pytest.mark.slow(test)))


def test_the_pages_of_the_book_in_order() -> None:
    book = pdf.parts(ROOT)
    pages = [page for part in book for page in part["pages"]]
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert pages[0] == toc["root"] and len(pages) == len(set(pages))
    assert {f"notebooks/{path.stem}" for path in NOTEBOOKS} <= set(pages)
    few = pdf.only([pages[-1], pages[0]], book)
    assert [part["pages"] for part in few] == [[pages[0]], [pages[-1]]]


def test_the_address_is_the_one_that_a_page_tells(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    page = tmp_path / "book" / "index.html"
    page.write_text('<link rel="canonical" href="https://x.org/b/book/index.html" />')
    assert pdf.address(tmp_path, "book/index") == "https://x.org/b/"
    page.write_text("<title>Book</title>")
    assert pdf.address(tmp_path, "book/index") == ""


@in_browser
def test_it_has_the_chapters_and_their_sections_as_bookmarks(printed: Pdf) -> None:
    outline = printed.outline()
    assert outline[0] == "Contents"
    for path in (ROOT / "notebooks/03_3_feed_forward_networks.py", ROOT / "book/misreadings.md"):
        headings = re.findall(r"^#{1,2} (.+)$", "\n".join(cells(path, "markdown")), flags=re.MULTILINE)
        assert [line for line in headings if "$" not in line and line.replace("’", "'") not in
                [title.replace("’", "'") for title in outline]] == []  # fmt: skip
    assert [title for title in outline if re.fullmatch(r"(.+)\1", title)] == []


@in_browser
def test_it_has_the_text_from_the_first_page_to_the_last_with_solutions(printed: Pdf) -> None:
    text = printed.text()
    front = (ROOT / "book/index.md").read_text(encoding="utf-8").split("\n\n")[1]
    last = "\n".join(cells(ROOT / "book/misreadings.md", "markdown"))
    assert squeezed(front) in text
    assert squeezed(re.findall(r"^## (.+)$", last, flags=re.MULTILINE)[-1].replace("'", "’")) in text
    assert squeezed(HIDDEN) in text
    assert "Itrunsonthewebsite" in text or "Itrunsathttps" in text


@in_browser
def test_charts_are_drawings_and_pictures_are_there(printed: Pdf) -> None:
    assert squeezed("A feed-forward network is a sum of hinges") in printed.text()
    assert any(b"/S /Figure" in body and b"/Alt (A grid" in body for body in printed.objects.values())


@in_browser
def test_links_stay_within_or_name_their_address(printed: Pdf) -> None:
    links = [body for body in printed.objects.values() if b"/Subtype /Link" in body]
    inner = {match[1] for body in links if (match := re.search(rb"/Dest /(\S+)", body))}
    outer = {match[1] for body in links if (match := re.search(rb"/URI \((.*?)\)", body))}
    known = printed.objects[int(re.search(rb"/Dests (\d+)", printed.data)[1])]
    assert len(inner) >= len(CHAPTERS)
    assert inner <= set(re.findall(rb"/(\S+) \[\d+ 0 R /XYZ", known))
    assert outer and all(address.startswith(b"https://") for address in outer)


@pytest.fixture(scope="module", params=["light", "dark"])
def look(request, browser) -> Iterator[Callable]:
    """A chapter as it is printed from a screen of either theme."""
    page = browser.new_page(color_scheme=request.param)
    page.set_viewport_size({"width": pdf.WIDTH, "height": 1000})
    pdf.hand_out(page, need_site(), "")
    page.goto(f"{pdf.HOST}notebooks/03_3_feed_forward_networks.html")
    page.wait_for_function("document.querySelector('div.chart[data-drawn]')")
    page.emulate_media(media="print")
    yield page.evaluate
    page.close()


@in_browser
def test_black_on_white(look) -> None:
    style = "(what) => getComputedStyle(document.querySelector(what))"
    assert look(f"({style})('body').backgroundColor") == "rgb(255, 255, 255)"
    for what in ("article section > p:not([class])", "article h1", ".highlight pre"):
        assert look(f"({style})('{what}').color") == "rgb(0, 0, 0)", what


@in_browser
def test_code_can_be_read_on_white(look) -> None:
    colours = look("() => [...document.querySelectorAll('.highlight span')].map((e) => getComputedStyle(e).color)")
    for colour in set(colours):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        light = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        assert 1.05 / (light + 0.05) >= 4.5, colour


@in_browser
def test_only_the_article_and_all_of_it(look) -> None:
    seen = "(what) => [...document.querySelectorAll(what)].filter((e) => e.checkVisibility()).length"
    for what in ("#pst-primary-sidebar", ".bd-header-article", ".prev-next-footer", ".copybtn", ".vega-bindings"):
        assert look(seen, what) == 0, what
    assert look(seen, "article h1") == 1
    folded = look("() => document.querySelectorAll('details.hide').length")
    assert look(seen, "details.hide pre") >= folded > 0


@in_browser
def test_nothing_is_cut_at_the_margin(look) -> None:
    assert look(WIDE) == []


@in_browser
def test_three_voices_without_colour(look) -> None:
    border = "(what) => getComputedStyle(document.querySelector(what)).borderLeft.replace(/ rgb.*/, '')"
    voices = {look(border, what) for what in ("blockquote.paper-quote", ".exported pre", "article > section > p")}
    assert len(voices) == 3
