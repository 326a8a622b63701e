"""The block since 2017: exchanged parts inside the whole model; RMSNorm and the gated network by other formulas."""

import math
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer.feed_forward import PositionwiseFeedForward
from transformer.layers import ResidualBlock
from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.modern.gated_feed_forward import GatedFeedForward
from transformer.modern.grouped_query import GroupedQueryAttention
from transformer.modern.rms_norm import RMSNorm
from transformer.modern.rope import RotaryAttention
from transformer.modern.stacks import NoPositions, build_transformer
from transformer.multi_head import MultiHeadAttention


class RotaryGroupedQueryAttention(RotaryAttention, GroupedQueryAttention):
    """Both at once."""


ROTARY_GROUPED = partial(RotaryGroupedQueryAttention, n_kv_heads=2)
PARTS = {
    "the paper's": {},
    "RMSNorm": {"norm": RMSNorm},
    "SwiGLU": {"feed_forward": GatedFeedForward.as_large_as},
    "RoPE": {"self_attention": RotaryAttention, "positions": False},
    "grouped-query": {"self_attention": partial(GroupedQueryAttention, n_kv_heads=2)},
    "multi-query": {"self_attention": partial(GroupedQueryAttention, n_kv_heads=1)},
    "all": {
        "norm": RMSNorm,
        "feed_forward": GatedFeedForward.as_large_as,
        "self_attention": ROTARY_GROUPED,
        "positions": False,
    },
}
DIALS = [
    pytest.param(order, parts, id=f"{order}-{name}") for order, (name, parts) in product(("post", "pre"), PARTS.items())
]
each_dial = pytest.mark.parametrize(("order", "parts"), DIALS)


def sizes(order: str = "post", **changes) -> TransformerConfig:
    return TransformerConfig(
        20, 20, **{"d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 32, "norm_order": order, **changes}
    )


def build(order: str, parts: dict, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return build_transformer(sizes(order), **parts).double().eval()


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 20, (rows, length), generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------ the exchange


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False}, {"positions": "learned"}, {"d_k": 3, "d_v": 5}])
def test_with_the_papers_parts_it_is_the_papers_model(order, changes):
    config = sizes(order, **changes)
    torch.manual_seed(3)
    paper = Transformer(config)
    after = torch.rand(3)
    torch.manual_seed(3)
    ours = build_transformer(config)
    assert torch.equal(torch.rand(3), after)  # no random number more, none less
    assert list(ours.state_dict()) == list(paper.state_dict())
    for a, b in zip(ours.state_dict().values(), paper.state_dict().values()):
        assert torch.equal(a, b)
    src, tgt = tokens(2, 5), tokens(2, 4, 1)
    for mode in (True, False):
        torch.manual_seed(4)
        expected = paper.train(mode)(src, tgt)
        torch.manual_seed(4)
        assert torch.equal(ours.train(mode)(src, tgt), expected)


@pytest.mark.parametrize("name", [name for name in PARTS if name != "the paper's"])
def test_what_is_not_exchanged_keeps_its_weights(name):
    parts, ours, paper = PARTS[name], build("post", PARTS[name]), build("post", {})
    replaced = {"feed_forward": ".feed_forward.", "self_attention": ".self_attention."}
    gone = tuple(replaced[part] for part in parts if part in replaced)
    kept = [key for key in paper.state_dict() if not any(part in key for part in gone)]
    kept = [key for key in kept if "norm" not in parts or ".norm." not in key]
    assert any("memory_attention." in key for key in kept) and "embedding.weight" in kept
    for key in kept:
        assert torch.equal(ours.state_dict()[key], paper.state_dict()[key]), key
    different = {type(module) for module in ours.modules()} - {type(module) for module in paper.modules()}
    assert different, "nothing was exchanged"


