"""The statistic: contestants take turns batch by batch, and each batch counts at its fastest.

Other work on the machine only ever makes a batch slower, and it comes and goes. So all contestants do a batch one
after the other before anyone does the next, everything is repeated in several rounds, and of each contestant's times
for a batch the shortest counts. A ratio is that of the sums of these. How far it can be trusted is told by the ratios
of the single rounds, which are given as a range.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Seconds = list[list[float]]  # of one contestant: [round][item]


def take_turns(
    contestants: Mapping[str, Callable[[Any], object]], items: Sequence[Any], rounds: int, pause: float = 0.0
) -> dict[str, Seconds]:
    """Let every contestant do every item once a round; a round before the first warms up and is not kept.

    Args:
        contestants: Name → what does one item.
        items: The work, for instance batches.
        rounds: How often.
        pause: Seconds of rest before each turn, not counted: threads of the one before may still spin for a while,
            waiting for more work (Intel's OpenMP, which CTranslate2 brings, lets them for 0.2 s).

    Returns:
        Seconds of each contestant, by round and item.
    """
    names, seconds = list(contestants), {name: [[0.0] * len(items) for _ in range(rounds)] for name in contestants}
    for r in range(-1, rounds):
        gc.collect()
        for i, item in enumerate(items):
            first = (r + i) % len(names)  # nobody always comes after the same one
            for name in names[first:] + names[:first]:
                time.sleep(pause)
                begun = time.perf_counter()
                contestants[name](item)
                taken = time.perf_counter() - begun
                if r >= 0:
                    seconds[name][r][i] = taken
    return seconds


def fastest(seconds: Seconds) -> float:
    """Each item at its fastest over the rounds, summed."""
    return sum(min(times) for times in zip(*seconds, strict=True))


def compare(seconds: Mapping[str, Seconds], ours: str = "ours") -> dict[str, dict[str, float]]:
    """How many times faster we are than each of the others.

    Args:
        seconds: From `take_turns`.
        ours: The contestant that the others are compared with.

    Returns:
        For each other: "ratio" of the fastest times, and "lowest" and "highest" of the ratios of single rounds.
    """
    result = {}
    for name, theirs in seconds.items():
        if name != ours:
            each = [sum(other) / sum(own) for other, own in zip(theirs, seconds[ours], strict=True)]
            ratio = fastest(theirs) / fastest(seconds[ours])
            result[name] = {"ratio": round(ratio, 3), "lowest": round(min(each), 3), "highest": round(max(each), 3)}
    return result
