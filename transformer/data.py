# Exported from notebooks/05_1_training_data_and_batching.py, Section 5.1; edit that file, not this one.
# sha256 of what follows: 5e8c0e78005ecf84
"""Training Data and Batching (Section 5.1)."""

import dataclasses
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
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
        return Batch(self.src.to(device), self.tgt_in.to(device), self.tgt_out.to(device))


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


def _shape(source: Sequence[int], target: Sequence[int]) -> tuple[int, int]:
    """A key that sorts pairs of like shape together: the longer side, then the difference, up and down in turn."""
    longer = max(len(source), len(target))
    return longer, (len(source) - len(target)) * (-1) ** longer


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
