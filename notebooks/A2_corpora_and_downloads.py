# %% [markdown]
# # A2 Corpora and Downloads
#
# The paper trains on files that anybody can download: about two gigabytes for English–German, almost seven for English–French. This chapter fetches them. What arrives is what was published, or nothing arrives; a download that was cut goes on where it stopped; an archive cannot write outside its folder; and files that are there already need no network.

# %%
#| default_exp downloads

# %%
import transformer

transformer.check_version("0.1")

import io
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import altair as alt

# %% [markdown]
# ## What the paper used
#
# > We trained on the standard WMT 2014 English-German dataset consisting of about 4.5 million sentence pairs.
# >
# > — Section 5.1
#
# WMT is a yearly workshop with a shared task in translation. Its organisers say which text may be used, so that systems are compared and not corpora. In 2014 that was, for German, the speeches of the European Parliament (Europarl), web pages in two languages (Common Crawl), and news commentary. For French there are two more: documents of the United Nations, and a crawl of Canadian and European sites that calls itself the 10⁹ corpus (Giga-fren).
#
# > For English-French, we used the significantly larger WMT 2014 English-French dataset consisting of 36M sentences and split tokens into a 32000 word-piece vocabulary.
# >
# > — Section 5.1
#
# Where each file lies, and its length and checksum where somebody published them, stands in one file of facts, `wmt14-sources.yml`, which comes with the module. Its first lines say who published sizes, checksums and counts.

# %%
#| export
import contextlib
import errno
import functools
import gzip
import hashlib
import html
import http.client
import importlib.resources
import io
import itertools
import os
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

_CHUNK = 1 << 20  # bytes read at once
_TIMEOUT = 30.0  # seconds without a byte
_WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the next try, after so many tries in a row that brought nothing


