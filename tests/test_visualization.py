"""Attention, recorded: the right weights, the right labels, and figures of a bearable size."""

import itertools
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import vl_convert
from altair.vegalite.v6.display import VEGALITE_VERSION
from axe_playwright_python.base import AXE_SCRIPT
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser
from test_pages import AXE, CONTRAST, CONTROLS, DESK, PHONE, READABLE, SETTLED, WIDE, chromium

from transformer.corpus import SentencePair, embedded_corpus
from transformer.data import make_batch
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import MultiHeadAttention
from transformer.translator import Translator, load_toy_translator
from transformer.visualization import (
    SentenceAttention,
    alignment_accuracy,
    alignment_error,
    attention_chart,
    attention_lines,
    attention_page,
    head_entropy,
    look_at,
    record_attention,
    without_heads,
    word_attention,
    word_of_piece,
)

KINDS = ("encoder", "decoder", "cross")


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


def values(spec: dict) -> list[dict]:
    """The rows of a chart's data."""
    return next(iter(spec["datasets"].values())) if "datasets" in spec else spec["data"]["values"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_shows_these_weights_under_these_tokens(translator: Translator, pairs: list[SentencePair], kind: str):
    seen = [look_at(translator, pair.source, pair.target) for pair in pairs[:3]]
    spec = attention_chart(seen, kind, "title").to_dict()
    parameters = {parameter["name"]: parameter.get("value") for parameter in spec["params"]}
    rows = values(spec)
    assert any(len(sentence.source) != len(sentence.written) for sentence in seen)  # or axes could be exchanged unseen
    for i, sentence in enumerate(seen):
        weights, row_tokens, column_tokens = sentence.part(kind)
        assert parameters["row_tokens"][i] == row_tokens and parameters["column_tokens"][i] == column_tokens
        shown = [row for row in rows if row["sentence"] == i]
        assert len(shown) == weights.size(0) * weights.size(1)
        for row in shown:
            assert row["columns"] == len(column_tokens)
            expected = weights[row["layer"], row["head"]].flatten()
            shown_weights = torch.tensor(row["thousandths"]) / 1000
            torch.testing.assert_close(shown_weights, expected, atol=6e-4, rtol=0)
            sums = shown_weights.view(len(row_tokens), len(column_tokens)).sum(dim=-1)
            assert (sums - 1).abs().max() <= 0.0005 * len(column_tokens) + 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_lines_join_the_right_tokens(translator: Translator, pairs: list[SentencePair], kind: str):
    seen = look_at(translator, pairs[0].source, pairs[0].target)
    weights, row_tokens, column_tokens = seen.part(kind)
    heads = [(1, 3), (0, 2)]
    spec = attention_lines(seen, kind, heads, "title", word=2).to_dict()
    lines, left, right = (layer["data"]["values"] for layer in spec["layer"])
    assert [place["token"] for place in left] == row_tokens and [place["row"] for place in left] == [*range(len(left))]
    assert [place["token"] for place in right] == column_tokens
    assert {parameter["name"]: parameter.get("value") for parameter in spec["params"]}["word"] == 2
    drawn, shifts = 0, set()
    for layer, head in heads:
        own = [line for line in lines if line["head"] == f"layer {layer + 1}, head {head + 1}"]
        shift = {round(line["start"] - line["row"], 3) for line in own}
        assert len(shift) == 1 and abs(*shift) < 0.5
        shifts |= shift
        drawn += len(own)
        shown = torch.zeros_like(weights[layer, head])
        for line in own:
            column = round(line["end"] - shift.copy().pop())
            assert (line["from"], line["to"]) == (row_tokens[line["row"]], column_tokens[column])
            shown[line["row"], column] = line["weight"]
        expected = torch.where(weights[layer, head] >= 0.05, weights[layer, head], 0.0)
        torch.testing.assert_close(shown, expected, atol=6e-4, rtol=0)
    assert drawn == len(lines) and len(shifts) == len(heads), "the lines of two heads lie side by side"


def test_drawn_lines_lead_from_word_to_word():
    """In the picture itself: from the left word to the right one, thick if the weight is large, a colour a head."""
    cross = torch.tensor([[[[0.9, 0.1, 0.0], [0.0, 0.04, 0.96]], [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]]])
    nothing = torch.zeros(1, 2, 0, 0)
    seen = SentenceAttention(["s0", "s1", "s2"], ["r0", "r1"], ["w0", "w1"], nothing, nothing, cross)
    expected = [("w0", "s0", 0.9), ("w0", "s1", 0.1), ("w1", "s2", 0.96), ("w0", "s2", 1.0), ("w1", "s1", 1.0)]
    for word in (None, 0, 1):
        spec = attention_lines(seen, "cross", [(0, 0), (0, 1)], "What to see", word).to_dict()
        picture = BeautifulSoup(vl_convert.vegalite_to_svg(spec), "html.parser")
        places = {text.string: [*map(float, re.findall(r"[-.\d]+", text["transform"]))] for text in picture("text")}
        assert "What to see" in places and places["w0"][1] < places["w1"][1] < places["s2"][1] < spec["height"]
        assert places["w0"][0] < 0 and places["s0"][0] > spec["width"], "words stand outside of the lines"
        lines, weight_and_width = [], []
        for line in picture("line"):
            x, y = map(float, re.findall(r"[-.\d]+", line["transform"]))
            assert (x, float(line["x2"])) == (0, spec["width"]) and float(line["opacity"]) > 0.5
            ends = [min(names, key=lambda name: abs(places[name][1] - height - 4))  # letters stand 4 px lower
                    for names, height in ((seen.written, y), (seen.source, y + float(line["y2"])))]  # fmt: skip
            weight = float(re.search(r"weight: ([.\d]+)", line["aria-label"])[1])
            lines.append((*ends, weight))
            weight_and_width.append((weight, float(line["stroke-width"])))
        assert lines == [line for line in expected if word is None or line[0] == f"w{word}"]
        assert sorted(weight_and_width) == sorted(weight_and_width, key=lambda pair: pair[1])
        assert {line["stroke"] for line in picture("line")} == {"#0072B2", "#E69F00"}
        assert [param["bind"] for param in spec["params"] if param["name"] == "shown"] == ["legend"]


def test_lines_follow_the_menu(translator: Translator):
    """The menu offers every row, and all rows first."""
    seen = look_at(translator, "The dog sleeps.")
    spec = attention_lines(seen, "cross", [(0, 0)], "title").to_dict()
    (menu,) = (parameter for parameter in spec["params"] if parameter["name"] == "word")
    assert menu["value"] == -1 and menu["bind"]["options"] == [-1, *range(len(seen.written))]
    assert menu["bind"]["labels"] == ["all words", *seen.written]


def test_a_long_pair_needs_no_more_rows_and_few_bytes(translator: Translator):
    """One row per weight would be 80,000 rows here; Altair refuses more than 5,000."""
    sentence = " ".join(["The dog sees the old house and"] * 14) + " the cat sleeps."
    seen = look_at(translator, sentence, " ".join(["Der Hund sieht das alte Haus und"] * 14) + " die Katze schläft.")
    assert len(seen.source) > 100
    spec = attention_chart([seen], "cross", "long").to_dict()
    assert len(json.dumps(spec, separators=(",", ":"))) < 400_000
    short = [look_at(translator, pair.source) for pair in itertools.islice(embedded_corpus("test", seed=5), 3)]
    assert len(json.dumps(attention_chart(short, "cross", "three sentences").to_dict())) < 150_000
    heads = [(1, head) for head in range(4)]
    assert len(json.dumps(attention_lines(seen, "cross", heads, "long").to_dict())) < 400_000
    assert len(json.dumps(attention_lines(short[0], "cross", heads, "one sentence").to_dict())) < 30_000


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
    translator.model.train()
    for target in (None, "Der Hund schläft."):
        with pytest.raises(ValueError, match="training mode"):
            look_at(translator, "The dog sleeps.", target)
    translator.model.eval()
    with pytest.raises(ValueError, match="at least one"):
        alignment_accuracy(translator, [])
    with pytest.raises(ValueError, match="at least one"):
        alignment_error([], [])
    with pytest.raises(ValueError, match="is shorter than"):
        alignment_error([torch.ones(1, 1)], [])
    with pytest.raises(ValueError, match="at least one"):
        head_entropy([], "cross")
    with pytest.raises(ValueError, match="choose"):
        head_entropy([seen], "self")
    for heads, word in (([], None), ([(0, 0)], -1), ([(0, 0)], len(seen.written))):
        with pytest.raises(ValueError, match="give at least one head, and as word None or a row from 0 to"):
            attention_lines(seen, "cross", heads, "title", word)
    with pytest.raises(ValueError, match="2 layers of 4 heads"):
        attention_lines(seen, "cross", [(0, 0), (0, 4)], "title")


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


# ------------------------------------------------------------------------------------------------------------ measures


def test_attention_of_words_against_a_loop(translator: Translator, pairs: list[SentencePair]):
    """Columns are added and rows averaged, piece by piece; decoder columns are what has been read of each word."""
    pair = max(pairs, key=lambda pair: len(translator.tokenizer.encode(pair.target)))
    encode, pieces = translator.tokenizer.encode, translator.tokenizer.pieces
    source = word_of_piece(pieces(encode(pair.source)), pair.source_words)
    target = word_of_piece(pieces(encode(pair.target)), pair.target_words)
    assert len(target) > len(pair.target_words), "no word of this sentence has two pieces"
    seen = look_at(translator, pair.source, pair.target)
    for kind, rows, columns, skipped in (
        ("encoder", source, source, 0),
        ("decoder", target, target, 1),
        ("cross", target, source, 0),
    ):
        found = word_attention(translator, pair, kind)
        weights, _, _ = seen.part(kind)
        expected = torch.zeros(*weights.shape[:2], max(rows) + 1, max(columns) + 1)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                expected[:, :, row, column] += weights[:, :, i, j + skipped] / rows.count(row)
        torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="choose"):
        word_attention(translator, pair, "self")


