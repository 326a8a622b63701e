"""Section 5.4: label smoothing and dropout."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer import LabelSmoothingLoss, ResidualBlock, Transformer, TransformerConfig

Z, Y = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]], dtype=torch.float64), torch.tensor([1])


def by_definition(logits, targets, epsilon, pad_id=0, reduction="mean"):
    """The loss as plain Python: token by token, class by class."""
    total, count = 0.0, 0
    for row, true in zip(logits.flatten(0, -2).tolist(), targets.flatten().tolist(), strict=True):
        if true == pad_id:
            continue
        norm = max(row) + math.log(math.fsum(math.exp(x - max(row)) for x in row))
        others = epsilon / (len(row) - 1)
        total += math.fsum(-(1 - epsilon if k == true else others) * (x - norm) for k, x in enumerate(row))
        count += 1
    return total if reduction == "sum" else total / max(count, 1)


def test_reference_row():
    assert LabelSmoothingLoss(0.1)(Z, Y).item() == pytest.approx(1.576914, abs=1e-6)
    assert F.cross_entropy(Z, Y, label_smoothing=0.1).item() == pytest.approx(1.551914, abs=1e-6)
    without_padding = torch.tensor([[0.0, 0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3]], dtype=torch.float64)
    assert F.cross_entropy(Z, without_padding).item() == pytest.approx(1.651914, abs=1e-6)


@given(
    seed=st.integers(0, 10**6),
    epsilon=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    n_classes=st.integers(2, 9),
    reduction=st.sampled_from(["mean", "sum"]),
    pad_id=st.sampled_from([0, 1, -100]),
)
def test_the_loss_is_its_definition(seed, epsilon, n_classes, reduction, pad_id):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(3, 4, n_classes, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, n_classes, (3, 4), generator=generator)
    loss = LabelSmoothingLoss(epsilon, pad_id, reduction)
    assert loss(logits, targets).item() == pytest.approx(by_definition(logits, targets, epsilon, pad_id, reduction))
    assert loss.nll(logits, targets).item() == pytest.approx(by_definition(logits, targets, 0.0, pad_id, reduction))
    torch.testing.assert_close(loss(logits.flatten(0, 1), targets.flatten()), loss(logits, targets))


@given(seed=st.integers(0, 10**6), epsilon=st.floats(0.001, 0.6), n_classes=st.integers(3, 12))
def test_the_minimum_is_the_entropy_of_the_target(seed, epsilon, n_classes):
    q = torch.full((1, n_classes), epsilon / (n_classes - 1), dtype=torch.float64)
    q[0, 1] = 1 - epsilon
    entropy = -(q * q.log()).sum().item()
    loss, y = LabelSmoothingLoss(epsilon), torch.tensor([1])
    assert loss(q.log(), y).item() == pytest.approx(entropy)
    other = torch.randn(1, n_classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert loss(other, y).item() >= entropy


def test_the_gradient_is_prediction_minus_target_and_zero_at_padding():
    logits = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[4, 2, 0], [1, 0, 0]])
    LabelSmoothingLoss(0.1, reduction="sum")(logits, targets).backward()
    q = torch.full((2, 3, 6), 0.1 / 5, dtype=torch.float64).scatter(2, targets[..., None], 0.9)
    expected = (logits.detach().softmax(-1) - q) * (targets != 0)[..., None]
    torch.testing.assert_close(logits.grad, expected)


def test_the_padding_class_keeps_its_share():
    logits = torch.zeros(1, 1, 5, dtype=torch.float64, requires_grad=True)
    LabelSmoothingLoss(0.1, reduction="sum")(logits, torch.tensor([[3]])).backward()
    assert logits.grad[0, 0, 0].item() == pytest.approx(0.2 - 0.1 / 4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_padding_positions_do_not_count(reduction):
    config = TransformerConfig(30, 30, d_model=16, n_layers=2, n_heads=4, d_ff=32, dropout=0.0)
    model = Transformer(config).double()
    src, tgt = torch.randint(3, 30, (3, 18)), torch.randint(3, 30, (3, 20))
    for row, n in enumerate((5, 20, 13)):
        tgt[row, n:] = 0
        src[row, n - 2 :] = 0
    results = []
    for length in (20, 40):
        s, t = F.pad(src, (0, length - 18)), F.pad(tgt, (0, length - 20))
        model.zero_grad()
        loss = LabelSmoothingLoss(0.1, reduction=reduction)(model(s, F.pad(t, (1, -1), value=1)), t)
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-11)


def test_logits_at_padding_do_not_matter_and_nothing_but_padding_costs_nothing():
    logits, targets = torch.randn(2, 3, 7), torch.tensor([[3, 4, 0], [5, 0, 0]])
    changed = logits.clone()
    changed[targets == 0] += 100 * torch.randn(3, 7)
    for loss in (LabelSmoothingLoss(), LabelSmoothingLoss(reduction="sum")):
        assert torch.equal(loss(logits, targets), loss(changed, targets))
        nothing = torch.zeros_like(targets)
        graph = logits.clone().requires_grad_()
        assert loss(graph, nothing).item() == 0 == loss.nll(graph, nothing).item()
        loss(graph, nothing).backward()
        assert graph.grad.abs().max() == 0


def test_a_mean_per_real_token_whatever_the_batch():
    logits, targets = torch.randn(4, 6, 9, dtype=torch.float64), torch.randint(0, 9, (4, 6))
    mean, total = LabelSmoothingLoss()(logits, targets), LabelSmoothingLoss(reduction="sum")(logits, targets)
    torch.testing.assert_close(mean * (targets != 0).sum(), total)
    rows = sum(LabelSmoothingLoss(reduction="sum")(logits[i : i + 1], targets[i : i + 1]) for i in range(4))
    torch.testing.assert_close(rows, total)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_half_precision_sums_in_single(dtype, reduction):
    logits, targets = torch.randn(12_000, 50, generator=torch.Generator().manual_seed(0)), torch.ones(12_000).long()
    criterion = LabelSmoothingLoss(0.1, reduction=reduction)
    half = logits.to(dtype)
    for measure in (criterion, criterion.nll):
        assert measure(half, targets).equal(measure(half.float(), targets))


def test_large_logits_stay_finite():
    logits = torch.tensor([[[1e4, -1e4, 0.0]]], requires_grad=True)
    loss = LabelSmoothingLoss(0.1)(logits, torch.tensor([[1]]))
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("logits", "targets", "error", "message"),
    [
        (torch.randn(2, 3, 5), torch.ones(2, 4, dtype=torch.int64), ValueError, r"\(2, 3, 5\).*\(2, 4\)"),
        (torch.randn(2, 3, 5), torch.ones(6, dtype=torch.int64), ValueError, "do not fit together"),
        (torch.randn(5), torch.tensor(1), ValueError, "do not fit together"),
        (torch.randn(2, 3, 1), torch.ones(2, 3, dtype=torch.int64), ValueError, "V of at least 2"),
        (torch.randn(2, 3, 5), torch.ones(2, 3), TypeError, "int64"),
        (torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.int32), TypeError, "int64"),
        (torch.ones(2, 3, 5, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), TypeError, "floating"),
        (torch.randn(1, 2, 5), torch.tensor([[1, 5]]), ValueError, "target id 5 .* ids 0 to 4"),
        (torch.randn(1, 2, 5), torch.tensor([[-1, 4]]), ValueError, "target id -1"),
    ],
)
def test_bad_input_is_one_clear_error(logits, targets, error, message):
    for method in (LabelSmoothingLoss().forward, LabelSmoothingLoss().nll):
        with pytest.raises(error, match=message):
            method(logits, targets)


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 2.0, float("nan")])
def test_impossible_smoothing_is_refused(epsilon):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        LabelSmoothingLoss(epsilon)


def test_smoothing_that_favours_the_wrong_classes_is_refused():
    logits, targets = torch.randn(1, 1, 4), torch.tensor([[1]])
    assert LabelSmoothingLoss(0.75)(logits, targets).isfinite()  # uniform
    with pytest.raises(ValueError, match=r"label_smoothing=0.8 .* at most 0.75"):
        LabelSmoothingLoss(0.8)(logits, targets)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="none"):
        LabelSmoothingLoss(reduction="none")


# ------------------------------------------------------------------------------------------------------------- dropout


def dropouts(model):
    return {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3])
def test_one_rate_reaches_every_dropout_and_there_are_no_others(rate, norm_order):
    model = Transformer(TransformerConfig.tiny(50, dropout=rate, norm_order=norm_order, n_layers=3))
    places = dropouts(model)
    switches = {name for name in places if name.endswith(".attention_dropout")}  # for who wants it; the paper has none
    assert {places.pop(name) for name in switches} == {0.0}
    assert set(places.values()) == {rate}
    inside = [name for name in places if name != "dropout"]
    assert len(inside) == 3 * (2 + 3) and all(name.endswith("_block.dropout") for name in inside)


def test_no_other_kind_of_dropout_hides_in_the_model():
    """With every nn.Dropout switched off, training passes are equal: no functional dropout is left."""
    model = Transformer(TransformerConfig.tiny(50, dropout=0.5)).train()
    src, tgt = torch.randint(3, 50, (2, 8)), torch.randint(3, 50, (2, 6))
    assert not torch.equal(model(src, tgt), model(src, tgt))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert torch.equal(model(src, tgt), model(src, tgt))


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_rate_zero_makes_training_and_evaluation_equal(norm_order):
    model = Transformer(TransformerConfig.tiny(50, dropout=0.0, norm_order=norm_order)).train()
    src, tgt = torch.randint(3, 50, (2, 8)), torch.randint(3, 50, (2, 6))
    first = model(src, tgt)
    assert torch.equal(first, model(src, tgt))
    torch.testing.assert_close(first, model.eval()(src, tgt))


def test_dropout_falls_on_the_sublayers_output_only():
    x = torch.randn(2, 5, 16)
    post, pre = ResidualBlock(16, dropout=1.0), ResidualBlock(16, dropout=1.0, norm_order="pre")
    assert torch.equal(post(x, torch.sin), post.norm(x))
    assert torch.equal(pre(x, torch.sin), x)


def test_dropout_falls_on_the_sum_of_embedding_and_position():
    model = Transformer(TransformerConfig.tiny(50, dropout=0.0)).train()
    model.dropout.p = 1.0
    src, tgt = torch.randint(3, 50, (1, 8)), torch.randint(3, 50, (1, 6))
    blind = model(src, tgt)
    torch.testing.assert_close(blind, blind[:, :1].expand_as(blind))
    memory = model.encode(src)
    torch.testing.assert_close(memory, memory[:, :1].expand_as(memory))
