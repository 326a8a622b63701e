# %% [markdown]
# # 11.1a Root Mean Square Normalization
#
# Layer normalization subtracts the mean of a vector and divides by its spread. RMSNorm (Zhang and Sennrich [2019](https://arxiv.org/abs/1910.07467)) leaves out the mean and the bias, and divides by the root of the mean square. What it keeps is one
# direction of many, which LayerNorm deletes; what is gained is a simpler function, which T5, Llama and Gemma use.

# %%
#| default_exp modern.rms_norm

# %%
import statistics
from functools import partial


import transformer
from transformer import modern

transformer.check_version("0.1")

# %% [markdown]
# > We employ a residual connection around each of the two sub-layers, followed by layer normalization.
# >
# > — Section 3.1
#
# ## The two formulas
#
# For a vector $x$ of $d$ components with gain $g$ and bias $b$:
#
# $$\mathrm{LayerNorm}(x) = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b \qquad\qquad \mathrm{RMSNorm}(x) = g \odot \frac{x}{\sqrt{\frac 1 d \sum_i x_i^2 + \epsilon}}$$
#
# Their $\epsilon$ is ours: the authors' formula has none. We take the $10^{-5}$ of [our LayerNorm](03_1_encoder_and_decoder_stacks.py), so that nothing else differs.

# %%
#| export
import torch
from torch import Tensor, nn


# %%
#| export
class RMSNorm(nn.Module):
    """Divide every vector by the root of its components' mean square; then scale each component by a learned gain.

    Args:
        d_model: Width of a vector.
        eps: Added to the mean square, so that the zero vector stays zero.

    Attributes:
        weight: The gain, shape (d_model,), one at first.

    Source: Zhang and Sennrich (2019), arXiv:1910.07467, Eq. 4; theirs has no eps, ours is the paper's LayerNorm's here.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every vector.

        Args:
            x: Shape (…, d_model), of a floating-point type.

        Returns:
            Shape (…, d_model), the dtype of x.

        Raises:
            TypeError: x is not of a floating-point type.
            ValueError: x is not d_model wide.
        """
        if not x.is_floating_point():
            raise TypeError(f"x is {x.dtype}; give vectors of a floating-point type, not token ids.")
        if x.size(-1) != self.weight.size(0):
            raise ValueError(f"x has shape {tuple(x.shape)}; its last size must be d_model={self.weight.size(0)}.")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # squares overflow in half precision
        mean_square = wide.square().mean(-1, keepdim=True)  # (…, 1)
        return (wide * (mean_square + self.eps).rsqrt()).to(x.dtype) * self.weight.to(x.dtype)

# %% [markdown]
# ## See it
#
# The root mean square of $(3, -4, 0, 0)$ is $\sqrt{25/4} = 2.5$.

# %%
x = torch.tensor([[3.0, -4.0, 0.0, 0.0], [30.0, -40.0, 0.0, 0.0], [103.0, 96.0, 100.0, 100.0]])  # (n, d_model)
with torch.inference_mode():
    for vector, ours, layer in zip(x, RMSNorm(4)(x), nn.LayerNorm(4)(x), strict=True):
        print(f"{vector.tolist()!s:30} RMSNorm {[round(v, 2) for v in ours.tolist()]}   LayerNorm {[round(v, 2) for v in layer.tolist()]}")
    assert torch.allclose(RMSNorm(4)(x)[0], torch.tensor([1.2, -1.6, 0.0, 0.0]), atol=1e-4)
    assert torch.allclose(RMSNorm(4)(x)[0], RMSNorm(4)(x)[1], atol=1e-4)

# %% [markdown]
# Both forget the length: the second vector is ten times the first, and comes out the same. LayerNorm forgets the mean as well. In the third vector, the first plus 100, it finds the first again; RMSNorm sees four numbers that are nearly equal.
#
# ## Check it: it is torch's, and it is LayerNorm without the mean
#
# Three assertions. With the same gain and $\epsilon$ it equals `torch.nn.RMSNorm`, gradients included. On vectors of mean zero it equals LayerNorm. And LayerNorm itself is two steps: take the mean away, then RMSNorm.

