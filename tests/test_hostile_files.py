"""Truncated, bit-flipped, swapped, oversized and hostile files: refused in one sentence, and no code runs from any."""

import contextlib
import gzip
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    Translator,
    average_run,
    embedded_corpus,
    make_configuration,
    save_checkpoint,
    train_run,
)
from transformer.checkpoints import list_checkpoints, load_checkpoint
from transformer.cli import main
from transformer.preparation import Prepared, read_lines

SMALL = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "steps": 4, "warmup_steps": 2, "max_tokens": 300}
SMALL |= {"checkpoint_every": 2, "average": 2, "log_every": 2}


def call(*words):
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    pairs = list(itertools.islice(embedded_corpus(), 300))
    (folder / "train.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    (folder / "train.de").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
    (folder / "small.json").write_text(json.dumps(SMALL))
    words = ["--train", folder / "train.en", folder / "train.de", "--out", folder / "data", "--vocab-size", 400]
    assert call("prepare", *words) == 0
    return folder


@pytest.fixture(scope="module")
def run(texts):
    words = ["--data", texts / "data", "--run", texts / "run", "--config", texts / "small.json", "--device", "cpu"]
    assert call("train", *words) == 0
    return texts / "run"


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def one_sentence(capfd, code, *words):
    """The command fails with the code, in one line that a person can read. Returns it."""
    capfd.readouterr()
    assert call(*words) == code
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("device ")]
    assert len(lines) == 1 and len(lines[0]) < 600, lines
    return lines[0]


def resume(capfd, run):
    return one_sentence(capfd, 1, "train", "--run", run, "--resume", "--steps", 6, "--device", "cpu")


# ---- a run to resume ----


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda about: about["data"].clear(), "run.json is damaged"),
        (lambda about: about["data"].update(folder=3), "run.json is damaged"),
        (lambda about: about["data"].update(folder=None), "run.json is damaged"),
        (lambda about: about["configuration"].update(seed=10**30), "seed is 1000.*below"),
        (lambda about: about["configuration"].update(n_layers=10**12), "more than 1,000 layers"),
        (lambda about: about["configuration"].update(d_model=10**12), "10 billion weights"),
        (lambda about: about["configuration"].update(d_ff=10**30), "10 billion weights"),
        (lambda about: about["configuration"].update(max_len=10**12), "10 billion weights"),
        (lambda about: about["configuration"].update(d_k=10**12, d_v=8), "10 billion weights"),
    ],
)
def test_a_hostile_description_of_a_run(copy, capfd, change, said):
    rewrite(copy / "run.json", change)
    begun = time.monotonic()
    assert re.search(said, resume(capfd, copy))
    assert time.monotonic() - begun < 5, "sizes are checked before memory is taken"


def test_the_papers_models_are_not_too_large():
    for name in ("base", "big", "small", "tiny"):
        make_configuration(name)
    make_configuration("big", n_layers=100, d_ff=16384)
    with pytest.raises(ValueError, match="10 billion weights"):
        make_configuration("big", n_layers=900, d_ff=16384)


def state_of(run):
    return list_checkpoints(run)[-1] / "state.safetensors"


def change_state(run, change):
    state = safetensors.torch.load_file(state_of(run))
    change(state)
    safetensors.torch.save_file(state, state_of(run))


def first(state, prefix):
    return next(name for name in sorted(state) if name.startswith(prefix))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.clear(),
        lambda state: state.pop(first(state, "exp_avg/")),
        lambda state: state.pop(first(state, "exp_avg_sq/")),
        lambda state: state.pop(first(state, "step/")),
        lambda state: state.update({first(state, "exp_avg/"): torch.zeros(3, 3)}),
        lambda state: state[first(state, "exp_avg/")].fill_(float("nan")),
        lambda state: state[first(state, "step/")].fill_(1e6),
        lambda state: state[first(state, "step/")].fill_(float("inf")),
    ],
)
def test_a_state_that_does_not_fit(copy, capfd, change):
    change_state(copy, change)
    assert "step-00000004 do not belong together; remove it" in resume(capfd, copy)


