"""Write the sentence pairs of the everyday models as one table: Tatoeba's and Multi30k's captions.

One pair in eight comes a second time, its source as people type in a hurry: "ich liebe dich". The
command that trains keeps the two together when it puts pairs aside. Every third pair to learn from
that speaks of Tom, Mary, Boston or a number comes again with other names and numbers, because
Tatoeba has hardly any others to learn copying from.

With --more, the table also has what a visitor tries first and Tatoeba has once or never: greetings
of `phrases.tsv`; sentences of up to three words with and without capitals and marks; two sentences
in a row; other dates, and other half hours; surnames, titles and made-up names, which only copying
gets right.

With --words, the table has all of that and single words of `words.tsv`, alone and a few in a row,
sentences with an emoji, and two in a row of which one may be translated already.

`deu-eng.zip` is that of https://www.manythings.org/anki of 2018-05-13 (SHA-256
b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28); another makes another table.
"""

import re
import zipfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from annotated_transformer.data import Pair
from annotated_transformer.own_data import (
    filter_pairs,
    hash_share,
    multi30k,
    single_spaced,
    split_pairs,
)
from tools.command import command_line


def read_rows(name: str) -> list[list[str]]:
    """Return the columns of each line of a table in this folder."""
    text = Path(__file__).with_name(name).read_text("utf-8")
    return [line.split("\t") for line in text.splitlines()]


NAMES = {kind: names.split() for kind, names in read_rows("names.tsv")}
MONTHS = dict(name.split("/") for name in NAMES["months"])  # German: English
HOURS = dict(name.split("/") for name in NAMES["hours"])
ONSETS = "b br ch d dr f fl g gr h j k kl kr l m n p qu r s sch sh st t tr v w x y z"
VOWELS = "a a a e e e i i o o u ä ö ü au ei ie"
# The first three are empty
CODAS = "   ck ff hn l ll m n n nd ng r r rg s ss st t tt tz"


class Stranger(NamedTuple):
    """Whom a name gives way to: names of a kind, and what may come before them."""

    pattern: str  # of the name that gives way
    names: str
    first_names: str = ""
    titles: tuple[str, str] = ("", "")  # German, English


STRANGERS = (
    Stranger("Tom", "surnames", "men", ("Herr ", "Mr. ")),
    Stranger("Maria|Mary", "surnames", "women", ("Frau ", "Mrs. ")),
    Stranger("Meier", "surnames"),
    Stranger("Boston", "small towns"),
)
REPLACED_NAME = re.compile(r"\b(Tom|Maria|Mary|Meier|Boston)\b")
REPLACEMENTS = {"Tom": "men", "Maria": "women", "Mary": "women", "Boston": "towns"}
NUMBER = re.compile(r"(?<![\d.,:])\d{2,4}(?![\d:]|[.,]\d)")
GERMAN_DATE = rf"\b\d\d?\. ({'|'.join(MONTHS)})\b"
ENGLISH_DATE = rf"\b({'|'.join(MONTHS.values())}) \d\d?(st|nd|rd|th)?\b"
GERMAN_HALF_HOUR = rf"\bhalb ({'|'.join(HOURS)})\b"
ENGLISH_HALF_HOUR = (
    rf"\b\d\d?:30\b|\b({'|'.join(HOURS.values())})[- ]thirty\b|\bhalf past \w+\b"
)
EMOJI = "😀 😂 🙂 😉 😊 😍 😘 😎 😅 😢 😭 😡 😱 🤔 🥰 👍 👏 🙏 💪 ❤ ❤️ 💕 🎉 🎂 🔥 🌹 ☀️ ⭐ 🍀 🚀"

TYPED_SHARE = 1 / 8  # of the pairs, come once more as if typed in a hurry
RENAMED_SHARE = 1 / 3  # of the pairs with a name or number, come once more with another
TIMES_PER_PAIR = 8  # how often a date or half hour comes
ROWS_PER_PHRASE = 24  # how often a phrase comes beside another sentence
NAMES_PER_PHRASE = 30  # how often a phrase with a name comes
ROWS_PER_WORD = 30  # how often each form of a word comes in a row of words
NEIGHBORS = 40  # rows are drawn from so many forms before and after
DRAWN_SENTENCES = 5000  # with an emoji; translated already; two of which one may be


