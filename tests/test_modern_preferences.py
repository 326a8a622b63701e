"""Preferences: the DPO loss against a case by hand and its limits, whole-sentence probabilities, the rule for pairs."""

import copy
import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer import corpus
from transformer.corpus import SentencePair, embedded_corpus
from transformer.data import BOS_ID, EOS_ID, PAD_ID, Batch, make_batch
from transformer.model import Transformer, TransformerConfig
from transformer.modern.preferences import (
    ADVERBS,
    PreferencePair,
    begins_with_adverb,
    dpo_loss,
    front_adverb,
    likelihood_step,
    preference_batch,
    preference_pairs,
    preference_step,
    score_preferences,
    sequence_log_probability,
)
from transformer.translator import load_toy_translator

PAIRS = [([5, 6, 7], [8, 9]), ([4, 9, 11, 5, 6], [7, 7, 10, 4, 6, 5]), ([8], [])]
log_probabilities = st.floats(-60, 0)
betas = st.floats(0.01, 5)


def tiny(seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(TransformerConfig.tiny(13, dropout=0.1)).double().eval()


def loss(pc: float, pr: float, rc: float, rr: float, beta: float) -> float:
    return dpo_loss(*(torch.tensor([value], dtype=torch.float64) for value in (pc, pr, rc, rr)), beta).item()


# The loss


def test_the_loss_by_hand() -> None:
    assert loss(-3, -5, -4, -4, 0.5) == pytest.approx(math.log(1 + math.exp(-1)))
    assert loss(-4, -6, -5, -4, 0.5) == pytest.approx(math.log(1 + math.exp(-1.5)))


def test_the_mean_over_pairs() -> None:
    scores = torch.tensor([[-3.0, -4.0], [-5.0, -6.0], [-4.0, -5.0], [-4.0, -4.0]], dtype=torch.float64)
    assert dpo_loss(*scores, 0.5).item() == pytest.approx((loss(-3, -5, -4, -4, 0.5) + loss(-4, -6, -5, -4, 0.5)) / 2)


@given(log_probabilities, log_probabilities, betas)
def test_log_2_where_the_policy_is_the_reference(chosen: float, rejected: float, beta: float) -> None:
    assert loss(chosen, rejected, chosen, rejected, beta) == pytest.approx(math.log(2))


@given(*[log_probabilities] * 4, betas, st.floats(-30, 30), st.floats(-30, 30))
def test_a_constant_on_both_of_a_pair_changes_nothing(
    pc: float, pr: float, rc: float, rr: float, beta: float, of_policy: float, of_reference: float
) -> None:
    shifted = loss(pc + of_policy, pr + of_policy, rc + of_reference, rr + of_reference, beta)
    assert shifted == pytest.approx(loss(pc, pr, rc, rr, beta), rel=1e-6, abs=1e-12)


@given(*[log_probabilities] * 4, betas, st.floats(0.01, 10))
def test_falls_with_the_margin(pc: float, pr: float, rc: float, rr: float, beta: float, step: float) -> None:
    here = loss(pc, pr, rc, rr, beta)
    assert loss(pc + step, pr, rc, rr, beta) < here
    assert loss(pc, pr + step, rc, rr, beta) > here
    assert loss(pc, pr, rc + step, rr, beta) > here
    assert loss(pc, pr, rc, rr + step, beta) < here


@given(*[log_probabilities] * 4, betas)
def test_two_orders_of_a_pair_are_a_sure_thing(pc: float, pr: float, rc: float, rr: float, beta: float) -> None:
    # σ(x) + σ(−x) = 1: what the loss gives to one order it takes from the other
    both = math.exp(-loss(pc, pr, rc, rr, beta)) + math.exp(-loss(pr, pc, rr, rc, beta))
    assert both == pytest.approx(1)


def test_small_beta_sees_the_margin_in_first_order() -> None:
    margin, beta = 7.0, 1e-5
    assert loss(-1, -8, -4, -4, beta) == pytest.approx(math.log(2) - beta * margin / 2, abs=1e-8)


@given(st.lists(st.tuples(*[log_probabilities] * 4), min_size=1, max_size=4), st.floats(0.05, 1))
@settings(max_examples=10)
def test_the_gradient_by_finite_differences_and_by_formula(rows: list[tuple[float, ...]], beta: float) -> None:
    scores = torch.tensor(rows, dtype=torch.float64).T.contiguous()  # (4, B)
    policy = scores[:2].clone().requires_grad_()
    dpo_loss(policy[0], policy[1], scores[2], scores[3], beta).backward()
    margin = (scores[0] - scores[2]) - (scores[1] - scores[3])
    formula = beta * torch.sigmoid(-beta * margin) / len(rows)
    torch.testing.assert_close(policy.grad, torch.stack([-formula, formula]))
    for i, j in [(0, 0), (1, len(rows) - 1)]:
        up, down = scores.clone(), scores.clone()
        up[i, j] += 1e-4
        down[i, j] -= 1e-4
        slope = (dpo_loss(*up, beta) - dpo_loss(*down, beta)) / 2e-4
        assert slope.item() == pytest.approx(policy.grad[i, j].item(), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("margin", [-1e6, 1e6])
def test_a_large_margin_does_not_overflow(margin: float) -> None:
    chosen = torch.tensor([margin], requires_grad=True)
    zero = torch.zeros(1)
    result = dpo_loss(chosen, zero, zero, zero, 1.0)
    result.backward()
    assert result.item() == (0 if margin > 0 else 1e6)
    assert chosen.grad.item() == (0 if margin > 0 else -1)


def test_the_best_policy_has_the_least_expected_loss() -> None:
    # Pairs drawn by Bradley and Terry's rule from a reward: among all policies, π* ∝ π_ref exp(r/β) fits them best.
    torch.manual_seed(0)
    reference, reward = torch.randn(5, dtype=torch.float64).log_softmax(-1), torch.randn(5, dtype=torch.float64)
    beta = 0.7
    i, j = torch.triu_indices(5, 5, offset=1)
    wins = torch.sigmoid(reward[i] - reward[j])

    def expected(policy: torch.Tensor) -> float:
        return sum(
            p * dpo_loss(*(s[None] for s in (policy[a], policy[b], reference[a], reference[b])), beta).item()
            for first, second, win in zip(i, j, wins)
            for a, b, p in ((first, second, win.item()), (second, first, 1 - win.item()))
        )

    best = (reference + reward / beta).log_softmax(-1)
    for _ in range(30):
        assert expected((best + 0.3 * torch.randn(5, dtype=torch.float64)).log_softmax(-1)) > expected(best)


def test_wrong_input_to_the_loss_is_named() -> None:
    two, three = torch.zeros(2), torch.zeros(3)
    with pytest.raises(ValueError, match=r"shapes .*\(3,\)"):
        dpo_loss(two, three, two, two)
    with pytest.raises(ValueError, match="one number a pair"):
        dpo_loss(*[torch.zeros(2, 1)] * 4)
    with pytest.raises(ValueError, match="one number a pair"):
        dpo_loss(*[torch.tensor(0.0)] * 4)
    with pytest.raises(ValueError, match="one number a pair"):
        dpo_loss(*[torch.zeros(0)] * 4)
    with pytest.raises(ValueError, match="no_grad"):
        dpo_loss(two, two, torch.zeros(2, requires_grad=True), two)
    for beta in (0.0, -0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match="beta is"):
            dpo_loss(two, two, two, two, beta)


# The probability of a sentence


def test_the_sum_over_tokens_one_by_one() -> None:
    model = tiny()
    batch = make_batch(PAIRS)
    with torch.inference_mode():
        got = sequence_log_probability(model, batch)
        for row, (source, target) in enumerate(PAIRS):
            total, written = 0.0, [BOS_ID]
            for token in [*target, EOS_ID]:  # a loop of its own: one prefix after another, no padding
                logits = model(torch.tensor([[*source, EOS_ID]]), torch.tensor([written]))[0, -1]
                total += (logits[token] - logits.exp().sum().log()).item()
                written.append(token)
            assert got[row].item() == pytest.approx(total, abs=1e-8)


def test_all_continuations_of_two_tokens_share_the_probability() -> None:
    # P(end at once) + Σ_a P(a, end) + Σ_ab P(a, b as a prefix) = 1; a prefix is a target without its end token.
    model = tiny()
    tokens = range(13)
    one = make_batch([([5, 6], [])] + [([5, 6], [a]) for a in tokens if a not in (PAD_ID, EOS_ID)])
    # whatever is left goes on: begin with a and then do not end
    with torch.inference_mode():
        ended = sequence_log_probability(model, one).exp().sum()
        first = model(one.src[:1], one.tgt_in[:1, :1])[0, 0].softmax(-1)
        going_on = torch.zeros((), dtype=torch.float64)
        for a in tokens:
            if a in (PAD_ID, EOS_ID):
                continue
            second = model(one.src[:1], torch.tensor([[BOS_ID, a]]))[0, 1].softmax(-1)
            going_on += first[a] * (1 - second[EOS_ID])
    assert (ended + going_on + first[PAD_ID]).item() == pytest.approx(1)


def test_padding_and_company_change_nothing() -> None:
    model = tiny()
    batch = make_batch(PAIRS)
    wide = Batch(
        *(torch.nn.functional.pad(ids, (0, 4), value=PAD_ID) for ids in (batch.src, batch.tgt_in, batch.tgt_out))
    )
    with torch.inference_mode():
        together = sequence_log_probability(model, batch)
        alone = torch.cat([sequence_log_probability(model, make_batch([pair])) for pair in PAIRS])
        torch.testing.assert_close(together, alone)
        torch.testing.assert_close(together, sequence_log_probability(model, wide))
    assert together.shape == (3,) and (together < 0).all()


def test_training_mode_is_refused_and_gradients_flow_without_it() -> None:
    model = tiny()
    batch = make_batch(PAIRS)
    sequence_log_probability(model, batch).sum().backward()
    assert model.embedding.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="training mode"):
        sequence_log_probability(model.train(), batch)


# The pairs


def test_adverbs_are_those_of_the_corpus() -> None:
    known = {pair.partition("=")[2].strip("*") for pairs in corpus._ADVERBS.values() for pair in pairs.split(", ")}
    assert set(ADVERBS) == known and len(ADVERBS) == len(known)


def test_the_rule_on_every_kind_of_sentence() -> None:
    assert front_adverb("Er las heute Morgen das Buch.") == "Heute Morgen las er das Buch."
    assert front_adverb("Die Frau schwamm gestern.") == "Gestern schwamm die Frau."
    two = "Die Männer trugen gestern ein Buch und eine Maus fraß gestern Käse."
    assert front_adverb(two) == "Gestern trugen die Männer ein Buch und eine Maus fraß gestern Käse."
    assert front_adverb("Sie hat heute nicht getanzt, weil er kam.") == "Heute hat sie nicht getanzt, weil er kam."
    for plain in (
        "Heute tanzte sie.",
        "Sie tanzte.",
        "Sie hoffte, dass er gestern kam.",
        "Sie tanzte und er kam gestern.",
        "Gestern kam er und sie tanzte heute.",
    ):
        assert front_adverb(plain) is None, plain
    assert begins_with_adverb("Heute Morgen kam er.") and begins_with_adverb("heute kam er.")
    assert not begins_with_adverb("Baldur kam.")


def test_the_rule_against_the_corpus_s_own_fronted_sentences() -> None:
    # The grammar fronts an adverb where English does: such sentences are left alone, the others keep their words.
    found = fronted = 0
    for pair in islice(embedded_corpus("train", 11), 1500):
        again = front_adverb(pair.target)
        if "inversion" in pair.phenomena and begins_with_adverb(pair.target):
            fronted += 1
            assert again is None
        if again is not None:
            found += 1
            assert begins_with_adverb(again) and front_adverb(again) is None
            assert again != pair.target
            assert sorted(corpus.words(again.lower())) == sorted(corpus.words(pair.target.lower()))
    assert found > 100 and fronted > 40


def test_what_the_rule_writes_is_what_the_grammar_writes() -> None:
    # With the adverb moved to the front of the English sentence, the shipped model, trained on the grammar, agrees.
    translator = load_toy_translator()
    moved, wanted = [], []
    for pair in embedded_corpus("train", 12):
        pairs = preference_pairs(pair)
        if not pairs or len(pair.source_words) > 8:
            continue
        rest = pairs[1].source
        when = [word for word in pair.source_words if word not in corpus.words(rest)]
        moved.append(f"{' '.join(when).capitalize()} {rest[0].lower()}{rest[1:]}")
        wanted.append(pairs[0].chosen)
        if len(moved) == 15:
            break
    outputs = translator.translate(moved, beam_size=1)
    assert sum(a == b for a, b in zip(outputs, wanted)) >= 12


def test_the_two_pairs_of_a_sentence() -> None:
    pair = next(p for p in embedded_corpus("train", 3) if p.target.startswith("Ein") and preference_pairs(p))
    fronted, kept = preference_pairs(pair)
    assert (fronted.source, fronted.rejected) == (pair.source, pair.target)
    assert fronted.chosen == front_adverb(pair.target) == kept.rejected
    assert len(kept.source.split()) < len(pair.source.split()) and kept.source[-1] == "."
    assert front_adverb(kept.chosen) is None and not begins_with_adverb(kept.chosen)
    assert preference_pairs(replace(pair, target_words=("Sie", "tanzte", "."))) == []


def test_the_adverb_is_cut_from_the_english_whole() -> None:
    pair = SentencePair(
        ("She", "slept", "this", "morning", "."),
        ("Sie", "schlief", "heute", "Morgen", "."),
        ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4)),
        frozenset(),
    )
    assert preference_pairs(pair) == [
        PreferencePair("She slept this morning.", "Heute Morgen schlief sie.", "Sie schlief heute Morgen."),
        PreferencePair("She slept.", "Sie schlief.", "Heute Morgen schlief sie."),
    ]


