"""Section 4: what a layer costs, how long its operations wait, and how far its signals travel."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer import Transformer, TransformerConfig
from transformer.complexity import (
    LAYER_KINDS,
    break_even_length,
    encoder_layer_costs,
    layer_operations,
    maximum_path_length,
    sequential_operations,
)

POWERS_OF_N = {"self-attention": 2, "recurrent": 1, "convolutional": 1, "restricted self-attention": 1}  # Table 1
size = st.integers(1, 12)


def multiply_adds(run, *inputs):
    """PyTorch's own count; fused kernels are opaque to it, so attention is plain."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(*inputs)
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


def layer(kind, d, r):
    """The layers without kernels out of PyTorch's parts, for one sequence (n, d)."""
    if kind == "self-attention":
        return lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])
    if kind == "recurrent":
        return nn.RNN(d, d)

    def restricted(x):  # every position with the r slots of its window
        windows = torch.cat([x.new_zeros(r, d), x, x.new_zeros(r, d)]).unfold(0, r, 1)[: len(x)]  # (n, d, r)
        return torch.bmm(windows, torch.bmm(x[:, None], windows).softmax(-1).mT)

    return restricted


@settings(max_examples=15, deadline=None, derandomize=True)
@given(n=size, d=size, r=size)
@pytest.mark.parametrize("kind", ["self-attention", "recurrent", "restricted self-attention"])
def test_torch_counts_the_same(kind, n, d, r):
    assert multiply_adds(layer(kind, d, r), torch.randn(n, d)) == layer_operations(kind, n, d, r=r)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(n=size, d=size, k=size)
@pytest.mark.parametrize("kind", ["convolutional", "dilated convolutional", "separable convolutional"])
def test_torch_counts_the_same_in_convolutions(kind, n, d, k):
    dilation = 2 if kind.startswith("dilated") else 1
    convolution = nn.Conv1d(d, d, k, dilation=dilation, groups=d if kind.startswith("separable") else 1)
    count = multiply_adds(convolution, torch.randn(1, d, n + (k - 1) * dilation))
    if kind == "separable convolutional":
        count += multiply_adds(nn.Linear(d, d), torch.randn(n, d))
    assert count == layer_operations(kind, n, d, k=k)


@given(n=st.integers(1, 10**6), d=st.integers(1, 10**5))
def test_attention_is_cheaper_than_recurrence_just_when_n_is_smaller_than_d(n, d):
    attention, recurrence = layer_operations("self-attention", n, d), layer_operations("recurrent", n, d)
    assert (attention < recurrence) == (n < d) and attention * d == recurrence * n


def test_the_terms_of_table_1_and_the_papers_remarks():
    assert layer_operations("self-attention", 512, 512) == layer_operations("recurrent", 512, 512)
    assert layer_operations("self-attention", 8192, 512) == 16 * layer_operations("recurrent", 8192, 512)
    assert layer_operations("convolutional", 50, 512, k=3) == 3 * 50 * 512**2
    assert layer_operations("restricted self-attention", 8192, 512, r=64) == 2 * 64 * 8192 * 512
    assert layer_operations("separable convolutional", 50, 512, k=50) == 50 * 50 * 512 + 50 * 512**2
    for name, power in POWERS_OF_N.items():
        ratio = layer_operations(name, 200, 64, k=3, r=9) / layer_operations(name, 100, 64, k=3, r=9)
        assert ratio == 2**power, name


# ------------------------------------------------------------------------------------------------------------ the paths


def windows(kind, n, k, r, depth):
    """For each output of a layer, the inputs it looks at; ends cut off."""
    if kind == "self-attention":
        return [range(n)] * n
    if kind == "recurrent":  # one step: the input is given anew each time, the state comes from the left
        return [range(max(0, t - 1), t + 1) for t in range(n)]
    if kind == "restricted self-attention":
        back, forth = (r - 1) // 2, r // 2
        return [range(max(0, t - back), min(n, t + forth + 1)) for t in range(n)]
    stride = k**depth if kind == "dilated convolutional" else 1
    return [range(t, max(-1, t - k * stride), -stride) for t in range(n)]


def search(kind, n, k, r):
    """The smallest number of layers that leads from the last position back to the first, by walking."""
    depths = 1
    while True:
        reached = {n - 1}
        for depth in reversed(range(depths)):
            reached = {source for position in reached for source in windows(kind, n, k, r, depth)[position]}
        if 0 in reached:
            return depths
        depths += 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(n=st.integers(1, 30), k=st.integers(2, 7), r=st.integers(3, 9))
@pytest.mark.parametrize("kind", [kind for kind in LAYER_KINDS if kind != "recurrent"])
def test_paths_are_the_shortest_that_a_walk_finds(kind, n, k, r):
    assert maximum_path_length(kind, n, k=k, r=r) == search(kind, n, k, r)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(n=st.integers(2, 30))
def test_a_recurrence_passes_every_state_between_and_its_own(n):
    # n − 1 steps from state to state, and one from the first input into the first state
    assert maximum_path_length("recurrent", n) == search("recurrent", n, None, None) + 1 == n


def test_paths_of_table_1():
    assert [maximum_path_length("dilated convolutional", 3**p, k=3) for p in range(1, 13)] == list(range(1, 13))
    assert maximum_path_length("dilated convolutional", 3**7 + 1, k=3) == 8
    assert (
        maximum_path_length("convolutional", 101, k=3) == 50 == maximum_path_length("separable convolutional", 101, k=3)
    )
    assert maximum_path_length("restricted self-attention", 101, r=11) == 20
    assert maximum_path_length("self-attention", 10**9) == 1 and maximum_path_length("recurrent", 10**9) == 10**9


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_a_single_position_is_one_layer_away(kind):
    assert maximum_path_length(kind, 1, k=3, r=3) == 1


