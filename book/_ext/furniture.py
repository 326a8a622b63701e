"""What stands around a chapter's text: reading time, what it quotes and exports, how to run it, names for its parts.

All of it is computed from the chapter itself. A link that needs the repository's address leads, where that is not
known, to the same thing within the site.
"""

import ast
import re
from html import escape
from pathlib import Path

from chapters import is_notebook
from docutils import nodes
from downloads import colab
from execution import source
from jupyter_cache import get_cache
from sphinx import addnodes

WORDS_A_MINUTE, LINES_A_MINUTE = 220, 30  # of prose; of code. how_to_read.md tells the reader
WORTH_SAYING = 3  # minutes from which a page of prose says how long it is
NOT_PROSE = (nodes.literal_block, nodes.table, nodes.raw, nodes.citation, addnodes.desc, addnodes.toctree)
API = "book/api"
FORMULAS = """addEventListener("load", () => window.MathJax?.startup?.promise.then(() => {
  for (const one of document.querySelectorAll("mjx-container:not([display])")) one.tabIndex = -1;
}));"""
PARTS = re.compile(
    r'<div class="exported-to .*?<span class="pre">(?P<path>[\w/.]+)</span>|<div class="cell_(?P<kind>input|output) ',
    re.DOTALL,
)
QUOTE = re.compile(
    r'<blockquote class="paper-quote">(?=.*?<p class="attribution">—\s*Attention Is All You Need, (.*?)</p>)', re.DOTALL
)


def words(node) -> int:
    """The words of prose under a node: without code, outputs, tables and what is folded. A formula counts as one."""
    if isinstance(node, NOT_PROSE) or node.get("nb_element") == "cell_code":
        return 0
    if isinstance(node, nodes.math | nodes.math_block):
        return 1
    return sum(len(child.split()) if isinstance(child, nodes.Text) else words(child) for child in node.children)


def containers(node, element: str) -> list:
    """The containers of a kind under a node, such as a notebook's code cells."""
    return [each for each in node.findall(nodes.container) if each.get("nb_element") == element]


def code_lines(doctree) -> int:
    """The lines of code that are shown: not those of folded cells, nor empty ones."""
    shown = [cell for cell in containers(doctree, "cell_code") if "tag_hide" not in " ".join(cell["classes"])]
    code = [source.astext() for cell in shown for source in containers(cell, "cell_code_source")]
    return sum(bool(line.strip()) for line in "\n".join(code).splitlines())


def minutes(doctree) -> int:
    """How long a page takes to read, at least a minute."""
    return max(1, round(words(doctree) / WORDS_A_MINUTE + code_lines(doctree) / LINES_A_MINUTE))


def sections(doctree) -> list[str]:
    """The parts of the paper that a chapter quotes, each once, in the paper's order."""
    found = set()
    for quote in doctree.findall(nodes.attribution):
        place = quote.astext().partition("Attention Is All You Need, ")[2]
        found |= set(re.findall(r"^(?:Section )?([^,]+)", place))
    return sorted(found, key=lambda name: (name != "Abstract", not name[0].isdigit(), name))


def quoted(doctree) -> str:
    """``quotes the paper’s Sections 3.2 and 3.2.1``, or an empty string."""
    names = sections(doctree)
    if not names:
        return ""
    numbers = [name for name in names if name[0].isdigit()]
    listed = ", ".join(numbers[:-1]) + (" and " if numbers[1:] else "") + "".join(numbers[-1:])
    parts = [name for name in names if name not in numbers]
    parts += [f"Section{'s' if numbers[1:] else ''} {listed}"] if numbers else []
    return f"quotes the paper’s {' and '.join(parts)}"


def definitions(code: str) -> dict[str, int]:
    """The names that Python code defines at its top, each with the line where its definition begins."""
    found = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: node.lineno for each in targets if isinstance(each, ast.Name)}
    return found


