# %% [markdown]
# # 11.3 Preferences
#
# The paper trains on one right translation for each sentence. Assistants built on language models get a second training, on pairs of outputs of
# which someone said: this one rather than that one (Ouyang et al. [2022](https://arxiv.org/abs/2203.02155)). Direct Preference Optimization
# (DPO, Rafailov et al. [2023](https://arxiv.org/abs/2305.18290)) does it with one loss, without a learned reward and without sampling.
#
# Does it change the attention computation, its inputs, or only its schedule? None of the three. It changes the **objective**: the same network,
# fed with the same ids and decoded by the same search, is asked for something else.

# %%
#| default_exp modern.preferences

# %%
import copy
import json
import math
import random
import statistics
from itertools import islice
from pathlib import Path

import altair as alt
import torch

import transformer
from transformer.corpus import embedded_corpus
from transformer.exercises import check
from transformer.translator import load_toy_translator

transformer.check_version("0.1")
torch.set_num_threads(1)  # the batches are small: a second thread would only wait

# %% [markdown]
# ## The probability of a whole sentence
#
# > At each step the model is auto-regressive, consuming the previously generated symbols as additional input when generating the next.
# >
# > — Section 3
#
# So the probability of an output $y$ for a source $x$ is a product over its tokens, and the logarithm a sum:
#
# $$\log \pi(y \mid x) = \sum_{t=1}^{m} \log \pi(y_t \mid x, y_{<t})$$
#
# The end token counts; padding does not. Preferences are about whole sentences, so this sum is what the loss below is made of, one number a sentence.
# The model is called $\pi$, a *policy*, as in the literature on preferences.

# %%
#| export
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


# %%
#| export
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


# %% [markdown]
# ## A preference that a program can check
#
# *The animal drank the juice yesterday.* The [embedded corpus](A1_the_embedded_corpus.py) translates it in one way: *Das Tier trank gestern den Saft.* German
# has another, with the same words: *Gestern trank das Tier den Saft.* The finite verb stays second, and the subject moves behind it. In the corpus this order
# stands only where the English sentence begins with its adverb, too. We now prefer it always.
#
# The rule finds the first clause's subject, its finite verb and a time adverb behind the verb, and puts the adverb first.

# %%
#| export
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


# %%
#| export
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


# %%
for german in (
    "Das Tier trank gestern den Saft.",
    "Sie haben diese Woche die Ziegen gezeichnet.",
    "Die Kuh wartete bald, obwohl sie heute sehr müde war.",
    "Gestern trank das Tier den Saft.",
    "Das Tier trank den Saft, weil es gestern sehr durstig war.",
):
    print(f"{german:58} → {front_adverb(german)}")
assert front_adverb("Das Tier trank gestern den Saft.") == "Gestern trank das Tier den Saft."
assert front_adverb("Das Tier trank den Saft, weil es gestern sehr durstig war.") is None  # not in the first clause
inverted = [pair for pair in islice(embedded_corpus("train", 0), 1000) if begins_with_adverb(pair.target)]
assert len(inverted) > 50 and all((0, 0) in pair.alignment for pair in inverted)  # the first English word is the adverb, too

# %% [markdown]
# A **preference pair** is a source, a chosen output and a rejected one. Each sentence pair of the corpus to which the rule applies gives two. The second one says
# where the preference ends: the same source without its adverb must *not* get one. The record below has runs without these pairs.

# %%
#| export
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


# %%
#| export
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


# %% [markdown]
# ### See it
#
# The shipped translator, asked about a pair. It has never seen the fronted order for such a source and gives it almost no probability.

# %%
MAX_WORDS = 8  # English words: short sentences keep this chapter quick
translator = load_toy_translator()
tokenizer = translator.tokenizer
short = (pair for pair in embedded_corpus("train", 3) if len(pair.source_words) <= MAX_WORDS)
example = next(pairs for pairs in map(preference_pairs, short) if pairs)
with torch.inference_mode():
    scores = sequence_log_probability(translator.model, preference_batch(example, tokenizer)).view(2, -1).T.tolist()
for pair, (chosen, rejected) in zip(example, scores, strict=True):
    print(f"{pair.source}\n  chosen   {chosen:6.1f}  {pair.chosen}\n  rejected {rejected:6.1f}  {pair.rejected}")
