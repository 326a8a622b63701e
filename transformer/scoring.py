# Exported from notebooks/06_1b_scoring.py, Section 6.1; edit that file, not this one.
# sha256 of what follows: 2b31f20a0ca0a054
"""Scoring (Section 6.1)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = ["TOKENIZERS", "Score", "bleu", "chrf", "split_compounds", "paper_bleu"]


TOKENIZERS = ("13a", "intl", "char", "zh", "none")  # sacreBLEU's rules that need no download


class Score(NamedTuple):
    """A score and how it was made. Prints as `27.3 (nrefs:1|case:mixed|…)`.

    Source: §6.1.
    """

    value: float  # 0 to 100
    signature: str  # every choice that changes the value

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.signature})"


def _paired(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both sides as lists of strings of the same length, or an error that says what is wrong."""
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        if not isinstance(lines, Sequence) or isinstance(lines, str | bytes):
            raise TypeError(f"{name} has type {type(lines).__name__}; give a list with one string a sentence.")
        for number, line in enumerate(lines, 1):
            if not isinstance(line, str):
                raise TypeError(f"line {number} of {name} has type {type(line).__name__}; give one string a sentence.")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; give one reference per hypothesis."
        )
    if not hypotheses:
        raise ValueError("hypotheses and references are empty; there is nothing to score.")
    return list(hypotheses), list(references)


@contextmanager
def _needs(library: str) -> Iterator[None]:
    """Say how to install a library that cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this score needs {library} ({error}); run: pip install sacrebleu sacremoses") from error


def bleu(
    *, hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> Score:
    """BLEU of a corpus, as sacreBLEU computes it.

    Args:
        hypotheses: The translations, as text for people: one string per sentence, not tokenized.
        references: One human translation for each, untouched.
        tokenize: How both are cut into tokens: "13a", "intl", "char", "zh", or "none" if they are cut at spaces.
        lowercase: Whether to ignore case, on both sides.

    Returns:
        The score, 0 to 100, and sacreBLEU's signature.

    Raises:
        TypeError: One of the two is no list of strings.
        ValueError: The two differ in length or are empty, or the tokenization is unknown.
        ImportError: sacreBLEU is not installed.

    Source: §6.1.
    """
    if tokenize not in TOKENIZERS:
        raise ValueError(f"tokenize is {tokenize!r}; choose one of {', '.join(TOKENIZERS)}.")
    with _needs("sacrebleu"):
        from sacrebleu.metrics.bleu import BLEU
    return _score(BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none"), hypotheses, references)


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """What one of sacreBLEU's metrics says, with its signature."""
    hypotheses, references = _paired(hypotheses, references)
    return Score(metric.corpus_score(hypotheses, [references]).score, str(metric.get_signature()))


def chrf(*, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF of a corpus, as sacreBLEU computes it: the F2-score of character n-grams of length 1 to 6.

    Args:
        hypotheses: The translations, one string per sentence, not tokenized.
        references: One human translation for each, untouched.

    Returns:
        The score, 0 to 100, and sacreBLEU's signature.

    Raises:
        TypeError: One of the two is no list of strings.
        ValueError: The two differ in length or are empty.
        ImportError: sacreBLEU is not installed.

    Source: §6.1 (a second opinion; not the paper's).
    """
    with _needs("sacrebleu"):
        from sacrebleu.metrics.chrf import CHRF
    return _score(CHRF(), hypotheses, references)


def split_compounds(tokens: str) -> str:
    """Split words at hyphens, as the authors' script does: `E-Mail` becomes `E ##AT##-##AT## Mail`.

    Args:
        tokens: A tokenized sentence, tokens separated by spaces.

    Returns:
        The sentence with more tokens. Matches do not overlap, so of `A-B-C` only the first hyphen is split.

    Source: the script `get_ende_bleu.sh` of tensor2tensor (§7 names the toolkit).
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def _moses(lines: Sequence[str], language: str) -> list[str]:
    """Tokenize as Moses does, special characters escaped."""
    with _needs("sacremoses"):
        from sacremoses import MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    if language not in NonbreakingPrefixes().available_langs.values():
        raise ValueError(f'language is {language!r}, which Moses does not know; give a code such as "de" or "fr".')
    tokenizer = MosesTokenizer(language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def paper_bleu(*, hypotheses: Sequence[str], references: Sequence[str], language: str = "de") -> Score:
    """BLEU as the authors' script computes it: Moses tokens, compounds split at hyphens, no smoothing.

    On plain text it is about `bleu`; hyphens and quotation marks move it, mostly up. Compare it with its own kind only.

    Args:
        hypotheses: The translations, one string per sentence, not tokenized.
        references: One human translation for each, untouched.
        language: Their language, for the Moses tokenizer's abbreviations and apostrophes.

    Returns:
        The score, 0 to 100, and a signature that names tokenizer, language and splitting.

    Raises:
        TypeError: One of the two is no list of strings.
        ValueError: The two differ in length or are empty, or Moses does not know the language.
        ImportError: sacreBLEU or sacremoses is not installed.

    Source: §6.1, and the script `get_ende_bleu.sh` of tensor2tensor.
    """
    with _needs("sacrebleu"):
        from sacrebleu.metrics.bleu import BLEU
    sides = [[split_compounds(line) for line in _moses(side, language)] for side in _paired(hypotheses, references)]
    score = _score(BLEU(tokenize="none", smooth_method="none", force=True), *sides)
    return score._replace(signature=score.signature.replace("tok:none", f"tok:moses-{language}|compounds:split"))
