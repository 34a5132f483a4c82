"""Sphinx's part of the live figures: their directives, their scripts, and the models beside them.

What a page shows before its model is loaded, the engine of the page computes while the site is
built: nothing is recorded that could disagree with it.
"""

import functools
import json
import zlib
from pathlib import Path
from typing import Any

from docutils import nodes
from py_mini_racer import MiniRacer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.live.examples import EXAMPLES, TRIALS
from book.live.pack import PRETRAINED, lines_of_a_head, pack, settings

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
MODELS = {
    "model": "everyday-de-en",
    "model_back": "everyday-en-de",
}  # script: its model
LANGUAGES = {"model": ["de", "en"], "model_back": ["en", "de"]}  # source and target
LABELS = {"de": "German", "en": "English"}
ALL = ("engine", "translator", "whatif", "inside_views", "inside")  # after live.js
NEEDED = {  # by figure
    "translator": ("engine", "translator"),
    "whatif": ("engine", "whatif"),
    "inside": ("engine", "inside_views", "inside"),
}
SENTENCE = "Weißt du, wo der Bahnhof ist?"  # that one looks inside at first,
START = 2  # at this word


# --- The engine, without a browser ---


@functools.cache
def packed(name: str) -> str:
    """Return a model as JSON."""
    return pack(PRETRAINED / MODELS[name])


@functools.cache
def engine() -> MiniRacer:
    """Return a JavaScript engine that knows the scripts."""
    context = MiniRacer()
    for path in (HERE / "document.js", *(SCRIPTS / f"{n}.js" for n in ("live", *ALL))):
        context.eval(path.read_text(encoding="utf-8"))
    return context


@functools.cache
def bring(name: str) -> str:
    """Give a model to the engine, once; return its name."""
    return str(engine().call("bring", name, packed(name)))


@functools.cache
def record(figure: str, name: str, text: str) -> Any:
    """Return what a figure shows of a text: what a model computes of it."""
    return json.loads(engine().call("record", figure, bring(name), text))


# --- What stands in the pages ---


def direction(name: str) -> dict[str, Any]:
    """Return what a script must know of a direction: its model and its languages."""
    return {
        "model": name,
        "megabytes": round(len(packed(name)) / 1e6, 1),
        "languages": LANGUAGES[name],
        "label": LABELS[LANGUAGES[name][0]],
    }


def still(picture: str, data: dict[str, Any]) -> str:
    """Return a picture and the data for the script that takes its place."""
    shown = data | settings(PRETRAINED / MODELS["model"])
    text = json.dumps(shown, ensure_ascii=False)
    safe = text.replace("</", "<\\/")
    return (
        f'<div class="live-still">{picture}</div>'
        f'<script type="application/json">{safe}</script>'
    )


def translator() -> str:
    """Return the translator, with what it makes of its examples."""
    directions = []
    for name, model in MODELS.items():
        examples = [
            record("translator", name, example.text) | example._asdict()
            for example in EXAMPLES[model]
        ]
        trials = [trial._asdict() for trial in TRIALS[model]]
        directions.append(direction(name) | {"examples": examples, "trials": trials})
    first = directions[0]["examples"][0]
    picture = engine().call("still", "translator", first, LANGUAGES["model"])
    return still(picture, {"directions": directions, "inside": "inside.html"})


def inside() -> str:
    """Return the machine with a sentence in it."""
    data = {
        "directions": [direction(name) for name in MODELS],
        "text": SENTENCE,
        "start": START,
        "code": lines_of_a_head(),
        "units": True,
    }
    answer = record("inside", "model", SENTENCE)
    answer["layers"] = settings(PRETRAINED / MODELS["model"])["layers"]
    picture = engine().call("still", "inside", answer, START, LANGUAGES["model"])
    return still(picture, data)


def what_if(name: str) -> str:
    """Return a figure of a chapter."""
    bring("model")
    arguments = json.dumps([name, "model", LANGUAGES["model"]])
    promise: Any = engine().eval(f"whatIf(...{arguments})")
    shown = direction("model")
    if name == "neighbors":
        shown |= {"label": "Word"}
    figure = still(promise.get(), {"figure": name, "directions": [shown]})
    return f'<figure class="book-translator" data-module="whatif">{figure}</figure>'


class Live(SphinxDirective):
    """A directive that shows a figure and depends on the models."""

    def raw(self, html: str) -> nodes.raw:
        """Return the figure."""
        for model in MODELS.values():
            self.env.note_dependency(str(PRETRAINED / model / "model.safetensors"))
        return nodes.raw("", html, format="html")


class Translator(Live):
    """`{translator}`: what stands in the figure, within `<figure data-module="translator">`."""

    def run(self) -> list[nodes.Node]:
        return [self.raw(translator())]


class Inside(Live):
    """`{inside}`: what stands in the figure, within `<figure data-module="inside">`."""

    def run(self) -> list[nodes.Node]:
        return [self.raw(inside())]


class WhatIf(Live):
    """`{what-if} NAME`: a figure with its caption; the last paragraph is for notebooks."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        name = self.arguments[0]
        figure = nodes.figure("", self.raw(what_if(name)))
        figure += nodes.caption("", "", *content[0].children)
        self.options["name"] = f"fig-what-if-{name}"
        self.add_name(figure)
        return [figure]


def add_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let a page with figures load their scripts."""
    body = context.get("body", "")
    needed = [NEEDED[name] for name in NEEDED if f'data-module="{name}"' in body]
    scripts = dict.fromkeys(script for scripts in needed for script in scripts)
    for script in ("live", *scripts) if scripts else ():
        app.add_js_file(f"{script}.js", loading_method="defer")


def write_data(app: Sphinx, exception: Exception | None) -> None:
    """Write the models, the sentence that one looks inside, and the units, as scripts."""
    if exception or app.builder.format != "html":
        return
    scripts = {name: packed(name) for name in MODELS}
    scripts["inside_units"] = (HERE / "units.json").read_text(encoding="utf-8")
    if "book/inside" in app.env.found_docs:
        scripts["inside_example"] = json.dumps(
            record("inside", "model", SENTENCE), separators=(",", ":")
        )
    for name, data in scripts.items():
        target = Path(app.outdir) / "_static" / f"{name}.js"
        target.write_text(f"live.{name} = {data.strip()};\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the figures with Sphinx; pages are read anew when the code here changes."""
    app.add_directive("translator", Translator)
    app.add_directive("inside", Inside)
    app.add_directive("what-if", WhatIf)
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", write_data)
    code = sorted([*HERE.glob("*.py"), *HERE.glob("*.js"), *SCRIPTS.glob("*.js")])
    return {
        "env_version": zlib.crc32(b"".join(path.read_bytes() for path in code)),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
