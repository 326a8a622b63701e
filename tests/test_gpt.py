"""The GPT against Hugging Face's GPT-2, under perturbation, by counting; its generation; the recorded rungs."""

import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer import GPT, GPTConfig, causal_mask, convert_gpt2_weights, count_parameters
from transformer.feed_forward import PositionwiseFeedForward
from transformer.gpt import GELUFeedForward
from transformer.layers import EncoderLayer

TINY = GPTConfig(vocab_size=11, d_model=12, n_layers=2, n_heads=3, max_len=9, dropout=0.0)


@pytest.fixture
def gpt() -> GPT:
    torch.manual_seed(0)
    return spread(GPT(TINY).double().eval())


def spread(model: GPT) -> GPT:
    """Weights large enough for sharp attention and sharp predictions, and no bias zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(TINY.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------------ against GPT-2 itself


@pytest.fixture(scope="module")
def hugging_face() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what another package says when it is imported is not ours to mend
        library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    return library


def gpt2(library: Any, **changes: Any) -> Any:
    """A small GPT-2 with random weights, biases and gains; not trained."""
    sizes = {"vocab_size": 11, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 9}
    torch.manual_seed(1)
    model = library.GPT2LMHeadModel(library.GPT2Config(**(sizes | changes), bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.double().eval()


def logits_of(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids, use_cache=False).logits


@pytest.mark.slow
def test_logits_are_those_of_gpt2(hugging_face: Any, gpt: GPT) -> None:
    theirs = gpt2(hugging_face)
    before = gpt(tokens(3, 9))
    gpt.load_state_dict(convert_gpt2_weights(theirs.state_dict()))
    ids = tokens(3, 9)
    expected = logits_of(theirs, ids)
    assert expected.std() > 1  # not a comparison of zeros
    assert torch.allclose(gpt(ids), expected, atol=1e-10)
    assert not torch.allclose(before, expected, atol=1e-1)


@pytest.mark.slow
def test_logits_with_another_inner_width_and_without_the_prefix(hugging_face: Any) -> None:
    theirs = gpt2(hugging_face, n_inner=20, n_layer=3, n_head=2)
    sizes = {"vocab_size": 11, "d_model": 12, "n_layers": 3, "n_heads": 2, "d_ff": 20, "max_len": 9}
    ours = GPT(GPTConfig(**sizes)).double().eval()
    bare = {name.removeprefix("transformer."): weight for name, weight in theirs.state_dict().items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()  # old files hold the mask
    bare["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    ours.load_state_dict(convert_gpt2_weights(bare))
    ids = tokens(2, 7)
    assert torch.allclose(ours(ids), logits_of(theirs, ids), atol=1e-10)


@pytest.mark.slow
def test_both_count_the_same_parameters(hugging_face: Any) -> None:
    with torch.device("meta"):
        theirs = hugging_face.GPT2LMHeadModel(hugging_face.GPT2Config())
        ours = GPT(GPTConfig(50_257))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == count_parameters(ours)
    # The names and shapes of all weights fit, without a number being stored.
    converted = convert_gpt2_weights({n: w for n, w in theirs.state_dict().items() if n != "lm_head.weight"})
    assert {n: w.shape for n, w in converted.items()} == {n: w.shape for n, w in ours.state_dict().items()}


def test_conversion_splits_and_transposes() -> None:
    weight, bias = torch.randn(4, 12), torch.randn(12)
    given_names = {"transformer.h.7.attn.c_attn.weight": weight, "transformer.h.7.attn.c_attn.bias": bias}
    converted = convert_gpt2_weights(given_names)
    assert sorted(converted) == sorted(
        f"blocks.layers.7.self_attention.w_{i}.{kind}" for i in "qkv" for kind in ("weight", "bias")
    )
    for i, part in zip("qkv", (slice(0, 4), slice(4, 8), slice(8, 12))):
        assert torch.equal(converted[f"blocks.layers.7.self_attention.w_{i}.weight"], weight[:, part].T)
        assert torch.equal(converted[f"blocks.layers.7.self_attention.w_{i}.bias"], bias[part])
    square = torch.randn(4, 4)  # a square matrix fits either way round: only its values tell
    assert torch.equal(
        convert_gpt2_weights({"h.0.attn.c_proj.weight": square})["blocks.layers.0.self_attention.w_o.weight"], square.T
    )


def test_conversion_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"'h\.0\.rotary\.weight' is no weight of GPT-2"):
        convert_gpt2_weights({"h.0.rotary.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="'step' is no weight"):
        convert_gpt2_weights({"step": torch.zeros(1)})
    table = torch.randn(5, 4)
    with pytest.raises(ValueError, match="one matrix for both"):
        convert_gpt2_weights({"transformer.wte.weight": table, "lm_head.weight": table + 1})
    assert list(convert_gpt2_weights({"transformer.wte.weight": table, "lm_head.weight": table})) == [
        "embedding.weight"
    ]


# ------------------------------------------------------------------------------------------------ the model


def test_equals_the_equations(gpt: GPT) -> None:
    """The whole forward pass once more, head by head, with nothing of the package."""
    ids, state = tokens(2, 7), gpt.state_dict()
    d, h = TINY.d_model, TINY.n_heads

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[name + ".weight"].T + state[name + ".bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * state[name + ".weight"] + state[name + ".bias"]

    x = state["embedding.weight"][ids] + state["positions.weight"][:7]
    hidden_later = torch.full((7, 7), float("-inf"), dtype=x.dtype).triu(1)
    for i in range(TINY.n_layers):
        block = f"blocks.layers.{i}."
        y = norm(x, block + "attention_block.norm")
        q, k, v = (linear(y, f"{block}self_attention.w_{name}") for name in "qkv")
        heads = []
        for part in range(h):
            own = slice(part * d // h, (part + 1) * d // h)
            scores = q[..., own] @ k[..., own].mT / (d // h) ** 0.5 + hidden_later
            heads.append(scores.softmax(-1) @ v[..., own])
        x = x + linear(torch.cat(heads, -1), block + "self_attention.w_o")
        y = linear(norm(x, block + "feed_forward_block.norm"), block + "feed_forward.w_1")
        y = 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
        x = x + linear(y, block + "feed_forward.w_2")
    expected = norm(x, "blocks.norm") @ state["embedding.weight"].T
    assert torch.allclose(gpt(ids), expected, atol=1e-10)


def test_no_logit_depends_on_a_later_token(gpt: GPT) -> None:
    ids = tokens(1, 9)
    logits = gpt(ids)
    for position in range(9):
        changed = ids.clone()
        changed[0, position] = (changed[0, position] + 1) % TINY.vocab_size
        moved = (gpt(changed) - logits).abs().amax(-1)[0]
        assert torch.equal(moved[:position], torch.zeros(position, dtype=moved.dtype))
        assert (moved[position:] > 1e-6).all()  # and every later one does depend on it


def test_a_batch_is_its_rows(gpt: GPT) -> None:
    ids = tokens(4, 6)
    one_by_one = torch.cat([gpt(row[None]) for row in ids])
    assert torch.allclose(gpt(ids), one_by_one, atol=1e-12)


def test_blocks_are_encoder_layers_and_nothing_else(gpt: GPT) -> None:
    layers = list(gpt.blocks.layers)
    assert [type(layer) for layer in layers] == [EncoderLayer] * 2
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    assert not torch.allclose(
        gpt.blocks(x, causal_mask(5)), gpt.blocks(x), atol=1e-3
    )  # the mask is what makes it a GPT


def test_tied_weights_are_stored_once(gpt: GPT) -> None:
    shapes = [weight.shape for weight in gpt.state_dict().values()]
    assert shapes.count(torch.Size([11, 12])) == 1
    file = io.BytesIO()
    torch.save(gpt.state_dict(), file)
    file.seek(0)
    again = GPT(TINY).double().eval()
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again(tokens(2, 5)), gpt(tokens(2, 5)))
    before = gpt(tokens(1, 3))
    with torch.no_grad():
        gpt.embedding.weight[tokens(1, 3)[0, -1]] *= 2  # reaches the output twice: by the input and by the matrix
    assert not torch.equal(gpt(tokens(1, 3))[..., :-1], before[..., :-1])


def test_the_number_of_parameters() -> None:
    with torch.device("meta"):
        assert count_parameters(GPT(GPTConfig(50_257))) == 124_439_808  # GPT-2, the smallest
        sizes = {"d_model": 1600, "n_layers": 48, "n_heads": 25}
        assert count_parameters(GPT(GPTConfig(50_257, **sizes))) == 1_557_611_200  # and the largest


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 20))
def test_the_formula_of_the_parameters(vocab: int, width: int, n: int, h: int, length: int) -> None:
    d = width * h
    f = 4 * d
    per_layer = 4 * (d * d + d) + 2 * d * f + f + d + 4 * d
    with torch.device("meta"):
        model = GPT(GPTConfig(vocab, d, n, h, max_len=length))
    assert count_parameters(model) == vocab * d + length * d + n * per_layer + 2 * d


def test_initialization_is_that_of_gpt2() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(300, d_model=576, n_layers=2, n_heads=4, max_len=64))
    deviation = 0.5 / 24
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            wanted = deviation / 2 if "w_o" in name or "w_2" in name else deviation
            assert abs(parameter.std().item() / wanted - 1) < 0.05, name
        else:
            expected = torch.ones_like(parameter) if name.endswith("norm.weight") else torch.zeros_like(parameter)
            assert torch.equal(parameter, expected), name
    assert abs(0.5 * GPTConfig(50_257).d_model ** -0.5 - 0.02) < 0.002


def test_dropout_reaches_every_dropout() -> None:
    rates = {
        m.p for m in GPT(GPTConfig(11, 12, 2, 3, max_len=9, dropout=0.3)).modules() if type(m).__name__ == "Dropout"
    }
    assert rates == {0.3}
    torch.manual_seed(0)
    model = GPT(TINY)
    assert torch.equal(model(tokens(2, 5)), model(tokens(2, 5)))  # in training, at rate 0


def test_the_feed_forward_network_is_the_papers_but_for_the_hinge() -> None:
    torch.manual_seed(0)
    ours, paper = GELUFeedForward(6, 24), PositionwiseFeedForward(6, 24)
    paper.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 6)
    assert torch.allclose(ours(x), ours.w_2(F.gelu(ours.w_1(x))), atol=1e-2)
    assert torch.allclose(ours(50 * x), paper(50 * x), atol=0.3)  # far from zero both are the same hinge
    assert not torch.allclose(ours(x), paper(x), atol=1e-2)


def test_learns_a_sequence_that_needs_attention() -> None:
    """The token after the last one seen is the first of the sequence: no table of the current token can know it."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(8, d_model=32, n_layers=2, n_heads=2, max_len=6, dropout=0.0))
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        ids = torch.randint(8, (32, 6))
        adam.zero_grad()
        F.cross_entropy(model(ids)[:, -1], ids[:, 0]).backward()
        adam.step()
    ids = torch.randint(8, (500, 6))
    assert (model(ids)[:, -1].argmax(-1) == ids[:, 0]).float().mean() > 0.95


