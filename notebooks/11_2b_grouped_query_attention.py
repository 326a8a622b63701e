# %% [markdown]
# # 11.2b Grouped-Query Attention
#
# A model that writes a token reads all the keys and values it has kept. Multi-query attention (Shazeer
# [2019](https://arxiv.org/abs/1911.02150)) keeps one head of them for all heads of queries; grouped-query attention
# (Ainslie et al. [2023](https://arxiv.org/abs/2305.13245)) keeps one for each group of heads. The cache shrinks by
# the size of a group, and the queries stay as they were. This chapter shows that the paper's attention is one end of
# this dial, and what the other end saves.

# %%
#| default_exp modern.grouped_query

# %%
from functools import partial

import altair as alt
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import transformer
from transformer import modern

transformer.check_version("0.1")

# %% [markdown]
# ## Fewer keys and values than queries
#
# > In this work we employ $h=8$ parallel attention layers, or heads. For each of these we use
# > $d_k=d_v=d_{\text{model}}/h=64$.
# >
# > — Section 3.2.2
#
# Each of the paper's heads has keys and values of its own. With $n_{kv}$ heads of keys and values, $n_{kv}$ a divisor
# of $h$, query head $i$ reads head $g(i)$, both counted from 0:
#
# $$
# \mathrm{head}_i = \mathrm{Attention}(QW^Q_i,\; KW^K_{g(i)},\; VW^V_{g(i)}),
# \qquad g(i) = \lfloor i \, n_{kv} / h \rfloor
# $$
#
# With $n_{kv} = h$ this is multi-head attention, with $n_{kv} = 1$ multi-query attention.

# %%
#| export
from typing import Any

from torch import Tensor, nn

from transformer.multi_head import MultiHeadAttention


# %%
#| export
class GroupedQueryAttention(MultiHeadAttention):
    """Multi-head attention in which h / n_kv_heads neighbouring query heads share one head of keys and values.

    Args:
        d_model: Width of the inputs and the output.
        n_heads: h, the number of query heads.
        n_kv_heads: Number of key and value heads, a divisor of h. With h it is multi-head attention, with 1
            multi-query attention.
        **others: What else the class above takes; of `MultiHeadAttention`: d_k, d_v, attention_dropout.

    Raises:
        ValueError: n_kv_heads does not divide n_heads, or `MultiHeadAttention` refuses its sizes.

    Source: Ainslie et al. (2023), arXiv:2305.13245; n_kv_heads=1: Shazeer (2019), arXiv:1911.02150.
    """

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int, **others: Any) -> None:
        super().__init__(d_model, n_heads, **others)
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise ValueError(f"n_kv_heads={n_kv_heads} does not divide n_heads={n_heads}; choose a divisor.")
        self.n_kv_heads = n_kv_heads
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_k)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_v)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values once, for one or many calls of `attend`.

        Args:
            key: Shape (B, n, d_model).
            value: Shape (B, n, d_model).

        Returns:
            Keys (B, n_kv_heads, n, d_k) and values (B, n_kv_heads, n, d_v), which are what a cache keeps.
        """
        self._check("key", key)
        self._check("value", value)
        keys, values = self.w_k(key), self.w_v(value)  # (B, n, n_kv_heads·d_k), (B, n, n_kv_heads·d_v)
        heads = (self.n_kv_heads, -1)
        return keys.unflatten(-1, heads).transpose(1, 2), values.unflatten(-1, heads).transpose(1, 2)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend to keys and values that are already projected.

        Args:
            query: Shape (B, m, d_model), not yet projected.
            keys: Shape (B, n_kv_heads, n, d_k).
            values: Shape (B, n_kv_heads, n, d_v).
            mask: As in `MultiHeadAttention.forward`.
            is_causal: As in `MultiHeadAttention.forward`.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: The shapes do not fit together.
        """
        group = self.n_heads // self.n_kv_heads
        keys = keys.repeat_interleave(group, dim=1)  # (B, h, n, d_k): head i reads head i // group
        values = values.repeat_interleave(group, dim=1)  # (B, h, n, d_v)
        return super().attend(query, keys, values, mask, is_causal)

# %% [markdown]
# `project` makes what a cache keeps: $n_{kv}$ heads. `attend` repeats them for the computation. A kernel on a GPU
# need not copy; it lets the queries of a group read the same memory, and that is where the time is saved. PyTorch's
# function takes unrepeated heads with `enable_gqa=True`. The results are equal, and here the copies are small.
#
# ## See it
#
# The base model's width, eight query heads, and four settings of the dial.

