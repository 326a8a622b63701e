# %% [markdown]
# # 3.2.1 Scaled Dot-Product Attention
#
# The whole Transformer rests on one function. It compares a query with every key, turns the comparisons into weights, and returns the weighted mean of the values.
#
# This chapter tests what the paper says about it: what it computes, that its scores grow with the width $d_k$, that a softmax of large scores has extremely small gradients (the paper says "we suspect"), that one division counteracts this, and how dot products compare with additive attention.

# %%
#| default_exp attention

# %%
import transformer

transformer.check_version("0.1")

import time

import altair as alt
import numpy as np

# %% [markdown]
# ## A query and a set of key–value pairs
#
# > An attention function can be described as mapping a query and a set of key-value pairs to an output, where the query, keys, values, and output are all vectors.
# >
# > — Section 3.2
#
# Think of a Python dictionary. A lookup compares the query with the keys and returns the value of the one key that is equal. Attention is a lookup without the word "equal": every key matches to some degree, and every value is returned to that degree.
#
# > The output is computed as a weighted sum of the values, where the weight assigned to each value is computed by a compatibility function of the query with the corresponding key.
# >
# > — Section 3.2
#
# Because the weights change smoothly with the query and the keys, the lookup has a gradient. The network can learn what to ask for, and under which key to store what.

# %% [markdown]
# ## Equation (1)
#
# > We call our particular attention "Scaled Dot-Product Attention" (Figure 2). The input consists of queries and keys of dimension $d_k$, and values of dimension $d_v$.
# >
# > We compute the dot products of the query with all keys, divide each by $\sqrt{d_k}$, and apply a softmax function to obtain the weights on the values.
# >
# > — Section 3.2.1
#
# Code handles many queries at once:
#
# > In practice, we compute the attention function on a set of queries simultaneously, packed together into a matrix $Q$. The keys and values are also packed together into matrices $K$ and $V$.
# >
# > — Section 3.2.1
#
# The rows of these matrices are the vectors. With $m$ queries and $n$ key–value pairs, $Q$ is $m \times d_k$, $K$ is $n \times d_k$ and $V$ is $n \times d_v$. The paper's Equation (1) is then two matrix products with a softmax between them:
#
# > $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}(\frac{QK^T}{\sqrt{d_k}})V$$
# >
# > — Section 3.2.1
#
# ![Scaled dot-product attention as a flow from bottom to top: Q and K are multiplied into scores, divided by the root of d_k, optionally masked, turned into weights by a softmax, and multiplied with V.](../book/diagrams/scaled_dot_product_attention.svg)
#
# The code reads like the equation. Leading dimensions, such as the batch and the heads of [Section 3.2.2](03_2_2_multi_head_attention.py), pass through untouched. Three things are not in the equation: an optional mask, which [Section 3.2.3](03_2_3_applications_of_attention.py) needs; an optional dropout on the weights, which is not the paper's; and the weights as a second result, which every attention chart needs.

# %%
#| export
import math
from collections.abc import Callable

import torch
from torch import Tensor

# %%
#| export
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(QKᵀ / √d_k) V.

    Args:
        query: Queries, shape (…, m, d_k), floating point.
        key: Keys, shape (…, n, d_k).
        value: Values, shape (…, n, d_v).
        mask: Bool, broadcastable to (…, m, n), True where a query may attend; or None.
        dropout: Applied to the weights, for instance an `nn.Dropout`. The paper does not use it; its authors'
            later code does.

    Returns:
        The output, shape (…, m, d_v), and the weights before dropout, shape (…, m, n). Every row of weights sums
        to 1; a row whose mask is all False is all zeros, and so is its output.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: The shapes do not fit together, or d_k is 0.

    Source: §3.2.1, Eq. 1.
    """
    check_attention_inputs(query, key, value, mask)
    d_k = query.size(-1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)  # (…, m, n)
    weights = masked_softmax(scores, mask)  # (…, m, n)
    used = weights if dropout is None else dropout(weights)
    return used @ value, weights  # (…, m, d_v), (…, m, n)

# %% [markdown]
# It leans on two helpers. The first is the softmax, with the mask inside it: a key that a query may not see gets the score $-\infty$, hence the weight 0.

# %%
#| export
def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension, with illegal connections set to −∞ first.

    A row in which nothing may be attended to gives zeros, not NaN.

    Args:
        scores: Shape (…, m, n), floating point.
        mask: Bool, broadcastable to the scores, True where a query may attend; or None.

    Returns:
        Weights of the same shape and dtype; every row sums to 1, or is all zeros if its mask is all False.

    Source: §3.2.3.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    empty = ~mask.any(dim=-1, keepdim=True)  # softmax of a row of −∞ would be 0/0, in the gradient too
    scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)

# %% [markdown]
# The second refuses inputs that would broadcast to a wrong answer without an error, and says what it was given.

# %%
#| export
def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Refuse shapes and types that attention cannot mean.

    Args:
        query: Queries, shape (…, m, d_k), floating point.
        key: Keys, shape (…, n, d_k), the dtype of the query.
        value: Values, shape (…, n, d_v), the dtype of the query.
        mask: Bool, broadcastable to (…, m, n), True where a query may attend; or None.

    Raises:
        TypeError: A dtype is wrong: queries, keys and values share one floating type, a mask is bool.
        ValueError: The shapes do not fit together, or d_k is 0.

    Source: §3.2.1.
    """
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; "
            "give all three the same floating dtype."
        )
    batches = list(zip(reversed(query.shape[:-2]), reversed(key.shape[:-2]), strict=False))
    fit = query.dim() >= 2 and key.dim() >= 2 and all(a == b or 1 in (a, b) for a, b in batches)
    if not fit or not query.size(-1) == key.size(-1) > 0 or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit together; "
            "expected (…, m, d_k), (…, n, d_k) and (…, n, d_v), d_k at least 1."
        )
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}; give a bool mask with True where a query may attend.")
    scores_shape = (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.size(-2), key.size(-2))
    if mask.dim() > len(scores_shape) or any(
        size not in (1, wanted) for size, wanted in zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    ):
        raise ValueError(f"mask {tuple(mask.shape)} does not broadcast to the scores' shape {scores_shape}.")

