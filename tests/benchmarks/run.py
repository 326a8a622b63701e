"""All benchmarks: measure what is missing, record it, print the table.

    python tests/benchmarks/run.py                   all of them, forty minutes on two cores with nothing else to do
    python tests/benchmarks/run.py --only "beam 4"   those whose name has this in it
    python tests/benchmarks/run.py --size small      those of this size
    python tests/benchmarks/run.py --quick           tiny models, two rounds; prints and records nothing
    python tests/benchmarks/run.py --table           print what is recorded

Every benchmark runs in a process of its own, and so does every contestant whose memory is measured. What is finished is
written to book/results/benchmarks.json at once. If the code of the model or of the benchmarks has moved on since, all
are made anew. The peers: pip install -r tests/benchmarks/requirements.txt. The GPU has its own command, gpu_step.py.

"allocator": glibc returns large blocks to the system at once and gets them back filled with zeros, page by page; the
benchmark named so lets it keep them, for all contestants (see `KEEP`). No other benchmark sets anything. "bfloat16":
a CPU that does not multiply in it takes several times as long as in float32, so those batches are few. "tiny" has so
little arithmetic that what is left is the time of the calls themselves.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "book" / "experiments")]

import decoding  # noqa: E402
import preparation  # noqa: E402
import startup  # noqa: E402
import training_step  # noqa: E402
import tricks  # noqa: E402
import where  # noqa: E402
from contest import start  # noqa: E402
from recording import code_hash, code_used, commit, cpu_seconds, machine  # noqa: E402

RESULT = ROOT / "book" / "results" / "benchmarks.json"
MODULES = {
    "training_step": training_step,
    "decoding": decoding,
    "preparation": preparation,
    "startup": startup,
    "tricks": tricks,
    "where": where,
}
BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "startup": ("startup", {}),
    "encode text": ("preparation", {"task": "encode"}),
    "prepare a million pairs": ("preparation", {"task": "prepare", "n_pairs": 1_000_000}),
    "training step, small": ("training_step", {"size": "small"}),
    "training step, small, allocator": ("training_step", {"size": "small"}),
    "training step, small, no dropout": ("training_step", {"size": "small", "dropout": 0.0}),
    "training step, small, bfloat16": (
        "training_step",
        {"size": "small", "precision": "bfloat16", "peers": ["torch"], "n_batches": 1, "max_tokens": 512},
    ),
    "beam 4, one sentence, tiny": ("decoding", {"size": "tiny", "batch_size": 1}),
    "beam 4, batch 32, toy": ("decoding", {"size": "toy", "n_items": 8}),
    "beam 4, one sentence, toy": ("decoding", {"size": "toy", "batch_size": 1}),
    "greedy, batch 32, toy": ("decoding", {"size": "toy", "search": "greedy", "n_items": 8}),
    "beam 4, batch 32, small": ("decoding", {"size": "small"}),
    "beam 4, one sentence, small": ("decoding", {"size": "small", "batch_size": 1}),
    "greedy, batch 32, small": ("decoding", {"size": "small", "search": "greedy"}),
    "tricks, beam 4, batch 32, small": ("tricks", {"task": "decoding", "size": "small"}),
    "tricks, beam 4, one sentence, small": ("tricks", {"task": "decoding", "size": "small", "batch_size": 1}),
    "tricks, beam 4, one sentence, base": (
        "tricks",
        {"task": "decoding", "size": "base", "batch_size": 1, "n_items": 1},
    ),
    "tricks, training step, small": ("tricks", {"task": "training", "size": "small"}),
    "where, training step, small": ("where", {"task": "training", "size": "small"}),
    "where, beam 4, batch 32, small": ("where", {"task": "decoding", "size": "small"}),
    "where, beam 4, one sentence, small": ("where", {"task": "decoding", "size": "small", "batch_size": 1}),
    "where, beam 4, batch 32, base": ("where", {"task": "decoding", "size": "base", "n_items": 1}),
    "beam 4, one sentence, base": ("decoding", {"size": "base", "batch_size": 1, "n_items": 1}),
    "greedy, batch 32, base": ("decoding", {"size": "base", "search": "greedy", "n_items": 1}),
    "beam 4, batch 32, base": ("decoding", {"size": "base", "n_items": 1}),
    "training step, base": ("training_step", {"size": "base", "n_batches": 2, "max_tokens": 800}),
    "training step, base, no dropout": (
        "training_step",
        {"size": "base", "dropout": 0.0, "n_batches": 2, "max_tokens": 800},
    ),
    "training step, base, bfloat16": (
        "training_step",
        {"size": "base", "precision": "bfloat16", "peers": ["torch"], "n_batches": 1, "max_tokens": 200},
    ),
}
QUICK: dict[str, dict[str, Any]] = {
    "startup": {},
    "preparation": {"n_pairs": 500, "vocab_size": 1_000},
    "training_step": {"size": "tiny", "n_batches": 2, "max_tokens": 100},
    "decoding": {"size": "tiny", "n_items": 1},
    "tricks": {"size": "tiny", "n_items": 1, "max_tokens": 100},
    "where": {"size": "tiny"},
}
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33), "MALLOC_TOP_PAD_": str(2**26)}
MEMORY = {"training_step", "decoding", "preparation"}


def run(name: str, seed: int, rounds: int, threads: int, quick: bool = False) -> dict[str, Any]:
    """Make one benchmark: its times, then the memory of every contestant."""
    benchmark, arguments = BENCHMARKS[name]
    arguments = {**arguments, **(QUICK[benchmark] if quick else {}), "seed": seed}
    common: dict[str, Any] = {"threads": threads, "environment": KEEP if "allocator" in name else {}}
    result: dict[str, Any] = {"benchmark": benchmark}
    if arguments.get("task") != "prepare":
        pause = "0" if quick else "0.25"
        result |= start(benchmark, arguments, "--rounds", str(rounds), "--pause", pause, **common)
    if benchmark in MEMORY:
        contestants = result.get("seconds", {"ours": 0.0})
        result["alone"] = {who: start(benchmark, arguments, "--alone", who, **common) for who in contestants}
    return result


def code() -> dict[str, str]:
    """Hashes of what the results depend on. What this file asks for is recorded beside each result."""
    ours = {str(path.relative_to(ROOT)): code_hash(path) for path in sorted(HERE.glob("*.py"))}
    found = {**code_used(Path(__file__)), **ours}
    return {name: found[name] for name in sorted(found) if name != str(Path(__file__).relative_to(ROOT))}


def record(names: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """Make the benchmarks that are missing, and write each as it is finished."""
    torch.set_num_threads(threads)
    now = code()
    known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    done = known["runs"] if known.get("code") == now else {}
    for name in names:
        arguments = {"benchmark": name, "arguments": BENCHMARKS[name][1], "rounds": rounds, "seed": 0}
        if done.get(name, {}).get("arguments") == arguments:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        started = cpu_seconds()
        result = run(name, 0, rounds, threads)
        done[name] = {"arguments": arguments, "result": result, "cpu_seconds": round(cpu_seconds() - started, 1)}
        known = {
            "command": "python tests/benchmarks/run.py",
            "commit": commit(list(now)),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": machine(),
            "seeds": [0],
            "code": now,
            "runs": {name: done[name] for name in BENCHMARKS if name in done},
        }
        unfinished = RESULT.with_name(f".{RESULT.name}")
        unfinished.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(RESULT)
    return known.get("runs", {})


COLUMNS = ("benchmark", "contestant", "tokens/s", "seconds", "ours faster", "range", "MiB", "same output")


def table(results: dict[str, dict[str, Any]]) -> str:
    """For every benchmark its contestants with speed, ratio and memory."""
    rows = [COLUMNS]
    for name, result in results.items():
        alone = result.get("alone", {})
        if "shares" in result:
            told = ", ".join(f"{kind} {share:.1%}" for kind, share in result["shares"].items())
            rows.append((name, told, "", f"{result['item_seconds']:.3f}", "", "", "", ""))
        for who in result.get("seconds", alone):
            seconds = result["seconds"][who] if "seconds" in result else alone[who]["seconds"]
            ratio = result.get("ratios", {}).get(who, {})
            cells = (
                result.get("tokens_per_second", {}).get(who, ""),
                f"{seconds:.3f}",
                ratio.get("ratio", ""),
                f"{ratio['lowest']}–{ratio['highest']}" if ratio else "",
                alone.get(who, {}).get("peak_mib", ""),
                result.get("same_as_ours", {}).get(who, ""),
            )
            rows.append((name, who, *map(str, cells)))
    widths = [max(len(cell) for cell in column if len(cell) < 60) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="benchmarks whose name has this in it")
    parser.add_argument("--size", choices=("tiny", "toy", "small", "base"), help="benchmarks of this size")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds, nothing recorded")
    parser.add_argument("--table", action="store_true", help="print what is recorded, measure nothing")
    options = parser.parse_args()
    names = [name for name in BENCHMARKS if options.only in name and (options.size or "") in name]
    if not names:
        parser.error(f"no benchmark has {options.only!r} in its name; there are: {', '.join(BENCHMARKS)}")
    if options.quick:
        results = {name: run(name, 0, 2, options.threads, quick=True) for name in names}
    elif options.table:
        runs = json.loads(RESULT.read_text(encoding="utf-8"))["runs"]
        results = {name: done["result"] for name, done in runs.items() if name in names}
    else:
        runs = record(names, options.rounds, options.threads)
        results = {name: done["result"] for name, done in runs.items() if name in names}
    print(table(results))


if __name__ == "__main__":
    main()
