"""Train the model that ships with the book, and write it into the package.

    python book/experiments/toy_translator.py           train, score, write transformer/pretrained
    python book/experiments/toy_translator.py --check   fail if the shipped model is older than the code that makes it

The recipe stands in the notebook of Section 6.1; this file runs its cells tagged "recipe".
"""

import argparse
import hashlib
import sys
import tempfile
import time
from datetime import UTC, datetime
from typing import Any

import jupytext
import torch
from recording import ROOT, code_hash, commit, machine

from transformer.checkpoints import read_description
from transformer.translator import Translator

NOTEBOOK = ROOT / "notebooks/06_1c_machine_translation.py"
TARGET = ROOT / "transformer/pretrained"
# What makes the model what it is. A change of any of these asks for a new training.
ROOMS = (
    "attention", "multi_head", "masks", "feed_forward", "layers", "embeddings", "positional_encoding", "model",
    "lexicon", "corpus", "data", "schedule", "loss", "distributed", "training", "checkpoints",
)  # fmt: skip


def recipe() -> str:
    """The notebook's cells that are tagged "recipe"."""
    cells = jupytext.read(NOTEBOOK).cells
    return "\n\n".join(cell.source for cell in cells if "recipe" in cell.metadata.get("tags", []))


def code() -> dict[str, str]:
    """The hash of every room the model depends on, and of the recipe."""
    hashes = {f"transformer/{room}.py": code_hash(ROOT / f"transformer/{room}.py") for room in ROOMS}
    return {**hashes, "recipe": hashlib.sha256(recipe().encode()).hexdigest()}


def outdated() -> list[str]:
    """What has changed since the shipped model was made."""
    then, now = read_description(TARGET)["about"]["code"], code()
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def main() -> int:
    """Train and write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if the model is out of date")
    if parser.parse_args().check:
        changed = outdated()
        if changed:
            print(
                f"the shipped model is older than {', '.join(changed)}; run python book/experiments/toy_translator.py"
            )
        return int(bool(changed))
    names: dict[str, Any] = {}
    exec(compile(recipe(), NOTEBOOK.name, "exec"), names)  # the cells of our own notebook
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
