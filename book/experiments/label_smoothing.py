"""Section 5.4: train the tiny model with label smoothing and without it.

    python book/experiments/label_smoothing.py

Short sentences of the embedded corpus, and only a few thousand of them, read many times over: smoothing is a
regularizer, and in an endless stream of fresh sentences there is nothing to regularize. Each seed draws its own
sentences, model, order and dropout, and is run with ε = 0.1 and with ε = 0. Everything is measured on sentences that no
run has seen.
"""

from functools import cache
from itertools import islice
from typing import Any

import torch
from recording import record
from sacrebleu.metrics import BLEU

from transformer.corpus import SentencePair, embedded_corpus
from transformer.data import TokenBatches, Tokenizer, make_batch
from transformer.decoding import greedy_decode
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, TransformerConfig
from transformer.training import TrainingConfig, train

STEPS, WARMUP, SEEDS = 900, 300, (1, 2, 3, 4, 5)
MAX_WORDS, N_PAIRS, N_TEST, VOCAB_SIZE, MAX_TOKENS = 9, 4_000, 500, 1_000, 450


def sentences(split: str, seed: int, number: int) -> list[SentencePair]:
    """Pairs of at most MAX_WORDS English words: a model of this size learns them within minutes."""
    return list(islice((p for p in embedded_corpus(split, seed) if len(p.source_words) <= MAX_WORDS), number))


@cache
def corpus(seed: int) -> tuple[Tokenizer, list[tuple[list[int], list[int]]], list[SentencePair]]:
    """A tokenizer and training pairs of this seed's own, and the test sentences, the same for all."""
    pairs = sentences("train", seed, N_PAIRS)
    tokenizer = Tokenizer.train([line for pair in pairs for line in (pair.source, pair.target)], VOCAB_SIZE)
    ids = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs]
    return tokenizer, ids, sentences("test", 1, N_TEST)


@torch.inference_mode()
def measure(model: Transformer, tokenizer: Tokenizer, pairs: list[SentencePair]) -> dict[str, float]:
    """Perplexity, accuracy and BLEU (the last two in percent) on these pairs."""
    loss_function = LabelSmoothingLoss(reduction="sum")
    nll = right = tokens = confidence = 0.0
    hypotheses = []
    for start in range(0, len(pairs), 100):
        some = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs[start : start + 100]]
        batch = make_batch(some)
        real = batch.tgt_out != 0
        logits = model(batch.src, batch.tgt_in)
        nll += loss_function.nll(logits, batch.tgt_out).item()
        right += (logits.argmax(-1) == batch.tgt_out)[real].sum().item()
        confidence += logits.softmax(-1).amax(-1)[real].sum().item()
        tokens += batch.n_tokens
        hypotheses += [tokenizer.decode(ids) for ids in greedy_decode(model, batch.src)]
    references = [pair.target for pair in pairs]
    return {
        "perplexity": round(torch.tensor(nll / tokens).exp().item(), 4),
        "token_accuracy": round(100 * right / tokens, 2),
        "confidence": round(100 * confidence / tokens, 2),
        "exact_match": round(100 * sum(a == b for a, b in zip(hypotheses, references)) / len(pairs), 2),
        "bleu": round(BLEU().corpus_score(hypotheses, [references]).score, 2),
    }


def run(label_smoothing: float, seed: int, steps: int) -> dict[str, Any]:
    """Train once and measure on unseen sentences."""
    tokenizer, pairs, unseen = corpus(seed)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig.tiny(len(tokenizer)))
    config = TrainingConfig(
        steps, WARMUP, label_smoothing, seed=seed, log_every=steps, device="cpu", progress=False
    )
    records = train(model, TokenBatches(pairs, MAX_TOKENS, seed), config)
    return {"training_perplexity": round(records[-1].perplexity, 4), **measure(model, tokenizer, unseen)}


if __name__ == "__main__":
    runs = {
        f"ε = {epsilon}, seed {seed}": {"label_smoothing": epsilon, "seed": seed, "steps": STEPS}
        for seed in SEEDS
        for epsilon in (0.1, 0.0)
    }
    record(__file__, runs, run)