# %%
x = torch.randn(1, 10, 512)  # (B, n, d_model)
for n_kv_heads in (8, 4, 2, 1):
    attention = GroupedQueryAttention(512, 8, n_kv_heads)
    with torch.inference_mode():
        keys, values = attention.project(x, x)
        output = attention.attend(x, keys, values)
    count = transformer.count_parameters(attention)
    print(f"n_kv = {n_kv_heads}: {count:9,} parameters, keys {tuple(keys.shape)}, output {tuple(output.shape)}")
    assert keys.shape == values.shape == (1, n_kv_heads, 10, 64) and output.shape == x.shape
    assert count == 2 * (512 * 512 + 512) + 2 * (512 * 64 * n_kv_heads + 64 * n_kv_heads)
assert transformer.count_parameters(GroupedQueryAttention(512, 8, 8)) == 4 * (512 * 512 + 512)

# %% [markdown]
# ## Check it: the paper's attention with repeated heads
#
# Any grouped attention is a multi-head attention in which the matrices of a group's heads are copies. We write that
# one down: each head's rows of $W^K$ and $W^V$, repeated. The outputs are the same, for each setting of the dial.


# %%
def with_repeated_heads(grouped):
    """The multi-head attention that computes the same."""
    plain = transformer.MultiHeadAttention(grouped.d_model, grouped.n_heads, grouped.d_k, grouped.d_v)
    weights = grouped.state_dict()
    for name in ("w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias"):
        heads = weights[name].unflatten(0, (grouped.n_kv_heads, -1))  # (n_kv, d, …)
        weights[name] = heads.repeat_interleave(grouped.n_heads // grouped.n_kv_heads, dim=0).flatten(0, 1)
    plain.load_state_dict(weights)
    return plain.to(grouped.w_q.weight.dtype)


torch.manual_seed(0)
x = torch.randn(2, 7, 32, dtype=torch.float64)
for n_kv_heads in (4, 2, 1):
    grouped = GroupedQueryAttention(32, 4, n_kv_heads).double()
    plain = with_repeated_heads(grouped)
    for how in ({}, {"is_causal": True}):
        assert torch.allclose(grouped(x, x, x, **how), plain(x, x, x, **how), atol=1e-12)
    queries, (keys, values) = grouped.w_q(x).unflatten(-1, (4, -1)).transpose(1, 2), grouped.project(x, x)
    fused = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    assert torch.allclose(grouped.w_o(fused.transpose(1, 2).flatten(2)), plain(x, x, x), atol=1e-12)
    print(f"n_kv = {n_kv_heads}: equal to multi-head attention in which each head of keys and values stands {4 // n_kv_heads} times")
multi_head = transformer.MultiHeadAttention(32, 4).double()
same = GroupedQueryAttention(32, 4, n_kv_heads=4).double()
same.load_state_dict(multi_head.state_dict())  # n_kv = h: the same matrices
assert torch.equal(same(x, x, x), multi_head(x, x, x))

# %% [markdown]
# The queries of a group still differ, so its heads look at different places. Equation (1) is untouched; what goes
# into it is shared.

# %%
seen = []
grouped.on_weights = seen.append  # multi-query: one head of keys for four of queries
grouped(x, x, x)
grouped.on_weights = None
(weights,) = seen  # (B, h, n, n)
apart = (weights[:, 0] - weights[:, 1]).abs().max().item()
print(f"two heads on the same keys differ in a weight by up to {apart:.2f}")
assert apart > 0.01

# %% [markdown]
# ## What it saves: memory
#
# A cache of $n$ positions keeps, in each of $N$ layers, $n_{kv}$ heads of keys and of values:
#
# $$ \text{numbers} = 2 \cdot N \cdot n_{kv} \cdot d_k \cdot n $$
#
# We hold the formula against the tensors of a model's cache, put together by
# [`build_transformer`](11_1_the_block_since_2017.py).

# %%
from transformer.modern import build_transformer

config = transformer.TransformerConfig.tiny(60)
memory = torch.zeros(1, 5, config.d_model)  # (B, n, d_model)
for n_kv_heads in (4, 2, 1):
    model = build_transformer(config, self_attention=partial(GroupedQueryAttention, n_kv_heads=n_kv_heads))
    cache = model.new_cache(memory, None, max_new_tokens=100)
    measured = sum(kept.nbytes for layer in cache.layers for kept in (layer.own.keys, layer.own.values))
    d_k = config.d_model // config.n_heads
    assert measured == 2 * config.n_layers * n_kv_heads * d_k * 100 * 4  # float32: 4 bytes
    print(f"n_kv = {n_kv_heads}: {measured:7,} bytes for 100 positions, {transformer.count_parameters(model):,} parameters")

# %% [markdown]
# For a toy this is nothing. Large models are another matter. Below are the sizes of Llama 2 with 70 billion
# parameters (Touvron et al. [2023](https://arxiv.org/abs/2307.09288); the sizes are in its released configuration):
# 80 layers, 64 query heads, heads of 128, 8 heads of keys and values. Two bytes a number, one text of 4,096 tokens.

# %%
GIB = 2**30
llama = {"n_layers": 80, "n_heads": 64, "d_k": 128}
kinds = {"multi-head, 64": 64, "grouped, 8": 8, "multi-query, 1": 1}
sizes = {
    name: 2 * llama["n_layers"] * n_kv_heads * llama["d_k"] * 4096 * 2 / GIB  # keys and values, two bytes
    for name, n_kv_heads in kinds.items()
}
for name, size in sizes.items():
    print(f"{name:15} {size:6.2f} GiB")
assert sizes["multi-head, 64"] == 10 and sizes["grouped, 8"] == 10 / 8
assert sizes["multi-head, 64"] * 131072 / 4096 == 320

# %%
lengths = alt.param("tokens", value=4096, bind=alt.binding_range(min=1024, max=131072, step=1024, name="tokens kept "))
bars = (
    alt.Chart(alt.Data(values=[{"kind": name, "n_kv": n_kv} for name, n_kv in kinds.items()]))
    .transform_calculate(gib=f"2 * 80 * datum.n_kv * 128 * 2 * {lengths.name} / pow(2, 30)")
    .encode(
        x=alt.X("gib:Q", title="GiB of keys and values", scale=alt.Scale(type="sqrt", domain=[0, 320])),
        y=alt.Y("kind:N", title=None, sort=list(kinds)),
        tooltip=["kind:N", alt.Tooltip("gib:Q", title="GiB", format=".2f")],
    )
)
chart = (
    alt.layer(
        bars.mark_bar(color="#0072B2"),
        bars.mark_text(align="left", dx=4).encode(text=alt.Text("gib:Q", format=".2f")),
    )
    .add_params(lengths)
    .properties(width=300, height=110, title="Eight heads in place of 64: an eighth of the cache")
)
chart

# %% [markdown]
# Move the slider. The cache grows with the length and with each text that is written at the same time; the weights do
# not. At the right end, one text of 131,072 tokens would need 320 GiB of keys and values with multi-head attention.
# (The axis is stretched near 0, so that the shortest bar can be seen.)
#
# ## What it saves: reading
#
# Why does a smaller cache make writing faster? The multiply–adds on the cache are the same; only the new token's
# projections are smaller. But to write one token, each number in the cache is read once, and used once by every query
# head that shares it. With multi-head attention that is one multiply–add for each number read: the arithmetic waits for
# the memory. With a group of $g$ heads it is $g$.

# %%
n = 500
memory = torch.randn(1, n, 512)
for n_kv_heads in (8, 2, 1):
    attention = GroupedQueryAttention(512, 8, n_kv_heads)
    attention.on_weights = lambda weights: None  # by Equation (1), whose products the counter sees
    with torch.inference_mode():
        keys, values = attention.project(memory, memory)
        with FlopCounterMode(display=False) as counter:
            attention.attend(memory[:, -1:], keys, values)  # one new token
    in_projections = 512 * 512 * 2  # of the query and of the output
    multiply_adds = counter.get_total_flops() // 2 - in_projections
    read = keys.numel() + values.numel()
    print(f"n_kv = {n_kv_heads}: {multiply_adds:,} multiply–adds on {read:7,} numbers: {multiply_adds // read} for each")
    assert multiply_adds == 2 * n * 8 * 64 and multiply_adds == (8 // n_kv_heads) * read

# %% [markdown]
# In training and while reading a prompt, all positions are computed at once, and each number is used by many queries
# anyway. There the dial saves little: only the smaller projections.
#
# ## What it costs
#
# ### A trained model, converted
#
# Ainslie et al. do not train anew. They take a multi-head model, average the keys' and values' matrices of each
# group, and train on for a small part of the original training. How much does the averaging alone destroy? We convert
# the [shipped translator](06_1c_machine_translation.py), both stacks, and train nothing.

# %%
translator = transformer.load_toy_translator()
pairs = transformer.embedded_corpus("dev", seed=0)
sentences = [next(pairs) for _ in range(60)]
encode = translator.tokenizer.encode
batch = transformer.make_batch([(encode(pair.source), encode(pair.target)) for pair in sentences])


def converted(model, n_kv_heads, merge):
    """The same model with n_kv_heads heads of keys and values, each made by `merge` from a group (n_kv, g, …)."""
    new = build_transformer(model.config, self_attention=partial(GroupedQueryAttention, n_kv_heads=n_kv_heads))
    weights = model.state_dict()
    for name in weights:
        if "self_attention.w_k" in name or "self_attention.w_v" in name:
            heads = weights[name].unflatten(0, (n_kv_heads, model.config.n_heads // n_kv_heads, -1))
            weights[name] = merge(heads).flatten(0, 1)
    new.load_state_dict(weights)
    return new.eval()


# %%
merges = {"mean of the group": lambda heads: heads.mean(1), "its first head": lambda heads: heads[:, 0]}
perplexities = {}
for n_kv_heads in (2, 1):
    for name, merge in merges.items():
        model = converted(translator.model, n_kv_heads, merge)
        perplexities[n_kv_heads, name] = transformer.perplexity(model, [batch])
        print(f"n_kv = {n_kv_heads}, {name:17}: perplexity {perplexities[n_kv_heads, name]:5.1f}")
original = transformer.perplexity(translator.model, [batch])
print(f"as shipped: {original:.1f}")
assert abs(transformer.perplexity(converted(translator.model, 4, merges["its first head"]), [batch]) - original) < 1e-3
assert perplexities[2, "mean of the group"] < perplexities[2, "its first head"]
assert perplexities[1, "mean of the group"] < perplexities[1, "its first head"]

# %% [markdown]
# The mean keeps more than a choice does. A dozen updates on 32 sentences each bring much of the rest back: the queries
# and everything after them adapt to the shared keys and values.

# %%
merged = perplexities[1, "mean of the group"]
model = converted(translator.model, 1, merges["mean of the group"]).train()
optimizer, loss_function = torch.optim.Adam(model.parameters(), lr=1e-3), transformer.LabelSmoothingLoss(0.1)
stream = transformer.embedded_corpus("train", seed=0)
for _ in range(12):
    some = [next(stream) for _ in range(32)]
    small = transformer.make_batch([(encode(pair.source), encode(pair.target)) for pair in some])
    optimizer.zero_grad()
    loss_function(model(small.src, small.tgt_in), small.tgt_out).backward()
    optimizer.step()
adapted = transformer.perplexity(model.eval(), [batch])
print(f"one head of keys and values: perplexity {merged:.1f} merged, {adapted:.1f} after 12 updates, {original:.1f} as shipped")
assert original < adapted < 0.7 * merged

# %% [markdown]
# ### Before and after, recorded
#
# Trained from the start, on the [embedded corpus](A1_the_embedded_corpus.py): a small translation model with the
# paper's attention and with two heads of keys and values for eight of queries, three seeds each, compared as [here](11_0_one_part_at_a_time.py).

# %%
comparison = modern.read_comparison()
chart = None
if comparison:
    print(f"{comparison.made}\n\n{comparison.table('grouped-query')}")
    for measure in ("perplexity", "bleu", "exact_match"):
        assert comparison.against("grouped-query", measure=measure).verdict == "worse"
    sizes = [comparison.of(row)[0]["parameters"] for row in ("base", "grouped-query")]
    print(f"parameters: {sizes[0]:,} and {sizes[1]:,}")
    # 8 heads of 8 channels; in four self-attentions, keys and values of 6 of them are gone.
    assert sizes[0] - sizes[1] == 4 * 2 * 6 * 8 * (64 + 1)
    assert min(comparison.values("grouped-query")) > max(comparison.values("base"))
    chart = comparison.chart("base", "grouped-query", title="Grouped queries learn more slowly here, with every seed")
chart

# %% [markdown]
# Each line is one run, in nats per target token. The bundles do not touch at the end, and no interval of a difference
# contains 0: sharing is not free. It also takes parameters away, and these runs are short: base has not learned to
# translate when they stop, so the figure shows the speed of learning, not where a long training ends. A model this
# small has no cache worth saving. The row shows what the dial costs, not what it is for. In a large model, converted as
# above, Ainslie et al. report a quality close to that of multi-head attention.
#
# ## Unsaid by the paper
#
# - **The paper's own author.** Multi-query attention is by Noam Shazeer, one of the paper's authors, two years later.
#   His reason was the speed of decoding, not the number of parameters.
# - **The width is spent elsewhere.** A smaller $W^K$ and $W^V$ leave parameters over. In their comparisons, Shazeer
#   (2019) and Touvron et al. (2023) widen the feed-forward networks, so that sizes are equal; the recorded row does
#   not.
# - **Many devices.** Eight heads of keys and values can be spread over eight devices. With one head, each device
#   keeps a copy, and nothing is saved there by going below one head a device.
# - **Encoder and memory.** In an encoder nothing is written token by token, so there is nothing to save. The
#   attention over the memory has a cache, too, which is filled once. Ainslie et al. group the decoder's two kinds of
#   attention and leave the encoder's; `build_transformer` exchanges self-attention alone, in both stacks.
#
# ## What we now know
#
# - With $n_{kv} = h$ it is the paper's attention, bit for bit; otherwise it is that attention with repeated matrices.
# - The cache holds $2 N n_{kv} d_k$ numbers a position: formula and tensors agree. An eighth of the heads is an
#   eighth of the cache.
# - The multiply–adds of scores and weighted sums do not change; each number that is read serves $h / n_{kv}$ of them.
# - Averaging the heads of a group keeps more of a trained model than choosing one, and a dozen updates mend much of
#   the rest.
# - In a short training from the start, giving up three quarters of the heads of keys and values slows learning: all three seeds
#   agree.
# - What attention computes is untouched. Its inputs change: heads share keys and values.
#
# ## Exercises
#
# 1. **Predict, then run.** How many parameters has an attention sub-layer of the base model with one head of keys and
#    values, as a share of the paper's?
# 2. **Minutes.** A model has 32 layers, 32 query heads, 8 heads of keys and values, $d_k = 128$. How many bytes does
#    its cache take for one text of 4,096 tokens, with two bytes a number? Check: `check("11-cache-bytes", answer)`.
# 3. **Minutes.** Combine this class and that of [11.2a](11_2a_rotary_positions.py) by inheritance, as Llama's
#    attention does. In which order must keys be turned and repeated, and does it matter?
# 4. **An hour.** Convert the shipped model to two heads by averaging heads 0 and 2, and heads 1 and 3, in place of
#    neighbours. Search each layer for the pairs that lose least. (First put the heads of $W^Q$, $W^K$, $W^V$ and $W^O$
#    in another order, the same for all four; that alone changes no output.)
# 5. **A day.** Train the recorded row with a feed-forward network widened to the parameters of base. Is the
#    difference still there?

# %% [markdown]
# Solution to exercise 1: of four matrices of equal size, two shrink to an eighth: $(2 + 2/8)/4$, a little over half.

# %% tags=["hide-cell"]
share = transformer.count_parameters(GroupedQueryAttention(512, 8, 1)) / transformer.count_parameters(
    GroupedQueryAttention(512, 8, 8)
)
print(f"{share:.1%}")
assert abs(share - 9 / 16) < 1e-3

# %% [markdown]
# Solution to exercise 2: twice, for keys and values, the product of everything named but the query heads.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = 2 * 32 * 8 * 128 * 4096 * 2
print(f"{answer:,} bytes, {answer / GIB} GiB")
verdict = check("11-cache-bytes", answer)
print(verdict)
assert verdict

# %% [markdown]
# Solution to exercise 3: the classes are written so that each hands on to the next. Turning first is cheaper, since
# fewer keys are turned; the result is the same, because equal keys at one position are turned alike.


# %% tags=["hide-cell"]
class RotaryGroupedQueryAttention(transformer.modern.RotaryAttention, GroupedQueryAttention):
    """Turns the keys, then repeats them."""


class RepeatedThenRotated(GroupedQueryAttention, transformer.modern.RotaryAttention):
    """Repeats the keys, then turns them."""


torch.manual_seed(0)
turned_first = RotaryGroupedQueryAttention(32, 4, n_kv_heads=2).double()
repeated_first = RepeatedThenRotated(32, 4, n_kv_heads=2).double()
repeated_first.load_state_dict(turned_first.state_dict())
x = torch.randn(2, 7, 32, dtype=torch.float64)
assert torch.allclose(turned_first(x, x, x, is_causal=True), repeated_first(x, x, x, is_causal=True), atol=1e-12)
print("the same outputs")

# %% [markdown]
# ## The notebook and the module agree

# %%
imported = transformer.modern.GroupedQueryAttention(32, 4, n_kv_heads=1).double()
imported.load_state_dict(grouped.state_dict())
assert torch.equal(imported(x, x, x), grouped(x, x, x))
print("the same outputs")
