# %% [markdown]
# # 5.4 Regularization
#
# Two devices keep the model from memorizing its training set. Dropout silences a part of the network at random; label
# smoothing forbids it to be sure. The paper describes each in a few words, and nearly every choice that makes the
# words computable is left to the reader. This chapter makes the choices, and says what the alternatives are.

# %%
#| default_exp loss

# %%
import json
import math
import statistics
from pathlib import Path

import altair as alt
import torch

import transformer

transformer.check_version("0.1")

# %% [markdown]
# > We employ three types of regularization during training:
# >
# > — Section 5.4
#
# Two headed paragraphs follow, *Residual Dropout* and *Label Smoothing*. The count of three comes out if the two places of
# dropout in the first paragraph are counted apart, which is our reading. The paper's LaTeX source shows another: it holds
# paragraphs on attention dropout and symbol dropout that are commented out.
#
# ## Dropout
#
# > We apply dropout to the output of each sub-layer, before it is added to the sub-layer input and normalized.
# >
# > — Section 5.4
#
# > In addition, we apply dropout to the sums of the embeddings and the positional encodings in both the encoder and
# > decoder stacks. For the base model, we use a rate of $P_{drop}=0.1$.
# >
# > — Section 5.4
#
# In training, dropout sets each number to 0 with probability $p$ and divides the others by $1-p$, so that the mean stays
# what it was. In evaluation it does nothing.

# %%
torch.manual_seed(0)
dropped = torch.nn.functional.dropout(torch.ones(1_000_000), p=0.1)
print("values:", sorted({round(value, 4) for value in dropped.unique().tolist()}))
print(f"share of zeros {(dropped == 0).float().mean().item():.2f}, mean {dropped.mean().item():.2f}")
assert abs(dropped.mean().item() - 1) < 0.002

# %% [markdown]
# ### See it: every place
#
# All dropout of a `Transformer` with one layer in each stack, found by looking for it:

# %%
model = transformer.Transformer(transformer.TransformerConfig.tiny(n_layers=1, dropout=0.1))
for name, module in model.named_modules():
    if isinstance(module, torch.nn.Dropout):
        print(f"rate {module.p}  {name}")

# %% [markdown]
# The first one serves the sums of embeddings and positions, in both stacks. The others with a rate of 0.1 sit in the
# residual blocks: two in an encoder layer, three in a decoder layer. The three named `attention_dropout` are switches
# for something the paper does not have, dropout on the attention weights. They are always at 0 in a `Transformer`. The
# feed-forward network has none inside.


# %%
def active_places(model):
    return {name: m.p for name, m in model.named_modules() if isinstance(m, torch.nn.Dropout) and m.p > 0}


for n_layers in (1, 2, 6):
    model = transformer.Transformer(transformer.TransformerConfig.tiny(n_layers=n_layers, dropout=0.1))
    expected = {"dropout"}
    for i in range(n_layers):
        expected |= {f"encoder.layers.{i}.{block}_block.dropout" for block in ("attention", "feed_forward")}
        blocks = ("self_attention", "memory_attention", "feed_forward")
        expected |= {f"decoder.layers.{i}.{block}_block.dropout" for block in blocks}
    assert set(active_places(model)) == expected
    print(f"{n_layers} + {n_layers} layers: {len(expected)} places")
    assert len(expected) == 1 + n_layers * (2 + 3)

# %% [markdown]
# ### Check it: on the sub-layer's output, and on the sum
#
# A rate of 1 makes the place visible. A residual block with it loses the sub-layer's output entirely, and the input alone
# is normalized: the residual path itself is never dropped. A model with a rate of 1 on the sums no longer knows its
# tokens *or* their positions.

# %%
torch.manual_seed(0)
x = torch.randn(2, 5, 16)
block = transformer.ResidualBlock(d_model=16, dropout=1.0)
assert torch.equal(block(x, sublayer=torch.sin), block.norm(x))

