"""Section 5.2: the training loop."""

import dataclasses
import itertools
import logging
import math
import threading

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
    perplexity,
    train,
)
from transformer.checkpoints import average_checkpoints, list_checkpoints
from transformer.data import PAD_ID, Batch, TokenBatches, copy_task, make_batch
from transformer.training import _can_compile, pick_precision

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


def test_every_update_drops_other_units():
    masks = []
    model = make_model(dropout=0.3)
    dropout = next(module for module in model.modules() if isinstance(module, nn.Dropout))
    dropout.register_forward_hook(lambda module, inputs, output: masks.append((output == 0).flatten().tolist()))
    run(4, model=model, batches=[make_batch(copy_task(9, 20))] * 4)
    assert len(masks) >= 4 and all(one != other for one, other in itertools.combinations(masks, 2))


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


def norm(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()


def test_clipping_limits_the_norm():
    free, small, large = (run(1, clip_norm=clip_norm)[0] for clip_norm in (None, 0.01, 100.0))
    assert norm(free) > 0.05 and norm(small) == pytest.approx(0.01, rel=1e-3)
    assert weights(large).equal(weights(free)), "what is smaller stays as it is"
    # Adam divides by the gradient's size, so it takes a change of size between updates to see a difference.
    free, small = (run(6, clip_norm=clip_norm)[0] for clip_norm in (None, 0.01))
    assert not torch.allclose(weights(small), weights(free), atol=1e-3)


# ---- perplexity ----


def test_perplexity_is_per_token_and_without_smoothing():
    """Against torch's cross-entropy over all real tokens at once, in batches of unequal size."""
    model = make_model().double().eval()
    batches = [make_batch(copy_task(n, 20, 1, 9, seed=n)) for n in (2, 7, 1)]
    with torch.inference_mode():
        pairs = [(model(batch.src, batch.tgt_in), batch.tgt_out) for batch in batches]
    logits = torch.cat([line[target != PAD_ID] for line, target in pairs])
    targets = torch.cat([target[target != PAD_ID] for _, target in pairs])
    expected = nn.functional.cross_entropy(logits, targets).exp().item()
    assert perplexity(model, batches) == pytest.approx(expected, rel=1e-9)
    nearly_sure = make_model().double().eval()
    nearly_sure.output_projection = lambda hidden: 50.0 * nn.functional.one_hot(batches[0].tgt_out, 20).double()
    assert perplexity(nearly_sure, batches[:1]) == pytest.approx(1.0)


# ---- precision ----


@pytest.fixture(params=[(7, 5), (8, 0), (9, 0)], ids=str)
def gpu(request, monkeypatch):
    """A GPU of some capability, as far as torch is asked; the first is Colab's T4."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: request.param)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)  # so says even a T4
    return request.param


def test_precision_on_a_gpu(gpu, caplog):
    device = torch.device("cuda")
    new = gpu >= (8, 0)
    assert pick_precision("auto", device) == (torch.bfloat16 if new else torch.float16)
    assert pick_precision("float16", device) == torch.float16
    assert pick_precision("float32", device) == torch.float32
    if new:
        assert pick_precision("bfloat16", device) == torch.bfloat16
    else:
        with pytest.raises(ValueError, match="does not compute in bfloat16; set precision to float16 or auto"):
            pick_precision("bfloat16", device)
    with caplog.at_level(logging.INFO, "transformer"):
        assert _can_compile(TrainingConfig(compile=True), device) == new
    assert ("not compiling" in caplog.text) != new
    assert not _can_compile(TrainingConfig(), device)


def test_precision_elsewhere():
    for device in (torch.device("cpu"), torch.device("mps")):
        assert pick_precision("auto", device) == torch.float32
        assert not _can_compile(TrainingConfig(compile=True), device)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_half_precision_trains(precision, clip_norm):
    seen = set()
    model = make_model()
    linear = model.encoder.layers[0].feed_forward.w_1
    linear.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    model, records = run(30, model=model, precision=precision, log_every=10, clip_norm=clip_norm)
    assert seen == {getattr(torch, precision)} and {p.dtype for p in model.parameters()} == {torch.float32}
    exact, expected = run(30, log_every=10, clip_norm=clip_norm)
    assert weights(model).isfinite().all()
    assert records[-1].loss < records[0].loss - 0.1
    for measure in ("loss", "perplexity"):
        seen, told = ([getattr(record, measure) for record in some] for some in (records, expected))
        assert seen == pytest.approx(told, rel=0.02)


# ---- the order of the pairs ----


def test_epochs_differ_and_equal_seeds_do_not():
    def order(seed):
        batches = TokenBatches(copy_task(40, 20, 2, 7), max_tokens=30, seed=seed)
        n, seen = len(batches.plan(0)), []
        model = make_model()
        model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].tolist()))
        run(2 * n, model=model, batches=batches)
        rows = [[row[: row.index(2)] for batch in half for row in batch] for half in (seen[:n], seen[n:])]
        assert sorted(rows[0]) == sorted(rows[1]) == sorted(list(source) for source, _ in copy_task(40, 20, 2, 7))
        return rows

    first, second = order(0)
    assert first != second and order(0) == [first, second] and order(1)[0] != first


# ---- the thread that makes batches ----


def test_batches_are_made_ahead_and_in_order():
    before = threading.active_count()
    threads = set()

    def stream():
        for batch in make_batches():
            threads.add(threading.current_thread())
            yield batch

    assert weights(run(5, batches=stream())[0]).equal(weights(run(5)[0]))
    assert len(threads) == 1 and threading.main_thread() not in threads
    assert threading.active_count() == before


def test_an_error_in_the_batches_reaches_the_caller():
    before = threading.active_count()

    def stream():
        yield from make_batches(3)
        raise OSError("the disk with the data is gone")

    with pytest.raises(OSError, match="the disk with the data is gone") as caught:
        run(5, batches=stream())
    assert threading.active_count() == before, caught


def test_an_error_in_the_training_ends_the_thread():
    before = threading.active_count()
    model = make_model()
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError) as caught:
        run(5, model=model, batches=itertools.cycle(make_batches(3)))
    assert threading.active_count() == before, caught


# ---- evaluations that fail ----


def test_a_failed_evaluation_kills_no_training(caplog):
    calls = []

    def evaluate(model):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no metric today")
        return {"score": torch.tensor(0.5)}  # a tensor will do

    model, records = run(9, evaluate=evaluate, evaluate_every=3, log_every=3, dropout=0.3)
    assert [record.scores for record in records] == [{"score": 0.5}, {}, {"score": 0.5}]
    assert all(type(value) is float for record in records for value in record.scores.values())
    assert "evaluation after update 6 failed, and is left out: RuntimeError('no metric today')" in caplog.text
    assert weights(model).equal(weights(run(9, dropout=0.3)[0]))


@pytest.mark.parametrize("result", [None, 3.0, {"score": "high"}, {"score": torch.zeros(2)}], ids=str)
def test_an_evaluation_that_returns_no_scores(result, caplog):
    _, records = run(2, evaluate=lambda model: result)
    assert records[-1].scores == {} and "the evaluation after update 2 failed" in caplog.text


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


def test_the_copy_task_is_learned(tmp_path):
    torch.manual_seed(0)
    model = make_model(d_model=32, d_ff=64, n_heads=4, norm_order="pre", src_vocab_size=10, tgt_vocab_size=10)
    batches = TokenBatches(copy_task(5000, 10, 2, 5, seed=1), max_tokens=400)
    options = {"warmup_steps": 80, "log_every": 50, "checkpoint_every": 10}
    records = train(model, batches, TrainingConfig(steps=250, **options, **QUIET), run=tmp_path)
    assert records[-1].perplexity < 1.5 < 5 < records[0].perplexity
    unseen = copy_task(100, 10, 5, 5, seed=2)
    mean = average_checkpoints(list_checkpoints(tmp_path))  # the last alone depends on the last few batches
    copies = greedy_decode(mean, make_batch(unseen).src)
    assert sum(copy == source for copy, (source, _) in zip(copies, unseen, strict=True)) >= 95
