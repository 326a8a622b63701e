# %% [markdown]
# # 5.2 The Cost of Training
#
# The paper claims better translations "at a fraction of the training cost" and prints a cost beside every model. This
# chapter finds out what was counted, counts again from the matrix products of the model itself, and writes a ledger for
# one's own trainings: operations, time, and the fraction of what the device can do.

# %%
#| default_exp ledger

# %%
import itertools

import altair as alt
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import transformer
from transformer.data import TokenBatches, copy_task
from transformer.model import Transformer
from transformer.training import TrainingConfig, train

transformer.check_version("0.1")

# %% [markdown]
# ## How the paper counts
#
# > We estimate the number of floating point operations used to train a model by multiplying the training time, the number
# > of GPUs used, and an estimate of the sustained single-precision floating-point capacity of each GPU.
# >
# > — Section 6.1
#
# > We used values of 2.8, 3.7, 6.0 and 9.5 TFLOPS for K80, K40, M40 and P100, respectively.
# >
# > — Section 6.1, footnote 5
#
# So nobody counted an operation. The figure is time, converted into operations at a fixed rate.

# %%
#| export
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from transformer.model import TransformerConfig, choose_device


# %%
#| export
PAPER_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


# %%
#| export
def paper_cost(hours: float, n_gpus: int = 8, tflops: float = PAPER_TFLOPS["P100"]) -> float:
    """The cost of a training as Table 2 estimates it: time × GPUs × what one GPU is taken to sustain.

    Args:
        hours: Time of the training.
        n_gpus: Number of GPUs.
        tflops: 10¹² floating point operations a second of one of them; footnote 5 has those of its day.

    Returns:
        Floating point operations.

    Source: §6.1, footnote 5.
    """
    return hours * 3600 * n_gpus * tflops * 1e12


# %% [markdown]
# ### Check it: the costs of Table 2
#
# [Section 5.2](05_2_hardware_and_schedule.py) has the hours twice: as hours, and as steps times seconds. Only one of the
# two gives the printed cost of the base model.

# %%
printed = {"base": 3.3e18, "big": 2.3e19}
by_hours = {"base": paper_cost(12), "big": paper_cost(3.5 * 24)}
by_steps = {"base": paper_cost(100_000 * 0.4 / 3600), "big": paper_cost(300_000 * 1.0 / 3600)}
for name, cost in printed.items():
    print(f"{name:4}: printed {cost:.1e}, from the hours {by_hours[name]:.2e}, from the steps {by_steps[name]:.2e}")
assert all(f"{by_hours[name]:.1e}" == f"{cost:.1e}" for name, cost in printed.items())
assert f"{by_steps['big']:.1e}" == "2.3e+19" and f"{by_steps['base']:.1e}" == "3.0e+18"

# %% [markdown]
# The base model's cost comes from its 12 hours. A hundred thousand steps of 0.4 seconds would make 3.0, not 3.3, times
# $10^{18}$: "about 0.4 seconds" hides the difference.
#
# Divided by the rate of one GPU, the costs of the other systems turn back into what was measured: days. The footnote does
# not say which system ran on which GPU. Papers of the time do: K80 for GNMT, K40 for MoE, M40 for ConvS2S.

# %%
en_de = [("GNMT + RL", 2.3e19, "K80"), ("MoE", 2.0e19, "K40"), ("ConvS2S", 9.6e18, "M40")]
en_de += [("Transformer (base)", 3.3e18, "P100"), ("Transformer (big)", 2.3e19, "P100")]
gpu_days = {}
for name, cost, gpu in en_de:
    gpu_days[name] = cost / paper_cost(24, n_gpus=1, tflops=PAPER_TFLOPS[gpu])
    print(f"{name:18} {cost:.1e} FLOPs = {gpu_days[name]:5.1f} days of one {gpu}")
assert round(gpu_days["Transformer (base)"]) == 4 and round(gpu_days["Transformer (big)"]) == 28

# %% [markdown]
# GNMT's is about 96 GPUs for a day, MoE's about 64 for a day, ConvS2S's one GPU for two and a half weeks. In days of a
# GPU, the base Transformer beats ConvS2S almost five to one. In Table 2 the distance is less than three to one, since a day
# of a P100 counts more than one of an M40. And big, which set the record, costs as much as GNMT did, by this count.

