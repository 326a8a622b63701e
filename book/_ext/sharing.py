"""Make the pages easy to find and to share: titles, descriptions, the card of a link, a site map, a page for 404.

What needs the site's address is left out while that is not known. It is the setting ``book_site_url`` or, without one,
where GitHub publishes the repository (see ``repository.py``).
"""

import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import yaml
from docutils import nodes

PICTURE, WIDTH, HEIGHT = "_static/card.png", 1200, 630  # drawn by book/tools/picture.py
ICON, PDF = "_static/favicon.png", "book.pdf"
ALT = "A map of attention: each German word written looks at the English word it translates"
LONGEST = 160  # characters of a description that search engines show
HIDDEN = ("search", "404")  # pages that no search engine need show


def address(setting: str, repository: str) -> str:
    """The address of the published site, ending with a slash, or an empty string if it is not known."""
    if setting:
        return setting.rstrip("/") + "/"
    if not repository:
        return ""
    owner, name = repository.split("/")
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"


def plain_math(tex: str) -> str:
    """A short formula as text: names without commands and braces."""
    tex = re.sub(r"\\(?:text|mathrm|operatorname)\{([^{}]*)\}", r"\1", tex).replace(r"\sqrt", "√")
    return re.sub(r"\\[,;! ]|[{}\\]", "", tex)


def plain(node) -> str:
    """The words of a paragraph; raw HTML in it is left out."""
    if isinstance(node, nodes.raw):
        return ""
    if isinstance(node, nodes.math):
        return plain_math(node.astext())
    return str(node.astext()) if isinstance(node, nodes.Text) else "".join(plain(child) for child in node.children)


def shortened(text: str) -> str:
    """As many whole sentences as there is room for; of a first sentence that is too long, its beginning."""
    text = " ".join(text.split())
    ends = [match.end() for match in re.finditer(r"[.?!](?= [A-Z]|$)", text) if match.end() <= LONGEST]
    if ends and ends[-1] >= LONGEST / 2:
        return text[: ends[-1]]
    return text if len(text) <= LONGEST else text[: LONGEST - 2].rsplit(" ", 1)[0].rstrip(",;:") + " …"


def description(doctree) -> str:
    """The first sentences of a page's text."""
    paragraphs = (node for node in doctree.findall(nodes.paragraph) if isinstance(node.parent, nodes.section))
    return shortened(next(filter(None, map(plain, paragraphs)), ""))


def tags(site: str, book: str, title: str, text: str, path: str, front: bool) -> str:
    """The tags for those who show a link to the page."""
    found = {
        "og:site_name": book,
        "og:type": "website" if front else "article",
        "og:title": title,
        "og:description": text,
    }
    if site:
        found |= {
            "og:url": site + path,
            "og:image": site + PICTURE,
            "og:image:width": str(WIDTH),
            "og:image:height": str(HEIGHT),
            "og:image:alt": ALT,
        }
    lines = [f'<meta name="description" content="{escape(text)}" />']
    lines += [f'<meta property="{name}" content="{escape(value)}" />' for name, value in found.items() if value]
    lines += [f'<meta name="twitter:card" content="{"summary_large_image" if site else "summary"}" />']
    return "\n" + "\n".join(lines)


def head(app, pagename, templatename, context, doctree):
    book, front = app.config.html_title, pagename == app.config.root_doc
    title = unescape(re.sub(r"<[^>]+>", "", context.get("title") or book))
    context["head_title"] = title if front else f"{title} — {book}"
    own = f'\n<link rel="apple-touch-icon" href="{context["pathto"](ICON, resource=True)}" />'
    if doctree is not None:
        text = description(doctree)
        own += tags(app.config.book_site_url, book, title, text, f"{pagename}.html", front)
    if pagename in HIDDEN:
        context["pageurl"] = ""
        own += '\n<meta name="robots" content="noindex" />'
    context["metatags"] = context.get("metatags", "") + own


def offer_pdf(app, pagename, templatename, context, doctree):
    """Offer the whole book, printed, for download: it is published with the site (see `make pdf`)."""
    for group in context.get("header_buttons", []):
        if group.get("label") == "download-buttons" and app.config.book_site_url:
            group["buttons"].append(
                {
                    "type": "link",
                    "url": app.config.book_site_url + PDF,
                    "text": "whole book",
                    "icon": "fas fa-file-pdf",
                    "tooltip": "Download the whole book as a PDF",
                    "label": "download-book-button",
                }
            )


