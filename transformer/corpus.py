# Exported from notebooks/A1_the_embedded_corpus.py, Appendix A1; edit that file, not this one.
# sha256 of what follows: 67bc1e705b5fa704
"""The Embedded Corpus (Appendix A1)."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "Noun",
    "Adjective",
    "Verb",
    "NOUNS",
    "ADJECTIVES",
    "PEOPLE",
    "SAYING",
    "VERBS",
    "BE",
    "Phrase",
    "word_by_word",
    "ENDINGS",
    "article",
    "inflect",
    "noun_phrase",
    "prepositional",
    "VerbGroup",
    "MODALS",
    "verb_group",
    "SPLITS",
    "PHENOMENA",
    "MAX_WORDS",
    "SentencePair",
    "words",
    "reserved",
    "partners",
    "Clause",
    "Draft",
    "embedded_corpus",
    "vocabulary",
]


# class: English singular, plural, gender, German singular, plural; "-" where there is no plural
_NOUNS = """
person: man men m Mann Männer; father fathers m Vater Väter; brother brothers m Bruder Brüder
person: uncle uncles m Onkel Onkel; king kings m König Könige; woman women f Frau Frauen
person: mother mothers f Mutter Mütter; sister sisters f Schwester Schwestern; aunt aunts f Tante Tanten
person: queen queens f Königin Königinnen; girl girls n Mädchen Mädchen; child children n Kind Kinder
animal: dog dogs m Hund Hunde; bird birds m Vogel Vögel; fox foxes m Fuchs Füchse; donkey donkeys m Esel Esel
animal: cat cats f Katze Katzen; mouse mice f Maus Mäuse; cow cows f Kuh Kühe; goat goats f Ziege Ziegen
animal: horse horses n Pferd Pferde; animal animals n Tier Tiere; pig pigs n Schwein Schweine
animal: chicken chickens n Huhn Hühner
way: river rivers m Fluss Flüsse; lake lakes m See Seen; square squares m Platz Plätze
way: street streets f Straße Straßen; bridge bridges f Brücke Brücken; meadow meadows f Wiese Wiesen
way: field fields n Feld Felder; bog bogs n Moor Moore
place: garden gardens m Garten Gärten; cellar cellars m Keller Keller; forest forests m Wald Wälder
place: kitchen kitchens f Küche Küchen; barn barns f Scheune Scheunen; school schools f Schule Schulen
place: house houses n Haus Häuser; room rooms n Zimmer Zimmer; castle castles n Schloss Schlösser
food: apple apples m Apfel Äpfel; cake cakes m Kuchen Kuchen; cheese - m Käse -; cherry cherries f Kirsche Kirschen
food: plum plums f Pflaume Pflaumen; nut nuts f Nuss Nüsse; carrot carrots f Karotte Karotten
food: bread - n Brot -; egg eggs n Ei Eier; meat - n Fleisch -
drink: juice - m Saft -; tea - m Tee -; milk - f Milch -; water - n Wasser -
opening: door doors f Tür Türen; window windows n Fenster Fenster; gate gates n Tor Tore
clothes: hat hats m Hut Hüte; coat coats m Mantel Mäntel; jacket jackets f Jacke Jacken
clothes: shirt shirts n Hemd Hemden; dress dresses n Kleid Kleider
vehicle: cart carts m Wagen Wagen; carriage carriages f Kutsche Kutschen; boat boats n Boot Boote
vehicle: car cars n Auto Autos; bicycle bicycles n Fahrrad Fahrräder
thing: ball balls m Ball Bälle; key keys m Schlüssel Schlüssel; letter letters m Brief Briefe
thing: basket baskets m Korb Körbe; box boxes f Kiste Kisten; cup cups f Tasse Tassen; bag bags f Tasche Taschen
thing: lamp lamps f Lampe Lampen; book books n Buch Bücher; glass glasses n Glas Gläser
furniture: table tables m Tisch Tische; chair chairs m Stuhl Stühle; bed beds n Bett Betten
plant: tree trees m Baum Bäume; flower flowers f Blume Blumen
"""
# first parts with the German form they take, and the nouns that may follow
_COMPOUNDS = """
apple=Apfel cherry=Kirsch plum=Pflaumen nut=Nuss: tree cake
apple=Apfel cherry=Kirsch: juice
kitchen=Küchen garden=Garten cellar=Keller: door key
kitchen=Küchen cellar=Keller: window
kitchen=Küchen garden=Garten: table
"""


# English, German: the nouns it can describe (classes, or nouns by name)
_ADJECTIVES = """
old alt: man father brother uncle king woman mother sister aunt queen animal place clothes vehicle thing furniture opening bridge tree
young jung: person animal
big groß: animal place clothes vehicle thing furniture opening way plant apple cake nut carrot egg plum
small klein: girl child animal place clothes vehicle thing furniture opening way plant apple cake nut cherry egg plum
new neu: house school clothes vehicle thing furniture opening street bridge
beautiful schön: person animal garden forest kitchen house castle room clothes vehicle furniture plant lamp meadow lake bridge
expensive teuer: house castle clothes vehicle furniture lamp bag book cheese meat
heavy schwer: cart carriage boat gate coat basket box bag lamp book furniture
red rot: clothes vehicle ball bag lamp flower apple cherry door
green grün: clothes vehicle ball bag lamp apple plum meadow field tree door gate
white weiß: clothes house horse cat goat mouse chicken door cup
black schwarz: clothes vehicle dog cat horse bird goat bag
friendly freundlich: person animal
happy glücklich: person
sad traurig: person
clever klug: person animal
strong stark: man woman horse donkey cow
weak schwach: person animal
tired müde: person animal
sick krank: person animal
lazy faul: person animal
hungry hungrig: person animal
thirsty durstig: person animal
sweet süß: apple cherry plum cake drink
sour sauer: apple cherry plum juice milk
bitter bitter: nut tea juice cherry cheese
salty salzig: cheese meat bread egg water
hard hart: apple nut carrot bread egg cheese cake plum
fresh frisch: apple cherry plum carrot bread egg meat milk juice water
wide breit: river street bridge square meadow field cart carriage boat bed
narrow eng: street bridge kitchen cellar room barn
long lang: river street bridge letter dress coat cart carriage boat
deep tief: river lake bog
slippery rutschig: street bridge square meadow field
empty leer: house room barn cellar kitchen basket box cup bag glass
dirty schmutzig: animal clothes vehicle kitchen cellar room barn cup glass window
dark dunkel: forest cellar kitchen room barn street
"""


# English forms and particle | German infinitive, present, past, ("ist") participle, a dash after a separable prefix
# | case of the objects | subjects | objects | prepositions
_VERBS = """
cross crosses crossed crossed|überqueren überquert überquerte überquert|acc|person animal|way|with
enter enters entered entered|betreten betritt betrat betreten|acc|person animal|place|with
leave leaves left left|verlassen verlässt verließ verlassen|acc|person animal|place|with
eat eats ate eaten|essen isst aß gegessen|acc|person|food|in under with
eat eats ate eaten|fressen frisst fraß gefressen|acc|animal|food|in under
drink drinks drank drunk|trinken trinkt trank getrunken|acc|person|drink|in under with
drink drinks drank drunk|trinken trinkt trank getrunken|acc|animal|milk water|in under
see sees saw seen|sehen sieht sah gesehen|acc|person animal|person animal way place vehicle plant|
find finds found found|finden findet fand gefunden|acc|person animal|thing clothes food|in under behind
look looks looked looked for|suchen sucht suchte gesucht|acc|person|thing clothes animal|in under behind
buy buys bought bought|kaufen kauft kaufte gekauft|acc|person|house clothes vehicle thing furniture food drink flower|for
sell sells sold sold|verkaufen verkauft verkaufte verkauft|acc|person|house clothes vehicle thing furniture animal|
wash washes washed washed|waschen wäscht wusch gewaschen|acc|person|clothes vehicle cup glass dog horse child|in behind
repair repairs repaired repaired|reparieren repariert reparierte repariert|acc|person|vehicle furniture lamp opening|in for
build builds built built|bauen baut baute gebaut|acc|person|house school barn castle bridge furniture boat cart|for with
draw draws drew drawn|zeichnen zeichnet zeichnete gezeichnet|acc|person|animal plant house castle bridge boat|for in
write writes wrote written|schreiben schreibt schrieb geschrieben|acc|person|letter book|in for
carry carries carried carried|tragen trägt trug getragen|acc|person|basket box bag chair table child book|into through
pull pulls pulled pulled|ziehen zieht zog gezogen|acc|person horse donkey cow dog goat pig|cart carriage boat|into through
chase chases chased chased|jagen jagt jagte gejagt|acc|animal|animal|in
bite bites bit bitten|beißen beißt biss gebissen|acc|animal|person animal|in behind
break breaks broke broken|zerbrechen zerbricht zerbrach zerbrochen|acc|person|cup glass lamp egg|in
open opens opened opened|auf-machen macht machte gemacht|acc|person|opening box letter bag|for
close closes closed closed|zu-machen macht machte gemacht|acc|person|opening box bag book|
lock locks locked locked|ab-schließen schließt schloss geschlossen|acc|person|door gate house barn cellar car bicycle|
invite invites invited invited|ein-laden lädt lud geladen|acc|person|person|
call calls called called|an-rufen ruft rief gerufen|acc|person|person|in
tidy tidies tidied tidied|auf-räumen räumt räumte geräumt|acc|person|kitchen cellar room barn house|with for
pick picks picked picked up|auf-heben hebt hob gehoben|acc|person|thing hat coat apple nut|in
throw throws threw thrown away|weg-werfen wirft warf geworfen|acc|person|thing clothes food|in
bring brings brought brought back|zurück-bringen bringt brachte gebracht|acc|person|thing clothes animal bicycle|
try tries tried tried on|an-probieren probiert probierte probiert|acc|person|clothes|in
help helps helped helped|helfen hilft half geholfen|dat|person|person animal|in
thank thanks thanked thanked|danken dankt dankte gedankt|dat|person|person|in
follow follows followed followed|folgen folgt folgte ist gefolgt|dat|person animal|person animal|into through
give gives gave given|geben gibt gab gegeben|dat acc|person|thing food flower dress|in
show shows showed shown|zeigen zeigt zeigte gezeigt|dat acc|person|thing animal house garden vehicle clothes|
sleep sleeps slept slept|schlafen schläft schlief geschlafen||person animal||in under behind
wait waits waited waited|warten wartet wartete gewartet||person animal||in under behind with
play plays played played|spielen spielt spielte gespielt||person animal||in under behind with
dance dances danced danced|tanzen tanzt tanzte getanzt||person||in with
go goes went gone|gehen geht ging ist gegangen||person animal||into through
run runs ran run|laufen läuft lief ist gelaufen||person animal||into through
jump jumps jumped jumped|springen springt sprang ist gesprungen||person animal||over
swim swims swam swum|schwimmen schwimmt schwamm ist geschwommen||person animal||with
fall falls fell fallen asleep|ein-schlafen schläft schlief ist geschlafen||person animal||in under behind
run runs ran run away|weg-laufen läuft lief ist gelaufen||person animal||with
come comes came come back|zurück-kommen kommt kam ist gekommen||person animal||with
say says said said|sagen sagt sagte gesagt|that|person||
know knows knew known|wissen weiß wusste gewusst|that|person||
believe believes believed believed|glauben glaubt glaubte geglaubt|that|person||
hope hopes hoped hoped|hoffen hofft hoffte gehofft|that|person||
"""


# English, German, case of what follows, the nouns that may follow
_PREPOSITIONS = """
in in dat: garden cellar forest kitchen barn house room castle school
under unter dat: table tree bed
behind hinter dat: house barn castle tree school
with mit dat: person dog
for für acc: person
into in acc: place
through durch acc: garden forest meadow field
over über acc: table box basket chair gate river
"""
# English, German, tenses, and "+" where it may stand in a negated clause
_ADVERBS = """
yesterday|gestern|past|+
last week|letzte Woche|past|+
this morning|heute Morgen|past|+
this week|diese Woche|perfect|+
later|später|past|
today|heute|perfect present modal|+
often|oft|present|
sometimes|manchmal|present|
tomorrow|morgen|modal|+
now|jetzt|modal|+
soon|bald|modal|
"""
# verb | what can be wrong with the object | what can be wrong with an animal that does it
_HINDRANCES = """
cross|wide deep slippery|tired sick lazy weak hungry thirsty
eat|sour hard salty bitter|tired sick lazy
drink|sour salty bitter|tired sick lazy
pull|heavy|
enter|narrow|tired sick lazy hungry thirsty
buy|expensive old small heavy dirty|
carry|heavy|
repair|old expensive|
try on|small long dirty expensive|
swim||tired sick lazy weak hungry
run||tired sick lazy weak hungry thirsty
jump||tired sick lazy weak
"""
_NUMBERS = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben"}
_PRONOUNS = {"he": "er", "she": "sie", "we": "wir", "they": "sie"}  # "it" depends on what it means
_IT = {"m": "er", "f": "sie", "n": "es"}


@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A noun: English and German singular and plural, German gender ("m", "f", "n"), and its class."""

    english: str
    plural: str
    gender: str
    german: str
    german_plural: str
    kind: str
    head: str  # the last English word: what a compound is a kind of


