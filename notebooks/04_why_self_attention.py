# %% [markdown]
# # 4 Why Self-Attention
#
# The paper compares self-attention with recurrence and convolution on three counts: how many operations a layer takes,
# how many of them must wait for each other, and how long the paths between distant positions are. All three can be
# counted, and this chapter counts them on running code. It also finds what the paper's table leaves out.

# %%
#| default_exp complexity

# %%
import itertools
import math
import time

import altair as alt
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import transformer

transformer.check_version("0.1")

# %% [markdown]
# > Motivating our use of self-attention we consider three desiderata.
# >
# > One is the total computational complexity per layer. Another is the amount of computation that can be parallelized,
# > as measured by the minimum number of sequential operations required.
# >
# > The third is the path length between long-range dependencies in the network.
# >
# > — Section 4
#
# A layer here is anything that maps $n$ vectors to $n$ vectors, all of $d$ components. A convolution has a kernel of
# size $k$, and $r$ is the size of a neighbourhood. This is Table 1 of the paper:
#
# | Layer Type | Complexity per Layer | Sequential Operations | Maximum Path Length |
# |---|---|---|---|
# | Self-Attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | Recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | Convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(log_k(n))$ |
# | Self-Attention (restricted) | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n/r)$ |
#
# ## The four layers
#
# To measure them we need them. Self-attention is Equation (1) with queries, keys and values all equal to the input, as
# the first row of the table has it: no projections yet.


# %%
def self_attention(x):
    return transformer.scaled_dot_product_attention(x, x, x)[0]  # (B, n, d)


# %% [markdown]
# A recurrent layer reads from left to right. Each state is made of the input at its position and the state before it.
# The loop is PyTorch's.


# %%
class Recurrent(nn.Module):
    """h_t = tanh(W x_t + U h_{t−1} + b)."""

    def __init__(self, d):
        super().__init__()
        self.cell = nn.RNN(d, d, batch_first=True)

    def forward(self, x):  # (B, n, d)
        return self.cell(x)[0]

    def after(self, x, steps):
        """The states when every position has computed `steps` times, each time from its neighbour's last result."""
        w, u, b, c = self.cell.weight_ih_l0, self.cell.weight_hh_l0, self.cell.bias_ih_l0, self.cell.bias_hh_l0
        states = torch.zeros_like(x)
        for _ in range(steps):
            before = F.pad(states, (0, 0, 1, -1))  # (B, n, d), shifted right by one position
            states = torch.tanh(F.linear(x, w, b) + F.linear(before, u, c))
        return states


# %% [markdown]
# A convolution computes each output from $k$ inputs: here from the last $k$, up to the output's own position, as in a
# decoder. With a dilation it takes them from further back, one in so many. Groups make it *separable*: first each
# component alone along the positions, then all components at each position.


# %%
class Convolution(nn.Module):
    def __init__(self, d, k, dilation=1, separable=False):
        super().__init__()
        groups = d if separable else 1
        self.back = (k - 1) * dilation
        self.along = nn.Conv1d(d, d, k, dilation=dilation, groups=groups)
        self.across = nn.Linear(d, d) if separable else nn.Identity()

    def forward(self, x):  # (B, n, d)
        return self.across(self.along(F.pad(x.mT, (self.back, 0))).mT)


# %% [markdown]
# > To improve computational performance for tasks involving very long sequences, self-attention could be restricted to
# > considering only a neighborhood of size $r$ in the input sequence centered around the respective output position.
# >
# > — Section 4
#
# A mask on full attention would compute $n^2$ scores and throw most of them away. Here each position is compared with
# the $r$ positions around it, $r$ odd, and no others. `unfold` shows the windows of a sentence without copying anything.


# %%
def restricted_self_attention(x, r):
    return torch.stack([attend_to_neighbours(sentence, r) for sentence in x])  # (B, n, d)


def attend_to_neighbours(x, r):
    n, d = x.shape
    half = r // 2
    windows = F.pad(x, (0, 0, half, half)).unfold(0, r, 1)  # (n, d, r)
    inside = F.pad(torch.ones(n, dtype=torch.bool), (half, half)).unfold(0, r, 1)  # (n, r)
    scores = x[:, None] @ windows / math.sqrt(d)  # (n, 1, r)
    weights = transformer.masked_softmax(scores, inside[:, None])  # (n, 1, r)
    return (weights @ windows.mT)[:, 0]  # (n, d)


# %% [markdown]
# ### Check it: they are what they say
#
# Restricted attention must equal full attention with a band as its mask, and full attention itself once the window
# spans the sentence from anywhere, at $r \ge 2n - 1$. The recurrence must equal a loop over the positions.

