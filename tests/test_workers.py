"""Two workers share the tests, and what shares a fixture stays on one of them."""

import collections
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, one_workers


@pytest.mark.slow
def test_each_file_runs_on_one_worker(tmp_path: Path):
    """Else fixtures are made twice. Nothing fails then; it only takes longer, so nobody would notice."""
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    files = [tmp_path / f"test_{name}.py" for name in "abcd"]
    for file in files:
        file.write_text("\n".join(f"def test_{i}(): pass" for i in range(5)))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", "--rootdir", ".", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    workers = collections.defaultdict(set)
    for worker, file in re.findall(r"^\[(gw\d)\].* PASSED (test_\w\.py)::", done.stdout, re.MULTILINE):
        workers[file].add(worker)
    assert sorted(workers) == [file.name for file in files]
    assert all(len(found) == 1 for found in workers.values()), workers
    assert set.union(*workers.values()) == {"gw0", "gw1"}


def test_a_page_is_visited_by_one_worker():
    pages = [f"tests/test_pages.py::test_{what}[book/{page}.html]" for what in "ab" for page in ("api", "index")]
    assert [one_workers(nodeid) for nodeid in pages[:2]] == [one_workers(nodeid) for nodeid in pages[2:]]
    assert len({one_workers(nodeid) for nodeid in pages}) == 2
