# %% [markdown]
# # 6.2 Model Variations
#
# Table 3 takes the base model, changes one thing at a time, and reads off what that costs. It is the paper's only evidence
# about which parts matter, and each of its rows is a single run. This chapter writes the table as code, runs all of it in
# miniature with three seeds a row, and asks which of its conclusions a spread over seeds leaves standing.

# %%
#| default_exp variations

# %%
import json
import math
import statistics
from pathlib import Path

import altair as alt
import torch
from torch.utils.flop_counter import FlopCounterMode

import transformer

transformer.check_version("0.1")

# %% [markdown]
# > To evaluate the importance of different components of the Transformer, we varied our base model in different ways,
# > measuring the change in performance on English-to-German translation on the development set, newstest2013. We used beam
# > search as described in the previous section, but no checkpoint averaging.
# >
# > — Section 6.2
#
# ## One change at a time
#
# A row of Table 3 is a short list of changes to base. Everything not listed stays. All of them are fields of the one
# `TransformerConfig`, except label smoothing, which belongs to the loss.

# %%
#| export
import dataclasses
from typing import Any

from transformer.model import TransformerConfig


# %%
#| export
@dataclasses.dataclass(frozen=True)
class Variation:
    """One row of Table 3.

    Args:
        group: "base", "A" to "E", or "big".
        label: The change, in words.
        config: The whole model.
        label_smoothing: ε_ls of its training.

    Source: §6.2, Table 3.
    """

    group: str
    label: str
    config: TransformerConfig
    label_smoothing: float = 0.1

    @property
    def name(self) -> str:
        """Group and change, unique in the table."""
        return self.group if self.group in ("base", "big") else f"({self.group}) {self.label}"


# %% [markdown]
# The paper gives sizes in numbers: 2, 4 or 8 layers beside 6, $d_{\text{model}}$ of 256 or 1024 beside 512. Written as
# ratios to base, the same rows fit a base of any size. Two of them hold by themselves: a blank $d_k$ is
# $d_{\text{model}}/h$, so more heads make each of them narrower, which is what rows (A) say; and a wider model has wider heads,
# which is what rows (C) say.