# %% [markdown]
# ## See it: three queries, three keys
#
# Take $Q = K = \begin{pmatrix}1&0\\0&1\\1&1\end{pmatrix}$ and $V = \begin{pmatrix}1&2\\3&4\\5&6\end{pmatrix}$, so $d_k = d_v = 2$. For the first query, $(1, 0)$, by hand:
#
# | step | key 1 | key 2 | key 3 |
# |---|---|---|---|
# | dot product $q \cdot k$ | 1 | 0 | 1 |
# | divided by $\sqrt{2}$ | 0.7071 | 0 | 0.7071 |
# | exponential | 2.0281 | 1 | 2.0281 |
# | divided by their sum, 5.0562 | 0.4011 | 0.1978 | 0.4011 |
#
# The output is $0.4011 \cdot (1, 2) + 0.1978 \cdot (3, 4) + 0.4011 \cdot (5, 6) = (3, 4)$. The same steps for all three queries in plain Python, with no library:

# %%
Q = K = [[1, 0], [0, 1], [1, 1]]
V = [[1, 2], [3, 4], [5, 6]]

by_hand = []
for q in Q:
    dots = [sum(a * b for a, b in zip(q, k)) for k in K]
    scores = [dot / math.sqrt(2) for dot in dots]
    exponentials = [math.exp(score) for score in scores]
    weights = [e / sum(exponentials) for e in exponentials]
    output = [sum(w * v[i] for w, v in zip(weights, V)) for i in range(2)]
    by_hand.append((weights, output))

    print(f"query {q}")
    print("  dot products ", dots)
    print("  ÷ √2         ", [round(score, 4) for score in scores])
    print("  exponentials ", [round(e, 4) for e in exponentials], " sum", round(sum(exponentials), 4))
    print("  weights      ", [round(w, 4) for w in weights])
    print("  output       ", [round(x, 4) for x in output])

# %% [markdown]
# Equation (1) in one call gives the same figures, and both give the expected ones:

# %%
output, weights = scaled_dot_product_attention(
    torch.tensor(Q, dtype=torch.float64), torch.tensor(K, dtype=torch.float64), torch.tensor(V, dtype=torch.float64)
)
expected_weights = [[0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035]]
expected_output = [[3.0, 4.0], [3.4067, 4.4067], [3.5105, 4.5105]]

assert weights.round(decimals=4).tolist() == expected_weights
assert output.round(decimals=4).tolist() == expected_output
for row, (by_hand_weights, by_hand_output) in enumerate(by_hand):
    assert torch.allclose(weights[row], weights.new_tensor(by_hand_weights))
    assert torch.allclose(output[row], output.new_tensor(by_hand_output))
print("weights", *weights.round(decimals=4).tolist(), sep="\n  ")
print("output", *output.round(decimals=4).tolist(), sep="\n  ")

# %% [markdown]
# Each query gives most weight to the keys it has most in common with. The third, which has both components, prefers the key that has both as well.
#
# A longer query asks more decidedly. Make it long enough, and attention becomes the dictionary it generalizes:

# %%
keys = torch.eye(3)  # three keys that have nothing in common
values = torch.tensor([[10.0], [20.0], [30.0]])
for length in (0, 1, 5, 50):
    looked_up, weights = scaled_dot_product_attention(length * keys[:1], keys, values)  # ask for the first key
    print(f"length {length:2}: weights {[round(w, 4) for w in weights[0].tolist()]}, output {looked_up.item():.4f}")

# %% [markdown]
# ## Check it: the output is a convex combination of the values
#
# Weights are positive and sum to 1. So the output can only lie *between* the values: each of its components is at least the smallest and at most the largest of that component. Attention mixes; it does not extrapolate. If all values are equal, it returns that value, whatever the query.
#
# The paper speaks of a *set* of pairs. If that is meant, the order in which they come must not matter. Both are checked here on random inputs:

# %%
torch.manual_seed(0)
query, key, value = torch.randn(1000, 4, 8), torch.randn(1000, 6, 8), torch.randn(1000, 6, 5)
output, weights = scaled_dot_product_attention(query, key, value)  # (1000, 4, 5), (1000, 4, 6)

assert (weights > 0).all() and torch.allclose(weights.sum(-1), torch.ones(1000, 4))
lowest, highest = value.amin(-2, keepdim=True), value.amax(-2, keepdim=True)
assert ((output >= lowest - 1e-6) & (output <= highest + 1e-6)).all()

