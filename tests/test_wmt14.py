"""The last chapter: presets, the recipe of 27.3, budgets, and the whole path at a size a test can afford."""

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from torch.distributed.run import get_args_parser

from transformer import Transformer, TransformerConfig, Translator, wmt14
from transformer.checkpoints import average_checkpoints, list_checkpoints
from transformer.cli import make_parser
from transformer.data import TokenBatches
from transformer.loss import LabelSmoothingLoss
from transformer.preparation import embedded_files
from transformer.runs import make_configuration, parts_of
from transformer.training import TrainingConfig
from transformer.wmt14 import (
    ACCELERATORS,
    PRESETS,
    Accelerator,
    Preset,
    activations,
    budget,
    memory,
    recipe_ledger,
    run_preset,
)

BASE, BIG = PRESETS["base"], PRESETS["big"]
ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT / "book" / "paper"


# ------------------------------------------------------------------------------------------------------- the presets


def test_presets_are_the_papers():
    rows = yaml.safe_load((PAPER / "tables.yml").read_text(encoding="utf-8"))["table3"]["rows"]
    base, big = rows[0], {**rows[0], **{name: value for name, value in rows[-1].items() if value is not None}}
    for preset, row in ((BASE, base), (BIG, big)):
        model, training = preset.model, preset.training
        assert (model.n_layers, model.d_model, model.d_ff, model.n_heads) == tuple(
            row[name] for name in ("N", "d_model", "d_ff", "h")
        )
        assert model.d_model // model.n_heads == 64 and model.d_k is model.d_v is None
        assert (model.dropout, training.label_smoothing) == (row["P_drop"], row["eps_ls"])
        assert f"{training.steps // 1000}K" == row["train_steps"]
        assert training.warmup_steps == 4_000 and training.clip_norm is None
        assert (preset.corpus, model.tgt_vocab_size, preset.tokens_per_update) == ("wmt14-en-de", 37_000, 25_000)
        assert (preset.beam_size, preset.alpha) == (4, 0.6)
    assert (BASE.averaged, BIG.averaged) == (5, 20)


def test_english_to_french_differs_as_the_paper_says():
    for name in ("base", "big"):
        german, french = PRESETS[name], PRESETS[f"{name}-en-fr"]
        assert french.corpus == "wmt14-en-fr" and french.model.src_vocab_size == french.model.tgt_vocab_size == 32_000
        back = dataclasses.replace(french.model, src_vocab_size=37_000, tgt_vocab_size=37_000)
        assert dataclasses.replace(back, dropout=german.model.dropout) == german.model
        assert dataclasses.replace(french, corpus=german.corpus, model=german.model) == german
    assert (PRESETS["base-en-fr"].model.dropout, PRESETS["big-en-fr"].model.dropout) == (0.1, 0.1)


def test_checkpoints_are_ten_of_the_papers_minutes_apart_and_enough_stay():
    assert BASE.training.checkpoint_every == round(600 / 0.4) and BIG.training.checkpoint_every == 600
    for preset in PRESETS.values():
        assert preset.training.keep >= preset.averaged and preset.training.checkpoint_minutes == 0
        assert preset.averaged * preset.training.checkpoint_every <= preset.training.steps


def test_colab_is_base_cut_short():
    colab = PRESETS["colab"]
    steps = colab.training.steps
    assert dataclasses.replace(colab, training=dataclasses.replace(colab.training, steps=100_000)) == BASE
    assert colab.training.warmup_steps < steps < BASE.training.steps
    assert 1 < budget(colab, ACCELERATORS["T4"]).hours < 4, "an evening"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_configuration_of_the_command_line(name):
    preset = PRESETS[name]
    given = json.loads(json.dumps(preset.configuration()))
    assert parts_of(given, vocab_size=preset.model.tgt_vocab_size) == (preset.model, preset.training)
    assert (given["max_tokens"], given["average"]) == (preset.tokens_per_update, preset.averaged)
    assert make_configuration(given) == given, "the command line would train something else"


def test_the_commands_of_the_chapter_are_commands():
    text = (ROOT / "notebooks" / "13_training_on_wmt14.py").read_text(encoding="utf-8")
    fences = re.findall(r"^# ```sh\n((?:#.*\n)+?)# ```", text, flags=re.MULTILINE)
    lines = [
        line
        for fence in fences
        for line in re.sub(r"^# ?", "", fence, flags=re.MULTILINE).replace("\\\n", " ").split("\n")
    ]
    commands = [shlex.split(line) for line in lines if line]
    for i, (program, *words) in enumerate(commands):
        if program == "torchrun":  # its own parser must leave our options alone
            theirs = get_args_parser().parse_args(words)
            assert theirs.module and theirs.nproc_per_node == "8"
            commands[i] = [theirs.training_script, *theirs.training_script_args]
    assert [words[:2] for words in commands] == [
        ["transformer", name] for name in ("prepare", "train", "evaluate", "train", "train")
    ]
    for _, *words in commands:
        options = make_parser().parse_args(words)
        assert options.command == words[0]
    accumulated = make_parser().parse_args(["train", "--accumulate", "2", "--compile", "--resume"])
    assert accumulated.accumulate == budget(PRESETS["colab"], ACCELERATORS["T4"]).accumulate == 2


