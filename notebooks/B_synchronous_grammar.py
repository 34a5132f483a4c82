# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # A synchronous grammar
#
# This appendix draws German-English sentence pairs, with gold alignments, from a small grammar of both languages.
#
# A **synchronous grammar** grows one meaning into two sentences. Ours first draws *what is said*: who does what to whom, when and where. Then each language puts it in order by its own rules. Every word keeps track of its translation, so the alignment is known: *Sie haben das große Kind angerufen.* / *They called the big child.*, where *haben* and *angerufen* both belong to *called*. Other chapters call `grammar(count, seed)`; read on if you want to know how it works, or to write one for your own languages.

# %% tags=["export"]
import re
from collections import namedtuple
from random import Random
from typing import NamedTuple

from annotated_transformer.data import Pair

# %% [markdown]
# These are the differences that make its sentences hard to translate.
#
# | German | English | what happens |
# |---|---|---|
# | Heute **ruft** der Mann die Frau **an**. | Today the man **calls** the woman. | one verb in two places |
# | ..., weil der Mann die Frau **anruft**. | ... because the man **calls** the woman. | in a subordinate clause the verb waits for the end |
# | **Den Hund** sieht die Katze. | The cat sees **the dog**. | the article, *den* instead of *der*, tells who is seen |
# | Die Frau **hat** den Mann **angerufen**. | The woman **called** the man. | two words for one, far apart |
# | **Schläft** der Hund nicht? | **Does** the dog not **sleep**? | one word for two |
# | **Im** Garten | **in the** garden | two words melt into one |
#
# ## Words with links
#
# Each word carries **links**, marks that it shares with its translation. Words may be moved, dropped or fused, and their links go with them; at the end two words are aligned exactly if they share one.


# %% tags=["export"]
class Word(NamedTuple):
    """A word; it is aligned with the words of the other language that share a link with it."""

    text: str
    links: frozenset[object] = frozenset()


class Phrase(NamedTuple):
    """The same meaning in both languages and, of a noun phrase, what has to agree with it."""

    german: list[Word]
    english: list[Word]
    agreement: int = 1  # 0, 1, 2: the verb's form for I, for he, for we and they
    gender: str = ""  # m, f, n or p for the plural; a pronoun has none
    kind: str = "p"  # person, animal or thing
    definite: bool = True


def linked(german: str, english: str) -> Phrase:
    """A phrase from text; `|` cuts both sides into parts that translate each other."""
    phrase = Phrase([], [])
    parts = zip(german.split("|"), english.split("|"), strict=True)
    for german_part, english_part in parts:
        link = frozenset([object()])
        phrase.german.extend(Word(text, link) for text in german_part.split())
        phrase.english.extend(Word(text, link) for text in english_part.split())
    return phrase


def join(*phrases: Phrase) -> Phrase:
    """Phrases one after the other, in both languages."""
    german = [word for phrase in phrases for word in phrase.german]
    english = [word for phrase in phrases for word in phrase.english]
    return Phrase(german, english)


NOTHING = Phrase([], [])
COMMA = Phrase([Word(",")], [])  # a German comma has no partner

# %%
phrase = linked("im|Garten", "in the|garden")
for german in phrase.german:
    partners = [word.text for word in phrase.english if word.links & german.links]
    print(german.text, "-", *partners)

# %% [markdown]
# ## The dictionary
#
# A German noun has a gender (m, f, n), which decides the form of article, adjective and pronoun. Nouns are persons (p), animals (a) or things (t), so that no lamp falls asleep. A verb has infinitive, third person, auxiliary, participle and particle, then the English forms, then who or what may stand in its nominative, dative and accusative: here a person calls a person.
#
# The world is small on purpose. After ten thousand sentences a model has met nearly every word many times, and what it still gets wrong is what we want to watch: order, case, agreement.

