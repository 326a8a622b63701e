# %% [markdown]
# # A1 The Embedded Corpus
#
# A small grammar writes English–German sentence pairs together with their true word alignment.
# Every translating model that these pages train, and the one that ships, learned from these pairs, so nothing has to be
# downloaded, and every question about what a trained model does has a known answer to compare with.
#
# The paper trained on millions of sentences that people had translated. Such text is what a translator is for, and a poor
# instrument for looking inside one: nobody knows which word translates which, several translations are right, and a day on
# a graphics card separates the question from the answer. Here the grammar knows. It can say what *it* means, which noun
# decides the ending of an adjective, and how far from its English word a German verb must move.
#
# German is a good second language for this. Its rules reach far: the verb of a subordinate clause goes to the end, a prefix
# leaves its verb, and a pronoun takes the gender of a noun that stands ten words before.

# %%
#| default_exp corpus

# %%
import itertools
import textwrap
from collections import Counter

import altair as alt

import transformer

transformer.check_version("0.1")

# %%
#| export
import random
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from transformer.lexicon import (
    ADJECTIVES, BE, MODALS, NOUNS, NUMBERS, PREPOSITIONS, PRONOUNS, SAYING, VERBS, Noun, Phrase, Verb, VerbGroup, Words,
    noun_phrase, prepositional, verb_group, word_by_word,
)

# %% [markdown]
# ## A sentence pair
#
# The words come from [A1a](A1a_the_words.py). A pair holds the words of both sides, the links between them, and the names
# of the phenomena that it shows. For a sentence with "it", three more numbers say where "it" stands, what it means, and
# which other noun it could be taken for.

# %%
#| export
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


# %% [markdown]
# ## What only the split "compositional" puts together
#
# Some adjectives never meet some nouns in training, and some verbs never meet some objects, though each word is met often
# in other company. A hash of the two words chooses them. A model that has learned rules will not mind; a model that
# has learned phrases will.

# %%
#| export
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

# %% [markdown]
# ## When, and why not
#
# Adverbs belong to tenses. The second table says what can keep someone from doing something. For "The dog did not eat
# the apple because it was too …" it offers *sour*, which only apples are, and *tired*, which only dogs are. So exactly
# one noun can be meant, and the reader of the sentence sees which.

# %%
#| export
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

# %% [markdown]
# ## The author
#
# English is written first, phrase by phrase. Each phrase remembers where its English begins. Then the same phrases are put
# in German order, and the links come along.

# %%
#| export
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


# %% [markdown]
# The author decides what to say. Every decision is a random number, and the sentence is a pure function of them.

# %%
#| export
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

# %% [markdown]
# ## The streams
#
# A sentence belongs to one split by what it is: its length, its reserved pairs, or a hash of its words. So no stream of any
# seed can bring a test sentence into training.

# %%
#| export
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

# %% [markdown]
# ## See it
#
# Four pairs of each split:

# %%
for split in SPLITS:
    print(split)
    for pair in itertools.islice(embedded_corpus(split), 4):
        print(textwrap.indent(textwrap.fill(f"{pair.source} = {pair.target}", 106, subsequent_indent="  "), "  "))

# %% [markdown]
# And two for each phenomenon, with its share of the training stream:

# %%
pairs = list(itertools.islice(embedded_corpus("train"), 10_000))
shares = {name: sum(name in pair.phenomena for pair in pairs) / len(pairs) for name in PHENOMENA}
for name, share in shares.items():
    print(f"{name} ({share:.0%})")
    for pair in [pair for pair in pairs if name in pair.phenomena and len(pair.source_words) < 12][:2]:
        print(f"    {pair.source} = {pair.target}")
assert min(shares.values()) > 0.03

# %% [markdown]
# That a German main clause has its verb in second place is no phenomenon of its own: it is true of every sentence. Where the
# adverb comes first, *inversion* shows it.
#
# ## The alignment, drawn
#
# Two sentences that differ in one English word. The German differs in two: the adjective, and the pronoun.

# %%
def famous():
    """Find "The ... did not cross the street because it was too tired" in the stream, and the same with "wide"."""
    found = {}
    for pair in embedded_corpus("train", seed=18):
        if pair.it and pair.source_words[2:8] == ("did", "not", "cross", "the", "street", "because"):
            animal, why = pair.source_words[1], pair.source_words[pair.it[0] + 3]
            found[animal, why] = pair
            if (animal, "tired") in found and (animal, "wide") in found:
                return found[animal, "tired"], found[animal, "wide"]


tired, wide = famous()
assert sum(a != b for a, b in zip(tired.source_words, wide.source_words)) == 1
for pair in (tired, wide):
    it, meant, other = pair.it
    print(pair.source, "=", pair.target)
    print(f"    it = {pair.source_words[meant]}, not {pair.source_words[other]}")