@given(st.data())
def test_alignment_error_against_sets(data: st.DataObject):
    """Och and Ney's formula, with sets of links."""
    pairs, weights = [], []
    expected: list[tuple[int, int, int]] = []  # |A ∩ S|, |A|, |S|
    for _ in range(data.draw(st.integers(1, 3))):
        n_target, n_source = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
        every = [*itertools.product(range(n_target), range(n_source))]
        true = data.draw(st.sets(st.sampled_from(every)))
        scores = torch.tensor(data.draw(st.permutations(range(len(every))))).float().view(n_target, n_source)
        proposed = {(i, max(range(n_source), key=lambda j: scores[i, j].item())) for i in range(n_target)}
        words = tuple("w" * n_source), tuple("w" * n_target)
        pairs.append(SentencePair(*words, tuple(sorted(true)), frozenset()))
        weights.append(torch.stack([scores, -scores]))
        expected.append((len(true & proposed), len(proposed), len(true)))
    hits, links = sum(e[0] for e in expected), sum(e[1] + e[2] for e in expected)
    found = alignment_error(weights, pairs)
    assert found.shape == (2,) and found[0].item() == pytest.approx(1 - 2 * hits / links)


def test_the_true_alignment_has_no_error():
    pair = SentencePair(("a", "b"), ("B", "A"), ((0, 1), (1, 0)), frozenset())
    assert alignment_error([torch.eye(2).flip(0)], [pair]) == 0
    assert alignment_error([torch.eye(2)], [pair]) == 1


