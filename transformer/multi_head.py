# Exported from notebooks/03_2_2_multi_head_attention.py, Section 3.2.2; edit that file, not this one.
# sha256 of what follows: 52487f21c42e7748
"""Multi-Head Attention (Section 3.2.2)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import check_attention_inputs, scaled_dot_product_attention

__all__ = ["MultiHeadAttention", "KeyValueCache"]


class MultiHeadAttention(nn.Module):
    """h attention functions in parallel, each on its own projection of the inputs.

    The four matrices hold the heads side by side: W^Q is (d_model, h·d_k), head i owns columns i·d_k to (i+1)·d_k.

    Args:
        d_model: Width of the inputs and the output.
        n_heads: h, the number of heads.
        d_k: Width of one head's queries and keys; d_model / h if None.
        d_v: Width of one head's values; d_model / h if None.
        attention_dropout: Dropout rate on the weights; 0 in the paper, 0.1 in its authors' later code.

    Attributes:
        on_weights: If set, called with the weights (B, h, m, n) of every forward pass. Only then are they computed.

    Raises:
        ValueError: A size is not positive, or d_model is not divisible by n_heads and d_k or d_v is not given.

    Source: §3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_k": d_k, "d_v": d_v}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name}={size}; give a positive number.")
        if (d_k is None or d_v is None) and d_model % n_heads:
            raise ValueError(
                f"d_model={d_model} is not divisible by n_heads={n_heads}; choose a divisor or give d_k and d_v."
            )
        self.d_model, self.n_heads = d_model, n_heads
        self.d_k = d_k or d_model // n_heads
        self.d_v = d_v or d_model // n_heads
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.on_weights: Callable[[Tensor], None] | None = None
        self.w_q = nn.Linear(d_model, n_heads * self.d_k)
        self.w_k = nn.Linear(d_model, n_heads * self.d_k)
        self.w_v = nn.Linear(d_model, n_heads * self.d_v)
        self.w_o = nn.Linear(n_heads * self.d_v, d_model)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend from every query position to the key positions.

        Args:
            query: Shape (B, m, d_model).
            key: Shape (B, n, d_model).
            value: Shape (B, n, d_model).
            mask: Bool, broadcastable to (B, h, m, n), True where a query may attend; or None.
            is_causal: Hide later positions without a mask tensor; the last query stands at the last key.

        Returns:
            Shape (B, m, d_model).

        Raises:
            TypeError: An input has not the dtype of the weights, or the mask is not bool.
            ValueError: The shapes do not fit together.
        """
        keys, values = self.project(key, value)
        return self.attend(query, keys, values, mask, is_causal)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values once, for one or many calls of `attend`.

        Args:
            key: Shape (B, n, d_model).
            value: Shape (B, n, d_model).

        Returns:
            Keys (B, h, n, d_k) and values (B, h, n, d_v).
        """
        self._check("key", key)
        self._check("value", value)
        return self._split(self.w_k(key)), self._split(self.w_v(value))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend to keys and values that are already projected.

        Args:
            query: Shape (B, m, d_model), not yet projected.
            keys: Shape (B, h, n, d_k).
            values: Shape (B, h, n, d_v).
            mask: As in `forward`.
            is_causal: As in `forward`.

        Returns:
            Shape (B, m, d_model).
        """
        self._check("query", query)
        queries = self._split(self.w_q(query))  # (B, h, m, d_k)
        check_attention_inputs(queries, keys, values, mask)
        m, n = queries.size(-2), keys.size(-2)
        if is_causal and (m != n or mask is not None or self.on_weights is not None):
            causal = torch.ones(m, n, dtype=torch.bool, device=query.device).tril(diagonal=n - m)
            mask, is_causal = causal if mask is None else mask & causal, False
        if self.on_weights is not None:
            heads, weights = scaled_dot_product_attention(queries, keys, values, mask, self.attention_dropout)
            self.on_weights(weights)
        else:  # the same function, fused into one kernel that never stores the weights
            rate = self.attention_dropout.p if self.training else 0.0
            heads = F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=rate, is_causal=is_causal)
        return self.w_o(heads.transpose(1, 2).flatten(2))  # (B, m, d_model)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, n, h·d) → (B, h, n, d)

    def _check(self, name: str, x: Tensor) -> None:
        if x.dim() != 3 or x.size(-1) != self.d_model:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (B, length, {self.d_model}).")
        wanted = self.w_q.weight.dtype
        if x.dtype != wanted and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name} has dtype {x.dtype} and the weights {wanted}; convert one of them.")


class KeyValueCache:
    """The keys and values of one self-attention sub-layer, kept while a sequence is generated.

    Memory is taken once; every step writes its new positions behind the old ones.

    Args:
        keys: Room for keys, shape (B, h, capacity, d_k).
        values: Room for values, shape (B, h, capacity, d_v).

    Attributes:
        length: Number of positions written so far.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new positions and return all positions so far.

        Args:
            keys: Shape (B, h, m, d_k).
            values: Shape (B, h, m, d_v).

        Returns:
            Keys (B, h, length, d_k) and values (B, h, length, d_v), the new ones last.

        Raises:
            ValueError: The cache has no room for m more positions.
        """
        start, end = self.length, self.length + keys.size(-2)
        if end > self.keys.size(-2):
            raise ValueError(f"the cache holds {self.keys.size(-2)} positions and is asked for {end}; make it larger.")
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.length = end
        # Under autocast the room is wider than what is written.
        return self.keys[:, :, :end].to(keys.dtype), self.values[:, :, :end].to(values.dtype)

    def select(self, index: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may be repeated.

        Args:
            index: Row numbers, shape (B',), int64.
        """
        if len(index) > len(self.keys):
            self.keys, self.values = self.keys[index], self.values[index]
            return
        for room in (self.keys, self.values):  # in place, and only what is written
            room[: len(index), :, : self.length] = room[index, :, : self.length]
        self.keys, self.values = self.keys[: len(index)], self.values[: len(index)]
