# %% [markdown]
# # A1a The Words of the Corpus
#
# The embedded corpus needs words that a reader can check by eye: what each means, how each changes its form, and which
# ones make sense together. This page holds them, with the few rules of German that give a noun phrase and a verb
# their endings. [A1](A1_the_embedded_corpus.py) builds sentences from them.

# %%
#| default_exp lexicon

# %%
import textwrap
from collections import Counter

import altair as alt

import transformer

transformer.check_version("0.1")

# %%
#| export
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

# %% [markdown]
# ## Nouns
#
# A noun belongs to a class: what is a *food* can be eaten, what is a *way* can be crossed. The class decides which
# sentences make sense. A compound is two words in English and one in German; its last part gives it gender and plural.
#
# No English form may mean two things, or the translation would depend on something that the reader cannot see. So there is
# no *sheep*, whose plural looks like its singular, and no *friend*, who is *Freund* or *Freundin*. German nouns that
# change in the singular (*den Löwen*) are left out as well: one rule less to learn.

# %%
#| export
# class: English, gender, German, German plural; a slash precedes an irregular English plural, "milk" has no plural
_NOUNS = """
person: man/men m Mann Männer, father m Vater Väter, brother m Bruder Brüder, king m König Könige,
  woman/women f Frau Frauen, mother f Mutter Mütter, sister f Schwester Schwestern, queen f Königin Königinnen,
  girl n Mädchen Mädchen, child/children n Kind Kinder;
animal: dog m Hund Hunde, bird m Vogel Vögel, fox m Fuchs Füchse, donkey m Esel Esel, cat f Katze Katzen,
  mouse/mice f Maus Mäuse, cow f Kuh Kühe, goat f Ziege Ziegen, horse n Pferd Pferde, pig n Schwein Schweine,
  animal n Tier Tiere;
way: river m Fluss Flüsse, lake m See Seen, square m Platz Plätze, street f Straße Straßen, bridge f Brücke Brücken,
  meadow f Wiese Wiesen, field n Feld Felder;
place: garden m Garten Gärten, cellar m Keller Keller, forest m Wald Wälder, kitchen f Küche Küchen,
  school f Schule Schulen, barn f Scheune Scheunen, house n Haus Häuser, room n Zimmer Zimmer,
  castle n Schloss Schlösser;
food: apple m Apfel Äpfel, cake m Kuchen Kuchen, cheese m Käse, cherry f Kirsche Kirschen, nut f Nuss Nüsse,
  carrot f Karotte Karotten, egg n Ei Eier, bread n Brot, meat n Fleisch, apple_cake m Apfelkuchen Apfelkuchen,
  cherry_cake m Kirschkuchen Kirschkuchen, nut_cake m Nusskuchen Nusskuchen;
drink: juice m Saft, tea m Tee, milk f Milch, water n Wasser, apple_juice m Apfelsaft, cherry_juice m Kirschsaft;
opening: door f Tür Türen, window n Fenster Fenster, gate n Tor Tore, kitchen_door f Küchentür Küchentüren,
  garden_door f Gartentür Gartentüren, kitchen_window n Küchenfenster Küchenfenster;
clothes: hat m Hut Hüte, coat m Mantel Mäntel, jacket f Jacke Jacken, shirt n Hemd Hemden, dress n Kleid Kleider;
vehicle: cart m Wagen Wagen, carriage f Kutsche Kutschen, boat n Boot Boote, car n Auto Autos;
thing: ball m Ball Bälle, key m Schlüssel Schlüssel, letter m Brief Briefe, basket m Korb Körbe, box f Kiste Kisten,
  cup f Tasse Tassen, bag f Tasche Taschen, book n Buch Bücher, picture n Bild Bilder,
  kitchen_key m Küchenschlüssel Küchenschlüssel, garden_key m Gartenschlüssel Gartenschlüssel;
furniture: table m Tisch Tische, chair m Stuhl Stühle, lamp f Lampe Lampen, bed n Bett Betten,
  kitchen_table m Küchentisch Küchentische, garden_table m Gartentisch Gartentische;
plant: tree m Baum Bäume, flower f Blume Blumen, apple_tree m Apfelbaum Apfelbäume,
  cherry_tree m Kirschbaum Kirschbäume, nut_tree m Nussbaum Nussbäume"""

