# Exported from notebooks/05_2_hardware_and_schedule.py, Section 5.2; edit that file, not this one.
# sha256 of what follows: 3bb282264658e2ce
"""Hardware and Schedule (Section 5.2)."""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from transformer.checkpoints import (
    hold_folder,
    list_checkpoints,
    load_training_checkpoint,
    read_description,
    save_training_checkpoint,
    write_atomically,
)
from transformer.data import Batch
from transformer.distributed import data_parallel, rank, sum_over_ranks, world_size
from transformer.ledger import batch_flops
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, choose_device
from transformer.schedule import make_adam, noam_rate

__all__ = ["TrainingConfig", "pick_precision", "Record", "Stopped", "train", "perplexity"]


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train. The defaults are those of the paper's base model; only checkpoints are left to the caller.

    Args:
        steps: Number of updates.
        warmup_steps: Updates over which the learning rate rises.
        label_smoothing: ε_ls.
        accumulate: Parts into which each device cuts its share of a batch, to hold one in memory at a time.
        clip_norm: Largest norm of the gradient; None, as in the paper, does not limit it.
        precision: "float32", "bfloat16" or "float16"; "auto" is what the device does best.
        compile: Let torch compile the model, where the device supports it.
        seed: Of dropout.
        log_every: Updates between two records.
        evaluate_every: Updates between two evaluations; 0 evaluates at the end only.
        checkpoint_every: Updates between two checkpoints; 0 leaves it to the clock.
        checkpoint_minutes: Minutes between two checkpoints, 10 in the paper; 0 leaves it to the count. With both at 0,
            only the end is saved.
        keep: Number of checkpoints that stay.
        device: "auto", or a name that torch knows.
        progress: Show a progress bar on a terminal.

    Raises:
        ValueError: A count, an interval, clip_norm or precision is impossible.

    Source: §5.2 to §5.4; §6.1 for the checkpoints.
    """

    steps: int = 100_000
    warmup_steps: int = 4_000
    label_smoothing: float = 0.1
    accumulate: int = 1
    clip_norm: float | None = None
    precision: str = "auto"
    compile: bool = False
    seed: int = 0
    log_every: int = 100
    evaluate_every: int = 0
    checkpoint_every: int = 0
    checkpoint_minutes: float = 0.0
    keep: int = 5
    device: str = "auto"
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "warmup_steps", "accumulate", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1.")
        for name in ("evaluate_every", "checkpoint_every", "checkpoint_minutes"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 0.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm={self.clip_norm}; it must be positive, or None.")
        if self.precision not in ("auto", *_DTYPES):
            raise ValueError(f"precision={self.precision!r}; choose from auto, {', '.join(_DTYPES)}.")


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_precision(precision: str, device: torch.device) -> torch.dtype:
    """The type in which matrices are multiplied. Weights, softmax, loss and optimizer stay in their own.

    Args:
        precision: As in `TrainingConfig`.
        device: Where.

    Returns:
        The type; float32 means no automatic casting.

    Raises:
        ValueError: bfloat16 is asked for on a GPU without it.
    """
    old_gpu = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    if precision == "bfloat16" and old_gpu:
        raise ValueError("this GPU does not compute in bfloat16; set precision to float16 or auto.")
    if precision != "auto":
        return _DTYPES[precision]
    if device.type != "cuda":
        return torch.float32
    return torch.float16 if old_gpu else torch.bfloat16


@dataclasses.dataclass(frozen=True)
class Record:
    """What was seen over the updates since the last record.

    Args:
        step: The last of these updates.
        loss: Mean smoothed loss per target token, in nats.
        perplexity: exp of the mean loss without smoothing, per target token.
        learning_rate: Of the last update.
        source_tokens: Number of source tokens, padding not counted.
        target_tokens: Number of target tokens, padding not counted.
        flops: Floating point operations of the model, see `batch_flops`.
        seconds: Time taken, without evaluations and checkpoints.
        scores: What the evaluation returned, if there was one.
    """

    step: int
    loss: float
    perplexity: float
    learning_rate: float
    source_tokens: int
    target_tokens: int
    flops: int
    seconds: float
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second."""
        return self.target_tokens / self.seconds if self.seconds else 0.0