# %%
torch.manual_seed(0)
n, d = 12, 8
x = torch.randn(2, n, d)
distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()  # (n, n)
for r in (1, 3, 7, 2 * n - 1, 2 * n + 1):
    banded = transformer.scaled_dot_product_attention(x, x, x, distance <= r // 2)[0]
    torch.testing.assert_close(restricted_self_attention(x, r), banded)
torch.testing.assert_close(restricted_self_attention(x, 2 * n - 1), self_attention(x))

recurrent = Recurrent(d)
state, states = torch.zeros(2, d), []
for t in range(n):
    cell = recurrent.cell
    state = torch.tanh(x[:, t] @ cell.weight_ih_l0.T + cell.bias_ih_l0 + state @ cell.weight_hh_l0.T + cell.bias_hh_l0)
    states.append(state)
torch.testing.assert_close(recurrent(x), torch.stack(states, dim=1))

convolution = Convolution(d, k=3, dilation=2)
weight, padded = convolution.along.weight, F.pad(x, (0, 0, 4, 0))
by_hand = sum(padded[:, 2 * j : 2 * j + n] @ weight[:, :, j].T for j in range(3)) + convolution.along.bias
torch.testing.assert_close(convolution(x), by_hand)
print("restricted attention, recurrence and convolution agree with their definitions")

# %% [markdown]
# ## Operations per layer
#
# One *multiply–add* is a multiplication and the addition that follows. A dot product of $d$ components takes $d$ of
# them. So:
#
# - Self-attention compares $n$ queries with $n$ keys, $n^2 d$, and adds up $n$ values for each of $n$ outputs, $n^2 d$
#   again.
# - A recurrent layer multiplies $n$ inputs and $n$ states by a $d \times d$ matrix each: $2 n d^2$.
# - A convolution has $k$ such matrices: $k n d^2$. A separable one has $k$ numbers for each component, then one matrix.
# - Restricted attention compares with $r$ keys instead of $n$.
#
# The paper's $O(\cdot)$ drops the factors 2. We keep them, so that a counter can contradict us.

# %%
#| export
from transformer.model import TransformerConfig

# %%
#| export
LAYER_KINDS = (
    "self-attention",
    "recurrent",
    "convolutional",
    "restricted self-attention",
    "dilated convolutional",
    "separable convolutional",
)


# %%
#| export
def layer_operations(kind: str, n: int, d: int, k: int | None = None, r: int | None = None) -> int:
    """Multiply–adds of one layer on one sequence: the first column of Table 1, with its constants.

    Matrix products alone count, as in the table: no softmax, no biases, and no projections around attention. A
    recurrent layer is a plain one, h_t = tanh(W x_t + U h_{t−1} + b). Windows that stick out at the ends count whole.

    Args:
        kind: One of `LAYER_KINDS`: the four of Table 1, or a convolution with dilation or of the separable sort.
        n: Length of the sequence.
        d: Width of its vectors.
        k: Kernel size; convolutions need it, the others ignore it.
        r: Size of the neighbourhood; restricted self-attention needs it, the others ignore it.

    Returns:
        The number; a floating-point operation count (FLOPs) is twice as large.

    Raises:
        ValueError: The kind is unknown, or a size that it needs is not a positive integer.

    Source: §4, Table 1.
    """
    window = _window(kind, n=n, d=d, k=k, r=r)
    if kind == "self-attention":
        return 2 * n * n * d  # scores, weighted sums
    if kind == "restricted self-attention":
        return 2 * window * n * d
    if kind == "recurrent":
        return 2 * n * d * d  # inputs, states
    if kind == "separable convolutional":
        return window * n * d + n * d * d  # along the positions, across the components
    return window * n * d * d


# %%
#| export
def _window(kind: str, k: int | None, r: int | None, **sizes: int) -> int:
    """How many positions an output of this kind looks at, 1 where the table has neither k nor r; checks all sizes."""
    if kind not in LAYER_KINDS:
        raise ValueError(f"kind is {kind!r}; choose one of {', '.join(map(repr, LAYER_KINDS))}.")
    needed: dict[str, int | None] = dict(sizes)
    if kind.endswith("convolutional"):
        needed["k"] = k
    elif kind.startswith("restricted"):
        needed["r"] = r
    for name, size in needed.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} is {size!r}; for a {kind} layer give a positive integer.")
    return needed.get("k") or needed.get("r") or 1


# %% [markdown]
# ### See it: the two terms meet at n = d
#
# > In terms of computational complexity, self-attention layers are faster than recurrent layers when the sequence
# > length $n$ is smaller than the representation dimensionality $d$, which is most often the case with sentence
# > representations used by state-of-the-art models in machine translations, such as word-piece and byte-pair
# > representations.
# >
# > — Section 4

# %%
print("     n   self-attention       recurrent   ratio")
for n in (50, 100, 512, 8192):
    attention, recurrence = layer_operations("self-attention", n, 512), layer_operations("recurrent", n, 512)
    print(f"{n:6} {attention:16,} {recurrence:15,} {attention / recurrence:7.2f}")
    assert (attention < recurrence) == (n < 512) and attention * 512 == recurrence * n
assert attention == 16 * recurrence
print(f"scores of one head at n = {n}: {n * n:,}; {4 * n * n / 1e6:.0f} MB")

# %% [markdown]
# The ratio is $n/d$. At the base model's $d = 512$ a sentence of 50 tokens costs attention a tenth. At 8,192 tokens it
# costs 16 times as much as a recurrence, and each head holds 67 million scores.
#
# ### Check it: PyTorch counts the same
#
# PyTorch's counter sees the matrix products as they happen, and knows nothing of our formulas. It counts two operations
# for a multiply–add.


# %%
def make_layers(d, k=3, r=5):
    return {
        "self-attention": self_attention,
        "recurrent": Recurrent(d),
        "convolutional": Convolution(d, k),
        "restricted self-attention": lambda x: restricted_self_attention(x, r),
        "dilated convolutional": Convolution(d, k, dilation=k),
        "separable convolutional": Convolution(d, k, separable=True),
    }


def counted(run, *inputs):
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(*inputs)
    return counter.get_total_flops()


