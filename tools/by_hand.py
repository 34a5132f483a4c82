"""Record what chapter 11 computes by hand, for the figure there that steps through it.

The chapter's own cells are run: its weights and its functions once, and the cell with the whole
page for each word that the decoder writes.
"""

import io
import json
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tools.chapters import chapters, tags
from tools.command import command_line
from tools.web_model import ROOT

CHAPTER = "11_by_hand"
OUTPUT = ROOT / "book" / "site" / "recorded" / "by_hand.json"
WHOLE_PAGE = "# Encoder\n"  # how the cell begins that computes everything
FIRST = "(empty)"  # what the decoder reads before its first word
UNITS = {"encoder.0": ["meal", "pet"], "decoder.0": ["object"]}
HEADS = (["noun", "verb"], ["adj.", "art."]), (["living", "edible"], ["dark"])


def chapter_cells() -> tuple[str, str]:
    """Return the code in front of the cell with the whole page, and that cell."""
    (chapter,) = [one for one in chapters() if one.script.stem == CHAPTER]
    before: list[str] = []
    for cell in chapter.read_script().cells:
        if cell.cell_type != "code" or "remove-cell" in tags(cell):
            continue
        if cell.source.startswith(WHOLE_PAGE):
            return "\n".join(before), cell.source
        before.append(cell.source)
    raise ValueError(f"{CHAPTER}.py has no cell that begins with {WHOLE_PAGE!r}")


def run_chapter() -> list[SimpleNamespace]:
    """Return the names of the chapter after its whole page, for one word written, two, ..."""
    before, page = chapter_cells()
    names: dict[str, Any] = {}
    exec(before, names)
    runs = []
    for count in range(1, len(names["t"]) + 1):
        run = names | {"t": names["t"][:count]}
        with redirect_stdout(io.StringIO()):
            exec(page, run)
        runs.append(SimpleNamespace(**run))
    return runs


def numbers(tensor: Tensor) -> Any:
    """Return nested lists of the numbers as one would write them, with two decimals.

    Raises ValueError if a number has more of them: then it is not on the sheets.
    """
    if (tensor - tensor.round(decimals=2)).abs().max() > 1e-9:
        raise ValueError(f"not rounded to two decimals: {tensor}")
    return (tensor.round(decimals=2) + 0.0).tolist()


def attention(runs: list[list[Any]]) -> dict[str, Any]:
    """Return what the heads of an attention compute.

    A run has its heads, for one position or for several; the last run sees all keys.
    """
    last = runs[-1]

    def joined(name: str) -> Any:
        rows = [torch.cat([getattr(head, name) for head in heads], 1) for heads in runs]
        return numbers(torch.cat(rows))

    def of_heads(name: str) -> list[Any]:
        per_head = [[numbers(getattr(head, name)) for head in heads] for heads in runs]
        return [list(rows) for heads in per_head for rows in zip(*heads)]

    return {
        "widths": [head.V.size(1) for head in last],
        "queries": joined("Q"),
        "keys": numbers(torch.cat([head.K for head in last], 1)),
        "values": numbers(torch.cat([head.V for head in last], 1)),
        "scores": of_heads("scores"),
        "weights": of_heads("weights"),
        "joined": joined("out"),
    }


def residual(names: SimpleNamespace, before: Tensor, added: Tensor) -> dict[str, Any]:
    """Return what a sub-layer adds (T, D) to the stream (T, D), and the norm of the sum."""
    mean, deviation = names.mean_and_deviation(before + added)
    return {
        "added": numbers(added),
        "mean": numbers(mean[:, 0]),
        "deviation": numbers(deviation[:, 0]),
        "after": numbers(names.norm(before + added)),
    }


def likeliest(names: SimpleNamespace, stream: Tensor) -> list[list[Any]]:
    """Return all words with their probabilities at each position of a stream (T, D)."""
    shares = names.softmax(names.two(stream @ names.X.T))
    return [
        sorted(zip(names.WORDS, row), key=lambda entry: -entry[1])
        for row in numbers(shares)
    ]


def record() -> dict[str, Any]:
    """Return the sentence, what is written, and every number on the way to it."""
    runs = run_chapter()
    names = runs[-1]

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(run, name) for run in runs])

    b, c, s = rows("b"), rows("c"), rows("s")
    crossed = torch.cat([run.cross.out for run in runs]) @ names.C_O
    selves = {"names": {"keys": HEADS[0], "values": HEADS[1]}}
    cross = {"names": {"keys": [names.SHORT[:2]], "values": [names.SHORT[2:]]}}
    trace = {
        "encoder": {"embedded": numbers(names.x)},
        "encoder.layers.0.self_attention": attention([names.read]) | selves,
        "encoder.layers.0.residuals.0": residual(names, names.x, names.fetched),
        "encoder.layers.0.feed_forward": {"hidden": numbers(names.fired)},
        "encoder.layers.0.residuals.1": residual(
            names, names.a, names.fired @ names.W2
        ),
        "decoder": {"embedded": numbers(names.t)},
        "decoder.layers.0.self_attention": attention([run.wrote for run in runs])
        | selves,
        "decoder.layers.0.residuals.0": residual(names, names.t, rows("recalled")),
        "decoder.layers.0.cross_attention": attention([[run.cross] for run in runs])
        | cross,
        "decoder.layers.0.residuals.1": residual(names, b, crossed),
        "decoder.layers.0.feed_forward": {"hidden": numbers(rows("unit"))},
        "decoder.layers.0.residuals.2": residual(names, c, rows("unit") @ names.U2),
    }
    lens = [likeliest(names, names.t), likeliest(names, s)]
    written = [best[0][0] for best in lens[-1]]
    return {
        "text": " ".join(names.WORDS),
        "source": names.WORDS,
        "first": FIRST,
        "written": written,
        "texts": [" ".join(written[:count]) for count in range(1, len(written) + 1)],
        "dimensions": names.SHORT,
        "units": UNITS,
        "layers": 1,
        "trace": trace,
        "lens": lens,
    }


def main() -> None:
    """Write the recording."""
    command_line("tools.by_hand", __doc__).parse_args()
    text = json.dumps(record(), ensure_ascii=False, separators=(",", ":"))
    OUTPUT.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {OUTPUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
