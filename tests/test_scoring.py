"""Section 6.1: scores that others get too, in ways that are written beside them."""

import builtins
import inspect
import math
import os
import re
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sacremoses import MosesDetokenizer, MosesTokenizer

from transformer.scoring import Score, bleu, chrf, paper_bleu, split_compounds

METRICS = [bleu, chrf, paper_bleu]
each_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)


# ------------------------------------------------------------------------------------- BLEU and chrF by the definition


def textbook(hypotheses, references):
    """Lists of tokens: matches and totals of each order, both lengths, brevity penalty and BLEU, without numpy."""
    matches, totals = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(1, 5):
            there = Counter(" ".join(reference[i : i + n]) for i in range(len(reference) - n + 1))
            for i in range(len(hypothesis) - n + 1):
                gram = " ".join(hypothesis[i : i + n])
                totals[n - 1] += 1
                if there[gram] > 0:  # each occurrence in the reference serves once
                    there[gram] -= 1
                    matches[n - 1] += 1
    lengths = sum(map(len, hypotheses)), sum(map(len, references))
    if not all(matches):
        return matches, totals, lengths, None, 0.0
    brevity = 1.0 if lengths[0] > lengths[1] else math.exp(1 - lengths[1] / lengths[0])
    score = 100 * brevity * math.exp(sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4)
    return matches, totals, lengths, brevity, score


def textbook_chrf(hypotheses, references):
    """Precision and recall of character n-grams over the corpus, white space left out, averaged over n; their F2."""
    precision = recall = 0.0
    for n in range(1, 7):
        match = made = wanted = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            h, r = ("".join(text.split()) for text in (hypothesis, reference))
            ours, theirs = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in (h, r))
            match, made, wanted = match + (ours & theirs).total(), made + ours.total(), wanted + theirs.total()
        precision, recall = precision + match / made / 6, recall + match / wanted / 6
    return 100 * 5 * precision * recall / (4 * precision + recall) if precision else 0.0


word = st.sampled_from(["der", "die", "Hund", "schläft", "im", "Garten"])
line = st.lists(word, max_size=12)


@given(st.lists(st.tuples(line, line), min_size=1, max_size=8))
def test_bleu_is_the_textbooks(pairs):
    hypotheses, references = map(list, zip(*pairs, strict=True))
    sides = {
        "hypotheses": [" ".join(tokens) for tokens in hypotheses],
        "references": [" ".join(tokens) for tokens in references],
    }
    *_, expected = textbook(hypotheses, references)
    assert paper_bleu(**sides).value == pytest.approx(expected, abs=1e-9), "Moses leaves plain words as they are"
    if expected:  # where nothing matches, bleu smooths
        assert bleu(**sides).value == pytest.approx(expected, abs=1e-9)
        assert bleu(**sides, tokenize="none").value == pytest.approx(expected, abs=1e-9)


letters = st.text("abcä .", min_size=8).filter(lambda text: len("".join(text.split())) > 6)


@given(st.lists(st.tuples(letters, letters), min_size=1))
def test_chrf_is_the_textbooks(pairs):
    hypotheses, references = map(list, zip(*pairs, strict=True))
    expected = textbook_chrf(hypotheses, references)
    assert chrf(hypotheses=hypotheses, references=references).value == pytest.approx(expected, abs=1e-9)


@each_metric
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_any_text_gets_a_score(metric, pairs):
    hypotheses, references = map(list, zip(*pairs, strict=True))
    value, signature = metric(hypotheses=hypotheses, references=references)
    assert 0 <= value <= 100 + 1e-9 and signature


@each_metric
def test_equal_is_100_and_different_is_0(metric):
    lines = ["Der Hund schläft heute im Garten.", "Die Katze sitzt auf dem alten Sofa."]
    assert metric(hypotheses=lines, references=lines).value == pytest.approx(100)
    assert metric(hypotheses=["", ""], references=lines).value == 0


def test_a_hand_count():
    """matches 14, 10, 7, 4 of 15, 13, 11, 9; lengths 15 and 16."""
    sides = {
        "hypotheses": ["die Katze schläft auf dem Sofa", "der Hund sieht den alten Mann im Garten ."],
        "references": ["die Katze schläft heute auf dem Sofa", "der Hund sieht den alten Mann im Park ."],
    }
    expected = 100 * math.exp(1 - 16 / 15) * (14 / 15 * 10 / 13 * 7 / 11 * 4 / 9) ** 0.25
    for score in (bleu(**sides), bleu(**sides, tokenize="none"), paper_bleu(**sides)):
        assert score.value == pytest.approx(expected, abs=1e-9)


