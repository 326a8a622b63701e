"""Part 11: one part of the Transformer exchanged at a time, every row with three seeds.

    python book/experiments/modern.py

The task, the tokenizer and the scores are those of `variations.py`; the model has two layers and is trained for less
long. Every row makes equally many updates on the same batches, and starts from the same weights wherever its parts are
the paper's. Rows "without warm-up" begin with the highest rate of the schedule and stay there until the warm-up would
have ended; from then on all rates are equal.
"""

import dataclasses
import math
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from recording import record
from variations import BASE, corpus, measure, sentences

from transformer.data import Batch, TokenBatches, make_batch
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, count_parameters
from transformer.modern.gated_feed_forward import GatedFeedForward
from transformer.modern.grouped_query import GroupedQueryAttention
from transformer.modern.rms_norm import RMSNorm
from transformer.modern.rope import RotaryAttention
from transformer.modern.stacks import build_transformer
from transformer.schedule import make_adam, noam_rate
from transformer.training import perplexity

SEEDS = (1, 2, 3)
CONFIG = dataclasses.replace(BASE, n_layers=2)
STEPS, WARMUP, MAX_TOKENS, EVERY = 360, 150, 500, 30
N_DEV, N_TEST = 200, 100
N_KV_HEADS = 2


class RotaryGroupedQueryAttention(RotaryAttention, GroupedQueryAttention):
    """Both at once."""


grouped = partial(GroupedQueryAttention, n_kv_heads=N_KV_HEADS)
rotary_grouped = partial(RotaryGroupedQueryAttention, n_kv_heads=N_KV_HEADS)
PRE = {"norm_order": "pre"}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {  # changes of the config, other parts, warm-up
    "base": ({}, {}, True),
    "pre-norm": (PRE, {}, True),
    "base without warm-up": ({}, {}, False),
    "pre-norm without warm-up": (PRE, {}, False),
    "RMSNorm": ({}, {"norm": RMSNorm}, True),
    "SwiGLU": ({}, {"feed_forward": GatedFeedForward.as_large_as}, True),
    "RoPE": ({}, {"self_attention": RotaryAttention, "positions": False}, True),
    "grouped-query": ({}, {"self_attention": grouped}, True),
    "all": (
        PRE,
        {
            "norm": RMSNorm,
            "feed_forward": GatedFeedForward.as_large_as,
            "self_attention": rotary_grouped,
            "positions": False,
        },
        True,
    ),
}


@cache
def held_out() -> list[Batch]:
    """Batches of unseen sentences for the curve; none of them is among those that are scored at the end."""
    tokenizer, _, _ = corpus()
    pairs = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in sentences("dev", N_DEV)]
    return [make_batch(pairs[start : start + 100]) for start in range(0, N_DEV, 100)]


def curve_point(model: Transformer) -> float:
    """Loss on the unseen sentences, without smoothing, in nats per target token."""
    model.eval()
    loss = math.log(perplexity(model, held_out()))
    model.train()
    return round(loss, 4)


def run(row: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one row once; a loss on unseen sentences after every EVERY updates, scores at the end."""
    changes, parts, warm_up = ROWS[row]
    tokenizer, pairs, unseen = corpus()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = build_transformer(dataclasses.replace(CONFIG, **changes), **parts)
    torch.manual_seed(seed)  # so that dropout begins alike, however many numbers the parts have drawn
    optimizer, loss_function = make_adam(model), LabelSmoothingLoss(0.1, reduction="sum")
    losses = [curve_point(model)]
    for step, batch in enumerate(islice(TokenBatches(pairs, MAX_TOKENS, seed), steps), 1):
        rate = noam_rate(step if warm_up else max(step, WARMUP), CONFIG.d_model, WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        (loss_function(model(batch.src, batch.tgt_in), batch.tgt_out) / batch.n_tokens).backward()
        optimizer.step()
        if step % EVERY == 0:
            losses.append(curve_point(model))
    model.eval()
    scores = measure(model, tokenizer, unseen["test"][:N_TEST])
    return {"parameters": count_parameters(model), "every": EVERY, "losses": losses, **scores}


if __name__ == "__main__":
    runs = {f"{row}, seed {seed}": {"row": row, "seed": seed, "steps": STEPS} for seed in SEEDS for row in ROWS}
    record(__file__, runs, run)