# %%
#| export
def table3(base: TransformerConfig) -> list[Variation]:
    """Every row of Table 3, scaled to a base model of any size.

    Args:
        base: The model that the rows vary. With `TransformerConfig.base()` they are the paper's own.

    Returns:
        20 rows, in the paper's order.

    Raises:
        ValueError: The base gives d_k or d_v of its own, or a row would have a size that is no whole number.

    Source: §6.2, Table 3.
    """
    if base.d_k is not None or base.d_v is not None:
        raise ValueError("the base gives d_k or d_v; leave both None: the rows derive them from d_model / n_heads.")

    def sizes(*fields: str, ratio: float) -> dict[str, Any]:
        now = {field: base.d_model // base.n_heads if field == "d_k" else getattr(base, field) for field in fields}
        for field, value in now.items():
            if value * ratio != int(value * ratio):
                raise ValueError(f"{field}={value} times {ratio:g} is no whole number; choose another base.")
        return {field: int(value * ratio) for field, value in now.items()}

    def row(group: str, label: str, label_smoothing: float = 0.1, **changes: Any) -> Variation:
        return Variation(group, label, dataclasses.replace(base, **changes), label_smoothing)

    heads = [sizes("n_heads", ratio=ratio) for ratio in (1 / 8, 1 / 2, 2, 4)]
    keys = [sizes("d_k", ratio=ratio) for ratio in (1 / 4, 1 / 2)]
    depths = [sizes("n_layers", ratio=ratio) for ratio in (1 / 3, 2 / 3, 4 / 3)]
    widths = [sizes("d_model", ratio=ratio) for ratio in (1 / 2, 2)]
    inner = [sizes("d_ff", ratio=ratio) for ratio in (1 / 2, 2)]
    big = sizes("d_model", "d_ff", "n_heads", ratio=2)
    return [
        row("base", "base"),
        *(row("A", f"h = {change['n_heads']}", **change) for change in heads),
        *(row("B", f"d_k = {change['d_k']}", **change) for change in keys),
        *(row("C", f"N = {change['n_layers']}", **change) for change in depths),
        *(row("C", f"d_model = {change['d_model']}", **change) for change in widths),
        *(row("C", f"d_ff = {change['d_ff']}", **change) for change in inner),
        *(row("D", f"P_drop = {rate}", dropout=rate) for rate in (0.0, 0.2)),
        *(row("D", f"ε_ls = {epsilon}", label_smoothing=epsilon) for epsilon in (0.0, 0.2)),
        row("E", "learned positions", positions="learned"),
        row("big", "big", dropout=0.3, **big),
    ]


# %% [markdown]
# ### See it: the paper's rows
#
# Given the paper's base model, the function returns Table 3. Its numbers of parameters are counted on torch's "meta" device,
# where a model has shapes but no memory.


# %%
def parameters(config):
    with torch.device("meta"):
        return transformer.count_parameters(transformer.Transformer(config))


papers = table3(transformer.TransformerConfig.base(vocab_size=37_000))
counts = {variation.name: parameters(variation.config) for variation in papers}
for name, count in counts.items():
    print(f"{name:22} {count / 1e6:6.1f} M parameters")
assert len(papers) == 20
padded = parameters(transformer.TransformerConfig.base(vocab_size=40_960))
print(f"base with a table of 40,960 rows: {padded / 1e6:.1f} M parameters")
assert round(counts["base"] / 1e6) == 63 and round(padded / 1e6) == 65

# %% [markdown]
# The paper prints 65 million for base and 213 for big. With the 37,000 tokens of Section 5.1 it is 63 and 214. The first comes out
# with a table of 40,960 rows; [the paper against itself](../book/against_itself.md) has the arithmetic.
#
# ### Check it: what "keeping the amount of computation constant" means
#
# > In Table 3 rows (A), we vary the number of attention heads and the attention key and value dimensions, keeping the amount
# > of computation constant, as described in Section 3.2.2.
# >
# > — Section 6.2
#
# PyTorch's counter of floating-point operations, which counts matrix products alone, watches one multi-head attention of base
# width over 100 tokens:

# %%
x = torch.randn(1, 100, 512, generator=torch.Generator().manual_seed(0))
operations = {}
for heads in (1, 4, 8, 16, 32):
    attention = transformer.MultiHeadAttention(d_model=512, n_heads=heads)
    attention.on_weights = lambda weights: None  # by Equation (1), whose products the counter sees
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        attention(x, x, x)
    operations[heads] = counter.get_total_flops()
    print(f"{heads:2} heads of {512 // heads:3}: {operations[heads]:,} operations")
assert set(operations.values()) == {2 * (4 * 100 * 512**2 + 2 * 100**2 * 512)}
assert len({counts[v.name] for v in papers if v.group in ("base", "A")}) == 1

# %% [markdown]
# Heads are free in matrix products and in parameters; only the softmax grows with them. Rows (B) are not: each of the 18
# attentions of the model loses columns of $W^Q$ and of $W^K$, biases included.

# %%
for d_k in (16, 32):
    saved = 18 * 2 * 8 * (64 - d_k) * (512 + 1)
    print(f"d_k = {d_k}: {saved / 1e6:.1f} M parameters fewer")
    assert counts["base"] - counts[f"(B) d_k = {d_k}"] == saved

# %% [markdown]
# ## The paper's numbers
#
# > Variations on the Transformer architecture. Unlisted values are identical to those of the base model.
# >
# > — Section 6, Table 3
#
# Table 3 of the paper, without the columns that follow from the row's name:
#
# | row | change | perplexity | BLEU |
# |---|---|---|---|
# | base | | 4.92 | 25.8 |
# | (A) | h = 1 | 5.29 | 24.9 |
# | (A) | h = 4 | 5.00 | 25.5 |
# | (A) | h = 16 | 4.91 | 25.8 |
# | (A) | h = 32 | 5.01 | 25.4 |
# | (B) | d_k = 16 | 5.16 | 25.1 |
# | (B) | d_k = 32 | 5.01 | 25.4 |
# | (C) | N = 2 | 6.11 | 23.7 |
# | (C) | N = 4 | 5.19 | 25.3 |
# | (C) | N = 8 | 4.88 | 25.5 |
# | (C) | d_model = 256 | 5.75 | 24.5 |
# | (C) | d_model = 1024 | 4.66 | 26.0 |
# | (C) | d_ff = 1024 | 5.12 | 25.4 |
# | (C) | d_ff = 4096 | 4.75 | 26.2 |
# | (D) | P_drop = 0.0 | 5.77 | 24.6 |
# | (D) | P_drop = 0.2 | 4.95 | 25.5 |
# | (D) | ε_ls = 0.0 | 4.67 | 25.3 |
# | (D) | ε_ls = 0.2 | 5.47 | 25.7 |
# | (E) | learned positions | 4.92 | 25.7 |
# | big | | 4.33 | 26.4 |
#
# Perplexities are per word piece. The authors' code computes them without label smoothing. That agrees with the row
# $\epsilon_{ls} = 0$, which has the lowest of all but two. Each row is one run, and no spread is given.

# %% [markdown]
# ## The same table in miniature, recorded
#
# Base here is the paper's divided by eight, with three layers for six: $d_{\text{model}} = 64$, $d_{ff} = 256$, eight heads of
# eight. It is trained on 10,000 short sentences of the [embedded corpus](A1_the_embedded_corpus.py). Every row makes equally
# many updates on the same batches, with three seeds for weights, order and dropout. Base stops at about four exact
# sentences in five, so that a row has room to be better and room to be worse. There is a beam of four and no averaging, as
# in the paper. Unlike the paper's, our big model is not trained longer.
#
# Perplexity is without smoothing. `test` has unseen sentences; `compositional` has words that never stood together in
# training. Both have 500 sentences.


# %%
def interval(values):
    """Mean and half of the 95 % interval, by Student's t with two degrees of freedom for three seeds."""
    assert len(values) == 3
    return statistics.mean(values), 4.303 * statistics.stdev(values) / math.sqrt(3)


# %%
PAPER = dict(
    zip(
        counts,
        [
            (4.92, 25.8), (5.29, 24.9), (5.00, 25.5), (4.91, 25.8), (5.01, 25.4), (5.16, 25.1), (5.01, 25.4),
            (6.11, 23.7), (5.19, 25.3), (4.88, 25.5), (5.75, 24.5), (4.66, 26.0), (5.12, 25.4), (4.75, 26.2),
            (5.77, 24.6), (4.95, 25.5), (4.67, 25.3), (5.47, 25.7), (4.92, 25.7), (4.33, 26.4),
        ],
        strict=True,
    )
)  # fmt: skip

# %%
COLUMNS = [("test", "perplexity"), ("test", "bleu"), ("compositional", "perplexity"), ("compositional", "bleu")]
places = [*(Path.cwd() / "x").parents, *Path(transformer.__file__).resolve().parents]
file = next((path for place in places if (path := place / "book/results/variations.json").is_file()), None)
rows = {}
if file is None:
    print("The record is book/results/variations.json in the book's repository. Without it there is nothing to show.")
else:
    record = json.loads(file.read_text(encoding="utf-8"))
    for run in record["runs"].values():
        rows.setdefault(run["arguments"]["row"], []).append(run["result"])
    seconds = sum(run["cpu_seconds"] for run in record["runs"].values())
    print(f"recorded {record['date']} with `{record['command']}`, torch {record['machine']['torch']}")
    print(f"{len(record['runs'])} runs of {record['runs']['base, seed 1']['arguments']['steps']:,} updates, {seconds / 60:.0f} minutes of one core in all\n")
table = {
    name: {column: interval([result[column[0]][column[1]] for result in results]) for column in COLUMNS}
    for name, results in rows.items()
}
for split in ("test", "compositional") if table else ():
    print(f"{split:24}{'parameters':>10}{'perplexity':>17}{'BLEU':>15}{'exact':>9}")
    for name, results in rows.items():
        (perplexity, p_half), (bleu, b_half) = table[name][split, "perplexity"], table[name][split, "bleu"]
        exact = statistics.mean(result[split]["exact_match"] for result in results)
        print(
            f"{name:24}{results[0]['parameters']:10,}{perplexity:10.2f} ± {p_half:4.2f}{bleu:8.1f} ± {b_half:4.1f}{exact:7.1f} %"
        )
    print()

# %% [markdown]
# The number after ± is half of a 95 % interval over three seeds. With so few it is wide: Student's factor for two degrees of
# freedom is 4.3. Where a row's interval overlaps that of base we say **no difference seen**. That is not the same as "no
# difference": with three seeds this table can only see large ones.


# %%
def verdict(row, reference, column):
    """How a row's interval lies to another's: "better", "worse" or "no difference seen"."""
    (mean, half), (other, other_half) = table[row][column], table[reference][column]
    if abs(mean - other) <= half + other_half:
        return "no difference seen"
    return "better" if (mean > other) == (column[1] == "bleu") else "worse"


print(f"{'on test':24}{'BLEU':20}perplexity")
for name in table:
    if name != "base":
        print(f"{name:24}{verdict(name, 'base', ('test', 'bleu')):20}{verdict(name, 'base', ('test', 'perplexity'))}")

# %% tags=["hide-input"]
chart = None
if table:
    labels = {column: f"{column[0]}, {'BLEU' if column[1] == 'bleu' else 'perplexity'}" for column in COLUMNS}
    means = [
        {"row": name, "measure": labels[column], "mean": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3)}
        for name, columns in table.items()
        for column, (mean, half) in columns.items()
    ]
    seeds = [
        {"row": name, "measure": labels[column], "value": result[column[0]][column[1]]}
        for name, results in rows.items()
        for result in results
        for column in COLUMNS
    ]
    measure = alt.param(
        name="measure", value=labels["test", "bleu"], bind=alt.binding_select(options=list(labels.values()), name="Measured: ")
    )
    y = alt.Y("row:N", sort=list(table), title=None, axis=alt.Axis(labelLimit=115))
    selected = alt.Chart(alt.Data(values=means)).transform_filter("datum.measure == measure")
    scale = alt.Scale(zero=False, padding=12)
    band = selected.transform_filter("datum.row == 'base'").mark_rect(color="#7a7f87", opacity=0.25).encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
    intervals = selected.mark_rule(color="#0072B2", strokeWidth=2).encode(y=y, x=alt.X("low:Q", scale=scale, title=None), x2="high:Q")
    middles = selected.mark_tick(color="#0072B2", thickness=3, size=13).encode(
        y=y, x=alt.X("mean:Q", scale=scale),
        tooltip=["row:N", alt.Tooltip("mean:Q", format=".2f"), alt.Tooltip("low:Q", format=".2f"), alt.Tooltip("high:Q", format=".2f")],
    )
    dots = (
        alt.Chart(alt.Data(values=seeds))
        .transform_filter("datum.measure == measure")
        .mark_point(color="#E69F00", filled=True, size=28, opacity=1)
        .encode(y=y, x=alt.X("value:Q", scale=scale), tooltip=["row:N", alt.Tooltip("value:Q", format=".2f", title="one seed")])
    )
    chart = (band + intervals + middles + dots).add_params(measure)
    chart = chart.properties(width=190, height=alt.Step(17), title="Most rows touch the band of base")