def tatoeba(archive: Path) -> list[Pair]:
    """Return the German-English pairs of a zip file of manythings.org/anki."""
    with zipfile.ZipFile(archive) as opened:
        lines = opened.read("deu.txt").decode().splitlines()
    pairs = []
    for line in lines:
        english, german, *_ = line.split("\t")
        pairs.append(Pair(german, english))
    return pairs


def turned(pair: Pair, direction: str) -> Pair:
    """Return a German-English pair in a direction, or one of a direction as German-English."""
    return Pair(pair.target, pair.source) if direction == "en-de" else pair


def share_of(pair: Pair, seed: int) -> float:
    """Return a number between 0 and 1 that a pair's text always gives."""
    return hash_share(f"{pair.source}\t{pair.target}", seed)


def is_short(pair: Pair, most_words: int) -> bool:
    """Return whether both sides have so many words at most."""
    return all(len(text.split()) <= most_words for text in pair[:2])


def typed(text: str) -> str:
    """Return a sentence without capitals and without its last mark."""
    return text.lower().rstrip(".!? ")


def spellings(text: str) -> list[str]:
    """Return a sentence with and without capitals and marks."""
    bare = text.rstrip(".!?")
    shouted = text.rstrip(".!") + "!"
    calm = text.replace("!", ".")
    return [text, typed(text), text.lower(), bare, shouted, calm]


# --- Other names, numbers, dates and half hours ---


def renamed(pair: Pair, direction: str) -> Pair:
    """Return a pair with other names and numbers, chosen by its text."""
    source, target = pair[:2]
    share = share_of(pair, seed=1)
    for name, replacements in REPLACEMENTS.items():
        entries = NAMES[replacements]
        entry = entries[int(share * len(entries))].replace("=", " ")
        german, _, english = entry.partition("/")  # of "Wien/Vienna"
        new = turned(Pair(german, english or german), direction)
        pattern = rf"\b{name}(?=s?\b)"
        source = re.sub(pattern, new.source, source)
        target = re.sub(pattern, new.target, target)

    shared_numbers = set(NUMBER.findall(source)) & set(NUMBER.findall(target))

    def exchanged(match: re.Match[str]) -> str:
        if match[0] not in shared_numbers:
            return match[0]
        lowest = 10 ** (len(match[0]) - 1)
        place = (hash_share(match[0], seed=1) + share) % 1
        return str(lowest + int(place * 9 * lowest))  # of as many digits

    return Pair(NUMBER.sub(exchanged, source), NUMBER.sub(exchanged, target))


def drawn_date(draw: Random) -> tuple[str, str]:
    """Return a date in German and in English."""
    month = draw.choice(list(MONTHS))
    day = draw.randint(1, 28)
    ordinal = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}.get(day, "th")
    ending = draw.choice(["", ordinal])
    return f"{day}. {month}", f"{MONTHS[month]} {day}{ending}"


def drawn_half_hour(draw: Random) -> tuple[str, str]:
    """Return a half hour in German and in English, which counts from the hour before."""
    hours = list(HOURS)
    hour = draw.randrange(12)
    word = HOURS[hours[hour - 1]]
    half_past = f"half past {word}"
    english = [half_past, half_past, f"{word} thirty", f"{hour or 12}:30"]
    return f"halb {hours[hour]}", draw.choice(english)


def at_other_times(pair: Pair) -> list[Pair]:
    """Return a German-English pair with other dates and half hours, if it has any."""
    pairs = []
    for german_pattern, english_pattern, drawn_time in (
        (GERMAN_DATE, ENGLISH_DATE, drawn_date),
        (GERMAN_HALF_HOUR, ENGLISH_HALF_HOUR, drawn_half_hour),
    ):
        there = re.search(german_pattern, pair.source)
        if not there or not re.search(english_pattern, pair.target):
            continue
        draw = Random(f"{pair.source}\t{pair.target}")
        for _ in range(TIMES_PER_PAIR):
            german, english = drawn_time(draw)
            source = re.sub(german_pattern, german, pair.source)
            target = re.sub(english_pattern, english, pair.target)
            pairs.append(Pair(source, target))
    return pairs


