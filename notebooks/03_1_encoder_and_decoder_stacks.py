# %% [markdown]
# # 3.1 Encoder and Decoder Stacks
#
# The encoder and the decoder are stacks of layers of the same form. Each sub-layer in them stands in a residual block: its
# input is added to its output, and the sum is normalized. The place of that normalization decides how the gradient
# reaches the lower layers of a deep stack; this chapter builds the stacks and measures it.

# %%
#| default_exp layers

# %%
import transformer

transformer.check_version("0.1")

import copy
import itertools

import altair as alt
import torch
from torch.nn.functional import cross_entropy

# %% [markdown]
# The sub-layers themselves have chapters of their own: attention in [Section 3.2.2](03_2_2_multi_head_attention.py), the
# feed-forward network in [Section 3.3](03_3_feed_forward_networks.py). Here they are imported. This chapter needs no more of
# attention than this: it takes queries, keys and values, and returns for each query a weighted mean of the values; how well
# the query matches each key decides the weights.

# %%
#| export
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from transformer.feed_forward import PositionwiseFeedForward
from transformer.multi_head import KeyValueCache, MultiHeadAttention
# %% [markdown]
# ## Layer normalization
#
# > We employ a residual connection around each of the two sub-layers, followed by layer normalization.
# >
# > — Section 3.1
#
# The paper gives no formula for layer normalization. It cites Ba et al. (2016), whose definition works on each position
# alone, over the $d$ numbers of its vector. With the $\epsilon$ that implementations add, for theirs has none, it reads:
#
# $$\mathrm{LayerNorm}(x) = \gamma \cdot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,
# \qquad \mu = \frac{1}{d}\sum_{i=1}^{d} x_i, \qquad \sigma^2 = \frac{1}{d}\sum_{i=1}^{d} (x_i - \mu)^2$$
#
# The gain $\gamma$ and the bias $\beta$ are learned, $d$ numbers each, and start at one and zero. The small $\epsilon$ keeps a
# constant vector from a division by zero. Two details are easily lost in a rewrite: $\sigma^2$ divides by $d$ and not by
# $d - 1$, and $\epsilon$ stands inside the root.

# %%
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean = x.mean(-1, keepdim=True)  # (…, d) → (…, 1)
    variance = x.var(-1, keepdim=True, correction=0)  # the biased estimate: divide by d
    return gain * (x - mean) / (variance + eps).sqrt() + bias  # (…, d)


# %% [markdown]
# The variant that is often copied takes `Tensor.std`, which divides by $d - 1$ unless told otherwise, and adds $\epsilon$ to the root.

# %%
def layer_norm_variant(x: Tensor, eps: float = 1e-6) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


# %% [markdown]
# ### See it: the row [1, 0, 0, 0]
#
# The mean is 0.25. The biased variance is 0.1875, so the first number becomes $0.75 / \sqrt{0.1875 + \epsilon}$. The unbiased variance is 0.25, and the
# variant gives $0.75 / 0.5$.

# %%
row = torch.tensor([1.0, 0.0, 0.0, 0.0])
ones, zeros = torch.ones(4), torch.zeros(4)
print("mean", row.mean().item(), " variance", row.var(correction=0).item(), "biased,", row.var().item(), "unbiased")
for name, result in [
    ("by hand", layer_norm(row, ones, zeros)),
    ("torch", nn.LayerNorm(4)(row).detach()),
    ("variant", layer_norm_variant(row)),
]:
    print(f"{name:8}", " ".join(f"{value:8.4f}" for value in result))

# %% [markdown]
# ### Check it
#
# The version by hand equals torch's, at width 4 and at 512, with gains and biases that are not the initial ones. The variant misses by
# the factor $\sqrt{(d-1)/d}$. That is 13 % at width 4 and a tenth of a percent at width 512, which is why the slip goes unnoticed in training
# and shows only when weights move from one code base to another.

# %%
generator = torch.Generator().manual_seed(0)
for d in (4, 512):
    x, gain, bias = (torch.randn(shape, generator=generator) for shape in ((2, 7, d), (d,), (d,)))
    norm = nn.LayerNorm(d)
    norm.load_state_dict({"weight": gain, "bias": bias})
    assert torch.allclose(layer_norm(x, gain, bias), norm(x), atol=1e-6)
    ratio = (layer_norm_variant(x) / nn.LayerNorm(d)(x)).median().item()
    assert abs(ratio - ((d - 1) / d) ** 0.5) < 1e-3
    print(f"d = {d:3}: by hand equals torch; the variant is too small by the factor {ratio:.4f}")

