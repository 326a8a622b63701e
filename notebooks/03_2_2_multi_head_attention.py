# %% [markdown]
# # 3.2.2 Multi-Head Attention
#
# One attention function returns one average. Multi-head attention runs $h$ of them side by side, each on its own projection of the input, and so brings back $h$ averages at once, for about the price of one.
#
# This chapter writes the equation as it stands and then as fast code, proves that both are the same, shows by experiment what one head cannot do, and counts the price.

# %%
#| default_exp multi_head

# %%
import transformer

transformer.check_version("0.1")

import altair as alt

# %% [markdown]
# ## The equation, as written
#
# > Instead of performing a single attention function with $d_{\text{model}}$-dimensional keys, values and queries, we found it beneficial to linearly project the queries, keys and values $h$ times with different, learned linear projections to $d_k$, $d_k$ and $d_v$ dimensions, respectively.
# >
# > On each of these projected versions of queries, keys and values we then perform the attention function in parallel, yielding $d_v$-dimensional output values. These are concatenated and once again projected, resulting in the final values, as depicted in Figure 2.
# >
# > — Section 3.2.2
#
# ![Multi-head attention as a flow from bottom to top: V, K and Q pass through h linear projections each, h attentions run in parallel, their outputs are concatenated and projected once more.](../book/diagrams/multi_head_attention.svg)
#
# > $$\begin{aligned}
# > \mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head_1}, ..., \mathrm{head_h})W^O\\
# > \text{where}~\mathrm{head_i} &= \mathrm{Attention}(QW^Q_i, KW^K_i, VW^V_i)
# > \end{aligned}$$
# >
# > Where the projections are parameter matrices $W^Q_i \in \mathbb{R}^{d_{\text{model}} \times d_k}$, $W^K_i \in \mathbb{R}^{d_{\text{model}} \times d_k}$, $W^V_i \in \mathbb{R}^{d_{\text{model}} \times d_v}$ and $W^O \in \mathbb{R}^{hd_v \times d_{\text{model}}}$.
# >
# > — Section 3.2.2

# %%
#| export
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import check_attention_inputs, scaled_dot_product_attention


# %% [markdown]
# Word for word, this is a loop over the heads. It is correct, and slow: every head starts five small matrix products.

# %%
def multi_head_as_written(
    query: Tensor, key: Tensor, value: Tensor, w_q: list[Tensor], w_k: list[Tensor], w_v: list[Tensor], w_o: Tensor
) -> Tensor:
    """MultiHead(Q, K, V), one head after the other; the lists hold one matrix a head."""
    heads = []
    for w_q_i, w_k_i, w_v_i in zip(w_q, w_k, w_v):
        head, _ = scaled_dot_product_attention(query @ w_q_i, key @ w_k_i, value @ w_v_i)  # (m, d_v)
        heads.append(head)
    return torch.cat(heads, dim=-1) @ w_o  # (m, h·d_v) @ (h·d_v, d_model) → (m, d_model)


# %% [markdown]
# > In this work we employ $h=8$ parallel attention layers, or heads. For each of these we use $d_k=d_v=d_{\text{model}}/h=64$.
# >
# > — Section 3.2.2
#
# ## See it: the shapes of the base model
#
# The paper's sizes, with ten positions that attend to themselves:

# %%
torch.manual_seed(0)
n, d_model, h = 10, 512, 8
d_k = d_v = d_model // h
x = torch.randn(n, d_model)
w_q, w_k = [torch.randn(d_model, d_k) for _ in range(h)], [torch.randn(d_model, d_k) for _ in range(h)]
w_v, w_o = [torch.randn(d_model, d_v) for _ in range(h)], torch.randn(h * d_v, d_model)

print("input                 ", tuple(x.shape))
print("one projected query   ", tuple((x @ w_q[0]).shape), "and there are", h)
print("one head's weights    ", tuple(scaled_dot_product_attention(x @ w_q[0], x @ w_k[0], x @ w_v[0])[1].shape))
print("one head              ", tuple(scaled_dot_product_attention(x @ w_q[0], x @ w_k[0], x @ w_v[0])[0].shape))
print("W^O                   ", tuple(w_o.shape))
print("output                ", tuple(multi_head_as_written(x, x, x, w_q, w_k, w_v, w_o).shape))

# %% [markdown]
# ## h small projections are one big one
#
# Lay the $h$ matrices $W^Q_1, \dots, W^Q_h$ side by side to one matrix with $h \cdot d_k$ columns. Entry $(r, c)$ of a product $XW$ is row $r$ of $X$ times *column $c$ of $W$*; no other column of $W$ takes part. So a matrix product may be cut between columns as one likes:
#
# $$X \, [W_1 \mid \dots \mid W_h] = [X W_1 \mid \dots \mid X W_h]$$
#
# The last projection can be cut too, along the rows. Give head $i$ its own $d_v$ rows $W^O_i$ of $W^O$; then
#
# $$\mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h)\, W^O = \sum_{i=1}^{h} \mathrm{head}_i \, W^O_i$$
#
# So concatenation mixes nothing: each head adds its own contribution to the output, whatever the others add.
#
# Whole numbers have no rounding, so with integer matrices the two sides must be equal to the last digit. They are:

# %%
torch.manual_seed(0)
X = torch.randint(-9, 10, (10, 512))
small = [torch.randint(-9, 10, (512, 64)) for _ in range(8)]
big = torch.cat(small, dim=1)  # (512, 8·64)
assert torch.equal(X @ big, torch.cat([X @ w for w in small], dim=1))

heads = [torch.randint(-9, 10, (10, 64)) for _ in range(8)]
W_O = torch.randint(-9, 10, (8 * 64, 512))
assert torch.equal(torch.cat(heads, dim=1) @ W_O, sum(head @ rows for head, rows in zip(heads, W_O.split(64))))
print("one product with", tuple(big.shape), "equals 8 products with", tuple(small[0].shape))

# %% [markdown]
# Now the class. One `nn.Linear` each for queries, keys and values projects for all heads together. `_split` cuts the result into heads and moves the head before the position, so that all heads attend in one batched call. `project` and `attend` are apart because a decoder projects the encoder's output once and then attends to it at every step.
#
# The paper gives $d_k$ and $d_v$ different names, and so does the class. They are equal in the base model but need not be.

# %%
#| export
class MultiHeadAttention(nn.Module):
    """h attention functions in parallel, each on its own projection of the inputs.

    The four matrices hold the heads side by side: W^Q is (d_model, h·d_k), head i owns columns i·d_k to (i+1)·d_k.

    Args:
        d_model: Width of the inputs and the output.
        n_heads: h, the number of heads.
        d_k: Width of one head's queries and keys; d_model / h if None.
        d_v: Width of one head's values; d_model / h if None.
        attention_dropout: Dropout rate on the weights; 0 in the paper, 0.1 in its authors' later code.

    Attributes:
        on_weights: If set, called with the weights (B, h, m, n) of every forward pass. Only then are they computed.

    Raises:
        ValueError: A size is not positive, or d_model is not divisible by n_heads and d_k or d_v is not given.

    Source: §3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_k": d_k, "d_v": d_v}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name}={size}; give a positive number.")
        if (d_k is None or d_v is None) and d_model % n_heads:
            raise ValueError(
                f"d_model={d_model} is not divisible by n_heads={n_heads}; choose a divisor or give d_k and d_v."
            )
        self.d_model, self.n_heads = d_model, n_heads
        self.d_k = d_k or d_model // n_heads
        self.d_v = d_v or d_model // n_heads
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.on_weights: Callable[[Tensor], None] | None = None
        self.w_q = nn.Linear(d_model, n_heads * self.d_k)
        self.w_k = nn.Linear(d_model, n_heads * self.d_k)
        self.w_v = nn.Linear(d_model, n_heads * self.d_v)
        self.w_o = nn.Linear(n_heads * self.d_v, d_model)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend from every query position to the key positions.

        Args:
            query: Shape (B, m, d_model).
            key: Shape (B, n, d_model).
            value: Shape (B, n, d_model).
            mask: Bool, broadcastable to (B, h, m, n), True where a query may attend; or None.
            is_causal: Hide later positions without a mask tensor; the last query stands at the last key.

        Returns:
            Shape (B, m, d_model).

        Raises:
            TypeError: An input has not the dtype of the weights, or the mask is not bool.
            ValueError: The shapes do not fit together.
        """
        keys, values = self.project(key, value)
        return self.attend(query, keys, values, mask, is_causal)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values once, for one or many calls of `attend`.

        Args:
            key: Shape (B, n, d_model).
            value: Shape (B, n, d_model).

        Returns:
            Keys (B, h, n, d_k) and values (B, h, n, d_v).
        """
        self._check("key", key)
        self._check("value", value)
        return self._split(self.w_k(key)), self._split(self.w_v(value))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend to keys and values that are already projected.

        Args:
            query: Shape (B, m, d_model), not yet projected.
            keys: Shape (B, h, n, d_k).
            values: Shape (B, h, n, d_v).
            mask: As in `forward`.
            is_causal: As in `forward`.

        Returns:
            Shape (B, m, d_model).
        """
        self._check("query", query)
        queries = self._split(self.w_q(query))  # (B, h, m, d_k)
        check_attention_inputs(queries, keys, values, mask)
        m, n = queries.size(-2), keys.size(-2)
        if is_causal and (m != n or mask is not None or self.on_weights is not None):
            causal = torch.ones(m, n, dtype=torch.bool, device=query.device).tril(diagonal=n - m)
            mask, is_causal = causal if mask is None else mask & causal, False
        if self.on_weights is not None:
            heads, weights = scaled_dot_product_attention(queries, keys, values, mask, self.attention_dropout)
            self.on_weights(weights)
        else:  # the same function, fused into one kernel that never stores the weights
            rate = self.attention_dropout.p if self.training else 0.0
            heads = F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=rate, is_causal=is_causal)
        return self.w_o(heads.transpose(1, 2).flatten(2))  # (B, m, d_model)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, n, h·d) → (B, h, n, d)

    def _check(self, name: str, x: Tensor) -> None:
        if x.dim() != 3 or x.size(-1) != self.d_model:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (B, length, {self.d_model}).")
        wanted = self.w_q.weight.dtype
        if x.dtype != wanted and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name} has dtype {x.dtype} and the weights {wanted}; convert one of them.")


