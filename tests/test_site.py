"""The built pages as files: their structure, their links, their downloads, their charts."""

import base64
import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import downloads
import nbformat
import pytest
import repository
import yaml
from altair.vegalite.v6.display import VEGALITE_VERSION
from bs4 import BeautifulSoup
from built import NOTEBOOKS, ROOT, SITE, base, cells, need_site, pages

pytestmark = pytest.mark.book

each_page = pytest.mark.parametrize("page", pages())
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
CHART_LIMIT = 150_000  # bytes of one chart's specification with its data
SITE_LIMIT = 40_000_000  # bytes of all files


@cache
def parsed(page: str) -> BeautifulSoup:
    return BeautifulSoup((need_site() / page).read_text(encoding="utf-8"), "html.parser")


@cache
def ids(page: str) -> set[str]:
    return {tag["id"] for tag in parsed(page).select("[id]")}


def page_of(path: Path) -> BeautifulSoup:
    page = f"notebooks/{path.stem}.html"
    if not (need_site() / page).is_file():
        pytest.fail(f"{path.name} has no page: list it in _toc.yml", pytrace=False)
    return parsed(page)


def charts(soup: BeautifulSoup) -> list[tuple[dict, str]]:
    """Specification and source text of each chart of a page."""
    scripts = soup.select("div.chart > script[type='application/json']")
    return [(json.loads(script.string), script.string) for script in scripts]


def spec_of(text: str) -> str:
    """What is compared of a notebook's Markdown: where diagrams lie and how links end may differ."""
    text = re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", "diagram", text)
    text = re.sub(r"\.\./book/diagrams/[\w.-]+\.svg", "diagram", text)
    return re.sub(r"(\]\([\w.-]+)\.(?:py|ipynb)((?:#[\w.-]+)?\))", r"\1\2", text)


@each_page
def test_one_title_and_headings_in_order(page: str) -> None:
    found = parsed(page).select("main :is(h1, h2, h3, h4, h5, h6)")
    levels = [int(heading.name[1]) for heading in found]
    assert len(parsed(page).select("h1")) == 1
    assert levels[0] == 1
    skipped = [(a.get_text(), b.get_text()) for a, b in pairwise(found) if int(b.name[1]) > int(a.name[1]) + 1]
    assert not skipped


@each_page
def test_pictures_have_words(page: str) -> None:
    soup = parsed(page)
    silent = [str(image)[:200] for image in soup.select("img") if not image.get("alt", "").strip()]
    silent += [str(svg)[:200] for svg in soup.select("main svg") if not svg.get("aria-label", "").strip()]
    silent += [str(image)[:200] for image in soup.select(".cell_output img") if len(image.get("alt", "")) < 12
               or image["alt"].endswith(".png")]  # fmt: skip
    assert not silent, 'give alternative text (mystnb={"image": {"alt": …}})'


@each_page
def test_ids_are_unique(page: str) -> None:
    ids = [tag["id"] for tag in parsed(page).select("[id]")]
    assert len(ids) == len(set(ids)), sorted({name for name in ids if ids.count(name) > 1})


@each_page
def test_links_within_the_site_resolve(page: str) -> None:
    soup, broken = parsed(page), []
    for tag in soup.select("[href], [src]"):
        target = tag.get("href") or tag.get("src") or ""
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
            continue
        from_root = parts.path.startswith(base())  # on the page for addresses that lead nowhere
        folder = SITE if from_root else (SITE / page).parent
        path = (folder / unquote(parts.path.removeprefix(base()))).resolve() if parts.path else SITE / page
        if path.is_dir():
            path = path / "index.html"
        if not path.is_file() or not path.is_relative_to(SITE.resolve()):
            broken.append(target)
        elif parts.fragment and path.suffix == ".html":
            goal = path.relative_to(SITE.resolve()).as_posix() if parts.path else page
            if unquote(parts.fragment) not in ids(goal):
                broken.append(target)
    assert not broken


@each_page
def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    soup = parsed(page)
    loaded = [tag.get("src", "") for tag in soup.select("script, img, iframe, source, video")]
    loaded += [tag.get("href", "") for tag in soup.select("link:not([rel~=canonical])")]
    assert not [address for address in loaded if re.match(r"(https?:)?//", address)]
    assert "requirejs" not in str(soup) and "cdn.jsdelivr" not in str(soup)


@each_page
def test_has_a_description(page: str) -> None:
    if page in ("search.html", "404.html"):
        pytest.skip("it has no text of its own")
    (description,) = parsed(page).select("meta[name=description]")
    assert len(description["content"]) >= 40


def test_every_chapter_is_in_the_book() -> None:
    missing = [path.name for path in NOTEBOOKS if not (need_site() / "notebooks" / f"{path.stem}.html").is_file()]
    assert not missing, f"not in _toc.yml: {missing}"


@each_notebook
def test_exported_cells_show_where_they_go(path: Path) -> None:
    soup = page_of(path)
    code = cells(path, "code")
    module = [source.split()[2] for source in code if source.startswith("#| default_exp")]
    exported = sum("#| export" in source.split("\n", 2)[:2] for source in code)
    badges = [badge.get_text() for badge in soup.select(".exported > .exported-to code")]
    assert badges == [f"transformer/{module[0].replace('.', '/')}.py"] * exported if module else not badges
    assert not [block for block in soup.select("div.highlight") if "#|" in block.get_text()]


@each_notebook
def test_quotes_are_in_the_papers_voice(path: Path) -> None:
    quotes = page_of(path).select("blockquote")
    wrong = [quote.get_text()[:100] for quote in quotes if "paper-quote" not in quote.get("class", [])]
    wrong += [quote.get_text()[:100] for quote in quotes if not quote.select("p.attribution")]
    assert not wrong


