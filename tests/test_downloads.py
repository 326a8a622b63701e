"""Corpora and downloads, against a server on this machine that misbehaves in every way we could think of."""

import copy
import gzip
import hashlib
import html
import http.server
import io
import itertools
import os
import re
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import transformer
from transformer import downloads
from transformer.downloads import Corpus, data_folder, download, files_corpus, find_corpus, read_sgml, unpack

CONTENT = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(6000))  # 192,000 bytes
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`. Each request takes the next plan from `server.plans`, which says what to do wrong."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append((self.path, asked))
        plan = server.plans.pop(0) if server.plans else {}
        self.close_connection = True
        if "status" in plan or self.path not in server.files:
            self.send_response(plan.get("status", 404))
            if "to" in plan:
                self.send_header("Location", plan["to"])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, tag = plan.get("content", server.files[self.path]), plan.get("tag", {"ETag": '"1"'})
        wanted = plan.get("ranges", True) and asked
        wanted = wanted and (plan.get("sloppy") or self.headers.get("If-Range") in tag.values())
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if wanted else 0
        if start >= len(content) and wanted:
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start + plan.get('shift', 0)}-{len(content) - 1}/{len(content)}")
        for name, value in tag.items():
            self.send_header(name, value)
        if plan.get("chunked"):
            self.send_header("Transfer-Encoding", "chunked")
        elif plan.get("length", True) is not None:
            self.send_header("Content-Length", str(len(content) - start + plan.get("more", 0)))
        self.end_headers()
        body = content[start : plan.get("cut", len(content))]
        for piece in (body[i : i + 50_000] for i in range(0, len(body), 50_000)):
            time.sleep(plan.get("pause", 0))
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if plan.get("chunked") else piece)
            server.sent += len(piece)
        if plan.get("chunked") and "cut" not in plan:
            self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
        if "stall" in plan:
            plan["stall"].wait(20)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.plans, self.requests, self.sent = {"/file.bin": CONTENT}, [], [], 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that goes away in the middle is what we test."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloads, "_WAITS", (0.0, 0.0, 0.0, 0.0))
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def fetch(server, tmp_path):
    """Download the server's file into an empty folder."""
    return lambda **options: download(f"{server.url}/file.bin", tmp_path / "in" / "file.bin", **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# ------------------------------------------------------------------------------------------------------- what goes well


def test_a_file_arrives_whole_and_alone(server, fetch, tmp_path, capfd):
    path = fetch(sha256=SHA256.upper(), md5=hashlib.md5(CONTENT).hexdigest(), bytes=len(CONTENT))
    assert path == tmp_path / "in" / "file.bin" and path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.bin"] and server.requests == [("/file.bin", None)]
    assert capfd.readouterr() == ("", ""), "progress is for terminals"


def test_an_empty_file(server, fetch):
    server.files["/file.bin"] = b""
    assert fetch().read_bytes() == b""


def test_a_file_that_is_there_needs_no_server(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    assert download("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", sha256=SHA256).read_bytes() == b"mine"
    with pytest.raises(ValueError, match=r"file.bin has 4 bytes, not 5; delete it"):
        download("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", bytes=5)


@pytest.mark.parametrize("plan", [{"chunked": True}, {"length": None}, {"pause": 0.02}, {"tag": {}}], ids=str)
def test_other_ways_to_answer(server, fetch, plan):
    server.plans = [plan]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT


def test_a_redirect_is_followed(server, fetch):
    server.files["/else.bin"] = CONTENT
    server.plans = [{"status": 302, "to": "/else.bin"}, {"cut": 70_000}]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/file.bin", "/else.bin", "/file.bin"]


# ----------------------------------------------------------------------------------------------- connections that break


@given(cuts=st.lists(st.integers(1, len(CONTENT) - 1), min_size=1, max_size=5, unique=True).map(sorted))
def test_a_broken_download_goes_on(cuts, tmp_path_factory):
    """However often it breaks, every byte is sent once, and later requests ask for exactly what is missing."""
    running, folder = Server(), tmp_path_factory.mktemp("in")
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "_WAITS", (0.0,) * 4)
        running.plans = [{"cut": cut} for cut in cuts]
        path = download(f"{running.url}/file.bin", folder / "file.bin", sha256=SHA256)
    running.shutdown()
    thread.join()
    running.server_close()
    assert path.read_bytes() == CONTENT and running.sent == len(CONTENT)
    assert [asked for _, asked in running.requests] == [None, *(f"bytes={cut}-" for cut in cuts)]


def test_a_later_call_goes_on(server, fetch, tmp_path):
    server.plans = [{"cut": 100_000}, *({"status": 503} for _ in range(5))]
    with pytest.raises(
        OSError, match=r"cannot download http://127.*file.bin \(the server answers 503 Serv.*put the file"
    ):
        fetch(sha256=SHA256)
    assert names(tmp_path / "in") == ["file.bin.part", "file.bin.part.tag"]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT and server.requests[-1] == ("/file.bin", "bytes=100000-")
    assert names(tmp_path / "in") == ["file.bin"] and server.sent == len(CONTENT)


def test_without_progress_it_gives_up(server, fetch):
    server.plans = [{"cut": 1000}] + [{"cut": 0}] * 50
    with pytest.raises(OSError, match=r"ended after 1,000 of 192,000 bytes\); check the network"):
        fetch()
    assert len(server.requests) == 6


@pytest.mark.parametrize("plan", [{"cut": 120_000, "chunked": True}, {"stall": None}, {"more": 5000}], ids=str)
def test_other_ways_to_break(server, fetch, plan, monkeypatch):
    """Chunks that stop, silence, fewer bytes than announced: a second request brings the rest."""
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.3)
    if "stall" in plan:
        plan = {"stall": threading.Event(), "cut": 60_000}
    server.plans = [plan]
    if "more" in plan:
        server.plans.append({"ranges": False})
    assert fetch(sha256=SHA256).read_bytes() == CONTENT
    assert len(server.requests) == 2
    if "stall" in plan:
        plan["stall"].set()


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_busy_server_is_asked_again(server, fetch, status):
    server.plans = [{"status": status}, {"status": status}]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT and len(server.requests) == 3


KILLED = """
import sys
from transformer import downloads
downloads._WAITS = (0.0,) * 4
downloads.download(sys.argv[1], sys.argv[2], sha256=sys.argv[3])
"""


def test_a_killed_process_leaves_what_the_next_one_needs(server, fetch, tmp_path):
    plans = [{"stall": threading.Event(), "cut": cut} for cut in (60_000, 130_000)]
    server.plans = [*plans]
    part = tmp_path / "in" / "file.bin.part"
    for plan in plans:
        command = [sys.executable, "-c", KILLED, f"{server.url}/file.bin", str(part.with_suffix("")), SHA256]
        with subprocess.Popen(command) as process:
            deadline = time.monotonic() + 30
            while not part.exists() or part.stat().st_size < plan["cut"]:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            process.kill()
        plan["stall"].set()
        assert names(tmp_path / "in") == ["file.bin.part", "file.bin.part.tag"]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=60000-", "bytes=130000-"]
    assert server.sent == len(CONTENT) and names(tmp_path / "in") == ["file.bin"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_two_at_once_download_it_once(server, fetch):
    server.plans = [{"pause": 0.05}]
    threads = [threading.Thread(target=fetch, kwargs={"sha256": SHA256}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetch().read_bytes() == CONTENT and len(server.requests) == 1


# -------------------------------------------------------------------------------- servers without parts, or that change


def test_a_server_without_parts(server, fetch):
    server.plans = [{"cut": 100_000}, {"ranges": False}]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT and server.sent == 100_000 + len(CONTENT)


@pytest.mark.parametrize("tag", [{}, {"ETag": 'W/"1"'}], ids=str)
def test_no_version_no_resumption(server, fetch, tag):
    """What may be the beginning of another file is not gone on with."""
    server.plans = [{"cut": 100_000, "tag": tag}, {"tag": tag}]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT and server.requests[1] == ("/file.bin", None)


def test_the_date_is_a_version_too(server, fetch):
    tag = {"ETag": 'W/"1"', "Last-Modified": "Mon, 12 Jun 2017 17:57:34 GMT"}
    server.plans = [{"cut": 100_000, "tag": tag}, {"tag": tag}]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT and server.sent == len(CONTENT)


@pytest.mark.parametrize("sloppy", [False, True], ids=["honest", "sends a part of the new file"])
def test_a_file_that_changes_between_two_tries(server, fetch, sloppy):
    new = CONTENT[::-1]
    server.plans = [{"cut": 100_000}] + [{"content": new, "tag": {"ETag": '"2"'}, "sloppy": sloppy}] * 2
    assert fetch().read_bytes() == new


@pytest.mark.parametrize("shift", [-1, 1, 5000])
def test_a_part_from_the_wrong_place_is_not_used(server, fetch, shift):
    server.plans = [{"cut": 100_000}, {"shift": shift}]
    assert fetch(sha256=SHA256).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=100000-", None]


def test_a_beginning_longer_than_the_file_is_thrown_away(server, fetch):
    server.plans = [{"cut": 100_000}, *({"status": 503} for _ in range(5))]
    with pytest.raises(OSError):
        fetch()
    server.files["/file.bin"] = CONTENT[:50_000]  # shorter, and by mistake under the same tag
    assert fetch().read_bytes() == CONTENT[:50_000]


# --------------------------------------------------------------------------------------------------- what must not pass


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_is_said_at_once(server, fetch, tmp_path, status):
    server.plans = [{"status": status}]
    with pytest.raises(OSError, match=rf"^cannot download http://127[^ ]*/file.bin: the server answers {status} \w"):
        fetch()
    assert len(server.requests) == 1 and names(tmp_path / "in") == []


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_wrong_checksum(server, fetch, tmp_path, algorithm):
    server.files["/file.bin"] = wrong = CONTENT[:-1] + b"?"
    expected, got = (hashlib.new(algorithm, text).hexdigest() for text in (CONTENT, wrong))
    with pytest.raises(ValueError, match=f"its {algorithm} is {got} and not {expected}; it was thrown away"):
        fetch(**{algorithm: expected})
    assert names(tmp_path / "in") == []
    server.files["/file.bin"] = CONTENT
    assert fetch(**{algorithm: expected}).read_bytes() == CONTENT


def test_both_checksums_must_be_right(fetch, tmp_path):
    with pytest.raises(ValueError, match="its md5 is"):
        fetch(sha256=SHA256, md5="0" * 32)
    assert names(tmp_path / "in") == []


@pytest.mark.parametrize("size", [0, 1, len(CONTENT) - 1, len(CONTENT) + 1, 10**12])
def test_a_wrong_length(server, fetch, tmp_path, size):
    with pytest.raises(ValueError, match=f"has 192,000 bytes, and {size:,} were expected"):
        fetch(bytes=size)
    assert names(tmp_path / "in") == [] and server.sent <= len(CONTENT)


def test_more_than_expected(server, fetch, tmp_path):
    """Nobody said how long it is, and it does not end: stop where it should have ended."""
    server.plans = [{"chunked": True, "content": CONTENT + b"x"} for _ in range(5)]
    with pytest.raises(OSError, match="sent more than the 192,000 bytes expected"):
        fetch(bytes=len(CONTENT))
    assert names(tmp_path / "in") == []


def test_less_than_announced_and_nothing_to_check_by(server, fetch, tmp_path):
    server.plans = [{"more": -1000}]  # the header is the only word about the length; the checksum knows better
    with pytest.raises(ValueError, match="sha256"):
        fetch(sha256=SHA256)
    assert names(tmp_path / "in") == []


def test_the_first_download_is_remembered(server, fetch, tmp_path):
    path, record = fetch(), tmp_path / "in" / "file.bin.sha256"
    assert record.read_text() == f"{SHA256}  file.bin\n"  # the form that `sha256sum --check` reads
    path.unlink()
    server.files["/file.bin"] = b"something else"
    with pytest.raises(ValueError, match=rf"and not {SHA256} as file.bin.sha256 has it"):
        fetch()
    assert names(tmp_path / "in") == ["file.bin.sha256"]
    server.files["/file.bin"] = CONTENT
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://localhost/x", "/etc/passwd", "data:,x", "", "HTTPX://x"])
def test_other_kinds_of_addresses(url, tmp_path):
    with pytest.raises(ValueError, match="only http and https"):
        download(url, tmp_path / "x")
    assert names(tmp_path) == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1:9/x", "data:,x", "/file.bin"])
def test_a_redirect_that_leads_astray(server, fetch, tmp_path, target):
    server.plans = [{"status": 301, "to": target} for _ in range(100)]
    with pytest.raises(OSError, match=r"^cannot download http://127") as caught:
        fetch()
    assert target in str(caught.value) or "loop" in str(caught.value)
    assert "loop" in str(caught.value) or len(server.requests) == 1, "another try leads to the same place"
    assert names(tmp_path / "in") == []


def test_an_address_that_cannot_be_asked_for_is_asked_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_WAITS", ())  # a wait would have no length to take
    with pytest.raises(ValueError, match=r"^cannot download 'http://127\.0\.0\.1/a b'"):
        download("http://127.0.0.1/a b", tmp_path / "x")


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_WAITS", (0.0,) * 4)
    with socket.socket() as taken:  # bound and not listening: nobody answers
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file.bin"
        with pytest.raises(OSError, match=r"cannot download .*refused.*check the network and run this again, or put"):
            download(url, tmp_path / "file.bin")
    assert names(tmp_path) == []


def test_a_proxy_is_not_asked_for_this_machine(fetch, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert fetch(sha256=SHA256).read_bytes() == CONTENT


# -------------------------------------------------------------------------------------------------------- a full disk


@FULL
def test_a_disk_that_becomes_full(server, fetch, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*file.bin.part \(No space left on device\); make room") as caught:
        fetch(sha256=SHA256)
    assert caught.value.errno == 28 and len(server.requests) == 1
    assert "file.bin" not in names(tmp_path / "in")


def test_a_disk_too_small(server, fetch, tmp_path, monkeypatch):
    usage = downloads.shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(downloads.shutil, "disk_usage", lambda path: usage._replace(free=150_000))
        with pytest.raises(OSError, match=r"needs 192,000 bytes and the disk has 150,000; make room, or let TRANSF"):
            fetch(sha256=SHA256)
        assert (tmp_path / "in" / "file.bin.part").stat().st_size == 0
        server.plans = [{"cut": 100_000}]
        patch.setattr(downloads.shutil, "disk_usage", lambda path: usage._replace(free=len(CONTENT)))
        fetch(sha256=SHA256)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "in").write_text("a file")
    with pytest.raises(OSError, match=r"cannot make the folder .*let TRANSFORMER_DATA name"):
        download("http://127.0.0.1:9/x", tmp_path / "in" / "x")


# --------------------------------------------------------------------------------------------------------- unpacking


def tar(members, mode="w:gz"):
    """A tar archive of names and contents; a content that is a TarInfo stands for itself."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode=mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return memory.getvalue()


TEXTS = [("training/a.en", b"one\ntwo\n"), ("training/a.de", b"eins\nzwei\n"), ("other", bytes(5000))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tgz", tar(TEXTS)),
        ("x.tar.gz", tar(TEXTS)),
        ("x.tar", tar(TEXTS, "w")),
        ("x.tgz", tar([(f"./{member}", content) for member, content in TEXTS])),
        ("x.tgz", tar([(member, content) for member, content in reversed(TEXTS)])),
    ],
    ids=["tgz", "tar.gz", "tar", "dot names", "reversed"],
)
def test_only_the_named_members(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    paths = unpack(tmp_path / name, {"training/a.de": "deep/er/a.de", "training/a.en": "a.en"}, tmp_path / "out")
    assert {path: path.read_bytes() for path in paths} == {
        tmp_path / "out" / "a.en": b"one\ntwo\n",
        tmp_path / "out" / "deep" / "er" / "a.de": b"eins\nzwei\n",
    }
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 2


def test_compressed_members(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar([("a.en.gz", gzip.compress(b"one\n"))], "w"))
    unpack(tmp_path / "x.tar", {"a.en.gz": "a.en"}, tmp_path)
    assert (tmp_path / "a.en").read_bytes() == b"one\n"
    unpack(tmp_path / "x.tar", {"a.en.gz": "a.en.gz"}, tmp_path)
    assert gzip.decompress((tmp_path / "a.en.gz").read_bytes()) == b"one\n"
    unpack(tmp_path / "a.en.gz", {"a.en": "b"}, tmp_path)
    assert (tmp_path / "b").read_bytes() == b"one\n"


def tree(folder):
    """Everything below a folder: names, kinds and contents."""
    return {
        path.relative_to(folder): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def place(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.en").write_bytes(b"old\n")
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path


LINKS = {
    "symlink": (tarfile.SYMTYPE, "../secret"),
    "absolute symlink": (tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": (tarfile.LNKTYPE, "../secret"),
    "hard link to a member": (tarfile.LNKTYPE, "training/a.en"),
    "character device": (tarfile.CHRTYPE, ""),
    "block device": (tarfile.BLKTYPE, ""),
    "pipe": (tarfile.FIFOTYPE, ""),
    "folder": (tarfile.DIRTYPE, ""),
    "sparse": (tarfile.GNUTYPE_SPARSE, ""),
}


@pytest.mark.parametrize("kind", LINKS)
def test_what_is_no_plain_file(place, kind):
    (place / "x.tgz").write_bytes(tar([*TEXTS, ("trap", LINKS[kind])]))
    before = tree(place)
    with pytest.raises(ValueError, match=r"x.tgz holds trap as a link, a folder or a device|is damaged"):
        unpack(place / "x.tgz", {"training/a.en": "a.en", "trap": "trap"}, place / "out")
    assert tree(place) == before


@pytest.mark.parametrize("name", ["../evil", "/evil-transformer", "a/../../evil", "..", "link/evil"])
def test_no_name_leads_out(place, name):
    (place / "out" / "link").symlink_to(place)
    (place / "x.tgz").write_bytes(tar([(name, b"evil")]))
    before = tree(place)
    with pytest.raises(ValueError, match="leads out of the folder"):
        unpack(place / "x.tgz", {name: name}, place / "out")
    assert tree(place) == before and not Path("/evil-transformer").exists()
    unpack(place / "x.tgz", {name: "inside"}, place / "out")
    assert tree(place) == {**before, Path("out/inside"): b"evil"}


def test_evil_neighbours_do_nothing(place):
    """Members that nobody asked for are not made, and a member "in" a link is a plain file in our folder."""
    evil = [("../evil", b"evil"), ("/evil", b"evil"), ("d", (tarfile.SYMTYPE, "..")), ("d/secret", b"evil")]
    (place / "x.tgz").write_bytes(tar([*evil, *TEXTS]))
    before = tree(place)
    unpack(place / "x.tgz", {"training/a.en": "a.en", "d/secret": "d/secret"}, place / "out")
    new = {Path("out/a.en"): b"one\ntwo\n", Path("out/d"): None, Path("out/d/secret"): b"evil"}
    assert tree(place) == {**before, **new}


@pytest.mark.parametrize("size", [2**60, 100_000])
def test_a_length_that_is_not_there(place, size):
    info = tarfile.TarInfo("training/a.en")
    info.size = size
    (place / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"short")
    before = tree(place)
    with pytest.raises((OSError, ValueError), match=r"needs 1,152,921,504,606,846,976 bytes|damaged or cut short"):
        unpack(place / "x.tar", {"training/a.en": "a.en"}, place / "out")
    assert tree(place) == before


CUT = tar([("training/a.en", CONTENT), ("training/a.de", CONTENT[::-1])])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.45, 0.5, 0.55, 0.9, 0.99])
def test_a_cut_archive(place, share):
    (place / "x.tgz").write_bytes(CUT[: int(share * len(CUT))])
    before = tree(place)
    with pytest.raises(ValueError, match=r"x.tgz (is damaged or cut short \([^)\n]+\); delete it|has no )"):
        unpack(place / "x.tgz", {"training/a.en": "a.en", "training/a.de": "a.de"}, place / "out")
    assert tree(place) == before


@pytest.mark.parametrize("missing", [1, 4, 8, 100, 1000, None])
def test_a_cut_gz(place, missing):
    (place / "x.gz").write_bytes(gzip.compress(CONTENT)[: -missing if missing else 0])
    before = tree(place)
    with pytest.raises(ValueError, match=r"x.gz is damaged or cut short \("):
        unpack(place / "x.gz", {"x": "a.en"}, place / "out")
    assert tree(place) == before


@pytest.mark.parametrize("name", ["x.tgz", "x.tar", "x.gz"])
def test_no_archive_at_all(place, name):
    (place / name).write_bytes(b"<html><title>404 Not Found</title></html>" * 50)
    before = tree(place)
    with pytest.raises(
        ValueError, match=rf"{name} is damaged or cut short \([^\n]+\); delete it and download it again"
    ):
        unpack(place / name, {"x": "a.en"}, place / "out")
    assert tree(place) == before


def test_a_missing_member(place):
    many = [(f"file{number}", b"x") for number in range(40)]
    (place / "x.tgz").write_bytes(tar([*TEXTS, *many]))
    before = tree(place)
    with pytest.raises(ValueError) as caught:
        unpack(place / "x.tgz", {"training/a.en": "a.en", "training/a.fr": "a.fr"}, place / "out")
    assert re.search(
        r"has no training/a.fr; it holds training/a.en, training/a.de, other, .* and 13 more\.", str(caught.value)
    )
    assert tree(place) == before, "all or none"


@FULL
def test_a_disk_that_becomes_full_while_unpacking(place):
    (place / "x.tgz").write_bytes(tar(TEXTS))
    before = tree(place)
    (place / "out" / "a.de.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*a.de.part \(No space left"):
        unpack(place / "x.tgz", {"training/a.en": "a.en", "training/a.de": "a.de"}, place / "out")
    assert tree(place) == before


# -------------------------------------------------------------------------------------------------------------- SGML


def sgml(lines, head='<srcset setid="t" srclang="any">'):
    """Lines as the workshop writes them: documents of a few segments each, with paragraphs."""
    text = head
    for number, line in enumerate(lines):
        text += f'<doc sysid="x" docid="{number}">\n<p>\n' if number % 3 == 0 else ""
        text += f'<seg id="{number % 3 + 1}">{html.escape(line, quote=False)}</seg>\n'
        text += "</p>\n</doc>\n" if number % 3 == 2 or number == len(lines) - 1 else ""
    return (text + "</srcset>\n").encode()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\r\n")), min_size=1))
def test_lines_come_back(lines):
    """No-break spaces, U+0085, ampersands, tags: whatever a line holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: sgml(lines))
        assert read_sgml("x.sgm") == lines


def test_segments(tmp_path):
    path = tmp_path / "x.sgm"
    text = '\ufeff<hl><SEG id="1"> a  b\r\n c\t</SEG></hl> between <seg id=2></seg>'
    text += '<seg docid="é" id="3">&amp;lt; &#8364; AT&T &euro;</seg>'
    path.write_text(text, encoding="utf-8")
    assert read_sgml(path) == ["a b c", "", "&lt; € AT&T &euro;"]


@pytest.mark.parametrize("text", ["", "<html>404</html>", "<seg id=1>a<seg id=2>b</seg>", "<seg>a</seg><seg>b", "<seg"])
def test_damaged_sgml(tmp_path, text):
    (tmp_path / "x.sgm").write_text(text)
    with pytest.raises(ValueError, match=r"x.sgm begins \d segments and ends \d; it is damaged"):
        read_sgml(tmp_path / "x.sgm")
    (tmp_path / "x.sgm").write_bytes(b"<seg>caf\xe9</seg>")
    with pytest.raises(ValueError, match=r"x.sgm is not UTF-8 \(.* at byte 8\)"):
        read_sgml(tmp_path / "x.sgm")


# ---------------------------------------------------------------------------------------------------------- the table

TABLE = downloads.read_sources()


def test_the_table_is_whole():
    used = set()
    for corpus in TABLE["corpora"].values():
        for text in (TABLE["texts"][name] for split in ("train", "dev", "test") for name in corpus[split]):
            used.add(text["archive"])
            for language in corpus["languages"]:
                member = text["member"]
                assert member[language] if isinstance(member, dict) else "{language}" in member
                assert set(corpus["languages"]) <= set(text.get("sha256", corpus["languages"]))
    assert used == set(TABLE["archives"])
    for name, archive in TABLE["archives"].items():
        assert archive["url"].startswith(("http://", "https://")) and archive["url"].endswith((".gz", ".tgz", ".tar"))
        assert set(archive) <= {"url", "bytes", "sha256", "md5"}
        assert name.startswith("multi30k") or "sha256" in archive or "md5" in archive
        assert re.fullmatch(r"[0-9a-f]{64}", archive.get("sha256", "0" * 64))
        assert re.fullmatch(r"[0-9a-f]{32}", archive.get("md5", "0" * 32))


def test_the_table_agrees_with_what_was_published(test_data):
    """The facts as they were collected, where they are at hand."""
    path = test_data / "wmt14-sources.yml"
    if not path.exists():
        pytest.skip("needs wmt14-sources.yml among the test data")
    collected = {entry.pop("name"): entry for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["files"]}
    ours = {name: archive for name, archive in TABLE["archives"].items() if not name.startswith("multi30k")}
    assert ours == {
        name: {key: entry[key] for key in ("url", "bytes", "sha256", "md5") if key in entry}
        for name, entry in collected.items()
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TRANSFORMER_DATA": "~/big"}, "/users/of/big"),
        ({"TRANSFORMER_DATA": "/big", "XDG_CACHE_HOME": "/cache"}, "/big"),
        ({"TRANSFORMER_DATA": "", "XDG_CACHE_HOME": "/cache"}, "/cache/transformer-book"),
        ({"XDG_CACHE_HOME": "relative"}, "/users/of/.cache/transformer-book"),
        ({}, "/users/of/.cache/transformer-book"),
    ],
)
def test_the_data_folder(environment, expected, monkeypatch):
    for name in ("TRANSFORMER_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/users/of", **environment}.items():
        monkeypatch.setenv(name, value)
    assert data_folder() == Path(expected)


# ------------------------------------------------------------------------------------------ corpora from a small mirror


def lines_of(name, language, number):
    return [f"{name} {language} {index} «\u00a0&\u0085»" for index in range(number)]


class Mirror:
    """Small archives of the same form as the real ones, and a table that knows them."""

    def __init__(self, server):
        self.server, self.texts, self.table = server, {}, copy.deepcopy(TABLE)
        archives = {}
        for name, text in self.table["texts"].items():
            stem = text["archive"]
            text["pairs"] = 5 if "train" in name or "wmt14" in name else 3003 if "2014" in name else 4
            languages = ("en", "de") if ".de-en" in name or "en-de" in name else ("en", "fr")
            for language in (
                languages if not name.startswith(("multi30k", "newstest/newstest2013")) else ("en", "de", "fr")
            ):
                lines = self.texts[f"{name}.{language}"] = lines_of(name, language, text["pairs"])
                content = "".join(f"{line}\n" for line in lines).encode()
                if "sha256" in text:
                    text["sha256"][language] = hashlib.sha256(content).hexdigest()
                member = text["member"][language] if isinstance(text["member"], dict) else text["member"]
                content = sgml(lines) if member.endswith(".sgm") else content
                content = gzip.compress(content) if member.endswith(".gz") else content
                members = archives.setdefault(stem.format(language=language), [])
                members.append((member.format(language=language), content))
        for name, members in archives.items():
            (_, single), *rest = members
            assert not rest or not name.endswith(".gz")
            self.put(
                name, gzip.compress(single) if name.endswith(".gz") else tar(members, "w:gz" if "tgz" in name else "w")
            )

    def put(self, name, content):
        """Serve an archive, and publish its checksums where the real one's are published."""
        self.server.files[f"/{name}"] = content
        stem = re.sub(r"\.(en|de|fr)\.gz$", ".{language}.gz", name)
        entry = self.table["archives"][stem]
        entry["url"] = f"{self.server.url}/{stem}"
        for key in entry.keys() & {"bytes", "sha256", "md5"}:
            entry[key] = len(content) if key == "bytes" else hashlib.new(key, content).hexdigest()


@pytest.fixture
def mirror(server, monkeypatch, tmp_path):
    made = Mirror(server)
    monkeypatch.setattr(downloads, "read_sources", lambda: made.table)
    monkeypatch.setenv("TRANSFORMER_DATA", str(tmp_path / "data"))
    return made


def read(path):
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode().removesuffix("\n").split("\n")


@pytest.mark.parametrize("name", TABLE["corpora"])
def test_a_corpus_is_built_and_used_again(name, mirror, server, tmp_path):
    server.plans = [{}, {"cut": 200}, {"status": 500}]
    corpus = find_corpus(name)
    entry = mirror.table["corpora"][name]
    assert [corpus.source_language, corpus.target_language] == entry["languages"] and corpus.name == name
    for split in ("train", "dev", "test"):
        pairs = getattr(corpus, split)
        assert len(pairs) == len(entry[split])
        for text, pair in zip(entry[split], pairs, strict=True):
            for language, path in zip(entry["languages"], pair, strict=True):
                assert path == tmp_path / "data" / f"{text}.{language}"
                assert read(path) == mirror.texts[f"{text}.{language}"]
    fetched = Counter(path for path, asked in server.requests if not asked)
    assert max(fetched.values()) <= 2, "one archive was served a 500 once"
    assert not [path for path in (tmp_path / "data").rglob("*") if path.suffix in (".raw", ".part", ".tag")]
    server.requests.clear()
    server.files.clear()
    assert find_corpus(name) == corpus and server.requests == []


def test_two_corpora_share_their_archives(mirror, server):
    find_corpus("wmt14-en-de")
    find_corpus("wmt14-en-fr")
    find_corpus("multi30k")
    find_corpus("multi30k-en-fr")
    assert Counter(path for path, _ in server.requests) == dict.fromkeys(server.files.keys() - {"/file.bin"}, 1)


def test_texts_that_lie_there_are_not_fetched(mirror, server, tmp_path):
    """Compressed or not; and what is missing is fetched beside them."""
    for split, language in itertools.product(("train", "val", "test_2016_flickr"), ("en", "de")):
        path = tmp_path / "data" / "multi30k" / f"{split}.{language}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine\n")
    (tmp_path / "data" / "multi30k" / "val.de").unlink()
    (tmp_path / "data" / "multi30k" / "val.de.gz").write_bytes(gzip.compress(b"mine\n"))
    corpus = find_corpus("multi30k")
    assert server.requests == [] and read(corpus.dev[0][1]) == ["mine"] and corpus.dev[0][1].name == "val.de.gz"
    (tmp_path / "data" / "multi30k" / "train.de").unlink()
    assert read(find_corpus("multi30k").train[0][1]) == mirror.texts["multi30k/train.de"]
    assert {path for path, _ in server.requests} == {"/multi30k-train.en.gz", "/multi30k-train.de.gz"}


def refused(name, message, tmp_path, text):
    """The corpus is refused, and its text is not there."""
    with pytest.raises((ValueError, OSError), match=message):
        find_corpus(name)
    assert [
        path.name for path in (tmp_path / "data").rglob(f"{Path(text).name}*") if "downloads" not in path.parts
    ] == []


def test_sides_that_do_not_belong_together(mirror, tmp_path):
    text = "wmt14/news-commentary-v9.de-en"
    members = [(f"training/news-commentary-v9.de-en.{lang}", b"x\n" * n) for lang, n in (("en", 5), ("de", 4))]
    mirror.put("training-parallel-nc-v9.tgz", tar(members))
    refused("wmt14-en-de", r"has 5 lines of en and 4 lines of de: its two sides do not belong together", tmp_path, text)


@pytest.mark.parametrize("lines", [4, 6])
def test_another_number_of_lines(mirror, tmp_path, lines):
    text = "wmt14/news-commentary-v9.de-en"
    members = [(f"training/news-commentary-v9.de-en.{language}", b"x\n" * lines) for language in ("en", "de")]
    mirror.put("training-parallel-nc-v9.tgz", tar(members))
    refused("wmt14-en-de", f"has {lines} lines of en and {lines} lines of de, and 5 were expected", tmp_path, text)


def test_members_with_other_names(mirror, tmp_path):
    mirror.put("training-parallel-nc-v9.tgz", tar([("elsewhere/nc.de", b"x\n"), ("elsewhere/nc.en", b"x\n")]))
    message = r"has no training/news-commentary-v9.de-en.en and no .*; it holds elsewhere/nc.de, elsewhere/nc.en"
    refused("wmt14-en-de", message, tmp_path, "wmt14/news-commentary-v9.de-en")


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"x\n" * 5), b"<html>busy</html>", gzip.compress(b"x\n" * 5)[:-9]],
    ids=["another text", "no archive", "cut"],
)
def test_an_archive_nothing_vouches_for(mirror, server, tmp_path, content):
    """The text's own checksum finds it out, and the next try fetches it anew."""
    right = server.files["/multi30k-train.de.gz"]
    server.files["/multi30k-train.de.gz"] = content
    refused("multi30k", "not the text expected|damaged or cut short", tmp_path, "multi30k/train")
    server.files["/multi30k-train.de.gz"] = right
    assert read(find_corpus("multi30k").train[0][1]) == mirror.texts["multi30k/train.de"]


def test_a_corpus_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_WAITS", ())
    table = copy.deepcopy(TABLE)
    for archive in table["archives"].values():
        archive["url"] = "http://127.0.0.1:9/x"
    monkeypatch.setattr(downloads, "read_sources", lambda: table)
    monkeypatch.setenv("TRANSFORMER_DATA", str(tmp_path))
    with pytest.raises(OSError, match=r"cannot download .*put the file at .*downloads/multi30k-train.en.gz yourself"):
        find_corpus("multi30k")


@pytest.mark.parametrize("name", ["", "multi30", "wmt14-de-en", "../multi30k"])
def test_unknown_corpora(name):
    with pytest.raises(ValueError) as caught:
        find_corpus(name)
    assert all(known in str(caught.value) for known in [repr(name), *TABLE["corpora"], "files_corpus"])


def test_files_as_a_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.en", "a.de", "b.en.gz", "b.de"):
        (tmp_path / name).write_bytes(b"")
    corpus = files_corpus("mine", "en", "de", (tmp_path / "a.en", str(tmp_path / "a.de")), test=("~/b.en.gz", "~/b.de"))
    assert corpus == Corpus(
        "mine",
        "en",
        "de",
        train=((tmp_path / "a.en", tmp_path / "a.de"),),
        test=((tmp_path / "b.en.gz", tmp_path / "b.de"),),
    )
    with pytest.raises(FileNotFoundError, match=r"the corpus mine has no file .*c.de; check its name"):
        files_corpus("mine", "en", "de", ("~/a.en", "~/a.de"), dev=("~/a.en", "~/c.de"))


# ------------------------------------------------------------------------------------------------------------ real text


def test_multi30k_as_it_lies_there(test_data, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_DATA", str(test_data))
    monkeypatch.setattr(downloads, "download", lambda *arguments, **options: pytest.fail("used the network"))
    for name in ("multi30k", "multi30k-en-fr"):
        corpus = find_corpus(name)
        for (source, target), text in zip(
            [*corpus.train, *corpus.dev, *corpus.test], ["train", "val", "test_2016_flickr"], strict=True
        ):
            known = TABLE["texts"][f"multi30k/{text}"]
            for language, path in ((corpus.source_language, source), (corpus.target_language, target)):
                content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                assert hashlib.sha256(content).hexdigest() == known["sha256"][language]
                assert content.count(b"\n") == known["pairs"]


def test_the_official_newstest2014(test_data, mirror):
    """The runs of the table are those of a list that was made by matching the two sets line by line."""
    corpus = find_corpus("wmt14-en-de")
    path = test_data / "newstest" / "newstest2014.en-de.filtered2737.lines"
    official = sorted(int(number) for number in path.read_text().split())
    assert [int(line) for line in corpus.official([str(number) for number in range(1, 3004)])] == official
    with pytest.raises(ValueError, match="takes all 3,003 lines; 2,737 lines were given"):
        corpus.official(["x"] * 2737)
    with pytest.raises(ValueError, match="multi30k has no smaller test set; 3 lines"):
        find_corpus("multi30k").official(["x"] * 3)


def test_newstest2014_through_sgml(test_data, tmp_path):
    """Real text, written as SGML and read again, is the same text."""
    for language in ("en", "de"):
        lines = (test_data / "newstest" / f"newstest2014.en-de.{language}").read_text(encoding="utf-8").split("\n")[:-1]
        (tmp_path / "x.sgm").write_bytes(sgml(lines))
        assert len(lines) == 3003 and read_sgml(tmp_path / "x.sgm") == [line.strip(" ") for line in lines]


def test_the_public_names():
    assert transformer.find_corpus is find_corpus and transformer.download is download