for n, d, k, r in ((20, 16, 3, 5), (64, 24, 5, 17), (10, 40, 9, 31)):
    print(f"n = {n}, d = {d}, k = {k}, r = {r}")
    for kind, layer in make_layers(d, k, r).items():
        operations = layer_operations(kind, n, d, k=k, r=r)
        print(f"  {kind:26} {operations:9,} multiply–adds")
        assert counted(layer, torch.randn(3, n, d)) == 3 * 2 * operations

# %% [markdown]
# ### Check it: what the paper says of convolutions
#
# By the table, a convolution costs $k$ times as much as a recurrence. With the constants it is $k/2$ times a plain one,
# which has two matrices. A separable convolution costs much less. Even with $k = n$, the paper adds, its complexity is
# that of a self-attention layer and a point-wise feed-forward layer together: $n^2 d + n d^2$. As a count:

# %%
for n in (10, 100, 1000, 100_000):
    separable = layer_operations("separable convolutional", n, 512, k=n)
    together = layer_operations("self-attention", n, 512) + 2 * n * 512 * 2048
    print(f"n = {n:6}: separable with k = n {separable:.3e}, attention and feed-forward {together:.3e}")
    assert 2 * separable < together < 8 * separable
assert 2 * layer_operations("convolutional", 50, 512, k=3) == 3 * layer_operations("recurrent", 50, 512)

# %% [markdown]
# The two grow alike, in $n$ and in $d$. Their constants differ: 1 and 1 against 2 and 8, since attention has two
# products and the feed-forward network two matrices of $4d^2$. The convolution's weights do not depend on the tokens,
# however, and attention's do.
#
# ### Check it: the clock
#
# Does time follow the count? Each layer runs forward at $d = 128$ on ever longer input, on one sentence alone and on 16
# at once. It has one thread of the processor, whose own time we take, so that other programs disturb little. The layers
# run in turns, and the fastest run of each counts.


# %%
def forward_times(layers, x, seconds=0.06):
    best, end, rounds = dict.fromkeys(layers, math.inf), time.perf_counter() + seconds, 0
    while rounds < 3 or time.perf_counter() < end:
        for name, layer in layers.items():
            begun = time.thread_time()
            layer(x)
            best[name] = min(best[name], time.thread_time() - begun)
        rounds += 1
    return best


torch.set_num_threads(1)
d, k, r = 128, 3, 17
names = ["self-attention", "recurrent", "convolutional", "restricted self-attention"]
layers = {name: layer for name, layer in make_layers(d, k, r).items() if name in names}
seconds = {}
for batch, lengths in ((1, [16 * 2**i for i in range(8)]), (16, [16 * 2**i for i in range(7)])):
    for n in lengths:
        x = torch.randn(batch, n, d)
        with torch.inference_mode():
            seconds |= {(batch, name, n): value for name, value in forward_times(layers, x).items()}


# %%
def crossover(batch):
    """The length from which self-attention takes longer than the recurrence, between two that were measured."""
    lengths = sorted({n for b, _, n in seconds if b == batch})
    gaps = [math.log(seconds[batch, names[0], n] / seconds[batch, names[1], n]) for n in lengths]
    for (n, m), (before, after) in zip(itertools.pairwise(lengths), itertools.pairwise(gaps)):
        if before < 0 <= after:
            return n * (m / n) ** (before / (before - after))
    return math.inf


assert all(seconds[batch, "self-attention", 16] < seconds[batch, "recurrent", 16] for batch in (1, 16))
assert d / 8 < crossover(16) < 8 * d
assert seconds[1, "self-attention", 2 * d] < seconds[1, "recurrent", 2 * d]
growth = {name: seconds[16, name, 1024] / seconds[16, name, 64] for name in names}
assert growth["self-attention"] == max(growth.values())
print("16 sentences: attention is faster at n = d/8, slower at n = 8d, and grows fastest of the four")
print("one sentence: attention is still faster at n = 2d")

# %% tags=["hide-input"]
rows = [
    {"batch": batch, "layer": name, "n": n, "ms": round(1000 * value, 4)}
    for (batch, name, n), value in seconds.items()
]
marks = [
    {"batch": batch, "n": round(at), "label": what}
    for batch in (1, 16)
    for at, what in ((d, "n = d"), (crossover(batch), "measured"))
    if at < math.inf
]
chosen = alt.param(value=16, bind=alt.binding_radio(options=[16, 1], name="sentences at once "))
x_axis = alt.X(
    "n:Q",
    title="length n",
    scale=alt.Scale(type="log", base=2, domain=[16, 2048]),
    axis=alt.Axis(values=[16, 64, 256, 1024], format="d"),
)
lines = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter(f"datum.batch == {chosen.name}")
    .mark_line(point=True, strokeWidth=2)
    .encode(
        x=x_axis,
        y=alt.Y("ms:Q", title="milliseconds", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=5)),
        color=alt.Color(
            "layer:N",
            sort=names,
            scale=alt.Scale(domain=names, range=["#0072B2", "#E69F00", "#009E73", "#D55E00"]),
            legend=alt.Legend(orient="top", columns=2, title=None),
        ),
        strokeDash=alt.StrokeDash(
            "layer:N", sort=names, scale=alt.Scale(domain=names, range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]])
        ),
        tooltip=["layer:N", "n:Q", alt.Tooltip("ms:Q", format=".3g")],
    )
)
words = {"align": "left", "dx": 4}
rules = alt.Chart(alt.Data(values=marks)).transform_filter(f"datum.batch == {chosen.name}").encode(x=x_axis)
chart = alt.layer(
    lines,
    rules.mark_rule(color="#7a7f87", strokeDash=[4, 3]).encode(tooltip=["label:N", alt.Tooltip("n:Q", format=".0f")]),
    rules.transform_filter("datum.label == 'n = d'").mark_text(text="n = d", **words).encode(y=alt.value(232)),
    rules.transform_filter("datum.label != 'n = d'").mark_text(text="measured", **words).encode(y=alt.value(10)),
).add_params(chosen)
chart = chart.properties(width=250, height=240, title="Attention wins on short input, loses on long")
chart

