"""Section 6.3: a Transformer that parses, trained on real trees that people made by hand.

    TRANSFORMER_TEST_DATA=FOLDER python book/experiments/parsing.py

The folder holds treebank-craft/{train,dev,test}.ptb.gz, articles of the CRAFT corpus (Colorado Richly Annotated Full
Text, University of Colorado Denver, CC BY 3.0), split as its makers do, and treebank-gum/test.ptb, articles of the GUM
corpus (Georgetown University) whose trees a program made, for a look at another kind of text. About 50 minutes on one
core; a run that was stopped goes on where its last checkpoint in build/experiments/parsing stands.

Source and target are written with one vocabulary: pieces of words, and one token for each bracket. So the target
repeats the sentence, with brackets in it. Copying is learned soon, and with it the place in the sentence to which a
bracket belongs; the first updates see short sentences only, which teach it sooner.
"""

import gzip
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from recording import ROOT, record

from transformer.checkpoints import average_checkpoints, list_checkpoints
from transformer.data import EOS_ID, TokenBatches, Tokenizer, pad
from transformer.decoding import beam_search, greedy_decode
from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.parsing import (
    PUNCTUATION,
    MajorityParser,
    Parsed,
    Tree,
    bracket_scores,
    brackets,
    clean_tree,
    linearize,
    parse_linearized,
    read_trees,
    right_branching,
)
from transformer.training import TrainingConfig, train

SETTINGS = {
    "seed": 0,
    "max_words": 40,
    "pieces": 2000,
    "model": {"d_model": 192, "n_layers": 2, "n_heads": 4, "d_ff": 512, "dropout": 0.1},
    "training": {"steps": 12_000, "warmup_steps": 600, "checkpoint_every": 250, "keep": 5, "evaluate_every": 1000},
    "max_tokens": 1000,
    "short_first": {"pieces": 16, "updates": 500},
    "beam": {"beam_size": 21, "alpha": 0.3},
}
EXTRA, WATCHED, BEAM_SENTENCES, LONGEST = 300, 250, 300, 70


def treebank(name: str) -> list[Tree]:
    """The clean trees of a file."""
    path = Path(os.environ["TRANSFORMER_TEST_DATA"]) / name
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        return [clean for tree in read_trees(file) if (clean := clean_tree(tree))]


class Codec:
    """Sentences and trees as ids. The brackets of the training trees stand behind the pieces."""

    def __init__(self, tokenizer: Tokenizer, trees: Sequence[Tree]) -> None:
        found = {token for tree in trees for token in linearize(tree) if token[0] in "()"}
        self.tokenizer, self.brackets = tokenizer, sorted(found)
        self.pieces = tokenizer.pieces(range(len(tokenizer)))
        self.ids = {token: len(tokenizer) + i for i, token in enumerate(self.brackets)}

    def __len__(self) -> int:
        return len(self.tokenizer) + len(self.brackets)

    def source(self, words: Sequence[str]) -> list[int]:
        """The pieces of a sentence."""
        return self.tokenizer.encode(" ".join(words))

    def target(self, tree: Tree) -> list[int]:
        """Brackets, and between them the pieces of the words."""
        return [
            i
            for event, node in tree.walk()
            for i in ([self.ids[event + node.label]] if event else self.tokenizer.encode(node.word))
        ]

    def parse(self, ids: Sequence[int], words: Sequence[str]) -> Parsed:
        """The tree that these target ids mean.

        Words that were left out or made up are found by comparing with the sentence, so that the words behind them stay
        in their phrases. The tree is cleaned like those of the treebank: a model that goes in circles opens the same
        phrase again and again.
        """
        tokens: list[str] = []
        for i in ids:
            piece = "" if i >= len(self.tokenizer) else self.pieces[i]
            if not piece:
                tokens.append(self.brackets[i - len(self.tokenizer)])
            elif piece.startswith("▁") or not tokens or tokens[-1][0] in "()":
                tokens.append(f"▁{piece}")
            else:
                tokens[-1] += piece
        written = [token.strip("▁") for token in tokens if token[0] not in "()"]
        fit = fitting(written, words)
        fitted = chain.from_iterable([token] if token[0] in "()" else next(fit) for token in tokens)
        found = parse_linearized(list(fitted), words)
        tree = clean_tree(found.tree) or found.tree
        return Parsed(tree, found.repaired or written != list(words) or tree != found.tree, found.flat)


