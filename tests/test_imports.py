"""The house keeps its order: who may import whom, what may be imported at all, and how big a room may be."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# What each room of the paper may import of ours. `data.Batch` allows that one name. An arrow not listed here fails.
ALLOWED: dict[str, set[str]] = {
    "attention": set(),
    "masks": set(),
    "feed_forward": set(),
    "embeddings": set(),
    "positional_encoding": set(),
    "schedule": set(),
    "loss": set(),
    "lexicon": set(),
    "corpus": {"lexicon"},
    "downloads": set(),
    "distributed": set(),
    "multi_head": {"attention"},
    "layers": {"multi_head", "feed_forward"},
    "model": {"masks", "embeddings", "positional_encoding", "layers", "multi_head", "feed_forward"},
    "complexity": {"model"},
    "ledger": {"model"},
    "scoring": set(),
    "checkpoints": {"model"},
    "decoding": {"model", "masks"},
    "data": {"corpus", "downloads"},
    "preparation": {"data", "downloads", "corpus", "checkpoints"},
    # The training loop is given model and batches by its caller; it knows them as types.
    "training": {"schedule", "loss", "checkpoints", "distributed", "ledger", "model", "data.Batch"},
    "translator": {"data", "checkpoints", "decoding", "model"},
    # What only makes one kind of machine quicker: none of the rooms above may name it.
    "fast_cpu": {"model", "layers", "multi_head", "feed_forward", "embeddings"},
}
# Rooms that stand on all the others, from below to the top.
ON_TOP = ["visualization", "variations", "parsing", "runs", "wmt14", "cli"]
# What stands around the paper builds on it, and is imported by nothing of the paper's.
AROUND = ["numpy_reference", "gpt", "exercises", "modern"]
# The plumbing of the appendices: no section of the paper asks for it.
PLUMBING = ["lexicon", "corpus", "downloads", "preparation", "checkpoints", "runs", "cli", "fast_cpu"]

AT_IMPORT = {"torch", "numpy", "safetensors", "tqdm"} | set(sys.stdlib_module_names)
LATE = AT_IMPORT | {"sentencepiece", "sacrebleu", "yaml", "sacremoses", "altair", "matplotlib", "vl_convert"}

SPINE = ["attention", "multi_head", "masks", "feed_forward", "embeddings", "positional_encoding", "layers", "model"]
PACKAGE = Path(__file__).resolve().parents[1] / "transformer"
ROOMS = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not path.name.startswith("__")
}


@dataclass(frozen=True)
class Import:
    """One imported module, or name of a module."""

    module: str
    name: str
    line: int
    late: bool

    def __str__(self) -> str:
        return f"line {self.line}: {self.module}{'.' + self.name if self.name else ''}"


def imports(source: str) -> Iterator[Import]:
    """Yield every import of a module. Those inside functions are late; those for type checkers alone do not count."""

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, late)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            for alias in node.names:
                yield Import(node.module or "", alias.name, node.lineno, late)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.orelse:
                yield from visit(child, late)
        else:
            late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, late)

    yield from visit(ast.parse(source), False)


def our_rooms(found: Import) -> tuple[str, str] | None:
    """Give room and name if the import is of a room of ours."""
    top, _, room = found.module.partition(".")
    if top != "transformer" or (not room and found.name in ("", "__version__", "check_version")):
        return None
    if room:
        return (f"{room}.{found.name}", "") if f"{room}.{found.name}" in ROOMS else (room, found.name)
    if found.name in ROOMS:
        return found.name, ""
    return f"the package's {found.name}", ""  # through the lazy package: hides which room the name is from


def forbidden(room: str, source: str) -> list[str]:
    """List the imports of our own rooms that break the order."""
    wrong = []
    paper = set(ALLOWED) | set(ON_TOP)
    for found in imports(source):
        arrow = our_rooms(found)
        if arrow is None:
            continue
        target, name = arrow
        if room in ALLOWED:
            ok = target in ALLOWED[room] or f"{target}.{name}" in ALLOWED[room]
        elif room in ON_TOP:
            ok = target in ALLOWED or target in ON_TOP[: ON_TOP.index(room)]
        else:
            ok = target in paper - {"cli"} or target.split(".")[0] == room.split(".")[0]
        if not ok:
            wrong.append(str(found))
    return wrong


def code_lines(source: str) -> int:
    """Count lines that hold code: no blank lines, comments or docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


