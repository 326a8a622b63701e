# Exported from notebooks/11_2a_rotary_positions.py, Section 11.2a; edit that file, not this one.
# sha256 of what follows: 4ece14ceaf0539c9
"""Rotary Positions (Section 11.2a)."""

from typing import Any

import torch
from torch import Tensor, nn

from transformer.multi_head import MultiHeadAttention

__all__ = ["rotate", "RotaryAttention"]


def rotate(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Turn each pair of channels (2i, 2i + 1) by the angle position / base^(2i/d).

    Args:
        x: Queries or keys, shape (…, d), floating point, d even.
        positions: Where they stand, any real numbers, broadcastable to (…).
        base: The larger, the slower the later pairs turn; in a wide head the last takes about 1 / base a position.

    Returns:
        The same shape and dtype; every vector keeps its length.

    Raises:
        TypeError: x is not of a floating-point type.
        ValueError: d is odd, base is not positive, or the positions do not fit the vectors.

    Source: Su et al. (2021), arXiv:2104.09864, Section 3.2.2.
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; give queries or keys of a floating-point type.")
    d, places = x.size(-1), x.shape[:-1]
    if d % 2 or base <= 0:
        raise ValueError(f"the vectors are {d} wide and base is {base}; give an even width and a positive base.")
    fit = all(size in (1, wanted) for size, wanted in zip(reversed(positions.shape), reversed(places), strict=False))
    if positions.dim() > len(places) or not fit:
        raise ValueError(
            f"positions {tuple(positions.shape)} do not broadcast to {tuple(places)}; give one for each vector."
        )
    wide = torch.float32 if x.device.type == "mps" else torch.float64  # a large angle needs it, MPS has it not
    exponent = torch.arange(0, d, 2, dtype=wide, device=x.device) / d  # (d / 2)
    angle = positions.to(wide)[..., None] * base**-exponent  # (…, d / 2)
    kept = torch.promote_types(x.dtype, torch.float32)  # half precision is turned in single precision
    cos, sin = angle.cos().to(kept), angle.sin().to(kept)
    even, odd = x[..., 0::2], x[..., 1::2]  # (…, d / 2)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)  # (…, d / 2, 2)
    return turned.flatten(-2).to(x.dtype)  # (…, d)


class _RotatedQueries(nn.Linear):
    """W^Q, each head's queries turned as positions 0, 1, … of their row."""

    def __init__(self, d_model: int, n_heads: int, d_k: int, base: float) -> None:
        super().__init__(d_model, n_heads * d_k)
        self.n_heads, self.base = n_heads, base

    def forward(self, x: Tensor) -> Tensor:
        queries = super().forward(x).unflatten(-1, (self.n_heads, -1))  # (B, m, h, d_k)
        positions = torch.arange(x.size(1), device=x.device)[:, None]  # (m, 1)
        return rotate(queries, positions, self.base).flatten(2)  # (B, m, h·d_k)


class RotaryAttention(MultiHeadAttention):
    """Multi-head self-attention whose scores know how far apart two positions are.

    Keys are kept as they are projected and turned when they are attended to, so a cache needs no positions.

    Args:
        d_model: Width of the inputs and the output.
        n_heads: h, the number of heads.
        base: As in `rotate`.
        **others: What else the class above takes; of `MultiHeadAttention`: d_k, d_v, attention_dropout.

    Raises:
        ValueError: d_k is odd, base is not positive, or `MultiHeadAttention` refuses its sizes.

    Source: Su et al. (2021), arXiv:2104.09864.
    """

    def __init__(self, d_model: int, n_heads: int, base: float = 10000.0, **others: Any) -> None:
        super().__init__(d_model, n_heads, **others)
        if self.d_k % 2 or base <= 0:
            raise ValueError(f"d_k is {self.d_k} and base is {base}; give an even d_k and a positive base.")
        self.base = base
        self.w_q = _RotatedQueries(d_model, n_heads, self.d_k, base)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend to keys and values that are already projected, and not yet turned.

        The last query stands at the last key. Positions count from the first query, since offsets alone matter.

        Args:
            query: Shape (B, m, d_model), not yet projected.
            keys: Shape (B, h, n, d_k), those of positions m − n to m − 1.
            values: Shape (B, h, n, d_v).
            mask: As in `MultiHeadAttention.forward`.
            is_causal: As in `MultiHeadAttention.forward`.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: There are more queries than keys, or the shapes do not fit together.
        """
        m, n = query.size(-2), keys.size(-2)
        if m > n:
            raise ValueError(
                f"{m} queries and {n} keys; the queries must be the last of the keys' positions, so use "
                "RotaryAttention for self-attention alone."
            )
        turned = rotate(keys, torch.arange(m - n, m, device=keys.device), self.base)
        return super().attend(query, turned, values, mask, is_causal)