model = transformer.Transformer(transformer.TransformerConfig.tiny(vocab_size=50, dropout=0.0)).train()
src, tgt_in = torch.randint(3, 50, (1, 7)), torch.randint(3, 50, (1, 6))
with torch.no_grad():
    first = model(src, tgt_in)
    model.dropout.p = 1.0
    blind = model(src, tgt_in)
print(f"positions of a target differ by {(first[0, 1:] - first[0, :-1]).abs().max().item():.1f} in their logits;")
print(f"without the sums they differ by {(blind[0, 1:] - blind[0, :-1]).abs().max().item():.1f}")
torch.testing.assert_close(blind, blind[:, :1].expand_as(blind))  # every position says the same

# %% [markdown]
# ### Check it: one rate reaches every place
#
# A rate that stops at some constructor's default leaves a part of the model noisy when dropout is meant to be off. With
# rate 0, two passes in training mode must be equal to the last bit.

# %%
for rate in (0.0, 0.1, 0.3):
    config = transformer.TransformerConfig.tiny(vocab_size=50, dropout=rate)
    torch.manual_seed(0)
    model = transformer.Transformer(config).train()
    rates = set(active_places(model).values())
    with torch.no_grad():
        same_in_training = torch.equal(model(src, tgt_in), model(src, tgt_in))
        model.eval()
        same_in_evaluation = torch.equal(model(src, tgt_in), model(src, tgt_in))
    print(f"rate {rate}: rates found {rates or 'none'}; two training passes bit-equal: {same_in_training}")
    assert rates == ({rate} if rate else set())
    assert same_in_training == (rate == 0.0) and same_in_evaluation

# %% [markdown]
# ## Label smoothing
#
# > During training, we employed label smoothing of value $\epsilon_{ls}=0.1$. This hurts perplexity, as the model learns
# > to be more unsure, but improves accuracy and BLEU score.
# >
# > — Section 5.4
#
# Without smoothing the target at each position is one token with probability 1, and the loss can always be made a little
# smaller by making that token's logit a little larger. Smoothing takes $\epsilon$ of the probability away from the true
# token and spreads it over the others. The paper does not say over which others. There are three answers in use:
#
# | target of the true token | of every other | who |
# |---|---|---|
# | $1-\epsilon$ | $\epsilon/(V-1)$ | the paper's authors in tensor2tensor; this book |
# | $1-\epsilon+\epsilon/V$ | $\epsilon/V$ | Szegedy et al. (2016), whom the paper cites; PyTorch |
# | $1-\epsilon$ | $\epsilon/(V-2)$, but 0 for padding | The Annotated Transformer |
#
# At $V = 37{,}000$ they hardly differ. In the picture $V$ is 5, where they do.

# %% tags=["hide-input"]
epsilon = alt.param(value=0.1, bind=alt.binding_range(min=0, max=0.5, step=0.05, name="ε "))
e = epsilon.name
rules = {
    "ε/(V−1), ours": (f"1 - {e}", f"{e} / 4", f"{e} / 4"),
    "ε/V, PyTorch": (f"1 - {e} + {e} / 5", f"{e} / 5", f"{e} / 5"),
    "ε/(V−2)": (f"1 - {e}", f"{e} / 3", "0"),
}
true, other, padding = (
    " : ".join(f"datum.rule == '{rule}' ? {rules[rule][part]}" for rule in rules) + " : 0" for part in range(3)
)
tokens = ["<pad>", "true", "b", "c", "d"]
places = alt.Chart().encode(
    x=alt.X("token:N", sort=tokens, title=None, axis=alt.Axis(labelAngle=0)),
    y=alt.Y("q:Q", title="target probability", scale=alt.Scale(domain=[0, 1])),
)
colour = alt.Color("rule:N", legend=None, scale=alt.Scale(domain=list(rules), range=["#0072B2", "#E69F00", "#009E73"]))
bars = places.mark_bar().encode(color=colour)
numbers = places.mark_text(baseline="bottom", dy=-3).encode(text=alt.Text("q:Q", format=".3f"))
chart = (
    alt.layer(bars, numbers, data=alt.Data(values=[{"rule": rule, "token": token} for rule in rules for token in tokens]))
    .transform_calculate(q=f"datum.token == 'true' ? ({true}) : datum.token == '<pad>' ? ({padding}) : ({other})")
    .properties(width=150, height=180)
    .facet(column=alt.Column("rule:N", sort=list(rules), title=None), spacing=15)
    .add_params(epsilon)
    .properties(title="Every way of spreading ε leaves the true token ahead")
)
chart

