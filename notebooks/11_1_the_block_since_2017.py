# %% [markdown]
# # 11.1 The Block Since 2017
#
# The layers of 2017 are still there in the models of today, and nearly every part inside them has been exchanged. This chapter has the table of all exchanges, the function that makes them, and the first of them: where the normalization stands.

# %%
#| default_exp modern.stacks

# %%
import statistics
from functools import partial

import altair as alt
import torch
import torch.nn.functional as F

import transformer
from transformer import modern

transformer.check_version("0.1")

# %% [markdown]
# > We employ a residual connection around each of the two sub-layers, followed by layer normalization.
# >
# > — Section 3.1
#
# ## The paper's parts, today's parts
#
# | the paper | today | since | why |
# |---|---|---|---|
# | LayerNorm after the sum (3.1) | before the sub-layer, *pre-norm* | the authors' code of October 2017 ([3.1](03_1_encoder_and_decoder_stacks.py)) | deep stacks train (Wang et al. [2019](https://arxiv.org/abs/1906.01787)), and without warm-up: this chapter |
# | LayerNorm (3.1) | RMSNorm | Zhang and Sennrich [2019](https://arxiv.org/abs/1910.07467) | simpler, and about as good in their comparison: [11.1a](11_1a_rms_norm.py) |
# | feed-forward with ReLU and biases (3.3) | gated, without biases | Shazeer [2020](https://arxiv.org/abs/2002.05202) | better at equal parameters in his comparison; he offers no reason: [11.1b](11_1b_gated_feed_forward.py) |
# | sinusoids added to the embeddings (3.5) | queries and keys rotated, *RoPE* | Su et al. [2021](https://arxiv.org/abs/2104.09864) | scores know distances, in every layer: [11.2a](11_2a_rotary_positions.py) |
# | $h$ heads of keys and values (3.2.2) | one, or a few, for all heads of queries | Shazeer [2019](https://arxiv.org/abs/1911.02150), Ainslie et al. [2023](https://arxiv.org/abs/2305.13245) | a smaller cache, so more sentences at once: [11.2b](11_2b_grouped_query_attention.py) |
# | how decoding is computed: not described (6.1) | keys and values kept from step to step | common practice | every step computes one position and not all: [11.2](11_2_attention_since_2017.py) |
# | softmax of a stored matrix (3.2.1) | computed in tiles, never stored | Dao et al. [2022](https://arxiv.org/abs/2205.14135) | memory linear in $n$, and less traffic to it: [11.2c](11_2c_attention_in_tiles.py) |
# | beam search (6.1) | sampling from the likeliest tokens | Fan et al. [2018](https://arxiv.org/abs/1805.04833), Holtzman et al. [2020](https://arxiv.org/abs/1904.09751) | open questions have many good answers: [11.2](11_2_attention_since_2017.py) |
# | likelihood of a reference (5) | then preferences between answers, for example DPO | Rafailov et al. [2023](https://arxiv.org/abs/2305.18290) | people compare answers more easily than they write them: [11.3](11_3_preferences.py) |
# | encoder and decoder (3.1) | the decoder alone | Liu et al. [2018](https://arxiv.org/abs/1801.10198), GPT | one stack for every text: [10](10_from_transformer_to_gpt.py) |
#
# Which model has what, by the reports and the published code:
#
# | | normalization | feed-forward | positions | heads of keys, of queries |
# |---|---|---|---|---|
# | the paper's base | LayerNorm, after the sum | ReLU | sinusoids | 8 of 8 |
# | GPT-2, smallest (Radford et al. 2019) | LayerNorm, before | GELU | learned | 12 of 12 |
# | T5 base (Raffel et al. [2020](https://arxiv.org/abs/1910.10683)) | RMSNorm under another name, before | ReLU | learned for distances, added to scores | 12 of 12 |
# | PaLM 540B (Chowdhery et al. [2022](https://arxiv.org/abs/2204.02311)) | LayerNorm, before; one for both sub-layers, which stand side by side | SwiGLU | RoPE | 1 of 48 |
# | Llama 7B (Touvron et al. [2023a](https://arxiv.org/abs/2302.13971)) | RMSNorm, before | SwiGLU | RoPE | 32 of 32 |
# | Llama 2 70B (Touvron et al. [2023b](https://arxiv.org/abs/2307.09288)) | RMSNorm, before | SwiGLU | RoPE | 8 of 64 |
# | Mistral 7B (Jiang et al. [2023](https://arxiv.org/abs/2310.06825)) | RMSNorm, before | SwiGLU | RoPE | 8 of 32 |
# | Gemma 2B ([2024](https://arxiv.org/abs/2403.08295)) | RMSNorm, before | GeGLU | RoPE | 1 of 8 |
# | Llama 3 8B ([2024](https://arxiv.org/abs/2407.21783)) | RMSNorm, before | SwiGLU | RoPE | 8 of 32 |
# | OLMo 2 7B ([2025](https://arxiv.org/abs/2501.00656)) | RMSNorm, between sub-layer and sum | SwiGLU | RoPE | 32 of 32 |
#
# The sources are in the [bibliography](../book/bibliography.md). Models whose parts are not published are not in the table.
#
# Do the exchanges of this part touch attention? Equation (1) stays what it was in all of them. (Two rows of the table go further: T5 adds to the scores and does not divide them, and Mistral 7B hides keys beyond a window.)
#
# | exchange | what it changes |
# |---|---|
# | pre-norm, RMSNorm | the *inputs* of attention: they are normalized, or normalized otherwise |
# | SwiGLU | nothing in attention; the inputs of the next layer |
# | RoPE | the *inputs* of Equation (1): queries and keys are turned before they meet |
# | grouped queries | the *inputs* of Equation (1): several heads are given the same keys and values |
# | key–value cache | the *schedule*: the same numbers, computed once and kept |
# | fused exact attention | the *schedule*: the same sums in another order |
# | sampling, DPO | nothing inside the model: what is done with its output, and what it is trained for |
#
# ## Exchange a part
#
# [The layers](03_1_encoder_and_decoder_stacks.py) take their parts from outside. So a part of today is passed in, and the paper's code stays as it is. `build_transformer` first makes the model of Section 3.6 and then puts its
# layers together anew, with some of their parts exchanged. All other parts keep their weights, so two models of one seed differ by the exchanged part and by nothing else.
#
# Two small classes help. With rotated queries and keys, nothing is added to the embeddings. And if there are fewer heads of keys than of queries, the decoder's cache must be no wider than the keys: it asks the attention what shape its keys have.


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

