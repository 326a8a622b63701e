"""Section 5.1: text to ids and back, and batches of about equally many tokens."""

import gzip
import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from transformer import Tokenizer, embedded_corpus
from transformer.data import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNKNOWN_ID,
    EncodedPairs,
    TokenBatches,
    copy_task,
    make_batch,
    pad,
    padding_share,
)

SPACE = "\u2581"  # SentencePiece writes a space so; the one character that does not come back
ODD = (
    "",
    " ",
    "  two  spaces  ",
    "\ttab\t",
    "a\nb\n",
    "\r\n",
    "\x00",
    "a\x00b\x1b[31m",
    "\N{NO-BREAK SPACE}\N{SOFT HYPHEN}\N{ZERO WIDTH SPACE}",
    "\ufeffmark",
    "\x85\u2028\u2029",
    "ﬁ ﬂ ﬃ",
    "e\u0301 \u00e9 A\u030a \u00c5",
    "Straße, „Größe“, ẞ",
    "\N{FAMILY} 👩\u200d👩\u200d👧 🇩🇪 👍🏽",
    "שלום עולם مرحبا \u202eabc\u202c",
    "<s> </s> <pad> <unk> <0x41>",
    "Hello,world!Hello , world !",
    "\ue000\ufffd\ufffe\U0010ffff",
    "漢字 한글 ไทย",
)


def corpus(n, split="train", seed=0):
    return list(itertools.islice(embedded_corpus(split, seed), n))


@pytest.fixture(scope="module")
def pairs():
    return corpus(4000)


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return Tokenizer.train((text for pair in pairs[:1500] for text in (pair.source, pair.target)), 500)


@pytest.fixture(scope="module")
def ids(pairs, tokenizer):
    sources = tokenizer.encode_lines([pair.source for pair in pairs])
    return list(zip(sources, tokenizer.encode_lines([pair.target for pair in pairs]), strict=True))


# ---- text ----


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_come_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


text_of_any_kind = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE), max_size=60)
text_of_odd_parts = st.lists(st.sampled_from([*ODD, " ", "\n", "The dog", "Straße"]), max_size=6).map("".join)


@given(text=text_of_any_kind | text_of_odd_parts)
@example(text="  ")
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(UNKNOWN_ID < i < len(tokenizer) for i in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID, PAD_ID]) == text


def test_the_corpus_comes_back_and_many_lines_are_encoded_as_each_alone(tokenizer):
    lines = [text for pair in corpus(300, "test", seed=5) for text in (pair.source, pair.target)] + list(ODD)
    together = tokenizer.encode_lines(lines)
    assert together == [tokenizer.encode(line) for line in lines]
    assert [tokenizer.decode(ids) for ids in together] == lines


@given(data=st.data())
def test_any_ids_decode(tokenizer, data):
    """A model may write what no text encodes to: half a character in bytes, special ids anywhere."""
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=20))
    text = tokenizer.decode(ids)
    assert isinstance(text, str)
    text.encode("utf-8")
    assert tokenizer.decode([i for i in ids if i > UNKNOWN_ID]) == text


def test_the_pieces_are_the_text_with_spaces_marked(tokenizer):
    ids = tokenizer.encode("The dog sees it.")
    assert "".join(tokenizer.pieces(ids)) == SPACE + SPACE.join(["The", "dog", "sees", "it."])
    special = tokenizer.pieces([PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID])
    assert special == ["<pad>", "<s>", "</s>", "<unk>"]


def test_learning_and_loading_are_repeatable(tokenizer, pairs, tmp_path):
    again = Tokenizer.train([text for pair in pairs[:1500] for text in (pair.source, pair.target)], 500)
    assert again.encode("Ein neuer Satz.") == tokenizer.encode("Ein neuer Satz.")
    assert [again.pieces([i]) for i in range(500)] == [tokenizer.pieces([i]) for i in range(500)]
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.model)
    loaded = Tokenizer.load(tmp_path / "tokenizer.model")
    assert len(loaded) == len(tokenizer) == 500
    assert loaded.encode("The dog sees it.") == tokenizer.encode("The dog sees it.")


