# Exported from notebooks/05_1_training_data_and_batching.py, Section 5.1; edit that file, not this one.
# sha256 of what follows: 12b9eca00cab18e5
"""Training Data and Batching (Section 5.1)."""

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

__all__ = [
    "PAD_ID",
    "BOS_ID",
    "EOS_ID",
    "UNKNOWN_ID",
    "Tokenizer",
    "Batch",
    "pad",
    "make_batch",
    "EncodedPairs",
    "TokenBatches",
    "padding_share",
    "copy_task",
]


PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID = 0, 1, 2, 3


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


def _ended(ids: Tensor, sequences: Sequence[Sequence[int]]) -> Tensor:
    """One column more, with the end token behind each sequence."""
    ids = F.pad(ids, (0, 1), value=PAD_ID)
    ids[torch.arange(len(sequences)), [len(sequence) for sequence in sequences]] = EOS_ID
    return ids


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


def _shape(
    sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort keys that bring pairs of like shape together: the difference, up and down in turn, and the longer side."""
    longer = np.maximum(sources, targets)
    return (sources - targets) * np.where(longer % 2, 1, -1), longer


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