def test_files_swapped(copy, run, capfd):
    newest = list_checkpoints(copy)[-1]
    shutil.copy(newest / "model.safetensors", newest / "state.safetensors")
    assert "do not belong together" in resume(capfd, copy)
    shutil.copy(state_of(run), newest / "state.safetensors")
    other = TransformerConfig(400, 400, d_model=8, n_layers=1, n_heads=2, d_ff=16)
    save_checkpoint(copy / "other", Transformer(other))
    shutil.copy(copy / "other/model.safetensors", newest / "model.safetensors")
    assert re.search(r"model.safetensors.*does not fit config.json|come from different models", resume(capfd, copy))
    shutil.copy(list_checkpoints(run)[-1] / "model.safetensors", newest / "model.safetensors")
    newest.rename(newest.with_name("step-00000005"))
    assert "step-00000005 do not belong together" in resume(capfd, copy)


@pytest.mark.parametrize("about", [[], {}, {"step": 4}, {"step": "x", "training": {}, "sums": {}}, None])
def test_a_checkpoint_that_says_nothing_of_its_training(copy, capfd, about):
    rewrite(list_checkpoints(copy)[-1] / "config.json", lambda content: content.update(about=about))
    assert "do not belong together" in resume(capfd, copy)


RECORD = {"step": 1, "loss": 1.0, "perplexity": 2.0, "learning_rate": 0.1, "source_tokens": 3, "target_tokens": 3}
RECORD |= {"flops": 9, "seconds": 0.1, "scores": {}}


@pytest.mark.parametrize(
    "line",
    [
        *(b"[]", b"3", b"null", b'"text"', b"{}", b'{"step": 1}', b"no JSON", b"\xff\xfe", b"\x00" * 50),
        *(b"[" * 100_000, b"9" * 10_000),
        *(json.dumps(RECORD | change).encode() for change in ({"x": 1}, {"step": "1"}, {"loss": None}, {"flops": []})),
        *(json.dumps(RECORD | {"scores": scores}).encode() for scores in (3, [], {"bleu": "x"})),
        json.dumps(RECORD).encode()[:-9],
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_line_of_the_log_that_is_no_record(copy, capfd, line):
    """Wherever it stands; only half a line at the end is what a kill leaves."""
    whole = (copy / "log.jsonl").read_bytes()
    for place in range(3):
        lines = whole.splitlines(keepends=True)
        lines.insert(place, line + b"\n")
        content, number = b"".join(lines), place + 1
        (copy / "log.jsonl").write_bytes(content)
        assert f"log.jsonl, line {number} is no record; remove that line" in resume(capfd, copy)
        assert (copy / "log.jsonl").read_bytes() == content


def test_a_foreign_last_line_is_no_half_of_ours(copy, capfd):
    with (copy / "log.jsonl").open("ab") as file:
        file.write(b"[1, 2]")
    assert "log.jsonl, line 3 is no record" in resume(capfd, copy)


def test_unchanged_it_resumes(copy):
    """The checks above let through what is whole: else they would prove nothing."""
    assert call("train", "--run", copy, "--resume", "--steps", 6, "--device", "cpu") == 0


# ---- a prepared corpus ----


@pytest.fixture
def corpus(texts, tmp_path):
    return Path(shutil.copytree(texts / "data", tmp_path / "data"))


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["files"].update({"train.src.ids.npy": None}),
        lambda about: about["files"].update({"train.src.ids.npy": "x"}),
        lambda about: about["files"].update({"../x": 3}),
        lambda about: about["files"].update({"/etc/passwd": 3}),
        lambda about: about["files"].update({"": 3}),
        lambda about: about.pop("counts"),
        lambda about: about.update(settings=3),
        lambda about: about.update(splits=["train", "evil"]),
    ],
)
def test_a_hostile_description_of_a_corpus(corpus, change):
    rewrite(corpus / "prepared.json", change)
    with pytest.raises(ValueError, match=r"prepared.json is damaged or of another version .*prepare the corpus again"):
        Prepared.load(corpus)


