"""Section 5.3: train the tiny model with the paper's warm-up and without it.

    python book/experiments/warmup.py

Post-norm, short sentences of the embedded corpus, the paper's optimizer and loss. Four schedules, three seeds each:

- "warm-up": the paper's formula;
- "warmup_steps = 1": the same formula with nothing to warm up, so the first rate is d_model^-0.5;
- "same peak": the highest rate of the first schedule from the first update on, and its rates after the warm-up;
- "a tenth of it": a tenth of "same peak".
"""

import math
from functools import cache
from itertools import islice
from typing import Any

import torch
from recording import record

from transformer.corpus import SentencePair, embedded_corpus
from transformer.data import EOS_ID, PAD_ID, Batch, TokenBatches, Tokenizer, make_batch
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, TransformerConfig
from transformer.schedule import make_adam, noam_rate

STEPS, WARMUP, WINDOW = 360, 200, 10
MAX_WORDS, N_PAIRS, N_HELD_OUT, VOCAB_SIZE, MAX_TOKENS = 9, 6_000, 500, 1_000, 450
SCHEDULES = {
    "warm-up": lambda step, d_model: noam_rate(step, d_model, WARMUP),
    "warmup_steps = 1": lambda step, d_model: noam_rate(step, d_model, 1),
    "same peak": lambda step, d_model: noam_rate(max(step, WARMUP), d_model, WARMUP),
    "a tenth of it": lambda step, d_model: noam_rate(max(step, WARMUP), d_model, WARMUP) / 10,
}


def sentences(split: str, seed: int, number: int) -> list[SentencePair]:
    """Pairs of at most MAX_WORDS English words: a model of this size learns them within minutes."""
    return list(islice((p for p in embedded_corpus(split, seed) if len(p.source_words) <= MAX_WORDS), number))


@cache
def corpus() -> tuple[Tokenizer, list[tuple[list[int], list[int]]], list[Batch]]:
    """The tokenizer, the training pairs as ids, and held-out batches: the same for all runs."""
    pairs = sentences("train", 1, N_PAIRS)
    tokenizer = Tokenizer.train([line for pair in pairs for line in (pair.source, pair.target)], VOCAB_SIZE)
    ids = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs]
    held_out = [(tokenizer.encode(p.source), tokenizer.encode(p.target)) for p in sentences("dev", 1, N_HELD_OUT)]
    return tokenizer, ids, [make_batch(held_out[i : i + 100]) for i in range(0, len(held_out), 100)]


@cache
def without_looking() -> float:
    """The held-out loss of who knows how frequent each token is, and nothing else."""
    tokenizer, pairs, held_out = corpus()
    counts = torch.ones(len(tokenizer))  # each token once more than seen, so that none is impossible
    for _, target in pairs:
        for token in (*target, EOS_ID):
            counts[token] += 1
    tokens = torch.cat([batch.tgt_out[batch.tgt_out != PAD_ID] for batch in held_out])
    return round(-(counts / counts.sum()).log()[tokens].mean().item(), 4)


def run(schedule: str, seed: int, norm_order: str, steps: int) -> dict[str, Any]:
    """Train once; the loss is without smoothing, in nats per target token."""
    tokenizer, pairs, held_out = corpus()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig.tiny(len(tokenizer), norm_order=norm_order))
    optimizer, loss_function = make_adam(model), LabelSmoothingLoss(0.1, reduction="sum")
    losses, total, count = [], 0.0, 0
    for step, batch in enumerate(islice(TokenBatches(pairs, MAX_TOKENS, seed), steps), 1):
        for group in optimizer.param_groups:
            group["lr"] = SCHEDULES[schedule](step, model.config.d_model)
        logits = model(batch.src, batch.tgt_in)
        optimizer.zero_grad()
        (loss_function(logits, batch.tgt_out) / batch.n_tokens).backward()
        optimizer.step()
        total += loss_function.nll(logits.detach(), batch.tgt_out).item()
        count += batch.n_tokens
        if step % WINDOW == 0:
            losses.append(round(total / count, 4) if math.isfinite(total) else None)
            total, count = 0.0, 0
    model.eval()
    with torch.inference_mode():
        nll = sum(loss_function.nll(model(b.src, b.tgt_in), b.tgt_out).item() for b in held_out)
    nll /= sum(batch.n_tokens for batch in held_out)
    return {"window": WINDOW, "losses": losses, "held_out": round(nll, 4), "without_looking": without_looking()}


if __name__ == "__main__":
    runs = {
        f"{schedule}, seed {seed}": {"schedule": schedule, "seed": seed, "norm_order": "post", "steps": STEPS}
        for seed in (1, 2, 3)
        for schedule in SCHEDULES
    }
    record(__file__, runs, run)
