# Exported from notebooks/03_6_the_full_model.py, Section 3.6; edit that file, not this one.
# sha256 of what follows: 6afa0346548c51d5
"""The Full Model (Section 3.6)."""

import dataclasses
import json
import logging
from typing import Any, Self

import torch
from torch import Tensor, nn

from transformer.embeddings import TokenEmbedding
from transformer.feed_forward import PositionwiseFeedForward
from transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, LayerCache
from transformer.masks import causal_mask, padding_mask
from transformer.multi_head import MultiHeadAttention
from transformer.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding

__all__ = ["TransformerConfig", "DecoderCache", "Transformer", "count_parameters", "choose_device"]


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Every size of a Transformer. The defaults are the base model's.

    Args:
        src_vocab_size: Number of source tokens.
        tgt_vocab_size: V, the number of target tokens.
        d_model: Width of the model.
        n_layers: N, the layers of the encoder, and again of the decoder.
        n_heads: h.
        d_ff: Inner width of the feed-forward networks.
        d_k: Width of one head's queries and keys; d_model / h if None.
        d_v: Width of one head's values; d_model / h if None.
        dropout: P_drop.
        norm_order: "post" (the paper) or "pre".
        positions: "sinusoidal" (the paper) or "learned" (Table 3, row (E)).
        tie_embeddings: Share one matrix between both embeddings and the output, as in §3.4.
        max_len: Number of learned positions; sinusoids know no limit.
        pad_id: Fills short sentences up.
        bos_id: Begins every target.
        eos_id: Ends every sentence.

    Raises:
        ValueError: A value is impossible, or two do not fit together.

    Source: §3, Table 3.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    n_layers: int = 6
    n_heads: int = 8
    d_ff: int = 2048
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    norm_order: str = "post"
    positions: str = "sinusoidal"
    tie_embeddings: bool = True
    max_len: int = 1024
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def base(cls, vocab_size: int = 37_000, **changes: Any) -> Self:
        """The base model of Table 3: 6 layers, 512 wide, 8 heads."""
        return cls._from_fields({**_vocabulary(vocab_size), **changes})

    @classmethod
    def big(cls, vocab_size: int = 37_000, **changes: Any) -> Self:
        """The big model of Table 3: 6 layers, 1024 wide, 16 heads, dropout 0.3."""
        sizes = {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3}
        return cls._from_fields({**_vocabulary(vocab_size), **sizes, **changes})

    @classmethod
    def small(cls, vocab_size: int = 8_000, **changes: Any) -> Self:
        """For a few ten thousand sentence pairs: 3 layers, 256 wide, 4 heads. Not from the paper."""
        sizes = {"d_model": 256, "d_ff": 1024, "n_layers": 3, "n_heads": 4}
        return cls._from_fields({**_vocabulary(vocab_size), **sizes, **changes})

    @classmethod
    def tiny(cls, vocab_size: int = 1_000, **changes: Any) -> Self:
        """About a million parameters, for this book's embedded corpus. Not from the paper."""
        sizes = {"d_model": 128, "d_ff": 512, "n_layers": 2, "n_heads": 4}
        return cls._from_fields({**_vocabulary(vocab_size), **sizes, **changes})

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """One of the four by its name, "base", "big", "small" or "tiny".

        Args:
            name: Which.
            **changes: Fields with other values; `vocab_size` sets both vocabularies.

        Raises:
            ValueError: There is no such preset, or no such field.
        """
        presets = {"base": cls.base, "big": cls.big, "small": cls.small, "tiny": cls.tiny}
        if name not in presets:
            raise ValueError(f'preset {name!r} is unknown; choose "base", "big", "small" or "tiny".')
        return presets[name](**changes)

    def to_json(self) -> str:
        """The configuration as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: The text is not JSON, a field is unknown or missing, or a value is impossible.
        """
        try:
            fields = json.loads(text)
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(
                f"the configuration is not JSON ({error}); was the file cut short? Write it again with to_json()."
            ) from error
        if not isinstance(fields, dict):
            raise ValueError(f"the configuration is {text[:40]!r}; give a JSON object, as to_json() writes it.")
        return cls._from_fields(fields)

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> Self:
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(fields) - set(known))
        missing = sorted({"src_vocab_size", "tgt_vocab_size"} - set(fields))
        if unknown:
            raise ValueError(
                f"unknown configuration fields {unknown}; the fields are {', '.join(known)}. Correct the names, or "
                "update the package if a newer version wrote them."
            )
        if missing:
            raise ValueError(f"the configuration lacks {missing}; add the number of tokens of each vocabulary.")
        return cls(**fields)


