# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth", "1", "https://github.com/annotated-transformer/annotated-transformer", "/content/book"], check=True)
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # A synchronous grammar
#
# This appendix generates sentence pairs with gold alignments from a small grammar of German and English.

# %% tags=["export"]
import gzip
import hashlib
import http.client
import os
import re
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from platformdirs import user_cache_dir
from tqdm import tqdm


from annotated_transformer.data import Pair

# %%
import csv
from itertools import combinations
from tempfile import TemporaryDirectory

import altair as alt
import matplotlib.pyplot as plt

from book.figures import INK, KEY, QUERY, curves, show, show_steps, style


# %% [markdown]
# Two German words lead to *calls*. So an alignment is a set of links and not a list with one partner for each word. A word may have several links, or none. An alignment that is known to be right, and not the guess of a program, is called **gold**.
#
# ## Why not templates?
#
# The cheap way to make sentences is a template: *The ANIMAL sees the ANIMAL*, with a list of animals, in both languages. It makes thousands of pairs, and a model that learned to copy word by word would get them all right. German is worth translating because it does not go word by word:
#
# | German | English |
# |---|---|
# | Heute **ruft** der Mann die Frau **an**. | Today the man **calls** the woman. |
# | ..., weil der Mann die Frau **anruft**. | ... because the man **calls** the woman. |
# | **Den Hund** sieht die Katze. | The cat sees **the dog**. |
#
# In the first line a verb is in two places at once. In the second the same verb waits for the end of its clause. In the third the dog comes first and is still the one that is seen: the case of an article, *den* in place of *der*, tells who does what, and the order of the words does not.
#
# A template for each of these would work, and one for each of their combinations would not. Ten choices with two answers each, independent of each other, make $2^{10} = 1{,}024$ templates. So we draw *what is said* first, and then let each language put it in order by its own rules. A pair of grammars that grow one meaning into two sentences is a **synchronous grammar**.
#
# You need no German for what follows. Each rule is explained when it comes up, and each has an English line beside it. The plan, from the bottom up:
#
# 1. words that carry links to their translations;
# 2. a dictionary of nouns and verbs;
# 3. endings, which show the case in German;
# 4. noun phrases, such as *the old dog*;
# 5. verbs, which in German come in two parts;
# 6. a clause, put in order once for German and once for English;
# 7. sentences of eight kinds.
#
# ## Words with links
#
# Each word carries **links**: marks that it shares with its translation. However the words move, the links move with them, and the alignment is read off at the end. No step in between has to count positions, and that is why the alignment can be trusted.


# %% tags=["export", "internal"]
class Word(NamedTuple):
    """A word of one language; it is aligned with each word of the other that shares a link."""

    text: str
    links: frozenset[object] = frozenset()


class Phrase(NamedTuple):
    """The same meaning in both languages."""

    german: list[Word]
    english: list[Word]


# %% [markdown]
# A `Phrase` always holds both languages. Everything that the grammar builds, from a single word to a sentence, is one of these. So no function can forget one of the two sides.
#
# What is a link? It must be equal to its twin on the other side and to nothing else. The word itself would not do: in *der Mann sieht den Mann* both men would be linked to both. A number would do, if someone handed out a new one each time and kept count. Python has something simpler. `object()` makes a thing that is equal to nothing but itself, and needs no bookkeeping.


# %% tags=["export", "internal"]
def linked(german: str, english: str) -> Phrase:
    """A phrase from text; `|` cuts both sides into parts that translate each other."""
    phrase = Phrase([], [])
    for german_part, english_part in zip(german.split("|"), english.split("|"), strict=True):
        link = frozenset([object()])
        phrase.german.extend(Word(text, link) for text in german_part.split())
        phrase.english.extend(Word(text, link) for text in english_part.split())
    return phrase


# %% [markdown]
# `linked` is how all words of the grammar come into being. It is given both texts with bars between the parts, makes one link for each part, and gives it to all words of that part on both sides. `strict=True` stops us if one side has a bar more than the other.

# %%
german, english = linked("am|Abend", "in the|evening")
print([[f"{g.text}-{e.text}" for e in english if g.links & e.links] for g in german])

# %% [markdown]
# Row one says that *am* goes with *in* and with *the*: the two English words are one part here, so they share its link. Row two has *Abend* and *evening*. Two words are aligned exactly if their sets of links have a member in common, `g.links & e.links`.
#
# Small phrases make larger ones. Two more things come up all the time: a phrase with no words, for what is left out, and a comma. A German comma has no partner, since German puts commas where English needs none.

# %% tags=["export", "internal"]
NOTHING, COMMA = Phrase([], []), Phrase([Word(",")], [])


def join(*phrases: Phrase) -> Phrase:
    """Phrases one after the other, in both languages."""
    german = [word for phrase in phrases for word in phrase.german]
    return Phrase(german, [word for phrase in phrases for word in phrase.english])


# %% [markdown]
# The reverse also happens: two German words melt into one. *In dem Garten*, in the garden, is said *im Garten*. The new word has to answer for both, so it gets the links of both.


# %% tags=["export", "internal"]
def fuse(parts: list[Word], text: str) -> Word:
    """One word that stands for several and keeps their links: `in` and `dem` become `im`."""
    return Word(text, frozenset().union(*(part.links for part in parts)))


# %%
german, english = linked("in|dem", "in|the")
im = fuse(german, "im")
print(len(im.links), "links, with", [word.text for word in english if im.links & word.links])

# %% [markdown]
# *Im* has two links, and each leads to an English word.
#
# This is the whole machinery. `linked` makes links, `join` carries them along, `fuse` merges them. What follows is German.
#
# ## The dictionary
#
# A German noun has a **gender** that the English one has not: *der Mann*, *die Frau*, *das Kind*. It decides the form of the article, the adjective and the pronoun that go with the noun. The word itself seldom gives it away, so it is in the table. So is the kind of thing that the noun names, since a lamp sleeps in no sentence of ours.


# %% tags=["export", "internal"]
class Noun(NamedTuple):
    """A noun with its gender (m, f, n) and what it names (person, animal, thing)."""

    singular: str
    plural: str
    gender: str
    english: str
    english_plural: str
    kind: str


# %% [markdown]
# Nineteen nouns will do. They are chosen for their plurals: some change a vowel (*Vogel, Vögel*), some add an ending, some do nothing (*Lehrer*). English has its own, *mice* and *women*. Plurals that follow no rule are listed and not computed. A rule with exceptions would be longer than the list.

# %% tags=["export", "internal"]
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

# %% [markdown]
# How far does so little carry? The count of one simple kind of sentence gives an idea.

