# Exported from notebooks/08_attention_visualizations.py; edit that file, not this one.
# sha256 of what follows: 5977fa99226b1d0e
"""Attention Visualizations."""

import contextlib
import dataclasses
import functools
import html
import importlib.resources
import itertools
import json
import math
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from transformer.corpus import SentencePair
from transformer.data import make_batch
from transformer.decoding import greedy_decode
from transformer.layers import DecoderLayer, EncoderLayer
from transformer.model import Transformer
from transformer.multi_head import MultiHeadAttention
from transformer.translator import Translator

__all__ = [
    "AttentionRecord",
    "record_attention",
    "SentenceAttention",
    "look_at",
    "attention_chart",
    "SPACE",
    "word_of_piece",
    "word_attention",
    "alignment_accuracy",
    "alignment_error",
    "head_entropy",
    "attention_lines",
    "without_heads",
    "attention_page",
]


if TYPE_CHECKING:
    import altair


@dataclasses.dataclass
class AttentionRecord:
    """The weights of every attention in one forward pass, one tensor per layer.

    Args:
        encoder: Encoder self-attention, each (B, h, n, n).
        decoder: Decoder self-attention, each (B, h, m, m).
        cross: Encoder–decoder attention, each (B, h, m, n): rows are target positions, columns source positions.
    """

    encoder: list[Tensor] = dataclasses.field(default_factory=list)
    decoder: list[Tensor] = dataclasses.field(default_factory=list)
    cross: list[Tensor] = dataclasses.field(default_factory=list)


def _keep(kept: list[Tensor], weights: Tensor) -> None:
    kept.append(weights.detach())


@contextlib.contextmanager
def record_attention(model: Transformer) -> Iterator[AttentionRecord]:
    """Record every layer's and head's weights of the one forward pass made inside the `with` block.

    Outside such a block the weights are never computed.

    Args:
        model: Any Transformer.

    Yields:
        The record, filled while the model runs.
    """
    record = AttentionRecord()
    places = [(part, getattr(record, kind)) for kind, parts in _attentions(model).items() for part in parts]
    try:
        for attention, weights in places:
            attention.on_weights = functools.partial(_keep, weights)
        yield record
    finally:
        for attention, _ in places:
            attention.on_weights = None


def _attentions(model: Transformer) -> dict[str, list[MultiHeadAttention]]:
    """The model's attentions of each kind, one a layer."""
    encoder = [cast(EncoderLayer, layer) for layer in model.encoder.layers]
    decoder = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.memory_attention for layer in decoder],
    }


@dataclasses.dataclass(frozen=True)
class SentenceAttention:
    """The three kinds of attention for one sentence pair, with the tokens that name rows and columns.

    Args:
        source: Source tokens, ending with the end token.
        read: Target tokens that the decoder reads, beginning with the begin token.
        written: Target tokens that it writes at the same positions, ending with the end token.
        encoder: Weights (layers, h, n, n); rows and columns are `source`.
        decoder: Weights (layers, h, m, m); rows and columns are `read`.
        cross: Weights (layers, h, m, n); rows are `written`, columns `source`.
    """

    source: list[str]
    read: list[str]
    written: list[str]
    encoder: Tensor
    decoder: Tensor
    cross: Tensor

    def part(self, kind: str) -> tuple[Tensor, list[str], list[str]]:
        """Weights, row tokens and column tokens of one kind.

        Args:
            kind: "encoder", "decoder" or "cross".

        Raises:
            ValueError: kind is another word.
        """
        tokens = {
            "encoder": (self.source, self.source),
            "decoder": (self.read, self.read),
            "cross": (self.written, self.source),
        }
        rows, columns = _of_kind(kind, tokens)
        return getattr(self, kind), rows, columns


_Part = TypeVar("_Part")


