"""Section 6.2: Table 3 in miniature, every row with three seeds.

    python book/experiments/variations.py

The base is the paper's divided by eight, with three layers, on short sentences of the embedded corpus. Every row makes
equally many updates on the same batches; base stops at about 80 % exact match, so that there is room to be better and
to be worse. As in the paper there is beam search and no averaging of checkpoints.
"""

from functools import cache
from itertools import islice
from typing import Any

import torch
from recording import record

from transformer.corpus import SentencePair, embedded_corpus
from transformer.data import TokenBatches, Tokenizer, make_batch
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.scoring import bleu
from transformer.training import TrainingConfig, train
from transformer.translator import Translator
from transformer.variations import table3

SEEDS = (1, 2, 3)
VOCAB_SIZE, MAX_WORDS, N_PAIRS, N_TEST = 1_000, 7, 10_000, 500
BASE = TransformerConfig.tiny(VOCAB_SIZE, d_model=64, d_ff=256, n_heads=8, n_layers=3, max_len=128)
MAX_TOKENS, STEPS, WARMUP = 700, 1_200, 330


def sentences(split: str, number: int) -> list[SentencePair]:
    """The first pairs of a split with at most MAX_WORDS English words: small models learn them within minutes."""
    return list(islice((p for p in embedded_corpus(split, seed=0) if len(p.source_words) <= MAX_WORDS), number))


@cache
def corpus() -> tuple[Tokenizer, list[tuple[list[int], list[int]]], dict[str, list[SentencePair]]]:
    """The tokenizer and the training pairs, the same for all runs, and the unseen sentences of each split."""
    pairs = sentences("train", N_PAIRS)
    tokenizer = Tokenizer.train([line for pair in pairs for line in (pair.source, pair.target)], VOCAB_SIZE)
    sources, targets = ([getattr(pair, side) for pair in pairs] for side in ("source", "target"))
    ids = list(zip(tokenizer.encode_lines(sources), tokenizer.encode_lines(targets), strict=True))
    return tokenizer, ids, {split: sentences(split, N_TEST) for split in ("test", "compositional")}


@torch.inference_mode()
def perplexity(model: Transformer, tokenizer: Tokenizer, pairs: list[SentencePair]) -> float:
    """Per piece, without smoothing."""
    loss_function, nll, tokens = LabelSmoothingLoss(reduction="sum"), 0.0, 0
    for start in range(0, len(pairs), 100):
        some = pairs[start : start + 100]
        batch = make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in some])
        nll += loss_function.nll(model(batch.src, batch.tgt_in), batch.tgt_out).item()
        tokens += batch.n_tokens
    return torch.tensor(nll / tokens).exp().item()


def measure(model: Transformer, tokenizer: Tokenizer, pairs: list[SentencePair]) -> dict[str, float]:
    """Perplexity, BLEU and exact match (in percent) of a beam of four."""
    outputs = Translator(model, tokenizer).translate([pair.source for pair in pairs])
    references = [pair.target for pair in pairs]
    exact = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return {
        "perplexity": round(perplexity(model, tokenizer, pairs), 4),
        "bleu": round(bleu(hypotheses=outputs, references=references).value, 2),
        "exact_match": round(100 * exact / len(pairs), 2),
    }


def run(row: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one row once and measure it on unseen sentences."""
    (variation,) = [variation for variation in table3(BASE) if variation.name == row]
    tokenizer, pairs, unseen = corpus()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Transformer(variation.config)
    config = TrainingConfig(
        steps, WARMUP, variation.label_smoothing, seed=seed, log_every=steps, device="cpu", progress=False
    )
    records = train(model, TokenBatches(pairs, MAX_TOKENS, seed), config)
    return {
        "parameters": count_parameters(model),
        "training_perplexity": round(records[-1].perplexity, 4),
        **{split: measure(model, tokenizer, some) for split, some in unseen.items()},
    }


if __name__ == "__main__":
    runs = {
        f"{variation.name}, seed {seed}": {"row": variation.name, "seed": seed, "steps": STEPS}
        for seed in SEEDS
        for variation in table3(BASE)
    }
    record(__file__, runs, run)
