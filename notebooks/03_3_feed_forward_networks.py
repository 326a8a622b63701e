# %% [markdown]
# # 3.3 Position-wise Feed-Forward Networks
#
# After attention has mixed the positions, a small network with one hidden layer transforms each position by itself. It is the plainest part of
# the model and, in the encoder, holds two thirds of a layer's parameters.

# %%
#| default_exp feed_forward

# %%
import transformer

transformer.check_version("0.1")

import math

import altair as alt
import torch
from torch.utils.flop_counter import FlopCounterMode

# %% [markdown]
# ## Equation (2)
#
# > In addition to attention sub-layers, each of the layers in our encoder and decoder contains a fully connected feed-forward network, which is applied to each position separately and identically. This consists of two linear transformations with a ReLU activation in between.
# >
# > $$\mathrm{FFN}(x)=\max(0, xW_1 + b_1) W_2 + b_2$$
# >
# > — Section 3.3, Equation 2
#
# > The dimensionality of input and output is $d_{\text{model}}=512$, and the inner-layer has dimensionality $d_{ff}=2048$.
# >
# > — Section 3.3

# %%
#| export
from torch import Tensor, nn


# %%
#| export
class PositionwiseFeedForward(nn.Module):
    """FFN(x) = max(0, xW₁ + b₁)W₂ + b₂, applied to each position separately and identically.

    Args:
        d_model: Width of input and output.
        d_ff: Width of the inner layer.

    Source: §3.3, Eq. 2.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position.

        Args:
            x: Shape (…, d_model).

        Returns:
            Shape (…, d_model).

        Raises:
            TypeError: x is not of a floating-point type.
            ValueError: x is not d_model wide.
        """
        if not x.is_floating_point():
            raise TypeError(f"x is {x.dtype}; give vectors of a floating-point type, not token ids.")
        if x.size(-1) != self.w_1.in_features:
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.w_1.in_features}.")
        return self.w_2(self.w_1(x).relu())  # (…, d_model) → (…, d_ff) → (…, d_model)
# %% [markdown]
# ## See it
#
# A network with two inputs and three hidden units, small enough to follow by hand. The hidden units compute $x_1$, $x_2$ and $-x_1 - x_2$; the ReLU
# sets what is negative to 0; $W_2$ adds up what is left.

# %%
tiny = PositionwiseFeedForward(d_model=2, d_ff=3)
tiny.load_state_dict(
    {
        "w_1.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]),  # (d_ff, d_model): torch stores W₁ transposed
        "w_1.bias": torch.zeros(3),
        "w_2.weight": torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]),  # (d_model, d_ff)
        "w_2.bias": torch.tensor([0.5, 0.5]),
    }
)
x = torch.tensor([[1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]])  # (n, d_model): three positions
with torch.inference_mode():
    for position, inner, out in zip(x, tiny.w_1(x), tiny(x), strict=True):
        print(position.tolist(), "→", inner.tolist(), "→ ReLU →", inner.relu().tolist(), "→", out.tolist())
    assert tiny(x).tolist() == [[1.5, 2.5], [3.5, 2.5], [6.5, 6.5]]

# %% [markdown]
# ## Check it: separately and identically
#
# *Separately*: a change at one position leaves every other output as it was. *Identically*: whoever permutes the positions permutes the outputs, and does nothing else.
# The network cannot know where a position stands. What moves information between positions is attention alone.

# %%
torch.manual_seed(0)
ffn = PositionwiseFeedForward(d_model=512, d_ff=2048)
x = torch.randn(2, 10, 512)  # (B, n, d_model)
with torch.inference_mode():
    out = ffn(x)  # (B, n, d_model)

    changed = x.clone()
    changed[:, 4] += 1
    differs = (ffn(changed) != out).any(-1).any(0)  # (n,)
    assert differs.nonzero().flatten().tolist() == [4]

    order = torch.randperm(10)
    assert torch.allclose(ffn(x[:, order]), out[:, order], atol=1e-6)
    one_by_one = torch.stack([ffn(x[:, i]) for i in range(10)], dim=1)
    assert torch.allclose(one_by_one, out, atol=1e-6)