# %%
nouns = {kind: sum(noun.kind == kind for noun in NOUNS) for kind in ("person", "animal", "thing")}
sees = (nouns["person"] + nouns["animal"]) * len(NOUNS)
print(nouns, "make", sees, "sentences of the form: someone sees something")

# %% [markdown]
# Twelve nouns can see and nineteen can be seen: $12 \cdot 19 = 228$ sentences. That is with one verb, two nouns and no choice of article, number, adjective, tense, time or place. Six ways to begin each noun phrase (*the*, *this* and *a* man; *the*, *these* and *two* men) turn them into $228 \cdot 6 \cdot 6 = 8{,}208$. We will not run out.
#
# ### What a verb must tell
#
# Verbs ask for more than nouns. Four things have to be known of each.
#
# - Its forms. *Sehen, sieht, gesehen* is as irregular as *see, sees, saw*.
# - Its **particle**, a part that comes off: *an-rufen*, to call, gives *ruft ... an*. English knows it from *pick up*.
# - Its helper in the past: *haben*, to have, or *sein*, to be. Most verbs take the first. Those of moving and changing take the second.
# - Who may do it, and to whom. One *sees* someone in the accusative case and *helps* someone in the dative. And letters do not sleep.


# %% tags=["export", "internal"]
class Verb(NamedTuple):
    """A verb: its forms in both languages, and the kinds of its subject and of its objects."""

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


# %% [markdown]
# `subject` lists the kinds of nouns that may do it, with spaces between. `objects` has one entry for each object: its case, and the kinds that make sense there. The same few come up again and again, so they get names first. `GIVEN` is what *to give* needs: a person in the dative, who gets it, and a thing in the accusative, which is given.

# %% tags=["export", "internal"]
ANYTHING, LIVING = "person animal thing", "person animal"
SEEN, THING, PERSON = (("acc", ANYTHING),), (("acc", "thing"),), (("acc", "person"),)
BEAST, WHOM, GIVEN = (("acc", "animal"),), (("dat", LIVING),), (("dat", "person"), ("acc", "thing"))

# %% [markdown]
# The verbs themselves follow. Each line has three German forms and three English ones, who may do it, and to whom. The last two entries are the particle and the helper, if it is *sein*. Infinitive and third person are listed without the particle, the participle with it.

# %% tags=["export", "internal"]
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
# Read one line aloud: *rufen, ruft, angerufen* is *call, calls, called*; a person does it, to a person in the accusative, and its particle is *an*. Nothing is said of the helper, so it is *haben*: *hat angerufen*. From these ten entries the grammar makes *ruft an*, *anruft*, *angerufen*, *anrufen* and *anzurufen*, and on the English side *does not call* and *has to call*.
#
# The list is short and well mixed. Seven of the 23 verbs have a particle, three take *sein*, seven want a dative, and *look for* is two words where German has one. Each of these is a place where word-by-word translation fails.

# %%
print(len(VERBS), "verbs,", sum(bool(verb.particle) for verb in VERBS), "with a particle,")
print(sum(verb.auxiliary == "sein" for verb in VERBS), "with sein,", end=" ")
print(sum("dat" in dict(verb.objects) for verb in VERBS), "with a dative")

# %% [markdown]
# ### The smaller words
#
# A **modal verb** such as *must* stands with the infinitive of another verb. German has three forms that matter to us. Two of the English ones, *have to* and *want to*, change for *he*; the others do not. The second two also need *do* in a question: *does he have to*, and *can he*.


# %% tags=["export", "internal"]
class Modal(NamedTuple):
    """A modal verb: the forms for `ich`, `er`, `wir`; in English that for `he` if it differs."""

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

# %% [markdown]
# Times suit the present or the past, and never both: no one *sleeps yesterday*. The bars are those of `linked`. Places come with the preposition of each language: one is *auf* a market in German and *at* it in English. A preposition has no rule either, only a list.

# %% tags=["export", "internal"]
PRESENT = (("heute", "today"), ("jeden|Tag", "every|day"), ("am|Abend", "in the|evening"))
PAST = (("gestern", "yesterday"), ("letzte|Woche", "last|week"), ("am|Morgen", "in the|morning"))
TIMES = {"present": PRESENT, "past": PAST}
PLACES = (
    ("in", "Garten", "m", "in", "garden"),
    ("in", "Küche", "f", "in", "kitchen"),
    ("auf", "Markt", "m", "at", "market"),
    ("hinter", "Haus", "n", "behind", "house"),
    ("vor", "Schule", "f", "in front of", "school"),
    ("an", "Fluss", "m", "at", "river"),
)

# %% [markdown]
# Adjectives go with a kind of noun. `STATES` are for sentences such as *because it is heavy*: a lamp can be heavy or cheap, and a guest tired.

# %% tags=["export", "internal"]
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
# Why so few words? A model with 10,000 sentences and some hundred words sees nearly all of them many times. Then no word is wrong because it was rare, and what it does get wrong is order, case and agreement. Those are what we want to watch.
#
# ## Case and gender
#
# English tells by the order who does what. German tells by the **case**: the form that a noun phrase takes for its part in the sentence. There are four; ours do without the genitive, which shows possession.
#
# | case | answers | example | English |
# |---|---|---|---|
# | nominative | who does it? | **der** Hund schläft | **the dog** sleeps |
# | accusative | who is it done to? | sie sieht **den** Hund | she sees **the dog** |
# | dative | to whom? | sie hilft **dem** Hund | she helps **the dog** |
#
# The noun itself hardly ever changes. What changes is the end of the words before it, and it changes with the gender, too. The endings of *dieser*, this, are called the strong ones. They are the table below, one row for each case.

# %% tags=["export", "internal"]
STRONG = {
    "nom": {"m": "er", "f": "e", "n": "es", "plural": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "plural": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "plural": "en"},
}

# %% [markdown]
# The plural is a column beside the three genders, since in the plural German forgets about gender. Only in the column *m* do all three rows differ. For women, children and plurals, nominative and accusative look alike. This will matter when we move an object to the front.
#
# The article *der* has the same endings, glued to a *d*: *d-er, d-en, d-em*. Two of its forms are spelled in their own way, *die* and *das*.


# %% tags=["export", "internal"]
def definite(case: str, gender: str) -> str:
    """The article `der` in a case, for a gender or the plural."""
    ending = STRONG[case][gender]
    return {"e": "die", "es": "das"}.get(ending, "d" + ending)


# %%
for case in STRONG:
    print(case, *(f"{definite(case, gender):4}" for gender in STRONG[case]))