def put_array(corpus, name, array):
    np.save(corpus / name, array)
    rewrite(corpus / "prepared.json", lambda about: about["files"].update({name: (corpus / name).stat().st_size}))


@pytest.mark.parametrize("part", ["ids", "ends"])
@pytest.mark.parametrize(
    "change",
    [
        lambda array: array + 0.5,
        lambda array: array[:, None],
        lambda array: array.astype("U9"),
        lambda array: array.astype(bool),
        lambda array: array[0],
        lambda array: array[:0],
    ],
)
def test_arrays_of_another_kind(corpus, part, change):
    name = f"train.src.{part}.npy"
    put_array(corpus, name, change(np.load(corpus / name)))
    with pytest.raises(
        ValueError, match=r"the arrays .*train.*(damaged|rows of whole numbers).*prepare the corpus again"
    ):
        Prepared.load(corpus)


@pytest.mark.parametrize(("place", "value"), [(3, -5), (3, 10**15), (0, -1)])
def test_ends_out_of_order(corpus, place, value):
    ends = np.load(corpus / "train.tgt.ends.npy")
    ends[place] = value
    put_array(corpus, "train.tgt.ends.npy", ends)
    with pytest.raises(ValueError, match=r"the arrays .*train.*prepare the corpus again"):
        Prepared.load(corpus)


