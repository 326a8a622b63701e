# Exported from notebooks/A5_exercises.py, Appendix A5; edit that file, not this one.
# sha256 of what follows: 1a07f37366b8dd4f
"""Exercises (Appendix A5)."""

import copy
import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer.attention import scaled_dot_product_attention
from transformer.complexity import encoder_layer_costs, maximum_path_length
from transformer.decoding import length_penalty
from transformer.loss import LabelSmoothingLoss
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.positional_encoding import sinusoids
from transformer.schedule import noam_rate
from transformer.variations import table3

__all__ = ["Verdict", "Exercise", "check", "list_exercises"]


@dataclass(frozen=True, repr=False)
class Verdict:
    """What `check` says to an answer. True if it is right; shown as its message.

    Args:
        right: Whether the answer is right.
        message: What is worth knowing about the right answer, or a hint that names the mistake.

    Source: not from the paper.
    """

    right: bool
    message: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return ("Right. " if self.right else "Not yet. ") + self.message


@dataclass(frozen=True)
class Exercise:
    """An exercise that has a check.

    Args:
        name: Section and a word, as in "3.2.1-identity".
        grade: "Predict, then run", "Minutes", "An hour" or "A day".
        question: What is asked.
        answer: What an answer looks like.

    Source: not from the paper.
    """

    name: str
    grade: str
    question: str
    answer: str

    @property
    def section(self) -> str:
        """The section or appendix it belongs to."""
        return self.name.split("-")[0]


def check(name: str, answer: object) -> Verdict:
    """Say whether an answer to an exercise is right, and if it is not, why.

    Args:
        name: The exercise's name, as its chapter and `list_exercises` give it.
        answer: Your answer. Whatever it is, it gets a verdict; no error comes from here.

    Returns:
        The verdict.

    Raises:
        ValueError: No exercise has this name.

    Source: not from the paper.
    """
    if not isinstance(name, str) or name not in _CHECKS:
        near = difflib.get_close_matches(str(name), _CHECKS, n=3, cutoff=0.5)
        like = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; list_exercises() has all names."
        raise ValueError(f"no exercise is called {name!r}{like}")
    one = _CHECKS[name]
    try:
        one.judge(answer)
    except _Hint as hint:
        return Verdict(False, one.texts.get(str(hint), str(hint)))
    except Exception as error:  # an answer may be any object, with any behaviour
        return Verdict(False, f"The answer cannot be read ({type(error).__name__}). Wanted: {one.exercise.answer}")
    return Verdict(True, one.texts["Right"])


def list_exercises() -> list[Exercise]:
    """Every exercise that has a check, in the order of the sections.

    Returns:
        Name, grade, question and form of the answer of each.

    Source: not from the paper.
    """
    return [one.exercise for one in _CHECKS.values()]


class _Hint(Exception):
    """What is wrong with an answer: a key of the check's docstring, or a sentence."""


@dataclass(frozen=True)
class _Check:
    """An exercise, its texts by key, its numbers, and how near an answer must be."""

    exercise: Exercise
    texts: dict[str, str]
    numbers: Callable[..., Any]
    tolerance: float

    def judge(self, answer: Any) -> None:
        """Raise a hint if the answer is not right."""
        reads = bool(inspect.signature(self.numbers).parameters)
        found = self.numbers(answer) if reads else self.numbers()
        if found is None:  # it has judged by itself
            return
        given, right, wrong = found if reads else (answer, *found)
        if isinstance(right, str):
            _choose(given, right, [key for key in self.texts if key not in ("Answer", "Right")])
        else:
            _compare(given, right, wrong, self.tolerance)


_CHECKS: dict[str, _Check] = {}


def _exercise(name: str, grade: str, tolerance: float = 1e-3) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a check in the list. Its docstring: the question, then for each key a line, or more that are indented."""

    def keep(numbers: Callable[..., Any]) -> Callable[..., Any]:
        question, *lines = re.split(r"\n(?=Answer: )", inspect.cleandoc(numbers.__doc__ or ""), maxsplit=1)
        entries = re.sub(r"\n +", " ", "".join(lines)).splitlines()
        texts = {"Right": "", "Answer": "", **dict(entry.split(": ", 1) for entry in entries)}
        exercise = Exercise(name, grade, " ".join(question.split()), texts["Answer"])
        _CHECKS[name] = _Check(exercise, texts, numbers, tolerance)
        return numbers

    return keep


def _numbers(answer: Any) -> Tensor:
    """An answer's numbers, float64, in whatever shape it has them."""
    if isinstance(answer, list | tuple):  # of tensors or of other numbers
        answer = [part.tolist() if isinstance(part, Tensor | np.ndarray) else part for part in answer]
    try:
        found = np.asarray(answer.detach().cpu() if isinstance(answer, Tensor) else answer)
    except (TypeError, ValueError, RuntimeError):
        raise _Hint("The answer is no table of numbers: its rows differ in length, or hold something else.") from None
    if found.dtype.kind not in "biuf":
        raise _Hint(f"The answer is of type {type(answer).__name__}; give a number, or numbers.")
    numbers = torch.from_numpy(found.astype(np.float64))
    if not numbers.isfinite().all():
        raise _Hint("The answer holds NaN or infinity: look for a division by 0, or a softmax over a row of -inf.")
    return numbers


def _compare(answer: Any, right: Any, mistakes: dict[str, Any], tolerance: float) -> None:
    """Raise a hint unless the answer is near the right numbers: that of the mistake it is near, or where it is off."""
    found, wanted = _numbers(answer), torch.as_tensor(right, dtype=torch.float64)
    if wanted.dim() == 0 and found.numel() == 1:
        found = found.reshape(())

    def allowed(numbers: Tensor) -> Tensor:
        return tolerance * (numbers.abs() + numbers.abs().max() / 10)

    def near(numbers: Any) -> bool:
        numbers = torch.as_tensor(numbers, dtype=torch.float64)
        return found.shape == numbers.shape and bool(((found - numbers).abs() <= allowed(numbers)).all())

    if near(wanted):
        return
    for key, numbers in mistakes.items():
        if near(numbers):
            raise _Hint(key)
    if found.shape != wanted.shape:
        raise _Hint(f"The answer has shape {tuple(found.shape)}; wanted: {tuple(wanted.shape) or 'one number'}.")
    off = (found - wanted).abs() > allowed(wanted)
    first = tuple(int(i) for i in off.nonzero()[0]) if wanted.dim() else ()
    where = f"The entry at {list(first)} is" if first else "The answer is"
    raise _Hint(f"{where} too {'large' if found[first] > wanted[first] else 'small'}.")


