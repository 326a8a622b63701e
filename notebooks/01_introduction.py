# %% [markdown]
# # 1 Introduction
#
# The introduction makes one argument. Recurrent networks read a sequence one position after the other, so beyond a point
# more hardware does not make them faster on a long one; attention connects any two positions at once. This chapter measures
# both halves: what the order costs, and how far a gradient reaches.

# %%
import math
import statistics
import time
from collections.abc import Callable

import altair as alt
import torch
from torch import Tensor, nn

import transformer

transformer.check_version("0.1")

# %% [markdown]
# ## One state after the other
#
# > Recurrent models typically factor computation along the symbol positions of the input and output sequences. Aligning
# > the positions to steps in computation time, they generate a sequence of hidden states $h_t$, as a function of the
# > previous hidden state $h_{t-1}$ and the input for position $t$.
# >
# > — Section 1
#
# As code, that is a loop. In the simplest recurrent network the function is one matrix for the input, one for the state,
# and a tanh.


# %%
def recurrent_layer(x: Tensor, w_x: Tensor, w_h: Tensor) -> Tensor:
    """h_t = tanh(x_t w_x + h_{t−1} w_h), for inputs (n, d)."""
    h, states = torch.zeros(1, w_h.size(0), dtype=x.dtype), []
    for x_t in x.split(1):  # (1, d)
        h = torch.tanh(x_t @ w_x + h @ w_h)  # (1, d); waits for the h before it
        states.append(h)
    return torch.cat(states)  # (n, d)


# %% [markdown]
# ![Recurrence and self-attention over four positions, each read from bottom to top. Recurrence: every state takes its own input and the state before it, so the states come in four steps, and the first input reaches the last state by four arrows. Self-attention: every output takes every input, so all come in one step, and the first input reaches the last output by one arrow.](../book/diagrams/recurrence_and_attention.svg)
#
# ### See it: PyTorch's layer is this loop
#
# `nn.RNN` computes the same, with the loop hidden inside.

# %%
torch.manual_seed(0)
rnn = nn.RNN(input_size=6, hidden_size=6, bias=False, batch_first=True).double()
x = torch.randn(4, 6, dtype=torch.float64)
states = recurrent_layer(x, rnn.weight_ih_l0.T, rnn.weight_hh_l0.T)
for t, h in enumerate(states, 1):
    print(f"step {t}: h_{t} = [{', '.join(f'{value:5.2f}' for value in h[:4].tolist())}, …]")
torch.testing.assert_close(states, rnn(x[None])[0][0])

# %% [markdown]
# ### Check it: the longest chain
#
# How many matrix products of a layer, as it is written, *must* wait for each other? PyTorch records what each result was
# computed from, to find gradients later. The longest path through that record is the answer, and it depends on no machine.


# %%
def longest_chain(output: Tensor) -> int:
    """The most matrix products on any path through the record of how `output` was computed."""
    length, waiting = {None: 0}, [output.grad_fn]
    while waiting:
        node = waiting[-1]
        parents = [parent for parent, _ in node.next_functions]
        unknown = [parent for parent in parents if parent not in length]
        waiting += unknown
        if not unknown:  # mm, addmm and bmm are PyTorch's matrix products
            length[node] = max((length[parent] for parent in parents), default=0) + ("mm" in node.name().lower())
            waiting.pop()
    return length[output.grad_fn]


# %%
torch.manual_seed(0)
d = 16
w_x, w_h = (torch.randn(d, d, requires_grad=True) for _ in range(2))
attention = transformer.MultiHeadAttention(d, n_heads=2)
attention.on_weights = lambda weights: None  # Equation (1) as written, not the fused kernel: every product is recorded

print("    n   recurrent   self-attention")
for n in (10, 50, 100, 1000):
    x = torch.randn(1, n, d)
    chains = longest_chain(recurrent_layer(x[0], w_x, w_h)), longest_chain(attention(x, x, x))
    print(f"{n:5}{chains[0]:12}{chains[1]:17}")
    assert chains == (n, 4)

