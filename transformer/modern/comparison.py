# Exported from notebooks/11_0_one_part_at_a_time.py, Section 11; edit that file, not this one.
# sha256 of what follows: 476e1524f70ef783
"""One Part at a Time (Section 11)."""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import transformer

__all__ = ["Difference", "Comparison", "read_comparison"]


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
