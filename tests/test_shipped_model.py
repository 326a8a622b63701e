"""The model in the package is the one that today's code and corpus make."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book/experiments"))

import toy_translator  # noqa: E402


def test_model_is_as_new_as_the_code_that_makes_it():
    assert toy_translator.outdated() == [], "run python book/experiments/toy_translator.py"


def test_a_change_of_the_recipe_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toy_translator, "recipe", lambda: "another recipe")
    assert toy_translator.outdated() == ["recipe"]


def test_what_made_it_is_written_down():
    about = toy_translator.read_description(toy_translator.TARGET)["about"]
    assert {"command", "commit", "date", "machine", "seeds", "updates", "scores", "code"} <= set(about)
    assert about["scores"]["test"]["exact"] >= 0.95
    assert "+" not in about["commit"], "made from uncommitted code"


def test_the_picture_is_of_this_model():
    from picture import PICTURE, SENTENCE, draw, signature

    drawn = PICTURE.read_text(encoding="utf-8")
    assert drawn.endswith(f"<!-- {signature()} -->\n"), "run python book/tools/picture.py"
    for word in SENTENCE.rstrip(".").split():
        assert f">{word}</text>" in drawn
    again = draw()
    assert again.count("<path") == drawn.count("<path")


def test_rounding_costs_less_than_half_a_point() -> None:
    """The package ships rounded weights only, so this was measured on a model that the same recipe made once more."""
    (run,) = json.loads((ROOT / "book/results/rounding.json").read_text(encoding="utf-8"))["runs"].values()
    before, after = run["result"]["float32"], run["result"]["float16"]
    assert set(before) == {"test", "compositional", "long"}
    for split, scores in before.items():
        assert abs(scores["exact"] - after[split]["exact"]) <= 0.005, split
