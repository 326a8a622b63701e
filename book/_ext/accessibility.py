"""Mend what the theme leaves to be desired: a description for each page, names and ids that are there once."""

import re
from html import escape

from docutils import nodes


def describe(app, pagename, templatename, context, doctree):
    """Give the page the first sentences of its text as its description."""
    if doctree is None:
        return
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            text = " ".join(paragraph.astext().split())
            text = text if len(text) <= 160 else text[:160].rsplit(" ", 1)[0] + " …"
            context["metatags"] = context.get("metatags", "") + f'\n<meta name="description" content="{escape(text)}" />'
            return


def setup(app):
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
