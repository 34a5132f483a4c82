"""Write a trained model as one web page that translates, without a network and without Python.

    python -m book.live.page MODEL_FOLDER german.html

MODEL_FOLDER may be the name of a model of the package.
"""

import argparse
import html
import json
import sys
from pathlib import Path
from string import Template

from book.live.pack import PRETRAINED, lines_of_a_head, pack, settings

HERE = Path(__file__).parent
SCRIPTS = ("live", "engine", "translator", "inside_views", "inside")


def page(folder: Path, name: str) -> str:
    """Return the page of a saved model, with a name as its title."""
    direction = {
        "model": "model",
        "megabytes": 0,  # it is in the page
        "languages": ["", ""],
        "label": "Text",
        "examples": [],
        "trials": [],
    }
    shown = {"directions": [direction], "start": 0, "inside": ""}
    data = settings(folder) | shown | {"code": lines_of_a_head()}
    scripts = [
        (HERE / "scripts" / f"{script}.js").read_text("utf-8") for script in SCRIPTS
    ]
    template = Template((HERE / "page.html").read_text("utf-8"))
    return template.substitute(
        name=html.escape(name),
        style=(HERE / "scripts" / "live.css").read_text("utf-8"),
        data=json.dumps(data),
        scripts="\n".join(scripts),
        model=pack(folder),
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m book.live.page", description=__doc__
    )
    parser.add_argument(
        "model", help="a model's folder, or the name of one of the package"
    )
    parser.add_argument(
        "page", type=Path, help="a new file; its name becomes the title"
    )
    arguments = parser.parse_args()
    folder = Path(arguments.model)
    if not folder.exists():
        folder = PRETRAINED / arguments.model
    if not folder.exists():
        sys.exit(f"there is no model {arguments.model}")
    if arguments.page.exists():
        sys.exit(f"{arguments.page} is there already: take a new name")
    arguments.page.write_text(page(folder, arguments.page.stem), encoding="utf-8")
    print(f"{arguments.page}: {arguments.page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