# %% [markdown]
# Move ε. In all three the true token keeps at least half of the probability. PyTorch's way gives it back its share of ε; the third
# gives the padding class nothing. In the first, ours, padding is a class like any other.
#
# The word "padding" means two things here. Padding *positions*, which fill a short sentence up, are no predictions and do
# not count. The padding *class* is a column of the logits, which no real target names. It keeps its $\epsilon/(V-1)$.
#
# ### The loss
#
# With targets $q$ and predictions $p = \mathrm{softmax}(z)$ the loss of a position is the cross-entropy
# $-\sum_k q_k \ln p_k$. PyTorch computes it fast, with its own way of spreading. Ours is its way with another ε: asked for
# $\epsilon' = \epsilon \cdot V/(V-1)$, PyTorch gives every token $\epsilon'/V = \epsilon/(V-1)$, and the true one
# $1-\epsilon'+\epsilon'/V = 1-\epsilon' \cdot (V-1)/V = 1-\epsilon$. That is our rule, so one line suffices.
#
# The sum over real positions is divided by their number. So the loss is a mean per token, whatever the padding.

# %%
#| export
import torch
import torch.nn.functional as F
from torch import Tensor, nn


# %%
#| export
class LabelSmoothingLoss(nn.Module):
    """Cross-entropy against smoothed targets: the true token gets 1−ε, every other class ε/(V−1).

    Padding *positions* do not count. The padding *class* is a class like any other and keeps its ε/(V−1).

    Args:
        label_smoothing: ε_ls, in [0, 1).
        pad_id: Target id of the positions that do not count.
        reduction: "mean" over the real tokens, or "sum" over them.

    Raises:
        ValueError: label_smoothing is outside [0, 1), or reduction is unknown.

    Source: §5.4. The paper gives no formula; ε/(V−1) is its authors' code.
    """

    def __init__(self, label_smoothing: float = 0.1, pad_id: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be in [0, 1).")
        if reduction not in ("mean", "sum"):
            raise ValueError(f'reduction is {reduction!r}; choose "mean" or "sum".')
        self.label_smoothing, self.pad_id, self.reduction = label_smoothing, pad_id, reduction

    def forward(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The smoothed loss, in nats.

        Args:
            logits: Shape (B, m, V), or (tokens, V).
            tgt_out: Target ids, shape (B, m), or (tokens,), int64.

        Returns:
            A scalar; 0 if no position counts.

        Raises:
            TypeError: logits are not floating point, or targets not int64.
            ValueError: The shapes do not fit together, the vocabulary has fewer than two classes or too few for this
                ε, or a target is out of range (checked on the CPU only: on a GPU the check would wait for the device).
        """
        _check_loss_inputs(logits, tgt_out, self.pad_id)
        n_classes = logits.size(-1)
        if self.label_smoothing > (n_classes - 1) / n_classes:
            raise ValueError(
                f"label_smoothing={self.label_smoothing} leaves the true one of {n_classes} classes less than the "
                f"others; it must be at most {(n_classes - 1) / n_classes:.4g}."
            )
        # torch spreads ε over all V classes, the true one included; ε·V/(V−1) of that is our ε over the others.
        smoothing = min(1.0, self.label_smoothing * n_classes / (n_classes - 1))
        return self._cross_entropy(logits, tgt_out, smoothing)

    def nll(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The negative log-likelihood without smoothing, in nats; exp of its mean is the perplexity.

        Args:
            logits: As in `forward`.
            tgt_out: As in `forward`.

        Returns:
            A scalar; 0 if no position counts.

        Raises:
            TypeError: As in `forward`.
            ValueError: As in `forward`.
        """
        _check_loss_inputs(logits, tgt_out, self.pad_id)
        return self._cross_entropy(logits, tgt_out, 0.0)

    def _cross_entropy(self, logits: Tensor, tgt_out: Tensor, smoothing: float) -> Tensor:
        # The sum over a batch overflows float16, and rounds in bfloat16.
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        total = F.cross_entropy(
            logits.flatten(0, -2),  # (tokens, V)
            tgt_out.flatten(),  # (tokens,)
            ignore_index=self.pad_id,
            reduction="sum",
            label_smoothing=smoothing,
        )
        return total if self.reduction == "sum" else total / (tgt_out != self.pad_id).sum().clamp(min=1)


# %% [markdown]
# What cannot be meant is refused before PyTorch sees it, with a sentence.


# %%
#| export
def _check_loss_inputs(logits: Tensor, tgt_out: Tensor, pad_id: int) -> None:
    if not logits.is_floating_point() or tgt_out.dtype != torch.int64:
        raise TypeError(
            f"logits have dtype {logits.dtype} and targets {tgt_out.dtype}; give floating logits and int64 ids."
        )
    if logits.dim() < 2 or logits.shape[:-1] != tgt_out.shape or logits.size(-1) < 2:
        raise ValueError(
            f"logits {tuple(logits.shape)} and targets {tuple(tgt_out.shape)} do not fit together; "
            "expected (B, m, V) with V of at least 2, and (B, m)."
        )
    if tgt_out.device.type != "cpu":
        return
    wrong = tgt_out[((tgt_out < 0) | (tgt_out >= logits.size(-1))) & (tgt_out != pad_id)]
    if wrong.numel():
        raise ValueError(
            f"target id {int(wrong[0])} is not in the vocabulary, which has ids 0 to {logits.size(-1) - 1}; were the "
            "targets made by another tokenizer?"
        )


# %% [markdown]
# ### See it: one row, three answers
#
# Logits $z$ = [2, 1, 0, −1, −2], true class 1, $\epsilon = 0.1$. Each rule is written out as a target distribution, and
# the cross-entropy against it computed as the definition says.

# %%
z = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]], dtype=torch.float64)
y = torch.tensor([1])
log_p = z.log_softmax(dim=-1)
rules = {
    "eps/(V-1), ours": (torch.tensor([0.1 / 4, 0.9, 0.1 / 4, 0.1 / 4, 0.1 / 4]), 1.576914),
    "eps/V, torch's": (torch.tensor([0.1 / 5, 0.9 + 0.1 / 5, 0.1 / 5, 0.1 / 5, 0.1 / 5]), 1.551914),
    "eps/(V-2)": (torch.tensor([0.0, 0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3]), 1.651914),
}
for rule, (q, expected) in rules.items():
    loss = -(q.double() * log_p).sum().item()
    print(f"{rule:16} {loss:.6f}   expected {expected}")
    assert abs(loss - expected) < 1e-6