def made_up_name(draw: Random) -> str:
    """Return a name that nobody has."""
    parts = (ONSETS, VOWELS, CODAS) * draw.randint(1, 3)
    return "".join(draw.choice(part.split(" ")) for part in parts).capitalize()


def introduced(pair: Pair, draw: Random) -> Pair:
    """Return a German-English pair with surnames, titles, small towns and made-up names."""
    german, english = pair[:2]
    for stranger in STRANGERS:
        listed_name = draw.choice(NAMES[stranger.names])
        name = draw.choice([listed_name, made_up_name(draw)])
        before = ("", "")
        if stranger.first_names:
            first_name = draw.choice(NAMES[stranger.first_names]) + " "
            before = draw.choice([before, (first_name, first_name), stranger.titles])
        if before[0] == "Herr " and not german.startswith("Tom "):
            before = ("", "")  # it may have to be Herrn
        pattern = rf"\b({stranger.pattern})\b"
        german = re.sub(pattern, before[0] + name, german)
        english = re.sub(pattern, before[1] + name, english)
    return Pair(german, english)


# --- What visitors try first ---


def two_in_a_row(pairs: list[Pair]) -> list[Pair]:
    """Return each pair together with the next."""
    return [
        Pair(f"{pair.source} {after.source}", f"{pair.target} {after.target}")
        for pair, after in pairwise(pairs)
    ]


