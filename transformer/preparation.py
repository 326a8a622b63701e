# Exported from notebooks/A2a_from_text_to_arrays.py, Appendix A2a; edit that file, not this one.
# sha256 of what follows: 8b13d623bb4f1291
"""From Text to Arrays (Appendix A2a)."""

import codecs
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from transformer import __version__
from transformer.checkpoints import write_atomically
from transformer.corpus import embedded_corpus
from transformer.data import EncodedPairs, Tokenizer

__all__ = ["VOCABULARY_SIZES", "read_lines", "read_pairs", "Cleaning", "clean", "Prepared", "embedded_files", "prepare"]


_CHUNK = 50_000  # pairs that are in memory at a time
VOCABULARY_SIZES = {
    "embedded": 1_500,
    "multi30k": 6_000,
    "multi30k-en-fr": 6_000,
    "wmt14-en-de": 37_000,
    "wmt14-en-fr": 32_000,
}
_OTHER_VOCABULARY = 8_000
_HELD_OUT = ("dev", "test")
_FORMAT = 1
_DESCRIPTION_FILE, _TOKENIZER_FILE = "prepared.json", "tokenizer.model"
_T = TypeVar("_T")


def read_lines(path: str | Path) -> Iterator[str]:
    r"""Stream the lines of a UTF-8 file.

    Only "\n" ends a line. A carriage return before it and a byte order mark at the beginning are left out.

    Args:
        path: The file; decompressed if its name ends with .gz.

    Returns:
        The lines, without their ends.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is not UTF-8, or a compressed file is damaged or cut short.
    """
    path, number = Path(path), 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                start = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
                yield line[start:].removesuffix(b"\n").rstrip(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: byte {error.start + 1} of the line is not UTF-8; convert the file, for instance with iconv."
            ) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} is damaged or cut short after line {number} ({error}); download or compress it again."
            ) from error


