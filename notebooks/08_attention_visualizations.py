# %% [markdown]
# # Attention Visualizations
#
# The paper ends with pictures of what its heads look at. This chapter draws ours: every layer and head of the shipped
# model, for sentences of your choice. Since the embedded corpus knows which word translates which, the chapter also
# measures what the pictures only suggest.

# %%
#| default_exp visualization

# %%
import itertools

import altair as alt

import transformer
from transformer.corpus import embedded_corpus
from transformer.translator import load_toy_translator

transformer.check_version("0.1")

# %% [markdown]
# ## The paper's pictures
#
# > An example of the attention mechanism following long-distance dependencies in the encoder self-attention in layer 5 of 6.
# > Many of the attention heads attend to a distant dependency of the verb ‘making’, completing the phrase ‘making...more
# > difficult’.
# >
# > — Attention Visualizations, Figure 3
#
# > Two attention heads, also in layer 5 of 6, apparently involved in anaphora resolution.
# >
# > — Attention Visualizations, Figure 4
#
# > Many of the attention heads exhibit behaviour that seems related to the structure of the sentence.
# >
# > — Attention Visualizations, Figure 5
#
# *Apparently* and *seems* are the paper's words, and they are well chosen: a picture of one sentence shows what a head did
# once. All its pictures show self-attention of the encoder.

# %% [markdown]
# ## Recording
#
# A model does not keep its attention weights: it computes attention with PyTorch's fused function
# ([Section 3.2.2](03_2_2_multi_head_attention.py)), which does not return them. `record_attention` asks for them, for the
# length of a `with` block.

# %%
#| export
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

if TYPE_CHECKING:
    import altair


# %%
#| export
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


# %%
#| export
def _keep(kept: list[Tensor], weights: Tensor) -> None:
    kept.append(weights.detach())


# %%
#| export
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


# %% [markdown]
# ### Check it: looking changes nothing
#
# The outputs with and without recording agree up to rounding, and every row of weights sums to 1.

# %%
translator = load_toy_translator()
ids = translator.tokenizer.encode("The dog sees the old house.")
batch = make_batch([(ids, [])])
with torch.inference_mode():
    plain = translator.model(batch.src, batch.tgt_in)
    with record_attention(translator.model) as record:
        watched = translator.model(batch.src, batch.tgt_in)
print("encoder", [tuple(weights.shape) for weights in record.encoder])
print("cross  ", [tuple(weights.shape) for weights in record.cross])
assert (plain - watched).abs().max() < 1e-4
for weights in (*record.encoder, *record.decoder, *record.cross):
    assert torch.allclose(weights.sum(dim=-1), torch.ones(()), atol=1e-5)
assert all(attention.on_weights is None for attention in translator.model.modules() if hasattr(attention, "on_weights"))

# %% [markdown]
# ## Tokens on both axes
#
# A chart of attention is worth nothing if its labels belong to another sentence. So weights and tokens travel together.
# In encoder–decoder attention the rows are the target tokens that the model writes, the columns the source tokens.


# %%
#| export
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


# %%
#| export
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


# %%
#| export
def _tokens(pieces: Sequence[str]) -> list[str]:
    """Pieces as people read them: a dot marks one that goes on inside a word."""
    return [
        piece[1:] if piece.startswith(SPACE) and piece != SPACE else f"·{piece}" if piece[0].isalnum() else piece
        for piece in pieces
    ]


# %% [markdown]
# ## The explorer
#
# One chart for every layer and head, drawn by the page itself. Its data are one short list of numbers per head, not one
# row per cell, which keeps a figure small.


# %%
#| export
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


# %%
#| export
SPACE = "\u2581"  # SentencePiece's sign for a space

_AXES = {
    "encoder": ("source token (query)", "source token (key)"),
    "decoder": ("token read (query)", "token read (key)"),
    "cross": ("token written (query)", "source token (key)"),
}


# %%
#| export
def _menu(name: str, labels: Sequence[str]) -> Any:
    import altair as alt

    return alt.binding_select(options=list(range(len(labels))), labels=list(labels), name=f"{name}: ")


# %%
#| export
def _token_axis(parameter: str, **more: Any) -> Any:
    import altair as alt

    return alt.Axis(
        labelExpr=f"{parameter}[sentence][datum.value]", labelOverlap=False, ticks=False, domain=False, **more
    )


# %% [markdown]
# ## See it: three kinds of attention

# %%
tired = "The animal did not cross the street because it was too tired."
wide = "The animal did not cross the street because it was too wide."
examples = [
    look_at(translator, text) for text in (tired, wide, "The clever girl opened the green kitchen door yesterday.")
]
for example in examples:
    print(" ".join(example.written))

# %% [markdown]
# Eight heads of each kind are too many to begin with, so each chart opens at a telling one. For encoder–decoder attention
# it is the head that links five word pairs of the third sentence best; for the encoder, the head whose row of *it* changes
# most between the first two sentences.