def public(code: str) -> list[str]:
    """The names in a module's ``__all__``."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.Assign) and "__all__" in [getattr(each, "id", "") for each in node.targets]:
            return ast.literal_eval(node.value)
    return []


def module_path(root: Path, docname: str) -> str:
    """The file that a notebook exports to, from the root of the repository, or an empty string."""
    found = re.search(r"^#\| default_exp (\S+)$", (root / f"{docname}.py").read_text(encoding="utf-8"), re.MULTILINE)
    return f"transformer/{found[1].replace('.', '/')}.py" if found else ""


def on_github(app, path: str) -> str:
    return f"https://github.com/{app.config.book_repository}/blob/{app.config.book_branch}/{path}"


def in_reference(app, docname: str, module: str, name: str = "") -> str:
    """Where the API reference has a name or, if it does not have it, the module."""
    python = app.env.get_domain("py")
    entry = python.objects.get(f"{module}.{name}") or python.modules[module]
    return f"{app.builder.get_relative_uri(docname, API)}#{entry.node_id}"


def dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def link_badges(app, docname, doctree, path: str) -> None:
    """Lead each "exported to …" to the line in the module or, without a repository, to the entry in the reference."""
    lines = definitions((Path(app.srcdir) / path).read_text(encoding="utf-8"))
    for cell in containers(doctree, "cell_code"):
        if "exported" not in cell["classes"]:
            continue
        badge, code = cell.children[0], next(cell.findall(nodes.literal_block)).astext()  # see chapters.py
        names = [name for name in definitions(code) if name in lines]
        if app.config.book_repository:
            address = on_github(app, path) + (f"#L{lines[names[0]]}" if names else "")
        else:
            entries = app.env.get_domain("py").objects
            listed = [name for name in names if f"{dotted(path)}.{name}" in entries]
            address = in_reference(app, docname, dotted(path), "".join(listed[:1]))
        literal = badge.children[-1]
        link = nodes.reference("", "", literal.deepcopy(), refuri=address, internal=True)
        badge.replace(literal, nodes.inline("", "", link))


def execution_time(app, docname: str) -> str:
    """``in seconds`` or ``in minutes``: how long the build took to run a chapter, roughly."""
    if app.config.nb_execution_mode != "cache":
        return ""
    cache = get_cache(app.config.nb_execution_cache_path)
    seconds = cache.match_cache_notebook(source(app.env, docname)).data["execution_seconds"]
    return ", in seconds on a CPU" if seconds < 90 else ", in minutes on a CPU"


def ways_to_run(app, docname: str) -> str:
    """The folded list: Colab, the notebook to download, the command."""
    name = Path(docname).name
    up = "../" * docname.count("/")
    script = on_github(app, f"{docname}.py") if app.config.book_repository else f"{up}_sources/{docname}.py"
    ways = [
        f'<a href="{name}.ipynb" download>Download the notebook</a> (<code>.ipynb</code>), or see '
        f'<a href="{script}">its source</a> (<code>.py</code>).'
    ]
    if app.config.book_repository:
        address = colab(app.config.book_repository, app.config.book_pages_branch, docname)
        ways.insert(0, f'<a href="{address}">Open in Colab</a>: the first cell installs the package.')
    items = "".join(f"<li>{way}</li>" for way in ways)
    command = f"python book/tools/run_notebook.py {docname}.py"
    return (
        f"<details><summary>Run this chapter</summary><ul>{items}"
        f"<li>In a copy of the repository{execution_time(app, docname)}:"
        f'<div class="highlight-sh notranslate"><div class="highlight"><pre>{command}</pre></div></div></li>'
        "</ul></details>"
    )


def exports(app, docname: str, path: str) -> tuple[str, str]:
    """The link to the module, and the folded list of its public names."""
    names = public((Path(app.srcdir) / path).read_text(encoding="utf-8"))
    module = in_reference(app, docname, dotted(path))
    link = f'exports <a href="{module}"><code>{escape(path)}</code></a>'
    items = "".join(
        f'<li><a href="{in_reference(app, docname, dotted(path), name)}"><code>{name}</code></a></li>' for name in names
    )
    number = f"{len(names)} public name{'s' if len(names) != 1 else ''}"
    file = f'<p>The file: <a href="{on_github(app, path)}">{path}</a></p>' if app.config.book_repository else ""
    return link, f"<details><summary>Its {number}</summary><ul>{items}</ul>{file}</details>"


def furnish(app, doctree, docname):
    """Put the block under the title; link the badges."""
    if app.builder.format != "html" or docname == app.config.root_doc:
        return
    time = minutes(doctree)
    facts, folded = [f"{time} minute{'s' if time > 1 else ''} to read"], ""
    if is_notebook(app.env, docname):
        path = module_path(Path(app.srcdir), docname)
        facts += filter(None, [quoted(doctree)])
        folded = ways_to_run(app, docname)
        if path:
            link_badges(app, docname, doctree, path)
            link, names = exports(app, docname, path)
            facts.append(link)
            folded += names
    elif time <= WORTH_SAYING:
        return
    label = "About this chapter" if folded else "About this page"
    first = "</span> <span><span aria-hidden='true'>·</span> ".join(facts)
    html = f'<div class="about-chapter" role="group" aria-label="{label}"><p><span>{first}</span></p>{folded}</div>'
    title = next(doctree.findall(nodes.title))
    title.parent.insert(title.parent.index(title) + 1, nodes.raw("", html, format="html"))


def depend(app, doctree):
    """A chapter's page is made anew when the lines of its module move."""
    if is_notebook(app.env, app.env.docname):
        path = module_path(Path(app.srcdir), app.env.docname)
        if path:
            app.env.note_dependency(str(Path(app.srcdir) / path))


