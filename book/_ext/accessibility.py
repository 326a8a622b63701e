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
            tag = f'\n<meta name="description" content="{escape(text)}" />'
            context["metatags"] = context.get("metatags", "") + tag
            return


def mend(app, pagename, templatename, context, doctree):
    """Repair what Sphinx writes and the rules for accessible HTML forbid."""
    body = context.get("body", "")
    # a reference list whose items are no list items
    body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    # a signature over several lines: a definition list without terms
    body = re.sub(
        r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>',
        lambda match: '<span class="sig-params">\n' + re.sub(r"<(/?)dd>", r"<\1span>", match[1]) + "</span>",
        body,
    )
    context["body"] = body


def setup(app):
    app.connect("html-page-context", describe)
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
