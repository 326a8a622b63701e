# %% [markdown]
# # 5.3 Optimizer
#
# The paper trains with Adam and a learning rate that changes at every update: it rises in a straight line for 4,000
# updates, then falls with the inverse square root of their number. The rise is no ornament. At the same peak rate the
# model of this book learns with it, and without it gets stuck.

# %%
#| default_exp schedule

# %%
import copy
import json
from pathlib import Path

import altair as alt

import transformer

transformer.check_version("0.1")

# %%
#| export
import torch
from torch.optim.lr_scheduler import LRScheduler

# %% [markdown]
# ## Adam
#
# > We used the Adam optimizer with $\beta_1=0.9$, $\beta_2=0.98$ and $\epsilon=10^{-9}$.
# >
# > — Section 5.3
#
# PyTorch has Adam; only three constants differ from its defaults or have to be said. The optimizer gets no learning
# rate here. That is the scheduler's business, below.


# %%
#| export
def make_adam(model: torch.nn.Module) -> torch.optim.Adam:
    """Adam with β₁ = 0.9, β₂ = 0.98 and ε = 10⁻⁹. The learning rate is the scheduler's business.

    Args:
        model: The module whose parameters are trained, on its device.

    Returns:
        The optimizer.

    Source: §5.3.
    """
    on_gpu = next(model.parameters()).is_cuda  # where one fused kernel updates all weights
    return torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=on_gpu or None)


# %% [markdown]
# ### Check it: Adam by hand
#
# Adam keeps two running means for every parameter: $m$ of its gradient $g$ and $v$ of its gradient's square. Both start
# at 0, so both are too small at first; dividing by $1-\beta^s$ at update $s$ repairs that exactly. The parameter then
# moves by $lrate \cdot \hat m / (\sqrt{\hat v} + \epsilon)$.


# %%
def adam_by_hand(parameter, gradient_of, rate_of, updates, beta_1=0.9, beta_2=0.98, eps=1e-9):
    path, m, v = [parameter], 0.0, 0.0
    for s in range(1, updates + 1):
        g = gradient_of(parameter)
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        m_hat, v_hat = m / (1 - beta_1**s), v / (1 - beta_2**s)
        parameter -= rate_of(s) * m_hat / (v_hat**0.5 + eps)
        path.append(parameter)
    return path


class OneNumber(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))


model = OneNumber(1.0)
adam = make_adam(model)
path = [model.x.item()]
for s in range(1, 201):
    adam.param_groups[0]["lr"] = 0.05 / s**0.5  # any changing rate will do
    adam.zero_grad()
    ((model.x - 3) ** 4).backward()
    adam.step()
    path.append(model.x.item())

by_hand = adam_by_hand(1.0, lambda x: 4 * (x - 3) ** 3, lambda s: 0.05 / s**0.5, updates=200)
largest = max(abs(a - b) for a, b in zip(path, by_hand, strict=True))
print("update   by hand      torch")
for s in (0, 1, 2, 10, 200):
    print(f"{s:6}   {by_hand[s]:.8f}   {path[s]:.8f}")
assert largest < 1e-12

# %% [markdown]
# ### See it: the first updates are all of one size
#
# In the first update $\hat m = g$ and $\hat v = g^2$, so the parameter moves by $lrate \cdot g / (|g| + \epsilon)$: by
# the full rate, however small its gradient. Every weight of the model moves by the same amount, on the word of a single
# batch. This is the plainest reason to begin with a tiny rate.

# %%
for gradient in (1e-9, 1e-6, 1.0, 1e3):
    model = OneNumber(0.0)
    adam = make_adam(model)
    adam.param_groups[0]["lr"] = 0.01
    model.x.grad = torch.tensor(gradient, dtype=torch.float64)
    adam.step()
    moved = -model.x.item() / 0.01
    print(f"gradient {gradient:7.0e}: moves by {moved:.3f} of the rate")
    assert abs(moved - gradient / (gradient + 1e-9)) < 1e-12

# %% [markdown]
# Only where the gradient is as small as $\epsilon$ does the size matter. And $\beta_2=0.98$ makes $v$ a mean over about
# $1/(1-\beta_2)$ updates, far fewer than with the usual 0.999: the step size follows a change of the gradients sooner.

