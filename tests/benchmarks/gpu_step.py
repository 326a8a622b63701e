"""Training on a GPU: how fast, how near to what the device can do, and where the time goes.

    python tests/benchmarks/gpu_step.py      the base model, bf16, 25k + 25k tokens an update
    python tests/benchmarks/gpu_step.py --size tiny --tokens 500 --updates 2 --warm-up 1     seconds on any machine

It trains with `train`, as a user does, on random ids in batches shaped like newstest2014, without `torch.compile` and
with it, and divides the floating point operations of the ledger by those of the fastest matrix product it measures. The
parts of an update are timed apart, with a wait for the device between them, so their sum is more than an update takes.
The result is printed as JSON, and written to the file that `--output` names.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from lengths import random_pairs
from peers import make_ours

from transformer.data import Batch, TokenBatches
from transformer.ledger import Ledger, measure_peak
from transformer.loss import LabelSmoothingLoss
from transformer.model import choose_device
from transformer.schedule import make_adam
from transformer.training import TrainingConfig, train


def measure(
    size: str = "base",
    tokens: int = 25_000,
    updates: int = 50,
    warm_up: int = 20,
    precision: str = "bfloat16",
    compiled: bool = False,
    device: str = "auto",
    seed: int = 0,
) -> dict[str, Any]:
    """Train for some updates and say how it went; JSON values."""
    place = choose_device(device)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[precision]
    model = make_ours(size, seed=seed)
    pairs = random_pairs(
        "newstest2014", model.config.src_vocab_size, number=(warm_up + updates) * tokens // 25, seed=seed
    )
    batches = TokenBatches(pairs, tokens, seed)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    records = train(
        model,
        batches,
        TrainingConfig(
            steps=warm_up + updates,
            log_every=warm_up,
            precision=precision,
            compile=compiled,
            device=place.type,
            progress=False,
        ),
    )
    memory = torch.cuda.max_memory_allocated() if place.type == "cuda" else 0
    ledger = Ledger(peak=measure_peak(place.type, dtype))
    for before, record in pairwise(records):  # the first holds the warm-up
        ledger.add(record.flops, record.source_tokens, record.target_tokens, record.seconds, record.step - before.step)
    return {
        "device": torch.cuda.get_device_name() if place.type == "cuda" else "cpu",
        "size": size,
        "tokens": tokens,
        "precision": precision,
        "compiled": compiled,
        "updates": ledger.updates,
        "milliseconds": round(1000 * ledger.seconds / ledger.updates, 2),
        "source_tokens_per_second": round(ledger.source_tokens / ledger.seconds),
        "target_tokens_per_second": round(ledger.target_tokens / ledger.seconds),
        "tflops": round(ledger.flops_per_second / 1e12, 3),
        "peak_tflops": round(ledger.peak / 1e12, 3),
        "fraction_of_peak": round(ledger.fraction_of_peak or 0.0, 4),
        "memory_gib": round(memory / 2**30, 3),
        "loss": round(records[-1].loss, 3),
    }


def parts(
    size: str = "base",
    tokens: int = 25_000,
    updates: int = 20,
    precision: str = "bfloat16",
    device: str = "auto",
    seed: int = 0,
) -> dict[str, float]:
    """Milliseconds of each part of an update, the median over updates; without `torch.compile`."""
    place = choose_device(device)
    model = make_ours(size, seed=seed).to(place).train()
    optimizer, loss_function = make_adam(model), LabelSmoothingLoss(0.1, reduction="sum")
    pairs = random_pairs("newstest2014", model.config.src_vocab_size, number=updates * tokens // 25 + 1, seed=seed)
    seen: dict[str, list[float]] = {}
    for batch in islice(TokenBatches(pairs, tokens, seed), updates):
        for name, milliseconds in _update(model, optimizer, loss_function, batch, place, precision):
            seen.setdefault(name, []).append(milliseconds)
    return {name: round(statistics.median(each), 2) for name, each in seen.items()}


def _update(
    model: Any, optimizer: Any, loss_function: Any, batch: Batch, place: torch.device, precision: str
) -> Iterator[tuple[str, float]]:
    begun = time.perf_counter()

    def taken() -> float:
        nonlocal begun
        if place.type == "cuda":
            torch.cuda.synchronize()
        before, begun = begun, time.perf_counter()
        return 1000 * (begun - before)

    on_device = batch.to(place)
    yield "to the device", taken()
    with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bfloat16"):
        optimizer.zero_grad(set_to_none=True)
        memory_mask = (on_device.src != 0)[:, None, None, :]
        memory = model.encode(on_device.src, memory_mask)
        yield "encoder", taken()
        hidden = model.decode(on_device.tgt_in, memory, None, memory_mask)
        yield "decoder", taken()
        logits = model.output_projection(hidden)
        yield "output projection", taken()
        loss = loss_function(logits, on_device.tgt_out)
        yield "loss", taken()
    (loss / batch.n_tokens).backward()
    yield "backward", taken()
    optimizer.step()
    yield "optimizer", taken()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", choices=("tiny", "small", "base"))
    parser.add_argument("--tokens", type=int, default=25_000, help="source, and target, positions an update")
    parser.add_argument("--updates", type=int, default=50, help="that count")
    parser.add_argument("--warm-up", type=int, default=20, help="updates before them")
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args()
    what = {name: getattr(options, name) for name in ("size", "tokens", "precision", "device")}
    result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "torch": torch.__version__}
    for compiled in (False, True):
        result["compiled" if compiled else "plain"] = measure(
            updates=options.updates, warm_up=options.warm_up, compiled=compiled, **what
        )
        print(json.dumps(result["compiled" if compiled else "plain"]), flush=True)
    result["parts"] = parts(updates=min(options.updates, 20), **what)
    print(json.dumps(result["parts"]))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
