# Exported from notebooks/05_2b_the_cost_of_training.py, Section 5.2; edit that file, not this one.
# sha256 of what follows: 4e97b9e8b446b4a1
"""The Cost of Training (Section 5.2)."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from transformer.model import TransformerConfig, choose_device

__all__ = ["PAPER_TFLOPS", "paper_cost", "flops_by_part", "forward_flops", "batch_flops", "Ledger", "measure_peak"]


PAPER_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


def paper_cost(hours: float, n_gpus: int = 8, tflops: float = PAPER_TFLOPS["P100"]) -> float:
    """The cost of a training as Table 2 estimates it: time × GPUs × what one GPU is taken to sustain.

    Args:
        hours: Time of the training.
        n_gpus: Number of GPUs.
        tflops: 10¹² floating point operations a second of one of them; footnote 5 has those of its day.

    Returns:
        Floating point operations.

    Source: §6.1, footnote 5.
    """
    return hours * 3600 * n_gpus * tflops * 1e12


def flops_by_part(config: TransformerConfig, n: int, m: int, batch: int = 1) -> dict[str, int]:
    """Floating point operations of one forward pass, by the part of the model that needs them.

    A multiplication and the addition that follows count as two. Matrix products alone count: softmax, normalization,
    ReLU, dropout, residual sums and biases are left out, and looking an embedding up multiplies nothing. Masked and
    padded positions count like all others, since the device computes them.

    Args:
        config: The model's sizes.
        n: Source positions of a sentence, padding included.
        m: Target positions of a sentence, padding included.
        batch: Number of sentences.

    Returns:
        Operations of the "projections" of all attention sub-layers, their "scores" QKᵀ, their "weighted sums" of the
        values, the "feed-forward" networks, and the "output projection" to logits.

    Raises:
        ValueError: A number is negative.

    Source: §3.1 to §3.4.
    """
    if min(n, m, batch) < 0:
        raise ValueError(f"n={n}, m={m} and batch={batch} are counts; none can be negative.")
    d, keys = config.d_model, config.n_heads * (config.d_k or config.d_model // config.n_heads)
    values = config.n_heads * (config.d_v or config.d_model // config.n_heads)
    # Queries and outputs are made for n, m and m positions; keys and values for n, m and n.
    projected = (n + 2 * m) + (2 * n + m)
    compared = n * n + m * m + m * n  # encoder; decoder; decoder over encoder
    each = 2 * batch * config.n_layers
    return {
        "projections": each * projected * d * (keys + values),
        "scores": each * compared * keys,
        "weighted sums": each * compared * values,
        "feed-forward": each * (n + m) * 2 * d * config.d_ff,
        "output projection": 2 * batch * m * d * config.tgt_vocab_size,
    }


def forward_flops(config: TransformerConfig, n: int, m: int, batch: int = 1) -> int:
    """Floating point operations of one forward pass; the arguments are those of `flops_by_part`."""
    return sum(flops_by_part(config, n, m, batch).values())


def batch_flops(config: TransformerConfig, n_rows: int, n: int, m: int) -> int:
    """Floating point operations of training on one batch: three times those of its forward pass.

    Args:
        config: The model's sizes.
        n_rows: B, the number of sentences.
        n: Source positions of each, padding included.
        m: Target positions of each, padding included.

    Returns:
        The number.

    Raises:
        ValueError: A number is negative.
    """
    return 3 * forward_flops(config, n, m, n_rows)


@dataclasses.dataclass
class Ledger:
    """What a training has cost so far. `Ledger(**ledger.to_dict())` continues one.

    Args:
        updates: Steps of the optimizer.
        source_tokens: Real source tokens, padding not counted.
        target_tokens: Real target tokens.
        flops: Floating point operations of matrix products, padding counted.
        seconds: Time spent in these updates.
        peak: Operations a second of the devices' fastest matrix product, see `measure_peak`; 0 if not measured.

    Source: §5.2, Table 2.
    """

    updates: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    flops: int = 0
    seconds: float = 0.0
    peak: float = 0.0

    def add(self, flops: int, source_tokens: int, target_tokens: int, seconds: float, updates: int = 1) -> None:
        """Enter one update, or several.

        Args:
            flops: Sum of `batch_flops` over their batches.
            source_tokens: Real source tokens in them.
            target_tokens: Real target tokens in them.
            seconds: How long they took.
            updates: How many they were.
        """
        self.flops += flops
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens
        self.seconds += seconds
        self.updates += updates

    @property
    def flops_per_second(self) -> float:
        """Sustained rate; 0 before the first update."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def fraction_of_peak(self) -> float | None:
        """The sustained rate as a fraction of the measured peak; None where no peak was measured."""
        return self.flops_per_second / self.peak if self.peak else None

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """One line."""
        share = "" if self.fraction_of_peak is None else f", {self.fraction_of_peak:.0%} of the measured peak"
        return (
            f"{self.updates:,} updates, {self.source_tokens:,} source and {self.target_tokens:,} target tokens, "
            f"{self.flops:.3g} FLOPs in {self.seconds:,.0f} s: {self.flops_per_second:.3g} FLOP/s{share}"
        )


def measure_peak(device: str = "auto", dtype: torch.dtype = torch.float32, seconds: float = 1.0,
                 multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.mm) -> float:  # fmt: skip
    """The fastest matrix product of a device, by trying larger and larger ones.

    Args:
        device: "auto", or a name that torch knows; one device.
        dtype: Of the matrices: what the training multiplies in, for instance bfloat16 under autocast.
        seconds: About how long to try.
        multiply: What multiplies two matrices; that of the training, if it is another.

    Returns:
        Floating point operations a second.

    Raises:
        ValueError: The machine has no such device, or seconds is not positive.
    """
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; give the measurement a positive time.")
    place = choose_device(device)
    calls = 1 if place.type == "cpu" else 10  # launched together, so that waiting for the device is not what we time
    best, size, end, tries = 0.0, 256, time.perf_counter() + seconds, 6
    while size <= 16_384 and (not best or tries * calls * 2 * size**3 / best < end - time.perf_counter()):
        a, b = (torch.randn(size, size, device=place).to(dtype) for _ in range(2))
        for _ in range(tries):  # the first also sets the library up
            begun = _clock(place)
            for _ in range(calls):
                multiply(a, b)
            best = max(best, calls * 2 * size**3 / (_clock(place) - begun))
        size *= 2
    return best


def _clock(device: torch.device) -> float:
    """The time when the device has done all it was given."""
    if device.type in ("cuda", "mps"):
        (torch.cuda if device.type == "cuda" else torch.mps).synchronize()
    return time.perf_counter()
