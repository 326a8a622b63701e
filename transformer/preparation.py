# Exported from notebooks/A2a_from_text_to_arrays.py, Appendix A2a; edit that file, not this one.
# sha256 of what follows: e95b84ef513a437d
"""From Text to Arrays (Appendix A2a)."""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from transformer import __version__
from transformer.checkpoints import write_atomically
from transformer.corpus import embedded_corpus
from transformer.data import EncodedPairs, Tokenizer
from transformer.downloads import Corpus, find_corpus

__all__ = [
    "VOCABULARY_SIZES",
    "read_whole",
    "read_lines",
    "read_pairs",
    "Cleaning",
    "clean",
    "Prepared",
    "embedded_files",
    "prepare",
]


VOCABULARY_SIZES = {
    "embedded": 1500,
    "multi30k": 6000,
    "multi30k-en-fr": 6000,
    "wmt14-en-de": 37000,
    "wmt14-en-fr": 32000,
}
_OTHER_VOCABULARY_SIZE = 8000
_CHUNK = 50_000  # pairs in memory at a time
_SPLITS = ("train", "dev", "test")
_FORMAT = 1
_DESCRIPTION, _TOKENIZER = "prepared.json", "tokenizer.model"
_LONGEST = 2**24  # bytes of a line, or of a file of JSON


def read_whole(path: str | Path) -> bytes:
    """The content of a small file: its size is looked at before memory is taken.

    Args:
        path: The file.

    Returns:
        Its bytes.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger than 16 MiB.
    """
    if Path(path).stat().st_size > _LONGEST:
        raise ValueError("it is larger than 16 MiB")
    return Path(path).read_bytes()


def read_lines(path: str | Path) -> Iterator[str]:
    r"""Stream the lines of a UTF-8 file. Only "\n" ends a line.

    Args:
        path: The file; it is decompressed if its name ends with .gz.

    Returns:
        The lines without their ends, and without a byte order mark at the beginning.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not UTF-8 or longer than 16 MiB, or a compressed file is damaged or cut short.
    """
    path, number = Path(path), 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), b""), 1):
                if len(line) > _LONGEST:
                    raise ValueError(f"{path}, line {number} is longer than {_LONGEST:,} bytes; split it.")
                text = line.removesuffix(b"\n").rstrip(b"\r").decode("utf-8")
                yield text.removeprefix("\ufeff") if number == 1 else text
        except UnicodeDecodeError as error:
            reason = f"byte {error.start + 1} of it is not UTF-8; convert the file, for instance with iconv"
            raise ValueError(f"{path}, line {number}: {reason}.") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            reason = f"damaged or cut short after line {number} ({error}); download or compress it again"
            raise ValueError(f"{path} is {reason}.") from error


def read_pairs(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """Stream the pairs of two line-aligned files.

    Args:
        source: A file of sentences.
        target: A file with their translations, line by line.

    Returns:
        (source, target).

    Raises:
        OSError: A file cannot be read.
        ValueError: One file has more lines than the other, or `read_lines` refuses one.
    """
    sides = read_lines(source), read_lines(target)
    for number, (one, other) in enumerate(itertools.zip_longest(*sides), 1):
        if one is None or other is None:
            total = number + sum(1 for _ in (sides[1] if one is None else sides[0]))
            shorter, longer = (source, target) if one is None else (target, source)
            reason = (
                f"ends after {number - 1:,} lines and {longer} after {total:,}; line n of one must translate line n"
            )
            raise ValueError(f"{shorter} {reason} of the other.")
        yield one, other


_BROKEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffd-\uffff]")


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """What a sentence pair must be to be trained on.

    Args:
        max_words: Most words of a side, split at white space.
        max_ratio: Most words of the longer side for each of the shorter.
        max_pieces: Most pieces of a side, once it is encoded.
        broken: Drop what was once decoded wrongly: U+FFFD, control characters, byte order marks inside.
        duplicates: Drop all but the first of equal pairs.

    Raises:
        ValueError: A limit is below 1.
    """

    max_words: int = 250
    max_ratio: float = 3.0
    max_pieces: int = 256
    broken: bool = True
    duplicates: bool = True

    def __post_init__(self) -> None:
        if not all(limit >= 1 for limit in (self.max_words, self.max_ratio, self.max_pieces)):
            raise ValueError(f"{self} drops every pair; give limits of at least 1.")

    def fault(self, source: str, target: str) -> str | None:
        """Why this pair must go, or None. Repetitions and pieces are for others to count."""
        shorter, longer = sorted((len(source.split()), len(target.split())))
        if not shorter:
            return "empty side"
        if self.broken and (_BROKEN.search(source) or _BROKEN.search(target)):
            return "broken Unicode"
        if longer > self.max_words:
            return "too many words"
        return "length ratio" if longer > self.max_ratio * shorter else None


