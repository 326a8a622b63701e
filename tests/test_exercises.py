"""Checks of exercises: what is right, which hint a mistake gets, and whether every chapter has its exercises."""

import inspect
import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupytext
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from built import NOTEBOOKS, executed, printed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from transformer.exercises import _CHECKS, Exercise, Verdict, check, list_exercises
from transformer.layers import DecoderLayer
from transformer.masks import causal_mask
from transformer.multi_head import MultiHeadAttention
from transformer.positional_encoding import sinusoids

GRADES = ["Predict, then run", "Minutes", "An hour", "A day"]
NAMES = [exercise.name for exercise in list_exercises()]
COMPUTED = [name for name, one in _CHECKS.items() if not inspect.signature(one.numbers).parameters]
CHOICES = ["11-post-norm"]


# -------------------------------------------------------------------------------- answers, right and wrong

Q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def rotation(
    k: float, layout: str = "pairs", sign: int = 1, exponent: float = 2.0, one_speed: bool = False
) -> np.ndarray:
    """R_k of 16 channels, from its angles."""
    matrix = np.zeros((16, 16))
    for i in range(8):
        angle = sign * k / 10000 ** (0 if one_speed else exponent * i / 16)
        a, b = (2 * i, 2 * i + 1) if layout == "pairs" else (i, i + 8)
        matrix[[a, a, b, b], [a, b, a, b]] = math.cos(angle), math.sin(angle), -math.sin(angle), math.cos(angle)
    return matrix


rng = np.random.default_rng(0)
W = [rng.normal(size=(8, 8)) / 8**0.5 for _ in range(8)]
W_1, W_2 = rng.normal(size=(8, 32)) / 8**0.5, rng.normal(size=(32, 8)) / 32**0.5


