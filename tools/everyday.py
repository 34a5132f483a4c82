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

usage: python -m tools.everyday deu-eng.zip de-en|en-de everyday.tsv [--more | --words]
"""

import re
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from random import Random

from annotated_transformer.data import Pair, multi30k
from annotated_transformer.own_data import filter_pairs, hash_share, split_pairs

TYPED, RENAMED = 1 / 8, 1 / 3  # shares of pairs that come once more
AT_OTHER_TIMES, IN_A_ROW = 8, 24  # how often a date, half hour or phrase comes
INTRODUCED = 30  # how often a phrase with a name comes
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
CODAS = "   ck ff hn l ll m n n nd ng r r rg s ss st t tt tz"  # the first three are empty
SMALL_TOWNS = """
Bamberg Bayreuth Braunschweig Celle Cottbus Cuxhaven Fulda Gera Gießen Goslar Göttingen Gütersloh
Hagen Hamm Hildesheim Ingolstadt Kempten Konstanz Krefeld Leverkusen Lübeck Ludwigshafen Lüneburg
Münster Osnabrück Passau Pforzheim Reutlingen Saarbrücken Schwerin Siegen Solingen Trier Tübingen
Ulm Wiesbaden Wolfsburg Worms Wuppertal Würzburg Zwickau
"""
STRANGERS = (  # who gives way, to whom, with which first names, and titles in German and English
    ("Tom", SURNAMES, MEN, "Herr ", "Mr. "),
    ("Maria|Mary", SURNAMES, WOMEN, "Frau ", "Mrs. "),
    ("Meier", SURNAMES, ""),
    ("Boston", SMALL_TOWNS, ""),
)
STRANGER = re.compile(r"\b(Tom|Maria|Mary|Meier|Boston)\b")
KNOWN = {"Tom": MEN, "Maria": WOMEN, "Mary": WOMEN, "Boston": TOWNS}  # give way to one of these
NUMBER = re.compile(r"(?<![\d.,:])\d{2,4}(?![\d:]|[.,]\d)")
MONTHS = {
    "Januar": "January", "Februar": "February", "März": "March", "April": "April", "Mai": "May",
    "Juni": "June", "Juli": "July", "August": "August", "September": "September",
    "Oktober": "October", "November": "November", "Dezember": "December",
}  # fmt: skip
HOURS = {
    "eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six",
    "sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten", "elf": "eleven",
    "zwölf": "twelve",
}  # fmt: skip
DATES = (  # what gives way to other dates: in German, in English
    rf"\b\d\d?\. ({'|'.join(MONTHS)})\b",
    rf"\b({'|'.join(MONTHS.values())}) \d\d?(st|nd|rd|th)?\b",
)
HALVES = (
    rf"\bhalb ({'|'.join(HOURS)})\b",
    rf"\b\d\d?:30\b|\b({'|'.join(HOURS.values())})[- ]thirty\b|\bhalf past \w+\b",
)
PHRASES = Path(__file__).with_name("phrases.tsv")  # German, English; written for this book
WORDS = Path(__file__).with_name("words.tsv")  # the same; nouns and verbs with "the" and "to"
WORDS_IN_A_ROW = 30  # rows for each form of a word
EMOJI = "😀 😂 🙂 😉 😊 😍 😘 😎 😅 😢 😭 😡 😱 🤔 🥰 👍 👏 🙏 💪 ❤ ❤️ 💕 🎉 🎂 🔥 🌹 ☀️ ⭐ 🍀 🚀"
LATE = 5000  # sentences with an emoji, and two in a row, of which some are translated already


def tatoeba(archive: Path) -> list[Pair]:
    """Return the German-English pairs of a zip file of manythings.org/anki."""
    with zipfile.ZipFile(archive) as opened:
        rows = [line.split("\t") for line in opened.read("deu.txt").decode().splitlines()]
    return [Pair(german, english) for english, german, *_ in rows]


def typed(text: str) -> str:
    """Return a sentence without capitals and without its last mark."""
    return text.lower().rstrip(".!? ")


def spellings(text: str) -> list[str]:
    """Return a sentence with and without capitals and marks."""
    bare, shouted, calm = text.rstrip(".!?"), text.rstrip(".!") + "!", text.replace("!", ".")
    return [text, typed(text), text.lower(), bare, shouted, calm]


def renamed(pair: Pair, direction: str) -> Pair:
    """Return a pair with other names and numbers, chosen by its text."""
    source, target = pair[:2]
    at = hash_share(f"{source}\t{target}", seed=1)
    for known, names in KNOWN.items():
        forms = names.split()
        forms = forms[int(at * len(forms))].replace("=", " ").split("/")
        forms = forms[:: 1 if direction == "de-en" else -1]
        source = re.sub(rf"\b{known}(?=s?\b)", forms[0], source)
        target = re.sub(rf"\b{known}(?=s?\b)", forms[-1], target)
    numbers = set(NUMBER.findall(source)) & set(NUMBER.findall(target))
    low = {number: 10 ** (len(number) - 1) for number in numbers}
    new = {n: str(low[n] + int((hash_share(n, seed=1) + at) % 1 * 9 * low[n])) for n in numbers}
    source, target = (NUMBER.sub(lambda n: new.get(n[0], n[0]), text) for text in (source, target))
    return Pair(source, target)


def at_other_times(pair: Pair) -> list[Pair]:
    """Return a German-English pair with other dates and half hours, if it has any."""
    made = []
    for german, english in (DATES, HALVES):
        if not (re.search(german, pair.source) and re.search(english, pair.target)):
            continue
        draw = Random("\t".join(pair[:2]))
        for _ in range(AT_OTHER_TIMES):
            if german == DATES[0]:
                month, day = draw.choice(list(MONTHS)), draw.randint(1, 28)
                ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day // 10 != 1 else 0, "th")
                texts = f"{day}. {month}", f"{MONTHS[month]} {day}{draw.choice(['', ending])}"
            else:
                hour, hours = draw.randrange(12), list(HOURS)
                clock, word = f"{hour or 12}:30", HOURS[hours[hour - 1]]
                spoken = f"half past {word}", f"half past {word}", f"{word} thirty", clock
                texts = f"halb {hours[hour]}", draw.choice(spoken)
            new = re.sub(german, texts[0], pair.source), re.sub(english, texts[1], pair.target)
            made.append(Pair(*new))
    return made


def made_up(draw: Random) -> str:
    """Return a name that nobody has."""
    parts = (ONSETS, VOWELS, CODAS) * draw.randint(1, 3)
    return "".join(draw.choice(part.split(" ")) for part in parts).capitalize()


def introduced(pair: Pair, draw: Random) -> Pair:
    """Return a German-English pair with surnames, titles, small towns and made-up names."""
    german, english = pair[:2]
    for known, names, firsts, *titles in STRANGERS:
        name, before = draw.choice([draw.choice(names.split()), made_up(draw)]), ("", "")
        if firsts:
            first = draw.choice(firsts.split())
            before = draw.choice([before, (f"{first} ", f"{first} "), (titles[0], titles[1])])
        if before[0] == "Herr " and not german.startswith("Tom "):  # elsewhere it may be Herrn
            before = "", ""
        german = re.sub(rf"\b({known})\b", before[0] + name, german)
        english = re.sub(rf"\b({known})\b", before[1] + name, english)
    return Pair(german, english)


def short(pair: Pair, most: int) -> bool:
    """Return whether both sides have so many words at most."""
    return max(len(text.split()) for text in pair[:2]) <= most


def more(learned: list[Pair], direction: str) -> list[Pair]:
    """Return what else visitors type, made of pairs to learn from."""
    turn = (lambda p: Pair(p[1], p[0])) if direction == "en-de" else (lambda p: p)
    lines = [line.split("\t") for line in PHRASES.read_text("utf-8").splitlines()]
    pairs = [turn(Pair(german, english)) for german, english in lines]
    phrases = list({p.source: p for p in reversed(pairs)}.values())[::-1]  # the first of each
    draw, handy = Random(0), [p for p in learned if short(p, 7)]
    chosen = draw.sample(handy, len(handy) // 4) + IN_A_ROW * phrases
    draw.shuffle(chosen)
    rows = [Pair(f"{a.source} {b.source}", f"{a.target} {b.target}") for a, b in pairwise(chosen)]
    brief = phrases + [p for p in learned if short(p, 3)]
    spelled = [Pair(text, p.target) for p in brief for text in spellings(p.source)]
    times = [turn(new) for p in learned for new in at_other_times(turn(p))]
    named = [p for p in learned if hash_share("\t".join(p[:2]), seed=3) < RENAMED]
    both = [(p, [STRANGER.findall(t) for t in p[:2]]) for p in named + INTRODUCED * phrases]
    named = [p for p, (one, other) in both if 0 < len(one) == len(other)]  # no "Toms", "Tom's"
    return rows + spelled + times + [turn(introduced(turn(p), draw)) for p in named]


def inflected(german: str, english: str) -> list[tuple[str, str]]:
    """Return a word of the list as it stands there, and without article or "to"."""
    forms = [(german, english)]
    if english.startswith("the "):
        (article, noun), name = german.split(" "), english.removeprefix("the ")
        some = "an" if re.match("[aeio]|u(?!ni)|hour", name) else "a"
        forms += [
            (noun, name),
            (f"{'eine' if article == 'die' else 'ein'} {noun}", f"{some} {name}"),
        ]
    elif english.startswith("to "):
        forms.append((german, english.removeprefix("to ")))
    return forms


def besides(learned: list[Pair], direction: str) -> list[Pair]:
    """Return what visitors type besides: single words, emoji, and what is translated already."""
    de, en = (0, 1) if direction == "de-en" else (1, 0)
    lines = [line.split("\t") for line in WORDS.read_text("utf-8").splitlines()]
    forms = [(form[de], form[en]) for line in lines for form in inflected(*line)]
    known = dict(reversed(forms))  # the first translation of each
    forms = [form for form in forms if known[form[0]] == form[1]]
    draw, rows = Random(0), forms.copy()
    for source, target in forms:
        begun, meant = (text[0].upper() + text[1:] for text in (source, target))
        rows += [(new, target) for new in (begun, source.lower()) if new not in known]
        rows += [(begun + mark, meant + mark) for mark in ".!?"]
    for at, form in WORDS_IN_A_ROW * [*enumerate(forms)]:  # neighbors are words of a kind
        some = [*draw.choices(forms[max(0, at - 40) : at + 40], k=draw.randint(1, 2)), form]
        joins = draw.choice([(", ", ", "), (" und ", " and "), (" oder ", " or ")])
        source, target = joins[de].join(a for a, _ in some), joins[en].join(b for _, b in some)
        rows.append((source.lower() if draw.random() < TYPED else source, target))
    handy, emoji = [(p[0], p[1]) for p in learned if short(p, 7)], EMOJI.split()
    drawn = [(pair, draw.choice(emoji)) for pair in draw.sample(handy, LATE)]
    marked = [(f"{source} {mark}", f"{target} {mark}") for (source, target), mark in drawn]
    same = [(target, target) for _, target in draw.sample(handy, LATE)]
    mixed = draw.sample(marked + same + draw.sample(handy, LATE), LATE)
    rows += marked + [(f"{a[0]} {b[0]}", f"{a[1]} {b[1]}") for a, b in pairwise(mixed)]
    return [Pair(*row) for row in rows]


def pairs_of(archive: Path, direction: str, enlarge: str = "") -> list[Pair]:
    """Return all pairs of the table; `enlarge` is empty, --more or --words."""
    pairs = tatoeba(archive) + multi30k("train")
    if direction == "en-de":
        pairs = [Pair(target, source) for source, target, _ in pairs]
    place = [hash_share("\t".join(pair[:2]), seed=0) for pair in pairs]
    hurried = [Pair(typed(p.source), p.target) for p, at in zip(pairs, place) if at < TYPED]
    learned = split_pairs(filter_pairs(pairs)[0], 0.01, 0.01).train
    chosen = [p for p in learned if hash_share("\t".join(p[:2]), seed=2) < RENAMED]
    others = [(old, renamed(old, direction)) for old in chosen]
    table = pairs + hurried + [new for old, new in others if new[:2] != old[:2]]
    table += more(learned, direction) if enlarge else []
    return table + besides(learned, direction) if enlarge == "--words" else table


if __name__ == "__main__":
    archive, direction, output, *options = sys.argv[1:]
    table = pairs_of(Path(archive), direction, *options)
    lines = (f"{source}\t{target}\n" for source, target, _ in table)
    Path(output).write_text("".join(lines), encoding="utf-8")
