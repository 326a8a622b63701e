# %% [markdown]
# # A4 The Command Line
#
# `transformer` on the command line does what the module does, for people who have text in files and not in Python. Every
# command has a help page, and every error is one sentence.

# %%
#| default_exp cli

# %%
import subprocess

import transformer

transformer.check_version("0.1")


# %%
#| export
import argparse
import codecs
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from transformer import __version__
from transformer.checkpoints import average_checkpoints, list_checkpoints, write_atomically
from transformer.data import TokenBatches, Tokenizer, copy_task, make_batch
from transformer.decoding import greedy_decode
from transformer.distributed import (
    gather_from_ranks,
    join_processes,
    leave_processes,
    rank,
    share_over_ranks,
    world_size,
)
from transformer.downloads import files_corpus
from transformer.ledger import Ledger, measure_peak
from transformer.model import Transformer, TransformerConfig, choose_device, count_parameters
from transformer.preparation import Cleaning, Prepared, prepare, read_pairs
from transformer.scoring import Score, bleu, chrf, paper_bleu
from transformer.training import Record, Stopped, TrainingConfig, perplexity, pick_precision, train
from transformer.translator import TOKENIZER_FILE, Translator, load_toy_translator

RUN_FILE = "run.json"


# %% [markdown]
# ## A configuration
#
# Everything that decides how a training goes stands in one JSON object: the model's sizes, the training's settings, the
# size of a batch, how many checkpoints are averaged. What is not the paper's has other numbers in the same fields.


# %%
#| export
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "base": {"training": {"checkpoint_minutes": 10.0, "evaluate_every": 1000}, "max_tokens": 25_000},
    "big": {
        "training": {"steps": 300_000, "checkpoint_minutes": 10.0, "evaluate_every": 1000},
        "max_tokens": 25_000,
        "average": 20,
    },
    "small": {
        "training": {"steps": 10_000, "warmup_steps": 2000, "checkpoint_every": 250, "evaluate_every": 500},
        "max_tokens": 4000,
    },
    "tiny": {
        "training": {"steps": 1500, "warmup_steps": 400, "checkpoint_every": 50, "evaluate_every": 250},
        "max_tokens": 1500,
    },
}