def read_pairs(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """Stream the pairs of two line-aligned files.

    Args:
        source: A file of sentences.
        target: A file of their translations, one on each line.

    Returns:
        (source, target) line by line.

    Raises:
        OSError: A file cannot be read.
        ValueError: One file has more lines than the other, or one is refused by `read_lines`.
    """
    sides = read_lines(source), read_lines(target)
    for number, (one, other) in enumerate(itertools.zip_longest(*sides), 1):
        if one is None or other is None:
            longer = sides[one is None]
            total = number + sum(1 for _ in longer)
            names = (source, target) if one is None else (target, source)
            raise ValueError(
                f"{names[0]} ends after {number - 1:,} lines, and {names[1]} has {total:,}; line n of one must be the translation of line n of the other."
            )
        yield one, other


_BROKEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffd-\uffff]")


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """What a sentence pair must be to be trained on.

    Args:
        max_words: Words of the longer side, split at white space.
        max_ratio: Words of the longer side for each of the shorter.
        max_pieces: Pieces of the vocabulary of the longer side.
        broken: Drop text that was decoded wrongly: U+FFFD, control characters, a byte order mark inside.
        duplicates: Keep only the first of equal pairs.

    Raises:
        ValueError: A limit is below 1.
    """

    max_words: int = 250
    max_ratio: float = 3.0
    max_pieces: int = 256
    broken: bool = True
    duplicates: bool = True

    def __post_init__(self) -> None:
        if min(self.max_words, self.max_ratio, self.max_pieces) < 1:
            raise ValueError(f"{self} would drop every pair; the limits must be at least 1.")

    def fault(self, source: str, target: str) -> str | None:
        """Why this pair shall be dropped, or None. Equal pairs and pieces are not looked at here."""
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
    """Stream the pairs that are good enough to train on, in their order. Memory: 8 bytes for each pair kept.

    Args:
        pairs: (source, target).
        cleaning: The rules; None for the usual ones.
        counts: Takes up how many pairs were "kept", and how many dropped for each reason.
        held_out: Pairs to test with: they are dropped, too.

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
        seen = np.sort(np.concatenate([seen, numbers]), kind="stable")  # merges two sorted runs


def _hashes(pairs: Iterable[tuple[str, str]]) -> npt.NDArray[np.uint64]:
    """Eight bytes for each pair."""
    digests = [hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest() for pair in pairs]
    return np.frombuffer(b"".join(digests), np.uint64)


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, _CHUNK)):
        yield chunk


class _ArrayFile:
    """A flat .npy file that grows. The header, which says how long it is, is written anew at the end."""

    def __init__(self, path: Path, dtype: type[np.unsignedinteger[Any] | np.signedinteger[Any]]) -> None:
        self.file, self.dtype, self.length = path.open("wb"), np.dtype(dtype), 0
        self._write_header()
        self.start = self.file.tell()

    def append(self, numbers: npt.NDArray[Any]) -> None:
        self.file.write(numbers.astype(self.dtype).tobytes())
        self.length += len(numbers)

    def close(self) -> None:
        with self.file:
            self.file.seek(0)
            self._write_header()
            assert self.file.tell() == self.start  # numpy leaves room for the length
            _to_disk(self.file)

    def _write_header(self) -> None:
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, about)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("wb") as file:
        file.writelines(f"{line}\n".encode() for line in lines)
        _to_disk(file)


def _write_text(prefix: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """PREFIX.src.txt and PREFIX.tgt.txt, line by line."""
    with open(f"{prefix}.src.txt", "wb") as source, open(f"{prefix}.tgt.txt", "wb") as target:
        for chunk in _chunks(pairs):
            for file, lines in zip((source, target), zip(*chunk, strict=True), strict=True):
                file.write("".join(f"{line}\n" for line in lines).encode())
        _to_disk(source)
        _to_disk(target)


def _write_arrays(
    prefix: Path, pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, max_pieces: int | None = None
) -> dict[str, int]:
    """Encode pairs on all cores, a chunk at a time, into the files that `EncodedPairs.load` opens."""
    ids_type = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    totals = Counter(pairs=0, dropped=0, source_tokens=0, target_tokens=0)
    with contextlib.ExitStack() as stack:
        files = {
            (side, part): stack.enter_context(
                contextlib.closing(_ArrayFile(Path(f"{prefix}.{side}.{part}.npy"), dtype))
            )
            for side in ("src", "tgt")
            for part, dtype in (("ids", ids_type), ("ends", np.int64))
        }
        for chunk in _chunks(pairs):
            encoded = zip(*(tokenizer.encode_lines(lines) for lines in zip(*chunk, strict=True)), strict=True)
            kept = [pair for pair in encoded if max_pieces is None or max(map(len, pair)) <= max_pieces]
            totals["dropped"] += len(chunk) - len(kept)
            totals["pairs"] += len(kept)
            for i, (side, name) in enumerate((("src", "source_tokens"), ("tgt", "target_tokens"))):
                ends = totals[name] + np.cumsum([len(pair[i]) for pair in kept], dtype=np.int64)
                ids = itertools.chain.from_iterable(pair[i] for pair in kept)
                files[side, "ids"].append(np.fromiter(ids, ids_type))
                files[side, "ends"].append(ends)
                totals[name] = int(ends[-1]) if len(ends) else totals[name]
    return dict(totals)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A corpus that is ready to train from.

    Args:
        folder: Where it is.
        description: What made it, and how much there is: the content of prepared.json.
        tokenizer: The vocabulary of both languages.
        train: Pairs of ids, read from the disk as they are needed.
        dev: The same, or None.
        test: The same, or None.
    """

    folder: Path
    description: dict[str, Any]
    tokenizer: Tokenizer
    train: EncodedPairs
    dev: EncodedPairs | None = None
    test: EncodedPairs | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "Prepared":
        """Open a folder that `prepare` made. Takes no time and next to no memory, however large it is.

        Raises:
            FileNotFoundError: There is no such folder, or no prepared corpus in it.
            ValueError: It is damaged, or was made by another version.
        """
        folder = Path(folder)
        path = folder / _DESCRIPTION_FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} holds no prepared corpus ({_DESCRIPTION_FILE} is missing); make it with prepare."
            )
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
            sizes, counts = dict(description["files"]), dict(description["splits"])
            known = description["format"] == _FORMAT and "train" in counts
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); prepare the corpus again.") from error
        if not known:
            raise ValueError(f"{path} is of another format than {_FORMAT}; prepare the corpus with this version.")
        for name, size in sizes.items():
            found = (folder / name).stat().st_size if (folder / name).is_file() else None
            if found != size:
                raise ValueError(
                    f"{folder / name} {'is missing' if found is None else f'has {found:,} bytes'}, {size:,} were written; "
                    "copy the folder again, or prepare it again."
                )
        tokenizer = Tokenizer.load(folder / _TOKENIZER_FILE)
        splits = {split: EncodedPairs.load(folder / split) for split in counts}
        return cls(folder, description, tokenizer, **splits)

    def text(self, split: str) -> list[tuple[str, str]]:
        """The sentences of "dev" or "test" as they are in the corpus: (source, reference).

        Raises:
            ValueError: There is no text of this split.
        """
        if split not in _HELD_OUT or split not in self.description["splits"]:
            raise ValueError(
                f"{self.folder} keeps no text of {split!r}; it has that of dev and test, where the corpus has them."
            )
        return list(read_pairs(self.folder / f"{split}.src.txt", self.folder / f"{split}.tgt.txt"))


