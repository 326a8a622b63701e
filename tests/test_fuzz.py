"""Random input at every public door: what is valid keeps the invariants, what is not is refused in our own words.

A refusal is ours if a `raise` in our own code made it. An error out of torch, a hang, and a wrong answer are faults.
"""

import contextlib
import io
import itertools
import json
import linecache
import math
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import transformer
from transformer import (
    LabelSmoothingLoss,
    TokenBatches,
    Tokenizer,
    Transformer,
    TransformerConfig,
    Translator,
    beam_search,
    bleu,
    causal_mask,
    chrf,
    clean_tree,
    copy_task,
    embedded_corpus,
    greedy_decode,
    length_penalty,
    linearize,
    load_checkpoint,
    make_batch,
    make_configuration,
    noam_rate,
    pad,
    padding_mask,
    parse_linearized,
    read_trees,
    sample,
    save_checkpoint,
    scaled_dot_product_attention,
)
from transformer.cli import main
from transformer.corpus import SPLITS
from transformer.data import BOS_ID, EOS_ID, PAD_ID
from transformer.training import TrainingConfig

OURS = str(Path(transformer.__file__).parent)
V = 12
_REFUSED = object()


def tried(call, *arguments, **options):
    """What it returns, or _REFUSED if it refuses in our own words. Anything else is a fault."""
    try:
        return call(*arguments, **options)
    except (ValueError, TypeError, FileNotFoundError) as error:
        refusal = error
    *_, (frame, line) = traceback.walk_tb(refusal.__traceback__)
    name = frame.f_code.co_filename
    assert name.startswith(OURS), f"{name}:{line}: {refusal!r}"
    assert linecache.getline(name, line).strip().startswith("raise "), f"{name}:{line}: {refusal!r}"
    assert len(str(refusal)) > 20
    return _REFUSED


def make_model(**changes):
    torch.manual_seed(1)
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, **changes}
    return Transformer(TransformerConfig(V, V, **sizes)).eval()


MODELS = {
    "sinusoidal": make_model(),
    "learned": make_model(positions="learned", max_len=6, norm_order="pre", tie_embeddings=False),
}
models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.int64, torch.int64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32])
numbers = st.one_of(
    st.integers(-3, 8),
    st.sampled_from([0.0, 0.6, -1.0, 1e-30, 1e300, float("nan"), float("inf"), -float("inf"), 10**30, None, True, "x"]),
)


@st.composite
def any_ids(draw, low=-1, high=V):
    """Ids of any shape and type, most of them right."""
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=3) | st.tuples(st.integers(1, 3), st.integers(1, 7)))
    low, high = draw(st.sampled_from([(0, V - 1), (0, V - 1), (low, high), (2**40, 2**41)]))
    generator = torch.Generator().manual_seed(draw(seeds))
    return torch.randint(low, high + 1, tuple(shape), generator=generator).to(draw(dtypes))


@st.composite
def sources(draw):
    """A batch that is right: 1 to 4 sentences of 1 to 5 tokens, each with its end."""
    rows = draw(st.lists(st.lists(st.integers(3, V - 1), max_size=4), min_size=1, max_size=4))
    return pad([[*row, EOS_ID] for row in rows])


# ---- model ----


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "src_vocab_size": st.integers(-1, 9),
            "tgt_vocab_size": st.integers(-1, 9),
            "d_model": st.integers(-1, 9) | numbers,
            "n_layers": st.integers(0, 2) | numbers.filter(lambda number: number != 10**30),
            "n_heads": st.integers(-1, 4) | numbers.filter(lambda number: number != 10**30),
            "d_ff": st.integers(0, 5),
            "d_k": st.none() | st.integers(-1, 4),
            "d_v": st.none() | st.integers(-1, 4),
            "dropout": numbers,
            "norm_order": st.sampled_from(["post", "pre", "", None, 3]),
            "positions": st.sampled_from(["sinusoidal", "learned", "rope", None]),
            "tie_embeddings": st.booleans() | numbers,
            "max_len": st.integers(-1, 9),
            "pad_id": st.integers(-1, 6),
            "bos_id": st.integers(-1, 6),
            "eos_id": numbers.filter(lambda number: number != 10**30),
        },
    )
)
@settings(max_examples=150)
def test_a_configuration_is_refused_or_makes_a_model(fields):
    if fields.get("d_model") == 10**30:
        fields["d_model"] = 8
    sizes = {"src_vocab_size": 6, "tgt_vocab_size": 6, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 4}
    config = tried(TransformerConfig, **{**sizes, **fields})
    if config is not _REFUSED:
        assert TransformerConfig.from_json(config.to_json()) == config
        token = next(i for i in range(6) if i != config.pad_id)
        ids = torch.tensor([[token]])
        logits = tried(Transformer(config).eval(), ids, ids)
        assert logits is not _REFUSED and logits.shape == (1, 1, config.tgt_vocab_size) and logits.isfinite().all()


