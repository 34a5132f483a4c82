"""The sentences that the first page offers, by the name of the model that translates them."""

from typing import Any, NamedTuple


class Example(NamedTuple):
    """A sentence, what it means, and what to say of its translation."""

    text: str
    gloss: str  # in the other language
    note: str = ""


class Trial(NamedTuple):
    """A change of the model, and a sentence whose translation it changes."""

    name: str
    text: str
    options: dict[str, Any]  # of the page's engine


EXAMPLES = {  # the notes say what is wrong: after a change of a model, look whether it still is
    "everyday-de-en": [
        Example("Weißt du, wo der Bahnhof ist?", "Do you know where the station is?"),
        Example("Zwei Hunde spielen im Schnee.", "Two dogs are playing in the snow."),
        Example(
            "Wenn es morgen regnet, bleibe ich zu Hause.",
            "If it rains tomorrow, I’ll stay at home.",
        ),
        Example(
            "Den Mann beißt der Hund.",
            "It’s the man that the dog bites.",
            "Wrong: the dog bites the man. German may put the object first, "
            "and says so only by the endings of “den” and “der”.",
        ),
        Example(
            "Die Bundesregierung hat das Gesetz zum Schutz der Wälder verabschiedet.",
            "The federal government has passed the law that protects the forests.",
            "Wrong: the federal government passed the law that protects the forests. These are "
            "words of the news, and the model has read how people talk.",
        ),
    ],
    "everyday-en-de": [
        Example("Do you know where the station is?", "Weißt du, wo der Bahnhof ist?"),
        Example("Two dogs are playing in the snow.", "Zwei Hunde spielen im Schnee."),
        Example(
            "I haven't read the book you lent me yet.",
            "Das Buch, das du mir geliehen hast, habe ich noch nicht gelesen.",
        ),
        Example(
            "We sat on the bank of the river.",
            "Wir saßen am Ufer des Flusses.",
            "Wrong: this says that they sat on the river’s bench. A “Bank” keeps money or is "
            "sat on; the bank of a river is its “Ufer”.",
        ),
        Example(
            "Time flies like an arrow.",
            "Die Zeit fliegt wie ein Pfeil.",
            "Wrong: an arrow is “ein Pfeil”. “Pfeilung” isn’t a word; the model made it from "
            "pieces of words.",
        ),
    ],
}

TRIALS = {
    "everyday-de-en": [
        Trial("No positions", "Der Hund beißt den Mann.", {"positions": False}),
        Trial("No mask", "Der alte Mann hilft dem kleinen Jungen.", {"causal": False}),
        Trial(
            "A head away",
            "Ein Mann sitzt auf einer Bank und liest ein Buch.",
            {"silent": ["cross.2.0"]},
        ),
        Trial(
            "A beam of 3",
            "Zwei Männer stehen neben einem Auto und reden miteinander.",
            {"beam": 3},
        ),
        Trial(
            "Drawn by lot",
            "Eine Frau mit einem Hund sieht ein Kind.",
            {"temperature": 1},
        ),
    ],
    "everyday-en-de": [
        Trial(
            "No positions", "The old man helps the little boy.", {"positions": False}
        ),
        Trial("No mask", "Unfortunately I don't have time today.", {"causal": False}),
        Trial(
            "A head away",
            "When does the next train to Hamburg leave?",
            {"silent": ["cross.0.1"]},
        ),
        Trial("A beam of 3", "She gave the book to her brother.", {"beam": 3}),
        Trial(
            "Drawn by lot",
            "A woman with a dog is looking at a child.",
            {"temperature": 1},
        ),
    ],
}
