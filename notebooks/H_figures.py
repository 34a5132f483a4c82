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
# # How to read the figures
#
# This chapter fixes how every picture of the book looks and what its colors mean. It is the only chapter that is not about the Transformer. Read it once; after that, a picture should need no legend. If you are in a hurry, look at its four pictures and [go on](03_attention.ipynb).

# %% tags=["export"]
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert
from IPython.display import display

# %% [markdown]
# ## Six colors
#
# Attention mixes three things that have the same shape: queries, keys and values. If a picture does not tell them apart at a glance, the reader has to, in every picture anew. So each has one color, here and in the prose, for the whole book. Blue asks, orange answers, green is what gets carried away.

# %% tags=["export"]
QUERY = "#0072B2"  # blue: what a position looks for
KEY = "#D55E00"  # vermilion: what a position offers to be found by
VALUE = "#009E73"  # green: what a position hands over
POSITION = "#CC79A7"  # pink: where a token stands
RESIDUAL = "#555555"  # grey: the stream that layers add to
INK, PAPER = "#1A1A1A", "#FFFFFF"  # follow the theme of the page

# %% [markdown]
# The six come from a palette made for color-blind readers. That can be checked. WCAG, the standard for readable web pages, defines the contrast of two colors from their luminance, and asks for at least 3 between a graphic and its ground.
#
# $$
# \text{contrast} = \frac{L_\text{light} + 0.05}{L_\text{dark} + 0.05}, \qquad L = 0.2126\,R + 0.7152\,G + 0.0722\,B
# $$ (eq-contrast)
#
# $R$, $G$ and $B$ are linear light, which is what the exponent below undoes.


# %%
def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


assert round(contrast("#000000", "#FFFFFF"), 6) == 21.0  # the standard's own example
palette = {"query": QUERY, "key": KEY, "value": VALUE, "position": POSITION, "stream": RESIDUAL}
for name, color in palette.items():
    print(f"{name:8} {color}  on white {contrast(color, PAPER):.1f}")
    assert contrast(color, PAPER) >= 3

# %% [markdown]
# Pink comes out just above the mark, so a position is always drawn with its number. In fact nothing in this book is told by color only. A letter, a label or a pattern always says the same.
#
# ## From a chart to the page
#
# Charts are made with Altair. Its own renderer loads three scripts from another host, and shows nothing when the host is away. Ours draws the chart once, here in the notebook, as an SVG that every browser shows without any script. A chart with a slider or a selection carries its specification along; the website then brings it to life, and elsewhere the resting picture stays.
#
# The theme is a dictionary that goes into each chart as it is drawn. It says as little as it can: no frame, no grid, letters of one size, all in ink.

# %% tags=["export", "internal"]
LABELS = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
LINES = {"domainColor": INK, "tickColor": INK, "tickSize": 4, "grid": False}

# %% tags=["export"]
FONTS = "Liberation Sans, Arial, Helvetica, sans-serif"  # all of one width
THEME: dict[str, Any] = {
    "font": "Liberation Sans",
    "background": None,
    "aria": False,  # the picture as a whole has a label; its thousand marks need none
    "view": {"stroke": None, "continuousWidth": 420, "continuousHeight": 240},
    "axis": LABELS | LINES | {"titleFontWeight": "normal", "titlePadding": 8, "labelPadding": 5},
    "legend": LABELS | {"titleFontWeight": "normal", "symbolType": "stroke", "symbolSize": 300},
    "header": LABELS,
    "title": {"color": INK, "fontSize": 13, "fontWeight": "normal", "anchor": "start"},
    "text": {"color": INK, "fontSize": 12},
    "line": {"strokeWidth": 2.2},
    "rule": {"color": INK},
    "range": {"category": [QUERY, KEY, VALUE, POSITION, RESIDUAL]},
}

# %% [markdown]
# Drawing is the work of vl-convert.


# %% tags=["export", "internal"]
def draw(chart: alt.TopLevelMixin, label: str) -> tuple[str, dict[str, Any]]:
    """Draw an Altair chart.

    Args:
        chart: any Altair chart.
        label: the finding in at most two sentences, for readers who do not see the picture.

    Returns:
        The SVG, which takes ink and paper from the page, and the themed specification.
    """
    spec = chart.to_dict()
    spec["config"] = THEME
    return themed_svg(vl_convert.vegalite_to_svg(spec), label), spec


# %% [markdown]
# What it draws needs care. An SVG from Vega names class, role and font of every single mark, which makes it three times as large as need be. And the ids inside an SVG must be unique on a page, or the second chart is clipped by the first one's frame. So they start with a hash of the drawing.


