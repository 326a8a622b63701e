# %% [markdown]
# # 11.1b The Gated Feed-Forward Network
#
# The feed-forward network of 2017 has one hidden layer and a ReLU. The gated network (Shazeer [2020](https://arxiv.org/abs/2002.05202), one of the paper's authors) has two linear maps to the hidden layer and multiplies them, unit by unit: one of them, through a smooth cousin of the ReLU,
# opens and closes the other. With two thirds of the width it has about as many parameters.

# %%
#| default_exp modern.gated_feed_forward

# %%
import math

import altair as alt
import torch

import transformer
from transformer import modern

transformer.check_version("0.1")

# %% [markdown]
# > $$\mathrm{FFN}(x)=\max(0, xW_1 + b_1) W_2 + b_2$$
# >
# > — Section 3.3, Equation 2
#
# ## The gate
#
# $$\mathrm{FFN}_{\mathrm{SwiGLU}}(x) = \left(\mathrm{Swish}(xW) \odot xV\right) W_2 \qquad \mathrm{Swish}(z) = z \cdot \frac{1}{1 + e^{-z}}$$
#
# There are no biases. With the logistic function in place of Swish it is the gated linear unit, GLU (Dauphin et al. [2017](https://arxiv.org/abs/1612.08083)), from which the name comes; with GELU it is GeGLU, Gemma's. PaLM and Llama have SwiGLU. torch calls Swish `silu`.

# %%
#| export
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn


# %%
#| export
class GatedFeedForward(nn.Module):
    """FFN_SwiGLU(x) = (Swish(xW) ⊙ xV)W₂, with Swish(z) = z · sigmoid(z); no biases.

    Args:
        d_model: Width of input and output.
        d_ff: Width of the inner layer.

    Raises:
        ValueError: d_ff is less than 1.

    Source: Shazeer (2020), arXiv:2002.05202, Eq. 6.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        if d_ff < 1:
            raise ValueError(f"d_ff is {d_ff}; the inner layer needs at least one unit.")
        self.w = nn.Linear(d_model, d_ff, bias=False)
        self.v = nn.Linear(d_model, d_ff, bias=False)
        self.w_2 = nn.Linear(d_ff, d_model, bias=False)

    @classmethod
    def as_large_as(cls, d_model: int, d_ff: int) -> Self:
        """Make one with about as many parameters as a network of d_ff units without gate: two thirds of the units.

        Args:
            d_model: Width of input and output.
            d_ff: Width of the inner layer of the network without gate.

        Returns:
            The network; its inner width is 2 d_ff / 3, rounded down.

        Source: Shazeer (2020), arXiv:2002.05202, Section 2.
        """
        return cls(d_model, 2 * d_ff // 3)

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
        if x.size(-1) != self.w.in_features:
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.w.in_features}.")
        return self.w_2(F.silu(self.w(x)) * self.v(x))  # (…, d_model) → (…, d_ff) → (…, d_model)

# %% [markdown]
# ## See it
#
# One input, one hidden unit, all weights 1: the network is $z^2 / (1 + e^{-z})$.

# %%
one = GatedFeedForward(1, 1)
with torch.inference_mode():
    for matrix in (one.w, one.v, one.w_2):
        matrix.weight.fill_(1.0)
    for z in (-6.0, -1.0, 0.0, 1.0, 6.0):
        print(f"z = {z:4.1f}   Swish {z / (1 + math.exp(-z)):6.3f}   Swish(z) · z = {one(torch.tensor([z])).item():7.3f}   ReLU {max(0.0, z):4.1f}")
        assert abs(one(torch.tensor([z])).item() - z * z / (1 + math.exp(-z))) < 1e-5

# %% tags=["hide-input"]
line = [round(-6 + 0.1 * i, 1) for i in range(121)]
shapes = {"ReLU": lambda z: max(0.0, z), "Swish": lambda z: z / (1 + math.exp(-z)), "Swish(z) · z": lambda z: z * z / (1 + math.exp(-z))}
domain = list(shapes)
chart = (
    alt.Chart(alt.Data(values=[{"z": z, "unit": name, "y": round(f(z), 3)} for name, f in shapes.items() for z in line]))
    .mark_line(clip=True)
    .encode(
        x=alt.X("z:Q", axis=alt.Axis(grid=False)),
        y=alt.Y("y:Q", title="output of the unit", scale=alt.Scale(domain=[-1, 6])),
        color=alt.Color(
            "unit:N", title=None, scale=alt.Scale(domain=domain, range=["#D55E00", "#009E73", "#0072B2"]),
            legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300, symbolStrokeWidth=2),
        ),
        strokeDash=alt.StrokeDash("unit:N", title=None, scale=alt.Scale(domain=domain, range=[[1, 0], [2, 3], [6, 3]])),
        tooltip=["unit:N", "z:Q", "y:Q"],
    )
    .properties(width=400, height=180, title="Swish is a ReLU without the corner; the product grows like a square")
)
chart

# %% [markdown]
# Swish (dotted) follows the ReLU (solid), dips below zero once and has no corner. The gated unit (dashed, here with both maps equal) multiplies it by its input once more: for large inputs it is a square. So where its gate is open, a gated unit is nearly a product of two linear functions of $x$. A ReLU network is linear piece by piece and can only approach one.
#
# ## Check it
#
# The same from the formula, number by number and without torch's matrices. Then the property that [Section 3.3](03_3_feed_forward_networks.py) tests: each position is transformed separately and identically.

# %%
torch.manual_seed(0)
network = GatedFeedForward(d_model=6, d_ff=4).double()
x = torch.randn(2, 5, 6, dtype=torch.float64)  # (B, n, d_model)
w, v, w_2 = (matrix.weight.T.tolist() for matrix in (network.w, network.v, network.w_2))  # (d_model, d_ff) twice, (d_ff, d_model)


def by_hand(vector):
    def times(vector, matrix):
        return [sum(a * row[j] for a, row in zip(vector, matrix, strict=True)) for j in range(len(matrix[0]))]

    gate, value = times(vector, w), times(vector, v)
    return times([g / (1 + math.exp(-g)) * u for g, u in zip(gate, value, strict=True)], w_2)


with torch.inference_mode():
    out = network(x)
    expected = torch.tensor([[by_hand(vector) for vector in sentence] for sentence in x.tolist()], dtype=torch.float64)
    assert torch.allclose(out, expected, atol=1e-12)
    changed = x.clone()
    changed[:, 3] += 1
    assert (network(changed) != out).any(-1).any(0).nonzero().flatten().tolist() == [3]
print("equal to the formula at all", out.numel(), "outputs; a changed position changes itself alone")

# %% [markdown]
# A product of linear functions can be computed exactly. Two gated units are enough for $x_1 x_2$, since $\mathrm{Swish}(z) - \mathrm{Swish}(-z) = z$:

# %%
product = GatedFeedForward(d_model=2, d_ff=2)
product.load_state_dict(
    {
        "w.weight": torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),  # z = x₁ and −x₁
        "v.weight": torch.tensor([[0.0, 1.0], [0.0, 1.0]]),  # both are multiplied by x₂
        "w_2.weight": torch.tensor([[1.0, -1.0], [0.0, 0.0]]),  # their difference is the first output
    }
)
pairs = torch.tensor([[2.0, 3.0], [-4.0, 0.5], [-1.5, -6.0], [0.0, 7.0]])
with torch.inference_mode():
    for (a, b), (result, _) in zip(pairs.tolist(), product(pairs).tolist(), strict=True):
        print(f"{a:5} · {b:4} = {result:5.2f}")
    assert torch.allclose(product(pairs)[:, 0], pairs.prod(-1), atol=1e-5)

# %% [markdown]
# ## Two thirds of the width
#
# Three matrices in place of two. To compare at equal parameters, Shazeer takes two thirds of the width: $3 \cdot d_{\text{model}} \cdot \tfrac23 d_{ff} = 2\, d_{\text{model}}\, d_{ff}$. How near is that? Equation (2) has $d_{ff} + d_{\text{model}}$ biases more, and two thirds of 2048 is no whole number.

# %%
def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


for d_model, d_ff in ((64, 256), (512, 2048), (1024, 4096)):
    plain, gated = transformer.PositionwiseFeedForward(d_model, d_ff), GatedFeedForward.as_large_as(d_model, d_ff)
    width, less = gated.w.out_features, count(plain) - count(gated)
    print(f"d_model = {d_model:4}, d_ff = {d_ff}: {count(plain):9,} parameters; gated with {width}: {count(gated):9,}, fewer by {less:,} ({less / count(plain):.2%})")
    assert less == d_ff + d_model + (2 * d_ff % 3) * d_model  # the biases, and the part of a unit that is rounded off
    assert less / count(plain) < 1 / d_model
assert math.ceil(2 * 4 * 4096 / 3 / 256) * 256 == 11_008  # Llama's rounding

# %% [markdown]
# Fewer by the biases and by what is rounded off: 1.4 % in our small model, and the wider, the less. In practice the width is then rounded to a multiple that the hardware likes. Llama takes two thirds of $4\,d_{\text{model}}$ and rounds up to a multiple of 256, which makes the 11,008 of its smallest model from $d_{\text{model}} = 4096$.
#
# ## Before and after, recorded
#
# The small model of [11.1](11_1_the_block_since_2017.py) with gated networks of two thirds of the width in all layers, everything else equal, three seeds.

# %%
comparison = modern.read_comparison()
chart = None
if comparison:
    print(comparison.made)
    print(", ".join(f"{row}: {comparison.of(row)[0]['parameters']:,} parameters" for row in ("base", "SwiGLU")))
    difference = comparison.against("SwiGLU")
    print(f"final loss against base, seed by seed: {', '.join(f'{d:+.2f}' for d in difference.values)}; mean {difference}")
    assert difference.verdict == "better"
    halfway = {row: [run["losses"][len(run["losses"]) // 2 :] for run in comparison.of(row)] for row in ("base", "SwiGLU")}
    assert all(max(gated) < min(plain) for gated, plain in zip(zip(*halfway["SwiGLU"]), zip(*halfway["base"]), strict=True))
    chart = comparison.chart("base", "SwiGLU", title="With gated networks the small model learns faster")
chart

# %% [markdown]
# Solid lines are base with Equation (2), dashed lines the gated network, one line a seed. From the middle on the dashed lines run below the solid ones, with slightly fewer parameters. The runs stop early, so this is about how fast the model learns; and [on top of pre-norm](11_1_the_block_since_2017.py), together with other parts (one of them costs), no such gain was seen.
#
# ## Unsaid by the paper
#
# - **Why it helps** is not known. Shazeer tried the variants in T5's base model and found the gated ones better at equal parameters and operations. He offers no explanation, and says so in his last sentence.
# - **No zeros.** On random input a ReLU sets about half of the hidden units to exactly zero ([Section 3.3](03_3_feed_forward_networks.py)). Swish is zero at one point alone, so hidden units are never idle, and none can be skipped.
# - **Names.** In the code of Llama, $W$, $V$ and $W_2$ are `w1`, `w3` and `w2`; in Hugging Face's, `gate_proj`, `up_proj` and `down_proj`. Which one is gated matters, since Swish is on one side alone.
#
# ## What we now know
#
# - The module equals the formula, computed by hand, and transforms each position by itself.
# - Two gated units multiply two inputs exactly.
# - At two thirds of the width, rounded down, it has fewer parameters than Equation (2) by the biases and by what is rounded off, and by nothing else. At base's size, 1367 units in place of 1365 make the two counts equal.
# - Recorded, small, three seeds: the gated model learns faster than base at nearly equal parameters.
#
# ## Exercises
#
# 1. **Predict, then run.** Double the input of a fresh gated network. Is the output doubled, less than that, or more? And that of a ReLU network without biases?
# 2. **Minutes.** A network with $d_{\text{model}} = 512$, $d_{ff} = 2048$ and biases becomes a gated one without biases. Which inner width comes nearest to the old number of parameters? Check: `check("11-gated-width", answer)`.
# 3. **An hour.** Write GeGLU as a subclass that replaces one line, and pass it to `build_transformer`. Does the whole model still decode with a cache as it does without?

# %% [markdown]
# Solution to exercise 1: a ReLU network without biases doubles exactly. The gated one more than doubles. It would quadruple exactly if the gate were $z$ itself; Swish is near $z/2$ for small $z$ and near the ReLU for large, and both of these quadruple, too; in between it is a little more.

# %% tags=["hide-cell"]
torch.manual_seed(0)
gated, relu = GatedFeedForward(64, 256), transformer.PositionwiseFeedForward(64, 256)
x = torch.randn(100, 64)
with torch.inference_mode():
    for bias in (relu.w_1.bias, relu.w_2.bias):
        bias.zero_()
    for network in (gated, relu):
        factor = (network(2 * x).norm() / network(x).norm()).item()
        print(f"{type(network).__name__}: {factor:.1f} times")
        assert factor > 3 if network is gated else abs(factor - 2) < 1e-3

# %% [markdown]
# Solution to exercise 2: $3 \cdot 512 \cdot w = 2 \cdot 512 \cdot 2048 + 2048 + 512$ has a whole solution. The biases, and the part of a unit that was rounded off, pay for exactly two more units than two thirds, rounded down.

# %% tags=["hide-cell"]
from transformer.exercises import check

width = round(count(transformer.PositionwiseFeedForward(512, 2048)) / (3 * 512))
print(width, check("11-gated-width", width))
assert check("11-gated-width", width) and not check("11-gated-width", 2 * 2048 // 3)
assert count(GatedFeedForward(512, width)) == count(transformer.PositionwiseFeedForward(512, 2048))

# %% [markdown]
# Solution to exercise 3:


# %% tags=["hide-cell"]
class GeGLU(GatedFeedForward):
    def forward(self, x):
        return self.w_2(F.gelu(self.w(x)) * self.v(x))  # (…, d_model)


torch.manual_seed(0)
model = modern.build_transformer(transformer.TransformerConfig.tiny(50), feed_forward=GeGLU.as_large_as).eval()
src, tgt = torch.randint(3, 50, (2, 6)), torch.randint(3, 50, (2, 5))  # (B, n), (B, m)
with torch.inference_mode():
    cache = model.new_cache(model.encode(src), None, max_new_tokens=5)
    hidden = torch.cat([model.decode(tgt[:, i : i + 1], cache=cache) for i in range(5)], dim=1)
    assert torch.allclose(model.output_projection(hidden), model(src, tgt), atol=1e-4)
print(sum(isinstance(module, GeGLU) for module in model.modules()), "networks replaced; the cache gives the same logits")

# %% [markdown]
# ## The notebook and the module agree

# %%
ours, theirs = GatedFeedForward.as_large_as(8, 32), transformer.modern.GatedFeedForward.as_large_as(8, 32)
assert type(ours) is not type(theirs)
theirs.load_state_dict(ours.state_dict())
x = torch.randn(2, 3, 8)
with torch.inference_mode():
    assert torch.equal(ours(x), theirs(x))
print("equal outputs from", type(ours).__module__, "and", type(theirs).__module__)
