"""Section 6.1: greedy decoding, with the cache, in batches."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer import Transformer, TransformerConfig, greedy_decode
from transformer.data import BOS_ID, EOS_ID, PAD_ID, pad
from transformer.decoding import EXTRA_TOKENS

CONFIGS = {
    "the paper's": {},
    "pre-norm": {"norm_order": "pre"},
    "learned positions": {"positions": "learned", "max_len": 30},
    "untied, narrow heads": {"tie_embeddings": False, "tgt_vocab_size": 17, "d_k": 3, "d_v": 5},
    "other special ids": {"pad_id": 7, "bos_id": 3, "eos_id": 11},
}


class Lively(Transformer):
    """A random Transformer says one word for ever. A wild function of its logits makes it write, and end, at random."""

    def output_projection(self, hidden):
        return torch.sin(40 * super().output_projection(hidden))


def random_model(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"src_vocab_size": 24, "tgt_vocab_size": 24, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32}
    return Lively(TransformerConfig(**{**sizes, **changes})).double().eval()


def random_sources(model, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    ordinary = torch.tensor([i for i in range(24) if i not in (config.pad_id, config.bos_id, config.eos_id)])
    rows = [ordinary[torch.randint(len(ordinary), (n - 1,), generator=generator)].tolist() for n in lengths]
    return [[*row, config.eos_id] for row in rows]


LIMIT = 20  # enough for sentences to end at different steps


def decode(model, sources, **options):
    return greedy_decode(model, pad(sources, model.config.pad_id), **options)


def without_cache(model, source, limit=LIMIT):
    """One sentence, the whole target anew at every step, by the definition."""
    config = model.config
    target = [config.bos_id]
    with torch.no_grad():
        for _ in range(limit):
            token = int(model(torch.tensor([source]), torch.tensor([target]))[0, -1].argmax())
            if token == config.eos_id:
                break
            target.append(token)
    return target[1:]


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    """A model, sources of many lengths, and what each gives alone and without a cache."""
    model = random_model(**CONFIGS[request.param])
    sources = random_sources(model, [1, 2, 3, 5, 8, 13, 25])
    return model, sources, [without_cache(model, source) for source in sources]


def test_the_models_say_something(case):
    """Else the tests below would compare nothing with nothing."""
    _, sources, expected = case
    lengths = [len(output) for output in expected]
    assert max(lengths) >= 8 and len({tuple(output) for output in expected}) == len(sources)
    assert len(set(lengths)) > 3 and min(lengths) < LIMIT, (
        "sentences must end at different steps, or none leaves the batch"
    )


def test_alone_and_together_as_without_the_cache(case):
    model, sources, expected = case
    assert [decode(model, [source], max_new_tokens=LIMIT)[0] for source in sources] == expected
    assert decode(model, sources, max_new_tokens=LIMIT) == expected


def test_in_any_order_and_any_company(case):
    model, sources, expected = case
    generator = torch.Generator().manual_seed(1)
    for size in (2, 4, len(sources)):
        order = torch.randperm(len(sources), generator=generator)[:size].tolist()
        chosen = [sources[i] for i in order]
        assert decode(model, chosen, max_new_tokens=LIMIT) == [expected[i] for i in order]
    both_ways = decode(model, [*sources, *reversed(sources)], max_new_tokens=LIMIT)
    assert both_ways == [*expected, *reversed(expected)]


def test_wider_padding_changes_nothing(case):
    model, sources, expected = case
    src = pad(sources, model.config.pad_id)
    wider = torch.nn.functional.pad(src, (0, 5), value=model.config.pad_id)
    assert greedy_decode(model, wider, LIMIT) == expected


def test_one_token_beside_a_long_sentence(case):
    model, sources, expected = case
    assert len(sources[0]) == 1 and len(sources[-1]) == 25
    assert decode(model, [sources[0], sources[-1]], max_new_tokens=LIMIT) == [expected[0], expected[-1]]
    dot = [5, model.config.eos_id]
    assert decode(model, [dot, sources[-1]], max_new_tokens=LIMIT)[0] == without_cache(model, dot)


@given(seed=st.integers(0, 10**6), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), limit=st.integers(1, 7))
def test_any_model_any_lengths_any_limit(seed, lengths, limit):
    model = random_model(seed, n_layers=1)
    sources = random_sources(model, lengths, seed)
    expected = [without_cache(model, source, limit) for source in sources]
    assert decode(model, sources, max_new_tokens=limit) == expected
    assert all(len(output) <= limit for output in expected)


class Scripted:
    """Lets a model write what a script says: row i of the batch, at step s, gets script(i, s)."""

    def __init__(self, model, script):
        self.model, self.script = model, script
        self.widths = []

    def __enter__(self):
        self.new_cache, self.project = self.model.new_cache, self.model.output_projection

        def new_cache(*arguments):
            self.cache = self.new_cache(*arguments)
            self.rows = torch.arange(arguments[0].size(0))
            select = self.cache.select

            def select_too(index):
                self.rows = self.rows[index]
                select(index)

            self.cache.select = select_too
            return self.cache

        def project(hidden):
            logits = self.project(hidden)
            self.widths.append(logits.size(0))
            tokens = torch.tensor([self.script(i, self.cache.length) for i in self.rows.tolist()])
            return torch.zeros_like(logits).scatter(2, tokens[:, None, None], 1.0)

        self.model.new_cache, self.model.output_projection = new_cache, project
        return self

    def __exit__(self, *_):
        del self.model.new_cache, self.model.output_projection


def test_at_most_fifty_more_than_the_sentence_itself():
    model = random_model()
    sources = random_sources(model, [1, 4, 30])
    assert EXTRA_TOKENS == 50
    with Scripted(model, lambda i, step: 5):
        assert [len(output) for output in decode(model, sources)] == [51, 54, 80], "its own length, not the batch's"
        assert len(decode(model, sources[:1])[0]) == 51
        assert [len(output) for output in decode(model, sources, max_new_tokens=3)] == [3, 3, 3]


def test_learned_positions_end_the_sentence():
    model = random_model(positions="learned", max_len=20)
    with Scripted(model, lambda i, step: 5):
        outputs = decode(model, random_sources(model, [1, 20]))
    assert [len(output) for output in outputs] == [20, 20]


def test_the_end_at_once_gives_nothing():
    model = random_model()
    sources = random_sources(model, [3, 5])
    with Scripted(model, lambda i, step: EOS_ID):
        assert decode(model, sources) == [[], []]
    with Scripted(model, lambda i, step: EOS_ID if i == 0 or step == 4 else 6):
        assert decode(model, sources) == [[], [6, 6, 6]]


def test_padding_and_begin_in_the_output_are_tokens_like_others():
    model = random_model()
    with Scripted(model, lambda i, step: [PAD_ID, BOS_ID, 9, EOS_ID][step - 1]):
        assert decode(model, random_sources(model, [3])) == [[PAD_ID, BOS_ID, 9]]


def test_who_has_ended_leaves_the_batch():
    model = random_model()
    sources = random_sources(model, [3] * 4)
    ends = [2, 5, 1, 3]
    with Scripted(model, lambda i, step: EOS_ID if step == ends[i] else 10 + i) as script:
        outputs = decode(model, sources)
    assert outputs == [[10], [11] * 4, [], [13] * 2]
    assert script.widths == [4, 3, 2, 1, 1]


def test_a_row_of_padding_hurts_nobody():
    model = random_model()
    sources = random_sources(model, [4, 6])
    together = decode(model, [sources[0], [], sources[1]])
    assert [together[0], together[2]] == [decode(model, [source])[0] for source in sources]


def test_nothing_is_left_behind():
    model = random_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decode(model, random_sources(model, [4, 6]))
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_training_mode_is_refused():
    model = random_model().train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        decode(model, [[5, EOS_ID]])


@pytest.mark.parametrize("limit", [0, -1, -50])
def test_no_room_to_write_is_refused(limit):
    with pytest.raises(ValueError, match=re.escape(f"max_new_tokens is {limit}; it must be at least 1")):
        decode(random_model(), [[5, EOS_ID]], max_new_tokens=limit)


@pytest.mark.parametrize(
    ("src", "error", "message"),
    [
        (torch.tensor([5, 6, 2]), ValueError, r"shape \(3,\); expected \(batch, length\)"),
        (torch.zeros(0, 4, dtype=torch.int64), ValueError, r"shape \(0, 4\)"),
        (torch.zeros(2, 0, dtype=torch.int64), ValueError, r"shape \(2, 0\)"),
        (torch.tensor([[5.0, 2.0]]), TypeError, "float32; give int64 ids"),
        (torch.tensor([[5, 24, 2]]), ValueError, "24.*ids 0 to 23"),
        (torch.tensor([[5, -1, 2]]), ValueError, "-1.*ids 0 to 23"),
    ],
)
def test_bad_sources_are_refused(src, error, message):
    with pytest.raises(error, match=message):
        greedy_decode(random_model(), src)
