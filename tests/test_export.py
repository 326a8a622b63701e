"""The export: what it writes, what it refuses, and that transformer/ is in step with notebooks/."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import export
import pytest

TITLE = "# %% [markdown]\n# # 3.2.1 Scaled Dot-Product Attention\n\n"


class Tree:
    """A small repository to export."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "notebooks").mkdir()
        (root / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')

    def notebook(self, name: str, *cells: str, title: str = TITLE) -> None:
        """Write a notebook of code cells; a cell may begin with ``export:`` and ``module NAME``."""
        text = title
        for cell in cells:
            cell = cell.replace("export:\n", "#| export\n")
            text += "# %%\n" + (f"#| default_exp {cell[7:]}" if cell.startswith("module ") else cell) + "\n\n"
        (self.root / "notebooks" / f"{name}.py").write_text(text)

    def read(self, name: str) -> str:
        return (self.root / "transformer" / f"{name}.py").read_text()

    def path(self, name: str) -> Path:
        return self.root / "transformer" / f"{name}.py"

    def export(self, *options: str) -> int:
        return export.main(["--root", str(self.root), *options])

    def all(self, name: str) -> list[str]:
        module = ast.parse(self.read(name))
        return next(ast.literal_eval(n.value) for n in module.body if ast.unparse(n).startswith("__all__"))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def good(tree: Tree) -> Tree:
    tree.notebook(
        "03_attention",
        "module attention",
        "export:\nimport math\n\nimport torch",
        'export:\ndef attend(x: float) -> float:\n    """Attend."""\n    return math.sqrt(x)',
        "import transformer\n\nassert transformer.attend(4) == attend(4)",
    )
    tree.notebook("00_abstract", "print('nothing to export')")
    assert tree.export() == 0
    return tree


# ------------------------------------------------------------------------------------------------- what it writes


def test_header_names_notebook_and_section(good: Tree) -> None:
    header = good.read("attention").splitlines()[0]
    assert header == "# Exported from notebooks/03_attention.py, Section 3.2.1; edit that file, not this one."


def test_docstring_comes_from_the_title(good: Tree) -> None:
    assert ast.get_docstring(ast.parse(good.read("attention"))) == "Scaled Dot-Product Attention (Section 3.2.1)."


@pytest.mark.parametrize(
    ("title", "docstring", "section"),
    [
        ("A4 The *command* line", "The command line (Appendix A4).", ", Appendix A4"),
        ("6.1a Decoding with `beam`s", "Decoding with beams (Section 6.1a).", ", Section 6.1a"),
        ("Notes", "Notes.", ""),
        ('The "quoted" $d_k$', "The quoted d_k.", ""),
    ],
)
def test_titles(tree: Tree, title: str, docstring: str, section: str) -> None:
    tree.notebook("x", "module x", "export:\nX = 1", title=f"# %% [markdown]\n# # {title}\n\n")
    assert tree.export() == 0
    assert ast.get_docstring(ast.parse(tree.read("x"))) == docstring
    assert tree.read("x").startswith(f"# Exported from notebooks/x.py{section};")


def test_all_has_every_kind_of_public_name(tree: Tree) -> None:
    code = """export:
import os
from pathlib import Path

ONE = 1
TWO, (THREE, *FOUR) = 2, (3, 4, 5)
FIVE: int = 5
not_yet: int
SIX = SEVEN = 6
_PRIVATE = 0
if ONE:
    EIGHT = 8
else:
    EIGHT = 9
try:
    NINE = 9
except ValueError as error:
    NINE = [inner for inner in range(9)]
for ten in range(3):
    pass
with open(os.devnull) as eleven:
    twelve = (thirteen := 13)
ONE_ATTRIBUTE = Path()
os.environ["X"] = "1"


def function() -> None:
    local = 1


async def coroutine() -> None: ...


class Class:
    inside = 1


def _private() -> None: ..."""
    tree.notebook("names", "module names", code, "NOT_EXPORTED = 1")
    assert tree.export() == 0
    assert tree.all("names") == [
        *("ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE", "ten", "eleven", "twelve"),
        *("thirteen", "ONE_ATTRIBUTE", "function", "coroutine", "Class"),
    ]


def test_imports_are_gathered_sorted_and_merged(tree: Tree) -> None:
    tree.notebook(
        "x",
        "module x",
        "export:\nfrom torch import nn\nimport torch\nfrom transformer.masks import causal_mask\nimport math",
        "export:\nX = 1",
        "export:\nfrom __future__ import annotations\nfrom torch import Tensor\nimport torch.nn.functional as F",
        "export:\nY = 2",
        "export:\nZ = 3; import os",
    )
    assert tree.export() == 0
    assert tree.read("x").partition('."""\n\n')[2] == (
        "from __future__ import annotations\n\nimport math\n\nimport torch\nimport torch.nn.functional as F\n"
        "from torch import Tensor, nn\n\nfrom transformer.masks import causal_mask\n\n"
        '__all__ = ["X", "Y", "Z"]\n\n\nX = 1\n\n\nY = 2\n\n\nZ = 3; import os\n'
    )


def test_export_is_stable(good: Tree) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in good.root.rglob("transformer/*")}
    assert good.export() == 0
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in good.root.rglob("transformer/*")}
    for path in before:
        path.unlink()
    assert good.export() == 0
    assert {path: content for path, (content, _) in before.items()} == {path: path.read_bytes() for path in before}


