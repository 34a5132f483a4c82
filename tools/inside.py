"""The lines of code that the figures "Look inside" set beside the numbers of a head."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "annotated_transformer"
BY_HAND = ROOT / "notebooks" / "11_by_hand.py"
LINES = {  # a step -> where its line is, and how it begins
    "query": ("multi_head_attention", "query = split_heads("),
    "key": ("multi_head_attention", "key = split_heads("),
    "value": ("multi_head_attention", "value = split_heads("),
    "scores": ("attention", "scores = query @"),
    "mask": ("attention", "scores = torch.where(mask"),
    "weights": ("attention", "weights = scores.softmax"),
    "sum": ("attention", "return F.dropout(weights"),
    "output": ("multi_head_attention", "return self.output("),
}
LINES_BY_HAND = {  # the same in the chapter that rounds, where the decoder's row needs no mask
    "query": "Q = two(",
    "key": "K = two(",
    "value": "V = two(",
    "scores": "scores = two(",
    "weights": "weights = softmax(",
    "sum": "out = two(",
    "output": "return heads, torch.cat(",
    "cross.output": "c = norm(b + cross.out",
}


def lines_of_a_head(package: Path = PACKAGE) -> dict[str, str]:
    """Return the line of each step as the package has it.

    Raises ValueError if a line is not there, or if several begin like it.
    """
    return {
        step: the_line(package / f"{module}.py", beginning)
        for step, (module, beginning) in LINES.items()
    }


def lines_by_hand() -> dict[str, str]:
    """Return the line of each step as chapter 11 has it.

    Raises ValueError if a line is not there, or if several begin like it.
    """
    return {
        step: the_line(BY_HAND, beginning) for step, beginning in LINES_BY_HAND.items()
    }


def the_line(file: Path, beginning: str) -> str:
    """Return the one line of a file that begins like this, after its indent."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    found = [line for line in lines if line.startswith(beginning)]
    if len(found) != 1:
        raise ValueError(
            f"{file.name} has {len(found)} lines that begin with {beginning!r}, not one: "
            f"change tools/inside.py"
        )
    return found[0]