def _of_kind(kind: str, parts: Mapping[str, _Part]) -> _Part:
    if kind not in parts:
        raise ValueError(f'kind is {kind!r}; choose "encoder", "decoder" or "cross".')
    return parts[kind]


@torch.inference_mode()
def look_at(translator: Translator, source: str, target: str | None = None) -> SentenceAttention:
    """Run one sentence through the model and keep all its attention.

    Args:
        translator: A trained model.
        source: A sentence.
        target: Its translation; the model's own greedy one if None.

    Returns:
        The attention, with the tokens.

    Raises:
        ValueError: The source is empty; it or the target is longer than 500 tokens; or the model is in training mode.
    """
    model, tokenizer = translator.model, translator.tokenizer
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes the weights; call model.eval() first.")
    device = next(model.parameters()).device
    source_ids = tokenizer.encode(source)
    if not source_ids:
        raise ValueError("the source is empty; give a sentence.")
    if (longest := max(len(source_ids), len(tokenizer.encode(target or "")))) > 500:
        raise ValueError(f"a sentence has {longest:,} tokens, more than 500; all weights would be too many to show.")
    if target is None:
        target_ids = greedy_decode(model, make_batch([(source_ids, [])]).src.to(device))[0]
    else:
        target_ids = tokenizer.encode(target)
    batch = make_batch([(source_ids, target_ids)]).to(device)
    with record_attention(model) as record:
        model(batch.src, batch.tgt_in)
    source_tokens, read, written = (
        _tokens(tokenizer.pieces(ids[0].tolist())) for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    encoder, decoder, cross = (torch.cat(part).cpu() for part in (record.encoder, record.decoder, record.cross))
    return SentenceAttention(source_tokens, read, written, encoder, decoder, cross)


def _tokens(pieces: Sequence[str]) -> list[str]:
    """Pieces as people read them: a dot marks one that goes on inside a word."""
    return [
        piece[1:] if piece.startswith(SPACE) and piece != SPACE else f"·{piece}" if piece[0].isalnum() else piece
        for piece in pieces
    ]


def attention_chart(
    sentences: Sequence[SentenceAttention], kind: str, title: str, layer: int = 0, head: int = 0
) -> "altair.Chart":
    """An explorer: choose sentence, layer and head; hover a cell to read its weight and its two tokens.

    Args:
        sentences: From `look_at`, at least one.
        kind: "encoder", "decoder" or "cross".
        title: What there is to see.
        layer: The layer shown first, from 0.
        head: The head shown first, from 0.

    Returns:
        The chart. Rows are queries, columns keys; every row of cells sums to 1.

    Raises:
        ValueError: There is no sentence, kind is unknown, or there is no such layer or head.
    """
    import altair as alt  # imported late: importing transformer stays quick

    if not sentences:
        raise ValueError("there is no sentence to show; give at least one.")
    parts = [sentence.part(kind) for sentence in sentences]
    n_layers, n_heads = parts[0][0].shape[:2]
    _check_head(layer, head, n_layers, n_heads)
    values = [
        {"sentence": i, "layer": j, "head": k, "columns": len(columns), "thousandths": cells.flatten().tolist()}
        for i, (weights, _, columns) in enumerate(parts)
        for j, heads in enumerate((1000 * weights).round().int())  # whole numbers are short: most are 0
        for k, cells in enumerate(heads)
    ]
    sentence_names = [" ".join(token for token in sentence.source[:-1]) for sentence in sentences]
    choices = [
        alt.param(name="sentence", value=0, bind=_menu("Sentence", sentence_names)),
        alt.param(name="layer", value=layer, bind=_menu("Layer", [str(j + 1) for j in range(n_layers)])),
        alt.param(name="head", value=head, bind=_menu("Head", [str(k + 1) for k in range(n_heads)])),
        alt.param(name="row_tokens", value=[rows for _, rows, _ in parts]),
        alt.param(name="column_tokens", value=[columns for _, _, columns in parts]),
    ]
    viridis = alt.Scale(scheme="viridis", domain=[0, 1])
    hovered = alt.selection_point(name="hovered", on="pointerover", fields=["row"], empty=True)
    return (
        alt.Chart(alt.Data(values=values))
        .transform_filter("datum.sentence == sentence && datum.layer == layer && datum.head == head")
        .transform_flatten(["thousandths"]).transform_window(index="row_number()")
        .transform_calculate(
            weight="datum.thousandths / 1000",
            row="floor((datum.index - 1) / datum.columns)",
            column="(datum.index - 1) % datum.columns",
        )
        .transform_calculate(query="row_tokens[sentence][datum.row]", key="column_tokens[sentence][datum.column]")
        .mark_rect()
        .encode(
            x=alt.X("column:O", title=_AXES[kind][1], axis=_token_axis("column_tokens", orient="top", labelAngle=-60)),
            y=alt.Y("row:O", title=_AXES[kind][0], axis=_token_axis("row_tokens")),
            color=alt.Color("weight:Q", scale=viridis, legend=alt.Legend(format=".1f")),
            opacity=alt.condition(hovered, alt.value(1.0), alt.value(0.35)),
            tooltip=[alt.Tooltip("query:N", title="from"), alt.Tooltip("key:N", title="to"), "weight:Q"],
        )
        .add_params(*choices, hovered)
        .properties(title=title, width=alt.Step(24), height=alt.Step(20))
    )


def _check_head(layer: int, head: int, n_layers: int, n_heads: int) -> None:
    if not (0 <= layer < n_layers and 0 <= head < n_heads):
        raise ValueError(f"layer {layer} and head {head} do not exist; there are {n_layers} layers of {n_heads} heads.")


SPACE = "\u2581"  # SentencePiece's sign for a space

_AXES = {
    "encoder": ("source token (query)", "source token (key)"),
    "decoder": ("token read (query)", "token read (key)"),
    "cross": ("token written (query)", "source token (key)"),
}


def _menu(name: str, labels: Sequence[str], first: int = 0) -> Any:
    """A menu whose values count from the first; none where there is nothing to choose."""
    import altair as alt

    options = list(range(first, first + len(labels)))
    menu = alt.binding_select(options=options, labels=list(labels), name=f"{name}: ")
    return menu if len(labels) > 1 else alt.Undefined


def _token_axis(tokens: str, **more: Any) -> Any:
    import altair as alt

    return alt.Axis(labelExpr=f"{tokens}[sentence][datum.value]", labelOverlap=False, ticks=False, domain=False, **more)


def word_of_piece(pieces: Sequence[str], text_words: Sequence[str]) -> list[int | None]:
    """Which word each piece belongs to.

    Args:
        pieces: Pieces of the whole text, without special tokens.
        text_words: The words of the text, in order.

    Returns:
        An index into text_words per piece; None for a piece that is a space alone.

    Raises:
        ValueError: Pieces and words spell different texts.
    """
    letters = [i for i, word in enumerate(text_words) for _ in word]  # the word of every letter
    found: list[int | None] = []
    spelled = 0
    for piece in pieces:
        own = piece.replace(SPACE, "")
        found.append(letters[spelled] if own and spelled < len(letters) else None)
        spelled += len(own)
    if "".join(pieces).replace(SPACE, "") != "".join(text_words):
        raise ValueError(f"the pieces {list(pieces)} do not spell the words {list(text_words)}.")
    return found


def _one_hot(translator: Translator, text: str, text_words: Sequence[str]) -> Tensor:
    """Pieces in rows, words in columns, 1 where a piece belongs to a word."""
    pieces = translator.tokenizer.pieces(translator.tokenizer.encode(text))
    matrix = torch.zeros(len(pieces), len(text_words))
    for row, column in enumerate(word_of_piece(pieces, text_words)):
        if column is not None:
            matrix[row, column] = 1.0
    return matrix


def word_attention(translator: Translator, pair: SentencePair, kind: str) -> Tensor:
    """How much each word looks at each word, in every layer and head.

    Args:
        translator: A trained model. It is given the pair's own target to read.
        pair: A sentence pair.
        kind: "encoder", "decoder" or "cross". The rows of the last two are the target words while they are written.

    Returns:
        Shape (layers, h, row words, column words). The pieces of a column word are added, those of a row word averaged.

    Raises:
        ValueError: kind is another word, or pieces and words of the pair spell different texts.
    """
    weights, _, _ = look_at(translator, pair.source, pair.target).part(kind)
    weights = weights[..., :-1, 1:] if kind == "decoder" else weights[..., :-1, :-1]  # without begin and end
    source = _one_hot(translator, pair.source, pair.source_words)  # (n − 1, source words)
    target = _one_hot(translator, pair.target, pair.target_words)  # (m − 1, target words)
    rows, columns = source if kind == "encoder" else target, target if kind == "decoder" else source
    return (rows / rows.sum(dim=0).clamp(min=1)).T @ weights @ columns


def alignment_accuracy(translator: Translator, pairs: Sequence[SentencePair]) -> Tensor:
    """How often each cross-attention head looks most at a source word that the written word translates.

    Weights of the pieces of a source word are added; those of the pieces of a target word are averaged.

    Args:
        translator: A trained model.
        pairs: Sentence pairs with their true alignment.

    Returns:
        Shape (layers, h), from 0 to 1, the share of aligned target words.

    Raises:
        ValueError: No pair has an aligned word.
    """
    hits, total = torch.zeros(()), 0
    for pair in pairs:
        right, truth = _right(word_attention(translator, pair, "cross"), pair)
        hits, total = hits + right, total + int(truth.any(dim=-1).sum())
    if not total:
        raise ValueError("there is no aligned word to measure by; give at least one sentence pair.")
    return hits / total


def _right(weights: Tensor, pair: SentencePair) -> tuple[Tensor, Tensor]:
    """How many target words look most at a word they translate, shape (…), and the truth (target, source words)."""
    truth = torch.zeros(weights.shape[-2:], dtype=torch.bool)
    for target, source in pair.alignment:
        truth[target, source] = True
    return truth[torch.arange(len(truth)), weights.argmax(dim=-1)].sum(dim=-1), truth


def alignment_error(weights: Iterable[Tensor], pairs: Iterable[SentencePair]) -> Tensor:
    """The alignment error rate (AER) of weights, if each target word is linked to the source word of most weight.

    Args:
        weights: For each pair, shape (…, target words, source words); from `word_attention`, or any other score of
            pairs of words.
        pairs: The sentence pairs, with their true alignment; as many.

    Returns:
        Shape (…), from 0, no error, to 1.

    Raises:
        ValueError: There is no pair, or there are more of one than of the other.
    """
    hits, links = torch.zeros(()), 0
    for scores, pair in zip(weights, pairs, strict=True):
        right, truth = _right(scores, pair)
        hits, links = hits + right, links + len(truth) + int(truth.sum())
    if not links:
        raise ValueError("there is no aligned word to measure by; give at least one sentence pair.")
    return 1 - 2 * hits / links


def head_entropy(sentences: Sequence[SentenceAttention], kind: str) -> Tensor:
    """How widely each head looks: the mean entropy of its rows.

    Args:
        sentences: From `look_at`, at least one.
        kind: "encoder", "decoder" or "cross".

    Returns:
        Shape (layers, h), in bits; 0 if every row looks at one token, log2 n if it looks at n alike.

    Raises:
        ValueError: There is no sentence, or kind is another word.
    """
    if not sentences:
        raise ValueError("there is no sentence to measure; give at least one.")
    rows = [torch.special.entr(sentence.part(kind)[0]).sum(dim=-1) for sentence in sentences]  # (layers, h, rows)
    return torch.cat(rows, dim=-1).mean(dim=-1) / math.log(2)


def attention_lines(
    sentence: SentenceAttention, kind: str, heads: Sequence[tuple[int, int]], title: str, word: int | None = None
) -> "altair.LayerChart | altair.FacetChart":
    """Lines from each word to the words it looks at, one colour a head, as in the paper's figures.

    Args:
        sentence: From `look_at`.
        kind: "encoder", "decoder" or "cross".
        heads: Layer and head of each to draw, from 0. The colours repeat after four.
        title: What there is to see.
        word: The row shown first, from 0; None for all rows.

    Returns:
        The chart, with rows (queries) on the left, columns (keys) on the right, thick lines for large weights. A menu
        chooses the row, a click on the legend a head. Weights below 0.05 have no line.

    Raises:
        ValueError: No head is given, kind is another word, or there is no such layer, head or row.

    Source: Attention Visualizations, Figures 3 to 5.
    """
    import altair as alt

    weights, rows, columns = sentence.part(kind)
    if not heads or not (word is None or 0 <= word < len(rows)):
        raise ValueError(f"give at least one head, and as word None or a row from 0 to {len(rows) - 1}.")
    values = []
    for place, (layer, head) in enumerate(heads):
        _check_head(layer, head, *weights.shape[:2])
        name, shift = f"layer {layer + 1}, head {head + 1}", 0.12 * (place - (len(heads) - 1) / 2)
        for i, j in (weights[layer, head] >= 0.05).nonzero().tolist():
            ends = {"start": i + shift, "end": j + shift}  # shifted, so that the lines of two heads lie side by side
            about = {"head": name, "row": i, "from": rows[i], "to": columns[j], **ends}
            values.append({**about, "weight": round(weights[layer, head, i, j].item(), 3)})
    size, width = max(len(rows), len(columns)), 190
    y: dict[str, Any] = {"axis": None, "scale": alt.Scale(domain=[-0.6, size - 0.4], reverse=True, nice=False)}
    chosen = alt.param(name="word", value=-1 if word is None else word, bind=_menu("From", ["all words", *rows], -1))
    shown = alt.selection_point(name="shown", fields=["head"], bind="legend")
    legend = alt.Legend(orient="top", columns=2, symbolOpacity=1)
    lines = alt.Chart(alt.Data(values=values)).transform_filter("word < 0 || datum.row == word").mark_rule()
    lines = lines.encode(
        x=alt.value(0),
        x2=alt.value(width),
        y=alt.Y("start:Q", **y),
        y2="end:Q",
        color=alt.Color("head:N", title=None, scale=alt.Scale(range=_COLOURS), legend=legend),
        strokeWidth=alt.StrokeWidth("weight:Q", scale=alt.Scale(domain=[0, 1], range=[0.3, 5]), legend=None),
        opacity=alt.condition(shown, alt.value(0.8), alt.value(0.05)),
        tooltip=["head:N", "from:N", "to:N", "weight:Q"],
    ).add_params(chosen, shown)
    sides = [
        alt.Chart(alt.Data(values=[{"row": row, "token": token} for row, token in enumerate(tokens)]))
        .mark_text(**look, fontSize=13)
        .encode(x=alt.value(x), y=alt.Y("row:Q", **y), text="token:N")
        for tokens, x, look in ((rows, 0, _LEFT), (columns, width, _RIGHT))
    ]
    return alt.layer(lines, *sides).properties(title=title, width=width, height=22 * size)


_LEFT: dict[str, Any] = {"align": "right", "dx": -8}  # of words left and right of the lines
_RIGHT: dict[str, Any] = {"align": "left", "dx": 8}
_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00"]  # told apart without colour vision, too


@contextlib.contextmanager
def without_heads(model: Transformer, heads: Iterable[tuple[str, int, int]]) -> Iterator[None]:
    """Switch heads off inside the `with` block: they add nothing to the output of their attention.

    A head's rows of W^O (columns of `w_o.weight`) are zero there, then put back. Neither train nor save inside.

    Args:
        model: Any Transformer.
        heads: Each as kind ("encoder", "decoder" or "cross"), layer and head, from 0.

    Raises:
        ValueError: A kind is another word, or there is no such layer or head; nothing has been switched off then.

    Source: §3.2.2.
    """
    attentions, columns, kept = _attentions(model), [], {}
    for kind, layer, head in heads:
        parts = _of_kind(kind, attentions)
        _check_head(layer, head, len(parts), parts[0].n_heads)
        weight, width = parts[layer].w_o.weight, parts[layer].d_v
        columns.append(weight[:, head * width : (head + 1) * width])
        kept[weight] = weight.detach().clone()
    try:
        with torch.no_grad():
            for part in columns:
                part.zero_()
        yield
    finally:
        with torch.no_grad():
            for weight, before in kept.items():
                weight.copy_(before)


def attention_page(sentence: SentenceAttention, title: str) -> str:
    """A page with an explorer for each kind of attention, complete in itself: it needs no network and no other file.

    Args:
        sentence: From `look_at`.
        title: Of the page, as plain text.

    Returns:
        HTML. Beside each chart stands a table of the token that each head looks at most.

    Raises:
        ImportError: altair or vl-convert-python is not installed.
    """
    try:
        import altair  # noqa: F401
        import vl_convert
    except ImportError as error:
        needs = f"a page of charts needs altair and vl-convert-python ({error})"
        raise ImportError(f"{needs}; run: pip install altair vl-convert-python") from error

    parts, version = [], ""
    for kind, (name, about) in _ABOUT.items():
        spec = attention_chart([sentence], kind, about).to_dict()
        version = spec["$schema"].rpartition("/v")[2].rpartition(".json")[0]  # "6.1.0": the scripts must be as new
        data = json.dumps({**spec, "description": f"{name}: {about}"}, ensure_ascii=False).replace("<", "\\u003c")
        box = f'<div class="chart" role="group" aria-label="{name}" tabindex="0">'
        parts.append(f'<h2>{name}</h2>\n{box}<script type="application/json">{data}</script></div>')
        parts.append(_table(sentence, kind, name))
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version.rpartition(".")[0])
    frame = string.Template(importlib.resources.files("transformer").joinpath("attention.html").read_text("utf-8"))
    bundle = bundle.replace("</script", "<\\/script")
    return frame.substitute(title=html.escape(title), body="\n".join(parts), bundle=bundle)


