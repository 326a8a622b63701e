"""Print the whole built book as one PDF: _build/html to _build/book.pdf.

Run it with `make pdf`, or with `python book/tools/pdf.py` after `make book`. It needs Chromium, as the tests of the
pages do. `combine.js` puts the pages into one document, in the order of the table of contents; the style sheet of
printed pages is `book/_static/print.css`.
"""

import argparse
import os
import re
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from playwright.sync_api import Page, Route, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE, PDF = ROOT / "_build/html", ROOT / "_build/book.pdf"
HOST = "http://book.localhost/"  # nothing listens there: the files are handed to the browser
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
OLDEST = 131  # the first Chromium that prints running heads and page numbers by @page rules
CONFIGS = r"window\.MathJax = |const chartConfig = "  # how the settings of both begin
SCRIPTS = r"(?:mathjax/[\w.-]+|vega|charts)\.js"
MINUTES = 10 * 60_000.0
WIDTH = 680  # of the text on A4 within the margins of print.css, in CSS pixels

SETTLED = """async () => {
  await window.MathJax?.startup?.promise;
  await document.fonts.ready;
  await Promise.all([...document.images].map((image) => image.decode()));
  const waiting = () => document.querySelectorAll("div.chart:not([data-drawn])").length;
  for (let tries = 0; waiting(); tries++) {
    if (tries === 2400) throw new Error(`${waiting()} charts were not drawn within two minutes`);
    await new Promise((go) => setTimeout(go, 50));
  }
  for (const chart of document.querySelectorAll("svg.marks")) {  // one picture with a name, not a thousand marks
    chart.setAttribute("role", "img");
    for (const part of chart.children) part.setAttribute("aria-hidden", "true");
  }
}"""


def parts(root: Path) -> list[dict[str, Any]]:
    """The pages of the book in order, by the parts of its table of contents; the front page first."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = [{"caption": "", "pages": [toc["root"]]}]
    for part in toc["parts"]:
        found.append({"caption": part["caption"], "pages": [chapter["file"] for chapter in part["chapters"]]})
    return found


def only(wanted: list[str], book: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same parts with the wanted pages alone."""
    kept = [{**part, "pages": [page for page in part["pages"] if page in wanted]} for part in book]
    return [part for part in kept if part["pages"]]


def read(site: Path, page: str) -> str:
    """The HTML of a page of the site."""
    return (site / f"{page}.html").read_text(encoding="utf-8")


def frame(site: Path, pages: list[str]) -> str:
    """The document that the pages go into: styles and settings of the site, a title, the contents."""
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    styles = "".join(re.findall(r'<link [^>]*rel="stylesheet"[^>]*>', read(site, pages[0]))).replace("../", "/")
    configs = [found for page in pages for found in re.findall(f"<script>(?:{CONFIGS}).*?</script>", read(site, page))]
    title, where = escape(settings["title"]), address(site, pages[0])
    about = f"<p>{escape(settings['author'])}</p>{settings['html']['extra_footer']}"
    place = f'<p class="book-address"><a href="{where}">{where}</a></p>' if where else ""
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8"><title>{title}</title>
{styles}{"".join(dict.fromkeys(configs))}</head>
<body class="printed-book"><div class="bd-content">
<header><p class="book-title">{title}</p>{about}{place}</header>
<nav><h1>Contents</h1></nav><main class="bd-main"></main></div></body></html>"""


def scripts(site: Path, pages: list[str]) -> list[str]:
    """What sets the mathematics and draws the charts of the pages."""
    found = [name for page in pages for name in re.findall(rf'src="[./]*(_static/{SCRIPTS})[?"]', read(site, page))]
    return list(dict.fromkeys(found))


def hand_out(page: Page, site: Path, document: str) -> None:
    """Answer the browser's requests from the built site, and `print.html` by the document; nothing else."""

    def answer(route: Route) -> None:
        path = site / unquote(urlsplit(route.request.url).path).lstrip("/")
        if route.request.url == f"{HOST}print.html":
            route.fulfill(body=document, content_type="text/html; charset=utf-8")
        elif route.request.url.startswith(HOST) and path.is_file():
            route.fulfill(path=path)
        else:
            route.fulfill(status=404)

    page.route("**/*", answer)


def address(site: Path, page: str) -> str:
    """Where the site is published, as a page of it says, or an empty string."""
    found = re.search(r'<link rel="canonical" href="([^"]*)"', read(site, page))
    return found[1].removesuffix(f"{page}.html") if found else ""


def assemble(page: Page, site: Path, book: list[dict[str, Any]]) -> None:
    """Make the browser's page the whole book, as it is to be printed."""
    pages = [name for part in book for name in part["pages"]]
    failures: list[str] = []
    page.set_default_timeout(MINUTES)
    page.set_viewport_size({"width": WIDTH, "height": 1000})
    page.emulate_media(media="print", color_scheme="light")
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("response", lambda got: failures.append(got.url) if got.status >= 400 else None)
    hand_out(page, site, frame(site, pages))
    page.goto(f"{HOST}print.html")
    combine = Path(__file__).with_name("combine.js").read_text(encoding="utf-8")
    page.evaluate(combine, {"parts": book, "address": address(site, pages[0])})
    for script in scripts(site, pages):
        page.add_script_tag(url=HOST + script)
    page.evaluate(SETTLED)
    if failures:
        sys.exit("the book was not printed:\n" + "\n".join(failures))


def save(page: Page, output: Path) -> None:
    """Print the browser's page, with the outline of its headings as bookmarks."""
    output.parent.mkdir(parents=True, exist_ok=True)
    page.pdf(path=output, prefer_css_page_size=True, print_background=True, outline=True, tagged=True)


def print_book(site: Path, output: Path, book: list[dict[str, Any]]) -> None:
    """Print the pages of the parts."""
    executable = os.environ.get("CHROME") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        if int(browser.version.split(".")[0]) < OLDEST:
            sys.exit(f"Chromium {browser.version} prints no page numbers: set CHROME to one from {OLDEST} on")
        page = browser.new_page()
        assemble(page, site, book)
        save(page, output)
        browser.close()


def main() -> None:
    """Read the command line, and print."""
    parser = argparse.ArgumentParser(description="Print the built book as one PDF.")
    parser.add_argument("--output", type=Path, default=PDF)
    parser.add_argument("pages", nargs="*", help="pages such as notebooks/00_abstract; default: all of them")
    options = parser.parse_args()
    if not (SITE / "book/index.html").is_file():
        sys.exit("There is no built book in _build/html: run make book first.")
    book = only(options.pages, parts(ROOT)) if options.pages else parts(ROOT)
    print_book(SITE, options.output, book)
    print(f"wrote {options.output}: {options.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