def _choose(answer: Any, right: str, wrong: list[str]) -> None:
    """Raise a hint unless the answer is the right word."""
    chosen = answer.strip().lower() if isinstance(answer, str) else ""
    if chosen != right:
        raise _Hint(chosen if chosen in wrong else f"Choose one of {', '.join(map(repr, sorted([right, *wrong])))}.")


def _call(function: Any, *inputs: Any) -> Any:
    """The result of a function that was given as an answer."""
    if not callable(function):
        raise _Hint(f"The answer is of type {type(function).__name__}; give the function itself, without calling it.")
    try:
        return function(*copy.deepcopy(inputs))
    except (Exception, SystemExit) as error:
        raise _Hint(f"Your function raised {type(error).__name__}: {error}") from error


def _parts(answer: Any, names: list[str]) -> tuple[Any, ...]:
    """An answer in several parts."""
    if not isinstance(answer, list | tuple) or len(answer) != len(names):
        raise _Hint(f"Give {len(names)} parts in a tuple: {', '.join(names)}.")
    return tuple(answer)


@functools.cache
def _size(part: str = "", **changes: Any) -> int:
    """How many parameters the base model has, or a part of it."""
    with torch.device("meta"):  # shapes without numbers
        return count_parameters(Transformer(TransformerConfig.base(**changes)).get_submodule(part))


@_exercise("0-reach", "Predict, then run", tolerance=0)
def _reach() -> Any:
    """Each of seven positions attends to itself and the one before. Which outputs move with input 1, after two layers?

    Answer: a list of positions, counted from 0.
    Right: Each layer reaches one position further.
    one layer: That is one layer. The second hands on what the first brought to position 2.
    transposed: Those are the inputs that output 1 depends on; asked is the other way round.
    not itself: Position 1 sees itself, too.
    all later: Two layers carry a change no further than two positions.
    """
    sees = torch.ones(7, 7).tril().triu(-1)
    moved, inputs = (sees @ sees)[:, 1].nonzero()[:, 0], (sees @ sees)[1].nonzero()[:, 0]
    return moved, {"one layer": moved[:2], "transposed": inputs, "not itself": moved[1:], "all later": range(1, 7)}


@_exercise("1-two-layers", "Predict, then run", tolerance=0)
def _two_layers() -> Any:
    """Two recurrent layers run over 100 positions, one above the other. How many steps has the longest chain?

    Answer: a whole number; a step computes one state from those before it.
    Right: Depth is cheap, length is not: n + layers - 1.
    one after the other: The upper layer need not wait for the end of the lower: it starts after the first state.
    one layer: That is one layer. The last state of the lower layer still has to go up.
    two more: The upper layer starts one step after the lower, so it ends one step later, not two.
    """
    return 100 + 1, {"one after the other": 2 * 100, "one layer": 100, "two more": 100 + 2}


@_exercise("2-dilated", "Predict, then run", tolerance=0)
def _dilated() -> Any:
    """Convolutions with k = 3 have gaps of 1, 3, 9, … How many layers connect two positions that are 1,000 apart?

    Answer: a whole number.
    Right: The first power of 3 that holds 1,001 positions is 3^7 = 2,187.
    no gaps: That is without gaps, each layer adding two positions.
    one too few: Not enough: L layers see 3^L positions, and both ends count.
    doubled: That is for gaps that double; these grow threefold.
    base 2: You took the logarithm to base 2; a layer multiplies what is seen by k = 3.
    """
    right, plain = (maximum_path_length(f"{kind}convolutional", 1001, k=3) for kind in ("dilated ", ""))
    doubled, base_2 = (math.ceil(math.log2(reach)) for reach in (501, 1001))
    return right, {"no gaps": plain, "one too few": right - 1, "doubled": doubled, "base 2": base_2}


