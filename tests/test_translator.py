"""Section 6.1: text in, text out."""

import hashlib
import itertools
import subprocess
import sys
import time
from importlib.resources import files

import pytest
import torch

import transformer
from transformer import Tokenizer, Transformer, TransformerConfig, Translator, embedded_corpus, save_checkpoint
from transformer.checkpoints import CONFIG_FILE, WEIGHTS_FILE, read_description, save_training_checkpoint
from transformer.decoding import Hypothesis, beam_search, greedy_decode
from transformer.translator import TOKENIZER_FILE


class Lively(Transformer):
    """A random Transformer says one word for ever. A wild function of its logits makes it write, and end, at random."""

    def output_projection(self, hidden):
        return torch.sin(40 * super().output_projection(hidden))


def make_model(n=400, kind=Lively, **changes):
    torch.manual_seed(0)
    sizes = {"src_vocab_size": n, "tgt_vocab_size": n, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}
    return kind(TransformerConfig(**{**sizes, **changes}))


@pytest.fixture(scope="module")
def pairs():
    return list(itertools.islice(embedded_corpus("train"), 500))


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return Tokenizer.train((text for pair in pairs for text in (pair.source, pair.target)), 400)


@pytest.fixture(scope="module")
def translator(tokenizer):
    """Random, in float64: what it writes is nonsense, but the same nonsense whatever the batch."""
    return Translator(make_model().double(), tokenizer)


def sentences(lengths):
    """One of each number of words, cut from the corpus."""
    words = " ".join(pair.source for pair in itertools.islice(embedded_corpus("test"), 50)).split()
    return [" ".join(words[n : n + length]) for n, length in enumerate(lengths)]


LENGTHS = (7, 1, 20, 4, 15, 1, 9, 10)

# ---- batches ----


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"beam_size": 3, "alpha": 0.0}], ids=str)
def test_neither_batch_nor_company_nor_order_counts(translator, options):
    lines = sentences(LENGTHS)
    alone = [translator.translate([line], **options)[0] for line in lines]
    assert len(set(alone)) == len(alone) > sum(map(bool, alone)) - 1 > 5, "else there is nothing to tell apart"
    longest = max(len(translator.tokenizer.encode(line)) + 1 for line in lines)
    for batch_tokens in (longest, 2 * longest, 300, 10**9):
        assert translator.translate(lines, batch_tokens=batch_tokens, **options) == alone
    assert translator.translate(lines[::-1], **options) == alone[::-1]
    assert translator.translate([lines[0], *lines, lines[0]], **options) == [alone[0], *alone, alone[0]]
    assert translator.translate((line for line in lines), **options) == alone, "any iterable will do"


def test_it_searches_as_the_paper_does(translator):
    lines = sentences(LENGTHS[:5])
    tokenizer, model = translator.tokenizer, translator.model

    def decoded(decode):
        return [tokenizer.decode(decode(torch.tensor([[*tokenizer.encode(line), 2]]))) for line in lines]

    assert translator.translate(lines) == decoded(lambda src: beam_search(model, src, 4, 0.6)[0][0].ids)
    assert translator.translate(lines, beam_size=1) == decoded(lambda src: greedy_decode(model, src)[0])
    assert translator.translate(lines, alpha=5.0) == decoded(lambda src: beam_search(model, src, 4, 5.0)[0][0].ids)
    assert len({tuple(translator.translate(lines, **how)) for how in ({}, {"beam_size": 1}, {"alpha": 5.0})}) == 3