@dataclasses.dataclass
class _Sums:
    """Sums over updates, of all devices."""

    loss: float = 0.0
    nll: float = 0.0
    source_tokens: int = 0
    target_tokens: int = 0
    flops: int = 0
    seconds: float = 0.0

    def add(self, other: "_Sums") -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def record(self, step: int, rate: float) -> Record:
        mean_nll = self.nll / self.target_tokens
        return Record(
            step=step,
            loss=self.loss / self.target_tokens,
            perplexity=math.exp(min(mean_nll, 700.0)),
            learning_rate=rate,
            source_tokens=self.source_tokens,
            target_tokens=self.target_tokens,
            flops=self.flops,
            seconds=self.seconds,
        )


class _Engine:
    """Model, optimizer and loss, and one update with them."""

    def __init__(self, model: Transformer, config: TrainingConfig, device: torch.device) -> None:
        self.model, self.config, self.device = model.to(device).train(), config, device
        self.dtype = pick_precision(config.precision, device)
        self.optimizer = make_adam(model)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self.loss_function = LabelSmoothingLoss(config.label_smoothing, model.config.pad_id, reduction="sum")
        self.parallel: Any = data_parallel(model)
        self.forward = torch.compile(self.parallel, dynamic=True) if _can_compile(config, device) else self.parallel

    def update(self, step: int, batch: Batch) -> _Sums:
        """Train on one batch; raise FloatingPointError before the weights change if its loss is not finite."""
        n_tokens = batch.n_tokens
        parts = batch.split(world_size() * self.config.accumulate)
        mine = parts[rank() :: world_size()]
        torch.manual_seed(random.Random(f"{self.config.seed} {step} {rank()}").getrandbits(63))
        self.optimizer.zero_grad(set_to_none=True)
        seen = torch.zeros(2, device=self.device)
        for part in mine:
            # The gradients of all devices are added up once, after the last part.
            alone = world_size() > 1 and part is not mine[-1]
            with self.parallel.no_sync() if alone else contextlib.nullcontext():
                seen = seen + self._backward(part.to(self.device), n_tokens)
        loss, nll = sum_over_ranks(seen).tolist()
        if not math.isfinite(loss):
            raise FloatingPointError(_not_finite(step, loss, batch))
        self._step(step)
        n_source = int((batch.src != self.model.config.pad_id).sum())
        return _Sums(loss, nll, n_source, n_tokens, sum(self._flops(part) for part in parts))

    def _backward(self, part: Batch, n_tokens: int) -> Tensor:
        """Add the gradients of a part. Returns its summed loss, with smoothing and without."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.forward(part.src, part.tgt_in)  # (B, m, V)
            loss = self.loss_function(logits, part.tgt_out)
        self.scaler.scale(loss * (world_size() / n_tokens)).backward()
        with torch.no_grad():
            return torch.stack([loss, self.loss_function.nll(logits, part.tgt_out)])

    def _flops(self, part: Batch) -> int:
        return batch_flops(self.model.config, part.src.size(0), part.src.size(1), part.tgt_in.size(1))

    def _step(self, step: int) -> None:
        self.optimizer.param_groups[0]["lr"] = noam_rate(step, self.model.config.d_model, self.config.warmup_steps)
        if self.config.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the weights."""
        names = [name for name, _ in self.model.named_parameters()]
        state = {
            f"{key}/{names[i]}": value.contiguous()
            for i, values in self.optimizer.state_dict()["state"].items()
            for key, value in values.items()
        }
        return state | {f"scaler/{key}": torch.tensor(value) for key, value in self.scaler.state_dict().items()}

    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        """Stand where the engine of the checkpoint stood."""
        self.model.load_state_dict(weights)
        scaler = {key.partition("/")[2]: value.item() for key, value in state.items() if key.startswith("scaler/")}
        if scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(scaler)
        moments: dict[int, dict[str, Tensor]] = {}
        for i, (name, _) in enumerate(self.model.named_parameters()):
            if f"step/{name}" in state:  # Adam knows nothing while float16 skips updates to find its scale
                moments[i] = {key: state[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})


