"""Appendix A2a: text is read, cleaned and encoded, and comes back from the disk as it was."""

import dataclasses
import errno
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer import preparation as module
from transformer.corpus import embedded_corpus
from transformer.data import EncodedPairs, Tokenizer
from transformer.downloads import Corpus, files_corpus
from transformer.preparation import Cleaning, Prepared, clean, embedded_files, prepare, read_lines, read_pairs

# What Python's universal newlines, str.splitlines, awk or a browser would take for the end of a line.
HEX = "".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(20))  # one word, hundreds of pieces
ODD = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r", "\x00", "\ufeff"]


def write(path, text, encoding="utf-8"):
    content = text if isinstance(text, bytes) else text.encode(encoding)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


# ----------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n\r\n", ["one", "two", ""]),
        (b"\xef\xbb\xbfone\ntwo", ["one", "two"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["\ufeffone", "\ufefftwo"]),
        (b"  one \t\n", ["  one \t"]),
        ("Der Bericht \x85 er\u2028ist lang\n".encode(), ["Der Bericht \x85 er\u2028ist lang"]),
    ],
)
def test_lines(tmp_path, name, text, lines):
    path = write(tmp_path / name, text)
    assert list(read_lines(path)) == lines == list(read_lines(str(path)))


@given(st.lists(st.text(st.one_of(st.characters(exclude_characters="\n", codec="utf-8"), st.sampled_from(ODD)))))
def test_only_a_line_feed_ends_a_line(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "text.gz"
    expected = [line.rstrip("\r") for line in lines]
    if expected:
        expected[0] = expected[0].removeprefix("\ufeff")
    assert list(read_lines(write(path, "".join(f"{line}\n" for line in lines)))) == expected


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"one\ntwo\nSch\xf6n\n", "line 3: byte 4 "),
        (b"\xef\xbb\xbf\xff\n", "line 1: byte 4 "),
        (b"one\ncut \xe2\x82", "line 2: byte 5 "),
        ("one\n".encode("utf-16"), "line 1: byte 1 "),
        (b"one\n\xed\xa0\x80\n", "line 2: byte 1 "),  # half a character, as some programs write it
        (b"one\n\xc0\x80\n", "line 2: byte 1 "),  # a NUL in disguise
    ],
)
def test_what_is_not_utf8_is_refused_with_the_place(tmp_path, name, text, place):
    path = write(tmp_path / name, text)
    with pytest.raises(ValueError, match=re.escape(f"{path}, {place}")):
        list(read_lines(path))


def test_a_cut_or_damaged_archive_is_refused_wherever_it_is_cut(tmp_path):
    whole = gzip.compress("\n".join(f"Zeile {i}" for i in range(100)).encode(), mtime=0)
    path = tmp_path / "text.gz"
    for end in range(1, len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"text\.gz is damaged or cut short after line \d+ .*again"):
            list(read_lines(path))
    for place in (0, *range(10, len(whole))):  # between them: time and system, which nobody checks
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"text\.gz"):
            list(read_lines(path))


def test_reading_streams(tmp_path):
    """What is wrong at the end does not keep the beginning from being read."""
    lines = read_lines(write(tmp_path / "text", b"one\ntwo\n\xff\n"))
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(read_lines(tmp_path / "nowhere"))