# %%
known = {"kluge": "clever", "Mädchen": "girl", "machte": "opened", "auf": "opened", "gestern": "yesterday"}
rows, columns = examples[2].written, examples[2].source
linked = torch.stack(
    [examples[2].cross[..., rows.index(german), columns.index(english)] for german, english in known.items()]
)  # (5, layers, h)
linking = divmod(int(linked.mean(dim=0).argmax()), 4)
on_street = torch.stack(
    [example.encoder[..., example.source.index("it"), example.source.index("street")] for example in examples[:2]]
)  # (2, layers, h): weight of "it" on "street"
resolving = divmod(int((on_street[1] - on_street[0]).argmax()), 4)
for name, (layer, head) in (("encoder–decoder", linking), ("encoder", resolving)):
    print(f"{name}: layer {layer + 1}, head {head + 1}")
for german in ("machte", "auf"):
    assert columns[examples[2].cross[*linking, rows.index(german)].argmax()] == "opened"

# %% [markdown]
# Encoder–decoder attention: which source token does the model look at while it writes?

# %%
attention_chart(examples, "cross", "Each written word looks at the word it translates", *linking)

# %% [markdown]
# Choose a head; hover a cell to read its weight. The bright cells run along the diagonal and leave it where German has
# another order than English. In the third sentence, *opened* is one word in English and two in German: *machte* in second
# place and *auf* at the very end, and both rows look at it.

# %%
attention_chart(examples, "encoder", "The row of “it” changes with the last word of the sentence", *resolving)

# %% [markdown]
# Encoder self-attention: rows and columns are the same source tokens. Find the row of *it*, then choose the second sentence.
# *street* lights up, although only the last word, *tired* or *wide*, has changed.

# %%
attention_chart(examples, "decoder", "Each target word looks at those before it, never ahead")

# %% [markdown]
# Decoder self-attention: the upper right triangle is empty, since no position may look ahead.

# %% [markdown]
# ### Check it: rows are targets, columns are sources

# %%
for example in examples:
    weights, rows, columns = example.part("cross")
    assert weights.shape[-2:] == (len(rows), len(columns)) == (len(example.written), len(example.source))
    assert example.decoder.triu(diagonal=1).abs().max() == 0
    assert example.read[1:] == example.written[:-1]
assert any(len(example.written) != len(example.source) for example in examples)  # else they could be confused unseen

# %% [markdown]
# ## Where does "it" look?
#
# The first two sentences differ in one word, and *it* means the animal in one and the street in the other. The table
# shows, for every encoder head, how much of its weight the row of *it* gives to each of the two nouns.

# %%
print("layer head   tired: animal street   wide: animal street")
for layer, head in itertools.product(range(2), range(4)):
    cells = []
    for example in examples[:2]:
        row = example.encoder[layer, head, example.source.index("it")]
        cells += [f"{row[example.source.index(noun)]:.2f}" for noun in ("animal", "street")]
    print(f"{layer + 1:5} {head + 1:4}   {cells[0]:>13} {cells[1]:>6}   {cells[2]:>12} {cells[3]:>6}")

# %%
tired_row, wide_row = (example.encoder[*resolving, example.source.index("it")] for example in examples[:2])
street = examples[0].source.index("street")
assert wide_row[street] > 0.9 and tired_row[street] < 0.1

# %% [markdown]
# In the head of the chart *it* looks at the street when it means the street, and not when it means the animal. One pair of
# sentences is an anecdote; the measurement comes below. And a weight is not yet an explanation: it shows where a head
# looks, not that the translation hangs on it.

# %% [markdown]
# ## From pieces to words
#
# The corpus knows which word translates which. The model sees pieces, so each piece has to find its word.


# %%
#| export
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


# %% [markdown]
# ## Measured, not guessed
#
# For every target word with a known counterpart: does the head look most at that counterpart?


# %%
#| export
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


# %%
#| export
def _one_hot(translator: Translator, text: str, text_words: Sequence[str]) -> Tensor:
    pieces = translator.tokenizer.pieces(translator.tokenizer.encode(text))
    matrix = torch.zeros(len(pieces), len(text_words))
    for row, column in enumerate(word_of_piece(pieces, text_words)):
        if column is not None:
            matrix[row, column] = 1.0
    return matrix


# %%
test_pairs = list(itertools.islice(embedded_corpus("test", seed=2), 150))
accuracy = alignment_accuracy(translator, test_pairs)  # (layers, h)
for layer, row in enumerate(accuracy.tolist(), 1):
    print(f"layer {layer}:", "  ".join(f"head {head} {share:4.0%}" for head, share in enumerate(row, 1)))

# %% [markdown]
# ### Check it: better than chance, and not by position alone
#
# Two things any head could do without having learned anything: look at a random source word, or look at the word at the
# same place in the sentence. The best head must beat both by far.

# %%
chance = sum(1 / len(pair.source_words) for pair in test_pairs) / len(test_pairs)
hits = aligned = 0
for pair in test_pairs:
    truth = {}
    for target, source in pair.alignment:
        truth.setdefault(target, set()).add(source)
    hits += sum(target in sources for target, sources in truth.items())
    aligned += len(truth)