# %%
#| export
def read_sources() -> dict[str, Any]:
    """The table of archives, texts and corpora that this module knows: `wmt14-sources.yml`.

    Returns:
        Its three parts, "archives", "texts" and "corpora", as read from YAML.

    Source: §5.1.
    """
    import yaml

    text = importlib.resources.files("transformer").joinpath("wmt14-sources.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


# %% [markdown]
# ## Where the files go
#
# One folder holds them all. `TRANSFORMER_DATA` names it; on a machine with several disks, choose a large one.


# %%
#| export
def data_folder() -> Path:
    """The folder for downloaded text.

    Returns:
        What the environment variable TRANSFORMER_DATA names, else `transformer-book` in the user's cache, which is
        `~/.cache` unless XDG_CACHE_HOME says otherwise. It need not exist.
    """
    named = os.environ.get("TRANSFORMER_DATA")
    if named:
        return Path(named).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "transformer-book"


# %% [markdown]
# Two helpers speak about disks. A full disk is noticed before the first byte where the size is known, and in the middle where it is not.


# %%
#| export
def _make_folder(folder: Path) -> None:
    """Make a folder and those around it, or say what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "let TRANSFORMER_DATA name a folder that can be written"
        raise OSError(error.errno, f"cannot make the folder {folder} ({error.strerror}); {remedy}.") from error


# %%
#| export
def _need_room(path: Path, size: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(path.parent).free
    if size > free:
        remedy = "make room, or let TRANSFORMER_DATA name a folder on another disk"
        raise OSError(errno.ENOSPC, f"{path} needs {size:,} bytes and the disk has {free:,}; {remedy}.")


# %%
#| export
def _put(file: io.FileIO, content: bytes) -> None:
    """Write all of it; an unbuffered file may take less at once."""
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write {file.name} ({error.strerror}); make room and run it again."
        ) from error


# %%
#| export
def _write(path: Path, content: Iterable[bytes]) -> None:
    """Write a file piece by piece, and force it to the disk."""
    with path.open("wb", buffering=0) as file:
        for piece in content:
            _put(file, piece)
        os.fsync(file.fileno())


# %% [markdown]
# Two programs may want the same file at the same time; eight, where a training runs on eight GPUs. The first takes the folder, the others wait and then find the file there.


# %%
#| export
@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, where the system can; a process that dies lets go of it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# %% [markdown]
# ## Downloading
#
# A server marks each version of a file with a tag. HTTP lets a client say: *send me the bytes from here on, if the file still has this tag; otherwise send all of it*. So the unfinished file, `NAME.part`, lies beside its tag, and any later run can go on with it, after a dropped connection or after a power cut.
#
# One request either brings the rest of the file or raises one of two kinds of errors: `_Dropped`, where another try makes sense, and others, where it does not.


# %%
#| export
class _Dropped(Exception):
    """Another try makes sense: the connection broke, or what is here does not fit what is there and must go first."""

    def __init__(self, reason: str, begin_again: bool = False) -> None:
        super().__init__(reason)
        self.begin_again = begin_again


# %%
#| export
class _NoFtp(urllib.request.FTPHandler):
    """A server may redirect us to another server, but not to ftp, which knows no tags; urllib refuses file: itself."""

    def ftp_open(self, req: urllib.request.Request) -> Any:
        reason = f"and leads to {req.full_url}, which is not http or https"
        raise urllib.error.HTTPError(req.full_url, 302, reason, http.client.HTTPMessage(), io.BytesIO())


# %%
#| export
def _ask(url: str, start: int, tag: str) -> http.client.HTTPResponse:
    """Send one request: for the bytes from `start` on, if the file still has this tag, else for all."""
    local = urllib.parse.urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")  # no proxy reaches those
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if local else None), _NoFtp)
    headers = {"User-Agent": "transformer-book", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answers {error.code} {error.reason}"
        if error.code >= 500 or error.code in (408, 416, 429):  # 416: what is here is longer than the file
            raise _Dropped(answer, begin_again=error.code == 416) from error
        raise OSError(f"cannot download {url}: {answer}.") from error
    except http.client.InvalidURL as error:
        raise ValueError(f"cannot download {url!r}: {error}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Dropped(str(getattr(error, "reason", error)) or type(error).__name__) from error


# %% [markdown]
# The answer decides. Status 206 is the part that was asked for. Status 200 is the whole file: the server knows no parts, or the file has changed, and the old beginning is thrown away.


# %%
#| export
def _receive(url: str, part: Path, size: int | None) -> None:
    """Make one try to get the rest of a file."""
    tag_file = _tag_file(part)
    tag = tag_file.read_text(encoding="latin-1") if tag_file.exists() else ""
    have = _size(part) if tag else 0
    if have and have == size:
        return
    with _ask(url, have, tag) as answer:
        strong = answer.headers.get("ETag", "W/")  # a weak tag, W/"…", does not vouch for every byte
        found = answer.headers.get("Last-Modified", "") if strong.startswith("W/") else strong
        total = answer.length
        if answer.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
            if not span or int(span[1]) != have or found != tag:
                raise _Dropped("the server sent another part than the one asked for", begin_again=True)
            total = int(span[2])
        if size is not None and total not in (None, size):
            raise ValueError(f"{url} has {total:,} bytes, and {size:,} were expected; the file there has changed.")
        if answer.status != 206:
            have = 0
            part.write_bytes(b"")  # in this order: a beginning never lies beside another file's tag
            tag_file.write_text(found, encoding="latin-1")
        total = size if total is None else total
        _need_room(part, (total or 0) - have)
        bar = tqdm(desc=part.stem, total=total, initial=have, unit="B", unit_scale=True, disable=None)
        with part.open("ab", buffering=0) as file, bar:
            while True:
                try:
                    chunk = answer.read1(_CHUNK)  # what has arrived
                except (OSError, http.client.HTTPException) as error:
                    raise _Dropped(str(error) or type(error).__name__) from error
                if not chunk:
                    break
                _put(file, chunk)
                bar.update(len(chunk))
                have += len(chunk)
                if total is not None and have > total:
                    raise _Dropped(f"the server sent more than the {total:,} bytes expected", begin_again=True)
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise _Dropped(f"the connection ended after {have:,} of {total:,} bytes")


# %%
#| export
def _size(path: Path) -> int:
    """A file's length; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


# %%
#| export
def _tag_file(part: Path) -> Path:
    """The file that remembers which version of a file an unfinished one is of."""
    return part.with_name(f"{part.name}.tag")


# %%
#| export
def _throw_away(part: Path) -> None:
    """Remove an unfinished or wrong file."""
    part.unlink(missing_ok=True)
    _tag_file(part).unlink(missing_ok=True)


# %% [markdown]
# `download` goes on as long as tries bring bytes, and gives up after five in a row that bring none. Then it checks, and only then does the file get its name.


# %%
#| export
def download(
    url: str,
    path: str | Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    bytes: int | None = None,
) -> Path:
    """Download a file, or use the one that is there.

    What has come so far is kept in `NAME.part` and goes on from there, in this call or a later one. The file gets its
    name when it is whole and checked. Without a checksum, its sha256 is written to `NAME.sha256` at the first download,
    and a later download must agree with that.

    Args:
        url: An http or https address.
        path: The file; its folder is made.
        sha256: Its checksum, hexadecimal.
        md5: The same, where only that was published.
        bytes: Its length.

    Returns:
        The path.

    Raises:
        OSError: No network, the server refuses, or the disk is full; what has come so far is kept.
        ValueError: The address is of another kind, or the file is not the one expected; a download whose checksum is
            wrong is thrown away.
    """
    path = Path(path)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"cannot download {url!r}: only http and https addresses are supported.")
    part = path.with_name(f"{path.name}.part")
    _make_folder(path.parent)
    with _alone_in(path.parent):
        if path.exists():
            if bytes not in (None, _size(path)):
                raise ValueError(f"{path} has {_size(path):,} bytes, not {bytes:,}; delete it and run this again.")
            return path
        failures = 0
        while True:
            before = _size(part)
            try:
                _receive(url, part, bytes)
                break
            except _Dropped as error:
                if error.begin_again:
                    _throw_away(part)
                failures = 0 if _size(part) > before else failures + 1
                if failures > len(_WAITS):
                    remedy = f"check the network and run this again, or put the file at {path} yourself"
                    raise OSError(f"cannot download {url} ({error}); {remedy}.") from error
                time.sleep(_WAITS[max(failures - 1, 0)])
        _verify(url, part, path, {name: value for name, value in (("sha256", sha256), ("md5", md5)) if value})
        os.replace(part, path)
        _throw_away(part)
    return path


