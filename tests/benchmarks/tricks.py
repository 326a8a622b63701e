"""What each trick gives: our own decoding and training, with more and more of what makes them quick.

Decoding goes from the simplest way to all of it:

- "simple": the whole cache is copied whenever rows change, the memory's part included, and `topk` searches the whole
  vocabulary;
- "one search": only a few columns of the logits are sorted (Section 6.1, `_largest`);
- "plain": and only what is written moves, in place, and the memory only when a sentence leaves, as in the chapters;
- "one past": `FastTransformer` (Appendix A6) with matrices in `nn.Linear`'s order, a row per output;
- "turned": with a row per input, as A6 has them where nothing better can be had;
- "ours": and packed by oneDNN, which then multiplies.

Training:

- "simple": `nn.Dropout`, and PyTorch's `cross_entropy` with label smoothing;
- "plain": our loss, which needs one pass less over the logits;
- "quick dropout": and `FastDropout` (Appendix A6);
- "ours": and `use_one_dnn` (A6), which changes nothing where the processor is not AMD's.
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
import transformer.fast_cpu
from transformer.data import TokenBatches
from transformer.fast_cpu import FastTransformer, _Linear, use_fast_dropout, use_one_dnn
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
    make = {
        "simple": lambda: patched(model, copying, sorting),
        "one search": lambda: patched(model, copying),
        "plain": lambda: ours(model, 4),
        "one past": lambda: ours(in_order_of_linear(without_packing(model)), 4),
        "turned": lambda: ours(without_packing(model), 4),
        "ours": lambda: ours(FastTransformer(model), 4),
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


def without_packing(model: Transformer) -> FastTransformer:
    """As it is made where PyTorch cannot pack."""
    with mock.patch.object(transformer.fast_cpu, "_packed", return_value=None):
        return FastTransformer(model)


def in_order_of_linear(model: FastTransformer) -> FastTransformer:
    """The matrices with a row per output."""
    linears = [part for step in model._steps for part in vars(step).values() if isinstance(part, _Linear)]
    for linear in (*linears, model._projection):
        linear.weight = linear.weight.contiguous()
    return model


def training(size: str, n_batches: int, max_tokens: int, seed: int) -> Contest:
    """Updates on the batches of the other benchmark of training."""
    pairs = random_pairs(WORK[size], make_config(size).src_vocab_size, seed=seed)
    batches = list(islice(TokenBatches(pairs, max_tokens, seed), n_batches))

    def model(*tricks: Callable[[Transformer], None]) -> Transformer:
        made = make_ours(size, 0.1, seed)
        for trick in tricks:
            trick(made)
        return made

    theirs, smoothed = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0, reduction="sum"), LabelSmoothingLoss

    def cross_entropy(logits: Tensor, tgt_out: Tensor) -> Tensor:
        return theirs(logits.flatten(0, 1), tgt_out.flatten())

    make = {
        "simple": lambda: trained(model(), cross_entropy),
        "plain": lambda: trained(model(), smoothed(0.1, reduction="sum")),
        "quick dropout": lambda: trained(model(use_fast_dropout), smoothed(0.1, reduction="sum")),
        "ours": lambda: trained(model(use_fast_dropout, use_one_dnn), smoothed(0.1, reduction="sum")),
    }
    return Contest(make=make, items=batches, tokens=sum(batch.n_tokens for batch in batches))


if __name__ == "__main__":
    main(contest)
