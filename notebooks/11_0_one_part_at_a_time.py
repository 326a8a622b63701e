# %% [markdown]
# # 11 One Part at a Time
#
# The next chapters exchange parts of the Transformer for those of today and say which of them help. This chapter tells how the comparison was made, reads its record, and asks what
# three seeds can show at all.

# %%
#| default_exp modern.comparison

# %%
import math
import statistics

import altair as alt
import numpy as np

import transformer
from transformer import modern

transformer.check_version("0.1")

# %% [markdown]
# > To evaluate the importance of different components of the Transformer, we varied our base model in different ways, measuring the change in performance on English-to-German translation on the development set, newstest2013.
# >
# > — Section 6.2
#
# The paper varies its own model and trains each variant once. We do the same with parts that it did not have, smaller, and three times.
#
# **What was trained.** One small model, with each part exchanged in turn: two layers, $d_{\text{model}} = 64$, eight heads, $d_{ff} = 256$, on short sentences of the [embedded corpus](A1_the_embedded_corpus.py), with the paper's optimizer and loss. All
# runs make equally many updates on equal batches. At each seed a row differs from base by what its name says; *all* is pre-norm and the four parts together. No part has a learning rate of its own: but for the two rows without warm-up, all share base's schedule.
#
# **What was measured.** After every few updates the loss on unseen sentences, without smoothing; at the end, perplexity, BLEU and exact match of a beam of four on other unseen sentences. Training stops early, while base is still getting better, so that a row has room to be better and to be worse. So
# these runs measure how fast a small model learns, and not how good a large one becomes.
#
# ## Differences by seed
#
# A seed sets weights, batches and dropout for all rows alike. Some seeds are kinder than others, to most rows. So rows are compared seed by seed: the three differences, their mean $\bar d$, their deviation $s$, and the interval that covers the true mean in 95 of 100 such experiments if the differences are normal,
#
# $$\bar d \pm t\, \frac{s}{\sqrt 3}, \qquad t = \frac{0.95\,\sqrt 2}{\sqrt{1 - 0.95^2}} = 4.303$$
#
# Student's $t$ for three values has that closed form, since its distribution function for two degrees of freedom is $\frac{1}{2} + \frac{t}{2\sqrt{2 + t^2}}$. Where the interval contains 0 we say **no difference seen**.

# %%
#| export
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import transformer

# %%
#| export
class Difference(NamedTuple):
    """How a row differs from another, seed by seed.

    Args:
        values: One difference a seed.
        lower_is_better: Whether a negative difference is a gain.

    Source: Student 1908; not in the paper, which trains every row once.
    """

    values: list[float]
    lower_is_better: bool = True

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.mean(self.values)

    @property
    def half(self) -> float:
        """Half of the 95 % interval, by Student's t for three values."""
        if len(self.values) != 3:
            raise ValueError(f"there are {len(self.values)} differences; the interval is that of three seeds.")
        t = 0.95 * math.sqrt(2 / (1 - 0.95**2))
        return t * statistics.stdev(self.values) / math.sqrt(3)

    @property
    def verdict(self) -> str:
        """No difference seen, where the interval contains 0; better or worse, where it does not."""
        if abs(self.mean) <= self.half:
            return "no difference seen"
        return "better" if (self.mean < 0) == self.lower_is_better else "worse"

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half:.2f}, {self.verdict}"

