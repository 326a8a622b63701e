# %% [markdown]
# # A3a A Run and Its Folder
#
# A training is decided by some thirty settings, and six months later nobody remembers them. Here they are one JSON object,
# checked before anything starts, and written beside the model that came of them. A run is a folder: it can be stopped,
# continued, moved and asked what made it.

# %%
#| default_exp runs

# %%
import itertools
import tempfile

import altair as alt

import transformer

transformer.check_version("0.1")

# %% [markdown]
# ## What the paper tells of its runs
#
# > For our base models using the hyperparameters described throughout the paper, each training step took about 0.4
# > seconds. We trained the base models for a total of 100,000 steps or 12 hours.
# >
# > — Section 5.2
#
# Sections 5 and 6.1 and Table 3 hold all the rest, in eight places: sizes, tokens per batch, warm-up, dropout, smoothing,
# checkpoints, averaging. What they leave open, such as seeds and versions, cannot be known any more. A run of this book
# writes it down.


# %%
#| export
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

RUN_FILE = "run.json"


# %% [markdown]
# ## A configuration
#
# "base" and "big" are the paper's. "small", for a few ten thousand pairs, and "tiny", for the embedded corpus, are ours.
#
# The paper wrote checkpoints every ten minutes, which on its machine were 1,500 updates of base (0.4 seconds each) and 600
# of big (1.0 seconds). Counted in updates, the mean of the last ones covers the same part of a training on any machine.


# %%
#| export
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "base": {"checkpoint_every": 1500, "evaluate_every": 1000},
    "big": {"steps": 300_000, "checkpoint_every": 600, "evaluate_every": 1000, "average": 20},
    "small": {"steps": 9000, "warmup_steps": 2000, "checkpoint_every": 250, "evaluate_every": 500, "max_tokens": 4000},
    "tiny": {"steps": 1500, "warmup_steps": 400, "checkpoint_every": 50, "evaluate_every": 250, "max_tokens": 1500},
}


# %%
#| export
def _fields(kind: type) -> dict[str, Any]:
    """The fields that a configuration has of this kind, with their types; not those that data or machine decide."""
    others = {"src_vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id", "device", "progress"}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in others}


# %% [markdown]
# A configuration file is read by a program and written by people, so every field is checked: its name, its type, its range.
# JSON as Python reads it knows `NaN`, which passes every comparison of the form `x < 0`; and `true` is a whole number in
# Python. Neither gets through. Who asks for checkpoints by a count of updates wants none by the clock, and the reverse.


# %%
#| export
_OURS = {"max_tokens": 25_000, "average": 5, "evaluate_bleu": 0}
_TYPES = _fields(TransformerConfig) | _fields(TrainingConfig) | dict.fromkeys(_OURS, int)


# %%
#| export
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


# %%
#| export
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


# %%
#| export
def _check_types(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name not in _TYPES:
            raise ValueError(f"a configuration has no field {name!r}; it has {', '.join(_TYPES)}.")
        kind = _TYPES[name]
        fits = isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))
        odd = isinstance(value, bool) != (kind is bool) or (isinstance(value, float) and not math.isfinite(value))
        if odd or not fits:
            raise ValueError(f"{name} is {str(value)[:40]!r}, which is no {getattr(kind, '__name__', kind)}.")


# %%
#| export
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


# %%
#| export
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


# %% [markdown]
# ### See it
#
# Where base and big differ:

# %%
base, big = make_configuration("base"), make_configuration("big")
for name, value in base.items():
    if big[name] != value:
        print(f"{name:12} {value!s:>8} {big[name]!s:>8}")
print(f"and agree in {sum(base[name] == big[name] for name in base)} more settings")

# %% [markdown]
# ### Check it: the defaults are the paper's, and nonsense does not get through

# %%
for whole, steps, dropout, average, seconds in ((base, 100_000, 0.1, 5, 0.4), (big, 300_000, 0.3, 20, 1.0)):
    assert (whole["steps"], whole["dropout"], whole["average"]) == (steps, dropout, average)
    assert (whole["max_tokens"], whole["warmup_steps"]) == (25_000, 4000)
    assert whole["checkpoint_every"] == 10 * 60 / seconds  # ten of the paper's minutes
refused = {"n_heds": 4, "steps": True, "label_smoothing": float("nan"), "dropout": 1.5, "n_heads": 7, "clip_norm": -1}
for name, value in refused.items():
    try:
        make_configuration(**{name: value})
    except ValueError as error:
        print(str(error)[:90])
        continue
    raise AssertionError(f"{name}={value} got through")