@_exercise("3-weights", "Minutes", tolerance=0)
def _weights_and_logits() -> Any:
    """From which length n = m on have all attentions of the base model more weights than there are logits?

    Answer: a whole number; V = 37,000.
    Right: 18 · 8 · n² against 37,000 n.
    no heads: Each attention has one table of weights for each of its 8 heads.
    one attention: That is one attention; the model has 18.
    encoder: Those are the encoder's alone. Each decoder layer has two more.
    one a layer: A decoder layer has two attentions: 6 + 2 · 6 in all.
    equal: At this length the logits are still more.
    """
    tables = {"no heads": 18, "one attention": 8, "encoder": 6 * 8, "one a layer": 12 * 8}
    right = 37_000 // (18 * 8) + 1
    return right, {key: 37_000 // each + 1 for key, each in tables.items()} | {"equal": right - 1}


@_exercise("3.1-layer-norm", "Predict, then run", tolerance=2e-3)
def _layer_norm() -> Any:
    """What does layer normalization, with gain 1 and bias 0, make of the row (9, 5, 5, 5)?

    Answer: four numbers, to three digits.
    Right: Mean 0 and variance 1: the row (1, 0, 0, 0) gives the same, since shift and scale go.
    n - 1: You divided by n - 1 in the variance. Layer normalization describes, it does not estimate: divide by n.
    variance: Divide by the standard deviation, not by the variance.
    mean alone: That has mean 0, but not yet variance 1.
    no mean: Take the mean away first.
    rms: That divides by the root mean square, as RMSNorm does. Take the mean away first.
    """
    x = torch.tensor([9.0, 5.0, 5.0, 5.0], dtype=torch.float64)
    y, deviation = x - x.mean(), x.std(correction=0)
    wrong = {"n - 1": y / x.std(), "variance": y / deviation**2, "mean alone": y, "no mean": x / deviation}
    return F.layer_norm(x, (4,), eps=0), wrong | {"rms": x / x.square().mean().sqrt()}


_THREE_KEYS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # Section 3.2.1; queries, too


@_exercise("3.2.1-identity", "Predict, then run", tolerance=2e-3)
def _identity() -> Any:
    """In the example with three queries and keys, V is replaced by the identity. What is the output?

    Answer: a table of 3 × 3 numbers, to three digits.
    Right: The output is the weights: the identity makes them visible.
    transposed: That is transposed: row i belongs to query i.
    no root: You forgot to divide by √d_k.
    d_k: You divided by d_k; divide by its root.
    n: d_k is the width of a key, 2, not the number of keys.
    scores: Those are the scores; the softmax is missing.
    V: That is V. The output mixes its rows.
    """
    dots, eye = _THREE_KEYS @ _THREE_KEYS.mT, torch.eye(3, dtype=torch.float64)
    right, _ = scaled_dot_product_attention(_THREE_KEYS, _THREE_KEYS, eye)
    by = {key: (dots / size).softmax(-1) for key, size in (("no root", 1), ("d_k", 2), ("n", 3**0.5))}
    return right, {"transposed": right.mT, **by, "scores": dots / 2**0.5, "V": eye}


@_exercise("3.2.1-third-query", "Predict, then run", tolerance=2e-3)
def _third_query() -> Any:
    """The third query of the chapter's example is set to (2, 2), the keys stay. What are its weights?

    Answer: three numbers, to three digits.
    Right: Twice the query, twice the scores, and a sharper softmax.
    old: Those are the weights of (1, 1). A longer query asks more decidedly.
    no root: You forgot to divide by √d_k.
    multiplied: You multiplied by √d_k; divide.
    d_k: You divided by d_k; divide by its root.
    scores: Those are the scores; the softmax is missing.
    output: That is the output; asked are the weights.
    """
    dots, values = _THREE_KEYS @ _THREE_KEYS.new_tensor([2.0, 2.0]), _THREE_KEYS.new_tensor([[1, 2], [3, 4], [5, 6]])
    factors = {"Right": 0.5**0.5, "old": 0.5**1.5, "no root": 1, "multiplied": 2**0.5, "d_k": 0.5}
    weights = {key: (dots * factor).softmax(-1) for key, factor in factors.items()}
    right = weights.pop("Right")
    return right, weights | {"scores": dots / 2**0.5, "output": right @ values}


@_exercise("3.2.1-entropy", "An hour")
def _entropy(answer: Any) -> None:
    """Queries and ten keys have normal components, d_k = 256. What is the mean entropy of a row of weights?

    Give it without the factor and with it, and say which of the two softmaxes has the larger Jacobian.

    Answer: (without, with, "without" or "with"), the entropies in nats, good to 5 %.
    Right: A sharp row has little entropy and a Jacobian diag(p) - ppᵀ near 0: hardly any gradient passes.
    exchanged: The two are exchanged: large scores make a sharp softmax, and that has little entropy.
    bits: Those are bits; take the natural logarithm.
    d_k: You divided by d_k; divide by its root.
    jacobian: Where one weight is nearly 1, diag(p) - ppᵀ is nearly 0: the sharper softmax has the smaller Jacobian.
    """
    *given, larger = _parts(answer, ["entropy without the factor", "entropy with it", "which Jacobian is larger"])
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randn(10_000, 256, generator=draw).norm(dim=-1, keepdim=True)  # of the queries
    scores = lengths * torch.randn(10_000, 10, generator=draw)  # q·k for normal k: normal, and as wide as q is long
    entropy = torch.stack([torch.special.entr((scores / by).softmax(-1)).sum(-1).mean() for by in (1, 16, 256)])
    wrong = {"exchanged": entropy[:2].flip(0), "bits": entropy[:2] / math.log(2), "d_k": entropy[::2]}
    _compare(given, entropy[:2], wrong, tolerance=0.05)
    if str(larger).strip().lower() != "with":
        raise _Hint("jacobian")


@_exercise("3.2.2-heads", "Minutes", tolerance=0)
def _heads() -> Any:
    """How many multiply-adds does self-attention of width 512 over n = 100 take, with one head, and with eight?

    Projections count, the output's among them; softmax and biases do not.

    Answer: (one head of 512, eight heads of 64).
    Right: Equal, and so are the parameters. Not equal: the weights, eight tables of n × n, and the softmaxes.
    operations: You counted a multiply-add as two operations.
    eightfold: The heads share the width: each is 64 wide, an eighth of the work.
    wide heads: Each head's scores are sums over 64 components, not over 512.
    one of eight: That is one of the eight heads.
    three: The output is projected, too: four matrices, not three.
    projections: The scores and the weighted sums are missing: 2 n² d.
    products: The four projections are missing: 4 n d².
    """
    n, d = 100, 512
    matrices, products = 4 * n * d * d, 2 * n * n * d
    one = matrices + products
    wrong = {"eightfold": [one, 8 * one], "wide heads": [one, matrices + 8 * products], "one of eight": [one, one // 8]}
    both = {"operations": 2 * one, "three": one - n * d * d, "projections": matrices, "products": products}
    return [one, one], wrong | {key: [number, number] for key, number in both.items()}


@_exercise("3.2.3-mask", "Minutes")
def _mask() -> Any:
    """A target of five positions ends in two of padding. Which mask does its self-attention need?

    Answer: 5 × 5 booleans, row i for query i, True where it may attend.
    Right: What is not later, and not padding.
    transposed: That is transposed: rows are queries, columns are keys.
    opposite: That is the opposite: True is where a query may attend.
    causal: The padding is still seen, by the last two rows.
    padding: That hides the padding, but not what comes later.
    itself: A position sees itself, too; its input is the token before the one that it predicts.
    rows: Rows of padding need no hiding, since nobody reads them. Only keys are masked.
    """
    causal, real = causal_mask(5), padding_mask(torch.tensor([[1, 7, 8, 0, 0]]))[0, 0]  # (5, 5), (1, 5)
    right = causal & real
    wrong = {"transposed": right.mT, "opposite": ~right, "causal": causal, "padding": real.expand(5, 5)}
    return right, wrong | {"itself": right.tril(-1), "rows": right & real.mT}


@_exercise("3.3-share", "Predict, then run", tolerance=0.015)
def _share() -> Any:
    """Which share of the base model's parameters do its feed-forward networks hold?

    Answer: a number between 0 and 1, to two digits.
    Right: Twelve networks of two million each.
    percent: Give a share between 0 and 1.
    half: That is one stack, or one of the two matrices.
    layers: That is their share of the layers; the vocabulary's matrix counts, too.
    encoder: That is their share of an encoder layer.
    """
    total, held = _size(), 12 * _size("encoder.layers.0.feed_forward")
    wrong = {"percent": 100 * held / total, "half": held / total / 2, "layers": held / (total - 37_000 * 512)}
    return held / total, wrong | {"encoder": 2 / 3}


@_exercise("3.4-untrained", "Minutes", tolerance=1.5e-3)
def _untrained() -> Any:
    """With which loss does a base model with 37,000 tokens begin, in nats, if its logits have variance 1?

    Answer: a number, to two digits after the point.
    Right: ln V + σ²/2.
    uniform: That is a model that gives every token the same probability. Logits that vary cost more: how much?
    whole: Half of the variance is added, not all of it.
    bits: Those are bits; take the natural logarithm.
    bits of V: Those are bits, and logits that vary cost more.
    """
    known, bit = math.log(37_000), math.log(2)
    return known + 0.5, {"uniform": known, "whole": known + 1, "bits": (known + 0.5) / bit, "bits of V": known / bit}


def _turning(k: float, d_model: int = 16) -> Tensor:
    """The matrix with PE(pos + k) = R_k PE(pos), made of the encoding of k: (d_model, d_model)."""
    pairs = sinusoids(1, d_model, start=k)[0].view(-1, 2)  # type: ignore[arg-type]  # between positions, too
    return torch.block_diag(*(torch.stack([torch.stack([c, s]), torch.stack([-s, c])]) for s, c in pairs))


@_exercise("3.5-rotation", "An hour")
def _rotation(answer: Any) -> None:
    """Write R_k for d_model = 16: the block-diagonal matrix with PE(pos + k) = R_k PE(pos) at every position.

    Answer: a function of k that gives 16 × 16 numbers; sines stand at even places, cosines at odd ones.
    Right: Eight rotations, each at its own speed, and none of them depends on the position.
    transposed: That turns the other way: it is R of -k, the transpose.
    halves: That has all sines first and all cosines after; the paper's alternate.
    degrees: The angles are in radians, not in degrees.
    one speed: Every block turns by the same angle; each has its own frequency, 10000^(-2i/16).
    half exponent: The exponent is 2i/d_model, with i from 0 to 7.
    """
    halves, eight = torch.arange(16).view(8, 2).mT.flatten(), torch.eye(8, dtype=torch.float64)
    for k in (1, 5, -3, 40, 0):
        right = _turning(k)
        wrong = {"transposed": right.mT, "halves": right[halves][:, halves], "degrees": _turning(math.radians(k))}
        wrong |= {"one speed": torch.kron(eight, right[:2, :2]), "half exponent": _turning(k, 32)[:16, :16]}
        _compare(_call(answer, k), right, wrong, tolerance=1e-4)


@_exercise("3.6-untied", "Minutes", tolerance=0)
def _untied() -> Any:
    """How many parameters has the base model with 37,000 tokens if nothing is tied?

    Answer: a whole number.
    Right: Two more matrices of V × d_model.
    tied: That is with one matrix for all three places.
    one more: Three places share the matrix: source, target and output. Untied, there are two more.
    three more: One of the three is there already; two more come.
    bias: The output projection has no bias.
    """
    tied, right, one = _size(), _size(tie_embeddings=False), 37_000 * 512
    return right, {"tied": tied, "one more": tied + one, "three more": tied + 3 * one, "bias": right + 37_000}


@_exercise("4-where-the-cost-lies", "Minutes", tolerance=0.02)
def _cost() -> Any:
    """Which shares of a base encoder layer's multiply-adds do its parts take, at n = 100 and at n = 4,000?

    Answer: two rows (100, then 4,000) of three numbers: projections, feed-forward, scores and weighted sums together.
    Right: The square is cheap in a sentence, and more than half in a long document.
    percent: Give shares between 0 and 1.
    exchanged: The rows are exchanged: 100 tokens first.
    one product: Scores and weighted sums are two products of n² d each.
    three: Four matrices are projections: the output has one, too.
    one matrix: The feed-forward network has two matrices.
    counts: Those are the multiply-adds; divide each row by its sum.
    """
    parts = [encoder_layer_costs(TransformerConfig.base(), n) for n in (100, 4000)]
    costs = torch.tensor([[c["projections"], c["feed-forward"], 2 * c["scores"]] for c in parts], dtype=torch.float64)
    factors = {"Right": (1, 1, 1), "one product": (1, 1, 0.5), "three": (0.75, 1, 1), "one matrix": (1, 0.5, 1)}
    shares = {key: F.normalize(costs * costs.new_tensor(factor), p=1, dim=-1) for key, factor in factors.items()}
    right = shares.pop("Right")
    return right, shares | {"percent": 100 * right, "exchanged": right.flip(0), "counts": costs}


@_exercise("5.1-padding", "Predict, then run", tolerance=5e-3)
def _padding() -> Any:
    """Sentences of 3, 5, 9 and 10 tokens form a batch. Which share of it is padding?

    Answer: a number between 0 and 1.
    Right: Every row is as long as the longest.
    real: That is the share of real tokens.
    of the real: You divided by the real tokens; padding is a part of the whole batch.
    number: That is the number of padded positions; divide by all positions.
    percent: Give a share between 0 and 1.
    """
    share = 1 - (3 + 5 + 9 + 10) / (4 * 10)
    return share, {"real": 1 - share, "of the real": share / (1 - share), "number": 40 * share, "percent": 100 * share}


@_exercise("5.2-two-devices", "Predict, then run")
def _two_devices() -> Any:
    """One device has 30 target tokens with a mean loss of 2, the other 10 with a mean loss of 4. What is the batch's?

    Answer: the mean loss of a token.
    Right: Sum the losses, sum the tokens, divide once.
    mean of means: That is the mean of the means. The second device has fewer tokens, and each counted three times.
    exchanged: The weights are exchanged: the device with 30 tokens counts for more.
    sum: That is the sum; divide by the 40 tokens.
    by devices: You divided the sum by the number of devices; divide by the 40 tokens.
    """
    return (30 * 2 + 10 * 4) / 40, {"mean of means": 3, "exchanged": 140 / 40, "sum": 100, "by devices": 50}


@_exercise("5.2-catch-up", "Predict, then run", tolerance=0)
def _catch_up() -> Any:
    """From which length on cost scores and weighted sums of a base encoder layer as much as its feed-forward network?

    Answer: a whole number.
    Right: n = d_ff, whatever the width.
    layer: That is against the network and the projections.
    projections: That is against the projections.
    one product: Scores and weighted sums are two products of n² d each.
    """
    one = encoder_layer_costs(TransformerConfig.base(), 1)
    products, network, matrices = one["scores"] + one["weighted sums"], one["feed-forward"], one["projections"]
    against = {"layer": network + matrices, "projections": matrices, "one product": 2 * network}
    return network // products, {key: work // products for key, work in against.items()}


@_exercise("5.3-rate", "Predict, then run", tolerance=5e-3)
def _rate() -> Any:
    """Which learning rate has update 100,000 of the base model?

    Answer: a number, to three digits.
    Right: A fifth of the peak: √(4,000/100,000).
    no width: The factor of the width is missing, d_model^-0.5.
    rising: That is the rising branch; take the smaller of the two, and the warm-up is long over.
    root of the width: The exponent of d_model is -0.5: wider models learn more slowly.
    peak: That is the peak, at update 4,000.
    linear: It falls with the root of the update, not with the update.
    """
    d, s, w = 512, 100_000, 4000
    wrong = {"no width": s**-0.5, "rising": d**-0.5 * s * w**-1.5, "root of the width": (d / s) ** 0.5}
    return noam_rate(s, d, w), wrong | {"peak": noam_rate(w, d, w), "linear": noam_rate(w, d, w) * w / s}


@_exercise("5.3-crossing", "Minutes")
def _crossing() -> Any:
    """At which update is base's rate back at that of update 1,000?

    Answer: a whole number.
    Right: s = w³ / 1000².
    linear: So it would be if the rate fell with the update; it falls with its root.
    mirror: The fall is no mirror image of the rise: it is much slower.
    rise: That is on the way up; asked is the way down.
    """
    return 4000**3 // 1000**2, {"linear": 4000**2 // 1000, "mirror": 2 * 4000 - 1000, "rise": 1000}


@_exercise("5.4-row", "Minutes", tolerance=2e-4)
def _smoothed() -> Any:
    """Logits 2, 1, 0, -1, -2; the true token is the second; ε = 0.1. What is the smoothed loss, by our rule?

    Answer: a number in nats, to four digits after the point.
    Right: The true token gets 1-ε, every other class ε/(V-1).
    V: You spread ε over all V classes, the true one among them: ε/V.
    V-2: You left one class out, as for padding: ε/(V-2).
    plain: That is without smoothing.
    bits: Those are bits; take the natural logarithm.
    true alone: The other classes' part is missing: ε/(V-1) each.
    whole: ε is shared by the V-1 other classes; each gets ε/(V-1).
    """
    z, y = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]], dtype=torch.float64), torch.tensor([1])
    nll, right = -z.log_softmax(-1)[0], LabelSmoothingLoss(0.1)(z, y)
    true, others = 0.9 * nll[1], 0.1 * (nll.sum() - nll[1])
    wrong = {"V": F.cross_entropy(z, y, label_smoothing=0.1), "V-2": true + (others - 0.1 * nll[0]) / 3}
    return right, wrong | {"plain": nll[1], "bits": right / math.log(2), "true alone": true, "whole": true + others}