# %%
#| export
@dataclass(frozen=True)
class Comparison:
    """Recorded runs of one model with one part exchanged at a time, three seeds a row.

    Args:
        made: When and with which command they were recorded, in one line.
        runs: (row, seed) → what was measured: "losses" on unseen sentences every "every" updates, "perplexity",
            "bleu", "exact_match" (percent) and "parameters".

    Source: the experiment is this book's; varying one part is §6.2.
    """

    made: str
    runs: dict[tuple[str, int], dict[str, Any]]

    @property
    def rows(self) -> list[str]:
        """Rows with all three seeds, in the record's order."""
        return [row for row in dict.fromkeys(row for row, _ in self.runs) if len(self.of(row)) == 3]

    def of(self, row: str) -> list[dict[str, Any]]:
        """What the runs of a row measured, by seed."""
        return [self.runs[name, seed] for name, seed in sorted(self.runs) if name == row]

    def values(self, row: str, measure: str = "loss") -> list[float]:
        """A measure of a row, by seed.

        Args:
            row: One of `rows`.
            measure: "loss" for the last of the losses, or a key of the runs.

        Raises:
            ValueError: Not all seeds of the row are recorded.
        """
        if row not in self.rows:
            raise ValueError(f"the record has no complete row {row!r}; it has {', '.join(self.rows)}.")
        return [run["losses"][-1] if measure == "loss" else run[measure] for run in self.of(row)]

    def against(self, row: str, other: str = "base", measure: str = "loss") -> Difference:
        """How a row differs from another: row minus other, seed by seed.

        Args:
            row: One of `rows`.
            other: Another.
            measure: As in `values`.

        Raises:
            ValueError: As in `values`.
        """
        pairs = zip(self.values(row, measure), self.values(other, measure), strict=True)
        return Difference([mine - others for mine, others in pairs], measure in ("loss", "perplexity"))

    def table(self, row: str) -> str:
        """Perplexity, BLEU and exact match of base and of a row, means over the seeds, and how they differ.

        Args:
            row: One of `rows`.
        """
        lines = [f"{'mean of three seeds':22}{'base':>7}{row:>15}   difference, half of its 95 % interval"]
        for measure, name in {"perplexity": "perplexity", "bleu": "BLEU", "exact_match": "exact sentences (%)"}.items():
            before, after = (statistics.mean(self.values(which, measure)) for which in ("base", row))
            lines.append(f"{name:22}{before:7.2f}{after:15.2f}   {self.against(row, measure=measure)}")
        return "\n".join(lines)

    def points(self, *rows: str) -> list[dict[str, Any]]:
        """The loss on unseen sentences along the training of these rows, one dictionary a point, for a chart."""
        return [
            {"row": row, "seed": seed, "update": i * run["every"], "loss": loss}
            for (row, seed), run in self.runs.items()
            if row in rows
            for i, loss in enumerate(run["losses"])
        ]

    def chart(self, *rows: str, title: str) -> Any:
        """An Altair chart of these losses, one line a seed, at most four rows.

        Args:
            *rows: The rows, each with a colour and a dash of its own.
            title: What the chart shows.
        """
        import altair as alt

        names = list(rows)
        colour = alt.Scale(domain=names, range=["#D55E00", "#0072B2", "#E69F00", "#56B4E9"][: len(names)])
        dash = alt.Scale(domain=names, range=[[1, 0], [5, 3], [8, 2], [2, 3]][: len(names)])
        legend = alt.Legend(orient="top", columns=2, symbolType="stroke", symbolSize=300, labelLimit=200)
        return (
            alt.Chart(alt.Data(values=self.points(*rows)))
            .mark_line()
            .encode(
                x=alt.X("update:Q", axis=alt.Axis(grid=False)),
                y=alt.Y("loss:Q", title="loss on unseen sentences, nats per token"),
                detail="seed:N",
                color=alt.Color("row:N", title=None, scale=colour, legend=legend),
                strokeDash=alt.StrokeDash("row:N", title=None, scale=dash),
                tooltip=["row:N", "seed:N", "update:Q", alt.Tooltip("loss:Q", format=".2f")],
            )
            .properties(width=400, height=200, title=title)
        )

# %%
#| export
def read_comparison() -> Comparison | None:
    """Read the recorded runs, from the copy of the book that the working folder or the package lies in.

    Returns:
        The comparison; where the record is not at hand, as in Colab, None, and a printed line says so.

    Source: `book/experiments/modern.py` made the record.
    """
    places = [*(Path.cwd() / "x").parents, *Path(transformer.__file__).resolve().parents]
    file = next((path for place in places if (path := place / "book/results/modern.json").is_file()), None)
    if file is None:
        print("The record is book/results/modern.json in the book's repository. Without it there is nothing to show.")
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    runs = {(run["arguments"]["row"], run["arguments"]["seed"]): run["result"] for run in record["runs"].values()}
    steps = next(iter(record["runs"].values()))["arguments"]["steps"]
    by = f"`{record['command']}`, torch {record['machine']['torch']}"
    return Comparison(f"recorded {record['date']} with {by}: {steps} updates a run", runs)

# %% [markdown]
# ## See it
#
# Three differences, by hand. Their mean is $-1$ and their deviation $1$, so half of the interval is $4.303 / \sqrt 3 = 2.48$. With a tenth of the deviation the same mean can be told from 0.

# %%
wide, narrow = Difference([-2.0, -1.0, 0.0]), Difference([-1.1, -1.0, -0.9])
print(f"{wide.values}: {wide}")
print(f"{narrow.values}: {narrow}")
assert abs(wide.half - 4.303 / math.sqrt(3)) < 1e-3 and wide.verdict == "no difference seen"
assert narrow.verdict == "better" and Difference(narrow.values, lower_is_better=False).verdict == "worse"

# %% [markdown]
# And the record. One row a part; each loss is the mean of three, at the end of the training.

# %%
comparison = read_comparison()
if comparison:
    print(f"{comparison.made}\n\n{'':26}{'parameters':>10}{'loss':>7}   {'loss against base':38}{'BLEU':>5}{'exact':>8}")
    for row in comparison.rows:
        loss, bleu, exact = (statistics.mean(comparison.values(row, key)) for key in ("loss", "bleu", "exact_match"))
        seen = "" if row == "base" else comparison.against(row)
        print(f"{row:26}{comparison.of(row)[0]['parameters']:10,}{loss:7.2f}   {seen!s:38}{bleu:5.1f}{exact:6.1f} %")
    assert all(run["losses"][-1] < run["losses"][-2] for run in comparison.of("base"))  # still getting better