# %%
times = gpu_days["ConvS2S"] / gpu_days["Transformer (base)"], 9.6e18 / 3.3e18
print(f"ConvS2S against base: {times[0]:.1f} times the days, {times[1]:.1f} times the operations")
assert 4.5 < times[0] < 5 and times[1] < 3

# %% [markdown]
# ## Counting what the model computes
#
# A product of an $a \times b$ matrix with a $b \times c$ matrix takes $abc$ multiplications and as many additions:
# $2abc$ operations. All else in a Transformer (softmax, normalization, ReLU, dropout, biases, residual sums) touches each
# number a few times, where a product touches it hundreds of times; it is left out, as everybody does. An embedding is
# looked up, not multiplied.
#
# Let $n$ be the source length, $m$ the target length, $d = d_{\text{model}}$ and $k = h d_k$, $v = h d_v$. Then one
# sentence pair takes, in multiply–adds:
#
# | part | encoder layer | decoder layer, own | decoder layer, over the encoder |
# |---|---|---|---|
# | queries | $n d k$ | $m d k$ | $m d k$ |
# | keys | $n d k$ | $m d k$ | $n d k$ |
# | values | $n d v$ | $m d v$ | $n d v$ |
# | scores $QK^T$ | $n^2 k$ | $m^2 k$ | $m n k$ |
# | weighted sums | $n^2 v$ | $m^2 v$ | $m n v$ |
# | output $W^O$ | $n d v$ | $m d v$ | $m d v$ |
# | feed-forward | $2 n d d_{\textit{ff}}$ | $2 m d d_{\textit{ff}}$ | |
#
# and once, at the end, $m d V$ for the logits. Causal attention needs only half of its $m^2$ scores. We count all of them:
# the plain kernel computes them and masks half; a fused kernel may skip blocks, and then does slightly less than we say.


