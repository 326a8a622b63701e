"""Section 5.2: the training loop."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer import (
    LabelSmoothingLoss,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    greedy_decode,
    make_adam,
    noam_rate,
    train,
)
from transformer.data import PAD_ID, Batch, TokenBatches, copy_task, make_batch

QUIET = {"device": "cpu", "progress": False}


def make_model(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "dropout": 0.0}
    return Transformer(TransformerConfig(**{"src_vocab_size": 20, "tgt_vocab_size": 20, **sizes, **changes}))


def make_batches(n=1000, seed=0):
    return itertools.islice(TokenBatches(copy_task(200, 20, 2, 7, seed), max_tokens=60, seed=seed), n)


def run(steps=6, batches=None, evaluate=None, model=None, dropout=0.0, **options):
    model = make_model(dropout=dropout) if model is None else model
    config = TrainingConfig(steps=steps, **{"warmup_steps": 5, "log_every": 2, **QUIET, **options})
    return model, train(model, make_batches() if batches is None else batches, config, evaluate)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def without_time(records):
    return [dataclasses.replace(record, seconds=0.0) for record in records]


# ---- the same twice ----


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_two_runs_are_equal(dropout):
    torch.manual_seed(123)
    first, records = run(dropout=dropout)
    torch.rand(17)  # whatever was drawn before
    second, again = run(dropout=dropout)
    assert weights(first).equal(weights(second))
    assert without_time(records) == without_time(again)


def test_the_seed_is_that_of_dropout():
    with_dropout = [weights(run(dropout=0.3, seed=seed)[0]) for seed in (0, 1)]
    assert not with_dropout[0].equal(with_dropout[1])
    without = [weights(run(seed=seed)[0]) for seed in (0, 1)]
    assert without[0].equal(without[1])


def test_the_random_start_and_the_order_count():
    assert not weights(run(model=make_model(1))[0]).equal(weights(run(model=make_model(2))[0]))
    assert not weights(run(batches=make_batches(seed=1))[0]).equal(weights(run(batches=make_batches(seed=2))[0]))


def test_dropout_in_training_only():
    seen = []

    def watch(module, inputs, output):
        seen.append(module.training)

    model = make_model(dropout=0.5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(watch)

    def evaluate(model):
        assert not model.training
        seen.clear()
        src = torch.tensor([[5, 6, 2]])
        assert model(src, src).equal(model(src, src))
        assert seen and not any(seen)
        seen.clear()
        return {}

    before = weights(model).clone()
    run(3, model=model, evaluate=evaluate, evaluate_every=2)  # ends with an evaluation after update 3
    assert not seen
    run(2, model=model)
    assert seen and all(seen) and not weights(model).equal(before)


# ---- one update, by hand ----


def by_hand(model, batches, config):
    """The loop as the paper describes it, in plain steps."""
    optimizer = make_adam(model)
    loss_function = LabelSmoothingLoss(config.label_smoothing, PAD_ID)
    losses, perplexities = [], []
    model.train()
    for step, batch in enumerate(batches, 1):
        for group in optimizer.param_groups:
            group["lr"] = noam_rate(step, model.config.d_model, config.warmup_steps)
        optimizer.zero_grad()
        logits = model(batch.src, batch.tgt_in)
        loss = loss_function(logits, batch.tgt_out)
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), batch.n_tokens))
        perplexities.append((loss_function.nll(logits, batch.tgt_out).item(), batch.n_tokens))
    return losses, perplexities


def mean(pairs):
    return sum(value * n for value, n in pairs) / sum(n for _, n in pairs)


def test_the_loop_is_what_the_paper_says():
    model, expected = make_model().double(), make_model().double()
    config = TrainingConfig(steps=7, warmup_steps=4, log_every=3, **QUIET)
    records = train(model, make_batches(), config)
    losses, perplexities = by_hand(expected, make_batches(7), config)
    torch.testing.assert_close(weights(model), weights(expected), rtol=1e-6, atol=1e-7)
    assert [record.step for record in records] == [3, 6, 7]
    for record, start in zip(records, (0, 3, 6), strict=True):
        assert record.loss == pytest.approx(mean(losses[start : record.step]))
        assert math.log(record.perplexity) == pytest.approx(mean(perplexities[start : record.step]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_is_the_configured_one(smoothing):
    _, records = run(3, label_smoothing=smoothing, log_every=1)
    gaps = [record.loss - math.log(record.perplexity) for record in records]
    assert (max(abs(gap) for gap in gaps) < 1e-5) == (smoothing == 0.0)


@given(steps=st.integers(1, 8), log_every=st.integers(1, 9), warmup=st.integers(1, 9), every=st.integers(0, 9))
@settings(max_examples=20)
def test_records_rates_and_evaluations(steps, log_every, warmup, every):
    called = []

    def evaluate(model):
        assert not model.training
        called.append(len(called))
        return {"score": float(len(called))}

    model, records = run(steps, log_every=log_every, warmup_steps=warmup, evaluate_every=every, evaluate=evaluate)
    due = [step for step in range(1, steps + 1) if step == steps or (every and step % every == 0)]
    assert [record.step for record in records] == sorted({*due, *range(log_every, steps + 1, log_every)})
    assert [record.step for record in records if record.scores] == due and len(called) == len(due)
    assert [record.scores["score"] for record in records if record.scores] == [*range(1, len(due) + 1)]
    assert [record.learning_rate for record in records] == [noam_rate(r.step, 16, warmup) for r in records]
    assert all(record.tokens_per_second > 0 and record.perplexity > 1 and record.loss > 0 for record in records)
    assert not model.training


def test_evaluating_changes_nothing():
    plain, _ = run(6, dropout=0.3)
    watched, _ = run(6, dropout=0.3, evaluate_every=1, evaluate=lambda model: {"zero": 0.0})
    assert weights(plain).equal(weights(watched))


def test_each_update_takes_one_batch():
    taken = []

    def stream():
        for batch in make_batches():
            taken.append(batch)
            yield batch

    run(5, batches=stream())
    assert len(taken) == 5
    run(1, batches=[taken[0]])  # a list is as good as an iterator


# ---- padding ----


def wider(batch, source, target):
    return Batch(
        nn.functional.pad(batch.src, (0, source)),
        nn.functional.pad(batch.tgt_in, (0, target)),
        nn.functional.pad(batch.tgt_out, (0, target)),
    )


def test_padding_changes_neither_loss_nor_weights():
    results = []
    for source, target in ((0, 0), (20, 0), (0, 20), (20, 40)):
        model = make_model().double()
        _, records = run(3, model=model, log_every=1, batches=[wider(b, source, target) for b in make_batches(3)])
        results.append((weights(model), torch.tensor([(record.loss, record.perplexity) for record in records])))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-6, atol=1e-7)  # Adam makes noise large


def test_gradients_are_normalised_by_tokens():
    """A batch twice over has the same mean, so the same gradient, and one update of it gives the same weights."""
    batch = make_batch(copy_task(9, 20, 1, 9))
    double = Batch(*(torch.cat([ids, ids]) for ids in (batch.src, batch.tgt_in, batch.tgt_out)))
    gradients = []
    for one in (batch, double):
        model = make_model().double()
        run(1, model=model, batches=[one])
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-12)
    assert 0.01 < gradients[0].norm() < 10


# ---- what goes wrong ----


@pytest.mark.parametrize("n", [0, 1, 4])
def test_batches_that_end_early(n):
    with pytest.raises(ValueError, match=rf"ended after {n} of 5 updates; give more"):
        run(5, batches=make_batches(n))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_update(value):
    model = make_model()
    seen = []

    def poison(module, inputs, output):
        seen.append(weights(model).clone())
        return output * value if len(seen) == 3 else output

    model.decoder.layers[0].register_forward_hook(poison)
    with pytest.raises(FloatingPointError, match=r"loss of update 3 is (nan|inf).*warm-up") as caught:
        run(9, model=model)
    assert weights(model).equal(seen[2]) and not seen[1].equal(seen[2]) and weights(model).isfinite().all()
    third = list(make_batches(3))[2]
    assert f"{third.src.size(0)} pairs" in str(caught.value) and str(third.src[0, :2].tolist())[:-1] in str(
        caught.value
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"steps": -1},
        {"warmup_steps": 0},
        {"log_every": 0},
        {"evaluate_every": -1},
        {"accumulate": 0},
        {"keep": 0},
        {"checkpoint_every": -1},
        {"checkpoint_minutes": float("nan")},
        {"clip_norm": 0.0},
        {"precision": "float8"},
    ],
    ids=repr,
)
def test_impossible_settings(changes):
    ((name, value),) = changes.items()
    with pytest.raises(ValueError, match=rf"{name}={value!r}.*(at least|positive|choose)"):
        TrainingConfig(**changes)


def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="device 'nonsense' is unknown"):
        run(device="nonsense")


def test_the_defaults_are_the_papers():
    config = TrainingConfig()
    assert (config.steps, config.warmup_steps, config.label_smoothing) == (100_000, 4_000, 0.1)


def test_no_progress_bar_where_none_is_wanted(capfd):
    run(2)
    run(2, progress=True)  # nor where standard error is no terminal
    out, err = capfd.readouterr()
    assert not out and not err


# ---- it learns ----


def test_the_copy_task_is_learned():
    torch.manual_seed(0)
    model = make_model(d_model=32, d_ff=64, n_heads=4, norm_order="pre", src_vocab_size=10, tgt_vocab_size=10)
    batches = TokenBatches(copy_task(5000, 10, 2, 5, seed=1), max_tokens=400)
    _, records = run(300, model=model, batches=batches, warmup_steps=80, log_every=50)
    assert records[-1].perplexity < 1.5 < 5 < records[0].perplexity
    unseen = copy_task(100, 10, 5, 5, seed=2)
    copies = greedy_decode(model, make_batch(unseen).src)
    assert sum(copy == source for copy, (source, _) in zip(copies, unseen, strict=True)) >= 80
