"""Section 6.1: everyday sentences of Tatoeba, English to German, with the command line alone.

    TRANSFORMER_DATA=FOLDER python book/experiments/tatoeba.py

The folder must hold tatoeba/train.en.gz, val.en and test.en, and the same with .de, line by line. About an hour on one
core.
"""

import os

from real_text import run
from recording import record


def options() -> list[str]:
    """Options of `transformer prepare`."""
    folder = os.environ["TRANSFORMER_DATA"]
    files = {"--train": "train.{}.gz", "--dev": "val.{}", "--test": "test.{}"}
    pairs = [
        [option, *(f"{folder}/tatoeba/{name.format(side)}" for side in ("en", "de"))] for option, name in files.items()
    ]
    return [*(word for pair in pairs for word in pair), "--vocab-size", "6000"]


if __name__ == "__main__":
    arguments = {"name": "tatoeba", "configuration": "book/experiments/tatoeba.json", "seed": 0}
    record(__file__, {"tatoeba, seed 0": arguments}, lambda **given: run(prepare=options(), **given))