same_value = value[:, :1].expand(-1, 6, -1)
assert torch.allclose(scaled_dot_product_attention(query, key, same_value)[0], same_value[:, :4], atol=1e-6)

order = torch.randperm(6)
shuffled, _ = scaled_dot_product_attention(query, key[:, order], value[:, order])
assert torch.allclose(shuffled, output, atol=1e-6)
print("4000 outputs, each inside the box of its six values; none depends on the order of the pairs")

# %% [markdown]
# Order is lost entirely. That is why the model needs [positional encodings](03_5_positional_encoding.py).
#
# The picture has three values in the plane, stored under three keys that point in three directions. Turn the query, and make it longer or shorter.

# %%
corners = torch.tensor([[1.0, 1.0], [7.0, 2.0], [3.0, 6.0]])
directions = torch.deg2rad(torch.tensor([210.0, 330.0, 90.0]))
keys = torch.stack([directions.cos(), directions.sin()], dim=-1)  # (3, 2)

degrees = torch.arange(0, 370, 10)
turn = torch.deg2rad(degrees.float())
circle = torch.stack([turn.cos(), turn.sin()], dim=-1)  # (37, 2)
rows = []
for size in range(11):
    mixed, weights = scaled_dot_product_attention(size * circle, keys, corners)  # (37, 2), (37, 3)
    for degree, (x, y), w in zip(degrees.tolist(), mixed.tolist(), weights.tolist()):
        rows.append({"size": size, "angle": degree, "x": round(x, 3), "y": round(y, 3), "w": [round(u, 3) for u in w]})

length = alt.param(name="len", value=3, bind=alt.binding_range(min=0, max=10, step=1, name="length of the query "))
angle = alt.param(name="turn", value=50, bind=alt.binding_range(min=0, max=360, step=10, name="angle of the query (degrees) "))
x = alt.X("x:Q", title=None, scale=alt.Scale(domain=[0, 8]))
y = alt.Y("y:Q", title=None, scale=alt.Scale(domain=[0, 7]))
names = ["value 1", "value 2", "value 3"]
hull = [{"x": a, "y": b, "order": i, "name": names[i % 3]} for i, (a, b) in enumerate([*corners.tolist(), corners[0].tolist()])]
points = alt.Chart(alt.Data(values=hull[:3])).encode(x, y)
labels = points.encode(text="name:N")
plane = alt.layer(
    alt.Chart(alt.Data(values=hull)).mark_line(color="#7a7f87", strokeDash=[4, 3]).encode(x, y, order="order:O"),
    points.mark_point(filled=True, size=90, color="#7a7f87", opacity=1),
    labels.transform_filter("datum.y < 5").mark_text(dy=16),
    labels.transform_filter("datum.y > 5").mark_text(dy=-14),
    alt.Chart().mark_line(color="#0072B2", opacity=0.6).encode(x, y, order="angle:Q").transform_filter("datum.size == len"),
    alt.Chart().mark_point(filled=True, size=160, color="#E69F00", opacity=1).encode(x, y).transform_filter("datum.size == len && datum.angle == turn"),
).properties(width=300, height=260, title="the output")
bars = (
    alt.Chart()
    .transform_filter("datum.size == len && datum.angle == turn")
    .transform_flatten(["w"], as_=["weight"])
    .transform_window(index="row_number()")
    .transform_calculate(name="'value ' + datum.index")
    .mark_bar(color="#E69F00")
    .encode(x=alt.X("name:N", title=None, axis=alt.Axis(labelAngle=0)), y=alt.Y("weight:Q", title=None, scale=alt.Scale(domain=[0, 1])))
    .properties(width=170, height=260, title="the weights")
)
chart = alt.hconcat(plane, bars, data=alt.Data(values=rows)).add_params(length, angle)
chart.properties(title="The output never leaves the triangle of the values")

# %% [markdown]
# What to see: the orange point is the output, the blue curve all outputs that a query of this length can reach. At length 0 every weight is a third and the output is the mean. A short query stays near the mean. A long one runs along the edges and rests in the corners, where it returns one value alone. No query leaves the triangle.

# %% [markdown]
# ## Why the root of d_k
#
# The paper explains the division in a footnote:
#
# > To illustrate why the dot products get large, assume that the components of $q$ and $k$ are independent random variables with mean $0$ and variance $1$. Then their dot product, $q \cdot k = \sum_{i=1}^{d_k} q_ik_i$, has mean $0$ and variance $d_k$.
# >
# > — Section 3.2.1, footnote 4
#
# The proof takes two lines. One product has mean $\mathrm{E}[q_i k_i] = \mathrm{E}[q_i]\,\mathrm{E}[k_i] = 0$ and variance $\mathrm{E}[q_i^2 k_i^2] = \mathrm{E}[q_i^2]\,\mathrm{E}[k_i^2] = 1$, because $q_i$ and $k_i$ are independent. The products are independent of each other too, so their variances add up: $1 + \dots + 1 = d_k$.
#
# The standard deviation, the typical size of a score, is therefore $\sqrt{d_k}$. Dividing by it makes the typical size 1 at every width. Measured on 100,000 pairs of normal vectors:

