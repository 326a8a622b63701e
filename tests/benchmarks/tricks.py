"""What each trick gives: our own decoding and training, with more and more of what makes them quick.

Decoding goes from the simplest way to all of it:

- "simple": the whole cache is copied whenever rows change, the memory's part included, and `topk` searches the whole
  vocabulary;
- "one search": only a few columns of the logits are sorted (Section 6.1, `_largest`);
- "plain": and only what is written moves, in place, and the memory only when a sentence leaves, as in the chapters;
- "one past": `FastTransformer` (Appendix A6) with matrices in `nn.Linear`'s order;
- "ours": and with matrices in the order in which few rows are multiplied.

Training:

- "simple": `nn.Dropout`, and PyTorch's `cross_entropy` with label smoothing;
- "plain": our loss, which needs one pass less over the logits;
- "ours": and `FastDropout` (Appendix A6).
"""

from collections.abc import Callable
from itertools import islice
from typing import Any
from unittest import mock

from contest import Contest, main
from decoding import endless, make_items, ours
from lengths import random_pairs
from peers import WORK, make_config, make_ours
from torch import Tensor, nn
from training_step import trained

import transformer.decoding
from transformer.data import TokenBatches
from transformer.fast_cpu import FastTransformer, use_fast_dropout
from transformer.loss import LabelSmoothingLoss
from transformer.model import DecoderCache, Transformer

Run = Callable[[Any], Any]


def contest(
    task: str, size: str, batch_size: int = 32, n_items: int = 4, max_tokens: int = 1024, seed: int = 0
) -> Contest:
    """Beam search with 4 beams ("decoding"), or updates ("training")."""
    if task == "training":
        return training(size, n_items, max_tokens, seed)
    items = make_items(size, batch_size, n_items, seed)
    model = endless(make_ours(size, 0.0, seed)).eval()

    def fast() -> FastTransformer:
        return FastTransformer(model)

    make = {
        "simple": lambda: patched(model, copying, sorting),
        "one search": lambda: patched(model, copying),
        "plain": lambda: ours(model, 4),
        "one past": lambda: ours(in_order_of_linear(fast()), 4),
        "ours": lambda: ours(fast(), 4),
    }
    tokens = sum(src.size(0) * most for item in items for src, _, most in item)
    return Contest(make=make, items=items, tokens=tokens)


def patched(model: Transformer, *patches: Callable[[], Any]) -> Run:
    """Our search with patches applied while it runs."""
    search = ours(model, 4)

    def run(item: Any) -> Any:
        begun = [patch() for patch in patches]
        for each in begun:
            each.start()
        try:
            return search(item)
        finally:
            for each in begun:
                each.stop()

    return run


def sorting() -> Any:
    """`topk` of the whole vocabulary."""
    return mock.patch.object(transformer.decoding, "_largest", lambda logits, count: logits.topk(count))


def copying() -> Any:
    """All of the cache is copied, room that nobody has written to included."""

    def select(cache: DecoderCache, index: Tensor, same_source: bool = False) -> None:
        for layer in cache.layers:
            own = layer.own
            own.keys, own.values = own.keys[index], own.values[index]
            layer.memory_keys, layer.memory_values = layer.memory_keys[index], layer.memory_values[index]
        cache.memory_mask = cache.memory_mask[index]

    return mock.patch.object(DecoderCache, "select", select)


def in_order_of_linear(model: FastTransformer) -> FastTransformer:
    """The matrices with a row per output, read as their transposes."""
    for step in model._steps:
        for linear in (step.w_qkv, step.w_o, step.memory_w_q, step.memory_w_o, step.w_1, step.w_2):
            linear.weight = linear.weight.t().contiguous().t()
    model._projection = model._projection.t().contiguous().t()
    return model


def training(size: str, n_batches: int, max_tokens: int, seed: int) -> Contest:
    """Updates on the batches of the other benchmark of training."""
    pairs = random_pairs(WORK[size], make_config(size).src_vocab_size, seed=seed)
    batches = list(islice(TokenBatches(pairs, max_tokens, seed), n_batches))

    def model(fast: bool) -> Transformer:
        made = make_ours(size, 0.1, seed)
        if fast:
            use_fast_dropout(made)
        return made

    theirs, smoothed = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0, reduction="sum"), LabelSmoothingLoss

    def cross_entropy(logits: Tensor, tgt_out: Tensor) -> Tensor:
        return theirs(logits.flatten(0, 1), tgt_out.flatten())

    make = {
        "simple": lambda: trained(model(False), cross_entropy),
        "plain": lambda: trained(model(False), smoothed(0.1, reduction="sum")),
        "ours": lambda: trained(model(True), smoothed(0.1, reduction="sum")),
    }
    return Contest(make=make, items=batches, tokens=sum(batch.n_tokens for batch in batches))


if __name__ == "__main__":
    main(contest)
