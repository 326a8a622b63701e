# %% [markdown]
# # 11.2c Attention in Tiles
#
# Computed step by step, Equation (1) makes a table of $n^2$ weights, but only the outputs are asked for. The softmax can
# be summed while the scores go by, a tile at a time, and the table never exists. That is what fused attention does,
# FlashAttention above all (Dao et al. [2022](https://arxiv.org/abs/2205.14135)). It is exact: the outputs are those
# of Equation (1), up to rounding; what changes is the memory it takes and the traffic to it. This chapter writes it in
# plain PyTorch and counts.

# %%
#| default_exp modern.tiles

# %%
import math

import altair as alt
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import transformer

transformer.check_version("0.1")

# %% [markdown]
# ## A softmax that can be continued
#
# > We compute the dot products of the query with all keys, divide each by $\sqrt{d_k}$, and apply a softmax function to
# > obtain the weights on the values.
# >
# > — Section 3.2.1
#
# For one query with scores $s_1, \dots, s_n$, the output is a quotient of two sums. Both are usually written with the
# maximum $M$ taken off the scores, so that no exponential overflows:
#
# $$ \frac{\sum_j e^{s_j - M}\, v_j}{\sum_j e^{s_j - M}}, \qquad M = \max_j s_j $$
#
# It seems that all scores must be there before the first exponential. They need not (Milakov and Gimelshein
# [2018](https://arxiv.org/abs/1805.02867)). Take the maximum of the scores *so far*. When a new tile raises it from
# $M$ to $M'$, multiply both sums by $e^{M - M'}$, and they are as if they had been counted from $M'$ all along.

# %%
#| export
from typing import NamedTuple

import torch
from torch import Tensor

from transformer.attention import check_attention_inputs


# %%
#| export
class RunningSoftmax(NamedTuple):
    """What is known of a softmax and its weighted sum after some of the scores.

    Args:
        maximum: Largest score so far, shape (…, m, 1); −∞ before the first.
        total: Sum of exp(score − maximum), shape (…, m, 1).
        mixed: Sum of exp(score − maximum) · value, shape (…, m, d_v).

    Source: Milakov and Gimelshein (2018), arXiv:1805.02867.
    """

    maximum: Tensor
    total: Tensor
    mixed: Tensor

    def add(self, scores: Tensor, values: Tensor) -> "RunningSoftmax":
        """Go on with a tile.

        Args:
            scores: Shape (…, m, t); −∞ where nothing may be attended to.
            values: Shape (…, t, d_v).

        Returns:
            What is known after these scores, too.
        """
        maximum = torch.maximum(self.maximum, scores.amax(dim=-1, keepdim=True))  # (…, m, 1)
        reference = maximum.masked_fill(maximum == float("-inf"), 0.0)  # −∞ − (−∞) would be NaN
        shrink = (self.maximum - reference).exp()  # (…, m, 1): the old sums, counted from the new maximum
        weights = (scores - reference).exp()  # (…, m, t)
        total = self.total * shrink + weights.sum(dim=-1, keepdim=True)
        return RunningSoftmax(maximum, total, self.mixed * shrink + weights @ values)

    def output(self) -> Tensor:
        """The weighted sum of the values so far, shape (…, m, d_v); zeros where nothing could be attended to."""
        return self.mixed / self.total.clamp_min(1.0)  # the largest score adds exp(0) = 1: below it, there was none


# %% [markdown]
# ## See it
#
# Four scores in two tiles, with values 1, 2, 3, 4. The second tile holds a larger score, so the sums so far shrink by
# $e^{2-5}$.

# %%
scores, values = torch.tensor([[1.0, 2.0, 5.0, 0.0]]), torch.tensor([[1.0], [2.0], [3.0], [4.0]])  # (m, n), (n, d_v)
state = RunningSoftmax(torch.tensor([[-math.inf]]), torch.zeros(1, 1), torch.zeros(1, 1))
for start in (0, 2):
    state = state.add(scores[:, start : start + 2], values[start : start + 2])
    print("after", start + 2, *(f" {name} {value.item():.4f}" for name, value in state._asdict().items()))