# %% [markdown]
# The columns are masculine, feminine, neuter and plural. *Der* stands in two of the twelve places, as a masculine subject and as a feminine to-whom. A reader of our grammar who meets *der Frau* knows from *der* alone that the woman is not the one who acts.
#
# ### Who shows the ending?
#
# German shows case, gender and number once. If the determiner has the strong ending, the adjective gets a weak one: *d**er** alte Hund*. If the determiner has none, the adjective must show it: *ein alt**er** Hund*. That one rule replaces the three tables of a school book.
#
# A weak ending is *e* or *en*. It is *e* in the singular wherever the article looks as it does in the nominative, and *en* everywhere else: *der alt**e** Hund*, but *den alt**en** Hund*. The line that computes `weak` says just this.
#
# When does a determiner have no ending? *Ein* and *kein* are bare in three places of the table, and *zwei*, two, everywhere.


# %% tags=["export", "internal"]
def decline(stem: str, case: str, gender: str) -> tuple[str, str]:
    """A determiner in its case, and the ending of an adjective that follows it."""
    strong = STRONG[case][gender]
    bare = (case, gender) in {("nom", "m"), ("nom", "n"), ("acc", "n")}
    if stem == "zwei" or (stem in ("ein", "kein") and bare):
        return stem, strong
    weak = "e" if gender != "plural" and strong == STRONG["nom"][gender] else "en"
    return definite(case, gender) if stem == "der" else stem + strong, weak


# %% [markdown]
# `decline` takes a determiner without its ending, such as *dies* or *ein*, and returns two things: the determiner complete, and the ending of the adjective that follows. It cannot return the adjective, since most noun phrases have none. We check it against phrases from a school book, and print one more.


# %%
def phrase(stem, adjective, noun, case, gender):
    determiner, ending = decline(stem, case, gender)
    return f"{determiner} {adjective}{ending} {noun}"


assert phrase("ein", "alt", "Hund", "nom", "m") == "ein alter Hund"
assert phrase("dies", "klein", "Kind", "dat", "n") == "diesem kleinen Kind"
assert phrase("zwei", "neu", "Bücher", "acc", "plural") == "zwei neue Bücher"
print(phrase("ein", "jung", "Frau", "dat", "f"))

# %% [markdown]
# ## Noun phrases
#
# A noun phrase is drawn with its case, because German must know it to choose the endings. It remembers what the rest of the sentence has to agree with: its number for the verb, its gender for a pronoun that comes later.

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


# %% [markdown]
# `agreement` is the place of the verb's form in a tuple of three: the one for *I*, the one for *he*, the one for *we* and *they*. `definite` says that the phrase means someone known, as *the dog* does and *a dog* does not. `pronoun` is there because German puts pronouns elsewhere. The first two fields are those of `Phrase`, so a noun phrase can stand wherever words are collected.
#
# *The* and *a* are listed twice, which makes them twice as likely as *this*. Pronouns have a case in both languages. Note that *sie* is *she*, *they* or *her*: the verb decides between the first two, and a model will have to see it there.

# %% tags=["export", "internal"]
THE, A = ("der", "the"), ("ein", "a")
SINGULAR_DETERMINERS = (THE, THE, ("dies", "this"), A, A)
PLURAL_DETERMINERS = (THE, ("dies", "these"), ("zwei", "two"))
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

# %% [markdown]
# ### Rolling dice
#
# To draw a noun phrase is to roll a few dice: which noun, one or many, which article, with an adjective or without. Both languages get the same answers. The dice come from a `Random` that is handed in, never from a global one. A seed then gives the same corpus on each machine, whatever else the program draws.
#
# A pronoun is the shortest case: one roll.


# %% tags=["export", "internal"]
def draw_pronoun(rng: Random, case: str) -> NounPhrase:
    """A pronoun for a person."""
    german, english, agreement = rng.choice(PRONOUNS[case])
    return NounPhrase(*linked(german, english), agreement, "", "person", pronoun=True)


# %% [markdown]
# A determiner takes two. The second one makes, now and then, a *kein*: German negates a noun, *sie sieht keinen Hund*, where English may say *she sees no dog*. We do so for objects only.