assert scores[0][0] < -8 < -3 < scores[0][1]

# %% [markdown]
# ## The loss, derived
#
# Say each output has a reward $r(x, y)$, larger for what people like better. The first recipe (Christiano et al. [2017](https://arxiv.org/abs/1706.03741)) fits a
# second network to the pairs, calls it $r$, and trains the policy for reward. For language models (Ziegler et al. [2019](https://arxiv.org/abs/1909.08593), Ouyang et al. 2022)
# the policy is also kept near a frozen **reference** $\pi_{\text{ref}}$, the model it starts from:
#
# $$\max_\pi \; \mathbb{E}_{y \sim \pi}\,[r(x, y)] \;-\; \beta\, \mathrm{KL}\left(\pi(\cdot \mid x) \,\|\, \pi_{\text{ref}}(\cdot \mid x)\right)$$
#
# DPO gets rid of the second network in four steps (Rafailov et al. 2023, Section 4).
#
# **1. The best policy has a closed form.** Put $\pi^*(y \mid x) = \pi_{\text{ref}}(y \mid x)\, e^{r(x, y)/\beta} / Z(x)$, where $Z(x)$ makes the sum 1. Then the objective
# is $\beta \log Z(x) - \beta\,\mathrm{KL}(\pi \,\|\, \pi^*)$. A KL divergence is at least 0, and 0 only between equals. So $\pi^*$ is best.
#
# **2. Read it backwards.** The same equation gives the reward as a log ratio: $r(x, y) = \beta \log \frac{\pi^*(y \mid x)}{\pi_{\text{ref}}(y \mid x)} + \beta \log Z(x)$.
#
# **3. Pairs only compare.** Bradley and Terry (1952) give the first of two a chance to win of $P(y_w \succ y_l) = \sigma(r(x, y_w) - r(x, y_l))$. Both outputs have the same source, so $\beta \log Z(x)$ cancels. What is left contains no reward and no $Z$.
#
# **4. Maximum likelihood.** Put the policy in the place of $\pi^*$ and take the negative logarithm. Steps 1 to 3 hold for the best of all policies; a network can only come near it.
#
# $$\mathcal{L} = -\log \sigma(\beta\, m), \qquad m = \underbrace{\log \frac{\pi(y_w \mid x)}{\pi_{\text{ref}}(y_w \mid x)}}_{\text{gain of the chosen}} - \underbrace{\log \frac{\pi(y_l \mid x)}{\pi_{\text{ref}}(y_l \mid x)}}_{\text{gain of the rejected}}$$
#
# The **margin** $m$ is by how much more the chosen output has gained than the rejected one, in nats, since the policy left the reference.
#
# ### Check it: the closed form against brute force
#
# With five outputs, the best policy can be searched for. Gradient ascent from random starts and 100,000 random policies know nothing of step 1.


# %%
def best_policy(reference: Tensor, reward: Tensor, beta: float) -> Tensor:
    """π* ∝ π_ref exp(r/β), over outputs."""
    return (reference.log() + reward / beta).softmax(dim=-1)


def objective(policy: Tensor, reference: Tensor, reward: Tensor, beta: float) -> Tensor:
    """Expected reward minus β KL(policy ‖ reference)."""
    return (policy * (reward - beta * (policy.log() - reference.log()))).sum(dim=-1)


generator = torch.Generator().manual_seed(0)
reference = torch.tensor([0.5, 0.3, 0.15, 0.05 - 1e-7, 1e-7], dtype=torch.float64)
reward = torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0], dtype=torch.float64)  # the last output is liked best, and all but unknown to the reference
betas = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
logits = torch.randn(5, 3, 5, dtype=torch.float64, generator=generator).requires_grad_()  # (starts, β, outputs)
optimizer = torch.optim.Adam([logits], lr=0.1)
for _ in range(800):
    optimizer.zero_grad()
    (-objective(logits.softmax(-1), reference, reward, betas[:, None]).sum()).backward()
    optimizer.step()
