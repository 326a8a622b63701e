"""Chapter 12: every fault can be put in, has its symptom and its chapter, and is caught by the test it names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import museum
import pytest
from built import ROOT
from ledger_of_claims import cells_of, line_of_test

BUGS = dict(museum.read_bugs())
CELLS = cells_of(museum.NOTEBOOK)
# The last ones, behind the heading of the exercises, belong to solutions.
EXERCISES = next(i for i, (kind, text) in enumerate(CELLS) if kind == "markdown" and "\n## Exercises" in text)
EXHIBITS = {number: bug for number, bug in BUGS.items() if number < EXERCISES}

each_bug = pytest.mark.parametrize("number", BUGS, ids=[bug.name for bug in BUGS.values()])
each_exhibit = pytest.mark.parametrize("number", EXHIBITS, ids=[bug.name for bug in EXHIBITS.values()])


def variable(number: int) -> str:
    """The name that the cell gives its fault."""
    tree = ast.parse(CELLS[number][1])
    (name,) = [ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)][:1]
    return name


def test_there_are_enough_faults_with_names_of_their_own() -> None:
    assert len(EXHIBITS) >= 15
    assert len({bug.name for bug in BUGS.values()}) == len(BUGS) == len(museum.read_bugs()), "one fault a cell"
    assert len({(bug.room, bug.old, bug.new) for bug in BUGS.values()}) == len(BUGS)


@each_bug
def test_a_fault_is_short_and_fits_its_room(number: int) -> None:
    bug = BUGS[number]
    source = (ROOT / "transformer" / f"{bug.room}.py").read_text(encoding="utf-8")
    assert source.count(bug.old) == 1, f"transformer/{bug.room}.py has the old text {source.count(bug.old)} times"
    assert bug.old != bug.new and max(len(text.splitlines()) for text in (bug.old, bug.new)) <= 10
    assert ast.dump(ast.parse(source.replace(bug.old, bug.new))) != ast.dump(ast.parse(source)), "no code changes"


@each_bug
def test_the_test_it_names_is_there(number: int) -> None:
    where = BUGS[number].caught_by.partition("[")[0]
    assert line_of_test(ROOT, where) > 0


@each_exhibit
def test_an_exhibit_has_its_story_and_its_symptom(number: int) -> None:
    (before, story), (after, symptom) = CELLS[number - 1], CELLS[number + 1]
    if after == "markdown" or "exhibit" not in symptom:  # a helper may stand between
        (after, symptom) = CELLS[number + 2]
    assert before == "markdown" and after == "code"
    assert re.search(r"^### ", story, flags=re.MULTILINE), "an exhibit has a heading"
    links = re.findall(r"\]\((\w+\.py)\)", story)
    assert links and all((museum.NOTEBOOK.parent / link).is_file() for link in links), "its chapter is linked"
    used = {node.id for node in ast.walk(ast.parse(symptom)) if isinstance(node, ast.Name)}
    assert variable(number) in used and used & {"exhibit", "exhibit_look"}, "its symptom is measured"
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(symptom))), "and asserted"


NOTEBOOK = """
# %%
harmless = Bug(
    name="harmless",
    room="masks",
    old="return torch.ones(size, size, dtype=torch.bool, device=device).tril()",
    new="return torch.ones(size, size, dtype=torch.bool, device=device).tril(0)",
    caught_by="tests/test_masks.py::test_causal_mask_is_made_where_asked",
)

# %% [markdown]
# Bug("not", "this", "one", "", "")

# %%
upside_down = Bug("harmful", "masks", ".tril()", ".triu()", "tests/test_masks.py::test_the_models_masks_by_brute_force")

# %%
broken = Bug(
    "no program", "masks", ".tril()", ".tril(nothing)", "tests/test_masks.py::test_causal_mask_is_key_not_after_query"
)
"""


def test_faults_are_read_from_code_cells_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(NOTEBOOK, encoding="utf-8")
    assert [bug.name for _, bug in museum.read_bugs(page)] == ["harmless", "harmful", "no program"]
    page.write_text("# %%\nBug('a', room, 'b', 'c', 'd')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="malformed"):
        museum.read_bugs(page)


def test_an_unknown_fault_is_told(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        museum.main(["nothing of the kind"])
    assert "no fault nothing of the kind" in capsys.readouterr().err


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "book" / "tools" / "museum.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_fault_that_no_test_catches_is_told(tmp_path: Path) -> None:
    """Nor does code count as caught that is no program any more."""
    page = tmp_path / "page.py"
    page.write_text(NOTEBOOK, encoding="utf-8")
    done = run("--notebook", page)
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert re.search(r"^harmless +masks +passes ", said, flags=re.MULTILINE)
    assert re.search(r"^harmful +masks +AssertionError ", said, flags=re.MULTILINE)
    assert re.search(r"^no program +masks +breaks", said, flags=re.MULTILINE)
    assert said.splitlines()[-1].endswith("NOT caught: harmless, no program")


@pytest.mark.slow
def test_every_fault_is_caught() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("all caught")
