"""Rotary positions, grouped queries and attention in tiles: each against an oracle of its own, and in a whole model."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transformer import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    beam_search,
    causal_mask,
    greedy_decode,
    padding_mask,
    scaled_dot_product_attention,
    sinusoids,
)
from transformer.modern import (
    GroupedQueryAttention,
    RotaryAttention,
    RunningSoftmax,
    build_transformer,
    rotate,
    tiled_attention,
)

D, H = 16, 4


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def at(position: float) -> Tensor:
    return torch.tensor([position], dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------- the rotation


def as_complex_numbers(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """RoPE in another language: a pair is a complex number, a turn a product with e^{i m θ}."""
    d = x.size(-1)
    theta = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.exp(1j * positions[:, None] * theta)).flatten(-2)


@given(
    pairs=st.integers(1, 9), n=st.integers(1, 6), base=st.sampled_from([2.0, 100.0, 10000.0, 500000.0]),
    start=st.integers(-1000, 100000), seed=st.integers(0, 99),
)  # fmt: skip
def test_rotation_by_complex_numbers(pairs: int, n: int, base: float, start: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, positions = randn(3, n, 2 * pairs), torch.arange(start, start + n)
    turned = rotate(x, positions, base)
    torch.testing.assert_close(turned, as_complex_numbers(x, positions.double(), base), atol=1e-9, rtol=0)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate(turned, -positions, base), x, atol=1e-9, rtol=0)


@given(
    m=st.integers(-2000, 2000), n=st.integers(-2000, 2000), shift=st.integers(-2000, 2000), pairs=st.integers(1, 8),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_score_depends_on_the_offset_alone(m: int, n: int, shift: int, pairs: int, seed: int) -> None:
    torch.manual_seed(seed)
    q, k = randn(1, 2 * pairs), randn(1, 2 * pairs)
    here = (rotate(q, at(m)) * rotate(k, at(n))).sum()
    there = (rotate(q, at(m + shift)) * rotate(k, at(n + shift))).sum()
    torch.testing.assert_close(here, there, atol=1e-9, rtol=0)
    torch.testing.assert_close(here, (q * rotate(k, at(n - m))).sum(), atol=1e-9, rtol=0)


def test_another_offset_is_another_score() -> None:
    q, k = randn(20, 8), randn(20, 8)
    change = (rotate(q, at(3)) * (rotate(k, at(5)) - rotate(k, at(6)))).sum(-1)  # (20)
    assert change.std() > 0.1


def test_position_0_is_left_as_it_is() -> None:
    x = torch.randn(5, 8)
    assert torch.equal(rotate(x, torch.zeros(1)), x)


def test_it_is_the_rotation_of_section_3_5() -> None:
    table = sinusoids(600, 32)
    for k in (1, 7, 250):
        torch.testing.assert_close(rotate(table[:-k], at(-k)), table[k:], atol=1e-12, rtol=0)


def test_halves_are_the_same_up_to_a_permutation() -> None:
    """The code of GPT-NeoX: pairs (i, i + d/2), and a rotated half."""
    x, positions = randn(7, 12), torch.arange(7)
    frequency = 1.0 / 10000 ** (torch.arange(0, 12, 2).double() / 12)
    angle = torch.cat([positions[:, None] * frequency] * 2, dim=-1)

    def rotate_half(x: Tensor) -> Tensor:
        return torch.cat([-x[..., 6:], x[..., :6]], dim=-1)

    def halves(x: Tensor) -> Tensor:
        return x * angle.cos() + rotate_half(x) * angle.sin()

    order = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    torch.testing.assert_close(halves(x[:, order]), rotate(x, positions)[:, order])
    assert (halves(x) - rotate(x, positions)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_angles_are_exact_at_far_positions_and_results_are_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(50, 8).to(dtype)
    turned = rotate(x, torch.tensor([100_003]))
    assert turned.dtype == dtype
    exact = rotate(x.double(), torch.tensor([100_003]))
    torch.testing.assert_close(turned.double(), exact, atol=8 * torch.finfo(dtype).eps, rtol=0)
    if dtype != torch.float32:
        assert (turned == exact.to(dtype)).double().mean() > 0.98


def test_what_rotate_refuses() -> None:
    with pytest.raises(ValueError, match="7 wide"):
        rotate(torch.zeros(2, 7), torch.arange(2))
    with pytest.raises(ValueError, match="base is 0"):
        rotate(torch.zeros(2, 8), torch.arange(2), base=0)
    with pytest.raises(ValueError, match="broadcast"):
        rotate(torch.zeros(2, 8), torch.arange(3))
    with pytest.raises(ValueError, match="broadcast"):
        rotate(torch.zeros(2, 8), torch.zeros(1, 1, 2))
    with pytest.raises(TypeError, match="int64"):
        rotate(torch.zeros(2, 8, dtype=torch.int64), torch.arange(2))


# ------------------------------------------------------------------------------------------------- rotary attention


def rotary(**how: float) -> RotaryAttention:
    torch.manual_seed(1)
    return RotaryAttention(D, H, **how).double()


def plain_like(attention: MultiHeadAttention) -> MultiHeadAttention:
    plain = MultiHeadAttention(D, H, attention.d_k, attention.d_v).double()
    plain.load_state_dict(attention.state_dict())
    return plain


@pytest.mark.parametrize("m", [1, 2, 6])
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_rotary_attention_is_equation_1_at_absolute_positions(m: int, watched: bool, is_causal: bool) -> None:
    attention, x, n = rotary(base=100.0, d_k=6, d_v=3), randn(2, 6, D), 6
    plain, seen = plain_like(attention), []
    queries = plain.w_q(x[:, -m:]).unflatten(-1, (H, 6)).transpose(1, 2)
    keys, values = plain.project(x, x)
    mask = causal_mask(n)[..., -m:, :] if is_causal else None
    heads, weights = scaled_dot_product_attention(
        rotate(queries, torch.arange(n - m, n), 100.0), rotate(keys, torch.arange(n), 100.0), values, mask
    )
    attention.on_weights = seen.append if watched else None
    output = attention(x[:, -m:], x, x, is_causal=is_causal)
    torch.testing.assert_close(output, plain.w_o(heads.transpose(1, 2).flatten(2)))
    assert len(seen) == watched
    for found in seen:
        torch.testing.assert_close(found, weights)


def test_keys_are_kept_unturned() -> None:
    attention, x = rotary(), randn(2, 5, D)
    for kept, plain in zip(attention.project(x, x), plain_like(attention).project(x, x), strict=True):
        assert torch.equal(kept, plain)


def test_rotary_attention_tells_orders_apart() -> None:
    attention, x = rotary(), randn(1, 6, D)
    order = torch.tensor([1, 0, 2, 4, 3, 5])
    shuffled = attention(x[:, order], x[:, order], x[:, order])
    assert (shuffled - attention(x, x, x)[:, order]).abs().max() > 1e-3
    plain = plain_like(attention)
    torch.testing.assert_close(plain(x[:, order], x[:, order], x[:, order]), plain(x, x, x)[:, order])


def test_what_rotary_attention_refuses() -> None:
    attention = rotary()
    with pytest.raises(ValueError, match="self-attention alone"):
        attention(randn(1, 4, D), randn(1, 3, D), randn(1, 3, D))
    with pytest.raises(ValueError, match="d_k is 3"):
        RotaryAttention(12, 4)
    with pytest.raises(ValueError, match="base is -1"):
        RotaryAttention(D, H, base=-1)
    with pytest.raises(ValueError, match="query has shape"):
        attention(randn(1, 4, D + 1), randn(1, 4, D), randn(1, 4, D))


# ------------------------------------------------------------------------------------------------- grouped queries


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("how", [{}, {"d_k": 3, "d_v": 5}])
def test_grouped_queries_are_multi_head_attention_with_repeated_weights(n_kv_heads: int, how: dict[str, int]) -> None:
    grouped = GroupedQueryAttention(D, H, n_kv_heads, **how).double()
    plain = MultiHeadAttention(D, H, **how).double()
    weights = grouped.state_dict()
    for name, d in (("w_k", grouped.d_k), ("w_v", grouped.d_v)):
        for part in ("weight", "bias"):
            heads = weights[f"{name}.{part}"].split(d)
            weights[f"{name}.{part}"] = torch.cat([heads[i * n_kv_heads // H] for i in range(H)])
    plain.load_state_dict(weights)
    query, x, seen = randn(2, 3, D), randn(2, 5, D), []
    for arguments in ({}, {"is_causal": True}, {"mask": torch.rand(2, H, 3, 5) > 0.3}):
        torch.testing.assert_close(grouped(query, x, x, **arguments), plain(query, x, x, **arguments))
        for attention in (grouped, plain):
            attention.on_weights = seen.append
            attention(query, x, x, **arguments)
            attention.on_weights = None
        torch.testing.assert_close(seen[-2], seen[-1])
    keys, values = grouped.project(x, x)
    assert keys.shape == (2, n_kv_heads, 5, grouped.d_k) and values.shape == (2, n_kv_heads, 5, grouped.d_v)


def test_the_gradient_of_a_shared_head_is_the_sum_over_its_group() -> None:
    grouped, x = GroupedQueryAttention(D, H, 2).double(), randn(2, 5, D)
    keys, values = (kept.detach().requires_grad_() for kept in grouped.project(x, x))
    grouped.attend(x, keys, values).square().sum().backward()
    plain = MultiHeadAttention(D, H).double()
    plain.w_q, plain.w_o = grouped.w_q, grouped.w_o
    own_keys, own_values = (kept.detach()[:, [0, 0, 1, 1]].requires_grad_() for kept in (keys, values))
    plain.attend(x, own_keys, own_values).square().sum().backward()
    for shared, own in ((keys, own_keys), (values, own_values)):
        torch.testing.assert_close(shared.grad, own.grad[:, ::2] + own.grad[:, 1::2])


def test_what_grouped_queries_refuse() -> None:
    for n_kv_heads in (3, 0, 8):
        with pytest.raises(ValueError, match=f"n_kv_heads={n_kv_heads} does not divide n_heads=4"):
            GroupedQueryAttention(D, H, n_kv_heads)
    grouped = GroupedQueryAttention(D, H, 2).double()
    with pytest.raises(ValueError, match="key has shape"):
        grouped(randn(1, 2, D), randn(1, 2, D + 1), randn(1, 2, D))
    with pytest.raises(TypeError, match="value has dtype"):
        grouped(randn(1, 2, D), randn(1, 2, D), torch.randn(1, 2, D))
    with pytest.raises(ValueError, match="do not fit together"):  # keys of all heads, which are not to be repeated
        grouped.attend(randn(1, 2, D), randn(1, H, 2, 4), randn(1, H, 2, 4))


# ---------------------------------------------------------------------------------------------------- in a whole model


class Both(RotaryAttention, GroupedQueryAttention):
    """Llama's: turned, then shared."""


