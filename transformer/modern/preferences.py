# Exported from notebooks/11_3_preferences.py, Section 11.3; edit that file, not this one.
# sha256 of what follows: 8b57a1dc912bd4a8
"""Preferences (Section 11.3)."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, optim

from transformer.corpus import SentencePair
from transformer.data import Batch, Tokenizer, make_batch
from transformer.model import Transformer
from transformer.translator import Translator

__all__ = [
    "sequence_log_probability",
    "ADVERBS",
    "begins_with_adverb",
    "front_adverb",
    "PreferencePair",
    "preference_pairs",
    "preference_batch",
    "dpo_loss",
    "PreferenceStep",
    "preference_step",
    "likelihood_step",
    "PreferenceScores",
    "score_preferences",
]


def sequence_log_probability(model: Transformer, batch: Batch) -> Tensor:
    """Log-probability of each whole target, the end token included: the sum over its real tokens.

    Args:
        model: In evaluation mode, which turns off dropout and nothing else: gradients flow.
        batch: B sources with their targets.

    Returns:
        Shape (B,), at most 0. A row without target tokens has 0.

    Raises:
        ValueError: The model is in training mode, where dropout would make each call give another number.

    Source: Rafailov et al. (2023), arXiv:2305.18290, Section 3.
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the sum; call model.eval() first.")
    logits = model(batch.src, batch.tgt_in)  # (B, m, V)
    nll = F.cross_entropy(
        logits.flatten(0, 1),  # (B·m, V)
        batch.tgt_out.flatten(),  # (B·m,)
        ignore_index=model.config.pad_id,
        reduction="none",
    )
    return -nll.view(batch.tgt_out.shape).sum(dim=-1)  # (B·m,) → (B, m) → (B,)


ADVERBS = (
    *("diese Woche", "letzte Woche", "heute Morgen"),
    *("heute", "gestern", "später", "oft", "manchmal", "morgen", "jetzt", "bald"),
)
_PLAIN = re.compile(rf"([^,]+?) (\S+) ({'|'.join(ADVERBS)})([ ,.].*)")  # subject, finite verb, adverb, rest


def begins_with_adverb(german: str) -> bool:
    """Tell whether a sentence of the embedded corpus begins with a time adverb.

    Args:
        german: The sentence.

    Returns:
        True if it does, whether with a capital letter or not.
    """
    return any(german.lower().startswith(f"{adverb.lower()} ") for adverb in ADVERBS)


def _plain(german: str) -> tuple[str, str, str, str] | None:
    """Subject, finite verb, adverb and rest, if the adverb stands in the first clause, behind the verb."""
    found = None if begins_with_adverb(german) else _PLAIN.fullmatch(german)
    if found is None or "und" in f"{found[1]} {found[2]}".split():
        return None
    return found[1], found[2], found[3], found[4]


def front_adverb(german: str) -> str | None:
    """Put the time adverb of the first clause first, and the subject behind the finite verb.

    Args:
        german: A main clause, or more, of the embedded corpus.

    Returns:
        The same words in another order, or None if the first clause has no adverb behind its verb.
    """
    parts = _plain(german)
    if parts is None:
        return None
    who, does, when, rest = parts
    return f"{when[0].upper()}{when[1:]} {does} {who[0].lower()}{who[1:]}{rest}"


class PreferencePair(NamedTuple):
    """A source and two translations, of which one is preferred."""

    source: str
    chosen: str
    rejected: str


def preference_pairs(pair: SentencePair) -> list[PreferencePair]:
    """Two preferences made from a sentence pair: front the adverb; and invent none where the source has none.

    Args:
        pair: From the embedded corpus.

    Returns:
        The two, or nothing if the rule does not apply.
    """
    parts, fronted = _plain(pair.target), front_adverb(pair.target)
    if parts is None or fronted is None:
        return []
    who, does, when, rest = parts
    first = len(who.split()) + 1  # index of the adverb's first word
    gone = {source for target, source in pair.alignment if first <= target < first + len(when.split())}
    shorter = replace(pair, source_words=tuple(word for i, word in enumerate(pair.source_words) if i not in gone))
    return [
        PreferencePair(pair.source, fronted, pair.target),
        PreferencePair(shorter.source, f"{who} {does}{rest}", fronted),
    ]


