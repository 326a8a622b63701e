"""Positional encodings: values, rotations, lengths, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    Transformer,
    TransformerConfig,
    sinusoids,
)

quick = settings(max_examples=25, deadline=None, derandomize=True)
widths = st.integers(1, 64).map(lambda half: 2 * half)


def formula(position, channel, d_model):
    """The paper's formula for one entry, in plain Python."""
    angle = position / 10000 ** (2 * (channel // 2) / d_model)
    return math.sin(angle) if channel % 2 == 0 else math.cos(angle)


def wavelengths_of_the_code(d_model):
    """tensor2tensor's, in units of 2π: the exponent goes from 0 to 1."""
    return 10000 ** (torch.arange(d_model // 2, dtype=torch.float64) / (d_model // 2 - 1))


def test_the_papers_values_at_512():
    expected = torch.tensor([0.841471, 0.540302, 0.821856, 0.569695])
    torch.testing.assert_close(sinusoids(2, 512)[1, :4].float(), expected, rtol=0, atol=1e-6)


@quick
@given(st.integers(1, 6), widths, st.integers(0, 10**6))
def test_every_entry_by_the_formula(length, d_model, start):
    table = sinusoids(length, d_model, start)
    assert table.dtype == torch.float64 and table.shape == (length, d_model)
    expected = [[formula(start + p, c, d_model) for c in range(d_model)] for p in range(length)]
    torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


@quick
@given(st.integers(-40, 400), st.integers(40, 1000))
def test_a_shift_is_one_block_rotation(k, p):
    frequency = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    blocks = [torch.tensor([[a.cos(), a.sin()], [-a.sin(), a.cos()]]) for a in k * frequency]
    rotation = torch.block_diag(*blocks).double()
    table = sinusoids(1500, 16)
    torch.testing.assert_close(rotation @ table[p], table[p + k], rtol=0, atol=1e-6)


@quick
@given(widths, st.integers(0, 200), st.integers(0, 1000), st.integers(0, 1000))
def test_dot_products_depend_on_the_offset_alone(d_model, k, p, q):
    table = sinusoids(1201, d_model)
    torch.testing.assert_close(table[p] @ table[p + k], table[q] @ table[q + k], rtol=0, atol=1e-8)
    assert math.isclose(table[p] @ table[p], d_model / 2)


@pytest.mark.parametrize(("d_model", "longest"), [(16, 3162.3), (512, 9646.6)])
def test_the_longest_wavelength_stays_short_of_ten_thousand(d_model, longest):
    last = sinusoids(2, d_model)[1, -2:]  # sine and cosine of the smallest angle
    measured = 1 / math.atan2(last[0], last[1])
    assert round(measured, 1) == longest
    assert math.isclose(wavelengths_of_the_code(d_model)[-1], 10000)


def test_both_layouts_have_dot_products_of_the_same_kind():
    """Sines first or interleaved is a permutation; the authors' exponent keeps PE·PEᵀ a function of the offset."""
    ours = sinusoids(80, 64)
    order = torch.cat([torch.arange(0, 64, 2), torch.arange(1, 64, 2)])
    torch.testing.assert_close(ours[:, order] @ ours[:, order].T, ours @ ours.T)
    angle = torch.arange(80, dtype=torch.float64)[:, None] / wavelengths_of_the_code(64)
    theirs = torch.cat([angle.sin(), angle.cos()], dim=-1)
    for table in (ours, theirs):
        gram = table @ table.T
        assert all(torch.allclose(gram.diagonal(k), gram.diagonal(k)[0]) for k in range(80))
    assert (theirs - ours[:, order]).abs().max() > 0.1  # similar, but not the same numbers


@quick
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 3000), st.booleans())
def test_sinusoids_are_added_from_the_start_position(batch, length, start, again):
    encoding = SinusoidalPositionalEncoding(16)
    x = torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(0))
    out = encoding(x, start)
    if again:  # a table that has grown gives the same
        encoding(torch.zeros(1, 1, 16), 5000)
        torch.testing.assert_close(encoding(x, start), out, rtol=0, atol=0)
    expected = sinusoids(length, 16, start).float().expand(batch, length, 16)
    torch.testing.assert_close(out - x, expected, rtol=0, atol=2e-6)


def test_token_by_token_equals_all_at_once():
    x = torch.randn(2, 300, 8, generator=torch.Generator().manual_seed(0))
    for encoding in (SinusoidalPositionalEncoding(8), LearnedPositionalEncoding(300, 8)):
        steps = torch.cat([encoding(x[:, p : p + 1], p) for p in range(300)], dim=1)
        torch.testing.assert_close(steps, encoding(x), rtol=0, atol=0)


def test_a_longer_table_begins_with_the_shorter_one():
    encoding, x = SinusoidalPositionalEncoding(64).double(), torch.zeros(1, 10, 64, dtype=torch.float64)
    before = encoding(x)
    encoding(torch.zeros(1, 300, 64, dtype=torch.float64))
    assert encoding(x).equal(before)


def test_the_table_is_not_saved_and_follows_the_dtype():
    encoding = SinusoidalPositionalEncoding(8)
    assert not encoding.state_dict() and not list(encoding.parameters())
    half = encoding.to(torch.bfloat16)
    for start in (0, 1000):  # within the table, and beyond it
        out = half(torch.zeros(1, 2, 8, dtype=torch.bfloat16), start)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out[0].double(), sinusoids(2, 8, start), rtol=0, atol=0.01)
    assert SinusoidalPositionalEncoding(8)(torch.zeros(1, 2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_large_positions_keep_their_phase():
    far = SinusoidalPositionalEncoding(64)(torch.zeros(1, 1, 64), start=100_000)[0, 0]
    expected = torch.tensor([formula(100_000, c, 64) for c in range(64)])
    torch.testing.assert_close(far, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_without_positions_shuffled_inputs_give_shuffled_outputs():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, 50, d_model=32, n_layers=2, n_heads=4, d_ff=64, dropout=0.0)).eval()
    ids, order = torch.randint(3, 50, (2, 12)), torch.randperm(12)
    bare, shuffled = (model.encoder(model.embedding(x)) for x in (ids, ids[:, order]))
    torch.testing.assert_close(shuffled, bare[:, order], rtol=0, atol=1e-5)
    assert (model.encode(ids[:, order]) - model.encode(ids)[:, order]).abs().max() > 0.1


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@torch.no_grad()
def test_both_stacks_get_positions(positions):
    """The same token at two places has two encodings, in the encoder and in the decoder."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_layers": 1, "n_heads": 4, "d_ff": 64, "dropout": 0.0, "positions": positions}
    model = Transformer(TransformerConfig(50, 50, **sizes)).eval()
    same = torch.full((1, 4), 7)
    for out in (model.encode(same), model.decode(same, model.encode(same))):
        assert (out[0, 1:] - out[0, :-1]).abs().amax(-1).min() > 1e-3


def test_learned_positions_are_rows_of_a_parameter():
    torch.manual_seed(0)
    encoding = LearnedPositionalEncoding(40, 64)
    assert encoding.weight.shape == (40, 64) and abs(encoding.weight.std() * 8 - 1) < 0.05
    x = torch.randn(3, 16, 64)
    torch.testing.assert_close(encoding(x, 5), x + encoding.weight[5:21])
    encoding(x, 5).square().sum().backward()
    assert (encoding.weight.grad != 0).any(1).tolist() == [5 <= p < 21 for p in range(40)]


@pytest.mark.parametrize(("length", "start"), [(41, 0), (1, 40), (10, 31)])
def test_learned_positions_end(length, start):
    encoding = LearnedPositionalEncoding(40, 8)
    encoding(torch.zeros(1, 40 - start if start < 40 else 1, 8), min(start, 39))  # the last position is there
    with pytest.raises(ValueError, match=rf"reaches position {start + length - 1}, but only positions 0 to 39"):
        encoding(torch.zeros(1, length, 8), start)


@torch.no_grad()
def test_the_models_max_len_limits_learned_positions_only():
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "max_len": 8}
    ids = torch.ones(1, 9, dtype=torch.int64)
    assert Transformer(TransformerConfig(10, 10, **sizes)).encode(ids).shape == (1, 9, 16)
    model = Transformer(TransformerConfig(10, 10, positions="learned", **sizes))
    assert model.encode(ids[:, :8]).shape == (1, 8, 16)
    with pytest.raises(ValueError, match='raise max_len, or use positions="sinusoidal"'):
        model.encode(ids)


def test_odd_widths_are_refused():
    for make in (lambda: sinusoids(3, 7), lambda: SinusoidalPositionalEncoding(7)):
        with pytest.raises(ValueError, match=r"d_model is 7; .* give an even d_model"):
            make()
    LearnedPositionalEncoding(5, 7)(torch.zeros(1, 5, 7))  # no pairs, no limit


@pytest.mark.parametrize("encoding", [SinusoidalPositionalEncoding(8), LearnedPositionalEncoding(20, 8)])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 6), (2, 3, 1), (1, 2, 3, 8)])
def test_other_shapes_are_refused(encoding, shape):
    with pytest.raises(ValueError, match=r"expected \(batch, length, 8\)"):
        encoding(torch.zeros(shape))


@pytest.mark.parametrize("encoding", [SinusoidalPositionalEncoding(8), LearnedPositionalEncoding(20, 8)])
def test_positions_count_from_zero(encoding):
    with pytest.raises(ValueError, match="start is -1; positions count from 0"):
        encoding(torch.zeros(1, 3, 8), start=-1)
