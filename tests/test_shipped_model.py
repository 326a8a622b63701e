"""The model in the package is the one that today's code and corpus make."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from transformer.checkpoints import load_checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book/experiments"))

import toy_translator  # noqa: E402


def test_model_is_as_new_as_the_code_that_makes_it():
    assert toy_translator.outdated() == [], "run python book/experiments/toy_translator.py, perhaps with --confirm"


def test_a_change_of_the_recipe_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toy_translator, "recipe", lambda: "another recipe")
    assert toy_translator.outdated() == ["recipe"]


def test_what_made_it_is_written_down():
    about = toy_translator.read_description(toy_translator.TARGET)["about"]
    assert {"command", "commit", "date", "machine", "seeds", "updates", "scores", "code"} <= set(about)
    assert about["scores"]["test"]["exact"] >= 0.95
    for made in (about, about.get("confirmed", about)):
        assert {"command", "commit", "date", "machine"} <= set(made)
        assert "+" not in made["commit"], "made from uncommitted code"


@pytest.mark.parametrize("moved", [0.0, 1e-7])
def test_the_model_stays_only_if_the_code_still_makes_it(tmp_path, monkeypatch, capsys, moved):
    """The weights are compared bit for bit, and only the record changes."""
    target = shutil.copytree(toy_translator.TARGET, tmp_path / "model")
    weights, before = load_checkpoint(target).state_dict(), (target / "config.json").read_text(encoding="utf-8")
    other = {name: value * (1 + moved) for name, value in weights.items()}
    asked = []
    monkeypatch.setattr(toy_translator, "TARGET", target)
    monkeypatch.setattr(toy_translator, "then_and_now", lambda commit: asked.append(commit) or (weights, other))
    monkeypatch.setattr(toy_translator, "code", lambda: {"room": "new"})
    monkeypatch.setattr(toy_translator, "commit", lambda paths: "0123")
    assert toy_translator.confirm() == (1 if moved else 0)
    about, now = json.loads(before)["about"], toy_translator.read_description(target)["about"]
    assert asked == [about["commit"]]
    if moved:
        assert (target / "config.json").read_text(encoding="utf-8") == before
        assert "makes other weights" in capsys.readouterr().out
    else:
        assert now.pop("confirmed")["command"].endswith("--confirm")
        assert now == {**{key: value for key, value in about.items() if key != "confirmed"}, "code": {"room": "new"}}
        assert all(value.equal(weights[name]) for name, value in load_checkpoint(target).state_dict().items())


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