# %% [markdown]
# What to see: on long input, attention's time grows with $n^2$ and that of the other three with $n$. The dashed lines
# mark the length where the counts meet, $n = d$, and the length where the clock saw attention fall behind the
# recurrence, on your machine or on the one that built this page. With 16 sentences that is within a factor of 8 of $n = d$. With
# one sentence attention stays ahead for longer: a step of the recurrence has little work in it, and the next cannot
# begin before it ends. That is the paper's second desideratum, and no count of operations shows it.
#
# ### Check it: memory
#
# The table has no column for memory. To learn, a layer keeps what it needs on the way back: attention its weights,
# $n^2$ numbers a head; the others a few numbers for each position. PyTorch tells what it keeps.


# %%
def kept_megabytes(layer, x):
    """What a forward pass keeps for the backward pass, each piece of memory once."""
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = layer(x)
    assert output.shape == x.shape  # and it holds on to what was kept
    return sum(kept.values()) / 1e6


def fused_attention(x):
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]  # one head


d, lengths = 64, (512, 1024, 2048)
layers = make_layers(d, k=3, r=17)
kept = {}
for kind, layer in {**{name: layers[name] for name in names}, "fused self-attention": fused_attention}.items():
    kept[kind] = [kept_megabytes(layer, torch.randn(1, n, d, requires_grad=True)) for n in lengths]
    print(f"{kind:26}", *(f"  n = {n}: {size:5.2f} MB" for n, size in zip(lengths, kept[kind])))
    growth = kept[kind][2] / kept[kind][1]
    assert (3.6 < growth < 4) if kind == "self-attention" else (1.8 < growth < 2.1)
assert kept["self-attention"] == [4 * (n * n + n * d) / 1e6 for n in lengths]

# %% [markdown]
# Twice the length, four times the memory, for attention as Equation (1) has it; for the others twice. The last line is
# the same attention in PyTorch's fused kernel. It never stores the weights but computes them again, piece by piece, on
# the way back. So the square in the operations stays, and the square in memory goes.
#
# ## Sequential operations
#
# > As noted in Table 1, a self-attention layer connects all positions with a constant number of sequentially executed
# > operations, whereas a recurrent layer requires $O(n)$ sequential operations.
# >
# > — Section 4


# %%
#| export
def sequential_operations(kind: str, n: int) -> int:
    """How many operations of a layer must wait for each other: the second column of Table 1.

    Args:
        kind: One of `LAYER_KINDS`.
        n: Length of the sequence.

    Returns:
        n for a recurrent layer, 1 for all others, up to a constant that does not depend on n.

    Raises:
        ValueError: The kind is unknown, or n is not a positive integer.

    Source: §4, Table 1.
    """
    _window(kind, n=n, k=1, r=1)
    return n if kind == "recurrent" else 1


# %% [markdown]
# ### Check it: the longest chain
#
# PyTorch remembers which result was made from which. The longest chain of matrix products in that record cannot be
# shortened by any number of processors. It is found as in [Section 1](01_introduction.py), with convolutions among the
# products.


# %%
def longest_chain(output):
    """The most matrix products on any path through the record of how `output` was computed."""
    length, waiting = {None: 0}, [output.grad_fn]
    while waiting:
        node = waiting[-1]
        parents = [parent for parent, _ in node.next_functions]
        unknown = [parent for parent in parents if parent not in length]
        waiting += unknown
        if not unknown:
            product = node.name().startswith(("Mm", "Addmm", "Bmm", "Convolution"))
            length[node] = max((length[parent] for parent in parents), default=0) + product
            waiting.pop()
    return length[output.grad_fn]


print(f"{'n':28}", *(f"{n:4}" for n in (8, 32, 128)))
for kind, layer in make_layers(16).items():
    chains = [longest_chain(layer(torch.randn(1, n, 16, requires_grad=True))) for n in (8, 32, 128)]
    constant = 1 if kind in ("recurrent", "convolutional", "dilated convolutional") else 2
    print(f"{kind:28}", *(f"{chain:4}" for chain in chains))
    assert chains == [constant * sequential_operations(kind, n) for n in (8, 32, 128)]

# %% [markdown]
# Attention has two products one after the other, whatever the length. The recurrence has one for each position, since
# each needs the state before it. Nor can it hurry: let all positions compute at once, again and again, each from what
# its left neighbour had. The last state is right after $n$ rounds, and not a round earlier.

# %%
torch.manual_seed(0)
recurrent, x = Recurrent(16).double(), torch.randn(1, 32, 16, dtype=torch.float64)
for rounds in (1, 16, 31, 32):
    with torch.no_grad():
        error = (recurrent.after(x, rounds) - recurrent(x))[0, -1].abs().max().item()
    print(f"after {rounds:2} rounds the last state is wrong by {error:.0e}" if rounds < 32 else "after 32 it is right")
    assert error > 1e-12 if rounds < 32 else error < 1e-14

