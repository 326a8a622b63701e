# Exported from notebooks/A1_the_embedded_corpus.py, Appendix A1; edit that file, not this one.
# sha256 of what follows: 51e3ad1c30e0faf0
"""The Embedded Corpus (Appendix A1)."""

import random
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from transformer.lexicon import (
    ADJECTIVES,
    BE,
    MODALS,
    NOUNS,
    NUMBERS,
    PREPOSITIONS,
    PRONOUNS,
    SAYING,
    VERBS,
    Noun,
    Phrase,
    Verb,
    VerbGroup,
    Words,
    noun_phrase,
    prepositional,
    verb_group,
    word_by_word,
)

__all__ = ["SPLITS", "PHENOMENA", "MAX_WORDS", "SentencePair", "words", "reserved", "embedded_corpus", "vocabulary"]


SPLITS = ("train", "dev", "test", "compositional", "long")
PHENOMENA = ("adjective", "perfect", "modal", "subordinate", "separable", "negation", "kein", "inversion", "compound",
             "number", "dative", "it")
MAX_WORDS = 16  # English words and punctuation marks in a sentence of any split but "long"


@dataclass(frozen=True, slots=True)
class SentencePair:
    """An English sentence, its German translation, and which word translates which."""

    source_words: tuple[str, ...]  # English; punctuation marks are words
    target_words: tuple[str, ...]  # German
    alignment: tuple[tuple[int, int], ...]  # (target index, source index), sorted
    phenomena: frozenset[str]  # some of PHENOMENA
    it: tuple[int, int, int | None] | None = None  # source indices of "it", the noun it means, the other candidate

    @property
    def source(self) -> str:
        """The English sentence as text."""
        return re.sub(" (?=[,.])", "", " ".join(self.source_words))

    @property
    def target(self) -> str:
        """The German sentence as text."""
        return re.sub(" (?=[,.])", "", " ".join(self.target_words))


def words(text: str) -> list[str]:
    """Split text into words and punctuation marks, as `source_words` and `target_words` are."""
    return re.findall(r"\w+|[^\w\s]", text)


@lru_cache(None)
def reserved(word: str, noun: str) -> bool:
    """Tell whether an adjective and a noun, or a verb and its last object, meet in the split "compositional" only."""
    return zlib.crc32(f"{word} {noun} 723".encode()) % 17 == 0


@lru_cache(None)
def _objects(verb: Verb, with_reserved: bool) -> list[Noun]:
    return [noun for noun in verb.objects if with_reserved or not reserved(verb.english, noun.english)]


@lru_cache(None)
def _adjectives(noun: Noun, with_reserved: bool) -> list[str]:
    return [name for name, (_, nouns) in ADJECTIVES.items()
            if noun in nouns and (with_reserved or not reserved(name, noun.english))]


# tense: English=German; a star: only in a main clause that is not negated
_ADVERBS = {
    "past": "yesterday=gestern, last week=letzte Woche, this morning=heute Morgen, later=*später",
    "perfect": "today=heute, this week=diese Woche",
    "present": "today=heute, often=*oft, sometimes=*manchmal",
    "modal": "today=heute, tomorrow=morgen, now=jetzt, soon=*bald",
}
# verb: what can be wrong with its object, and with an animal that does it
_HINDRANCES = {
    "cross": ("wide deep slippery", "tired sick lazy hungry thirsty"),
    "eat": ("sour hard salty bitter", "tired sick lazy"), "drink": ("sour salty bitter", "tired sick lazy"),
    "enter": ("narrow", "tired sick lazy hungry thirsty"), "pull": ("heavy", ""), "carry": ("heavy", ""),
    "buy": ("expensive heavy dirty", ""), "repair": ("expensive", ""), "try on": ("dirty expensive", ""),
    "swim": ("", "tired sick lazy hungry"), "run": ("", "tired sick lazy hungry thirsty"), "jump": ("", "sick lazy"),
}
_IT = {"m": "er", "f": "sie", "n": "es"}
_NOW = ("perfect", "perfect", "perfect", "present", "present", *MODALS)
_PEOPLE, _ANIMALS = ([noun for noun in NOUNS if noun.kind == kind] for kind in ("person", "animal"))
_OF_PEOPLE = [name for name, (_, nouns) in ADJECTIVES.items() if {*_PEOPLE} <= {*nouns}]
_ADVERB = {(tense, limited): [word_by_word(*pair.replace("*", "").split("=")) for pair in pairs.split(", ")
                              if not (limited and "*" in pair)]
           for tense, pairs in _ADVERBS.items() for limited in (False, True)}