# %% [markdown]
# What the rows mean is the matter of the next chapters. There are eight intervals in this table, and of 95 % intervals one in twenty misses: one that barely leaves 0 out would not convince.
#
# ## Check it: what three seeds can show
#
# We draw the differences ourselves, so the truth is known. First there is none: the interval must leave 0 out in one experiment of twenty. The usual $\pm 2 s / \sqrt n$, right for many runs, would see a difference that is not there in almost one of five.

# %%
def shares_seen(effect: float, n: int, factor: float, experiments: int = 20_000) -> float:
    """How often an effect, in deviations of one difference, is told from 0 by mean ± factor · s / √n."""
    drawn = effect + np.random.default_rng(n).standard_normal((experiments, n))
    return float((np.abs(drawn.mean(1)) > factor * drawn.std(1, ddof=1) / math.sqrt(n)).mean())


T = {3: 4.303, 5: 2.776, 10: 2.262}  # Student's t at 97.5 %, for n − 1 degrees of freedom
for n, t in T.items():
    print(f"{n:2} seeds, no effect: seen in {shares_seen(0, n, t):.0%} by Student's t, in {shares_seen(0, n, 2):.0%} by two standard errors")
    assert abs(shares_seen(0, n, t) - 0.05) < 0.01
assert 0.15 < shares_seen(0, 3, 2) < 0.21

# %% tags=["hide-input"]
effects = [i / 4 for i in range(25)]
values = [{"effect": effect, "seen": round(shares_seen(effect, n, t), 3), "seeds": f"{n} seeds"} for n, t in T.items() for effect in effects]
names = [f"{n} seeds" for n in T]
half_seen = {n: next(effect for effect in effects if shares_seen(effect, n, t) > 0.5) for n, t in T.items()}
assert half_seen[3] > 2 * half_seen[10]
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_line()
    .encode(
        x=alt.X("effect:Q", title="true difference, in deviations of one difference"),
        y=alt.Y("seen:Q", title="experiments that see it", axis=alt.Axis(format="%")),
        color=alt.Color("seeds:N", title=None, scale=alt.Scale(domain=names, range=["#D55E00", "#0072B2", "#009E73"]), legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300)),
        strokeDash=alt.StrokeDash("seeds:N", title=None, scale=alt.Scale(domain=names, range=[[1, 0], [5, 3], [2, 3]])),
        tooltip=["seeds:N", "effect:Q", alt.Tooltip("seen:Q", format=".0%")],
    )
    .properties(width=400, height=200, title="Three seeds see large differences only")
)
chart

# %% [markdown]
# Follow the solid line: with three seeds a difference must be several times the deviation before an experiment is likely to see it. "No difference seen" is therefore not "no difference".
#
# ## Unsaid by the paper
#
# - **One run a row.** Table 3 has no intervals. [Section 6.2](06_2_model_variations.py) asks how much of it could be chance.
# - **Whose settings?** All parts here are trained at the learning rates that suit base, or suit none. A part that needs another one is judged unfairly.
# - **What small models cannot say.** What a part is worth in a model a thousand times as large, trained ten thousand times as long. They can say whether a part does what its authors claim, and what it costs.
#
# ## What we now know
#
# - Rows are compared seed by seed, and a difference counts where Student's interval leaves 0 out.
# - With no effect that happens in 5 % of experiments; two standard errors of three runs would say so in nearly a fifth.
# - Three seeds see large differences only.
#
# ## Exercises
#
# 1. **Predict, then run.** Three differences are 0.9, 1.0 and 1.1. By what must they be divided before the interval contains 0?
# 2. **Minutes.** For two seeds Student's factor is 12.7. How large must the mean of two differences be, in their deviation, to be seen?
# 3. **An hour.** Compare the rows without pairing: intervals of both rows' own means that do not overlap. Which verdicts change?

# %% [markdown]
# Solution to exercise 1: no factor does it. Mean and deviation shrink together, so the verdict does not depend on the unit.

# %% tags=["hide-cell"]
assert all(Difference([d / factor for d in (0.9, 1.0, 1.1)]).verdict == "worse" for factor in (1, 10, 1000))
print("the verdict is the same in every unit")

# %% [markdown]
# ## The notebook and the module agree

# %%
ours, theirs = wide, modern.Difference([-2.0, -1.0, 0.0])
assert (ours.mean, ours.half, ours.verdict) == (theirs.mean, theirs.half, theirs.verdict)
assert comparison is None or modern.read_comparison().runs == comparison.runs
print("the same interval and the same record from both")
