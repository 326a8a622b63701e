"""Put every fault of the bug museum into the code, one at a time, and show that the test it names goes red.

    python book/tools/museum.py
    python book/tools/museum.py "mask inverted" "position always 0"

The faults stand in the notebook of Chapter 12, each as a call `Bug(…)` with literal arguments. The script works in a
copy of the package and its tests that is removed afterwards. All named tests must pass before; each must fail with its
fault, by what it asserts and not because the code no longer runs. The exit status is 1 if one does not. It takes
about a minute.
"""

import argparse
import ast
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
import torch._dynamo  # noqa: F401 - torch is loaded once, with what an optimizer's first step would load in each test
from ledger_of_claims import cells_of
from negate_claims import ROOT, Negation, apply, copy_repository, run

NOTEBOOK = ROOT / "notebooks" / "12_bug_museum.py"
PARTS = ("tests", "transformer", "pyproject.toml")
# Only what a test finds out counts. These say that the mutated code is not a program that anyone would run.
BROKEN = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError", "UnboundLocalError")
# One example that fails is enough: Hypothesis need not look for the smallest.
one_is_enough = [phase for phase in hypothesis.Phase if phase.name not in ("shrink", "explain")]
hypothesis.settings.register_profile(
    # The rest is as in tests/conftest.py.
    "red or not",
    phases=one_is_enough,
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
)


class Bug(NamedTuple):
    """A fault: a piece of text of a room, and what takes its place."""

    name: str
    room: str
    old: str
    new: str
    caught_by: str


def read_bugs(notebook: Path = NOTEBOOK) -> list[tuple[int, Bug]]:
    """Give the faults of a notebook, each with the number of its cell, Markdown counted.

    Raises:
        ValueError: An argument is no literal.
    """
    found: list[tuple[int, Bug]] = []
    for number, (kind, source) in enumerate(cells_of(notebook)):
        if kind != "code":
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Bug":
                values = [ast.literal_eval(argument) for argument in node.args]
                named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                found.append((number, Bug(*values, **named)))
    return found


def run_pytest(options: list[str], tree: Path) -> tuple[int, str]:
    """Run pytest in a tree: exit status and all output. Where processes can fork, torch need not be loaded anew."""
    options = ["-q", "-p", "no:cacheprovider", *options]
    if not hasattr(os, "fork"):
        return run(["-m", "pytest", *options], tree, tree)
    # Hypothesis is in memory already, which pytest would warn of.
    options += ["--hypothesis-profile=red or not", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 3  # pytest's own for an internal error
            try:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                os.chdir(tree)
                os.environ["PYTHONPATH"] = str(tree)
                sys.path.insert(0, str(tree))
                sys.dont_write_bytecode = True
                code = int(pytest.main(options))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        return code, file.read().decode("utf-8", errors="replace")


def red(test: str, tree: Path) -> str:
    """Run a test of a tree: "passes", the name of the error with which it fails, or what else happened."""
    # Plain: to show how two long lists differ may take pytest minutes, and nobody reads it here.
    code, output = run_pytest(["-x", "--tb=short", "--assert=plain", test], tree)
    if code == 0:
        return "passes"
    errors = re.findall(r"^E   +(?:\| +)*([\w.]*(?:Error|Exception|Failed|assert))\b", output, flags=re.MULTILINE)
    names = {error.rpartition(".")[2].replace("assert", "AssertionError") for error in errors}
    if code != 1 or not names or names & set(BROKEN):
        return f"breaks: {output.strip()[-300:]}"
    return sorted(names)[0]


def main(arguments: list[str] | None = None) -> int:
    """Put in the faults named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Put faults into the code and show that a test catches each.")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names of faults; all if there are none")
    parser.add_argument("--notebook", type=Path, default=NOTEBOOK, help="where the faults stand")
    options = parser.parse_args(arguments)
    bugs = {bug.name: bug for _, bug in read_bugs(options.notebook)}
    names = options.faults or list(bugs)
    unknown = sorted(set(names) - set(bugs))
    if unknown:
        parser.error(f"no fault {', '.join(unknown)}; there are {', '.join(bugs)}")
    started, escaped = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="museum-") as folder:
        tree = Path(folder)
        copy_repository(tree, PARTS)
        tests = sorted({bugs[name].caught_by for name in names})
        code, output = run_pytest(tests, tree)
        if code:
            print(f"without any fault the tests do not pass:\n{output.strip()[-2000:]}")
            return 1
        print(f"{len(tests)} tests pass without a fault\n{'fault':28} {'room':12} {'with it':16} test")
        for name in names:
            bug = bugs[name]
            negation = Negation(bug.name, f"transformer/{bug.room}.py", bug.old, bug.new)
            text = apply(negation, tree)
            result = red(bug.caught_by, tree)
            (tree / negation.file).write_text(text, encoding="utf-8")
            if result == "passes" or result.startswith("breaks"):
                escaped.append(name)
            print(f"{name:28} {bug.room:12} {result:16} {bug.caught_by}", flush=True)
    verdict = f"NOT caught: {', '.join(escaped)}" if escaped else "all caught"
    print(f"{len(names)} faults in {time.perf_counter() - started:.0f} s: {verdict}")
    return int(bool(escaped))


if __name__ == "__main__":
    sys.exit(main())