@pytest.mark.parametrize(("n", "m"), [(3, 5), (5, 3), (0, 2), (2, 0), (1, 2)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_unequal_files_are_refused_with_both_numbers(tmp_path, n, m, suffix):
    source, target = (write(tmp_path / f"{name}{suffix}", "line\n" * k) for name, k in (("src", n), ("tgt", m)))
    shorter, longer = sorted([(n, source), (m, target)])
    with pytest.raises(ValueError) as caught:
        list(read_pairs(source, target))
    assert f"{shorter[1]} ends after {shorter[0]} lines and {longer[1]} after {longer[0]};" in str(caught.value)


# -------------------------------------------------------------------------------------------------------- cleaning


@pytest.mark.parametrize(
    ("source", "target", "fault"),
    [
        ("Good.", "Gut.", None),
        ("", "Gut.", "empty side"),
        ("Good.", " \t\u00a0\u3000", "empty side"),
        ("", "", "empty side"),
        ("caf\ufffd", "Café", "broken Unicode"),
        ("5 \x80", "5 €", "broken Unicode"),
        ("one\x85 two", "eins zwei", "broken Unicode"),
        ("a\x00b", "ab", "broken Unicode"),
        ("half \ud800", "halb", "broken Unicode"),
        ("a\ufeffb", "ab", "broken Unicode"),
        ("tab\tand\u00a0no-break, soft\u00adhyphen, 😀, \u200b", "Tabulator und \u2028 mehr", None),
        ("w " * 250, "w " * 250, None),
        ("w " * 251, "w " * 250, "too many words"),
        ("one", "eins zwei drei", None),
        ("one", "eins zwei drei vier", "length ratio"),
        ("one two three four", "eins", "length ratio"),
    ],
)
def test_rules(source, target, fault):
    assert Cleaning().fault(source, target) == fault
    counts = Counter()
    assert list(clean([(source, target)], counts=counts)) == ([] if fault else [(source, target)])
    assert counts == {fault or "kept": 1}


def test_rules_can_be_changed():
    assert Cleaning(broken=False).fault("caf\ufffd", "Café") is None
    assert Cleaning(max_ratio=4).fault("one", "eins zwei drei vier") is None
    assert Cleaning(max_words=3).fault("a b c d", "a b c d") == "too many words"
    assert len(list(clean([("a", "b")] * 3, Cleaning(duplicates=False)))) == 3
    for wrong in ({"max_words": 0}, {"max_ratio": 0.5}, {"max_pieces": -1}, {"max_ratio": float("nan")}):
        with pytest.raises(ValueError, match="at least 1"):
            Cleaning(**wrong)


words = st.sampled_from(["a", "b", "a b", "a b c d", "", " ", "\ufffd", "b\x85", "a\nb"])
some_pairs = st.lists(st.tuples(words, words), max_size=40)


@given(some_pairs, some_pairs, st.integers(1, 9))
def test_cleaning_against_the_definition(pairs, held_out, chunk):
    """An independent cleaner that remembers everything, whatever the size of the chunks."""
    expected, counted = [], Counter()
    for source, target in pairs:
        n, m = len(source.split()), len(target.split())
        if 0 in (n, m):
            counted["empty side"] += 1
        elif {"\ufffd", "\x85"} & set(source + target):
            counted["broken Unicode"] += 1
        elif max(n / m, m / n) > 3:
            counted["length ratio"] += 1
        elif (source, target) in held_out:
            counted["in dev or test"] += 1
        elif (source, target) in expected:
            counted["duplicate"] += 1
        else:
            counted["kept"] += 1
            expected.append((source, target))
    counts = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        assert list(clean(iter(pairs), counts=counts, held_out=iter(held_out))) == expected
    assert counts == counted and counts.total() == len(pairs)


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=20))
def test_cleaning_keeps_order_counts_all_and_changes_nothing_twice(pairs):
    counts = Counter()
    kept = list(clean(pairs, counts=counts))
    rest = iter(pairs)
    assert all(pair in rest for pair in kept), "not a subsequence"
    assert counts.total() == len(pairs) and counts["kept"] == len(kept)
    again = Counter()
    assert list(clean(kept, counts=again)) == kept and again["kept"] == len(kept) == again.total()


def test_cleaning_streams(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 10)
    endless = ((str(i), str(i)) for i in itertools.count())
    assert list(itertools.islice(clean(endless), 25)) == [(str(i), str(i)) for i in range(25)]


def test_where_the_sides_meet_matters():
    pairs = [("a b", "c"), ("a", "b c"), ("a ", "b c"), ("ab", "c"), ("a", "bc")]
    assert list(clean(pairs)) == pairs


