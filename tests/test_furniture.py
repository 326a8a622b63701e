"""What stands around a chapter's text: the block under the title, names of the parts, copying, search, the keyboard."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import furniture
import pytest
import repository
import yaml
from bs4 import BeautifulSoup
from built import NOTEBOOKS, ROOT, cells, need_site
from docutils import nodes
from playwright.sync_api import BrowserContext, Page
from test_pages import AXE, AXE_SCRIPT, PHONE, chromium, server  # noqa: F401

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
book = pytest.mark.book
browser = [pytest.mark.book, pytest.mark.browser, pytest.mark.slow]
Site = tuple[BrowserContext, str]
CHAPTER = "notebooks/03_2_1_scaled_dot_product_attention.html"


@functools.cache
def parsed(page: str) -> BeautifulSoup:
    return BeautifulSoup((need_site() / page).read_text(encoding="utf-8"), "html.parser")


def page_of(path: Path) -> BeautifulSoup:
    return parsed(f"notebooks/{path.stem}.html")


def exported_module(path: Path) -> str:
    found = re.search(r"^#\| default_exp (\S+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return found[1] if found else ""


def test_reading_time_counts_prose_and_visible_code() -> None:
    def cell(code: str, *classes: str) -> nodes.container:
        source = nodes.container("", nodes.literal_block(code, code), nb_element="cell_code_source")
        output = nodes.container("", nodes.paragraph("", "an output " * 500), nb_element="cell_code_output")
        return nodes.container("", source, output, nb_element="cell_code", classes=["cell", *classes])

    page = nodes.section("", nodes.paragraph("", "word " * 440), nodes.paragraph("", "", nodes.math("", "a + b")))
    assert furniture.words(page) == 441 and furniture.minutes(page) == 2
    page += cell("x = 1\n\n" * 60)
    assert furniture.code_lines(page) == 60 and furniture.minutes(page) == 4
    page += cell("y = 1\n" * 600, "tag_hide-cell")
    page += nodes.table("", nodes.paragraph("", "word " * 2000))
    assert furniture.minutes(page) == 4


def test_sections_are_listed_in_the_papers_order() -> None:
    places = ["Section 3.2.1, footnote 4", "Section 3.2", "Abstract", "Section 3.2"]
    page = nodes.section("", *(nodes.attribution("", f"Attention Is All You Need, {place}") for place in places))
    assert furniture.quoted(page) == "quotes the paper’s Abstract and Sections 3.2 and 3.2.1"
    assert furniture.quoted(nodes.section()) == ""


def test_a_definition_begins_at_its_decorator() -> None:
    code = "import math\n\nLIMIT: int = 3\n\n@property\ndef f(): ...\n\nclass C:\n    def g(self): ...\n"
    assert furniture.definitions(code) == {"LIMIT": 3, "f": 5, "C": 8}


@book
@each_notebook
def test_each_chapter_says_how_long_it_is_how_it_runs_and_what_it_exports(path: Path) -> None:
    (block,) = page_of(path).select("h1 + .about-chapter[role=group][aria-label]")
    assert re.match(r"\d+ minutes? to read", block.p.get_text())
    assert block.select_one("pre").get_text() == f"python book/tools/run_notebook.py notebooks/{path.stem}.py"
    links = {link.get_text(): link["href"] for link in block.select("a[href]")}
    assert f"{path.stem}.ipynb" in links.values()
    module = exported_module(path)
    ids = {tag["id"] for tag in parsed("book/api.html").select("[id]")}
    if module:
        source = (ROOT / "transformer" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        for name in furniture.public(source):
            entry = f"transformer.{module}.{name}"  # constants have none of their own
            assert links[name] == f"../book/api.html#{entry if entry in ids else f'module-transformer.{module}'}"
    else:
        assert "exports" not in block.get_text()


@book
@each_notebook
def test_badges_lead_to_the_line_or_to_the_reference(path: Path) -> None:
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    known = repository.find(settings["book_repository"], ROOT)
    ids = {tag["id"] for tag in parsed("book/api.html").select("[id]")}
    for cell in page_of(path).select(".cell.exported"):
        (link,) = cell.select(".exported-to a[href]")
        module = link.get_text()
        code = cell.select_one(".cell_input pre").get_text()
        if known:
            assert link["href"].startswith(f"https://github.com/{known}/blob/")
            line = re.search(r"#L(\d+)$", link["href"])
            if line:
                lines = (ROOT / module).read_text(encoding="utf-8").splitlines()
                assert lines[int(line[1]) - 1] in code.splitlines()
        else:
            goal, _, anchor = link["href"].partition("#")
            assert goal == "../book/api.html" and anchor in ids
            names = [getattr(node, "name", "") for node in ast.parse(code).body]
            entries = [entry for name in names if (entry := f"{furniture.dotted(module)}.{name}") in ids]
            assert anchor == [*entries, f"module-{furniture.dotted(module)}"][0]


@book
@each_notebook
def test_the_parts_of_a_chapter_have_names(path: Path) -> None:
    soup = page_of(path)
    for quote in soup.select("blockquote"):
        place = quote.select_one("p.attribution").get_text().partition("Attention Is All You Need, ")[2]
        assert place and quote["aria-label"] == f"Quotation from the paper, {place}"
    for part in soup.select(".cell_input"):
        badge = part.parent.select_one(".exported-to code")
        name = f"Code, exported to {badge.get_text()}" if badge else "Code"
        assert (part["role"], part["aria-label"]) == ("group", name)
    for part in soup.select(".cell_output"):
        assert (part["role"], part["aria-label"]) == ("group", "Output")


@book
@each_notebook
def test_previous_and_next_name_their_chapters(path: Path) -> None:
    area = page_of(path).select_one(".prev-next-area")
    for link in area.select("a"):
        goal = (need_site() / "notebooks" / link["href"]).resolve().relative_to(need_site().resolve()).as_posix()
        title = parsed(goal).h1.get_text().removesuffix("#")
        assert link.select_one(".prev-next-title").get_text() == title
    assert len(area.select("a")) == 2


@pytest.fixture(scope="module")
def context(server: str) -> Iterator[Site]:  # noqa: F811
    """A browser with a clipboard, and where the site is."""
    with chromium() as browser:
        yield browser.new_context(permissions=["clipboard-read", "clipboard-write"]), server


@pytest.fixture
def page(context: Site) -> Iterator[Page]:
    opened = context[0].new_page()
    yield opened
    opened.close()


class TestInTheBrowser:
    pytestmark = browser

    def test_the_voices_can_be_told_apart_by_ear(self, page: Page, context: Site) -> None:
        page.goto(context[1] + CHAPTER)
        heard = page.locator("article").aria_snapshot()
        assert '- blockquote "Quotation from the paper, Section 3.2.1"' in heard
        assert '- group "Code, exported to transformer/attention.py"' in heard
        assert '- group "Code":' in heard and '- group "Output":' in heard

    def test_what_is_copied_is_the_code(self, page: Page, context: Site) -> None:
        page.goto(context[1] + CHAPTER)
        page.wait_for_selector(".cell_input button.copybtn")
        assert page.locator(".cell_output button.copybtn").count() == 0
        sources = [
            re.sub(r"^#\|.*\n", "", text, flags=re.MULTILINE).strip()
            for text in cells(ROOT / CHAPTER.replace(".html", ".py"), "code")
        ]
        shown = [text for text in sources if text]
        inputs = page.locator(".cell:not(.tag_hide-cell, .tag_hide-input) > .cell_input button.copybtn")
        for number in range(min(4, inputs.count())):
            button = inputs.nth(number)
            page.evaluate("navigator.clipboard.writeText('')")
            button.focus()
            page.keyboard.press("Enter")
            page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
            assert page.evaluate("navigator.clipboard.readText()").strip() in shown

    @pytest.mark.parametrize(
        ("words", "goal", "within"),
        [
            ("scaled_dot_product_attention", "book/api.html#transformer.attention.scaled_dot_product_attention", 1),
            ("scaled_dot_product_attention", "notebooks/03_2_1_scaled_dot_product_attention.html", 3),
            ("MultiHeadAttention", "notebooks/03_2_2_multi_head_attention.html", 3),
            ("label_smoothing", "notebooks/05_4_regularization.html", 3),
            ("Noam", "notebooks/05_3_optimizer.html", 4),
            ("linearly projected", "notebooks/03_2_2_multi_head_attention.html", 1),
        ],
    )
    def test_search_finds_symbols_and_quotes(
        self, page: Page, context: Site, words: str, goal: str, within: int
    ) -> None:
        page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        page.goto(context[1] + "search.html?q=" + words.replace(" ", "+"))
        results = page.locator("#search-results ul.search > li > a:first-child")
        results.first.wait_for()
        page.wait_for_function("document.querySelector('#search-results p').textContent.includes('found')")
        addresses = [link.get_attribute("href").split("?")[0] for link in results.all()]
        addresses = [address.removeprefix(context[1]) for address in addresses]
        assert goal in [re.sub(r"^\./", "", address) for address in addresses[:within]]

    def test_search_results_are_accessible_on_a_phone(self, page: Page, context: Site) -> None:
        page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        page.goto(context[1] + "search.html?q=label_smoothing")
        page.locator("#search-results ul.search p.context").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.evaluate(AXE_SCRIPT)
        assert page.evaluate(AXE, True) == []

    def test_the_skip_link_leads_to_the_text(self, page: Page, context: Site) -> None:
        page.goto(context[1] + CHAPTER)
        page.keyboard.press("Tab")
        link = page.locator(":focus")
        assert link.inner_text() == "Skip to main content"
        page.wait_for_function("document.activeElement.getBoundingClientRect().top >= 0")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') !== null")

    def test_tab_passes_the_formulas_within_lines(self, page: Page, context: Site) -> None:
        page.goto(context[1] + CHAPTER)
        inline = page.locator("mjx-container:not([display])")
        page.wait_for_function("document.querySelector('mjx-container:not([display])')?.tabIndex === -1")
        assert inline.count() > 10
        assert set(inline.evaluate_all("all => all.map((one) => one.tabIndex)")) == {-1}
        assert page.locator("mjx-container[display]").first.evaluate("one => one.tabIndex") == 0

    @pytest.mark.parametrize("name", ["book/how_to_read.html", CHAPTER])
    def test_the_focus_can_be_seen(self, page: Page, context: Site, name: str) -> None:
        page.goto(context[1] + name)
        page.add_style_tag(content="*, *::before, *::after { transition: none !important; }")
        hidden, seen = [], set()
        for _ in range(150):
            page.keyboard.press("Tab")
            state = page.evaluate("""() => {
              const element = document.activeElement, style = getComputedStyle(element);
              const outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
              const ring = outline || style.boxShadow !== "none";
              const what = element.outerHTML.slice(0, 120);
              return [what, (ring && style.opacity > 0.5) || element === document.body];
            }""")
            seen.add(state[0])
            if not state[1]:
                hidden.append(state[0])
        assert len(seen) > 50
        assert not hidden
