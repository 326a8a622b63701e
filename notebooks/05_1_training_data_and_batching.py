# %% [markdown]
# # 5.1 Training Data and Batching
#
# Text becomes ids of a vocabulary that both languages share, and sentence pairs of like length share a batch. Both
# choices cost nothing in the model and save much: no word is unknown, and few positions hold padding.

# %%
#| default_exp data

# %%
import itertools
from collections import Counter

import altair as alt

import transformer
from transformer.corpus import embedded_corpus

transformer.check_version("0.1")

# %%
#| export
import dataclasses
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID = 0, 1, 2, 3


# %% [markdown]
# ## One vocabulary for two languages
#
# > We trained on the standard WMT 2014 English-German dataset consisting of about 4.5 million sentence pairs. Sentences
# > were encoded using byte-pair encoding, which has a shared source-target vocabulary of about 37000 tokens.
# >
# > — Section 5.1
#
# Byte-pair encoding begins with single characters and joins the most frequent neighbours, again and again, until the
# vocabulary is full. Frequent words end up as one piece, rare ones as several. SentencePiece does it here. Two settings
# matter: text is not normalised, and what the pieces lack is spelled in bytes. So `decode(encode(text))` gives back
# every text, whatever its script.


# %%
#| export
class Tokenizer:
    """Text to ids and back, with one byte-pair vocabulary for both languages.

    Nothing is unknown: what the pieces lack is spelled in bytes. `decode(encode(text)) == text` for every text
    without the character U+2581, which the pieces use for a space. Ids 0 to 3 are padding, begin, end, unknown.

    Args:
        model: A SentencePiece model, as bytes.

    Raises:
        ValueError: The bytes are not such a model, or its special ids differ from this book's.

    Source: §5.1.
    """

    def __init__(self, model: bytes) -> None:
        from sentencepiece import SentencePieceProcessor  # imported late: importing transformer stays quick

        self.model = model
        try:
            self._pieces: Any = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError("the tokenizer's bytes are not a SentencePiece model; is the file whole?") from error
        special = (self._pieces.pad_id(), self._pieces.bos_id(), self._pieces.eos_id(), self._pieces.unk_id())
        if special != (PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID):
            raise ValueError(
                f"the tokenizer has special ids {special}; this book's have 0, 1, 2, 3. Train it with ours."
            )

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn a vocabulary from text in both languages.

        Args:
            lines: Sentences.
            vocab_size: Number of pieces, the 256 bytes and 4 special ones included.

        Returns:
            The tokenizer.

        Raises:
            TypeError: A string is given in place of many, or a line is not a string.
            ValueError: The text is too small for so many pieces, or holds a lone surrogate.
        """
        from sentencepiece import SentencePieceTrainer

        if isinstance(lines, str):
            raise TypeError("train takes many lines; put the one line into a list.")
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=(_utf8(line) for line in lines),
                model_writer=model,
                vocab_size=vocab_size,
                model_type="bpe",
                byte_fallback=True,
                character_coverage=1.0,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                pad_id=PAD_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                unk_id=UNKNOWN_ID,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = str(error).rpartition("] ")[2] or "there is too little text, or the number is not positive."
            raise ValueError(f"cannot learn {vocab_size} pieces from this text: {reason}") from error
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer from a file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not a SentencePiece model.
        """
        return cls(Path(path).read_bytes())

    def __len__(self) -> int:
        """V, the number of pieces."""
        return int(self._pieces.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin or end.

        Raises:
            TypeError: The text is not a string.
            ValueError: The text holds a lone surrogate, half of a character.
        """
        return list(self._pieces.encode(_utf8(text)))

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores. Raises what `encode` raises."""
        return list(self._pieces.encode([_utf8(line) for line in lines], num_threads=-1))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ids are left out.

        Raises:
            ValueError: An id is not in the vocabulary.
        """
        if any(not 0 <= i < len(self) for i in ids):
            raise ValueError(f"ids must be from 0 to {len(self) - 1}, the vocabulary; were they made by another model?")
        return str(self._pieces.decode([int(i) for i in ids if i > UNKNOWN_ID]))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id stands for, a space written as U+2581."""
        return [str(self._pieces.id_to_piece(int(i))) for i in ids]


# %%
#| export
def _utf8(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"a text must be a str, not {type(text).__name__}.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text holds a lone surrogate, {text[error.start]!a} at position {error.start}, which is half of a "
            "character; mend its encoding."
        ) from error


# %% [markdown]
# ### See it
#
# The embedded corpus ([A1](A1_the_embedded_corpus.py)) stands in for WMT. Its vocabulary is small, so most words are
# one piece.

# %%
pairs = list(itertools.islice(embedded_corpus("train"), 5000))
tokenizer = Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], vocab_size=1000)
for text in (pairs[0].source, pairs[0].target, "An unbelievable café ☕."):
    ids = tokenizer.encode(text)
    print(len(ids), "ids:", " ".join(tokenizer.pieces(ids)))