# %%
labels = {"labelLimit": 90, "ticks": False, "domain": False, "labelOverlap": False, "grid": True, "gridOpacity": 0.3, "tickBand": "extent"}


def grid(pair, name):
    """Draw one cell for every linked pair of words."""
    m, n = len(pair.target_words), len(pair.source_words)
    it = next(t for t, s in pair.alignment if s == pair.it[0])
    links = {**dict.fromkeys(pair.alignment, "translates"), (it, pair.it[1]): "what it means"}
    cells = [
        {"t": t, "s": s, "German": pair.target_words[t], "English": pair.source_words[s], "link": links[t, s]}
        for t, s in links
    ]
    return (
        alt.Chart(alt.Data(values=cells))
        .mark_rect(stroke="#888888", strokeWidth=0.3)
        .encode(
            x=alt.X("s:O", title="English word", scale=alt.Scale(domain=list(range(n))), axis=alt.Axis(labelExpr=f"{name}_en[datum.value]", labelAngle=-90, orient="top", **labels)),
            y=alt.Y("t:O", title="German word", scale=alt.Scale(domain=list(range(m))), axis=alt.Axis(labelExpr=f"{name}_de[datum.value]", **labels)),
            color=alt.Color(
                "link:N",
                scale=alt.Scale(domain=["translates", "what it means"], range=["#0072B2", "#E69F00"]),
                legend=alt.Legend(title=None, orient="bottom"),
            ),
            tooltip=["German:N", "English:N", "link:N"],
        )
        .add_params(
            alt.param(f"{name}_en", value=list(pair.source_words)), alt.param(f"{name}_de", value=list(pair.target_words))
        )
        .properties(width=14 * n, height=14 * m)
    )


chart = alt.hconcat(grid(tired, "tired"), grid(wide, "wide"), spacing=10).properties(
    title="Links leave the diagonal, and “it” finds another noun"
)
chart

# %% [markdown]
# The blue cells lie near the diagonal and leave it where German moves words: the verb goes to the end of the second clause.
# The comma has an empty row, since English has none. The orange cell is no translation: it is the noun that
# decides between *er*, *sie* and *es*. A model has to find it, and [the attention chapter](08_attention_visualizations.py)
# looks whether ours does.
#
# ## Check it: one English sentence, one German sentence
#
# If a sentence had two translations, no model could be right all the time. Here are pairs of all splits,
# from two seeds; a test of the module takes a million.

# %%
translation, home = {}, {}
for seed, split in itertools.product((1, 2), SPLITS):
    for pair in itertools.islice(embedded_corpus(split, seed), 6_000 if split == "train" else 1_000):
        assert translation.setdefault(pair.source, pair.target) == pair.target
        assert home.setdefault(pair.source, split) == split
print(f"{len(translation):,} different sentences, each with one translation and in one split")

# %% [markdown]
# ## Check it: "it" agrees with what it means
#
# In half of these sentences two nouns of different gender are at hand, and the adjective fits only one of them.

# %%
counts = Counter()
gender = {noun.german: noun.gender for noun in NOUNS}
for pair in pairs:
    if pair.it:
        german = {s: pair.target_words[t] for t, s in pair.alignment}  # each of these three has one German word
        it, meant, other = pair.it
        assert german[it] == {"m": "er", "f": "sie", "n": "es"}[gender[german[meant]]]
        assert other is None or gender[german[other]] != gender[german[meant]]
        counts[german[it], "two candidates" if other is not None else "one"] += 1
for (pronoun, candidates), count in sorted(counts.items()):
    print(f"{pronoun:4} {candidates:15} {count}")
two = sum(count for (_, candidates), count in counts.items() if candidates == "two candidates")
assert 0.45 < two / sum(counts.values()) < 0.55

# %% [markdown]
# ## Check it: reserved pairs stay apart

# %%
known = {noun.english for noun in NOUNS}


def described(pair):
    """List adjectives with the noun that they stand before, which may be a compound."""
    tokens = pair.source_words
    for i, adjective in enumerate(tokens[:-2]):
        if adjective in ADJECTIVES:
            compound = f"{tokens[i + 1]} {tokens[i + 2]}"
            noun = compound if compound in known else tokens[i + 1]
            if noun in known:
                yield adjective, noun


in_training = {met for pair in pairs for met in described(pair)}
compositional = itertools.islice(embedded_corpus("compositional"), 2_000)
new = Counter(met for pair in compositional for met in described(pair) if reserved(*met))
assert not any(reserved(*met) for met in in_training) and not in_training & set(new)
print(f"{len(in_training)} adjective-noun pairs met in training, none of them reserved")
print("new in compositional:", ", ".join(f"{adjective} {noun}" for adjective, noun in sorted(new)[:9]))

# %% [markdown]
# ## How long, and how many?

