"""The Transformer in NumPy: held against torch and finite differences, and, with that, a judge of the torch model.

It shares no line with the torch model. Where the two agree on logits and on every gradient, an error would have to be
made twice, in two ways of writing it.
"""

import ast
import copy
import itertools
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_imports import code_lines

import transformer
from transformer import (
    LabelSmoothingLoss,
    NumpyTransformer,
    Transformer,
    TransformerConfig,
    embedded_corpus,
    greedy_decode,
    load_toy_translator,
    make_batch,
    sinusoids,
)

PAD, BOS, EOS = 0, 1, 2
SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 2, "dropout": 0.0}
Ids = np.ndarray


def in_double(model: Transformer) -> Transformer:
    """A copy in float64, sinusoids included: the model keeps its table of them in float32."""
    model = copy.deepcopy(model).double()
    for positions in (model.src_positions, model.tgt_positions):
        positions.table = sinusoids(256, model.config.d_model)
    return model


def random_model(vocab_size: int = 11, seed: int = 0, **changes: object) -> Transformer:
    """A torch model in float64 whose biases and norms are not 0 and 1, which would hide a confusion."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocab_size, vocab_size, **{**SIZES, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return in_double(model).eval()


def in_numpy(model: Transformer) -> NumpyTransformer:
    """The same weights without torch."""
    config = model.config
    return NumpyTransformer(weights_of(model), config.n_heads, config.pad_id, config.bos_id, config.eos_id)


def weights_of(model: Transformer) -> dict[str, np.ndarray]:
    """The state dict as arrays."""
    return {name: weight.numpy().copy() for name, weight in model.state_dict().items()}


def random_batch(lengths: list[tuple[int, int]], vocab_size: int = 11, seed: int = 0) -> tuple[Ids, Ids, Ids]:
    """Random ids: src, tgt_in and tgt_out, padded on the right."""
    rng = np.random.default_rng(seed)
    n, m = (max(sizes) for sizes in zip(*lengths, strict=True))
    src, tgt_in, tgt_out = (np.full((len(lengths), size), PAD) for size in (n, m, m))
    for row, (source, target) in enumerate(lengths):
        src[row, :source] = rng.integers(3, vocab_size, source)
        sentence = rng.integers(3, vocab_size, target)
        tgt_in[row, :target] = [BOS, *sentence[:-1]]
        tgt_out[row, :target] = [*sentence[:-1], EOS]
    return src, tgt_in, tgt_out


def by_torch(
    model: Transformer, src: Ids, tgt_in: Ids, tgt_out: Ids, label_smoothing: float = 0.1
) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
    """Logits, loss and gradients by torch."""
    model.zero_grad()
    logits = model(torch.from_numpy(src), torch.from_numpy(tgt_in))
    loss = LabelSmoothingLoss(label_smoothing, model.config.pad_id)(logits, torch.from_numpy(tgt_out))
    loss.backward()
    gradients = {name: weight.grad.numpy().copy() for name, weight in model.named_parameters()}
    return logits.detach().numpy(), loss.item(), gradients


def assert_agree(model: Transformer, batch: tuple[Ids, Ids, Ids], label_smoothing: float = 0.1) -> None:
    """Logits at every position, padded ones too, the loss, and the gradient of every weight."""
    logits, loss, gradients = by_torch(model, *batch, label_smoothing)
    ours = in_numpy(model)
    np.testing.assert_allclose(ours.logits(*batch[:2]), logits, rtol=0, atol=1e-10)
    our_loss, our_gradients = ours.loss_and_gradients(*batch, label_smoothing)
    assert our_loss == pytest.approx(loss, abs=1e-10)
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(our_gradients[name], gradient, rtol=0, atol=1e-10, err_msg=name)


@pytest.fixture(scope="module")
def corpus_batch() -> tuple[Ids, Ids, Ids]:
    """Twelve sentences of the embedded corpus, of different lengths."""
    tokenizer = load_toy_translator().tokenizer
    pairs = itertools.islice(embedded_corpus("test", seed=3), 12)
    batch = make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs])
    return batch.src.numpy(), batch.tgt_in.numpy(), batch.tgt_out.numpy()


# --------------------------------------------------------------------------------------------------- what it is made of


def test_numpy_alone_and_short() -> None:
    source = Path(transformer.__file__).with_name("numpy_reference.py").read_text(encoding="utf-8")
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert found == {"numpy", "typing"}
    assert code_lines(source) <= 320  # the chapter says a few hundred


# -------------------------------------------------------------------------------------------------------- against torch


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_heads": 1},
        {"n_heads": 8},
        {"n_layers": 1},
        {"n_heads": 3, "d_k": 2, "d_v": 5},
        {"d_ff": 1},
        {"d_model": 2, "n_heads": 1},
        {"pad_id": 5, "bos_id": 0, "eos_id": 7},
    ],
    ids=str,
)
def test_logits_and_gradients_are_torchs(changes: dict) -> None:
    model = random_model(**changes)
    batch = random_batch([(7, 3), (2, 6), (5, 6), (1, 1)])
    special = [model.config.pad_id, model.config.bos_id, model.config.eos_id]
    order = np.array([*special, *(i for i in range(11) if i not in special)])  # 0, 1, 2 become the special ids
    assert_agree(model, tuple(order[ids] for ids in batch))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.9])
def test_other_smoothings_are_torchs(label_smoothing: float) -> None:
    assert_agree(random_model(), random_batch([(7, 3), (2, 6)]), label_smoothing)


@settings(max_examples=10)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4),
    n_layers=st.integers(1, 2),
    n_heads=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 2),
    vocab_size=st.integers(4, 9),
    label_smoothing=st.sampled_from([0.0, 0.1, 0.6]),
    seed=st.integers(0, 99),
)
def test_agrees_with_torch_at_any_size(
    lengths: list, n_layers: int, n_heads: int, width: int, vocab_size: int, label_smoothing: float, seed: int
) -> None:
    model = random_model(vocab_size, seed, n_layers=n_layers, n_heads=n_heads, d_model=4 * width)
    assert_agree(model, random_batch(lengths, vocab_size, seed), label_smoothing)


def test_shipped_model_agrees_with_torch(corpus_batch: tuple[Ids, Ids, Ids]) -> None:
    assert_agree(in_double(load_toy_translator().model), corpus_batch)


def test_order_of_the_names_does_not_matter() -> None:
    model = random_model(n_layers=11, d_model=2, n_heads=1)  # sorted as text, layer 10 comes before layer 2
    batch = random_batch([(3, 2)])
    weights = weights_of(model)
    shuffled = NumpyTransformer({name: weights[name] for name in sorted(weights, reverse=True)}, n_heads=1)
    np.testing.assert_allclose(shuffled.logits(*batch[:2]), by_torch(model, *batch)[0], rtol=0, atol=1e-9)


def test_tied_gradient_is_the_sum_of_three() -> None:
    tied = random_model()
    untied = in_double(Transformer(TransformerConfig(11, 11, **SIZES, tie_embeddings=False)))
    shared = tied.embedding.weight.detach()
    untied.load_state_dict({**tied.state_dict(), "tgt_embedding.weight": shared, "output.weight": shared})
    batch = random_batch([(7, 3), (2, 6)])
    apart = by_torch(untied, *batch)[2]
    _, gradients = in_numpy(tied).loss_and_gradients(*batch)
    places = [apart[name] for name in ("embedding.weight", "tgt_embedding.weight", "output.weight")]
    assert all(np.abs(place).max() > 1e-3 for place in places)
    np.testing.assert_allclose(gradients["embedding.weight"], sum(places), rtol=0, atol=1e-10)


def test_a_relu_at_exactly_zero_is_torchs() -> None:
    model = random_model()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".w_1." in name:
                weight[::2] = 0  # every second inner number is 0 at every position
    batch = random_batch([(7, 3), (2, 6)])
    assert_agree(model, batch)
    _, gradients = in_numpy(model).loss_and_gradients(*batch)
    for name, gradient in gradients.items():
        if ".w_1." in name:
            assert (gradient[::2] == 0).all() and (gradient[1::2] != 0).any()


def test_biases_of_keys_have_no_effect_and_no_gradient() -> None:
    weights, batch = weights_of(random_model()), random_batch([(7, 3), (2, 6)])
    model = NumpyTransformer(weights, n_heads=2)
    before, (_, gradients) = model.logits(*batch[:2]), model.loss_and_gradients(*batch)
    for name, gradient in gradients.items():
        assert (np.abs(gradient).max() < 1e-12) == name.endswith(".w_k.bias"), name
    moved = {name: weight + 1 if name.endswith(".w_k.bias") else weight for name, weight in weights.items()}
    after = NumpyTransformer(moved, n_heads=2).logits(*batch[:2])
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------- a judge of the torch model


def test_cached_decoding_says_what_numpy_says() -> None:
    model = random_model()
    src, tgt_in, _ = (torch.from_numpy(ids) for ids in random_batch([(7, 6), (4, 6)]))
    expected = in_numpy(model).logits(src.numpy(), tgt_in.numpy())
    src_mask, *_ = model.build_masks(src, tgt_in)
    with torch.inference_mode():
        cache = model.new_cache(model.encode(src, src_mask), src_mask, max_new_tokens=6)
        for step in range(6):
            logits = model.output_projection(model.decode(tgt_in[:, step : step + 1], cache=cache))
            np.testing.assert_allclose(logits[:, 0].numpy(), expected[:, step], rtol=0, atol=1e-10)


def test_dense_masks_say_what_numpy_says() -> None:
    model = random_model()
    src, tgt_in, _ = (torch.from_numpy(ids) for ids in random_batch([(7, 3), (4, 6)]))
    src_mask, tgt_mask, memory_mask = model.build_masks(src, tgt_in)
    with torch.inference_mode():
        logits = model.output_projection(model.decode(tgt_in, model.encode(src, src_mask), tgt_mask, memory_mask))
    expected, real = in_numpy(model).logits(src.numpy(), tgt_in.numpy()), (tgt_in != PAD).numpy()
    np.testing.assert_allclose(logits.numpy()[real], expected[real], rtol=0, atol=1e-10)


def test_float32_is_as_near_as_float32_can_be(corpus_batch: tuple[Ids, Ids, Ids]) -> None:
    model, (src, tgt_in, _) = load_toy_translator().model, corpus_batch
    with torch.inference_mode():
        logits = model(torch.from_numpy(src), torch.from_numpy(tgt_in)).numpy()
    np.testing.assert_allclose(logits, in_numpy(model).logits(src, tgt_in), rtol=0, atol=1e-3)


# ------------------------------------------------------------------------------------------- against finite differences


def test_every_derivative_by_finite_differences() -> None:
    torch_model = random_model(6, n_layers=1, d_model=4, d_ff=3)
    model, names = in_numpy(torch_model), list(torch_model.state_dict())
    batch = random_batch([(3, 2), (1, 3)], vocab_size=6)
    _, gradients = model.loss_and_gradients(*batch, label_smoothing=0.1)
    assert sorted(gradients) == sorted(names) and len(names) == 43

    def loss() -> float:
        logits, tgt_out = model.logits(*batch[:2]), batch[2]
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        q = np.where(np.arange(6) == tgt_out[..., None], 0.9, 0.1 / 5)
        return float(-(q * log_p).sum(axis=-1)[tgt_out != PAD].mean())

    step = 1e-6
    for name in names:
        weight = reduce(getitem, name.split("."), model.weights)
        assert weight.shape == gradients[name].shape
        for index in np.ndindex(weight.shape):
            value, losses = weight[index], []
            for sign in (1, -1):
                weight[index] = value + sign * step
                losses.append(loss())
            weight[index] = value
            moved = (losses[0] - losses[1]) / (2 * step)
            assert gradients[name][index] == pytest.approx(moved, rel=1e-5, abs=1e-8), (name, index)


# -------------------------------------------------------------------------------------- perturbation: what can see what


def test_later_target_tokens_change_nothing_before_them() -> None:
    model = in_numpy(random_model())
    src, tgt_in, _ = random_batch([(5, 6), (3, 6)])
    before = model.logits(src, tgt_in)
    for j in range(6):
        changed = tgt_in.copy()
        changed[:, j] = (changed[:, j] + 1) % 11
        moved = np.abs(model.logits(src, changed) - before).max(axis=(0, 2)) > 1e-9
        assert moved.tolist() == [i >= j for i in range(6)]


def test_every_source_token_is_seen_by_every_target_position() -> None:
    model = in_numpy(random_model())
    src, tgt_in, _ = random_batch([(5, 4)])
    before = model.logits(src, tgt_in)
    for j in range(5):
        changed = src.copy()
        changed[:, j] = 3 + (changed[:, j] - 2) % 8
        assert (np.abs(model.logits(changed, tgt_in) - before).max(axis=2) > 1e-9).all()


def test_padding_changes_no_logit_no_loss_and_no_gradient() -> None:
    model, batch = in_numpy(random_model()), random_batch([(5, 4), (2, 6)])
    wider = tuple(np.pad(ids, ((0, 0), (0, 3)), constant_values=PAD) for ids in batch)
    np.testing.assert_allclose(model.logits(*wider[:2])[:, :6], model.logits(*batch[:2]), rtol=0, atol=1e-12)
    (loss, gradients), (same_loss, same) = model.loss_and_gradients(*batch), model.loss_and_gradients(*wider)
    assert same_loss == pytest.approx(loss, abs=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(same[name], gradient, rtol=0, atol=1e-12, err_msg=name)


def test_sentences_of_a_batch_do_not_meet() -> None:
    model, (src, tgt_in, _) = in_numpy(random_model()), random_batch([(5, 4), (2, 6), (7, 1)])
    together = model.logits(src, tgt_in)
    for row, (n, m) in enumerate([(5, 4), (2, 6), (7, 1)]):
        alone = model.logits(src[row : row + 1, :n], tgt_in[row : row + 1, :m])
        np.testing.assert_allclose(alone[0], together[row, :m], rtol=0, atol=1e-12)


def test_a_source_of_padding_alone_gives_numbers() -> None:
    model = random_model()
    src, tgt_in, tgt_out = random_batch([(5, 4), (2, 3)])
    src[1] = PAD
    assert_agree(model, (src, tgt_in, tgt_out))
    loss, gradients = in_numpy(model).loss_and_gradients(src, tgt_in, tgt_out)
    assert np.isfinite(loss) and all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_nothing_to_say_gives_no_loss_and_no_gradient() -> None:
    src, tgt_in, tgt_out = random_batch([(5, 4)])
    loss, gradients = in_numpy(random_model()).loss_and_gradients(src, tgt_in, np.full_like(tgt_out, PAD))
    assert loss == 0 and all((gradient == 0).all() for gradient in gradients.values())


def test_large_weights_do_not_overflow() -> None:
    weights = weights_of(random_model())
    weights["embedding.weight"] *= 1e3
    for name in weights:
        if ".w_q." in name or ".w_k." in name:
            weights[name] *= 1e3
    with np.errstate(all="raise", under="ignore"):
        loss, gradients = NumpyTransformer(weights, n_heads=2).loss_and_gradients(*random_batch([(5, 4), (2, 3)]))
    assert np.isfinite(loss) and all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_a_step_down_the_gradient_lowers_the_loss() -> None:
    weights, batch, losses = weights_of(random_model()), random_batch([(5, 4), (2, 6)]), []
    for _ in range(30):
        loss, gradients = NumpyTransformer(weights, n_heads=2).loss_and_gradients(*batch)
        losses.append(loss)
        weights = {name: weight - 0.01 * gradients[name] for name, weight in weights.items()}
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]


# ------------------------------------------------------------------------------------------------------------- decoding


def test_greedy_translates_like_torch(corpus_batch: tuple[Ids, Ids, Ids]) -> None:
    translator, src = load_toy_translator(), corpus_batch[0]
    written = in_numpy(translator.model).greedy(src, max_new_tokens=30)
    assert written == greedy_decode(translator.model, torch.from_numpy(src), max_new_tokens=30)
    references = [pair.target for pair in itertools.islice(embedded_corpus("test", seed=3), 12)]
    assert sum(translator.tokenizer.decode(ids) == line for ids, line in zip(written, references, strict=True)) >= 9


@pytest.mark.parametrize("most", [1, 2, 9])
def test_greedy_of_random_models_is_torchs(most: int) -> None:
    lengths = set()
    for seed in range(8):
        model, (src, _, _) = random_model(6, seed, n_layers=1), random_batch([(5, 1), (2, 1), (4, 1)], 6, seed)
        written = in_numpy(model).greedy(src, most)
        assert written == greedy_decode(model, torch.from_numpy(src), most)
        lengths |= {len(ids) for ids in written}
    assert max(lengths) == most and (most < 9 or min(lengths) < most)  # some are cut off, and some end by themselves


# --------------------------------------------------------------------------------------------------- weights and errors


def test_weights_are_copied_and_ids_are_left_alone() -> None:
    weights, batch = weights_of(random_model()), random_batch([(5, 4), (2, 6)])
    model, given_ids = NumpyTransformer(weights, n_heads=2), [ids.copy() for ids in batch]
    before = model.logits(*batch[:2])
    model.loss_and_gradients(*batch)
    for weight in weights.values():
        weight += 1
    np.testing.assert_allclose(model.logits(*batch[:2]), before, rtol=0, atol=1e-12)
    assert all(np.array_equal(ids, given_id) for ids, given_id in zip(batch, given_ids, strict=True))


def test_float32_weights_compute_in_float64() -> None:
    weights = {name: weight.astype(np.float32) for name, weight in weights_of(random_model()).items()}
    model, batch = NumpyTransformer(weights, n_heads=2), random_batch([(5, 4)])
    assert model.logits(*batch[:2]).dtype == np.float64
    assert {gradient.dtype for gradient in model.loss_and_gradients(*batch)[1].values()} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_order": "pre"}, r"encoder\.norm\.weight belongs to a model with pre-norm"),
        ({"positions": "learned"}, r"src_positions\.weight belongs to a model with learned positions"),
        ({"tie_embeddings": False}, r"(tgt_embedding|output)\.weight belongs to a model with untied embeddings"),
    ],
)
def test_other_kinds_of_model_are_refused(changes: dict, message: str) -> None:
    model = Transformer(TransformerConfig(11, 11, **SIZES, **changes))
    with pytest.raises(ValueError, match=message):
        NumpyTransformer(weights_of(model), n_heads=2)


FIRST = "encoder.layers.0.self_attention.w_q"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("embedding.weight"), r"no matrix embedding\.weight; give the whole state_dict"),
        (lambda w: w.update({"embedding.weight": np.ones(8)}), r"no matrix embedding\.weight"),
        (lambda w: w.pop("decoder.layers.1.memory_attention.w_v.bias"), r"lack decoder\.layers\.1\.memory_attention"),
        (lambda w: w.update(extra=np.ones(3)), "extra is not a weight of this model"),
        (lambda w: w.update({"decoder.layers.2.feed_forward.w_1.bias": np.ones(12)}), r"decoder\.layers\.2.* is not a"),
        (lambda w: w.update({f"{FIRST}.bias": np.ones(7)}), r"w_q\.bias has shape \(7,\).* must be \(8,\)"),
        (
            lambda w: w.update({f"{FIRST}.weight": np.ones((6, 8))}),
            r"w_q\.weight has shape \(6, 8\).* must be \(8, 8\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, message: str) -> None:
    weights = weights_of(random_model())
    change(weights)
    with pytest.raises(ValueError, match=message):
        NumpyTransformer(weights, n_heads=2)


def test_an_odd_width_is_refused() -> None:
    model = Transformer(TransformerConfig(11, 11, **{**SIZES, "d_model": 7, "n_heads": 1}, positions="learned"))
    weights = {name: weight for name, weight in weights_of(model).items() if "positions" not in name}
    with pytest.raises(ValueError, match="d_model is odd"):
        NumpyTransformer(weights, n_heads=1)


@pytest.mark.parametrize("n_heads", [0, -2, 3])
def test_heads_that_do_not_divide_are_refused(n_heads: int) -> None:
    with pytest.raises(ValueError, match=f"n_heads={n_heads} does not divide the 8 rows of w_k"):
        NumpyTransformer(weights_of(random_model()), n_heads)


@pytest.mark.parametrize("special", [(0, 1, 1), (0, 1, 11), (-1, 1, 2)])
def test_special_ids_outside_of_the_vocabulary_are_refused(special: tuple) -> None:
    with pytest.raises(ValueError, match="three different ids below 11"):
        NumpyTransformer(weights_of(random_model()), 2, *special)


SRC, TGT = np.array([[3, 4, 5]]), np.array([[1, 3]])


@pytest.mark.parametrize(
    ("src", "tgt_in", "error", "message"),
    [
        (SRC[0], TGT, ValueError, r"src has shape \(3,\); expected a non-empty \(batch, length\)"),
        (SRC[:, :0], TGT, ValueError, "src has shape"),
        (SRC, TGT[..., None], ValueError, "tgt_in has shape"),
        (SRC, np.array([[1, 11]]), ValueError, "tgt_in ranges from 1 to 11, but the vocabulary has ids 0 to 10"),
        (np.array([[-1, 3]]), TGT, ValueError, "src ranges from -1 to 3"),
        (SRC.astype(float), TGT, TypeError, "src is ndarray; give an array of integers"),
        (SRC.tolist(), TGT, TypeError, "src is list; give an array of integers"),
        (np.repeat(SRC, 2, 0), TGT, ValueError, "src has 2 sentences and tgt_in 1"),
    ],
)
def test_wrong_ids_are_refused(src: Ids, tgt_in: Ids, error: type, message: str) -> None:
    model = in_numpy(random_model())
    with pytest.raises(error, match=message):
        model.logits(src, tgt_in)
    with pytest.raises(error, match=message):
        model.loss_and_gradients(src, tgt_in, TGT)


def test_wrong_targets_and_options_are_refused() -> None:
    model = in_numpy(random_model())
    with pytest.raises(ValueError, match=r"tgt_in has shape \(1, 2\) and tgt_out \(1, 3\)"):
        model.loss_and_gradients(SRC, TGT, SRC)
    with pytest.raises(ValueError, match="tgt_out ranges from 3 to 11"):
        model.loss_and_gradients(SRC, TGT, np.array([[3, 11]]))
    for label_smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"label_smoothing is .*; it must be in \[0, 1\)"):
            model.loss_and_gradients(SRC, TGT, TGT, label_smoothing)
    with pytest.raises(ValueError, match="max_new_tokens is 0; it must be at least 1"):
        model.greedy(SRC, 0)
    with pytest.raises(ValueError, match="src has shape"):
        model.greedy(SRC[0], 5)
