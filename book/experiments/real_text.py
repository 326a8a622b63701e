"""Train on real text with the command line alone, as the files multi30k.py and tatoeba.py beside this one do.

What a run makes stands in build/experiments/NAME. A run that was stopped goes on there when the command is given again.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import transformer.cli  # noqa: F401 - so that the record knows the hash of every module the command line uses
from transformer.runs import RUN_FILE

ROOT = Path(__file__).resolve().parents[2]


def transformer_command(*arguments: str) -> str:
    """Run `transformer ARGUMENTS`; its progress goes to standard error. Returns what it wrote to standard output."""
    print("transformer", *arguments, file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "transformer", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(name: str, prepare: list[str], configuration: str, seed: int) -> dict[str, Any]:
    """Prepare, train, average and score.

    Args:
        name: Of the folder in build/experiments.
        prepare: Options of `transformer prepare` that name the corpus and its vocabulary.
        configuration: File with the model, the training and the tokens per update.
        seed: Of weights, order and dropout.

    Returns:
        What was measured, without a sentence of the corpus.
    """
    folder = Path("build/experiments") / name
    data, trained = str(folder / "data"), str(folder / "run")
    transformer_command("prepare", *prepare, "--out", data)
    description = ROOT / trained / RUN_FILE
    if not description.is_file() or "result" not in json.loads(description.read_text(encoding="utf-8")):
        options = ["--config", configuration, "--seed", str(seed), "--run", trained, "--resume"]
        transformer_command("train", "--data", data, *options)
    test = ["--model", trained, "--data", data, "--split", "test", "--json"]
    beam, greedy = (
        json.loads(transformer_command("evaluate", *test, *options)) for options in ([], ["--beam-size", "1"])
    )
    about = json.loads(description.read_text(encoding="utf-8"))
    log = [json.loads(line) for line in (ROOT / trained / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [{key: line[key] for key in ("step", "perplexity", "scores")} for line in log]
    data_about = {key: about["data"][key] for key in ("tokenizer_sha256", "settings", "counts", "splits")}
    return {
        "configuration": about["configuration"],
        "data": data_about,
        "result": about["result"],
        "curve": curve,
        "beam 4": beam,
        "greedy": greedy,
    }
