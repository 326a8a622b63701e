"""The recorded runs: every file in book/results says what made it, and the recorder keeps what is finished."""

import importlib.util
import json
import re
import sys
import warnings

import pytest
from conftest import ROOT

FIELDS = {"command", "commit", "date", "machine", "seeds", "code", "runs"}
RESULTS = sorted((ROOT / "book" / "results").glob("*.json"))


@pytest.fixture(scope="module")
def recording():
    spec = importlib.util.spec_from_file_location("recording", ROOT / "book" / "experiments" / "recording.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_record_says_what_made_it(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    assert set(record) >= FIELDS
    assert record["command"].startswith("python ")
    assert (ROOT / record["command"].split()[1]).is_file(), "the command names a file that is not there"
    assert re.fullmatch(r"[0-9a-f]{40}( \+ changes)?", record["commit"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", record["date"])
    assert record["machine"]["cpu"] and record["machine"]["cores"] >= 1 and record["machine"]["torch"]
    assert record["seeds"] and record["runs"]
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in record["code"].values())
    for run in record["runs"].values():
        assert run["arguments"]["seed"] in record["seeds"] and run["result"] and run["cpu_seconds"] > 0


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_code_of_a_record_has_not_moved_on(path, recording):
    record = json.loads(path.read_text(encoding="utf-8"))
    moved = [
        name
        for name, value in record["code"].items()
        if not name.endswith("__init__.py")  # lists what other modules have, and computes nothing
        if not (ROOT / name).is_file() or recording.code_hash(ROOT / name) != value
    ]
    if moved:
        warnings.warn(f"{', '.join(moved)} changed since {path.name}; run `{record['command']}` again", stacklevel=1)


@pytest.fixture
def experiment(recording, tmp_path, monkeypatch):
    """Record runs of a small experiment; each run notes its seed."""
    folder = tmp_path / "book" / "experiments"
    folder.mkdir(parents=True)
    (folder / "some.py").write_text('"""An experiment."""\nx = 1\n')
    monkeypatch.setattr(recording, "code_used", lambda path: {"some.py": recording.code_hash(path)})
    monkeypatch.setattr(recording, "commit", lambda paths: "0" * 40)
    monkeypatch.setattr(recording, "ROOT", tmp_path)
    made = []

    def run(seed):
        if seed < 0:
            raise RuntimeError("broken off")
        made.append(seed)
        return {"loss": seed / 2}

    def record(*seeds, limit=None):
        monkeypatch.setattr(sys, "argv", ["some.py", *(["--limit", str(limit)] if limit is not None else [])])
        made.clear()
        recording.record(str(folder / "some.py"), {f"seed {seed}": {"seed": seed} for seed in seeds}, run)
        return list(made)

    record.source = folder / "some.py"
    record.path = tmp_path / "book" / "results" / "some.json"
    record.made = made
    return record


def test_finished_runs_are_kept_and_only_missing_ones_made(experiment):
    with pytest.raises(RuntimeError, match="broken off"):
        experiment(1, 2, -1, 3)
    assert list(json.loads(experiment.path.read_text())["runs"]) == ["seed 1", "seed 2"]
    assert experiment(1, 2, 3, 4, limit=1) == [3]
    assert experiment(1, 2, 3, 4) == [4]
    assert experiment(1, 2, 3, 4) == []
    record = json.loads(experiment.path.read_text())
    assert record["seeds"] == [1, 2, 3, 4] and record["command"] == "python book/experiments/some.py"
    assert record["runs"]["seed 3"]["result"] == {"loss": 1.5}
    assert not list(experiment.path.parent.glob(".*")), "a temporary file was left"


def test_other_code_or_other_arguments_make_the_runs_anew(experiment):
    assert experiment(1, 2) == [1, 2]
    experiment.source.write_text('"""Another docstring."""\n\n# a comment\nx = 1\n')
    assert experiment(1, 2) == []
    experiment.source.write_text('"""Another docstring."""\nx = 2\n')
    assert experiment(1, 2) == [1, 2]


def test_code_hash_sees_code_and_not_words(recording, tmp_path):
    path = tmp_path / "a.py"

    def digest(text):
        path.write_text(text)
        return recording.code_hash(path)

    plain = digest("def f(x):\n    return x\n")
    assert digest('"""Module."""\n\n\n# words\ndef f(x):\n    """Say what."""\n\n    # why\n    return x\n') == plain
    assert digest("def f(x):\n    return x + 1\n") != plain
    assert digest('def f(x):\n    s = """a string"""\n    return x\n') != plain