# %% tags=["export"]
NOUN_TABLE = """
Mann      Männer     man     men      m p
Frau      Frauen     woman   women    f p
Kind      Kinder     child   children n p
Lehrer    Lehrer     teacher teachers m p
Ärztin    Ärztinnen  doctor  doctors  f p
Gast      Gäste      guest   guests   m p
Königin   Königinnen queen   queens   f p
Hund      Hunde      dog     dogs     m a
Katze     Katzen     cat     cats     f a
Pferd     Pferde     horse   horses   n a
Vogel     Vögel      bird    birds    m a
Maus      Mäuse      mouse   mice     f a
Buch      Bücher     book    books    n t
Brief     Briefe     letter  letters  m t
Lampe     Lampen     lamp    lamps    f t
Apfel     Äpfel      apple   apples   m t
Bild      Bilder     picture pictures n t
Tasche    Taschen    bag     bags     f t
Schlüssel Schlüssel  key     keys     m t
"""
VERB_TABLE = """
sehen    sieht   hat gesehen      -   see       sees       saw         pa -  pat
suchen   sucht   hat gesucht      -   look_for  looks_for  looked_for  pa -  pat
malen    malt    hat gemalt       -   paint     paints     painted     p  -  pat
kaufen   kauft   hat gekauft      -   buy       buys       bought      p  -  t
jagen    jagt    hat gejagt       -   chase     chases     chased      a  -  a
rufen    ruft    hat angerufen    an  call      calls      called      p  -  p
laden    lädt    hat eingeladen   ein invite    invites    invited     p  -  p
holen    holt    hat abgeholt     ab  fetch     fetches    fetched     p  -  pat
heben    hebt    hat aufgehoben   auf pick_up   picks_up   picked_up   p  -  t
helfen   hilft   hat geholfen     -   help      helps      helped      p  pa -
folgen   folgt   ist gefolgt      -   follow    follows    followed    pa pa -
hören    hört    hat zugehört     zu  listen_to listens_to listened_to pa pa -
geben    gibt    hat gegeben      -   give      gives      gave        p  p  t
zeigen   zeigt   hat gezeigt      -   show      shows      showed      p  p  t
schlafen schläft hat geschlafen   -   sleep     sleeps     slept       pa -  -
lachen   lacht   hat gelacht      -   laugh     laughs     laughed     p  -  -
stehen   steht   ist aufgestanden auf get_up    gets_up    got_up      pa -  -
kommen   kommt   ist angekommen   an  arrive    arrives    arrived     pa -  -
"""
# All other words are lists of `german=english`
ADJECTIVES = {
    "p": "klein=small, groß=big, alt=old, jung=young, freundlich=friendly, klug=clever",
    "a": "klein=small, groß=big, alt=old, jung=young, schwarz=black, hungrig=hungry",
    "t": "klein=small, groß=big, alt=old, neu=new, schwarz=black, schön=beautiful",
}
SINGULAR_DETERMINERS = "der=the, der=the, dies=this, ein=a, ein=a"
PLURAL_DETERMINERS = "der=the, dies=these, zwei=two"
PRONOUNS = {
    "nom": "ich=I, er=he, sie=she, wir=we, sie=they",
    "acc": "ihn=him, sie=her",
    "dat": "ihm=him, ihr=her, ihnen=them",
}
# The forms for I, for he, for we and they
AUXILIARIES = {"hat": "habe hat haben=did", "ist": "bin ist sind=did"}
MODALS = "kann kann können=can, soll soll sollen=should, muss muss müssen=must"
PRESENT_TIMES = "heute=today, jeden|Tag=every|day, am|Abend=in the|evening"
PAST_TIMES = "gestern=yesterday, letzte|Woche=last|week, am|Morgen=in the|morning"
PLACES = (
    "im|Garten=in the|garden, in|der|Küche=in|the|kitchen, auf|dem|Markt=at|the|market, "
    "hinter|dem|Haus=behind|the|house, vor|der|Schule=in front of|the|school, "
    "am|Fluss=at the|river"
)
CONJUNCTIONS = "weil=because, obwohl=although, während=while"


def rows(table: str) -> list[list[str]]:
    """The cells of a table; `-` is an empty one, and `_` a space inside one."""
    return [
        [cell.strip("-").replace("_", " ") for cell in line.split()]
        for line in table.strip().splitlines()
    ]


Noun = namedtuple("Noun", "german german_plural english english_plural gender kind")
Verb = namedtuple(
    "Verb",
    "infinitive third_person auxiliary participle particle "
    "english english_third_person english_past roles",
)
NOUNS = [Noun(*row) for row in rows(NOUN_TABLE)]
VERBS = []
for *forms, nom, dat, acc in rows(VERB_TABLE):
    kinds = {"nom": nom, "dat": dat, "acc": acc}
    roles = {case: letters for case, letters in kinds.items() if letters}
    VERBS.append(Verb._make([*forms, roles]))