PARTS: dict[str, Callable[[int, int], MultiHeadAttention]] = {
    "rotary": RotaryAttention,
    "grouped": partial(GroupedQueryAttention, n_kv_heads=2),
    "multi-query": partial(GroupedQueryAttention, n_kv_heads=1),
    "both": partial(Both, n_kv_heads=2),
}
each_part = pytest.mark.parametrize("part", PARTS)


def small_model(part: str) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(24, 24, d_model=16, n_layers=2, n_heads=4, d_ff=24, dropout=0.0)
    positions = part not in ("rotary", "both")
    return build_transformer(config, self_attention=PARTS[part], positions=positions).double().eval()


def sentences() -> Tensor:
    src = torch.randint(3, 24, (3, 7))
    src[1, 5:] = src[2, 3:] = 0
    return src


@each_part
@torch.inference_mode()
def test_decoding_with_the_cache_equals_one_pass(part: str) -> None:
    model, src, target = small_model(part), sentences(), torch.randint(3, 24, (3, 6))
    mask = padding_mask(src, 0)
    cache = model.new_cache(model.encode(src, mask), mask, 6)
    chunks = [target[:, :1], target[:, 1:2], target[:, 2:5], target[:, 5:]]  # one at a time, and three at once
    steps = [model.output_projection(model.decode(chunk, cache=cache)) for chunk in chunks]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(src, target))
    heads = {"rotary": 4, "grouped": 2, "multi-query": 1, "both": 2}[part]
    assert all(layer.own.keys.shape == (3, heads, 6, 4) for layer in cache.layers)


