"""Draw the images of our own SVG files that use ``currentColor`` inside the page, so that they take its colours.

In the notebooks they stay plain images, ``![what it shows](../book/diagrams/name.svg)``, and so they render anywhere.
"""

import posixpath
import re
from html import escape
from pathlib import Path

from docutils import nodes

FOLDERS = ("book/diagrams/", "book/_static/")


def inline(svg: str, alt: str, prefix: str) -> str:
    """The SVG as part of a page: named by ``alt``, coloured by the page, its ids made unique by ``prefix``."""
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->", "", svg, flags=re.DOTALL).strip()
    opening, rest = svg.split(">", 1)
    opening = re.sub(r'\s(role|aria-\w+)="[^"]*"', "", opening)
    opening = re.sub(r'(style=")color:[^;"]*;?', r"\1", opening)  # its own largest width stays
    rest = re.sub(r"\s*<title\b.*?</title>", "", rest, count=1, flags=re.DOTALL)
    description = re.search(r'<desc\b[^>]*\sid="([^"]+)"', rest)
    described = f' aria-describedby="{description[1]}"' if description else ""
    svg = f'{opening} role="img" aria-label="{escape(alt)}"{described}><title>{escape(alt)}</title>{rest}'
    svg = re.sub(r'(\sid|aria-describedby)="([^"]+)"', rf'\1="{prefix}-\2"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    return re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)


def draw(app, doctree):
    env = app.env
    for number, image in enumerate(list(doctree.findall(nodes.image)), 1):
        uri = posixpath.normpath(posixpath.join("/", posixpath.dirname(env.docname), image["uri"])).lstrip("/")
        path = Path(app.srcdir) / uri
        if not (uri.startswith(FOLDERS) and uri.endswith(".svg") and path.is_file()):
            continue
        env.note_dependency(str(path))
        text = path.read_text(encoding="utf-8")
        if "currentColor" not in text:
            continue
        svg = inline(text, image.get("alt", ""), f"{path.stem}-{number}")
        if isinstance(image.parent, nodes.figure):  # it has a caption, too
            image.parent["classes"].append("diagram")
            image.replace_self(nodes.raw("", svg, format="html"))
            continue
        figure = nodes.raw("", f'<figure class="diagram">{svg}</figure>', format="html")
        alone = isinstance(image.parent, nodes.paragraph) and len(image.parent.children) == 1
        (image.parent if alone else image).replace_self(figure)


def setup(app):
    app.connect("doctree-read", draw, priority=100)  # before the images are collected
    return {"parallel_read_safe": True, "parallel_write_safe": True}