# %% [markdown]
# ### See it
#
# The same configuration, once with the paper's parts and four times with one of them exchanged:

# %%
config = TransformerConfig.tiny(vocab_size=100, n_heads=8, dropout=0.0)
grouped = partial(modern.GroupedQueryAttention, n_kv_heads=2)
EXCHANGES = {
    "the paper's parts": {},
    "RMSNorm": {"norm": modern.RMSNorm},
    "SwiGLU": {"feed_forward": modern.GatedFeedForward.as_large_as},
    "RoPE": {"self_attention": modern.RotaryAttention, "positions": False},
    "two heads of keys": {"self_attention": grouped},
}
models = {}
for name, parts in EXCHANGES.items():
    torch.manual_seed(0)
    models[name] = build_transformer(config, **parts).eval()
    layer = models[name].decoder.layers[0]
    kinds = [type(part).__name__ for part in (layer.self_attention, layer.feed_forward, layer.feed_forward_block.norm)]
    print(f"{name:18}{transformer.count_parameters(models[name]):9,} parameters  {', '.join(kinds)}")

# %% [markdown]
# ### Check it: nothing else has changed
#
# With the paper's parts the function must return the paper's model, weight for weight. With an exchanged part, every weight outside of it must still be the same. And whatever the
# part, three promises of the whole model hold: a target position is deaf to later ones, padding of the source changes nothing, and decoding token by token with the cache gives what the whole target gives at once.