@given(models, any_ids(), any_ids())
@settings(max_examples=150)
def test_logits_of_anything(model, src, tgt_in):
    with torch.no_grad():
        logits = tried(model, src, tgt_in)
    longest = model.config.max_len if model.config.positions == "learned" else math.inf
    valid = [
        each.dim() == 2 and each.numel() > 0 and each.dtype in (torch.int64, torch.int32) for each in (src, tgt_in)
    ]
    valid = all(valid) and len(src) == len(tgt_in) and max(src.size(1), tgt_in.size(1)) <= longest
    valid = valid and all(int(each.min()) >= 0 and int(each.max()) < V for each in (src, tgt_in))
    assert (logits is _REFUSED) == (not valid)
    if valid:
        assert logits.shape == (*tgt_in.shape, V) and logits.isfinite().all()


@given(
    models,
    any_ids(),
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from([torch.float32, torch.int64, torch.float64]),
)
@settings(max_examples=150)
def test_decoding_from_any_memory(model, tgt_in, shape, dtype):
    memory = torch.zeros(*shape, 8, dtype=dtype)
    with torch.no_grad():
        hidden = tried(model.decode, tgt_in, memory)
    if hidden is not _REFUSED:
        assert hidden.shape == (*tgt_in.shape, 8) and hidden.isfinite().all()


@given(sources(), seeds)
def test_padding_company_and_later_tokens_change_nothing(src, seed):
    model, generator = MODELS["sinusoidal"], torch.Generator().manual_seed(seed)
    tgt = torch.randint(3, V, (len(src), 4), generator=generator)
    with torch.no_grad():
        logits = model(src, tgt)
        wider = model(torch.nn.functional.pad(src, (0, 3), value=PAD_ID), torch.nn.functional.pad(tgt, (0, 2)))
        torch.testing.assert_close(wider[:, :4], logits, atol=1e-5, rtol=1e-4)
        other = tgt.clone()
        other[:, 2] = 3 + (other[:, 2] - 2) % (V - 3)
        assert torch.equal(model(src, other)[:, :2], logits[:, :2])
        alone = model(src[:1, : int((src[0] != PAD_ID).sum())], tgt[:1])
        torch.testing.assert_close(alone, logits[:1], atol=1e-5, rtol=1e-4)


# ---- masks and attention ----


@given(st.integers(-5, 20))
def test_causal_masks(size):
    mask = tried(causal_mask, size)
    assert (mask is _REFUSED) == (size < 1)
    if size >= 1:
        assert mask.tolist() == [[key <= query for key in range(size)] for query in range(size)]


@given(any_ids(), st.integers(-1, 4))
def test_padding_masks(ids, pad_id):
    mask = tried(padding_mask, ids, pad_id)
    assert (mask is _REFUSED) == (ids.dim() != 2)
    if ids.dim() == 2:
        assert mask.dtype == torch.bool and torch.equal(mask[:, 0, 0], ids != pad_id)


shapes = st.lists(st.integers(0, 3), min_size=0, max_size=4)


@given(shapes, shapes, shapes, st.none() | shapes, st.sampled_from([torch.float32, torch.int64, torch.float64]), dtypes)
@settings(max_examples=200)
def test_attention_over_anything(query, key, value, mask, dtype, mask_dtype):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in (query, key, value))
    allowed = None if mask is None else torch.ones(mask).to(mask_dtype)
    found = tried(scaled_dot_product_attention, q, k, v, allowed)
    if found is not _REFUSED:
        output, weights = found
        assert output.shape[-1] == v.shape[-1] and output.shape[-2] == q.shape[-2] and q.size(-1) > 0
        assert weights.numel() == 0 or ((weights >= 0) & (weights <= 1 + 1e-6)).all()


