"""Record the runs of an experiment: each finished run goes to book/results/NAME.json at once, so nothing is lost.

An experiment is a file NAME.py beside this one. It calls ``record(__file__, runs, run)`` and gets a command line:

    python book/experiments/NAME.py              do the runs that are missing
    python book/experiments/NAME.py --limit 1    do at most one of them

If the code has moved on since the recorded runs were made, they are dropped and all runs are made anew.
"""

import argparse
import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def code_hash(path: Path) -> str:
    """The sha256 of a Python file without its docstrings, comment lines and blank lines."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
    kept = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def code_used(experiment: Path) -> dict[str, str]:
    """The hash of the experiment, of this file, and of every module of the package that has been imported."""
    modules = [module for name, module in sys.modules.items() if name.startswith("transformer.")]
    paths = [experiment, Path(__file__), *(Path(module.__file__) for module in modules if module.__file__)]
    return {str(path.resolve().relative_to(ROOT)): code_hash(path) for path in sorted(paths)}


def commit(paths: list[str]) -> str:
    """The commit of the working tree; "+ changes" if one of these files is not as it is there."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "-C", ROOT, *arguments), capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "HEAD") + (" + changes" if git("status", "--porcelain", "--", *paths) else "")


def machine() -> dict[str, Any]:
    """What the runs are made on."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    cpu = found[1] if found else platform.processor() or platform.machine()
    sizes = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {"cpu": cpu, **sizes, "python": platform.python_version(), "torch": torch.__version__}


def cpu_seconds() -> float:
    """Time that all cores have spent on this process and on those it started and waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def record(experiment: str, runs: Mapping[str, dict[str, Any]], run: Callable[..., dict[str, Any]]) -> None:
    """Make the runs that are not recorded yet.

    Args:
        experiment: The experiment's `__file__`.
        runs: For each name, the arguments of `run`, JSON values; "seed" among them.
        run: Makes one run and returns what was measured, as JSON values.
    """
    parser = argparse.ArgumentParser(description="Make the runs that are not recorded yet.")
    parser.add_argument("--limit", type=int, default=len(runs), help="make at most so many")
    limit = parser.parse_args().limit
    source = Path(experiment).resolve()
    path = ROOT / "book" / "results" / f"{source.stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    code = code_used(source)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = known["runs"] if known.get("code") == code else {}
    done = {name: kept[name] for name in runs if name in kept and kept[name]["arguments"] == runs[name]}
    for name in [name for name in runs if name not in done][:limit]:
        print(f"{path.stem}: {name} ...", flush=True)
        started = cpu_seconds()
        result = run(**runs[name])
        seconds = round(cpu_seconds() - started, 1)
        done[name] = {"arguments": runs[name], "result": result, "cpu_seconds": seconds}
        about = {
            "command": f"python {source.relative_to(ROOT)}",
            "commit": commit(list(code)),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": machine(),
            "seeds": sorted({arguments["seed"] for arguments in runs.values()}),
            "code": code,
            "runs": {name: done[name] for name in runs if name in done},
        }
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(path)  # all or nothing
        print(f"{path.stem}: {seconds} s; {len(done)} of {len(runs)} runs recorded", flush=True)
