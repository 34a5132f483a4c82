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
from annotated_transformer.toolkit.downloads import multi30k
from annotated_transformer.toolkit.own_data import (
    filter_pairs,
    hash_share,
    single_spaced,
    split_pairs,
)
from tools.command import command_line

MEN = """
Adam Ahmed Alexander Ali Andrew Anton Ben Bernd Bruno Carlo Carl Charlie Christian Daniel David
Dieter Elia Emil Emilio Erik Fabian Felix Finn Florian Frank Frederik Georg George Giovanni Gustav
Harald Harry Heinrich Henry Holger Igor Ivan Jakob Jan Jim Joachim Johann John Jonathan Josef Julian
Karl Kevin Konrad Kurt Leo Leon Leonard Levin Linus Louis Ludwig Luigi Lukas Malik Manfred Marco
Mario Martin Matteo Matthew Maximilian Michael Mohammed Moritz Niklas Noah Norbert Olaf Oliver Omar
Oskar Otto Patrick Paul Peter Philipp Rainer Ralf Richard Robert Robin Roland Sam Samuel Sebastian
Simon Stefan Steve Sven Theo Thomas Till Tim Tobias Torsten Uwe Viktor Vincent Walter Werner William
Wolfgang Yusuf
"""
WOMEN = """
Agnes Alice Amelie Andrea Angela Anja Anna Anne Antonia Aylin Barbara Beate Birgit Brigitte Carla
Carmen Caroline Charlotte Christina Clara Claudia Daniela Diana Doris Elena Elif Elisabeth Ella
Emily Emma Erika Eva Fatima Franziska Frieda Gabi Gisela Greta Hanna Heike Helen Helga Ida Ingrid
Irene Isabella Jana Jasmin Jennifer Jessica Johanna Julia Jutta Karin Katharina Katja Kira Lara
Laura Lea Lena Leonie Lilly Linda Lisa Lotte Luisa Magdalena Maja Margarete Martha Martina Melanie
Mia Monika Nadine Natalie Nicole Nina Nora Olga Patricia Paula Petra Pia Renate Rita Rosa Ruth
Sabine Sandra Sara Silke Simone Sofia Sonja Sophie Stefanie Susanne Tanja Teresa Tina Ulla Ursula
Valentina Vanessa Vera Veronika Yasmin Zoe
"""
TOWNS = """
Aachen Amsterdam Augsburg Barcelona Basel Berlin Bern Bielefeld Bochum Bonn Bremen Bremerhaven
Budapest Cambridge Chemnitz Chicago Dallas Darmstadt Dortmund Dresden Dublin Duisburg Edinburgh
Erfurt Erlangen Essen Frankfurt Freiburg Graz Halle Hamburg Hannover Heidelberg Helsinki Innsbruck
Istanbul Jena Karlsruhe Kassel Kiel Koblenz Leipzig Linz London Los=Angeles Luzern Madrid Magdeburg
Mainz Manchester Mannheim Marburg Melbourne Miami Montreal Oldenburg Osaka Oslo Oxford Paderborn
Paris Potsdam Regensburg Rostock Salzburg San=Francisco Seattle Stockholm Stuttgart Sydney
Tokio/Tokyo Toronto Weimar Wien/Vienna München/Munich Köln/Cologne Rom/Rome Prag/Prague
Moskau/Moscow Brüssel/Brussels Zürich/Zurich Nürnberg/Nuremberg Genf/Geneva Mailand/Milan
Venedig/Venice Neapel/Naples Lissabon/Lisbon Athen/Athens Warschau/Warsaw Kopenhagen/Copenhagen
Peking/Beijing
"""
SURNAMES = """
Albrecht Andersen Arnold Bauer Baumann Beck Becker Berger Bergmann Bianchi Bosch Brandt Braun Brown
Busch Chen Davis Diaz Dietrich Dubois Eder Engel Ernst Evans Fernandez Fischer Frank Friedrich Fuchs
Garcia Graf Gross Gruber Günther Haas Hahn Hansen Harris Hartmann Heinrich Herrmann Hoffmann Hofmann
Horn Huber Ivanov Jackson Jansen Johnson Jones Jung Kaiser Kaya Keller Khan Kim Klein Koch Kowalski
Kraus Krüger Kuhn Kumar Lang Larsen Lee Lehmann Lewis Lopez Lorenz Ludwig Maier Martinez Mayer Meyer
Miller Möller Moore Müller Nagel Neumann Nguyen Novak Otto Patel Petrov Pfeiffer Pohl Popov Richter
Rossi Roth Sánchez Sato Sauer Schäfer Scholz Schreiber Schröder Schubert Schulz Schuster Schwarz
Seidel Silva Simon Singh Sommer Stein Suzuki Tanaka Taylor Thompson Vogel Vogt Wagner Walker Wang
Weber Weiß White Williams Wilson Winkler Winter Wolf Wright Yılmaz Young Ziegler Zimmermann
"""
ONSETS = "b br ch d dr f fl g gr h j k kl kr l m n p qu r s sch sh st t tr v w x y z"
VOWELS = "a a a e e e i i o o u ä ö ü au ei ie"
# The first three are empty
CODAS = "   ck ff hn l ll m n n nd ng r r rg s ss st t tt tz"
SMALL_TOWNS = """
Bamberg Bayreuth Braunschweig Celle Cottbus Cuxhaven Fulda Gera Gießen Goslar Göttingen Gütersloh
Hagen Hamm Hildesheim Ingolstadt Kempten Konstanz Krefeld Leverkusen Lübeck Ludwigshafen Lüneburg
Münster Osnabrück Passau Pforzheim Reutlingen Saarbrücken Schwerin Siegen Solingen Trier Tübingen
Ulm Wiesbaden Wolfsburg Worms Wuppertal Würzburg Zwickau
"""