ours = LabelSmoothingLoss(0.1)(z, y).item()
torchs = F.cross_entropy(z, y, label_smoothing=0.1).item()
stretched = F.cross_entropy(z, y, label_smoothing=0.1 * 5 / 4).item()
print(f"our class {ours:.6f}, torch's function {torchs:.6f}, torch's with eps * V/(V-1) {stretched:.6f}")
assert abs(ours - 1.576914) < 1e-6 and abs(torchs - 1.551914) < 1e-6 and abs(stretched - ours) < 1e-12

# %% [markdown]
# ### Check it: the best a model can do
#
# The smoothed loss is never 0. By Gibbs' inequality a cross-entropy is smallest where the prediction *is* the target, and
# there it equals the target's entropy. What is above it is the Kullback–Leibler divergence of prediction from target. The
# authors' code subtracts the entropy, so that its loss can reach 0; a constant changes no gradient, and we leave it in.


# %%
def smoothed_target(n_classes, true, epsilon):
    q = torch.full((n_classes,), epsilon / (n_classes - 1), dtype=torch.float64)
    q[true] = 1 - epsilon
    return q


q = smoothed_target(5, true=1, epsilon=0.1)
entropy = -(q * q.log()).sum()
at_target = LabelSmoothingLoss(0.1)(q.log()[None], y)
print(f"entropy of the target {entropy.item():.6f}, loss where p = q {at_target.item():.6f}")
torch.testing.assert_close(at_target, entropy, rtol=0, atol=1e-12)