def embedded_files(folder: str | Path, n_pairs: int = 100_000, seed: int = 0) -> Any:
    """Write the embedded corpus as line-aligned files, so that it goes the way of all others.

    Args:
        folder: Made if it does not exist.
        n_pairs: Pairs to train on; dev and test have 1,000 each.
        seed: Chooses the pairs.

    Returns:
        The corpus.

    Raises:
        OSError: The folder cannot be written.
    """
    from transformer.downloads import Corpus

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split, number in (("train", n_pairs), *((split, 1_000) for split in _HELD_OUT)):
        pairs = itertools.islice(embedded_corpus(split, seed), number)
        _write_text(folder / split, ((pair.source, pair.target) for pair in pairs))
        splits[split] = ((folder / f"{split}.src.txt", folder / f"{split}.tgt.txt"),)
    return Corpus("embedded", "en", "de", **splits)


def prepare(
    corpus: Any,
    folder: str | Path,
    vocab_size: int | None = None,
    cleaning: Cleaning | None = None,
    sample: int = 1_000_000,
    progress: bool = True,
) -> Prepared:
    """Make a corpus ready to train from: clean it, learn the vocabulary, encode it once.

    The folder appears when all of it is written. One that was made from the same files with the same settings is used as it is.

    Args:
        corpus: A corpus, or the name of one, which is downloaded if need be: "embedded", "multi30k", "wmt14-en-de", …
        folder: Where it shall be.
        vocab_size: Pieces of the shared vocabulary; None for what suits the corpus, 37,000 for WMT14 English-German.
        cleaning: What is dropped from the training text; dev and test text stays as it is.
        sample: The vocabulary is learnt from at most so many pairs, taken at equal distances.
        progress: Show progress bars on a terminal.

    Returns:
        The prepared corpus.

    Raises:
        FileExistsError: The folder holds something else.
        OSError: A file cannot be read or written, or the disk is full.
        ValueError: The text is refused, all of it is dropped, or it is too small for such a vocabulary.

    Source: §5.1.
    """
    folder, cleaning = Path(folder), cleaning or Cleaning()
    if corpus == "embedded":
        with tempfile.TemporaryDirectory() as texts:
            return prepare(embedded_files(texts), folder, vocab_size, cleaning, sample, progress)
    if isinstance(corpus, str):
        from transformer.downloads import find_corpus

        corpus = find_corpus(corpus)
    settings = {
        "corpus": corpus.name,
        "languages": [corpus.source_language, corpus.target_language],
        "vocab_size": vocab_size or VOCABULARY_SIZES.get(corpus.name, _OTHER_VOCABULARY),
        "cleaning": dataclasses.asdict(cleaning),
        "sample": sample,
        "inputs": {
            split: [[_described(path) for path in pair] for pair in files] for split, files in _splits(corpus).items()
        },
    }
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return _reused(folder, settings, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _prepare(corpus, work, settings, cleaning, progress)
        work.chmod(0o755)
        work.rename(folder)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message = f"there is no room for {folder} ({error.strerror}); nothing was kept. Free some space or give another folder."
            raise OSError(error.errno, message) from error
        raise
    return Prepared.load(folder)


def _splits(corpus: Any) -> dict[str, Sequence[tuple[Path, Path]]]:
    """The files of each split that the corpus has."""
    return {split: getattr(corpus, split) for split in ("train", *_HELD_OUT) if getattr(corpus, split)}


def _described(path: str | Path) -> dict[str, str]:
    """A file's name and hash: what it is, wherever it lies."""
    with open(path, "rb") as file:
        return {"name": Path(path).name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _reused(folder: Path, settings: Mapping[str, Any], progress: bool) -> Prepared:
    """A folder that is there already, if it is what would be made."""
    remedy = "give another folder, or delete this one."
    try:
        prepared = Prepared.load(folder)
    except (OSError, ValueError) as error:
        raise FileExistsError(f"{folder} exists and is no whole prepared corpus: {remedy} ({error})") from error
    made = prepared.description["settings"]
    different = [name for name, value in settings.items() if made.get(name) != value]
    if different:
        raise FileExistsError(f"{folder} was prepared with another {', '.join(different)}: {remedy}")
    if progress:
        print(f"{folder} was prepared from the same files before; it is used as it is.", file=sys.stderr)
    return prepared


def _prepare(corpus: Any, work: Path, settings: dict[str, Any], cleaning: Cleaning, progress: bool) -> None:
    """Fill a folder."""

    def shown(items: Iterable[_T], task: str, unit: str, total: int | None = None) -> Iterable[_T]:
        return tqdm(items, task, total, unit=f" {unit}", disable=None if progress else True)

    def pairs(split: str) -> Iterator[tuple[str, str]]:
        return itertools.chain.from_iterable(read_pairs(*files) for files in _splits(corpus).get(split, ()))

    started = datetime.now(UTC)
    counts: Counter[str] = Counter()
    for split in _HELD_OUT:
        if split in _splits(corpus):
            _write_text(work / split, pairs(split))
    held_out = itertools.chain.from_iterable(map(pairs, _HELD_OUT))
    cleaned = clean(pairs("train"), cleaning, counts, held_out)
    _write_text(work / "train", shown(cleaned, "read and clean", "pairs"))
    if not counts["kept"]:
        raise ValueError(f"no training pair of {corpus.name} is left: {dict(counts)}; are the two files translations?")
    train = [work / f"train.{side}.txt" for side in ("src", "tgt")]
    step = -(-counts["kept"] // settings["sample"])
    sample = itertools.islice(read_pairs(*train), 0, None, step)
    lines = itertools.chain.from_iterable(shown(sample, "learn the vocabulary", "pairs", -(-counts["kept"] // step)))
    tokenizer = Tokenizer.train(lines, settings["vocab_size"])
    write_atomically(work / _TOKENIZER_FILE, tokenizer.model)
    splits = {}
    kept = shown(read_pairs(*train), "encode", "pairs", counts["kept"])
    splits["train"] = _write_arrays(work / "train", kept, tokenizer, cleaning.max_pieces)
    for path in train:
        path.unlink()
    for split in _HELD_OUT:
        if split in _splits(corpus):
            splits[split] = _write_arrays(work / split, pairs(split), tokenizer)
    counts["too many pieces"] = splits["train"]["dropped"]
    counts["kept"] = splits["train"]["pairs"]
    description = {
        "format": _FORMAT,
        "settings": settings,
        "counts": dict(counts),
        "splits": splits,
        "files": {path.name: path.stat().st_size for path in sorted(work.iterdir())},
        "versions": {"transformer": __version__} | {name: version(name) for name in ("numpy", "sentencepiece")},
        "date": started.isoformat(timespec="seconds"),
    }
    write_atomically(work / _DESCRIPTION_FILE, (json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode())