assert abs(layer_norm(row, ones, zeros)[0] - 1.7320) < 5e-5  # 1.7321 without ε, 1.7320 with it
assert abs(layer_norm_variant(row)[0] - 1.5) < 5e-5

# %% [markdown]
# From here on the code uses `nn.LayerNorm`, with torch's $\epsilon = 10^{-5}$.
#
# ## The residual block
#
# > That is, the output of each sub-layer is $\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$, where $\mathrm{Sublayer}(x)$ is the function implemented by the sub-layer itself.
# >
# > — Section 3.1
#
# > We apply dropout to the output of each sub-layer, before it is added to the sub-layer input and normalized.
# >
# > — Section 5.4
#
# ![Two residual blocks side by side. Post-norm, the paper's: x passes through the sub-layer and dropout, x is added, and the sum is normalized. Pre-norm: x is normalized, passes through the sub-layer and dropout, and x is added last.](../book/diagrams/residual_block.svg)
#
# The left side is the paper's order, called post-norm today and the default here. The right side, pre-norm, is an option: it normalizes
# what goes into the sub-layer and leaves the sum as it is.

# %%
#| export
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
# %% [markdown]
# ### See it
#
# A sub-layer that doubles its input makes both orders easy to follow. Post-norm normalizes $x + 2x$, and the factor 3 disappears. Pre-norm adds $x$ to twice the normalized $x$.

# %%
x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
for norm_order in ("post", "pre"):
    block = ResidualBlock(d_model=4, dropout=0.0, norm_order=norm_order)
    print(f"{norm_order:5}", " ".join(f"{value:8.4f}" for value in block(x, lambda x: 2 * x)[0].detach()))

# %% [markdown]
# ### Check it
#
# Whatever the sub-layer returns, a fresh post-norm block puts out vectors of mean 0 and variance 1. The variance falls short of 1 by
# $\epsilon / (\sigma^2 + \epsilon)$. Pre-norm promises nothing of the kind. With a dropout rate of 1 only the residual path is left, and it tells the two
# orders apart: pre-norm returns $x$ untouched, post-norm returns $x$ normalized.

# %%
torch.manual_seed(0)
x = torch.randn(3, 5, 512, generator=generator) * 4 + 1
sublayer = nn.Linear(512, 512)

out = ResidualBlock(512)(x, sublayer)  # (3, 5, 512); dropout is on
mean, variance = out.mean(-1), out.var(-1, correction=0)
assert mean.abs().max() < 1e-5 and (variance - 1).abs().max() < 1e-4
print(f"post-norm: mean {mean.abs().max():.3f}, variance {variance.mean():.3f}")
variance = ResidualBlock(512, norm_order="pre")(x, sublayer).var(-1, correction=0)
assert variance.min() > 10
print(f"pre-norm:  smallest variance {variance.min():.1f}")

dropped = ResidualBlock(512, dropout=1.0)
assert torch.equal(dropped(x, sublayer), dropped.norm(x))
dropped = ResidualBlock(512, dropout=1.0, norm_order="pre")
assert torch.equal(dropped(x, sublayer), x)

# %% [markdown]
# The sum needs both terms to have the same width.
#
# > To facilitate these residual connections, all sub-layers in the model, as well as the embedding layers, produce outputs of dimension $d_{\text{model}}=512$.
# >
# > — Section 3.1

# %%
try:
    ResidualBlock(512)(x, nn.Linear(512, 256))
except ValueError as error:
    print(error)

# %% [markdown]
# ## The encoder
#
# > The encoder is composed of a stack of $N=6$ identical layers. Each layer has two sub-layers. The first is a multi-head self-attention mechanism, and the second is a simple, position-wise fully connected feed-forward network.
# >
# > — Section 3.1
#
# A layer takes its sub-layers ready-made. It does not know how wide the heads or the inner layer are, and a chapter that wants another
# attention or another normalization passes it in.

# %%
#| export
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
# %%
#| export
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
# %% [markdown]
# Six layers of the base model's size keep the shape of their input.