# %%
torch.manual_seed(0)
papers = Transformer(config).state_dict()
src, tgt = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 6))  # (B, n), (B, m)
padded, later = F.pad(src, (0, 3)), tgt.clone()  # (B, n + 3); padding has id 0
later[:, 4:] = (later[:, 4:] + 1) % 97 + 3
for name, model in models.items():
    state = model.state_dict()
    outside = [key for key in papers if not any(f".{part}." in key for part in EXCHANGES[name])]
    assert outside and all(torch.equal(state[key], papers[key]) for key in outside)
    if name == "the paper's parts":
        assert list(state) == list(papers) == outside
    with torch.inference_mode():
        logits = model(src, tgt)  # (B, m, V)
        assert torch.allclose(model(src, later)[:, :4], logits[:, :4], atol=1e-5)
        assert not torch.allclose(model(src, later)[:, 4:], logits[:, 4:], atol=1e-2)
        assert torch.allclose(model(padded, tgt), logits, atol=1e-4)
        cache = model.new_cache(model.encode(src), None, max_new_tokens=6)
        hidden = torch.cat([model.decode(tgt[:, i : i + 1], cache=cache) for i in range(6)], dim=1)
        assert torch.allclose(model.output_projection(hidden), logits, atol=1e-4)
    print(f"{name:18}causal, padding unseen, cache of {cache.layers[0].own.keys.size(1)} heads agrees")

# %% [markdown]
# ## Pre-norm
#
# The paper's order and today's, around a sub-layer $F_k$:
#
# $$\text{post-norm:}\quad x_k = \mathrm{LayerNorm}(x_{k-1} + F_k(x_{k-1})) \qquad\qquad \text{pre-norm:}\quad x_k = x_{k-1} + F_k(\mathrm{LayerNorm}(x_{k-1}))$$
#
# No part is new; one has moved. Because the authors' own code made this move within months, it is the one dial of this part that [the configuration](03_6_the_full_model.py) has: `norm_order="pre"`. [Section 3.1](03_1_encoder_and_decoder_stacks.py) has its code, the final norm it needs,
# and the gradient of its weights. What follows looks at the stream $x_0, x_1, \ldots, x_K$ itself, where $K$ is $2N$ in the encoder and $3N$ in the decoder.
#
# **Variance.** In pre-norm each $F_k$ reads a normalized vector, so at initialization its output has about the same variance $v$ at every depth. If the outputs are uncorrelated with each other and with $x_0$, variances add:
#
# $$\operatorname{Var} x_K = \operatorname{Var} x_0 + K v$$
#
# The stream grows in proportion to the depth. In post-norm the last thing done is a normalization: $\operatorname{Var} x_k = 1$, always.
#
# **What is left of the input.** In pre-norm the input's share of the variance falls like $1/K$. In post-norm every normalization divides the whole sum by its spread, $\sqrt{1+v}$, and the share of $x_0$ in it by $1+v$. After $K$ of them it is $(1+v)^{-K}$: with $v=1$ it is halved at every sub-layer.
#
# **The gradient** takes the same path back. What comes to $x_0$ along the additions alone is undivided in pre-norm (below the final norm), and divided by $(1+v)^{K/2}$ in post-norm.
#
# ### Check it: 24 layers
#
# The model has $N = 24$, width 64, and is not trained. It is given random tokens and asked for random tokens. For the vector before the first sub-layer and after each, the cell records the variance, the squared correlation with $x_0$ (the share of variance that is still the input's), and the norm of the loss's gradient.


# %%
def follow_streams(model):
    """The stream of encoder and decoder before the first sub-layer and after each, with gradients, for one random batch."""
    streams = {"encoder": [], "decoder": []}

    def watch(xs, given, x):
        for vectors in [given[0], x] if not xs else [x]:
            vectors.retain_grad()
            xs.append(vectors)

    for name, xs in streams.items():
        for block in model.get_submodule(name).modules():
            if isinstance(block, transformer.ResidualBlock):
                block.register_forward_hook(lambda block, given, x, xs=xs: watch(xs, given, x))
    src, tgt_in, tgt_out = torch.randint(3, 100, (3, 4, 12))  # each (B, n)
    F.cross_entropy(model(src, tgt_in).flatten(0, 1), tgt_out.flatten()).backward()
    return streams


