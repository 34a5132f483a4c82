# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # How the figures are made
#
# How to draw for this book: its colors, and the helpers of `book/figures.py`. Nothing here belongs to the package.
#
# A figure cell carries a name and a caption in its metadata, such as `mystnb={"figure": {"name": "fig-first-heatmap", "caption": "Where does each word look? ..."}}`. The caption opens with the question that the figure answers and says how to read it. The argument `alt` states the finding for readers who can't see the picture. Where numbers are made up, the caption says so.
#
# ## The palette
#
# Queries, keys, values and positions have one color each for the whole book, and nothing else has these four. The hues are from Okabe and Ito's palette for color-blind readers.
#
# Everything else takes its color from three others: `SKY` and `AMBER`, which are the palette's sky blue and orange, darkened until they can be seen on white, and `PLUM`. They come in this order: a chart of one series is `SKY`. A chart of more than three goes on with `INK`, or with a second dash of the same color for a relative of a series, as a layer with its projections is of the layer without. `RESIDUAL` is the gray of the residual stream, and of whatever should recede: a limit, an axis at zero, a connecting line.
#
# A color never speaks alone: a letter, a label, a dash or a pattern says the same. A color is named here and nowhere else, so no chapter contains a code such as `#0072B2`. Each color has a contrast of at least 3, which WCAG asks of graphics.

# %%
from book.figures import AMBER, KEY, PAPER, PLUM, POSITION, QUERY, RESIDUAL, SKY
from book.figures import VALUE


def linear(channel):
    if channel <= 0.03928:
        return channel / 12.92
    return ((channel + 0.055) / 1.055) ** 2.4


