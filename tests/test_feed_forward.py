"""The feed-forward network (Section 3.3): against arithmetic written anew, and by what it must never do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer import PositionwiseFeedForward

sizes = settings(max_examples=25, deadline=None, derandomize=True)


def make(d_model: int, d_ff: int, seed: int = 0) -> PositionwiseFeedForward:
    torch.manual_seed(seed)
    return PositionwiseFeedForward(d_model, d_ff).eval()


@sizes
@given(
    d_model=st.integers(1, 24),
    d_ff=st.integers(1, 48),
    leading=st.lists(st.integers(0, 4), max_size=3),
    seed=st.integers(0, 1000),
)
def test_equals_equation_2(d_model, d_ff, leading, seed):
    ffn = make(d_model, d_ff, seed)
    x = torch.randn(*leading, d_model)
    w_1, b_1, w_2, b_2 = (parameter.detach().double().numpy() for parameter in ffn.parameters())
    expected = np.maximum(0, x.double().numpy() @ w_1.T + b_1) @ w_2.T + b_2
    out = ffn(x)
    assert out.shape == x.shape
    np.testing.assert_allclose(out.detach().numpy(), expected, atol=1e-5)


@sizes
@given(n=st.integers(1, 9), seed=st.integers(0, 1000))
def test_permuting_positions_permutes_outputs(n, seed):
    ffn = make(16, 32, seed)
    x, order = torch.randn(2, n, 16), torch.randperm(n)
    assert torch.allclose(ffn(x[:, order]), ffn(x)[:, order], atol=1e-6)


def test_a_position_changes_its_own_output_only():
    ffn, x = make(16, 64), torch.randn(2, 7, 16)
    out = ffn(x)
    for position in range(7):
        changed = x.clone()
        changed[:, position] += 1
        differs = (ffn(changed) != out).any(-1).any(0)
        assert differs.nonzero().flatten().tolist() == [position]


def test_equals_two_convolutions_of_kernel_size_1():
    ffn, x = make(32, 128), torch.randn(3, 11, 32)
    conv_1, conv_2 = nn.Conv1d(32, 128, 1), nn.Conv1d(128, 32, 1)
    for conv, linear in ((conv_1, ffn.w_1), (conv_2, ffn.w_2)):
        conv.load_state_dict({"weight": linear.weight.unsqueeze(-1), "bias": linear.bias})
    assert torch.allclose(conv_2(conv_1(x.mT).relu()).mT, ffn(x), atol=1e-6)


def test_gradients_equal_those_of_a_sequence_of_torch_modules():
    ffn, x = make(12, 20), torch.randn(5, 12)
    plain = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 12))
    plain.load_state_dict(dict(zip(plain.state_dict(), ffn.state_dict().values(), strict=True)))
    for network in (ffn, plain):
        network(x).square().sum().backward()
    for ours, torchs in zip(ffn.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, torchs.grad, atol=1e-5)


def test_nothing_random_in_training():
    ffn, x = make(16, 32).train(), torch.randn(4, 16)
    assert torch.equal(ffn(x), ffn(x))
    assert not any(isinstance(module, nn.Dropout) for module in ffn.modules())


@pytest.mark.parametrize(("d_model", "d_ff"), [(512, 2048), (1024, 4096), (3, 5)])
def test_number_of_parameters(d_model, d_ff):
    count = sum(parameter.numel() for parameter in PositionwiseFeedForward(d_model, d_ff).parameters())
    assert count == 2 * d_model * d_ff + d_ff + d_model


def test_other_dtypes():
    assert make(8, 16).double()(torch.randn(2, 8, dtype=torch.float64)).dtype == torch.float64
    assert make(8, 16).bfloat16()(torch.randn(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_wrong_width_is_told():
    with pytest.raises(ValueError, match=r"\(2, 7\).*d_model=8"):
        make(8, 16)(torch.randn(2, 7))


def test_ids_are_told_apart_from_vectors():
    with pytest.raises(TypeError, match=r"torch\.int64.*not token ids"):
        make(8, 16)(torch.zeros(2, 8, dtype=torch.int64))