chart

# %% [markdown]
# Dots are single seeds, the bar is their mean, the line its 95 % interval, and the grey band is the interval of base. Choose
# another measure above. A row whose line touches the band cannot be told from base here.

# %% tags=["hide-input"]
chart, pairs = None, []
if table:
    base_bleu, papers_base = table["base"]["test", "bleu"][0], PAPER["base"][1]
    for (name, columns), (papers_name, (_, papers_bleu)) in zip(table.items(), PAPER.items(), strict=True):
        mean, half = columns["test", "bleu"]
        pairs.append(
            {
                "row": name,
                "in the paper": papers_name,
                "paper": round(papers_bleu - papers_base, 1),
                "here": round(mean - base_bleu, 1),
                "low": round(mean - half - base_bleu, 1),
                "high": round(mean + half - base_bleu, 1),
            }
        )
    base = alt.Chart(alt.Data(values=pairs)).encode(x=alt.X("paper:Q", title="the paper's BLEU, minus base", scale=alt.Scale(padding=12)))
    zero = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color="#7a7f87", strokeDash=[4, 3])
    chart = (
        zero.encode(x="zero:Q")
        + zero.encode(y="zero:Q")
        + base.mark_rule(color="#0072B2", opacity=0.5).encode(y=alt.Y("low:Q", title="BLEU here, minus base"), y2="high:Q")
        + base.mark_point(color="#0072B2", filled=True, size=60, opacity=1).encode(
            y="here:Q", tooltip=["row:N", "in the paper:N", alt.Tooltip("paper:Q", format="+.1f"), alt.Tooltip("here:Q", format="+.1f")]
        )
    ).properties(width=250, height=250, title="Big: the best in the paper, not here")
