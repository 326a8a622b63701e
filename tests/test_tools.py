"""The tools that run one notebook and serve the book."""

import os
import subprocess
import sys
import threading
import urllib.request
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import serve


def run(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "book/tools/run_notebook.py", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_run_notebook(root: Path, tmp_path: Path) -> None:
    good, loud, wrong = (tmp_path / f"{name}.py" for name in ("good", "loud", "wrong"))
    good.write_text("# %%\nimport os, transformer\nassert not os.listdir()\nopen('left', 'w').close()\n6 * 7\n")
    loud.write_text("# %%\nimport sys\nprint('psst', file=sys.stderr)\n")
    wrong.write_text("# %%\n1 / 0\n\n# %%\nprint('never', 'reached')\n")
    done = run(root, "--show", "--output", tmp_path / "out", good, loud, wrong)
    assert done.returncode == 1
    last = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("ok ", "FAILED "))]
    assert last == ["ok", "FAILED", "FAILED"]
    assert "\n42\n" in done.stdout
    assert "written to stderr:\npsst" in done.stdout
    assert "ZeroDivisionError: division by zero" in done.stdout
    assert "never reached" not in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"good.ipynb", "loud.ipynb", "wrong.ipynb"}
    assert run(root, good).returncode == 0


def test_run_notebook_that_is_not_there(root: Path) -> None:
    done = run(root, "notebooks/nothing.py")
    assert done.returncode == 2
    assert "no such notebook: notebooks/nothing.py" in done.stderr


def test_serve_notices_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "ROOT", tmp_path)
    (tmp_path / "notebooks" / "__pycache__").mkdir(parents=True)
    page = tmp_path / "notebooks" / "a.py"
    page.write_text("1")
    before = serve.snapshot()
    (tmp_path / "notebooks" / "__pycache__" / "a.pyc").write_text("compiled")
    (tmp_path / "_build").mkdir()
    assert serve.snapshot() == before
    os.utime(page, ns=(before[page] + 10**9, before[page] + 10**9))
    assert serve.snapshot() != before
    page.unlink()
    assert page not in serve.snapshot()


def test_served_pages_are_never_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.html").write_text("hello")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(serve.Handler, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/") as answer:
            assert answer.read() == b"hello"
            assert answer.headers["Cache-Control"] == "no-store"
        server.shutdown()
        thread.join()
    assert capfd.readouterr().err == ""