found = logits.detach().softmax(-1)
guesses = (4 * torch.randn(100_000, 5, dtype=torch.float64, generator=generator)).softmax(-1)
for i, beta in enumerate(betas.tolist()):
    exact = best_policy(reference, reward, beta)
    best = objective(exact, reference, reward, beta)
    assert torch.allclose(found[:, i], exact.expand(5, 5), atol=2e-3)  # from every start
    assert objective(guesses, reference, reward, beta).max() < best
    assert torch.isclose(best, beta * (reference * (reward / beta).exp()).sum().log())  # β log Z
    print(f"β = {beta}: π* = {[round(p, 2) for p in exact.tolist()]}, found by search {[round(p, 2) for p in found[0, i].tolist()]}")

# %%
BETAS = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
picked = alt.param(name="beta", value=0.5, bind=alt.binding_select(options=BETAS, name="β "))
rows = [
    {"output": f"{letter}, reward {r:g}", "probability": round(p, 4), "policy": name, "β": beta}
    for beta in BETAS
    for name, policy in (("reference", reference), ("best policy", best_policy(reference, reward, beta)))
    for letter, r, p in zip("ABCDE", reward.tolist(), policy.tolist(), strict=True)
]
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_point(size=120, filled=True, opacity=0.9)
    .encode(
        x=alt.X("probability:Q", scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("output:N", title=None),
        color=alt.Color("policy:N", title=None, scale=alt.Scale(domain=["reference", "best policy"], range=["#0072B2", "#D55E00"]), legend=alt.Legend(orient="top")),
        shape=alt.Shape("policy:N", title=None, scale=alt.Scale(domain=["reference", "best policy"], range=["circle", "diamond"])),
        tooltip=["output:N", "policy:N", "probability:Q", "β:Q"],
    )
    .add_params(picked)
    .transform_filter("datum['β'] == beta")
    .properties(width=340, height=170, title="The best policy re-weights what the reference can already say")
)
chart

# %% [markdown]
# Choose β. With a large β the diamonds stay near the circles. With a smaller one, probability moves to D, which the reference knows and people like. E is liked best, but the reference gives it one in ten million. It stays below 5 % for every β here but the smallest, where nearly all goes to it.
# To overtake D it needs a reward that is larger by $\beta$ times the logarithm of how much more probable D was, here $13\,\beta$. For the shipped model our fronted translation is such an output.

# %%
at = {beta: best_policy(reference, reward, beta) for beta in BETAS}
assert at[0.05][4] > 0.99 and all(at[beta][4] < 0.05 for beta in BETAS if beta > 0.05)
assert all(at[beta][3] > 0.5 for beta in (0.2, 0.5)) and (at[5.0] - reference).abs().max() < 0.1
assert round((reference[3] / reference[4]).log().item()) == 13

# %% [markdown]
# ## The loss, as code


# %%
#| export
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


# %% [markdown]
# ### Check it: by hand
#
# The reference finds both outputs equally probable: $\log \pi_{\text{ref}} = -4$ for each. The policy says $-3$ for the chosen one and $-5$ for the rejected one. The chosen has gained 1, the rejected has lost 1, the margin is 2. With $\beta = 0.5$ the loss is $-\log \sigma(1) = \log(1 + e^{-1}) = 0.3133$.
#
# The gradient is $\partial \mathcal{L} / \partial \log \pi(y_w) = -\beta\, \sigma(-\beta m) = -0.5 \cdot 0.2689 = -0.1345$, and the opposite for the rejected output. The factor $\sigma(-\beta m)$ is the chance that the policy, taken as a reward, would still get this pair wrong. A pair that is clearly won teaches almost nothing more.

# %%
policy = torch.tensor([-3.0, -5.0], dtype=torch.float64, requires_grad=True)
frozen = torch.tensor([-4.0, -4.0], dtype=torch.float64)
loss = dpo_loss(policy[:1], policy[1:], frozen[:1], frozen[1:], beta=0.5)
loss.backward()
print(f"loss {loss.item():.4f}, gradient {policy.grad.tolist()[0]:+.4f} for the chosen, {policy.grad.tolist()[1]:+.4f} for the rejected")
assert abs(loss.item() - math.log(1 + math.exp(-1))) < 1e-12 and round(loss.item(), 4) == 0.3133
assert [round(g, 4) for g in policy.grad.tolist()] == [-0.1345, 0.1345]
assert round(1 / (1 + math.exp(1)), 4) == 0.2689