def choose(rng: Random, entries: str) -> list[str]:
    """German and English of one entry of a list."""
    return rng.choice(entries.split(", ")).split("=")


# %% [markdown]
# ## Case, gender, number
#
# English shows by order who does what, German by **case**: nominative for the one who does it, accusative for the one it is done to, dative for the one who receives. The case shows once, in the words before the noun. If the determiner has the ending in `STRONG`, the adjective gets a weak one (*d**er** alte Hund*); if it has none, the adjective shows it (*ein alt**er** Hund*). `decline` is this rule.

# %% tags=["export"]
STRONG = {  # the endings of dieser; p is the plural
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}


def decline(stem: str, case: str, gender: str) -> tuple[str, str]:
    """A determiner such as `der` in its case, and the ending of an adjective that follows it."""
    strong = STRONG[case][gender]
    bare = (case, gender) in [("nom", "m"), ("nom", "n"), ("acc", "n")]
    if stem == "zwei" or (stem in ("ein", "kein") and bare):
        return stem, strong
    like_nominative = strong == STRONG["nom"][gender]
    weak = "e" if like_nominative and gender != "p" else "en"
    if stem == "der":
        articles = {"e": "die", "es": "das"}
        return articles.get(strong, "d" + strong), weak
    return stem + strong, weak