@pytest.mark.parametrize("text", ["\ud800", "a dog \udcff", "\ude00\ud83d"])
def test_half_a_character_is_refused(tokenizer, text):
    for encode in (tokenizer.encode, lambda line: tokenizer.encode_lines(["fine", line])):
        with pytest.raises(ValueError, match=r"lone surrogate, '\\ud[0-9a-f]{3}' at position \d+.*; mend its encoding"):
            encode(text)
    with pytest.raises(ValueError, match="lone surrogate"):
        Tokenizer.train(["a b c", text], 300)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a list"]])
def test_what_is_no_text_is_refused(tokenizer, text):
    with pytest.raises(TypeError, match=f"must be a str, not {type(text).__name__}"):
        tokenizer.encode(text)


@pytest.mark.parametrize("ids", [[-1], [500], [4, 5, 10**12]])
def test_ids_out_of_range_are_refused(tokenizer, ids):
    with pytest.raises(ValueError, match=r"from 0 to 499.*another model"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["junk", "cut short", "a stray tail", "a pickle"])
def test_bytes_that_are_no_model_are_refused(tokenizer, kind, tmp_path):
    model = tokenizer.model
    content = {
        "junk": b"this is not a model",
        "cut short": model[: len(model) // 2 + 1],
        "a stray tail": model + b"\xff\xff\xff",
        "a pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    }[kind]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    for make in (lambda: Tokenizer(content), lambda: Tokenizer.load(path)):
        with pytest.raises(ValueError, match="not a SentencePiece model; is the file whole"):
            make()
    with pytest.raises(ValueError, match="special ids"):
        Tokenizer(b"")
    with pytest.raises(FileNotFoundError):
        Tokenizer.load(tmp_path / "missing")


def test_a_model_with_other_special_ids_is_refused(pairs):
    import io

    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    lines = (pair.source for pair in pairs[:300])
    SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, vocab_size=120, minloglevel=2)
    with pytest.raises(ValueError, match=r"special ids \(-1, 1, 2, 0\); this book's have 0, 1, 2, 3"):
        Tokenizer(model.getvalue())


@pytest.mark.parametrize(
    ("lines", "size", "reason"),
    [
        (["a b c"], 1000, "cannot learn 1000 pieces.*too high.*<= 267"),
        (["a b c"], 10, "cannot learn 10 pieces.*smaller"),
        (["a b c"], 0, "cannot learn 0 pieces.*not positive"),
        ([], 300, "cannot learn 300 pieces.*too little text"),
        (["", ""], 300, "cannot learn 300 pieces.*too little text"),
    ],
)
def test_too_many_pieces_for_the_text(lines, size, reason, capfd):
    with pytest.raises(ValueError, match=reason) as caught:
        Tokenizer.train(lines, size)
    assert "trainer_interface" not in str(caught.value), "the library's insides do not help"
    assert not capfd.readouterr().err


def test_one_line_in_place_of_many_is_refused():
    with pytest.raises(TypeError, match="into a list"):
        Tokenizer.train("a b c", 300)


# ---- batches ----


def test_special_ids():
    assert (PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID) == (0, 1, 2, 3)


sequences = st.lists(st.integers(4, 30), max_size=7)


@given(pairs=st.lists(st.tuples(sequences, sequences), min_size=1, max_size=6))
def test_a_batch_is_its_pairs(pairs):
    batch = make_batch(pairs)
    assert batch.src.dtype == batch.tgt_in.dtype == batch.tgt_out.dtype == torch.int64
    assert batch.tgt_in.shape == batch.tgt_out.shape
    assert batch.src.shape == (len(pairs), 1 + max(len(source) for source, _ in pairs))
    assert batch.n_tokens == sum(len(target) + 1 for _, target in pairs)
    for (source, target), src, tgt_in, tgt_out in zip(pairs, batch.src, batch.tgt_in, batch.tgt_out, strict=True):
        assert src[: len(source) + 1].tolist() == [*source, EOS_ID] and not src[len(source) + 1 :].any()
        n = len(target) + 1
        assert tgt_in[:n].tolist() == [BOS_ID, *target] and not tgt_in[n:].any()
        assert tgt_out[:n].tolist() == [*target, EOS_ID] and not tgt_out[n:].any()
        assert torch.equal(tgt_in[1:n], tgt_out[: n - 1]), "what is read next is what was to be said"
    moved = batch.to("cpu")
    assert torch.equal(moved.src, batch.src) and torch.equal(moved.tgt_out, batch.tgt_out)


def test_pad():
    assert pad([[5], [6, 7, 8], []], pad_id=9).tolist() == [[5, 9, 9], [6, 7, 8], [9, 9, 9]]


def lists(plan):
    return [indices.tolist() for indices in plan]


def widest(pairs, indices):
    return max(len(side) for i in indices for side in pairs[i])


many_pairs = st.lists(st.tuples(sequences, sequences), min_size=1, max_size=40)


@given(pairs=many_pairs, room=st.integers(0, 60), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_every_pair_once_an_epoch_and_never_more_than_fits(pairs, room, seed, epoch):
    longest = 1 + max(len(side) for pair in pairs for side in pair)
    batches = TokenBatches(pairs, longest + room, seed)
    plan = lists(batches.plan(epoch))
    assert sorted(i for indices in plan for i in indices) == list(range(len(pairs)))
    made = list(batches.epoch(epoch))
    for indices, batch in zip(plan, made, strict=True):
        assert max(batch.src.numel(), batch.tgt_out.numel()) <= longest + room
        assert torch.equal(batch.src, make_batch([pairs[i] for i in indices]).src)
    again = lists(TokenBatches(list(pairs), longest + room, seed).plan(epoch))
    assert again == plan, "a function of seed and epoch alone"
    for first, second in itertools.pairwise(sorted(plan, key=lambda indices: widest(pairs, indices[:1]))):
        assert widest(pairs, first) <= widest(pairs, second[:1]), "grouped by length"
    assert len(plan) == len(batches.plan(epoch + 1)), "all epochs have equally many batches"


def test_batches_on_the_corpus(ids):
    batches = TokenBatches(ids, max_tokens=1500, seed=3)
    first, second = list(batches.epoch(0)), list(batches.epoch(1))
    for epoch in (first, second):
        assert padding_share(epoch) < 0.05
        assert max(max(batch.src.numel(), batch.tgt_out.numel()) for batch in epoch) <= 1500
        sizes = [max(batch.src.numel(), batch.tgt_out.numel()) for batch in epoch]
        assert sum(sizes) / len(sizes) > 0.9 * 1500, "batches are full"
        rows = Counter(tuple(row[row != PAD_ID].tolist()) for batch in epoch for row in batch.src)
        assert rows == Counter((*source, EOS_ID) for source, _ in ids)

    plans = [lists(batches.plan(epoch)) for epoch in range(3)]
    assert plans[0] != plans[1] != plans[2] and plans[0] != plans[2]
    assert {frozenset(batch) for batch in plans[0]} != {frozenset(batch) for batch in plans[1]}, "others share a batch"
    assert lists(TokenBatches(ids, 1500, seed=4).plan(0)) != plans[0]
    assert lists(TokenBatches(ids, 1500, seed=3).plan(2)) == plans[2], "epoch 2 does not need epochs 0 and 1"
    lengths = [max(len(ids[i][1]) for i in indices) for indices in plans[0]]
    assert lengths != sorted(lengths), "batches come in a shuffled order, not from short to long"


def test_iterating_runs_through_epoch_after_epoch(ids):
    batches = TokenBatches(ids[:200], max_tokens=600, seed=1)
    n = len(batches.plan(0))
    expected = [*batches.epoch(0), *batches.epoch(1)]
    seen = list(itertools.islice(batches, len(expected)))
    assert len(expected) >= 2 * n - 1
    assert all(
        torch.equal(a.src, b.src) and torch.equal(a.tgt_out, b.tgt_out) for a, b in zip(seen, expected, strict=True)
    )
    assert torch.equal(next(iter(batches)).src, expected[0].src), "every iterator begins anew"
    for done in (0, 1, n - 1, n, n + 1):
        rest = list(itertools.islice(batches.from_update(done), len(expected) - done))
        assert all(torch.equal(a.src, b.src) for a, b in zip(rest, expected[done:], strict=True)), done


def test_later_epochs_begin_where_they_should(ids):
    batches = TokenBatches(ids[:100], max_tokens=400, seed=1)
    n = len(batches.plan(0))
    assert torch.equal(next(batches.from_update(7 * n)).src, next(batches.epoch(7)).src)


# ---- batches shared out ----


def rows(batches):
    """The pairs of batches, without padding, as a multiset."""
    found = Counter()
    for batch in batches:
        for src, tgt_in, tgt_out in zip(batch.src, batch.tgt_in, batch.tgt_out, strict=True):
            m = int((tgt_out != PAD_ID).sum())
            if m:  # a blank row has no target token
                assert tgt_in[:m].tolist() == [BOS_ID, *tgt_out[: m - 1].tolist()]
                found[tuple(src[src != PAD_ID].tolist()), tuple(tgt_out[:m].tolist())] += 1
    return found


@given(pairs=many_pairs, parts=st.integers(1, 9))
def test_every_pair_is_in_one_part(pairs, parts):
    batch = make_batch(pairs)
    dealt = batch.split(parts)
    assert len(dealt) == parts and rows(dealt) == rows([batch])
    assert sum(part.n_tokens for part in dealt) == batch.n_tokens
    longest = 2 + max(len(source) + len(target) for source, target in pairs)
    sizes = [int((part.src != PAD_ID).sum() + part.n_tokens) for part in dealt if part.n_tokens]
    assert max(sizes) - min(sizes) <= longest, "as even as whole sentences can be"
    for part in dealt:
        if parts > 1 and part.n_tokens:
            assert (part.src[:, -1] != PAD_ID).any() and (part.tgt_out[:, -1] != PAD_ID).any(), "no empty column"


def test_a_part_without_pairs_adds_nothing():
    blank, alone = sorted(make_batch([([5, 6], [7])]).split(2), key=lambda part: part.n_tokens)
    assert alone.n_tokens == 2 and blank.n_tokens == 0
    assert blank.src.shape == blank.tgt_in.shape == blank.tgt_out.shape == (1, 1)
    assert blank.src.item() == EOS_ID, "a source of padding alone would have nothing to attend to"


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_have_equally_much_to_do(ids, ranks):
    batches = TokenBatches(ids, max_tokens=6000)
    held = torch.zeros(ranks)
    for batch in batches.epoch(0):
        held += torch.tensor([part.n_tokens for part in batch.split(ranks)])
    assert held.max() / held.min() < 1.05


# ---- pairs on disk ----


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_pairs_on_disk(tmp_path, ids, dtype):
    pairs = [*ids[:50], ([], [5]), ([6], []), ([], [])]
    store(tmp_path / "train", pairs, dtype)
    encoded = EncodedPairs.load(tmp_path / "train")
    assert len(encoded) == len(pairs)
    assert [(source.tolist(), target.tolist()) for source, target in encoded] == pairs
    assert [tuple(map(list, pair)) for pair in encoded[3:9:2]] == pairs[3:9:2]
    assert encoded[-1][0].size == 0 and encoded[-53][1].tolist() == pairs[0][1]
    assert encoded.src_lengths.tolist() == [len(source) for source, _ in pairs]
    assert encoded.tgt_lengths.tolist() == [len(target) for _, target in pairs]
    for i in (53, -54):
        with pytest.raises(IndexError):
            encoded[i]
    on_disk, in_memory = (TokenBatches(which, 300, seed=5) for which in (encoded, pairs))
    for a, b in zip(on_disk.epoch(0), in_memory.epoch(0), strict=True):
        assert torch.equal(a.src, b.src) and torch.equal(a.tgt_in, b.tgt_in) and a.src.dtype == torch.int64


def store(prefix, pairs, dtype=np.uint16):
    for side, name in enumerate(("src", "tgt")):
        np.save(f"{prefix}.{name}.ids.npy", np.array([i for pair in pairs for i in pair[side]], dtype=dtype))
        np.save(f"{prefix}.{name}.ends.npy", np.cumsum([len(pair[side]) for pair in pairs]))


def test_pairs_that_do_not_fit_together_are_refused(tmp_path):
    store(tmp_path / "a", [([5, 6], [7]), ([8], [9])])
    (tmp_path / "a.tgt.ids.npy").unlink()
    with pytest.raises(FileNotFoundError):
        EncodedPairs.load(tmp_path / "a")
    store(tmp_path / "b", [([5, 6], [7]), ([8], [9])])
    np.save(tmp_path / "b.src.ends.npy", np.array([4, 3]))  # the second sentence would end before the first
    with pytest.raises(ValueError, match="do not fit together; prepare"):
        EncodedPairs.load(tmp_path / "b")
    for wrong in ([7, 9, 9], [7]):
        np.save(tmp_path / "a.tgt.ids.npy", np.array(wrong, dtype=np.uint16))
        with pytest.raises(ValueError, match="do not fit together; prepare"):
            EncodedPairs.load(tmp_path / "a")
    store(tmp_path / "b", [([5, 6], [7])])
    (tmp_path / "b.src.ends.npy").write_bytes((tmp_path / "a.src.ends.npy").read_bytes())
    with pytest.raises(ValueError, match="do not fit together"):
        EncodedPairs.load(tmp_path / "b")


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    store(tmp_path / "a", [([5, 6], [7])])
    np.save(tmp_path / "a.src.ids.npy", np.array([3.5, "x"], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        EncodedPairs.load(tmp_path / "a")


def test_real_text(test_data):
    sides = []
    for language in ("en", "de"):
        path = test_data / "multi30k" / f"train.{language}.gz"
        if not path.is_file():
            pytest.skip(f"TRANSFORMER_TEST_DATA has no multi30k/train.{language}.gz")
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        sides.append(text.removesuffix("\n").split("\n"))
    english, german = sides
    assert len(english) == len(german) == 29_000
    tokenizer = Tokenizer.train(
        [line for pair in zip(english[:6000], german[:6000], strict=True) for line in pair], 4000
    )
    sources, targets = tokenizer.encode_lines(english), tokenizer.encode_lines(german)
    back = [tokenizer.decode(ids) for ids in targets]
    assert back == german, "no-break spaces, tabs, double spaces and @@ included"
    batches = list(TokenBatches(list(zip(sources, targets, strict=True)), max_tokens=4096).epoch(0))
    assert sum(batch.src.size(0) for batch in batches) == 29_000
    assert padding_share(batches) < 0.05
    papers = list(TokenBatches(list(zip(sources, targets, strict=True)), max_tokens=25_000).epoch(0))
    eighths = [batch.split(8) for batch in papers]
    assert padding_share(part for parts in eighths for part in parts) < 0.05, "the paper's batch on its eight devices"
    shares = torch.tensor([[part.n_tokens for part in parts] for parts in eighths])
    both = torch.tensor([[part.n_tokens + int((part.src != PAD_ID).sum()) for part in parts] for parts in eighths])
    assert (both.max(dim=1).values / both.min(dim=1).values).max() < 1.05, both
    assert shares.sum(dim=0).max() / shares.sum(dim=0).min() < 1.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pad([]), "no sequence to pad"),
        (lambda: make_batch([]), "no sequence to pad"),
        (lambda: padding_share([]), "no batch"),
        (lambda: TokenBatches([], 100), "0 pairs.*at least one pair"),
        (lambda: TokenBatches([([5] * 10, [6])], 10), "longest of 11 tokens.*batches of 10 tokens"),
        (lambda: TokenBatches([([5], [6] * 10)], 10), "longest of 11 tokens.*batches of 10 tokens"),
        (lambda: TokenBatches([([5], [6])], 0), "room for the longest"),
        (lambda: TokenBatches([([5], [6])], 10, seed=-1), "seed -1.*at least 0"),
        (lambda: copy_task(3, vocab_size=4), "vocab_size=4"),
        (lambda: copy_task(3, min_len=5, max_len=4), "min_len=5 and max_len=4"),
        (lambda: copy_task(3, min_len=-1), "min_len=-1"),
    ],
)
def test_nothing_to_work_with_is_an_error(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert re.search(r"; |, and", str(caught.value)), "the message says what to do"


def test_padding_share_counts_what_is_padding():
    batch = make_batch([([5, 6, 7], [8]), ([5], [8, 9, 9])])
    assert padding_share([batch]) == (2 + 2) / (8 + 8)
    assert padding_share([batch, make_batch([([5], [6])])]) == 4 / (16 + 4)


def test_copy_task():
    pairs = copy_task(300, vocab_size=9, min_len=2, max_len=5, seed=7)
    assert pairs == copy_task(300, vocab_size=9, min_len=2, max_len=5, seed=7) != copy_task(300, vocab_size=9, seed=8)
    assert all(source == target for source, target in pairs)
    assert {len(source) for source, _ in pairs} == {2, 3, 4, 5}
    assert {i for source, _ in pairs for i in source} == {4, 5, 6, 7, 8}
    assert {len(source) for source, _ in copy_task(50, min_len=0, max_len=1)} == {0, 1}
