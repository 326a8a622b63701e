"""Section 6.1: greedy decoding, beam search and sampling, with the cache, in batches."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer import Transformer, TransformerConfig, beam_search, embedded_corpus, greedy_decode, load_toy_translator
from transformer import sample as draw
from transformer.data import BOS_ID, EOS_ID, PAD_ID, pad
from transformer.decoding import EXTRA_TOKENS, _best_tokens, length_penalty
from transformer.layers import LayerCache
from transformer.model import DecoderCache
from transformer.multi_head import KeyValueCache

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
        return 4 * torch.sin(40 * super().output_projection(hidden))


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
            self.first = self.cache.layers[0].memory_keys.clone()
            return self.cache

        def project(hidden):
            logits = self.project(hidden)
            self.widths.append(logits.size(0))
            same = (self.cache.layers[0].memory_keys[:, None] == self.first).flatten(2).all(dim=-1)
            rows = same.int().argmax(dim=1).tolist()  # a row is known by its source
            tokens = torch.tensor([self.script(i, self.cache.length) for i in rows])
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


# ------------------------------------------------------------------------------------------- beam search: what it finds


class Table:
    """A model that is a table: log P of the next token after the source's first token and what is written.

    It keeps what is written in the keys of a real cache, so a search that mixes up its rows reads from the wrong line.
    """

    training = False

    def __init__(self, log_p, vocab_size=4):
        self.config = TransformerConfig(vocab_size, vocab_size, d_model=2, n_heads=1, n_layers=1, d_ff=1)
        self.log_p, self.calls = log_p, []

    def encode(self, src, src_mask):
        return src[:, None, :, None].double()

    def new_cache(self, memory, memory_mask, room):
        keys = torch.full((len(memory), 1, room, 1), torch.nan, dtype=torch.float64)
        return DecoderCache([LayerCache(KeyValueCache(keys, keys.clone()), memory, memory)], memory_mask)

    def decode(self, tokens, cache):
        layer = cache.layers[0]
        new = tokens[:, None, :, None].double()
        keys, values = layer.own.append(new, new)
        assert keys.equal(values)
        self.calls.append(len(tokens))
        return torch.cat([layer.memory_keys[:, 0, :1, 0], keys[:, 0, 1:, 0]], dim=1)[:, None]

    def output_projection(self, hidden):
        rows = [self.log_p(int(first), tuple(int(i) for i in rest)) for first, *rest in hidden[:, 0].tolist()]
        return torch.tensor(rows, dtype=torch.float64)[:, None]


def random_table(seed, vocab_size=4):
    """A table with a line of its own, made when first asked for, for every beginning."""
    lines = {}

    def log_p(source, written):
        if (source, written) not in lines:
            number = hash((seed, source, written)) % 2**32  # hashes of integers are the same in every run
            noise = torch.randn(vocab_size, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            lines[source, written] = ((1 + seed % 4) * noise).log_softmax(dim=0).tolist()
        return lines[source, written]

    return log_p


def by_penalty(total, length, alpha, form="gnmt"):
    return total / (((5 + length) / 6) ** alpha if form == "gnmt" else length**alpha)


def exhaustive(log_p, source, alpha, limit, form):
    """Every sequence that ends within the limit, the best score first."""
    found = []
    for n in range(limit):
        for y in itertools.product([i for i in range(4) if i != EOS_ID], repeat=n):
            steps = [log_p(source, y[:i])[token] for i, token in enumerate([*y, EOS_ID])]
            found.append((by_penalty(math.fsum(steps), n + 1, alpha, form), list(y)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("form", ["gnmt", "fairseq"])
@pytest.mark.parametrize("alpha", [0, 0.6, 1, 3])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha, form):
    lengths = set()
    for seed in range(5):
        table = random_table(seed)
        src = torch.tensor([[0, 2], [1, 2], [3, 2]])
        results = beam_search(Table(table), src, 4**4, alpha, 5, n_best=6, penalty=form)
        for source, hypotheses in zip([0, 1, 3], results, strict=True):
            expected = exhaustive(table, source, alpha, 5, form)[:6]
            assert [hypothesis.ids for hypothesis in hypotheses] == [y for _, y in expected]
            assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _ in expected])
            lengths.add(len(expected[0][1]))
    assert len(lengths) > 1, "the best must not always have the same length"


def textbook(model, source, beam_size, alpha, limit, n_best=1, form="gnmt"):
    """Beam search for one sentence by the chapter's conventions: no cache, no tensors, never ends early."""
    living, finished = [(0.0, [])], []
    for step in range(1, limit + 1):
        targets = torch.tensor([[model.config.bos_id, *y] for _, y in living])
        with torch.no_grad():
            logits = model(torch.tensor([source] * len(living)), targets)[:, -1]
        grown = []
        for (p, y), line in zip(living, logits.log_softmax(dim=-1).tolist(), strict=True):
            grown += [(p + q, [*y, token]) for token, q in enumerate(line)]
        grown.sort(key=lambda candidate: -candidate[0])
        ends = [candidate for candidate in grown[:beam_size] if candidate[1][-1] == model.config.eos_id]
        finished += [(by_penalty(p, step, alpha, form), p, y[:-1]) for p, y in ends]
        if beam_size == 1 and ends:
            break
        living = [(p, y) for p, y in grown if y[-1] != model.config.eos_id][:beam_size]
    cut = [(by_penalty(p, limit, alpha, form), p, y) for p, y in living]
    return sorted(finished or cut, key=lambda candidate: -candidate[0])[:n_best]