# %% [markdown]
# A checksum says that the bytes are those that somebody else had. For files whose checksum nobody published, the second-best is to write it down at the first download, so that at least a change is noticed. A file that fails is thrown away: going on with it would only fail again.


# %%
#| export
def _verify(url: str, part: Path, path: Path, checksums: dict[str, str]) -> None:
    """Compare a file with its checksums, or with that of its first download; throw it away if it is another."""
    record, source = path.with_name(f"{path.name}.sha256"), ""
    if not checksums:
        if not record.exists():
            record.write_text(f"{_digest(part, 'sha256')}  {path.name}\n", encoding="utf-8")
            return
        checksums, source = {"sha256": record.read_text(encoding="utf-8")[:64]}, f" as {record.name} has it"
    for name, expected in checksums.items():
        digest = _digest(part, name)
        if digest != expected.lower():
            _throw_away(part)
            raise ValueError(
                f"{url} is not the file expected: its {name} is {digest} and not {expected.lower()}{source}; it was "
                "thrown away, so run this again, and if it fails again, the file there has changed."
            )


# %%
#| export
def _digest(path: Path, name: str) -> str:
    """A file's checksum, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, name).hexdigest()


# %% [markdown]
# ## Unpacking
#
# A tar archive is a list of names and contents, and the names are whatever its author wrote: `../../.bashrc`, `/etc/passwd`, a link to a folder elsewhere followed by a file "in" that link. So we do not let the archive decide. The caller says which members it wants and under which names; only plain files are read, by their content; nothing else is made.


# %%
#| export
def unpack(archive: str | Path, members: Mapping[str, str], folder: str | Path) -> list[Path]:
    """Take files out of an archive, all of them or none.

    Nothing in the archive chooses where a file goes, and no link, device or folder is made. A member that is itself
    compressed (`.gz`) is written plain, unless its new name ends in `.gz`, too.

    Args:
        archive: `.tar`, `.tgz` or `.tar.gz`; or a `.gz` of one file, whose member has the archive's name without `.gz`.
        members: For each member wanted, its name in the archive, the file's name below the folder.
        folder: Made if it does not exist.

    Returns:
        The files, in the order of the archive.

    Raises:
        ValueError: The archive is damaged or cut short, a member is missing or no plain file, or a name leads out of
            the folder; no file is written.
        OSError: The archive cannot be read, or the disk is full.
    """
    archive, folder, missing = Path(archive), Path(folder), dict(members)
    for name in members.values():
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name!r} leads out of the folder {folder}; give a name below it.")
    held: list[str] = []
    parts: dict[Path, Path] = {}
    try:
        for member, content, size in _members(archive):
            held.append(member)
            if member not in missing:
                continue
            path = folder / missing.pop(member)
            if content is None:
                raise ValueError(
                    f"{archive} holds {member} as a link, a folder or a device; only plain files are read."
                )
            part = path.with_name(f"{path.name}.part")
            parts[part] = path
            _make_folder(path.parent)
            _need_room(part, size)
            plain = member.endswith(".gz") and path.suffix != ".gz"
            stream = gzip.GzipFile(fileobj=content) if plain else content
            _write(part, iter(functools.partial(stream.read, _CHUNK), b""))  # until there is nothing more
            if not missing:
                break
        if missing:
            names = ", ".join(held[:30]) + (f" and {len(held) - 30:,} more" if len(held) > 30 else "")
            raise ValueError(f"{archive} has no {' and no '.join(missing)}; it holds {names or 'nothing'}.")
        for part, path in parts.items():
            os.replace(part, path)
    except (EOFError, tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{archive} is damaged or cut short ({reason}); delete it and download it again.") from error
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return list(parts.values())


# %%
#| export
def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | gzip.GzipFile | None, int]]:
    """Name, content and length of each member. What is no plain file has no content; what is compressed, no length."""
    if archive.name.endswith((".tar", ".tgz", ".tar.gz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                plain = member.isreg() and not member.issparse()  # a sparse file can claim any length
                yield member.name.removeprefix("./"), tar.extractfile(member) if plain else None, member.size
    else:
        if not archive.stat().st_size:
            raise EOFError("it is empty")  # which gzip takes for a file of no bytes
        with gzip.open(archive) as stream:
            yield archive.name.removesuffix(".gz"), stream, 0


# %% [markdown]
# ## Test sets in SGML
#
# The test sets of 2014 come as SGML: segments in documents, with `&amp;` for `&`. A line break inside a segment is a space. Only blanks, tabs and line ends are white space here: the French side is full of no-break spaces, which belong to the text.


# %%
#| export
def read_sgml(path: str | Path) -> list[str]:
    """The segments of a WMT test file, one line each.

    Args:
        path: An SGML file with `<seg id="1">…</seg>`, in UTF-8.

    Returns:
        The text of each segment in the order of the file, without the markup.

    Raises:
        ValueError: The file is not UTF-8, holds no segment, or holds one that does not end.

    Source: §6.1 (newstest2014).
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); is it another file?") from error
    segments = re.findall(r"<seg\b[^>]*>((?:(?!<seg\b).)*?)</seg>", text, flags=re.DOTALL | re.IGNORECASE)
    begun = len(re.findall(r"<seg\b", text, flags=re.IGNORECASE))
    if not segments or len(segments) != begun:
        raise ValueError(f"{path} begins {begun} segments and ends {len(segments)}; it is damaged or no SGML test set.")
    entity = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-f]+);", flags=re.IGNORECASE)
    plain = (entity.sub(lambda found: html.unescape(found[0]), segment) for segment in segments)
    return [re.sub(r"[ \t\r\n]+", " ", segment).strip(" ") for segment in plain]