print("changed position 4; outputs that differ:", differs.nonzero().flatten().tolist())

# %% [markdown]
# ## Check it: two convolutions with kernel size 1
#
# > While the linear transformations are the same across different positions, they use different parameters from layer to layer. Another way of describing this is as two convolutions with kernel size 1.
# >
# > — Section 3.3
#
# A convolution slides one small matrix along the sequence. With kernel size 1 it sees one position at a time, and what is left of it is the linear transformation.
# torch's convolution wants the channels before the positions; the weights are the same, with one axis of length 1 added.

# %%
conv_1, conv_2 = nn.Conv1d(512, 2048, kernel_size=1), nn.Conv1d(2048, 512, kernel_size=1)
for conv, linear in ((conv_1, ffn.w_1), (conv_2, ffn.w_2)):
    conv.load_state_dict({"weight": linear.weight.unsqueeze(-1), "bias": linear.bias})
with torch.inference_mode():
    convolved = conv_2(conv_1(x.mT).relu()).mT  # (B, n, 512) → (B, 512, n) → (B, 2048, n) → (B, 512, n) → (B, n, 512)
assert torch.allclose(convolved, out, atol=1e-6)
print("linear layers and convolutions: the same output for", tuple(x.shape))

# %% [markdown]
# ## What the ReLU does
#
# Without it, the two transformations would be one: $(xW_1 + b_1)W_2 + b_2 = x\,(W_1W_2) + (b_1W_2 + b_2)$. The 2048 hidden units would buy nothing.

# %%
with torch.inference_mode():
    linear = ffn.w_2(ffn.w_1(x))
    merged_weight = ffn.w_2.weight @ ffn.w_1.weight  # (512, 512)
    merged_bias = ffn.w_2.weight @ ffn.w_1.bias + ffn.w_2.bias
    assert torch.allclose(linear, x @ merged_weight.T + merged_bias, atol=1e-5)
    assert (linear - out).abs().max() > 0.1
print("two matrices without ReLU hold", ffn.w_1.weight.numel() + ffn.w_2.weight.numel(), "weights; one does the same with", merged_weight.numel())

# %% [markdown]
# With it, each hidden unit is a hinge: zero on one side of a plane, linear on the other. The network is a sum of hinges, so its graph is made of straight pieces. With one input
# and weights chosen by hand, the units can put a hinge wherever the slope has to change. `hinges` builds the network that meets a given function at evenly spaced points and is straight in between.

# %%
def hinges(function, start: float, stop: float, n_units: int) -> PositionwiseFeedForward:
    """The network with one input and n_units hinges that meets the function at n_units + 1 points."""
    knots = torch.linspace(start, stop, n_units + 1)
    values = function(knots)
    slopes = values.diff() / knots.diff()  # one for each piece
    network = PositionwiseFeedForward(d_model=1, d_ff=n_units)
    network.load_state_dict(
        {
            "w_1.weight": torch.ones(n_units, 1),
            "w_1.bias": -knots[:-1],  # unit j is max(0, x − knot j)
            "w_2.weight": slopes.diff(prepend=torch.zeros(1)).unsqueeze(0),  # by how much the slope changes there
            "w_2.bias": values[:1],
        }
    )
    return network


# %%
line = torch.linspace(0, 2 * math.pi, 97).unsqueeze(-1)  # (97, 1)
drawn, errors = {}, {}
for n_units in (1, 2, 4, 8, 16, 32):
    with torch.inference_mode():
        drawn[n_units] = hinges(torch.sin, 0, 2 * math.pi, n_units)(line).flatten()
    errors[n_units] = (drawn[n_units] - line.flatten().sin()).abs().max().item()
    assert errors[n_units] < (2 * math.pi / n_units) ** 2 / 8 + 1e-5  # the bound of linear interpolation
    print(f"{n_units:2} hidden units: largest error {errors[n_units]:.3f}")

