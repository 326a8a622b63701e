# Exported from notebooks/08_attention_visualizations.py; edit that file, not this one.
# sha256 of what follows: af46c359e9da600f
"""Attention Visualizations."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from transformer.corpus import SentencePair
from transformer.data import make_batch
from transformer.decoding import greedy_decode
from transformer.layers import DecoderLayer, EncoderLayer
from transformer.model import Transformer
from transformer.translator import Translator

__all__ = [
    "AttentionRecord",
    "record_attention",
    "SentenceAttention",
    "look_at",
    "attention_chart",
    "SPACE",
    "word_of_piece",
    "alignment_accuracy",
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
    encoder = [cast(EncoderLayer, layer) for layer in model.encoder.layers]
    decoder = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
    places = [(layer.self_attention, record.encoder) for layer in encoder]
    places += [(layer.self_attention, record.decoder) for layer in decoder]
    places += [(layer.memory_attention, record.cross) for layer in decoder]
    try:
        for attention, weights in places:
            attention.on_weights = functools.partial(_keep, weights)
        yield record
    finally:
        for attention, _ in places:
            attention.on_weights = None


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
        if kind not in tokens:
            raise ValueError(f'kind is {kind!r}; choose "encoder", "decoder" or "cross".')
        return getattr(self, kind), *tokens[kind]


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
        ValueError: The source is empty.
    """
    model, tokenizer = translator.model, translator.tokenizer
    device = next(model.parameters()).device
    source_ids = tokenizer.encode(source)
    if not source_ids:
        raise ValueError("the source is empty; give a sentence.")
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
    if not (0 <= layer < n_layers and 0 <= head < n_heads):
        raise ValueError(f"layer {layer} and head {head} do not exist; there are {n_layers} layers of {n_heads} heads.")
    values = [
        {
            "sentence": i,
            "layer": j,
            "head": k,
            "columns": len(columns),
            "thousandths": (1000 * weights[j, k]).round().int().flatten().tolist(),  # short: most are 0
        }
        for i, (weights, _, columns) in enumerate(parts)
        for j in range(n_layers)
        for k in range(n_heads)
    ]
    sentence_names = [" ".join(token for token in sentence.source[:-1]) for sentence in sentences]
    choices = [
        alt.param(name="sentence", value=0, bind=_menu("Sentence", sentence_names)),
        alt.param(name="layer", value=layer, bind=_menu("Layer", [str(j + 1) for j in range(n_layers)])),
        alt.param(name="head", value=head, bind=_menu("Head", [str(k + 1) for k in range(n_heads)])),
        alt.param(name="row_tokens", value=[rows for _, rows, _ in parts]),
        alt.param(name="column_tokens", value=[columns for _, _, columns in parts]),
    ]
    hovered = alt.selection_point(name="hovered", on="pointerover", fields=["row"], empty=True)
    return (
        alt.Chart(alt.Data(values=values))
        .transform_filter("datum.sentence == sentence && datum.layer == layer && datum.head == head")
        .transform_flatten(["thousandths"])
        .transform_window(index="row_number()")
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
            color=alt.Color(
                "weight:Q",
                title="weight",
                scale=alt.Scale(scheme="viridis", domain=[0, 1]),
                legend=alt.Legend(format=".1f"),
            ),
            opacity=alt.condition(hovered, alt.value(1.0), alt.value(0.35)),
            tooltip=[
                alt.Tooltip("query:N", title="from"),
                alt.Tooltip("key:N", title="to"),
                alt.Tooltip("weight:Q", title="weight", format=".3f"),
            ],
        )
        .add_params(*choices, hovered)
        .properties(title=title, width=alt.Step(24), height=alt.Step(20))
    )


SPACE = "\u2581"  # SentencePiece's sign for a space

_AXES = {
    "encoder": ("source token (query)", "source token (key)"),
    "decoder": ("token read (query)", "token read (key)"),
    "cross": ("token written (query)", "source token (key)"),
}


def _menu(name: str, labels: Sequence[str]) -> Any:
    import altair as alt

    return alt.binding_select(options=list(range(len(labels))), labels=list(labels), name=f"{name}: ")


def _token_axis(parameter: str, **more: Any) -> Any:
    import altair as alt

    return alt.Axis(
        labelExpr=f"{parameter}[sentence][datum.value]", labelOverlap=False, ticks=False, domain=False, **more
    )


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


def alignment_accuracy(translator: Translator, pairs: Sequence[SentencePair]) -> Tensor:
    """How often each cross-attention head looks most at a source word that the written word translates.

    Weights of the pieces of a source word are added; those of the pieces of a target word are averaged.

    Args:
        translator: A trained model.
        pairs: Sentence pairs with their true alignment.

    Returns:
        Shape (layers, h), from 0 to 1: the share of aligned target words.
    """
    hits, total = None, 0
    for pair in pairs:
        weights = look_at(translator, pair.source, pair.target).cross  # (layers, h, m, n)
        source = _one_hot(translator, pair.source, pair.source_words)  # (n − 1, source words)
        target = _one_hot(translator, pair.target, pair.target_words)  # (m − 1, target words)
        by_word = target.T @ weights[..., :-1, :-1] @ source  # (layers, h, target words, source words)
        chosen = by_word.argmax(dim=-1)
        truth = torch.zeros(by_word.shape[-2:], dtype=torch.bool)
        for target_index, source_index in pair.alignment:
            truth[target_index, source_index] = True
        aligned = truth.any(dim=-1)
        right = truth.gather(1, chosen.flatten(0, 1).T).T[:, aligned].sum(dim=-1).view(chosen.shape[:2])
        hits = right if hits is None else hits + right
        total += int(aligned.sum())
    if hits is None or not total:
        raise ValueError("there is no aligned word to measure by; give at least one sentence pair.")
    return hits / total


def _one_hot(translator: Translator, text: str, text_words: Sequence[str]) -> Tensor:
    pieces = translator.tokenizer.pieces(translator.tokenizer.encode(text))
    matrix = torch.zeros(len(pieces), len(text_words))
    for row, column in enumerate(word_of_piece(pieces, text_words)):
        if column is not None:
            matrix[row, column] = 1.0
    return matrix
