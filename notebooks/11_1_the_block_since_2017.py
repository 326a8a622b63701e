# %% [markdown]
# # 11.1 The Block Since 2017
#
# The encoder and decoder layers of 2017 are still there in the models of today; almost every part inside them has been exchanged. This chapter shows how to exchange
# one part at a time, and begins with the smallest change that mattered: where the normalization stands.

# %%
#| default_exp modern.stacks

# %%
import transformer

transformer.check_version("0.1")

# %% [markdown]
# ## One dial at a time

# %%
#| export
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerCache
from transformer.model import Transformer, TransformerConfig, _xavier
from transformer.multi_head import KeyValueCache, MultiHeadAttention


# %%
#| export
class NoPositions(nn.Module):
    """Leave the embeddings as they are: for models whose attention knows the positions itself, or none does."""

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Return x.

        Args:
            x: Embeddings, shape (B, n, d_model).
            start: Position of the first; not used.

        Returns:
            Shape (B, n, d_model).
        """
        return x


# %%
#| export
class ModernDecoderLayer(DecoderLayer):
    """A decoder layer whose cache has the heads that its self-attention projects keys and values to, however many."""

    def new_cache(self, memory: Tensor, max_new_tokens: int) -> LayerCache:
        """Project the memory once and take room for the target's keys and values.

        Args:
            memory: The encoder's output, shape (B, n, d_model).
            max_new_tokens: Number of target positions to make room for.

        Returns:
            An empty cache for this layer.
        """
        nothing = memory[:, :0]  # (B, 0, d_model): what comes out has no positions, and the right shape otherwise
        rooms = []
        for kept in self.self_attention.project(nothing, nothing):  # (B, heads, 0, d_k), (B, heads, 0, d_v)
            rooms.append(memory.new_empty(kept.size(0), kept.size(1), max_new_tokens, kept.size(3)))
        return LayerCache(KeyValueCache(*rooms), *self.memory_attention.project(memory, memory))


# %%
#| export
def build_transformer(
    config: TransformerConfig,
    *,
    norm: Callable[[int], nn.Module] = nn.LayerNorm,
    feed_forward: Callable[[int, int], nn.Module] | None = None,
    self_attention: Callable[[int, int], MultiHeadAttention] | None = None,
    positions: bool = True,
) -> Transformer:
    """Make a Transformer and exchange some of its parts. All others start from the same weights as without exchange.

    New parts are initialized as the model's own: Xavier for matrices, zero for biases. The attention over the memory
    stays the paper's.

    Args:
        config: The sizes, and the order of normalization.
        norm: Makes a normalization from d_model.
        feed_forward: Makes a feed-forward network from d_model and d_ff; None keeps the paper's.
        self_attention: Makes an attention of encoder or decoder from d_model and n_heads; None keeps the paper's.
        positions: Whether the model adds positional encodings to its embeddings.

    Returns:
        The model. Its state dict fits a model built with the same config and parts.

    Raises:
        ValueError: The config gives d_k or d_v and self_attention is another than the paper's.
    """
    if self_attention is not None and (config.d_k is not None or config.d_v is not None):
        raise ValueError("the config gives d_k or d_v, which self_attention would not see; leave both None.")
    model = Transformer(config)
    if not positions:
        model.add_module("src_positions", NoPositions())
        model.add_module("tgt_positions", NoPositions())
    sizes = (config.d_model, config.dropout, config.norm_order, norm)
    encoder: list[EncoderLayer] = []
    decoder: list[DecoderLayer] = []
    for old in (*model.encoder.layers, *model.decoder.layers):
        layer: Any = old  # a ModuleList forgets that these are layers
        attention, network = layer.self_attention, layer.feed_forward
        if self_attention is not None:
            attention = self_attention(config.d_model, config.n_heads).apply(_xavier)
        if feed_forward is not None:
            network = feed_forward(config.d_model, config.d_ff).apply(_xavier)
        if isinstance(layer, DecoderLayer):
            decoder.append(ModernDecoderLayer(attention, layer.memory_attention, network, *sizes))
        else:
            encoder.append(EncoderLayer(attention, network, *sizes))
    pre = config.norm_order == "pre"
    model.encoder = Encoder(encoder, norm(config.d_model) if pre else None)
    model.decoder = Decoder(decoder, norm(config.d_model) if pre else None)
    return model
