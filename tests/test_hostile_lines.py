"""Ten thousand hostile lines through `transformer translate`: one line out for each, in order, whatever they hold."""

import io
import itertools
import random
import re
import subprocess
import sys
import unicodedata

import pytest
import torch

from transformer import Tokenizer, Transformer, TransformerConfig, Translator, embedded_corpus
from transformer.cli import main

N_LINES = 10_000
TOKENS = 1500  # --batch-tokens, and so the longest line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model that writes a token or two, so that ten thousand lines take seconds."""
    folder = tmp_path_factory.mktemp("model")
    lines = [text for pair in itertools.islice(embedded_corpus(), 300) for text in (pair.source, pair.target)]
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(400, 400, d_model=8, n_layers=1, n_heads=2, d_ff=8, tie_embeddings=False))
    with torch.no_grad():
        shift = model.decoder.layers[-1].feed_forward_block.norm.bias  # the same for every token
        shift[0] = 8.0
        model.output.weight *= 4  # so that lines differ
        model.output.weight[:, 0] = 0.0
        model.output.weight[model.config.eos_id, 0] = 0.15  # and the end is never far
    Translator(model, Tokenizer.train(lines, 400)).save(folder)
    return folder


def hostile_lines():
    """The lines, without their ends, and the numbers of those that must be refused."""
    chance = random.Random(0)
    categories: dict[str, list[str]] = {}
    for number in range(0x110000):
        if number != 0x0A and not 0xD800 <= number < 0xE000:
            categories.setdefault(unicodedata.category(chr(number)), []).append(chr(number))
    assert len(categories) == 29  # all but surrogates
    some = [
        "\0", "a\0b", "\x1b[2J\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb", "a\r\rb", "\x0b\x0c\x1c\x1d\x85",
        "\u2028\u2029", "\u202eevil\u202c", "\u2066x\u2069\u200f\u200e", "\u200b\u200c\u200d\u2060", "\u2581", "\u3000",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467", "e" + "\u0301" * 100, "\ufeff", "x\ufeff", "\ufffe\uffff",
        "", " ", "\t", "%s%n{0}\\n", "</s><pad><unk>",
        "<0x0A>", "\\", '"', "'; DROP", "-", "--help", "\x7f\x80", "\x04\x1a\x03",
    ]  # fmt: skip
    texts = [text.encode() for text in some]
    texts += [char.encode() for chars in categories.values() for char in chance.sample(chars, min(len(chars), 100))]
    refused = {
        b"\xed\xa0\x80", b"a\xed\xbf\xbfb", b"\xff", b"\xc3", b"a\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf",
        b"x" * 100_000, "ü".encode() * 50_000, b"\0" * 100_000,
    }  # fmt: skip
    lines = [*texts, *refused]
    while len(lines) < N_LINES:
        mixed = "".join(chance.choice(categories[chance.choice([*categories])]) for _ in range(chance.randrange(12)))
        lines.append(mixed.encode())
    chance.shuffle(lines)
    return lines, [number for number, line in enumerate(lines, 1) if line in refused]


def test_as_many_lines_out_as_in(folder, monkeypatch, capfdbinary):
    lines, refused = hostile_lines()
    chance = random.Random(1)
    ends = [chance.choice([b"\n", b"\n", b"\r\n"]) for _ in lines]
    ends[-1] = b""  # no final newline
    lines[-1] = b"The dog."
    stdin = b"".join(itertools.chain.from_iterable(zip(lines, ends, strict=True)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii"))
    words = ["--model", str(folder), "--device", "cpu", "--beam-size", "1", "--batch-tokens", str(TOKENS)]
    assert main(["translate", *words]) == 1
    out, err = capfdbinary.readouterr()
    outputs = out.decode("utf-8").split("\n")
    assert len(outputs) == N_LINES + 1 and outputs.pop() == ""
    told = [
        int(re.match(r"transformer translate: line (\d+) (has|is not text)", line)[1])
        for line in err.decode().splitlines()
    ]
    assert told == [number for number in refused if number != N_LINES]
    assert all(outputs[number - 1] == "" for number in told)
    # In order: what a line gives alone, it gives in its place.
    translator = Translator.from_pretrained(folder, "cpu")
    for number in [*chance.sample(range(N_LINES), 150), N_LINES - 1]:
        line = lines[number].removesuffix(b"\r")
        if number + 1 not in refused:
            text = line.decode()
            assert outputs[number] == translator.translate([text], beam_size=1)[0].replace("\n", " "), (number, text)
    assert len(set(outputs)) > 20, "the model tells lines apart"


def test_lone_surrogates_are_refused_by_name(folder):
    translator = Translator.from_pretrained(folder, "cpu")
    for text in ("\ud800", "a\udfff", "\udcff"):
        with pytest.raises(ValueError, match=r"line 2 is not text: it holds a lone surrogate"):
            translator.translate(["fine", text])
        assert translator.translate(["", text], errors="empty") == ["", ""]


@pytest.mark.skipif(sys.platform == "win32", reason="closing a stream is a shell's business")
@pytest.mark.parametrize(("closed", "code"), [("<&-", 1), (">&-", 1), ("2>&-", 0)])
def test_a_closed_stream_is_told_and_no_traceback(folder, closed, code):
    line = f'echo The dog. | "$0" -m transformer translate --device cpu --model "$1" {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == (1 if code == 0 else 0)
    if code:
        assert "standard input or output is closed" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full")
def test_a_full_disk_behind_the_output(folder):
    words = [sys.executable, "-m", "transformer", "translate", "--device", "cpu", "--model", str(folder)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, input=b"a\n", stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0 and b"No space left on device" in done.stderr and b"Traceback" not in done.stderr