# The updates

SOME = [
    PreferencePair("She slept this morning.", "Heute Morgen schlief sie.", "Sie schlief heute Morgen."),
    PreferencePair("He danced yesterday.", "Gestern tanzte er.", "Er tanzte gestern."),
]


def test_a_batch_holds_the_chosen_before_the_rejected() -> None:
    tokenizer = load_toy_translator().tokenizer
    batch = preference_batch(SOME, tokenizer)
    texts = [tokenizer.decode(ids) for ids in batch.tgt_out.tolist()]
    assert texts == [SOME[0].chosen, SOME[1].chosen, SOME[0].rejected, SOME[1].rejected]
    assert torch.equal(batch.src[:2], batch.src[2:])
    with pytest.raises(ValueError, match="no sequence"):
        preference_batch([], tokenizer)


def test_updates_prefer_the_chosen_and_leave_the_reference() -> None:
    translator = load_toy_translator()
    reference, policy = translator.model, copy.deepcopy(translator.model)
    frozen = {name: value.clone() for name, value in reference.state_dict().items()}
    batch = preference_batch(SOME, translator.tokenizer)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    steps = [preference_step(policy, reference, batch, optimizer, beta=0.5) for _ in range(6)]
    assert steps[0].loss == pytest.approx(math.log(2), abs=1e-5)
    assert steps[-1].loss < steps[0].loss - 0.1
    assert steps[-1].chosen - steps[-1].rejected > steps[0].chosen - steps[0].rejected + 1
    assert all(torch.equal(value, frozen[name]) for name, value in reference.state_dict().items())
    assert all(parameter.grad is None for parameter in reference.parameters())
    with pytest.raises(ValueError, match="one object"):
        preference_step(policy, policy, batch, optimizer)
    with pytest.raises(ValueError, match="shapes"):  # an odd number of rows is no set of pairs
        preference_step(policy, reference, make_batch(PAIRS), optimizer)