# %% tags=["export", "internal"]
def draw_determiner(rng: Random, case: str, plural: bool) -> tuple[str, str]:
    """The stem of a determiner and its English; an object may be negated (`kein`, `no`)."""
    drawn = rng.choice(PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
    return ("kein", "no") if case == "acc" and rng.random() < 0.1 else drawn


def noun_forms(noun: Noun, case: str, plural: bool) -> tuple[str, str]:
    """The German and the English noun; a German plural in the dative ends in n (`Hunden`)."""
    if not plural:
        return noun.singular, noun.english
    ending = "n" if case == "dat" and not noun.plural.endswith("n") else ""
    return noun.plural + ending, noun.english_plural


# %% [markdown]
# `noun_forms` holds the one ending that a noun of ours can take. Now the phrase is put together. Each part goes into both languages by `linked`, so the noun phrase is aligned word by word. `kinds` comes from the verb: only nouns that fit it are in the draw.


# %% tags=["export", "internal"]
def draw_noun_phrase(rng: Random, case: str, kinds: str) -> NounPhrase:
    """A determiner, perhaps an adjective, and a noun of one of the kinds."""
    noun = rng.choice([noun for noun in NOUNS if noun.kind in kinds.split()])
    plural = rng.random() < 0.25
    gender = "plural" if plural else noun.gender
    stem, english = draw_determiner(rng, case, plural)
    german, ending = decline(stem, case, gender)
    parts = [linked(german, english)]
    if rng.random() < 0.35:
        adjective, english_adjective = rng.choice(ADJECTIVES[noun.kind])
        parts.append(linked(adjective + ending, english_adjective))
    both = join(*parts, linked(*noun_forms(noun, case, plural)))
    known = stem in ("der", "dies")
    return NounPhrase(*both, PLURAL if plural else THIRD, gender, noun.kind, known)


# %% [markdown]
# The same dice in three cases show what the case does:

# %%
for case in STRONG:
    drawn = draw_noun_phrase(Random(31), case, "person")
    print(case, *(word.text for word in drawn.german), "|", *(word.text for word in drawn.english))

# %% [markdown]
# The German article changes from *ein* to *einen* to *einem*, the adjective follows suit, and the English side stays as it was. What German says with an ending, English says with the place in the sentence.
#
# ### Places
#
# A place takes the dative, always with *the*. `in` and `dem` become `im`, and this is where a word gets two links. An adjective can stand between article and noun, which is why article and noun are linked one by one and not as a lump.


# %% tags=["export", "internal"]
def draw_place(rng: Random) -> Phrase:
    """A place: a preposition with the dative, which may fuse with its article: `im Garten`."""
    preposition, noun, gender, english, english_noun = rng.choice(PLACES)
    article, ending = decline("der", "dat", gender)
    adjective, english_adjective = rng.choice(ADJECTIVES["place"])
    parts = [linked(preposition, english), linked(article, "the")]
    if rng.random() < 0.25:
        parts.append(linked(adjective + ending, english_adjective))
    place = join(*parts, linked(noun, english_noun))
    if article == "dem" and preposition in ("in", "an"):
        place.german[:2] = [fuse(place.german[:2], preposition[0] + "m")]
    return place


# %% [markdown]
# The last step replaces the first two German words, *in* and *dem* or *an* and *dem*, by one. Their links are kept, so *im* will be aligned with *in* and with *the*.
#
# ## Verbs
#
# German clauses are built around a **bracket**. In a main clause the **finite** verb, the one that agrees with its subject, comes second and opens the bracket. All other parts of the verb close it at the end. In a subordinate clause everything stands at the end. English has its own oddity: a question or a *not* needs *do*, unless there is an auxiliary.
#
# | what is said | opens | closes | English |
# |---|---|---|---|
# | present | er **ruft** ... | ... **an** | he calls |
# | past | er **hat** ... | ... **angerufen** | he called |
# | modal | er **muss** ... | ... **anrufen** | he has to call |
# | question | **ruft** er ... | ... **an**? | does he call? |
#
# So the verb of a clause is not a word. It is what the record below says: one German word that opens, words that close, and two groups of English words. They are two because the subject of a question stands between them: *does he call*. `separable` marks the one case where the closing word is a particle. It has to rejoin its verb if both end up side by side.


# %% tags=["export", "internal"]
class Predicate(NamedTuple):
    """The verbs of a clause: German finite and closing ones; English auxiliary and main verb."""

    finite: Word
    closing: list[Word]
    separable: bool
    auxiliary: list[Word]
    main: list[Word]


# %% [markdown]
# ### The present
#
# Three forms are enough: *ich sehe*, *er sieht*, *wir sehen*. The last is the infinitive, the first is the infinitive without its *n*, and the middle one is listed.


# %% tags=["export", "internal"]
def conjugate(verb: Verb, agreement: int) -> str:
    """The present tense of a verb, without its particle."""
    return (verb.infinitive[:-1], verb.third, verb.infinitive)[agreement]


# %% [markdown]
# In the present the particle is all that closes. `support` asks for the English *do*, which takes over the ending, *does call*, and leaves the main verb bare. *Do* has no German partner of its own. So it gets the links of the finite verb, whose job it does.
#
# The first line of code that needs a second look is the one with the star. `linked` is given *ruft an* as one part and *calls* as one part. It returns the German words, the first of which is the finite verb and the rest the particle, if any.


# %% tags=["export", "internal"]
def present(verb: Verb, agreement: int, support: bool) -> Predicate:
    """The present tense: `ruft ... an`, `calls` or, with support, `does ... call`."""
    third = agreement == THIRD
    main = verb.english if support or not third else verb.english_third
    (finite, *particle), english = linked(f"{conjugate(verb, agreement)} {verb.particle}", main)
    auxiliary = [Word("does" if third else "do", finite.links)] if support else []
    return Predicate(finite, particle, bool(particle), auxiliary, english)


# %%
call = next(verb for verb in VERBS if verb.infinitive == "rufen")
for support in (False, True):
    calls = present(call, THIRD, support)
    print(calls.finite.text, "...", calls.closing[0].text, end=" | ")
    print(*(word.text for word in calls.auxiliary), "...", *(word.text for word in calls.main))

# %% [markdown]
# The German side is the same both times. In English the ending *s* has moved from *call* to *do*.
#
# ### The past
#
# In talk about the past, German says *hat gesehen* where English says *saw*. Two words link to one, and the two German ones may be ten words apart. With *do* there are two on either side, and each finds its own partner: *hat* and *did* carry the tense, *gesehen* and *see* the meaning.


# %% tags=["export", "internal"]
def perfect(verb: Verb, agreement: int, support: bool) -> Predicate:
    """The past: `hat ... angerufen`, `called` or, with support, `did ... call`."""
    (finite,), did = linked(AUXILIARIES[verb.auxiliary][agreement], "did")
    closing, english = linked(verb.participle, verb.english if support else verb.english_past)
    if support:
        return Predicate(finite, closing, False, did, english)
    saw = [fuse([finite, word], word.text) for word in english]
    return Predicate(finite, closing, False, [], saw)


# %% [markdown]
# Without support, *did* is not said. The English verb then answers for both German words: it is fused with the finite verb, which changes its links and not its text.
#
# ### Modal verbs
#
# A modal verb opens the bracket and an infinitive closes it: *er **muss** den Brief **schicken***. The particle rejoins its verb there: *anrufen*, in one word. English has two kinds of them. *Can* is an auxiliary and moves in front of the subject in a question. *Have to* is an ordinary verb with an infinitive, so it stays with the main verb and needs *do*.


# %% tags=["export", "internal"]
def modal(verb: Verb, agreement: int, support: bool, helper: Modal) -> Predicate:
    """`muss ... anrufen`, `has to call` or, with support, `does ... have to call`."""
    third = agreement == THIRD and helper.english_third
    form = helper.english_third if third and not support else helper.english
    (finite,), english = linked(helper.german[agreement], form)
    closing, main = linked(verb.particle + verb.infinitive, verb.english)
    if not helper.english_third:
        return Predicate(finite, closing, False, english, main)
    auxiliary = [Word("does" if third else "do", finite.links)] if support else []
    return Predicate(finite, closing, False, auxiliary, english + main)


# %% [markdown]
# Whether a helper has a form of its own for *he* is what tells the two kinds apart: *has to* and *wants to* exist, *cans* does not.
#
# ## A clause in two orders
#
# A clause says who does what to whom, when and where. That is its meaning, and it has no order yet. The record below is the meeting point of the two languages: all that was drawn goes in, and two functions read it out, each in its own way.


# %% tags=["export", "internal"]
class Clause(NamedTuple):
    """What a clause says; German puts `front` first, and English too, where `fronted`."""

    subject: NounPhrase
    predicate: Predicate
    tense: str
    objects: list[NounPhrase]
    time: Phrase
    place: Phrase
    negation: Phrase
    front: Phrase | NounPhrase
    fronted: bool


# %% [markdown]
# `front` is what German puts first, and it may be nearly anything: the subject, the time, an object. English follows for a time, *today the man sleeps*, and for a relative pronoun. An object at the front stays a German matter, so there are two fields. `front` is one of the clause's own parts and is recognized by identity, with `is`. Two phrases with the same words in a clause are still two.
#
# ### The German order
#
# School books describe a German clause by fields. The verbs are fixed posts, and everything else is hung between them:
#
# | kind | front | opens | middle | closes |
# |---|---|---|---|---|
# | statement | Heute | ruft | der Mann die alte Frau | an |
# | question | | Ruft | der Mann heute die alte Frau | an? |
# | after *weil* | der Mann | | heute die alte Frau | anruft |
#
# First the middle. Pronouns come early, the time comes before the nouns, *nicht* comes late and the place last. What stands in front is left out.


# %% tags=["export", "internal"]
Part = Phrase | NounPhrase


def german_middle(clause: Clause) -> list[Word]:
    """What stands between the verbs of a German clause: all its parts but the front."""
    pronouns = [part for part in clause.objects if part.pronoun]
    nouns = [part for part in clause.objects if not part.pronoun]
    field: list[Part] = [clause.subject, *pronouns, clause.time, *nouns]
    field += [clause.negation, clause.place]
    return [word for part in field if part is not clause.front for word in part.german]


# %% [markdown]
# Then the bracket goes around it, or behind it. In a question the front is empty, and so the finite verb comes first without a rule of its own. After *weil* all verbs are last: a particle stands right before its verb there, and the two are written as one word, *an* + *ruft*.


# %% tags=["export", "internal"]
def german_clause(clause: Clause, verb_last: bool = False) -> list[Word]:
    """Front, finite verb, the rest, closing verb; in a subordinate clause all verbs are last."""
    front, middle = clause.front.german, german_middle(clause)
    finite, closing, separable = clause.predicate[:3]
    if not verb_last:
        return [*front, finite, *middle, *closing]
    end = [fuse([finite], closing[0].text + finite.text)] if separable else [*closing, finite]
    return [*front, *middle, *end]


# %% [markdown]
# ### The English order
#
# English does not move its parts, apart from a time at the front. Subject, verb, objects, place, time: who does what is told by this order alone. In a question the auxiliary and the subject change places, and that is all.


# %% tags=["export", "internal"]
def english_clause(clause: Clause, question: bool = False) -> list[Word]:
    """Subject, verb, objects, place, time; in a question the auxiliary comes first."""
    early: Part = clause.front if clause.fronted else NOTHING
    field: list[Part] = [*clause.objects, clause.place, clause.time]
    rest = [word for part in field if part is not early for word in part.english]
    subject, (auxiliary, main) = clause.subject.english, clause.predicate[3:]
    start = auxiliary + subject if question else subject + auxiliary
    return [*early.english, *start, *clause.negation.english, *main, *rest]


# %% [markdown]
# Read the two functions side by side. They share no line, and they read the same record: this is all that a translation model will have to find out.
#
# Let us build one meaning by hand and have it said in three ways: as a statement that begins with the time, behind *weil*, and as a question.

# %%
man = NounPhrase(*linked("der|Mann", "the|man"), THIRD, "m", "person")
woman = NounPhrase(*linked("die|alte|Frau", "the|old|woman"), THIRD, "f", "person")
today, place = linked("heute", "today"), linked("im|Garten", "in the|garden")
calls, does_call = (present(call, THIRD, support) for support in (False, True))
meaning = Clause(man, calls, "present", [woman], today, place, NOTHING, today, True)
behind = meaning._replace(front=man, fronted=False)
asked = behind._replace(front=NOTHING, predicate=does_call)

# %%
orders = {
    "a statement": (german_clause(meaning), english_clause(meaning)),
    "behind weil": (german_clause(behind, verb_last=True), english_clause(behind)),
    "a question": (german_clause(asked), english_clause(asked, question=True)),
}
for sentence in (sentence for both in orders.values() for sentence in both):
    print(" ".join(word.text for word in sentence))

# %% [markdown]
# Only two fields of the record differ between the three: what is in front, and whether the verb comes with *do*. The figure draws the links of each. Choose an order, and watch the thick lines of the verb.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-orders", "caption": "How can one meaning have two orders? German above, English below, with the part of the clause that each word belongs to. Dashed lines are links between words; thick ones belong to the verb. In a statement the German verb *ruft ... an* brackets nearly everything. Behind *weil* it waits for the end, and its line crosses the others."}}
def layout(sentence, row, label):
    """Each word with its place in the drawing and the part of the clause that it belongs to."""
    named = {"who": man, "whom": woman, "when": today, "where": place}
    of = {link: name for name, part in named.items() for word in part.german for link in word.links}
    parts = [of.get(next(iter(word.links)), "verb") for word in sentence]
    widths = [8 * len(word.text) + 14 for word in sentence]
    return [
        {"x": sum(widths[:i]) + widths[i] / 2, "y": row, "text": word.text, "part": part}
        | {"label": label, "name": "" if i and parts[i - 1] == part else part}
        for i, (word, part) in enumerate(zip(sentence, parts))
    ]


def drawing(german, english):
    """Two rows of words with their links between them."""
    above, below = layout(german, 34, 14), layout(english, 150, 170)
    lines = [
        {"x": g["x"], "y": 46, "x2": e["x"], "y2": 138, "verb": g["part"] == "verb"}
        for g, one in zip(above, german)
        for e, other in zip(below, english)
        if one.links & other.links
    ]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 500], nice=False))
    y = {"axis": None, "scale": alt.Scale(domain=[180, 4], nice=False)}
    texts = alt.Chart(alt.Data(values=above + below)).encode(x)
    links = alt.Chart(alt.Data(values=lines)).encode(x, alt.Y("y:Q", **y), x2="x2:Q", y2="y2:Q")
    return alt.layer(
        links.transform_filter("!datum.verb").mark_rule(color=INK, opacity=0.75, strokeDash=[4, 3]),
        links.transform_filter("datum.verb").mark_rule(color=INK, strokeWidth=3),
        texts.mark_text(color=INK, fontSize=14).encode(alt.Y("y:Q", **y), text="text:N"),
        texts.mark_text(color=INK, fontSize=11).encode(alt.Y("label:Q", **y), text="name:N"),
    ).properties(width=500, height=184)


