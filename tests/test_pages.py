"""Every built page, opened in Chromium: nothing is fetched from elsewhere, fails, is too wide or hard to read."""

import functools
import gzip
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from built import SITE, base, need_site, pages
from playwright.sync_api import Browser, BrowserContext, Page, TimeoutError, sync_playwright

pytestmark = [pytest.mark.book, pytest.mark.browser, pytest.mark.slow]

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PHONE, DESK, LARGE = ({"width": w, "height": h} for w, h in ((360, 780), (1280, 900), (1920, 1080)))
READABLE = 4.5  # contrast of text to what is behind it

# Bytes on their way, with text compressed as web servers do it.
FIRST_VISIT, LATER_VISIT, PAGE_ALONE = 1_500_000, 300_000, 300_000
TEXT = {".css", ".html", ".js", ".json", ".svg", ".txt", ".xml"}
FIRST_CHAPTER = "notebooks/03_2_1_scaled_dot_product_attention.html"  # has mathematics and charts

# Pages of which pictures are kept beside the site, for people to look at: light, dark, and on a phone.
PICTURES = SITE.parent / "screenshots"
PICTURED = {
    *("book/index.html", "book/translator.html", "book/one_attention.html", "book/api.html", FIRST_CHAPTER),
    *("notebooks/08_attention_visualizations.html", "notebooks/10_from_transformer_to_gpt.html"),
}

SETTLED = """async () => {
  await window.MathJax?.startup?.promise;
  await document.fonts.ready;
  const waiting = () => document.querySelectorAll("div.chart:not([data-drawn])").length;
  for (let tries = 0; waiting() && tries < 100; tries++) await new Promise((go) => setTimeout(go, 50));
  return waiting();
}"""

# The least contrast of the charts' and the code's text to the background behind it, and the text that has it.
CONTRAST = """() => {
  const rgba = (css) => { const n = css.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = [21, ""];
  const parts = ["axis-label", "axis-title", "title-text", "title-subtitle", "legend-label", "legend-title"];
  const texts = [...parts.map((part) => `.chart .role-${part} text`), ".chart .mark-text text"];
  texts.push(".highlight pre", ".highlight span");
  for (const text of document.querySelectorAll(texts.join(","))) {
    const style = getComputedStyle(text), chart = text.closest(".chart");
    let box = chart ?? text, behind = [255, 255, 255, 1];
    while (box) {
      const colour = rgba(getComputedStyle(box).backgroundColor);
      if (colour[3] > 0.99) { behind = colour; break; }
      box = box.parentElement;
    }
    if (!text.textContent.trim() || style.fillOpacity === "0" || style.opacity === "0") continue;
    // Words on a cell or a bar lie on its colour: the last one drawn below their middle.
    if (text.closest(".mark-text")) {
      const { left, right, top, bottom } = text.getBoundingClientRect(), x = (left + right) / 2, y = (top + bottom) / 2;
      for (const path of chart.querySelectorAll(".mark-rect path")) {
        const cell = path.getBoundingClientRect(), { fill, fillOpacity, opacity } = getComputedStyle(path);
        if (fill === "none" || x < cell.left || x > cell.right || y < cell.top || y > cell.bottom) continue;
        const colour = rgba(fill);
        behind = [...over([...colour.slice(0, 3), colour[3] * fillOpacity * opacity], behind), 1];
      }
    }
    const ink = rgba(chart ? style.fill : style.color);
    if (chart) ink[3] *= style.fillOpacity * style.opacity;
    const [a, b] = [light(over(ink, behind)), light(behind)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, text.textContent];
  }
  return worst;
}"""

# Set each control of each chart to its other values until the chart changes; list the controls that change nothing.
CONTROLS = """async () => {
  const dead = [];
  let alive = 0;
  for (const chart of document.querySelectorAll("div.chart")) {
    const picture = () => chart.querySelector("svg.marks").outerHTML;
    for (const control of chart.querySelectorAll(".vega-bindings select, .vega-bindings input")) {
      const before = picture(), first = control.value;
      const values = control.tagName === "SELECT" ? [...control.options].map((option) => option.value)
        : control.type === "range" ? [0, 0.3, 1].map((part) => +control.min + part * (control.max - control.min))
        : [];
      const set = async (value) => {
        control.value = value;
        control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
        for (let tries = 0; tries < 20 && picture() === before; tries++) await new Promise((go) => setTimeout(go, 25));
        return picture() !== before;
      };
      let changed = false;
      if (!values.length) {
        control.click();
        await new Promise((go) => setTimeout(go, 300));
        changed = picture() !== before || control.type === "radio";
      }
      for (const value of values) {
        if (!changed && String(value) !== first) changed = await set(value);
      }
      if (values.length) {  // put it back: where one control stands at its end, another may have nothing to change
        control.value = first;
        control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
        await new Promise((go) => setTimeout(go, 100));
      }
      if (changed) alive++;
      else dead.push(`${control.getAttribute("aria-label")} of ${chart.getAttribute("aria-label")}`);
    }
  }
  return [alive, dead];
}"""