# %%
#| export
def flops_by_part(config: TransformerConfig, n: int, m: int, batch: int = 1) -> dict[str, int]:
    """Floating point operations of one forward pass, by the part of the model that needs them.

    A multiplication and the addition that follows count as two. Matrix products alone count: softmax, normalization,
    ReLU, dropout, residual sums and biases are left out, and looking an embedding up multiplies nothing. Masked and
    padded positions count like all others, since the device computes them.

    Args:
        config: The model's sizes.
        n: Source positions of a sentence, padding included.
        m: Target positions of a sentence, padding included.
        batch: Number of sentences.

    Returns:
        Operations of the "projections" of all attention sub-layers, their "scores" QKᵀ, their "weighted sums" of the
        values, the "feed-forward" networks, and the "output projection" to logits.

    Raises:
        ValueError: A number is negative.

    Source: §3.1 to §3.4.
    """
    if min(n, m, batch) < 0:
        raise ValueError(f"n={n}, m={m} and batch={batch} are counts; none can be negative.")
    d, keys = config.d_model, config.n_heads * (config.d_k or config.d_model // config.n_heads)
    values = config.n_heads * (config.d_v or config.d_model // config.n_heads)
    # Queries and outputs are made for n, m and m positions; keys and values for n, m and n.
    projected = (n + 2 * m) + (2 * n + m)
    compared = n * n + m * m + m * n  # encoder; decoder; decoder over encoder
    each = 2 * batch * config.n_layers
    return {
        "projections": each * projected * d * (keys + values),
        "scores": each * compared * keys,
        "weighted sums": each * compared * values,
        "feed-forward": each * (n + m) * 2 * d * config.d_ff,
        "output projection": 2 * batch * m * d * config.tgt_vocab_size,
    }


# %%
#| export
def forward_flops(config: TransformerConfig, n: int, m: int, batch: int = 1) -> int:
    """Floating point operations of one forward pass; the arguments are those of `flops_by_part`."""
    return sum(flops_by_part(config, n, m, batch).values())


# %% [markdown]
# Training goes back through every product $Y = XW$ with two more of the same size, $\partial X = \partial Y\, W^T$ and
# $\partial W = X^T \partial Y$. So an update costs three times its forward pass. The count needs only a batch's shape,
# and padding counts: the device multiplies it like anything else.


# %%
#| export
def batch_flops(config: TransformerConfig, n_rows: int, n: int, m: int) -> int:
    """Floating point operations of training on one batch: three times those of its forward pass.

    Args:
        config: The model's sizes.
        n_rows: B, the number of sentences.
        n: Source positions of each, padding included.
        m: Target positions of each, padding included.

    Returns:
        The number.

    Raises:
        ValueError: A number is negative.
    """
    return 3 * forward_flops(config, n, m, n_rows)


# %% [markdown]
# ### See it

# %%
base = TransformerConfig.base()
parts = flops_by_part(base, n=25, m=25)
for part, flops in parts.items():
    print(f"{part:17} {flops / 1e6:7.1f} million  {flops / sum(parts.values()):6.1%}")
per_token = batch_flops(base, 1, 25, 25) / 25
print(f"training on one pair of tokens: {per_token / 1e6:.0f} million operations")

# %% [markdown]
# ### Check it: PyTorch counts the same
#
# PyTorch can count products as they happen, forward and backward. It knows nothing of our table. The counter does not see
# into the CPU's fused attention kernel, so attention runs as plain products here.


# %%
def counted(config: TransformerConfig, batch: int, n: int, m: int) -> tuple[int, int]:
    model = Transformer(config)
    src, tgt_in = torch.full((batch, n), 3), torch.full((batch, m), 3)
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            logits = model(src, tgt_in)
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


for changes in ({}, {"d_k": 8, "d_v": 24}, {"tgt_vocab_size": 70, "tie_embeddings": False}, {"norm_order": "pre"}):
    config = dataclasses.replace(TransformerConfig.tiny(100), **changes)
    forward, both = counted(config, batch=3, n=11, m=7)
    print(f"{forward:12,} forward, {both:12,} forward and backward")
    assert forward == forward_flops(config, n=11, m=7, batch=3)
    assert both == batch_flops(config, n_rows=3, n=11, m=7)

# %% [markdown]
# ## Where the operations lie

# %%
names = list(parts)
rows = []
for model_name, config in (("base", TransformerConfig.base()), ("big", TransformerConfig.big())):
    for length in (25, 50, 100, 200, 400, 800, 1600, 3200, 6400):
        shares = flops_by_part(config, length, length)
        rows += [
            {
                "model": model_name,
                "length": length,
                "part": part,
                "order": order,
                "share": round(flops / sum(shares.values()), 4),
            }
            for order, (part, flops) in enumerate(shares.items())
        ]
chosen = alt.param(name="size", value="base", bind=alt.binding_radio(options=["base", "big"], name="model "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .transform_filter("datum.model == size")
    .mark_bar()
    .encode(
        x=alt.X("length:O", title="tokens in a sentence, source and target alike", axis=alt.Axis(labelAngle=0)),
        y=alt.Y(
            "share:Q",
            stack="zero",
            title="share of all operations",
            axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, 1]),
        ),
        color=alt.Color(
            "part:N",
            sort=names,
            title=None,
            scale=alt.Scale(domain=names, range=["#56B4E9", "#D55E00", "#E69F00", "#0072B2", "#999999"]),
        ),
        order="order:Q",
        tooltip=["part:N", "length:O", alt.Tooltip("share:Q", format=".1%")],
    )
    .add_params(chosen)
    .properties(title="In a sentence, attention itself is about a hundredth of the work", width=420, height=260)
)
chart

# %% [markdown]
# Read the left-most bar: scores and weighted sums, which give the paper its title, are a thin line between the
# projections and the feed-forward networks. They grow with the square of the length, since every query meets every key, but
# take over only in sequences of thousands of tokens. In the base model, at sentence length, three tenths of the work is the
# last matrix product, the one with the vocabulary.

# %%
attention = (parts["scores"] + parts["weighted sums"]) / sum(parts.values())
last = parts["output projection"] / sum(parts.values())
print(f"attention's own products {attention:.1%}, output projection {last:.1%}")
assert 0.005 < attention < 0.015 and 0.25 < last < 0.35

# %% [markdown]
# ## How busy were the P100s?
#
# Now both counts can be put side by side. An update sees about 25,000 source and 25,000 target tokens
# ([Section 5.1](05_1_training_data_and_batching.py)); take them as a thousand sentence pairs of 25 tokens each. The result
# hardly depends on that choice, as the chart has shown.

# %%
runs = {"base": (base, 100_000, 0.4, 3.3e18), "big": (TransformerConfig.big(), 300_000, 1.0, 2.3e19)}
busy, rows = {}, []
for name, (config, steps, seconds, cost) in runs.items():
    update = batch_flops(config, n_rows=1000, n=25, m=25)
    busy[name] = steps * update / cost
    rate = update / seconds / 8 / 1e12
    print(
        f"{name}: {steps * update:.2e} of {cost:.1e}: {busy[name]:.0%}; {rate:.1f} of 9.5 TFLOP/s a GPU while it steps"
    )
    for order, (what, flops) in enumerate(
        {"matrix products of the model": steps * update, "assumed, not computed": cost - steps * update}.items()
    ):
        rows.append({"model": name, "what": what, "order": order, "FLOPs": flops, "share": round(flops / cost, 4)})
assert 0.25 < busy["base"] < 0.33 and 0.37 < busy["big"] < 0.45

# %%
kinds = ["matrix products of the model", "assumed, not computed"]
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_bar()
    .encode(
        y=alt.Y("model:N", title=None),
        x=alt.X("share:Q", title="share of the cost in Table 2", axis=alt.Axis(format="%")),
        color=alt.Color("what:N", title=None, sort=kinds, scale=alt.Scale(domain=kinds, range=["#0072B2", "#E69F00"])),
        order="order:Q",
        tooltip=["model:N", "what:N", alt.Tooltip("FLOPs:Q", format=".2e"), alt.Tooltip("share:Q", format=".0%")],
    )
    .properties(title="Less than half of the printed cost went into matrix products", width=400, height=90)
)
chart