@_exercise("6.1-length-penalty", "Predict, then run", tolerance=4e-3)
def _length_penalty() -> Any:
    """By what is the log-probability of a translation of 13 tokens divided, with α = 0.6?

    Answer: a number, to two digits after the point.
    Right: Longer outputs are divided by more, and log-probabilities are negative.
    plain: That is |Y|^α, as another toolkit has it; GNMT's formula is ((5 + |Y|) / 6)^α.
    alpha 1: That is α = 1.
    no 6: The 6 is missing: ((5 + |Y|) / 6)^α.
    6 outside: The power is over the whole fraction: ((5 + |Y|) / 6)^α.
    inverse: You took one over it: the log-probability is divided by the penalty.
    no 5: The 5 is missing: ((5 + |Y|) / 6)^α.
    """
    right = length_penalty(torch.tensor(13), alpha=0.6).item()
    wrong = {"plain": 13**0.6, "alpha 1": 3, "no 6": 18**0.6, "6 outside": 18**0.6 / 6}
    return right, wrong | {"inverse": 1 / right, "no 5": (13 / 6) ** 0.6}


@_exercise("6.1-brevity", "Minutes", tolerance=1e-4)
def _brevity() -> Any:
    """A system writes 5 % fewer words than the references, another 5 % more. What are their brevity penalties in BLEU?

    Answer: two numbers, to four digits after the point.
    Right: Only what is too short is punished.
    ratio: The penalty is exponential: exp(1 - r/c), with r words of reference and c of output.
    wrong way: You divided the wrong way round: exp(1 - r/c), r of the reference, c of the output.
    reward: Too many words are not rewarded: the penalty is at most 1.
    punished: Too many words cost only precision: their brevity penalty is 1.
    exchanged: The two are exchanged: BLEU punishes what is too short.
    """
    short = math.exp(1 - 1 / 0.95)
    wrong = {"ratio": [0.95, 1], "wrong way": [math.exp(1 - 0.95), 1], "reward": [short, math.exp(1 - 1 / 1.05)]}
    return [short, 1], wrong | {"punished": [short, math.exp(1 - 1.05)], "exchanged": [1, short]}


