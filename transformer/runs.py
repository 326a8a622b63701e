# Exported from notebooks/A3a_runs.py, Appendix A3a; edit that file, not this one.
# sha256 of what follows: 823553cb89421379
"""A Run and Its Folder (Appendix A3a)."""

import dataclasses
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from transformer import __version__
from transformer.checkpoints import (
    STATE_FILE,
    WEIGHTS_FILE,
    average_checkpoints,
    hold_folder,
    list_checkpoints,
    load_checkpoint,
    load_training_checkpoint,
    read_description,
    write_atomically,
)
from transformer.data import TokenBatches, Tokenizer
from transformer.distributed import gather_from_ranks, rank, share_over_ranks, world_size
from transformer.fast_cpu import use_fast_dropout, use_one_dnn
from transformer.ledger import Ledger, measure_peak
from transformer.loss import LabelSmoothingLoss
from transformer.model import Transformer, TransformerConfig, choose_device
from transformer.preparation import Prepared, read_whole
from transformer.scoring import bleu
from transformer.training import TrainingConfig, perplexity, pick_precision, train
from transformer.translator import TOKENIZER_FILE, Translator

__all__ = ["RUN_FILE", "CONFIGURATIONS", "make_configuration", "parts_of", "train_run", "average_run"]


RUN_FILE = "run.json"


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "base": {"checkpoint_every": 1500, "evaluate_every": 1000},
    "big": {"steps": 300_000, "checkpoint_every": 600, "evaluate_every": 1000, "average": 20},
    "small": {"steps": 9000, "warmup_steps": 2000, "checkpoint_every": 250, "evaluate_every": 500, "max_tokens": 4000},
    "tiny": {"steps": 1500, "warmup_steps": 400, "checkpoint_every": 50, "evaluate_every": 250, "max_tokens": 1500},
}


def _fields(kind: type) -> dict[str, Any]:
    """The fields that a configuration has of this kind, with their types; not those that data or machine decide."""
    others = {"src_vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id", "device", "progress"}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in others}


_OURS = {"max_tokens": 25_000, "average": 5, "evaluate_bleu": 0}
_TYPES = _fields(TransformerConfig) | _fields(TrainingConfig) | dict.fromkeys(_OURS, int)


def make_configuration(base: str | Path | Mapping[str, Any] = "base", **changes: Any) -> dict[str, Any]:
    """Everything that decides how a training goes, complete and checked.

    Args:
        base: "base", "big", "small" or "tiny"; a JSON file; or a mapping. Fields it lacks are as in "base".
        **changes: Fields with other values.

    Returns:
        A JSON object with the fields of `TransformerConfig`, without the vocabulary; those of `TrainingConfig`, without
        the device; "max_tokens" of a batch; how many checkpoints to "average"; and how many lines of dev to translate
        for "evaluate_bleu".

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no JSON object, or a field is unknown, of a wrong type or out of its range.

    Source: §5, §6.1, Table 3.
    """
    known = isinstance(base, str) and base in CONFIGURATIONS
    name = str(base) if known else "base"
    given = {} if known else dict(base) if isinstance(base, Mapping) else _read_configuration(base)
    whole = dataclasses.asdict(TransformerConfig.preset(name)) | dataclasses.asdict(TrainingConfig()) | _OURS
    for part in (CONFIGURATIONS[name], given, changes):
        _check_types(part)
        whole.update(part)
        for one, other in (("checkpoint_every", "checkpoint_minutes"), ("checkpoint_minutes", "checkpoint_every")):
            if part.get(one) and other not in part:
                whole[other] = _TYPES[other](0)
    whole = {field: whole[field] for field in _TYPES}
    for field, least in (("max_tokens", 1), ("average", 1), ("evaluate_bleu", 0), ("seed", 0)):
        if whole[field] < least:
            raise ValueError(f"{field} is {whole[field]}; it must be at least {least}.")
    whole["keep"] = max(whole["keep"], whole["average"])
    _check_sizes(whole)
    parts_of(whole, vocab_size=1000)  # these two refuse what cannot be
    LabelSmoothingLoss(whole["label_smoothing"])
    return whole