start = dpo_loss(frozen, frozen - 1, frozen, frozen - 1)
assert abs(start.item() - math.log(2)) < 1e-12
shifted = dpo_loss(policy[:1] - 7, policy[1:] - 7, frozen[:1], frozen[1:], beta=0.5)
assert torch.isclose(shifted, loss)  # only the difference counts
print(f"policy = reference: log 2 = {start.item():.4f};  both outputs less probable by e⁷: still {shifted.item():.4f}")

# %% [markdown]
# The last line is a warning. The loss sees the difference alone. A policy that makes *both* outputs less probable, the rejected one faster, is as good to it as one that makes the chosen output more probable. What takes the probability that is set free, the loss does not say.

# %%
#| export
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


# %% [markdown]
# ## First a reference that knows both orders
#
# Step 1 says what to do first: DPO re-weights what the reference can say, so the reference must be able to say both. The usual recipe, too, fine-tunes the model on good outputs before it meets the pairs (Rafailov et al. 2023, Section 3). We do the same, in the plainest way: more updates of maximum likelihood, on sentences with an adverb, half in one order and half in the other, mixed with as many sentences of other kinds.


# %%
#| export
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


# %%
#| export
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
# %%
def collect(split: str, number: int, seed: int) -> tuple[list[list[PreferencePair]], list[tuple[str, str]]]:
    """So many sentences to which the rule applies, as their two pairs, and as many others, as they are."""
    applies, others = [], []
    for pair in embedded_corpus(split, seed):
        if len(pair.source_words) <= MAX_WORDS:
            pairs = preference_pairs(pair)
            applies.append(pairs) if pairs else others.append((pair.source, pair.target))
        if len(applies) == number:
            return applies, others[:number]


pairs, others = collect("train", 200, seed=1)
held_out, other_sentences = collect("test", 30, seed=1)
held_out = [fronted for fronted, _ in held_out]
seen = {pair.source for both in pairs for pair in both} | {source for source, _ in others}
assert not seen & ({pair.source for pair in held_out} | {source for source, _ in other_sentences})


def show(name: str, model: Transformer) -> tuple[PreferenceScores, float]:
    """Print and return the scores on held-out sentences, and the share of other sentences that are still exact."""
    scores = score_preferences(Translator(model, tokenizer), held_out)
    outputs = Translator(model, tokenizer).translate([source for source, _ in other_sentences], beam_size=1)
    exact = sum(output == target for output, (_, target) in zip(outputs, other_sentences, strict=True)) / len(outputs)
    print(
        f"{name:16} adverb first {scores.obeyed:4.0%}, whole sentence as chosen {scores.exact:4.0%}, "
        f"chosen more probable {scores.ranked:4.0%}; other sentences exact {exact:4.0%}"
    )
    return scores, exact


shipped, shipped_exact = show("shipped model", translator.model)
assert shipped.obeyed == 0 and shipped.ranked == 0 and shipped_exact > 0.9

# %%
STEPS, RATE = 60, 1.2e-3
draw = random.Random(1)
reference_model = copy.deepcopy(translator.model)
optimizer = torch.optim.Adam(reference_model.parameters(), lr=RATE)
falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
for _ in range(STEPS):
    either = [(pair.source, pair[1 + i % 2]) for i, (pair, _) in enumerate(draw.sample(pairs, 8))]
    some = either + draw.sample(others, 8)
    batch = make_batch([(tokenizer.encode(source), tokenizer.encode(target)) for source, target in some])
    likelihood_step(reference_model, batch, optimizer)
    falling.step()
before, before_exact = show("the reference", reference_model)
assert before.rejected > before.chosen > shipped.chosen + 5 and before_exact > 0.7

# %% [markdown]
# The fronted order is now well within reach: $\log \pi$ of the chosen output has risen by more than 5 nats. The plain order is still the more usual one, so a preference has work to do.
#
# ## Before and after
#
# Sixteen updates of DPO, each on sixteen pairs: twelve that ask for the adverb in front, four that ask for no adverb where the source has none. We keep the greedy output of a few held-out sources on the way.

