"""Serve the built book on this machine; export and build again whenever a source is saved.

    python book/tools/serve.py [--port 8000]

The sources' times are looked at once a second. A build that fails says why, and the last good pages stay up.
"""

import argparse
import contextlib
import functools
import shutil
import subprocess
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
WATCHED = ("notebooks", "transformer", "book", "_config.yml", "_toc.yml", "requirements.txt", "pyproject.toml")


class Handler(SimpleHTTPRequestHandler):
    """Serve files that the browser asks for anew each time, without a log."""

    def end_headers(self) -> None:
        """Forbid the browser to keep pages that are about to change."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Show the book's own page for what is not there, as GitHub does."""
        page = Path(self.directory) / "404.html"
        if code != 404 or not page.is_file():
            super().send_error(code, message, explain)
            return
        body = page.read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; the builds are what matters here."""


def snapshot() -> dict[Path, int]:
    """Note the time of every source file."""
    found = {}
    for name in WATCHED:
        top = ROOT / name
        for path in top.rglob("*") if top.is_dir() else [top]:
            if "__pycache__" in path.parts or path.name.startswith(".") or path.suffix == ".tmp":
                continue
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                if path.is_file():
                    found[path] = path.stat().st_mtime_ns
    return found


def build() -> bool:
    """Export and build as `make book` does. Returns whether both went well."""
    started = time.perf_counter()
    commands = (
        [sys.executable, str(ROOT / "book/tools/export.py")],
        [str(Path(sys.executable).with_name("jupyter-book")), "build", "-W", "--keep-going", str(ROOT)],
    )
    ok = all(subprocess.run(command, cwd=ROOT).returncode == 0 for command in commands)
    static = HTML / "_static"
    if static.is_dir():  # an incremental build does not refresh these
        shutil.copytree(ROOT / "book/_static", static, dirs_exist_ok=True)
    print(f"{'Built' if ok else 'FAILED: the pages are as they were,'} after {time.perf_counter() - started:.1f} s")
    return ok


def main() -> None:
    """Build, serve, and watch until interrupted."""
    parser = argparse.ArgumentParser(description="Serve the book; export and build again on save.")
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    HTML.mkdir(parents=True, exist_ok=True)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Handler, directory=str(HTML)))
    except OSError as error:
        sys.exit(f"cannot serve on port {port}: {error.strerror}; choose another with --port (make serve PORT=8001)")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        while True:
            build()
            seen = snapshot()
            print(f"http://localhost:{port}/ is the book. Waiting for a file to be saved; Ctrl+C stops.", flush=True)
            while snapshot() == seen:
                time.sleep(1)
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