def same(hypotheses, expected, tolerance=1e-9):
    assert [hypothesis.ids for hypothesis in hypotheses] == [y for _, _, y in expected]
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([s for s, _, _ in expected], abs=tolerance)
    assert [h.log_probability for h in hypotheses] == pytest.approx([p for _, p, _ in expected], abs=3 * tolerance)


def search(model, sources, *options, **more):
    return beam_search(model, pad(sources, model.config.pad_id), *options, **more)


@pytest.fixture(scope="module")
def searched(case):
    """For the models above, what the textbook finds with a beam of three."""
    model, sources, _ = case
    return model, sources, [textbook(model, source, 3, 0.6, LIMIT, 3) for source in sources]


def test_the_batch_finds_what_the_textbook_finds(searched):
    model, sources, expected = searched
    for hypotheses, wanted in zip(search(model, sources, 3, 0.6, LIMIT, 3), expected, strict=True):
        same(hypotheses, wanted)


def test_the_beam_in_any_order_and_any_company(searched):
    model, sources, expected = searched
    generator = torch.Generator().manual_seed(1)
    for size in (1, 1, 2, 4, len(sources)):
        order = torch.randperm(len(sources), generator=generator)[:size].tolist()
        wider = [*[sources[i] for i in order], [5] * 40 + [model.config.eos_id]][: size + (size < 3)]
        if model.config.positions == "learned":
            wider = wider[:size]  # forty are more than it has positions
        for i, hypotheses in zip(order, search(model, wider, 3, 0.6, LIMIT, 3), strict=False):
            same(hypotheses, expected[i])


@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    beam_size=st.integers(1, 6),
    alpha=st.sampled_from([0, 0.3, 0.6, 1, 2]),
    limit=st.integers(1, 9),
    form=st.sampled_from(["gnmt", "fairseq"]),
    data=st.data(),
)
def test_any_model_beam_penalty_and_limit(seed, lengths, beam_size, alpha, limit, form, data):
    model = random_model(seed, n_layers=1)
    n_best = data.draw(st.integers(1, beam_size))
    sources = random_sources(model, lengths, seed)
    results = search(model, sources, beam_size, alpha, limit, n_best, form)
    for source, hypotheses in zip(sources, results, strict=True):
        same(hypotheses, textbook(model, source, beam_size, alpha, limit, n_best, form))


def test_beam_of_one_is_greedy():
    for seed in range(5):
        model = random_model(seed)
        sources = random_sources(model, [1 + i for i in range(10)], seed)
        greedy = decode(model, sources, max_new_tokens=LIMIT)
        for alpha in (0, 0.6, 2):
            results = search(model, sources, 1, alpha, LIMIT)
            assert [hypotheses[0].ids for hypotheses in results] == greedy