def _can_compile(config: TrainingConfig, device: torch.device) -> bool:
    if config.compile and not (device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)):
        _LOG.info("not compiling the model: it pays on NVIDIA GPUs since the A100, and this is none of them")
        return False
    return config.compile


def _not_finite(step: int, loss: float, batch: Batch) -> str:
    return (
        f"the loss of update {step} is {loss}. Its batch has {batch.src.size(0)} pairs, {batch.src.size(1)} source and "
        f"{batch.tgt_in.size(1)} target positions, and begins with the source ids {batch.src[0, :8].tolist()}. The "
        "weights are as they were before; train with a longer warm-up, or with clip_norm=1.0."
    )


_LOG = logging.getLogger("transformer")


class _Folder:
    """Checkpoints and log of a run."""

    def __init__(self, path: str | Path, config: TrainingConfig) -> None:
        self.path, self.config, self.saved = Path(path), config, time.monotonic()
        self.log = self.path / "log.jsonl"

    def restore(self, engine: _Engine, resume: bool) -> tuple[int, _Sums, list[Record]]:
        """The update to go on from, the sums since the last record, and the records so far."""
        checkpoints = list_checkpoints(self.path)
        n = len(checkpoints)
        if sum_over_ranks(torch.tensor(float(n), device=_place())).item() != n * world_size():
            raise ValueError(f"not all processes see one {self.path}; put the run on a disk that all machines share.")
        if not checkpoints:
            return 0, _Sums(), self._keep_records(0)
        if not resume:
            raise FileExistsError(
                f"{self.path} holds a run, up to {checkpoints[-1].name}; resume it, or give another folder."
            )
        description = read_description(checkpoints[-1])
        about, config = description["about"], dataclasses.asdict(self.config)
        if description["model"] != json.loads(engine.model.config.to_json()):
            raise ValueError(f"{checkpoints[-1]} is another model than this one; resume with the model of the run.")
        for name in ("warmup_steps", "label_smoothing", "clip_norm", "seed"):
            if about["training"][name] != config[name]:
                raise ValueError(
                    f"the run in {self.path} has {name}={about['training'][name]}, not {config[name]}; "
                    "resume it with that, or begin another."
                )
        engine.load(*load_training_checkpoint(checkpoints[-1]))
        return about["step"], _Sums(**about["sums"]), self._keep_records(about["step"])

    def _keep_records(self, step: int) -> list[Record]:
        records = []
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(2**20), b""), 1):
                try:
                    records.append(Record(**json.loads(line)))
                    max(0, *dataclasses.astuple(records[-1])[:-1], *records[-1].scores.values())  # are they numbers?
                except (ValueError, TypeError, AttributeError, RecursionError) as error:
                    # The last line of a killed run may be half a line: no JSON, no end of line, and nothing behind it.
                    if line.strip() and (line.endswith(b"\n") or file.read(1) or not isinstance(error, ValueError)):
                        raise ValueError(f"{self.log}, line {number} is no record; remove that line.") from error
        records = [record for record in records if record.step <= step]
        if rank() == 0:
            self.path.mkdir(parents=True, exist_ok=True)
            for left in self.path.glob(f".{self.log.name}.*"):  # by a run that was killed right here
                left.unlink()
            write_atomically(self.log, b"".join(map(_line, records)))
        return records

    def add(self, record: Record) -> None:
        if rank() == 0:
            with self.log.open("ab") as file:
                file.write(_line(record))
                file.flush()
                os.fsync(file.fileno())

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint. The clock of the first process decides for all."""
        late = self.config.checkpoint_minutes and time.monotonic() - self.saved >= 60 * self.config.checkpoint_minutes
        late = bool(sum_over_ranks(torch.tensor(float(bool(late) and rank() == 0), device=_place())).item())
        return late or bool(self.config.checkpoint_every and step % self.config.checkpoint_every == 0)

    def save(self, step: int, engine: _Engine, sums: _Sums) -> None:
        if not all(parameter.isfinite().all() for parameter in engine.model.parameters()):
            raise FloatingPointError(
                f"update {step} made weights that are not finite; the last good checkpoint is untouched. Begin again "
                "with a longer warm-up, or with clip_norm=1.0."
            )
        if rank() == 0:
            about = {"training": dataclasses.asdict(self.config), "sums": dataclasses.asdict(sums)}
            save_training_checkpoint(self.path, step, engine.model, engine.state(), self.config.keep, **about)
        sum_over_ranks(torch.zeros(1, device=_place()))  # nobody leaves, or stops the others, before it is written
        self.saved = time.monotonic()


def _line(record: Record) -> bytes:
    return json.dumps(dataclasses.asdict(record)).encode() + b"\n"


class Stopped(KeyboardInterrupt):
    """A signal asked the training to stop, and it has written a checkpoint.

    Args:
        step: The last update.
        number: The signal.
    """

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped after update {step}, which is saved; resume to go on")
        self.step, self.number = step, number


class _Signals:
    """Within it, SIGINT and SIGTERM are remembered rather than obeyed, each once."""

    def __init__(self, active: bool) -> None:
        self.caught = 0
        # Python lets the main thread alone handle signals.
        self.numbers = (signal.SIGINT, signal.SIGTERM) if active and _in_main_thread() else ()

    def __enter__(self) -> "_Signals":
        self.before = {number: signal.signal(number, self._catch) for number in self.numbers}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        signal.signal(number, self.before[signal.Signals(number)])

    def asked(self) -> int:
        """The signal that any process got, or 0."""
        number = torch.tensor(float(self.caught), device=_place())
        return int(sum_over_ranks(number).item()) and (self.caught or signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _place() -> str:
    """Where processes exchange numbers."""
    return "cuda" if world_size() > 1 and torch.distributed.get_backend() == "nccl" else "cpu"


def train(
    model: Transformer,
    batches: Iterable[Batch],
    config: TrainingConfig,
    evaluate: Callable[[Transformer], Mapping[str, float]] | None = None,
    run: str | Path | None = None,
    resume: bool = False,
) -> list[Record]:
    """Train a model with the paper's optimizer, schedule and loss.

    Started by `torchrun` in several processes, each after `join_processes`, it trains on all their devices.

    Args:
        model: Trained in place, and left on its device in evaluation mode.
        batches: At least config.steps of them, one per update, the same in all processes. To go on from a checkpoint,
            those already used are left out: by their method `from_update` if they have one, else one by one.
        config: How to train.
        evaluate: Called in all processes with the model in evaluation mode; what it returns goes into the records. An
            error in it is logged, and the training goes on.
        run: Folder for checkpoints and log; None keeps nothing.
        resume: Go on from the newest checkpoint in the folder, if there is one.

    Returns:
        A record every config.log_every and config.evaluate_every updates and one at the end, a resumed run's included.

    Raises:
        ValueError: The batches end too early, the run to resume is another, or its log holds what is no record.
        FileExistsError: The folder holds a run, and resume is False.
        BlockingIOError: Another training writes into the folder.
        FloatingPointError: The loss is not finite.
        OSError: A checkpoint or the log cannot be written; the last checkpoint is whole.
        Stopped: A signal stopped the run. Only with a folder; without one, signals do what they always do.

    Source: §5.2 to §5.4.
    """
    with hold_folder(None if run is None or rank() else Path(run) / "checkpoints"):
        engine = _Engine(model, config, choose_device(config.device))
        folder = None if run is None else _Folder(run, config)
        done, sums, records = (0, _Sums(), []) if folder is None else folder.restore(engine, resume)
        stream = _ahead(_from_update(batches, done, config.steps))
        hidden = None if config.progress and rank() == 0 else True
        bar = tqdm(total=config.steps, initial=done, desc="training", unit="update", disable=hidden)
        with _Signals(folder is not None) as signals, bar, contextlib.closing(stream):
            for step in range(done + 1, config.steps + 1):
                begun = time.perf_counter()
                batch = next(stream, None)
                if batch is None:
                    raise ValueError(f"the batches ended after {step - 1} of {config.steps} updates; give more.")
                sums.add(engine.update(step, batch))
                sums.seconds += time.perf_counter() - begun
                bar.update()
                last, asked = step == config.steps, signals.asked()
                if last or _divides(config.evaluate_every, step) or _divides(config.log_every, step):
                    record, sums = sums.record(step, engine.optimizer.param_groups[0]["lr"]), _Sums()
                    if evaluate is not None and (last or _divides(config.evaluate_every, step)):
                        record = dataclasses.replace(record, scores=_evaluate(evaluate, model, step))
                    records.append(record)
                    bar.set_postfix_str(_summary(record))
                    if folder is not None:
                        folder.add(record)
                if folder is not None and (folder.due(step) or last or asked):
                    folder.save(step, engine, sums)
                if asked and not last:
                    raise Stopped(step, asked)
    model.eval()
    return records


def _divides(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _summary(record: Record) -> str:
    return (
        f"loss {record.loss:.3f}, perplexity {record.perplexity:.2f}, rate {record.learning_rate:.1e}, "
        f"{record.tokens_per_second:,.0f} tokens/s"
    )


def _from_update(batches: Iterable[Batch], done: int, steps: int) -> Iterator[Batch]:
    """The batches of the updates done + 1 to steps."""
    if hasattr(batches, "from_update"):
        return itertools.islice(batches.from_update(done), max(0, steps - done))
    return itertools.islice(batches, done, steps)


def _ahead(batches: Iterator[Batch], n: int = 2) -> Generator[Batch, None, None]:
    """The same batches; a thread makes the next n while one is in use."""
    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(next, batches, None) for _ in range(n))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(next, batches, None))
            yield batch


def _evaluate(
    evaluate: Callable[[Transformer], Mapping[str, float]], model: Transformer, step: int
) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in evaluate(model.eval()).items()}
    except Exception as error:
        _LOG.warning("the evaluation after update %d failed, and is left out: %r", step, error)
        return {}
    finally:
        model.train()


@torch.inference_mode()
def perplexity(model: Transformer, batches: Iterable[Batch]) -> float:
    """exp of the mean negative log-likelihood per target token, without smoothing.

    Args:
        model: In evaluation mode.
        batches: A finite number of them, the same in all processes; each process computes its share of them.

    Returns:
        The perplexity over all of them, at least 1.

    Raises:
        ValueError: There is no target token.

    Source: §6.2, "perplexities are per-wordpiece".
    """
    loss_function = LabelSmoothingLoss(0.0, model.config.pad_id, reduction="sum")
    device = next(model.parameters()).device
    total, count = 0.0, 0
    for batch in itertools.islice(batches, rank(), None, world_size()):
        batch = batch.to(device)
        total += loss_function(model(batch.src, batch.tgt_in), batch.tgt_out).item()
        count += batch.n_tokens
    nll, n_tokens = sum_over_ranks(torch.tensor([total, count], dtype=torch.float64, device=_place())).tolist()
    if not n_tokens:
        raise ValueError("there is no target token to compute a perplexity of; give at least one batch.")
    return math.exp(min(nll / n_tokens, 700.0))