# %% [markdown]
# ## Adjectives
#
# Each adjective names what it can describe. A river can be deep, a key cannot. This list also decides what "it" means
# in "The goat did not cross the river because it was too deep".

# %%
#| export
# English, German: the nouns that they can describe, by class or by name
_ADJECTIVES = """
friendly freundlich, clever klug, young jung, tired müde, sick krank, lazy faul, hungry hungrig, thirsty durstig:
  person animal;
happy glücklich, sad traurig: person;
strong stark: man woman horse donkey cow;
old alt: man father brother king woman mother sister queen animal place bridge tree opening clothes vehicle thing
  furniture;
big groß, small klein: animal way place apple cake nut egg opening clothes vehicle thing furniture plant;
new neu: house school street bridge opening clothes vehicle thing furniture;
beautiful schön: person animal garden forest house castle room meadow lake bridge clothes vehicle furniture plant
  picture;
expensive teuer: house castle cheese meat clothes vehicle furniture bag book picture;
heavy schwer: cart carriage boat gate coat basket box bag book furniture;
dirty schmutzig: animal kitchen cellar room barn window clothes vehicle cup;
red rot, green grün: apple door clothes vehicle ball bag cup lamp;
white weiß, black schwarz: dog cat horse goat mouse clothes vehicle bag cup;
sweet süß, sour sauer: apple cherry milk juice;
salty salzig: cheese meat bread egg water;
bitter bitter: nut cherry cheese tea juice;
hard hart: apple nut carrot cake egg cheese bread;
fresh frisch: apple cherry carrot egg bread meat milk juice water;
wide breit: river street bridge square meadow field;
deep tief: river lake;
slippery rutschig: street bridge square meadow field;
narrow eng: street bridge kitchen cellar room barn;
dark dunkel: forest cellar kitchen room barn street"""

# %% [markdown]
# ## Verbs
#
# A row gives the cases of the objects, who can do it, the prepositions that may follow, and then verbs with what they can
# be done to. Animals *fressen*, people *essen*: one English verb, two German ones, and the subject decides. Verbs such as
# *put* and *read* are left out, since "they put" may be present or past and German would have to know which.

# %%
#| export
# cases of the objects|subjects|prepositions|English = German: objects; an irregular verb has its English past and
# participle, its German present, past and participle; "-" ends a separable prefix, "+" is a perfect with "sein"
_VERBS = """
acc|person animal|with|cross = überqueren: way, enter = betreten betritt betrat betreten: place,
  leave left left = verlassen verlässt verließ verlassen: place;
acc|person|in under with|eat ate eaten = essen isst aß gegessen: food;
acc|animal|in under|eat ate eaten = fressen frisst fraß gefressen: food;
acc|person animal|in under|drink drank drunk = trinken trinkt trank getrunken: drink;
acc|animal|in|chase = jagen: animal, bite bit bitten = beißen beißt biss gebissen: person animal;
acc|person animal||see saw seen = sehen sieht sah gesehen: person animal way place vehicle plant;
acc|person animal|in|find found found = finden findet fand gefunden: thing clothes food;
acc|person|in under behind|look_for = suchen: thing clothes animal;
acc|person|for|buy bought bought = kaufen: house clothes vehicle thing furniture food drink flower,
  open = auf-machen: opening box letter bag, tidy = auf-räumen: kitchen cellar room barn house;
acc|person||sell sold sold = verkaufen: house clothes vehicle thing furniture animal,
  close = zu-machen: opening box bag book,
  lock = ab-schließen schließt schloss geschlossen: door gate house barn cellar car,
  invite = ein-laden lädt lud geladen: person,
  bring_back brought brought = zurück-bringen bringt brachte gebracht: thing clothes animal;
acc|person|in for|repair = reparieren: vehicle furniture opening,
  draw drew drawn = zeichnen: animal plant house castle bridge boat,
  write wrote written = schreiben schreibt schrieb geschrieben: letter book;
acc|person|in|wash = waschen wäscht wusch gewaschen: clothes vehicle cup dog horse child,
  call = an-rufen ruft rief gerufen: person, pick_up = auf-heben hebt hob gehoben: thing hat coat apple nut,
  throw_away threw thrown = weg-werfen wirft warf geworfen: thing clothes food, try_on = an-probieren: clothes;
acc|person|into|carry = tragen trägt trug getragen: basket box bag chair table child book,
  pull = ziehen zieht zog gezogen: cart carriage boat;
dat|person|in|help = helfen hilft half geholfen: person animal, thank = danken: person;
dat|person animal|into|follow = folgen folgt folgte +gefolgt: person animal;
dat acc|person|in|give gave given = geben gibt gab gegeben: thing food flower dress,
  show showed shown = zeigen: thing animal house garden vehicle clothes;
|person animal|in under behind|sleep slept slept = schlafen schläft schlief geschlafen, wait = warten, play = spielen,
  fall_asleep fell fallen = ein-schlafen schläft schlief +geschlafen;
|person|in with|dance = tanzen;
|person animal|into|go went gone = gehen geht ging +gegangen, run ran run = laufen läuft lief +gelaufen;
|person animal|over|jump = springen springt sprang +gesprungen;
|person animal|with|swim swam swum = schwimmen schwimmt schwamm +geschwommen,
  run_away ran run = weg-laufen läuft lief +gelaufen, come_back came come = zurück-kommen kommt kam +gekommen;
that|person||say said said = sagen, know knew known = wissen weiß wusste gewusst, believe = glauben, hope = hoffen"""

