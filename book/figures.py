"""How the figures of the book look: its palette, and helpers that draw."""

import hashlib
import html
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert
from IPython.display import display

# --- The palette ---

# Roles: nothing else in the book has these four colors
QUERY = "#0072B2"  # blue: what a position looks for
KEY = "#D55E00"  # vermilion: what a position offers to be found by
VALUE = "#009E73"  # green: what a position hands over
POSITION = "#CC79A7"  # pink: where a token stands

# Everything else: lines, bars, marks
SKY = "#1B95C0"
AMBER = "#B67700"
PLUM = "#66378C"
RESIDUAL = "#555555"  # gray: the stream that layers add to, and what recedes
INK = "#1A1A1A"
PAPER = "#FFFFFF"

ON_THE_PAGE = {  # those that follow the theme of the page, by book.css; then JupyterLab's
    SKY: f"var(--book-sky, {SKY})",
    AMBER: f"var(--book-amber, {AMBER})",
    PLUM: f"var(--book-plum, color-mix(in srgb, {PLUM} 70%, currentColor))",
    RESIDUAL: f"var(--book-residual, color-mix(in srgb, {RESIDUAL} 40%, currentColor))",
    INK: "currentColor",
    PAPER: "var(--book-paper, var(--jp-layout-color0, #fff))",
}

ROLE_WORDS = {  # a role as text: it needs more contrast than a line
    QUERY: f"var(--book-query-text, {QUERY})",
    KEY: f"var(--book-key-text, {KEY})",
    VALUE: f"var(--book-value-text, {VALUE})",
    POSITION: f"var(--book-position-text, {POSITION})",
}

# --- From a chart to the page ---

LABELS = {
    "labelColor": INK,
    "titleColor": INK,
    "labelFontSize": 12,
    "titleFontSize": 12,
}
LINES = {"domainColor": INK, "tickColor": INK, "tickSize": 4, "grid": False}

FONTS = "Liberation Sans, Arial, Helvetica, sans-serif"  # all of one width
THEME: dict[str, Any] = {
    "font": "Liberation Sans",
    "background": None,
    "aria": False,  # the picture as a whole has a label; its thousand marks need none
    "view": {"stroke": None, "continuousWidth": 380, "continuousHeight": 240},
    "axis": LABELS
    | LINES
    | {"titleFontWeight": "normal", "titlePadding": 8, "labelPadding": 5},
    "legend": LABELS
    | {
        "titleFontWeight": "normal",
        "symbolType": "stroke",
        "symbolSize": 300,
        "orient": "top",  # beside the chart it would make it too wide for a phone
        "labelLimit": 0,
    },
    "header": LABELS,
    "title": {
        "color": INK,
        "fontSize": 13,
        "fontWeight": "normal",
        "subtitleColor": INK,
        "subtitleFontSize": 12,
        "anchor": "start",
    },
    "text": {"color": INK, "fontSize": 12},
    "line": {"strokeWidth": 2.2},
    "rule": {"color": INK},
    "mark": {"color": SKY},
    "range": {"category": [SKY, AMBER, PLUM, INK, RESIDUAL]},
}


ROW = "display:flex;flex-wrap:wrap;justify-content:center;align-items:end;gap:0 4px"


def draw(panels: Sequence[alt.TopLevelMixin], label: str) -> tuple[str, dict[str, Any]]:
    """Draw Altair charts side by side; where the page is too narrow, they stack.

    Args:
        panels: any Altair charts.
        label: the finding in at most two sentences, for readers who do not see the picture.

    Returns:
        SVG, which takes ink and paper from the page, and the themed specification.
    """
    svgs = []
    for panel in panels:
        spec = {**panel.to_dict(), "config": THEME}
        svgs.append(themed_svg(vl_convert.vegalite_to_svg(spec), label))
        label = ""  # said once
    if len(panels) == 1:
        return svgs[0], spec
    row = alt.hconcat(*panels).resolve_scale(
        fill="independent", fillOpacity="independent"
    )
    drawn = f'<div style="{ROW}">{"".join(svgs)}</div>'
    return drawn, {**row.to_dict(), "config": THEME}