def clean(
    pairs: Iterable[tuple[str, str]],
    cleaning: Cleaning | None = None,
    counts: Counter[str] | None = None,
    held_out: Iterable[tuple[str, str]] = (),
) -> Iterator[tuple[str, str]]:
    """Stream the pairs that are fit to train on, in their order. Takes 8 bytes of memory for each of them.

    Args:
        pairs: (source, target).
        cleaning: The rules; None for the usual ones.
        counts: Is told how many pairs were "kept", and how many dropped for each reason.
        held_out: The pairs of dev and test, which no training may see.

    Returns:
        The pairs that stay.
    """
    cleaning, counts = cleaning or Cleaning(), Counter() if counts is None else counts
    secret = np.unique(_hashes(held_out))
    seen = np.zeros(1, np.uint64)  # sorted; of all chunks before this one
    for chunk in _chunks(pairs):
        hashes = _hashes(chunk)
        leaked = np.isin(hashes, secret)
        old = seen.take(np.searchsorted(seen, hashes), mode="clip") == hashes
        new: set[int] = set()
        for pair, number, is_leaked, is_old in zip(chunk, hashes.tolist(), leaked, old, strict=True):
            fault = cleaning.fault(*pair)
            if not fault and is_leaked:
                fault = "in dev or test"
            if not fault and cleaning.duplicates and (is_old or number in new):
                fault = "duplicate"
            counts[fault or "kept"] += 1
            if not fault:
                new.add(number)
                yield pair
        numbers = np.fromiter(sorted(new), np.uint64, len(new))
        seen = np.sort(np.concatenate([seen, numbers]), kind="stable")  # merges what is sorted already


def _hashes(pairs: Iterable[tuple[str, str]]) -> npt.NDArray[np.uint64]:
    texts = (f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass") for source, target in pairs)
    return np.frombuffer(b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts), np.uint64)


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, _CHUNK)):
        yield chunk