# %% [markdown]
# ## Maximum path length
#
# > The shorter these paths between any combination of positions in the input and output sequences, the easier it is to
# > learn long-range dependencies.
# >
# > — Section 4
#
# How many layers does a signal pass on its way from the first position to the last? One layer of attention is enough. A
# recurrence hands it on step by step. A kernel that looks back reaches $k-1$ positions, so a stack needs $(n-1)/(k-1)$
# layers. If the dilation grows as $1, k, k^2, \dots$, then $L$ layers reach $(k-1)(1 + k + \dots + k^{L-1}) = k^L - 1$,
# and $\log_k n$ layers are enough. A neighbourhood of $r$ reaches $(r-1)/2$ to either side.


# %%
#| export
def maximum_path_length(kind: str, n: int, k: int | None = None, r: int | None = None) -> int:
    """Layers, or steps of a recurrence, that a signal passes between the ends of a sequence: Table 1's last column.

    Convolutions look back over k positions, their own included; in a dilated stack, layer i (from 0) takes every kⁱ-th.
    The neighbourhood of restricted self-attention is centred and reaches ⌊(r−1)/2⌋ to either side.

    Args:
        kind: One of `LAYER_KINDS`.
        n: Length of the sequence.
        k: Kernel size, at least 2; convolutions need it.
        r: Size of the neighbourhood, at least 3; restricted self-attention needs it.

    Returns:
        1 for self-attention; n for a recurrent layer; ⌈(n−1)/(k−1)⌉ for a convolution, ⌈log_k n⌉ for dilated ones;
        ⌈(n−1)/⌊(r−1)/2⌋⌉ for restricted self-attention. At least 1.

    Raises:
        ValueError: The kind is unknown, a size that it needs is not a positive integer, or a window is too small to
            connect positions.

    Source: §4, Table 1.
    """
    window = _window(kind, n=n, k=k, r=r)
    if kind in ("self-attention", "recurrent"):
        return 1 if kind == "self-attention" else n
    stride = reached = (window - 1) // 2 if kind.startswith("restricted") else window - 1
    if not reached:
        raise ValueError(f"a window of {window} reaches no neighbour; give k of at least 2, or r of at least 3.")
    length = 1
    while reached < n - 1:
        length += 1
        stride *= window if kind.startswith("dilated") else 1
        reached += stride
    return length


# %% [markdown]
# ### Check it: which inputs have a gradient
#
# The last output depends on an input if its gradient there is not zero. So we stack layers until the last position has
# a gradient from every input, and note for each input when that happened first.

# %%
def make_networks(d, k, r, depth=8):
    """For each kind a function of (x, number of layers)."""
    recurrent, convolution = Recurrent(d).double(), Convolution(d, k).double()
    separable = Convolution(d, k, separable=True).double()
    dilated = [Convolution(d, k, dilation=k**i).double() for i in range(depth)]

    def repeat(layer):
        return lambda x, n_layers: [x := layer(x) for _ in range(n_layers)][-1]

    def widen(x, n_layers):
        for layer in dilated[:n_layers]:
            x = layer(x)
        return x

    return {
        "self-attention": repeat(self_attention),
        "recurrent": recurrent.after,
        "convolutional": repeat(convolution),
        "restricted self-attention": repeat(lambda x: restricted_self_attention(x, r)),
        "dilated convolutional": widen,
        "separable convolutional": repeat(separable),
    }


def layers_to_reach(network, n, d):
    """For each input position, the number of layers after which the last output depends on it."""
    x = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
    first = [0] * n
    for n_layers in range(1, n + 1):
        (gradient,) = torch.autograd.grad(network(x, n_layers)[0, -1].sum(), x)
        for position in gradient[0].abs().sum(-1).nonzero().flatten().tolist():
            first[position] = first[position] or n_layers
        if all(first):
            return first
    raise AssertionError("some input never reaches the last output")


# %%
torch.manual_seed(0)
k, r = 3, 9
networks = make_networks(4, k, r)
print(f"k = {k}, r = {r}, n =        ", *(f"{n:4}" for n in (9, 27, 81)))
for kind, network in networks.items():
    measured = [max(layers_to_reach(network, n, 4)) for n in (9, 27, 81)]
    print(f"{kind:26}", *(f"{length:4}" for length in measured))
    assert measured == [maximum_path_length(kind, n, k=k, r=r) for n in (9, 27, 81)]

# %% [markdown]
# Measured and computed lengths agree, all of them. Where the sentence is three times as long, a recurrence and
# plain windows need about three times the steps; windows with dilation one layer more, which is what a logarithm means.
# The table's $O(log_k(n))$ is the dilated convolution; a stack with contiguous kernels has $O(n/k)$. And the price of
# the restriction:
#
# > This would increase the maximum path length to $O(n/r)$.
# >
# > — Section 4

