"""The language of the charts: colours, scales, axes, titles and words, over all charts of the built site."""

import importlib.resources
import json
import re
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
from bs4 import BeautifulSoup
from built import ROOT, need_site, pages
from test_pages import DESK, PHONE, SETTLED, context, server  # noqa: F401

sys.path.insert(0, str(ROOT / "book" / "_ext"))
import charts

OKABE_ITO = {"#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"}
NEUTRAL = {"black", "white", "gray", "currentcolor", "transparent"}
OTHER_SCALES = {
    "change",
    "by so much",
    "by",
}  # on viridis too, but no shares: the title of the legend says what they are
SECOND = ("strokeDash", "shape", "x", "y", "row", "column", "facet", "text", "detail")


def is_neutral(colour: str) -> bool:
    """Black, white or one of the greys, which stand for no category."""
    if colour.lower() in NEUTRAL:
        return True
    digits = re.fullmatch(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})", colour.lower())
    channels = [int(part, 16) for part in digits.groups()] if digits else [0, 255]
    return max(channels) - min(channels) <= 16


def dictionaries(part: object) -> Iterator[dict]:
    """Every dictionary of a specification but those of its data."""
    if isinstance(part, dict):
        yield part
        for key, value in part.items():
            if key not in ("data", "datasets", "config"):
                yield from dictionaries(value)
    elif isinstance(part, list):
        for value in part:
            yield from dictionaries(value)


def faults(spec: dict) -> list[str]:
    """What is wrong with a chart's colours, scales, axes and words."""
    found = []
    for part in dictionaries(spec):
        colours = [part.get(key) for key in ("color", "fill", "stroke") if isinstance(part.get(key), str)]
        scale = part.get("scale") or {}
        colours += [colour for colour in scale.get("range", []) if isinstance(colour, str) and colour.startswith("#")]
        for colour in colours:
            if colour not in ("independent", "shared") and not is_neutral(colour) and colour.lower() not in OKABE_ITO:
                found.append(f"{colour} is neither Okabe and Ito's nor a grey")
        if "scheme" in scale and scale["scheme"] != "viridis":
            found.append(f"the scheme {scale['scheme']} is not viridis")
    for unit in charts.units(spec):
        encoding, mark = unit["encoding"], unit["mark"]
        colour = encoding.get("color") or {}
        if colour.get("type") == "quantitative":
            scale, name = colour.get("scale") or {}, colour.get("title", colour.get("field"))
            if scale.get("scheme") != "viridis" or "domain" not in scale:
                found.append(f"{name}: a colour for numbers needs viridis and a fixed domain")
            elif scale["domain"] != [0, 1] and name not in OTHER_SCALES:
                found.append(f"{name}: weights and shares go from 0 to 1")
        if colour.get("type") == "nominal" and mark == "line" and "strokeDash" not in encoding:
            found.append(f"{colour['field']}: lines are told apart by colour alone")
        if colour.get("type") == "nominal" and mark in ("point", "circle") and not set(SECOND) & set(encoding):
            found.append(f"{colour['field']}: points are told apart by colour alone")
    title = charts.title(spec)
    if len(title.split()) < 3 or title.endswith("."):
        found.append(f"the title {title!r} states no finding")
    words = spec.get("description", "")
    if title.rstrip(".") not in words or len(words) < len(title) + 15 or len(words) > charts.LONGEST:
        found.append(f"the description says no more than the title, or too much: {words!r}")
    if any(name not in words for name in charts.controls(spec)):
        found.append(f"the description leaves a control out: {words!r}")
    return found


def specs(page: str) -> list[dict]:
    soup = BeautifulSoup((need_site() / page).read_text(encoding="utf-8"), "html.parser")
    return [json.loads(script.string) for script in soup.select("div.chart > script[type='application/json']")]


@pytest.mark.book
@pytest.mark.parametrize("page", pages())
def test_charts_speak_one_language(page: str) -> None:
    assert not [f"{charts.title(spec)}: {fault}" for spec in specs(page) for fault in faults(spec)]