# ---------------------------------------------------------------------------------------------------------- the arrows


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_known(room: str) -> None:
    assert room in ALLOWED or room in ON_TOP or room.split(".")[0] in AROUND, "say in this file what it may import"


@pytest.mark.parametrize("room", ROOMS)
def test_arrows(room: str) -> None:
    wrong = forbidden(room, ROOMS[room].read_text(encoding="utf-8"))
    assert not wrong, f"{room} may not import: {'; '.join(wrong)}"


def test_the_table_has_no_circle() -> None:
    graph = {room: {target.split(".")[0] for target in targets} for room, targets in ALLOWED.items()}
    while graph:
        free = [room for room, targets in graph.items() if not targets & set(graph)]
        assert free, f"a circle among {sorted(graph)}"
        for room in free:
            del graph[room]


@pytest.mark.parametrize(
    ("room", "source", "ok"),
    [
        ("attention", "from transformer.model import Transformer", False),
        ("attention", "def f():\n    from transformer.masks import causal_mask", False),
        ("attention", "import transformer.masks", False),
        ("attention", "from transformer import masks", False),
        ("attention", "from transformer import Transformer", False),
        ("attention", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from transformer.model import X", True),
        ("layers", "from transformer.multi_head import MultiHeadAttention", True),
        ("training", "from transformer.data import Batch", True),
        ("training", "from transformer.data import make_batches", False),
        ("model", "from transformer.gpt import GPT", False),
        ("cli", "from transformer.wmt14 import train", True),
        ("cli", "from transformer import __version__", True),
        ("wmt14", "from transformer.cli import main", False),
        ("cli", "from transformer.gpt import GPT", False),
        ("gpt", "from transformer.model import Transformer", True),
        ("modern.rope", "from transformer.modern.norms import RMSNorm", True),
        ("gpt", "from transformer.modern.norms import RMSNorm", False),
    ],
)
def test_the_reader_of_arrows(room: str, source: str, ok: bool) -> None:
    assert (not forbidden(room, source)) is ok


@pytest.mark.parametrize("room", ROOMS)
def test_other_packages(room: str) -> None:
    for found in imports(ROOMS[room].read_text(encoding="utf-8")):
        top = found.module.split(".")[0]
        assert top in (LATE if found.late else AT_IMPORT) | {"transformer"}, (
            f"{room}, {found}: {'import it inside the function that needs it' if top in LATE else 'not a dependency'}"
        )


# ---------------------------------------------------------------------------------------------------------- the sizes


def test_lines_are_counted_without_docstrings() -> None:
    source = '"""Doc."""\n\nx = 1  # one\n# comment\ny = """two\nthree"""\n\n\n'
    assert code_lines(source) == 3
    assert code_lines(source + 'def f():\n    """Doc.\n\n    More."""\n    return 5\n') == 5


def test_the_model_is_small() -> None:
    sizes = {room: code_lines(ROOMS[room].read_text(encoding="utf-8")) for room in SPINE}
    assert sum(sizes.values()) <= 600, sizes


def test_the_papers_rooms_are_small() -> None:
    paper = [room for room in ROOMS if room.split(".")[0] not in AROUND + PLUMBING]
    sizes = {room: code_lines(ROOMS[room].read_text(encoding="utf-8")) for room in paper}
    assert sum(sizes.values()) <= 2500, sizes


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_long(room: str) -> None:
    assert code_lines(ROOMS[room].read_text(encoding="utf-8")) <= 400


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_returned_is_not_taken_for_a_type(room: str) -> None:
    """In the reference, words before a colon on the first line of "Returns" would stand as the type."""
    for node in ast.walk(ast.parse(ROOMS[room].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            first = re.search(r"^Returns:\n(.*)", ast.get_docstring(node) or "", re.MULTILINE)
            assert first is None or ":" not in re.sub(r"`[^`]*`", "", first[1]), f"{node.name}: {first[1]}"