# %% tags=["hide-input"]
n, r = 32, 5
shown = [kind for kind in LAYER_KINDS if kind != "separable convolutional"]
networks = make_networks(4, 3, r)
rows = [
    {"layer": kind, "position": position, "first": first}
    for kind in shown
    for position, first in enumerate(layers_to_reach(networks[kind], n, 4), start=1)
]
layer_count = alt.param(value=4, bind=alt.binding_range(min=1, max=n, step=1, name="layers, or recurrent steps "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_rect(stroke="#7a7f87", strokeWidth=0.5, color="#0072B2")
    .encode(
        x=alt.X("position:O", title="input position", axis=alt.Axis(values=[1, 8, 16, 24, 32], labelAngle=0)),
        y=alt.Y("layer:N", title=None, sort=shown, axis=alt.Axis(labelLimit=180)),
        fillOpacity=alt.condition(f"datum.first <= {layer_count.name}", alt.value(0.9), alt.value(0)),
        tooltip=[
            alt.Tooltip("layer:N"),
            alt.Tooltip("position:O", title="input position"),
            alt.Tooltip("first:Q", title="reaches position 32 after"),
        ],
    )
    .add_params(layer_count)
    .properties(width=185, height=150, title="One layer of attention sees everything")
)
chart

# %% [markdown]
# Filled cells are inputs that the last of 32 positions depends on, after as many layers as the slider says ($k = 3$, $r
# = 5$). Attention sees everything at once, the dilated stack with its fourth layer. The plain windows creep to the left
# by two positions a layer, and the recurrence by one a step: what the first word said arrives last of all.
#
# ### Check it: shorter is easier
#
# That short paths make learning easier is a claim about training, so we train. The task: name the first token of a
# sequence at its last position; all tokens between are noise. Every model is an embedding with positions, one way to
# mix positions, and a linear layer; all get the same updates, for sequences of 4 tokens and of 32.

# %%
class Recall(nn.Module):
    def __init__(self, mix, d, n_tokens):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, d)
        self.positions = transformer.SinusoidalPositionalEncoding(d)
        self.mix, self.output = mix, nn.Linear(d, n_tokens)

    def forward(self, tokens):  # (B, n)
        return self.output(self.mix(self.positions(self.embedding(tokens)))[:, -1])  # (B, n_tokens)