# %% [markdown]
# ### Check it: nothing is lost

# %%
texts = ["", "  two  spaces  ", "tab\tand\u00a0no-break", "Ünïcödé „quotes“", "漢字 and ☕", "ﬁ ligature", "a" * 1000]
texts += [pair.target for pair in pairs]
assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts)
print(len(texts), "texts come back as they were")

# %% [markdown]
# ## A batch
#
# The source ends with the end token. The target appears twice: shifted right, as the decoder reads it, and as it should
# come out.


# %%
#| export
@dataclasses.dataclass(frozen=True)
class Batch:
    """Sentence pairs side by side, padded on the right.

    Args:
        src: Source ids, shape (B, n), int64, each ending with the end token.
        tgt_in: What the decoder reads: begin, then the target; shape (B, m).
        tgt_out: What it should say: the target, then end; shape (B, m).
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor

    @property
    def n_tokens(self) -> int:
        """Number of real target tokens, the end tokens included."""
        return int((self.tgt_out != PAD_ID).sum())

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(self.src.to(device), self.tgt_in.to(device), self.tgt_out.to(device))


# %%
#| export
def pad(sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID) -> Tensor:
    """Sequences as one tensor, filled up on the right.

    Args:
        sequences: Ids, at least one sequence.
        pad_id: The filler.

    Returns:
        Shape (B, longest), int64.

    Raises:
        ValueError: There is no sequence.
    """
    if not sequences:
        raise ValueError("there is no sequence to pad; give at least one.")
    longest = max(map(len, sequences))
    return torch.tensor([[*ids, *[pad_id] * (longest - len(ids))] for ids in sequences], dtype=torch.int64)


# %%
#| export
def make_batch(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """A batch from pairs of ids.

    Args:
        pairs: (source ids, target ids), without begin and end.

    Returns:
        The batch: targets shifted right by one position, as the decoder needs them.

    Raises:
        ValueError: There is no pair.

    Source: §3.1, "the output embeddings are offset by one position".
    """
    return Batch(
        src=pad([[*source, EOS_ID] for source, _ in pairs]),
        tgt_in=pad([[BOS_ID, *target] for _, target in pairs]),
        tgt_out=pad([[*target, EOS_ID] for _, target in pairs]),
    )


# %%
batch = make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs[:2]])
print("src    ", tuple(batch.src.shape), batch.src[0].tolist())
print("tgt_in ", tuple(batch.tgt_in.shape), batch.tgt_in[0].tolist())
print("tgt_out", tuple(batch.tgt_out.shape), batch.tgt_out[0].tolist())
shorter = min(int((row != PAD_ID).sum()) for row in batch.tgt_out)
assert batch.tgt_in[:, 0].eq(BOS_ID).all()
assert batch.tgt_in[:, 1:shorter].equal(batch.tgt_out[:, : shorter - 1])  # one position apart

# %% [markdown]
# ## Batches by tokens, grouped by length
#
# > Sentence pairs were batched together by approximate sequence length. Each training batch contained a set of sentence
# > pairs containing approximately 25000 source tokens and 25000 target tokens.
# >
# > — Section 5.1
#
# A batch is as wide as its longest sentence; all else is padding. `TokenBatches` shuffles the pairs, sorts them by
# length, cuts them into batches of about equally many tokens and shuffles the batches. Shuffling before sorting lets a
# sentence meet others of its length in every epoch. A pair has two lengths. The longer one counts first, since it is what
# must fit; among pairs of one such length the difference rises, and falls among those of the next, so that no batch spans
# a jump.


# %%
#| export
class TokenBatches:
    """Batches of about equally many tokens, of sentences of about equal length, in a shuffled order.

    Iterating never ends: epoch follows epoch. The order is a function of (seed, epoch) alone.

    Args:
        pairs: (source ids, target ids), without begin and end.
        max_tokens: Room for source, and for target, tokens in a batch, padding included.
        seed: Of the shuffling.

    Raises:
        ValueError: There is no pair, or one is longer than a batch.

    Source: §5.1.
    """

    def __init__(self, pairs: Sequence[tuple[list[int], list[int]]], max_tokens: int, seed: int = 0) -> None:
        longest = max((max(len(source), len(target)) + 1 for source, target in pairs), default=0)
        if not 0 < longest <= max_tokens:
            raise ValueError(
                f"{len(pairs)} pairs, the longest of {longest} tokens, do not fit batches of {max_tokens} tokens; "
                "give at least one pair and room for the longest."
            )
        self.pairs, self.max_tokens, self.seed = pairs, max_tokens, seed

    def __iter__(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from self.epoch(epoch)
            epoch += 1

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Every pair once.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            The batches of this epoch.
        """
        for indices in self.plan(epoch):
            yield make_batch([self.pairs[i] for i in indices])

    def plan(self, epoch: int) -> list[list[int]]:
        """Which pairs go into which batch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            One list of indices into the pairs per batch.
        """
        shuffle = random.Random(f"{self.seed} {epoch}")
        order = list(range(len(self.pairs)))
        shuffle.shuffle(order)  # first, so that pairs of equal length meet others in every epoch
        order.sort(key=lambda i: _shape(*self.pairs[i]))
        batches: list[list[int]] = [[]]
        longest = 0
        for i in order:
            longest = max(longest, *(len(side) + 1 for side in self.pairs[i]))
            if longest * (len(batches[-1]) + 1) > self.max_tokens and batches[-1]:
                batches.append([])
                longest = max(len(side) + 1 for side in self.pairs[i])
            batches[-1].append(i)
        shuffle.shuffle(batches)
        return batches