@each_notebook
def test_diagrams_are_drawn_in_the_page(path: Path) -> None:
    named = re.findall(r"!\[([^\]]*)\]\(\.\./book/diagrams/", "\n".join(cells(path, "markdown")))
    drawn = [svg["aria-label"] for svg in page_of(path).select("figure.diagram > svg[role=img]")]
    assert drawn == [alt.replace("\n", " ") for alt in named]
    assert all(named), "a diagram needs alternative text"


@each_notebook
def test_download_equals_its_source(path: Path) -> None:
    made = nbformat.read(need_site() / "notebooks" / f"{path.stem}.ipynb", as_version=4)
    nbformat.validate(made)
    assert [cell.source for cell in made.cells[1:] if cell.cell_type == "code"] == cells(path, "code")
    ours, theirs = cells(path, "markdown"), [cell.source for cell in made.cells if cell.cell_type == "markdown"]
    assert [spec_of(text) for text in theirs[len(theirs) - len(ours) :]] == [spec_of(text) for text in ours]
    assert "pip install" in made.cells[0].source
    assert len({cell.id for cell in made.cells}) == len(made.cells)
    links = {link["href"] for link in page_of(path).select(".article-header-buttons a[href]")}
    assert {f"{path.stem}.ipynb", f"../_sources/notebooks/{path.stem}.py"} <= links
    embedded = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", "".join(theirs))
    assert all(base64.b64decode(data).lstrip().startswith(b"<svg") for data in embedded)
    assert "../book/diagrams/" not in "".join(theirs)


@each_page
def test_charts_are_small_named_and_explained(page: str) -> None:
    soup = parsed(page)
    for place, (spec, source) in zip(soup.select("div.chart"), charts(soup), strict=True):
        name = spec.get("description", "")
        assert len(name) >= 10, f"a chart of {page} needs a title that says what it shows: {source[:200]}"
        assert len(source.encode()) < CHART_LIMIT, f"{name}: {len(source.encode()):,} bytes"
        assert spec["$schema"].rsplit("/v", 1)[1].split(".")[0] == VEGALITE_VERSION.split(".")[0]
        cell = place.find_parent("div", class_="cell") or place
        beside = [cell.find_next_sibling(), cell.find_previous_sibling()]
        words = [" ".join(tag.get_text().split()) for tag in beside if tag and tag.name in ("p", "ul", "ol", "section")]
        assert any(len(text) >= 40 for text in words), f"{name}: say beside the chart what to see"


def test_the_site_is_small() -> None:
    sizes = {path: path.stat().st_size for path in need_site().rglob("*") if path.is_file()}
    assert sum(sizes.values()) < SITE_LIMIT, sorted(sizes, key=sizes.__getitem__)[-5:]


@each_page
def test_every_icon_has_its_rule(page: str) -> None:
    rules = (need_site() / "_static" / "icons.css").read_text(encoding="utf-8")
    icons = {name for tag in parsed(page).select("[class*=fa-]") for name in tag["class"] if name.startswith("fa-")}
    missing = {name for name in icons - {"fa-solid", "fa-brands", "fa-lg"} if f".{name} {{" not in rules}
    assert not missing, "add them to USED in book/_ext/icons.py"


def test_the_site_brings_the_vega_lite_of_its_charts() -> None:
    bundle = (need_site() / "_static" / "vega.js").read_text(encoding="utf-8")
    assert f'"{VEGALITE_VERSION}"' in bundle


def test_without_an_address_there_are_no_buttons_that_need_one() -> None:
    need_site()
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    known = repository.find(settings["book_repository"], ROOT)
    for path in NOTEBOOKS:
        links = [link["href"] for link in page_of(path).select(".article-header-buttons a[href]")]
        assert any("colab" in link for link in links) == bool(known)
        assert known or not any("github.com" in link for link in links)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("owner/name", "owner/name"),
        ("https://github.com/owner/na.me.git", "owner/na.me"),
        ("git@github.com:owner/name.git", "owner/name"),
        ("https://user:secret@github.com/owner/name", "owner/name"),
        ("https://example.org/owner/name", ""),
        ("/some/folder", ""),
        ("", ""),
    ],
)
def test_addresses(address: str, expected: str) -> None:
    assert repository.slug(address) == expected


def test_the_setting_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "from/environment")
    assert repository.find("from/setting", tmp_path) == "from/setting"
    assert repository.find("", tmp_path) == "from/environment"
    monkeypatch.delenv("GITHUB_REPOSITORY")
    assert repository.find("", tmp_path) == ""


@each_notebook
def test_with_an_address_colab_opens_a_notebook_that_installs(path: Path) -> None:
    name = f"notebooks/{path.stem}"
    made = downloads.notebook(path, ROOT, "owner/name")
    nbformat.validate(made)
    first = made.cells[0]
    assert first.cell_type == "code" and first.source.startswith("%pip install ")
    assert "git+https://github.com/owner/name" in first.source

    config = SimpleNamespace(book_repository="owner/name", book_pages_branch="gh-pages")
    env = SimpleNamespace(found_docs={name}, doc2path=lambda docname: f"{docname}.py")
    context = {"header_buttons": [{"label": "download-buttons", "buttons": []}]}
    downloads.buttons(SimpleNamespace(config=config, env=env), name, "", context, None)
    (colab,) = context["header_buttons"][0]["buttons"]
    assert colab["url"] == f"https://colab.research.google.com/github/owner/name/blob/gh-pages/{name}.ipynb"