class Stranger(NamedTuple):
    """Whom a name gives way to: names, and what may come before them."""

    pattern: str  # of the name that gives way
    names: str
    first_names: str = ""
    german_title: str = ""
    english_title: str = ""


STRANGERS = (
    Stranger("Tom", SURNAMES, MEN, "Herr ", "Mr. "),
    Stranger("Maria|Mary", SURNAMES, WOMEN, "Frau ", "Mrs. "),
    Stranger("Meier", SURNAMES),
    Stranger("Boston", SMALL_TOWNS),
)
REPLACED_NAME = re.compile(r"\b(Tom|Maria|Mary|Meier|Boston)\b")
REPLACEMENTS = {"Tom": MEN, "Maria": WOMEN, "Mary": WOMEN, "Boston": TOWNS}
NUMBER = re.compile(r"(?<![\d.,:])\d{2,4}(?![\d:]|[.,]\d)")
MONTHS = {
    "Januar": "January",
    "Februar": "February",
    "März": "March",
    "April": "April",
    "Mai": "May",
    "Juni": "June",
    "Juli": "July",
    "August": "August",
    "September": "September",
    "Oktober": "October",
    "November": "November",
    "Dezember": "December",
}
HOURS = {
    "eins": "one",
    "zwei": "two",
    "drei": "three",
    "vier": "four",
    "fünf": "five",
    "sechs": "six",
    "sieben": "seven",
    "acht": "eight",
    "neun": "nine",
    "zehn": "ten",
    "elf": "eleven",
    "zwölf": "twelve",
}
GERMAN_DATE = rf"\b\d\d?\. ({'|'.join(MONTHS)})\b"
ENGLISH_DATE = rf"\b({'|'.join(MONTHS.values())}) \d\d?(st|nd|rd|th)?\b"
GERMAN_HALF_HOUR = rf"\bhalb ({'|'.join(HOURS)})\b"
ENGLISH_HALF_HOUR = (
    rf"\b\d\d?:30\b|\b({'|'.join(HOURS.values())})[- ]thirty\b|\bhalf past \w+\b"
)
PHRASES = Path(__file__).with_name("phrases.tsv")  # German, English
WORDS = Path(__file__).with_name("words.tsv")  # the same, with "the" and "to"
EMOJI = "😀 😂 🙂 😉 😊 😍 😘 😎 😅 😢 😭 😡 😱 🤔 🥰 👍 👏 🙏 💪 ❤ ❤️ 💕 🎉 🎂 🔥 🌹 ☀️ ⭐ 🍀 🚀"

