"""The stacks (Section 3.1): against torch's own layers with copied weights, and by what they must never do."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionwiseFeedForward,
    ResidualBlock,
)

D, HEADS, D_FF = 16, 4, 32
ORDERS = ["post", "pre"]
few = settings(max_examples=20, deadline=None, derandomize=True)


def attention() -> MultiHeadAttention:
    return MultiHeadAttention(D, HEADS)


def encoder_layer(norm_order="post", dropout=0.0, **more) -> EncoderLayer:
    return EncoderLayer(attention(), PositionwiseFeedForward(D, D_FF), D, dropout, norm_order, **more)


def decoder_layer(norm_order="post", dropout=0.0, **more) -> DecoderLayer:
    return DecoderLayer(attention(), attention(), PositionwiseFeedForward(D, D_FF), D, dropout, norm_order, **more)


def final_norm(norm_order: str) -> nn.LayerNorm | None:
    return nn.LayerNorm(D) if norm_order == "pre" else None


def make_encoder(norm_order="post", dropout=0.0, n_layers=3) -> Encoder:
    return scrambled(Encoder((encoder_layer(norm_order, dropout) for _ in range(n_layers)), final_norm(norm_order)))


def make_decoder(norm_order="post", dropout=0.0, n_layers=3) -> Decoder:
    return scrambled(Decoder((decoder_layer(norm_order, dropout) for _ in range(n_layers)), final_norm(norm_order)))


def scrambled(module: nn.Module) -> nn.Module:
    """Move gains and biases away from one and zero, so that a test sees where they act."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


# ---- the residual block


@few
@given(d=st.sampled_from([4, 16, 512]), scale=st.floats(0.5, 50), shift=st.floats(-5, 5), seed=st.integers(0, 100))
def test_fresh_post_norm_rows_have_mean_0_and_variance_1(d, scale, shift, seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, d) * scale + shift
    out = ResidualBlock(d)(x, nn.Linear(d, d))  # the default order
    assert out.mean(-1).abs().max() < 1e-5
    assert (out.var(-1, correction=0) - 1).abs().max() < 1e-3


@pytest.mark.parametrize("d", [4, 512])
def test_default_norm_is_the_biased_one_with_epsilon_inside_the_root(d):
    torch.manual_seed(0)
    block = scrambled(ResidualBlock(d, dropout=0.0))
    x = torch.randn(2, 5, d)
    s = (x + x.sin()).double()
    mean = s.sum(-1, keepdim=True) / d
    variance = ((s - mean) ** 2).sum(-1, keepdim=True) / d
    expected = (s - mean) / (variance + 1e-5) ** 0.5 * block.norm.weight.double() + block.norm.bias.double()
    assert torch.allclose(block(x, torch.sin).double(), expected, atol=1e-6)


def test_reference_row():
    row = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    out = ResidualBlock(4, dropout=0.0)(row, torch.zeros_like)[0]
    assert [f"{value:.4f}" for value in out.tolist()] == ["1.7320", "-0.5773", "-0.5773", "-0.5773"]


@pytest.mark.parametrize("norm_order", ORDERS)
def test_where_norm_and_dropout_act(norm_order):
    x = torch.randn(2, 5, D)
    block = scrambled(ResidualBlock(D, dropout=0.25, norm_order=norm_order))
    torch.manual_seed(7)
    out = block(x, torch.tanh)
    torch.manual_seed(7)
    if norm_order == "post":
        expected = block.norm(x + block.dropout(torch.tanh(x)))
    else:
        expected = x + block.dropout(torch.tanh(block.norm(x)))
    assert torch.equal(out, expected)
    nothing = ResidualBlock(D, dropout=1.0, norm_order=norm_order)
    assert torch.equal(nothing(x, torch.tanh), nothing.norm(x) if norm_order == "post" else x)


@pytest.mark.parametrize("kind", [encoder_layer, decoder_layer])
@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_rate_reaches_every_residual_dropout_and_no_other(kind, norm_order, dropout):
    layer = kind(norm_order, dropout)
    blocks = [module for module in layer.modules() if isinstance(module, ResidualBlock)]
    assert len(blocks) == (2 if kind is encoder_layer else 3)
    assert {block.dropout.p for block in blocks} == {dropout}
    elsewhere = [m.p for m in layer.modules() if isinstance(m, nn.Dropout) and m not in [b.dropout for b in blocks]]
    assert set(elsewhere) <= {0.0}  # attention has one, for its authors' later code; it is off
    x = torch.randn(2, 5, D)
    inputs = (x,) if kind is encoder_layer else (x, torch.randn(2, 6, D))
    assert torch.equal(layer.train()(*inputs), layer(*inputs)) == (dropout == 0.0)