def themed_svg(svg: str, label: str) -> str:
    """Make a drawn SVG fit for any page: unique ids, a spoken label, the page's ink and paper."""
    spoken = f'role="img" aria-label="{html.escape(label)}"'
    spoken = spoken if label else 'aria-hidden="true"'
    svg = re.sub(
        r' (class|role|aria-[a-z]+|pointer-events|font-family)="[^"]*"', "", svg
    )
    svg = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.2f}", svg)
    prefix = f"f{short_hash(svg)}"
    ids = dict.fromkeys(re.findall(r' id="([^"]+)"', svg))  # each once, in order
    for number, old in enumerate(ids):
        uses = rf'(id="|url\(#|href="#){re.escape(old)}(?=[")])'
        svg = re.sub(uses, rf"\1{prefix}-{number}", svg)
    head = f'<svg {spoken} style="{size_and_font(svg)}" '
    return page_colors(svg.replace("<svg ", head, 1))


def size_and_font(svg: str) -> str:
    """Return the style of a drawing: it shrinks with the page, and the site stops at `--least`."""
    least = least_width(svg)
    # --least comes last: vl-convert forgets what stands behind it
    return f"max-width:100%;height:auto;font-family:{FONTS};--least:{least}px"


def least_width(svg: str) -> int:
    """Return how narrow a drawing may become before its smallest text falls below 9 pixels."""
    width = float(re.findall(r'<svg [^>]*?\bwidth="([\d.]+)', svg)[0])
    units = float(re.findall(r'viewBox="\S+ \S+ ([\d.]+)', svg)[0])
    sizes = re.findall(r'<text[^>]*?font-size[:="\s]+([\d.]+)', svg)
    smallest = min((float(size) for size in sizes), default=9) * width / units
    return math.ceil(width * min(1, 9 / smallest))