# %%
picked = alt.param("units", value=4, bind=alt.binding_select(options=list(drawn), name="hidden units "))
network = [
    {"x": round(at, 3), "y": round(value, 3), "units": n_units, "curve": "network"}
    for n_units, values in drawn.items()
    for at, value in zip(line.flatten().tolist(), values.tolist(), strict=True)
]
sine = [{"x": round(at, 3), "y": round(math.sin(at), 3), "curve": "sine"} for at in line.flatten().tolist()]
chart = (
    alt.Chart(alt.Data(values=network + sine))
    .mark_line(interpolate="linear")
    .encode(
        x=alt.X("x:Q", title="x", scale=alt.Scale(domain=[0, 6.3], nice=False), axis=alt.Axis(grid=False)),
        y=alt.Y("y:Q", title="FFN(x)", scale=alt.Scale(domain=[-1.1, 1.1], nice=False), axis=alt.Axis(values=[-1, 0, 1], format="d")),
        color=alt.Color(
            "curve:N",
            title=None,
            scale=alt.Scale(domain=["network", "sine"], range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300),
        ),
        strokeDash=alt.StrokeDash("curve:N", title=None, scale=alt.Scale(domain=["network", "sine"], range=[[1, 0], [3, 4]])),
        tooltip=["curve:N", "x:Q", "y:Q"],
    )
    .add_params(picked)
    .transform_filter("datum.curve == 'sine' || datum.units == units")
    .properties(width=460, height=180, title="A feed-forward network is a sum of hinges")
)
chart

# %% [markdown]
# Choose the number of hidden units. One unit gives a straight line; each further unit adds a bend. With one and two units the network meets the sine only where that is 0, so it draws the constant 0. From sixteen units on, the solid line of straight pieces all but covers the dashed sine. With 512 inputs the bends lie on
# planes and not at points, and training places them.
#
# ### Half of the units are off
#
# On random input, before any training, a hidden unit is as likely to be negative as positive. So each position uses about half of the 2048 units, and each position a half of its own: two positions share
# about a quarter. No unit is idle at all positions.

# %%
torch.manual_seed(0)
x = torch.randn(1000, 512)  # (positions, d_model), each like a fresh layer norm's output
with torch.inference_mode():
    off = ffn.w_1(x) <= 0  # (positions, d_ff)
inactive = off.float().mean().item()
both_on = (~off[:-1] & ~off[1:]).float().mean().item()
idle = off.all(0).sum().item()
print(f"inactive: {inactive:.0%};  active at two positions at once: {both_on:.0%};  units idle everywhere: {idle}")
assert abs(inactive - 0.5) < 0.01 and abs(both_on - 0.25) < 0.01 and idle == 0

# %% [markdown]
# ## Where the parameters are
#
# The feed-forward network has $2\,d_{\text{model}}\,d_{ff} + d_{ff} + d_{\text{model}}$ parameters. An attention sub-layer has four matrices of $d_{\text{model}} \times d_{\text{model}}$ and their biases.
# An encoder layer has one of each. A decoder layer has two attention sub-layers.

# %%
def attention() -> transformer.MultiHeadAttention:
    return transformer.MultiHeadAttention(d_model=512, n_heads=8)


encoder_layer = transformer.EncoderLayer(attention(), PositionwiseFeedForward(512, 2048), d_model=512)
decoder_layer = transformer.DecoderLayer(attention(), attention(), PositionwiseFeedForward(512, 2048), d_model=512)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


parts = []
for name, layer in (("encoder layer", encoder_layer), ("decoder layer", decoder_layer)):
    for part, module in layer.named_children():
        what = part.replace("_", " ") if not part.endswith("block") else "layer norm"
        parts.append({"layer": name, "part": what, "parameters": count(module)})
    for row in parts:
        if row["layer"] == name:
            print(f"{name}: {row['part']:16} {row['parameters']:9,}")
    print(f"{name}: {'all':16} {count(layer):9,}\n")

# %%
total = {
    (layer, kind): sum(row["parameters"] for row in parts if row["layer"] == layer and kind in row["part"])
    for layer in ("encoder layer", "decoder layer")
    for kind in ("attention", "feed forward")
}
for (layer, kind), parameters in total.items():
    print(f"{layer}: {kind:12} {parameters / 1e6:.2f}M")