# %% [markdown]
# ## Check it: the class computes the equation
#
# Copy the weights of the class into the loop and compare. `nn.Linear` stores its matrix transposed, so head $i$ owns rows $i \cdot d_k$ to $(i+1) \cdot d_k$ of `weight`. The equation has no biases, so they are set to 0 here. Sizes are odd on purpose: $d_k \neq d_v$, more keys than queries.

# %%
torch.manual_seed(0)
attention = MultiHeadAttention(d_model=24, n_heads=3, d_k=5, d_v=7).double()
with torch.no_grad():
    for linear in (attention.w_q, attention.w_k, attention.w_v, attention.w_o):
        linear.bias.zero_()
query, memory = torch.randn(1, 4, 24).double(), torch.randn(1, 6, 24).double()

by_class = attention(query, memory, memory)[0]
by_loop = multi_head_as_written(
    query[0],
    memory[0],
    memory[0],
    [w.T for w in attention.w_q.weight.split(5)],
    [w.T for w in attention.w_k.weight.split(5)],
    [w.T for w in attention.w_v.weight.split(7)],
    attention.w_o.weight.T,
)
difference = (by_class - by_loop).abs().max().item()
assert difference < 1e-14
print("class and loop differ by less than 1e-14")

# %% [markdown]
# The cut is where such code goes wrong. The tempting one-liner `x.view(B, h, n, d_k)` gives the right *shape* and the wrong contents: it deals out whole positions to the heads, so a "head" holds every component of a few positions in place of a few components of every position. Nothing crashes, and the model still trains, only worse. Count which positions end up in head 0:

# %%
n, h, d_k = 4, 2, 3
position = torch.arange(n).view(1, n, 1).expand(1, n, h * d_k)  # every component knows its position
right = position.unflatten(-1, (h, d_k)).transpose(1, 2)  # (1, h, n, d_k)
wrong = position.reshape(1, h, n, d_k)
print("split and transpose, head 0:", right[0, 0].tolist())
print("view, head 0:               ", wrong[0, 0].tolist())
assert right.shape == wrong.shape
assert right[0, 0].unique().tolist() == [0, 1, 2, 3] and wrong[0, 0].unique().tolist() == [0, 1]

# %% [markdown]
# ### The fused kernel is Equation (1)
#
# Unless someone asks for the weights, the class does not call our `scaled_dot_product_attention` but PyTorch's function of the same name. It computes block by block and never stores the $m \times n$ weights. That is a claim about another person's code, so it is checked: outputs and the gradients of all parameters, without a mask, with a random mask that leaves one row empty, and with the causal shortcut.

# %%
def output_and_gradients(explicit: bool, **how: object) -> list[Tensor]:
    """Run the attention on fixed inputs by one of its two ways."""
    attention.on_weights = (lambda weights: None) if explicit else None
    attention.zero_grad()
    output = attention(memory, memory, memory, **how)
    output.square().sum().backward()
    return [output.detach(), *(p.grad.clone() for p in attention.parameters())]


mask = torch.rand(1, 1, 6, 6) > 0.4
mask[..., 2, :] = False  # the third query may see nothing
for name, how in {"no mask": {}, "mask": {"mask": mask}, "causal": {"is_causal": True}}.items():
    pairs = list(zip(output_and_gradients(True, **how), output_and_gradients(False, **how)))
    assert all(torch.allclose(ours, fused, atol=1e-12) and ours.isfinite().all() for ours, fused in pairs)
    print(f"{name:8} output and {len(pairs) - 1} gradients agree")
attention.on_weights = None

