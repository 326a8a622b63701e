# %% [markdown]
# # A4 The Command Line
#
# `transformer` on the command line does what the module does, for people who have text in files and not in Python. Five
# commands lead from two files of text to a score; every one has a help page, and every error is one sentence.

# %%
#| default_exp cli

# %%
import contextlib
import io
import shlex
import subprocess

import transformer

transformer.check_version("0.1")


# %%
#| export
import argparse
import codecs
import functools
import inspect
import itertools
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import transformer

# %% [markdown]
# ## Commands and their help
#
# A command is a function. Its docstring is its help page, so that the two cannot differ, and its defaults are those of the
# presets. `import transformer` alone loads nothing: each name of the module is loaded when a command first asks for it, so
# `transformer --help` does not wait for torch.


# %%
#| export
_Option = Callable[..., None]


# %%
#| export
def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The commands, their options and their help.

    Args:
        command: Give options to this one alone. Their defaults need the module, and the module needs torch, which takes
            seconds to load; the list of the commands needs neither.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser(
        prog="transformer",
        description='The Transformer of "Attention Is All You Need", from the book\'s own notebooks.',
        epilog="Try first:  echo 'The dog sees the old house.' | transformer translate",
    )
    parser.add_argument("-V", "--version", action="version", version=f"%(prog)s {transformer.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for run, add_options in (
        (_prepare, _prepare_options),
        (_train, _train_options),
        (_average, _average_options),
        (_translate, _translate_options),
        (_evaluate, _evaluate_options),
        (_attention, _attention_options),
        (_demo, _demo_options),
    ):
        option = _add(commands, run)
        if command in (None, run.__name__.strip("_")):
            add_options(option)
    return parser


# %%
#| export
def _add(commands: Any, run: Callable[[argparse.Namespace], int]) -> _Option:
    """Add the command of a function. Returns what adds an option to it, its default in its help."""
    summary, _, more = (inspect.getdoc(run) or "").partition("\n\n")
    description, _, examples = more.partition("\n\nExamples:\n")
    parser = commands.add_parser(
        run.__name__.strip("_"),
        help=summary[:1].lower() + summary[1:].rstrip("."),
        description=f"{summary}\n\n{description}",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, usage=parser.error)

    def option(name: str, text: str, default: Any = None, *, shown: str = "", **how: Any) -> None:
        shown = shown or ("" if default is None else str(default))
        parser.add_argument(name, help=f"{text} (default: {shown})" if shown else text, default=default, **how)

    return option


# %%
#| export
def _positive(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


# %%
#| export
def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


# %%
#| export
_DEVICE = {"text": "auto, cpu, cuda or mps", "default": "auto", "metavar": "D"}
_N: dict[str, Any] = {"type": _positive, "metavar": "N"}
_FILES: dict[str, Any] = {"nargs": 2, "metavar": ("SRC", "TGT")}

# %% [markdown]
# One place turns errors into a sentence and an exit code. What was asked for, translations or scores or a
# summary, goes to standard output; the device's line and all complaints go to standard error, so that a pipe gets text alone.


# %%
#| export
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after the program's name; those of this process if None.

    Returns:
        The exit code, 0 if all went well, 1 if something could not be done, 130 if interrupted, 143 if terminated, 141
        if whoever read the output has stopped. Wrong usage exits with 2.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in words if not word.startswith("-")), "")
    try:
        options = make_parser(command).parse_args(words)
        options.words = ["transformer", *words]
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger("transformer").setLevel(logging.INFO)
        _check_device(getattr(options, "device", "auto"))
        code = int(options.run(options))
        if sys.stdout:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # as with `| head`; Python flushes once more at its end, and must find somewhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        _complain(command, place + reason)
        return 1
    except KeyboardInterrupt as error:
        number = getattr(error, "number", 0)  # of the signal that stopped a training
        stopped = number and command == "train"
        _complain(command, f"{error}: run it again with --resume" if stopped else "interrupted")
        return 128 + (number or signal.SIGINT)
    except (MemoryError, RuntimeError) as error:
        if type(error).__name__ not in ("MemoryError", "OutOfMemoryError"):  # torch has one for GPUs
            raise
        _complain(command, "there is not enough memory; give smaller batches, or see whether a file is far too large")
        return 1


