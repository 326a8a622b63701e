"""Run notebooks from top to bottom, each alone on a fresh kernel.

    python book/tools/run_notebook.py notebooks/03_3_feed_forward_networks.py
    python book/tools/run_notebook.py --show --output executed notebooks/*.py

A notebook may be a percent script (.py) or an .ipynb. It runs in an empty folder that is removed afterwards, with the
root of the repository on PYTHONPATH. An exception, anything written to stderr, and a cell that takes longer than the
limit are failures; the exit status is 1 if any notebook fails.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[2]
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def complaints(cell: nbformat.NotebookNode) -> list[str]:
    """List what went wrong in an executed cell: exceptions, and whatever stands on stderr."""
    found = []
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            found.append("\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
        elif output.output_type == "stream" and output.name == "stderr":
            found.append(f"written to stderr:\n{output.text}")
    return [ANSI.sub("", text) for text in found]


def printed(cell: nbformat.NotebookNode) -> str:
    """Give the text a cell printed or returned."""
    parts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            parts.append(output.text)
        elif "data" in output:
            parts.append(output.data.get("text/plain", "") + "\n")
    return ANSI.sub("", "".join(parts))


def run(path: Path, timeout: int, show: bool, output: Path | None) -> bool:
    """Run one notebook; print what happened. Returns whether all went well."""
    notebook = jupytext.read(path)
    notebook.metadata["kernelspec"] = KERNEL
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": search, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        client = NotebookClient(
            notebook,
            timeout=timeout,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        started, stopped = time.perf_counter(), ""
        try:
            client.execute(env=environment)
        except CellExecutionError:
            stopped = "stopped at an exception"
        except CellTimeoutError:
            stopped = f"a cell took longer than {timeout} s"
        except DeadKernelError:
            stopped = "the kernel died"
        seconds = time.perf_counter() - started

    ok = not stopped
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        wrong = complaints(cell)
        ok = ok and not wrong
        if show or wrong:
            first = next((line for line in cell.source.splitlines() if line.strip()), "")
            print(f"--- {path.name}, cell {number}: {first}", printed(cell) if show else "", *wrong, sep="\n")
    print(f"{'ok    ' if ok else 'FAILED'} {seconds:6.1f} s  {path}{'  ' + stopped if stopped else ''}", flush=True)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        jupytext.write(notebook, output / f"{path.stem}.ipynb")
    return ok


def main() -> int:
    """Run the notebooks named on the command line."""
    parser = argparse.ArgumentParser(description="Run notebooks, each alone on a fresh kernel.")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--timeout", type=int, default=1200, help="seconds a cell may take (default 1200)")
    parser.add_argument("--show", action="store_true", help="print what the cells print")
    parser.add_argument("--output", type=Path, help="folder for the executed notebooks (.ipynb)")
    options = parser.parse_args()
    missing = [path for path in options.notebooks if not path.is_file()]
    if missing:
        parser.error(f"no such notebook: {', '.join(map(str, missing))}")
    results = [run(path, options.timeout, options.show, options.output) for path in options.notebooks]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