# %%
BETA, UPDATES = 0.5, 16
watched = [pair.source for pair in held_out[:8]] + [source for source, _ in other_sentences[:2]]
policy_model = copy.deepcopy(reference_model)
optimizer = torch.optim.Adam(policy_model.parameters(), lr=5e-5)
steps, frames = [], []
for update in range(UPDATES + 1):
    if update % 4 == 0:
        outputs = Translator(policy_model, tokenizer).translate(watched, beam_size=1)
        frames += [{"updates": update, "row": row, "source": source, "output": output} for row, (source, output) in enumerate(zip(watched, outputs, strict=True))]
    if update < UPDATES:
        drawn = draw.sample(pairs, 16)
        batch = preference_batch([fronted for fronted, _ in drawn[:12]] + [kept for _, kept in drawn[12:]], tokenizer)
        steps.append(preference_step(policy_model, reference_model, batch, optimizer, BETA))
assert abs(steps[0].loss - math.log(2)) < 1e-4  # policy = reference
print(f"loss of the first update {steps[0].loss:.2f}, mean of the last five {statistics.mean(step.loss for step in steps[-5:]):.2f}\n")
after, after_exact = show("after DPO", policy_model)
assert after.obeyed > before.obeyed + 0.2 and after.ranked > before.ranked and after_exact > before_exact - 0.15
assert after.chosen - after.rejected > before.chosen - before.rejected + 1 and after.rejected < before.rejected
assert statistics.mean(step.loss for step in steps[-5:]) < 0.6

# %%
updates = alt.param(name="updates_done", value=0, bind=alt.binding_range(min=0, max=UPDATES, step=4, name="updates "))
for frame in frames:
    fronted = begins_with_adverb(frame["output"])
    frame["order"] = "adverb first" if fronted else "other order"
    frame["mark"] = "◆ " if fronted else "○ "
line = (
    alt.Chart(alt.Data(values=frames))
    .encode(y=alt.Y("row:O", axis=None))
    .transform_filter("datum.updates == updates_done")
)
english = line.mark_text(align="left", x=0, dy=-8, fontStyle="italic").encode(text="source:N")
german = (
    line.mark_text(align="left", x=0, dy=8, fontWeight="bold")
    .transform_calculate(text="datum.mark + datum.output")
    .encode(
        text="text:N",
        tooltip=["source:N", "output:N", "order:N"],
    )
)
(english + german).add_params(updates).properties(width=420, height=400, title="More outputs begin with their adverb; other sentences stay")

# %% [markdown]
# Move the slider: 0 is the reference, 16 the end. A filled diamond marks an output that begins with its adverb. The last two sources are ordinary ones. They have no adverb behind the verb, or their adverb stands in front already, and should stay as they are.
#
# Compare the two shares that the cell above the chart prints, adverb first and whole sentence as chosen. An output can begin with an adverb and still not be the chosen sentence, with another number or noun for instance. It is in neither set: nobody preferred it, and nobody rejected it. The loss asks for a difference between two sentences and is silent about all others.
#
# ### Check it: only the objective changed
#
# The trained policy is the network it was: the same names, shapes and number of parameters. Only their values moved.

# %%
shapes = {name: value.shape for name, value in translator.model.state_dict().items()}
assert shapes == {name: value.shape for name, value in policy_model.state_dict().items()}
with torch.inference_mode():
    moved = (policy_model(batch.src, batch.tgt_in) - reference_model(batch.src, batch.tgt_in)).abs().max()
assert moved > 0.01
print(f"{transformer.count_parameters(policy_model):,} parameters before and after; attention, inputs and decoding are untouched")

# %% [markdown]
# ## Recorded: three seeds, and other ways
#
# A single live run proves little. Recorded runs repeat it with three seeds and a better reference, of 120 updates: forty updates of DPO with $\beta = 0.5$ and with $\beta = 2$; without the pairs that say where the preference ends; from the shipped model as reference; and **plain fine-tuning** on the chosen outputs, with no rejected ones and no reference, the same number of updates and the same learning rate.

# %%
places = [*(Path.cwd() / "x").parents, *Path(transformer.__file__).resolve().parents]
file = next((path for place in places if (path := place / "book/results/preferences.json").is_file()), None)
METRICS = {  # title, factor, digits
    "obeyed": ("adverb first, %", 100, 0),
    "exact": ("as chosen, %", 100, 0),
    "others_exact": ("others exact, %", 100, 0),
    "margin": ("margin", 1, 1),
    "chosen": ("log π(chosen)", 1, 1),
    "rejected": ("log π(rejected)", 1, 1),
}
runs = {}  # runs[variant][seed] is a list of points
if file is None:
    print("The record is book/results/preferences.json in the book's repository. Without it there is nothing to show.")
