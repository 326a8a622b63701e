"""Appendix A3: models on disk come back as they were, and nothing else gets in."""

import contextlib
import errno
import functools
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

import transformer.checkpoints as module
from transformer import Transformer, TransformerConfig, count_parameters
from transformer.checkpoints import (
    CONFIG_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    average_checkpoints,
    hold_folder,
    load_checkpoint,
    load_training_checkpoint,
    read_description,
    read_tensors,
    save_checkpoint,
    save_training_checkpoint,
    write_atomically,
)

CONFIGS = {
    "the paper's": {},
    "pre-norm": {"norm_order": "pre"},
    "learned positions": {"positions": "learned", "max_len": 9},
    "untied": {"tie_embeddings": False, "tgt_vocab_size": 17, "d_k": 3, "d_v": 5, "dropout": 0.3, "eos_id": 6},
}


def make_model(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"src_vocab_size": 20, "tgt_vocab_size": 20, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
    model = Transformer(TransformerConfig(**{**sizes, **changes})).eval()
    for parameter in model.parameters():  # biases and gains, too, shall not be what a new model has
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def logits(model):
    generator = torch.Generator().manual_seed(3)
    src, tgt_in = torch.randint(7, 17, (3, 8), generator=generator), torch.randint(7, 17, (3, 5), generator=generator)
    with torch.inference_mode():
        return model(src, tgt_in)


@pytest.fixture
def folder(tmp_path):
    """A good checkpoint, to be spoilt."""
    save_checkpoint(tmp_path / "run", make_model(), seed=7)
    return tmp_path / "run"


def refused(folder, error=ValueError):
    """What is said when it is loaded: one sentence or two, and the file's name."""
    with pytest.raises(error) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert folder.name in message and "\n" not in message and len(message) < 500, message
    return message


# ---- the mean ----


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_the_mean_counts_every_weight_once(tie_embeddings, tmp_path):
    """The shared matrix, too, though three parts of the model use it."""
    models = [make_model(tie_embeddings=tie_embeddings) for _ in range(3)]
    for factor, model in enumerate(models, 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(factor * torch.randn_like(parameter))
        save_checkpoint(tmp_path / str(factor), model)
    mean = average_checkpoints([tmp_path / str(factor) for factor in (1, 2, 3)])
    assert not mean.training
    for name, parameter in mean.named_parameters():
        expected = sum(dict(model.named_parameters())[name] for model in models) / 3
        torch.testing.assert_close(parameter, expected)
    same = average_checkpoints([tmp_path / "2"] * 4)
    torch.testing.assert_close(same.state_dict(), models[1].state_dict())


# ---- it comes back ----


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_round_trip_bit_for_bit(changes, tmp_path):
    model = make_model(**changes)
    save_checkpoint(tmp_path / "a" / "deep folder", model)
    torch.manual_seed(99)
    again = load_checkpoint(str(tmp_path / "a" / "deep folder"))
    assert again.config == model.config and not again.training
    assert all(value.equal(again.state_dict()[name]) for name, value in model.state_dict().items())
    assert list(again.state_dict()) == list(model.state_dict())
    assert logits(again).equal(logits(model))
    assert count_parameters(again) == count_parameters(model)


def test_round_trip_in_a_new_process(folder, tmp_path):
    model = make_model()
    torch.save(logits(model), tmp_path / "expected")
    code = """
import sys, torch
from transformer.checkpoints import load_checkpoint
generator = torch.Generator().manual_seed(3)
src, tgt_in = torch.randint(7, 17, (3, 8), generator=generator), torch.randint(7, 17, (3, 5), generator=generator)
torch.set_num_threads(int(sys.argv[3]))
with torch.inference_mode():
    assert load_checkpoint(sys.argv[1])(src, tgt_in).equal(torch.load(sys.argv[2], weights_only=True))
print("equal")
"""
    arguments = [str(folder), str(tmp_path / "expected"), str(torch.get_num_threads())]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr


def test_weights_are_stored_once(tmp_path):
    model = make_model()
    save_checkpoint(tmp_path, model)
    weights = safetensors.torch.load_file(tmp_path / WEIGHTS_FILE)
    assert sum(value.numel() for value in weights.values()) == count_parameters(model)
    assert [name for name, value in weights.items() if value.size(0) == 20] == ["embedding.weight"]
    assert load_checkpoint(tmp_path).output_projection(torch.eye(16)[None])[0].equal(weights["embedding.weight"].T)


def test_half_precision_halves(tmp_path):
    model = make_model(d_model=64, d_ff=256)
    save_checkpoint(tmp_path / "whole", model)
    save_checkpoint(tmp_path / "half", model, torch.float16)
    whole, half = ((tmp_path / name / WEIGHTS_FILE).stat().st_size for name in ("whole", "half"))
    assert half < 0.52 * whole
    again = load_checkpoint(tmp_path / "half")
    assert all(parameter.dtype == torch.float32 for parameter in again.parameters())
    assert all(value.half().float().equal(again.state_dict()[name]) for name, value in model.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters()), "the model itself stays as it was"
    assert 0 < (logits(again) - logits(model)).abs().max() < 0.05


def test_float64_becomes_float32(tmp_path):
    save_checkpoint(tmp_path, make_model().double())
    assert logits(load_checkpoint(tmp_path)).equal(logits(make_model()))


def test_what_is_told_comes_back(tmp_path):
    about = {"command": "python train.py", "scores": {"exact": 0.5, "bleu": None}, "note": 'ä "quoted" \ud800 \u2028'}
    save_checkpoint(tmp_path, make_model(), **about)
    description = read_description(tmp_path)
    assert description["about"] == about and description["format"] == module.FORMAT
    assert TransformerConfig(**description["model"]) == make_model().config
    assert json.loads((tmp_path / CONFIG_FILE).read_bytes()) == description


def test_what_cannot_be_told_leaves_the_old_checkpoint_whole(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(TypeError, match="JSON"):
        save_checkpoint(folder, make_model(seed=1), function=print)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_saving_over_an_old_one(folder):
    save_checkpoint(folder, make_model(seed=1, d_model=8), epoch=2)
    assert logits(load_checkpoint(folder)).equal(logits(make_model(seed=1, d_model=8)))
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]


# ---- weights that are refused ----


def change_weights(folder, change, **save):
    weights = safetensors.torch.load_file(folder / WEIGHTS_FILE)
    change(weights)
    safetensors.torch.save_file(weights, folder / WEIGHTS_FILE, **save)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, 0.5, -4, -1])
