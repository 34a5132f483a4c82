"""The sentences that the first page offers, by the name of the model that translates them.

`python -m tools.recordings` records the examples; the trials need the model in the page.
"""

from typing import Any, NamedTuple


class Example(NamedTuple):
    """A sentence, what it means, and what to say of its translation."""

    text: str
    gloss: str  # in the other language
    note: str = ""


EXAMPLES = {  # by the name of the model
    "everyday-de-en": [
        Example("Weißt du, wo der Bahnhof ist?", "Do you know where the station is?"),
        Example(
            "Sie hat mir nicht gesagt, dass sie krank ist.",
            "She didn’t tell me that she is ill.",
        ),
        Example(
            "Ich stehe jeden Tag um sechs Uhr auf.",
            "I get up at six o’clock every day.",
        ),
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
            "Das Buch, das du mir geliehen hast, habe ich noch nicht gelesen.",
            "I haven’t read the book you lent me yet.",
            "Wrong: “I haven’t read the book you lent me yet” is what it means. The object comes "
            "first in German, and the model keeps that order until it is lost.",
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
        Example(
            "She didn't tell me that she was sick.",
            "Sie hat mir nicht gesagt, dass sie krank war.",
        ),
        Example(
            "I get up at six every day.",
            "Ich stehe jeden Tag um sechs auf.",
        ),
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
        Example(
            "The government passed a law to protect the forests.",
            "Die Regierung hat ein Gesetz zum Schutz der Wälder verabschiedet.",
            "Wrong: this says that the government devoured the forest message. These are words "
            "of the news, and the model has read how people talk.",
        ),
    ],
}


class Trial(NamedTuple):
    """A change of the model that bites, and a sentence that shows it."""

    name: str
    text: str
    options: dict[str, Any]  # of the page's engine
    whole: str  # what the whole model writes
    changed: str  # what the changed one writes; "" where words are drawn by lot


TRIALS = {  # what if; found by trying, and the browser's tests try them again
    "everyday-de-en": [
        Trial(
            "No positions",
            "Der Hund beißt den Mann.",
            {"positions": False},
            "The dog bites the man.",
            "The man bites the dog.",
        ),
        Trial(
            "No mask",
            "Der alte Mann hilft dem kleinen Jungen.",
            {"causal": False},
            "The old man is helping the little boy.",
            "The old boy is helping.",
        ),
        Trial(
            "A head away",
            "Ein Mann sitzt auf einer Bank und liest ein Buch.",
            {"silent": ["cross.2.0"]},
            "A man is sitting on a bench reading a book.",
            "A man sits on a bench and is sitting on a book.",
        ),
        Trial(
            "A beam of 3",
            "Zwei Männer stehen neben einem Auto und reden miteinander.",
            {"beam": 3},
            "Two men stand next to a car talking.",
            "Two men are standing next to a car talking.",
        ),
        Trial(
            "Drawn by lot",
            "Eine Frau mit einem Hund sieht ein Kind.",
            {"temperature": 1},
            "A woman with a dog is looking at a child.",
            "",
        ),
    ],
    "everyday-en-de": [
        Trial(
            "No positions",
            "The old man helps the little boy.",
            {"positions": False},
            "Der alte Mann hilft dem kleinen Jungen.",
            "Der kleine Junge hilft.",
        ),
        Trial(
            "No mask",
            "Unfortunately I don't have time today.",
            {"causal": False},
            "Leider habe ich heute keine Zeit.",
            "Le habe keine Zeit.",
        ),
        Trial(
            "A head away",
            "When does the next train to Hamburg leave?",
            {"silent": ["cross.0.1"]},
            "Wann fährt der nächste Zug nach Hamburg?",
            "Wann fährt der nächste Zug nach Hamburger nach Hamburger?",
        ),
        Trial(
            "A beam of 3",
            "She gave the book to her brother.",
            {"beam": 3},
            "Sie gab ihr ihr ihr ihr Bruder.",
            "Sie gab das Buch ihrem Bruder.",
        ),
        Trial(
            "Drawn by lot",
            "A woman with a dog is looking at a child.",
            {"temperature": 1},
            "Eine Frau mit einem Hund betrachtet ein Kind.",
            "",
        ),
    ],
}