# %%
N, SEEDS = 24, 3
measured = {}  # (order, stack) → mean over the seeds, (K + 1, 3): variance, share of the input, gradient
for order in ("post-norm", "pre-norm"):
    found = {"encoder": [], "decoder": []}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        sizes = {"d_model": 64, "d_ff": 256, "n_heads": 4, "n_layers": N, "dropout": 0.0}
        streams = follow_streams(build_transformer(TransformerConfig(100, 100, norm_order=order.removesuffix("-norm"), **sizes)))
        for stack, xs in streams.items():
            flat = torch.stack([x.detach().flatten() for x in xs])  # (K + 1, B·n·d_model)
            share = torch.corrcoef(flat)[0].square()  # (K + 1,)
            found[stack].append(torch.stack([flat.var(-1), share, torch.stack([x.grad.norm() for x in xs])], dim=-1))
    measured |= {(order, stack): torch.stack(runs).mean(0) for stack, runs in found.items()}
for (order, stack), values in measured.items():
    (first, _, grad_first), (last, share, grad_last) = values[0].tolist(), values[-1].tolist()
    print(f"{stack}, {order:9} K = {len(values) - 1}: variance {first:.1f} → {last:4.1f}; the input's share {share:.3f}; gradient {grad_first:.0e} ← {grad_last:.0e}")

# %%
for stack, per_layer in (("encoder", 2), ("decoder", 3)):
    pre, post = measured["pre-norm", stack], measured["post-norm", stack]
    depth = per_layer * N
    assert len(pre) == len(post) == depth + 1
    assert (post[1:, 0] - 1).abs().max() < 0.01  # post-norm: variance 1
    half = (pre[depth // 2, 0] - pre[0, 0]) / (pre[-1, 0] - pre[0, 0])
    assert 0.3 < half < 0.7  # pre-norm: half of the growth in half of the depth
    expected = pre[0, 0] / pre[-1, 0]  # the input's variance, undiminished, in that of the sum
    assert 0.3 * expected < pre[-1, 1] < 3 * expected
    assert post[12, 1] < 0.2 * pre[12, 1] and post[-1, 1] < 0.02  # 12 sub-layers up, post-norm has lost its input
    print(f"{stack}: pre-norm's stream has {half:.0%} of its growth in the lower half; input's share at the end, were nothing correlated: {expected:.3f}")
rises = {key: (values[0, 2] / values[-1, 2]).item() for key, values in measured.items()}  # gradient at x₀, of that at x_K
fading = rises.pop(("post-norm", "decoder")) ** (-1 / N)
assert 1.3 < fading < 1.6 and min(rises.values()) > 0.5 and max(rises, key=rises.get) == ("pre-norm", "encoder")
print(f"decoder, post-norm: the gradient falls by a factor of {fading:.1f} a layer")

# %% tags=["hide-input"]
names = ["variance", "the input's share", "gradient"]
rows = [
    {"stack": stack, "order": order, "sub-layer": k, "quantity": name, "value": float(f"{value:.3g}")}
    for (order, stack), values in measured.items()
    for k, triple in enumerate(values.tolist())
    for name, value in zip(names, triple, strict=True)
]
domain = ["post-norm", "pre-norm"]
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_line()
    .encode(
        x=alt.X("sub-layer:Q", title="sub-layers passed", axis=alt.Axis(values=[0, 24, 48, 72], grid=False)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=4)),
        color=alt.Color(
            "order:N", title=None, scale=alt.Scale(domain=domain, range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300, symbolStrokeWidth=2),
        ),
        strokeDash=alt.StrokeDash("order:N", title=None, scale=alt.Scale(domain=domain, range=[[1, 0], [5, 3]])),
        column=alt.Column("stack:N", title=None, sort=["encoder", "decoder"]),
        row=alt.Row("quantity:N", title=None, sort=names),
        tooltip=["stack:N", "order:N", "sub-layer:Q", "quantity:N", "value:Q"],
    )
    .properties(width=175, height=95, title="Post-norm forgets its input; in its decoder the gradient fades")
    .resolve_scale(y="independent")
)
chart

