"""The embedded corpus: its German, its alignment, its splits. The German is checked against tables of this file."""

import os
import re
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.corpus import (
    MAX_WORDS,
    PHENOMENA,
    SPLITS,
    SentencePair,
    embedded_corpus,
    reserved,
    vocabulary,
    words,
)
from transformer.lexicon import ADJECTIVES, BE, NOUNS, SAYING, VERBS, Noun, noun_phrase, verb_group

ROOT = Path(__file__).resolve().parents[1]
THE_FAMOUS_ONE = {
    "tired": "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "wide": "Das Tier überquerte die Straße nicht, weil sie zu breit war.",
}


@cache
def sample(split: str, count: int = 4000) -> list[SentencePair]:
    return list(islice(embedded_corpus(split, seed=11), count))


def everything() -> Iterator[SentencePair]:
    for split in SPLITS:
        yield from sample(split)


# ------------------------------------------------------------------------------------------------ German, once more
# Written down here independently of the grammar: genders, and for each case article and ending, m f n plural.

GENDERS = {
    "m": """Mann Vater Bruder König Hund Vogel Fuchs Esel Fluss See Platz Garten Keller Wald Apfel Kuchen Käse
        Apfelkuchen Kirschkuchen Nusskuchen Saft Tee Apfelsaft Kirschsaft Hut Mantel Wagen Ball Schlüssel Brief
        Korb Küchenschlüssel Gartenschlüssel Tisch Stuhl Küchentisch Gartentisch Baum Apfelbaum Kirschbaum
        Nussbaum""",
    "f": """Frau Mutter Schwester Königin Katze Maus Kuh Ziege Straße Brücke Wiese Küche Schule Scheune Kirsche Nuss
        Karotte Milch Tür Küchentür Gartentür Jacke Kutsche Kiste Tasse Tasche Lampe Blume""",
    "n": """Mädchen Kind Pferd Schwein Tier Feld Haus Zimmer Schloss Ei Brot Fleisch Wasser Fenster Tor
        Küchenfenster Hemd Kleid Boot Auto Buch Bild Bett""",
}
GENDER = {noun: gender for gender, nouns in GENDERS.items() for noun in nouns.split()}
PLURALS = """
Mann Männer, Vater Väter, Bruder Brüder, König Könige, Hund Hunde, Vogel Vögel, Fuchs Füchse, Esel Esel, Fluss Flüsse,
See Seen, Platz Plätze, Garten Gärten, Keller Keller, Wald Wälder, Apfel Äpfel, Kuchen Kuchen, Hut Hüte, Mantel
Mäntel, Wagen Wagen, Ball Bälle, Schlüssel Schlüssel, Brief Briefe, Korb Körbe, Tisch Tische, Stuhl Stühle, Baum
Bäume, Frau Frauen, Mutter Mütter, Schwester Schwestern, Königin Königinnen, Katze Katzen, Maus Mäuse, Kuh Kühe, Ziege
Ziegen, Straße Straßen, Brücke Brücken, Wiese Wiesen, Küche Küchen, Schule Schulen, Scheune Scheunen, Kirsche
Kirschen, Nuss Nüsse, Karotte Karotten, Tür Türen, Jacke Jacken, Kutsche Kutschen, Kiste Kisten, Tasse Tassen, Tasche
Taschen, Lampe Lampen, Blume Blumen, Mädchen Mädchen, Kind Kinder, Pferd Pferde, Schwein Schweine, Tier Tiere, Feld
Felder, Haus Häuser, Zimmer Zimmer, Schloss Schlösser, Ei Eier, Fenster Fenster, Tor Tore, Hemd Hemden, Kleid Kleider,
Boot Boote, Auto Autos, Buch Bücher, Bild Bilder, Bett Betten
"""
PLURAL = dict(entry.split() for entry in PLURALS.split(","))
AGREEMENT = {
    ("the", "nom"): "der -e, die -e, das -e, die -en",
    ("the", "acc"): "den -en, die -e, das -e, die -en",
    ("the", "dat"): "dem -en, der -en, dem -en, den -en",
    ("a", "nom"): "ein -er, eine -e, ein -es",
    ("a", "acc"): "einen -en, eine -e, ein -es",
    ("a", "dat"): "einem -en, einer -en, einem -en",
    ("number", "nom"): "x -, x -, x -, x -e",
    ("number", "acc"): "x -, x -, x -, x -e",
    ("number", "dat"): "x -, x -, x -, x -en",
}
NUMBER = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben"}
STEM = {"teuer": "teur", "dunkel": "dunkl", "sauer": "saur", "müde": "müd"}
PREPOSITION = {"in": "dat", "into": "acc", "over": "acc", "under": "dat", "behind": "dat", "with": "dat", "for": "acc"}
GERMAN_PREPOSITIONS = {
    *[("in", "in"), ("im", "in"), ("in", "into"), ("ins", "into"), ("über", "over"), ("unter", "under")],
    *[("hinter", "behind"), ("mit", "with"), ("für", "for")],
}
ADVERBS = {
    *["gestern", "später", "heute", "oft", "manchmal", "morgen", "jetzt", "bald"],
    *["letzte woche", "diese woche", "heute morgen"],
}
MEANING = {"because": "weil", "although": "obwohl", "while": "während", "if": "wenn", "that": "dass"}
MEANING |= {"and": "und", "but": "aber"}
DATIVE_VERBS = {"help", "thank", "follow"}
CONJUNCTIONS = {"because", "although", "while", "if", "that", "and", "but"}
SUBORDINATE = {"weil", "obwohl", "während", "wenn", "dass"}
INFINITIVES = {verb.prefix + verb.german[0] for verb in VERBS}
PARTICIPLES = {verb.prefix + verb.german[3].lstrip("+") for verb in VERBS}
ENGLISH_NOUN = {name: (noun, name == noun.plural) for noun in NOUNS for name in (noun.plural, noun.english) if name}
NOUN_ENDS = {name.split()[-1] for name in ENGLISH_NOUN}
NO_OBJECT = {"is", "are", "was", "were", *(form for verb in SAYING for form in verb.forms)}
VERB_FORMS = {form: {v.english for v in VERBS if form in v.forms} for verb in VERBS for form in verb.forms}