# %% [markdown]
# ## One interface for all corpora
#
# A corpus is nothing but names of files: line $n$ of the one goes with line $n$ of the other. Training text may come in several pairs of files. Reading, cleaning and encoding them is the business of [the next chapter](A2a_from_text_to_arrays.py).


# %%
#| export
@dataclass(frozen=True)
class Corpus:
    """Line-aligned files on disk: for each split, pairs of a source and a target file, plain or compressed (`.gz`).

    Attributes:
        name: What it is called.
        source_language: Code of the language to translate from, for instance "en".
        target_language: Code of the language to translate into.
        train: The files to train on.
        dev: The files to choose settings by; may be empty.
        test: The files to report on; may be empty.
        licence: What its owners allow.
        kept: For each test line, whether it is in the official, smaller test set; empty where there is no such set.

    Source: §5.1.
    """

    name: str
    source_language: str
    target_language: str
    train: tuple[tuple[Path, Path], ...]
    dev: tuple[tuple[Path, Path], ...] = ()
    test: tuple[tuple[Path, Path], ...] = ()
    licence: str = ""
    kept: tuple[bool, ...] = field(default=(), repr=False)

    def official(self, lines: Sequence[str]) -> list[str]:
        """Of the test set's lines, in either language or translated, those of the official, smaller set.

        Args:
            lines: One for each line of the test set.

        Returns:
            The lines that both sets have, in the same order.

        Raises:
            ValueError: There is no smaller set, or the number of lines is not the test set's.
        """
        if len(lines) != len(self.kept) or not lines:
            full = f"takes all {len(self.kept):,} lines" if self.kept else "has no smaller test set"
            raise ValueError(f"{self.name} {full}; {len(lines):,} lines were given.")
        return list(itertools.compress(lines, self.kept))