# %%
#| export
def make_configuration(
    base: str | Mapping[str, Any] = "base", changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Everything that decides how a training goes, complete and checked.

    Args:
        base: "base", "big", "small" or "tiny"; or a JSON file; or such an object. What it lacks is as in "base".
        changes: For "model", "training" and "run", fields with other values.

    Returns:
        "model" and "training", each with all its fields, and the fields of the run: "max_tokens" of a batch, how many
        checkpoints to "average", and the number of dev lines for "evaluate_bleu". Sizes of the vocabulary are not in
        it, nor the device.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no JSON object; or a field is unknown, of a wrong type, or out of its range.

    Source: §5, §6.1, Table 3.
    """
    name = base if isinstance(base, str) and base in CONFIGURATIONS else "base"
    given = CONFIGURATIONS[name] if base == name else _read_json(base) if isinstance(base, str) else base
    model = dataclasses.asdict(TransformerConfig.preset(name))
    training = dataclasses.asdict(TrainingConfig())
    whole: dict[str, Any] = {
        "model": {field: model[field] for field in _hints(TransformerConfig)},
        "training": {field: training[field] for field in _hints(TrainingConfig)},
        "max_tokens": 25_000,
        "average": 5,
        "evaluate_bleu": 0,
    }
    changes = changes or {}
    for part in (given, changes):
        for section, kind in (("model", TransformerConfig), ("training", TrainingConfig)):
            _check_fields(f"{section} of the configuration", part.get(section, {}), _hints(kind))
            whole[section].update(part.get(section, {}))
    for part in (given, changes.get("run", {})):
        rest = {field: part[field] for field in part if field not in ("model", "training")}
        _check_fields("the configuration", rest, dict.fromkeys(("max_tokens", "average", "evaluate_bleu"), int))
        whole.update(rest)
    if min(whole["max_tokens"], whole["average"], whole["evaluate_bleu"] + 1) < 1:
        raise ValueError("max_tokens and average must be at least 1, and evaluate_bleu at least 0.")
    when = {"checkpoint_every", "checkpoint_minutes"}
    if len(when & set(changes.get("training", {}))) == 1:  # whoever counts updates wants no clock, and the reverse
        whole["training"] |= dict.fromkeys(when - set(changes["training"]), 0)
    whole["training"]["keep"] = max(whole["training"]["keep"], whole["average"])
    TransformerConfig.base(**whole["model"])
    TrainingConfig(**whole["training"])
    return whole


# %%
#| export
def _hints(kind: type) -> dict[str, Any]:
    """The fields of a configuration that a file may set, with their types."""
    ours = {"src_vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id", "device", "progress"}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in ours}


# %%
#| export
def _check_fields(where: str, given: Any, hints: Mapping[str, Any]) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {str(given)[:40]!r}; give a JSON object.")
    for name, value in given.items():
        if name not in hints:
            raise ValueError(f"{where} has no field {name!r}; the fields are {', '.join(hints)}.")
        fits = isinstance(value, hints[name]) or (isinstance(value, int) and isinstance(0.0, hints[name]))
        fits = fits and (not isinstance(value, bool) or hints[name] is bool)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            kind = getattr(hints[name], "__name__", str(hints[name]))
            raise ValueError(f"{where} has {name}={json.dumps(value)[:40]}, which is no {kind}.")


# %%
#| export
def _read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file; of a run's description, its configuration."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is neither {', '.join(CONFIGURATIONS)} nor a file; see what --show prints.")
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); write it again, for instance with --show.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object; write it again, for instance with --show.")
    return content["configuration"] if isinstance(content.get("configuration"), dict) else content


# %% [markdown]
# ## Commands and their help


# %%
#| export
def make_parser() -> argparse.ArgumentParser:
    """The commands, their options and their help.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser(
        prog="transformer",
        description='The Transformer of "Attention Is All You Need", from the book\'s own notebooks.',
        epilog="Try first:  echo 'The dog sees the old house.' | transformer translate",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for add in (_add_prepare, _add_train, _add_average, _add_translate, _add_evaluate, _add_demo):
        add(commands)
    return parser


# %%
#| export
def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, description: str, *examples: str
) -> Callable[..., Any]:
    """Add a command. Returns what adds options to it, each with its default in its help."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, 79),
        epilog="examples:\n" + "\n".join(f"  transformer {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, usage=parser.error)

    def option(*names: str, text: str, default: Any = None, shown: str = "", **how: Any) -> None:
        shown = shown or ("" if default is None or default is False else str(default))
        parser.add_argument(*names, help=f"{text} (default: {shown})" if shown else text, default=default, **how)

    return option


# %% [markdown]
# One place turns errors into a sentence and an exit code. Translations go to standard output; everything else, the
# device's line included, goes to standard error, so that a pipe gets text alone.


# %%
#| export
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after the program's name; those of this process if None.

    Returns:
        The exit code: 0 if all went well, 1 if something could not be done, 130 if interrupted, 143 if terminated, 141
        if whoever read the output has stopped. Wrong usage exits with 2.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = make_parser().parse_args(arguments)
    options.words = arguments
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("transformer").setLevel(logging.INFO)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as with `| head`; Python flushes once more at its end, and must find somewhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        _complain(options, _sentence(error))
        return 1
    except KeyboardInterrupt as error:
        stopped = isinstance(error, Stopped) and options.command == "train"
        _complain(options, f"{error}: run it again with --resume" if stopped else "interrupted")
        return 128 + getattr(error, "number", signal.SIGINT)


# %%
#| export
def _complain(options: argparse.Namespace, message: str) -> None:
    """Say it once on each machine, however many processes there are."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"transformer {options.command}: {message}", file=sys.stderr)


# %%
#| export
def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}."
    return str(error)


# %% [markdown]
# ## `transformer prepare`
#
# From text to arrays, once ([A2a](A2a_from_text_to_arrays.py)).


