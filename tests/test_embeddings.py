"""Token embeddings: scale, sharing, the untrained loss, and what is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer import TokenEmbedding, Transformer, TransformerConfig, count_parameters

quick = settings(max_examples=25, deadline=None, derandomize=True)
SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "dropout": 0.0}


def make_pair(vocabulary=50):
    """A tied model and an untied one with the same weights, and a batch."""
    torch.manual_seed(0)
    tied = Transformer(TransformerConfig(vocabulary, vocabulary, **SIZES))
    untied = Transformer(TransformerConfig(vocabulary, vocabulary, tie_embeddings=False, **SIZES))
    weights = tied.state_dict()
    copies = dict.fromkeys(("tgt_embedding.weight", "output.weight"), weights["embedding.weight"])
    untied.load_state_dict({**weights, **copies})
    return tied, untied, torch.randint(3, vocabulary, (3, 4, 9))


@quick
@given(
    st.integers(2, 30),
    st.sampled_from([1, 2, 4, 16, 512]),
    st.lists(st.lists(st.integers(0, 1_000), min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from([torch.int64, torch.int32]),
)
def test_a_look_up_is_a_one_hot_product_times_the_root(vocabulary, d_model, rows, dtype):
    embedding = TokenEmbedding(vocabulary, d_model)
    ids = torch.tensor(rows, dtype=dtype) % vocabulary
    expected = F.one_hot(ids.long(), vocabulary).float() @ embedding.weight * d_model**0.5
    assert embedding(ids).shape == (*ids.shape, d_model)
    torch.testing.assert_close(embedding(ids), expected)
    assert isinstance(embedding.weight, nn.Parameter) and embedding.weight.requires_grad


def test_projection_compares_with_every_row_unscaled():
    torch.manual_seed(0)
    embedding, hidden = TokenEmbedding(7, 5), torch.randn(2, 3, 5)
    logits = embedding.project(hidden)
    assert logits.shape == (2, 3, 7)
    for b in range(2):
        for m in range(3):
            for v in range(7):
                expected = sum(hidden[b, m, i] * embedding.weight[v, i] for i in range(5))
                torch.testing.assert_close(logits[b, m, v], expected)


@pytest.mark.parametrize("d_model", [16, 128, 512])
def test_unit_scale_at_both_ends(d_model):
    torch.manual_seed(0)
    embedding = TokenEmbedding(4000, d_model)
    assert abs(embedding.weight.std() * d_model**0.5 - 1) < 0.02 and abs(embedding.weight.mean()) < 0.01
    assert abs(embedding(torch.arange(4000)[None]).std() - 1) < 0.02
    hidden = F.layer_norm(torch.randn(500, d_model), [d_model])
    assert abs(embedding.project(hidden).std() - 1) < 0.02


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_embeddings_of_a_fresh_model_keep_their_initialisation(norm_order, tie_embeddings):
    """Initialising all matrices of the model afterwards must not touch the embedding."""
    torch.manual_seed(0)
    config = TransformerConfig(3000, 3000, norm_order=norm_order, tie_embeddings=tie_embeddings, **SIZES)
    model = Transformer(config)
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            assert abs(module.weight.std() * 32**0.5 - 1) < 0.02


@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig.tiny(vocab_size=4000),
        TransformerConfig.tiny(vocab_size=8000),
        TransformerConfig.tiny(vocab_size=4000, norm_order="pre"),
        TransformerConfig.small(vocab_size=4000),
    ],
    ids=["tiny 4000", "tiny 8000", "tiny 4000 pre", "small 4000"],
)
@torch.no_grad()
def test_untrained_loss_is_log_v_plus_a_half(config):
    torch.manual_seed(0)
    model = Transformer(config).eval()
    src, tgt_in, tgt_out = torch.randint(3, config.tgt_vocab_size, (3, 128, 16))
    logits = model(src, tgt_in)
    assert abs(logits.std() - 1) < 0.03
    loss = F.cross_entropy(logits.flatten(0, 1), tgt_out.flatten()).item()
    assert abs(loss - math.log(config.tgt_vocab_size) - 0.5) < 0.1


def test_one_matrix_in_three_places_is_counted_and_saved_once():
    tied, untied, _ = make_pair()
    assert [name for name, tensor in tied.state_dict().items() if tensor.size(0) == 50] == ["embedding.weight"]
    assert count_parameters(untied) - count_parameters(tied) == 2 * 50 * 32
    assert sum(parameter.size(0) == 50 for parameter in tied.parameters()) == 1


def test_tied_and_untied_compute_the_same_and_gradients_add_up():
    tied, untied, (src, tgt_in, tgt_out) = make_pair()
    torch.testing.assert_close(tied(src, tgt_in), untied(src, tgt_in), rtol=0, atol=0)
    for model in (tied, untied):
        F.cross_entropy(model(src, tgt_in).flatten(0, 1), tgt_out.flatten()).backward()
    total = untied.embedding.weight.grad + untied.tgt_embedding.weight.grad + untied.output.weight.grad
    torch.testing.assert_close(tied.embedding.weight.grad, total, rtol=1e-4, atol=1e-7)
    assert all(part.weight.grad.abs().sum() > 0 for part in (untied.embedding, untied.tgt_embedding, untied.output))


def test_a_changed_row_is_seen_at_all_three_places():
    """Moving, copying and loading a model must not break the tie."""
    tied, _, (src, tgt_in, _) = make_pair()
    again = Transformer(tied.config)
    again.load_state_dict(tied.state_dict())
    again = again.double().float()
    absent = next(v for v in range(3, 50) if v not in src and v not in tgt_in)
    with torch.no_grad():
        before = again(src, tgt_in)
        again.embedding.weight[absent] += torch.randn(32)
        moved = (again(src, tgt_in) - before).abs()
    assert moved[..., absent].min() > 0
    moved[..., absent] = 0
    assert moved.max() == 0.0  # the token occurs in neither input


def test_dtype_follows_the_weights():
    embedding = TokenEmbedding(10, 4).to(torch.bfloat16)
    assert embedding(torch.tensor([[1, 2]])).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8, torch.int16])
def test_ids_of_another_type_are_refused(dtype):
    with pytest.raises(TypeError, match=f"token ids have dtype {dtype}; give int64"):
        TokenEmbedding(10, 4)(torch.ones(2, 3).to(dtype))


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3), (0, 3), (3, 0)])
def test_ids_of_another_shape_and_empty_batches_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected a non-empty \(batch, length\)"):
        TokenEmbedding(10, 4)(torch.ones(shape, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [-1, 10, 10**6])
def test_ids_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=rf"from .*{wrong}.*ids 0 to 9; were they made by another tokenizer"):
        TokenEmbedding(10, 4)(torch.tensor([[3, wrong]]))


def test_hidden_states_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3, 5\); their last dimension must be 4"):
        TokenEmbedding(10, 4).project(torch.ones(2, 3, 5))


def test_vocabularies_of_unequal_size_cannot_be_tied():
    with pytest.raises(ValueError, match="one shared vocabulary"):
        TransformerConfig(10, 11)
    assert isinstance(Transformer(TransformerConfig(10, 11, tie_embeddings=False, **SIZES)).output, nn.Linear)