# %% [markdown]
# ## Small words
#
# The declension is the heart of it. German marks gender, number and case on the article. The adjective carries what
# is left: little after *der, die, das*, more after *ein* and after a number.

# %%
#| export
# English, German, case: the nouns that may follow
_PREPOSITIONS = """
in in dat: garden cellar forest kitchen barn house room castle school;
into in acc: place;
over über acc: table chair box basket gate;
under unter dat: table tree bed;
behind hinter dat: house barn castle school tree;
with mit dat: person dog;
for für acc: person"""
NUMBERS = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben"}
MODALS = {"can": "kann können", "must": "muss müssen", "should": "sollte sollten", "want": "will wollen"}
PRONOUNS = {"he": "er", "she": "sie", "we": "wir", "they": "sie"}
# the articles, and the endings of an adjective after them: masculine, feminine, neuter, plural
DECLENSION = {
    "the": {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"},
    "a": {"nom": "ein eine ein", "acc": "einen eine ein", "dat": "einem einer einem"},
    "after the": {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"},
    "after a": {"nom": "er e es e", "acc": "en e es e", "dat": "en en en en"},
}

# %% [markdown]
# ## Reading the tables
#
# Two small classes hold what a row says. Names of classes and nouns are resolved to the nouns themselves.

# %%
#| export
@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A noun in both languages."""

    english: str
    plural: str  # empty where there is none, like that of "milk"
    gender: str  # "m", "f" or "n"
    german: str
    german_plural: str
    kind: str  # its class, "animal"


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb: its forms in both languages, and the nouns that make sense with it."""

    english: str  # "pick up"
    forms: tuple[str, ...]  # pick, picks, picked, picked
    german: tuple[str, ...]  # infinitive, present, past, participle, without the separable prefix
    prefix: str  # "auf" in "aufheben"
    cases: tuple[str, ...]  # of its objects
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]  # what its last object can be
    prepositions: tuple[str, ...]


# %%
#| export
def _rows(table: str) -> Iterator[list[str]]:
    """Read "head: rest; head: rest"."""
    return (re.split(r"\s*:\s*", row.strip(), maxsplit=1) for row in table.split(";"))


def _add_s(word: str) -> str:
    """Form an English plural, or the third person of a verb."""
    word = re.sub("(?<![aeou])y$", "ie", word)
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "o")) else "s")


def _read_noun(kind: str, name: str, gender: str, german: str, german_plural: str = "") -> Noun:
    english, _, plural = name.replace("_", " ").partition("/")
    return Noun(english, german_plural and (plural or _add_s(english)), gender, german, german_plural, kind)


NOUNS = tuple(_read_noun(kind, *entry.split()) for kind, entries in _rows(_NOUNS) for entry in entries.split(","))