chart

# %% [markdown]
# Each point is a row; hover it for its name. Right of the upright line the paper's row beats its base; above the level line ours beats
# ours. The scales differ: on a model that is stopped early, a change can move BLEU much further, up or down.

# %% [markdown]
# ## Check it: the paper's conclusions, one by one
#
# > While single-head attention is 0.9 BLEU worse than the best setting, quality also drops off with too many heads.
# >
# > — Section 6.2
#
# > In Table 3 rows (B), we observe that reducing the attention key size $d_k$ hurts model quality. This suggests that
# > determining compatibility is not easy and that a more sophisticated compatibility function than dot product may be
# > beneficial.
# >
# > — Section 6.2
#
# > We further observe in rows (C) and (D) that, as expected, bigger models are better, and dropout is very helpful in
# > avoiding over-fitting.
# >
# > — Section 6.2
#
# > In row (E) we replace our sinusoidal positional encoding with learned positional embeddings, and observe nearly identical
# > results to the base model.
# >
# > — Section 6.2
#
# Each is a comparison of two rows, on unseen sentences of `test`. A conclusion *holds* if BLEU differs as the paper says and
# the intervals do not overlap. For row (E) it holds if no difference is seen, which is the weaker finding.

# %%
CONCLUSIONS = [  # what the paper concludes, the row, the row it is compared with, what is expected
    ("one head is worse than the best setting", "(A) h = 1", "best of (A)", "worse"),
    ("so are too many heads", "(A) h = 32", "best of (A)", "worse"),
    ("a smaller d_k hurts, by half", "(B) d_k = 4", "base", "worse"),
    ("a smaller d_k hurts, by three quarters", "(B) d_k = 2", "base", "worse"),
    ("fewer layers are worse, by a third", "(C) N = 2", "base", "worse"),
    ("fewer layers are worse, by two thirds", "(C) N = 1", "base", "worse"),
    ("more layers are better", "(C) N = 4", "base", "better"),
    ("a narrower model is worse", "(C) d_model = 32", "base", "worse"),
    ("a wider model is better", "(C) d_model = 128", "base", "better"),
    ("a smaller feed-forward network is worse", "(C) d_ff = 128", "base", "worse"),
    ("a larger one is better", "(C) d_ff = 512", "base", "better"),
    ("no dropout is worse", "(D) P_drop = 0.0", "base", "worse"),
    ("no label smoothing is worse", "(D) ε_ls = 0.0", "base", "worse"),
    ("learned positions are nearly identical", "(E) learned positions", "base", "no difference seen"),
    ("big is better", "big", "base", "better"),
]
outcome = {}
if table:
    of_a = [name for name in table if name == "base" or name.startswith("(A)")]
    best = max(of_a, key=lambda name: table[name]["test", "bleu"][0])
    print(f"best of (A) here: {best}\n")
    for conclusion, row, reference, expected in CONCLUSIONS:
        found = verdict(row, best if reference == "best of (A)" else reference, ("test", "bleu"))
        outcome[row] = "holds" if found == expected else "not seen" if found == "no difference seen" else "the opposite"
        print(f"{conclusion:40} {found:20} {outcome[row]}")
    assert outcome["(E) learned positions"] == "holds"
    assert outcome["(C) N = 4"] == outcome["big"] == "the opposite"
    assert outcome["(D) P_drop = 0.0"] == "not seen"
    means = {name: table[name]["test", "bleu"][0] for name in table}
    assert means["(D) P_drop = 0.0"] > means["base"] and means["(D) P_drop = 0.2"] < 0.6 * means["base"]

