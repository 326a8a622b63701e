"""Scaled dot-product attention against plain Python, against its own properties, and against PyTorch's kernel."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from transformer import masked_softmax, scaled_dot_product_attention

BATCHES = [(), (1,), (3,), (2, 3)]


def in_plain_python(q: list, k: list, v: list, mask: list[list[bool]]) -> tuple[list, list]:
    """Equation (1) by loops over one set of queries, keys and values: output and weights."""
    outputs, all_weights = [], []
    for i, query in enumerate(q):
        powers = []
        for j, key in enumerate(k):
            score = sum(a * b for a, b in zip(query, key)) / len(query) ** 0.5
            powers.append(math.exp(score) if mask[i][j] else 0.0)
        total = sum(powers)
        weights = [power / total if total else 0.0 for power in powers]
        outputs.append([sum(w * row[c] for w, row in zip(weights, v)) for c in range(len(v[0]))])
        all_weights.append(weights)
    return outputs, all_weights


def inputs(batch: tuple[int, ...], m: int, n: int, d_k: int, d_v: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = ((m, d_k), (n, d_k), (n, d_v))
    q, k, v = (torch.randn(*batch, *shape, generator=rng, dtype=torch.float64) for shape in shapes)
    return q, k, v


def random_mask(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.5


size = st.integers(1, 5)


@given(
    batch=st.sampled_from(BATCHES), m=size, n=size, d_k=size, d_v=size, seed=st.integers(0, 99), masked=st.booleans()
)
def test_equals_plain_python(batch, m, n, d_k, d_v, seed, masked) -> None:
    q, k, v = inputs(batch, m, n, d_k, d_v, seed)
    mask = random_mask(*batch, m, n, seed=seed) if masked else torch.ones(*batch, m, n, dtype=torch.bool)
    output, weights = scaled_dot_product_attention(q, k, v, mask if masked else None)
    assert output.shape == (*batch, m, d_v) and weights.shape == (*batch, m, n)
    flat = zip(*(x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, mask, output, weights)), strict=True)
    for one_q, one_k, one_v, one_mask, one_output, one_weights in flat:
        expected = in_plain_python(*(x.tolist() for x in (one_q, one_k, one_v, one_mask)))
        torch.testing.assert_close(one_output, one_output.new_tensor(expected[0]), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(one_weights, one_weights.new_tensor(expected[1]), atol=1e-12, rtol=1e-12)


def test_the_worked_example() -> None:
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    output, weights = scaled_dot_product_attention(q, q, v)
    expected = [[0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035]]
    torch.testing.assert_close(weights, torch.tensor(expected), atol=5e-5, rtol=0)
    torch.testing.assert_close(output, torch.tensor([[3, 4], [3.4067, 4.4067], [3.5105, 4.5105]]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("mask_shape", [None, (4, 6), (1, 6), (2, 1, 4, 6), (2, 3, 4, 6), (1, 1, 1, 6)])
def test_equals_torchs_kernel_with_gradients(mask_shape) -> None:
    q, k, v = (x.requires_grad_() for x in inputs((2, 3), 4, 6, 5, 7))
    mask = None if mask_shape is None else random_mask(*mask_shape)
    if mask is not None:
        mask[..., 0] = True  # no empty row; those have a test of their own
    ours, _ = scaled_dot_product_attention(q, k, v, mask)
    theirs = F.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, (q, k, v), upstream), torch.autograd.grad(theirs, (q, k, v), upstream)):
        torch.testing.assert_close(a, b)


def test_gradients_are_those_of_the_function() -> None:
    q, k, v = (x.requires_grad_() for x in inputs((2,), 3, 4, 2, 3))
    mask = torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])  # the second row is empty
    assert torch.autograd.gradcheck(lambda *x: scaled_dot_product_attention(*x, mask)[0], (q, k, v))


@given(seed=st.integers(0, 999))
def test_outputs_are_convex_combinations(seed: int) -> None:
    q, k, v = inputs((3,), 4, 6, 5, 2, seed)
    output, weights = scaled_dot_product_attention(3 * q, k, v)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, dtype=torch.float64))
    for direction in (torch.tensor([1.0, 0.0]), torch.tensor([0.6, -0.8])):  # inside the hull along any direction
        along, of_values = output @ direction.double(), v @ direction.double()
        assert (along <= of_values.amax(-1, keepdim=True) + 1e-12).all()
        assert (along >= of_values.amin(-1, keepdim=True) - 1e-12).all()


def test_pairs_are_a_set_and_queries_are_independent() -> None:
    q, k, v = inputs((2,), 5, 6, 4, 3)
    mask = random_mask(2, 5, 6)
    output, weights = scaled_dot_product_attention(q, k, v, mask)
    pairs, queries = torch.randperm(6), torch.randperm(5)
    again, again_weights = scaled_dot_product_attention(q, k[:, pairs], v[:, pairs], mask[:, :, pairs])
    torch.testing.assert_close(again, output)
    torch.testing.assert_close(again_weights, weights[:, :, pairs])
    torch.testing.assert_close(
        scaled_dot_product_attention(q[:, queries], k, v, mask[:, queries])[0], output[:, queries]
    )
    alone, alone_weights = scaled_dot_product_attention(q[:, :1], k, v, mask[:, :1])
    torch.testing.assert_close(alone, output[:, :1])
    torch.testing.assert_close(alone_weights, weights[:, :1])


def test_masked_pairs_have_no_influence_at_all() -> None:
    q, k, v = inputs((2,), 4, 6, 5, 3)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[:, 3] = False
    before, weights = scaled_dot_product_attention(q, k, v, mask)
    k[:, 3], v[:, 3] = 1e6, -1e6
    after, _ = scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(before, after)
    assert (weights[..., 3] == 0).all()
    assert not torch.equal(scaled_dot_product_attention(q, k, v)[0], before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_empty_rows_give_zeros_and_leave_the_rest_alone(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype).requires_grad_() for x in inputs((3,), 4, 6, 5, 2))
    mask = torch.ones(3, 4, 6, dtype=torch.bool)
    mask[1] = False  # a sentence of nothing but padding
    mask[2, 0] = False
    output, weights = scaled_dot_product_attention(q, k, v, mask)
    unmasked, _ = scaled_dot_product_attention(q, k, v)
    assert output.dtype == weights.dtype == dtype
    assert (output[1] == 0).all() and (weights[1] == 0).all() and (output[2, 0] == 0).all()
    torch.testing.assert_close(output[0], unmasked[0])
    torch.testing.assert_close(output[2, 1:], unmasked[2, 1:])
    output.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[1] == 0).all() and (q.grad[0] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_scores_do_not_overflow(dtype: torch.dtype) -> None:
    scores = torch.tensor([[60_000.0, -60_000.0, 59_000.0], [-60_000.0, -60_000.0, -60_000.0]], dtype=dtype)
    weights = masked_softmax(scores, torch.tensor([True, True, False]))
    assert weights.tolist() == [[1, 0, 0], [0.5, 0.5, 0]]


def test_scale_is_the_root_of_d_k_not_of_d_v() -> None:
    for d_k in (4, 64, 512):
        q, k = torch.randn(2, 4000, 1, d_k, dtype=torch.float64)
        identity = torch.eye(2, dtype=torch.float64).expand(4000, 2, 2)  # two values, so the weights can be read off
        keys = torch.cat([k, torch.zeros_like(k)], dim=1)
        output, _ = scaled_dot_product_attention(q, keys, identity)
        scores = torch.logit(output[:, 0, 0])  # the difference to the score 0 of the second key
        assert abs(scores.var().item() - 1) < 0.1
        torch.testing.assert_close(scores, (q * k).sum((1, 2)) / math.sqrt(d_k), atol=1e-8, rtol=1e-8)


def test_the_same_vector_added_to_every_key_changes_nothing() -> None:
    q, k, v = inputs((2,), 4, 6, 5, 3)
    shifted, _ = scaled_dot_product_attention(q, k + torch.randn(5, dtype=torch.float64), v)
    torch.testing.assert_close(shifted, scaled_dot_product_attention(q, k, v)[0])


def test_dropout_acts_on_the_weights_that_are_used_not_on_those_that_are_returned() -> None:
    q, k, v = inputs((2,), 4, 6, 5, 3)
    plain, weights = scaled_dot_product_attention(q, k, v)
    seen: list[Tensor] = []

    def halve(w: Tensor) -> Tensor:
        seen.append(w)
        return w / 2

    output, returned = scaled_dot_product_attention(q, k, v, dropout=halve)
    assert torch.equal(returned, weights) and len(seen) == 1 and torch.equal(seen[0], weights)
    torch.testing.assert_close(output, plain / 2)


def test_inputs_are_left_as_they_are() -> None:
    tensors = [*inputs((2,), 4, 6, 5, 3), random_mask(4, 6)]
    copies = [x.clone() for x in tensors]
    scaled_dot_product_attention(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies))


def test_keys_may_be_shared_by_a_batch_of_queries() -> None:
    q, k, v = inputs((1,), 4, 6, 5, 3)
    many = q.expand(7, 4, 5) + torch.randn(7, 4, 5, dtype=torch.float64)
    output, _ = scaled_dot_product_attention(many, k, v, random_mask(7, 4, 6))
    assert output.shape == (7, 4, 3)
    one, _ = scaled_dot_product_attention(q, k.expand(7, 6, 5), v.expand(7, 6, 3), random_mask(7, 4, 6))
    assert one.shape == (7, 4, 3)


X = torch.zeros


@pytest.mark.parametrize(
    ("error", "call", "words"),
    [
        (TypeError, lambda: (X(2, 3).long(), X(2, 3).long(), X(2, 3).long()), "int64.*same floating dtype"),
        (TypeError, lambda: (X(2, 3), X(2, 3).double(), X(2, 3)), "float32, torch.float64"),
        (TypeError, lambda: (X(2, 3), X(2, 3), X(2, 3).half()), "float16"),
        (ValueError, lambda: (X(3), X(2, 3), X(2, 3)), r"query \(3,\)"),
        (ValueError, lambda: (X(2, 3), X(3), X(3)), "do not fit together"),
        (ValueError, lambda: (X(2, 3), X(2, 4), X(2, 4)), r"\(2, 3\), key \(2, 4\).*d_k"),
        (ValueError, lambda: (X(2, 0), X(4, 0), X(4, 3)), r"query \(2, 0\), key \(4, 0\) .*d_k at least 1"),
        (ValueError, lambda: (X(2, 0), X(4, 3), X(4, 3)), "do not fit together"),
        (ValueError, lambda: (X(2, 3), X(4, 3), X(5, 3)), r"key \(4, 3\) and value \(5, 3\)"),
        (ValueError, lambda: (X(2, 4, 3), X(5, 4, 3), X(5, 4, 3)), "do not fit together"),
        (TypeError, lambda: (X(2, 3), X(4, 3), X(4, 3), X(2, 4)), "mask has dtype torch.float32.*bool"),
        (TypeError, lambda: (X(2, 3), X(4, 3), X(4, 3), X(2, 4).int()), "int32.*True where"),
        (ValueError, lambda: (X(2, 3), X(4, 3), X(4, 3), X(4, 2).bool()), r"mask \(4, 2\).*\(2, 4\)"),
        (ValueError, lambda: (X(2, 3), X(4, 3), X(4, 3), X(1, 2, 4).bool()), r"mask \(1, 2, 4\)"),
    ],
)
def test_bad_input_is_named(error: type[Exception], call: Callable[[], tuple], words: str) -> None:
    with pytest.raises(error, match=words):
        scaled_dot_product_attention(*call())