# ---- loss and schedule ----


@given(
    shapes,
    any_ids(),
    st.sampled_from([torch.float32, torch.float64, torch.int64]),
    st.sampled_from([0.0, 0.1, 0.5, 0.99]),
)
@settings(max_examples=200)
def test_the_loss_of_anything(shape, targets, dtype, epsilon):
    for logits in (torch.zeros(shape, dtype=dtype), torch.zeros(*targets.shape, V, dtype=dtype)):
        loss = tried(LabelSmoothingLoss(epsilon), logits, targets)
        if loss is not _REFUSED:
            real = int((targets != PAD_ID).sum())
            assert math.isclose(loss.item(), math.log(logits.size(-1)) if real else 0.0, rel_tol=1e-5, abs_tol=1e-6)


@given(st.floats() | st.integers(-2, 2), st.sampled_from(["mean", "sum", "none", "", 3]))
def test_smoothing_out_of_range(epsilon, reduction):
    loss = tried(LabelSmoothingLoss, epsilon, reduction=reduction)
    assert (loss is _REFUSED) == (not 0 <= epsilon < 1 or reduction not in ("mean", "sum"))


@given(st.integers(-2, 10**9), st.integers(-2, 4096), st.integers(-2, 10**6))
def test_the_schedule(step, d_model, warmup_steps):
    rate = tried(noam_rate, step, d_model, warmup_steps)
    assert (rate is _REFUSED) == (min(step, d_model, warmup_steps) < 1)
    if rate is not _REFUSED:
        assert 0 < rate <= noam_rate(warmup_steps, d_model, warmup_steps) * (1 + 1e-12)


# ---- decoding ----


@given(models, any_ids(), st.none() | st.integers(-2, 9))
@settings(max_examples=100)
def test_greedy_decoding_of_anything(model, src, max_new_tokens):
    outputs = tried(greedy_decode, model, src, max_new_tokens)
    if outputs is not _REFUSED:
        assert len(outputs) == len(src)
        for ids, row in zip(outputs, src, strict=True):
            limit = max_new_tokens or int((row != PAD_ID).sum()) + 50
            assert len(ids) <= limit and all(0 <= i < V and i != EOS_ID for i in ids)


@given(models, sources(), numbers, numbers, numbers, numbers, st.sampled_from(["gnmt", "fairseq", "none"]))
@settings(max_examples=150)
def test_beam_search_with_any_options(model, src, beam_size, alpha, max_new_tokens, n_best, penalty):
    if any(not isinstance(number, int | float | None) for number in (beam_size, alpha, max_new_tokens, n_best)):
        return  # a type that the signature excludes
    if not isinstance(alpha, int | float) or beam_size == 10**30 or max_new_tokens == 10**30:
        return
    found = tried(beam_search, model, src, beam_size, alpha, max_new_tokens, n_best, penalty)
    if found is not _REFUSED:
        assert len(found) == len(src)
        for best in found:
            assert 1 <= len(best) <= n_best
            assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
            assert len({(*one.ids, one.finished) for one in best}) == len(best)
            assert all(one.log_probability <= 1e-9 and EOS_ID not in one.ids for one in best)


@given(
    models,
    sources(),
    st.floats(),
    st.none() | st.integers(-2, 40),
    st.integers(-2, 9) | st.lists(st.integers(-1, 9), max_size=5),
)
def test_sampling_with_any_options(model, src, temperature, top_k, seed):
    outputs = tried(sample, model, src, temperature, top_k, seed, 4)
    if outputs is not _REFUSED:
        assert temperature > 0 and len(outputs) == len(src) and all(len(ids) <= 4 for ids in outputs)
        assert outputs == sample(model, src, temperature, top_k, seed, 4)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5), st.floats(), st.sampled_from(["gnmt", "fairseq", "?"]))
def test_penalties(lengths, alpha, form):
    penalties = tried(length_penalty, torch.tensor(sorted(lengths)), alpha, form)
    if penalties is not _REFUSED:
        assert 0 <= alpha < math.inf
        finite = penalties[penalties.isfinite()]  # α of a thousand is no error, though it overflows
        assert (finite >= 1).all() and (finite.diff() >= 0).all()