def nouns_named(names: str) -> tuple[Noun, ...]:
    """Look up nouns by class or name; what holds for a noun holds for its compounds."""
    return tuple(noun for noun in NOUNS if {noun.kind, noun.english.split()[-1]} & set(names.split()))


ADJECTIVES = {english: (german, nouns_named(names)) for pairs, names in _rows(_ADJECTIVES)
              for english, german in map(str.split, pairs.split(","))}
PREPOSITIONS = {english: (german, case, nouns_named(names)) for head, names in _rows(_PREPOSITIONS)
                for english, german, case in [head.split()]}

# %% [markdown]
# Regular verbs are formed, the others are listed with their principal parts.

# %%
#| export
def _read_verb(cases: str, subjects: str, prepositions: str, entry: str) -> Verb:
    """Read a verb from the table and form what is regular in it."""
    names, _, objects = entry.partition(":")
    english, german = (side.split() for side in names.split("="))
    base, _, particle = english[0].partition("_")
    past = re.sub("(?<![aeou])y$", "i", base).removesuffix("e") + "ed"
    prefix, _, infinitive = german[0].rpartition("-")
    stem = infinitive.removesuffix("en")
    t = "et" if stem.endswith(("t", "chn")) else "t"  # wartet, zeichnet
    ge = "" if stem.startswith(("ver", "über")) or stem.endswith("ier") else "ge"  # verkauft, repariert
    return Verb(
        f"{base} {particle}".strip(),
        (base, _add_s(base), *(english[1:] or [past, past])),
        (infinitive, *(german[1:] or [stem + t, stem + t + "e", ge + stem + t])),
        prefix, tuple(cases.split()), nouns_named(subjects), nouns_named(objects), tuple(prepositions.split()),
    )


_ALL_VERBS = [_read_verb(cases, subjects, prepositions, entry) for row in _VERBS.split(";")
              for cases, subjects, prepositions, entries in [row.strip().split("|")] for entry in entries.split(",")]
VERBS = tuple(verb for verb in _ALL_VERBS if "that" not in verb.cases)
SAYING = tuple(verb for verb in _ALL_VERBS if "that" in verb.cases)
BE = Verb("be", ("be", "is", "was", "been"), ("sein", "ist", "war", "+gewesen"), "", (), NOUNS, (), ())

# %% [markdown]
# ## Phrases
#
# A `Phrase` is a piece of a sentence in both languages. Each German word carries the positions of the English words that
# it translates, so the alignment comes for free wherever the phrase is put.

# %%
#| export
# German words, each with the positions of the English words that it translates
Words = tuple[tuple[str, tuple[int, ...]], ...]


class Phrase(NamedTuple):
    """A piece of a sentence in both languages, and the phenomena that it shows."""

    english: tuple[str, ...]
    german: Words
    shows: frozenset[str] = frozenset()


def phenomena_that(**hold: object) -> frozenset[str]:
    """Name the phenomena that hold."""
    return frozenset(name for name, holds in hold.items() if holds)


@lru_cache(None)
def word_by_word(english: str, german: str) -> Phrase:
    """Translate word by word; a comma that English lacks stands first and translates nothing."""
    words = enumerate(german.split(), english.count(",") - german.count(","))
    return Phrase(tuple(english.split()), tuple((word, (i,) if i >= 0 else ()) for i, word in words))


# %%
#| export
def inflect(adjective: str, ending: str) -> str:
    """Add an ending to a German adjective: müde, müd-er; dunkel, dunkl-er; teuer, teur-er."""
    return re.sub("e$|e(?=l$)|(?<=[au])e(?=r$)", "", adjective) + ending