# %%
#| export
def _check_device(name: str) -> None:
    """Torch knows more devices than a model can translate on: its "meta", for instance, computes nothing."""
    if not re.fullmatch(r"auto|cpu(:0)?|mps(:0)?|cuda(:\d{1,3})?", name):
        raise ValueError(f'device {name[:40]!r} is unknown; use "auto", "cpu", "cuda" or "mps".')


# %%
#| export
def _complain(command: str, message: str) -> None:
    """Say it once on each machine, however many processes there are."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"transformer {command}: {message}", file=sys.stderr)


# %% [markdown]
# ## `transformer prepare`
#
# From text to arrays, once ([A2a](A2a_from_text_to_arrays.py)).


# %%
#| export
def _prepare(options: argparse.Namespace) -> int:
    """Clean a corpus, learn its vocabulary, and encode it.

    Writes everything that training needs into a folder. Text is UTF-8, a sentence
    a line; line n of one file translates line n of the other. What is dropped from
    the training text is counted. Dev and test text stays as it is.

    Examples:
      transformer prepare --corpus embedded --out data/embedded
      transformer prepare --corpus wmt14-en-de --out data/wmt14
      transformer prepare --train a.en a.de --dev b.en b.de --out data/mine
    """
    if bool(options.corpus) == bool(options.train) or (options.corpus and (options.dev or options.test)):
        options.usage("give either --corpus, or --train with --dev and --test if there are any")
    corpus = options.corpus
    if options.train:
        name, (source, target) = Path(options.train[0]).name.partition(".")[0], options.languages
        corpus = transformer.files_corpus(name, source, target, options.train, options.dev, options.test)
    limits = options.max_words, options.max_ratio, options.max_pieces
    cleaning = transformer.Cleaning(*limits, duplicates=not options.keep_duplicates)
    print(transformer.prepare(corpus, options.out, options.vocab_size, cleaning).summary())
    return 0


# %%
#| export
def _prepare_options(option: _Option) -> None:
    option("--corpus", "embedded, multi30k, multi30k-en-fr, wmt14-en-de or wmt14-en-fr", metavar="NAME")
    option("--train", "in place of it, two files to train on, plain or .gz", **_FILES)
    option("--dev", "two files to watch the training by", **_FILES)
    option("--test", "two files to report scores on", **_FILES)
    option("--languages", "languages of these files", ["en", "de"], shown="en de", **_FILES)
    option("--out", "where the prepared corpus shall be", metavar="FOLDER", required=True)
    usual_sizes = "37000 for wmt14-en-de, 32000 for wmt14-en-fr, fewer for the others"
    option("--vocab-size", "pieces of the vocabulary", shown=usual_sizes, **_N)
    usual = transformer.Cleaning
    option("--max-words", "most words of a side", usual.max_words, **_N)
    option("--max-pieces", "most pieces of a side", usual.max_pieces, **_N)
    option("--max-ratio", "most words of a side for one of the other", usual.max_ratio, type=float, metavar="R")
    option("--keep-duplicates", "keep a pair that comes again", shown="drop it", action="store_true")


# %% [markdown]
# ## `transformer train`
#
# `transformer train --data FOLDER --config base --run FOLDER` is all that one GPU needs. With `torchrun` the same line uses
# many. Whatever stops it, `--resume` goes on. What it does stands in [A3a](A3a_runs.py). On a CPU, dropout draws and
# matrices are multiplied as [A6](A6_faster_on_a_cpu.py) says.


# %%
#| export
# The options that are fields of the configuration: how to read them, and what to say of them.
_SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "steps": (_positive, "updates to train for"),
    "warmup_steps": (_positive, "updates over which the learning rate rises"),
    "max_tokens": (_positive, "source, and target, tokens of an update, padding included"),
    "accumulate": (_positive, "parts to cut an update into, for less memory"),
    "dropout": (float, "P_drop"),
    "label_smoothing": (float, "epsilon_ls"),
    "clip_norm": (float, "largest norm of the gradient"),
    "seed": (_count, "of the weights, the order of the batches, and dropout"),
    "precision": (str, "auto, float32, bfloat16 or float16"),
    "compile": (bool, "let torch compile the model, on GPUs where it pays"),
    "log_every": (_positive, "updates between two lines of log.jsonl"),
    "evaluate_every": (_count, "updates between two scores on dev; 0: at the end only"),
    "evaluate_bleu": (_count, "lines of dev to translate for BLEU, too, greedily"),
    "checkpoint_every": (_count, "updates between two checkpoints; 0: none by the count"),
    "checkpoint_minutes": (float, "minutes between two checkpoints; 0: none by the clock; both 0: at the end only"),
    "keep": (_positive, "checkpoints that stay, at least those averaged"),
    "average": (_positive, "checkpoints to average at the end, the last ones"),
}


# %%
#| export
def _train(options: argparse.Namespace) -> int:
    """Train a model on a prepared corpus.

    Trains as the paper does, writes checkpoints, and averages the last of them
    into the model that translate and evaluate read. The run's folder holds
    everything that made it, and can be moved. A run that was stopped, by whatever,
    goes on with --resume. Under torchrun it uses all devices; an update has as many
    tokens as before.

    Examples:
      transformer train --data data/embedded --config tiny --run runs/first
      transformer train --data data/wmt14 --config base --run runs/base
      transformer train --run runs/base --resume
      transformer train --config big --show > my.json   # then: --config my.json
      torchrun --nproc-per-node 8 -m -- transformer train --data D --run R
    """
    changes = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    if options.show:
        print(json.dumps(transformer.make_configuration(options.config or "base", **changes), indent=2))
        return 0
    if not options.folder or not (options.data or options.resume):
        options.usage("give --data and --run, or --run and --resume")
    transformer.join_processes()
    try:
        if transformer.rank():
            logging.getLogger("transformer").setLevel(logging.WARNING)
        about = options.folder, options.data, options.config, options.resume, options.device, options.words
        result = transformer.train_run(*about, **changes)
        if not transformer.rank():
            print(f"{transformer.Ledger(**result['ledger'])}; {result['peak_memory_bytes'] / 2**30:.2f} GiB at most")
            scores = "".join(f", {name} {value:.2f}" for name, value in result["scores"].items())
            print(f"{options.folder}: mean of {len(result['averaged'])} checkpoints{scores}")
    finally:
        transformer.leave_processes()
    return 0


# %%
#| export
def _train_options(option: _Option) -> None:
    option("--data", "what prepare wrote", metavar="FOLDER")
    option("--run", "where checkpoints, log and model go", metavar="FOLDER", dest="folder")
    option("--config", "base, big, small, tiny, or a JSON file as --show prints it", shown="base", metavar="C")
    option("--resume", "go on from the newest checkpoint, if there is one", action="store_true")
    option("--show", "print the configuration as JSON, and do nothing else", action="store_true")
    option("--device", **_DEVICE)
    presets = {name: transformer.make_configuration(name) for name in transformer.CONFIGURATIONS}
    for name, (kind, text) in _SETTINGS.items():
        values = {preset: str(fields[name]) for preset, fields in presets.items()}
        same = len(set(values.values())) == 1
        shown = values["base"] if same else ", ".join(f"{preset} {value}" for preset, value in values.items())
        how: dict[str, Any] = {"type": kind, "metavar": "N" if kind in (_positive, _count) else "X"}
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else how
        option(f"--{name.replace('_', '-')}", text, shown=shown, **how)


# %% [markdown]
# ## `transformer average`


# %%
#| export
def _average(options: argparse.Namespace) -> int:
    """Make the mean of a run's last checkpoints its model.

    Training does so at its end. This is for a run that has not ended, or for
    another number of checkpoints.

    Examples:
      transformer average --run runs/base
      transformer average --run runs/base --last 3 --out runs/base-3
    """
    names = transformer.average_run(options.folder, options.last, options.out)
    print(f"{options.out or options.folder}: mean of {', '.join(names)}")
    return 0


# %%
#| export
def _average_options(option: _Option) -> None:
    option("--run", "the run", metavar="FOLDER", dest="folder", required=True)
    option("--last", "how many checkpoints", shown="what the run was told", **_N)
    option("--out", "where the model goes", shown="the run", metavar="FOLDER")


# %% [markdown]
# ## `transformer translate`
#
# One line in, one line out, in order. A line that cannot be translated gives an empty line, so that line *n* of the output
# still belongs to line *n* of the input. A line ends at a newline and nowhere else: Python's text streams would also end
# one at a lone carriage return, and `str.splitlines` at eight more characters, some of which stand inside sentences of
# real corpora. On a CPU, the model decodes as [A6](A6_faster_on_a_cpu.py) says.


# %%
#| export
def _translate(options: argparse.Namespace) -> int:
    """Translate standard input, line by line.

    Reads lines from standard input and writes one translation per line to standard
    output. A line that cannot be translated gives an empty line, a message with
    its number on standard error, and exit code 1.

    Examples:
      transformer translate < english.txt > german.txt
      transformer translate --model runs/base --beam-size 1 < english.txt
      transformer translate --model runs/base --n-best 4 < english.txt
    """
    if not sys.stdin or not sys.stdout:
        raise ValueError("standard input or output is closed; redirect them, for instance < english.txt > german.txt")
    translator = _load_to_translate(options)
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
                _complain(options.command, str(error).replace("line 1 ", f"line {number} ", 1))
                failures += 1
        if number % size == 0:
            sys.stdout.buffer.flush()
    return 1 if failures else 0


# %%
#| export
def _found(
    translator: "transformer.Translator", lines: Iterator[str], size: int, options: argparse.Namespace
) -> Iterator[list[tuple[str, float]]]:
    """Each line's translations with their scores, the best first."""
    if not options.n_best:
        yield from ([(text, 0.0)] for text in translator.stream(lines, "empty", size, **_search(options)))
    while part := list(itertools.islice(lines, size)):
        yield from translator.n_best(part, options.n_best, "empty", **_search(options))


