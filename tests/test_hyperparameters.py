"""The page of hyperparameters: its tables against the paper's, and against the presets and defaults of the code."""

import ast
import inspect
import re
from typing import Any

import pytest
import torch
import yaml
from built import ROOT, table_rows

import transformer
from transformer import (
    EXTRA_TOKENS,
    PRESETS,
    LabelSmoothingLoss,
    MultiHeadAttention,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    beam_search,
    count_parameters,
    length_penalty,
    make_adam,
    noam_rate,
)
from transformer.preparation import Cleaning

PAGE = (ROOT / "book" / "hyperparameters.md").read_text(encoding="utf-8")
PAPER = ROOT / "book" / "paper"
FACTS = yaml.safe_load((PAPER / "facts.yml").read_text(encoding="utf-8"))
FACT = {fact["id"]: fact for group, facts in FACTS.items() if group != "not_stated" for fact in facts}
TABLES = yaml.safe_load((PAPER / "tables.yml").read_text(encoding="utf-8"))
TABLE_3 = TABLES["table3"]["rows"]
FIELDS = {"N": "n_layers", "d_model": "d_model", "d_ff": "d_ff", "h": "n_heads", "d_k": "d_k", "d_v": "d_v"}
FIELDS["P_drop"] = "dropout"
CONFIGS = {"base": TransformerConfig.base(), "big": TransformerConfig.big()}


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return text


def table(title: str) -> list[dict[str, str]]:
    """The table under a heading, one dictionary a row."""
    return table_rows(section(title))


def number(text: str) -> Any:
    """A cell as a value."""
    words = {"yes": True, "post": "post", "sinusoidal": "sinusoidal", "": None}
    return words[text] if text in words else float(text.replace(",", ""))


def code(text: str) -> str:
    """The first piece of code in a cell."""
    found = re.search(r"`([^`]+)`", text)
    return found[1] if found else ""