# %% tags=["export", "internal"]
def themed_svg(svg: str, label: str) -> str:
    """Make a drawn SVG fit for any page: unique ids, a spoken label, the page's ink and paper."""
    svg = re.sub(r' (class|role|aria-[a-z]+|pointer-events|font-family)="[^"]*"', "", svg)
    svg = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.2f}", svg)
    prefix = "f" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    for number, old in enumerate(dict.fromkeys(re.findall(r' id="([^"]+)"', svg))):
        svg = re.sub(
            rf'(id="|url\(#|href="#){re.escape(old)}(?=[")])', rf"\1{prefix}-{number}", svg
        )
    look = f"max-width:100%;height:auto;font-family:{FONTS}"
    head = f'<svg role="img" aria-label="{html.escape(label)}" style="{look}" '
    return page_colors(svg.replace("<svg ", head, 1))


# %% [markdown]
# Black ink on a dark page cannot be read. So the drawing takes ink and paper from the page around it.


# %% tags=["export", "internal"]
def page_colors(text: str) -> str:
    """Replace ink and paper by the colors of the page around the picture."""
    text = re.sub(INK, "currentColor", text, flags=re.IGNORECASE)
    return re.sub(PAPER, "var(--book-paper, #fff)", text, flags=re.IGNORECASE)


# %% [markdown]
# `show` puts the picture on the page. It offers the SVG for browsers, and a PNG for places that show no inline SVG, such as GitHub's notebook view and a PDF.


# %% tags=["export"]
def show(chart: alt.TopLevelMixin, alt: str) -> None:
    """Display a chart; one that reacts to the reader carries its specification along.

    Args:
        chart: any Altair chart.
        alt: the finding in at most two sentences, for readers who do not see the picture.
    """
    svg, spec = draw(chart, alt)
    script = ""
    if '"params"' in (data := json.dumps(spec, sort_keys=True)):
        safe = page_colors(data).replace("</", "<\\/")
        script = f'<script type="application/json">{safe}</script>'
    page = f'<figure class="book-chart" style="margin:0;overflow-x:auto">{svg}{script}</figure>'
    bundle = {"text/html": page, "image/png": picture(spec), "text/plain": f"[figure: {alt}]"}
    display(bundle, raw=True)


# %% tags=["export"]
def picture(spec: dict[str, Any]) -> bytes:
    """Return a chart as PNG on white paper."""
    config = {**spec["config"], "background": PAPER}
    return vl_convert.vegalite_to_png({**spec, "config": config}, scale=1.5)


# %% [markdown]
# ## Rows ask, columns answer
#
# Most pictures of this book are matrices of attention weights. In each of them a row is a query, the position that looks, and a column is a key, the position that is looked at. A weight is a shade between paper (0) and ink (1). A position that may not be attended to is hatched. It is not white, since white already means zero.


# %% tags=["export"]
def heatmap(
    matrix: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    mask: Sequence[Sequence[bool]] | None = None,
    *,
    titles: tuple[str, str] = ("query: attends from", "key: attended to"),
    limit: float = 1.0,
    signed: bool = False,
    color: str = INK,
    cell: int = 38,
) -> alt.LayerChart:
    """Chart a matrix; its numbers are printed when it is 8x8 or smaller.

    Args:
        matrix: values in [0, limit], or in [-limit, limit] when `signed`.
        rows, columns: a name for each row and column; repeated names stay apart.
        mask: True where a row may see the column; elsewhere the cell is hatched.
        titles: of the rows and of the columns.
        color: of the value `limit`; smaller values fade to paper.
        cell: side of a cell in pixels.
    """
    base = grid(matrix_table(matrix, mask), rows, columns, titles)
    large = max(len(rows), len(columns)) > 8
    layers = [shades(base, limit, color, signed, legend=large)]
    layers += [] if large else [printed(base, limit, color, signed)]
    layers += [] if mask is None else [hatched(base, cell)]
    return alt.layer(*layers).properties(width=cell * len(columns), height=cell * len(rows))


# %% [markdown]
# The chart is put together from a table and up to three layers, and each of them is a small function. The table has one record for a cell.


# %% tags=["export", "internal"]
def matrix_table(
    matrix: Sequence[Sequence[float]], mask: Sequence[Sequence[bool]] | None
) -> list[dict[str, Any]]:
    """Return one record a cell, values rounded to three decimals."""
    return [
        {
            "row": i,
            "column": j,
            "value": round(float(v), 3) + 0.0,
            "seen": mask is None or bool(mask[i][j]),
        }
        for i, line in enumerate(matrix)
        for j, v in enumerate(line)
    ]