# %%
#| export
def files_corpus(
    name: str,
    source_language: str,
    target_language: str,
    train: tuple[str | Path, str | Path],
    dev: tuple[str | Path, str | Path] | None = None,
    test: tuple[str | Path, str | Path] | None = None,
) -> Corpus:
    """A corpus of any line-aligned files.

    Args:
        name: What to call it.
        source_language: Code of the language to translate from.
        target_language: Code of the language to translate into.
        train: Source and target file to train on, plain or compressed (`.gz`).
        dev: Source and target file to choose settings by.
        test: Source and target file to report on.

    Returns:
        The corpus.

    Raises:
        FileNotFoundError: A file is missing.

    Source: §5.1.
    """

    def checked(files: tuple[str | Path, str | Path] | None) -> tuple[tuple[Path, Path], ...]:
        if files is None:
            return ()
        source, target = (Path(path).expanduser() for path in files)
        for path in (source, target):
            if not path.is_file():
                raise FileNotFoundError(f"the corpus {name} has no file {path}; check its name.")
        return ((source, target),)

    return Corpus(name, source_language, target_language, checked(train), checked(dev), checked(test))


# %% [markdown]
# The named corpora are looked up in the table. A text is found if both its files are in the folder, compressed or not; else it is fetched.


# %%
#| export
def find_corpus(name: str) -> Corpus:
    """A corpus by its name: its files in the data folder, downloaded if they are not there.

    Args:
        name: "multi30k", "multi30k-en-fr", "wmt14-en-de" or "wmt14-en-fr".

    Returns:
        The corpus. If all its files are there, no network is used.

    Raises:
        ValueError: There is no such corpus, or what was downloaded is not what was expected.
        OSError: A file is missing and cannot be downloaded, or the disk is full.

    Source: §5.1.
    """
    table = read_sources()
    if name not in table["corpora"]:
        known = ", ".join(table["corpora"])
        raise ValueError(f"there is no corpus {name!r}: choose one of {known}, or use files_corpus for your own files.")
    entry, folder = table["corpora"][name], data_folder()
    train, dev, test = (
        tuple(_find(table, text, entry["languages"], folder) for text in entry[split])
        for split in ("train", "dev", "test")
    )
    dropped = {line for first, last in entry.get("unofficial", ()) for line in range(first, last + 1)}
    lines = range(1, 1 + table["texts"][entry["test"][0]]["pairs"]) if dropped else ()
    kept = tuple(line not in dropped for line in lines)
    source, target = entry["languages"]
    return Corpus(name, source, target, train, dev, test, entry["licence"], kept)


# %%
#| export
def _find(table: dict[str, Any], name: str, languages: list[str], folder: Path) -> tuple[Path, Path]:
    """The two files of a text, fetched if one is missing."""

    def lying() -> list[Path]:
        files = [(folder / f"{name}.{language}", folder / f"{name}.{language}.gz") for language in languages]
        return [plain if plain.is_file() else packed for plain, packed in files if plain.is_file() or packed.is_file()]

    if len(lying()) < 2:
        _make_folder(folder)
        with _alone_in(folder):
            if len(lying()) < 2:  # nobody fetched them while we waited
                _fetch(table, name, languages, folder)
    source, target = lying()
    return source, target


# %% [markdown]
# Fetching is downloading, unpacking, and one more check: both sides must have equally many lines, and as many as others counted. Multi30k has no published checksum, so there we compare the unpacked text with the copy that this book was tested with.


