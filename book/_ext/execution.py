"""Run the notebooks on the package of this very tree, and again whenever something they read has changed.

The cache of executed notebooks knows their code only. So its folder is named by a hash of all else: the package, the
shipped model, the recorded results, the paper's data, the pinned requirements, the Python version.
Before Sphinx reads them, the notebooks that are not in the cache run side by side, each on one core.
After the build, ``_build/executed`` holds each notebook with its outputs and its running time, for the tests.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

import nbformat
from chapters import is_notebook, read
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from sphinx.errors import ExtensionError
from sphinx.util import logging

KEPT = 3  # caches of former states, so that going back to one costs nothing
SIDE_BY_SIDE = min(os.cpu_count() or 1, 4)  # kernels; each takes up to 1.5 GB
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


def execute(app, env, docnames):
    """Run what Sphinx is about to read and the cache does not have, and put it there."""
    if app.config.nb_execution_mode != "cache":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    notebooks = {name: source(env, name) for name in sorted(docnames) if is_notebook(env, name)}
    missing = {name: notebook for name, notebook in notebooks.items() if not is_cached(cache, notebook)}
    if not missing:
        return
    for name in THREADS:  # the kernels inherit it: two threads each would wait for one another
        os.environ.setdefault(name, "1")
    logger.info("executing %d notebooks, %d at a time", len(missing), SIDE_BY_SIDE)
    failed = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = {}
        options = {"timeout": app.config.nb_execution_timeout, "allow_errors": False, "extra_arguments": QUIET}
        for name, notebook in missing.items():
            folder = str(Path(env.doc2path(name)).parent)
            runs[pool.submit(single_nb_execution, notebook, folder, **options)] = name
        for run in as_completed(runs):
            name, result = runs[run], run.result()
            if result.err is not None:
                failed.append(f"{name}:\n{result.exc_string}")
                logger.info("%s failed", name)
                continue
            logger.info("%s: %.1f s", name, result.time)
            bundle = CacheBundleIn(result.nb, str(env.doc2path(name)), data={"execution_seconds": result.time})
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
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