# %%
#| export
def _lines(stream: BinaryIO) -> Iterator[str]:
    """Lines as text. What is not UTF-8 becomes lone surrogates, which the translator refuses."""
    mark = codecs.BOM_UTF8
    for line in stream:  # bytes end a line at "\n" alone; a text stream would, here and there, at others too
        yield line.removeprefix(mark).removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
        mark = b""  # only the very first is one


# %%
#| export
def _load(options: argparse.Namespace) -> "transformer.Translator":
    if options.model:
        translator = transformer.Translator.from_pretrained(options.model, "cpu")
    else:
        translator = transformer.load_toy_translator()
    translator.model.to(transformer.choose_device(options.device))
    return translator


def _load_to_translate(options: argparse.Namespace) -> "transformer.Translator":
    """On a CPU the same model, faster."""
    translator = _load(options)
    if next(translator.model.parameters()).device.type != "cpu":
        return translator
    return transformer.Translator(transformer.FastTransformer(translator.model), translator.tokenizer)


# %%
#| export
def _search(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("beam_size", "alpha", "batch_tokens")}


# %%
#| export
def _search_options(option: _Option) -> None:
    shown = "the model that ships with the book, for its embedded corpus"
    option("--model", "a run that has ended, or a folder with a trained model", shown=shown, metavar="FOLDER")
    option("--beam-size", "hypotheses to keep; 1 decodes greedily, faster", 4, **_N)
    option("--alpha", "of the length penalty", 0.6, type=float, metavar="A")
    option("--batch-tokens", "source tokens at a time, and most of a line", 4000, **_N)
    option("--device", **_DEVICE)


