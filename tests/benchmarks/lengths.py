"""Lengths of real sentence pairs in pieces: numbers only, so that batches are shaped like real ones without any text.

    TRANSFORMER_TEST_DATA=folder python tests/benchmarks/lengths.py

writes lengths.json anew. The folder holds Multi30k and the news tests as plain files, one sentence a line. Lengths are
counted without begin and end.

- "multi30k": the 1,000 pairs of test_2016_flickr in 8,000 pieces learned from Multi30k's training text;
- "newstest2014": every third of the 3,003 pairs in 37,000 pieces learned from the other news tests and the rest.
"""

import json
import os
from pathlib import Path

import numpy as np

from transformer.data import Tokenizer
from transformer.preparation import read_lines, read_pairs

FILE = Path(__file__).with_name("lengths.json")
PIECES = {"multi30k": 8_000, "newstest2014": 37_000}
TRAINING = {
    "multi30k": ["multi30k/train"],
    "newstest2014": ["newstest/newstest20??", "newstest/newstest201[56].en-de", "tatoeba/train", "multi30k/train",
                     "libreoffice-help/all", "debian-handbook/all", "mlqe-pe/train"],
}  # fmt: skip
TESTS = {"multi30k": ("multi30k/test_2016_flickr", 1), "newstest2014": ("newstest/newstest2014.en-de", 3)}


def read_lengths(work: str) -> list[tuple[int, int]]:
    """The lengths of (source, target) of "multi30k" or "newstest2014"."""
    return [(source, target) for source, target in json.loads(FILE.read_text(encoding="utf-8"))[work]]


def random_pairs(
    work: str, vocab_size: int, number: int | None = None, seed: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Pairs of random ids with lengths like those of real pairs.

    Args:
        work: "multi30k" or "newstest2014".
        vocab_size: Ids are drawn from 4 up to this.
        number: Of pairs, their lengths drawn with replacement; None for the measured pairs, each once.
        seed: Of all drawing.

    Returns:
        (source ids, target ids), without begin and end.
    """
    random = np.random.default_rng(seed)
    lengths = read_lengths(work)
    if number is not None:
        lengths = [lengths[i] for i in random.integers(len(lengths), size=number)]
    return [
        (random.integers(4, vocab_size, source).tolist(), random.integers(4, vocab_size, target).tolist())
        for source, target in lengths
    ]


def main() -> None:
    """Write the file."""
    data, result = Path(os.environ["TRANSFORMER_TEST_DATA"]), {}
    for work, (test, every) in TESTS.items():
        ends = ("en", "de", "en.gz", "de.gz")
        paths = [path for name in TRAINING[work] for end in ends for path in sorted(data.glob(f"{name}.{end}"))]
        tokenizer = Tokenizer.train((line for path in paths for line in read_lines(path)), PIECES[work])
        pairs = list(read_pairs(data / f"{test}.en", data / f"{test}.de"))[::every]
        result[work] = [(len(tokenizer.encode(source)), len(tokenizer.encode(target))) for source, target in pairs]
    text = ",\n".join(f'"{work}": {json.dumps(pairs, separators=(",", ":"))}' for work, pairs in result.items())
    FILE.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
