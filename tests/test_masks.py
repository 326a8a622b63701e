"""Masks: what they are, and that the model obeys them."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    causal_mask,
    masked_softmax,
    padding_mask,
    scaled_dot_product_attention,
)

quick = settings(max_examples=25, deadline=None, derandomize=True)
VOCABULARY = 20


def make_model(norm_order="post", positions="sinusoidal", **changes):
    """A small model in evaluation mode."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "dropout": 0.0, **changes}
    config = TransformerConfig(VOCABULARY, VOCABULARY, norm_order=norm_order, positions=positions, **sizes)
    return Transformer(config).eval()


def make_batch(pad_id=0):
    """Three sentences of 8, 5 and 2 source tokens and 3, 7 and 1 target tokens, padded on the right."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(3, VOCABULARY, (3, 8), generator=generator)
    tgt = torch.randint(3, VOCABULARY, (3, 7), generator=generator)
    for ids, lengths in ((src, (8, 5, 2)), (tgt, (3, 7, 1))):
        for row, length in zip(ids, lengths, strict=True):
            row[length:] = pad_id
    return src, tgt


@quick
@given(st.integers(1, 40))
def test_causal_mask_is_key_not_after_query(size):
    mask = causal_mask(size)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[key <= query for key in range(size)] for query in range(size)]


def test_causal_mask_is_made_where_asked():
    assert causal_mask(3, "meta").device.type == "meta"


@pytest.mark.parametrize("size", [0, -1])
def test_causal_mask_needs_a_position(size):
    with pytest.raises(ValueError, match=f"size is {size}; .*at least one position"):
        causal_mask(size)


@quick
@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4), st.integers(0, 4))
def test_padding_mask_is_not_pad(rows, pad_id):
    mask = padding_mask(torch.tensor(rows), pad_id)
    assert mask.dtype == torch.bool and mask.shape == (len(rows), 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[token != pad_id for token in row] for row in rows]


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_padding_mask_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match=r"expected \(batch, length\)"):
        padding_mask(torch.ones(shape, dtype=torch.int64))


@pytest.mark.parametrize("pad_id", [0, 5])
def test_the_models_masks_by_brute_force(pad_id):
    model = make_model(pad_id=pad_id, bos_id=1, eos_id=2)
    src, tgt = make_batch(pad_id)
    src_mask, tgt_mask, memory_mask = model.build_masks(src, tgt)
    assert src_mask.shape == memory_mask.shape == (3, 1, 1, 8) and tgt_mask.shape == (3, 1, 7, 7)
    for b in range(3):
        for key in range(8):
            assert src_mask[b, 0, 0, key] == memory_mask[b, 0, 0, key] == (src[b, key] != pad_id)
        for query in range(7):
            for key in range(7):
                assert tgt_mask[b, 0, query, key] == (key <= query and bool(tgt[b, key] != pad_id))


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("given_mask", [True, False])
@torch.no_grad()
def test_a_later_token_changes_earlier_outputs_by_exactly_nothing(norm_order, positions, given_mask):
    model = make_model(norm_order, positions)
    src, tgt = make_batch()
    src, tgt = src[:1], torch.arange(3, 11)[None]  # (1, n), (1, m)
    memory = model.encode(src)
    mask = causal_mask(8) if given_mask else None
    before = model.decode(tgt, memory, mask)
    for place in range(8):
        changed = tgt.clone()
        changed[0, place] = 15
        moved = (model.decode(changed, memory, mask) - before).abs().amax(-1)[0]
        assert moved[:place].sum() == 0.0
        assert (moved[place:] > 1e-6).all()


@torch.no_grad()
def test_the_whole_models_logits_are_causal():
    model = make_model()
    src, tgt = make_batch()
    changed = tgt.clone()
    changed[1, -1] = 3 if tgt[1, -1] != 3 else 4  # the one row without padding
    moved = (model(src, changed) - model(src, tgt)).abs().amax(-1)
    assert moved[1, -1] > 1e-3
    moved[1, -1] = 0
    assert moved.max() == 0.0


@torch.no_grad()
def test_without_the_mask_the_perturbation_is_seen():
    model = make_model()
    src, tgt = make_batch()
    memory, everything = model.encode(src[:1]), torch.ones(7, 7, dtype=torch.bool)
    changed = tgt[1:2].clone()
    changed[0, -1] = 3 if tgt[1, -1] != 3 else 4
    moved = model.decode(changed, memory, everything) - model.decode(tgt[1:2], memory, everything)
    assert moved.abs().amax(-1).min() > 1e-3


@torch.no_grad()
def test_the_encoder_sees_every_real_token_and_no_padding():
    model = make_model()
    src, _ = make_batch()
    before = model.encode(src, padding_mask(src))
    for place in range(5):  # the second sentence has five tokens
        changed = src.clone()
        changed[1, place] = 19 if src[1, place] != 19 else 18
        moved = (model.encode(changed, padding_mask(changed)) - before).abs().amax(-1)
        assert (moved[1, :5] > 1e-6).all()
        assert moved[[0, 2]].max() == 0.0  # sentences of a batch know nothing of each other
    assert model.embedding(src)[1, 5:].abs().sum() > 0  # padding has vectors; what hides them is the mask
    hidden_padding = model.encode(src, padding_mask(src))
    model.embedding.weight[0] += 1.0
    torch.testing.assert_close(model.encode(src, padding_mask(src))[1, :5], hidden_padding[1, :5], rtol=0, atol=0)


@torch.no_grad()
def test_padding_is_invisible():
    model = make_model()
    src, tgt = make_batch()
    logits, real = model(src, tgt), tgt != 0
    wider = model(F.pad(src, (0, 9)), F.pad(tgt, (0, 4)))[:, :7]
    torch.testing.assert_close(wider[real], logits[real], rtol=0, atol=1e-5)
    for b, (n, m) in enumerate(((8, 3), (5, 7), (2, 1))):
        alone = model(src[b : b + 1, :n], tgt[b : b + 1, :m])
        torch.testing.assert_close(alone[0], logits[b, :m], rtol=0, atol=1e-5)


@torch.no_grad()
def test_no_mask_tensor_equals_the_full_mask_at_real_positions():
    model = make_model()
    src, tgt = make_batch()
    src_mask, tgt_mask, memory_mask = model.build_masks(src, tgt)
    memory = model.encode(src, src_mask)
    dense = model.decode(tgt, memory, tgt_mask, memory_mask)
    fast = model.decode(tgt, memory, None, memory_mask)
    torch.testing.assert_close(fast[tgt != 0], dense[tgt != 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_a_source_of_padding_alone_harms_nobody(norm_order):
    model = make_model(norm_order)
    src, tgt = make_batch()
    with_empty = src.clone()
    with_empty[1] = 0
    logits = model(with_empty, tgt)
    logits.square().mean().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(logits[[0, 2]], model(src, tgt)[[0, 2]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("watched", [False, True])
def test_an_empty_row_gives_the_output_bias(watched):
    """The heads' output is zero, so only the bias of the last projection is left."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 2)
    torch.nn.init.normal_(attention.w_o.bias)
    if watched:
        attention.on_weights = lambda weights: None
    x = torch.randn(2, 5, 16, requires_grad=True)
    mask = padding_mask(torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]))
    out = attention(x, x, x, mask)
    torch.testing.assert_close(out[1], attention.w_o.bias.expand(5, 16), rtol=0, atol=0)
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@quick
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
def test_any_mask_gives_weights_on_allowed_keys_only(rows):
    mask = torch.tensor(rows)
    scores = torch.randn(len(rows), 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = masked_softmax(scores, mask)
    assert weights[~mask].sum() == 0.0
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float())
    weights.square().sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_empty_row_is_zero_in_every_precision(dtype):
    q = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    out, weights = scaled_dot_product_attention(q, q, q, torch.zeros(3, 3, dtype=torch.bool))
    assert torch.equal(out, torch.zeros_like(q)) and torch.equal(weights, torch.zeros(3, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_only_bool_masks_are_taken(dtype):
    model = make_model()
    src, tgt = make_batch()
    src_mask, tgt_mask, memory_mask = model.build_masks(src, tgt)
    with pytest.raises(TypeError, match="give a bool mask with True where a query may attend"):
        model.encode(src, src_mask.to(dtype))
    memory = model.encode(src, src_mask)
    with pytest.raises(TypeError, match="bool mask"):
        model.decode(tgt, memory, tgt_mask.to(dtype))
    with pytest.raises(TypeError, match="bool mask"):
        model.decode(tgt, memory, tgt_mask, memory_mask.to(dtype))


def test_a_mask_of_the_wrong_sequence_is_refused():
    model = make_model()
    src, tgt = make_batch()
    src_mask, tgt_mask, memory_mask = model.build_masks(src, tgt)
    with pytest.raises(ValueError, match="does not broadcast"):
        model.encode(src, padding_mask(tgt))
    memory = model.encode(src, src_mask)
    with pytest.raises(ValueError, match="does not broadcast"):
        model.decode(tgt, memory, tgt_mask, padding_mask(tgt))


def test_random_targets_cannot_be_learned():
    """A model that sees the future gets far below the entropy of random tokens; ours must not."""
    model = make_model(d_model=64, n_layers=1, d_ff=128).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)
    src = torch.full((64, 1), 3)

    def loss():
        ids = torch.randint(3, VOCABULARY, (64, 11), generator=generator)
        return F.cross_entropy(model(src, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    for _ in range(200):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    with torch.no_grad():
        assert loss() >= 0.95 * math.log(VOCABULARY - 3)