# %%
for beta_2 in (0.98, 0.999):
    print(f"beta_2 = {beta_2}: a mean over about {1 / (1 - beta_2):.0f} updates")

# %% [markdown]
# ## The learning rate
#
# > $$lrate = d_{\text{model}}^{-0.5} \cdot \min({step\_num}^{-0.5}, {step\_num} \cdot {warmup\_steps}^{-1.5})$$
# >
# > — Section 5.3
#
# > This corresponds to increasing the learning rate linearly for the first $warmup\_steps$ training steps, and decreasing
# > it thereafter proportionally to the inverse square root of the step number. We used $warmup\_steps=4000$.
# >
# > — Section 5.3
#
# The first step has the number 1: at 0 the power $-0.5$ does not exist.


# %%
#| export
def noam_rate(step: int, d_model: int, warmup_steps: int = 4000) -> float:
    """Give the learning rate of one update: d_model^−0.5 · min(step^−0.5, step · warmup_steps^−1.5).

    Args:
        step: Number of the update, from 1.
        d_model: Width of the model.
        warmup_steps: Updates over which the rate rises.

    Returns:
        The learning rate of this update.

    Raises:
        ValueError: An argument is less than 1.

    Source: §5.3, Eq. 3.
    """
    if min(step, d_model, warmup_steps) < 1:
        raise ValueError(f"step={step}, d_model={d_model} and warmup_steps={warmup_steps} must all be at least 1.")
    return float(d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


# %% [markdown]
# ### See it
#
# The base model's rates, with the expected value beside the computed one:

# %%
EXPECTED = {
    1: "1.747e-07",
    100: "1.747e-05",
    1000: "1.747e-04",
    4000: "6.988e-04",
    10000: "4.419e-04",
    50000: "1.976e-04",
    100000: "1.398e-04",
}
for step, expected in EXPECTED.items():
    rate = noam_rate(step, d_model=512)
    print(f"update {step:6}: {rate:.3e}   expected {expected}")
    assert f"{rate:.3e}" == expected

# %% [markdown]
# At the end of the warm-up the two arguments of the minimum are equal, and the rate is at its highest:
# $(d_{\text{model}} \cdot warmup\_steps)^{-0.5}$. The big model is twice as wide, so its peak is lower by $\sqrt 2$.

# %%
for name in ("base", "big"):
    d_model = transformer.TransformerConfig.preset(name).d_model
    rates = [noam_rate(step, d_model) for step in range(1, 20_001)]
    peak = max(rates)
    print(f"{name:4} d_model={d_model:<4}  highest rate {peak:.3e} at update {rates.index(peak) + 1}")
    assert rates.index(peak) + 1 == 4000
    assert abs(peak - (d_model * 4000) ** -0.5) < 1e-15
    assert all(abs(rates[s - 1] - s * rates[0]) < 1e-15 for s in range(1, 4001))  # a straight line from 0
    assert abs(rates[15_999] - peak / 2) < 1e-15  # four times as many updates: half the rate

# %% [markdown]
# ### What if: other widths, other warm-ups

# %% tags=["hide-input"]
step = "(datum.i * 250 + 1)"
formula = "pow({d}, -0.5) * min(pow(datum.step, -0.5), datum.step * pow({w}, -1.5))"
width = alt.param(value=512, bind=alt.binding_select(options=[128, 256, 512, 1024, 2048], name="your d_model "))
warmup = alt.param(value=8000, bind=alt.binding_range(min=500, max=20000, step=500, name="your warmup_steps "))
lines = ["base", "big", "yours"]
chart = (
    alt.Chart(alt.sequence(0, 161, as_="i"))
    .transform_calculate(
        step=step,
        base=formula.format(d=512, w=4000),
        big=formula.format(d=1024, w=4000),
        yours=formula.format(d=width.name, w=warmup.name),
    )
    .transform_fold(lines, as_=["model", "rate"])
    .mark_line(strokeWidth=2.5)
    .encode(
        x=alt.X("step:Q", title="update", scale=alt.Scale(domain=[0, 40000])),
        y=alt.Y("rate:Q", title="learning rate", axis=alt.Axis(format=".0e"), scale=alt.Scale(domainMin=0)),
        color=alt.Color(
            "model:N",
            scale=alt.Scale(domain=lines, range=["#0072B2", "#E69F00", "#009E73"]),
            legend=alt.Legend(orient="top", title=None),
        ),
        strokeDash=alt.StrokeDash("model:N", scale=alt.Scale(domain=lines, range=[[1, 0], [6, 3], [2, 2]])),
        tooltip=["model:N", "step:Q", alt.Tooltip("rate:Q", format=".3e")],
    )
    .add_params(width, warmup)
    .properties(width=430, height=260, title="A longer warm-up lowers the peak; the tail does not change")
)
chart

# %% [markdown]
# Move the warm-up of *your* line. Its peak slides along one falling curve, which depends on $d_{\text{model}}$ alone: the
# warm-up decides only where the line leaves that curve. A wider model has a lower curve, by the square root of its width.
# The rate counts updates, not tokens or passes over the data. Who computes with smaller batches than the paper's runs
# through the same schedule with fewer tokens; [Training on WMT 2014](13_training_on_wmt14.py) comes back to that.

# %% [markdown]
# ## The scheduler
#
# PyTorch's schedulers set the rate of the *coming* update: once when they are made, then at each `step()` after an
# update. With `last_epoch` counting finished updates, the coming one has the number `last_epoch + 1`. The +1 is easily
# forgotten, and then every rate is that of the update before, with a division by zero at the start.


# %%
#| export
class NoamScheduler(LRScheduler):
    """Give update s the rate `noam_rate(s)`, s from 1. Call `step()` after each `optimizer.step()`.

    Args:
        optimizer: Its own learning rates are replaced.
        d_model: Width of the model.
        warmup_steps: Updates over which the rate rises.

    Raises:
        ValueError: d_model or warmup_steps is less than 1.

    Source: §5.3, Eq. 3.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, d_model: int, warmup_steps: int = 4000) -> None:
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate of the coming update, for each parameter group."""
        rate = noam_rate(self.last_epoch + 1, self.d_model, self.warmup_steps)
        return [rate] * len(self.optimizer.param_groups)


# %% [markdown]
# ### Check it: update s uses lrate(s)
#
# A rate that the optimizer reports is not yet a rate that it uses. So we look at what moves. With plain gradient descent
# and a gradient of 1, update $s$ moves the parameter by exactly its rate.

# %%
model = OneNumber(0.0)
descent = torch.optim.SGD(model.parameters(), lr=123.0)  # this rate must never be used
scheduler = NoamScheduler(descent, d_model=512, warmup_steps=5)
for s in range(1, 11):
    before = model.x.item()
    model.x.grad = torch.tensor(1.0, dtype=torch.float64)
    descent.step()
    scheduler.step()
    moved = before - model.x.item()
    if s in (1, 4, 5, 6, 10):
        print(f"update {s:2} moved by {moved:.6f}; lrate({s}) = {noam_rate(s, 512, 5):.6f}")
    assert abs(moved - noam_rate(s, 512, 5)) < 1e-15

# %% [markdown]
# ### Check it: an interrupted run goes on as if nothing had happened
#
# Optimizer and scheduler save their state; new objects that load it continue bit for bit. The scheduler's state holds
# its width and warm-up too, so what it was made with the second time does not matter.


# %%
def some_updates(layer, optimizer, scheduler, first, last):
    for s in range(first, last + 1):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(s))
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
        scheduler.step()


