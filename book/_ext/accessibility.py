"""Mend what the theme leaves to be desired: names and roles that the rules for accessible HTML allow."""

import re


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
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