# %%
rng = np.random.default_rng(0)
variances = []
for d_k in (4, 64, 512):
    q = rng.standard_normal((100_000, d_k))
    k = rng.standard_normal((100_000, d_k))
    dots = np.einsum("pi,pi->p", q, k)  # (100000,)
    variances.append(round(dots.var(), 2))
    scaled_variance = (dots / math.sqrt(d_k)).var()
    print(f"d_k {d_k:3}: variance of q·k {variances[-1]:6}, of q·k/√d_k {scaled_variance:.4f}")
    assert abs(dots.mean()) < 4 * math.sqrt(d_k / 100_000)  # mean 0, within four standard errors
    assert abs(scaled_variance - 1) < 0.02
assert variances == [4.03, 64.09, 514.18]

# %% [markdown]
# A softmax does not care about the size of its inputs, only about their differences; but differences grow with the size. Take ten scores, the next ten draws of the same generator. Once they stand as drawn, with spread 1. Once they are eight times as large, with spread $8 = \sqrt{64}$: what dot products look like at $d_k = 64$ when nobody divides them.

# %%
draws = rng.standard_normal(10)
largest = {}
for spread in (1, 8):
    exponentials = np.exp(spread * draws)
    ten_weights = exponentials / exponentials.sum()
    largest[spread] = round(ten_weights.max(), 4)
    print(f"spread {spread}: largest of ten weights {largest[spread]:.4f}; all: {ten_weights.round(4).tolist()}")
assert largest == {1: 0.3935, 8: 0.9997}

# %% [markdown]
# With spread 8 one key takes all before training begins, and which one is chance.
#
# ## Extremely small gradients
#
# > We suspect that for large values of $d_k$, the dot products grow large in magnitude, pushing the softmax function into regions where it has extremely small gradients. To counteract this effect, we scale the dot products by $\frac{1}{\sqrt{d_k}}$.
# >
# > — Section 3.2.1
#
# The gradient of a softmax with weights $p$ is the matrix $J = \mathrm{diag}(p) - p p^T$: entry $(i, j)$ says how much weight $i$ moves when score $j$ does. If one weight is 1 and the others are 0, then $J = 0$: no score has any influence, and nothing can be learned through them. Autograd agrees with the formula, and shows the difference on the ten draws above:

# %%
def softmax_jacobian(weights: Tensor) -> Tensor:
    """The derivative of softmax weights (…, n) by their scores: (…, n, n)."""
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


for spread in (1, 8):
    scores = torch.from_numpy(spread * draws)
    formula = softmax_jacobian(scores.softmax(-1))
    autograd = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert torch.allclose(formula, autograd, atol=1e-12)
    print(f"spread {spread}: norm of the Jacobian {torch.linalg.matrix_norm(formula).item():.4f}")

# %% [markdown]
# ### The √d_k laboratory
#
# The laboratory draws 2,000 queries with ten keys each and watches four numbers as $d_k$ grows: the variance of the scores, the largest weight, the entropy of the weights, and the norm of the Jacobian. One draw serves all widths: the dot product over the first $d_k$ components is a partial sum.

# %%
rng = np.random.default_rng(1)
queries, keys = rng.standard_normal((2000, 1, 512)), rng.standard_normal((2000, 10, 512))
partial_sums = torch.from_numpy(np.cumsum(queries * keys, axis=-1))  # (2000, 10, 512)


def laboratory(scores: Tensor) -> dict[str, Tensor]:
    """What becomes of scores (queries, keys) in the softmax; one number a query, but for the variance."""
    weights = scores.softmax(-1)
    return {
        "variance": scores.var(),
        "largest": weights.amax(-1),
        "entropy": torch.special.entr(weights).sum(-1),  # in nats; ln 10 = 2.3026 if all weights are equal
        "jacobian": torch.linalg.matrix_norm(softmax_jacobian(weights)),
    }


WITHOUT, WITH = "without the factor", "with the factor 1/√d_k"
measured = {}
for d_k in (4, *range(8, 513, 8)):
    dots = partial_sums[..., d_k - 1]  # (2000, 10)
    measured[d_k, WITHOUT] = laboratory(dots)
    measured[d_k, WITH] = laboratory(dots / math.sqrt(d_k))

print("                                variance   largest weight   entropy   Jacobian norm (median)")
for d_k in (4, 64, 512):
    for factor in (WITHOUT, WITH):
        m = measured[d_k, factor]
        print(
            f"d_k {d_k:3} {factor:23}{m['variance']:9.2f}{m['largest'].mean():17.4f}"
            f"{m['entropy'].mean():10.4f}{m['jacobian'].median():16.4f}"
        )

# %% [markdown]
# The claim, as assertions. With the factor hardly anything depends on the width any more. Without it, at 512, most queries have a Jacobian close to 0:

# %%
unscaled, scaled = measured[512, WITHOUT], measured[512, WITH]
assert abs(scaled["variance"] - 1) < 0.05 and abs(unscaled["variance"] / 512 - 1) < 0.05
for quantity in ("largest", "entropy", "jacobian"):
    drift = scaled[quantity].mean() / measured[8, WITH][quantity].mean()
    assert 0.9 < drift < 1.1, (quantity, drift)
assert unscaled["largest"].mean() > 0.9 and unscaled["entropy"].mean() < 0.2
assert unscaled["jacobian"].median() < scaled["jacobian"].median() / 1000

dead = {factor: (measured[512, factor]["jacobian"] < 0.01).double().mean().item() for factor in (WITHOUT, WITH)}
print(f"queries with a Jacobian norm below 0.01 at d_k = 512: {dead[WITHOUT]:.0%} without, {dead[WITH]:.0%} with the factor")
assert dead[WITHOUT] > 0.6 and dead[WITH] == 0