def test_every_place_gets_the_new_part():
    model = build("pre", PARTS["all"])
    kinds = [type(module) for module in model.modules()]
    assert nn.LayerNorm not in kinds and PositionwiseFeedForward not in kinds
    assert kinds.count(RMSNorm) == 2 * 2 + 2 * 3 + 2  # both stacks' blocks, and the final ones
    assert kinds.count(GatedFeedForward) == kinds.count(RotaryGroupedQueryAttention) == 4
    assert kinds.count(MultiHeadAttention) == 2  # over the memory
    assert kinds.count(NoPositions) == 2
    blocks = [module for module in model.modules() if isinstance(module, ResidualBlock)]
    assert {block.norm_order for block in blocks} == {"pre"} and {block.dropout.p for block in blocks} == {0.1}


def test_new_parts_start_as_the_models_own_do():
    torch.manual_seed(0)
    model = build_transformer(
        sizes(d_model=64, d_ff=96, n_layers=1), feed_forward=GatedFeedForward, self_attention=RotaryAttention
    )
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / sum(module.weight.shape))
            assert 0.95 * bound < module.weight.abs().max() <= bound, name
            assert module.bias is None or not module.bias.any(), name


def test_layers_share_no_weights():
    model = build("pre", PARTS["all"])
    parameters = list(model.parameters())
    assert len({id(parameter) for parameter in parameters}) == len(parameters)
    first, second = (layer.feed_forward.w.weight for layer in model.encoder.layers)
    assert not torch.equal(first, second)


def test_sizes_that_the_new_attention_would_not_see():
    with pytest.raises(ValueError, match=r"d_k or d_v.*leave both None"):
        build_transformer(sizes(d_k=8), self_attention=RotaryAttention)
    build_transformer(sizes(d_k=8, d_v=8), norm=RMSNorm)


@each_dial
def test_later_targets_change_nothing(order, parts):
    model, src, tgt = build(order, parts), tokens(2, 5), tokens(2, 6, 1)
    before = model(src, tgt)
    for j in range(1, 6):
        changed = tgt.clone()
        changed[:, j] = (changed[:, j] - 3 + 1) % 17 + 3
        differs = ((model(src, changed) - before).abs() > 1e-9).any(-1).any(0)  # (m,)
        assert differs.tolist() == [i >= j for i in range(6)]


@each_dial
def test_every_target_sees_every_source_token_and_no_padding(order, parts):
    model, src, tgt = build(order, parts), tokens(2, 5), tokens(2, 4, 1)
    before = model(src, tgt)
    for j in range(5):
        changed = src.clone()
        changed[:, j] = (changed[:, j] - 3 + 1) % 17 + 3
        assert ((model(changed, tgt) - before).abs() > 1e-9).any(-1).all()
    padded = model(F.pad(src, (0, 3)), F.pad(tgt, (0, 2)))[:, :4]
    torch.testing.assert_close(padded, before, rtol=1e-9, atol=1e-9)


@each_dial
def test_the_order_of_source_words_matters(order, parts):
    model, src, tgt = build(order, parts), tokens(1, 6), tokens(1, 3, 1)
    assert (model(src.flip(1), tgt) - model(src, tgt)).abs().max() > 1e-6


def test_without_positions_the_papers_attention_reads_a_bag_of_words():
    model, src, tgt = build("post", {"positions": False}), tokens(1, 6), tokens(1, 3, 1)
    torch.testing.assert_close(model(src.flip(1), tgt), model(src, tgt), rtol=1e-9, atol=1e-9)


@each_dial
@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1), (2, 3)])
def test_decoding_with_a_cache_is_the_forward_pass(order, parts, chunks):
    model, tgt = build(order, parts), tokens(2, 5, 1)
    src = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    expected = model(src, tgt)
    mask = model.build_masks(src, tgt)[0]
    cache = model.new_cache(model.encode(src, mask), mask, max_new_tokens=5)
    steps, start = [], 0
    for size in chunks:
        steps.append(model.decode(tgt[:, start : start + size], cache=cache))
        start += size
    torch.testing.assert_close(model.output_projection(torch.cat(steps, dim=1)), expected, rtol=1e-9, atol=1e-9)
    cache.select(torch.tensor([1]))
    assert cache.layers[0].own.keys.size(0) == 1