def _check(config: TransformerConfig) -> None:
    def require(holds: bool, names: str, expected: str) -> None:
        if not holds:
            given = ", ".join(repr(getattr(config, name)) for name in names.split(", "))
            raise ValueError(f"{names} is {given}; it must be {expected}.")

    for name in ("src_vocab_size", "tgt_vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "max_len"):
        value = getattr(config, name)
        require(_is_int(value) and value >= 1, name, "a positive integer")
    for name in ("d_k", "d_v"):
        value = getattr(config, name)
        require(value is None or (_is_int(value) and value >= 1), name, "a positive integer or None")
    divides = config.d_model % config.n_heads == 0 or (config.d_k is not None and config.d_v is not None)
    require(divides, "d_model", f"divisible by n_heads={config.n_heads}, or d_k and d_v given")
    is_rate = isinstance(config.dropout, (int, float)) and 0 <= config.dropout < 1
    require(is_rate, "dropout", "a number in [0, 1)")
    require(config.norm_order in ("post", "pre"), "norm_order", '"post" or "pre"')
    require(config.positions in ("sinusoidal", "learned"), "positions", '"sinusoidal" or "learned"')
    pairs = config.positions == "learned" or config.d_model % 2 == 0
    require(pairs, "d_model", 'even, since sinusoids come in pairs; or set positions="learned"')
    require(isinstance(config.tie_embeddings, bool), "tie_embeddings", "True or False")
    if config.tie_embeddings and config.src_vocab_size != config.tgt_vocab_size:
        raise ValueError(
            f"src_vocab_size={config.src_vocab_size} and tgt_vocab_size={config.tgt_vocab_size} differ; tied "
            "embeddings need one shared vocabulary, so make them equal or set tie_embeddings=False."
        )
    special, smallest = (config.pad_id, config.bos_id, config.eos_id), min(config.src_vocab_size, config.tgt_vocab_size)
    distinct = all(_is_int(i) and 0 <= i < smallest for i in special) and len(set(special)) == 3
    require(distinct, "pad_id, bos_id, eos_id", f"three different ids below {smallest}")


def _vocabulary(size: int) -> dict[str, Any]:
    return {"src_vocab_size": size, "tgt_vocab_size": size}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class DecoderCache:
    """What the decoder keeps while it generates: every layer's keys and values, and the memory's mask.

    Args:
        layers: One cache per decoder layer.
        memory_mask: Bool, (B, 1, 1, n), True where the source holds a token; or None.
    """

    def __init__(self, layers: list[LayerCache], memory_mask: Tensor | None) -> None:
        self.layers = layers
        self.memory_mask = memory_mask

    @property
    def length(self) -> int:
        """Number of target positions decoded so far: the position of the next token."""
        return self.layers[0].own.length

    def select(self, index: Tensor, same_source: bool = False) -> None:
        """Keep these rows of the batch, in this order: beams that live on, sentences that are not finished.

        Args:
            index: Row numbers, shape (B',), int64; a row may be repeated.
            same_source: Every row takes the place of one with the same source, so the memory stays where it is.
        """
        for layer in self.layers:
            layer.select(index, same_source)
        if self.memory_mask is not None and not same_source:
            self.memory_mask = self.memory_mask[index]


class Transformer(nn.Module):
    """The encoder–decoder of Figure 1.

    Args:
        config: Its sizes.

    Source: §3, Figure 1.
    """

    tgt_embedding: TokenEmbedding  # these two only with tie_embeddings=False
    output: nn.Linear

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.src_vocab_size, config.d_model)
        if not config.tie_embeddings:
            self.tgt_embedding = TokenEmbedding(config.tgt_vocab_size, config.d_model)
            self.output = nn.Linear(config.d_model, config.tgt_vocab_size, bias=False)
        self.src_positions, self.tgt_positions = _make_positions(config), _make_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        pre = config.norm_order == "pre"
        self.encoder = Encoder(
            (_make_encoder_layer(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model) if pre else None
        )
        self.decoder = Decoder(
            (_make_decoder_layer(config) for _ in range(config.n_layers)), nn.LayerNorm(config.d_model) if pre else None
        )
        self.apply(_xavier)

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits of the next token at every target position.

        Args:
            src: Source ids, shape (B, n), padded with pad_id.
            tgt_in: Target ids shifted right, shape (B, m): bos_id first, padded on the right.

        Returns:
            Logits, shape (B, m, V). Those at padded positions mean nothing.

        Raises:
            TypeError: ids are neither int64 nor int32.
            ValueError: A shape is wrong, a batch is empty, or an id is out of range (checked on the CPU only).
        """
        if src.dim() == 2 and tgt_in.dim() == 2 and src.size(0) != tgt_in.size(0):
            raise ValueError(f"src has {src.size(0)} sentences and tgt_in {tgt_in.size(0)}; give pairs.")
        src_mask = padding_mask(src, self.config.pad_id)  # (B, 1, 1, n)
        memory = self.encode(src, src_mask)  # (B, n, d_model)
        # Targets are padded on the right, so hiding later positions hides the padding from every real one.
        hidden = self.decode(tgt_in, memory, None, src_mask)  # (B, m, d_model)
        return self.output_projection(hidden)  # (B, m, V)

    def build_masks(self, src: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three masks of a batch, True where a position may attend.

        Args:
            src: Source ids, shape (B, n).
            tgt_in: Target ids, shape (B, m).

        Returns:
            src_mask (B, 1, 1, n), tgt_mask (B, 1, m, m) and memory_mask (B, 1, 1, n).
        """
        src_mask = padding_mask(src, self.config.pad_id)
        tgt_mask = padding_mask(tgt_in, self.config.pad_id) & causal_mask(tgt_in.size(1), tgt_in.device)
        return src_mask, tgt_mask, src_mask

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Read the source.

        Args:
            src: Source ids, shape (B, n).
            src_mask: Bool, (B, 1, 1, n); None if nothing is padded.

        Returns:
            The memory, shape (B, n, d_model).
        """
        return self.encoder(self.dropout(self.src_positions(self.embedding(src))), src_mask)

    def decode(
        self,
        tgt_in: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Hidden states of the target positions; with a cache, of the new positions only.

        Args:
            tgt_in: Target ids, shape (B, m).
            memory: From `encode`, shape (B, n, d_model); left out with a cache.
            tgt_mask: Bool, (B, 1, m, t), t positions so far; None hides later positions and nothing else.
            memory_mask: Bool, (B, 1, 1, n); left out with a cache.
            cache: From `new_cache`; it is extended by m positions.

        Returns:
            Shape (B, m, d_model).

        Raises:
            TypeError: ids are neither int64 nor int32.
            ValueError: Neither or both of memory and cache are given, a cache is full, or shapes do not fit together.
        """
        if (memory is None) == (cache is None):
            raise ValueError("decode needs either memory (from encode) or cache (from new_cache), not both or neither.")
        embedding = self.embedding if self.config.tie_embeddings else self.tgt_embedding
        start = 0 if cache is None else cache.length
        x = self.dropout(self.tgt_positions(embedding(tgt_in), start))  # (B, m, d_model)
        source = memory if cache is None else cache.layers[0].memory_keys
        if source is not None and source.size(0) != x.size(0):
            raise ValueError(
                f"tgt_in has {x.size(0)} rows and the source {source.size(0)}; give one target per source "
                "(cache.select repeats or drops rows)."
            )
        if cache is None:
            return self.decoder(x, memory, tgt_mask, memory_mask)
        return self.decoder(x, None, tgt_mask, cache.memory_mask, cache.layers)

    def output_projection(self, hidden: Tensor) -> Tensor:
        """The pre-softmax linear transformation.

        Args:
            hidden: Shape (B, m, d_model).

        Returns:
            Logits, shape (B, m, V).
        """
        if self.config.tie_embeddings:
            return self.embedding.project(hidden)
        return self.output(hidden)

    def new_cache(self, memory: Tensor, memory_mask: Tensor | None, max_new_tokens: int) -> DecoderCache:
        """Prepare to generate: project the memory once, take room for the target.

        Args:
            memory: From `encode`, shape (B, n, d_model).
            memory_mask: Bool, (B, 1, 1, n), or None.
            max_new_tokens: Number of target positions to make room for.

        Returns:
            An empty cache.

        Raises:
            ValueError: max_new_tokens is less than 1.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        layers: list[Any] = list(self.decoder.layers)  # a ModuleList forgets that these are decoder layers
        return DecoderCache([layer.new_cache(memory, max_new_tokens) for layer in layers], memory_mask)


def _make_positions(config: TransformerConfig) -> SinusoidalPositionalEncoding | LearnedPositionalEncoding:
    if config.positions == "learned":
        return LearnedPositionalEncoding(config.max_len, config.d_model)
    return SinusoidalPositionalEncoding(config.d_model)


def _make_attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(config.d_model, config.n_heads, config.d_k, config.d_v)


def _make_encoder_layer(config: TransformerConfig) -> EncoderLayer:
    return EncoderLayer(
        _make_attention(config),
        PositionwiseFeedForward(config.d_model, config.d_ff),
        config.d_model,
        config.dropout,
        config.norm_order,
    )


def _make_decoder_layer(config: TransformerConfig) -> DecoderLayer:
    return DecoderLayer(
        _make_attention(config),
        _make_attention(config),
        PositionwiseFeedForward(config.d_model, config.d_ff),
        config.d_model,
        config.dropout,
        config.norm_order,
    )


def _xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters; a shared matrix counts once.

    Args:
        model: Any module.

    Returns:
        The count.
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def choose_device(device: str = "auto") -> torch.device:
    """The device to compute on. "auto" takes CUDA if it is there, else MPS, else the CPU, and logs which.

    Args:
        device: "auto", "cpu", "mps", "cuda", or one of several, such as "cuda:1".

    Returns:
        The device.

    Raises:
        ValueError: torch does not know the name, or the machine has no such device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        chosen = next(name for name, here in available.items() if here)
        found = ", ".join(name for name, here in available.items() if here)
        logging.getLogger("transformer").info("device %s, chosen from what this machine has: %s", chosen, found)
        return torch.device(chosen)
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f'device {device!r} is unknown; use "auto", "cpu", "cuda" or "mps".') from error
    count = torch.cuda.device_count() if wanted.type == "cuda" else 1
    if not available.get(wanted.type, False) or (wanted.index or 0) >= count:
        raise ValueError(f'device {device!r} is not available on this machine; use "auto" or "cpu".')
    return wanted
