"""Models of others with our weights, so that all compute the same function: what differs is how fast.

- `TorchTransformer`: `torch.nn.Transformer`'s stacks, without the final normalizations that it adds to post-norm, with
  tied embeddings, √d_model and our sinusoids around them. Bool masks, and `is_causal` for the decoder, which is its
  fastest way; it never makes attention weights to return.
- `to_marian`: Hugging Face's `MarianMTModel` with its fused attention. Its sinusoids stand in another order, so its
  frozen table gets ours; it begins with our begin token; no token is forced or forbidden.
- `to_joey`: Joey NMT's encoder and decoder, post-norm, with its tied embeddings; its normalizations have ε = 1e-6.
- `to_ctranslate2`: a CTranslate2 model directory in float32: post-norm, tied output without bias, embeddings times
  √d_model, our sinusoids as its table. Tokens are the ids, written as text.

The sizes are the project's: "small" (3+3 layers, 256 wide, 4 heads, 8,000 pieces), "base" (6+6, 512, 8 heads, 37,000
pieces), and "tiny" for tests. Small works on lengths of Multi30k, base on those of newstest2014.

Dropout, at rate P: ours and Marian have it where the paper has it, on the sum of embeddings and positions and on the
output of each sub-layer; Marian's options for attention weights and the inner feed-forward layer stay at their default
of 0. `torch.nn.Transformer` and Joey NMT have one option for all: they drop attention weights and the inner layer, too.
So the comparison is made at P = 0 as well, where nobody draws anything.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.model import Transformer, TransformerConfig
from transformer.positional_encoding import sinusoids

WORK = {"tiny": "multi30k", "small": "multi30k", "base": "newstest2014"}
LONGEST = 512  # positions that tables of fixed size get
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 to 3 as CTranslate2 reads them


def make_config(size: str, dropout: float = 0.1) -> TransformerConfig:
    """Our configuration of a size: "tiny", "small" or "base"."""
    return TransformerConfig.preset(size, dropout=dropout)


def make_ours(size: str, dropout: float = 0.1, seed: int = 0) -> Transformer:
    """Our model with random weights."""
    torch.manual_seed(seed)
    return Transformer(make_config(size, dropout))


class TorchTransformer(nn.Module):
    """PyTorch's own stacks, and around them what they leave to their user.

    Args:
        model: Ours, post-norm, with tied embeddings; its weights are copied.
    """

    table: Tensor

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        config = model.config
        sizes = (config.d_model, config.n_heads, config.d_ff, config.dropout)
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, batch_first=True), config.n_layers, enable_nested_tensor=False
        )
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, batch_first=True), config.n_layers)
        self.transformer = nn.Transformer(
            config.d_model, config.n_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
        )
        self.embedding = nn.Embedding(config.src_vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("table", sinusoids(LONGEST, config.d_model).float(), persistent=False)
        self.load_state_dict(_for_torch(model))

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits (B, m, V) from ids (B, n) and (B, m)."""
        padding = src == 0
        future = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool, device=src.device).triu(1)
        hidden = self.transformer(
            self._embed(src),
            self._embed(tgt_in),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return nn.functional.linear(hidden, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        width = self.embedding.weight.size(1)
        return self.dropout(self.embedding(ids) * width**0.5 + self.table[: ids.size(1)])


def _for_torch(model: Transformer) -> dict[str, Tensor]:
    """Our weights under PyTorch's names."""
    ours = model.state_dict()
    theirs = {"embedding.weight": ours["embedding.weight"]}

    def copy(name: str, *parts: str) -> None:
        for kind in ("weight", "bias"):
            dot = "_" if name.endswith("in_proj") else "."
            theirs[f"transformer.{name}{dot}{kind}"] = torch.cat([ours[f"{part}.{kind}"] for part in parts])

    for layer, blocks in _layers(model):
        for i, block in enumerate(blocks, 1):
            copy(f"{layer}.norm{i}", f"{layer}.{block}_block.norm")
            if block != "feed_forward":
                name = "self_attn" if block in ("attention", "self_attention") else "multihead_attn"
                own = f"{layer}.{_attention(block)}"
                copy(f"{layer}.{name}.in_proj", f"{own}.w_q", f"{own}.w_k", f"{own}.w_v")
                copy(f"{layer}.{name}.out_proj", f"{own}.w_o")
        for i in (1, 2):
            copy(f"{layer}.linear{i}", f"{layer}.feed_forward.w_{i}")
    return theirs


def _layers(model: Transformer) -> list[tuple[str, tuple[str, ...]]]:
    """Name of each layer, and of its residual blocks."""
    kinds = {
        "encoder": ("attention", "feed_forward"),
        "decoder": ("self_attention", "memory_attention", "feed_forward"),
    }
    return [(f"{side}.layers.{i}", blocks) for side, blocks in kinds.items() for i in range(model.config.n_layers)]


def _attention(block: str) -> str:
    return "self_attention" if block == "attention" else block


def to_marian(model: Transformer) -> Any:
    """Hugging Face's `MarianMTModel` with our weights, in our model's mode."""
    from transformers import MarianConfig, MarianMTModel

    config, sides = model.config, ("encoder", "decoder")
    sizes: dict[str, Any] = {f"{side}_layers": config.n_layers for side in sides}
    sizes |= {f"{side}_attention_heads": config.n_heads for side in sides}
    sizes |= {f"{side}_ffn_dim": config.d_ff for side in sides}
    theirs: Any = MarianMTModel(
        MarianConfig(
            vocab_size=config.src_vocab_size,
            d_model=config.d_model,
            max_position_embeddings=LONGEST,
            scale_embedding=True,
            activation_function="relu",
            dropout=config.dropout,
            pad_token_id=config.pad_id,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id,
            forced_eos_token_id=None,
            **sizes,
        )
    )
    weights = {f"model.{name}": weight for name, weight in _for_marian(model).items()}
    missing, unknown = theirs.load_state_dict(weights, strict=False)
    tied = {"final_logits_bias", "lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in sides)}
    assert set(missing) <= tied and not unknown, (missing, unknown)
    theirs.generation_config.update(max_length=None, forced_eos_token_id=None, bad_words_ids=None)
    return theirs.train(model.training)


def _for_marian(model: Transformer) -> dict[str, Tensor]:
    ours = model.state_dict()
    theirs = {"shared.weight": ours["embedding.weight"]}

    def copy(name: str, part: str) -> None:
        for kind in ("weight", "bias"):
            theirs[f"{name}.{kind}"] = ours[f"{part}.{kind}"]

    for side in ("encoder", "decoder"):
        theirs[f"{side}.embed_positions.weight"] = sinusoids(LONGEST, model.config.d_model).float()
    for layer, blocks in _layers(model):
        for block in blocks[:-1]:
            name = "encoder_attn" if block == "memory_attention" else "self_attn"
            for part, other in (("w_q", "q_proj"), ("w_k", "k_proj"), ("w_v", "v_proj"), ("w_o", "out_proj")):
                copy(f"{layer}.{name}.{other}", f"{layer}.{_attention(block)}.{part}")
            copy(f"{layer}.{name}_layer_norm", f"{layer}.{block}_block.norm")
        for i in (1, 2):
            copy(f"{layer}.fc{i}", f"{layer}.feed_forward.w_{i}")
        copy(f"{layer}.final_layer_norm", f"{layer}.feed_forward_block.norm")
    return theirs


def to_joey(model: Transformer) -> nn.Module:
    """Joey NMT's model with our weights: its own parts, put together as its `Model` does, without its vocabularies."""
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.embeddings import Embeddings
    from joeynmt.encoders import TransformerEncoder

    config = model.config
    sizes: dict[str, Any] = {"num_layers": config.n_layers, "num_heads": config.n_heads, "hidden_size": config.d_model}
    sizes |= {"ff_size": config.d_ff, "dropout": config.dropout, "emb_dropout": config.dropout, "layer_norm": "post"}

    class Joey(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = Embeddings(config.d_model, scale=True, vocab_size=config.src_vocab_size, padding_idx=0)
            self.encoder = TransformerEncoder(**sizes)
            self.decoder = TransformerDecoder(**sizes, vocab_size=config.tgt_vocab_size)
            self.decoder.output_layer.weight = self.embed.lut.weight

        def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
            src_mask, tgt_mask = (src != 0)[:, None], (tgt_in != 0)[:, None]
            memory, _ = self.encoder(self.embed(src), None, src_mask)
            return self.decoder(self.embed(tgt_in), memory, None, src_mask, 0, None, tgt_mask)[0]

    theirs = Joey()
    missing, unknown = theirs.load_state_dict(_for_joey(model), strict=False)
    assert set(missing) <= {"decoder.output_layer.weight", "encoder.pe.pe", "decoder.pe.pe"} and not unknown
    return theirs.train(model.training)


def _for_joey(model: Transformer) -> dict[str, Tensor]:
    ours = model.state_dict()
    theirs = {"embed.lut.weight": ours["embedding.weight"]}
    attentions = {"attention": "src_src_att", "self_attention": "trg_trg_att", "memory_attention": "src_trg_att"}
    norms = {"attention": "layer_norm", "self_attention": "x_layer_norm", "memory_attention": "dec_layer_norm"}
    parts = {"w_q": "q_layer", "w_k": "k_layer", "w_v": "v_layer", "w_o": "output_layer"}
    for layer, blocks in _layers(model):
        names = {f"{layer}.feed_forward_block.norm": f"{layer}.feed_forward.layer_norm"}
        names |= {f"{layer}.feed_forward.w_{i}": f"{layer}.feed_forward.pwff_layer.{3 * (i - 1)}" for i in (1, 2)}
        for block in blocks[:-1]:
            names[f"{layer}.{block}_block.norm"] = f"{layer}.{norms[block]}"
            names |= {f"{layer}.{_attention(block)}.{a}": f"{layer}.{attentions[block]}.{b}" for a, b in parts.items()}
        theirs |= {f"{b}.{kind}": ours[f"{a}.{kind}"] for a, b in names.items() for kind in ("weight", "bias")}
    return theirs


def to_ctranslate2(model: Transformer, folder: str | Path) -> None:
    """Write our model as CTranslate2 reads it.

    Args:
        model: Post-norm, with tied embeddings and sinusoids.
        folder: Is there, and empty.
    """
    from ctranslate2.specs import TransformerSpec

    config = model.config
    spec = TransformerSpec.from_config(config.n_layers, config.n_heads, pre_norm=False)
    ours = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    table = sinusoids(LONGEST, config.d_model).float().numpy()
    for side in (spec.encoder, spec.decoder):
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        embeddings.weight = ours["embedding.weight"]
        side.scale_embeddings = True
        side.position_encodings.encodings = table
    spec.decoder.projection.weight = ours["embedding.weight"]

    def fill(target: Any, part: str, kinds: tuple[str, str] = ("weight", "bias")) -> None:
        for kind, attribute in zip(("weight", "bias"), kinds, strict=True):
            setattr(target, attribute, ours[f"{part}.{kind}"])

    def fuse(target: Any, *parts: str) -> None:
        for kind in ("weight", "bias"):
            fused = torch.cat([torch.from_numpy(ours[f"{part}.{kind}"]) for part in parts])
            setattr(target, kind, fused.numpy())

    layers = [*spec.encoder.layer, *spec.decoder.layer]
    for target, (layer, blocks) in zip(layers, _layers(model), strict=True):
        for block in blocks:
            if block == "feed_forward":
                part = target.ffn
                fill(part.linear_0, f"{layer}.feed_forward.w_1")
                fill(part.linear_1, f"{layer}.feed_forward.w_2")
            else:
                own = f"{layer}.{_attention(block)}"
                part = target.attention if block == "memory_attention" else target.self_attention
                q, k, v = (f"{own}.{name}" for name in ("w_q", "w_k", "w_v"))
                groups = [(q,), (k, v)] if block == "memory_attention" else [(q, k, v)]
                for linear, group in zip(part.linear, [*groups, (f"{own}.w_o",)], strict=True):
                    fuse(linear, *group)
            fill(part.layer_norm, f"{layer}.{block}_block.norm", ("gamma", "beta"))
    tokens = [*SPECIAL, *(str(i) for i in range(len(SPECIAL), config.src_vocab_size))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.decoder_start_token = SPECIAL[config.bos_id]
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def to_tokens(ids: list[int]) -> list[str]:
    """Ids as CTranslate2's tokens."""
    return [SPECIAL[i] if i < len(SPECIAL) else str(i) for i in ids]


def to_ids(tokens: list[str]) -> list[int]:
    """And back."""
    return [SPECIAL.index(token) if token in SPECIAL else int(token) for token in tokens]