def phrase_rows(learned: list[Pair], direction: str) -> list[Pair]:
    """Return greetings, spellings, times and strangers, made of pairs to learn from."""
    draw = Random(0)
    listed = [
        turned(Pair(row[0], row[1]), direction) for row in read_rows("phrases.tsv")
    ]
    by_source = {pair.source: pair for pair in reversed(listed)}
    phrases = list(reversed(by_source.values()))

    handy = [pair for pair in learned if is_short(pair, 7)]
    sentences = draw.sample(handy, len(handy) // 4) + ROWS_PER_PHRASE * phrases
    draw.shuffle(sentences)
    rows = two_in_a_row(sentences)

    for pair in phrases + [pair for pair in learned if is_short(pair, 3)]:
        rows += [Pair(text, pair.target) for text in spellings(pair.source)]

    for pair in learned:
        times = at_other_times(turned(pair, direction))
        rows += [turned(new, direction) for new in times]

    chosen = [pair for pair in learned if share_of(pair, seed=3) < RENAMED_SHARE]
    for pair in chosen + NAMES_PER_PHRASE * phrases:
        source_names, target_names = map(REPLACED_NAME.findall, pair[:2])
        if 0 < len(source_names) == len(target_names):  # no "Toms" for "Tom's"
            new = introduced(turned(pair, direction), draw)
            rows.append(turned(new, direction))
    return rows


def inflected(word: Pair) -> list[Pair]:
    """Return a word of the list as it stands there, and without article or "to"."""
    german, english = word[:2]
    forms = [word]
    if english.startswith("the "):
        article, german_noun = german.split(" ")
        noun = english.removeprefix("the ")
        forms.append(Pair(german_noun, noun))
        ein = "eine" if article == "die" else "ein"
        a = "an" if re.match("[aeio]|u(?!ni)|hour", noun) else "a"
        forms.append(Pair(f"{ein} {german_noun}", f"{a} {noun}"))
    elif english.startswith("to "):
        forms.append(Pair(german, english.removeprefix("to ")))
    return forms


def word_forms(direction: str) -> list[Pair]:
    """Return the forms of the listed words; where a form has several translations, the first."""
    forms = []
    for row in read_rows("words.tsv"):
        forms += [turned(form, direction) for form in inflected(Pair(row[0], row[1]))]
    first_target = {form.source: form.target for form in reversed(forms)}
    return [form for form in forms if first_target[form.source] == form.target]


def capitalized(text: str) -> str:
    """Return a text that begins with a capital; the rest stays."""
    return text[0].upper() + text[1:]


def words_alone(forms: list[Pair]) -> list[Pair]:
    """Return each form as it is, with and without a capital, and as a sentence."""
    sources = {form.source for form in forms}
    rows = forms.copy()
    for source, target, _ in forms:
        for spelled in (capitalized(source), source.lower()):
            if spelled not in sources:
                rows.append(Pair(spelled, target))
        for mark in ".!?":
            rows.append(Pair(capitalized(source) + mark, capitalized(target) + mark))
    return rows


def words_in_a_row(forms: list[Pair], direction: str, draw: Random) -> list[Pair]:
    """Return rows of two or three words of a kind, which are neighbors in the list."""
    joins = [Pair(", ", ", "), Pair(" und ", " and "), Pair(" oder ", " or ")]
    rows = []
    for _ in range(ROWS_PER_WORD):
        for number, form in enumerate(forms):
            neighbors = forms[max(0, number - NEIGHBORS) : number + NEIGHBORS]
            words = [*draw.choices(neighbors, k=draw.randint(1, 2)), form]
            join = turned(draw.choice(joins), direction)
            source = join.source.join(word.source for word in words)
            target = join.target.join(word.target for word in words)
            if draw.random() < TYPED_SHARE:
                source = source.lower()
            rows.append(Pair(source, target))
    return rows


def word_rows(learned: list[Pair], direction: str) -> list[Pair]:
    """Return single words, emoji, and sentences of which one is translated already."""
    draw = Random(0)
    forms = word_forms(direction)
    rows = words_alone(forms) + words_in_a_row(forms, direction, draw)

    handy = [pair for pair in learned if is_short(pair, 7)]
    with_emoji = []
    for source, target, _ in draw.sample(handy, DRAWN_SENTENCES):
        emoji = draw.choice(EMOJI.split())
        with_emoji.append(Pair(f"{source} {emoji}", f"{target} {emoji}"))
    translated = [Pair(p.target, p.target) for p in draw.sample(handy, DRAWN_SENTENCES)]
    plain = draw.sample(handy, DRAWN_SENTENCES)
    mixed = draw.sample(with_emoji + translated + plain, DRAWN_SENTENCES)
    return rows + with_emoji + two_in_a_row(mixed)


def everyday_pairs(archive: Path, direction: str, table: str = "plain") -> list[Pair]:
    """Return all pairs of a table: "plain", "more" or "words"."""
    pairs = [turned(pair, direction) for pair in tatoeba(archive) + multi30k("train")]
    rows = pairs.copy()
    for pair in pairs:
        if share_of(pair, seed=0) < TYPED_SHARE:
            rows.append(Pair(typed(pair.source), pair.target))

    learned = split_pairs(filter_pairs(pairs)[0], 0.01, 0.01).train
    for pair in learned:
        if share_of(pair, seed=2) < RENAMED_SHARE:
            new = renamed(pair, direction)
            if new[:2] != pair[:2]:
                rows.append(new)
    if table in ("more", "words"):
        rows += phrase_rows(learned, direction)
    if table == "words":
        rows += word_rows(learned, direction)
    return rows


def main() -> None:
    """Write the table that the command line names."""
    parser = command_line("tools.everyday", __doc__)
    parser.add_argument("archive", type=Path, help="Tatoeba's pairs, deu-eng.zip")
    parser.add_argument("direction", choices=["de-en", "en-de"])
    parser.add_argument("output", type=Path, help="the table, everyday.tsv")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--words", action="store_true")
    options = parser.parse_args()
    table = "words" if options.words else "more" if options.more else "plain"
    pairs = everyday_pairs(options.archive, options.direction, table)
    rows = ["\t".join(map(single_spaced, pair[:2])) + "\n" for pair in pairs]
    options.output.write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