@dataclass(frozen=True)
class Found:
    """A noun phrase found in an English clause."""

    start: int
    end: int  # of its noun
    role: str  # "subject", "object", "prepositional"
    case: str


@dataclass(frozen=True)
class EnglishClause:
    """One clause of an English sentence."""

    first: int
    last: int
    verb: str
    found: list[Found]
    negated: bool


def german(pair: SentencePair, source: int) -> list[str]:
    """The German words aligned to an English one."""
    return [pair.target_words[t] for t, s in pair.alignment if s == source]


def noun_name(tokens: tuple[str, ...], end: int) -> str:
    """The noun that ends here: compounds are two words."""
    two = " ".join(tokens[max(end - 1, 0) : end + 1])
    return two if two in ENGLISH_NOUN else tokens[end]


@cache
def parse(pair: SentencePair) -> list[EnglishClause]:
    """Find verb, subject, objects and prepositional phrases in each clause of the English side."""
    tokens = tuple(word.lower() for word in pair.source_words)
    borders = [-1, *(i for i, word in enumerate(tokens) if word in {*CONJUNCTIONS, ",", "."})]
    return [parse_clause(tokens, a + 1, b) for a, b in pairwise(borders) if b > a + 1]


def parse_clause(tokens: tuple[str, ...], first: int, last: int) -> EnglishClause:
    at = next((i for i in range(first, last) if tokens[i] in VERB_FORMS), None)
    verb, verb_end = "", first
    if at is None:  # is, says
        at = next(i for i in range(first, last) if tokens[i] in NO_OBJECT)
    else:
        names = sorted(VERB_FORMS[tokens[at]], key=len)
        verb = next((name for name in names if name.endswith(" " + tokens[at + 1])), names[0])
        verb_end = at + len(verb.split()) - 1
    bare = []  # preposition, start, end
    for end in range(first, last):
        first_half = f"{tokens[end]} {tokens[end + 1]}" in ENGLISH_NOUN
        if tokens[end] in NOUN_ENDS and not first_half:
            start = end - len(noun_name(tokens, end).split())
            start -= tokens[start] in ADJECTIVES
            before = tokens[start - 1] if start > first and start - 1 > verb_end else ""
            bare.append((before if before in PREPOSITION else "", start, end))
    subjects = [f for f in bare if f[1] < at]
    objects = [f for f in bare if f[1] > at and not f[0]]
    assert len(subjects) <= 1 and len(objects) <= 2, tokens[first:last]
    cases = ["dat", "acc"] if len(objects) == 2 else ["dat" if verb in DATIVE_VERBS else "acc"]
    found = [Found(start, end, "subject", "nom") for _, start, end in subjects]
    found += [Found(start, end, "object", case) for (_, start, end), case in zip(objects, cases)]
    found += [Found(start, end, "prepositional", PREPOSITION[p]) for p, start, end in bare if p]
    return EnglishClause(first, last, verb, found, bool({"not", "cannot"} & {*tokens[first:last]}))


