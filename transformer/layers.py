# Exported from notebooks/03_1_encoder_and_decoder_stacks.py, Section 3.1; edit that file, not this one.
# sha256 of what follows: 918931cdb57f9718
"""Encoder and Decoder Stacks (Section 3.1)."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from transformer.feed_forward import PositionwiseFeedForward
from transformer.multi_head import KeyValueCache, MultiHeadAttention

__all__ = ["ResidualBlock", "EncoderLayer", "Encoder", "LayerCache", "DecoderLayer", "Decoder"]


class ResidualBlock(nn.Module):
    """A residual connection around a sub-layer, with dropout and layer normalization.

    Args:
        d_model: Width of the stream that runs through the stack.
        dropout: P_drop, the rate on the sub-layer's output before it is added.
        norm_order: "post" normalizes the sum, as the paper says; "pre" normalizes the sub-layer's input instead.
        norm: Makes the normalization from its width.

    Raises:
        ValueError: norm_order is neither "post" nor "pre".

    Source: §3.1; dropout §5.4.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        norm_order: str = "post",
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        if norm_order not in ("post", "pre"):
            raise ValueError(f'norm_order is {norm_order!r}; choose "post" (the paper) or "pre".')
        self.norm_order = norm_order
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sub-layer.

        Args:
            x: Shape (B, n, d_model).
            sublayer: Maps (B, n, d_model) to (B, n, d_model).

        Returns:
            Shape (B, n, d_model).

        Raises:
            TypeError: x is not of a floating-point type.
            ValueError: x is not d_model wide, or the sub-layer does not keep the shape.
        """
        if not x.is_floating_point():
            raise TypeError(f"x is {x.dtype}; give vectors of a floating-point type, not token ids.")
        if x.size(-1) != self.d_model:
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.d_model}.")
        pre = self.norm_order == "pre"
        y = sublayer(self.norm(x) if pre else x)
        if y.shape != x.shape:
            raise ValueError(
                f"the sub-layer made {tuple(y.shape)} of {tuple(x.shape)}; "
                "the sum needs equal shapes, so give one that keeps its input's shape."
            )
        x = x + self.dropout(y)
        return x if pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each in a residual block.

    Args:
        self_attention: Attention within the source.
        feed_forward: Maps (B, n, d_model) to (B, n, d_model).
        d_model: Width of the layer's input and output.
        dropout: P_drop.
        norm_order: "post" (the paper) or "pre".
        norm: Makes a normalization from its width.

    Source: §3.1, Encoder.
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: PositionwiseFeedForward | nn.Module,
        d_model: int,
        dropout: float = 0.1,
        norm_order: str = "post",
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.attention_block = ResidualBlock(d_model, dropout, norm_order, norm)
        self.feed_forward_block = ResidualBlock(d_model, dropout, norm_order, norm)

    def forward(self, x: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Transform the source positions.

        Args:
            x: Shape (B, n, d_model).
            src_mask: Bool, broadcastable to (B, h, n, n), True where a position may attend; or None.

        Returns:
            Shape (B, n, d_model).
        """
        x = self.attention_block(x, lambda x: self.self_attention(x, x, x, src_mask))
        return self.feed_forward_block(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers.

    Args:
        layers: The layers, first to last.
        norm: A final normalization, which pre-norm stacks need; None for post-norm.

    Source: §3.1, Encoder.
    """

    def __init__(self, layers: Iterable[EncoderLayer], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, x: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Run the source through every layer.

        Args:
            x: Embedded source, shape (B, n, d_model).
            src_mask: Bool, broadcastable to (B, h, n, n); or None.

        Returns:
            The memory, shape (B, n, d_model).
        """
        for layer in self.layers:
            x = layer(x, src_mask)
        return x if self.norm is None else self.norm(x)


class LayerCache:
    """What one decoder layer keeps between steps of generation.

    Args:
        own: Keys and values of the layer's self-attention, growing by one position a step.
        memory_keys: The memory's keys as this layer projects them, shape (B, h, n, d_k).
        memory_values: The memory's values, shape (B, h, n, d_v).
    """

    def __init__(self, own: KeyValueCache, memory_keys: Tensor, memory_values: Tensor) -> None:
        self.own = own
        self.memory_keys, self.memory_values = memory_keys, memory_values

    def select(self, index: Tensor, same_source: bool = False) -> None:
        """Keep these rows of the batch, in this order.

        Args:
            index: Row numbers, shape (B',), int64.
            same_source: Every row takes the place of one with the same source, so the memory stays where it is.
        """
        self.own.select(index)
        if not same_source:
            self.memory_keys, self.memory_values = self.memory_keys[index], self.memory_values[index]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, and a feed-forward network.

    Args:
        self_attention: Attention within the target.
        memory_attention: Encoder–decoder attention.
        feed_forward: Maps (B, m, d_model) to (B, m, d_model).
        d_model: Width of the layer's input and output.
        dropout: P_drop.
        norm_order: "post" (the paper) or "pre".
        norm: Makes a normalization from its width.

    Source: §3.1, Decoder.
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        memory_attention: MultiHeadAttention,
        feed_forward: PositionwiseFeedForward | nn.Module,
        d_model: int,
        dropout: float = 0.1,
        norm_order: str = "post",
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.memory_attention = memory_attention
        self.feed_forward = feed_forward
        self.self_attention_block = ResidualBlock(d_model, dropout, norm_order, norm)
        self.memory_attention_block = ResidualBlock(d_model, dropout, norm_order, norm)
        self.feed_forward_block = ResidualBlock(d_model, dropout, norm_order, norm)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Transform the target positions, or with a cache the new ones among them.

        Args:
            x: Shape (B, m, d_model).
            memory: The encoder's output, shape (B, n, d_model); not needed with a cache.
            tgt_mask: Bool, broadcastable to (B, h, m, t), t positions so far; None hides later positions only.
            memory_mask: Bool, broadcastable to (B, h, m, n); None hides nothing.
            cache: What earlier steps left; it is extended by this call.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: Neither memory nor a cache is given.
        """
        if memory is None and cache is None:
            raise ValueError("a decoder layer needs the encoder's output (memory) or a cache (from new_cache).")

        def attend_self(x: Tensor) -> Tensor:
            keys, values = self.self_attention.project(x, x)
            if cache is not None:
                keys, values = cache.own.append(keys, values)
            return self.self_attention.attend(x, keys, values, tgt_mask, is_causal=tgt_mask is None)

        def attend_memory(x: Tensor) -> Tensor:
            if cache is not None:
                return self.memory_attention.attend(x, cache.memory_keys, cache.memory_values, memory_mask)
            return self.memory_attention(x, memory, memory, memory_mask)

        x = self.self_attention_block(x, attend_self)
        x = self.memory_attention_block(x, attend_memory)
        return self.feed_forward_block(x, self.feed_forward)

    def new_cache(self, memory: Tensor, max_new_tokens: int) -> LayerCache:
        """Project the memory once and take room for the target's keys and values.

        Args:
            memory: The encoder's output, shape (B, n, d_model).
            max_new_tokens: Number of target positions to make room for.

        Returns:
            An empty cache for this layer.
        """
        attention, shape = self.self_attention, (memory.size(0), self.self_attention.n_heads, max_new_tokens)
        own = KeyValueCache(memory.new_empty(*shape, attention.d_k), memory.new_empty(*shape, attention.d_v))
        return LayerCache(own, *self.memory_attention.project(memory, memory))


class Decoder(nn.Module):
    """A stack of decoder layers.

    Args:
        layers: The layers, first to last.
        norm: A final normalization, which pre-norm stacks need; None for post-norm.

    Source: §3.1, Decoder.
    """

    def __init__(self, layers: Iterable[DecoderLayer], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        caches: Iterable[LayerCache | None] | None = None,
    ) -> Tensor:
        """Run the target through every layer.

        Args:
            x: Embedded target, shape (B, m, d_model).
            memory: The encoder's output, shape (B, n, d_model); not needed with caches.
            tgt_mask: Bool, broadcastable to (B, h, m, t), t positions so far; None hides later positions only.
            memory_mask: Bool, broadcastable to (B, h, m, n); None hides nothing.
            caches: One per layer, or None.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: Neither memory nor caches are given, or the number of caches is not that of the layers.
        """
        each = [None] * len(self.layers) if caches is None else list(caches)
        if len(each) != len(self.layers):
            raise ValueError(f"{len(each)} caches for {len(self.layers)} layers; give one per layer.")
        for layer, cache in zip(self.layers, each, strict=True):
            x = layer(x, memory, tgt_mask, memory_mask, cache)
        return x if self.norm is None else self.norm(x)
