"""Comparing recorded runs: the interval by hand, the verdicts, and what an incomplete or missing record does."""

import json
import math
import random
import statistics

import pytest
from built import ROOT
from hypothesis import given
from hypothesis import strategies as st

from transformer.modern.comparison import Comparison, Difference, read_comparison

small = st.floats(-100, 100).map(lambda x: round(x, 3))


def run(*losses: float, bleu: float = 0.0) -> dict:
    measured = {"perplexity": math.exp(losses[-1]), "bleu": bleu, "exact_match": bleu / 2, "parameters": 7}
    return {"losses": list(losses), "every": 30, **measured}


RUNS = {
    **{("base", seed): run(9.0, 3.0 + seed / 10, bleu=20 + seed) for seed in (3, 1, 2)},
    **{("part", seed): run(9.0, 2.0 + seed / 10, bleu=30 + seed) for seed in (1, 2, 3)},
    **{("half done", seed): run(9.0, 8.0) for seed in (1, 2)},
}


def test_the_interval_by_hand() -> None:
    difference = Difference([-2.0, -1.0, 0.0])
    # The 97.5 % point of Student's distribution for two degrees of freedom, from a table: 4.30265.
    assert difference.mean == -1 and difference.half == pytest.approx(4.30265 / math.sqrt(3), abs=1e-5)
    assert str(difference) == "-1.00 ± 2.48, no difference seen"


def test_the_interval_covers_the_truth_in_95_of_100() -> None:
    draw = random.Random(0)
    covers = [
        abs(difference.mean - 3) <= difference.half
        for difference in (Difference([draw.gauss(3, 2) for _ in range(3)]) for _ in range(4000))
    ]
    assert statistics.mean(covers) == pytest.approx(0.95, abs=0.012)


@given(st.lists(small, min_size=3, max_size=3))
def test_verdicts(values: list[float]) -> None:
    difference, other_way = Difference(values), Difference(values, lower_is_better=False)
    inside = difference.mean - difference.half <= 0 <= difference.mean + difference.half
    assert (difference.verdict == "no difference seen") is inside
    if not inside:
        assert {difference.verdict, other_way.verdict} == {"better", "worse"}
        assert difference.verdict == ("better" if difference.mean < 0 else "worse")


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
def test_other_numbers_of_seeds_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=f"there are {len(values)} differences"):
        _ = Difference(values).half


def test_rows_are_compared_seed_by_seed() -> None:
    comparison = Comparison("made", RUNS)
    assert comparison.rows == ["base", "part"], "a row without all its seeds is not compared"
    assert comparison.values("base") == [3.1, 3.2, 3.3] and comparison.values("part", "bleu") == [31, 32, 33]
    loss, bleu = comparison.against("part"), comparison.against("part", measure="bleu")
    assert loss.values == pytest.approx([-1, -1, -1]) and loss.verdict == "better"
    assert bleu.values == [10, 10, 10] and bleu.verdict == "better", "of BLEU more is better"
    assert comparison.against("base", "part").verdict == "worse"
    with pytest.raises(ValueError, match="no complete row 'half done'; it has base, part"):
        comparison.values("half done")


def test_the_table_has_means_over_the_seeds() -> None:
    head, *lines = Comparison("made", RUNS).table("part").splitlines()
    assert head.split()[:6] == ["mean", "of", "three", "seeds", "base", "part"]
    assert [line.split()[0] for line in lines] == ["perplexity", "BLEU", "exact"]
    assert lines[1].split()[1:3] == ["22.00", "32.00"]
    assert lines[1].endswith(str(Comparison("made", RUNS).against("part", measure="bleu")))


def test_charts_show_every_update_of_the_rows_asked_for() -> None:
    pytest.importorskip("altair")
    comparison = Comparison("made", RUNS)
    points = comparison.points("base", "part")
    assert len(points) == 12 and {point["update"] for point in points} == {0, 30}
    chart = comparison.chart("base", "part", title="A title").to_dict()
    assert chart["data"]["values"] == points and chart["title"] == "A title"
    assert (
        chart["encoding"]["color"]["scale"]["domain"]
        == chart["encoding"]["strokeDash"]["scale"]["domain"]
        == ["base", "part"]
    )


def test_the_record_is_found_above_the_working_folder(tmp_path, monkeypatch) -> None:
    arguments = {"row": "base", "seed": 1, "steps": 5}
    record = {
        "date": "2026-11-30",
        "command": "python here.py",
        "machine": {"torch": "2.13"},
        "runs": {"base, seed 1": {"arguments": arguments, "result": run(1.0)}},
    }
    path = tmp_path / "book" / "results" / "modern.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    found = read_comparison()
    assert found is not None and found.runs == {("base", 1): run(1.0)}
    assert found.made == "recorded 2026-11-30 with `python here.py`, torch 2.13: 5 updates a run"


def test_without_a_record_a_line_says_so(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformer.__file__", str(tmp_path / "transformer" / "__init__.py"))
    assert read_comparison() is None
    assert "book/results/modern.json" in capsys.readouterr().out


def test_the_shipped_record_is_complete() -> None:
    record = json.loads((ROOT / "book" / "results" / "modern.json").read_text(encoding="utf-8"))
    comparison = read_comparison()
    assert comparison is not None and len(comparison.rows) * 3 == len(record["runs"]) == 27
