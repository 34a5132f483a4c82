"""Sphinx's configuration: what Jupyter Book makes of `_config.yml` and `_toc.yml`.

`jupyter-book build .` would do the same with one process; `make book` takes all cores.
"""

from pathlib import Path

from jupyter_book.config import get_final_config

_ROOT = Path(__file__).resolve().parent
_SETTINGS, _ = get_final_config(
    user_yaml=_ROOT / "_config.yml",
    sourcedir=_ROOT,
    cli_config={"external_toc_path": "_toc.yml", "latex_individualpages": False},
)
globals().update(_SETTINGS)