# ----------------------------------------------------------------------------------------------- the checks themselves

LINES = {
    "title": "The blue line falls",
    "data": {"values": [{"n": n, "ms": n * n, "way": way} for n in (1, 2, 40) for way in ("a", "b, c")]},
    "params": [{"name": "p", "bind": {"input": "range", "name": "width "}}, {"name": "q", "bind": "legend"}],
    "layer": [
        {"mark": "rule", "encoding": {"y": {"field": "level", "type": "quantitative"}}},
        {
            "mark": {"type": "line", "color": "#0072B2"},
            "encoding": {
                "x": {"field": "n", "title": "length", "type": "quantitative"},
                "y": {"field": "ms", "title": "time, ms", "type": "quantitative", "scale": {"domain": [0, 2000]}},
                "color": {"field": "way", "title": None, "type": "nominal", "scale": {"range": ["#0072B2", "#D55E00"]}},
                "strokeDash": {"field": "way", "type": "nominal"},
            },
        },
    ],
}
HEAT = {
    "title": "Each word looks at itself",
    "mark": "rect",
    "encoding": {
        "x": {"field": "key", "type": "ordinal"},
        "color": {"field": "weight", "type": "quantitative", "scale": {"scheme": "viridis", "domain": [0, 1]}},
    },
}


def test_a_description_says_what_the_picture_shows() -> None:
    assert charts.describe(LINES) == (
        "The blue line falls. A line chart; x: length, 1 to 40; y: time, ms, 0 to 2,000; "
        "colour: a, “b, c”. Choose width."
    )
    assert charts.describe(HEAT) == "Each word looks at itself. A heat map; x: key; colour: weight, 0 to 1."


def test_a_description_is_short_and_never_takes_the_place_of_a_notebooks_own() -> None:
    long = deepcopy(LINES)
    long["layer"][1]["encoding"]["color"]["scale"]["domain"] = [word * 100 for word in "abcd"]
    text = charts.describe(long)
    assert len(text) <= charts.LONGEST and text.endswith("0 to 2,000. Choose width.")
    assert '"description":"own words"' in charts.embed({**HEAT, "description": "own words"}, "chart-1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["layer"][1]["mark"].update(color="#ff0000"), "#ff0000 is neither"),
        (lambda s: s["layer"][1]["encoding"]["color"]["scale"].update(range=["#00ff00"]), "#00ff00 is neither"),
        (lambda s: s["layer"][1]["encoding"].pop("strokeDash"), "colour alone"),
        (lambda s: s.update(title="Loss"), "states no finding"),
        (lambda s: s.update(description=s["title"]), "no more than the title"),
        (lambda s: s["params"][0]["bind"].update(name="height "), "leaves a control out"),
    ],
)
def test_a_fault_of_a_line_chart_is_found(change: Callable, said: str) -> None:
    spec = {**deepcopy(LINES), "description": charts.describe(LINES)}
    assert not faults(spec)
    change(spec)
    assert said in " ".join(faults(spec))


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ({"scheme": "turbo", "domain": [0, 1]}, "turbo is not viridis"),
        ({"scheme": "viridis"}, "fixed domain"),
        ({"scheme": "viridis", "domain": [0, 0.8]}, "from 0 to 1"),
    ],
)
def test_a_fault_of_a_colour_scale_is_found(scale: dict, said: str) -> None:
    spec = {**deepcopy(HEAT), "description": charts.describe(HEAT)}
    assert not faults(spec)
    spec["encoding"]["color"]["scale"] = scale
    assert said in " ".join(faults(spec))


# ------------------------------------------------------------------------------------- one look, one scale of attention


def test_the_book_takes_its_look_from_the_page_of_the_command_line() -> None:
    page = BeautifulSoup(importlib.resources.files("transformer").joinpath("attention.html").read_text("utf-8"), "lxml")
    look = json.loads(page.find(id="chart-config").string)
    assert json.loads(charts.theme()) == look and look["background"] == "transparent"
    inks = [value for part in look.values() if isinstance(part, dict) for key, value in part.items() if "olor" in key]
    assert len(inks) > 10 and set(inks) == {"currentColor"}
    assert "config: chartConfig" in (ROOT / "book" / "_static" / "charts.js").read_text("utf-8")