def test_another_norm_can_be_passed_in():
    for layer in (encoder_layer(norm=nn.RMSNorm), decoder_layer(norm=nn.RMSNorm)):
        norms = [module.norm for module in layer.modules() if isinstance(module, ResidualBlock)]
        assert all(isinstance(norm, nn.RMSNorm) for norm in norms)
        assert len({id(norm) for norm in norms}) == len(norms)


# ---- torch's own layers


def copy_attention(ours: MultiHeadAttention, torchs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        torchs.in_proj_bias.copy_(torch.cat([ours.w_q.bias, ours.w_k.bias, ours.w_v.bias]))
        torchs.out_proj.load_state_dict(ours.w_o.state_dict())


def copy_layer(ours: EncoderLayer | DecoderLayer, torchs: nn.Module) -> None:
    pairs = [(ours.feed_forward.w_1, torchs.linear1), (ours.feed_forward.w_2, torchs.linear2)]
    copy_attention(ours.self_attention, torchs.self_attn)
    if isinstance(ours, EncoderLayer):
        blocks = [ours.attention_block, ours.feed_forward_block]
    else:
        copy_attention(ours.memory_attention, torchs.multihead_attn)
        blocks = [ours.self_attention_block, ours.memory_attention_block, ours.feed_forward_block]
    pairs += [(block.norm, getattr(torchs, f"norm{i}")) for i, block in enumerate(blocks, 1)]
    for mine, theirs in pairs:
        theirs.load_state_dict(mine.state_dict())


@pytest.mark.parametrize("norm_order", ORDERS)
def test_stacks_equal_torchs(norm_order):
    torch.manual_seed(0)
    encoder, decoder = make_encoder(norm_order), make_decoder(norm_order)
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_order == "pre"}
    torch_encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, HEADS, D_FF, **options), 3, final_norm(norm_order), enable_nested_tensor=False
    )
    torch_layer = nn.TransformerDecoderLayer(D, HEADS, D_FF, **options)
    torch_decoder = nn.TransformerDecoder(torch_layer, 3, final_norm(norm_order))
    for ours, torchs in ((encoder, torch_encoder), (decoder, torch_decoder)):
        for mine, theirs in zip(ours.layers, torchs.layers, strict=True):
            copy_layer(mine, theirs)
        if ours.norm is not None:
            torchs.norm.load_state_dict(ours.norm.state_dict())

    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])  # (B, n)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    sources, targets = torch.randn(2, 6, D), torch.randn(2, 5, D)
    results = []
    for memory, decode in (
        (lambda s: encoder(s, real[:, None, None]), lambda t, m: decoder(t, m, None, real[:, None, None])),
        (
            lambda s: torch_encoder(s, src_key_padding_mask=~real),
            lambda t, m: torch_decoder(t, m, tgt_mask=~causal, memory_key_padding_mask=~real),
        ),
    ):
        source, target = sources.clone().requires_grad_(), targets.clone().requires_grad_()
        out = decode(target, memory(source))
        out.sin().sum().backward()
        results.append((out, source.grad, target.grad))
    for ours, torchs in zip(*results, strict=True):
        assert torch.allclose(ours, torchs, atol=2e-5)


# ---- the stacks


@pytest.mark.parametrize("make", [make_encoder, make_decoder])
def test_no_two_layers_share_a_matrix(make):
    layers = [dict(layer.named_parameters()) for layer in make(n_layers=6).layers]
    for one, other in itertools.combinations(layers, 2):
        for name in one:
            assert one[name] is not other[name]
            assert one[name].dim() == 1 or not torch.equal(one[name], other[name])


def test_pre_norm_returns_its_input_plus_every_sub_layer_and_then_normalizes():
    torch.manual_seed(0)
    encoder, x, terms = make_encoder("pre"), torch.randn(2, 5, D), []
    for layer in encoder.layers:
        layer.self_attention.register_forward_hook(lambda module, given, result: terms.append(result))
        layer.feed_forward.register_forward_hook(lambda module, given, result: terms.append(result))
    out = encoder(x)
    assert len(terms) == 6
    assert torch.allclose(out, encoder.norm(x + sum(terms)), atol=1e-5)


@pytest.mark.parametrize("norm_order", ORDERS)
def test_decoder_never_looks_ahead(norm_order):
    torch.manual_seed(0)
    decoder, memory, target = make_decoder(norm_order), torch.randn(2, 6, D), torch.randn(2, 7, D)
    out = decoder(target, memory)
    for position in range(7):
        changed = target.clone()
        changed[:, position] = torch.randn(2, D)  # not + 3: a layer norm takes a constant away
        difference = (decoder(changed, memory) - out).abs().amax((0, 2))
        assert (difference[:position] == 0.0).all()
        assert (difference[position:] > 1e-4).all()


