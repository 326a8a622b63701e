"""Chapter 11.3: DPO in four variants, and plain fine-tuning beside it.

    python book/experiments/preferences.py

Each seed makes its own reference: the shipped model, fine-tuned until it knows both German orders. From there, with the
same number of updates and the same learning rate: DPO with two values of β; DPO without the pairs that say where the
preference ends; plain fine-tuning on the chosen outputs. One run leaves the reference out and starts DPO at the shipped
model. Everything is measured on test sentences, the same for all runs.
"""

import copy
import random
from functools import cache
from typing import Any

import torch
from recording import record

from transformer.corpus import embedded_corpus
from transformer.data import make_batch
from transformer.model import Transformer
from transformer.modern.preferences import (
    PreferencePair,
    begins_with_adverb,
    likelihood_step,
    preference_batch,
    preference_pairs,
    preference_step,
    score_preferences,
    sequence_log_probability,
)
from transformer.translator import Translator, load_toy_translator

SEEDS, MAX_WORDS, N_TRAIN, N_TEST = (1, 2, 3), 8, 240, 60
REFERENCE_STEPS, REFERENCE_RATE, UPDATES, RATE, EVERY = 120, 1e-3, 40, 5e-5, 10


@cache
def collect(split: str, number: int, seed: int) -> tuple[list[list[PreferencePair]], list[tuple[str, str]]]:
    """So many sentences to which the rule applies, as their two pairs, and as many others, as they are."""
    applies: list[list[PreferencePair]] = []
    others: list[tuple[str, str]] = []
    for pair in embedded_corpus(split, seed):
        if len(pair.source_words) <= MAX_WORDS:
            pairs = preference_pairs(pair)
            if pairs:
                applies.append(pairs)
            else:
                others.append((pair.source, pair.target))
        if len(applies) == number:
            break
    return applies, others[:number]


@cache
def reference_model(seed: int) -> Transformer:
    """The shipped model after fine-tuning on both orders, mixed with ordinary sentences."""
    pairs, others = collect("train", N_TRAIN, seed)
    tokenizer = load_toy_translator().tokenizer
    model = copy.deepcopy(load_toy_translator().model)
    draw = random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=REFERENCE_RATE)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, REFERENCE_STEPS)
    for _ in range(REFERENCE_STEPS):
        either = [(pair.source, pair[1 + i % 2]) for i, (pair, _) in enumerate(draw.sample(pairs, 8))]
        some = either + draw.sample(others, 8)
        batch = make_batch([(tokenizer.encode(source), tokenizer.encode(target)) for source, target in some])
        likelihood_step(model, batch, optimizer)
        falling.step()
    return model


def measure(model: Transformer, reference: Transformer) -> dict[str, Any]:
    """Scores on held-out sentences and on others; the margin is against the run's own reference."""
    translator = Translator(model, load_toy_translator().tokenizer)
    applies, others = collect("test", N_TEST, 1)
    held_out = [fronted for fronted, _ in applies]
    with torch.inference_mode():
        batch = preference_batch(held_out, translator.tokenizer)
        gain = sequence_log_probability(model, batch) - sequence_log_probability(reference, batch)
        chosen, rejected = gain.chunk(2)
    outputs = translator.translate([source for source, _ in others], beam_size=1)
    shown = [pair.source for pair in held_out[:4]] + [source for source, _ in others[:4]]
    return {
        **{name: round(value, 3) for name, value in score_preferences(translator, held_out)._asdict().items()},
        "margin": round((chosen - rejected).mean().item(), 3),
        "gained": round((chosen > rejected).double().mean().item(), 3),
        "others_exact": sum(output == target for output, (_, target) in zip(outputs, others)) / len(others),
        "others_adverb": sum(map(begins_with_adverb, outputs)) / len(others),
        "examples": dict(zip(shown, translator.translate(shown, beam_size=1))),
    }


def run(method: str, beta: float, contrast: bool, fine_tuned: bool, seed: int) -> dict[str, Any]:
    """Train once; measure at the start and every EVERY updates."""
    torch.set_num_threads(1)
    reference = reference_model(seed) if fine_tuned else load_toy_translator().model
    policy = copy.deepcopy(reference)
    tokenizer = load_toy_translator().tokenizer
    pairs, _ = collect("train", N_TRAIN, seed)
    draw = random.Random(100 + seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE)
    points = [{"updates": 0, **measure(policy, reference)}]
    for update in range(1, UPDATES + 1):
        drawn = draw.sample(pairs, 16)
        some = [both[i >= 12 and contrast] for i, both in enumerate(drawn)]
        if method == "DPO":
            preference_step(policy, reference, preference_batch(some, tokenizer), optimizer, beta)
        else:
            chosen = [(tokenizer.encode(pair.source), tokenizer.encode(pair.chosen)) for pair in some]
            likelihood_step(policy, make_batch(chosen), optimizer)
        if update % EVERY == 0:
            points.append({"updates": update, **measure(policy, reference)})
    return {"points": points}


if __name__ == "__main__":
    VARIANTS: dict[str, dict[str, Any]] = {
        "β = 0.5": {"method": "DPO", "beta": 0.5, "contrast": True, "fine_tuned": True},
        "β = 2": {"method": "DPO", "beta": 2.0, "contrast": True, "fine_tuned": True},
        "no contrast": {"method": "DPO", "beta": 0.5, "contrast": False, "fine_tuned": True},
        "shipped reference": {"method": "DPO", "beta": 0.5, "contrast": True, "fine_tuned": False},
        "fine-tuning": {"method": "fine-tuning", "beta": 0.0, "contrast": True, "fine_tuned": True},
    }
    runs = {f"{name}, seed {seed}": {**options, "seed": seed} for seed in SEEDS for name, options in VARIANTS.items()}
    record(__file__, runs, run)