# ------------------------------------------------------------------------------------------------ generation


def recompute(model: GPT, ids: Tensor, count: int, temperature: float, top_k: int | None, seed: int) -> Tensor:
    """Generate without a cache: the whole sequence again for every token."""
    generator = chance(seed)
    for _ in range(count):
        logits, order = model(ids)[:, -1].sort(dim=-1, descending=True)
        kept = logits[:, : top_k or TINY.vocab_size] / temperature
        drawn = torch.multinomial(kept.softmax(-1), 1, generator=generator)
        ids = torch.cat([ids, order.gather(1, drawn)], dim=1)
    return ids


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([None, 1, 3, 11]),
    st.integers(0, 1000),
)
def test_the_cache_changes_nothing(
    rows: int, n: int, count: int, temperature: float, top_k: int | None, seed: int
) -> None:
    torch.manual_seed(seed)
    model = spread(GPT(TINY).double().eval())
    ids = tokens(rows, n, seed=seed)
    got = model.generate(ids, count, temperature, top_k, chance(seed))
    assert torch.equal(got, recompute(model, ids, count, temperature, top_k, seed))


def test_generation_is_as_random_as_its_generator(gpt: GPT) -> None:
    ids = tokens(5, 2)
    assert torch.equal(gpt.generate(ids, 7, generator=chance(3)), gpt.generate(ids, 7, generator=chance(3)))
    assert not torch.equal(gpt.generate(ids, 7, generator=chance(3)), gpt.generate(ids, 7, generator=chance(4)))
    torch.manual_seed(5)
    first = gpt.generate(ids, 7)
    torch.manual_seed(5)
    assert torch.equal(gpt.generate(ids, 7), first)
    assert torch.equal(first[:, :2], ids) and first.shape == (5, 9) and first.dtype == ids.dtype


