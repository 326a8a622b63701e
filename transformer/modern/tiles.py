# Exported from notebooks/11_2c_attention_in_tiles.py, Section 11.2c; edit that file, not this one.
# sha256 of what follows: 2e55c9f640fa592a
"""Attention in Tiles (Section 11.2c)."""

from typing import NamedTuple

import torch
from torch import Tensor

from transformer.attention import check_attention_inputs

__all__ = ["RunningSoftmax", "tiled_attention"]


class RunningSoftmax(NamedTuple):
    """What is known of a softmax and its weighted sum after some of the scores.

    Args:
        maximum: Largest score so far, shape (…, m, 1); −∞ before the first.
        total: Sum of exp(score − maximum), shape (…, m, 1).
        mixed: Sum of exp(score − maximum) · value, shape (…, m, d_v).

    Source: Milakov and Gimelshein (2018), arXiv:1805.02867.
    """

    maximum: Tensor
    total: Tensor
    mixed: Tensor

    def add(self, scores: Tensor, values: Tensor) -> "RunningSoftmax":
        """Go on with a tile.

        Args:
            scores: Shape (…, m, t); −∞ where nothing may be attended to.
            values: Shape (…, t, d_v).

        Returns:
            What is known after these scores, too.
        """
        maximum = torch.maximum(self.maximum, scores.amax(dim=-1, keepdim=True))  # (…, m, 1)
        reference = maximum.masked_fill(maximum == float("-inf"), 0.0)  # −∞ − (−∞) would be NaN
        shrink = (self.maximum - reference).exp()  # (…, m, 1): the old sums, counted from the new maximum
        weights = (scores - reference).exp()  # (…, m, t)
        total = self.total * shrink + weights.sum(dim=-1, keepdim=True)
        return RunningSoftmax(maximum, total, self.mixed * shrink + weights @ values)

    def output(self) -> Tensor:
        """The weighted sum of the values so far, shape (…, m, d_v); zeros where nothing could be attended to."""
        return self.mixed / self.total.clamp_min(1.0)  # the largest score adds exp(0) = 1: below it, there was none


def tiled_attention(query: Tensor, key: Tensor, value: Tensor, tile: int, is_causal: bool = False) -> Tensor:
    """Equation (1) without the table of weights: a tile of scores at a time, where no gradient keeps the tiles.

    Args:
        query: Shape (…, m, d_k), floating point.
        key: Shape (…, n, d_k).
        value: Shape (…, n, d_v).
        tile: Number of queries, and of keys, in a tile.
        is_causal: Hide later positions; the last query stands at the last key.

    Returns:
        Shape (…, m, d_v); zeros for a query that may attend to nothing.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: The shapes do not fit together, or tile is less than 1.

    Source: Dao et al. (2022), arXiv:2205.14135, the forward pass, with queries in the outer loop.
    """
    check_attention_inputs(query, key, value, None)
    if tile < 1:
        raise ValueError(f"tile is {tile}; give at least 1.")
    m, n = query.size(-2), key.size(-2)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    output = query.new_empty(*batch, m, value.size(-1))
    for top in range(0, m, tile):
        bottom = min(top + tile, m)
        start = query.new_full((*batch, bottom - top, 1), float("-inf"))
        state = RunningSoftmax(start, torch.zeros_like(start), torch.zeros_like(output[..., top:bottom, :]))
        end = min(n, bottom + n - m) if is_causal else n  # what is left out is all in the future
        for left in range(0, end, tile):
            columns = slice(left, left + tile)
            scores = query[..., top:bottom, :] @ key[..., columns, :].mT / query.size(-1) ** 0.5  # (…, tile, tile)
            if is_causal:
                row = torch.arange(top, bottom, device=query.device)[:, None] + n - m  # the key each query stands at
                column = torch.arange(left, left + scores.size(-1), device=query.device)
                scores = scores.masked_fill(column > row, float("-inf"))
            state = state.add(scores, value[..., columns, :])
        output[..., top:bottom, :] = state.output()
    return output
