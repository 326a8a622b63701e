"""Appendices A3a and A4: from two files to a score, by the command line alone, and what a run's folder holds."""

import errno
import functools
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from transformer import (
    TrainingConfig,
    TransformerConfig,
    Translator,
    bleu,
    embedded_corpus,
    load_checkpoint,
    preparation,
)
from transformer.checkpoints import list_checkpoints, read_tensors
from transformer.cli import main
from transformer.data import EncodedPairs
from transformer.runs import CONFIGURATIONS, average_run, make_configuration, parts_of

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "steps": 12, "warmup_steps": 5, "max_tokens": 400}
SMALL |= {"checkpoint_every": 4, "average": 2, "evaluate_every": 6, "log_every": 6, "evaluate_bleu": 3, "dropout": 0.1}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two files of text for each split."""
    folder = tmp_path_factory.mktemp("texts")
    for split, n in (("train", 400), ("dev", 12), ("test", 12)):
        pairs = list(itertools.islice(embedded_corpus(split), n))
        (folder / f"{split}.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
        (folder / f"{split}.de").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
    (folder / "small.json").write_text(json.dumps(SMALL))
    return folder


def prepare_words(texts, out, *more):
    files = [[f"--{split}", texts / f"{split}.en", texts / f"{split}.de"] for split in ("train", "dev", "test")]
    return ["prepare", *itertools.chain(*files), "--out", out, "--vocab-size", 400, *more]


def call(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def data(texts):
    assert call(*prepare_words(texts, texts / "data")) == 0
    return texts / "data"


def train_words(data, run, *more):
    config = data.parent / "small.json"
    return ["train", "--data", data, "--run", run, "--config", config, "--device", "cpu", *more]


@pytest.fixture(scope="module")
def run(data):
    """A run that has ended."""
    assert call(*train_words(data, data.parent / "run")) == 0
    return data.parent / "run"


def weights(run):
    return read_tensors(run / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- the configuration ----


def test_the_defaults_are_the_papers():
    base, big = make_configuration("base"), make_configuration("big")
    assert make_configuration() == base
    for whole, steps, dropout, average, width in ((base, 100_000, 0.1, 5, 512), (big, 300_000, 0.3, 20, 1024)):
        assert (whole["steps"], whole["dropout"], whole["average"], whole["d_model"]) == (
            steps,
            dropout,
            average,
            width,
        )
        assert (whole["warmup_steps"], whole["label_smoothing"], whole["max_tokens"]) == (4000, 0.1, 25_000)
        assert (whole["checkpoint_minutes"], whole["clip_norm"]) == (0.0, None)
        seconds = 0.4 if whole is base else 1.0  # an update of the paper's, §5.2
        assert whole["checkpoint_every"] == 10 * 60 / seconds, "ten of the paper's minutes, §6.1"
        assert whole["keep"] >= whole["average"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_shown_configuration_is_read_again(name, tmp_path, capsys):
    assert call("train", "--config", name, "--show", "--steps", "77", "--compile", "--dropout", "0.25") == 0
    (tmp_path / "my.json").write_text(capsys.readouterr().out)
    wanted = make_configuration(name, steps=77, compile=True, dropout=0.25)
    assert json.loads((tmp_path / "my.json").read_text()) == wanted == make_configuration(tmp_path / "my.json")
    model, training = parts_of(wanted, 123, "cpu")
    assert model == TransformerConfig.preset(name, vocab_size=123, dropout=0.25)
    assert isinstance(training, TrainingConfig) and training.steps == 77 and training.device == "cpu"


def test_clock_or_count():
    assert make_configuration(checkpoint_every=7)["checkpoint_minutes"] == 0
    assert make_configuration("tiny", checkpoint_minutes=2)["checkpoint_every"] == 0
    both = make_configuration(checkpoint_every=7, checkpoint_minutes=2)
    assert (both["checkpoint_every"], both["checkpoint_minutes"]) == (7, 2)
    assert make_configuration(average=9)["keep"] == 9 and make_configuration(keep=30)["keep"] == 30


# ---- from text to a score ----


def test_what_a_run_holds(run, data):
    assert sorted(path.name for path in run.iterdir()) == [
        *("checkpoints", "config.json", "log.jsonl", "model.safetensors", "run.json", "tokenizer.model")
    ]
    assert [path.name for path in list_checkpoints(run)] == ["step-00000004", "step-00000008", "step-00000012"]
    about = json.loads((run / "run.json").read_text())
    assert (
        about["configuration"] == make_configuration(data.parent / "small.json") == make_configuration(run / "run.json")
    )
    assert about["data"]["folder"] == str(data) and about["data"]["splits"]["train"]["pairs"] == 400
    (start,) = about["starts"]
    assert start["command"][:2] == ["transformer", "train"] and start["processes"] == 1
    assert {"transformer", "python", "torch", "numpy", "sentencepiece"} <= set(start["versions"])
    result = about["result"]
    assert result["averaged"] == ["step-00000008", "step-00000012"]
    assert result["ledger"]["updates"] == 12 and result["ledger"]["flops"] > 0 and result["peak_memory_bytes"] > 2**20
    assert math.isfinite(result["scores"]["dev_perplexity"]) and 0 <= result["scores"]["dev_bleu"] <= 100
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [6, 12]
    assert sum(line["target_tokens"] for line in lines) == result["ledger"]["target_tokens"]
    one, two, mean = (read_tensors(path / "model.safetensors") for path in (*list_checkpoints(run)[1:], run))
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2, atol=1e-7) for name in mean)


def test_what_is_printed(data, tmp_path, capfd):
    assert call(*prepare_words(data.parent, tmp_path / "data")) == 0
    out, err = capfd.readouterr()
    assert "400 pairs" in out and "dropped from train: nothing" in out and not err
    assert call(*train_words(data, tmp_path / "run")) == 0
    out, err = capfd.readouterr()
    assert "12 updates" in out and "FLOP/s" in out and "of the measured peak" in out and "GiB" in out
    assert "mean of 2 checkpoints, dev_perplexity" in out and not err


def test_averaging_again(run, tmp_path, capsys):
    before = weights(run)
    assert call("average", "--run", run, "--last", "1", "--out", tmp_path / "one") == 0
    assert "mean of step-00000012" in capsys.readouterr().out
    assert same(weights(tmp_path / "one"), read_tensors(list_checkpoints(run)[-1] / "model.safetensors"))
    assert call("average", "--run", run) == 0 and same(weights(run), before)
    assert Translator.from_pretrained(tmp_path / "one", "cpu").tokenizer.model


@pytest.mark.parametrize("last", [0, -1, 4])
def test_a_mean_of_checkpoints_that_are_not_there(run, last):
    with pytest.raises(ValueError, match=f"has 3 checkpoints; {last} cannot be averaged"):
        average_run(run, last)


def test_evaluating(run, data, tmp_path, capsys):
    search = ["--model", run, "--device", "cpu"]
    assert call("evaluate", *search, "--data", data, "--json", "--save", tmp_path / "out.txt", "--paper") == 0
    result = json.loads(capsys.readouterr().out)
    sources, references = (
        (data.parent / name).read_text(encoding="utf-8").splitlines() for name in ("test.en", "test.de")
    )
    outputs = Translator.from_pretrained(run, "cpu").translate(sources)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")[:-1] == outputs
    expected = bleu(hypotheses=outputs, references=references)
    assert result["scores"]["BLEU"] == {"value": pytest.approx(expected.value), "signature": expected.signature}
    assert set(result["scores"]) == {"BLEU", "chrF", "BLEU as the authors"}
    assert (result["lines"], result["beam_size"], result["alpha"]) == (12, 4, 0.6)
    files = ["--source", data.parent / "test.en", "--reference", data.parent / "test.de", "--beam-size", "1"]
    assert call("evaluate", *search, *files, "--limit", "5") == 0
    out = capsys.readouterr().out
    assert out.startswith("BLEU ") and "tok:13a" in out and "\nchrF " in out and "5 lines, " in out and "beam 1" in out
    assert call("evaluate", *search, "--data", data, "--split", "dev", "--limit", "2", "--beam-size", "1") == 0


def test_a_perfect_translation_scores_100(data, capsys):
    """The shipped model, on sentences that it knows."""
    files = ["--source", data.parent / "test.en", "--reference", data.parent / "test.de"]
    assert call("evaluate", *files, "--device", "cpu", "--json") == 0
    assert json.loads(capsys.readouterr().out)["scores"]["BLEU"]["value"] > 95


def test_a_run_can_be_moved(run, data, tmp_path, capfd):
    lines = (data.parent / "test.en").read_text(encoding="utf-8").splitlines()
    expected = Translator.from_pretrained(run, "cpu").translate(lines)
    shutil.copytree(run, tmp_path / "moved")
    assert Translator.from_pretrained(tmp_path / "moved", "cpu").translate(lines) == expected
    assert call("average", "--run", tmp_path / "moved") == 0
    # And it goes on elsewhere, with the data elsewhere, too.
    about = json.loads((tmp_path / "moved/run.json").read_text())
    about["data"]["folder"] = str(tmp_path / "gone")
    (tmp_path / "moved/run.json").write_text(json.dumps(about))
    more = ["train", "--run", tmp_path / "moved", "--resume", "--steps", "14", "--device", "cpu"]
    assert call(*more) == 1
    assert "gone holds no prepared corpus" in capfd.readouterr().err
    shutil.copytree(data, tmp_path / "data")
    assert call(*more, "--data", tmp_path / "data") == 0
    about = json.loads((tmp_path / "moved/run.json").read_text())
    assert about["data"]["folder"] == str(tmp_path / "data") and len(about["starts"]) == 2
    assert about["configuration"]["steps"] == about["result"]["ledger"]["updates"] == 14


# ---- stopped, killed, resumed ----


def begin(words, until):
    """Start a training in another process, and come back when its folder has what is asked for."""
    process = subprocess.Popen(
        [sys.executable, "-m", "transformer", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},  # bit for bit only with as many threads
    )
    deadline = time.monotonic() + 120
    while not until() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_and_resumed(data, tmp_path, number):
    run, whole = tmp_path / "run", tmp_path / "whole"
    process = begin(train_words(data, run, "--steps", "1000000"), lambda: len(list_checkpoints(run)) > 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        message = err.decode().splitlines()[-1]
        assert message.startswith("transformer train: stopped after update ") and message.endswith("with --resume")
    assert not (run / "model.safetensors").exists()
    assert "result" not in json.loads((run / "run.json").read_text())
    # The whole of it, from what is there, equals a run that was never stopped.
    last = int(list_checkpoints(run)[-1].name[5:]) + 6
    assert call("train", "--run", run, "--resume", "--steps", last, "--device", "cpu") == 0
    assert call(*train_words(data, whole, "--steps", last)) == 0
    newest = [load_checkpoint(list_checkpoints(path)[-1]).state_dict() for path in (run, whole)]
    assert same(*newest)
    starts = json.loads((run / "run.json").read_text())["starts"]
    assert len(starts) == 2 and "--resume" in starts[1]["command"]


def test_a_full_disk(data, tmp_path, monkeypatch, capfd):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert call(*train_words(data, tmp_path / "run")) == 1
    err = capfd.readouterr().err
    assert "No space left on device" in err and "Traceback" not in err and len(err.splitlines()) == 1
    assert call(*train_words(data, tmp_path / "run", "--resume")) == 0


def test_a_score_that_fails_at_the_end_costs_no_model(data, tmp_path, monkeypatch, run, capfd):
    def broken(*_):
        raise ValueError("no score today")

    with monkeypatch.context() as patch:
        patch.setattr("transformer.runs.perplexity", broken)
        assert call(*train_words(data, tmp_path / "run")) == 1
    assert "no score today" in capfd.readouterr().err
    assert same(weights(tmp_path / "run"), weights(run))


def test_resuming_what_has_ended_changes_nothing(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    assert call("train", "--run", tmp_path / "run", "--resume", "--device", "cpu") == 0
    assert same(weights(tmp_path / "run"), weights(run))


def test_resume_begins_where_nothing_is(data, tmp_path, run):
    assert call(*train_words(data, tmp_path / "run", "--resume")) == 0
    assert same(weights(tmp_path / "run"), weights(run))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seed", "3"], "has seed=0, not 3; resume it with that, or begin another"),
        (["--max-tokens", "500"], "has max_tokens=400, not 500"),
        (["--warmup-steps", "6"], "has warmup_steps=5, not 6"),
        (["--dropout", "0"], "has dropout=0.1, not 0.0"),
        (["--config", "base"], "has d_model=16, not 512"),
        (["--config", "longer.json"], "has steps=12, not 20; resume it with that, or give it as an option of its own"),
        (["--label-smoothing", "0"], "has label_smoothing=0.1, not 0.0"),
        (["--steps", "8"], "has step-00000012 behind it; resume it with more steps than 8"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_another_run_is_not_resumed(run, capfd, more, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = (run / "run.json").read_bytes()
    longer = {**json.loads(before)["configuration"], "steps": 20}
    (tmp_path / "longer.json").write_text(json.dumps(longer), encoding="utf-8")
    assert call("train", "--run", run, "--resume", "--device", "cpu", *more) == 1
    assert said in capfd.readouterr().err
    assert (run / "run.json").read_bytes() == before


def test_other_data_is_not_resumed(run, texts, tmp_path, capfd):
    assert call(*prepare_words(texts, tmp_path / "other", "--max-words", "9")) == 0
    assert call("train", "--run", run, "--resume", "--data", tmp_path / "other", "--device", "cpu") == 1
    assert "is not the data the run began with: its" in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes(data, tmp_path, run):
    words = train_words(data, tmp_path / "run")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    done = subprocess.run(
        [*command, "transformer", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FLOP/s") == 1 and done.stdout.count("mean of 2 checkpoints") == 1
    about, alone = (json.loads((path / "run.json").read_text()) for path in (tmp_path / "run", run))
    assert about["starts"][0]["processes"] == 2
    for name in ("updates", "source_tokens", "target_tokens"):
        assert about["result"]["ledger"][name] == alone["result"]["ledger"][name]
    one, two = (path["result"]["scores"]["dev_perplexity"] for path in (about, alone))
    assert one == pytest.approx(two, rel=0.02), "dropout differs, and nothing else"


# ---- what cannot be done: one sentence, exit code 1 ----


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BAD_CONFIGURATIONS = [
    ("{", "is not JSON"),
    ("[1, 2]", "holds no JSON object"),
    ("3", "holds no JSON object"),
    ("[" * 100_000, "is not JSON"),
    (b"\xff\xfe", "is not JSON"),
    ('{"n_heds": 4}', "a configuration has no field 'n_heds'; it has d_model, "),
    ('{"src_vocab_size": 4}', "has no field 'src_vocab_size'"),
    ('{"device": "cpu"}', "has no field 'device'"),
    ('{"steps": "many"}', "steps is 'many', which is no int"),
    ('{"steps": 1.5}', "steps is '1.5', which is no int"),
    ('{"steps": true}', "steps is 'True', which is no int"),
    ('{"steps": null}', "steps is 'None', which is no int"),
    ('{"steps": 0}', "steps=0; it must be at least 1"),
    ('{"steps": NaN}', "steps is 'nan', which is no int"),
    ('{"dropout": NaN}', "dropout is 'nan', which is no float"),
    ('{"label_smoothing": Infinity}', "label_smoothing is 'inf', which is no float"),
    ('{"label_smoothing": 1.5}', "label_smoothing"),
    ('{"clip_norm": "1"}', "clip_norm is '1', which is no float | None"),
    ('{"clip_norm": -1}', "clip_norm=-1; it must be positive"),
    ('{"compile": 1}', "compile is '1', which is no bool"),
    ('{"precision": "double"}', "precision='double'; choose from"),
    ('{"dropout": 1.0}', "dropout is 1.0; it must be a number in"),
    ('{"n_heads": 7}', "d_model is 512; it must be divisible by n_heads=7"),
    ('{"max_tokens": 0}', "max_tokens is 0; it must be at least 1"),
    ('{"average": 0}', "average is 0; it must be at least 1"),
    ('{"seed": -1}', "seed is -1; it must be at least 0"),
    ('{"tie_embeddings": "yes"}', "tie_embeddings is 'yes', which is no bool"),
]


@pytest.mark.parametrize(("content", "said"), BAD_CONFIGURATIONS, ids=range(len(BAD_CONFIGURATIONS)))
def test_a_bad_configuration(tmp_path, data, capfd, content, said):
    path = write(tmp_path / "my.json", content)
    assert call("train", "--data", data, "--run", tmp_path / "run", "--config", path, "--device", "cpu") == 1
    err = capfd.readouterr().err
    assert err.startswith("transformer train: ") and said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists(), "nothing was begun"


def bad_words(name, texts, data, run, at):
    """Words that cannot be obeyed, and what is said of them."""
    write(at / "file", "x\n")
    (at / "full").mkdir()
    write(at / "full/something", "x")
    write(at / "short.de", "eins\nzwei\n")
    write(at / "latin.de", b"eins\nzw\xf6lf\ndrei\n")
    write(at / "three.en", "one\ntwelve\nthree\n")
    write(at / "empty", "")
    en, de = texts / "test.en", texts / "test.de"
    evaluate = ["evaluate", "--model", run, "--device", "cpu"]
    train = ["train", "--data", data, "--device", "cpu", "--config", texts / "small.json"]
    return {
        "missing file": (["prepare", "--train", at / "no.en", de, "--out", at / "o"], "no.en"),
        "unequal": (["prepare", "--train", at / "three.en", at / "short.de", "--out", at / "o"], "after 2 lines"),
        "latin": (["prepare", "--train", at / "three.en", at / "latin.de", "--out", at / "o"], "latin.de, line 2:"),
        "unknown corpus": (["prepare", "--corpus", "wmt99", "--out", at / "o"], "there is no corpus 'wmt99': choose"),
        "full folder": (prepare_words(texts, at / "full"), "give another folder or delete this one"),
        "below a file": (prepare_words(texts, at / "file/o"), "file"),
        "vocabulary": (["prepare", "--train", en, de, "--out", at / "o"], "cannot learn 8000 pieces"),
        "nothing left": (["prepare", "--train", at / "empty", at / "empty", "--out", at / "o"], "no training pair"),
        "ratio": (prepare_words(texts, at / "o", "--max-ratio", "nan"), "give limits of at least 1"),
        "no data": (["train", "--data", at / "no", "--run", at / "r"], "no holds no prepared corpus"),
        "run exists": (["train", "--data", data, "--run", run], "holds a run already; resume it"),
        "no run": ([*train, "--run", at / "full"], "exists and is no run"),
        "run is a file": ([*train, "--run", at / "file"], "exists and is no run"),
        "run in a file": ([*train, "--run", at / "file/r"], "file"),
        "nothing to resume": (["train", "--run", at / "r", "--resume"], "holds no run to resume; give data"),
        "unknown config": (["train", "--data", data, "--run", at / "r", "--config", "hug"], "hug is neither base, big"),
        "device": (["train", "--data", data, "--run", at / "r", "--device", "bogus"], "device 'bogus' is unknown"),
        "too small": ([*train, "--run", at / "r", "--max-tokens", "3"], "do not fit batches of 3 tokens"),
        "average nothing": (["average", "--run", at / "full"], "full has no checkpoints; give the folder of a"),
        "average too many": (["average", "--run", run, "--last", "9"], "has 3 checkpoints; 9 cannot be averaged"),
        "no model": (["evaluate", "--model", at / "full", "--data", data], "full has no tokenizer.model"),
        "no split": ([*evaluate, "--data", data, "--split", "train"], "has no text of 'train'"),
        "unequal test": ([*evaluate, "--source", at / "three.en", "--reference", at / "short.de"], "after 2 lines"),
        "no lines": ([*evaluate, "--source", at / "empty", "--reference", at / "empty"], "nothing to score"),
        "language": ([*evaluate, "--data", data, "--paper", "--language", "xx"], "Moses does not know"),
        "save": ([*evaluate, "--data", data, "--limit", "1", "--save", at / "file/x"], "file"),
        "alpha": ([*evaluate, "--data", data, "--alpha", "nan"], "alpha is nan"),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        *("missing file", "unequal", "latin", "unknown corpus", "full folder", "below a file", "vocabulary"),
        *("nothing left", "ratio", "no data", "run exists", "no run", "run is a file", "run in a file"),
        *("nothing to resume", "unknown config", "device", "too small", "average nothing", "average too many"),
        *("no model", "no split", "unequal test", "no lines", "language", "save", "alpha"),
    ],
)
def test_one_sentence(name, texts, data, run, tmp_path, capfd):
    capfd.readouterr()
    words, said = bad_words(name, texts, data, run, tmp_path)
    assert call(*words) == 1
    out, err = capfd.readouterr()
    last = err.splitlines()[-1]
    assert last.startswith(f"transformer {words[0]}: ") and said in last and "Errno" not in err
    assert len([line for line in err.splitlines() if not line.startswith("device ")]) == 1 and not out
    assert not (tmp_path / "o").exists() and not (tmp_path / "r").exists(), "nothing half-made is left"


@pytest.mark.parametrize(
    ("missing", "words"),
    [("sacrebleu.metrics.bleu", []), ("sacrebleu.metrics.chrf", []), ("sacremoses", ["--paper"])],
)
def test_a_missing_package(run, data, tmp_path, monkeypatch, capfd, missing, words):
    monkeypatch.setitem(sys.modules, missing, None)
    saved = tmp_path / "out"
    assert call("evaluate", "--model", run, "--data", data, "--device", "cpu", "--save", saved, *words) == 1
    err = capfd.readouterr().err
    assert "pip install sacrebleu sacremoses" in err and len(err.splitlines()) == 1
    assert not saved.exists(), "said before the work, not after it"


def test_missing_sacrebleu_does_not_wait_for_the_first_score(data, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    assert call(*train_words(data, tmp_path / "run")) == 1
    assert "pip install sacrebleu" in capfd.readouterr().err and not (tmp_path / "run").exists()


def test_a_damaged_description(run, tmp_path, capfd):
    shutil.copytree(run, tmp_path / "run")
    whole = json.loads((run / "run.json").read_text())
    for content in (
        "{",
        "[]",
        "{}",
        json.dumps({**whole, "starts": 3}),
        json.dumps({**whole, "configuration": {"x": 1}}),
    ):
        write(tmp_path / "run/run.json", content)
        assert call("train", "--run", tmp_path / "run", "--resume") == 1
        err = capfd.readouterr().err
        assert "run.json is damaged" in err and len(err.splitlines()) == 1


# ---- the embedded corpus ----


@pytest.mark.slow
def test_the_embedded_corpus(tmp_path, monkeypatch, capfd):
    few = functools.partial(preparation.embedded_files, n_pairs=4000)
    monkeypatch.setattr(preparation, "embedded_files", few)
    assert call("prepare", "--corpus", "embedded", "--out", tmp_path / "data") == 0
    assert "duplicate" in capfd.readouterr().out
    assert len(EncodedPairs.load(tmp_path / "data/train")) > 3900
    words = ["--config", "tiny", "--steps", "30", "--checkpoint-every", "10", "--device", "cpu"]
    assert call("train", "--data", tmp_path / "data", "--run", tmp_path / "run", *words) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 30 and lines[-1]["perplexity"] < 1500
    capfd.readouterr()
    assert call("evaluate", "--model", tmp_path / "run", "--data", tmp_path / "data", "--limit", "20") == 0
    assert "BLEU" in capfd.readouterr().out
