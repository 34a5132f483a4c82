# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Corpus
#
# This chapter makes sentence pairs to learn from: any number of German-English ones from a small grammar of our own, and
# 29,000 real captions from Multi30k (section 5.1 of the paper).
#
# The paper trains on 4.5 million sentence pairs for half a day on eight GPUs. We want to see a model learn within a minute
# on a laptop, and without a network. So the first corpus is one that we can write down: a grammar that says a thing in German and in English at once. It
# knows which German word became which English one, so we can later ask whether attention looks at the right word.

# %% tags=["export"]
import gzip
import hashlib
import http.client
import os
import re
import urllib.request
from pathlib import Path
from random import Random
from typing import NamedTuple

from platformdirs import user_cache_dir
from tqdm import tqdm

# %%
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

from annotated_transformer.figures import INK, style

# %% [markdown]
# ## A pair of sentences
#
# A **sentence pair** is a source sentence, its translation, and, where we know it, the **alignment**: the set of
# (source word, target word) positions that mean the same. A comma counts as a word of its own.


# %% tags=["export"]
class Pair(NamedTuple):
    """A source sentence, its translation and, if known, the pairs of word positions that
    translate each other.

    Positions count the words of `words(source)` and `words(target)` from 0.
    """

    source: str
    target: str
    alignment: frozenset[tuple[int, int]] | None = None