TYPED_SHARE = 1 / 8  # of the pairs, come once more as if typed in a hurry
RENAMED_SHARE = 1 / 3  # of the pairs with a name or number, come once more with another
TIMES_PER_PAIR = 8  # how often a date or half hour comes
ROWS_PER_PHRASE = 24  # how often a phrase comes beside another sentence
NAMES_PER_PHRASE = 30  # how often a phrase with a name comes
ROWS_PER_WORD = 30  # how often each form of a word comes in a row of words
NEIGHBORS = 40  # rows are drawn from so many forms before and after
DRAWN_SENTENCES = 5000  # with an emoji; translated already; two of which one may be


# --- Reading ---


def tatoeba(archive: Path) -> list[Pair]:
    """Return the German-English pairs of a zip file of manythings.org/anki."""
    with zipfile.ZipFile(archive) as opened:
        lines = opened.read("deu.txt").decode().splitlines()
    pairs = []
    for line in lines:
        english, german, *_ = line.split("\t")
        pairs.append(Pair(german, english))
    return pairs


def read_table(path: Path) -> list[Pair]:
    """Return the German-English pairs of a table of this folder."""
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    return [Pair(german, english) for german, english in rows]


def turned(pair: Pair, direction: str) -> Pair:
    """Return a German-English pair in a direction, or one of a direction as German-English."""
    return Pair(pair.target, pair.source) if direction == "en-de" else pair


def share_of(pair: Pair, seed: int) -> float:
    """Return a number between 0 and 1 that a pair's text always gives."""
    return hash_share(f"{pair.source}\t{pair.target}", seed)


def is_short(pair: Pair, most_words: int) -> bool:
    """Return whether both sides have so many words at most."""
    return all(len(text.split()) <= most_words for text in pair[:2])


# --- The same, typed in other ways ---


def typed(text: str) -> str:
    """Return a sentence without capitals and without its last mark."""
    return text.lower().rstrip(".!? ")


def spellings(text: str) -> list[str]:
    """Return a sentence with and without capitals and marks."""
    bare = text.rstrip(".!?")
    shouted = text.rstrip(".!") + "!"
    calm = text.replace("!", ".")
    return [text, typed(text), text.lower(), bare, shouted, calm]


# --- Other names and numbers ---


def other_number(number: str, shift: float) -> str:
    """Return another number of as many digits."""
    lowest = 10 ** (len(number) - 1)
    share = (hash_share(number, seed=1) + shift) % 1
    return str(lowest + int(share * 9 * lowest))


def renamed(pair: Pair, direction: str) -> Pair:
    """Return a pair with other names and numbers, chosen by its text."""
    source, target = pair[:2]
    share = share_of(pair, seed=1)
    for name, replacements in REPLACEMENTS.items():
        entries = replacements.split()
        entry = entries[int(share * len(entries))].replace("=", " ")
        german, _, english = entry.partition("/")  # of "Wien/Vienna"
        new = turned(Pair(german, english or german), direction)
        pattern = rf"\b{name}(?=s?\b)"
        source = re.sub(pattern, new.source, source)
        target = re.sub(pattern, new.target, target)

    shared_numbers = set(NUMBER.findall(source)) & set(NUMBER.findall(target))

    def exchanged(match: re.Match[str]) -> str:
        number = match[0]
        return other_number(number, share) if number in shared_numbers else number

    return Pair(NUMBER.sub(exchanged, source), NUMBER.sub(exchanged, target))


# --- Other dates and half hours ---


def ordinal_ending(day: int) -> str:
    """Return what English adds to the number of a day."""
    if day in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def drawn_date(draw: Random) -> tuple[str, str]:
    """Return a date in German and in English."""
    month = draw.choice(list(MONTHS))
    day = draw.randint(1, 28)
    ending = draw.choice(["", ordinal_ending(day)])
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
        if not re.search(german_pattern, pair.source):
            continue
        if not re.search(english_pattern, pair.target):
            continue
        draw = Random(f"{pair.source}\t{pair.target}")
        for _ in range(TIMES_PER_PAIR):
            german, english = drawn_time(draw)
            source = re.sub(german_pattern, german, pair.source)
            target = re.sub(english_pattern, english, pair.target)
            pairs.append(Pair(source, target))
    return pairs


# --- Strangers ---


def made_up_name(draw: Random) -> str:
    """Return a name that nobody has."""
    parts = (ONSETS, VOWELS, CODAS) * draw.randint(1, 3)
    return "".join(draw.choice(part.split(" ")) for part in parts).capitalize()