torch.manual_seed(0)
whole = torch.nn.Linear(4, 4)
halves = copy.deepcopy(whole)

adam = make_adam(whole)
some_updates(whole, adam, NoamScheduler(adam, d_model=4, warmup_steps=10), 1, 20)

adam = make_adam(halves)
scheduler = NoamScheduler(adam, d_model=4, warmup_steps=10)
some_updates(halves, adam, scheduler, 1, 7)
saved = copy.deepcopy((halves.state_dict(), adam.state_dict(), scheduler.state_dict()))

resumed = torch.nn.Linear(4, 4)
adam = make_adam(resumed)
scheduler = NoamScheduler(adam, d_model=1, warmup_steps=1)
for part, state in zip((resumed, adam, scheduler), saved):
    part.load_state_dict(state)
some_updates(resumed, adam, scheduler, 8, 20)

print("bit-equal after 20 updates:", torch.equal(whole.weight, resumed.weight))
assert torch.equal(whole.weight, resumed.weight) and torch.equal(whole.bias, resumed.bias)
assert (scheduler.d_model, scheduler.warmup_steps, scheduler.last_epoch) == (4, 10, 20)

# %% [markdown]
# ## Without warm-up, recorded
#
# The paper gives no reason for the warm-up. What happens without it? We trained the tiny model of this book, post-norm, on
# short sentences of the [embedded corpus](A1_the_embedded_corpus.py), with Adam and the loss of the paper, for 360 updates.
# Four schedules, each with three seeds:
#
# - *warm-up*: the formula, with 200 warm-up steps;
# - *warmup_steps = 1*: the formula with nothing to warm up. Its first rate is $d_{\text{model}}^{-0.5}$;
# - *same peak*: the highest rate of the first schedule from the first update on, then the same rates as there;
# - *a tenth of it*: one tenth of *same peak*.