def test_entropy_in_bits():
    """Known distributions: one token, n tokens alike, and one half, a quarter, a quarter."""
    one = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0]])
    alike = torch.full((2, 4), 0.25)
    mixed = torch.tensor([[0.5, 0.25, 0.25, 0], [0, 0.25, 0.5, 0.25]])
    cross = torch.stack([one, alike, mixed]).view(1, 3, 2, 4)
    nothing = torch.zeros(1, 3, 0, 0)
    seen = SentenceAttention(["s"] * 4, ["r"] * 2, ["w"] * 2, nothing, nothing, cross)
    torch.testing.assert_close(head_entropy([seen], "cross"), torch.tensor([[0.0, 2.0, 1.5]]))


def test_entropy_is_the_mean_over_all_rows(translator: Translator, pairs: list[SentencePair]):
    seen = [look_at(translator, pair.source, pair.target) for pair in pairs[:3]]
    rows = [row for sentence in seen for row in sentence.encoder[1, 2].tolist()]
    expected = sum(-weight * math.log2(weight) for row in rows for weight in row if weight > 0) / len(rows)
    assert head_entropy(seen, "encoder")[1, 2].item() == pytest.approx(expected, rel=1e-4)


# --------------------------------------------------------------------------------------------------- heads switched off


@pytest.fixture
def attentions(translator: Translator) -> dict[str, list[MultiHeadAttention]]:
    encoder, decoder = translator.model.encoder.layers, translator.model.decoder.layers
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.memory_attention for layer in decoder],
    }


