"""Multi-head attention against the equation as a loop, against PyTorch, and under perturbation; and its cache."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer import KeyValueCache, MultiHeadAttention, causal_mask, padding_mask

D, H = 12, 3


def layer(d_model: int = D, n_heads: int = H, **how: object) -> MultiHeadAttention:
    torch.manual_seed(1)
    return MultiHeadAttention(d_model, n_heads, **how).double()


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def head_by_head(a: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The paper's equation, one sentence and one head at a time; mask (B, h, m, n) or None."""
    rows = []
    for b in range(query.size(0)):
        heads = []
        for i in range(a.n_heads):
            k, v = slice(i * a.d_k, (i + 1) * a.d_k), slice(i * a.d_v, (i + 1) * a.d_v)
            q_i = query[b] @ a.w_q.weight[k].T + a.w_q.bias[k]
            k_i = key[b] @ a.w_k.weight[k].T + a.w_k.bias[k]
            v_i = value[b] @ a.w_v.weight[v].T + a.w_v.bias[v]
            powers = (q_i @ k_i.T / a.d_k**0.5).exp()
            if mask is not None:
                powers = powers * mask[b, i]
            heads.append(powers / powers.sum(-1, keepdim=True).clamp_min(1e-300) @ v_i)
        rows.append(torch.cat(heads, dim=-1) @ a.w_o.weight.T + a.w_o.bias)
    return torch.stack(rows)


@settings(max_examples=25)
@given(
    h=st.integers(1, 4), d_k=st.integers(1, 5), d_v=st.integers(1, 5), m=st.integers(1, 5), n=st.integers(1, 5),
    masked=st.booleans(), explicit=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_equals_the_equation_head_by_head(h, d_k, d_v, m, n, masked, explicit, seed) -> None:
    torch.manual_seed(seed)
    attention = MultiHeadAttention(7, h, d_k=d_k, d_v=d_v).double()
    query, key, value = randn(2, m, 7), randn(2, n, 7), randn(2, n, 7)
    mask = torch.rand(2, h, m, n) > 0.4 if masked else None
    attention.on_weights = (lambda weights: None) if explicit else None
    torch.testing.assert_close(attention(query, key, value, mask), head_by_head(attention, query, key, value, mask))


@pytest.mark.parametrize("how", ["plain", "padded", "causal"])
def test_equals_torchs_module_with_gradients(how: str) -> None:
    ours, theirs = layer(), nn.MultiheadAttention(D, H, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.w_q.bias, ours.w_k.bias, ours.w_v.bias]))
        theirs.out_proj.weight.copy_(ours.w_o.weight)
        theirs.out_proj.bias.copy_(ours.w_o.bias)
    x, memory = randn(2, 5, D).requires_grad_(), randn(2, 6, D).requires_grad_()
    pad = torch.tensor([[5, 5, 5, 5, 5, 5], [5, 5, 5, 0, 0, 0]])
    if how == "causal":
        memory = x
        a, b = ours(x, x, x, causal_mask(5)), theirs(x, x, x, attn_mask=~causal_mask(5), need_weights=False)[0]
    elif how == "padded":
        a = ours(x, memory, memory, padding_mask(pad, 0))
        b = theirs(x, memory, memory, key_padding_mask=pad == 0, need_weights=False)[0]
    else:
        a, b = ours(x, memory, memory), theirs(x, memory, memory, need_weights=False)[0]
    torch.testing.assert_close(a, b)
    upstream = randn(*a.shape)
    for p, q in zip(torch.autograd.grad(a, (x, memory), upstream), torch.autograd.grad(b, (x, memory), upstream)):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("m", [1, 3, 5])
@pytest.mark.parametrize("how", ["plain", "mask", "causal", "both"])
def test_fused_and_explicit_ways_agree(how: str, m: int) -> None:
    attention = layer(d_k=3, d_v=5)
    query, memory = randn(2, m, D), randn(2, 5, D)
    mask = torch.rand(2, 1, m, 5) > 0.3 if how in ("mask", "both") else None
    results = []
    for observer in (None, lambda weights: None):
        attention.on_weights = observer
        attention.zero_grad()
        output = attention(query, memory, memory, mask, is_causal=how in ("causal", "both"))
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad.clone() for p in attention.parameters())])
    for fused, explicit in zip(*results, strict=True):
        torch.testing.assert_close(fused, explicit)


