"""The build runs notebooks side by side, keeps what succeeded, and names every one that failed."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import execution
import pytest
from jupyter_cache import get_cache
from sphinx.errors import ExtensionError

GOOD = """# %% [markdown]
# # Good

# %%
import os, pathlib, subprocess, sys
print(os.environ["OMP_NUM_THREADS"], 6 * 7)
print("transformer" in sys.modules, pathlib.Path.cwd().name, subprocess.run("true").returncode)
"""
BAD = "# %% [markdown]\n# # Bad\n\n# %%\n1 / 0\n"


def book(folder: Path, **notebooks: str) -> tuple[SimpleNamespace, SimpleNamespace]:
    """What the extension asks of Sphinx's application and environment."""
    for name, text in notebooks.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    cache = folder / "cache"
    config = SimpleNamespace(nb_execution_mode="cache", nb_execution_cache_path=str(cache), nb_execution_timeout=60)
    env = SimpleNamespace(found_docs={*notebooks, "page"})
    env.doc2path = lambda name: str(folder / (f"{name}.py" if name in notebooks else f"{name}.md"))
    return SimpleNamespace(config=config), env


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build's setting of threads must not reach other tests."""
    for name in execution.THREADS:
        monkeypatch.setenv(name, "1")


@pytest.mark.slow
def test_good_notebooks_are_kept_and_every_bad_one_is_named(tmp_path: Path) -> None:
    app, env = book(tmp_path, good=GOOD, bad=BAD, worse=BAD.replace("Bad", "Worse").replace("1 / 0", "missing"))
    with pytest.raises(ExtensionError) as error:
        execution.execute(app, env, ["good", "bad", "worse"])
    told = str(error.value)
    assert "bad:" in told and "ZeroDivisionError" in told
    assert "worse:" in told and "NameError" in told
    assert "good:" not in told
    cache = get_cache(str(tmp_path / "cache"))
    assert execution.is_cached(cache, execution.source(env, "good"))
    assert not execution.is_cached(cache, execution.source(env, "bad"))
    _, finished = cache.merge_match_into_notebook(execution.source(env, "good"))
    assert finished.cells[-1].outputs[0].text == f"1 42\nFalse {tmp_path.name} 0\n"


def test_nothing_runs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    async def pretend(notebook, folder, timeout):
        ran.append(notebook.cells[0].source)
        return 1.5

    monkeypatch.setattr(execution, "run", pretend)
    monkeypatch.setattr(execution, "warm_kernels", nullcontext)
    app, env = book(tmp_path, one=GOOD.replace("Good", "One"), two=GOOD.replace("Good", "Two").replace("6 * 7", "7"))
    execution.execute(app, env, ["one", "page"])
    assert ran == ["# One"]
    execution.execute(app, env, ["one", "two"])
    assert ran == ["# One", "# Two"]
    app.config.nb_execution_mode = "off"
    execution.execute(app, env, ["one", "two"])
    assert len(ran) == 2


def test_the_long_one_runs_alone_and_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [], {}

    async def pretend(notebook, folder, timeout):
        name = notebook.cells[0].source
        running.append(name)
        await asyncio.sleep(0.05)
        most[name] = len(running)
        running.remove(name)
        return 1.5

    monkeypatch.setattr(execution, "run", pretend)
    monkeypatch.setattr(execution, "warm_kernels", nullcontext)
    monkeypatch.setattr(execution, "ALONE", {"long"})
    monkeypatch.setattr(execution, "SIDE_BY_SIDE", 2)
    texts = {name: GOOD.replace("Good", name).replace("42", str(i)) for i, name in enumerate(["a", "b", "long", "z"])}
    app, env = book(tmp_path, **texts)
    execution.execute(app, env, list(texts))
    assert next(iter(most)) == "# long" and most["# long"] == 1
    assert max(most.values()) == 2
