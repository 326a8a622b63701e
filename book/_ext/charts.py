"""Draw Altair's charts with the site's own copy of Vega, and give each a name and the page's colours.

Altair's HTML loads Vega from elsewhere. Here only its specification is kept, as JSON, and ``charts.js`` draws it.
"""

import json

from docutils import nodes

MARK = "vegaEmbed(outputDiv"


def specification(html: str) -> dict:
    """The Vega-Lite specification in the HTML that Altair shows a chart with."""
    start = html.rindex("})({") + 3
    return json.JSONDecoder().raw_decode(html[start:])[0]


def title(spec: dict) -> str:
    """The chart's title, or that of its first part that has one, as plain text."""
    told = spec.get("title", "")
    text = told.get("text", "") if isinstance(told, dict) else told
    text = " ".join(text) if isinstance(text, list) else str(text)
    parts = [part for kind in ("layer", "hconcat", "vconcat", "concat") for part in spec.get(kind, [])]
    parts += [spec["spec"]] if isinstance(spec.get("spec"), dict) else []
    return text or next(filter(None, map(title, parts)), "")


def embed(spec: dict, name: str) -> str:
    """The chart's place on the page, with its specification."""
    spec.setdefault("description", title(spec))
    data = json.dumps(spec, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<div class="chart" id="{name}"><script type="application/json">{data}</script></div>'


def collect(app, doctree):
    number = 0
    for raw in doctree.findall(nodes.raw):
        if raw.get("format") == "html" and MARK in raw.astext():
            number += 1
            raw.children = [nodes.Text(embed(specification(raw.astext()), f"chart-{number}"))]
            raw.rawsource = raw.astext()


def scripts(app, pagename, templatename, context, doctree):
    if 'class="chart"' in context.get("body", ""):
        app.add_js_file("charts.js", loading_method="defer")


def setup(app):
    app.connect("doctree-read", collect)
    app.connect("html-page-context", scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