@pytest.mark.parametrize(("kind", "layer", "head"), [("encoder", 1, 3), ("decoder", 0, 0), ("cross", 1, 2)])
@torch.inference_mode()
def test_a_head_switched_off_is_missing_from_the_sum(translator, attentions, kind, layer, head):
    """Against Equation (1) by hand: the output less what this head alone adds to it; other attentions stay."""
    attention = attentions[kind][layer]
    x = torch.randn(2, 5, attention.d_model, generator=torch.Generator().manual_seed(1))
    q, k, v = (
        w(x).view(2, 5, attention.n_heads, -1)[:, :, head] for w in (attention.w_q, attention.w_k, attention.w_v)
    )
    own = (q @ k.transpose(1, 2) / math.sqrt(attention.d_k)).softmax(dim=-1) @ v  # (2, 5, d_v)
    columns = attention.w_o.weight[:, head * attention.d_v : (head + 1) * attention.d_v]
    whole = {name: [part(x, x, x) for part in parts] for name, parts in attentions.items()}
    with without_heads(translator.model, [(kind, layer, head)]):
        rest = {name: [part(x, x, x) for part in parts] for name, parts in attentions.items()}
    torch.testing.assert_close(rest[kind][layer], whole[kind][layer] - own @ columns.T, atol=1e-4, rtol=1e-4)
    for name, place in itertools.product(KINDS, range(2)):
        assert torch.equal(rest[name][place], whole[name][place]) == ((name, place) != (kind, layer))


def test_a_head_has_as_many_columns_as_its_values():
    model = Transformer(TransformerConfig(10, 10, d_model=8, n_heads=2, d_k=2, d_v=5, d_ff=8, n_layers=1))
    weight = model.encoder.layers[0].self_attention.w_o.weight  # (8, 2 · 5)
    with without_heads(model, [("encoder", 0, 1)]):
        assert weight.eq(0).all(dim=0).tolist() == [False] * 5 + [True] * 5


def test_heads_come_back_to_the_last_bit(translator: Translator):
    """After the block, after an error in it, after blocks in blocks, and if a head is named twice."""
    before = {name: value.clone() for name, value in translator.model.state_dict().items()}

    def unchanged() -> bool:
        return all(torch.equal(value, before[name]) for name, value in translator.model.state_dict().items())

    heads = [("encoder", 0, 1), ("encoder", 0, 2), ("cross", 1, 0), ("encoder", 0, 1)]
    with without_heads(translator.model, heads):
        assert not unchanged()
        with without_heads(translator.model, [("encoder", 0, 3), ("decoder", 1, 1)]):
            pass
    assert unchanged()
    with pytest.raises(RuntimeError, match="on purpose"), without_heads(translator.model, heads):
        raise RuntimeError("on purpose")
    assert unchanged()
    assert all(parameter.requires_grad for parameter in translator.model.parameters())