def preference_batch(pairs: Sequence[PreferencePair], tokenizer: Tokenizer) -> Batch:
    """One batch for a set of pairs: every source with its chosen output, then every source with its rejected one.

    Args:
        pairs: At least one.
        tokenizer: The model's.

    Returns:
        2B rows; `chunk(2)` cuts what is computed from them into chosen and rejected.

    Raises:
        ValueError: There is no pair.
    """
    both = [(pair.source, pair.chosen) for pair in pairs] + [(pair.source, pair.rejected) for pair in pairs]
    return make_batch([(tokenizer.encode(source), tokenizer.encode(target)) for source, target in both])


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """−log σ(β · margin), the mean over pairs; the margin is by how much more the chosen output has gained.

    Args:
        policy_chosen: log π(chosen | source), shape (B,), floating point.
        policy_rejected: log π(rejected | source), shape (B,).
        reference_chosen: The same of the frozen reference, shape (B,), without gradient.
        reference_rejected: Shape (B,), without gradient.
        beta: β, more than 0. The larger, the closer to the reference the pairs are satisfied.

    Returns:
        A scalar; log 2 where the policy is the reference.

    Raises:
        ValueError: The shapes differ, there is no pair, the reference has a gradient, or β is not above 0 and finite.

    Source: Rafailov et al. (2023), arXiv:2305.18290, Eq. 7.
    """
    scores = (policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    shapes = [tuple(score.shape) for score in scores]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1 or not shapes[0][0]:
        raise ValueError(f"the four log-probabilities have shapes {shapes}; each must be (B,), one number a pair.")
    if reference_chosen.requires_grad or reference_rejected.requires_grad:
        raise ValueError("the reference has a gradient; compute its log-probabilities under torch.no_grad().")
    if not 0 < beta < float("inf"):
        raise ValueError(f"beta is {beta}; it must be above 0 and finite.")
    margin = (policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)  # (B,)
    return -F.logsigmoid(beta * margin).mean()


class PreferenceStep(NamedTuple):
    """What one update saw, before it: means over its pairs, log-probabilities in nats."""

    loss: float
    chosen: float  # log π(chosen)
    rejected: float  # log π(rejected)


def preference_step(
    policy: Transformer, reference: Transformer, batch: Batch, optimizer: optim.Optimizer, beta: float = 0.1
) -> PreferenceStep:
    """One update of the policy by DPO.

    Args:
        policy: In evaluation mode; the optimizer's parameters are its own.
        reference: Another model, in evaluation mode; it stays as it is.
        batch: From `preference_batch`, on the models' device.
        optimizer: Makes the update.
        beta: β of `dpo_loss`.

    Returns:
        Loss and log-probabilities before the update.

    Raises:
        ValueError: Policy and reference are one object, one is in training mode, or what `dpo_loss` raises.
    """
    if policy is reference:
        raise ValueError("policy and reference are one object, so the margin stays 0; copy.deepcopy the reference.")
    chosen, rejected = sequence_log_probability(policy, batch).chunk(2)  # (B,) each
    with torch.no_grad():
        reference_chosen, reference_rejected = sequence_log_probability(reference, batch).chunk(2)
    loss = dpo_loss(chosen, rejected, reference_chosen, reference_rejected, beta)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return PreferenceStep(loss.item(), chosen.mean().item(), rejected.mean().item())


def likelihood_step(model: Transformer, batch: Batch, optimizer: optim.Optimizer) -> float:
    """One update of plain fine-tuning: maximum likelihood of the batch's targets, without label smoothing.

    Args:
        model: In evaluation mode.
        batch: Sources and targets, at least one token.
        optimizer: Of the model's parameters.

    Returns:
        The loss before the update, in nats a token.

    Raises:
        ValueError: The model is in training mode.
    """
    loss = -sequence_log_probability(model, batch).sum() / batch.n_tokens
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class PreferenceScores(NamedTuple):
    """How well a model meets a set of pairs: shares from 0 to 1, mean log-probabilities in nats."""

    obeyed: float  # share of greedy outputs that begin with an adverb
    exact: float  # share of greedy outputs equal to the chosen one
    ranked: float  # share of pairs with log π(chosen) > log π(rejected)
    chosen: float  # log π(chosen)
    rejected: float


def score_preferences(translator: Translator, pairs: Sequence[PreferencePair]) -> PreferenceScores:
    """Win rates of a translator on pairs that ask for a fronted adverb.

    Args:
        translator: Decodes greedily.
        pairs: Held out, at least one.

    Returns:
        The scores.

    Raises:
        ValueError: There is no pair.
    """
    batch = preference_batch(pairs, translator.tokenizer).to(next(translator.model.parameters()).device)
    outputs = translator.translate([pair.source for pair in pairs], beam_size=1)
    with torch.no_grad():
        chosen, rejected = sequence_log_probability(translator.model, batch).chunk(2)  # (B,) each
    return PreferenceScores(
        sum(map(begins_with_adverb, outputs)) / len(pairs),
        sum(output == pair.chosen for output, pair in zip(outputs, pairs, strict=True)) / len(pairs),
        (chosen > rejected).double().mean().item(),
        chosen.mean().item(),
        rejected.mean().item(),
    )