def table_of(lines):
    """P(next token) of some beginnings, by (padding, begin, end, word)."""
    rest = [0.25] * 4  # after what cannot be written
    return lambda source, written: [math.log(p) if p else -math.inf for p in lines.get(written, rest)]


def test_the_search_goes_on_when_the_best_hypothesis_ends():
    """The short one ends first and is the most probable; the long one has the better score under a penalty."""
    lines = {(): [0.15, 0.4, 0.45, 0.0], (1, 3, 3, 3, 3): [0.0, 0.0, 1.0, 0.0]}
    lines |= {(1, *[3] * n): [0.0, 0.0, 0.0, 1.0] for n in range(4)}
    src, model = torch.tensor([[3, 2]]), Table(table_of(lines))
    short, long = math.log(0.45), math.log(0.4)
    assert by_penalty(long, 2, 0.6) < by_penalty(short, 1, 0.6) < by_penalty(long, 6, 0.6), "behind for a while"
    assert beam_search(model, src, 2, 0, 6)[0][0].ids == []
    (best,) = beam_search(model, src, 2, 0.6, 6)[0]
    assert best.ids == [1, 3, 3, 3, 3] and best.score == pytest.approx(by_penalty(long, 6, 0.6))


def test_greedy_can_miss_what_a_beam_finds():
    lines = {(): [0.4, 0.6, 0.0, 0.0], (0,): [0.0, 0.0, 0.9, 0.1], (1,): [0.0, 0.0, 0.4, 0.6]}
    lines |= {y: [0.0, 0.0, 1.0, 0.0] for y in [(0, 3), (1, 3)]}
    src, model = torch.tensor([[3, 2]]), Table(table_of(lines))
    assert greedy_decode(model, src, 3) == [[1, 3]]
    assert [beam_search(model, src, k, 0, 3)[0][0].ids for k in (1, 2)] == [[1, 3], [0]]


def test_the_search_ends_when_nothing_can_catch_up():
    """The bound is taken at the maximum length, so a higher limit may take longer; without a penalty it may not."""
    table = Table(lambda source, written: [math.log(p) for p in (0.04, 0.02, 0.9, 0.04)])
    src = torch.tensor([[3, 2]])
    assert beam_search(table, src, 4, 0, 50)[0][0].ids == [] and len(table.calls) == 1
    table.calls.clear()
    assert beam_search(table, src, 4, 0.6, 50, n_best=4)[0][0].ids == [] and 1 < len(table.calls) < 10


def test_who_is_done_leaves_the_batch_and_its_rows_with_it():
    def log_p(source, written):
        ends = len(written) >= source
        return [math.log(p) for p in ((0.001, 0.001, 0.997, 0.001) if ends else (0.33, 0.3, 0.01, 0.36))]

    model = Table(log_p)
    results = beam_search(model, torch.tensor([[3, 2], [0, 2], [1, 2]]), 2, 0, 10)
    assert [hypotheses[0].ids for hypotheses in results] == [[3, 3, 3], [], [3]]
    assert model.calls == [3, 4, 2, 2], "one row a sentence at first, since all beams begin alike; then two each"


def test_a_search_without_an_end_is_cut():
    endless = Table(lambda source, written: [math.log(0.6), math.log(0.3), -math.inf, math.log(0.1)])
    (first, second) = beam_search(endless, torch.tensor([[3, 2]]), 3, 0.6, 7, n_best=2)[0]
    assert first.ids == [0] * 7 and sorted(second.ids) == [0] * 6 + [1]
    assert not first.finished and first.score == pytest.approx(by_penalty(7 * math.log(0.6), 7, 0.6))
    lengths = [len(hypotheses[0].ids) for hypotheses in beam_search(endless, torch.tensor([[3, 2, 0], [3, 3, 2]]), 2)]
    assert lengths == [52, 53], "its own length and fifty"