# -------------------------------------------------------------------------------------------------------- the recipe

OTHERS = {
    "data": {"corpus": "multi30k"},
    "tokens per update": {"tokens_per_update": 25_000 // 8},
    "averaged checkpoints": {"averaged": 1},
    "beam": {"beam_size": 1},
    "length penalty α": {"alpha": 1.0},
    "shared vocabulary": {"model": {"src_vocab_size": 32_000, "tgt_vocab_size": 32_000}},
    "one embedding matrix": {"model": {"tie_embeddings": False}},
    "N-d_model-h-d_ff-norm": {"model": {"norm_order": "pre"}},
    "dropout": {"model": {"dropout": 0.3}},
    "updates": {"training": {"steps": 50_000}},
    "warm-up": {"training": {"warmup_steps": 8_000}},
    "label smoothing": {"training": {"label_smoothing": 0.0}},
}


def changed(preset, change):
    parts = {
        name: dataclasses.replace(getattr(preset, name), **c) if isinstance(c, dict) else c
        for name, c in change.items()
    }
    return dataclasses.replace(preset, **parts)


def off(preset):
    return [row.name for row in recipe_ledger(preset) if not row.on]


@pytest.mark.parametrize("name", OTHERS)
def test_every_ingredient_is_noticed_when_it_is_missing(name):
    assert off(BASE) == []
    assert off(changed(BASE, OTHERS[name])) == [name]


def test_the_rest_of_the_recipe_is_read_from_the_code(monkeypatch):
    def other(model):
        return torch.optim.Adam(model.parameters(), betas=(0.9, 0.997), eps=1e-8)

    monkeypatch.setattr(wmt14, "make_adam", other)
    monkeypatch.setattr(wmt14, "EXTRA_TOKENS", 100)
    monkeypatch.setattr(wmt14, "paper_bleu", wmt14.bleu)
    assert off(BASE) == ["β₂", "ε", "longest output", "scoring"]
    assert set(OTHERS) | set(off(BASE)) == {row.name for row in recipe_ledger(BASE)}, "an ingredient without a test"


def test_about_25000_tokens_is_a_fifth_more_or_less():
    for tokens, fine in ((20_000, True), (30_000, True), (19_999, False), (30_001, False)):
        assert (off(changed(BASE, {"tokens_per_update": tokens})) == []) is fine


def test_every_ingredient_has_its_place_its_field_and_its_worth():
    for row in recipe_ledger(BASE):
        assert row.place.startswith("§") or row.place == "not stated"
        assert row.worth == "not measured" or "issue" in row.worth or "Table" in row.worth or "Section" in row.worth
        section, _, field = row.field.partition(".")
        holder = {"model": BASE.model, "training": BASE.training}.get(section)
        if holder is not None and field:
            assert getattr(holder, field) == row.ours
        elif not field and hasattr(BASE, section) and section != "model":
            assert getattr(BASE, section) == row.ours


def test_25000_tokens_an_update_on_any_number_of_gpus():
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(60_000, generator=generator) * 0.6 + 3.1).exp().clamp(2, 250).long().tolist()
    batches = TokenBatches([([5] * n, [5] * n) for n in lengths], BASE.tokens_per_update)
    updates = list(batches.epoch(0))
    for n_gpus, accumulate in ((1, 1), (1, 16), (3, 2), (8, 1)):
        parts = [[part.n_tokens for part in batch.split(n_gpus * accumulate)] for batch in updates]
        assert all(len(sizes) == n_gpus * accumulate for sizes in parts)
        usual = [sum(sizes) for sizes in parts if abs(sum(sizes) - 25_000) <= 5_000]
        assert len(usual) >= 0.95 * len(updates)
        assert sum(map(sum, parts)) == sum(batch.n_tokens for batch in updates) == sum(n + 1 for n in lengths)


# ----------------------------------------------------------------------------------------------------------- budgets


def test_the_papers_machine_takes_the_papers_time():
    assert budget(BASE, ACCELERATORS["8×P100"]).hours == pytest.approx(100_000 * 0.4 / 3600, rel=0.05)


def test_a_budget_is_operations_over_rate():
    a = Accelerator(n_gpus=4, tflops=100, dtype="bfloat16", memory=80, utilization=0.5, dollars=2.0)
    estimate = budget(BASE, a)
    per_token = estimate.flops / (100_000 * 25_000)
    assert per_token == pytest.approx(
        6 * 63.1e6, rel=0.02
    )  # six per weight: each meets a source or a target token once
    assert estimate.hours == pytest.approx(estimate.flops / (4 * 100e12 * 0.5) / 3600)
    assert estimate.dollars == pytest.approx(estimate.hours * 4 * 2.0)
    assert budget(BASE, a._replace(utilization=0.25)).hours == pytest.approx(2 * estimate.hours)
    assert budget(BASE, a, length=60).hours == pytest.approx(estimate.hours, rel=0.02), "the length hardly matters"