# %%
#| export
def _fetch(table: dict[str, Any], name: str, languages: list[str], folder: Path) -> None:
    """Download, unpack and check a text; its two files appear when both are right."""
    text = table["texts"][name]
    source = table["archives"][text["archive"]]
    checks = {key: source[key] for key in ("sha256", "md5", "bytes") if key in source}
    members = text["member"] if isinstance(text["member"], dict) else dict.fromkeys(languages, text["member"])
    raw = {language: folder / f"{name}.{language}.raw" for language in languages}
    archives: dict[Path, list[str]] = {}
    for language in languages:
        archives.setdefault(folder / "downloads" / text["archive"].format(language=language), []).append(language)
    try:
        for archive, inside in archives.items():
            download(source["url"].format(language=inside[0]), archive, **checks)
            wanted = {members[language].format(language=language): f"{name}.{language}.raw" for language in inside}
            unpack(archive, wanted, folder)
        for language in languages:
            if members[language].endswith(".sgm"):
                _write(raw[language], [f"{line}\n".encode() for line in read_sgml(raw[language])])
        _check_text(name, text, raw)
        for language, path in raw.items():
            os.replace(path, folder / f"{name}.{language}")
    except ValueError:
        for archive in () if checks else archives:  # nothing vouches for the archive: another time, fetch it anew
            archive.unlink(missing_ok=True)
            archive.with_name(f"{archive.name}.sha256").unlink(missing_ok=True)
        raise
    finally:
        for path in raw.values():
            path.unlink(missing_ok=True)


# %%
#| export
def _check_text(name: str, text: Mapping[str, Any], raw: Mapping[str, Path]) -> None:
    """Compare the sides of a text with each other, and with what is known of it."""
    counts = {}
    for language, path in raw.items():
        with path.open("rb") as file:
            counts[language] = sum(1 for _ in file)
        expected = text.get("sha256", {}).get(language)
        if expected and _digest(path, "sha256") != expected:
            raise ValueError(
                f"{name}.{language} is not the text expected, by its sha256; what was downloaded has changed."
            )
    shown = " and ".join(f"{count:,} lines of {language}" for language, count in counts.items())
    if len(set(counts.values())) > 1:
        raise ValueError(f"{name} has {shown}: its two sides do not belong together, and were thrown away.")
    pairs, count = text.get("pairs"), max(counts.values())
    if pairs and abs(count - pairs) > pairs / 5000:  # whoever counted may have split the lines in another way
        raise ValueError(f"{name} has {shown}, and {pairs:,} were expected; the texts were thrown away.")


# %% [markdown]
# ## See it: a server of our own
#
# No chapter of this book needs the network. So here is a server on this machine. It knows parts and tags, and it can be told to break the connection in the middle. Its file has the form of the real ones: an archive with a text in two languages, and a member that nobody wants.