def test_output_passes_the_linters(good: Tree, root: Path) -> None:
    (good.root / "pyproject.toml").write_text((root / "pyproject.toml").read_text())
    good.notebook(
        "04_long",
        "module long",
        "export:\n" + "\n".join(f"CONSTANT_NUMBER_{number} = {number}" for number in range(30)),
    )
    good.notebook("05_sub", "module modern.rope", 'export:\ndef rotate() -> None:\n    """Rotate."""')
    good.notebook("06_cli", "module cli", 'export:\ndef main() -> int:\n    """Run."""\n    return 0')
    good.notebook(
        "03_attention",
        "module attention",
        "export:\nfrom collections.abc import Callable",
        'export:\ndef attend(x: Callable[[], float]) -> float:\n    """Attend."""\n    return x()',
    )
    assert good.export() == 0
    for command in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy", "--no-incremental"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, "transformer"], cwd=good.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_init_is_lazy_and_complete(good: Tree) -> None:
    good.notebook("11_rope", "module modern.rope", "export:\nTHETA = 10_000")
    good.notebook("A4_cli", "module cli", "export:\ndef main() -> int:\n    print('ran')\n    return 3")
    assert good.export() == 0
    code = """
import sys, transformer
assert transformer.__version__ == "1.2.3"
assert transformer.__all__ == ["attend", "main", "__version__", "check_version"], transformer.__all__
assert not any(name.startswith("transformer.") for name in sys.modules)
assert {"attend", "attention", "cli", "modern", "check_version"} <= set(dir(transformer))
assert transformer.attend(9) == 3 == transformer.attention.attend(9)
assert transformer.modern.THETA == transformer.modern.rope.THETA
transformer.check_version("1.2")
try:
    transformer.nothing
except AttributeError as error:
    assert str(error) == "module 'transformer' has no attribute 'nothing'", error
else:
    raise AssertionError
from transformer import *
attend
"""
    (good.root / "transformer" / "attention.py").write_text(
        good.read("attention").replace("import torch\n\n", "")  # quicker
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=good.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "transformer"], cwd=good.root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "ran\n")


def test_no_main_without_a_command_line(good: Tree) -> None:
    assert not good.path("__main__").exists()


# ------------------------------------------------------------------------------------------------ what it refuses


def refused(tree: Tree, capsys: pytest.CaptureFixture[str], *expected: str) -> None:
    """Export, expect exactly these reports, and nothing written."""
    capsys.readouterr()
    assert tree.export() == 1
    reports = [line for line in capsys.readouterr().err.splitlines() if line.startswith("notebooks/")]
    assert len(reports) == len(expected), reports
    for report, text in zip(reports, expected, strict=True):
        assert text in report
    assert not (tree.root / "transformer").exists()


