"""Run the notebooks on the package of this very tree, and again whenever something they read has changed.

The cache of executed notebooks knows their code only. So its folder is named by a hash of all else: the package, the
shipped model, the recorded results, the paper's data, the pinned requirements, the Python version.
Before Sphinx reads them, the notebooks that are not in the cache run side by side, each on one core; the long one runs
alone, on all.
After the build, ``_build/executed`` holds each notebook with its outputs and its running time, for the tests.
"""

import asyncio
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path

import nbformat
from chapters import is_notebook, read
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from kernels import warm_kernels
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from sphinx.errors import ExtensionError
from sphinx.util import logging

KEPT = 3  # caches of former states, so that going back to one costs nothing
SIDE_BY_SIDE = min(os.cpu_count() or 1, 4)  # kernels; each takes up to 1.5 GB
ALONE = {"06_1c_machine_translation"}  # trains for minutes, on all cores
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
QUIET = ["--IPKernelApp.log_level=ERROR"]
logger = logging.getLogger(__name__)


def inputs(root: Path) -> list[Path]:
    """Every file, notebooks aside, that a notebook may import or read."""
    patterns = ["requirements.txt", "transformer/**/*", "book/results/*.json", "book/paper/*.yml"]
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(path for path in found if path.is_file() and path.suffix != ".pyc")


def fingerprint(root: Path) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for path in inputs(root):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def machinery(root: Path) -> str:
    """A hash of what the pages are made with: a change here means to make all of them again."""
    folders = [root / "book" / name for name in ("_ext", "_static", "_templates")]
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def built_with() -> str:
    """One line: the platform and the versions that made the numbers on the pages."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "altair"))
    return f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}, {packages}"


def prepare(app, config):
    root = Path(app.srcdir)
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    caches = Path(app.outdir).parent / ".jupyter_cache"
    here = caches / fingerprint(root)
    here.mkdir(parents=True, exist_ok=True)
    os.utime(here)
    for old in sorted(caches.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(old)
    config.nb_execution_cache_path = str(here)
    config.book_machinery = machinery(root)
    config.myst_substitutions["built_with"] = built_with()


def source(env, name):
    """A notebook as the cache knows it: where its cells begin in the script does not matter."""
    notebook = read(Path(env.doc2path(name)).read_text(encoding="utf-8"))
    del notebook.metadata["source_map"]
    return notebook


def is_cached(cache, notebook) -> bool:
    try:
        cache.match_cache_notebook(notebook)
    except KeyError:
        return False
    return True


async def run(notebook, folder, timeout) -> float:
    """Execute one notebook, in place; give the seconds it took."""
    where = {"metadata": {"path": str(folder)}}
    options = {"record_timing": False, "extra_arguments": QUIET}  # times in the cells would change the cache's key
    client = NotebookClient(notebook, timeout=timeout, resources=where, **options)
    begun = time.perf_counter()
    await client.async_execute()
    return time.perf_counter() - begun


def execute(app, env, docnames):
    """Run what Sphinx is about to read and the cache does not have, and put it there."""
    if app.config.nb_execution_mode != "cache":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    notebooks = {name: source(env, name) for name in sorted(docnames) if is_notebook(env, name)}
    missing = {name: notebook for name, notebook in notebooks.items() if not is_cached(cache, notebook)}
    if not missing:
        return
    logger.info("executing %d notebooks", len(missing))
    failed = []

    async def one(name, turn):
        notebook, path = missing[name], Path(env.doc2path(name))
        async with turn:
            try:
                seconds = await run(notebook, path.parent, app.config.nb_execution_timeout)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                failed.append(f"{name}:\n{error}")
                logger.info("%s failed", name)
                return
        logger.info("%s: %.1f s", name, seconds)
        bundle = CacheBundleIn(notebook, str(path), data={"execution_seconds": seconds})
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    async def side_by_side(names, number):
        turn = asyncio.Semaphore(number)
        await asyncio.gather(*(one(name, turn) for name in names))

    alone = [name for name in missing if Path(name).name in ALONE]
    asyncio.run(side_by_side(alone, 1))
    for name in THREADS:  # the kernels inherit it: two threads each would wait for one another
        os.environ.setdefault(name, "1")
    with warm_kernels():
        asyncio.run(side_by_side([name for name in missing if name not in alone], SIDE_BY_SIDE))
    if failed:
        raise ExtensionError("\n\n".join(["these notebooks failed:", *failed]))


def record(app, exception):
    if exception or app.builder.format != "html" or app.config.nb_execution_mode != "cache":
        return
    folder = Path(app.outdir).parent / "executed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cache = get_cache(app.config.nb_execution_cache_path)
    seconds = {}
    for name in sorted(app.env.found_docs):
        if is_notebook(app.env, name):
            notebook = source(app.env, name)
            found = cache.match_cache_notebook(notebook)
            _, notebook = cache.merge_match_into_notebook(notebook)
            nbformat.write(notebook, folder / f"{Path(name).name}.ipynb")
            seconds[Path(name).name] = found.data["execution_seconds"]
    (folder / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")


def setup(app):
    app.add_config_value("book_machinery", "", "env")
    app.connect("config-inited", prepare)
    app.connect("env-before-read-docs", execute)
    app.connect("build-finished", record)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