generator = torch.Generator().manual_seed(0)
for _ in range(1000):
    other = torch.randn(1, 5, dtype=torch.float64, generator=generator)
    above = LabelSmoothingLoss(0.1)(other, y) - entropy
    divergence = F.kl_div(other.log_softmax(-1)[0], q, reduction="sum")
    assert above > 0 and abs(above - divergence) < 1e-12
print("1000 other predictions all lose more, by their divergence from the target")

# %% [markdown]
# Gradient descent finds that minimum, and stops there. Without smoothing there is no minimum to find: the true logit grows
# for as long as it is trained. The gradient for a logit is $p_k - q_k$, and only a smoothed $q$ can be met by a softmax.

# %%
for epsilon in (0.1, 0.0):
    logits = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logits], lr=0.05)
    gaps = []
    for update in range(1, 4001):
        adam.zero_grad()
        LabelSmoothingLoss(epsilon)(logits, y).backward()
        adam.step()
        if update % 1000 == 0:
            gaps.append(logits[0, 1].item() - logits[0, 0].item())
    print(f"eps = {epsilon}: p = {logits.softmax(-1)[0, 1].item():.4f}; gap of the logits", *(f"{gap:.2f}" for gap in gaps))
    if epsilon:
        assert abs(gaps[-1] - math.log(0.9 * 4 / 0.1)) < 1e-3  # ln((1−ε)(V−1)/ε)
        assert abs(logits.softmax(-1)[0, 1].item() - 0.9) < 1e-4
    else:
        assert gaps[3] > gaps[2] > gaps[1] > gaps[0] > 5

# %% [markdown]
# The best gap between the true logit and the others is $\ln((1-\epsilon)(V-1)/\epsilon)$. It grows with the vocabulary:

# %%
for n_classes in (5, 1_000, 37_000):
    print(f"V = {n_classes:6}: best gap {math.log(0.9 * (n_classes - 1) / 0.1):.2f}")

# %% [markdown]
# ### What if: the penalty for being sure

# %% tags=["hide-input"]
epsilon = alt.param(value=0.1, bind=alt.binding_range(min=0, max=0.5, step=0.01, name="ε "))
size = alt.param(value=1000, bind=alt.binding_select(options=[5, 1000, 37000], name="V "))
e, v = epsilon.name, size.name
best = f"log((1 - {e}) * ({v} - 1) / {e})"
cross = "log(exp({x}) + {v} - 1) - (1 - {e}) * {x}"
base = alt.Chart(alt.sequence(-2, 25.05, 0.1, as_="x")).transform_calculate(
    smoothed=cross.format(x="datum.x", v=v, e=e),
    unsmoothed=cross.format(x="datum.x", v=v, e=0),
)
curves = (
    base.transform_fold(["smoothed", "unsmoothed"], as_=["target", "loss"])
    .mark_line(strokeWidth=2.5, clip=True)
    .encode(
        x=alt.X("x:Q", title="true logit minus the others", scale=alt.Scale(domain=[-2, 25], nice=False)),
        y=alt.Y("loss:Q", title="loss (nats)", scale=alt.Scale(domain=[0, 13])),
        color=alt.Color(
            "target:N", scale=alt.Scale(range=["#0072B2", "#E69F00"]), legend=alt.Legend(orient="top", title=None)
        ),
        strokeDash=alt.StrokeDash("target:N", scale=alt.Scale(range=[[1, 0], [6, 3]])),
    )
)
lowest = (
    alt.Chart(alt.sequence(0, 1, as_="i"))
    .transform_calculate(x=f"{e} > 0 ? {best} : 99", loss=cross.format(x="datum.x", v=v, e=e))
    .mark_point(size=90, filled=True, color="#D55E00", clip=True)
    .encode(x="x:Q", y="loss:Q", tooltip=[alt.Tooltip("x:Q", format=".2f"), alt.Tooltip("loss:Q", format=".4f")])
)
chart = (curves + lowest).add_params(epsilon, size)
chart = chart.properties(width=430, height=260, title="With smoothing, being too sure costs again")
chart

