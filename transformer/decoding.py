# Exported from notebooks/06_1a_decoding.py, Section 6.1; edit that file, not this one.
# sha256 of what follows: ac391647f71e4069
"""Decoding (Section 6.1)."""

import torch
from torch import Tensor

from transformer.masks import padding_mask
from transformer.model import Transformer

__all__ = ["EXTRA_TOKENS", "greedy_decode"]


EXTRA_TOKENS = 50


@torch.inference_mode()
def greedy_decode(model: Transformer, src: Tensor, max_new_tokens: int | None = None) -> list[list[int]]:
    """Take the most probable token at every step until the end token.

    A sentence's output does not depend on what shares its batch. Sentences that have ended leave the batch.

    Args:
        model: In evaluation mode.
        src: Source ids, shape (B, n), padded with pad_id.
        max_new_tokens: Most tokens to generate per sentence; None means its own length + 50, as in the paper,
            or as many as there are learned positions, if they are fewer.

    Returns:
        The ids of each sentence, without begin and end.

    Raises:
        ValueError: The model is in training mode, or max_new_tokens is less than 1.

    Source: §6.1 for the maximum length; the paper itself uses beam search.
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the output; call model.eval() first.")
    config = model.config
    src_mask = padding_mask(src, config.pad_id)
    memory = model.encode(src, src_mask)  # (B, n, d_model)
    limits = src_mask.sum(dim=-1).flatten() + EXTRA_TOKENS if max_new_tokens is None else None  # (B,)
    if limits is not None and config.positions == "learned":
        limits = limits.clamp(max=config.max_len)  # there is no position beyond
    room = int(limits.max()) if limits is not None else int(max_new_tokens or 0)
    cache = model.new_cache(memory, src_mask, room)
    outputs: list[list[int]] = [[] for _ in range(src.size(0))]
    sentence = torch.arange(src.size(0), device=src.device)  # which sentence each live row is
    tokens = src.new_full((src.size(0), 1), config.bos_id)
    for step in range(1, room + 1):
        logits = model.output_projection(model.decode(tokens, cache=cache))  # (rows, 1, V)
        tokens = logits.argmax(dim=-1)  # (rows, 1)
        ended = tokens[:, 0] == config.eos_id
        for i, token, end in zip(sentence.tolist(), tokens[:, 0].tolist(), ended.tolist(), strict=True):
            if not end:
                outputs[i].append(token)
        if limits is not None:
            ended |= limits[sentence] <= step
        if ended.all():
            break
        if ended.any():
            live = (~ended).nonzero()[:, 0]
            tokens, sentence = tokens[live], sentence[live]
            cache.select(live)
    return outputs