def test_many_distinct_pairs_stay():
    """Across chunks, over more pairs than one chunk holds; a hash too short would lose some."""
    pairs = [(f"{i} of", f"{i} von") for i in range(120_000)]
    counts = Counter()
    assert list(clean(itertools.chain(pairs, pairs[::-1]), counts=counts)) == pairs
    assert counts == {"kept": len(pairs), "duplicate": len(pairs)}


# ------------------------------------------------------------------------------------------------------- preparing


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Four files of training text, dirty, plain and compressed, and dev and test with lines no cleaning would leave."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = [(pair.source, pair.target) for pair in itertools.islice(embedded_corpus("train"), 1500)]
    dirty = [pairs[0], ("", "x"), ("a", "b c d e f"), ("caf\ufffd", "Café"), pairs[3], (HEX, HEX)]
    held_out = [pairs[7], ("", ""), ("one\u2028\x85 two", ""), pairs[7], ("  spaces  ", "\tTab"), ("☕" * 300, "é")]
    splits = {}
    for split, parts in {
        "train": (("a", pairs[:900] + dirty), ("b.gz", pairs[900:])),
        "dev": (("d", held_out),),
        "test": (("t", held_out[::-1]),),
    }.items():
        splits[split] = tuple(
            tuple(
                write(folder / f"{split}.{side}.{name}", "".join(f"{pair[i]}\n" for pair in some))
                for i, side in enumerate(("en", "de"))
            )
            for name, some in parts
        )
    return Corpus("made", "en", "de", **splits)


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    return prepare(corpus, tmp_path_factory.mktemp("prepared") / "made", vocab_size=600, progress=False)


def all_pairs(files):
    return [pair for source, target in files for pair in read_pairs(source, target)]


def content(folder):
    """All of a prepared folder but the time it was made."""
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return {**files, "prepared.json": re.sub(rb'"date": ".*"', b"", files["prepared.json"])}


def decoded(tokenizer, pairs):
    return [tuple(tokenizer.decode(side.tolist()) for side in pair) for pair in pairs]


def test_what_was_written_is_the_cleaned_text(corpus, prepared):
    held_out = all_pairs(corpus.dev) + all_pairs(corpus.test)
    expected = [
        pair
        for pair in clean(all_pairs(corpus.train), held_out=held_out)
        if max(len(prepared.tokenizer.encode(side)) for side in pair) <= 256
    ]
    assert decoded(prepared.tokenizer, prepared.train) == expected
    assert len(expected) > 1400 and not set(expected) & set(held_out)


@pytest.mark.parametrize("split", ["dev", "test"])
def test_dev_and_test_are_never_cleaned(corpus, prepared, split):
    expected = all_pairs(getattr(corpus, split))
    assert len(expected) == 6 and expected == prepared.text(split)
    assert decoded(prepared.tokenizer, getattr(prepared, split)) == expected


def test_what_was_dropped_is_counted_and_shown(corpus, prepared):
    counts = prepared.description["counts"]
    assert sum(counts.values()) == len(all_pairs(corpus.train)) and counts["kept"] == len(prepared.train)
    reasons = {"empty side": 1, "length ratio": 1, "broken Unicode": 1, "too many pieces": 1, "in dev or test": 1}
    assert reasons.items() <= counts.items() and counts["duplicate"] >= 2
    summary = prepared.summary()
    assert f"{len(prepared.train):,} pairs" in summary and "1 broken Unicode" in summary and "1 empty side" in summary
    for split in ("train", "dev", "test"):
        numbers = prepared.description["splits"][split]
        assert numbers["pairs"] == len(getattr(prepared, split))
        assert numbers["source_tokens"] == getattr(prepared, split).src_lengths.sum()
        assert numbers["target_tokens"] == getattr(prepared, split).tgt_lengths.sum()


