# Exported from notebooks/06_1c_machine_translation.py, Section 6.1; edit that file, not this one.
# sha256 of what follows: 5b6089f6e7ed703d
"""Machine Translation (Section 6.1)."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer.checkpoints import (
    WEIGHTS_FILE,
    list_checkpoints,
    load_checkpoint,
    read_description,
    save_checkpoint,
    write_atomically,
)
from transformer.data import BOS_ID, EOS_ID, PAD_ID, Tokenizer, pad
from transformer.decoding import _check_count, beam_search, greedy_decode
from transformer.model import Transformer, choose_device

__all__ = ["TOKENIZER_FILE", "Translator", "load_toy_translator"]


TOKENIZER_FILE = "tokenizer.model"


class Translator:
    """A trained model with its tokenizer: text in, text out.

    Args:
        model: Put into evaluation mode.
        tokenizer: The one the model was trained with.

    Raises:
        ValueError: The tokenizer has another number of pieces than the model, or other special ids.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        config = model.config
        if not len(tokenizer) == config.src_vocab_size == config.tgt_vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} pieces, the model reads {config.src_vocab_size} and writes "
                f"{config.tgt_vocab_size}; they do not belong together."
            )
        if (config.pad_id, config.bos_id, config.eos_id) != (PAD_ID, BOS_ID, EOS_ID):
            raise ValueError(
                f"the model's padding, begin and end are {config.pad_id}, {config.bos_id} and {config.eos_id}, the "
                f"tokenizer's {PAD_ID}, {BOS_ID} and {EOS_ID}; they do not belong together."
            )
        self.model, self.tokenizer = model.eval(), tokenizer

    @classmethod
    def from_pretrained(cls, directory: str | Path, device: str = "auto") -> "Translator":
        """Read a folder that `save` or a training run wrote.

        Args:
            directory: The folder.
            device: "auto", or a name that torch knows.

        Returns:
            The translator.

        Raises:
            FileNotFoundError: A file is missing, or the training run has not ended.
            ValueError: A file is damaged, or the files do not belong together.
        """
        path = Path(directory) / TOKENIZER_FILE
        if list_checkpoints(directory) and not (Path(directory) / WEIGHTS_FILE).is_file():
            raise FileNotFoundError(f"{directory} holds no model yet; run: transformer average --run {directory}")
        if not path.is_file():
            raise FileNotFoundError(f"{directory} has no {TOKENIZER_FILE}; give a folder that holds a trained model.")
        if path.stat().st_size > 2**26:
            raise ValueError(f"{path} is larger than 64 MiB, which no tokenizer is; copy it again.")
        model, tokenizer = load_checkpoint(directory, choose_device(device)), Tokenizer.load(path)
        known = read_description(directory).get("about", {}).get("tokenizer_sha256")
        if known and known != hashlib.sha256(tokenizer.model).hexdigest():
            raise ValueError(f"{path} is damaged, or of another model; copy it again.")
        return cls(model, tokenizer)

    def save(self, directory: str | Path, dtype: torch.dtype | None = None, **about: Any) -> None:
        """Write model and tokenizer into a folder.

        Args:
            directory: Made if it does not exist.
            dtype: Store the weights in this type; None keeps their own.
            **about: What made the model, as JSON values.
        """
        about = {**about, "tokenizer_sha256": hashlib.sha256(self.tokenizer.model).hexdigest()}
        save_checkpoint(directory, self.model, dtype, **about)
        write_atomically(Path(directory) / TOKENIZER_FILE, self.tokenizer.model)

    def translate(
        self,
        lines: Iterable[str],
        errors: str = "raise",
        beam_size: int = 4,
        alpha: float = 0.6,
        batch_tokens: int = 4000,
    ) -> list[str]:
        """Translate each line.

        Args:
            lines: Sentences. An empty one, or white space alone, gives an empty one.
            errors: What to do with a line that cannot be translated: "raise", or "empty" to give "" for it.
            beam_size: Of the beam search; 1 decodes greedily, which is faster.
            alpha: α of the length penalty.
            batch_tokens: Room for source tokens in a batch, padding included, once for each hypothesis of the beam. A
                line of more tokens than that is an error.

        Returns:
            One translation per line, in order.

        Raises:
            TypeError: A string is given in place of a list of strings, or a line is not a string.
            ValueError: A line cannot be translated, and errors is "raise"; or an option is out of its range.

        Source: §6.1.
        """
        found = self._search(lines, None, 0, errors, beam_size=beam_size, alpha=alpha, batch_tokens=batch_tokens)
        return [best[0][0] for best in found]

    def stream(self, lines: Iterable[str], errors: str = "raise", chunk: int = 1000, **options: Any) -> Iterator[str]:
        """Translate lines as they come, however many.

        Args:
            lines: Sentences; read only as far as they are needed.
            errors: As in `translate`.
            chunk: How many lines to read, sort by length and translate at a time.
            **options: beam_size, alpha and batch_tokens, as in `translate`.

        Returns:
            One translation per line, in order.

        Raises:
            TypeError: As in `translate`.
            ValueError: As in `translate`, for a line when it is its turn; or chunk is out of its range.
        """
        _check_count("chunk", chunk)
        return (best[0][0] for best in self._search(lines, chunk, 0, errors, **options))

    def n_best(
        self, lines: Iterable[str], n: int, errors: str = "raise", **options: Any
    ) -> list[list[tuple[str, float]]]:
        """The best translations of each line, with their scores.

        Args:
            lines: Sentences.
            n: How many translations, at most beam_size. Two of them may read alike, cut into other pieces.
            errors: As in `translate`.
            **options: beam_size, alpha and batch_tokens, as in `translate`.

        Returns:
            For each line its translations with log P(Y | X) / length penalty, the best first. There are fewer than n if
            fewer were found; a line without a translation has one, empty, of score 0.

        Raises:
            TypeError: As in `translate`.
            ValueError: As in `translate`, or n is out of its range.
        """
        _check_count("n", n)
        return list(self._search(lines, None, n, errors, **options))

    def _search(
        self,
        lines: Iterable[str],
        chunk: int | None,
        n: int,
        errors: str,
        beam_size: int = 4,
        alpha: float = 0.6,
        batch_tokens: int = 4000,
    ) -> Iterator[list[tuple[str, float]]]:
        """The n best translations of each line with their scores; for n = 0 the best, whose score nobody asks for."""
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines; put the one line into a list.")
        if errors not in ("raise", "empty"):
            raise ValueError(f'errors is {errors!r}; choose "raise" or "empty".')
        _check_count("batch_tokens", batch_tokens)

        def decode(src: Tensor) -> list[list[tuple[list[int], float]]]:
            if beam_size == 1 and not n:
                return [[(ids, 0.0)] for ids in greedy_decode(self.model, src)]
            found = beam_search(self.model, src, beam_size, alpha, n_best=max(n, 1))
            return [[(hypothesis.ids, hypothesis.score) for hypothesis in best] for best in found]

        def translate(part: list[tuple[int, str]]) -> list[list[tuple[str, float]]]:
            sources = [self._encode(line, number, errors, batch_tokens) for number, line in part]
            outputs = [[("", 0.0)] for _ in sources]
            order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i]))
            while order:
                size = 1
                while size < len(order) and len(sources[order[size]]) * (size + 1) * beam_size <= batch_tokens:
                    size += 1
                chosen, order = order[:size], order[size:]
                batch = pad([sources[i] for i in chosen]).to(next(self.model.parameters()).device)
                for i, found in zip(chosen, decode(batch), strict=True):
                    outputs[i] = [(self.tokenizer.decode(ids), score) for ids, score in found]
            return outputs

        numbered = enumerate(lines, 1)
        parts = iter(lambda: list(itertools.islice(numbered, chunk)), [])
        return itertools.chain.from_iterable(map(translate, parts))

    def _encode(self, line: str, number: int, errors: str, batch_tokens: int) -> list[int]:
        """The source ids of a line, or nothing if there is nothing to translate."""
        config = self.model.config
        limit = min(batch_tokens, config.max_len) if config.positions == "learned" else batch_tokens
        try:
            ids = [*self.tokenizer.encode(line), EOS_ID]
            problem = f"has {len(ids)} tokens, more than {limit}; split it" if len(ids) > limit else ""
        except ValueError:
            problem = "is not text: it holds a lone surrogate, or bytes that are not UTF-8; mend its encoding"
        if not line.strip():
            return []
        if problem and errors == "raise":
            raise ValueError(f"line {number} {problem}.")
        return [] if problem else ids


@lru_cache(maxsize=1)
def load_toy_translator() -> Translator:
    """The model that ships with this book, trained on its embedded corpus. Loaded once, on the CPU.

    Returns:
        The translator, English to German.
    """
    with as_file(files("transformer") / "pretrained") as directory:
        return Translator.from_pretrained(directory, "cpu")