_FAULTS = {"sweet", *(name for faults in _HINDRANCES.values() for name in " ".join(faults).split())}
_ROWS = [(verb, thing.split(), animal.split()) for verb in VERBS if verb.english in _HINDRANCES
         for thing, animal in [_HINDRANCES[verb.english]]]
_HINDERED = {"two": [row for row in _ROWS if row[1] and row[2] and _ANIMALS[0] in row[0].subjects],
             "person": [row for row in _ROWS if row[1] and _PEOPLE[0] in row[0].subjects],
             "animal": [row for row in _ROWS if not row[1]]}


_Choice = TypeVar("_Choice")
_Subject = tuple[Phrase, bool]  # and whether it is plural


class _Draft:
    """A sentence pair that grows phrase by phrase."""

    def __init__(self) -> None:
        self.english: list[str] = []
        self.german: list[tuple[Words, int]] = []  # phrases, with where their English begins
        self.shows: set[str] = set()

    def say(self, phrase: Phrase | VerbGroup) -> int:
        """Append the English of a phrase and return where it begins."""
        start = len(self.english)
        self.english += phrase.english
        self.shows |= phrase.shows
        return start

    def add(self, english: str, german: str) -> None:
        """Append a phrase that is translated word by word."""
        phrase = word_by_word(english, german)
        self.german.append((phrase.german, self.say(phrase)))

    def clause(self, subject: Phrase, verb: VerbGroup, objects: Sequence[Phrase], end: Phrase | None = None,
               adverb: Phrase | None = None, main: bool = True, fronted: bool = False) -> list[int]:
        """Append a clause, its German verb second or last; return where its English subject and objects end."""
        adverb_at = self.say(adverb) if adverb and fronted else 0
        subject_at, verb_at = self.say(subject), self.say(verb)
        objects_at = [self.say(phrase) for phrase in objects]
        end_at = self.say(end) if end else 0
        if adverb and not fronted:
            adverb_at = self.say(adverb)

        who, when = [(subject.german, subject_at)], [(adverb.german, adverb_at)] if adverb else []
        does = [(verb.finite, verb_at)] if main else []
        self.german += [*when, *does, *who] if fronted else [*who, *does, *when]
        for phrase, at in zip(objects, objects_at):
            words = phrase.german
            if "kein" in phrase.shows:  # the "not" is in it
                words = ((words[0][0], (verb_at + verb.nicht[0][1][0] - at, *words[0][1])), *words[1:])
            self.german.append((words, at))
        if not (objects and "kein" in objects[-1].shows):
            self.german.append((verb.nicht, verb_at))
        self.german += [(end.german, end_at)] if end else []
        self.german.append((verb.rest if main else verb.final, verb_at))
        self.shows |= {"inversion"} if fronted else set() if main else {"subordinate"}
        return [subject_at + len(subject.english) - 1, *(at + len(o.english) - 1 for o, at in zip(objects, objects_at))]