def _table(sentence: SentenceAttention, kind: str, name: str) -> str:
    """A chart in words: the token that each head looks at most, row by row."""
    weights, rows, columns = sentence.part(kind)
    most, where = weights.flatten(0, 1).max(dim=-1)  # each (layers · h, rows)
    heads = (f"{layer + 1}.{head + 1}" for layer, head in itertools.product(*map(range, weights.shape[:2])))
    lines = [["token", *heads]]
    for token, tops, shares in zip(rows, where.T.tolist(), most.T.tolist(), strict=True):
        lines.append([token, *(f"{columns[j]} {share:.2f}" for j, share in zip(tops, shares, strict=True))])
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in lines]
    about = f"{name} as a table: the token each head (layer.head) looks at most, and its weight"
    table = "".join(f"<tr>{line}</tr>\n" for line in cells).replace("td>", "th>", 2 * len(lines[0]))
    box = f'<div class="table" tabindex="0"><table>\n{table}</table></div>'
    return f"<details><summary>{about}</summary>{box}</details>"


_ABOUT = {
    "encoder": ("Encoder self-attention", "Source tokens look at source tokens"),
    "decoder": ("Decoder self-attention", "Target tokens look at themselves and those before"),
    "cross": ("Encoder–decoder attention", "Each token, while it is written, looks at source tokens"),
}
