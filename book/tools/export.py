"""Export the ``#| export`` cells of notebooks/*.py to the package transformer/.

    python book/tools/export.py            write what changed
    python book/tools/export.py --check    write nothing; fail if anything is out of date
    python book/tools/export.py --force    overwrite edits made by hand in transformer/

One notebook writes at most one module, and says so in a cell of its own: ``#| default_exp attention`` writes
transformer/attention.py (``modern.rope`` writes transformer/modern/rope.py). Cells that begin with ``#| export``
go there, in order; their top-level imports are gathered at the top. ``__all__`` is made from the public names.

Every file carries a hash of its own text, so an edit made by hand is noticed before it is lost.
"""

import argparse
import ast
import hashlib
import keyword
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jupytext

PACKAGE = "transformer"
WIDTH = 120
HASH_LINE = "# sha256 of what follows: "
RESERVED = {"check_version", PACKAGE}


@dataclass(frozen=True, order=True)
class Problem:
    """Something the author must put right, and where."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """Write it the way compilers do, so that editors can jump there."""
        return f"{self.path}:{self.line}: {self.text}"


@dataclass
class Cell:
    """One code cell: its source and the line of the file where it begins."""

    source: str
    line: int
    directives: dict[str, str] = field(default_factory=dict)

    def at(self, lineno: int) -> int:
        """Turn a line of the cell (from 1) into a line of the file."""
        return self.line + lineno - 1


@dataclass
class Name:
    """A name defined at the top level of an exported cell."""

    name: str
    line: int
    overload: bool = False

    @property
    def public(self) -> bool:
        """Whether the name goes into ``__all__``."""
        return not self.name.startswith("_")


@dataclass
class Module:
    """What one notebook exports."""

    notebook: str
    name: str
    line: int
    section: str
    title: str
    names: list[Name] = field(default_factory=list)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The module's file, from the root of the repository."""
        return f"{PACKAGE}/{self.name.replace('.', '/')}.py"

    @property
    def package(self) -> str:
        """The package the module stands in, as a dotted name."""
        return ".".join([PACKAGE, *self.name.split(".")[:-1]])

    @property
    def public(self) -> list[str]:
        """The names in ``__all__``, in the notebook's order."""
        return list(dict.fromkeys(name.name for name in self.names if name.public))


# ---------------------------------------------------------------------------------------------- reading a notebook


def read_cells(text: str) -> tuple[list[Cell], str]:
    """Read a percent script: its code cells with their lines, and the text of its first heading."""
    lines = text.splitlines()
    cells, heading, cursor = [], "", 0
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        if cell.cell_type == "markdown" and not heading:
            match = re.search(r"^# +(.+?)\s*#*$", cell.source, flags=re.MULTILINE)
            heading = match[1] if match else ""
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        wanted = cell.source.splitlines()
        start = next((n for n in range(cursor, len(lines)) if same_lines(lines[n : n + len(wanted)], wanted)), cursor)
        cursor = start + len(wanted)
        cells.append(Cell(cell.source, start + 1))
    return cells, heading


def same_lines(found: list[str], wanted: list[str]) -> bool:
    """Compare a stretch of the file with a cell; a magic line stands in the file as a comment."""
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(line in (cell, f"# {cell}") for line, cell in pairs)


def read_directives(cell: Cell) -> Iterator[tuple[int, str]]:
    """Fill the cell's directives from its leading ``#|`` lines; yield what is wrong with them."""
    leading = True
    for number, line in enumerate(cell.source.splitlines(), 1):
        if not line.startswith("#|"):
            leading = leading and not line.strip()
            continue
        word, _, value = line[2:].strip().partition(" ")
        if not leading:
            yield cell.at(number), f"`#| {word}` must be at the top of its cell"
        elif word not in ("default_exp", "export"):
            yield cell.at(number), f"unknown directive `#| {word}`; there are `#| default_exp NAME` and `#| export`"
        elif word == "export" and value:
            yield cell.at(number), f"`#| export {value}`: a notebook writes one module, named by `#| default_exp`"
        else:
            cell.directives[word] = value.strip()


def split_heading(heading: str) -> tuple[str, str]:
    """Split ``3.2.1 Scaled Dot-Product Attention`` into a section and a plain title."""
    match = re.match(r"(?:(?:Section|Appendix|Chapter)\s+)?([A-Z]?\d+(?:\.\d+)*[a-z]?)[.:]?\s+(.+)", heading)
    number, title = (match[1], match[2]) if match else ("", heading)
    title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
    title = re.sub(r"[*`$\\\"]", "", title).strip()
    return (("Appendix " if number[0].isalpha() else "Section ") + number if number else ""), title