def _read_configuration(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file; of a run's description, its configuration."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is neither {', '.join(CONFIGURATIONS)} nor a file that holds a configuration.")
    try:
        content = json.loads(read_whole(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); write it again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object; write it again.")
    return content["configuration"] if isinstance(content.get("configuration"), dict) else content


def _check_types(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name not in _TYPES:
            raise ValueError(f"a configuration has no field {name!r}; it has {', '.join(_TYPES)}.")
        kind = _TYPES[name]
        fits = isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))
        odd = isinstance(value, bool) != (kind is bool) or (isinstance(value, float) and not math.isfinite(value))
        if odd or not fits:
            raise ValueError(f"{name} is {str(value)[:40]!r}, which is no {getattr(kind, '__name__', kind)}.")


def _check_sizes(whole: Mapping[str, Any]) -> None:
    """Refuse what no machine holds, before any memory is taken."""
    layers, width = whole["n_layers"], whole["d_model"]
    heads = whole["n_heads"] * ((whole["d_k"] or 0) + (whole["d_v"] or 0)) + 2 * width
    if layers > 1000 or width * (layers * (heads + whole["d_ff"]) + whole["max_len"]) > 10**10:
        reason = "make a model of more than 1,000 layers or 10 billion weights; give smaller ones"
        raise ValueError(f"n_layers, d_model, n_heads, d_k, d_v, d_ff, max_len as given {reason}.")
    for name in (name for name, kind in _TYPES.items() if kind is int):
        if whole[name] >= 2**63:
            raise ValueError(f"{name} is {str(whole[name])[:40]}; it must be below 2**63.")


def parts_of(
    configuration: Mapping[str, Any], vocab_size: int, device: str = "auto"
) -> tuple[TransformerConfig, TrainingConfig]:
    """The two parts of a configuration that model and training loop take.

    Args:
        configuration: A complete one.
        vocab_size: Pieces of the shared vocabulary.
        device: Where to train.

    Returns:
        How to build the model, and how to train it.

    Raises:
        ValueError: A value is out of its range.
    """
    model, training = (
        {name: configuration[name] for name in _fields(kind)} for kind in (TransformerConfig, TrainingConfig)
    )
    return TransformerConfig.base(vocab_size, **model), TrainingConfig(**training, device=device)


# What a resumed run may change.
_FREE = (
    *("steps", "accumulate", "precision", "compile", "log_every", "evaluate_every", "evaluate_bleu"),
    *("checkpoint_every", "checkpoint_minutes", "keep", "average"),
)


def train_run(
    run: str | Path,
    data: str | Path | None = None,
    config: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    command: Sequence[str] = (),
    **changes: Any,
) -> dict[str, Any]:
    """Train a model on a prepared corpus, and average its last checkpoints.

    In several processes, each after `join_processes`, it trains on all their devices.

    Args:
        run: The run's folder, which will hold everything that made it.
        data: What `prepare` wrote; None, for a run to resume, is where it was.
        config: As in `make_configuration`; None is "base", or that of the run to resume. One that is given with a run
            to resume must be the run's; what may change, such as steps, is taken from `changes`.
        resume: Go on with the run in the folder, if there is one.
        device: "auto", or a name that torch knows.
        command: How this was called, for the record.
        **changes: Fields of the configuration with other values.

    Returns:
        The result, with names of the "averaged" checkpoints, "scores" on dev, the "ledger" of the whole run, and when
        it "ended" with which "peak_memory_bytes" of its last process. It is written into run.json, too.

    Raises:
        FileExistsError: The folder holds a run or something else, and resume is False.
        BlockingIOError: Another process trains in this folder.
        FileNotFoundError: The data or the configuration is missing.
        ValueError: The configuration or the data is refused, or not that of the run to resume.
        OSError: Something cannot be written; the last checkpoint is whole.
        FloatingPointError: The loss is not finite.
        Stopped: A signal stopped the training, and it can be resumed.

    Source: §5, §6.1.
    """
    run = Path(run)
    about = _begin(run, data, config, resume, changes)
    prepared = Prepared.load(about["data"]["folder"])
    _check_data(about["data"], prepared)
    configuration = about["configuration"]
    model_config, training = parts_of(configuration, len(prepared.tokenizer), device)
    place = choose_device(device)
    dtype = pick_precision(training.precision, place)
    torch.manual_seed(training.seed)
    model = Transformer(model_config)
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.mm
    if place.type == "cpu":
        use_fast_dropout(model)
        multiply = use_one_dnn(model) if dtype == torch.float32 else multiply
    batches = TokenBatches(prepared.train, configuration["max_tokens"], training.seed)
    evaluate = _evaluation(prepared, configuration["evaluate_bleu"])
    gather_from_ranks([0])  # nobody writes before all have looked
    with hold_folder(None if rank() else run):
        if resume:
            _check_newest(run)
        if rank() == 0:
            about["starts"].append({"date": _now(), "command": list(command), **_surroundings()})
            write_atomically(run / TOKENIZER_FILE, prepared.tokenizer.model)
            _write_json(run / RUN_FILE, about)
        records = train(model, batches, training, evaluate, run, resume)
        gather_from_ranks([0])  # the last checkpoint is written
        translator, names = _average(run, configuration["average"])
        if rank() == 0:
            translator.save(run, averaged=names)  # before it is scored, which may fail
        result: dict[str, Any] = {"averaged": names, "scores": evaluate(translator.model.to(place))}
        if rank() == 0:
            ledger = Ledger(peak=measure_peak(str(place), dtype, 0.5, multiply) * world_size())
            for record, before in zip(records, [0, *(record.step for record in records)], strict=False):
                new = record.step - before
                ledger.add(record.flops, record.source_tokens, record.target_tokens, record.seconds, new)
            result |= {"ledger": ledger.to_dict(), "peak_memory_bytes": _peak_memory(place), "ended": _now()}
            _write_json(run / RUN_FILE, {**about, "result": result})
    return result


def average_run(run: str | Path, last: int | None = None, out: str | Path | None = None) -> list[str]:
    """Make the mean of a run's last checkpoints its model.

    Args:
        run: The run's folder.
        last: How many checkpoints; None for as many as the run was told, and are there.
        out: Where the model goes; None for the run's folder.

    Returns:
        The names of the checkpoints.

    Raises:
        FileNotFoundError: It is no run, or has no checkpoint yet.
        ValueError: There are not so many checkpoints, or one is damaged.

    Source: §6.1.
    """
    run = Path(run)
    there = len(list_checkpoints(run))
    if last is None:
        last = make_configuration(run / RUN_FILE if (run / RUN_FILE).is_file() else "base")["average"]
    elif last < 1 or 0 < there < last:
        raise ValueError(f"{run} has {there} checkpoints; {last} cannot be averaged.")
    translator, names = _average(run, last)
    translator.save(out or run, averaged=names)
    return names


def _average(run: Path, last: int) -> tuple[Translator, list[str]]:
    checkpoints = list_checkpoints(run)[-last:]
    if not checkpoints or not (run / TOKENIZER_FILE).is_file():
        lacking = TOKENIZER_FILE if checkpoints else "checkpoints"
        raise FileNotFoundError(f"{run} has no {lacking}; give the folder of a training run.")
    translator = Translator(average_checkpoints(checkpoints), Tokenizer.load(run / TOKENIZER_FILE))
    return translator, [path.name for path in checkpoints]


def _begin(
    run: Path, data: str | Path | None, config: str | Path | None, resume: bool, changes: dict[str, Any]
) -> dict[str, Any]:
    """What run.json shall hold."""
    about: dict[str, Any] = {"format": 1, "starts": []}
    if (run / RUN_FILE).is_file() and not resume:
        raise FileExistsError(f"{run} holds a run already; resume it, or give another folder.")
    if (run / RUN_FILE).is_file():
        about = _read_run(run)
        old = about["configuration"]
        about["configuration"] = make_configuration(old, **changes)
        new = make_configuration(config or old, **changes)
        for name, value in old.items():
            if new[name] != about["configuration"][name] or (name not in _FREE and new[name] != value):
                remedy = "give it as an option of its own" if name in _FREE else "begin another"
                raise ValueError(
                    f"the run in {run} has {name}={value}, not {new[name]}; resume it with that, or {remedy}."
                )
    elif data is None:
        raise FileNotFoundError(f"{run} holds no run to resume; give data to begin one.")
    elif run.exists() and not (run.is_dir() and (resume or not any(run.iterdir()))):
        raise FileExistsError(f"{run} exists and is no run; give a folder that is empty or not there.")
    else:
        about |= {"configuration": make_configuration(config or "base", **changes), "data": {}}
    done, steps = [path.name for path in list_checkpoints(run)[-1:]], about["configuration"]["steps"]
    if done > [f"step-{steps:08}"]:
        raise ValueError(f"the run in {run} has {done[0]} behind it; resume it with more steps than {steps}.")
    if data is not None:
        about["data"]["folder"] = os.path.abspath(data)
    return about


def _check_newest(run: Path) -> None:
    """Refuse a checkpoint whose files do not belong together, before anything of it is used."""
    for path in list_checkpoints(run)[-1:]:
        weights = load_checkpoint(path).named_parameters()
        if (path / STATE_FILE).stat().st_size > 4 * (path / WEIGHTS_FILE).stat().st_size + 2**20:
            raise ValueError(f"{path / STATE_FILE} is damaged: too large for this model's state; copy it again.")
        (_, state), about = load_training_checkpoint(path), read_description(path)["about"]
        try:
            TrainingConfig(**about["training"])
            whole = path.name == f"step-{about['step']:08}" and isinstance(about["sums"], dict)
            early = any(name.startswith("scaler/") for name in state)  # float16 may not have found its scale yet
            for name, weight in weights:
                kept = [state.get(f"{key}/{name}") for key in ("exp_avg", "exp_avg_sq")]
                fit = all(one is not None and one.shape == weight.shape and one.isfinite().all() for one in kept)
                fit = fit and 0 < state[f"step/{name}"].item() <= about["step"]
                whole = whole and (fit or (early and kept == [None, None]))
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise ValueError(f"the files of {path} do not belong together; remove it, and resume from the one before.")


def _read_run(run: Path) -> dict[str, Any]:
    try:
        about = json.loads(read_whole(run / RUN_FILE))
        whole = {"configuration": make_configuration(about["configuration"]), "data": dict(about["data"])}
        Path(whole["data"]["folder"])
        return {"format": 1, **whole, "starts": list(about["starts"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{run / RUN_FILE} is damaged ({error}); begin another run.") from error


def _check_data(known: dict[str, Any], prepared: Prepared) -> None:
    """Enter what the data is; what is known of it must be so."""
    tokenizer = hashlib.sha256(prepared.tokenizer.model).hexdigest()
    about = {name: prepared.description[name] for name in ("settings", "counts", "splits")}
    for name, value in {"tokenizer_sha256": tokenizer, **about}.items():
        if known.setdefault(name, value) != value:
            raise ValueError(f"{prepared.folder} is not the data the run began with: its {name} is another.")


def _surroundings() -> dict[str, Any]:
    """Where this runs, and with what."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    libraries = {name: version(name) for name in ("torch", "numpy", "safetensors", "sentencepiece")}
    return {
        "machine": ", ".join([platform.platform(), f"{os.cpu_count()} CPUs", *gpus]),
        "processes": world_size(),
        "threads": torch.get_num_threads(),
        "versions": {"transformer": __version__, "python": platform.python_version(), **libraries},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the package, if it lies in its repository."""
    root = Path(str(files("transformer"))).parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() if (root / "notebooks").is_dir() else None


def _peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: on the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _evaluation(prepared: Prepared, n_lines: int) -> Callable[[Transformer], dict[str, float]]:
    """Perplexity on dev, and BLEU of its first lines, decoded greedily."""
    if prepared.dev is None:
        return lambda model: {}
    longest = 1 + int(max(prepared.dev.src_lengths.max(), prepared.dev.tgt_lengths.max()))
    batches = list(TokenBatches(prepared.dev, max(longest, 4000)).epoch(0))
    pairs = prepared.text("dev")[:n_lines]
    if pairs:
        bleu(hypotheses=["a"], references=["a"])  # if sacreBLEU is missing, say so now

    def evaluate(model: Transformer) -> dict[str, float]:
        scores = {"dev_perplexity": perplexity(model, batches)}
        if pairs:
            sources = [source for source, _ in share_over_ranks(pairs)]
            outputs = Translator(model, prepared.tokenizer).translate(sources, errors="empty", beam_size=1)
            references = [reference for _, reference in pairs]
            scores["dev_bleu"] = bleu(hypotheses=gather_from_ranks(outputs), references=references).value
        return scores

    return evaluate