labels = {
    "a statement": "The verb is linked to the second and to the last German word; its two lines span the sentence.",
    "behind weil": "The German verb is the last word, and its line crosses those of five words.",
    "a question": "The first German word is linked to does and to call, and so is the last.",
}
show_steps(
    {name: (drawing(*order), labels[name]) for name, order in orders.items()}, "Said in which way?"
)

# %% [markdown]
# Every crossing is a place where a model must look somewhere else than straight ahead. Behind *weil* it has to write *calls* third, and the word to look at is the last one. A recurrent network would have to carry it there. Attention has to look.
#
# ## Drawing a clause
#
# Now everything that we fixed by hand is drawn. A verb comes first, then what it needs. An object may be a pronoun, if it can be a person.


# %% tags=["export", "internal"]
def draw_argument(rng: Random, case: str, kinds: str) -> NounPhrase:
    """A pronoun or a noun phrase of one of the kinds."""
    if "person" in kinds and rng.random() < 0.2:
        return draw_pronoun(rng, case)
    return draw_noun_phrase(rng, case, kinds)


# %% [markdown]
# The next function chooses among the three kinds of predicates. English needs *do* in a question and with *not*, so `support` is true for either. A modal verb is never negated here, for a reason that comes at once; its `support` asks for a question only.


# %% tags=["export", "internal"]
def draw_predicate(
    rng: Random, verb: Verb, agreement: int, tense: str, question: bool, negated: bool
) -> Predicate:
    """A verb in the past, in the present, or in the present below a modal verb."""
    if tense == "past":
        return perfect(verb, agreement, question or negated)
    if not negated and rng.random() < 0.4:
        return modal(verb, agreement, question, rng.choice(MODALS))
    return present(verb, agreement, question or negated)