class _ArrayFile:
    """A flat .npy file that grows."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self.file, self.dtype, self.length = path.open("wb"), np.dtype(dtype), 0
        self.start = self._write_header()

    def append(self, numbers: npt.NDArray[Any]) -> None:
        self.file.write(numbers.astype(self.dtype).tobytes())
        self.length += len(numbers)

    def close(self) -> None:
        with self.file:
            if self._write_header() != self.start:
                raise RuntimeError(f"NumPy left no room for the length in the header of {self.file.name}.")

    def _write_header(self) -> int:
        self.file.seek(0)
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, about)
        return self.file.tell()


def _write_arrays(
    prefix: Path, pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, max_pieces: int = sys.maxsize
) -> dict[str, int]:
    """Encode pairs, a chunk at a time and on all cores, into the files that `EncodedPairs.load` opens."""
    kind = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    with contextlib.ExitStack() as stack:

        def opened(part: str, dtype: npt.DTypeLike) -> list[_ArrayFile]:
            files = [_ArrayFile(Path(f"{prefix}.{side}.{part}.npy"), dtype) for side in ("src", "tgt")]
            return [stack.enter_context(contextlib.closing(file)) for file in files]

        all_ids, all_ends = opened("ids", kind), opened("ends", np.int64)
        for chunk in _chunks(pairs):
            sides = (tokenizer.encode_lines(lines) for lines in zip(*chunk, strict=True))
            kept = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= max_pieces]
            for side, ids, ends in zip(
                zip(*kept, strict=True), all_ids, all_ends, strict=False
            ):  # no side if none is kept
                ends.append(ids.length + np.cumsum([len(sentence) for sentence in side]))
                ids.append(np.fromiter(itertools.chain.from_iterable(side), kind))
    return {"pairs": all_ends[0].length, "source_tokens": all_ids[0].length, "target_tokens": all_ids[1].length}


def _write_text(prefix: Path, pairs: Iterable[tuple[str, str]]) -> None:
    with open(f"{prefix}.src.txt", "wb") as source, open(f"{prefix}.tgt.txt", "wb") as target:
        for one, other in pairs:
            source.write(f"{one}\n".encode())
            target.write(f"{other}\n".encode())


def _open_arrays(prefix: Path) -> EncodedPairs:
    """What `_write_arrays` wrote. NumPy fails in many ways on headers that it did not write."""
    try:
        pairs = EncodedPairs.load(prefix)
        whole = all(array.ndim == 1 and array.dtype.kind in "ui" for array in (*pairs._ids, *pairs._ends))
        whole = whole and all((lengths >= 0).all() for lengths in (pairs.src_lengths, pairs.tgt_lengths))
    except Exception as error:
        raise ValueError(f"the arrays {prefix}.*.npy are damaged ({error}); prepare the corpus again.") from error
    if not whole:
        raise ValueError(f"the arrays {prefix}.*.npy are no rows of whole numbers; prepare the corpus again.")
    return pairs


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A corpus that is ready to train from.

    Args:
        folder: Where it is.
        description: What made it and how much there is: the content of prepared.json.
        tokenizer: The vocabulary of both languages.
        train: Pairs of ids, read from the disk as they are needed.
        dev: The same; None if the corpus has no such split.
        test: The same; None if the corpus has no such split.
    """

    folder: Path
    description: dict[str, Any]
    tokenizer: Tokenizer
    train: EncodedPairs
    dev: EncodedPairs | None = None
    test: EncodedPairs | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "Prepared":
        """Open a folder that `prepare` made. Ids stay on the disk; the ends of all sentences are looked at once.

        Raises:
            FileNotFoundError: There is no prepared corpus.
            ValueError: It is damaged, or of another version.
        """
        path = Path(folder) / _DESCRIPTION
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} holds no prepared corpus, {_DESCRIPTION} is missing; make it with prepare."
            )
        try:
            description = json.loads(read_whole(path))
            sizes, splits = dict(description["files"]), set(description["splits"])
            plain = all(name and Path(name).name == name and isinstance(size, int) for name, size in sizes.items())
            if description["format"] != _FORMAT or not {"train"} <= splits <= set(_SPLITS) or not plain:
                raise ValueError(f"not of format {_FORMAT}")
            dict(description["settings"]), dict(description["counts"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged or of another version ({error}); prepare the corpus again.") from error
        for file, size in ((path.with_name(name), size) for name, size in sizes.items()):
            found = file.stat().st_size if file.is_file() else 0
            if found != size:
                raise ValueError(
                    f"{file} has {found:,} bytes, not {size:,}; copy it again or prepare the corpus again."
                )
        arrays = {split: _open_arrays(path.with_name(split)) for split in splits}
        return cls(path.parent, description, Tokenizer.load(path.with_name(_TOKENIZER)), **arrays)

    def text(self, split: str) -> list[tuple[str, str]]:
        """The sentences of "dev", "test" or "official", exactly as they are in the corpus: (source, reference).

        newstest2014 has an official set, which is a part of the test set.

        Raises:
            ValueError: There is no text of this split.
        """
        if f"{split}.src.txt" not in self.description["files"]:
            raise ValueError(
                f"{self.folder} has no text of {split!r}; only that of dev and test is kept, where they exist."
            )
        return list(read_pairs(self.folder / f"{split}.src.txt", self.folder / f"{split}.tgt.txt"))

    def summary(self) -> str:
        """What there is, and what was dropped and why, in a few lines."""
        lines = [
            f"{split:6}{n['pairs']:>11,} pairs, {n['source_tokens']:>13,} + {n['target_tokens']:,} tokens"
            for split, n in self.description["splits"].items()
        ]
        dropped = (f"{n:,} {reason}" for reason, n in self.description["counts"].items() if n and reason != "kept")
        return "\n".join([*lines, f"dropped from train: {', '.join(dropped) or 'nothing'}"])


def embedded_files(folder: str | Path, n_pairs: int = 100_000, seed: int = 0) -> Corpus:
    """Write the embedded corpus as line-aligned files.

    Args:
        folder: Made if it does not exist.
        n_pairs: Pairs to train on. Dev and test have 1,000 each.
        seed: Chooses the pairs.

    Returns:
        The corpus.

    Raises:
        OSError: The folder cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split, number in {"train": n_pairs, "dev": 1000, "test": 1000}.items():
        pairs = itertools.islice(embedded_corpus(split, seed), number)
        _write_text(folder / split, ((pair.source, pair.target) for pair in pairs))
        splits[split] = ((folder / f"{split}.src.txt", folder / f"{split}.tgt.txt"),)
    return Corpus("embedded", "en", "de", splits["train"], splits["dev"], splits["test"])


def prepare(
    corpus: Corpus | str,
    folder: str | Path,
    vocab_size: int | None = None,
    cleaning: Cleaning | None = None,
    sample: int = 1_000_000,
    progress: bool = True,
) -> Prepared:
    """Clean a corpus, learn its vocabulary, and encode it, once and for all.

    A folder that was made from the same files with the same settings is used as it is.

    Args:
        corpus: A corpus, or the name of one, which is downloaded if need be: "embedded", "multi30k", "wmt14-en-de", …
        folder: Where the prepared corpus shall be. It appears when it is whole.
        vocab_size: Pieces of the shared vocabulary; None for what suits the corpus, 37,000 for WMT14 English-German.
        cleaning: What is dropped from the training text; None for the usual. Dev and test text is never cleaned.
        sample: The vocabulary is learnt from at most so many pairs.
        progress: Show progress bars on a terminal.

    Returns:
        The prepared corpus.

    Raises:
        FileExistsError: The folder holds something else.
        OSError: A file cannot be read or written, or the disk is full.
        ValueError: A file is refused, no pair is left, or there is too little text for such a vocabulary.

    Source: §5.1.
    """
    if sample < 1:
        raise ValueError(f"a vocabulary cannot be learnt from {sample} pairs; let sample be at least 1.")
    if corpus == "embedded":
        with tempfile.TemporaryDirectory() as texts:
            return prepare(embedded_files(texts), folder, vocab_size, cleaning, sample, progress)
    found = find_corpus(corpus) if isinstance(corpus, str) else corpus
    inputs = {split: [[_fingerprint(path) for path in pair] for pair in getattr(found, split)] for split in _SPLITS}
    settings = {
        "corpus": found.name,
        "languages": [found.source_language, found.target_language],
        "vocab_size": VOCABULARY_SIZES.get(found.name, _OTHER_VOCABULARY_SIZE) if vocab_size is None else vocab_size,
        "cleaning": dataclasses.asdict(cleaning or Cleaning()),
        "sample": sample,
        "inputs": inputs,
    }
    with _appearing(Path(folder)) as work:
        if work is None:
            return _reused(Path(folder), settings, progress)
        _fill(work, found, cleaning or Cleaning(), settings, progress)
    return Prepared.load(folder)


def _fingerprint(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        return {"name": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@contextlib.contextmanager
def _appearing(folder: Path) -> Iterator[Path | None]:
    """A hidden folder, which takes the name of the one asked for if all goes well; None if there is one already."""
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f".{folder.name}.unfinished")
    parent = os.open(folder.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):  # Windows, or a disk that knows no locks
            import fcntl

            fcntl.flock(parent, fcntl.LOCK_EX)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            yield None
            return
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
        for path in work.iterdir():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        work.replace(folder)
        os.fsync(parent)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = f"there is no room for {folder} ({error.strerror}); make some, or give a folder on another disk."
            raise OSError(error.errno, reason) from error
        raise
    finally:
        os.close(parent)


def _reused(folder: Path, settings: dict[str, Any], progress: bool) -> Prepared:
    """What is there already, if it is what would be made."""
    remedy = "give another folder or delete this one"
    try:
        prepared = Prepared.load(folder)
    except (OSError, ValueError) as error:
        raise FileExistsError(f"{folder} exists and is no whole prepared corpus; {remedy}. ({error})") from error
    made = prepared.description["settings"]
    different = [name for name, value in settings.items() if made.get(name) != value]
    if different:
        raise FileExistsError(f"{folder} was prepared with other {', '.join(different)}; {remedy}.")
    if progress:
        print(
            f"{folder} was prepared before, from the same files in the same way; it is used as it is.", file=sys.stderr
        )
    return prepared


def _some_are_left(corpus: Corpus, counts: Counter[str]) -> None:
    if not counts["kept"]:
        raise ValueError(f"no training pair of {corpus.name} is left ({dict(counts)}); do its files fit each other?")


def _fill(work: Path, corpus: Corpus, cleaning: Cleaning, settings: dict[str, Any], progress: bool) -> None:
    """Everything that `prepare` writes."""

    def shown(pairs: Iterator[tuple[str, str]], task: str, total: int | None = None) -> Iterable[tuple[str, str]]:
        return tqdm(pairs, task, total, unit=" pairs", disable=None if progress else True)

    def pairs(split: str) -> Iterator[tuple[str, str]]:
        return itertools.chain.from_iterable(read_pairs(*files) for files in getattr(corpus, split))

    started = datetime.now(UTC).isoformat(timespec="seconds")
    held_out = [split for split in _SPLITS[1:] if getattr(corpus, split)]
    for split in held_out:
        _write_text(work / split, pairs(split))
    if corpus.kept:
        _write_text(work / "official", itertools.compress(pairs("test"), corpus.kept))
    counts: Counter[str] = Counter()
    cleaned = clean(pairs("train"), cleaning, counts, itertools.chain.from_iterable(map(pairs, held_out)))
    _write_text(work / "train", shown(cleaned, "cleaning"))
    _some_are_left(corpus, counts)
    texts = work / "train.src.txt", work / "train.tgt.txt"
    step = -(-counts["kept"] // settings["sample"])
    sample = shown(itertools.islice(read_pairs(*texts), 0, None, step), "vocabulary", -(-counts["kept"] // step))
    tokenizer = Tokenizer.train(itertools.chain.from_iterable(sample), settings["vocab_size"])
    write_atomically(work / _TOKENIZER, tokenizer.model)
    encoding = shown(read_pairs(*texts), "encoding", counts["kept"])
    splits = {"train": _write_arrays(work / "train", encoding, tokenizer, cleaning.max_pieces)}
    splits |= {split: _write_arrays(work / split, pairs(split), tokenizer) for split in held_out}
    for path in texts:
        path.unlink()
    counts["too many pieces"] = counts["kept"] - splits["train"]["pairs"]
    counts["kept"] = splits["train"]["pairs"]
    _some_are_left(corpus, counts)
    description = {
        "format": _FORMAT,
        "settings": settings,
        "counts": counts,
        "splits": splits,
        "files": {path.name: path.stat().st_size for path in sorted(work.iterdir())},
        "versions": {"transformer": __version__} | {name: version(name) for name in ("numpy", "sentencepiece")},
        "date": started,
    }
    write_atomically(work / _DESCRIPTION, (json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode())