# %% [markdown]
# A recurrent layer over $n$ positions is a chain of $n$ products. A self-attention layer is a chain of four, whatever
# $n$ is: projections, $QK^T$, weights times $V$, output projection. Section 4 of the paper calls this number *sequential
# operations*; [its chapter](04_why_self_attention.py) has it for convolutions, too.
#
# ## What the order costs
#
# > This inherently sequential nature precludes parallelization within training examples, which becomes critical at longer
# > sequence lengths, as memory constraints limit batching across examples.
# >
# > — Section 1
#
# Two things make a layer slow, and they are easily confused: how much there is to compute, and how much of it has to wait.
# So we time three layers of one width, forward and backward:
#
# - an LSTM over one sequence of $n$ positions;
# - **the same LSTM over $n$ sequences of one position.** The weights are the same, and so is the number of
#   multiplications; only nothing waits for anything. It is of no use, except to tell the two causes apart;
# - a self-attention layer over one sequence of $n$ positions.
#
# One thread, and the time that the processor spent on it, so that other programs disturb little. Each time is the shortest
# of four.

# %%
torch.set_num_threads(1)
torch.manual_seed(0)
D, LENGTHS = 256, [16, 32, 64, 128, 256, 512, 1024]
lstm, attention = nn.LSTM(D, D, batch_first=True), transformer.MultiHeadAttention(D, n_heads=8)
LAYERS = {
    "LSTM, in order": lambda x: lstm(x)[0],
    "LSTM, nothing waits": lambda x: lstm(x.transpose(0, 1))[0],  # n sequences of one position
    "self-attention": lambda x: attention(x, x, x),
}