# %% [markdown]
# The axes carry one name for each row and column. Names may repeat, as words do in a sentence, so the chart counts positions and only the labels are words.


# %% tags=["export", "internal"]
def grid(
    table: list[dict[str, Any]],
    rows: Sequence[str],
    columns: Sequence[str],
    titles: tuple[str, str],
) -> alt.Chart:
    """Place the cells of a table by row and column."""
    return alt.Chart(alt.Data(values=table)).encode(
        x=named_axis("column", columns, titles[1], "top"),
        y=named_axis("row", rows, titles[0], "left"),
    )


# %% tags=["export", "internal"]
def named_axis(field: str, names: Sequence[str], title: str, side: str) -> alt.X | alt.Y:
    """Return the axis of a matrix: positions, labeled with names."""
    labels = f"{json.dumps(list(names))}[datum.value]"
    angle = -45 if side == "top" and max(map(len, names), default=0) > 4 else 0
    axis = alt.Axis(
        labelExpr=labels,
        title=title,
        orient=side,
        labelAngle=angle,
        ticks=False,
        domain=False,
        labelOverlap=False,
    )
    channel = alt.X if side == "top" else alt.Y
    return channel(f"{field}:O", axis=axis, scale=alt.Scale(paddingInner=0.06, paddingOuter=0))


# %% [markdown]
# The layers: a shade for what is seen, the number on top of it, and the hatch for what is hidden. A number is printed in the color that can be read on its shade.


# %% tags=["export", "internal"]
def shades(base: alt.Chart, limit: float, color: str, signed: bool, legend: bool) -> alt.Chart:
    """Fill the seen cells: color by weight, or by sign, purple above zero and orange below."""
    seen = base.transform_filter("datum.seen")
    key = alt.Legend(title="value") if legend else None
    if signed:
        scale = alt.Scale(scheme="purpleorange", reverse=True, domain=[-limit, limit])
        return seen.mark_rect().encode(fill=alt.Fill("value:Q", scale=scale, legend=key))
    opacity = alt.Scale(domain=[0, limit], range=[0, 1])
    outline = {"stroke": INK, "strokeOpacity": 0.25, "strokeWidth": 0.5}
    return seen.mark_rect(fill=color, **outline).encode(
        fillOpacity=alt.FillOpacity("value:Q", scale=opacity, legend=key)
    )


# %% tags=["export", "internal"]
def printed(base: alt.Chart, limit: float, color: str, signed: bool) -> alt.Chart:
    """Print the value into each seen cell, in a color that can be read there."""
    dark = f"abs(datum.value) > {0.55 * limit}"
    ink: Any = alt.value(INK)
    if signed:  # its middle is white on a dark page too
        ink = alt.condition(dark, alt.value("white"), alt.value("black"))
    elif color == INK:
        ink = alt.condition(dark, alt.value(PAPER), alt.value(INK))
    numbers = base.transform_filter("datum.seen").mark_text(fontSize=11)
    return numbers.encode(text=alt.Text("value:Q", format=".2~f"), color=ink)


def hatched(base: alt.Chart, cell: int) -> alt.Chart:
    """Hatch the cells that may not be seen."""
    lines = "M-1,0L0,-1M-1,1L1,-1M0,1L1,0"
    return base.transform_filter("!datum.seen").mark_point(
        shape=lines, size=(0.8 * cell) ** 2, stroke=INK, strokeWidth=0.8
    )


# %% [markdown]
# A first example, with made-up numbers: three words, each allowed to look at itself and at the words before it.

# %% mystnb={"figure": {"name": "fig-first-heatmap", "caption": "Where does each word look? Read along a row: *sleeps* spends 0.7 of its attention on *cat*. The hatched keys lie in the future of the query and may not be seen. Each row of weights sums to 1. The numbers are made up."}}
weights = [[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.1, 0.7, 0.2]]
may_see = [[True, False, False], [True, True, False], [True, True, True]]
words = ["the", "cat", "sleeps"]
show(
    heatmap(weights, words, words, may_see),
    alt="A three by three matrix. The word sleeps puts 0.7 of its weight on cat; keys above the diagonal are hatched.",
)

# %% [markdown]
# ## Curves
#
# The other common picture is a curve, or a few of them. Each has a color and a dash, so that it can be told apart without the color.