def expected(pair: SentencePair, found: Found, negated: bool) -> str:
    """What the German noun phrase has to be, by the tables above."""
    tokens = tuple(word.lower() for word in pair.source_words)
    noun, plural = ENGLISH_NOUN[noun_name(tokens, found.end)]
    determiner = tokens[found.start]
    kind = "number" if determiner in NUMBER else "the" if determiner == "the" else "a"
    assert kind != "a" or determiner == ("an" if tokens[found.start + 1][0] in "aeiou" else "a")
    article, ending = AGREEMENT[kind, found.case].split(", ")[3 if plural else "mfn".index(GENDER[noun.german])].split()
    if kind == "number":
        article = NUMBER[determiner]
    if kind == "a" and negated and found.role == "object":
        article = "k" + article
    name = noun.german
    if plural:
        head = max((word for word in PLURAL if name.lower().endswith(word.lower())), key=len)
        first = name[: len(name) - len(head)]
        name = first + PLURAL[head].lower() if first else PLURAL[head]
        name += "n" if found.case == "dat" and name[-1] not in "ns" else ""
    adjective = tokens[found.start + 1]
    if adjective not in ADJECTIVES:
        return f"{article} {name}"
    base = ADJECTIVES[adjective][0]
    return f"{article} {STEM.get(base, base)}{ending[1:]} {name}"


def test_the_tables_of_this_file_know_the_nouns() -> None:
    assert {noun.german: noun.gender for noun in NOUNS} == GENDER
    simple = {noun.german: noun.german_plural for noun in NOUNS if noun.plural and " " not in noun.english}
    assert simple == PLURAL


def test_article_adjective_and_noun_agree() -> None:
    cases: Counter[str] = Counter()
    for pair in everything():
        english = [word.lower() for word in pair.source_words]
        for clause in parse(pair):
            for found in clause.found:
                positions = range(found.start, found.end + 1)
                at = sorted({t for t, s in pair.alignment if s in positions})
                words_here = [pair.target_words[t] for t in at]
                words_here[0] = words_here[0][0].lower() + words_here[0][1:]
                words_here[:1] = {"im": ["dem"], "ins": ["das"]}.get(words_here[0], words_here[:1])
                assert " ".join(words_here) == expected(pair, found, clause.negated), pair
                assert at == list(range(at[0], at[-1] + 1)), pair
                cases[found.case] += 1
                if found.role == "prepositional":
                    (preposition,) = german(pair, found.start - 1)
                    assert (preposition, english[found.start - 1]) in GERMAN_PREPOSITIONS, pair
    assert min(cases["nom"], cases["acc"], cases["dat"]) > 2000


def test_strong_plural_weak_and_mixed_endings() -> None:
    dog, street, house = (next(noun for noun in NOUNS if noun.english == name) for name in ("dog", "street", "house"))

    def write(noun: Noun, determiner: str, plural: bool, case: str) -> str:
        return " ".join(word for word, _ in noun_phrase(noun, determiner, plural, case, "old").german)

    assert write(dog, "the", False, "nom") == "der alte Hund"
    assert write(dog, "a", False, "nom") == "ein alter Hund"
    assert write(dog, "no", False, "acc") == "keinen alten Hund"
    assert write(dog, "three", True, "dat") == "drei alten Hunden"
    assert write(dog, "three", True, "nom") == "drei alte Hunde"
    assert write(street, "a", False, "dat") == "einer alten Straße"
    assert write(house, "a", False, "acc") == "ein altes Haus"