@each_part
@torch.inference_mode()
def test_greedy_decoding_takes_the_best_token_of_the_whole_pass_at_each_step(part: str) -> None:
    model, src = small_model(part), sentences()
    for row, ids in zip(src, greedy_decode(model, src, max_new_tokens=8), strict=True):
        alone = row[row != 0][None]
        logits = model(alone, torch.tensor([[1, *ids]]))[0]  # 1 begins
        ended = [] if len(ids) == 8 else [2]
        assert logits.argmax(-1).tolist()[: len(ids) + len(ended)] == [*ids, *ended]


@each_part
@torch.inference_mode()
def test_beam_search_finds_what_one_pass_scores(part: str) -> None:
    model, src = small_model(part), sentences()
    moved = 0
    for row, found in zip(src, beam_search(model, src, beam_size=3, max_new_tokens=6, n_best=3), strict=True):
        alone = row[row != 0][None]
        for hypothesis in found:
            whole = [*hypothesis.ids, *([2] if hypothesis.finished else [])]
            log_p = model(alone, torch.tensor([[1, *whole[:-1]]])).log_softmax(-1)[0]
            score = log_p.gather(1, torch.tensor(whole)[:, None]).sum().item()
            assert math.isclose(score, hypothesis.log_probability, abs_tol=1e-9)
        moved += len({tuple(hypothesis.ids) for hypothesis in found})
    assert moved > 3  # more than one hypothesis lives, so rows of the cache are chosen and repeated