# %% tags=["export"]
def curves(
    records: Sequence[Mapping[str, Any]],
    x: alt.X,
    y: alt.Y,
    series: str,
    looks: Mapping[str, tuple[str, Sequence[int]]],
) -> alt.Chart:
    """Chart one line for each value of the field `series`.

    Args:
        records: one mapping a point.
        x, y: Altair channels with title and scale.
        looks: value of `series` -> (color, dash pattern as lengths on and off).
    """
    key = {"sort": None, "title": None}
    colors = alt.Scale(domain=list(looks), range=[color for color, _ in looks.values()])
    dashes = alt.Scale(domain=list(looks), range=[list(dash) for _, dash in looks.values()])
    color = alt.Color(f"{series}:N", scale=colors, **key)
    dash = alt.StrokeDash(f"{series}:N", scale=dashes, **key)
    return alt.Chart(alt.Data(values=list(records))).mark_line().encode(x, y, color, dash)


# %% [markdown]
# ## Pictures that change
#
# Some pictures answer "what if". A chart with a slider does so on the website. Others walk through a computation step by step; they are a row of drawings of which one is shown. The reader picks which, with the mouse or with the arrow keys. This needs no script at all: a group of radio buttons remembers the choice, and one line of CSS shows the drawing that belongs to it.


# %% tags=["export"]
def show_steps(
    steps: Mapping[str, tuple[alt.TopLevelMixin, str]], question: str, start: int = 0
) -> None:
    """Display drawings of which the reader picks one.

    Args:
        steps: button text -> (chart, its spoken label).
        question: what the choice is about, read out before the buttons.
        start: the step shown at first.
    """
    drawn = {name: draw(chart, label) for name, (chart, label) in steps.items()}
    name = "s" + hashlib.sha256("".join(svg for svg, _ in drawn.values()).encode()).hexdigest()[:8]
    buttons = panels = rules = ""
    for i, (step, (svg, _)) in enumerate(drawn.items()):
        chosen = " checked" if i == start else ""
        buttons += f'<input type="radio" name="{name}" id="{name}-{i}"{chosen}>'
        buttons += f'<label for="{name}-{i}">{html.escape(step)}</label> '
        panels += f'<div class="step step-{i}">{svg}</div>'
        rules += f"#{name}:has(#{name}-{i}:checked) .step-{i}{{display:block}}"
    style = f"<style>#{name} .step{{display:none;overflow-x:auto}}{rules}</style>"
    asked = html.escape(question)
    group = f'<div role="radiogroup" aria-label="{asked}">{asked} {buttons}</div>'
    page = (
        f'<figure class="book-steps" id="{name}" style="margin:0">{style}{group}{panels}</figure>'
    )
    _, spec = list(drawn.values())[start]
    plain = f"[figure: {list(steps.values())[start][1]}]"
    display({"text/html": page, "image/png": picture(spec), "text/plain": plain}, raw=True)


# %% mystnb={"figure": {"name": "fig-first-steps", "caption": "What do raw scores become? Choose a stage: scores of any sign turn into weights that are positive and sum to 1. The numbers are made up."}}
scores = [2.0, 0.5, -1.0]
exponentials = [math.exp(s) for s in scores]
shares = [e / sum(exponentials) for e in exponentials]
assert math.isclose(sum(shares), 1)


def bar(values, title):
    records = [{"word": w, "value": round(v, 3)} for w, v in zip(words, values)]
    base = alt.Chart(alt.Data(values=records), title=title, width=300, height=130)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[-2, 8]))
    return base.mark_bar(color=KEY, size=40).encode(alt.X("word:N", sort=None, title=None), y)


show_steps(
    {
        "scores": (bar(scores, "scores"), "Three bars: 2, 0.5 and -1."),
        "exponentials": (bar(exponentials, "exponentials"), "Three bars: 7.39, 1.65 and 0.37."),
        "shares": (bar(shares, "shares"), "Three bars: 0.79, 0.18 and 0.04, which sum to 1."),
    },
    question="Which stage?",
)

# %% [markdown]
# ## Boxes and arrows
#
# How parts are connected is not a chart. For that we write the SVG ourselves: a line of text, a box, an arrow. A box may open the chapter that it stands for.


# %% tags=["export"]
def words_at(
    x: float, y: float, words: str, size: int = 13, color: str = INK, anchor: str = "middle"
) -> str:
    """Return a line of text for a drawing; y is its base line."""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}"'
    return f"<text {place}>{html.escape(words)}</text>"