@_exercise("6.2-row", "An hour")
def _row(answer: Any) -> None:
    """Take a row of Table 3 in miniature. What does it vary, and does its BLEU differ from base by more than seeds do?

    By the chapter's rule two rows differ if their 95 % intervals, by Student's t, do not overlap.

    Answer: (row's name, set of fields changed, its BLEU for three seeds, base's BLEU for three seeds, True or False).
    Right: One run a row could not have told you.
    fields: These are not the fields that the row changes. Name fields of TransformerConfig, and label_smoothing of the
        loss; what is derived from them, as d_k is from the heads, does not count.
    seeds: Give the scores of three seeds for the row, and as many for base.
    overlap: The intervals overlap, so chance alone may explain the difference.
    apart: The intervals do not overlap: that is more than seeds explain.
    """
    name, fields, row, base, differs = _parts(answer, ["name", "fields", "its BLEU", "base's BLEU", "verdict"])
    small = TransformerConfig.tiny(d_model=64, d_ff=256, n_heads=8, n_layers=3)
    rows = {v.name: (v, config) for config in (TransformerConfig.base(), small) for v in table3(config)[1:]}
    if name not in rows:
        raise _Hint(f"No row is called {name!r}. Try {difflib.get_close_matches(str(name), rows, n=1, cutoff=0)[0]!r}.")
    variation, config = rows[name]
    changed = {field for field, value in asdict(variation.config).items() if value != asdict(config)[field]}
    if ({fields} if isinstance(fields, str) else set(fields)) != (changed or {"label_smoothing"}):
        raise _Hint("fields")
    scores = [_numbers(some) for some in (row, base)]
    if any(some.shape != (3,) for some in scores):
        raise _Hint("seeds")
    halves = sum(4.303 * some.std() / math.sqrt(3) for some in scores)  # Student's t, two degrees of freedom
    overlap = bool((scores[0].mean() - scores[1].mean()).abs() <= halves)
    if bool(differs) is overlap:
        raise _Hint("overlap" if overlap else "apart")