# %% [markdown]
# ### What the grammar refuses to say
#
# Not everything goes with everything. A grammar that we mean to trust leaves out what one of the languages would say otherwise, or could mean in two ways:
#
# | left out | because |
# |---|---|
# | *not* with *a* or *two* | German would negate the noun: *keinen Hund*, and not *nicht einen Hund* |
# | *not* with a modal verb | *he must not* forbids, *er muss nicht* permits |
# | *not* with a place | is it the sleeping or the garden that is denied? |
# | a pronoun for a thing | *it* needs someone to have named the thing before |
#
# So *not* comes only where all noun phrases are definite. `draw_clause` keeps these rules. Apart from them, each of its lines draws one field of the record.


# %% tags=["export", "internal"]
def draw_clause(
    rng: Random,
    verb: Verb,
    tense: str = "",
    question: bool = False,
    opening: dict[str, NounPhrase] | None = None,
) -> Clause:
    """A clause around a verb; `opening` gives, by its case, the phrase that opens it."""
    given = opening or {}
    tense = tense or rng.choice(("past", "present"))
    subject = given.get("nom") or draw_argument(rng, "nom", verb.subject)
    objects = [given.get(case) or draw_argument(rng, case, kinds) for case, kinds in verb.objects]
    negated = all(phrase.definite for phrase in (subject, *objects)) and rng.random() < 0.25
    predicate = draw_predicate(rng, verb, subject.agreement, tense, question, negated)
    time = linked(*rng.choice(TIMES[tense])) if rng.random() < 0.3 else NOTHING
    place = draw_place(rng) if not negated and rng.random() < 0.2 else NOTHING
    negation = linked("nicht", "not") if negated else NOTHING
    front, fronted = next(iter(given.values()), NOTHING), bool(given) and "nom" not in given
    return Clause(subject, predicate, tense, objects, time, place, negation, front, fronted)


# %% [markdown]
# Here is one clause as the record has it, before there is any order. The seed was chosen so that it has both a time and a place.

# %%
gave = draw_clause(Random(31), next(verb for verb in VERBS if verb.english == "give"))
for part in (gave.subject, *gave.objects, gave.time, gave.place):
    print(f"{' '.join(word.text for word in part.german):18}", end=" = ")
    print(" ".join(word.text for word in part.english))
both = german_clause(gave._replace(front=gave.subject)), english_clause(gave)
for words_in_order in both:
    print(" ".join(word.text for word in words_in_order))

# %% [markdown]
# The guest is in the dative, *dem Gast*, and the book in the accusative, *das Buch*. The time is third in German and last in English. `_replace` gives a copy of a record with one field exchanged; we will use it whenever a clause is drawn first and arranged later.
#
# `opening` is for clauses whose first word is settled before the rest is drawn. It maps a case to a phrase: `{"nom": phrase}` is a subject that we bring along, `{"acc": phrase}` an object. Whatever is not brought along is drawn. An opening object stands first in English, too, hence `fronted`.
#
# Two kinds of sentences are now a single step away. A sentence is a clause in both orders, perhaps something that follows, and a mark. What follows is called the tail, and it stands behind the closing verb.


# %% tags=["export", "internal"]
def sentence(clause: Clause, tail: Phrase = NOTHING, mark: str = ".") -> Phrase:
    """A statement or, with the mark `?`, a question, with a subordinate clause as its tail."""
    both = Phrase(german_clause(clause), english_clause(clause, question=mark == "?"))
    return join(both, tail, linked(mark, mark))


def question(rng: Random) -> Phrase:
    """A question: the finite verb comes first, and English needs an auxiliary."""
    return sentence(draw_clause(rng, rng.choice(VERBS), question=True), mark="?")


# %%
asked = question(Random(3))
print(*(word.text for word in asked.german), "|", *(word.text for word in asked.english))

# %% [markdown]
# Nothing was given to open the clause, so its front is empty and the German verb comes first. A statement is the same with something in front.
#
# German may put the time or an object first. We do so with an object only where its article shows the case, which only the masculine does. In *die Katze sieht die Frau* no one can tell which one sees.


# %% tags=["export", "internal"]
def draw_main_clause(rng: Random) -> Clause:
    """A main clause that opens with its subject, its time or an object."""
    clause = draw_clause(rng, rng.choice(VERBS))
    clause = clause._replace(front=clause.subject)
    masculine = [phrase for phrase in clause.objects if phrase.gender == "m"]
    if clause.time.german and rng.random() < 0.6:
        return clause._replace(front=clause.time, fronted=True)
    return clause._replace(front=masculine[0]) if masculine and rng.random() < 0.25 else clause


# %% [markdown]
# ## Clauses inside of clauses
#
# A subordinate clause has all its verbs at the end, and a comma before it. It may have a word that opens it, such as *weil*. What changes from kind to kind is only what is drawn, so one function writes them all.


# %% tags=["export", "internal"]
def behind_comma(clause: Clause, opener: Phrase = NOTHING) -> Phrase:
    """A comma, perhaps a conjunction, and a clause with its German verbs at the end."""
    inside = Phrase(german_clause(clause, verb_last=True), english_clause(clause))
    return join(COMMA, opener, inside)


# %% [markdown]
# ### Relative clauses
#
# A relative clause describes a noun: *der Hund, **den** die Katze sieht*, the dog that the cat sees. Its pronoun takes its gender from the noun it describes and its case from its own clause. So we pick a verb and the role that the noun is to play in it. Only roles that fit the noun's kind are in the draw: a letter may be sent, and does not send.