WIDE = """() => {
  const wide = [];
  if (document.documentElement.scrollWidth <= innerWidth) return wide;
  for (const element of document.querySelectorAll("main *")) {
    let box = element.parentElement;
    while (box && getComputedStyle(box).overflowX === "visible") box = box.parentElement;
    const right = element.getBoundingClientRect().right;
    if (right > innerWidth + 1 && (!box || box === document.documentElement || box === document.body))
      wide.push(`${element.tagName}.${element.className}: ${element.textContent.trim().slice(0, 60)}`);
  }
  return [`${document.documentElement.scrollWidth} px`, ...wide.slice(0, 5)];
}"""

# Code of the module that one would have to scroll to read.
CUT = """() => [...document.querySelectorAll(".exported .cell_input pre")]
  .filter((code) => code.scrollWidth > code.clientWidth)
  .map((code) => code.textContent.trim().slice(0, 60))"""

# The rule on contrast is slow and gets a run of its own, without what has its own check above and without mathematics.
# Where ink, ground, size and kind are the same, so is the answer: it sees one visible text of each.
AXE = """async (all) => {
  const grounds = new Map([[document.documentElement, ""]]);  // the colours behind an element, down to an opaque one
  const ground = (element) => {
    if (!grounds.has(element)) {
      const { backgroundColor: colour, backgroundImage: image, opacity } = getComputedStyle(element);
      const own = colour === "rgba(0, 0, 0, 0)" && image === "none" && opacity === "1" ? "" : colour + image + opacity;
      grounds.set(element, own.startsWith("rgb(") && opacity === "1" ? own : own + ground(element.parentElement));
    }
    return grounds.get(element);
  };
  const seen = new Set();
  for (const element of document.body.querySelectorAll("*")) {
    element.removeAttribute("data-look");
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (!element.checkVisibility({ visibilityProperty: true }) || element.closest(".highlight, .chart, mjx-container"))
      continue;
    const { color, fontSize, fontWeight, textShadow } = getComputedStyle(element);
    const look = [element.tagName, color, fontSize, fontWeight, textShadow, ground(element)].join();
    if (!seen.has(look)) element.setAttribute("data-look", "");
    seen.add(look);
  }
  const options = { preload: false, resultTypes: ["violations"] };
  const texts = { include: [["[data-look]"]] };
  const results = [await axe.run(texts, { ...options, runOnly: { type: "rule", values: ["color-contrast"] } })];
  if (all) results.push(await axe.run(document, { ...options, rules: { "color-contrast": { enabled: false } } }));
  return results.flatMap((result) => result.violations)
    .filter((fault) => ["serious", "critical"].includes(fault.impact))
    .map((fault) => [fault.id, fault.help, ...fault.nodes.slice(0, 3).map((n) => `${n.target} ${n.html.slice(0, 99)}`)])
    .map((parts) => parts.join("; "));
}"""


def browser_path() -> str | None:
    return os.environ.get("CHROME") or next(filter(None, map(shutil.which, BROWSERS)), None)


def need_browser() -> str:
    """Where Chromium is; without it the test is skipped, or fails where it must not be."""
    path = browser_path()
    if path is None:
        why = "needs Chromium: install it (Debian, Ubuntu: apt install chromium) or set CHROME to a Chrome or Chromium"
        (pytest.fail if os.environ.get("TRANSFORMER_REQUIRE_BROWSER") == "1" else pytest.skip)(why)
    return path


class Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        """Where the file is; the page for addresses that lead nowhere names all by the published site's path."""
        return super().translate_path("/" + path.removeprefix(base()))

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Visit:
    """What was seen on a page."""

    asked: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    charts: int = 0
    drawn: int = 0
    faults: dict[str, list[str]] = field(default_factory=dict)
    contrast: dict[str, tuple[float, str]] = field(default_factory=dict)
    theme: dict[str, str] = field(default_factory=dict)
    alive: int = 0
    dead: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)


def picture(page: Page, name: str, look: str) -> None:
    if name in PICTURED:
        page.screenshot(path=PICTURES / f"{Path(name).stem}-{look}.png")