# %% [markdown]
# ## A run
#
# `run.json` is written before the first update: the configuration, what the data was made of, and for each start when,
# where and with which versions. A resumed run must agree with it, except in what changes no update.


# %%
#| export
# What a resumed run may change.
_FREE = (
    *("steps", "accumulate", "precision", "compile", "log_every", "evaluate_every", "evaluate_bleu"),
    *("checkpoint_every", "checkpoint_minutes", "keep", "average"),
)


# %%
#| export
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


# %%
#| export
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


# %%
#| export
def _average(run: Path, last: int) -> tuple[Translator, list[str]]:
    checkpoints = list_checkpoints(run)[-last:]
    if not checkpoints or not (run / TOKENIZER_FILE).is_file():
        lacking = TOKENIZER_FILE if checkpoints else "checkpoints"
        raise FileNotFoundError(f"{run} has no {lacking}; give the folder of a training run.")
    translator = Translator(average_checkpoints(checkpoints), Tokenizer.load(run / TOKENIZER_FILE))
    return translator, [path.name for path in checkpoints]


# %% [markdown]
# ## What a run must agree with
#
# Two runs in one folder would be a mixture that nobody made on purpose. So a folder with a run is refused, unless it is to
# be resumed; and then model, schedule, seed, batches and data must be the run's own. The number of updates may grow, and a
# run may go on in another precision, or with its batches cut into other parts: an update stays what it is.


# %%
#| export
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


# %%
#| export
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