# %%
def attention(d_model=512, n_heads=8) -> MultiHeadAttention:
    return MultiHeadAttention(d_model, n_heads)


def make_encoder(n_layers=6, d_model=512, d_ff=2048, dropout=0.1, norm_order="post") -> Encoder:
    return Encoder(
        (
            EncoderLayer(attention(d_model), PositionwiseFeedForward(d_model, d_ff), d_model, dropout, norm_order)
            for _ in range(n_layers)
        ),
        nn.LayerNorm(d_model) if norm_order == "pre" else None,
    )


torch.manual_seed(0)
encoder = make_encoder()
memory = encoder(x)
assert memory.shape == x.shape
print("source", tuple(x.shape), "→ memory", tuple(memory.shape))

# %% [markdown]
# ### Identical layers, different weights
#
# "Identical" speaks of the layers' form. Each has its own weights, and each must start with its own. Code that builds one layer and copies it $N$
# times starts every layer at the same point. The check below compares each weight matrix with its counterpart in every other layer; it passes here,
# and it catches the copies. (The norms' gains and biases do start equal: they are constants. In the full model the other biases do, too, since it sets them to zero.)

# %%
def shared_weights(layers: Iterable[nn.Module]) -> list[tuple[int, int, str]]:
    """Pairs of layers, and the weight matrix in which they agree."""
    named = [dict(layer.named_parameters()) for layer in layers]
    return [
        (i, j, name)
        for i, j in itertools.combinations(range(len(named)), 2)
        for name, weight in named[i].items()
        if weight.dim() > 1 and torch.equal(weight, named[j][name])
    ]


copies = [copy.deepcopy(encoder.layers[0]) for _ in range(6)]
print("fresh layers:", len(shared_weights(encoder.layers)), "equal matrices;  copies:", len(shared_weights(copies)))
assert shared_weights(encoder.layers) == []
assert len(shared_weights(copies)) == 15 * 6  # 15 pairs of layers, 6 matrices in each

# %% [markdown]
# ## The decoder
#
# > The decoder is also composed of a stack of $N=6$ identical layers. In addition to the two sub-layers in each encoder layer, the decoder inserts a third sub-layer, which performs multi-head attention over the output of the encoder stack.
# >
# > — Section 3.1
#
# > Similar to the encoder, we employ residual connections around each of the sub-layers, followed by layer normalization.
# >
# > — Section 3.1
#
# The third sub-layer stands between the two others. Its queries come from the decoder, its keys and values from the memory, and every decoder
# layer reads the same memory: the output of the encoder's last layer.
#
# A decoder that generates calls its layers once for each new token. Everything a layer has computed for earlier tokens is still valid, since no
# position ever sees a later one. So a layer may keep its keys and values in a cache: its own, one position longer with every step, and the
# memory's, projected once and never again. `select` keeps some rows of the batch, which beam search needs.

# %%
#| export
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
# %% [markdown]
# The self-attention must not look ahead.
#
# > We also modify the self-attention sub-layer in the decoder stack to prevent positions from attending to subsequent positions.
# >
# > — Section 3.1
#
# Without a mask argument, the layer hides later positions by itself. [Section 3.2.3](03_2_3_applications_of_attention.py) builds masks that also hide padding.

# %%
#| export
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
# %%
#| export
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
# %% [markdown]
# ### Check it: the third sub-layer, and no look ahead
#
# > This masking, combined with fact that the output embeddings are offset by one position, ensures that the predictions for position $i$ can depend only on the known outputs at positions less than $i$.
# >
# > — Section 3.1
#
# Source and target may differ in length. When one source position changes, every target position changes, through the third sub-layer. When the last target
# position changes, the earlier outputs change by exactly 0.0.

# %%
def make_decoder(n_layers=6, d_model=512, d_ff=2048, dropout=0.1, norm_order="post") -> Decoder:
    return Decoder(
        (
            DecoderLayer(
                attention(d_model), attention(d_model), PositionwiseFeedForward(d_model, d_ff), d_model, dropout, norm_order
            )
            for _ in range(n_layers)
        ),
        nn.LayerNorm(d_model) if norm_order == "pre" else None,
    )


