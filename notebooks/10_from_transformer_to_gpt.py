# %% [markdown]
# # 10 From Transformer to GPT
#
# A GPT is the paper's decoder without an encoder: our encoder layer under a causal mask, stacked. This chapter starts from the shell that many have
# written, with everything but the Transformer in it, measures what it cannot learn, and puts the missing parts in, until the logits are GPT-2's.

# %%
#| default_exp gpt

# %%
import transformer

transformer.check_version("0.1")

import json
import math
import statistics
from itertools import islice
from pathlib import Path

import altair as alt
import torch

from transformer import DecoderLayer, embedded_corpus

# %%
#| export
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


# %% [markdown]
# ## The shell
#
# > At each step the model is auto-regressive, consuming the previously generated symbols as additional input when generating the next.
# >
# > — Section 3
#
# Translation is not needed for that. A *language model* continues a text, symbol by symbol. The smallest programs that do so share one shape: random windows of a text, a table
# of tokens, a table of positions, a linear layer, AdamW, and a loop that draws the next token. Here it is. The text is English sentences of the
# [embedded corpus](A1_the_embedded_corpus.py), one a line, and a token is a character.

# %%
def sentences(split: str, number: int) -> str:
    """So many English sentences, one a line."""
    return "\n".join(pair.source for pair in islice(embedded_corpus(split), number))


WINDOW = 64
train_text, unseen_text = sentences("train", 20_000), sentences("dev", 1_300)
characters = sorted(set(train_text))
V = len(characters)
assert set(unseen_text) <= set(characters)


def encode(text: str) -> torch.Tensor:
    return torch.tensor([characters.index(character) for character in text])


def decode(ids: torch.Tensor) -> str:
    return "".join(characters[i] for i in ids.tolist())


train_ids, unseen_ids = encode(train_text), encode(unseen_text)
print(f"{len(train_ids):,} characters to train on, {len(unseen_ids):,} unseen; {V} different ones: {''.join(characters)!r}")
print(train_text[:130])

# %%
class Shell(nn.Module):
    """What is left of a GPT without the Transformer."""

    def __init__(self, vocab_size: int, d_model: int, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:  # (B, n)
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))  # (B, n, d_model)
        return self.head(x)  # (B, n, V)