# %% [markdown]
# The vertical axes are logarithmic. Top row: pre-norm's variance (dashed) grows all the way up, but for a few small steps back, post-norm's (solid) is 1. Middle row: pre-norm's share of the input falls slowly, like one over the depth; post-norm's falls along a straight line,
# that is, by a constant factor, until only chance is left. Bottom row: the gradient at each place of the stream. In the post-norm decoder it fades by orders of magnitude from right to left, by about $\sqrt 2$ a layer. In the other three it does not fade; in the pre-norm encoder it grows towards the input. That the
# encoder is spared, and why the decoder's factor is this one, is worked out in [Section 3.1](03_1_encoder_and_decoder_stacks.py).
#
# So at initialization post-norm strains a deep stack twice. Going up, each layer builds on the last few alone, and hardly on the input. Going down, the lower layers of the decoder hear almost nothing of the loss. Pre-norm has a price of its own: where the stream is large, what a late sub-layer adds
# is small beside it, so late layers change little.

# %% [markdown]
# ## The dials, recorded
#
# One small model was trained with each part exchanged in turn, with three seeds. [One part at a time](11_0_one_part_at_a_time.py) says how, has the table of all rows, and tells what an interval of three seeds can show.
#
# ### Training without warm-up
#
# Two rows have no warm-up. They begin with the schedule's highest rate and stay there until the warm-up would have ended; after that all rates are equal. [Section 5.3](05_3_optimizer.py) ran the like with a wider post-norm model, which learned how frequent the tokens are, and nothing more.
# Xiong et al. ([2020](https://arxiv.org/abs/2002.04745)) say that a pre-norm model needs no warm-up.

# %%
comparison = modern.read_comparison()
chart = None
if comparison:
    print(comparison.made)
    warmup = 150
    print(f"highest rate: {transformer.noam_rate(warmup, 64, warmup):.4f}, from update {warmup} with warm-up and from update 1 without")
    shown = ["base", "pre-norm", "base without warm-up", "pre-norm without warm-up"]
    for row, other in (shown[2], shown[0]), (shown[3], shown[1]), (shown[3], shown[0]):
        print(f"{row} against {other}: {comparison.against(row, other)}")
    final = {row: comparison.values(row) for row in shown}
    assert min(final["base without warm-up"]) > 3 > 2 > max(final["pre-norm without warm-up"])
    assert max(final["pre-norm"]) < min(final["pre-norm without warm-up"])
    assert comparison.against("pre-norm without warm-up").verdict == "no difference seen"
    assert comparison.values("base without warm-up", "exact_match") == [0, 0, 0]
    chart = comparison.chart(*shown, title="Without warm-up, pre-norm learns and post-norm hardly does")
chart

# %% [markdown]
# One line is one seed. Post-norm without warm-up (yellow-orange, long dashes) stays high in all three, and not one of its translations is exact. Pre-norm without warm-up (light blue, dotted) learns. It does not do as well as pre-norm with warm-up, and ends where no difference to post-norm with warm-up is seen.
# So "pre-norm needs no warm-up" is right in the sense that it trains without; at this rate and length, the warm-up still pays.
#
# ### Every dial

# %% tags=["hide-input"]
chart = None
if comparison:
    rows = comparison.rows[1:]  # base is the first
    values = [
        {**point, "dial": dial, "which": "base" if point["row"] == "base" else "exchanged"}
        for dial in rows
        for point in comparison.points("base", dial)
    ]
    dial = alt.param(name="dial", value=rows[0], bind=alt.binding_select(options=rows, name="Exchanged: "))
    legend = alt.Legend(orient="top", symbolType="stroke", symbolSize=300, symbolStrokeWidth=2)
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line()
        .encode(
            x=alt.X("update:Q", axis=alt.Axis(grid=False)),
            y=alt.Y("loss:Q", title="loss on unseen sentences, nats per token"),
            detail="seed:N",
            color=alt.Color("which:N", title=None, scale=alt.Scale(domain=["base", "exchanged"], range=["#D55E00", "#0072B2"]), legend=legend),
            strokeDash=alt.StrokeDash("which:N", title=None, scale=alt.Scale(domain=["base", "exchanged"], range=[[1, 0], [5, 3]])),
            tooltip=["row:N", "seed:N", "update:Q", alt.Tooltip("loss:Q", format=".2f")],
        )
        .add_params(dial)
        .transform_filter("datum.dial == dial")
        .properties(width=400, height=220, title="Of the single parts, pre-norm helps most here")
    )
chart