# %%
#| export
def _add_prepare(commands: Any) -> None:
    option = _command(
        commands,
        "prepare",
        _prepare,
        "clean a corpus, learn its vocabulary, encode it",
        "Clean parallel text, learn one vocabulary for both languages, and write everything that training needs into "
        "a folder. Text is UTF-8, a sentence a line; line n of one file translates line n of the other. What is "
        "dropped from the training text is counted; dev and test text stays as it is.",
        "prepare --corpus embedded --out data/embedded",
        "prepare --corpus wmt14-en-de --out data/wmt14   (downloads 1.6 GB)",
        "prepare --train a.en a.de --dev b.en b.de --test c.en c.de --out data/mine",
    )
    files = {"nargs": 2, "metavar": ("SRC", "TGT")}
    option("--corpus", metavar="NAME", text="embedded, multi30k, multi30k-en-fr, wmt14-en-de or wmt14-en-fr")
    option("--train", text="two files to train on, plain or .gz", **files)
    option("--dev", text="two files to watch the training by", **files)
    option("--test", text="two files to report scores on", **files)
    option("--languages", nargs=2, metavar=("SRC", "TGT"), default=["en", "de"], shown="en de", text="of your files")
    option("--out", metavar="FOLDER", required=True, text="where the prepared corpus shall be")
    option("--vocab-size", type=_positive, metavar="N", shown="what suits the corpus", text="pieces of the vocabulary")
    usual = Cleaning()
    option("--max-words", type=_positive, metavar="N", default=usual.max_words, text="most words of a side")
    option("--max-pieces", type=_positive, metavar="N", default=usual.max_pieces, text="most pieces of a side")
    option(
        "--max-ratio",
        type=float,
        metavar="R",
        default=usual.max_ratio,
        text="most words of a side for one of the other",
    )
    option("--keep-duplicates", action="store_true", text="keep pairs that come again")


# %%
#| export
def _prepare(options: argparse.Namespace) -> int:
    if bool(options.corpus) == bool(options.train) or (options.corpus and (options.dev or options.test)):
        options.usage("give either --corpus, or --train with --dev and --test if there are any")
    cleaning = Cleaning(
        options.max_words, options.max_ratio, options.max_pieces, duplicates=not options.keep_duplicates
    )
    corpus = options.corpus
    if options.train:
        name = Path(options.train[0]).name.partition(".")[0]
        source, target = options.languages
        corpus = files_corpus(name, source, target, options.train, options.dev, options.test)
    print(prepare(corpus, options.out, options.vocab_size, cleaning).summary())
    return 0


# %% [markdown]
# ## `transformer train`
#
# `transformer train --data FOLDER --config base --run FOLDER` is all that one GPU needs. With `torchrun` the same line uses
# many. Whatever kills it, the same line with `--resume` goes on.


# %%
#| export
def _add_train(commands: Any) -> None:
    option = _command(
        commands,
        "train",
        _train,
        "train a model on a prepared corpus",
        "Train a model as the paper does, with checkpoints, and average the last of them into the model that translate "
        "and evaluate read. The run's folder holds everything that made it, and can be moved. A run that was stopped, "
        "by whatever, goes on with --resume. Started by torchrun it uses all devices; the number of tokens per update "
        "stays the same.",
        "train --data data/embedded --config tiny --run runs/first",
        "train --data data/wmt14 --config base --run runs/base",
        "train --run runs/base --resume",
        "train --config big --show > my.json   (edit it, then: --config my.json)",
    )
    option("--data", metavar="FOLDER", text="what prepare wrote")
    option("--run", metavar="FOLDER", dest="folder", text="where checkpoints, log and model go")
    option("--config", metavar="C", shown="base", text="base, big, small, tiny, or a JSON file as --show prints it")
    option("--resume", action="store_true", text="go on from the newest checkpoint, if there is one")
    option("--show", action="store_true", text="print the configuration as JSON, and do nothing else")
    option("--device", metavar="D", default="auto", text="auto, cpu, cuda or mps")
    presets = {name: make_configuration(name) for name in CONFIGURATIONS}
    for name, (section, kind, metavar, text) in _SETTINGS.items():
        field = name.replace("-", "_")
        values = {preset: (whole[section] if section != "run" else whole)[field] for preset, whole in presets.items()}
        same = len(set(values.values())) == 1
        shown = str(values["base"]) if same else ", ".join(f"{preset} {value}" for preset, value in values.items())
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind, "metavar": metavar}
        option(f"--{name}", shown=shown.replace("None", "none").replace("False", "no"), text=text, **how)


# %%
#| export
def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


