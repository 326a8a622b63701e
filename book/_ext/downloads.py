"""Write each notebook as ``.ipynb`` beside its page, offer it for download, and open it in Colab.

Colab reads only ``.ipynb`` from GitHub. The published site, with these files in it, is the branch ``gh-pages``.
"""

import base64
import re
import tomllib
from pathlib import Path

import nbformat
from chapters import is_notebook, read

DIAGRAM = re.compile(r"(!\[[^\]]*\]\()\.\./(book/diagrams/[\w.-]+\.svg)(\))")
CHAPTER = re.compile(r"(\]\((?:[\w.-]+))\.py((?:#[\w.-]+)?\))")
EXTRAS = "viz,score"  # the optional dependencies of the package that the notebooks draw and score with


def requirement(root: Path, repository: str) -> str:
    """What pip installs for the notebooks: the package, its extras, from the repository."""
    path = root / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"] if path.exists() else {}
    extras = f"[{EXTRAS}]" if "optional-dependencies" in project else ""
    return f"{project.get('name', 'transformer')}{extras} @ git+https://github.com/{repository}"


def first_cell(root: Path, repository: str):
    if repository:
        return nbformat.v4.new_code_cell(f'%pip install --quiet "{requirement(root, repository)}"')
    return nbformat.v4.new_markdown_cell(
        "This notebook needs the book's `transformer` package. In a copy of the book's repository, run "
        f"`python -m pip install '.[{EXTRAS}]'`, then choose that Python as the kernel."
    )


def portable(source: str, root: Path) -> str:
    """Markdown that needs no other file: diagrams inside it, links to the chapters' ``.ipynb``."""

    def data(match: re.Match) -> str:
        svg = base64.b64encode((root / match[2]).read_bytes()).decode()
        return f"{match[1]}data:image/svg+xml;base64,{svg}{match[3]}"

    return CHAPTER.sub(r"\1.ipynb\2", DIAGRAM.sub(data, source))


def notebook(path: Path, root: Path, repository: str):
    """The notebook at ``path`` as readers download it."""
    made = read(path.read_text(encoding="utf-8"))
    made.metadata = nbformat.from_dict({"kernelspec": made.metadata["kernelspec"], "language_info": {"name": "python"}})
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = portable(cell.source, root)
    made.cells.insert(0, first_cell(root, repository))
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number:03}"
    return made


def colab(repository: str, branch: str, pagename: str) -> str:
    return f"https://colab.research.google.com/github/{repository}/blob/{branch}/{pagename}.ipynb"


def buttons(app, pagename, templatename, context, doctree):
    if not is_notebook(app.env, pagename):
        return
    groups = context.get("header_buttons", [])
    for group in groups:
        if group.get("label") == "download-buttons":
            group["buttons"].insert(
                0,
                {
                    "type": "link",
                    "url": Path(pagename).name + ".ipynb",
                    "text": ".ipynb",
                    "icon": "fas fa-book",
                    "tooltip": "Download as a notebook",
                    "label": "download-ipynb-button",
                },
            )
    if app.config.book_repository:
        url = colab(app.config.book_repository, app.config.book_pages_branch, pagename)
        groups.insert(
            0,
            {
                "type": "group",
                "tooltip": "Run this page",
                "icon": "fas fa-rocket",
                "label": "launch-buttons",
                "buttons": [
                    {
                        "type": "link",
                        "url": url,
                        "text": "Colab",
                        "icon": "_static/images/logo_colab.png",
                        "tooltip": "Open in Colab",
                    }
                ],
            },
        )


def write(app, exception):
    if exception or app.builder.format != "html":
        return
    root = Path(app.srcdir)
    for name in sorted(app.env.found_docs):
        if is_notebook(app.env, name):
            made = notebook(Path(app.env.doc2path(name)), root, app.config.book_repository)
            nbformat.write(made, Path(app.outdir) / f"{name}.ipynb")


def setup(app):
    app.add_config_value("book_pages_branch", "gh-pages", "html")
    app.connect("html-page-context", buttons, priority=900)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