def test_a_window_as_long_as_needed_is_one_layer():
    assert maximum_path_length("convolutional", 30, k=30) == 1 < maximum_path_length("convolutional", 31, k=30)
    assert maximum_path_length("restricted self-attention", 30, r=59) == 1
    assert maximum_path_length("restricted self-attention", 30, r=57) == 2


@given(n=st.integers(1, 10**5), k=st.integers(2, 50))
def test_the_logarithm_is_the_length_of_n_in_base_k(n, k):
    layers = maximum_path_length("dilated convolutional", n, k=k)
    assert k**layers >= n and (layers == 1 or k ** (layers - 1) < n)
    assert layers == pytest.approx(math.log(n, k), abs=1) or n < k


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_only_a_recurrence_waits(kind):
    waits = [sequential_operations(kind, n) for n in (1, 10, 1000)]
    assert waits == ([1, 10, 1000] if kind == "recurrent" else [1, 1, 1])


# ------------------------------------------------------------------------------------------------ a whole encoder layer


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    n=size,
    n_heads=st.integers(1, 4),
    d_k=size,
    d_v=size,
    d_ff=st.integers(1, 40),
    norm=st.sampled_from(["post", "pre"]),
)
def test_torch_counts_the_same_in_the_models_own_layer(n, n_heads, d_k, d_v, d_ff, norm):
    sizes = {"n_heads": n_heads, "d_k": d_k, "d_v": d_v, "d_ff": d_ff, "norm_order": norm, "n_layers": 1}
    config = TransformerConfig(10, 10, d_model=8, **sizes)
    encoder_layer = Transformer(config).encoder.layers[0].eval()
    assert multiply_adds(encoder_layer, torch.randn(1, n, 8)) == sum(encoder_layer_costs(config, n).values())


def test_parts_of_the_base_layer():
    parts = encoder_layer_costs(TransformerConfig.base(), 100)
    assert list(parts) == ["projections", "scores", "weighted sums", "feed-forward"]
    assert parts["projections"] == 4 * 100 * 512**2 and parts["feed-forward"] == 8 * 100 * 512**2
    assert parts["scores"] == parts["weighted sums"] == 100**2 * 512
    assert parts["scores"] + parts["weighted sums"] == layer_operations("self-attention", 100, 512)


def test_heads_change_no_count():
    one, eight = (encoder_layer_costs(TransformerConfig.base(n_heads=heads), 77) for heads in (1, 8))
    assert one == eight


@settings(deadline=None, derandomize=True)
@given(d_k=size, d_v=size, d_ff=st.integers(1, 100))
def test_break_even_is_where_the_sides_change_places(d_k, d_v, d_ff):
    config = TransformerConfig(10, 10, d_model=8, n_heads=2, d_k=d_k, d_v=d_v, d_ff=d_ff)

    def squares_lead(n):
        parts = encoder_layer_costs(config, n)
        return parts["scores"] + parts["weighted sums"] >= parts["projections"] + parts["feed-forward"]

    length = break_even_length(config)
    assert squares_lead(length) and (length == 1 or not squares_lead(length - 1))


def test_break_even_of_base_and_big():
    assert break_even_length(TransformerConfig.base()) == 3072
    assert break_even_length(TransformerConfig.big()) == 6144
    assert break_even_length(TransformerConfig.tiny()) == 768


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("call", [layer_operations, maximum_path_length, sequential_operations])
def test_an_unknown_kind_is_refused_by_name(call):
    arguments = (5, 4) if call is layer_operations else (5,)
    with pytest.raises(ValueError, match=r"kind is 'recurent'; choose one of 'self-attention', 'recurrent'"):
        call("recurent", *arguments)


@pytest.mark.parametrize("wrong", [0, -3, 2.0, True, None, "8"])
def test_impossible_sizes_are_refused_by_name(wrong):
    for name, arguments in {
        "n": ("recurrent", wrong, 4),
        "d": ("recurrent", 4, wrong),
        "k": ("convolutional", 4, 4, wrong),
        "r": ("restricted self-attention", 4, 4, None, wrong),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name} is .*{arguments[0]} layer give a positive integer"):
            layer_operations(*arguments)
    for call in (maximum_path_length, sequential_operations):
        with pytest.raises(ValueError, match=r"^n is"):
            call("self-attention", wrong)
    with pytest.raises(ValueError, match=r"^n is"):
        encoder_layer_costs(TransformerConfig.tiny(), wrong)


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("convolutional", {"k": 1}),
        ("dilated convolutional", {"k": 1}),
        ("separable convolutional", {"k": 1}),
        ("restricted self-attention", {"r": 1}),
        ("restricted self-attention", {"r": 2}),
    ],
)
def test_a_window_that_connects_nothing_is_refused(kind, window):
    with pytest.raises(ValueError, match=r"reaches no neighbour; give k of at least 2, or r of at least 3"):
        maximum_path_length(kind, 9, **window)


@pytest.mark.parametrize("kind", ["self-attention", "recurrent"])
def test_windows_that_a_kind_does_not_have_are_ignored(kind):
    assert layer_operations(kind, 5, 4, k=0, r=-1) == layer_operations(kind, 5, 4)
    assert maximum_path_length(kind, 5, k=0, r=-1) == maximum_path_length(kind, 5)