# %%
def tar_of(members: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    """A tar archive in memory. The members in `links` are links to a file elsewhere."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if name in links:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
    return memory.getvalue()


class Server(BaseHTTPRequestHandler):
    """Serves one file, and breaks the connection where `cuts` says so."""

    content, tag, cuts, asked = b"", '"version 1"', [], []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range") if self.headers.get("If-Range") == self.tag else None
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("ETag", self.tag)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        end = self.cuts.pop(0) if self.cuts else len(self.content)
        self.asked.append((wanted or "everything", end - start))
        self.wfile.write(self.content[start:end])

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def serve(handler: type[Server]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


texts = {"training/tiny.de-en.en": "the dog sleeps .\n", "training/tiny.de-en.de": "der Hund schläft .\n"}
Server.content = tar_of({**{name: text.encode() for name, text in texts.items()}, "more": bytes(50_000)})
server = serve(Server)
url = f"http://127.0.0.1:{server.server_port}/tiny.tar"
place = Path(tempfile.mkdtemp())

# %% [markdown]
# The connection breaks twice. `download` asks for the rest each time, and nothing is sent twice.

# %%
Server.cuts = [20_000, 45_000]
right = hashlib.sha256(Server.content).hexdigest()
archive = download(url, place / "tiny.tar", sha256=right, bytes=len(Server.content))
for wanted, sent in Server.asked:
    print(f"asked for {wanted:13} and got {sent:6,} bytes")
assert sum(sent for _, sent in Server.asked) == len(Server.content) == archive.stat().st_size
assert [path.name for path in place.iterdir()] == ["tiny.tar"]

# %% [markdown]
# Only the two texts leave the archive.

# %%
members = {f"training/tiny.de-en.{language}": f"tiny.{language}" for language in ("en", "de")}
for path in unpack(archive, members, place / "text"):
    print(f"{path.name}: {path.read_text(encoding='utf-8').strip()}")
assert sorted(path.name for path in (place / "text").iterdir()) == ["tiny.de", "tiny.en"]


# %% [markdown]
# ## Check it: what is wrong is refused, and leaves nothing behind


# %%
def refused(act) -> str:
    before = sorted(place.rglob("*"))
    try:
        act()
    except (OSError, ValueError) as error:
        assert sorted(place.rglob("*")) == before, "something was left behind"
        return str(error).replace(str(place), "FOLDER")
    raise AssertionError("was accepted")


def without_port(text: str) -> str:
    return text.replace(f":{server.server_port}", "")


# %% [markdown]
# A file with another content; a file of another length; an address that leads to this disk.

# %%
print(without_port(refused(lambda: download(url, place / "wrong.tar", sha256=64 * "0"))))
print(without_port(refused(lambda: download(url, place / "wrong.tar", bytes=1000))))
print(refused(lambda: download("file:///etc/passwd", place / "passwd")))

# %% [markdown]
# Four archives made with bad intent, or by accident: a name that leads out of the folder, a link, a member that is not there, and a file cut in half.

# %%
(place / "evil.tar").write_bytes(tar_of({"../outside": b"gotcha", "link": b""}, links=("link",)))
(place / "cut.tar").write_bytes(Server.content[: len(Server.content) // 2])
print(refused(lambda: unpack(place / "evil.tar", {"../outside": "../outside"}, place / "text")))
print(refused(lambda: unpack(place / "evil.tar", {"link": "link"}, place / "text")))
print(refused(lambda: unpack(place / "evil.tar", {"training/tiny.en": "tiny.en"}, place / "text")))
print(refused(lambda: unpack(place / "cut.tar", {"more": "more"}, place / "text")))

# %% [markdown]
# The member `../outside` can even be read. It then stands where the caller said.

# %%
(path,) = unpack(place / "evil.tar", {"../outside": "inside"}, place / "text")
assert path == place / "text" / "inside" and path.read_bytes() == b"gotcha"

# %% [markdown]
# A segment of SGML becomes a line, whatever it holds.

# %%
(place / "test.sgm").write_text(
    '<doc id="a"><seg id="1">Salt &amp;\n  pepper</seg>\n<seg id="2">\u00abyes\u00a0\u00bb</seg></doc>',
    encoding="utf-8",
)
print(read_sgml(place / "test.sgm"))
assert read_sgml(place / "test.sgm") == ["Salt & pepper", "\u00abyes\u00a0\u00bb"]

# %% [markdown]
# ## The corpora
#
# What would be downloaded, and what its owners allow, according to the table:

# %%
table = read_sources()
for name, entry in table["corpora"].items():
    texts = [table["texts"][text] for split in ("train", "dev", "test") for text in entry[split]]
    archives = {text["archive"] for text in texts}
    sizes = [table["archives"][archive].get("bytes") for archive in archives]
    size = f"{sum(filter(None, sizes)) / 1e9:.1f} GB" if any(sizes) else "a few MB"
    counts = [table["texts"][text].get("pairs") for text in entry["train"]]
    pairs = entry.get("pairs") or sum(counts)
    print(f"{name:14} {'-'.join(entry['languages'])}  {pairs:10,} training pairs, {size:8}  {entry['licence']}")

# %% [markdown]
# The counts are those that users of these archives report. The three parts of English–German make the "about 4.5 million" of the paper. English–French has more than the paper's 36 million; presumably the difference is what cleaning took away.

# %%
parts = {text: table["texts"][text]["pairs"] for text in table["corpora"]["wmt14-en-de"]["train"]}
total = sum(parts.values())
assert round(total / 1e6, 1) == 4.5
print(f"{total:,} pairs, {parts['wmt14/commoncrawl.de-en'] / total:.0%} of them from Common Crawl")

# %%
labels = ["parliament (Europarl)", "the web (Common Crawl)", "news commentary"]
values = [{"source": name, "pairs": n, "share": n / total} for name, n in zip(labels, parts.values(), strict=True)]
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_bar(color="#0072B2")
    .encode(
        x=alt.X("pairs:Q", title="sentence pairs", axis=alt.Axis(format="~s")),
        y=alt.Y("source:N", title=None, sort="-x"),
        tooltip=["source:N", alt.Tooltip("pairs:Q", format=","), alt.Tooltip("share:Q", format=".1%")],
    )
    .properties(width=430, height=120, title="A news translator that has hardly read any news")
)
chart

# %% [markdown]
# More than half of the English–German pairs come from a crawl of the web, most of the others from parliament. The text nearest to the test set, news, is the smallest part by far.

# %% [markdown]
# ## Two test sets of one name
#
# `newstest2014` for English–German exists twice: all 3,003 pairs, which most later papers report, and the official 2,737. The paper does not say which it used. The smaller set leaves out twelve runs of lines, it seems whole articles, and has its articles in another order; BLEU does not depend on the order. So the corpus needs no second file: translate the 3,003, score them, then score what `official` keeps.

# %%
runs = table["corpora"]["wmt14-en-de"]["unofficial"]
kept = tuple(not any(first <= line <= last for first, last in runs) for line in range(1, 3004))
both = Corpus("wmt14-en-de", "en", "de", train=(), kept=kept)
official = both.official([f"line {number}" for number in range(1, 3004)])
print(
    f"{len(runs)} runs; {len(official):,} of {len(kept):,} lines are kept; after {official[160]} comes {official[161]}"
)
assert len(official) == 2737 and official[160:162] == ["line 161", "line 169"]

# %% [markdown]
# ## Any other text
#
# Two line-aligned files are a corpus, too.

# %%
own = files_corpus("tiny", "en", "de", train=(place / "text" / "tiny.en", place / "text" / "tiny.de"))
print(own.name, [[path.name for path in pair] for pair in own.train])

# %% [markdown]
# ## Unsaid by the paper
#
# * The paper names the data and says nothing about how it was cleaned.
# * The first public version of the authors' code does not train on WMT 2014 data for English–German. It reads an archive prepared for WMT 2016, with News Commentary 11 instead of 9; Europarl and Common Crawl are the same. Many later systems use that archive. Here the corpus is the one the paper names.
# * Development and test sets are not named in Section 5.1. Section 6.2 names newstest2013 for development; the test set of WMT 2014 is newstest2014.
# * Nothing here vouches for a server. Some of the addresses are plain `http`; what makes them safe is the checksum, not the connection.

# %% [markdown]
# ## What we now know
#
# * A download that breaks goes on where it stopped, and each byte is sent once.
# * A file has its name only when it is whole and its checksum is right; else one sentence says what is wrong, and nothing is left behind.
# * An archive decides nothing: the caller names the members, and only plain files are read.
# * English–German is 4.5 million pairs, more than half of them from the web.

# %% [markdown]
# ## Exercises
#
# 1. **Predict, then run.** The file on the server changes after the first break. What must the server answer to the second request, and what does `download` do? Write such a server, and see.
# 2. **Minutes.** A checksum protects against accidents. Against whom does it not protect, if the attacker can also change this repository?
# 3. **An hour.** Write the list of ranges that the official newstest2014 keeps, from the list of those it drops.


# %% tags=["hide-cell"]
# Exercise 1: everything, with status 200. The old beginning is thrown away.
class ChangingServer(Server):
    content, cuts, asked = Server.content, [20_000], []

    def do_GET(self) -> None:
        super().do_GET()
        type(self).content, type(self).tag = tar_of({"another": b"file"}), '"version 2"'


changing = serve(ChangingServer)
changed = download(f"http://127.0.0.1:{changing.server_port}/tiny.tar", place / "changed.tar")
print(ChangingServer.asked)
assert changed.read_bytes() == tar_of({"another": b"file"})
changing.shutdown()
changing.server_close()

# %% [markdown]
# ## The notebook and the module agree

# %%
again = transformer.download(url, place / "again.tar", sha256=right)
assert again.read_bytes() == archive.read_bytes()
assert transformer.read_sgml(place / "test.sgm") == read_sgml(place / "test.sgm")
assert transformer.read_sources() == table and transformer.data_folder() == data_folder()
server.shutdown()
server.server_close()
shutil.rmtree(place)