# %%
#| export
def _translate_options(option: _Option) -> None:
    _search_options(option)
    option("--n-best", "N translations a line, or one, empty; before each its line's number and score, with tabs", **_N)


# %% [markdown]
# ## `transformer evaluate`


# %%
#| export
def _evaluate(options: argparse.Namespace) -> int:
    """Translate a test set and score it.

    Translates sentences whose translation is known, and compares: BLEU as
    sacreBLEU computes it, with its signature, and chrF; with --paper, also BLEU as
    the paper's authors computed it, which compares with nothing but its own kind.

    Examples:
      transformer evaluate --model runs/base --data data/wmt14 --paper
      transformer evaluate --model runs/base --source test.en --reference test.de
    """
    if bool(options.data) == bool(options.source) or bool(options.source) != bool(options.reference):
        options.usage("give either --data, or --source and --reference")
    if options.data:
        pairs = transformer.Prepared.load(options.data).text(options.split)
    else:
        pairs = list(transformer.read_pairs(options.source, options.reference))
    sources, references = ([pair[side] for pair in pairs[: options.limit]] for side in (0, 1))
    metrics: dict[str, Callable[..., transformer.Score]] = {"BLEU": transformer.bleu, "chrF": transformer.chrf}
    if options.paper:
        metrics["BLEU as the authors"] = functools.partial(transformer.paper_bleu, language=options.language)
    for metric in metrics.values():  # what is missing is missed before the work
        metric(hypotheses=references[:1], references=references[:1])
    translator = _load_to_translate(options)
    begun = time.perf_counter()
    outputs = translator.translate(sources, "empty", **_search(options))
    seconds = time.perf_counter() - begun
    if options.save:
        text = "".join(output.replace("\n", " ") + "\n" for output in outputs)
        transformer.write_atomically(options.save, text.encode("utf-8"))
    scores = {name: metric(hypotheses=outputs, references=references) for name, metric in metrics.items()}
    if options.json:
        about = {"lines": len(sources), "seconds": round(seconds, 3), **_search(options)}
        print(json.dumps({**about, "scores": {name: score._asdict() for name, score in scores.items()}}))
    else:
        for name, score in scores.items():
            print(f"{name} {score}")
        speed = f"{len(sources) / seconds:.1f} a second"
        print(f"{len(sources):,} lines, {speed}, beam {options.beam_size}, alpha {options.alpha}")
    return 0