torch.manual_seed(1)
decoder = make_decoder(dropout=0.0)
assert shared_weights(decoder.layers) == []
memory = torch.randn(2, 7, 512)  # (B, n, d_model)
target = torch.randn(2, 4, 512)  # (B, m, d_model)
with torch.inference_mode():
    hidden = decoder(target, memory)  # (B, m, d_model)

    changed = torch.stack([decoder(target, memory + torch.eye(7)[j, :, None]) for j in range(7)])  # (n, B, m, d_model)
    by_source = (changed - hidden).abs().amax((1, 3))  # (n, m): one source position changed

    other = target.clone()
    other[:, -1] += 1
    by_target = (decoder(other, memory) - hidden).abs().amax((0, 2))  # (m,)
print("one source position changed: ", " ".join(f"{change:.2f}" for change in by_source.amin(0)), "or more")
print("last target position changed:", " ".join(f"{change:.2f}" for change in by_target))
assert by_source.min() > 0.01
assert by_target[:-1].max() == 0.0 and by_target[-1] > 0.1

# %% [markdown]
# ### Check it: the cache changes the cost, not the result
#
# Token by token with caches, the decoder gives what it gives for the whole target at once. The memory is not even passed.

# %%
with torch.inference_mode():
    caches = [layer.new_cache(memory, max_new_tokens=4) for layer in decoder.layers]
    steps = [decoder(target[:, i : i + 1], caches=caches) for i in range(4)]  # 4 × (B, 1, d_model)
assert torch.allclose(torch.cat(steps, dim=1), hidden, atol=1e-5)
print("positions in the first layer's cache:", caches[0].own.length)

# %% [markdown]
# ## Pre-norm needs a final norm
#
# In a pre-norm stack nothing stands on the residual path but additions. The output is the input plus every sub-layer's output, exactly. Each term adds its variance,
# so the vectors grow with depth, and the sum leaves the last layer without ever having been normalized. That is why a pre-norm stack ends with
# one more normalization, one for the encoder and one for the decoder. A post-norm stack has normalized its output already and gets none.

# %%
def glorot(stack: nn.Module) -> nn.Module:
    """Draw all weight matrices from Glorot's uniform distribution, as the full model does; biases are zero."""
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return stack


# %%
torch.manual_seed(0)
source = torch.randn(4, 12, 64)  # (B, n, d_model)
growth, terms = {}, []
for n_layers in (6, 12, 24):
    stack = glorot(make_encoder(n_layers, 64, 256, dropout=0.0, norm_order="pre"))
    for layer in stack.layers:
        layer.self_attention.register_forward_hook(lambda module, given, result: terms.append(result))
        layer.feed_forward.register_forward_hook(lambda module, given, result: terms.append(result))
    with torch.inference_mode():
        normalized = stack(source)
        final_norm, stack.norm = stack.norm, None
        terms.clear()
        raw = stack(source)
        assert torch.equal(final_norm(raw), normalized)
    assert len(terms) == 2 * n_layers
    assert torch.allclose(raw, source + sum(terms), atol=1e-5)
    growth[n_layers] = raw.var().item()
    print(f"{n_layers:2} layers: variance {growth[n_layers]:.1f} before the final norm, {normalized.var():.1f} after it")
assert 1 < growth[6] < growth[12] < growth[24]

# %% [markdown]
# ## What the order does to the gradient
#
# Pre-norm's path of additions also runs backwards: below the final norm, the gradient reaches every layer undivided. Post-norm puts a normalization on
# the path after every sub-layer, and each divides the gradient by the spread of the sum it normalizes. The experiment measures what is left of it.
# It builds encoder and decoder with 6, 12 and 24 layers, width 64 and Glorot's uniform initialization, feeds random vectors, asks a random linear classifier
# for random classes, and takes the norm of the loss's gradient over all weight matrices of a layer. Nothing is trained.