@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_batch_is_larger_than_asked_for(translator, monkeypatch, beam_size):
    import transformer.translator as module

    sizes = []

    def decode(model, src, *rest, **options):
        sizes.append((src.size(0), src.numel() * beam_size))
        return [[Hypothesis([5], 0.0, 0.0)] if beam_size > 1 else [5]] * src.size(0)

    monkeypatch.setattr(module, "greedy_decode" if beam_size == 1 else "beam_search", decode)
    lines = sentences([1 + i % 30 for i in range(100)])
    for batch_tokens in (480, 1200, 16_000):
        sizes.clear()
        outputs = translator.translate(lines, beam_size=beam_size, batch_tokens=batch_tokens)
        assert outputs == [translator.tokenizer.decode([5])] * 100
        assert sum(rows for rows, _ in sizes) == 100 and max(numel for _, numel in sizes) <= batch_tokens
    assert len(sizes) <= 2, "room is used"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beam_size": 0}, "beam_size is 0; it must be a whole number"),
        ({"beam_size": 2.5}, "beam_size is 2.5; it must be a whole number"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"batch_tokens": 0}, "batch_tokens is 0; it must be a whole number"),
    ],
)
def test_an_option_that_cannot_be(translator, options, said):
    with pytest.raises(ValueError, match=said):
        translator.translate(["The dog."], errors="empty", **options)


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_counts_that_cannot_be(translator, number):
    with pytest.raises(ValueError, match=f"chunk is {number}; it must be a whole number"):
        translator.stream(["The dog."], chunk=number)
    with pytest.raises(ValueError, match=f"n is {number}; it must be a whole number"):
        translator.n_best(["The dog."], number)


# ---- streams ----


@pytest.mark.parametrize("chunk", [1, 3, 5, 1000])
def test_a_stream_gives_what_a_list_gives(toy, chunk):
    lines = ["", *sentences(LENGTHS), "\udcff", sentences([5])[0], " "]
    expected = toy.translate(lines, errors="empty")
    assert list(toy.stream(lines, errors="empty", chunk=chunk)) == expected
    assert list(toy.stream(iter(lines), errors="empty", chunk=chunk, beam_size=1, batch_tokens=200)) == toy.translate(
        lines, errors="empty", beam_size=1
    )
    assert list(toy.stream([], chunk=chunk)) == []


def test_an_endless_stream_is_read_as_it_is_needed(toy):
    read = 0

    def endless():
        nonlocal read
        for read in itertools.count(1):  # noqa: B007 - the test looks at it
            yield "The dog sleeps."

    outputs = toy.stream(endless(), chunk=4, beam_size=1)
    assert read == 0
    assert len({next(outputs) for _ in range(4)}) == 1 and read == 4
    next(outputs)
    assert read == 8


def test_a_stream_numbers_its_lines_and_fails_when_it_is_their_turn(toy):
    lines = ["The dog sleeps."] * 5 + ["\ud83d"]
    outputs = toy.stream(lines, chunk=2)
    assert len(list(itertools.islice(outputs, 4))) == 4
    with pytest.raises(ValueError, match="line 6 is not text"):
        next(outputs)


def test_a_stream_takes_no_single_line(toy):
    with pytest.raises(TypeError, match="put the one line into a list"):
        toy.stream("The dog sleeps.")
    with pytest.raises(ValueError, match=r'choose "raise" or "empty"'):
        toy.stream([], errors="ignore")


# ---- the best few ----


def test_the_best_few(toy):
    lines = ["", *sentences(LENGTHS), "\udcff"]
    found = toy.n_best(lines, 3, errors="empty")
    assert [best[0][0] for best in found] == toy.translate(lines, errors="empty")
    assert found[0] == found[-1] == [("", 0.0)]
    for best in found[1:-1]:
        scores = [score for _, score in best]
        assert 1 <= len(best) <= 3 and scores == sorted(scores, reverse=True) and max(scores) < 0
    assert sum(len(best) == 3 for best in found) >= len(found) / 2, "fewer only where fewer finished"
    src = torch.tensor([[*toy.tokenizer.encode(lines[1]), 2]])
    expected = beam_search(toy.model, src, 4, 0.6, n_best=3)[0]
    assert found[1] == [(toy.tokenizer.decode(h.ids), pytest.approx(h.score, abs=1e-5)) for h in expected]


def test_a_beam_of_one_gives_what_greedy_decoding_gives(translator):
    lines = sentences(LENGTHS)
    found = translator.n_best(lines, 1, beam_size=1)
    assert [best[0][0] for best in found] == translator.translate(lines, beam_size=1)
    assert all(score < 0 for ((_, score),) in found)


def test_more_than_the_beam_holds(translator):
    with pytest.raises(ValueError, match="n_best is 5; it must be at most 4"):
        translator.n_best(["The dog."], 5)
    with pytest.raises(ValueError, match="line 2 is not text"):
        translator.n_best(["The dog.", "\udcff"], 2)