def seconds(layer: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Processor time of one forward and one backward pass."""
    start = time.thread_time()
    layer(x).sum().backward()
    return time.thread_time() - start


times = {(name, n): math.inf for name in LAYERS for n in LENGTHS}
for _ in range(4):
    for name, n in times:
        times[name, n] = min(times[name, n], seconds(LAYERS[name], torch.randn(1, n, D)))

assert times["self-attention", 64] < times["LSTM, in order", 64]
assert times["LSTM, nothing waits", 1024] < times["LSTM, in order", 1024]
assert times["LSTM, in order", 1024] > 3 * times["LSTM, in order", 64]
assert times["self-attention", 1024] / times["self-attention", 64] > times["LSTM, in order", 1024] / times["LSTM, in order", 64]

# %% [markdown]
# The LSTM needs $8nd^2$ multiply–adds (four gates, each with a matrix for the input and one for the state), attention
# $4nd^2 + 2n^2d$ (four projections, scores, weighted sums).

# %%
for n in (64, 512, 1024):
    print(f"n = {n:4}: LSTM {8 * n * D**2 / 1e6:5.0f} million, attention {(4 * n * D**2 + 2 * n**2 * D) / 1e6:5.0f} million")
assert 8 * 512 * D**2 == 4 * 512 * D**2 + 2 * 512**2 * D  # as much at n = 2d

# %% tags=["hide-input"]
rows = [{"layer": name, "n": n, "ms": float(f"{1000 * best:.3g}")} for (name, n), best in times.items()]
COLOURS = {"LSTM, in order": "#D55E00", "LSTM, nothing waits": "#E69F00", "self-attention": "#0072B2"}
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=50))
    .encode(
        x=alt.X("n:Q", title="n, positions", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=LENGTHS, grid=False)),
        y=alt.Y("ms:Q", title="milliseconds, forward and backward", scale=alt.Scale(type="log"), axis=alt.Axis(values=[0.1, 1, 10, 100, 1000])),
        color=alt.Color(
            "layer:N",
            title=None,
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            legend=alt.Legend(orient="top", columns=2, labelLimit=0),
        ),
        strokeDash=alt.StrokeDash("layer:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(COLOURS)])),
        tooltip=["layer:N", alt.Tooltip("n:Q", title="positions"), alt.Tooltip("ms:Q", title="milliseconds", format=".1f")],
    )
    .properties(title="Short sequences: attention is faster", width=262, height=230)
)
chart

# %% [markdown]
# What to see: measured when this page was built. At the length of a sentence attention is well ahead, on long sequences
# its $n^2$ catches up. The distance between the two LSTM lines is the price of order alone: each step is started anew, and
# fetches the weights of the state again to multiply one vector with them. The other line multiplies all vectors at once.
#
# **What a CPU core shows, and what it does not.** The price is real, but small. One core does one thing at a time anyway;
# a layer that could do a thousand things at once gains little from it. The paper's argument is about machines with
# thousands of multipliers. We have none here, but we can count for one.
#
# ### What if: a machine with many multipliers
#
# Take an ideal machine that makes $P$ multiply–adds per tick, and nothing else takes time. A product of $w$ multiply–adds
# needs $\lceil w/P \rceil$ ticks, and at least one. Products in a chain add up.


# %%
def ticks(kind: str, n: int, batch: float, multipliers: float, d: int = D) -> int:
    """Ticks of a forward pass over `batch` sequences of n positions."""
    tokens = batch * n
    if kind == "LSTM":  # all inputs at once, then the states one by one
        chain = [4 * tokens * d**2] + n * [4 * batch * d**2]
    else:  # projections, scores, weighted sums, output projection
        chain = [3 * tokens * d**2, tokens * n * d, tokens * n * d, tokens * d**2]
    return sum(math.ceil(work / multipliers) for work in chain)


print("one sequence of 1024            LSTM  self-attention")
for power in (0, 3, 6, 9):
    print(f"P = 10^{power} {ticks('LSTM', 1024, 1, 10**power):25,} {ticks('self-attention', 1024, 1, 10**power):15,}")
assert ticks("LSTM", 1024, 1, 1e9) == 1024 + 1 and ticks("self-attention", 1024, 1, 1e9) == 4

# %% tags=["hide-input"]
TOKENS = 16_384
rows = [
    {"layer": kind, "n": n, "p": p, "batch": name, "ticks": ticks(kind, n, batch, 10**p)}
    for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    for name, batch in (("one sequence", 1), ("16,384 tokens", TOKENS // n))
    for kind in ("LSTM", "self-attention")
    for p in range(11)
]
p = alt.param(name="power", value=0, bind=alt.binding_range(min=0, max=10, step=1, name="P = 10 to the power of "))
batch = alt.param(
    name="batch", value="one sequence", bind=alt.binding_radio(options=["one sequence", "16,384 tokens"], name="batch ")
)
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.p == power && datum.batch == batch")
    .mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=50))
    .encode(
        x=alt.X("n:Q", title="n, positions in a sequence", scale=alt.Scale(type="log", base=2), axis=alt.Axis(grid=False)),
        y=alt.Y(
            "ticks:Q",
            title="ticks of the ideal machine",
            scale=alt.Scale(type="log", domain=[1, 1e11]),
            axis=alt.Axis(format=".0e", tickCount=6),
        ),
        color=alt.Color(
            "layer:N",
            title=None,
            scale=alt.Scale(domain=["LSTM", "self-attention"], range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top"),
        ),
        strokeDash=alt.StrokeDash("layer:N", title=None, scale=alt.Scale(domain=["LSTM", "self-attention"], range=[[6, 3], [1, 0]])),
        tooltip=["layer:N", alt.Tooltip("n:Q", title="positions"), alt.Tooltip("ticks:Q", format=",")],
    )
    .add_params(p, batch)
    .properties(title="With many multipliers, order decides", width=262, height=230)
)
chart

# %% [markdown]
# Move $P$ to the right. Both lines sink; then the LSTM's stops at $n + 1$ ticks, while attention's sinks on to four. The second
# batch is the paper's last clause: memory holds a fixed number of tokens, so longer sequences mean fewer of them. Now
# every point of the LSTM is the *same amount of work*. With one multiplier its line is flat. With many it rises: a batch of
# many short sequences gives each step enough to do, a batch of few long ones does not.
#
# In this count the order begins to hurt where a machine has about as many multipliers as a step has multiply–adds: $4d^2$
# for one sequence, $4d^2$ times the batch for several. With fewer it costs at most the rest of a tick in each step: with
# $10^6$, a step of four sequences has 1,048,576 and takes two ticks. A real machine feels it earlier, because it also fetches
# what it multiplies.

# %%
step = 4 * D**2  # multiply–adds of a step, for one sequence
enough, plenty = ticks("LSTM", 1024, 1, step), ticks("LSTM", 1024, 1, 1000 * step)
print(f"LSTM, one sequence of 1024: P = 4d² {enough:,} ticks, a thousand times as many multipliers {plenty:,}\n")
assert enough == 8 * 1024 * D**2 / step and plenty > enough / 2  # none idle; hardly any busy

print("LSTM, 16,384 tokens   n = 16       n = 4096")
for power in (0, 4, 6, 8):
    few, many = (ticks("LSTM", n, TOKENS // n, 10**power) for n in (16, 4096))
    print(f"P = 10^{power} {few:22,} {many:14,}  {many / few:5.1f} times as long")
print(f"a step of four sequences: {4 * step:,} multiply–adds")
assert ticks("LSTM", 4096, 4, 1) == ticks("LSTM", 16, 1024, 1)
assert ticks("LSTM", 4096, 4, 10**8) > 40 * ticks("LSTM", 16, 1024, 10**8)

# %% [markdown]
# ## How far a gradient reaches
#
# The order has a second price. What the last state knows of the first input has passed through every state in between, and
# the gradient comes back the same way.
#
# > Attention mechanisms have become an integral part of compelling sequence modeling and transduction models in various
# > tasks, allowing modeling of dependencies without regard to their distance in the input or output sequences.
# >
# > — Section 1
#
# We measure $\lVert \partial\,\text{output}_n / \partial\,\text{input}_i \rVert$, the root of the sum of squares of all
# $d \times d$ derivatives, against the distance $n - i$. One backward pass gives them all: the sequence is copied $d$
# times, and each copy asks for another component of the last output.


# %%
def reach(layer: Callable[[Tensor], Tensor], n: int, d: int) -> Tensor:
    """Norm of the derivatives of the last output by the input at distance 0, 1, …, n−1."""
    x = torch.randn(1, n, d, dtype=torch.float64).repeat(d, 1, 1).requires_grad_()  # (d, n, d)
    layer(x)[:, -1].backward(torch.eye(d, dtype=torch.float64))
    return x.grad.square().sum(dim=(0, 2)).sqrt().flip(0)  # (n,)


def make_layer(kind: str, d: int, gate: float = 0.0) -> Callable[[Tensor], Tensor]:
    """A layer as PyTorch starts it; `gate` is added to the biases of an LSTM's forget gates."""
    if kind == "self-attention":
        attention = transformer.MultiHeadAttention(d, n_heads=4).double()
        return lambda x: attention(x, x, x)
    layer = (nn.LSTM if kind == "LSTM" else nn.RNN)(d, d, batch_first=True).double()
    if kind == "LSTM":
        with torch.no_grad():
            layer.bias_ih_l0[d : 2 * d] += gate
    return lambda x: layer(x)[0]


# %%
def typical_reach(kind: str, gate: float = 0.0, n: int = 101, d: int = 32) -> list[float]:
    """The median over five random layers and inputs."""
    found = []
    for seed in range(5):
        torch.manual_seed(seed)
        found.append(reach(make_layer(kind, d, gate), n, d))
    return torch.stack(found).median(dim=0).values.tolist()


GATES = range(6)
reaches = {("RNN", -1): typical_reach("RNN")}
reaches |= {("LSTM", gate): typical_reach("LSTM", gate) for gate in GATES}
reaches["self-attention", -1] = typical_reach("self-attention")

print("distance                        1        10        50       100")
for (kind, gate), norms in reaches.items():
    if gate in (-1, 0, 5):
        label = f"{kind}, forget gates +{gate}" if gate > 0 else kind
        print(f"{label:23}", *(f"{norms[k]:9.0e}" for k in (1, 10, 50, 100)))

for kind, gate in (("RNN", -1), ("LSTM", 0)):
    norms = reaches[kind, gate]
    assert norms[100] < 1e-10 * norms[50] < 1e-15 * norms[10]  # exponentially small
norms = reaches["self-attention", -1]
assert max(norms[1:]) < 3 * min(norms[1:])  # at whatever distance
assert reaches["LSTM", 5][100] > 0.1

# %% [markdown]
# After a hundred steps the first input is gone from these untrained recurrent networks: no update notices it. The
# self-attention layer treats all distances alike. Two things need saying at once.
#
# **This is the start of training, not its end,** and PyTorch's start is one of many. An LSTM has gates, and if its forget
# gates open, the state is carried on almost unchanged. With 5 added to their biases the gradient does not fade over a
# hundred steps, and is larger than attention's. Nothing forbids training to find this; it only starts far away from it.
#
# **Attention's gradient is small, too.** It is a share: with nearly equal weights on 101 positions each gets about a
# hundredth. But it shrinks like $1/n$, not exponentially, and equally for near and far.

# %%
for n in (11, 51, 101, 201):
    norms = typical_reach("self-attention", n=n)
    print(f"n = {n:3}: mean over all distances {statistics.mean(norms[1:]):.3f}, times n {n * statistics.mean(norms[1:]):.1f}")
    assert 1.5 < n * statistics.mean(norms[1:]) < 3

# %% tags=["hide-input"]
rows = [{"layer": kind, "gate": gate, "norm": [float(f"{v:.3g}") for v in norms]} for (kind, gate), norms in reaches.items()]
gate = alt.param(name="opened", value=0, bind=alt.binding_range(min=0, max=5, step=1, name="added to the forget gates "))
COLOURS = {"RNN": "#E69F00", "LSTM": "#D55E00", "self-attention": "#0072B2"}
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.gate < 0 || datum.gate == opened")
    .transform_flatten(["norm"])
    .transform_window(number="row_number()", groupby=["layer"])
    .transform_calculate(distance="datum.number - 1")
    .mark_line(strokeWidth=2.5)
    .encode(
        x=alt.X("distance:Q", title="distance, positions"),
        y=alt.Y(
            "norm:Q",
            title="gradient norm",
            scale=alt.Scale(type="log", domain=[1e-35, 10]),
            axis=alt.Axis(format=".0e", tickCount=6),
        ),
        color=alt.Color(
            "layer:N",
            title=None,
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            legend=alt.Legend(orient="top"),
        ),
        strokeDash=alt.StrokeDash("layer:N", title=None, scale=alt.Scale(domain=list(COLOURS), range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(COLOURS)])),
        tooltip=["layer:N", "distance:Q", alt.Tooltip("norm:Q", title="gradient norm", format=".1e")],
    )
    .add_params(gate)
    .properties(title="Attention's gradient does not fade", width=262, height=230)
)
chart