@pytest.mark.parametrize(
    ("head", "said"),
    [(("self", 0, 0), "choose"), (("cross", 2, 0), "2 layers of 4"), (("cross", 0, -1), "2 layers of 4")],
)
def test_a_wrong_head_switches_nothing_off(translator: Translator, head: tuple[str, int, int], said: str):
    before = translator.model.encoder.layers[0].self_attention.w_o.weight.clone()
    with pytest.raises(ValueError, match=said), without_heads(translator.model, [("encoder", 0, 0), head]):
        pytest.fail("the block must not begin")
    assert torch.equal(before, translator.model.encoder.layers[0].self_attention.w_o.weight)


def test_the_head_of_it_is_the_one_the_pronoun_needs(translator: Translator):
    """Switched off, that head costs right pronouns; the same layer's other heads cost fewer. Chance is one in two."""
    found = [
        pair for pair in itertools.islice(embedded_corpus("test", seed=9), 700) if pair.it and pair.it[2] is not None
    ]
    looks = torch.zeros(2, 4)
    for pair in found:
        it, meant, other = pair.it
        row = word_attention(translator, pair, "encoder")[..., it, :]
        looks += row[..., meant] > row[..., other]
    layer, head = divmod(int(looks.argmax()), 4)
    assert looks.max() / len(found) > 0.75

    def right() -> float:
        outputs = translator.translate([pair.source for pair in found], beam_size=1)
        said = [set(re.findall(r"\b(er|sie|es)\b", output.partition(",")[2])) for output in outputs]
        meant = [next(pair.target_words[t] for t, s in pair.alignment if s == pair.it[0]) for pair in found]
        return sum(words == {word} for words, word in zip(said, meant, strict=True)) / len(found)

    everything = right()
    with without_heads(translator.model, [("encoder", layer, head)]):
        without_it = right()
    with without_heads(translator.model, [("encoder", layer, (head + 1) % 4)]):
        without_another = right()
    assert everything > 0.9 and without_it < everything - 0.1 and without_another > without_it + 0.1


# ------------------------------------------------------------------------------------------------------------- the page

NASTY = 'The </script><b>dog</b> & "it" sleeps.'


@pytest.fixture(scope="module")
def page(translator: Translator) -> str:
    return attention_page(look_at(translator, NASTY), NASTY)


def test_a_page_is_complete_and_says_what_it_is(page: str):
    soup = BeautifulSoup(page, "html.parser")
    assert page.startswith("<!DOCTYPE html>") and soup.html["lang"] == "en"
    assert soup.title.string == soup.h1.string == NASTY
    assert not soup.select("[src], link, iframe, img, base") and not re.search(r"@import|url\(", str(soup.style))
    policy = soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    assert "default-src 'none'" in policy and "http" not in policy
    assert not soup.select("b"), "text of the sentence became part of the page"


def test_the_scripts_of_a_page_are_those_of_its_charts(page: str):
    soup = BeautifulSoup(page, "html.parser")
    specs = [json.loads(script.string) for script in soup.select(".chart > script[type='application/json']")]
    assert [spec["encoding"]["y"]["title"] for spec in specs] == [
        "source token (query)",
        "token read (query)",
        "token written (query)",
    ]
    for spec in specs:
        assert spec["$schema"].rsplit("/v", 1)[1] == f"{VEGALITE_VERSION.removeprefix('v')}.json"
    assert f'"{VEGALITE_VERSION}"' in page


def test_charts_and_tables_of_a_page_have_names_and_can_be_scrolled_by_keyboard(page: str):
    soup = BeautifulSoup(page, "html.parser")
    names = [heading.get_text() for heading in soup.select("h2")]
    assert names == ["Encoder self-attention", "Decoder self-attention", "Encoder–decoder attention"]
    for name, chart, table in zip(names, soup.select(".chart"), soup.select("details"), strict=True):
        spec = json.loads(chart.script.string)
        assert spec["description"] == f"{name}: {spec['title']}" and spec["title"] != name
        assert chart["aria-label"] == name and table.summary.get_text().startswith(f"{name} as a table")
        assert chart["tabindex"] == table.select_one(".table")["tabindex"] == "0"