def introduced(pair: Pair, draw: Random) -> Pair:
    """Return a German-English pair with surnames, titles, small towns and made-up names."""
    german, english = pair[:2]
    for stranger in STRANGERS:
        listed_name = draw.choice(stranger.names.split())
        name = draw.choice([listed_name, made_up_name(draw)])
        before = ("", "")
        if stranger.first_names:
            first_name = draw.choice(stranger.first_names.split()) + " "
            titles = (stranger.german_title, stranger.english_title)
            before = draw.choice([before, (first_name, first_name), titles])
        if before[0] == "Herr " and not german.startswith("Tom "):
            before = ("", "")  # it may have to be Herrn
        pattern = rf"\b({stranger.pattern})\b"
        german = re.sub(pattern, before[0] + name, german)
        english = re.sub(pattern, before[1] + name, english)
    return Pair(german, english)


def can_be_introduced(pair: Pair) -> bool:
    """Return whether both sides have as many of the names that give way: no "Toms" for "Tom's"."""
    source_names = REPLACED_NAME.findall(pair.source)
    target_names = REPLACED_NAME.findall(pair.target)
    return 0 < len(source_names) == len(target_names)


# --- What visitors try first ---


def first_of_each_source(pairs: list[Pair]) -> list[Pair]:
    """Return the first pair of each source, in the order of the last ones."""
    by_source = {pair.source: pair for pair in reversed(pairs)}
    return list(reversed(by_source.values()))


def two_in_a_row(pairs: list[Pair]) -> list[Pair]:
    """Return each pair together with the next."""
    return [
        Pair(f"{pair.source} {after.source}", f"{pair.target} {after.target}")
        for pair, after in pairwise(pairs)
    ]


def phrase_rows(learned: list[Pair], direction: str) -> list[Pair]:
    """Return greetings, spellings, times and strangers, made of pairs to learn from."""
    draw = Random(0)
    phrases = [turned(pair, direction) for pair in read_table(PHRASES)]
    phrases = first_of_each_source(phrases)

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
        if can_be_introduced(pair):
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
        german_article = "eine" if article == "die" else "ein"
        english_article = "an" if re.match("[aeio]|u(?!ni)|hour", noun) else "a"
        forms.append(
            Pair(f"{german_article} {german_noun}", f"{english_article} {noun}")
        )
    elif english.startswith("to "):
        forms.append(Pair(german, english.removeprefix("to ")))
    return forms


def word_forms(direction: str) -> list[Pair]:
    """Return the forms of the listed words; where a form has several translations, the first."""
    forms = []
    for word in read_table(WORDS):
        forms += [turned(form, direction) for form in inflected(word)]
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
    for pair in draw.sample(handy, DRAWN_SENTENCES):
        emoji = draw.choice(EMOJI.split())
        with_emoji.append(Pair(f"{pair.source} {emoji}", f"{pair.target} {emoji}"))
    translated = [
        Pair(pair.target, pair.target) for pair in draw.sample(handy, DRAWN_SENTENCES)
    ]
    plain = draw.sample(handy, DRAWN_SENTENCES)
    mixed = draw.sample(with_emoji + translated + plain, DRAWN_SENTENCES)
    return rows + with_emoji + two_in_a_row(mixed)


# --- The table ---


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


def write_table(pairs: list[Pair], path: Path) -> None:
    """Write a pair a line; a tab within a text becomes a space."""
    rows = ["\t".join(map(single_spaced, pair[:2])) + "\n" for pair in pairs]
    path.write_text("".join(rows), encoding="utf-8")


def main() -> None:
    """Write the table that the command line names."""
    parser = command_line("tools.everyday", __doc__)
    parser.add_argument("archive", type=Path, help="Tatoeba's pairs, deu-eng.zip")
    parser.add_argument("direction", choices=["de-en", "en-de"])
    parser.add_argument("output", type=Path, help="the table, everyday.tsv")
    tables = parser.add_mutually_exclusive_group()
    for table in ("more", "words"):
        tables.add_argument(
            f"--{table}", dest="table", action="store_const", const=table
        )
    parser.set_defaults(table="plain")
    options = parser.parse_args()
    pairs = everyday_pairs(options.archive, options.direction, options.table)
    write_table(pairs, options.output)


if __name__ == "__main__":
    main()