# %%
#| export
def _positive(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


# %%
#| export
# Options of `train`: where in the configuration, how to read it, and what to say of it.
_SETTINGS: dict[str, tuple[str, Callable[[str], Any], str, str]] = {
    "steps": ("training", _positive, "N", "updates to train for"),
    "warmup-steps": ("training", _positive, "N", "updates over which the learning rate rises"),
    "max-tokens": ("run", _positive, "N", "source, and target, tokens of an update, padding included"),
    "accumulate": ("training", _positive, "N", "parts to cut an update into, for less memory"),
    "dropout": ("model", float, "P", "P_drop"),
    "label-smoothing": ("training", float, "E", "epsilon_ls"),
    "clip-norm": ("training", float, "X", "largest norm of the gradient"),
    "seed": ("training", _count, "N", "of the weights, the order of the batches, and dropout"),
    "precision": ("training", str, "P", "auto, float32, bfloat16 or float16"),
    "compile": ("training", bool, "", "let torch compile the model, on GPUs where it pays"),
    "log-every": ("training", _positive, "N", "updates between two lines of log.jsonl"),
    "evaluate-every": ("training", _count, "N", "updates between two scores on dev; 0: at the end only"),
    "evaluate-bleu": ("run", _count, "N", "with them, BLEU of the first N lines of dev, decoded greedily"),
    "checkpoint-every": ("training", _count, "N", "updates between two checkpoints; 0: by the clock"),
    "checkpoint-minutes": ("training", float, "M", "minutes between two checkpoints; 0: by the count"),
    "keep": ("training", _positive, "N", "checkpoints that stay, at least those averaged"),
    "average": ("run", _positive, "N", "checkpoints to average at the end, the last ones"),
}
# What may change when a run is resumed: none of it changes what an update does.
_FREE = {
    "steps", "accumulate", "precision", "compile", "log_every", "evaluate_every", "evaluate_bleu", "checkpoint_every",
    "checkpoint_minutes", "keep", "average",
}  # fmt: skip


# %%
#| export
def _train(options: argparse.Namespace) -> int:
    changes: dict[str, dict[str, Any]] = {"model": {}, "training": {}, "run": {}}
    for name, (section, *_) in _SETTINGS.items():
        field = name.replace("-", "_")
        if getattr(options, field) is not None:
            changes[section][field] = getattr(options, field)
    if options.show:
        print(json.dumps(make_configuration(options.config or "base", changes), indent=2))
        return 0
    if not options.folder or not (options.data or options.resume):
        options.usage("give --data and --run")
    join_processes()
    if rank():
        logging.getLogger("transformer").setLevel(logging.WARNING)
    try:
        return _run(options, changes)
    finally:
        leave_processes()


# %%
#| export
def _run(options: argparse.Namespace, changes: dict[str, dict[str, Any]]) -> int:
    run = Path(options.folder)
    about, configuration = _about(run, options, changes)
    prepared = Prepared.load(about["data"]["folder"])
    _check_data(about["data"], prepared)
    size = len(prepared.tokenizer)
    torch.manual_seed(configuration["training"]["seed"])
    model = Transformer(TransformerConfig(size, size, **configuration["model"]))
    batches = TokenBatches(prepared.train, configuration["max_tokens"], configuration["training"]["seed"])
    training = TrainingConfig(**configuration["training"], device=options.device)
    device = choose_device(options.device)
    evaluate = _make_evaluate(prepared, configuration)
    gather_from_ranks([0])  # nobody writes before all have looked
    if not rank():
        run.mkdir(parents=True, exist_ok=True)
        write_atomically(run / TOKENIZER_FILE, prepared.tokenizer.model)
        _write_json(run / RUN_FILE, about)
        print(f"{count_parameters(model):,} parameters, {len(prepared.train):,} pairs, {training.steps:,} updates")
    records = train(model, batches, training, evaluate, run, resume=options.resume)
    gather_from_ranks([0])  # the last checkpoint is written
    translator, names = _averaged(run, configuration["average"])
    translator.model.to(device)
    scores = evaluate(translator.model) if evaluate else {}
    if not rank():
        translator.save(run, averaged=names, scores=scores)
        peak = measure_peak(str(device), pick_precision(training.precision, device)) * world_size()
        ledger = _ledger(records, peak)
        memory = _peak_memory(device)
        result = {
            "ended": _now(),
            "averaged": names,
            "scores": scores,
            "ledger": ledger.to_dict(),
            "peak_memory_bytes": memory,
        }
        _write_json(run / RUN_FILE, {**about, "result": result})
        print(f"{ledger}; {memory / 2**30:.2f} GiB at most")
        print(f"{run}: mean of {len(names)} checkpoints{''.join(f', {k} {v:.4g}' for k, v in scores.items())}")
    return 0


# %% [markdown]
# A run's description, `run.json`, is written before the first update: what the configuration is, what the data was made
# of, and, for each start, when, where and with which versions. A resumed run must have the same configuration, but for
# what changes no update.


# %%
#| export
def _about(
    run: Path, options: argparse.Namespace, changes: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What run.json shall hold, and the configuration in it."""
    old: dict[str, Any] = {}
    if (run / RUN_FILE).is_file():
        if not options.resume:
            raise FileExistsError(
                f"{run} holds a run already; continue it with --resume, or give --run another folder."
            )
        try:
            old = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))
            old["configuration"], old["data"]["folder"], old["starts"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{run / RUN_FILE} is damaged ({error!r}); begin another run.") from error
    elif run.is_dir() and any(run.iterdir()) and not options.resume:
        raise FileExistsError(f"{run} exists and is no run; give --run a folder that is empty or not there.")
    configuration = make_configuration(old.get("configuration") or options.config or "base", changes)
    if old:
        _check_same(run, old["configuration"], configuration)
        if options.config:
            _check_same(run, old["configuration"], make_configuration(options.config, changes))
    elif not options.data:
        raise FileNotFoundError(f"{run} holds no run to resume; give --data to begin one.")
    data = dict(old.get("data", {}))
    if options.data:
        data["folder"] = os.path.abspath(options.data)
    start = {
        "date": _now(),
        "command": ["transformer", *options.words],
        "machine": _machine(),
        "processes": world_size(),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "transformer": __version__,
        },
        "commit": _commit(),
    }
    about = {"format": 1, "configuration": configuration, "data": data, "starts": [*old.get("starts", []), start]}
    return about, configuration


# %%
#| export
def _check_same(run: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    for before, after in ((old["model"], new["model"]), (old["training"], new["training"]), (old, new)):
        for name, value in before.items():
            if name not in _FREE | {"model", "training"} and after[name] != value:
                raise ValueError(
                    f"the run in {run} has {name}={value}, not {after[name]}; resume it with that, or begin another."
                )


# %%
#| export
def _check_data(data: dict[str, Any], prepared: Prepared) -> None:
    """Enter what the data is; if that is known, it must be the same."""
    found = {
        "tokenizer_sha256": hashlib.sha256(prepared.tokenizer.model).hexdigest(),
        **{name: prepared.description[name] for name in ("settings", "counts", "splits")},
    }
    for name, value in found.items():
        if data.setdefault(name, value) != value:
            raise ValueError(f"{prepared.folder} is not what the run began with, by its {name}; give --data the same.")


# %%
#| export
def _make_evaluate(
    prepared: Prepared, configuration: dict[str, Any]
) -> Callable[[Transformer], dict[str, float]] | None:
    """Perplexity, and BLEU if asked for, on dev."""
    if prepared.dev is None:
        return None
    longest = 1 + int(max(prepared.dev.src_lengths.max(), prepared.dev.tgt_lengths.max()))
    batches = list(TokenBatches(prepared.dev, max(longest, 4000)).epoch(0))
    pairs = prepared.text("dev")[: configuration["evaluate_bleu"]]
    if pairs:
        bleu(hypotheses=["a"], references=["a"])  # if sacreBLEU is missing, say so now

    def evaluate(model: Transformer) -> dict[str, float]:
        scores = {"dev_perplexity": perplexity(model, batches)}
        if pairs:
            sources = [source for source, _ in share_over_ranks(pairs)]
            mine = Translator(model, prepared.tokenizer).translate(sources, "empty", beam_size=1)
            outputs = gather_from_ranks(mine)
            scores["dev_bleu"] = bleu(hypotheses=outputs, references=[target for _, target in pairs]).value
        return scores

    return evaluate


# %%
#| export
def _ledger(records: Sequence[Record], peak: float) -> Ledger:
    ledger, before = Ledger(peak=peak), 0
    for record in records:
        ledger.add(record.flops, record.source_tokens, record.target_tokens, record.seconds, record.step - before)
        before = record.step
    return ledger


# %%
#| export
def _peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: on the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# %%
#| export
def _machine() -> str:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([platform.platform(), f"{os.cpu_count()} CPUs", *gpus])


# %%
#| export
def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# %%
#| export
def _commit() -> str | None:
    """The commit of this package, if it lies in its repository."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "notebooks").is_dir():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# %%
#| export
def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(
        path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    )


# %% [markdown]
# ## `transformer average`


# %%
#| export
def _add_average(commands: Any) -> None:
    option = _command(
        commands,
        "average",
        _average,
        "make a run's last checkpoints into one model",
        "Average the last checkpoints of a run into the model that translate and evaluate read. Training does so at its "
        "end; this is for runs that have not ended, or for another number.",
        "average --run runs/base",
        "average --run runs/base --last 3 --out runs/base-3",
    )
    option("--run", metavar="FOLDER", dest="folder", required=True, text="the run")
    option("--last", type=_positive, metavar="N", shown="what the run was told, or 5", text="how many checkpoints")
    option("--out", metavar="FOLDER", shown="the run", text="where the model goes")


# %%
#| export
def _average(options: argparse.Namespace) -> int:
    run, out = Path(options.folder), Path(options.out or options.folder)
    last = options.last
    if last is None:
        known = _read_json(run / RUN_FILE) if (run / RUN_FILE).is_file() else {}
        last = make_configuration(known)["average"]
    elif last > len(list_checkpoints(run)) > 0:
        raise ValueError(f"{run} has {len(list_checkpoints(run))} checkpoints, not {last}; give a smaller --last.")
    translator, names = _averaged(run, last)
    translator.save(out, averaged=names)
    print(f"{out}: mean of {', '.join(names)}")
    return 0


# %%
#| export
def _averaged(run: Path, last: int) -> tuple[Translator, list[str]]:
    """The mean of a run's last checkpoints, with their names."""
    checkpoints = list_checkpoints(run)[-last:]
    if not checkpoints or not (run / TOKENIZER_FILE).is_file():
        lacking = "tokenizer.model" if checkpoints else "checkpoints"
        raise FileNotFoundError(f"{run} has no {lacking}; give the folder of a training run.")
    translator = Translator(average_checkpoints(checkpoints), Tokenizer.load(run / TOKENIZER_FILE))
    return translator, [path.name for path in checkpoints]


# %% [markdown]
# ## `transformer translate`
#
# One line in, one line out, in order. A line that cannot be translated gives an empty line, so that line *n* of the output
# still belongs to line *n* of the input. A line ends at a newline and nowhere else: Python's text streams would also end
# one at a lone carriage return, and `str.splitlines` at eight more characters, some of which stand inside sentences of
# real corpora.


# %%
#| export
def _add_search(option: Callable[..., Any]) -> None:
    shown = "the model that ships with the book, for its embedded corpus"
    option("--model", metavar="FOLDER", shown=shown, text="a run that has ended, or a folder with a trained model")
    option("--beam-size", type=_positive, metavar="N", default=4, text="hypotheses to keep; 1 decodes greedily, faster")
    option("--alpha", type=float, metavar="A", default=0.6, text="of the length penalty")
    option(
        "--batch-tokens", type=_positive, metavar="N", default=4000, text="source tokens at a time, and most of a line"
    )
    option("--device", metavar="D", default="auto", text="auto, cpu, cuda or mps")


# %%
#| export
def _add_translate(commands: Any) -> None:
    option = _command(
        commands,
        "translate",
        _translate,
        "translate standard input, line by line",
        "Read lines from standard input and write one translation per line to standard output. A line that cannot be "
        "translated gives an empty line, a message with its number on standard error, and exit code 1.",
        "translate < english.txt > german.txt",
        "translate --model runs/base --beam-size 1 < english.txt",
        "translate --model runs/base --n-best 4 < english.txt",
    )
    _add_search(option)
    text = "write the N best instead, each with number of the line, score and translation, tabs between"
    option("--n-best", type=_positive, metavar="N", text=text)


# %%
#| export
def _load(options: argparse.Namespace) -> Translator:
    translator = Translator.from_pretrained(options.model, "cpu") if options.model else load_toy_translator()
    translator.model.to(choose_device(options.device))
    return translator


# %%
#| export
def _translate(options: argparse.Namespace) -> int:
    translator = _load(options)
    lines, again = itertools.tee(_lines(sys.stdin.buffer))
    size = 1 if sys.stdin.buffer.isatty() else 1000
    failures = 0
    for number, (found, line) in enumerate(zip(_found(translator, lines, size, options), again, strict=True), 1):
        for text, score in found:
            about = f"{number}\t{score:.4f}\t" if options.n_best else ""
            sys.stdout.buffer.write(about.encode() + text.replace("\n", " ").encode("utf-8") + b"\n")
        if not found[0][0]:
            try:
                translator.translate([line], beam_size=1, batch_tokens=options.batch_tokens)
            except ValueError as error:  # that is why it is empty
                _complain(options, str(error).replace("line 1 ", f"line {number} ", 1))
                failures += 1
        if number % size == 0:
            sys.stdout.buffer.flush()
    return 1 if failures else 0


# %%
#| export
def _found(
    translator: Translator, lines: Iterator[str], size: int, options: argparse.Namespace
) -> Iterator[list[tuple[str, float]]]:
    """Each line's translations with their scores, the best first."""
    how: dict[str, Any] = {name: getattr(options, name) for name in ("beam_size", "alpha", "batch_tokens")}
    if not options.n_best:
        yield from ([(text, 0.0)] for text in translator.stream(lines, "empty", chunk=size, **how))
    while part := list(itertools.islice(lines, size)):
        yield from translator.n_best(part, options.n_best, "empty", **how)


# %%
#| export
def _lines(stream: BinaryIO) -> Iterator[str]:
    """Lines as text. What is not UTF-8 becomes lone surrogates, which the translator refuses."""
    for number, line in enumerate(
        stream
    ):  # bytes end a line at "\n" alone; a text stream would, here and there, at others
        if not number:
            line = line.removeprefix(codecs.BOM_UTF8)
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")


# %% [markdown]
# ## `transformer evaluate`


# %%
#| export
def _add_evaluate(commands: Any) -> None:
    option = _command(
        commands,
        "evaluate",
        _evaluate,
        "translate a test set and score it",
        "Translate sentences whose translation is known, and compare: BLEU as sacreBLEU computes it, with its signature, "
        "chrF, and, if asked for, BLEU as the paper's authors computed it, which compares with nothing but itself.",
        "evaluate --model runs/base --data data/wmt14 --paper",
        "evaluate --model runs/base --source test.en --reference test.de --save test.out",
    )
    option("--data", metavar="FOLDER", text="what prepare wrote")
    option("--split", metavar="S", default="test", text="test or dev")
    option("--source", metavar="FILE", text="sentences, in place of --data")
    option("--reference", metavar="FILE", text="their translations, line by line")
    option("--limit", type=_positive, metavar="N", shown="all", text="score the first N lines alone")
    option("--paper", action="store_true", text="score as the authors did, too")
    option("--language", metavar="L", default="de", text="of the translations, for --paper")
    option("--save", metavar="FILE", text="write the translations into a file")
    option("--json", action="store_true", text="print one JSON object")
    _add_search(option)


# %%
#| export
def _evaluate(options: argparse.Namespace) -> int:
    if bool(options.data) == bool(options.source) or bool(options.source) != bool(options.reference):
        options.usage("give either --data, or --source and --reference")
    pairs = Prepared.load(options.data).text(options.split) if options.data else None
    pairs = (list(read_pairs(options.source, options.reference)) if pairs is None else pairs)[: options.limit]
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    metrics: dict[str, Callable[..., Score]] = {"BLEU": bleu, "chrF": chrf}
    if options.paper:
        metrics["BLEU as the authors"] = functools.partial(paper_bleu, language=options.language)
    for metric in metrics.values():  # what is missing is missed before the work, not after it
        metric(hypotheses=references[:1], references=references[:1])
    translator = _load(options)
    begun = time.perf_counter()
    how: dict[str, Any] = {name: getattr(options, name) for name in ("beam_size", "alpha", "batch_tokens")}
    outputs = translator.translate(sources, "empty", **how)
    seconds = time.perf_counter() - begun
    if options.save:
        text = "".join(output.replace("\n", " ") + "\n" for output in outputs)
        write_atomically(options.save, text.encode("utf-8"))
    scores = {name: metric(hypotheses=outputs, references=references) for name, metric in metrics.items()}
    if options.json:
        about = {**how, "lines": len(pairs), "seconds": round(seconds, 3)}
        print(json.dumps({**about, "scores": {name: score._asdict() for name, score in scores.items()}}))
    else:
        for name, score in scores.items():
            print(f"{name} {score}")
        print(
            f"{len(pairs):,} lines, {len(pairs) / seconds:.1f} a second, beam {options.beam_size}, alpha {options.alpha}"
        )
    return 0


# %% [markdown]
# ## `transformer demo`
#
# The copy task of [Section 5.2](05_2_hardware_and_schedule.py), at a size that two cores finish in under a minute. As in
# Section 6.1, the model is the mean of the last five checkpoints: without it the last updates decide too much.


# %%
#| export
def _add_demo(commands: Any) -> None:
    option = _command(
        commands,
        "demo",
        _demo,
        "train a small model to copy sequences, in under a minute",
        "Train a small model to copy sequences of numbers, then let it copy some it has never seen. It shows that "
        "everything works on this machine.",
        "demo",
        "demo --steps 100 --device cpu",
    )
    option("--steps", type=_positive, metavar="N", default=500, text="updates to train for")
    option("--device", metavar="D", default="auto", text="auto, cpu, cuda or mps")


# %%
#| export
def _demo(options: argparse.Namespace) -> int:
    config = TransformerConfig(32, 32, d_model=64, n_layers=1, n_heads=4, d_ff=256, dropout=0.0, norm_order="pre")
    torch.manual_seed(0)
    model = Transformer(config)
    print(f"A Transformer of {count_parameters(model):,} parameters learns to copy sequences of 4 to 12 numbers.")
    batches = TokenBatches(copy_task(20_000, seed=1), max_tokens=1600)
    training = TrainingConfig(
        options.steps, max(1, options.steps // 3), checkpoint_every=10, keep=5, device=options.device
    )
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as run:
        records = train(model, batches, training, run=run)
        device = next(model.parameters()).device
        model = average_checkpoints(list_checkpoints(run)).to(device)
    print(f"loss {records[-1].loss:.3f} after {options.steps} updates, {time.perf_counter() - begun:.0f} s.")
    unseen = copy_task(200, seed=2)
    copies = greedy_decode(model, make_batch(unseen).src.to(device))
    for (source, _), copy in list(zip(unseen, copies, strict=True))[:3]:
        print(f"  given {source}\n  wrote {copy}")
    right = sum(copy == source for (source, _), copy in zip(unseen, copies, strict=True))
    print(f"{right} of {len(unseen)} unseen sequences copied exactly.")
    return 0


# %% [markdown]
# ## See it

# %%
print(make_parser().format_help())


# %%
def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "transformer", *arguments]
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)


done = run("translate", text="The animal did not cross the street because it was too tired.\nThe dog sleeps.\n")
print(done.stdout)
assert done.returncode == 0 and len(done.stdout.splitlines()) == 2

# %% [markdown]
# ## Check it: as many lines out as in

# %%
done = run("translate", text="\nThe dog sleeps.\n" + "a" * 10_000 + "\nThe cat sleeps.")
print([line[:30] for line in done.stdout.split("\n")])
print(done.stderr.strip().splitlines()[-1], "| exit code", done.returncode)
lines = done.stdout.split("\n")
assert len(lines) == 5 and lines[0] == lines[2] == lines[4] == "" and lines[1] and lines[3]
assert done.returncode == 1 and "line 3 " in done.stderr

# %% [markdown]
# ## Check it: errors are one sentence

# %%
done = run("translate", "--model", "no/such/folder")
print(done.stderr.strip())
assert done.returncode == 1 and "no/such/folder" in done.stderr and "Traceback" not in done.stderr
assert run("translat").returncode == 2 and run("demo", "--steps", "0").returncode == 2

# %% [markdown]
# ## What we now know
#
# * `transformer demo` trains, `transformer translate` translates; both say what they do with `--help`.
# * The output has one line per line of input, whatever the input.
# * The exit code is 0, or 1 with a sentence on standard error, or 2 for wrong usage.

# %% [markdown]
# ## Exercises
#
# 1. *Predict, then run.* What does `printf 'The dog sleeps.' | transformer translate` print, without a final newline?
# 2. What does the shipped model make of a sentence outside its grammar? Try `I love music.` and say why.
# 3. Add `transformer tokens`, which prints the pieces of each line. Which cells change?

# %% tags=["hide-cell"]
# Exercise 1: the last line counts although no newline ends it.
done = run("translate", text="The dog sleeps.")
print(repr(done.stdout))
assert done.stdout.count("\n") == 1

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.make_parser().format_help() == make_parser().format_help()