def draw_noun_phrase(
    rng: Random, case: str, kinds: str, pronouns: float = 0.2
) -> Phrase:
    """A determiner, perhaps an adjective, and a noun of one of the kinds; or a pronoun."""
    if "p" in kinds and rng.random() < pronouns:
        german, english = choose(rng, PRONOUNS[case])
        agreement = {"I": 0, "we": 2, "they": 2}.get(english, 1)
        return linked(german, english)._replace(agreement=agreement)
    noun = rng.choice([noun for noun in NOUNS if noun.kind in kinds])
    plural = rng.random() < 0.25
    gender = "p" if plural else noun.gender
    stem, english = choose(rng, PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
    if case == "acc" and rng.random() < 0.1:
        stem, english = "kein", "no"
    german, ending = decline(stem, case, gender)
    if rng.random() < 0.35:
        german_adjective, english_adjective = choose(rng, ADJECTIVES[noun.kind])
        german += f"|{german_adjective}{ending}"
        english += f"|{english_adjective}"
    german += f"|{noun.german_plural if plural else noun.german}"
    english += f"|{noun.english_plural if plural else noun.english}"
    if plural and case == "dat" and not german.endswith("n"):
        german += "n"  # den Hunden
    return linked(german, english)._replace(
        agreement=2 if plural else 1,
        gender=gender,
        kind=noun.kind,
        definite=stem in ("der", "dies"),
    )


# %%
examples = [("der", "m", "Hund"), ("ein", "m", "Hund"), ("dies", "f", "Katze")]
for case in STRONG:
    phrases = []
    for stem, gender, noun in examples:
        determiner, ending = decline(stem, case, gender)
        phrases.append(f"{determiner} alt{ending} {noun}")
    print(case, ", ".join(phrases))

# %% [markdown]
# ## Verbs
#
# A German clause is built around a **bracket**. In a main clause the *finite* verb, which agrees with its subject, comes second and opens the bracket; the rest of the verb closes it at the end. English has its own oddity: a question or a *not* needs *do*, unless there is another auxiliary.
#
# | | opens | closes | English | as a question |
# |---|---|---|---|---|
# | present | er **ruft** ... | ... **an** | he calls | does he call |
# | past | er **hat** ... | ... **angerufen** | he called | did he call |
# | modal | er **muss** ... | ... **anrufen** | he must call | must he call |


# %% tags=["export"]
class Predicate(NamedTuple):
    """The verbs of a clause: German finite and closing ones; English auxiliary and main verb."""

    finite: Word
    closing: list[Word]
    auxiliary: list[Word]
    main: list[Word]
    separable: bool = False  # the closing word is a particle


def draw_predicate(
    rng: Random, verb: Verb, agreement: int, past: bool, question: bool, negated: bool
) -> Predicate:
    """A verb in the past, in the present, or below a modal verb, which is never negated."""
    modal = not past and not negated and rng.random() < 0.4
    if past:
        forms, auxiliary = choose(rng, AUXILIARIES[verb.auxiliary])
        closing = verb.participle
        inflected = verb.english_past
    elif modal:
        forms, auxiliary = choose(rng, MODALS)
        closing = verb.particle + verb.infinitive
    else:
        forms = f"{verb.infinitive[:-1]} {verb.third_person} {verb.infinitive}"
        closing = verb.particle
        auxiliary = "does" if agreement == 1 else "do"
        inflected = verb.english_third_person if agreement == 1 else verb.english
    finite = forms.split()[agreement]
    helped = modal or question or negated
    # Two parts on both sides, or one: do and its verb are one German verb
    cut = "|" if helped and (past or modal) else " "
    english = auxiliary + cut + verb.english if helped else inflected
    verbs = linked(finite + cut + closing, english)
    opens, *closes = verbs.german
    helpers = 1 if helped else 0
    return Predicate(
        opens,
        closes,
        auxiliary=verbs.english[:helpers],
        main=verbs.english[helpers:],
        separable=bool(verb.particle) and not past and not modal,
    )


# %% [markdown]
# ## A clause in two orders
#
# The record below is where the two languages meet: all that was drawn goes in, and two functions read it out, each in its own order. `front` is what German puts first, which may be nearly anything; English follows (`fronted`), except for an object.


# %% tags=["export"]
class Clause(NamedTuple):
    """What a clause says; German puts `front` first, and English too, where `fronted`."""

    subject: Phrase
    predicate: Predicate
    past: bool
    objects: list[Phrase]
    time: Phrase
    place: Phrase
    negation: Phrase
    front: Phrase
    fronted: bool


def german_clause(clause: Clause, verb_last: bool = False) -> list[Word]:
    """Front, finite verb, the middle, closing verb; in a subordinate clause all verbs are last."""
    front = clause.front.german
    finite = clause.predicate.finite
    closing = clause.predicate.closing
    pronouns = [phrase for phrase in clause.objects if not phrase.gender]
    nouns = [phrase for phrase in clause.objects if phrase.gender]
    late = [clause.negation, clause.place]
    field = [clause.subject, *pronouns, clause.time, *nouns, *late]
    middle = join(*[phrase for phrase in field if phrase is not clause.front]).german
    if not verb_last:
        return [*front, finite, *middle, *closing]
    if clause.predicate.separable:
        closing = []
        finite = Word(clause.predicate.closing[0].text + finite.text, finite.links)
    return [*front, *middle, *closing, finite]


def english_clause(clause: Clause, question: bool = False) -> list[Word]:
    """Subject, verb, objects, place, time; in a question the auxiliary comes first."""
    early = clause.front if clause.fronted else NOTHING
    behind = [*clause.objects, clause.place, clause.time]
    later = join(*[phrase for phrase in behind if phrase is not early]).english
    subject = clause.subject.english
    auxiliary = clause.predicate.auxiliary
    start = auxiliary + subject if question else subject + auxiliary
    verb = clause.negation.english + clause.predicate.main
    return [*early.english, *start, *verb, *later]


# %% [markdown]
# One meaning, built by hand and said in three ways:

# %%
man = linked("der|Mann", "the|man")._replace(gender="m")
woman = linked("die|alte|Frau", "the|old|woman")._replace(gender="f")
today = linked("heute", "today")
garden = linked("im|Garten", "in the|garden")
(ruft, an), (calls,) = linked("ruft an", "calls")[:2]
verb = Predicate(ruft, [an], [], [calls], separable=True)
does, call = Word("does", ruft.links), Word("call", ruft.links)
verb_with_do = Predicate(ruft, [an], [does], [call], separable=True)

statement = Clause(
    man, verb, False, [woman], today, garden, NOTHING, today, fronted=True
)
behind = statement._replace(front=man, fronted=False)
asked = statement._replace(front=NOTHING, fronted=False, predicate=verb_with_do)
orders = {
    "a statement": (german_clause(statement), english_clause(statement)),
    "behind weil": (german_clause(behind, verb_last=True), english_clause(behind)),
    "a question": (german_clause(asked), english_clause(asked, question=True)),
}
for german, english in orders.values():
    print(*[word.text for word in german], "|", *[word.text for word in english])

# %% [markdown]
# ## Drawing a clause
#
# We rule out what one language would say differently, and nearly all that has two meanings. (In one sentence of a hundred, a relative clause such as *die Frau, die die Katze sieht* can still be read both ways.) These are out:
#
# | left out | because |
# |---|---|
# | *not* with *a* or *two* | German would negate the noun: *keinen Hund* |
# | *not* with a modal verb | *he must not* forbids, *er muss nicht* permits |
# | *not* with a place | does it deny the sleeping or the garden? |
# | a pronoun for a thing | *it* needs something named before |
# | a front object that is not masculine | in *die Katze sieht die Frau*, which one sees? |
#
# A subordinate clause has a comma before it and all its verbs at the end. It follows a conjunction, or it is a *relative clause*, whose pronoun takes its gender from the noun that it describes and its case from its own clause.


# %% tags=["export"]
def draw_clause(
    rng: Random,
    verb: Verb,
    past: bool,
    opening: dict[str, Phrase],
    question: bool = False,
) -> Clause:
    """A clause around a verb; `opening` may give, by its case, the phrase that opens it."""
    phrases = [
        opening.get(case) or draw_noun_phrase(rng, case, kinds)
        for case, kinds in verb.roles.items()
    ]
    subject, *objects = phrases
    negated = all(phrase.definite for phrase in phrases) and rng.random() < 0.25
    predicate = draw_predicate(rng, verb, subject.agreement, past, question, negated)
    time = place = NOTHING
    if rng.random() < 0.3:
        time = linked(*choose(rng, PAST_TIMES if past else PRESENT_TIMES))
    if not negated and rng.random() < 0.2:
        place = linked(*choose(rng, PLACES))
    negation = linked("nicht", "not") if negated else NOTHING
    front = next(iter(opening.values()), NOTHING)
    fronted = bool(opening) and "nom" not in opening
    return Clause(
        subject, predicate, past, objects, time, place, negation, front, fronted
    )


def behind_comma(clause: Clause, start: Phrase = NOTHING) -> Phrase:
    """A comma, perhaps a conjunction, and a clause with its German verbs at the end."""
    ordered = Phrase(german_clause(clause, verb_last=True), english_clause(clause))
    return join(COMMA, start, ordered)


def relative_clause(rng: Random, noun: Phrase) -> Phrase:
    """`, den die Katze sieht`: a clause in which the noun is the subject or the last object."""
    possible = [
        (verb, case)
        for verb in VERBS
        for case in ("nom", list(verb.roles)[-1])  # without an object, it counts twice
        if noun.kind in verb.roles[case]
    ]
    verb, case = rng.choice(possible)
    german, _ = decline("der", case, noun.gender)
    if case == "dat" and noun.gender == "p":
        german = "denen"
    english = "who" if case == "nom" and noun.kind == "p" else "that"
    pronoun = linked(german, english)._replace(agreement=noun.agreement)
    past = rng.random() < 0.5
    return behind_comma(draw_clause(rng, verb, past, {case: pronoun}))


def reason(rng: Random, past: bool) -> Phrase:
    """`, weil die Frau schläft`: a conjunction and a clause with a noun as its subject."""
    verb = rng.choice(VERBS)
    subject = draw_noun_phrase(rng, "nom", verb.roles["nom"], pronouns=0)
    clause = draw_clause(rng, verb, past, {"nom": subject})
    return behind_comma(clause, linked(*choose(rng, CONJUNCTIONS)))


def draw_main_clause(rng: Random, question: bool = False) -> Clause:
    """A question, or a statement that opens with subject, reason, time or a masculine object."""
    verb = rng.choice(VERBS)
    past = rng.random() < 0.5
    clause = draw_clause(rng, verb, past, {}, question)
    if question:
        return clause
    dice = rng.random()
    if dice < 0.1:
        german, english, *_ = reason(rng, past)
        opening = join(Phrase(german[1:], english), linked(",", ","))
        return clause._replace(front=opening, fronted=True)
    if dice < 0.6 and clause.time.german:
        return clause._replace(front=clause.time, fronted=True)
    masculine = [phrase for phrase in clause.objects if phrase.gender == "m"]
    if dice > 0.8 and masculine:
        return clause._replace(front=masculine[0])
    return clause._replace(front=clause.subject)


# %% [markdown]
# ## Sentences
#
# What is left is spelling: commas before another mark, *a* before a vowel, the capital at the start. Spelling never changes links, so the alignment can be read off.


# %% tags=["export"]
def draw_sentence(rng: Random) -> Phrase:
    """A main clause; a clause may describe its subject or its last object, or give a reason."""
    question = rng.random() < 0.1
    clause = draw_main_clause(rng, question)
    subject = clause.subject
    if clause.front is subject and subject.gender and rng.random() < 0.25:
        described = join(subject, relative_clause(rng, subject), COMMA)
        clause = clause._replace(subject=described, front=described)
    tail = NOTHING
    if rng.random() < 0.25:
        tail = reason(rng, clause.past)
    elif ends_with_noun(clause) and rng.random() < 0.25:
        tail = relative_clause(rng, clause.objects[-1])
    main = Phrase(german_clause(clause), english_clause(clause, question))
    mark = "?" if question else "."
    return join(main, tail, linked(mark, mark))


def ends_with_noun(clause: Clause) -> bool:
    """Whether the last object is a noun that nothing but a verb follows."""
    *_, last = clause.objects or [NOTHING]
    late_time = clause.time.german and clause.front is not clause.time
    followed = clause.place.german or late_time
    return bool(last.gender and last is not clause.front and not followed)


def spell(side: list[Word]) -> str:
    """The words as text: no space before a mark, `an` before a vowel, a capital first."""
    text = re.sub(r" ([,.?])", r"\1", " ".join(word.text for word in side))
    text = re.sub(r"\ba (?=[aeiou])", "an ", text)
    return text[0].upper() + text[1:]


def to_pair(phrase: Phrase) -> Pair:
    """Both sides as text, with the alignment that their links tell."""
    german = []
    for word, following in zip(phrase.german, [*phrase.german[1:], Word("")]):
        if word.text != "," or following.text not in (",", "."):
            german.append(word)
    alignment = frozenset(
        (i, j)
        for i, german_word in enumerate(german)
        for j, english_word in enumerate(phrase.english)
        if not german_word.links.isdisjoint(english_word.links)
    )
    return Pair(spell(german), spell(phrase.english), alignment)


def grammar(count: int, seed: int = 0) -> list[Pair]:
    """German-English pairs with gold alignments, drawn from a seed.

    No German sentence comes twice, so slices of the list never share one: `pairs[:9000]` to
    train, `pairs[9000:]` to test.
    """
    rng = Random(seed)
    pairs: dict[str, Pair] = {}
    while len(pairs) < count:
        pair = to_pair(draw_sentence(rng))
        pairs.setdefault(pair.source, pair)
    return list(pairs.values())


# %%
from annotated_transformer.data import words

pairs = grammar(10_000, seed=0)
for pair in pairs[:4]:
    print(pair.source, "|", pair.target)
lengths = [len(words(pair.source)) for pair in pairs]
print(f"{sum(lengths) / len(lengths):.1f} German words per sentence")

# %% [markdown]
# The seed alone decides, and a longer list starts with the shorter one. No German sentence comes twice. And the alignment is complete: every word has a partner, except for a German comma.

# %%
word_by_word = [pair for pair in pairs if all(i == j for i, j in pair.alignment)]
print(f"{len(word_by_word) / len(pairs):.0%} go word by word, such as:")
print(word_by_word[0].source)

# %% tags=["remove-cell"]
if CHECKING:
    assert pairs[:50] == grammar(50, seed=0)
    assert len({pair.source for pair in pairs}) == len(pairs)
    for pair in pairs:
        german, english = words(pair.source), words(pair.target)
        not_commas = {i for i, word in enumerate(german) if word != ","}
        assert {i for i, _ in pair.alignment} >= not_commas
        assert {j for _, j in pair.alignment} == set(range(len(english)))

# %% [markdown]
# ## For another pair of languages
#
# Keep `linked`, `join` and everything from `draw_sentence` on, except the *an* in `spell`. Replace the dictionary, `decline`, and the words inside the `draw_` functions and `relative_clause`; write one function for each new language that puts a `Clause` in order. Start with statements and two verbs.
