"""Draw Altair's charts with the site's own copy of Vega, and give each a name and the page's colours.

Altair's HTML loads Vega from elsewhere. Here only its specification is kept, as JSON, and ``charts.js`` draws it.
The directive ``{chart} notebooks/NAME 2`` shows the second chart of another chapter on a prose page.
"""

import json
import re

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

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
            raw["chart"] = number
            raw.children = [nodes.Text(embed(specification(raw.astext()), f"chart-{number}"))]
            raw.rawsource = raw.astext()


class Borrowed(nodes.General, nodes.Element):
    """A chart of another chapter."""


class Chart(SphinxDirective):
    """``{chart} notebooks/NAME NUMBER``."""

    required_arguments = 1
    optional_arguments = 1

    def run(self):
        """Leave a place; the chart comes when all chapters have been read."""
        number = directives.positive_int(self.arguments[1]) if len(self.arguments) > 1 else 1
        return [Borrowed(source=self.arguments[0], number=number)]


def borrow(app, doctree, docname):
    for place in list(doctree.findall(Borrowed)):
        source, number = place["source"], place["number"]
        if source not in app.env.found_docs:
            raise ExtensionError(f"{docname}: {source}, named by a chart directive, is not in the table of contents")
        charts = [raw for raw in app.env.get_doctree(source).findall(nodes.raw) if raw.get("chart") == number]
        if not charts:
            raise ExtensionError(f"{docname}: {source} has no chart number {number}")
        name = re.sub("[^a-z0-9]+", "-", source.lower())
        html = charts[0].astext().replace(f'id="chart-{number}"', f'id="chart-of-{name}-{number}"')
        place.replace_self(nodes.raw("", html, format="html"))


def scripts(app, pagename, templatename, context, doctree):
    if 'class="chart"' in context.get("body", ""):
        app.add_js_file("vega.js", loading_method="defer")
        app.add_js_file("charts.js", loading_method="defer")


def setup(app):
    app.add_directive("chart", Chart)
    app.add_node(Borrowed)
    app.connect("doctree-read", collect)
    app.connect("doctree-resolved", borrow)
    app.connect("html-page-context", scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
