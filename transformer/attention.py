# Exported from notebooks/03_2_1_scaled_dot_product_attention.py, Section 3.2.1; edit that file, not this one.
# sha256 of what follows: 28380dd2b51bb9f7
"""Scaled Dot-Product Attention (Section 3.2.1)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["scaled_dot_product_attention", "masked_softmax", "check_attention_inputs"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(QKᵀ / √d_k) V.

    Args:
        query: Queries, shape (…, m, d_k), floating point.
        key: Keys, shape (…, n, d_k).
        value: Values, shape (…, n, d_v).
        mask: Bool, broadcastable to (…, m, n), True where a query may attend; or None.
        dropout: Applied to the weights, for instance an `nn.Dropout`. The paper does not use it; its authors'
            later code does.

    Returns:
        The output, shape (…, m, d_v), and the weights before dropout, shape (…, m, n). Every row of weights sums
        to 1; a row whose mask is all False is all zeros, and so is its output.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: The shapes do not fit together, or d_k is 0.

    Source: §3.2.1, Eq. 1.
    """
    check_attention_inputs(query, key, value, mask)
    d_k = query.size(-1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)  # (…, m, n)
    weights = masked_softmax(scores, mask)  # (…, m, n)
    used = weights if dropout is None else dropout(weights)
    return used @ value, weights  # (…, m, d_v), (…, m, n)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension, with illegal connections set to −∞ first.

    A row in which nothing may be attended to gives zeros, not NaN.

    Args:
        scores: Shape (…, m, n), floating point.
        mask: Bool, broadcastable to the scores, True where a query may attend; or None.

    Returns:
        Weights of the same shape and dtype; every row sums to 1, or is all zeros if its mask is all False.

    Source: §3.2.3.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    empty = ~mask.any(dim=-1, keepdim=True)  # softmax of a row of −∞ would be 0/0, in the gradient too
    scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Refuse shapes and types that attention cannot mean.

    Args:
        query: Queries, shape (…, m, d_k), floating point.
        key: Keys, shape (…, n, d_k), the dtype of the query.
        value: Values, shape (…, n, d_v), the dtype of the query.
        mask: Bool, broadcastable to (…, m, n), True where a query may attend; or None.

    Raises:
        TypeError: A dtype is wrong: queries, keys and values share one floating type, a mask is bool.
        ValueError: The shapes do not fit together, or d_k is 0.

    Source: §3.2.1.
    """
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; "
            "give all three the same floating dtype."
        )
    batches = list(zip(reversed(query.shape[:-2]), reversed(key.shape[:-2]), strict=False))
    fit = query.dim() >= 2 and key.dim() >= 2 and all(a == b or 1 in (a, b) for a, b in batches)
    if not fit or not query.size(-1) == key.size(-1) > 0 or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit together; "
            "expected (…, m, d_k), (…, n, d_k) and (…, n, d_v), d_k at least 1."
        )
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}; give a bool mask with True where a query may attend.")
    scores_shape = (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.size(-2), key.size(-2))
    if mask.dim() > len(scores_shape) or any(
        size not in (1, wanted) for size, wanted in zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    ):
        raise ValueError(f"mask {tuple(mask.shape)} does not broadcast to the scores' shape {scores_shape}.")