by_definition = scores.softmax(-1) @ values
print(f"output {state.output().item():.4f}, by the definition {by_definition.item():.4f}")
assert torch.allclose(state.output(), by_definition)
assert math.isclose(state.total.item(), math.exp(2 - 5) * (1 + math.exp(1 - 2)) + 1 + math.exp(0 - 5), rel_tol=1e-6)

# %% [markdown]
# ## Attention, a tile at a time
#
# Queries and keys are both cut into tiles. For each tile of queries, all tiles of keys and values go by; then its
# outputs are done. With a causal mask, tiles that lie wholly in the future are not even computed.


# %%
#| export
def tiled_attention(query: Tensor, key: Tensor, value: Tensor, tile: int, is_causal: bool = False) -> Tensor:
    """Equation (1) without the table of weights: a tile of scores at a time, where no gradient keeps the tiles.

    Args:
        query: Shape (…, m, d_k), floating point.
        key: Shape (…, n, d_k).
        value: Shape (…, n, d_v).
        tile: Number of queries, and of keys, in a tile.
        is_causal: Hide later positions; the last query stands at the last key.

    Returns:
        Shape (…, m, d_v); zeros for a query that may attend to nothing.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: The shapes do not fit together, or tile is less than 1.

    Source: Dao et al. (2022), arXiv:2205.14135, the forward pass, with queries in the outer loop.
    """
    check_attention_inputs(query, key, value, None)
    if tile < 1:
        raise ValueError(f"tile is {tile}; give at least 1.")
    m, n = query.size(-2), key.size(-2)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    output = query.new_empty(*batch, m, value.size(-1))
    for top in range(0, m, tile):
        bottom = min(top + tile, m)
        start = query.new_full((*batch, bottom - top, 1), float("-inf"))
        state = RunningSoftmax(start, torch.zeros_like(start), torch.zeros_like(output[..., top:bottom, :]))
        end = min(n, bottom + n - m) if is_causal else n  # what is left out is all in the future
        for left in range(0, end, tile):
            columns = slice(left, left + tile)
            scores = query[..., top:bottom, :] @ key[..., columns, :].mT / query.size(-1) ** 0.5  # (…, tile, tile)
            if is_causal:
                row = torch.arange(top, bottom, device=query.device)[:, None] + n - m  # the key each query stands at
                column = torch.arange(left, left + scores.size(-1), device=query.device)
                scores = scores.masked_fill(column > row, float("-inf"))
            state = state.add(scores, value[..., columns, :])
        output[..., top:bottom, :] = state.output()
    return output


# %% [markdown]
# ## Check it: the same result
#
# Against Equation (1) and against PyTorch's fused attention, in double precision, for tiles of one score, tiles that
# divide nothing, and one tile for all.

# %%
torch.manual_seed(0)
query, key, value = (torch.randn(2, 3, 50, d, dtype=torch.float64) for d in (8, 8, 5))  # (B, h, n, d)
allowed = transformer.causal_mask(50)
worst = 0.0
for is_causal, mask in ((False, None), (True, allowed)):
    exact, _ = transformer.scaled_dot_product_attention(query, key, value, mask)
    fused = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    for tile in (1, 7, 16, 50, 64):
        output = tiled_attention(query, key, value, tile, is_causal)
        worst = max(worst, (output - exact).abs().max().item(), (output - fused).abs().max().item())
print("largest difference below 1e-12, for five tile sizes, with and without a causal mask:", worst < 1e-12)
assert worst < 1e-12

# %% [markdown]
# The running maximum is not a detail. A sum of plain exponentials overflows at scores of a thousand; tiles with a
# maximum do not.