def test_one_that_finished_comes_before_all_that_were_cut():
    late = Table(lambda source, written: [math.log(p) for p in (0.9, 0.01, 0.04, 0.05)])
    (only,) = beam_search(late, torch.tensor([[3, 2]]), 4, 0.6, 1, n_best=4)[0]
    assert only.ids == [] and only.finished, "its log P is far below that of the one that was cut"


def test_n_best_are_sorted_and_different(searched):
    model, sources, _ = searched
    for best, hypotheses in zip(
        search(model, sources, 5, 0.6, LIMIT), search(model, sources, 5, 0.6, LIMIT, 5), strict=True
    ):
        assert best[0].ids == hypotheses[0].ids and 1 <= len(hypotheses) <= 5
        assert best[0].score == pytest.approx(hypotheses[0].score, abs=1e-9)  # other batches, other roundings
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == len(hypotheses)
        for h in hypotheses:
            length = torch.tensor(len(h.ids) + h.finished)
            assert h.score == pytest.approx(h.log_probability / float(length_penalty(length, 0.6)))


def test_equals_are_taken_by_lower_id():
    """topk promises no order of equals, and on a CPU keeps none."""
    logits = torch.zeros(64)
    logits[7:40] = 1.0
    scattered = logits.topk(6).indices.tolist() != [7, 8, 9, 10, 11, 12]
    table = Table(lambda source, written: logits.tolist() if len(written) < 3 else [0.0, 0.0, 9.0, *[0.0] * 61], 64)
    src = torch.tensor([[3, 2]] * 3)
    for hypotheses in beam_search(table, src, 3, 0, 4, n_best=3):
        assert [hypothesis.ids for hypothesis in hypotheses] == [[7, 7, 7], [7, 7, 8], [7, 7, 9]]
    assert greedy_decode(table, src, 4) == draw(table, src, top_k=1, max_new_tokens=4) == [[7, 7, 7]] * 3
    assert scattered, "this torch takes equals in order: the test shows less than it could"