@dataclass(frozen=True, eq=False, slots=True)
class Adjective:
    """An adjective and the nouns that it can describe."""

    english: str
    german: str
    nouns: tuple[Noun, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb: its forms in both languages, and the nouns that it takes as subject and object."""

    english: str
    forms: tuple[str, ...]  # cross, crosses, crossed, crossed
    particle: tuple[str, ...]  # ("up",) in "pick up"
    prefix: str  # "auf" in "aufheben"
    german: tuple[str, ...]  # infinitive, present, past, participle, all without the separable prefix
    auxiliary: str  # "haben" or "sein"
    cases: tuple[str, ...]  # of its objects
    subjects: tuple[Noun, ...]
    nouns: tuple[Noun, ...]  # what its last object can be
    prepositions: tuple[str, ...]


def _rows(table: str, mark: str) -> Iterator[list[str]]:
    """Split a table into rows and each row at `mark`."""
    return ([cell.strip() for cell in row.split(mark)] for row in table.strip().splitlines())


def _read_nouns() -> Iterator[Noun]:
    simple = {}
    for kind, entries in _rows(_NOUNS, ":"):
        for entry in entries.split(";"):
            english, plural, gender, german, german_plural = (word.strip("-") for word in entry.split())
            simple[english] = Noun(english, plural, gender, german, german_plural, kind, english)
    yield from simple.values()
    for firsts, heads in _rows(_COMPOUNDS, ":"):  # the last part gives gender, plural and class
        for (first, stem), head in ((f.split("="), simple[h]) for f in firsts.split() for h in heads.split()):
            yield Noun(f"{first} {head.english}", head.plural and f"{first} {head.plural}", head.gender,
                       stem + head.german.lower(), stem + head.german_plural.lower(), head.kind, head.english)


NOUNS = tuple(_read_nouns())


def _members(names: str) -> tuple[Noun, ...]:
    """Look up all nouns that are named, or whose class or head is named."""
    wanted = set(names.split())
    unknown = wanted - {name for noun in NOUNS for name in (noun.kind, noun.head)}
    assert not unknown, f"the tables name words that are no nouns: {unknown}"
    return tuple(noun for noun in NOUNS if noun.kind in wanted or noun.head in wanted)


ADJECTIVES = tuple(Adjective(*words.split(), _members(nouns)) for words, nouns in _rows(_ADJECTIVES, ":"))


def _read_verb(english: str, german: str, cases: str, subjects: str, objects: str, prepositions: str) -> Verb:
    forms, stems = english.split(), german.split()
    prefix, infinitive = stems[0].split("-") if "-" in stems[0] else ("", stems[0])
    return Verb(" ".join(forms[:1] + forms[4:]), tuple(forms[:4]), tuple(forms[4:]), prefix,
                (infinitive, *stems[1:3], stems[-1]), "sein" if stems[3] == "ist" else "haben",
                tuple(cases.split()), _members(subjects), _members(objects), tuple(prepositions.split()))


_ALL_VERBS = tuple(_read_verb(*row) for row in _rows(_VERBS, "|"))
PEOPLE, _ANIMALS = _members("person"), _members("animal")
SAYING = tuple(verb for verb in _ALL_VERBS if "that" in verb.cases)
VERBS = tuple(verb for verb in _ALL_VERBS if "that" not in verb.cases)
BE = Verb("be", ("be", "is", "was", "been"), (), "", ("sein", "ist", "war", "gewesen"), "sein", (), NOUNS, (), ())


class Phrase(NamedTuple):
    """A piece of a sentence in both languages; `links` are (German, English) word positions inside it."""

    english: tuple[str, ...]
    german: tuple[str, ...]
    links: tuple[tuple[int, int], ...]


@lru_cache(None)
def word_by_word(english: str, german: str) -> Phrase:
    """Make a phrase in which word i translates word i."""
    pair = tuple(english.split()), tuple(german.split())
    return Phrase(*pair, tuple((i, i) for i in range(len(pair[0]))))


ENDINGS = {  # case: gender ("p" for plural): the ending of der/die/das, of ein/kein, of an adjective after each
    "nom": {"m": ("er", "", "e", "er"), "f": ("ie", "e", "e", "e"), "n": ("as", "", "e", "es"), "p": ("ie", "e", "en", "e")},
    "acc": {"m": ("en", "en", "en", "en"), "f": ("ie", "e", "e", "e"), "n": ("as", "", "e", "es"), "p": ("ie", "e", "en", "e")},
    "dat": {"m": ("em", "em", "en", "en"), "f": ("er", "er", "en", "en"), "n": ("em", "em", "en", "en"), "p": ("en", "en", "en", "en")},
}


def article(gender: str, case: str, kind: str) -> str:
    """Return the German article: kind "the" (der, die, das), "a" (ein) or "no" (kein)."""
    definite, indefinite, _, _ = ENDINGS[case][gender]
    return "d" + definite if kind == "the" else {"a": "ein", "no": "kein"}[kind] + indefinite


def inflect(adjective: str, gender: str, case: str, kind: str) -> str:
    """Give an adjective its ending: weak after der/die/das, mixed after ein/kein, strong after a number."""
    stem = re.sub("e?$", "", adjective, count=1)  # müde: müd-
    stem = re.sub("(?<=[au])er$", "r", stem) if stem.endswith(("auer", "euer")) else re.sub("el$", "l", stem)
    return stem + ENDINGS[case][gender][2 if kind == "the" else 3]


@lru_cache(None)
def noun_phrase(noun: Noun, determiner: str, plural: bool, case: str, adjective: Adjective | None = None) -> Phrase:
    """Write "the old dog" and its German, with article, adjective and noun in agreement.

    Args:
        noun: The noun.
        determiner: "the", "a", "no" (English still says "a": the "not" stands elsewhere) or a number word.
        plural: Whether the noun is plural.
        case: "nom", "acc" or "dat".
        adjective: An adjective between them.

    Returns:
        The phrase. A compound's one German word is linked to both English words.
    """
    gender = "p" if plural else noun.gender
    english = (noun.plural if plural else noun.english).split()
    german = noun.german_plural if plural else noun.german
    if plural and case == "dat" and german[-1] not in "ns":
        german += "n"
    middle = [adjective.english] if adjective else []
    first = determiner if determiner not in ("a", "no") else "an" if (middle + english)[0][0] in "aeiou" else "a"
    start = 1 + len(middle)
    return Phrase(
        (first, *middle, *english),
        (_NUMBERS.get(determiner) or article(gender, case, determiner),
         *(inflect(adjective.german, gender, case, determiner) for adjective in [adjective] if adjective), german),
        (*((i, i) for i in range(start)), *((start, start + i) for i in range(len(english)))))


@lru_cache(None)
def prepositional(preposition: str, german: str, phrase: Phrase) -> Phrase:
    """Put a preposition before a noun phrase: in + dem = im, in + das = ins."""
    short = {("in", "dem"): "im", ("in", "das"): "ins"}.get((german, phrase.german[0]))
    shift = 0 if short else 1
    links = ((0, 0), *((t + shift, s + 1) for t, s in phrase.links))
    return Phrase((preposition, *phrase.english), (short, *phrase.german[1:]) if short else (german, *phrase.german), links)


class VerbGroup(NamedTuple):
    """A conjugated verb: English in one piece; German in two, finite verb second and the rest last, or all last."""

    english: tuple[str, ...]
    finite: Phrase
    rest: Phrase
    final: Phrase  # finite verb and rest at the end of a subordinate clause
    not_at: int  # position of "not" (or "cannot"), -1 where there is none


MODALS = {"can": ("kann", "können"), "must": ("muss", "müssen"), "should": ("sollte", "sollten"),
          "want": ("will", "wollen")}


def _english_verb(verb: Verb, mode: str, plural: bool, negated: bool) -> tuple[list[str], int]:
    """Return the English words, and how many of them belong to the German finite verb."""
    base, third, past, participle = verb.forms
    no = ["not"] * negated
    if mode == "perfect":
        return ["have" if plural else "has", *no, participle], 1
    if mode == "want":
        auxiliary = [("do" if plural else "does"), "not", "want"] if negated else ["want" if plural else "wants"]
        return [*auxiliary, "to", base], len(auxiliary)
    if mode in MODALS:
        return ["cannot", base] if negated and mode == "can" else [mode, *no, base], 1
    if verb is BE:
        return [{"is": "are", "was": "were"}[third if mode == "present" else past] if plural else third if mode == "present" else past, *no], 1
    if negated:
        return ["did" if mode == "past" else "do" if plural else "does", "not", base], 3
    return [past if mode == "past" else base if plural else third], 1


@lru_cache(None)
def verb_group(verb: Verb, mode: str, plural: bool, negated: bool) -> VerbGroup:
    """Conjugate a verb (third person).

    Args:
        verb: The verb.
        mode: "past", "present", "perfect", or a modal verb: "can", "must", "should", "want".
        plural: Whether the subject is plural.
        negated: Whether English says "not" with it.

    Returns:
        The group. A separable prefix is linked to the verb and its particle, "did" to the finite verb.
    """
    english, own = _english_verb(verb, mode, plural, negated)
    not_at = next((i for i, word in enumerate(english) if word in ("not", "cannot")), -1)
    words = [*english, *verb.particle]
    infinitive, present, past, participle = verb.german
    head = tuple(i for i in range(own) if words[i] != "not")
    tail = tuple(i for i in range(own, len(words)) if words[i] != "not")
    if mode in ("past", "present"):
        plural_form = {"present": infinitive if verb is not BE else "sind", "past": past + ("n" if past[-1] == "e" else "en")}
        finite = plural_form[mode] if plural else present if mode == "present" else past
        rest, head = verb.prefix, head + tail
        tail = tuple(i for i in head if words[i] not in ("did", "do", "does"))
    elif mode == "perfect":
        finite = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}[verb.auxiliary][plural]
        rest = verb.prefix + participle
    else:
        finite, rest = MODALS[mode][plural], verb.prefix + infinitive
    first = Phrase((), (finite,), tuple((0, i) for i in head))
    last = Phrase((), (rest,), tuple((0, i) for i in tail)) if rest else Phrase((), (), ())
    if mode in ("past", "present"):  # aufmachte: one word
        final = Phrase((), (rest + finite,), first.links)
    else:
        final = Phrase((), (rest, finite), last.links + tuple((1, i) for i in head))
    return VerbGroup(tuple(words), first, last, final, not_at)


SPLITS = ("train", "dev", "test", "compositional", "long")
PHENOMENA = ("adjective", "perfect", "modal", "subordinate", "separable", "negation", "no_article", "inversion",
             "compound", "number", "dative", "it")
MAX_WORDS = 20  # English words and punctuation marks in a sentence of any split but "long"


@dataclass(frozen=True, slots=True)
class SentencePair:
    """An English sentence, its German translation, and which word translates which."""

    source_words: tuple[str, ...]  # English, punctuation marks are words
    target_words: tuple[str, ...]  # German
    alignment: tuple[tuple[int, int], ...]  # (target index, source index), sorted
    phenomena: frozenset[str]  # some of PHENOMENA
    it: tuple[int, int, int | None] | None = None  # source indices of "it", the noun it means, the other candidate

    @property
    def source(self) -> str:
        """The English sentence as text."""
        return _text(self.source_words)

    @property
    def target(self) -> str:
        """The German sentence as text."""
        return _text(self.target_words)


def _text(words: tuple[str, ...]) -> str:
    return " ".join(words).replace(" ,", ",").replace(" .", ".")


def words(text: str) -> list[str]:
    """Split text into words and punctuation marks: `words(pair.source)` gives `pair.source_words`."""
    return re.findall(r"\w+|[^\w\s]", text)


@lru_cache(None)
def reserved(word: str, noun: str) -> bool:
    """Whether an adjective and a noun, or a verb and its object, meet in the split "compositional" only."""
    return zlib.crc32(f"{word} {noun} 432".encode()) % 17 == 0


@lru_cache(None)
def partners(word: Verb | Noun, with_reserved: bool) -> tuple[Noun, ...] | tuple[Adjective, ...]:
    """List the objects of a verb or the adjectives of a noun, with or without the reserved pairs."""
    if isinstance(word, Verb):
        return tuple(n for n in word.nouns if with_reserved or not reserved(word.english, n.english))
    return tuple(a for a in ADJECTIVES if word in a.nouns and (with_reserved or not reserved(a.english, word.english)))


def _split_of(english: tuple[str, ...]) -> str:
    """Assign a sentence with no reserved pair to a split: a tenth to "dev", a tenth to "test"."""
    if len(english) > MAX_WORDS:
        return "long"
    return {0: "dev", 1: "test"}.get(zlib.crc32(" ".join(english).encode()) % 10, "train")


@dataclass(slots=True)
class Clause:
    """What a clause says, before it is put in order."""

    subject: Phrase
    verb: VerbGroup
    objects: tuple[Phrase, ...] = ()
    end: Phrase | None = None  # prepositional phrase or predicate
    adverb: Phrase | None = None
    fronted: bool = False  # the adverb comes first
    no: bool = False  # German negates the object: kein


class Draft:
    """A sentence pair that grows clause by clause."""

    __slots__ = ("english", "german", "links")

    def __init__(self) -> None:
        self.english: list[str] = []
        self.german: list[str] = []
        self.links: list[tuple[int, int]] = []

    def say(self, phrase: Phrase) -> int:
        """Append the English of a phrase and return where it begins."""
        start = len(self.english)
        self.english += phrase.english
        return start

    def put(self, phrase: Phrase, at: int) -> None:
        """Append the German of a phrase whose English begins at `at`."""
        start = len(self.german)
        self.german += phrase.german
        for t, s in phrase.links:
            self.links.append((start + t, at + s))

    def add(self, phrase: Phrase) -> None:
        """Append a phrase in both languages."""
        self.put(phrase, self.say(phrase))

    def clause(self, clause: Clause, second: bool) -> tuple[int, int]:
        """Append a clause, its German verb second (main) or last (subordinate); return where the English subject and last object end."""
        subject, verb, adverb, end = clause.subject, clause.verb, clause.adverb, clause.end
        adverb_at = self.say(adverb) if adverb and clause.fronted else 0
        subject_at, verb_at = self.say(subject), len(self.english)
        self.english += verb.english
        # "pick up": the particle stands right after its verb
        objects_at = [self.say(phrase) for phrase in clause.objects]
        object_end = len(self.english) - 1
        end_at = self.say(end) if end else 0
        if adverb and not clause.fronted:
            adverb_at = self.say(adverb)

        if not second:
            self.put(subject, subject_at)
        elif clause.fronted and adverb:
            self.put(adverb, adverb_at)
            self.put(verb.finite, verb_at)
            self.put(subject, subject_at)
        else:
            self.put(subject, subject_at)
            self.put(verb.finite, verb_at)
        if adverb and not clause.fronted:
            self.put(adverb, adverb_at)
        if clause.no:
            for phrase, at in zip(clause.objects[:-1], objects_at):
                self.put(phrase, at)
            self.links.append((len(self.german), verb_at + verb.not_at))
            self.put(clause.objects[-1], objects_at[-1])
        else:
            for phrase, at in zip(clause.objects, objects_at):
                self.put(phrase, at)
            if verb.not_at >= 0:
                self.put(_NICHT, verb_at + verb.not_at)
        if end:
            self.put(end, end_at)
        self.put(verb.rest if second else verb.final, verb_at)
        return subject_at + len(subject.english) - 1, object_end


_NICHT = word_by_word("not", "nicht")
_FULL_STOP = word_by_word(".", ".")
_THAT = Phrase(("that",), (",", "dass"), ((1, 0),))
_BUT = word_by_word(", but", ", aber")
_AND = word_by_word("and", "und")
_JOIN = {"because": "weil", "although": "obwohl", "while": "während", "if": "wenn"}
_CONJUNCTION = {english: Phrase((english,), (",", german), ((1, 0),)) for english, german in _JOIN.items()}


_PREPOSITION = {english: (german, case, _members(nouns)) for (english, german, case), nouns in
                ((words.split(), nouns) for words, nouns in _rows(_PREPOSITIONS, ":"))}
_NOW = ("perfect", "perfect", "perfect", "present", "present", "can", "must", "should", "want")
_KIND = {mode: mode if mode in ("past", "perfect", "present") else "modal" for mode in ("past", *_NOW)}
_ADVERB = {(kind, negated): tuple(word_by_word(english, german) for english, german, kinds, safe in _rows(_ADVERBS, "|")
                                  if kind in kinds.split() and (safe or not negated))
           for kind in _KIND.values() for negated in (False, True)}
_BY_NAME = {adjective.english: adjective for adjective in ADJECTIVES}
_PERSON_VERBS = tuple(verb for verb in VERBS if PEOPLE[0] in verb.subjects)
_PRONOUN = {english: word_by_word(english, german) for english, german in _PRONOUNS.items()}
_OF_PEOPLE = tuple(adjective for adjective in ADJECTIVES if set(PEOPLE) <= set(adjective.nouns))
_OPPOSITES = """old new; old young; big small; wide narrow; strong weak; strong tired; sweet sour; sweet bitter; sweet salty;
happy sad; red green; red white; red black; green white; green black; white black; hungry thirsty; fresh hard; heavy small; clever lazy"""


@lru_cache(None)
def _conflicts(adjective: Adjective) -> frozenset[Adjective]:
    """List the adjectives that a noun should not have beside this one: itself and its opposites."""
    pairs = [pair.split() for pair in _OPPOSITES.split(";") if adjective.english in pair.split()]
    return frozenset([adjective, *(_BY_NAME[name] for pair in pairs for name in pair)])


@dataclass(frozen=True, eq=False, slots=True)
class _Hindrance:
    """Why something is not done: what is wrong with its object, or with the animal that does it."""

    verb: Verb
    objects: tuple[tuple[Noun, Adjective], ...]
    animals: tuple[Adjective, ...]


def _read_hindrance(verb: Verb, objects: str, animals: str, with_reserved: bool) -> _Hindrance:
    faults = tuple((noun, _BY_NAME[name]) for noun in partners(verb, with_reserved) for name in objects.split()
                   if _BY_NAME[name] in partners(noun, with_reserved))
    return _Hindrance(verb, faults, tuple(_BY_NAME[name] for name in animals.split()))


@lru_cache(None)
def _hindrances(with_reserved: bool) -> dict[str, tuple[_Hindrance, ...]]:
    """List what may hinder whom: "two" candidates (an animal acts on a thing), "person" or "animal" alone."""
    read = [_read_hindrance(verb, objects, animals, with_reserved) for name, objects, animals in _rows(_HINDRANCES, "|")
            for verb in VERBS if verb.english == name]
    return {"two": tuple(h for h in read if h.objects and h.animals and _ANIMALS[0] in h.verb.subjects),
            "person": tuple(h for h in read if h.objects and PEOPLE[0] in h.verb.subjects),
            "animal": tuple(h for h in read if not h.objects)}


class _Author:
    """Writes sentences from a stream of random numbers."""

    def __init__(self, rng: random.Random, with_reserved: bool) -> None:
        self.random = rng.random
        self.with_reserved = with_reserved

    def begin(self) -> None:
        """Start a new sentence."""
        self.draft = Draft()
        self.phenomena: set[str] = set()
        self.novel = False  # a reserved pair was used
        self.it: tuple[int, int, int | None] | None = None

    def pick(self, choices):  # type: ignore[no-untyped-def]
        """Choose one of `choices`."""
        return choices[int(self.random() * len(choices))]

    def other(self, choices: tuple[Noun, ...], used: list[Noun]) -> Noun:
        """Choose a noun that this clause has not used yet."""
        noun = self.pick(choices)
        while noun in used:
            noun = self.pick(choices)
        used.append(noun)
        return noun

    def phrase(self, noun: Noun, case: str, determiner: str = "", plural: bool = False, avoid: frozenset[Adjective] = frozenset()) -> Phrase:
        """Put a noun in a phrase, now and then with an adjective."""
        adjective = None
        if self.random() < 0.34:
            adjective = self.pick(partners(noun, self.with_reserved))
            if adjective in avoid:
                adjective = None
            else:
                self.phenomena.add("adjective")
                self.novel |= reserved(adjective.english, noun.english)
        if " " in noun.english:
            self.phenomena.add("compound")
        if case == "dat":
            self.phenomena.add("dative")
        if determiner in _NUMBERS:
            self.phenomena.add("number")
        return noun_phrase(noun, determiner, plural, case, adjective)

    def determiner(self, noun: Noun, definite: bool = False, countable: bool = True) -> tuple[str, bool]:
        """Choose "the", "a" or a number, and singular or plural."""
        chance = self.random()
        if not noun.plural or chance < 0.5:
            return "the", False
        if chance < 0.75 and not definite:
            return "a", False
        if not countable:
            return "the", False
        if chance < 0.87 or definite:
            return "the", True
        return self.pick(tuple(_NUMBERS)), True

    def subject(self, nouns: tuple[Noun, ...], negated: bool, used: list[Noun]) -> tuple[Phrase, bool]:
        """Choose a subject: mostly a noun phrase, sometimes a pronoun for people."""
        if nouns[0] is PEOPLE[0] and nouns is not NOUNS and self.random() < 0.15:
            english = self.pick(("he", "she", "we", "they"))
            return _PRONOUN[english], english in ("we", "they")
        noun = self.other(nouns, used)
        determiner, plural = self.determiner(noun, definite=negated)
        return self.phrase(noun, "nom", determiner, plural), plural

    def objects(self, verb: Verb, negated: bool, used: list[Noun]) -> tuple[tuple[Phrase, ...], bool]:
        """Choose the objects of a verb, and whether German negates the last one with "kein"."""
        phrases = []
        no = False
        for case in verb.cases:
            last = case == verb.cases[-1]
            noun = self.other(partners(verb, self.with_reserved) if last else PEOPLE, used)
            determiner, plural = self.determiner(noun, definite=negated)
            if last:
                self.novel |= reserved(verb.english, noun.english)
                if negated and case == "acc" and noun.plural and self.random() < 0.4:
                    determiner, plural, no = "no", False, True
            phrases.append(self.phrase(noun, case, determiner, plural))
        return tuple(phrases), no

    def place(self, verb: Verb, negated: bool, used: list[Noun]) -> Phrase:
        """Choose a prepositional phrase that goes with a verb."""
        english = self.pick(verb.prepositions)
        german, case, nouns = _PREPOSITION[english]
        noun = self.other(nouns, used)
        determiner, plural = self.determiner(noun, negated, countable=english in ("with", "for"))
        return prepositional(english, german, self.phrase(noun, case, determiner, plural))

    def write(self, clause: Clause, verb: Verb, mode: str, second: bool) -> tuple[int, int]:
        """Note what the clause shows and append it."""
        if verb.prefix:
            self.phenomena.add("separable")
        if mode == "perfect":
            self.phenomena.add("perfect")
        elif mode in MODALS:
            self.phenomena.add("modal")
        if clause.verb.not_at >= 0:
            self.phenomena.add("negation")
        if clause.no:
            self.phenomena.add("no_article")
        if clause.fronted:
            self.phenomena.add("inversion")
        if not second:
            self.phenomena.add("subordinate")
        return self.draft.clause(clause, second)

    def clause(self, mode: str, second: bool = True, who: tuple[Phrase, bool] | None = None,
               to_be: float = 0.1, when: float = 0.35) -> tuple[Phrase, bool]:
        """Write a clause about anything; return its subject."""
        if mode in ("past", "present") and self.random() < to_be:
            return self.predicate(mode, second, who)
        verb = self.pick(_PERSON_VERBS if who else VERBS)
        negated = mode != "must" and self.random() < 0.2
        used: list[Noun] = []
        subject, plural = who or self.subject(verb.subjects, negated, used)
        objects, no = self.objects(verb, negated, used)
        end = None
        if verb.prepositions and self.random() < 0.3 and not (objects and negated):
            end = self.place(verb, negated, used)
        clause = Clause(subject, verb_group(verb, mode, plural, negated), objects, end, no=no)
        self.add_adverb(clause, mode, negated, second, when)
        self.write(clause, verb, mode, second)
        return subject, plural

    def add_adverb(self, clause: Clause, mode: str, negated: bool, second: bool, chance: float) -> None:
        """Now and then say when."""
        if self.random() < chance:
            clause.adverb = self.pick(_ADVERB[_KIND[mode], negated])
            clause.fronted = second and self.random() < 0.5

    def predicate(self, mode: str, second: bool, who: tuple[Phrase, bool] | None) -> tuple[Phrase, bool]:
        """Write a clause that says what something is like; return its subject."""
        negated = self.random() < 0.2
        if who:
            subject, plural = who
            adjective = self.pick(_OF_PEOPLE)
        else:
            noun = self.pick(NOUNS)
            plural = bool(noun.plural) and self.random() < 0.2
            adjective = self.pick(partners(noun, self.with_reserved))
            self.novel |= reserved(adjective.english, noun.english)
            subject = self.phrase(noun, "nom", "the", plural, _conflicts(adjective))
        degree = self.pick((("", ""), ("very ", "sehr "), ("too ", "zu "))[:3 if adjective.english in _HINDRANCES else 2])
        end = word_by_word(degree[0] + adjective.english, degree[1] + adjective.german)
        self.write(Clause(subject, verb_group(BE, mode, plural, negated), end=end), BE, mode, second)
        return subject, plural

    def because_of_it(self, mode: str) -> None:
        """Write "The dog did not cross the street because it was too wide": half the time with two candidates."""
        two = self.random() < 0.5
        hindrances = _hindrances(self.with_reserved)
        hindrance = self.pick(hindrances["two" if two else "person" if self.random() < 0.7 else "animal"])
        verb = hindrance.verb
        means_object = self.random() < 0.5 if two else bool(hindrance.objects)
        actor, thing, why = self.candidates(hindrance, means_object, two or not hindrance.objects)
        negated = mode != "must" and self.random() < 0.6
        avoid = _conflicts(why)
        if actor:
            subject, plural = self.phrase(actor, "nom", "the", False, avoid), False
        else:
            subject, plural = self.subject(PEOPLE, True, [])
        clause = Clause(subject, verb_group(verb, mode, plural, negated))
        if thing:
            clause.objects = (self.phrase(thing, "acc", "the", False, avoid),)
            self.novel |= reserved(verb.english, thing.english)
        self.add_adverb(clause, mode, negated, True, 0.2)
        subject_at, object_at = self.write(clause, verb, mode, True)
        meant = thing if means_object else actor
        assert meant is not None
        self.novel |= reserved(why.english, meant.english)
        self.draft.add(_CONJUNCTION["because" if negated else "although"])
        end = word_by_word(*(f"too {why.english}", f"zu {why.german}") if negated else (f"very {why.english}", f"sehr {why.german}"))
        it = word_by_word("it", _IT[meant.gender])
        be = verb_group(BE, "past" if mode in ("past", "perfect") else "present", False, False)
        it_at, _ = self.write(Clause(it, be, end=end), BE, "past", False)
        self.phenomena.add("it")
        self.it = it_at, object_at if means_object else subject_at, (subject_at if means_object else object_at) if two else None

    def candidates(self, hindrance: _Hindrance, means_object: bool, animal: bool) -> tuple[Noun | None, Noun | None, Adjective]:
        """Choose who acts (None for people), on what, and what is wrong; two candidates differ in gender."""
        while True:
            actor = self.pick(hindrance.verb.subjects if hindrance.objects else _ANIMALS) if animal else None
            thing = None
            if means_object:
                thing, why = self.pick(hindrance.objects)
            else:
                why = self.pick(hindrance.animals)
                if hindrance.objects:
                    thing = self.pick(partners(hindrance.verb, self.with_reserved))
            while animal and actor.kind != "animal":
                actor = self.pick(hindrance.verb.subjects)
            if not means_object and why not in partners(actor, self.with_reserved):
                continue
            if not (actor and thing and actor.gender == thing.gender):
                return actor, thing, why

    def reported(self) -> None:
        """Write "The man knows that ..."."""
        mode = self.pick(("past", "present", "present"))
        verb = self.pick(SAYING)
        subject, plural = self.subject(PEOPLE, True, [])
        self.draft.clause(Clause(subject, verb_group(verb, mode, plural, False)), True)
        self.draft.add(_THAT)
        self.clause("past" if mode == "past" else self.pick(("past", *_NOW)), second=False)

    def reason(self, mode: str) -> None:
        """Write a main clause and a subordinate one: because, although, if."""
        subject, plural = self.clause(mode, to_be=0)
        now = mode not in ("past", "perfect")
        who = _same_person(subject, plural) if self.random() < 0.6 else None
        if who:
            conjunction = self.pick(("because", "although", "if") if now else ("because", "although"))
        else:
            conjunction = self.pick(("while", "although", "if") if now else ("while", "although") if mode == "past" else ("although", "because"))
        self.draft.add(_CONJUNCTION[conjunction])
        mode = ("present" if conjunction in ("if", "while") else self.pick(_NOW)) if now else "past"
        self.clause(mode, False, who, *((0, 0) if conjunction == "while" else (0.5 if who else 0.2, 0.25)))

    def sentence(self) -> None:
        """Write a sentence of one or two clauses."""
        chance = self.random()
        mode = self.mode()
        if chance < 0.32:
            self.clause(mode)
        elif chance < 0.50:
            self.joined(mode, 2)
        elif chance < 0.70:
            self.reason(mode)
        elif chance < 0.82:
            self.reported()
        else:
            self.because_of_it(mode)

    def mode(self, like: str = "") -> str:
        """Choose a tense or modal verb, of the same time as `like`."""
        if like == "past" or not like and self.random() < 0.45:
            return "past"
        return self.pick(_NOW)

    def joined(self, mode: str, clauses: int) -> None:
        """Write main clauses with "and" and "but" between them."""
        self.clause(mode)
        for i in range(clauses - 1):
            self.draft.add(_AND if i or self.random() < 0.6 else _BUT)
            self.clause(self.mode(like=mode))

    def long(self) -> None:
        """Write a sentence of more clauses."""
        mode = self.mode()
        self.joined(mode, self.pick((1, 2, 2, 3)))
        self.draft.add(_AND)
        self.pick((self.clause, self.reason, self.because_of_it))(self.mode(like=mode))

    def finish(self) -> SentencePair:
        """End the sentence."""
        draft = self.draft
        draft.add(_FULL_STOP)
        for side in (draft.english, draft.german):
            side[0] = side[0][0].upper() + side[0][1:]
        return SentencePair(tuple(draft.english), tuple(draft.german), tuple(sorted(draft.links)),
                            frozenset(self.phenomena), self.it)


def _same_person(subject: Phrase, plural: bool) -> tuple[Phrase, bool] | None:
    """Find the pronoun for a person named before, where English and German agree on it."""
    noun = _PERSON_BY_NAME.get(subject.english[-1])
    if plural:
        return (_PRONOUN["they"], True) if noun else (subject, True) if len(subject.english) == 1 else None
    if subject.english[0] in _PRONOUN:
        return subject, False
    return (_PRONOUN["he" if noun.gender == "m" else "she"], False) if noun and noun.gender != "n" else None


_PERSON_BY_NAME = {name: noun for noun in PEOPLE for name in (noun.english, noun.plural)}


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
    return _stream(split, seed)


def _stream(split: str, seed: int) -> Iterator[SentencePair]:
    author = _Author(random.Random(f"{split} {seed}"), split == "compositional")
    while True:
        author.begin()
        author.long() if split == "long" else author.sentence()
        pair = author.finish()
        if split == "compositional":
            if author.novel and len(pair.source_words) <= MAX_WORDS:
                yield pair
        elif _split_of(pair.source_words) == split:
            yield pair


def vocabulary() -> tuple[str, ...]:
    """List the English words of the corpus, in lower case and sorted, punctuation left out."""
    known = {"the", "a", "an", "that", "but", "and", "it", "not", "cannot", "to", "very", "too", "are", "were", "do", "does",
             "did", "has", "have", "wants", *MODALS, *_NUMBERS, *_PRONOUNS, *_JOIN, *_PREPOSITION, *_BY_NAME}
    for noun in NOUNS:
        known.update(f"{noun.english} {noun.plural}".split())
    for verb in (*VERBS, *SAYING, BE):
        known.update((*verb.forms, *verb.particle))
    for english, *_ in _rows(_ADVERBS, "|"):
        known.update(english.split())
    return tuple(sorted(known))