# %%
large = tiled_attention(query * 1000, key, value, tile=16)
plain = (query * 1000 @ key.mT / math.sqrt(8)).exp()  # overflows
exact, _ = transformer.scaled_dot_product_attention(query * 1000, key, value)
print("plain exponentials finite:", bool(plain.isfinite().all()), " tiles finite:", bool(large.isfinite().all()))
assert not plain.isfinite().all() and torch.allclose(large, exact, atol=1e-9)

# %% [markdown]
# ## Check it: the table never exists
#
# We watch every tensor that PyTorch makes, and keep the size of the largest. Equation (1) makes one of $n^2$. In
# tiles, the largest is a tile of scores, or the output itself.


# %%
class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operation's result held."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        parts = result if isinstance(result, tuple | list) else [result]
        self.largest = max([self.largest, *(part.numel() for part in parts if isinstance(part, torch.Tensor))])
        return result


d = 16
for n in (128, 256, 512):
    query, key, value = torch.randn(3, n, d).unbind()
    with LargestTensor() as by_equation:
        transformer.scaled_dot_product_attention(query, key, value)
    with LargestTensor() as in_tiles:
        tiled_attention(query, key, value, tile=32)
    print(f"n = {n}: {by_equation.largest:7,} by Equation (1), {in_tiles.largest:5,} in tiles; output {n * d:5,}, tile {32 * 32:,}")
    assert by_equation.largest == n * n and in_tiles.largest == max(n * d, 32 * 32)

# %% [markdown]
# Doubling $n$ makes the table four times as large. In tiles, only the output grows, and it only doubles. The
# multiply–adds stay what they were: exactness costs $n^2$ products, in whatever order. With the causal mask, tiles
# skip nearly half, which Equation (1) computes and throws away.

# %%
n = 512
counts = {}
for name, run in {
    "Equation (1)": lambda: transformer.scaled_dot_product_attention(query, key, value),
    "tiles of 32": lambda: tiled_attention(query, key, value, 32),
    "tiles of 32, causal": lambda: tiled_attention(query, key, value, 32, is_causal=True),
}.items():
    with FlopCounterMode(display=False) as counter:
        run()
    counts[name] = counter.get_total_flops() // 2
    print(f"{name:20} {counts[name]:9,} multiply–adds")
assert counts["Equation (1)"] == counts["tiles of 32"] == 2 * n * n * d
assert counts["tiles of 32, causal"] == 2 * d * 32 * 32 * (n // 32) * (n // 32 + 1) // 2

# %% [markdown]
# ### The sums as they grow
#
# One query, 64 keys in tiles of eight. The running maximum only rises. The sum, each time counted from the maximum of
# that moment, may fall when the maximum rises. Which way it goes depends on the order of the keys; where it ends does
# not.

# %% tags=["hide-input"]
generator = torch.Generator().manual_seed(3)
scores = 2 * torch.randn(64, dtype=torch.float64, generator=generator)
orders = {"as drawn": scores, "rising": scores.sort().values, "falling": scores.sort(descending=True).values}
rows, ends = [], []
for name, ordered in orders.items():
    zero = torch.zeros(1, 1, dtype=torch.float64)
    state = RunningSoftmax(zero - math.inf, zero, zero)
    for start in range(0, 64, 8):
        state = state.add(ordered[None, start : start + 8], ordered[start : start + 8, None])
        for what, kept in (("running maximum", state.maximum), ("running sum", state.total)):
            rows.append({"keys": start + 8, "order": name, "what": what, "value": round(kept.item(), 3)})
    ends.append(state.total.item())
assert max(ends) - min(ends) < 1e-9  # the same sum in the end, in any order
falls = [a["value"] > b["value"] for a, b in zip(rows[17:32:2], rows[19:32:2], strict=False)]
assert any(falls)  # rising scores: the sum shrinks on the way
chosen = alt.param("chosen", value="as drawn", bind=alt.binding_select(options=list(orders), name="order of the keys "))
whats = ["running maximum", "running sum"]
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.order == chosen")
    .mark_line(interpolate="step-after", point=alt.OverlayMarkDef(size=45, filled=True))
    .encode(
        x=alt.X("keys:Q", title="keys seen", axis=alt.Axis(values=list(range(8, 65, 8))), scale=alt.Scale(domain=[0, 66], nice=False)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=True)),
        color=alt.Color(
            "what:N", sort=whats, title=None, scale=alt.Scale(domain=whats, range=["#0072B2", "#D55E00"]),
            legend=alt.Legend(orient="top", symbolSize=80),
        ),
        strokeDash=alt.StrokeDash("what:N", sort=whats, scale=alt.Scale(domain=whats, range=[[1, 0], [5, 3]])),
        shape=alt.Shape("what:N", sort=whats, scale=alt.Scale(domain=whats, range=["circle", "square"])),
        tooltip=["what:N", "keys:Q", "value:Q"],
    )
    .add_params(chosen)
    .properties(width=430, height=220, title="The order changes the way, not the end")
)
chart