def norm(x: np.ndarray) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def attend(x: np.ndarray, memory: np.ndarray, w: list[np.ndarray], mask: Any) -> np.ndarray:
    scores = (x @ w[0]) @ (memory @ w[1]).swapaxes(-1, -2) / 8**0.5
    scores = np.where(mask, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ (memory @ w[2]) @ w[3]


def decoder_layer(
    own: Any = None, cross: Any = True, residual: bool = True, read_memory: bool = True
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A decoder layer in NumPy, or one with a fault."""

    def layer(x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        x = norm(x + attend(x, x, W[:4], np.tril(np.ones((5, 5), dtype=bool)) if own is None else own))
        if read_memory:
            x = norm(x * residual + attend(x, memory, W[4:], cross))
        return norm(x + np.maximum(x @ W_1, 0) @ W_2)

    return layer


torch.manual_seed(0)
OURS = DecoderLayer(
    MultiHeadAttention(8, 2),
    MultiHeadAttention(8, 2),
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)),
    8,
)
OURS.double().eval()


def prefix_mask(size: int, prefix: int) -> torch.Tensor:
    return causal_mask(size) | (torch.arange(size) < prefix)


SYMPTOMS = {"a": "future leaks", "b": "first end ends all", "c": "smoothed perplexity", "d": "position always 0"}
CHANGES = {
    "rotary positions": "inputs",
    "grouped queries": "inputs",
    "key–value cache": "schedule",
    "fused attention": "schedule",
}
LAYER = 4 * 512 * 512 + 2 * 512 * 2048  # multiply–adds a token, without scores
SHARES = [[4 * 512 / (12 * 512 + 2 * n), 8 * 512 / (12 * 512 + 2 * n), 2 * n / (12 * 512 + 2 * n)] for n in (100, 4000)]
DPO = math.log1p(math.exp(-1.5))

RIGHT: dict[str, Any] = {
    "0-reach": [1, 2, 3],
    "1-two-layers": 101,
    "2-dilated": 7,
    "3-weights": 257,
    "3.1-layer-norm": [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)],
    "3.2.1-identity": [[0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035]],
    "3.2.1-third-query": [w / (2 + math.e**2**0.5) for w in (1, 1, math.e**2**0.5)],
    "3.2.1-entropy": (0.165, 1.92, "with"),
    "3.2.2-heads": (115_097_600, 115_097_600),
    "3.2.3-mask": np.array([[j <= min(i, 2) for j in range(5)] for i in range(5)]),
    "3.3-share": 0.40,
    "3.4-untrained": 11.02,
    "3.5-rotation": rotation,
    "3.6-untied": 63_082_496 + 37_888_000,
    "4-where-the-cost-lies": SHARES,
    "5.1-padding": 13 / 40,
    "5.2-two-devices": 2.5,
    "5.2-catch-up": 2048,
    "5.3-rate": 1.40e-4,
    "5.3-crossing": 64_000,
    "5.4-row": 1.576914,
    "6.1-length-penalty": 1.93,
    "6.1-brevity": (0.9487, 1),
    "6.2-row": ("(A) h = 1", {"n_heads"}, [70.0, 71.0, 70.5], [80.0, 81.0, 80.5], True),
    "6.3-twice": (50, 100, 66.7),
    "7-global": 2,
    "9-decoder-layer": decoder_layer(),
    "10-no-encoder": 1_051_648,
    "10-prefix": prefix_mask,
    "10-shell": 0.52,
    "11-depth": (1 / 49, 2.0**-48),
    "11-post-norm": "a",
    "11-gated-width": 1367,
    "11-what-changes": CHANGES,
    "11-pairing": [0, 2, 4, 6, 1, 3, 5, 7],
    "11-cache-bytes": 536_870_912,
    "11-rescale": 0.0498,
    "11-dpo-by-hand": 0.2014,
    "11-dpo-gradient": -0.0912,
    "11-dpo-lead": 1.125e-7,
    "12-four-symptoms": SYMPTOMS,
    "12-smoothing-floor": math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1 / 1499)),
    "A1-it": ("es", "sie"),
}

# Exercise, a typical wrong answer, and words of the hint that it must get.
WRONG: list[tuple[str, Any, str]] = [
    ("0-reach", [1, 2], "one layer"),
    ("0-reach", [0, 1], "other way round"),
    ("0-reach", [2, 3], "sees itself"),
    ("0-reach", [1, 2, 3, 4, 5, 6], "no further than two"),
    ("1-two-layers", 200, "need not wait"),
    ("1-two-layers", 100, "go up"),
    ("1-two-layers", 7, "too small"),
    ("2-dilated", 500, "without gaps"),
    ("2-dilated", 6, "Not enough"),
    ("2-dilated", 9, "double"),
    ("2-dilated", 10, "base 2"),
    ("3-weights", 2056, "8 heads"),
    ("3-weights", 4626, "one attention"),
    ("3-weights", 256, "still more"),
    ("3.1-layer-norm", [1.5, -0.5, -0.5, -0.5], "n - 1"),
    ("3.1-layer-norm", [9 / 3**0.5, 5 / 3**0.5, 5 / 3**0.5, 5 / 3**0.5], "mean away"),
    ("3.1-layer-norm", [1, -1 / 3, -1 / 3, -1 / 3], "not by the variance"),
    ("3.2.1-identity", (Q @ Q.T).softmax(-1), "√d_k"),
    ("3.2.1-identity", (Q @ Q.T / 2).softmax(-1), "root"),
    ("3.2.1-identity", (Q @ Q.T / 2**0.5).softmax(0), "transposed"),
    ("3.2.1-identity", Q @ Q.T / 2**0.5, "softmax is missing"),
    ("3.2.1-identity", torch.eye(3), "V"),
    ("3.2.1-identity", [[3.0, 4.0], [3.4, 4.4], [3.5, 4.5]], "shape"),
    ("3.2.1-third-query", [0.2483, 0.2483, 0.5035], "longer query"),
    ("3.2.1-third-query", (2 * Q @ Q[2]).softmax(-1), "forgot to divide"),
    ("3.2.1-third-query", (2 * Q @ Q[2] * 2**0.5).softmax(-1), "multiplied"),
    ("3.2.1-third-query", (Q @ Q[2]).softmax(-1), "divided by d_k"),
    ("3.2.1-third-query", [4.0185, 5.0185], "asked are the weights"),
    ("3.2.1-entropy", (1.92, 0.165, "with"), "exchanged"),
    ("3.2.1-entropy", (0.165 / math.log(2), 1.92 / math.log(2), "with"), "natural"),
    ("3.2.1-entropy", (0.165, 1.92, "without"), "smaller Jacobian"),
    ("3.2.1-entropy", (0.165, 2.301, "with"), "root"),
    ("3.2.1-entropy", 1.85, "3 parts"),
    ("3.2.2-heads", [2 * 115_097_600] * 2, "two operations"),
    ("3.2.2-heads", [115_097_600, 8 * 115_097_600], "share the width"),
    ("3.2.2-heads", [104_857_600 * 3 // 4 + 10_240_000] * 2, "four matrices"),
    ("3.2.2-heads", [104_857_600] * 2, "scores"),
    ("3.2.3-mask", np.array([[j <= min(i, 2) for i in range(5)] for j in range(5)]), "transposed"),
    ("3.2.3-mask", ~causal_mask(5), "too"),
    ("3.2.3-mask", causal_mask(5), "padding is still seen"),
    ("3.2.3-mask", np.array([[j < min(i, 3) for j in range(5)] for i in range(5)]), "itself"),
    ("3.3-share", 40, "between 0 and 1"),
    ("3.3-share", 0.2, "one stack"),
    ("3.3-share", 0.667, "encoder layer"),
    ("3.4-untrained", math.log(37_000), "same probability"),
    ("3.4-untrained", 11.02 / math.log(2), "bits"),
    ("3.5-rotation", lambda k: rotation(k).T, "transpose"),
    ("3.5-rotation", lambda k: rotation(k, layout="halves"), "alternate"),
    ("3.5-rotation", lambda k: rotation(math.radians(k)), "radians"),
    ("3.5-rotation", lambda k: rotation(k, one_speed=True), "frequency"),
    ("3.5-rotation", lambda k: rotation(k, exponent=1.0), "exponent"),
    ("3.5-rotation", lambda k: rotation(k, sign=-1), "other way"),
    ("3.5-rotation", rotation(1), "function itself"),
    ("3.6-untied", 63_082_496, "one matrix"),
    ("3.6-untied", 63_082_496 + 18_944_000, "two more"),
    ("3.6-untied", 63_082_496 + 37_888_000 + 37_000, "bias"),
    ("4-where-the-cost-lies", SHARES[::-1], "100 tokens first"),
    ("4-where-the-cost-lies", 100 * np.array(SHARES), "between 0 and 1"),
    ("4-where-the-cost-lies", np.array(SHARES)[0], "shape"),
    ("5.1-padding", 27 / 40, "real tokens"),
    ("5.1-padding", 13 / 27, "whole batch"),
    ("5.1-padding", 32.5, "between 0 and 1"),
    ("5.2-two-devices", 3, "mean of the means"),
    ("5.2-catch-up", 3072, "projections"),
    ("5.2-catch-up", 4096, "two products"),
    ("5.3-rate", 100_000**-0.5, "width"),
    ("5.3-rate", 512**0.5 * 100_000**-0.5, "exponent"),
    ("5.3-rate", 512**-0.5 * 100_000 * 4000**-1.5, "rising"),
    ("5.3-crossing", 16_000, "root"),
    ("5.3-crossing", 7000, "mirror"),
    ("5.4-row", 1.551914, "all V classes"),
    ("5.4-row", 1.651914, "V-2"),
    ("5.4-row", 1.451914, "without smoothing"),
    ("6.1-length-penalty", 13**0.6, "toolkit"),
    ("6.1-length-penalty", 3.0, "α = 1"),
    ("6.1-length-penalty", 18**0.6 / 6, "whole fraction"),
    ("6.1-brevity", (0.95, 1), "exponential"),
    ("6.1-brevity", (1, 0.9487), "exchanged"),
    ("6.1-brevity", (0.9487, math.exp(1 - 1 / 1.05)), "rewarded"),
    ("6.2-row", ("(A) h = 3", {"n_heads"}, [1, 2, 3], [1, 2, 3], False), "No row"),
    ("6.2-row", ("(A) h = 1", {"n_heads", "d_k"}, [1, 2, 3], [1, 2, 3], False), "derived"),
    ("6.2-row", ("(A) h = 1", "n_heads", [1, 2, 3], [1, 2, 3], True), "overlap, so"),
    (
        "6.2-row",
        ("big", {"d_model", "d_ff", "n_heads", "dropout"}, [1, 1.1, 1.2], [9, 9.1, 9.2], False),
        "do not overlap",
    ),
    ("6.2-row", ("(D) ε_ls = 0.0", {"label_smoothing"}, [1, 2], [1, 2, 3], False), "three seeds"),
    ("6.3-twice", (0.5, 1, 2 / 3), "percent"),
    ("6.3-twice", (100, 50, 66.7), "exchanged"),
    ("6.3-twice", (50, 100, 75), "harmonic"),
    ("7-global", 1, "knew before"),
    ("9-decoder-layer", decoder_layer(own=True), "No mask"),
    ("9-decoder-layer", decoder_layer(own=np.triu(np.ones((5, 5), bool))), "transposed"),
    ("9-decoder-layer", decoder_layer(own=np.eye(5, dtype=bool)), "misses positions"),
    ("9-decoder-layer", decoder_layer(own=np.tril(np.triu(np.ones((5, 5), bool), -1))), "misses positions"),
    ("9-decoder-layer", decoder_layer(cross=np.tril(np.ones((5, 7), bool))), "over the memory"),
    ("9-decoder-layer", decoder_layer(residual=False), "residual"),
    ("9-decoder-layer", decoder_layer(read_memory=False), "not attended"),
    ("9-decoder-layer", lambda x, memory: decoder_layer()(x, memory)[0], "shape"),
    ("9-decoder-layer", lambda x, memory: decoder_layer()(x, memory) + np.random.default_rng().normal(), "once"),
    ("9-decoder-layer", lambda x: x, "TypeError"),
    ("10-no-encoder", 1_050_624, "layer norm"),
    ("10-no-encoder", 1_048_576, "biases"),
    ("10-no-encoder", 6 * 1_051_648, "stack"),
    ("10-no-encoder", 2 * 1_051_648, "stays"),
    ("10-prefix", lambda size, prefix: causal_mask(size), "later positions of the prefix"),
    ("10-prefix", lambda size, prefix: torch.ones(size, size, dtype=torch.bool), "causal"),
    ("10-prefix", lambda size, prefix: prefix_mask(size, prefix).T, "columns keys"),
    ("10-prefix", lambda size, prefix: prefix_mask(size, prefix + 1), "too many"),
    ("10-prefix", lambda size, prefix: prefix_mask(size, prefix).int(), "booleans"),
    ("10-shell", 0.0, "enough of the past"),
    ("10-shell", 1.213, "current character"),
    ("10-shell", 0.75, "nats"),
    ("11-depth", (1 / 25, 2.0**-24), "two sub-layers"),
    ("11-depth", (1 / 48, 2.0**-48), "49"),
    ("11-depth", (2.0**-48, 1 / 49), "other way round"),
    ("11-depth", (1 / 7, 2.0**-24), "square"),
    ("11-depth", (1 / 49, 0), "too small"),
    ("11-post-norm", "b", "pre-norm"),
    ("11-post-norm", "e", "Choose one of"),
    ("11-gated-width", 1365, "biases"),
    ("11-gated-width", 1024, "half"),
    ("11-what-changes", CHANGES | {"rotary positions": "computation"}, "before Equation 1"),
    ("11-what-changes", CHANGES | {"key–value cache": "inputs"}, "same numbers"),
    ("11-what-changes", {"rotary positions": "inputs"}, "four keys"),
    ("11-pairing", [0, 4, 1, 5, 2, 6, 3, 7], "inverse"),
    ("11-pairing", [1, 3, 5, 7, 0, 2, 4, 6], "exchanged"),
    ("11-pairing", range(8), "as they are"),
    ("11-cache-bytes", 268_435_456, "as well as keys"),
    ("11-cache-bytes", 2_147_483_648, "8 heads"),
    ("11-rescale", math.exp(3), "shrinks"),
    ("11-dpo-by-hand", 0.0486, "β"),
    ("11-dpo-by-hand", 0.3133, "reference"),
    ("11-dpo-by-hand", 1.7014, "sign"),
    ("11-dpo-gradient", 0.0912, "sign"),
    ("11-dpo-gradient", -0.1824, "twice"),
    ("11-dpo-lead", math.log(2), "equals the reference"),
    ("11-dpo-lead", 16, "sign"),
    ("12-four-symptoms", SYMPTOMS | {"b": "padding attended"}, "another sentence ends"),
    ("12-four-symptoms", SYMPTOMS | {"d": "dropout left on"}, "while decoding"),
    ("12-smoothing-floor", 1.0, "floor of the perplexity"),
    ("12-smoothing-floor", 1.111, "without smoothing"),
    ("A1-it", ("sie", "es"), "exchanged"),
    ("A1-it", ("er", "sie"), "neuter"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_is_right(name: str) -> None:
    verdict = check(name, RIGHT[name])
    assert verdict and verdict.right and repr(verdict).startswith("Right. "), verdict


@pytest.mark.parametrize(("name", "answer", "words"), WRONG, ids=[f"{i}-{name}" for i, (name, *_) in enumerate(WRONG)])
def test_a_typical_mistake_gets_its_hint(name: str, answer: Any, words: str) -> None:
    verdict = check(name, answer)
    assert not verdict and repr(verdict).startswith("Not yet. ")
    assert re.search(words, verdict.message), verdict


@pytest.mark.parametrize("name", COMPUTED)
def test_every_mistake_has_a_text_and_every_text_is_used(name: str) -> None:
    one = _CHECKS[name]
    right, wrong = one.numbers()
    hints = set(one.texts) - {"Answer", "Right"}
    assert all(one.texts.values()), "an empty text"
    if isinstance(right, str):
        assert name in CHOICES and right not in hints
        return
    assert hints == set(wrong)
    assert check(name, right)
    for key, numbers in wrong.items():
        assert check(name, numbers).message == one.texts[key]


def test_every_hint_of_the_other_checks_is_raised_by_its_code() -> None:
    for name in set(NAMES) - set(COMPUTED):
        source = inspect.getsource(_CHECKS[name].numbers).rsplit('"""', 1)[1]
        for key in set(_CHECKS[name].texts) - {"Answer", "Right"} - set(SYMPTOMS) - set(CHANGES) - {"key-value cache"}:
            assert f'"{key}"' in source or name == "A1-it", (name, key)


def test_the_table_of_mistakes_covers_every_check() -> None:
    assert set(RIGHT) == set(NAMES) == {name for name, *_ in WRONG}


# Answers by other ways than the check's own.


def test_entropy_by_numerical_integration_of_the_scores() -> None:
    scores = np.random.default_rng(1).standard_normal((20_000, 10)) * np.sqrt(
        np.random.default_rng(2).chisquare(256, (20_000, 1))
    )  # given the query's length, its dot products are independent normal numbers

    def entropy(by: float) -> float:
        p = torch.from_numpy(scores / by).softmax(-1)
        return float(torch.special.entr(p).sum(-1).mean())

    assert check("3.2.1-entropy", (entropy(1), entropy(16), "with"))


def test_two_layers_by_the_longest_path() -> None:
    chain = np.zeros((2, 100), dtype=int)
    for layer in range(2):
        for t in range(100):
            chain[layer, t] = 1 + max(chain[layer, t - 1] if t else 0, chain[layer - 1, t] if layer else 0)
    assert check("1-two-layers", chain.max())


def test_rotation_turns_the_encoding() -> None:
    pe = sinusoids(50, 16).numpy()
    for k in (1, 5, 17):
        assert np.allclose(pe[:30] @ rotation(k).T, pe[k : k + 30])


def test_a_torch_layer_is_a_decoder_layer_too() -> None:
    def ours(x: np.ndarray, memory: np.ndarray) -> torch.Tensor:
        return OURS(torch.from_numpy(x), torch.from_numpy(memory))

    assert check("9-decoder-layer", ours), check("9-decoder-layer", ours)


def test_pairing_turns_alike() -> None:
    x, order, angles = np.random.default_rng(0).normal(size=8), RIGHT["11-pairing"], np.array([0.3, 0.7, 1.1, 1.9])
    cos, sin = np.cos(angles), np.sin(angles)
    pairs = np.stack([x[::2] * cos - x[1::2] * sin, x[::2] * sin + x[1::2] * cos], -1).ravel()
    y = x[order]
    halves = np.concatenate([y[:4] * cos - y[4:] * sin, y[:4] * sin + y[4:] * cos])
    assert np.allclose(halves, pairs[order])


def test_dpo_gradient_by_autograd() -> None:
    chosen = torch.tensor(-4.0, requires_grad=True)
    loss = -F.logsigmoid(0.5 * ((chosen + 5) - (-6 + 4)))
    loss.backward()
    assert check("11-dpo-by-hand", loss) and check("11-dpo-gradient", chosen.grad)


def test_row_by_the_recorded_result(root: Path) -> None:
    runs = json.loads((root / "book/results/variations.json").read_text(encoding="utf-8"))["runs"]

    def scores(row: str) -> list[float]:
        return [run["result"]["test"]["bleu"] for run in runs.values() if run["arguments"]["row"] == row]

    verdicts = [
        check("6.2-row", ("(C) d_model = 32", {"d_model"}, scores("(C) d_model = 32"), scores("base"), it))
        for it in (0, 1)
    ]
    assert sum(map(bool, verdicts)) == 1


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("(A) h = 16", {"n_heads"}),
        ("(B) d_k = 16", {"d_k"}),
        ("(B) d_k = 2", {"d_k"}),
        ("(C) N = 2", {"n_layers"}),
        ("(C) d_ff = 1024", {"d_ff"}),
        ("(D) P_drop = 0.2", {"dropout"}),
        ("(D) ε_ls = 0.2", {"label_smoothing"}),
        ("(E) learned positions", {"positions"}),
        ("big", {"d_model", "d_ff", "n_heads", "dropout"}),
    ],
)
def test_fields_of_the_rows(name: str, fields: set[str]) -> None:
    assert check("6.2-row", (name, fields, [1, 2, 3], [1, 2, 3], False))
    assert "fields" in check("6.2-row", (name, fields | {"max_len"}, [1, 2, 3], [1, 2, 3], False)).message


