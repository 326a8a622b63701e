"""Section 5.3: train the tiny model with the paper's warm-up and without it.

    python book/experiments/warmup.py

Post-norm, the embedded corpus, the paper's optimizer and loss. Three schedules, three seeds each:

- "warm-up": the paper's formula;
- "same peak": the highest rate of that schedule from the first update on, and the same rates after the warm-up;
- "warmup_steps = 1": the paper's formula with nothing to warm up, so the first rate is d_model^-0.5.
"""

import math
from functools import cache
from itertools import islice
from typing import Any

import torch
from recording import record

from transformer.corpus import embedded_corpus
from transformer.data import Batch, TokenBatches, Tokenizer, make_batch
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, TransformerConfig
from transformer.schedule import make_adam, noam_rate

STEPS, WARMUP, WINDOW = 500, 200, 10
N_PAIRS, VOCAB_SIZE, MAX_TOKENS = 12_000, 1_000, 1_200
SCHEDULES = {
    "warm-up": lambda step, d_model: noam_rate(step, d_model, WARMUP),
    "same peak": lambda step, d_model: noam_rate(max(step, WARMUP), d_model, WARMUP),
    "warmup_steps = 1": lambda step, d_model: noam_rate(step, d_model, 1),
}


@cache
def corpus() -> tuple[Tokenizer, list[tuple[list[int], list[int]]], list[Batch]]:
    """The tokenizer, the training pairs as ids, and held-out batches: the same for all runs."""
    pairs = list(islice(embedded_corpus("train", seed=1), N_PAIRS))
    tokenizer = Tokenizer.train([line for pair in pairs for line in (pair.source, pair.target)], VOCAB_SIZE)
    held_out = [(tokenizer.encode(p.source), tokenizer.encode(p.target)) for p in islice(embedded_corpus("dev"), 512)]
    batches = [make_batch(held_out[i : i + 64]) for i in range(0, len(held_out), 64)]
    return tokenizer, [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs], batches


def run(schedule: str, seed: int, norm_order: str, n_layers: int, steps: int) -> dict[str, Any]:
    """Train once; the loss is without smoothing, in nats per target token."""
    tokenizer, pairs, held_out = corpus()
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig.tiny(len(tokenizer), norm_order=norm_order, n_layers=n_layers))
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
    return {"window": WINDOW, "losses": losses, "held_out": round(nll / sum(b.n_tokens for b in held_out), 4)}


if __name__ == "__main__":
    fixed = {"norm_order": "post", "n_layers": 2, "steps": STEPS}
    runs = {
        f"{schedule}, seed {seed}": {"schedule": schedule, "seed": seed, **fixed}
        for seed in (1, 2, 3)
        for schedule in SCHEDULES
    }
    record(__file__, runs, run)