# ---- batching and corpora ----

ids = st.lists(st.integers(3, 50), max_size=6)


@given(st.lists(st.tuples(ids, ids), max_size=6), st.integers(-2, 20), st.integers(-2, 5), st.integers(1, 4))
@settings(max_examples=150)
def test_batches_of_anything(pairs, max_tokens, seed, parts):
    batches = tried(TokenBatches, pairs, max_tokens, seed)
    if batches is _REFUSED:
        longest = max((max(len(one), len(other)) + 1 for one, other in pairs), default=0)
        assert not 0 < longest <= max_tokens or seed < 0
        return
    planned = np.concatenate(batches.plan(3)).tolist()
    assert sorted(planned) == list(range(len(pairs)))
    for batch in batches.epoch(0):
        assert max(batch.src.numel(), batch.tgt_out.numel()) <= max_tokens
        assert batch.tgt_in[:, 0].eq(BOS_ID).all() and torch.equal(
            batch.src.eq(EOS_ID).sum(1), torch.ones(len(batch.src))
        )
        split = batch.split(parts)
        assert len(split) == parts and sum(part.n_tokens for part in split) == batch.n_tokens


@given(st.lists(st.tuples(ids, ids), max_size=4))
def test_a_batch_gives_its_pairs_back(pairs):
    batch = tried(make_batch, pairs)
    assert (batch is _REFUSED) == (not pairs)
    if pairs:
        for (source, target), src, tgt_out in zip(pairs, batch.src.tolist(), batch.tgt_out.tolist(), strict=True):
            assert src[: src.index(EOS_ID)] == source and tgt_out[: tgt_out.index(EOS_ID)] == target


@given(st.sampled_from([*SPLITS, "Train", "", "validation"]), st.integers(-(10**20), 10**20))
def test_the_embedded_corpus_of_any_seed(split, seed):
    stream = tried(embedded_corpus, split, seed)
    assert (stream is _REFUSED) == (split not in SPLITS)
    if stream is not _REFUSED:
        first = list(itertools.islice(stream, 2))
        assert first == list(itertools.islice(embedded_corpus(split, seed), 2))
        for pair in first:
            english, german = pair.source.split(), pair.target.split()
            assert english and german and all(i >= 0 and j >= 0 for i, j in pair.alignment)


@given(st.integers(0, 5), st.integers(-1, 8), st.integers(-2, 5), st.integers(-2, 5), st.integers(-5, 5))
def test_copy_tasks(n_pairs, vocab_size, min_len, max_len, seed):
    pairs = tried(copy_task, n_pairs, vocab_size, min_len, max_len, seed)
    if pairs is not _REFUSED:
        assert len(pairs) == n_pairs
        assert all(
            one == other and min_len <= len(one) <= max_len and all(3 < i < vocab_size for i in one)
            for one, other in pairs
        )


@pytest.fixture(scope="module")
def tokenizer():
    lines = [text for pair in itertools.islice(embedded_corpus(), 200) for text in (pair.source, pair.target)]
    return Tokenizer.train(lines, 400)


@given(st.text(st.characters(codec=None), max_size=30))
def test_any_string_comes_back_or_is_refused(tokenizer, text):
    found = tried(tokenizer.encode, text)
    surrogates = any("\ud800" <= char <= "\udfff" for char in text)
    assert (found is _REFUSED) == surrogates
    if not surrogates:
        assert tokenizer.decode(found) == text.replace("\u2581", " ")


@given(st.lists(st.integers(-(2**70), 2**70) | st.integers(-2, 402), max_size=8))
def test_any_ids_are_decoded_or_refused(tokenizer, some):
    text = tried(tokenizer.decode, some)
    assert (text is _REFUSED) == any(not 0 <= i < 400 for i in some)


# ---- trees ----


@given(st.text("() \t\nNPS-a", max_size=40))
@settings(max_examples=300)
def test_text_is_trees_or_refused_with_its_line(text):
    trees = tried(lambda: list(read_trees(text.splitlines(keepends=True))))
    if trees is _REFUSED:
        return
    for tree in trees:
        assert list(read_trees([f"({tree})"])) == [tree]
        words = tree.words()
        assert words and parse_linearized(linearize(tree), words).tree.words() == words
        cleaned = clean_tree(tree)
        assert cleaned is None or clean_tree(cleaned) == cleaned