# %%
def gradient_norms(
    norm_order: str, n_layers: int, seed: int, encode=True, d_model=64, n_classes=100
) -> dict[str, list[float]]:
    """Norm of the loss's gradient for each layer of a fresh encoder and decoder, first layer first."""
    torch.manual_seed(seed)
    shape = {"n_layers": n_layers, "d_model": d_model, "d_ff": 4 * d_model, "dropout": 0.0, "norm_order": norm_order}
    encoder, decoder = glorot(make_encoder(**shape)), glorot(make_decoder(**shape))
    source, target = torch.randn(2, 4, 12, d_model)  # each (B, n, d_model)
    classifier = torch.randn(d_model, n_classes) / d_model**0.5
    memory = encoder(source) if encode else source  # (B, n, d_model)
    logits = decoder(target, memory) @ classifier  # (B, n, n_classes)
    cross_entropy(logits.flatten(0, 1), torch.randint(n_classes, (4 * 12,))).backward()
    return {
        name: [
            sum(weight.grad.square().sum().item() for weight in layer.parameters() if weight.dim() > 1) ** 0.5
            for layer in stack.layers
        ]
        for name, stack in (("encoder", encoder), ("decoder", decoder))
        if encode or stack is decoder
    }


# %%
SEEDS = 3
measured = {}  # (norm order, depth, stack) → the mean gradient norm of each layer
for norm_order, n_layers in itertools.product(("post", "pre"), (6, 12, 24)):
    runs = [gradient_norms(norm_order, n_layers, seed) for seed in range(SEEDS)]
    for stack in ("encoder", "decoder"):
        measured[norm_order, n_layers, stack] = torch.tensor([run[stack] for run in runs]).mean(0)  # (N,)

print("gradient norm of the first and of the last layer")
for (norm_order, n_layers, stack), norms in measured.items():
    print(f"{stack}, {norm_order + '-norm':9} {n_layers:2} layers: {norms[0]:.1g}, {norms[-1]:.1g}")

# %%
rows = [
    {"stack": stack, "depth": f"{n_layers} layers", "layer": i, "order": f"{norm_order}-norm", "norm": float(f"{value:.3g}")}
    for (norm_order, n_layers, stack), norms in measured.items()
    for i, value in enumerate(norms.tolist(), start=1)
]
order = alt.Color(
    "order:N",
    title=None,
    scale=alt.Scale(domain=["post-norm", "pre-norm"], range=["#D55E00", "#0072B2"]),
    legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300, symbolStrokeWidth=2),
)
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_line(point={"size": 25, "strokeWidth": 0})
    .encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(values=[1, 6, 12, 18, 24], grid=False), scale=alt.Scale(domain=[0.5, 24.5], nice=False)),
        y=alt.Y("norm:Q", title="gradient norm", scale=alt.Scale(type="log"), axis=alt.Axis(values=[0.001, 0.01, 0.1, 1], format="~g")),
        color=order,
        strokeDash=alt.StrokeDash("order:N", title=None, scale=alt.Scale(domain=["post-norm", "pre-norm"], range=[[1, 0], [5, 3]])),
        column=alt.Column("stack:N", title=None, sort=["encoder", "decoder"]),
        row=alt.Row("depth:N", title=None, sort=["6 layers", "12 layers", "24 layers"]),
        tooltip=["stack:N", "depth:N", "order:N", "layer:Q", "norm:Q"],
    )
    .properties(width=205, height=105, title="In a deep post-norm decoder the lower layers get almost no gradient")
)
chart

# %% [markdown]
# The right column shows the decoder. With post-norm (solid) the last layer's gradient is about the same at every depth, and it shrinks by a nearly constant factor
# with each layer further down, a straight line on the logarithmic axis; the first of 24 layers gets less than a thousandth of the last one's. With pre-norm (dashed) the curve is nearly level,
# somewhat larger at the bottom, and smaller as a whole in a deeper stack. In the encoder, on the left, both orders stay within a factor of a few.

# %%
for n_layers in (6, 12, 24):
    post, pre = measured["post", n_layers, "decoder"], measured["pre", n_layers, "decoder"]
    assert post[-1] > 3 * post[0]  # falls towards the input
    assert pre[0] > pre[-1]  # does not
    for norm_order in ("post", "pre"):
        level = measured[norm_order, n_layers, "encoder"]
        assert level.max() < 6 * level.min()
assert measured["post", 24, "decoder"][-1] > 1000 * measured["post", 24, "decoder"][0]
assert 0.5 < measured["post", 24, "decoder"][-1] / measured["post", 6, "decoder"][-1] < 2  # as large at every depth
assert measured["pre", 24, "decoder"][-1] < 0.8 * measured["pre", 6, "decoder"][-1]  # smaller the deeper