def test_causal_shortcut_equals_the_causal_mask() -> None:
    attention, x = layer(), randn(2, 6, D)
    torch.testing.assert_close(attention(x, x, x, is_causal=True), attention(x, x, x, causal_mask(6)))
    other = torch.rand(2, H, 6, 6) > 0.3
    torch.testing.assert_close(attention(x, x, x, other, is_causal=True), attention(x, x, x, other & causal_mask(6)))
    last_three = attention(x[:, 3:], x, x, is_causal=True)  # the last query stands at the last key
    torch.testing.assert_close(last_three, attention(x, x, x, causal_mask(6))[:, 3:])


def test_a_later_position_moves_earlier_outputs_by_exactly_nothing() -> None:
    attention, x = layer(), randn(2, 6, D)
    changed = x.clone()
    changed[:, 4] += 10
    for how in ({"is_causal": True}, {"mask": causal_mask(6)}):
        difference = (attention(x, x, x, **how) - attention(changed, changed, changed, **how)).abs().amax((0, 2))
        assert (difference[:4] == 0).all() and (difference[4:] > 1e-3).all()
    difference = (attention(x, x, x) - attention(changed, changed, changed)).abs().amax((0, 2))
    assert (difference > 1e-3).all()


def test_queries_and_sentences_are_independent() -> None:
    attention, query, memory = layer(), randn(3, 4, D), randn(3, 5, D)
    before = attention(query, memory, memory)
    other_query, other_memory = query.clone(), memory.clone()
    other_query[:, 2] += 1
    difference = (attention(other_query, memory, memory) - before).abs().amax((0, 2))
    assert (difference[[0, 1, 3]] < 1e-12).all() and difference[2] > 1e-3
    other_memory[1] += 1
    difference = (attention(query, other_memory, other_memory) - before).abs().amax((1, 2))
    assert (difference[[0, 2]] < 1e-12).all() and difference[1] > 1e-3
    for sentence in range(3):
        alone = attention(query[[sentence]], memory[[sentence]], memory[[sentence]])
        torch.testing.assert_close(alone, before[[sentence]])


@pytest.mark.parametrize("explicit", [False, True])
def test_a_sentence_of_padding_gives_no_nan(explicit: bool) -> None:
    attention, x = layer(), randn(2, 5, D).requires_grad_()
    attention.on_weights = (lambda weights: None) if explicit else None
    mask = padding_mask(torch.tensor([[7, 7, 7, 7, 7], [0, 0, 0, 0, 0]]), 0)
    output = attention(x, x, x, mask)
    torch.testing.assert_close(output[1], attention.w_o.bias.expand(5, D))
    torch.testing.assert_close(output[0], attention(x, x, x)[0])
    output.square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in attention.parameters())


def test_weights_are_shown_on_request_only_and_never_kept() -> None:
    attention, x, seen = layer(), randn(2, 4, D), []
    attention(x, x, x)
    assert not seen
    attention.on_weights = seen.append
    attention(x, x, x, causal_mask(4))
    assert len(seen) == 1 and seen[0].shape == (2, H, 4, 4)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, H, 4, dtype=torch.float64))
    assert (seen[0] * ~causal_mask(4) == 0).all()
    attention.on_weights = None
    attention(x, x, x)
    assert len(seen) == 1
    kept = [value for value in vars(attention).values() if isinstance(value, Tensor)]
    assert not kept and list(attention.state_dict()) == [f"w_{w}.{p}" for w in "qkvo" for p in ("weight", "bias")]


def test_d_k_and_d_v_are_apart() -> None:
    attention = MultiHeadAttention(512, 8, d_k=16, d_v=64)
    assert attention.w_q.weight.shape == attention.w_k.weight.shape == (128, 512)
    assert attention.w_v.weight.shape == (512, 512) and attention.w_o.weight.shape == (512, 512)
    assert sum(p.numel() for p in MultiHeadAttention(512, 8).parameters()) == 4 * (512 * 512 + 512)
    assert MultiHeadAttention(10, 3, d_k=2, d_v=4)(*3 * [torch.randn(1, 5, 10)]).shape == (1, 5, 10)


