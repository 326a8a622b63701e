# %% [markdown]
# # 5.1 Training Data and Batching
#
# The paper cuts words into pieces, from one vocabulary that both languages share, and lets sentence pairs of like length
# share a batch. The pieces spell words that were never seen; the batches waste little work on padding, which costs a
# device as much as text. This chapter builds both and measures what they save.
#
# > This section describes the training regime for our models.
# >
# > — Section 5
#
# That is all of Section 5 before its first part.

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

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
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
# > For English-French, we used the significantly larger WMT 2014 English-French dataset consisting of 36M sentences and
# > split tokens into a 32000 word-piece vocabulary.
# >
# > — Section 5.1
#
# Byte-pair encoding begins with single characters and joins the most frequent neighbours, again and again, until the
# vocabulary is full. Frequent words end up as one piece, rare ones as several. SentencePiece does it here. Two settings
# matter: text is not normalised, and what the pieces lack is spelled in bytes. So `decode(encode(text))` gives back
# every text, whatever its script. (One character is the exception: U+2581, by which the pieces write a space.)


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
            raise ValueError(f"the tokenizer has special ids {special}; this book's have 0, 1, 2, 3; train one here.")

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
# ### See it: the same by hand
#
# A language of four words, each with the number of times it was seen. Every round counts all neighbours and joins the
# most frequent pair. That is the whole algorithm.


# %%
def most_frequent_neighbours(words: dict[tuple[str, ...], int]) -> tuple[str, str]:
    counts: Counter[tuple[str, str]] = Counter()
    for pieces, seen in words.items():
        for pair in itertools.pairwise(pieces):
            counts[pair] += seen
    return max(counts, key=lambda pair: (counts[pair], pair))  # the pair itself decides a tie