def words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in order."""
    return re.findall(r"\w+|[^\w\s]", text)


# %%
words("Der Hund, der schläft, ist müde.")

# %% [markdown]
# ## Two languages, one meaning
#
# Why not a list of templates? Because German and English put the same words in different places:
#
# | | |
# |---|---|
# | Heute **ruft** der Mann die Frau **an**. | Today the man **calls** the woman. |
# | ..., weil der Mann die Frau **anruft**. | ... because the man **calls** the woman. |
# | **Den Hund** sieht die Katze. | The cat sees **the dog**. |
#
# A verb splits in two, or waits for the end of its clause. Who sees whom is told by the case of an article, not by the
# order of the words. So we draw *what is said* first, and then let each language put it in order. Such a pair of grammars that grow the same meaning
# is a **synchronous grammar**.
#
# Each word carries **links**: marks that it shares with its translation. However the words move, the links move
# with them, and the alignment is read off at the end.


# %% tags=["export", "internal"]
class Word(NamedTuple):
    """A word of one language; it is aligned with each word of the other that shares a link."""

    text: str
    links: frozenset[object] = frozenset()


class Phrase(NamedTuple):
    """The same meaning in both languages."""

    german: list[Word]
    english: list[Word]


def linked(german: str, english: str) -> Phrase:
    """A phrase from text; `|` cuts both sides into parts that translate each other, as in
    `am|Abend`, `in the|evening`.
    """
    phrase = Phrase([], [])
    for german_part, english_part in zip(german.split("|"), english.split("|"), strict=True):
        link = frozenset([object()])
        phrase.german.extend(Word(text, link) for text in german_part.split())
        phrase.english.extend(Word(text, link) for text in english_part.split())
    return phrase


def fuse(parts: list[Word], text: str) -> Word:
    """One word that stands for several and keeps their links: `in` and `dem` become `im`."""
    return Word(text, frozenset().union(*(part.links for part in parts)))


# %%
german, english = linked("am|Abend", "in the|evening")
print([[f"{g.text}-{e.text}" for e in english if g.links & e.links] for g in german])

# %% [markdown]
# ## The dictionary
#
# A German noun has a gender that the English one has not, and a verb may have a part that comes off: *an-rufen*, to
# call, gives *ruft ... an*. Each verb lists the case of its objects and what they can be.


# %% tags=["export", "internal"]
class Noun(NamedTuple):
    """A noun with its gender (m, f, n) and what it names (person, animal, thing)."""

    singular: str
    plural: str
    gender: str
    english: str
    english_plural: str
    kind: str


NOUNS = (
    Noun("Mann", "Männer", "m", "man", "men", "person"),
    Noun("Frau", "Frauen", "f", "woman", "women", "person"),
    Noun("Kind", "Kinder", "n", "child", "children", "person"),
    Noun("Lehrer", "Lehrer", "m", "teacher", "teachers", "person"),
    Noun("Ärztin", "Ärztinnen", "f", "doctor", "doctors", "person"),
    Noun("Gast", "Gäste", "m", "guest", "guests", "person"),
    Noun("Königin", "Königinnen", "f", "queen", "queens", "person"),
    Noun("Hund", "Hunde", "m", "dog", "dogs", "animal"),
    Noun("Katze", "Katzen", "f", "cat", "cats", "animal"),
    Noun("Pferd", "Pferde", "n", "horse", "horses", "animal"),
    Noun("Vogel", "Vögel", "m", "bird", "birds", "animal"),
    Noun("Maus", "Mäuse", "f", "mouse", "mice", "animal"),
    Noun("Buch", "Bücher", "n", "book", "books", "thing"),
    Noun("Brief", "Briefe", "m", "letter", "letters", "thing"),
    Noun("Lampe", "Lampen", "f", "lamp", "lamps", "thing"),
    Noun("Apfel", "Äpfel", "m", "apple", "apples", "thing"),
    Noun("Bild", "Bilder", "n", "picture", "pictures", "thing"),
    Noun("Tasche", "Taschen", "f", "bag", "bags", "thing"),
    Noun("Schlüssel", "Schlüssel", "m", "key", "keys", "thing"),
)


# %% tags=["export", "internal"]
class Verb(NamedTuple):
    """A verb: its German forms, its English ones, and the kinds of its subject and of its
    objects by case.
    """

    infinitive: str
    third: str
    participle: str
    english: str
    english_third: str
    english_past: str
    subject: str
    objects: tuple[tuple[str, str], ...] = ()
    particle: str = ""
    auxiliary: str = "haben"


ANYTHING, LIVING = "person animal thing", "person animal"
SEEN, THING, PERSON = (("acc", ANYTHING),), (("acc", "thing"),), (("acc", "person"),)
BEAST, WHOM, GIVEN = (("acc", "animal"),), (("dat", LIVING),), (("dat", "person"), ("acc", "thing"))

VERBS = (
    Verb("sehen", "sieht", "gesehen", "see", "sees", "saw", LIVING, SEEN),
    Verb("suchen", "sucht", "gesucht", "look for", "looks for", "looked for", LIVING, SEEN),
    Verb("finden", "findet", "gefunden", "find", "finds", "found", LIVING, SEEN),
    Verb("malen", "malt", "gemalt", "paint", "paints", "painted", "person", SEEN),
    Verb("kaufen", "kauft", "gekauft", "buy", "buys", "bought", "person", THING),
    Verb("tragen", "trägt", "getragen", "carry", "carries", "carried", "person", THING),
    Verb("jagen", "jagt", "gejagt", "chase", "chases", "chased", "animal", BEAST),
    Verb("rufen", "ruft", "angerufen", "call", "calls", "called", "person", PERSON, "an"),
    Verb("laden", "lädt", "eingeladen", "invite", "invites", "invited", "person", PERSON, "ein"),
    Verb("holen", "holt", "abgeholt", "fetch", "fetches", "fetched", "person", SEEN, "ab"),
    Verb("heben", "hebt", "aufgehoben", "pick up", "picks up", "picked up", "person", THING, "auf"),
    Verb("helfen", "hilft", "geholfen", "help", "helps", "helped", "person", WHOM),
    Verb("danken", "dankt", "gedankt", "thank", "thanks", "thanked", "person", WHOM),
    Verb("folgen", "folgt", "gefolgt", "follow", "follows", "followed", LIVING, WHOM, "", "sein"),
    Verb("hören", "hört", "zugehört", "listen to", "listens to", "listened to", LIVING, WHOM, "zu"),
    Verb("geben", "gibt", "gegeben", "give", "gives", "gave", "person", GIVEN),
    Verb("zeigen", "zeigt", "gezeigt", "show", "shows", "showed", "person", GIVEN),
    Verb("schicken", "schickt", "geschickt", "send", "sends", "sent", "person", GIVEN),
    Verb("schlafen", "schläft", "geschlafen", "sleep", "sleeps", "slept", LIVING),
    Verb("lachen", "lacht", "gelacht", "laugh", "laughs", "laughed", "person"),
    Verb("warten", "wartet", "gewartet", "wait", "waits", "waited", LIVING),
    Verb(
        "stehen", "steht", "aufgestanden", "get up", "gets up", "got up", LIVING, (), "auf", "sein"
    ),
    Verb("kommen", "kommt", "angekommen", "arrive", "arrives", "arrived", LIVING, (), "an", "sein"),
)

# %% [markdown]
# The smaller words: modal verbs, times that suit the present or the past, places, adjectives.


# %% tags=["export", "internal"]
class Modal(NamedTuple):
    """A modal verb: the forms for `ich`, `er` and `wir`; in English the base and the third
    person, where they differ.
    """

    german: tuple[str, str, str]
    english: str
    english_third: str = ""


MODALS = (
    Modal(("kann", "kann", "können"), "can"),
    Modal(("soll", "soll", "sollen"), "should"),
    Modal(("muss", "muss", "müssen"), "have to", "has to"),
    Modal(("will", "will", "wollen"), "want to", "wants to"),
)
AUXILIARIES = {"haben": ("habe", "hat", "haben"), "sein": ("bin", "ist", "sind")}
TIMES = {
    "present": (("heute", "today"), ("jeden|Tag", "every|day"), ("am|Abend", "in the|evening")),
    "past": (
        ("gestern", "yesterday"),
        ("letzte|Woche", "last|week"),
        ("am|Morgen", "in the|morning"),
    ),
}
PLACES = (
    ("in", "Garten", "m", "in", "garden"),
    ("in", "Küche", "f", "in", "kitchen"),
    ("auf", "Markt", "m", "at", "market"),
    ("hinter", "Haus", "n", "behind", "house"),
    ("vor", "Schule", "f", "in front of", "school"),
    ("an", "Fluss", "m", "at", "river"),
)
SIZES = (("klein", "small"), ("groß", "big"), ("alt", "old"))
ADJECTIVES = {
    "person": (*SIZES, ("jung", "young"), ("freundlich", "friendly"), ("klug", "clever")),
    "animal": (*SIZES, ("jung", "young"), ("schwarz", "black"), ("hungrig", "hungry")),
    "thing": (*SIZES, ("neu", "new"), ("schwarz", "black"), ("schön", "beautiful")),
    "place": (*SIZES, ("neu", "new"), ("schön", "beautiful")),
}
STATES = {
    "living": (("müde", "tired"), ("krank", "sick"), ("glücklich", "happy")),
    "thing": (("billig", "cheap"), ("schwer", "heavy"), ("kaputt", "broken")),
}

# %% [markdown]
# ## Case and gender
#
# German shows case, gender and number by an ending, and it shows it once. If the determiner has the ending, the adjective
# gets a weak one: *d**er** alte Hund*. If the determiner has none, the adjective must show it: *ein alt**er** Hund*. That one
# rule replaces the three tables of a school book.

# %% tags=["export", "internal"]
STRONG = {
    "nom": {"m": "er", "f": "e", "n": "es", "plural": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "plural": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "plural": "en"},
}


def definite(case: str, gender: str) -> str:
    """The article `der` in a case, for a gender or the plural."""
    ending = STRONG[case][gender]
    return {"e": "die", "es": "das"}.get(ending, "d" + ending)


def decline(stem: str, case: str, gender: str) -> tuple[str, str]:
    """A determiner in its case, and the ending of an adjective that follows it."""
    strong = STRONG[case][gender]
    shown_by_article = case == "nom" or (case == "acc" and gender in ("f", "n"))
    weak = "e" if shown_by_article and gender != "plural" else "en"
    if stem == "der":
        return definite(case, gender), weak
    bare = (case, gender) in {("nom", "m"), ("nom", "n"), ("acc", "n")}
    if stem == "zwei" or (stem in ("ein", "kein") and bare):
        return stem, strong
    return stem + strong, weak


# %% [markdown]
# We check the rule against phrases from a school book.


# %%
def phrase(stem: str, adjective: str, noun: str, case: str, gender: str) -> str:
    determiner, ending = decline(stem, case, gender)
    return f"{determiner} {adjective}{ending} {noun}"


assert phrase("der", "alt", "Hund", "nom", "m") == "der alte Hund"
assert phrase("ein", "alt", "Hund", "nom", "m") == "ein alter Hund"
assert phrase("ein", "alt", "Hund", "acc", "m") == "einen alten Hund"
assert phrase("dies", "klein", "Kind", "dat", "n") == "diesem kleinen Kind"
assert phrase("kein", "klein", "Kind", "acc", "n") == "kein kleines Kind"
assert phrase("zwei", "neu", "Bücher", "acc", "plural") == "zwei neue Bücher"
assert phrase("der", "neu", "Bücher", "acc", "plural") == "die neuen Bücher"
print(phrase("ein", "jung", "Frau", "dat", "f"))

# %% [markdown]
# ## Noun phrases
#
# A noun phrase is drawn with its case. It remembers what the rest of the sentence must agree with.

# %% tags=["export", "internal"]
FIRST, THIRD, PLURAL = 0, 1, 2


class NounPhrase(NamedTuple):
    """A noun phrase in both languages and what agrees with it; `gender` is m, f, n or plural."""

    german: list[Word]
    english: list[Word]
    agreement: int
    gender: str
    kind: str
    definite: bool = True
    pronoun: bool = False


SINGULAR_DETERMINERS = (
    ("der", "the"),
    ("der", "the"),
    ("dies", "this"),
    ("ein", "a"),
    ("ein", "a"),
)
PLURAL_DETERMINERS = (("der", "the"), ("dies", "these"), ("zwei", "two"))
PRONOUNS = {
    "nom": (
        ("ich", "I", FIRST),
        ("er", "he", THIRD),
        ("sie", "she", THIRD),
        ("wir", "we", PLURAL),
        ("sie", "they", PLURAL),
    ),
    "acc": (("ihn", "him", THIRD), ("sie", "her", THIRD)),
    "dat": (("ihm", "him", THIRD), ("ihr", "her", THIRD), ("ihnen", "them", PLURAL)),
}


def draw_pronoun(rng: Random, case: str) -> NounPhrase:
    """A pronoun for a person."""
    german, english, agreement = rng.choice(PRONOUNS[case])
    return NounPhrase(*linked(german, english), agreement, "", "person", pronoun=True)


def draw_noun_phrase(rng: Random, case: str, kinds: str) -> NounPhrase:
    """A determiner, perhaps an adjective, and a noun of one of the kinds."""
    noun = rng.choice([noun for noun in NOUNS if noun.kind in kinds.split()])
    plural = rng.random() < 0.25
    gender = "plural" if plural else noun.gender
    stem, english = rng.choice(PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
    if case == "acc" and rng.random() < 0.1:
        stem, english = "kein", "no"
    german, ending = decline(stem, case, gender)
    if rng.random() < 0.35:
        adjective, english_adjective = rng.choice(ADJECTIVES[noun.kind])
        german, english = f"{german}|{adjective}{ending}", f"{english}|{english_adjective}"
    name = noun.plural if plural else noun.singular
    if plural and case == "dat" and not name.endswith("n"):
        name += "n"
    both = linked(
        f"{german}|{name}", f"{english}|{noun.english_plural if plural else noun.english}"
    )
    return NounPhrase(
        *both, PLURAL if plural else THIRD, gender, noun.kind, stem in ("der", "dies")
    )


def draw_place(rng: Random) -> Phrase:
    """A place: a preposition that takes the dative, which may fuse with its article: `im
    Garten`.
    """
    preposition, noun, gender, english, english_noun = rng.choice(PLACES)
    article, ending = decline("der", "dat", gender)
    adjective, english_adjective = rng.choice(ADJECTIVES["place"])
    parts = linked(f"{preposition}|{article}|{noun}", f"{english}|the|{english_noun}")
    if rng.random() < 0.25:
        extra = linked(adjective + ending, english_adjective)
        parts.german[2:2], parts.english[-1:-1] = extra.german, extra.english
    if article == "dem" and preposition in ("in", "an"):
        parts.german[:2] = [fuse(parts.german[:2], preposition[0] + "m")]
    return parts


# %%
for case in ("nom", "acc", "dat"):
    drawn = draw_noun_phrase(Random(31), case, "person")
    print(case, *(word.text for word in drawn.german), "|", *(word.text for word in drawn.english))

# %% [markdown]
# ## Verbs
#
# German clauses are built around a **bracket**. In a main clause the finite verb comes second and opens it; all other
# parts of the verb close it at the end. In a subordinate clause everything stands at the end. English has its
# own oddity: a question or a *not* needs *do*, unless there is an auxiliary.
#
# The German perfect (*hat gesehen*) is the English past (*saw*), so two words link to one.


# %% tags=["export", "internal"]
class Predicate(NamedTuple):
    """The verbs of a clause: German finite verb and closing words; English auxiliary (may be
    empty) and main verb.
    """

    finite: Word
    closing: list[Word]
    separable: bool
    auxiliary: list[Word]
    main: list[Word]


def conjugate(verb: Verb, agreement: int) -> str:
    """The present tense of a verb, without its particle."""
    return (verb.infinitive[:-1], verb.third, verb.infinitive)[agreement]


def present(verb: Verb, agreement: int, support: bool) -> Predicate:
    """The present tense: `ruft ... an`, `calls` or, with support, `does ... call`."""
    third = agreement == THIRD
    main = verb.english if support or not third else verb.english_third
    (finite, *particle), english = linked(f"{conjugate(verb, agreement)} {verb.particle}", main)
    auxiliary = [Word("does" if third else "do", finite.links)] if support else []
    return Predicate(finite, particle, bool(particle), auxiliary, english)


def perfect(verb: Verb, agreement: int, support: bool) -> Predicate:
    """The past: `hat ... angerufen`, `called` or, with support, `did ... call`."""
    (finite,), did = linked(AUXILIARIES[verb.auxiliary][agreement], "did")
    closing, english = linked(verb.participle, verb.english if support else verb.english_past)
    if support:
        return Predicate(finite, closing, False, did, english)
    return Predicate(
        finite, closing, False, [], [fuse([finite, word], word.text) for word in english]
    )


def modal(verb: Verb, agreement: int, support: bool, helper: Modal) -> Predicate:
    """A modal verb and an infinitive: `muss ... anrufen`, `has to call` or, with support, `does
    ... have to call`.
    """
    third = agreement == THIRD and helper.english_third
    form = helper.english_third if third and not support else helper.english
    (finite,), english = linked(helper.german[agreement], form)
    closing, main = linked(verb.particle + verb.infinitive, verb.english)
    if not helper.english_third:
        return Predicate(finite, closing, False, english, main)
    auxiliary = [Word("does" if third else "do", finite.links)] if support else []
    return Predicate(finite, closing, False, auxiliary, english + main)


# %% [markdown]
# ## A clause in two orders
#
# Here is the meaning of a clause, and the two functions that put it in order. Read them side by side: this is all
# that a translation model will have to find out.


# %% tags=["export", "internal"]
class Clause(NamedTuple):
    """What a clause says.

    `front` is the part that German puts first; English does the same where `fronted`. `tail`
    follows the closing verb.
    """

    subject: NounPhrase
    predicate: Predicate
    tense: str
    objects: list[NounPhrase]
    time: Phrase
    place: Phrase
    negation: Phrase
    front: Phrase | NounPhrase
    fronted: bool
    tail: Phrase


def german_clause(clause: Clause, verb_last: bool = False) -> list[Word]:
    """Front, finite verb, everything else, closing verb; in a subordinate clause both verbs are
    last.
    """
    pronouns = [phrase for phrase in clause.objects if phrase.pronoun]
    nouns = [phrase for phrase in clause.objects if not phrase.pronoun]
    field: list[Phrase | NounPhrase] = [
        clause.subject,
        *pronouns,
        clause.time,
        *nouns,
        clause.negation,
        clause.place,
    ]
    middle = [word for phrase in field if phrase is not clause.front for word in phrase.german]
    finite, closing, separable = clause.predicate[:3]
    if not verb_last:
        return [*clause.front.german, finite, *middle, *closing, *clause.tail.german]
    end = [fuse([finite], closing[0].text + finite.text)] if separable else [*closing, finite]
    return [*clause.front.german, *middle, *end, *clause.tail.german]


def english_clause(clause: Clause, question: bool = False) -> list[Word]:
    """Subject, verb, objects, place, time, whatever the German order was; in a question the
    auxiliary comes first.
    """
    early = clause.front if clause.fronted else None
    field: list[Phrase | NounPhrase] = [*clause.objects, clause.place, clause.time]
    rest = [word for phrase in field if phrase is not early for word in phrase.english]
    auxiliary, main = clause.predicate.auxiliary, clause.predicate.main
    start = (
        [*auxiliary, *clause.subject.english] if question else [*clause.subject.english, *auxiliary]
    )
    front = early.english if early else []
    return [*front, *start, *clause.negation.english, *main, *rest, *clause.tail.english]


# %% [markdown]
# ## Drawing a clause
#
# A verb is drawn, then what it needs. A relative pronoun takes its gender from the noun it describes and its case from
# its own clause: *der Hund, **den** die Katze sieht*.


# %% tags=["export", "internal"]
def nothing() -> Phrase:
    """A phrase without words."""
    return Phrase([], [])


def draw_argument(rng: Random, case: str, kinds: str) -> NounPhrase:
    """A pronoun or a noun phrase of one of the kinds."""
    if "person" in kinds and rng.random() < 0.2:
        return draw_pronoun(rng, case)
    return draw_noun_phrase(rng, case, kinds)


def draw_predicate(
    rng: Random, verb: Verb, agreement: int, tense: str, question: bool, negated: bool
) -> Predicate:
    """A verb in the past, in the present, or in the present below a modal verb."""
    if tense == "past":
        return perfect(verb, agreement, question or negated)
    if not negated and rng.random() < 0.4:
        return modal(verb, agreement, question, rng.choice(MODALS))
    return present(verb, agreement, question or negated)


def draw_clause(
    rng: Random,
    verb: Verb,
    tense: str = "",
    question: bool = False,
    opening: dict[str, NounPhrase] | None = None,
) -> Clause:
    """A clause around a verb; `opening` gives, by its case, the phrase that opens a subordinate
    one.
    """
    given = opening or {}
    tense = tense or rng.choice(("past", "present"))
    subject = given.get("nom") or draw_argument(rng, "nom", verb.subject)
    objects = [given.get(case) or draw_argument(rng, case, kinds) for case, kinds in verb.objects]
    negated = all(phrase.definite for phrase in (subject, *objects)) and rng.random() < 0.25
    predicate = draw_predicate(rng, verb, subject.agreement, tense, question, negated)
    time = linked(*rng.choice(TIMES[tense])) if rng.random() < 0.3 else nothing()
    place = draw_place(rng) if not negated and rng.random() < 0.2 else nothing()
    negation = linked("nicht", "not") if negated else nothing()
    front, fronted = next(iter(given.values()), nothing()), bool(given) and "nom" not in given
    return Clause(
        subject, predicate, tense, objects, time, place, negation, front, fronted, nothing()
    )


def relative_clause(rng: Random, noun: NounPhrase) -> Phrase:
    """`, den die Katze sieht`: a relative clause that describes a noun as its subject or as its
    last object.
    """
    roles = [(verb, role) for verb in VERBS for role in (("nom", verb.subject), *verb.objects[-1:])]
    verb, (case, _) = rng.choice(
        [(verb, role) for verb, role in roles if noun.kind in role[1].split()]
    )
    german = "denen" if (case, noun.gender) == ("dat", "plural") else definite(case, noun.gender)
    english = "who" if (case, noun.kind) == ("nom", "person") else "that"
    pronoun = NounPhrase(*linked(german, english), noun.agreement, noun.gender, "relative")
    clause = draw_clause(rng, verb, opening={case: pronoun})
    return Phrase([Word(","), *german_clause(clause, verb_last=True)], english_clause(clause))


# %% [markdown]
# ## Statements and questions
#
# German may put the time or an object first. We do so with an object only where its article shows the case.


# %% tags=["export", "internal"]
def join(*phrases: Phrase) -> Phrase:
    """Phrases one after the other, in both languages."""
    german = [word for phrase in phrases for word in phrase.german]
    return Phrase(german, [word for phrase in phrases for word in phrase.english])


def draw_main_clause(rng: Random) -> Clause:
    """A main clause that opens with its subject, its time or an object."""
    clause = draw_clause(rng, rng.choice(VERBS))
    clause = clause._replace(front=clause.subject)
    masculine = [phrase for phrase in clause.objects if phrase.gender == "m"]
    if clause.time.german and rng.random() < 0.6:
        return clause._replace(front=clause.time, fronted=True)
    return clause._replace(front=masculine[0]) if masculine and rng.random() < 0.25 else clause


def statement(rng: Random) -> Phrase:
    """A main clause; a relative clause may describe its last object from behind the closing
    verb.
    """
    clause = draw_main_clause(rng)
    waiting = [
        phrase
        for phrase in clause.objects[-1:]
        if not phrase.pronoun and phrase is not clause.front
    ]
    late = clause.place.german or (clause.time.german and not clause.fronted)
    if waiting and not late and rng.random() < 0.25:
        clause = clause._replace(tail=relative_clause(rng, waiting[0]))
    return join(Phrase(german_clause(clause), english_clause(clause)), linked(".", "."))


def description(rng: Random) -> Phrase:
    """`Der Hund, der schläft, ...`: a main clause that opens with a noun and a relative clause."""
    verb = rng.choice(VERBS)
    noun = draw_noun_phrase(rng, "nom", verb.subject)
    both = join(Phrase(*noun[:2]), relative_clause(rng, noun), Phrase([Word(",")], []))
    subject = noun._replace(german=both.german, english=both.english)
    clause = draw_clause(rng, verb, opening={"nom": subject})
    return join(Phrase(german_clause(clause), english_clause(clause)), linked(".", "."))


def question(rng: Random) -> Phrase:
    """A question: the finite verb comes first, and English needs an auxiliary."""
    clause = draw_clause(rng, rng.choice(VERBS), question=True)
    return join(
        Phrase(german_clause(clause), english_clause(clause, question=True)), linked("?", "?")
    )


# %% [markdown]
# ## Subordinate clauses
#
# Their verbs go to the end. The most interesting ones have a pronoun: *Die Frau sucht den Schlüssel, weil **er** schwer
# ist.* To choose between *he* and *it* a model must find the noun that *er* stands for.

# %% tags=["export", "internal"]
CONJUNCTIONS = (("weil", "because"), ("obwohl", "although"), ("während", "while"))
REPORTS = (
    Verb("sagen", "sagt", "gesagt", "say", "says", "said", "person"),
    Verb("glauben", "glaubt", "geglaubt", "believe", "believes", "believed", "person"),
    Verb("hoffen", "hofft", "gehofft", "hope", "hopes", "hoped", "person"),
)
ATTEMPTS = (
    Verb("versuchen", "versucht", "versucht", "try", "tries", "tried", "person"),
    Verb("vergessen", "vergisst", "vergessen", "forget", "forgets", "forgot", "person"),
)
TO_BE = {"present": (("ist", "is"), ("sind", "are")), "past": (("war", "was"), ("waren", "were"))}
REFERRING = {"m": ("er", "he"), "f": ("sie", "she"), "n": ("es", "it"), "plural": ("sie", "they")}


def subordinate(rng: Random, tense: str, german: str, english: str) -> Phrase:
    """`, weil` and a clause in the same tense, with its verb at the end."""
    verb = rng.choice(VERBS)
    subject = draw_noun_phrase(rng, "nom", verb.subject)
    clause = draw_clause(rng, verb, tense, opening={"nom": subject})
    inside = Phrase(german_clause(clause, verb_last=True), english_clause(clause))
    return join(Phrase([Word(",")], []), linked(german, english), inside)


def state(rng: Random, clause: Clause) -> Phrase:
    """`, weil er müde ist`, said of the only noun of its gender; nothing where no noun is the
    only one.
    """
    nouns = [clause.subject, *clause.objects]
    genders = [phrase.gender for phrase in nouns]
    clear = [noun for noun in nouns if noun.definite and genders.count(noun.gender) == 1]
    if not clear or any(noun.pronoun for noun in nouns):
        return nothing()
    noun = rng.choice(clear)
    pronoun, english = REFERRING[noun.gender]
    if noun.gender in ("m", "f") and noun.kind != "person":
        english = "it"
    many = noun.agreement == PLURAL
    to_be = TO_BE[clause.tense][many]
    condition = rng.choice(STATES["thing" if noun.kind == "thing" else "living"])
    why, who, verb, what = (
        linked(*CONJUNCTIONS[0]),
        linked(pronoun, english),
        linked(*to_be),
        linked(*condition),
    )
    german = [Word(","), *why.german, *who.german, *what.german, *verb.german]
    return Phrase(german, join(why, who, verb, what).english)


# %% tags=["export", "internal"]
def with_tail(clause: Clause, tail: Phrase) -> Phrase:
    """A statement that ends in a subordinate clause."""
    clause = clause._replace(tail=tail)
    return join(Phrase(german_clause(clause), english_clause(clause)), linked(".", "."))


def reason(rng: Random) -> Phrase:
    """`..., weil die Frau schläft.`"""
    clause = draw_main_clause(rng)
    return with_tail(clause, subordinate(rng, clause.tense, *rng.choice(CONJUNCTIONS)))


def condition(rng: Random) -> Phrase:
    """`..., weil er müde ist.`"""
    clause = draw_main_clause(rng)
    return with_tail(clause, state(rng, clause))


def early_reason(rng: Random) -> Phrase:
    """`Weil die Frau schläft, lacht der Mann.`: the whole clause takes the first place, so the
    verb comes next.
    """
    clause = draw_clause(rng, rng.choice(VERBS))
    first, comma = subordinate(rng, clause.tense, *rng.choice(CONJUNCTIONS)), linked(",", ",")
    return join(Phrase(first.german[1:], first.english), comma, with_tail(clause, nothing()))


def report(rng: Random) -> Phrase:
    """`Die Frau sagt, dass der Mann schläft.`"""
    clause = draw_clause(rng, rng.choice(REPORTS))
    clause = clause._replace(front=clause.subject, time=nothing(), place=nothing())
    return with_tail(clause, subordinate(rng, clause.tense, "dass", "that"))


def attempt(rng: Random) -> Phrase:
    """`Die Frau versucht, den Mann anzurufen.`: `zu` goes between a verb and its particle."""
    clause = draw_clause(rng, rng.choice(ATTEMPTS))
    clause = clause._replace(front=clause.subject, time=nothing(), place=nothing())
    verb = rng.choice([verb for verb in VERBS if "person" in verb.subject])
    to, main = linked("zu", "to"), linked(verb.infinitive, verb.english)
    finite, closing = main.german[0], to.german
    if verb.particle:
        finite, closing = fuse([*closing, finite], f"{verb.particle}zu{finite.text}"), []
    predicate = Predicate(finite, closing, False, [], [*to.english, *main.english])
    nobody = NounPhrase([], [], THIRD, "", "person")
    inner = draw_clause(rng, verb)._replace(
        subject=nobody, predicate=predicate, time=nothing(), negation=nothing()
    )
    return with_tail(
        clause, Phrase([Word(","), *german_clause(inner, verb_last=True)], english_clause(inner))
    )


# %% [markdown]
# ## Sentences
#
# What is left is spelling: commas, capitals, *a* or *an*. Then the links become an alignment.

# %% tags=["export"]
SENTENCES = (
    statement,
    statement,
    statement,
    description,
    question,
    reason,
    condition,
    condition,
    early_reason,
    report,
    attempt,
)


def spell(phrase: list[Word]) -> list[Word]:
    """Drop a comma before another mark, write `an` before a vowel, and begin with a capital."""
    following = [*phrase[1:], Word("")]
    kept = [
        (word, after)
        for word, after in zip(phrase, following)
        if word.text != "," or after.text not in (",", ".")
    ]
    texts = [
        "an" if word.text == "a" and after.text[0] in "aeiou" else word.text for word, after in kept
    ]
    texts[0] = texts[0][0].upper() + texts[0][1:]
    return [word._replace(text=text) for text, (word, _) in zip(texts, kept)]


def to_text(phrase: list[Word]) -> str:
    """Return the words as text, with no space before a mark."""
    return re.sub(r" ([,.?])", r"\1", " ".join(word.text for word in phrase))


def to_pair(phrase: Phrase) -> Pair:
    """Both sentences as text, with the alignment that their links tell."""
    german, english = spell(phrase.german), spell(phrase.english)
    alignment = frozenset(
        (i, j)
        for i, source in enumerate(german)
        for j, target in enumerate(english)
        if source.links & target.links
    )
    return Pair(to_text(german), to_text(english), alignment)


def grammar(count: int, seed: int = 0) -> list[Pair]:
    """German-English pairs with gold alignments, drawn from a seed.

    No German sentence comes twice, so slices of the list never share one: `pairs[:9000]` to
    train, `pairs[9000:]` to test.
    """
    rng, pairs = Random(seed), dict[str, Pair]()
    while len(pairs) < count:
        pair = to_pair(rng.choice(SENTENCES)(rng))
        pairs.setdefault(pair.source, pair)
    return list(pairs.values())


# %%
for pair in grammar(4, seed=11):
    print(pair.source, "|", pair.target)

# %% [markdown]
# Two things must hold for every pair we draw. The seed alone decides: a longer list starts with the shorter one. And the
# alignment is complete: each German word except a comma is linked, each English word is linked.

# %%
pairs = grammar(10_000, seed=0)
assert pairs[:50] == grammar(50, seed=0)
assert len({pair.source for pair in pairs}) == 10_000
for pair in pairs:
    german, english = words(pair.source), words(pair.target)
    assert {i for i, _ in pair.alignment} >= {i for i, word in enumerate(german) if word != ","}
    assert {j for _, j in pair.alignment} == set(range(len(english)))
print(f"{sum(len(words(pair.target)) for pair in pairs) / len(pairs):.1f} words a sentence")

# %% [markdown]
# How far do words travel? If German and English had the same order, the alignment would be a diagonal. The figure shows
# a sentence where it is not.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-alignment", "caption": "Which German word became which English one? Each square is a link of the gold alignment. The verb *holt ... ab* is one English word, *does ... fetch* needs three; *ist* waits for the end of its clause."}, "image": {"alt": "A grid with English words as rows and German words as columns. Links follow the diagonal except for the verbs: fetch is linked to the third and the eighth German word, and the last two words are swapped."}}
style()
pair = next(pair for pair in pairs if " nicht ab, weil" in pair.source)
german, english = words(pair.source), words(pair.target)
figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
for i, j in pair.alignment:
    axes.add_patch(plt.Rectangle((i + 0.06, j + 0.06), 0.88, 0.88, fc=INK))
axes.set(xlim=(0, len(german)), ylim=(len(english), 0), xlabel="German", ylabel="English")
axes.set_xticks([i + 0.5 for i in range(len(german))], german, rotation=45, ha="right")
axes.set_yticks([j + 0.5 for j in range(len(english))], english)
plt.show()

# %% [markdown]
# ## Real captions
#
# **Multi30k** holds 29,000 captions of photographs for training, about a thousand to tune on and a thousand to test. Human translators
# wrote the German. It is small enough to learn something from in minutes.
#
# A download can go wrong half way, and then a model trains on half a file without a word. So we know the **SHA-256** of each file
# beforehand: 64 digits that change when any byte does. A file is used only if they match. A new file is written beside its place
# first and renamed when it is complete, so whoever looks sees all of it or nothing.

# %% tags=["export"]
MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)
ADDRESSES = {"multi30k": MULTI30K}
MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
SHA256 = {"multi30k": MULTI30K_SHA256}


class MissingData(RuntimeError):
    """A data set is neither in the cache nor to be had: the message names the files and what to
    do, on one line.
    """


def cache_folder() -> Path:
    """Where data sets are kept: `$ANNOTATED_TRANSFORMER_CACHE`, else the user's cache folder."""
    return Path(
        os.environ.get("ANNOTATED_TRANSFORMER_CACHE") or user_cache_dir("annotated-transformer")
    )