@given(st.integers(0, 999), st.integers(1, 12), st.integers(-20, 20), st.sampled_from([2, 50, 10**6]))
def test_the_best_of_many_tokens_are_those_of_a_stable_sort(seed, count, more, values):
    """A vocabulary large enough to be searched by columns; few different logits, so that most are equal, or many."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(values, (3, 16 * 32 * (count + 1) + more), generator=generator).float()
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    best = _best_tokens(logits, count)
    assert best[0].equal(ordered.values[:, :count]) and best[1].equal(ordered.indices[:, :count])


def test_half_precision_is_added_in_double():
    """bfloat16 logits are full of ties; log P does not lose digits on the way."""
    model = random_model().bfloat16()
    sources = random_sources(model, [3, 9])
    for source, (best, *_) in zip(sources, search(model, sources, 4, 0.6, 8), strict=True):
        assert math.isfinite(best.score)
        with torch.no_grad():
            target = torch.tensor([[1, *best.ids]])
            line = model(torch.tensor([source]), target)[0].float().log_softmax(dim=-1)
        wanted = [*best.ids, EOS_ID][: len(best.ids) + best.finished]
        total = sum(float(line[i, token]) for i, token in enumerate(wanted))
        assert best.log_probability == pytest.approx(total, abs=0.5), "bfloat16 itself is off by this much"


@pytest.mark.slow
def test_the_trained_model_translates_alike_in_any_batch():
    """float32, with a few sentences of one token and some far longer than any in training."""
    translator = load_toy_translator()
    lines = [pair.source for pair in itertools.islice(embedded_corpus("test"), 150)]
    lines += [pair.source for pair in itertools.islice(embedded_corpus("long"), 30)]
    sources = [[*translator.tokenizer.encode(line), EOS_ID] for line in lines]
    sources += [[EOS_ID]] + [[i, EOS_ID] for i in range(100, 119)]
    assert len(sources) == 200 and max(map(len, sources)) > 25

    def in_batches(size, order):
        found = {}
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            results = search(translator.model, [sources[i] for i in chosen], n_best=2)
            found |= dict(zip(chosen, results, strict=True))
        return found

    mixed = torch.randperm(len(sources), generator=torch.Generator().manual_seed(0)).tolist()
    expected = in_batches(50, sorted(mixed, key=lambda i: len(sources[i])))
    for results in (in_batches(1, mixed[:20]), in_batches(9, mixed)):
        for i, hypotheses in results.items():
            assert [hypothesis.ids for hypothesis in hypotheses] == [hypothesis.ids for hypothesis in expected[i]]
            assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected[i]], abs=1e-5)
    for i in range(0, 180, 45):
        (hypotheses,) = search(translator.model, [sources[i]], 4, 0.6, 20, 2)
        same(hypotheses, textbook(translator.model, sources[i], 4, 0.6, 20, 2), 1e-5)
    greedy = decode(translator.model, sources)
    assert [hypotheses[0].ids for hypotheses in search(translator.model, sources, 1)] == greedy


def test_the_penalties():
    lengths = torch.tensor([1, 7, 25])
    assert length_penalty(lengths, 0.6).tolist() == pytest.approx([1, 2**0.6, 5**0.6])
    assert length_penalty(lengths, 0.6, "fairseq").tolist() == pytest.approx([1, 7**0.6, 25**0.6])
    assert length_penalty(lengths, 0).tolist() == [1, 1, 1]


# --------------------------------------------------------------------------------------------------------- sampling


# χ² with so many degrees of freedom exceeds this once in a thousand times.
CRITICAL = {5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1, 9: 27.9, 10: 29.6, 11: 31.3, 12: 32.9}


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (2.0, 3)])
def test_samples_come_as_often_as_the_softmax_says(temperature, top_k):
    table, n = random_table(4), 4000
    outputs = draw(Table(table), torch.tensor([[3, 2]] * n), temperature, top_k, seed=1, max_new_tokens=2)

    def step(written):
        weights = [math.exp(q / temperature) for q in table(3, written)]
        allowed = sorted(weights, reverse=True)[: top_k or 4]
        return [w / sum(allowed) if w in allowed else 0.0 for w in weights]

    expected = {(): n * step(())[EOS_ID]}
    for a in (0, 1, 3):
        expected[a,] = n * step(())[a] * step((a,))[EOS_ID]
        expected |= {(a, b): n * step(())[a] * step((a,))[b] for b in (0, 1, 3)}
    assert sum(expected.values()) == pytest.approx(n)
    counts = {key: sum(tuple(output) == key for output in outputs) for key in expected}
    assert sum(counts.values()) == n and all(not counts[key] for key, number in expected.items() if not number)
    rare = {key for key, number in expected.items() if number < 10}
    pairs = [(counts[key], expected[key]) for key in expected if key not in rare]
    pairs += [(sum(counts[key] for key in rare), sum(expected[key] for key in rare))]
    distance = sum((count - number) ** 2 / number for count, number in pairs if number)
    freedom = len([number for _, number in pairs if number]) - 1
    assert freedom >= 5 and distance < CRITICAL[freedom]


def test_what_is_drawn_depends_on_the_seed_and_on_nobody_else(case):
    model, sources, _ = case
    seeds = [11, 12, 13, 14, 15, 16, 17]
    src = pad(sources, model.config.pad_id)
    together = draw(model, src, seed=seeds, max_new_tokens=LIMIT)
    alone = [draw(model, torch.tensor([s]), seed=[seed], max_new_tokens=LIMIT)[0] for s, seed in zip(sources, seeds)]
    backwards = draw(model, src.flip(0), seed=seeds[::-1], max_new_tokens=LIMIT)[::-1]
    assert together == alone == backwards
    assert together == draw(model, src, seed=seeds, max_new_tokens=LIMIT)
    assert together != draw(model, src, seed=3, max_new_tokens=LIMIT)
    first = draw(model, src, seed=3, max_new_tokens=LIMIT)
    assert first[:2] == draw(model, src[:2], seed=3, max_new_tokens=LIMIT)
    twins = draw(model, src[-1:].expand(8, -1), seed=3, max_new_tokens=LIMIT)
    assert len({tuple(output) for output in twins}) > 1, "with one seed for all, equal sentences differ"


def test_sampling_leaves_the_global_random_numbers_alone():
    model, state = random_model(), torch.random.get_rng_state()
    draw(model, torch.tensor([[5, EOS_ID]]), max_new_tokens=3)
    assert state.equal(torch.random.get_rng_state())


def test_cold_or_narrow_sampling_is_greedy(case):
    model, sources, expected = case
    src = pad(sources, model.config.pad_id)
    assert draw(model, src, top_k=1, max_new_tokens=LIMIT) == expected
    assert draw(model, src, temperature=1e-9, max_new_tokens=LIMIT) == expected
    assert draw(model, src, temperature=1e-300, top_k=5, seed=4, max_new_tokens=LIMIT) == expected


@given(seed=st.integers(0, 10**6), top_k=st.integers(1, 30))
def test_no_token_outside_the_top_k(seed, top_k):
    model = random_model(seed % 7, n_layers=1)
    (source,) = random_sources(model, [4], seed)
    (output,) = draw(model, torch.tensor([source]), 5.0, top_k, seed, max_new_tokens=6)
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[1, *output]]))[0]
    for i, token in enumerate([*output, EOS_ID][:6]):
        assert int((logits[i] > logits[i, token]).sum()) < top_k


# ------------------------------------------------------------------------------------------------ what all three refuse

WAYS = pytest.mark.parametrize("way", [greedy_decode, beam_search, draw], ids=["greedy", "beam", "sample"])


@WAYS
def test_training_mode_is_refused(way):
    model = random_model().train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        way(model, torch.tensor([[5, EOS_ID]]))


@WAYS
@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_no_room_to_write_is_refused(way, limit):
    with pytest.raises(ValueError, match=re.escape(f"max_new_tokens is {limit}; it must be a whole number from 1")):
        way(random_model(), torch.tensor([[5, EOS_ID]]), max_new_tokens=limit)


@WAYS
def test_more_than_the_learned_positions_is_refused(way):
    model = random_model(positions="learned", max_len=20)
    src = torch.tensor([[5, EOS_ID]])
    with pytest.raises(ValueError, match="max_new_tokens is 21, but the model has learned 20 positions"):
        way(model, src, max_new_tokens=21)
    way(model, src, max_new_tokens=20)
    way(model, src)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0; it must be a whole number from 1"),
        ({"beam_size": 2.0}, "beam_size is 2.0"),
        ({"n_best": 0}, "n_best is 0"),
        ({"n_best": 5}, "n_best is 5; it must be at most 4"),
        ({"alpha": -0.1}, "alpha is -0.1; it must be a number from 0"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"alpha": math.inf}, "alpha is inf"),
        ({"penalty": "length"}, 'penalty is \'length\'; choose "gnmt".*"fairseq"'),
    ],
)
def test_impossible_searches_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        search(random_model(), [[5, EOS_ID]], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature is 0; it must be above 0.*greedy_decode"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; it must be a whole number from 1"),
        ({"seed": [1, 2]}, "2 seeds are given for 1 sentences"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_impossible_draws_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        draw(random_model(), torch.tensor([[5, EOS_ID]]), **options)


@WAYS
def test_under_autocast_the_cache_takes_what_is_written(way):
    model = random_model().float()
    src = pad([[5, 6, 7, EOS_ID], [8, EOS_ID]])
    with torch.autocast("cpu", torch.bfloat16):
        assert len(way(model, src, max_new_tokens=5)) == 2


@WAYS
@pytest.mark.parametrize("spoil", [torch.nan, torch.inf])
def test_a_diverged_model_is_refused(way, spoil):
    model = random_model()
    with torch.no_grad():
        model.embedding.weight[7] = spoil
    with pytest.raises(ValueError, match="logits are not finite numbers"):
        way(model, torch.tensor([[5, EOS_ID]]))


@WAYS
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
def test_bad_sources_are_refused(way, src, error, message):
    with pytest.raises(error, match=message):
        way(random_model(), src)