def test_a_header_runs_no_code_and_every_flipped_bit_is_told_or_harmless(corpus, tmp_path):
    path = corpus / "train.src.ids.npy"
    whole = path.read_bytes()
    marker = tmp_path / "ran"
    for old, new in ((b"'<u2'", b"'|O8'"), (b"(", b"(9**9**9,"), (b"'descr'", f"open({str(marker)!r},'w')".encode())):
        path.write_bytes(whole.replace(old, new, 1)[: len(whole)])
        with pytest.raises(ValueError, match=r"the arrays .* are damaged"):
            Prepared.load(corpus)
    chance, refused = random.Random(0), 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[chance.randrange(128)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            pairs = Prepared.load(corpus).train
        except ValueError as error:
            refused += "prepare the corpus again" in str(error)
        else:
            assert len([pairs[i] for i in range(len(pairs))]) == 300, "a bit of the padding of the header"
    assert refused > 30 and not marker.exists()


# ---- a model ----


def damaged_versions(whole, n, seed=0):
    """Cut short, with bits flipped, with bytes replaced, with bytes added, and plain noise."""
    chance = random.Random(seed)
    for i in range(n):
        content = bytearray(whole)
        if i % 5 == 0:
            content = content[: chance.randrange(len(content))]
        elif i % 5 == 1:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif i % 5 == 2:
            start = chance.randrange(len(content))
            content[start : start + 20] = chance.randbytes(chance.randrange(40))
        elif i % 5 == 3:
            content += chance.randbytes(1 + chance.randrange(50))
        else:
            content = bytearray(chance.randbytes(chance.randrange(300)))
        if bytes(content) != whole:
            yield bytes(content)


def test_every_damage_to_a_tokenizer_is_told(copy):
    whole = (copy / "tokenizer.model").read_bytes()
    for content in damaged_versions(whole, 200):
        (copy / "tokenizer.model").write_bytes(content)
        with pytest.raises(ValueError, match=r"tokenizer"):
            Translator.from_pretrained(copy, "cpu")
    (copy / "tokenizer.model").write_bytes(whole)
    assert len(Translator.from_pretrained(copy, "cpu").translate(["The dog."])) == 1


def test_another_tokenizer_of_the_same_size_is_told(copy):
    lines = [pair.source for pair in itertools.islice(embedded_corpus(seed=5), 300)]
    other = Tokenizer.train(lines, 400)
    (copy / "tokenizer.model").write_bytes(other.model)
    with pytest.raises(ValueError, match=r"tokenizer.model is damaged, or of another model; copy it again"):
        Translator.from_pretrained(copy, "cpu")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_damaged_model_files_are_never_another_error(copy, name):
    """ValueError, or the model as it was: what is told "about" it has no checksum."""
    path, before = copy / name, load_checkpoint(copy).state_dict()
    whole, refused = path.read_bytes(), 0
    for content in damaged_versions(whole, 200):
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            found = load_checkpoint(copy).state_dict()
            assert all(value.equal(before[name]) for name, value in found.items())
            refused -= 1
        refused += 1
    assert refused > (190 if name == "model.safetensors" else 100)


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
@pytest.mark.parametrize("whole", [True, False], ids=["after its content", "nothing but zeros"])
@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "config.json", "log.jsonl"])
def test_a_file_of_a_tebibyte_takes_no_memory(copy, capfd, name, whole):
    path = copy / name if name == "log.jsonl" else list_checkpoints(copy)[-1] / name
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size if whole else 0)
        try:
            file.truncate(2**40)
        except OSError:
            pytest.skip("the file system has no such large files")
    begun = time.monotonic()
    assert re.search(rf"{name}.*(is damaged.*copy it again|is no record; remove that line)", resume(capfd, copy))
    assert time.monotonic() - begun < 5


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
@pytest.mark.parametrize("name", ["run.json", "tokenizer.model", "prepared.json"])
def test_small_files_that_are_a_tebibyte(copy, corpus, name):
    path = {"prepared.json": corpus}.get(name, copy) / name
    with path.open("r+b") as file:
        try:
            file.truncate(2**40)
        except OSError:
            pytest.skip("the file system has no such large files")
    read = {
        "run.json": lambda: train_run(copy, resume=True),
        "tokenizer.model": lambda: Translator.from_pretrained(copy),
    }
    with pytest.raises(ValueError, match=rf"{name}.* larger than \d+ MiB"):
        read.get(name, lambda: Prepared.load(corpus))()


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
def test_a_state_that_claims_a_tebibyte(copy, capfd):
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    with (list_checkpoints(copy)[-1] / "state.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        try:
            file.truncate(file.tell() + 2**40)
        except OSError:
            pytest.skip("the file system has no such large files")
    assert re.search(
        r"state.safetensors is damaged: too large for this model's state; copy it again", resume(capfd, copy)
    )


def test_a_compressed_line_without_an_end_takes_no_memory(tmp_path):
    path = tmp_path / "text.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(b"x" * 2**20)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"text.gz, line 1 is longer than 16,777,216 bytes; split it"):
        list(read_lines(path))
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
def test_weights_that_claim_a_tebibyte_are_compared_before_they_are_read(copy):
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    with (copy / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        try:
            file.truncate(file.tell() + 2**40)
        except OSError:
            pytest.skip("the file system has no such large files")
    with pytest.raises(ValueError, match=r"describes no model that fits|does not fit config.json"):
        load_checkpoint(copy)


def test_a_pickle_under_our_names_runs_no_code(copy, tmp_path, capfd):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    for name in ("model.safetensors", "tokenizer.model", "config.json", "run.json"):
        kept = (copy / name).read_bytes()
        torch.save(Evil(), copy / name)
        if name != "run.json":
            one_sentence(capfd, 1, "attention", copy, "The dog.", "--out", tmp_path / "page.html", "--device", "cpu")
        else:
            resume(capfd, copy)
        (copy / name).write_bytes(kept)
    assert not marker.exists()


# ---- the command line ----


@pytest.mark.parametrize("device", ["meta", "hpu", "xla", "cpu:1", "cuda:99", "", "cuda:-1", "\ud800", "x" * 1000])
def test_devices_that_compute_nothing_here(capfd, device):
    for words in (("demo", "--steps", 1), ("attention", "The dog.")):
        assert "device" in one_sentence(capfd, 1, *words, "--device", device)


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("", "the source is empty"),
        ("a" * 100_000, "tokens, more than 500"),
        ("word " * 600, "tokens, more than 500"),
        ("\udcff", "lone surrogate"),
    ],
)
def test_attention_to_impossible_sentences(capfd, tmp_path, sentence, said):
    out = tmp_path / "page.html"
    assert said in one_sentence(capfd, 1, "attention", sentence, "--out", out, "--device", "cpu")
    assert not out.exists()