@pytest.mark.parametrize(("lead", "differs"), [(5.0, True), (4.9, False), (-5.0, True), (-4.9, False)])
def test_intervals_by_student_s_t(lead: float, differs: bool) -> None:
    row, base = [1 + lead, 2 + lead, 3 + lead], [1, 2, 3]  # each ± 4.303 / √3, together 4.97
    assert check("6.2-row", ("(A) h = 1", {"n_heads"}, row, base, differs))
    assert not check("6.2-row", ("(A) h = 1", {"n_heads"}, row, base, not differs))


# -------------------------------------------------------------------------------- any answer, any name


@pytest.mark.parametrize(
    "as_type", [list, tuple, np.array, np.float32, torch.tensor, lambda x: torch.tensor(x, requires_grad=True)]
)
def test_numbers_in_any_form(as_type: Callable[[Any], Any]) -> None:
    assert check("3.2.1-third-query", as_type(RIGHT["3.2.1-third-query"]))
    assert check("5.4-row", np.float64(1.576914)) and check("5.4-row", torch.tensor([1.576914]))
    assert check("3.2.1-third-query", [torch.tensor(w) for w in RIGHT["3.2.1-third-query"]])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (float("nan"), "NaN or infinity"),
        (-np.inf, "NaN or infinity"),
        ("2", "type str"),
        ([[1], [2, 3]], "rows differ"),
        (lambda: 2, "type function"),
        ([1, 2], "one number"),
    ],
)
def test_what_is_no_number_is_said_to_be_none(answer: Any, words: str) -> None:
    assert words in check("7-global", answer).message