def test_cut_short(folder, keep):
    content = (folder / WEIGHTS_FILE).read_bytes()
    size = int(keep * len(content)) if isinstance(keep, float) else keep if keep >= 0 else len(content) + keep
    (folder / WEIGHTS_FILE).write_bytes(content[:size])
    assert "damaged or cut short" in refused(folder)


def test_a_stray_tail(folder):
    with (folder / WEIGHTS_FILE).open("ab") as file:
        file.write(b"\0" * 8)
    assert "damaged or cut short" in refused(folder)


def test_every_flipped_bit_among_the_numbers_is_told(tmp_path):
    """Of the weights and of the state, in half precision too: most leave the numbers finite."""
    state = {"step": torch.tensor(3.0), "moment": torch.randn(4, 5), "none": torch.zeros(0, 2)}
    state["seen"] = torch.tensor([True, False])
    target = save_training_checkpoint(tmp_path, 3, make_model(), state, keep=1)
    assert all(value.equal(state[name]) for name, value in read_tensors(target / STATE_FILE).items())
    save_checkpoint(tmp_path / "half", make_model(), torch.float16)
    for path, read in (
        (target / WEIGHTS_FILE, lambda: load_checkpoint(target)),
        (target / STATE_FILE, lambda: read_tensors(target / STATE_FILE)),
        (tmp_path / "half" / WEIGHTS_FILE, lambda: load_checkpoint(tmp_path / "half")),
    ):
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        for position in range(start, len(content), max(1, (len(content) - start) // 40)):
            spoilt = bytearray(content)
            spoilt[position] ^= 1 << (position % 8)
            path.write_bytes(spoilt)
            with pytest.raises(ValueError, match=f"{path.name} is damaged: it holds other numbers .*; copy it again"):
                read()
        path.write_bytes(content)
        assert read(), "what is whole is let through"


def test_files_without_a_checksum_load(folder):
    """As versions before it wrote them: with what they were made for, and still held to it."""
    before = load_checkpoint(folder).state_dict()
    mark = module._made_for(read_description(folder)).partition(" ")[0]
    change_weights(folder, lambda weights: None, metadata={"config": mark})
    assert all(value.equal(before[name]) for name, value in load_checkpoint(folder).state_dict().items())
    change_weights(folder, lambda weights: None, metadata={"config": mark[::-1]})
    assert "config.json and model.safetensors do not belong together" in refused(folder)


def trained(run, *steps):
    """Checkpoints of these updates, each with weights and a state of its own."""
    for step in steps:
        state = {"moment": torch.full((3,), float(step))}
        yield save_training_checkpoint(run, step, make_model(seed=step), state, keep=9)


def test_weights_and_states_of_another_update_are_refused(tmp_path):
    """They are whole and of the right shapes, so their checksums and sizes say nothing."""
    ours, theirs = (list(trained(tmp_path / name, 3, 7)) for name in ("ours", "theirs"))
    weights, state = load_training_checkpoint(ours[1])
    assert state["moment"].tolist() == [7.0] * 3
    assert all(value.equal(make_model(seed=7).state_dict()[name]) for name, value in weights.items())
    (earlier,) = trained(tmp_path / "earlier", 3)  # the newest of its run, and so with its state
    for name in (WEIGHTS_FILE, STATE_FILE):
        content = (ours[1] / name).read_bytes()
        (ours[1] / name).write_bytes((earlier / name).read_bytes())
        with pytest.raises(ValueError, match=f"config.json and {name} do not belong together: .*; restore it"):
            load_training_checkpoint(ours[1])
        (ours[1] / name).write_bytes(content)
    (ours[0] / WEIGHTS_FILE).write_bytes((ours[1] / WEIGHTS_FILE).read_bytes())
    with pytest.raises(ValueError, match=r"step-00000003: config.json and model.safetensors do not belong together"):
        average_checkpoints(ours)
    # Of the same update of a run of the same recipe: nothing in the file tells, and nothing need.
    (ours[1] / WEIGHTS_FILE).write_bytes((theirs[1] / WEIGHTS_FILE).read_bytes())
    assert load_training_checkpoint(ours[1])


def test_weights_of_no_update_are_no_checkpoint_of_one(tmp_path):
    (path,) = trained(tmp_path / "run", 3)
    save_checkpoint(tmp_path / "model", make_model(seed=3))
    (path / WEIGHTS_FILE).write_bytes((tmp_path / "model" / WEIGHTS_FILE).read_bytes())
    for read in (load_checkpoint, load_training_checkpoint):
        with pytest.raises(ValueError, match="do not belong together"):
            read(path)


def test_checkpoints_from_before_updates_were_marked_load(tmp_path):
    (path,) = trained(tmp_path, 3)
    for name in (WEIGHTS_FILE, STATE_FILE):
        with safetensors.safe_open(path / name, framework="pt") as file:
            checksum, model, step = file.metadata()["sha256"].split()
        assert step == "3"
        old = f"{checksum} {model}" if name == WEIGHTS_FILE else checksum
        tensors = safetensors.torch.load((path / name).read_bytes())
        (path / name).write_bytes(safetensors.torch.save(tensors, {"sha256": old}))
    assert load_training_checkpoint(path)[1]["moment"].tolist() == [3.0] * 3


@pytest.mark.parametrize("about", [None, [], "about", 7, {"step": [1]}, {"step": {}}])
def test_whatever_is_told_about_a_model_it_is_no_crash(folder, about):
    description = read_description(folder)
    description["about"] = about
    (folder / CONFIG_FILE).write_text(json.dumps(description))
    if isinstance(about, dict):
        assert "do not belong together" in refused(folder)
    else:
        assert load_checkpoint(folder)


def test_one_folder_is_held_once(tmp_path):
    """In this process or in another, until whoever holds it leaves, be it by an error."""
    pytest.importorskip("fcntl")
    held = f"a training is under way in {tmp_path / 'run'}; wait for it"
    code = f"from transformer.checkpoints import hold_folder\nwith hold_folder({str(tmp_path / 'run')!r}): pass"
    elsewhere = functools.partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    with (
        contextlib.suppress(KeyError),
        hold_folder(tmp_path / "run"),
        hold_folder(tmp_path / "other"),
        hold_folder(None),
    ):
        with pytest.raises(BlockingIOError, match=re.escape(held)), hold_folder(tmp_path / "run"):
            pass
        assert held in elsewhere().stderr
        raise KeyError
    with hold_folder(tmp_path / "run"):
        pass
    assert elsewhere().returncode == 0


def test_equal_models_are_equal_files(tmp_path):
    for i in range(8):
        save_checkpoint(tmp_path / str(i), make_model())
    assert len({(tmp_path / str(i) / WEIGHTS_FILE).read_bytes() for i in range(8)}) == 1


def test_what_was_read_is_no_map_of_the_file(folder):
    model = load_checkpoint(folder)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    size = (folder / WEIGHTS_FILE).stat().st_size
    with (folder / WEIGHTS_FILE).open("r+b") as file:
        file.write(b"\0" * size)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_a_flipped_bit_in_the_header_is_told_or_harmless(folder):
    before, content = load_checkpoint(folder).state_dict(), (folder / WEIGHTS_FILE).read_bytes()
    (header,) = struct.unpack("<Q", content[:8])
    messages = []
    for position in [*range(8), *range(8, 8 + header, 29)]:
        spoilt = bytearray(content)
        spoilt[position] ^= 1 << (position % 7)
        (folder / WEIGHTS_FILE).write_bytes(spoilt)
        try:
            found = load_checkpoint(folder).state_dict()
            assert all(value.equal(before[name]) for name, value in found.items())
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 0.9 * (8 + header / 29)
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("junk", [b"this is no model", b"\xff" * 200, struct.pack("<Q", 2) + b"{}", b"PK\x03\x04" * 50])
def test_another_kind_of_file(folder, junk):
    (folder / WEIGHTS_FILE).write_bytes(junk)
    message = refused(folder)
    assert "damaged" in message or "weights" in message


def test_a_hostile_header(folder):
    for header in (
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"x":{"dtype":"F32","shape":[99999999999999],"data_offsets":[0,8]}}',
    ):
        (folder / WEIGHTS_FILE).write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
        assert "damaged or cut short" in refused(folder)


def test_a_type_that_torch_lacks(folder):
    header = b'{"x":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}'
    (folder / WEIGHTS_FILE).write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 2)
    # Older releases of safetensors do not know the type either.
    with pytest.raises(ValueError, match=r"model.safetensors (holds numbers of type 'F4', foreign to|is damaged)"):
        read_tensors(folder / WEIGHTS_FILE)
    refused(folder)


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path(os.environ["BOMB"]),)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
def test_a_pickle_runs_no_code(folder, name, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    assert "damaged" in refused(folder)
    torch.save({"embedding.weight": Bomb()}, folder / name)
    assert "damaged" in refused(folder)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))  # the bomb is a real one
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d_model": 8}, "embedding.weight has shape (20, 16), the configuration asks for (20, 8)"),
        ({"src_vocab_size": 21, "tgt_vocab_size": 21}, "(21, 16)"),
        ({"d_ff": 25}, "(25, 16)"),
        ({"n_layers": 1}, "decoder.layers.1"),
        ({"n_layers": 3}, "encoder.layers.2"),
        ({"norm_order": "pre"}, "norm"),
        ({"positions": "learned"}, "positions"),
        ({"tie_embeddings": False}, "tgt_embedding"),
    ],
)
def test_weights_of_another_model(folder, changes, said):
    save_checkpoint(folder.parent / "other", make_model(**changes))
    (folder / CONFIG_FILE).write_bytes((folder.parent / "other" / CONFIG_FILE).read_bytes())
    message = refused(folder)
    assert said in message and "different models" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(folder, value):
    change_weights(folder, lambda weights: weights["embedding.weight"][3].fill_(value))
    assert "not finite" in refused(folder)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_weights_that_are_not_real_numbers(folder, dtype):
    try:
        safetensors.torch.save({"x": torch.ones(1, dtype=dtype)})
    except KeyError:
        pytest.skip("this release of safetensors writes no such type")
    change_weights(folder, lambda weights: weights.update({name: value.to(dtype) for name, value in weights.items()}))
    assert "not finite numbers" in refused(folder)


