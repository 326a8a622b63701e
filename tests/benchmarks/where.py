"""Where our time goes: the share of each kind of operation in training and in decoding, by PyTorch's profiler.

The profiler makes every operation slower by about the same time, so small ones look larger than they are. Shares are of
the time of all operations, without Python between them; "calls" counts the operations of one item, and "outside" is the
share of the time by the clock that no operation accounts for.
"""

import time
from collections.abc import Sequence
from typing import Any

import decoding
import training_step
from contest import Contest, main
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

KINDS = {
    "products": ("mm", "addmm", "bmm", "addbmm", "baddbmm", "linear_pointwise"),
    "attention": ("flash_attention", "scaled_dot_product"),
    "softmax and loss": ("softmax", "exp", "log", "logsumexp", "nll_loss"),
    "dropout": ("bernoulli", "native_dropout", "random"),
    "normalization": ("layer_norm",),
    "search": ("topk", "sort", "amax", "argmax", "gather", "nonzero"),
    "optimizer": ("lerp", "addcmul", "addcdiv", "sqrt"),
    "copies": ("copy", "index", "cat", "fill", "zero"),
}


def contest(task: str, size: str, **arguments: Any) -> Contest:
    """Ours alone: "training" or "decoding"."""
    make = {"training": training_step.contest, "decoding": decoding.contest}[task]
    return make(size=size, peers=(), **arguments)


def kind(operation: str) -> str:
    """What an operation of PyTorch counts as."""
    name = operation.partition("::")[2].strip("_")
    for each, beginnings in KINDS.items():
        if any(name == begun or name.startswith(f"{begun}_") or f"_{begun}" in name for begun in beginnings):
            return each
    return "other"


def measure(contest: Contest, rounds: int = 7, pause: float = 0.25, command: Sequence[str] = ()) -> dict[str, Any]:
    """Profile one item after warming up.

    Args:
        contest: With "ours".
        rounds: Items are done so often before, and the fastest time of one is told, without the profiler.
        pause: Not used.
        command: Not used: there is one contestant.

    Returns:
        Seconds of the item, its operations, and the share of each kind.
    """
    run, item = contest.make["ours"](), contest.items[contest.heaviest]
    fastest = float("inf")
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        run(item)
        fastest = min(fastest, time.perf_counter() - begun)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        begun = time.perf_counter()
        run(item)
        profiled_seconds = time.perf_counter() - begun
    shares: dict[str, float] = {}
    own = ("aten::", "mkldnn::")  # operations of PyTorch, and those that it gives to oneDNN
    events = [e for e in profiled.key_averages() if e.key.startswith(own) and e.device_type == DeviceType.CPU]
    for event in events:
        shares[kind(event.key)] = shares.get(kind(event.key), 0.0) + event.self_cpu_time_total
    total = sum(shares.values())
    return {
        "item_seconds": round(fastest, 4),
        "calls": sum(event.count for event in events),
        "outside": round(1 - total / 1e6 / profiled_seconds, 3),
        "shares": {each: round(share / total, 3) for each, share in sorted(shares.items(), key=lambda it: -it[1])},
    }


if __name__ == "__main__":
    main(contest, measure)
