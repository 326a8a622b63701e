"""Section 5.3: the rate, the scheduler, Adam's constants."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer import NoamScheduler, make_adam, noam_rate

sizes = st.integers(1, 10**6)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, "1.747e-07"),
        (100, "1.747e-05"),
        (1000, "1.747e-04"),
        (4000, "6.988e-04"),
        (10_000, "4.419e-04"),
        (50_000, "1.976e-04"),
        (100_000, "1.398e-04"),
    ],
)
def test_reference_rates_of_base(step, rate):
    assert f"{noam_rate(step, 512):.3e}" == rate
    assert noam_rate(step, 512) == noam_rate(step, 512, 4000)


@given(step=sizes, d_model=sizes, warmup_steps=sizes)
def test_the_rate_is_the_smaller_of_two_lines_and_peaks_at_the_end_of_the_warm_up(step, d_model, warmup_steps):
    rate = noam_rate(step, d_model, warmup_steps)
    rising = step / (math.sqrt(d_model) * warmup_steps * math.sqrt(warmup_steps))
    falling = 1 / math.sqrt(d_model * step)
    assert rate == pytest.approx(rising if step <= warmup_steps else falling, rel=1e-12)
    assert 0 < rate <= (d_model * warmup_steps) ** -0.5 * (1 + 1e-12)
    assert noam_rate(warmup_steps, d_model, warmup_steps) == pytest.approx((d_model * warmup_steps) ** -0.5, rel=1e-12)
    assert rate == pytest.approx(noam_rate(step, 4 * d_model, warmup_steps) * 2, rel=1e-12)


@pytest.mark.parametrize("arguments", [(0, 512, 4000), (-1, 512, 4000), (1, 0, 4000), (1, 512, 0)])
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="must all be at least 1"):
        noam_rate(*arguments)


@pytest.mark.parametrize("arguments", [(0, 4000), (512, 0), (-512, 4000)])
def test_the_scheduler_refuses_impossible_sizes_when_it_is_made(arguments):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match="must all be at least 1"):
        NoamScheduler(optimizer, *arguments)


def test_update_s_moves_a_parameter_by_the_rate_of_s():
    parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=77.0)
    scheduler = NoamScheduler(optimizer, d_model=64, warmup_steps=7)
    for s in range(1, 30):
        before = parameter.item()
        assert scheduler.get_last_lr() == [noam_rate(s, 64, 7)]
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
        assert before - parameter.item() == pytest.approx(noam_rate(s, 64, 7), abs=1e-15)


def test_every_parameter_group_gets_the_rate_whatever_its_own_was():
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1e-5, 3.0)]
    scheduler = NoamScheduler(torch.optim.Adam(groups), 16, 10)
    assert scheduler.get_last_lr() == [noam_rate(1, 16, 10)] * 2
    assert [group["lr"] for group in scheduler.optimizer.param_groups] == [noam_rate(1, 16, 10)] * 2


def test_correct_use_gives_no_warning_and_the_wrong_order_gives_torchs():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = NoamScheduler(optimizer, 16, 10)
        parameter.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
    other = NoamScheduler(torch.optim.SGD([parameter], lr=1.0), 16, 10)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\).* before .*optimizer.step\(\)"):
        other.step()


def updates(layer, optimizer, scheduler, steps):
    for s in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(s))
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("interrupted", [1, 5, 10, 13])
def test_a_resumed_run_is_bit_equal(interrupted, tmp_path):
    whole = nn.Linear(4, 4)
    part = copy.deepcopy(whole)
    adam = make_adam(whole)
    updates(whole, adam, NoamScheduler(adam, 4, 10), range(20))

    adam = make_adam(part)
    scheduler = NoamScheduler(adam, 4, 10)
    updates(part, adam, scheduler, range(interrupted))
    torch.save([part.state_dict(), adam.state_dict(), scheduler.state_dict()], tmp_path / "state")

    new = nn.Linear(4, 4)
    adam = make_adam(new)
    scheduler = NoamScheduler(adam, 999, 999)
    states = torch.load(tmp_path / "state", weights_only=True)  # plain numbers and tensors, nothing to unpickle
    for it, state in zip((new, adam, scheduler), states, strict=True):
        it.load_state_dict(state)
    updates(new, adam, scheduler, range(interrupted, 20))
    assert torch.equal(whole.weight, new.weight) and torch.equal(whole.bias, new.bias)
    assert scheduler.get_last_lr() == [noam_rate(21, 4, 10)]


def test_adam_has_the_papers_constants_and_no_weight_decay():
    layer = nn.Linear(2, 2)
    adam = make_adam(layer)
    assert type(adam) is torch.optim.Adam
    assert adam.defaults["betas"] == (0.9, 0.98) and adam.defaults["eps"] == 1e-9
    assert adam.defaults["weight_decay"] == 0 and not adam.defaults["amsgrad"]
    assert {id(p) for group in adam.param_groups for p in group["params"]} == {id(p) for p in layer.parameters()}


@given(gradients=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_adam_by_hand(gradients):
    parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
    holder = nn.Module()
    holder.x = parameter
    adam = make_adam(holder)
    scheduler = NoamScheduler(adam, 16, 5)
    x = m = v = 0.0
    for s, g in enumerate(gradients, 1):
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        adam.step()
        scheduler.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        x -= noam_rate(s, 16, 5) * (m / (1 - 0.9**s)) / (math.sqrt(v / (1 - 0.98**s)) + 1e-9)
        assert parameter.item() == pytest.approx(x, rel=1e-9, abs=1e-12)