def test_fine_tuning_is_the_negative_log_likelihood_a_token() -> None:
    model = tiny()
    batch = make_batch(PAIRS)
    with torch.no_grad():
        expected = -sequence_log_probability(model, batch).sum().item() / batch.n_tokens
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = [likelihood_step(model, batch, optimizer) for _ in range(5)]
    assert losses[0] == pytest.approx(expected) and losses[-1] < losses[0]
    with pytest.raises(ValueError, match="training mode"):
        likelihood_step(model.train(), batch, optimizer)


@pytest.mark.parametrize("kind", ["preference", "likelihood"])
def test_an_update_uses_no_gradient_that_was_there_before(kind: str) -> None:
    batch, moved = make_batch(PAIRS[:2]), []
    for stale in (False, True):
        model = tiny()
        if stale:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "preference":
            preference_step(model, tiny(), batch, optimizer, beta=1.0)
        else:
            likelihood_step(model, batch, optimizer)
        moved.append(model.embedding.weight.detach())
    assert torch.equal(*moved) and not torch.equal(moved[0], tiny().embedding.weight)


def test_scores_of_the_shipped_model() -> None:
    translator = load_toy_translator()
    scores = score_preferences(translator, SOME)
    assert scores.obeyed == scores.exact == scores.ranked == 0 and scores.rejected > scores.chosen
    turned = score_preferences(translator, [PreferencePair(p.source, p.rejected, p.chosen) for p in SOME])
    assert turned.exact == turned.ranked == 1 and (turned.chosen, turned.obeyed) == (scores.rejected, 0)
    first = PreferencePair("Yesterday he danced.", "Gestern tanzte er.", "Er tanzte gestern.")
    assert score_preferences(translator, [first])[:3] == (1, 1, 1)