# %%
#| export
def _evaluate_options(option: _Option) -> None:
    option("--data", "what prepare wrote", metavar="FOLDER")
    option("--split", "of it: test, dev, or official, a part of newstest2014", "test", metavar="S")
    option("--source", "in place of it, a file of sentences", metavar="FILE")
    option("--reference", "and their translations, line by line", metavar="FILE")
    option("--limit", "score the first N lines", shown="all", **_N)
    option("--paper", "score as the authors did, too", action="store_true")
    option("--language", "of the translations, for --paper", "de", metavar="L")
    option("--save", "write the translations into a file", metavar="FILE")
    option("--json", "print one JSON object", action="store_true")
    _search_options(option)


# %% [markdown]
# ## `transformer attention`
#
# The charts of [Attention Visualizations](08_attention_visualizations.py), for a model and a sentence of one's own.


# %%
#| export
def _attention(options: argparse.Namespace) -> int:
    """Write a page that shows where each head looks.

    Reads one sentence, translates it greedily unless --target has a translation,
    and draws the weights of every layer and head: encoder self-attention, decoder
    self-attention, and encoder-decoder attention. The page is one file and opens
    without a network.

    Examples:
      transformer attention "The dog sees the old house."
      transformer attention runs/base "The dog sleeps." --out dog.html
      transformer attention runs/base "A dog sleeps." --target "Ein Hund schläft."
    """
    out = Path(options.out)
    if not options.model and os.path.isdir(options.sentence):  # no name is too long for it
        options.usage(f"{options.sentence} is a folder; give the sentence, too")
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"{out} cannot be written; give --out a file, in a folder that exists")
    seen = transformer.look_at(_load(options), options.sentence, options.target)
    transformer.write_atomically(out, transformer.attention_page(seen, options.sentence).encode("utf-8"))
    layers, heads = seen.cross.shape[:2]
    print(f"{out}: {len(seen.source)} source tokens, {len(seen.written)} target tokens, {layers} layers, {heads} heads")
    return 0


# %%
#| export
def _attention_options(option: _Option) -> None:
    shown = "the model that ships with the book"
    option("model", "a run that has ended, or a folder with a trained model", nargs="?", shown=shown, metavar="RUN")
    option("sentence", "a source sentence, in quotation marks")
    option("--target", "its translation", shown="the model's own", metavar="TEXT")
    option("--out", "the page", "attention.html", metavar="FILE")
    option("--device", **_DEVICE)


# %% [markdown]
# ## `transformer demo`
#
# The copy task of [Section 5.2](05_2_hardware_and_schedule.py), at a size that two cores finish in under a minute. As in
# Section 6.1, the model is the mean of the last five checkpoints: without it the last updates decide too much.


