"""The rows of Table 3, at the paper's size and in miniature."""

import re
from typing import Any

import pytest
import torch
import yaml
from built import ROOT

from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.variations import Variation, table3

PRINTED = yaml.safe_load((ROOT / "book" / "paper" / "tables.yml").read_text(encoding="utf-8"))["table3"]["rows"]
FIELDS = {"N": "n_layers", "d_model": "d_model", "d_ff": "d_ff", "h": "n_heads", "P_drop": "dropout"}
PAPERS = table3(TransformerConfig.base())


def heads(config: TransformerConfig) -> tuple[int, int]:
    """d_k and d_v, also where the config leaves them to be derived."""
    width = config.d_model // config.n_heads
    return config.d_k or width, config.d_v or width


def values(variation: Variation) -> dict[str, Any]:
    """What the columns of Table 3 say about a row."""
    named = {column: getattr(variation.config, field) for column, field in FIELDS.items()}
    d_k, d_v = heads(variation.config)
    return {**named, "d_k": d_k, "d_v": d_v, "eps_ls": variation.label_smoothing}


def test_the_papers_rows_in_the_papers_order() -> None:
    assert [variation.group for variation in PAPERS] == [row["row"] for row in PRINTED]


@pytest.mark.parametrize(("variation", "row"), list(zip(PAPERS, PRINTED)), ids=lambda value: getattr(value, "name", ""))
def test_each_row_is_base_with_what_the_paper_prints(variation: Variation, row: dict[str, Any]) -> None:
    base = values(PAPERS[0])
    expected = {column: row.get(column, base[column]) for column in base}
    assert values(variation) == expected
    assert variation.config.positions == ("learned" if row["row"] == "E" else "sinusoidal")
    assert (variation.config.norm_order, variation.config.tie_embeddings) == ("post", True)


def test_rows_a_keep_the_parameters_and_rows_b_and_c_differ_as_printed() -> None:
    # The printed counts fit a table of 40,960 rows, big's excepted; see the page on the paper against itself.
    for variation, row in zip(table3(TransformerConfig.base(40_960)), PRINTED):
        if variation.group in ("base", "A", "B", "C"):
            expected = row.get("params_millions", 65)
            with torch.device("meta"):  # counted, not made
                model = Transformer(variation.config)
            assert count_parameters(model) / 1e6 == pytest.approx(expected, abs=0.6)


def test_ratios_hold_in_miniature() -> None:
    small = table3(TransformerConfig(50, 50, d_model=64, d_ff=256, n_heads=8, n_layers=3))
    for mine, papers in zip(small, PAPERS):
        assert (mine.group, mine.label_smoothing) == (papers.group, papers.label_smoothing)
        for field, ratio in (("d_model", 8), ("d_ff", 8), ("n_layers", 2), ("n_heads", 1), ("dropout", 1)):
            assert getattr(mine.config, field) * ratio == getattr(papers.config, field), (mine.name, field)
        assert tuple(8 * width for width in heads(mine.config)) == heads(papers.config), mine.name


def test_names_are_unique_and_say_the_change() -> None:
    names = [variation.name for variation in PAPERS]
    assert len(set(names)) == len(names) == 20
    assert "(A) h = 16" in names and "(B) d_k = 32" in names and "(D) ε_ls = 0.0" in names and "big" in names
    assert all(re.fullmatch(r"base|big|\([A-E]\) .+", name) for name in names)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_layers": 2}, "n_layers=2"),
        ({"n_heads": 4}, "n_heads=4"),
        ({"d_k": 64}, "d_k or d_v"),
        ({"d_v": 64}, "d_k or d_v"),
    ],
)
def test_a_base_that_cannot_be_varied_is_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table3(TransformerConfig.base(**changes))