# %%
bars = [
    {"split": split, "words": n, "share": count / 2_000}
    for split in ("train", "long")
    for n, count in Counter(len(pair.target_words) for pair in itertools.islice(embedded_corpus(split), 2_000)).items()
]
chart = (
    alt.Chart(alt.Data(values=bars))
    .mark_bar()
    .encode(
        x=alt.X("words:O", title="German words and punctuation marks", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("share:Q", title="share of its split", axis=alt.Axis(format="%", grid=False), stack=None),
        color=alt.Color("split:N", scale=alt.Scale(domain=["train", "long"], range=["#0072B2", "#E69F00"]), legend=alt.Legend(orient="top", title=None)),
        tooltip=["split:N", "words:O", alt.Tooltip("share:Q", format=".1%")],
    )
    .properties(width=480, height=180, title="The long sentences begin where training ends")
)
chart

# %% [markdown]
# The two humps overlap by a few words, since the limit is set on the English side. A model that has only seen the blue
# lengths must use positions that it never trained for nearly all of the orange ones.
#
# How many sentences are there? Count the simplest pattern alone: someone does something to something, in the past,
# with "the" and at most one adjective each.

# %%
def phrases(noun):
    return 1 + sum(noun in nouns for _, nouns in ADJECTIVES.values())


patterns = sum(
    phrases(subject) * phrases(thing) for verb in VERBS if verb.cases == ("acc",) for subject in verb.subjects for thing in verb.objects
)
mean = sum(len(pair.target_words) for pair in pairs) / len(pairs)
print(f"{patterns:,} such clauses; joining two of them with 'and' gives {patterns**2:.1e}, most of them short enough")
print(f"{len({pair.source for pair in pairs}):,} of {len(pairs):,} training pairs are different; {mean:.1f} German words on average")
print(f"{len(vocabulary())} English word forms")
assert patterns > 100_000 and 9 < mean < 13

# %% [markdown]
# ## What it is not
#
# It is not English or German as people use them. The words are few, nothing is said in two ways, nobody makes a mistake, and
# who bites whom does not depend on the day before. A score near 100 on it says that a model has learned these rules, and
# nothing about news or novels. What carries over is the machinery, and the habit of checking it against a known answer.
# Real corpora come behind the same interface.
#
# ## What we now know
#
# - Every pair carries its alignment and its phenomena, and the German follows from the English alone.
# - No sentence is in two splits, whatever the seeds.
# - Half of the "it" sentences have two candidates of different gender; the adjective decides.
# - `compositional` asks for known words in new company, `long` for longer sentences, most with more clauses than ever seen.
#
# ## Exercises
#
# 1. **Predict, then run.** "The animal did not cross the street because it was too tired", and "too wide": what is "it" in German,
#    if the animal is *das Tier*? Check: `check("A1-it", (tired, wide))`.
# 2. **Minutes.** A translator that always says *es* for "it": how often is it right? And one that always takes the gender of the
#    subject?
# 3. **Minutes.** *sie* is "she", "they" or "it". Group a hundred thousand pairs by their German sentence: do two English ones ever
#    meet? Which words tell the three apart? Why would a meeting be no problem for training?
# 4. **An hour.** How far does a German word stand from the English word that it translates? Draw the distribution of $t - s$ over
#    the links. Which phenomenon reaches farthest?
# 5. **An hour.** Add a relative clause ("the dog that crossed the street"). Which tables change? What happens to the commas?
# 6. **A day.** Make a split that holds out a *phenomenon*: no compound in training, compounds only in the test. What should a
#    model do, and what does ours?

# %% [markdown]
# Solution to exercise 1: the pronoun takes the gender of the noun that is meant, *das Tier* or *die Straße*.

# %% tags=["hide-cell"]
from transformer.exercises import check

verdict = check("A1-it", ("es", "sie"))
print(verdict)
assert verdict

# %% tags=["hide-cell"]
# Exercise 4: the mean distance of the farthest link, by phenomenon.
for name in PHENOMENA:
    reach = [max(abs(t - s) for t, s in pair.alignment) for pair in pairs if name in pair.phenomena]
    print(f"{name:12} {sum(reach) / len(reach):.1f}")
shifts = Counter(t - s for pair in pairs for t, s in pair.alignment)
assert shifts.most_common(1)[0][0] == 0

# %% [markdown]
# ## The notebook and the module agree
#
# `transformer.embedded_corpus` is the function above, exported: the same seed gives the same sentences.

# %%
mine = [(pair.source, pair.target, pair.alignment) for pair in itertools.islice(embedded_corpus("test", seed=7), 50)]
imported = [(pair.source, pair.target, pair.alignment) for pair in itertools.islice(transformer.embedded_corpus("test", seed=7), 50)]
assert mine == imported
print("the same fifty pairs")