def test_syntax_error(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("x", "module x", "export:\nX = 1\n\ndef f(:\n    pass")
    refused(tree, capsys, "notebooks/x.py:11: syntax error in an exported cell")
    lines = (tree.root / "notebooks/x.py").read_text().splitlines()
    assert lines[10] == "def f(:"


def test_line_is_right_after_text_that_looks_like_the_cell(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("x", "module x", "export:\nX = 1", "export:\nX = 1")
    refused(tree, capsys, "notebooks/x.py:13: `X` is exported twice; first in line 9")


@pytest.mark.parametrize("line", ["%timeit 1", "!ls", "# %timeit 1\n# !ls"])
def test_magic_line(tree: Tree, capsys: pytest.CaptureFixture[str], line: str) -> None:
    tree.notebook("x", "module x", f"export:\n{line}\nX = 1")
    refused(tree, capsys, "notebooks/x.py:9: a magic or shell line cannot be exported")


def test_percent_inside_an_expression_is_no_magic(tree: Tree) -> None:
    tree.notebook("x", "module x", "export:\nX = (\n    7\n    % 3\n)", "# %timeit 1\nX")
    assert tree.export() == 0


def test_name_twice_in_one_notebook(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("x", "module x", "export:\ndef f(): ...", "export:\nf = 1", "export:\n_g = 1\n_g = 2")
    refused(tree, capsys, "x.py:13: `f` is exported twice; first in line 9", "x.py:18: `_g` is exported twice")


def test_overloads_are_one_name(tree: Tree) -> None:
    code = (
        "export:\nfrom typing import overload\n\n@overload\ndef f(x: int) -> int: ...\n"
        "@overload\ndef f(x: str) -> str: ...\ndef f(x): return x"
    )
    tree.notebook("x", "module x", code)
    assert tree.export() == 0
    assert tree.all("x") == ["f"]


def test_name_in_two_notebooks(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("a", "module a", "export:\nX = 1")
    tree.notebook("b", "module b", "export:\nY = 1\nX = 1")
    refused(tree, capsys, "notebooks/b.py:10: `X` is exported twice; first by notebooks/a.py:9")


def test_private_names_may_repeat_across_modules(tree: Tree) -> None:
    tree.notebook("a", "module a", "export:\n_x = 1")
    tree.notebook("b", "module b", "export:\n_x = 1")
    assert tree.export() == 0


def test_module_of_two_notebooks(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("a", "module x", "export:\nX = 1")
    tree.notebook("b", "module x", "export:\nY = 1")
    refused(tree, capsys, "notebooks/b.py:5: transformer/x.py is written by this notebook and by notebooks/a.py")


def test_module_that_is_also_a_package(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("a", "module x", "export:\nX = 1")
    tree.notebook("b", "module x.y", "export:\nY = 1")
    refused(tree, capsys, "notebooks/a.py:5: `x` is a module here and a package in notebooks/b.py (`x.y`)")


@pytest.mark.parametrize(
    "line",
    [
        "import transformer.x",
        "import transformer.x as other",
        "from transformer.x import X",
        "from transformer import x",
        "from transformer.x.deeper import X",
        "def later():\n    from transformer import x",
        "import importlib\nimportlib.import_module('transformer.x')",
        "__import__('transformer.x')",
        "%time 1\nimport transformer.x",
    ],
)
def test_import_of_its_own_module(tree: Tree, capsys: pytest.CaptureFixture[str], line: str) -> None:
    tree.notebook("x", "module x", "export:\nX = 1", line)
    number = 12 + line.count("\n")
    refused(tree, capsys, f"notebooks/x.py:{number}: the notebook imports transformer.x, the module it writes itself")


@pytest.mark.parametrize("line", ["from . import x", "from .x import X", "from transformer import X"])
def test_import_of_its_own_module_from_an_exported_cell(
    tree: Tree, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    tree.notebook("x", "module x", "export:\nX = 1", f"export:\n{line}")
    refused(tree, capsys, "notebooks/x.py:13: the notebook imports transformer.x")


def test_own_names_through_the_package_are_welcome(tree: Tree) -> None:
    tree.notebook("x", "module x", "export:\nX = 1", "import transformer\nfrom transformer import X\ntransformer.X")
    assert tree.export() == 0


def test_exported_cell_before_the_module_is_named(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("x", "export:\nX = 1", "module x", "export:\nY = 1")
    tree.notebook("y", "export:\nZ = 1")
    refused(tree, capsys, "x.py:5: an exported cell before any", "y.py:5: an exported cell before any")


@pytest.mark.parametrize(
    ("cells", "report"),
    [
        (["module x", "module y", "export:\nX = 1"], "8: a second `#| default_exp` (y)"),
        (["module x", "#| export y\nX = 1", "export:\nY = 1"], "8: `#| export y`: a notebook writes one module"),
        (["module x", "#| exports\nX = 1", "export:\nY = 1"], "8: unknown directive `#| exports`"),
        (["module x", "X = 1\n#| export", "export:\nY = 1"], "9: `#| export` must be at the top of its cell"),
        (["module not-a-name", "export:\nX = 1"], "5: `not-a-name` cannot be a module's name"),
        (["module __init__", "export:\nX = 1"], "5: `__init__` cannot be a module's name"),
        (["module class", "export:\nX = 1"], "5: `class` cannot be a module's name"),
        (["module x"], "5: `#| default_exp x`, but no cell begins with `#| export`"),
        (["module x", "export:\nx = 1"], "9: the public name `x` hides transformer.x"),
        (["module x", "export:\ncheck_version = 1"], "9: the public name `check_version` hides"),
    ],
)
def test_directives(tree: Tree, capsys: pytest.CaptureFixture[str], cells: list[str], report: str) -> None:
    tree.notebook("x", *cells)
    refused(tree, capsys, f"notebooks/x.py:{report}")


def test_name_of_another_module(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("a", "module greedy", "export:\nX = 1")
    tree.notebook("b", "module decoding", "export:\ndef greedy(): ...")
    refused(tree, capsys, "notebooks/b.py:9: the public name `greedy` hides transformer.greedy")


def test_title_is_needed(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("x", "module x", "export:\nX = 1", title="")
    refused(tree, capsys, "notebooks/x.py:2: an exporting notebook needs a title")


def test_everything_wrong_is_reported_at_once(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.notebook("a", "module a", "export:\ndef f(:", "import transformer.a")
    tree.notebook("b", "module a", "export:\nX = 1")
    tree.notebook("c", "export:\nY = 1")
    (tree.root / "notebooks/d.py").write_bytes(b"# %%\nX = '\xff'\n")
    refused(tree, capsys, "a.py:9: syntax", "a.py:12: the notebook imports", "b.py:5", "c.py:5", "d.py:1: not UTF-8")


# -------------------------------------------------------------------------------------- what is there already


def test_check_lists_what_is_stale(good: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert good.export("--check") == 0
    source = good.root / "notebooks/03_attention.py"
    source.write_text(source.read_text().replace("math.sqrt(x)", "math.sqrt(2 * x)"))
    before = good.read("attention")
    assert good.export("--check") == 1
    assert capsys.readouterr().err.splitlines() == ["stale: transformer/attention.py"]
    assert good.read("attention") == before
    assert good.export() == 0
    assert good.export("--check") == 0


@pytest.mark.parametrize("name", ["attention", "__init__"])
@pytest.mark.parametrize("edit", ["body", "hash", "header"])
def test_hand_edits_are_kept(good: Tree, capsys: pytest.CaptureFixture[str], name: str, edit: str) -> None:
    lines = good.read(name).splitlines(keepends=True)
    if edit == "body":
        lines[-1] += "# an edit\n"
    elif edit == "hash":
        lines[1] = lines[1][:-2] + ("0" if lines[1][-2] != "0" else "1") + "\n"
    else:
        del lines[:2]
    good.path(name).write_text("".join(lines))
    capsys.readouterr()
    for options in ([], ["--check"]):
        assert good.export(*options) == 1
        message = capsys.readouterr().err
        assert message.startswith(f"transformer/{name}.py: ")
        assert "Move the change to the notebook" in message
        assert good.read(name) == "".join(lines)
    assert good.export("--force") == 0
    assert good.export("--check") == 0


def test_one_edit_stops_every_write(good: Tree) -> None:
    good.path("attention").write_text(good.read("attention") + "# an edit\n")
    good.notebook("x", "module x", "export:\nX = 1")
    assert good.export() == 1
    assert not good.path("x").exists()


def test_module_without_notebook_is_removed(good: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    good.notebook("x", "module modern.x", "export:\nX = 1")
    assert good.export() == 0
    (good.root / "notebooks/x.py").unlink()
    assert good.export("--check") == 1
    assert "transformer/modern/x.py (no notebook exports it any more)" in capsys.readouterr().err
    assert good.export() == 0
    assert not (good.root / "transformer/modern").exists()
    assert good.export("--check") == 0


def test_edited_module_without_notebook_is_kept(good: Tree) -> None:
    good.path("attention").write_text(good.read("attention") + "# an edit\n")
    (good.root / "notebooks/03_attention.py").unlink()
    assert good.export() == 1
    assert good.path("attention").exists()


def test_foreign_module_is_kept_and_reported(good: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    good.path("mine").write_text("X = 1\n")
    assert good.export("--force") == 0
    assert good.read("mine") == "X = 1\n"
    assert good.export("--check") == 1
    assert "transformer/mine.py: not made by an export" in capsys.readouterr().err


def test_writes_are_atomic(good: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    before = good.read("attention")
    source = good.root / "notebooks/03_attention.py"
    source.write_text(source.read_text().replace("math.sqrt(x)", "math.sqrt(2 * x)"))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, fail)
            with pytest.raises(OSError, match="disk full"):
                good.export()
        assert good.read("attention") == before
        assert not list(good.root.rglob("*.tmp"))


# ------------------------------------------------------------------------------------------------ the repository


def test_package_is_in_step(root: Path) -> None:
    assert export.main(["--check", "--root", str(root)]) == 0, "run `make export`"


def test_an_edit_of_any_module_is_noticed(root: Path) -> None:
    for path in sorted((root / "transformer").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert export.state(text) == "clean", path
        assert export.state(text.replace("return", "return ", 1) + " ") == "edited", path


def test_every_module_belongs_to_a_notebook(root: Path) -> None:
    modules, problems = export.read_all(root)
    assert not problems
    for module in modules:
        assert (root / module.notebook).is_file()
        assert importlib.import_module(f"transformer.{module.name}").__all__ == module.public
