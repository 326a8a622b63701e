"""Run the module's tests and every notebook with the oldest or the newest libraries that pyproject.toml allows.

    python tests/matrix.py oldest newest     # what `make test-matrix` does

Each gets an environment of its own in .venv-matrix/, and a Python of its own: the oldest libraries the oldest Python
that is found here from 3.11 up, the newest the newest. Warnings are errors, as in every test.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-matrix"
EXTRAS = "viz,score,test"
OF_THEIR_TIME = ["pyparsing<3.3"]  # the oldest matplotlib calls it by names that a newer one warns of
BOOK_TOOLS = ["test_charts.py", "test_execution.py", "test_furniture.py", "test_notebooks.py"]  # not the module's
PYTHONS = [f"python3.{minor}" for minor in range(11, 20)]


def lowest(project: dict) -> list[str]:
    """The lower end of every range of the module's own dependencies, as constraints for pip."""
    optional = project["optional-dependencies"]
    found = []
    for each in [*project["dependencies"], *optional["viz"], *optional["score"]]:
        name, version = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,.*)?", each).groups()
        numbers = version.split(".") + ["0"] * ("." not in version)
        found.append(f"{name}=={'.'.join(numbers)}{'.*' * (len(numbers) < 3)}")
    return found


def python(versions: str) -> str:
    """The oldest or the newest Python that is here, starts and is supported."""
    works = [name for name in PYTHONS if shutil.which(name) and not subprocess.run([name, "-c", "import ensurepip"],
             stderr=subprocess.DEVNULL, check=False).returncode]  # fmt: skip
    works = works or [sys.executable]
    return works[0] if versions == "oldest" else works[-1]


def run(*command: object) -> int:
    """Run a command in the root, shown as it is."""
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode


def install(versions: str, options: list[str]) -> Path:
    """Make an environment with these libraries; give its Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    here = FOLDER / versions
    if run(python(versions), "-m", "venv", "--clear", here):
        raise SystemExit(f"no environment could be made in {here}.")
    if versions == "oldest":
        (here / "constraints.txt").write_text("\n".join([*lowest(project), *OF_THEIR_TIME]) + "\n", encoding="utf-8")
        options = [*options, "--constraint", str(here / "constraints.txt")]
    else:
        options = [*options, "--upgrade", "--upgrade-strategy", "eager"]
    own = here / "bin" / "python"
    if run(own, "-m", "pip", "install", *options, "--editable", f".[{EXTRAS}]") or run(own, "-m", "pip", "check"):
        raise SystemExit(f"the {versions} libraries could not be installed.")
    return own


def check(own: Path) -> list[str]:
    """Run the tests and the notebooks; name what failed."""
    ignored = [f"--ignore=tests/{name}" for name in BOOK_TOOLS]
    tests = run(own, "-m", "pytest", "-q", "-m", "not book and not browser", *ignored)
    notebooks = run(own, "book/tools/run_notebook.py", *sorted((ROOT / "notebooks").glob("*.py")))
    return ["the tests"] * bool(tests) + ["the notebooks"] * bool(notebooks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", choices=["oldest", "newest"])
    parser.add_argument("--pip-options", default="", help="passed to pip install, as in the README")
    arguments = parser.parse_args()
    failed = {name: check(install(name, arguments.pip_options.split())) for name in arguments.versions}
    for name, parts in failed.items():
        print(f"{name}: {'failed: ' + ', '.join(parts) if parts else 'all passed'}")
    sys.exit(any(failed.values()))


if __name__ == "__main__":
    main()