def test_every_head_counts_and_reaches_its_own_columns() -> None:
    attention, x = layer(), randn(1, 5, D)
    before = attention(x, x, x)
    changes = []
    for i in range(H):
        own = slice(i * attention.d_v, (i + 1) * attention.d_v)
        saved = attention.w_o.weight[:, own].clone()
        with torch.no_grad():
            attention.w_o.weight[:, own] = 0
        changes.append(before - attention(x, x, x))
        with torch.no_grad():
            attention.w_o.weight[:, own] = saved
    assert all(change.abs().max() > 1e-3 for change in changes)
    torch.testing.assert_close(sum(changes) + attention.w_o.bias, before)  # a sum of contributions


@pytest.mark.parametrize("explicit", [False, True])
def test_dropout_on_weights_only_when_asked_and_in_training(explicit: bool) -> None:
    x = randn(2, 6, D)
    for rate in (0.0, 0.5):
        attention = layer(attention_dropout=rate)
        attention.on_weights = (lambda weights: None) if explicit else None
        assert torch.equal(attention.train()(x, x, x), attention(x, x, x)) == (rate == 0)
        assert torch.equal(attention.eval()(x, x, x), attention(x, x, x))
        torch.testing.assert_close(attention(x, x, x), layer()(x, x, x))
    attention = layer(attention_dropout=0.5).train()
    attention.on_weights = (lambda weights: None) if explicit else None
    with torch.no_grad():
        mean = torch.stack([attention(x, x, x) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(mean, layer()(x, x, x), atol=0.05, rtol=0)  # weights are scaled up for those dropped


def test_two_layers_start_with_different_weights() -> None:
    one, two = MultiHeadAttention(D, H), MultiHeadAttention(D, H)
    for w in ("w_q", "w_k", "w_v", "w_o"):
        assert not torch.equal(getattr(one, w).weight, getattr(two, w).weight)
    assert not torch.equal(one.w_q.weight, one.w_k.weight)


def test_the_bias_of_the_keys_has_no_effect() -> None:
    attention, x = layer(), randn(2, 4, D)
    before = attention(x, x, x)
    with torch.no_grad():
        attention.w_k.bias += 3
    torch.testing.assert_close(attention(x, x, x), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, D)
    expected = layer().float()(x, x, x, is_causal=True)
    low = layer().to(dtype)(*3 * [x.to(dtype)], is_causal=True)
    assert low.dtype == dtype
    torch.testing.assert_close(low.float(), expected, atol=0.02, rtol=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        auto = layer().float()(x, x, x, causal_mask(5))
    torch.testing.assert_close(auto.float(), expected, atol=0.02, rtol=0.02)


def test_an_empty_batch_passes_through() -> None:
    assert layer()(randn(0, 4, D), randn(0, 5, D), randn(0, 5, D)).shape == (0, 4, D)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MultiHeadAttention(10, 3), "d_model=10 is not divisible by n_heads=3.*divisor"),
        (lambda: MultiHeadAttention(10, 3, d_k=2), "not divisible"),
        (lambda: MultiHeadAttention(10, 0), "n_heads=0; give a positive number"),
        (lambda: MultiHeadAttention(10, -2), "n_heads=-2"),
        (lambda: MultiHeadAttention(0, 2), "d_model=0"),
        (lambda: MultiHeadAttention(10, 2, d_k=0), "d_k=0"),
        (lambda: MultiHeadAttention(10, 2, d_v=-1), "d_v=-1"),
        (lambda: MultiHeadAttention(10, 2, attention_dropout=1.5), "dropout probability"),
    ],
)
def test_impossible_sizes_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (torch.ones(2, 2).bool(), ValueError, r"mask \(2, 2\)"),
        (torch.ones(3, 3), TypeError, "mask has dtype torch.float32.*bool"),
    ],
)
def test_a_bad_mask_is_refused_with_the_causal_shortcut_too(mask: Tensor, error: type[Exception], words: str) -> None:
    x = randn(2, 3, D)
    with pytest.raises(error, match=words):
        layer()(x, x, x, mask, is_causal=True)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    ("error", "inputs", "words"),
    [
        (ValueError, lambda: (randn(2, 4, 11), randn(2, 5, D), randn(2, 5, D)), r"query has shape \(2, 4, 11\).*12"),
        (ValueError, lambda: (randn(2, 4, D), randn(2, 5, 11), randn(2, 5, D)), r"key has shape \(2, 5, 11\)"),
        (ValueError, lambda: (randn(2, 4, D), randn(2, 5, D), randn(2, D)), r"value has shape \(2, 12\)"),
        (ValueError, lambda: (randn(2, 4, D), randn(2, 5, D), randn(2, 6, D)), "do not fit together"),
        (ValueError, lambda: (randn(2, 4, D), randn(3, 5, D), randn(3, 5, D)), "do not fit together"),
        (TypeError, lambda: (randn(2, 4, D).float(), randn(2, 5, D), randn(2, 5, D)), "query has dtype torch.float32"),
        (TypeError, lambda: (randn(2, 4, D).long(), randn(2, 5, D), randn(2, 5, D)), "query has dtype torch.int64"),
        (TypeError, lambda: (*3 * [randn(2, 4, D)], torch.ones(4, 4)), "mask has dtype torch.float32.*bool"),
        (ValueError, lambda: (*3 * [randn(2, 4, D)], torch.ones(2, 4, 4).bool()), r"mask \(2, 4, 4\)"),
        (ValueError, lambda: (*3 * [randn(2, 4, D)], torch.ones(4, 5).bool()), r"mask \(4, 5\).*\(2, 3, 4, 4\)"),
    ],
)
def test_bad_input_is_named(error: type[Exception], inputs: Callable, words: str, explicit: bool) -> None:
    attention = layer()
    attention.on_weights = (lambda weights: None) if explicit else None
    with pytest.raises(error, match=words):
        attention(*inputs())


