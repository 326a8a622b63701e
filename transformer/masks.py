# Exported from notebooks/03_2_3_applications_of_attention.py, Section 3.2.3; edit that file, not this one.
# sha256 of what follows: 85177e8d7a14da80
"""Applications of Attention in our Model (Section 3.2.3)."""

import torch
from torch import Tensor

__all__ = ["causal_mask", "padding_mask"]


def causal_mask(size: int, device: torch.device | str | None = None) -> Tensor:
    """Who may attend to whom in the decoder: every position to itself and to those before it.

    Args:
        size: Number of positions, m.
        device: Where the mask is made.

    Returns:
        Bool, shape (m, m), True on and below the diagonal.

    Raises:
        ValueError: size is less than 1.

    Source: §3.2.3.
    """
    if size < 1:
        raise ValueError(f"size is {size}; a causal mask needs at least one position.")
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Which positions hold a token and not padding.

    Args:
        ids: Token ids, shape (B, n), integers.
        pad_id: The id that fills short sentences up.

    Returns:
        Bool, shape (B, 1, 1, n), True at real tokens; it broadcasts over heads and queries.

    Raises:
        ValueError: ids is not of shape (B, n).

    Source: the paper does not mention padding; its Figures 3 to 5 show `<pad>` tokens.
    """
    if ids.dim() != 2:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; expected (batch, length).")
    return (ids != pad_id)[:, None, None, :]