# %% [markdown]
# Most conclusions are *not seen* here, and two come out *the opposite*: the deepest and the biggest model are the
# worst by far. That does not refute the paper. All rows stop after the same few updates, and by then these two have
# hardly begun. Likely reasons, not tested here: a deeper post-norm stack takes more updates before it learns at all,
# and big has a dropout of 0.3, when 0.2 alone already costs base half of its BLEU in the mean, and much more
# with one seed than with another. The paper's rows ran for 100,000 updates, its big model for 300,000. That "bigger
# models are better" is a statement about models trained that long.
#
# The same goes for dropout. It is "very helpful in avoiding over-fitting", and after so few updates there is nothing to
# overfit: no dropout at all does at least as well as base here.
#
# ### A sharper look: pairs
#
# The three runs of a row share their batches with the three of base, seed by seed. What a seed does to both cancels in
# the difference of the two, and its interval is often narrower. This is the rows' difference from base in BLEU on `test`, with
# a mark where the interval does not reach 0:

# %%
paired = {}
if rows:
    for name, results in rows.items():
        if name != "base":
            differences = [
                result["test"]["bleu"] - base["test"]["bleu"] for result, base in zip(results, rows["base"], strict=True)
            ]
            mean, half = paired[name] = interval(differences)
            print(f"{name:24} {mean:+6.1f} ± {half:4.1f}  {'*' if abs(mean) > half else ''}")
    mean, half = paired["(A) h = 1"]
    assert mean + half < 0
    assert paired["(D) P_drop = 0.0"][0] > paired["(D) P_drop = 0.0"][1]
    assert abs(paired["(A) h = 4"][0]) < paired["(A) h = 4"][1] and abs(paired["(A) h = 16"][0]) < paired["(A) h = 16"][1]

