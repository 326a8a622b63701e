"""Attention, recorded: the right weights, the right labels, and figures of a bearable size."""

import itertools
import json

import pytest
import torch

from transformer.corpus import SentencePair, embedded_corpus
from transformer.data import make_batch
from transformer.multi_head import MultiHeadAttention
from transformer.translator import Translator, load_toy_translator
from transformer.visualization import (
    alignment_accuracy,
    attention_chart,
    look_at,
    record_attention,
    word_of_piece,
)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return load_toy_translator()


@pytest.fixture(scope="module")
def pairs() -> list[SentencePair]:
    return list(itertools.islice(embedded_corpus("test", seed=11), 20))


def test_recording_gives_every_layer_and_head_and_changes_nothing(translator: Translator):
    ids = translator.tokenizer.encode("The dog sees the old house.")
    batch = make_batch([(ids, ids[:3])])
    with torch.inference_mode():
        plain = translator.model(batch.src, batch.tgt_in)
        with record_attention(translator.model) as record:
            watched = translator.model(batch.src, batch.tgt_in)
    torch.testing.assert_close(plain, watched, atol=1e-4, rtol=0)
    n, m, config = batch.src.size(1), batch.tgt_in.size(1), translator.model.config
    for weights, shape in ((record.encoder, (n, n)), (record.decoder, (m, m)), (record.cross, (m, n))):
        assert [tuple(w.shape) for w in weights] == [(1, config.n_heads, *shape)] * config.n_layers
        for w in weights:
            torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:-1]))


def test_nothing_is_kept_outside_the_block_even_after_an_error(translator: Translator):
    with pytest.raises(RuntimeError, match="on purpose"), record_attention(translator.model):
        raise RuntimeError("on purpose")
    attentions = [module for module in translator.model.modules() if isinstance(module, MultiHeadAttention)]
    assert len(attentions) == 3 * translator.model.config.n_layers
    assert all(attention.on_weights is None for attention in attentions)


def test_rows_are_targets_and_columns_sources(translator: Translator):
    seen = look_at(translator, "The dog did not see the old house yesterday.")
    assert len(seen.source) != len(seen.written)
    assert seen.source[:3] == ["The", "dog", "did"] and seen.source[-1] == "</s>"
    assert seen.read[0] == "<s>" and seen.read[1:] == seen.written[:-1] and seen.written[-1] == "</s>"
    for kind, rows, columns in (
        ("encoder", seen.source, seen.source),
        ("decoder", seen.read, seen.read),
        ("cross", seen.written, seen.source),
    ):
        weights, row_tokens, column_tokens = seen.part(kind)
        assert (row_tokens, column_tokens) == (rows, columns)
        assert weights.shape[-2:] == (len(rows), len(columns))


def test_the_decoder_never_looks_ahead(translator: Translator, pairs: list[SentencePair]):
    for pair in pairs:
        assert look_at(translator, pair.source, pair.target).decoder.triu(diagonal=1).abs().max() == 0


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_chart_shows_these_weights_under_these_tokens(translator: Translator, pairs: list[SentencePair], kind: str):
    seen = [look_at(translator, pair.source, pair.target) for pair in pairs[:3]]
    spec = attention_chart(seen, kind, "title").to_dict()
    parameters = {parameter["name"]: parameter.get("value") for parameter in spec["params"]}
    rows = next(iter(spec["datasets"].values())) if "datasets" in spec else spec["data"]["values"]
    for i, sentence in enumerate(seen):
        weights, row_tokens, column_tokens = sentence.part(kind)
        assert parameters["row_tokens"][i] == row_tokens and parameters["column_tokens"][i] == column_tokens
        shown = [row for row in rows if row["sentence"] == i]
        assert len(shown) == weights.size(0) * weights.size(1)
        for row in shown:
            assert row["columns"] == len(column_tokens)
            expected = weights[row["layer"], row["head"]].flatten()
            torch.testing.assert_close(torch.tensor(row["thousandths"]) / 1000, expected, atol=6e-4, rtol=0)


def test_a_long_pair_needs_no_more_rows_and_few_bytes(translator: Translator):
    """One row per weight would be 80,000 rows here; Altair refuses more than 5,000."""
    sentence = " ".join(["The dog sees the old house and"] * 14) + " the cat sleeps."
    seen = look_at(translator, sentence, " ".join(["Der Hund sieht das alte Haus und"] * 14) + " die Katze schläft.")
    assert len(seen.source) > 100
    spec = attention_chart([seen], "cross", "long").to_dict()
    assert len(json.dumps(spec, separators=(",", ":"))) < 400_000
    short = [look_at(translator, pair.source) for pair in itertools.islice(embedded_corpus("test", seed=5), 3)]
    assert len(json.dumps(attention_chart(short, "cross", "three sentences").to_dict())) < 150_000


def test_bad_input_is_named(translator: Translator):
    seen = look_at(translator, "The dog sleeps.")
    with pytest.raises(ValueError, match="choose"):
        seen.part("self")
    with pytest.raises(ValueError, match="choose"):
        attention_chart([seen], "self", "title")
    with pytest.raises(ValueError, match="at least one"):
        attention_chart([], "cross", "title")
    with pytest.raises(ValueError, match="2 layers of 4 heads"):
        attention_chart([seen], "cross", "title", layer=2)
    with pytest.raises(ValueError, match="empty"):
        look_at(translator, "")
    with pytest.raises(ValueError, match="at least one"):
        alignment_accuracy(translator, [])


def test_pieces_find_their_words(translator: Translator, pairs: list[SentencePair]):
    assert word_of_piece(["▁Apfel", "baum", "."], ["Apfelbaum", "."]) == [0, 0, 1]
    assert word_of_piece(["▁", "ab", "c", "▁d"], ["abc", "d"]) == [None, 0, 0, 1]
    with pytest.raises(ValueError, match="do not spell"):
        word_of_piece(["▁ab"], ["abc"])
    for pair in pairs:
        pieces = translator.tokenizer.pieces(translator.tokenizer.encode(pair.target))
        spelled: dict[int, str] = {}
        for piece, word in zip(pieces, word_of_piece(pieces, pair.target_words), strict=True):
            if word is not None:
                spelled[word] = spelled.get(word, "") + piece.replace("▁", "")
        assert tuple(spelled[i] for i in range(len(pair.target_words))) == pair.target_words


def test_alignment_accuracy_against_a_loop(translator: Translator, pairs: list[SentencePair]):
    """The same, word by word, without matrices."""
    hits = torch.zeros(translator.model.config.n_layers, translator.model.config.n_heads)
    total = 0
    for pair in pairs:
        cross = look_at(translator, pair.source, pair.target).cross
        encode = translator.tokenizer.encode
        owners = [
            word_of_piece(translator.tokenizer.pieces(encode(text)), words)
            for text, words in ((pair.source, pair.source_words), (pair.target, pair.target_words))
        ]
        for target in {target for target, _ in pair.alignment}:
            total += 1
            sources = {source for word, source in pair.alignment if word == target}
            for layer, head in itertools.product(*map(range, hits.shape)):
                mass = [0.0] * len(pair.source_words)
                for row, row_word in enumerate(owners[1]):
                    for column, column_word in enumerate(owners[0]):
                        if row_word == target and column_word is not None:
                            mass[column_word] += cross[layer, head, row, column].item()
                hits[layer, head] += max(range(len(mass)), key=mass.__getitem__) in sources
    torch.testing.assert_close(alignment_accuracy(translator, pairs), hits / total)


def test_a_trained_head_aligns(translator: Translator, pairs: list[SentencePair]):
    assert alignment_accuracy(translator, pairs).max() > 0.75