@pytest.mark.parametrize(("name", "heads"), [("the paper's", 4), ("RoPE", 4), ("grouped-query", 2), ("multi-query", 1)])
def test_the_cache_has_the_heads_of_the_keys(name, heads):
    model = build("post", PARTS[name])
    own = model.new_cache(model.encode(tokens(3, 5)), None, max_new_tokens=7).layers[1].own
    assert own.keys.shape == own.values.shape == (3, heads, 7, 4)
    assert own.keys.dtype == torch.float64


@each_dial
def test_state_dict_round_trip(order, parts):
    model, other = build(order, parts, seed=0), build(order, parts, seed=1)
    src, tgt = tokens(2, 5), tokens(2, 4, 1)
    assert not torch.equal(model(src, tgt), other(src, tgt))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(src, tgt), other(src, tgt))


@each_dial
def test_every_weight_learns(order, parts):
    model = build(order, parts)
    F.cross_entropy(model(tokens(3, 5), tokens(3, 4, 1)).flatten(0, 1), tokens(3, 4, 2).flatten()).backward()
    # softmax does not feel what is added to all scores of a row, so biases of keys may get nothing
    silent = [name for name, p in model.named_parameters() if not p.grad.any() and not name.endswith("w_k.bias")]
    assert not silent


# ------------------------------------------------------------------------------------------------------------ pre-norm


def test_the_stream_of_a_deep_model():
    """Pre-norm grows with every part of the depth, and post-norm keeps variance 1."""
    streams = {}
    for order in ("post", "pre"):
        torch.manual_seed(0)
        model = build_transformer(sizes(order, d_model=32, n_layers=24, dropout=0.0)).eval()
        streams[order] = xs = []
        for block in model.encoder.modules():
            if isinstance(block, ResidualBlock):
                block.register_forward_hook(lambda block, given, x, xs=xs: xs.append(x.var(correction=0).item()))
        with torch.inference_mode():
            model.encode(tokens(4, 12))
    assert len(streams["post"]) == len(streams["pre"]) == 48
    assert all(abs(variance - 1) < 0.01 for variance in streams["post"])
    assert streams["pre"][-1] > 1.5 * streams["pre"][23] > 2 * streams["pre"][5]


# ------------------------------------------------------------------------------------------------------------- RMSNorm


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=4),
    st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4),
    st.sampled_from([0.0, 1e-6, 1e-2]),
)
@settings(max_examples=60, deadline=None)
def test_rms_norm_by_hand(x, gain, eps):
    norm = RMSNorm(4, eps).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(gain, dtype=torch.float64))
    root = math.sqrt(sum(value * value for value in x) / 4 + eps)
    if root < 1e-12:
        return
    expected = [g * value / root for g, value in zip(gain, x)]
    assert norm(torch.tensor(x, dtype=torch.float64)).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_rms_norm_is_torchs(dtype, tolerance):
    torch.manual_seed(0)
    ours, theirs = RMSNorm(24, 1e-3), nn.RMSNorm(24, 1e-3)
    with torch.no_grad():
        ours.weight.normal_()
    theirs.load_state_dict(ours.state_dict())
    ours, theirs = ours.to(dtype), theirs.to(dtype)
    x, y = (
        torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_() for _ in range(2)
    )
    got, expected = ours(x), theirs(y)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    got.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=10 * tolerance, atol=10 * tolerance)