# ----------------------------------------------------------------------------------------------------------- the traps

SHORT = ["Der Hund schläft im Garten", "Die Katze sitzt auf dem Sofa"]
LONG = [
    "Der Hund schläft im Garten, und morgen bellt er wieder.",
    "Die Katze sitzt auf dem Sofa und träumt von einer Maus.",
]


@each_metric
def test_arguments_have_names(metric):
    kinds = {name: parameter.kind for name, parameter in inspect.signature(metric).parameters.items()}
    assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}
    with pytest.raises(TypeError, match="positional"):
        metric(SHORT, LONG)


def test_swapped_arguments_give_another_number():
    right, swapped = bleu(hypotheses=SHORT, references=LONG), bleu(hypotheses=LONG, references=SHORT)
    tokens = [[re.findall(r"\w+|[.,]", text) for text in side] for side in (SHORT, LONG)]
    *_, brevity, expected = textbook(*tokens)
    assert brevity == pytest.approx(math.exp(1 - 24 / 11)) and right.value == pytest.approx(expected)
    assert swapped.value == pytest.approx(textbook(*reversed(tokens))[-1]) and abs(right.value - swapped.value) > 1
    backwards = chrf(hypotheses=LONG, references=SHORT).value
    assert chrf(hypotheses=SHORT, references=LONG).value < backwards, "recall counts more than precision"


def test_a_corpus_is_not_the_mean_of_its_sentences():
    sides = [LONG[0], SHORT[1]], [LONG[0], LONG[1]]
    whole = bleu(hypotheses=sides[0], references=sides[1]).value
    each = [bleu(hypotheses=[h], references=[r]).value for h, r in zip(*sides, strict=True)]
    assert abs(whole - sum(each) / 2) > 1
    assert bleu(hypotheses=sides[0] * 3, references=sides[1] * 3).value == pytest.approx(whole)


def test_case_counts_unless_told_otherwise():
    sides = {"hypotheses": [text.lower() for text in LONG], "references": LONG}
    assert bleu(**sides).value < 60 and bleu(**sides, lowercase=True).value == pytest.approx(100)


def test_a_compound_is_split_at_its_hyphens():
    assert split_compounds("rich-text format") == "rich ##AT##-##AT## text format"
    assert split_compounds("Nord-Süd-Gefälle - a -b c- 2-3") == (
        "Nord ##AT##-##AT## Süd ##AT##-##AT## Gefälle - a -b c- 2 ##AT##-##AT## 3"
    )
    assert split_compounds("A-B-C") == "A ##AT##-##AT## B-C", "as the script: matches do not overlap"
    hypotheses, references = ["die große E-Mail kam"], ["die kleine E-Mail kam"]
    expected = textbook(*[[split_compounds(side[0]).split()] for side in (hypotheses, references)])
    assert expected[:3] == ([5, 3, 2, 1], [6, 5, 4, 3], (6, 6)), "split on both sides"
    score = paper_bleu(hypotheses=hypotheses, references=references)
    assert score.value == pytest.approx(expected[-1]) and bleu(hypotheses=hypotheses, references=references) < score


@pytest.mark.parametrize(
    ("language", "tokens"), [("fr", ["l'", "homme", "n'", "est", "pas"]), ("en", ["l", "'homme", "n", "'est", "pas"])]
)
def test_moses_rules_are_the_languages(language, tokens):
    *_, expected = textbook([[*tokens, "là"]], [[*tokens, "ici"]])
    sides = {"hypotheses": ["l'homme n'est pas là"], "references": ["l'homme n'est pas ici"]}
    assert paper_bleu(**sides, language=language).value == pytest.approx(expected)
    assert paper_bleu(**sides, language="de").value != pytest.approx(expected), "there an apostrophe stands alone"


# ------------------------------------------------------------------------------------------------------ the signatures