@lru_cache(None)
def noun_phrase(noun: Noun, determiner: str, plural: bool, case: str, adjective: str = "") -> Phrase:
    """Write "the old dog" and its German, with article, adjective and noun in agreement.

    Args:
        noun: The noun.
        determiner: "the", "a", a number, or "no": German *kein*, while English says "a" here and "not" at the verb.
        plural: Whether the noun is plural.
        case: "nom", "acc" or "dat".
        adjective: An English adjective, or none.

    Returns:
        The phrase. The one German word of a compound is linked to both English words.
    """
    like, column = "the" if determiner == "the" else "a", 3 if plural else "mfn".index(noun.gender)
    english = f"{adjective} {noun.plural if plural else noun.english}".split()
    article = "a" if determiner == "no" else determiner
    german = NUMBERS.get(determiner) or "k" * (determiner == "no") + DECLENSION[like][case].split()[column]
    words: list[tuple[str, tuple[int, ...]]] = [(german, (0,))]
    if adjective:
        words.append((inflect(ADJECTIVES[adjective][0], DECLENSION[f"after {like}"][case].split()[column]), (1,)))
    german = noun.german_plural if plural else noun.german
    german += "n" if plural and case == "dat" and german[-1] not in "ns" else ""
    words.append((german, tuple(range(len(words), len(english) + 1))))
    shows = phenomena_that(adjective=adjective, compound=" " in noun.english, number=determiner in NUMBERS,
                           kein=determiner == "no", dative=case == "dat")
    return Phrase((article + "n" * (article == "a" and english[0][0] in "aeiou"), *english), tuple(words), shows)


# %%
#| export
@lru_cache(None)
def prepositional(preposition: str, phrase: Phrase) -> Phrase:
    """Put a preposition before a noun phrase: in + dem = im, in + das = ins."""
    german = PREPOSITIONS[preposition][0]
    words = tuple((word, tuple(i + 1 for i in at)) for word, at in phrase.german)
    short = {"in dem": "im", "in das": "ins"}.get(f"{german} {words[0][0]}")
    words = ((short, (0, 1)), *words[1:]) if short else ((german, (0,)), *words)
    return Phrase((preposition, *phrase.english), words, phrase.shows)

# %% [markdown]
# ## Verbs in a clause
#
# English keeps its verb together. German splits it: the finite verb stands second, the rest last. In a subordinate clause
# everything stands at the end.

# %%
#| export
class VerbGroup(NamedTuple):
    """A conjugated verb: in German finite verb, *nicht* and rest, or all of the verb as the end of the clause."""

    english: tuple[str, ...]
    finite: Words
    nicht: Words
    rest: Words
    final: Words
    shows: frozenset[str]


def _conjugate(verb: Verb, mode: str, plural: bool, negated: bool) -> tuple[list[str], int, str, str]:
    """Return the English words, how many of them the German finite verb translates, that verb, and the rest."""
    base, third, past, participle = verb.forms
    infinitive, present, preterite, perfect = verb.german
    do, no = "did" if mode == "past" else "do" if plural else "does", ["not"] * negated
    if mode == "perfect":
        finite = ("ist sind" if perfect[0] == "+" else "hat haben").split()[plural]
        return ["have" if plural else "has", *no, participle], 1, finite, verb.prefix + perfect.lstrip("+")
    if mode in MODALS:
        finite, rest = MODALS[mode].split()[plural], verb.prefix + infinitive
        if mode == "want":
            english = [do, "not", "want"] if negated else ["want" if plural else "wants"]
            return [*english, "to", base], len(english), finite, rest
        return ["cannot", base] if negated and mode == "can" else [mode, *no, base], 1, finite, rest
    if verb is BE:
        be, sein = {"past": ("was were", "war waren"), "present": ("is are", "ist sind")}[mode]
        return [be.split()[plural], *no], 1, sein.split()[plural], ""
    finite, many = (present, infinitive) if mode == "present" else (preterite, preterite.removesuffix("e") + "en")
    simple = past if mode == "past" else base if plural else third
    return [do, "not", base] if negated else [simple], 3, many if plural else finite, verb.prefix