# %%
places = [*(Path.cwd() / "x").parents, *Path(transformer.__file__).resolve().parents]
file = next((path for place in places if (path := place / "book/results/warmup.json").is_file()), None)
if file is None:
    print("The record is book/results/warmup.json in the book's repository. Without it there is nothing to show here.")
    runs = []
else:
    record = json.loads(file.read_text(encoding="utf-8"))
    print(f"recorded {record['date']} with `{record['command']}`, torch {record['machine']['torch']}\n")
    runs = [{**run["arguments"], **run["result"]} for run in record["runs"].values()]
    held_out = {schedule: [] for schedule in ("warm-up", "a tenth of it", "same peak", "warmup_steps = 1")}
    for run in runs:
        held_out[run["schedule"]].append(run["held_out"])
    print("loss on unseen sentences, in nats per token, without smoothing")
    for schedule, losses in held_out.items():
        print(f"{schedule:17}", "  ".join(f"{loss:.3f}" for loss in losses))
    guess = runs[0]["without_looking"]
    print(f"guessing by the frequency of the tokens: {guess:.3f}")
    print(f"\nhighest rate {noam_rate(200, 128, 200):.2e}, {noam_rate(200, 128, 200) / noam_rate(4000, 512):.1f} times base's")
    assert max(held_out["warm-up"] + held_out["a tenth of it"]) < 0.5 * guess
    assert min(held_out["same peak"] + held_out["warmup_steps = 1"]) > guess

# %% tags=["hide-input"]
chart = None
if runs:
    values = [
        {"schedule": run["schedule"], "seed": run["seed"], "update": (i + 1) * run["window"], "loss": loss}
        for run in runs
        for i, loss in enumerate(run["losses"])
    ]
    order = list(held_out)
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line()
        .encode(
            x=alt.X("update:Q", title="update"),
            y=alt.Y("loss:Q", title="training loss (nats per token)", scale=alt.Scale(domain=[0, 9], clamp=True)),
            color=alt.Color(
                "schedule:N",
                scale=alt.Scale(domain=order, range=["#0072B2", "#E69F00", "#009E73", "#D55E00"]),
                legend=alt.Legend(orient="top", title=None),
            ),
            strokeDash=alt.StrokeDash(
                "schedule:N", scale=alt.Scale(domain=order, range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]])
            ),
            detail="seed:N",
            tooltip=["schedule:N", "seed:N", "update:Q", alt.Tooltip("loss:Q", format=".3f")],
        )
        .properties(width=430, height=280, title="At the same peak rate, the tiny model learns only with a warm-up")
    )
chart

# %% [markdown]
# Each line is one run. With the warm-up the loss goes on falling. At the same rates without it, the loss drops for a few
# updates and then stays: the model has learned how frequent the tokens are and learns nothing more. On unseen sentences it is
# no better than a guess by frequency. Nothing overflows and no NaN appears; a curve that has gone flat is all there is to
# see.
#
# The warm-up is not the only way out. A tenth of the rate, without any warm-up, learns too: ahead at first, while the
# warm-up's rate is still small, and behind from then on. So what a warm-up buys is a higher rate later. And this is one small model, at a peak rate far above that of base. How much of a
# warm-up the paper's own sizes need, these runs do not say.