def short_hash(text: str) -> str:
    """Return eight hexadecimal digits that depend on a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def page_colors(text: str) -> str:
    """Replace the colors that follow the theme by those of the page around the picture."""

    def on_the_page(color: re.Match[str]) -> str:
        return ON_THE_PAGE[color[0].upper()]

    for color, word in ROLE_WORDS.items():
        text = re.sub(rf'(<text[^>]*fill="){color}', rf"\1{word}", text)
    return re.sub("|".join(ON_THE_PAGE), on_the_page, text, flags=re.IGNORECASE)


def show(*panels: alt.TopLevelMixin, alt: str) -> None:
    """Display charts, side by side or, where the page is too narrow, one below the other.

    Args:
        panels: any Altair charts without a slider or a selection.
        alt: the finding in at most two sentences, for readers who do not see the picture.
    """
    svg, spec = draw(panels, alt)
    page = f'<figure class="book-chart" style="margin:0;overflow-x:auto">{svg}</figure>'
    display_all(page, picture(spec), alt)


def display_all(page: str, image: bytes, alt: str) -> None:
    """Display a figure in three forms: for the site, for GitHub and the PDF, and for a terminal."""
    forms = {"text/html": page, "image/png": image, "text/plain": f"[figure: {alt}]"}
    display(forms, raw=True)


def picture(spec: dict[str, Any]) -> bytes:
    """Return a chart as PNG on white paper."""
    config = {**spec["config"], "background": PAPER}
    return vl_convert.vegalite_to_png({**spec, "config": config}, scale=1.5)


# --- Rows ask, columns answer ---


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
    marked: Collection[tuple[int, int]] = (),
) -> alt.LayerChart:
    """Chart a matrix; its numbers are printed when it is 8x8 or smaller.

    Args:
        matrix: values in [0, limit], or in [-limit, limit] when `signed`.
        rows, columns: a name for each row and column; repeated names stay apart.
        mask: True where a row may see the column; elsewhere the cell is hatched.
        titles: of the rows and of the columns.
        color: of the value `limit`; smaller values fade to paper.
        cell: side of a cell in pixels.
        marked: cells (row, column) to frame; then no other number is printed.
    """
    base = grid(matrix_table(matrix, mask, marked), rows, columns, titles)
    is_large = max(len(rows), len(columns)) > 8
    layers = [shades(base, limit, color, signed, legend=is_large)]
    told = base
    if marked:
        told = base.transform_filter("datum.marked")
        layers.append(told.mark_rect(fill=None, stroke=AMBER, strokeWidth=2.5))
    if not is_large:
        layers.append(printed(told, limit, color, signed))
    if mask is not None:
        layers.append(hatched(base, cell))
    return alt.layer(*layers).properties(
        width=cell * len(columns), height=cell * len(rows)
    )


def matrix_table(
    matrix: Sequence[Sequence[float]],
    mask: Sequence[Sequence[bool]] | None,
    marked: Collection[tuple[int, int]],
) -> list[dict[str, Any]]:
    """Return one record a cell, values rounded to four decimals."""
    records = []
    for i, values in enumerate(matrix):
        for j, value in enumerate(values):
            record = {
                "row": i,
                "column": j,
                "value": round(float(value), 4) + 0.0,  # no minus before a zero
                "seen": mask is None or bool(mask[i][j]),
                "marked": (i, j) in marked,
            }
            records.append(record)
    return records


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


def named_axis(
    field: str, names: Sequence[str], title: str, side: str
) -> alt.X | alt.Y:
    """Return the axis of a matrix: positions, labeled with names."""
    labels = f"{json.dumps(list(names))}[datum.value]"
    longest = max((len(name) for name in names), default=0)
    angle = -45 if side == "top" and longest > 4 else 0
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
    return channel(
        f"{field}:O", axis=axis, scale=alt.Scale(paddingInner=0.06, paddingOuter=0)
    )


def shades(
    base: alt.Chart, limit: float, color: str, signed: bool, legend: bool
) -> alt.Chart:
    """Fill the seen cells: the fuller, the larger; with a sign, plum above zero and amber below."""
    visible = base.transform_filter("datum.seen").transform_calculate(
        size="abs(datum.value)"
    )
    key = alt.Legend(title="size" if signed else "value") if legend else None
    opacity = alt.Scale(domain=[0, limit], range=[0, 1], clamp=True)
    outline = {"stroke": INK, "strokeOpacity": 0.25, "strokeWidth": 0.5}
    fill: Any = alt.value(color)
    if signed:
        fill = alt.condition("datum.value < 0", alt.value(AMBER), alt.value(PLUM))
    return visible.mark_rect(**outline).encode(
        fill=fill, fillOpacity=alt.FillOpacity("size:Q", scale=opacity, legend=key)
    )


def printed(base: alt.Chart, limit: float, color: str, signed: bool) -> alt.Chart:
    """Print the value into each seen cell, in a color that can be read there."""
    ink: Any = alt.value(INK)
    if color == QUERY:  # dark on every page
        ink = alt.condition(f"datum.value > {0.75 * limit}", alt.value("white"), ink)
    elif signed or color not in (KEY, VALUE, POSITION):
        share = 0.55 if color == INK and not signed else 0.75
        full = f"abs(datum.value) > {share * limit}"
        ink = alt.condition(full, alt.value(PAPER), ink)
    numbers = base.transform_filter("datum.seen").mark_text(fontSize=11)
    return numbers.encode(text=alt.Text("value:Q", format=".2~f"), color=ink)


def hatched(base: alt.Chart, cell: int) -> alt.Chart:
    """Hatch the cells that may not be seen."""
    lines = "M-1,0L0,-1M-1,1L1,-1M0,1L1,0"
    return base.transform_filter("!datum.seen").mark_point(
        shape=lines, size=(0.8 * cell) ** 2, stroke=INK, strokeWidth=0.8
    )


# --- Curves ---

SIDES: dict[str, dict[str, Any]] = {  # where a name stands, seen from its point
    "right": {"align": "left", "dx": 6},
    "above": {"dy": -14},
    "below": {"dy": 12},
    "above left": {"align": "right", "dx": -6, "dy": -8},
    "above right": {"align": "left", "dx": 4, "dy": -10},
    "below right": {"align": "left", "dx": 6, "dy": 8},
}


def curves(
    records: Sequence[Mapping[str, Any]],
    x: alt.X,
    y: alt.Y,
    series: str,
    looks: Mapping[str, tuple[str, Sequence[int]]],
    names: Mapping[str, tuple[Any, str]] | None = None,
) -> alt.Chart | alt.LayerChart:
    """Chart one line for each value of the field `series`.

    Args:
        records: one mapping a point.
        x, y: Altair channels with title and scale.
        looks: value of `series` -> (color, dash pattern as lengths on and off).
        names: value of `series` -> (x of the point where its name stands, on which side of it);
            without them, a legend names the lines.
    """
    palette = [color for color, _ in looks.values()]
    patterns = [list(dash) for _, dash in looks.values()]
    colors = alt.Scale(domain=list(looks), range=palette)
    dashes = alt.Scale(domain=list(looks), range=patterns)
    columns = max(1, 52 // (8 + max(len(name) for name in looks)))
    key = None if names else alt.Legend(columns=columns, symbolSize=500)
    legend = {"sort": None, "title": None, "legend": key}
    color = alt.Color(f"{series}:N", scale=colors, **legend)
    dash = alt.StrokeDash(f"{series}:N", scale=dashes, **legend)
    chart = alt.Chart(alt.Data(values=list(records))).encode(x, y)
    layers = [chart.mark_line().encode(color, dash)]
    field = x.to_dict()["field"]
    for name, (place, side) in (names or {}).items():
        here = (alt.datum[series] == name) & (alt.datum[field] == place)
        words = chart.transform_filter(here).encode(text=f"{series}:N")
        layers.append(words.mark_text(**SIDES[side], stroke=PAPER, strokeWidth=4))
        layers.append(words.mark_text(**SIDES[side]))
    return alt.layer(*layers) if names else layers[0]


# --- Pictures that change ---


def show_steps(
    steps: Mapping[str, tuple[alt.TopLevelMixin | list[Any], str]],
    question: str,
    start: int = 0,
) -> None:
    """Display drawings of which the reader picks one.

    Args:
        steps: button text -> (chart, or a list of panels; its spoken label).
        question: what the choice is about, read out before the buttons.
        start: the step shown at first.
    """
    svgs = []
    specs = []
    for drawn, label in steps.values():
        svg, spec = draw(drawn if isinstance(drawn, list) else [drawn], label)
        svgs.append(svg)
        specs.append(spec)
    name = f"s{short_hash(''.join(svgs))}"
    buttons = ""
    panels = ""
    rules = ""
    for i, (step, svg) in enumerate(zip(steps, svgs)):
        checked = " checked" if i == start else ""
        buttons += f'<input type="radio" name="{name}" id="{name}-{i}"{checked}>'
        buttons += f'<label for="{name}-{i}">{html.escape(step)}</label> '
        panels += f'<div class="step step-{i}">{svg}</div>'
        rules += f"#{name}:has(#{name}-{i}:checked) .step-{i}{{display:block}}"
    style = f"<style>#{name} .step{{display:none;overflow-x:auto}}{rules}</style>"
    title = html.escape(question)
    group = f'<div role="radiogroup" aria-label="{title}">{title} {buttons}</div>'
    head = f'<figure class="book-steps" id="{name}" style="margin:0">'
    page = f"{head}{style}{group}{panels}</figure>"
    _, label = list(steps.values())[start]
    display_all(page, picture(specs[start]), label)


# --- Boxes and arrows ---


def words_at(
    x: float,
    y: float,
    words: str,
    size: int = 13,
    color: str = INK,
    anchor: str = "middle",
) -> str:
    """Return a line of text for a drawing; y is its base line."""
    attributes = (
        f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}"'
    )
    return f"<text {attributes}>{html.escape(words)}</text>"


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    title: str,
    below: str = "",
    link: str = "",
) -> str:
    """Return a box with a title, a smaller line below it, and a page that it opens on the site.

    JupyterLab rewrites links, and fails at one inside of a drawing: the site makes it one.
    """
    size = f'width="{width:g}" height="{height:g}"'
    svg = f'<rect x="{x:g}" y="{y:g}" {size} rx="6" fill="{PAPER}" stroke="{INK}"/>'
    center_x = x + width / 2
    center_y = y + height / 2
    if below:
        svg += words_at(center_x, center_y - 2, title)
        svg += words_at(center_x, center_y + 14, below, size=11)
    else:
        svg += words_at(center_x, center_y + 5, title)
    if link:
        return f'<g data-page="{html.escape(link)}">{svg}</g>'
    return svg


def arrow(points: Sequence[tuple[float, float]], color: str = INK) -> str:
    """Return a line through points, with a head at the last."""
    (x0, y0), (x1, y1) = points[-2:]
    turn = math.degrees(math.atan2(y1 - y0, x1 - x0))
    position = f'transform="translate({x1:g},{y1:g}) rotate({turn:.0f})"'
    head = f'<path d="M0,0L-8,-4L-8,4z" fill="{color}" {position}/>'
    path = path_through(points)
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>{head}'


def stream(points: Sequence[tuple[float, float]]) -> str:
    """Return the residual stream through points: a thick gray line."""
    path = path_through(points)
    return f'<path d="{path}" fill="none" stroke="{INK}" stroke-opacity="0.3" stroke-width="6"/>'


def path_through(points: Sequence[tuple[float, float]]) -> str:
    """Return straight lines through points, as SVG writes them."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def plus(x: float, y: float) -> str:
    """Return the sign of an addition: a plus in a circle."""
    cross = f'<path d="M{x - 5:g},{y:g}h10M{x:g},{y - 5:g}v10" stroke="{INK}"/>'
    return f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="{PAPER}" stroke="{INK}"/>{cross}'