else:
    record = json.loads(file.read_text(encoding="utf-8"))
    print(f"recorded {record['date']} with `{record['command']}`, torch {record['machine']['torch']}; mean of three seeds (least … greatest)\n")
    for name, run in record["runs"].items():
        variant, seed = name.rsplit(", seed ", 1)
        runs.setdefault(variant, {})[seed] = run["result"]["points"]
    assert all(len(seeds) == 3 and all(points[-1]["updates"] == 40 for points in seeds.values()) for seeds in runs.values())
    table = {"reference": [points[0] for points in runs["β = 0.5"].values()]}
    table |= {variant: [points[-1] for points in seeds.values()] for variant, seeds in runs.items()}
    print(f"{'':18}" + "".join(f"{title:>23}" for title, *_ in METRICS.values()))
    for variant, points in table.items():
        row = f"{variant:18}"
        for metric, (_, factor, digits) in METRICS.items():
            values = [factor * point[metric] for point in points]
            row += f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})".rjust(23)
        print(row)

# %% [markdown]
# Read it from the top.
#
# - **DPO does what it was asked.** In every seed the adverb moves to the front, other sentences stay, the chosen output gains and the rejected one loses. With the larger β the policy moves less.
# - **Plain fine-tuning does as much.** It ends with a more probable chosen output in every seed, and with more outputs as chosen on average; the rejected one falls about as far. Here a program can write the chosen output, so likelihood can simply ask for it. Neither learning rate was tuned.
# - **Without the pairs that say where it ends, the preference spreads.** Fewer other sentences are exact, on average. The seeds differ widely: in one it is a single sentence.
# - **From the shipped model nothing changes.** The margin grows by more than 2 nats in every seed, so the loss falls. Yet no pair is ranked the other way, and no output changes its order.
# - **Words get lost.** In the reference, nearly every output that begins with its adverb is the chosen sentence. After DPO more of them are not.

# %%
if runs:
    mean = {variant: {metric: statistics.mean(point[metric] for point in points) for metric in points[0] if metric != "examples"} for variant, points in table.items()}
    for start, end in zip(table["reference"], table["β = 0.5"], strict=True):
        assert end["obeyed"] > start["obeyed"] + 0.3 and end["others_exact"] > 0.95
        assert end["chosen"] > start["chosen"] + 0.3 and end["rejected"] < start["rejected"] - 1
    assert mean["β = 2"]["margin"] < mean["β = 0.5"]["margin"] - 1 and mean["β = 2"]["obeyed"] < mean["β = 0.5"]["obeyed"]
    assert mean["fine-tuning"]["exact"] > mean["β = 0.5"]["exact"] and mean["fine-tuning"]["chosen"] > mean["β = 0.5"]["chosen"]
    assert abs(mean["fine-tuning"]["rejected"] - mean["β = 0.5"]["rejected"]) < 1
    assert mean["no contrast"]["others_exact"] < mean["β = 0.5"]["others_exact"] - 0.03
    assert all(point["obeyed"] == point["ranked"] == 0 and point["gained"] > 0.9 and point["margin"] > 2 for point in table["shipped reference"])
    print("plain fine-tuning less DPO with β = 0.5, seed by seed:")
    differences = {}
    for metric in ("obeyed", "exact", "chosen", "rejected"):
        dpo, tuned = ([METRICS[metric][1] * point[metric] for point in table[variant]] for variant in ("β = 0.5", "fine-tuning"))
        assert min(dpo) <= max(tuned) and min(tuned) <= max(dpo)  # the spreads overlap
        differences[metric] = transformer.modern.Difference([a - b for a, b in zip(tuned, dpo, strict=True)], lower_is_better=metric == "rejected")
        print(f"  {METRICS[metric][0]:17}{differences[metric]}")
    assert [metric for metric, difference in differences.items() if difference.verdict != "no difference seen"] == ["chosen"]
    lost = {variant: round(100 * (mean[variant]["obeyed"] - mean[variant]["exact"])) for variant in ("reference", "β = 0.5", "fine-tuning")}
    print("outputs that begin with an adverb and are not the chosen sentence, %:", lost)
    assert lost["reference"] < 5 < lost["β = 0.5"]