assert total["encoder layer", "feed forward"] == total["decoder layer", "feed forward"] == 2 * 512 * 2048 + 2048 + 512
assert total["encoder layer", "attention"] == 4 * (512 * 512 + 512)
assert total["decoder layer", "attention"] == 2 * total["encoder layer", "attention"]

# %%
kinds = ["self attention", "memory attention", "feed forward", "layer norm"]
chart = (
    alt.Chart(alt.Data(values=parts))
    .mark_bar(stroke="white", strokeWidth=1)
    .encode(
        x=alt.X("sum(parameters):Q", title="parameters", axis=alt.Axis(format="~s", tickCount=5)),
        y=alt.Y("layer:N", title=None, sort=["encoder layer", "decoder layer"]),
        color=alt.Color(
            "part:N",
            title=None,
            sort=kinds,
            scale=alt.Scale(domain=kinds, range=["#0072B2", "#56B4E9", "#E69F00", "#009E73"]),
            legend=alt.Legend(orient="top", columns=2),
        ),
        order=alt.Order("rank:Q"),
        tooltip=["layer:N", "part:N", alt.Tooltip("sum(parameters):Q", format=",")],
    )
    .transform_calculate(rank=f"indexof({kinds}, datum.part)")
    .properties(width=420, height=110, title="Feed-forward: two thirds of an encoder layer, half of a decoder layer")
)
chart

# %% [markdown]
# The orange part is the feed-forward network: 2.10M in both layers. Beside it stand 1.05M for one attention sub-layer in the encoder, and 2.10M for two in the decoder. "Most parameters are in the feed-forward networks" is true of
# the encoder and of decoder-only models, and not of the paper's decoder. The layer norms are too few to see.

# %% [markdown]
# ## Multiply–adds
#
# Each weight is used once for each position. A position costs $2\,d_{\text{model}}\,d_{ff}$ multiply–adds in the feed-forward network and $4\,d_{\text{model}}^2$ in the four projections of self-attention, whatever the sentence's length.
# Comparing it with $n$ keys and mixing $n$ values costs $2\,n\,d_{\text{model}}$ more. torch's counter, which counts a multiply–add as two operations, agrees.

# %%
def multiply_adds(n: int, d_model: int = 512) -> dict[str, int]:
    """Multiply–adds for one position of an encoder layer among n positions; d_ff is 4 d_model."""
    return {"feed forward": 2 * d_model * 4 * d_model, "projections": 4 * d_model**2, "scores and mixing": 2 * n * d_model}


def counted(module: nn.Module, *inputs: Tensor) -> float:
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() / 2


n = 100
x = torch.randn(1, n, 512)
self_attention = attention()
self_attention.on_weights = lambda weights: None  # by Equation (1), whose matrix products the counter sees
cost = multiply_adds(n)
assert counted(ffn, x) == n * cost["feed forward"]
assert counted(self_attention, x, x, x) == n * (cost["projections"] + cost["scores and mixing"])
for n in (10, 100, 1000):
    cost = multiply_adds(n)
    print(f"n = {n:4}:", ", ".join(f"{name} {value:9,} ({value / sum(cost.values()):2.0%})" for name, value in cost.items()))
at_equal = multiply_adds(1024)
assert at_equal["feed forward"] == at_equal["projections"] + at_equal["scores and mixing"]

# %%
width = alt.param("width", value=512, bind=alt.binding_select(options=[256, 512, 1024], name="d_model "))
work = ["feed forward", "projections", "scores and mixing"]
rows = [
    {"n": n, "d": d_model, "part": part, "cost": cost}
    for d_model in (256, 512, 1024)
    for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    for part, cost in multiply_adds(n, d_model).items()
]
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_area(stroke="white", strokeWidth=1)
    .encode(
        x=alt.X("n:Q", title="positions n", scale=alt.Scale(type="log", base=2, nice=False), axis=alt.Axis(values=[8, 32, 128, 512, 2048], grid=False)),
        y=alt.Y("cost:Q", stack="normalize", title="share of multiply–adds", axis=alt.Axis(format="%", tickCount=5)),
        color=alt.Color(
            "part:N",
            title=None,
            sort=work,
            scale=alt.Scale(domain=work, range=["#E69F00", "#0072B2", "#CC79A7"]),
            legend=alt.Legend(orient="top"),
        ),
        order=alt.Order("rank:Q"),
        tooltip=["part:N", "n:Q", alt.Tooltip("cost:Q", format=",", title="multiply–adds a position")],
    )
    .transform_filter("datum.d == width")
    .transform_calculate(rank=f"indexof({work}, datum.part)")
    .add_params(width)
    .properties(width=440, height=200, title="In a sentence, the feed-forward network does most of the work")
)
chart