# ------------------------------------------------------------------------------------------------------- word order


def german_clauses(pair: SentencePair) -> Iterator[tuple[bool, list[int]]]:
    """Yield for each German clause whether it is a main clause, and where its words are, the conjunction left out."""
    here: list[int] = []
    main = True
    for t, word in enumerate(pair.target_words):
        if word in {",", ".", "und"}:
            if here:
                yield main, here
            here, main = [], True
        elif word in SUBORDINATE:
            main = False
        elif word != "aber":
            here.append(t)


def finite_forms() -> set[str]:
    modes = ("past", "present", "perfect", "can", "must", "should", "want")
    groups = [verb_group(verb, mode, plural, False) for verb in VERBS for mode in modes for plural in (False, True)]
    groups += [verb_group(verb, mode, p, False) for verb in (*SAYING, BE) for mode in modes[:2] for p in (False, True)]
    return {word for group in groups for word, _ in group.finite} | {group.final[-1][0] for group in groups}


def test_the_verb_is_second_in_main_clauses_and_last_in_subordinate_ones() -> None:
    finite, starts = finite_forms(), Counter[str]()
    nouns = {form for noun in NOUNS for form in (noun.german, noun.german_plural)}
    for pair in everything():
        for main, at in german_clauses(pair):
            clause = [pair.target_words[t] for t in at]
            if not main:
                assert clause[-1] in finite, pair
                continue
            verb = next(i for i, word in enumerate(clause) if word in finite)
            first = " ".join(clause[:verb]).lower()
            if first in ADVERBS:
                starts["adverb"] += 1
                source = {s for t, s in pair.alignment if t in at[:verb]}
                assert min(source) == min(s for t, s in pair.alignment if t in at), "fronted in English as well"
            elif first in {"er", "sie", "wir"}:
                starts["pronoun"] += 1
            else:  # article, perhaps an adjective, noun: one phrase
                assert clause[verb - 1] in nouns and len(clause[:verb]) in (2, 3), pair
                starts["noun"] += 1
    assert min(starts["adverb"], starts["pronoun"], starts["noun"]) > 500


def test_participles_infinitives_and_prefixes_stand_last() -> None:
    prefixes = {verb.prefix for verb in VERBS if verb.prefix} - {"ein", "zu"}  # also "a" and "too"
    for pair in everything():
        for main, at in german_clauses(pair):
            clause = [pair.target_words[t] for t in at]
            if main:  # a prefix on its own
                assert not prefixes & {*clause[:-1]}, pair
            if len({"hat", "haben"} & {*clause}) == 1 and main:
                assert clause[-1] in PARTICIPLES, pair
            if {"kann", "können", "muss", "müssen", "sollte", "sollten", "will", "wollen"} & {*clause} and main:
                assert clause[-1] in INFINITIVES, pair


def test_known_sentences() -> None:
    known = {
        ("open", "past", "main"): "machte … auf",
        ("open", "past", "final"): "aufmachte",
        ("open", "perfect", "main"): "hat … aufgemacht",
        ("open", "perfect", "final"): "aufgemacht hat",
        ("open", "can", "main"): "kann … aufmachen",
        ("open", "can", "final"): "aufmachen kann",
        ("follow", "perfect", "main"): "ist … gefolgt",
        ("swim", "want", "final"): "schwimmen will",
        ("repair", "perfect", "main"): "hat … repariert",
        ("try on", "perfect", "main"): "hat … anprobiert",
        ("wait", "past", "main"): "wartete",
        ("draw", "perfect", "final"): "gezeichnet hat",
        ("enter", "present", "main"): "betritt",
    }
    for (name, mode, place), text in known.items():
        group = verb_group(next(verb for verb in VERBS if verb.english == name), mode, False, False)
        parts = [group.finite, group.rest] if place == "main" else [group.final]
        assert " … ".join(" ".join(word for word, _ in part) for part in parts if part) == text