def show_drawing(parts: Iterable[str], width: int, height: int, alt: str) -> None:
    """Display boxes, arrows and words; alt tells the finding in at most two sentences."""
    inside = "".join(parts)
    role = "group" if "data-page" in inside else "img"  # an image has no links
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="{role}" aria-label="{html.escape(alt)}"'
    look = size_and_font(f"<svg {size}>{inside}")
    svg = f'{head} {size} style="{look}">{inside}</svg>'
    paper = f'><rect width="{width}" height="{height}" fill="{PAPER}"/>'
    image = vl_convert.svg_to_png(svg.replace(">", paper, 1), scale=1.5)
    page = f'<figure class="book-figure" style="margin:0">{page_colors(svg)}</figure>'
    display_all(page, image, alt)


# --- Plots from Matplotlib ---


def style() -> None:
    """Give Matplotlib the look of the book; call it once, before the first plot."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update(
        {
            "figure.figsize": (4.8, 2.6),
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 9,  # 12 pixels
            "lines.linewidth": 1.7,
            "axes.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": "medium",
            "axes.prop_cycle": cycler(color=[SKY, AMBER, PLUM, INK, RESIDUAL]),
            "image.cmap": "Greys",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "svg.fonttype": "none",  # words stay words
            "svg.hashsalt": "book",  # the same names in each run
        }
    )


def signed_colors() -> Any:
    """Return a map of colors for Matplotlib: amber below zero, plum above, nothing at zero."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    below, above = "#C98A12", "#8A5BB8"  # an image knows no theme: these suit both
    ends = [to_rgba(below), to_rgba(below, 0), to_rgba(above, 0), to_rgba(above)]
    places = [0, 0.5, 0.5, 1]
    return LinearSegmentedColormap.from_list("signed", list(zip(places, ends)))