def test_nothing_in_nothing_out(translator):
    assert translator.translate([]) == []
    assert translator.translate(["", " ", "\t \n", "\N{NO-BREAK SPACE}\u2028"]) == [""] * 4
    line = sentences([5])[0]
    assert translator.translate(["", line, "  ", line]) == ["", translator.translate([line])[0]] * 2


ODD = [
    "👩\u200d👩\u200d👧 👍🏽",
    "a\x00b\x07\x1b[31mred\x1b[0m",
    "\u202eשלום\u202c مرحبا",
    "zero\u200bwidth\u200d",
    "one\nline\r\nof\u2028many\x85breaks",
    "ﬁ e\u0301 \ufeff \ufffd \U0010ffff",
    "x" * 300,
    "\u2581",
]


def test_any_text_gives_one_text_each(translator):
    outputs = translator.translate(ODD)
    assert len(outputs) == len(ODD) and all(isinstance(output, str) for output in outputs)
    for output in outputs:
        output.encode("utf-8")
    assert outputs == [translator.translate([line])[0] for line in ODD]


# ---- what cannot be translated ----


@pytest.mark.parametrize("bad", ["word " * 10_000, "half a character: \ud83d", "\udcff"], ids=["long", "half", "byte"])
def test_a_line_that_cannot_be_translated(translator, bad):
    good = sentences([5, 9])
    lines = ["", good[0], bad, good[1]]
    said = r"line 3 (has [\d]+ tokens, more than 4000; split it|is not text: .*; mend its encoding)\."
    with pytest.raises(ValueError, match=said):
        translator.translate(lines)
    expected = translator.translate(good)
    assert translator.translate(lines, errors="empty") == ["", expected[0], "", expected[1]]


def test_the_longest_line_that_fits(translator):
    line = sentences([12])[0]
    n = len(translator.tokenizer.encode(line)) + 1  # the end token needs room too
    assert translator.translate([line], batch_tokens=n) == translator.translate([line])
    with pytest.raises(ValueError, match=f"line 1 has {n} tokens, more than {n - 1}"):
        translator.translate([line], batch_tokens=n - 1)


def test_learned_positions_are_a_limit(tokenizer):
    translator = Translator(make_model(positions="learned", max_len=12), tokenizer)
    with pytest.raises(ValueError, match=r"line 2 has \d+ tokens, more than 12"):
        translator.translate(["The dog.", "word " * 13])
    lines = ["a a a", "b", "c d"]
    assert len(translator.translate(lines)) == 3  # and the output may not run beyond them either


@pytest.mark.parametrize("lines", ["The dog sleeps.", ""])
def test_a_string_in_place_of_a_list(translator, lines):
    with pytest.raises(TypeError, match="list of lines; put the one line into a list"):
        translator.translate(lines)


@pytest.mark.parametrize("line", [None, 3, b"bytes", ["nested"]])
@pytest.mark.parametrize("errors", ["raise", "empty"])
def test_a_line_that_is_no_string(translator, line, errors):
    with pytest.raises(TypeError, match=f"must be a str, not {type(line).__name__}"):
        translator.translate(["fine", line], errors=errors)


@pytest.mark.parametrize("errors", ["ignore", "", None])
def test_unknown_errors(translator, errors):
    with pytest.raises(ValueError, match=r'choose "raise" or "empty"'):
        translator.translate(["The dog."], errors=errors)


# ---- files ----


def test_saved_and_read_again(tokenizer, tmp_path):
    translator = Translator(make_model(kind=Transformer), tokenizer)
    translator.save(tmp_path / "run", scores={"exact": 0.0})
    again = Translator.from_pretrained(tmp_path / "run", "cpu")
    lines = sentences(LENGTHS)
    assert again.translate(lines) == translator.translate(lines)
    assert again.tokenizer.model == tokenizer.model and not again.model.training
    known = {"scores": {"exact": 0.0}, "tokenizer_sha256": hashlib.sha256(tokenizer.model).hexdigest()}
    assert read_description(tmp_path / "run")["about"] == known
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE]
    with pytest.raises(ValueError, match="device 'nonsense' is unknown"):
        Translator.from_pretrained(tmp_path / "run", "nonsense")


def test_a_model_in_training_mode_is_put_right(tokenizer):
    model = make_model(dropout=0.5).train()
    translator = Translator(model, tokenizer)
    assert translator.translate(["The dog."]) == translator.translate(["The dog."])