def test_the_description_says_what_made_it(corpus, prepared):
    settings = prepared.description["settings"]
    assert settings["corpus"] == "made" and settings["languages"] == ["en", "de"] and settings["vocab_size"] == 600
    assert len(prepared.tokenizer) == 600 and settings["cleaning"]["max_ratio"] == Cleaning().max_ratio
    source, _ = settings["inputs"]["train"][1]
    path = corpus.train[1][0]
    assert source == {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert set(prepared.description["versions"]) == {"transformer", "numpy", "sentencepiece"}
    assert str(path.parent) not in json.dumps(prepared.description), "a folder that moves knows no place"


def test_arrays_are_what_numpy_would_have_saved(prepared):
    assert not list(prepared.folder.glob("train.*.txt"))
    for path in prepared.folder.glob("*.npy"):
        array, saved = np.load(path), io.BytesIO()
        np.save(saved, array)
        assert saved.getvalue() == path.read_bytes()
        assert array.dtype == (np.uint16 if ".ids." in path.name else np.int64)


@pytest.mark.parametrize(("pieces", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_ids_that_two_bytes_cannot_hold_get_four(tmp_path, pieces, dtype):
    class Words:
        def __len__(self):
            return pieces

        def encode_lines(self, lines):
            return [[int(word) for word in line.split()] for line in lines]

    pairs = [(f"{pieces - 1} 4", "5"), ("", "6 7 8"), ("9", f"{pieces - 1}")]
    counts = module._write_arrays(tmp_path / "x", pairs, Words())
    assert counts == {"pairs": 3, "source_tokens": 3, "target_tokens": 5}
    loaded = EncodedPairs.load(tmp_path / "x")
    assert [[side.tolist() for side in pair] for pair in loaded] == [
        [[int(word) for word in side.split()] for side in pair] for pair in pairs
    ]
    assert loaded[0][0].dtype == dtype


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_size_of_the_chunks_changes_nothing(corpus, prepared, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    assert content(prepare(corpus, tmp_path / "x", 600, progress=False).folder) == content(prepared.folder)


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_the_number_of_cores_changes_nothing(corpus, prepared, tmp_path, monkeypatch, threads):
    monkeypatch.setattr(
        Tokenizer, "encode_lines", lambda self, lines: self._pieces.encode(list(lines), num_threads=threads)
    )
    assert content(prepare(corpus, tmp_path / "x", 600, progress=False).folder) == content(prepared.folder)


def test_the_vocabulary_is_learnt_from_a_sample_at_equal_distances(corpus, tmp_path, monkeypatch):
    seen = []
    real = Tokenizer.train.__func__

    def train(cls, lines, vocab_size):
        seen.extend(lines)
        return real(cls, seen, vocab_size)

    monkeypatch.setattr(Tokenizer, "train", classmethod(train))
    made = prepare(corpus, tmp_path / "x", 500, sample=400, progress=False)
    held_out = all_pairs(corpus.dev) + all_pairs(corpus.test)
    kept = list(clean(all_pairs(corpus.train), held_out=held_out))
    assert seen == [side for pair in kept[::4] for side in pair] and len(seen) <= 800
    assert made.description["settings"]["sample"] == 400


def test_the_official_part_of_the_test_set(corpus, tmp_path):
    n = sum(1 for files in corpus.test for _ in read_pairs(*files))
    kept = tuple(i % 3 != 1 for i in range(n))
    made = prepare(dataclasses.replace(corpus, kept=kept), tmp_path / "x", 500, progress=False)
    whole, part = made.text("test"), made.text("official")
    assert part == [pair for pair, is_kept in zip(whole, kept, strict=True) if is_kept] and 0 < len(part) < len(whole)
    with pytest.raises(ValueError, match="no text of 'official'"):
        prepare(corpus, tmp_path / "y", 500, progress=False).text("official")


def test_without_dev_and_test(corpus, tmp_path):
    alone = files_corpus("mine", "en", "de", corpus.train[1])
    made = prepare(alone, tmp_path / "deep" / "x", 500, progress=False)
    assert made.dev is None and made.test is None and len(made.train) > 500
    for split in ("dev", "test", "train", "nonsense"):
        with pytest.raises(ValueError, match=f"no text of '{split}'"):
            made.text(split)


def test_names_of_corpora(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_corpus", {"wmt14-en-de": corpus}.__getitem__)
    with pytest.raises(ValueError, match="cannot learn 8000 pieces"):
        prepare("wmt14-en-de", tmp_path / "x", progress=False)
    monkeypatch.setattr(module, "embedded_files", lambda folder: embedded_files(folder, n_pairs=3000))
    made = prepare("embedded", tmp_path / "e", progress=False)
    assert len(made.tokenizer) == 1500 and len(made.dev) == len(made.test) == 1000
    monkeypatch.undo()
    with pytest.raises(ValueError, match="no corpus 'multi31k'"):
        prepare("multi31k", tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"e"}


def test_the_embedded_corpus_as_files(tmp_path):
    corpus = embedded_files(tmp_path / "one", n_pairs=50, seed=3)
    expected = [(pair.source, pair.target) for pair in itertools.islice(embedded_corpus("train", 3), 50)]
    assert all_pairs(corpus.train) == expected and len(all_pairs(corpus.dev)) == len(all_pairs(corpus.test)) == 1000
    embedded_files(tmp_path / "two", n_pairs=50, seed=3)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


# ------------------------------------------------------------------------------------------------ what is there already


def test_the_same_is_used_as_it_is(corpus, prepared, capsys):
    before = {path: path.stat().st_mtime_ns for path in prepared.folder.iterdir()}
    again = prepare(corpus, str(prepared.folder), 600)
    assert {path: path.stat().st_mtime_ns for path in prepared.folder.iterdir()} == before
    assert again.description == prepared.description and "used as it is" in capsys.readouterr().err
    prepare(corpus, prepared.folder, 600, progress=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"vocab_size": 500}, "vocab_size"),
        ({"cleaning": Cleaning(max_words=80)}, "cleaning"),
        ({"sample": 10}, "sample"),
    ],
)
def test_other_settings_are_refused(corpus, prepared, changes, name):
    before = content(prepared.folder)
    with pytest.raises(FileExistsError, match=f"prepared with other {name}; give another folder or delete"):
        prepare(corpus, prepared.folder, **{"vocab_size": 600, "progress": False, **changes})
    assert content(prepared.folder) == before


def test_other_text_is_refused(corpus, prepared):
    other = Corpus("made", "en", "de", corpus.train[::-1], corpus.dev, corpus.test)
    with pytest.raises(FileExistsError, match="other inputs"):
        prepare(other, prepared.folder, 600, progress=False)


def test_a_folder_of_something_else_is_left_alone(corpus, prepared, tmp_path):
    (tmp_path / "notes").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes"):
        with pytest.raises(FileExistsError, match="no whole prepared corpus; give another folder"):
            prepare(corpus, folder, 600, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"] and (tmp_path / "notes").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert content(prepare(corpus, tmp_path / "empty", 600, progress=False).folder) == content(prepared.folder)


def test_a_moved_folder_works(prepared, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in prepared.folder.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    loaded = Prepared.load(str(moved))
    assert loaded.text("dev") == prepared.text("dev") and len(loaded.train) == len(prepared.train)


@pytest.fixture
def copy(prepared, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in prepared.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("change", ["cut", "missing", "longer"])
def test_each_damaged_file_is_named(copy, change):
    for path in sorted(copy.iterdir()):
        whole = path.read_bytes()
        if change == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[: len(whole) // 2] if change == "cut" else whole + b"x")
        with pytest.raises((ValueError, FileNotFoundError), match=re.escape(path.name)):
            Prepared.load(copy)
        path.write_bytes(whole)
    Prepared.load(copy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"format": 1, "files": {}, "splits": {}}',
        "\xff",
        '{"files": 3, "splits": 1}',
        '{"format": 2, "files": {}, "splits": {"train": {}}}',
        '{"format": 1, "files": {}, "splits": {"train": 1, "x": 1}}',
    ],
)
def test_foreign_descriptions_are_refused(copy, text):
    (copy / "prepared.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"prepared\.json is damaged or of another version"):
        Prepared.load(copy)


def test_no_prepared_corpus(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"holds no prepared corpus.*make it with prepare"):
            Prepared.load(folder)


# ---------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        ("one\n" * 9, "eins\n" * 8, "ends after 8 lines"),
        (b"one\n\xff\n", "eins\nzwei\n", "line 2"),
        ("\n" * 9, "\n" * 9, "no training pair of mine is left .*'empty side': 9"),
        ("", "", "no training pair of mine is left"),
        ("one\n", "eins\n", "cannot learn 8000 pieces"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, source, target, complaint):
    files = write(tmp_path / "src", source), write(tmp_path / "tgt", target)
    with pytest.raises(ValueError, match=complaint):
        prepare(files_corpus("mine", "en", "de", files), tmp_path / "x", progress=False)
    assert {path.name for path in tmp_path.iterdir()} == {"src", "tgt"}


def test_when_no_pair_is_short_enough(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"no training pair of made is left .*'too many pieces': 1"):
        prepare(corpus, tmp_path / "x", 500, Cleaning(max_pieces=1), progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"sample": 0}, {"vocab_size": 0}, {"vocab_size": 100}])
def test_numbers_that_make_no_sense(corpus, tmp_path, wrong):
    with pytest.raises(ValueError, match=r"vocabulary|pieces"):
        prepare(corpus, tmp_path / "x", **wrong, progress=False)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_is_removed(corpus, prepared, tmp_path):
    (tmp_path / ".x.unfinished").mkdir()
    (tmp_path / ".x.unfinished" / "train.src.ids.npy.old").write_text("half")
    (tmp_path / ".y.unfinished").mkdir()
    assert content(prepare(corpus, tmp_path / "x", 600, progress=False).folder) == content(prepared.folder)
    assert {path.name for path in tmp_path.iterdir()} == {"x", ".y.unfinished"}


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_full_disk_leaves_nothing(corpus, tmp_path, monkeypatch, step):
    def no_space(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "open":
        monkeypatch.setattr(module, "_ArrayFile", no_space)
    else:
        monkeypatch.setattr(module.os, step, no_space)
    with pytest.raises(OSError, match=r"there is no room for .*x .*No space left.* another disk") as caught:
        prepare(corpus, tmp_path / "x", 500, progress=False)
    assert caught.value.errno == errno.ENOSPC and not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux for the names of open files")
def test_all_is_on_the_disk_before_the_folder_takes_its_name(corpus, tmp_path, monkeypatch):
    events = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle):
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real_fsync(handle)

    def replace(source, target):
        events.append(f"-> {Path(target).name}")
        real_replace(source, target)

    monkeypatch.setattr(module.os, "fsync", fsync)
    monkeypatch.setattr(module.os, "replace", replace)
    made = prepare(corpus, tmp_path / "x", 500, progress=False)
    assert {path.name for path in made.folder.iterdir()} <= set(events[: events.index("-> x")])
    assert events[-1] == tmp_path.name, "the last one is the folder around it"


def test_an_interrupt_leaves_nothing(corpus, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tokenizer, "encode_lines", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tmp_path / "x", 500, progress=False)
    assert not list(tmp_path.iterdir())


HELPER = """
import json, os, resource, signal, sys, time
from pathlib import Path
import transformer.preparation as module
from transformer.downloads import files_corpus

folder = Path(sys.argv[1])
files = ((folder / f"{split}.src.txt", folder / f"{split}.tgt.txt") for split in ("train", "dev"))
corpus = files_corpus("mine", "en", "de", *files)
module._CHUNK = 200

def attempt(name, before=lambda: None, delay=None):
    started = time.monotonic()
    child = os.fork()
    if not child:
        try:
            before()
            module.prepare(corpus, folder / name, 500, progress=False)
            os._exit(0)
        except OSError as error:
            os._exit(3 if "there is no room for" in str(error) and not (folder / f".{name}.unfinished").exists() else 4)
        finally:
            os._exit(5)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), time.monotonic() - started, (folder / name).exists()
"""


def run_helper(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", HELPER + code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_killed_at_any_moment_it_is_whole_or_not_there(tmp_path):
    """Kills spread over the whole run, the last moments among them. Each time the same folder is asked for again."""
    embedded_files(tmp_path, n_pairs=2000)
    code = """
_, seconds, _ = attempt("reference")
seen = []
for i in range(24):
    code, _, exists = attempt("x", delay=seconds * (i + 0.5) / 24)
    whole = exists and len(module.Prepared.load(folder / "x").train) > 0
    seen.append([code, exists, whole, (folder / ".x.unfinished").exists()])
    if exists:
        (folder / "x").rename(folder / f"done{i}")
seen.append(list(attempt("x"))[:1])
print(json.dumps(seen))
"""
    *kills, last = run_helper(code, tmp_path)
    killed = [kill for kill in kills if kill[0] == -9]
    assert len(killed) >= 12 and any(unfinished for *_, unfinished in killed), "no kill hit the work"
    assert all(exists == whole for _, exists, whole, _ in kills)
    assert last == [0] and not (tmp_path / ".x.unfinished").exists(), "a rerun works and clears what was left"
    expected = content(tmp_path / "reference")
    assert content(tmp_path / "x") == expected
    for path in tmp_path.glob("done*"):
        assert content(path) == expected


@pytest.mark.slow
def test_files_that_may_not_grow(tmp_path):
    """A real limit of the system in place of a full disk, at many sizes."""
    embedded_files(tmp_path, n_pairs=2000)
    code = """
seen = []
for size in (0, 1, 500, 3_000, 20_000, 40_000, 60_000, 80_000, 10**7):
    code, _, exists = attempt("x", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    seen.append([code, exists])
print(json.dumps(seen))
"""
    *refused, last = run_helper(code, tmp_path)
    assert refused == [[3, False]] * len(refused) and last == [0, True]
    assert not (tmp_path / ".x.unfinished").exists()


@pytest.mark.slow
def test_two_at_the_same_time(tmp_path):
    embedded_files(tmp_path, n_pairs=1000)
    code = """
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        module.prepare(corpus, folder / "x", 500, progress=False)
        os._exit(0)
    children.append(child)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""
    assert run_helper(code, tmp_path) == [0, 0, 0]
    assert len(Prepared.load(tmp_path / "x").train) > 900 and not (tmp_path / ".x.unfinished").exists()


# ---------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_memory_grows_little_with_the_corpus(tmp_path):
    """Peak memory at two sizes, extrapolated to the 4.5 million pairs of WMT14 English-German: under 4 GB."""
    text = [
        (f"{a.source} {b.source}", f"{a.target} {b.target}")
        for a, b in itertools.pairwise(itertools.islice(embedded_corpus(), 2000))
    ]
    for name, number in (("train", 40_000), ("dev", 10_000)):
        numbered = (
            (f"{i} {s}", f"{i} {t}") for i, (s, t) in enumerate(itertools.islice(itertools.cycle(text), number))
        )
        module._write_text(tmp_path / name, numbered)
    code = """
def peak(name):
    child = os.fork()
    if not child:
        split = files_corpus("mine", "en", "de", (folder / f"{name}.src.txt", folder / f"{name}.tgt.txt"))
        module._CHUNK = 3_000
        made = module.prepare(split, folder / name, 500, sample=3_000, progress=False)
        print(json.dumps([len(made.train), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print("[", flush=True); peak("dev"); print(",", flush=True); peak("train"); print("]", flush=True)
"""
    (few, low), (many, high) = run_helper(code, tmp_path)
    assert (few, many) == (10_000, 40_000)
    each = max(0, high - low) / (many - few)
    assert each < 200, f"{each:.0f} bytes a pair: the text is kept in memory"  # one pair has about 230 bytes of text
    assert high + each * (4_500_000 - many) < 4e9


@pytest.mark.slow
def test_training_from_a_corpus_as_large_as_wmt14_takes_less_than_a_gigabyte(tmp_path):
    """Arrays of the real size, full of zeros: 4.5 million pairs of 30 tokens a side."""
    code = """
import numpy as np
from transformer.data import EncodedPairs, TokenBatches
n = 4_500_000
for side in ("src", "tgt"):
    lengths = np.random.default_rng(0).integers(1, 60, n)
    np.save(folder / f"train.{side}.ends.npy", np.cumsum(lengths))
    np.lib.format.open_memmap(folder / f"train.{side}.ids.npy", "w+", np.uint16, (int(lengths.sum()),)).flush()
del lengths
child = os.fork()
if not child:
    batches = iter(TokenBatches(EncodedPairs.load(folder / "train"), 25_000))
    tokens = sum(batch.n_tokens for batch, _ in zip(batches, range(3)))
    print(json.dumps([tokens, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    write(tmp_path / "train.src.txt", "a\n"), write(tmp_path / "train.tgt.txt", "a\n")
    write(tmp_path / "dev.src.txt", "a\n"), write(tmp_path / "dev.tgt.txt", "a\n")
    _, peak = run_helper(code, tmp_path)
    assert peak < 1e9, f"{peak / 1e6:.0f} MB"


# -------------------------------------------------------------------------------------------------------- real text


def test_newstest_lines(test_data):
    folder = test_data / "newstest"
    assert len(list(read_lines(folder / "newstest2009.de"))) == 2525
    assert len((folder / "newstest2009.de").read_text(encoding="utf-8").splitlines()) > 2525
    for path in folder.glob("newstest20*.??"):
        raw = path.read_bytes()
        assert "".join(f"{line}\n" for line in read_lines(path)).encode() == raw


def test_a_dirty_corpus(test_data):
    files = [test_data / "wmt15-sample-10k" / f"train.tok.{side}.gz" for side in ("en", "de")]
    pairs = list(read_pairs(*files))
    raw = [gzip.decompress(path.read_bytes()).decode().split("\n")[:-1] for path in files]
    assert pairs == list(zip(*raw, strict=True)) and len(pairs) == 10_000
    assert len(pairs) - len(set(pairs)) == 42 and [text.count("\ufffd") for text in map("".join, raw)] == [34, 43]
    off = Cleaning(max_ratio=1e9, broken=False)
    counts = Counter()
    assert list(clean(pairs, off, counts)) == list(dict.fromkeys(pairs)) and counts["duplicate"] == 42
    controls = [pair for pair in pairs if any(c == "\ufffd" or c < " " or "\x7f" <= c <= "\x9f" for c in "".join(pair))]
    counts = Counter()
    kept = list(clean(pairs, counts=counts))
    assert counts["broken Unicode"] == len(controls) > 34 and not set(kept) & set(controls)
    assert counts.total() == 10_000 and len(kept) > 9800


@pytest.mark.slow
def test_multi30k(test_data, tmp_path):
    folder = test_data / "multi30k"
    files = {
        "train": (folder / "train.en.gz", folder / "train.de.gz"),
        "dev": (folder / "val.en", folder / "val.de"),
        "test": (folder / "test_2016_flickr.en", folder / "test_2016_flickr.de"),
    }
    made = prepare(files_corpus("multi30k", "en", "de", **files), tmp_path / "x", progress=False)
    counts, tokenizer = made.description["counts"], made.tokenizer
    assert len(tokenizer) == 6000 and counts["duplicate"] == 3 and counts["length ratio"] == 2
    assert sum(counts.values()) == 29_000 and len(made.train) == 28_995
    train = list(read_pairs(*files["train"]))
    assert [i for i, (_, german) in enumerate(train, 1) if german.strip() == "@@"] == [16_510, 16_664]
    for side in zip(*train, strict=True):
        assert [tokenizer.decode(ids) for ids in tokenizer.encode_lines(side)] == list(side)
    for split, size in (("dev", 1014), ("test", 1000)):
        assert made.text(split) == list(read_pairs(*files[split])) and len(getattr(made, split)) == size
        assert decoded(tokenizer, getattr(made, split)) == made.text(split)