# %%
#| export
def _shape(source: Sequence[int], target: Sequence[int]) -> tuple[int, int]:
    """A key that sorts pairs of like shape together: the longer side, then the difference, up and down in turn."""
    longer = max(len(source), len(target))
    return longer, (len(source) - len(target)) * (-1) ** longer


# %%
#| export
def padding_share(batches: Iterable[Batch]) -> float:
    """Share of positions that hold no token, over sources and targets.

    Args:
        batches: A finite number of them.

    Returns:
        From 0 to 1.

    Raises:
        ValueError: There is no batch.
    """
    padded = total = 0
    for batch in batches:
        for ids in (batch.src, batch.tgt_out):
            padded += int((ids == PAD_ID).sum())
            total += ids.numel()
    if not total:
        raise ValueError("there is no batch; give at least one.")
    return padded / total


# %%
#| export
def copy_task(
    n_pairs: int, vocab_size: int = 32, min_len: int = 4, max_len: int = 12, seed: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Random sequences, each paired with itself: the smallest task that needs attention to the right place.

    Args:
        n_pairs: How many.
        vocab_size: Ids are drawn from 4 to vocab_size − 1.
        min_len: Shortest sequence.
        max_len: Longest sequence.
        seed: Of the drawing.

    Returns:
        (source ids, target ids), without begin and end.

    Raises:
        ValueError: There is no id to draw, or min_len is more than max_len.
    """
    if vocab_size <= UNKNOWN_ID + 1 or not 0 <= min_len <= max_len:
        raise ValueError(
            f"vocab_size={vocab_size}, min_len={min_len} and max_len={max_len} leave nothing to draw; give a "
            f"vocabulary of more than {UNKNOWN_ID + 1} ids, and 0 <= min_len <= max_len."
        )
    draw = random.Random(seed)
    sequences = [
        draw.choices(range(UNKNOWN_ID + 1, vocab_size), k=draw.randint(min_len, max_len)) for _ in range(n_pairs)
    ]
    return [(ids, ids) for ids in sequences]


# %% [markdown]
# ### See it
#
# The same pairs in batches of 32 as they come, and in batches by tokens.

# %%
ids = [(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs]
naive = [make_batch(ids[i : i + 32]) for i in range(0, len(ids), 32)]
grouped = list(TokenBatches(ids, max_tokens=800).epoch(0))
for name, batches in (("as they come", naive), ("grouped by length", grouped)):
    print(f"{name:17}: {len(batches):4} batches, {padding_share(batches):6.1%} padding")
assert padding_share(grouped) < 0.05 < padding_share(naive)

# %%
values = [
    {"batching": name, "padding": padding_share([batch]), "width": batch.tgt_out.size(1)}
    for name, batches in (("as they come", naive), ("grouped by length", grouped))
    for batch in batches
]
chart = (
    alt.Chart(alt.Data(values=values))
    .mark_bar()
    .encode(
        x=alt.X("padding:Q", bin=alt.Bin(step=0.05), title="share of padding in a batch", axis=alt.Axis(format="%")),
        y=alt.Y("count():Q", title="batches"),
        color=alt.Color("batching:N", legend=None, scale=alt.Scale(range=["#0072B2", "#E69F00"])),
        row=alt.Row("batching:N", title=None),
        tooltip=["batching:N", alt.Tooltip("count():Q", title="batches")],
    )
    .properties(title="Grouping by length leaves little padding", width=380, height=110)
)
chart

# %% [markdown]
# The upper bars are batches in the order of the corpus: a quarter and more of their positions hold nothing. The lower
# bars, grouped by length, stand near zero, with few exceptions.

# %% [markdown]
# ### Check it: every pair once, in an order that seed and epoch decide

# %%
batches = TokenBatches(ids, max_tokens=800, seed=7)
plan = batches.plan(0)
assert sorted(itertools.chain.from_iterable(plan)) == list(range(len(ids)))
assert plan == TokenBatches(ids, max_tokens=800, seed=7).plan(0)
assert plan != batches.plan(1) and plan != TokenBatches(ids, max_tokens=800, seed=8).plan(0)
widest = max(max(batch.src.numel(), batch.tgt_out.numel()) for batch in batches.epoch(0))
print(f"{len(plan)} batches; the largest has {widest} positions on a side")
assert widest <= 800

# %% [markdown]
# ## Unsaid by the paper
#
# * **What a batch counts.** The authors' first code takes 4,096 tokens a GPU with padding counted, on eight GPUs; the
#   paper says about 25,000. `max_tokens` counts padding too, so a batch never needs more memory than planned.
# * **Begin and end.** The paper names no begin or end symbol. The authors' code shifts the targets by a zero vector. Most
#   code since, and ours, puts a begin token in front.
# * **Sentences that are too long.** The paper does not say. `TokenBatches` refuses them, with their length.

# %% [markdown]
# ## What we now know
#
# * A shared byte-pair vocabulary with bytes behind it knows every text: all of ours come back unchanged.
# * Grouped by length, under 5 % of the positions are padding.
# * The order of the batches is a function of seed and epoch alone.

# %% [markdown]
# ## Exercises
#
# 1. *Predict, then run.* Into which pieces does the tokenizer split `"Apfelbaum"`, and into which `"Baumapfel"`? Which of the
#    two keeps a whole word as one piece, and why?
# 2. Sort by the target's length first and the source's second. How much padding is there then?
# 3. Byte-pair encoding by hand: from the words *low, lower, lowest, low*, make the first three merges on paper, then in
#    code.

# %% tags=["hide-cell"]
# Exercise 3: count neighbours, join the most frequent pair, repeat.
spelled = [list(word) for word in ("low", "lower", "lowest", "low")]
for _ in range(3):
    neighbours = Counter(pair for word in spelled for pair in itertools.pairwise(word))
    (left, right), count = neighbours.most_common(1)[0]
    for word in spelled:
        for i in range(len(word) - 2, -1, -1):
            if word[i : i + 2] == [left, right]:
                word[i : i + 2] = [left + right]
    print(f"join {left!r} and {right!r} ({count} times): {spelled}")
assert spelled[0] == ["low"] and spelled[1][:2] == ["lowe", "r"]

# %% [markdown]
# ## The notebook and the module agree

# %%
assert transformer.TokenBatches(ids, max_tokens=800, seed=7).plan(0) == plan
assert transformer.make_batch(ids[:2]).src.equal(batch.src)
