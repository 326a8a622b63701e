# Exported from notebooks/10_from_transformer_to_gpt.py, Section 10; edit that file, not this one.
# sha256 of what follows: fb497ea4636d9106
"""From Transformer to GPT (Section 10)."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.embeddings import TokenEmbedding
from transformer.feed_forward import PositionwiseFeedForward
from transformer.layers import Encoder, EncoderLayer
from transformer.masks import causal_mask
from transformer.multi_head import KeyValueCache, MultiHeadAttention
from transformer.positional_encoding import LearnedPositionalEncoding

__all__ = ["GPTConfig", "GELUFeedForward", "GPT", "convert_gpt2_weights"]


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Every size of a GPT. The defaults are those of the smallest GPT-2, whose vocab_size is 50,257.

    Args:
        vocab_size: V, the number of tokens.
        d_model: Width of the model.
        n_layers: N, the number of layers.
        n_heads: h.
        d_ff: Inner width of the feed-forward networks; 4 · d_model if None.
        max_len: Number of learned positions: the longest sequence.
        dropout: Rate on the embeddings, on each sub-layer's output and on the attention weights.

    Raises:
        ValueError: A value is impossible, or two do not fit together.

    Source: Radford et al. 2019, Section 2.3 and Table 2.
    """

    vocab_size: int
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int | None = None
    max_len: int = 1024
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "dropout":
                if not 0 <= value < 1:
                    raise ValueError(f"dropout is {value!r}; it must be in [0, 1).")
            elif not (field.name == "d_ff" and value is None) and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} is {value!r}; it must be a positive integer.")
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model is {self.d_model}; it must be divisible by n_heads={self.n_heads}.")


class GELUFeedForward(PositionwiseFeedForward):
    """FFN(x) = GELU(xW₁ + b₁)W₂ + b₂: the paper's network with a smooth hinge, x·Φ(x), in place of max(0, x).

    Args:
        d_model: Width of input and output.
        d_ff: Width of the inner layer.

    Source: Hendrycks and Gimpel 2016 (arXiv:1606.08415); GPT-2 computes Φ by the approximation with tanh given there.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position.

        Args:
            x: Shape (…, d_model).

        Returns:
            Shape (…, d_model).
        """
        return self.w_2(F.gelu(self.w_1(x), approximate="tanh"))  # (…, d_model) → (…, d_ff) → (…, d_model)


