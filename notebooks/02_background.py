# %% [markdown]
# # 2 Background
#
# The Transformer's parts had been around: attention since 2014, self-attention since 2016, and networks that gave up
# recurrence for convolutions. This section of the paper says what they lacked. The chapter builds the oldest of them in a
# few lines, measures how the convolutions cope with distance, and makes visible the price that attention pays.

# %%
import math
from collections.abc import Callable, Sequence

import altair as alt
import torch
from torch import Tensor, nn

import transformer

transformer.check_version("0.1")
torch.set_num_threads(1)  # the tensors are tiny: a second thread would only wait

# %% [markdown]
# ## The ancestor
#
# Sutskever and others (2014) squeezed the source sentence into one vector, the last state of a recurrent network. Bahdanau,
# Cho and Bengio (2014) kept all states of the encoder, one *annotation* $h_j$ per word, and let the decoder choose.
# Before it writes word $i$, its state $s_{i-1}$ is compared with every annotation:
#
# $$e_{ij} = v \cdot \tanh(W s_{i-1} + U h_j), \qquad \alpha_{ij} = \mathrm{softmax}_j(e_{ij}), \qquad c_i = \sum_j \alpha_{ij} h_j$$


# %%
def additive_attention(state: Tensor, annotations: Tensor, w: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The context for a decoder state (d,) over annotations (n, d), and the weights."""
    hidden = torch.tanh(state @ w + annotations @ u)  # (n, d_a)
    weights = (hidden @ v).softmax(dim=-1)  # (n,)
    return weights @ annotations, weights  # (d,), (n,)


# %% [markdown]
# ### See it: three annotations

# %%
annotations = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
state, identity, v = torch.tensor([1.0, -1.0]), torch.eye(2), torch.ones(2)
context, weights = additive_attention(state, annotations, identity, identity, v)
for h, weight in zip(annotations.tolist(), weights):
    print(f"annotation {h}: weight {weight:.3f}")
print("context", [round(number, 3) for number in context.tolist()])

e = [math.tanh(1 + a) + math.tanh(-1 + b) for a, b in annotations.tolist()]  # by hand
assert torch.allclose(weights, torch.tensor([math.exp(score) / sum(map(math.exp, e)) for score in e]))

# %% [markdown]
# ### Check it: what it shares with Equation (1)
#
# [Equation (1)](03_2_1_scaled_dot_product_attention.py) on the same state and annotations, as query and as keys and
# values. Both give positive weights that sum to 1, for any number of annotations. Both treat the annotations as a *set*:
# reorder them, and the weights move along while the context stays. So both return a weighted mean of the values.


# %%
def dot_product_attention(state: Tensor, annotations: Tensor) -> tuple[Tensor, Tensor]:
    output, weights = transformer.scaled_dot_product_attention(state[None], annotations, annotations)
    return output[0], weights[0]


torch.manual_seed(0)
D = 8
w, u, v = torch.randn(D, D), torch.randn(D, D), torch.randn(D)
ATTENTIONS = {
    "additive": lambda state, annotations: additive_attention(state, annotations, w, u, v),
    "Equation (1)": dot_product_attention,
}
for name, attend in ATTENTIONS.items():
    for n in (1, 2, 10, 1000):
        state, annotations, order = torch.randn(D), torch.randn(n, D), torch.randperm(n)
        context, weights = attend(state, annotations)
        moved_context, moved_weights = attend(state, annotations[order])
        assert (weights >= 0).all() and torch.allclose(weights.sum(), torch.tensor(1.0))
        assert torch.allclose(moved_weights, weights[order], atol=1e-5)
        assert torch.allclose(moved_context, context, atol=1e-5)
        assert (context <= annotations.amax(0) + 1e-5).all() and (context >= annotations.amin(0) - 1e-5).all()
    print(f"{name:13} weights sum to 1, follow the annotations, and average them")

# %% [markdown]
# ### Check it: where they part
#
# | | Bahdanau and others | the Transformer |
# |---|---|---|
# | score | $v \cdot \tanh(W s + U h)$ | $q \cdot k / \sqrt{d_k}$ |
# | what is compared, what is returned | the same annotation | keys and values, projected apart |
# | the queries | states of a recurrent decoder, one after the other | all positions at once |
# | the annotations | come from a recurrent network, which has mixed the words already | any vectors |
#
# The first row has two consequences that can be tested here. **The tanh is no decoration.** Without it the score is $v \cdot W s + v \cdot U h$, and
# the first term is the same for every annotation: the softmax drops it, and the decoder is not asked at all.

# %%
torch.manual_seed(0)
w, u, v = torch.randn(D, D) / math.sqrt(D), torch.randn(D, D) / math.sqrt(D), torch.randn(D)
annotations, states = torch.randn(5, D), torch.randn(2, D)
without = [((state @ w + annotations @ u) @ v).softmax(-1) for state in states]
with_tanh = [additive_attention(state, annotations, w, u, v)[1] for state in states]
for name, (first, second) in {"without tanh": without, "with tanh": with_tanh}.items():
    print(f"{name:12}  two states, largest difference of their weights {(first - second).abs().max().item():.2f}")
assert torch.allclose(*without, atol=1e-5) and not torch.allclose(*with_tanh, atol=0.1)

# %% [markdown]
# **Additive scores are bounded.** A tanh lies between $-1$ and $1$, so no score exceeds $\lVert v \rVert_1$, the sum of
# $v$'s absolute values, and no weight is more than $e^{2 \lVert v \rVert_1}$ times another. A dot product knows no such
# limit: with longer queries its weights become as sharp as one likes.
# ([Section 3.2.1](03_2_1_scaled_dot_product_attention.py) lets both learn the same task.)

# %%
lengths = [2.0**power for power in range(-3, 6)]
state, bound, rows = states[0] / states[0].norm(), v.abs().sum(), []
for name, attend in ATTENTIONS.items():
    largest = []
    for length in lengths:
        weights = attend(length * state, annotations)[1]
        largest.append(weights.max().item())
        rows += [
            {"attention": name, "length": length, "annotation": j, "weight": round(weight, 4)}
            for j, weight in enumerate(weights.tolist(), 1)
        ]
        if name == "additive":
            assert weights.max() < torch.exp(2 * bound) * weights.min()
    print(f"{name:13} largest of five weights: " + ", ".join(f"{weight:.2f}" for weight in largest))
    assert largest[-1] < 0.3 if name == "additive" else largest[-1] > 0.99

# %% tags=["hide-input"]
length = alt.param(name="query_length", value=1, bind=alt.binding_select(options=lengths, name="length of the query "))
panel = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.length == query_length")
    .mark_bar()
    .encode(
        x=alt.X("annotation:O", title="annotation", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[0, 1])),
        color=alt.Color(
            "attention:N", legend=None, scale=alt.Scale(domain=list(ATTENTIONS), range=["#E69F00", "#0072B2"])
        ),
        tooltip=["annotation:O", alt.Tooltip("weight:Q", format=".3f")],
    )
    .properties(width=120, height=180)
)
chart = (
    panel.facet(column=alt.Column("attention:N", sort=list(ATTENTIONS), title=None), spacing=15)
    .add_params(length)
    .properties(title="A longer query sharpens only one of them")
)
chart

# %% [markdown]
# Choose a longer query. The additive weights become equal: every tanh has reached its end, and says the same of all
# annotations. Those of Equation (1) end with one annotation and nothing else.
#
# ## Self-attention
#
# > Self-attention, sometimes called intra-attention is an attention mechanism relating different positions of a single
# > sequence in order to compute a representation of the sequence.
# >
# > — Section 2
#
# Bahdanau's attention is not that: its queries come from the target, its annotations from the source, two sequences. In
# self-attention one sequence plays all three roles, as in `attention(x, x, x)`. The result has one vector per position, so
# it can be fed to the next layer. That had been done, but nearly always beside a recurrent network.
#
# > To the best of our knowledge, however, the Transformer is the first transduction model relying entirely on
# > self-attention to compute representations of its input and output without using sequence-aligned RNNs or convolution.
# >
# > — Section 2
#
# Who was first is history. "Relying entirely" can be tested: change one token, and see for each part of the model by
# itself whether the results at *other* positions change.
#
# ### Check it: nothing else relates positions

# %%
torch.manual_seed(0)
model = transformer.Transformer(transformer.TransformerConfig.tiny(vocab_size=50)).eval()
layer, d_model = model.encoder.layers[0], model.config.d_model
attention, feed_forward = layer.self_attention, layer.feed_forward


def relates_positions(part: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a change at position 0 changes the result at another position."""
    changed = x.clone()
    changed[:, 0] += 1
    return not torch.equal(part(x)[:, 1:], part(changed)[:, 1:])


x, ids = torch.randn(1, 6, d_model), torch.randint(3, 40, (1, 6))
PARTS = {
    "token embedding": (model.embedding, ids),
    "positional encoding": (model.src_positions, x),
    "self-attention": (lambda x: attention(x, x, x), x),
    "residual, normalization": (lambda x: layer.attention_block(x, torch.zeros_like), x),
    "feed-forward network": (feed_forward, x),
    "output projection": (model.output_projection, x),
}
with torch.no_grad():
    relating = {name: relates_positions(part, inputs) for name, (part, inputs) in PARTS.items()}
for name, relates in relating.items():
    print(f"{name:24} {'relates positions' if relates else 'each position by itself'}")
assert [name for name, relates in relating.items() if relates] == ["self-attention"]
assert not any(isinstance(module, (nn.RNNBase, nn.modules.conv._ConvNd)) for module in model.modules())

# %% [markdown]
# Everything else works on each position alone. Take the attention out, and each output knows one token and its place, and
# nothing more.
#
# ## Distance
#
# > In these models, the number of operations required to relate signals from two arbitrary input or output positions grows
# > in the distance between positions, linearly for ConvS2S and logarithmically for ByteNet. This makes it more difficult to
# > learn dependencies between distant positions.
# >
# > — Section 2
#
# Both networks stack convolutions. A convolution of width $k$ sees $k$ positions, and each layer on top of it widens the
# view. ConvS2S (Gehring and others, 2017) takes neighbours in every layer. ByteNet (Kalchbrenner and others, 2016) leaves
# gaps, and doubles them from layer to layer: positions 1 apart, then 2, then 4.


# %%
def conv_stack(kernel: int, dilations: Sequence[int]) -> nn.Sequential:
    """One convolution per dilation; positive weights, so that no two paths cancel."""
    layers = [nn.Conv1d(1, 1, kernel, padding="same", dilation=gap, bias=False, dtype=torch.float64) for gap in dilations]
    for layer in layers:
        nn.init.uniform_(layer.weight, 0.5, 1.0)
    return nn.Sequential(*layers)


def positions_seen(stack: nn.Module, n: int = 1201) -> int:
    """How many inputs have a gradient from the output in the middle."""
    x = torch.ones(1, 1, n, dtype=torch.float64, requires_grad=True)
    stack(x)[0, 0, n // 2].backward()
    return int((x.grad != 0).sum())


# %% [markdown]
# ### Check it: one more layer
#
# Each layer adds $k-1$ times its gap to what is seen: $1 + (k-1)\sum_l g_l$ positions. With gaps of 1 that is
# $1 + (k-1)L$ for $L$ layers; with doubled gaps it is $1 + (k-1)(2^L - 1)$.

# %%
print("layers     ConvS2S, k = 3   ConvS2S, k = 5   ByteNet, k = 3")
for n_layers in range(1, 9):
    doubled = [2**i for i in range(n_layers)]
    seen = [
        positions_seen(conv_stack(3, [1] * n_layers)),
        positions_seen(conv_stack(5, [1] * n_layers)),
        positions_seen(conv_stack(3, doubled)),
    ]
    print(f"{n_layers:6}{seen[0]:19}{seen[1]:17}{seen[2]:17}")
    assert seen == [1 + 2 * n_layers, 1 + 4 * n_layers, 1 + 2 * (2**n_layers - 1)]
assert positions_seen(conv_stack(5, [1] * 6)) == 25  # the example in the ConvS2S paper: 6 layers, k = 5

# %% [markdown]
# ### See it: from position 1 to position 15

# %% tags=["hide-input"]
N, MIDDLE = 15, 8
gaps_of = {"ConvS2S": [1] * 7, "ByteNet": [1, 2, 4]}
edges, dots = [], []
for kind, gaps in gaps_of.items():
    reached = {MIDDLE}
    for level, gap in reversed(list(enumerate(gaps))):
        for at in sorted(reached):
            for source in (at - gap, at, at + gap):
                side = at - MIDDLE
                outermost = source != at and abs(side) == sum(gaps[level + 1 :]) and abs(source - MIDDLE) > abs(side)
                edges.append({"kind": kind, "x": source, "y": level, "x2": at, "y2": level + 1, "path": outermost})
        reached |= {at + move for at in reached for move in (-gap, gap)}
    assert reached >= {1, N}
edges += [
    {"kind": "self-attention", "x": source, "y": 0, "x2": MIDDLE, "y2": 1, "path": source in (1, N)}
    for source in range(1, N + 1)
]
for kind, depth in {"ConvS2S": 7, "ByteNet": 3, "self-attention": 1}.items():
    dots += [{"kind": kind, "x": x, "y": y} for y in range(depth + 1) for x in range(1, N + 1)]

shown = alt.param(
    name="network",
    value="ConvS2S",
    bind=alt.binding_radio(options=["ConvS2S", "ByteNet", "self-attention"], name="network "),
)
x = alt.X("x:Q", title="position", scale=alt.Scale(domain=[0.5, 15.5]), axis=alt.Axis(values=[1, 8, 15], grid=False))
y = alt.Y("y:Q", title="layer", scale=alt.Scale(domain=[-0.3, 7.3]), axis=alt.Axis(values=list(range(8)), grid=False))
lines = (
    alt.Chart(alt.Data(values=edges))
    .transform_filter("datum.kind == network")
    .mark_rule()
    .encode(
        x=x,
        y=y,
        x2="x2:Q",
        y2="y2:Q",
        color=alt.condition("datum.path", alt.value("#D55E00"), alt.value("#7a7f87")),
        strokeWidth=alt.condition("datum.path", alt.value(3), alt.value(0.8)),
    )
)
points = (
    alt.Chart(alt.Data(values=dots))
    .transform_filter("datum.kind == network")
    .mark_point(filled=True, size=30, color="#7a7f87", opacity=1)
    .encode(x=x, y=y)
)
chart = (lines + points).add_params(shown)
chart.properties(title="Seven layers, three, or one", width=290, height=250)

# %% [markdown]
# What to see: the kernels are three wide, and the grey lines are all that leads to the topmost point. The two thick ones
# start at the ends of the sequence. ConvS2S needs seven layers until they meet, ByteNet three. One layer of
# self-attention joins all positions at once.
#
# ### What if: farther, or with wider kernels
#
# How many layers until some output depends on two positions at a given distance? ByteNet comes twice: with gaps that
# double for ever, as the paper has it in mind, and as it was published, with gaps 1, 2, 4, 8, 16 and then again from 1.


# %%
def layers_needed(distance: int, kernel: int, gap: Callable[[int], int]) -> int:
    """Layers until one output sees two positions that far apart; `gap` gives the gap of layer 0, 1, …"""
    n_layers, seen = 0, 1
    while seen < distance + 1:
        seen += (kernel - 1) * gap(n_layers)
        n_layers += 1
    return n_layers


NETWORKS = {
    "ConvS2S": lambda layer: 1,
    "ByteNet, published": lambda layer: 2 ** (layer % 5),
    "ByteNet, doubling": lambda layer: 2**layer,
}
print("distance" + "".join(f"{name:>24}" for name in NETWORKS) + "   self-attention")
for distance in (10, 50, 100, 1000):
    counts = [layers_needed(distance, 3, gap) for gap in NETWORKS.values()]
    print(f"{distance:8}" + "".join(f"{count:24}" for count in counts) + f"{1:17}")
    assert counts[0] == math.ceil(distance / 2) and counts[2] == math.ceil(math.log2(distance / 2 + 1))

cycle = [2 ** (layer % 5) for layer in range(10)]
assert layers_needed(positions_seen(conv_stack(3, cycle)) - 1, 3, NETWORKS["ByteNet, published"]) == 10

# %% tags=["hide-input"]
DISTANCES = sorted({round(2 ** (i / 3)) for i in range(31)})
rows = [
    {"network": name, "kernel": kernel, "distance": distance, "layers": layers_needed(distance, kernel, gap)}
    for name, gap in NETWORKS.items()
    for kernel in (3, 5, 7, 9)
    for distance in DISTANCES
]
rows += [
    {"network": "self-attention", "kernel": kernel, "distance": distance, "layers": 1}
    for kernel in (3, 5, 7, 9)
    for distance in DISTANCES
]
COLOURS = {
    "ConvS2S": "#D55E00",
    "ByteNet, published": "#E69F00",
    "ByteNet, doubling": "#009E73",
    "self-attention": "#0072B2",
}
kernel = alt.param(name="kernel_width", value=3, bind=alt.binding_range(min=3, max=9, step=2, name="kernel width k "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.kernel == kernel_width")
    .mark_line(strokeWidth=2.5, interpolate="step-before")
    .encode(
        x=alt.X("distance:Q", title="distance of two positions", scale=alt.Scale(type="log", base=2, domain=[1, 1024])),
        y=alt.Y("layers:Q", title="layers to relate them", scale=alt.Scale(type="log", base=2, domain=[1, 512])),
        color=alt.Color(
            "network:N",
            title=None,
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            legend=alt.Legend(orient="top", columns=2, labelLimit=0),
        ),
        strokeDash=alt.StrokeDash("network:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(COLOURS)])),
        tooltip=["network:N", "distance:Q", "layers:Q"],
    )
    .add_params(kernel)
    .properties(title="Linear, logarithmic, constant", width=265, height=240)
)
chart

# %% [markdown]
# Both axes are logarithmic, so the straight slope of ConvS2S is proportional growth, and ByteNet's bend is a logarithm. The
# published ByteNet follows the bend for five layers and then turns linear, too, only with longer strides. Wider kernels
# shift the lines and change no slope. [Section 4](04_why_self_attention.py) has the whole comparison, with recurrence and
# with what a layer costs.
#
# ## The price: one average
#
# > In the Transformer this is reduced to a constant number of operations, albeit at the cost of reduced effective resolution
# > due to averaging attention-weighted positions, an effect we counteract with Multi-Head Attention as described in section
# > 3.2.
# >
# > — Section 2
#
# A convolution has a matrix of its own for each of its positions, so it can put what it finds at different places of the
# result. A head has one matrix for all, and adds up what it finds: who receives $0.5\,x_1 + 0.5\,x_2$ cannot tell which
# part came from where. Several heads return several averages.
#
# ### Check it: how much gets through
#
# Let $m$ positions hold four numbers each, and count how many independent numbers reach the output, which has room for 64:
# the rank of the derivative of the output by all that the positions hold. Queries and keys are random and stay fixed.


# %%
CONTENT, WIDTH = 4, 64


def numbers_through(layer: Callable[[Tensor], Tensor], m: int) -> int:
    """Rank of the derivative of layer's output (64,) by the contents (m, 4) of its m positions."""
    contents = torch.randn(m, CONTENT, dtype=torch.float64)

    def output(contents: Tensor) -> Tensor:
        return layer(nn.functional.pad(contents, (0, WIDTH - CONTENT)))  # (m, 64) → (64,)

    derivative = torch.autograd.functional.jacobian(output, contents).flatten(1)  # (64, m · 4)
    return int(torch.linalg.matrix_rank(derivative))


def attention_over(m: int, n_heads: int) -> Callable[[Tensor], Tensor]:
    attention = transformer.MultiHeadAttention(WIDTH, n_heads).double()
    query, key = torch.randn(1, 1, WIDTH, dtype=torch.float64), torch.randn(1, m, WIDTH, dtype=torch.float64)
    return lambda values: attention(query, key, values[None])[0, 0]


def convolution_over(m: int) -> Callable[[Tensor], Tensor]:
    convolution = nn.Conv1d(WIDTH, WIDTH, m, dtype=torch.float64)
    return lambda values: convolution(values.T[None])[0, :, 0]


# %%
torch.manual_seed(0)
HEADS, PLACES = (1, 2, 4, 8, 16), (2, 4, 8, 16)
through = {(m, h): numbers_through(attention_over(m, h), m) for m in PLACES for h in HEADS}
whole = {m: numbers_through(convolution_over(m), m) for m in PLACES}
print("positions   numbers" + "".join(f"{h:4} head{'s' if h > 1 else ' '}" for h in HEADS) + "   convolution")
for m in PLACES:
    print(f"{m:9}{m * CONTENT:10}" + "".join(f"{through[m, h]:10}" for h in HEADS) + f"{whole[m]:14}")
    assert whole[m] == m * CONTENT
    assert all(through[m, h] == CONTENT * min(h, m) for h in HEADS)

# %% tags=["hide-input"]
rows = [{"m": m, "heads": h, "numbers": number, "whole": whole[m]} for (m, h), number in through.items()]
positions = alt.param(name="places", value=8, bind=alt.binding_select(options=list(PLACES), name="positions "))
base = alt.Chart(alt.Data(values=rows)).transform_filter("datum.m == places")
bars = base.mark_bar(color="#0072B2").encode(
    x=alt.X("heads:O", title="heads", axis=alt.Axis(labelAngle=0)),
    y=alt.Y("numbers:Q", title="numbers that get through", scale=alt.Scale(domain=[0, 66])),
    tooltip=["heads:O", "numbers:Q", alt.Tooltip("whole:Q", title="convolution")],
)
line = base.mark_rule(color="#E69F00", strokeWidth=3, strokeDash=[6, 3]).encode(y="max(whole):Q")
chart = (bars + line).add_params(positions)
chart.properties(title="Each head lets one average through", width=250, height=220)

# %% [markdown]
# The dashed line is a convolution over the same positions, which loses nothing. Attention lets through four numbers for each
# head, until there are as many heads as positions. All layers have outputs of the same width; what differs is the number
# of averages. Rank counts what gets through at all, not how well: [Section 3.2.2](03_2_2_multi_head_attention.py) trains
# one head and two on a task with two answers, and one loses half.
#
# ## Unsaid by the paper
#
# **Convolutions used attention, too.** Every decoder layer of ConvS2S attends to the source. So the distance between a
# target word and a source word was one step there as well; what grew was the distance *within* the source and within the
# target.
#
# **A fixed depth is a fixed view.** Networks are not made deeper for longer sentences. In its authors' code the
# English–German encoder of ConvS2S has thirteen layers with $k = 3$ (and two with $k = 1$). Words farther apart than that
# allows meet in none of its outputs:

# %%
print("positions that an output of this encoder sees:", positions_seen(conv_stack(3, [1] * 13)))
assert positions_seen(conv_stack(3, [1] * 13)) == 27

# %% [markdown]
# **A constant number of operations is not a constant amount of work.** A layer of self-attention relates all pairs, and
# pays for all $n^2$ of them. Convolutions pay for $kn$.
#
# **More difficult, for whom?** For the claim that distance makes learning difficult the paper cites a study of gradients in
# recurrent networks (Hochreiter and others, 2001). [Section 1](01_introduction.py) measures those. A path through a few
# convolutions with residual connections may well be gentler, and the paper does not compare the two.
#
# **"First" has a narrow scope.** Parikh and others (2016) had compared two sentences with attention and without any
# recurrence. Theirs was a classifier; it transduced nothing.
#
# ## What we now know
#
# - Additive attention and Equation (1) are both weighted means of a set: the weights sum to 1 and follow the order of the
#   annotations, the context does not depend on it.
# - Additive scores are bounded by $\lVert v \rVert_1$; dot products are not. Without its tanh, additive attention would
#   ignore the decoder.
# - In a Transformer nothing but attention relates positions.
# - At a distance of 1000, with $k = 3$, ConvS2S needs 500 layers, ByteNet 9 (as published, 83), self-attention 1.
# - One head lets one average through: four numbers of $4m$. With $h$ heads it is $h$ times as many, up to all of them.
#
# ## Exercises
#
# 1. **Predict, then run.** Gaps grow threefold from layer to layer (1, 3, 9) instead of twofold, with $k = 3$. How many layers
#    for a distance of 1000? And fourfold? Then look at the gradients. Check: `check("2-dilated", answer)`, for threefold.
# 2. **Predict, then run.** `relates_positions` changes position 0. In the decoder's self-attention, which outputs change if the
#    last position is changed instead?
# 3. **Minutes.** As the query grows, additive weights approach a limit. Which?
# 4. **Minutes.** Let the keys of Equation (1) be the values, without projections, as the annotations are. Can a word then be
#    *found* by one property and *return* another?
# 5. **An hour.** Add noise to the output of `attention_over`, and recover the contents by least squares. How do the errors grow
#    with the number of heads? Look at the singular values of the derivative.
# 6. **A day.** Write a ByteNet encoder with the interface of `Encoder`, train it in place of ours on the [embedded
#    corpus](A1_the_embedded_corpus.py), and compare the two on its `long` split.

# %% [markdown]
# Solution to exercise 1: threefold gaps fit exactly, $3^L$ positions with $L$ layers, so seven. Fourfold gaps span more but
# leave holes, positions that no path leads to.

# %% tags=["hide-cell"]
from transformer.exercises import check

for factor in (2, 3, 4):
    gaps = [factor**i for i in range(5)]
    span, seen = 1 + 2 * sum(gaps), positions_seen(conv_stack(3, gaps))
    print(f"gaps {gaps}: spans {span} positions and sees {seen}")
    assert seen == min(span, 3**5)
print(check("2-dilated", layers_needed(1000, 3, lambda layer: 3**layer)))
assert check("2-dilated", layers_needed(1000, 3, lambda layer: 3**layer))

# %% [markdown]
# Solution to exercise 3: each component of $W s$ wins over $U h$, and the tanh takes its sign. The score is
# $v \cdot \mathrm{sign}(W s)$, the same for all annotations: the weights become *equal*. A long query sees nothing.

# %% tags=["hide-cell"]
weights = additive_attention(1e4 * state, annotations, w, u, v)[1]
print([round(weight, 3) for weight in weights.tolist()])
assert torch.allclose(weights, torch.full((5,), 1 / 5), atol=1e-4)