def test_people_eat_and_animals_feed() -> None:
    people = {noun.german for noun in NOUNS if noun.kind == "person"}
    seen: Counter[bool] = Counter()
    for pair in everything():
        for clause in parse(pair):
            subject = next((found for found in clause.found if found.role == "subject"), None)
            if clause.verb == "eat":
                at = next(i for i in range(clause.first, clause.last) if pair.source_words[i].lower() in VERB_FORMS)
                feeds = any(re.search("fr[aeiä]+[sß]", word) for word in german(pair, at))
                eater = pair.source_words[subject.end].lower() if subject else "they"
                assert feeds == (eater in ENGLISH_NOUN and ENGLISH_NOUN[eater][0].german not in people), pair
                seen[feeds] += 1
    assert min(seen.values()) > 100


# ------------------------------------------------------------------------------------------------- what "it" means


def it_sentences() -> list[SentencePair]:
    return [pair for pair in everything() if pair.it]


def test_it_has_the_gender_of_what_it_means() -> None:
    pronouns: Counter[str] = Counter()
    for pair in it_sentences():
        assert pair.it and "it" in pair.phenomena
        it, meant, other = pair.it
        assert pair.source_words[it] == "it"
        (pronoun,), (noun,) = german(pair, it), german(pair, meant)
        assert pronoun == {"m": "er", "f": "sie", "n": "es"}[GENDER[noun]], pair
        kinds = {entry.german: entry.kind for entry in NOUNS}
        assert kinds[noun] != "person"
        if other is not None:
            (rival,) = german(pair, other)
            assert GENDER[rival] != GENDER[noun] and kinds[rival] != "person", pair
        pronouns[pronoun] += 1
    assert min(pronouns[word] for word in ("er", "sie", "es")) > 0.15 * sum(pronouns.values())


def test_half_of_the_it_sentences_offer_two_candidates_and_the_adjective_decides() -> None:
    two = [pair for pair in it_sentences() if pair.it and pair.it[2] is not None]
    assert 0.45 < len(two) / len(it_sentences()) < 0.55
    subject = 0
    for pair in two:
        assert pair.it is not None and pair.it[2] is not None
        it, meant, other = pair.it
        adjective = pair.source_words[it + 3]
        tokens = tuple(word.lower() for word in pair.source_words)
        fits = [ENGLISH_NOUN[noun_name(tokens, at)][0] in ADJECTIVES[adjective][1] for at in (meant, other)]
        assert fits == [True, False], pair
        subject += meant < other
    assert 0.4 < subject / len(two) < 0.6


def test_only_it_sentences_say_it() -> None:
    for pair in everything():
        assert ("it" in pair.source_words) == (pair.it is not None) == ("it" in pair.phenomena)


# --------------------------------------------------------------------------------------------------- the alignment


def test_the_alignment_is_complete_and_in_range() -> None:
    for pair in everything():
        assert list(pair.alignment) == sorted(set(pair.alignment))
        targets, sources = {t for t, _ in pair.alignment}, {s for _, s in pair.alignment}
        assert sources == set(range(len(pair.source_words)))
        assert targets <= set(range(len(pair.target_words)))
        for t in set(range(len(pair.target_words))) - targets:  # a comma that English does not have
            assert pair.target_words[t] == "," and pair.target_words[t + 1] in SUBORDINATE


def test_the_alignment_links_words_that_mean_the_same() -> None:
    known: dict[str, set[str]] = {}
    for verb in (*VERBS, *SAYING):
        for form in verb.forms:
            known.setdefault(form, set()).update(re.sub("^[+]", "", word)[:3] for word in verb.german)
    for pair in everything():
        for source, word in enumerate(pair.source_words):
            word = word.lower()
            linked = [token.lower() for token in german(pair, source)]
            if word in ADJECTIVES:
                base = ADJECTIVES[word][0]
                assert len(linked) == 1 and linked[0].startswith((base, STEM.get(base, base))), pair
            elif word in {"because", "although", "while", "if", "that", "and", "but", ",", "."}:
                assert linked == [MEANING.get(word, word)], pair
            elif word == "not":
                assert linked == ["nicht"] or linked[0].startswith("kein"), pair
            elif word in known:
                prefixes = tuple(verb.prefix for verb in VERBS if verb.prefix)
                assert any(token.startswith((*known[word], *prefixes)) for token in linked), pair