# %%
torch.manual_seed(0)
ours, theirs = RMSNorm(512), nn.RMSNorm(512, eps=1e-5)
nn.init.normal_(ours.weight)
theirs.load_state_dict(ours.state_dict())
x = torch.randn(2, 10, 512) + 0.5  # (B, n, d_model)
x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
weight = torch.randn(2, 10, 512)
(ours(x) * weight).sum().backward()
(theirs(y) * weight).sum().backward()
assert torch.allclose(ours(x), theirs(y), atol=1e-5)
assert torch.allclose(x.grad, y.grad, atol=1e-4) and torch.allclose(ours.weight.grad, theirs.weight.grad, atol=1e-3)

x = x.detach()
with torch.inference_mode():
    centred = x - x.mean(-1, keepdim=True)
    layer = nn.LayerNorm(512)
    assert torch.allclose(RMSNorm(512)(centred), layer(x), atol=1e-5)
    assert torch.allclose(RMSNorm(512)(centred), layer(centred), atol=1e-5)
    assert (RMSNorm(512)(x) - layer(x)).abs().max() > 0.1  # and with a mean they differ
assert torch.tensor(256.0).half().square().isinf() and torch.tensor(255.0).half().square().isfinite()  # so the module widens
print("equal to torch.nn.RMSNorm, and to LayerNorm where the mean is zero")

# %% [markdown]
# ## How much of a mean is there?
#
# LayerNorm removes one direction of $d$, the one in which all components are equal. In a random vector that direction holds one part in $d$ of the squared length. Does the trained model put more into it? The sums that the shipped translator normalizes can be watched.

# %%
translator = transformer.load_toy_translator()
watched = {"encoder": [], "decoder": []}  # (share of the mean, relative difference of the two normalizations) each


def watch(found, x):
    share = (x.mean(-1).square() / x.square().mean(-1)).mean().item()
    layer, rms = nn.LayerNorm(x.size(-1))(x), RMSNorm(x.size(-1))(x)  # both with gain 1
    found.append((share, ((rms - layer).norm() / layer.norm()).item()))


for stack, found in watched.items():
    for block in translator.model.get_submodule(stack).modules():
        if isinstance(block, transformer.ResidualBlock):
            block.norm.register_forward_pre_hook(lambda norm, given, found=found: watch(found, given[0]))
sources = ["the dog did not cross the street because it was too tired .", "the old house is small ."]
translations = translator.translate(sources)
for stack, found in watched.items():
    shares, differences = zip(*found, strict=True)
    print(f"{stack}: mean's share {statistics.mean(shares):.1%}, at most {max(shares):.0%}; RMSNorm differs by {statistics.mean(differences):.0%}, at most {max(differences):.0%}")
    assert statistics.mean(shares) < 0.05 and max(shares) < 0.2 and max(differences) < 0.5
print(f"a random vector of {translator.model.config.d_model} components: {1 / translator.model.config.d_model:.1%}")

# %% [markdown]
# On average the mean holds little, in the decoder no more than in random vectors. Single places have more, and there the two functions are not quite the same: they differ by about the root of the share. And this model was trained with LayerNorm, which deletes the mean, so it had no use
# for one. The authors of RMSNorm argue in the same sense: what counts is the rescaling and not the recentring.
#
# ## Before and after, recorded
#
# The small model of [11.1](11_1_the_block_since_2017.py) with RMSNorm in all places, everything else equal, three seeds.

# %%
comparison = modern.read_comparison()
chart = None
if comparison:
    print(comparison.made)
    difference = comparison.against("RMSNorm")
    print(f"final loss against base, seed by seed: {', '.join(f'{d:+.2f}' for d in difference.values)}; mean {difference}")
    assert difference.verdict == "no difference seen" and min(difference.values) > 0
    chart = comparison.chart("base", "RMSNorm", title="RMSNorm in place of LayerNorm: no difference seen")
chart

