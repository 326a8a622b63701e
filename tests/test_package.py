"""The package as people install it, and the rules that hold for every file of the repository."""

import ast
import configparser
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import export
import jupytext
import matrix
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import transformer


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in another folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, object]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def sources(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that building leaves nothing in the repository."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(root / name, copy)
    shutil.copytree(root / "transformer", copy / "transformer", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install .` would install, built with nothing from the network."""
    out = tmp_path_factory.mktemp("wheel")
    pip = ("-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out))
    done = python(*pip, cwd=sources)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files alone; put it on PYTHONPATH."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


# ---------------------------------------------------------------------------------------------------------- the wheel


def test_wheel_holds_the_package_and_nothing_else(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(root).as_posix()
        for path in (root / "transformer").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert held == wanted
    assert "transformer/py.typed" in held


def test_wheel_holds_the_shipped_model(installed: Path) -> None:
    files = [path for path in (installed / "transformer" / "pretrained").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert any(path.suffix == ".json" for path in files)
    assert sum(path.stat().st_size for path in files) <= 2.5 * 2**20
    done = python(
        "-c",
        "import transformer; print(len(transformer.load_toy_translator().translate(['the dog sleeps .'])))",
        cwd=installed,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_wheel_names_command_and_licence(installed: Path) -> None:
    (info,) = installed.glob("*.dist-info")
    entry = configparser.ConfigParser()
    entry.read(info / "entry_points.txt")
    assert dict(entry["console_scripts"]) == {"transformer": "transformer.cli:main"}
    licence = (info / "licenses" / "LICENSE").read_text(encoding="utf-8")
    assert "MIT License" in licence
    assert "CC BY 4.0" in licence


@pytest.mark.parametrize("options", [["--help"], ["--version"]])
def test_command_of_the_installed_package(installed: Path, options: list[str], project: dict[str, str]) -> None:
    done = python("-m", "transformer", *options, cwd=installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("usage: transformer" if options == ["--help"] else project["version"]) in done.stdout


def test_demo_is_three_lines(root: Path) -> None:
    assert len(ast.parse((root / "demo.py").read_text(encoding="utf-8")).body) == 4  # a docstring and three lines
    done = python("demo.py", "--help", cwd=root)
    assert done.returncode == 0, done.stderr
    assert "usage: transformer demo" in done.stdout


# --------------------------------------------------------------------------------------------------------- the version


def test_version_has_one_source(project: dict[str, str]) -> None:
    assert transformer.__version__ == project["version"] == export.project_version(Path(__file__).parents[1])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # run from a checkout
        assert importlib.metadata.version(project["name"]) == project["version"], "install again: make book"
    transformer.check_version(".".join(project["version"].split(".")[:2]))


@pytest.mark.parametrize("other", ["0.0", "0.99", "1.1"])
def test_wrong_version_says_what_to_do(other: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        transformer.check_version(other)
    for part in (other, transformer.__version__, "make book", "pip install", "restart the kernel"):
        assert part in str(caught.value)


@pytest.mark.parametrize("bad", ["", "0", "0.1.0", "x.y", ".", 0.1, None])
def test_version_must_be_two_numbers(bad: object) -> None:
    with pytest.raises(ValueError, match="give major and minor version"):
        transformer.check_version(bad)  # type: ignore[arg-type]


def test_every_chapter_checks_the_version(notebooks: list[Path], project: dict[str, str]) -> None:
    expected = f'transformer.check_version("{".".join(project["version"].split(".")[:2])}")'
    missing = [path.name for path in notebooks if expected not in path.read_text(encoding="utf-8")]
    assert not missing


# ------------------------------------------------------------------------------------------------------- dependencies


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("torch", ["2.6.0", "2.7.1", "2.9.0+cu126", "2.13.0+cpu", "3.0.0"]),
        ("numpy", ["1.26.0", "1.26.4", "2.0.2", "2.2.6", "2.4.6"]),
        ("safetensors", ["0.5.3", "0.8.0"]),
        ("sentencepiece", ["0.2.0", "0.2.3"]),
        ("tqdm", ["4.67.1"]),
        ("pyyaml", ["6.0.2", "6.0.3"]),
    ],
)
def test_package_leaves_what_is_installed(project: dict[str, list[str]], name: str, kept: list[str]) -> None:
    requirements = {r.name: r for r in map(Requirement, project["dependencies"])}
    for version in kept:
        assert requirements[name].specifier.contains(version, prereleases=True), f"would replace {name} {version}"


def test_package_asks_for_few_and_pins_none(project: dict[str, list[str]]) -> None:
    requirements = [Requirement(text) for text in project["dependencies"]]
    assert {r.name for r in requirements} == {"torch", "numpy", "safetensors", "sentencepiece", "tqdm", "pyyaml"}
    assert all(s.operator == ">=" for r in requirements for s in r.specifier)


def test_installing_replaces_nothing(sources: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    pip = ("-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation", "--quiet")
    done = python(*pip, "--ignore-requires-python", "--report", str(report), ".", cwd=sources)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    assert names in ([], ["annotated-transformer-book"])


def test_requirements_are_exact_and_fit_the_package(root: Path, project: dict[str, list[str]]) -> None:
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = {r.name.lower(): r for r in (Requirement(line) for line in lines if line and not line.startswith("#"))}
    for requirement in pins.values():
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
    assert next(iter(pins["jupyter-book"].specifier)).version in SpecifierSet("<2")
    extras = [text for name, extra in project["optional-dependencies"].items() if name != "all" for text in extra]
    for text in [*project["dependencies"], *extras]:
        wanted = Requirement(text)
        pinned = next(iter(pins[wanted.name.lower()].specifier)).version
        assert wanted.specifier.contains(pinned), f"{wanted} against the pin {pinned}"


def test_every_dependency_is_explained(root: Path) -> None:
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8").lower()
    names = [Requirement(line).name.lower() for line in lines if line and not line.startswith("#")]
    assert [name for name in names if f"`{name}`" not in text] == []


# Import names that differ from the package's name.
DISTRIBUTION = {
    "PYEVALB": "pyevalb",
    "yaml": "pyyaml",
    "bs4": "beautifulsoup4",
    "vl_convert": "vl-convert-python",
    "xdist": "pytest-xdist",
}


def test_nothing_else_is_imported(root: Path) -> None:
    """Every import of another package, anywhere in the repository, is one of the pins."""
    texts = [root / "requirements.txt", root / "tests" / "benchmarks" / "requirements.txt"]
    lines = [line for path in texts for line in path.read_text(encoding="utf-8").splitlines()]
    pins = {Requirement(line).name.lower() for line in lines if line and not line.startswith("#")}
    files = [path for folder in ("transformer", "notebooks", "book", "tests") for path in (root / folder).rglob("*.py")]
    own = {path.stem for path in files} | {"transformer"}
    for path in files:
        for line, module, _ in export.imports_of(ast.parse(path.read_text(encoding="utf-8")), "transformer"):
            top = module.partition(".")[0]
            if top not in own | set(sys.stdlib_module_names):
                assert DISTRIBUTION.get(top, top).replace("_", "-") in pins, f"{path}:{line}: {module}"


# --------------------------------------------------------------------------------------------------------- the import

MEASURE = """
import time, torch
started = time.perf_counter()
import transformer
package = time.perf_counter() - started
from transformer import Transformer, TransformerConfig, Translator, greedy_decode
print(package, time.perf_counter() - started)
"""


def test_import_is_quick(root: Path) -> None:
    """Beyond torch, the package and its main rooms load in under 0.3 s; a busy machine gets four tries."""
    times = []
    for _ in range(4):
        times.append([float(seconds) for seconds in python("-c", MEASURE, cwd=root).stdout.split()])
        if max(times[-1]) < 0.3:
            return
    pytest.fail(f"seconds for the package alone, and with its main rooms: {times}")


SIDE_EFFECTS = """
import os, random, sys, threading, warnings
import numpy, torch

def state():
    generators = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    threads = threading.active_count(), torch.get_num_threads()
    return generators, threads, dict(os.environ), os.getcwd(), torch.get_default_dtype(), list(warnings.filters)

before = state()
import transformer
assert "transformer.model" not in sys.modules, "names are loaded when they are asked for"
for name in transformer.__all__:
    getattr(transformer, name)
assert state() == before
packages = {"altair", "matplotlib", "sacrebleu", "sacremoses", "sentencepiece", "IPython", "pandas", "jupytext", "yaml"}
heavy = packages & set(sys.modules)
assert not heavy, heavy
"""


def test_import_has_no_side_effects(root: Path) -> None:
    done = python("-W", "error", "-c", SIDE_EFFECTS, cwd=root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dir_and_all_agree() -> None:
    assert len(transformer.__all__) == len(set(transformer.__all__))
    assert set(transformer.__all__) <= set(dir(transformer))
    for name in transformer.__all__:
        assert getattr(transformer, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'transformer' has no attribute 'Transfomer'"):
        transformer.Transfomer  # noqa: B018


# ---------------------------------------------------------------------------------------------------------- notebooks


def test_a_chapters_first_code_cell_says_where_it_goes(notebooks: list[Path]) -> None:
    for path in notebooks:
        text = path.read_text(encoding="utf-8")
        if "#| export" in text:
            code = [cell.source for cell in jupytext.reads(text, fmt="py:percent").cells if cell.cell_type == "code"]
            assert re.fullmatch(r"#\| default_exp [\w.]+", code[0]), path.name


def test_no_magic_reaches_a_module(root: Path) -> None:
    for path in (root / "transformer").rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not line.lstrip(" #").startswith(("!", "%%", "%pip", "%time", "get_ipython")), f"{path}:{number}"


# --------------------------------------------------------------------------------------------------------- every file

TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".css", ".js", ".html", ".cff", ".txt", ".json", ".svg", ".bib", ""}
# Spelled in two halves, so that this file does not find itself.
UNWANTED = {
    "disable_max" + "_rows": "keep the chart small instead",
    "tqdm." + "notebook": "it makes the page load scripts from a CDN",
    "ipy" + "widgets": "it makes the page load scripts from a CDN",
    "weights_only=" + "False": "weights are never unpickled",
    "mp." + "spawn": "cannot start from a notebook; use torchrun",
    "filterwarnings(" + '"ignore"': "put the cause right instead",
    "FIX" + "ME": "finish it",
    "TO" + "DO": "finish it",
    "X" * 3: "finish it",
    "NotImplemented" + "Error": "finish it",
    "lorem " + "ipsum": "write it",
}
LOCAL_PATH = re.compile(r"(?<![\w./:}~*-])/(?:home|root|Users|work|tmp)/[\w.]+")


@pytest.fixture(scope="module")
def repository(root: Path) -> dict[str, str]:
    """Every text file of the repository, by its path."""
    if not (root / ".git").exists():
        pytest.skip("not a git checkout: cannot tell the repository's files from others")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()]
    return {name: (root / name).read_text(encoding="utf-8") for name in names if Path(name).suffix in TEXT}


@pytest.mark.parametrize("word", UNWANTED)
def test_unwanted_words(repository: dict[str, str], word: str) -> None:
    found = [name for name, text in repository.items() if word in text]
    assert not found, f"{word}: {UNWANTED[word]}"


def test_no_path_of_one_machine(repository: dict[str, str]) -> None:
    found = {name: LOCAL_PATH.findall(text) for name, text in repository.items()}
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_nothing_is_unpickled(repository: dict[str, str]) -> None:
    for name, text in repository.items():
        if name.startswith("transformer/"):
            assert "pickle" not in text.replace("unpickle", "").replace("allow_pickle=False", ""), name
            assert not re.search(r"(?<!safetensors\.)torch\.load\(", text), name


def test_files_end_well(repository: dict[str, str]) -> None:
    for name, text in repository.items():
        assert "\r" not in text, f"{name}: Windows line ends"
        if Path(name).suffix != ".svg":  # one of them is drawn by a program
            assert not text or text.endswith("\n"), f"{name}: no newline at the end"


def test_nothing_large_is_committed(root: Path, repository: dict[str, str]) -> None:
    for name in repository:
        assert (root / name).stat().st_size <= 1_000_000, name


def test_workflows_test_the_oldest_and_the_newest(root: Path, project: dict[str, list[str]]) -> None:
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in (root / ".github/workflows").glob("*.yml")}
    assert set(workflows) == {"test", "weekly"}
    jobs = workflows["test"]["jobs"]
    oldest, newest = jobs["module"]["strategy"]["matrix"]["include"]
    assert project["requires-python"] == f">={oldest['python']}"
    assert (oldest["name"], newest["name"], newest["python"]) == ("oldest", "newest", "3.x")
    assert jobs["module"]["steps"][-1]["run"].startswith("python tests/matrix.py ${{ matrix.name }} ")
    constraints = matrix.lowest(project)
    for requirement in map(Requirement, project["dependencies"][:2]):
        version = next(iter(requirement.specifier)).version
        assert f"{requirement.name}=={version}.*" in constraints
    assert jobs["publish"]["needs"] == ["module", "book"]
    assert "gh-pages" in jobs["publish"]["steps"][-1]["run"]


def test_citation_names_book_and_paper(root: Path, project: dict[str, str]) -> None:
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert [author["family-names"] for author in citation["references"][0]["authors"]] == [
        *("Vaswani", "Shazeer", "Parmar", "Uszkoreit", "Jones", "Gomez", "Kaiser", "Polosukhin")
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_teaches(root: Path) -> None:
    done = subprocess.run(["make"], cwd=root, capture_output=True, text=True, check=True)
    for target in ("book", "test", "export", "serve", "clean"):
        assert f"make {target}" in done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_honours_failures_and_pip_options(root: Path) -> None:
    """Read what `make test` would run: nothing hides an exit status, and pip's options reach pip."""
    command = ["make", "--dry-run", "--always-make", "test", "PIP_OPTIONS=--proxy=here"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert sum("pip install --proxy=here" in line for line in lines) == 2
    assert any("jupyter-book build" in line and "-W" in line for line in lines)
    assert not [line for line in lines if "|| true" in line or line.startswith("-")]