def contents(app) -> str:
    """The table of contents as HTML, with links from the root of the site."""
    toc = yaml.safe_load((Path(app.srcdir) / "_toc.yml").read_text(encoding="utf-8"))

    def line(name: str) -> str:
        return f'<li><a class="reference internal" href="{name}.html">{escape(app.env.titles[name].astext())}</a></li>'

    parts = [f"<ul>{line(toc['root'])}</ul>"]
    for part in toc["parts"]:
        lines = "".join(line(chapter["file"]) for chapter in part["chapters"])
        parts.append(f"<h3>{escape(part['caption'])}</h3>\n<ul>{lines}</ul>")
    return "\n".join(parts)


def not_found(app):
    """The page for addresses that lead nowhere: a guess, the search, the table of contents."""
    body = f"""<section id="page-not-found"><h1>There is no such page</h1>
<p>The address may have a slip in it, or the page has another name now. <span id="closest"></span></p>
<form class="search-again" action="search.html" method="get" role="search"><label>Search this book:
<input type="search" name="q" /></label> <button type="submit">Search</button></form>
<section id="contents"><h2>Contents</h2>
{contents(app)}
</section></section>
<script defer="defer" src="_static/not_found.js"></script>"""
    yield "404", {"title": "There is no such page", "body": body}, "page.html"


def from_everywhere(html: str, base: str) -> str:
    """The page with its relative links made to begin at the root of the site: it is shown at any depth."""
    relative = r'\b((?:href|src|action|data-content_root)=")(?![a-z]+:|[/#])([^"]*)'
    return re.sub(relative, lambda match: match[1] + urljoin(base, match[2]), html)


def site_map(site: str, pages: list[str]) -> str:
    lines = "".join(f"<url><loc>{escape(site + page)}</loc></url>\n" for page in pages)
    start = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    return f"{start}{lines}</urlset>\n"


def entrance(site: str, book: str, text: str, goal: str) -> str:
    """The page at the root of the site, which leads to the front page, and shows the same card."""
    canonical = f'<link rel="canonical" href="{escape(site + goal)}" />\n' if site else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" />
<title>{escape(book)}</title>
<meta http-equiv="Refresh" content="0; url={goal}" />
{canonical}{tags(site, book, book, text, goal, True)}
</head><body><p><a href="{goal}">{escape(book)}</a></p></body></html>
"""


def signpost(site: str, old: str, new: str) -> str:
    """What stands where a page was: it leads to its new place."""
    goal = "../" * old.count("/") + new
    canonical = f'<link rel="canonical" href="{escape(site + new)}" />\n' if site else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" />
<title>This page has moved</title>
<meta http-equiv="Refresh" content="0; url={goal}" />
{canonical}</head><body><p>This page has moved: <a href="{goal}">{escape(new)}</a></p></body></html>
"""


def write(app, exception):
    if exception or app.builder.format != "html":
        return
    out, site, front = Path(app.outdir), app.config.book_site_url, app.config.root_doc
    lost = out / "404.html"
    lost.write_text(from_everywhere(lost.read_text(encoding="utf-8"), urlsplit(site).path or "/"), encoding="utf-8")
    text = description(app.env.get_doctree(front))
    (out / "index.html").write_text(entrance(site, app.config.html_title, text, f"{front}.html"), encoding="utf-8")
    for old, new in app.config.book_moved.items():
        (out / old).parent.mkdir(parents=True, exist_ok=True)
        (out / old).write_text(signpost(site, old, new), encoding="utf-8")
    if site:
        pages = [f"{name}.html" for name in sorted(app.env.found_docs)]
        (out / "sitemap.xml").write_text(site_map(site, pages), encoding="utf-8")
        (out / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {site}sitemap.xml\n", encoding="utf-8")


def configure(app, config):
    config.book_site_url = address(config.book_site_url, config.book_repository)
    config.html_baseurl = config.book_site_url  # Sphinx writes the canonical links


def setup(app):
    app.add_config_value("book_site_url", "", "html")
    app.add_config_value("book_moved", {}, "html")
    app.connect("config-inited", configure, priority=200)  # after repository.py
    app.connect("html-collect-pages", not_found)
    app.connect("html-page-context", head)
    app.connect("html-page-context", offer_pdf, priority=950)  # after the theme's own buttons
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