def name_parts(app, pagename, templatename, context, doctree):
    """Tell a screen reader what it meets: a quotation, code and where it goes, an output."""
    exported = ""

    def name(match: re.Match) -> str:
        nonlocal exported
        if match["path"]:
            exported = f", exported to {match['path']}"
            return match[0]
        label = f"Code{exported}" if match["kind"] == "input" else "Output"
        exported = ""
        return match[0].replace("<div ", f'<div role="group" aria-label="{label}" ')

    if doctree is not None and is_notebook(app.env, pagename):
        body = PARTS.sub(name, context["body"])
        label = r'<blockquote class="paper-quote" aria-label="Quotation from the paper, \1">'
        context["body"] = QUOTE.sub(label, body)


def pass_formulas(app, pagename, templatename, context, doctree):
    """The Tab key does not stop at each formula within a line. The others scroll where they are wide, so they stay."""
    if doctree is not None and next(doctree.findall(nodes.math), None):
        app.add_js_file(None, body=FORMULAS)


def index_names(app):
    """Let the search rank the chapter that writes a public name like a page that has it in its title.

    ``LabelSmoothingLoss`` is entered as ``label_smoothing_loss``, too: found by who looks for ``label_smoothing``.
    """
    indexer = getattr(app.builder, "indexer", None)
    if indexer is not None:
        for docname in filter(lambda name: is_notebook(app.env, name), app.env.found_docs):
            path = module_path(Path(app.srcdir), docname)
            for name in public((Path(app.srcdir) / path).read_text(encoding="utf-8")) if path else []:
                for word in {name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)}:
                    indexer._title_mapping.setdefault(indexer.lang.stem(word.lower()), set()).add(docname)
    return []


def copy_code_only(app, config):
    """The button that copies stands on code, not on what the code printed."""
    config.copybutton_selector = "div.highlight pre:not(.cell_output pre)"


def setup(app):
    app.connect("config-inited", copy_code_only, priority=100)  # before the one who writes it into the script
    app.connect("doctree-read", depend)
    app.connect("doctree-resolved", furnish)
    app.connect("html-page-context", name_parts)
    app.connect("html-page-context", pass_formulas)
    app.connect("html-collect-pages", index_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