def valid_module(name: str) -> bool:
    """Whether a dotted name can be a module that people import."""
    return all(p.isidentifier() and not keyword.iskeyword(p) and not p.startswith("_") for p in name.split("."))


def parse(cell: Cell) -> tuple[ast.Module | None, tuple[int, str] | None]:
    """Parse a cell; on failure say where and why."""
    try:
        return ast.parse(cell.source), None
    except SyntaxError as error:
        for number, line in enumerate(cell.source.splitlines(), 1):
            if line.lstrip().startswith(("%", "!")):
                return None, (cell.at(number), f"a magic or shell line cannot be exported: `{line.strip()}`")
        return None, (cell.at(error.lineno or 1), f"syntax error in an exported cell: {error.msg}")


def without_magics(cell: Cell) -> ast.Module | None:
    """Parse a cell that is not exported as far as possible."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in cell.source.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return None


# ----------------------------------------------------------------------------------------- what a cell brings along


def bound_names(statement: ast.stmt) -> Iterator[tuple[str, int, bool]]:
    """Yield the names a top-level statement binds, with line, and whether it is an overload. Imports bind none."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        decorators = [ast.unparse(decorator) for decorator in statement.decorator_list]
        yield statement.name, statement.lineno, any(d.split(".")[-1] == "overload" for d in decorators)
        return
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop(0)
        if node is not statement and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno, False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno, False
        elif isinstance(node, ast.ExceptHandler | ast.Match | ast.Delete):
            stack[:0] = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt | ast.match_case)]
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            stack[:0] = ast.iter_child_nodes(node)


