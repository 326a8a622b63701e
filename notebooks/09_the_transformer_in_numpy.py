# %% [markdown]
# # 9 The Transformer in NumPy
#
# This chapter builds the whole model a second time, of plain arrays, and writes the backward pass by hand. It takes the
# weights of the book's trained model, gives the logits and gradients that PyTorch gives, and translates.
#
# The two implementations share no line, so an error that both have would have to be made twice. Each gradient is derived,
# written out, and checked. Dropout is left out: the trained model has none.

# %%
#| default_exp numpy_reference

# %%
import copy
import itertools

import altair as alt
import torch
import torch.nn.functional as F
from torch.func import functional_call

import transformer
from transformer.corpus import embedded_corpus
from transformer.data import make_batch
from transformer.decoding import greedy_decode
from transformer.exercises import check
from transformer.loss import LabelSmoothingLoss
from transformer.positional_encoding import sinusoids
from transformer.translator import load_toy_translator

transformer.check_version("0.1")

# %% [markdown]
# ## How a gradient runs backwards
#
# Training needs $\partial L/\partial w$ for every weight $w$ of the model, where $L$ is the loss. The model is a chain of
# functions $y = f(x, w)$. Write $\delta_y$ for $\partial L/\partial y$, an array of the shape of $y$; in code it is `d_y`.
# From $\delta_y$ the chain rule gives
#
# $$\delta_{x,j} = \sum_i \delta_{y,i}\,\frac{\partial y_i}{\partial x_j}, \qquad
# \delta_{w,k} = \sum_i \delta_{y,i}\,\frac{\partial y_i}{\partial w_k}.$$
#
# The first is handed to the function that made $x$, the second is what training wants. So each function comes as a pair:
#
# - `_f(x, w)` returns the output and what the backward pass will need, called `kept`;
# - `_f_backward(d_y, kept)` takes $\delta_y$ and returns $\delta_x$ and $\delta_w$.
#
# Two rules come up again and again, and both stand in the sums above. An array that is *used twice* gets the *sum* of
# the gradients of its uses. And the gradient of a sum $a + b$ goes to both summands unchanged, for both derivatives are 1.
#
# The exported cells import NumPy, and a name for types. Weights come as a tree of dictionaries,
# `w["w_1"]["weight"]`, and gradients go back as a tree with the same names. torch writes such a path with dots,
# `w_1.weight`; two short functions change one form into the other.

# %%
#| export
from typing import Any

import numpy as np

_Tree = dict[str, Any]  # arrays by name, or trees of them


# %%
#| export
def _nest(flat: dict[str, np.ndarray]) -> _Tree:
    """{"a.b": x} → {"a": {"b": x}}."""
    tree: _Tree = {}
    for name, array in flat.items():
        *path, last = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = array
    return tree