class GPT(nn.Module):
    """A decoder-only Transformer: a stack of encoder layers under a causal mask.

    Args:
        config: Its sizes.

    Attributes:
        embedding: Token vectors, which are the output matrix as well.
        positions: One learned vector per position.
        blocks: The paper's `Encoder`, with normalization before each sub-layer and once at the end.

    Source: Radford et al. 2019; the decoder without an encoder is from Liu et al. 2018 (arXiv:1801.10198).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model)
        self.positions = LearnedPositionalEncoding(config.max_len, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = Encoder((_make_layer(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model))
        _initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token at every position.

        Args:
            ids: Token ids, shape (B, n), integers, n at most max_len.

        Returns:
            Logits, shape (B, n, V); those at a position depend on the ids up to it.

        Raises:
            TypeError: ids are neither int64 nor int32.
            ValueError: ids is not a non-empty (B, n), too long, or an id is out of range.
        """
        x = self._embed(ids)  # (B, n, d_model)
        hidden = self.blocks(x, causal_mask(ids.size(1), ids.device))  # (B, n, d_model)
        return self.embedding.project(hidden)  # (B, n, V)

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue each sequence, drawing token after token from the softmax of the logits divided by the temperature.

        Keys and values are kept, so each step computes one position.

        Args:
            ids: The sequences to continue, shape (B, n), integers.
            max_new_tokens: Number of tokens to add; n + max_new_tokens is at most max_len.
            temperature: Above 0. Towards 0 the most probable token takes all.
            top_k: Draw among the k most probable tokens only; None for all. With 1 nothing is left to chance.
            generator: Source of chance, on the model's device; torch's own if None.

        Returns:
            The ids and those drawn, shape (B, n + max_new_tokens).

        Raises:
            TypeError: ids are neither int64 nor int32.
            ValueError: The model is in training mode, or an argument is out of its range.

        Source: not in the paper, which searches with a beam (§6.1).
        """
        _check_generate(self, ids, max_new_tokens, temperature, top_k)
        capacity, caches = ids.size(1) + max_new_tokens, []
        for _ in range(self.config.n_layers):
            shape = (ids.size(0), self.config.n_heads, capacity, self.config.d_model // self.config.n_heads)
            caches.append(KeyValueCache(self.embedding.weight.new_empty(shape), self.embedding.weight.new_empty(shape)))
        new = ids
        for _ in range(max_new_tokens):
            new = _draw(self._next_logits(new, caches), temperature, top_k, generator).to(ids)  # (B, 1)
            ids = torch.cat([ids, new], dim=1)
        return ids

    def _embed(self, ids: Tensor, start: int = 0) -> Tensor:
        x = self.embedding(ids) / self.config.d_model**0.5  # GPT-2 does not multiply by √d_model
        return self.dropout(self.positions(x, start))

    def _next_logits(self, ids: Tensor, caches: list[KeyValueCache]) -> Tensor:
        """Read the positions that are new to the caches, (B, m); return the logits of what follows, (B, V)."""
        x = self._embed(ids, caches[0].length)
        layers: list[Any] = list(self.blocks.layers)  # a ModuleList forgets that these are encoder layers
        for layer, cache in zip(layers, caches, strict=True):

            def attend(x: Tensor, attention: Any = layer.self_attention, cache: KeyValueCache = cache) -> Tensor:
                keys, values = cache.append(*attention.project(x, x))
                return attention.attend(x, keys, values, is_causal=True)

            x = layer.feed_forward_block(layer.attention_block(x, attend), layer.feed_forward)
        x = x[:, -1] if self.blocks.norm is None else self.blocks.norm(x[:, -1])
        return self.embedding.project(x)


def _make_layer(config: GPTConfig) -> EncoderLayer:
    attention = MultiHeadAttention(config.d_model, config.n_heads, attention_dropout=config.dropout)
    feed_forward = GELUFeedForward(config.d_model, config.d_ff or 4 * config.d_model)
    return EncoderLayer(attention, feed_forward, config.d_model, config.dropout, norm_order="pre")


def _initialize(model: GPT) -> None:
    """Normal weights with deviation 0.5/√d_model, near GPT-2's 0.02 at its width; smaller where branches are added."""
    std = 0.5 * model.config.d_model**-0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            into_the_sum = name.endswith(("w_o.weight", "w_2.weight"))
            nn.init.normal_(parameter, std=std / (2 * model.config.n_layers) ** 0.5 if into_the_sum else std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _check_generate(model: GPT, ids: Tensor, max_new_tokens: int, temperature: float, top_k: int | None) -> None:
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the output; call model.eval() first.")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
    if ids.dim() != 2 or ids.numel() == 0:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; expected a non-empty (batch, length).")
    if ids.size(1) + max_new_tokens > model.config.max_len:
        raise ValueError(
            f"{ids.size(1)} tokens and {max_new_tokens} new ones are more than the {model.config.max_len} positions "
            "that were learned; shorten the prompt or ask for fewer."
        )
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; it must be above 0 (top_k=1 is the limit at 0).")
    if top_k is not None and not 1 <= top_k <= model.config.vocab_size:
        raise ValueError(f"top_k is {top_k}; it must be from 1 to vocab_size={model.config.vocab_size}, or None.")


def _draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token for each row: (B, V) → (B, 1)."""
    logits, ids = logits.topk(top_k or logits.size(-1))  # (B, k), the largest first
    weights = ((logits - logits[:, :1]) / temperature).softmax(dim=-1)
    return ids.gather(1, torch.multinomial(weights, 1, generator=generator))


_GPT2_PARTS = {
    "wte": "embedding",
    "wpe": "positions",
    "ln_f": "blocks.norm",
    "ln_1": "attention_block.norm",
    "attn.c_attn": "self_attention",
    "attn.c_proj": "self_attention.w_o",
    "ln_2": "feed_forward_block.norm",
    "mlp.c_fc": "feed_forward.w_1",
    "mlp.c_proj": "feed_forward.w_2",
}


def convert_gpt2_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give GPT-2's weights, named and laid out as in Hugging Face's `GPT2LMHeadModel`, the names and layout of ours.

    There the query, key and value matrices stand side by side in one, and matrices are stored (in, out), not (out, in).

    Args:
        weights: The state dict, with or without the prefix "transformer.".

    Returns:
        A state dict for a `GPT` of the same sizes.

    Raises:
        ValueError: A name is unknown, or the output matrix is not the embedding.

    Source: Radford et al. 2019.
    """
    converted: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name == "lm_head.weight":
            table = weights.get("transformer.wte.weight", weights.get("wte.weight", tensor[:0]))
            if not torch.equal(tensor, table):
                raise ValueError("lm_head.weight differs from wte.weight; a GPT has one matrix for both.")
            continue
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # the causal mask, which old files hold
        found = re.fullmatch(r"(?:transformer\.)?(?:h\.(\d+)\.)?(.+)\.(weight|bias)", name)
        if found is None or found[2] not in _GPT2_PARTS:
            raise ValueError(f"{name!r} is no weight of GPT-2; give the state dict of a GPT2LMHeadModel or GPT2Model.")
        layer, part, kind = found.groups()
        ours = ("" if layer is None else f"blocks.layers.{layer}.") + _GPT2_PARTS[part]
        matrix = tensor.T if ".c_" in part and kind == "weight" else tensor
        if part == "attn.c_attn":
            converted |= {f"{ours}.w_{i}.{kind}": third for i, third in zip("qkv", matrix.chunk(3), strict=True)}
        else:
            converted[f"{ours}.{kind}"] = matrix
    return converted