def test_did_and_compounds_and_prefixes() -> None:
    seen: Counter[str] = Counter()
    for pair in everything():
        tokens = tuple(word.lower() for word in pair.source_words)
        for source, word in enumerate(tokens):
            if word == "did":
                verb = next(i for i in range(source, len(tokens)) if tokens[i] in VERB_FORMS)
                assert german(pair, source) and {*german(pair, source)} <= {*german(pair, verb)}, pair
                seen["did"] += 1
            if source and f"{tokens[source - 1]} {word}" in ENGLISH_NOUN:
                assert german(pair, source) == german(pair, source - 1) and len(german(pair, source)) == 1
                seen["compound"] += 1
    assert min(seen["did"], seen["compound"]) > 500


# ------------------------------------------------------------------------------------------------------- the splits


def test_an_unknown_split_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown split 'valid': choose one of train, dev, test, compositional, long"):
        embedded_corpus("valid")


@given(split=st.sampled_from(SPLITS), seed=st.integers(-(2**40), 2**40))
@settings(max_examples=25)
def test_a_stream_is_a_function_of_split_and_seed(split: str, seed: int) -> None:
    pairs = list(islice(embedded_corpus(split, seed), 12))
    assert pairs == list(islice(embedded_corpus(split, seed), 12))
    for pair in pairs:
        assert words(pair.source) == list(pair.source_words)
        assert words(pair.target) == list(pair.target_words)
        assert pair.phenomena <= set(PHENOMENA)


def test_other_seeds_give_other_streams() -> None:
    first = {tuple(pair.source for pair in islice(embedded_corpus("train", seed), 5)) for seed in range(50)}
    assert len(first) == 50


def test_long_means_longer_than_any_other() -> None:
    for split in SPLITS:
        lengths = [len(pair.source_words) for pair in sample(split)]
        assert min(lengths) > MAX_WORDS if split == "long" else max(lengths) <= MAX_WORDS


def reserved_pairs(pair: SentencePair) -> set[tuple[str, str]]:
    """Adjective and noun, verb and object, that are reserved and in this sentence."""
    tokens = tuple(word.lower() for word in pair.source_words)
    met = set()
    for clause in parse(pair):
        for found in clause.found:
            noun = ENGLISH_NOUN[noun_name(tokens, found.end)][0].english
            if tokens[found.start + 1] in ADJECTIVES:
                met.add((tokens[found.start + 1], noun))
            if found.role == "subject" and tokens[clause.last - 1] in ADJECTIVES:  # the dog was tired
                met.add((tokens[clause.last - 1], noun))
        objects = [found for found in clause.found if found.role == "object"]
        if objects:
            met.add((clause.verb, ENGLISH_NOUN[noun_name(tokens, objects[-1].end)][0].english))
    if pair.it:
        met.add((tokens[pair.it[0] + 3], ENGLISH_NOUN[noun_name(tokens, pair.it[1])][0].english))
    return {pair for pair in met if reserved(*pair)}


def test_reserved_pairs_meet_in_compositional_only() -> None:
    for split in SPLITS:
        for pair in sample(split):
            assert bool(reserved_pairs(pair)) == (split == "compositional"), pair


def test_a_few_percent_of_the_pairs_are_reserved_and_no_word_is() -> None:
    described = [(name, noun) for name, (_, nouns) in ADJECTIVES.items() for noun in nouns]
    done = [(verb.english, noun) for verb in VERBS for noun in verb.objects]
    for pairs in (described, done):
        held = [reserved(word, noun.english) for word, noun in pairs]
        assert 0.03 < sum(held) / len(held) < 0.1
        free = Counter(word for (word, _), no in zip(pairs, held) if not no)
        assert all(free[word] >= 2 for word, _ in pairs)
    for noun in NOUNS:
        assert any(noun in nouns and not reserved(name, noun.english) for name, (_, nouns) in ADJECTIVES.items())