# %% [markdown]
# Solid lines are base, dashed lines the row chosen above, one line a seed. The next cell says which rows can be told from base; for the others no difference is seen, which is not the same as no difference.
#
# Pre-norm is the largest step. With SwiGLU and with RoPE, too, the model learns faster than base. Two heads of keys and values in place of eight, and with them fewer parameters, cost something: that exchange is made for the cache, and pays when the model is used. Last, all together against pre-norm, the largest part: does the rest still add anything?

# %%
if comparison:
    found = {row: comparison.against(row) for row in ("pre-norm", "RMSNorm", "SwiGLU", "RoPE", "grouped-query", "all")}
    for row, difference in found.items():
        print(f"{row:14} against base: {difference}")
    rest = comparison.against("all", "pre-norm")
    print(f"{'all':14} against pre-norm: {rest}")
    assert {row for row, difference in found.items() if difference.verdict == "better"} == {"pre-norm", "SwiGLU", "RoPE", "all"}
    assert found["grouped-query"].verdict == "worse"
    assert found["RMSNorm"].verdict == rest.verdict == "no difference seen"
    assert all(comparison.against(row, "pre-norm").verdict == "worse" for row in ("RMSNorm", "SwiGLU", "RoPE", "grouped-query"))

# %% [markdown]
# Nothing is seen of it, and the model has fewer parameters. Either the gains of SwiGLU and RoPE are smaller on top of pre-norm, or the loss by grouped queries eats them: these runs cannot tell. Exercise 5 asks for the rows that can.

# %% [markdown]
# ## Unsaid by the paper
#
# - **The paper says post-norm, its code soon said pre-norm.** [Section 3.1](03_1_encoder_and_decoder_stacks.py) has the dates.
# - **Small gradients are not the whole story.** Adam divides them out. Liu et al. ([2020](https://arxiv.org/abs/2004.08249)) find that balanced gradients alone do not make a deep post-norm model train. They blame its heavy dependence on what the sub-layers add: small changes of the weights are amplified to a large change of the model's output.
# - **Post-norm can be saved.** With larger weights on the residual path and smaller initial weights in the sub-layers, Wang et al. ([2022](https://arxiv.org/abs/2203.00555)) train post-norm models of a thousand layers.
# - **A third order.** OLMo 2 (Team OLMo [2025](https://arxiv.org/abs/2501.00656)) normalizes what a sub-layer adds, $x + \mathrm{RMSNorm}(F(x))$. Exercise 4 builds it with LayerNorm.
# - **The final norm** of pre-norm is part of the model, and easily forgotten in a port: without it the logits are of the stream's size.
#
# ## What we now know
#
# - One function exchanges any part of the block; with the paper's parts it returns the paper's model, weight for weight. Causality, padding and cached decoding hold with every part.
# - None of the exchanges touches Equation (1).
# - At initialization, over 24 layers: pre-norm's stream grows in proportion to the depth, post-norm's has variance 1. Post-norm's share of the input falls exponentially, pre-norm's like one over the depth. In the post-norm decoder the gradient fades by about $\sqrt 2$ a layer.
# - Recorded, small, three seeds: pre-norm, SwiGLU and RoPE learn faster than base, grouped queries more slowly; for RMSNorm no difference is seen, nor between all together and pre-norm alone. Without warm-up post-norm fails three times of three, and pre-norm learns three times of three.
#
# ## Exercises
#
# 1. **Predict, then run.** A pre-norm decoder of 6 layers in place of 24: what becomes of the growth of its stream? Half of it, a quarter, a sixteenth?
# 2. **Minutes.** In an encoder of 24 layers each sub-layer adds an independent vector of variance 1 to a stream that begins with variance 1. Post-norm divides by the spread after every addition, pre-norm never. Which share of the output's variance is
#    still the input's? Give the pair (pre-norm, post-norm). Check: `check("11-depth", answer)`.
# 3. **Minutes.** Why does post-norm strain deep stacks? (a) Its residual path has a normalization after every sub-layer; each divides what passes, forwards and backwards, by the spread of the sum. (b) Its stream grows with depth, so the last layers see large
#    vectors. (c) Its sub-layers see inputs that are not normalized. (d) It lacks the final normalization of pre-norm. Check: `check("11-post-norm", answer)`.
# 4. **An hour.** Build the third order, $x + \mathrm{LayerNorm}(F(x))$, as a subclass of `ResidualBlock`, and follow the stream of an encoder of 24 layers. How does its variance grow now, and how much of it can you say beforehand?
# 5. **A day.** In `book/experiments/modern.py`, add four rows: pre-norm with RMSNorm, with SwiGLU, with RoPE, and with grouped queries. Compare each with pre-norm, seed by seed. Which of the two explanations above holds? How many seeds does it take until the intervals
#    are narrow enough to say so?