# %% tags=["export", "internal"]
def draw_role(rng: Random, kind: str) -> tuple[Verb, str]:
    """A verb, and the case in which a noun of a kind is its subject or its last object."""
    roles = [
        (verb, case)
        for verb in VERBS
        for case, kinds in (("nom", verb.subject), *verb.objects[-1:])
        if kind in kinds.split()
    ]
    return rng.choice(roles)


# %% [markdown]
# The pronoun looks like the article, but for *denen* in the dative plural. It is handed over as what opens the clause.


# %% tags=["export", "internal"]
def relative_clause(rng: Random, noun: NounPhrase) -> Phrase:
    """`, den die Katze sieht`: a clause that describes a noun, its subject or last object."""
    verb, case = draw_role(rng, noun.kind)
    german = "denen" if (case, noun.gender) == ("dat", "plural") else definite(case, noun.gender)
    english = "who" if (case, noun.kind) == ("nom", "person") else "that"
    pronoun = NounPhrase(*linked(german, english), noun.agreement, noun.gender, "relative")
    return behind_comma(draw_clause(rng, verb, opening={case: pronoun}))


# %%
for seed in (1, 6):
    described = relative_clause(Random(seed), man)
    print(*(word.text for word in join(Phrase(*man[:2]), described).german))

# %% [markdown]
# In the first the man is the subject of his clause, in the second its object: *der* and *den*. Everything else about the pronoun is the same, and English says *who* or *that* by another rule, whether it is a person who acts.
#
# A relative clause may follow its noun at once, which `description` does with the subject. It may also stand behind the closing verb, far from its noun: *Er hat den Hund gesehen, der schläft.* For a model this is the harder one, since the noun is not the word before the comma. It must not be used where a place or a time comes between in English, or it would seem to describe those.


# %% tags=["export", "internal"]
def description(rng: Random) -> Phrase:
    """`Der Hund, der schläft, ...`: a main clause that opens with a noun and a relative clause."""
    verb = rng.choice(VERBS)
    noun = draw_noun_phrase(rng, "nom", verb.subject)
    both = join(Phrase(*noun[:2]), relative_clause(rng, noun), COMMA)
    subject = noun._replace(german=both.german, english=both.english)
    return sentence(draw_clause(rng, verb, opening={"nom": subject}))


def statement(rng: Random) -> Phrase:
    """A main clause; behind its closing verb a relative clause may describe its last object."""
    clause = draw_main_clause(rng)
    last = [noun for noun in clause.objects[-1:] if not noun.pronoun and noun is not clause.front]
    late = clause.place.german or (clause.time.german and not clause.fronted)
    if last and not late and rng.random() < 0.25:
        return sentence(clause, relative_clause(rng, last[0]))
    return sentence(clause)


# %% [markdown]
# ### Conjunctions, reports, attempts
#
# Other subordinate clauses come behind a conjunction, or as what someone says, believes or tries. They need a few words more. Verbs of saying and trying are kept apart from the others: they take a clause where the others take a noun.

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

# %% [markdown]
# A subordinate clause has the tense of the main one. Here the subject is always a noun. A pronoun that means nobody in particular is fine once in a sentence, and twice it is confusing.


# %% tags=["export", "internal"]
def subordinate(rng: Random, tense: str, german: str, english: str) -> Phrase:
    """`, weil` and a clause in the same tense, with its verb at the end."""
    verb = rng.choice(VERBS)
    subject = draw_noun_phrase(rng, "nom", verb.subject)
    clause = draw_clause(rng, verb, tense, opening={"nom": subject})
    return behind_comma(clause, linked(german, english))


# %% [markdown]
# With it as a tail or as a front, a statement becomes long. If the whole clause comes first, it takes the first place, and the finite verb follows at once: *Weil die Frau schläft, **lacht** der Mann.* The main clause is then one with an empty front, as in a question, but with the English of a statement.


# %% tags=["export", "internal"]
def reason(rng: Random) -> Phrase:
    """`..., weil die Frau schläft.`"""
    clause = draw_main_clause(rng)
    return sentence(clause, subordinate(rng, clause.tense, *rng.choice(CONJUNCTIONS)))


def early_reason(rng: Random) -> Phrase:
    """`Weil die Frau schläft, lacht der Mann.`: a whole clause is first, the verb second."""
    clause = draw_clause(rng, rng.choice(VERBS))
    first = subordinate(rng, clause.tense, *rng.choice(CONJUNCTIONS))
    opening = Phrase(first.german[1:], first.english)  # without its comma
    return join(opening, linked(",", ","), sentence(clause))


def report(rng: Random) -> Phrase:
    """`Die Frau sagt, dass der Mann schläft.`"""
    clause = draw_clause(rng, rng.choice(REPORTS))
    clause = clause._replace(front=clause.subject, time=NOTHING, place=NOTHING)
    return sentence(clause, subordinate(rng, clause.tense, "dass", "that"))


# %%
for kind in (reason, early_reason, report):
    said = kind(Random(4))
    print(*(word.text for word in said.german), "|", *(word.text for word in said.english))

# %% [markdown]
# The third has no time and no place in its main clause. In *Sie sagt heute, dass ...* no one could tell whether the saying or the said is today.
#
# An attempt has the last of the German puzzles. *Zu* goes between a verb and its particle, and the three are one word: *anzurufen* links to *to* and to *call*. For a verb without a particle, *zu* is a word of its own and closes the bracket before the verb.


# %% tags=["export", "internal"]
def infinitive(verb: Verb) -> Predicate:
    """`zu sehen`, `anzurufen`: a verb with `zu`, `to`, which goes behind a particle."""
    to, main = linked("zu", "to"), linked(verb.infinitive, verb.english)
    finite, closing = main.german[0], to.german
    if verb.particle:
        finite, closing = fuse([*closing, finite], f"{verb.particle}zu{finite.text}"), []
    return Predicate(finite, closing, False, [], [*to.english, *main.english])


def attempt(rng: Random) -> Phrase:
    """`Die Frau versucht, den Mann anzurufen.`"""
    clause = draw_clause(rng, rng.choice(ATTEMPTS))
    clause = clause._replace(front=clause.subject, time=NOTHING, place=NOTHING)
    verb = rng.choice([verb for verb in VERBS if "person" in verb.subject])
    nobody = NounPhrase([], [], THIRD, "", "person")
    inner = draw_clause(rng, verb)._replace(subject=nobody, predicate=infinitive(verb))
    return sentence(clause, behind_comma(inner._replace(time=NOTHING, negation=NOTHING)))