# %% [markdown]
# Paired, the loss of a single head shows: it is worse than eight heads with every seed. Four and sixteen heads cannot be told
# from eight. In this the miniature agrees with the paper, whose rows with 4, 8 and 16 heads lie within 0.3 BLEU. No dropout is
# better than base with every seed, the opposite of row (D). Mind that of nineteen such intervals one is expected to miss 0 by
# chance alone.
#
# ### What an interval of three seeds can see

# %%
if table:
    halves = sorted(half for columns in table.values() for (_, metric), (_, half) in columns.items() if metric == "bleu")
    print(f"half an interval of BLEU: median {statistics.median(halves):.1f}, from {halves[0]:.1f} to {halves[-1]:.1f}")
    deviations = [
        statistics.stdev(result[split]["bleu"] for result in results)
        for results in rows.values()
        for split in ("test", "compositional")
    ]
    print(f"standard deviation of BLEU over seeds: median {statistics.median(deviations):.1f}")
    differences = [abs(bleu - PAPER["base"][1]) for _, bleu in PAPER.values()]
    print(f"differences from base in the paper: median {statistics.median(differences):.1f}, at most {max(differences):.1f}")
    assert 1.5 < statistics.median(deviations) < 2.5 and statistics.median(differences) < 0.5

# %% [markdown]
# The rows of Table 3 differ from base by less than half a point of BLEU in the median. Runs that differ in nothing but the seed
# scatter by more than that here. At the paper's size the scatter is probably smaller, since training is longer and the test set larger;
# how small it is, the paper does not say. A difference such as 25.8 against 25.7 cannot be read as one.
#
# ## Unsaid by the paper
#
# - **The seeds.** Each row is one run. No spread is given, and none can be computed from the table.
# - **The learning rate.** Nothing is said of tuning it for a row. With the formula of Equation (3) it falls as the model gets wider, and
#   is the same for every depth, rate of dropout and number of heads.
# - **Equal updates are not equal cost.** Big has more than three times the parameters of base and was trained for three times as
#   many updates. Rows (C) differ in cost from base and from each other.
# - **The averages.** Section 6.2 says that no checkpoints were averaged for Table 3. An author wrote in an issue of
#   tensor2tensor that all results of the paper were averaged. Both cannot be right ([the paper against itself](../book/against_itself.md)).
# - **What is not in the table.** No row removes the scale $1/\sqrt{d_k}$, the residual connections, the positions, or one of the
#   three attentions, and none moves the normalization. Later work did; pre-norm is a switch of [our layers](03_1_encoder_and_decoder_stacks.py).
#
# ## The notebook and the module agree