# %%
typical = measured[512, WITHOUT]["jacobian"].argsort()[1000]  # the query in the middle
rows = []
for (d_k, factor), m in measured.items():
    dots = partial_sums[typical, :, d_k - 1] / (math.sqrt(d_k) if factor == WITH else 1)
    rows.append(
        {
            "d_k": d_k,
            "factor": factor,
            "variance": float(f"{m['variance']:.3g}"),
            "largest": round(m["largest"].mean().item(), 3),
            "entropy": round(m["entropy"].mean().item(), 3),
            "jacobian": float(f"{m['jacobian'].median():.3g}"),
            "weights": [round(w, 3) for w in dots.softmax(-1).tolist()],
        }
    )
rows = [row for row in rows if row["d_k"] >= 8]

slider = alt.param(name="d_k", value=64, bind=alt.binding_range(min=8, max=512, step=8, name="d_k "))
chosen = "datum.d_k == d_k"
scale = alt.Scale(domain=[WITHOUT, WITH], range=["#D55E00", "#0072B2"])
colour = alt.Color("factor:N", title=None, scale=scale, legend=alt.Legend(orient="top", labelLimit=0))
dash = alt.StrokeDash("factor:N", title=None, scale=alt.Scale(domain=[WITHOUT, WITH], range=[[5, 3], [1, 0]]))


def panel(field: str, title: str, below: int = 14, **y_scale: object) -> alt.LayerChart:
    """Both curves of one quantity over d_k, with the chosen width marked; `below` moves the lower label."""
    base = alt.Chart().encode(
        x=alt.X("d_k:Q", title="d_k", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=[8, 32, 128, 512])),
        y=alt.Y(f"{field}:Q", title=None, scale=alt.Scale(**y_scale), axis=alt.Axis(tickCount=4, grid=False)),
    )
    marked = base.transform_filter(chosen)
    number = marked.encode(text=alt.Text(f"{field}:Q", format=".3~g"))
    return alt.layer(
        base.mark_line().encode(color=colour, strokeDash=dash),
        marked.mark_point(filled=True, size=70, opacity=1).encode(color=colour),
        number.transform_filter(f"datum.factor == '{WITH}'").mark_text(dy=-11),
        number.transform_filter(f"datum.factor == '{WITHOUT}'").mark_text(dy=below),
    ).properties(width=215, height=130, title=title)