# %%
#| export
def _flatten(tree: _Tree, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": x}} → {"a.b": x}."""
    flat: dict[str, Any] = {}
    for name, branch in tree.items():
        flat |= _flatten(branch, f"{prefix}{name}.") if isinstance(branch, dict) else {prefix + name: branch}
    return flat


# %% [markdown]
# ### How each pair is checked
#
# Each pair is held against two judges on the spot. *Finite differences* know nothing of calculus: move one number by
# $\pm 10^{-6}$ and see how far the output moves. *torch* differentiates its own version of the function by itself. The
# output is turned into one number by weighting its entries at random; those weights are $\delta_y$.


# %% tags=["hide-input"]
def finite_differences(scalar, inputs, step=1e-6):
    """The derivative of scalar() by every entry of an array, or of a tree of arrays, that it reads."""
    if isinstance(inputs, dict):
        return {name: finite_differences(scalar, branch, step) for name, branch in inputs.items()}
    gradient = np.zeros_like(inputs)
    for index in np.ndindex(inputs.shape):
        value = inputs[index]
        inputs[index] = value + step
        above = scalar()
        inputs[index] = value - step
        gradient[index] = (above - scalar()) / (2 * step)
        inputs[index] = value
    return gradient


def leaves(inputs):
    """The arrays of an array or a tree, in order."""
    return list(_flatten(inputs).values()) if isinstance(inputs, dict) else [inputs]


def largest_difference(ours, theirs):
    return max(
        np.abs(a - b).max()
        for x, y in zip(ours, theirs, strict=True)
        for a, b in zip(leaves(x), leaves(y), strict=True)
    )


# %% tags=["hide-input"]
def check_pair(forward, backward, in_torch, *inputs):
    """Hold the gradients of a pair against finite differences (1e-7) and against torch (1e-12), its output too."""
    output, kept = forward(*inputs)
    d_y = np.random.default_rng(1).standard_normal(output.shape)
    gradients = backward(d_y, kept)

    def to_torch(x):
        if isinstance(x, dict):
            return {name: to_torch(branch) for name, branch in x.items()}
        return torch.tensor(x, requires_grad=True)

    def gradient(x):
        return {name: gradient(branch) for name, branch in x.items()} if isinstance(x, dict) else x.grad.numpy()

    tensors = [to_torch(x) for x in inputs]
    result = in_torch(*tensors)
    result.backward(torch.tensor(d_y))
    assert np.abs(output - result.detach().numpy()).max() < 1e-12
    assert largest_difference(gradients, [gradient(x) for x in tensors]) < 1e-12
    moved = [finite_differences(lambda: (forward(*inputs)[0] * d_y).sum(), x) for x in inputs]
    assert largest_difference(gradients, moved) < 1e-7
    numbers = sum(array.size for x in inputs for array in leaves(x))
    print(f"{numbers} derivatives: finite differences agree to 1e-7, torch to 1e-12")


rng = np.random.default_rng(0)
normal = rng.standard_normal

# %% [markdown]
# ## The linear layer
#
# torch keeps the matrix as (out, in), so for one position $y_o = \sum_i x_i W_{oi} + b_o$. Then $\partial y_o/\partial
# x_i = W_{oi}$, $\partial y_o/\partial W_{oi} = x_i$ and $\partial y_o/\partial b_o = 1$. All positions $t$ of all sentences
# use the same $W$ and $b$, so their gradients add up:
#
# $$\delta_{x,ti} = \sum_o \delta_{y,to}\,W_{oi}, \qquad \delta_{W,oi} = \sum_t \delta_{y,to}\,x_{ti}, \qquad
# \delta_{b,o} = \sum_t \delta_{y,to}.$$
#
# With the positions as rows of one matrix, these are $\delta_x = \delta_y W$, $\delta_W = \delta_y^{\mathsf T} x$, and a sum over rows.


# %%
#| export
def _rows(x: np.ndarray) -> np.ndarray:
    """All positions of all sentences below each other."""
    return x.reshape(-1, x.shape[-1])  # (B, n, d) → (B·n, d)


# %%
#| export
def _linear(x: np.ndarray, w: _Tree) -> tuple[np.ndarray, Any]:
    """Compute xWᵀ + b."""
    return x @ w["weight"].T + w["bias"], (x, w["weight"])  # (…, in) → (…, out)


# %%
#| export
def _linear_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    x, weight = kept
    d_weight = _rows(d_y).T @ _rows(x)  # (out, in)
    return d_y @ weight, {"weight": d_weight, "bias": _rows(d_y).sum(axis=0)}


# %%
def tiny_linear(n_in, n_out):
    return {"weight": normal((n_out, n_in)), "bias": normal(n_out)}


check_pair(
    _linear,
    _linear_backward,
    lambda x, w: F.linear(x, w["weight"], w["bias"]),
    normal((2, 3, 4)),
    tiny_linear(4, 5),
)

# %% [markdown]
# ## Masks
#
# A mask is True where a query may attend. Padding of the source is hidden from all; in the target each position sees
# itself and those before it. Padding of the target stands on the right, behind all real positions, so the causal mask
# hides it from them.


# %%
#| export
def _masks(src: np.ndarray, tgt_in: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Who may be attended to in the source (B, 1, 1, n), and who by whom in the target (m, m)."""
    m = tgt_in.shape[1]
    return (src != pad_id)[:, None, None, :], np.tril(np.ones((m, m), dtype=bool))


# %% [markdown]
# ## Scaled dot-product attention
#
# > $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}(\frac{QK^T}{\sqrt{d_k}})V$$
# >
# > — Section 3.2.1, Equation 1
#
# **The softmax.** For one row, $p_i = e^{s_i}/\sum_k e^{s_k}$. The quotient rule gives its Jacobian, where $[i = j]$ is 1 if
# $i = j$ and 0 otherwise:
#
# $$\frac{\partial p_i}{\partial s_j} = p_i\,([i = j] - p_j),
# \qquad\text{so}\qquad
# \delta_{s,j} = \sum_i \delta_{p,i}\,\frac{\partial p_i}{\partial s_j} = p_j \Big(\delta_{p,j} - \sum_i p_i\,\delta_{p,i}\Big).$$
#
# The Jacobian itself, $n \times n$ for each row, is never formed. A masked position has $p_j = 0$ and gets no gradient. A
# row with nothing to attend to is all zeros, and its gradient is zero as well. And where one $p_i$ is nearly 1 and the
# others nearly 0, all entries of the Jacobian are nearly 0: these are the “extremely small gradients” because of which the
# paper divides by $\sqrt{d_k}$.


# %%
#| export
def _softmax(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, 0 where the mask is False; a row that may attend to nothing is all 0."""
    scores = np.where(mask, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(largest), 0.0, largest))  # no exponent above 0, so no overflow
    total = exps.sum(axis=-1, keepdims=True)
    return exps / np.where(total == 0, 1.0, total)


# %%
#| export
def _softmax_backward(d_p: np.ndarray, p: np.ndarray) -> np.ndarray:
    return p * (d_p - (p * d_p).sum(axis=-1, keepdims=True))  # the shape of the scores


# %%
mask = np.array([[True, True, False], [True, True, True], [False, False, False]])
check_pair(
    lambda s: (_softmax(s, mask),) * 2,
    lambda d_p, p: (_softmax_backward(d_p, p),),
    lambda s: transformer.masked_softmax(s, torch.tensor(mask)),
    normal((2, 3, 3)),
)
assert _softmax(np.array([[1e4, -1e4, 0.0]]), mask[:1]).tolist() == [[1.0, 0.0, 0.0]]  # no overflow
sharp = _softmax(np.array([[40.0, 0.0, 0.0]]), mask[:1])
assert 0 < np.abs(_softmax_backward(np.array([[1.0, -1.0, 0.0]]), sharp)).max() < 1e-15  # extremely small

# %% [markdown]
# **The two products.** With $S = QK^{\mathsf T}/\sqrt{d_k}$, $P = \mathrm{softmax}(S)$ and $O = PV$, each product gives its
# gradient to both factors:
#
# $$Z = XY:\quad \frac{\partial Z_{ij}}{\partial X_{ik}} = Y_{kj},\quad\text{so}\quad
# \delta_{X,ik} = \sum_j \delta_{Z,ij} Y_{kj},\quad\text{that is}\quad
# \delta_X = \delta_Z Y^{\mathsf T}\quad\text{and likewise}\quad \delta_Y = X^{\mathsf T}\delta_Z.$$
#
# For $O = PV$ this gives the first two of the following. From $\delta_P$ the softmax makes $\delta_S$, row by row. Then come
# the factors of $S$. The second is $K^{\mathsf T}$ and gets $Q^{\mathsf T}\delta_S/\sqrt{d_k}$; transposed, that is $\delta_K$.
#
# $$\delta_V = P^{\mathsf T}\delta_O, \quad \delta_P = \delta_O V^{\mathsf T}, \quad
# \delta_Q = \frac{\delta_S K}{\sqrt{d_k}}, \quad \delta_K = \frac{\delta_S^{\mathsf T} Q}{\sqrt{d_k}}.$$
#
# A value that many queries attend to collects gradient from all of them, by the weight each gave it.


# %%
#| export
def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """Equation (1)."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])  # (B, h, m, n)
    p = _softmax(scores, mask)
    return p @ v, (q, k, v, p)  # (B, h, m, d_v)


# %%
#| export
def _attention_backward(d_out: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v, p = kept
    d_values = p.swapaxes(-1, -2) @ d_out  # (B, h, n, d_v)
    d_scores = _softmax_backward(d_out @ v.swapaxes(-1, -2), p) / np.sqrt(q.shape[-1])  # (B, h, m, n)
    return d_scores @ k, d_scores.swapaxes(-1, -2) @ q, d_values  # the shapes of q, k, v


# %%
mask = np.array([[True, True, False, True], [False, True, False, False]])  # m = 2 queries, n = 4 keys
check_pair(
    lambda q, k, v: _attention(q, k, v, mask),
    _attention_backward,
    lambda q, k, v: transformer.scaled_dot_product_attention(q, k, v, torch.tensor(mask))[0],
    normal((1, 2, 2, 3)),
    normal((1, 2, 4, 3)),
    normal((1, 2, 4, 2)),
)

# %% [markdown]
# ## Multi-head attention
#
# > $$\begin{aligned}\mathrm{MultiHead}(Q, K, V) &= \mathrm{Concat}(\mathrm{head_1}, ..., \mathrm{head_h})W^O\\ \text{where}~\mathrm{head_i} &= \mathrm{Attention}(QW^Q_i, KW^K_i, VW^V_i)\end{aligned}$$
# >
# > — Section 3.2.2
#
# Heads are a way to cut an array. Cutting and joining move numbers and compute nothing. A gradient moves the way back, so
# each is the other's backward pass. Keys and values read the same array (`memory`), so that array gets the sum of their
# gradients. In self-attention `x` and `memory` are one array, and the caller adds once more.


# %%
#| export
def _split(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(B, n, h·d) → (B, h, n, d)."""
    return x.reshape(*x.shape[:2], n_heads, -1).swapaxes(1, 2)


# %%
#| export
def _join(heads: np.ndarray) -> np.ndarray:
    """(B, h, n, d) → (B, n, h·d)."""
    return heads.swapaxes(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


# %%
#| export
def _multi_head(x: np.ndarray, memory: np.ndarray, w: _Tree, n_heads: int, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """Attend from every position of x (B, m, d_model) to those of memory (B, n, d_model)."""
    q, kept_q = _linear(x, w["w_q"])
    k, kept_k = _linear(memory, w["w_k"])
    v, kept_v = _linear(memory, w["w_v"])
    heads, kept_heads = _attention(_split(q, n_heads), _split(k, n_heads), _split(v, n_heads), mask)
    y, kept_o = _linear(_join(heads), w["w_o"])
    return y, (n_heads, kept_q, kept_k, kept_v, kept_heads, kept_o)


# %%
#| export
def _multi_head_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, _Tree]:
    n_heads, kept_q, kept_k, kept_v, kept_heads, kept_o = kept
    d_joined, d_w_o = _linear_backward(d_y, kept_o)
    d_queries, d_keys, d_values = _attention_backward(_split(d_joined, n_heads), kept_heads)
    d_x, d_w_q = _linear_backward(_join(d_queries), kept_q)
    d_memory_k, d_w_k = _linear_backward(_join(d_keys), kept_k)
    d_memory_v, d_w_v = _linear_backward(_join(d_values), kept_v)
    return d_x, d_memory_k + d_memory_v, {"w_q": d_w_q, "w_k": d_w_k, "w_v": d_w_v, "w_o": d_w_o}


# %%
def tiny_attention():
    return {name: tiny_linear(4, 4) for name in ("w_q", "w_k", "w_v", "w_o")}


in_torch = transformer.MultiHeadAttention(d_model=4, n_heads=2).double()
check_pair(
    lambda x, memory, w: _multi_head(x, memory, w, 2, mask),
    _multi_head_backward,
    lambda x, memory, w: functional_call(in_torch, _flatten(w), (x, memory, memory, torch.tensor(mask))),
    normal((1, 2, 4)),
    normal((1, 4, 4)),
    tiny_attention(),
)

# %% [markdown]
# ## Layer normalization
#
# Per position, with the mean $\mu$ and the variance $\sigma^2$ of its $d$ numbers: $\hat x_i = r\,(x_i - \mu)$ with $r =
# 1/\sqrt{\sigma^2 + \epsilon}$, then $y_i = g_i \hat x_i + b_i$. Each $\hat x_i$ depends on all $x_j$, in three ways:
# directly, through $\mu$, and through $r$. The derivatives by $x_j$ are
#
# $$\frac{\partial \mu}{\partial x_j} = \frac1d, \qquad
# \frac{\partial \sigma^2}{\partial x_j} = \frac2d \sum_k (x_k - \mu)\Big([k = j] - \frac1d\Big) = \frac{2\,(x_j - \mu)}{d}, \qquad
# \frac{\partial r}{\partial x_j} = -\frac{r^3}{2}\,\frac{\partial \sigma^2}{\partial x_j} = -\frac{r^2\,\hat x_j}{d},$$
#
# where the $1/d$ drops out of the sum because the $x_k - \mu$ add up to 0. The product rule puts them together:
#
# $$\frac{\partial \hat x_i}{\partial x_j} = r\Big([i = j] - \frac1d\Big) + (x_i - \mu)\,\frac{\partial r}{\partial x_j}
# = r\Big([i = j] - \frac1d - \frac{\hat x_i\,\hat x_j}{d}\Big).$$
#
# Let $\delta_{\hat x} = g\,\delta_y$. Multiplied by $\delta_{\hat x,i}$ and summed over $i$:
#
# $$\delta_x = r\,\Big(\delta_{\hat x} - \overline{\delta_{\hat x}} - \hat x\;\overline{\delta_{\hat x}\,\hat x}\Big),
# \qquad \delta_g = \sum_{\text{positions}} \delta_y\,\hat x, \qquad \delta_b = \sum_{\text{positions}} \delta_y,$$
#
# with bars for means over the $d$ numbers. In words: the norm takes from the gradient its mean and, up to $\epsilon$, its
# part along $\hat x$. A step in those directions shifts or stretches $x$, and the output stays. What is left is scaled by $r$.


# %%
#| export
def _layer_norm(x: np.ndarray, w: _Tree) -> tuple[np.ndarray, Any]:
    """Every position to mean 0 and variance 1, then gain and shift; ε is torch's."""
    centred = x - x.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)  # (B, n, 1)
    x_hat = centred * r
    return x_hat * w["weight"] + w["bias"], (x_hat, r, w["weight"])


# %%
#| export
def _layer_norm_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    x_hat, r, gain = kept
    d_x_hat = d_y * gain
    along = (d_x_hat * x_hat).mean(axis=-1, keepdims=True)
    d_x = r * (d_x_hat - d_x_hat.mean(axis=-1, keepdims=True) - x_hat * along)
    return d_x, {"weight": _rows(d_y * x_hat).sum(axis=0), "bias": _rows(d_y).sum(axis=0)}


# %%
def tiny_norm():
    return {"weight": normal(4), "bias": normal(4)}


check_pair(
    _layer_norm,
    _layer_norm_backward,
    lambda x, w: F.layer_norm(x, (4,), w["weight"], w["bias"]),
    normal((2, 3, 4)),
    tiny_norm(),
)
_, kept = _layer_norm(normal((2, 3, 4)), tiny_norm())
d_x, _ = _layer_norm_backward(normal((2, 3, 4)), kept)
assert np.abs(d_x.sum(axis=-1)).max() < 1e-12  # no mean is left
assert np.abs((d_x * kept[0]).sum(axis=-1)).max() < 1e-3  # and, up to ε, nothing along x̂

# %% [markdown]
# ## The feed-forward network
#
# > $$\mathrm{FFN}(x)=\max(0, xW_1 + b_1) W_2 + b_2$$
# >
# > — Section 3.3, Equation 2
#
# The ReLU lets a gradient through where its input $a$ was positive and stops it where $a$ was negative: $\delta_a =
# [a > 0]\,\delta_{\max(0, a)}$. At exactly 0 there is no derivative; 0 is taken, as in torch.


# %%
#| export
def _feed_forward(x: np.ndarray, w: _Tree) -> tuple[np.ndarray, Any]:
    """Equation (2)."""
    inner, kept_1 = _linear(x, w["w_1"])  # (B, n, d_ff)
    y, kept_2 = _linear(np.maximum(inner, 0), w["w_2"])  # (B, n, d_model)
    return y, (kept_1, inner > 0, kept_2)


# %%
#| export
def _feed_forward_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    kept_1, positive, kept_2 = kept
    d_inner, d_w_2 = _linear_backward(d_y, kept_2)
    d_x, d_w_1 = _linear_backward(d_inner * positive, kept_1)
    return d_x, {"w_1": d_w_1, "w_2": d_w_2}


# %%
def tiny_feed_forward():
    return {"w_1": tiny_linear(4, 6), "w_2": tiny_linear(6, 4)}


in_torch = transformer.PositionwiseFeedForward(d_model=4, d_ff=6).double()
at_zero = torch.zeros(1, requires_grad=True)
at_zero.relu().backward()
assert at_zero.grad.item() == 0
check_pair(
    _feed_forward,
    _feed_forward_backward,
    lambda x, w: functional_call(in_torch, _flatten(w), (x,)),
    normal((2, 3, 4)),
    tiny_feed_forward(),
)

# %% [markdown]
# ## A residual block
#
# > That is, the output of each sub-layer is $\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$, where $\mathrm{Sublayer}(x)$
# > is the function implemented by the sub-layer itself.
# >
# > — Section 3.1
#
# The sum hands its gradient to both summands. So what leaves the norm's backward pass reaches $x$ twice: straight, and
# through the sub-layer. In the backward passes below, `d_sum + d_x` is all there is to a residual connection. Self-attention
# reads $x$ twice, as `x` and as `memory`, so there the gradient of the second use is added as well.


# %%
#| export
def _encoder_layer(x: np.ndarray, w: _Tree, n_heads: int, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """Self-attention and feed-forward network, each with a residual connection and a norm (post-norm)."""
    y, kept_attention = _multi_head(x, x, w["self_attention"], n_heads, mask)
    x, kept_norm_1 = _layer_norm(x + y, w["attention_block"]["norm"])
    y, kept_ffn = _feed_forward(x, w["feed_forward"])
    x, kept_norm_2 = _layer_norm(x + y, w["feed_forward_block"]["norm"])
    return x, (kept_attention, kept_norm_1, kept_ffn, kept_norm_2)


# %%
#| export
def _encoder_layer_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    kept_attention, kept_norm_1, kept_ffn, kept_norm_2 = kept
    d_sum, d_norm_2 = _layer_norm_backward(d_y, kept_norm_2)
    d_x, d_ffn = _feed_forward_backward(d_sum, kept_ffn)
    d_sum, d_norm_1 = _layer_norm_backward(d_sum + d_x, kept_norm_1)
    d_x, d_memory, d_attention = _multi_head_backward(d_sum, kept_attention)
    gradients = {
        "self_attention": d_attention,
        "attention_block": {"norm": d_norm_1},
        "feed_forward": d_ffn,
        "feed_forward_block": {"norm": d_norm_2},
    }
    return d_sum + d_x + d_memory, gradients


# %%
mask = np.array([[True, True, False]])  # the third position is padding
in_torch = transformer.EncoderLayer(
    transformer.MultiHeadAttention(d_model=4, n_heads=2), transformer.PositionwiseFeedForward(4, 6), 4, dropout=0.0
).double()
check_pair(
    lambda x, w: _encoder_layer(x, w, 2, mask),
    _encoder_layer_backward,
    lambda x, w: functional_call(in_torch, _flatten(w), (x, torch.tensor(mask))),
    normal((1, 3, 4)),
    {
        "self_attention": tiny_attention(),
        "attention_block": {"norm": tiny_norm()},
        "feed_forward": tiny_feed_forward(),
        "feed_forward_block": {"norm": tiny_norm()},
    },
)

# %% [markdown]
# ## A decoder layer
#
# One block more, and one way more for the gradient: from the attention over the memory it leaves the decoder and goes
# to the encoder. This is how the encoder learns; no loss is computed from its output directly.


# %%
#| export
def _decoder_layer(
    x: np.ndarray, memory: np.ndarray, w: _Tree, n_heads: int, tgt_mask: np.ndarray, memory_mask: np.ndarray
) -> tuple[np.ndarray, Any]:
    """Masked self-attention, attention over the memory, feed-forward network; post-norm."""
    y, kept_self = _multi_head(x, x, w["self_attention"], n_heads, tgt_mask)
    x, kept_norm_1 = _layer_norm(x + y, w["self_attention_block"]["norm"])
    y, kept_memory = _multi_head(x, memory, w["memory_attention"], n_heads, memory_mask)
    x, kept_norm_2 = _layer_norm(x + y, w["memory_attention_block"]["norm"])
    y, kept_ffn = _feed_forward(x, w["feed_forward"])
    x, kept_norm_3 = _layer_norm(x + y, w["feed_forward_block"]["norm"])
    return x, (kept_self, kept_norm_1, kept_memory, kept_norm_2, kept_ffn, kept_norm_3)


# %%
#| export
def _decoder_layer_backward(d_y: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, _Tree]:
    kept_self, kept_norm_1, kept_memory, kept_norm_2, kept_ffn, kept_norm_3 = kept
    d_sum, d_norm_3 = _layer_norm_backward(d_y, kept_norm_3)
    d_x, d_ffn = _feed_forward_backward(d_sum, kept_ffn)
    d_sum, d_norm_2 = _layer_norm_backward(d_sum + d_x, kept_norm_2)
    d_x, d_memory, d_memory_attention = _multi_head_backward(d_sum, kept_memory)
    d_sum, d_norm_1 = _layer_norm_backward(d_sum + d_x, kept_norm_1)
    d_x, d_own, d_self_attention = _multi_head_backward(d_sum, kept_self)
    gradients = {
        "self_attention": d_self_attention,
        "self_attention_block": {"norm": d_norm_1},
        "memory_attention": d_memory_attention,
        "memory_attention_block": {"norm": d_norm_2},
        "feed_forward": d_ffn,
        "feed_forward_block": {"norm": d_norm_3},
    }
    return d_sum + d_x + d_own, d_memory, gradients


# %%
causal = np.tril(np.ones((2, 2), dtype=bool))
in_torch = transformer.DecoderLayer(
    transformer.MultiHeadAttention(d_model=4, n_heads=2),
    transformer.MultiHeadAttention(d_model=4, n_heads=2),
    transformer.PositionwiseFeedForward(4, 6),
    4,
    dropout=0.0,
).double()
check_pair(
    lambda x, memory, w: _decoder_layer(x, memory, w, 2, causal, mask),  # the mask of the encoder's cell
    _decoder_layer_backward,
    lambda x, memory, w: functional_call(in_torch, _flatten(w), (x, memory, None, torch.tensor(mask))),
    normal((1, 2, 4)),
    normal((1, 3, 4)),
    {
        "self_attention": tiny_attention(),
        "self_attention_block": {"norm": tiny_norm()},
        "memory_attention": tiny_attention(),
        "memory_attention_block": {"norm": tiny_norm()},
        "feed_forward": tiny_feed_forward(),
        "feed_forward_block": {"norm": tiny_norm()},
    },
)

# %% [markdown]
# ## The stacks
#
# Layers follow each other, and the backward pass takes them in reverse. Every decoder layer reads the same memory, so
# the memory gets the sum over the layers.


# %%
#| export
def _encoder(x: np.ndarray, w: _Tree, n_heads: int, mask: np.ndarray) -> tuple[np.ndarray, Any]:
    """The embedded source (B, n, d_model) → the memory (B, n, d_model)."""
    kept = []
    for i in range(len(w["layers"])):
        x, kept_layer = _encoder_layer(x, w["layers"][str(i)], n_heads, mask)
        kept.append(kept_layer)
    return x, kept


# %%
#| export
def _encoder_backward(d_memory: np.ndarray, kept: Any) -> tuple[np.ndarray, _Tree]:
    d_x, gradients = d_memory, {}
    for i in reversed(range(len(kept))):
        d_x, gradients[str(i)] = _encoder_layer_backward(d_x, kept[i])
    return d_x, {"layers": gradients}


# %%
#| export
def _decoder(
    x: np.ndarray, memory: np.ndarray, w: _Tree, n_heads: int, tgt_mask: np.ndarray, memory_mask: np.ndarray
) -> tuple[np.ndarray, Any]:
    """The embedded target (B, m, d_model) → its hidden states (B, m, d_model)."""
    kept = []
    for i in range(len(w["layers"])):
        x, kept_layer = _decoder_layer(x, memory, w["layers"][str(i)], n_heads, tgt_mask, memory_mask)
        kept.append(kept_layer)
    return x, kept


# %%
#| export
def _decoder_backward(d_hidden: np.ndarray, kept: Any) -> tuple[np.ndarray, np.ndarray, _Tree]:
    d_x, gradients = d_hidden, {}
    d_memory: Any = 0  # every layer adds to it
    for i in reversed(range(len(kept))):
        d_x, d_from_layer, gradients[str(i)] = _decoder_layer_backward(d_x, kept[i])
        d_memory = d_memory + d_from_layer
    return d_x, d_memory, {"layers": gradients}


# %% [markdown]
# ## Embedding and positions
#
# > In the embedding layers, we multiply those weights by $\sqrt{d_{\text{model}}}$.
# >
# > — Section 3.4
#
# The sinusoids are added and have no weights, so the gradient passes them by. The row of token $t$ was copied to every
# place where $t$ stands, times $\sqrt{d_{\text{model}}}$; so it collects the gradients of all those places, times
# $\sqrt{d_{\text{model}}}$. `np.add.at` adds up repeated rows, where `d_e[ids] += …` would keep one of them.


# %%
#| export
def _embed(ids: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    """Scaled vectors of the tokens plus sinusoids of their positions: (B, n) → (B, n, d_model)."""
    n, d_model = ids.shape[1], embedding.shape[1]
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)  # (n, d_model / 2)
    positions = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(n, d_model)  # sine, cosine, sine, …
    return embedding[ids] * np.sqrt(d_model) + positions


# %%
#| export
def _embed_backward(d_x: np.ndarray, ids: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    d_embedding = np.zeros_like(embedding)  # (V, d_model)
    np.add.at(d_embedding, ids, d_x * np.sqrt(embedding.shape[1]))
    return d_embedding


# %%
ids = np.array([[3, 1, 3], [0, 3, 1]])  # token 3 three times, tokens 2 and 4 never


def embed_in_torch(embedding):
    return F.embedding(torch.tensor(ids), embedding) * 4**0.5 + sinusoids(3, 4)


check_pair(
    lambda e: (_embed(ids, e), e),
    lambda d_x, e: (_embed_backward(d_x, ids, e),),
    embed_in_torch,
    normal((5, 4)),
)

# %% [markdown]
# ## The smoothed loss
#
# The targets of one position are $q$: $1 - \epsilon_{ls}$ for the true token, $\epsilon_{ls}/(V - 1)$ for each other
# ([Section 5.4](05_4_regularization.py)). With logits $z$ and $p = \mathrm{softmax}(z)$ the loss is $-\sum_i q_i \ln p_i$,
# and $\ln p_i = z_i - \ln \sum_k e^{z_k}$, so
#
# $$\frac{\partial \ln p_i}{\partial z_j} = [i = j] - p_j, \qquad
# \delta_{z,j} = -\sum_i q_i\,([i = j] - p_j) = p_j \sum_i q_i - q_j = p_j - q_j .$$
#
# The last step holds because $q$ sums to 1. Where the model says what the target says, $p = q$, the gradient is 0. The loss
# is a mean over the real tokens, so each of them has $1/\text{tokens}$ of this, and padding 0.


# %%
#| export
def _smoothed_loss(
    logits: np.ndarray, tgt_out: np.ndarray, label_smoothing: float, pad_id: int
) -> tuple[np.ndarray, Any]:
    """Mean over the real tokens of −Σ q ln p, in nats."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # (B, m, V)
    q = np.full(logits.shape, label_smoothing / (logits.shape[-1] - 1))  # (B, m, V)
    np.put_along_axis(q, tgt_out[..., None], 1 - label_smoothing, axis=-1)
    real = (tgt_out != pad_id)[..., None]  # (B, m, 1)
    share = real / max(real.sum(), 1)  # of a token in the mean
    return -(share * q * log_p).sum(), (np.exp(log_p), q, share)


# %%
#| export
def _smoothed_loss_backward(kept: Any) -> np.ndarray:
    p, q, share = kept
    return share * (p - q)  # (B, m, V)


# %%
tgt_out = np.array([[3, 1, 2], [4, 2, 0]])  # one position of padding
check_pair(
    lambda logits: _smoothed_loss(logits, tgt_out, 0.1, pad_id=0),
    lambda d_loss, kept: (d_loss * _smoothed_loss_backward(kept),),
    lambda logits: LabelSmoothingLoss(0.1)(logits, torch.tensor(tgt_out)),
    normal((2, 3, 5)),
)

# %% [markdown]
# ## The whole, forward and backward
#
# > In our model, we share the same weight matrix between the two embedding layers and the pre-softmax linear
# > transformation, similar to [30].
# >
# > — Section 3.4
#
# So $E$ is used in three places and collects three gradients. As output matrix, $z = \text{hidden}\,E^{\mathsf T}$ is a
# linear layer without bias: $\delta_{\text{hidden}} = \delta_z E$ and $\delta_E = \delta_z^{\mathsf T}\,\text{hidden}$. As
# embedding of the source and of the target it collects the rest. The gradient goes from the loss down through the decoder;
# there it branches, to the target's embedding and through the memory to the encoder and the source's embedding.


# %%
#| export
def _transformer(src: np.ndarray, tgt_in: np.ndarray, w: _Tree, n_heads: int, pad_id: int) -> tuple[np.ndarray, Any]:
    """Figure 1: ids (B, n) and (B, m) → logits (B, m, V)."""
    embedding = w["embedding"]["weight"]
    src_mask, tgt_mask = _masks(src, tgt_in, pad_id)
    memory, kept_encoder = _encoder(_embed(src, embedding), w["encoder"], n_heads, src_mask)
    hidden, kept_decoder = _decoder(_embed(tgt_in, embedding), memory, w["decoder"], n_heads, tgt_mask, src_mask)
    return hidden @ embedding.T, (src, tgt_in, hidden, embedding, kept_encoder, kept_decoder)


# %%
#| export
def _transformer_backward(d_logits: np.ndarray, kept: Any) -> tuple[dict[str, np.ndarray], _Tree]:
    """The gradient of the tied matrix from each of its three places, and the gradients of both stacks."""
    src, tgt_in, hidden, embedding, kept_encoder, kept_decoder = kept
    d_tgt, d_memory, d_decoder = _decoder_backward(
        d_logits @ embedding, kept_decoder
    )  # (B, m, d_model), (B, n, d_model)
    d_src, d_encoder = _encoder_backward(d_memory, kept_encoder)
    places = {
        "source embedding": _embed_backward(d_src, src, embedding),
        "target embedding": _embed_backward(d_tgt, tgt_in, embedding),
        "output": _rows(d_logits).T @ _rows(hidden),  # (V, d_model), like the other two
    }
    return places, {"encoder": d_encoder, "decoder": d_decoder}


# %% [markdown]
# ## Names and shapes
#
# All that is left is a class that holds the weights. It takes them under the names of torch's `state_dict()`. Numbers
# that the shapes tell (width, depth, $d_{ff}$, vocabulary) are read from the weights; $h$ cannot be, for the heads stand
# side by side in one matrix. What does not fit is refused before it computes nonsense.


# %%
#| export
def _expected_shapes(flat: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a model as wide and as deep as this one."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in flat or flat[name].ndim != 2:
            raise ValueError(f"the weights have no matrix {name}; give the whole state_dict() of a Transformer.")
        return flat[name].shape

    def linear(n_in: int, n_out: int) -> _Tree:
        return {"weight": (n_out, n_in), "bias": (n_out,)}

    vocab_size, d = shape("embedding.weight")
    first = "encoder.layers.0."
    keys, values = (shape(f"{first}self_attention.{name}.weight")[0] for name in ("w_k", "w_v"))  # h·d_k, h·d_v
    d_ff = shape(f"{first}feed_forward.w_1.weight")[0]
    n_layers = len({name.split(".")[2] for name in flat if name.startswith("encoder.layers.")})

    attention = {"w_q": linear(d, keys), "w_k": linear(d, keys), "w_v": linear(d, values), "w_o": linear(values, d)}
    ffn, block = {"w_1": linear(d, d_ff), "w_2": linear(d_ff, d)}, {"norm": {"weight": (d,), "bias": (d,)}}
    encoder = {"self_attention": attention, "feed_forward": ffn, "attention_block": block, "feed_forward_block": block}
    decoder = {"self_attention": attention, "memory_attention": attention, "feed_forward": ffn} | {
        f"{name}_block": block for name in ("self_attention", "memory_attention", "feed_forward")
    }
    sides = {"encoder": encoder, "decoder": decoder}
    stacks = {side: {"layers": {str(i): layer for i in range(n_layers)}} for side, layer in sides.items()}
    return _flatten({"embedding": {"weight": (vocab_size, d)}, **stacks})


# %%
#| export
def _check_weights(flat: dict[str, np.ndarray]) -> None:
    expected = _expected_shapes(flat)
    reasons = {
        "encoder.norm.": "pre-norm",
        "decoder.norm.": "pre-norm",
        "src_positions.": "learned positions",
        "tgt_positions.": "learned positions",
        "tgt_embedding.": "untied embeddings",
        "output.": "untied embeddings",
    }
    for name in flat:
        for start, reason in reasons.items():
            if name.startswith(start):
                raise ValueError(
                    f"{name} belongs to a model with {reason}; this one has post-norm, sinusoids and one tied matrix, "
                    "so give weights of such a model."
                )
        if name not in expected:
            raise ValueError(f"{name} is not a weight of this model; leave it out, or mend its name.")
    for name, shape in expected.items():
        if name not in flat:
            raise ValueError(f"the weights lack {name}; give the whole state_dict() of a Transformer.")
        if flat[name].shape != shape:
            raise ValueError(f"{name} has shape {flat[name].shape}; beside the other weights it must be {shape}.")
    if flat["embedding.weight"].shape[1] % 2:
        raise ValueError("d_model is odd; sines and cosines come in pairs, so give weights of an even width.")


# %%
#| export
def _check_ids(name: str, ids: np.ndarray, vocab_size: int) -> None:
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        raise TypeError(f"{name} is {type(ids).__name__}; give an array of integers, as a tokenizer makes them.")
    if ids.ndim != 2 or ids.size == 0:
        raise ValueError(f"{name} has shape {ids.shape}; expected a non-empty (batch, length).")
    if not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(
            f"{name} ranges from {ids.min()} to {ids.max()}, but the vocabulary has ids 0 to {vocab_size - 1}; was it "
            "made by another tokenizer?"
        )


# %%
#| export
class NumpyTransformer:
    """The Transformer of Figure 1 in plain NumPy, in float64, with its backward pass written by hand.

    Post-norm, sinusoidal positions, one matrix for both embeddings and the output; no dropout.

    Args:
        weights: Arrays under the names of torch's `Transformer.state_dict()`. They are copied.
        n_heads: h of the model that the weights come from.
        pad_id: Fills short sentences up.
        bos_id: Begins every target.
        eos_id: Ends every sentence.

    Attributes:
        weights: The float64 weights as a tree: weights["encoder"]["layers"]["0"] and so on.

    Raises:
        ValueError: A weight is missing, unknown or of the wrong shape; n_heads does not divide the projections; or a
            special id is not in the vocabulary.

    Source: §3, Figure 1; §5.4 for the loss. The gradients are the chain rule's.
    """

    def __init__(
        self, weights: dict[str, np.ndarray], n_heads: int, pad_id: int = 0, bos_id: int = 1, eos_id: int = 2
    ) -> None:
        flat = {name: np.array(weight, dtype=np.float64) for name, weight in weights.items()}
        _check_weights(flat)
        for name in ("w_k", "w_v"):
            rows = flat[f"encoder.layers.0.self_attention.{name}.weight"].shape[0]
            if n_heads < 1 or rows % n_heads:
                raise ValueError(
                    f"n_heads={n_heads} does not divide the {rows} rows of {name}; give the model's own h."
                )
        self.vocab_size = len(flat["embedding.weight"])
        special = (pad_id, bos_id, eos_id)
        if len(set(special)) < 3 or not 0 <= min(special) <= max(special) < self.vocab_size:
            raise ValueError(f"pad_id, bos_id, eos_id is {special}; give three different ids below {self.vocab_size}.")
        self.weights, self.n_heads = _nest(flat), n_heads
        self.pad_id, self.bos_id, self.eos_id = special

    def logits(self, src: np.ndarray, tgt_in: np.ndarray) -> np.ndarray:
        """Logits of the next token at every target position.

        Args:
            src: Source ids, shape (B, n), padded with pad_id.
            tgt_in: Target ids shifted right, shape (B, m): bos_id first, padded on the right.

        Returns:
            Shape (B, m, V), float64. Those at padded positions mean nothing.

        Raises:
            TypeError: ids are not an array of integers.
            ValueError: A shape is wrong, or an id is not in the vocabulary.
        """
        return self._run(src, tgt_in)[0]

    def loss_and_gradients(
        self, src: np.ndarray, tgt_in: np.ndarray, tgt_out: np.ndarray, label_smoothing: float = 0.1
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The smoothed loss of a batch, and its derivative by every weight.

        Args:
            src: Source ids, shape (B, n).
            tgt_in: What the decoder reads, shape (B, m).
            tgt_out: What it should say, shape (B, m); pad_id where nothing counts.
            label_smoothing: ε, in [0, 1).

        Returns:
            The mean loss over the real tokens, in nats, and gradients under the names of the weights.

        Raises:
            TypeError: ids are not an array of integers.
            ValueError: A shape is wrong, an id is not in the vocabulary, or label_smoothing is out of range.
        """
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1).")
        logits, kept = self._run(src, tgt_in)
        _check_ids("tgt_out", tgt_out, self.vocab_size)
        if tgt_out.shape != tgt_in.shape:
            raise ValueError(f"tgt_in has shape {tgt_in.shape} and tgt_out {tgt_out.shape}; give them the same shape.")
        loss, kept_loss = _smoothed_loss(logits, tgt_out, label_smoothing, self.pad_id)
        places, stacks = _transformer_backward(_smoothed_loss_backward(kept_loss), kept)
        return float(loss), _flatten({"embedding": {"weight": sum(places.values())}, **stacks})

    def greedy(self, src: np.ndarray, max_new_tokens: int) -> list[list[int]]:
        """Take the most probable token at every step until the end token.

        There is no cache: each step computes all target positions anew.

        Args:
            src: Source ids, shape (B, n), padded with pad_id.
            max_new_tokens: Most tokens to generate per sentence.

        Returns:
            The ids of each sentence, without begin and end.

        Raises:
            TypeError: ids are not an array of integers.
            ValueError: A shape is wrong, an id is not in the vocabulary, or max_new_tokens is less than 1.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        _check_ids("src", src, self.vocab_size)
        w, embedding = self.weights, self.weights["embedding"]["weight"]
        tgt, ended = np.full((len(src), 1), self.bos_id), np.zeros(len(src), dtype=bool)
        memory, _ = _encoder(_embed(src, embedding), w["encoder"], self.n_heads, _masks(src, tgt, self.pad_id)[0])
        while tgt.shape[1] <= max_new_tokens and not ended.all():
            src_mask, tgt_mask = _masks(src, tgt, self.pad_id)
            hidden, _ = _decoder(_embed(tgt, embedding), memory, w["decoder"], self.n_heads, tgt_mask, src_mask)
            chosen = (hidden[:, -1] @ embedding.T).argmax(axis=-1)  # (B,)
            ended |= chosen == self.eos_id
            tgt = np.concatenate([tgt, chosen[:, None]], axis=1)  # what a row writes after its end is cut off below
        sentences = [[*ids, self.eos_id] for ids in tgt[:, 1:].tolist()]
        return [ids[: ids.index(self.eos_id)] for ids in sentences]

    def _run(self, src: np.ndarray, tgt_in: np.ndarray) -> tuple[np.ndarray, Any]:
        _check_ids("src", src, self.vocab_size)
        _check_ids("tgt_in", tgt_in, self.vocab_size)
        if len(src) != len(tgt_in):
            raise ValueError(f"src has {len(src)} sentences and tgt_in {len(tgt_in)}; give pairs.")
        return _transformer(src, tgt_in, self.weights, self.n_heads, self.pad_id)


# %% [markdown]
# ## See it: a sentence goes through
#
# The trained model of [Section 6.1](06_1c_machine_translation.py), as arrays. Its weights are taken over by name.

# %%
translator = load_toy_translator()
tokenizer = translator.tokenizer
state = {name: weight.numpy() for name, weight in translator.model.state_dict().items()}
n_heads = translator.model.config.n_heads
model = NumpyTransformer(state, n_heads)
w = model.weights

pair = next(embedded_corpus("test"))
src = np.array([[*tokenizer.encode(pair.source), model.eos_id]])  # (1, n)
tgt_in = np.array([[model.bos_id, *tokenizer.encode(pair.target)]])  # (1, m)
src_mask, tgt_mask = _masks(src, tgt_in, model.pad_id)

x = _embed(src, w["embedding"]["weight"])
memory, (kept_first, _) = _encoder(x, w["encoder"], n_heads, src_mask)  # two layers
kept_attention, *_ = kept_first
*_, kept_heads, _ = kept_attention
q, k, v, p = kept_heads
hidden, _ = _decoder(_embed(tgt_in, w["embedding"]["weight"]), memory, w["decoder"], n_heads, tgt_mask, src_mask)
logits = hidden @ w["embedding"]["weight"].T

print(pair.source, "→", pair.target)
arrays = {"src": src, "embedded": x, "queries": q, "weights": p, "memory": memory, "tgt_in": tgt_in, "hidden": hidden}
for name, array in (arrays | {"logits": logits}).items():
    print(f"{name:9} {array.shape}")
best = logits[0].argmax(axis=-1).tolist()
print("most probable next tokens:", *tokenizer.pieces(best[:-1]))
assert np.allclose(logits, model.logits(src, tgt_in), rtol=0, atol=1e-12)
assert tokenizer.decode(best[:-1]) == pair.target and best[-1] == model.eos_id

# %% [markdown]
# `queries` and `weights` belong to the first encoder layer. Given the target so far, the right next token is the most probable
# one at every position: the line of pieces is the German sentence, and the end token follows it.
#
# ## Check it: against torch, on trained weights
#
# Sixteen sentences of different lengths, padded to one batch. torch computes in float64 as well. One thing is done for
# it: the torch model keeps its sinusoids in float32, so the copy that we compare with gets them computed in float64.


# %%
def in_double(model):
    """A copy of a torch model that computes in float64, sinusoids included."""
    model = copy.deepcopy(model).double()
    for positions in (model.src_positions, model.tgt_positions):
        positions.table = sinusoids(256, model.config.d_model)
    return model


pairs = list(itertools.islice(embedded_corpus("test"), 16))
batch = make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs])
src, tgt_in, tgt_out = (ids.numpy() for ids in (batch.src, batch.tgt_in, batch.tgt_out))

reference = in_double(translator.model)
torch_logits = reference(batch.src, batch.tgt_in)
torch_loss = LabelSmoothingLoss(0.1)(torch_logits, batch.tgt_out)
torch_loss.backward()
torch_gradients = {name: weight.grad.numpy() for name, weight in reference.named_parameters()}

loss, gradients = model.loss_and_gradients(src, tgt_in, tgt_out)
assert np.abs(model.logits(src, tgt_in) - torch_logits.detach().numpy()).max() < 1e-10
assert abs(loss - torch_loss.item()) < 1e-10
assert gradients.keys() == torch_gradients.keys() == state.keys()
assert largest_difference([gradients], [{name: torch_gradients[name] for name in gradients}]) < 1e-10
print(f"src {src.shape}, tgt {tgt_in.shape}, loss {loss:.4f}")
print(f"{torch_logits.numel():,} logits agree to 1e-10")
n_weights = sum(gradient.size for gradient in gradients.values())
print(f"{n_weights:,} derivatives, in {len(gradients)} arrays, agree to 1e-10")

# %% [markdown]
# Many of these derivatives are small, so each array is compared relative to its norm, too. Six norms are 0, those of the
# biases of the keys. Such a bias $b$ adds $q \cdot b/\sqrt{d_k}$ to all scores of a query $q$. A softmax does not notice if
# all its scores grow by the same number, so $b$ has no effect, and its gradient is 0 but for rounding.

# %%
size = {name: np.linalg.norm(gradient) for name, gradient in torch_gradients.items()}
key_biases = [name for name in size if name.endswith("w_k.bias")]
others = [name for name in size if name not in key_biases]
assert len(key_biases) == 6 and max(np.linalg.norm(gradients[name]) for name in key_biases) < 1e-14
smallest = min(size[name] for name in others)
assert max(np.linalg.norm(gradients[name] - torch_gradients[name]) / size[name] for name in others) < 1e-9
print(f"each of the other arrays agrees to 1e-9 of its norm; the smallest norm is {smallest:.1e}")

# %% [markdown]
# Both could share an error of thought, so finite differences have a word on the whole, too. Two runs for each weight are too
# many. One random *direction* $v$ moves all weights at once: the loss must change at the rate
# $\sum_w v_w\,\partial L/\partial w$. A wrong array would show in the sum: the share of an
# array has about the size of its norm, and the tolerance is less than a hundredth of the smallest norm but those of the key
# biases.

# %%
step, worst = 1e-7, 0.0
for seed in range(2):
    rng = np.random.default_rng(seed)
    direction = {name: rng.standard_normal(weight.shape) for name, weight in state.items()}
    plus, minus = (
        NumpyTransformer({name: state[name] + sign * step * direction[name] for name in state}, n_heads)
        for sign in (1, -1)
    )
    moved = [_smoothed_loss(side.logits(src, tgt_in), tgt_out, 0.1, 0)[0] for side in (plus, minus)]
    predicted = sum((gradients[name] * direction[name]).sum() for name in state)
    measured = (moved[0] - moved[1]) / (2 * step)
    worst = max(worst, abs(measured - predicted))
    print(f"direction {seed}: predicted {predicted:+.5f}, measured {measured:+.5f}")
assert worst < 1e-6 < smallest / 100

# %% [markdown]
# ## Check it: the mask, seen backwards
#
# If position $i$ cannot see position $j$, no gradient runs from $i$ to $j$. Let the loss count at the third target
# position alone, and follow the gradient back to the embedded target and source.

# %%
logits, kept = _transformer(src, tgt_in, w, n_heads, model.pad_id)
*_, kept_encoder, kept_decoder = kept
_, kept_loss = _smoothed_loss(logits, tgt_out, 0.1, model.pad_id)
d_logits = _smoothed_loss_backward(kept_loss)  # (B, m, V)
only_third = d_logits * (np.arange(tgt_in.shape[1]) == 2)[:, None]
d_tgt, d_memory, _ = _decoder_backward(only_third @ w["embedding"]["weight"], kept_decoder)
d_src, _ = _encoder_backward(d_memory, kept_encoder)
reached = (d_tgt != 0).any(axis=-1)  # (B, m)
assert reached[:, :3].all() and not reached[:, 3:].any()
assert np.array_equal((d_src != 0).any(axis=-1), src != model.pad_id)
print("target positions reached:", reached.any(axis=0).nonzero()[0].tolist())
print("source positions reached: all", (src != model.pad_id).sum(), "real tokens, and no padding")

# %% [markdown]
# The later target positions get a gradient of exactly 0, and so does the source's padding. Every other position gets one.
#
# ## Where the gradient goes
#
# Does the gradient reach the lowest layer? The chart shows its size for each part of the model, in the order in which the
# backward pass comes by: the root mean square over the part's weights, for the trained model and for a fresh one of the same form.

# %%
torch.manual_seed(0)
fresh_state = {n: x.numpy() for n, x in transformer.Transformer(translator.model.config).state_dict().items()}
fresh = NumpyTransformer(fresh_state, n_heads)
sublayers = ["feed_forward", "memory_attention", "self_attention"]
order = [
    f"{side} {i + 1}, {part.replace('_', ' ')}" for side in ("decoder", "encoder") for i in (1, 0) for part in sublayers
]
order = [part for part in order if not (part.startswith("encoder") and "memory" in part)]

sizes = []
for name, each in (("fresh", fresh), ("trained", model)):
    loss, found = each.loss_and_gradients(src, tgt_in, tgt_out)
    print(f"{name:7} loss {loss:.2f}")
    for part in order:
        layer, sublayer = part.split(", ")
        side, number = layer.split()
        start = f"{side}.layers.{int(number) - 1}.{sublayer.replace(' ', '_')}."
        entries = np.concatenate([x.ravel() for weight, x in found.items() if weight.startswith(start)])
        sizes.append({"model": name, "part": part, "size": float(f"{np.sqrt((entries**2).mean()):.3g}")})

# %%
by_model = {name: [row["size"] for row in sizes if row["model"] == name] for name in ("fresh", "trained")}
for name, values in by_model.items():
    print(f"{name:7} largest part / smallest part: {max(values) / min(values):.1f}")
assert all(max(values) / min(values) < 10 for values in by_model.values())
assert all(old > 10 * new for old, new in zip(by_model["fresh"], by_model["trained"], strict=True))
_, kept_fresh = _smoothed_loss(fresh.logits(src, tgt_in), tgt_out, 0.1, model.pad_id)
starts = [np.linalg.norm(_smoothed_loss_backward(kept)) for kept in (kept_fresh, kept_loss)]
print(f"norm of p − q, averaged as in the loss: fresh {starts[0]:.4f}, trained {starts[1]:.4f}")
assert starts[0] > 10 * starts[1]

# %%
chart = (
    alt.Chart(alt.Data(values=sizes))
    .mark_point(filled=True, size=80, opacity=1)
    .encode(
        x=alt.X(
            "size:Q",
            title="root mean square of the gradient",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format=".0e", values=[1e-5, 1e-4, 1e-3, 1e-2]),
        ),
        y=alt.Y("part:N", title=None, sort=order, axis=alt.Axis(grid=True, labelLimit=200)),
        color=alt.Color(
            "model:N",
            title=None,
            scale=alt.Scale(domain=["fresh", "trained"], range=["#D55E00", "#0072B2"]),
            legend=alt.Legend(orient="top"),
        ),
        shape=alt.Shape(
            "model:N", title=None, scale=alt.Scale(domain=["fresh", "trained"], range=["circle", "square"])
        ),
        tooltip=["model:N", "part:N", "size:Q"],
    )
    .properties(width=250, height=230, title="All parts get gradients of similar size")
)
chart

# %% [markdown]
# From top to bottom is the way of the backward pass. Within a model all parts lie within one power of ten, the first encoder
# layer among them. But two layers a side are few; what happens in deeper stacks, [Section
# 3.1](03_1_encoder_and_decoder_stacks.py) shows. The trained model's squares lie more than a power of ten to the left of the
# fresh one's circles: every gradient starts from $p - q$, and in the trained model $p$ is near $q$.
#
# ### What the tied matrix collects
#
# One row of $E$ belongs to one token. Its gradient is the sum of what the three places send.

# %%
places, _ = _transformer_backward(d_logits, kept)
assert np.allclose(sum(places.values()), torch_gradients["embedding.weight"], atol=1e-10)
in_source, in_target = (set(ids[ids != model.pad_id].tolist()) for ids in (src, tgt_in))
rows = {place: set(np.flatnonzero(np.abs(d).sum(axis=1)).tolist()) for place, d in places.items()}
assert rows["source embedding"] == in_source and rows["target embedding"] == in_target
assert len(rows["output"]) == model.vocab_size
for place, found in rows.items():
    print(f"{place:16} {len(found):4} of {model.vocab_size} rows, norm {np.linalg.norm(places[place]):.4f}")

# %%
pieces = tokenizer.pieces(range(model.vocab_size))
whole = {token for token, piece in enumerate(pieces) if piece.startswith("▁") and len(piece) > 2}  # begin a word


def most_frequent(tokens, ids):
    return sorted(tokens & whole, key=lambda token: (-(ids == token).sum(), token))[:4]


chosen = [
    *((token, "English") for token in most_frequent(in_source - in_target, src)),
    *((token, "German") for token in most_frequent(in_target - in_source, tgt_in)),
    (tokenizer.encode(".")[-1], "both"),
    (model.bos_id, "begin"),
    (model.eos_id, "end"),
    (min(whole - in_source - in_target), "not in the batch"),
]
labels = {token: f"{pieces[token].replace('▁', '')} ({kind})" for token, kind in chosen}
collected = [
    {"token": label, "place": place, "norm": float(f"{np.linalg.norm(d[token]):.3g}")}
    for token, label in labels.items()
    for place, d in places.items()
    if token in rows[place]
]
kinds = {
    "source embedding": ("#009E73", "triangle-up"),
    "target embedding": ("#D55E00", "circle"),
    "output": ("#0072B2", "square"),
}
chart = (
    alt.Chart(alt.Data(values=collected))
    .mark_point(filled=True, size=80, opacity=1)
    .encode(
        x=alt.X(
            "norm:Q",
            title="norm of the row's gradient",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format=".0e", values=[1e-5, 1e-4, 1e-3, 1e-2]),
        ),
        y=alt.Y("token:N", title=None, sort=list(labels.values()), axis=alt.Axis(grid=True, labelLimit=200)),
        color=alt.Color(
            "place:N",
            title=None,
            scale=alt.Scale(domain=list(kinds), range=[c for c, _ in kinds.values()]),
            legend=alt.Legend(orient="top"),
        ),
        shape=alt.Shape(
            "place:N", title=None, scale=alt.Scale(domain=list(kinds), range=[s for _, s in kinds.values()])
        ),
        tooltip=["token:N", "place:N", "norm:Q"],
    )
    .properties(width=250, height=240, title="The output reaches every row, the embeddings few")
)
chart

# %% [markdown]
# A missing mark is a gradient of exactly 0. English tokens get one from the source's embedding, German ones from the
# target's, and all from the output: a softmax gives every token some probability, and $p - q$ is not 0. The token that is
# not in the batch gets a gradient from the output alone. So a tied row gets one from every batch, an untied embedding's row
# only when its token occurs.
#
# ## Check it: it translates
#
# Greedy decoding, without a cache: each step runs the decoder on all tokens so far. torch's greedy decoding, with a
# cache, in float32, must write the same tokens.

# %%
written = model.greedy(src, max_new_tokens=30)
assert written == greedy_decode(translator.model, batch.src, max_new_tokens=30)
for pair, ids in zip(pairs[:6], written, strict=False):
    print(f"{pair.source}\n    {tokenizer.decode(ids)}")
right = sum(tokenizer.decode(ids) == pair.target for pair, ids in zip(pairs, written, strict=True))
print(f"\n{right} of {len(pairs)} are the reference, word for word")
assert right >= 14

# %% [markdown]
# ## What the backward pass keeps
#
# `kept` is the price of a gradient: training holds it for every layer until the backward pass comes by. Here it is
# counted for the first encoder layer of the trained model, without the weights themselves, at three lengths $n$.


# %%
def arrays_in(kept):
    """The arrays of a nest of tuples, each once; views of one array count once."""
    if isinstance(kept, np.ndarray):
        owner = kept if kept.base is None else kept.base
        return {id(owner): owner}
    return {key: a for part in kept if isinstance(part, tuple | np.ndarray) for key, a in arrays_in(part).items()}


layer = w["encoder"]["layers"]["0"]
constant = {id(weight) for weight in _flatten(layer).values()}
shares = {}
for n in (20, 200, 1000):
    x = np.random.default_rng(0).standard_normal((1, n, w["embedding"]["weight"].shape[1]))
    _, kept = _encoder_layer(x, layer, n_heads, np.ones((1, n), dtype=bool))
    numbers = sum(array.size for key, array in arrays_in(kept).items() if key not in constant)
    shares[n] = n_heads * n * n / numbers
    print(
        f"n = {n:4}: {numbers / x.size:4.0f} numbers kept for each one that goes in, {shares[n]:3.0%} of them attention weights"
    )
assert shares[20] < 0.1 and shares[1000] > 0.5

# %% [markdown]
# ## Unsaid by the paper
#
# - **The backward pass.** The paper mentions small gradients of the softmax (Section 3.2.1), but writes no gradient down.
#   Its code left them to TensorFlow, which puts rules like those above together in reverse order, as torch does. The method is back-propagation (Rumelhart et al. [1986](https://doi.org/10.1038/323533a0)), or in general
#   reverse-mode automatic differentiation; Baydin et al. ([2018](https://arxiv.org/abs/1502.05767)) survey it.
# - **What must be kept.** The weights $P$ grow with $n^2$ and for long inputs are most of what is kept. FlashAttention (Dao et al. [2022](https://arxiv.org/abs/2205.14135))
#   keeps of $P$ only what normalizes each row, and computes $P$ anew in the backward pass. Chen et al. ([2016](https://arxiv.org/abs/1604.06174)) do so with whole layers:
#   keep a layer's input, and run it again when its gradient is due.
# - **The largest score.** The softmax subtracts the row's largest score before it takes exponentials. Mathematically
#   this changes nothing, and without it a score of 1000 would overflow in float64. The loss does the same.
# - **Padding that attends.** A padded target position still computes something. No real position reads it, and its share in
#   the loss is 0; so no gradient comes from it.
# - **The constant in the loss.** A smoothed loss cannot reach 0: at best it is the entropy of $q$. Its gradient $p - q$
#   does not know this constant.

# %%
smoothing, n_classes = 0.1, model.vocab_size
floor = -(1 - smoothing) * np.log(1 - smoothing) - smoothing * np.log(smoothing / (n_classes - 1))
trained_loss, _ = model.loss_and_gradients(src, tgt_in, tgt_out)
print(f"the trained model's loss {trained_loss:.3f}; no model can get below {floor:.3f}")
assert floor < trained_loss < floor + 0.1

# %% [markdown]
# ## What we now know
#
# - A Transformer, both passes, is a few hundred lines of array code. Its gradients follow from few rules: for products, sums,
#   the softmax, the norm, the ReLU, the look-up of rows, and the loss.
# - Every pair, up to the layers, agrees with finite differences and with torch. With the trained weights, all logits and
#   all gradients of a batch agree with torch to $10^{-10}$ in float64.
# - The biases of the keys have no effect, and get no gradient.
# - Along random directions in the space of all weights, the loss moves as the gradient predicts.
# - Where a mask forbids to look, the gradient is exactly 0.
# - The tied matrix collects three gradients. Two reach the rows of tokens that occur, the third reaches all.
# - Greedy decoding in NumPy writes the tokens that torch's writes.
#
# ## Exercises
#
# 1. **Predict, then run.** Give the batch three more columns of padding, source and target. Which gradients change?
# 2. **Predict, then run.** In `_embed_backward`, write `d_embedding[ids] += d_x * …` in place of `np.add.at`. Which
#    rows of the check's gradient become wrong?
# 3. **Minutes.** RMSNorm (Zhang and Sennrich [2019](https://arxiv.org/abs/1910.07467)) leaves the mean out: $y = g\,x/\sqrt{\overline{x^2} + \epsilon}$.
#    Derive its backward pass from the layer norm's, write the pair, and check it with `check_pair`.
# 4. **An hour.** Write a decoder layer in NumPy, from a blank cell and in your own form: `decoder_layer(x, memory)` for a
#    target x of shape (1, 5, 8) and a memory of shape (1, 7, 8), post-norm, with weights that you draw once. Then check that it is causal:
#    change the last two target positions, and see which outputs change; change a source position, and see again. Check: `check("9-decoder-layer", answer)`.
# 5. **An hour.** `greedy` computes all target positions anew at each step. Keep the keys and values of earlier positions,
#    and project the memory once. Show that the tokens are the same. By what factor do the multiply–adds of the decoder layers
#    shrink, for 20 source tokens and 20 new ones?
# 6. **A day.** Write Adam and the schedule of [Section 5.3](05_3_optimizer.py) in NumPy and train a fresh
#    `NumpyTransformer` to copy sequences of three to six of ten symbols, until greedy decoding copies 100 unseen ones. Then
#    let torch train from the same weights on the same batches in float64. The first losses must agree to $10^{-10}$, or the
#    gradients or Adam are wrong. For how many updates do they agree to $10^{-6}$, and why not for ever?

# %% [markdown]
# Solution to exercise 1: none. Padding is hidden as a key, and counts nothing in the loss.

# %% tags=["hide-cell"]
wider = [np.pad(ids, ((0, 0), (0, 3)), constant_values=model.pad_id) for ids in (src, tgt_in, tgt_out)]
loss_of_wider, of_wider = model.loss_and_gradients(*wider)
assert abs(loss_of_wider - trained_loss) < 1e-12
assert max(np.abs(of_wider[name] - gradients[name]).max() for name in gradients) < 1e-12
print("the loss and all gradients are the same")

# %% [markdown]
# Solution to exercise 2: those of tokens 1 and 3, which occur more than once. NumPy reads all rows first, adds, and then
# writes them, so one occurrence is left of each token.

# %% tags=["hide-cell"]
ids = np.array([[3, 1, 3], [0, 3, 1]])
d_x = np.random.default_rng(0).standard_normal((2, 3, 4))
wrong = np.zeros((5, 4))
wrong[ids] += d_x * 4**0.5
differs = np.flatnonzero((wrong != _embed_backward(d_x, ids, wrong)).any(axis=1)).tolist()
print("wrong rows:", differs)
assert differs == [1, 3]

# %% [markdown]
# Solution to exercise 3: without the mean in the forward pass, the term with the mean of the gradient goes from the
# backward pass.


# %% tags=["hide-cell"]
def rms_norm(x, w):
    r = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
    return x * r * w["weight"], (x * r, r, w["weight"])


def rms_norm_backward(d_y, kept):
    x_hat, r, gain = kept
    d_x_hat = d_y * gain
    d_x = r * (d_x_hat - x_hat * (d_x_hat * x_hat).mean(axis=-1, keepdims=True))
    return d_x, {"weight": _rows(d_y * x_hat).sum(axis=0)}


def rms_norm_in_torch(x, w):
    return x * (x.square().mean(dim=-1, keepdim=True) + 1e-5).rsqrt() * w["weight"]


check_pair(rms_norm, rms_norm_backward, rms_norm_in_torch, normal((2, 3, 4)), {"weight": normal(4)})

# %% [markdown]
# Solution to exercise 4: one head, no biases, and norms without gain and shift, to keep it short. The outputs before the
# changed target positions stay; a changed source position changes them all.

# %% tags=["hide-cell"]
drawn = np.random.default_rng(0)
matrices = {name: drawn.normal(size=(8, 8)) / 8**0.5 for name in ("q1", "k1", "v1", "o1", "q2", "k2", "v2", "o2")}
w_1, w_2 = drawn.normal(size=(8, 32)) / 8**0.5, drawn.normal(size=(32, 8)) / 32**0.5


def standardize(x):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)


def attend(x, memory, number, mask):
    q, k, v, o = (matrices[letter + number] for letter in "qkvo")
    scores = np.where(mask, (x @ q) @ (memory @ k).swapaxes(-1, -2) / 8**0.5, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ (memory @ v) @ o


def decoder_layer(x, memory):
    x = standardize(x + attend(x, x, "1", np.tril(np.ones((x.shape[1], x.shape[1]), dtype=bool))))
    x = standardize(x + attend(x, memory, "2", True))
    return standardize(x + np.maximum(x @ w_1, 0) @ w_2)


x, memory = drawn.normal(size=(1, 5, 8)), drawn.normal(size=(1, 7, 8))
out = decoder_layer(x, memory)
assert out.shape == x.shape


def changed_outputs(x, memory):
    return np.flatnonzero(np.abs(decoder_layer(x, memory) - out).max(axis=(0, 2)) > 1e-9).tolist()


later, source = x.copy(), memory.copy()
later[:, 3:] += 1
source[:, 6] += drawn.normal(size=8)
print("target positions 3 and 4 changed; outputs that change:", changed_outputs(later, memory))
print("source position 6 changed; outputs that change:", changed_outputs(x, source))
assert changed_outputs(later, memory) == [3, 4] and changed_outputs(x, source) == [0, 1, 2, 3, 4]

verdict = check("9-decoder-layer", decoder_layer)
print(verdict)
assert verdict

# %% [markdown]
# Solution to exercise 5: the newest position is the only query, so no causal mask is needed. Without the cache, step $t$
# computes $t$ target positions and projects the memory again.


# %% tags=["hide-cell"]
def greedy_with_cache(model, src, max_new_tokens):
    embedding, stack = model.weights["embedding"]["weight"], model.weights["decoder"]["layers"]
    layers = [stack[str(i)] for i in range(len(stack))]
    src_mask, _ = _masks(src, src, model.pad_id)
    memory, _ = _encoder(_embed(src, embedding), model.weights["encoder"], model.n_heads, src_mask)

    def heads(x, w):
        return _split(_linear(x, w)[0], model.n_heads)

    def attend(x, w, k, v, mask):
        return _linear(_join(_attention(heads(x, w["w_q"]), k, v, mask)[0]), w["w_o"])[0]

    of_memory = [[heads(memory, layer["memory_attention"][name]) for name in ("w_k", "w_v")] for layer in layers]
    own = [([], []) for _ in layers]  # keys and values, one array a step
    tgt = np.full((len(src), 1), model.bos_id)
    while tgt.shape[1] <= max_new_tokens and not (tgt == model.eos_id).any(axis=1).all():
        x = _embed(tgt, embedding)[:, -1:]  # (B, 1, d_model)
        for layer, cache, (memory_k, memory_v) in zip(layers, own, of_memory, strict=True):
            for name, kept in zip(("w_k", "w_v"), cache, strict=True):
                kept.append(heads(x, layer["self_attention"][name]))
            k, v = (np.concatenate(kept, axis=2) for kept in cache)  # (B, h, t, d_k)
            y = attend(x, layer["self_attention"], k, v, True)
            x, _ = _layer_norm(x + y, layer["self_attention_block"]["norm"])
            y = attend(x, layer["memory_attention"], memory_k, memory_v, src_mask)
            x, _ = _layer_norm(x + y, layer["memory_attention_block"]["norm"])
            y, _ = _feed_forward(x, layer["feed_forward"])
            x, _ = _layer_norm(x + y, layer["feed_forward_block"]["norm"])
        tgt = np.concatenate([tgt, (x @ embedding.T).argmax(axis=-1)], axis=1)
    sentences = [[*ids, model.eos_id] for ids in tgt[:, 1:].tolist()]
    return [ids[: ids.index(model.eos_id)] for ids in sentences]


assert greedy_with_cache(model, src, max_new_tokens=30) == written

d, d_ff, n, t = 128, 512, 20, np.arange(1, 21)  # the trained model's widths
position = 6 * d**2 + 2 * d * d_ff  # weights that a target position passes in a layer
project_memory = n * 2 * d**2
without = (t * position + project_memory + 2 * d * t * (t + n)).sum()  # the last term: scores and sums of values
with_cache = (position + 2 * d * (t + n)).sum() + project_memory
print(f"the same tokens; multiply–adds of a layer: {without:,} without the cache, {with_cache:,} with it")
print(f"a factor of {without / with_cache:.1f}")
assert without > 9 * with_cache

# %% [markdown]
# ## The notebook and the module agree

# %%
imported = transformer.NumpyTransformer(state, n_heads)
their_loss, their_gradients = imported.loss_and_gradients(src, tgt_in, tgt_out)
assert np.allclose(imported.logits(src, tgt_in), model.logits(src, tgt_in), rtol=0, atol=1e-12)
assert abs(their_loss - trained_loss) < 1e-12
assert largest_difference([their_gradients], [gradients]) < 1e-12
assert imported.greedy(src[:2], 30) == written[:2]
print("the same logits, gradients and translations from", imported.__module__)