@_exercise("6.3-twice", "Predict, then run", tolerance=2e-3)
def _twice() -> Any:
    """A parser finds the right tree, and writes every phrase of it twice. What are its precision, recall and F1?

    Answer: three numbers in percent.
    Right: Every second phrase is one too many.
    shares: Give percent.
    exchanged: Precision and recall are exchanged: half of what is written is right, and nothing is missing.
    arithmetic: F1 is the harmonic mean, not the arithmetic one.
    perfect: A phrase that is there once can be found once only; the second copy is wrong.
    """
    f1 = 2 * 50 * 100 / (50 + 100)
    wrong = {"shares": [0.5, 1, f1 / 100], "exchanged": [100, 50, f1], "arithmetic": [50, 100, 75]}
    return [50, 100, f1], wrong | {"perfect": [100] * 3}


@_exercise("7-global", "Minutes", tolerance=0)
def _global() -> Any:
    """Each of 4,000 positions sees ten neighbours to each side, and a global token that sees all and is seen by all.

    After how many layers has any position heard of any other?

    Answer: a whole number.
    Right: One layer to the global token, and one from there.
    one: One layer brings everything to the global token, but it hands on what it knew before.
    without: That is without the global token.
    three: The second layer can read from the global token what the first brought there.
    """
    return 2, {"one": 1, "without": maximum_path_length("restricted self-attention", 4000, r=21), "three": 3}


def _moves(layer: Any, x: Tensor, memory: Tensor, which: int) -> Tensor:
    """Which output moves with which position of the target (0) or of the source (1): bool (outputs, positions)."""
    columns, before = [], _numbers(_call(layer, x.numpy(), memory.numpy()))
    for position in range((x, memory)[which].size(1)):
        inputs = [x.clone(), memory.clone()]
        inputs[which][:, position] += torch.arange(8).cos()  # in a direction of its own
        after = _numbers(_call(layer, inputs[0].numpy(), inputs[1].numpy()))
        columns.append((after - before)[0].abs().amax(-1) > 1e-9)
    return torch.stack(columns, dim=-1)


@_exercise("9-decoder-layer", "An hour")
def _decoder_layer(answer: Any) -> None:
    """Write a decoder layer in NumPy, with weights of your own: target of 5 positions, source of 7, width 8.

    Answer: a function of target (1, 5, 8) and memory (1, 7, 8) that gives (1, 5, 8); draw the weights outside of it.
    Right: Targets feel what came before them, all feel the whole source, and the target gets past the attention.
    shape: Return an array of the target's shape, (1, 5, 8), and draw the weights once, outside of the function.
    no mask: No mask in the self-attention: a position sees later ones.
    transposed: Your mask is transposed: position i must see those up to i, and it sees those from i on.
    no memory: The memory is not attended to.
    memory mask: A mask sits on the attention over the memory; every target position may see the whole source.
    no residual: No residual connection around the attention over the memory: where the source is the same everywhere,
        your output does not depend on the target.
    alone: Self-attention misses positions: does each query see itself and all positions before it?
    """
    draw = torch.Generator().manual_seed(0)
    x, memory, other = (torch.randn(1, size, 8, generator=draw, dtype=torch.float64) for size in (5, 7, 5))
    pairs = [(x, memory), (x, memory), (x, memory[:, :1].expand(1, 7, 8)), (other, memory[:, :1].expand(1, 7, 8))]
    once, again, flat, flat_other = (_numbers(_call(answer, a.numpy(), b.numpy())) for a, b in pairs)
    if once.shape != x.shape or not once.equal(again):
        raise _Hint("shape")
    own, source = _moves(answer, x, memory, 0), _moves(answer, x, memory, 1)
    later, earlier, all_before = own.triu(1).any(), own.tril(-1).any(), own[causal_mask(5)].all()
    found = {"no mask": later and earlier, "transposed": later, "no memory": not source.any()}
    found |= {"memory mask": not source.all(), "no residual": torch.allclose(flat, flat_other), "alone": not all_before}
    for key in (key for key, wrong in found.items() if wrong):
        raise _Hint(key)