same_place = hits / aligned
print(f"chance {chance:.0%}, same place {same_place:.0%}, best head {accuracy.max():.0%}")
assert accuracy.max() > same_place + 0.2 > chance + 0.2

# %%
values = [
    {"head": f"layer {layer + 1}, head {head + 1}", "accuracy": accuracy[layer, head].item()}
    for layer, head in itertools.product(range(2), range(4))
]
bars = (
    alt.Chart(alt.Data(values=values))
    .mark_bar(color="#0072B2")
    .encode(
        x=alt.X("accuracy:Q", title="share of target words", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("head:N", title=None),
        tooltip=["head:N", alt.Tooltip("accuracy:Q", format=".1%")],
    )
    .properties(title="Some heads of encoder–decoder attention align, others do something else", width=360)
)
rule = (
    alt.Chart(alt.Data(values=[{"same place": same_place}]))
    .mark_rule(color="#D55E00", strokeDash=[4, 3])
    .encode(x=alt.X("same place:Q"), tooltip=[alt.Tooltip("same place:Q", format=".1%")])
)
bars + rule

# %% [markdown]
# Each bar is one head; the dashed line is what looking at the same place in the sentence would give.

# %% [markdown]
# ### Check it: does a head know which noun "it" means?
#
# The same for "it". Here are unseen sentences in which "it" could mean either of two nouns whose German pronouns differ.
# If a head resolves the pronoun, its weights give the answer away. The simplest reading: "it" means the later noun if the
# row of "it" gives that noun more than half of its weight, and the earlier noun if not. How often is that right, per
# encoder head? Always saying "the later one" is the guess to beat.


# %%
def read_off(pairs: Sequence[SentencePair]) -> Tensor:
    right = torch.zeros(2, 4)
    for pair in pairs:
        it, meant, other = pair.it
        spelled = _one_hot(translator, pair.source, pair.source_words)  # (n − 1, source words)
        weights = look_at(translator, pair.source, pair.target).encoder[..., :-1, :-1]  # (layers, h, n − 1, n − 1)
        by_word = spelled.T @ weights @ spelled  # (layers, h, source words, source words)
        right += (by_word[..., it, max(meant, other)] > 0.5) == (meant > other)
    return right / len(pairs)


ambiguous = [
    pair for pair in itertools.islice(embedded_corpus("test", seed=4), 1500) if pair.it and pair.it[2] is not None
]
later = sum(meant > other for _, meant, other in (pair.it for pair in ambiguous)) / len(ambiguous)
answers = read_off(ambiguous)
print(f"{len(ambiguous)} sentences; always the later noun: {later:.0%}")
for layer, row in enumerate(answers.tolist(), 1):
    print(f"layer {layer}:", "  ".join(f"head {head} {value:4.0%}" for head, value in enumerate(row, 1)))
assert len(ambiguous) >= 50 and answers.max() > 0.9 > later + 0.2

# %% [markdown]
# One head gives the answer away in nearly every sentence; most heads know nothing of it. Where a head does the work, and
# whether it looks at the meant noun in both cases or in one of them only, differs from one training to the next: the task
# asks for the right pronoun, not for a particular way to find it.

# %% [markdown]
# ## Unsaid by the paper
#
# * **Which sentences.** The paper shows two. It does not say how they were chosen, nor how often the heads do the same.
# * **What a weight means.** Weights say how the values were mixed in one head. Residual connections carry information past
#   every head, and later layers read mixtures of mixtures.

# %% [markdown]
# ## What we now know
#
# * All three kinds of attention can be recorded, and recording changes the model's output by no more than rounding.
# * The decoder's self-attention gives exactly zero weight to later positions.
# * Measured over sentences with known alignment, the best head of encoder–decoder attention looks at the translated word
#   far more often than chance or position would.
# * From one head of the encoder one can read off which of two nouns "it" means, in more than nine of ten unseen sentences.

# %% [markdown]
# ## Exercises
#
# 1. *Predict, then run.* In which sentences does the best head look at the wrong word? Print the first three.
# 2. A row that is read at position *i* writes the token of position *i*. Measure the alignment with the row of the token
#    that was just read instead. Is it better or worse?
# 3. Find the head whose rows look most at the previous token. Is it in the encoder or the decoder?

# %% tags=["hide-cell"]
# Exercise 3: the mean weight on the position before.
for kind in ("encoder", "decoder"):
    previous = [getattr(example, kind).diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1) for example in examples]
    mean = torch.stack(previous).mean(dim=0)  # (layers, h)
    print(kind, [[round(value, 2) for value in row] for row in mean.tolist()])

# %% [markdown]
# ## The notebook and the module agree

# %%
theirs = transformer.look_at(translator, tired)
assert theirs.cross.equal(examples[0].cross) and theirs.written == examples[0].written
assert transformer.alignment_accuracy(translator, test_pairs[:5]).equal(alignment_accuracy(translator, test_pairs[:5]))
