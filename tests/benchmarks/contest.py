"""What every benchmark does: its contestants take turns for the times, and run alone for the memory.

Each contestant lives in a process of its own. In one and the same, the threads of one library slow those of another,
also while the first has nothing to do.
"""

import argparse
import ctypes
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from turns import compare, fastest, take_turns

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass
class Contest:
    """Some work, and who can do it.

    Args:
        make: Name → makes the contestant, which does one item; "ours" among them. What a contestant returns is
            compared with what ours returns, unless it is None.
        items: The work.
        tokens: Number of tokens in all items; 0 if tokens are not what counts.
        needs: Name → the module that a contestant needs. Where it is not installed, the contestant is left out.
        heaviest: The item at which memory is measured.
    """

    make: dict[str, Callable[[], Callable[[Any], Any]]]
    items: Sequence[Any]
    tokens: int = 0
    needs: dict[str, str] = field(default_factory=dict)
    heaviest: int = 0

    def present(self) -> list[str]:
        """The contestants that can take part here."""
        return [name for name in self.make if name not in self.skipped()]

    def skipped(self) -> dict[str, str]:
        """The others, and why."""
        missing = {name: need for name, need in self.needs.items() if not importlib.util.find_spec(need.split(".")[0])}
        return {name: f"{need.split('.')[0]} is not installed" for name, need in missing.items()}


def measure(contest: Contest, rounds: int = 7, pause: float = 0.25, command: Sequence[str] = ()) -> dict[str, Any]:
    """Let all contestants take turns.

    Args:
        contest: The work, and who can do it.
        rounds: How often each does all of it.
        pause: Seconds of rest before each turn.
        command: Starts this contest; each contestant then gets a process of its own. Without it, all share this one.

    Returns:
        Seconds of each contestant, tokens per second, the ratios to ours, the share of outputs that are the same as
        ours, and who was left out and why; JSON values.
    """
    outputs: dict[str, dict[int, Any]] = {name: {} for name in contest.present()}

    def here(name: str) -> Callable[[int], None]:
        run = contest.make[name]()

        def run_and_keep(i: int) -> None:
            outputs[name][i] = _marks(run(contest.items[i]))

        return run_and_keep

    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(_apart([*command, "--serve", name], outputs[name])) if command else here(name)
            for name in outputs
        }
        seconds = take_turns(runs, range(len(contest.items)), rounds, pause)
    result: dict[str, Any] = {
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "items": len(contest.items),
        "seconds": {name: round(fastest(times), 4) for name, times in seconds.items()},
        "ratios": compare(seconds),
        "skipped": contest.skipped(),
    }
    if contest.tokens:
        result["tokens"] = contest.tokens
        result["tokens_per_second"] = {name: round(contest.tokens / fastest(times)) for name, times in seconds.items()}
    same = {name: _same(outputs["ours"], output) for name, output in outputs.items() if name != "ours"}
    if any(share is not None for share in same.values()):
        result["same_as_ours"] = same
    return result


def _marks(output: Any) -> list[int] | None:
    """A number for each part of an output, by which parts are compared."""
    return None if output is None else [zlib.crc32(repr(part).encode()) for part in output]


def serve(contest: Contest, name: str) -> None:
    """Be this contestant: do the items whose numbers come in; say when each is done, and then what came out."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    run = contest.make[name]()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        output = run(contest.items[int(line)])
        print("done", file=answers, flush=True)
        print(json.dumps(_marks(output)), file=answers, flush=True)


@contextmanager
def _apart(command: Sequence[str], outputs: dict[int, Any]) -> Iterator[Callable[[int], None]]:
    """A contestant in a process of its own, as a function of an item's number; what comes out is kept."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        asked, answered = process.stdin, process.stdout

        def expect(word: str) -> None:
            if answered.readline() != f"{word}\n":
                raise RuntimeError(f"{' '.join(command)} ended before it was {word}.")

        def collect() -> None:
            while pending:
                outputs[pending.pop()] = json.loads(answered.readline())

        def run(i: int) -> None:
            collect()  # what the turn before gave, which took this contestant no time
            print(i, file=asked, flush=True)
            expect("done")
            pending.append(i)

        pending: list[int] = []
        expect("ready")
        yield run
        collect()