# %% [markdown]
# At the length of a sentence, a few dozen positions, the feed-forward network does nearly two thirds of an encoder layer's work. Only the scores grow with $n$: self-attention as a whole catches up at $n = 2\,d_{\text{model}}$, which is 1024 positions at width 512. A wider model moves that
# point to the right. [Section 3.2.2](03_2_2_multi_head_attention.py) counts the attention side head by head.

# %% [markdown]
# ## Unsaid by the paper
#
# - **Why four times.** The paper gives no reason for $d_{ff} = 4\,d_{\text{model}}$. Table 3, row (C), varies it: 25.4 BLEU on the development set with $d_{ff} = 1024$, 25.8 with 2048, 26.2 with 4096.
# - **Dropout inside.** The paper's dropout acts on the sub-layer's output ([Section 3.1](03_1_encoder_and_decoder_stacks.py)). The authors' code had none after the ReLU at first; from its second base configuration on (October 2017) it had 0.1 there.
# - **Initialization.** None is stated. This class keeps torch's; the full model draws all matrices anew.
# - **What it is for.** An unpublished passage in the paper's source calls the two layers "attention over parameters" and tries to replace them by attention over learned keys and values. The published paper keeps silent.
# - **Since then.** The ReLU has mostly given way to smoother functions and to gated ones (Shazeer 2020), which spend a third matrix on a product of two transformations.
#
# ## What we now know
#
# - The network treats each position separately and identically: it equals two convolutions with kernel size 1, and permuting positions permutes outputs.
# - Without the ReLU it would be a single matrix. With it, it is a sum of hinges; on random input half of them are off.
# - It has 2.10M parameters, against 1.05M of attention in an encoder layer and 2.10M in a decoder layer.
# - At sentence length it does most of a layer's multiply–adds; attention catches up at $n = 2\,d_{\text{model}}$.
#
# ## Exercises
#
# 1. **Predict, then run.** Which share of the base model's 63,082,496 parameters do its twelve feed-forward networks hold? Check: `check("3.3-share", answer)`.
# 2. **Predict, then run.** Replace the ReLU in `hinges` by the identity. What does the network draw, for any number of units?
# 3. **Minutes.** Multiply column $j$ of $W_1$ and entry $j$ of $b_1$ by 3, and divide row $j$ of $W_2$ by 3. What changes? Which factors are allowed?
# 4. **Minutes.** For which $d_{ff}$ does a decoder layer have two thirds of its parameters in the feed-forward network, as the encoder layer has?
# 5. **An hour.** Write the network as attention: the rows of $W_2$ are values, the columns of $W_1$ keys. What stands in the place of the softmax, and what do the biases do?

# %% tags=["hide-cell"]
# Exercise 1: twelve networks, six in each stack.
from transformer.exercises import check

base = transformer.Transformer(transformer.TransformerConfig.base())
networks = [module for module in base.modules() if isinstance(module, transformer.PositionwiseFeedForward)]
share = sum(map(count, networks)) / count(base)
print(f"{len(networks)} networks, {sum(map(count, networks)):,} of {count(base):,} parameters: {share:.0%}")
print(check("3.3-share", share))
assert len(networks) == 12 and count(base) == 63_082_496 and check("3.3-share", share)

# %% [markdown]
# ## The notebook and the module agree
#
# `transformer.PositionwiseFeedForward` is this class, exported. With copied weights it gives the same result.

# %%
imported = transformer.PositionwiseFeedForward(512, 2048)
imported.load_state_dict(ffn.state_dict())
with torch.inference_mode():
    assert torch.equal(imported(x), ffn(x))
print("the same output, bit for bit")
