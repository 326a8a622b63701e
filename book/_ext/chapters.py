"""Turn percent scripts into chapters: exported cells get a badge, block quotes the paper's voice."""

import copy
import functools

import jupytext
from docutils import nodes

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def read(text):
    """Read a percent script, noting each cell's line for the warnings."""
    return copy.deepcopy(parse(text))


@functools.cache  # several steps of a build ask for the same one
def parse(text):
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata["kernelspec"] = dict(KERNEL)
    notebook.metadata["source_map"] = [
        number for number, line in enumerate(text.splitlines(), 1) if line.startswith("# %%")
    ]
    return notebook


def is_notebook(env, docname) -> bool:
    return docname in env.found_docs and str(env.doc2path(docname)).endswith(".py")


def split_directives(source: str) -> tuple[dict[str, str], str]:
    """The ``#| name value`` lines at the top of a cell, and its code."""
    lines = source.split("\n")
    found = {}
    while lines and lines[0].startswith("#|"):
        name, _, value = lines.pop(0)[2:].strip().partition(" ")
        found[name] = value.strip()
    return found, "\n".join(lines).strip("\n")


def show_exports(app, doctree):
    """Strip the directives from the code cells; label those that are exported."""
    module = ""
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code":
            continue
        source = next(cell.findall(nodes.literal_block), None)
        if source is None:
            continue
        found, code = split_directives(source.astext())
        if not found:
            continue
        module = found.get("default_exp") or module
        if not code:
            cell.parent.remove(cell)
            continue
        source.rawsource = code
        source.children = [nodes.Text(code)]
        if "export" in found:
            path = f"transformer/{(found['export'] or module).replace('.', '/')}.py"
            words = nodes.inline("", "exported to ")
            cell["classes"].append("exported")
            cell.insert(0, nodes.container("", words, nodes.literal("", path), classes=["exported-to"]))


def give_voice(app, doctree):
    """Mark the block quotes, and set their last line, ``— Section 3.1``, as the attribution."""
    if not is_notebook(app.env, app.env.docname):
        return
    for quote in doctree.findall(nodes.block_quote):
        quote["classes"].append("paper-quote")
        last = quote.children[-1]
        if not isinstance(last, nodes.paragraph):
            continue
        line = []  # the nodes after the paragraph's last line break
        for child in reversed(last.children):
            if isinstance(child, nodes.Text) and child.endswith("\n"):
                break
            line.insert(0, child)
        source = "".join(child.astext() for child in line)
        if source.startswith("—"):
            for child in line:
                last.remove(child)
            if not last.astext().strip():
                quote.remove(last)
            quote += nodes.attribution("", "\N{NO-BREAK SPACE}Attention Is All You Need, " + source.strip("— "))


def setup(app):
    app.connect("doctree-read", show_exports)
    app.connect("doctree-read", give_voice)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