# %%
#| export
def _demo(options: argparse.Namespace) -> int:
    """Train a small model to copy sequences, in under a minute.

    It learns to copy sequences of numbers, and then copies some that it has never
    seen. That shows that everything works on this machine.

    Examples:
      transformer demo
      transformer demo --steps 100 --device cpu
    """
    import torch

    config = transformer.TransformerConfig(
        32, 32, d_model=64, n_layers=1, n_heads=4, d_ff=256, dropout=0.0, norm_order="pre"
    )
    torch.manual_seed(0)
    model = transformer.Transformer(config)
    parameters = transformer.count_parameters(model)
    print(f"A Transformer of {parameters:,} parameters learns to copy sequences of 4 to 12 numbers.")
    batches = transformer.TokenBatches(transformer.copy_task(20_000, seed=1), max_tokens=1600)
    warmup_steps = max(1, options.steps // 3)
    training = transformer.TrainingConfig(options.steps, warmup_steps, checkpoint_every=10, device=options.device)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as run:
        records = transformer.train(model, batches, training, run=run)
        device = next(model.parameters()).device
        model = transformer.average_checkpoints(transformer.list_checkpoints(run)).to(device)
    print(f"loss {records[-1].loss:.3f} after {options.steps} updates, {time.perf_counter() - begun:.0f} s.")
    unseen = transformer.copy_task(200, seed=2)
    copies = transformer.greedy_decode(model, transformer.make_batch(unseen).src.to(device))
    for (source, _), copy in list(zip(unseen, copies, strict=True))[:3]:
        print(f"  given {source}\n  wrote {copy}")
    right = sum(copy == source for (source, _), copy in zip(unseen, copies, strict=True))
    print(f"{right} of {len(unseen)} unseen sequences copied exactly.")
    return 0


# %%
#| export
def _demo_options(option: _Option) -> None:
    option("--steps", "updates to train for", 500, **_N)
    option("--device", **_DEVICE)


# %% [markdown]
# ## See it: the commands

# %%
print(make_parser().format_help())

# %% [markdown]
# ## See it: from text to a score
#
# On a terminal the five lines are these. Here they run on a few sentences of the embedded corpus, and stop long before the
# model is any good.
#
# ```sh
# transformer prepare --train train.en train.de --dev dev.en dev.de --test test.en test.de --out data
# transformer train --data data --config tiny --run run
# transformer average --run run --last 3
# transformer translate --model run < test.en
# transformer evaluate --model run --data data
# ```

# %%
folder = Path(tempfile.mkdtemp())
for split, n in (("train", 1000), ("dev", 50), ("test", 50)):
    pairs = list(itertools.islice(transformer.embedded_corpus(split), n))
    (folder / f"{split}.en").write_text("".join(f"{pair.source}\n" for pair in pairs))
    (folder / f"{split}.de").write_text("".join(f"{pair.target}\n" for pair in pairs))


def run(line: str) -> int:
    """A command, run in this process; @ stands for the folder, in what goes in and what comes out."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(shlex.split(line.replace("@", str(folder))))
    print((out.getvalue() + err.getvalue()).replace(str(folder), "@"), end="")
    return code


files = "--train @/train.en @/train.de --dev @/dev.en @/dev.de --test @/test.en @/test.de"
assert run(f"prepare {files} --out @/data --vocab-size 600") == 0

# %% [markdown]
# Tokens are counted on the source and on the target side, and so is what was dropped, if anything was.

# %%
options = "--max-tokens 500 --checkpoint-every 2 --evaluate-every 5 --device cpu"
assert run(f"train --data @/data --config tiny --run @/run --steps 10 {options}") == 0
print("\n".join(sorted(path.name for path in (folder / "run").iterdir())))

# %% [markdown]
# The lines before the list are the bill: tokens read, operations done, and what part of the machine's best matrix product
# that is ([5.2b](05_2b_the_cost_of_training.py)). The files are explained in [A3a](A3a_runs.py).
#
# Ten updates were too few. The same run goes on:

# %%
assert run("train --run @/run --resume --steps 20 --device cpu") == 0
assert run("average --run @/run --last 3") == 0


# %%
def shell(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "transformer", *arguments]
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)


assert run("evaluate --model @/run --data @/data --limit 10 --beam-size 1 --device cpu") == 0

# %% [markdown]
# That is not German yet. The model that ships with the book has had 150,000 pairs and 1,500 updates:

# %%
assert run("evaluate --data @/data --device cpu --paper") == 0
done = shell(
    "translate",
    "--n-best",
    "2",
    "--device",
    "cpu",
    text="The animal did not cross the street because it was too tired.\n\n",
)
print(done.stdout)
assert done.returncode == 0 and len(done.stdout.splitlines()) == 3

# %% [markdown]
# Each score stands with the signature of how it was made ([6.1b](06_1b_scoring.py)): a number without one compares with
# nothing.

# %% [markdown]
# ## See it: where the heads look
#
# ```sh
# transformer attention run "The animal did not cross the street because it was too tired." --out page.html
# ```
#
# Open the page in a browser, with or without a network: every script that it needs is in it. Without `run`, the model is
# the one that ships with the book. What such a picture shows, and what it does not, is the matter of
# [Attention Visualizations](08_attention_visualizations.py), which also makes a page and looks into it.

# %% [markdown]
# ## Many devices
#
# `torchrun` starts the same command once for each device. The batch is shared out, so an update has as many tokens as
# before. The two dashes keep torchrun's hands off the options that follow.
#
# ```sh
# torchrun --nproc-per-node 8 -m -- transformer train --data data --config big --run run
# ```
#
# On several machines, `--data` and `--run` must be on a disk that all of them see.

# %% [markdown]
# ## Check it: as many lines out as in

# %%
done = shell("translate", text="\nThe dog sleeps.\n" + "a" * 10_000 + "\nThe cat sleeps.")
print([line[:30] for line in done.stdout.split("\n")])
print(done.stderr.strip().splitlines()[-1], "| exit code", done.returncode)
lines = done.stdout.split("\n")
assert len(lines) == 5 and lines[0] == lines[2] == lines[4] == "" and lines[1] and lines[3]
assert done.returncode == 1 and "line 3 " in done.stderr

# %% [markdown]
# ## Check it: errors are one sentence

# %%
(folder / "my.json").write_text('{"n_heds": 8, "steps": NaN}')
(folder / "short.de").write_text("Ein Satz.\n")
wrong = [
    "translate --model no/such/folder",
    "train --data @/data --run @/run",
    "train --run @/run --resume --seed 1",
    "train --data @/data --run @/run2 --config @/my.json",
    "prepare --train @/train.en @/short.de --out @/data2",
    'attention @/run "" --out @/page.html',
]
for line in wrong:
    assert run(line) == 1
assert not (folder / "run2").exists() and not (folder / "data2").exists()

# %% [markdown]
# ## Check it: what the run was told can be told again

# %%
told = folder / "run/run.json"
with contextlib.redirect_stdout(io.StringIO()) as shown:
    assert main(["train", "--config", str(told), "--show"]) == 0
assert json.loads(shown.getvalue()) == json.loads(told.read_text())["configuration"]

# %% [markdown]
# ## What we now know
#
# * Five commands lead from text to a score: prepare, train, average, translate, evaluate.
# * `attention` shows where the heads of any trained model look, as a page that needs no network.
# * A stopped run goes on with `--resume`; a run's own description is a configuration that makes it again.
# * The output of `translate` has one line per line of input, whatever the input; with `--n-best` as many as asked for, or
#   one if it stays empty.
# * The exit code is 0, or 1 with a sentence on standard error, or 2 for wrong usage; 130 or 143 if a signal
#   stopped it, 141 if its reader did.

# %% [markdown]
# ## Exercises
#
# 1. **Predict, then run.** What does `printf 'The dog sleeps.' | transformer translate` print, without a final newline?
# 2. **Predict, then run.** What does the shipped model make of a sentence outside its grammar? Try `I love music.` and say why.
# 3. **Minutes.** Press Ctrl-C during `transformer train`. What is in the folder, and what does `echo $?` say?
# 4. **An hour.** Add `transformer tokens`, which prints the pieces of each line. Which cells change?

# %% tags=["hide-cell"]
# Exercise 1: the last line counts although no newline ends it, as with the cat above.
print(repr(lines[-2:]))
assert lines[-2] and done.stdout.endswith("\n")

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.make_parser().format_help() == make_parser().format_help()
