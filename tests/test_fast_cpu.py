"""Appendix A6: the model for a CPU computes what the model computes, and its dropout is dropout."""

import copy
import itertools
import math
import types

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import transformer.fast_cpu as module
from transformer import (
    FastDropout,
    FastTransformer,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    Translator,
    beam_search,
    embedded_corpus,
    greedy_decode,
    load_toy_translator,
    measure_peak,
    record_attention,
    sample,
    use_fast_dropout,
    use_one_dnn,
)
from transformer.data import pad
from transformer.fast_cpu import BeamCache, _Linear, _product, _together

CONFIGS = {
    "the paper's": {},
    "pre-norm": {"norm_order": "pre"},
    "learned positions": {"positions": "learned", "max_len": 30},
    "untied, narrow heads": {"tie_embeddings": False, "tgt_vocab_size": 17, "d_k": 3, "d_v": 5},
}


def lively(hidden):
    """A random model says one word for ever. A wild function of its logits makes it write, and end, at random."""
    return 4 * torch.sin(40 * hidden)


class Plain(Transformer):
    def output_projection(self, hidden):
        return lively(super().output_projection(hidden))


class Fast(FastTransformer):
    def output_projection(self, hidden):
        return lively(super().output_projection(hidden))


def models(seed=0, **changes):
    """The same random weights twice: plain and fast."""
    torch.manual_seed(seed)
    sizes = {"src_vocab_size": 24, "tgt_vocab_size": 24, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32}
    model = Transformer(TransformerConfig(**{**sizes, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no bias is 0, no gain 1
            parameter += 0.1 * torch.randn_like(parameter)
    plain = Plain(model.config).double().eval()
    plain.load_state_dict(model.state_dict())
    return plain, Fast(model)


def sources(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return pad([[*torch.randint(3, 17, (n - 1,), generator=generator).tolist(), 2] for n in lengths])


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("beam_size", [1, 2, 4, 7])
def test_a_beam_finds_the_same(changes, beam_size):
    plain, fast = models(**changes)
    src = sources([5, 1, 9, 3, 9, 2])
    expected = beam_search(plain, src, beam_size, max_new_tokens=20, n_best=beam_size)
    found = beam_search(fast, src, beam_size, max_new_tokens=20, n_best=beam_size)
    assert [[h.ids for h in best] for best in found] == [[h.ids for h in best] for best in expected]
    scores = [[h.score for best in each for h in best] for each in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)
    assert len({len(best[0].ids) for best in found}) > 2, "sentences end at different steps"


@settings(max_examples=40)
@given(st.integers(0, 999), st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 15))
def test_any_weights_lengths_beams_and_limits(seed, lengths, beam_size, limit):
    plain, fast = models(seed)
    src = sources(lengths, seed)
    ids = [[h.ids for h in best] for best in beam_search(fast, src, beam_size, max_new_tokens=limit)]
    assert ids == [[h.ids for h in best] for best in beam_search(plain, src, beam_size, max_new_tokens=limit)]
    assert greedy_decode(fast, src, limit) == greedy_decode(plain, src, limit)
    drawn = [sample(model, src, 1.3, seed=seed, max_new_tokens=limit) for model in (plain, fast)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_hidden_states_along_a_random_beam(changes):
    """Rows are dropped, repeated and exchanged at random; the plain cache says what should come out."""
    plain, fast = models(**changes)
    generator = torch.Generator().manual_seed(3)
    src, width = sources([6, 2, 4]), 1
    src_mask, _, _ = plain.build_masks(src, src)
    memory = plain.encode(src, src_mask)
    caches = [model.new_cache(memory, src_mask, 12) for model in (plain, fast)]
    live = 3
    for step in range(12):
        tokens = torch.randint(3, 17, (live * width, 1), generator=generator)
        hidden = [model.decode(tokens, cache=cache) for model, cache in zip((plain, fast), caches, strict=True)]
        torch.testing.assert_close(*hidden, rtol=0, atol=1e-10)
        assert caches[0].length == caches[1].length == step + 1
        kept = [0, 1, 2] if step < 4 else [1, 2][: live - (step > 8)] if live == 3 or step == 9 else list(range(live))
        wider = min(4, width + step % 2)
        rows = torch.cat([i * width + torch.randint(width, (wider,), generator=generator) for i in kept])
        same = len(kept) == live and wider == width
        for cache in caches:
            cache.select(rows, same_source=same)
        live, width = len(kept), wider
    assert live == 1 and width == 4


def test_a_row_of_padding_hurts_nobody():
    plain, fast = models()
    src = sources([5, 3])
    alone = beam_search(fast, src, 3, max_new_tokens=9)
    nothing = torch.cat([src, torch.zeros_like(src[:1])])
    found = beam_search(fast, nothing, 3, max_new_tokens=9)
    assert [[h.ids for h in best] for best in found[:2]] == [[h.ids for h in best] for best in alone]
    assert found[2][0].ids == beam_search(plain, nothing, 3, max_new_tokens=9)[2][0].ids


needs_one_dnn = pytest.mark.skipif(
    module._packed(torch.zeros(1, 1)) is None, reason="this PyTorch has no oneDNN, or not the way to it"
)


@pytest.fixture(params=["packed", "not packed"])
def packing(request, monkeypatch):
    """Both ways to multiply: by oneDNN with its own order of the matrix, and without, as where PyTorch lacks it."""
    if request.param == "not packed":
        monkeypatch.setattr(torch.ops, "mkldnn", types.SimpleNamespace())
    elif module._packed(torch.zeros(1, 1)) is None:
        pytest.skip("this PyTorch cannot pack a matrix")
    return request.param == "packed"


@pytest.mark.parametrize("shape", [(1,), (4,), (33,), (500,), (0,), (2, 3), (0, 3)])
def test_a_layer_computes_what_nn_linear_computes(packing, shape):
    torch.manual_seed(sum(shape))
    first, second, x = nn.Linear(24, 40), nn.Linear(24, 7), torch.randn(*shape, 24)
    both, alone = _together(first, second), _Linear(first.weight.detach())
    assert [part.multiply for part in (both, alone)] == [module._one_dnn if packing else F.linear] * 2
    torch.testing.assert_close(both(x), torch.cat([first(x), second(x)], dim=-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone(x), x @ first.weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_the_same_in_float32(packing, changes):
    """Every kind of model, with its matrices packed: logits of steps whose rows are exchanged in between."""
    model = Transformer(models(**changes)[0].config).eval()
    fast, generator = FastTransformer(model), torch.Generator().manual_seed(4)
    src = sources([6, 2, 4])
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    with torch.inference_mode():
        src_mask, _, _ = model.build_masks(src, src)
        memory = model.encode(src, src_mask)
        caches = [each.new_cache(memory, src_mask, 9) for each in (model, fast)]
        for step in range(9):
            tokens = torch.randint(3, 17, (3 if step == 0 else 6, 1), generator=generator)
            both = zip((model, fast), caches, strict=True)
            logits = [each.output_projection(each.decode(tokens, cache=cache)) for each, cache in both]
            torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
            for cache in caches:
                cache.select(rows if step == 0 else torch.tensor([1, 0, 2, 2, 5, 4]), same_source=step > 0)


def test_a_gradient_is_refused_and_not_lost(packing):
    fast = FastTransformer(Transformer(models()[0].config).eval())
    src = sources([5, 3])
    with pytest.raises(ValueError, match=r"makes no gradients; use the model, or torch\.inference_mode"):
        fast(src, src)
    with torch.no_grad():
        assert fast(src, src).shape == (2, 5, 24)


def test_only_float32_is_packed():
    layer = nn.Linear(8, 16).double()
    made, x = _together(layer), torch.randn(3, 8, dtype=torch.float64)
    assert made.multiply is F.linear
    torch.testing.assert_close(made(x), layer(x), rtol=0, atol=1e-14)


def test_a_copy_decodes_as_the_model(packing):
    fast = FastTransformer(Transformer(models()[0].config).eval())
    src = sources([5, 3])
    assert greedy_decode(copy.deepcopy(fast), src, 9) == greedy_decode(fast, src, 9)


def test_the_translations_of_the_trained_model_are_the_same(packing):
    plain = load_toy_translator()
    fast = Translator(FastTransformer(plain.model), plain.tokenizer)
    lines = [pair.source for split in ("test", "long") for pair in itertools.islice(embedded_corpus(split), 60)]
    lines[5:5] = ["", "  ", "x" * 30]
    for beam_size in (1, 4):
        assert fast.translate(lines, beam_size=beam_size) == plain.translate(lines, beam_size=beam_size)
    for ours, theirs in zip(fast.n_best(lines[:20], 4), plain.n_best(lines[:20], 4), strict=True):
        assert [text for text, _ in ours] == [text for text, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)


def test_what_it_shares_with_the_model_and_what_it_does_not():
    model = Transformer(TransformerConfig.tiny(40)).eval()
    fast = FastTransformer(model)
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters(), strict=True))
    assert fast.state_dict().keys() == model.state_dict().keys()
    src = sources([4, 3])
    with torch.inference_mode():
        torch.testing.assert_close(fast(src, src), model(src, src), rtol=1e-4, atol=1e-5)
    assert not [name for name in model.state_dict() if name.startswith("_")]


@torch.no_grad()
def test_a_wrong_slot_would_be_seen():
    """The tests above can fail: with a past that forgets to hide, the hidden states differ."""
    plain, fast = models()
    src = sources([5])
    cache = fast.new_cache(fast.encode(src), None, 5)
    other = plain.new_cache(plain.encode(src), None, 5)
    for tokens in ([[1]], [[5], [6]]):
        ids = torch.tensor(tokens)
        hidden = fast.decode(ids, cache=cache), plain.decode(ids, cache=other)
        torch.testing.assert_close(*hidden, rtol=0, atol=1e-10)
        for each in (cache, other):
            each.select(torch.tensor([0, 0] if len(ids) == 1 else [1, 0]))
    assert (cache.past == -torch.inf).any()
    cache.past.zero_()
    hidden = fast.decode(ids, cache=cache), plain.decode(ids, cache=other)
    assert not torch.allclose(*hidden, rtol=0, atol=1e-3)


@torch.no_grad()
def test_a_beam_may_narrow_to_one():
    """The slots of those that were dropped are still there, and must stay hidden."""
    plain, fast = models()
    src = sources([5, 5])
    caches = [model.new_cache(model.encode(src), None, 9) for model in (plain, fast)]
    rows = [0, 1]
    for following in ([0, 0, 0, 1, 1, 1], [2, 4], [0, 1], [0, 0, 1, 1], [1, 0, 2, 3], [1, 3], [0, 1]):
        tokens = torch.arange(3, 3 + len(rows))[:, None]
        hidden = [model.decode(tokens, cache=cache) for model, cache in zip((plain, fast), caches, strict=True)]
        torch.testing.assert_close(*hidden, rtol=0, atol=1e-10)
        for cache in caches:
            cache.select(torch.tensor(following))
        rows = following


@torch.no_grad()
def test_nothing_is_moved_while_no_sentence_leaves():
    _, fast = models()
    src = sources([5, 6])
    cache = fast.new_cache(fast.encode(src), None, 50)
    for width in (1, 3, 3):
        fast.decode(torch.full((2 * width, 1), 5), cache=cache)
        before = [(layer.own.keys.data_ptr(), layer.memory_keys.data_ptr()) for layer in cache.layers]
        cache.select(torch.tensor([0, 0, 0, width, width, width]))
        assert before == [(layer.own.keys.data_ptr(), layer.memory_keys.data_ptr()) for layer in cache.layers]


# ---------------------------------------------------------------------------------------------------- bad input


class OtherAttention(MultiHeadAttention):
    pass


def swapped():
    model = Transformer(TransformerConfig.tiny(40)).eval()
    model.decoder.layers[0].self_attention = OtherAttention(model.config.d_model, model.config.n_heads)
    return model


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Transformer(TransformerConfig.tiny(40)), ValueError, r"training mode.*eval\(\)"),
        (lambda: Transformer(TransformerConfig.tiny(40)).eval().to("meta"), ValueError, "on meta.*to the CPU"),
        (swapped, TypeError, "parts other than the paper's"),
        (lambda: Plain(TransformerConfig.tiny(40)).eval(), TypeError, "a Plain may.*plain Transformer"),
    ],
)
def test_models_it_would_not_compute(make, error, words):
    with pytest.raises(error, match=words):
        FastTransformer(make())


def test_weights_of_attention_are_not_made():
    model = Transformer(TransformerConfig.tiny(40)).eval()
    fast = FastTransformer(model)
    with record_attention(model), pytest.raises(ValueError, match="record those of the model"):
        greedy_decode(fast, sources([4]))
    assert greedy_decode(fast, sources([4]), 3)


def test_wrong_calls_are_named():
    _, fast = models()
    src = sources([4, 4])
    cache = fast.new_cache(fast.encode(src), None, 5)
    assert isinstance(cache, BeamCache)
    with pytest.raises(ValueError, match=r"tgt_in is \(2, 2\).*one id a row"):
        fast.decode(src[:, :2], cache=cache)
    with pytest.raises(ValueError, match=r"tgt_in is \(3, 1\)"):
        fast.decode(torch.ones(3, 1, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="not both or neither"):
        fast.decode(src)
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        fast.new_cache(fast.encode(src), None, 0)
    for rows in ([0, 0, 1], [0, 1, 0], []):
        with pytest.raises(ValueError, match="as many hypotheses of every sentence"):
            cache.select(torch.tensor(rows, dtype=torch.int64))
    with pytest.raises(ValueError, match="training mode"):
        greedy_decode(fast.train(), src)


# ---------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.999])
def test_dropout_drops_at_its_rate(p):
    torch.manual_seed(0)
    n = 400_000
    y = FastDropout(p)(torch.full((n,), 3.0))
    kept = y != 0
    assert abs(kept.double().mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)
    assert abs(y.double().mean() - 3) < 5 * 3 * math.sqrt(p / (1 - p) / n)
    assert len(y[kept].unique()) == 1


def test_neighbours_are_dropped_independently():
    """Pairs of places within a draw and beyond it: all correlations within five standard deviations of 0."""
    torch.manual_seed(0)
    gone = (FastDropout(0.3)(torch.ones(2**16, 12)) == 0).double()
    correlation = torch.corrcoef(gone.T).fill_diagonal_(0)
    assert correlation.abs().max() < 5 / math.sqrt(2**16)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_dropout_keeps_shape_and_type(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    y = FastDropout(0.25)(x)
    assert y.shape == x.shape and y.dtype == dtype
    assert set(y.flatten().tolist()) <= {0.0, float(torch.tensor(4 / 3, dtype=dtype))}


def test_dropout_at_its_ends_and_in_evaluation():
    x = torch.randn(7, 5)
    assert torch.equal(FastDropout(0.0)(x), x) and torch.equal(FastDropout(0.5).eval()(x), x)
    assert torch.equal(FastDropout(1.0)(x), torch.zeros_like(x))


def test_the_gradient_passes_where_the_number_did():
    x = torch.randn(50, 3, requires_grad=True)
    y = FastDropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, (y != 0) * 2.0)


def test_every_dropout_of_a_model_is_replaced():
    model = Transformer(TransformerConfig.tiny(40, dropout=0.5))
    model.encoder.layers[0].eval()
    before = {name: (part.p, part.training) for name, part in model.named_modules() if isinstance(part, nn.Dropout)}
    use_fast_dropout(model)
    after = {name: part for name, part in model.named_modules() if isinstance(part, nn.Dropout)}
    assert {name: (part.p, part.training) for name, part in after.items()} == before
    assert {type(part) for part in after.values()} == {FastDropout} and len(before) > 10
    src = sources([4, 3])
    torch.manual_seed(0)
    first = model(src, src)
    torch.manual_seed(0)
    assert torch.equal(model(src, src), first) and not torch.equal(model(src, src), first)
    plain = Transformer(model.config)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(src, src), plain.eval()(src, src), rtol=0, atol=0)


# ---- products in training ----


@needs_one_dnn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (300,), (4, 6), (2, 3, 5), (4, 1)])
def test_gradients_are_those_of_nn_linear(shape, bias):
    torch.manual_seed(len(shape))
    layer, x = nn.Linear(24, 40, bias=bias), torch.randn(*shape, 24, requires_grad=True)
    parts, grad = [x, layer.weight, *([layer.bias] if bias else [])], torch.randn(*shape, 40)
    found, expected = (torch.autograd.grad(y, parts, grad) for y in (_product(*parts), layer(x)))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@needs_one_dnn