# %%
def join(pieces: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return tuple(joined)


# %%
def learn(words: dict[str, int], n_merges: int) -> list[tuple[str, str]]:
    spelled = {tuple(word): seen for word, seen in words.items()}
    merges = []
    for _ in range(n_merges):
        merges.append(most_frequent_neighbours(spelled))
        spelled = {join(pieces, merges[-1]): seen for pieces, seen in spelled.items()}
    return merges


# %%
merges = learn({"newer": 6, "lower": 2, "newest": 3, "slow": 1}, n_merges=5)
print("merges:", ", ".join("+".join(pair) for pair in merges))
assert merges[0] == ("w", "e")  # in newer, lower and newest: 6 + 2 + 3 times

spelled = {}
for word in ("newer", "lowest", "slower"):
    spelled[word] = tuple(word)
    for pair in merges:
        spelled[word] = join(spelled[word], pair)
    print(word, "→", " ".join(spelled[word]))
assert spelled["newer"] == ("newer",) and spelled["lowest"] == ("l", "o", "we", "st")

# %% [markdown]
# "newer" is frequent and has become one piece. "lowest" and "slower" were never seen; they are spelled with what was
# learned from others. A real learner does the same on millions of words, with an index in place of counting everything
# again.

# %% [markdown]
# ### See it: the corpus
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
        return Batch(*(ids.to(device, non_blocking=True) for ids in (self.src, self.tgt_in, self.tgt_out)))

    def split(self, parts: int) -> list["Batch"]:
        """Cut the batch, sorted by length, into parts of about equally many tokens.

        Args:
            parts: How many batches to make.

        Returns:
            So many batches, without columns of padding alone. A part that gets no pair holds one without target
            tokens, which adds nothing to any loss.
        """
        if parts == 1:
            return [self]
        sources, targets = ((ids != PAD_ID).sum(dim=1).numpy(force=True) for ids in (self.src, self.tgt_out))
        order = np.lexsort(_shape(sources, targets))
        held = np.cumsum((sources + targets)[order])
        middles = held - (sources + targets)[order] / 2
        cuts = np.searchsorted(middles, held[-1] * np.arange(1, parts) / parts)
        return [self._rows(rows) for rows in np.split(order, cuts)]

    def _rows(self, rows: npt.NDArray[np.int64]) -> "Batch":
        if not len(rows):
            end, begin, nothing = (self.src.new_full((1, 1), token) for token in (EOS_ID, BOS_ID, PAD_ID))
            return Batch(end, begin, nothing)
        src, tgt_in, tgt_out = self.src[rows], self.tgt_in[rows], self.tgt_out[rows]
        n = int((src != PAD_ID).sum(dim=1).max())
        m = int((tgt_out != PAD_ID).sum(dim=1).max())
        return Batch(src[:, :n], tgt_in[:, :m], tgt_out[:, :m])


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
    lengths = np.array([len(ids) for ids in sequences])
    padded = np.full((len(sequences), lengths.max()), pad_id, dtype=np.int64)
    padded[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(
        [np.asarray(ids, np.int64) for ids in sequences]
    )
    return torch.from_numpy(padded)


# %%
#| export
def make_batch(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """A batch from pairs of ids.

    Args:
        pairs: (source ids, target ids), without begin and end.

    Returns:
        The batch, with targets shifted right by one position, as the decoder needs them.

    Raises:
        ValueError: There is no pair.

    Source: §3.1, "the output embeddings are offset by one position".
    """
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    tgt = pad(targets)
    return Batch(_ended(pad(sources), sources), F.pad(tgt, (1, 0), value=BOS_ID), _ended(tgt, targets))


# %%
#| export
def _ended(ids: Tensor, sequences: Sequence[Sequence[int]]) -> Tensor:
    """One column more, with the end token behind each sequence."""
    ids = F.pad(ids, (0, 1), value=PAD_ID)
    ids[torch.arange(len(sequences)), [len(sequence) for sequence in sequences]] = EOS_ID
    return ids


# %%
batch = make_batch([(tokenizer.encode(pair.source), tokenizer.encode(pair.target)) for pair in pairs[:2]])
print("src    ", tuple(batch.src.shape), batch.src[0].tolist())
print("tgt_in ", tuple(batch.tgt_in.shape), batch.tgt_in[0].tolist())
print("tgt_out", tuple(batch.tgt_out.shape), batch.tgt_out[0].tolist())
shorter = min(int((row != PAD_ID).sum()) for row in batch.tgt_out)
assert batch.tgt_in[:, 0].eq(BOS_ID).all()
assert batch.tgt_in[:, 1:shorter].equal(batch.tgt_out[:, : shorter - 1])  # one position apart

# %% [markdown]
# ## Pairs on disk
#
# Four and a half million pairs as Python lists would fill the memory. As flat arrays in files they take two bytes a token,
# and the operating system reads what is asked for. A sentence is what lies between two ends. How text becomes such files
# is told in [A2a](A2a_from_text_to_arrays.py).


# %%
#| export
class EncodedPairs(Sequence[tuple[Sequence[int], Sequence[int]]]):
    """Sentence pairs as ids, read from files as they are needed. Behaves like a list of pairs of arrays.

    Args:
        src_ids: All source ids, one sentence after the other, without begin and end.
        src_ends: Where each source ends in them, int64.
        tgt_ids: All target ids.
        tgt_ends: Where each target ends.

    Raises:
        ValueError: The ends do not fit the ids, or there are not as many sources as targets.
    """

    def __init__(
        self,
        src_ids: npt.NDArray[Any],
        src_ends: npt.NDArray[Any],
        tgt_ids: npt.NDArray[Any],
        tgt_ends: npt.NDArray[Any],
    ) -> None:
        for ids, ends in ((src_ids, src_ends), (tgt_ids, tgt_ends)):
            whole = len(ends) == len(src_ends) and len(ids) == (ends[-1] if len(ends) else 0)
            if not whole or (np.diff(ends, prepend=0) < 0).any():
                raise ValueError("the arrays of ids and of ends do not fit together; prepare the corpus again.")
        self._ids, self._ends = (src_ids, tgt_ids), (src_ends, tgt_ends)

    @classmethod
    def load(cls, prefix: str | Path) -> "EncodedPairs":
        """Open the four files PREFIX.src.ids.npy, PREFIX.src.ends.npy, PREFIX.tgt.ids.npy and PREFIX.tgt.ends.npy.

        Raises:
            FileNotFoundError: One of them is missing.
            EOFError: One is empty.
            ValueError: One is no array, or they do not fit together.
        """
        names = [f"{prefix}.{side}.{part}.npy" for side in ("src", "tgt") for part in ("ids", "ends")]
        return cls(*(np.load(name, mmap_mode="r", allow_pickle=False) for name in names))

    @property
    def src_lengths(self) -> npt.NDArray[np.int64]:
        """The number of ids of each source."""
        return np.diff(self._ends[0], prepend=0)

    @property
    def tgt_lengths(self) -> npt.NDArray[np.int64]:
        """The number of ids of each target."""
        return np.diff(self._ends[1], prepend=0)

    def __len__(self) -> int:
        return len(self._ends[0])

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"pair {i} of {len(self)}")
        i %= len(self)
        return tuple(ids[(ends[i - 1] if i else 0) : ends[i]] for ids, ends in zip(self._ids, self._ends, strict=True))


# %% [markdown]
# ### Check it: the same pairs as from a list

# %%
sides = [[tokenizer.encode(text) for text in texts] for texts in zip(*((p.source, p.target) for p in pairs[:100]))]
arrays = []
for side in sides:
    arrays += [np.concatenate(side).astype(np.uint16), np.cumsum([len(ids) for ids in side])]
encoded = EncodedPairs(*arrays)
assert all(
    (source.tolist(), target.tolist()) == (sides[0][i], sides[1][i]) for i, (source, target) in enumerate(encoded)
)
print(len(encoded), "pairs;", arrays[0].nbytes + arrays[2].nbytes, "bytes of ids; pair 7:", encoded[7][0].tolist())

# %% [markdown]
# ## Batches by tokens, grouped by length
#
# > Sentence pairs were batched together by approximate sequence length. Each training batch contained a set of sentence
# > pairs containing approximately 25000 source tokens and 25000 target tokens.
# >
# > — Section 5.1
#
# A batch is as wide as its longest sentence; all else is padding. `TokenBatches` shuffles the pairs, sorts them by
# length, cuts them into batches of about equally many tokens and shuffles the batches. Pairs of equal lengths are ordered by
# chance, so a sentence meets others in every epoch. A pair has two lengths. The longer one counts first, since it is what
# must fit. Among pairs whose longer side is the same, the difference between the two sides rises; among those of the next
# length it falls, and so on in turn. So neighbours are mostly alike; a jump is left only where few pairs share a length.


# %%
#| export
class TokenBatches:
    """Batches of about equally many tokens, of sentences of about equal length, in a shuffled order.

    Iterating never ends: epoch follows epoch. The order is a function of (seed, epoch) alone, and every epoch has the
    same number of batches, so that a run which stopped finds its next batch again.

    Args:
        pairs: (source ids, target ids), without begin and end.
        max_tokens: Room for source, and for target, tokens in a batch, padding included.
        seed: Of the shuffling, at least 0.

    Raises:
        ValueError: There is no pair, or one is longer than a batch; or the seed is negative.

    Source: §5.1.
    """

    def __init__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], max_tokens: int, seed: int = 0) -> None:
        if isinstance(pairs, EncodedPairs):
            sources, targets = pairs.src_lengths, pairs.tgt_lengths
        else:
            sources = np.array([len(source) for source, _ in pairs], dtype=np.int64)
            targets = np.array([len(target) for _, target in pairs], dtype=np.int64)
        self._shape = _shape(sources + 1, targets + 1)
        longest = int(self._shape[1].max(initial=0))
        if not 0 < longest <= max_tokens or seed < 0:
            raise ValueError(
                f"{len(pairs)} pairs, the longest of {longest} tokens, do not fit batches of {max_tokens} tokens with "
                f"seed {seed}; give at least one pair, room for the longest, and a seed of at least 0."
            )
        self.pairs, self.max_tokens, self.seed = pairs, max_tokens, seed

    def __iter__(self) -> Iterator[Batch]:
        return self.from_update(0)

    def from_update(self, done: int) -> Iterator[Batch]:
        """The batches that follow the first ones, without making those.

        Args:
            done: How many batches to leave out.

        Returns:
            An iterator without end.
        """
        epoch, plan = 0, self.plan(0)
        if done >= len(plan):
            epoch, done = divmod(done, len(plan))
            plan = self.plan(epoch)
        while True:
            for indices in plan[done:]:
                yield make_batch([self.pairs[i] for i in indices.tolist()])
            epoch, done = epoch + 1, 0
            plan = self.plan(epoch)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Every pair once.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            The batches of this epoch.
        """
        for indices in self.plan(epoch):
            yield make_batch([self.pairs[i] for i in indices.tolist()])

    def plan(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Which pairs go into which batch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            One array of indices into the pairs per batch.
        """
        chance = np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))  # its numbers never change with NumPy
        order = np.lexsort((chance.random_raw(len(self.pairs)), *self._shape))
        lengths = self._shape[1][order]
        starts = [0]
        while starts[-1] < len(order):
            start = starts[-1]
            some = lengths[start : start + self.max_tokens // int(lengths[start])]
            starts.append(start + int((some * np.arange(1, len(some) + 1) <= self.max_tokens).sum()))
        batches = np.split(order, starts[1:-1])
        return [batches[i] for i in np.argsort(chance.random_raw(len(batches)), kind="stable")]


# %%
#| export
def _shape(
    sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort keys that bring pairs of like shape together: the difference, up and down in turn, and the longer side."""
    longer = np.maximum(sources, targets)
    return (sources - targets) * np.where(longer % 2, 1, -1), longer


# %% [markdown]
# What grouping saves is a share of positions. And later chapters need a task so small that a model learns it in seconds:
# copying random sequences.


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
assert padding_share(grouped) < 0.05 < 0.25 < min(padding_share([batch]) for batch in naive)

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
# The upper bars are batches in the order of the corpus: in each of them, more than a quarter of the positions hold
# nothing. The lower bars, grouped by length, stand near zero, with few exceptions.

# %% [markdown]
# ### Check it: every pair once, in an order that seed and epoch decide

# %%
batches = TokenBatches(ids, max_tokens=800, seed=7)
plan = batches.plan(0)
again = TokenBatches(ids, max_tokens=800, seed=7).plan(0)
assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in plan)) == list(range(len(ids)))
assert all(batch.tolist() == same.tolist() for batch, same in zip(plan, again, strict=True))
others = [batches.plan(1), TokenBatches(ids, max_tokens=800, seed=8).plan(0)]
assert all(len(other) == len(plan) and other[0].tolist() != plan[0].tolist() for other in others)
widest = max(max(batch.src.numel(), batch.tgt_out.numel()) for batch in batches.epoch(0))
print(f"{len(plan)} batches; the largest has {widest} positions on a side")
assert widest <= 800

# %% [markdown]
# ### Check it: many devices share a batch
#
# The paper's eight GPUs each worked on a part of every batch. `split` cuts it up, shortest sentences first. The batch, and
# with it the update, is the same whatever the number of parts; every pair is in exactly one of them, and all have about
# equally much to do. The parts hold less padding than the whole, since each is only as wide as its own longest sentence.

# %%
large = TokenBatches(ids, max_tokens=8000)
shares = []
for batch in itertools.islice(large.epoch(0), 5):
    parts = batch.split(8)
    assert sum(part.n_tokens for part in parts) == batch.n_tokens
    rows = sorted(row[row != PAD_ID].tolist() for part in parts for row in part.src)
    assert rows == sorted(row[row != PAD_ID].tolist() for row in batch.src)
    shares.append([part.n_tokens for part in parts])
print("target tokens of eight devices in one update:", shares[0])
totals = [sum(device) for device in zip(*shares)]
assert max(totals) / min(totals) < 1.05
whole = list(large.epoch(0))
cut = [part for batch in whole for part in batch.split(8)]
print(f"padding: {padding_share(whole):.1%} in whole batches, {padding_share(cut):.1%} in eighths")
assert padding_share(cut) < padding_share(whole)

# %% [markdown]
# ### Check it: a run that stopped finds its next batch

# %%
after = len(plan) + 3  # updates done: a whole epoch and three batches
resumed, straight = batches.from_update(after), itertools.islice(batches, after, None)
for _ in range(5):
    assert next(resumed).src.equal(next(straight).src)
print("the same batches after", after, "updates, without making the first ones")

# %% [markdown]
# ## Unsaid by the paper
#
# * **What a batch counts.** The authors' first code takes 4,096 tokens a GPU with padding counted, on eight GPUs; the
#   paper says about 25,000. `max_tokens` counts padding too, so a batch never needs more memory than planned.
# * **How text was cut.** The paper does not say what was done before the byte pairs. The authors' first code reads an
#   archive that was tokenized first and cut with 32,000 merges learned on both languages together; merges and characters
#   make the vocabulary larger than that. SentencePiece learns from untouched text, so nothing must be put together again
#   afterwards but pieces.
# * **Begin and end.** The paper's text names no begin or end symbol. The authors' code shifts the targets by a zero
#   vector. Most code since, and ours, puts a begin token in front.
# * **Sentences that are too long.** The paper does not say. The authors' first code limits them to 256 pieces.
#   `TokenBatches` refuses them, with their length; leaving them out is for those who prepare the data.

# %% [markdown]
# ## What we now know
#
# * A shared byte-pair vocabulary with bytes behind it knows every text: all of ours come back unchanged.
# * Grouped by length, under 5 % of the positions are padding in batches of 800 tokens; as they come, more than a quarter.
# * The order of the batches is a function of seed and epoch alone, so a run that stopped finds its next batch again.
# * A batch can be dealt out to many devices, each pair to exactly one.

# %% [markdown]
# ## Exercises
#
# 1. **Predict, then run.** Sentences of 3, 5, 9 and 10 tokens form a batch. Which share of it is padding? Check:
#    `check("5.1-padding", answer)`.
# 2. **Predict, then run.** Into which pieces does the tokenizer split `"Apfelbaum"`, and into which `"Baumapfel"`? In which of
#    the two does *Apfel* stay whole, and why not in the other?
# 3. **Minutes.** Sort by the target's length first and the source's second. How much padding is there then?
# 4. **An hour.** Learn merges from the words without looking at how often each was seen. Which is the first merge that changes?

# %% [markdown]
# Solution to exercise 1: four rows of ten places, 27 of them taken.

# %% tags=["hide-cell"]
from transformer.exercises import check

answer = 1 - (3 + 5 + 9 + 10) / (4 * 10)
verdict = check("5.1-padding", answer)
print(verdict)
assert verdict

# %% tags=["hide-cell"]
# Exercise 2: the corpus has "Apfel" behind a space only, so its piece begins with one.
for text in ("Apfelbaum", "Baumapfel"):
    print(" ".join(tokenizer.pieces(tokenizer.encode(text))))
assert "▁Apfel" in tokenizer.pieces(tokenizer.encode("Apfelbaum"))
assert not any("Apfel" in piece or "apfel" in piece for piece in tokenizer.pieces(tokenizer.encode("Baumapfel")))

# %% tags=["hide-cell"]
# Exercise 4: every word counts once. The first merge stays; the second is in newer and lower now, no more n+e.
equally = learn(dict.fromkeys(("newer", "lower", "newest", "slow"), 1), n_merges=5)
print("merges:", ", ".join("+".join(pair) for pair in equally))
assert equally[0] == merges[0] and equally[1] == ("we", "r") != merges[1]

# %% [markdown]
# ## The notebook and the module agree

# %%
theirs = transformer.TokenBatches(ids, max_tokens=800, seed=7).plan(0)
assert [batch.tolist() for batch in theirs] == [batch.tolist() for batch in plan]
assert transformer.make_batch(ids[:2]).src.equal(make_batch(ids[:2]).src)
