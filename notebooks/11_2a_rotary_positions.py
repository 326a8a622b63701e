# %% [markdown]
# # 11.2a Rotary Positions
#
# The paper adds a position to every embedding. Rotary position embedding (RoPE, Su et al.
# [2021](https://arxiv.org/abs/2104.09864)) adds nothing: it turns each query and each key by an angle that grows with
# its position. The positions then enter a score only by how far apart query and key are. It is the rotation of
# [Section 3.5](03_5_positional_encoding.py), moved from the embeddings into the attention. This chapter shows that it
# is, and that a model which has it cannot tell a shifted sentence from the sentence.

# %%
#| default_exp modern.rope

# %%
import math

import altair as alt
import torch.nn.functional as F

import transformer
from transformer import modern

transformer.check_version("0.1")

# %% [markdown]
# ## The rotation
#
# > We chose this function because we hypothesized it would allow the model to easily learn to attend by relative
# > positions, since for any fixed offset $k$, $PE_{pos+k}$ can be represented as a linear function of $PE_{pos}$.
# >
# > — Section 3.5
#
# What the paper hopes that the model learns, RoPE builds in. The channels of a head are taken in pairs. Pair $i$ of
# the vector at position $m$ is turned by the angle $m\,\theta_i$:
#
# $$
# \begin{pmatrix} x'_{2i} \\ x'_{2i+1} \end{pmatrix} =
# \begin{pmatrix} \cos m\theta_i & -\sin m\theta_i \\ \sin m\theta_i & \cos m\theta_i \end{pmatrix}
# \begin{pmatrix} x_{2i} \\ x_{2i+1} \end{pmatrix},
# \qquad \theta_i = 10000^{-2i/d_k}
# $$
#
# The frequencies are those of Section 3.5, over the width of a head in place of the model's.

# %%
#| export
from typing import Any

import torch
from torch import Tensor, nn

from transformer.multi_head import MultiHeadAttention


# %%
#| export
def rotate(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Turn each pair of channels (2i, 2i + 1) by the angle position / base^(2i/d).

    Args:
        x: Queries or keys, shape (…, d), floating point, d even.
        positions: Where they stand, any real numbers, broadcastable to (…).
        base: The larger, the slower the later pairs turn; in a wide head the last takes about 1 / base a position.

    Returns:
        The same shape and dtype; every vector keeps its length.

    Raises:
        TypeError: x is not of a floating-point type.
        ValueError: d is odd, base is not positive, or the positions do not fit the vectors.

    Source: Su et al. (2021), arXiv:2104.09864, Section 3.2.2.
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; give queries or keys of a floating-point type.")
    d, places = x.size(-1), x.shape[:-1]
    if d % 2 or base <= 0:
        raise ValueError(f"the vectors are {d} wide and base is {base}; give an even width and a positive base.")
    fit = all(size in (1, wanted) for size, wanted in zip(reversed(positions.shape), reversed(places), strict=False))
    if positions.dim() > len(places) or not fit:
        raise ValueError(
            f"positions {tuple(positions.shape)} do not broadcast to {tuple(places)}; give one for each vector."
        )
    wide = torch.float32 if x.device.type == "mps" else torch.float64  # a large angle needs it, MPS has it not
    exponent = torch.arange(0, d, 2, dtype=wide, device=x.device) / d  # (d / 2)
    angle = positions.to(wide)[..., None] * base**-exponent  # (…, d / 2)
    kept = torch.promote_types(x.dtype, torch.float32)  # half precision is turned in single precision
    cos, sin = angle.cos().to(kept), angle.sin().to(kept)
    even, odd = x[..., 0::2], x[..., 1::2]  # (…, d / 2)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)  # (…, d / 2, 2)
    return turned.flatten(-2).to(x.dtype)  # (…, d)

# %% [markdown]
# ## See it
#
# The same four numbers at four positions. The first pair turns by one radian a position, the second, at this width,
# by a hundredth of that. Position 0 is left as it is.

# %%
same = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64).expand(4, 4)  # (n, d)
turned = rotate(same, torch.arange(4))
for position, row in enumerate(turned.tolist()):
    expected = [math.cos(position), math.sin(position), math.cos(position / 100), math.sin(position / 100)]
    print(position, [round(value, 4) for value in row], " by hand", [round(value, 4) for value in expected])
    assert all(math.isclose(a, b, abs_tol=1e-12) for a, b in zip(row, expected, strict=True))