def box(
    x: float, y: float, width: float, height: float, title: str, below: str = "", link: str = ""
) -> str:
    """Return a box with a title, a smaller line below it, and a page that it opens."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    parts = f'<rect {place} rx="6" fill="{PAPER}" stroke="{INK}"/>'
    parts += words_at(x + width / 2, y + height / 2 + (-2 if below else 5), title)
    parts += words_at(x + width / 2, y + height / 2 + 14, below, size=11) if below else ""
    return f'<a href="{html.escape(link)}">{parts}</a>' if link else parts


# %% [markdown]
# An arrow runs through points. Its head is a triangle, turned the way the last piece runs.


# %% tags=["export"]
def arrow(points: Sequence[tuple[float, float]], color: str = INK) -> str:
    """Return a line through points, with a head at the last."""
    (x0, y0), (x1, y1) = points[-2:]
    turn = math.degrees(math.atan2(y1 - y0, x1 - x0))
    path = "L".join(f"{x:g},{y:g}" for x, y in points)
    place = f'transform="translate({x1:g},{y1:g}) rotate({turn:.0f})"'
    head = f'<path d="M0,0L-8,-4L-8,4z" fill="{color}" {place}/>'
    return f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.5"/>{head}'


# %% [markdown]
# Two signs are used in all drawings. A thick grey line is the residual stream, which chapter 9 explains, and a plus in a circle adds to it.


# %% tags=["export"]
def stream(points: Sequence[tuple[float, float]]) -> str:
    """Return the residual stream through points: a thick grey line."""
    path = "L".join(f"{x:g},{y:g}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{INK}" stroke-opacity="0.3" stroke-width="6"/>'


def plus(x: float, y: float) -> str:
    """Return the sign of an addition: a plus in a circle."""
    cross = f'<path d="M{x - 5:g},{y:g}h10M{x:g},{y - 5:g}v10" stroke="{INK}"/>'
    return f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="{PAPER}" stroke="{INK}"/>{cross}'


# %% tags=["export"]
def show_drawing(parts: Iterable[str], width: int, height: int, alt: str) -> None:
    """Display boxes, arrows and words; alt tells the finding in at most two sentences."""
    inside = "".join(parts)
    role = "group" if "<a " in inside else "img"  # an image has no links
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    look = f"max-width:100%;height:auto;font-family:{FONTS}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="{role}" aria-label="{html.escape(alt)}"'
    svg = f'{head} {size} style="{look}">{inside}</svg>'
    paper = f'><rect width="{width}" height="{height}" fill="{PAPER}"/>'
    image = vl_convert.svg_to_png(svg.replace(">", paper, 1), scale=1.5)
    page = f'<figure class="book-figure" style="margin:0">{page_colors(svg)}</figure>'
    display({"text/html": page, "image/png": image, "text/plain": f"[figure: {alt}]"}, raw=True)


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-first-drawing", "caption": "How is a drawing read? Follow the arrows. The thick line carries a vector for each position; a box reads it, and a plus adds the result to it. Blue, orange and green arrows bring queries, keys and values. A box in the color of links opens its chapter."}}
colors = {"query": (66, QUERY), "key": (86, KEY), "value": (106, VALUE)}
parts = [stream([(40, 160), (40, 20)]), arrow([(180, 56), (50, 56)]), plus(40, 56)]
parts.append(words_at(52, 158, "stream", anchor="start"))
for name, (y, color) in colors.items():
    parts += [arrow([(40, y + 20), (180, y + 20)], color), words_at(110, y + 17, name, 11, color)]
parts.append(box(180, 40, 190, 100, "attention", "chapter 3", "03_attention.html"))
show_drawing(
    parts, 400, 170, alt="A box named attention reads the stream three times and adds to it."
)

# %% [markdown]
# ## Plots from Matplotlib
#
# Plots with many points, such as the curves of a long training, are drawn with Matplotlib. One call gives them the same colors and the same calm look.


# %% tags=["export"]
def style() -> None:
    """Give Matplotlib the look of the book; call it once, before the first plot."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update(
        {
            "figure.figsize": (6.4, 3.2),
            "figure.dpi": 110,
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "lines.linewidth": 2,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.prop_cycle": cycler(color=[QUERY, KEY, VALUE, POSITION, RESIDUAL]),
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
        }
    )


# %% [markdown]
# ## What to remember
#
# - Blue is a query, orange a key, green a value, pink a position, grey the residual stream.
# - Rows ask and columns answer. A shade is a weight from 0 (paper) to 1 (ink); hatched means hidden.
# - Numbers are printed in a matrix of up to eight rows. A figure says when its numbers are made up.
# - In a drawing the thick grey line is the stream; boxes read it, and a plus adds to it.