# %% [markdown]
# ### Why the decoder, and why that factor
#
# A sub-layer adds variance to the sum; the norm then scales the whole sum back, the share of $x$ included. In self-attention and the feed-forward
# network the gradient has a second way back to $x$, through the sub-layer, which makes up for most of that. The third sub-layer is different. Its values come from the memory, so what it adds
# has almost no way back to $x$. How much it adds depends on the memory. A deep fresh encoder makes its positions nearly alike (exercise 5), so their average is as long as each of them: it adds about as much variance
# as $x$ has, and the norm divides by about $\sqrt{2}$, once a layer. Independent vectors average to something short.
#
# The next cell measures both: it lets the decoder read the encoder's output, then the source vectors themselves.

# %%
def spread_at_third(memory: Tensor) -> float:
    """Spread of x + attention over the memory, before its norm, as a mean over the layers of a fresh post-norm decoder."""
    decoder, spreads = glorot(make_decoder(24, 64, 256, dropout=0.0)), []
    for layer in decoder.layers:
        layer.memory_attention_block.norm.register_forward_pre_hook(
            lambda module, given: spreads.append(given[0].std(-1, correction=0).mean().item())
        )
    with torch.inference_mode():
        decoder(torch.randn(4, 12, 64), memory)
    return sum(spreads) / len(spreads)


torch.manual_seed(0)
with torch.inference_mode():
    encoded = glorot(make_encoder(24, 64, 256, dropout=0.0))(source)
for name, memory, encode in (("a fresh encoder's output", encoded, True), ("independent vectors", source, False)):
    norms = torch.tensor([gradient_norms("post", 24, seed, encode)["decoder"] for seed in range(SEEDS)]).mean(0)  # (24,)
    factor, spread = (norms[-1] / norms[0]).item() ** (1 / 23), spread_at_third(memory)
    print(f"memory of {name}: spread {spread:.1f}, gradient lost from layer to layer: a factor of {factor:.1f}")
    assert abs(factor / spread - 1) < 0.15
    assert (factor > 1.3) == encode

# %% [markdown]
# The two numbers agree within 15 %, and without the alike positions the fall is gone. So the straight line in the chart is a property of post-norm *and* of a fresh encoder; what training makes of it is another matter.

# %% [markdown]
# ## Unsaid by the paper
#
# - **The order changed soon.** The authors' first public code (tensor2tensor, 15 June 2017) normalizes after the sum, as the paper says, and has no final norm.
#   In August 2017 the place became an option; in October the default moved to pre-norm, with a final norm on each stack. Descriptions
#   of "the Transformer" since then often mean pre-norm. The Annotated Transformer quotes the sentence above and implements pre-norm.
# - **Warm-up.** Xiong et al. (2020) explain by large gradients near the output of a fresh post-norm model why it needs the warm-up of Section 5.3, and train pre-norm models without one.
#   That pre-norm gradients neither vanish nor explode, as is sometimes said, is too strong: the chart shows them fall with depth.
# - **ε.** The paper names none. The authors' code has $10^{-6}$, torch $10^{-5}$; both stand inside the root. The variant above is The Annotated Transformer's.
# - **Initialization.** The paper names none either. The authors' code draws uniform weights with unit gain; this book uses Glorot's uniform
#   initialization, set in [Section 3.6](03_6_the_full_model.py).
# - **One encoder output.** The text says it in passing: the decoder attends over "the output of the encoder stack". So every decoder layer reads the last encoder layer, as in Figure 1 and the
#   authors' code, and not the one beside it.
#
# ## What we now know
#
# - A sub-layer's output is $\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$; a fresh block's rows have mean 0 and variance 1.
# - Layer normalization divides by the biased deviation with $\epsilon$ inside the root: [1, 0, 0, 0] starts with 1.7320, not 1.5.
# - Six layers have the same form and different weights, from the first draw on.
# - The decoder's third sub-layer reads the memory. Its self-attention never looks ahead: earlier outputs change by 0.0.
# - A pre-norm stack returns its input plus all its sub-layers' outputs, and so needs a final norm.
# - At initialization, the gradient in a post-norm decoder that reads a fresh encoder's output shrinks by about $\sqrt 2$ with each layer further down, because the third sub-layer adds variance and passes almost no gradient back. Pre-norm avoids this.
#
# ## Exercises
#
# 1. **Predict, then run.** What does `layer_norm` make of the row [9, 5, 5, 5]? Compare it with the row above. Check: `check("3.1-layer-norm", answer)`.
# 2. **Minutes.** Give the row [5, 5, 5, 5] to `layer_norm` and to `layer_norm_variant`. Then add $10^{-5}$ to its last number and compare. Which $\epsilon$ decides what happens to a nearly constant row?
# 3. **Minutes.** A pre-norm layer's input is $x + c$ with the same number $c$ added to every component. What changes in the stack's output, before and after the final norm? And in a post-norm stack?
# 4. **Minutes.** Multiply the input of a post-norm stack by 1000. What happens to the output of the first block, and of the last? And with pre-norm?
# 5. **An hour.** A stack has no residual connections: $\mathrm{LayerNorm}(\mathrm{Sublayer}(x))$. How alike are the vectors of different positions after 1, 2, 6 and 24 layers, compared with post-norm and pre-norm stacks that have them?
# 6. **An hour.** Start every block's gain at 0.1 instead of 1 in a post-norm decoder of 24 layers. What does the chart look like? Derive it before you run it.