# %% [markdown]
# All other logits are taken as equal. The dashed curve only falls. The smoothed one turns at the red point, where
# $p = 1-\epsilon$ and the loss is the target's entropy, and then rises, soon with a slope near $\epsilon$: far beyond it,
# every unit of logit costs $\epsilon$. With a larger vocabulary the point moves to the right.
#
# ### Check it: padding changes nothing
#
# The same three sentence pairs, once padded to 20 tokens and once to 40, through a whole model: the loss and all gradients
# are the same.

# %%
torch.manual_seed(0)
config = transformer.TransformerConfig(30, 30, d_model=16, n_layers=2, n_heads=4, d_ff=32, dropout=0.0)
model = transformer.Transformer(config).double()
pairs = [(torch.randint(3, 30, (n,)), torch.randint(3, 30, (m,))) for n, m in ((4, 7), (19, 15), (11, 19))]


def padded(ids, length):
    return F.pad(ids, (0, length - len(ids)))  # pad_id is 0


results = []
for length in (20, 40):
    src = torch.stack([padded(source, length) for source, _ in pairs])  # (3, length)
    tgt_in = torch.stack([padded(F.pad(target, (1, 0), value=1), length) for _, target in pairs])
    tgt_out = torch.stack([padded(F.pad(target, (0, 1), value=2), length) for _, target in pairs])
    model.zero_grad()
    loss = LabelSmoothingLoss(0.1)(model(src, tgt_in), tgt_out)
    loss.backward()
    results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    print(f"padded to {length}: loss {loss.item():.6f}")
torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)

# %% [markdown]
# ### Perplexity
#
# Perplexity is $\exp$ of the mean negative log-likelihood per token, **without** smoothing: a uniform guess over $V$ tokens
# has perplexity $V$. The method `nll` gives it. The smoothed loss is another number, and $\exp$ of it is no perplexity.

# %%
uniform, targets = torch.zeros(1, 3, 1000), torch.tensor([[5, 6, 7]])
print(f"uniform over 1000 tokens: perplexity {LabelSmoothingLoss().nll(uniform, targets).exp().item():.0f}")
row = LabelSmoothingLoss(0.1)
print(f"the row above: perplexity {row.nll(z, y).exp().item():.4f}; exp of the smoothed loss {row(z, y).exp().item():.4f}")
assert abs(row.nll(z, y).item() - F.cross_entropy(z, y).item()) < 1e-12

# %% [markdown]
# ## Smoothing on and off
#
# The paper claims a price, perplexity, and a gain, accuracy and BLEU. Its own evidence is from newstest2013, with one run for
# each row of Table 3 of the paper:
#
# | row | $\epsilon_{ls}$ | perplexity | BLEU |
# |---|---|---|---|
# | (D) | 0.0 | 4.67 | 25.3 |
# | base | 0.1 | 4.92 | 25.8 |
# | (D) | 0.2 | 5.47 | 25.7 |
#
# A single run cannot tell half a point of BLEU from luck, so here is the claim again at our size, with several seeds. The
# tiny model was trained with and without smoothing on 4,000 short sentences of the
# [embedded corpus](A1_the_embedded_corpus.py), read many times over. Each of five seeds has its own sentences, starting
# weights, order and dropout; both runs of a seed share them, so their difference is due to ε alone. Everything is measured
# on 500 sentences that no run has seen.

# %%
places = [*(Path.cwd() / "x").parents, *Path(transformer.__file__).resolve().parents]
file = next((path for place in places if (path := place / "book/results/label_smoothing.json").is_file()), None)
METRICS = {
    "perplexity": "perplexity",
    "token_accuracy": "right next tokens (%)",
    "exact_match": "exact sentences (%)",
    "bleu": "BLEU",
    "confidence": "mean top probability (%)",
}
runs, interval = [], {}
if file is None:
    print("The record is book/results/label_smoothing.json in the book's repository. Without it there is nothing to show.")