# %%
def windows(ids: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (B, WINDOW) each: the target of a position is the next character."""
    rows = ids[starts[:, None] + torch.arange(WINDOW + 1)]
    return rows[:, :-1], rows[:, 1:]


def train(model: nn.Module, updates: int, learning_rate: float, rows: int = 16) -> None:
    """AdamW on random windows of the training text; the learning rate rises, then falls, and β₁ goes the other way."""
    adam = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, learning_rate, total_steps=updates, pct_start=0.1)
    for _ in range(updates):
        inputs, targets = windows(train_ids, torch.randint(len(train_ids) - WINDOW, (rows,)))
        adam.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        adam.step()
        schedule.step()


# %%
inputs, targets = windows(unseen_ids, torch.arange(0, len(unseen_ids) - WINDOW, WINDOW))  # every unseen character once


@torch.inference_mode()
def losses(model: nn.Module) -> Tensor:
    """Nats for every unseen character, by window and position: (windows, WINDOW)."""
    return F.cross_entropy(model(inputs).mT, targets, reduction="none")


torch.manual_seed(0)
shell = Shell(V, d_model=64, max_len=WINDOW)
train(shell, updates=800, learning_rate=0.02)
shell_losses = losses(shell)
print(f"nats per unseen character: {shell_losses.mean():.1f}; without any knowledge it is ln {V} = {math.log(V):.1f}")

# %%
begin = encode("\n")[None].expand(100, 1)  # (B, 1): a new line begins a sentence
ids, chance = begin, torch.Generator().manual_seed(0)
with torch.inference_mode():
    for _ in range(WINDOW - 1):  # the sampling loop: logits, softmax, draw, append
        logits = shell(ids)[:, -1]  # (B, V)
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=chance)], dim=1)  # (B, n + 1)
shell_says = ids

words = set(train_text.split())


def known_words(ids: Tensor) -> float:
    """Which share of the words are words of the training text; the last of a row may be cut off and does not count."""
    return statistics.mean(word in words for row in ids for word in decode(row).split()[:-1])


assert known_words(shell_says) < 0.3
print("of ten words that the shell says, fewer than three exist")

# %% [markdown]
# Pairs of letters look like English; words seldom come of it (they can be read below). Line by line, the shell against the paper:
#
# | the shell | the paper | what the paper has there |
# |---|---|---|
# | `ids[starts + …]`, input and target one apart | Section 3.1 | outputs "offset by one position"; no source sentence |
# | `tokens(ids)` | Section 3.4 | the same, multiplied by $\sqrt{d_{\text{model}}}$ |
# | `positions(arange(n))` | Section 3.5 | sinusoids; learned vectors are row (E) of its Table 3 |
# | `x = …` and straight to the head | Sections 3.1 to 3.3 | **all that the shell lacks**, see below |
# | `head(x)` | Section 3.4 | a linear layer whose matrix is the embedding's |
# | `cross_entropy` | Section 5.4 | with label smoothing |
# | `AdamW`, rising and falling rate | Section 5.3 | Adam, a warm-up and an inverse square root |
# | random windows | Section 5.1 | sentence pairs of like length |
# | the sampling loop | Section 6.1 | beam search |
#
# | it lacks | Section | so that |
# |---|---|---|
# | attention | 3.2.1 | no position learns of another |
# | several heads | 3.2.2 | it could not look at two places for two reasons |
# | a causal mask | 3.2.3 | not needed while nothing moves between positions; with attention, without it, the next character would be read off |
# | a feed-forward network | 3.3 | nothing is computed within a position |
# | residual connections | 3.1 | a second layer would have to carry everything on by itself |
# | layer normalization | 3.1 | training is much slower, as measured below |
# | dropout | 5.4 | little: a text that is read about once needs no regularizer |
#
# ## Check it: the shell learns bigrams and no more
#
# **It sees one character.** Change all characters of a window but one: the logits at that one stay as they were, to the bit.

# %%
with torch.inference_mode():
    other = torch.randint(V, inputs[:8].shape)
    other[:, 40] = inputs[:8, 40]
    assert torch.equal(shell(other)[:, 40], shell(inputs[:8])[:, 40])
print("all characters but one replaced; the logits at that one: equal to the bit")

# %% [markdown]
# So its logits are a function of the character and its place in the window. The place says nothing, since windows begin anywhere. What is left is a table with a row for each
# character: a *bigram* model. The best such table for a text has the shares of the text itself, and its loss is the conditional entropy
# $H(x_{t+1} \mid x_t)$. No table gets below it (Gibbs' inequality). We take the places away by giving all of them their mean, and hold the shell against both: the bound, and the
# table that is filled by counting the training text.

# %%
def code(rows: Tensor) -> Tensor:
    """One number for each row of characters: (R, n) → (R)."""
    return sum((rows[:, j] * V**j for j in range(rows.size(1))), torch.zeros(len(rows), dtype=torch.int64))


# How often every sequence of n characters occurs in the training text, by its number.
LONGEST = 8
sequences = {n: code(train_ids.unfold(0, n, 1)).unique(return_counts=True) for n in range(1, LONGEST + 2)}


def count(rows: Tensor) -> Tensor:
    """How often each row of characters occurs in the training text: (R, n) → (R)."""
    if rows.size(1) == 0:
        return torch.full((len(rows),), len(train_ids))
    known, counts = sequences[rows.size(1)]
    at = torch.searchsorted(known, code(rows)).clamp(max=len(known) - 1)
    return torch.where(known[at] == code(rows), counts[at], 0)


# %%
def table_losses(rows: Tensor) -> Tensor:
    """Nats for the last character of each row, (R, n + 1) → (R), from counts of what followed the n before it.

    What was never seen gets a share of one count, spread as the table of the next shorter context says.
    """
    p = torch.full((len(rows),), 1 / V, dtype=torch.float64)
    for n in range(rows.size(1)):
        seen = rows[:, rows.size(1) - 1 - n :]  # the last n characters and the one that follows
        p = (count(seen) + p) / (count(seen[:, :-1]) + 1)
    return -p.log()


tables = [table_losses(unseen_ids.unfold(0, n + 1, 1)).mean().item() for n in range(LONGEST + 1)]
for n, nats in enumerate(tables):
    print(f"a table of what follows {n} characters: {nats:.2f} nats")

# %%
pair = torch.bincount(inputs.flatten() * V + targets.flatten(), minlength=V * V).view(V, V).double()  # (now, next)
bound = -(pair * (pair / pair.sum(1, keepdim=True).clamp(min=1)).clamp(min=1e-300).log()).sum() / pair.sum()
with torch.no_grad():
    placeless = Shell(V, 64, WINDOW)
    placeless.load_state_dict(shell.state_dict())
    placeless.positions.weight[:] = shell.positions.weight.mean(0)
learned = losses(placeless).double().mean().item()
counted = table_losses(torch.stack([inputs, targets], -1).flatten(0, 1)).mean().item()
assert bound < learned < bound + 0.02 and bound < counted and abs(learned - counted) < 0.02
assert bound < shell_losses.double().mean() and abs(shell_losses.double().mean() - counted) < 0.02
print(f"no table below {bound:.3f} nats; the counted table {counted:.3f}; the shell, with places or without, within 0.02 of that")

# %% [markdown]
# Less than 0.02 nats apart, and none below the bound. And the shell is not only as good as the table: it has learned the table. Row by row, the softmax of its logits is close to the shares of what follows in
# the training text:

# %%
after = torch.stack([count(torch.stack([torch.full((V,), i), torch.arange(V)], 1)) for i in range(V)]).double()
after /= after.sum(1, keepdim=True)  # (now, next): shares in the training text
with torch.inference_mode():
    rows = placeless(torch.arange(V)[:, None])[:, 0].double().softmax(-1)  # (now, next): the shell's
often = torch.bincount(train_ids, minlength=V) / len(train_ids)
divergence = (often * (after * (after.clamp(min=1e-9) / rows).log()).sum(1)).sum().item()  # nats, weighted by frequency
furthest = (after - rows).abs()[often > 0.01].max().item()
assert divergence < 0.02 and furthest < 0.1
print("divergence of the shell's rows from the counted ones: below 0.02 nats; no share of a frequent character is off by 0.1")

# %% [markdown]
# ## The block is there already
#
# What the shell lacks is one encoder layer of [Section 3.1](03_1_encoder_and_decoder_stacks.py), with one change.
#
# > Similarly, self-attention layers in the decoder allow each position in the decoder to attend to all positions in the decoder up to and including that position. We need to prevent leftward information flow in the decoder to preserve the auto-regressive property.
# >
# > — Section 3.2.3
#
# A decoder layer is that encoder layer under a causal mask, and a third sub-layer that reads the encoder's output. Without an encoder the third has nothing to read. Here a decoder
# layer's cross-attention is silenced: its output projection is set to zero. With normalization before each sub-layer, adding zero changes nothing, and the layer *is* the encoder layer with the same weights,
# whatever the memory says.

# %%
def attention() -> MultiHeadAttention:
    return MultiHeadAttention(32, n_heads=4)


torch.manual_seed(0)
decoder_layer = DecoderLayer(attention(), attention(), PositionwiseFeedForward(32, 128), 32, norm_order="pre").eval()
encoder_layer = EncoderLayer(attention(), PositionwiseFeedForward(32, 128), 32, norm_order="pre").eval()
nn.init.zeros_(decoder_layer.memory_attention.w_o.weight)
nn.init.zeros_(decoder_layer.memory_attention.w_o.bias)
shared = {name.replace("self_attention_block", "attention_block"): weight for name, weight in decoder_layer.state_dict().items() if "memory" not in name}
encoder_layer.load_state_dict(shared)
with torch.inference_mode():
    x, memory = torch.randn(2, 10, 32), torch.randn(2, 7, 32)
    assert torch.allclose(decoder_layer(x, memory), encoder_layer(x, causal_mask(10)), atol=1e-6)
gone = [name for name in decoder_layer.state_dict() if "memory" in name]
print("decoder layer without cross-attention = encoder layer with a causal mask; gone:", *gone, sep="\n  ")

# %% [markdown]
# Why could the encoder go? Because one stack can do both of its jobs: put the source before the target in one sequence, and let the mask say who sees whom. The paper's three kinds of attention, laid out over
# source and target positions, are one mask of one block:

# %%
n, m = 4, 6  # source and target positions
encoder_sees = torch.ones(n, n, dtype=torch.bool)
decoder_sees_itself = causal_mask(m)
decoder_sees_the_source = torch.ones(m, n, dtype=torch.bool)
encoder_decoder = torch.cat(
    [
        torch.cat([encoder_sees, torch.zeros(n, m, dtype=torch.bool)], 1),
        torch.cat([decoder_sees_the_source, decoder_sees_itself], 1),
    ]
)
MASKS = {
    "no attention (the shell)": torch.eye(n + m, dtype=torch.bool),
    "decoder-only: causal": causal_mask(n + m),
    "encoder–decoder: prefix": encoder_decoder,
    "encoder-only: full": torch.ones(n + m, n + m, dtype=torch.bool),
}
for name, mask in MASKS.items():
    print(f"{name:26} {mask.sum():3} of {mask.numel()} pairs")

# %% [markdown]
# It is the same block, and not quite the same model: in the paper the source is read by weights of its own, and a target position has two softmaxes, one for each side. Raffel et al.
# ([2020](https://arxiv.org/abs/1910.10683)) compared an encoder–decoder, a causal stack and one with a prefix at full size; on their tasks the encoder–decoder did best. The first decoder-only Transformer (Liu et al. [2018](https://arxiv.org/abs/1801.10198); two of the paper's authors wrote it, too) had
# simply the source, a separator and the target in one causal sequence: about half of the parameters, and one task, the next token, for all positions. [Section 7](07_conclusion.py) follows the three families.
#
# Does the mask decide where information goes, through a whole stack? We change the character at one position and see where the output moves, in two layers with random weights.

# %%
@torch.inference_mode()
def influence(layers: list[EncoderLayer], mask: Tensor) -> Tensor:
    """How far each output moves when one input changes: (n, n), row by output, column by input."""
    size = len(mask)
    x = torch.randn(size, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = x.repeat(size + 1, 1, 1)  # one copy for each changed position, and one as it was
    inputs[torch.arange(size), torch.arange(size)] *= -1
    for layer in layers:
        inputs = layer(inputs, mask)
    return (inputs[:size] - inputs[size]).norm(dim=-1).T


torch.manual_seed(2)
stack = [EncoderLayer(attention(), PositionwiseFeedForward(32, 128), 32, norm_order="pre").double().eval() for _ in range(2)]
moved = {name: influence(stack, mask) for name, mask in MASKS.items()}
for name, mask in MASKS.items():
    assert torch.equal(moved[name] > 1e-9, mask), name
print("under each mask, through two layers: outputs move exactly where the mask allows it")

# %% tags=["hide-input"]
labels = [f"s{i + 1}" for i in range(n)] + [f"t{i + 1}" for i in range(m)]
cells = [
    {"mask": name, "output": labels[i], "input": labels[j], "moves": round(value, 3)}
    for name, matrix in moved.items()
    for i, row in enumerate(matrix.tolist())
    for j, value in enumerate(row)
    if value > 1e-9
]
heat = (
    alt.Chart(alt.Data(values=cells))
    .mark_rect(stroke="#7a7f87", strokeWidth=0.5)
    .encode(
        x=alt.X("input:N", sort=labels, title="input changed", scale=alt.Scale(domain=labels), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("output:N", sort=labels, title="output moves", scale=alt.Scale(domain=labels)),
        color=alt.Color("moves:Q", title="by", scale=alt.Scale(scheme="viridis", type="log", domain=[0.05, 20]), legend=alt.Legend(orient="bottom")),
        tooltip=["mask:N", "output:N", "input:N", "moves:Q"],
    )
    .properties(width=165, height=165)
    .facet(facet=alt.Facet("mask:N", title=None, sort=list(MASKS)), columns=2)
    .properties(title="One block, four masks: information goes where the mask lets it")
)
heat

# %% [markdown]
# Four source positions, s1 to s4, six target positions, t1 to t6. An empty cell: nothing passes. The shell's is the diagonal. The causal triangle is a GPT. The prefix adds one square, where the source sees its own
# later words. The full square is BERT's; it cannot say what comes next, because it has seen it.
#
# ## GPT-2 from our parts
#
# What follows is GPT-2 (Radford et al. 2019): the layer above, $N$ times, with normalization before each sub-layer and once at the end, learned positions, GELU for ReLU, and the output matrix tied to the embedding.

# %%
#| export
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


# %%
#| export
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


# %%
#| export
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


# %%
#| export
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


# %%
#| export
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


# %%
#| export
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


# %%
#| export
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


# %% [markdown]
# Beside the norms, the positions and GELU, three things differ from the paper. The embedding is **not** multiplied by $\sqrt{d_{\text{model}}}$, so we divide by it what `TokenEmbedding` multiplied. The weights of
# [GPT-2's code](https://github.com/openai/gpt-2/blob/master/src/model.py) begin normal with a deviation of 0.02 (the positions' with 0.01), and by its report's Section 2.3 what writes into the residual stream begins smaller, by the root of the
# number of such additions, $2N$. We put $0.5/\sqrt{d_{\text{model}}}$ for both deviations, so that small models begin alike; at GPT-2's width that is close to 0.02. And dropout falls on the attention weights, too, as in GPT-1 (Radford et al. 2018).
#
# Why does the paper multiply and GPT-2 not? Neither says. But compare lengths: sinusoids come in one size, while learned positions can begin as small as the tokens.

# %%
gpt_like, paper_like = GPT(GPTConfig(V, d_model=64, n_layers=1, n_heads=4, max_len=WINDOW)), transformer.TokenEmbedding(V, 64)
size = {
    "our GPT's token vector": gpt_like.embedding.weight.norm(dim=1).mean().item(),
    "our GPT's position vector": gpt_like.positions.weight.norm(dim=1).mean().item(),
    "the paper's token vector, times √d_model": paper_like(torch.arange(V)[None]).norm(dim=-1).mean().item(),
    "a sinusoid": transformer.sinusoids(WINDOW, 64).norm(dim=1).mean().item(),
}
for what, length in size.items():
    print(f"{what:41} is {length:.1f} long")
assert size["a sinusoid"] > 5 * size["our GPT's token vector"] and size["a sinusoid"] < size["the paper's token vector, times √d_model"]
assert abs(0.5 * 768**-0.5 - 0.02) < 0.002, "the deviation at GPT-2's width"

# %% [markdown]
# A sinusoid is many times as long as a token vector that nobody multiplied, and would drown it; beside the paper's it does not. With two learned tables of like size nothing needs to be multiplied.
#
# `forward` passes a causal mask to our `Encoder`. `generate` walks through the same layers with a cache of keys and values for each, so that a step computes one position. With learned positions there is no
# position beyond `max_len`, and `generate` says so rather than forget the beginning.
#
# ### See it: the smallest GPT-2
#
# On the device "meta" a model has shapes and no numbers, so its parameters can be counted without being stored.

# %%
with torch.device("meta"):
    gpt2 = GPT(GPTConfig(vocab_size=50_257))
V2, d, N, L = 50_257, 768, 12, 1024
by_formula = V2 * d + L * d + N * (4 * (d * d + d) + (8 * d * d + 5 * d) + 4 * d) + 2 * d
print(f"GPT-2: {transformer.count_parameters(gpt2):,} parameters, {V2 * d / by_formula:.0%} of them the token table")
assert transformer.count_parameters(gpt2) == by_formula == 124_439_808

# %% [markdown]
# The report's table says 117 million, which its authors later corrected; the published weights are this many. Are the *logits* GPT-2's as well? A test of this book (`tests/test_gpt.py`) gives a small `GPT2LMHeadModel` of Hugging Face random weights, hands them to
# `convert_gpt2_weights`, and finds equal logits. What the conversion undoes is shown here on one layer's attention: there, queries, keys and values are one matrix, and matrices are stored as the
# paper writes them, $xW$, not $xW^\top$.

# %%
width = 12
c_attn, bias = torch.randn(width, 3 * width), torch.randn(3 * width)  # (in, out), as in GPT-2's file
ours = convert_gpt2_weights({"h.0.attn.c_attn.weight": c_attn, "h.0.attn.c_attn.bias": bias})
for name, tensor in ours.items():
    print(f"{name:45} {tuple(tensor.shape)}")
small = MultiHeadAttention(width, 3)
small.load_state_dict({name.split(".", 4)[-1]: tensor for name, tensor in ours.items()}, strict=False)
x = torch.randn(1, 5, width)
query, key, value = (x @ c_attn + bias).chunk(3, dim=-1)
for ours, theirs in ((small.w_q(x), query), (small.w_k(x), key), (small.w_v(x), value)):
    assert torch.allclose(ours, theirs, atol=1e-5)

# %% [markdown]
# ### Check it: what a GPT sees, and what its cache changes

# %%
torch.manual_seed(0)
tiny = GPT(GPTConfig(V, d_model=32, n_layers=2, n_heads=4, max_len=WINDOW, dropout=0.0)).eval()
with torch.inference_mode():
    ids, logits = inputs[:1], tiny(inputs[:1])
    for position in (0, 17, 63):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % V
        reached = (tiny(changed) != logits).any(-1)[0].nonzero().flatten().tolist()
        assert reached == list(range(position, WINDOW))
        print(f"character {position:2} changed: logits {reached[0]} to {reached[-1]} move")
assert all(isinstance(layer, EncoderLayer) for layer in tiny.blocks.layers)

# %%
prompt, slow = inputs[:3, :10], inputs[:3, :10]
for _ in range(30):  # no cache: the whole sequence again for each character
    with torch.inference_mode():
        slow = torch.cat([slow, tiny(slow)[:, -1:].argmax(-1)], dim=1)
assert torch.equal(tiny.generate(prompt, 30, top_k=1), slow)
print("30 characters generated with the cache and without: the same")

# %% [markdown]
# ## Train it on characters
#
# The same text, the same loop and as many updates as for the shell, at a learning rate of its own; two layers, 64 wide, four heads.

# %%
torch.manual_seed(0)
gpt = GPT(GPTConfig(V, d_model=64, n_layers=2, n_heads=4, max_len=WINDOW, dropout=0.0))
train(gpt, updates=800, learning_rate=0.008)
gpt.eval()
gpt_losses = losses(gpt)
print(f"{transformer.count_parameters(gpt):,} parameters")

# %%
nats = {"uniform": math.log(V), "characters alone": tables[0], "bigrams": tables[1], "the shell": shell_losses.mean().item(), "GPT": gpt_losses.mean().item()}
for name, value in nats.items():
    print(f"{name:17} {value:.1f} nats per character")
assert nats["GPT"] < 0.5 * nats["bigrams"], "a GPT must fall far below the bigrams"
assert nats["GPT"] < tables[3] - 0.05, "three characters are not enough for a table to do as well"

# %% [markdown]
# The shell ends where the bigrams end. The GPT falls to less than half of that, and below a table of what follows every three characters. Where in the window does it win? At the first position it has
# seen one character, and knows no more than a bigram table. Each further position has seen one more.

# %% tags=["hide-input"]
curves = [
    {"seen": position + 1, "nats": round(value, 3), "model": name}
    for name, by_position in (("GPT", gpt_losses.mean(0)), ("shell", shell_losses.mean(0)))
    for position, value in enumerate(by_position.tolist())
]
levels = [{"table": n, "level": round(value, 3), "entries": len(sequences[n + 1][0]), "model": "table"} for n, value in enumerate(tables)]
remembered = alt.param("remembered", value=1, bind=alt.binding_range(min=0, max=LONGEST, step=1, name="characters the table remembers "))
colour = alt.Color("model:N", title=None, scale=alt.Scale(domain=["GPT", "shell", "table"], range=["#0072B2", "#D55E00", "#009E73"]), legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300))
dash = alt.StrokeDash("model:N", title=None, scale=alt.Scale(domain=["GPT", "shell", "table"], range=[[1, 0], [6, 3], [2, 3]]))
y = alt.Y("nats:Q", title="nats per character", scale=alt.Scale(domain=[0, 3.1]))
lines = (
    alt.Chart(alt.Data(values=curves))
    .mark_line(strokeWidth=2)
    .encode(x=alt.X("seen:Q", title="characters seen in the window", scale=alt.Scale(domain=[1, WINDOW], nice=False)), y=y, color=colour, strokeDash=dash, tooltip=["model:N", "seen:Q", "nats:Q"])
)
level = (
    alt.Chart(alt.Data(values=levels))
    .transform_filter("datum.table == remembered")
    .mark_rule(strokeWidth=2)
    .encode(y=alt.Y("level:Q"), color=colour, strokeDash=dash, tooltip=["table:Q", "level:Q", "entries:Q"])
)
chart = (level + lines).add_params(remembered).properties(width=430, height=240, title="Near the bigrams at first; the next few characters help most")
chart

# %% [markdown]
# The solid line is the GPT, the dashed one the shell, which never leaves the bigrams' level. The dotted line is a table of what follows the last $n$ characters, by counting; choose $n$. With $n = 1$ it lies on the shell, with 3 the
# GPT is below it after a few characters. Our language is small, and this GPT is small and has seen little: tables of five or more characters still do better, at the price of ever more entries. Then they, too, come to
# an end: the same text is spread over ever more contexts, and each is seen less often.

# %%
first = table_losses(torch.stack([inputs[:, 0], targets[:, 0]], 1)).mean().item()
assert abs(gpt_losses[:, 0].mean().item() - first) < 0.3, "with one character seen, a GPT is a bigram model"
assert gpt_losses[:, 16:].mean() < 0.6 * gpt_losses[:, 1].mean(), "and with more it is not"
assert gpt_losses[:, 0].mean() - gpt_losses[:, 8].mean() > 5 * (gpt_losses[:, 8].mean() - gpt_losses[:, 16:].mean()), "the first few help most"
assert abs(shell_losses[:, 16:].mean() - shell_losses[:, 0].mean()) < 0.2
assert gpt_losses[:, WINDOW // 2 :].mean() < gpt_losses.mean() - 0.02, "where a window has half of itself behind it, the loss is lower"
best = min(range(len(tables)), key=tables.__getitem__)
assert gpt_losses[:, 7:].mean(0).max() < tables[3], "from eight characters on below the table of three"
assert max(tables[5:]) < nats["GPT"] and best < LONGEST
for n in (1, 3, best, LONGEST):
    print(f"a table that remembers {n} characters: {len(sequences[n + 1][0]):,} entries; a context was seen {len(train_ids) / len(sequences[n][0]):,.0f} times on average")
print(f"the GPT: {transformer.count_parameters(gpt):,} parameters")

# %% [markdown]
# ## Generate
#
# > We used beam search with a beam size of $4$ and length penalty $\alpha=0.6$.
# >
# > — Section 6.1
#
# The paper searches for a most probable translation. A continued text is one of many. So a GPT *draws* the next token, from the softmax of the logits divided by a temperature. At 1 it draws from what it has learned; towards 0 the
# most probable token wins.

# %%
def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


said = {t: gpt.generate(begin, WINDOW - 1, temperature=t, generator=seeded()) for t in (0.3, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)}
share = {t: known_words(ids) for t, ids in said.items()}
assert share[0.3] > 0.95 and share[1.0] > 0.8 and share[2.0] < 0.65
assert share[0.3] > share[1.0] > share[1.5] > share[2.0]
print("of twenty words exist: at temperature 0.3 more than 19, at 1 more than 16, at 2 fewer than 13")

# %%
@torch.inference_mode()
def surprise(ids: Tensor) -> float:
    """Nats per character after the first eight, by the GPT."""
    return F.cross_entropy(gpt(ids[:, :-1]).mT, ids[:, 1:], reduction="none")[:, 7:].mean().item()


# %% tags=["hide-input"]
shown = [
    {"who": f"GPT, temperature {t:g}", "line": i, "text": line}
    for t, ids in said.items()
    for i, line in enumerate([decode(row[1:]).replace("\n", " / ") for row in ids[:6]])
] + [{"who": "the shell", "line": i, "text": decode(row[1:]).replace("\n", " / ")} for i, row in enumerate(shell_says[:6])]
who = ["the shell"] + [f"GPT, temperature {t:g}" for t in said]
speaker = alt.param("speaker", value="GPT, temperature 1", bind=alt.binding_select(options=who, name="who speaks "))
texts = (
    alt.Chart(alt.Data(values=shown))
    .transform_filter("datum.who == speaker")
    .mark_text(align="left", font="monospace", fontSize=11)
    .encode(x=alt.value(0), y=alt.Y("line:O", axis=None), text="text:N", tooltip="text:N")
    .properties(width=450, height=120, title="The warmer it draws, the fewer of its words exist")
)
nats_said = [{"temperature": t, "nats": round(surprise(ids), 3), "what": "drawn at this temperature"} for t, ids in said.items()]
kinds = alt.Scale(domain=["drawn at this temperature", "unseen text"], range=["#0072B2", "#D55E00"])
own = (
    alt.Chart(alt.Data(values=nats_said))
    .mark_line(point=alt.OverlayMarkDef(size=50))
    .encode(
        x=alt.X("temperature:Q", scale=alt.Scale(domain=[0, 2.1], nice=False)),
        y=alt.Y("nats:Q", title="nats per character"),
        color=alt.Color("what:N", title=None, scale=kinds, legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300)),
        strokeDash=alt.StrokeDash("what:N", title=None, scale=alt.Scale(domain=kinds.domain, range=[[1, 0], [6, 3]])),
        tooltip=["what:N", "temperature:Q", "nats:Q"],
    )
)
text_level = (
    alt.Chart(alt.Data(values=[{"nats": round(surprise(inputs[:300]), 3), "what": "unseen text"}]))
    .mark_rule(strokeWidth=2)
    .encode(y="nats:Q", color=own.encoding.color, strokeDash=own.encoding.strokeDash, tooltip=["what:N", "nats:Q"])
)
measures = (own + text_level).properties(width=400, height=150, title="At temperature 1 it surprises itself as the text does")
chart = (texts & measures).resolve_legend(color="independent", strokeDash="independent").add_params(speaker)
chart

# %% [markdown]
# Six continuations of a new line. Choose who speaks; a slash marks a line's end. The shell's letters seldom become words. The GPT at 0.3 spells nearly all of its words right and surprises itself little; at 2 it stammers. At 1 it draws from the very
# distribution that it was trained to match: there its own text surprises it about as much as unseen text does, the dashed line.
#
# ### Check it: the most probable text is not a typical one
#
# Holtzman et al. ([2020](https://arxiv.org/abs/1904.09751)) found that what people write is less probable than what a search would choose. Our grammar is no person, but the same can be measured on it: the GPT's own loss on unseen text, on what it draws,
# and on what it writes when it always takes the most probable character.

# %%
real = inputs[:300]  # (B, WINDOW): unseen text
drawn = gpt.generate(real[:, :8], WINDOW - 8, generator=seeded())
greedy = gpt.generate(real[:, :8], WINDOW - 8, top_k=1)
by_kind = {"unseen text": surprise(real), "drawn": surprise(drawn), "most probable": surprise(greedy)}
assert abs(by_kind["drawn"] / by_kind["unseen text"] - 1) < 0.25
assert by_kind["most probable"] < 0.7 * by_kind["unseen text"]
print("nats per character: what it draws is within a quarter of unseen text; the most probable text is at least three tenths below")

# %% [markdown]
# ## What each part buys
#
# Between the shell and the GPT lie the paper's sub-layers. Here they are added one at a time, each rung with one part more than the one before, with as many updates and at the same learning rate. Then the GPT of one layer is
# changed in one choice at a time, mostly to the paper's. Every model has one layer at most and was trained with three seeds, for fewer updates than the GPT above; the loss is measured on unseen text and never smoothed.

# %%
places = [*(Path.cwd() / "x").parents, *Path(transformer.__file__).resolve().parents]
file = next((path for place in places if (path := place / "book/results/gpt.json").is_file()), None)
results: dict[str, list[float]] = {}
if file is None:
    print("The record is book/results/gpt.json in the book's repository. Without it there is nothing to show.")
else:
    record = json.loads(file.read_text(encoding="utf-8"))
    print(f"recorded {record['date']} with `{record['command']}`, torch {record['machine']['torch']}\n")
    for run in record["runs"].values():
        results.setdefault(run["arguments"]["model"], []).append(run["result"]["loss"])
    if any(len(values) < len(record["seeds"]) for values in results.values()):
        print("The record is not complete: run the command again, and it will make the runs that are missing.")
        results = {}
    for model, values in results.items():
        print(f"{model:26} {statistics.mean(values):.2f} nats per character, from {min(values):.2f} to {max(values):.2f}")

# %%
ladder = list(results)[:6]
if results:
    mean = {model: statistics.mean(values) for model, values in results.items()}
    assert mean["the shell"] > mean["+ residuals"] + 0.1 > mean["+ layer norm"] + 0.5
    assert mean["+ residuals"] - mean["+ layer norm"] > mean["+ feed-forward"] - mean["+ residuals"]
    assert all(run["arguments"]["steps"] == 400 for run in record["runs"].values())
    won_back = (mean["sinusoids"] - mean["sinusoids, embedding × √d"]) / (mean["sinusoids"] - mean["as GPT-2"])
    assert 0.5 < won_back < 1
    assert min(results["label smoothing 0.1"]) > mean["as GPT-2"] < min(results["normalization after"])
    assert abs(mean["ReLU"] - mean["as GPT-2"]) < 0.15 and abs(mean["untied output"] - mean["as GPT-2"]) < 0.15
    assert min(results["sinusoids"]) > mean["as GPT-2"] + 0.3 and mean["sinusoids, embedding × √d"] < mean["sinusoids"] - 0.3
    assert mean["as GPT-2"] + 0.1 < min(results["sinusoids, embedding × √d"]), "learned positions ahead in these runs"
    without = min(mean[model] for model in ladder[1:4])
    assert without > max(results["the shell"])
    print(f"the best rung with attention and without residual connections: {without:.2f}; the shell: {mean['the shell']:.2f}")

# %% tags=["hide-input"]
chart = None
if results:
    rows = [{"model": model, "nats": value, "kind": "ladder" if model in ladder else "variant"} for model, values in results.items() for value in values]
    kinds = {"ladder": "the shell, part by part", "variant": "the GPT of one layer, one choice changed"}
    rows = [row | {"kind": kinds[row["kind"]]} for row in rows]
    base = alt.Chart().encode(
        y=alt.Y("model:N", sort=list(results), title=None, axis=alt.Axis(labelLimit=160)),
        x=alt.X("nats:Q", title="nats per character", scale=alt.Scale(zero=False, padding=10)),
        color=alt.Color("kind:N", legend=None, scale=alt.Scale(range=["#0072B2", "#D55E00"])),
    )
    points = base.mark_point(filled=True, size=60, opacity=0.8).encode(shape=alt.Shape("kind:N", legend=None), tooltip=["model:N", "nats:Q"])
    means = base.mark_tick(thickness=2, size=18).encode(x="mean(nats):Q", tooltip=["model:N", alt.Tooltip("mean(nats):Q", format=".3f")])
    chart = (
        alt.layer(points, means, data=alt.Data(values=rows))
        .properties(width=270, height=130)
        .facet(row=alt.Row("kind:N", title=None, sort=list(kinds.values()), header=alt.Header(orient="top", labelAnchor="start")), spacing=10)
        .resolve_scale(y="independent", x="independent")
        .properties(title="Attention pays once there are residuals and norms")
    )
chart

# %% [markdown]
# Each point is a seed, each tick the mean of three. In these short runs attention alone makes nothing better than the shell. A likely reason: without residual connections a position's own character has to pass through the softmax with all
# others, and the shell had it for nothing. With them the loss falls below the shell's, and with layer normalization it falls again, by more. Below: what a norm after the sum costs at this learning rate (one setting, with no longer warm-up
# tried), and what smoothing costs in perplexity, as the paper says. ReLU for GELU and an output matrix of its own change little. Sinusoids added to small token vectors cost much; multiply the tokens by $\sqrt{d_{\text{model}}}$, as the paper does, and most
# of that is won back. Learned positions stay ahead here, after 400 updates of a narrow model; the paper, below, found the two nearly identical after full training.
#
# ## Each difference from the paper
#
# > In our model, we share the same weight matrix between the two embedding layers and the pre-softmax linear transformation, similar to [30].
# >
# > — Section 3.4
#
# > We also experimented with using learned positional embeddings [9] instead, and found that the two versions produced nearly identical results (see Table 3 row (E)).
# >
# > — Section 3.5
#
# > During training, we employed label smoothing of value $\epsilon_{ls}=0.1$ [36]. This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score.
# >
# > — Section 5.4
#
# | | the paper | GPT-2 | measured here |
# |---|---|---|---|
# | encoder and cross-attention | yes | none | the layer is the same without them, above |
# | normalization | after each sum | before each sub-layer, and once at the end | "normalization after" |
# | positions | sinusoids | learned | "sinusoids, embedding × √d" |
# | embedding | multiplied by $\sqrt{d_{\text{model}}}$ | as it is | the lengths above; "sinusoids" has the one without the other |
# | output matrix | tied | tied, as in the published code | "untied output" |
# | activation | ReLU | GELU, approximated with tanh (Hendrycks and Gimpel [2016](https://arxiv.org/abs/1606.08415)) | "ReLU" |
# | label smoothing | 0.1 | none named | "label smoothing 0.1" |
# | dropout | on sums and sub-layers' outputs | GPT-1: on attention weights, too | off |
# | initialization | not told | normal, smaller into the stream | – |
# | optimizer | Adam, warm-up, inverse square root | GPT-1: Adam, warm-up, cosine, and the weight decay of Loshchilov and Hutter ([2019](https://arxiv.org/abs/1711.05101)), AdamW | AdamW |
# | output | beam search | sampling, often from the top $k$ | "the most probable text", above |
#
# Why no smoothing and no beam? Both serve a task whose output a metric compares with a reference. A language model is judged by its perplexity, which smoothing hurts by the paper's own words, and its output is one draw of many.
#
# ## Unsaid by the paper
#
# - **The encoder can go.** The paper presents its decoder for transduction alone. Half a year later Liu et al. ([2018](https://arxiv.org/abs/1801.10198)) dropped the encoder to write articles from sources too long for it, and
#   Radford et al. (2018) trained the same on plain text and then on tasks. GPT-2 moved the norms, GPT-3 (Brown et al. [2020](https://arxiv.org/abs/2005.14165)) changed little but the size and the attention of
#   every other layer, which is sparse.
# - **How a decoder without a source begins.** The paper's outputs are "shifted right"; by which symbol, it does not say. Here a new line begins; GPT-2 has one token for the end and the beginning of a text.
# - **Windows.** A text longer than the window is cut anywhere, and the first characters of each window are predicted from next to nothing, as the chart by position shows. Overlapping windows that count only their second half score better with the
#   same model.
# - **Learned positions end.** A GPT-2 cannot read a token after its last learned position. Sinusoids have a value there; that a model can use it is [another question](07_conclusion.py).
# - **What changed since.** Root-mean-square norms, gated networks, rotary positions, fewer key heads: the next chapters put them into this block one at a time.
#
# ## What we now know
#
# - The shell's logits depend on one character and its place. Its loss is within 0.02 nats of the counted bigram table's and not below the bound that no such table can pass; its rows are nearly that table's.
# - With no memory to read, a decoder layer is an encoder layer under a causal mask; the paper's three attentions are one mask over source and target.
# - Our GPT has GPT-2's 124,439,808 parameters at its sizes and, by a test, its logits.
# - Trained on the same text as the shell, with as many updates, it falls to less than half of the bigrams' loss. With one character seen it is near them; the next few give most of the gain.
# - In short recorded runs, attention beats the shell only with residual connections, and layer normalization gains more than they do.
# - Drawn text surprises the model about as much as unseen text; the most probable text at least three tenths less.
#
# ## Exercises
#
# 1. **Predict, then run.** The shell is trained on the text "abacabad" repeated without end. Which is the lowest loss it can reach, in nats per character, whatever its width? Check: `check("10-shell", answer)`.
# 2. **Predict, then run.** Windows begin at random places. Let them all begin at the start of a sentence instead. Can the shell's loss, averaged over the window's first ten places, fall below the bigrams'? You need no training to find out: count.
# 3. **Minutes.** A decoder layer of the base model loses its cross-attention sub-layer. How many parameters go? Check: `check("10-no-encoder", answer)`.
# 4. **Minutes.** Write `prefix_mask(size, prefix)` in one line from `causal_mask`: the first `prefix` positions see each other and nothing later, the others the prefix and what came before them. Check: `check("10-prefix", answer)`.
# 5. **An hour.** Continue a text beyond `max_len` by cutting off its beginning and computing anew, first for every character, then only each time the window is full, keeping its second half. What does the second cost in nats, and what does it save? (The chart by position
#    tells before you run it.)
# 6. **A day.** Make a translator of the GPT: lines of English, a separator and German, as ids of the [corpus' tokenizer](05_1_training_data_and_batching.py), with the loss on the German side only. Try the causal mask, then the prefix. How close does it come to the encoder–decoder of
#    [6.1](06_1c_machine_translation.py) with as many parameters?

# %% [markdown]
# Solution to exercise 1: half of the characters are a's, and only after an a is anything open: b with 1/2, c and d with 1/4 each. After b, c and d comes always an a.

# %% tags=["hide-cell"]
from transformer.exercises import check

after_a = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
answer = 0.5 * after_a + 0.5 * 0.0
print(check("10-shell", answer))
assert check("10-shell", answer)

# %% [markdown]
# Solution to exercise 2: yes. The place is now a second thing to know: at the first place stands a capital, at the fourth often a space. The bound is $H(x_{t+1} \mid x_t, t)$, and knowing more never raises an entropy.

# %% tags=["hide-cell"]
begins = (train_ids[:-12] == encode("\n")).nonzero().flatten() + 1
now, following = train_ids[begins[:, None] + torch.arange(10)], train_ids[begins[:, None] + torch.arange(1, 11)]
place = torch.arange(10).expand_as(now)


def conditional_entropy(given: Tensor, value: Tensor) -> float:
    """H(value | given) of these pairs, in nats."""
    table = torch.bincount((given * V + value).flatten(), minlength=(int(given.max()) + 1) * V).view(-1, V).double()
    p = table / table.sum()
    return (p * (p.sum(1, keepdim=True) / p.clamp(min=1e-300)).clamp(min=1e-300).log()).sum().item()


without, with_place = conditional_entropy(now, following), conditional_entropy(place * V + now, following)
print(f"first ten characters of a sentence: {without:.2f} nats without the place, {with_place:.2f} with it")
assert with_place < without - 0.1
first_ones = {decode(c[None]) for c in now[:, 0].unique()}
assert all(c.isupper() for c in first_ones) and (now[:, 3] == encode(" ")).float().mean() > 0.3

# %% [markdown]
# Solution to exercise 3: the sub-layer has four projections with biases, and a residual block with a layer norm of its own.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = 4 * (512 * 512 + 512) + 2 * 512
print(check("10-no-encoder", answer))
assert check("10-no-encoder", answer)

# %% [markdown]
# Solution to exercise 4: causal, and the columns of the prefix open to all. It is the mask that we laid out from the paper's three.

# %% tags=["hide-cell"]
from transformer.exercises import check


def prefix_mask(size: int, prefix: int) -> Tensor:
    return causal_mask(size) | (torch.arange(size) < prefix)


assert torch.equal(prefix_mask(10, 4), encoder_decoder)
print(check("10-prefix", prefix_mask))
assert check("10-prefix", prefix_mask)

# %% [markdown]
# Solution to exercise 5: in the second way a character has seen from half a window to a whole one, in the first always a whole one. The curve is all but flat there, so it costs next to nothing. It saves nearly all of the work: the first way
# computes a whole window for every character; the second, with the cache, half a window for every half window of characters, and each of them once.

# %% tags=["hide-cell"]
half = WINDOW // 2
cost = (gpt_losses[:, half:].mean() - gpt_losses[:, -8:].mean()).item()
assert cost < 0.05, "hardly better at the end of the window than in its second half"
print(f"costs less than 0.05 nats; positions computed per character: {WINDOW} and {(half + half) // half}")

# %% [markdown]
# ## The notebook and the module agree

# %%
again = transformer.GPT(transformer.GPTConfig(V, d_model=64, n_layers=2, n_heads=4, max_len=WINDOW, dropout=0.0)).eval()
assert type(again) is not type(gpt)
again.load_state_dict(gpt.state_dict())
with torch.inference_mode():
    assert torch.equal(again(inputs[:4]), gpt(inputs[:4]))
assert torch.equal(again.generate(begin[:2], 20, generator=torch.Generator().manual_seed(1)), gpt.generate(begin[:2], 20, generator=torch.Generator().manual_seed(1)))
print("equal logits and equal text from", type(gpt).__module__, "and", type(again).__module__)