assert torch.equal(turned[0], same[0])

# %% [markdown]
# ## Check it: Section 3.5's rotation, moved
#
# There, a matrix $R_k$ takes the encoding of any position to the one $k$ further on: $PE_{pos+k} = R_k\,PE_{pos}$.
# Each pair holds the sine first, so $R_k$ turns the other way round, by $-k$. Nothing else differs: `rotate` by $-k$
# is $R_k$. So the paper turns one fixed vector, $(0, 1, 0, 1, \dots)$, and adds the result to the token; RoPE turns
# the token's own queries and keys.

# %%
table = transformer.sinusoids(1000, 64)  # (positions, d), float64
for k in (1, 5, 100):
    shifted = rotate(table[:-k], torch.tensor([-k]))
    assert torch.allclose(shifted, table[k:], atol=1e-12)
start = table[:1].expand(1000, 64)  # position 0: sines 0, cosines 1
assert torch.allclose(rotate(start, -torch.arange(1000)), table, atol=1e-12)
print("PE(0) begins", table[0, :4].tolist(), "and turned by −pos it is PE(pos), for all", len(table), "positions")

# %% [markdown]
# ## Check it: the score knows the offset alone
#
# Turning both vectors by the same angle changes no dot product. So the score of a query $q$ at $m$ and a key $k$ at $n$
# is that of $q$, unturned, and $k$, turned by $n - m$ (below, $R_m$ is `rotate` by $m$):
#
# $$ (R_m\,q) \cdot (R_n\,k) = q \cdot (R_{n-m}\,k) $$
#
# With sinusoids added, the same query and key score differently wherever they stand.

# %%
torch.manual_seed(0)
d = 64
q, k = torch.randn(20, d, dtype=torch.float64), torch.randn(20, d, dtype=torch.float64)  # 20 random pairs
table = transformer.sinusoids(4000, d)
for offset in (-50, 0, 3, 900):
    scores, added = [], []
    for m in (50, 51, 400, 3000):
        scores.append((rotate(q, torch.tensor([m])) * rotate(k, torch.tensor([m + offset]))).sum(-1))  # (20)
        added.append(((q + table[m]) * (k + table[m + offset])).sum(-1))
    spread, spread_added = (torch.stack(each).std(dim=0).max().item() for each in (scores, added))
    assert spread < 1e-9 and spread_added > 1
    assert torch.allclose(scores[0], (q * rotate(k, torch.tensor([offset]))).sum(-1), atol=1e-9)
    print(f"offset {offset:3}: turned, the score is the same at all positions: {spread < 1e-9}; added, it moves: {spread_added > 1}")
assert torch.allclose(rotate(q, torch.tensor([123])).norm(dim=-1), q.norm(dim=-1))  # lengths are kept
assert torch.tensor(257.0).bfloat16() == 256  # so the angles, at least, need more precision

# %% [markdown]
# What the score does with the offset is up to the vectors. Below, three keys meet one query. If the key equals the
# query, the score is highest at offset 0. Turn the key back by five positions beforehand, and the peak lies at five:
# a head can learn that, since $W^K$ is a matrix and so is the turn. A random key has no clear peak.

# %% tags=["hide-input"]
d = 32
query = torch.ones(d, dtype=torch.float64)
offsets = torch.arange(-40, 41)
rows, far = [], []
for base in (100, 10_000, 500_000):
    contents = {
        "equal to the query": query,
        "the query, turned by −5": rotate(query[None], torch.tensor([-5]), base)[0],
        "random": torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    }
    for name, key in contents.items():
        scores = rotate(key.expand(len(offsets), d), offsets, base) @ query / math.sqrt(d)
        assert name == "random" or offsets[scores.argmax()] == (0 if name.startswith("equal") else 5)
        far += [scores[offsets.abs() >= 20].mean().item()] if name.startswith("equal") else []
        rows += [
            {"offset": offset, "score": round(score, 2), "key": name, "base": base}
            for offset, score in zip(offsets.tolist(), scores.tolist(), strict=True)
        ]
