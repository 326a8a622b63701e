# Exported from notebooks/05_2_hardware_and_schedule.py, Section 5.2; edit that file, not this one.
# sha256 of what follows: 8cf06ea1041da08d
"""Hardware and Schedule (Section 5.2)."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from tqdm import tqdm

from transformer.data import Batch
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, choose_device
from transformer.schedule import NoamScheduler, make_adam

__all__ = ["TrainingConfig", "Record", "train"]


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train. The defaults are those of the paper's base model.

    Args:
        steps: Number of updates.
        warmup_steps: Updates over which the learning rate rises.
        label_smoothing: ε_ls.
        seed: Of dropout.
        log_every: Updates between two records.
        evaluate_every: Updates between two evaluations; 0 evaluates at the end only.
        device: "auto", or a name that torch knows.
        progress: Show a progress bar on a terminal.

    Raises:
        ValueError: A value is impossible.

    Source: §5.2 to §5.4.
    """

    steps: int = 100_000
    warmup_steps: int = 4_000
    label_smoothing: float = 0.1
    seed: int = 0
    log_every: int = 100
    evaluate_every: int = 0
    device: str = "auto"
    progress: bool = True

    def __post_init__(self) -> None:
        if min(self.steps, self.warmup_steps, self.log_every) < 1 or self.evaluate_every < 0:
            raise ValueError(
                f"steps={self.steps}, warmup_steps={self.warmup_steps} and log_every={self.log_every} must be at "
                f"least 1, and evaluate_every={self.evaluate_every} at least 0."
            )


@dataclasses.dataclass(frozen=True)
class Record:
    """What was seen over the updates since the last record.

    Args:
        step: The last of these updates.
        loss: Mean smoothed loss per target token, in nats.
        perplexity: exp of the mean loss without smoothing, per target token.
        learning_rate: Of the last update.
        tokens_per_second: Target tokens, padding not counted.
        scores: What the evaluation returned, if there was one.
    """

    step: int
    loss: float
    perplexity: float
    learning_rate: float
    tokens_per_second: float
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)


def train(
    model: Transformer,
    batches: Iterable[Batch],
    config: TrainingConfig,
    evaluate: Callable[[Transformer], Mapping[str, float]] | None = None,
) -> list[Record]:
    """Train a model with the paper's optimizer, schedule and loss.

    Args:
        model: Trained in place, and left on its device in evaluation mode.
        batches: At least config.steps of them, one per update.
        config: How to train.
        evaluate: Called with the model in evaluation mode; what it returns goes into the records.

    Returns:
        A record every config.log_every updates, and one at the end.

    Raises:
        ValueError: The batches end too early.
        FloatingPointError: The loss is not finite.

    Source: §5.2 to §5.4.
    """
    device = choose_device(config.device)
    model.to(device).train()
    torch.manual_seed(config.seed)
    optimizer = make_adam(model)
    scheduler = NoamScheduler(optimizer, model.config.d_model, config.warmup_steps)
    loss_function = LabelSmoothingLoss(config.label_smoothing, model.config.pad_id, reduction="sum")
    records: list[Record] = []
    seen = _Window()
    stream = iter(batches)
    bar = tqdm(range(1, config.steps + 1), desc="training", unit="update", disable=None if config.progress else True)
    for step in bar:
        batch = next(stream, None)
        if batch is None:
            raise ValueError(f"the batches ended after {step - 1} of {config.steps} updates; give more of them.")
        rate = float(scheduler.get_last_lr()[0])
        seen.add(*_update(model, batch.to(device), loss_function, optimizer, step))
        scheduler.step()
        last = step == config.steps
        due = config.evaluate_every and step % config.evaluate_every == 0
        if last or due or step % config.log_every == 0:
            record = seen.record(step, rate)
            if evaluate is not None and (last or due):
                record = dataclasses.replace(record, scores=dict(evaluate(model.eval())))
                model.train()
            records.append(record)
            bar.set_postfix(loss=f"{record.loss:.3f}", perplexity=f"{record.perplexity:.2f}", rate=f"{rate:.1e}")
            seen = _Window()
    model.eval()
    return records


def _update(
    model: Transformer, batch: Batch, loss_function: LabelSmoothingLoss, optimizer: torch.optim.Optimizer, step: int
) -> tuple[float, float, int]:
    """One update. Returns the summed loss, the same without smoothing, and the number of target tokens."""
    optimizer.zero_grad(set_to_none=True)
    logits = model(batch.src, batch.tgt_in)  # (B, m, V)
    loss = loss_function(logits, batch.tgt_out)
    total, n_tokens = loss.item(), batch.n_tokens
    if not math.isfinite(total):
        raise FloatingPointError(f"the loss of update {step} is {total}; lower the learning rate by a longer warm-up.")
    (loss / n_tokens).backward()
    optimizer.step()
    with torch.no_grad():
        nll = loss_function.nll(logits, batch.tgt_out).item()
    return total, nll, n_tokens


class _Window:
    """Sums since the last record."""

    def __init__(self) -> None:
        self.loss = self.nll = 0.0
        self.n_tokens = 0
        self.begun = time.perf_counter()

    def add(self, loss: float, nll: float, n_tokens: int) -> None:
        self.loss += loss
        self.nll += nll
        self.n_tokens += n_tokens

    def record(self, step: int, rate: float) -> Record:
        return Record(
            step=step,
            loss=self.loss / self.n_tokens,
            perplexity=math.exp(min(self.nll / self.n_tokens, 700.0)),
            learning_rate=rate,
            tokens_per_second=self.n_tokens / (time.perf_counter() - self.begun),
        )