def imports_of(tree: ast.AST, package: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line, module and imported names of every import in any form; relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            yield node.lineno, ".".join([*base, *filter(None, [node.module])]), [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value, []


def imports_itself(cell: Cell, module: Module, exported: bool) -> Iterator[tuple[int, str]]:
    """Yield the lines where a cell imports the module that its own notebook writes."""
    tree = without_magics(cell)
    target = f"{PACKAGE}.{module.name}"
    own = set(module.public) | {"*"}
    for line, name, parts in imports_of(tree, module.package) if tree else ():
        paths = [name, *(f"{name}.{part}" for part in parts)]
        direct = any(path == target or path.startswith(f"{target}.") for path in paths)
        circular = exported and name == module.package and not own.isdisjoint(parts)
        if direct or circular:
            text = f"the notebook imports {target}, the module it writes itself; use the names defined in the notebook"
            yield cell.at(line), f"{text}, and compare with the exported ones through `{PACKAGE}.NAME`"


def take_imports(cell: Cell, tree: ast.Module) -> tuple[list[ast.Import | ast.ImportFrom], str]:
    """Separate a cell's top-level imports from the rest of its code, less the directives."""
    lines = cell.source.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#|"):
            lines[number] = "\0"
    taken = []
    busy = [statement for statement in tree.body if not isinstance(statement, ast.Import | ast.ImportFrom)]
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        if any(other.lineno <= last and (other.end_lineno or other.lineno) >= first for other in busy):
            continue  # shares its line with other code: leave it
        taken.append(statement)
        lines[first - 1 : last] = ["\0"] * (last - first + 1)
    return taken, "\n".join(line.rstrip() for line in lines if line != "\0").strip("\n")


# ------------------------------------------------------------------------------------------------ reading them all


def read_notebook(path: Path, shown: str) -> tuple[Module | None, list[Problem]]:
    """Read one notebook: the module it exports, if any, and everything that is wrong with it."""
    problems: list[Problem] = []

    def report(line: int, text: str) -> None:
        problems.append(Problem(shown, line, text))

    try:
        cells, heading = read_cells(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        report(1, f"not UTF-8 text: {error.reason} at byte {error.start}")
        return None, problems

    module: Module | None = None
    for cell in cells:
        for line, text in read_directives(cell):
            report(line, text)
        if "default_exp" in cell.directives:
            target = cell.directives["default_exp"]
            if not valid_module(target):
                report(cell.line, f"`{target}` cannot be a module's name: use letters, digits, `_`, and dots between")
            elif module is not None and not module.name:  # an exported cell came first; it has been reported
                module.name, module.line = target, cell.line
                continue
            elif module is not None:
                report(cell.line, f"a second `#| default_exp` ({target}); a notebook writes one module ({module.name})")
                continue
            module = Module(shown, target, cell.line, *split_heading(heading))
        if "export" not in cell.directives:
            continue
        if module is None:
            report(cell.line, "an exported cell before any `#| default_exp NAME`: say first which module it goes to")
            module = Module(shown, "", cell.line, *split_heading(heading))
        tree, wrong = parse(cell)
        if tree is None:
            report(*(wrong or (cell.line, "cannot be parsed")))
            continue
        for statement in tree.body:
            found: dict[str, Name] = {}
            for bound, line, overload in bound_names(statement):
                found.setdefault(bound, Name(bound, cell.at(line), overload))
            module.names += found.values()
        imports, code = take_imports(cell, tree)
        module.imports += imports
        if code.strip():
            module.pieces.append(code)

    if module is None:
        return None, problems
    if not module.name or not valid_module(module.name):
        return None, problems
    if not heading:
        report(module.line, "an exporting notebook needs a title: a first markdown cell with `# 3.2.1 The title`")
    if not module.pieces and not module.imports and not problems:
        report(module.line, f"`#| default_exp {module.name}`, but no cell begins with `#| export`")
    seen: dict[str, Name] = {}
    for name in module.names:
        if name.name in seen and name.name != "_" and not seen[name.name].overload:
            report(name.line, f"`{name.name}` is exported twice; first in line {seen[name.name].line}")
        seen[name.name] = name
    for cell in cells:
        for line, text in imports_itself(cell, module, "export" in cell.directives):
            report(line, text)
    return module, problems


def read_all(root: Path) -> tuple[list[Module], list[Problem]]:
    """Read every notebook; report what is wrong in each, and what they do to one another."""
    modules: list[Module] = []
    problems: list[Problem] = []
    for path in sorted((root / "notebooks").glob("*.py")):
        module, found = read_notebook(path, path.relative_to(root).as_posix())
        problems += found
        if module is not None:
            modules.append(module)

    writers: dict[str, Module] = {}
    for module in modules:
        first = writers.setdefault(module.name, module)
        if first is not module:
            also = f"{first.notebook} (line {first.line})"
            text = f"{module.path} is written by this notebook and by {also}; one notebook, one module"
            problems.append(Problem(module.notebook, module.line, text))
    for taken, module in writers.items():
        inner = next((other for other in writers if other.startswith(f"{taken}.")), None)
        if inner is not None:
            also = f"{writers[inner].notebook} (`{inner}`)"
            text = f"`{taken}` is a module here and a package in {also}; rename one of them"
            problems.append(Problem(module.notebook, module.line, text))

    owners: dict[tuple[str, str], tuple[Module, Name]] = {}
    for module in writers.values():
        names = {name.name: name for name in reversed(module.names) if name.public}
        for name in names.values():
            owner, first_name = owners.setdefault((module.package, name.name), (module, name))
            if owner is not module:
                text = f"`{name.name}` is exported twice; first by {owner.notebook}:{first_name.line}"
                problems.append(Problem(module.notebook, name.line, text))
            if f"{module.package}.{name.name}" in submodules(writers) or name.name in RESERVED:
                text = f"the public name `{name.name}` hides {module.package}.{name.name}; rename one of them"
                problems.append(Problem(module.notebook, name.line, text))
    return list(writers.values()), sorted(set(problems))


def submodules(names: Iterable[str]) -> set[str]:
    """Give the full names of all modules and the packages around them."""
    parts = (name.split(".") for name in names)
    return {".".join([PACKAGE, *p[:n]]) for p in parts for n in range(1, len(p) + 1)}


# ------------------------------------------------------------------------------------------------------ writing code


def natural(text: str) -> list[tuple[int, int, str]]:
    """Order ``a2`` before ``a10``, as import sorters do."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", text) if p]


def member_key(name: str) -> tuple[object, ...]:
    """Order constants, then classes, then the rest."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, natural(name.lower()), natural(name)


def wrapped(before: str, items: list[str], after: str, indent: str = "") -> str:
    """Put items on one line if they fit, else one a line with a trailing comma."""
    line = indent + before + ", ".join(items) + after
    if len(line) <= WIDTH:
        return line
    return "\n".join([indent + before, *(f"{indent}    {item}," for item in items), indent + after])


def import_block(statements: list[ast.Import | ast.ImportFrom], indent: str = "") -> str:
    """Merge, group and sort imports: __future__, the standard library, other packages, this package."""
    whole: dict[int, set[str]] = {}
    members: dict[int, dict[str, set[str]]] = {}
    renamed: dict[int, set[tuple[str, str]]] = {}

    def group(module: str) -> int:
        top = module.split(".")[0]
        return 0 if top == "__future__" else 1 if top in sys.stdlib_module_names else 3 if top in ("", PACKAGE) else 2

    for statement in statements:
        for alias in statement.names:
            name = alias.name + (f" as {alias.asname}" if alias.asname else "")
            if isinstance(statement, ast.Import):
                whole.setdefault(group(alias.name), set()).add(name)
                continue
            module = "." * statement.level + (statement.module or "")
            if alias.asname:
                renamed.setdefault(group(module), set()).add((module, name))
            else:
                members.setdefault(group(module), {}).setdefault(module, set()).add(name)

    blocks = []
    for number in range(4):
        lines = [f"{indent}import {name}" for name in sorted(whole.get(number, ()), key=lambda n: natural(n.lower()))]
        froms = [(module, sorted(names, key=member_key)) for module, names in members.get(number, {}).items()]
        froms += [(module, [name]) for module, name in renamed.get(number, ())]
        for module, names in sorted(froms, key=lambda pair: (natural(pair[0].lower()), member_key(pair[1][0]))):
            line = f"{indent}from {module} import {', '.join(names)}"
            lines.append(line if len(line) <= WIDTH else wrapped(f"from {module} import (", names, ")", indent))
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def quoted(names: Iterable[str]) -> list[str]:
    """Write names as double-quoted strings."""
    return [f'"{name}"' for name in names]


def sealed(header: str, body: str) -> str:
    """Join header and body with the hash that tells an edit made by hand."""
    return f"{header}\n{HASH_LINE}{fingerprint(body)}\n{body}"


def fingerprint(body: str) -> str:
    """Hash a file's text, short enough to read."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def module_text(module: Module) -> str:
    """Write one module."""
    section = f", {module.section}" if module.section else ""
    header = f"# Exported from {module.notebook}{section}; edit that file, not this one."
    docstring = f'"""{module.title}{f" ({module.section})" if module.section else ""}."""'
    parts = [docstring]
    imports = import_block(module.imports)
    if imports:
        parts.append(imports)
    parts.append(wrapped("__all__ = [", quoted(module.public), "]"))
    return sealed(header, "\n\n\n".join(["\n\n".join(parts), *module.pieces]) + "\n")


LAZY = '''\
else:

    def __getattr__(name: str) -> object:
        """Load a public name, or a module, when it is first asked for (PEP 562)."""
        if name in _HOME:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List what there is, loaded or not."""
    return sorted({*globals(), *__all__, *_MODULES})
'''

CHECK_VERSION = '''\


def check_version(expected: str) -> None:
    """Fail unless the installed module belongs to the text that is being read.

    Args:
        expected: Major and minor version that the text was written for, such as ``"0.1"``.

    Raises:
        ValueError: If `expected` is not two numbers with a dot between.
        RuntimeError: If the module's major and minor version are others.
    """
    if not isinstance(expected, str) or [part.isdigit() for part in expected.split(".")] != [True, True]:
        raise ValueError(f"expected is {expected!r}; give major and minor version, such as '0.1'")
    if __version__.split(".")[:2] != expected.split("."):
        raise RuntimeError(
            f"this text needs transformer {expected}, but {__version__} is installed ({__path__[0]}). "
            "In the book's repository run `make book` (or `pip install --upgrade --force-reinstall .`); "
            "in Colab run the notebook's first cell; then restart the kernel."
        )
'''


def init_text(package: str, modules: list[Module], version: str) -> str:
    """Write the ``__init__.py`` of a package: lazy names, for type checkers the real ones."""
    top = package == PACKAGE
    own = [module for module in modules if module.package == package]
    prefix = f"{package}."
    children = sorted(
        {full[len(prefix) :] for full in submodules(m.name for m in modules) if full.startswith(prefix)}
        - {full[len(prefix) :] for full in submodules(m.name for m in modules) if "." in full[len(prefix) :]}
    )
    home = {name: module.name.split(".")[-1] for module in own for name in module.public}
    if top:
        title = ['"""The Transformer of *Attention Is All You Need*, exported from the chapters of the book.', ""]
    else:
        title = [f'"""The modules of {package}, exported from the chapters of the book.', ""]
    title += ["Names are loaded when they are first asked for, so importing the package is quick.", '"""']
    sources: list[ast.Import | ast.ImportFrom] = []
    if children:
        sources.append(ast.ImportFrom(package, [ast.alias(child, child) for child in children], 0))
    for module in own:
        if module.public:
            sources.append(ast.ImportFrom(f"{PACKAGE}.{module.name}", [ast.alias(n) for n in module.public], 0))
    everything = [*home, *(("__version__", "check_version") if top else ())]
    lines = [*title, "", "import importlib", "from typing import TYPE_CHECKING", ""]
    if top:
        lines += [f'__version__ = "{version}"', ""]
    lines += ["__all__ = [", *(f"    {name}," for name in quoted(everything)), "]", ""]
    lines += ["_HOME = {", *(f'    "{name}": "{where}",' for name, where in home.items()), "}"]
    lines += [wrapped("_MODULES = (", quoted(children), ",)" if len(children) == 1 else ")"), ""]
    lines += ["if TYPE_CHECKING:", import_block(sources, "    ") or "    pass", ""]
    body = "\n".join(lines) + LAZY + (CHECK_VERSION if top else "")
    header = "# Made by book/tools/export.py from the modules beside it; edit the notebooks, not this file."
    return sealed(header, body.replace("{\n}", "{}").replace("[\n]", "[]"))


MAIN = '''\
"""Run the command line: ``python -m transformer``."""

import sys

from transformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
'''


def package_files(modules: list[Module], version: str) -> dict[str, str]:
    """Write every file of the package, keyed by its path from the root."""
    files = {module.path: module_text(module) for module in modules}
    for package in sorted({PACKAGE} | {module.package for module in modules}):
        files[f"{package.replace('.', '/')}/__init__.py"] = init_text(package, modules, version)
    if any(module.name == "cli" for module in modules):
        header = "# Made by book/tools/export.py; it runs the module cli."
        files[f"{PACKAGE}/__main__.py"] = sealed(header, MAIN)
    files[f"{PACKAGE}/py.typed"] = ""
    return files


# --------------------------------------------------------------------------------------- what is on the disk already


def state(text: str) -> str:
    """Tell an exported file as it was written (``clean``) from an ``edited`` one and a ``foreign`` one."""
    header, _, rest = text.partition("\n")
    seal, _, body = rest.partition("\n")
    if not header.startswith("# ") or not seal.startswith(HASH_LINE):
        return "foreign"
    return "clean" if seal.removeprefix(HASH_LINE) == fingerprint(body) else "edited"


def write(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def remove_if_empty(folder: Path) -> None:
    """Remove a package's folder when nothing but compiled files is left in it."""
    if all(path.name == "__pycache__" for path in folder.iterdir()):
        shutil.rmtree(folder)


def on_disk(root: Path) -> dict[str, str]:
    """Read the Python files of the package as they are."""
    paths = sorted((root / PACKAGE).rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def project_version(root: Path) -> str:
    """Read the version from pyproject.toml, the one place that has it."""
    with open(root / "pyproject.toml", "rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def export(root: Path, check: bool = False, force: bool = False) -> int:
    """Bring transformer/ in step with notebooks/, or say why not. Returns the exit status."""
    modules, problems = read_all(root)
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        print(f"Nothing exported: {len(problems)} to put right first.", file=sys.stderr)
        return 1

    wanted = package_files(modules, project_version(root))
    present = on_disk(root)
    for path, text in present.items():
        if path not in wanted and state(text) == "foreign":
            print(f"{path}: not made by an export; its place is an exported cell of a notebook", file=sys.stderr)
    gone = {path for path, text in present.items() if path not in wanted and state(text) != "foreign"}
    changed = {p for p, text in wanted.items() if not (root / p).exists() or (p in present and present[p] != text)}
    edited = sorted(path for path in changed | gone if path in present and state(present[path]) != "clean")
    if edited and not force:
        for path in edited:
            foreign = state(present[path]) == "foreign"
            why = "not made by an export" if foreign else "edited by hand since the last export"
            print(f"{path}: {why}", file=sys.stderr)
        print(
            "Nothing exported. Move the change to the notebook (the file's first line names it) and run "
            "`python book/tools/export.py --force`, which overwrites the file.",
            file=sys.stderr,
        )
        return 1

    if check:
        for path in sorted(changed):
            print(f"stale: {path}", file=sys.stderr)
        for path in sorted(gone):
            print(f"stale: {path} (no notebook exports it any more)", file=sys.stderr)
        foreign = any(path not in wanted and state(text) == "foreign" for path, text in present.items())
        return int(bool(changed or gone or foreign))
    for path in sorted(changed):
        write(root / path, wanted[path])
        print(f"wrote {path}")
    for path in sorted(gone):
        (root / path).unlink()
        remove_if_empty((root / path).parent)
        print(f"removed {path}: no notebook exports it any more")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description="Export the notebooks' `#| export` cells to transformer/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything is out of date")
    parser.add_argument("--force", action="store_true", help="overwrite edits made by hand in transformer/")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="the repository")
    options = parser.parse_args(arguments)
    return export(options.root, options.check, options.force)


if __name__ == "__main__":
    sys.exit(main())