def fitting(written: Sequence[str], words: Sequence[str]) -> Iterator[list[str]]:
    """For each written word, the word itself if it stands for one of the sentence, and those left out behind it."""
    counts = [0] * len(written)
    for _, start, end, first, last in SequenceMatcher(None, written, words, autojunk=False).get_opcodes():
        paired = min(end - start, last - first)
        for i in range(start, start + paired):
            counts[i] += 1
        if written:
            counts[max(0, start + paired - 1)] += last - first - paired
    return (["XX"] * count for count in counts)


Decode = Callable[[torch.Tensor, int], list[list[int]]]


def parse_all(trees: Sequence[Tree], codec: Codec, decode: Decode, batch: int) -> list[Parsed]:
    """Parse the words of these trees, those of similar length together."""
    sources = [codec.source(tree.words()) for tree in trees]
    order = sorted(range(len(trees)), key=lambda i: len(sources[i]))
    found: dict[int, Parsed] = {}
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        src = pad([[*sources[i], EOS_ID] for i in some])
        for i, ids in zip(some, decode(src, src.size(1) + EXTRA), strict=True):
            found[i] = codec.parse(ids, trees[i].words())
    return [found[i] for i in range(len(trees))]


def scores(trees: Sequence[Tree], parses: Sequence[Tree | Parsed]) -> dict[str, float]:
    """Brackets in percent, and the share of outputs that had to be mended."""
    guesses = [parse.tree if isinstance(parse, Parsed) else parse for parse in parses]
    found: dict[str, float] = {"sentences": len(trees)}
    found |= {name: round(value, 2) for name, value in bracket_scores(trees, guesses)._asdict().items()}
    if isinstance(parses[0], Parsed):
        found["repaired"] = round(100 * sum(parse.repaired for parse in parses) / len(parses), 2)
        found["flat"] = sum(parse.flat for parse in parses)
    return found


def by_length(trees: Sequence[Tree], parses: Sequence[Tree | Parsed], most: int) -> dict[str, dict[str, float]]:
    """Scores of all sentences and of those with at most so many words."""
    short = [i for i, tree in enumerate(trees) if len(tree.leaves()) <= most]
    return {
        "all": scores(trees, parses),
        "short": scores([trees[i] for i in short], [parses[i] for i in short]),
    }