# %% [markdown]
# A whole bar is the cost that Table 2 prints, its blue part what the model's products add up to: 29 % for the base model,
# 42 % for the big one. For the rest of the time the GPUs multiplied more slowly than assumed, or did something else: softmax
# and normalization, which wait for memory, the optimizer, gradients on their way between GPUs.
#
# Two lessons. Table 2 overstates the work of the big model more than twice, that of the base model more than three times, and
# nobody knows the factors of the other rows. It compares GPU time, which is what one pays for, not work. And wider products
# keep a GPU busier: an update of the big model has more than three times the operations of one of the base model, yet takes
# two and a half times as long.

# %%
growth = batch_flops(TransformerConfig.big(), 1000, 25, 25) / batch_flops(base, 1000, 25, 25)
print(f"operations per update, big against base: {growth:.2f}; seconds: {1.0 / 0.4:.1f}")
assert growth > 3 > 1.0 / 0.4

# %% [markdown]
# ## The ledger of a training
#
# A training can keep these accounts itself. The loop of [Section 5.2](05_2_hardware_and_schedule.py) records what the shapes
# of its batches say, the real tokens, and the seconds; the ledger adds them up, over all parts of a run
# ([A3a](A3a_runs.py)).


# %%
#| export
@dataclasses.dataclass
class Ledger:
    """What a training has cost so far. `Ledger(**ledger.to_dict())` continues one.

    Args:
        updates: Steps of the optimizer.
        source_tokens: Real source tokens, padding not counted.
        target_tokens: Real target tokens.
        flops: Floating point operations of matrix products, padding counted.
        seconds: Time spent in these updates.
        peak: Operations a second of the devices' fastest matrix product, see `measure_peak`; 0 if not measured.

    Source: §5.2, Table 2.
    """

    updates: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    flops: int = 0
    seconds: float = 0.0
    peak: float = 0.0

    def add(self, flops: int, source_tokens: int, target_tokens: int, seconds: float, updates: int = 1) -> None:
        """Enter one update, or several.

        Args:
            flops: Sum of `batch_flops` over their batches.
            source_tokens: Real source tokens in them.
            target_tokens: Real target tokens in them.
            seconds: How long they took.
            updates: How many they were.
        """
        self.flops += flops
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens
        self.seconds += seconds
        self.updates += updates

    @property
    def flops_per_second(self) -> float:
        """Sustained rate; 0 before the first update."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def fraction_of_peak(self) -> float | None:
        """The sustained rate as a fraction of the measured peak; None where no peak was measured."""
        return self.flops_per_second / self.peak if self.peak else None

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """One line."""
        share = "" if self.fraction_of_peak is None else f", {self.fraction_of_peak:.0%} of the measured peak"
        return (
            f"{self.updates:,} updates, {self.source_tokens:,} source and {self.target_tokens:,} target tokens, "
            f"{self.flops:.3g} FLOPs in {self.seconds:,.0f} s: {self.flops_per_second:.3g} FLOP/s{share}"
        )


# %% [markdown]
# ### See it: the paper's base model, as a ledger
#
# The peak here is the paper's own figure, 9.5 TFLOP/s for each of eight GPUs.

# %%
tokens = 100_000 * 25_000
counted_flops = 100_000 * batch_flops(base, n_rows=1000, n=25, m=25)
print(Ledger(100_000, tokens, tokens, counted_flops, seconds=12 * 3600, peak=8 * 9.5e12))

# %% [markdown]
# "Fraction of peak" needs a peak. Data sheets promise more than any program gets, so we ask the device: the fastest large
# matrix product it manages is the most that a training could reach.


# %%
#| export
def measure_peak(device: str = "auto", dtype: torch.dtype = torch.float32, seconds: float = 1.0,
                 multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.mm) -> float:  # fmt: skip
    """The fastest matrix product of a device, by trying larger and larger ones.

    Args:
        device: "auto", or a name that torch knows; one device.
        dtype: Of the matrices: what the training multiplies in, for instance bfloat16 under autocast.
        seconds: About how long to try.
        multiply: What multiplies two matrices; that of the training, if it is another.

    Returns:
        Floating point operations a second.

    Raises:
        ValueError: The machine has no such device, or seconds is not positive.
    """
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; give the measurement a positive time.")
    place = choose_device(device)
    calls = 1 if place.type == "cpu" else 10  # launched together, so that waiting for the device is not what we time
    best, size, end, tries = 0.0, 256, time.perf_counter() + seconds, 6
    while size <= 16_384 and (not best or tries * calls * 2 * size**3 / best < end - time.perf_counter()):
        a, b = (torch.randn(size, size, device=place).to(dtype) for _ in range(2))
        for _ in range(tries):  # the first also sets the library up
            begun = _clock(place)
            for _ in range(calls):
                multiply(a, b)
            best = max(best, calls * 2 * size**3 / (_clock(place) - begun))
        size *= 2
    return best


# %%
#| export
def _clock(device: torch.device) -> float:
    """The time when the device has done all it was given."""
    if device.type in ("cuda", "mps"):
        (torch.cuda if device.type == "cuda" else torch.mps).synchronize()
    return time.perf_counter()


# %% [markdown]
# ### See it: a small training, accounted for
#
# `train` returns a record, which has all the ledger needs. The operations can be counted from the shapes of the batches as
# well, and must be the same.

# %%
torch.manual_seed(0)
config = TransformerConfig(32, 32, d_model=128, n_layers=2, n_heads=4, d_ff=512, dropout=0.0)
model = Transformer(config)
batches = list(itertools.islice(TokenBatches(copy_task(5_000), max_tokens=1_000), 40))

ledger = Ledger(peak=measure_peak("cpu", seconds=1.0))
(record,) = train(model, batches, TrainingConfig(steps=len(batches), device="cpu"))
ledger.add(record.flops, record.source_tokens, record.target_tokens, record.seconds, updates=record.step)
assert ledger.flops == sum(batch_flops(config, *batch.src.shape, batch.tgt_in.size(1)) for batch in batches)
assert ledger.target_tokens == sum(batch.n_tokens for batch in batches)
print(f"{ledger.updates} updates, {ledger.target_tokens:,} target tokens, {ledger.flops:,} FLOPs")

# %%
rates = {"the training": ledger.flops_per_second, "fastest product": ledger.peak}
values = [{"what": what, "GFLOP/s": rate / 1e9, "label": f"{rate / ledger.peak:.0%}"} for what, rate in rates.items()]
bars = alt.Chart(alt.Data(values=values)).encode(
    y=alt.Y("what:N", title=None, sort=None),
    x=alt.X(
        "GFLOP/s:Q", title="billions of operations a second", scale=alt.Scale(domain=[0, 1.15 * ledger.peak / 1e9])
    ),
    tooltip=["what:N", alt.Tooltip("GFLOP/s:Q", format=".1f")],
)
chart = alt.layer(bars.mark_bar(color="#0072B2"), bars.mark_text(align="left", dx=4).encode(text="label:N")).properties(
    title="A training does not reach its device's fastest product", width=400, height=80
)
chart

# %% [markdown]
# The chart shows your machine, or the one that built this page.
#
# ### Check it

# %%
assert ledger.updates == 40
assert 0 < ledger.fraction_of_peak < 1
assert Ledger(**ledger.to_dict()) == ledger
assert ledger.flops < 1.2 * batch_flops(config, 1, 9, 9) / 9 * ledger.target_tokens

# %% [markdown]
# The small model stays below the peak for the P100s' reasons: its matrices are narrow, and everything around them costs
# time as well.

# %% [markdown]
# ## Unsaid by the paper
#
# * **Sustained or peak?** The footnote speaks of "sustained" capacity. For the P100 it takes 9.5 TFLOPS, while NVIDIA's
#   data sheet gives 9.3 as the *peak* of the PCIe card and 10.6 of the NVLink card. No training sustains that.
# * **What FLOPS means.** Operations (FLOPs) and operations a second (FLOPS) share an abbreviation. This book writes FLOPs and
#   FLOP/s.
# * **What changed since.** Later papers count as this chapter does, often by the rule of thumb of six operations per weight
#   and token, and call our fraction "model FLOPs utilization". Lower precision has moved the peak: a GPU's bfloat16
#   products are many times as fast as its float32 products, so a fraction means nothing without its data type.

# %%
assert 9.3 < PAPER_TFLOPS["P100"] < 10.6
weights = sum(p.numel() for name, p in Transformer(config).named_parameters() if p.dim() == 2)
rule = 6 * weights * 25
print(f"rule of thumb {rule:,}, counted {batch_flops(config, 1, 25, 25):,}")
assert 0.8 < batch_flops(config, 1, 25, 25) / rule < 1.2

# %% [markdown]
# ## What we now know
#
# * Table 2's costs are GPU time at a fixed rate: 12 hours, or 3.5 days, of 8 GPUs at 9.5 TFLOP/s.
# * Counted from its products, the base model's training is less than a third of its printed cost, the big model's
#   less than half.
# * At sentence length, scores and weighted sums are about a hundredth of the operations.
# * The formula agrees with PyTorch's own counter to the last operation, forward and backward.

# %% [markdown]
# ## Exercises
#
# 1. **Predict, then run.** At which length do scores and weighted sums of an encoder layer catch up with its feed-forward
#    network? Derive it for base, then find it with `flops_by_part`. Check: `check("5.2-catch-up", answer)`.
# 2. **Minutes.** A training that keeps no activations and computes them again on the way back saves memory. What does an update
#    cost then, in forward passes?
# 3. **An hour.** Cut the corpus of the small training into batches of 50 sentences as they come, instead of by length. By how
#    much do the operations rise, for the same real tokens?

# %% tags=["hide-cell"]
# Exercise 1: 4 n² d against 4 n d d_ff, so at n = d_ff: 2,048 for base. Without a target there is only the encoder.
from transformer.exercises import check

for length in (2_047, 2_048):
    parts = flops_by_part(base, n=length, m=0)
    print(length, parts["scores"] + parts["weighted sums"] >= parts["feed-forward"])
print(check("5.2-catch-up", length))
assert parts["scores"] + parts["weighted sums"] == parts["feed-forward"] and check("5.2-catch-up", length)

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.forward_flops(base, 25, 30, 4) == forward_flops(base, 25, 30, 4)
assert transformer.flops_by_part(base, 5, 7) == flops_by_part(base, 5, 7)
assert transformer.paper_cost(12) == paper_cost(12) and str(transformer.Ledger(1, 2, 3, 4, 5.0)) == str(
    Ledger(1, 2, 3, 4, 5.0)
)