# %% tags=["hide-input"]
chart = None
if runs:
    style = {"β = 0.5": ("#D55E00", [1, 0]), "β = 2": ("#0072B2", [6, 3]), "fine-tuning": ("#009E73", [2, 2])}
    shown = []
    for variant in style:
        for metric in ("obeyed", "exact", "chosen", "rejected"):
            title, factor, _ = METRICS[metric]
            for points in zip(*runs[variant].values(), strict=True):  # one of each seed
                values = [factor * point[metric] for point in points]
                shown.append({"variant": variant, "updates": points[0]["updates"], "metric": title, "mean": statistics.mean(values), "least": min(values), "greatest": max(values)})
    base = alt.Chart().encode(
        x=alt.X("updates:Q", axis=alt.Axis(values=[0, 20, 40])),
        color=alt.Color("variant:N", title=None, scale=alt.Scale(domain=list(style), range=[color for color, _ in style.values()]), legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=300, symbolOpacity=1)),
    )
    dash = alt.StrokeDash("variant:N", title=None, scale=alt.Scale(domain=list(style), range=[dash for _, dash in style.values()]))
    lines = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", title=None, scale=alt.Scale(zero=False)),
        strokeDash=dash,
        tooltip=["variant:N", "updates:Q", *(alt.Tooltip(f"{name}:Q", format=".1f") for name in ("mean", "least", "greatest"))],
    )
    spread = base.mark_area(opacity=0.15).encode(y="least:Q", y2="greatest:Q")
    chart = (
        alt.layer(spread, lines)
        .properties(width=180, height=120)
        .facet(alt.Facet("metric:N", title=None), columns=2, data=alt.Data(values=shown))
        .resolve_scale(y="independent")
        .properties(title="Plain fine-tuning does as much as DPO here")
    )
chart

# %% [markdown]
# Each line is the mean of three seeds, the band reaches from the least to the greatest. The solid line is DPO with the smaller β, the long dashes with the larger, the dots plain fine-tuning. The bands of the first and the last overlap at the end in all four charts. But the two are runs of the same seeds, so they are compared seed by seed, as in [11](11_0_one_part_at_a_time.py): three of the four measures show no difference, and the chosen output is a little more probable after plain fine-tuning.
#
# What is small here: one preference, made by a rule; a million parameters; sentences of at most eight words; pairs written by a program and not drawn from the model. Where outputs can only be compared, plain fine-tuning has no target to copy, and the balance may be another.

# %% [markdown]
# ## Unsaid by the paper
#
# - **The paper has no second training.** Its objective is likelihood, smoothed ([Section 5.4](05_4_regularization.py)), and its measure BLEU. Training for a preference came to language models with a learned reward and reinforcement learning (Ziegler et al. 2019).
# - **Both can fall.** The loss sees a difference. The log-probability of the chosen output can fall, too, only less than that of the rejected one, and the probability set free may go to outputs in neither set (Pal et al. [2024](https://arxiv.org/abs/2402.13228), Razin et al. [2024](https://arxiv.org/abs/2410.08847)). In our runs the chosen output gained.
# - **A small loss is no changed output.** Where the reference is sure of the rejected output, the margin can be large while the model still ranks the pair as before (Chen et al. [2024](https://arxiv.org/abs/2405.19534)). Our runs from the shipped model are such a case.
# - **When pairs are certain**, Bradley–Terry asks for an infinite margin, and β no longer holds the policy back (Azar et al. [2023](https://arxiv.org/abs/2310.12036)).
#
# ## What we now know
#
# - DPO changes neither what attention computes nor what goes into it nor when. It changes the objective. The network before and after is the same program.
# - The best policy under a KL penalty is the reference, re-weighted by $e^{r/\beta}$: search from five starts finds the closed form, and no random policy beats it.
# - By hand: margin 2 and $\beta = 0.5$ give a loss of 0.3133 and gradients of ∓0.1345. A constant added to both log-probabilities changes nothing.
# - The reference must be able to say both outputs; ours needed a short fine-tuning first. Sixteen updates of DPO then moved the adverb to the front in at least a fifth more of the held-out outputs, and kept other sentences within 15 points of where they were.
# - In the record, DPO does not beat plain fine-tuning on the chosen outputs. What it adds is a way to learn from comparisons.
#
# ## Exercises
#
# 1. **Predict, then run.** A pair has $\log \pi = -4$ for the chosen and $-6$ for the rejected output; the reference has $-5$ and $-4$. What is the loss with $\beta = 0.5$? Check: `check("11-dpo-by-hand", answer)`.
# 2. **Minutes.** What is its derivative with respect to $\log \pi$ of the chosen output? Check: `check("11-dpo-gradient", answer)`.
# 3. **Minutes.** The reference finds the rejected output $e^{16}$ times as probable as the chosen one. What is the loss, with $\beta = 1$, at the moment when the policy finds both equally probable? What does that say about a reference that does not know the chosen output? Check: `check("11-dpo-lead", answer)`.
# 4. **An hour.** Train the policy above without the pairs that keep an adverb out: use all sixteen of the first kind, and forty updates. Count the other sentences whose output begins with an adverb, before and after, and read those that are new.
# 5. **A day.** Draw the pairs from the reference itself: sample several translations of a source, let `begins_with_adverb` choose, and train on these. Does the chosen output still gain, and does plain fine-tuning on the chosen samples still do as much?