# %%
#| export
def _read_run(run: Path) -> dict[str, Any]:
    try:
        about = json.loads(read_whole(run / RUN_FILE))
        whole = {"configuration": make_configuration(about["configuration"]), "data": dict(about["data"])}
        Path(whole["data"]["folder"])
        return {"format": 1, **whole, "starts": list(about["starts"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{run / RUN_FILE} is damaged ({error}); begin another run.") from error


# %%
#| export
def _check_data(known: dict[str, Any], prepared: Prepared) -> None:
    """Enter what the data is; what is known of it must be so."""
    tokenizer = hashlib.sha256(prepared.tokenizer.model).hexdigest()
    about = {name: prepared.description[name] for name in ("settings", "counts", "splits")}
    for name, value in {"tokenizer_sha256": tokenizer, **about}.items():
        if known.setdefault(name, value) != value:
            raise ValueError(f"{prepared.folder} is not the data the run began with: its {name} is another.")


# %%
#| export
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


# %%
#| export
def _commit() -> str | None:
    """The commit of the package, if it lies in its repository."""
    root = Path(str(files("transformer"))).parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() if (root / "notebooks").is_dir() else None


# %%
#| export
def _peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: on the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# %%
#| export
def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# %%
#| export
def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


# %% [markdown]
# ## Scores on dev
#
# Perplexity is cheap, so all of dev is scored. BLEU needs decoding, so a few lines have to do, and greedily: it is there to
# see that the model learns, not to be reported.


# %%
#| export
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


# %% [markdown]
# ## See it: a run
#
# The embedded corpus, a model that fits it badly, forty updates. Halfway the run ends, and is then resumed with more.

# %%
folder = Path(tempfile.mkdtemp())
for split, n in (("train", 2000), ("dev", 50)):
    pairs = list(itertools.islice(transformer.embedded_corpus(split), n))
    (folder / f"{split}.en").write_text("".join(f"{pair.source}\n" for pair in pairs))
    (folder / f"{split}.de").write_text("".join(f"{pair.target}\n" for pair in pairs))
texts = [(folder / f"{split}.en", folder / f"{split}.de") for split in ("train", "dev")]
transformer.prepare(transformer.files_corpus("some", "en", "de", *texts), folder / "data", 600, progress=False)
sizes = {"d_model": 64, "d_ff": 128, "n_layers": 1, "n_heads": 4, "max_tokens": 600, "warmup_steps": 40}
often = {"checkpoint_every": 5, "evaluate_every": 5, "average": 3}
run = folder / "run"
train_run(run, folder / "data", "tiny", device="cpu", steps=20, **sizes, **often)
result = train_run(run, resume=True, device="cpu", steps=40)
for path in sorted(run.iterdir()):
    print(path.name)

# %% [markdown]
# What each is for: `checkpoints/` to go on from and to average ([A3](A3_checkpoints.py)); `log.jsonl`, one line of numbers
# at a time; `tokenizer.model`; `run.json`, what made it; `config.json` and `model.safetensors`, the averaged model, which
# `Translator.from_pretrained` reads.

# %%
about = json.loads((run / RUN_FILE).read_bytes())
print("configuration:", ", ".join(f"{name} {about['configuration'][name]}" for name in ("d_model", "steps", "seed")))
print("data:", about["data"]["settings"]["corpus"], about["data"]["splits"]["train"])
print("started", len(about["starts"]), "times; each with", ", ".join(about["starts"][0]))
print("averaged:", ", ".join(result["averaged"]))
assert about["result"] == result and len(about["starts"]) == 2

# %%
records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
rows = [
    {"update": record["step"], "perplexity": value, "of": name}
    for record in records
    for name, value in (("training", record["perplexity"]), ("dev", record["scores"]["dev_perplexity"]))
]
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_line(point=True)
    .encode(
        x=alt.X("update:Q"),
        y=alt.Y("perplexity:Q", title="perplexity per piece", scale=alt.Scale(type="log")),
        color=alt.Color("of:N", title=None, scale=alt.Scale(range=["#D55E00", "#0072B2"])),
        strokeDash=alt.StrokeDash("of:N", title=None),
        tooltip=["update:Q", "of:N", alt.Tooltip("perplexity:Q", format=".1f")],
    )
    .properties(title="The resumed run goes on where it ended: no step at update 20", width=420, height=240)
)
chart

# %% [markdown]
# Training perplexity is the mean over the updates since the last record, dropout included, while the model gets better; dev
# is measured after them, without dropout. Early on that puts dev below training. That is no error.

# %% [markdown]
# ### Check it: resumed is as good as never stopped

# %%
train_run(folder / "whole", folder / "data", "tiny", device="cpu", steps=40, **sizes, **often)
one, other = (transformer.load_checkpoint(path).state_dict() for path in (run, folder / "whole"))
assert all(one[name].equal(other[name]) for name in one)
print("the same weights, bit for bit")

# %% [markdown]
# ### Check it: what is another run is refused

# %%
for more in ({"seed": 1, "resume": True}, {"config": "base", "resume": True}, {"steps": 10, "resume": True}, {}):
    try:
        train_run(run, folder / "data", device="cpu", **more)
    except (ValueError, FileExistsError) as error:
        print(str(error).replace(str(folder), "…"))
        continue
    raise AssertionError(f"{more} got through")

# %% [markdown]
# ### Check it: a run can be moved

# %%
lines = [source for source, _ in Prepared.load(folder / "data").text("dev")[:3]]
before = Translator.from_pretrained(run, "cpu").translate(lines)
run = run.rename(folder / "elsewhere")
assert Translator.from_pretrained(run, "cpu").translate(lines) == before
average_run(run, last=1, out=folder / "last")
newest = transformer.load_checkpoint(list_checkpoints(run)[-1]).state_dict()
assert all(
    value.equal(newest[name]) for name, value in transformer.load_checkpoint(folder / "last").state_dict().items()
)

# %% [markdown]
# ## Unsaid by the paper
#
# * **By the clock.** Checkpoints "written at 10-minute intervals" depend on the machine: a faster one averages over more
#   updates. It is the paper's way, and here `checkpoint_minutes`. Base and big count updates instead, which makes a run repeatable.
# * **Seeds.** One number here seeds the weights, the order of the batches, and dropout. The same run on another machine
#   still differs: sums of floating point numbers depend on the order in which a device adds.
# * **Versions.** tensor2tensor changed its defaults several times, among them the norm's place. Without versions in the
#   record, "transformer_base" names more than one model.

# %% [markdown]
# ## What we now know
#
# * A configuration is one JSON object, complete and checked; base and big differ in what the list above shows.
# * A run's folder tells what made it, and needs nothing outside it to translate.
# * Stopped and resumed, it gives the same weights as if it had never stopped.

# %% [markdown]
# ## Exercises
#
# 1. **Predict, then run.** `make_configuration(average=9)`: what becomes of `keep`?
# 2. **Minutes.** Resume the run on other data. Which field gives it away?
# 3. **An hour.** Two runs that differ in the seed alone: how far apart are their dev perplexities?

# %% tags=["hide-cell"]
# Exercise 1: nine checkpoints must be there to be averaged.
assert make_configuration(average=9)["keep"] == 9 > make_configuration()["keep"]

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.make_configuration("big") == make_configuration("big")
assert transformer.train_run(run, resume=True, device="cpu")["scores"] == result["scores"]