@pytest.mark.parametrize("norm_order", ORDERS)
def test_every_decoder_layer_reads_the_memory(norm_order):
    torch.manual_seed(0)
    for layer in make_decoder(norm_order).layers:
        x, memory = torch.randn(2, 5, D), torch.randn(2, 6, D)
        changed = memory.clone()
        changed[:, 2] += 3
        assert ((layer(x, changed) - layer(x, memory)).abs().amax((0, 2)) > 1e-4).all()


def test_hidden_source_positions_do_not_matter():
    torch.manual_seed(0)
    encoder, decoder = make_encoder(), make_decoder()
    mask = torch.tensor([True, True, True, False, False])[None, None, None]
    source, target = torch.randn(1, 5, D), torch.randn(1, 4, D)
    out = decoder(target, encoder(source, mask), None, mask)
    source[:, 3:] = 100.0
    assert torch.equal(decoder(target, encoder(source, mask), None, mask), out)


def test_encoder_permutes_with_its_input():
    torch.manual_seed(0)
    encoder, x, order = make_encoder(), torch.randn(2, 7, D), torch.randperm(7)
    assert torch.allclose(encoder(x[:, order]), encoder(x)[:, order], atol=1e-5)


# ---- the cache


@few
@given(chunks=st.lists(st.integers(1, 3), min_size=1, max_size=5), norm_order=st.sampled_from(ORDERS))
def test_cached_steps_equal_one_pass(chunks, norm_order):
    torch.manual_seed(0)
    decoder, memory, target = make_decoder(norm_order), torch.randn(2, 6, D), torch.randn(2, sum(chunks), D)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]
    caches = [layer.new_cache(memory, sum(chunks)) for layer in decoder.layers]
    parts = [decoder(part, None, None, mask, caches) for part in target.split(chunks, dim=1)]
    assert torch.allclose(torch.cat(parts, 1), decoder(target, memory, None, mask), atol=1e-5)


def test_select_reorders_repeats_and_drops_rows():
    torch.manual_seed(0)
    decoder, memory, target = make_decoder(), torch.randn(3, 6, D), torch.randn(3, 4, D)
    index = torch.tensor([2, 0, 2, 1])
    caches = [layer.new_cache(memory, 4) for layer in decoder.layers]
    decoder(target[:, :3], caches=caches)
    for cache in caches:
        cache.select(index)
    expected = decoder(target[index], memory[index])[:, 3:]
    assert torch.allclose(decoder(target[index, 3:], caches=caches), expected, atol=1e-5)


def test_memory_is_projected_once():
    decoder = make_decoder(n_layers=1)
    calls = []
    decoder.layers[0].memory_attention.w_k.register_forward_hook(lambda *_: calls.append(1))
    caches = [layer.new_cache(torch.randn(2, 6, D), 3) for layer in decoder.layers]
    for _ in range(3):
        decoder(torch.randn(2, 1, D), caches=caches)
    assert len(calls) == 1


# ---- bad input


@pytest.mark.parametrize("kind", [ResidualBlock, encoder_layer, decoder_layer])
def test_unknown_norm_order(kind):
    with pytest.raises(ValueError, match=r"norm_order is 'middle'.*\"post\".*\"pre\""):
        kind(**({"d_model": D} if kind is ResidualBlock else {}), norm_order="middle")


@pytest.mark.parametrize("norm_order", ORDERS)
def test_wrong_width(norm_order):
    with pytest.raises(ValueError, match=r"\(2, 5, 15\).*d_model=16"):
        encoder_layer(norm_order)(torch.randn(2, 5, 15))


@pytest.mark.parametrize("width", [1, 32])
@pytest.mark.parametrize("norm_order", ORDERS)
def test_a_sub_layer_that_changes_the_shape(width, norm_order):  # width 1 would broadcast and pass unnoticed
    with pytest.raises(ValueError, match=rf"made \(2, 5, {width}\) of \(2, 5, 16\)"):
        ResidualBlock(D, norm_order=norm_order)(torch.randn(2, 5, D), nn.Linear(D, width))


def test_ids_instead_of_vectors():
    with pytest.raises(TypeError, match=r"torch\.int64.*not token ids"):
        encoder_layer()(torch.zeros(2, 5, D, dtype=torch.int64))


def test_decoder_without_memory_or_cache():
    with pytest.raises(ValueError, match=r"memory.*cache"):
        make_decoder()(torch.randn(2, 5, D))


def test_one_cache_a_layer():
    decoder = make_decoder()
    caches = [layer.new_cache(torch.randn(2, 6, D), 3) for layer in decoder.layers]
    for wrong in (caches[:2], []):
        with pytest.raises(ValueError, match=rf"{len(wrong)} caches for 3 layers"):
            decoder(torch.randn(2, 1, D), caches=wrong)


def test_a_layer_can_be_copied():
    layer = encoder_layer()
    x = torch.randn(2, 5, D)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