# %%
#| export
@lru_cache(None)
def verb_group(verb: Verb, mode: str, plural: bool, negated: bool) -> VerbGroup:
    """Conjugate a verb in the third person.

    Args:
        verb: The verb.
        mode: "past", "present", "perfect", or an English modal verb.
        plural: Whether the subject is plural.
        negated: Whether English says "not" with the verb.

    Returns:
        The group. "did" is linked to the finite verb, "to" to the infinitive, a separable prefix to verb and particle.
    """
    words, own, finite, rest = _conjugate(verb, mode, plural, negated)
    english = [*words, *verb.english.split()[1:]]
    at = [i for i, word in enumerate(english) if word != "not"]
    if mode in ("past", "present"):  # the rest is a prefix: machte ... auf, aufmachte
        first: Words = ((finite, tuple(at)),)
        last: Words = ((rest, tuple(i for i in at if english[i] not in ("do", "does", "did"))),) if rest else ()
        final: Words = ((rest + finite, tuple(at)),)
    else:
        first = ((finite, tuple(i for i in at if i < own)),)
        last = ((rest, tuple(i for i in at if i >= own)),)
        final = last + first
    nicht: Words = (("nicht", (english.index("cannot" if "cannot" in english else "not"),)),) if negated else ()
    return VerbGroup(tuple(english), first, nicht, last, final, phenomena_that(
        perfect=mode == "perfect", modal=mode in MODALS, separable=verb.prefix, negation=negated))

# %% [markdown]
# ## See it
#
# The words, by class. The letter is the gender.

# %%
for kind in dict.fromkeys(noun.kind for noun in NOUNS):
    members = [noun for noun in NOUNS if noun.kind == kind]
    listed = ", ".join(f"{noun.english} = {noun.german} ({noun.gender})" for noun in members)
    print(textwrap.fill(f"{kind}: {listed}", 110, subsequent_indent="    "))

# %% [markdown]
# Who does what to whom, with the principal parts. The last column counts the nouns that can be the object.

# %%
for verb in VERBS:
    infinitive, present, past, participle = verb.german
    parts = f"{verb.prefix}{infinitive}, {present}, {past}, {verb.prefix}{participle.lstrip('+')}"
    print(f"{verb.english:12} {parts:48} {' '.join(verb.cases) or '-':8} {len(verb.objects):3}")

# %% [markdown]
# What an adjective can describe:

# %%
for english, (german, nouns) in ADJECTIVES.items():
    some = ", ".join(noun.english for noun in nouns[:6])
    print(f"{english:10} {german:10} {len(nouns):3} nouns: {some}{', ...' if len(nouns) > 6 else ''}")

# %% [markdown]
# A phrase and its links: the compound is one German word for two English ones, *im* is one word for "in the".

# %%
def named(name):
    return next(noun for noun in NOUNS if noun.english == name)


for phrase in (
    noun_phrase(named("apple tree"), "the", False, "acc", "old"),
    prepositional("in", noun_phrase(named("garden"), "the", False, "dat", "small")),
    prepositional("with", noun_phrase(named("dog"), "three", True, "dat", "tired")),
):
    print(" ".join(phrase.english), "=", " ".join(f"{word}{list(sources)}" for word, sources in phrase.german))

# %% [markdown]
# And verbs. The dots are where the rest of the sentence stands.

# %%
for name, mode in (("open", "past"), ("open", "perfect"), ("swim", "perfect"), ("look for", "can"), ("help", "want")):
    group = verb_group(next(verb for verb in VERBS if verb.english == name), mode, False, True)
    pieces = [" ".join(word for word, _ in part) for part in (group.finite, group.nicht, group.rest, group.final)]
    main, subordinate = f"... {pieces[0]} ... {pieces[1]} {pieces[2]}", f"... {pieces[1]} {pieces[3]}"
    print(f"{' '.join(group.english):22} main: {main:32} subordinate: {subordinate}")

# %% [markdown]
# ## Check it: the grammar of a school book
#
# The expected forms stand here, typed by hand, beside what the rules make of the tables.

# %%
def write(name, determiner, plural, case, adjective):
    return " ".join(word for word, _ in noun_phrase(named(name), determiner, plural, case, adjective).german)


school_book = {
    ("dog", "the", False, "nom", "old"): "der alte Hund",
    ("dog", "a", False, "nom", "old"): "ein alter Hund",
    ("dog", "a", False, "acc", "old"): "einen alten Hund",
    ("dog", "the", True, "dat", "old"): "den alten Hunden",
    ("street", "a", False, "dat", "wide"): "einer breiten Straße",
    ("castle", "a", False, "nom", "expensive"): "ein teures Schloss",
    ("cellar", "the", False, "acc", "dark"): "den dunklen Keller",
    ("milk", "the", False, "acc", "sour"): "die saure Milch",
    ("child", "three", True, "nom", "tired"): "drei müde Kinder",
    ("girl", "no", False, "acc", "sad"): "kein trauriges Mädchen",
}
for (name, determiner, plural, case, adjective), expected in school_book.items():
    made = write(name, determiner, plural, case, adjective)
    assert made == expected, (made, expected)
    print(f"{case}  {made}")