# %% [markdown]
# ## What each head may see that one could not
#
# > Multi-head attention allows the model to jointly attend to information from different representation subspaces at different positions. With a single attention head, averaging inhibits this.
# >
# > — Section 3.2.2
#
# "Averaging inhibits this" can be made exact. Eight boxes stand in a random order. One is marked A, one is marked B, six have no mark, and each contains a random vector. The task: return the content of A *and* the content of B, each in its own place. The keys show the marks, the values hold the contents, so the weights can depend on the marks only.
#
# A single head returns $w_A x_A + w_B x_B$ at best: one mixture, and the linear maps around it see nothing else. Let the contents have unit variance and ask what the best linear map makes of the mixture. For $x_A$ it leaves the error $w_B^2/(w_A^2 + w_B^2)$, for $x_B$ the error $w_A^2/(w_A^2 + w_B^2)$. Their sum is 1, *whatever the weights are*: of the two variances asked for, one is lost. The head may look at A alone, at B alone, or at both; half the answer is missing.
#
# Two heads have two mixtures. One can look at A and the other at B, and $W^O$ puts each in its place. Both layers below have $d_{\text{model}} = 32$ and the same number of parameters. As a control, both also learn the *sum* of the two contents, for which one average, doubled, is all that is needed.

# %%
D_MODEL, BOXES, CONTENT, BATCH, STEPS = 32, 8, 8, 64, 200