def luminance(color):
    red, green, blue = (linear(int(color[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


palette = {
    "query": QUERY,
    "key": KEY,
    "value": VALUE,
    "position": POSITION,
    "sky": SKY,
    "amber": AMBER,
    "plum": PLUM,
    "stream": RESIDUAL,
}
contrasts = {
    name: (luminance(PAPER) + 0.05) / (luminance(color) + 0.05)
    for name, color in palette.items()
}
for name, color in palette.items():
    print(f"{name:8} {color}  contrast on white {contrasts[name]:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert min(contrasts.values()) >= 3

# %% [markdown]
# `SKY`, `AMBER`, `PLUM`, `RESIDUAL`, `INK` and `PAPER` follow the theme of the page: on a dark page the first four are lighter, `INK` is the color of its text and `PAPER` its background. `book.css` says how. A caption must be true on both, so it never calls a cell black, white, dark or light, but full or empty, and a color by its plain name: blue, orange, purple, gray.
#
# ## Matrices
#
# Queries are rows, keys are columns. An empty cell is a weight of 0, a full one a weight of `limit`, and hatched means hidden. Weights of attention are filled with `INK`, other matrices with `SKY`, `PLUM` or the color of their role. With `signed`, purple is above zero and orange below. Up to 8×8, the numbers are printed.

# %% mystnb={"figure": {"name": "fig-first-heatmap", "caption": "Where does each word look? Read along a row: *sleeps* spends 0.7 of its attention on *cat*. The hatched keys lie in the future of the query and may not be seen. The numbers are made up."}}
from book.figures import heatmap, show

weights = [[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.1, 0.7, 0.2]]
may_see = [[True, False, False], [True, True, False], [True, True, True]]
words = ["the", "cat", "sleeps"]
show(
    heatmap(weights, words, words, may_see),
    alt="A three by three matrix. The word sleeps puts 0.7 of its weight on cat; keys above the diagonal are hatched.",
)

# %% [markdown]
# ## Charts
#
# `show` takes any Altair chart and stores a still drawing, which needs no script. (A slider or a selection of Altair's would need one: `show_steps`, below, takes its place.) In `curves` each series has a color and a dash. The legend stands above, so that a chart up to 400 pixels wide fits a phone. A drawing shrinks with the screen until its smallest words are 9 pixels high; a wider one scrolls.

# %% mystnb={"figure": {"name": "fig-first-curves", "caption": "Which grows faster? One line is solid, the other dashed, so they can be told apart without color. The numbers are made up."}}
import altair as alt

from book.figures import curves

records = []
for name, power in (("x", 1), ("x²", 2)):
    records += [{"x": x, "y": x**power, "power": name} for x in range(5)]
looks = {"x": (SKY, [1, 0]), "x²": (AMBER, [6, 3])}
show(
    curves(records, alt.X("x:Q"), alt.Y("y:Q"), "power", looks),
    alt="A straight solid line, and a dashed one that bends upward.",
)

# %% [markdown]
# ## Steps
#
# `show_steps` stores several drawings, of which the reader chooses one, by radio buttons and one line of CSS.

# %% mystnb={"figure": {"name": "fig-first-steps", "caption": "What do raw scores become? Choose a stage: scores of any sign turn into weights that are positive and sum to 1. The numbers are made up."}}
import math

from book.figures import show_steps

scores = [2.0, 0.5, -1.0]
exponentials = [math.exp(s) for s in scores]
shares = [e / sum(exponentials) for e in exponentials]


def bar(values, title):
    records = [
        {"word": word, "value": round(value, 3)} for word, value in zip(words, values)
    ]
    base = alt.Chart(alt.Data(values=records), title=title, width=300, height=130)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[-2, 8]))
    return base.mark_bar(size=40).encode(alt.X("word:N", sort=None, title=None), y)


show_steps(
    {
        "scores": (bar(scores, "scores"), "Three bars: 2, 0.5 and -1."),
        "exponentials": (
            bar(exponentials, "exponentials"),
            "Three bars: 7.39, 1.65 and 0.37.",
        ),
        "shares": (
            bar(shares, "shares"),
            "Three bars: 0.786, 0.175 and 0.039, which sum to 1.",
        ),
    },
    question="Which stage?",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert math.isclose(sum(shares), 1)

# %% [markdown]
# ## Drawings
#
# Boxes, arrows and words show how parts are connected. The thick gray line is the residual stream, and a plus in a circle adds to it. A box can link to a chapter.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-first-drawing", "caption": "How is a drawing read? Follow the arrows. The thick line carries a vector for each position; a box reads it, and a plus adds the result to it. Blue, orange and green arrows bring queries, keys and values. A box in the color of links opens its chapter."}}
from book.figures import arrow, box, plus, show_drawing, stream, words_at

colors = {"query": (66, QUERY), "key": (86, KEY), "value": (106, VALUE)}
parts = [stream([(40, 160), (40, 20)]), arrow([(180, 56), (50, 56)]), plus(40, 56)]
parts.append(words_at(52, 158, "stream", anchor="start"))
for name, (y, color) in colors.items():
    parts.append(arrow([(40, y + 20), (180, y + 20)], color))
    parts.append(words_at(110, y + 17, name, 11, color))
parts.append(box(180, 40, 190, 100, "attention", "chapter 3", "03_attention.html"))
show_drawing(
    parts,
    400,
    170,
    alt="A box named attention reads the stream three times and adds to it.",
)

# %% [markdown]
# ## The map in small
# Below the title of each chapter of the model stands a small map with the chapter's part lit.

# %%
from book.figures import map_thumbnail

map_thumbnail("multi_head_attention")

# %% [markdown]
# ## Many points
#
# For curves with many points, use Matplotlib: call `book.figures.style()` once before the first plot, and end each plot with `show_plot(alt="...")`. It stores the plot as a drawing that follows the theme of the page, as the other figures do.

# %% mystnb={"figure": {"name": "fig-first-plot", "caption": "How long does a swing last? A motion that dies out, and what limits it (dashed). The numbers are computed."}}
import matplotlib.pyplot as plt

from book.figures import show_plot, style

style()
seconds = [second / 20 for second in range(200)]
limits = [math.exp(-second / 4) for second in seconds]
swing = [limit * math.cos(4 * second) for limit, second in zip(limits, seconds)]
figure, axis = plt.subplots()
axis.plot(seconds, swing)
axis.plot(seconds, limits, "--", color=RESIDUAL, lw=1)
axis.set(xlabel="seconds", ylabel="displacement")
show_plot(
    alt="A wave between two limits, of which one is drawn; both come down to zero."
)