def test_numbers_too_large_for_float32(folder):
    change_weights(
        folder, lambda weights: weights.update({"embedding.weight": torch.full((20, 16), 1e200, dtype=torch.float64)})
    )
    assert "not finite" in refused(folder)


def test_few_bits_are_numbers_too(folder):
    change_weights(folder, lambda weights: weights.update({k: v.to(torch.float8_e4m3fn) for k, v in weights.items()}))
    assert load_checkpoint(folder).embedding.weight.dtype == torch.float32


@pytest.mark.parametrize("change", ["a weight less", "a weight more", "a weight renamed", "two weights swapped"])
def test_weights_that_do_not_fit(folder, change):
    def apply(weights):
        if change == "a weight more":
            weights["extra"] = torch.zeros(1)
        elif change == "two weights swapped":
            a, b = "encoder.layers.0.feed_forward.w_1.weight", "embedding.weight"
            a = next(name for name, value in weights.items() if value.shape == (24, 16))
            weights[a], weights[b] = weights[b], weights[a]
        else:
            name = list(weights)[5]
            value = weights.pop(name)
            if change == "a weight renamed":
                weights[name + "_"] = value

    change_weights(folder, apply)
    assert "different models" in refused(folder)


# ---- configurations that are refused ----


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    assert f"has no {name}" in refused(folder, FileNotFoundError)
    (folder / name).mkdir()
    assert f"has no {name}" in refused(folder, FileNotFoundError)


