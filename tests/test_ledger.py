"""Section 5.2: what a training costs, counted."""

import json
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer import Transformer, TransformerConfig, ledger
from transformer.ledger import (
    Ledger,
    batch_flops,
    flops_by_part,
    forward_flops,
    measure_peak,
    paper_cost,
)


def counted_by_torch(config, batch, n, m):
    """Forward alone, and forward and backward; fused kernels are opaque to the counter, so attention is plain."""
    model = Transformer(config)
    src, tgt_in = torch.full((batch, n), 3), torch.full((batch, m), 3)
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            logits = model(src, tgt_in)
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    batch=st.integers(1, 3),
    n_layers=st.integers(1, 3),
    n_heads=st.integers(1, 3),
    d_k=st.integers(1, 5),
    d_v=st.integers(1, 5),
    d_ff=st.integers(1, 20),
    vocabularies=st.tuples(st.integers(4, 30), st.integers(4, 30)),
    norm_order=st.sampled_from(["post", "pre"]),
    positions=st.sampled_from(["sinusoidal", "learned"]),
)
def test_torch_counts_the_same(n, m, batch, vocabularies, **sizes):
    src, tgt = vocabularies
    config = TransformerConfig(src, tgt, d_model=8, tie_embeddings=src == tgt, **sizes)
    forward, both = counted_by_torch(config, batch, n, m)
    assert forward_flops(config, n, m, batch) == forward
    assert batch_flops(config, batch, n, m) == both


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "tgt_vocab_size": 70}, {"n_heads": 2}])
def test_head_widths_default_to_those_of_the_model(changes):
    config = TransformerConfig(**{"src_vocab_size": 50, "tgt_vocab_size": 50, "d_model": 16, "n_heads": 4, **changes})
    assert (forward_flops(config, 6, 5, 2), batch_flops(config, 2, 6, 5)) == counted_by_torch(config, 2, 6, 5)


def test_parts_are_named_and_whole():
    config = TransformerConfig.base()
    parts = flops_by_part(config, 25, 30, 4)
    assert list(parts) == ["projections", "scores", "weighted sums", "feed-forward", "output projection"]
    assert sum(parts.values()) == forward_flops(config, 25, 30, 4)
    assert parts["output projection"] == 2 * 4 * 30 * 512 * 37_000
    assert parts["feed-forward"] == 2 * 4 * (25 + 30) * 6 * 2 * 512 * 2048
    assert parts["scores"] == 2 * 4 * 6 * 512 * (25 * 25 + 30 * 30 + 25 * 30)


def test_counts_are_whole_numbers_however_large():
    flops = batch_flops(TransformerConfig.big(), 10**6, 10**4, 10**4)
    assert type(flops) is int and flops > 2**64
    assert flops == 10**6 * batch_flops(TransformerConfig.big(), 1, 10**4, 10**4)
    assert batch_flops(TransformerConfig.tiny(), 0, 5, 5) == batch_flops(TransformerConfig.tiny(), 5, 0, 0) == 0


@pytest.mark.parametrize("shape", [(-1, 2, 3), (1, -2, 3), (1, 2, -3)])
def test_negative_counts_are_refused(shape):
    with pytest.raises(ValueError, match=r"n=.*m=.*batch="):
        batch_flops(TransformerConfig.tiny(), *shape)


def test_costs_of_table_2():
    assert f"{paper_cost(12):.1e}" == "3.3e+18" and f"{paper_cost(3.5 * 24):.1e}" == "2.3e+19"
    assert paper_cost(1, n_gpus=1, tflops=1) == 3.6e15
    assert ledger.PAPER_TFLOPS == {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}


# ------------------------------------------------------------------------------------------------------ the accounts


def test_a_ledger_adds_up_and_continues():
    whole, first = Ledger(peak=1e12), Ledger(peak=1e12)
    entries = [(3 * 10**11, 100, 90, 0.5, 1), (10**12, 300, 310, 1.5, 3), (10**11, 1, 2, 0.25, 1)]
    for entry in entries:
        whole.add(*entry)
    first.add(*entries[0])
    second = Ledger(**json.loads(json.dumps(first.to_dict())))  # as a resumed run reads it
    for entry in entries[1:]:
        second.add(*entry)
    assert second == whole == Ledger(5, 401, 402, 14 * 10**11, 2.25, 1e12)
    assert whole.flops_per_second == pytest.approx(14e11 / 2.25)
    assert whole.fraction_of_peak == pytest.approx(1.4 / 2.25)
    line = str(whole)
    assert "\n" not in line and "62% of the measured peak" in line and "401 source and 402 target" in line


def test_an_empty_ledger_divides_by_nothing():
    assert Ledger().flops_per_second == 0 and Ledger().fraction_of_peak is None
    assert Ledger(peak=1.0).fraction_of_peak == 0 and "peak" not in str(Ledger())


# ---------------------------------------------------------------------------------------------------------- the peak


class Machine:
    """A clock and a matrix product of a known rate, slower when it starts and for small matrices."""

    def __init__(self, monkeypatch, rate):
        self.now, self.sizes, self.rate = 0.0, [], rate
        monkeypatch.setattr(ledger, "time", types.SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(torch, "randn", lambda *shape, device: torch.empty(1).expand(*shape))  # takes no memory

    def multiply(self, a, b):
        assert a.shape == b.shape and a.size(0) == a.size(1)
        self.sizes.append(a.size(0))
        slow = 3.0 if len(self.sizes) == 1 else 1.0
        self.now += 2 * a.size(0) ** 3 / (self.rate * min(1, a.size(0) / 1024)) * slow


@pytest.mark.parametrize("rate", [1e10, 1e11, 2e11, 1e13])
def test_the_peak_of_a_known_machine(monkeypatch, rate):
    machine = Machine(monkeypatch, rate)
    found = measure_peak("cpu", seconds=1.0, multiply=machine.multiply)
    assert machine.sizes == sorted(machine.sizes)
    assert found == pytest.approx(rate * min(1, machine.sizes[-1] / 1024))
    assert machine.sizes[-1] >= 512 and machine.now < 1.1, "what does not fit the time is not begun"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_peak_of_this_machine(dtype):
    assert measure_peak("cpu", dtype, seconds=0.02) > 1e6


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time_to_measure(seconds):
    with pytest.raises(ValueError, match="positive"):
        measure_peak("cpu", seconds=seconds)
    with pytest.raises(ValueError, match="unknown"):
        measure_peak("abacus")