class _Author(_Draft):
    """Writes one sentence pair from a stream of random numbers."""

    def __init__(self, rng: random.Random, with_reserved: bool) -> None:
        super().__init__()
        self.random, self.with_reserved = rng.random, with_reserved
        self.it: tuple[int, int, int | None] | None = None

    def pick(self, choices: Sequence[_Choice]) -> _Choice:
        """Choose one."""
        return choices[int(self.random() * len(choices))]

    def note(self, word: str, noun: Noun) -> None:
        """Remember that a reserved pair was used."""
        if reserved(word, noun.english):
            self.shows.add("reserved")

    def adjective(self, noun: Noun, avoid: Collection[str] = ()) -> str:
        """Choose an adjective, or mostly none."""
        name = self.pick(_adjectives(noun, self.with_reserved)) if self.random() < 0.3 else ""
        if not name or name in avoid:
            return ""
        self.note(name, noun)
        return name

    def noun(self, nouns: Sequence[Noun], case: str, negated: bool, used: list[Noun], many: bool = True,
             kein: float = 0) -> _Subject:
        """Choose a noun that the clause has not used, its determiner and number, and perhaps an adjective."""
        noun = self.pick(nouns)
        while noun in used:
            noun = self.pick(nouns)
        used.append(noun)
        chance, determiner, plural = self.random() if noun.plural else 1.0, "the", False
        if chance < 0.25:
            determiner = "the" if negated else "a"
        elif chance < 0.5 and many:
            determiner, plural = "the" if chance < 0.38 or negated else self.pick(tuple(NUMBERS)), True
        if noun.plural and negated and self.random() < kein:
            determiner, plural = "no", False
        return noun_phrase(noun, determiner, plural, case, self.adjective(noun)), plural

    def subject(self, nouns: Sequence[Noun], negated: bool, used: list[Noun]) -> _Subject:
        """Choose a subject, for people sometimes a pronoun."""
        if nouns[0] is _PEOPLE[0] and self.random() < 0.15:
            name = self.pick(tuple(PRONOUNS))
            return word_by_word(name, PRONOUNS[name]), name in ("we", "they")
        return self.noun(nouns, "nom", negated, used)

    def adverb(self, mode: str, limited: bool, chance: float) -> Phrase | None:
        """Choose a time, or none."""
        return self.pick(_ADVERB["modal" if mode in MODALS else mode, limited]) if self.random() < chance else None

    def action(self, mode: str, main: bool = True, who: _Subject | None = None, when: float = 0.3) -> _Subject:
        """Write a clause in which something is done; return its subject."""
        verb = self.pick(VERBS)
        used: list[Noun] = []
        while who and _PEOPLE[0] not in verb.subjects:
            verb = self.pick(VERBS)
        negated = mode != "must" and self.random() < 0.2
        subject, plural = who or self.subject(verb.subjects, negated, used)
        objects = [self.noun(_PEOPLE, case, negated, used)[0] for case in verb.cases[:-1]]
        for case in verb.cases[-1:]:
            kein = 0.4 if case == "acc" else 0.0
            objects.append(self.noun(_objects(verb, self.with_reserved), case, negated, used, kein=kein)[0])
            self.note(verb.english, used[-1])
        end = None
        if verb.prepositions and self.random() < 0.22 and not (objects and negated):
            name = self.pick(verb.prepositions)
            _, case, nouns = PREPOSITIONS[name]
            end = prepositional(name, self.noun(nouns, case, negated, used, many=name in ("with", "for"))[0])
        adverb = self.adverb(mode, negated or not main, when)
        fronted = bool(adverb) and main and self.random() < 0.5
        self.clause(subject, verb_group(verb, mode, plural, negated), objects, end, adverb, main, fronted)
        return subject, plural

    def predicate(self, mode: str, main: bool = True, who: _Subject | None = None) -> None:
        """Write a clause that says what someone or something is like."""
        noun = self.pick(NOUNS)
        name = self.pick(_OF_PEOPLE if who else _adjectives(noun, self.with_reserved))
        plural = bool(noun.plural) and self.random() < 0.2
        if not who:
            self.note(name, noun)
        subject, plural = who or (noun_phrase(noun, "the", plural, "nom"), plural)
        english, german = self.pick((("", ""), ("very ", "sehr "), ("too ", "zu "))[: 3 if name in _FAULTS else 2])
        end = word_by_word(english + name, german + ADJECTIVES[name][0])
        self.clause(subject, verb_group(BE, mode, plural, self.random() < 0.2), [], end, main=main)

    def statement(self, mode: str, main: bool = True, who: _Subject | None = None, to_be: float = 0.1,
                  when: float = 0.3) -> None:
        """Write a clause of either kind."""
        if mode in ("past", "present") and self.random() < to_be:
            self.predicate(mode, main, who)
        else:
            self.action(mode, main, who, when)

    def reason(self, mode: str) -> None:
        """Write a main clause and a subordinate clause, often about the same person."""
        subject, plural = self.action(mode)
        who = self.same_person(subject, plural) if self.random() < 0.6 else None
        now = mode not in ("past", "perfect")
        choices = [("although", "obwohl"), ("because", "weil") if who or mode == "perfect" else ("while", "während")]
        english, german = self.pick([*choices, ("if", "wenn")] if now else choices)
        self.add(english, ", " + german)
        mode = "past" if not now else "present" if english in ("if", "while") else self.pick(_NOW)
        self.statement(mode, False, who, *((0, 0) if english == "while" else (0.5 if who else 0.2, 0.25)))

    def same_person(self, subject: Phrase, plural: bool) -> _Subject | None:
        """Find the pronoun for someone named before; "the girl" has none on which English and German agree."""
        if subject.english[0] in PRONOUNS:
            return subject, plural
        noun = next((noun for noun in _PEOPLE if subject.english[-1] in (noun.english, noun.plural)), None)
        if noun is None or (noun.gender == "n" and not plural):
            return None
        name = "they" if plural else "he" if noun.gender == "m" else "she"
        return word_by_word(name, PRONOUNS[name]), plural

    def reported(self, mode: str) -> None:
        """Write "The man knows that ..."."""
        subject, plural = self.subject(_PEOPLE, True, [])
        group = verb_group(self.pick(SAYING), "past" if mode == "past" else "present", plural, False)
        self.clause(subject, group, [])
        self.add("that", ", dass")
        self.statement("past" if mode == "past" else self.pick(("past", *_NOW)), main=False, to_be=0.2)

    def about_it(self, mode: str) -> None:
        """Write "The dog did not cross the street because it was too wide", half the time with two candidates."""
        two = self.random() < 0.5
        verb, faults, weaknesses = self.pick(_HINDERED["two" if two else "person" if self.random() < 0.7 else "animal"])
        of_thing = bool(faults) and not (two and self.random() < 0.5)
        while True:
            actor, why = self.pick(_ANIMALS), self.pick(faults if of_thing else weaknesses)
            thing = self.pick(_objects(verb, self.with_reserved)) if faults else actor
            meant = thing if of_thing else actor
            if why in _adjectives(meant, self.with_reserved) and not (two and actor.gender == thing.gender):
                break
        self.note(why, meant)
        negated, objects = mode != "must" and self.random() < 0.6, []
        subject, plural = self.subject(_PEOPLE, True, []) if faults and not two else (
            noun_phrase(actor, "the", False, "nom", self.adjective(actor, _FAULTS)), False)
        if faults:
            self.note(verb.english, thing)
            objects = [noun_phrase(thing, "the", False, "acc", self.adjective(thing, _FAULTS))]
        adverb = self.adverb(mode, negated, 0.2)
        group, fronted = verb_group(verb, mode, plural, negated), bool(adverb) and self.random() < 0.5
        ends = self.clause(subject, group, objects, None, adverb, True, fronted)
        self.add(*("because", ", weil") if negated else ("although", ", obwohl"))
        degree, german = ("too", "zu") if negated else ("very", "sehr")
        end = word_by_word(f"{degree} {why}", f"{german} {ADJECTIVES[why][0]}")
        be = verb_group(BE, "past" if mode in ("past", "perfect") else "present", False, False)
        it = self.clause(word_by_word("it", _IT[meant.gender]), be, [], end, main=False)[0]
        self.it = it, ends[of_thing], ends[not of_thing] if two else None
        self.shows.add("it")

    def sentence(self, long: bool) -> None:
        """Write a sentence of one or two clauses, or of more."""
        mode, chance = "past" if self.random() < 0.45 else self.pick(_NOW), self.random()
        for _ in range(self.pick((1, 2, 2, 3)) if long else int(chance < 0.18)):
            self.statement(mode)
            but = self.random() < 0.4 and "but" not in self.english
            self.add(*(", but", ", aber") if but else ("and", "und"))
            mode = mode if mode == "past" else self.pick(_NOW)
        if chance < 0.5:
            self.statement(mode)
        elif chance < 0.7:
            self.reason(mode)
        elif chance < 0.82:
            self.reported(mode)
        else:
            self.about_it(mode)
        self.add(".", ".")
        self.english[0] = self.english[0].capitalize()

    def split(self) -> str:
        """Name the one split that the sentence belongs to: a tenth of what is left is dev, a tenth is test."""
        if len(self.english) > MAX_WORDS:
            return "long"
        if "reserved" in self.shows:
            return "compositional"
        return {0: "dev", 1: "test"}.get(zlib.crc32(" ".join(self.english).encode()) % 10, "train")

    def pair(self) -> SentencePair:
        """Put the German together."""
        german: list[str] = []
        links: list[tuple[int, int]] = []
        for phrase, start in self.german:
            for word, sources in phrase:
                links += [(len(german), start + source) for source in sources]
                german.append(word)
        german[0] = german[0].capitalize()
        phenomena = frozenset(self.shows - {"reserved"})
        return SentencePair(tuple(self.english), tuple(german), tuple(links), phenomena, self.it)