class Hostile:
    """An object that raises whenever somebody looks."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = None  # type: ignore[assignment]


def stops(*inputs: Any) -> None:
    raise SystemExit(1)


RUBBISH: list[Any] = [
    *(
        None,
        "",
        "a word",
        b"bytes",
        float("nan"),
        float("inf"),
        1j,
        -1,
        10**400,
        True,
        [],
        {},
        set(),
        (),
        object(),
        type,
    ),
    *(stops, Hostile(), [[1], [2, 3]], [None] * 3, [[]], ["1", "2", "3"], np.array([object()]), np.zeros((2, 0))),
    *(
        np.array("2020-01-01", dtype="M8[D]"),
        torch.empty(0),
        torch.full((3, 3), torch.nan),
        torch.zeros(2, device="meta"),
    ),
    *(torch.zeros(3, dtype=torch.complex64), {"a": 1, "b": [], "c": None, "d": {}}, {key: [] for key in CHANGES}),
    *(
        lambda: 0,
        lambda *inputs: None,
        lambda *inputs: float("nan"),
        lambda *inputs: 1 / 0,
        lambda *inputs: [[1], [2, 3]],
    ),
    *(lambda *inputs: inputs, (1, 2, 3, 4, 5), (None, None), (None, None, None), ([], {}, [], [], False)),
    *(("base", {"n_heads"}, [1], [2], True), ("big", None, None, None, None), ("big", 5, 6, 7, 8)),
]


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_raises(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for answer in RUBBISH:
            verdict = check(name, answer)
            assert isinstance(verdict, Verdict) and not verdict, (answer, verdict)
            assert verdict.message and "\n" not in verdict.message and len(verdict.message) < 400


things = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | npst.arrays(np.float64, npst.array_shapes()),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@given(name=st.sampled_from(NAMES), answer=things)
def test_no_generated_answer_raises(name: str, answer: Any) -> None:
    assert isinstance(check(name, answer), Verdict)
    assert isinstance(check(name, lambda *inputs: answer), Verdict)


def test_a_function_may_spoil_its_inputs() -> None:
    def spoils(x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        out = decoder_layer()(x, memory)
        x[:], memory[:] = 0, 0
        return out

    assert check("9-decoder-layer", spoils)


def test_an_interrupt_is_not_swallowed() -> None:
    def interrupted(k: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("3.5-rotation", interrupted)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("3.2.1-identiy", "did you mean '3.2.1-identity'"),
        ("decoder-layer", "9-decoder-layer"),
        ("3.2.1", "3.2.1-"),
        ("zzzzzz", "list_exercises"),
        ("", "list_exercises"),
        (None, "None"),
        (["3.2.1-identity"], "no exercise"),
    ],
)
def test_unknown_names_are_refused_with_near_ones(name: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        check(name, 0)


def test_a_verdict_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        check("7-global", 1).right = True  # type: ignore[misc]


def test_a_global_seed_changes_no_verdict() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    check("3.2.1-entropy", (0.165, 1.92, "with"))
    check("9-decoder-layer", decoder_layer())
    assert torch.random.get_rng_state().equal(state)


# -------------------------------------------------------------------------------- the chapters


def parts(path: Path) -> tuple[str, list[tuple[str, str]], list[str]]:
    """A chapter's title, its exercises as (grade, text), and the folded cells of its solutions."""
    cells = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent").cells
    title = cells[0].source.splitlines()[0].removeprefix("# ")
    place, text = next(
        (i, c.source) for i, c in enumerate(cells) if c.cell_type == "markdown" and "## Exercises" in c.source
    )
    items = re.split(r"^\d+\. ", text.split("## Exercises", 1)[1], flags=re.MULTILINE)[1:]
    exercises = [
        (m[1], m[2]) if (m := re.match(r"\*\*(.+?)\.\*\* (.*)", item, re.DOTALL)) else ("", item) for item in items
    ]
    folded = [c.source for c in cells[place:] if c.cell_type == "code" and "hide-cell" in c.metadata.get("tags", [])]
    return title, exercises, folded