else:
    record = json.loads(file.read_text(encoding="utf-8"))
    print(f"recorded {record['date']} with `{record['command']}`, torch {record['machine']['torch']}\n")
    runs = [{**run["arguments"], **run["result"]} for run in record["runs"].values()]
    by_epsilon = {epsilon: [run for run in runs if run["label_smoothing"] == epsilon] for epsilon in (0.0, 0.1)}
    print(f"{'mean of five seeds':26} ε = 0   ε = 0.1   difference, 95 % interval")
    for metric, name in METRICS.items():
        off, on = ([run[metric] for run in by_epsilon[epsilon]] for epsilon in (0.0, 0.1))
        differences = [b - a for a, b in zip(off, on, strict=True)]
        half = 2.776 * statistics.stdev(differences) / len(differences) ** 0.5  # Student's t, 4 degrees of freedom
        middle = statistics.mean(differences)
        interval[metric] = (middle - half, middle + half)
        print(
            f"{name:26} {statistics.mean(off):6.3f}  {statistics.mean(on):6.3f}   {middle:+7.3f}"
            f"     {middle - half:+.3f} to {middle + half:+.3f}"
        )
    assert len(differences) == 5
    for gained in ("token_accuracy", "exact_match", "bleu"):
        assert interval[gained][0] > 0
    assert interval["perplexity"][0] < 0 < interval["perplexity"][1]
    assert interval["confidence"][1] < 0

# %% tags=["hide-input"]
chart = None
if runs:
    values = [
        {"ε": f"{run['label_smoothing']:g}", "seed": run["seed"], "metric": METRICS[metric], "value": run[metric]}
        for run in runs
        for metric in ("perplexity", "token_accuracy", "exact_match", "bleu")
    ]
    order = [METRICS[metric] for metric in ("perplexity", "token_accuracy", "exact_match", "bleu")]
    base = alt.Chart().encode(
        x=alt.X("ε:N", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False, padding=10)),
        detail="seed:N",
        tooltip=["seed:N", "ε:N", "value:Q"],
    )
    chart = (
        alt.layer(
            base.mark_line(color="#0072B2", opacity=0.6),
            base.mark_point(color="#0072B2", filled=True, size=50, opacity=1),
            data=alt.Data(values=values),
        )
        .properties(width=95, height=200)
        .facet(column=alt.Column("metric:N", sort=order, title=None), spacing=12)
        .resolve_scale(y="independent")
        .properties(title="The gain in accuracy is there with every seed; the price in perplexity is not")
    )
chart

# %% [markdown]
# Each line is one seed, from no smoothing to $\epsilon = 0.1$. The **gain** is seen: with every seed more next tokens are
# right, more whole sentences are exact, and BLEU is higher, and no interval reaches 0. The **price** is not seen here:
# perplexity rises with three seeds and falls with two, and its interval lies on both sides of 0. With 4,000 sentences the
# unsmoothed model is confidently wrong often enough to pay as much as the smoothed one pays for being unsure. The claim
# about perplexity is the paper's, for its data and size; these runs neither confirm nor refute it.
#
# The unsureness itself is plain. The smoothed model gives its first choice less probability than it deserves, the
# unsmoothed one about as much or more.

# %% [markdown]
# ## Unsaid by the paper
#
# - **The loss.** The paper never names it; the word "cross-entropy" does not occur. It is cross-entropy in its authors'
#   code and everywhere since.
# - **The formula of the smoothing**, as above. fairseq changed from $\epsilon/V$ to $\epsilon/(V-1)$ in February 2021.
# - **The perplexity of Table 3.** tensor2tensor computes it without smoothing, per subword. That agrees with the rows: the
#   model trained without smoothing has the lowest.
# - **Dropout elsewhere.** The first revision of tensor2tensor drops where the paper says and nowhere else. From its second
#   set of defaults on, a rate of 0.1 holds for attention weights and after the ReLU as well, and many later codes do the
#   same. Our `scaled_dot_product_attention` takes such a dropout as an argument.
# - **Other rates.** The big model uses 0.3, and for English–French 0.1 (Section 6.1). Without dropout base loses 1.2 BLEU,
#   by rows (D) of Table 3: 24.6 for 25.8.
# - **Weight decay and gradient clipping** are not mentioned, and off in the authors' settings.
#
# ## The notebook and the module agree