# %% [markdown]
# Solution to exercise 1: about a quarter, since the variance of what is added hardly depends on the depth. It is a little less: the terms are not quite uncorrelated, so the sum grows faster than the number of its terms.

# %% tags=["hide-cell"]
ends = []
for seed in range(SEEDS):
    torch.manual_seed(seed)
    shallow = follow_streams(build_transformer(TransformerConfig(100, 100, norm_order="pre", **{**sizes, "n_layers": 6})))["decoder"]
    ends.append((shallow[-1].var() - shallow[0].var()).item())
deep = measured["pre-norm", "decoder"][:, 0]
ratio = statistics.mean(ends) / (deep[-1] - deep[0]).item()
print(f"growth over 6 layers, of that over 24: {ratio:.2f}")
assert 0.12 < ratio < 0.38  # neither a half nor a sixteenth

# %% [markdown]
# Solution to exercise 2: the encoder has 48 sub-layers, so pre-norm's stream ends with variance 49, of which 1 is the input's. Post-norm halves the share each time.

# %% tags=["hide-cell"]
from transformer.exercises import check

pre_share, post_share = 1.0, 1.0
variance = 1.0
for _ in range(2 * 24):
    variance += 1.0
    pre_share, post_share = 1.0 / variance, post_share / 2
verdict_of_check = check("11-depth", (pre_share, post_share))
print(verdict_of_check)
assert verdict_of_check

# %% [markdown]
# Solution to exercise 3: (a). What (b) says is so of pre-norm. (c) and (d) are not so: in post-norm every sub-layer ends with a normalization, so the next one's input is normalized, and so is the output of the stack.

# %% tags=["hide-cell"]
print(check("11-post-norm", "a"))
assert check("11-post-norm", "a") and not check("11-post-norm", "b")

# %% [markdown]
# Solution to exercise 4: at initialization what is added has variance 1 exactly, so only the correlations between the terms are open. If they are small, the variance after $K$ sub-layers is about that of the input plus $K$.


# %% tags=["hide-cell"]
class NormalizedOutput(transformer.ResidualBlock):
    """x + norm(F(x)): the stream stays free, and what is added has a known size."""

    def forward(self, x, sublayer):
        return x + self.dropout(self.norm(sublayer(x)))


torch.manual_seed(0)
model = build_transformer(TransformerConfig(100, 100, norm_order="pre", **sizes))
for layer in model.encoder.layers:
    layer.attention_block, layer.feed_forward_block = (NormalizedOutput(64, dropout=0.0) for _ in range(2))
terms = []
for block in model.encoder.modules():
    if isinstance(block, NormalizedOutput):
        block.norm.register_forward_hook(lambda norm, given, y: terms.append(y.var().item()))
third = follow_streams(model)["encoder"]
print(f"variance of what is added: {min(terms):.3f} to {max(terms):.3f}; of the stream: {third[0].var():.1f} → {third[-1].var():.0f} after {len(terms)} sub-layers")
assert len(terms) == 48 and all(abs(term - 1) < 0.01 for term in terms)
assert 24 < third[-1].var() < 500

# %% [markdown]
# ## The notebook and the module agree

# %%
for parts in ({}, {"norm": modern.RMSNorm, "self_attention": grouped, "positions": False}):
    torch.manual_seed(1)
    ours = build_transformer(config, **parts)
    torch.manual_seed(1)
    theirs = transformer.modern.build_transformer(config, **parts)
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
    with torch.inference_mode():
        assert torch.equal(ours(src, tgt), theirs(src, tgt))
print("equal models from", build_transformer.__module__, "and", theirs.decoder.layers[0].__class__.__module__)