# %% [markdown]
# The inner clause is drawn like any other. Then its subject is taken away, since the one who tries is the one who calls, and its verb is exchanged for the infinitive.
#
# ### Who is *er*?
#
# The most interesting sentences have a pronoun: *Die Frau sucht den Schlüssel, weil **er** schwer ist.* To choose between *he* and *it* a model must find the noun that *er* stands for. German helps with the gender: the key is masculine, the woman feminine. English asks another question, whether it is a person.

# %% tags=["export", "internal"]
TO_BE = {"present": (("ist", "is"), ("sind", "are")), "past": (("war", "was"), ("waren", "were"))}
REFERRING = {"m": ("er", "he"), "f": ("sie", "she"), "n": ("es", "it"), "plural": ("sie", "they")}


def refer(noun: NounPhrase) -> Phrase:
    """The pronoun for a noun: German asks for its gender, English whether it is a person."""
    german, english = REFERRING[noun.gender]
    if noun.gender in ("m", "f") and noun.kind != "person":
        english = "it"
    return linked(german, english)


# %% [markdown]
# So *er* is *he* for the teacher and *it* for the key. No word-by-word rule can get that right.
#
# We say such a thing only of a noun that is the only one of its gender in the clause, where even a reader could not go wrong. If two nouns share a gender, or if there are pronouns about already, nothing is added.


# %% tags=["export", "internal"]
def state(rng: Random, clause: Clause) -> Phrase:
    """`, weil er müde ist`, said of a noun that is the only one of its gender, or nothing."""
    nouns = [clause.subject, *clause.objects]
    genders = [noun.gender for noun in nouns]
    clear = [noun for noun in nouns if noun.definite and genders.count(noun.gender) == 1]
    if not clear or any(noun.pronoun for noun in nouns):
        return NOTHING
    noun = rng.choice(clear)
    what = linked(*rng.choice(STATES["thing" if noun.kind == "thing" else "living"]))
    verb = linked(*TO_BE[clause.tense][noun.agreement == PLURAL])
    why, who = linked(*CONJUNCTIONS[0]), refer(noun)
    return Phrase(join(COMMA, why, who, what, verb).german, join(why, who, verb, what).english)


def condition(rng: Random) -> Phrase:
    """`..., weil er müde ist.`"""
    clause = draw_main_clause(rng)
    return sentence(clause, state(rng, clause))


# %% [markdown]
# The last line of `state` joins the same four phrases twice, in two orders: *weil er müde ist* and *because he is tired*.
#
# (sentences)=
# ## Sentences
#
# What is left is spelling. Three things depend on neighbors, so they could not be settled before: a comma that ends up before a full stop or before another comma goes, *a* becomes *an* before a vowel, and the first letter becomes a capital.


# %% tags=["export"]
def spell(phrase: list[Word]) -> list[Word]:
    """Drop a comma before another mark, write `an` before a vowel, and begin with a capital."""
    after = [*phrase[1:], Word("")]
    kept = [w for w, n in zip(phrase, after) if w.text != "," or n.text not in (",", ".")]
    texts = [word.text for word in kept]
    for place, following in enumerate(texts[1:]):
        if texts[place] == "a" and following[0] in "aeiou":
            texts[place] = "an"
    texts[0] = texts[0].capitalize()
    return [word._replace(text=text) for word, text in zip(kept, texts)]


def to_text(phrase: list[Word]) -> str:
    """Return the words as text, with no space before a mark."""
    return re.sub(r" ([,.?])", r"\1", " ".join(word.text for word in phrase))


# %% [markdown]
# Spelling changes texts and never links. So the links can now become an alignment: a pair of positions is in it if the two words share a link.


# %% tags=["export"]
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


# %%
pair = to_pair(question(Random(3)))
print(pair.source, "|", pair.target)
print(sorted(pair.alignment))

# %% [markdown]
# Word for word, that is:
#
# | | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | German | Hat | eine | kleine | Ärztin | den | Lehrer | angerufen | ? |
# | English | Did | a | small | doctor | call | the | teacher | ? |
#
# *Angerufen* is word 6 in German and leads to *call*, word 4 in English: (6, 4). The article and the noun between them, 4 and 5, have moved back by one. Every pair of words is compared, some $12 \cdot 12 = 144$ for a usual sentence, which takes no time worth saving.
#
# ### The corpus
#
# The kinds of sentences are listed as often as they should come up: three in eleven are plain statements, two in eleven may have the pronoun puzzle. `grammar` draws until it has enough, and throws away a sentence that it has had before.

# %% tags=["export"]
SENTENCES = (
    *(statement, statement, statement, description, question, reason),
    *(condition, condition, early_reason, report, attempt),
)


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
for kind in dict.fromkeys(SENTENCES):
    pair = to_pair(kind(Random(3)))
    print(f"{kind.__name__:12} {pair.source} | {pair.target}")

# %% [markdown]
# These are the eight kinds, each from the same dice. They resemble each other because the first rolls serve the same choices, and they part where one kind asks for what the other does not need. In the fifth, *er* is the teacher: the doctor is feminine.
#
# Why not list each kind once and give it a weight? A list with repetitions is the simplest weight there is, and `choice` needs nothing else.
#
# In `grammar` a dictionary keeps the order in which its keys came, so the list is in the order of drawing. `setdefault` adds a pair only if its German sentence is new.
#
# Two things must hold for every pair we draw. The seed alone decides: a longer list starts with the shorter one. And the alignment is complete: each German word except a comma is linked, each English word is linked.

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
# How far do words travel? If German and English had the same order, the alignment would be a diagonal. The figure shows a sentence where it is not.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-alignment", "caption": "Which German word became which English one? Each square is a link of the gold alignment. The German verb *holen ... ab* is in two places, and so is the English *do ... fetch*: four links. The time comes first in both languages, *ist* waits for the end of its clause, and a German comma has no partner."}, "image": {"alt": "A grid with English words as rows and German words as columns. Links follow the diagonal except for the verbs: do and fetch are each linked to the third and the ninth German word, and the last two words are swapped."}}
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
# Such a picture is what we will hold beside the attention of a trained model. It is known here without any model, which is what makes it a measure. The English of our grammar is plain, its world has 19 things in it, and nobody speaks like that. As a test of *whether a model looks at the right word*, it beats any amount of real text.
#
# ### How many pairs go word by word?
#
# If most of them did, a model could do well and have learned nothing of the above. We count the pairs whose alignment is a plain diagonal: word $i$ with word $i$, and nothing else.

# %%
plain = [pair for pair in pairs if all(i == j for i, j in pair.alignment)]
print(f"{len(plain) / len(pairs):.0%} go word by word, such as:", plain[0].source)
print(sum("," in pair.source for pair in plain), "of them have a subordinate clause")