CHAPTERS = {path.stem: parts(path) for path in NOTEBOOKS if "## Exercises" in path.read_text(encoding="utf-8")}


def asked(text: str) -> list[str]:
    """The names of the checks in a text."""
    return re.findall(r'check\("(\d[^"]*|A\d[^"]*)",', text)


def test_every_chapter_has_exercises() -> None:
    assert [path.stem for path in NOTEBOOKS if path.stem not in CHAPTERS] == []


@pytest.mark.parametrize("stem", CHAPTERS)
def test_three_to_six_exercises_from_easy_to_hard(stem: str) -> None:
    _, exercises, folded = CHAPTERS[stem]
    grades = [grade for grade, _ in exercises]
    assert 3 <= len(grades) <= 6
    assert set(grades) <= set(GRADES), grades
    assert grades == sorted(grades, key=GRADES.index) and grades[0] == GRADES[0]
    assert folded, "no solution"


@pytest.mark.parametrize("exercise", list_exercises(), ids=NAMES)
def test_each_exercise_stands_in_one_chapter_and_is_solved_there(exercise: Exercise) -> None:
    places = {
        stem
        for stem, (_, exercises, _) in CHAPTERS.items()
        if any(exercise.name in asked(text) for _, text in exercises)
    }
    places -= {"A5_exercises"}
    assert len(places) == 1, places
    (stem,) = places
    title, exercises, folded = CHAPTERS[stem]
    assert title.startswith(exercise.section) or stem.startswith(f"{exercise.section:0>2}_")
    assert [grade for grade, text in exercises if exercise.name in asked(text)] == [exercise.grade]
    assert any("check" in source and f'"{exercise.name}"' in source for source in folded), "no folded solution calls it"
    assert exercise.grade in GRADES and exercise.question.endswith((".", "?")) and exercise.answer


def test_no_chapter_asks_for_a_check_that_is_not_there() -> None:
    names = {
        name
        for _, exercises, folded in CHAPTERS.values()
        for text in [*(t for _, t in exercises), *folded]
        for name in asked(text)
    }
    assert names - {"3.2.3-hidden"} <= set(NAMES)


@pytest.mark.book
@pytest.mark.parametrize("stem", [stem for stem in CHAPTERS if stem != "A5_exercises"])
def test_the_executed_solutions_are_right(stem: str) -> None:
    notebook = executed(stem)
    solved = [name for name in NAMES if any(name in asked(text) for _, text in CHAPTERS[stem][1])]
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for name in solved:
        shown = [text for source, text in zip(code, printed(notebook), strict=True) if f'"{name}"' in source]
        assert "Right. " in "".join(shown) and "Not yet. " not in "".join(shown), (name, shown)