# %% [markdown]
# Choose *rising*: each tile has a new maximum, and the sum is cut down before the tile adds its own. Choose
# *falling*: the first tile sets the maximum for good, and the sum only grows. Both lines end at the same heights.
#
# ## What it saves: traffic
#
# A GPU has little fast memory beside its arithmetic, and much slow memory behind it. By Equation (1), step by step,
# the slow memory sees the scores written, read for the softmax, the weights written, and read for the weighted sum:
# $4n^2$ numbers, besides queries, keys, values and outputs. In tiles of $t$ scores square, the scores stay in fast
# memory. What moves is each query and each output once, and all keys and values once for each of the $n/t$ tiles of
# queries.


# %%
def moved_by_equation(n, d):
    """Numbers read and written, one head: Q, K, V and the output once, scores and weights twice each."""
    return 4 * n * d + 4 * n * n


def moved_in_tiles(n, d, tile):
    """Numbers read and written, one head: Q and the output once, K and V once for each tile of queries."""
    return 2 * n * d + 2 * n * d * -(-n // tile)


# %%
d = 64
for n in (512, 4096, 32768):
    shares = {tile: moved_in_tiles(n, d, tile) / moved_by_equation(n, d) for tile in (32, 128, 256)}
    print(f"n = {n:6,}: tiles move", ", ".join(f"{share:.0%} (t = {tile})" for tile, share in shares.items()))
assert moved_in_tiles(4096, 64, 32) > 0.9 * moved_by_equation(4096, 64)  # small tiles save nothing
assert abs(moved_in_tiles(32768, 64, 256) / moved_by_equation(32768, 64) - d / (2 * 256)) < 0.01

# %% [markdown]
# For long inputs the share is $d/(2t)$. Tiles of 32 save next to nothing at a head of 64; tiles of 128 leave a
# quarter. How large a tile can be is up to the fast memory: it must hold a tile of queries, of keys, of values, of
# scores and of outputs. So such kernels are tuned to a kind of chip.
#
# On this page nothing got faster. Our loop is Python, and its tiles go back to the same memory. What is fast is the
# same loop inside one kernel, and that is what `F.scaled_dot_product_attention` calls where it can: [multi-head
# attention](03_2_2_multi_head_attention.py) has used it all along.
#
# ## Unsaid by the paper
#
# - **The paper's authors knew the square.** Section 4 proposes restricted attention for long inputs, which changes
#   the result. Tiles do not.
# - **Exact is not bit for bit.** Sums in another order round otherwise. In single precision the outputs differ in the
#   last digits.
# - **Not the first.** Rabe and Staats ([2021](https://arxiv.org/abs/2112.05682)) summed attention in chunks before, to
#   save memory. FlashAttention's point is the traffic.
# - **The way back.** Training needs gradients through weights that were never kept. The kernel keeps one number a
#   query, the maximum plus the logarithm of the sum, and computes the tiles again in the backward pass: more
#   operations, less traffic. Our function is the forward pass; autograd can go back through it, and keeps every tile
#   to do so.
# - **Which loop outside.** The first FlashAttention had keys outside and queries inside; its successor (Dao
#   [2023](https://arxiv.org/abs/2307.08691)) exchanged them, which is the order here.
# - **No weights to look at.** What is never written cannot be shown. That is why our attention falls back to Equation
#   (1) when somebody asks for the weights.
#
# ## What we now know
#
# - A softmax can be summed tile by tile, with a factor when the maximum rises; the result equals Equation (1) to
#   $10^{-12}$ for every tile size, and equals PyTorch's fused attention.
# - Scores of thousands do not overflow.
# - The largest tensor is a tile or the output, not $n^2$; the multiply–adds are the same, and about half with a
#   causal mask.
# - The traffic falls to $d/(2t)$ of Equation (1)'s for long inputs: this changes the schedule, and neither
#   computation nor inputs.
#
# ## Exercises
#
# 1. **Predict, then run.** The keys are shuffled, together with their values. Which of maximum, sum and output of a
#    query change, on the way and at the end, without a causal mask?
# 2. **Minutes.** The largest score so far is 2, and a new tile has one of 5. By which factor are the sums so far
#    multiplied? Check: `check("11-rescale", answer)`.
# 3. **An hour.** Two machines each hold half of the keys and values. Write `merge(a, b)` for two `RunningSoftmax` of
#    the same queries, so that neither machine sends more than its three tensors. Test it against Equation (1).
# 4. **A day.** Write the backward pass: from the queries, keys, values, outputs, one number a query and the upstream
#    gradient, tile by tile. Compare with autograd.

# %% [markdown]
# Solution to exercise 1: at the end none but by rounding, since maxima and sums do not know an order. On the way, all
# three.

# %% tags=["hide-cell"]
torch.manual_seed(0)
query, key, value = torch.randn(3, 40, 8, dtype=torch.float64).unbind()
order = torch.randperm(40)
assert torch.allclose(tiled_attention(query, key[order], value[order], 8), tiled_attention(query, key, value, 8), atol=1e-12)
print("shuffled keys and values: the same outputs")

# %% [markdown]
# Solution to exercise 2: $e^{2-5}$.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = math.exp(2 - 5)
verdict = check("11-rescale", answer)
print(f"{answer:.4f}", verdict)
assert verdict

# %% [markdown]
# Solution to exercise 3: the larger maximum is the new reference for both.


# %% tags=["hide-cell"]
def merge(a, b):
    """What is known after the scores of both; each has seen a key for every query."""
    maximum = torch.maximum(a.maximum, b.maximum)
    shrink_a, shrink_b = (a.maximum - maximum).exp(), (b.maximum - maximum).exp()
    return RunningSoftmax(maximum, a.total * shrink_a + b.total * shrink_b, a.mixed * shrink_a + b.mixed * shrink_b)


def of_part(part):
    """One machine's share of the work."""
    start = torch.full((40, 1), -math.inf, dtype=torch.float64)
    empty = RunningSoftmax(start, torch.zeros_like(start), torch.zeros_like(query))
    return empty.add(query @ key[part].T / math.sqrt(8), value[part])


both = merge(of_part(slice(0, 20)), of_part(slice(20, 40))).output()
assert torch.allclose(both, transformer.scaled_dot_product_attention(query, key, value)[0], atol=1e-12)
print("two halves, merged: Equation (1)")

# %% [markdown]
# ## The notebook and the module agree

# %%
for is_causal in (False, True):
    imported = transformer.modern.tiled_attention(query, key, value, 16, is_causal)
    assert torch.equal(imported, tiled_attention(query, key, value, 16, is_causal))
print("the same outputs")
