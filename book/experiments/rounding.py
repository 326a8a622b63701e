"""Section 6.1: train the model that ships with the book once more, and score it before and after rounding to 16 bits.

    python book/experiments/rounding.py

The recipe is that of the notebook of Section 6.1. The package ships rounded weights only, so this says what rounding
costs; "same" tells whether these rounded weights are, bit for bit, the shipped ones.
"""

import tempfile
from typing import Any

import torch
from recording import record
from toy_translator import NOTEBOOK, recipe

from transformer.translator import Translator, load_toy_translator


def run(seed: int) -> dict[str, Any]:
    """Train, score, round, score again."""
    torch.set_num_threads(1)
    names: dict[str, Any] = {}
    exec(compile(recipe(), NOTEBOOK.name, "exec"), names)  # the cells of our own notebook
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, _ = names["train_toy_translator"](folder)
    translator = Translator(model, tokenizer)
    before = {split: names["score"](translator, split)[0] for split in ("test", "compositional", "long")}
    model.half().float()
    after = {split: names["score"](translator, split)[0] for split in before}
    shipped = load_toy_translator().model.state_dict()
    same = all(torch.equal(value, shipped[name]) for name, value in model.state_dict().items())
    return {"float32": before, "float16": after, "same": same}


if __name__ == "__main__":
    record(__file__, {"recipe": {"seed": 0}}, run)
