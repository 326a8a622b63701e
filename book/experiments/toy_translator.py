"""Train the model that ships with the book, and write it into the package.

    python book/experiments/toy_translator.py           train, score, write transformer/pretrained
    python book/experiments/toy_translator.py --check   fail if the shipped model is older than the code that makes it
    python book/experiments/toy_translator.py --confirm
        after a change of code that is not meant to change the model: train with the code of then and with today's; if
        both make the same weights, bit for bit, say so in the shipped model's record and leave its weights alone

The recipe stands in the notebook of Section 6.1; this file runs its cells tagged "recipe".
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jupytext
import torch
from recording import ROOT, code_hash, commit, machine

from transformer.checkpoints import CONFIG_FILE, load_checkpoint, read_description, write_atomically
from transformer.translator import Translator

NOTEBOOK = "notebooks/06_1c_machine_translation.py"
TARGET = ROOT / "transformer/pretrained"
# What makes the model what it is. A change of any of these asks for a new training.
ROOMS = (
    "attention", "multi_head", "masks", "feed_forward", "layers", "embeddings", "positional_encoding", "model",
    "lexicon", "corpus", "data", "schedule", "loss", "distributed", "training", "checkpoints",
)  # fmt: skip


def recipe(root: Path = ROOT) -> str:
    """The notebook's cells that are tagged "recipe"."""
    cells = jupytext.read(root / NOTEBOOK).cells
    return "\n\n".join(cell.source for cell in cells if "recipe" in cell.metadata.get("tags", []))


def code() -> dict[str, str]:
    """The hash of every room the model depends on, and of the recipe."""
    hashes = {f"transformer/{room}.py": code_hash(ROOT / f"transformer/{room}.py") for room in ROOMS}
    return {**hashes, "recipe": hashlib.sha256(recipe().encode()).hexdigest()}


def outdated() -> list[str]:
    """What has changed since the shipped model was made."""
    then, now = read_description(TARGET)["about"]["code"], code()
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


# Trains as the recipe on standard input says, and writes the model into a folder.
TRAIN = """
import sys, tempfile
from transformer.checkpoints import save_checkpoint
names = {}
exec(sys.stdin.read(), names)
with tempfile.TemporaryDirectory() as run:
    save_checkpoint(sys.argv[1], names["train_toy_translator"](run)[0])
"""


def train_with(root: Path, out: Path) -> dict[str, torch.Tensor]:
    """The weights that the recipe and the modules in a checkout make, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", TRAIN, str(out)]
    subprocess.run(command, input=recipe(root), text=True, cwd=root, env=environment, check=True)
    return load_checkpoint(out).state_dict()


def then_and_now(commit: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights that the code of a commit and the present code make on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), commit], check=True)
        try:
            with ThreadPoolExecutor() as threads:  # each waits for a process
                old, new = threads.map(train_with, (before, ROOT), (Path(folder) / "old", Path(folder) / "new"))
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    return old, new


def confirm() -> int:
    """Say in the shipped model's record that the present code makes it too, if it does."""
    description, hashes = read_description(TARGET), code()
    at = commit([f"transformer/{room}.py" for room in ROOMS])
    old, new = then_and_now(description["about"]["commit"])
    if old.keys() != new.keys() or not all(old[name].equal(new[name]) for name in old):
        print("the present code makes other weights; run python book/experiments/toy_translator.py")
        return 1
    description["about"]["confirmed"] = {
        "command": "python book/experiments/toy_translator.py --confirm",
        "commit": at,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
    }
    description["about"]["code"] = hashes
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    write_atomically(TARGET / CONFIG_FILE, text.encode())
    print("the present code makes the same weights, bit for bit; the shipped model stays")
    return 0


def main() -> int:
    """Train and write, check, or confirm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if the model is out of date")
    parser.add_argument("--confirm", action="store_true", help="keep the model if old and new code make the same one")
    options = parser.parse_args()
    if options.confirm:
        return confirm()
    if options.check:
        changed = outdated()
        if changed:
            print(
                f"the shipped model is older than {', '.join(changed)}; run python book/experiments/toy_translator.py "
                "(with --confirm if the change is not meant to change the model)"
            )
        return int(bool(changed))
    names: dict[str, Any] = {}
    exec(compile(recipe(), NOTEBOOK, "exec"), names)  # the cells of our own notebook
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as run:
        model, tokenizer, records = names["train_toy_translator"](run)
    seconds = round(time.perf_counter() - started)
    Translator(model, tokenizer).save(TARGET, dtype=torch.float16)
    shipped = Translator.from_pretrained(TARGET, "cpu")  # what is scored is what is shipped: the rounded weights
    scores = {split: names["score"](shipped, split)[0] for split in ("test", "compositional", "long")}
    shipped.save(
        TARGET,
        dtype=torch.float16,
        command="python book/experiments/toy_translator.py",
        commit=commit([f"transformer/{room}.py" for room in ROOMS]),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=machine(),
        seeds={"corpus": 0, "weights": 0, "training": names["TRAINING"].seed},
        updates=names["TRAINING"].steps,
        target_tokens_per_second=round(sum(r.target_tokens for r in records) / sum(r.seconds for r in records)),
        seconds=seconds,
        scores=scores,
        code=code(),
    )
    print(f"{seconds} s; {scores}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