# ---- scores ----

texts = st.lists(st.text(max_size=12) | st.none() | st.integers(), max_size=4)


@given(texts | st.text(max_size=5), texts)
@settings(max_examples=100)
def test_scores_of_anything(hypotheses, references):
    for metric in (bleu, chrf):
        score = tried(metric, hypotheses=hypotheses, references=references)
        if score is not _REFUSED:
            assert 0 <= score.value <= 100 + 1e-6 and len(hypotheses) == len(references) > 0


# ---- configurations and checkpoints ----

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [*make_configuration("tiny"), "nonsense", ""]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values | st.integers(-2, 600), max_size=3))
@settings(max_examples=300)
def test_a_run_configuration_is_refused_or_complete(fields):
    whole = tried(make_configuration, fields)
    if whole is not _REFUSED:
        assert {*whole} == {*FIELDS} - {"nonsense", ""} and make_configuration(whole) == whole


@given(
    st.dictionaries(
        st.sampled_from(["steps", "warmup_steps", "accumulate", "log_every", "keep", "clip_norm"]),
        st.integers(-3, 3) | st.floats(),
        max_size=3,
    )
)
def test_a_training_configuration(fields):
    config = tried(TrainingConfig, **fields)
    if config is not _REFUSED:
        assert min(config.steps, config.warmup_steps, config.accumulate, config.log_every, config.keep) >= 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, MODELS["sinusoidal"])
    return folder


@given(
    st.dictionaries(
        st.sampled_from([*json.loads(MODELS["learned"].config.to_json()), "nonsense"]),
        json_values,
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=200)
def test_a_checkpoint_with_another_configuration(checkpoint, fields):
    path = checkpoint / "config.json"
    whole = path.read_bytes()
    content = json.loads(whole)
    before = dict(content["model"])
    content["model"].update(fields)
    try:
        path.write_text(json.dumps(content))
        model = tried(load_checkpoint, checkpoint)
    finally:
        path.write_bytes(whole)
    assert (model is _REFUSED) or content["model"] == before


# ---- the translator and the command line ----


@given(
    st.lists(st.text(st.characters(codec=None), max_size=20), max_size=4),
    st.sampled_from(["raise", "empty"]),
    st.integers(1, 3),
)
@settings(max_examples=60)
def test_one_out_for_one_in(tokenizer, lines, errors, beam_size):
    torch.manual_seed(0)
    sizes = {"d_model": 4, "n_layers": 1, "n_heads": 1, "d_ff": 4, "positions": "learned", "max_len": 12}
    translator = Translator(Transformer(TransformerConfig(400, 400, **sizes)), tokenizer)
    outputs = tried(translator.translate, lines, errors, beam_size)
    if outputs is not _REFUSED:
        assert len(outputs) == len(lines)
        assert all(not out for line, out in zip(lines, outputs, strict=True) if not line.strip())
    else:
        assert errors == "raise"


OPTIONS = [
    "--data", "--run", "--model", "--train", "--out", "--config", "--resume", "--device", "--beam-size", "--alpha",
    "--steps", "--batch-tokens", "--n-best", "--source", "--reference", "--last", "--limit", "--json", "--corpus",
    "--", "-", "/nowhere", "-1", "0", "1", "nan", "1e999", "cpu", "meta", "tiny", "é",
]  # fmt: skip
words = st.sampled_from([*OPTIONS, "", "x\0y", "\udcff", "a" * 300])


@given(st.sampled_from(["prepare", "train", "average", "translate", "evaluate", "bogus"]), st.lists(words, max_size=5))
@settings(max_examples=120)
def test_any_words_on_the_command_line(command, rest):
    """One of the codes that are promised, at most one line besides the usage, and no exception gets out."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    kept = sys.stdin
    try:
        sys.stdin = io.TextIOWrapper(io.BytesIO(b""))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([command, *rest])
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdin = kept
    assert code in (0, 1, 2), err.getvalue()
    lines = [line for line in err.getvalue().splitlines() if not line.startswith(("device ", "usage:", " "))]
    assert len(lines) == (code != 0), lines