assert far[0] + 0.1 < far[1] < far[2] - 0.1  # the larger the base, the more a far key keeps
chosen = alt.param("chosen", value=10_000, bind=alt.binding_select(options=[100, 10_000, 500_000], name="base "))
names = list(contents)
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.base == chosen")
    .mark_line()
    .encode(
        x=alt.X("offset:Q", title="offset of the key, n − m", scale=alt.Scale(nice=False)),
        y=alt.Y("score:Q", title="score"),
        color=alt.Color(
            "key:N", sort=names, scale=alt.Scale(domain=names, range=["#0072B2", "#D55E00", "#009E73"]), title="key",
            legend=alt.Legend(orient="bottom", columns=1, labelLimit=300, symbolType="stroke", symbolSize=300),
        ),
        strokeDash=alt.StrokeDash("key:N", sort=names, scale=alt.Scale(domain=names, range=[[1, 0], [6, 3], [2, 3]])),
        tooltip=["key:N", "offset:Q", "score:Q"],
    )
    .add_params(chosen)
    .properties(width=440, height=220, title="The content chooses which offset scores highest")
)
chart

# %% [markdown]
# Look at the solid and the dashed line: one curve, moved by five. Both fall from their peak, since the pairs turn at
# different speeds and soon point in different directions. A larger base slows the slow pairs down: choose 500,000 and
# far keys lose less. This is the base of Llama 3 (Llama Team [2024](https://arxiv.org/abs/2407.21783)), chosen for
# long texts.
#
# ## Two pairings, one rotation
#
# Which channels make a pair is a convention, and there are two. Su et al. and this chapter take neighbours, $(2i,
# 2i+1)$, *interleaved*. GPT-NeoX, and Llama in Hugging Face's Transformers, take *halves*, $(i, i + d/2)$. Code of one
# kind looks wrong beside the formula of the other.


# %%
def rotate_halves(x, positions, base=10000.0):
    """The same rotation of pairs (i, i + d/2)."""
    first, second = x.chunk(2, dim=-1)  # (…, d / 2) each
    angle = positions[..., None] * base ** (-torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1))
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1)


# %%
d = 8
order = [*range(0, d, 2), *range(1, d, 2)]  # even channels first, then odd ones
x, positions = torch.randn(10, d, dtype=torch.float64), torch.arange(10)
print("order of the channels:", order)
assert torch.allclose(rotate_halves(x[:, order], positions), rotate(x, positions)[:, order])
assert not torch.allclose(rotate_halves(x, positions), rotate(x, positions), atol=0.1)

# %% [markdown]
# One is the other with its channels in another order. A dot product does not see an order that query and key share.
# So a model may use either, if it was trained with it, and changes over by permuting the rows of each head's $W^Q$
# and $W^K$. Weights of one kind in code of the other load without an error and attend to the wrong places. The last
# line shows that the two kinds differ by more than rounding.
#
# ## In the attention
#
# Equation (1) stays. Only its $Q$ and $K$ are turned, after their projections and before their product. Values are
# not: an output says which tokens were found, not where.
#
# In our [multi-head attention](03_2_2_multi_head_attention.py), `attend` projects the queries, so the turn goes into
# the projection.


# %%
#| export
class _RotatedQueries(nn.Linear):
    """W^Q, each head's queries turned as positions 0, 1, … of their row."""

    def __init__(self, d_model: int, n_heads: int, d_k: int, base: float) -> None:
        super().__init__(d_model, n_heads * d_k)
        self.n_heads, self.base = n_heads, base

    def forward(self, x: Tensor) -> Tensor:
        queries = super().forward(x).unflatten(-1, (self.n_heads, -1))  # (B, m, h, d_k)
        positions = torch.arange(x.size(1), device=x.device)[:, None]  # (m, 1)
        return rotate(queries, positions, self.base).flatten(2)  # (B, m, h·d_k)