# ------------------------------------------------------------------------------------------------- words and numbers


def test_the_words() -> None:
    assert len(NOUNS) >= 60 and len({verb.english for verb in VERBS}) >= 40 and len(ADJECTIVES) >= 25
    assert min(Counter(noun.gender for noun in NOUNS).values()) >= 20
    assert 250 <= len(vocabulary()) <= 400
    assert list(vocabulary()) == sorted(set(vocabulary()))
    used = {word.lower() for pair in everything() for word in pair.source_words} - {",", "."}
    assert used <= set(vocabulary())
    assert len(set(vocabulary()) - used) <= 3, "what is listed is used"


def test_no_english_form_means_two_things() -> None:
    """The German of a sentence may depend only on what the English sentence shows."""
    forms = [form for noun in NOUNS for form in (noun.english, noun.plural) if form]
    assert len(forms) == len(set(forms))
    for verb in (*VERBS, *SAYING):
        base, third, past, _ = verb.forms
        assert len({base, third, past}) == 3, f"{verb.english}: present or past?"
    assert not {word for form in forms for word in form.split()} & set(VERB_FORMS)


def test_no_table_names_a_word_that_is_not_there() -> None:
    assert all(nouns for _, nouns in ADJECTIVES.values())
    for verb in VERBS:
        assert verb.subjects and (bool(verb.objects) == bool(verb.cases)), verb.english


def test_lengths_and_phenomena_of_the_training_stream() -> None:
    pairs = list(islice(embedded_corpus("train", seed=5), 20_000))
    assert 9 <= sum(len(pair.target_words) for pair in pairs) / len(pairs) <= 13
    shares = Counter(name for pair in pairs for name in pair.phenomena)
    assert set(shares) == set(PHENOMENA)
    assert {name: count for name, count in shares.items() if count < 0.03 * len(pairs)} == {}


def test_it_is_fast_and_needs_nothing() -> None:
    stream = embedded_corpus("train", seed=8)
    next(stream)
    start = process_time()
    for _ in islice(stream, 10_000):
        pass
    assert 10_000 / (process_time() - start) > 5_000, "20,000 a second and more on a free core"
    code = "import sys, transformer.corpus; assert not {'torch', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


# --------------------------------------------------------------------------------------------- a million sentences

MILLION = """
import sys
from array import array
from hashlib import blake2b
from itertools import islice
from transformer.corpus import SPLITS, embedded_corpus
def digest(text):
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
for split, count in zip(SPLITS, (462_000, 4_000, 4_000, 10_000, 20_000)):
    pairs = array("Q")
    for pair in islice(embedded_corpus(split, int(sys.argv[1])), count):
        pairs.append(digest(" ".join(pair.source_words)))
        pairs.append(digest(" ".join(pair.target_words)))
    sys.stdout.buffer.write(array("Q", [len(pairs)]).tobytes() + pairs.tobytes())
"""


def digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


@pytest.mark.slow
def test_a_million_pairs_no_sentence_has_two_translations_and_none_is_in_two_splits() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", MILLION, str(seed)], stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        for seed in (1, 2)
    ]
    outputs = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    translation: dict[int, int] = {}
    home: dict[int, int] = {}
    count = 0
    for output in outputs:
        numbers = array("Q", output)
        at = 0
        for split in range(len(SPLITS)):
            size = numbers[at]
            sources, targets = numbers[at + 1 : at + 1 + size : 2], numbers[at + 2 : at + 1 + size : 2]
            at += 1 + size
            for source, target in zip(sources, targets):
                assert translation.setdefault(source, target) == target
                assert home.setdefault(source, split) == split
            count += len(sources)
    assert count == 1_000_000
    for why, text in THE_FAMOUS_ONE.items():
        source = f"The animal did not cross the street because it was too {why} ."
        assert translation.get(digest(source)) == digest(" ".join(words(text))), "rare, but it must come"
    assert len(translation) > 800_000, "few sentences come twice"