def test_one_of_one_and_the_cold_limit_are_greedy(gpt: GPT) -> None:
    ids = tokens(6, 3)
    greedy = ids
    for _ in range(6):
        greedy = torch.cat([greedy, gpt(greedy)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(gpt.generate(ids, 6, top_k=1), greedy)
    assert torch.equal(gpt.generate(ids, 6, temperature=1e-12), greedy)


def test_draws_follow_the_softmax(gpt: GPT) -> None:
    prompt = tokens(1, 3)
    for temperature, top_k in ((1.0, None), (2.0, 4)):
        logits = gpt(prompt)[0, -1] / temperature
        if top_k is not None:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
        expected = logits.softmax(-1)
        drawn = gpt.generate(prompt.expand(20_000, -1), 1, temperature, top_k, chance())[:, -1]
        share = drawn.bincount(minlength=TINY.vocab_size) / len(drawn)
        assert (share - expected).abs().max() < 0.02
        assert (share[expected == 0] == 0).all()


def test_generation_reaches_the_last_position_and_not_beyond(gpt: GPT) -> None:
    assert gpt.generate(tokens(1, 8), 1).shape == (1, 9)
    with pytest.raises(ValueError, match=r"8 tokens and 2 new ones are more than the 9 positions.*shorten"):
        gpt.generate(tokens(1, 8), 2)
    assert gpt(tokens(1, 9)).shape == (1, 9, 11)
    with pytest.raises(ValueError, match="position 9"):
        gpt(tokens(1, 10))


def test_generated_ids_can_be_trained_on(gpt: GPT) -> None:
    ids = gpt.generate(tokens(2, 3), 4)
    F.cross_entropy(gpt(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert all(parameter.grad is not None for parameter in gpt.parameters())


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0; it must be a positive integer"),
        ({"n_layers": 1.5}, "n_layers is 1.5"),
        ({"n_heads": True}, "n_heads is True"),
        ({"d_ff": 0}, "d_ff is 0"),
        ({"max_len": -1}, "max_len is -1"),
        ({"n_heads": 5}, "d_model is 12; it must be divisible by n_heads=5"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be in"),
        ({"dropout": float("nan")}, "dropout is nan"),
    ],
)
def test_impossible_sizes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPTConfig(**({"vocab_size": 11, "d_model": 12, "n_layers": 2, "n_heads": 3, "max_len": 9} | changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be above 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; it must be from 1 to vocab_size=11"),
        ({"top_k": 12}, "top_k is 12"),
        ({"ids": tokens(3)}, r"ids has shape \(3,\); expected a non-empty"),
        ({"ids": tokens(1, 0)}, r"ids has shape \(1, 0\)"),
        ({"ids": torch.tensor([[11]])}, "vocabulary has ids 0 to 10"),
    ],
)
def test_generate_refuses(gpt: GPT, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpt.generate(**({"ids": tokens(1, 2), "max_new_tokens": 1} | arguments))


def test_other_mistakes(gpt: GPT) -> None:
    with pytest.raises(ValueError, match=r"training mode.*model.eval\(\)"):
        gpt.train().generate(tokens(1, 2), 1)
    with pytest.raises(TypeError, match="token ids have dtype"):
        gpt(torch.zeros(1, 2))


# ------------------------------------------------------------------------------------------------ the recorded rungs


@pytest.fixture(scope="module")
def experiment() -> Any:
    folder = Path(__file__).resolve().parents[1] / "book" / "experiments"
    spec = importlib.util.spec_from_file_location("gpt_experiment", folder / "gpt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))  # it imports recording.py beside it
        spec.loader.exec_module(module)
    return module


def test_the_last_rung_is_a_gpt_of_one_layer(experiment: Any) -> None:
    """With its output matrix and no output bias, the shell with all parts computes what the GPT computes."""
    torch.manual_seed(0)
    rung: Any = spread(experiment.build("+ layer norm", 11).double().eval())
    ours = experiment.build("untied output", 11).double().eval()
    nn.init.zeros_(rung.head.bias)
    names = {
        "embedding": "embedding",
        "positions": "positions",
        "attention": "blocks.layers.0.self_attention",
        "feed_forward": "blocks.layers.0.feed_forward",
        "norms.0": "blocks.layers.0.attention_block.norm",
        "norms.1": "blocks.layers.0.feed_forward_block.norm",
        "norms.2": "blocks.norm",
        "head": "output",
    }
    weights = {}
    for name, weight in rung.state_dict().items():
        part = next(part for part in names if name.startswith(part + "."))
        weights[names[part] + name.removeprefix(part)] = weight
    del weights["output.bias"]
    ours.load_state_dict(weights)
    assert torch.allclose(rung(tokens(2, 9)), ours(tokens(2, 9)), atol=1e-10)


def test_every_rung_sees_what_it_should(experiment: Any) -> None:
    """The shell sees one token; with attention every rung sees the earlier ones, and no model a later one."""
    ids = tokens(1, 9)
    changed = ids.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 11
    for name in experiment.RUNGS + experiment.VARIANTS:
        torch.manual_seed(0)
        model = spread(experiment.build(name, 11).double().eval())
        moved = (model(changed) - model(ids)).abs().amax(-1)[0] > 1e-9
        expected = torch.arange(9) == 4 if name == "the shell" else torch.arange(9) >= 4
        assert torch.equal(moved, expected), name