def test_a_missing_folder(tmp_path):
    refused(tmp_path / "nowhere", FileNotFoundError)
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", FileNotFoundError)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"{",
        b"not JSON",
        b"null",
        b"1",
        b'"text"',
        b"[]",
        b'[{"format": 1, "model": {}}]',
        b"{}",
        b'{"format": 1}',
        b'{"model": {}}',
        b'{"format": 2, "model": {}}',
        b'{"format": "1", "model": {}}',
        b'{"format": NaN, "model": {}}',
        b'{"format": 1, "model": null}',
        b'{"format": 1, "model": []}',
        b'{"format": 1, "model": {}}',
        b'{"format": 1, "model": {"__class__": "os.system"}}',
        b"[" * 200_000,
        b'{"format": 1, "model": ' * 100_000,
        b'{"format": 1, "model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"format": ' + b"9" * 10_000 + b', "model": {}}',
        b'{"format": 1e999, "model": {}}',
    ],
    ids=lambda content: repr(content[:30]),
)
def test_a_configuration_that_is_none(folder, content):
    (folder / CONFIG_FILE).write_bytes(content)
    refused(folder)


@pytest.mark.parametrize("field", ["d_model", "n_layers", "n_heads", "d_ff", "d_k", "src_vocab_size", "max_len"])
@pytest.mark.parametrize(
    "value",
    [10**9, 10**18, 10**400, 1e300, -1, 0, True, "16", None, [], {}, float("nan")],
    ids=lambda value: repr(value)[:20],
)
def test_impossible_sizes(folder, field, value):
    if field == "d_k" and value is None:
        return  # allowed
    description = read_description(folder)
    description["model"][field] = value
    if field == "src_vocab_size":
        description["model"]["tgt_vocab_size"] = value
    if field == "max_len":
        description["model"]["positions"] = "learned"
    (folder / CONFIG_FILE).write_text(json.dumps(description))
    refused(folder)


