"""Draw Altair's charts with the site's own copy of Vega, and give each a name and the page's colours.

Altair's HTML loads Vega from elsewhere. Here only its specification is kept, as JSON, and ``charts.js`` draws it.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes

MARK = "vegaEmbed(outputDiv"


def specification(shown: str) -> dict:
    """The Vega-Lite specification in the HTML that Altair shows a chart with."""
    start = shown.rindex("})({") + 3
    return json.JSONDecoder().raw_decode(shown[start:])[0]


def title(spec: dict) -> str:
    """The chart's title, or that of its first part that has one, as plain text."""
    told = spec.get("title", "")
    text = told.get("text", "") if isinstance(told, dict) else told
    text = " ".join(text) if isinstance(text, list) else str(text)
    parts = [part for kind in PARTS for part in spec.get(kind, [])]
    parts += [spec["spec"]] if isinstance(spec.get("spec"), dict) else []
    return text or next(filter(None, map(title, parts)), "")


KINDS = {
    "area": "area chart", "bar": "bar chart", "circle": "scatter plot", "line": "line chart", "point": "scatter plot",
    "rect": "heat map", "rule": "drawing of lines", "text": "table of text", "tick": "strip plot",
}  # fmt: skip
PARTS = ("layer", "hconcat", "vconcat", "concat")
CHANNELS = {"x": "x", "y": "y", "color": "colour", "facet": "panels", "row": "rows of panels", "column": "panels"}
LONGEST = 400  # characters of a description


def units(spec: dict, above: dict | None = None) -> Iterator[dict]:
    """The chart's single pictures, each with what it takes over from those around it."""
    above = above or {"encoding": {}, "data": {}}
    facet = spec.get("facet") or {}
    panels = {"facet": facet} if "field" in facet else facet
    shared = {
        "encoding": {**above["encoding"], **panels, **spec.get("encoding", {})},
        "data": spec.get("data", above["data"]),
    }
    if "mark" in spec:
        yield {**shared, "mark": spec["mark"] if isinstance(spec["mark"], str) else spec["mark"]["type"]}
    inner = [spec["spec"]] if isinstance(spec.get("spec"), dict) else []
    for part in [part for name in PARTS for part in spec.get(name, [])] + inner:
        yield from units(part, shared)


def rows(data: dict, spec: dict) -> list:
    """The data of a picture, where the specification holds them."""
    return data.get("values") or spec.get("datasets", {}).get(data.get("name"), [])


def number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def extent(channel: dict, data: list) -> str:
    """What a channel shows, and from where to where: its scale's domain, or else its data."""
    name = channel.get("title", channel["field"])
    domain = (channel.get("scale") or {}).get("domain")
    values = domain if isinstance(domain, list) else [row.get(channel["field"]) for row in data]
    values = list(dict.fromkeys(value for value in values if value is not None))
    if channel.get("type") == "quantitative":  # without a name, the panels say what it is
        numbers = (
            [value for value in values if isinstance(value, int | float)] if name and not channel.get("bin") else []
        )
        return f"{name}, {number(min(numbers))} to {number(max(numbers))}" if numbers else name or ""
    shown = [f"“{value}”" if ", " in str(value) else str(value) for value in values]
    names = ", ".join(shown if len(shown) <= 5 else [*shown[:2], "…", shown[-1]])
    return f"{name} ({names})" if name and names else name or names


def controls(spec: dict) -> list[str]:
    """The names of the menus, sliders and buttons below a chart."""
    binds = [param.get("bind") for param in spec.get("params", [])]
    return [bind["name"].strip(" :=") for bind in binds if isinstance(bind, dict) and bind.get("name")]


def aside(unit: dict) -> bool:
    """Whether a picture only explains another: a line, words, or a band that has one colour."""
    band = unit["mark"] == "rect" and "field" not in unit["encoding"].get("color", {})
    return band or unit["mark"] in ("rule", "text")


def describe(spec: dict) -> str:
    """What the picture shows, in words: its finding, its kind, its axes with their extent, its series, its controls."""
    told, found, seen = title(spec).rstrip("."), list(units(spec)), {}
    main = next((unit["mark"] for unit in found if not aside(unit)), min(unit["mark"] for unit in found))
    for unit in sorted(found, key=lambda unit: unit["mark"] != main):  # lines and words that explain it come last
        for channel, name in CHANNELS.items():
            what = unit["encoding"].get(channel)
            if isinstance(what, dict) and what.get("field") and what.get("axis", "") is not None:
                words = extent(what, rows(unit["data"], spec))
                if words and (unit["mark"] == main or not aside(unit)):
                    seen.setdefault(name, words)
    kind, last = KINDS.get(main, main), f" Choose {', '.join(controls(spec))}." if controls(spec) else ""
    parts = [f"{name}: {words}" for name, words in seen.items()]
    while True:
        shown = "; ".join([f"{'An' if kind[0] in 'aeiou' else 'A'} {kind}", *parts])
        text = f"{told}{'' if told.endswith('?') else '.'} {shown}.{last}"
        if len(text) <= LONGEST or not parts:
            return text[:LONGEST]
        parts.pop()


def theme() -> str:
    """The look of all charts, as JSON. It lives in the page that `transformer attention` writes."""
    page = Path(__file__).parents[2] / "transformer" / "attention.html"
    return re.search(r'id="chart-config">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)[1]


def embed(spec: dict, name: str) -> str:
    """The chart's place on the page, with its specification."""
    spec.setdefault("description", describe(spec))
    data = json.dumps(spec, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    told = html.escape(title(spec) or spec["description"])
    return f'<div class="chart" id="{name}" data-title="{told}"><script type="application/json">{data}</script></div>'


def collect(app, doctree):
    number = 0
    for raw in doctree.findall(nodes.raw):
        if raw.get("format") == "html" and MARK in raw.astext():
            number += 1
            raw.children = [nodes.Text(embed(specification(raw.astext()), f"chart-{number}"))]
            raw.rawsource = raw.astext()


def scripts(app, pagename, templatename, context, doctree):
    if 'class="chart"' in context.get("body", ""):
        app.add_js_file(None, body=f"const chartConfig = {json.dumps(json.loads(theme()))};")
        app.add_js_file("charts.js", loading_method="defer")


def setup(app):
    app.connect("doctree-read", collect)
    app.connect("html-page-context", scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