def test_attention_to_an_impossible_target(capfd, tmp_path):
    words = ["The dog.", "--target", "b" * 50_000, "--out", tmp_path / "page.html", "--device", "cpu"]
    assert "tokens, more than 500" in one_sentence(capfd, 1, "attention", *words)


def test_out_of_memory_is_one_sentence(capfd, monkeypatch, run):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Translator, "from_pretrained", full)
    assert "not enough memory" in one_sentence(capfd, 1, "attention", run, "The dog.", "--device", "cpu")


# ---- one folder, two trainings; a folder that cannot be written; a clock that goes back ----


def test_a_second_training_refuses(copy, texts, capfd):
    """Whoever holds the folder, another that resumes it is refused at once, and nothing changes."""
    fcntl = pytest.importorskip("fcntl")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    reader = os.open(copy, os.O_RDONLY)
    try:
        fcntl.flock(reader, fcntl.LOCK_EX)
        assert f"a training is under way in {copy}; wait for it" in resume(capfd, copy)
    finally:
        os.close(reader)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert train_run(copy, resume=True, device="cpu", steps=6)["averaged"]


def test_a_training_holds_its_folder_until_it_ends_or_fails(copy, monkeypatch, capfd):
    fcntl = pytest.importorskip("fcntl")

    def held():
        handle = os.open(copy, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    seen = []

    def fails(*_, **__):
        seen.append(held())
        raise FloatingPointError("as if it diverged")

    monkeypatch.setattr("transformer.runs.train", fails)
    assert "as if it diverged" in resume(capfd, copy)
    assert seen == [True] and not held()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_folder_that_is_read_only(texts, run, capfd):
    """Root may write anywhere, so root steps back for as long as it takes."""
    with tempfile.TemporaryDirectory() as name:
        locked = Path(name) / "locked"
        copied = Path(shutil.copytree(run, locked / "run"))
        data, config = Path(shutil.copytree(texts / "data", locked / "data")), locked / "small.json"
        shutil.copy(texts / "small.json", config)
        rewrite(copied / "run.json", lambda about: about["data"].update(folder=str(data)))
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = {path: path.read_bytes() for path in locked.rglob("*") if path.is_file()}
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            for words in (
                ("train", "--run", copied, "--resume", "--steps", 6, "--device", "cpu"),
                ("train", "--data", data, "--run", locked / "new", "--config", config, "--device", "cpu"),
                ("average", "--run", copied),
                ("prepare", "--train", data / "prepared.json", data / "prepared.json", "--out", locked / "new"),
                ("attention", "The dog.", "--out", locked / "page.html", "--device", "cpu"),
            ):
                assert "Permission denied" in one_sentence(capfd, 1, *words)
        finally:
            if root:
                os.seteuid(0)
        assert {path: path.read_bytes() for path in locked.rglob("*") if path.is_file()} == before
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o755)


def test_a_clock_that_was_set_back(copy, run, monkeypatch):
    """Neither the times of files nor the date decide which checkpoint is the newest."""
    checkpoints = list_checkpoints(copy)
    for age, path in enumerate([*checkpoints, copy]):
        for one in (path, *path.rglob("*")):
            os.utime(one, (10**9 - 10**6 * age,) * 2)  # the newest is the oldest by its date
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 10**9)
    train_run(copy, resume=True, device="cpu", steps=6)
    monkeypatch.undo()
    plain = copy.with_name("plain")
    shutil.copytree(run, plain)
    train_run(plain, resume=True, device="cpu", steps=6)
    assert [path.name for path in list_checkpoints(copy)] == [path.name for path in list_checkpoints(plain)]
    one, other = (load_checkpoint(list_checkpoints(folder)[-1]).state_dict() for folder in (copy, plain))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert average_run(copy) == average_run(plain)