# %% [markdown]
# Solid lines are base with LayerNorm, dashed lines RMSNorm, one line a seed. At the end RMSNorm's loss is a little higher at every seed, but the seeds differ so much in how far that the interval contains 0. So equality is not shown: what is ruled out are differences outside of the interval, at this size and this early stop.
#
# ## Unsaid by the paper
#
# - **Why it is used.** One sum over the vector in place of two, no bias, and no subtraction. Its authors measured shorter running times. How much is left of that depends on the kernel: a fused one reads and writes the vector once for either.
# - **Half precision.** A square overflows float16 from 256 on. So the squares are taken in single precision, here and in torch.
# - **Where the gain is applied.** The code of Gemma scales by $1 + g$ with $g$ starting at zero, others by $g$ starting at one. Whoever loads their weights must know which.
# - **ε.** T5 has $10^{-6}$, Llama 2 $10^{-5}$. It matters for vectors that are nearly zero, and for no others.
#
# ## What we now know
#
# - RMSNorm equals `torch.nn.RMSNorm`, forwards and backwards, and LayerNorm on vectors of mean zero.
# - LayerNorm is RMSNorm after one subtraction.
# - In the sums that the shipped model normalizes, the mean holds a few percent of the squared length, so there is little to lose by keeping it.
# - Recorded, small, three seeds: no difference seen between the two.
#
# ## Exercises
#
# 1. **Predict, then run.** Add the same number to all components of $x$, once before LayerNorm and once before RMSNorm. Which output changes? And if you multiply all by the same positive number?
# 2. **Minutes.** A gain $g$ stands before a linear map $W$. Show that it can be moved into $W$, so that the normalization needs no parameter, and check it on numbers. Why does a model keep it all the same?
# 3. **An hour.** Derive the gradient of RMSNorm with respect to $x$ (take $g = 1$ and $\epsilon = 0$), compute it by your formula, and compare it with autograd. In which direction is it always zero?

# %% [markdown]
# Solution to exercise 1: an added number changes RMSNorm alone; a positive factor changes neither, but for $\epsilon$.

# %% tags=["hide-cell"]
x = torch.randn(4, 64)
with torch.inference_mode():
    for norm in (nn.LayerNorm(64), RMSNorm(64)):
        shift, scale = ((norm(changed) - norm(x)).abs().max().item() for changed in (x + 1, 7 * x))
        print(f"{type(norm).__name__:10} changes by {shift:.1f} after a shift, and by {scale:.1f} after a scaling")
        assert (shift > 0.1) == isinstance(norm, RMSNorm) and scale < 1e-3

# %% [markdown]
# Solution to exercise 2: $W(g \odot z) = (W \operatorname{diag}(g))\,z$, so the gain multiplies the columns of $W$. In pre-norm one normalization feeds several maps ($W^Q$, $W^K$, $W^V$), which share it; and Adam moves $g$ and $W$ at rates of their own. The final function could be had without it, the training is another.

# %% tags=["hide-cell"]
norm, linear, merged = RMSNorm(64), nn.Linear(64, 32), nn.Linear(64, 32)
nn.init.normal_(norm.weight)
merged.load_state_dict({"weight": linear.weight * norm.weight, "bias": linear.bias})
with torch.inference_mode():
    assert torch.allclose(merged(RMSNorm(64)(x)), linear(norm(x)), atol=1e-5)
print("the gain is gone, the output is the same")

# %% [markdown]
# Solution to exercise 3: with $r = \sqrt{\frac 1 d \sum x_i^2}$ and $y = x/r$, the gradient of a loss with $\partial L/\partial y = u$ is
# $\frac 1 r \left(u - y\,\frac{u \cdot y}{d}\right)$. Along $x$ itself it is zero: the output does not depend on the length.

# %% tags=["hide-cell"]
x, u = torch.randn(64, dtype=torch.float64, requires_grad=True), torch.randn(64, dtype=torch.float64)
(RMSNorm(64, eps=0.0).double()(x) * u).sum().backward()
with torch.no_grad():
    r = x.square().mean().sqrt()
    y = x / r
    assert torch.allclose(x.grad, (u - y * (u @ y) / 64) / r)
    assert abs(x.grad @ x) < 1e-12
print("formula and autograd agree; the component along x is zero")

# %% [markdown]
# ## The notebook and the module agree

# %%
ours, theirs = RMSNorm(8, eps=1e-3), transformer.modern.RMSNorm(8, eps=1e-3)
assert type(ours) is not type(theirs)
assert torch.equal(ours(x.detach().float()[:8]), theirs(x.detach().float()[:8]))
model = modern.build_transformer(transformer.TransformerConfig.tiny(50), norm=partial(RMSNorm, eps=1e-6))
print("equal outputs from", type(ours).__module__, "and", type(theirs).__module__, "and", sum(isinstance(m, RMSNorm) for m in model.modules()), "places in a model")