def test_a_score_says_how_it_was_made():
    sides = {"hypotheses": SHORT, "references": LONG}
    version = f"version:{sacrebleu.__version__}"
    assert bleu(**sides).signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert bleu(**sides, tokenize="intl", lowercase=True).signature == (
        f"nrefs:1|case:lc|eff:no|tok:intl|smooth:exp|{version}"
    )
    assert chrf(**sides).signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"
    for language in ("de", "fr"):
        assert paper_bleu(**sides, language=language).signature == (
            f"nrefs:1|case:mixed|eff:no|tok:moses-{language}|compounds:split|smooth:none|{version}"
        )


def test_a_score_prints_with_its_signature():
    score = Score(27.26, "nrefs:1|case:mixed")
    assert str(score) == f"{score}" == "27.3 (nrefs:1|case:mixed)"
    value, signature = score
    assert (value, signature) == (score.value, score.signature) == (27.26, "nrefs:1|case:mixed")


def test_the_command_line_of_sacrebleu_agrees(tmp_path):
    for name, lines in (("hyp", SHORT), ("ref", LONG)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    for metric in (bleu, chrf):
        options = [str(tmp_path / "ref"), "-i", str(tmp_path / "hyp"), "-m", metric.__name__, "-w", "6", "-b"]
        command = [sys.executable, "-m", "sacrebleu", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"})
        assert metric(hypotheses=SHORT, references=LONG).value == pytest.approx(float(done.stdout), abs=1e-6)


# ------------------------------------------------------------------------------------------------------------ failures


@each_metric
@pytest.mark.parametrize(
    ("hypotheses", "references", "error", "message"),
    [
        ("ein Satz", ["ein Satz"], TypeError, "hypotheses has type str; give a list"),
        (["ein Satz"], "ein Satz", TypeError, "references has type str; give a list"),
        (b"ab", ["a", "b"], TypeError, "hypotheses has type bytes"),
        (None, ["a"], TypeError, "hypotheses has type NoneType"),
        (["a"], {"a"}, TypeError, "references has type set"),
        (["a", "b"], [["a", "b"]], TypeError, "line 1 of references has type list; give one string a sentence"),
        (["a", None], ["a", "b"], TypeError, "line 2 of hypotheses has type NoneType"),
        (["a", "b"], ["a", "b", "c"], ValueError, "2 hypotheses and 3 references; give one reference per hypothesis"),
        ([], [], ValueError, "empty; there is nothing to score"),
    ],
)
def test_what_cannot_be_scored_is_refused(metric, hypotheses, references, error, message):
    with pytest.raises(error, match=message):
        metric(hypotheses=hypotheses, references=references)


def test_unknown_choices_are_refused():
    with pytest.raises(ValueError, match="tokenize is '14b'; choose one of 13a, intl"):
        bleu(hypotheses=SHORT, references=LONG, tokenize="14b")
    for language in ("xx", "german", ""):
        with pytest.raises(ValueError, match=f"language is '{language}', which Moses does not know"):
            paper_bleu(hypotheses=SHORT, references=LONG, language=language)


@pytest.mark.parametrize(
    ("metric", "missing"),
    [(bleu, "sacrebleu"), (chrf, "sacrebleu"), (paper_bleu, "sacrebleu"), (paper_bleu, "sacremoses")],
)
def test_a_missing_library_is_named(metric, missing, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named '{missing}'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"needs {missing} \(No module.*pip install sacrebleu sacremoses"):
        metric(hypotheses=SHORT, references=LONG)


# ------------------------------------------------------------------------------------------- real output, known scores

# sacreBLEU 13a after detokenizing: newstest2014 full and filtered, 2015, 2016
LINGEVAL = {
    "sennrich2016": (25.36, 25.37, 28.04, 34.21),
    "bpe2bpe": (20.07, 20.12, 23.17, 26.73),
    "bpe2char": (19.46, 19.39, 22.75, 25.97),
    "char2char": (19.71, 19.71, 22.90, 26.21),
}
# newstest2014 full: Moses tokens; the same with compounds split
TOKENIZED = {
    "sennrich2016": (25.41, 25.92),
    "bpe2bpe": (20.11, 20.63),
    "bpe2char": (19.52, 20.00),
    "char2char": (19.76, 20.30),
}
each_system = pytest.mark.parametrize("system", LINGEVAL)


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@lru_cache
def system_output(test_data: Path, system: str, year: int) -> tuple[list[str], list[str]]:
    """A system's output for a year's test, detokenized, and the reference."""
    detokenize = MosesDetokenizer("de").detokenize
    tokenized = read(test_data / "bleu-check" / "lingeval97" / f"{system}.newstest{year}.de")
    return [detokenize(text.split()) for text in tokenized], read(test_data / "newstest" / f"newstest{year}.en-de.de")


@each_system
def test_published_systems_score_what_they_should(test_data, system):
    scores = {}
    for year in (2014, 2015, 2016):
        hypotheses, references = system_output(test_data, system, year)
        scores[year] = bleu(hypotheses=hypotheses, references=references).value
        if year == 2014:
            numbers = read(test_data / "newstest" / "newstest2014.en-de.filtered2737.lines")
            chosen = [int(number) - 1 for number in numbers]
            scores["filtered"] = bleu(
                hypotheses=[hypotheses[i] for i in chosen], references=[references[i] for i in chosen]
            ).value
            assert (len(references), len(chosen)) == (3003, 2737)
    found = [scores[key] for key in (2014, "filtered", 2015, 2016)]
    assert found == pytest.approx(LINGEVAL[system], abs=0.01)
    if system == "sennrich2016":
        assert round(scores[2016], 1) == 34.2, "as published for WMT 2016"


@each_system
def test_the_authors_way_of_scoring(test_data, system):
    hypotheses, references = system_output(test_data, system, 2014)
    tokenized = {
        "hypotheses": read(test_data / "bleu-check" / "lingeval97" / f"{system}.newstest2014.de"),
        "references": [MosesTokenizer("de").tokenize(text, return_str=True) for text in references],
    }
    split = {side: [split_compounds(text) for text in lines] for side, lines in tokenized.items()}
    as_delivered = [bleu(**lines, tokenize="none").value for lines in (tokenized, split)]
    assert as_delivered == pytest.approx(TOKENIZED[system], abs=0.02)
    assert paper_bleu(hypotheses=hypotheses, references=references).value == pytest.approx(
        TOKENIZED[system][1], abs=0.02
    )


def test_what_the_chapter_records(test_data):
    """The numbers of the Edinburgh system that the chapter writes down."""
    hypotheses, references = system_output(test_data, "sennrich2016", 2014)
    sides = {"hypotheses": hypotheses, "references": references}
    delivered = read(test_data / "bleu-check" / "lingeval97" / "sennrich2016.newstest2014.de")
    sentences = [sacrebleu.sentence_bleu(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
    found = [
        bleu(hypotheses=references, references=hypotheses).value,
        bleu(**sides, tokenize="none").value,
        BLEU(force=True).corpus_score(delivered, [references]).score,
        sum(sentences) / len(sentences),
        bleu(**sides, tokenize="intl").value,
    ]
    assert found == pytest.approx([25.41, 21.37, 25.27, 24.50, 26.03], abs=0.01)


def test_the_exact_score_of_another_project(test_data):
    """tensorflow/nmt expects 22.5855084573 here, and counts an empty line as one empty token."""
    folder = test_data / "bleu-check" / "tf-nmt"
    hypotheses = read(folder / "newstest2013.hyp.tok.en")
    references = [text.replace("@@ ", "").strip() for text in read(folder / "newstest2013.ref.bpe.en")]
    pieces = read(folder / "newstest2013.ref.spm.en")
    assert [text.replace(" ", "").replace("\u2581", " ").strip() for text in pieces] == references

    tokens = [[text.strip().split(" ") for text in side] for side in (hypotheses, references)]
    matches, totals, lengths, brevity, score = textbook(*tokens)
    assert list(zip(matches, totals, strict=True)) == [(35979, 63214), (17474, 60214), (9709, 57230), (5574, 54269)]
    assert lengths == (63214, 64807) and brevity == pytest.approx(0.9751147585, abs=1e-10)
    assert score == pytest.approx(22.5855084573, abs=1e-10)

    # sacreBLEU has no empty tokens: three fewer words, three empty lines.
    ours = bleu(hypotheses=hypotheses, references=references, tokenize="none").value
    *_, without = textbook(*[[text.split() for text in side] for side in (hypotheses, references)])
    assert ours == pytest.approx(without, abs=1e-9) == pytest.approx(22.5847, abs=5e-5)