def embedded_corpus(split: str = "train", seed: int = 0) -> Iterator[SentencePair]:
    """Stream sentence pairs without end; the same split and seed give the same pairs.

    Args:
        split: One of SPLITS. No sentence is in two splits, whatever the seeds.
        seed: Chooses the stream.

    Returns:
        An endless iterator of pairs.

    Raises:
        ValueError: If there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    return _stream(split, random.Random(f"{split} {seed}"))


def _stream(split: str, rng: random.Random) -> Iterator[SentencePair]:
    while True:
        author = _Author(rng, with_reserved=split == "compositional")
        author.sentence(long=split == "long")
        if author.split() == split:
            yield author.pair()


def vocabulary() -> tuple[str, ...]:
    """List the English words of the corpus, sorted, in lower case."""
    known = ["the a an that but and because although while if it not cannot to very too is was are were has have",
             "do does did wants", *MODALS, *NUMBERS, *PRONOUNS, *PREPOSITIONS, *ADJECTIVES]
    known += [form for verb in (*VERBS, *SAYING) for form in (verb.english, *verb.forms[: 3 if verb in SAYING else 4])]
    known += [f"{noun.english} {noun.plural}" for noun in NOUNS]
    known += [pair.partition("=")[0] for pairs in _ADVERBS.values() for pair in pairs.split(", ")]
    return tuple(sorted({*" ".join(known).split()}))