@settings(max_examples=20)
@given(pieces=st.lists(st.integers(1, 4), min_size=1, max_size=5), spare=st.integers(0, 3), seed=st.integers(0, 99))
def test_cached_pieces_equal_one_causal_pass(pieces: list[int], spare: int, seed: int) -> None:
    attention, n = layer(d_k=3, d_v=5), sum(pieces)
    torch.manual_seed(seed)
    x = randn(2, n, D)
    cache, outputs, start = KeyValueCache(randn(2, H, n + spare, 3), randn(2, H, n + spare, 5)), [], 0
    for piece in pieces:
        new = x[:, start : start + piece]
        keys, values = cache.append(*attention.project(new, new))
        start += piece
        assert keys.shape == (2, H, start, 3) and values.shape == (2, H, start, 5) and cache.length == start
        outputs.append(attention.attend(new, keys, values, is_causal=True))
    torch.testing.assert_close(torch.cat(outputs, dim=1), attention(x, x, x, is_causal=True))


def test_cache_selects_rows_that_then_live_apart() -> None:
    cache = KeyValueCache(torch.zeros(3, 1, 4, 1), torch.zeros(3, 1, 4, 1))
    row = torch.arange(3.0).view(3, 1, 1, 1)
    cache.append(row, row + 10)
    cache.select(torch.tensor([2, 0, 2, 2]))
    keys, values = cache.append(*2 * [torch.arange(4.0).view(4, 1, 1, 1)])
    assert keys.flatten(1).tolist() == [[2, 0], [0, 1], [2, 2], [2, 3]]
    assert values.flatten(1).tolist() == [[12, 0], [10, 1], [12, 2], [12, 3]]
    assert cache.length == 2 and cache.keys.shape == (4, 1, 4, 1)


@pytest.mark.parametrize("index", [[2, 0, 1], [1, 1], [0], [2, 2, 0], []], ids=str)
def test_cache_selects_in_place_what_fits(index: list[int]) -> None:
    cache = KeyValueCache(torch.zeros(3, 1, 4, 1), torch.zeros(3, 1, 4, 1))
    row = torch.arange(3.0).view(3, 1, 1, 1)
    cache.append(row, row + 10)
    room = cache.keys.data_ptr(), cache.values.data_ptr()
    cache.select(torch.tensor(index, dtype=torch.int64))
    assert cache.keys[:, 0, 0, 0].tolist() == index
    assert cache.values[:, 0, 0, 0].tolist() == [i + 10 for i in index]
    assert not index or (cache.keys.data_ptr(), cache.values.data_ptr()) == room


def test_a_full_cache_says_so_and_stays_as_it_is() -> None:
    cache = KeyValueCache(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    cache.append(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    with pytest.raises(ValueError, match="holds 3 positions and is asked for 4; make it larger"):
        cache.append(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    assert cache.length == 2 and cache.keys[0, 0, 2].eq(0).all()
