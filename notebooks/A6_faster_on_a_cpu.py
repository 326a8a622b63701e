# %% [markdown]
# # A6 Faster on a CPU
#
# The chapters on the paper leave out what only makes one kind of machine quicker. This one puts it back, for a CPU. In
# decoding three things change: what multiplies, how a beam remembers its past, and how often a source is read. The
# translations stay the same. In training two things change: how dropout draws, at the same rate, and again what multiplies.
# The [command line](A4_command_line.py) uses all of it where there is no GPU.

# %%
#| default_exp fast_cpu

# %%
import itertools

import altair as alt

import transformer
from transformer import Translator, beam_search, greedy_decode, load_toy_translator
from transformer.corpus import embedded_corpus
from transformer.data import EOS_ID, pad

transformer.check_version("0.1")

# %% [markdown]
# ## Few rows, large matrices
#
# Training multiplies a matrix by thousands of rows at once. A step of decoding has as many rows as there are hypotheses: four,
# when one sentence is translated with the paper's beam. All of the decoder's matrices are read for these four rows.

# %%
config = transformer.TransformerConfig.base()
d, d_ff, vocabulary = config.d_model, config.d_ff, config.tgt_vocab_size
read = config.n_layers * (6 * d * d + 2 * d * d_ff) + d * vocabulary  # the memory's keys and values were made before
print(f"a step of the base model reads {read:,} weights, {read * 4 / 2**20:.0f} MiB in float32")
print("and does 4 multiply-adds with each; a training batch of 2,000 tokens does 2,000")
assert read == 40_964_096

# %% [markdown]
# So what counts is how fast weights come from memory, and who multiplies. On most PCs PyTorch has two libraries for that.
# Products of float32 go to MKL. Asked with `MKL_VERBOSE=1` on the AMD processor of [the record](../book/how_fast.md), it names
# no wide instructions; asked with `ONEDNN_VERBOSE=1`, oneDNN names AVX-512. And oneDNN can keep a matrix *packed*: cut into
# tiles, in the order in which it will read them. `nn.Linear` never asks for that, since a matrix that is trained changes with
# every update. A trained one does not. What it gives depends on the processor; on that one it is the largest gain of all.
# Besides, layers that read the same input become one product: of queries, keys and values.
#
# The way to a packed matrix is private to PyTorch. Should a version lack it, there is a second way: a copy with one row per
# input, where `nn.Linear` has one per output. For few rows that, too, can be quicker.


# %%
#| export
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transformer.embeddings import TokenEmbedding
from transformer.feed_forward import PositionwiseFeedForward
from transformer.layers import DecoderLayer, LayerCache
from transformer.model import DecoderCache, Transformer
from transformer.multi_head import MultiHeadAttention


# %%
#| export
def _one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b by oneDNN, in float32; the weight may be packed."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


# %%
#| export
def _packed(weight: Tensor) -> Tensor | None:
    """A matrix (outputs, inputs) in oneDNN's own order; None where that cannot be had."""
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if pack is None or weight.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return None
    return pack(weight)