@pytest.mark.parametrize(
    ("n", "changes", "said"),
    [
        (399, {}, "tokenizer has 400 pieces, the model reads 399 and writes 399"),
        (401, {}, "tokenizer has 400 pieces, the model reads 401 and writes 401"),
        (400, {"tgt_vocab_size": 500, "tie_embeddings": False}, "reads 400 and writes 500"),
        (400, {"src_vocab_size": 500, "tie_embeddings": False}, "reads 500 and writes 400"),
        (400, {"pad_id": 3, "eos_id": 0}, "padding, begin and end are 3, 1 and 0, the tokenizer's 0, 1 and 2"),
    ],
)
def test_a_tokenizer_of_another_model(tokenizer, tmp_path, n, changes, said):
    model = make_model(n, kind=Transformer, **changes)
    with pytest.raises(ValueError, match=f"{said}; they do not belong together"):
        Translator(model, tokenizer)
    save_checkpoint(tmp_path, model)
    (tmp_path / TOKENIZER_FILE).write_bytes(tokenizer.model)
    with pytest.raises(ValueError, match="do not belong together"):
        Translator.from_pretrained(tmp_path, "cpu")


def test_a_run_that_has_not_ended(tokenizer, tmp_path):
    model = make_model(kind=Transformer)
    save_training_checkpoint(tmp_path, 10, model, {}, keep=5)
    with pytest.raises(FileNotFoundError, match=f"no model yet; run: transformer average --run {tmp_path}"):
        Translator.from_pretrained(tmp_path)
    Translator(model, tokenizer).save(tmp_path)
    assert Translator.from_pretrained(tmp_path, "cpu").translate(["The dog."])


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE])
def test_a_missing_or_broken_file(tokenizer, tmp_path, name):
    Translator(make_model(kind=Transformer), tokenizer).save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2 + 1])
    with pytest.raises(ValueError, match=r"damaged|whole\?"):
        Translator.from_pretrained(tmp_path, "cpu")
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}; give a folder"):
        Translator.from_pretrained(tmp_path, "cpu")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere has no .*; give a folder that holds a trained model"):
        Translator.from_pretrained(tmp_path / "nowhere")


# ---- the model that ships with the book ----


@pytest.fixture(scope="module")
def toy():
    return transformer.load_toy_translator()


def test_the_shipped_model_is_small():
    sizes = {file.name: len(file.read_bytes()) for file in (files("transformer") / "pretrained").iterdir()}
    assert set(sizes) == {CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE}
    assert sum(sizes.values()) <= 2_500_000
    assert sum(parameter.numel() for parameter in transformer.load_toy_translator().model.parameters()) <= 1_200_000


def test_the_shipped_model_loads_in_under_a_second(toy):
    fastest = min(timed(transformer.load_toy_translator.__wrapped__) for _ in range(3))
    assert fastest < 1
    assert transformer.load_toy_translator() is toy, "loaded once"
    assert next(toy.model.parameters()).device.type == "cpu" and not toy.model.training


def timed(function):
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def test_the_shipped_model_translates(toy):
    pairs = list(itertools.islice(embedded_corpus("test", seed=123), 300))
    outputs = toy.translate([pair.source for pair in pairs])
    wrong = [(p.source, p.target, output) for p, output in zip(pairs, outputs, strict=True) if output != p.target]
    assert len(wrong) <= 15, wrong[:5]


def test_the_shipped_model_gives_the_same_in_every_batch(toy):
    lines = sentences(LENGTHS)
    alone = [toy.translate([line])[0] for line in lines]
    assert toy.translate(lines) == toy.translate(lines, batch_tokens=80) == alone


def test_the_shipped_model_meets_odd_text(toy):
    outputs = toy.translate([*ODD, "I love music.", "DOG", "the"])
    assert len(outputs) == len(ODD) + 3 and all(isinstance(output, str) for output in outputs)


def test_the_shipped_model_in_a_new_process(toy):
    line = next(embedded_corpus("test", seed=5)).source
    code = "import sys, transformer; print(ascii(transformer.load_toy_translator().translate([sys.argv[1]])))"
    done = subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == ascii(toy.translate([line])), done.stderr
    assert not done.stderr