@_exercise("10-no-encoder", "Minutes", tolerance=0)
def _no_encoder() -> Any:
    """A base decoder layer loses the encoder, so there is no memory to attend to. How many parameters go with it?

    Answer: a whole number, for one layer.
    Right: Its keys and values came from the encoder. Without one it has nothing to read, and its norm goes, too.
    no norm: The sub-layer has a residual block of its own: count its layer norm, too.
    no bias, no norm: Our projections have biases, and the sub-layer has a layer norm.
    no bias: Our projections have biases.
    half: Cross-attention has queries and an output, too, not only keys and values of the memory.
    half and norm: Cross-attention has queries and an output, too, not only keys and values of the memory.
    stack: That is the whole stack; asked is one layer.
    both: Self-attention stays; only the sub-layer that read the memory goes.
    """
    attention, norm = (_size(f"decoder.layers.0.memory_attention{part}") for part in ("", "_block"))
    right, plain = attention + norm, 4 * 512**2
    wrong = {"no norm": attention, "no bias, no norm": plain, "no bias": plain + norm, "half": attention // 2}
    return right, wrong | {"half and norm": attention // 2 + norm, "stack": 6 * right, "both": 2 * right}


@_exercise("10-prefix", "Minutes")
def _prefix(answer: Any) -> None:
    """Write the mask of a prefix language model: the prefix sees all of itself, the rest is causal.

    Answer: a function of size and prefix that gives size × size booleans, row i for query i, True where it may attend.
    Right: Causal, or within the prefix.
    not bool: Give booleans of shape (size, size): True where a position may attend.
    causal: The positions of the prefix see later positions of the prefix, too.
    all: Past the prefix the mask is causal: position i must not see i + 1.
    transposed: Rows are queries, columns keys: yours lets the prefix see what follows it.
    one more: One position too many belongs to the prefix.
    opposite: That is the opposite: True is where a position may attend.
    """
    for size, prefix in ((6, 3), (5, 1), (4, 0), (4, 4)):
        causal, i, given = causal_mask(size), torch.arange(size) - prefix, _call(answer, size, prefix)
        if np.shape(given) != (size, size) or np.asarray(given).dtype.kind != "b":
            raise _Hint("not bool")
        right = causal | (i < 0)
        wrong = {"causal": causal, "all": causal | True, "transposed": right.mT, "one more": causal | (i <= 0)}
        _compare(given, right, wrong | {"opposite": ~right}, tolerance=0)


@_exercise("10-shell", "Predict, then run", tolerance=8e-3)
def _shell() -> Any:
    """A model that sees one character only learns the text "abacabad" repeated without end. What is its lowest loss?

    Answer: a number, in nats per character.
    Right: Open is only what follows an a.
    zero: A model that sees enough of the past predicts this text perfectly; this one sees one character.
    unigram: It does see the current character: after b comes always a.
    after a: That is the uncertainty after an a. Half of the characters are others, and after those nothing is open.
    bits: In bits that is right; the loss is in nats.
    """
    after_a, any_place = (1 / 2, 1 / 4, 1 / 4), (1 / 2, 1 / 4, 1 / 8, 1 / 8)
    right, unigram = -sum(p * math.log(p) for p in after_a) / 2, -sum(p * math.log(p) for p in any_place)
    return right, {"zero": 0, "unigram": unigram, "after a": 2 * right, "bits": right / math.log(2)}


@_exercise("11-depth", "Minutes")
def _depth(answer: Any) -> Any:
    """Which share of the output's variance is still the input's, after an encoder of 24 layers, pre-norm and post-norm?

    Each sub-layer adds an independent vector of variance 1 to a stream that begins with variance 1. Post-norm divides
    by the spread of the sum after every addition, pre-norm never.

    Answer: (pre-norm, post-norm).
    Right: Pre-norm keeps one part in 49; post-norm halves the input's share at every addition.
    layers: An encoder layer has two sub-layers, each with an addition: count 48, not 24.
    no input: The stream begins with the input's own variance of 1: after 48 additions it is 49.
    exchanged: The other way round: (pre-norm, post-norm), and post-norm halves the share at every sub-layer.
    root: That is the share of the length; variance is its square.
    """
    wrong = {"layers": [1 / 25, 2.0**-24], "no input": [1 / 48, 2.0**-48], "exchanged": [2.0**-48, 1 / 49]}
    logarithms = {key: torch.tensor(pair).double().log() for key, pair in {**wrong, "root": [1 / 7, 2.0**-24]}.items()}
    given = _numbers([float(part) for part in _parts(answer, ["pre-norm", "post-norm"])]).clamp(min=1e-300)
    return given.log(), logarithms["exchanged"].flip(0), logarithms


@_exercise("11-post-norm", "Minutes")
def _post_norm() -> Any:
    """Why does post-norm strain deep stacks?

    (a) Its residual path has a normalization after every sub-layer; each divides what passes, forwards and backwards,
    by the spread of the sum. (b) Its stream grows with depth, so the last layers see large vectors. (c) Its sub-layers
    see inputs that are not normalized. (d) It lacks the final normalization of pre-norm.

    Answer: "a", "b", "c" or "d".
    Right: No sum is bypassed, forwards or backwards. With pre-norm the path of the residual connections is free.
    b: That is pre-norm: nothing divides its stream. Post-norm's keeps variance 1.
    c: They see normalized inputs: the norm after the sub-layer before is theirs.
    d: Its output is normalized already, by the norm of its last sub-layer.
    """
    return "a", {}


@_exercise("11-gated-width", "Minutes", tolerance=0)
def _gated_width() -> Any:
    """A network with d_model = 512, d_ff = 2048 and biases becomes a gated one without biases.

    Which inner width comes nearest to the old number of parameters?

    Answer: a whole number.
    Right: Equal to the last parameter: the biases and what is rounded off pay for two units.
    two thirds: That is two thirds of 2048, rounded down; the biases that it lacks and the rest pay for two more.
    same: At equal width the third matrix makes it half as large again.
    half: Three matrices in place of two ask for two thirds of the width, not for a half.
    """
    old = _size("encoder.layers.0.feed_forward")
    return round(old / (3 * 512)), {"two thirds": 2048 * 2 // 3, "same": 2048, "half": 1024}


@_exercise("11-what-changes", "Minutes")
def _what_changes(answer: Any) -> None:
    """Does it change what attention computes, what goes into it, or when the same numbers are computed?

    Answer: a dict from "rotary positions", "grouped queries", "key-value cache" and "fused attention" to
        "computation", "inputs" or "schedule".
    Right: None of them touches Equation 1.
    form: Give a dict with exactly the four keys; values are "computation", "inputs" or "schedule".
    rotary positions: Rotary positions turn queries and keys before Equation 1; scale, softmax and weighted sum stay.
    grouped queries: With grouped queries, heads of a group get the same keys and values, so outputs change; Equation 1
        does not.
    key-value cache: The cache keeps keys and values instead of computing the same numbers again; the outputs are equal.
    fused attention: Fused attention sums the softmax tile by tile, and the output is equal up to rounding.
    """
    inputs, schedule = ("rotary positions", "grouped queries"), ("key-value cache", "fused attention")
    right = dict.fromkeys(inputs, "inputs") | dict.fromkeys(schedule, "schedule")
    given = {str(key).replace("–", "-"): value for key, value in answer.items()} if isinstance(answer, dict) else {}
    if set(given) != set(right) or not set(given.values()) <= {"computation", "inputs", "schedule"}:
        raise _Hint("form")
    for key in (key for key, value in right.items() if given[key] != value):
        raise _Hint(key)


@_exercise("11-pairing", "Minutes", tolerance=0)
def _pairing() -> Any:
    """Rotary positions turn the pairs (2i, 2i + 1) of eight channels. Which order brings them to pairs (i, i + 4)?

    Answer: eight channel numbers, so that turning x[..., order] by halves is turning x by pairs, and then ordering.
    Right: First members first, then second members: a permutation of the weights, and nothing learned is lost.
    inverse: That is the inverse, from halves to interleaved pairs.
    unchanged: This leaves the pairs as they are.
    exchanged: The two members of each pair are exchanged, which turns the other way.
    """
    pairs = torch.arange(8).view(4, 2)
    wrong = {"inverse": torch.arange(8).view(2, 4).mT.flatten(), "exchanged": pairs.mT.flip(0).flatten()}
    return pairs.mT.flatten(), wrong | {"unchanged": pairs.flatten()}


@_exercise("11-cache-bytes", "Minutes", tolerance=0)
def _cache_bytes() -> Any:
    """How many bytes does a cache of 4,096 positions take: 32 layers, 32 heads, 8 of keys and values, d_k = d_v = 128?

    Answer: a whole number, with two bytes a number.
    Right: A quarter of what one set of keys and values for each head would take.
    half: Values are kept as well as keys, and each number has two bytes.
    all heads: Only the 8 heads of keys and values are kept, not one for each query head.
    double: Two bytes a number, not four.
    """
    right = 2 * 32 * 8 * 128 * 4096 * 2
    return right, {"half": right // 2, "all heads": 4 * right, "double": 2 * right}


@_exercise("11-rescale", "Minutes")
def _rescale() -> Any:
    """The largest score so far is 2, and a new tile has one of 5. By which factor is what was summed so far multiplied?

    Answer: a number, to three digits.
    Right: Everything so far was counted from 2 and is counted from 5 from now on.
    inverse: What was counted from 2 is to be counted from 5, so it shrinks.
    unchanged: Then old and new weights have different references.
    ratio: The references are exponents: their difference counts.
    """
    return math.exp(2 - 5), {"inverse": math.exp(5 - 2), "unchanged": 1, "ratio": 2 / 5}


@_exercise("11-dpo-by-hand", "Predict, then run", tolerance=5e-3)
def _dpo() -> Any:
    """What is the DPO loss of a pair with log-probabilities -4 (chosen) and -6 (rejected), for β = 0.5?

    The reference gives them -5 and -4.

    Answer: a number in nats, to three digits.
    Right: The margin is 1 + 2 = 3, and the loss ln(1 + e^-1.5).
    no beta: That is the loss with β = 1: multiply the margin by β before the sigmoid.
    no reference: That uses the policy alone; subtract the reference's log-probability, for chosen and for rejected.
    sign: The sign is turned: the loss falls when the chosen output gains on the rejected one.
    margin: That is β times the margin; the loss is -ln σ of it.
    sigma: That is σ(β · margin), the probability that the chosen one wins; the loss is -ln of it.
    """
    margin = 0.5 * ((-4 + 5) - (-6 + 4))
    margins = {"Right": margin, "no beta": 2 * margin, "no reference": 0.5 * (-4 + 6), "sign": -margin}
    loss = {key: math.log1p(math.exp(-one)) for key, one in margins.items()}
    right = loss.pop("Right")
    return right, loss | {"margin": margin, "sigma": math.exp(-right)}


@_exercise("11-dpo-gradient", "Minutes", tolerance=5e-3)
def _dpo_gradient() -> Any:
    """For the pair of 11-dpo-by-hand: what is the derivative of the loss by the log-probability of the chosen output?

    Answer: a number, to three digits.
    Right: -β σ(-β · margin): the surer the model is already, the less it learns.
    sign: The size is right, the sign is not: raising the chosen output's log-probability lowers the loss.
    one beta: β stands twice: inside the sigmoid, and in front of it by the chain rule.
    right: The factor is the probability that the model is still wrong, σ(-β · margin), not that it is right.
    """
    wrong = 1 / (1 + math.exp(0.5 * 3))  # the probability that the rejected output wins
    return -0.5 * wrong, {"sign": 0.5 * wrong, "one beta": -wrong, "right": -0.5 * (1 - wrong)}


@_exercise("11-dpo-lead", "Minutes", tolerance=0.05)
def _dpo_lead() -> Any:
    """The reference finds the rejected output e^16 times as probable as the chosen, the policy finds both equal. β = 1.

    Which loss has the pair?

    Answer: a number in nats, to two digits.
    Right: Relative to the reference the chosen output has gained 16 nats: little is left to learn.
    equal: ln 2 is the loss where the policy equals the reference, which prefers the rejected output by 16 nats.
    sign: The sign is turned: chosen has gained 16 nats on rejected, relative to the reference.
    """
    return math.log1p(math.exp(-16)), {"equal": math.log(2), "sign": math.log1p(math.exp(16))}


@_exercise("12-four-symptoms", "Minutes")
def _four_symptoms(answer: Any) -> None:
    """What is broken in four systems?

    (a) Training perplexity reaches 1.0 within a few hundred updates, translations are nonsense. (b) Every sentence is
    right when translated alone, some are cut short in a batch. (c) Dev perplexity never falls below 2.3, while nearly
    all translations are exact. (d) Loss and perplexity under teacher forcing are right; greedy output begins right and
    goes wrong in later words of some sentences, alone as in a batch.

    Answer: a dict from "a", "b", "c" and "d" to "future leaks", "first end ends all", "smoothed perplexity",
        "position always 0", "padding attended", "dropout left on" or "averaged twice".
    Right: Each fault has its own symptom.
    form: Give a dict with the keys "a", "b", "c" and "d".
    a: (a): only a model that sees its answer reaches a perplexity of 1.0.
    b: (b): the cut comes where another sentence ends; padding would change words anywhere in a short sentence.
    c: (c): what is the smallest value that the smoothed loss can take?
    d: (d): most faults would show under teacher forcing, too; which part runs only while decoding?
    """
    right = {"a": "future leaks", "b": "first end ends all", "c": "smoothed perplexity", "d": "position always 0"}
    if not isinstance(answer, dict) or set(answer) != set(right):
        raise _Hint("form")
    for key in (key for key, value in right.items() if answer[key] != value):
        raise _Hint(key)


@_exercise("12-smoothing-floor", "Minutes", tolerance=5e-3)
def _smoothing_floor() -> Any:
    """What does exp(smoothed loss) read at best, for ε = 0.1 and 1,500 tokens?

    Answer: a number, to three digits.
    Right: The entropy of the smoothed target.
    one: 1 is the floor of the perplexity; the smoothed loss is at least the entropy of its target.
    plain: That is a true token of 0.9, without smoothing.
    true alone: That is the true token's share alone; add the entropy of the other classes.
    loss: That is the loss; the question is its exponential.
    not shared: The ε is shared by 1,499 classes; each gets its part.
    """
    true, epsilon = -0.9 * math.log(0.9), 0.1
    loss, not_shared = true - epsilon * math.log(epsilon / 1499), true - epsilon * math.log(epsilon)
    wrong = {"one": 1, "plain": 1 / 0.9, "true alone": math.exp(true), "loss": loss, "not shared": math.exp(not_shared)}
    return math.exp(loss), wrong


@_exercise("A1-it", "Predict, then run")
def _it(answer: Any) -> Any:
    """How does German say "it" in "The animal did not cross the street because it was too tired", and in "too wide"?

    The animal is das Tier, the street die Straße.

    Answer: two words, for tired and for wide.
    Right: The animal is tired, das Tier; the street is wide, die Straße.
    sie es: The two are exchanged: who can be tired?
    es es: "It" is "es" only for a neuter noun; the street is feminine.
    sie sie: Das Tier is neuter.
    er sie: Das Tier is neuter, not masculine.
    """
    words = _parts(answer, ["the pronoun for tired", "the pronoun for wide"])
    return " ".join(str(word).strip().lower() for word in words), "es sie", {}
