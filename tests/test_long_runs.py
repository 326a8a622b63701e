"""Ten thousand steps and ten thousand translations: memory stays flat, no file stays open, the bar hurts nobody."""

import gc
import io
import itertools
import os
import sys
from pathlib import Path

import pytest
import torch

from transformer import (
    TokenBatches,
    Tokenizer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    copy_task,
    embedded_corpus,
    load_checkpoint,
    train,
)
from transformer.checkpoints import list_checkpoints

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def resident():
    """Bytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


class Watched:
    """Batches that note the memory as they are taken."""

    def __init__(self, batches, every):
        self.batches, self.every, self.memory = batches, every, []

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number % self.every == 0:
                gc.collect()
                self.memory.append(resident())
            yield batch


def smallest():
    torch.manual_seed(0)
    return Transformer(TransformerConfig(8, 8, d_model=4, n_layers=1, n_heads=1, d_ff=4, dropout=0.0))


@linux
@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_steps(tmp_path):
    """With a log and checkpoints, of which ten are written and five stay."""
    pairs = copy_task(30, vocab_size=8, min_len=1, max_len=3)
    batches = Watched(TokenBatches(pairs, max_tokens=16), 1000)
    settings = {"log_every": 500, "checkpoint_every": 1000, "keep": 5, "device": "cpu", "progress": False}
    before = open_files()
    model = smallest()
    for part in (model.encoder, model.decoder.layers[0].self_attention, model.decoder.layers[0].memory_attention):
        part.requires_grad_(False)  # for speed; what could leak does not depend on how many weights move
    records = train(model, batches, TrainingConfig(10_000, 10, **settings), run=tmp_path)
    assert len(records) == 20 and len(list_checkpoints(tmp_path)) == 5
    assert open_files() <= before
    grown = batches.memory[-1] - batches.memory[2]
    assert grown < 4 * 2**20, [memory >> 20 for memory in batches.memory]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "log.jsonl"]


@linux
def test_memory_is_flat_over_ten_thousand_translations():
    """All distinct, through the stream that `transformer translate` uses; nothing is kept of what was written."""
    lines = [text for pair in itertools.islice(embedded_corpus(), 300) for text in (pair.source, pair.target)]
    sizes = {"d_model": 4, "n_layers": 1, "n_heads": 1, "d_ff": 4, "positions": "learned", "max_len": 8}
    torch.manual_seed(0)
    translator = Translator(Transformer(TransformerConfig(400, 400, **sizes)), Tokenizer.train(lines, 400))
    words = [f"{number:x}" for number in range(10_000)]
    before, memory, written = open_files(), [], 0
    for number, output in enumerate(translator.stream(words, chunk=500, beam_size=2, batch_tokens=2000)):
        written += isinstance(output, str)
        if number % 1000 == 0:
            gc.collect()
            memory.append(resident())
    assert written == 10_000 and open_files() <= before
    assert memory[-1] - memory[2] < 4 * 2**20, [each >> 20 for each in memory]


@linux
def test_files_are_closed_whatever_happens(tmp_path):
    """Loading, saving and failing to, again and again."""
    folder = tmp_path / "model"
    lines = [pair.source for pair in itertools.islice(embedded_corpus(), 300)]
    model = Transformer(TransformerConfig(400, 400, d_model=4, n_layers=1, n_heads=1, d_ff=4))
    translator = Translator(model, Tokenizer.train(lines, 400))
    broken = tmp_path / "broken"
    translator.save(folder)
    translator.save(broken)
    (broken / "model.safetensors").write_bytes(b"no")
    Translator.from_pretrained(folder, "cpu")
    before = open_files()
    for _ in range(50):
        Translator.from_pretrained(folder, "cpu").save(folder)
        with pytest.raises(ValueError, match="damaged"):
            load_checkpoint(broken)
        with pytest.raises(FileNotFoundError):
            load_checkpoint(tmp_path / "nowhere")
    assert open_files() <= before


def progress_of(stream, monkeypatch):
    """What a short training writes there."""
    batches = TokenBatches(copy_task(30, vocab_size=8, min_len=1, max_len=3), max_tokens=16)
    monkeypatch.setattr(sys, "stderr", stream)
    train(smallest(), batches, TrainingConfig(60, 10, log_every=20, device="cpu"))
    monkeypatch.undo()


def test_no_bar_in_a_log_file(tmp_path, monkeypatch):
    with (tmp_path / "log").open("w+", encoding="utf-8") as log:
        progress_of(log, monkeypatch)
        log.seek(0)
        assert "\r" not in log.read(), "a bar is for people who watch"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize(("kind", "width"), [("dumb", 1), ("dumb", 80), ("xterm", 0), ("nonsense", 3)])
def test_a_terminal_that_can_do_nothing(monkeypatch, kind, width):
    """No width, no cursor, no Unicode: the training ends all the same, and the bar was there."""
    import fcntl
    import pty
    import struct
    import termios
    import threading

    monkeypatch.setenv("TERM", kind)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    seen = []

    def read():
        with open(master, "rb", buffering=0) as screen:
            while True:
                try:
                    part = screen.read(4096)
                except OSError:  # Linux says so when the other end is closed
                    return
                if not part:
                    return
                seen.append(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with io.TextIOWrapper(open(slave, "wb", buffering=0), encoding="ascii", write_through=True) as terminal:
        progress_of(terminal, monkeypatch)
    reader.join(10)
    assert not reader.is_alive() and b"\r" in b"".join(seen)
    assert width != 80 or b"training" in b"".join(seen)