# %% [markdown]
# No form is ambiguous: every English noun form belongs to one noun and one number, and a verb's past is never its present.

# %%
forms = [form for noun in NOUNS for form in (noun.english, noun.plural) if form]
assert len(forms) == len(set(forms))
assert all(len(set(verb.forms[:3])) == 3 for verb in (*VERBS, *SAYING))
genders = Counter(noun.gender for noun in NOUNS)
print(f"{len(NOUNS)} nouns ({', '.join(f'{count} {gender}' for gender, count in genders.items())}),", end=" ")
print(f"{len(VERBS) + len(SAYING)} verbs, {len(ADJECTIVES)} adjectives, {len(forms)} noun forms, none twice")

# %% [markdown]
# ## What if the gender were another?

# %%
shown = ("dog", "street", "house", "cellar", "cat", "castle", "apple tree", "kitchen door", "garden table")
kinds = {"the": ("the", False), "a": ("a", False), "not ... a": ("no", False), "the, plural": ("the", True), "three": ("three", True)}
rows = [
    {"noun": name, "case": case, "determiner": label, "german": write(name, determiner, plural, case, "old")}
    for name in shown
    for case in ("nom", "acc", "dat")
    for label, (determiner, plural) in kinds.items()
]
picked = alt.param("noun", value="dog", bind=alt.binding_select(options=list(shown), name="noun "))
chart = (
    alt.Chart(alt.Data(values=rows))
    .mark_text(fontSize=12)
    .encode(
        x=alt.X("case:N", sort=["nom", "acc", "dat"], title=None, axis=alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False)),
        y=alt.Y("determiner:N", sort=list(kinds), title=None, axis=alt.Axis(domain=False, ticks=False)),
        text="german:N",
        tooltip=["noun:N", "case:N", "determiner:N", "german:N"],
    )
    .transform_filter("datum.noun == noun")
    .add_params(picked)
    .properties(width=480, height=170, title="The article shows gender and case; the adjective shows what the article hides")
)
chart

# %% [markdown]
# Choose a noun. In the singular a masculine noun changes in every column; a feminine or neuter one, and every
# plural, only in the dative. In the row *the* the
# adjective has two endings at most. In the row *a* it must say more: *ein alter Hund*, but *ein altes Haus*.
#
# ## What we now know
#
# - Every noun has a class, and the classes decide which words may meet.
# - The German of a phrase follows from the English phrase and its case. Nothing hidden enters.
# - A phrase carries its own alignment, so a sentence put together from phrases has one too.
# - Regular verbs are formed, irregular ones listed. German splits what English keeps together.
#
# ## Exercises
#
# 1. **Predict, then run.** Which German nouns look the same in the singular and in the plural? What shows the number then?
# 2. **Minutes.** Why does `noun_phrase` need no genitive? Find a sentence pattern that would.
# 3. **Minutes.** The article *die* is feminine or plural, nominative or accusative. Count, over all nouns, how often the German
#    phrase alone tells its case.
# 4. **An hour.** Add *the bear* (*der Bär, den Bären*) to the table. Which function has to change, and what must it know?

# %% tags=["hide-cell"]
# Exercise 1: the article or numeral, the adjective and the verb show the number; in the dative plural most of the nouns, too.
same = [noun for noun in NOUNS if noun.german == noun.german_plural]
print(", ".join(noun.german for noun in same))
assert named("key") in same and named("dog") not in same

# %% [markdown]
# ## The notebook and the module agree
#
# `transformer.noun_phrase` is the function above, exported. It has read the same tables.

# %%
theirs = next(noun for noun in transformer.NOUNS if noun.english == "cherry tree")
ours = named("cherry tree")
assert transformer.noun_phrase(theirs, "a", False, "dat", "small") == noun_phrase(ours, "a", False, "dat", "small")
assert [verb.forms for verb in transformer.VERBS] == [verb.forms for verb in VERBS]
print("the same words, the same phrases")