def viridis() -> list[tuple[int, int, int]]:
    """The scale of the charts, from the Vega that the site brings."""
    import matplotlib

    return [tuple(round(255 * part) for part in colour) for colour in matplotlib.colormaps["viridis"].colors]


def far(colour: tuple[int, ...]) -> float:
    """How far a colour lies from viridis, of 255."""
    return min(max(abs(a - b) for a, b in zip(colour, other, strict=True)) for other in viridis())


def test_the_picture_of_attention_has_the_colours_of_the_charts() -> None:
    svg = (ROOT / "book" / "_static" / "attention.svg").read_text("utf-8")
    cells = [tuple(map(int, found)) for found in re.findall(r'fill="rgb\((\d+), (\d+), (\d+)\)"', svg)]
    assert len(cells) > 100 and max(map(far, cells)) <= 3


# ------------------------------------------------------------------------------------------------------- in the browser

BOXES = """() => [...document.querySelectorAll("div.chart")].flatMap((box) => {
  const svg = box.querySelector("svg.marks"), name = box.getAttribute("aria-label"), found = [];
  const outer = box.getBoundingClientRect(), inner = svg.getBoundingClientRect();
  if (inner.left - outer.left + box.scrollLeft < -1) found.push(`${name}: begins left of its box`);
  if (inner.right - outer.left + box.scrollLeft > box.scrollWidth + 1) found.push(`${name}: ends right of its box`);
  if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "auto") found.push(`${name}: cut`);
  if (box.tabIndex !== 0) found.push(`${name}: no keyboard`);
  if (!getComputedStyle(box).backgroundImage.includes("gradient")) found.push(`${name}: no hint of scrolling`);
  for (const text of svg.querySelectorAll("text")) {
    const { left, right, top, bottom, width } = text.getBoundingClientRect();
    if (width && (left < inner.left - 2 || right > inner.right + 2 || top < inner.top - 2 || bottom > inner.bottom + 2))
      found.push(`${name}: “${text.textContent}” is cut`);
    if (text.textContent.endsWith("…") && text.closest(".role-title-text")) found.push(`${name}: its title is cut`);
  }
  return found;
})"""


def with_charts() -> list[str]:
    marked = [page for page in pages() if page != "(no site)"]
    return [page for page in marked if 'class="chart"' in (need_site() / page).read_text("utf-8")] or ["(no site)"]


@pytest.mark.book
@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("page", with_charts())
def test_nothing_of_a_chart_is_cut_off(context, server: str, page: str) -> None:  # noqa: F811
    tab = context.new_page()
    try:
        for size in (DESK, PHONE):
            tab.set_viewport_size(size)
            tab.goto(server + page, wait_until="load")
            assert tab.evaluate(SETTLED) == 0
            assert not tab.evaluate(BOXES), size
    finally:
        tab.close()


@pytest.mark.book
@pytest.mark.browser
@pytest.mark.slow
def test_nothing_moves_for_who_asks_for_less_motion(context, server: str) -> None:  # noqa: F811
    moving = """() => [...document.querySelectorAll("*")].flatMap((e) => ["", "::before", "::after"].map((pseudo) => {
      const { transitionProperty, transitionDuration, animationName } = getComputedStyle(e, pseudo || null);
      const moves = animationName !== "none" || (transitionProperty !== "none" && /[1-9]/.test(transitionDuration));
      return moves ? `${e.tagName}.${e.className}${pseudo}` : "";
    })).filter(Boolean)"""
    tab = context.new_page()
    try:
        tab.goto(server + with_charts()[0])
        assert tab.evaluate(moving), "nothing ever moves: this test proves nothing"
        tab.emulate_media(reduced_motion="reduce")
        assert not tab.evaluate(moving)
    finally:
        tab.close()
