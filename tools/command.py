"""The command lines of the tools: each says what it does, and refuses what it does not know."""

import argparse


def command_line(module: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return the parser of a tool, `python -m MODULE`, whose documentation is its help.

    An option must be written out: `--wo` is not taken for `--words`.
    """
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=documentation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