# %%
#| export
class _Linear:
    """A linear layer that has been trained."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        packed = _packed(weight)
        self.multiply = F.linear if packed is None else _one_dnn
        self.weight = weight.t().contiguous().t() if packed is None else packed  # in memory, a row per input
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():  # oneDNN would lose it, and nobody would say so
            raise ValueError("FastTransformer makes no gradients; use the model, or torch.inference_mode().")
        return self.multiply(x, self.weight, self.bias)  # (…, inputs) → (…, outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Linear":
        return self  # it never changes, and PyTorch cannot copy what is packed


# %%
#| export
def _together(*layers: nn.Linear) -> _Linear:
    """Linear layers that read the same input, as one."""
    weights, biases = ([getattr(layer, name).detach() for layer in layers] for name in ("weight", "bias"))
    return _Linear(torch.cat(weights), torch.cat(biases))


# %%
torch.manual_seed(0)
w_q, w_k, x = nn.Linear(6, 8), nn.Linear(6, 8), torch.randn(4, 6)
together = _together(w_q, w_k)
assert torch.allclose(together(x), torch.cat([w_q(x), w_k(x)], dim=1), atol=1e-6)
print("one product for both:", tuple(together(x).shape))

# %% [markdown]
# ## A past that stays where it is
#
# After each step of a beam, some hypotheses are dropped and others continued twice. The plain cache
# ([Section 6.1](06_1a_decoding.py)) then moves rows: every hypothesis has a copy of all its keys and values, also of those
# that it shares with the others. With $w$ hypotheses, a step moves $w \cdot t$ positions to write $w$ new ones.
#
# Here nothing moves. The keys and values of all hypotheses of a sentence lie in one row, in the order in which they were
# written; call their places *slots*. What changes is a small table that says for each hypothesis which slots are its past.
# Attention looks at all slots and the table hides the others, as a mask does. That is some arithmetic more and much less
# copying, and one product serves all hypotheses of the sentence.
#
# The memory gains likewise: there is one copy a sentence, not one a hypothesis.


# %%
#| export
class BeamCache(DecoderCache):
    """The cache of a beam: one row a sentence, and for each of its hypotheses the slots that hold its past.

    Rows of `select` are hypotheses, as many for every sentence, those of a sentence one after the other.

    Args:
        layers: One cache per decoder layer, with a row per sentence.
        memory_mask: Shape (S, 1, 1, n): 0 where the source holds a token, −∞ elsewhere; or None.

    Attributes:
        past: Shape (S, w, slots): 0 where a slot holds a hypothesis's past, −∞ elsewhere.
    """

    def __init__(self, layers: list[LayerCache], memory_mask: Tensor | None) -> None:
        super().__init__(layers, memory_mask)
        memory = layers[0].memory_keys
        self.past = memory.new_zeros(len(memory), 1, 0)
        self._length = 0

    @property
    def length(self) -> int:
        """Number of target positions decoded so far: the position of the next token."""
        return self._length

    def select(self, index: Tensor, same_source: bool = False) -> None:
        """Keep these hypotheses, in this order; one may be repeated.

        Args:
            index: Row numbers, shape (B',), int64.
            same_source: Every row takes the place of one with the same source.

        Raises:
            ValueError: A sentence keeps more hypotheses than another, or they are not together.
        """
        width = self.past.size(1)
        sentences, counts = (index // width).unique_consecutive(return_counts=True)
        if len(counts.unique()) != 1 or len(sentences.unique()) < len(sentences):
            raise ValueError("a beam keeps as many hypotheses of every sentence, one after the other; see select.")
        self.past = self.past.flatten(0, 1)[index].unflatten(0, (len(sentences), -1))
        if not same_source and not sentences.equal(torch.arange(len(self.layers[0].memory_keys))):
            super().select(sentences)

    def begin_step(self) -> None:
        """Take a slot for every hypothesis. Each has its own new slot in its past, and not those of the others."""
        sentences, width, slots = self.past.shape
        new = self.past.new_full((width, width), -torch.inf).fill_diagonal_(0.0)
        self.past = torch.cat([self.past, new.expand(sentences, width, width)], dim=-1)
        self._length += 1
        for layer in self.layers:
            own = layer.own
            if slots + width > own.keys.size(2):  # twice the room, so that copying it is rare
                room = (0, 0, 0, slots + width)
                own.keys, own.values = F.pad(own.keys, room), F.pad(own.values, room)


# %% [markdown]
# ## The model
#
# The parts are those of the model: embeddings, normalizations and the whole encoder. Only the decoder's step is written anew,
# from the lines of [Section 3.1](03_1_encoder_and_decoder_stacks.py) and
# [Section 3.2.2](03_2_2_multi_head_attention.py), for one new token of each hypothesis.


# %%
#| export
class _Step:
    """One decoder layer, for one new token of each hypothesis."""

    def __init__(self, layer: DecoderLayer) -> None:
        own, other, ffn = layer.self_attention, layer.memory_attention, layer.feed_forward
        if not (type(own) is type(other) is MultiHeadAttention and type(ffn) is PositionwiseFeedForward):
            raise TypeError("a layer has parts other than the paper's, which FastTransformer would not compute.")
        self.layer, self.n_heads = layer, own.n_heads
        self.widths = [own.n_heads * own.d_k, own.n_heads * own.d_k, own.n_heads * own.d_v]
        self.w_qkv, self.w_o = _together(own.w_q, own.w_k, own.w_v), _together(own.w_o)
        self.memory_w_q, self.memory_w_o = _together(other.w_q), _together(other.w_o)
        self.w_1, self.w_2 = _together(ffn.w_1), _together(ffn.w_2)

    def __call__(self, x: Tensor, cache: LayerCache, past: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        """From and to (S·w, d_model); past (S, 1, w, slots), memory_mask (S, 1, 1, n)."""
        sentences, layer = len(cache.memory_keys), self.layer

        def split(x: Tensor) -> Tensor:
            return x.view(sentences, -1, self.n_heads, x.size(-1) // self.n_heads).transpose(1, 2)  # (S, h, w, d_k)

        def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
            heads = F.scaled_dot_product_attention(split(query), keys, values, mask)  # (S, h, w, d_v)
            return heads.transpose(1, 2).reshape(len(query), -1)  # (S·w, h·d_v)

        def attend_self(x: Tensor) -> Tensor:
            query, key, value = self.w_qkv(x).split(self.widths, dim=-1)
            return self.w_o(attend(query, *cache.own.append(split(key), split(value)), past))

        def attend_memory(x: Tensor) -> Tensor:
            heads = attend(self.memory_w_q(x), cache.memory_keys, cache.memory_values, memory_mask)
            return self.memory_w_o(heads)

        x = layer.self_attention_block(x, attend_self)
        x = layer.memory_attention_block(x, attend_memory)
        return layer.feed_forward_block(x, lambda x: self.w_2(self.w_1(x).relu_()))


# %%
#| export
class FastTransformer(Transformer):
    """A trained model that decodes faster on a CPU. What it computes is the same up to rounding.

    It shares all parts with the model, and has a second copy of the decoder's matrices, made now: when weights change,
    also by `load_state_dict`, make it anew. `encode`, and `decode` without a cache, are the model's; all else refuses
    gradients.

    Args:
        model: On the CPU and in evaluation mode.

    Raises:
        TypeError: The model is of a class made from Transformer, or a layer has parts other than the paper's.
        ValueError: The model is on another device or in training mode.

    Source: not in the paper.
    """

    def __init__(self, model: Transformer) -> None:
        if type(model) is not Transformer:
            raise TypeError(f"a {type(model).__name__} may compute something else; give a plain Transformer.")
        device = next(model.parameters()).device
        if device.type != "cpu" or model.training:
            mode = "training" if model.training else "evaluation"
            raise ValueError(f"the model is on {device} in {mode} mode; move it to the CPU and call eval() first.")
        nn.Module.__init__(self)
        self.config = model.config
        for name, part in model.named_children():
            self.add_module(name, part)
        layers: Any = model.decoder.layers  # a ModuleList forgets that these are decoder layers
        self._steps = [_Step(layer) for layer in layers]
        self._projection = _Linear((model.embedding if model.config.tie_embeddings else model.output).weight.detach())
        self.eval()

    def new_cache(self, memory: Tensor, memory_mask: Tensor | None, max_new_tokens: int) -> BeamCache:
        """Prepare to generate, as `Transformer.new_cache`.

        Args:
            memory: From `encode`, shape (S, n, d_model).
            memory_mask: Bool, (S, 1, 1, n), or None.
            max_new_tokens: Number of target positions to begin with; there is room for more.

        Returns:
            An empty cache.

        Raises:
            ValueError: max_new_tokens is less than 1, or weights of attention are recorded, which only the model makes.
        """
        if any(part.on_weights is not None for part in self.modules() if isinstance(part, MultiHeadAttention)):
            raise ValueError("FastTransformer makes no weights of attention to record; record those of the model.")
        made = super().new_cache(memory, memory_mask, max_new_tokens)
        if memory_mask is not None:  # as numbers to add, which attention would make of it in every step and layer
            memory_mask = memory.new_zeros(memory_mask.shape).masked_fill(~memory_mask, -torch.inf)
        return BeamCache(made.layers, memory_mask)

    def decode(
        self,
        tgt_in: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Hidden states, as `Transformer.decode`; with a cache, of one new position a row.

        Args:
            tgt_in: Target ids, shape (B, m); with a cache (S·w, 1).
            memory: Left out with a cache, and so are the masks.
            tgt_mask: As in `Transformer.decode`.
            memory_mask: As in `Transformer.decode`.
            cache: From `new_cache`; it is extended by one position.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: Neither or both of memory and cache are given, the shapes do not fit together, or a gradient is
                asked for.
        """
        if cache is None or memory is not None:
            return super().decode(tgt_in, memory, tgt_mask, memory_mask, cache)
        if not isinstance(cache, BeamCache) or tgt_in.shape != (cache.past.shape[:2].numel(), 1):
            raise ValueError(f"tgt_in is {tuple(tgt_in.shape)}; with a cache of this model's own, give one id a row.")
        embedding = self.embedding if self.config.tie_embeddings else self.tgt_embedding
        x = self.tgt_positions(embedding(tgt_in), cache.length)[:, 0]  # (S·w, d_model)
        cache.begin_step()
        past = None if cache.past.size(2) == cache.length else cache.past[:, None]  # with a slot a step, none is hidden
        for step, layer in zip(self._steps, cache.layers, strict=True):
            x = step(x, layer, past, cache.memory_mask)
        return (x if self.decoder.norm is None else self.decoder.norm(x))[:, None]

    def output_projection(self, hidden: Tensor) -> Tensor:
        """The pre-softmax linear transformation.

        Args:
            hidden: Shape (B, m, d_model).

        Returns:
            Logits, shape (B, m, V).
        """
        return self._projection(hidden)


# %% [markdown]
# ### Check it: the same translations
#
# Two hundred unseen sentences of the embedded corpus, with the paper's beam and greedily. Sums are added up in another order,
# so a logit may differ in its last digits; no translation does.

# %%
translator = load_toy_translator()
faster = Translator(FastTransformer(translator.model), translator.tokenizer)
sentences = [pair.source for pair in itertools.islice(embedded_corpus("test"), 200)]
for beam_size in (4, 1):
    assert faster.translate(sentences, beam_size=beam_size) == translator.translate(sentences, beam_size=beam_size)
print(len(sentences), "sentences: the same translations")

# %% [markdown]
# ### See it: whose past is which slot
#
# A sentence is written with a beam of four, step by step, and the table is looked at after each. A slot that no row marks
# belongs to a hypothesis that was dropped: its keys and values stay where they are, and nobody looks at them again.

# %%
sentence = "The cow cannot eat the cherry cake because it is too tired."
seen: list[tuple[list[int], list[list[bool]]]] = []


class Watched(FastTransformer):
    """Notes at every step which tokens are read, and what each hypothesis's past is."""

    def decode(self, tgt_in: Tensor, *others: Tensor, cache: BeamCache) -> Tensor:
        hidden = super().decode(tgt_in, *others, cache=cache)
        seen.append((tgt_in[:, 0].tolist(), (cache.past[0] == 0).tolist()))
        return hidden


ids = pad([[*translator.tokenizer.encode(sentence), EOS_ID]])
best = beam_search(Watched(translator.model), ids)[0][0]
print(translator.tokenizer.decode(best.ids))
tokens = [token for read, _ in seen for token in read]  # of every slot
pieces = translator.tokenizer.pieces(tokens)
assert all(len(past[0]) == sum(len(read) for read, _ in seen[: i + 1]) for i, (_, past) in enumerate(seen))
shared = [piece for piece, *row in zip(pieces, *seen[7][1], strict=False) if all(row)]
print("in everybody's past after step 8:", *shared)
assert shared == ["<s>", "▁Die", "▁Kuh"]
assert all(sum(row) == i + 1 for i, (_, past) in enumerate(seen) for row in past), "a past has one slot a step"

# %%
marks = [
    {"step": i, "slot": slot, "token": pieces[slot], "hypothesis": j + 1, "is": "past" if mine else "hidden"}
    for i, (_, past) in enumerate(seen[:10], 1)
    for j, row in enumerate(past)
    for slot, mine in enumerate(row)
]
step = alt.param("step", value=8, bind=alt.binding_range(min=1, max=10, step=1, name="after step "))
chart = (
    alt.Chart(alt.Data(values=marks))
    .transform_filter("datum.step == step")
    .mark_rect(stroke="#888888", strokeWidth=0.5)
    .encode(
        x=alt.X("slot:O", title="slot, with the token written there", axis=alt.Axis(labelExpr=f"{pieces}[datum.value]")),
        y=alt.Y("hypothesis:O", title="hypothesis"),
        color=alt.Color("is:N", scale=alt.Scale(domain=["past", "hidden"], range=["#0072B2", "#e8e8e8"]), title=None),
        tooltip=["hypothesis:O", "slot:O", "token:N", "is:N"],
    )
    .properties(title="Nothing moves; only the marks change", width=520, height=90)
    .add_params(step)
)
chart

# %% [markdown]
# Move the step. The first slot, the begin token, is everybody's past. After step 8 all four hypotheses begin with *Die Kuh*
# and mark the same slots for it; the plain cache would hold four copies. From step 2 on, the last four slots are a
# diagonal: each hypothesis has its own new token.

# %% [markdown]
# ## Dropout draws quicker
#
# In training, dropout draws a random number for every number it may drop, and on a CPU PyTorch draws them one after the
# other. Dropping with a probability needs few random bits. Here one draw of 64 bits serves four numbers; each is dropped if its 16
# bits, read as a whole number, lie below $P_{drop} \cdot 2^{16}$. The rate is therefore a multiple of $2^{-16}$, and what is kept
# is scaled by the rate that is really used, so the expectation is exact.


# %%
#| export
class FastDropout(nn.Dropout):
    """Dropout for training on a CPU: one draw of 64 random bits serves four numbers.

    Args:
        p: The rate; a multiple of 2^-16 is used, the nearest.

    Source: §5.4; the way to draw is not in the paper.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop numbers at random in training.

        Args:
            x: Any shape, on the CPU.

        Returns:
            The same shape; 0 where a number was dropped, and what was kept divided by 1 − p.
        """
        dropped = round(self.p * 2**16)  # of 2^16
        if not self.training or dropped == 0:
            return x
        if dropped == 2**16:
            return x * 0.0
        draws = torch.empty(x.numel() // 4 + 1, dtype=torch.int64).random_(-(2**63), None)
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
        return x * kept.to(x.dtype).mul_(2**16 / (2**16 - dropped))


# %%
#| export
def use_fast_dropout(model: nn.Module) -> None:
    """Let a model that trains on a CPU draw its dropout quicker, in place. Random numbers differ from before.

    Args:
        model: The model; every `nn.Dropout` in it is replaced.

    Source: not in the paper.
    """
    for part in list(model.modules()):
        for name, child in part.named_children():
            if type(child) is nn.Dropout:
                setattr(part, name, FastDropout(child.p).train(child.training))


# %% [markdown]
# ### Check it: the rate, the scale, and every place alike
#
# A million ones. The mean stays 1, the share that is dropped is $P_{drop}$, and the four numbers that share a draw are dropped
# equally often and independently: any two are both dropped with probability $P_{drop}^2$. Five standard deviations are
# allowed.

# %%
torch.manual_seed(0)
n, p = 2**20, 0.1
out = FastDropout(p)(torch.ones(n))
gone = (out == 0).view(-1, 4).float()
by_place, both = gone.mean(dim=0), (gone.T @ gone / len(gone))[torch.ones(4, 4).triu(1).bool()]  # all six pairs
print("dropped, by place in a draw:", [round(share, 4) for share in by_place.tolist()], " pairs:", [round(share, 4) for share in both.tolist()])
print(f"mean {out.mean():.4f}")
assert abs(out.mean() - 1) < 5 * (p / (1 - p) / n) ** 0.5
assert all(abs(by_place - p) < 5 * (p * (1 - p) / (n / 4)) ** 0.5) and all(abs(both - p * p) < 5 * (p * p / (n / 4)) ** 0.5)

# %% [markdown]
# ## Products, forwards and backwards
#
# Training has thousands of rows, and matrices that change with every update, so nothing is packed. But who multiplies still
# matters: on the AMD processor of [the record](../book/how_fast.md) it makes a small model's update 1.5 times
# as fast. PyTorch has no backward pass for this call. It is short: from the gradient $g$ of $y = x W^T + b$ come $g W$ for $x$, $g^T x$ for $W$, and the sum of
# the rows of $g$ for $b$.


# %%
#| export
class _Product(torch.autograd.Function):
    """x · Wᵀ + b by oneDNN, with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _one_dnn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), asked = ctx.saved_tensors, ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # (rows, outputs)
        return (
            _one_dnn(grad, weight.t()) if asked[0] else None,
            _one_dnn(rows.t(), x.flatten(0, -2).t()) if asked[1] else None,
            rows.sum(dim=0) if asked[2] else None,
        )


# %%
#| export
def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b; in float32 by oneDNN, in any other type, and under autocast, by PyTorch."""
    if x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or x.dim() < 2 or x.numel() == 0:
        return F.linear(x, weight, bias)
    return _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]


# %% [markdown]
# A model has two kinds of parts that multiply. Each gets a twin that multiplies so, and is the same otherwise.


# %%
#| export
class _OneDnnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return _product(x, self.weight, self.bias)


# %%
#| export
class _OneDnnEmbedding(TokenEmbedding):
    def project(self, hidden: Tensor) -> Tensor:
        return _product(hidden, self.weight) if hidden.size(-1) == self.weight.size(1) else super().project(hidden)


# %%
#| export
def use_one_dnn(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Let oneDNN multiply in a model that trains on an AMD processor, in place. On other processors nothing changes.

    Args:
        model: The model; its parameters stay the same. Sums are added up in another order than before.

    Returns:
        What now multiplies float32 matrices (n, m) and (m, k) in the model.

    Source: not in the paper.
    """
    if not _on_amd() or _packed(torch.zeros(1, 1)) is None:
        return torch.mm
    twins: dict[type, type] = {nn.Linear: _OneDnnLinear, TokenEmbedding: _OneDnnEmbedding}
    for part in model.modules():
        part.__class__ = twins.get(type(part), type(part))
    return lambda a, b: _one_dnn(a, b.t())


# %%
#| export
def _on_amd() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (cpuinfo.read_text() if cpuinfo.exists() else platform.processor())


# %% [markdown]
# ### Check it: the gradients
#
# Against those of PyTorch, for a layer whose input has two dimensions of rows.

# %%
if _packed(torch.zeros(1, 1)) is not None:
    torch.manual_seed(0)
    layer, x, g = nn.Linear(48, 32), torch.randn(5, 7, 48, requires_grad=True), torch.randn(5, 7, 32)
    parts = (x, layer.weight, layer.bias)
    ours, theirs = (torch.autograd.grad(y, parts, g) for y in (_product(*parts), layer(x)))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
    print("the same gradients of input, matrix and bias, but for rounding")

# %% [markdown]
# ## What we now know
#
# - A step of decoding reads all of the decoder's weights for a few rows.
# - The hypotheses of a sentence share much of their past and all of their source. A table of who looks at which slot saves the
#   copies, and two hundred sentences come out the same, with the beam and greedily.
# - Sixteen random bits a number are enough for dropout: rate, scale and independence were checked within five standard deviations.
# - The same product can take one library twice as long as another. Which one is quicker depends on the processor.
#
# How much each of them gains, and against what, is measured in [How fast, and why](../book/how_fast.md).
#
# ## Exercises
#
# 1. **Predict, then run.** With a beam of 4 and a target of 50 tokens, how many positions does the plain cache move in a layer at most,
#    once there are four rows? And how many slots does the beam's cache hold at the end? The first step has one row.
# 2. **Minutes.** Which rate does `FastDropout(1 / 3)` use, and by what does it multiply what it keeps?
# 3. **An hour.** Slots that are nobody's past are never looked at again. Drop them when they are more than half of all. For which
#    lengths does it gain?

# %% [markdown]
# Solution to exercise 1: after each step from the second on, the plain cache moves four rows of all positions so far, unless
# every hypothesis keeps its row. The beam's cache takes one slot in the first step and four in each later one.

# %% tags=["hide-cell"]
cache = FastTransformer(translator.model).new_cache(translator.model.encode(ids[:1]), None, 50)
cache.begin_step()
cache.select(torch.zeros(4, dtype=torch.int64), same_source=True)  # four hypotheses from one
for _ in range(49):
    cache.begin_step()
print(sum(4 * t for t in range(2, 50)), "positions moved at most;", cache.past.size(2), "slots")
assert cache.past.size(2) == 1 + 4 * 49

# %% [markdown]
# Solution to exercise 2: the nearest multiple of $2^{-16}$, and the inverse of what that keeps.

# %% tags=["hide-cell"]
rate = round(2**16 / 3) / 2**16
[scale] = set(FastDropout(1 / 3)(torch.ones(100)).tolist()) - {0.0}
print(f"{rate:.7f} in place of {1 / 3:.7f}; times {scale:.7f}")
assert rate == 21_845 / 65_536 and abs(scale - 1 / (1 - rate)) < 1e-6

# %% [markdown]
# ## The notebook and the module agree

# %%
imported = transformer.FastTransformer(translator.model)
assert beam_search(imported, ids) == beam_search(FastTransformer(translator.model), ids)
assert greedy_decode(imported, ids) == greedy_decode(translator.model, ids)
print("the same hypotheses with the same scores")