# %%
assert type(table3(transformer.TransformerConfig.base())[0]) is not type(transformer.table3(transformer.TransformerConfig.base())[0])
ours, theirs = (make(transformer.TransformerConfig.base()) for make in (table3, transformer.table3))
assert [dataclasses.astuple(variation) for variation in ours] == [dataclasses.astuple(variation) for variation in theirs]
print(f"{len(theirs)} equal rows from {table3.__module__} and {transformer.table3.__module__}")

# %% [markdown]
# ## What we now know
#
# - `table3` makes the paper's rows from the paper's base, and rows of the same proportions from any other.
# - Rows (A) take the same matrix products and parameters as base. Rows (B) lose just the columns that $d_k$ loses.
# - Recorded, three seeds a row: one head is worse than eight, seen once the runs are paired by seed. Learned positions: no
#   difference seen, as in the paper.
# - After equally many, few updates the deepest and the biggest model are the worst, and no dropout is better. These
#   conclusions of the paper need its long training. Most other differences drown in the scatter over seeds.
# - That scatter, about two points of BLEU here, is larger than the median difference between the rows of Table 3.
#
# ## Exercises
#
# 1. **Predict, then run.** Which rows of Table 3 have as many parameters as base, and which row has the most?
# 2. **Minutes.** How many seeds would it take to see a difference of half a point, if the scatter over seeds were one point? Use
#    the interval above, and let the factor of 4.3 shrink to 2.
# 3. **An hour.** Take one row of Table 3. What does it vary, what does it hold fixed that one might want to vary along with it,
#    and is its difference from base in BLEU larger than the scatter of our seeds? Check: `check("6.2-row", (name, fields,
#    its_bleu, bleu_of_base, differs))`.
# 4. **An hour.** In row (B) the scale is $1/\sqrt{d_k}$ with the smaller $d_k$. Repeat the row with the scale of base. What do you
#    expect?
# 5. **A day.** Give every row the same floating-point operations instead of the same updates
#    (`book/experiments/variations.py` has all you need). Which conclusions turn?

# %% tags=["hide-cell"]
same = [name for name, count in counts.items() if count == counts["base"]]
most = max(counts, key=counts.get)
print(f"as many as base: {same}; the most: {most}, {counts[most] / 1e6:.0f} M")
assert most == "big" and counts["(E) learned positions"] > counts["base"]

# %% tags=["hide-cell"]
# Two means differ visibly when their distance exceeds both halves: 2 · 2 · 1 / √n < 0.5.
n_seeds = next(n for n in range(2, 1000) if 2 * 2 * 1 / math.sqrt(n) < 0.5)
print(f"{n_seeds} seeds a row")
assert n_seeds == 65

# %% [markdown]
# Solution to exercise 3, for the row with half of the width. It holds $d_{ff}$ and the number of heads, so that the network is wider in proportion
# and each head narrower, and it holds the updates and the warm-up. The learning rate it does not hold: by Equation (3), half of the width makes it
# $\sqrt{2}$ times as high.

# %% tags=["hide-cell"]
from transformer.exercises import check

if rows:
    name = "(C) d_model = 32"
    its_bleu, bleu_of_base = ([result["test"]["bleu"] for result in rows[row]] for row in (name, "base"))
    differs = verdict(name, "base", ("test", "bleu")) != "no difference seen"
    print(name, its_bleu, "against", bleu_of_base)
    print(check("6.2-row", (name, {"d_model"}, its_bleu, bleu_of_base, differs)))
    assert check("6.2-row", (name, {"d_model"}, its_bleu, bleu_of_base, differs))