@pytest.mark.parametrize(
    "changes",
    [{"pad_id": []}, {"eos_id": {}}, {"eos_id": 1.5}, {"bos_id": 0}, {"norm_order": []}, {"positions": "rotary"}]
    + [{"dropout": value} for value in (float("nan"), float("inf"), "0.1", None, [])]
    + [{"tie_embeddings": 1}, {"unheard_of": 1}],
    ids=repr,
)
def test_impossible_settings(folder, changes):
    description = read_description(folder)
    description["model"].update(changes)
    (folder / CONFIG_FILE).write_text(json.dumps(description))
    refused(folder)


# ---- all or nothing ----


def test_write_atomically(tmp_path):
    path = tmp_path / "file"
    for content in (b"one", b"", b"\0" * 100_000):
        write_atomically(path, content)
        assert path.read_bytes() == content
    write_atomically(str(path), b"by name")
    assert path.read_bytes() == b"by name" and [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644, "others may read it"


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, step, old):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)
    monkeypatch.setattr(module.os, step, no_space)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new" * 10_000)
    monkeypatch.undo()
    assert (path.read_bytes() if path.exists() else None) == old
    assert [p.name for p in tmp_path.iterdir()] == (["file"] if old else [])


def test_an_interrupted_write_leaves_no_litter(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert not list(tmp_path.iterdir())


def test_what_was_written_is_on_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(module.os, name, lambda *args, name=name, real=real: (calls.append(name), real(*args)))
    write_atomically(tmp_path / "file", b"new")
    assert calls == ["fsync", "replace", "fsync"], "the last one is the folder's"


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_save_leaves_a_checkpoint_that_loads_or_is_told(folder, monkeypatch, failing):
    """The weights are written first. A save that fails at either file leaves files that are whole."""
    calls = []
    real = os.replace

    def replace(source, target):
        calls.append(target)
        if len(calls) == failing:
            no_space()
        real(source, target)

    monkeypatch.setattr(module.os, "replace", replace)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(folder, make_model(seed=1), seed=8)
    monkeypatch.undo()
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]
    assert read_description(folder)["about"] == {"seed": 7}
    assert logits(load_checkpoint(folder)).equal(logits(make_model(seed=failing - 1)))


def test_no_folder_to_write_into(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", b"x")
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="file"):
        save_checkpoint(tmp_path / "file", make_model())
    assert (tmp_path / "file").read_bytes() == b"old"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(("name", "value"), [("n_heads", 4), ("dropout", 0.3), ("eos_id", 3)])
def test_a_change_that_the_shapes_do_not_show(tmp_path, name, value):
    model = Transformer(TransformerConfig(20, 20, d_model=16, n_layers=1, n_heads=2, d_ff=24))
    save_checkpoint(tmp_path, model)
    path = tmp_path / "config.json"
    description = json.loads(path.read_text())
    assert description["model"][name] != value
    description["model"][name] = value
    path.write_text(json.dumps(description))
    with pytest.raises(ValueError, match=r"config.json and model.safetensors do not belong together: one has changed"):
        load_checkpoint(tmp_path)
    # Weights that were written without the mark, by an older version, are believed.
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(safetensors.torch.save(safetensors.torch.load(weights.read_bytes())))
    assert load_checkpoint(tmp_path)