# %% [markdown]
# Move the slider: the LSTM's line rises with its gates until it falls no more. A line that falls straight on this scale is
# exponential decay, a factor for every step.
#
# ### Check it: what comes of it
#
# A task that needs one distant dependency and nothing else: read $n$ random symbols out of eight and name the first. We
# give the LSTM a good start, its forget gates opened by 4, and each of the two the learning rate that served it better in
# a few trials. Attention gets the sinusoids of [Section 3.5](03_5_positional_encoding.py), since it does not know where a
# symbol stands otherwise.


# %%
class NameTheFirst(nn.Module):
    def __init__(self, kind: str, d: int = 32, n_symbols: int = 8) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(n_symbols, d), nn.Linear(d, n_symbols)
        if kind == "LSTM":
            self.core = nn.LSTM(d, d, batch_first=True)
            nn.init.constant_(self.core.bias_ih_l0[d : 2 * d].detach(), 4.0)
        else:
            self.core = transformer.MultiHeadAttention(d, n_heads=4)

    def forward(self, symbols: Tensor) -> Tensor:  # (B, n)
        x = self.embedding(symbols)  # (B, n, d)
        if isinstance(self.core, nn.LSTM):
            last = self.core(x)[0][:, -1]  # (B, d)
        else:
            x = x + transformer.sinusoids(x.size(1), x.size(2)).float()
            last = self.core(x[:, -1:], x, x)[:, 0]  # only the last position asks
        return self.output(last)  # (B, symbols)


