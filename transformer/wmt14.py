# Exported from notebooks/13_training_on_wmt14.py, Section 13; edit that file, not this one.
# sha256 of what follows: a1016af2a500171a
"""Training on WMT 2014 (Section 13)."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transformer.decoding import EXTRA_TOKENS
from transformer.downloads import Corpus
from transformer.ledger import batch_flops
from transformer.model import Transformer, TransformerConfig
from transformer.preparation import prepare
from transformer.runs import make_configuration, train_run
from transformer.schedule import make_adam
from transformer.scoring import bleu, paper_bleu
from transformer.training import TrainingConfig
from transformer.translator import Translator

__all__ = [
    "Preset",
    "PRESETS",
    "Ingredient",
    "recipe_ledger",
    "memory",
    "activations",
    "Accelerator",
    "ACCELERATORS",
    "Budget",
    "budget",
    "run_preset",
]


@dataclasses.dataclass(frozen=True)
class Preset:
    """One experiment, from the corpus to the way of translating. The defaults are those of the paper's base model.

    Args:
        corpus: What `prepare` knows it by.
        model: Sizes; its number of target tokens is the size of the shared vocabulary.
        training: Updates, schedule, smoothing, checkpoints.
        tokens_per_update: Room for source, and for target, tokens in one update, over all GPUs, padding included.
        averaged: Number of last checkpoints whose mean translates.
        beam_size: Beams in translation.
        alpha: Exponent of the length penalty.

    Source: §5, §6.1.
    """

    corpus: str
    model: TransformerConfig
    training: TrainingConfig
    tokens_per_update: int = 25_000
    averaged: int = 5
    beam_size: int = 4
    alpha: float = 0.6

    def configuration(self) -> dict[str, Any]:
        """The same for `transformer train --config FILE`, as a JSON object; corpus and vocabulary are `prepare`'s."""
        parts = dataclasses.asdict(self.model) | dataclasses.asdict(self.training)
        fields = {name: value for name, value in parts.items() if name in make_configuration()}
        return make_configuration({**fields, "max_tokens": self.tokens_per_update, "average": self.averaged})


# Ten minutes of the paper's machine were 1,500 updates of base and 600 of big.
_BASE = TrainingConfig(steps=100_000, evaluate_every=1_000, checkpoint_every=1_500, keep=5)
_BIG = TrainingConfig(steps=300_000, evaluate_every=1_000, checkpoint_every=600, keep=20)
_TOY = TrainingConfig(steps=150, warmup_steps=60, log_every=10, checkpoint_every=10, keep=5)

PRESETS: Mapping[str, Preset] = {
    "base": Preset("wmt14-en-de", TransformerConfig.base(37_000), _BASE),
    "big": Preset("wmt14-en-de", TransformerConfig.big(37_000), _BIG, averaged=20),
    "base-en-fr": Preset("wmt14-en-fr", TransformerConfig.base(32_000), _BASE),
    "big-en-fr": Preset("wmt14-en-fr", TransformerConfig.big(32_000, dropout=0.1), _BIG, averaged=20),
    "colab": Preset("wmt14-en-de", TransformerConfig.base(37_000), dataclasses.replace(_BASE, steps=16_000)),
    "toy": Preset("embedded", TransformerConfig.tiny(800, n_layers=1, dropout=0.0), _TOY, tokens_per_update=800),
}


class Ingredient(NamedTuple):
    """One line of the recipe: what the paper says and what a preset does."""

    name: str
    place: str  # in the paper
    field: str  # in our configuration
    paper: Any
    ours: Any
    worth: str  # in BLEU, and who measured it

    @property
    def on(self) -> bool:
        """Whether the preset does as the paper says; "about" allows a fifth."""
        if self.name == "tokens per update":
            return bool(abs(self.ours - self.paper) <= self.paper / 5)
        return bool(self.ours == self.paper)