@pytest.mark.parametrize("name", ["base", "big", "colab", "base-en-fr", "big-en-fr"])
@pytest.mark.parametrize("where", ACCELERATORS)
def test_an_update_is_complete_and_fits(name, where):
    preset, a = PRESETS[name], ACCELERATORS[where]
    estimate = budget(preset, a)
    held = a.n_gpus * estimate.accumulate * estimate.tokens_at_once
    assert preset.tokens_per_update <= held < preset.tokens_per_update + a.n_gpus * estimate.accumulate
    assert memory(preset.model, estimate.tokens_at_once, a.dtype) <= a.memory


def test_a_gpu_that_is_too_small_is_named():
    with pytest.raises(ValueError, match=r"4 GB.*larger GPU or a smaller model"):
        budget(BIG, ACCELERATORS["T4"]._replace(memory=4))


def test_memory_is_weights_and_tokens():
    weights = sum(p.numel() for p in Transformer(TransformerConfig.tiny(5_000)).parameters())
    config = TransformerConfig.tiny(5_000)
    assert memory(config, 0, "float32") == pytest.approx(1 + 16 * weights / 1e9)
    assert memory(config, 0) == pytest.approx(1 + 18 * weights / 1e9)
    one, many = memory(config, 1) - memory(config, 0), memory(config, 1000) - memory(config, 0)
    assert many == pytest.approx(1000 * one)


def numbers_kept(config, n, m):
    """What autograd holds at the end of a forward pass, weights left out, in float32 numbers."""
    model = Transformer(config).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes, alive = {}, []

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    src, tgt = torch.full((1, n), 5), torch.full((1, m), 5)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = LabelSmoothingLoss(0.1, 0, reduction="sum")(model(src, tgt), tgt)
    assert math.isfinite(loss.item()) and alive
    return sum(sizes.values()) / 4


@pytest.mark.parametrize(
    ("config", "n", "m"),
    [
        (TransformerConfig.base(500, n_layers=1), 20, 20),
        (TransformerConfig.base(500, n_layers=2), 10, 30),
        (TransformerConfig.big(200, n_layers=1), 30, 10),
        (TransformerConfig.tiny(5_000), 20, 20),
    ],
)
def test_the_formula_for_what_is_kept(config, n, m):
    assert activations(config, n, m) == pytest.approx(numbers_kept(config, n, m), rel=0.05)


# --------------------------------------------------------------------------------------------------------- a whole run

MICRO = Preset(
    "embedded",
    TransformerConfig.tiny(500, d_model=32, d_ff=64, n_layers=1),
    TrainingConfig(steps=8, warmup_steps=4, log_every=2, checkpoint_every=2, keep=3, progress=False),
    tokens_per_update=400,
    averaged=3,
    beam_size=2,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("micro")
    corpus = embedded_files(folder / "text", n_pairs=400)
    for split in (corpus.dev, corpus.test):
        for path in split[0]:
            path.write_text("\n".join(path.read_text(encoding="utf-8").split("\n")[:6]) + "\n", encoding="utf-8")
    return folder, corpus, run_preset(MICRO, folder, corpus, device="cpu")


def test_a_run_leaves_what_translates(finished):
    folder, corpus, result = finished
    sources = Path(corpus.test[0][0]).read_text(encoding="utf-8").split("\n")[:6]
    translator = Translator.from_pretrained(folder / "run", "cpu")
    assert translator.translate(sources, beam_size=2, alpha=0.6) == result["translations"]
    expected = average_checkpoints(list_checkpoints(folder / "run")[-3:])
    for mine, theirs in zip(expected.parameters(), translator.model.parameters(), strict=True):
        assert mine.equal(theirs)
    assert [path.name for path in list_checkpoints(folder / "run")] == [f"step-{step:08}" for step in (4, 6, 8)]
    about = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    assert about["configuration"] == MICRO.configuration()


def test_a_run_reports_training_dev_and_both_scores(finished):
    _, _, result = finished
    records = result["records"]
    assert [record["step"] for record in records] == [2, 4, 6, 8] and records[-1]["loss"] < records[0]["loss"]
    assert 1 < result["scores"]["dev_perplexity"] < 1_000 and result["ledger"]["updates"] == 8
    assert len(result["translations"]) == 6
    assert "13a" in result["bleu"].signature and "moses-de|compounds:split" in result["paper_bleu"].signature


def test_a_run_that_is_done_is_not_done_again(finished, monkeypatch):
    folder, corpus, result = finished
    done = []
    monkeypatch.setattr(TokenBatches, "from_update", lambda self, updates: done.append(updates) or iter([]))
    again = run_preset(MICRO, folder, corpus, device="cpu")
    assert done == [8], "it trains again"
    for name in ("translations", "bleu", "paper_bleu", "records", "averaged"):
        assert again[name] == result[name]