def visit(page: Page, base: str, name: str) -> Visit:
    """Open a page, look at it in the light, in the dark and on a phone, and move its controls."""
    seen = Visit()
    ours = (base, "data:", "blob:")
    page.on("request", lambda r: (seen.asked if r.url.startswith(ours) else seen.elsewhere).append(r.url))
    page.on("requestfailed", lambda r: seen.failed.append(f"{r.url}: {r.failure}"))
    page.on("response", lambda r: seen.failed.append(f"{r.url}: {r.status}") if r.status >= 400 else None)
    page.on("console", lambda m: seen.console.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.console.append(str(error)))

    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")
    page.goto(base + name, wait_until="load")
    page.evaluate(SETTLED)
    seen.charts = page.locator("div.chart").count()
    seen.drawn = page.locator("div.chart svg.marks").count()
    page.evaluate(AXE_SCRIPT)
    page.add_style_tag(content="*, *::before, *::after { transition: none !important; }")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        with suppress(TimeoutError):
            page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'", timeout=5000)
        seen.theme[scheme] = page.evaluate("document.documentElement.dataset.theme")
        seen.faults[scheme] = page.evaluate(AXE, scheme == "light")
        seen.contrast[scheme] = page.evaluate(CONTRAST)
        picture(page, name, scheme)
    page.set_viewport_size(LARGE)
    seen.cut = page.evaluate(CUT)
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(100)
    picture(page, name, "phone")
    seen.wide = page.evaluate(WIDE)
    if seen.drawn:
        seen.alive, seen.dead = page.evaluate(CONTROLS)
    return seen


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the site, served from this machine."""
    site: Path = need_site()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window, for every test that needs one."""
    path = need_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    with chromium() as browser:
        yield browser.new_context()


@pytest.fixture(scope="module")
def look(server: str, context: BrowserContext) -> Callable[[str], Visit]:
    """A function that visits a page of the site once and remembers what it saw."""

    @functools.cache
    def once(name: str) -> Visit:
        page = context.new_page()
        try:
            return visit(page, server, name)
        finally:
            page.close()

    return once


@functools.cache
def weight(path: Path) -> int:
    """Bytes of a file on its way."""
    data = path.read_bytes()
    return len(gzip.compress(data, 6)) if path.suffix in TEXT else len(data)


def files(asked: list[str]) -> set[Path]:
    """The site's files that were asked for."""
    paths = {urlsplit(url).path.lstrip("/") for url in asked if url.startswith("http")}
    return {path for path in (need_site() / unquote(name) for name in paths) if path.is_file()}


each_page = pytest.mark.parametrize("page", pages())


@each_page
def test_asks_for_nothing_elsewhere_and_gets_what_it_asks_for(look, page: str) -> None:
    assert not look(page).elsewhere
    assert not look(page).failed


@each_page
def test_nothing_complains_in_the_console(look, page: str) -> None:
    assert not look(page).console


@each_page
def test_fits_a_phone(look, page: str) -> None:
    assert not look(page).wide


@each_page
def test_a_large_screen_shows_whole_lines_of_the_module(look, page: str) -> None:
    assert not look(page).cut


@each_page
def test_follows_the_systems_theme(look, page: str) -> None:
    assert look(page).theme == {"light": "light", "dark": "dark"}


@each_page
def test_is_accessible(look, page: str) -> None:
    assert not look(page).faults["light"]
    assert not look(page).faults["dark"]


@each_page
def test_text_of_charts_and_code_can_be_read(look, page: str) -> None:
    for scheme, (ratio, text) in look(page).contrast.items():
        assert ratio >= READABLE, f"{text!r} has a contrast of {ratio:.2f} in the {scheme} theme"


@each_page
def test_charts_draw_and_react(look, page: str) -> None:
    seen = look(page)
    if not seen.charts:
        pytest.skip("no chart on this page")
    assert seen.drawn == seen.charts
    assert not seen.dead, "these controls change nothing"


@pytest.mark.parametrize("page", ["notebooks/08_attention_visualizations.html"])
def test_the_charts_of_attention_have_controls(look, page: str) -> None:
    assert look(page).alive >= 3, "few of its charts react to a drop-down list or slider, or none was tried"


@each_page
def test_weighs_little(look, page: str) -> None:
    asked = files(look(page).asked)
    known = files(look(FIRST_CHAPTER).asked)
    assert weight(need_site() / page) <= PAGE_ALONE
    assert sum(map(weight, asked)) <= FIRST_VISIT, sorted(asked, key=weight)[-5:]
    assert sum(map(weight, asked - known)) <= LATER_VISIT or page == FIRST_CHAPTER


@pytest.mark.parametrize("held", ["**/vega.js", "**/mathjax/**"])
def test_the_page_is_painted_before_the_large_files_come(context, server: str, held: str) -> None:
    page = context.new_page()
    try:
        page.route(held, lambda route: None)  # it never comes
        page.goto(server + FIRST_CHAPTER, wait_until="commit")
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
        assert page.locator("main h1").is_visible()
        assert page.locator("main p").first.is_visible()
    finally:
        page.close()


def test_the_model_is_fetched_when_it_is_asked_for(context, server: str) -> None:
    page = context.new_page()
    asked: list[str] = []
    try:
        page.route("**/model.js", lambda route: asked.append(route.request.url))  # it never comes
        page.goto(server + "book/index.html")
        page.wait_for_timeout(500)
        assert not asked
        page.locator(".live-go").click()
        page.wait_for_function("document.querySelector('.live-status').textContent.startsWith('Fetching')")
        assert asked
        page.locator(".bd-article a").first.focus()  # the page can be used meanwhile
    finally:
        page.close()
