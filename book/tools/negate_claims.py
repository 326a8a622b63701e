"""Negate ten claims of the ledger, one at a time, and show that the check of each then fails.

    python book/tools/negate_claims.py
    python book/tools/negate_claims.py 3.2.1-equation-1 5.3-adam

It works in a copy of the repository that is removed afterwards. A negation replaces one piece of text: in the exported
module, in the notebook whose definition the check uses, or in the number it compares with. The check is run before and
after. For a test, pytest runs it. For a section of a notebook, all cells up to the end of that section run in one
process, and what fails must be the assertion that the ledger names. The exit status is 1 if a check fails without the
negation, or passes with it. It takes about two minutes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ledger_of_claims import code_of, find_section, read_claims

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("book/paper", "book/results", "book/tools", "notebooks", "tests", "transformer", "pyproject.toml")


class Negation(NamedTuple):
    """One claim made false: a piece of text of a file, and what takes its place."""

    what: str
    file: str
    old: str
    new: str


NEGATIONS = {
    "3.1-post-norm": Negation(
        "no normalization after the sum",
        "notebooks/03_1_encoder_and_decoder_stacks.py",
        "return x if pre else self.norm(x)",
        "return x",
    ),
    "3.1-known-outputs": Negation(
        "the decoder's mask off",
        "transformer/layers.py",
        "is_causal=tgt_mask is None",
        "is_causal=False",
    ),
    "3.2.1-equation-1": Negation(
        "no division by √d_k",
        "notebooks/03_2_1_scaled_dot_product_attention.py",
        "scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)",
        "scores = query @ key.transpose(-2, -1)",
    ),
    "3.3-equation-2": Negation(
        "no ReLU",
        "notebooks/03_3_feed_forward_networks.py",
        "return self.w_2(self.w_1(x).relu())",
        "return self.w_2(self.w_1(x))",
    ),
    "3.4-shared": Negation(
        "three matrices in place of one",
        "transformer/model.py",
        "tie_embeddings: bool = True",
        "tie_embeddings: bool = False",
    ),
    "3.5-formula": Negation(
        "1000 in place of 10000",
        "transformer/positional_encoding.py",
        "frequency = 10000.0 **",
        "frequency = 1000.0 **",
    ),
    "5.3-adam": Negation(
        "β₂ = 0.999",
        "transformer/schedule.py",
        "betas=(0.9, 0.98)",
        "betas=(0.9, 0.999)",
    ),
    "5.3-equation-3": Negation(
        "the larger of the two terms",
        "notebooks/05_3_optimizer.py",
        "return float(d_model**-0.5 * min(",
        "return float(d_model**-0.5 * max(",
    ),
    "6.1-longest-output": Negation(
        "100 tokens more than the source",
        "transformer/decoding.py",
        "EXTRA_TOKENS = 50",
        "EXTRA_TOKENS = 100",
    ),
    "6.1-cost": Negation(
        "10.6 TFLOPS for a P100",
        "notebooks/05_2b_the_cost_of_training.py",
        '"P100": 9.5}',
        '"P100": 10.6}',
    ),
}


def apply(negation: Negation, tree: Path) -> str:
    """Make the claim false in a tree; give the old text of the file.

    Raises:
        ValueError: The text to replace is not there once.
    """
    path = tree / negation.file
    text = path.read_text(encoding="utf-8")
    if text.count(negation.old) != 1:
        raise ValueError(
            f"{negation.file} has {negation.old!r} {text.count(negation.old)} times; it must stand there once."
        )
    path.write_text(text.replace(negation.old, negation.new), encoding="utf-8")
    return text


def copy_repository(tree: Path, parts: Iterable[str] = PARTS) -> None:
    """Copy these parts of the repository into a tree."""
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, tree / part)


def run(command: list[str], folder: Path, tree: Path) -> tuple[int, str]:
    """Run Python in a folder, with the package of a tree: exit status and all output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def run_test(where: str, tree: Path) -> str:
    """Run a test of a tree: "passes", "fails", or what else happened."""
    code, output = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", where], tree, tree)
    return {0: "passes", 1: "fails"}.get(code, f"breaks: {output.strip()[-300:]}")


def run_section(claim: dict[str, Any], tree: Path) -> str:
    """Run a notebook of a tree up to the end of a section: "passes", "fails" at the claim's assertion, or what else."""
    path, section = find_section(tree, claim["where"])
    with tempfile.TemporaryDirectory(prefix="cells-") as folder:
        script = Path(folder) / "cells.py"
        script.write_text("\n\n".join(code_of(path)[: section.last]) + "\n", encoding="utf-8")
        code, output = run([script.name], Path(folder), tree)
        lines = script.read_text(encoding="utf-8").splitlines()
    if code == 0:
        return "passes"
    traced = [lines[int(number) - 1].strip() for number in re.findall(r'cells\.py", line (\d+)', output)]
    if "\nAssertionError" in output and any(line.startswith(claim["asserts"]) for line in traced):
        return "fails"
    return f"breaks: {output.strip()[-300:]}"


def check(claim: dict[str, Any], tree: Path) -> str:
    """Run a claim's check in a tree."""
    return run_test(claim["where"], tree) if claim["where"].startswith("tests/") else run_section(claim, tree)


def main(arguments: list[str] | None = None) -> int:
    """Negate the claims named on the command line, or all ten."""
    parser = argparse.ArgumentParser(description="Negate claims of the ledger and show that their checks fail.")
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of {', '.join(NEGATIONS)}")
    names = parser.parse_args(arguments).claims or list(NEGATIONS)
    unknown = sorted(set(names) - set(NEGATIONS))
    if unknown:
        parser.error(f"no negation of {', '.join(unknown)}; there are {', '.join(NEGATIONS)}")
    claims = {claim["id"]: claim for claim in read_claims(ROOT)}
    started, good = time.perf_counter(), True
    print(f"{'claim':20} {'negation':34} {'before':7} {'after':7} check")
    with tempfile.TemporaryDirectory(prefix="negated-") as folder:
        tree = Path(folder)
        copy_repository(tree)
        for name in names:
            before = check(claims[name], tree)
            text = apply(NEGATIONS[name], tree)
            after = check(claims[name], tree)
            (tree / NEGATIONS[name].file).write_text(text, encoding="utf-8")
            good = good and (before, after) == ("passes", "fails")
            print(f"{name:20} {NEGATIONS[name].what:34} {before:7} {after:7} {claims[name]['where']}", flush=True)
    verdict = "as it should be" if good else "NOT as it should be"
    print(f"{len(names)} claims negated in {time.perf_counter() - started:.0f} s: {verdict}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