def is_intact(path: Path, sha256: str) -> bool:
    """True if the file is there and is the one that we know."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def download(address: str, path: Path, sha256: str) -> None:
    """Download a file; it appears under its name only when it is complete and its SHA-256 is right.

    Raises OSError or http.client.HTTPException (no network, no room), ValueError (another SHA-256).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(address, timeout=10) as answer, aside.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with tqdm(total=size, desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
                while block := answer.read(1 << 16):
                    bar.update(file.write(block))
        if not is_intact(aside, sha256):
            raise ValueError(f"what {address} sends was cut short or altered: its SHA-256 differs")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def fetch(dataset: str, name: str, address: str | None = None) -> Path:
    """The path of a file of a data set; it is downloaded where the cache does not have it intact.

    `address` replaces the folder that it is downloaded from. Raises MissingData.
    """
    address, folder, known = (
        address or ADDRESSES[dataset],
        cache_folder() / dataset,
        SHA256[dataset],
    )
    if not is_intact(folder / name, known[name]):
        try:
            download(f"{address}/{name}", folder / name, known[name])
        except (OSError, http.client.HTTPException, ValueError) as error:
            missing = [
                other for other, sha256 in known.items() if not is_intact(folder / other, sha256)
            ]
            raise MissingData(
                f"{dataset} is incomplete: put {', '.join(missing)} from {address} "
                f"into {folder} ({error})"
            ) from error
    return folder / name


def multi30k(split: str) -> list[Pair]:
    """German captions and their English translations; `split` is train, val or test_2016_flickr."""
    if f"{split}.de.gz" not in SHA256["multi30k"]:
        raise ValueError(f"Multi30k has no split {split!r}: take train, val or test_2016_flickr")
    paths = [fetch("multi30k", f"{split}.{language}.gz") for language in ("de", "en")]
    german, english = (
        gzip.decompress(path.read_bytes()).decode().rstrip("\n").split("\n") for path in paths
    )
    return [
        Pair(source.strip(), target.strip()) for source, target in zip(german, english, strict=True)
    ]


# %%
with TemporaryDirectory() as folder:
    path = Path(folder, "captions.txt")
    path.write_text("Ein Hund rennt.")
    known = hashlib.sha256(path.read_bytes()).hexdigest()
    print("as it was:", is_intact(path, known))
    path.write_text("Ein Hund rennt!")
    print("one letter changed:", is_intact(path, known))

# %% [markdown]
# Where there is neither a network nor a file, `multi30k` raises `MissingData`, whose one line says which files are missing
# and where to put them. The notebooks of this book that need the captions are then skipped. All others use the grammar.

# %% [markdown]
# ## What to remember
#
# - A synchronous grammar says one meaning in two languages. Its links move with the words and give gold alignments.
# - German verbs split or wait for the end of their clause; cases, not order, tell who does what. That is what a
#   translation model must learn.
# - A data set is used only if its SHA-256 is the known one, and a file appears under its name only when complete.
#
# The paper's own corpora, WMT 2014, are a hundred times larger. The captions of Multi30k {cite:p}`elliott2016multi30k` are for
# research and education.