# %%
def accuracy_after(kind: str, distance: int, learning_rate: float, updates: int = 150) -> float:
    """Train on fresh sequences; the share of right answers in the last 20 batches."""
    torch.manual_seed(0)
    model, rng, right = NameTheFirst(kind), torch.Generator().manual_seed(1), []
    adam = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(updates):
        symbols = torch.randint(8, (32, distance + 1), generator=rng)  # (B, n)
        logits = model(symbols)
        adam.zero_grad()
        nn.functional.cross_entropy(logits, symbols[:, 0]).backward()
        adam.step()
        right.append((logits.argmax(-1) == symbols[:, 0]).float().mean().item())
    return statistics.mean(right[-20:])


print("right after 150 updates (guessing: 0.1)")
for distance in (10, 50, 100):
    of_lstm, of_attention = accuracy_after("LSTM", distance, 0.003), accuracy_after("self-attention", distance, 0.01)
    print(f"distance {distance:3}: LSTM {of_lstm:.1f}, self-attention {of_attention:.1f}")
    assert of_attention > 0.9
    assert of_lstm > 0.9 if distance == 10 else of_lstm < 0.7

# %% [markdown]
# At a distance of ten both learn it. Beyond, the same number of updates is enough for attention and not for the LSTM. More
# of them take it further (exercise 5): the difficulty is one of learning, not of what the network could represent.
# [Section 4](04_why_self_attention.py) has the task for a plain recurrence and for convolutions.
#
# ## What the paper proposes
#
# > The fundamental constraint of sequential computation, however, remains.
# >
# > — Section 1
#
# Attention was not new in 2017. Nearly always it was used on top of recurrent networks: it gave them short paths, but left
# the chain of $n$ steps; [Section 2](02_background.py) builds such a model's attention. The new step is to take the recurrence away.
#
# > In this work we propose the Transformer, a model architecture eschewing recurrence and instead relying entirely on an
# > attention mechanism to draw global dependencies between input and output.
# >
# > — Section 1
#
# > The Transformer allows for significantly more parallelization and can reach a new state of the art in translation
# > quality after being trained for as little as twelve hours on eight P100 GPUs.
# >
# > — Section 1
#
# The first half of that sentence is what this chapter has counted. The twelve hours are those of the base model
# ([Section 5.2](05_2_hardware_and_schedule.py)); what they cost against other systems is in
# [the cost of training](05_2b_the_cost_of_training.py).
#
# ## Unsaid by the paper
#
# **Generating stays sequential.** A Transformer trains on all target positions at once, since it is given them. When it
# translates, it writes one token after the other, and each waits for the one before, as in a recurrent network
# ([Section 6.1](06_1a_decoding.py)). "More parallelization" is about training, and about reading.
#
# **Half of an LSTM is parallel.** The products with the inputs do not depend on any state, and libraries compute them
# for all positions at once; `ticks` above does, too. Only the products with the states form the chain.
#
# **An ideal machine fetches nothing.** On a real one a step at a time is worse than our count says: every step is started
# anew, and the weights of the state are fetched again. The two LSTM lines on one core differ by such costs alone.
#
# **It is the tanh that makes the chain.** A recurrence without one, $h_t = a_t h_{t-1} + x_t$, can be computed in about
# $\log_2 n$ steps (exercise 3). Most of the recurrent networks that came back after 2020, state-space models among them,
# are of this kind: they gave up the nonlinearity between states, and with it the constraint.
#
# ## What we now know
#
# - A recurrent layer over $n$ positions is a chain of $n$ matrix products, a self-attention layer one of 4.
# - On one core the order costs something, and on long sequences attention's $n^2$ catches up: it has $4nd^2 + 2n^2d$
#   multiply–adds to do against $8nd^2$, as much at $n = 2d$.
# - On an ideal machine with $10^9$ multipliers a sequence of 1024 takes an LSTM 1025 ticks and attention 4. With a fixed
#   number of tokens in a batch the LSTM takes the longer the longer its sequences are.
# - As PyTorch starts them, a gradient through a hundred recurrent steps is as good as zero. Open forget gates change that.
#   In our attention layer it is about $2/n$, whatever the distance.
# - In 150 updates one attention layer learns to name the first of 101 symbols; an LSTM with a good start does not.
#
# ## Exercises
#
# 1. **Predict, then run.** Two recurrent layers run on top of each other over $n = 100$ positions. How long is the longest
#    chain? Check: `check("1-two-layers", answer)`.
# 2. **Minutes.** Which bias lets an LSTM's gradient fall to a half over 100 steps? Estimate it from $\sigma(b)^{100} =
#    \frac{1}{2}$, then find it with `typical_reach`. Which ways back does the estimate leave out?
# 3. **An hour.** Compute $h_t = a_t h_{t-1} + x_t$ for all $t$ in about $\log_2 n$ steps, each over all positions at once.
# 4. **An hour.** Move the two layers of the timing to a GPU, for instance in Colab. Take `time.perf_counter`, and wait for the
#    GPU before you read it. Which of the three lines changes its shape?
# 5. **An hour.** How many updates does the LSTM need to name the first of 51 symbols? Try other gates and learning rates, and
#    gradient clipping.
# 6. **A day.** Put a bidirectional LSTM in place of the encoder of a tiny Transformer, train both for the same time on the
#    [embedded corpus](A1_the_embedded_corpus.py), and compare them on its `long` split.

