"""Fill the API reference: one section a module, in the order of the chapters that export them."""

import re
from pathlib import Path

import yaml

PLACE = "<!-- modules -->"


def modules(root: Path) -> list[tuple[str, str, str]]:
    """``(module, chapter's file, chapter's title)`` in the order of the table of contents."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    found = []
    for part in toc["parts"]:
        for chapter in part["chapters"]:
            path = root / f"{chapter['file']}.py"
            if not path.exists():
                continue
            text = path.read_text(encoding="utf-8")
            module = re.search(r"^#\| default_exp (\S+)$", text, flags=re.MULTILINE)
            if module:
                title = re.search(r"^# # (.+)$", text, flags=re.MULTILINE)
                found.append((module[1], path.relative_to(root).as_posix(), title[1] if title else path.stem))
    return found


def fill(app, docname, source):
    if PLACE not in source[0]:
        return
    root = Path(app.srcdir)
    parts = []
    for module, chapter, title in modules(root):
        app.env.note_dependency(str(root / chapter))
        parts.append(
            f"## transformer.{module}\n\nWritten in the chapter [{title}](../{chapter}).\n\n"
            f"```{{eval-rst}}\n.. automodule:: transformer.{module}\n   :members:\n   :show-inheritance:\n```\n"
        )
    source[0] = source[0].replace(PLACE, "\n".join(parts))


def plain(app, what, name, obj, options, lines):
    """Docstrings are plain text with ``code``; keep reST from seeing more in them than that."""
    if what == "module":
        lines.clear()
    for number, line in enumerate(lines):
        pieces = re.split(r"(``.+?``|`[^`]+`)", line)
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                pieces[index] = re.sub(r"([|*]|(?<=\w)_(?=\W|$))", r"\\\1", piece)
            elif not piece.startswith("``") and not pieces[index - 1].endswith(":"):
                pieces[index] = f"`{piece}`"
        lines[number] = "".join(pieces)


def setup(app):
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
