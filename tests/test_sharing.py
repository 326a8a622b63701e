"""What makes the book easy to find, to share and to link to; and the tool that asks for external links."""

import functools
import http.server
import json
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import built
import check_links
import permalinks
import picture
import pytest
import serve
import sharing
import yaml
from bs4 import BeautifulSoup
from built import ROOT, need_site
from docutils import nodes

BOOK = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
each_page = pytest.mark.parametrize("page", built.pages())


@contextmanager
def served(handler: Callable) -> Iterator[str]:
    """The address of a server of this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@functools.cache
def head(page: str) -> BeautifulSoup:
    text = (need_site() / page).read_text(encoding="utf-8")
    return BeautifulSoup(text[: text.index("</head>")], "html.parser")


def content(page: str, **name: str) -> str | None:
    tag = head(page).find("meta", name)
    return tag["content"] if tag else None


# The pieces


@pytest.mark.parametrize(
    ("setting", "repository", "expected"),
    [
        ("", "", ""),
        ("", "Owner/Name", "https://owner.github.io/Name/"),
        ("", "owner/Owner.github.io", "https://owner.github.io/"),
        ("https://example.org/book", "owner/name", "https://example.org/book/"),
        ("https://example.org/book/", "", "https://example.org/book/"),
    ],
)
def test_the_address_of_the_site(setting: str, repository: str, expected: str) -> None:
    assert sharing.address(setting, repository) == expected


def test_a_description_ends_with_a_sentence_where_it_can() -> None:
    short, long = "One claim is made here, and it is checked at once by the numbers that follow after it.", "word " * 60
    assert sharing.shortened(f"{short}  Then\ncomes more.") == f"{short} Then comes more."
    assert sharing.shortened(f"{short} Much {long}") == short
    cut = sharing.shortened(long)
    assert cut.endswith("word …") and len(cut) <= sharing.LONGEST
    assert sharing.shortened("By 3.5 to 1. " + long).endswith("…")


def test_a_description_has_no_commands_and_no_html() -> None:
    paragraph = nodes.paragraph("", "", nodes.Text("multiplied by "), nodes.math("", r"\sqrt{d_{\text{model}}}"))
    paragraph += [nodes.raw("", "<a href='x'>", format="html"), nodes.emphasis("", " on the way in, so that it fits.")]
    page = nodes.section("", nodes.title("", "Title"), paragraph)
    assert sharing.description(page) == "multiplied by √d_model on the way in, so that it fits."


def test_without_an_address_nothing_that_needs_one() -> None:
    made = sharing.tags("", "Book", "Attention & <more>", "What it is.", "a.html", front=False)
    assert "og:url" not in made and "og:image" not in made and "http" not in made
    assert 'content="Attention &amp; &lt;more&gt;"' in made


def test_with_an_address_all_is_absolute() -> None:
    soup = BeautifulSoup(
        sharing.tags("https://x.org/b/", "Book", "Title", "Text.", "n/a.html", front=True), "html.parser"
    )
    found = {tag["property"]: tag["content"] for tag in soup.select("meta[property]")}
    assert found["og:url"] == "https://x.org/b/n/a.html"
    assert found["og:image"] == "https://x.org/b/_static/card.png"
    assert (ROOT / "book" / sharing.PICTURE).is_file()
    assert {"og:type", "og:title", "og:description", "og:image:alt", "og:image:width", "og:image:height"} <= set(found)
    assert soup.select_one("meta[name='twitter:card']")["content"] == "summary_large_image"


@pytest.mark.parametrize(("site", "expected"), [("", []), ("https://x.org/b/", ["https://x.org/b/book.pdf"])])
def test_the_pdf_is_offered_where_it_is_published(site: str, expected: list[str]) -> None:
    app = SimpleNamespace(config=SimpleNamespace(book_site_url=site))
    context = {"header_buttons": [{"label": "other", "buttons": []}, {"label": "download-buttons", "buttons": []}]}
    sharing.offer_pdf(app, "a", "", context, None)
    assert [[button["url"] for button in group["buttons"]] for group in context["header_buttons"]] == [[], expected]


def test_the_site_map_lists_the_pages() -> None:
    pages = ["book/index.html", "notebooks/a&b.html"]
    tree = ElementTree.fromstring(sharing.site_map("https://x.org/b/", pages).encode())
    assert [place.text for place in tree.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")] == [
        f"https://x.org/b/{page}" for page in pages
    ]


def test_links_from_everywhere() -> None:
    page = '<html data-content_root="./"><a href="book/a.html#b"><a href="#c"><a href="https://x.org"><img src="d.png">'
    expected = page.replace('"./"', '"/n/"').replace('"book', '"/n/book').replace('"d.png', '"/n/d.png')
    assert sharing.from_everywhere(page, "/n/") == expected


def test_a_page_that_moved_leads_to_its_new_place() -> None:
    made = BeautifulSoup(sharing.signpost("https://x.org/", "notebooks/old.html", "book/new.html"), "html.parser")
    assert made.select_one("meta[http-equiv=Refresh]")["content"] == "0; url=../book/new.html"
    assert made.a["href"] == "../book/new.html"
    assert made.select_one("link[rel=canonical]")["href"] == "https://x.org/book/new.html"
    assert "canonical" not in sharing.signpost("", "old.html", "new.html")


def test_the_card_has_the_size_that_its_tags_say_and_is_of_the_shipped_model() -> None:
    data = picture.CARD.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (sharing.WIDTH, sharing.HEIGHT) == picture.CARD_SIZE == (1200, 630)
    assert len(data) < 150_000
    assert b"Comment\0" + picture.signature().encode() in data, "run python book/tools/picture.py"
    assert struct.unpack(">II", (ROOT / "book" / sharing.ICON).read_bytes()[16:24]) == (180, 180)


def test_a_list_of_addresses_keeps_headings_and_names_and_leaves_out_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<nav id="nav"></nav><article class="bd-article"><section class="x" id="see-it"><span id="old"></span>'
        '<dt class="sig" id="transformer.f"><div class="chart" id="chart-1"></div><span id="id3"></span></article>'
        '<section id="footer"></section>'
    )
    assert permalinks.permalinks(tmp_path) == {"a.html", "a.html#see-it", "a.html#old", "a.html#transformer.f"}


class Answers(http.server.BaseHTTPRequestHandler):
    """A host with one page of each kind."""

    def do_HEAD(self) -> None:
        kind = self.path.strip("/")
        if kind == "slow":
            threading.Event().wait(1)
        codes = {"good": 200, "moved": 301, "only-get": 405 if self.command == "HEAD" else 200, "refused": 403}
        self.send_response(codes.get(kind, 404))
        if kind == "moved":
            self.send_header("Location", "/good")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_external_links_are_asked_for(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Answers) as host:
        kinds = ["good", "moved", "only-get", "refused", "gone", "slow"]
        links = "".join(f'<a class="external" href="{host}{kind}#part">{kind}</a>' for kind in kinds)
        (tmp_path / "a.html").write_text(f'<a href="{host}edit"></a><article>{links}<a href="b.html"></a></article>')
        assert check_links.external_links(tmp_path) == {f"{host}{kind}": "a.html" for kind in kinds}
        monkeypatch.setattr("sys.argv", ["check_links", "--site", str(tmp_path), "--timeout", "0.3", "--pause", "0"])
        with pytest.raises(SystemExit) as end:
            check_links.main()
        assert end.value.code == 1
        (tmp_path / "a.html").write_text(f'<article><a href="{host}good"></a><a href="{host}refused"></a></article>')
        first = capsys.readouterr().out
        with pytest.raises(SystemExit) as end:
            check_links.main()
        assert end.value.code == 0
    lines = first.splitlines()
    assert [re.sub(r" .*/", " ", line.partition(" (")[0]) for line in lines[:-1]] == [
        "BROKEN gone",
        "refused refused",
        "BROKEN slow",
    ]
    assert lines[0].startswith("BROKEN 404: ") and "timed out" in lines[2]
    assert lines[-1] == "6 addresses, 2 broken, 1 refused"


def test_a_preview_shows_the_page_for_addresses_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "404.html").write_text("no such page")
    with served(functools.partial(serve.Handler, directory=str(tmp_path))) as host:
        assert check_links.status(f"{host}a/b/c", 5) == 404
        assert check_links.status(f"{host}404.html", 5) == 200


# The built site


@pytest.mark.book
@each_page
def test_titles_and_descriptions(page: str) -> None:
    title = head(page).title.get_text()
    others = [head(other).title.get_text() for other in built.pages() if other != page]
    assert title not in others
    assert BOOK in title and len(title) < 110
    if page in ("search.html", "404.html"):
        assert content(page, name="robots") == "noindex"
        return
    text = content(page, name="description")
    assert 40 <= len(text) <= 160 and not re.search(r"[\\{}<>]", text)
    assert text not in [content(other, name="description") for other in built.pages() if other != page]
    assert content(page, property="og:description") == text
    assert content(page, property="og:title") == title.removesuffix(f" — {BOOK}")
    site = built.address()
    assert content(page, property="og:image") == (f"{site}_static/card.png" if site else None)
    assert [link["href"] for link in head(page).select("link[rel=canonical]")] == ([site + page] if site else [])


@pytest.mark.book
def test_the_root_leads_to_the_front_page_and_shows_its_card() -> None:
    assert content("index.html", **{"http-equiv": "Refresh"}) == "0; url=book/index.html"
    for name in ("og:title", "og:description"):
        assert content("index.html", property=name) == content("book/index.html", property=name)


@pytest.mark.book
def test_icons_and_card_are_there() -> None:
    for link in head("book/index.html").select("link[rel~=icon], link[rel=apple-touch-icon]"):
        assert (need_site() / "book" / link["href"]).is_file()
    assert (need_site() / sharing.PICTURE).read_bytes() == picture.CARD.read_bytes()


@pytest.mark.book
def test_the_site_map_is_there_if_the_address_is_known() -> None:
    found = (need_site() / "sitemap.xml").is_file()
    assert found == (need_site() / "robots.txt").is_file() == bool(built.address())
    if found:
        listed = re.findall("<loc>(.*?)</loc>", (need_site() / "sitemap.xml").read_text(encoding="utf-8"))
        pages = [page for page in built.pages() if page not in ("search.html", "404.html")]
        assert listed == [built.address() + page for page in pages]


@pytest.mark.book
def test_the_page_for_addresses_that_lead_nowhere_lists_the_book() -> None:
    page = BeautifulSoup((need_site() / "404.html").read_text(encoding="utf-8"), "html.parser")
    listed = [link["href"].removeprefix(built.base()) for link in page.select("#contents a[href]")]
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    assert [link for link in listed if link.endswith(".html")] == [f"{name}.html" for name in [toc["root"], *chapters]]
    links = [tag.get("href") or tag.get("src") or tag.get("action") for tag in page.select("[href], [src], [action]")]
    assert all(link.startswith((built.base(), "#", "https://")) for link in links if link)
    index = (need_site() / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    assert "book/index" in index["docnames"] and "404" not in index["docnames"]


@pytest.mark.book
def test_no_address_of_the_book_is_gone() -> None:
    gone = sorted(permalinks.listed() - permalinks.permalinks(need_site()))
    assert not gone, (
        "keep the id with a target, (old-id)=, or name the page in book_moved: see book/tools/permalinks.py"
    )
    assert len(permalinks.listed()) > 1000


@pytest.mark.book
@pytest.mark.filterwarnings("default")
def test_new_addresses_are_told() -> None:
    new = sorted(permalinks.permalinks(need_site()) - permalinks.listed())
    if new:
        warnings.warn(f"{len(new)} new addresses, such as {new[0]}: run python book/tools/permalinks.py", stacklevel=1)


@pytest.mark.book
@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "close"),
    [
        ("03_3_feed_forward.html", "notebooks/03_3_feed_forward_networks.html"),
        ("some/where/misreading", "book/misreadings.html"),
        ("a/b/qqqq.html", ""),
    ],
)
def test_a_lost_reader_is_helped_at_every_depth(lost: str, close: str) -> None:
    from test_pages import chromium

    class Published(serve.Handler):
        def translate_path(self, path: str) -> str:
            return super().translate_path("/" + path.removeprefix(built.base()))

    with (
        served(functools.partial(Published, directory=str(need_site()))) as host,
        chromium() as browser,
    ):
        site = host.rstrip("/") + built.base()
        page = browser.new_page()
        failed: list[str] = []
        page.on("response", lambda got: failed.append(got.url) if got.status >= 400 else None)
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.goto(site + lost)
        assert failed == [site + lost]
        guess = page.locator("#closest a")
        assert [link.get_attribute("href") for link in guess.all()] == ([site + close] if close else [])
        page.locator("#page-not-found input[name=q]").fill("dropout")
        page.locator("#page-not-found button").click()
        page.locator("#search-results li a").first.wait_for()
        assert page.url == f"{site}search.html?q=dropout"
        page.goto(site + lost)
        page.locator("#contents a").nth(1).click()
        page.wait_for_url(f"{site}book/**")
        assert failed == [site + lost] * 2
