# Exported from notebooks/A4_command_line.py, Appendix A4; edit that file, not this one.
# sha256 of what follows: f534567922096e5f
"""The Command Line (Appendix A4)."""

import argparse
import codecs
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import torch

from transformer.data import TokenBatches, copy_task, make_batch
from transformer.decoding import greedy_decode
from transformer.model import Transformer, TransformerConfig, choose_device, count_parameters
from transformer.training import TrainingConfig, train
from transformer.translator import Translator, load_toy_translator

__all__ = ["make_parser", "main"]


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
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train a small model to copy sequences, in under a minute",
        description="Train a small model to copy sequences of numbers, then let it copy some it has never seen. "
        "It shows that everything works on this machine.",
    )
    demo.add_argument("--steps", type=_positive, default=500, metavar="N", help="updates to train for (default: 500)")
    demo.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    demo.set_defaults(run=_demo)

    translate = commands.add_parser(
        "translate",
        help="translate standard input, line by line",
        description="Read lines from standard input and write one translation per line to standard output. A line "
        "that cannot be translated gives an empty line, a message with its number on standard error, and exit code 1.",
        epilog="Example:  transformer translate < english.txt > german.txt",
    )
    translate.add_argument(
        "--model",
        metavar="FOLDER",
        help="a folder with a trained model (default: the model that ships with the book, for its embedded corpus)",
    )
    translate.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    translate.set_defaults(run=_translate)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after the program's name; those of this process if None.

    Returns:
        The exit code: 0 if all went well, 1 if something could not be done, 130 if interrupted, 141 if whoever
        read the output has stopped. Wrong usage exits with 2.
    """
    options = make_parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("transformer").setLevel(logging.INFO)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as with `| head`; Python flushes once more at its end, and must find somewhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"transformer {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"transformer {options.command}: interrupted", file=sys.stderr)
        return 130


def _demo(options: argparse.Namespace) -> int:
    config = TransformerConfig(32, 32, d_model=64, n_layers=1, n_heads=4, d_ff=256, dropout=0.0, norm_order="pre")
    torch.manual_seed(0)
    model = Transformer(config)
    print(f"A Transformer of {count_parameters(model):,} parameters learns to copy sequences of 4 to 12 numbers.")
    batches = TokenBatches(copy_task(20_000, seed=1), max_tokens=1600)
    started = time.perf_counter()
    last: deque[dict[str, torch.Tensor]] = deque(maxlen=5)

    def keep(model: Transformer) -> dict[str, float]:
        last.append({name: weights.clone() for name, weights in model.state_dict().items()})
        return {}

    warmup_steps = max(1, options.steps // 3)
    training = TrainingConfig(options.steps, warmup_steps, evaluate_every=10, device=options.device)
    records = train(model, batches, training, evaluate=keep)
    # As in Section 6.1, the mean of the last five checkpoints: without it the last updates decide too much.
    model.load_state_dict({name: torch.stack([w[name] for w in last]).mean(dim=0) for name in last[-1]})
    print(f"loss {records[-1].loss:.3f} after {options.steps} updates, {time.perf_counter() - started:.0f} s.")
    unseen = copy_task(200, seed=2)
    src = make_batch(unseen).src.to(next(model.parameters()).device)
    copies = greedy_decode(model, src)
    for (source, _), copy in list(zip(unseen, copies, strict=True))[:3]:
        print(f"  given {source}\n  wrote {copy}")
    right = sum(copy == source for (source, _), copy in zip(unseen, copies, strict=True))
    print(f"{right} of {len(unseen)} unseen sequences copied exactly.")
    return 0


def _translate(options: argparse.Namespace) -> int:
    translator = Translator.from_pretrained(options.model, "cpu") if options.model else load_toy_translator()
    translator.model.to(choose_device(options.device))
    failures = 0
    for start, chunk in _chunks(sys.stdin.buffer, size=256):
        outputs = translator.translate(chunk, errors="empty")
        for number, (line, output) in enumerate(zip(chunk, outputs, strict=True), start):
            sys.stdout.buffer.write(output.replace("\n", " ").encode("utf-8") + b"\n")
            if not output:
                try:
                    translator.translate([line])  # fails, and says why, if that is the reason
                except ValueError as error:
                    reason = str(error).replace("line 1 ", f"line {number} ", 1)
                    print(f"transformer translate: {reason}", file=sys.stderr)
                    failures += 1
        sys.stdout.buffer.flush()
    return 1 if failures else 0


def _chunks(stream: BinaryIO, size: int) -> Iterator[tuple[int, list[str]]]:
    """Lines in lists of at most size, each with the number of its first line; a terminal gives line by line."""
    chunk: list[str] = []
    number = 1
    for line in stream:  # bytes end a line at "\n" alone; a text stream would, here and there, at others too
        if number == 1 and not chunk:
            line = line.removeprefix(codecs.BOM_UTF8)
        # What is not UTF-8 becomes lone surrogates, which the translator refuses.
        chunk.append(line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape"))
        if len(chunk) == size or stream.isatty():
            yield number, chunk
            number, chunk = number + len(chunk), []
    if chunk:
        yield number, chunk


def _positive(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _version() -> str:
    from transformer import __version__

    return __version__
