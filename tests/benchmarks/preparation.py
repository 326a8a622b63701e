"""Preparation: text to ids.

- "encode": `Tokenizer.encode_lines` against SentencePiece's own batch API with the same model, on all cores.
- "prepare": all of `prepare` on a million pairs, for its time and memory: cleaning, learning the vocabulary, encoding.

The text is made up, so that it is the same everywhere and nobody's: pseudo-words of syllables, frequent ones short,
drawn as natural text draws its words (Zipf), in sentences as long as those of newstest2014.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contest, main
from lengths import read_lengths

from transformer.data import Tokenizer
from transformer.downloads import Corpus
from transformer.preparation import prepare


def make_lines(number: int, n_words: int = 200_000, seed: int = 0) -> Iterator[str]:
    """Lines of made-up text."""
    random = np.random.default_rng(seed)
    n_text = min(2_000_000, 1_000 + 30 * number)  # words of a book, from which lines are cut
    n_words = min(n_words, n_text)
    ranks = np.arange(1, n_words + 1)
    syllables = np.array([f"{a}{b}{c}" for a in "bdfgklmnprstvwz" for b in "aeiou" for c in ("", "n", "r", "s")])
    sizes = 1 + (np.log(ranks) / 4).astype(int)  # 1 to 4 syllables a word
    drawn = np.split(random.choice(syllables, sizes.sum()), np.cumsum(sizes)[:-1])
    words = np.array(["".join(word) for word in drawn], dtype=object)
    book = words[random.choice(n_words, n_text, p=1 / ranks / (1 / ranks).sum())]
    lengths = np.array([(source + target) // 2 for source, target in read_lengths("newstest2014")])
    lengths = np.maximum(1, random.choice(lengths, number) * 4 // 5)  # there are more pieces than words
    for start, length in zip(random.integers(len(book) - lengths.max(), size=number), lengths, strict=True):
        yield " ".join(book[start : start + length]) + "."


def contest(task: str = "encode", n_pairs: int = 20_000, vocab_size: int = 37_000, seed: int = 0) -> Contest:
    """Encode both sides of this many pairs, or prepare them from files to files."""
    if task == "prepare":
        return Contest({"ours": lambda: _preparer(n_pairs, vocab_size, seed)}, [None])
    lines = list(make_lines(2 * n_pairs, seed=seed))
    tokenizer = Tokenizer.train(lines, vocab_size)

    def sentencepiece() -> Any:
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_proto=tokenizer.model)
        return lambda lines: pieces.encode(lines, num_threads=-1)  # all cores, as ours does

    chunks = [lines[start::4] for start in range(4)]
    n_tokens = sum(map(len, tokenizer.encode_lines(lines)))
    return Contest({"ours": lambda: tokenizer.encode_lines, "SentencePiece": sentencepiece}, chunks, n_tokens)


def _preparer(n_pairs: int, vocab_size: int, seed: int) -> Callable[[None], None]:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = [Path(folder) / side for side in ("source", "target")]
    for i, path in enumerate(paths):
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in make_lines(n_pairs, seed=seed + i))
    corpus = Corpus("made-up", "en", "de", ((paths[0], paths[1]),))

    def run(_: None) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as target:
            prepare(corpus, f"{target}/prepared", vocab_size, progress=False)

    return run


if __name__ == "__main__":
    main(contest)