def boxes(rng: torch.Generator, marks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A batch of rows of boxes: keys (B, 8, 32), values (B, 8, 32), where A and B stand (B, 2), what is in them (B, 2, 8)."""
    places = torch.rand(BATCH, BOXES, generator=rng).argsort(-1)[:, :2]  # (B, 2)
    mark = torch.full((BATCH, BOXES), 2).scatter(1, places, torch.tensor([0, 1]).expand(BATCH, 2))
    contents = torch.randn(BATCH, BOXES, CONTENT, generator=rng)
    values = torch.nn.functional.pad(contents, (0, D_MODEL - CONTENT))
    return marks[mark], values, places, contents[torch.arange(BATCH)[:, None], places]


def learn(n_heads: int, task: str, seed: int) -> tuple[MultiHeadAttention, Tensor, Tensor, list[float]]:
    """Train one layer; return it, its query, the vectors of the marks, and the error at each step."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(D_MODEL, n_heads)
    marks, query = torch.randn(3, D_MODEL), torch.randn(1, 1, D_MODEL)  # A, B, none; and the question
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    rng, errors = torch.Generator().manual_seed(seed), []
    for _ in range(STEPS):
        keys, values, _, wanted = boxes(rng, marks)
        target = wanted.flatten(1) if task == "both" else wanted.sum(1) / 2**0.5  # (B, 16) or (B, 8), variance 1
        output = layer(query.expand(BATCH, 1, -1), keys, values)[:, 0, : target.size(1)]
        error = (output - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    return layer, query, marks, errors


# %%
trained = {(h, task, seed): learn(h, task, seed) for h in (1, 2) for task in ("both", "sum") for seed in (0, 1, 2)}
assert len({transformer.count_parameters(layer) for layer, *_ in trained.values()}) == 1  # one head or two: the same number
print("error after training (1 is the variance of the target), three seeds")
for h, task in ((1, "both"), (2, "both"), (1, "sum"), (2, "sum")):
    final = [sum(trained[h, task, seed][3][-50:]) / 50 for seed in (0, 1, 2)]
    print(f"{h} head{'s' if h > 1 else ' '}, {task:4}:", *(f"{error:.2f}" for error in final))
    if (h, task) == (1, "both"):
        assert all(0.45 < error < 0.55 for error in final)  # the proven floor: a half, and no head gets below it
    else:
        assert all(error < 0.05 for error in final)

# %% [markdown]
# The single head stops at a half, as proved. It learns the sum without difficulty. So the obstacle is not that there are two positions to look at, but that they come back as one vector.

# %%
marks_shown, rows, labels = ["A", "B", "·"], [], {1: ["one head"], 2: ["two heads: first", "two heads: second"]}
for h in (1, 2):
    layer, query, marks, _ = trained[h, "both", 0]
    seen = []
    layer.on_weights = seen.append
    keys, values, places, _ = boxes(torch.Generator().manual_seed(7), marks)
    layer(query.expand(BATCH, 1, -1), keys, values)
    layer.on_weights = None
    for example in range(6):
        at_a, at_b = places[example].tolist()
        marks_here = ["A" if i == at_a else "B" if i == at_b else "·" for i in range(BOXES)]
        for head in range(h):
            weights = [round(w, 3) for w in seen[0][example, head, 0].tolist()]
            rows.append({"row": example + 1, "head": labels[h][head], "weights": weights, "marks": marks_here})

row = alt.param(name="row_shown", value=1, bind=alt.binding_range(min=1, max=6, step=1, name="row of boxes "))
cells = (
    alt.Chart()
    .transform_filter("datum.row == row_shown")
    .transform_flatten(["weights", "marks"], as_=["weight", "mark"])
    .transform_window(box="row_number()", groupby=["head"])
    .encode(
        x=alt.X("box:O", title="box", axis=alt.Axis(labelAngle=0, orient="bottom")),
        y=alt.Y("head:N", title=None, sort=["one head", "two heads: first", "two heads: second"], axis=alt.Axis(labelLimit=200)),
    )
)
heat = cells.mark_rect().encode(
    color=alt.Color("weight:Q", title="weight", scale=alt.Scale(scheme="viridis", domain=[0, 1]))
)
letters = cells.mark_text(fontSize=16, fontWeight="bold").encode(
    text="mark:N", color=alt.condition("datum.weight > 0.6", alt.value("black"), alt.value("white"))
)
chart = alt.layer(heat, letters, data=alt.Data(values=rows)).add_params(row).properties(width=330, height=130)
chart.properties(title="Two heads look at A and at B; one head has to choose or to mix")

# %% [markdown]
# What to see: the letters are the marks on the boxes, the colours the weights. Move the slider to another row of boxes. The two heads follow their marks wherever these stand, one the A and the other the B. The single head has settled on one of the two and ignores the other. Any mixture of them would have been as good, and no better.
#
# The next picture shows the training. Choose the task.

# %%
rows = [
    {"heads": f"{h} head" + "s" * (h > 1), "task": task, "error": [round(sum(errors[i : i + 5]) / 5, 3) for i in range(0, STEPS, 5)]}
    for (h, task, seed), (_, _, _, errors) in trained.items()
    if seed == 0
]
task = alt.param(name="task_shown", value="both", bind=alt.binding_select(options=["both", "sum"], name="task "))
curves = (
    alt.Chart()
    .transform_filter("datum.task == task_shown")
    .transform_flatten(["error"])
    .transform_window(number="row_number()", groupby=["heads"])
    .transform_calculate(step="5 * datum.number")
    .mark_line(strokeWidth=2.5)
    .encode(
        x=alt.X("step:Q", title="step", scale=alt.Scale(domain=[0, STEPS])),
        y=alt.Y("error:Q", title="squared error", scale=alt.Scale(domain=[0, 1.2], clamp=True)),
        color=alt.Color("heads:N", title=None, scale=alt.Scale(range=["#D55E00", "#0072B2"]), legend=alt.Legend(orient="top")),
        strokeDash=alt.StrokeDash("heads:N", title=None, scale=alt.Scale(range=[[6, 3], [1, 0]])),
    )
)
floor = alt.Chart(alt.Data(values=[{"floor": 0.5}])).mark_rule(strokeDash=[2, 3]).encode(y="floor:Q")
chart = alt.layer(curves, floor, data=alt.Data(values=rows)).add_params(task).properties(width=480, height=220)
chart.properties(title="Asked for both contents, one head stops at one half")

# %% [markdown]
# What to see: with the task "both", the dashed curve of the single head comes to rest on the dotted line at one half, and the curve of two heads goes on to 0. With the task "sum" both go to 0.

# %% [markdown]
# ## The price
#
# > Due to the reduced dimension of each head, the total computational cost is similar to that of single-head attention with full dimensionality.
# >
# > — Section 3.2.2
#
# Count the multiply–adds for $n$ positions. The four projections take $4 n d_{\text{model}}^2$. The scores take $n^2 d_k$ in each of $h$ heads, and mixing the values takes $n^2 d_v$ in each; with $d_k = d_v = d_{\text{model}}/h$ this makes $2 n^2 d_{\text{model}}$ in all. The number of heads has cancelled.

# %%
def multiply_adds(n: int, d_model: int, h: int) -> dict[str, int]:
    """Multiply-adds of multi-head attention over n positions, with d_k = d_v = d_model / h."""
    d_k = d_v = d_model // h
    return {
        "projections": 3 * n * d_model * h * d_k + n * h * d_v * d_model,
        "attention": h * n * n * d_k + h * n * n * d_v,
    }


print("multiply-adds in millions     projections   attention       total")
for n in (100, 4000):
    for h in (1, 8):
        count = multiply_adds(n, 512, h)
        label = f"n {n:4}, {h} head{'s' if h > 1 else ' '} of {512 // h:3}"
        print(f"{label:28}{count['projections'] / 1e6:13,.1f}{count['attention'] / 1e6:12,.1f}{sum(count.values()) / 1e6:12,.1f}")
    bare = 2 * n * n * 512
    print(f"n {n:4}, no projections      {0:13.1f}{bare / 1e6:12,.1f}{bare / 1e6:12,.1f}")
    print(f"        eight heads take {sum(multiply_adds(n, 512, 8).values()) / bare:.2f} times as many as attention without projections")
    assert multiply_adds(n, 512, 1) == multiply_adds(n, 512, 8)

# %% [markdown]
# One head of 512 against eight of 64: the same number, exactly, at every length. The price of more heads is nil, if the single head has projections too, as in row (A) of Table 3.
#
# There is a second reading. "A single attention function" without any projection needs the middle column only. Against that, eight heads are not similar at $n = 100$, where the projections are almost the whole work: they cost 11.24 times as much. At $n = 4000$ it is 1.26 times. Attention overtakes the projections at $n = 2 d_{\text{model}}$, which is 1024 in the base model and far beyond a sentence.
#
# The formula is checked against a counter that watches the real module run, on tensors without contents, so that even 4000 positions cost nothing:

# %%
from torch.utils.flop_counter import FlopCounterMode

for n in (100, 4000):
    for h in (1, 8):
        with torch.device("meta"):
            layer, x = MultiHeadAttention(512, h), torch.empty(1, n, 512)
        layer.on_weights = lambda weights: None
        with FlopCounterMode(display=False) as counter:
            layer(x, x, x)
        assert counter.get_total_flops() == 2 * sum(multiply_adds(n, 512, h).values())  # a multiply-add is two operations
assert multiply_adds(1024, 512, 8)["projections"] == multiply_adds(1024, 512, 8)["attention"]
print("the formula agrees with the counter in all four cases")

# %%
rows = [
    {"d_model": d, "n": 2**power, "part": part, "count": count / 2**power / 1e6}
    for d in (256, 512, 1024)
    for power in range(4, 15)
    for part, count in multiply_adds(2**power, d, 8).items()
]
PARTS = ["projections", "attention"]
d_model_shown = alt.param(name="d_model", value=512, bind=alt.binding_select(options=[256, 512, 1024], name="d_model "))
base = (
    alt.Chart()
    .transform_filter("datum.d_model == d_model")
    .mark_line(strokeWidth=2.5)
    .encode(
        x=alt.X("n:Q", title="number of positions n", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=[16, 128, 1024, 8192], format="d")),
        y=alt.Y("count:Q", title="million multiply–adds a position", scale=alt.Scale(type="log", domain=[0.005, 50]), axis=alt.Axis(tickCount=4)),
        color=alt.Color("part:N", title=None, scale=alt.Scale(domain=PARTS, range=["#0072B2", "#D55E00"]), legend=alt.Legend(orient="top")),
        strokeDash=alt.StrokeDash("part:N", title=None, scale=alt.Scale(domain=PARTS, range=[[1, 0], [6, 3]])),
    )
)
crossing = (
    alt.Chart(alt.Data(values=[{}]))
    .transform_calculate(n="2 * d_model", label="'n = ' + 2 * d_model")
    .encode(x="n:Q")
)
chart = alt.layer(
    base,
    crossing.mark_rule(strokeDash=[2, 3]),
    crossing.mark_text(align="right", dx=-6, dy=-85).encode(text="label:N"),
    data=alt.Data(values=rows),
).add_params(d_model_shown)
chart.properties(width=480, height=240, title="Attention overtakes its projections at n = 2 d_model")

# %% [markdown]
# What to see: the cost of one position. The projections (blue) do not depend on the length, the attention proper (orange, dashed) grows with it. They cross at $n = 2 d_{\text{model}}$. Choose another width and the crossing moves along. The number of heads appears nowhere.
#
# What more heads do cost is memory for the weights, $h n^2$ numbers instead of $n^2$, and as many exponentials. The fused kernel saves the memory, though not the exponentials.

# %% [markdown]
# ## Keys and values can be kept
#
# When a model writes a sentence, it adds one token at a time. The keys and values of the earlier tokens do not change, so they need not be projected again. `KeyValueCache` keeps them. It takes its memory once and fills it from the front; `select` reorders the batch, which [decoding](06_1a_decoding.py) with several candidates needs.

# %%
#| export
class KeyValueCache:
    """The keys and values of one self-attention sub-layer, kept while a sequence is generated.

    Memory is taken once; every step writes its new positions behind the old ones.

    Args:
        keys: Room for keys, shape (B, h, capacity, d_k).
        values: Room for values, shape (B, h, capacity, d_v).

    Attributes:
        length: Number of positions written so far.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new positions and return all positions so far.

        Args:
            keys: Shape (B, h, m, d_k).
            values: Shape (B, h, m, d_v).

        Returns:
            Keys (B, h, length, d_k) and values (B, h, length, d_v), the new ones last.

        Raises:
            ValueError: The cache has no room for m more positions.
        """
        start, end = self.length, self.length + keys.size(-2)
        if end > self.keys.size(-2):
            raise ValueError(f"the cache holds {self.keys.size(-2)} positions and is asked for {end}; make it larger.")
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.length = end
        # Under autocast the room is wider than what is written.
        return self.keys[:, :, :end].to(keys.dtype), self.values[:, :, :end].to(values.dtype)

    def select(self, index: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may be repeated.

        Args:
            index: Row numbers, shape (B',), int64.
        """
        if len(index) > len(self.keys):
            self.keys, self.values = self.keys[index], self.values[index]
            return
        for room in (self.keys, self.values):  # in place, and only what is written
            room[: len(index), :, : self.length] = room[index, :, : self.length]
        self.keys, self.values = self.keys[: len(index)], self.values[: len(index)]


# %% [markdown]
# One token at a time with the cache must give what one causal pass over all tokens gives:

# %%
torch.manual_seed(0)
attention = MultiHeadAttention(d_model=32, n_heads=4).eval()
x = torch.randn(2, 7, 32)
with torch.no_grad():
    at_once = attention(x, x, x, is_causal=True)  # (2, 7, 32)
    cache = KeyValueCache(torch.empty(2, 4, 7, 8), torch.empty(2, 4, 7, 8))
    steps = []
    for t in range(7):
        token = x[:, t : t + 1]  # (2, 1, 32)
        keys, values = cache.append(*attention.project(token, token))  # (2, 4, t + 1, 8) each
        steps.append(attention.attend(token, keys, values))
assert torch.allclose(torch.cat(steps, dim=1), at_once, atol=1e-6)
print("seven steps with the cache equal one causal pass")

# %% [markdown]
# ## Unsaid by the paper
#
# **Biases.** The formulas have none. The authors' first code had them, by the default of the layer it used; their later code turned them off. Our projections have them. The bias of the keys is there for nothing: it adds the same number, $q \cdot b$, to all scores of a query, and a softmax does not notice (exercise 3 of [Section 3.2.1](03_2_1_scaled_dot_product_attention.py)). Even training cannot tell, as its gradient is 0:

# %%
attention.zero_grad()
before = attention(x, x, x)
before.square().sum().backward()
print(f"largest gradient of the bias: queries {attention.w_q.bias.grad.abs().max():.3f}, keys {attention.w_k.bias.grad.abs().max():.3f}")
assert attention.w_k.bias.grad.abs().max() < 1e-4 < attention.w_q.bias.grad.abs().max()
with torch.no_grad():
    attention.w_k.bias += 3 * torch.randn(32)
assert torch.allclose(attention(x, x, x), before, atol=1e-5)

# %% [markdown]
# **The number of heads.** Eight is a choice, and its basis is row (A) of Table 3 of the paper, where $h \cdot d_k$ stays 512:
#
# | h | d_k | d_v | BLEU (dev) |
# |---|---|---|---|
# | 1 | 512 | 512 | 24.9 |
# | 4 | 128 | 128 | 25.5 |
# | 8 | 64 | 64 | 25.8 |
# | 16 | 32 | 32 | 25.8 |
# | 32 | 16 | 16 | 25.4 |
#
# Sixteen heads tie with eight in BLEU and are a little ahead in perplexity, 4.91 against 4.92. With 32, each head compares queries and keys in 16 dimensions only. Row (B) makes $d_k$ smaller and leaves $d_v$ at 64. It saves parameters and loses quality, so comparing needs the room. Our class counts the saving, and the paper's rounded 65M and 58M agree with it:

# %%
def size(d_k: int) -> int:
    """Parameters of one attention layer of the base model with this d_k."""
    return sum(p.numel() for p in MultiHeadAttention(512, 8, d_k=d_k, d_v=64).parameters())


saved = 18 * (size(64) - size(16))  # 6 in the encoder, 12 in the decoder
print(f"one layer: {size(64):,} parameters with d_k = 64, {size(16):,} with 16; saved in 18 layers: {saved / 1e6:.2f} million")
assert round(saved / 1e6) == 65 - 58

# %% [markdown]
# **A head is a low-rank comparison.** The scores of head $i$ are $Q W^Q_i (W^K_i)^T K^T$. The matrix in the middle is $d_{\text{model}} \times d_{\text{model}}$ but has rank $d_k$ at most. With more positions than $d_k$, one head cannot produce every table of scores.
#
# **Heads are interchangeable.** Swap two heads together with their rows of $W^O$, and nothing changes. So "head 5" of one training run has nothing to do with head 5 of another.
#
# **Not every head is needed.** Michel and others (2019) found that many heads of a trained model can be removed at test time with little loss, and that some layers need only one. Later models let several heads share one set of keys and values (Shazeer 2019), which makes the cache above smaller by the same factor.
#
# **Dropout on the weights** can be turned on with `attention_dropout`. The paper does not have it.
#
# [Step through one attention](../book/one_attention.md) shows the projections, the heads side by side and $W^O$ with a trained model's numbers.
#
# ## What we now know
#
# - $h$ small projections are one big one, exactly; and the output is a sum of one contribution per head.
# - The class equals the equation, and PyTorch's fused kernel equals Equation (1), gradients included.
# - One head loses half of a two-part answer, by proof and by experiment. Two heads of half the width, with the same parameters, lose nothing.
# - Eight heads of 64 take exactly as many multiply–adds as one head of 512: 115.1 million at $n = 100$ and 20,578.3 million at $n = 4000$. Compared with attention without projections they take 11.24 and 1.26 times as many.
# - The bias of the key projection has no effect.
#
# ## Exercises
#
# 1. **Predict, then run.** Swap heads 0 and 1 of a `MultiHeadAttention` by permuting rows and columns of its weights. Does the output change?
# 2. **Minutes.** Count the multiply–adds of self-attention over $n = 100$ positions with $d_{\text{model}} = 512$: with one head of full width, and with eight heads. Which part of the cost grows with the number of heads? Check: `check("3.2.2-heads", (one, eight))`.
# 3. **Minutes.** How many bytes do the self-attention caches of the base model's decoder take for a sentence of 100 tokens, in half precision? How many with one set of keys and values for all eight heads?
# 4. **Minutes.** Multiply $W^Q_i$ by an invertible matrix $R$ from the right, and $W^K_i$ by $(R^{-1})^T$. Show that the head does not change. How many of its parameters are therefore redundant?
# 5. **An hour.** Add a third mark C to the experiment and ask for all three contents. What floors do you expect for one and for two heads? Derive them first.
# 6. **An hour.** Run the experiment with $d_{\text{model}} = 16$ and ten seeds. Now and then a run with two heads stops at a half as well. Look at their weights: what happened? Do four heads help?

# %% [markdown]
# Solution to exercise 1: `w_q`, `w_k` and `w_v` have their rows permuted in blocks, `w_o` its columns.

# %% tags=["hide-cell"]
swapped = MultiHeadAttention(d_model=32, n_heads=4)
order = torch.arange(32).view(4, 8)[[1, 0, 2, 3]].flatten()
with torch.no_grad():
    for name in ("w_q", "w_k", "w_v"):
        getattr(swapped, name).weight.copy_(getattr(attention, name).weight[order])
        getattr(swapped, name).bias.copy_(getattr(attention, name).bias[order])
    swapped.w_o.weight.copy_(attention.w_o.weight[:, order])
    swapped.w_o.bias.copy_(attention.w_o.bias)
assert torch.allclose(swapped(x, x, x), attention(x, x, x), atol=1e-6)
print("two heads swapped, same output")

# %% [markdown]
# Solution to exercise 2: the four projections take $4 n d_{\text{model}}^2$ and the two products $2 n^2 d_{\text{model}}$, whatever $h$: eight heads are an eighth as wide. The weights themselves, and their softmax, are eight times as many.

# %% tags=["hide-cell"]
from transformer.exercises import check

n, d = 100, 512
operations = [4 * n * d * d + h * 2 * n * n * (d // h) for h in (1, 8)]
print(operations, "and numbers of weights", [h * n * n for h in (1, 8)])
verdict = check("3.2.2-heads", operations)
print(verdict)
assert verdict

# %% [markdown]
# Solution to exercise 3: six layers, keys and values, 512 numbers each per token, two bytes each. Sharing divides by eight.

# %% tags=["hide-cell"]
size_in_bytes = 6 * 2 * 512 * 100 * 2
print(f"{size_in_bytes:,} bytes; shared: {size_in_bytes // 8:,}")

# %% [markdown]
# Solution to exercise 4: the scores contain $W^Q_i R R^{-1} (W^K_i)^T = W^Q_i (W^K_i)^T$. $R$ has $d_k^2$ free entries, so of the $2 d_{\text{model}} d_k$ parameters of $W^Q_i$ and $W^K_i$ only $2 d_{\text{model}} d_k - d_k^2$ count: one in sixteen is redundant in the base model.

# %% tags=["hide-cell"]
assert 64**2 / (2 * 512 * 64) == 1 / 16
a, b = torch.randn(32, 8).double(), torch.randn(32, 8).double()
R = torch.randn(8, 8).double()
assert torch.allclose((a @ R) @ (b @ torch.linalg.inv(R).T).T, a @ b.T)
print("the scores do not change")

# %% [markdown]
# ## The notebook and the module agree
#
# The exported cells make up `transformer/multi_head.py`. The class above and the imported one, with the same weights:

# %%
imported = transformer.MultiHeadAttention(d_model=32, n_heads=4).eval()
imported.load_state_dict(attention.state_dict())
assert torch.equal(imported(x, x, x, is_causal=True), attention(x, x, x, is_causal=True))
assert transformer.KeyValueCache.__doc__ == KeyValueCache.__doc__
print("equal to the bit")