@each_part
@torch.inference_mode()
def test_a_later_token_moves_no_earlier_logit(part: str) -> None:
    model, src, target = small_model(part), sentences(), torch.randint(3, 24, (3, 6))
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] - 3 + 1) % 21 + 3
    difference = (model(src, target) - model(src, changed)).abs().amax((0, 2))
    assert (difference[:3] == 0).all() and (difference[3:] > 1e-6).all()


@pytest.mark.parametrize(("part", "moves"), [("rotary", False), ("both", False), ("grouped", True)])
@torch.inference_mode()
def test_a_shifted_source_is_the_same_source_to_rotary_models_alone(part: str, moves: bool) -> None:
    model, ids, target = small_model(part), torch.randint(3, 24, (1, 6)), torch.randint(3, 24, (1, 5))
    shifted = torch.cat([torch.zeros(1, 4, dtype=torch.int64), ids], dim=1)
    change = (model(ids, target) - model(shifted, target)).abs().max().item()
    assert (change > 1e-3) if moves else (change < 1e-10)


# ------------------------------------------------------------------------------------------------- attention in tiles


@given(
    m=st.integers(1, 9), n=st.integers(1, 9), d_k=st.integers(1, 5), d_v=st.integers(1, 5), tile=st.integers(1, 11),
    is_causal=st.booleans(), scale=st.sampled_from([0.0, 1.0, 30.0, 1000.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_tiles_equal_equation_1(
    m: int, n: int, d_k: int, d_v: int, tile: int, is_causal: bool, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    query, key, value = scale * randn(2, m, d_k), randn(2, n, d_k), randn(2, n, d_v)
    mask = torch.ones(m, n, dtype=torch.bool).tril(n - m) if is_causal else None
    expected, _ = scaled_dot_product_attention(query, key, value, mask)  # zeros where m > n leaves a query nothing
    found = tiled_attention(query, key, value, tile, is_causal)
    torch.testing.assert_close(found, expected, atol=1e-12 * max(1.0, scale), rtol=0)


def test_tiles_equal_the_fused_kernel_in_single_precision() -> None:
    query, key, value = torch.randn(3, 2, 4, 33, 8).unbind()
    for is_causal in (False, True):
        fused = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        torch.testing.assert_close(tiled_attention(query, key, value, 8, is_causal), fused)


def test_scores_far_below_and_far_above_zero() -> None:
    key, value = torch.tensor([[1.0], [1.0], [-1.0]]), torch.tensor([[1.0], [3.0], [50.0]])
    for size in (1e4, 1e30):
        up, down = tiled_attention(torch.tensor([[size], [-size]]), key, value, tile=1)
        assert up.item() == 2.0 and down.item() == 50.0


def test_a_tile_that_allows_nothing_changes_nothing() -> None:
    start = torch.full((2, 1), float("-inf"))
    empty = RunningSoftmax(start, torch.zeros(2, 1), torch.zeros(2, 3))
    nothing, values = torch.full((2, 4), float("-inf")), torch.randn(4, 3)
    assert torch.equal(empty.add(nothing, values).output(), torch.zeros(2, 3))
    scores = torch.randn(2, 4)
    first = empty.add(scores, values)
    for state in (first.add(nothing, values), empty.add(nothing, values).add(scores, values)):
        torch.testing.assert_close(state.output(), first.output())


def test_gradients_through_the_tiles() -> None:
    query, key, value = (randn(2, 5, 3).requires_grad_() for _ in range(3))
    tiled = torch.autograd.grad(tiled_attention(query, key, value, 2, True).square().sum(), (query, key, value))
    whole, _ = scaled_dot_product_attention(query, key, value, causal_mask(5))
    for a, b in zip(tiled, torch.autograd.grad(whole.square().sum(), (query, key, value)), strict=True):
        torch.testing.assert_close(a, b)


class Sizes(TorchDispatchMode):
    """How many numbers the results of operations hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.found += [part.numel() for part in (result if isinstance(result, tuple) else (result,))]
        return result


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_tensor_is_larger_than_a_tile_or_the_output(is_causal: bool) -> None:
    query, key, value = torch.randn(3, 96, 4).unbind()
    with Sizes() as sizes:
        tiled_attention(query, key, value, 24, is_causal)
    assert max(sizes.found) == max(24 * 24, 96 * 4)


def test_what_tiles_refuse() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(ValueError, match="tile is 0"):
        tiled_attention(x, x, x, 0)
    with pytest.raises(ValueError, match="do not fit together"):
        tiled_attention(x, torch.randn(4, 5), x, 2)
    with pytest.raises(TypeError, match="dtypes"):
        tiled_attention(x, x.double(), x, 2)