def test_neither_tokens_nor_libraries_can_end_a_script_of_the_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda *_: "const text = '</script><b>'")
    tokens, weights = ["</script><b>", "<!--"], torch.eye(2).view(1, 1, 2, 2)
    soup = BeautifulSoup(attention_page(SentenceAttention(*[tokens] * 3, *[weights] * 3), "title"), "html.parser")
    specs = [json.loads(script.string) for script in soup.select(".chart > script")]
    assert not soup.select("b") and len(soup.select("table")) == len(specs) == 3
    for spec in specs:
        assert [tokens] in [parameter.get("value") for parameter in spec["params"]]


def test_the_tables_of_a_page_say_what_the_charts_show(translator: Translator, page: str):
    seen = look_at(translator, NASTY)
    tables = BeautifulSoup(page, "html.parser").select("details table")
    for table, kind in zip(tables, KINDS, strict=True):
        weights, rows, columns = seen.part(kind)
        head, *lines = [[cell.get_text() for cell in line.select("th, td")] for line in table.select("tr")]
        assert head == ["token", *(f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4))]
        assert [line[0] for line in lines] == rows
        for i, line in enumerate(lines):
            for cell, (layer, head) in zip(line[1:], itertools.product(range(2), range(4)), strict=True):
                row = weights[layer, head, i]
                assert cell == f"{columns[row.argmax()]} {row.max():.2f}"


def test_a_page_of_a_long_pair_is_not_much_larger(translator: Translator, page: str):
    sentence = " ".join(["The dog sees the old house and"] * 14) + " the cat sleeps."
    seen = look_at(translator, sentence, " ".join(["Der Hund sieht das alte Haus und"] * 14) + " die Katze schläft.")
    assert len(seen.source) > 100
    assert len(attention_page(seen, sentence)) < len(page) + 1_500_000


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_a_page_needs_two_libraries(monkeypatch: pytest.MonkeyPatch, translator: Translator, missing: str):
    seen = look_at(translator, "The dog sleeps.")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match="run: pip install altair vl-convert-python"):
        attention_page(seen, "title")


@pytest.fixture(scope="module", name="chromium")
def a_browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_draws_without_a_network(chromium: Browser, page: str, tmp_path: Path):
    """Opened as a file with the network cut: it asks for nothing, draws, reacts, and can be read in both themes."""
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    context = chromium.new_context(offline=True, bypass_csp=False)
    tab = context.new_page()
    asked, complaints = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.set_viewport_size(DESK)
    tab.goto((tmp_path / "page.html").as_uri(), timeout=180_000)  # drawing takes a second, but not on a busy machine
    assert tab.evaluate(SETTLED) == 0
    assert asked == [(tmp_path / "page.html").as_uri()] and not complaints
    assert tab.locator("div.chart svg.marks").count() == 3
    assert tab.locator("div.chart svg.marks path[aria-label]").count() > 100, "no cells"
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        ratio, text = tab.evaluate(CONTRAST)
        assert ratio >= READABLE, f"{text!r} has a contrast of {ratio:.2f} in the {scheme} theme"
        behind = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(behind[:3]) < 128) == (scheme == "dark"), behind
    tab.set_viewport_size(PHONE)
    assert not tab.evaluate(WIDE)
    alive, dead = tab.evaluate(CONTROLS)
    assert alive == 6 and not dead, "two menus a chart, layer and head"
    context.close()
    context = chromium.new_context(offline=True, bypass_csp=True)  # the checker itself is a script from outside
    tab = context.new_page()
    tab.goto((tmp_path / "page.html").as_uri(), timeout=180_000)
    tab.evaluate(SETTLED)
    tab.evaluate(AXE_SCRIPT)
    assert not tab.evaluate(AXE, True)
    context.close()