def test_gradients_of_what_does_not_lie_in_order():
    """Of an input and of a gradient that are views; and nothing for a matrix that is not trained."""
    layer, x = nn.Linear(6, 5), torch.randn(6, 9, 4, requires_grad=True)
    layer.weight.requires_grad_(False)
    grad = torch.randn(5, 9, 4)
    one, two = (torch.autograd.grad(y, (x, layer.bias), grad.transpose(0, 2)) for y in
                (_product(x.transpose(0, 2), layer.weight, layer.bias), layer(x.transpose(0, 2))))  # fmt: skip
    for ours, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@needs_one_dnn
def test_a_second_derivative_is_refused_and_not_wrong():
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    (first,) = torch.autograd.grad(_product(x, weight).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


@needs_one_dnn
def test_other_types_are_pytorchs_own():
    layer, x = nn.Linear(6, 5), torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert _product(x, layer.weight, layer.bias).equal(layer(x))
        assert _product(x, layer.weight, layer.bias).dtype == torch.bfloat16
    layer, x = layer.double(), x.double()
    assert _product(x, layer.weight, layer.bias).equal(layer(x))


def losses(model, steps=4):
    """Of a few updates. The second is that of what the first one learnt, and so on."""
    torch.manual_seed(1)
    src, tgt = sources([5, 3, 7]), sources([6, 2, 4], seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for _ in range(steps):
        loss = F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@needs_one_dnn
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_learns_the_same(monkeypatch, tied):
    monkeypatch.setattr(module, "_on_amd", lambda: True)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "dropout": 0.0}
    plain = Transformer(TransformerConfig(24, 24, **sizes, tie_embeddings=tied))
    quick = copy.deepcopy(plain)
    use_one_dnn(quick)
    twins = [part for part in quick.modules() if type(part) in (module._OneDnnLinear, module._OneDnnEmbedding)]
    assert len(twins) == sum(isinstance(part, nn.Linear | module.TokenEmbedding) for part in plain.modules())
    assert list(quick.state_dict()) == list(plain.state_dict())
    expected, found = losses(plain), losses(quick)
    assert found == pytest.approx(expected, rel=1e-4) and expected[-1] < expected[0] - 0.3


def test_only_where_it_gains(monkeypatch):
    """Another maker's processor, or a PyTorch that lacks the way: the model stays as it is."""
    model = nn.Sequential(nn.Linear(3, 3))
    monkeypatch.setattr(module, "_on_amd", lambda: False)
    assert use_one_dnn(model) is torch.mm and type(model[0]) is nn.Linear
    monkeypatch.setattr(module, "_on_amd", lambda: True)
    monkeypatch.setattr(torch.ops, "mkldnn", types.SimpleNamespace())
    assert use_one_dnn(model) is torch.mm and type(model[0]) is nn.Linear


@needs_one_dnn
def test_the_peak_is_that_of_what_multiplies(monkeypatch):
    monkeypatch.setattr(module, "_on_amd", lambda: True)
    multiply, (a, b) = use_one_dnn(nn.Sequential(nn.Linear(3, 3))), (torch.randn(5, 7), torch.randn(7, 4))
    torch.testing.assert_close(multiply(a, b), a @ b, rtol=1e-4, atol=1e-5)
    calls = []
    assert measure_peak("cpu", seconds=0.02, multiply=lambda *them: calls.append(1) or multiply(*them)) > 1e6
    assert calls


@needs_one_dnn
@pytest.mark.parametrize("width", [15, 17])
def test_a_wrong_width_is_told_as_before(monkeypatch, width):
    monkeypatch.setattr(module, "_on_amd", lambda: True)
    model = Transformer(models()[0].config)
    use_one_dnn(model)
    with pytest.raises(ValueError, match="their last dimension must be 16"):
        model.output_projection(torch.randn(2, 3, width))


@pytest.mark.parametrize(("text", "amd"), [("vendor_id : AuthenticAMD", True), ("vendor_id : GenuineIntel", False)])
def test_whose_processor_it_is(monkeypatch, tmp_path, text, amd):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "cpuinfo")
    assert module._on_amd() == amd
    (tmp_path / "cpuinfo").unlink()  # as on other systems
    monkeypatch.setattr(module.platform, "processor", lambda: f"AMD64 Family 25 Model 33 Stepping 2, {text}")
    assert module._on_amd() == amd