def recipe_ledger(preset: Preset) -> list[Ingredient]:
    """Every ingredient of the paper's 27.3 BLEU, base model, English to German.

    Args:
        preset: What to compare with it.

    Returns:
        One line per ingredient. Values come from the preset and from the code that a run uses.

    Source: §5, §6.1, Table 2.
    """
    adam = make_adam(torch.nn.Linear(1, 1)).defaults
    model, training = preset.model, preset.training
    sizes = f"{model.n_layers}-{model.d_model}-{model.n_heads}-{model.d_ff}-{model.norm_order}"
    issue = "tensor2tensor issue"
    rows = [
        ("data", "§5.1", "corpus", "wmt14-en-de", preset.corpus, "not measured"),
        ("shared vocabulary", "§5.1", "model.tgt_vocab_size", 37_000, model.tgt_vocab_size,
         f"26.96 with word pieces, 27.11 with BPE ({issue} 317)"),
        ("one embedding matrix", "§3.4", "model.tie_embeddings", True, model.tie_embeddings, "not measured"),
        ("N-d_model-h-d_ff-norm", "§3, Table 3", "model", "6-512-8-2048-post", sizes, "Table 3, rows (A) to (C)"),
        ("tokens per update", "§5.1", "tokens_per_update", 25_000, preset.tokens_per_update,
         f"1 for a quarter fewer, English to French ({issue} 444)"),
        ("updates", "§5.2", "training.steps", 100_000, training.steps, "not measured"),
        ("warm-up", "§5.3", "training.warmup_steps", 4_000, training.warmup_steps,
         "Section 5.3, recorded on the embedded corpus"),
        ("β₂", "§5.3", "make_adam", 0.98, adam["betas"][1], "not measured"),
        ("ε", "§5.3", "make_adam", 1e-9, adam["eps"], "not measured"),
        ("dropout", "§5.4", "model.dropout", 0.1, model.dropout, "1.2 on newstest2013 (Table 3, row (D))"),
        ("label smoothing", "§5.4", "training.label_smoothing", 0.1, training.label_smoothing,
         "0.5 on newstest2013 (Table 3, row (D))"),
        ("averaged checkpoints", "§6.1", "averaged", 5, preset.averaged, f"up to 1, usually less ({issue} 317)"),
        ("beam", "§6.1", "beam_size", 4, preset.beam_size, "not measured"),
        ("length penalty α", "§6.1", "alpha", 0.6, preset.alpha, "not measured"),
        ("longest output", "§6.1", "decoding.EXTRA_TOKENS", 50, EXTRA_TOKENS, "not measured"),
        ("scoring", "not stated", "paper_bleu", "paper_bleu", paper_bleu.__name__,
         f"0.7 to 1 for split compounds, 1.5 with the tweaked reference ({issue} 317)"),
    ]  # fmt: skip
    return [Ingredient(*row) for row in rows]


def memory(config: TransformerConfig, tokens: int, dtype: str = "bfloat16") -> float:
    """Estimate the memory of training on a micro-batch.

    Weights, gradients and Adam's two moments take 16 bytes a parameter, 18 with a half-precision copy. What the
    forward pass keeps for the backward pass is a few numbers per token and layer, and the logits, several times over.

    Args:
        config: The model's sizes.
        tokens: Source tokens, and as many target tokens, padding included.
        dtype: "float32", or what autocast multiplies in.

    Returns:
        GB, the 1 GB that CUDA itself takes included.
    """
    wide = dtype == "float32"
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    kept = activations(config, tokens, tokens) - tokens * config.tgt_vocab_size
    logits = 12 * tokens * config.tgt_vocab_size  # logits, their softmax, and the gradients of both
    return 1 + (parameters * (16 if wide else 18) + kept * (4 if wide else 3) + logits) / 1e9


def activations(config: TransformerConfig, n: int, m: int) -> int:
    """How many numbers a forward pass keeps for the backward pass, as the model's code stands, fused attention.

    Args:
        config: The model's sizes, d_k = d_v = d_model / h.
        n: Source tokens.
        m: Target tokens.

    Returns:
        About so many numbers.
    """
    layer = n * (12 * config.d_model + config.d_ff) + m * (15 * config.d_model + config.d_ff)
    return config.n_layers * layer + 2 * (n + m) * config.d_model + m * config.tgt_vocab_size


