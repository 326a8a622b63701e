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
import yaml

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