def _same(ours: dict[int, Any], theirs: dict[int, Any]) -> float | None:
    pairs = [pair for i, output in ours.items() if output is not None for pair in zip(output, theirs[i], strict=True)]
    return round(sum(one == other for one, other in pairs) / len(pairs), 4) if pairs else None


def alone(contest: Contest, name: str) -> dict[str, float]:
    """Memory and time of one contestant that has the process for itself.

    Args:
        contest: The work.
        name: The contestant.

    Returns:
        "peak_mib", the most resident memory while it did the heaviest item twice, less what was resident after the
        imports (torch used once) and before the contestant was made; and the "seconds" of the first time.
    """
    if name in contest.needs:
        importlib.import_module(contest.needs[name])
    _touch_torch()
    before = _resident("VmRSS")
    run = contest.make[name]()
    _forget_peak()
    begun = time.perf_counter()
    run(contest.items[contest.heaviest])
    seconds = time.perf_counter() - begun
    if contest.tokens:  # what an optimizer keeps is there from the second time on
        run(contest.items[contest.heaviest])
    return {"peak_mib": round((_resident("VmHWM") - before) / 2**20, 1), "seconds": round(seconds, 3)}


def _touch_torch() -> None:
    """Load what torch loads when it is first used, so that it counts for nobody."""
    layer = torch.nn.TransformerEncoderLayer(8, 1, 8)
    layer(torch.zeros(1, 2, 8)).sum().backward()
    torch.optim.Adam(layer.parameters()).step()


def _resident(which: str) -> int:
    """Bytes now ("VmRSS") or at most ("VmHWM").

    Linux counts in `ru_maxrss` what the starting process had resident, so that is asked only where there is no /proc.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = [line.split()[1] for line in status.read_text().splitlines() if line.startswith(which)]
        if found:
            return int(found[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _forget_peak() -> None:
    """Give free memory back and begin the peak anew, so that making a contestant from our weights does not count."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
        except (OSError, AttributeError):  # another C library, or a kernel that does not let us
            return


def main(contest: Callable[..., Contest], measure: Callable[..., dict[str, Any]] = measure) -> None:
    """The command line of a benchmark: its arguments as JSON in, its result as one line of JSON out."""
    parser = argparse.ArgumentParser(description="One contest; run.py starts all of them.")
    parser.add_argument("arguments", nargs="?", default="{}", help="of `contest`, as JSON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.25)
    parser.add_argument("--alone", metavar="NAME", help="measure the memory of this contestant")
    parser.add_argument("--serve", metavar="NAME", help="be this contestant, and do what standard input asks for")
    options = parser.parse_args()
    made = contest(**json.loads(options.arguments))
    if options.serve:
        serve(made, options.serve)
        return
    command = [sys.executable, sys.argv[0], options.arguments]
    if options.alone:
        result = alone(made, options.alone)
    else:
        result = measure(made, options.rounds, options.pause, command)
    print(json.dumps(result))


def start(
    benchmark: str,
    arguments: dict[str, Any],
    *options: str,
    threads: int = 2,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Run a benchmark's command in a process of its own.

    Args:
        benchmark: Name of its file.
        arguments: Of its `contest`.
        *options: Of its command line.
        threads: For all contestants.
        environment: More variables, for all contestants.

    Returns:
        What it printed.

    Raises:
        RuntimeError: It failed; the message has what it said.
    """
    command = [sys.executable, str(HERE / f"{benchmark}.py"), json.dumps(arguments), *options]
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT), **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{benchmark} {arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def threads() -> int:
    """The number of threads that this process was given, for those peers that must be told."""
    return int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