# %% [markdown]
# ## Unsaid by the paper
#
# - **Why.** The paper explains neither the warm-up nor the factor $d_{\text{model}}^{-0.5}$. Xiong et al. (2020) trace the
#   need for warm-up to post-norm: at initialisation the gradients of the layers next to the output are large. With
#   [pre-norm](03_1_encoder_and_decoder_stacks.py) they train without it.
# - **The authors' code.** The first revision of tensor2tensor has the paper's constants, and counts steps from 1 as we do.
#   Its Adam is TensorFlow's `LazyAdamOptimizer`. It clips no gradients and uses no weight decay.
# - **Their later settings** differ, and are often taken for the paper's. From October 2017 (`transformer_base_v2`) the
#   warm-up is 8,000 updates and the rate is doubled; `v3`, which `transformer_base` came to mean, also sets $\beta_2$ to
#   0.997. The peak rate grows:

# %%
paper_peak = noam_rate(4000, 512)
later_peak = 2.0 * noam_rate(8000, 512, warmup_steps=8000)
print(f"highest rate of base: {paper_peak:.2e} in the paper, {later_peak:.2e} in v2 and v3")
assert f"{later_peak:.2e}" == "9.88e-04"
assert abs(later_peak / paper_peak - 2**0.5) < 1e-12

# %% [markdown]
# - **The name.** "Noam" is the name of this schedule in tensor2tensor, after Noam Shazeer, the second of the authors.
# - **Since then** most models keep the linear warm-up and let the rate fall along a cosine or a line to nearly zero at a
#   planned end. The inverse square root needs no planned end.
#
# ## The notebook and the module agree

# %%
for step in (1, 3999, 4000, 4001, 100_000):
    assert noam_rate(step, 512) == transformer.noam_rate(step, 512)
ours, theirs = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2))
ours, theirs = NoamScheduler(ours, 512), transformer.NoamScheduler(theirs, 512)
assert type(ours) is not type(theirs)
assert ours.get_last_lr() == theirs.get_last_lr() == [noam_rate(1, 512)]
layer = torch.nn.Linear(1, 1)
assert make_adam(layer).defaults == transformer.make_adam(layer).defaults
print("equal rates and constants from", type(ours).__module__, "and", type(theirs).__module__)

# %% [markdown]
# ## What we now know
#
# - Our seven reference rates for base are met to four digits, and the highest rate is $(d_{\text{model}} \cdot
#   warmup\_steps)^{-0.5}$, at update 4,000.
# - The scheduler gives update $s$ the rate of $s$, seen in what the parameter moved by, and resumes bit for bit.
# - Adam, written out by hand for one parameter, follows PyTorch's for 200 updates.
# - Adam's first update moves every parameter by the full rate, whatever its gradient, if that is well above ε.
# - Recorded, three runs each: at equal peak rate, the tiny post-norm model learned with warm-up in all three, and without
#   it in none. With a tenth of the rate it learned without any warm-up.
#
# ## Exercises
#
# 1. **Predict, then run.** Which learning rate has base's update 100,000? Check: `check("5.3-rate", answer)`.
# 2. **Predict, then run.** Replace Adam by plain gradient descent in `adam_by_hand`'s example. Which first step does it take from
#    $x = 1$, and from $x = 100$?
# 3. **Minutes.** At which update does base's rate fall back to that of update 1,000? Derive it. Check:
#    `check("5.3-crossing", answer)`.
# 4. **Minutes.** What share of the sum of all rates over 100,000 updates falls into the warm-up?
# 5. **An hour.** Double the batch and halve the number of updates. What must change in the formula for the rate to be the same
#    function of the tokens seen?
# 6. **An hour.** Copy `book/experiments/warmup.py` to `warmup_pre.py` beside it, set `norm_order` to `"pre"` there and run it; its
#    record is a file of its own. Does the difference remain?

# %% [markdown]
# Solution to exercises 1 and 3: after the warm-up the rate is $(512\,s)^{-0.5}$. The second is an equation in $s$.

# %% tags=["hide-cell"]
from transformer.exercises import check

# The rate rises as 1000 · w^-1.5 at update 1000 and falls as s^-0.5: equal at s = (w^1.5 / 1000)² = w³ / 10⁶.
crossing = 4000**3 // 10**6
print(f"back at the rate of update 1,000: update {crossing:,}")
for name, answer in (("5.3-rate", (512 * 100_000) ** -0.5), ("5.3-crossing", crossing)):
    print(check(name, answer))
    assert check(name, answer)
assert abs(noam_rate(crossing, 512) - noam_rate(1000, 512)) < 1e-15
assert noam_rate(crossing + 1, 512) < noam_rate(1000, 512)
