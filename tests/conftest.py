"""What the tests share: the root, fixed seeds, a fixed number of threads, and real test data where there is any."""

import os
import random
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

# Tests of the built site import the book's own extensions. Where the book's packages are not installed, leave them out.
collect_ignore = [] if find_spec("docutils") else ["test_site.py", "test_pages.py", "test_sharing.py"]

# The same examples on every run: a failure can be repeated, and CI does not fail by chance.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50, database=None)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Let torch use as many threads as TRANSFORMER_TEST_THREADS says; one is fastest for tensors this small."""
    torch.set_num_threads(int(os.environ.get("TRANSFORMER_TEST_THREADS", "1")))
    if "PYTEST_XDIST_WORKER" in os.environ:  # one of several workers: so do the processes that the tests start
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def one_workers(nodeid: str) -> str:
    """Names what goes to one worker: each file, as its fixtures do; of the long one, each page of the site."""
    file, _, test = nodeid.partition("::")
    return f"{file} {test.partition('[')[2]}" if file.endswith("test_pages.py") else file


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With several workers, keep together what shares fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return one_workers(nodeid)

    return Together(config, log)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries may still use the global generator
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def notebooks(root: Path) -> list[Path]:
    """All notebooks, in the book's order."""
    found = sorted((root / "notebooks").glob("*.py"))
    assert found, "no notebooks"
    return found


@pytest.fixture(scope="session")
def test_data() -> Path:
    """A folder of real parallel text, which is not part of this repository."""
    folder = os.environ.get("TRANSFORMER_TEST_DATA")
    if not folder:
        pytest.skip("needs real parallel text: set TRANSFORMER_TEST_DATA to its folder (see CONTRIBUTING.md)")
    path = Path(folder)
    assert path.is_dir(), f"TRANSFORMER_TEST_DATA names {folder}, which is not a folder"
    return path