# %% [markdown]
# The keys come in projected, perhaps from a cache. Where do they stand? The last query stands at the last key. Since
# only offsets matter, we may count from wherever we like, and count from the first query: the queries are positions
# $0$ to $m-1$, and $n$ keys are positions $m-n$ to $m-1$. While a cache grows, the one new query is always at
# position 0, and the keys move away from it.


# %%
#| export
class RotaryAttention(MultiHeadAttention):
    """Multi-head self-attention whose scores know how far apart two positions are.

    Keys are kept as they are projected and turned when they are attended to, so a cache needs no positions.

    Args:
        d_model: Width of the inputs and the output.
        n_heads: h, the number of heads.
        base: As in `rotate`.
        **others: What else the class above takes; of `MultiHeadAttention`: d_k, d_v, attention_dropout.

    Raises:
        ValueError: d_k is odd, base is not positive, or `MultiHeadAttention` refuses its sizes.

    Source: Su et al. (2021), arXiv:2104.09864.
    """

    def __init__(self, d_model: int, n_heads: int, base: float = 10000.0, **others: Any) -> None:
        super().__init__(d_model, n_heads, **others)
        if self.d_k % 2 or base <= 0:
            raise ValueError(f"d_k is {self.d_k} and base is {base}; give an even d_k and a positive base.")
        self.base = base
        self.w_q = _RotatedQueries(d_model, n_heads, self.d_k, base)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend to keys and values that are already projected, and not yet turned.

        The last query stands at the last key. Positions count from the first query, since offsets alone matter.

        Args:
            query: Shape (B, m, d_model), not yet projected.
            keys: Shape (B, h, n, d_k), those of positions m − n to m − 1.
            values: Shape (B, h, n, d_v).
            mask: As in `MultiHeadAttention.forward`.
            is_causal: As in `MultiHeadAttention.forward`.

        Returns:
            Shape (B, m, d_model).

        Raises:
            ValueError: There are more queries than keys, or the shapes do not fit together.
        """
        m, n = query.size(-2), keys.size(-2)
        if m > n:
            raise ValueError(
                f"{m} queries and {n} keys; the queries must be the last of the keys' positions, so use "
                "RotaryAttention for self-attention alone."
            )
        turned = rotate(keys, torch.arange(m - n, m, device=keys.device), self.base)
        return super().attend(query, turned, values, mask, is_causal)

# %% [markdown]
# It costs something: the keys of all earlier positions are turned again at each step of decoding. That takes $2d_k$
# multiplications a key, as many as its score and its part of the weighted sum together. Production code turns each key
# once, before it is kept, and must therefore know the position of each new key. Our cache stays as it was.
#
# ### See it: Equation (1), with turned queries and keys

# %%
torch.manual_seed(0)
attention = RotaryAttention(32, n_heads=4).double()
x = torch.randn(2, 9, 32, dtype=torch.float64)  # (B, n, d_model)
plain = MultiHeadAttention(32, n_heads=4).double()
plain.load_state_dict(attention.state_dict())  # rotation has no parameters
queries, positions = plain.w_q(x).unflatten(-1, (4, 8)).transpose(1, 2), torch.arange(9)  # (B, h, n, d_k)
keys, values = plain.project(x, x)
heads, _ = transformer.scaled_dot_product_attention(rotate(queries, positions), rotate(keys, positions), values)
by_hand = plain.w_o(heads.transpose(1, 2).flatten(2))
assert torch.allclose(attention(x, x, x), by_hand, atol=1e-12)
assert not torch.allclose(plain(x, x, x), by_hand, atol=1e-2)
print("parameters:", transformer.count_parameters(attention), "with the rotation and", transformer.count_parameters(plain), "without")

# %% [markdown]
# ### Check it: a whole model, shifted
#
# [`build_transformer`](11_1_the_block_since_2017.py) puts the attention into encoder and decoder and takes the
# sinusoids out. We put padding in front of a source sentence, so that its words move to later positions, and hide the
# padding. The rotary model writes the same logits. The paper's model does not.

# %%
from transformer.modern import build_transformer

torch.manual_seed(0)
config = transformer.TransformerConfig.tiny(60, dropout=0.0)
ids, target = torch.randint(3, 60, (1, 8)), torch.randint(3, 60, (1, 6))
moved_ids = F.pad(ids, (5, 0), value=config.pad_id)  # (1, 13): five positions later
models = {
    "sinusoids": transformer.Transformer(config),
    "rotary": build_transformer(config, self_attention=RotaryAttention, positions=False),
}
for name, model in models.items():
    model.double().eval()
    with torch.inference_mode():
        change = (model(ids, target) - model(moved_ids, target)).abs().max().item()
    print(f"{name:10} a shifted source changes the logits: {change > 1e-9}")
    assert (change > 1e-3) if name == "sinusoids" else (change < 1e-9)

# %% [markdown]
# ### Check it: the cache
#
# Token by token with a cache, or all at once: the logits agree. The cache stores no positions.

# %%
model = models["rotary"]
with torch.inference_mode():
    memory, mask = model.encode(ids), transformer.padding_mask(ids, config.pad_id)
    cache = model.new_cache(memory, mask, target.size(1))
    steps = [model.output_projection(model.decode(token[:, None], cache=cache)) for token in target.unbind(1)]
    at_once = model(ids, target)  # (1, m, V)
assert torch.allclose(torch.cat(steps, dim=1), at_once, atol=1e-10)
print("the same logits at all", target.size(1), "positions")

# %% [markdown]
# ## What it buys: a relative task
#
# [Section 3.5](03_5_positional_encoding.py) trains an encoder layer to name the token *before* each token, on sequences
# of 16, and then reads 48. Here is that task again, smaller, with sinusoids and with RoPE: the same updates on the same
# data.


# %%
def previous_token_logits(model, x, mask=None):
    """Logits at every position, (B, n, V)."""
    return model.output_projection(model.encoder(model.src_positions(model.embedding(x)), mask))


def learn_previous_token(updates=150, **parts):
    """One encoder layer, trained on sequences of 16."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    sizes = {"d_model": 48, "n_layers": 1, "n_heads": 4, "d_ff": 96, "dropout": 0.0}
    model = build_transformer(transformer.TransformerConfig(12, 12, **sizes), **parts)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(updates):
        x = torch.randint(3, 12, (32, 16), generator=generator)
        loss = F.cross_entropy(previous_token_logits(model, x)[:, 1:].flatten(0, 1), x[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.inference_mode()
def accuracy(model, length, mask=None):
    """The share of right answers at each position from 1 on, (length − 1)."""
    x = torch.randint(3, 12, (256, length), generator=torch.Generator().manual_seed(2))
    return (previous_token_logits(model, x, mask)[:, 1:].argmax(-1) == x[:, :-1]).float().mean(0)


# %%
trained = {
    "sinusoids": learn_previous_token(),
    "rotary": learn_previous_token(self_attention=RotaryAttention, positions=False),
}
curves = {name: accuracy(model, 96) for name, model in trained.items()}
short = {name: accuracy(model, 16).mean().item() for name, model in trained.items()}
for name, curve in curves.items():
    parts = {"sequences of 16": short[name], "sequences of 96": curve.mean()}
    print(f"{name:10}", *(f"{at}: {'over' if part > 0.9 else 'under'} 90 % right;" for at, part in parts.items()))
    assert curve.mean() < 0.8 * short[name]
assert short["rotary"] > 0.9 and short["rotary"] - short["sinusoids"] > 0.1
assert curves["rotary"].mean() > curves["sinusoids"].mean() + 0.05

# %% tags=["hide-input"]
rows = [
    {"position": position, "accuracy": round(value, 3), "positions": name}
    for name, curve in curves.items()
    for position, value in enumerate(curve.tolist(), 1)
]
line = (
    alt.Chart(alt.Data(values=rows))
    .mark_line()
    .encode(
        x=alt.X("position:Q", scale=alt.Scale(domain=[0, 96], nice=False)),
        y=alt.Y("accuracy:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=alt.Color(
            "positions:N", scale=alt.Scale(domain=["rotary", "sinusoids"], range=["#0072B2", "#E69F00"]), title=None,
            legend=alt.Legend(orient="bottom", symbolType="stroke", symbolSize=300),
        ),
        strokeDash=alt.StrokeDash("positions:N", scale=alt.Scale(domain=["rotary", "sinusoids"], range=[[1, 0], [6, 3]])),
        tooltip=["positions:N", "position:Q", "accuracy:Q"],
    )
)
end = alt.Chart(alt.Data(values=[{"x": 15.5}])).mark_rule(color="#7a7f87").encode(x=alt.X("x:Q", title="position"))
chart = (line + end).properties(width=440, height=220, title="In sequences of 96, neither keeps what it learned on 16")
chart

# %% [markdown]
# The grey line is the last position of training. A relative task suits relative scores: RoPE has learned it when the
# sinusoids have not. But "depends on the offset alone" does not mean "works at any length". In a longer sequence there
# are more keys, at offsets that no training sequence had. Are they to blame? We hide from each position all keys
# farther away than any in training.

# %%
position = torch.arange(96)
near = ((position[:, None] - position).abs() < 16)[None, None]  # (1, 1, n, n)
for name, model in trained.items():
    share = accuracy(model, 96, near).mean().item()
    print(f"{name:10} sequences of 96, far keys hidden: {'over 95' if share > 0.95 else 'under 60'} % right")
    assert (share > 0.95) if name == "rotary" else (share < 0.6)

# %% [markdown]
# They are. With the far keys hidden, RoPE names the token before at all positions, seen in training or not. The
# sinusoids are helped less, and mostly at positions that training had: the later positions themselves are new to them.
#
# ### Before and after, recorded
#
# The same exchange in a small translation model, on unseen sentences of the [embedded
# corpus](A1_the_embedded_corpus.py), with three seeds. Both rows of a seed see the same batches.

# %%
comparison = modern.read_comparison()
chart = None
if comparison:
    print(f"{comparison.made}\n\n{comparison.table('RoPE')}")
    for measure in ("perplexity", "bleu", "exact_match"):
        assert comparison.against("RoPE", measure=measure).verdict == "better"
    assert max(comparison.values("RoPE")) < min(comparison.values("base"))
    chart = comparison.chart("base", "RoPE", title="RoPE learns this task in fewer updates, with every seed")
chart

# %% [markdown]
# Each line is one run, in nats per target token. The two bundles do not touch at the end, and no interval of a
# difference contains 0. But these runs are short: base has not learned to translate when they stop. What the figure
# shows is the speed of learning of one small model on one small corpus. It says nothing of where a long training ends,
# and nothing of long texts.
#
# ## Unsaid by the paper
#
# - **The authors came first.** Shaw et al. ([2018](https://arxiv.org/abs/1803.02155)), two of the paper's authors
#   among them, gave keys and values a learned vector for each offset. That changes the computation: Equation (1) gets
#   a new term. RoPE reaches the scores alone, and needs no parameters.
# - **Biases instead.** ALiBi (Press et al. [2022](https://arxiv.org/abs/2108.12409)) adds to each score a penalty
#   that grows with the distance, and turns nothing.
# - **Not every channel.** GPT-NeoX (Black et al. [2022](https://arxiv.org/abs/2204.06745)) turns a quarter of each
#   head's channels and leaves the others without a position.
# - **Longer texts.** A model meets offsets it was not trained on. Two common ways out scale the positions down (Chen
#   et al. [2023](https://arxiv.org/abs/2306.15595)) or raise the base (Rozière et al.
#   [2023](https://arxiv.org/abs/2308.12950)), each with some more training.
# - **Precision.** Half precision cannot tell far neighbours apart: bfloat16 rounds 257 to 256. `rotate` computes angles
#   in double precision where the device has it (MPS has not), as Section 3.5 does, and turns in single precision or better.
#
# ## What we now know
#
# - `rotate` by $-k$ is the matrix $R_k$ of Section 3.5: it takes $PE_{pos}$ to $PE_{pos+k}$.
# - The score of a turned query and key depends on their contents and their offset. Lengths stay, and position 0 is
#   left as it is.
# - Interleaved and half pairs differ by a permutation of channels, and must not be mixed.
# - Equation (1) is untouched; its inputs change. Parameters: none.
# - A source behind padding gives the same logits as without, which the paper's model does not; decoding with the
#   cache gives those of one pass.
# - A relative task is learned in fewer updates. It does not carry to longer sequences, and does once the far keys are
#   hidden.
# - In a short training, translation is learned in fewer updates, too: all three seeds agree.
#
# ## Exercises
#
# 1. **Predict, then run.** With `base=1` all pairs turn at the same speed. What does the curve of a key that equals
#    its query look like?
# 2. **Minutes.** Which order of eight channels takes interleaved pairs to halves? Which takes halves back? Check:
#    `check("11-pairing", order)`.
# 3. **Minutes.** Halve all positions. Which offset now has the score that offset 10 had? What does that give a model
#    that was trained on short texts, and what does it lose?
# 4. **An hour.** Write a subclass that turns keys in `project`, before they are kept, with an argument for the first
#    position. Show that its outputs are the same. What must the decoder layer hand on?
# 5. **A day.** Train the relative task with RoPE on sequences of mixed lengths, and with positions scaled down. Which
#    carries to 96 tokens?

# %% [markdown]
# Solution to exercise 1: a cosine of the offset, with period $2\pi$. All pairs point the same way again every $2\pi$
# positions, so offsets 0 and 44 are all but equal: 44 is very nearly seven turns. The many speeds are what keeps
# offsets apart.

# %% tags=["hide-cell"]
ones = torch.ones(100, 32, dtype=torch.float64)
scores = (rotate(ones, torch.arange(100), base=1.0) * ones).sum(-1) / 32
assert torch.allclose(scores, torch.arange(100).double().cos(), atol=1e-12)
print("offsets 0, 1, 22, 44:", [round(scores[offset].item(), 3) for offset in (0, 1, 22, 44)])
assert scores[44] > 0.999

# %% [markdown]
# Solution to exercise 2: even channels first. The way back is the inverse permutation.

# %% tags=["hide-cell"]
from transformer.exercises import check

order = [0, 2, 4, 6, 1, 3, 5, 7]
verdict = check("11-pairing", order)
print(verdict)
assert verdict
back = torch.tensor(order).argsort()
print("back:", back.tolist())
x, positions = torch.randn(10, 8, dtype=torch.float64), torch.arange(10)
assert torch.allclose(rotate_halves(x[:, order], positions)[:, back], rotate(x, positions))

# %% [markdown]
# Solution to exercise 3: offset 20. A model trained on 16 positions, so on offsets up to 15, can read 31 without a
# larger one. But neighbours are now half a position apart, which it has not met either.

# %% tags=["hide-cell"]
torch.manual_seed(0)
q, k = torch.randn(2, 1, 64, dtype=torch.float64)
at_10 = (q * rotate(k, torch.tensor([10]))).sum()
halved = (rotate(q, torch.tensor([7]) / 2) * rotate(k, torch.tensor([27]) / 2)).sum()
assert torch.isclose(at_10, halved)
print("offset 20 with halved positions scores as offset 10 did")

# %% [markdown]
# Solution to exercise 4, its last question: the number of positions that the cache held before, `cache.length`. The
# first new key and the first new query stand there.

# %% [markdown]
# ## The notebook and the module agree

# %%
x = torch.randn(2, 9, 32, dtype=torch.float64)
assert torch.equal(transformer.modern.rotate(x, torch.arange(9)), rotate(x, torch.arange(9)))
imported = transformer.modern.RotaryAttention(32, n_heads=4).double()
imported.load_state_dict(attention.state_dict())
assert torch.equal(imported(x, x, x), attention(x, x, x))
print("the same outputs")