def show_plot(alt: str) -> None:
    """Display the plot that Matplotlib has drawn last, and close it.

    Args:
        alt: the finding in at most two sentences, for readers who do not see the picture.
    """
    import matplotlib.pyplot as plt

    drawing, image = io.StringIO(), io.BytesIO()
    nothing = {"Date": None, "Creator": None}
    plt.savefig(drawing, format="svg", transparent=True, metadata=nothing)
    plt.savefig(image, format="png", facecolor=PAPER)
    plt.close()
    svg = themed_svg(plain_svg(drawing.getvalue()), alt)
    page = f'<figure class="book-chart" style="margin:0;overflow-x:auto">{svg}</figure>'
    display_all(page, image.getvalue(), alt)


def plain_svg(svg: str) -> str:
    """Return the SVG of Matplotlib without what would reach the page around it, in pixels."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r"\s*<style.*?</style>", "", svg, flags=re.S
    )  # it speaks of all elements
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for side in ("width", "height"):
        points = re.findall(rf'{side}="([\d.]+)pt"', svg)[0]
        pixels = round(float(points) * 96 / 72)
        svg = svg.replace(f'{side}="{points}pt"', f'{side}="{pixels}"', 1)
    svg = pale_ground(svg)
    used = set(re.findall(r'#([\w-]+)[")]', svg))
    svg = re.sub(r' id="([^"]+)"', lambda name: name[0] if name[1] in used else "", svg)
    return re.sub(r"\s*\n\s*", " ", svg)


def pale_ground(svg: str) -> str:
    """Make the ground below a hatch transparent; Matplotlib does it to the hatch as well."""
    both = r"(fill: url\(#([\w-]+)\)); fill-opacity: ([\d.]+)"
    for name, share in {(name, share) for _, name, share in re.findall(both, svg)}:
        ground = rf'(<pattern id="{name}".*?<rect [^>]*?)/>'
        svg = re.sub(ground, rf'\1 fill-opacity="{share}"/>', svg, count=1, flags=re.S)
    return re.sub(both, r"\1", svg)