def ten_weights_of(factor: str) -> alt.Chart:
    """The ten weights of the typical query at the chosen width."""
    return (
        alt.Chart()
        .transform_filter(f"{chosen} && datum.factor == '{factor}'")
        .transform_flatten(["weights"], as_=["weight"])
        .transform_window(key="row_number()")
        .mark_bar()
        .encode(
            x=alt.X("key:O", title="key", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("weight:Q", title=None, scale=alt.Scale(domain=[0, 1])),
            color=colour,
        )
        .properties(width=215, height=110, title=f"ten weights {factor}")
    )


chart = alt.concat(
    ten_weights_of(WITHOUT),
    ten_weights_of(WITH),
    panel("variance", "variance of the scores", type="log"),
    panel("largest", "largest of ten weights (mean)", domain=[0, 1.05]),
    panel("entropy", "entropy of the weights (mean, nats)", below=-11, domain=[0, 2.4]),
    panel("jacobian", "norm of the Jacobian (median)", type="log"),
    columns=2,
    data=alt.Data(values=rows),
).add_params(slider)
chart.properties(title=alt.Title("With the factor, the softmax stays alive at every d_k", anchor="middle"))

# %% [markdown]
# What to see: drag $d_k$ from 8 to 512. The blue curves stay flat. The orange, dashed ones do not: the variance grows with $d_k$, one weight swallows the rest, the entropy goes to 0, and the Jacobian of the typical query falls by more than three orders of magnitude. The bars show one query whose Jacobian at $d_k = 512$ is the median of all: without the factor nearly all its weight goes to one key (near $d_k = 216$ to two that are almost tied), with it every key keeps a hint.

# %% [markdown]
# ## Dot product or additive
#
# The paper knows two compatibility functions in common use, and compares its own with both.
#
# > Dot-product attention is identical to our algorithm, except for the scaling factor of $\frac{1}{\sqrt{d_k}}$. Additive attention computes the compatibility function using a feed-forward network with a single hidden layer.
# >
# > — Section 3.2.1
#
# With queries and keys already projected to $d_k$ components, the hidden layer is their sum under a tanh, and a learned vector $v$ reads the score off it: $v \cdot \tanh(q + k)$.

# %%
def additive_scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Scores of additive attention, v·tanh(q + k)."""
    hidden = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))  # (…, m, 1, d_k) + (…, 1, n, d_k) → (…, m, n, d_k)
    return hidden @ v  # (…, m, n)


def dot_scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Plain dot products; v is not used."""
    return query @ key.transpose(-2, -1)  # (…, m, n)


def scaled_dot_scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """The scores of Equation (1); v is not used."""
    return dot_scores(query, key, v) / math.sqrt(query.size(-1))


# %% [markdown]
# Both need $m \cdot n \cdot d_k$ multiplications. But additive attention keeps a hidden vector for every pair of query and key, and takes a tanh of each of its components. Dot products need neither: they are one matrix product, the operation that hardware does best. This is the paper's argument for them: similar in theoretical complexity, much faster and more space-efficient in practice. Here with 512 positions of width 64:

# %%
torch.set_num_threads(1)  # on a busy machine two threads wait for each other, and that would be timed, too
torch.manual_seed(0)
q, k, v = torch.randn(512, 64), torch.randn(512, 64), torch.randn(64)


def best_time(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
    """The shortest of five runs, in seconds of processor time."""
    times = []
    for _ in range(5):
        start = time.thread_time()
        score(q, k, v)
        times.append(time.thread_time() - start)
    return min(times)


hidden = torch.tanh(q[:, None] + k)  # (512, 512, 64)
print(f"numbers stored before the softmax: additive {hidden.numel():,}, dot product {(q @ k.T).numel():,}")
assert hidden.numel() == 64 * (q @ k.T).numel()
assert best_time(additive_scores) > 2 * best_time(dot_scores)
print("additive attention took more than twice as long")

# %% [markdown]
# The paper also cites a comparison of how well the two learn:
#
# > While for small values of $d_k$ the two mechanisms perform similarly, additive attention outperforms dot product attention without scaling for larger values of $d_k$.
# >
# > — Section 3.2.1
#
# The statement can be tested in seconds. There are 16 symbols, and each has a secret partner. Eight symbols lie on the table, each with a random value. The query names the partner of one of them, and the attention must return that one's value. Queries and keys are learned vectors of width $d_k$ that start as normal draws, exactly the footnote's assumption. The error passes through the softmax, as it does inside a network.
#
# To be fair, all three mechanisms see the same data and start from the same vectors, take the same number of steps with Adam, and get the best of the same three learning rates.

# %%
SYMBOLS, ON_TABLE, BATCH, STEPS = 16, 8, 32, 120


def learn_partners(score: Callable[..., Tensor], d_k: int, learning_rate: float) -> list[float]:
    """Train queries and keys; return the squared error of each step."""
    rng = torch.Generator().manual_seed(0)
    query_of, key_of = torch.randn(2, SYMBOLS, d_k, generator=rng, dtype=torch.float64)  # (16, d_k) each
    v = torch.randn(d_k, generator=rng, dtype=torch.float64) / math.sqrt(d_k)
    parameters = [p.requires_grad_() for p in (query_of.clone(), key_of.clone(), v)]
    query_of, key_of, v = parameters
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    rng, errors = torch.Generator().manual_seed(1), []
    partner = torch.randperm(SYMBOLS, generator=rng)
    for _ in range(STEPS):
        table = torch.rand(BATCH, SYMBOLS, generator=rng).argsort(-1)[:, :ON_TABLE]  # (B, 8) different symbols
        wanted = torch.randint(ON_TABLE, (BATCH, 1), generator=rng)  # (B, 1)
        values = torch.randn(BATCH, ON_TABLE, 16, generator=rng, dtype=torch.float64)
        asked = partner[table.gather(1, wanted)]  # (B, 1)
        weights = score(query_of[asked], key_of[table], v).softmax(-1)  # (B, 1, 8)
        target = values[torch.arange(BATCH), wanted[:, 0]]  # (B, 16)
        error = ((weights @ values).squeeze(1) - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    return errors


# %%
MECHANISMS = {"additive": additive_scores, "dot product": dot_scores, "scaled dot product": scaled_dot_scores}
WIDTHS, RATES = (4, 64, 256), (0.01, 0.03, 0.1)
curves = {
    (name, d_k, rate): learn_partners(score, d_k, rate)
    for d_k in WIDTHS
    for name, score in MECHANISMS.items()
    for rate in RATES
}
final = {run: sum(errors[-20:]) / 20 for run, errors in curves.items()}  # the mean of the last 20 steps
best = {(name, d_k): min(final[name, d_k, rate] for rate in RATES) for name in MECHANISMS for d_k in WIDTHS}

print("error at the best learning rate; 1 is the variance of the values")
print(f"{'':20}", *(f"d_k {d_k:3}" for d_k in WIDTHS))
for name in MECHANISMS:
    print(f"{name:20}", *(f"{best[name, d_k]:7.2f}" for d_k in WIDTHS))

assert all(best[name, 4] < 0.01 for name in MECHANISMS)  # small d_k: alike
for d_k in (64, 256):
    assert best["additive", d_k] < 0.01 and best["scaled dot product", d_k] < 0.01
assert 0.1 < best["dot product", 64] < best["dot product", 256]  # large d_k: dot products without scaling fall behind

# %%
rows = [
    {"mechanism": name, "d_k": d_k, "rate": rate, "error": [round(sum(errors[i : i + 5]) / 5, 3) for i in range(0, STEPS, 5)]}
    for (name, d_k, rate), errors in curves.items()
]
shown = alt.param(name="shown", value=256, bind=alt.binding_select(options=list(WIDTHS), name="d_k "))
rate = alt.param(name="rate", value=0.03, bind=alt.binding_select(options=list(RATES), name="learning rate "))
scale = alt.Scale(domain=list(MECHANISMS), range=["#009E73", "#D55E00", "#0072B2"])
dashes = alt.Scale(domain=list(MECHANISMS), range=[[2, 2], [6, 3], [1, 0]])
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.d_k == shown && datum.rate == rate")
    .transform_flatten(["error"])
    .transform_window(number="row_number()", groupby=["mechanism"])
    .transform_calculate(step="5 * datum.number")
    .mark_line(strokeWidth=2.5)
    .encode(
        x=alt.X("step:Q", title="step", scale=alt.Scale(domain=[0, STEPS]), axis=alt.Axis(tickCount=4)),
        y=alt.Y("error:Q", title="squared error (mean of 5 steps)", scale=alt.Scale(domain=[0, 1.8], clamp=True)),
        color=alt.Color("mechanism:N", title=None, scale=scale, legend=alt.Legend(orient="top", labelLimit=0)),
        strokeDash=alt.StrokeDash("mechanism:N", title=None, scale=dashes),
    )
    .add_params(shown, rate)
    .properties(width=480, height=240)
)
chart.properties(title="At large d_k, dot products without scaling fall behind")

# %% [markdown]
# What to see: at $d_k = 4$ the three curves fall much alike. At 256 the unscaled dot product stays behind at every learning rate. The scaled one is done in a few dozen steps, and so is additive attention, except at the highest rate. The factor alone makes the difference between the two dot products.

# %% [markdown]
# ## Unsaid by the paper
#
# **No experiment removes the factor.** The paper *suspects*, and cites others. All rows of Table 3 have the factor. Row (B) shrinks $d_k$ with the factor on, so it says nothing about scaling, though it is sometimes read that way.
#
# **The typical query, not every query.** The laboratory plots the *median* of the Jacobian norm. Its *mean* falls far more slowly, about as $1/\sqrt{d_k}$: now and then the two best keys are nearly tied, and such a query still learns. So saturation does not stop all learning: it confines it to a few queries.

# %%
print("Jacobian norm without the factor      median      mean   mean · √d_k")
for d_k in (64, 128, 256, 512):
    norms = measured[d_k, WITHOUT]["jacobian"]
    print(f"d_k {d_k:3}{norms.median():37.5f}{norms.mean():10.4f}{norms.mean() * math.sqrt(d_k):14.2f}")
products = [measured[d_k, WITHOUT]["jacobian"].mean() * math.sqrt(d_k) for d_k in (64, 128, 256, 512)]
assert max(products) / min(products) < 1.25

# %% [markdown]
# **The factor does not make attention soft.** The footnote assumes independent vectors, which holds before training and not after. A key that *equals* its query scores $q \cdot q / \sqrt{d_k} \approx \sqrt{d_k}$. So the wider the vectors, the further a match stands out from the crowd, and attention can be as sharp as it needs to be:

# %%
torch.manual_seed(0)
for d_k in (4, 64, 512):
    queries = torch.randn(1000, 1, d_k)
    keys = torch.cat([queries, torch.randn(1000, 9, d_k)], dim=1)  # the first of ten keys is the query itself
    _, weights = scaled_dot_product_attention(queries, keys, keys)
    print(f"d_k {d_k:3}: mean weight of the matching key {weights[..., 0].mean():.3f}")
assert weights[..., 0].mean() > 0.999

# %% [markdown]
# **The factor changes learning, not what can be learned.** $(q/\sqrt{d_k}) \cdot k = q \cdot k/\sqrt{d_k}$, so a projection in front could absorb it. Both networks can represent the same functions; they start in different places and move at different speeds. Much code scales the queries, $m \cdot d_k$ numbers, rather than the scores, $m \cdot n$ numbers.
#
# **A softmax must not overflow.** $e^{89}$ is beyond single precision. Every library subtracts the largest score first, which changes nothing, since only differences count.
#
# **A row with nothing to attend to.** If a mask hides every key of a query, the softmax is $0/0$. Left alone, this gives NaN in the output and, worse, in the gradients of the whole batch. Our function returns zeros. [Section 3.2.3](03_2_3_applications_of_attention.py) has more on masks.
#
# **Dropout on the weights** is not in the paper's list of places ([Section 5.4](05_4_regularization.py)). The authors' first code did not use it; their later code does. Here it is an argument, off by default.

# %%
factor = 1 / math.sqrt(8)
assert torch.allclose((query * factor) @ key.mT, query @ key.mT * factor, atol=1e-5)

large = torch.tensor([100.0, 99.0])
assert large.exp().isinf().all()  # the naive way overflows
assert torch.allclose(large.softmax(-1), torch.tensor([1.0, 0.0]).softmax(-1))

scores = torch.zeros(2, 3, requires_grad=True)
mask = torch.tensor([[True, True, False], [False, False, False]])  # the second row may see nothing
naive = scores.masked_fill(~mask, float("-inf")).softmax(-1)
assert naive[1].isnan().all()
careful = masked_softmax(scores, mask)
careful.square().sum().backward()
assert scores.grad.isfinite().all() and careful.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
print("naive:", naive.tolist())
print("ours: ", careful.tolist())

# %% [markdown]
# The same steps with a trained model's numbers, each cell with the sum that made it: [Step through one attention](../book/one_attention.md).
#
# ## What we now know
#
# - Attention is a soft dictionary lookup: two matrix products with a softmax between them. By hand and by code: 0.4011, 0.1978, 0.4011 and an output of (3, 4).
# - The output is a convex combination of the values, whatever the order of the pairs.
# - Dot products of independent unit-variance vectors have variance $d_k$: 4.03, 64.09 and 514.18 measured at 4, 64 and 512.
# - A spread of 8 instead of 1 takes the largest of ten weights from 0.3935 to 0.9997. At $d_k = 512$ most queries have next to no gradient. With the factor, hardly anything depends on $d_k$.
# - Additive attention and scaled dot products learn alike at every width we tried. Unscaled dot products keep up at $d_k = 4$, fall behind at 64 and further at 256.
#
# ## Exercises
#
# 1. **Predict, then run.** In the example with three queries, put the identity in the place of $V$. What is the output? Check: `check("3.2.1-identity", answer)`.
# 2. **Predict, then run.** Set its third query to $(2, 2)$ and leave the keys as they are. What are the weights of that query? Check: `check("3.2.1-third-query", answer)`.
# 3. **Minutes.** Add the same vector $c$ to every key. Show on paper that the weights do not change, then check it. What does this say about a bias in the projection of the keys?
# 4. **Minutes.** The footnote asks for mean 0 and variance 1, not for a normal distribution. Draw components that are $+1$ or $-1$ with equal probability. Does the variance of $q \cdot k$ change? And with $k = q$ and normal components, as for a token that attends to itself?
# 5. **Minutes.** Replace the dot product by the cosine of the angle between $q$ and $k$, without any factor. What is the largest weight that one of ten keys can reach? What is missing?
# 6. **An hour.** What is the mean entropy of a row of ten weights at $d_k = 256$, without the factor and with it? Which of the two softmaxes has the larger Jacobian, and why do the two answers belong together? Check: `check("3.2.1-entropy", (without, with, which))`.

# %% [markdown]
# Solution to exercises 1 and 2: with $V = I$ the output is the matrix of weights. A query twice as long has twice the scores, and a sharper softmax.

# %% tags=["hide-cell"]
from transformer.exercises import check

example = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
identity, _ = scaled_dot_product_attention(example, example, torch.eye(3))
_, longer = scaled_dot_product_attention(torch.tensor([[2.0, 2.0]]), example, example)
print([round(w, 4) for w in longer[0].tolist()])
for name, answer in (("3.2.1-identity", identity), ("3.2.1-third-query", longer[0])):
    print(check(name, answer))
    assert check(name, answer)

# %% [markdown]
# Solution to exercise 3: $q \cdot (k + c) = q \cdot k + q \cdot c$. The last term is the same for every key, and a softmax ignores what all its inputs share. A bias in the key projection has no effect at all.

# %% tags=["hide-cell"]
c = torch.randn(8)
assert torch.allclose(
    scaled_dot_product_attention(query, key + c, value)[0], scaled_dot_product_attention(query, key, value)[0], atol=1e-5
)
print("same output with", [round(x, 2) for x in c.tolist()], "added to every key")

# %% [markdown]
# Solution to exercise 4: the variance stays $d_k$, because the proof used nothing but mean and variance. For $k = q$ and normal components, the mean is $d_k$ and the variance $2 d_k$, since $\mathrm{Var}[q_i^2] = 3 - 1$.

# %% tags=["hide-cell"]
rng = np.random.default_rng(2)
q, k = rng.choice([-1.0, 1.0], (2, 100_000, 64))
signs = (q * k).sum(-1)
q = rng.standard_normal((100_000, 64))
squares = (q * q).sum(-1)
print(f"±1: variance {signs.var():.1f};  k = q: mean {squares.mean():.1f}, variance {squares.var():.1f}")
assert abs(signs.var() - 64) < 2 and abs(squares.mean() - 64) < 0.2 and abs(squares.var() - 128) < 4

# %% [markdown]
# Solution to exercise 5: the best case is one key at cosine 1 and nine at cosine −1. Even then the weight is less than a half. What is missing is a factor again, larger than 1 this time. Ten is ample:

# %% tags=["hide-cell"]
best_case = math.exp(1) / (math.exp(1) + 9 * math.exp(-1))
print(f"{best_case:.3f} without a factor, {math.exp(10) / (math.exp(10) + 9 * math.exp(-10)):.3f} with the factor 10")
assert best_case < 0.5

# %% [markdown]
# Solution to exercise 6: the laboratory has both. A row with little entropy has one weight near 1, and there $\mathrm{diag}(p) - pp^T$ is nearly 0. Equal weights give the largest entropy, though not the largest Jacobian: that belongs to two keys that share all the weight. But as one weight nears 1, both go to 0.

# %% tags=["hide-cell"]
from transformer.exercises import check

at_256 = {factor: measured[256, factor] for factor in (WITHOUT, WITH)}
for factor, m in at_256.items():
    print(f"{factor:23} entropy {m['entropy'].mean():.2f}, median of the Jacobian's norm {m['jacobian'].median():.4f}")
larger = "with" if at_256[WITH]["jacobian"].median() > at_256[WITHOUT]["jacobian"].median() else "without"
answer = (at_256[WITHOUT]["entropy"].mean(), at_256[WITH]["entropy"].mean(), larger)
verdict = check("3.2.1-entropy", answer)
print(verdict)
assert verdict

# %% [markdown]
# ## The notebook and the module agree
#
# The cells marked as exported make up `transformer/attention.py`. The function above and the one that `import transformer` gives are the same:

# %%
mask = torch.rand(1000, 4, 6) > 0.5
for ours, theirs in zip(
    scaled_dot_product_attention(query, key, value, mask),
    transformer.scaled_dot_product_attention(query, key, value, mask),
):
    assert torch.equal(ours, theirs)
print("equal to the bit")