# %%
generator = torch.Generator().manual_seed(1)
logits = torch.randn(3, 7, 11, generator=generator)
targets = torch.randint(0, 11, (3, 7), generator=generator)
ours, theirs = LabelSmoothingLoss(0.2), transformer.LabelSmoothingLoss(0.2)
assert type(ours) is not type(theirs)
assert torch.equal(ours(logits, targets), theirs(logits, targets))
assert torch.equal(ours.nll(logits, targets), theirs.nll(logits, targets))
print("equal losses from", type(ours).__module__, "and", type(theirs).__module__)

# %% [markdown]
# ## What we now know
#
# - Dropout stands in one place for the sums and in one for each sub-layer, nowhere else. One rate reaches them all; at
#   rate 0 two training passes are bit-equal.
# - The reference row gives 1.576914 with our rule, 1.551914 with $\epsilon/V$ and 1.651914 with $\epsilon/(V-2)$. Ours is
#   PyTorch's with $\epsilon \cdot V/(V-1)$.
# - The smoothed loss is smallest where the prediction equals the target, and there it is the target's entropy. Without
#   smoothing the logits grow without end.
# - Padding changes neither loss nor gradients.
# - Recorded: at our size smoothing made the model less sure and more often right, with five seeds of five. A price in
#   perplexity was not seen.
#
# ## Exercises
#
# 1. **Predict, then run.** A model assigns the true token probability 0.9 at every position, with $V = 37{,}000$ and the rest
#    spread evenly. Is its perplexity better or worse than that of a model which assigns 0.99? And its smoothed loss?
# 2. **Minutes.** Compute by hand, with our rule, the smoothed loss of the logits 2, 1, 0, −1, −2, if the second token is the true one and
#    $\epsilon = 0.1$. Check: `check("5.4-row", answer)`.
# 3. **Minutes.** For which ε does our rule make the target uniform? What does `LabelSmoothingLoss` say to a larger one?
# 4. **Minutes.** Show that the smoothed loss is $(1-\epsilon')$ times the plain one plus $\epsilon'$ times the mean of $-\ln p_k$ over
#    all classes, with $\epsilon' = \epsilon V/(V-1)$. Check it on the reference row.
# 5. **An hour.** Replace `reduction="mean"` by a mean over *all* positions, padding included. By how much does the loss of the
#    padded batches above differ, and what would that do to the learning rate?
# 6. **An hour.** With $\epsilon/(V-2)$ the padding class has target 0. What happens to its logit in a long training, and does it
#    matter?

# %% [markdown]
# Solution to exercise 2: 0.9 of the true token's $-\ln p$, and 0.025 of each other one's.

# %% tags=["hide-cell"]
from transformer.exercises import check

logits = [2, 1, 0, -1, -2]
nll = [math.log(sum(math.exp(other) for other in logits)) - logit for logit in logits]
answer = 0.9 * nll[1] + 0.1 / 4 * (sum(nll) - nll[1])
print(f"{answer:.6f}")
verdict = check("5.4-row", answer)
print(verdict)
assert verdict

# %% [markdown]
# Solution to exercise 3: at $\epsilon = (V-1)/V$ every class gets $1/V$. Beyond it the true token would get less than the others.

# %% tags=["hide-cell"]
uniform = smoothed_target(5, true=1, epsilon=4 / 5)  # (V−1)/V: everyone gets 1/V
assert torch.allclose(uniform, torch.full((5,), 0.2, dtype=torch.float64))
LabelSmoothingLoss(4 / 5)(z, y)
try:
    LabelSmoothingLoss(0.9)(z, y)
    raise AssertionError("accepted")
except ValueError as error:
    print(error)