class Attend(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.attention = transformer.MultiHeadAttention(d, n_heads=1)

    def forward(self, x):  # (B, n, d)
        return self.attention(x, x, x)


# %%
def recall_accuracy(make_mix, n, updates=100, d=32, n_tokens=8):
    """The share of first tokens that a freshly trained model names, with 1/8 by chance."""
    torch.manual_seed(0)
    model = Recall(make_mix(d), d, n_tokens)
    adam = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(updates):
        tokens = torch.randint(n_tokens, (32, n))
        adam.zero_grad()
        F.cross_entropy(model(tokens), tokens[:, 0]).backward()
        adam.step()
    tokens = torch.randint(n_tokens, (1000, n))
    with torch.no_grad():
        return (model(tokens).argmax(-1) == tokens[:, 0]).float().mean().item()


mixes = {
    "self-attention": (Attend, 1),
    "dilated convolutions": (
        lambda d: nn.Sequential(*(nn.Sequential(Convolution(d, 3, 3**i), nn.ReLU()) for i in range(4))),
        maximum_path_length("dilated convolutional", 32, k=3),
    ),
    "recurrent": (Recurrent, 32),
}
learned = {}
for name, (make_mix, path) in mixes.items():
    learned[name] = [recall_accuracy(make_mix, n) > 0.95 for n in (4, 32)]
    print(f"{name:20}  path for 32: {path:2}   4 tokens learned: {learned[name][0]}   32 learned: {learned[name][1]}")
assert learned == {"self-attention": [True, True], "dilated convolutions": [True, True], "recurrent": [True, False]}

# %% [markdown]
# All learn to recall across 4 tokens. Across 32 attention does, with a path of 1, and so do four layers of dilated
# convolutions. The recurrence is left guessing: its gradient passes through 32 steps, each of which shrinks it, and
# what arrives is next to nothing. This is a plain recurrence: the LSTM was invented for this, and
# [Section 1](01_introduction.py) gives it a like task. Nor does the experiment tell what the length of the path does
# from what the recurrence does along it.

# %%
torch.manual_seed(0)
x = torch.randn(1, 32, 32, dtype=torch.float64, requires_grad=True)
for name, (make_mix, _) in mixes.items():
    (gradient,) = torch.autograd.grad(make_mix(32).double()(x)[0, -1].sum(), x)
    strength = gradient[0].norm(dim=-1)
    print(f"{name:20}  gradient at token 1, as a share of the largest: {strength[0] / strength.max():.0e}")
    assert (strength[0] < 1e-6 * strength.max()) == (name == "recurrent")

# %% [markdown]
# ## A whole encoder layer
#
# Table 1 compares bare mechanisms. In the model, four projections surround attention, and a feed-forward network
# follows. With $d_k = d_v = d/h$ and $d_{\textit{ff}} = 4d$ an encoder layer takes $4nd^2$ for the projections, $8nd^2$
# for the network, and $2n^2d$ for what is special about attention. The two sides are equal at $n = 6d$.


# %%
#| export
def encoder_layer_costs(config: TransformerConfig, n: int) -> dict[str, int]:
    """Multiply–adds of one encoder layer on one sequence, by part; matrix products alone.

    Args:
        config: The model's sizes.
        n: Length of the sequence.

    Returns:
        "projections" (of queries, keys, values and output), "scores" (QKᵀ), "weighted sums" (of the values) and
        "feed-forward".

    Raises:
        ValueError: n is not a positive integer.

    Source: §3.1 to §3.3, §4.
    """
    _window("self-attention", n=n, k=None, r=None)
    d, h = config.d_model, config.n_heads
    keys, values = h * (config.d_k or d // h), h * (config.d_v or d // h)
    return {
        "projections": 2 * n * d * (keys + values),
        "scores": n * n * keys,
        "weighted sums": n * n * values,
        "feed-forward": 2 * n * d * config.d_ff,
    }


# %%
#| export
def break_even_length(config: TransformerConfig) -> int:
    """The shortest sequence for which scores and weighted sums cost an encoder layer at least as much as all its rest.

    Args:
        config: The model's sizes.

    Returns:
        The length, 3072 for the base model, 6 · d_model wherever d_k = d_v = d_model / h and d_ff = 4 · d_model.

    Source: §4.
    """
    one = encoder_layer_costs(config, 1)  # scores and sums grow with n², the rest with n
    return -(-(one["projections"] + one["feed-forward"]) // (one["scores"] + one["weighted sums"]))


# %% [markdown]
# ### See it: the base model

# %%
base = transformer.TransformerConfig.base()
for n in (100, 3072, 4000):
    parts = encoder_layer_costs(base, n)
    total = sum(parts.values())
    print(f"n = {n}: {total / 1e6:,.0f} million multiply–adds")
    for part, cost in parts.items():
        print(f"  {part:14} {cost / 1e6:9,.1f}  {cost / total:6.1%}")
assert break_even_length(base) == 3072 == 6 * base.d_model
at_break_even = encoder_layer_costs(base, 3072)
assert 2 * (at_break_even["scores"] + at_break_even["weighted sums"]) == sum(at_break_even.values())

# %% [markdown]
# At 100 tokens, the products that grow with $n^2$ are about 3 % of the layer's work, and nearly two thirds are the
# feed-forward network's. At 4,000 they are more than half. The other chapter on cost,
# [5.2](05_2b_the_cost_of_training.py), counts whole models, decoder and vocabulary included.
#
# ### Check it: the model's own layer, counted by PyTorch

# %%
for changes in ({}, {"d_k": 8, "d_v": 24}, {"n_heads": 8}, {"d_ff": 100}):
    config = transformer.TransformerConfig.tiny(50, **changes)
    layer = transformer.Transformer(config).encoder.layers[0].eval()
    operations = sum(encoder_layer_costs(config, 37).values())
    assert counted(layer, torch.randn(3, 37, config.d_model)) == 3 * 2 * operations
    print(f"{operations:10,} multiply–adds, break-even at n = {break_even_length(config):4}   {changes or 'tiny'}")

# %% [markdown]
# ### What if: a longer input, a narrower model

# %% tags=["hide-input"]
length = alt.param(value=100, bind=alt.binding_range(min=100, max=8000, step=100, name="length n "))
width = alt.param(value=512, bind=alt.binding_select(options=[128, 256, 512, 1024], name="width d "))
n, d = length.name, width.name
parts = {"projections": f"4 * {d}", "scores": n, "weighted sums": n, "feed-forward": f"8 * {d}"}
cost = " : ".join(f"datum.part == '{part}' ? {expression}" for part, expression in parts.items()) + " : 0"
bars = (
    alt.Chart(alt.Data(values=[{"part": part} for part in parts]))
    .transform_calculate(share=f"({cost}) / (12 * {d} + 2 * {n})", cost=f"({cost}) * {n} * {d} / 1e6")
    .encode(
        x=alt.X(
            "share:Q",
            title="share of the layer's multiply–adds",
            axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, 1]),
        ),
        y=alt.Y("part:N", title=None, sort=list(parts)),
        tooltip=[
            alt.Tooltip("part:N"),
            alt.Tooltip("share:Q", format=".1%"),
            alt.Tooltip("cost:Q", title="million multiply–adds", format=",.1f"),
        ],
    )
)
special = "datum.part == 'scores' || datum.part == 'weighted sums'"
chart = alt.layer(
    bars.mark_bar().encode(color=alt.condition(special, alt.value("#E69F00"), alt.value("#0072B2"))),
    bars.mark_text(align="left", dx=4).encode(text=alt.Text("share:Q", format=".1%")),
).add_params(length, width)
chart = chart.properties(width=220, height=140, title="Comparing tokens is cheap far below n = 6d")
chart

# %% [markdown]
# The orange bars are the products that grow with $n^2$, the blue ones those that grow with $d^2$; $d_{\textit{ff}} =
# 4d$. Move $n$ to 3,000 at $d = 512$, and orange and blue are nearly even. At $d = 128$ that happens before 800. Only
# the ratio $n/d$ matters.
#
# ## Interpretability
#
# > As side benefit, self-attention could yield more interpretable models.
# >
# > — Section 4
#
# A recurrent state has no part that says which word it came from. An attention weight has: it stands between two
# tokens. Whether it explains what the model does is another question. [Attention
# Visualizations](08_attention_visualizations.py) looks at the weights of a trained model and measures what the heads
# find.
#
# ## Unsaid by the paper
#
# - **The projections.** The first row of Table 1 leaves out $4nd^2$, which a sentence pays far more for than for the
#   $n^2$. With them, attention takes *more* operations than a plain recurrence at any length. Against an LSTM, with its
#   four gates and $8nd^2$, it takes fewer up to $n = 2d$. The count below shows both.
# - **Which convolution.** $O(log_k(n))$ needs dilation. The widely used contiguous kernels need a stack of $O(n/k)$;
#   the paper says so in its text and not in its table.
# - **Paths in stacks.** The third column counts layers. A model with $N = 6$ layers gives a window of $r$ six chances
#   to hand information on, so restricted attention in a deep model sees further than $r$.
# - **What changed since.** Fused kernels (FlashAttention, Dao et al. 2022) removed the square from memory, not from the
#   count. Restricted attention became a common part of models for long input, for instance in Longformer (Beltagy et
#   al. 2020), together with a few positions that see everything. Recurrences without a nonlinearity between the steps
#   can be computed by a parallel scan, in about $\log_2 n$ rounds instead of $n$, which weakens the second argument
#   against them.

# %%
for n in (50, 512, 1024, 2048):
    parts = encoder_layer_costs(base, n)
    whole = parts["projections"] + parts["scores"] + parts["weighted sums"]
    plain = layer_operations("recurrent", n, 512)
    print(f"n = {n:4}: attention with projections {whole / plain:.2f} recurrences, {whole / (4 * plain):.2f} LSTMs")
    assert whole > plain and (whole < 4 * plain) == (n < 1024)

# %% [markdown]
# ## What we now know
#
# - PyTorch's counter agrees with `layer_operations` to the last multiply–add, for six kinds of layer, and with
#   `encoder_layer_costs` for the model's own.
# - Attention's and recurrence's terms are equal at $n = d$; at $n = 8192$ and $d = 512$ attention's is 16 times as
#   large. On the clock attention starts ahead and ends behind. With one sentence alone it is still ahead at $2d$.
# - The longest chain of products is constant for all but the recurrence, where it is $n$.
# - Maximum path lengths, by gradients: 1, $n$, $\lceil (n-1)/(k-1) \rceil$ or with dilation $\lceil \log_k n \rceil$,
#   and about $2n/r$.
# - A recall across 32 tokens was learned over a path of 1 and of 4, not over one of 32.
# - In a base encoder layer, the $n^2$ part is about 3 % at 100 tokens, more than half at 4,000, and even with the rest
#   at 3,072.
#
# ## Exercises
#
# 1. **Predict, then run.** At which length does attention's $n^2$ outweigh the rest in the big model, and in a base model with
#    $d_{\textit{ff}} = 1024$?
# 2. **Minutes.** Where does the cost of a base encoder layer lie at $n = 100$, and at 4,000? Give the shares of projections,
#    feed-forward network, and scores with weighted sums. Check: `check("4-where-the-cost-lies", two_rows_of_three)`.
# 3. **An hour.** Make the dilated windows centred, as an encoder would want them, with $k = 3$ and $n = 9$. Which inputs does
#    the last position never see, however many layers you stack? Why?
# 4. **An hour.** Put `nn.LSTM` into the recall task. How far does it carry the first token in the same updates? Then set the bias
#    of its forget gate to 1 and try again.
# 5. **An hour.** A causal mask makes half of the scores useless. Write attention in blocks that skips the blocks above the
#    diagonal, and show with the counter how close to a half it gets.
# 6. **A day.** Draw the chart of the clock on a GPU, with one sentence and with 64. Where is the crossover now, and what has
#    become of restricted attention, which wins on paper?

# %% tags=["hide-cell"]
# Exercise 1: 6 d for big; for the narrow network (4 d² + 2 d d_ff) / (2 d) = 2 d + d_ff.
big, narrow = transformer.TransformerConfig.big(), transformer.TransformerConfig.base(d_ff=1024)
print(break_even_length(big), break_even_length(narrow))
assert break_even_length(big) == 6 * 1024 and break_even_length(narrow) == 2 * 512 + 1024

# %% [markdown]
# Solution to exercise 2: in a sentence nearly all of it is $d^2$, and most of that the network's. In a long document the $n^2$ has more than half.

# %% tags=["hide-cell"]
from transformer.exercises import check

shares = []
for n in (100, 4000):
    parts = encoder_layer_costs(base, n)
    each = [parts["projections"], parts["feed-forward"], parts["scores"] + parts["weighted sums"]]
    shares.append([part / sum(each) for part in each])
    print(f"n = {n}:", ", ".join(f"{share:.1%}" for share in shares[-1]))
verdict = check("4-where-the-cost-lies", shares)
print(verdict)
assert verdict

# %% tags=["hide-cell"]
# Exercise 3: each layer goes its dilation to the left, to the right, or stays. Every way to go 5 to 8 places to the left
# by 1, 3, 9, 27 … begins, seen from the output, with 9: 8 = 9 − 1, 7 = 9 − 3 + 1, and so on. From the last of nine
# positions that leads over the edge, where there is nothing but padding.
x = torch.randn(1, 4, 9, dtype=torch.float64, requires_grad=True)  # (B, d, n)
y = x
for i in range(6):
    y = nn.Conv1d(4, 4, 3, padding=3**i, dilation=3**i).double()(y)
(gradient,) = torch.autograd.grad(y[0, :, -1].sum(), x)
unseen = [position for position, g in enumerate(gradient[0].abs().sum(0).tolist(), start=1) if g == 0]
print("never seen: inputs", *unseen)
assert unseen == [1, 2, 3, 4]

# %% [markdown]
# ## The notebook and the module agree

# %%
for kind in LAYER_KINDS:
    assert transformer.layer_operations(kind, 50, 512, k=3, r=9) == layer_operations(kind, 50, 512, k=3, r=9)
    assert transformer.maximum_path_length(kind, 50, k=3, r=9) == maximum_path_length(kind, 50, k=3, r=9)
    assert transformer.sequential_operations(kind, 50) == sequential_operations(kind, 50)
assert transformer.encoder_layer_costs(base, 77) == encoder_layer_costs(base, 77)
assert transformer.break_even_length(base) == break_even_length(base)
print("equal counts from the notebook and from", transformer.layer_operations.__module__)