def test_rms_norm_is_layer_norm_of_centred_vectors():
    x = torch.randn(6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    centred = x - x.mean(-1, keepdim=True)
    rms, layer = RMSNorm(16).double(), nn.LayerNorm(16).double()
    torch.testing.assert_close(rms(centred), layer(x))
    assert (rms(x + 3) - rms(x)).abs().max() > 0.1
    torch.testing.assert_close(layer(x + 3), layer(x))


def test_rms_norm_in_half_precision_does_not_overflow():
    x = torch.tensor([[300.0, -400.0, 0.0, 500.0]])  # 500² is more than float16 can hold
    got = RMSNorm(4).half()(x.half())
    assert got.dtype == torch.float16 and torch.isfinite(got).all()
    torch.testing.assert_close(got.float(), RMSNorm(4)(x), rtol=2e-3, atol=2e-3)


def test_rms_norm_of_nothing_is_nothing():
    assert RMSNorm(4)(torch.zeros(2, 4)).tolist() == [[0.0] * 4] * 2


def test_rms_norm_has_half_of_the_parameters():
    assert 2 * count_parameters(RMSNorm(32)) == count_parameters(nn.LayerNorm(32)) == 64


def test_rms_norm_refuses():
    with pytest.raises(TypeError, match=r"int64.*not token ids"):
        RMSNorm(4)(torch.ones(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(2, 1\); its last size must be d_model=4"):
        RMSNorm(4)(torch.ones(2, 1))


# ----------------------------------------------------------------------------------------------- the gated feed-forward


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_gated_network_by_hand(seed):
    torch.manual_seed(seed)
    network = GatedFeedForward(3, 5).double()
    x = torch.randn(3, dtype=torch.float64).tolist()
    w, v, out = (matrix.weight.tolist() for matrix in (network.w, network.v, network.w_2))
    dot = lambda row, vector: sum(a * b for a, b in zip(row, vector))  # noqa: E731
    swish = [dot(row, x) / (1 + math.exp(-dot(row, x))) for row in w]
    inner = [gate * dot(row, x) for gate, row in zip(swish, v)]
    expected = [dot(row, inner) for row in out]
    assert network(torch.tensor(x, dtype=torch.float64)).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_gated_network_acts_at_each_position_alone():
    torch.manual_seed(0)
    network, x = GatedFeedForward(8, 12).double(), torch.randn(2, 6, 8, dtype=torch.float64)
    out, changed = network(x), x.clone()
    changed[:, 4] += 1
    assert (network(changed) != out).any(-1).any(0).nonzero().flatten().tolist() == [4]
    order = torch.randperm(6)
    torch.testing.assert_close(network(x[:, order]), out[:, order])


@given(st.integers(1, 64).map(lambda n: 8 * n), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_two_thirds_of_the_width(d_model, ratio):
    """Short of the old count by its biases and by what rounding down leaves: less than one unit."""
    d_ff = ratio * d_model
    with torch.device("meta"):
        gated = count_parameters(GatedFeedForward.as_large_as(d_model, d_ff))
        plain = count_parameters(PositionwiseFeedForward(d_model, d_ff))
    left = 2 * d_ff % 3  # thirds of a unit
    assert plain - gated == d_ff + d_model + left * d_model
    assert 0 < (plain - gated) / plain < 0.5 / d_model + 1.5 / d_ff


def test_the_base_models_width():
    with torch.device("meta"):
        counts = [count_parameters(GatedFeedForward(512, width)) for width in (1365, 1367)]
        plain = count_parameters(PositionwiseFeedForward(512, 2048))
        assert GatedFeedForward.as_large_as(512, 2048).w.out_features == 1365
    assert plain == counts[1] == 2_099_712 and plain - counts[0] == 3_072


def test_gated_network_refuses():
    with pytest.raises(TypeError, match=r"int64.*not token ids"):
        GatedFeedForward(4, 8)(torch.ones(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(2, 1\); its last size must be d_model=4"):
        GatedFeedForward(4, 8)(torch.ones(2, 1))
    with pytest.raises(ValueError, match="d_ff is 0"):
        GatedFeedForward.as_large_as(4, 1)