# %% [markdown]
# Solution to exercise 1: the same as of [1, 0, 0, 0], since the mean takes the shift away and the spread the scale.

# %% tags=["hide-cell"]
from transformer.exercises import check

row = torch.tensor([9.0, 5.0, 5.0, 5.0])
answer = layer_norm(row, torch.ones(4), torch.zeros(4))
print([round(x, 3) for x in answer.tolist()])
verdict = check("3.1-layer-norm", answer)
print(verdict)
assert verdict

# %% tags=["hide-cell"]
# Exercise 5: without residual connections the positions become alike.
def similarity(x: Tensor) -> float:
    """Mean cosine between the vectors of different positions."""
    unit = x / x.norm(dim=-1, keepdim=True)
    cosine = unit @ unit.mT  # (B, n, n)
    n = x.size(1)
    return ((cosine.sum((1, 2)) - n) / (n * (n - 1))).mean().item()


def bare_layer(layer: EncoderLayer, x: Tensor) -> Tensor:
    x = layer.attention_block.norm(layer.self_attention(x, x, x))
    return layer.feed_forward_block.norm(layer.feed_forward(x))


alike = {}
for kind in ("bare", "post", "pre"):
    torch.manual_seed(0)
    x = torch.randn(4, 12, 64)
    stack = glorot(make_encoder(24, 64, 256, dropout=0.0, norm_order="pre" if kind == "pre" else "post"))
    alike[kind] = []
    with torch.inference_mode():
        for layer in stack.layers:
            x = bare_layer(layer, x) if kind == "bare" else layer(x)
            alike[kind].append(similarity(x))
    print(f"{kind:4}", "  ".join(f"{n:2} layers: {alike[kind][n - 1]:.2f}" for n in (1, 2, 6, 24)))
assert alike["bare"][1] > 0.9 and alike["post"][1] < 0.5
assert alike["pre"][5] < alike["post"][5]

# %% [markdown]
# Two layers of averaging make all positions nearly the same. The residual connection keeps each position's own vector in the sum, and pre-norm keeps it longest.

# %% [markdown]
# ## The notebook and the module agree
#
# `transformer.Encoder` and `transformer.Decoder` are these classes, exported. With copied weights they give the same result.

# %%
torch.manual_seed(0)
shape = {"n_layers": 2, "d_model": 64, "d_ff": 256, "dropout": 0.0, "norm_order": "pre"}
encoder, decoder = make_encoder(**shape), make_decoder(**shape)


def imported_layer(kind, n_attentions: int):
    return kind(*(attention(64) for _ in range(n_attentions)), PositionwiseFeedForward(64, 256), 64, 0.0, "pre")


encoder_2 = transformer.Encoder((imported_layer(transformer.EncoderLayer, 1) for _ in range(2)), nn.LayerNorm(64))
decoder_2 = transformer.Decoder((imported_layer(transformer.DecoderLayer, 2) for _ in range(2)), nn.LayerNorm(64))
encoder_2.load_state_dict(encoder.state_dict())
decoder_2.load_state_dict(decoder.state_dict())
source, target = torch.randn(2, 4, 12, 64)
with torch.inference_mode():
    assert torch.equal(decoder_2(target, encoder_2(source)), decoder(target, encoder(source)))
print("the same output, bit for bit")