# %% tags=["hide-cell"]
from transformer.exercises import check

n, d = 100, w_h.size(0)
lower, upper = torch.zeros(1, d), torch.zeros(1, d)
for x_t in torch.randn(n, d).split(1):
    lower = torch.tanh(x_t @ w_x + lower @ w_h)
    upper = torch.tanh(lower @ w_x + upper @ w_h)  # needs the lower state of this step, not the lower layer's last
print(f"one layer: {longest_chain(lower)}, two layers: {longest_chain(upper)}")
print(check("1-two-layers", longest_chain(upper)))
assert longest_chain(lower) == n and check("1-two-layers", longest_chain(upper))


# %% [markdown]
# Solution to exercise 1: the upper layer starts as soon as the lower one has its first state. The two climb side by side, and the
# chain is $n + 1$. Depth is cheap, length is not.
#
# Solution to exercise 3: two steps of the recurrence are again a step, $h_t = (a_t a_{t-1})\,h_{t-2} + (a_t x_{t-1} + x_t)$. So each
# position can take in the one before it, then the one two before, then four, and in ten rounds 1024 are done.


# %% tags=["hide-cell"]
def by_doubling(a: Tensor, x: Tensor) -> tuple[Tensor, int]:
    """h_t = a_t h_{t−1} + x_t for all t, and the number of rounds; a and x have shape (n,)."""
    step, rounds = 1, 0
    while step < x.numel():
        x = torch.cat([x[:step], a[step:] * x[:-step] + x[step:]])
        a = torch.cat([a[:step], a[step:] * a[:-step]])
        step, rounds = 2 * step, rounds + 1
    return x, rounds


a, x = torch.rand(1024, dtype=torch.float64), torch.randn(1024, dtype=torch.float64)
h, one_by_one = torch.zeros((), dtype=torch.float64), []
for a_t, x_t in zip(a, x):
    h = a_t * h + x_t
    one_by_one.append(h)
doubled, rounds = by_doubling(a, x)
print(f"1024 positions in {rounds} rounds")
torch.testing.assert_close(doubled, torch.stack(one_by_one))
assert rounds == math.log2(1024)