def sizes(config: TransformerConfig) -> dict[str, Any]:
    """A configuration by the paper's symbols, nothing left to be worked out."""
    found = {symbol: getattr(config, field) for symbol, field in FIELDS.items()}
    return {symbol: config.d_model // config.n_heads if value is None else value for symbol, value in found.items()}


def ours(name: str, title: str, preset: str) -> Any:
    """What the code has where the page says so."""
    owner, _, field = name.rpartition(".")
    if title == "The model":
        return sizes(CONFIGS[preset])[name] if name in ("d_k", "d_v") else getattr(CONFIGS[preset], name)
    return getattr(PRESETS[preset] if owner == "Preset" else PRESETS[preset].training, field)


def the_papers(column: str) -> dict[str, Any]:
    """The values of base or big by the label of their row, from the paper's tables and facts."""
    base, big = TABLE_3[0], TABLE_3[-1]
    row = {**base, **({} if column == "base" else big)}
    value = {name: fact["value"] for name, fact in FACT.items()}
    scores = {line["model"]: line for line in TABLES["table2"]["groups"][-1]["rows"]}
    score = scores[f"Transformer ({column})" if column == "big" else "Transformer (base model)"]
    days = value["big_time"] * 24
    return {
        "layers in each stack": row["N"],
        "width of the model": row["d_model"],
        "inner width": row["d_ff"],
        "heads": row["h"],
        "width of a key": row["d_k"],
        "width of a value": row["d_v"],
        "dropout": row["P_drop"],
        "normalization": "post" if "post-norm" in FACT["sublayer_output"]["note"] else None,
        "positions": "sinusoidal" if "sin(" in value["positional_encoding"] else None,
        "one matrix for embeddings and output": len(value["weight_sharing"]) == 3,
        "shared vocabulary, English–German": value["ende_vocabulary"],
        "parameters, in millions": row["params_millions"],
        "updates": value[f"{column}_steps"],
        "warm-up": value["warmup_steps"],
        "highest learning rate": value["peak_rate"][column],
        "Adam": [value["beta1"], value["beta2"], value["epsilon"]],
        "label smoothing": row["eps_ls"],
        "source tokens in a batch, about": value["batch_source_tokens"],
        "target tokens in a batch, about": value["batch_target_tokens"],
        "time for an update, in seconds": value[f"{column}_step_time"],
        "time in all, in hours": value["base_time"] if column == "base" else days,
        "P100 GPUs": 8 if "8 NVIDIA P100" in value["machine"] else None,
        "sentence pairs, in millions": value["ende_pairs"] / 1e6,
        "beam": value["beam_size"],
        "length penalty": value["length_penalty_alpha"],
        "longest output beyond the input's length": int(value["max_output_length"].split("+")[1]),
        "checkpoints averaged": value[f"checkpoints_{column}"],
        "minutes between them": value["checkpoint_interval"] if column == "base" else None,
        "BLEU, newstest2014, English–German": score["bleu_en_de"],
        "BLEU, newstest2014, English–French": score["bleu_en_fr"],
    }


THREE = [{**row, "title": title} for title in ("The model", "Training", "Translation") for row in table(title)]


@pytest.mark.parametrize("column", ["base", "big"])
def test_base_and_big_are_the_papers(column: str) -> None:
    paper, adam = the_papers(column), []
    for row in THREE:
        label, shown = row["What"], number(row[column])
        if label == "Adam":
            adam.append(shown)
        else:
            assert shown == paper.pop(label), f"{column}: {label}"
    assert adam == paper.pop("Adam")
    assert not paper, f"not on the page: {list(paper)}"


@pytest.mark.parametrize("column", ["base", "big"])
def test_base_and_big_are_the_codes(column: str) -> None:
    adam = make_adam(torch.nn.Linear(1, 1)).defaults
    with_symbol = {r"$\beta_1$": adam["betas"][0], r"$\beta_2$": adam["betas"][1], r"$\epsilon$": adam["eps"]}
    peak = noam_rate(PRESETS[column].training.warmup_steps, CONFIGS[column].d_model)
    compared = 0
    for row in THREE:
        name, shown = code(row["Here"]), number(row[column])
        if name == "make_adam":
            assert with_symbol[row["Symbol"]] == shown
        elif name == "noam_rate":
            assert f"{peak:.2e}" == row[column].replace("e-", "e-0")
        elif name == "EXTRA_TOKENS":
            assert shown == EXTRA_TOKENS
        elif name in ("", "count_parameters", "checkpoint_minutes", "wmt14-en-de"):
            continue
        else:
            assert ours(name, row["title"], column) == shown, f"{column}: {row['What']}"
        compared += 1
    assert compared == 24
    assert PRESETS[column].model == CONFIGS[column]
    with torch.device("meta"):
        millions = f"{count_parameters(Transformer(CONFIGS[column])) / 1e6:.1f}"
    assert millions in next(row["Here"] for row in THREE if row["What"] == "parameters, in millions")


def test_the_sections_are_those_that_state_the_values() -> None:
    fact = {
        "layers in each stack": "layers", "width of the model": "d_model", "inner width": "d_ff", "heads": "heads",
        "width of a key": "d_k", "width of a value": "d_v", "dropout": "residual_dropout",
        "normalization": "sublayer_output", "positions": "positional_encoding",
        "one matrix for embeddings and output": "weight_sharing",
        "shared vocabulary, English–German": "ende_vocabulary",
        "updates": "base_steps", "warm-up": "warmup_steps", "highest learning rate": "peak_rate", "Adam": "optimizer",
        "label smoothing": "label_smoothing", "source tokens in a batch, about": "batch_source_tokens",
        "target tokens in a batch, about": "batch_target_tokens", "time for an update, in seconds": "big_step_time",
        "time in all, in hours": "base_time", "P100 GPUs": "machine", "sentence pairs, in millions": "ende_pairs",
        "beam": "beam_size", "length penalty": "length_penalty_alpha",
        "longest output beyond the input's length": "max_output_length", "checkpoints averaged": "checkpoints_big",
        "minutes between them": "checkpoint_interval",
    }  # fmt: skip
    for row in THREE:
        if row["§"].startswith("Table"):
            assert row["§"] == ("Table 3" if "parameters" in row["What"] else "Table 2")
        else:
            assert row["§"] == FACT[fact[row["What"]]]["section"], row


def test_every_field_named_exists() -> None:
    sizes_named = {code(row["Here"]) for row in table("The model")} - {"count_parameters"}
    assert len(sizes_named) == 11 and sizes_named <= set(inspect.signature(TransformerConfig).parameters)
    fields = set(inspect.signature(TrainingConfig).parameters)
    assert {"steps", "warmup_steps", "label_smoothing", "checkpoint_minutes"} <= fields
    assert set(re.findall(r"`TrainingConfig\.(\w+)`", PAGE)) <= fields


def test_every_public_name_exists() -> None:
    fields = {*inspect.signature(TransformerConfig).parameters, *inspect.signature(TrainingConfig).parameters}
    named = set(re.findall(r"`(\w+)[`(.\[]", PAGE)) - {"None", "torch", "training"}
    missing = {name for name in named if name not in transformer.__all__ and name not in fields}
    assert not missing


def test_the_variations_are_those_of_table_3() -> None:
    rows, base = table("The variations of Table 3"), TABLE_3[0]
    assert [row["Row"].strip("()") for row in rows] == [row["row"] for row in TABLE_3]
    for shown, printed in zip(rows, TABLE_3, strict=True):
        assert (float(shown["Perplexity"]), float(shown["BLEU"])) == (printed["ppl_dev"], printed["bleu_dev"])
        assert number(shown["Parameters, in millions"]) == printed.get("params_millions")
        made = eval(code(shown["Here"]))
        config = TransformerConfig.base() if isinstance(made, TrainingConfig) else made
        smoothing = made.label_smoothing if isinstance(made, TrainingConfig) else 0.1
        assert sizes(config) == {symbol: printed.get(symbol, base[symbol]) for symbol in FIELDS}, shown
        assert smoothing == printed.get("eps_ls", base["eps_ls"])
        assert config.positions == ("learned" if "variation" in printed else "sinusoidal")


def test_english_french_is_the_papers_and_the_codes() -> None:
    value = {name: fact["value"] for name, fact in FACT.items()}
    expected = [value["enfr_sentences"] / 1e6, value["enfr_vocabulary"], value["big_enfr_dropout"],
                TABLE_3[-1]["d_model"], value["big_steps"], value["checkpoints_big"]]  # fmt: skip
    rows = table("English–French")
    assert [number(row["Value"]) for row in rows] == expected
    for row in rows[1:]:
        assert eval(code(row["Here"])) == number(row["Value"]), row


def test_parsing_is_the_papers_and_can_be_had() -> None:
    value = {name: fact["value"] for name, fact in FACT.items()}
    names = ["layers", "d_model", "vocab_wsj", "vocab_semi", "beam", "alpha", "max_output_length", "wsj_sentences",
             "semi_sentences", "f1_wsj", "f1_semi"]  # fmt: skip
    expected = [value[f"parsing_{name}"] for name in names]
    expected[6] = int(expected[6].split("+")[1])
    expected[8] /= 1e6
    rows = table("Parsing")
    assert [number(row["Value"]) for row in rows] == expected
    for row in rows[:4]:
        assert eval(code(row["Here"])) == number(row["Value"]), row
    for row in rows[4:7]:
        call = ast.parse(code(row["Here"]).replace("…", "..."), mode="eval").body
        assert isinstance(call, ast.Call) and len(call.keywords) == 1
        assert call.keywords[0].arg in inspect.signature(beam_search).parameters
        if row is not rows[6]:
            assert ast.literal_eval(call.keywords[0].value) == number(row["Value"])


def test_each_open_question_has_its_line_and_its_choice_is_ours() -> None:
    rows = table("What the paper leaves open")
    # A word of each entry of facts.yml, in its order, that must stand in the question.
    words = ["loss", "initial", "biases", "layer normalization", "ReLU", "clipping", "Padding", "long",
             "length penalty", "checkpoints", "script", "test set", "French", "parsers", "seed"]  # fmt: skip
    assert len(rows) == len(words) == len(FACTS["not_stated"])
    for row, word in zip(rows, words, strict=True):
        assert word in row["Question"], row
    choice = dict(zip(words, (row["Our choice"] for row in rows), strict=True))
    attention = MultiHeadAttention(8, 2)
    assert choice["layer normalization"] == "1e-5" and torch.nn.LayerNorm(2).eps == 1e-5
    assert choice["biases"] == "yes" and attention.w_q.bias is not None and attention.w_o.bias is not None
    assert choice["ReLU"] == "neither" and attention.attention_dropout.p == 0
    assert choice["clipping"] == "neither" and TrainingConfig().clip_norm is None
    assert make_adam(attention).defaults["weight_decay"] == 0
    assert choice["Padding"].endswith("ids 0, 1 and 2")
    assert [getattr(TransformerConfig.base(), f"{name}_id") for name in ("pad", "bos", "eos")] == [0, 1, 2]
    assert choice["long"].startswith(f"{Cleaning().max_words} words, {Cleaning().max_pieces} pieces")
    assert length_penalty(torch.tensor([19]), alpha=0.5).item() == 2  # ((5 + 19) / 6)^0.5
    assert choice["checkpoints"].startswith(f"every {PRESETS['big'].training.checkpoint_every} updates, ten minutes")
    assert PRESETS["big"].training.checkpoint_every * FACT["big_step_time"]["value"] == 600
    assert choice["French"] == "yes" and PRESETS["big-en-fr"].model.tie_embeddings
    assert choice["test set"] == "3,003; the official 2,737 on request"


def test_initialization_and_smoothing_are_as_the_page_says() -> None:
    model = Transformer(TransformerConfig.base(1000, n_layers=1))
    weight = model.encoder.layers[0].feed_forward.w_1.weight
    bound = (6 / (512 + 2048)) ** 0.5
    assert bound * 0.99 < weight.abs().max() <= bound and weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert model.encoder.layers[0].feed_forward.w_1.bias.abs().max() == 0
    assert model.embedding.weight.std().item() == pytest.approx(512**-0.5, rel=0.01)
    logits, target = torch.zeros(1, 5, requires_grad=True), torch.tensor([3])
    LabelSmoothingLoss(0.1)(logits, target).backward()
    assert logits.grad[0, 0].item() == pytest.approx(1 / 5 - 0.1 / 4)