class Accelerator(NamedTuple):
    """What a training runs on. Peak and memory are from NVIDIA's data sheets; the rest is assumed."""

    n_gpus: int
    tflops: float  # one GPU's dense matrix products, in the data type of the training
    dtype: str
    memory: float  # GB of one GPU
    utilization: float  # assumed fraction of the peak, until measured
    dollars: float  # assumed price of one GPU for an hour; look up today's


ACCELERATORS: Mapping[str, Accelerator] = {
    "8×P100": Accelerator(8, 10.6, "float32", 16, 0.28, 0.0),  # the paper's; its utilization follows from §5.2
    "T4": Accelerator(1, 65, "float16", 16, 0.25, 0.35),
    "A100": Accelerator(1, 312, "bfloat16", 40, 0.35, 1.80),
    "H100": Accelerator(1, 989, "bfloat16", 80, 0.30, 3.00),
    "8×H100": Accelerator(8, 989, "bfloat16", 80, 0.15, 3.00),
}


class Budget(NamedTuple):
    """What a preset needs on an accelerator: an estimate until somebody has measured it."""

    flops: int
    hours: float
    dollars: float
    tokens_at_once: int  # in one GPU, of whose memory a fifth stays free
    accumulate: int  # micro-batches of an update on one GPU


def budget(preset: Preset, accelerator: Accelerator, length: int = 30) -> Budget:
    """Estimate time, money and the micro-batches of a training.

    Args:
        preset: The experiment.
        accelerator: Where.
        length: Tokens in a sentence; it hardly matters.

    Returns:
        The estimate.

    Raises:
        ValueError: Not even one sentence fits into the memory.
    """
    a = accelerator
    update = batch_flops(preset.model, preset.tokens_per_update // length, length, length)
    flops = preset.training.steps * update
    hours = flops / (a.n_gpus * a.tflops * 1e12 * a.utilization) / 3600
    fixed = memory(preset.model, 0, a.dtype)
    room = int((0.8 * a.memory - fixed) / (memory(preset.model, 1, a.dtype) - fixed))
    if room < length:
        raise ValueError(f"{a.memory} GB do not hold the model and one sentence; take a larger GPU or a smaller model.")
    parts = -(-preset.tokens_per_update // (a.n_gpus * room))
    return Budget(flops, hours, hours * a.n_gpus * a.dollars, -(-preset.tokens_per_update // (a.n_gpus * parts)), parts)


def run_preset(
    preset: Preset, folder: str | Path, corpus: Corpus | str | None = None, device: str = "auto", **changes: Any
) -> dict[str, Any]:
    """Prepare, train, average, translate and score, in one process, as the commands do one by one.

    Args:
        preset: The experiment.
        folder: Gets `data/` and `run/`. A run that was stopped goes on.
        corpus: Another corpus than the preset's.
        device: "auto", or a name that torch knows.
        **changes: Fields of the configuration with other values.

    Returns:
        What `train_run` returns, with the "records" of training as JSON objects, the "translations" of the test set,
        and their "bleu" and "paper_bleu".

    Source: §5, §6.1.
    """
    run, folder = Path(folder) / "run", Path(folder) / "data"
    data = prepare(corpus or preset.corpus, folder, preset.model.tgt_vocab_size)
    result = train_run(run, folder, resume=True, device=device, **{**preset.configuration(), **changes})
    sources, references = zip(*data.text("test"), strict=True)
    translator = Translator.from_pretrained(run, device)
    texts = translator.translate(sources, beam_size=preset.beam_size, alpha=preset.alpha)
    language = data.description["settings"]["languages"][1]
    return result | {
        "records": [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()],
        "translations": texts,
        "bleu": bleu(hypotheses=texts, references=references),
        "paper_bleu": paper_bleu(hypotheses=texts, references=references, language=language),
    }
