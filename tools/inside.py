"""The lines of the package that the page "Look inside" sets beside the numbers of a head."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "annotated_transformer"
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


def lines_of_a_head(package: Path = PACKAGE) -> dict[str, str]:
    """Return the line of each step as the package has it.

    Raises ValueError if a line is not there, or if several begin like it.
    """
    found = {}
    for step, (module, beginning) in LINES.items():
        text = (package / f"{module}.py").read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line.startswith(beginning)]
        if len(lines) != 1:
            raise ValueError(
                f"{module}.py has {len(lines)} lines that begin with {beginning!r}, not one: "
                f"change LINES in tools/inside.py"
            )
        found[step] = lines[0]
    return found