def f1_by_length(trees: Sequence[Tree], parses: Sequence[Parsed]) -> list[dict[str, float]]:
    """F1 of the sentences of 1 to 10 words, of 11 to 20 and so on; the last group holds all longer ones."""
    groups: dict[int, list[int]] = {}
    for i, tree in enumerate(trees):
        groups.setdefault(min(len(tree.leaves()) - 1, LONGEST - 1) // 10 * 10 + 1, []).append(i)
    found = [(start, scores([trees[i] for i in some], [parses[i] for i in some])) for start, some in groups.items()]
    return [{"from": start, "sentences": score["sentences"], "f1": score["f1"]} for start, score in sorted(found)]


def commonest_labels(trees: Sequence[Tree]) -> list[str]:
    """The most frequent label of the whole, and of phrases that begin later and end with the last word."""
    inner: Counter[str] = Counter()
    for tree in trees:
        counts = [leaf.label not in PUNCTUATION for leaf in tree.leaves()]
        inner.update(label for label, start, end in brackets(tree, counts) if start > 0 and end == sum(counts))
    return [labels.most_common(1)[0][0] for labels in (Counter(tree.label for tree in trees), inner)]


def run(
    seed: int,
    max_words: int,
    pieces: int,
    model: dict[str, Any],
    training: dict[str, Any],
    max_tokens: int,
    short_first: dict[str, int],
    beam: dict[str, Any],
) -> dict[str, Any]:
    """Train once and measure on trees that were not used."""
    torch.set_num_threads(1)
    craft = {split: treebank(f"treebank-craft/{split}.ptb.gz") for split in ("train", "dev", "test")}
    known = [tree for tree in craft["train"] if len(tree.leaves()) <= max_words]
    tokenizer = Tokenizer.train([" ".join(tree.words()) for tree in known], pieces)
    codec = Codec(tokenizer, known)
    pairs = [(codec.source(tree.words()), codec.target(tree)) for tree in known]
    short = [pair for pair in pairs if len(pair[0]) <= short_first["pieces"]]
    watched = random.Random(seed).sample([tree for tree in craft["dev"] if len(tree.leaves()) <= max_words], WATCHED)

    def greedy(network: Transformer) -> Decode:
        return lambda src, most: greedy_decode(network, src, most)

    torch.manual_seed(seed)
    network = Transformer(TransformerConfig(len(codec), len(codec), **model))
    config = TrainingConfig(**training, seed=seed, log_every=500, device="cpu", progress=False)
    folder = ROOT / "build" / "experiments" / "parsing"
    records = train(
        network,
        chain(
            islice(TokenBatches(short, max_tokens, seed), short_first["updates"]), TokenBatches(pairs, max_tokens, seed)
        ),
        config,
        lambda network: {"f1": scores(watched, parse_all(watched, codec, greedy(network), 50))["f1"]},
        folder,
        resume=True,
    )
    network = average_checkpoints(list_checkpoints(folder)[-config.keep :])
    test, gum = craft["test"], treebank("treebank-gum/test.ptb")
    some = random.Random(seed).sample([tree for tree in test if len(tree.leaves()) <= max_words], BEAM_SENTENCES)
    parses = parse_all(test, codec, greedy(network), 50)
    beamed = parse_all(
        some, codec, lambda src, most: [h[0].ids for h in beam_search(network, src, **beam, max_new_tokens=most)], 10
    )
    root, inner = commonest_labels(known)
    majority = MajorityParser(craft["train"])
    branching = [right_branching(tree.words(), root, inner) for tree in test]
    return {
        "counts": {split: len(trees) for split, trees in craft.items()} | {"trained on": len(known), "gum": len(gum)},
        "parameters": count_parameters(network),
        "training_minutes": round(sum(r.seconds for r in records) / 60, 1),
        "curve": [{key: asdict(r)[key] for key in ("step", "perplexity", "target_tokens", "scores")} for r in records],
        "test, greedy": by_length(test, parses, max_words),
        "test, greedy, by length": f1_by_length(test, parses),
        "test, right-branching": {"labels": [root, inner]} | by_length(test, branching, max_words),
        "test, majority": by_length(test, [majority.parse(tree.words()) for tree in test], max_words),
        "sample, greedy": scores(some, parse_all(some, codec, greedy(network), 50)),
        "sample, beam": scores(some, beamed),
        "gum, greedy": by_length(gum, parse_all(gum, codec, greedy(network), 50), max_words),
        "gum, right-branching": by_length(gum, [right_branching(tree.words(), root, inner) for tree in gum], max_words),
        "examples": [{"gold": str(tree), "parsed": str(found.tree)} for tree, found in examples(test, parses)],
    }


def examples(trees: Sequence[Tree], parses: Sequence[Parsed]) -> list[tuple[Tree, Parsed]]:
    """The first few full sentences of nine to thirteen words."""
    pairs = zip(trees, parses, strict=True)
    return [pair for pair in pairs if pair[0].label == "S" and 9 <= len(pair[0].leaves()) <= 13][:4]


if __name__ == "__main__":
    record(__file__, {"CRAFT, seed 0": SETTINGS}, run)
