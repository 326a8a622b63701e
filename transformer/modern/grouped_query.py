# Exported from notebooks/11_2b_grouped_query_attention.py, Section 11.2b; edit that file, not this one.
# sha256 of what follows: e09696ad5dca5545
"""Grouped-Query Attention (Section 11.2b)."""

from typing import Any

from torch import Tensor, nn

from transformer.multi_head import MultiHeadAttention

__all__ = ["GroupedQueryAttention"]


class GroupedQueryAttention(MultiHeadAttention):
    """Multi-head attention in which h / n_kv_heads neighbouring query heads share one head of keys and values.

    Args:
        d_model: Width of the inputs and the output.
        n_heads: h, the number of query heads.
        n_kv_heads: Number of key and value heads, a divisor of h. With h it is multi-head attention, with 1
            multi-query attention.
        **others: What else the class above takes; of `MultiHeadAttention`: d_k, d_v, attention_dropout.

    Raises:
        ValueError: n_kv_heads does not divide n_heads, or `MultiHeadAttention` refuses its sizes.

    Source: Ainslie et al. (2023), arXiv:2305.13245; n_kv_heads=1: Shazeer (2019), arXiv:1911.02150.
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, **others: Any) -> None:
        super().__init__(d_model, n_heads, **others)
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise ValueError(f"n_kv_heads={n_kv_heads} does not divide n_heads={n_heads}; choose a divisor.")
        self.n_kv_heads = n_kv_heads
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_k)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_v)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values once, for one or many calls of `attend`.

        Args:
            key: Shape (B, n, d_model).
            value: Shape (B, n, d_model).

        Returns:
            Keys (B, n_kv_heads, n, d_k) and values (B, n_kv_heads, n, d_v), which are what a cache keeps.
        """
        self._check("key", key)
        self._check("value", value)
        keys, values = self.w_k(key), self.w_v(value)  # (B, n, n_kv_heads·d_k), (B, n, n_kv_heads·d_v)
        heads = (self.n_kv_heads, -1)
        return keys.unflatten(-1, heads).transpose(1, 2), values.unflatten(-1, heads).transpose(1, 2)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend to keys and values that are already projected.

        Args:
            query: Shape (B, m, d_model), not yet projected.
            keys: Shape (B, n_kv_heads, n, d_k).
            values: Shape (B, n_kv_heads, n, d_v).
            mask: As in `MultiHeadAttention.forward`.
            is_causal: As in `MultiHeadAttention.forward`.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: The shapes do not fit together.
        """
        group = self.n_heads // self.n_kv_heads
        keys = keys.repeat_interleave(group, dim=1)  # (B, h, n, d_k): head i reads head i // group
        values = values.repeat_interleave(group, dim=1)  # (B, h, n, d_v)
        return super().attend(query, keys, values, mask, is_causal)
