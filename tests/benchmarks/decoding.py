"""Decoding: beam search with 4 beams in batches and one sentence at a time, and greedy search.

Ours is what `transformer translate` uses on a CPU: `FastTransformer` (Appendix A6); tricks.py has the plain model, too.
All contestants have the very same weights and get the same sentences in the same batches; the search is the same, too
(4 beams, log P divided by |Y|^0.6, which is the form that all three know).

- Size "toy" is the shipped trained model on sentences of the embedded corpus. Sentences end where the model ends them,
  at the latest 50 tokens beyond the longest source; tokens are those of our translations, and the share of translations
  that are the same as ours is reported. The three stop searching by different rules, so a few may differ.
- "small" and "base" have random weights, which never end a sentence. So all sentences of a batch get the same number of
  tokens from everybody: the mean target length of the pairs in the batch, which has sentences of about equal length.
  The peers are told so (`min_decoding_length`, `min_new_tokens`: they mask the end token); ours is not asked for a
  smallest length, so the end token's embedding points away from what the decoder puts out, for all three.

CTranslate2 runs in float32 with all threads on one batch, and chooses its instructions itself.
"""

import itertools
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from contest import Contest, main, threads
from lengths import random_pairs
from peers import WORK, make_config, make_ours, to_ctranslate2, to_ids, to_marian, to_tokens
from torch import Tensor

from transformer.corpus import embedded_corpus
from transformer.data import EOS_ID, PAD_ID, make_batch
from transformer.decoding import beam_search, greedy_decode
from transformer.fast_cpu import FastTransformer
from transformer.model import Transformer
from transformer.translator import load_toy_translator

Item = list[tuple[Tensor, int, int]]  # batches that are done one after the other: source ids, least and most tokens
Search = Callable[[Item], list[list[int]]]
ALPHA = 0.6


def endless(model: Transformer) -> Transformer:
    """Let the decoder's last layer put out a constant that the end token's embedding points away from."""
    direction = torch.nn.functional.normalize(torch.randn(model.config.d_model), dim=0)
    with torch.no_grad():
        last: Any = model.decoder.layers[-1]
        last.feed_forward_block.norm.bias.copy_(10 * direction)
        model.embedding.weight[EOS_ID] = -direction
    return model


def make_items(size: str, batch_size: int, n_items: int, seed: int) -> list[Item]:
    """Items spread evenly over all lengths. Single sentences are done four to an item."""
    if size == "toy":
        tokenizer, sentences = load_toy_translator().tokenizer, embedded_corpus("test", seed)
        pairs = [(tokenizer.encode(p.source), tokenizer.encode(p.target)) for p in itertools.islice(sentences, 1000)]
    else:
        pairs = random_pairs(WORK[size], make_config(size).src_vocab_size, seed=seed)
    pairs.sort(key=lambda pair: (len(pair[1]), len(pair[0])))

    def made(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, int, int]:
        src = make_batch(pairs).src
        if size == "toy":
            return src, 1, src.size(1) + 50
        length = round(sum(len(target) for _, target in pairs) / len(pairs))
        return src, length, length

    n_batches = n_items * (4 if batch_size == 1 else 1)
    starts = [round((i + 0.5) / n_batches * (len(pairs) - batch_size)) for i in range(n_batches)]
    batches = [made(pairs[start : start + batch_size]) for start in starts]
    return [batches[i::n_items] for i in range(n_items)]


def contest(
    size: str,
    search: str = "beam",
    batch_size: int = 32,
    n_items: int = 4,
    peers: tuple[str, ...] = ("Marian", "CTranslate2"),
    seed: int = 0,
) -> Contest:
    """Decode with 4 beams ("beam") or one ("greedy")."""
    beam_size = {"beam": 4, "greedy": 1}[search]
    items = make_items(size, batch_size, n_items, seed)

    def model() -> Transformer:
        return load_toy_translator().model if size == "toy" else endless(make_ours(size, 0.0, seed)).eval()

    make = {
        "ours": lambda: ours(FastTransformer(model()), beam_size),
        "Marian": lambda: marian(model(), beam_size),
        "CTranslate2": lambda: ctranslate2(model(), beam_size),
    }
    needs = {"Marian": "transformers.models.marian.modeling_marian", "CTranslate2": "ctranslate2"}
    written = [make["ours"]()(item) for item in items] if size == "toy" else []
    fixed = sum(src.size(0) * most for item in items for src, _, most in item)
    return Contest(
        make={name: make[name] for name in ("ours", *peers)},
        items=items,
        tokens=sum(len(ids) + 1 for item in written for ids in item) or fixed,
        needs={name: needs[name] for name in peers},
        heaviest=max(range(len(items)), key=lambda i: sum(src.numel() for src, _, _ in items[i])),
    )


def ours(model: Transformer, beam_size: int) -> Search:
    """Our search."""

    def run(item: Item) -> list[list[int]]:
        written = []
        for src, _, most in item:
            if beam_size == 1:
                written += greedy_decode(model, src, most)
            else:
                found = beam_search(model, src, beam_size, ALPHA, most, penalty="fairseq")
                written += [hypotheses[0].ids for hypotheses in found]
        return written

    return run


def marian(model: Transformer, beam_size: int) -> Search:
    """Hugging Face's `generate`, with its cache."""
    theirs = to_marian(model)

    def run(item: Item) -> list[list[int]]:
        written = []
        for src, least, most in item:
            with torch.inference_mode():
                output = theirs.generate(
                    input_ids=src,
                    attention_mask=(src != PAD_ID).long(),
                    num_beams=beam_size,
                    do_sample=False,
                    min_new_tokens=least,
                    max_new_tokens=most,
                    **({"length_penalty": ALPHA} if beam_size > 1 else {}),
                )
            for ids in output[:, 1:].tolist():
                end = ids.index(EOS_ID) if EOS_ID in ids else len(ids)
                written.append([i for i in ids[:end] if i != PAD_ID])
        return written

    return run


def ctranslate2(model: Transformer, beam_size: int) -> Search:
    """CTranslate2's `translate_batch`."""
    from ctranslate2 import Translator

    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(model, folder)
        theirs = Translator(folder, compute_type="float32", inter_threads=1, intra_threads=threads(), device="cpu")

    def run(item: Item) -> list[list[int]]:
        written = []
        for src, least, most in item:
            sources = [to_tokens([i for i in ids if i != PAD_ID]) for ids in src.tolist()]
            results = theirs.translate_batch(
                sources,
                beam_size=beam_size,
                length_penalty=ALPHA,
                min_decoding_length=least,
                max_decoding_length=most,
                max_input_length=0,
            )
            written += [to_ids(result.hypotheses[0]) for result in results]
        return written

    return run


if __name__ == "__main__":
    main(contest)