# %% [markdown]
# Solution to exercise 1: the chosen output has gained 1, the rejected has lost 2, so the margin is 3 and the loss $\log(1 + e^{-1.5})$.

# %% tags=["hide-cell"]
pair = [torch.tensor([value], dtype=torch.float64) for value in (-4.0, -6.0, -5.0, -4.0)]
pair[0].requires_grad_()
loss = dpo_loss(*pair, beta=0.5)
assert abs(loss.item() - math.log1p(math.exp(-1.5))) < 1e-12
verdict = check("11-dpo-by-hand", loss.item())
assert verdict
print(verdict)

# %% [markdown]
# Solution to exercise 2: $-\beta\,\sigma(-\beta m)$, negative since a more probable chosen output lowers the loss.

# %% tags=["hide-cell"]
loss.backward()
verdict = check("11-dpo-gradient", pair[0].grad.item())
assert verdict
print(verdict)

# %% [markdown]
# Solution to exercise 3: the margin is 16, and the loss about a ten-millionth. So the loss is all but gone while the output has not turned round yet: nothing pulls the policy further. A smaller $\beta$ would; a better reference is the better remedy.

# %% tags=["hide-cell"]
zero = torch.zeros(1, dtype=torch.float64)
loss = dpo_loss(zero, zero, zero - 16, zero, beta=1.0)
verdict = check("11-dpo-lead", loss.item())
assert verdict and loss < 1e-6
print(f"{loss.item():.1e}: {verdict}")

# %% [markdown]
# Solution to exercise 4: the recorded runs without these pairs begin more of the other sentences with an adverb. Their sources say nothing of the kind.

# %% tags=["hide-cell"]
if runs:
    for variant in ("reference", "β = 0.5", "no contrast"):
        print(f"{variant:12} other sentences that begin with an adverb, %: {[round(100 * point['others_adverb']) for point in table[variant]]}")
    for source, output in list(table["no contrast"][-1]["examples"].items())[4:]:  # four other sentences
        if begins_with_adverb(output) and output != table["β = 0.5"][-1]["examples"][source]:
            print(f"  {source} → {output}")
    assert mean["no contrast"]["others_adverb"] > mean["β = 0.5"]["others_adverb"] + 0.03

# %% [markdown]
# ## The notebook and the module agree

# %%
with torch.inference_mode():
    ours, imported = (function(policy_model, batch) for function in (sequence_log_probability, transformer.modern.sequence_log_probability))
assert torch.equal(ours, imported)
scores = [torch.randn(7, generator=generator) for _ in range(4)]
assert torch.equal(dpo_loss(*scores), transformer.modern.dpo_loss(*scores))
assert dpo_loss is not transformer.modern.dpo_loss
assert all(transformer.modern.front_adverb(fronted.rejected) == fronted.chosen for fronted, _ in pairs)
print("equal log-probabilities, losses and pairs")
